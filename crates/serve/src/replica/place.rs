//! Where the checkpoint is that a replica follows: a folder, or a URL, whose files are fetched before they are read.
//! Knows names of parts and sizes of files, and nothing of what is in them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use sanderling_objects::Found;
use sanderling_store::{create_regular, open_regular};

/// The file of a part that names its other files.
pub(super) const MANIFEST: &str = "manifest.json";
/// The longest manifest.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Begin of the names of folders for fetched files.
const SPOOL: &str = "sanderling-serve-";
/// The file in such a folder that its process has locked.
const LOCK: &str = "lock";
/// Folders of earlier processes that are looked at.
const LEFT_MAX: usize = 1024;

/// Where checkpoints are published: a folder, or a URL such as `s3://bucket/models/clicks`.
#[derive(Debug, Clone)]
pub struct CheckpointPlace {
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Folder(PathBuf),
    Url { url: String, spool: PathBuf },
}

impl CheckpointPlace {
    /// A folder that has `manifest.json`, or `shard-I-of-N` with one each.
    #[must_use]
    pub fn folder(folder: PathBuf) -> CheckpointPlace {
        CheckpointPlace { kind: Kind::Folder(folder) }
    }

    /// A checkpoint below a URL. Files are fetched into a folder of their own below `spool`, and removed when they are read.
    ///
    /// # Errors
    /// The URL has characters of a pattern.
    pub fn url(url: &str, spool: PathBuf) -> Result<CheckpointPlace, String> {
        if let Some(sign) = url.chars().find(|sign| "*?[".contains(*sign)) {
            return Err(format!("{url}: {sign:?} is not possible in the URL of a checkpoint"));
        }
        Ok(CheckpointPlace { kind: Kind::Url { url: url.trim_end_matches('/').to_owned(), spool } })
    }
}

impl fmt::Display for CheckpointPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Folder(folder) => write!(f, "{}", folder.display()),
            Kind::Url { url, .. } => f.write_str(url),
        }
    }
}

/// A part of a checkpoint: what one of its servers has saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PartName {
    pub(super) shards: u16,
    pub(super) shard: u16,
}

impl PartName {
    /// The only part of a checkpoint.
    const ALONE: PartName = PartName { shards: 1, shard: 0 };

    fn parse(folder: &str) -> Option<PartName> {
        let (shard, shards) = folder.strip_prefix("shard-")?.split_once("-of-")?;
        let (shard, shards) = (shard.parse().ok()?, shards.parse().ok()?);
        let part = PartName { shards, shard };
        (shards > 1 && shard < shards && part.to_string() == folder).then_some(part)
    }
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shards {
            1 => f.write_str("."),
            shards => write!(f, "shard-{}-of-{shards}", self.shard),
        }
    }
}

