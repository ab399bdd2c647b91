//! A minibatch that is handed out, as the message that it becomes in the transport's memory. Knows no connection.

use std::sync::Arc;

use sanderling_wire::{Ahead, NextReply, Outcome, Reply};

use super::desk::{Fed, Minibatch};

/// See the top of this file. `late` are those that the trainer acknowledged too late, by their numbers.
#[derive(Debug)]
pub(crate) enum Handed {
    /// The next one.
    Batch { late: Vec<u64>, number: u64, batch: Arc<Minibatch> },
    /// The same, of which keys were fed so long ago: what is left of it.
    Fed { late: Vec<u64>, number: u64, batch: Arc<Minibatch>, fed: Arc<Fed>, age_us: u64, payload: Vec<u8> },
    /// One that the trainer has, with all its keys.
    Whole { number: u64, batch: Arc<Minibatch> },
}

impl Handed {
    pub(crate) fn reply(&self) -> Reply<'_> {
        let whole = |number: u64, batch: &'_ Arc<Minibatch>| (batch.pass, number, batch.rows);
        match self {
            Handed::Batch { late, number, batch } => {
                let (pass, number, rows) = whole(*number, batch);
                Reply::Next(NextReply {
                    late,
                    outcome: Outcome::Batch { pass, number, rows, payload: &batch.payload },
                })
            }
            Handed::Whole { number, batch } => {
                let (pass, number, rows) = whole(*number, batch);
                Reply::Keys(Outcome::Batch { pass, number, rows, payload: &batch.payload })
            }
            Handed::Fed { late, number, batch, fed, age_us, payload } => {
                let (pass, number, rows) = whole(*number, batch);
                let Fed { batch, columns, servers, keys, .. } = &**fed;
                let ahead = Ahead { batch: *batch, age_us: *age_us, columns, servers: *servers, keys };
                Reply::Next(NextReply { late, outcome: Outcome::Fed { pass, number, rows, payload, ahead } })
            }
        }
    }
}
