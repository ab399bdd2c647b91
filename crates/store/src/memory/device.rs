//! A device of persistent memory without a file system (`/dev/dax0.0`) as a place for files.
//!
//! Its start holds the directory, a JSON text in two copies ([`Copies`]): per file a number and the pieces of the device
//! that are its bytes. Space that no file has is free; nothing else says so. New pieces are zeros, which are durable
//! when the directory that names them is. The pieces of a removed file are reused once no mapping of this process has them.
//!
//! A plain file can stand for a device, for tests and measurements.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

mod directory;

use self::directory::{Directory, Entry, Extent, bytes_of};
use crate::memory::Region;
use crate::memory::copies::{Copies, Kind};
use crate::memory::file::{PageFile, SMALL_PAGE_BYTES};
use crate::memory::persist::{Persist, Step};

const KIND: Kind = Kind { magic: b"SNDRDAX\0", version: 1, step: Step::Directory };
/// A copy of the directory has one part in so many of the device, within bounds.
const PARTS_OF_COPY: u64 = 64;
const COPY_BYTES: (u64, u64) = (64 << 10, 1 << 20);
/// A file grows by half of its size, up to this, so that it has few pieces.
const GROWTH_BYTES_MAX: u64 = 1 << 30;
/// How long to retry a lock that another process holds.
const LOCK_WITHIN: Duration = Duration::from_secs(1);
const LOCK_EVERY: Duration = Duration::from_millis(10);

/// The devices that this process has locked.
static DEVICES: Mutex<Vec<(Identity, Weak<Device>)>> = Mutex::new(Vec::new());

/// File system and inode of a device's name.
type Identity = (u64, u64);

#[derive(Debug)]
pub(crate) struct Device {
    file: File,
    path: PathBuf,
    bytes: u64,
    /// Offsets and lengths of mappings are multiples of it.
    align: u64,
    header_bytes: u64,
    can_sync: bool,
    /// Another process may have it locked: nothing is changed.
    is_read_only: bool,
    persist: Option<Persist>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    copies: Copies,
    directory: Directory,
    /// Files that are open, by number.
    open: BTreeMap<u64, Weak<()>>,
    /// Pieces of removed files that are mapped.
    busy: Vec<(Weak<()>, Vec<Extent>)>,
    /// Folders that a table of this process uses, with the number of the use.
    used: BTreeMap<String, u64>,
    last_use: u64,
}

/// A file of a device.
#[derive(Debug, Clone)]
pub(crate) struct Pieces {
    device: Arc<Device>,
    number: u64,
    /// Its space is not reused while this is held.
    _in_use: Arc<()>,
}

/// Marks a folder of a device as used until it is dropped.
#[derive(Debug)]
pub(crate) struct DeviceFolder {
    device: Arc<Device>,
    folder: String,
    number: u64,
}

/// The device that a path leads into, and the rest of the path; `None` if it leads into folders.
pub(crate) fn locate(path: &Path) -> Option<(PathBuf, String)> {
    for device in path.ancestors() {
        match device.metadata() {
            Ok(found) if found.is_dir() => return None,
            Ok(found) if found.is_file() || is_char_device(&found) => {
                let rest = path.strip_prefix(device).ok()?.to_str()?;
                return Some((device.to_path_buf(), rest.to_owned()));
            }
            _ => {}
        }
    }
    None
}

fn is_char_device(found: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    found.file_type().is_char_device()
}

/// Whether a path is a device of persistent memory, by its name, or a file that stands for one and has a directory.
pub(crate) fn has_tables(path: &Path) -> io::Result<bool> {
    let found = path.metadata()?;
    if is_char_device(&found) {
        return Ok(path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("dax")));
    }
    let mut start = [0; KIND.magic.len()];
    Ok(found.is_file() && File::open(path)?.read_exact(&mut start).is_ok() && start == *KIND.magic)
}

fn identity(file: &File) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    file.metadata().map(|found| (found.dev(), found.ino()))
}

