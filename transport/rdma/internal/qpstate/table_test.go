package qpstate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

var allTypes = []verbs.QPType{verbs.RC, verbs.UC, verbs.UD, verbs.XRCSend, verbs.XRCRecv}

// legal is drawn by hand: rows are from, columns to, in the order RESET INIT
// RTR RTS SQD SQE ERR; u marks what UC and UD alone have.
var legal = [states]string{
	verbs.Reset: "xx.....",
	verbs.Init:  "xxx...x",
	verbs.RTR:   "x..x..x",
	verbs.RTS:   "x..xx.x",
	verbs.SQD:   "x..xx.x",
	verbs.SQE:   "x..u..x",
	verbs.Err:   "x.....x",
}

func TestLegalTransitions(t *testing.T) {
	for _, typ := range allTypes {
		for from := range verbs.QPState(states) {
			for to := range verbs.QPState(states) {
				mark := legal[from][to]
				want := mark == 'x' || mark == 'u' && (typ == verbs.UC || typ == verbs.UD)
				_, got := Lookup(typ, from, to)
				require.Equal(t, want, got, "%v: %v to %v", typ, from, to)
			}
		}
	}
}

func TestLookupOfNonsense(t *testing.T) {
	for _, typ := range []verbs.QPType{0, 5, 8, 11, 200} {
		_, ok := Lookup(typ, verbs.Reset, verbs.Init)
		require.False(t, ok, "%v", typ)
	}
	for _, s := range []verbs.QPState{verbs.Unknown, 200} {
		_, ok := Lookup(verbs.RC, s, verbs.Reset)
		require.False(t, ok)
		_, ok = Lookup(verbs.RC, verbs.Reset, s)
		require.False(t, ok)
	}
}

// The attributes that ibv_modify_qp(3) lists for the way up, spelled out.
func TestRequiredByTheManualPage(t *testing.T) {
	type way struct{ init, rtr, rts string }
	for typ, want := range map[verbs.QPType]way{
		verbs.UD: {"PKEY_INDEX|PORT|QKEY", "0x0", "SQ_PSN"},
		verbs.UC: {"ACCESS_FLAGS|PKEY_INDEX|PORT", "AV|PATH_MTU|RQ_PSN|DEST_QPN", "SQ_PSN"},
		verbs.RC: {"ACCESS_FLAGS|PKEY_INDEX|PORT",
			"AV|PATH_MTU|RQ_PSN|MIN_RNR_TIMER|MAX_DEST_RD_ATOMIC|DEST_QPN",
			"TIMEOUT|RETRY_CNT|RNR_RETRY|MAX_QP_RD_ATOMIC|SQ_PSN"},
	} {
		for to, attrs := range map[verbs.QPState]string{verbs.Init: want.init, verbs.RTR: want.rtr, verbs.RTS: want.rts} {
			row, ok := Lookup(typ, to-1, to)
			require.True(t, ok)
			require.Equal(t, attrs, row.Required.String(), "%v to %v", typ, to)
		}
	}
}

// Required and optional do not overlap, and only the way up requires anything.
func TestRowsAreConsistent(t *testing.T) {
	eachRow(func(typ verbs.QPType, row Row) {
		require.Zero(t, row.Required&row.Optional, "%v %+v", typ, row)
		up := row.To == row.From+1 && row.To <= verbs.RTS
		require.True(t, up || row.Required == 0, "%v %+v", typ, row)
	})
}

func eachRow(f func(verbs.QPType, Row)) {
	for _, typ := range allTypes {
		for from := range verbs.QPState(states) {
			for to := range verbs.QPState(states) {
				if row, ok := Lookup(typ, from, to); ok {
					f(typ, row)
				}
			}
		}
	}
}
