//! Memory files that a service manager keeps beyond the process: systemd's file descriptor store.
//!
//! A path that begins with `fdstore:` names one; the rest of the path is its `FDNAME`. The manager gets a descriptor
//! before the file is used (`FDSTORE=1`, then `BARRIER=1`), and hands all of them to the next process (`LISTEN_FDS`).
//! Knows no content.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::file::inherited;

/// The start of the path of such a file.
pub(crate) const PLACE: &str = "fdstore:";
/// The start of our names, among the descriptors of a unit.
const OURS: &str = "sanderling/";
/// The longest name that systemd takes.
const NAME_BYTES_MAX: usize = 255;
/// The most bytes of all names. The next process gets them as one variable, which may have 128 KiB.
const NAMES_BYTES_MAX: usize = 96 << 10;
/// The number of the first descriptor that a manager hands over.
const FIRST_FD: usize = 3;
/// The most descriptors that are looked at.
const FDS_MAX: usize = 1 << 16;
/// How long the manager may take to receive a message.
const MANAGER_WITHIN: Duration = Duration::from_secs(10);
/// The end of the name of a file that is not complete. It gets to the manager when it is renamed.
const INCOMPLETE: &str = ".new";

/// The files of this process that the manager has, too.
#[derive(Debug)]
pub(crate) struct FdStore {
    manager: UnixDatagram,
    /// The most files that the manager keeps.
    files_max: usize,
    /// By path below [`PLACE`].
    files: BTreeMap<String, File>,
    /// Folders that a table of this process uses, with the number of the use.
    used: BTreeMap<String, u64>,
}

/// Marks a folder as used until it is dropped.
#[derive(Debug)]
pub(crate) struct UsedFolder {
    folder: String,
    number: u64,
}

/// Whether the path names a file or folder in the store.
pub(crate) fn is_in_store(path: &Path) -> bool {
    path.starts_with(PLACE)
}

