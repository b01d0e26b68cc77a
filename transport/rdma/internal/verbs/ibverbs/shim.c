//go:build linux && cgo

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FIELD(ret, fn, symbol, version, params, args) ret(*fn) params;
static struct library {
	VB_RETURN_POINTER(FIELD)
	VB_RETURN_ERRNO(FIELD)
	VB_OPTIONAL(FIELD)
} lib;

/* Drivers return errno, or -1 and set it, or -errno. */
static int errno_of(int rc)
{
	if (rc == -1 && errno)
		return errno;
	return rc < 0 ? -rc : rc;
}

#define CALL(ret, fn, symbol, version, params, args) \
	ret fn params { return lib.fn args; }
#define CALL_ERRNO(ret, fn, symbol, version, params, args) \
	ret fn params { return errno_of(lib.fn args); }
VB_RETURN_POINTER(CALL)
VB_RETURN_ERRNO(CALL_ERRNO)
VB_OPTIONAL(CALL)

/* dlsym would bind the IBVERBS_1.0 interface of a library that has no other,
 * and its structures differ. musl knows no versions: it takes the newest. */
static void *find(void *so, const char *name, const char *version)
{
#ifdef __GLIBC__
	return dlvsym(so, name, version);
#else
	(void)version;
	return dlsym(so, name);
#endif
}

