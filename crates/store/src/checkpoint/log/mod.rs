//! The delta log: changed rows, appended group by group, so that little is lost between two checkpoints.
//!
//! A group is what one drain of all tables found. It counts once its last record, the commit, is on the device.

mod record;
mod replay;
mod segments;
mod write;

#[cfg(all(test, not(loom)))]
mod crash;

pub use replay::LogTarget;
pub use segments::{LogEnd, LogReader, LogSegment, LogSummary};
pub use write::{LogWriter, Logged};
