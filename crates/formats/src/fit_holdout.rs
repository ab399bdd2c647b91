//! Finds the moment of a holdout by time. Knows no model.

use std::path::Path;
use std::sync::Arc;

use sanderling_sample::{EncodeOptions, Encoder, Holdout, LabelUse, SampleError, Spec};

use crate::format::{DataConfig, Format};
use crate::reader::Reader;

/// Completes a holdout: finds the moment of a split by time, from all rows of the training input.
///
/// # Errors
/// [`SampleError::Spec`] if all rows are of one moment, or the input can be read only once.
pub fn fit_holdout(
    holdout: &Holdout,
    spec: &Spec,
    inputs: &[String],
    config: &DataConfig,
) -> Result<Holdout, SampleError> {
    if !holdout.is_unfitted() {
        return Ok(holdout.clone());
    }
    let options = EncodeOptions { missing: &config.missing, label: LabelUse::Optional, down_sample: false };
    let encoder =
        Arc::new(Encoder::new(&Spec { weight: None, ..spec.clone() }, &options)?.noting_moments(holdout));
    let mut reader = Reader::open(inputs, config, &encoder)?;
    if let Some(stream) = reader.stream() {
        return Err(SampleError::Spec(format!(
            "data.valid: {} can be read only once, so the moment to split at cannot be found: give it as `after`",
            stream.display()
        )));
    }
    let mut batch = encoder.new_batch();
    while reader.next(&mut batch)? {
        batch.clear();
    }
    let after = encoder.split(holdout.fraction).ok_or_else(|| {
        let what =
            holdout.column.as_ref().map_or("the input".to_owned(), |column| format!("column {column:?}"));
        SampleError::Spec(format!(
            "data.valid: all rows of {what} are of one moment, so none can be held out by time"
        ))
    })?;
    Ok(Holdout { after: Some(after), ..holdout.clone() })
}

/// Refuses a file that lacks the column by which rows are held out, because its format has none.
pub(crate) fn check_holdout(encoder: &Encoder, format: Format, path: &Path) -> Result<(), SampleError> {
    match (encoder.holdout_column(), format) {
        (Some(column), Format::Libsvm | Format::Libffm | Format::Batch) => Err(SampleError::BadFile {
            path: path.to_path_buf(),
            reason: format!(
                "rows are held out by column {column:?}, which {format} files do not have; hold them out by = \"random\", \
                 or name a file with other rows in data.valid"
            ),
        }),
        _ => Ok(()),
    }
}
