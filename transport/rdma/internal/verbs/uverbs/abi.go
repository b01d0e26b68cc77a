//go:build linux

package uverbs

//lint:file-ignore U1000 these are the kernel's structures: all fields of each, whether used here or not

import "github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"

// What this file declares is the kernel's, from rdma/ib_user_verbs.h,
// rdma/rdma_user_rxe.h, rdma/ib_user_ioctl_verbs.h, ib_user_ioctl_cmds.h and
// rdma_user_ioctl_cmds.h. Names are those of the headers, joined; the test of
// this package compares sizes, offsets and values with the headers.

// Commands (enum ib_uverbs_write_cmds). response, in what they take, is for
// write() alone.
const (
	cmdGetContext        = 0
	cmdQueryDevice       = 1
	cmdQueryPort         = 2
	cmdAllocPD           = 3
	cmdDeallocPD         = 4
	cmdCreateAH          = 5
	cmdDestroyAH         = 8
	cmdRegMR             = 9
	cmdDeregMR           = 13
	cmdCreateCompChannel = 17
	cmdCreateCQ          = 18
	cmdDestroyCQ         = 20
	cmdReqNotifyCQ       = 23
	cmdCreateQP          = 24
	cmdQueryQP           = 25
	cmdModifyQP          = 26
	cmdDestroyQP         = 27
	cmdPostSend          = 28
	cmdCreateSRQ         = 32
	cmdModifySRQ         = 33
	cmdDestroySRQ        = 35
)

type getContext struct{ response uint64 }

type getContextResp struct {
	asyncFD        uint32
	numCompVectors uint32
}

type queryDevice struct{ response uint64 }

type queryDeviceResp struct {
	fwVer, nodeGUID, sysImageGUID, maxMRSize, pageSizeCap               uint64
	vendorID, vendorPartID, hwVer, maxQP, maxQPWR, deviceCapFlags       uint32
	maxSGE, maxSGERd, maxCQ, maxCQE, maxMR, maxPD                       uint32
	maxQPRdAtom, maxEERdAtom, maxResRdAtom                              uint32
	maxQPInitRdAtom, maxEEInitRdAtom, atomicCap                         uint32
	maxEE, maxRDD, maxMW, maxRawIPv6QP, maxRawEthyQP                    uint32
	maxMcastGrp, maxMcastQPAttach, maxTotalMcastQPAttach, maxAH, maxFMR uint32
	maxMapPerFMR, maxSRQ, maxSRQWR, maxSRQSGE                           uint32
	maxPKeys                                                            uint16
	localCAAckDelay, physPortCnt                                        uint8
	reserved                                                            [4]uint8
}

type queryPort struct {
	response uint64
	portNum  uint8
	reserved [7]uint8
}

type queryPortResp struct {
	portCapFlags, maxMsgSz, badPKeyCntr, qkeyViolCntr, gidTblLen      uint32
	pkeyTblLen, lid, smLID                                            uint16
	state, maxMTU, activeMTU, lmc, maxVLNum, smSL                     uint8
	subnetTimeout, initTypeReply, activeWidth, activeSpeed, physState uint8
	linkLayer, flags, reserved                                        uint8
}

type allocPD struct{ response uint64 }
type allocPDResp struct{ pdHandle uint32 }
type deallocPD struct{ pdHandle uint32 }

type regMR struct {
	response, start, length, hcaVA uint64
	pdHandle, accessFlags          uint32
}

type regMRResp struct{ mrHandle, lkey, rkey uint32 }
type deregMR struct{ mrHandle uint32 }

type globalRoute struct {
	dgid                                        verbs.GID
	flowLabel                                   uint32
	sgidIndex, hopLimit, trafficClass, reserved uint8
}

type ahAttr struct {
	grh                                                      globalRoute
	dlid                                                     uint16
	sl, srcPathBits, staticRate, isGlobal, portNum, reserved uint8
}

type createAH struct {
	response, userHandle uint64
	pdHandle, reserved   uint32
	attr                 ahAttr
}

type createAHResp struct{ ahHandle uint32 }
type rxeCreateAHResp struct{ ahNum, reserved uint32 }
type destroyAH struct{ ahHandle uint32 }

type createCompChannel struct{ response uint64 }
type createCompChannelResp struct{ fd uint32 }

// compEventDesc and asyncEventDesc are read from the event descriptors.
// Elements are the userHandle of a CQ, SRQ or QP, or the number of a port.
type compEventDesc struct{ cqHandle uint64 }

type asyncEventDesc struct {
	element             uint64
	eventType, reserved uint32
}

type createCQ struct {
	response, userHandle uint64
	cqe, compVector      uint32
	compChannel          int32 // -1: none
	reserved             uint32
}

type createCQResp struct {
	cqHandle, cqe uint32
}

type rxeCreateCQResp struct{ mi mmInfo }

type reqNotifyCQ struct{ cqHandle, solicitedOnly uint32 }

type destroyCQ struct {
	response           uint64
	cqHandle, reserved uint32
}

type destroyCQResp struct{ compEventsReported, asyncEventsReported uint32 }

type createQP struct {
	response, userHandle                                        uint64
	pdHandle, sendCQHandle, recvCQHandle, srqHandle             uint32
	maxSendWR, maxRecvWR, maxSendSGE, maxRecvSGE, maxInlineData uint32
	sqSigAll, qpType, isSRQ, reserved                           uint8
}

type createQPResp struct {
	qpHandle, qpn                                               uint32
	maxSendWR, maxRecvWR, maxSendSGE, maxRecvSGE, maxInlineData uint32
	reserved                                                    uint32
}

type rxeCreateQPResp struct{ rqMI, sqMI mmInfo }

