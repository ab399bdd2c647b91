//! The commands, one file each: functions from a decoded request to a reply. They know tables and push deduplication,
//! no connections.

pub(crate) mod feed;
pub(crate) mod gathered;
pub(crate) mod pull;
pub(crate) mod push;
pub(crate) mod replicated;
mod replicated_step;
pub(crate) mod rows;
pub(crate) mod stats;
pub(crate) mod step;
pub(crate) mod table;

use sanderling_wire::{Fault, Ping, Pong, Reply, limit::PING_BYTES_MAX};

use crate::call::Call;
use crate::refusal::Refusal;
use crate::tables::Entry;

/// Payload of the reply to a ping.
static ZEROS: [u8; PING_BYTES_MAX] = [0; PING_BYTES_MAX];

pub(crate) fn ping(call: &Call<'_>, ping: &Ping<'_>, slot: &mut [u8]) -> Result<usize, Refusal> {
    let bytes = &ZEROS[..ping.reply_bytes as usize];
    call.encode(&Reply::Ping(Pong { serving: !call.state.is_draining(), bytes }), slot)
}

/// Refuses a request whose row length is not the table's.
fn check_dim(entry: &Entry, dim: u32) -> Result<(), Refusal> {
    if entry.dim() == dim {
        return Ok(());
    }
    let (expected, name) = (entry.dim(), entry.table.name());
    let reason = format!("table {name:?} has dim {expected}, the request says {dim}");
    Err(Refusal::new(Fault::DimensionMismatch { expected, found: dim }, reason))
}
