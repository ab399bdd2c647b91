//! Folders with row files but without a manifest: an interrupted first save (marked), or a lost manifest (refused).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use sanderling_wire::Fault;

use crate::refusal::Refusal;

pub(super) const MANIFEST: &str = "manifest.json";
/// Marker file of a folder whose first save is under way.
const FIRST_SAVE: &str = "first-save";
/// Suffixes of row files and blobs.
const DATA_FILES: [&str; 3] = [".table", ".blob", ".delta"];

/// Finds a row file in a folder that once had a manifest and has none now.
pub(super) fn lost(folder: &Path) -> io::Result<Option<PathBuf>> {
    if folder.join(MANIFEST).try_exists()? || folder.join(FIRST_SAVE).try_exists()? {
        return Ok(None);
    }
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_data) {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

/// Whether a file name is one of a row file or blob.
pub(super) fn is_data(name: &str) -> bool {
    let stem = DATA_FILES.iter().find_map(|end| name.strip_suffix(end));
    let numbers = stem.and_then(|stem| stem.strip_prefix('g')?.split_once('-'));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(generation, number)| digits(generation) && digits(number))
}

/// Refuses a folder with a lost manifest, for reading and for writing.
pub(super) fn check(folder: &Path) -> Result<(), Refusal> {
    let failed = |error| Refusal::io(format!("{}: list: {error}", folder.display()), &error);
    let Some(file) = lost(folder).map_err(failed)? else { return Ok(()) };
    let reason = format!(
        "{} is missing, but {} is there: put it back, or move the folder away to start without its rows",
        folder.join(MANIFEST).display(),
        file.file_name().unwrap_or_default().display()
    );
    Err(Refusal::new(Fault::Damaged, reason))
}

/// Marks a folder as incomplete, unless it has a complete checkpoint.
pub(super) fn begin(folder: &Path) -> Result<(), Refusal> {
    let mark = || -> io::Result<()> {
        if folder.join(MANIFEST).try_exists()? {
            return end(folder);
        }
        std::fs::create_dir_all(folder)?;
        sanderling_store::create_regular(&folder.join(FIRST_SAVE))?.sync_all()?;
        File::open(folder)?.sync_all()
    };
    mark().map_err(|error| {
        Refusal::io(format!("{}: write: {error}", folder.join(FIRST_SAVE).display()), &error)
    })
}

/// Removes the marker of an incomplete folder.
pub(super) fn end(folder: &Path) -> io::Result<()> {
    match std::fs::remove_file(folder.join(FIRST_SAVE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_manifest_is_told_from_a_first_save_that_was_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("latest");
        let is_lost = || lost(&folder).unwrap().is_some();
        assert!(!is_lost(), "nothing is there");
        begin(&folder).unwrap();
        std::fs::write(folder.join("g1-0.table"), "rows").unwrap();
        assert!(!is_lost(), "a first save was interrupted");
        begin(&folder).unwrap();
        std::fs::write(folder.join(MANIFEST), "").unwrap();
        end(&folder).unwrap();
        end(&folder).unwrap();
        assert!(!is_lost() && check(&folder).is_ok());
        std::fs::remove_file(folder.join(MANIFEST)).unwrap();
        assert!(is_lost());
        let reason = check(&folder).unwrap_err().reason;
        assert!(reason.contains("latest/manifest.json is missing, but g1-0.table is there"), "{reason}");
        // A stale marker does not outlive the next save.
        std::fs::write(folder.join(MANIFEST), "").unwrap();
        std::fs::write(folder.join(FIRST_SAVE), "").unwrap();
        begin(&folder).unwrap();
        std::fs::remove_file(folder.join(MANIFEST)).unwrap();
        assert!(is_lost());
    }

    #[test]
    fn files_of_rows_are_known_by_their_names() {
        for (name, expected) in [
            ("g1-0.table", true),
            ("g12-34.blob", true),
            ("g1-0.table.new", false),
            ("g1.table", false),
            ("x1-0.table", false),
            ("g-0.table", false),
            ("manifest.json", false),
        ] {
            assert_eq!(is_data(name), expected, "{name}");
        }
    }
}
