//! The choices of a pull: how the rows of a sample are pooled, and what stands for a key without a row. Tables, the wire
//! format and feature specs share them. Knows no row.

/// How the rows of a sample are combined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Pooling {
    /// Sum of `value * row`; without values each key counts as 1.
    #[default]
    Sum,
    /// The sum divided by the number of keys; zeros without keys.
    Mean,
}

impl Pooling {
    /// All of them.
    pub const ALL: [Pooling; 2] = [Pooling::Sum, Pooling::Mean];

    /// The name in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Sum => "sum",
            Pooling::Mean => "mean",
        }
    }

    /// The pooling with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Pooling> {
        Pooling::ALL.into_iter().find(|pooling| pooling.name() == name)
    }
}

/// Result of a pull for a key without a row. A pull never creates rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// Zeros (evaluation, serving).
    Zero,
    /// The weights that a new row of the key would have (training).
    Init,
}
