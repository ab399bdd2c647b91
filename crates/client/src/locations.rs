//! Where the groups of a cluster are and which of them has each slot, as its registry says: read once, and kept up to
//! date by a thread. Knows no connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use sanderling_registry::{
    CONFIG, Change, ClusterConfig, GROUPS, GroupRecord, Listing, PLACEMENT, Record, Registry, RegistryError,
    Watched, group_name, limit,
};
use sanderling_transport::Address;
use serde_json::Value;

use crate::error::ClientError;
use crate::placement::Placement;
use crate::stop::Stop;

/// Longest wait of one question for changes. The thread ends at most so long after its cluster.
const WATCH_WITHIN: Duration = Duration::from_secs(5);
/// Time for other questions.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Pause after a registry that did not answer, and between two looks at a cluster that is incomplete.
const AGAIN: Duration = Duration::from_millis(200);

/// See the top of this file. Shared by all connections of a cluster.
#[derive(Debug)]
pub(crate) struct Locations {
    registry: Arc<dyn Registry>,
    /// Counts changes of where groups are.
    version: AtomicU64,
    /// Version of the placement.
    placement_version: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By group, where its replicas are, the primary first.
    groups: Vec<Vec<Address>>,
    /// For an address, the fastest way to its server from here.
    ways: HashMap<Address, Address>,
    placement: Arc<Placement>,
}

impl Locations {
    fn new(registry: Arc<dyn Registry>) -> Locations {
        let (version, placement_version, known) = (AtomicU64::new(1), AtomicU64::new(0), Mutex::default());
        Locations { registry, version, placement_version, known }
    }

    /// Reads where the groups are, and waits for those that have slots and no servers yet.
    pub(crate) fn open(
        registry: Arc<dyn Registry>,
        within: Duration,
        stop: Option<&Stop>,
    ) -> Result<Arc<Locations>, ClientError> {
        let locations = Locations::new(registry);
        let until = Instant::now() + within;
        let revision = loop {
            let found = locations.read();
            if let Ok(revision) = found {
                break revision;
            }
            if Instant::now() >= until || stop.is_some_and(|stop| stop.told().is_some()) {
                found?;
            }
            std::thread::sleep(AGAIN);
        };
        let locations = Arc::new(locations);
        let (weak, registry) = (Arc::downgrade(&locations), Arc::clone(&locations.registry));
        let thread = std::thread::Builder::new().name("locations".to_owned());
        thread.spawn(move || follow(&weak, &*registry, revision)).map_err(|error| ClientError::Cluster {
            reason: format!("a thread that follows the registry: {error}"),
        })?;
        Ok(locations)
    }

    /// Reads all records; returns the revision of what was read.
    fn read(&self) -> Result<u64, ClientError> {
        let failed = |reason: String| ClientError::Cluster { reason };
        let listing = self
            .registry
            .list("", ANSWER_WITHIN)
            .map_err(|error: RegistryError| failed(error.to_string()))?;
        let (url, value) = (self.url(), |name: &str| value_of(&listing, name));
        let Some(config) = value(CONFIG) else {
            let reason = format!("{url}: there is no such cluster; start its servers with --cluster");
            return Err(failed(reason));
        };
        let config: ClusterConfig = serde_json::from_value(config.clone())
            .map_err(|error| failed(format!("{url}: record {CONFIG}: {error}")))?;
        let of_record = |reason: String| failed(format!("{url}: record {PLACEMENT}: {reason}"));
        let placement = match value(PLACEMENT) {
            Some(record) => placement_of(record, config.groups),
            None => {
                let even = sanderling_registry::Placement::even(config.slots, config.groups);
                Placement::of_record(&even, config.groups).map(Placement::unversioned)
            }
        };
        let placement = placement.map_err(of_record)?;
        let groups: Vec<Vec<Address>> =
            (0..config.groups).map(|group| addresses(value(&group_name(group)))).collect();
        if let Some(missing) = placement.with_rows().into_iter().find(|&group| groups[group].is_empty()) {
            let reason = format!(
                "{url}: group {missing} of {} has no server yet; start {} in all",
                config.groups,
                config.groups * config.replicas
            );
            return Err(failed(reason));
        }
        let mut known = self.known();
        known.groups = groups;
        self.version.fetch_add(1, Ordering::Release);
        self.adopt(known, placement);
        Ok(listing.revision)
    }

    /// Takes a placement unless the known one is newer.
    fn adopt(&self, mut known: MutexGuard<'_, Known>, placement: Placement) {
        if placement.version >= known.placement.version {
            let version = placement.version;
            known.placement = Arc::new(placement);
            self.placement_version.store(version, Ordering::Release);
        }
    }

    /// The placement as the registry has it now.
    pub(crate) fn read_placement(&self) -> Result<Arc<Placement>, ClientError> {
        self.read()?;
        Ok(self.placement())
    }

