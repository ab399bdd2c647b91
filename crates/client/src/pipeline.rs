//! Many requests of one thread under way at once, each over all servers that have a part of it. A slot number
//! identifies the request that an answer belongs to. Rows are checked for their shape and not kept. Does not know how
//! frames travel, nor when a request is due.

use std::time::{Duration, Instant};

use sanderling_store::{Absent, Dedup, Pooling, PushScale};
use sanderling_wire::{
    self as wire, Delete, Pull, PullPooled, PullReply, Ragged, Reply, Request, RowFormat, WireError,
};

use crate::connection_set::ConnectionSet;
use crate::error::{ClientError, Names};
use crate::key_partition::{KeyPartition, RaggedPartition, RunSamples};
use crate::placement::Placement;
use crate::remote::RemoteTable;
use crate::rpc_state::CallError;
use crate::session::{
    Outgoing, check_offsets, rows_per_pull, rows_per_request, sample_runs, sum_duplicates, wire_absent,
};

/// Requests that a thread may have under way.
pub const SLOTS_MAX: usize = 1 << 12;
/// Messages of one request, which tags number in so many bits.
const PART_BITS: u32 = 24;
/// Nearer to its time than this, a wait stays awake: a thread that sleeps is late by some tens of microseconds.
const AWAKE: Duration = Duration::from_micros(200);

/// A request. Keys may occur several times.
#[derive(Debug, Clone, Copy)]
pub enum Call<'a> {
    /// As [`RemoteTable::pull`].
    Pull {
        /// Rows of these.
        keys: &'a [u64],
        /// The value of keys without a row.
        absent: Absent,
    },
    /// As [`RemoteTable::pull_pooled`].
    PullPooled {
        /// All samples' keys.
        keys: &'a [u64],
        /// Where each sample's keys start, and where the last one's end.
        offsets: &'a [u32],
        /// How a sample's rows become one.
        pooling: Pooling,
        /// The value of keys without a row.
        absent: Absent,
    },
    /// As [`RemoteTable::push`].
    Push {
        /// Rows of these.
        keys: &'a [u64],
        /// A row of gradients per key.
        grads: &'a [f32],
        /// Learning rate and such.
        scale: PushScale,
    },
    /// As [`RemoteTable::remove`].
    Delete {
        /// Rows of these.
        keys: &'a [u64],
    },
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answered {
    /// Keys that had no row.
    pub missing: usize,
    /// Bytes of the rows that came.
    pub row_bytes: u64,
}

/// The expected shape of one message's answer.
#[derive(Debug, Clone, Copy)]
struct Part {
    keys: usize,
    rows: usize,
}

/// A request under way.
#[derive(Debug, Default)]
struct Slot {
    table: usize,
    /// Of messages that yield rows, what they asked for.
    parts: Vec<Part>,
    /// Messages without an answer.
    open: usize,
    answered: Answered,
    failed: Option<ClientError>,
}

/// The requests of one thread. It connects when it is used first, and again when a connection breaks.
#[derive(Debug)]
pub struct Pipeline {
    connections: ConnectionSet,
    placement: Placement,
    tables: Vec<RemoteTable>,
    outgoing: Outgoing,
    state: State,
    partition: KeyPartition,
    ragged: RaggedPartition,
    dedup: Dedup,
    summed: Vec<f32>,
}

/// The state that answers change.
#[derive(Debug)]
struct State {
    names: Names,
    /// Per table, its name and dim.
    shapes: Vec<(String, usize)>,
    slots: Vec<Slot>,
    /// Slots whose requests have ended, with when they did.
    ended: Vec<(usize, Instant)>,
    /// Messages to each server of the request that was begun last, and the most that there were.
    messages: Vec<usize>,
    messages_max: usize,
}

impl Pipeline {
    pub(crate) fn new(connections: ConnectionSet, placement: Placement) -> Pipeline {
        let (names, servers) = (connections.names(), connections.len());
        Pipeline {
            connections,
            placement,
            tables: Vec::new(),
            outgoing: Outgoing::new(servers),
            state: State {
                names,
                shapes: Vec::new(),
                slots: Vec::new(),
                ended: Vec::new(),
                messages: vec![0; servers],
                messages_max: 1,
            },
            partition: KeyPartition::default(),
            ragged: RaggedPartition::default(),
            dedup: Dedup::new(),
            summed: Vec::new(),
        }
    }

    /// Takes a table of the same cluster; its number here.
    pub fn add(&mut self, table: RemoteTable) -> usize {
        self.state.shapes.push((table.name().to_owned(), table.dim()));
        self.tables.push(table);
        self.tables.len() - 1
    }

    /// Is there room for another request, as large as the largest so far? Where there is none, [`Pipeline::begin`] waits.
    #[must_use]
    pub fn has_room(&self) -> bool {
        (0..self.connections.len()).all(|server| self.connections.has_room(server, self.state.messages_max))
    }

