//! Inputs by url, through the crate `objects`. A build without the feature `objects` returns an error that says so.
//! Knows no format.

use std::path::Path;

use sanderling_sample::SampleError;

use crate::input::InputFile;

/// The files that each url or pattern stands for.
#[cfg(feature = "objects")]
pub(crate) fn find(names: &[&str]) -> Result<Vec<Vec<InputFile>>, SampleError> {
    let found = sanderling_objects::find(names).map_err(failed)?;
    let file =
        |found: sanderling_objects::Found| InputFile { path: found.url.into(), bytes: Some(found.bytes) };
    Ok(found.into_iter().map(|found| found.into_iter().map(file).collect()).collect())
}

/// Opens a url as a stream of its stored bytes.
#[cfg(feature = "objects")]
pub(crate) fn open(path: &Path) -> Result<impl std::io::Read + Send + 'static, SampleError> {
    sanderling_objects::open(&path.to_string_lossy()).map_err(failed)
}

#[cfg(feature = "objects")]
fn failed(error: sanderling_objects::ObjectError) -> SampleError {
    SampleError::Io { path: error.url.clone().into(), source: error.into() }
}

#[cfg(not(feature = "objects"))]
pub(crate) fn find(names: &[&str]) -> Result<Vec<Vec<InputFile>>, SampleError> {
    Err(unknown(Path::new(names.first().unwrap_or(&""))))
}

#[cfg(not(feature = "objects"))]
pub(crate) fn open(path: &Path) -> Result<std::io::Empty, SampleError> {
    Err(unknown(path))
}

#[cfg(not(feature = "objects"))]
fn unknown(path: &Path) -> SampleError {
    let reason = "is a url, and this build reads files only: build it with the feature `objects`";
    SampleError::BadFile { path: path.to_path_buf(), reason: reason.to_string() }
}
