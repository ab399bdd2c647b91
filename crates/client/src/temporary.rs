//! Temporary tables: made for one run, in no checkpoint, dropped at its end. Does not know their use.

use std::sync::Arc;
use std::time::Duration;

use sanderling_store::TableConfig;
use sanderling_wire::{Fault, Features, Ping, Request};

use crate::cluster::Cluster;
use crate::error::ClientError;
use crate::remote::RemoteTable;

impl RemoteTable {
    /// Makes a temporary table, which no checkpoint contains, or opens an existing one.
    ///
    /// The existing one must have the same configuration; it may be temporary or not.
    ///
    /// # Errors
    /// As [`RemoteTable::create`]; [`ClientError::Cluster`] if a server is too old for temporary tables: nothing is made then.
    pub fn create_temporary(
        cluster: &Arc<Cluster>,
        config: &TableConfig,
    ) -> Result<RemoteTable, ClientError> {
        cluster.with_session(|session| {
            session.follow_placement();
            for at in session.engine.with_rows() {
                session.ask(at, "", &Request::Ping(Ping { reply_bytes: 0, bytes: &[] }), |_| Some(()))?;
                if !session.engine.connections.can(at, Features::TEMPORARY) {
                    let address = &session.engine.addresses()[at];
                    let reason = format!("{address} is too old for temporary tables; update it");
                    return Err(ClientError::Cluster { reason });
                }
            }
            Ok(())
        })?;
        RemoteTable::create_as(cluster, config, true)
    }
}

impl Cluster {
    /// Drops a table on all servers that answer in time; was it there?
    ///
    /// It also works after the process was told to stop. Of several errors the first is returned.
    pub fn drop_where_reached(&self, name: &str, within: Duration) -> Result<bool, ClientError> {
        let mut engine = self.patient_engine(within)?;
        engine.connections.bear_silence();
        let (mut was_there, mut failed) = (false, Ok(()));
        for answer in engine.ask_all(&Request::Drop(name), |_| Some(())) {
            match answer {
                Ok(()) => was_there = true,
                Err(ClientError::Refused { fault: Fault::UnknownTable, .. }) => {}
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed.map(|()| was_there)
    }
}
