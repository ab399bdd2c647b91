//! Rows in memory: their words, their layout, their numbers and which of them are in use.

pub(crate) mod allocator;
pub(crate) mod half;
pub(crate) mod layout;
pub(crate) mod numbers;
pub(crate) mod row;
pub(crate) mod slab;
