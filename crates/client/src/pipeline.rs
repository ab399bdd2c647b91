//! Many requests of one thread under way at once, each over all servers that have a part of it. A slot number
//! identifies the request that an answer belongs to. Rows are checked for their shape and not kept. Does not know how
//! frames travel, nor when a request is due.

use std::time::{Duration, Instant};

use sanderling_store::{Absent, Pooling, PushScale};
use sanderling_wire::{Reply, RowFormat};

use crate::cluster::Cluster;
use crate::engine::{Each, Engine, Message, PooledKeys, PushBuffers, pulled};
use crate::error::ClientError;
use crate::key_partition::{KeyPartition, RaggedPartition};
use crate::remote::RemoteTable;

/// Requests that a thread may have under way.
pub const SLOTS_MAX: usize = 1 << 12;
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

/// A request under way.
#[derive(Debug, Default)]
struct Slot {
    /// Its messages, when all have been begun, and those that have ended.
    messages: Option<usize>,
    ended: usize,
    answered: Answered,
    failed: Option<ClientError>,
}

/// The requests of one thread. It connects when it is used first, and again when a connection breaks.
#[derive(Debug)]
pub struct Pipeline {
    engine: Engine,
    tables: Vec<RemoteTable>,
    slots: Slots,
    /// The most messages to a server that a request had.
    messages_max: usize,
    partition: KeyPartition,
    ragged: RaggedPartition,
    buffers: PushBuffers,
}

/// The state that answers change.
#[derive(Debug, Default)]
struct Slots {
    slots: Vec<Slot>,
    /// Slots whose requests have ended, with when they did.
    ended: Vec<(usize, Instant)>,
}

impl Cluster {
    /// Connections of their own for one thread that has many requests under way at once.
    pub fn pipeline(&self) -> Result<Pipeline, ClientError> {
        Ok(Pipeline {
            engine: self.engine()?,
            tables: Vec::new(),
            slots: Slots::default(),
            messages_max: 1,
            partition: KeyPartition::default(),
            ragged: RaggedPartition::default(),
            buffers: PushBuffers::default(),
        })
    }
}

impl Pipeline {
    /// Takes a table of the same cluster; its number here.
    pub fn add(&mut self, table: RemoteTable) -> usize {
        self.tables.push(table);
        self.tables.len() - 1
    }

    /// Is there room for another request, as large as the largest so far? Where there is none, [`Pipeline::begin`] waits.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.engine.has_room(self.messages_max)
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
        assert!(slot < SLOTS_MAX, "slot {slot}: there are {SLOTS_MAX}");
        let slots = &mut self.slots.slots;
        if slots.len() <= slot {
            slots.resize_with(slot + 1, Slot::default);
        }
        assert!(!slots[slot].is_used(), "slot {slot} has a request under way");
        slots[slot] = Slot::default();
        self.engine.connections.limit(within);
        self.engine.begun.fill(0);
        let begun = self.begin_messages(slot, table, call);
        let messages = self.engine.begun.iter().sum();
        self.messages_max = self.engine.begun.iter().copied().fold(self.messages_max, usize::max);
        let kept = &mut self.slots.slots[slot];
        if let Err(error) = begun {
            if messages == 0 {
                return Err(error);
            }
            // Parts of it are under way; it ends with them.
            kept.failed.get_or_insert(error);
        }
        kept.messages = Some(messages);
        self.slots.note_end(slot);
        // Off at once: who has more to ask makes it while the server works.
        let Pipeline { engine, slots, .. } = self;
        engine.send(&mut |message, result| slots.note(message, result));
        Ok(())
    }

    fn begin_messages(&mut self, slot: usize, table: usize, call: &Call<'_>) -> Result<(), ClientError> {
        let Pipeline { engine, tables, slots, partition, ragged, buffers, .. } = self;
        let (table, request) = (&tables[table], slot as u64);
        let each: &mut Each<'_> = &mut |message, result| slots.note(message, result);
        engine.follow_placement(each);
        match *call {
            Call::Pull { keys, absent } => {
                let shares = partition.split(&engine.placement, table.home(), keys);
                engine.begin_pull((request, 0), table, shares, absent, each)
            }
            Call::PullPooled { keys, offsets, pooling, absent } => {
                let pooled = PooledKeys { keys, offsets, values: None, pooling };
                pooled.check(table)?;
                engine.split_pooled(table, &pooled, ragged);
                engine.begin_pull_pooled(request, table, ragged, pooling, absent, each)
            }
            Call::Push { keys, grads, scale } => {
                engine.begin_push_keys(request, table, (keys, grads), scale, buffers, each)
            }
            Call::Delete { keys } => {
                let shares = partition.split(&engine.placement, table.home(), keys);
                engine.begin_delete(request, table, shares, each)
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
        let Pipeline { engine, slots, .. } = self;
        engine.look(&mut |message, result| slots.note(message, result));
        while slots.ended.is_empty()
            && let Some(until) = until
        {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let each: &mut Each<'_> = &mut |message, result| slots.note(message, result);
            if left <= AWAKE {
                std::hint::spin_loop();
                engine.look(each);
            } else if !engine.turn(until - AWAKE, each) {
                wait_until(until);
            }
        }
        for (slot, at) in slots.ended.drain(..) {
            let Slot { answered, failed, .. } = std::mem::take(&mut slots.slots[slot]);
            each(slot, at, failed.map_or(Ok(answered), Err));
        }
    }
}

/// Waits until then. The thread stays awake for the last [200 us](AWAKE), since sleeps end late.
pub fn wait_until(until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    if left > AWAKE {
        std::thread::sleep(left - AWAKE);
    }
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

impl Slot {
    fn is_used(&self) -> bool {
        self.messages.is_some_and(|messages| self.ended < messages)
    }
}

impl Slots {
    /// A message has its answer or has failed.
    fn note(&mut self, message: &Message, result: Result<Reply<'_>, ClientError>) {
        let slot = message.request as usize;
        let kept = &mut self.slots[slot];
        match result {
            Ok(Reply::Delete(removed)) => kept.answered.missing += message.keys.len() - removed as usize,
            Ok(reply) => {
                if let Some(reply) = pulled(&reply) {
                    let value_bytes = if reply.values.format() == RowFormat::F16 { 2 } else { 4 };
                    kept.answered.missing += reply.absent.count();
                    kept.answered.row_bytes += (value_bytes * reply.values.len()) as u64;
                }
            }
            Err(error) => _ = kept.failed.get_or_insert(error),
        }
        kept.ended += 1;
        self.note_end(slot);
    }

    /// Notes the end of a request with its last message.
    fn note_end(&mut self, slot: usize) {
        let Slot { messages, ended, .. } = &self.slots[slot];
        if *messages == Some(*ended) {
            self.ended.push((slot, Instant::now()));
        }
    }
}
