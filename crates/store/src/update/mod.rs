//! Changes to rows: pushes, imports, online updates, and the arithmetic of the optimizers.

pub(crate) mod create;
pub(crate) mod init;
pub(crate) mod kernel;
pub(crate) mod push;
pub(crate) mod whole;
pub(crate) mod writer;
