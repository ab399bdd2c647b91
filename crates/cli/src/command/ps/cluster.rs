//! `sanderling ps --cluster`: takes a place in a cluster, and keeps the records of the server and its group in the
//! registry. Knows no table.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sanderling_control::status_pages::{Cell, MorePage, Page, Part};
use sanderling_keeper::{cluster_parts, slots_parts};
use sanderling_registry::{
    ClusterConfig, ClusterView, Edit, GroupRecord as Stored, LaterFields, Member, MemberRecord, Outcome,
    PLACEMENT, Place, Placement, Presence, PresenceEvent, REBALANCE_AFTER_S, Record, Registry, RegistryError,
    RegistryUrl, SLOTS_DEFAULT, Wanted, agree, claim, group_name,
};
use sanderling_server::{Config, Control, GroupRecord, GroupRecords, PlacementRecords, ReplicaConfig};
use sanderling_transport::Address;

use super::balance::{Balance, Rebalance};
use super::tell_manager;
use crate::failure::Failure;

/// Term of a server's record. A server that died leaves its place so much later.
const TERM: Duration = Duration::from_secs(6);
/// Time for a question about the record of the group.
const GROUP_WITHIN: Duration = Duration::from_secs(2);
/// Interval of attempts to reach the registry, and to find a place.
const AGAIN: Duration = Duration::from_secs(1);
/// Time for the records of a page, and how old they may be.
const PAGE_WITHIN: Duration = Duration::from_millis(500);
const PAGE_AGE_MAX: Duration = Duration::from_secs(1);
/// The metric of the rows that moves have copied.
const MOVED_ROWS: &str = "sanderling_group_moved_rows_total";
/// Least --rebalance-after: a load is measured once a second at most.
const REBALANCE_AFTER_MIN: Duration = Duration::from_secs(5);
/// Default of --pull-staleness.
const PULL_STALENESS: Duration = Duration::from_secs(2);
/// Megabytes of rows per second that a move copies.
const MOVE_RATE_DEFAULT: u32 = 100;

/// The options of a server of a cluster.
#[derive(Debug)]
pub(super) struct ClusterOptions {
    pub(super) cluster: Option<String>,
    pub(super) registry: Option<String>,
    pub(super) groups: Option<u32>,
    pub(super) replicas: Option<u32>,
    pub(super) min_in_sync: Option<usize>,
    pub(super) advertise: Option<String>,
    pub(super) acknowledge: Option<Acknowledge>,
    pub(super) pull_staleness: Option<String>,
    pub(super) move_rate: Option<u32>,
    pub(super) rebalance: Option<Rebalance>,
    pub(super) rebalance_after: Option<String>,
    pub(super) ca_file: Option<PathBuf>,
}

/// When a push is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Acknowledge {
    /// When every replica in sync has it
    InSync,
    /// When the primary has it: a failover may lose it
    Local,
}

/// A place that this server has taken.
#[derive(Debug)]
pub(super) struct Joined {
    registry: Arc<dyn Registry>,
    layout: ClusterConfig,
    place: Place,
    rebalance: Rebalance,
    /// Time for which a load has to last before slots move.
    rebalance_after: Duration,
}

