//! What one training example is, and one reader per input format.
//!
//! A file is read as units (blocks of whole lines or records, record batches), a unit is decoded into rows of fields,
//! and the [`Encoder`] turns fields into the keys of a [`Batch`] as the [`Spec`] says. The crate knows no table and no model,
//! and of the network only that a file may be named by url, if it is built with the feature `objects`.

mod error;
pub use error::{FieldError, SampleError, quote};

mod batch;
pub use batch::{Batch, Column};

mod rows;
pub use rows::Rows;

mod mapped;

mod packed;
pub use packed::{
    PACKED_ALIGN_BYTES, PACKED_BYTES_MAX, PackedBatch, PackedBuffer, PackedError, pack, pack_into,
    pack_without, packed_bytes_max,
};

pub mod spec;
pub use spec::Spec;

pub mod key;

mod field;
pub use field::{Field, shown_number};

mod time;
pub use time::{Time, TimeKind};

mod compile;

mod encode;
pub use encode::{EncodeOptions, Encoder, Fate, LabelUse};

pub mod format;
pub use format::{BadRowPolicy, Compression, DataConfig, Format};

mod by_url;

mod patient;
pub use patient::Wanted;

pub mod input;

mod folder;

mod temporary;

mod output_file;
pub use output_file::{OutputFile, refuse_url};

mod scan;
pub use scan::{Isa, count_newlines};

mod number;
pub use number::{parse_f32, parse_f64, parse_u64};

mod tokens;

mod not_text;

mod text_kind;

mod quotes;

mod blocks;
pub use blocks::{BLOCK_BYTES, Block, LINE_BYTES_MAX};

mod bad_rows;
pub use bad_rows::{BAD_ROW_MESSAGES_MAX, BadRows, all_bad};

mod libsvm;

mod libffm;

mod delimited;

pub mod columnar;

mod records;
pub use records::RECORD_BYTES_MAX;

mod messages;

pub mod batch_file;

mod decoded;
pub use decoded::Decoded;

mod reader;
pub use reader::{Decoder, ROW_ID_FILE_STRIDE, Reader, Source, Unit};

pub mod fit;

pub mod profile;

pub mod random;

pub mod synth;
