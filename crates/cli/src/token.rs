//! Secrets that are kept in files, so that they stand in no list of processes. Knows not who asks for one.

use std::path::Path;

/// What is in the file, without the spaces and line breaks around it; an error names the file. An empty token is none: it would
/// let in everybody.
pub(crate) fn read_token(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match text.trim() {
        "" => Err(format!("{} is empty: it is to hold a token", path.display())),
        token => Ok(token.to_owned()),
    }
}