type qpDest struct {
	dgid                                       verbs.GID
	flowLabel                                  uint32
	dlid, reserved                             uint16
	sgidIndex, hopLimit, trafficClass, sl      uint8
	srcPathBits, staticRate, isGlobal, portNum uint8
}

type queryQP struct {
	response           uint64
	qpHandle, attrMask uint32
}

type queryQPResp struct {
	dest, altDest                                               qpDest
	maxSendWR, maxRecvWR, maxSendSGE, maxRecvSGE, maxInlineData uint32
	qkey, rqPSN, sqPSN, destQPNum, qpAccessFlags                uint32
	pkeyIndex, altPKeyIndex                                     uint16
	qpState, curQPState, pathMTU, pathMigState, sqDraining      uint8
	maxRdAtomic, maxDestRdAtomic, minRNRTimer, portNum          uint8
	timeout, retryCnt, rnrRetry, altPortNum, altTimeout         uint8
	sqSigAll                                                    uint8
	reserved                                                    [5]uint8
}

type modifyQP struct {
	dest, altDest                                                qpDest
	qpHandle, attrMask                                           uint32
	qkey, rqPSN, sqPSN, destQPNum, qpAccessFlags                 uint32
	pkeyIndex, altPKeyIndex                                      uint16
	qpState, curQPState, pathMTU, pathMigState, enSQDAsyncNotify uint8
	maxRdAtomic, maxDestRdAtomic, minRNRTimer, portNum           uint8
	timeout, retryCnt, rnrRetry, altPortNum, altTimeout          uint8
	reserved                                                     [2]uint8
}

type destroyQP struct {
	response           uint64
	qpHandle, reserved uint32
}

type destroyQPResp struct{ eventsReported uint32 }

type createSRQ struct {
	response, userHandle              uint64
	pdHandle, maxWR, maxSGE, srqLimit uint32
}

type createSRQResp struct{ srqHandle, maxWR, maxSGE, srqn uint32 }

type rxeCreateSRQResp struct {
	mi               mmInfo
	srqNum, reserved uint32
}

type modifySRQ struct{ srqHandle, attrMask, maxWR, srqLimit uint32 }

// srqLimit is the bit of modifySRQ.attrMask for srqLimit (enum
// ib_srq_attr_mask, which no header exports; libibverbs passes its own on).
const srqLimit = 1 << 1

// rxeModifySRQ is what rxe wants behind every modifySRQ. It names where the
// answer to a new size is to go.
type rxeModifySRQ struct{ mmapInfoAddr uint64 }

type destroySRQ struct {
	response            uint64
	srqHandle, reserved uint32
}

type destroySRQResp struct{ eventsReported uint32 }

// postSend is rxe's doorbell when it brings no work request.
type postSend struct {
	response                             uint64
	qpHandle, wrCount, sgeCount, wqeSize uint32
}

type postSendResp struct{ badWR uint32 }

// sendWRSize is the size of struct ib_uverbs_send_wr, the least that a
// postSend may name.
const sendWRSize = 56

// mmInfo says where in the device's file a ring is.
type mmInfo struct {
	offset    uint64
	size, pad uint32
}

// queueBuf is the head of a ring (struct rxe_queue_buf); elements follow.
type queueBuf struct {
	log2ElemSize, indexMask uint32
	pad1                    [30]uint32
	producerIndex           uint32
	pad2                    [31]uint32
	consumerIndex           uint32
	pad3                    [31]uint32
}

type sge struct {
	addr         uint64
	length, lkey uint32
}

// dmaInfo is followed by inline data or sge.
type dmaInfo struct{ length, resid, curSGE, numSGE, sgeOffset, reserved uint32 }

type sendWQE struct {
	wr                                                   sendWR
	status, state                                        uint32
	iova                                                 uint64
	mask, firstPSN, lastPSN, ackLength, ssn, hasRdAtomic uint32
	dma                                                  dmaInfo
}

// sendWR is struct rxe_send_wr. wr is a union of the next three, as long as
// the longest, with the address vector that rxe knows an AH without number by.
type sendWR struct {
	wrID                        uint64
	reserved, opcode, sendFlags uint32
	ex                          [4]byte // immediate, big endian
	wr                          [15]uint64
}

type rdmaWR struct {
	remoteAddr     uint64
	rkey, reserved uint32
}

type atomicWR struct {
	remoteAddr, compareAdd, swap uint64
	rkey, reserved               uint32
}

type udWR struct {
	remoteQPN, remoteQKey uint32
	pkeyIndex, reserved   uint16
	ahNum                 uint32
}

type recvWQE struct {
	wrID              uint64
	reserved, padding uint32
	dma               dmaInfo
}

// The ioctl() interface, of which two methods of the device are used.
const (
	rdmaVerbsIoctl = 0xc0181b01 // _IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)
	driverRXE      = 14         // enum rdma_driver_id
	objectDevice   = 0

	methodInvokeWrite = 0
	attrCoreIn        = 0
	attrCoreOut       = 1
	attrWriteCmd      = 2
	attrUHWIn         = 0x1000
	attrUHWOut        = 0x1001

	methodQueryGIDTable = 5
	attrEntrySize       = 0
	attrRespEntries     = 2
	attrRespNumEntries  = 3

	attrMandatory = 1 << 0
)

type ioctlHdr struct {
	length, objectID, methodID, numAttrs uint16
	reserved1                            uint64
	driverID, reserved2                  uint32
}

type ioctlAttr struct {
	attrID, len, flags, attrData uint16
	data                         uint64
}

type gidEntry struct {
	gid                                       verbs.GID
	gidIndex, portNum, gidType, netdevIfindex uint32
}
