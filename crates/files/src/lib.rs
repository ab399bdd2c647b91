//! Files that a user names: urls told from paths, and output files that appear whole or not at all.

mod name;
mod output;

pub use name::{is_url, without_query};
pub use output::{OutputFile, refuse_url};
