//! The load generator: scripts decide what is asked, threads that share nothing ask it, and histograms say what came of
//! it. Knows no command line, and nothing of how a server answers.
//!
//! The way of a request: a thread's [`engine`] says when one is due; its script (`script`) is called once and takes keys from
//! the thread's generators (`generate`); its [`port`] carries the [`request`] to the tables, wherever they are; what was
//! observed goes to the thread's histograms (`observed`), which are merged when the run is over and become a result.

pub mod campaign;
pub mod compare;
pub mod engine;
pub mod generate;
pub mod null;
pub mod observed;
pub mod plot;
pub mod port;
pub mod request;
pub mod result;
pub mod script;
pub mod selftest;
pub mod show;
pub mod target;
