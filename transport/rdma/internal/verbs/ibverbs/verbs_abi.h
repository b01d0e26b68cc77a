/*
 * The part of libibverbs' interface that this package uses, so that building
 * needs no RDMA package: struct vb_X and enumerator VB_X are struct ibv_X and
 * IBV_X of infiniband/verbs.h. Package abicheck holds every structure,
 * enumerator and prototype below against that header.
 */
#ifndef VERBS_ABI_H
#define VERBS_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct vb_ah;
struct vb_device;
struct vb_mw;
struct vb_mw_bind;
struct vb_pd;
struct vb_srq;
struct vb_context;
struct vb_cq;
struct vb_qp;
struct vb_wc;
struct vb_send_wr;
struct vb_recv_wr;

enum {
	VB_QPT_UD = 4,
	VB_QPS_RTS = 3,
	VB_SRQ_LIMIT = 2,
};

enum vb_event_type {
	VB_EVENT_CQ_ERR,
	VB_EVENT_QP_FATAL,
	VB_EVENT_QP_REQ_ERR,
	VB_EVENT_QP_ACCESS_ERR,
	VB_EVENT_COMM_EST,
	VB_EVENT_SQ_DRAINED,
	VB_EVENT_PATH_MIG,
	VB_EVENT_PATH_MIG_ERR,
	VB_EVENT_DEVICE_FATAL,
	VB_EVENT_PORT_ACTIVE,
	VB_EVENT_PORT_ERR,
	VB_EVENT_LID_CHANGE,
	VB_EVENT_PKEY_CHANGE,
	VB_EVENT_SM_CHANGE,
	VB_EVENT_SRQ_ERR,
	VB_EVENT_SRQ_LIMIT_REACHED,
	VB_EVENT_QP_LAST_WQE_REACHED,
	VB_EVENT_CLIENT_REREGISTER,
	VB_EVENT_GID_CHANGE,
};

enum vb_wr_opcode {
	VB_WR_RDMA_WRITE,
	VB_WR_RDMA_WRITE_WITH_IMM,
	VB_WR_SEND,
	VB_WR_SEND_WITH_IMM,
	VB_WR_RDMA_READ,
	VB_WR_ATOMIC_CMP_AND_SWP,
	VB_WR_ATOMIC_FETCH_AND_ADD,
};

union vb_gid {
	uint8_t raw[16];
	struct {
		uint64_t subnet_prefix; /* big endian, as interface_id */
		uint64_t interface_id;
	} global;
};

struct vb_gid_entry {
	union vb_gid gid;
	uint32_t gid_index;
	uint32_t port_num;
	uint32_t gid_type;
	uint32_t ndev_ifindex;
};

struct vb_device_attr {
	char fw_ver[64];
	uint64_t node_guid;
	uint64_t sys_image_guid;
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	int max_qp;
	int max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge;
	int max_sge_rd;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int max_ee_rd_atom;
	int max_res_rd_atom;
	int max_qp_init_rd_atom;
	int max_ee_init_rd_atom;
	uint32_t atomic_cap;
	int max_ee;
	int max_rdd;
	int max_mw;
	int max_raw_ipv6_qp;
	int max_raw_ethy_qp;
	int max_mcast_grp;
	int max_mcast_qp_attach;
	int max_total_mcast_qp_attach;
	int max_ah;
	int max_fmr;
	int max_map_per_fmr;
	int max_srq;
	int max_srq_wr;
	int max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay;
	uint8_t phys_port_cnt;
};

struct vb_port_attr {
	uint32_t state;
	uint32_t max_mtu;
	uint32_t active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags;
	uint32_t max_msg_sz;
	uint32_t bad_pkey_cntr;
	uint32_t qkey_viol_cntr;
	uint16_t pkey_tbl_len;
	uint16_t lid;
	uint16_t sm_lid;
	uint8_t lmc;
	uint8_t max_vl_num;
	uint8_t sm_sl;
	uint8_t subnet_timeout;
	uint8_t init_type_reply;
	uint8_t active_width;
	uint8_t active_speed;
	uint8_t phys_state;
	uint8_t link_layer;
	uint8_t flags;
	uint16_t port_cap_flags2;
};