    /// The placement as far as it is known.
    pub(crate) fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.known().placement)
    }

    /// Version of [`Locations::placement`].
    #[inline]
    pub(crate) fn placement_version(&self) -> u64 {
        self.placement_version.load(Ordering::Acquire)
    }

    /// The registry with the cluster, for messages.
    pub(crate) fn url(&self) -> String {
        self.registry.url()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that changes with the locations.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The group's name, for messages.
    pub(crate) fn name(&self, group: usize) -> String {
        format!("group {group} of {}", self.url())
    }

    /// Where to try to reach the group's primary, after `tries` of this version came to nothing. None: the group is unknown.
    pub(crate) fn of(&self, group: usize, tries: usize) -> Option<Address> {
        let known = self.known();
        let all = known.groups.get(group).filter(|all| !all.is_empty())?;
        let address = &all[tries % all.len()];
        Some(known.ways.get(address).unwrap_or(address).clone())
    }

    /// Number of the group's replicas.
    pub(crate) fn replicas(&self, group: usize) -> usize {
        self.known().groups.get(group).map_or(0, Vec::len)
    }

    /// Whether this address, or way, is that of the group's primary.
    pub(crate) fn is_primary(&self, group: usize, address: &Address) -> bool {
        let known = self.known();
        let primary = known.groups.get(group).and_then(|all| all.first());
        primary.is_some_and(|primary| primary == address || known.ways.get(primary) == Some(address))
    }

    /// Whether it was looked for a faster way to the server at this address.
    pub(crate) fn has_way(&self, address: &Address) -> bool {
        let known = self.known();
        known.ways.contains_key(address) || known.ways.values().any(|way| way == address)
    }

    /// Notes the fastest way to the server at an address, which may be the address itself.
    pub(crate) fn note_way(&self, address: Address, way: Address) {
        self.known().ways.insert(address, way);
    }

    /// Forgets a way that led nowhere.
    pub(crate) fn forget_way(&self, way: &Address) {
        self.known().ways.retain(|address, known| known != way || address == known);
    }

    /// Takes a changed record. `false`: it does not fit the others, and all must be read.
    fn note(&self, change: &Change) -> bool {
        let value = change.record.as_ref().map(|Record { value, .. }| value);
        let mut known = self.known();
        match (change.name.as_str(), value) {
            (CONFIG, Some(config)) => {
                let config = serde_json::from_value::<ClusterConfig>(config.clone());
                let groups = config.map_or(0, |config| config.groups.min(limit::GROUPS_MAX)) as usize;
                if groups > known.groups.len() {
                    known.groups.resize(groups, Vec::new());
                }
            }
            (PLACEMENT, Some(record)) => {
                let Ok(placement) = placement_of(record, known.groups.len() as u32) else { return false };
                self.adopt(known, placement);
            }
            (name, value) => {
                let number = name.strip_prefix(GROUPS).and_then(|number| number.parse().ok());
                let Some(number) = number.filter(|number: &usize| *number < limit::GROUPS_MAX as usize)
                else {
                    return true;
                };
                let found = addresses(value);
                if known.groups.len() <= number {
                    known.groups.resize(number + 1, Vec::new());
                }
                // The former locations may still be right.
                if !found.is_empty() {
                    known.groups[number] = found;
                }
                self.version.fetch_add(1, Ordering::Release);
            }
        }
        true
    }
}

fn value_of<'l>(listing: &'l Listing, name: &str) -> Option<&'l Value> {
    listing.records.iter().find(|record| record.name == name).map(|record| &record.value)
}

fn placement_of(record: &Value, groups: u32) -> Result<Placement, String> {
    let record = serde_json::from_value(record.clone()).map_err(|error| error.to_string())?;
    Placement::of_record(&record, groups)
}