/// Size and alignment of a device, or of a file that stands for one.
fn size_of_device(file: &File) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let found = file.metadata()?;
    if !is_char_device(&found) {
        return Ok((found.len() / SMALL_PAGE_BYTES * SMALL_PAGE_BYTES, SMALL_PAGE_BYTES));
    }
    // As `major` and `minor` of libc, which are not the same everywhere.
    let (major, minor) =
        ((found.rdev() >> 8) & 0xfff, (found.rdev() & 0xff) | ((found.rdev() >> 12) & 0xfff00));
    let number = |what: &str| {
        let text = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/{what}"));
        let number = text.ok().and_then(|text| text.trim().parse::<u64>().ok());
        let reason = "it is no device of persistent memory (/dev/daxN.M)";
        number.filter(|&number| number > 0).ok_or_else(|| io::Error::other(reason))
    };
    Ok((number("size")?, number("align")?.max(SMALL_PAGE_BYTES)))
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a file is in a folder or those below it.
fn is_in(file: &str, folder: &str) -> bool {
    Path::new(file).starts_with(folder)
}

impl Device {
    /// Opens a device and locks it for this process; one that is zero becomes an empty one.
    pub(crate) fn open(path: &Path) -> io::Result<Arc<Device>> {
        Device::open_or_format(path, false)
    }