    /// Begins and sends a request; [`Pipeline::poll`] reports its end.
    ///
    /// A request that cannot be made is an error at once, and no part of it is under way. Waits only while a server
    /// has as many requests as it may.
    ///
    /// # Panics
    /// If the slot is [`SLOTS_MAX`] or more or has a request under way, or the table was not added.
    pub fn begin(&mut self, slot: usize, table: usize, call: &Call<'_>) -> Result<(), ClientError> {
        self.begin_within(None, slot, table, call)
    }

    /// [`Pipeline::begin`] with a time-out for this request, at most that of the options.
    ///
    /// # Panics
    /// As [`Pipeline::begin`].
    pub fn begin_within(
        &mut self,
        within: Option<Duration>,
        slot: usize,
        table: usize,
        call: &Call<'_>,
    ) -> Result<(), ClientError> {
        self.connections.limit(within);
        assert!(slot < SLOTS_MAX, "slot {slot}: there are {SLOTS_MAX}");
        let slots = &mut self.state.slots;
        if slots.len() <= slot {
            slots.resize_with(slot + 1, Slot::default);
        }
        let kept = &mut slots[slot];
        assert!(kept.open == 0, "slot {slot} has a request under way");
        kept.parts.clear();
        (kept.table, kept.answered, kept.failed) = (table, Answered::default(), None);
        // The request itself is one message more, so that it cannot end before all have been begun.
        kept.open = 1;
        self.state.messages.fill(0);
        let begun = self.begin_all(slot, table, call);
        if let Err(error) = begun {
            if self.state.slots[slot].open == 1 {
                self.state.slots[slot].open = 0;
                return Err(error);
            }
            // Parts of it are under way; it ends with them.
            self.state.slots[slot].failed.get_or_insert(error);
        }
        self.state.close_one(slot);
        // Off at once: who has more to ask makes it while the server works.
        let Pipeline { connections, state, .. } = self;
        connections.send(&mut |server, tag, result| state.note(server, tag, result));
        Ok(())
    }