const char *vb_load(const char *soname, char *msg, size_t msg_len)
{
	struct library l;
	void *so = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
	if (!so) {
		snprintf(msg, msg_len, "%s", dlerror());
		return msg;
	}
#define LOAD_OPTIONAL(ret, fn, symbol, version, params, args) \
	*(void **)&l.fn = find(so, #symbol, version);
#define LOAD(ret, fn, symbol, version, params, args)                                 \
	LOAD_OPTIONAL(ret, fn, symbol, version, params, args)                        \
	if (!l.fn) {                                                                 \
		snprintf(msg, msg_len, "%s has no symbol %s (%s)", soname, #symbol, version); \
		dlclose(so);                                                         \
		return msg;                                                          \
	}
	VB_RETURN_POINTER(LOAD)
	VB_RETURN_ERRNO(LOAD)
	VB_OPTIONAL(LOAD_OPTIONAL)
	lib = l;
	return NULL;
}

int vb_has_query_gid_table(void) { return lib.vb_query_gid_table != NULL; }

int vb_set_nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return errno;
	return 0;
}

struct vb_cq *vb_create_numbered_cq(struct vb_context *ctx, int depth, uint64_t id,
				    struct vb_comp_channel *ch)
{
	return vb_create_cq(ctx, depth, (void *)(uintptr_t)id, ch, 0);
}

struct vb_srq *vb_create_numbered_srq(struct vb_pd *pd, const struct vb_srq_attr *attr, uint64_t id)
{
	struct vb_srq_init_attr init = {.srq_context = (void *)(uintptr_t)id, .attr = *attr};
	return vb_create_srq(pd, &init);
}

/* Work requests per doorbell: what keeps the chain on the stack under 10 KB. */
#define PIECE 64

static void fill_send(struct vb_send_wr *wr, struct vb_sge *sge, const struct vb_send_req *r, int ud)
{
	*sge = (struct vb_sge){.addr = r->addr, .length = r->length, .lkey = r->lkey};
	wr->wr_id = r->id;
	wr->sg_list = sge;
	wr->num_sge = r->length > 0;
	wr->opcode = r->opcode;
	wr->send_flags = r->flags;
	wr->imm_data = htobe32(r->imm);
	if (ud) {
		wr->wr.ud.ah = (struct vb_ah *)(uintptr_t)r->ah;
		wr->wr.ud.remote_qpn = r->remote_qpn;
		wr->wr.ud.remote_qkey = r->remote_qkey;
	} else if (r->opcode == VB_WR_ATOMIC_CMP_AND_SWP || r->opcode == VB_WR_ATOMIC_FETCH_AND_ADD) {
		wr->wr.atomic.remote_addr = r->remote_addr;
		wr->wr.atomic.compare_add = r->compare_add;
		wr->wr.atomic.swap = r->swap;
		wr->wr.atomic.rkey = r->rkey;
	} else {
		wr->wr.rdma.remote_addr = r->remote_addr;
		wr->wr.rdma.rkey = r->rkey;
	}
}

static struct vb_posted refused(int done, ptrdiff_t index, int rc)
{
	return (struct vb_posted){done + (int)index, errno_of(rc)};
}

struct vb_posted vb_post_send(struct vb_qp *qp, const struct vb_send_req *reqs, int n)
{
	int (*post)(struct vb_qp *, struct vb_send_wr *, struct vb_send_wr **) = qp->context->ops.post_send;
	struct vb_send_wr wr[PIECE], *bad;
	struct vb_sge sge[PIECE];
	int done = 0;

	/* rxe's provider queues the WRs first and only then has the kernel refuse
	 * them: they would be sent, unasked, once the QP is in RTS. */
	if (qp->state < VB_QPS_RTS)
		return (struct vb_posted){0, EINVAL};
	while (done < n) {
		int k = n - done < PIECE ? n - done : PIECE;
		for (int i = 0; i < k; i++) {
			fill_send(&wr[i], &sge[i], &reqs[done + i], qp->qp_type == VB_QPT_UD);
			wr[i].next = i + 1 < k ? &wr[i + 1] : NULL;
		}
		bad = NULL;
		int rc = post(qp, wr, &bad);
		if (rc) /* rxe's clears bad when it has queued them all, and then the doorbell fails */
			return refused(done, bad ? bad - wr : k, rc);
		done += k;
	}
	return (struct vb_posted){done, 0};
}

/* To a shared queue, or to that of a QP. */
static struct vb_posted post_recvs(struct vb_srq *srq, struct vb_qp *qp, const struct vb_recv_req *reqs, int n)
{
	struct vb_recv_wr wr[PIECE], *bad;
	struct vb_sge sge[PIECE];
	int done = 0;

	while (done < n) {
		int k = n - done < PIECE ? n - done : PIECE;
		for (int i = 0; i < k; i++) {
			const struct vb_recv_req *r = &reqs[done + i];
			sge[i] = (struct vb_sge){.addr = r->addr, .length = r->length, .lkey = r->lkey};
			wr[i] = (struct vb_recv_wr){
				.wr_id = r->id,
				.next = i + 1 < k ? &wr[i + 1] : NULL,
				.sg_list = &sge[i],
				.num_sge = r->length > 0,
			};
		}
		bad = NULL;
		int rc = srq ? srq->context->ops.post_srq_recv(srq, wr, &bad)
			     : qp->context->ops.post_recv(qp, wr, &bad);
		if (rc) /* a driver that refuses a call as a whole leaves bad NULL, or clears it */
			return refused(done, bad ? bad - wr : 0, rc);
		done += k;
	}
	return (struct vb_posted){done, 0};
}

struct vb_posted vb_post_recv(struct vb_qp *qp, const struct vb_recv_req *reqs, int n)
{
	return post_recvs(NULL, qp, reqs, n);
}

struct vb_posted vb_post_srq_recv(struct vb_srq *srq, const struct vb_recv_req *reqs, int n)
{
	return post_recvs(srq, NULL, reqs, n);
}

int vb_poll_cq(struct vb_cq *cq, struct vb_wc *wc, int n)
{
	int got = cq->context->ops.poll_cq(cq, n, wc);
	return got < 0 ? -errno_of(got) : got;
}

int vb_arm_cq(struct vb_cq *cq) { return -errno_of(cq->context->ops.req_notify_cq(cq, 0)); }

#define NO_DEADLINE INT64_MAX

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t deadline_after(int64_t timeout_ns)
{
	int64_t now = now_ns();
	return timeout_ns < 0 || timeout_ns > NO_DEADLINE - now ? NO_DEADLINE : now + timeout_ns;
}

/*
 * Waits until fd is readable or a wake-up was taken from wake_fd. Returns how
 * many descriptors are ready (0 at the deadline) or -errno. Another thread
 * may take what made fd readable: the caller's read must not block.
 */
static int wait_fds(int fd, int wake_fd, int64_t deadline, int *woken)
{
	struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}};
	int64_t left = deadline == NO_DEADLINE ? 0 : deadline - now_ns();
	if (left < 0)
		left = 0;
	struct timespec t = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};

	int ready = ppoll(fds, 2, deadline == NO_DEADLINE ? NULL : &t, NULL);
	if (ready < 0)
		return errno == EINTR ? 1 : -errno;
	uint64_t count;
	*woken = fds[1].revents && read(wake_fd, &count, sizeof count) == sizeof count;
	return ready;
}