    /// Opens a device like [`Device::open`]; one with other content becomes an empty one.
    pub(crate) fn open_or_format(path: &Path, formats: bool) -> io::Result<Arc<Device>> {
        let file = File::options().read(true).write(true).open(path)?;
        let (key, start) = (identity(&file)?, Instant::now());
        loop {
            if let Some(found) = Device::find(key) {
                return Ok(found);
            }
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_WITHIN => {
                    std::thread::sleep(LOCK_EVERY);
                }
                Err(TryLockError::WouldBlock) => {
                    let reason = "another process uses this device; end it, or name another device";
                    return Err(io::Error::new(io::ErrorKind::ResourceBusy, reason));
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        let device = Arc::new(Device::read(file, path, false, formats)?);
        lock(&DEVICES).push((key, Arc::downgrade(&device)));
        Ok(device)
    }

    /// Opens a device without a lock, to read what it has while another process may use it.
    pub(crate) fn peek(path: &Path) -> io::Result<Arc<Device>> {
        let file = File::options().read(true).write(true).open(path)?;
        match Device::find(identity(&file)?) {
            Some(found) => Ok(found),
            None => Device::read(file, path, true, false).map(Arc::new),
        }
    }

    fn find(key: Identity) -> Option<Arc<Device>> {
        let mut devices = lock(&DEVICES);
        devices.retain(|(_, device)| device.strong_count() > 0);
        devices.iter().find(|(of, _)| *of == key).and_then(|(_, device)| device.upgrade())
    }

    fn read(file: File, path: &Path, is_read_only: bool, formats: bool) -> io::Result<Device> {
        let (is_device, (bytes, align)) = (is_char_device(&file.metadata()?), size_of_device(&file)?);
        let copy_bytes = (bytes / PARTS_OF_COPY).clamp(COPY_BYTES.0, COPY_BYTES.1);
        let header_bytes = (2 * copy_bytes).next_multiple_of(align);
        if bytes < header_bytes + align {
            let reason = format!("it has {bytes} bytes, a device of tables needs {}", header_bytes + align);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let can_sync = PageFile::can_sync_pages(&file, align);
        // Tables that survive the loss of power and others share it.
        let persist = Persist::detect().filter(|_| !is_read_only);
        let start = PageFile::start_of(file.try_clone()?, path, align, can_sync);
        let region = Region::of_file(start, 2 * copy_bytes as usize)?;
        let mut copies = Copies::new(region, KIND, persist);
        let damaged = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        let directory = match copies.read() {
            Some((version, _)) if version != KIND.version && !formats => {
                return Err(damaged(format!("its directory has version {version}, not {}", KIND.version)));
            }
            Some((_, text)) if !formats => {
                let found: Directory =
                    serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
                found.check(header_bytes..bytes, align).map_err(damaged)?;
                found
            }
            None if !(copies.is_empty() || is_device || copies.is_begun()) => {
                return Err(damaged("it is a file with other content; name a folder or a device".to_owned()));
            }
            None if !formats && !copies.is_empty() => {
                return Err(damaged(
                    "it has other content than kept tables, which --forget removes".to_owned(),
                ));
            }
            _ => {
                if !is_read_only {
                    copies.write(&serde_json::to_vec(&Directory::default())?);
                }
                Directory::default()
            }
        };
        let state = State {
            copies,
            directory,
            open: BTreeMap::new(),
            busy: Vec::new(),
            used: BTreeMap::new(),
            last_use: 0,
        };
        let path = path.to_path_buf();
        Ok(Device {
            file,
            path,
            bytes,
            align,
            header_bytes,
            can_sync,
            is_read_only,
            persist,
            state: Mutex::new(state),
        })
    }

    /// Whether stores to mappings of it survive the loss of power.
    pub(crate) fn can_sync(&self) -> bool {
        self.can_sync
    }

    /// Marks a folder as used by a table; `None` if it is already.
    pub(super) fn use_folder(self: &Arc<Device>, folder: &str) -> Option<DeviceFolder> {
        let state = &mut *lock(&self.state);
        if state.used.contains_key(folder) {
            return None;
        }
        state.last_use += 1;
        state.used.insert(folder.to_owned(), state.last_use);
        Some(DeviceFolder { device: Arc::clone(self), folder: folder.to_owned(), number: state.last_use })
    }

    /// Removes the files of a folder and ends its use: the next table of its name may use it.
    pub(super) fn remove_folder(&self, folder: &str) -> io::Result<()> {
        self.remove(&|name| is_in(name, folder))?;
        lock(&self.state).used.remove(folder);
        Ok(())
    }

    /// Changes the directory.
    fn change<R>(
        &self,
        state: &mut State,
        change: impl FnOnce(&mut Directory) -> io::Result<R>,
    ) -> io::Result<R> {
        if self.is_read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let mut changed = state.directory.clone();
        let result = change(&mut changed)?;
        if changed != state.directory {
            let text = serde_json::to_vec(&changed)?;
            if text.len() > state.copies.text_bytes_max() {
                return Err(full());
            }
            state.copies.write(&text);
            state.directory = changed;
        }
        Ok(result)
    }

    /// Creates a file without space, in the place of an earlier one.
    pub(crate) fn create(self: &Arc<Device>, name: &str) -> io::Result<PageFile> {
        {
            let state = &mut *lock(&self.state);
            let removed = self.change(state, |directory| {
                directory.last_number += 1;
                let entry = Entry { number: directory.last_number, extents: Vec::new() };
                Ok(directory.files.insert(name.to_owned(), entry))
            })?;
            state.note_removed(removed);
        }
        self.open_file(name)
    }

    pub(crate) fn open_file(self: &Arc<Device>, name: &str) -> io::Result<PageFile> {
        let state = &mut *lock(&self.state);
        let entry = state.directory.files.get(name).ok_or(io::ErrorKind::NotFound)?;
        let in_use = state.open.get(&entry.number).and_then(Weak::upgrade).unwrap_or_default();
        state.open.retain(|_, in_use| in_use.strong_count() > 0);
        state.open.insert(entry.number, Arc::downgrade(&in_use));
        let pieces = Pieces { device: Arc::clone(self), number: entry.number, _in_use: in_use };
        let (file, path) = (self.file.try_clone()?, self.path.join(name));
        Ok(PageFile::of_pieces(file, &path, self.align, self.can_sync, pieces))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        lock(&self.state).directory.files.contains_key(name)
    }

    /// The names of files and folders in a folder.
    pub(super) fn list(&self, folder: &str) -> Vec<String> {
        let state = lock(&self.state);
        let name = |file: &String| {
            let rest = Path::new(file).strip_prefix(folder).ok()?;
            Some(rest.iter().next()?.to_str()?.to_owned())
        };
        let mut names: Vec<String> = state.directory.files.keys().filter_map(name).collect();
        names.dedup();
        names
    }

    /// Gives a file another name, in the place of an earlier one.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let state = &mut *lock(&self.state);
        let removed = self.change(state, |directory| {
            let entry = directory.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
            Ok(directory.files.insert(to.to_owned(), entry))
        })?;
        state.note_removed(removed);
        Ok(())
    }

    /// Removes the files whose names `is_removed` accepts, all at once.
    pub(crate) fn remove(&self, is_removed: &dyn Fn(&str) -> bool) -> io::Result<()> {
        let state = &mut *lock(&self.state);
        let removed = self.change(state, |directory| {
            let (removed, kept) =
                std::mem::take(&mut directory.files).into_iter().partition(|(name, _)| is_removed(name));
            directory.files = kept;
            let removed: BTreeMap<String, Entry> = removed;
            Ok(removed)
        })?;
        state.note_removed(removed.into_values());
        Ok(())
    }

    /// Free space of at least `needed` bytes, `wanted` if they are free in one piece.
    fn allocate(&self, state: &mut State, needed: u64, wanted: u64) -> Option<Vec<Extent>> {
        state.busy.retain(|(in_use, _)| in_use.strong_count() > 0);
        let busy = state.busy.iter().flat_map(|(_, extents)| extents.iter().copied());
        let mut used: Vec<Extent> = state.directory.used().chain(busy).collect();
        used.push((self.bytes, 0));
        used.sort_unstable();
        let (mut gaps, mut end) = (Vec::new(), self.header_bytes);
        for (at, bytes) in used {
            let gap = at.saturating_sub(end) / self.align * self.align;
            if gap > 0 {
                gaps.push((end, gap));
            }
            end = end.max(at + bytes);
        }
        if let Some(&(at, _)) = gaps.iter().find(|(_, bytes)| *bytes >= wanted) {
            return Some(vec![(at, wanted)]);
        }
        // The largest first, so that there are few.
        gaps.sort_unstable_by_key(|&(at, bytes)| (std::cmp::Reverse(bytes), at));
        let (mut taken, mut missing) = (Vec::new(), needed);
        for (at, bytes) in gaps {
            let bytes = bytes.min(missing);
            if bytes > 0 {
                taken.push((at, bytes));
            }
            missing -= bytes;
        }
        (missing == 0).then_some(taken)
    }
}

impl State {
    /// The pieces of removed files are not reused while they are mapped.
    fn note_removed(&mut self, removed: impl IntoIterator<Item = Entry>) {
        for entry in removed {
            if let Some(in_use) = self.open.remove(&entry.number) {
                self.busy.push((in_use, entry.extents));
            }
        }
    }
}

impl Drop for DeviceFolder {
    fn drop(&mut self) {
        let state = &mut *lock(&self.device.state);
        // A folder that was removed may be used by the next table of its name.
        if state.used.get(&self.folder) == Some(&self.number) {
            state.used.remove(&self.folder);
        }
    }
}

impl Pieces {
    fn entry<'a>(&self, directory: &'a Directory) -> Option<&'a Entry> {
        directory.files.values().find(|entry| entry.number == self.number)
    }

