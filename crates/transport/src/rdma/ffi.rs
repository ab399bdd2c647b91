//! The C interface of libibverbs: its structures, and the library, which is loaded when it is first needed. It knows no
//! queue pair of a connection.
//!
//! Layouts are those of `infiniband/verbs.h` of rdma-core 44, which keeps them for programs built earlier. A test
//! compares them with the header of the machine, where there is one.
#![allow(unsafe_code)] // functions of a library that is loaded at run time

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The name of the library in the system's directories.
pub(super) const LIBRARY: &CStr = c"libibverbs.so.1";

/// `IBV_QPT_RC`
pub(super) const QP_TYPE_RC: c_uint = 2;
/// `IBV_WR_RDMA_WRITE` and `IBV_WR_RDMA_WRITE_WITH_IMM`
pub(super) const OPCODE_WRITE: c_uint = 0;
pub(super) const OPCODE_WRITE_IMM: c_uint = 1;
/// `IBV_SEND_SIGNALED` and `IBV_SEND_SOLICITED`
pub(super) const SEND_SIGNALED: c_uint = 1 << 1;
pub(super) const SEND_SOLICITED: c_uint = 1 << 2;
/// `IBV_WC_RECV_RDMA_WITH_IMM`, and the bit of all receptions
pub(super) const WC_RECV_WRITE_IMM: c_uint = (1 << 7) + 1;
pub(super) const WC_RECV: c_uint = 1 << 7;
/// `IBV_WC_SUCCESS`
pub(super) const WC_SUCCESS: c_uint = 0;
/// `IBV_ACCESS_LOCAL_WRITE` and `IBV_ACCESS_REMOTE_WRITE`
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
/// `IBV_QPS_INIT`, `IBV_QPS_RTR`, `IBV_QPS_RTS` and `IBV_QPS_ERR`
pub(super) const STATE_INIT: c_uint = 1;
pub(super) const STATE_RTR: c_uint = 2;
pub(super) const STATE_RTS: c_uint = 3;
pub(super) const STATE_ERROR: c_uint = 6;
/// Bits of `ibv_qp_attr_mask`.
pub(super) mod mask {
    use std::ffi::c_int;

    pub(crate) const STATE: c_int = 1;
    pub(crate) const ACCESS_FLAGS: c_int = 1 << 3;
    pub(crate) const PKEY_INDEX: c_int = 1 << 4;
    pub(crate) const PORT: c_int = 1 << 5;
    pub(crate) const AV: c_int = 1 << 7;
    pub(crate) const PATH_MTU: c_int = 1 << 8;
    pub(crate) const TIMEOUT: c_int = 1 << 9;
    pub(crate) const RETRY_CNT: c_int = 1 << 10;
    pub(crate) const RNR_RETRY: c_int = 1 << 11;
    pub(crate) const RQ_PSN: c_int = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: c_int = 1 << 15;
    pub(crate) const SQ_PSN: c_int = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub(crate) const DEST_QPN: c_int = 1 << 20;
}

/// `struct ibv_device_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttr {
    fw_ver: [u8; 64],
    node_guid: u64,
    sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    page_size_cap: u64,
    ids: [u32; 3],
    max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    max_sge_rd: c_int,
    max_cq: c_int,
    pub(super) max_cqe: c_int,
    others: [c_int; 22],
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    phys_port_cnt: u8,
}

/// `struct ibv_port_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PortAttr {
    pub(super) state: c_uint,
    max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    gid_tbl_len: c_int,
    port_cap_flags: u32,
    max_msg_sz: u32,
    counters: [u32; 2],
    pkey_tbl_len: u16,
    pub(super) lid: u16,
    sm_lid: u16,
    bytes: [u8; 10],
    port_cap_flags2: u16,
}

/// `struct ibv_qp_cap`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: QpCap,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`, with its `struct ibv_global_route` in front
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AhAttr {
    pub(super) dgid: [u8; 16],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    // A union of the GID with 64-bit numbers aligns the route to 8.
    pad: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
    pad_end: u8,
}

/// `struct ibv_qp_attr`
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct QpAttr {
    pub(super) qp_state: c_uint,
    cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    path_mig_state: c_uint,
    qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    cap: QpCap,
    pub(super) ah_attr: AhAttr,
    alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
}

impl QpAttr {
    /// Attributes of zeros.
    pub(super) fn zeroed() -> QpAttr {
        // SAFETY: numbers only, for all of which zero is a value.
        unsafe { std::mem::zeroed() }
    }
}

