//! What one training example is, and one reader per input format.
//!
//! A file is read as units (blocks of whole lines, record batches), a unit is decoded into rows of fields, and the
//! [`Encoder`] turns fields into the keys of a [`Batch`] as the [`Spec`] says. The crate knows no network, no table
//! and no model.

mod error;
pub use error::{FieldError, SampleError, quote};

mod batch;
pub use batch::{Batch, Column};

pub mod spec;
pub use spec::Spec;

pub mod key;

mod encode;
pub use encode::{EncodeOptions, Encoder, Fate, Field, LabelUse};