struct vb_wc {
	uint64_t wr_id;
	uint32_t status;
	uint32_t opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm_data; /* big endian */
	uint32_t qp_num;
	uint32_t src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
};

struct vb_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct vb_mw_bind_info {
	struct vb_mr *mr;
	uint64_t addr;
	uint64_t length;
	unsigned int mw_access_flags;
};

struct vb_send_wr {
	uint64_t wr_id;
	struct vb_send_wr *next;
	struct vb_sge *sg_list;
	int num_sge;
	uint32_t opcode;
	unsigned int send_flags;
	uint32_t imm_data; /* big endian */
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr;
			uint64_t compare_add;
			uint64_t swap;
			uint32_t rkey;
		} atomic;
		struct {
			struct vb_ah *ah;
			uint32_t remote_qpn;
			uint32_t remote_qkey;
		} ud;
	} wr;
	union {
		struct {
			uint32_t remote_srqn;
		} xrc;
	} qp_type;
	struct {
		struct vb_mw *mw;
		uint32_t rkey;
		struct vb_mw_bind_info bind_info;
	} bind_mw;
};

struct vb_recv_wr {
	uint64_t wr_id;
	struct vb_recv_wr *next;
	struct vb_sge *sg_list;
	int num_sge;
};

/* The verbs of the data path are inline functions in infiniband/verbs.h and
 * not exported: they are reached through context->ops. */
struct vb_context_ops {
	int (*_compat_query_device)(struct vb_context *, struct vb_device_attr *);
	int (*_compat_query_port)(struct vb_context *, uint8_t, struct vb_port_attr *);
	void *(*_compat_alloc_pd)(void);
	void *(*_compat_dealloc_pd)(void);
	void *(*_compat_reg_mr)(void);
	void *(*_compat_rereg_mr)(void);
	void *(*_compat_dereg_mr)(void);
	struct vb_mw *(*alloc_mw)(struct vb_pd *, uint32_t);
	int (*bind_mw)(struct vb_qp *, struct vb_mw *, struct vb_mw_bind *);
	int (*dealloc_mw)(struct vb_mw *);
	void *(*_compat_create_cq)(void);
	int (*poll_cq)(struct vb_cq *, int, struct vb_wc *);
	int (*req_notify_cq)(struct vb_cq *, int);
	void *(*_compat_cq_event)(void);
	void *(*_compat_resize_cq)(void);
	void *(*_compat_destroy_cq)(void);
	void *(*_compat_create_srq)(void);
	void *(*_compat_modify_srq)(void);
	void *(*_compat_query_srq)(void);
	void *(*_compat_destroy_srq)(void);
	int (*post_srq_recv)(struct vb_srq *, struct vb_recv_wr *, struct vb_recv_wr **);
	void *(*_compat_create_qp)(void);
	void *(*_compat_query_qp)(void);
	void *(*_compat_modify_qp)(void);
	void *(*_compat_destroy_qp)(void);
	int (*post_send)(struct vb_qp *, struct vb_send_wr *, struct vb_send_wr **);
	int (*post_recv)(struct vb_qp *, struct vb_recv_wr *, struct vb_recv_wr **);
	void *(*_compat_create_ah)(void);
	void *(*_compat_destroy_ah)(void);
	void *(*_compat_attach_mcast)(void);
	void *(*_compat_detach_mcast)(void);
	void *(*_compat_async_event)(void);
};

struct vb_context {
	struct vb_device *device;
	struct vb_context_ops ops;
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};

