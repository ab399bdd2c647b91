//! The state that all sessions of a server share. It knows no socket and no thread.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use sanderling_replica::push_dedup::PushDedup;
use sanderling_store::LogEnd;
use sanderling_sync::GroupRegistry;
use sanderling_transport::ReceiveBudget;
use sanderling_wire::{Agreed, Fault, Home, Identity, Restored, Saved as SavedSize, StatsScope};

use crate::batches::Batches;
use crate::checkpoints::{Checkpoints, LATEST, LogUse, SaveMode, SaveReport, Saved, TrainedKeys};
use crate::clock::unix_ms;
use crate::connections::Connections;
use crate::delta_log::DeltaLog;
use crate::descriptors;
use crate::gather::Cards;
use crate::history::History;
use crate::limit::{IN_FLIGHT_MAX, RECEIVE_BYTES_MAX};
use crate::logins::{Logins, Plane};
use crate::placement::{Placement, Slots};
use crate::refusal::Refusal;
use crate::replication::{self, Replication};
use crate::row_samples::RowSamples;
use crate::statistics::{CommandLatency, Statistics};
use crate::tables::{Entry, Tables};
use crate::traces::Traces;
use crate::{Config, LatencySummary};

/// The shared state of one server.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) tables: Tables,
    pub(crate) placement: Placement,
    pub(crate) push_dedup: Arc<PushDedup>,
    pub(crate) batches: Batches,
    pub(crate) steps: GroupRegistry<Refusal>,
    pub(crate) checkpoints: Option<Checkpoints>,
    /// The other replicas, if there are any.
    pub(crate) replication: Option<Arc<Replication>>,
    /// The changes since the last checkpoint, if they are logged.
    pub(crate) log: Option<DeltaLog>,
    pub(crate) connections: Connections,
    /// The cards that gather rows.
    pub(crate) cards: Cards,
    /// Memory for the long frames of all connections.
    pub(crate) receiving: ReceiveBudget,
    pub(crate) statistics: Statistics,
    pub(crate) traces: Traces,
    pub(crate) row_samples: RowSamples,
    pub(crate) started: Instant,
    pub(crate) token: Option<String>,
    /// Whether processes of this user need no token.
    pub(crate) admit_this_user: bool,
    pub(crate) logins: Logins,
    pub(crate) frame_bytes_max: u32,
    name: String,
    boot_id: u64,
    host_id: u64,
    /// Set when the listeners exist.
    pub(crate) local_url: OnceLock<String>,
    draining: AtomicBool,
    saves: AtomicU64,
    saves_failed: AtomicU64,
    restores: AtomicU64,
    /// 0: no save since the start.
    last_saved_unix_ms: AtomicU64,
    /// Why the last save failed. Empty: it succeeded.
    save_failure: Mutex<String>,
    /// Makes every worker refresh its list of tables. Set when the workers exist.
    pub(crate) wake_workers: OnceLock<WakeWorkers>,
}

/// A callback that wakes all workers.
pub(crate) struct WakeWorkers(pub(crate) Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for WakeWorkers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("WakeWorkers")
    }
}