/// A checkpoint that is read.
#[derive(Debug)]
pub(super) struct Place {
    kind: Kind,
    /// Of a URL: the folder for fetched files.
    spool: Option<Spool>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl Place {
    /// Prepares reading.
    ///
    /// # Errors
    /// The folder for fetched files cannot be made.
    pub(super) fn open(place: &CheckpointPlace) -> Result<Place, String> {
        let spool = match &place.kind {
            Kind::Folder(_) => None,
            Kind::Url { spool, .. } => {
                let failed = |error| format!("{}: files cannot be fetched there: {error}", spool.display());
                Some(Spool::make(spool).map_err(failed)?)
            }
        };
        Ok(Place { kind: place.kind.clone(), spool })
    }

    /// The parts that have a manifest, by number of shards.
    pub(super) fn parts(&self) -> Result<BTreeMap<u16, Vec<PartName>>, String> {
        let mut found = match &self.kind {
            Kind::Folder(folder) => parts_of_folder(folder)?,
            Kind::Url { url, .. } => parts_of_url(url)?,
        };
        found.sort_unstable();
        let mut by_shards = BTreeMap::<u16, Vec<PartName>>::new();
        found.into_iter().for_each(|part| by_shards.entry(part.shards).or_default().push(part));
        Ok(by_shards)
    }

    /// The manifest of a part.
    pub(super) fn manifest(&self, part: PartName) -> Result<Vec<u8>, String> {
        let (name, mut bytes) = (self.name(part, MANIFEST), Vec::new());
        let failed = |error: io::Error| format!("{name}: {error}");
        let mut read = |input: &mut dyn Read| input.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut bytes);
        match &self.kind {
            Kind::Folder(_) => read(&mut open_regular(Path::new(&name)).map_err(failed)?).map_err(failed)?,
            Kind::Url { .. } => {
                let mut stream = sanderling_objects::open(&name).map_err(|error| error.to_string())?;
                read(&mut stream).map_err(failed)?
            }
        };
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(format!("{name}: it is larger than {MANIFEST_BYTES_MAX} bytes"));
        }
        Ok(bytes)
    }

    /// The folder in which the files of a part are read.
    pub(super) fn folder(&self, part: PartName) -> PathBuf {
        match (&self.kind, &self.spool) {
            (_, Some(spool)) => below(&spool.folder, part),
            (Kind::Folder(folder), None) => below(folder, part),
            (Kind::Url { url, .. }, None) => below(Path::new(url), part),
        }
    }

    /// Has files of a part in its folder, unless they are there.
    ///
    /// # Errors
    /// A file is missing or has another size, or there is no room for it.
    pub(super) fn fetch(
        &self,
        part: PartName,
        files: &[(String, u64)],
        stops: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        let (Kind::Url { .. }, Some(_)) = (&self.kind, &self.spool) else { return Ok(()) };
        let folder = self.folder(part);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for (file, bytes) in files {
            let (from, to) = (self.name(part, file), folder.join(file));
            if fs::metadata(&to).is_ok_and(|found| found.len() == *bytes) {
                continue;
            }
            let stream = sanderling_objects::open(&from).map_err(|error| error.to_string())?;
            let copied = copy(&mut stream.take(bytes + 1), &to, stops);
            let copied = copied.map_err(|error| format!("{from}: to {}: {error}", to.display()));
            if copied.as_ref() != Ok(bytes) {
                let _ = fs::remove_file(&to);
                let found = copied?;
                let found = if found > *bytes { "more".to_owned() } else { format!("{found} bytes") };
                return Err(format!("{from}: it has {found}, the manifest says {bytes} bytes"));
            }
        }
        Ok(())
    }

    /// Removes fetched files, which have been read.
    pub(super) fn release(&self) {
        if let Some(spool) = &self.spool {
            // Files that stay are removed with the folder.
            let _ = spool.clear();
        }
    }

    /// The path or URL of a file, for messages and requests.
    pub(super) fn name(&self, part: PartName, file: &str) -> String {
        match &self.kind {
            Kind::Folder(folder) => below(folder, part).join(file).display().to_string(),
            Kind::Url { url, .. } if part == PartName::ALONE => format!("{url}/{file}"),
            Kind::Url { url, .. } => format!("{url}/{part}/{file}"),
        }
    }
}

fn below(folder: &Path, part: PartName) -> PathBuf {
    if part == PartName::ALONE { folder.to_path_buf() } else { folder.join(part.to_string()) }
}

fn parts_of_folder(folder: &Path) -> Result<Vec<PartName>, String> {
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    let mut parts = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let part = name.to_str().and_then(|name| match name {
            MANIFEST => Some(PartName::ALONE),
            _ => PartName::parse(name),
        });
        parts.extend(part.filter(|part| below(folder, *part).join(MANIFEST).exists()));
    }
    Ok(parts)
}

