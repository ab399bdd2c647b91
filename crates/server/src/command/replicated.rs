//! Requests of a server that has other replicas: pushes that report the versions of rows, and changes of tables that
//! all replicas make.

use std::sync::Arc;

use sanderling_replica::push_dedup::{ClientPushes, Outcome, Verdict};
use sanderling_replica::{AppliedPush, Push as ReplicatedPush};
use sanderling_store::{PulledRows, PushClock, PushScale, RowColumns, RowVersions, StoreError, WholeRows};
use sanderling_wire::{Create, Fault, Push, PushFed, Pushed, Reply, Request};

use super::push::{Noted, known, refused};
use super::{check_dim, feed, rows};
use crate::call::Call;
use crate::placement::Slots;
use crate::refusal::Refusal;
use crate::replication::{Change, Replication, record_bytes};
use crate::state::State;
use crate::tables::Entry;

/// Applies a push as the primary. The reply, also to a push that was applied before, waits for the followers.
pub(crate) fn push(
    call: &mut Call<'_>,
    replication: &Replication,
    client_pushes: &mut Option<Arc<ClientPushes>>,
    push: &Push<'_>,
    slot: &mut [u8],
) -> Result<usize, Refusal> {
    let (to, id) = ((push.table, push.dim), (push.client, push.sequence));
    let repeated = once(call, replication, client_pushes, to, id, |call, entry, slots| {
        call.state.check_keys(slots, entry.home, push.keys)?;
        let Push { continues, lr_scale, keys, counts, grads, .. } = *push;
        let rows = PushedRows { keys, counts, grads, lr_scale, continues, pulled: None };
        rows.apply(call.state, entry, None, id)
    })?;
    call.encode(&Reply::Push(Pushed { repeated }), slot)
}

/// Applies the gradients of a fed batch as the primary. The followers get them as a push of its keys.
pub(crate) fn push_fed(
    call: &mut Call<'_>,
    replication: &Replication,
    client_pushes: &mut Option<Arc<ClientPushes>>,
    push: &PushFed<'_>,
    slot: &mut [u8],
) -> Result<usize, Refusal> {
    let (to, id) = ((push.table, push.dim), (push.client, push.sequence));
    let batch_id = (push.table, push.batch, push.feature);
    let repeated = once(call, replication, client_pushes, to, id, |call, entry, slots| {
        let state = call.state;
        let batch = state.batches.get(batch_id, call.now)?;
        state
            .check_keys(slots, entry.home, &batch.unique)
            .map_err(|refusal| feed::moved(batch_id, &refusal))?;
        let grads = feed::spread(call, &batch, push)?;
        let (keys, counts, pulled) = (&batch.unique[..], &batch.counts[..], batch.pulled());
        let lr_scale = push.lr_scale;
        let rows = PushedRows { keys, counts, grads, lr_scale, continues: false, pulled: Some(&pulled) };
        let applied = rows.apply(state, entry, None, id);
        if applied.is_ok() {
            state.batches.remove(batch_id);
        }
        applied
    })?;
    call.encode(&Reply::PushFed(Pushed { repeated }), slot)
}

/// Calls `apply` and sends the push to the followers, unless it was applied before. Returns whether it was.
fn once(
    call: &mut Call<'_>,
    replication: &Replication,
    client_pushes: &mut Option<Arc<ClientPushes>>,
    (table, dim): (u32, u32),
    (client, sequence): (u64, u64),
    apply: impl FnOnce(&mut Call<'_>, &Entry, Option<&Slots>) -> Result<Applied, Refusal>,
) -> Result<bool, Refusal> {
    let entered = replication.enter(call.worker)?;
    // The list of tables does not change before `entered` is dropped.
    let directory;
    let view = call.view;
    let (entry, slots) = match view.table(table) {
        Ok(entry) if view.is_newest(&call.state.tables) => (entry, view.slots()),
        _ => {
            directory = call.state.tables.directory();
            let found = directory.entries.iter().find(|entry| entry.number == table);
            let found = found.ok_or_else(|| replication.refusal(Refusal::no_table_number(table)))?;
            (found, directory.slots.as_ref())
        }
    };
    check_dim(entry, dim).map_err(|refusal| replication.refusal(refusal))?;
    match call.state.push_dedup.begin(client_pushes, client, sequence) {
        Verdict::Apply => {}
        Verdict::Known(outcome) => {
            replication.ask(call.request, (client, sequence), outcome);
            *call.replicated = Some(call.request);
            return known(entry, sequence, outcome).map(|()| true);
        }
        verdict => return Err(refused(sequence, verdict)),
    }
    let client_pushes = client_pushes.as_ref().expect("it was found to ask it");
    let mut noted = Noted { client_pushes, sequence, outcome: None };
    let Applied { push, result } = apply(call, entry, slots.map(|slots| &**slots))?;
    noted.outcome = Some(push.outcome);
    // Before the mark: whoever finds it asks for a push that is on its way.
    replication.send(call.request, call.worker, entered.epoch, push, call.span);
    *call.replicated = Some(call.request);
    drop(noted);
    drop(entered);
    result.map(|()| false).map_err(Refusal::from)
}

/// A push that is applied here, and on its way to the followers. The result may be that of some of its rows.
pub(super) struct Applied {
    pub(super) push: AppliedPush,
    pub(super) result: Result<(), StoreError>,
}

/// The rows of a push, and their gradients.
pub(super) struct PushedRows<'a> {
    pub(super) keys: &'a [u64],
    pub(super) counts: &'a [u32],
    pub(super) grads: &'a [f32],
    pub(super) lr_scale: f32,
    pub(super) continues: bool,
    /// The rows that a pull of the same keys has found.
    pub(super) pulled: Option<&'a PulledRows>,
}