/// `struct ibv_sge`
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr` of a write
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *const Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    /// Big endian.
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) unused: [u32; 19],
}

/// `struct ibv_recv_wr`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *const Sge,
    pub(super) num_sge: c_int,
}

/// `struct ibv_wc`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    vendor_err: u32,
    pub(super) byte_len: u32,
    /// Big endian.
    pub(super) imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

type Unused<const FUNCTIONS: usize> = [*const c_void; FUNCTIONS];

/// The start of `struct ibv_context`: the functions of the device's driver.
#[repr(C)]
pub(super) struct Context {
    device: *mut c_void,
    _query_device_to_create_cq: Unused<11>,
    pub(super) poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    _cq_event_to_destroy_qp: Unused<12>,
    pub(super) post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub(super) post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    _create_ah_to_async_event: Unused<5>,
    cmd_fd: c_int,
}

/// The start of `struct ibv_comp_channel`
#[repr(C)]
pub(super) struct CompChannel {
    context: *mut Context,
    pub(super) fd: c_int,
}

/// The start of `struct ibv_cq`
#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
}

/// The start of `struct ibv_qp`
#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    _qp_context_to_srq: Unused<5>,
    handle: u32,
    pub(super) qp_num: u32,
}

/// The start of `struct ibv_mr`
#[repr(C)]
pub(super) struct Mr {
    context: *mut Context,
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// Declares the table of functions that are looked up in the library by name.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library that are not those of a driver.
        pub(super) struct Verbs {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Verbs {
            fn of(library: *mut c_void) -> Result<Verbs, String> {
                Ok(Verbs {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: a handle that `dlopen` returned, and a text that ends in zero.
                        let found = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
                        if found.is_null() {
                            return Err(format!("{LIBRARY:?} has no function {}", stringify!($name)));
                        }
                        // SAFETY: the library's header declares a function of this name with this type.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut c_void;
    ibv_free_device_list: fn(*mut *mut c_void);
    ibv_get_device_name: fn(*mut c_void) -> *const c_char;
    ibv_open_device: fn(*mut c_void) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    ibv_alloc_pd: fn(*mut Context) -> *mut c_void;
    ibv_dealloc_pd: fn(*mut c_void) -> c_int;
    ibv_reg_mr: fn(*mut c_void, *mut c_void, usize, c_int) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    ibv_get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut Cq, c_uint);
    ibv_create_qp: fn(*mut c_void, *mut QpInitAttr) -> *mut Qp;
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
    ibv_wc_status_str: fn(c_uint) -> *const c_char;
}

/// The library, loaded at the first call. It stays loaded until the process ends.
///
/// # Errors
/// The reason of the system's loader, without the name of the library.
pub(super) fn verbs() -> Result<&'static Verbs, &'static str> {
    static VERBS: OnceLock<Result<Verbs, String>> = OnceLock::new();
    VERBS.get_or_init(load).as_ref().map_err(String::as_str)
}

fn load() -> Result<Verbs, String> {
    // SAFETY: a text that ends in zero; the initialisers of an installed library run.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: the error of the call above, a text that lives until the next call of this thread.
        let error = unsafe { libc::dlerror() };
        if error.is_null() {
            return Err("it is not there".to_owned());
        }
        // SAFETY: a text that ends in zero, as just checked to be there.
        return Err(unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned());
    }
    Verbs::of(library)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::process::Command;

    use super::*;

    /// Prints the sizes and offsets of the header, in the order of `ours`.
    const PROGRAM: &str = r#"
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdio.h>
int main(void) {
    size_t all[] = {
        sizeof(struct ibv_device_attr), offsetof(struct ibv_device_attr, max_mr_size),
        offsetof(struct ibv_device_attr, max_qp_wr), offsetof(struct ibv_device_attr, max_sge),
        offsetof(struct ibv_device_attr, max_cqe),
        offsetof(struct ibv_port_attr, active_mtu), offsetof(struct ibv_port_attr, lid), sizeof(struct ibv_port_attr),
        sizeof(struct ibv_qp_init_attr), offsetof(struct ibv_qp_init_attr, cap), offsetof(struct ibv_qp_init_attr, qp_type),
        sizeof(struct ibv_ah_attr), offsetof(struct ibv_ah_attr, grh.sgid_index), offsetof(struct ibv_ah_attr, dlid),
        offsetof(struct ibv_ah_attr, is_global), offsetof(struct ibv_ah_attr, port_num),
        sizeof(struct ibv_qp_attr), offsetof(struct ibv_qp_attr, path_mtu), offsetof(struct ibv_qp_attr, rq_psn),
        offsetof(struct ibv_qp_attr, qp_access_flags), offsetof(struct ibv_qp_attr, ah_attr),
        offsetof(struct ibv_qp_attr, pkey_index), offsetof(struct ibv_qp_attr, max_dest_rd_atomic),
        offsetof(struct ibv_qp_attr, port_num), offsetof(struct ibv_qp_attr, rnr_retry),
        sizeof(struct ibv_sge), sizeof(struct ibv_send_wr), offsetof(struct ibv_send_wr, opcode),
        offsetof(struct ibv_send_wr, imm_data), offsetof(struct ibv_send_wr, wr.rdma.remote_addr),
        offsetof(struct ibv_send_wr, wr.rdma.rkey), sizeof(struct ibv_recv_wr), sizeof(struct ibv_wc),
        offsetof(struct ibv_wc, byte_len), offsetof(struct ibv_wc, imm_data),
        offsetof(struct ibv_context, ops.poll_cq), offsetof(struct ibv_context, ops.req_notify_cq),
        offsetof(struct ibv_context, ops.post_send), offsetof(struct ibv_context, ops.post_recv),
        offsetof(struct ibv_context, cmd_fd), offsetof(struct ibv_comp_channel, fd), offsetof(struct ibv_qp, qp_num),
        offsetof(struct ibv_mr, lkey), offsetof(struct ibv_mr, rkey),
        IBV_QPT_RC, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_WC_RECV_RDMA_WITH_IMM,
        IBV_ACCESS_REMOTE_WRITE, IBV_QPS_RTS, IBV_QPS_ERR, IBV_QP_AV, IBV_QP_MIN_RNR_TIMER,
        IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN, IBV_QP_SQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC,
    };
    for (size_t at = 0; at < sizeof all / sizeof *all; at++) printf("%zu ", all[at]);
    return 0;
}
"#;

    #[test]
    #[expect(clippy::print_stderr, reason = "what was skipped is for a person")]
    fn layouts_are_those_of_the_header() {
        let ours = [
            size_of::<DeviceAttr>(),
            offset_of!(DeviceAttr, max_mr_size),
            offset_of!(DeviceAttr, max_qp_wr),
            offset_of!(DeviceAttr, max_sge),
            offset_of!(DeviceAttr, max_cqe),
            offset_of!(PortAttr, active_mtu),
            offset_of!(PortAttr, lid),
            size_of::<PortAttr>(),
            size_of::<QpInitAttr>(),
            offset_of!(QpInitAttr, cap),
            offset_of!(QpInitAttr, qp_type),
            size_of::<AhAttr>(),
            offset_of!(AhAttr, sgid_index),
            offset_of!(AhAttr, dlid),
            offset_of!(AhAttr, is_global),
            offset_of!(AhAttr, port_num),
            size_of::<QpAttr>(),
            offset_of!(QpAttr, path_mtu),
            offset_of!(QpAttr, rq_psn),
            offset_of!(QpAttr, qp_access_flags),
            offset_of!(QpAttr, ah_attr),
            offset_of!(QpAttr, pkey_index),
            offset_of!(QpAttr, max_dest_rd_atomic),
            offset_of!(QpAttr, port_num),
            offset_of!(QpAttr, rnr_retry),
            size_of::<Sge>(),
            size_of::<SendWr>(),
            offset_of!(SendWr, opcode),
            offset_of!(SendWr, imm_data),
            offset_of!(SendWr, remote_addr),
            offset_of!(SendWr, rkey),
            size_of::<RecvWr>(),
            size_of::<Wc>(),
            offset_of!(Wc, byte_len),
            offset_of!(Wc, imm_data),
            offset_of!(Context, poll_cq),
            offset_of!(Context, req_notify_cq),
            offset_of!(Context, post_send),
            offset_of!(Context, post_recv),
            offset_of!(Context, cmd_fd),
            offset_of!(CompChannel, fd),
            offset_of!(Qp, qp_num),
            offset_of!(Mr, lkey),
            offset_of!(Mr, rkey),
            QP_TYPE_RC as usize,
            OPCODE_WRITE_IMM as usize,
            SEND_SIGNALED as usize,
            SEND_SOLICITED as usize,
            WC_RECV_WRITE_IMM as usize,
            ACCESS_REMOTE_WRITE as usize,
            STATE_RTS as usize,
            STATE_ERROR as usize,
            mask::AV as usize,
            mask::MIN_RNR_TIMER as usize,
            mask::MAX_DEST_RD_ATOMIC as usize,
            mask::DEST_QPN as usize,
            mask::SQ_PSN as usize,
            mask::MAX_QP_RD_ATOMIC as usize,
        ];
        let folder = tempfile::tempdir().expect("a folder");
        let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
        std::fs::write(&source, PROGRAM).expect("written");
        let built = Command::new("cc").arg(&source).arg("-o").arg(&program).output();
        if !built.is_ok_and(|built| built.status.success()) {
            eprintln!("skipped: no C compiler, or no infiniband/verbs.h (Debian: libibverbs-dev)");
            return;
        }
        let printed = Command::new(&program).output().expect("it runs").stdout;
        let printed = String::from_utf8(printed).expect("numbers");
        let header: Vec<usize> =
            printed.split_whitespace().map(|number| number.parse().expect(number)).collect();
        assert_eq!(ours[..], header[..]);
    }

    #[test]
    fn the_library_is_there_with_all_functions_or_is_said_to_be_missing() {
        match verbs() {
            Ok(_) => {}
            Err(reason) => assert!(reason.contains("libibverbs"), "{reason}"),
        }
    }
}
