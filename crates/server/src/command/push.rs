//! Pushes. Each is applied at most once, however often it is sent.

use std::sync::Arc;

use sanderling_replica::push_dedup::{ClientPushes, Outcome, Verdict};
use sanderling_store::{PushScale, StoreError};
use sanderling_wire::{Fault, Push, Pushed, Reply};

use super::check_dim;
use crate::call::Call;
use crate::limit::PUSH_WINDOW;
use crate::refusal::Refusal;
use crate::tables::Entry;

pub(crate) fn push(
    call: &mut Call<'_>,
    client_pushes: &mut Option<Arc<ClientPushes>>,
    push: &Push<'_>,
    slot: &mut [u8],
) -> Result<usize, Refusal> {
    if let Some(replication) = &call.state.replication {
        return super::replicated::push(call, replication, client_pushes, push, slot);
    }
    let entry = call.view.table(push.table)?;
    check_dim(entry, push.dim)?;
    let repeated = once(call, client_pushes, entry, (push.client, push.sequence), |call| {
        // After the mark: a push that was applied is repeated, even if its keys have moved since.
        call.check_keys(entry.home, push.keys)?;
        let (table, scale) = (&entry.table, PushScale { lr_scale: push.lr_scale });
        match push.continues {
            false => table.push_unique(push.keys, push.counts, push.grads, scale)?,
            true => table.push_part(push.keys, push.counts, push.grads, scale, table.latest_push())?,
        }
        Ok(())
    })?;
    call.encode(&Reply::Push(Pushed { repeated }), slot)
}

/// Calls `apply` unless a push of this client and sequence was applied before. Returns whether it was.
pub(super) fn once(
    call: &mut Call<'_>,
    client_pushes: &mut Option<Arc<ClientPushes>>,
    entry: &Entry,
    (client, sequence): (u64, u64),
    apply: impl FnOnce(&mut Call<'_>) -> Result<(), Refused>,
) -> Result<bool, Refusal> {
    match call.state.push_dedup.begin(client_pushes, client, sequence) {
        Verdict::Apply => {}
        Verdict::Known(outcome) => return known(entry, sequence, outcome).map(|()| true),
        verdict => return Err(refused(sequence, verdict)),
    }
    let client_pushes = client_pushes.as_ref().expect("it was found to ask it");
    let mut noted = Noted { client_pushes, sequence, outcome: None };
    let applied = apply(call);
    noted.outcome = match &applied {
        Ok(()) => Some(Outcome::Applied),
        Err(Refused::Store(StoreError::TableFull { rejected, .. })) => {
            Some(Outcome::Full { rejected: *rejected })
        }
        Err(Refused::Store(StoreError::NotFinite { key, .. })) => Some(Outcome::NotFinite { key: *key }),
        Err(_) => None,
    };
    drop(noted);
    applied.map(|()| false).map_err(Refusal::from)
}

/// The reply to a push that was applied before.
pub(super) fn known(entry: &Entry, sequence: u64, outcome: Outcome) -> Result<(), Refusal> {
    match outcome {
        Outcome::Applied => Ok(()),
        Outcome::Full { rejected } => {
            let (rows, budget) = (entry.table.len() as u64, entry.table.config().budget_bytes);
            let budget_bytes = budget.unwrap_or(u64::MAX);
            let reason = format!("push {sequence} was applied before, but for {rejected} keys");
            Err(Refusal::new(Fault::TableFull { rejected, rows, budget_bytes }, reason))
        }
        Outcome::NotFinite { key } => {
            let reason = format!(
                "push {sequence} was applied before, but for rows whose update is not finite, key {key} first"
            );
            let fault = Fault::BadGradient { key, coordinate: 0, value: f32::INFINITY };
            Err(Refusal::new(fault, reason))
        }
    }
}

/// The refusal of a push that must not be applied.
pub(super) fn refused(sequence: u64, verdict: Verdict) -> Refusal {
    if verdict == Verdict::UnderWay {
        return Refusal::busy(format!("push {sequence} is being applied"));
    }
    let reason = format!("push {sequence} is outside the dedup window (last {PUSH_WINDOW}); outcome unknown");
    Refusal::new(Fault::StalePush { sequence }, reason)
}

/// Why a push was not applied, or not completely.
pub(super) enum Refused {
    Store(StoreError),
    Other(Refusal),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Refused {
        Refused::Store(error)
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        Refused::Other(refusal)
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Refusal {
        match refused {
            Refused::Store(error) => error.into(),
            Refused::Other(refusal) => refusal,
        }
    }
}

/// Records the outcome on drop, even after a panic, so that the push does not stay under way forever.
pub(super) struct Noted<'a> {
    pub(super) client_pushes: &'a ClientPushes,
    pub(super) sequence: u64,
    pub(super) outcome: Option<Outcome>,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.client_pushes.finish(self.sequence, self.outcome);
    }
}
