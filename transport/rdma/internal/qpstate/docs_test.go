package qpstate

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// The table that readers see is the one in the code.
func TestDocsHaveTheTable(t *testing.T) {
	doc, err := os.ReadFile("../../../../docs/qp-states.md")
	require.NoError(t, err)
	want := tableAsMarkdown()
	if !strings.Contains(string(doc), want) {
		require.Fail(t, "docs/qp-states.md differs from the table", "it should contain\n%s", want)
	}
}

// tableAsMarkdown has one line for each transition and group of types that
// need the same, without RESET and ERR, which take no attributes.
func tableAsMarkdown() string {
	var b strings.Builder
	b.WriteString("| transition | QP types | required | optional |\n|---|---|---|---|\n")
	for from := range verbs.QPState(states) {
		for to := range verbs.QPState(states) {
			if !anyState(from, to) {
				writeTransition(&b, from, to)
			}
		}
	}
	return b.String()
}

func writeTransition(b *strings.Builder, from, to verbs.QPState) {
	var rows []Row
	names := map[Row][]string{}
	for _, typ := range allTypes {
		row, ok := Lookup(typ, from, to)
		if !ok {
			continue
		}
		if names[row] == nil {
			rows = append(rows, row)
		}
		names[row] = append(names[row], typ.String())
	}
	for _, row := range rows {
		fmt.Fprintf(b, "| %v to %v | %s | %s | %s |\n", from, to, strings.Join(names[row], ", "), list(row.Required), list(row.Optional))
	}
}

func list(m verbs.AttrMask) string {
	if m == 0 {
		return "–"
	}
	return strings.ReplaceAll(m.String(), "|", ", ")
}
