//! Memory of indexes and slabs: zeroed regions, aligned to cache lines, that never move. Large regions use huge
//! pages where the system grants them.
#![cfg_attr(loom, allow(dead_code, unused_imports))] // the model checker has regions of its own
#![allow(unsafe_code)] // mapping, advice to the kernel, and slices over what was mapped

pub(crate) mod address_space;
pub(crate) mod budget;
pub(crate) mod copies;
pub(crate) mod device;
#[cfg(target_os = "linux")]
pub(crate) mod fd_store;
pub(crate) mod file;
pub(crate) mod persist;
pub(crate) mod place;
pub(crate) mod prefetch;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use file::PageFile;

/// Size of a huge page.
pub(crate) const HUGE_BYTES: usize = 2 << 20;
/// Regions of at least this size are mapped: their pages cost nothing until they are touched.
const MAPPED_BYTES_MIN: usize = 128 * 1024;
/// Whether address space can be reserved without memory.
const CAN_RESERVE: bool = cfg!(all(target_os = "linux", not(miri)));
/// The maximum reservation. It is small under Miri, which is slow, and bounded where a reservation takes memory.
pub(crate) const RESERVED_BYTES_MAX: usize = if cfg!(any(miri, loom)) {
    1 << 20
} else if CAN_RESERVE {
    isize::MAX as usize
} else {
    1 << 30
};
/// Assumed memory of a machine that does not report it.
const MACHINE_BYTES_GUESS: usize = 1 << 36;
/// Alignment of smaller regions: a cache line.
const LINE_BYTES: usize = 64;

/// Types made of atomics only, for which all-zero bytes are valid.
///
/// # Safety
///
/// Both conditions must hold: regions hand out `&[T]` over zeroed memory, and `discard` zeroes it again behind
/// shared references.
pub(crate) unsafe trait ZeroAtomics: Sync {
    /// The value of zeroed memory.
    #[cfg(loom)]
    fn zero() -> Self;
}

macro_rules! zero_atomics {
    ($($name:ty),+) => {$(
        // SAFETY: the type is an atomic, and zero is one of its values.
        unsafe impl ZeroAtomics for $name {
            #[cfg(loom)]
            fn zero() -> Self {
                <$name>::new(0)
            }
        }
    )+};
}
zero_atomics!(AtomicU8, AtomicU32, AtomicU64);
#[cfg(loom)]
zero_atomics!(crate::sync::AtomicU32); // of row versions

/// `len` zeroed values that never move.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Region<T: ZeroAtomics> {
    start: NonNull<T>,
    len: usize,
    /// The whole mapping, which is wider than the values to align them; `None` for allocated memory.
    mapped: Option<(NonNull<u8>, usize)>,
    /// The file that holds the values, if they outlive the process.
    file: Option<PageFile>,
}

#[cfg(not(loom))]
// SAFETY: a region owns its memory, as a `Box<[T]>` does, and `T` is made of atomics.
unsafe impl<T: ZeroAtomics> Send for Region<T> {}
#[cfg(not(loom))]
// SAFETY: shared access gives `&[T]` of atomics only.
unsafe impl<T: ZeroAtomics> Sync for Region<T> {}

#[cfg(not(loom))]
impl<T: ZeroAtomics> Region<T> {
    /// A region of `len > 0` zeroed values; `None` if memory or address space is exhausted.
    pub(crate) fn zeroed(len: usize) -> Option<Region<T>> {
        let layout = Self::layout(len)?;
        if layout.size() >= MAPPED_BYTES_MIN
            && let Some((start, mapped)) = map(layout.size(), 0)
        {
            return Some(Region { start: start.cast(), len, mapped: Some(mapped), file: None });
        }
        if layout.size() == 0 {
            return None;
        }
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Region { start: start.cast(), len, mapped: None, file: None })
    }

    /// Reserves address space for at most `len` zeroed values, or as many as the system grants.
    ///
    /// Memory is committed when it is touched. Huge pages begin after the first [`HUGE_BYTES`], so that small
    /// tables stay small.
    pub(crate) fn reserved(mut len: usize) -> Option<Region<T>> {
        if CAN_RESERVE {
            while len * size_of::<T>() >= MAPPED_BYTES_MIN {
                if let Some((start, mapped)) = map(len * size_of::<T>(), HUGE_BYTES) {
                    return Some(Region { start: start.cast(), len, mapped: Some(mapped), file: None });
                }
                len /= 2;
            }
        }
        Region::zeroed(len.min(RESERVED_BYTES_MAX / size_of::<T>()))
    }

    /// The first `len > 0` values of a file. Those that are used must be reserved before ([`Region::reserve`]).
    pub(crate) fn of_file(file: PageFile, len: usize) -> io::Result<Region<T>> {
        file.extend((len * size_of::<T>()) as u64)?;
        let (start, mapped) = file.map(len * size_of::<T>())?;
        #[cfg(all(test, not(miri), target_os = "linux"))]
        file.trace(start, len * size_of::<T>());
        Ok(Region { start: start.cast(), len, mapped: Some(mapped), file: Some(file) })
    }

    /// Reserves the space of these values in their file, if they have one.
    pub(crate) fn reserve(&self, values: Range<usize>) -> io::Result<()> {
        let bytes = |at: usize| (at * size_of::<T>()) as u64;
        let bytes = bytes(values.start)..bytes(values.end.min(self.len));
        let most = self.bytes() as u64;
        self.file.as_ref().map_or(Ok(()), |file| file.reserve(self.start.cast(), bytes, most))
    }

    /// Whether the values are in a file of a file system on persistent memory (DAX).
    pub(crate) fn is_on_file_system_with_dax(&self) -> bool {
        self.file.as_ref().is_some_and(PageFile::is_on_file_system_with_dax)
    }

    fn layout(len: usize) -> Option<Layout> {
        Layout::array::<T>(len).and_then(|layout| layout.align_to(LINE_BYTES)).ok()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Zeroes the first `len` values and returns their pages to the system where possible.
    ///
    /// Other threads may read meanwhile, and see old values or zeros, but must not write.
    pub(crate) fn discard(&self, len: usize, zero: impl Fn(&T)) {
        let len = len.min(self.len);
        let bytes = len * size_of::<T>();
        let given_back = match &self.file {
            Some(file) => file.discard(bytes),
            None => self.mapped.is_some() && give_back(self.start.cast(), bytes),
        };
        if !given_back {
            self[..len].iter().for_each(zero);
        }
    }

    /// The first and last address, for [`granted_huge_bytes`].
    pub(crate) fn addresses(&self) -> (usize, usize) {
        let start = self.start.as_ptr() as usize;
        (start, start + self.bytes())
    }
}

