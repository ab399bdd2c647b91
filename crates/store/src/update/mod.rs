//! Changes of rows: pushes, imports, row-by-row updates, and the arithmetic of optimizers.

mod copy_on_write;
pub(crate) mod create;
pub(crate) mod edit;
pub(crate) mod failures;
pub(crate) mod init;
mod kept;
pub(crate) mod kernel;
pub(crate) mod ordered;
pub(crate) mod push;
pub(crate) mod whole;
pub(crate) mod writer;
