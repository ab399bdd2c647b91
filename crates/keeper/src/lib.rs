//! The keeper: a registry of clusters as one process, whose changes are on disk before they are answered.
//!
//! A [`Keeper`] is one thread that writes and one that answers HTTP. It knows no groups, tables, signals or command
//! lines; [`sanderling_registry`] has its clients.

mod limit;

mod disk;

mod journal;

#[cfg(test)]
mod crash;

mod committer;

mod metrics;

mod cluster_page;
pub use cluster_page::cluster_parts;

mod slots_page;
pub use slots_page::slots_parts;

mod pages;

mod router;

mod keeper;
pub use keeper::{Keeper, KeeperConfig, KeeperError};

/// Functions for fuzzers.
#[cfg(fuzzing)]
pub mod fuzzing {
    use sanderling_registry::state_machine::StateMachine;

    /// Reads the bytes of a journal.
    #[must_use]
    pub fn read_journal(bytes: &[u8]) -> Option<StateMachine> {
        crate::journal::read(bytes).ok().map(|found| found.machine)
    }

    /// A frame with this payload and its checksum.
    #[must_use]
    pub fn frame(payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        crate::journal::frame_of(&mut bytes, payload);
        bytes
    }
}
