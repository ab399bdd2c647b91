//! Saving and restoring what all servers of a cluster hold, under a name that they know. Knows no file.

use std::time::Duration;

use sanderling_wire::{Reply, Request, Restore, Save};

use crate::cluster::Cluster;
use crate::error::ClientError;
use crate::exchange::CallError;

/// What the servers of a cluster saved or restored, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckpointSize {
    /// Rows.
    pub rows: u64,
    /// Tables, those of each server counted; 0 of what was saved.
    pub tables: u64,
    /// Bytes; 0 of what was restored.
    pub bytes: u64,
}

impl Cluster {
    /// Has every server save all its tables under this name, all at once, each as of its own moment. When one fails, others
    /// may have saved theirs; what they had saved before is intact.
    pub fn save(&self, name: &str, timeout: Duration) -> Result<CheckpointSize, ClientError> {
        self.ask_all(&Request::Save(Save { name }), timeout, |reply| match reply {
            Reply::Save(saved) => Some(CheckpointSize { rows: saved.rows, tables: 0, bytes: saved.bytes }),
            _ => None,
        })
    }

    /// Has every server restore all its tables from what it saved under this name. Tables must be opened again.
    pub fn restore(&self, name: &str, timeout: Duration) -> Result<CheckpointSize, ClientError> {
        self.ask_all(&Request::Restore(Restore { name }), timeout, |reply| match reply {
            Reply::Restore(found) => {
                Some(CheckpointSize { rows: found.rows, tables: found.tables, bytes: 0 })
            }
            _ => None,
        })
    }

    /// Asks all servers at once and adds up what they answer.
    fn ask_all(
        &self,
        request: &Request<'_>,
        timeout: Duration,
        read: impl Fn(Reply<'_>) -> Option<CheckpointSize>,
    ) -> Result<CheckpointSize, ClientError> {
        let mut links = self.patient_links(timeout)?;
        let names = links.names();
        let (mut sum, mut failed) = (CheckpointSize::default(), None);
        let mut sink = |server: usize, _: u64, result: Result<Reply<'_>, CallError>| {
            let found = match result {
                Ok(reply) => read(reply).ok_or_else(|| names.misfit(server, "")),
                Err(error) => Err(names.error(server, "", error)),
            };
            match found {
                Ok(CheckpointSize { rows, tables, bytes }) => {
                    (sum.rows, sum.tables, sum.bytes) =
                        (sum.rows + rows, sum.tables + tables, sum.bytes + bytes);
                }
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        };
        let mut begun = Ok(());
        for server in 0..links.len() {
            begun = begun.and(links.begin(server, 0, None, request, &mut sink));
        }
        links.settle(&mut sink);
        begun.map_err(|source| ClientError::Request { table: String::new(), source })?;
        failed.map_or(Ok(sum), Err)
    }
}
