//! Hints to the cache: the one instruction that safe Rust has no name for. Knows nothing of what is loaded.
#![allow(unsafe_code)] // the prefetch intrinsic takes a raw pointer

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// What a line is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefetchHint {
    /// To be read.
    Read,
    /// To be read once: what is used more often stays in the outer caches.
    ReadOnce,
    /// To be written: other processors give their copies up.
    Write,
}

/// Asks for the cache line of `items[at]`, and for those that follow it: at a distance of so many lines. Anything may
/// happen to the cache, but nothing else, when that is outside.
#[inline(always)]
fn ask<T>(items: &[T], at: usize, line: usize, hint: PrefetchHint) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_NTA, _MM_HINT_T0, _mm_prefetch};
        let line = items.as_ptr().wrapping_add(at).cast::<i8>().wrapping_add(line * LINE_BYTES);
        // SAFETY: a prefetch reads nothing and cannot fault, wherever the pointer leads. The intrinsic for a change becomes one
        // for reading where the compiler is not told that the machine has both; `prefetchw` does nothing where it is unknown.
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

/// Asks for the cache line of `items[at]`. Anything may happen to the cache, but nothing else, when `at` is outside.
#[inline(always)]
pub fn prefetch<T>(items: &[T], at: usize, hint: PrefetchHint) {
    ask(items, at, 0, hint);
}

/// The same for so many cache lines from that on, at least one.
#[inline(always)]
pub(crate) fn prefetch_lines<T>(items: &[T], at: usize, lines: usize, hint: PrefetchHint) {
    // Few lines are the rule, and no loop for them: asking again for the only line costs less than not to.
    ask(items, at, 0, hint);
    ask(items, at, usize::from(lines > 1), hint);
    for line in 2..lines {
        ask(items, at, line, hint);
    }
}
