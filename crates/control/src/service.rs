//! The service: every request becomes a call of a [`Control`], on a thread that may block, and every refusal a status.
//! Knows no connection.

use std::sync::Arc;
use std::time::Duration;

use sanderling_observe::Resident;
use sanderling_server::{
    CheckpointStatus, CommandLatency, ConnectionStatus, Control, Fault, Home, Refusal, StatsScope,
    TableStatus,
};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::limit::{LOOKS_MAX, SLOW_MAX};
use crate::proto;
use crate::work::Work;

/// The operating system's number for a full disk.
const NO_SPACE: u32 = 28;

/// The service of one server; copies share its bounds.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    control: Control,
    work: Work,
    looks: Arc<Semaphore>,
    slow: Arc<Semaphore>,
}

impl Service {
    pub(crate) fn new(control: Control, work: Work) -> Service {
        let (looks, slow) = (Semaphore::new(LOOKS_MAX), Semaphore::new(SLOW_MAX));
        Service { control, work, looks: Arc::new(looks), slow: Arc::new(slow) }
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// Runs what takes a moment. Whoever asked may go; it is done nevertheless.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Control) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let permit = Arc::clone(&self.looks).acquire_owned().await.map_err(|_| ending())?;
        self.run(permit, look).await
    }

    /// Runs what may take minutes.
    async fn slow<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Control) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let permit = Arc::clone(&self.slow).try_acquire_owned().map_err(|_| {
            let reason = format!("{SLOW_MAX} saves and restores are under way; try again when one is done");
            Status::resource_exhausted(reason)
        })?;
        self.run(permit, work).await
    }

    async fn run<T: Send + 'static>(
        &self,
        permit: tokio::sync::OwnedSemaphorePermit,
        work: impl FnOnce(&Control) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let control = self.control.clone();
        let done = self.work.run(move || {
            // Also where it panics.
            let _permit = permit;
            work(&control)
        });
        done.await.ok_or_else(|| Status::internal("a bug, see the server's standard error: it panicked"))
    }

    /// Waits until no save or restore is under way, but not for longer than this.
    pub(crate) async fn finish(&self, within: Duration) {
        // Too late or not, what remains is left to itself.
        let _ = tokio::time::timeout(within, self.slow.acquire_many(SLOW_MAX as u32)).await;
    }

    fn check_folder(&self) -> Result<(), Status> {
        match self.control.status().saves {
            true => Ok(()),
            false => Err(Status::failed_precondition(
                "this server has no folder for checkpoints; start it with --data",
            )),
        }
    }
}

fn ending() -> Status {
    Status::unavailable("the server is about to stop")
}

