//! Cache prefetch hints, for which safe Rust has no instruction.
#![allow(unsafe_code)] // the prefetch intrinsic takes a raw pointer

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// The use that a cache line is prefetched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefetchHint {
    /// Reading.
    Read,
    /// Reading once: evicts less of the outer caches.
    ReadOnce,
    /// Writing: other processors give up their copies.
    Write,
}

/// Prefetches the cache line `line` lines after `items[at]`. Out-of-bounds positions affect only the cache.
#[inline(always)]
fn ask<T>(items: &[T], at: usize, line: usize, hint: PrefetchHint) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_NTA, _MM_HINT_T0, _mm_prefetch};
        let line = items.as_ptr().wrapping_add(at).cast::<i8>().wrapping_add(line * LINE_BYTES);
        // SAFETY: a prefetch reads nothing and cannot fault at any address. The intrinsic for writes compiles to
        // one for reads unless the compiler knows the machine; `prefetchw` does nothing where it is unknown.
        unsafe {
            match hint {
                PrefetchHint::Read => _mm_prefetch::<_MM_HINT_T0>(line),
                PrefetchHint::ReadOnce => _mm_prefetch::<_MM_HINT_NTA>(line),
                PrefetchHint::Write => std::arch::asm!(
                    "prefetchw byte ptr [{line}]",
                    line = in(reg) line,
                    options(nostack, preserves_flags, readonly)
                ),
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (items, at, line, hint);
}

/// Prefetches the cache line of `items[at]`. Out-of-bounds positions affect only the cache.
#[inline(always)]
pub fn prefetch<T>(items: &[T], at: usize, hint: PrefetchHint) {
    ask(items, at, 0, hint);
}

/// Prefetches `lines` cache lines from `items[at]` on, at least one.
#[inline(always)]
pub(crate) fn prefetch_lines<T>(items: &[T], at: usize, lines: usize, hint: PrefetchHint) {
    // One or two lines are usual and need no loop: prefetching the only line twice costs less than a branch.
    ask(items, at, 0, hint);
    ask(items, at, usize::from(lines > 1), hint);
    for line in 2..lines {
        ask(items, at, line, hint);
    }
}
