//! One request on its way through a command: what was asked in which terms, and the memory that is lent to it. Knows no
//! command.

use std::time::Instant;

use sanderling_wire::{Agreed, Failure, Fault, Kind, Reply, WireError};

use crate::limit::SCRATCH_BYTES_MAX;
use crate::refusal::Refusal;
use crate::state::State;
use crate::tables::View;

/// What a worker lends to all of its sessions: its copy of the tables, and memory.
#[derive(Debug, Default)]
pub struct Desk {
    pub(crate) view: View,
    pub(crate) scratch: Scratch,
}

/// Memory that is used within one request and kept for the next.
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

/// One request, with what its command needs.
pub(crate) struct Call<'a> {
    pub(crate) state: &'a State,
    pub(crate) agreed: &'a Agreed,
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    pub(crate) now: Instant,
    pub(crate) view: &'a View,
    pub(crate) scratch: &'a mut Scratch,
}

impl Call<'_> {
    /// Writes a reply that is short and has been given room.
    pub(crate) fn encode(&self, reply: &Reply<'_>, slot: &mut [u8]) -> Result<usize, Refusal> {
        reply.encode(self.agreed, self.id, slot).map_err(unwritten)
    }
}

/// Makes a buffer of a request so long, of zeros. Having no memory for it is that request's error.
pub(crate) fn zeros(buffer: &mut Vec<f32>, len: usize) -> Result<(), Refusal> {
    buffer.clear();
    buffer
        .try_reserve(len)
        .map_err(|_| Refusal::busy(format!("no memory for {len} numbers of a request")))?;
    buffer.resize(len, 0.0);
    Ok(())
}

/// A reply that cannot be written.
pub(crate) fn unwritten(error: WireError) -> Refusal {
    match error {
        WireError::TooLong { found, max, .. } => {
            Refusal::new(Fault::TooLarge { bytes: found, bytes_max: max }, format!("{error}; ask for less"))
        }
        WireError::NoMemory { .. } => Refusal::busy(error.to_string()),
        error => Refusal::new(Fault::Internal, error.to_string()),
    }
}

/// Writes a failure, for which there always is room.
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
