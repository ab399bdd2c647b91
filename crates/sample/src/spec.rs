//! The feature spec: how the columns of a file become labels, weights and keyed features.
//!
//! These structures are read from TOML (`sanderling train`), from Python dictionaries, and from a saved model. The
//! spec says nothing of file formats, models or optimizers.

mod check;
mod sparse;
mod written;
pub use written::check_all_written;

pub use sparse::{LIBFFM_COLUMN, LIBFFM_FIELD_MAX};

pub use sanderling_pull::Pooling;
use serde::{Deserialize, Serialize};

use crate::error::SampleError;
use crate::key;

/// A feature spec: the label, the weight and the features of every row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The label column and its positive values.
    #[serde(default)]
    pub label: Label,
    /// A column of row weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    /// Down-sampling of negatives in training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negatives: Option<Negatives>,
    /// The features; after [`Spec::expand`] one entry per feature.
    #[serde(default)]
    pub feature: Vec<Feature>,
}

/// The label column.
///
/// A row is positive if its text is listed in `positive`, or, without a list, if it is a number above `threshold`. The
/// label of a regression is a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// Name of the column.
    #[serde(default = "label_column")]
    pub column: String,
    /// Texts that mean positive; every other text means negative.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub positive: Vec<String>,
    /// Without `positive`: numbers above this are positive.
    #[serde(default)]
    pub threshold: f64,
    /// Whether the label is the number itself, as a regression learns it, rather than 0 or 1.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub number: bool,
}

impl Default for Label {
    fn default() -> Self {
        Label { column: label_column(), positive: Vec::new(), threshold: 0.0, number: false }
    }
}

fn label_column() -> String {
    "label".to_string()
}

/// A column with each row's weight: a finite number, zero or more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// Name of the column.
    pub column: String,
}

/// Negative down-sampling in training.
///
/// A negative is kept with probability `keep` and then weighs `1 / keep`, so that loss and predictions stay
/// calibrated without a later correction (McMahan et al. 2013, section 6.3). Evaluation always reads every row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Negatives {
    /// Share of negatives to keep, above 0 and at most 1.
    pub keep: f64,
    /// The seed; with the row's position it decides which negatives are kept.
    #[serde(default)]
    pub seed: u64,
}

/// One feature, or with `each` a family of features with the same settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feature {
    /// Name of the feature; default: its column.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The input column; default: the feature's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// Several input columns that feed this one feature.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// Columns that each become a feature of their own name with the settings given here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub each: Vec<String>,
    /// How a field becomes keys.
    #[serde(default, rename = "type")]
    pub kind: FeatureKind,
    /// Separator of a `multi` field, one ASCII character; default `|`. In a `cross`, texts are split there and each
    /// part is crossed; by default they are not split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub separator: Option<char>,
    /// Key derivation; default `hash`, for `sparse` features `raw`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyRule>,
    /// Salt of the hash; default: the name of the table, so that features that share a table share keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salt: Option<String>,
    /// Embedding width for models that leave it to the feature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dim: Option<usize>,
    /// Table that holds the rows; default: the name of the feature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// Occurrences before a key of the feature gets a row, 1 to 255, counted in minibatches; default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_count: Option<u8>,
    /// How the rows of several keys are combined.
    #[serde(default)]
    pub pooling: Pooling,
    /// The default of a missing field: a text for categorical features, a number for numeric ones. Without it a
    /// missing field has a key of its own (`raw` keys, `multi` and `sparse` features: no key).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<DefaultField>,
    /// Number of quantile buckets; default 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<usize>,
    /// Upper ends of the quantile buckets, ascending; by default fitted to the training data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boundaries: Option<Vec<f64>>,
}

/// How a field becomes keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureKind {
    /// One key per field.
    #[default]
    Categorical,
    /// One key per separated part of the field.
    Multi,
    /// One key per combination of the values of all columns.
    Cross,
    /// One key for the feature, the number as its value.
    Numeric,
    /// One key for the feature, `sign(x) ln(1 + |x|)` as its value.
    Log,
    /// One key per quantile bucket.
    Quantile,
    /// `index:value` pairs: one key per index. All pairs of a libsvm or libffm line, or those of the libffm fields that its columns
    /// name (`field_0`, `field_1`, ...).
    Sparse,
}

/// Key derivation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyRule {
    /// XXH3-64 of the field's text, seeded by the feature's salt.
    #[default]
    Hash,
    /// The field is a 64-bit integer and is the key; a negative one by its bits.
    Raw,
    /// The hash modulo a size: at most that many keys, with collisions.
    Modulo(u64),
}

