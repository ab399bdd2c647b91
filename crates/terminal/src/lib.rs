//! Parts that the programs `sanderling`, `sanderling-load` and `sanderling-bench` share: results on standard output, notes and
//! progress on standard error, signals, exit codes, and the options that say how servers are asked. Knows no command.

#[macro_use]
pub mod output;
pub mod command_tree;
pub mod failure;
pub mod log;
pub mod program;
pub mod progress;
pub mod quantity;
pub mod renamed;
pub mod servers;
pub mod stop;
pub mod token;
pub mod width;
