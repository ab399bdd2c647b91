//! A file that a user named and that is being written: whole under its name, or not there. Knows nothing of what is in it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Error, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::name::is_url;

/// The system follows no more links than these, either.
const LINKS_MAX: usize = 40;

/// Refuses a url where a file or folder is written: one of that name would be made here, and go with the machine.
///
/// # Errors
/// What to name instead.
pub fn refuse_url(path: &Path) -> Result<(), &'static str> {
    match is_url(path) {
        true => Err("only input is read by url; name a local file or folder, and copy it from there"),
        false => Ok(()),
    }
}

/// A file beside its destination until it is whole. One that is dropped before [`OutputFile::finish`] leaves nothing behind,
/// and what had the name before stays. A link stays a link: what it leads to is replaced.
///
/// What a file cannot replace is written as it is: a pipe, a terminal, `/dev/null`; and standard output and error, which
/// others write to as well, whatever they are.
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
    /// Whether [`OutputFile::create`] will do, for who works long before there is anything to write. Leaves no trace.
    ///
    /// # Errors
    /// Those of [`OutputFile::create`].
    pub fn check(path: &Path) -> Result<(), Error> {
        // Who opens a pipe waits for its reader, who would be told at once that nothing comes.
        if fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
            return Ok(());
        }
        OutputFile::create(path).map(drop)
    }

    /// Opens what `path` names, so that what cannot be written is known before there is anything to write. Waits until
    /// somebody reads, if it is a pipe with a name.
    ///
    /// # Errors
    /// Of the system, without `path`; it is a folder, or in one that is not there.
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
            // A file without a name is reached through whoever has it open.
            To::Itself(OpenOptions::new().write(true).truncate(true).open(path)?)
        } else {
            let place = end_of_links(path)?;
            To::Beside { part: part_of(&place, found.as_ref())?, place }
        };
        Ok(OutputFile { to, bytes: 0 })
    }

    /// Writes all of a file.
    ///
    /// # Errors
    /// Of the system, without `path`.
    pub fn save(path: &Path, bytes: &[u8]) -> Result<(), Error> {
        let mut file = OutputFile::create(path)?;
        file.write_all(bytes)?;
        file.finish().map(drop)
    }

    /// Gives the file its name, in place of what had it; says how many bytes were written.
    ///
    /// # Errors
    /// Of the system, without the path.
    pub fn finish(self) -> Result<u64, Error> {
        if let To::Beside { part, place } = self.to {
            part.as_file().sync_all()?;
            if let Err(refused) = part.persist(&place) {
                // A file may be ours to write and not to replace: one that is mounted, or somebody else's in /tmp.
                let mut whole = refused.file.reopen()?;
                let mut file = File::create(&place).map_err(|_| refused.error)?;
                io::copy(&mut whole, &mut file)?;
                file.sync_all()?;
            }
        }
        Ok(self.bytes)
    }

    /// The same, unless something has that name by now.
    ///
    /// # Errors
    /// `AlreadyExists`; others of the system, without the path.
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

    /// Nothing is held back here.
    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Standard output or error, if that is what was found: opened anew, a file would be written from its beginning, over what
/// is said there.
fn own_stream(found: &Metadata) -> Option<File> {
    let streams = [io::stdout().as_fd().try_clone_to_owned(), io::stderr().as_fd().try_clone_to_owned()];
    streams.into_iter().flatten().map(File::from).find(|stream| {
        stream.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
    })
}

/// Where links lead, whether or not there is anything.
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

/// A file beside the one that it will be, for those whom that one is for, or else for whom new files are.
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
        // One that must not be written is not replaced, though its folder would allow that.
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

    /// What a file holds after it was written and finished, or dropped; beside it is nothing else.
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
        // It waits for nobody.
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
