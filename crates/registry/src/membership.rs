//! How a server finds its place in a cluster: a number, and with it a group. Knows no server.

use std::time::Duration;

use sanderling_replica::Member;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cluster::{
    CONFIG, ClusterConfig, LaterFields, MEMBERS, MemberRecord, PLACEMENT, Placement, member_name,
};
use crate::limit::{GROUPS_MAX, REPLICAS_MAX};
use crate::registry::{Edit, Outcome, Record, Registry, RegistryError};

/// Attempts to be faster than other servers, before all places count as taken.
const ATTEMPTS: usize = 64;
/// Time for one question to the registry.
const WITHIN: Duration = Duration::from_secs(5);

/// A place of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the server, below groups times replicas.
    pub server: u32,
    /// Its group.
    pub group: u32,
}

/// The layout that a server is configured for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Slots of keys.
    pub slots: u32,
    /// Number of groups.
    pub groups: Option<u32>,
    /// Servers of a group.
    pub replicas: Option<u32>,
}

/// Groups and replicas of a cluster whose first server does not say.
const LAYOUT_DEFAULT: (u32, u32) = (2, 2);

/// The configuration of the cluster. The first server writes it, and the others must not contradict it.
///
/// # Errors
/// [`RegistryError::Invalid`]: the cluster has another configuration. Otherwise the registry does not answer.
pub fn agree(registry: &dyn Registry, wanted: &Wanted) -> Result<ClusterConfig, RegistryError> {
    let (groups, replicas) = (wanted.groups, wanted.replicas);
    for (what, given, max) in [("groups", groups, GROUPS_MAX), ("replicas", replicas, REPLICAS_MAX)] {
        if given.is_some_and(|given| given == 0 || given > max) {
            return Err(RegistryError::Invalid(format!("{what} must be 1 to {max}")));
        }
    }
    let first = ClusterConfig {
        slots: wanted.slots,
        groups: groups.unwrap_or(LAYOUT_DEFAULT.0),
        replicas: replicas.unwrap_or(LAYOUT_DEFAULT.1),
        drained: Vec::new(),
        later: LaterFields::new(),
    };
    let config: ClusterConfig = begin(registry, CONFIG, &first)?;
    begin(registry, PLACEMENT, &Placement::even(config.slots, config.groups))?;
    // Groups may have been added since.
    let too_many = groups.filter(|given| *given > config.groups);
    let other = replicas.filter(|given| *given != config.replicas);
    for (what, given, has) in [("groups", too_many, config.groups), ("replicas", other, config.replicas)] {
        if given.is_some() {
            let reason =
                format!("{}: the cluster has {what} = {has}, as its first server said", registry.url());
            return Err(RegistryError::Invalid(reason));
        }
    }
    Ok(config)
}

/// The record of this name: this one, if there is none yet.
fn begin<T: Serialize + DeserializeOwned>(
    registry: &dyn Registry,
    name: &str,
    first: &T,
) -> Result<T, RegistryError> {
    let found = match registry.get(name, WITHIN)? {
        Some(record) => record,
        None => match registry.compare_and_set(name, 0, Edit::put(to_value(name, first)?), WITHIN)? {
            Outcome::Done(_) => return parse(registry, name, to_value(name, first)?),
            Outcome::Other(Some(record)) => record,
            Outcome::Other(None) => return Err(damaged(registry, name, "it came and went")),
        },
    };
    parse(registry, name, found.value)
}

pub(crate) fn parse<T: DeserializeOwned>(
    registry: &dyn Registry,
    name: &str,
    value: Value,
) -> Result<T, RegistryError> {
    serde_json::from_value(value).map_err(|error| damaged(registry, name, &error.to_string()))
}