#[cfg(not(loom))]
impl<T: ZeroAtomics> Drop for Region<T> {
    fn drop(&mut self) {
        #[cfg(all(test, not(miri), target_os = "linux"))]
        if self.file.is_some() {
            persist::trace::unmapped(self.start.as_ptr() as usize, self.bytes());
        }
        if let Some((start, bytes)) = self.mapped {
            unmap(start, bytes);
        } else if let Some(layout) = Self::layout(self.len) {
            // SAFETY: `zeroed` allocated it with this layout, and the drop is its last use.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

#[cfg(not(loom))]
impl<T: ZeroAtomics> Deref for Region<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` zeroed values at `start`, valid as such by `ZeroAtomics`, live as long as the region.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

/// The region for the model checker, whose atomics are no plain memory.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Region<T: ZeroAtomics>(Box<[T]>);

#[cfg(loom)]
impl<T: ZeroAtomics> Region<T> {
    pub(crate) fn zeroed(len: usize) -> Option<Region<T>> {
        Some(Region((0..len).map(|_| T::zero()).collect()))
    }

    pub(crate) fn reserved(len: usize) -> Option<Region<T>> {
        Region::zeroed(len.min(RESERVED_BYTES_MAX / size_of::<T>()))
    }

    pub(crate) fn of_file(_file: PageFile, len: usize) -> io::Result<Region<T>> {
        Region::zeroed(len).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(crate) fn reserve(&self, _values: Range<usize>) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn is_on_file_system_with_dax(&self) -> bool {
        false
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    pub(crate) fn discard(&self, len: usize, zero: impl Fn(&T)) {
        self.0[..len.min(self.0.len())].iter().for_each(zero);
    }

    pub(crate) fn addresses(&self) -> (usize, usize) {
        let start = self.0.as_ptr() as usize;
        (start, start + self.bytes())
    }
}

#[cfg(loom)]
impl<T: ZeroAtomics> Deref for Region<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

/// The start of the values, and the whole mapping.
type Mapping = (NonNull<u8>, (NonNull<u8>, usize));

/// Maps `bytes` of zeros, aligned to a huge page if they fill one, on huge pages except for the first
/// `small_bytes`.
#[cfg(all(target_os = "linux", not(miri)))]
fn map(bytes: usize, small_bytes: usize) -> Option<Mapping> {
    let align = if bytes >= HUGE_BYTES { HUGE_BYTES } else { LINE_BYTES };
    let whole = bytes.checked_add(align)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at any address touches nothing that exists.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), whole, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    let mapped = NonNull::new(mapped.cast::<u8>())?;
    let offset = mapped.as_ptr().align_offset(align);
    // SAFETY: the offset is below `align`, and `align` bytes more than needed were mapped.
    let start = unsafe { mapped.add(offset) };
    if bytes >= small_bytes + HUGE_BYTES {
        // Without huge pages, small ones work too, only slower. SAFETY: the range is ours, and the advice changes
        // no content.
        unsafe {
            libc::madvise(start.as_ptr().add(small_bytes).cast(), bytes - small_bytes, libc::MADV_HUGEPAGE)
        };
    }
    Some((start, (mapped, whole)))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn map(_bytes: usize, _small_bytes: usize) -> Option<Mapping> {
    None
}

/// Returns the pages of a private anonymous mapping to the system; they read as zeros from then on.
#[cfg(all(target_os = "linux", not(miri)))]
fn give_back(start: NonNull<u8>, bytes: usize) -> bool {
    // Only whole pages can be returned. Rounding up stays inside the mapping, which has alignment slack.
    let bytes = bytes.next_multiple_of(4096);
    if !(start.as_ptr() as usize).is_multiple_of(4096) || bytes == 0 {
        return false;
    }
    // SAFETY: the range lies inside a mapping of ours that holds atomics, for which zeros are valid values.
    unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTNEED) == 0 }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn give_back(_start: NonNull<u8>, _bytes: usize) -> bool {
    false
}

#[cfg(all(target_os = "linux", not(miri)))]
fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: exactly the mapping that `map` made; the region's drop is its last use.
    unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn unmap(_start: NonNull<u8>, _bytes: usize) {}

/// Memory and swap of this machine in bytes, or an assumption if it does not report them.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn machine_bytes() -> usize {
    // SAFETY: all zero is a value of this plain struct, which the call fills in.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes the struct and nothing else.
    if unsafe { libc::sysinfo(&raw mut info) } != 0 {
        return MACHINE_BYTES_GUESS;
    }
    let units = info.totalram.saturating_add(info.totalswap);
    usize::try_from(units).unwrap_or(usize::MAX).saturating_mul(info.mem_unit as usize)
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn machine_bytes() -> usize {
    MACHINE_BYTES_GUESS
}

fn page_bytes() -> usize {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        // SAFETY: the call only reads a setting.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if let Ok(bytes) = usize::try_from(bytes) {
            return bytes;
        }
    }
    4096
}

/// The limit of the process's address space in bytes, if there is one (`ulimit -v`).
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn address_limit() -> Option<usize> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the call writes the limit and nothing else.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
    if !is_known || limit.rlim_cur == libc::RLIM_INFINITY {
        return None;
    }
    usize::try_from(limit.rlim_cur).ok()
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn address_limit() -> Option<usize> {
    None
}

/// The process's address space in bytes; 0 where the system does not report it.
pub(crate) fn address_bytes_taken() -> usize {
    if !CAN_RESERVE {
        return 0;
    }
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|pages| pages.split_whitespace().next()?.parse::<usize>().ok());
    pages.unwrap_or(0).saturating_mul(page_bytes())
}

/// Bytes of these address ranges on huge pages, as the system counts them; 0 where it does not report them. A
/// mapping that holds other memory too is counted up to the range's size.
pub(crate) fn granted_huge_bytes(ranges: &[(usize, usize)]) -> u64 {
    if ranges.iter().all(|(first, last)| last - first < HUGE_BYTES) {
        return 0;
    }
    let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") else { return 0 };
    let (mut granted, mut mapping) = (0_u64, (0_usize, 0_usize));
    for line in maps.lines() {
        let huge = ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:", "Shared_Hugetlb:"];
        if let Some(size) = huge.iter().find_map(|count| line.strip_prefix(count)) {
            let kib: u64 = size.trim().trim_end_matches("kB").trim().parse().unwrap_or(0);
            let inside = |&(first, last): &(usize, usize)| {
                last.min(mapping.1).saturating_sub(first.max(mapping.0)) as u64
            };
            granted += (kib * 1024).min(ranges.iter().map(inside).sum());
        } else if let Some((first, rest)) = line.split_once('-')
            && let Some((last, _)) = rest.split_once(' ')
            && let (Ok(first), Ok(last)) = (usize::from_str_radix(first, 16), usize::from_str_radix(last, 16))
        {
            mapping = (first, last);
        }
    }
    granted
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn regions_are_aligned_zeroed_discarded_and_freed() {
        // Miri is slow.
        let large = if cfg!(miri) { 300 } else { HUGE_BYTES / 8 };
        for len in [1, 7, 100, large, large + 3] {
            let region = Region::<AtomicU64>::zeroed(len).unwrap();
            assert!(region.len() == len && region.iter().all(|word| word.load(Relaxed) == 0));
            let align = if len * 8 >= HUGE_BYTES && cfg!(not(miri)) { HUGE_BYTES } else { LINE_BYTES };
            assert!((region.as_ptr() as usize).is_multiple_of(align));
            region.iter().for_each(|word| word.store(7, Relaxed));
            region.discard(len, |word| word.store(0, Relaxed));
            assert!(region.iter().all(|word| word.load(Relaxed) == 0), "{len}");
        }
        assert!(Region::<AtomicU64>::zeroed(usize::MAX / 8).is_none());
    }

    #[test]
    #[cfg(not(miri))]
    fn granted_huge_pages_are_at_most_what_there_is() {
        let region = Region::<AtomicU64>::zeroed(4 * HUGE_BYTES / 8).unwrap();
        region.iter().step_by(512).for_each(|word| word.store(7, Relaxed));
        let granted = granted_huge_bytes(&[region.addresses()]);
        assert!(granted <= region.bytes() as u64 && granted.is_multiple_of(HUGE_BYTES as u64), "{granted}");
    }
}