impl ClusterOptions {
    /// Takes a place in the cluster, and makes the server a replica there. Waits while all places are taken. None: the
    /// server is in no cluster.
    pub(super) fn join(self, config: &mut Config) -> Result<Option<Joined>, Failure> {
        let Some(cluster) = &self.cluster else { return self.check_unused().map(|()| None) };
        let usage = |what: &str, error: &dyn std::fmt::Display| Failure::Usage(format!("--{what}: {error}"));
        let place = self.registry.clone().unwrap_or_else(|| "registry://".to_owned());
        let url = RegistryUrl::parse(&place).and_then(|url| url.in_cluster(cluster));
        let url = url.map_err(|error| usage("registry", &error))?;
        // A token that this server made for itself is not that of the cluster.
        let token = config.token.as_deref().filter(|_| !config.admit_this_user);
        let registry = url.open_of_cluster(token).map_err(|error| usage("registry", &error))?;
        let advertise = match &self.advertise {
            Some(text) => {
                let address: Address = text.parse().map_err(|error| usage("advertise", &error))?;
                Some(address.to_string())
            }
            None => config.listen.iter().find(has_port).map(Address::to_string),
        };
        let staleness = self.pull_staleness.as_deref().map(crate::quantity::time).transpose();
        let staleness = staleness.map_err(|error| usage("pull-staleness", &error))?;
        let rebalance_after = self.rebalance_after.as_deref().map(crate::quantity::time).transpose();
        let rebalance_after = rebalance_after.map_err(|error| usage("rebalance-after", &error))?;
        let rebalance_after = rebalance_after.unwrap_or(Duration::from_secs(REBALANCE_AFTER_S));
        if rebalance_after < REBALANCE_AFTER_MIN {
            return Err(usage("rebalance-after", &"at least 5s: a load that lasts is no burst"));
        }
        let wanted = Wanted { slots: SLOTS_DEFAULT, groups: self.groups, replicas: self.replicas };
        let mut layout = until_it_answers(|| agree(&*registry, &wanted))?;
        let mut is_told = false;
        // A process that lives there keeps its place.
        let former = || advertise.as_deref().filter(|text| !is_taken(text));
        let place = loop {
            if let Some(place) = until_it_answers(|| claim(&*registry, &layout, former(), TERM))? {
                break place;
            }
            if !is_told {
                note_line!(
                    "{url}: all {} places are taken, so this server waits until one is free",
                    layout.groups * layout.replicas
                );
                tell_manager("READY=1\nSTATUS=waits for a free place in its cluster");
                is_told = true;
            }
            std::thread::sleep(AGAIN);
            // Groups may be added meanwhile.
            layout = until_it_answers(|| agree(&*registry, &wanted))?;
        };
        let limit = |number: u32| u16::try_from(number).map_err(|error| usage("groups", &error));
        (config.shard, config.shards) = (limit(place.group)?, limit(layout.groups)?);
        config.replica = Some(ReplicaConfig {
            server: place.server,
            advertise: self.advertise.and(advertise).unwrap_or_default(),
            min_in_sync: self.min_in_sync.unwrap_or(1),
            acknowledge_local: self.acknowledge == Some(Acknowledge::Local),
            pull_staleness: staleness.unwrap_or(PULL_STALENESS),
            authorities: self.ca_file,
            move_bytes_per_s: u64::from(self.move_rate.unwrap_or(MOVE_RATE_DEFAULT)) * 1_000_000,
            speaks: None,
        });
        let rebalance = self.rebalance.unwrap_or_default();
        Ok(Some(Joined { registry, layout, place, rebalance, rebalance_after }))
    }

    fn check_unused(&self) -> Result<(), Failure> {
        let given = [
            ("registry", self.registry.is_some()),
            ("groups", self.groups.is_some()),
            ("replicas", self.replicas.is_some()),
            ("min-in-sync", self.min_in_sync.is_some()),
            ("acknowledge", self.acknowledge.is_some()),
            ("pull-staleness", self.pull_staleness.is_some()),
            ("advertise", self.advertise.is_some()),
            ("move-rate", self.move_rate.is_some()),
            ("rebalance", self.rebalance.is_some()),
            ("rebalance-after", self.rebalance_after.is_some()),
            ("ca-file", self.ca_file.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(Failure::Usage(format!("--{name}: needs --cluster NAME"))),
            None => Ok(()),
        }
    }
}

impl Joined {
    /// The record of this server's group.
    pub(super) fn records(&self) -> Box<dyn GroupRecords> {
        let (registry, name) = (Arc::clone(&self.registry), group_name(self.place.group));
        Box::new(Records { registry, name, later: LaterFields::new() })
    }

    /// The placement of the cluster's slots.
    pub(super) fn placement(&self) -> Box<dyn PlacementRecords> {
        Box::new(PlacementIn { registry: Arc::clone(&self.registry), seen: 0 })
    }

    /// Server and group in words.
    pub(super) fn line(&self) -> String {
        let (Place { server, group }, ClusterConfig { groups, replicas, .. }) = (self.place, &self.layout);
        format!(
            "server {server} of {}, in group {group} of {groups} with {replicas} replicas",
            self.registry.url()
        )
    }

    /// The status pages of the cluster, as its registry has it, and what this server knows of itself.
    pub(super) fn pages(&self, control: &Control) -> [MorePage; 2] {
        let last: Arc<Mutex<Option<(Instant, ClusterView)>>> = Arc::default();
        let (registry, known, own) = (Arc::clone(&self.registry), Arc::clone(&last), control.clone());
        let cluster =
            MorePage::new("cluster", "Groups and servers of the cluster of this server.", move |asked| {
                let copied = asked.trends.get(MOVED_ROWS);
                let mut parts = vec![Part::Facts(own_facts(&own))];
                parts.extend(look(&*registry, &known, |view| {
                    cluster_parts(&with_own(view.clone(), &own), asked.from(), copied)
                }));
                Page::new("cluster", parts)
            });
        let registry = Arc::clone(&self.registry);
        let slots = MorePage::new("slots", "Slots of the cluster by group.", move |asked| {
            Page::new("slots", look(&*registry, &last, |view| slots_parts(view, asked.from(), "/cluster")))
        });
        [cluster, slots]
    }

