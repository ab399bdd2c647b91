//! Rows of models of libsvm or libffm lines: each is one line of text, through the decoder that reads the files.

use std::path::Path;
use std::sync::Arc;

use sanderling_formats::{BadRowPolicy, BadRows, Block, Decoder};
use sanderling_sample::{Batch, Encoder, Field, FieldError, SampleError, SparseFeatures, quote, with_text};

/// The only column of a row of such a model.
pub const LINE_COLUMN: &str = "line";

/// Decodes lines one by one; a scratch for one thread.
pub(crate) struct LineRows {
    decoder: Decoder,
    /// Features read fields, which only libffm lines have.
    reads_fields: bool,
}

impl LineRows {
    pub(crate) fn new(encoder: &Arc<Encoder>) -> LineRows {
        let decoder = Decoder::new(Arc::clone(encoder), Arc::new(BadRows::new(BadRowPolicy::Fail)));
        let reads_fields = matches!(encoder.sparse_features(), SparseFeatures::ByField(_));
        LineRows { decoder, reads_fields }
    }

    /// Appends the row of a line, or leaves the batch as it was. The label may be left out.
    pub(crate) fn add(&mut self, fields: &[Field<'_>], batch: &mut Batch) -> Result<(), FieldError> {
        let wrong =
            |expected: &str, found: String| FieldError { column: 0, expected: expected.to_owned(), found };
        let &[Field::Text(line)] = fields else {
            let found = fields.first().map_or_else(|| "nothing".to_owned(), |field| shown(*field));
            return Err(wrong("a line of text, such as \"3:1 7:0.5\"", found));
        };
        if line.contains(&b'\n') {
            return Err(wrong("one line", "a line feed".to_owned()));
        }
        let before = batch.len();
        let (block, path) = (Block::of_text(line, 1), Path::new("row"));
        let is_libffm = self.reads_fields || has_fields(line);
        let decoded = self.decoder.decode_lines(&block, is_libffm, path, batch);
        decoded.map_err(|error| match error {
            SampleError::BadRow { column, expected, found, .. } => {
                wrong(&format!("{expected} (word {column})"), found)
            }
            other => wrong("a row", other.to_string()),
        })?;
        if batch.len() == before {
            return Err(wrong("a row", "an empty line or a comment".to_owned()));
        }
        Ok(())
    }
}

/// Whether the first pair of a line has a field before it, as in libffm text.
fn has_fields(line: &[u8]) -> bool {
    let pair = line.split(u8::is_ascii_whitespace).find(|word| word.contains(&b':'));
    pair.is_some_and(|pair| pair.iter().filter(|byte| **byte == b':').count() > 1)
}

/// A field as an error shows it.
fn shown(field: Field<'_>) -> String {
    with_text(field, quote).unwrap_or_else(|| "a list".to_owned())
}
