//! File formats: one reader per input format, batch files, and inputs by name, pattern or url.
//!
//! A file is read as units (blocks of whole lines or records, record batches), and a unit is decoded into the rows of a
//! [`Batch`](sanderling_sample::Batch). The crate knows no table and no model. Of the network it knows only that a file may be
//! named by url, if it is built with the feature `objects`.

pub mod format;
pub use format::{BadRowPolicy, Compression, DataConfig, Format};

mod by_url;

mod patient;
pub use patient::Wanted;

pub mod input;

pub mod in_memory;

pub mod folder;

mod temporary;

mod scan;
pub use scan::{Isa, count_newlines};

mod tokens;

mod not_text;

pub mod text_kind;

pub mod quotes;

pub mod blocks;
pub use blocks::{BLOCK_BYTES, Block, LINE_BYTES_MAX};

mod bad_rows;
pub use bad_rows::{BAD_ROW_MESSAGES_MAX, BadRows, BadRowsOfUnit, all_bad};

mod lines;

mod libsvm;

pub mod libffm;

pub mod delimited;

pub mod columnar;

pub mod records;
pub use records::RECORD_BYTES_MAX;

pub mod messages;

pub mod batch_file;

mod decoded;
pub use decoded::Decoded;

mod reader;
pub use reader::{Decoder, ROW_ID_FILE_STRIDE, Reader, Source, Unit};

pub mod fit;
