//! One thread's way to the tables: requests that are begun and, later, finished, many of them under way at once. Knows
//! neither scripts nor statistics.

use std::sync::Arc;
use std::time::Instant;

use sanderling_client::{Call, ClientError, Cluster, Pipeline, RemoteTable, wait_until};
use sanderling_store::{StoreError, Table, TableConfig};

use crate::observed::DistinctKeys;
use crate::request::{Failure, Finished, Operation, Outcome, TableId, parts};
use crate::target::Embedded;
use crate::target::failure::failure;

/// A table that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableShape {
    /// Its name.
    pub name: String,
    /// Weights per row.
    pub dim: usize,
}

/// One thread's way to the tables; see [`crate::target::Target::port`].
#[derive(Debug)]
pub struct Port {
    way: Way,
    shapes: Vec<TableShape>,
    /// By slot, what is under way.
    begun: Vec<Option<Begun>>,
    /// By slot, until when what it asks is of use.
    limits: Vec<Option<Instant>>,
    /// Requests that ended when they were begun.
    ended: Vec<Finished>,
    /// The requested keys, recorded on demand.
    distinct: Option<DistinctKeys>,
}

/// Where the tables are.
#[derive(Debug)]
enum Way {
    /// In this process; the rows of pulls go to `out`.
    Embedded { shared: Arc<Embedded>, tables: Vec<Arc<Table>>, out: Vec<f32> },
    Remote {
        cluster: Arc<Cluster>,
        pipeline: Box<Pipeline>,
        /// Are tables that are made temporary?
        temporary: bool,
    },
    /// Nowhere: everything is answered at once, with nothing.
    Nowhere,
}

/// A request under way.
#[derive(Debug, Clone, Copy)]
struct Begun {
    operation: Operation,
    keys: usize,
    bytes: u64,
    sent: Instant,
}

impl Port {
    pub(crate) fn embedded(shared: &Arc<Embedded>) -> Port {
        Port::new(Way::Embedded { shared: Arc::clone(shared), tables: Vec::new(), out: Vec::new() })
    }

    pub(crate) fn remote(cluster: &Arc<Cluster>, temporary: bool) -> Result<Port, ClientError> {
        let pipeline = Box::new(cluster.pipeline()?);
        Ok(Port::new(Way::Remote { cluster: Arc::clone(cluster), pipeline, temporary }))
    }

    pub(crate) fn nowhere() -> Port {
        Port::new(Way::Nowhere)
    }

    fn new(way: Way) -> Port {
        Port {
            way,
            shapes: Vec::new(),
            begun: Vec::new(),
            limits: Vec::new(),
            ended: Vec::new(),
            distinct: None,
        }
    }

    /// From now on notes which keys are asked.
    pub fn count_distinct_keys(&mut self) {
        self.distinct.get_or_insert_with(DistinctKeys::new);
    }

    /// The keys that were asked since then; the counting ends.
    pub fn distinct_keys(&mut self) -> Option<DistinctKeys> {
        self.distinct.take()
    }

    /// Makes a table, or opens the one that is there with the same configuration. Waits.
    pub fn create(&mut self, config: &TableConfig) -> Result<TableId, Failure> {
        if let Some(known) = self.known(&config.name) {
            return Ok(known);
        }
        let dim = match &mut self.way {
            Way::Embedded { shared, tables, .. } => {
                tables.push(shared.create(config)?);
                config.dim()
            }
            Way::Remote { cluster, pipeline, temporary } => {
                let made = match temporary {
                    true => RemoteTable::create_temporary(cluster, config),
                    false => RemoteTable::create(cluster, config),
                };
                let table = made.map_err(|error| failure(&error))?;
                let dim = table.dim();
                pipeline.add(table);
                dim
            }
            Way::Nowhere => config.dim(),
        };
        Ok(self.add(&config.name, dim))
    }

    /// Opens a table by its name; the same name yields the same id. Waits when asked first.
    pub fn open(&mut self, name: &str) -> Result<TableId, Failure> {
        if let Some(known) = self.known(name) {
            return Ok(known);
        }
        let dim = match &mut self.way {
            Way::Embedded { shared, tables, .. } => {
                let table = shared.open(name)?;
                let dim = table.dim();
                tables.push(table);
                dim
            }
            Way::Remote { cluster, pipeline, .. } => {
                let table = RemoteTable::open(cluster, name).map_err(|error| failure(&error))?;
                let dim = table.dim();
                pipeline.add(table);
                dim
            }
            Way::Nowhere => 1,
        };
        Ok(self.add(name, dim))
    }

    fn known(&self, name: &str) -> Option<TableId> {
        self.shapes.iter().position(|shape| shape.name == name).map(|at| TableId(at as u32))
    }

