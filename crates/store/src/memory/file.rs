//! Files as memory: their pages outlive the process. Space is reserved before it is used, because a store to a page
//! without space ends the process (SIGBUS).
#![allow(unsafe_code)] // mapping of files, and calls that only libc has

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::device::Pieces;
use super::persist::{Persist, Step};
use super::place::is_in_fd_store;
use super::{HUGE_BYTES, Mapping};

/// Magic numbers of file systems (`statfs`).
const HUGETLBFS: i64 = 0x9584_58f6;
const TMPFS: i64 = 0x0102_1994;
pub(crate) const SMALL_PAGE_BYTES: u64 = 4096;

/// A file that is mapped as memory.
#[derive(Debug)]
pub(crate) struct PageFile {
    file: File,
    path: PathBuf,
    /// Files consist of whole pages of this size.
    page_bytes: u64,
    is_tmpfs: bool,
    /// Mapped so that the system's part of a store is durable before the store (`MAP_SYNC`).
    is_synced: bool,
    backing: Backing,
}

/// The holder of a file's bytes.
#[derive(Debug)]
enum Backing {
    /// A file of a file system, or without a name in memory.
    File,
    /// The start of a device, which always has its space.
    DeviceStart,
    /// Pieces of a device.
    Pieces(Pieces),
}

/// The pages that a folder's file system gives to mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Huge pages only (hugetlbfs).
    Huge,
    /// Huge pages where the kernel finds them.
    HugeIfAsked,
    /// Pages of 4 KiB.
    Small,
    /// Pages of 4 KiB that are also written to a disk.
    SmallOnDisk,
}

impl PageFile {
    /// Creates an empty file, in the place of an earlier one.
    pub(crate) fn create(path: &Path) -> io::Result<PageFile> {
        use std::os::unix::fs::OpenOptionsExt;
        // A new inode: an earlier process may still be mapping the old one.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = File::options().create_new(true).read(true).write(true).mode(0o600).open(path)?;
        PageFile::of(file, path)
    }

    /// Opens a file.
    pub(crate) fn open(path: &Path) -> io::Result<PageFile> {
        PageFile::of(File::options().read(true).write(true).open(path)?, path)
    }

    /// A file of a file system, or without a name in memory. `path` names it in errors.
    pub(super) fn of(file: File, path: &Path) -> io::Result<PageFile> {
        let (kind, block_bytes) = file_system(&file)?;
        let page_bytes = if kind == HUGETLBFS { block_bytes } else { SMALL_PAGE_BYTES };
        let (path, is_tmpfs) = (path.to_path_buf(), kind == TMPFS);
        Ok(PageFile { file, path, page_bytes, is_tmpfs, is_synced: false, backing: Backing::File })
    }

    /// The start of a device.
    pub(super) fn start_of(file: File, path: &Path, page_bytes: u64, is_synced: bool) -> PageFile {
        let path = path.to_path_buf();
        PageFile { file, path, page_bytes, is_tmpfs: false, is_synced, backing: Backing::DeviceStart }
    }

    /// A file of these pieces of a device.
    pub(super) fn of_pieces(
        file: File,
        path: &Path,
        page_bytes: u64,
        is_synced: bool,
        pieces: Pieces,
    ) -> PageFile {
        PageFile { backing: Backing::Pieces(pieces), ..PageFile::start_of(file, path, page_bytes, is_synced) }
    }

    /// The file, mapped with `MAP_SYNC` if asked for. Its file system must allow that ([`PageFile::can_sync`]). Files
    /// on a device are whenever that allows it.
    pub(crate) fn synced(self, is_synced: bool) -> PageFile {
        let is_file = matches!(self.backing, Backing::File);
        PageFile { is_synced: if is_file { is_synced } else { self.is_synced }, ..self }
    }

    /// Whether stores to a mapping of the file can survive the loss of power: a file system on persistent memory,
    /// mounted with DAX.
    pub(crate) fn can_sync(file: &File) -> bool {
        PageFile::can_sync_pages(file, SMALL_PAGE_BYTES)
    }