/// Which code says what kind of refusal it is; the words are the server's.
pub(crate) fn refused(refusal: Refusal) -> Status {
    let reason = refusal.reason;
    match refusal.fault {
        Fault::BadRequest | Fault::BadConfig | Fault::DimensionMismatch { .. } => {
            Status::invalid_argument(reason)
        }
        Fault::UnknownTable | Fault::UnknownCheckpoint => Status::not_found(reason),
        Fault::TableExists => Status::already_exists(reason),
        Fault::NotHere { .. } => Status::failed_precondition(reason),
        Fault::Busy { .. } | Fault::TableFull { .. } | Fault::Io { os_error: NO_SPACE } => {
            Status::resource_exhausted(reason)
        }
        Fault::Unauthorized => Status::unauthenticated(reason),
        Fault::Draining => Status::unavailable(reason),
        Fault::DeadlineExceeded => Status::deadline_exceeded(reason),
        Fault::Damaged => Status::data_loss(reason),
        _ => Status::internal(reason),
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What the service says of the server.
pub(crate) fn status(control: &Control) -> proto::StatusReply {
    let status = control.status();
    let mut counters: std::collections::BTreeMap<String, u64> =
        status.counters.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    // It says so in a field of its own.
    counters.remove("draining");
    proto::StatusReply {
        name: status.name,
        serving: status.serving,
        shard: status.shard.into(),
        shards: status.shards.into(),
        uptime_ms: ms(status.uptime),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        addresses: status.addresses,
        saves: status.saves,
        last_saved_unix_ms: counters.remove("last_saved_unix_ms").unwrap_or_default(),
        save_failure: status.save_failure,
        resident_bytes: Resident::read().now_bytes,
        counters,
    }
}

pub(crate) fn table(status: TableStatus) -> proto::Table {
    let stats = status.stats;
    proto::Table {
        number: status.number,
        name: status.name,
        pinned: status.pinned,
        dim: status.dim,
        state: status.state,
        config: status.config,
        rows: stats.rows,
        free_rows: stats.free_rows,
        pushes: stats.pushes,
        index_bytes: stats.index_bytes,
        slab_bytes: stats.slab_bytes,
        huge_bytes: stats.huge_bytes,
        admitted: stats.admitted,
        rejected: stats.rejected,
        evicted: stats.evicted,
        rejected_full: stats.rejected_full,
        promoted: stats.promoted,
        age_ms: status.age.map(ms),
        temporary: status.temporary,
    }
}

fn checkpoint(CheckpointStatus { name, bytes, saved_unix_ms }: CheckpointStatus) -> proto::Checkpoint {
    proto::Checkpoint { name, bytes, saved_unix_ms }
}

fn connection(status: ConnectionStatus) -> proto::Connection {
    let ConnectionStatus { id, peer, client, age, requests } = status;
    proto::Connection { id, peer, client, age_ms: ms(age), requests }
}

pub(crate) fn latency(CommandLatency { peer, command, summary }: CommandLatency) -> proto::Latency {
    proto::Latency {
        peer: peer.unwrap_or_default(),
        command: command.to_owned(),
        count: summary.count,
        sum_ns: summary.sum_ns,
        average_ns: summary.average_ns,
        min_ns: summary.min_ns,
        max_ns: summary.max_ns,
        p50_ns: summary.p50_ns,
        p95_ns: summary.p95_ns,
        p99_ns: summary.p99_ns,
        p999_ns: summary.p999_ns,
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl proto::control_server::Control for Service {
    async fn status(&self, _: Request<proto::StatusRequest>) -> Answer<proto::StatusReply> {
        self.look(status).await.map(Response::new)
    }

    async fn tables(&self, _: Request<proto::TablesRequest>) -> Answer<proto::TablesReply> {
        let tables = self.look(|control| control.tables().into_iter().map(table).collect()).await?;
        Ok(Response::new(proto::TablesReply { tables }))
    }

    async fn connections(&self, _: Request<proto::ConnectionsRequest>) -> Answer<proto::ConnectionsReply> {
        let list = |control: &Control| control.connections().into_iter().map(connection).collect();
        let connections = self.look(list).await?;
        Ok(Response::new(proto::ConnectionsReply { connections }))
    }

    async fn stats(&self, request: Request<proto::StatsRequest>) -> Answer<proto::StatsReply> {
        let scope = if request.into_inner().by_peer { StatsScope::Peers } else { StatsScope::Commands };
        let stats = move |control: &Control| proto::StatsReply {
            uptime_ms: ms(control.status().uptime),
            latencies: control.stats(scope).into_iter().map(latency).collect(),
        };
        self.look(stats).await.map(Response::new)
    }

    async fn create(&self, request: Request<proto::CreateRequest>) -> Answer<proto::CreateReply> {
        let proto::CreateRequest { name, pinned, config } = request.into_inner();
        let home = pinned.map_or(Home::Sharded, Home::Pinned);
        let number =
            self.look(move |control| control.create(&name, home, &config)).await?.map_err(refused)?;
        Ok(Response::new(proto::CreateReply { number }))
    }

    async fn save(&self, request: Request<proto::SaveRequest>) -> Answer<proto::SaveReply> {
        self.check_folder()?;
        let proto::SaveRequest { name, number } = request.into_inner();
        let saved = self.slow(move |control| control.save(&name, number)).await?.map_err(refused)?;
        let (generation, rows, bytes) = (saved.generation, saved.rows, saved.bytes);
        Ok(Response::new(proto::SaveReply { generation, rows, bytes }))
    }

    async fn saved(&self, request: Request<proto::SavedRequest>) -> Answer<proto::SavedReply> {
        self.check_folder()?;
        let name = request.into_inner().name;
        let number = self.slow(move |control| control.saved(&name)).await?.map_err(refused)?;
        Ok(Response::new(proto::SavedReply { number }))
    }

    async fn checkpoints(&self, _: Request<proto::CheckpointsRequest>) -> Answer<proto::CheckpointsReply> {
        self.check_folder()?;
        let list = |control: &Control| control.checkpoints().into_iter().map(checkpoint).collect();
        let checkpoints = self.look(list).await?;
        Ok(Response::new(proto::CheckpointsReply { checkpoints }))
    }

    async fn restore(&self, request: Request<proto::RestoreRequest>) -> Answer<proto::RestoreReply> {
        self.check_folder()?;
        let name = request.into_inner().name;
        let restored = self.slow(move |control| control.restore(&name)).await?.map_err(refused)?;
        Ok(Response::new(proto::RestoreReply { tables: restored.tables, rows: restored.rows }))
    }

    async fn drop(&self, request: Request<proto::DropRequest>) -> Answer<proto::DropReply> {
        let name = request.into_inner().table;
        self.look(move |control| control.drop_table(&name)).await?.map_err(refused)?;
        Ok(Response::new(proto::DropReply {}))
    }

    async fn drain(&self, _: Request<proto::DrainRequest>) -> Answer<proto::DrainReply> {
        let connections = self.control.connections().len() as u64;
        self.control.drain();
        Ok(Response::new(proto::DrainReply { connections }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn a_refusal_keeps_its_words_and_says_its_kind() {
        for (fault, code) in [
            (Fault::UnknownTable, Code::NotFound),
            (Fault::UnknownCheckpoint, Code::NotFound),
            (Fault::BadRequest, Code::InvalidArgument),
            (Fault::TableExists, Code::AlreadyExists),
            (Fault::Io { os_error: NO_SPACE }, Code::ResourceExhausted),
            (Fault::Io { os_error: 5 }, Code::Internal),
            (Fault::Draining, Code::Unavailable),
            (Fault::Damaged, Code::DataLoss),
            (Fault::Busy { retry_after_us: 1 }, Code::ResourceExhausted),
        ] {
            let status = refused(Refusal { fault, reason: "table \"t\"".to_owned() });
            assert_eq!((status.code(), status.message()), (code, "table \"t\""), "{fault:?}");
        }
    }
}
