//! What a table is configured by, and the check that a configuration makes sense. Knows nothing of how rows are
//! stored or updated.

pub(crate) mod estimate;
pub(crate) mod optimizer;

use serde::{Deserialize, Serialize};

use crate::config::optimizer::above_zero;
use crate::policy::clock::AGE_MAX;
use crate::update::kernel::Kernel;
use crate::{Init, Optimizer, StoreError};

/// Most weights that one row may have.
pub const DIM_MAX: usize = 1 << 16;
/// Most blocks that one row may be made of.
pub const BLOCKS_MAX: usize = 64;
/// Longest name of a table or a blob.
pub const NAME_BYTES_MAX: usize = 256;
/// Largest counting filter.
pub const FILTER_BYTES_MAX: u64 = 1 << 34;
/// A gradient of this size or more is refused: its square would overflow the optimizer's accumulators.
pub const GRADIENT_ABS_MAX: f32 = 1e18;

/// Where the first of these gradients is that is refused: not a number, or of [`GRADIENT_ABS_MAX`] or more.
#[inline]
#[must_use]
pub fn bad_gradient(grads: &[f32]) -> Option<usize> {
    // Without a branch per value, so that it vectorises; the comparison is false for NaN.
    let good = |g: &f32| g.abs() < GRADIENT_ABS_MAX;
    if grads.iter().fold(true, |all, g| all & good(g)) {
        return None;
    }
    grads.iter().position(|g| !good(g))
}

/// Consecutive coordinates of a row that share initialisation and optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Block {
    /// Number of coordinates.
    pub dims: usize,
    /// First weights.
    pub init: Init,
    /// Update rule.
    pub optimizer: Optimizer,
}

/// How the weights of a row are kept. Optimizer state is always f32, and so are pulls, gradients and checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// IEEE single precision.
    #[default]
    F32,
    /// IEEE half precision: 11 bits of precision, largest value 65504. Updates round stochastically.
    F16,
    /// The upper half of an f32: 8 bits of precision, its range. Updates round stochastically.
    Bf16,
}

/// Which keys without a row get one when they are pushed. The gradients of the others are dropped and counted
/// ([`TableStats::rejected`](crate::TableStats)); pulls see them as absent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Admission {
    /// All.
    #[default]
    Always,
    /// Those pushed in at least this many requests, this one included, as a counting filter (count-min sketch of
    /// saturating 8-bit counters, Cormode & Muthukrishnan 2005) remembers: now and then fewer are enough, and more
    /// are needed where threads lose a count to each other. Each count is halved once in as many sightings as the filter
    /// has bytes, so that rare keys are forgotten.
    Sightings {
        /// 2 to 255.
        sightings: u8,
        /// Size of the filter, rounded up to a power of two; about eight times the number of new keys that it should
        /// tell apart.
        #[serde(default = "default_filter_bytes")]
        filter_bytes: u64,
    },
    /// Each time with this probability, drawn from (table seed, key, use clock).
    Probability {
        /// Above 0, at most 1.
        probability: f32,
    },
}

const fn default_filter_bytes() -> u64 {
    1 << 20
}

/// Which rows make room for new ones when the budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Eviction {
    /// None: a push that needs room gives [`StoreError::TableFull`].
    #[default]
    Never,
    /// After the CLOCK algorithm (Corbató 1968): a hand goes round the rows and takes, of those that it comes by, the quarter
    /// (in small tables an eighth) that were not used for longest. Pushes count as use, and so does a sample of the pulls.
    Clock,
    /// Those not used for this many pushes of the table; [`StoreError::TableFull`] when there are none.
    Age {
        /// 1 to 2^31 - 1: rows that were not used for longer are all taken for 2^31 pushes old.
        pushes: u32,
    },
    /// Those whose weights have a Euclidean norm below this; [`StoreError::TableFull`] when there are none. Once none was found
    /// among all rows, they are looked for again after a push per 1024 rows.
    Norm {
        /// Above 0.
        below: f32,
    },
}

/// Where an updated row goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writes {
    /// Where it was, under its version.
    #[default]
    InPlace,
    /// To another place; readers find it there from one moment to the next. What a reader has found never changes while
    /// it looks. Costs a row more per key of a request in flight, and a store to the index per update. In a table that is too
    /// full for that, requests wait for one another.
    CopyOnWrite,
}

/// What a table is made from. A row's weights are the blocks one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct TableConfig {
    /// Name in errors and checkpoints; 1 to [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// At least one block; the table's dim is the sum of their dims.
    pub blocks: Vec<Block>,
    /// Seed of the initialisation.
    pub seed: u64,
    /// Most bytes of index and slab; `None` for no limit. For a push that needs more, [`Eviction`] makes room; where it
    /// finds none, the push gives [`StoreError::TableFull`]. Not counted are: while the index grows, the old one beside the new
    /// one, for a moment; and while a checkpoint is written, a bit per row, and with [`Writes::CopyOnWrite`] 8 bytes per key
    /// that is pushed before its turn comes.
    pub budget_bytes: Option<u64>,
    /// How weights are kept.
    pub dtype: Dtype,
    /// Which new keys get a row.
    pub admission: Admission,
    /// Which rows make room when there is none.
    pub eviction: Eviction,
    /// Where an updated row goes.
    pub writes: Writes,
}

impl TableConfig {
    /// A table of these blocks: seed 0, no limit, f32, every key admitted, nothing evicted, rows updated in place.
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
        }
    }

    /// A table of one block, otherwise as [`TableConfig::new`].
    #[must_use]
    pub fn single(name: &str, dims: usize, init: Init, optimizer: Optimizer) -> TableConfig {
        TableConfig::new(name, vec![Block { dims, init, optimizer }])
    }

    /// Weights per row.
    #[must_use]
    pub fn dim(&self) -> usize {
        // A damaged checkpoint may say anything here, before it is checked.
        self.blocks.iter().fold(0, |dim, block| dim.saturating_add(block.dims))
    }

    /// Values of optimizer state per row.
    #[must_use]
    pub fn state(&self) -> usize {
        let state = |block: &Block| Kernel::new(block.optimizer).state_len(block.dims);
        self.blocks.iter().fold(0, |sum, block| sum.saturating_add(state(block)))
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
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
                Err("admission after sightings needs at least 2 of them".to_string())
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
                Err(format!("eviction pushes = {pushes}; 1 to {AGE_MAX} are possible"))
            }
            Eviction::Norm { below } => above_zero("eviction below", below),
            _ => Ok(()),
        }
    }
}

/// What a pull yields for a key that has no row. A pull never creates rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// Zeros: an unseen key says nothing (evaluation, serving).
    Zero,
    /// The weights that the row would be created with (training).
    Init,
}

/// How the rows of one sample become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// Sum of `value * row`.
    Sum,
    /// That sum divided by the number of keys; zeros for no keys.
    Mean,
}

/// What a push scales its update by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PushScale {
    /// Multiplies the optimizer's learning rate, `lr`, for this push only: learning-rate schedules. FTRL is not scaled: it lowers its
    /// rate per coordinate by itself, and another `alpha` would change weights already learned.
    pub lr_scale: f32,
}

impl PushScale {
    /// Refuses a scale that is no finite number from 0 on, for the table of this name. By 0, where schedules begin that warm up,
    /// weights stay as they are (those of FTRL do not), and optimizer states learn.
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
