package transport

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/wire"
)

func busy2(a attempt) attempt { a.busy = true; return a }

func qpOf(epoch uint64) wire.QP { return wire.QP{Epoch: epoch} }

// TestAttemptRows walks every arrow of the state diagram in docs/PROTOCOL.md.
func TestAttemptRows(t *testing.T) {
	const e = 7
	type row struct {
		name   string
		client bool
		from   attempt
		ev     attemptEvent
		state  attemptState
		ops    []attemptOp
		fault  bool
	}
	at := func(s attemptState) attempt { return attempt{able: true, state: s, epoch: e, settled: s == fast} }
	busy := func(s attemptState) attempt { return attempt{able: true, state: s, epoch: e, busy: true} }
	opened := func(s attemptState) attempt {
		return attempt{able: true, state: s, epoch: e, opened: true, settled: true}
	}
	none := attempt{able: true}
	over := attempt{able: true, epoch: e, settled: true}
	again := func(s attemptState) attempt {
		return attempt{able: true, state: s, epoch: e, settled: true, opened: true, again: true, onFast: s == fast}
	}
	onFast := func(a attempt) attempt { a.onFast = true; return a }
	for _, r := range []row{
		{"unable", true, attempt{}, attemptEvent{is: evUnable, text: "no"}, idle, []attemptOp{opBindTCP}, false},
		{"begin", true, attempt{}, attemptEvent{is: evBegin, epoch: e}, preparing, []attemptOp{opPrepare}, false},
		{"prepared", true, busy(preparing), attemptEvent{is: evPrepared, epoch: e}, offered, []attemptOp{opOffer}, false},
		{"prepared too late", true, attempt{epoch: e, busy: true, settled: true}, attemptEvent{is: evPrepared, epoch: e}, idle, []attemptOp{opRelease}, false},
		{"not prepared", true, busy(preparing), attemptEvent{is: evFailed, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"answer", true, at(offered), attemptEvent{is: evAnswer, qp: qpOf(e)}, proving, []attemptOp{opConnect}, false},
		{"answer of another attempt", true, at(offered), attemptEvent{is: evAnswer, qp: qpOf(8)}, offered, nil, false}, // case 3
		{"answer twice", true, busy(proving), attemptEvent{is: evAnswer, qp: qpOf(e)}, proving, nil, false},
		{"answer too late", true, over, attemptEvent{is: evAnswer, qp: qpOf(e)}, idle, nil, false},
		{"client connected", true, busy(proving), attemptEvent{is: evConnected, epoch: e}, proving, []attemptOp{opStart, opReady}, false},
		{"client not connected", true, busy(proving), attemptEvent{is: evFailed, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"client connected too late", true, attempt{epoch: e, busy: true, settled: true}, attemptEvent{is: evConnected, epoch: e}, idle, []attemptOp{opRelease}, false},
		{"client gets READY", true, at(proving), attemptEvent{is: evReady}, fast, []attemptOp{opBindFast}, false},
		{"READY before the link", true, busy(proving), attemptEvent{is: evReady}, proving, nil, false},
		{"server abandons offer", true, at(offered), attemptEvent{is: evAbandon, epoch: e}, idle, []attemptOp{opRelease, opBindTCP}, false},
		{"server abandons proof", true, at(proving), attemptEvent{is: evAbandon, epoch: e}, idle, []attemptOp{opRelease, opBindTCP}, false},
		{"server abandons another", true, at(offered), attemptEvent{is: evAbandon, epoch: 8}, offered, nil, false},
		{"server abandons after READY", true, at(fast), attemptEvent{is: evAbandon, epoch: e}, fast, nil, true},
		{"client timeout", true, at(offered), attemptEvent{is: evTimeout, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"client timeout of proof", true, at(proving), attemptEvent{is: evTimeout, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"timeout too late", true, at(fast), attemptEvent{is: evTimeout, epoch: e}, fast, nil, false},
		{"link down in proof", true, at(proving), attemptEvent{is: evLinkDown}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"link down", true, at(fast), attemptEvent{is: evLinkDown}, falling, []attemptOp{opFall}, false},
		{"client gets offer", true, at(offered), attemptEvent{is: evOffer, qp: qpOf(e)}, offered, nil, true},
		{"server sends first", true, none, attemptEvent{is: evLaneTCP}, idle, nil, true},
		{"reply on TCP", true, over, attemptEvent{is: evLaneTCP}, idle, nil, false},
		{"reply on the other link", true, at(fast), attemptEvent{is: evLaneTCP}, fast, nil, true},
		{"reply on the fast link", true, at(fast), attemptEvent{is: evLaneFast}, fast, nil, false},

		{"offer", false, none, attemptEvent{is: evOffer, qp: qpOf(e)}, offered, []attemptOp{opAccept}, false},
		{"offer without a name", false, none, attemptEvent{is: evOffer, qp: qpOf(0)}, idle, nil, true},
		{"offer though unable", false, attempt{}, attemptEvent{is: evOffer, qp: qpOf(e)}, idle, nil, true},
		{"offer twice", false, busy(offered), attemptEvent{is: evOffer, qp: qpOf(8)}, offered, nil, true},
		{"offer while busy", false, busy(idle), attemptEvent{is: evOffer, qp: qpOf(8)}, idle, []attemptOp{opAbandon}, false},
		{"offer after calls", false, opened(idle), attemptEvent{is: evOffer, qp: qpOf(8)}, offered, []attemptOp{opAccept}, false},
		{"second offer", false, over, attemptEvent{is: evOffer, qp: qpOf(8)}, offered, []attemptOp{opAccept}, false},
		{"server connected", false, busy(offered), attemptEvent{is: evConnected, epoch: e}, proving, []attemptOp{opStart, opAnswer}, false},
		{"server not connected", false, busy(offered), attemptEvent{is: evFailed, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"server connected too late", false, busy(idle), attemptEvent{is: evConnected, epoch: e}, idle, []attemptOp{opRelease}, false},
		{"server gets READY", false, at(proving), attemptEvent{is: evReady}, fast, []attemptOp{opBindFast, opReady}, false},
		{"READY twice", false, at(fast), attemptEvent{is: evReady}, fast, nil, false},
		{"lease over", false, at(proving), attemptEvent{is: evTimeout, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"lease over while busy", false, busy(offered), attemptEvent{is: evTimeout, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"lease of another", false, at(proving), attemptEvent{is: evTimeout, epoch: 8}, proving, nil, false},
		{"client abandons", false, at(proving), attemptEvent{is: evAbandon, epoch: e}, idle, []attemptOp{opRelease, opBindTCP}, false},
		{"client abandons after READY", false, at(fast), attemptEvent{is: evAbandon, epoch: e}, idle, []attemptOp{opRelease, opBindTCP}, false},
		{"client abandons after calls", false, opened(fast), attemptEvent{is: evAbandon, epoch: e}, fast, nil, true},
		{"client abandons without an offer", false, none, attemptEvent{is: evAbandon}, idle, []attemptOp{opBindTCP}, false},
		{"client abandons nothing, late", false, at(proving), attemptEvent{is: evAbandon}, proving, nil, true},
		{"server link down before calls", false, at(fast), attemptEvent{is: evLinkDown}, idle, []attemptOp{opRelease, opBindTCP}, false},
		{"server link down", false, opened(fast), attemptEvent{is: evLinkDown}, falling, []attemptOp{opFall}, false},
		{"call without an offer", false, none, attemptEvent{is: evLaneTCP}, idle, []attemptOp{opBindTCP}, false},
		{"call before the attempt is over", false, at(proving), attemptEvent{is: evLaneTCP}, proving, nil, true},
		{"call on the fast link", false, at(fast), attemptEvent{is: evLaneFast}, fast, nil, false},
		{"call on the fast link before READY", false, at(proving), attemptEvent{is: evLaneFast}, proving, nil, true},
		{"client tries again", true, over, attemptEvent{is: evBegin, epoch: 8}, preparing, []attemptOp{opPrepare}, false},
		{"not prepared again", true, busy2(again(preparing)), attemptEvent{is: evFailed, epoch: e}, idle, []attemptOp{opRelease, opBindTCP}, false},
		{"client gets READY again", true, again(proving), attemptEvent{is: evReady}, rising, []attemptOp{opRise}, false},
		{"reply while the client rises", true, again(rising), attemptEvent{is: evLaneTCP}, rising, nil, false},
		{"client gets MOVE up", true, again(rising), attemptEvent{is: evUp, epoch: e}, fast, []attemptOp{opBindFast, opReady}, false},
		{"MOVE up of another link", true, again(rising), attemptEvent{is: evUp, epoch: 8}, rising, nil, false},
		{"MOVE up without an attempt", true, over, attemptEvent{is: evUp, epoch: e}, idle, nil, true},
		{"link down while the client rises", true, again(rising), attemptEvent{is: evLinkDown}, falling, []attemptOp{opFall}, false},
		{"MOVE up too late", true, again(falling), attemptEvent{is: evUp, epoch: e}, falling, nil, false},
		{"peer leaves", true, again(fast), attemptEvent{is: evDown, epoch: e}, leaving, []attemptOp{opLeave}, false},
		{"peer leaves while the client rises", true, again(rising), attemptEvent{is: evDown, epoch: e}, leaving, []attemptOp{opLeave}, false},
		{"frame while the link is closed", true, onFast(again(leaving)), attemptEvent{is: evLaneFast}, leaving, nil, false},
		{"left", true, onFast(again(leaving)), attemptEvent{is: evLinkDown}, idle, []attemptOp{opFall, opResend}, false},
		{"left before anything was sent", true, again(leaving), attemptEvent{is: evLinkDown}, idle, []attemptOp{opFall, opResume}, false},
		{"peer has left too", true, onFast(again(falling)), attemptEvent{is: evDown, epoch: e}, idle, []attemptOp{opResend}, false},
		{"peer has left another", true, again(falling), attemptEvent{is: evDown, epoch: 8}, falling, nil, false},
		{"peer leaves twice", true, again(leaving), attemptEvent{is: evDown, epoch: e}, leaving, nil, true},
		{"peer leaves what is not there", true, over, attemptEvent{is: evDown, epoch: e}, idle, nil, true},
		{"abandoned while the client rises", true, again(rising), attemptEvent{is: evAbandon, epoch: e}, rising, nil, true},
		{"reply while falling from rising", true, again(falling), attemptEvent{is: evLaneTCP}, falling, nil, false},
		{"frame while falling", true, onFast(again(falling)), attemptEvent{is: evLaneTCP}, falling, nil, true},

		{"server gets READY again", false, again(proving), attemptEvent{is: evReady}, proven, []attemptOp{opReady}, false},
		{"call while the server waits", false, again(proven), attemptEvent{is: evLaneTCP}, proven, nil, false},
		{"server gets MOVE up", false, again(proven), attemptEvent{is: evUp, epoch: e}, rising, []attemptOp{opRise}, false},
		{"MOVE up before READY", false, again(proving), attemptEvent{is: evUp, epoch: e}, proving, nil, true},
		{"call on TCP behind MOVE", false, again(rising), attemptEvent{is: evLaneTCP}, rising, nil, true},
		{"second READY", false, again(rising), attemptEvent{is: evReady}, fast, []attemptOp{opBindFast}, false},
		{"call before the second READY", false, again(rising), attemptEvent{is: evLaneFast}, fast, []attemptOp{opBindFast}, false},
		{"link down before MOVE", false, again(proven), attemptEvent{is: evLinkDown}, idle, []attemptOp{opRelease, opBindTCP}, false},
		{"MOVE up for a dead link", false, again(idle), attemptEvent{is: evUp, epoch: e}, falling, []attemptOp{opFall}, false},
		{"client leaves what died here before calls", false, over, attemptEvent{is: evDown, epoch: e}, idle, []attemptOp{opFall, opResume}, false},
		{"client leaves before READY", false, again(proven), attemptEvent{is: evDown, epoch: e}, proven, nil, true},
		{"client abandons before MOVE", false, again(proven), attemptEvent{is: evAbandon, epoch: e}, idle, []attemptOp{opRelease, opBindTCP}, false},
		{"client abandons after MOVE", false, again(rising), attemptEvent{is: evAbandon, epoch: e}, rising, nil, true},
		{"server gets answer", false, at(offered), attemptEvent{is: evAnswer, qp: qpOf(e)}, offered, nil, true},
	} {
		t.Run(r.name, func(t *testing.T) {
			a := r.from
			a.client = r.client
			did, err := a.on(r.ev)
			require.Equal(t, r.fault, err != nil, "%v", err)
			require.Equal(t, r.state, a.state)
			var ops []attemptOp
			for _, act := range did {
				ops = append(ops, act.op)
			}
			require.Equal(t, r.ops, ops)
			if r.fault {
				require.ErrorAs(t, err, new(*wire.ParseError))
			}
		})
	}
}
