//go:build linux && cgo

package ibverbs

/*
#include "shim.h"
*/
import "C"

import "github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"

// queryMask is every attribute that QPAttr holds.
const queryMask = verbs.AttrState | verbs.AttrCurState | verbs.AttrEnSQDNotify | verbs.AttrAccess |
	verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrQKey | verbs.AttrAV | verbs.AttrPathMTU |
	verbs.AttrTimeout | verbs.AttrRetryCnt | verbs.AttrRNRRetry | verbs.AttrRQPSN |
	verbs.AttrMaxRdAtomic | verbs.AttrMinRNRTimer | verbs.AttrSQPSN | verbs.AttrMaxDestRdAtom |
	verbs.AttrCap | verbs.AttrDestQPN

func cQPAttr(a *verbs.QPAttr) C.struct_vb_qp_attr {
	c := C.struct_vb_qp_attr{
		qp_state:           C.uint32_t(a.State),
		cur_qp_state:       C.uint32_t(a.CurState),
		path_mtu:           C.uint32_t(a.PathMTU),
		qkey:               C.uint32_t(a.QKey),
		rq_psn:             C.uint32_t(a.RQPSN),
		sq_psn:             C.uint32_t(a.SQPSN),
		dest_qp_num:        C.uint32_t(a.DestQPN),
		qp_access_flags:    C.uint(a.Access),
		ah_attr:            cAHAttr(&a.AV),
		pkey_index:         C.uint16_t(a.PKeyIndex),
		max_rd_atomic:      C.uint8_t(a.MaxRdAtomic),
		max_dest_rd_atomic: C.uint8_t(a.MaxDestRdAtom),
		min_rnr_timer:      C.uint8_t(a.MinRNRTimer),
		port_num:           C.uint8_t(a.Port),
		timeout:            C.uint8_t(a.Timeout),
		retry_cnt:          C.uint8_t(a.RetryCnt),
		rnr_retry:          C.uint8_t(a.RNRRetry),
	}
	if a.EnSQDNotify {
		c.en_sqd_async_notify = 1
	}
	return c
}

func goQPAttr(c *C.struct_vb_qp_attr) verbs.QPAttr {
	return verbs.QPAttr{
		State:         verbs.QPState(c.qp_state),
		CurState:      verbs.QPState(c.cur_qp_state),
		PathMTU:       verbs.MTU(c.path_mtu),
		QKey:          uint32(c.qkey),
		RQPSN:         uint32(c.rq_psn),
		SQPSN:         uint32(c.sq_psn),
		DestQPN:       uint32(c.dest_qp_num),
		Access:        verbs.Access(c.qp_access_flags),
		AV:            goAHAttr(&c.ah_attr),
		PKeyIndex:     uint16(c.pkey_index),
		EnSQDNotify:   c.en_sqd_async_notify != 0,
		SQDraining:    c.sq_draining != 0,
		MaxRdAtomic:   uint8(c.max_rd_atomic),
		MaxDestRdAtom: uint8(c.max_dest_rd_atomic),
		MinRNRTimer:   uint8(c.min_rnr_timer),
		Port:          uint8(c.port_num),
		Timeout:       uint8(c.timeout),
		RetryCnt:      uint8(c.retry_cnt),
		RNRRetry:      uint8(c.rnr_retry),
		Caps:          goCaps(&c.cap),
	}
}

func cCaps(caps verbs.QPCaps) C.struct_vb_qp_cap {
	return C.struct_vb_qp_cap{
		max_send_wr:     C.uint32_t(caps.MaxSendWR),
		max_recv_wr:     C.uint32_t(caps.MaxRecvWR),
		max_send_sge:    C.uint32_t(caps.MaxSendSGE),
		max_recv_sge:    C.uint32_t(caps.MaxRecvSGE),
		max_inline_data: C.uint32_t(caps.MaxInlineData),
	}
}

func goCaps(c *C.struct_vb_qp_cap) verbs.QPCaps {
	return verbs.QPCaps{
		MaxSendWR:     int(c.max_send_wr),
		MaxRecvWR:     int(c.max_recv_wr),
		MaxSendSGE:    int(c.max_send_sge),
		MaxRecvSGE:    int(c.max_recv_sge),
		MaxInlineData: int(c.max_inline_data),
	}
}
