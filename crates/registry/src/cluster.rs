//! The records of a cluster: configuration, groups, placement, members. Knows no registry.

use std::collections::BTreeMap;

use sanderling_replica::{Group, Member};
pub use sanderling_replica::{LaterFields, Move, MoveState, PinnedPlace, Placement, SLOTS_DEFAULT};
use serde::{Deserialize, Serialize};

/// Name of the configuration, a [`ClusterConfig`].
pub const CONFIG: &str = "config";
/// Name of the [`Placement`].
pub const PLACEMENT: &str = "placement";
/// Beginning of the names of all groups, each a [`GroupRecord`].
pub const GROUPS: &str = "groups/";
/// Beginning of the names of all members, each a [`MemberRecord`] with a lease.
pub const MEMBERS: &str = "members/";

/// Name of a group's record.
#[must_use]
pub fn group_name(group: u32) -> String {
    format!("{GROUPS}{group}")
}

/// Name of a member's record, by the number of its server.
#[must_use]
pub fn member_name(server: u32) -> String {
    format!("{MEMBERS}{server}")
}

/// The configuration of a cluster, created by its first server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterConfig {
    /// Slots of keys, fixed for the life of the cluster.
    pub slots: u32,
    /// Groups, which share the slots. It only grows.
    pub groups: u32,
    /// Servers of a group.
    pub replicas: u32,
    /// Groups that get no slots, and whose servers end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drained: Vec<u32>,
    /// Fields that a later version of the program has written.
    #[serde(flatten)]
    pub later: LaterFields,
}

impl ClusterConfig {
    /// The groups that get slots.
    pub fn active(&self) -> impl Iterator<Item = u32> {
        (0..self.groups).filter(|group| !self.drained.contains(group))
    }

    /// The group of a server.
    #[must_use]
    pub fn group_of(&self, server: u32) -> u32 {
        server / self.replicas.max(1)
    }
}

/// The members of a group with their addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// Epoch, history, primary and followers in sync.
    #[serde(flatten)]
    pub group: Group,
    /// Addresses by server, also while a lease of a member has ended.
    #[serde(default)]
    pub addresses: BTreeMap<u32, Vec<String>>,
    /// Fields that a later version of the program has written.
    #[serde(flatten)]
    pub later: LaterFields,
}

/// A process of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// Server and start of the process.
    #[serde(flatten)]
    pub member: Member,
    /// The group that it belongs to.
    pub group: u32,
    /// Addresses of the data plane, such as `tcp://10.0.0.5:7000`.
    pub addresses: Vec<String>,
    /// Address of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
    /// The newest version of messages between servers that it reads and writes. 0: it is older than this field.
    #[serde(default)]
    pub speaks: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_flat_json() {
        let group =
            Group { epoch: 3, history: u64::MAX, primary: Member { server: 1, boot: 7 }, in_sync: vec![] };
        let addresses = [(1, vec!["tcp://a:1".to_owned()])].into();
        let record = GroupRecord { group, addresses, later: LaterFields::new() };
        let json = r#"{"epoch":3,"history":18446744073709551615,"primary":{"server":1,"boot":7},"in_sync":[],"addresses":{"1":["tcp://a:1"]}}"#;
        assert_eq!(serde_json::to_string(&record).expect("it is JSON"), json);
        // As the clients do: by a value in between.
        let value: serde_json::Value = serde_json::from_str(json).expect("it is JSON");
        assert_eq!(serde_json::from_value::<GroupRecord>(value).expect("it is a group"), record);
    }

    #[test]
    fn fields_of_later_versions_stay() {
        let later = r#"{"slots":64,"groups":2,"replicas":2,"zones":["a","b"]}"#;
        let config: ClusterConfig = serde_json::from_str(later).expect("it is a configuration");
        assert_eq!(serde_json::to_string(&config).expect("it is JSON"), later);
        let later = r#"{"epoch":1,"history":2,"primary":{"server":1,"boot":7},"in_sync":[],"addresses":{},"zone":"a"}"#;
        let group: GroupRecord = serde_json::from_str(later).expect("it is a group");
        assert_eq!(serde_json::to_string(&group).expect("it is JSON"), later);
    }
}