impl State {
    /// The state of a server without tables.
    pub(crate) fn new(config: &Config) -> State {
        let (shard, shards) = (config.shard, config.shards);
        let mut urls = config.peers.clone();
        urls.resize(shards.into(), String::new());
        State {
            tables: Tables::new(config.table_budget_bytes)
                .kept_in(config.kept_folder(), config.durability)
                .gathered_by(config.gather.clone())
                .of(History::open(config.history_file(), config.holds_all(), config.memory_of())),
            placement: Placement::new(shard, shards, urls),
            push_dedup: Arc::default(),
            batches: Batches::default(),
            steps: GroupRegistry::default(),
            checkpoints: config.data.clone().map(|root| {
                Checkpoints::new(root, shard, shards, config.checkpoints_max).shared(config.replica.is_some())
            }),
            replication: None,
            log: config.log_folder().map(|folder| DeltaLog::new(folder, config.lose)),
            connections: Connections::new(descriptors::places()),
            cards: Cards::default(),
            receiving: ReceiveBudget::new(RECEIVE_BYTES_MAX),
            statistics: Statistics::default(),
            traces: Traces::new(config.sample_every, config.slow, config.spans.clone()),
            row_samples: RowSamples::default(),
            started: Instant::now(),
            token: config.token.clone(),
            admit_this_user: config.admit_this_user,
            logins: Logins::default(),
            frame_bytes_max: config.frame_bytes_max,
            name: config.name.clone(),
            boot_id: sanderling_observe::unique(),
            host_id: sanderling_observe::machine::host_id(),
            local_url: OnceLock::new(),
            draining: AtomicBool::new(false),
            saves: AtomicU64::new(0),
            saves_failed: AtomicU64::new(0),
            restores: AtomicU64::new(0),
            last_saved_unix_ms: AtomicU64::new(0),
            save_failure: Mutex::default(),
            wake_workers: OnceLock::new(),
        }
    }

