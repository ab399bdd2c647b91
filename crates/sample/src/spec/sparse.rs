//! Sparse features: the pairs of a libsvm or libffm line that they read. Reads no text.

use super::{Feature, FeatureKind, Spec, bad};
use crate::error::SampleError;

/// The prefix of libffm column names; the field number follows.
pub const LIBFFM_COLUMN: &str = "field_";

/// The largest libffm field number that features read.
pub const LIBFFM_FIELD_MAX: u32 = 65_535;

/// The libffm field number of a column name.
fn libffm_field(column: &str) -> Option<u32> {
    let number = column.strip_prefix(LIBFFM_COLUMN)?;
    let field = number.parse::<u32>().ok().filter(|field| *field <= LIBFFM_FIELD_MAX)?;
    // One name per field.
    (field.to_string() == number).then_some(field)
}

impl Feature {
    /// The libffm fields that the feature reads, from the names of its columns. `None`: it reads the whole line.
    #[must_use]
    pub fn fields(&self) -> Option<Vec<u32>> {
        let name = self.column.as_ref().unwrap_or(&self.name);
        let columns = if self.columns.is_empty() { std::slice::from_ref(name) } else { &self.columns[..] };
        let fields: Option<Vec<u32>> = columns.iter().map(|column| libffm_field(column)).collect();
        fields.filter(|_| self.kind == FeatureKind::Sparse)
    }
}

impl Spec {
    /// The spec of libffm text with these fields: one sparse feature per field, raw keys.
    #[must_use]
    pub fn libffm(fields: impl IntoIterator<Item = u32>) -> Self {
        let feature = |field| Feature::of(&format!("{LIBFFM_COLUMN}{field}"), FeatureKind::Sparse);
        Spec { feature: fields.into_iter().map(feature).collect(), ..Spec::default() }
    }

    /// Checks the sparse features: one that reads the whole line, or any number that read libffm fields.
    pub(super) fn check_sparse(&self) -> Result<(), SampleError> {
        let mut taken = std::collections::HashMap::new();
        for feature in &self.feature {
            let name = &feature.name;
            match feature.fields() {
                None if self.feature.len() > 1 => {
                    return Err(bad(format!(
                        "feature {name:?}: a sparse feature that reads whole lines must be the only feature; of libffm fields \
                         each needs type = \"sparse\" and a column such as \"field_0\""
                    )));
                }
                None => {}
                Some(fields) => {
                    for field in fields {
                        if let Some(other) = taken.insert(field, name) {
                            return Err(bad(format!(
                                "features {other:?} and {name:?} both read {LIBFFM_COLUMN}{field}; leave it out of one"
                            )));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
