//! Tokens that servers generate for themselves, in files that only their user can read.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Random bytes of a token. Its text has two hex digits per byte.
const CHANCE_BYTES: usize = 32;
/// Maximum length of a token file. A longer file is ignored.
const FILE_BYTES_MAX: u64 = 4096;
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
    files: Vec<PathBuf>,
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
        let files: Vec<PathBuf> = files(&self.folder, host, port).collect();
        for path in &files {
            self.write(path)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        }
        let first = files.first().cloned();
        self.files.extend(files);
        Ok(first)
    }

    /// Writes atomically, because a client may read at any moment.
    fn write(&self, path: &Path) -> io::Result<()> {
        make_private(&self.folder)?;
        let new = path.with_extension(format!("new-{}", std::process::id()));
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&new)?;
        let written = writeln!(file, "{}", self.token).and_then(|()| std::fs::rename(&new, path));
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        written
    }
}

impl Drop for OwnToken {
    fn drop(&mut self) {
        for path in &self.files {
            // A newer server at this address may have replaced the file.
            if read(path).is_some_and(|token| token == self.token) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
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
