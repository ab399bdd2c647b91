//! Memory for indexes and slabs: fixed-size buffers on cache-line boundaries, on huge pages where the system grants
//! them. Knows nothing of what is stored.
#![allow(unsafe_code)] // allocation with an alignment of its own, and advice to the kernel

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Size of a huge page, and from this size on buffers are aligned to it.
pub(crate) const HUGE_BYTES: usize = 2 << 20;
/// Alignment of smaller buffers: a cache line.
const LINE_BYTES: usize = 64;

/// `len` values on the heap, never moved or resized.
#[derive(Debug)]
pub(crate) struct Buffer<T: Copy> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: a buffer owns its memory alone, as a `Box<[T]>` does.
unsafe impl<T: Copy + Send> Send for Buffer<T> {}
// SAFETY: shared access gives `&[T]` only, as a `Box<[T]>` does.
unsafe impl<T: Copy + Sync> Sync for Buffer<T> {}

impl<T: Copy> Buffer<T> {
    /// A buffer full of one value.
    ///
    /// # Panics
    /// If it would be larger than half the address space. Aborts if there is no memory, as `Vec` does.
    pub(crate) fn filled(len: usize, value: T) -> Buffer<T> {
        let layout = Self::layout(len);
        if layout.size() == 0 {
            return Buffer { start: NonNull::dangling(), len };
        }
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(memory.cast::<T>()) else { handle_alloc_error(layout) };
        if layout.size() >= HUGE_BYTES {
            advise_huge(memory, layout.size());
        }
        for at in 0..len {
            // SAFETY: `at` is below the length that the layout was made for, and `T: Copy` needs no drop.
            unsafe { start.add(at).write(value) };
        }
        Buffer { start, len }
    }

    fn layout(len: usize) -> Layout {
        let array = Layout::array::<T>(len);
        let aligned = array.and_then(|layout| {
            layout.align_to(if layout.size() >= HUGE_BYTES { HUGE_BYTES } else { LINE_BYTES })
        });
        aligned.unwrap_or_else(|_| panic!("a buffer of {len} values does not fit into the address space"))
    }
}

/// Asks for huge pages; where they are off or memory is fragmented, small ones serve as well, only slower.
fn advise_huge(memory: *mut u8, bytes: usize) {
    // Miri has no madvise.
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: the range is an allocation of ours, and the advice changes no content.
    unsafe {
        libc::madvise(memory.cast(), bytes, libc::MADV_HUGEPAGE);
    }
    #[cfg(any(not(target_os = "linux"), miri))]
    let _ = (memory, bytes);
}

impl<T: Copy> Drop for Buffer<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.len);
        if layout.size() > 0 {
            // SAFETY: `filled` allocated it with this layout, and nobody can use it after the drop.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl<T: Copy> Deref for Buffer<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` values at `start` were written by `filled` and live as long as the buffer.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for Buffer<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_filled_and_freed() {
        for len in [0, 1, 7, 1000, HUGE_BYTES / 8, HUGE_BYTES / 8 + 3] {
            let mut buffer = Buffer::filled(len, 7_u64);
            assert!(buffer.len() == len && buffer.iter().all(|&word| word == 7));
            let align = if len * 8 >= HUGE_BYTES { HUGE_BYTES } else { LINE_BYTES };
            assert!(len == 0 || (buffer.as_ptr() as usize).is_multiple_of(align));
            buffer.iter_mut().for_each(|word| *word += 1);
            assert!(buffer.iter().all(|&word| word == 8));
        }
    }
}
