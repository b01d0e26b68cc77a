//go:build linux

package uverbs

import (
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.AttrMask) error {
	const op = "ibv_modify_qp"
	if err := q.Alive(op); err != nil {
		return err
	}
	cmd := modifyQP{
		dest:     destOf(&attr.AV),
		qpHandle: q.handle, attrMask: uint32(mask),
		qkey: attr.QKey, rqPSN: attr.RQPSN, sqPSN: attr.SQPSN, destQPNum: attr.DestQPN,
		qpAccessFlags: uint32(attr.Access), pkeyIndex: attr.PKeyIndex,
		qpState: uint8(attr.State), curQPState: uint8(attr.CurState), pathMTU: uint8(attr.PathMTU),
		maxRdAtomic: attr.MaxRdAtomic, maxDestRdAtomic: attr.MaxDestRdAtom,
		minRNRTimer: attr.MinRNRTimer, portNum: attr.Port,
		timeout: attr.Timeout, retryCnt: attr.RetryCnt, rnrRetry: attr.RNRRetry,
	}
	if attr.EnSQDNotify {
		cmd.enSQDAsyncNotify = 1
	}
	if _, err := run[none](q.dev.cmd, cmdModifyQP, cmd); err != nil {
		return uobject.Failure(op, q.Name(), err, uobject.PathHint(err))
	}
	if mask&verbs.AttrState != 0 {
		q.state.Store(uint32(attr.State))
	}
	return nil
}

// queryMask is every attribute that QPAttr holds.
const queryMask = verbs.AttrState | verbs.AttrCurState | verbs.AttrEnSQDNotify | verbs.AttrAccess |
	verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrQKey | verbs.AttrAV | verbs.AttrPathMTU |
	verbs.AttrTimeout | verbs.AttrRetryCnt | verbs.AttrRNRRetry | verbs.AttrRQPSN |
	verbs.AttrMaxRdAtomic | verbs.AttrMinRNRTimer | verbs.AttrSQPSN | verbs.AttrMaxDestRdAtom |
	verbs.AttrCap | verbs.AttrDestQPN

func (q *qp) Query() (verbs.QPAttr, error) {
	const op = "ibv_query_qp"
	if err := q.Alive(op); err != nil {
		return verbs.QPAttr{}, err
	}
	k, err := run[queryQPResp](q.dev.cmd, cmdQueryQP, queryQP{qpHandle: q.handle, attrMask: uint32(queryMask)})
	if err != nil {
		return verbs.QPAttr{}, uobject.Failure(op, q.Name(), err)
	}
	q.state.Store(uint32(k.qpState))
	return verbs.QPAttr{
		State: verbs.QPState(k.qpState), CurState: verbs.QPState(k.curQPState), PathMTU: verbs.MTU(k.pathMTU),
		QKey: k.qkey, RQPSN: k.rqPSN, SQPSN: k.sqPSN, DestQPN: k.destQPNum,
		Access: verbs.Access(k.qpAccessFlags), AV: ahAttrFrom(&k.dest), PKeyIndex: k.pkeyIndex,
		SQDraining:  k.sqDraining != 0,
		MaxRdAtomic: k.maxRdAtomic, MaxDestRdAtom: k.maxDestRdAtomic, MinRNRTimer: k.minRNRTimer, Port: k.portNum,
		Timeout: k.timeout, RetryCnt: k.retryCnt, RNRRetry: k.rnrRetry,
		Caps: verbs.QPCaps{
			MaxSendWR: int(k.maxSendWR), MaxRecvWR: int(k.maxRecvWR),
			MaxSendSGE: int(k.maxSendSGE), MaxRecvSGE: int(k.maxRecvSGE), MaxInlineData: int(k.maxInlineData),
		},
	}, nil
}

func destOf(a *verbs.AHAttr) qpDest {
	d := qpDest{dlid: a.DLID, sl: a.SL, portNum: a.Port}
	if a.Global {
		d.isGlobal = 1
		d.dgid, d.flowLabel, d.sgidIndex = a.DGID, a.FlowLabel, a.SGIDIndex
		d.hopLimit, d.trafficClass = a.HopLimit, a.TrafficClass
	}
	return d
}

func ahAttrFrom(d *qpDest) verbs.AHAttr {
	return verbs.AHAttr{
		Global: d.isGlobal != 0, DGID: d.dgid, SGIDIndex: d.sgidIndex, FlowLabel: d.flowLabel,
		HopLimit: d.hopLimit, TrafficClass: d.trafficClass, DLID: d.dlid, SL: d.sl, Port: d.portNum,
	}
}
