//! The keys of single values of one feature, for programs that look rows up by name. Knows no table and no file.

use crate::batch::Batch;
use crate::encode::{EncodeOptions, Encoder, LabelUse};
use crate::error::{FieldError, SampleError};
use crate::field::{Field, raw_key, wanted};
use crate::spec::{Feature, FeatureKind, Label, Spec};

/// Input columns at most: that of the feature, and that of the label.
const INPUTS_MAX: usize = 2;

/// Encodes values of one feature of a spec.
pub struct FeatureEncoder {
    encoder: Encoder,
    batch: Batch,
    is_sparse: bool,
}

impl FeatureEncoder {
    /// Compiles a feature.
    ///
    /// # Errors
    /// A feature that the spec lacks, whose boundaries are not fitted, or that needs several columns.
    pub fn new(spec: &Spec, name: &str, missing: &[String]) -> Result<FeatureEncoder, SampleError> {
        let spec = spec.expand()?;
        let Some(feature) = spec.feature.iter().find(|feature| feature.name == name) else {
            let names: Vec<&str> = spec.feature.iter().map(|feature| feature.name.as_str()).collect();
            return Err(SampleError::Spec(format!(
                "no feature {name:?}; the features are {}",
                names.join(", ")
            )));
        };
        if feature.inputs().len() > 1 {
            let columns = feature.inputs().join(", ");
            return Err(SampleError::Spec(format!(
                "feature {name:?} is made of the columns {columns}: one value has no key; see docs/keys.md"
            )));
        }
        let is_sparse = feature.kind == FeatureKind::Sparse;
        let label = Label { column: format!("{name} "), ..Label::default() };
        let one = Spec { feature: vec![feature.clone()], label, weight: None, negatives: None };
        let options = EncodeOptions { missing, label: LabelUse::Optional, down_sample: false };
        let encoder = Encoder::new(&one, &options)?;
        debug_assert!(encoder.input_columns().len() <= INPUTS_MAX, "{:?}", encoder.input_columns());
        let batch = encoder.new_batch();
        Ok(FeatureEncoder { encoder, batch, is_sparse })
    }

    /// The feature.
    #[must_use]
    pub fn feature(&self) -> &Feature {
        &self.encoder.spec().feature[0]
    }

    /// The keys of a value: one, or one per element of a list or of a text with separators; none if it is missing.
    ///
    /// # Errors
    /// A value that the feature does not take.
    pub fn keys(&mut self, value: Field<'_>) -> Result<&[u64], FieldError> {
        self.batch.clear();
        if self.is_sparse {
            let index = raw_key(value).ok_or_else(|| wanted(0, "an index", value))?;
            self.batch.columns[0].keys.push(self.encoder.sparse_key(0, index));
            return Ok(&self.batch.columns[0].keys);
        }
        let mut fields = [value; INPUTS_MAX];
        if let Some(label) = fields.get_mut(self.encoder.label_input()) {
            *label = Field::Missing;
        }
        self.encoder.encode_row(&fields[..self.encoder.input_columns().len()], 0, &mut self.batch)?;
        Ok(&self.batch.columns[0].keys)
    }
}
