//! The atomics that the ring's protocol is written with. The model test puts loom's here instead.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
