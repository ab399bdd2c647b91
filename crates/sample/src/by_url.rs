//! Inputs that are named by url: what the crate `objects` finds and reads, in the terms of this one; or, in a build without it,
//! the error that says so. Knows no format.

use std::path::Path;

use crate::error::SampleError;
use crate::input::InputFile;

/// Whether a name is a url: letters, then `://`.
pub(crate) fn is_url(name: &Path) -> bool {
    let name = name.to_str().unwrap_or_default();
    name.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}

/// The part of a name in which its extension is: that of a web server's file ends where the query begins.
pub(crate) fn without_query(name: &Path) -> &Path {
    let is_web = |name: &&str| name.starts_with("http://") || name.starts_with("https://");
    match name.to_str().filter(is_web).and_then(|name| name.split_once(['?', '#'])) {
        Some((path, _)) => Path::new(path),
        None => name,
    }
}

/// The files that each of some urls and patterns stands for.
#[cfg(feature = "objects")]
pub(crate) fn find(names: &[&str]) -> Result<Vec<Vec<InputFile>>, SampleError> {
    let found = sanderling_objects::find(names).map_err(failed)?;
    let file =
        |found: sanderling_objects::Found| InputFile { path: found.url.into(), bytes: Some(found.bytes) };
    Ok(found.into_iter().map(|found| found.into_iter().map(file).collect()).collect())
}

/// Opens one, as it is stored.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_files() {
        let rows = [
            ("s3://b/x", true),
            ("https://h/x?y=1", true),
            ("unheard+of://x", true),
            ("a/b://c", false),
            ("://x", false),
            ("C:/x", false),
            ("-", false),
        ];
        for (name, expected) in rows {
            assert_eq!(is_url(Path::new(name)), expected, "{name}");
        }
        assert_eq!(without_query(Path::new("https://h/x.csv.gz?a=b.c")), Path::new("https://h/x.csv.gz"));
        assert_eq!(without_query(Path::new("s3://b/x?.csv")), Path::new("s3://b/x?.csv"));
    }
}
