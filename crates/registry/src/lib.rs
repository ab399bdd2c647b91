//! The registry of clusters: small JSON records by name, changed by compare-and-set, with watches and leases.
//!
//! A [`Registry`] has the records of one cluster. [`RegistryUrl::open`] gives one of a keeper (`keeper://`) or of etcd
//! (`etcd://`); [`MemoryRegistry`] is for tests. All calls block, with a time limit, and are for plain threads; the
//! async code of the clients stays inside. [`GroupEntry`] runs the registry's part of a replica, [`Presence`] keeps the
//! record of a process alive, and [`Keeper`] is the server of `sanderling keeper`. The crate knows no tables, frames,
//! signals or command lines, and decides nothing about groups.

pub mod limit;

mod name;

mod registry;
pub use registry::{Change, Edit, Listing, Outcome, Record, Registry, RegistryError, Watched};

mod cluster;
pub use cluster::{ClusterConfig, GroupRecord, MemberRecord, Placement, SlotRun, group_name, member_name};
pub use cluster::{CONFIG, GROUPS, MEMBERS, PLACEMENT};

mod group_entry;
pub use group_entry::GroupEntry;

mod presence;
pub use presence::{Presence, PresenceEvent};

mod url;
pub use url::{Kind, Options, RegistryUrl};

mod book;

mod memory;
pub use memory::MemoryRegistry;

mod network;

mod keeper_client;

mod etcd;

mod keeper;
pub use keeper::{Keeper, KeeperConfig, KeeperError, KeeperEvent};
