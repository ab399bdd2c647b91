//! Tests of the learners over their public interface.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

mod arithmetic;
mod field_aware;
mod holdout;
mod jobs;
mod model_by_hand;
mod old_runs;
mod regression;
mod report_page;
mod resume;
mod runs;
mod streams;
mod telling;
mod training;
mod warm_start;
