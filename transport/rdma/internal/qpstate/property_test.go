package qpstate

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// Whatever is asked of a QP, and whatever it does by itself meanwhile, told or
// not, its history is a path in the table, its listeners see that path, and
// after each answer of the device the machine knows the true state.
func TestHistoryIsAPath(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		qp := &fakeQP{typ: rapid.SampledFrom(allTypes).Draw(t, "type")}
		m := New(qp, Options{Strict: rapid.Bool().Draw(t, "strict")})
		var seen History
		m.OnChange(func(c Change) { seen = append(seen, c) })
		state := rapid.SampledFrom([]verbs.QPState{verbs.Reset, verbs.Init, verbs.RTR, verbs.RTS, verbs.SQD, verbs.SQE, verbs.Err})

		t.Repeat(map[string]func(*rapid.T){
			"step up": func(t *rapid.T) {
				up := m.State() + 1
				row, ok := Lookup(qp.typ, m.State(), up)
				if !ok || up > verbs.RTS {
					t.Skip("no way up")
				}
				before := qp.state()
				err := m.Modify(goodAttr(m.State(), up), verbs.AttrState|row.Required, "up")
				require.Equal(t, before == row.From, err == nil)
			},
			"anything": func(t *rapid.T) {
				mask := verbs.AttrMask(rapid.Uint32().Draw(t, "mask"))
				err := m.Modify(goodAttr(m.State(), state.Draw(t, "to")), mask, "anything")
				require.True(t, err == nil || transitionErrorOf(t, err).found())
			},
			"go to": func(t *rapid.T) {
				_ = m.Modify(goodAttr(0, state.Draw(t, "to")), verbs.AttrState, "go to")
			},
			"device error": func(t *rapid.T) {
				qp.fail, qp.became = refusal(syscall.EIO), qp.state()
				_ = m.ToErr("device error")
				qp.fail = nil // strict may not have asked
			},
			"device moves": func(t *rapid.T) {
				to := state.Draw(t, "to")
				if Spontaneous(qp.typ, qp.state(), to) {
					qp.set(to)
					if rapid.Bool().Draw(t, "told") {
						m.Observe(to, "told")
					}
				}
			},
			"late completion": func(t *rapid.T) {
				if m.State() == verbs.Reset || m.State() == verbs.Err {
					require.False(t, m.Observe(verbs.Err, "late"))
				}
			},
			"": func(t *rapid.T) {
				requirePath(t, qp.typ, m.History())
				requirePath(t, qp.typ, seen)
				last := verbs.Reset
				if len(seen) > 0 {
					last = seen[len(seen)-1].To
				}
				require.Equal(t, last, m.State())
			},
		})

		// An answer of the device sets the state right.
		_ = m.Modify(goodAttr(0, verbs.Init), verbs.AttrState, "refused everywhere")
		if m.strict {
			return
		}
		require.Equal(t, qp.state(), m.State())
	})
}

func transitionErrorOf(t require.TestingT, err error) *TransitionError {
	var e *TransitionError
	require.ErrorAs(t, err, &e)
	return e
}
