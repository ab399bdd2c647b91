//! The thread of a server of a cluster that tells the load of its group in the registry. That of the first group also
//! decides whether slots should move.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use sanderling_registry::{
    Advice, Balancer, ClusterConfig, ClusterView, Edit, GroupLoad, LoadWindow, Outcome, Placement, Registry,
    RegistryError, begin_moves, layout, load_name, loads,
};
use sanderling_server::Control;

/// Records of a load, in the time for which it has to last, and bounds of their interval.
const RECORDS: u32 = 6;
const EVERY_MIN: Duration = Duration::from_secs(1);
const EVERY_MAX: Duration = Duration::from_secs(10);
/// A load that did not change for so many intervals, and a half, is not known any more.
const FRESH_RECORDS: u32 = 3;
/// Time for one question to the registry.
const WITHIN: Duration = Duration::from_secs(2);

/// Whether slots move by measured load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Rebalance {
    /// Nothing is measured
    Off,
    /// The log says when slots should move
    #[default]
    Plan,
    /// They move by themselves
    On,
}

/// The running thread; its end when this is dropped.
pub(super) struct Balance {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Balance {
    /// Starts the thread. None: nothing is to be measured.
    pub(super) fn start(
        registry: Arc<dyn Registry>,
        group: u32,
        control: Control,
        rebalance: Rebalance,
        after: Duration,
    ) -> io::Result<Option<Balance>> {
        if rebalance == Rebalance::Off {
            return Ok(None);
        }
        let (stop, stopped) = channel();
        let load = GroupLoads { registry, group, window: LoadWindow::default(), revision: 0 };
        let every = (after / RECORDS).clamp(EVERY_MIN, EVERY_MAX);
        let (balancer, seen) = (Balancer::after(after.as_secs()), BTreeMap::new());
        let decision = Decision { rebalance, after, every, balancer, seen, is_told: false };
        let run = move || run(load, decision, &control, &stopped);
        let thread = std::thread::Builder::new().name("balance".to_owned()).spawn(run)?;
        Ok(Some(Balance { stop: Some(stop), thread: Some(thread) }))
    }
}

impl Drop for Balance {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

fn run(mut load: GroupLoads, mut decision: Decision, control: &Control, stopped: &Receiver<()>) {
    let start = Instant::now();
    while matches!(stopped.recv_timeout(decision.every), Err(RecvTimeoutError::Timeout)) {
        if !control.group().is_some_and(|group| group.is_primary) {
            load.window = LoadWindow::default();
            decision.balancer = Balancer::after(decision.after.as_secs());
            continue;
        }
        // The registry may be away for a while: then nothing is told, and nothing moves.
        if load.tell(start.elapsed(), control).is_ok() {
            let _ = decision.make(&*load.registry, load.group, start.elapsed());
        }
    }
}

/// Tells the load of this server's group.
struct GroupLoads {
    registry: Arc<dyn Registry>,
    group: u32,
    window: LoadWindow,
    /// The revision of the record.
    revision: u64,
}

impl GroupLoads {
    fn tell(&mut self, at: Duration, control: &Control) -> Result<(), RegistryError> {
        let measured = self.window.add(at.as_millis() as u64, control.slot_work());
        let (keys_per_s, heavy) = measured.unwrap_or_default();
        let tables = control.quick_tables();
        let rows = tables.iter().filter(|table| table.pinned.is_none()).map(|table| table.stats.rows).sum();
        let status = control.status();
        let counter =
            |name: &str| status.counters.iter().find(|(of, _)| *of == name).map_or(0, |(_, value)| *value);
        let has_limit = counter("tables_without_budget") == 0;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let load = GroupLoad {
            keys_per_s,
            heavy,
            rows,
            table_bytes: counter("table_bytes"),
            table_budget_bytes: if has_limit { counter("table_budget_bytes") } else { 0 },
            unix_ms: now.as_millis() as u64,
        };
        let name = load_name(self.group);
        let value = serde_json::to_value(&load).map_err(|error| RegistryError::Invalid(error.to_string()))?;
        // A former primary may have written it meanwhile.
        for _ in 0..2 {
            let put = Edit::put(value.clone());
            match self.registry.compare_and_set(&name, self.revision, put, WITHIN)? {
                Outcome::Done(revision) => {
                    self.revision = revision;
                    break;
                }
                Outcome::Other(found) => self.revision = found.map_or(0, |record| record.revision),
            }
        }
        Ok(())
    }
}

/// Decides for the cluster.
struct Decision {
    rebalance: Rebalance,
    /// The time for which a load has to last, and the interval of the records.
    after: Duration,
    every: Duration,
    balancer: Balancer,
    /// When a record was measured, and when it was seen first.
    seen: BTreeMap<u32, (u64, Duration)>,
    /// It was said that slots should move.
    is_told: bool,
}

impl Decision {
    fn make(&mut self, registry: &dyn Registry, group: u32, at: Duration) -> Result<(), RegistryError> {
        let (config, placement): (ClusterConfig, Placement) = layout(registry)?;
        let active: Vec<u32> = config.active().collect();
        if active.first() != Some(&group) {
            (self.balancer, self.is_told) = (Balancer::after(self.after.as_secs()), false);
            return Ok(());
        }
        let listing = registry.list("", WITHIN)?;
        let Some(view) = ClusterView::of(&registry.url(), &listing)? else { return Ok(()) };
        let in_sync = |group: &u32| {
            let of_group = view.servers.iter().filter(|server| server.group == *group);
            of_group.filter(|server| matches!(server.role, "primary" | "in sync")).count()
        };
        let ready: Vec<u32> =
            active.iter().copied().filter(|group| in_sync(group) == config.replicas as usize).collect();
        let mut loads = loads(&registry.url(), &listing)?;
        for (&group, load) in &loads {
            match self.seen.get(&group) {
                Some((measured, _)) if *measured == load.unix_ms => {}
                _ => _ = self.seen.insert(group, (load.unix_ms, at)),
            }
        }
        let fresh_within = self.every * FRESH_RECORDS + self.every / 2;
        loads.retain(|group, _| self.seen.get(group).is_some_and(|(_, since)| at - *since < fresh_within));
        let Some(advice) = self.balancer.step(at.as_secs(), &placement, &active, &ready, &loads) else {
            return Ok(());
        };
        let Advice { moves, most: (most, share), after } = &advice;
        let slots: usize = moves.iter().map(|one| one.slots.len()).sum();
        let percent = |share: f64| (share * 100.0).round();
        let text = format!(
            "group {most} has {} % of the load or of the rows, and an equal share is {} %: with {slots} slots in other groups, \
             the greatest share is {} %",
            percent(*share),
            percent(1.0 / active.len() as f64),
            percent(*after)
        );
        if self.rebalance == Rebalance::On {
            begin_moves(registry, moves)?;
            note_line!("{text}; they move now");
        } else if !self.is_told {
            note_line!("{text}; they move by sanderling ctl rebalance --registry {}", registry.url());
            self.is_told = true;
        }
        Ok(())
    }
}