struct vb_mr {
	struct vb_context *context;
	struct vb_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

struct vb_comp_channel {
	struct vb_context *context;
	int fd;
	int refcnt;
};

struct vb_cq {
	struct vb_context *context;
	struct vb_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t comp_events_completed;
	uint32_t async_events_completed;
};

struct vb_srq {
	struct vb_context *context;
	void *srq_context;
	struct vb_pd *pd;
	uint32_t handle;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct vb_srq_attr {
	uint32_t max_wr;
	uint32_t max_sge;
	uint32_t srq_limit;
};

struct vb_srq_init_attr {
	void *srq_context;
	struct vb_srq_attr attr;
};

struct vb_qp {
	struct vb_context *context;
	void *qp_context;
	struct vb_pd *pd;
	struct vb_cq *send_cq;
	struct vb_cq *recv_cq;
	struct vb_srq *srq;
	uint32_t handle;
	uint32_t qp_num;
	uint32_t state;
	uint32_t qp_type;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct vb_global_route {
	union vb_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
};

struct vb_ah_attr {
	struct vb_global_route grh;
	uint16_t dlid;
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate;
	uint8_t is_global;
	uint8_t port_num;
};

struct vb_qp_cap {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data;
};

struct vb_qp_init_attr {
	void *qp_context;
	struct vb_cq *send_cq;
	struct vb_cq *recv_cq;
	struct vb_srq *srq;
	struct vb_qp_cap cap;
	uint32_t qp_type;
	int sq_sig_all;
};

struct vb_qp_attr {
	uint32_t qp_state;
	uint32_t cur_qp_state;
	uint32_t path_mtu;
	uint32_t path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	unsigned int qp_access_flags;
	struct vb_qp_cap cap;
	struct vb_ah_attr ah_attr;
	struct vb_ah_attr alt_ah_attr;
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint32_t rate_limit;
};

struct vb_async_event {
	union {
		struct vb_cq *cq;
		struct vb_qp *qp;
		struct vb_srq *srq;
		int port_num;
	} element;
	uint32_t event_type;
};

/*
 * The functions of libibverbs, loaded at run time:
 * X(result, our name, symbol, version, parameters, arguments).
 */

/* Functions that return a pointer, NULL on failure with errno set, or nothing. */
#define VB_RETURN_POINTER(X) \
	X(struct vb_device **, vb_get_device_list, ibv_get_device_list, "IBVERBS_1.1", \
	  (int *n), (n)) \
	X(void, vb_free_device_list, ibv_free_device_list, "IBVERBS_1.1", \
	  (struct vb_device **list), (list)) \
	X(const char *, vb_get_device_name, ibv_get_device_name, "IBVERBS_1.1", \
	  (struct vb_device *dev), (dev)) \
	X(struct vb_context *, vb_open_device, ibv_open_device, "IBVERBS_1.1", \
	  (struct vb_device *dev), (dev)) \
	X(void, vb_ack_async_event, ibv_ack_async_event, "IBVERBS_1.1", \
	  (struct vb_async_event *event), (event)) \
	X(struct vb_pd *, vb_alloc_pd, ibv_alloc_pd, "IBVERBS_1.1", \
	  (struct vb_context *ctx), (ctx)) \
	X(struct vb_mr *, vb_reg_mr, ibv_reg_mr, "IBVERBS_1.1", \
	  (struct vb_pd *pd, void *addr, size_t length, int access), (pd, addr, length, access)) \
	X(struct vb_comp_channel *, vb_create_comp_channel, ibv_create_comp_channel, "IBVERBS_1.0", \
	  (struct vb_context *ctx), (ctx)) \
	X(struct vb_cq *, vb_create_cq, ibv_create_cq, "IBVERBS_1.1", \
	  (struct vb_context *ctx, int depth, void *cq_context, struct vb_comp_channel *ch, int vector), \
	  (ctx, depth, cq_context, ch, vector)) \
	X(void, vb_ack_cq_events, ibv_ack_cq_events, "IBVERBS_1.1", \
	  (struct vb_cq *cq, unsigned int n), (cq, n)) \
	X(struct vb_srq *, vb_create_srq, ibv_create_srq, "IBVERBS_1.1", \
	  (struct vb_pd *pd, struct vb_srq_init_attr *init), (pd, init)) \
	X(struct vb_qp *, vb_create_qp, ibv_create_qp, "IBVERBS_1.1", \
	  (struct vb_pd *pd, struct vb_qp_init_attr *init), (pd, init)) \
	X(struct vb_ah *, vb_create_ah, ibv_create_ah, "IBVERBS_1.1", \
	  (struct vb_pd *pd, struct vb_ah_attr *attr), (pd, attr))

/* Functions that return 0, or errno, or -1 with errno set; ours return 0 or
 * errno. The exported ibv_query_port fills struct vb_port_attr up to flags. */
#define VB_RETURN_ERRNO(X) \
	X(int, vb_close_device, ibv_close_device, "IBVERBS_1.1", \
	  (struct vb_context *ctx), (ctx)) \
	X(int, vb_query_device, ibv_query_device, "IBVERBS_1.1", \
	  (struct vb_context *ctx, struct vb_device_attr *attr), (ctx, attr)) \
	X(int, vb_query_port, ibv_query_port, "IBVERBS_1.1", \
	  (struct vb_context *ctx, uint8_t port, struct vb_port_attr *attr), (ctx, port, attr)) \
	X(int, vb_query_gid, ibv_query_gid, "IBVERBS_1.1", \
	  (struct vb_context *ctx, uint8_t port, int index, union vb_gid *gid), (ctx, port, index, gid)) \
	X(int, vb_get_async_event, ibv_get_async_event, "IBVERBS_1.1", \
	  (struct vb_context *ctx, struct vb_async_event *event), (ctx, event)) \
	X(int, vb_dealloc_pd, ibv_dealloc_pd, "IBVERBS_1.1", \
	  (struct vb_pd *pd), (pd)) \
	X(int, vb_dereg_mr, ibv_dereg_mr, "IBVERBS_1.1", \
	  (struct vb_mr *mr), (mr)) \
	X(int, vb_destroy_comp_channel, ibv_destroy_comp_channel, "IBVERBS_1.0", \
	  (struct vb_comp_channel *ch), (ch)) \
	X(int, vb_destroy_cq, ibv_destroy_cq, "IBVERBS_1.1", \
	  (struct vb_cq *cq), (cq)) \
	X(int, vb_get_cq_event, ibv_get_cq_event, "IBVERBS_1.1", \
	  (struct vb_comp_channel *ch, struct vb_cq **cq, void **cq_context), (ch, cq, cq_context)) \
	X(int, vb_modify_srq, ibv_modify_srq, "IBVERBS_1.1", \
	  (struct vb_srq *srq, struct vb_srq_attr *attr, int mask), (srq, attr, mask)) \
	X(int, vb_query_srq, ibv_query_srq, "IBVERBS_1.1", \
	  (struct vb_srq *srq, struct vb_srq_attr *attr), (srq, attr)) \
	X(int, vb_destroy_srq, ibv_destroy_srq, "IBVERBS_1.1", \
	  (struct vb_srq *srq), (srq)) \
	X(int, vb_modify_qp, ibv_modify_qp, "IBVERBS_1.1", \
	  (struct vb_qp *qp, struct vb_qp_attr *attr, int mask), (qp, attr, mask)) \
	X(int, vb_query_qp, ibv_query_qp, "IBVERBS_1.1", \
	  (struct vb_qp *qp, struct vb_qp_attr *attr, int mask, struct vb_qp_init_attr *init), \
	  (qp, attr, mask, init)) \
	X(int, vb_destroy_qp, ibv_destroy_qp, "IBVERBS_1.1", \
	  (struct vb_qp *qp), (qp)) \
	X(int, vb_destroy_ah, ibv_destroy_ah, "IBVERBS_1.1", \
	  (struct vb_ah *ah), (ah))

/* Absent before rdma-core 32. */
#define VB_OPTIONAL(X) \
	X(ssize_t, vb_query_gid_table, _ibv_query_gid_table, "IBVERBS_1.11", \
	  (struct vb_context *ctx, struct vb_gid_entry *entries, size_t max, uint32_t flags, \
	   size_t entry_size), (ctx, entries, max, flags, entry_size))

#endif
