//! Layouts and numbers of libibverbs (`infiniband/verbs.h`, interface IBVERBS_1.1), as far as they are needed.
//!
//! Of structures that the library makes there are the first fields alone.

use core::ffi::{c_int, c_uint, c_void};

/// An object of the library that is known by its address alone.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Opaque {
    _bytes: [u8; 0],
}

/// Start of `struct ibv_context`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: *mut Opaque,
    pub(crate) ops: ContextOps,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
}

/// `struct ibv_context_ops`: functions that the header calls in place of exported ones.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ContextOps {
    before_alloc_mw: [*mut c_void; 7],
    pub(crate) alloc_mw: *mut c_void,
    pub(crate) bind_mw: *mut c_void,
    pub(crate) dealloc_mw: *mut c_void,
    before_poll_cq: *mut c_void,
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut Opaque, c_int, *mut Wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut Opaque, c_int) -> c_int>,
    before_post_srq_recv: [*mut c_void; 7],
    pub(crate) post_srq_recv:
        Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    before_post_send: [*mut c_void; 4],
    pub(crate) post_send:
        Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub(crate) post_recv:
        Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    after_post_recv: [*mut c_void; 5],
}

/// Start of `struct ibv_comp_channel`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CompChannel {
    pub(crate) context: *mut Context,
    pub(crate) fd: c_int,
}

/// Start of `struct ibv_cq`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    pub(crate) channel: *mut CompChannel,
    pub(crate) cq_context: *mut c_void,
}

/// `struct ibv_mr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Opaque,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// Start of `struct ibv_qp`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut Opaque,
    pub(crate) send_cq: *mut Opaque,
    pub(crate) recv_cq: *mut Opaque,
    pub(crate) srq: *mut Opaque,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
}

/// Start of `struct ibv_srq`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) context: *mut Context,
    pub(crate) srq_context: *mut c_void,
}

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: SrqAttr,
}