    /// Like [`PageFile::can_sync`], with pages of this size.
    #[cfg(target_os = "linux")]
    pub(super) fn can_sync_pages(file: &File, page_bytes: u64) -> bool {
        use std::os::fd::AsRawFd;
        let (read_write, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC);
        let bytes = page_bytes as usize;
        // SAFETY: a new mapping at any address touches nothing that exists, and is not used.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, read_write, flags, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED {
            return false;
        }
        // SAFETY: exactly the mapping that was just made, which nothing refers to.
        unsafe { libc::munmap(mapped, bytes) };
        true
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn can_sync_pages(_file: &File, _page_bytes: u64) -> bool {
        false
    }

    /// Whether it is a file of a file system on persistent memory (DAX), not a device.
    pub(crate) fn is_on_file_system_with_dax(&self) -> bool {
        matches!(self.backing, Backing::File) && PageFile::can_sync(&self.file)
    }

    /// Makes the file's size and its name's content durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if matches!(self.backing, Backing::File) { self.file.sync_all() } else { Ok(()) }
    }

    /// Shows tests that the file is mapped at `start`.
    #[cfg(all(test, not(loom), not(miri), target_os = "linux"))]
    pub(super) fn trace(&self, start: NonNull<u8>, bytes: usize) {
        let start = start.as_ptr() as usize;
        match &self.backing {
            Backing::File => super::persist::trace::mapped(&self.file, None, start, bytes),
            Backing::DeviceStart => super::persist::trace::mapped(&self.file, Some(0), start, bytes),
            // Each piece by itself, when it is mapped.
            Backing::Pieces(_) => {}
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The length of the file; on a device, that of its space.
    pub(crate) fn bytes(&self) -> io::Result<u64> {
        match &self.backing {
            Backing::Pieces(pieces) => Ok(pieces.bytes()),
            _ => Ok(self.file.metadata()?.len()),
        }
    }

    /// Makes the file at least this long. New pages have no space yet.
    pub(crate) fn extend(&self, bytes: u64) -> io::Result<()> {
        if !matches!(self.backing, Backing::File) {
            return Ok(());
        }
        let bytes = bytes.next_multiple_of(self.page_bytes);
        if self.bytes()? < bytes { self.file.set_len(bytes) } else { Ok(()) }
    }

    /// Reserves space for these bytes, which must lie in the file, of which `most` are mapped at `start`.
    pub(super) fn reserve(&self, start: NonNull<u8>, bytes: Range<u64>, most: u64) -> io::Result<()> {
        match &self.backing {
            Backing::File => {}
            Backing::DeviceStart => return Ok(()),
            Backing::Pieces(pieces) => {
                return pieces.reserve(bytes.end, most, |at, piece, persist| {
                    // SAFETY: below `most`, which is reserved for the file.
                    self.map_new_piece(unsafe { start.add(at as usize) }, piece, persist)
                });
            }
        }
        let bytes = bytes.start / self.page_bytes * self.page_bytes..bytes.end;
        // The pages of a tmpfs are huge only if they are asked for by a mapping.
        #[cfg(target_os = "linux")]
        if self.is_tmpfs && bytes.start < bytes.end {
            let len = (bytes.end - bytes.start).next_multiple_of(self.page_bytes) as usize;
            // SAFETY: the range is mapped, as the caller promises, and the advice changes no content. Where there is
            // no space, the call fails without a signal.
            let done = unsafe {
                let first = start.as_ptr().add(bytes.start as usize);
                libc::madvise(first.cast(), len, libc::MADV_POPULATE_WRITE)
            };
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                _ if done == 0 => return Ok(()),
                // Linux before 5.14.
                Some(libc::EINVAL) => {}
                Some(libc::EFAULT) => return Err(io::ErrorKind::StorageFull.into()),
                _ => return Err(error),
            }
        }
        self.allocate(0, bytes.clone())?;
        #[cfg(target_os = "linux")]
        if self.is_synced && bytes.start < bytes.end {
            // Now rather than at the first store to each page, which would wait for the file system's journal.
            let len = (bytes.end - bytes.start).next_multiple_of(self.page_bytes) as usize;
            // SAFETY: the range is mapped, as the caller promises, and the advice changes no content.
            unsafe {
                let first = start.as_ptr().add(bytes.start as usize);
                libc::madvise(first.cast(), len, libc::MADV_POPULATE_WRITE)
            };
        }
        let _ = start;
        Ok(())
    }

    /// Gives the space of these bytes back. They read as zeros, and must be reserved again before a use.
    fn punch(&self, bytes: Range<u64>) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        return self.allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, bytes);
        #[cfg(not(target_os = "linux"))]
        self.allocate(0, bytes)
    }

    #[cfg(target_os = "linux")]
    fn allocate(&self, mode: libc::c_int, bytes: Range<u64>) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let end = bytes.end.next_multiple_of(self.page_bytes);
        if bytes.start >= end {
            return Ok(());
        }
        let place = |bytes: u64| libc::off_t::try_from(bytes).map_err(io::Error::other);
        let (first, len) = (place(bytes.start)?, place(end - bytes.start)?);
        loop {
            // SAFETY: the call works on the file alone. It changes content only with PUNCH_HOLE, whose callers know
            // that no thread uses these bytes.
            if unsafe { libc::fallocate(self.file.as_raw_fd(), mode, first, len) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn allocate(&self, _mode: i32, _bytes: Range<u64>) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "kept tables need Linux"))
    }

    /// Zeroes the first bytes and gives their space back; returns false if that is impossible.
    pub(super) fn discard(&self, bytes: usize) -> bool {
        matches!(self.backing, Backing::File) && self.punch(0..bytes as u64).is_ok()
    }

    /// Maps the first bytes, aligned to a huge page if they fill one; returns their address and the whole mapping.
    #[cfg(target_os = "linux")]
    pub(super) fn map(&self, bytes: usize) -> io::Result<Mapping> {
        let page_bytes = self.page_bytes as usize;
        let align = if bytes >= HUGE_BYTES { HUGE_BYTES.max(page_bytes) } else { page_bytes };
        let bytes = bytes.next_multiple_of(page_bytes);
        if matches!(self.backing, Backing::File) && (self.bytes()? as usize) < bytes {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is too short"));
        }
        let whole = bytes.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        let (none, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: a new anonymous mapping at any address touches nothing that exists.
        let reserved = unsafe { libc::mmap(std::ptr::null_mut(), whole, none, flags, -1, 0) };
        if reserved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let reserved = NonNull::new(reserved.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let offset = reserved.as_ptr().align_offset(align);
        // SAFETY: the offset is below `align`, and `align` bytes more than needed were mapped.
        let start = unsafe { reserved.add(offset) };
        let mapped = match &self.backing {
            Backing::File | Backing::DeviceStart => self.map_at(start, (0, bytes as u64)),
            Backing::Pieces(pieces) => self.map_pieces(start, bytes as u64, &pieces.extents()),
        };
        if let Err(error) = mapped {
            super::unmap(reserved, whole);
            return Err(error);
        }
        if bytes >= HUGE_BYTES {
            // SAFETY: the range is ours, and the advice changes no content.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Ok((start, (reserved, whole)))
    }

    /// Maps the pieces that the first `most` bytes of a file on a device have.
    #[cfg(target_os = "linux")]
    fn map_pieces(&self, start: NonNull<u8>, most: u64, extents: &[(u64, u64)]) -> io::Result<()> {
        let mut done = 0;
        for &(at, bytes) in extents {
            let bytes = bytes.min(most - done);
            if bytes == 0 {
                return Ok(());
            }
            // SAFETY: below `most`, which the caller has reserved.
            self.map_piece(unsafe { start.add(done as usize) }, (at, bytes))?;
            done += bytes;
        }
        Ok(())
    }

    /// Maps a piece of a device at an address that is reserved for it.
    #[cfg(target_os = "linux")]
    fn map_piece(&self, start: NonNull<u8>, piece: (u64, u64)) -> io::Result<()> {
        self.map_at(start, piece)?;
        #[cfg(all(test, not(loom), not(miri)))]
        super::persist::trace::mapped(&self.file, Some(piece.0), start.as_ptr() as usize, piece.1 as usize);
        Ok(())
    }

    /// Maps a new piece of a device, and makes it zero, which is durable after the next fence.
    fn map_new_piece(
        &self,
        start: NonNull<u8>,
        piece: (u64, u64),
        persist: Option<Persist>,
    ) -> io::Result<()> {
        self.map_piece(start, piece)?;
        let bytes = piece.1 as usize;
        // SAFETY: just mapped for so many bytes, of which no value was used before.
        let zeros = unsafe {
            start.write_bytes(0, bytes);
            std::slice::from_raw_parts(start.as_ptr(), bytes)
        };
        if let Some(persist) = persist {
            persist.flush(Step::Zeros, zeros);
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn map_piece(&self, _start: NonNull<u8>, _piece: (u64, u64)) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "kept tables need Linux"))
    }

    /// Maps so many bytes from an offset on at an address that is reserved for them.
    #[cfg(target_os = "linux")]
    fn map_at(&self, start: NonNull<u8>, (offset, bytes): (u64, u64)) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let kind = if self.is_synced { libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC } else { libc::MAP_SHARED };
        let (use_it, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, kind | libc::MAP_FIXED | libc::MAP_NORESERVE);
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let (at, file) = (start.as_ptr().cast(), self.file.as_raw_fd());
        // SAFETY: replaces a part of a mapping that the caller has made for it, which nothing refers to.
        let mapped = unsafe { libc::mmap(at, bytes as usize, use_it, flags, file, offset) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn map(&self, _bytes: usize) -> io::Result<Mapping> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "kept tables need Linux"))
    }
}

