//! Configuration of a table, and its validation.

pub(crate) mod estimate;
pub(crate) mod optimizer;

use serde::{Deserialize, Serialize};

use crate::config::optimizer::above_zero;
use crate::policy::clock::AGE_MAX;
use crate::{Init, Optimizer, StoreError};

/// The maximum number of weights per row.
pub const DIM_MAX: usize = 1 << 16;
/// The maximum number of blocks per row.
pub const BLOCKS_MAX: usize = 64;
/// The maximum length of a table or blob name.
pub const NAME_BYTES_MAX: usize = 256;
/// The maximum size of a counting filter.
pub const FILTER_BYTES_MAX: u64 = 1 << 34;
/// Gradients of at least this magnitude are rejected.
///
/// Their squares would overflow the optimizer's accumulators.
pub const GRADIENT_ABS_MAX: f32 = 1e18;

/// The position of the first gradient that is NaN or has a magnitude of at least [`GRADIENT_ABS_MAX`].
#[inline]
#[must_use]
pub fn bad_gradient(grads: &[f32]) -> Option<usize> {
    // No branch per value, so that it vectorizes; the comparison is false for NaN.
    let good = |g: &f32| g.abs() < GRADIENT_ABS_MAX;
    if grads.iter().fold(true, |all, g| all & good(g)) {
        return None;
    }
    grads.iter().position(|g| !good(g))
}

/// Consecutive coordinates of a row that share initialization and optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Block {
    /// Number of coordinates.
    pub dims: usize,
    /// Initial weights.
    pub init: Init,
    /// Update rule.
    pub optimizer: Optimizer,
}

/// Storage format of weights. Optimizer state, pulls, gradients and checkpoints are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// IEEE single precision.
    #[default]
    F32,
    /// IEEE half precision: 11 bits of precision, largest value 65504. Updates use stochastic rounding.
    F16,
    /// The upper half of an f32: 8 bits of precision, full range. Updates use stochastic rounding.
    Bf16,
}

/// Decides which new keys get a row when they are pushed.
///
/// Gradients of other new keys are dropped and counted ([`TableStats::rejected`](crate::TableStats)); pulls treat
/// these keys as absent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Admission {
    /// Every key.
    #[default]
    Always,
    /// Keys pushed in at least this many requests, counted by a count-min sketch of saturating 8-bit counters
    /// (Cormode & Muthukrishnan 2005).
    ///
    /// The count is approximate: collisions can admit a key early, and races between threads can admit it late.
    /// Each counter is halved once per `filter_bytes` sightings, so that rare keys are forgotten.
    Sightings {
        /// Number of requests, 2 to 255, including the present one.
        sightings: u8,
        /// Filter size, rounded up to a power of two. Use about eight bytes per new key to distinguish.
        #[serde(default = "default_filter_bytes")]
        filter_bytes: u64,
    },
    /// A random share of the sightings, drawn from (table seed, key, use clock).
    Probability {
        /// Probability per sighting, above 0 and at most 1.
        probability: f32,
    },
}

const fn default_filter_bytes() -> u64 {
    1 << 20
}

/// Decides which rows are evicted for new ones when the budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Eviction {
    /// No rows: a push that needs room fails with [`StoreError::TableFull`].
    #[default]
    Never,
    /// The least recently used rows, by the CLOCK algorithm (Corbató 1968).
    ///
    /// A cursor moves over the rows and evicts the least recently used quarter of those it passes (an eighth in
    /// small tables). Pushes count as use, and so does a sample of the pulls.
    Clock,
    /// Rows not used for this many pushes of the table. Without such rows a push fails with
    /// [`StoreError::TableFull`].
    Age {
        /// 1 to 2^31 - 1. Larger ages are stored as 2^31.
        pushes: u32,
    },
    /// Rows whose weights have a Euclidean norm below this.
    ///
    /// Without such rows a push fails with [`StoreError::TableFull`]. After a scan of all rows that found none, the
    /// next scan waits for one push per 1024 rows.
    Norm {
        /// Above 0.
        below: f32,
    },
}

/// How densely rows and the index are stored. It changes no result and no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packing {
    /// A row lies in one piece and touches no more cache lines than its size requires; the index is half to two thirds
    /// full.
    #[default]
    Fast,
    /// The fewest bytes: weights lie apart from header and state, without rounding, and the index is 78 to 87 percent
    /// full.
    ///
    /// A push touches two pages and more cache lines, and new keys cost more because the index grows in small steps.
    Compact,
}

/// Where an update writes a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writes {
    /// In place, under the row's sequence lock.
    #[default]
    InPlace,
    /// To a new place, which then replaces the old one in the index.
    ///
    /// A row that a reader has found does not change while it is read. This costs an extra row per key of a request
    /// in flight, and a store to the index per update. In a full table, requests may wait for each other.
    CopyOnWrite,
}

/// Configuration of a table. The weights of a row are the concatenation of its blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct TableConfig {
    /// Name in errors and checkpoints; 1 to [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// At least one block. The table's dim is the sum of the blocks' dims.
    pub blocks: Vec<Block>,
    /// Seed of the initialization.
    pub seed: u64,
    /// Memory limit of index and slab in bytes; `None` for no limit.
    ///
    /// A push that exceeds it evicts rows ([`Eviction`]), and fails with [`StoreError::TableFull`] if none can be
    /// evicted. Not counted are the old index during growth and, during a checkpoint, a bit per row and (with
    /// [`Writes::CopyOnWrite`]) 8 bytes per key that is pushed before its row was written.
    pub budget_bytes: Option<u64>,
    /// Storage format of weights.
    pub dtype: Dtype,
    /// Admission of new keys.
    pub admission: Admission,
    /// Eviction of rows from a full table.
    pub eviction: Eviction,
    /// Where an update writes a row.
    pub writes: Writes,
    /// How densely rows and the index are stored.
    pub packing: Packing,
}

