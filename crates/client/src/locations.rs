//! Where the groups of a cluster are, as its registry says: read once, and kept up to date by a thread. Knows no
//! connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use sanderling_registry::{
    CONFIG, ClusterConfig, GROUPS, GroupRecord, Record, Registry, RegistryError, RegistryUrl, Watched,
    group_name,
};
use sanderling_transport::Address;

use crate::error::ClientError;
use crate::options::ConnectOptions;

/// Longest wait of one question for changes. The thread ends at most so long after its cluster.
const WATCH_WITHIN: Duration = Duration::from_secs(5);
/// Time for other questions.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Pause after a registry that did not answer, and between two looks at a cluster that is incomplete.
const AGAIN: Duration = Duration::from_millis(200);

/// See the top of this file. Shared by all connections of a cluster.
#[derive(Debug)]
pub(crate) struct Locations {
    /// Of the registry with the cluster, for messages.
    url: String,
    /// Counts changes.
    version: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By group, where its replicas are, the primary first.
    groups: Vec<Vec<Address>>,
    /// For an address, the fastest way to its server from here.
    ways: HashMap<Address, Address>,
}

impl Locations {
    /// Reads where the groups are, and waits for those that have no servers yet.
    pub(crate) fn open(
        url: &RegistryUrl,
        within: Duration,
        connect: &ConnectOptions,
    ) -> Result<Arc<Locations>, ClientError> {
        let stop = connect.stop.as_ref();
        let of_registry = |error: RegistryError| ClientError::Cluster { reason: error.to_string() };
        let token = Some(&*connect.token).filter(|token| !token.is_empty());
        let registry = url.open_of_cluster(token).map_err(of_registry)?;
        let locations =
            Locations { url: registry.url(), version: AtomicU64::new(1), known: Mutex::default() };
        let until = Instant::now() + within;
        let revision = loop {
            let found = locations.read(&*registry);
            if let Ok(revision) = found {
                break revision;
            }
            if Instant::now() >= until || stop.is_some_and(|stop| stop.told().is_some()) {
                found?;
            }
            std::thread::sleep(AGAIN);
        };
        let locations = Arc::new(locations);
        let (weak, thread) = (Arc::downgrade(&locations), std::thread::Builder::new());
        let thread = thread.name("locations".to_owned());
        thread.spawn(move || follow(&weak, &*registry, revision)).map_err(|error| ClientError::Cluster {
            reason: format!("a thread that follows the registry: {error}"),
        })?;
        Ok(locations)
    }

    /// Reads all groups; returns the revision of what was read.
    fn read(&self, registry: &dyn Registry) -> Result<u64, ClientError> {
        let failed = |reason: String| ClientError::Cluster { reason };
        let listing = registry.list("", ANSWER_WITHIN).map_err(|error| failed(error.to_string()))?;
        let value = |name: &str| {
            listing.records.iter().find(|record| record.name == name).map(|record| record.value.clone())
        };
        let Some(config) = value(CONFIG) else {
            let reason = format!("{}: there is no such cluster; start its servers with --cluster", self.url);
            return Err(failed(reason));
        };
        let config: ClusterConfig = serde_json::from_value(config)
            .map_err(|error| failed(format!("{}: record {CONFIG}: {error}", self.url)))?;
        let groups: Vec<Vec<Address>> =
            (0..config.groups).map(|group| addresses(value(&group_name(group)))).collect();
        if let Some(missing) = groups.iter().position(Vec::is_empty) {
            let reason = format!(
                "{}: group {missing} of {} has no server yet; start {} in all",
                self.url,
                config.groups,
                config.groups * config.replicas
            );
            return Err(failed(reason));
        }
        self.known().groups = groups;
        self.version.fetch_add(1, Ordering::Release);
        Ok(listing.revision)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of groups, which are the shards.
    pub(crate) fn groups(&self) -> usize {
        self.known().groups.len()
    }

    /// A number that changes with the locations.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The group's name, for messages.
    pub(crate) fn name(&self, group: usize) -> String {
        format!("group {group} of {}", self.url)
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
}

/// The addresses in the record of a group, the primary's first; empty where there are none.
fn addresses(value: Option<serde_json::Value>) -> Vec<Address> {
    let record = value.and_then(|value| serde_json::from_value::<GroupRecord>(value).ok());
    let Some(GroupRecord { group, addresses }) = record else { return Vec::new() };
    let members = std::iter::once(&group.primary).chain(&group.in_sync);
    let texts = members.filter_map(|member| addresses.get(&member.server)).flatten();
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// Keeps the locations up to date until they are dropped.
fn follow(locations: &Weak<Locations>, registry: &dyn Registry, mut after: u64) {
    while let Some(strong) = locations.upgrade() {
        // Not while waiting: whoever drops the cluster ends this.
        drop(strong);
        let watched = registry.watch(GROUPS, after, WATCH_WITHIN);
        let Some(strong) = locations.upgrade() else { return };
        match watched {
            Ok(Watched::Changes { changes, after: seen }) => {
                after = seen;
                for change in changes {
                    let number = change.name.strip_prefix(GROUPS).and_then(|number| number.parse().ok());
                    let found = addresses(change.record.map(|Record { value, .. }| value));
                    let mut known = strong.known();
                    if let Some(group) = number.and_then(|number: usize| known.groups.get_mut(number))
                        && !found.is_empty()
                    {
                        *group = found;
                    }
                    drop(known);
                    strong.version.fetch_add(1, Ordering::Release);
                }
            }
            Ok(Watched::BeginAgain) => match strong.read(registry) {
                Ok(revision) => after = revision,
                Err(_) => std::thread::sleep(AGAIN),
            },
            // The former locations may still be right.
            Err(_) => std::thread::sleep(AGAIN),
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
        let locations =
            Arc::new(Locations { url: registry.url(), version: AtomicU64::new(1), known: Mutex::default() });
        let refused = |expected: &str| {
            let error = locations.read(&*registry).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused("there is no such cluster");
        put(&registry, CONFIG, json!({ "slots": 64, "groups": 1, "replicas": 2 }));
        refused("group 0 of 1 has no server yet; start 2 in all");
        put(&registry, &group_name(0), group(1, &[2]));
        let revision = locations.read(&*registry).unwrap();
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
        drop(locations);
        put(&registry, &group_name(0), group(2, &[1]));
        thread.join().unwrap();
    }
}
