//! Tables that outlive their process: a folder with the table's memory in files, and what a later process needs to
//! make interrupted changes whole.
//!
//! The slots of the index are the only truth: a row is live if a slot names it. So nothing logs allocations. The death
//! of a process leaves, for each thread, the stores of a prefix of its program, so that the order of stores in the
//! machine code is all that the protocol needs ([`in_order`]). The loss of power leaves less; tables that survive it
//! write cache lines back as well ([`crate::memory::persist`]). What recovery needs:
//!
//! | interrupted change | record, written before it | recovery |
//! | --- | --- | --- |
//! | insert, removal or replacement of a key | its hash, with the key's lock ([`live`]) | buckets on the hash's path: even versions, exact overflow counts |
//! | promotion into a free slot | the same | of two equal hashes, the one at home stays |
//! | exchange of a hot and a cold key | both slots with their new content | written again |
//! | move of a share to a larger index | the hash that is being copied | the copies of the share are removed, and the growth goes on |
//! | growth, clearing | one store of a head ([`head`]) | - |
//! | update of a row in place | the row's old words ([`crate::rows::undo`]) | written back |
//!
//! See `docs/design/0034`, and `docs/design/0038` for the loss of power.

pub(crate) mod fault;
pub(crate) mod head;
pub(crate) mod live;
#[cfg(all(test, not(loom), not(miri), target_os = "linux", target_arch = "x86_64"))]
mod power;
#[cfg(all(test, not(loom), not(miri), target_os = "linux", target_arch = "x86_64"))]
mod steps;

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::StoreError;
use crate::kept::head::{Head, HeadFile, IndexName};
use crate::kept::live::Live;
use crate::memory::Region;
use crate::memory::file::PageFile;
use crate::memory::persist::{Persist, ordered};
use crate::memory::place::{Place, PlaceInUse};

/// How long to retry a lock that another process holds. A child process inherits all open files, locks included,
/// until it executes another program.
const LOCK_WITHIN: Duration = Duration::from_secs(1);
const LOCK_EVERY: Duration = Duration::from_millis(10);

/// Orders the stores before it and after it for a later process: the compiler may not exchange them. Processors
/// finish the stores of a thread that dies in the order of its instructions.
#[inline(always)]
pub(crate) fn in_order() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    ordered();
}

/// The folder of a kept table, locked by this process.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    place: Place,
    lock: FolderLock,
    /// Files are mapped with `MAP_SYNC`, and names and sizes of files are durable.
    is_synced: bool,
}

/// Keeps others from using a folder.
#[derive(Debug)]
enum FolderLock {
    /// The file `lock`. The system releases it when the process ends.
    File(File),
    InUse(#[expect(dead_code, reason = "its drop releases the folder")] PlaceInUse),
}

/// The kept state of a table beside its rows and its index.
#[derive(Debug)]
pub(crate) struct Kept {
    folder: Folder,
    head: Mutex<HeadState>,
    pub(crate) live: Live,
    /// Whether the file system had no space for the last rows or the last index that were to be added.
    is_file_system_full: AtomicBool,
}

#[derive(Debug)]
struct HeadState {
    file: HeadFile,
    head: Head,
    /// The folder is gone, or another table's.
    is_forgotten: bool,
}

impl Folder {
    /// Creates the folder if necessary and locks it.
    pub(crate) fn lock(path: &Path) -> Result<Folder, StoreError> {
        let failed = |action, source| StoreError::Io { path: path.to_path_buf(), action, source };
        let place = Place::of(path).map_err(|error| failed("open", error))?;
        let folder = |place, lock| Folder { path: path.to_path_buf(), place, lock, is_synced: false };
        if let Some(in_use) = place.take().map_err(|error| failed("lock", error))? {
            return Ok(folder(place, FolderLock::InUse(in_use)));
        }
        Place::create_folder(path).map_err(|error| failed("create the folder", error))?;
        let at = path.join("lock");
        let file = File::options().create(true).truncate(false).read(true).write(true).open(&at);
        let mut file = file.map_err(|error| failed("open the lock in", error))?;
        let start = Instant::now();
        let locked = loop {
            match file.try_lock() {
                Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_WITHIN => {
                    std::thread::sleep(LOCK_EVERY);
                }
                locked => break locked,
            }
        };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let reason =
                    format!("process {} uses this table; end it, or name another folder", holder.trim());
                return Err(failed("lock", io::Error::new(io::ErrorKind::ResourceBusy, reason)));
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", error)),
        }
        // hugetlbfs has no writes: there the holder is not named.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(folder(place, FolderLock::File(file)))
    }