/// Takes a free place of the cluster: the one of a former process at the same address, or the first without a member.
/// None: all are taken. The record of the place ends with this term, unless it is kept by a
/// [`Presence`](crate::Presence).
///
/// # Errors
/// The registry does not answer.
pub fn claim(
    registry: &dyn Registry,
    config: &ClusterConfig,
    address: Option<&str>,
    term: Duration,
) -> Result<Option<Place>, RegistryError> {
    let mut lease = None;
    for _ in 0..ATTEMPTS {
        let records = registry.list(MEMBERS, WITHIN)?.records;
        let Some((server, revision)) = former(&records, address).or_else(|| free(&records, config)) else {
            break;
        };
        let group = config.group_of(server);
        let addresses = address.map(str::to_owned).into_iter().collect();
        let member = Member { server, boot: 0 };
        let member = MemberRecord { member, group, addresses, control: None, speaks: 0 };
        let (name, granted) = (
            member_name(server),
            match lease {
                Some(lease) => lease,
                None => *lease.insert(registry.grant(term, WITHIN)?),
            },
        );
        let edit = Edit::Put { value: to_value(&name, &member)?, lease: Some(granted) };
        if let Outcome::Done(_) = registry.compare_and_set(&name, revision, edit, WITHIN)? {
            return Ok(Some(Place { server, group }));
        }
        // Another server was faster.
    }
    lease.map_or(Ok(()), |lease| registry.revoke(lease, WITHIN))?;
    Ok(None)
}

fn number(record: &Record) -> Option<u32> {
    record.name.strip_prefix(MEMBERS)?.parse().ok()
}

/// The place of a former process at this address, with the revision of its record.
fn former(records: &[Record], address: Option<&str>) -> Option<(u32, u64)> {
    let address = address?;
    let is_there = |record: &&Record| {
        let member: Option<MemberRecord> = serde_json::from_value(record.value.clone()).ok();
        member.is_some_and(|member| member.addresses.iter().any(|known| known == address))
    };
    let record = records.iter().find(is_there)?;
    Some((number(record)?, record.revision))
}

/// The first place without a record.
fn free(records: &[Record], config: &ClusterConfig) -> Option<(u32, u64)> {
    let taken = |server: &u32| records.iter().any(|record| number(record) == Some(*server));
    let is_active = |server: &u32| !config.drained.contains(&config.group_of(*server));
    let places = (0..config.groups * config.replicas).filter(is_active);
    places.into_iter().find(|server| !taken(server)).map(|server| (server, 0))
}

pub(crate) fn to_value(name: &str, record: &impl serde::Serialize) -> Result<Value, RegistryError> {
    serde_json::to_value(record).map_err(|error| RegistryError::Invalid(format!("{name}: {error}")))
}

pub(crate) fn damaged(registry: &dyn Registry, name: &str, reason: &str) -> RegistryError {
    RegistryError::Damaged { url: registry.url(), name: name.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryRegistry;

    const TERM: Duration = Duration::from_secs(60);

    #[test]
    fn the_first_server_says_how_the_cluster_is() {
        let registry = MemoryRegistry::default();
        let wanted = |groups, replicas| Wanted { slots: 64, groups, replicas };
        let error = agree(&registry, &wanted(Some(0), None)).expect_err("no groups");
        assert!(error.to_string().contains("groups must be 1 to"), "{error}");
        let first = agree(&registry, &wanted(None, Some(3))).expect("it is the first");
        assert_eq!(
            first,
            ClusterConfig { slots: 64, groups: 2, replicas: 3, drained: vec![], later: LaterFields::new() }
        );
        for (groups, replicas, expected) in [
            (None, None, None),
            (Some(2), Some(3), None),
            (Some(4), None, Some("groups = 2")),
            (None, Some(1), Some("replicas = 3")),
        ] {
            let found = agree(&registry, &wanted(groups, replicas));
            match (found, expected) {
                (Ok(found), None) => assert_eq!(found, first),
                (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
                (found, expected) => panic!("{found:?} is not {expected:?}"),
            }
        }
    }

    #[test]
    fn each_server_has_a_place_and_comes_back_to_it() {
        let registry = MemoryRegistry::default();
        let config =
            ClusterConfig { slots: 64, groups: 2, replicas: 2, drained: vec![], later: LaterFields::new() };
        let claim = |address| claim(&registry, &config, address, TERM).expect("it answers");
        let place = |server, group| Some(Place { server, group });
        let found = [Some("a"), None, Some("c"), None].map(claim);
        assert_eq!(found, [place(0, 0), place(1, 0), place(2, 1), place(3, 1)]);
        assert_eq!(claim(Some("d")), None);
        // The process at this address was started again before its lease ended.
        assert_eq!(claim(Some("c")), place(2, 1));
        registry.end_leases();
        assert_eq!(claim(Some("d")), place(0, 0));
    }
}
