//! From the names a user gives (files, globs, urls, `-`) to streams of plain bytes. Knows no format.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use sanderling_files::is_url;
use sanderling_sample::SampleError;

use crate::by_url;
use crate::folder::{self, passes_over};
use crate::format::Compression;
use crate::in_memory;
use crate::patient::{Patient, Wanted};

/// The name of standard input.
pub const STDIN: &str = "-";

/// Buffer between a file and its decompressor.
const COMPRESSED_BUFFER_BYTES: usize = 128 << 10;

/// One input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFile {
    /// Its path or url; `-` for standard input.
    pub path: PathBuf,
    /// Its size as stored, unless it is a stream.
    pub bytes: Option<u64>,
}

impl InputFile {
    /// Whether this is standard input.
    #[must_use]
    pub fn is_stdin(&self) -> bool {
        self.path.as_os_str() == STDIN
    }
}

/// Whether a name is that of a local file, which can be read at any position.
pub(crate) fn is_local(path: &Path) -> bool {
    path.as_os_str() != STDIN && !is_url(path)
}

/// Whether an input can be read only once: standard input, a pipe, a pattern that matches one, or a stream in memory.
/// A missing file is reported when it is opened.
#[must_use]
pub fn read_once(name: &str) -> bool {
    let path = Path::new(name);
    if let Some(found) = in_memory::find(path) {
        return found.is_ok_and(|input| input.bytes.is_none());
    }
    let is_stream = |path: &Path| path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
    let matches_stream =
        || glob::glob(name).is_ok_and(|matches| matches.flatten().any(|path| is_stream(&path)));
    name == STDIN || (!is_url(path) && (is_stream(path) || (!path.exists() && matches_stream())))
}

fn io_error(path: &Path, kind: io::ErrorKind, message: &str) -> SampleError {
    SampleError::Io { path: path.to_path_buf(), source: io::Error::new(kind, message) }
}

/// Reads from `filled` on until the buffer is full or the stream has ended; a failure also ends the stream.
pub(crate) fn fill(
    stream: &mut dyn Read,
    buffer: &mut [u8],
    filled: &mut usize,
    at_end: &mut bool,
) -> io::Result<()> {
    while *filled < buffer.len() && !*at_end {
        match stream.read(&mut buffer[*filled..]) {
            Ok(0) => *at_end = true,
            Ok(count) => *filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                *at_end = true;
                return Err(error);
            }
        }
    }
    Ok(())
}

/// The error of a stream that failed after `count` lines or records. Without an error of the system or the network,
/// the file is damaged.
pub(crate) fn cut_short(path: &Path, unit: &str, count: u64, error: &io::Error) -> SampleError {
    let reason = format!("cannot be read on, somewhere after {unit} {count}: {error}");
    if error.raw_os_error().is_some() || is_url(path) {
        return io_error(path, error.kind(), &reason);
    }
    let reason = format!("{reason}; the file is damaged, or was cut short");
    SampleError::BadFile { path: path.to_path_buf(), reason }
}

/// Refuses hubs, which serve minibatches and not files.
///
/// # Errors
/// A name that begins with `hub://`.
pub fn refuse_hubs(patterns: &[String]) -> Result<(), SampleError> {
    match patterns.iter().find(|name| name.starts_with("hub://")) {
        Some(hubs) => Err(SampleError::Settings(format!(
            "{hubs}: hubs serve feed queues and deep models (`sanderling train --model deepfm`); this reads files"
        ))),
        None => Ok(()),
    }
}

