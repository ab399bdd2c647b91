//! One training example: the feature spec, the encoder that applies it, and batches of encoded rows.
//!
//! The [`Encoder`] turns the fields of a row into the keys of a [`Batch`] as the [`Spec`] says. The crate knows no file format,
//! no table and no model.

mod error;
pub use error::{FieldError, SampleError, quote, quote_text};

mod batch;
pub use batch::{Batch, Column};

mod rows;
pub use rows::Rows;

mod mapped;
pub use mapped::MappedFile;

mod packed;
pub use packed::{
    PACKED_ALIGN_BYTES, PACKED_BYTES_MAX, PackedBatch, PackedBuffer, PackedError, pack, pack_into,
    pack_without, packed_bytes_max,
};

pub mod spec;
pub use spec::Spec;

pub mod key;

mod field;
pub use field::{Field, VALUE_ABS_MAX, shown_number, with_text};

pub mod missing;

mod time;
pub use time::{Time, TimeKind};

mod number;
pub use number::{parse_f32, parse_f64, parse_u64, short_f32, short_u64};

mod note_name;
pub use note_name::NoteName;

mod compile;

mod holdout;
pub use holdout::{Holdout, HoldoutBy, Side};

mod encode;
pub use encode::{EncodeOptions, Encoder, Fate, LabelUse, NO_FEATURE, SparseFeatures};

mod columns;
pub use columns::Entries;

mod feature_encoder;
pub use feature_encoder::FeatureEncoder;
