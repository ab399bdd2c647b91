//! The `[model]` table of a configuration. Knows no data, and of features only their number.

use sanderling_sample::spec::Feature;
use sanderling_store::{DIM_MAX, Table, Writes};
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
    /// Length of a factor: a key has one in a factorization machine, and one per feature if that is field-aware.
    #[serde(default = "default_rank")]
    pub rank: usize,
    /// Standard deviation of the factors' initial values.
    #[serde(default = "default_init_std")]
    pub init_std: f32,
    /// Field-aware factorization machines: whether the values of a row are scaled to a sum of squares of 1; default: yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalize: Option<bool>,
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

fn default_bias() -> bool {
    true
}

impl Default for Model {
    fn default() -> Self {
        Model {
            kind: ModelKind::Lr,
            rank: default_rank(),
            init_std: default_init_std(),
            normalize: None,
            bias: true,
            table_budget_bytes: 0,
        }
    }
}

impl Model {
    /// Numbers of a key's factors, with so many features: 0 for logistic regression.
    #[must_use]
    pub fn factors(&self, features: usize) -> usize {
        match self.kind {
            ModelKind::Lr => 0,
            ModelKind::Fm => self.rank,
            ModelKind::Ffm => features.saturating_mul(self.rank),
        }
    }

    /// Whether the values of a row are scaled to a sum of squares of 1.
    #[must_use]
    pub fn normalizes(&self) -> bool {
        self.kind == ModelKind::Ffm && self.normalize.unwrap_or(true)
    }

    /// Checks that the rows of a field-aware model fit into tables.
    pub(super) fn check_fields(&self, features: &[Feature]) -> Result<(), String> {
        if self.kind != ModelKind::Ffm {
            return Ok(());
        }
        if let [feature] = features {
            return Err(format!(
                "model.type = \"ffm\": the only feature, {:?}, is one field; add a [[feature]] per field, for libffm \
                 each = [\"field_0\", \"field_1\"]",
                feature.name
            ));
        }
        let (rank, fields) = (self.rank, features.len());
        let factors = self.factors(fields);
        if factors >= DIM_MAX {
            return Err(format!(
                "model.rank = {rank}: ffm keeps {fields} features x {rank} = {factors} numbers per key, and a row has room for \
                 {}; lower rank, or leave features out",
                DIM_MAX - 1
            ));
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.normalize.is_some() && self.kind != ModelKind::Ffm {
            return Err("model.normalize: only for model.type = \"ffm\"; leave it out".to_owned());
        }
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
            ModelKind::Ffm => format!("field-aware factorization machine, rank {}", self.rank),
        }
    }
}

impl ModelKind {
    /// The value of `model.type`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ModelKind::Lr => "lr",
            ModelKind::Fm => "fm",
            ModelKind::Ffm => "ffm",
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
    /// A field-aware factorization machine (Juan et al. 2016, equation 4).
    Ffm,
}
