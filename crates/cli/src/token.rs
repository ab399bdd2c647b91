//! Secrets that are kept in files, so that they stand in no list of processes. Knows not who asks for one.

use std::path::Path;

/// What is in the file, without the spaces and line breaks around it; an error names the file.
pub(crate) fn read_token(path: &Path) -> Result<String, String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}
