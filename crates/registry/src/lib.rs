//! The registry of clusters: small JSON records by name, changed by compare-and-set, with watches and leases.
//!
//! A [`Registry`] has the records of one cluster. [`RegistryUrl::open`] gives one of a keeper (`keeper://`) or of etcd
//! (`etcd://`); [`MemoryRegistry`] is for tests. All calls block, with a time limit, and are for plain threads; the
//! async code of the clients stays inside. [`Presence`] keeps the record of a process alive. The crate `keeper` has the
//! server of `keeper://`, and shares [`state_machine`], [`history`] and [`protocol`] with this one. It also has the
//! changes of a cluster that runs: more and fewer groups, the measured load of each, and the plan of moves. The crate knows no tables, frames,
//! signals or command lines.

pub mod limit;

mod name;
pub use name::{check_cluster, check_prefix, check_record};

mod registry;
pub use registry::{Change, Edit, Listing, Outcome, Record, Registry, RegistryError, Watched};

mod cluster;
pub use cluster::{CONFIG, GROUPS, MEMBERS, PLACEMENT};
pub use sanderling_replica::{Member, SlotWork};

pub use cluster::{
    ClusterConfig, GroupRecord, LaterFields, MemberRecord, Move, MoveState, PinnedPlace, Placement,
    SLOTS_DEFAULT, group_name, member_name,
};

mod cluster_view;
pub use cluster_view::{ClusterView, MoveView, ServerView, SlotRunView, is_lost, numbered};

mod membership;
pub use membership::{Place, Wanted, agree, claim};

mod plan;
pub use plan::{PlannedMove, Sharing, Weights, costs, moved, plan, plan_pinned};

mod group_load;
pub use group_load::{GroupLoad, LOADS, LoadWindow, load_name, loads, weights};

mod balancer;
pub use balancer::{Advice, Balancer, REBALANCE_AFTER_S};

mod elastic;
pub use elastic::{add_group, begin_moves, cancel_moves, drain_group, layout};

mod presence;
pub use presence::{Presence, PresenceEvent};

mod options;
pub use options::Options;

mod url;
pub use url::{Kind, RegistryUrl};

pub mod protocol;

pub mod state_machine;

pub mod history;

mod memory;
pub use memory::MemoryRegistry;

mod network;

mod keeper_client;

mod etcd_messages;

mod etcd;

mod open;