    fn add(&mut self, name: &str, dim: usize) -> TableId {
        self.shapes.push(TableShape { name: name.to_owned(), dim });
        TableId(self.shapes.len() as u32 - 1)
    }

    /// Of a table that was opened.
    #[must_use]
    pub fn shape(&self, table: TableId) -> Option<&TableShape> {
        self.shapes.get(table.0 as usize)
    }

    /// Is there room for another request? Where there is none, [`Port::begin`] waits for some.
    #[must_use]
    pub fn has_room(&self) -> bool {
        match &self.way {
            Way::Remote { pipeline, .. } => pipeline.has_room(),
            Way::Embedded { .. } | Way::Nowhere => true,
        }
    }

    /// Requests of this slot are of use until then; None: for as long as a server may take.
    pub fn limit(&mut self, slot: usize, until: Option<Instant>) {
        if self.limits.len() <= slot {
            self.limits.resize(slot + 1, None);
        }
        self.limits[slot] = until;
    }

    /// Begins a request for a slot that has none under way; it ends with a [`Finished`] of that slot, be it at once.
    /// Keys and gradients are copied, or used up, before this returns.
    ///
    /// # Panics
    /// If the slot has a request under way, or the table was not opened here.
    pub fn begin(&mut self, slot: usize, table: TableId, call: &Call<'_>) {
        let (operation, keys, bytes) = parts(call);
        if self.begun.len() <= slot {
            self.begun.resize(slot + 1, None);
        }
        if let Some(distinct) = &mut self.distinct {
            distinct.note(keys);
        }
        let begun = Begun { operation, keys: keys.len(), bytes, sent: Instant::now() };
        // A microsecond is enough to fail by.
        let within = self.limits.get(slot).copied().flatten().map(|until| {
            until.saturating_duration_since(begun.sent).max(std::time::Duration::from_micros(1))
        });
        let outcome = match &mut self.way {
            Way::Embedded { tables, out, .. } => embedded(&tables[table.0 as usize], out, call),
            Way::Remote { pipeline, .. } => {
                match pipeline.begin_within(within, slot, table.0 as usize, call) {
                    Ok(()) => {
                        let before = self.begun[slot].replace(begun);
                        assert!(before.is_none(), "slot {slot} has a request under way");
                        return;
                    }
                    Err(error) => Err(failure(&error)),
                }
            }
            Way::Nowhere => Ok(Outcome::default()),
        };
        self.ended.push(begun.finish(slot, Instant::now(), outcome));
    }

    /// Hands over what has ended. If nothing has, waits until something does, but not beyond `until`; `None` does not wait.
    pub fn poll(&mut self, until: Option<Instant>, finished: &mut Vec<Finished>) {
        if let Way::Remote { pipeline, .. } = &mut self.way {
            let until = until.filter(|_| self.ended.is_empty());
            pipeline.poll(until, |slot, done, result| {
                // There is one: the pipeline ends what was begun.
                let Some(begun) = self.begun[slot].take() else { return };
                let outcome = result
                    .map(|answered| Outcome { missing: answered.missing, bytes: answered.row_bytes })
                    .map_err(|error| failure(&error));
                finished.push(begun.finish(slot, done, outcome));
            });
        } else if let Some(until) = until
            && self.ended.is_empty()
        {
            wait_until(until);
        }
        finished.append(&mut self.ended);
    }
}

impl Begun {
    fn finish(self, slot: usize, done: Instant, outcome: Result<Outcome, Failure>) -> Finished {
        let Begun { operation, keys, bytes, sent } = self;
        let outcome = outcome.map(|outcome| Outcome { bytes: outcome.bytes + bytes, ..outcome });
        Finished { slot, operation, keys, sent, done, outcome }
    }
}

