//! The atomics of the ring's protocol. The model test uses loom's instead.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