    /// Whether stores to mappings of its files can survive the loss of power.
    pub(crate) fn can_sync(&self) -> bool {
        match (&self.lock, &self.place) {
            (FolderLock::File(file), _) => PageFile::can_sync(file),
            (_, Place::Device(device, _)) => device.can_sync(),
            _ => false,
        }
    }

    /// Maps files with `MAP_SYNC` from now on, if asked for.
    pub(crate) fn set_synced(&mut self, is_synced: bool) {
        self.is_synced = is_synced;
    }

    /// Makes the names of files durable, if the files are.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if self.is_synced { self.place.sync() } else { Ok(()) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The error of a file operation.
    pub(crate) fn failed(&self, name: &str, action: &'static str, source: io::Error) -> StoreError {
        StoreError::Io { path: self.file(name), action, source }
    }

    /// Creates a file of this length, without space, which it has on a device.
    pub(crate) fn create(&self, name: &str, bytes: u64) -> Result<PageFile, StoreError> {
        let make = || {
            let file = self.place.create(name)?.synced(self.is_synced);
            if let (Place::Device(..), 1..) = (&self.place, bytes) {
                let all = Region::<AtomicU8>::of_file(file, bytes as usize)?;
                all.reserve(0..bytes as usize)?;
                return self.place.open(name);
            }
            file.extend(bytes)?;
            if self.is_synced {
                file.sync()?;
                self.sync()?;
            }
            Ok(file)
        };
        make().map_err(|error| self.failed(name, "create", error))
    }

    pub(crate) fn open(&self, name: &str) -> Result<PageFile, StoreError> {
        let file = self.place.open(name).map_err(|error| self.failed(name, "open", error))?;
        Ok(file.synced(self.is_synced))
    }

