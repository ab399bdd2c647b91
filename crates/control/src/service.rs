//! The gRPC service: requests become calls of a [`Control`] on blocking threads, refusals become gRPC statuses.

use std::sync::Arc;
use std::time::Duration;

use sanderling_observe::Resident;
use sanderling_server::{
    CheckpointStatus, CommandLatency, ConnectionStatus, Control, Fault, Home, HotKeyList, Refusal, SaveMode,
    SaveReport, Saved, StatsScope, TableStatus,
};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::limit::{QUERIES_MAX, SLOW_MAX};
use crate::proto;
use crate::thread_pool::ThreadPool;

/// The system's error number for a full disk (ENOSPC).
const NO_SPACE: u32 = 28;

/// The service of one server. Copies share its limits.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    control: Control,
    work: ThreadPool,
    queries: Arc<Semaphore>,
    slow: Arc<Semaphore>,
}

impl Service {
    pub(crate) fn new(control: Control, work: ThreadPool) -> Service {
        let (queries, slow) = (Semaphore::new(QUERIES_MAX), Semaphore::new(SLOW_MAX));
        Service { control, work, queries: Arc::new(queries), slow: Arc::new(slow) }
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// Runs a quick call. It finishes even if the client goes away.
    pub(crate) async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Control) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let permit = Arc::clone(&self.queries).acquire_owned().await.map_err(|_| ending())?;
        self.run(permit, query).await
    }

    /// Runs a call that may take minutes.
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
            // The permit is returned even after a panic.
            let _permit = permit;
            work(&control)
        });
        done.await.ok_or_else(|| Status::internal("a bug, see the server's standard error: it panicked"))
    }

    /// Waits until no save or restore is under way, at most this long.
    pub(crate) async fn finish(&self, within: Duration) {
        // On a timeout the remaining calls are left alone.
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

/// Maps a refusal to a gRPC status with the same message.
pub(crate) fn refused(refusal: Refusal) -> Status {
    let reason = refusal.reason;
    match refusal.fault {
        Fault::BadRequest | Fault::BadConfig | Fault::DimensionMismatch { .. } => {
            Status::invalid_argument(reason)
        }
        Fault::UnknownTable | Fault::UnknownCheckpoint => Status::not_found(reason),
        Fault::TableExists => Status::already_exists(reason),
        Fault::NotHere { .. } | Fault::NotPrimary { .. } => Status::failed_precondition(reason),
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

/// The status message of a server.
pub(crate) fn status(control: &Control) -> proto::StatusReply {
    let status = control.status();
    let mut counters: std::collections::BTreeMap<String, u64> =
        status.counters.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    // A field of its own has this value.
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
        gather: status.gather.by.to_owned(),
        gather_because: status.gather.because,
        cpu_ns_per_row: status.gather.cpu_ns_per_row,
        nic_ns_per_row: status.gather.nic_ns_per_row,
        nic_pulls: status.gather.nic_pulls,
    }
}

fn checkpoint(CheckpointStatus { name, bytes, saved_unix_ms }: CheckpointStatus) -> proto::Checkpoint {
    proto::Checkpoint { name, bytes, saved_unix_ms }
}

fn connection(status: ConnectionStatus) -> proto::Connection {
    let ConnectionStatus { id, peer, client, age, requests, .. } = status;
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
        self.query(status).await.map(Response::new)
    }

    async fn tables(&self, _: Request<proto::TablesRequest>) -> Answer<proto::TablesReply> {
        let tables = self.query(|control| control.tables().into_iter().map(table).collect()).await?;
        Ok(Response::new(proto::TablesReply { tables }))
    }

    async fn connections(&self, _: Request<proto::ConnectionsRequest>) -> Answer<proto::ConnectionsReply> {
        let list = |control: &Control| control.connections().into_iter().map(connection).collect();
        let connections = self.query(list).await?;
        Ok(Response::new(proto::ConnectionsReply { connections }))
    }

    async fn stats(&self, request: Request<proto::StatsRequest>) -> Answer<proto::StatsReply> {
        let scope = if request.into_inner().by_peer { StatsScope::Peers } else { StatsScope::Commands };
        let stats = move |control: &Control| proto::StatsReply {
            uptime_ms: ms(control.status().uptime),
            latencies: control.stats(scope).into_iter().map(latency).collect(),
        };
        self.query(stats).await.map(Response::new)
    }

    async fn hot(&self, _: Request<proto::HotRequest>) -> Answer<proto::HotReply> {
        self.query(hot).await.map(Response::new)
    }

    async fn create(&self, request: Request<proto::CreateRequest>) -> Answer<proto::CreateReply> {
        let proto::CreateRequest { name, pinned, config } = request.into_inner();
        let home = pinned.map_or(Home::Sharded, Home::Pinned);
        let number =
            self.query(move |control| control.create(&name, home, &config)).await?.map_err(refused)?;
        Ok(Response::new(proto::CreateReply { number }))
    }

    async fn save(&self, request: Request<proto::SaveRequest>) -> Answer<proto::SaveReply> {
        self.check_folder()?;
        let proto::SaveRequest { name, number, delta } = request.into_inner();
        let mode = if delta { SaveMode::Delta } else { SaveMode::Full };
        let report = self.slow(move |control| control.save(&name, number, mode)).await?.map_err(refused)?;
        let SaveReport { saved: Saved { generation, rows, bytes }, deltas, full_because } = report;
        Ok(Response::new(proto::SaveReply { generation, rows, bytes, deltas, full_because }))
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
        let checkpoints = self.query(list).await?;
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
        self.query(move |control| control.drop_table(&name)).await?.map_err(refused)?;
        Ok(Response::new(proto::DropReply {}))
    }

    async fn drain(&self, _: Request<proto::DrainRequest>) -> Answer<proto::DrainReply> {
        let connections = self.control.connections().len() as u64;
        self.control.drain();
        Ok(Response::new(proto::DrainReply { connections }))
    }

    async fn hand_over(&self, _: Request<proto::HandOverRequest>) -> Answer<proto::HandOverReply> {
        let start = std::time::Instant::now();
        let group = self.slow(Control::hand_over_and_wait).await?.map_err(Status::failed_precondition)?;
        Ok(Response::new(proto::HandOverReply {
            epoch: group.epoch,
            primary: group.primary_url().unwrap_or_default().to_owned(),
            took_ms: ms(start.elapsed()),
        }))
    }
}

/// The hot keys with the names of their tables, without keys of dropped tables.
fn hot(control: &Control) -> proto::HotReply {
    let HotKeyList { keys, error, total } = control.hot_keys();
    let tables = control.quick_tables();
    let named = |(number, key, count): (u32, u64, u64)| {
        let table = tables.iter().find(|table| table.number == number)?;
        Some(proto::HotKey { table: table.name.clone(), key, count })
    };
    proto::HotReply { keys: keys.into_iter().filter_map(named).collect(), error, total }
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
