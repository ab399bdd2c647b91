//! A leased minibatch as the message that is encoded into the transport's memory. Knows no connection.

use std::sync::Arc;

use sanderling_wire::{Ahead, NextReply, Outcome, Reply};

use super::leases::{Fed, Minibatch};

/// A leased minibatch to be encoded. `late` are the numbers of acknowledgements that came too late.
#[derive(Debug)]
pub(crate) enum BatchReply {
    /// The next minibatch.
    Batch { late: Vec<u64>, number: u64, batch: Arc<Minibatch> },
    /// The next minibatch without the keys that were fed `age_us` ago.
    Fed { late: Vec<u64>, number: u64, batch: Arc<Minibatch>, fed: Arc<Fed>, age_us: u64, payload: Vec<u8> },
    /// A minibatch that the trainer holds, with all its keys.
    Whole { number: u64, batch: Arc<Minibatch> },
}

impl BatchReply {
    pub(crate) fn reply(&self) -> Reply<'_> {
        let whole = |number: u64, batch: &'_ Arc<Minibatch>| (batch.pass, number, batch.rows);
        match self {
            BatchReply::Batch { late, number, batch } => {
                let (pass, number, rows) = whole(*number, batch);
                Reply::Next(NextReply {
                    late,
                    outcome: Outcome::Batch { pass, number, rows, payload: &batch.payload },
                })
            }
            BatchReply::Whole { number, batch } => {
                let (pass, number, rows) = whole(*number, batch);
                Reply::Keys(Outcome::Batch { pass, number, rows, payload: &batch.payload })
            }
            BatchReply::Fed { late, number, batch, fed, age_us, payload } => {
                let (pass, number, rows) = whole(*number, batch);
                let Fed { batch, columns, placement_version, servers, keys, .. } = &**fed;
                let (batch, placement_version, servers) = (*batch, *placement_version, *servers);
                let ahead = Ahead { batch, age_us: *age_us, placement_version, columns, servers, keys };
                Reply::Next(NextReply { late, outcome: Outcome::Fed { pass, number, rows, payload, ahead } })
            }
        }
    }
}