/// The files that names and patterns stand for, in the order given; the matches of one pattern sorted by name.
///
/// A folder stands for its data files. Patterns skip files that hold no data (`_SUCCESS`, `.part-0.crc`).
///
/// # Errors
/// A file that does not exist, a pattern that matches nothing, a folder without data, standard input named twice, or
/// an error of a store.
pub fn expand(patterns: &[String]) -> Result<Vec<InputFile>, SampleError> {
    refuse_hubs(patterns)?;
    let urls: Vec<&str> =
        patterns.iter().map(String::as_str).filter(|name| is_url(Path::new(name))).collect();
    // All together, since each needs the network.
    let mut found = if urls.is_empty() { Vec::new() } else { by_url::find(&urls)? }.into_iter();
    let mut files: Vec<InputFile> = Vec::new();
    for pattern in patterns {
        let path = Path::new(pattern);
        if let Some(found) = in_memory::find(path) {
            files.push(InputFile { path: path.to_path_buf(), bytes: found?.bytes });
        } else if is_url(path) {
            let found = found.next().unwrap_or_default();
            let is_data = |file: &InputFile| file.path == path || !passes_over(pattern, &file.path);
            files.extend(found.into_iter().filter(is_data));
        } else if pattern == STDIN {
            if files.iter().any(InputFile::is_stdin) {
                return Err(io_error(
                    path,
                    io::ErrorKind::InvalidInput,
                    "standard input can be read only once",
                ));
            }
            files.push(InputFile { path: path.to_path_buf(), bytes: None });
        } else if !path.exists() && pattern.contains(['*', '?', '[']) {
            let wrong = |message: String| io_error(path, io::ErrorKind::InvalidInput, &message);
            let matches = glob::glob(pattern).map_err(|error| wrong(error.to_string()))?;
            let before = files.len();
            for found in matches {
                let found = found.map_err(|error| SampleError::Io {
                    path: error.path().to_path_buf(),
                    source: error.into(),
                })?;
                if passes_over(pattern, &found) {
                    continue;
                }
                // A pattern stands for the files among its matches, and for files in partitions.
                if !found.is_dir() {
                    files.push(stored(&found)?);
                } else if folder::is_partition(&found) {
                    files.extend(of_folder(&found)?);
                }
            }
            if files.len() == before {
                return Err(io_error(path, io::ErrorKind::NotFound, "no file matches this pattern"));
            }
        } else if path.is_dir() {
            files.extend(of_folder(path)?);
        } else {
            files.push(stored(path)?);
        }
    }
    if files.is_empty() {
        return Err(SampleError::Settings("no input files are named".to_string()));
    }
    Ok(files)
}

fn of_folder(path: &Path) -> Result<Vec<InputFile>, SampleError> {
    folder::data_files(path)?.iter().map(|file| stored(file)).collect()
}

fn stored(path: &Path) -> Result<InputFile, SampleError> {
    let found = std::fs::metadata(path);
    let metadata = found.map_err(|source| SampleError::Io { path: path.to_path_buf(), source })?;
    // A pipe has no size.
    Ok(InputFile { path: path.to_path_buf(), bytes: metadata.is_file().then_some(metadata.len()) })
}

