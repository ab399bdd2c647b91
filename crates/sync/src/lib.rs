//! Synchronous steps: sums of all workers' gradients, applied once per step; progress of the workers; meetings.
//!
//! The core is a state machine ([`Group`]) that knows no network, no clock and no table. Parameter servers keep the groups of
//! all their jobs in a [`GroupRegistry`]; workers that are threads of one process share a [`Meeting`], which adds waiting and
//! the tables of the process.
//!
//! A step has three phases. Each worker hands in its messages ([`Group::take`]), to several servers perhaps. When all
//! servers have them, the worker tells each server so ([`StepReport::Whole`]). When all workers have done that, the step is
//! decided: [`Group::begin`] returns the messages, [`Complete::each`] the sums, and [`Group::end`] records that they are
//! applied. No worker reports before all servers have its messages, so a worker that dies leaves a step that either is
//! decided nowhere or can be completed everywhere.
//!
//! The messages of steps on the wire are in `sanderling-wire`, their commands in `sanderling-server`, and the worker's
//! connections to servers in `sanderling-client` (docs/design/0010-synchronous-steps-at-the-servers.md).

pub mod limit;

mod error;
pub use error::StepError;

mod budget;
pub use budget::{Budget, Held};

mod fixed_point;
pub use fixed_point::{Adding, Fixed, OutOfRange};

mod part;
pub use part::{Gradients, GradientsRef, Part};

mod sum;
pub use sum::{Complete, Mismatch, Sums, TableShare};

mod meetings;
pub use meetings::Met;

mod group;
pub use group::{Group, Participant, Progress, StepReport};

mod registry;
pub use registry::GroupRegistry;

mod cancel;
pub use cancel::CancelFlags;

mod shards;

mod meeting;
pub use meeting::{Meeting, MeetingError};
