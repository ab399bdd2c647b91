//! The texts that keys are hashes of, told while rows are encoded. Keeps none itself.

use std::fmt::Debug;

/// Is told each key of a feature with its text.
pub trait NoteName: Debug + Send + Sync {
    /// Notes the text of a key, for each occurrence; the text of a missing value is empty.
    fn note(&self, feature: usize, key: u64, text: &[u8]);
}
