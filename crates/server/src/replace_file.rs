//! Replaces small files so that a reader, also after the loss of power, finds the old or the new content. It knows no
//! content.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Writes `new` and gives it the name `path`, durably.
pub(crate) fn replace_file(path: &Path, new: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = sanderling_store::create_regular(new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(new, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}
