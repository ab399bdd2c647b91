//! The `[model]` table of a configuration. Knows no data and no feature.

use sanderling_store::{Packing, Table, Writes};
use serde::{Deserialize, Serialize};

/// Most factors per key.
pub const RANK_MAX: usize = 1024;

/// The `[model]` table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Which model.
    #[serde(rename = "type", default)]
    pub kind: ModelKind,
    /// Factors per key of a factorization machine.
    #[serde(default = "default_rank")]
    pub rank: usize,
    /// Standard deviation of the factors' initial values.
    #[serde(default = "default_init_std")]
    pub init_std: f32,
    /// Whether there is a constant term.
    #[serde(default = "default_bias")]
    pub bias: bool,
    /// Memory limit per table in bytes; 0: no limit. A push that needs more fails with the table's name.
    #[serde(
        rename = "table_budget",
        default,
        with = "super::quantity::bytes",
        skip_serializing_if = "is_zero"
    )]
    pub table_budget_bytes: u64,
    /// How densely tables are stored.
    #[serde(default, skip_serializing_if = "is_fast")]
    pub packing: Packing,
}

fn default_rank() -> usize {
    8
}

/// Largest standard deviation of first weights: beyond, some would start at infinity.
const INIT_STD_MAX: f32 = 5e37;

fn default_init_std() -> f32 {
    0.01
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

fn is_fast(packing: &Packing) -> bool {
    *packing == Packing::Fast
}

fn default_bias() -> bool {
    true
}

impl Default for Model {
    fn default() -> Self {
        let packing = Packing::default();
        Model { kind: ModelKind::Lr, rank: 8, init_std: 0.01, bias: true, table_budget_bytes: 0, packing }
    }
}

impl Model {
    /// Factors per key: 0 for logistic regression.
    #[must_use]
    pub fn factors(&self) -> usize {
        match self.kind {
            ModelKind::Lr => 0,
            ModelKind::Fm => self.rank,
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if !(1..=RANK_MAX).contains(&self.rank) {
            return Err(format!("model.rank = {}: must be 1 to {RANK_MAX}", self.rank));
        }
        if !(self.init_std >= 0.0 && self.init_std.is_finite()) {
            return Err(format!("model.init_std = {}: must be finite and 0 or more", self.init_std));
        }
        if self.init_std > INIT_STD_MAX {
            return Err(format!("model.init_std = {:e}: must be at most {INIT_STD_MAX:e}", self.init_std));
        }
        let (budget, least) = (self.table_budget_bytes, Table::least_bytes(Writes::default()) as u64);
        if (1..least).contains(&budget) {
            return Err(format!(
                "model.table_budget = {budget}: a table without rows takes {least} bytes; leave it out for no limit"
            ));
        }
        Ok(())
    }

    /// The model's name in a sentence.
    #[must_use]
    pub fn describe(&self) -> String {
        match self.kind {
            ModelKind::Lr => "logistic regression".to_string(),
            ModelKind::Fm => format!("factorization machine, rank {}", self.rank),
        }
    }
}

/// The built-in models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Logistic regression.
    #[default]
    Lr,
    /// A factorization machine of degree two (Rendle 2010, equation 1).
    Fm,
}