impl TableConfig {
    /// A table of these blocks with default settings.
    ///
    /// Seed 0, no limit, f32, every key admitted, no eviction, updates in place, fast packing.
    #[must_use]
    pub fn new(name: impl Into<String>, blocks: Vec<Block>) -> TableConfig {
        TableConfig {
            name: name.into(),
            blocks,
            seed: 0,
            budget_bytes: None,
            dtype: Dtype::default(),
            admission: Admission::default(),
            eviction: Eviction::default(),
            writes: Writes::default(),
            packing: Packing::default(),
        }
    }

    /// A table of one block with the default settings of [`TableConfig::new`].
    #[must_use]
    pub fn single(name: &str, dims: usize, init: Init, optimizer: Optimizer) -> TableConfig {
        TableConfig::new(name, vec![Block { dims, init, optimizer }])
    }

    /// Weights per row.
    #[must_use]
    pub fn dim(&self) -> usize {
        // Saturating, because a damaged checkpoint may hold any numbers here.
        self.blocks.iter().fold(0, |dim, block| dim.saturating_add(block.dims))
    }

    /// Optimizer state values per row.
    #[must_use]
    pub fn state(&self) -> usize {
        let state = |block: &Block| block.optimizer.state_len(block.dims);
        self.blocks.iter().fold(0, |sum, block| sum.saturating_add(state(block)))
    }

    /// Why a device may not read rows of such a table in place. `None`: it may, if it can read their memory.
    #[must_use]
    pub fn not_held_because(&self) -> Option<&'static str> {
        if self.writes != Writes::CopyOnWrite {
            Some("it needs writes = \"copy_on_write\", because a row must not change while it is sent")
        } else if self.dtype != Dtype::F32 {
            Some("it needs dtype = \"f32\", because replies have 32-bit weights")
        } else {
            None
        }
    }

    /// The configuration of a table with the same weights and without optimizer state, for serving.
    ///
    /// Every key is admitted, no row is evicted, and there is no memory limit.
    #[must_use]
    pub fn weights_only(&self) -> TableConfig {
        let optimizer = Optimizer::Sgd { lr: 0.01, l2: 0.0 };
        let blocks = self.blocks.iter().map(|block| Block { dims: block.dims, init: Init::Zero, optimizer });
        let TableConfig { seed, dtype, packing, .. } = *self;
        TableConfig { seed, dtype, packing, ..TableConfig::new(&*self.name, blocks.collect()) }
    }

    /// Checks every setting against its bounds, as creating the table does.
    ///
    /// # Errors
    /// [`StoreError::Config`] names the table and the first wrong setting.
    pub fn check(&self) -> Result<(), StoreError> {
        let fail = |reason: String| Err(StoreError::Config { table: self.name.clone(), reason });
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return fail(format!("the name must have 1 to {NAME_BYTES_MAX} bytes"));
        }
        if self.blocks.is_empty() || self.blocks.len() > BLOCKS_MAX {
            return fail(format!("a row needs 1 to {BLOCKS_MAX} blocks, not {}", self.blocks.len()));
        }
        let mut dim = 0_usize;
        for (at, block) in self.blocks.iter().enumerate() {
            dim = dim.saturating_add(block.dims);
            if block.dims == 0 {
                return fail(format!("block {at} has dim 0"));
            }
            if let Err(reason) = block.init.check().and_then(|()| block.optimizer.check(block.init)) {
                return fail(format!("block {at}: {reason}"));
            }
        }
        if dim > DIM_MAX {
            return fail(format!("dim {dim} is above the limit of {DIM_MAX}"));
        }
        self.admission.check().and_then(|()| self.eviction.check()).or_else(fail)
    }
}

impl Admission {
    fn check(self) -> Result<(), String> {
        match self {
            Admission::Sightings { sightings: 0..2, .. } => {
                Err("admission sightings must be at least 2".to_string())
            }
            Admission::Sightings { filter_bytes, .. } if filter_bytes > FILTER_BYTES_MAX => Err(format!(
                "admission filter_bytes = {filter_bytes} is above the limit of {FILTER_BYTES_MAX}"
            )),
            Admission::Probability { probability } if !(probability > 0.0 && probability <= 1.0) => {
                Err(format!("admission probability = {probability} must be above 0 and at most 1"))
            }
            _ => Ok(()),
        }
    }
}

impl Eviction {
    fn check(self) -> Result<(), String> {
        match self {
            Eviction::Age { pushes } if !(1..=AGE_MAX).contains(&pushes) => {
                Err(format!("eviction pushes = {pushes} must be 1 to {AGE_MAX}"))
            }
            Eviction::Norm { below } => above_zero("eviction below", below),
            _ => Ok(()),
        }
    }
}

/// Scale of a push.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PushScale {
    /// Factor of the learning rate for this push only, for learning-rate schedules.
    ///
    /// FTRL ignores it: it lowers its rate per coordinate by itself, and another `alpha` would change learned
    /// weights.
    pub lr_scale: f32,
}

impl PushScale {
    /// Checks that the scale is finite and not negative; `table` is the name for the error.
    ///
    /// A scale of 0, as at the start of a warm-up, leaves weights unchanged (except those of FTRL) while optimizer
    /// states still learn.
    pub fn check(self, table: &str) -> Result<(), StoreError> {
        if self.lr_scale.is_finite() && self.lr_scale >= 0.0 {
            return Ok(());
        }
        Err(StoreError::BadScale { table: table.to_owned(), lr_scale: self.lr_scale })
    }
}

impl Default for PushScale {
    fn default() -> PushScale {
        PushScale { lr_scale: 1.0 }
    }
}
