//! Tokens that servers generate for themselves, in files that only their user can read.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

/// Random bytes of a token. Its text has two hex digits per byte.
const CHANCE_BYTES: usize = 32;
/// Maximum length of a token file. A longer file is ignored.
const FILE_BYTES_MAX: u64 = 4096;
/// Files that a server looks at when it starts, to remove stale ones.
const STALE_FILES_MAX: usize = 10_000;
/// A port of this host that takes longer to refuse a connection is in use.
const STALE_CONNECT_TIMEOUT: Duration = Duration::from_millis(200);
/// Mode of a token file: only the owner may read it.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// Mode bits that let other users change a folder.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The folder for this user's sockets and tokens: `$XDG_RUNTIME_DIR/sanderling`, or `/tmp/sanderling-UID`.
#[must_use]
pub fn user_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder).join("sanderling"),
        _ => std::env::temp_dir().join(format!("sanderling-{}", rustix::process::geteuid().as_raw())),
    }
}

/// Creates a folder that only this user can write to. A new folder is also unreadable for others.
///
/// # Errors
/// The folder cannot be created, belongs to another user, or is writable by others.
pub fn make_private(folder: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
    let found = std::fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("is not a folder of this user"));
    }
    if found.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(io::Error::other("others can write to it: chmod 700, or name another by --runtime-dir"));
    }
    Ok(())
}

/// A generated token and its files, which are removed on drop.
pub struct OwnToken {
    token: String,
    folder: PathBuf,
    /// Each with its lock, which tells other servers that this one lives.
    files: Vec<(PathBuf, File)>,
}

impl std::fmt::Debug for OwnToken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("OwnToken").field("files", &self.files).finish_non_exhaustive()
    }
}

impl OwnToken {
    /// Generates a token. No file has it yet.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn new(folder: PathBuf) -> io::Result<OwnToken> {
        let mut chance = [0; CHANCE_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut chance)?;
        let token = chance.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(OwnToken { token, folder, files: Vec::new() })
    }

    /// The token that clients must present.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Writes the token file for a server at this host and port. `None`: the address is not local, so no client looks
    /// for a file.
    ///
    /// # Errors
    /// The folder is not private to this user or not writable. The error names the file.
    pub fn publish(&mut self, host: &str, port: u16) -> io::Result<Option<PathBuf>> {
        let mut first = None;
        for path in files(&self.folder, host, port) {
            let file = self
                .write(&path)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
            first.get_or_insert_with(|| path.clone());
            self.files.push((path, file));
        }
        Ok(first)
    }

    /// Writes atomically, because a client may read at any moment. The file stays locked while it is open.
    fn write(&self, path: &Path) -> io::Result<File> {
        make_private(&self.folder)?;
        if self.files.is_empty() {
            remove_stale(&self.folder);
        }
        let new = path.with_extension(format!("new-{}", std::process::id()));
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&new)?;
        // Without locks on this file system, the port alone tells that this server lives.
        let _ = file.try_lock();
        let written = writeln!(file, "{}", self.token).and_then(|()| std::fs::rename(&new, path));
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        written.map(|()| file)
    }
}

