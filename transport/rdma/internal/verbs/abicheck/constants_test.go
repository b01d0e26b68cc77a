//go:build linux

package abicheck

// constants gives the C name of every exported integer constant of package
// verbs.
var constants = map[string]string{
	"RC": "IBV_QPT_RC", "UC": "IBV_QPT_UC", "UD": "IBV_QPT_UD",
	"XRCSend": "IBV_QPT_XRC_SEND", "XRCRecv": "IBV_QPT_XRC_RECV",

	"Reset": "IBV_QPS_RESET", "Init": "IBV_QPS_INIT", "RTR": "IBV_QPS_RTR", "RTS": "IBV_QPS_RTS",
	"SQD": "IBV_QPS_SQD", "SQE": "IBV_QPS_SQE", "Err": "IBV_QPS_ERR", "Unknown": "IBV_QPS_UNKNOWN",

	"AttrState":         "IBV_QP_STATE",
	"AttrCurState":      "IBV_QP_CUR_STATE",
	"AttrEnSQDNotify":   "IBV_QP_EN_SQD_ASYNC_NOTIFY",
	"AttrAccess":        "IBV_QP_ACCESS_FLAGS",
	"AttrPKeyIndex":     "IBV_QP_PKEY_INDEX",
	"AttrPort":          "IBV_QP_PORT",
	"AttrQKey":          "IBV_QP_QKEY",
	"AttrAV":            "IBV_QP_AV",
	"AttrPathMTU":       "IBV_QP_PATH_MTU",
	"AttrTimeout":       "IBV_QP_TIMEOUT",
	"AttrRetryCnt":      "IBV_QP_RETRY_CNT",
	"AttrRNRRetry":      "IBV_QP_RNR_RETRY",
	"AttrRQPSN":         "IBV_QP_RQ_PSN",
	"AttrMaxRdAtomic":   "IBV_QP_MAX_QP_RD_ATOMIC",
	"AttrAltPath":       "IBV_QP_ALT_PATH",
	"AttrMinRNRTimer":   "IBV_QP_MIN_RNR_TIMER",
	"AttrSQPSN":         "IBV_QP_SQ_PSN",
	"AttrMaxDestRdAtom": "IBV_QP_MAX_DEST_RD_ATOMIC",
	"AttrPathMigState":  "IBV_QP_PATH_MIG_STATE",
	"AttrCap":           "IBV_QP_CAP",
	"AttrDestQPN":       "IBV_QP_DEST_QPN",
	"AttrRateLimit":     "IBV_QP_RATE_LIMIT",

	"AccessLocalWrite":   "IBV_ACCESS_LOCAL_WRITE",
	"AccessRemoteWrite":  "IBV_ACCESS_REMOTE_WRITE",
	"AccessRemoteRead":   "IBV_ACCESS_REMOTE_READ",
	"AccessRemoteAtomic": "IBV_ACCESS_REMOTE_ATOMIC",
	"AccessMWBind":       "IBV_ACCESS_MW_BIND",

	"MTU256": "IBV_MTU_256", "MTU512": "IBV_MTU_512", "MTU1024": "IBV_MTU_1024",
	"MTU2048": "IBV_MTU_2048", "MTU4096": "IBV_MTU_4096",

	"PortNop": "IBV_PORT_NOP", "PortDown": "IBV_PORT_DOWN", "PortInit": "IBV_PORT_INIT",
	"PortArmed": "IBV_PORT_ARMED", "PortActive": "IBV_PORT_ACTIVE", "PortActiveDefer": "IBV_PORT_ACTIVE_DEFER",

	"LinkUnspecified": "IBV_LINK_LAYER_UNSPECIFIED",
	"LinkInfiniBand":  "IBV_LINK_LAYER_INFINIBAND",
	"LinkEthernet":    "IBV_LINK_LAYER_ETHERNET",

	"GIDInfiniBand": "IBV_GID_TYPE_IB", "GIDRoCEv1": "IBV_GID_TYPE_ROCE_V1", "GIDRoCEv2": "IBV_GID_TYPE_ROCE_V2",

	"OpWrite": "IBV_WR_RDMA_WRITE", "OpWriteImm": "IBV_WR_RDMA_WRITE_WITH_IMM",
	"OpSend": "IBV_WR_SEND", "OpSendImm": "IBV_WR_SEND_WITH_IMM", "OpRead": "IBV_WR_RDMA_READ",
	"OpCompareSwap": "IBV_WR_ATOMIC_CMP_AND_SWP", "OpFetchAdd": "IBV_WR_ATOMIC_FETCH_AND_ADD",

	"SendFence": "IBV_SEND_FENCE", "SendSignaled": "IBV_SEND_SIGNALED",
	"SendSolicited": "IBV_SEND_SOLICITED", "SendInline": "IBV_SEND_INLINE",

	"WCSuccess":        "IBV_WC_SUCCESS",
	"WCLocLenErr":      "IBV_WC_LOC_LEN_ERR",
	"WCLocQPOpErr":     "IBV_WC_LOC_QP_OP_ERR",
	"WCLocEECOpErr":    "IBV_WC_LOC_EEC_OP_ERR",
	"WCLocProtErr":     "IBV_WC_LOC_PROT_ERR",
	"WCWRFlushErr":     "IBV_WC_WR_FLUSH_ERR",
	"WCMWBindErr":      "IBV_WC_MW_BIND_ERR",
	"WCBadRespErr":     "IBV_WC_BAD_RESP_ERR",
	"WCLocAccessErr":   "IBV_WC_LOC_ACCESS_ERR",
	"WCRemInvReqErr":   "IBV_WC_REM_INV_REQ_ERR",
	"WCRemAccessErr":   "IBV_WC_REM_ACCESS_ERR",
	"WCRemOpErr":       "IBV_WC_REM_OP_ERR",
	"WCRetryExcErr":    "IBV_WC_RETRY_EXC_ERR",
	"WCRNRRetryExcErr": "IBV_WC_RNR_RETRY_EXC_ERR",
	"WCLocRDDViolErr":  "IBV_WC_LOC_RDD_VIOL_ERR",
	"WCRemInvRDReqErr": "IBV_WC_REM_INV_RD_REQ_ERR",
	"WCRemAbortErr":    "IBV_WC_REM_ABORT_ERR",
	"WCInvEECNErr":     "IBV_WC_INV_EECN_ERR",
	"WCInvEECStateErr": "IBV_WC_INV_EEC_STATE_ERR",
	"WCFatalErr":       "IBV_WC_FATAL_ERR",
	"WCRespTimeoutErr": "IBV_WC_RESP_TIMEOUT_ERR",
	"WCGeneralErr":     "IBV_WC_GENERAL_ERR",

	"WCSend": "IBV_WC_SEND", "WCRDMAWrite": "IBV_WC_RDMA_WRITE", "WCRDMARead": "IBV_WC_RDMA_READ",
	"WCCompSwap": "IBV_WC_COMP_SWAP", "WCFetchAdd": "IBV_WC_FETCH_ADD",
	"WCRecv": "IBV_WC_RECV", "WCRecvRDMAImm": "IBV_WC_RECV_RDMA_WITH_IMM",

	"WCWithGRH": "IBV_WC_GRH", "WCWithImm": "IBV_WC_WITH_IMM",

	"EventCQErr":            "IBV_EVENT_CQ_ERR",
	"EventQPFatal":          "IBV_EVENT_QP_FATAL",
	"EventQPReqErr":         "IBV_EVENT_QP_REQ_ERR",
	"EventQPAccessErr":      "IBV_EVENT_QP_ACCESS_ERR",
	"EventCommEst":          "IBV_EVENT_COMM_EST",
	"EventSQDrained":        "IBV_EVENT_SQ_DRAINED",
	"EventPathMig":          "IBV_EVENT_PATH_MIG",
	"EventPathMigErr":       "IBV_EVENT_PATH_MIG_ERR",
	"EventDeviceFatal":      "IBV_EVENT_DEVICE_FATAL",
	"EventPortActive":       "IBV_EVENT_PORT_ACTIVE",
	"EventPortErr":          "IBV_EVENT_PORT_ERR",
	"EventLIDChange":        "IBV_EVENT_LID_CHANGE",
	"EventPKeyChange":       "IBV_EVENT_PKEY_CHANGE",
	"EventSMChange":         "IBV_EVENT_SM_CHANGE",
	"EventSRQErr":           "IBV_EVENT_SRQ_ERR",
	"EventSRQLimitReached":  "IBV_EVENT_SRQ_LIMIT_REACHED",
	"EventQPLastWQEReached": "IBV_EVENT_QP_LAST_WQE_REACHED",
	"EventClientReregister": "IBV_EVENT_CLIENT_REREGISTER",
	"EventGIDChange":        "IBV_EVENT_GID_CHANGE",

	// Of our own shim.h.
	"WakeTimeout": "VB_WAKE_TIMEOUT", "WakeEvent": "VB_WAKE_EVENT", "WakeCall": "VB_WAKE_CALL",
}
