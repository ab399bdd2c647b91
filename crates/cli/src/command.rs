//! The subcommands, one file each.

pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod ctl;
pub(crate) mod download;
pub(crate) mod eval;
pub(crate) mod export;
pub(crate) mod external;
pub(crate) mod hub;
pub(crate) mod hub_feed;
pub(crate) mod hub_pages;
pub(crate) mod inspect;
pub(crate) mod keeper;
pub(crate) mod key;
pub(crate) mod predict;
pub(crate) mod ps;
pub(crate) mod runs;
pub(crate) mod serve;
pub(crate) mod serve_from;
pub(crate) mod similar;
pub(crate) mod synth;
pub(crate) mod train;
pub(crate) mod watch;