    /// Tells the load of the group, and has slots move as was asked for, until the end of what is returned.
    pub(super) fn balance(&self, control: Control) -> Result<Option<Balance>, Failure> {
        let registry = Arc::clone(&self.registry);
        let Joined { rebalance, rebalance_after, .. } = *self;
        Ok(Balance::start(registry, self.place.group, control, rebalance, rebalance_after)?)
    }

    /// Keeps the record of this server, which is reached at these addresses, until the end of what is returned.
    pub(super) fn keep(
        &self,
        control: Control,
        addresses: Vec<String>,
        control_address: Option<String>,
    ) -> Result<Presence, Failure> {
        let Place { server, group } = self.place;
        let member = Member { server, boot: control.boot_id() };
        let control_address = control_address.map(|url| reachable(url, &addresses));
        let speaks = control.speaks().into();
        let record = MemberRecord { member, group, addresses, control: control_address, speaks };
        let registry = Arc::clone(&self.registry);
        let presence = Presence::start(registry, record, TERM, move |event| match event {
            PresenceEvent::Listed => {}
            PresenceEvent::Failed(error) => note_line!("{error}; the group goes on, and it is tried again"),
            PresenceEvent::Replaced(by) => {
                note_line!(
                    "another server has taken place {server}, at {}: this one ends",
                    by.addresses.join(", ")
                );
                control.drain();
            }
        });
        Ok(presence?)
    }
}

/// The parts of a cluster as it was a moment ago, or as it was when its registry answered last.
fn look(
    registry: &dyn Registry,
    last: &Mutex<Option<(Instant, ClusterView)>>,
    parts_of: impl Fn(&ClusterView) -> Vec<Part>,
) -> Vec<Part> {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let mut parts = Vec::new();
    if last.as_ref().is_none_or(|(at, _)| at.elapsed() > PAGE_AGE_MAX) {
        let listing = registry.list("", PAGE_WITHIN);
        match listing.and_then(|listing| ClusterView::of(&registry.url(), &listing)) {
            Ok(Some(view)) => *last = Some((Instant::now(), view)),
            Ok(None) => parts.push(Part::Warning("The registry has no such cluster any more.".to_owned())),
            Err(error) => parts.push(Part::Warning(format!("{error}; what follows was known before."))),
        }
    }
    if let Some((at, view)) = &*last {
        parts.extend(parts_of(view));
        parts.push(Part::Note(format!("Read {:.1} s ago.", at.elapsed().as_secs_f64())));
    }
    parts
}

/// This server as a replica.
fn own_facts(control: &Control) -> Vec<(String, Cell)> {
    let group = control.group().unwrap_or_default();
    vec![
        Cell::fact("this server", format!("{} of group {}", group.server, group.group)),
        Cell::fact("role", group.role),
        Cell::fact("epoch", group.epoch.to_string()),
        Cell::fact("replicas in sync", format!("{}, at least {}", group.in_sync(), group.min_in_sync)),
        Cell::fact("records that a follower has not acknowledged", group.backlog.to_string()),
        Cell::fact("updates that wait for earlier ones", group.waiting.to_string()),
    ]
}

/// The cluster with the numbers of this server.
fn with_own(mut view: ClusterView, control: &Control) -> ClusterView {
    let group = control.group().unwrap_or_default();
    let counters = control.status().counters;
    let counter = |name: &str| counters.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
    let rows = counter("rows");
    if let Some(received) = view.moves.iter_mut().find(|one| Some(one.id) == counter("group_move")) {
        (received.rows, received.rows_expected) = (counter("group_moved_rows"), counter("group_moving_rows"));
    }
    let own = view.servers.iter_mut().find(|server| server.server == group.server && server.role != "lost");
    if let Some(own) = own {
        (own.lag, own.rows) = (Some(group.backlog + group.waiting), rows);
    }
    view
}

/// The URL of a control plane that listens at all addresses of its host, by the host that others know.
fn reachable(url: String, addresses: &[String]) -> String {
    let Some(Ok(Address::Tcp(endpoints))) = addresses.first().map(|address| address.parse()) else {
        return url;
    };
    match endpoints.first() {
        Some(first) if url.contains("//0.0.0.0:") => url.replacen("0.0.0.0", &first.host, 1),
        Some(first) if url.contains("//[::]:") => url.replacen("[::]", &first.host, 1),
        _ => url,
    }
}

fn has_port(address: &&Address) -> bool {
    matches!(address, Address::Tcp(endpoints) if endpoints.first().is_some_and(|first| first.port != 0))
}

/// Whether a process listens at an address.
fn is_taken(text: &str) -> bool {
    let Ok(Address::Tcp(endpoints)) = text.parse() else { return false };
    endpoints.first().is_some_and(|first| std::net::TcpStream::connect((&*first.host, first.port)).is_ok())
}

/// Asks the registry until it answers. What is wrong with the question ends it.
fn until_it_answers<T>(ask: impl Fn() -> Result<T, RegistryError>) -> Result<T, Failure> {
    let mut is_told = false;
    loop {
        match ask() {
            Err(error @ (RegistryError::Invalid(_) | RegistryError::Damaged { .. })) => {
                return Err(error.into());
            }
            Err(error) if !is_told => {
                note_line!("{error}; this server waits for it");
                is_told = true;
            }
            Err(_) => {}
            Ok(answer) => return Ok(answer),
        }
        std::thread::sleep(AGAIN);
    }
}

/// The record of a group in a registry.
struct Records {
    registry: Arc<dyn Registry>,
    name: String,
    /// The fields of the record that later versions have written.
    later: LaterFields,
}

impl Records {
    fn found(&mut self, record: Option<Record>) -> io::Result<(u64, Option<GroupRecord>)> {
        let Some(Record { revision, value, .. }) = record else { return Ok((0, None)) };
        let Stored { group, addresses, later } = serde_json::from_value(value).map_err(io::Error::other)?;
        self.later = later;
        let first = |(server, all): (u32, Vec<String>)| Some((server, all.into_iter().next()?));
        let urls: BTreeMap<u32, String> = addresses.into_iter().filter_map(first).collect();
        Ok((revision, Some(GroupRecord { group, urls })))
    }
}

impl GroupRecords for Records {
    fn read(&mut self) -> io::Result<(u64, Option<GroupRecord>)> {
        let record = self.registry.get(&self.name, GROUP_WITHIN).map_err(io::Error::other)?;
        self.found(record)
    }