/// Takes a descriptor that the process was started with.
#[cfg(target_os = "linux")]
pub(crate) fn inherited(number: usize) -> io::Result<File> {
    use std::os::fd::{BorrowedFd, FromRawFd};
    let number = i32::try_from(number).map_err(io::Error::other)?;
    // SAFETY: the service manager has opened it. It is borrowed for this call alone, which fails if that is not so.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: it is open. The service manager made it for this process, and only the one set of files takes it, once.
    Ok(unsafe { File::from_raw_fd(number) })
}

/// Kind and block size of the file system of a file.
#[cfg(target_os = "linux")]
fn file_system(file: &File) -> io::Result<(i64, u64)> {
    use std::os::fd::AsRawFd;
    // SAFETY: all zero is a value of this plain struct, which the call fills in.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the file is open, and the call writes the struct and nothing else.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut found) } != 0 {
        return Err(io::Error::last_os_error());
    }
    #[allow(clippy::unnecessary_cast, clippy::useless_conversion)] // the types differ between architectures
    Ok((found.f_type as i64, u64::try_from(found.f_bsize).unwrap_or(SMALL_PAGE_BYTES)))
}

#[cfg(not(target_os = "linux"))]
fn file_system(_file: &File) -> io::Result<(i64, u64)> {
    Ok((0, SMALL_PAGE_BYTES))
}

