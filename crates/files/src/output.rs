//! An output file that appears under its name only when it is complete. Knows nothing of its content.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Error, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::name::is_url;

/// Most symbolic links followed, as in the system.
const LINKS_MAX: usize = 40;

/// Refuses a url as an output, for which a local file of that name would be created.
///
/// # Errors
/// The text that tells the user what to name instead.
pub fn refuse_url(path: &Path) -> Result<(), &'static str> {
    match is_url(path) {
        true => Err("only input is read by url; name a local file or folder, and copy it from there"),
        false => Ok(()),
    }
}

/// An output file, kept beside its destination until it is complete.
///
/// Dropped before [`OutputFile::finish`], it leaves nothing behind, and an existing file stays. A link stays a link:
/// its target is replaced.
///
/// A pipe, a terminal, `/dev/null`, standard output and standard error are written directly.
#[derive(Debug)]
pub struct OutputFile {
    to: To,
    bytes: u64,
}

#[derive(Debug)]
enum To {
    Itself(File),
    Beside { part: NamedTempFile, place: PathBuf },
}

impl OutputFile {
    /// Checks that [`OutputFile::create`] will succeed, before long work. Leaves no trace.
    ///
    /// # Errors
    /// The errors of [`OutputFile::create`].
    pub fn check(path: &Path) -> Result<(), Error> {
        // Opening a pipe waits for its reader, who would see it close at once.
        if fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
            return Ok(());
        }
        OutputFile::create(path).map(drop)
    }

    /// Opens an output, so that an error shows before there is anything to write. Waits for the reader of a named
    /// pipe.
    ///
    /// # Errors
    /// An error of the system, without `path`; it is a folder, or its folder does not exist.
    pub fn create(path: &Path) -> Result<OutputFile, Error> {
        let found = match fs::metadata(path) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if found.as_ref().is_some_and(Metadata::is_dir) {
            return Err(Error::new(ErrorKind::IsADirectory, "it is a folder; name a file in it"));
        }
        let to = if let Some(stream) = found.as_ref().and_then(own_stream) {
            To::Itself(stream)
        } else if found.as_ref().is_some_and(|found| !found.is_file() || found.nlink() == 0) {
            // A deleted file is reachable only through an open descriptor.
            To::Itself(OpenOptions::new().write(true).truncate(true).open(path)?)
        } else {
            let place = end_of_links(path)?;
            To::Beside { part: part_of(&place, found.as_ref())?, place }
        };
        Ok(OutputFile { to, bytes: 0 })
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// An error of the system, without `path`.
    pub fn save(path: &Path, bytes: &[u8]) -> Result<(), Error> {
        let mut file = OutputFile::create(path)?;
        file.write_all(bytes)?;
        file.finish().map(drop)
    }

    /// Gives the file its name, replacing an existing file; returns the bytes written.
    ///
    /// # Errors
    /// An error of the system, without the path.
    pub fn finish(self) -> Result<u64, Error> {
        if let To::Beside { part, place } = self.to {
            part.as_file().sync_all()?;
            if let Err(refused) = part.persist(&place) {
                // Some files may be written and not replaced: mounted ones, or another user's in /tmp.
                let mut whole = refused.file.reopen()?;
                let mut file = File::create(&place).map_err(|_| refused.error)?;
                io::copy(&mut whole, &mut file)?;
                file.sync_all()?;
            }
        }
        Ok(self.bytes)
    }

    /// Gives the file its name unless a file of that name exists by now; returns the bytes written.
    ///
    /// # Errors
    /// `AlreadyExists`; other errors of the system, without the path.
    pub fn finish_new(self) -> Result<u64, Error> {
        if let To::Beside { part, place } = self.to {
            part.as_file().sync_all()?;
            part.persist_noclobber(place).map_err(|refused| refused.error)?;
        }
        Ok(self.bytes)
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let written = match &mut self.to {
            To::Itself(file) => file.write(bytes),
            To::Beside { part, .. } => part.as_file_mut().write(bytes),
        }?;
        self.bytes += written as u64;
        Ok(written)
    }

    /// Nothing is buffered.
    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Standard output or error, if `found` is one of them. Opened anew, a file would be overwritten from its beginning.
fn own_stream(found: &Metadata) -> Option<File> {
    let streams = [io::stdout().as_fd().try_clone_to_owned(), io::stderr().as_fd().try_clone_to_owned()];
    streams.into_iter().flatten().map(File::from).find(|stream| {
        stream.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
    })
}

/// The target of a chain of links, whether or not it exists.
fn end_of_links(path: &Path) -> Result<PathBuf, Error> {
    let mut place = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&place) {
            Ok(target) => place = folder_of(&place).join(target),
            Err(_) => return Ok(place),
        }
    }
    Err(Error::new(ErrorKind::InvalidInput, "it is a link that leads to itself"))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A temporary file beside its destination, with the permissions of the file that it replaces, or of a new file.
