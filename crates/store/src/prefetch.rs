//! Hints to the cache: the one instruction that safe Rust has no name for. Knows nothing of what is loaded.
#![allow(unsafe_code)] // the prefetch intrinsic takes a raw pointer

/// Asks for the cache line of `items[at]`; nothing happens when `at` is outside.
#[inline(always)]
pub(crate) fn prefetch<T>(items: &[T], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(item) = items.get(at) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and cannot fault, and the pointer is to a live item besides.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast::<i8>()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (items, at);
}
