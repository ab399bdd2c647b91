//! Requests of a server that has other replicas: pushes that report the versions of rows, and changes of tables that
//! all replicas make.

use std::sync::Arc;

use sanderling_replica::push_dedup::{ClientPushes, Outcome, Verdict};
use sanderling_replica::{AppliedPush, Push as ReplicatedPush};
use sanderling_store::{PushScale, RowColumns, RowVersions, WholeRows};
use sanderling_wire::{Create, Fault, Push, Pushed, Reply, Request};

use super::push::{Noted, known, refused};
use super::{check_dim, rows};
use crate::call::Call;
use crate::refusal::Refusal;
use crate::replication::{Change, Replication, record_bytes};

/// Applies a push as the primary. The reply, also to a push that was applied before, waits for the followers.
pub(crate) fn push(
    call: &mut Call<'_>,
    replication: &Replication,
    client_pushes: &mut Option<Arc<ClientPushes>>,
    push: &Push<'_>,
    slot: &mut [u8],
) -> Result<usize, Refusal> {
    let entered = replication.enter(call.worker)?;
    // The list of tables does not change before `entered` is dropped.
    let directory;
    let view = call.view;
    let (entry, slots) = match view.table(push.table) {
        Ok(entry) if view.is_newest(&call.state.tables) => (entry, view.slots()),
        _ => {
            directory = call.state.tables.directory();
            let found = directory.entries.iter().find(|entry| entry.number == push.table);
            let found = found.ok_or_else(|| replication.refusal(Refusal::no_table_number(push.table)))?;
            (found, directory.slots.as_ref())
        }
    };
    check_dim(entry, push.dim).map_err(|refusal| replication.refusal(refusal))?;
    let (bytes, bytes_max) = (record_bytes(push.keys.len(), push.grads.len()), call.state.frame_bytes_max);
    if bytes > bytes_max as usize {
        let fault = Fault::TooLarge { bytes: bytes as u64, bytes_max: bytes_max.into() };
        return Err(Refusal::new(
            fault,
            "the push is too large for the other replicas; push fewer keys at once",
        ));
    }
    let id = (push.client, push.sequence);
    match call.state.push_dedup.begin(client_pushes, push.client, push.sequence) {
        Verdict::Apply => {}
        Verdict::Known(outcome) => {
            replication.ask(call.request, id, outcome);
            *call.replicated = Some(call.request);
            known(entry, push.sequence, outcome)?;
            return call.encode(&Reply::Push(Pushed { repeated: true }), slot);
        }
        verdict => return Err(refused(push.sequence, verdict)),
    }
    let client_pushes = client_pushes.as_ref().expect("it was found to ask it");
    let mut noted = Noted { client_pushes, sequence: push.sequence, outcome: None };
    match slots {
        Some(slots) => slots.check_keys(entry.home, push.keys)?,
        None => call.state.placement.check_keys(entry.home, push.keys)?,
    }
    let (table, scale) = (&entry.table, PushScale { lr_scale: push.lr_scale });
    let checked = table.check_push(push.keys, push.counts, push.grads, scale)?;
    let clock = if push.continues { table.latest_push() } else { table.count_push() };
    let mut rows = RowVersions::default();
    let applied = checked.apply_and_report(clock, &mut rows);
    let Some(outcome) = Outcome::of(&applied) else { return applied.map(|()| 0).map_err(Refusal::from) };
    noted.outcome = Some(outcome);
    let copy = ReplicatedPush {
        table: push.table,
        client: push.client,
        sequence: push.sequence,
        continues: push.continues,
        lr_scale: push.lr_scale,
        keys: push.keys.to_vec(),
        counts: push.counts.to_vec(),
        grads: push.grads.to_vec(),
    };
    let sent = AppliedPush { push: Arc::new(copy), clock: clock.reading(), rows, outcome };
    // Before the mark: whoever finds it asks for a push that is on its way.
    replication.send(call.request, call.worker, entered.epoch, sent, call.span);
    *call.replicated = Some(call.request);
    drop(noted);
    drop(entered);
    applied?;
    call.encode(&Reply::Push(Pushed { repeated: false }), slot)
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