impl Drop for OwnToken {
    fn drop(&mut self) {
        for (path, _) in &self.files {
            // A newer server at this address may have replaced the file.
            if read(path).is_some_and(|token| token == self.token) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Removes the token files of servers that were killed: the file's lock is free, and the port refuses connections.
fn remove_stale(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().take(STALE_FILES_MAX).map(|entry| entry.path()) {
        let (Some(token), Some(address)) = (read(&path), address_of(&path)) else { continue };
        if is_locked(&path) || !is_refused(address) {
            continue;
        }
        // A server may have started there meanwhile.
        if read(&path).is_some_and(|found| found == token) {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// The address in the name of a token file.
fn address_of(path: &Path) -> Option<SocketAddr> {
    let (host, port) = path.file_name()?.to_str()?.strip_suffix(".token")?.rsplit_once('-')?;
    Some(SocketAddr::new(host.parse().ok()?, port.parse().ok()?))
}

fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

fn is_refused(address: SocketAddr) -> bool {
    let connected = TcpStream::connect_timeout(&address, STALE_CONNECT_TIMEOUT);
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Reads the token that a server of this user generated for a host and port.
#[must_use]
pub fn own_token(host: &str, port: u16) -> Option<String> {
    own_token_in(&user_dir(), host, port)
}

fn own_token_in(folder: &Path, host: &str, port: u16) -> Option<String> {
    files(folder, host, port).find_map(|path| read(&path))
}

/// The token files for a host and port. Only local addresses have any, so that no token is sent to another host.
fn files(folder: &Path, host: &str, port: u16) -> impl Iterator<Item = PathBuf> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = match bare.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => vec![ip.to_string()],
        Err(_) if bare.eq_ignore_ascii_case("localhost") => vec!["127.0.0.1".to_owned(), "::1".to_owned()],
        _ => Vec::new(),
    };
    addresses.into_iter().map(move |address| folder.join(format!("{address}-{port}.token")))
}

/// Reads a token file of this user. Files of other users or of another length are ignored.
fn read(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let found = file.metadata().ok()?;
    if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    let token = text.trim();
    (token.len() == 2 * CHANCE_BYTES).then(|| token.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_client_of_the_user_finds_the_token_of_a_server_and_nobody_else_can_read_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sanderling");
        let mut own = OwnToken::new(folder.clone()).unwrap();
        let path = own.publish("127.0.0.1", 7000).unwrap().unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
        let found = |host: &str, port| own_token_in(&folder, host, port);
        for host in ["127.0.0.1", "localhost", "LOCALHOST"] {
            assert_eq!(found(host, 7000).as_deref(), Some(own.token()), "{host}");
        }
        for (host, port) in [("127.0.0.1", 7001), ("::1", 7000), ("10.0.0.5", 7000), ("db1", 7000)] {
            assert_eq!(found(host, port), None, "{host}:{port}");
        }
        // Every local name of the host finds the same token.
        own.publish("localhost", 7001).unwrap().unwrap();
        assert!(["127.0.0.1", "[::1]", "localhost"].iter().all(|host| found(host, 7001).is_some()));
        assert_eq!(own.publish("10.0.0.5", 7002).unwrap(), None, "another host's clients have no file");
        let other = OwnToken::new(folder.clone()).unwrap();
        assert!(other.token() != own.token() && other.token().len() == 64);
        drop(own);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "it leaves nothing behind");
    }

    #[test]
    fn a_server_that_ends_leaves_the_token_of_the_one_after_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let [mut first, mut second] = [(); 2].map(|()| OwnToken::new(folder.path().to_path_buf()).unwrap());
        first.publish("127.0.0.1", 7000).unwrap();
        second.publish("127.0.0.1", 7000).unwrap();
        drop(first);
        assert_eq!(own_token_in(folder.path(), "127.0.0.1", 7000).as_deref(), Some(second.token()));
    }

    #[test]
    fn files_of_killed_servers_are_removed_and_those_of_living_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let listener = |address: &str| std::net::TcpListener::bind(address).unwrap();
        let (old, gone) = (listener("127.0.0.1:0"), listener("127.0.0.1:0"));
        let [old_port, gone_port] = [&old, &gone].map(|listener| listener.local_addr().unwrap().port());
        drop(gone);
        // Without a lock, as servers of older versions write them.
        let path = |port: u16| folder.path().join(format!("127.0.0.1-{port}.token"));
        for port in [old_port, gone_port] {
            std::fs::write(path(port), "a".repeat(64)).unwrap();
        }
        std::fs::write(folder.path().join("other-1.token"), "a".repeat(64)).unwrap();
        let mut first = OwnToken::new(folder.path().to_path_buf()).unwrap();
        // It is locked, so that it stays although no server listens at port 1.
        first.publish("127.0.0.1", 1).unwrap();
        OwnToken::new(folder.path().to_path_buf()).unwrap().publish("127.0.0.1", 2).unwrap();
        let mut left: Vec<String> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut expected = [1, old_port].map(|port| format!("127.0.0.1-{port}.token")).to_vec();
        expected.push("other-1.token".to_owned());
        expected.sort();
        assert_eq!(left, expected);
    }

    #[test]
    fn what_others_could_have_put_there_is_neither_read_nor_written() {
        let root = tempfile::tempdir().unwrap();
        let open = root.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = OwnToken::new(open.clone()).unwrap().publish("::1", 1).unwrap_err().to_string();
        assert!(error.contains("::1-1.token: others can write to it"), "{error}");

        let path = |port: u16| root.path().join(format!("127.0.0.1-{port}.token"));
        let long = "a".repeat(64);
        std::fs::write(root.path().join("elsewhere"), &long).unwrap();
        std::os::unix::fs::symlink(root.path().join("elsewhere"), path(1)).unwrap();
        std::fs::write(path(2), "short").unwrap();
        std::fs::create_dir(path(3)).unwrap();
        std::fs::write(path(4), [0xff; 64]).unwrap();
        std::fs::write(path(5), &long).unwrap();
        let found: Vec<u16> =
            (0..6).filter(|&port| own_token_in(root.path(), "127.0.0.1", port).is_some()).collect();
        assert_eq!(found, [5]);
    }
}