    fn compare_and_set(
        &mut self,
        revision: u64,
        record: &GroupRecord,
    ) -> io::Result<(u64, Option<GroupRecord>)> {
        let addresses = record.urls.iter().map(|(&server, url)| (server, vec![url.clone()])).collect();
        let stored = Stored { group: record.group.clone(), addresses, later: self.later.clone() };
        let edit = Edit::put(serde_json::to_value(&stored).map_err(io::Error::other)?);
        let outcome = self.registry.compare_and_set(&self.name, revision, edit, GROUP_WITHIN);
        match outcome.map_err(io::Error::other)? {
            Outcome::Done(revision) => Ok((revision, Some(record.clone()))),
            Outcome::Other(present) => self.found(present),
        }
    }
}

/// The placement of a cluster in its registry.
struct PlacementIn {
    registry: Arc<dyn Registry>,
    /// The registry's revision when the record was read last.
    seen: u64,
}

fn found(record: Option<Record>) -> io::Result<(u64, Option<Placement>)> {
    let Some(Record { revision, value, .. }) = record else { return Ok((0, None)) };
    Ok((revision, Some(serde_json::from_value(value).map_err(io::Error::other)?)))
}

impl PlacementRecords for PlacementIn {
    fn read(&mut self) -> io::Result<(u64, Option<Placement>)> {
        let mut listing = self.registry.list(PLACEMENT, GROUP_WITHIN).map_err(io::Error::other)?;
        self.seen = listing.revision;
        found(listing.records.pop())
    }

    fn compare_and_set(
        &mut self,
        revision: u64,
        placement: &Placement,
    ) -> io::Result<(u64, Option<Placement>)> {
        let edit = Edit::put(serde_json::to_value(placement).map_err(io::Error::other)?);
        let outcome = self.registry.compare_and_set(PLACEMENT, revision, edit, GROUP_WITHIN);
        match outcome.map_err(io::Error::other)? {
            Outcome::Done(revision) => Ok((revision, Some(placement.clone()))),
            Outcome::Other(present) => found(present),
        }
    }

    fn wait(&mut self, within: Duration) -> io::Result<()> {
        self.registry.watch(PLACEMENT, self.seen, within).map(drop).map_err(io::Error::other)
    }

    fn primary(&mut self, group: u32) -> io::Result<(Member, String)> {
        let record = self.registry.get(&group_name(group), GROUP_WITHIN).map_err(io::Error::other)?;
        let record = record.ok_or_else(|| io::Error::other(format!("group {group} has no primary")))?;
        let Stored { group: known, addresses, .. } =
            serde_json::from_value(record.value).map_err(io::Error::other)?;
        let url = addresses.get(&known.primary.server).and_then(|all| all.first());
        let url =
            url.ok_or_else(|| io::Error::other(format!("the primary of group {group} has no address")))?;
        Ok((known.primary, url.clone()))
    }
}
