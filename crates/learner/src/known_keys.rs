//! How many keys of scored rows a model knows, by feature, and what that says. Knows no table.

use sanderling_client::Occurrences;
use serde::Serialize;

use crate::numbers::count;

/// The keys of one feature in the rows that were scored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KnownKeys {
    /// The feature.
    pub feature: String,
    /// Occurrences of its keys.
    pub occurrences: u64,
    /// Occurrences whose key has a row in the model; the others count as zero.
    pub known: u64,
}

impl KnownKeys {
    /// By feature, from names and counts in the same order.
    pub(crate) fn of<'a>(names: impl Iterator<Item = &'a str>, counts: &[Occurrences]) -> Vec<Self> {
        let of = |(name, count): (&str, &Occurrences)| KnownKeys {
            feature: name.to_owned(),
            occurrences: count.all,
            known: count.known,
        };
        names.zip(counts).map(of).collect()
    }

    /// Whether there are keys and the model knows none of them.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.occurrences > 0 && self.known == 0
    }

    /// The likely cause if the model knows none of the keys.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        self.is_unknown().then(|| {
            format!(
                "0 of {} ids of {:?} are known to the model (an unknown key counts as zero): are they written as in training?",
                count(self.occurrences),
                self.feature
            )
        })
    }
}