fn part_of(place: &Path, replaced: Option<&Metadata>) -> Result<NamedTempFile, Error> {
    let name = place.as_os_str().as_encoded_bytes();
    if place.file_name().is_none() || name.ends_with(b"/") || name.ends_with(b"/.") {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not the name of a file"));
    }
    let folder = folder_of(place);
    if !folder.is_dir() {
        let reason = format!("there is no folder {}; make it first", folder.display());
        return Err(Error::new(ErrorKind::NotFound, reason));
    }
    if replaced.is_some() {
        // A read-only file is not replaced, though its folder would allow that.
        OpenOptions::new().write(true).open(place)?;
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(".sanderling-").suffix(".part").permissions(fs::Permissions::from_mode(0o666));
    let part = builder.tempfile_in(folder)?;
    if let Some(replaced) = replaced {
        part.as_file().set_permissions(replaced.permissions())?;
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    /// Checks a file's content after it was written and finished, or dropped; nothing else is beside it.
    fn check(dir: &Path, name: &str, is_finished: bool, expected: Option<&str>) {
        let path = dir.join(name);
        OutputFile::check(&path).unwrap();
        let before = fs::read_dir(dir).unwrap().count();
        let is_new = fs::symlink_metadata(&path).is_err() && is_finished;
        let mut out = OutputFile::create(&path).unwrap();
        out.write_all(b"new").unwrap();
        if is_finished {
            assert_eq!(out.finish().unwrap(), 3);
        } else {
            drop(out);
        }
        assert_eq!(fs::read_to_string(&path).ok().as_deref(), expected, "{name}");
        assert_eq!(fs::read_dir(dir).unwrap().count(), before + usize::from(is_new), "{name}");
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        check(dir, "fresh", false, None);
        check(dir, "fresh", true, Some("new"));
        fs::write(dir.join("old"), "old").unwrap();
        fs::set_permissions(dir.join("old"), fs::Permissions::from_mode(0o662)).unwrap();
        check(dir, "old", false, Some("old"));
        check(dir, "old", true, Some("new"));
        assert_eq!(fs::metadata(dir.join("old")).unwrap().mode() & 0o777, 0o662);
        let taken = OutputFile::create(&dir.join("late")).unwrap();
        OutputFile::save(&dir.join("late"), b"other").unwrap();
        assert_eq!(taken.finish_new().unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(dir.join("late")).unwrap(), "other");
    }

    #[test]
    fn a_link_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::create_dir(dir.join("below")).unwrap();
        fs::write(dir.join("below/old"), "old").unwrap();
        for (link, target) in [("direct", "below/old"), ("twice", "direct"), ("ahead", "below/nothing yet")] {
            symlink(target, dir.join(link)).unwrap();
        }
        check(dir, "twice", false, Some("old"));
        for link in ["twice", "direct", "ahead"] {
            check(dir, link, true, Some("new"));
            assert!(fs::symlink_metadata(dir.join(link)).unwrap().is_symlink(), "{link}");
        }
        assert_eq!(fs::read_to_string(dir.join("below/old")).unwrap(), "new");
        assert_eq!(fs::read_to_string(dir.join("below/nothing yet")).unwrap(), "new");
        assert_eq!(fs::read_dir(dir.join("below")).unwrap().count(), 2);
    }

    #[test]
    fn a_pipe_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, link) = (dir.path().join("pipe"), dir.path().join("link"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        symlink("pipe", &link).unwrap();
        // The check does not wait for a reader.
        OutputFile::check(&link).unwrap();
        for name in [&pipe, &link] {
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| fs::read_to_string(&pipe).unwrap());
                OutputFile::save(name, b"new").unwrap();
                assert_eq!(reader.join().unwrap(), "new");
            });
        }
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_file_without_a_name_is_written_itself() {
        let file = tempfile::tempfile().unwrap();
        (&file).write_all(b"longer than before").unwrap();
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        OutputFile::save(Path::new(&name), b"new").unwrap();
        assert_eq!(fs::read_to_string(&name).unwrap(), "new");
    }

    #[test]
    fn what_cannot_be_written_is_known_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::create_dir(dir.join("below")).unwrap();
        fs::write(dir.join("file"), "").unwrap();
        symlink("circle", dir.join("circle")).unwrap();
        symlink("nowhere/file", dir.join("astray")).unwrap();
        let long = "x".repeat(256);
        for (name, expected) in [
            ("below", "it is a folder"),
            ("new/", "it is not the name of a file"),
            ("new/.", "it is not the name of a file"),
            ("nowhere/file", "there is no folder"),
            ("astray", "there is no folder"),
            ("file/below", "Not a directory"),
            ("circle", "symbolic links"),
            (&long, "name too long"),
        ] {
            let path = dir.join(name);
            let error = OutputFile::check(&path).unwrap_err().to_string();
            assert!(error.contains(expected), "{name}: {error}");
            assert_eq!(error, OutputFile::create(&path).unwrap_err().to_string());
        }
        assert!(OutputFile::create(Path::new("")).is_err());
        assert_eq!(fs::read_dir(dir).unwrap().count(), 4);
    }
}
