//! Reads structures from JSON that a program wrote: an error names the entry, not line and column. Knows no
//! particular structure.

use serde::de::DeserializeOwned;

/// Reads a structure.
///
/// # Errors
/// The entry, and what is wrong with it.
pub fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_str(text);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (at, error) = (error.path().to_string(), error.into_inner());
        let place = format!(" at line {} column {}", error.line(), error.column());
        let reason = error.to_string();
        let reason = reason.strip_suffix(&place).unwrap_or(&reason);
        // A dot alone is all of it.
        if at == "." { reason.to_owned() } else { format!("{at}: {reason}") }
    })?;
    json.end().map_err(|error| error.to_string())?;
    Ok(read)
}
