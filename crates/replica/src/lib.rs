//! Replication of a server's tables: a machine without clock, socket or thread.
//!
//! A group is one primary and its followers. The primary applies pushes and sends each with the version of every row
//! after it; followers apply each row's updates in the order of its versions, so that replicas are equal to the bit
//! although pushes have no order over the server. A push is acknowledged when every follower in sync has received and
//! marked it. A small record in a registry says which process is the primary and which are in sync.
//!
//! [`Node::step`] takes an [`Event`] and returns [`Action`]s; a driver owns sockets, clock and registry. The simulator
//! drives several nodes through random faults, over real tables and push windows.

pub mod limit;
pub mod push_dedup;

mod fault;
mod group;
mod message;
mod mover;
mod placement;
mod rows;

mod follower;
mod primary;

mod node;

#[cfg(test)]
mod simulator;

pub use group::{Group, Member, Revised};
pub use message::{
    Action, Answer, AppliedPush, Envelope, Event, Message, Operation, Push, Record, TableState,
};
pub use mover::{
    Around, Content, GroupTable, Mover, Page, Progress, Question, Reply, TableHead, Task, Told, answer,
};
pub use node::{Config, Node, Standing};
pub use placement::{
    LaterFields, Move, MoveState, PinnedPlace, Placement, SLOTS_DEFAULT, SlotOwner, SlotRun, SlotSpan,
    SlotWork,
};
