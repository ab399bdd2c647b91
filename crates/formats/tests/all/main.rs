//! Tests of the readers by what their users call; one program, so that it is linked once.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "children print what they found; skipped tests say so"
)]

mod bounded;
mod by_column;
mod by_page;
#[cfg(feature = "objects")]
mod by_url;
mod columnar_read;
mod csv_records;
mod examples;
mod folders;
mod hostile;
mod keys;
mod messages_read;
mod text_robustness;