/// Carries a request out in this process.
fn embedded(table: &Table, out: &mut Vec<f32>, call: &Call<'_>) -> Result<Outcome, Failure> {
    let dim = table.dim();
    let mut room = |rows: usize| {
        if out.len() < rows * dim {
            out.resize(rows * dim, 0.0);
        }
        rows * dim
    };
    let rows = |values: usize, missing: usize| Outcome { missing, bytes: (values * size_of::<f32>()) as u64 };
    let done: Result<Outcome, StoreError> = match *call {
        Call::Pull { keys, absent } => {
            let values = room(keys.len());
            table.pull(keys, absent, &mut out[..values], None).map(|missing| rows(values, missing))
        }
        Call::PullPooled { keys, offsets, pooling, absent } => {
            let values = room(offsets.len().saturating_sub(1));
            table
                .pull_pooled(keys, None, offsets, pooling, absent, &mut out[..values], None)
                .map(|missing| rows(values, missing))
        }
        Call::Push { keys, grads, scale } => table.push(keys, grads, scale).map(|()| Outcome::default()),
        Call::Delete { keys } => Ok(rows(0, keys.iter().filter(|&&key| !table.remove(key)).count())),
    };
    done.map_err(|error| failure(&ClientError::from(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;
    use sanderling_store::{Absent, Block, Init, Optimizer, Pooling, PushScale};
    use std::time::Duration;

    fn config() -> TableConfig {
        let optimizer = Optimizer::Sgd { lr: 0.5, l2: 0.0 };
        TableConfig::new("t", vec![Block { dims: 2, init: Init::Zero, optimizer }])
    }

    /// Everything that can be asked, in turn, and what comes of it.
    fn check(target: &Target, expected: &[Outcome]) {
        let mut port = target.port().unwrap();
        assert!(target.is_nowhere() || port.open("t").unwrap_err().kind == "unknown_table");
        let table = port.create(&config()).unwrap();
        assert_eq!(port.open("t").unwrap(), table);
        assert_eq!(port.shape(table), Some(&TableShape { name: "t".to_owned(), dim: 2 }));
        let keys = &[3, 4, 3][..];
        let (absent, scale) = (Absent::Zero, PushScale::default());
        let calls = [
            Call::Push { keys, grads: &[1.0; 6], scale },
            Call::Pull { keys: &[3, 4, 5], absent },
            Call::PullPooled { keys, offsets: &[0, 1, 3], pooling: Pooling::Sum, absent },
            Call::Delete { keys: &[4, 5] },
            Call::Pull { keys: &[3, 4, 5], absent },
        ];
        let until = Instant::now() + Duration::from_secs(60);
        for (slot, (call, expected)) in calls.iter().zip(expected).enumerate() {
            let mut finished = Vec::new();
            port.begin(slot, table, call);
            port.poll(Some(until), &mut finished);
            let found = &finished[0];
            assert_eq!((finished.len(), found.slot, found.keys), (1, slot, parts(call).1.len()));
            assert_eq!(found.outcome.as_ref(), Ok(expected), "{target:?}: {call:?}");
            assert!(found.done >= found.sent);
        }
        let bad = Call::Push { keys: &[9], grads: &[f32::NAN, 0.0], scale };
        let mut finished = Vec::new();
        port.begin(7, table, &bad);
        port.poll(None, &mut finished);
        if !target.is_nowhere() {
            assert_eq!(finished[0].outcome.as_ref().unwrap_err().kind, "bad_gradient");
        }
    }

    #[test]
    fn the_same_is_found_wherever_the_tables_are() {
        let outcome = |missing, bytes| Outcome { missing, bytes };
        let expected = [outcome(0, 48), outcome(1, 48), outcome(0, 52), outcome(1, 16), outcome(2, 48)];
        check(&Target::connect("embedded:", Default::default()).unwrap(), &expected);
        let config = sanderling_server::Config {
            listen: vec!["tcp://127.0.0.1:0".parse().unwrap()],
            ..Default::default()
        };
        let server = sanderling_server::Server::start(&config, |_| ()).unwrap();
        let address = server.addresses()[0].to_string();
        check(&Target::connect(&address, Default::default()).unwrap(), &expected);
        let nothing = expected.map(|outcome| Outcome { missing: 0, ..outcome });
        let asked = [48, 24, 36, 16, 24].map(|bytes| Outcome { bytes, ..nothing[0] });
        check(&Target::connect("nowhere:", Default::default()).unwrap(), &asked);
    }

    /// A server has so many requests of a connection at most: then there is no room, and there is some when one is answered.
    #[test]
    fn there_is_room_for_as_many_requests_as_a_server_takes() {
        let pause = std::sync::Arc::new(std::sync::Mutex::new(()));
        let listen = ["tcp://127.0.0.1:0".parse().unwrap()];
        let null =
            crate::null::NullServer::start_with_pause(&listen, 2, 0, std::sync::Arc::clone(&pause)).unwrap();
        let target = Target::connect(&null.addresses()[0].to_string(), Default::default()).unwrap();
        let mut port = target.port().unwrap();
        let table = port.create(&config()).unwrap();
        let held = pause.lock().unwrap();
        for slot in 0..sanderling_client::IN_FLIGHT_MAX {
            assert!(port.has_room(), "{slot}");
            port.begin(slot, table, &Call::Pull { keys: &[1], absent: Absent::Zero });
        }
        assert!(!port.has_room());
        drop(held);
        let mut finished = Vec::new();
        port.poll(Some(Instant::now() + Duration::from_secs(60)), &mut finished);
        assert!(!finished.is_empty() && port.has_room());
    }
}