    /// The pieces, in the order of the file's bytes.
    pub(super) fn extents(&self) -> Vec<Extent> {
        self.entry(&lock(&self.device.state).directory).map_or(Vec::new(), |entry| entry.extents.clone())
    }

    pub(super) fn bytes(&self) -> u64 {
        bytes_of(&self.extents())
    }

    /// Gives the file at least `end` bytes, of at most `most` that may be mapped. `map` maps a new piece from a byte
    /// of the file on and zeroes it.
    pub(super) fn reserve(
        &self,
        end: u64,
        most: u64,
        map: impl Fn(u64, Extent, Option<Persist>) -> io::Result<()>,
    ) -> io::Result<()> {
        let device = &*self.device;
        let state = &mut *lock(&device.state);
        let entry = self.entry(&state.directory).ok_or(io::ErrorKind::NotFound)?;
        let mut at = bytes_of(&entry.extents);
        if end <= at {
            return Ok(());
        }
        if device.is_read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let whole = |bytes: u64| bytes.next_multiple_of(device.align);
        let needed = whole(end - at);
        let wanted = whole(needed.max((at / 2).min(GROWTH_BYTES_MAX))).min(whole(most).saturating_sub(at));
        let new = device.allocate(state, needed, wanted.max(needed)).ok_or_else(full)?;
        for &piece in &new {
            map(at, piece, device.persist)?;
            at += piece.1;
        }
        // Its fence waits for the zeros as well.
        device.change(state, |directory| {
            let mut entries = directory.files.values_mut();
            let entry = entries.find(|entry| entry.number == self.number).ok_or(io::ErrorKind::NotFound)?;
            for (offset, bytes) in new {
                match entry.extents.last_mut() {
                    Some((at, before)) if *at + *before == offset => *before += bytes,
                    _ => entry.extents.push((offset, bytes)),
                }
            }
            Ok(())
        })
    }
}

#[cfg(all(test, not(loom), not(miri), target_os = "linux"))]
mod tests;