/// Bits of `enum ibv_srq_attr_mask`.
pub(crate) mod srq_mask {
    pub(crate) const MAX_WR: i32 = 1 << 0;
    pub(crate) const LIMIT: i32 = 1 << 1;
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceAttr {
    pub(crate) fw_ver: [u8; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_uint,
    pub(crate) max_ee: c_int,
    pub(crate) max_rdd: c_int,
    pub(crate) max_mw: c_int,
    pub(crate) max_raw_ipv6_qp: c_int,
    pub(crate) max_raw_ethy_qp: c_int,
    pub(crate) max_mcast_grp: c_int,
    pub(crate) max_mcast_qp_attach: c_int,
    pub(crate) max_total_mcast_qp_attach: c_int,
    pub(crate) max_ah: c_int,
    pub(crate) max_fmr: c_int,
    pub(crate) max_map_per_fmr: c_int,
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PortAttr {
    pub(crate) state: c_uint,
    pub(crate) max_mtu: c_uint,
    pub(crate) active_mtu: c_uint,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
}

/// `struct ibv_ah_attr`, with its `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AhAttr {
    pub(crate) grh: GlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// `struct ibv_global_route`. The GID is in the byte order of the network, and its union is aligned as 64 bits are.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GlobalRoute {
    pub(crate) dgid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: c_uint,
    pub(crate) cur_qp_state: c_uint,
    pub(crate) path_mtu: c_uint,
    pub(crate) path_mig_state: c_uint,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// Bits of `enum ibv_qp_attr_mask`.
pub(crate) mod attr_mask {
    pub(crate) const STATE: i32 = 1 << 0;
    pub(crate) const CUR_STATE: i32 = 1 << 1;
    pub(crate) const EN_SQD_ASYNC_NOTIFY: i32 = 1 << 2;
    pub(crate) const ACCESS_FLAGS: i32 = 1 << 3;
    pub(crate) const PKEY_INDEX: i32 = 1 << 4;
    pub(crate) const PORT: i32 = 1 << 5;
    pub(crate) const QKEY: i32 = 1 << 6;
    pub(crate) const AV: i32 = 1 << 7;
    pub(crate) const PATH_MTU: i32 = 1 << 8;
    pub(crate) const TIMEOUT: i32 = 1 << 9;
    pub(crate) const RETRY_CNT: i32 = 1 << 10;
    pub(crate) const RNR_RETRY: i32 = 1 << 11;
    pub(crate) const RQ_PSN: i32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: i32 = 1 << 15;
    pub(crate) const SQ_PSN: i32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub(crate) const CAP: i32 = 1 << 19;
    pub(crate) const DEST_QPN: i32 = 1 << 20;
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_send_wr`. Its union `wr` is words here, which its variants fill in different ways.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut SendWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) send_flags: c_uint,
    /// Immediate data in the byte order of the network, or the key to invalidate.
    pub(crate) imm_data: u32,
    pub(crate) wr: RemoteWr,
    pub(crate) qp_type: u64,
    pub(crate) bind_mw: [u64; 6],
}

/// The union `wr` of [`SendWr`].
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union RemoteWr {
    pub(crate) none: [u64; 4],
    pub(crate) rdma: Rdma,
    pub(crate) atomic: Atomic,
    pub(crate) ud: Ud,
}

impl core::fmt::Debug for RemoteWr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RemoteWr").finish_non_exhaustive()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ud {
    pub(crate) ah: *mut Opaque,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// Values of `enum ibv_wr_opcode`.
pub(crate) mod opcode {
    pub(crate) const RDMA_WRITE: u32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_WITH_IMM: u32 = 3;
    pub(crate) const RDMA_READ: u32 = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub(crate) const SEND_WITH_INV: u32 = 9;
}

/// Bits of `enum ibv_send_flags`.
pub(crate) mod send_flags {
    pub(crate) const FENCE: u32 = 1 << 0;
    pub(crate) const SIGNALED: u32 = 1 << 1;
    pub(crate) const SOLICITED: u32 = 1 << 2;
    pub(crate) const INLINE: u32 = 1 << 3;
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut RecvWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_uint,
    pub(crate) opcode: c_uint,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Immediate data in the byte order of the network, or the key that was invalidated.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// Values of `enum ibv_wc_opcode` that a receive has.
pub(crate) const WC_RECV_RDMA_WITH_IMM: u32 = 129;

/// Bits of `enum ibv_wc_flags`.
pub(crate) mod wc_flags {
    pub(crate) const GRH: u32 = 1 << 0;
    pub(crate) const WITH_IMM: u32 = 1 << 1;
    pub(crate) const WITH_INV: u32 = 1 << 3;
}

/// `struct ibv_async_event`. Its union is an address, or the number of a port in the lower half.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsyncEvent {
    pub(crate) element: *mut c_void,
    pub(crate) event_type: c_uint,
}

#[cfg(test)]
mod tests {
    use core::mem::{offset_of, size_of};
    use std::fmt::Write as _;
    use std::process::Command;

    use super::*;

    /// A C compiler says what the header's layouts are, where both are installed (libibverbs-dev).
    #[test]
    fn layouts_are_those_of_the_installed_header() {
        if !std::path::Path::new("/usr/include/infiniband/verbs.h").exists() {
            return;
        }
        macro_rules! layouts {
            ($($c:literal $rust:ident { $($c_field:literal $($field:ident).+,)* })*) => {
                [$(
                    $((concat!("offsetof(struct ", $c, ", ", $c_field, ")"), offset_of!($rust, $($field).+)),)*
                )*]
            };
        }
        let mut expected = layouts! {
            "ibv_context" Context {
                "ops.alloc_mw" ops.alloc_mw, "ops.dealloc_mw" ops.dealloc_mw, "ops.poll_cq" ops.poll_cq,
                "ops.req_notify_cq" ops.req_notify_cq, "ops.post_srq_recv" ops.post_srq_recv,
                "ops.post_send" ops.post_send, "ops.post_recv" ops.post_recv, "async_fd" async_fd,
            }
            "ibv_comp_channel" CompChannel { "fd" fd, }
            "ibv_cq" Cq { "cq_context" cq_context, }
            "ibv_mr" Mr { "lkey" lkey, "rkey" rkey, }
            "ibv_qp" Qp { "qp_context" qp_context, "qp_num" qp_num, }
            "ibv_srq" Srq { "srq_context" srq_context, }
            "ibv_srq_init_attr" SrqInitAttr { "attr.srq_limit" attr.srq_limit, }
            "ibv_device_attr" DeviceAttr {
                "max_qp" max_qp, "device_cap_flags" device_cap_flags, "atomic_cap" atomic_cap, "max_srq_sge" max_srq_sge,
                "phys_port_cnt" phys_port_cnt,
            }
            "ibv_port_attr" PortAttr { "active_mtu" active_mtu, "subnet_timeout" subnet_timeout, }
            "ibv_ah_attr" AhAttr { "grh.sgid_index" grh.sgid_index, "dlid" dlid, "port_num" port_num, }
            "ibv_qp_init_attr" QpInitAttr { "cap" cap, "qp_type" qp_type, "sq_sig_all" sq_sig_all, }
            "ibv_qp_attr" QpAttr {
                "qp_access_flags" qp_access_flags, "ah_attr" ah_attr, "pkey_index" pkey_index, "rnr_retry" rnr_retry,
                "rate_limit" rate_limit,
            }
            "ibv_send_wr" SendWr {
                "opcode" opcode, "imm_data" imm_data, "wr" wr, "wr.atomic.rkey" wr.atomic.rkey, "wr.rdma.rkey" wr.rdma.rkey,
                "wr.ud.remote_qkey" wr.ud.remote_qkey, "qp_type" qp_type, "bind_mw" bind_mw,
            }
            "ibv_recv_wr" RecvWr { "num_sge" num_sge, }
            "ibv_wc" Wc { "imm_data" imm_data, "wc_flags" wc_flags, "slid" slid, "dlid_path_bits" dlid_path_bits, }
            "ibv_async_event" AsyncEvent { "event_type" event_type, }
        }
        .to_vec();
        expected.extend([
            ("sizeof(struct ibv_context_ops)", size_of::<ContextOps>()),
            ("sizeof(struct ibv_device_attr)", size_of::<DeviceAttr>()),
            ("sizeof(struct ibv_port_attr)", size_of::<PortAttr>()),
            ("sizeof(struct ibv_ah_attr)", size_of::<AhAttr>()),
            ("sizeof(struct ibv_qp_init_attr)", size_of::<QpInitAttr>()),
            ("sizeof(struct ibv_qp_attr)", size_of::<QpAttr>()),
            ("sizeof(struct ibv_sge)", size_of::<Sge>()),
            ("sizeof(struct ibv_send_wr)", size_of::<SendWr>()),
            ("sizeof(struct ibv_recv_wr)", size_of::<RecvWr>()),
            ("sizeof(struct ibv_srq_attr)", size_of::<SrqAttr>()),
            ("sizeof(struct ibv_srq_init_attr)", size_of::<SrqInitAttr>()),
            ("sizeof(struct ibv_wc)", size_of::<Wc>()),
            ("sizeof(struct ibv_async_event)", size_of::<AsyncEvent>()),
        ]);
        let mut source = "#include <infiniband/verbs.h>\n#include <stddef.h>\n".to_owned();
        for (c, rust) in &expected {
            writeln!(
                source,
                "_Static_assert({c} == {rust}, \"{c} is not {rust}\");"
            )
            .unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("layouts.c");
        std::fs::write(&file, source).unwrap();
        let Ok(checked) = Command::new("cc").arg("-fsyntax-only").arg(&file).output() else {
            return;
        };
        let errors = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{errors}");
    }
}
