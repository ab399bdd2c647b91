//! A temporary copy of an input that can only be read front to back, for formats that need any position. Knows no
//! format.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use sanderling_sample::SampleError;

use crate::input::{self, InputFile};
use crate::patient::Wanted;

/// The most bytes of such a copy.
pub const TEMPORARY_BYTES_MAX: u64 = 64 << 30;

/// Bytes copied at a time.
const COPY_BYTES: usize = 256 << 10;

/// Copies an input, decompressed, while it is wanted. The file has no name and disappears with its last handle,
/// however the process ends.
pub(crate) fn copy_of(path: &Path, wanted: Option<&Wanted>) -> Result<File, SampleError> {
    let is_wanted = || wanted.is_none_or(|wanted| wanted());
    // A pipe fails in this case, and decompressors word the error differently.
    copy_while(path, wanted, &is_wanted)
        .map_err(|error| if is_wanted() { error } else { SampleError::Unwanted })
}

fn copy_while(
    path: &Path,
    wanted: Option<&Wanted>,
    is_wanted: &dyn Fn() -> bool,
) -> Result<File, SampleError> {
    let failed = |source| SampleError::Io { path: path.to_path_buf(), source };
    let no_room = |error: io::Error| {
        let place = std::env::temp_dir();
        let reason = format!(
            "no copy of it can be written to {}: {error}; TMPDIR names another place",
            place.display()
        );
        failed(io::Error::new(error.kind(), reason))
    };
    let mut plain =
        input::open(&InputFile { path: path.to_path_buf(), bytes: None }, &Default::default(), wanted)?;
    let mut file = tempfile::tempfile().map_err(no_room)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut written = 0u64;
    loop {
        if !is_wanted() {
            return Err(SampleError::Unwanted);
        }
        let read = match plain.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        written += read as u64;
        if written > TEMPORARY_BYTES_MAX {
            let reason = format!(
                "is more than {TEMPORARY_BYTES_MAX} bytes to be copied here first; put it into a file yourself and name that one"
            );
            return Err(SampleError::BadFile { path: path.to_path_buf(), reason });
        }
        file.write_all(&buffer[..read]).map_err(no_room)?;
    }
    Ok(file)
}
