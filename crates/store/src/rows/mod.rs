//! Rows in memory: the slab, its allocator, the layout of a row, 16-bit weights and validation.

pub(crate) mod allocator;
pub(crate) mod half;
pub(crate) mod layout;
pub(crate) mod numbers;
pub(crate) mod row;
pub(crate) mod slab;
