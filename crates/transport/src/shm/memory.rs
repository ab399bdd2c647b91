//! The shared memory itself: mapping it, and the few ways of touching it. Every access is checked against the size of
//! the mapping; what the bytes mean is not known here.
#![allow(unsafe_code)] // mapping, and references and copies into what was mapped

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::control::Control;

/// Offset between the control words of the two rings.
const CONTROL_STRIDE_BYTES: usize = 1024;
/// Offset of the first ring's bytes, behind the page of control words.
const DATA_AT_BYTES: usize = 4096;
/// Alignment of slots.
pub(crate) const SLOT_ALIGN_BYTES: usize = 64;
/// Offset of a frame in its slot, behind the length word. It puts bodies behind a 32-byte header on cache lines.
pub(crate) const FRAME_AT_BYTES: usize = 32;

/// Size of a mapping with two rings of this size.
pub(crate) const fn mapping_bytes(ring_bytes: usize) -> usize {
    DATA_AT_BYTES + 2 * ring_bytes
}

/// Memory that another process has mapped, too.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Tests use ordinary memory.
    #[cfg(test)]
    allocated: Option<std::alloc::Layout>,
}

// SAFETY: the mapping stays where it is until it is dropped, and access to it is ruled by `RingMemory`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[cfg(test)]
        if let Some(layout) = self.allocated {
            // SAFETY: it was allocated with this layout; for the rest as below.
            return unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) };
        }
        // SAFETY: it was mapped with this start and size, and the last `RingMemory`, which lends references into it
        // for no longer than it lives, is gone.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// One ring of a mapping, from one side.
#[derive(Debug)]
pub(crate) struct RingMemory {
    mapping: Arc<Mapping>,
    control_at: usize,
    data_at: usize,
    bytes: usize,
}

/// Maps the two rings of a memory file. Its size must be `mapping_bytes(ring_bytes)` and sealed.
///
/// The process writes into one ring and reads from the other.
pub(crate) fn map(fd: BorrowedFd<'_>, ring_bytes: usize) -> Result<[RingMemory; 2], Errno> {
    assert!(ring_bytes.is_power_of_two() && ring_bytes >= DATA_AT_BYTES);
    let bytes = mapping_bytes(ring_bytes);
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
    let start = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            fd,
            0,
        )?
    };
    let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
    let mapping = Arc::new(Mapping {
        start,
        bytes,
        #[cfg(test)]
        allocated: None,
    });
    Ok([0, 1].map(|ring| RingMemory {
        mapping: mapping.clone(),
        control_at: ring * CONTROL_STRIDE_BYTES,
        data_at: DATA_AT_BYTES + ring * ring_bytes,
        bytes: ring_bytes,
    }))
}

impl RingMemory {
    /// Size of the ring, a power of two.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address and length of the ring.
    #[cfg(feature = "rdma")]
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.at(0, self.bytes).as_ptr().addr(), self.bytes)
    }

    /// Keeps the memory mapped, for a device that has its address.
    #[cfg(feature = "rdma")]
    pub(crate) fn keep(&self) -> Arc<dyn std::any::Any + Send + Sync> {
        self.mapping.clone()
    }

    /// The shared words of the ring.
    pub(super) fn control(&self) -> &Control {
        const {
            assert!(
                size_of::<Control>() <= CONTROL_STRIDE_BYTES && 2 * CONTROL_STRIDE_BYTES <= DATA_AT_BYTES
            );
        };
        // SAFETY: it lies within the first page of the mapping, which starts on a page, so it is aligned; it is made of
        // atomics, for which every value is valid and which the other process may change at any time.
        unsafe { self.mapping.start.add(self.control_at).cast::<Control>().as_ref() }
    }

    /// The address of `bytes` bytes of the ring. Panics if the ring does not have them.
    fn at(&self, at: usize, bytes: usize) -> NonNull<u8> {
        assert!(
            at <= self.bytes && bytes <= self.bytes - at,
            "{bytes} bytes at {at} of a ring of {}",
            self.bytes
        );
        // SAFETY: the ring lies within the mapping, and the place within the ring.
        unsafe { self.mapping.start.add(self.data_at + at) }
    }

    /// The length word of a slot.
    pub(super) fn slot_word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(SLOT_ALIGN_BYTES));
        // SAFETY: within the ring and aligned, as just checked; an atomic, as in `control`. No reference to plain bytes
        // covers it: those start `FRAME_AT_BYTES` into a slot.
        unsafe { self.at(at, size_of::<AtomicU64>()).cast().as_ref() }
    }

    /// The length word and the frame bytes of a slot that this side may write.
    ///
    /// The peer can read them, and a hostile one can change them at any time. All values are valid, and the writer
    /// never reads them back to decide anything.
    pub(crate) fn slot_mut(&mut self, at: usize, frame_bytes: usize) -> (&AtomicU64, &mut [u8]) {
        let frame = self.at(at + FRAME_AT_BYTES, frame_bytes);
        // SAFETY: within the ring, as `at` checked; `&mut self` keeps others in this process away, since each ring has
        // one `RingMemory`, and it does not overlap the slot's word.
        let frame = unsafe { std::slice::from_raw_parts_mut(frame.as_ptr(), frame_bytes) };
        (self.slot_word(at), frame)
    }

    /// A published frame in place. A peer that breaks the rules can still change it.
    pub(crate) fn frame(&self, at: usize, frame_bytes: usize) -> &[u8] {
        // SAFETY: within the ring, as `at` checked; plain bytes, of which every value is valid. This side writes none of
        // this ring's frames.
        unsafe { std::slice::from_raw_parts(self.at(at + FRAME_AT_BYTES, frame_bytes).as_ptr(), frame_bytes) }
    }

    /// Copies a frame to private memory. The copy is rounded up to whole words, which the slot has: slots are
    /// multiples of 64 bytes.
    pub(crate) fn copy_frame(&self, at: usize, into: &mut [u64]) {
        let from = self.at(at + FRAME_AT_BYTES, size_of_val(into));
        assert!(at.is_multiple_of(SLOT_ALIGN_BYTES));
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: as many words as `into` has are read within the ring, as `at` checked, and written to `into`. An
        // instruction of its own, not a copy that the compiler knows of: the peer may write at the same time, and then
        // old and new bytes are mixed, which is all that can happen. The direction flag is clear, as the ABI says.
        unsafe {
            std::arch::asm!(
                "rep movsq",
                inout("rcx") into.len() => _,
                inout("rsi") from.as_ptr() => _,
                inout("rdi") into.as_mut_ptr() => _,
                options(nostack, preserves_flags),
            );
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        for (position, word) in into.iter_mut().enumerate() {
            // SAFETY: within the ring, as `at` checked, and aligned, since slots are and frames start at a word.
            let shared = unsafe { from.cast::<AtomicU64>().add(position).as_ref() };
            *word = shared.load(std::sync::atomic::Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
impl RingMemory {
    /// Both sides of one ring in ordinary memory, for tests without system calls.
    pub(super) fn in_process(ring_bytes: usize) -> [RingMemory; 2] {
        let bytes = mapping_bytes(ring_bytes);
        let layout = std::alloc::Layout::from_size_align(bytes, 4096).expect("a small size");
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("memory");
        let mapping = Arc::new(Mapping { start, bytes, allocated: Some(layout) });
        [0, 1].map(|_| RingMemory {
            mapping: mapping.clone(),
            control_at: 0,
            data_at: DATA_AT_BYTES,
            bytes: ring_bytes,
        })
    }
}
