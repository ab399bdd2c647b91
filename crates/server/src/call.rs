//! The context of one request: the connection's terms, the tables and reusable memory. It knows no command.

use std::time::Instant;

use sanderling_observe::SpanContext;
use sanderling_transport::reserve_with_headroom;
use sanderling_wire::{Agreed, Failure, Fault, Home, Kind, Reply, WireError};

use crate::limit::SCRATCH_BYTES_MAX;
use crate::refusal::Refusal;
use crate::state::State;
use crate::tables::View;
use crate::traces::Tracer;

/// Parts that a worker shares among its sessions: its cache of the table list, scratch buffers, notes of requests.
#[derive(Debug, Default)]
pub struct Workspace {
    pub(crate) view: View,
    pub(crate) scratch: Scratch,
    pub(crate) tracer: Tracer,
    /// Number of the worker.
    pub(crate) worker: usize,
    /// Requests so far whose replies wait for other replicas.
    pub(crate) replicated_so_far: u64,
    /// The number of such a request, of which the reply is about to be kept.
    pub(crate) replicated: Option<u64>,
}

impl Workspace {
    /// Numbers a request whose reply waits for other replicas.
    pub(crate) fn next_replicated(&mut self) -> u64 {
        self.replicated_so_far += 1;
        (self.worker as u64) << 40 | self.replicated_so_far
    }
}

/// Buffers that one request uses and the next one reuses.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) missing: Vec<u32>,
    pub(crate) rows: Vec<f32>,
    pub(crate) samples: Vec<f32>,
}

impl Scratch {
    pub(crate) fn trim(&mut self) {
        for floats in [&mut self.rows, &mut self.samples] {
            if floats.capacity() * size_of::<f32>() > SCRATCH_BYTES_MAX {
                *floats = Vec::new();
            }
        }
        if self.missing.capacity() * size_of::<u32>() > SCRATCH_BYTES_MAX {
            self.missing = Vec::new();
        }
    }
}

/// One request with the context that its command needs.
pub(crate) struct Call<'a> {
    pub(crate) state: &'a State,
    pub(crate) agreed: &'a Agreed,
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    pub(crate) now: Instant,
    pub(crate) view: &'a View,
    pub(crate) scratch: &'a mut Scratch,
    /// Number of the worker.
    pub(crate) worker: usize,
    /// The number of the request if its reply waits for other replicas.
    pub(crate) request: u64,
    /// Set to that number when the reply is to wait.
    pub(crate) replicated: &'a mut Option<u64>,
    /// The span of the request, if it is traced.
    pub(crate) span: Option<SpanContext>,
}

impl Call<'_> {
    /// Refuses a request with keys that are not on this server.
    pub(crate) fn check_keys(&self, home: Home, keys: &[u64]) -> Result<(), Refusal> {
        self.state.check_keys(self.view.slots().map(|slots| &**slots), home, keys)
    }

    /// Encodes a short reply into room that is there already.
    pub(crate) fn encode(&self, reply: &Reply<'_>, slot: &mut [u8]) -> Result<usize, Refusal> {
        reply.encode(self.agreed, self.id, slot).map_err(unwritten)
    }
}

/// Resizes a request's buffer to `len` zeros. Fails the request if there is no memory.
pub(crate) fn zeros(buffer: &mut Vec<f32>, len: usize) -> Result<(), Refusal> {
    buffer.clear();
    if !reserve_with_headroom(buffer, len) {
        return Err(Refusal::busy(format!("no memory for {len} numbers of a request")));
    }
    buffer.resize(len, 0.0);
    Ok(())
}

/// The refusal for a reply that cannot be encoded.
pub(crate) fn unwritten(error: WireError) -> Refusal {
    match error {
        WireError::TooLong { found, max, .. } => {
            Refusal::new(Fault::TooLarge { bytes: found, bytes_max: max }, format!("{error}; ask for less"))
        }
        WireError::NoMemory { .. } => Refusal::busy(error.to_string()),
        error => Refusal::new(Fault::Internal, error.to_string()),
    }
}

/// Encodes a failure. The caller provides enough room.
pub(crate) fn write_failure(
    refusal: &Refusal,
    kind: Kind,
    agreed: &Agreed,
    id: u64,
    slot: &mut [u8],
) -> usize {
    let failure = Failure { kind, fault: refusal.fault, reason: &refusal.reason };
    Reply::Failed(failure).encode(agreed, id, slot).expect("a failure is short")
}
