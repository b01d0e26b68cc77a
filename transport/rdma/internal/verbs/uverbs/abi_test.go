//go:build linux

package uverbs

import (
	"debug/dwarf"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/abicheck"
)

const source = `
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_rxe.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
enum { MACRO_RDMA_VERBS_IOCTL = RDMA_VERBS_IOCTL };
`

// What abi.go declares is what the kernel's headers declare.
func TestABI(t *testing.T) {
	abicheck.Require(t, "rdma/rdma_user_rxe.h", "linux-libc-dev")
	h := abicheck.Compile(t, source)
	for name, value := range map[string]int64{
		"IB_USER_VERBS_CMD_GET_CONTEXT": cmdGetContext, "IB_USER_VERBS_CMD_QUERY_DEVICE": cmdQueryDevice,
		"IB_USER_VERBS_CMD_QUERY_PORT": cmdQueryPort, "IB_USER_VERBS_CMD_ALLOC_PD": cmdAllocPD,
		"IB_USER_VERBS_CMD_DEALLOC_PD": cmdDeallocPD, "IB_USER_VERBS_CMD_CREATE_AH": cmdCreateAH,
		"IB_USER_VERBS_CMD_DESTROY_AH": cmdDestroyAH, "IB_USER_VERBS_CMD_REG_MR": cmdRegMR,
		"IB_USER_VERBS_CMD_DEREG_MR": cmdDeregMR, "IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL": cmdCreateCompChannel,
		"IB_USER_VERBS_CMD_CREATE_CQ": cmdCreateCQ, "IB_USER_VERBS_CMD_DESTROY_CQ": cmdDestroyCQ,
		"IB_USER_VERBS_CMD_REQ_NOTIFY_CQ": cmdReqNotifyCQ, "IB_USER_VERBS_CMD_CREATE_QP": cmdCreateQP,
		"IB_USER_VERBS_CMD_QUERY_QP": cmdQueryQP, "IB_USER_VERBS_CMD_MODIFY_QP": cmdModifyQP,
		"IB_USER_VERBS_CMD_DESTROY_QP": cmdDestroyQP, "IB_USER_VERBS_CMD_POST_SEND": cmdPostSend,
		"IB_USER_VERBS_CMD_CREATE_SRQ": cmdCreateSRQ, "IB_USER_VERBS_CMD_MODIFY_SRQ": cmdModifySRQ,
		"IB_USER_VERBS_CMD_DESTROY_SRQ": cmdDestroySRQ,

		"MACRO_RDMA_VERBS_IOCTL": rdmaVerbsIoctl, "UVERBS_ATTR_F_MANDATORY": attrMandatory,
		"RDMA_DRIVER_RXE": driverRXE, "UVERBS_OBJECT_DEVICE": objectDevice,
		"UVERBS_METHOD_INVOKE_WRITE": methodInvokeWrite, "UVERBS_ATTR_CORE_IN": attrCoreIn,
		"UVERBS_ATTR_CORE_OUT": attrCoreOut, "UVERBS_ATTR_WRITE_CMD": attrWriteCmd, "UVERBS_ATTR_UHW_OUT": attrUHWOut,
		"UVERBS_ATTR_UHW_IN":                           attrUHWIn,
		"UVERBS_METHOD_QUERY_GID_TABLE":                methodQueryGIDTable,
		"UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE":       attrEntrySize,
		"UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES":     attrRespEntries,
		"UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES": attrRespNumEntries,
	} {
		real, ok := h.Constants[name]
		require.True(t, ok, name)
		require.EqualValues(t, uint32(real), value, name)
	}
	for name, ours := range map[string]reflect.Type{
		"get_context": reflect.TypeFor[getContext](), "get_context_resp": reflect.TypeFor[getContextResp](),
		"query_device": reflect.TypeFor[queryDevice](), "query_device_resp": reflect.TypeFor[queryDeviceResp](),
		"query_port": reflect.TypeFor[queryPort](), "query_port_resp": reflect.TypeFor[queryPortResp](),
		"alloc_pd": reflect.TypeFor[allocPD](), "alloc_pd_resp": reflect.TypeFor[allocPDResp](),
		"dealloc_pd": reflect.TypeFor[deallocPD](),
		"reg_mr":     reflect.TypeFor[regMR](), "reg_mr_resp": reflect.TypeFor[regMRResp](), "dereg_mr": reflect.TypeFor[deregMR](),
		"global_route": reflect.TypeFor[globalRoute](), "ah_attr": reflect.TypeFor[ahAttr](),
		"create_ah": reflect.TypeFor[createAH](), "create_ah_resp": reflect.TypeFor[createAHResp](), "destroy_ah": reflect.TypeFor[destroyAH](),
		"create_comp_channel": reflect.TypeFor[createCompChannel](), "create_comp_channel_resp": reflect.TypeFor[createCompChannelResp](),
		"comp_event_desc": reflect.TypeFor[compEventDesc](), "async_event_desc": reflect.TypeFor[asyncEventDesc](),
		"create_cq": reflect.TypeFor[createCQ](), "create_cq_resp": reflect.TypeFor[createCQResp](),
		"req_notify_cq": reflect.TypeFor[reqNotifyCQ](),
		"destroy_cq":    reflect.TypeFor[destroyCQ](), "destroy_cq_resp": reflect.TypeFor[destroyCQResp](),
		"create_qp": reflect.TypeFor[createQP](), "create_qp_resp": reflect.TypeFor[createQPResp](),
		"qp_dest": reflect.TypeFor[qpDest](), "query_qp": reflect.TypeFor[queryQP](), "query_qp_resp": reflect.TypeFor[queryQPResp](),
		"modify_qp":  reflect.TypeFor[modifyQP](),
		"destroy_qp": reflect.TypeFor[destroyQP](), "destroy_qp_resp": reflect.TypeFor[destroyQPResp](),
		"create_srq": reflect.TypeFor[createSRQ](), "create_srq_resp": reflect.TypeFor[createSRQResp](),
		"modify_srq":  reflect.TypeFor[modifySRQ](),
		"destroy_srq": reflect.TypeFor[destroySRQ](), "destroy_srq_resp": reflect.TypeFor[destroySRQResp](),
		"post_send": reflect.TypeFor[postSend](), "post_send_resp": reflect.TypeFor[postSendResp](),
		"ioctl_hdr": reflect.TypeFor[ioctlHdr](), "attr": reflect.TypeFor[ioctlAttr](), "gid_entry": reflect.TypeFor[gidEntry](),
	} {
		checkStruct(t, ours, h.Structs["ib_uverbs_"+name])
	}
	for name, ours := range map[string]reflect.Type{
		"rxe_create_ah_resp": reflect.TypeFor[rxeCreateAHResp](), "rxe_create_cq_resp": reflect.TypeFor[rxeCreateCQResp](),
		"rxe_create_qp_resp": reflect.TypeFor[rxeCreateQPResp](), "mminfo": reflect.TypeFor[mmInfo](),
		"rxe_create_srq_resp": reflect.TypeFor[rxeCreateSRQResp](), "rxe_modify_srq_cmd": reflect.TypeFor[rxeModifySRQ](),
		"rxe_queue_buf": reflect.TypeFor[queueBuf](), "rxe_sge": reflect.TypeFor[sge](), "rxe_dma_info": reflect.TypeFor[dmaInfo](),
		"rxe_send_wqe": reflect.TypeFor[sendWQE](), "rxe_send_wr": reflect.TypeFor[sendWR](), "rxe_recv_wqe": reflect.TypeFor[recvWQE](),
	} {
		checkStruct(t, ours, h.Structs[name])
	}
	require.EqualValues(t, sendWRSize, h.Structs["ib_uverbs_send_wr"].Size())
	checkUnion(t, h.Structs["rxe_send_wr"])

	// A completion is polled as it is.
	wc := h.Structs["ib_uverbs_wc"]
	require.NotNil(t, wc)
	require.EqualValues(t, reflect.TypeFor[verbs.WC]().Size(), wc.Size())
	require.Empty(t, abicheck.DifferGo(reflect.TypeFor[verbs.WC](), wc, map[string]string{
		"ID": "wr_id", "ImmBE": "ex", "Flags": "wc_flags", "DLIDBits": "dlid_path_bits",
	}))
}

