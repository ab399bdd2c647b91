//! Queue pairs of libibverbs with their completion queues as Rust values, which free what they hold. It knows no frame.
#![allow(unsafe_code)] // calls the functions of libibverbs

use std::ffi::{CStr, c_int};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use super::device::{Domain, checked, failed, last_error};
use super::devices::Port;
use super::ffi::{self, Cq, Qp, QpAttr, RecvWr, SendWr, Sge, Verbs, Wc, mask};
use super::record::Remote;

/// Completions that are taken at once.
const COMPLETIONS_MAX: usize = 32;
/// Retransmission: 4.096 us times 2 to this, so 67 ms; up to so many times, and as often while the peer has posted no
/// receive, which no correct peer ever lacks.
const ACK_TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;
const NOT_READY_RETRIES: u8 = 6;
/// 0.64 ms, by the table of the InfiniBand specification.
const NOT_READY_TIMER: u8 = 12;
const HOPS_MAX: u8 = 64;

/// A write into the memory of the other end.
pub(super) struct Write<'a> {
    /// Comes back with the completion. None: it has no completion of its own.
    pub(super) id: Option<u64>,
    pub(super) segments: &'a [Sge],
    pub(super) remote_at: u64,
    pub(super) rkey: u32,
    /// Announces the data to the other end, and all that was written before.
    pub(super) immediate: Option<u32>,
}

/// The end of a write, or the announcement of one by the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completion {
    /// All writes up to the one with this id are done.
    Sent { id: u64 },
    /// The other end has written so many bytes, and says this.
    Received { immediate: u32, bytes: u32 },
    /// The queue pair is broken.
    Failed { status: u32 },
}

/// A reliable connection to another queue pair, with its completion queue and that one's events.
pub(super) struct QueuePair {
    domain: Arc<Domain>,
    channel: *mut ffi::CompChannel,
    cq: *mut Cq,
    qp: *mut Qp,
    requests: Vec<SendWr>,
}