    pub(crate) fn identity(&self, agreed: Agreed) -> Identity<'_> {
        Identity {
            agreed,
            in_flight_max: IN_FLIGHT_MAX,
            shard: self.placement.shard.into(),
            shards: self.placement.shards.into(),
            server_id: self.placement.shard.into(),
            boot_id: self.boot_id,
            history_id: match &self.replication {
                Some(replication) => replication.history(),
                None => self.tables.history.id(),
            },
            host_id: self.host_id,
            placement_version: self.placement.version(),
            name: &self.name,
            local_url: self.local_url.get().map_or("", String::as_str),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The number that this process has drawn at its start.
    pub(crate) fn boot_id(&self) -> u64 {
        self.boot_id
    }

    /// Whether this server saves its tables: of several replicas, the primary does.
    pub(crate) fn is_saving(&self) -> bool {
        let is_moving = self.tables.directory().slots.as_ref().is_some_and(|slots| slots.is_moving());
        !is_moving && self.replication.as_ref().is_none_or(|replication| replication.status().is_primary)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn create(&self, name: &str, home: Home, config: &str) -> Result<Arc<Entry>, Refusal> {
        self.placement.check_home(name, home)?;
        self.tables.create(name, home, config)
    }

    /// Refuses keys that are not on this server: by the slots of its group, if they may move.
    pub(crate) fn check_keys(&self, slots: Option<&Slots>, home: Home, keys: &[u64]) -> Result<(), Refusal> {
        match slots {
            Some(slots) => slots.check_keys(home, keys),
            None => self.placement.check_keys(home, keys),
        }
    }

    pub(crate) fn checkpoints(&self) -> Result<&Checkpoints, Refusal> {
        let none = "this server has no folder for checkpoints; start it with --data";
        self.checkpoints.as_ref().ok_or_else(|| Refusal::new(Fault::UnknownCheckpoint, none))
    }

    /// Saves all tables. `number` identifies a save of several servers; 0 if there is none.
    pub(crate) fn save(&self, name: &str, number: u64, mode: SaveMode) -> Result<SaveReport, Refusal> {
        self.save_as(name, number, mode, false)
    }

    /// Sampled keys of the tables that are saved, those of the training before the start included.
    fn keys_so_far(&self, checkpoints: &Checkpoints, tables: &[Arc<Entry>]) -> TrainedKeys {
        let (mut keys, since) = (checkpoints.trained(), self.traces.key_shares());
        keys.retain(|name| tables.iter().any(|entry| !entry.temporary && entry.table.name() == name));
        for entry in tables.iter().filter(|entry| !entry.temporary) {
            let since = since.get(&entry.number);
            since.into_iter().for_each(|since| keys.add(entry.table.name(), since.all()));
        }
        keys
    }

    /// Saves all tables at the end of the server, when no changes follow.
    pub(crate) fn save_last(&self, name: &str, mode: SaveMode) -> Result<SaveReport, Refusal> {
        self.save_as(name, 0, mode, true)
    }

    fn save_as(&self, name: &str, number: u64, mode: SaveMode, is_last: bool) -> Result<SaveReport, Refusal> {
        let directory = self.tables.directory();
        if directory.slots.as_ref().is_some_and(|slots| slots.part().is_none()) {
            if let Some(pinned) = directory.lasting().find(|entry| entry.home != Home::Sharded) {
                let name = pinned.table.name();
                let reason = format!(
                    "table {name:?} is pinned to this group, which has no slots, so a save would be without it: run sanderling \
                     ctl groups drain again"
                );
                return Err(Refusal::bad(reason));
            }
            // The group has no slots, and so no rows.
            let saved = SavedSize { generation: 0, rows: 0, bytes: 0 };
            return Ok(SaveReport { saved, deltas: 0, full_because: String::new() });
        }
        let checkpoints = self.checkpoints()?;
        let keys = &self.keys_so_far(checkpoints, &directory.entries);
        let what = Saved { name, number, mode, keys, is_last };
        let saved = checkpoints.save(&self.tables, &self.push_dedup, &what, self.log.as_ref());
        let failure = match &saved {
            Ok(_) => {
                self.saves.fetch_add(1, Ordering::Relaxed);
                self.last_saved_unix_ms.store(unix_ms(), Ordering::Relaxed);
                String::new()
            }
            // A bad name in a request says nothing about other saves.
            Err(refusal) if refusal.fault == Fault::BadRequest => return saved,
            Err(refusal) => {
                self.saves_failed.fetch_add(1, Ordering::Relaxed);
                refusal.reason.clone()
            }
        };
        *self.save_failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        saved
    }

    /// The save number of a checkpoint; 0 if it has none.
    pub(crate) fn saved(&self, name: &str) -> Result<u64, Refusal> {
        self.checkpoints()?.saved(name)
    }

    /// Why the last save failed. Empty: it succeeded, or there was none.
    pub(crate) fn save_failure(&self) -> String {
        self.save_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn restore(&self, name: &str) -> Result<Restored, Refusal> {
        if let Some(replication) = &self.replication {
            let restored = replication::restore(self, replication, name)?;
            self.restores.fetch_add(1, Ordering::Relaxed);
            return Ok(restored);
        }
        if let Some(folder) = self.tables.kept()
            && self.tables.directory().entries.iter().any(|entry| entry.table.kept_in().is_some())
        {
            let reason = format!(
                "tables of {} are in use: restart the server with --forget --restore {name} to replace them",
                folder.display()
            );
            return Err(Refusal::bad(reason));
        }
        let history = &self.tables.history;
        let former = history.replace()?;
        if let Some(log) = &self.log {
            log.lose_base();
        }
        let checkpoints = self.checkpoints();
        let result = checkpoints
            .and_then(|all| all.restore(&self.tables, &self.push_dedup, name, LogUse::Without))
            .map(|(restored, _)| restored);
        if result.is_err() {
            history.take_back(former);
        }
        if self.log.is_none() {
            // Without the note the next server begins another history, which clients bear. A log notes it with its next
            // checkpoint.
            let _ = history.settle();
        }
        let restored = result?;
        self.restores.fetch_add(1, Ordering::Relaxed);
        self.refresh_workers();
        Ok(restored)
    }

    /// Restores the checkpoint that a server saves automatically, and the log after it; returns the log's end, too.
    pub(crate) fn restore_latest(
        &self,
        folder: Option<&Path>,
        cut: bool,
    ) -> Result<(Restored, Option<LogEnd>), Refusal> {
        let log = LogUse::Follow { folder, cut };
        let (restored, replayed) =
            self.checkpoints()?.restore(&self.tables, &self.push_dedup, LATEST, log)?;
        self.restores.fetch_add(1, Ordering::Relaxed);
        let Some((end, followed)) = replayed else { return Ok((restored, None)) };
        if let Some(log) = &self.log {
            log.go_on(&self.tables, &end, &followed)?;
        }
        Ok((restored, Some(end)))
    }

    pub(crate) fn drop_table(&self, name: &str) -> Result<(), Refusal> {
        self.tables.drop_named(name)?;
        self.refresh_workers();
        Ok(())
    }

    /// Wakes the workers, since a sleeping one would hold the memory of dropped tables.
    pub(crate) fn refresh_workers(&self) {
        if let Some(WakeWorkers(wake)) = self.wake_workers.get() {
            wake();
        }
    }

    /// Latencies for the wire: one name per command, or per peer and command.
    pub(crate) fn latencies(&self, scope: StatsScope) -> Vec<(String, LatencySummary)> {
        let name = |CommandLatency { peer, command, summary }| match peer {
            Some(peer) => (format!("{peer} {command}"), summary),
            None => (command.to_owned(), summary),
        };
        self.statistics.latencies(scope).into_iter().map(name).collect()
    }

    /// Sum of the tables' memory limits, and the number of tables without one.
    pub(crate) fn budgets(&self) -> (u64, u64) {
        self.tables.directory().entries.iter().fold((0, 0), |(bytes, unbounded), entry| {
            match entry.table.config().budget_bytes {
                Some(budget) => (budget.saturating_add(bytes), unbounded),
                None => (bytes, unbounded + 1),
            }
        })
    }

    /// All counters of the server.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let directory = self.tables.directory();
        let sum = |of: fn(&Entry) -> u64| directory.entries.iter().map(|entry| of(entry)).sum();
        let checkpoints = self.checkpoints.as_ref().map(Checkpoints::list).unwrap_or_default();
        let (budget_bytes, unbounded) = self.budgets();
        let (batches, batch_bytes) = self.batches.sizes();
        let (step_groups, step_bytes) = self.steps.sizes();
        let mut counters = vec![
            ("connections", self.connections.len() as u64),
            ("connections_max", self.connections.places() as u64),
            ("connections_accepted", self.connections.accepted()),
            ("logins_refused", self.logins.of(Plane::Data)),
            ("control_logins_refused", self.logins.of(Plane::Control)),
            ("tables", directory.entries.len() as u64),
            ("rows", sum(|entry| entry.table.len() as u64)),
            ("table_bytes", sum(|entry| entry.table.bytes())),
            ("table_budget_bytes", budget_bytes),
            ("tables_without_budget", unbounded),
            ("pushing_clients", self.push_dedup.client_count() as u64),
            ("fed_batches", batches as u64),
            ("fed_bytes", batch_bytes as u64),
            ("step_groups", step_groups as u64),
            ("step_bytes", step_bytes as u64),
            ("checkpoints", checkpoints.len() as u64),
            ("checkpoint_bytes", checkpoints.iter().map(|checkpoint| checkpoint.bytes).sum()),
            ("saves", self.saves.load(Ordering::Relaxed)),
            ("saves_failed", self.saves_failed.load(Ordering::Relaxed)),
            ("restores", self.restores.load(Ordering::Relaxed)),
            ("last_saved_unix_ms", self.last_saved_unix_ms.load(Ordering::Relaxed)),
            ("draining", u64::from(self.is_draining())),
        ];
        if let Some(replication) = &self.replication {
            let (group, moving) = (replication.status(), replication.progress());
            let slots = self.tables.directory().slots.as_ref().map(|slots| slots.record.version);
            counters.extend([
                ("group_server", group.server.into()),
                ("group_primary", group.is_primary.into()),
                ("group_epoch", group.epoch),
                ("group_in_sync", group.in_sync() as u64),
                ("group_backlog", group.backlog),
                ("group_waiting", group.waiting),
                ("group_placement", slots.unwrap_or(0)),
                ("group_moving", u64::from(moving.id != 0)),
                ("group_moved_rows", moving.rows),
                ("group_moving_rows", moving.rows_expected),
                ("group_move", moving.id),
            ]);
        }
        counters.extend(self.traces.spans().into_iter().flat_map(|spans| {
            let (exported, dropped) = spans.counts();
            [("spans_exported", exported), ("spans_dropped", dropped)]
        }));
        counters.extend(self.log.iter().flat_map(|log| log.counters(&self.tables)));
        counters
    }
}
