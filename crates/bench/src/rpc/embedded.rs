//! Pulls from a table in the client's own process. One at a time, since nothing is waited for.

use std::sync::Arc;
use std::time::Duration;

use sanderling_store::{Absent, Table};

use crate::result::BenchError;
use crate::rpc::batches::Batches;
use crate::rpc::call::{Call, Caller, Schedule, closed_at_once, open_at_once};
use crate::rpc::options::Transport;

/// Pulls into one buffer.
pub(crate) struct EmbeddedCaller {
    table: Arc<Table>,
    batches: Arc<Batches>,
    rows: Vec<f32>,
    next: usize,
}

impl EmbeddedCaller {
    pub(crate) fn new(table: Arc<Table>, batches: Arc<Batches>, batch: usize) -> EmbeddedCaller {
        let rows = vec![0.0; batch * table.dim()];
        EmbeddedCaller { table, batches, rows, next: 0 }
    }

    fn pull(&mut self, batch: usize) -> Result<(), BenchError> {
        let absent = self.table.pull(self.batches.keys(batch), Absent::Zero, &mut self.rows, None)?;
        if absent > 0 { Err(BenchError::Answer(Transport::InProcess)) } else { Ok(()) }
    }
}

impl Caller for EmbeddedCaller {
    fn rows(&mut self, batch: usize) -> Result<Vec<f32>, BenchError> {
        self.pull(batch)?;
        Ok(self.rows.clone())
    }

    fn closed(&mut self, _: usize, duration: Duration) -> Result<Vec<Call>, BenchError> {
        let first = self.next;
        let calls = closed_at_once(duration, |call| self.pull(first + call))?;
        self.next += calls.len();
        Ok(calls)
    }

    fn open(&mut self, per_s: f64, duration: Duration) -> Result<Vec<Call>, BenchError> {
        open_at_once(Schedule::new(per_s, duration), |call| self.pull(call))
    }
}