// SAFETY: as for `Device`; whoever has the value alone changes it.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Makes a queue pair for so many writes and announcements under way, and so many elements of a gather list.
    pub(super) fn new(
        domain: &Arc<Domain>,
        sends: u32,
        receives: u32,
        segments: usize,
    ) -> Result<QueuePair, String> {
        let device = &domain.device;
        let (verbs, context) = (device.verbs, device.context);
        let writes_max = device.requests_max();
        if writes_max < sends.max(receives) {
            let needed = sends.max(receives);
            return Err(format!(
                "{} allows {writes_max} requests per queue, and {needed} are needed",
                device.name
            ));
        }
        let mut pair = QueuePair {
            domain: Arc::clone(domain),
            channel: null_mut(),
            cq: null_mut(),
            qp: null_mut(),
            requests: Vec::new(),
        };
        // SAFETY: an open device.
        pair.channel = unsafe { (verbs.ibv_create_comp_channel)(context) };
        if pair.channel.is_null() {
            return Err(last_error("make a completion channel"));
        }
        rustix::io::ioctl_fionbio(&pair, true).map_err(|error| failed("set up the channel", error))?;
        let entries = c_int::try_from(sends + receives).unwrap_or(c_int::MAX);
        // SAFETY: an open device, and its channel.
        pair.cq = unsafe { (verbs.ibv_create_cq)(context, entries, null_mut(), pair.channel, 0) };
        if pair.cq.is_null() {
            return Err(last_error("make a completion queue"));
        }
        let mut init = ffi::QpInitAttr {
            qp_context: null_mut(),
            send_cq: pair.cq,
            recv_cq: pair.cq,
            srq: null_mut(),
            cap: ffi::QpCap {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: segments as u32,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ffi::QP_TYPE_RC,
            sq_sig_all: 0,
        };
        // SAFETY: a protection domain and a completion queue of the same device.
        pair.qp = unsafe { (verbs.ibv_create_qp)(domain.domain, &raw mut init) };
        if pair.qp.is_null() {
            return Err(last_error(&format!("make a queue pair for {sends} writes on {}", device.name)));
        }
        Ok(pair)
    }

    fn verbs(&self) -> &'static Verbs {
        self.domain.device.verbs
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: it lives until it is destroyed.
        unsafe { (*self.qp).qp_num }
    }

    fn modify(&mut self, action: &str, attr: &mut QpAttr, mask: c_int) -> Result<(), String> {
        // SAFETY: a queue pair, and the attributes that the mask names.
        checked(action, unsafe { (self.verbs().ibv_modify_qp)(self.qp, attr, mask) })
    }

    /// Lets the queue pair take receives, and the other end write once it is connected.
    pub(super) fn init(&mut self, port: &Port) -> Result<(), String> {
        let mut attr = QpAttr::zeroed();
        attr.qp_state = ffi::STATE_INIT;
        attr.port_num = port.number;
        attr.qp_access_flags = (ffi::ACCESS_LOCAL_WRITE | ffi::ACCESS_REMOTE_WRITE) as u32;
        let mask = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        self.modify("set the queue pair up", &mut attr, mask)
    }

    /// Connects to the other end. From then on both directions may be used, this one as soon as the other end is
    /// connected, too.
    pub(super) fn connect(&mut self, port: &Port, psn: u32, mtu: u8, remote: &Remote) -> Result<(), String> {
        let mut attr = QpAttr::zeroed();
        attr.qp_state = ffi::STATE_RTR;
        attr.path_mtu = mtu.min(remote.mtu).into();
        attr.dest_qp_num = remote.qp_num;
        attr.rq_psn = remote.psn;
        attr.max_dest_rd_atomic = 1;
        attr.min_rnr_timer = NOT_READY_TIMER;
        attr.ah_attr.dlid = remote.lid;
        attr.ah_attr.port_num = port.number;
        attr.ah_attr.is_global = port.is_ethernet.into();
        attr.ah_attr.dgid = remote.gid;
        attr.ah_attr.sgid_index = port.gid_index;
        attr.ah_attr.hop_limit = HOPS_MAX;
        let mask = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        self.modify("connect the queue pair", &mut attr, mask)?;
        attr.qp_state = ffi::STATE_RTS;
        attr.sq_psn = psn;
        attr.timeout = ACK_TIMEOUT;
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = NOT_READY_RETRIES;
        attr.max_rd_atomic = 1;
        let mask = mask::STATE
            | mask::SQ_PSN
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::MAX_QP_RD_ATOMIC;
        self.modify("start the queue pair", &mut attr, mask)
    }

    /// Breaks the queue pair. What is under way ends with an error, and no memory is read for it any more once all
    /// completions are there.
    pub(super) fn shut(&mut self) {
        let mut attr = QpAttr::zeroed();
        attr.qp_state = ffi::STATE_ERROR;
        // A queue pair that cannot be changed is broken already.
        let _ = self.modify("shut the queue pair", &mut attr, mask::STATE);
    }

    /// Lets the other end announce so many more writes.
    pub(super) fn post_receives(&mut self, receives: usize) -> Result<(), String> {
        for _ in 0..receives {
            let mut request = RecvWr { wr_id: 0, next: null_mut(), sg_list: null(), num_sge: 0 };
            let mut bad = null_mut();
            // SAFETY: a request without memory of its own; the library copies it.
            let result =
                unsafe { ((*(*self.qp).context).post_recv)(self.qp, &raw mut request, &raw mut bad) };
            checked("post a receive", result)?;
        }
        Ok(())
    }

    /// Hands writes to the device, in this order. There must be room for them.
    pub(super) fn post(&mut self, writes: &[Write<'_>]) -> Result<(), String> {
        self.requests.clear();
        self.requests.extend(writes.iter().map(|write| {
            let announced = if write.immediate.is_some() { ffi::SEND_SOLICITED } else { 0 };
            let signaled = if write.id.is_some() { ffi::SEND_SIGNALED } else { 0 };
            SendWr {
                wr_id: write.id.unwrap_or_default(),
                next: null_mut(),
                sg_list: write.segments.as_ptr(),
                num_sge: write.segments.len() as c_int,
                opcode: if write.immediate.is_some() { ffi::OPCODE_WRITE_IMM } else { ffi::OPCODE_WRITE },
                send_flags: announced | signaled,
                imm_data: write.immediate.unwrap_or_default().to_be(),
                remote_addr: write.remote_at,
                rkey: write.rkey,
                unused: [0; 19],
            }
        }));
        let first = self.requests.as_mut_ptr();
        for at in 1..self.requests.len() {
            // SAFETY: both are within the vector.
            unsafe { (*first.add(at - 1)).next = first.add(at) };
        }
        if self.requests.is_empty() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: a list of requests that live during the call, which copies them. Their memory is checked by the device
        // against the registered regions.
        let result = unsafe { ((*(*self.qp).context).post_send)(self.qp, first, &raw mut bad) };
        checked("post a write", result)
    }

    /// Takes the completions that are there, at most as many as `out` has room for beyond its content.
    pub(super) fn poll(&mut self, out: &mut Vec<Completion>) -> Result<(), String> {
        let mut found = [Wc::default(); COMPLETIONS_MAX];
        loop {
            // SAFETY: room for as many completions as are asked for.
            let count = unsafe {
                ((*(*self.cq).context).poll_cq)(self.cq, COMPLETIONS_MAX as c_int, found.as_mut_ptr())
            };
            let Ok(count) = usize::try_from(count) else { return Err("cannot poll the queue".to_owned()) };
            out.extend(found[..count.min(COMPLETIONS_MAX)].iter().map(|one| match one {
                one if one.status != ffi::WC_SUCCESS => Completion::Failed { status: one.status },
                one if one.opcode & ffi::WC_RECV == 0 => Completion::Sent { id: one.wr_id },
                one if one.opcode == ffi::WC_RECV_WRITE_IMM => {
                    Completion::Received { immediate: u32::from_be(one.imm_data), bytes: one.byte_len }
                }
                // A message of the other kind, which has no memory to go to.
                _ => Completion::Failed { status: u32::MAX },
            }));
            if count < COMPLETIONS_MAX {
                return Ok(());
            }
        }
    }

    /// Makes the channel readable at the next completion: of any kind, or an announcement or an error only.
    pub(super) fn request_event(&mut self, announced_only: bool) -> Result<(), String> {
        // SAFETY: a completion queue.
        let result = unsafe { ((*(*self.cq).context).req_notify_cq)(self.cq, c_int::from(announced_only)) };
        checked("ask for an event", result)
    }

    /// Takes the events of the channel, so that it is readable no more.
    pub(super) fn take_events(&mut self) {
        let (mut cq, mut context, mut events) = (null_mut(), null_mut(), 0);
        // SAFETY: a channel, which does not block; the library writes the queue and its context.
        while unsafe { (self.verbs().ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context) } == 0 {
            events += 1;
        }
        if events > 0 {
            // SAFETY: the channel's only queue, with as many events as were taken.
            unsafe { (self.verbs().ibv_ack_cq_events)(self.cq, events) };
        }
    }

    /// The meaning of a status, for errors.
    pub(super) fn status(&self, status: u32) -> String {
        if status == u32::MAX {
            return "a message of another kind".to_owned();
        }
        // SAFETY: the library answers any number with a text that lives for ever, and ends in zero.
        unsafe { CStr::from_ptr((self.verbs().ibv_wc_status_str)(status)) }.to_string_lossy().into_owned()
    }
}

impl AsFd for QueuePair {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's descriptor is open until the channel is destroyed, which is after the borrow.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let verbs = self.verbs();
        // SAFETY: each was made and is destroyed once, the queue pair before the queue and that before the channel; all
        // events were acknowledged when they were taken.
        unsafe {
            if !self.qp.is_null() {
                (verbs.ibv_destroy_qp)(self.qp);
            }
            if !self.cq.is_null() {
                (verbs.ibv_destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (verbs.ibv_destroy_comp_channel)(self.channel);
            }
        }
    }
}