impl PushedRows<'_> {
    /// Applies them with the numbers of a client and its push. Without a clock the push is counted.
    pub(super) fn apply(
        &self,
        state: &State,
        entry: &Entry,
        clock: Option<PushClock>,
        (client, sequence): (u64, u64),
    ) -> Result<Applied, Refusal> {
        let PushedRows { keys, counts, grads, lr_scale, continues, pulled } = *self;
        check_record(keys.len(), grads.len(), state)?;
        let table = &entry.table;
        let checked = table.check_push(keys, counts, grads, PushScale { lr_scale })?;
        let checked = pulled.map_or(checked, |pulled| checked.with_rows(pulled));
        let count = || if continues { table.latest_push() } else { table.count_push() };
        let (clock, mut rows) = (clock.unwrap_or_else(count), RowVersions::default());
        let result = checked.apply_and_report(clock, &mut rows);
        let Some(outcome) = Outcome::of(&result) else {
            return Err(result.expect_err("no outcome").into());
        };
        let copy = ReplicatedPush {
            table: entry.number,
            client,
            sequence,
            continues,
            lr_scale,
            keys: keys.to_vec(),
            counts: counts.to_vec(),
            grads: grads.to_vec(),
        };
        let push = AppliedPush { push: Arc::new(copy), clock: clock.reading(), rows, outcome };
        Ok(Applied { push, result })
    }
}

/// Refuses what the other replicas would not take in one message.
pub(super) fn check_record(keys: usize, grads: usize, state: &State) -> Result<(), Refusal> {
    let (bytes, bytes_max) = (record_bytes(keys, grads), state.frame_bytes_max);
    if bytes <= bytes_max as usize {
        return Ok(());
    }
    let fault = Fault::TooLarge { bytes: bytes as u64, bytes_max: bytes_max.into() };
    Err(Refusal::new(fault, "the push is too large for the other replicas; push fewer keys at once"))
}

/// The change of a request that all replicas are to make. `None`: the request changes nothing.
pub(crate) fn change(call: &Call<'_>, request: &Request<'_>) -> Result<Option<Change>, Refusal> {
    Ok(Some(match request {
        Request::Create(Create { name, home, config }) => {
            Change::Create { name: (*name).to_owned(), home: *home, config: (*config).to_owned() }
        }
        Request::Drop(name) => Change::Drop { name: (*name).to_owned() },
        Request::Import(import) => {
            let entry = call.view.table(import.table)?;
            let WholeRows { keys, frequencies, last_uses, versions, weights, states } =
                rows::checked(call, import)?;
            let (dim, state) = (entry.table.dim(), entry.state as usize);
            let mut columns = RowColumns::default();
            let given = WholeRows { keys, frequencies, last_uses, versions, weights, states };
            (0..keys.len()).for_each(|at| columns.push(given.row(at, dim, state)));
            Change::Import { table: import.table, rows: Arc::new(columns) }
        }
        Request::Delete(delete) => {
            let entry = call.view.table(delete.table)?;
            call.check_keys(entry.home, delete.keys)?;
            Change::Delete { table: delete.table, keys: delete.keys.to_vec() }
        }
        _ => return Ok(None),
    }))
}