/// The store of this process.
pub(crate) fn store() -> io::Result<MutexGuard<'static, FdStore>> {
    static STORE: OnceLock<Result<Mutex<FdStore>, String>> = OnceLock::new();
    let opened = STORE.get_or_init(|| FdStore::of_environment().map(Mutex::new));
    let store = opened.as_ref().map_err(|reason| io::Error::other(reason.clone()))?;
    Ok(store.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A path below [`PLACE`].
fn below(path: &Path) -> io::Result<String> {
    let rest = path.strip_prefix(PLACE).ok().and_then(Path::to_str);
    rest.map(str::to_owned).ok_or_else(|| io::Error::other("its name is no text"))
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl FdStore {
    fn of_environment() -> Result<FdStore, String> {
        const NEEDS: &str = "fdstore: needs systemd 254 or later and a unit with FileDescriptorStoreMax=4096";
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let socket = variable("NOTIFY_SOCKET").ok_or_else(|| format!("{NEEDS}: NOTIFY_SOCKET is not set"))?;
        let files_max = variable("FDSTORE").and_then(|files| files.parse().ok()).filter(|files| *files > 0);
        let files_max = files_max.ok_or_else(|| format!("{NEEDS}: FDSTORE is not set"))?;
        let manager = connect(&socket).map_err(|error| format!("NOTIFY_SOCKET {socket}: {error}"))?;
        let mut store = FdStore { manager, files_max, files: BTreeMap::new(), used: BTreeMap::new() };
        if variable("LISTEN_PID") == Some(std::process::id().to_string()) {
            let count = variable("LISTEN_FDS").and_then(|count| count.parse().ok()).unwrap_or(0);
            let names = variable("LISTEN_FDNAMES").unwrap_or_default();
            for (at, name) in names.split(':').enumerate().take(FDS_MAX.min(count)) {
                // Others are not ours: sockets that the unit listens at.
                if let Some(name) = name.strip_prefix(OURS) {
                    let file = inherited(FIRST_FD + at).map_err(|error| format!("{name}: {error}"))?;
                    store.files.insert(name.to_owned(), file);
                }
            }
        }
        Ok(store)
    }

    /// Sends a message to the manager, and waits until it has it.
    fn send(&self, message: &str, file: &File) -> io::Result<()> {
        self.message(message, Some(file.as_fd()))?;
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(MANAGER_WITHIN))?;
        self.message("BARRIER=1", Some(theirs.as_fd()))?;
        drop(theirs);
        // The end: the manager has closed its descriptor, which it received after the message.
        match (&ours).read_to_end(&mut Vec::new()) {
            Ok(_) => Ok(()),
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!("the service manager does not receive files within {MANAGER_WITHIN:?}: {error}"),
            )),
        }
    }

    fn message(&self, message: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let bytes = [io::IoSlice::new(message.as_bytes())];
        rustix::net::sendmsg(&self.manager, &bytes, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    fn hand_over(&self, path: &str, file: &File) -> io::Result<()> {
        let name = format!("{OURS}{path}");
        let is_valid = |byte: u8| (b' '..127).contains(&byte) && byte != b':';
        if name.len() > NAME_BYTES_MAX || !name.bytes().all(is_valid) {
            let reason = format!("systemd takes names of at most {NAME_BYTES_MAX} bytes without ':'");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        // The manager drops what is too much without an answer.
        if self.files.len() >= self.files_max {
            let reason = format!(
                "the service manager keeps {} files for this unit; raise FileDescriptorStoreMax",
                self.files_max
            );
            return Err(io::Error::new(io::ErrorKind::StorageFull, reason));
        }
        let bytes = self.files.keys().map(|file| OURS.len() + file.len() + 1).sum::<usize>();
        if bytes + name.len() > NAMES_BYTES_MAX {
            let reason = "the names of all files are too long for the service manager: keep fewer tables";
            return Err(io::Error::new(io::ErrorKind::StorageFull, reason));
        }
        self.send(&format!("FDSTORE=1\nFDNAME={name}"), file)
    }

    /// Creates an empty file, in the place of an earlier one.
    pub(crate) fn create(&mut self, path: &Path) -> io::Result<File> {
        self.remove(path).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        let name = below(path)?;
        let file = File::from(rustix::fs::memfd_create(format!("{OURS}{name}"), MemfdFlags::CLOEXEC)?);
        if !name.ends_with(INCOMPLETE) {
            self.hand_over(&name, &file)?;
        }
        self.files.insert(name, file.try_clone()?);
        Ok(file)
    }

    pub(crate) fn open(&self, path: &Path) -> io::Result<File> {
        self.files.get(&below(path)?).ok_or_else(missing)?.try_clone()
    }

    /// Whether there is such a file, or a file in such a folder.
    pub(crate) fn exists(&self, path: &Path) -> bool {
        below(path).is_ok_and(|name| self.files.keys().any(|file| Path::new(file).starts_with(&name)))
    }

    /// Completes a file: gives it its name, and to the manager.
    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (below(from)?, below(to)?);
        let file = self.files.remove(&from).ok_or_else(missing)?;
        self.hand_over(&to, &file)?;
        self.files.insert(to, file);
        Ok(())
    }

    pub(crate) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let name = below(path)?;
        self.files.remove(&name).ok_or_else(missing)?;
        if name.ends_with(INCOMPLETE) {
            return Ok(());
        }
        self.message(&format!("FDSTOREREMOVE=1\nFDNAME={OURS}{name}"), None)
    }

    /// Removes all files below a folder, `first` before the others, and ends its use.
    pub(crate) fn remove_folder(&mut self, path: &Path, first: &str) -> io::Result<()> {
        let folder = below(path)?;
        let inside = |file: &&String| Path::new(file).starts_with(&folder);
        let mut names: Vec<String> = self.files.keys().filter(inside).cloned().collect();
        names.sort_by_key(|name| !name.ends_with(&format!("/{first}")));
        names.iter().try_for_each(|name| self.remove(&Path::new(PLACE).join(name)))?;
        self.used.remove(&folder);
        Ok(())
    }

    /// The names of files and folders in a folder.
    pub(crate) fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let folder = below(path)?;
        let name = |file: &String| {
            let rest = Path::new(file).strip_prefix(&folder).ok()?;
            Some(rest.iter().next()?.to_str()?.to_owned())
        };
        let mut names: Vec<String> = self.files.keys().filter_map(name).collect();
        names.dedup();
        Ok(names)
    }

    /// Marks a folder as used; `None` if it is already. The manager runs one process at a time.
    pub(crate) fn use_folder(&mut self, path: &Path) -> io::Result<Option<UsedFolder>> {
        static USES: AtomicU64 = AtomicU64::new(0);
        let folder = below(path)?;
        if self.used.contains_key(&folder) {
            return Ok(None);
        }
        let number = USES.fetch_add(1, Relaxed);
        self.used.insert(folder.clone(), number);
        Ok(Some(UsedFolder { folder, number }))
    }
}

impl Drop for UsedFolder {
    fn drop(&mut self) {
        // A folder that was removed may be used by the next table of its name.
        if let Ok(mut store) = store()
            && store.used.get(&self.folder) == Some(&self.number)
        {
            store.used.remove(&self.folder);
        }
    }
}

fn connect(socket: &str) -> io::Result<UnixDatagram> {
    let manager = UnixDatagram::unbound()?;
    match socket.strip_prefix('@') {
        Some(name) => manager.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        None => manager.connect(socket)?,
    }
    manager.set_write_timeout(Some(MANAGER_WITHIN))?;
    Ok(manager)
}
