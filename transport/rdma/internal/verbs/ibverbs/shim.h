/*
 * What Go calls: the functions of libibverbs, and below them those that do
 * several steps in one crossing. The latter return -errno on failure.
 */
#ifndef SHIM_H
#define SHIM_H

#include "verbs_abi.h"

/* verbs.SendWR and verbs.RecvWR. */
struct vb_send_req {
	uint64_t id;
	uint64_t addr;
	uint64_t remote_addr;
	uint64_t compare_add;
	uint64_t swap;
	uint64_t ah;
	uint32_t length;
	uint32_t lkey;
	uint32_t rkey;
	uint32_t imm; /* host order */
	uint32_t remote_qpn;
	uint32_t remote_qkey;
	uint32_t opcode;
	uint32_t flags;
};

struct vb_recv_req {
	uint64_t id;
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

/* An asynchronous event, copied before it was acknowledged. */
struct vb_event {
	uint32_t type;
	uint32_t qp_num;     /* of QP events */
	uint32_t port;       /* of port events */
	uint64_t source;     /* of CQ and SRQ events: the number it was created with */
};

/* How many work requests were taken, and the errno of the next. */
struct vb_posted {
	int32_t n;
	int32_t err;
};

/* Bits of vb_wait_cq's result, as verbs.WakeReason. */
enum {
	VB_WAKE_TIMEOUT = 0,
	VB_WAKE_EVENT = 1,
	VB_WAKE_CALL = 2,
};

#define VB_DECLARE(ret, fn, symbol, version, params, args) ret fn params;
VB_RETURN_POINTER(VB_DECLARE)
VB_RETURN_ERRNO(VB_DECLARE)
VB_OPTIONAL(VB_DECLARE)
#undef VB_DECLARE

/* Loads the library. Returns NULL, or what was missing in a buffer of msg_len
 * bytes. Every other function needs it to have succeeded. */
const char *vb_load(const char *soname, char *msg, size_t msg_len);

/* Whether the library has an optional function. */
int vb_has_query_gid_table(void);

/* Returns 0 or errno. */
int vb_set_nonblock(int fd);

/* ibv_create_cq and ibv_create_srq with a number for the context, which events
 * bring back. */
struct vb_cq *vb_create_numbered_cq(struct vb_context *ctx, int depth, uint64_t id,
				    struct vb_comp_channel *ch);
struct vb_srq *vb_create_numbered_srq(struct vb_pd *pd, const struct vb_srq_attr *attr, uint64_t id);

struct vb_posted vb_post_send(struct vb_qp *qp, const struct vb_send_req *reqs, int n);
struct vb_posted vb_post_recv(struct vb_qp *qp, const struct vb_recv_req *reqs, int n);
struct vb_posted vb_post_srq_recv(struct vb_srq *srq, const struct vb_recv_req *reqs, int n);
int vb_poll_cq(struct vb_cq *cq, struct vb_wc *wc, int n);
int vb_arm_cq(struct vb_cq *cq);

/* Waits for a completion event or for wake_fd; timeout_ns < 0 is no limit. */
int vb_wait_cq(struct vb_comp_channel *ch, int wake_fd, int64_t timeout_ns);

/* Waits for an asynchronous event (1) or for wake_fd (0). */
int vb_wait_async(struct vb_context *ctx, int wake_fd, struct vb_event *event);

#endif