fn parts_of_url(url: &str) -> Result<Vec<PartName>, String> {
    let is_web = url.starts_with("http://") || url.starts_with("https://");
    let alone = format!("{url}/{MANIFEST}");
    // Web servers do not list their files.
    let shards = (!is_web).then(|| format!("{url}/shard-*-of-*/{MANIFEST}"));
    let mut parts = Vec::new();
    for name in std::iter::once(alone).chain(shards) {
        let found: Vec<Found> = match sanderling_objects::find(&[&name]) {
            Ok(found) => found.into_iter().flatten().collect(),
            Err(error) if error.kind == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error.to_string()),
        };
        parts.extend(found.iter().filter_map(|found| {
            let folder = found.url.strip_prefix(url)?.strip_suffix(MANIFEST)?.trim_matches('/');
            if folder.is_empty() { Some(PartName::ALONE) } else { PartName::parse(folder) }
        }));
    }
    Ok(parts)
}

/// Copies a stream to a file; returns the number of bytes.
fn copy(input: &mut impl Read, to: &Path, stops: &dyn Fn() -> bool) -> io::Result<u64> {
    let mut file = create_regular(to)?;
    let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
    loop {
        if stops() {
            return Err(io::Error::new(ErrorKind::Interrupted, "stopped"));
        }
        match input.read(&mut buffer)? {
            0 => return Ok(bytes),
            read => {
                io::Write::write_all(&mut file, &buffer[..read])?;
                bytes += read as u64;
            }
        }
    }
}

/// A folder for fetched files. It is removed with its process, or by the next one after `kill -9`.
#[derive(Debug)]
struct Spool {
    folder: PathBuf,
    _lock: File,
}

impl Spool {
    fn make(parent: &Path) -> io::Result<Spool> {
        fs::create_dir_all(parent)?;
        remove_left(parent);
        for number in 0_u32.. {
            let folder = parent.join(format!("{SPOOL}{}-{number}", std::process::id()));
            match fs::create_dir(&folder) {
                Ok(()) => {
                    let lock = File::create(folder.join(LOCK))?;
                    lock.lock()?;
                    return Ok(Spool { folder, _lock: lock });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("all names are taken"))
    }

    /// Removes all fetched files.
    fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name() == LOCK {
                continue;
            }
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes folders whose process has ended without doing so: their lock is free.
fn remove_left(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    let folders = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(SPOOL));
    for folder in folders.take(LEFT_MAX) {
        let lock = File::open(folder.path().join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(folder.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_one_name_each() {
        for (name, expected) in [
            ("shard-0-of-2", Some((0, 2))),
            ("shard-1-of-2", Some((1, 2))),
            ("shard-2-of-2", None),
            ("shard-0-of-1", None),
            ("shard-00-of-2", None),
            ("shard-0-of-2x", None),
            ("shard-0", None),
            ("", None),
        ] {
            let expected = expected.map(|(shard, shards)| PartName { shards, shard });
            assert_eq!(PartName::parse(name), expected, "{name}");
        }
    }

    #[test]
    fn folders_of_ended_processes_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let left = parent.path().join(format!("{SPOOL}1-0"));
        let other = parent.path().join("other");
        fs::create_dir_all(&left).unwrap();
        fs::create_dir_all(&other).unwrap();
        fs::write(left.join(LOCK), b"").unwrap();
        let first = Spool::make(parent.path()).unwrap();
        assert!(!left.exists() && other.exists());
        fs::write(first.folder.join("g1-0.table"), b"rows").unwrap();
        let second = Spool::make(parent.path()).unwrap();
        assert!(first.folder.exists() && second.folder != first.folder);
        first.clear().unwrap();
        assert!(!first.folder.join("g1-0.table").exists() && first.folder.join(LOCK).exists());
        let folder = first.folder.clone();
        drop(first);
        assert!(!folder.exists() && second.folder.exists());
    }

    #[test]
    fn a_url_is_no_pattern() {
        let spool = || PathBuf::from("/nowhere");
        assert_eq!(CheckpointPlace::url("s3://b/c/", spool()).unwrap().to_string(), "s3://b/c");
        assert!(CheckpointPlace::url("s3://b/*/c", spool()).unwrap_err().contains("'*'"));
    }
}
