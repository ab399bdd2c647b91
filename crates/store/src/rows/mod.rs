//! Rows in memory: the slab, its allocator, the layout and placement of a row, 16-bit weights and validation.

pub(crate) mod access;
pub(crate) mod allocator;
pub(crate) mod half;
pub(crate) mod held;
pub(crate) mod inherited;
pub(crate) mod layout;
pub(crate) mod numbers;
pub(crate) mod placement;
pub(crate) mod row;
pub(crate) mod slab;
pub(crate) mod undo;
