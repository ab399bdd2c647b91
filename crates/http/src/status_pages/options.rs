//! Inputs of the status pages of a process: options, settings, pages of its caller. Shows nothing.

use std::sync::Arc;

use super::model::Page;
use super::{Asked, Flag, Profiler};

/// Settings of the status pages of a process.
#[derive(Debug, Clone, Default)]
pub struct PageOptions {
    /// Options of the process.
    pub flags: Vec<Flag>,
    /// Whether the pages are shown at a port that other machines reach.
    pub shown: bool,
    /// Takes profiles. `None`: there is no `/profile`.
    pub profiler: Option<Profiler>,
    /// Pages of the caller, beside those of the process.
    pub more: Vec<MorePage>,
}

/// A page that the caller of a process adds, as one of its cluster.
#[derive(Clone)]
pub struct MorePage {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) make: Arc<dyn Fn(&Asked<'_>) -> Page + Send + Sync>,
}

impl MorePage {
    /// The page `/NAME`, with a sentence about it.
    pub fn new(
        name: &'static str,
        help: &'static str,
        make: impl Fn(&Asked<'_>) -> Page + Send + Sync + 'static,
    ) -> MorePage {
        MorePage { name, help, make: Arc::new(make) }
    }
}

impl std::fmt::Debug for MorePage {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MorePage").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Parses, checks and applies a value.
type Set = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// An option that can be set while the process runs.
pub struct Setting {
    pub(super) name: &'static str,
    pub(super) get: Box<dyn Fn() -> String + Send + Sync>,
    pub(super) set: Set,
}

impl std::fmt::Debug for Setting {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Setting").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Setting {
    /// The option `--NAME`. `get` tells its value, `set` parses, checks, applies and logs a new one.
    pub fn new(
        name: &'static str,
        get: impl Fn() -> String + Send + Sync + 'static,
        set: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) -> Setting {
        Setting { name, get: Box::new(get), set: Box::new(set) }
    }
}
