//! Counts the key occurrences of a minibatch that have a row, by feature. Knows no model.

use crate::lookup::Lookup;

/// Occurrences of a feature's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occurrences {
    /// All of them.
    pub all: u64,
    /// Occurrences whose key has a row.
    pub known: u64,
}

impl Lookup {
    /// Adds the key occurrences of the last pulled minibatch, feature by feature.
    ///
    /// [`Lookup::note_missing`] must have been called before the pull. `scratch` is reused. If every key has a row,
    /// the cost per key is zero.
    pub fn count_known(&self, scratch: &mut Vec<bool>, counts: &mut [Occurrences]) {
        for (number, table) in self.tables.iter().enumerate() {
            if !table.missing.is_empty() {
                scratch.clear();
                scratch.resize(table.distinct(), false);
                table.missing.iter().for_each(|&position| scratch[position as usize] = true);
            }
            for &feature in self.readers(number) {
                let indices = self.indices(feature);
                let unknown = match table.missing.is_empty() {
                    true => 0,
                    false => indices.iter().filter(|&&index| scratch[index as usize]).count(),
                };
                counts[feature].all += indices.len() as u64;
                counts[feature].known += (indices.len() - unknown) as u64;
            }
        }
    }
}