/// The addresses in the record of a group, the primary's first; empty where there are none.
fn addresses(value: Option<&Value>) -> Vec<Address> {
    let record = value.and_then(|value| serde_json::from_value::<GroupRecord>(value.clone()).ok());
    let Some(GroupRecord { group, addresses, .. }) = record else { return Vec::new() };
    let members = std::iter::once(&group.primary).chain(&group.in_sync);
    let texts = members.filter_map(|member| addresses.get(&member.server)).flatten();
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// Keeps the locations up to date until they are dropped.
fn follow(locations: &Weak<Locations>, registry: &dyn Registry, mut after: u64) {
    // Not while waiting: whoever drops the cluster ends this.
    while locations.strong_count() > 0 {
        let watched = registry.watch("", after, WATCH_WITHIN);
        let Some(locations) = locations.upgrade() else { return };
        let is_whole = match watched {
            Ok(Watched::Changes { changes, after: seen }) => {
                after = seen;
                let mut is_whole = true;
                for change in &changes {
                    is_whole &= locations.note(change);
                }
                is_whole
            }
            Ok(Watched::BeginAgain) => false,
            // The former locations may still be right.
            Err(_) => {
                std::thread::sleep(AGAIN);
                true
            }
        };
        if !is_whole {
            match locations.read() {
                Ok(revision) => after = revision,
                // The next watch sees no change of what is wrong, and then it stays as it is.
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sanderling_registry::{Edit, MemoryRegistry};
    use serde_json::json;

    use super::*;

    fn put(registry: &MemoryRegistry, name: &str, value: serde_json::Value) {
        let revision = registry.get(name, ANSWER_WITHIN).unwrap().map_or(0, |record| record.revision);
        registry.compare_and_set(name, revision, Edit::put(value), ANSWER_WITHIN).unwrap();
    }

    fn group(primary: u32, in_sync: &[u32]) -> serde_json::Value {
        let member = |server: u32| json!({ "server": server, "boot": 1 });
        let addresses: serde_json::Map<_, _> = in_sync
            .iter()
            .chain([&primary])
            .map(|server| (server.to_string(), json!([format!("tcp://10.0.0.{server}:7000")])))
            .collect();
        let in_sync: Vec<_> = in_sync.iter().copied().map(member).collect();
        json!({ "epoch": 1, "history": 1, "primary": member(primary), "in_sync": in_sync, "addresses": addresses })
    }

    fn at(server: u32) -> Address {
        format!("tcp://10.0.0.{server}:7000").parse().unwrap()
    }

    #[test]
    fn the_primary_is_tried_first_and_changes_are_seen() {
        let registry = Arc::new(MemoryRegistry::default());
        let locations = Arc::new(Locations::new(Arc::<MemoryRegistry>::clone(&registry)));
        let refused = |expected: &str| {
            let error = locations.read().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused("there is no such cluster");
        put(&registry, CONFIG, json!({ "slots": 64, "groups": 1, "replicas": 2 }));
        refused("group 0 of 1 has no server yet; start 2 in all");
        put(&registry, &group_name(0), group(1, &[2]));
        let revision = locations.read().unwrap();
        assert_eq!([0, 1, 2].map(|tries| locations.of(0, tries)), [1, 2, 1].map(|n| Some(at(n))));
        assert_eq!(locations.of(1, 0), None);
        let local: Address = "shm:one".parse().unwrap();
        locations.note_way(at(1), local.clone());
        assert_eq!(locations.of(0, 0), Some(local.clone()));
        assert!(locations.is_primary(0, &local) && !locations.is_primary(0, &at(2)));
        locations.forget_way(&local);
        assert_eq!(locations.of(0, 0), Some(at(1)));

        let version = locations.version();
        let weak = Arc::downgrade(&locations);
        let registry_there = Arc::clone(&registry);
        let thread = std::thread::spawn(move || follow(&weak, &*registry_there, revision));
        put(&registry, &group_name(0), group(2, &[]));
        while locations.version() == version {
            std::thread::yield_now();
        }
        assert_eq!([0, 1].map(|tries| locations.of(0, tries)), [2, 2].map(|n| Some(at(n))));

        // Without a record the slots are shared out evenly.
        assert_eq!((locations.placement_version(), locations.placement().with_rows()), (0, vec![0]));
        let wait_for = |version: u64| {
            while locations.placement_version() != version {
                std::thread::yield_now();
            }
            locations.placement()
        };
        put(&registry, PLACEMENT, json!({ "version": 1, "slots": 2, "runs": [{ "first": 0, "group": 0 }] }));
        assert_eq!(wait_for(1).with_rows(), [0]);
        // A group is added, and gets a slot.
        put(&registry, CONFIG, json!({ "slots": 2, "groups": 2, "replicas": 2 }));
        put(&registry, &group_name(1), group(3, &[]));
        let runs = json!([{ "first": 0, "group": 0 }, { "first": 1, "group": 1 }]);
        put(&registry, PLACEMENT, json!({ "version": 2, "slots": 2, "runs": runs }));
        assert_eq!((wait_for(2).with_rows(), locations.of(1, 0)), (vec![0, 1], Some(at(3))));
        // An older one and a damaged one change nothing. A group without slots needs no server.
        put(&registry, PLACEMENT, json!({ "version": 1, "slots": 2, "runs": [{ "first": 0, "group": 0 }] }));
        put(&registry, PLACEMENT, json!({ "version": 3, "slots": 2, "runs": [{ "first": 0, "group": 9 }] }));
        put(&registry, PLACEMENT, json!({ "version": 4, "slots": 2, "runs": [{ "first": 0, "group": 1 }] }));
        registry
            .compare_and_set(
                &group_name(0),
                registry.get(&group_name(0), ANSWER_WITHIN).unwrap().unwrap().revision,
                Edit::Delete,
                ANSWER_WITHIN,
            )
            .unwrap();
        assert_eq!(wait_for(4).with_rows(), [1]);
        assert_eq!(locations.read_placement().unwrap(), wait_for(4));
        drop(locations);
        put(&registry, &group_name(0), group(2, &[1]));
        thread.join().unwrap();
    }
}