/// The pages of mappings of files in this folder.
pub(crate) fn pages_of(folder: &Path) -> io::Result<Pages> {
    if is_in_fd_store(folder) {
        let huge = ["[always]", "[within_size]", "[advise]", "[force]"];
        let is_huge = huge.iter().any(|how| shmem_enabled().contains(how));
        return Ok(if is_huge { Pages::HugeIfAsked } else { Pages::Small });
    }
    Ok(match file_system(&File::open(folder)?)?.0 {
        HUGETLBFS => Pages::Huge,
        TMPFS if tmpfs_is_huge(folder) => Pages::HugeIfAsked,
        TMPFS => Pages::Small,
        _ => Pages::SmallOnDisk,
    })
}

/// Whether the tmpfs of this folder was mounted with huge pages.
fn tmpfs_is_huge(folder: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| Some((line.split(' ').nth(4)?, line)));
    let inside = mounts.filter(|(at, _)| folder.starts_with(at));
    // The last one of a place hides those before.
    let found = inside.max_by_key(|(at, _)| at.len()).map(|(_, line)| line);
    let asked =
        |line: &str| ["huge=always", "huge=within_size", "huge=advise"].iter().any(|how| line.contains(how));
    let enabled = shmem_enabled();
    found.is_some_and(asked) && !enabled.contains("[deny]") || enabled.contains("[force]")
}

/// Whether files in memory get huge pages, as the kernel tells it.
fn shmem_enabled() -> String {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default()
}