func checkStruct(t *testing.T, ours reflect.Type, real *dwarf.StructType) {
	t.Helper()
	require.NotNil(t, real, ours.Name())
	require.EqualValues(t, ours.Size(), real.Size(), ours.Name())
	require.Empty(t, abicheck.DifferGo(ours, real, nil))
}

// checkUnion compares what the union of struct rxe_send_wr is used as.
func checkUnion(t *testing.T, wr *dwarf.StructType) {
	t.Helper()
	members := map[string]*dwarf.StructType{}
	for _, f := range wr.Field {
		if union, ok := f.Type.(*dwarf.StructType); ok && f.Name == "wr" {
			for _, m := range union.Field {
				members[m.Name], _ = m.Type.(*dwarf.StructType)
			}
		}
	}
	for _, ours := range []reflect.Type{reflect.TypeFor[rdmaWR](), reflect.TypeFor[atomicWR](), reflect.TypeFor[udWR]()} {
		real := members[strings.TrimSuffix(ours.Name(), "WR")]
		require.NotNil(t, real, ours.Name())
		require.LessOrEqual(t, int64(ours.Size()), real.Size())
		require.Empty(t, abicheck.DifferGo(ours, real, nil))
	}
}

// The memory of a command holds it, and is aligned for all that is put there.
func TestSlot(t *testing.T) {
	s := reflect.TypeFor[slot]()
	require.LessOrEqual(t, s.Size(), uintptr(slotSize))
	for _, name := range []string{"attrs", "req", "answer", "driver"} {
		f, ok := s.FieldByName(name)
		require.True(t, ok)
		require.Zero(t, f.Offset%8, name)
	}
	require.Zero(t, slotSize%8)
}