/* Events that stay unacknowledged make ibv_destroy_cq wait for ever. */
static int take_cq_events(struct vb_comp_channel *ch)
{
	struct vb_cq *cq;
	void *cq_context;
	int n = 0, err;

	while ((err = vb_get_cq_event(ch, &cq, &cq_context)) == 0) {
		vb_ack_cq_events(cq, 1);
		n++;
	}
	return err == EAGAIN || err == EINTR ? n : -err;
}

int vb_wait_cq(struct vb_comp_channel *ch, int wake_fd, int64_t timeout_ns)
{
	int64_t deadline = deadline_after(timeout_ns);
	for (;;) {
		int woken = 0;
		int ready = wait_fds(ch->fd, wake_fd, deadline, &woken);
		if (ready <= 0)
			return ready;
		int events = take_cq_events(ch);
		if (events < 0)
			return events;
		if (events || woken)
			return (events ? VB_WAKE_EVENT : 0) | (woken ? VB_WAKE_CALL : 0);
	}
}

static void copy_event(struct vb_event *to, const struct vb_async_event *from)
{
	*to = (struct vb_event){.type = from->event_type};
	switch (from->event_type) {
	case VB_EVENT_CQ_ERR:
		to->source = (uintptr_t)from->element.cq->cq_context;
		break;
	case VB_EVENT_SRQ_ERR:
	case VB_EVENT_SRQ_LIMIT_REACHED:
		to->source = (uintptr_t)from->element.srq->srq_context;
		break;
	case VB_EVENT_QP_FATAL:
	case VB_EVENT_QP_REQ_ERR:
	case VB_EVENT_QP_ACCESS_ERR:
	case VB_EVENT_COMM_EST:
	case VB_EVENT_SQ_DRAINED:
	case VB_EVENT_PATH_MIG:
	case VB_EVENT_PATH_MIG_ERR:
	case VB_EVENT_QP_LAST_WQE_REACHED:
		to->qp_num = from->element.qp->qp_num;
		break;
	case VB_EVENT_PORT_ACTIVE:
	case VB_EVENT_PORT_ERR:
	case VB_EVENT_LID_CHANGE:
	case VB_EVENT_PKEY_CHANGE:
	case VB_EVENT_SM_CHANGE:
	case VB_EVENT_CLIENT_REREGISTER:
	case VB_EVENT_GID_CHANGE:
		to->port = from->element.port_num;
		break;
	}
}

int vb_wait_async(struct vb_context *ctx, int wake_fd, struct vb_event *event)
{
	struct vb_async_event raw;
	for (;;) {
		int woken = 0;
		int ready = wait_fds(ctx->async_fd, wake_fd, NO_DEADLINE, &woken);
		if (ready < 0)
			return ready;
		if (woken)
			return 0;
		int err = vb_get_async_event(ctx, &raw);
		if (err == 0) {
			copy_event(event, &raw);
			vb_ack_async_event(&raw);
			return 1;
		}
		if (err != EAGAIN && err != EINTR)
			return -err;
	}
}