/// Counts the bytes that are read, for progress.
struct Counted<R> {
    inner: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Opens an input as a decompressed stream and adds the stored bytes read to `count`. Standard input and pipes are
/// read while they are wanted.
///
/// # Errors
/// Errors of opening; a file named `.gz` or `.zst` that is not compressed so.
pub fn open(
    file: &InputFile,
    count: &Arc<AtomicU64>,
    wanted: Option<&Wanted>,
) -> Result<Box<dyn Read + Send>, SampleError> {
    let failed = |source| SampleError::Io { path: file.path.clone(), source };
    if file.is_stdin() {
        unpack(Patient::stdin(wanted).map_err(failed)?, &file.path, count)
    } else if is_url(&file.path) {
        unpack(by_url::open(&file.path)?, &file.path, count)
    } else if file.bytes.is_none() {
        unpack(Patient::open(&file.path, wanted).map_err(failed)?, &file.path, count)
    } else {
        unpack(File::open(&file.path).map_err(failed)?, &file.path, count)
    }
}

/// Decompresses a stream by its first bytes, which must agree with the extension.
pub(crate) fn unpack(
    stream: impl Read + Send + 'static,
    path: &Path,
    count: &Arc<AtomicU64>,
) -> Result<Box<dyn Read + Send>, SampleError> {
    let counted = Counted { inner: stream, count: Arc::clone(count) };
    let mut stream = BufReader::with_capacity(COMPRESSED_BUFFER_BYTES, counted);
    let failed = |source| SampleError::Io { path: path.to_path_buf(), source };
    // The first read of a pipe may be shorter.
    let (mut magic, mut filled, mut at_end) = ([0; Compression::MAGIC_BYTES_MAX], 0, false);
    fill(&mut stream, &mut magic, &mut filled, &mut at_end).map_err(failed)?;
    let found = Compression::of_magic(&magic[..filled]);
    let stream = Cursor::new(magic).take(filled as u64).chain(stream);
    let promised = Compression::of_path(path);
    if promised != Compression::None && found != promised {
        let reason =
            format!("is named as {promised:?} but does not start like it; rename or restore the file");
        return Err(SampleError::BadFile { path: path.to_path_buf(), reason });
    }
    Ok(match found {
        // Reads of whole blocks bypass the buffer.
        Compression::None => Box::new(stream),
        Compression::Gzip => Box::new(MultiGzDecoder::new(stream)),
        Compression::Zstd => Box::new(zstd::Decoder::with_buffer(stream).map_err(failed)?),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A stream that yields one byte at a time, with an interrupt before each.
    struct Trickle(Cursor<Vec<u8>>, bool);

    impl Read for Trickle {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let most = buffer.len().min(1);
            self.0.read(&mut buffer[..most])
        }
    }

    #[test]
    fn what_is_read_once_is_known_by_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(at("rows.csv"), "1\n").unwrap();
        std::fs::write(at("[0].csv"), "1\n").unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("0.csv")).status().unwrap().success());
        for (name, once) in [
            (STDIN.to_owned(), true),
            (at("0.csv"), true),
            ("/dev/null".to_owned(), true),
            (at("*.csv"), true),
            (at("rows.csv"), false),
            (at("r*.csv"), false),
            // A file of this name, not the pattern.
            (at("[0].csv"), false),
            (at("missing"), false),
            (at("["), false),
            ("s3://bucket/*".to_owned(), false),
        ] {
            assert_eq!(read_once(&name), once, "{name}");
        }
    }

    #[test]
    fn packed_streams_are_known_however_few_bytes_come_at_a_time() {
        // As pzstd writes: a skippable frame contains the length of the next frame.
        let skipped = |zstd: &[u8], number: u8| {
            let length = u32::try_from(zstd.len()).unwrap().to_le_bytes();
            [&[0x50 + number, 0x2a, 0x4d, 0x18, 4, 0, 0, 0], &length[..], zstd].concat()
        };
        for text in [&b"1 1:1\n0 2:1\n"[..], b"1", b""] {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(text).unwrap();
            let zstd = zstd::encode_all(text, 1).unwrap();
            let (framed, last) = (skipped(&zstd, 0), skipped(&zstd, 15));
            // Several members, as after appending, with an empty last one, as bgzip closes a file.
            let mut members = Vec::new();
            for part in [&text[..text.len() / 2], &text[text.len() / 2..], b""] {
                let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                gzip.write_all(part).unwrap();
                members.extend(gzip.finish().unwrap());
            }
            for stored in [text.to_vec(), gzip.finish().unwrap(), members, zstd, framed, last] {
                let (count, mut found) = (Arc::<AtomicU64>::default(), Vec::new());
                let bytes = stored.len() as u64;
                let stream = Trickle(Cursor::new(stored), false);
                unpack(stream, Path::new(STDIN), &count).unwrap().read_to_end(&mut found).unwrap();
                assert_eq!((found.as_slice(), count.load(Ordering::Relaxed)), (text, bytes));
            }
        }
    }
}
