//! The `[table.NAME]` tables of a configuration: memory, storage type, admission and eviction. Knows no table's content.

use std::path::PathBuf;

use sanderling_store::{Admission, Block, Dtype, Eviction, Packing, TableConfig};
use serde::{Deserialize, Serialize};

/// The name that stands for every table without an entry of its own.
pub(crate) const EVERY_TABLE: &str = "*";

/// A `[table.NAME]` table; what it leaves out is as for all tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableOptions {
    /// Memory limit in bytes; default: `model.table_budget`.
    #[serde(
        rename = "budget",
        default,
        with = "super::quantity::optional_bytes",
        skip_serializing_if = "Option::is_none"
    )]
    pub budget_bytes: Option<u64>,
    /// Storage type of weights; default: f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
    /// Which new keys get a row; default: every key, or by `min_count` of the features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionOption>,
    /// Which rows go when the budget is used up; default: none, and a push that needs room fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction: Option<EvictionOption>,
    /// How densely rows and index lie in memory; default: fast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packing: Option<Packing>,
    /// Where the table's memory is; default: private to the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryOption>,
}

/// Memory that outlives the process: `{ kept = "/dev/shm/sanderling" }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryOption {
    /// The folder with the memory of tables in files.
    pub kept: PathBuf,
}

/// An admission: in short, by name, or as Python's `Table` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AdmissionOption {
    /// `{ after = 3 }`: keys that occurred in at least so many minibatches.
    After(After),
    /// `"always"`.
    Name(AdmissionName),
    /// `{ type = "sightings", sightings = 3 }`.
    Full(Admission),
}

/// Admission by the number of minibatches in which a key occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct After {
    /// Minibatches, the present one included: 2 to 255.
    pub after: u8,
    /// Bytes of the counting filter, about eight per new key; default: 1 MiB.
    #[serde(default, with = "super::quantity::optional_bytes", skip_serializing_if = "Option::is_none")]
    pub filter: Option<u64>,
}

/// An admission without settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdmissionName {
    /// Every key.
    Always,
}

/// An eviction: by name, or as Python's `Table` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EvictionOption {
    /// `"never"` or `"clock"`.
    Name(EvictionName),
    /// `{ type = "age", pushes = 100000 }`.
    Full(Eviction),
}

/// An eviction without settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvictionName {
    /// No rows.
    Never,
    /// The least recently used rows.
    Clock,
}

impl AdmissionOption {
    fn admission(self) -> Admission {
        match self {
            AdmissionOption::After(After { after, filter }) => sightings(after, filter),
            AdmissionOption::Name(AdmissionName::Always) => Admission::Always,
            AdmissionOption::Full(admission) => admission,
        }
    }
}

/// Bytes of a counting filter, where the configuration does not say.
const FILTER_BYTES: u64 = 1 << 20;

fn sightings(after: u8, filter: Option<u64>) -> Admission {
    Admission::Sightings { sightings: after, filter_bytes: filter.unwrap_or(FILTER_BYTES) }
}

impl EvictionOption {
    fn eviction(self) -> Eviction {
        match self {
            EvictionOption::Name(EvictionName::Never) => Eviction::Never,
            EvictionOption::Name(EvictionName::Clock) => Eviction::Clock,
            EvictionOption::Full(eviction) => eviction,
        }
    }
}

impl TableOptions {
    /// A table with these options; `min_count` is that of its features, and 0 without any.
    pub(crate) fn apply(&self, min_count: u8, table: TableConfig) -> TableConfig {
        let by_count = (min_count > 1).then(|| sightings(min_count, None));
        let admission = self.admission.map(AdmissionOption::admission).or(by_count);
        TableConfig {
            budget_bytes: self.budget_bytes.or(table.budget_bytes),
            dtype: self.dtype.unwrap_or(table.dtype),
            packing: self.packing.unwrap_or(table.packing),
            admission: admission.unwrap_or(table.admission),
            eviction: self.eviction.map_or(table.eviction, EvictionOption::eviction),
            ..table
        }
    }

    /// Why the options are invalid, if they are.
    pub(super) fn check(&self, name: &str) -> Result<(), String> {
        let block = Block {
            dims: 1,
            init: sanderling_store::Init::Zero,
            optimizer: sanderling_store::Optimizer::Sgd { lr: 0.1, l2: 0.0 },
        };
        let table = self.apply(0, TableConfig::new(name, vec![block]));
        let named = |reason: &str| format!("table.{name}: {reason}");
        if self.memory.as_ref().is_some_and(|memory| memory.kept.as_os_str().is_empty()) {
            return Err(named("memory.kept names no folder; give one, such as \"/dev/shm/sanderling\""));
        }
        match (table.eviction, table.budget_bytes) {
            (Eviction::Never, _) | (_, Some(_)) => {}
            // Age evicts in maintenance rounds too, but the learners have none.
            (_, None) => return Err(named("eviction acts on a full table: give a budget, such as \"1GiB\"")),
        }
        // In the words of this section.
        let words =
            [("admission sightings", "admission.after"), ("admission filter_bytes", "admission.filter")];
        table.check().map_err(|error| {
            let error = error.to_string();
            let is_after = matches!(self.admission, Some(AdmissionOption::After(_)));
            let words = words.iter().filter(|_| is_after);
            named(&words.fold(error, |error, (from, to)| error.replace(from, to)))
        })
    }
}