    fn begin_all(&mut self, slot: usize, table: usize, call: &Call<'_>) -> Result<(), ClientError> {
        let Pipeline { connections, placement, tables, outgoing, state, partition, ragged, dedup, summed } =
            self;
        let table = &tables[table];
        let dim = table.dim();
        let named = |source| ClientError::Request { table: table.name().to_owned(), source };
        match *call {
            Call::Pull { keys, absent } => {
                let (step, absent) = (rows_per_pull(connections, dim), wire_absent(absent));
                for (server, keys) in shares(partition, placement, table, keys) {
                    for keys in keys.chunks(step) {
                        let (number, format) = (table.number(server), connections.row_format(server));
                        let (table, dim) = (number.table, dim as u32);
                        let request = Request::Pull(Pull { table, dim, absent, format, keys });
                        let part = Part { keys: keys.len(), rows: keys.len() };
                        send(connections, state, slot, server, number.boot_id, part, &request)
                            .map_err(named)?;
                    }
                }
                Ok(())
            }
            Call::PullPooled { keys, offsets, pooling, absent } => {
                check_offsets(table.name(), offsets, keys.len())?;
                // As a session does: a mean over several servers is not the mean of theirs.
                let alone = connections.len() == 1;
                let pooling =
                    if alone && pooling == Pooling::Mean { wire::Pooling::Mean } else { wire::Pooling::Sum };
                let absent = wire_absent(absent);
                for run in sample_runs(connections, dim, offsets) {
                    ragged.clear(connections.len());
                    let which = if alone { RunSamples::All } else { RunSamples::WithKeys };
                    let run_offsets = &offsets[run.start..=run.end];
                    ragged.add(placement, table.home(), keys, None, run_offsets, run.start, which);
                    for (server, share) in ragged.shares.iter().enumerate() {
                        if share.keys.is_empty() {
                            continue;
                        }
                        let (number, format) = (table.number(server), connections.row_format(server));
                        let (table, dim) = (number.table, dim as u32);
                        let ragged = Ragged { keys: &share.keys, offsets: &share.offsets, values: None };
                        let part = Part { keys: ragged.keys.len(), rows: share.samples.len() };
                        let request =
                            Request::PullPooled(PullPooled { table, dim, pooling, absent, format, ragged });
                        send(connections, state, slot, server, number.boot_id, part, &request)
                            .map_err(named)?;
                    }
                }
                Ok(())
            }
            Call::Push { keys, grads, scale } => {
                table.length("grads", keys.len() * dim, grads.len())?;
                let grads = sum_duplicates(dedup, summed, keys, grads, dim);
                partition.assign(placement, table.home(), &dedup.unique);
                let step = rows_per_request(connections, dim + 3);
                outgoing.each(
                    table,
                    partition,
                    &dedup.counts,
                    grads,
                    scale,
                    step,
                    |server, boot_id, request| {
                        send(connections, state, slot, server, boot_id, Part { keys: 0, rows: 0 }, request)
                    },
                )
            }
            Call::Delete { keys } => {
                let step = rows_per_request(connections, 2);
                for (server, keys) in shares(partition, placement, table, keys) {
                    for keys in keys.chunks(step) {
                        let number = table.number(server);
                        let request = Request::Delete(Delete { table: number.table, keys });
                        let part = Part { keys: keys.len(), rows: 0 };
                        send(connections, state, slot, server, number.boot_id, part, &request)
                            .map_err(named)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Tells of requests that have ended: the slot, when, and how. When none has, waits for one
    /// until the given time; without one it does not wait. The thread stays awake for the last [200 us](AWAKE) before
    /// that time, so that what is due then is not late.
    pub fn poll(
        &mut self,
        until: Option<Instant>,
        mut each: impl FnMut(usize, Instant, Result<Answered, ClientError>),
    ) {
        let Pipeline { connections, state, .. } = self;
        connections.look(&mut |server, tag, result| state.note(server, tag, result));
        while state.ended.is_empty()
            && let Some(until) = until
        {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let mut sink = |server: usize, tag: u64, result: Result<Reply<'_>, CallError>| {
                state.note(server, tag, result);
            };
            if left > AWAKE && connections.outstanding() > 0 {
                connections.turn(Some(until - AWAKE), &mut sink);
            } else if left > AWAKE {
                std::thread::sleep(left - AWAKE);
            } else {
                std::hint::spin_loop();
                connections.look(&mut sink);
            }
        }
        for (slot, at) in state.ended.drain(..) {
            let kept = &mut state.slots[slot];
            each(slot, at, kept.failed.take().map_or(Ok(kept.answered), Err));
        }
    }
}

/// The keys of every server. Where there is one, they are its as they are.
fn shares<'a>(
    partition: &'a mut KeyPartition,
    placement: &Placement,
    table: &RemoteTable,
    keys: &'a [u64],
) -> impl Iterator<Item = (usize, &'a [u64])> {
    let alone = placement.servers == 1;
    if !alone {
        partition.assign(placement, table.home(), keys);
    }
    let partition: &'a KeyPartition = partition;
    let of = move |server: usize| if alone { keys } else { partition.share(server).keys };
    (0..placement.servers).map(move |server| (server, of(server)))
}

/// Begins one message of a slot's request.
fn send(
    connections: &mut ConnectionSet,
    state: &mut State,
    slot: usize,
    server: usize,
    boot_id: u64,
    part: Part,
    request: &Request<'_>,
) -> Result<(), WireError> {
    let kept = &mut state.slots[slot];
    let tag = (slot as u64) << PART_BITS | kept.parts.len() as u64;
    kept.parts.push(part);
    kept.open += 1;
    state.messages[server] += 1;
    state.messages_max = state.messages_max.max(state.messages[server]);
    let begun = connections.begin(server, tag, Some(boot_id), request, &mut |server, tag, result| {
        state.note(server, tag, result);
    });
    if begun.is_err() {
        state.slots[slot].open -= 1;
    }
    begun
}

impl State {
    /// One message has its answer.
    fn note(&mut self, server: usize, tag: u64, result: Result<Reply<'_>, CallError>) {
        let (slot, part) = ((tag >> PART_BITS) as usize, tag & ((1 << PART_BITS) - 1));
        let kept = &mut self.slots[slot];
        let (table, dim) = &self.shapes[kept.table];
        let part = kept.parts[part as usize];
        let error = match result {
            Ok(Reply::Pull(reply) | Reply::PullPooled(reply)) if fits(part, *dim, &reply) => {
                kept.answered.missing += reply.absent.count();
                let value_bytes = if reply.values.format() == RowFormat::F16 { 2 } else { 4 };
                kept.answered.row_bytes += (value_bytes * reply.values.len()) as u64;
                None
            }
            Ok(Reply::Push(_)) if part.rows == 0 => None,
            Ok(Reply::Delete(removed)) if part.rows == 0 && removed <= part.keys as u64 => {
                kept.answered.missing += part.keys - removed as usize;
                None
            }
            Ok(_) => Some(self.names.misfit(server, table)),
            Err(error) => Some(self.names.error(server, table, error)),
        };
        if let Some(error) = error {
            kept.failed.get_or_insert(error);
        }
        self.close_one(slot);
    }

    fn close_one(&mut self, slot: usize) {
        let kept = &mut self.slots[slot];
        kept.open -= 1;
        if kept.open == 0 {
            self.ended.push((slot, Instant::now()));
        }
    }
}

/// Has the reply the sizes that were asked for?
fn fits(part: Part, dim: usize, reply: &PullReply<'_>) -> bool {
    let shape = reply.shape();
    (shape.keys, shape.rows, shape.dim) == (part.keys, part.rows, dim as u32)
}
