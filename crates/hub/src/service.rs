//! The hub as a process for others: minibatches are made here and handed to trainers, each to one.

pub mod limit;

mod done;

mod desk;
pub use desk::TrainerCounts;
