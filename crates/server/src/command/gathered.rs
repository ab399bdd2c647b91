//! Pulls whose rows the network card gathers: the reply is a list of places.

use sanderling_wire::Pull;

use crate::call::Call;
use crate::reply_sink::ReplySink;

/// Answers a pull that `layout` has checked by the card, if that gathers the table's rows and has room. `false`: nothing was
/// done, and the CPU is to copy the rows.
#[cfg(feature = "rdma")]
pub(crate) fn send(call: &mut Call<'_>, pull: &Pull<'_>, out: &mut dyn ReplySink) -> bool {
    use sanderling_wire::{Features, PullReply, PullShape, RowFormat};

    let Ok(entry) = call.view.table(pull.table) else { return false };
    let cards = entry.gather.cards();
    let has_same_rows = pull.format == RowFormat::F32 && call.agreed.features.has(Features::UNSUMMED_ROWS);
    if !cards.is_by_card() || !has_same_rows {
        return false;
    }
    let Some(card) = out.card() else { return false };
    let rows = pull.keys.len();
    let shape = PullShape { keys: rows, rows, dim: pull.dim, format: pull.format };
    let Ok(frame_bytes) = shape.frame_bytes() else { return false };
    let Ok(head) = PullReply::head(call.kind, shape, call.agreed, call.id) else { return false };
    let set_absent = |head: &mut Vec<u8>, at: usize| head[PullShape::ABSENT_AT + at / 8] |= 1 << (at % 8);
    let pulled = (pull.keys, pull.absent);
    let frame = cards.frame(&entry.table, &card, pulled, head, frame_bytes, set_absent);
    let is_sent = frame.is_some_and(|frame| out.gather(frame));
    if is_sent {
        cards.count();
    }
    is_sent
}

/// No card gathers without the feature.
#[cfg(not(feature = "rdma"))]
pub(crate) fn send(_: &mut Call<'_>, _: &Pull<'_>, _: &mut dyn ReplySink) -> bool {
    false
}