/// A default for a missing field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DefaultField {
    /// For numeric features.
    Number(f64),
    /// For categorical features.
    Text(String),
}

impl Feature {
    /// A feature named like its column, everything else at its default.
    #[must_use]
    pub fn of(name: &str, kind: FeatureKind) -> Self {
        Feature { name: name.to_string(), kind, ..Feature::default() }
    }

    /// The input columns that feed the feature (empty for sparse features, which have no columns).
    #[must_use]
    pub fn inputs(&self) -> Vec<&str> {
        if self.kind == FeatureKind::Sparse {
            Vec::new()
        } else if self.columns.is_empty() {
            vec![self.column.as_deref().unwrap_or(&self.name)]
        } else {
            self.columns.iter().map(String::as_str).collect()
        }
    }

    /// The table that holds the feature's rows.
    #[must_use]
    pub fn table(&self) -> &str {
        self.table.as_deref().unwrap_or(&self.name)
    }

    /// The text whose hash seeds the feature's keys.
    #[must_use]
    pub fn salt(&self) -> &str {
        self.salt.as_deref().unwrap_or_else(|| self.table())
    }

    /// The key derivation in force.
    #[must_use]
    pub fn key_rule(&self) -> KeyRule {
        self.key.unwrap_or(if self.kind == FeatureKind::Sparse { KeyRule::Raw } else { KeyRule::Hash })
    }

    /// The key of a number, for features of type numeric and log; a missing number has another key.
    #[must_use]
    pub fn value_key(&self) -> u64 {
        // A table may be shared by several numeric features: their keys carry the feature's name.
        key::hash(self.name.as_bytes(), key::salt(self.salt()))
    }

    /// Whether each of its keys has a value; otherwise every key counts as 1.
    #[must_use]
    pub fn has_values(&self) -> bool {
        let mean = self.pooling == Pooling::Mean;
        match self.kind {
            FeatureKind::Numeric | FeatureKind::Log | FeatureKind::Sparse => true,
            FeatureKind::Quantile => false,
            FeatureKind::Categorical => mean && self.inputs().len() > 1,
            FeatureKind::Multi | FeatureKind::Cross => mean,
        }
    }

    /// Whether the feature takes a number from its field.
    #[must_use]
    pub fn is_number(&self) -> bool {
        matches!(self.kind, FeatureKind::Numeric | FeatureKind::Log | FeatureKind::Quantile)
    }
}

impl Spec {
    /// A spec may not have more features than this.
    pub const FEATURES_MAX: usize = 4096;
    /// A quantile feature may not have more buckets than this.
    pub const BUCKETS_MAX: usize = 65_536;
    /// Default number of buckets of a quantile feature.
    pub const BUCKETS_DEFAULT: usize = 32;

    /// The spec of libsvm text: one sparse feature, raw keys.
    #[must_use]
    pub fn libsvm() -> Self {
        Spec { feature: vec![Feature::of("features", FeatureKind::Sparse)], ..Spec::default() }
    }

    /// The spec of Criteo's display-advertising log: 13 counts on a log scale, 26 categorical columns.
    #[must_use]
    pub fn criteo() -> Self {
        let counts = (1..=13).map(|i| Feature::of(&format!("I{i}"), FeatureKind::Log));
        let ids = (1..=26).map(|i| Feature::of(&format!("C{i}"), FeatureKind::Categorical));
        Spec { feature: counts.chain(ids).collect(), ..Spec::default() }
    }

    /// Expands `each` and checks the whole spec; the result has one complete entry per feature.
    pub fn expand(&self) -> Result<Spec, SampleError> {
        let mut feature = Vec::new();
        for (number, entry) in (1..).zip(&self.feature) {
            let nameless = || {
                let all = self.feature.len();
                bad(format!("[[feature]] number {number} of {all}: needs a name, a column or each = [...]"))
            };
            if entry.each.is_empty() {
                let mut one = entry.clone();
                if one.name.is_empty() {
                    one.name = one.column.clone().unwrap_or_else(|| one.columns.join("*"));
                }
                if one.name.is_empty() {
                    return Err(nameless());
                }
                feature.push(one);
                continue;
            }
            if !entry.name.is_empty() || entry.column.is_some() || !entry.columns.is_empty() {
                return Err(bad(format!(
                    "feature with each = {:?}: `each` names the features itself; drop name, column and columns",
                    entry.each
                )));
            }
            if entry.each.iter().any(String::is_empty) {
                return Err(nameless());
            }
            feature.extend(entry.each.iter().map(|column| Feature {
                name: column.clone(),
                each: Vec::new(),
                ..entry.clone()
            }));
        }
        let spec = Spec { feature, ..self.clone() };
        spec.check()?;
        Ok(spec)
    }

