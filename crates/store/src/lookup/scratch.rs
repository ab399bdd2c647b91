//! Per-thread buffers that are reused between requests.

use std::cell::RefCell;

use crate::Dedup;

/// The memory that a thread keeps for summing duplicates, at most.
const SCRATCH_BYTES_MAX: usize = 16 << 20;

/// Buffers of a thread.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) dedup: Dedup,
    pub(crate) floats: Vec<f32>,
}

impl Scratch {
    /// Frees the memory of an unusually large request.
    fn trim(&mut self) {
        if self.dedup.bytes() > SCRATCH_BYTES_MAX {
            self.dedup = Dedup::new();
        }
        if self.floats.capacity() * size_of::<f32>() > SCRATCH_BYTES_MAX {
            self.floats = Vec::new();
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Calls `f` with the thread's buffers.
pub(crate) fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        let result = f(scratch);
        scratch.trim();
        result
    })
}