    /// Whether there is a file of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.place.has(name)
    }

    /// Gives a complete file its name, which is durable afterwards if the files are. The name before ends with `.new`.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.place.rename(from, to).and_then(|()| self.sync())
    }

    /// Removes a file. Mappings of it stay valid.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        self.place.remove(name)
    }

    /// The names of its files.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        self.place.names()
    }

    /// Removes every file but the lock, the head first.
    pub(crate) fn forget(&self) -> Result<(), StoreError> {
        let mut names = vec![HEAD.to_owned()];
        names.extend(self.names().map_err(|error| self.failed("", "list", error))?);
        for name in names.iter().filter(|name| *name != "lock") {
            match self.remove(name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(self.failed(name, "remove", error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes every file and the folder, while it is locked, so that no other process creates files in it.
    pub(crate) fn remove_all(self) -> Result<(), StoreError> {
        let failed = |error| self.failed("", "remove", error);
        if self.place.remove_all(HEAD).map_err(failed)? {
            return Ok(());
        }
        self.forget()?;
        let removed = std::fs::remove_file(self.file("lock")).and_then(|()| std::fs::remove_dir(&self.path));
        removed.map_err(failed)
    }
}

/// The start of the name of a folder that is being removed; no table's folder has it.
pub(crate) const DROPPED: &str = "%dropped-";
/// Names of a kept table's files.
pub(crate) const HEAD: &str = "head";
pub(crate) const LANES: &str = "lanes";
pub(crate) const UNDO: &str = "undo";
pub(crate) const WEIGHTS: &str = "weights";
pub(crate) const STATES: &str = "states";

/// The file of an index.
pub(crate) fn index_file(number: u64) -> String {
    format!("index-{number}")
}

impl Kept {
    pub(crate) fn new(folder: Folder, head_file: HeadFile, head: Head, live: Live) -> Kept {
        let head = Mutex::new(HeadState { file: head_file, head, is_forgotten: false });
        Kept { folder, head, live, is_file_system_full: AtomicBool::new(false) }
    }

    /// Notes whether there was space for what was to be added.
    pub(crate) fn note_space(&self, is_full: bool) {
        self.is_file_system_full.store(is_full, Relaxed);
    }

    pub(crate) fn is_file_system_full(&self) -> bool {
        self.is_file_system_full.load(Relaxed)
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    fn locked_head(&self) -> MutexGuard<'_, HeadState> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the file of a new index; returns its number. `None` if there is no space.
    ///
    /// It is not part of the table before [`Kept::begin_growth`] or [`Kept::replace_index`].
    pub(crate) fn new_index(&self, bytes: usize) -> Option<(u64, PageFile)> {
        let state = &mut *self.locked_head();
        if state.is_forgotten {
            return None;
        }
        state.head.last_index += 1;
        let number = state.head.last_index;
        let made = self.folder.create(&index_file(number), bytes as u64);
        if made.is_err() {
            let _ = self.folder.remove(&index_file(number));
        }
        Some((number, made.ok()?))
    }

    /// Records that the index `from` grows to `to`.
    pub(crate) fn begin_growth(&self, from: IndexName, to: IndexName) {
        // The thread that moved the last share may be about to record the end of that growth.
        self.end_growth(from);
        self.live.forget_moves(to.number);
        self.change(|head| (head.index, head.next_index) = (from, Some(to)));
    }

    /// Records that all shares have moved to the index `to`, unless a later change has.
    pub(crate) fn end_growth(&self, to: IndexName) {
        self.change(|head| {
            if head.next_index == Some(to) {
                (head.index, head.next_index) = (to, None);
            }
        });
    }

    /// Records that the index `to` has taken the place of all others.
    pub(crate) fn replace_index(&self, to: IndexName) {
        self.change(|head| (head.index, head.next_index) = (to, None));
    }

    /// Removes the file of an index. Mappings of it stay valid.
    pub(crate) fn remove_index(&self, number: u64) {
        if self.locked_head().is_forgotten {
            return;
        }
        // A file that stays is removed when the table is opened again.
        let _ = self.folder.remove(&index_file(number));
    }

    /// The way to make stores durable, if the table survives the loss of power.
    pub(crate) fn persist(&self) -> Option<Persist> {
        self.live.persist()
    }

    /// Changes the head; nothing is written if it stays the same.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Head)) {
        let HeadState { file, head, .. } = &mut *self.locked_head();
        let before = head.clone();
        change(head);
        if *head != before {
            file.write(head);
        }
    }

    /// Removes the folder. The table stays usable in this process.
    pub(crate) fn forget(&self) -> Result<(), StoreError> {
        let state = &mut *self.locked_head();
        if std::mem::replace(&mut state.is_forgotten, true) {
            return Ok(());
        }
        // The next table of this name gets a folder of its own at once.
        if self.folder.place.remove_all(HEAD).map_err(|error| self.folder.failed("", "remove", error))? {
            return Ok(());
        }
        let path = self.folder.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let away = path.with_file_name(format!("{DROPPED}{}-{name}", std::process::id()));
        std::fs::rename(path, &away).map_err(|error| self.folder.failed("", "move away", error))?;
        std::fs::remove_dir_all(&away).map_err(|error| self.folder.failed("", "remove", error))
    }
}

/// A name as a folder's name: letters, digits, `_`, `-` and `.` stay, other bytes become `%` and two digits.
pub(crate) fn folder_name(name: &str) -> String {
    let plain =
        |at: usize, byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte) || byte == b'.' && at > 0;
    let each = name.bytes().enumerate();
    each.map(|(at, byte)| if plain(at, byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") })
        .collect()
}