    /// Whether the spec reads `index:value` pairs (libsvm and libffm text) and no columns.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.feature.iter().any(|feature| feature.kind == FeatureKind::Sparse)
    }

    /// The features whose quantile boundaries are not fitted yet.
    pub fn unfitted(&self) -> impl Iterator<Item = &Feature> {
        let quantile = self.feature.iter().filter(|feature| feature.kind == FeatureKind::Quantile);
        quantile.filter(|feature| feature.boundaries.is_none())
    }
}

fn bad(reason: impl Into<String>) -> SampleError {
    SampleError::Spec(reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(toml: &str, expected: Result<usize, &str>) {
        let spec: Result<Spec, _> = toml::from_str(toml);
        let expanded =
            spec.map_err(|e| e.to_string()).and_then(|spec| spec.expand().map_err(|e| e.to_string()));
        match (expanded, expected) {
            (Ok(spec), Ok(features)) => assert_eq!(spec.feature.len(), features, "{toml}"),
            (Err(error), Err(part)) => assert!(error.contains(part), "{toml}\ngave {error:?}, not {part:?}"),
            (got, expected) => panic!("{toml}\ngave {got:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn specs() {
        let feature = |rest: &str| format!("[[feature]]\nname = \"a\"\n{rest}");
        check("", Err("no features"));
        check("[[feature]]\neach = [\"a\", \"b\", \"c\"]\ntype = \"log\"", Ok(3));
        check("[[feature]]\neach = [\"a\"]\ncolumn = \"b\"", Err("drop name"));
        check(&(feature("") + &feature("")), Err("twice"));
        for nameless in ["type = \"log\"", "column = \"\"", "each = [\"b\", \"\"]"] {
            let toml = format!("{}\n[[feature]]\n{nameless}", feature(""));
            check(&toml, Err("[[feature]] number 2 of 2: needs a name"));
        }
        check(&feature("column = \"label\""), Err("reads the label"));
        check(&feature("typ = \"log\""), Err("unknown field"));
        check(&feature("type = \"log\"\ndefault = \"x\""), Err("needs a number"));
        check(&feature("type = \"cross\"\ncolumns = [\"x\"]"), Err("two or more"));
        check(&feature("type = \"cross\"\ncolumns = [\"x\", \"y\"]"), Ok(1));
        check(&feature("key = { modulo = 0 }"), Err("at least 1"));
        check(&feature("key = { modulo = 10 }"), Ok(1));
        check(&feature("key = \"raw\""), Ok(1));
        check(&feature("separator = \",\""), Err("multi"));
        check(&feature("type = \"quantile\"\nboundaries = [2.0, 1.0]"), Err("ascending"));
        check(&feature("buckets = 4"), Err("quantile"));
        check(&(feature("type = \"sparse\"") + "\n[[feature]]\nname = \"b\""), Err("only feature"));
        check(&("[weight]\ncolumn = \"w\"\n".to_string() + &feature("type = \"sparse\"")), Err("no columns"));
        check("[[feature]]\neach = [\"field_0\", \"field_7\"]\ntype = \"sparse\"", Ok(2));
        check("[[feature]]\nname = \"a\"\ncolumns = [\"field_0\", \"field_7\"]\ntype = \"sparse\"", Ok(1));
        check(
            "[[feature]]\neach = [\"field_0\", \"x\"]\ntype = \"sparse\"",
            Err("\"x\": a sparse feature that"),
        );
        check(
            "[[feature]]\neach = [\"field_0\", \"field_01\"]\ntype = \"sparse\"",
            Err("\"field_01\": a sparse"),
        );
        check(
            "[[feature]]\nname = \"field_1\"\ntype = \"sparse\"\n[[feature]]\nname = \"b\"\ncolumn = \"field_1\"\ntype = \"sparse\"",
            Err("both read field_1"),
        );
        check(&feature("type = \"numeric\"\npooling = \"mean\""), Err("pooling"));
        check(&feature("type = \"multi\"\npooling = \"mean\""), Ok(1));
        check(&("[label]\nthreshold = nan\n".to_string() + &feature("")), Err("label.threshold"));
        check(
            &("[label]\nthreshold = 3.5\npositive = [\"y\"]\n".to_string() + &feature("")),
            Err("positive and threshold"),
        );
        check(&("[weight]\ncolumn = \"label\"\n".to_string() + &feature("")), Err("weight.column"));
        check("[negatives]\nkeep = 0.0\n[[feature]]\nname = \"a\"", Err("above 0"));
        assert_eq!(Spec::criteo().expand().unwrap().feature.len(), 39);
        assert!(Spec::libsvm().expand().unwrap().is_sparse());
    }
}
