//! `sanderling ps --cluster` as processes: primaries that are killed, stopped and told to end under pushes, and a training
//! that goes on. SANDERLING_KILLS sets the number of disturbances, and prints how long pushes waited.

mod anew;
mod pulls;
mod restores;
mod steps;
mod traces;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sanderling_client::{Cluster, ConnectOptions, RemoteTable};
use sanderling_registry::{GroupRecord, Registry, group_name};
use sanderling_store::{Absent, Init, Optimizer, PushScale, TableConfig};
use serde_json::json;

use crate::keeper::Keeper;
use crate::process::Process;

/// Time for what takes seconds. No test waits this long unless it fails.
pub(crate) const LONG: Duration = Duration::from_secs(60);
const DIM: usize = 4;
const KEYS: u64 = 64;

/// The servers of a cluster, by the address at which each is started again.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    pub(crate) keeper: Keeper,
    pub(crate) registry: Arc<dyn Registry>,
    groups: u32,
    /// Further options of each server.
    options: String,
    pub(crate) servers: Vec<(String, Option<Process>)>,
}

impl Place {
    pub(crate) fn new(groups: u32) -> Place {
        Place::with(groups, "")
    }

    pub(crate) fn with(groups: u32, options: &str) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let keeper = Keeper::start(folder.path(), "", "127.0.0.1:0");
        let registry = keeper.open();
        let mut place =
            Place { folder, keeper, registry, groups, options: options.to_owned(), servers: Vec::new() };
        for at in 0..2 * groups as usize {
            place.servers.push(("127.0.0.1:0".to_owned(), None));
            place.start(at);
        }
        (0..groups).for_each(|group| _ = place.settled(group, 0));
        place
    }

    pub(crate) fn start(&mut self, at: usize) {
        let (registry, groups) = (self.keeper.url(), self.groups);
        let (listen, slot) = &mut self.servers[at];
        let options =
            format!("--groups {groups} --replicas 2 --runtime-dir run --threads 1 --listen {listen}");
        let (registry, more) = (registry.strip_suffix("/ads").unwrap(), &self.options);
        let command = format!("ps --cluster ads --registry {registry} {options} {more} 2>>server-{at}.log");
        let process = Process::start_command(self.folder.path(), "", &command, 3);
        *listen = process.addresses[0].to_string();
        *slot = Some(process);
    }

    /// Kills a server.
    pub(crate) fn kill(&mut self, at: usize) {
        self.servers[at].1.as_ref().unwrap().signal("KILL");
        self.servers[at].1 = None;
    }

    /// Kills the primary of a group, starts it again, and waits until the group has another one.
    pub(crate) fn kill_primary(&mut self, group: u32) {
        let before = self.settled(group, 0);
        let at = self.at(&before, before.group.primary.server);
        self.kill(at);
        self.start(at);
        self.settled(group, before.group.epoch + 1);
    }

    /// Kills both servers of a group.
    pub(crate) fn kill_group(&mut self, group: u32) {
        let record = self.settled(group, 0);
        for server in [record.group.primary.server, record.group.in_sync[0].server] {
            self.kill(self.at(&record, server));
        }
    }

    fn record(&self, group: u32) -> Option<GroupRecord> {
        let record = self.registry.get(&group_name(group), LONG).unwrap()?;
        Some(serde_json::from_value(record.value).unwrap())
    }

    /// Waits until a group has a primary of at least this epoch and a follower in sync.
    pub(crate) fn settled(&self, group: u32, epoch: u64) -> GroupRecord {
        let start = Instant::now();
        loop {
            let record = self.record(group);
            if let Some(record) = record.as_ref().filter(|record| record.group.in_sync.len() == 1)
                && record.group.epoch >= epoch
            {
                return record.clone();
            }
            assert!(start.elapsed() < LONG, "group {group}: {record:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The process of a server of this group.
    pub(crate) fn at(&self, record: &GroupRecord, server: u32) -> usize {
        let address = &record.addresses[&server][0];
        self.servers.iter().position(|(listen, _)| listen == address).unwrap()
    }

    /// Kills the registry, and starts it again at its address.
    pub(crate) fn restart_keeper(&mut self) {
        let url = self.keeper.url();
        let listen = url.trim_start_matches("keeper://").trim_end_matches("/ads").to_owned();
        self.keeper.kill();
        self.keeper = Keeper::start(self.folder.path(), "", &listen);
    }

    pub(crate) fn connect(&self) -> Arc<Cluster> {
        Cluster::of(&self.keeper.url(), ConnectOptions::default()).unwrap()
    }
}

/// What clients have pushed, and how long they waited.
#[derive(Default)]
pub(crate) struct Pushed {
    is_over: AtomicBool,
    counts: Vec<AtomicU32>,
    acknowledged: AtomicU64,
    last_us: AtomicU64,
    pub(crate) gap_us: AtomicU64,
}

impl Pushed {
    fn acknowledge(&self, start: Instant, keys: &[u64]) {
        keys.iter().for_each(|&key| _ = self.counts[key as usize].fetch_add(1, Ordering::Relaxed));
        let now_us = start.elapsed().as_micros() as u64;
        let gap_us = now_us - self.last_us.swap(now_us, Ordering::Relaxed).min(now_us);
        self.gap_us.fetch_max(gap_us, Ordering::Relaxed);
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until so many more pushes are acknowledged.
    pub(crate) fn wait(&self, more: u64) {
        let (start, until) = (Instant::now(), self.acknowledged.load(Ordering::Relaxed) + more);
        while self.acknowledged.load(Ordering::Relaxed) < until {
            assert!(start.elapsed() < LONG, "no push is acknowledged");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Sets a flag at its end.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Clients count keys while `disturb` ends and starts servers; then each key has its count.
pub(crate) fn drill(place: &mut Place, disturb: impl FnOnce(&mut Place, &Pushed)) {
    let url = place.keeper.url();
    drill_at(&url, |pushed| disturb(place, pushed));
}

/// Clients count keys on the servers of the cluster at this URL, as [`drill`] says.
pub(crate) fn drill_at(url: &str, disturb: impl FnOnce(&Pushed)) {
    drill_with(url, |cluster, config| RemoteTable::create(cluster, config).unwrap(), disturb);
}

/// [`drill_at`] with a table that is made otherwise.
pub(crate) fn drill_with(
    url: &str,
    create: impl FnOnce(&Arc<Cluster>, &TableConfig) -> RemoteTable,
    disturb: impl FnOnce(&Pushed),
) {
    let connect = || Cluster::of(url, ConnectOptions::default()).unwrap();
    let sgd = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
    let config = TableConfig::single("counters", DIM, Init::Zero, sgd);
    let cluster = connect();
    let table = create(&cluster, &config);
    let counts = (0..KEYS).map(|_| AtomicU32::new(0)).collect();
    let pushed = Pushed { counts, ..Pushed::default() };
    let start = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..2_u64 {
            let (pushed, table) = (&pushed, &table);
            scope.spawn(move || {
                let mut round = 0;
                while !pushed.is_over.load(Ordering::Relaxed) {
                    let keys: Vec<u64> =
                        (0..KEYS).filter(|key| !(key + round * 7 + client).is_multiple_of(3)).collect();
                    let grads = vec![-1.0; keys.len() * DIM];
                    table.push(&keys, &grads, PushScale::default()).unwrap();
                    pushed.acknowledge(start, &keys);
                    round += 1;
                }
            });
        }
        // Also if it fails: the clients end with it.
        let _end = OnDrop(&pushed.is_over);
        disturb(&pushed);
    });
    assert_eq!(cluster.unknown_pushes(), 0);
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut found = vec![0.0; keys.len() * DIM];
    // Another client, which knows the present primaries only.
    let there = RemoteTable::open(&connect(), "counters").unwrap();
    there.pull(&keys, Absent::Zero, &mut found, None).unwrap();
    for (row, count) in found.chunks(DIM).zip(&pushed.counts) {
        assert_eq!(row, [count.load(Ordering::Relaxed) as f32; DIM]);
    }
}

pub(crate) fn disturbances(default: u64) -> u64 {
    std::env::var("SANDERLING_KILLS").map_or(default, |text| text.parse().unwrap())
}

pub(crate) fn report(what: &str, gaps_us: &mut [u64]) {
    if std::env::var_os("SANDERLING_KILLS").is_some() && !gaps_us.is_empty() {
        gaps_us.sort_unstable();
        let at = |share: f64| gaps_us[((gaps_us.len() - 1) as f64 * share) as usize] as f64 / 1e3;
        let (count, p50, p99, max) = (gaps_us.len(), at(0.5), at(0.99), at(1.0));
        crate::process::show(&format!(
            "{what}: {count} times, pushes waited p50 {p50:.0} ms, p99 {p99:.0} ms, max {max:.0} ms"
        ));
    }
}

#[test]
fn killed_and_stopped_servers_lose_no_acknowledged_push() {
    let mut place = Place::new(1);
    let (mut killed, mut stopped, mut promoted) = (Vec::new(), Vec::new(), Vec::new());
    drill(&mut place, |place, pushed| {
        for round in 0..disturbances(7) {
            pushed.wait(20 + round * 7 % 40);
            let before = place.settled(0, 0);
            let group = &before.group;
            let (primary, backup) = (group.primary.server, group.in_sync[0].server);
            pushed.gap_us.store(0, Ordering::Relaxed);
            let (ends, is_primary) = if round % 3 == 1 { (backup, false) } else { (primary, true) };
            let at = place.at(&before, ends);
            if round % 5 == 3 {
                // Past all its deadlines; then it finds that it is no longer the primary.
                place.servers[at].1.as_ref().unwrap().signal("STOP");
                place.settled_without(&before, ends);
                pushed.wait(10);
                place.servers[at].1.as_ref().unwrap().signal("CONT");
                stopped.push(pushed.gap_us.load(Ordering::Relaxed));
            } else {
                let start = Instant::now();
                place.kill(at);
                if is_primary {
                    while place.record(0).is_none_or(|record| record.group.epoch == group.epoch) {
                        assert!(start.elapsed() < LONG, "no replica takes over");
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    promoted.push(start.elapsed().as_micros() as u64);
                }
                pushed.wait(10);
                if is_primary {
                    killed.push(pushed.gap_us.load(Ordering::Relaxed));
                }
                place.start(at);
            }
            let epoch = group.epoch + u64::from(is_primary);
            place.settled(0, epoch);
        }
    });
    report("primary killed", &mut killed);
    report("registry has the next one", &mut promoted);
    report("server stopped", &mut stopped);
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for at in 0..self.servers.len() {
                let log = std::fs::read_to_string(self.folder.path().join(format!("server-{at}.log")));
                crate::process::show(&format!("server {at}: {}", log.unwrap_or_default()));
            }
        }
    }
}

impl Place {
    /// Waits until a group does without this server.
    fn settled_without(&self, before: &GroupRecord, server: u32) {
        let start = Instant::now();
        loop {
            let Some(GroupRecord { group, .. }) = self.record(0) else { continue };
            if group.primary.server != server && group.in_sync.iter().all(|member| member.server != server) {
                return;
            }
            assert!(start.elapsed() < LONG, "{before:?} stays {group:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_role_is_passed_on_without_an_error() {
    let mut place = Place::new(2);
    let mut gaps = Vec::new();
    drill(&mut place, |place, pushed| {
        for round in 0..disturbances(4) {
            let number = (round % 2) as u32;
            pushed.wait(20);
            let before = place.settled(number, 0);
            pushed.gap_us.store(0, Ordering::Relaxed);
            let at = place.at(&before, before.group.primary.server);
            if round < 2 {
                hand_over(place, number, &before);
            } else {
                place.servers[at].1.as_ref().unwrap().signal("TERM");
                let (status, errors) = place.servers[at].1.take().unwrap().end();
                assert!(status.success(), "{errors}");
                place.start(at);
            }
            pushed.wait(10);
            gaps.push(pushed.gap_us.load(Ordering::Relaxed));
            let after = place.settled(number, before.group.epoch + 1);
            assert_ne!(after.group.primary.server, before.group.primary.server);
        }
    });
    report("handed over", &mut gaps);
}

/// The answer of `sanderling ctl`.
fn ctl(words: &[&str]) -> serde_json::Value {
    let program = env!("CARGO_BIN_EXE_sanderling");
    let done = Command::new(program).args(["ctl", "--json"]).args(words).output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{words:?}: {text}{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_str::<serde_json::Value>(&text).unwrap()
}

/// `ctl hand-over`, of the server that `ctl cluster` calls the primary.
fn hand_over(place: &Place, group: u32, before: &GroupRecord) {
    let view = ctl(&["cluster", "--registry", &place.keeper.url()]);
    assert_eq!((&view["groups"], &view["replicas"]), (&json!(2), &json!(2)));
    let servers = view["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 4, "{view}");
    let primary =
        servers.iter().find(|server| server["group"] == group && server["role"] == "primary").unwrap();
    assert_eq!(primary["server"], before.group.primary.server);
    let answer = ctl(&["--server", primary["control"].as_str().unwrap(), "hand-over"]);
    assert_eq!(answer["epoch"], before.group.epoch + 1);
    let heir = before.group.in_sync[0].server;
    assert_eq!(answer["primary"], before.addresses[&heir][0]);
}

/// Runs `sanderling train` with a cluster; returns its AUC and what it said.
fn train(folder: &Path, name: &str, url: &str, options: &[&str], meanwhile: impl FnOnce()) -> (f64, String) {
    let program = env!("CARGO_BIN_EXE_sanderling");
    let mut command = Command::new(program);
    command.args(["train", "spec.toml", "--json", "--ps", url, "--set"]).arg(format!("name={name}"));
    command.args(options);
    let child = command.current_dir(folder).stdout(std::process::Stdio::piped());
    let child = child.stderr(std::process::Stdio::piped()).spawn().unwrap();
    meanwhile();
    let done = child.wait_with_output().unwrap();
    let (text, errors) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
    assert!(done.status.success(), "{text}{errors}");
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    (last["auc"].as_f64().unwrap(), errors)
}

#[test]
fn a_training_goes_on_when_a_primary_is_killed() {
    let mut place = Place::new(1);
    let folder = place.folder.path().to_owned();
    let program = env!("CARGO_BIN_EXE_sanderling");
    let made = Command::new(program)
        .args(["synth", "--rows", "20000", "--vocabulary", "2000", "d.csv"])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let spec = r#"
[data]
train = "d.csv"
valid = { fraction = 0.2, by = "random" }
[label]
column = "label"
[[feature]]
each = ["C1", "C2", "C5", "C6", "C8", "C9"]
type = "categorical"
[model]
type = "lr"
[optimizer]
type = "adagrad"
lr = 0.05
[train]
batch_size = 32
passes = 3
"#;
    std::fs::write(folder.join("spec.toml"), spec).unwrap();
    let url = place.keeper.url();
    let (undisturbed, _) = train(&folder, "calm", &url, &[], || {});
    let (from_any, _) = train(&folder, "any", &url, &["--ps-pull-from", "any"], || {});
    assert!((undisturbed - from_any).abs() < 0.01, "{undisturbed} {from_any}");
    let before = place.settled(0, 0);
    let (disturbed, said) = train(&folder, "disturbed", &url, &[], || {
        // In the middle of the pushes.
        let pushes = |place: &Place| {
            let table = RemoteTable::open(&place.connect(), "disturbed/C1").ok();
            table.map_or(0, |table| table.size().unwrap().0)
        };
        let start = Instant::now();
        while pushes(&place) == 0 {
            assert!(start.elapsed() < LONG, "the training does not push");
            std::thread::sleep(Duration::from_millis(10));
        }
        let at = place.at(&before, before.group.primary.server);
        place.kill(at);
    });
    assert!((undisturbed - disturbed).abs() < 0.01, "{undisturbed} {disturbed}");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("group 0")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains("another replica is its primary, with every acknowledged change"), "{said}");
}
