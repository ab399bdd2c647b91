//! Explains a path that is no model, and suggests a better one; whether a model is saved at a path, and whether a run
//! may replace it. Opens no table.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use sanderling_store::{Checkpoint, StoreError, open_regular};

use crate::error::LearnError;
use crate::metrics_log::METRICS;

/// The file in every checkpoint, of a deep model as well.
pub(crate) const MANIFEST: &str = "manifest.json";
/// Neither the store nor the Python package writes a longer one.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// The blob that servers add to their checkpoints.
const SERVER_BLOB: &str = "server.json";
/// Servers of several shards each have a part.
const SHARD: &str = "shard-";

/// Why there is no model at a path; the store's error, if it is a damaged one.
pub(crate) fn explain_no_model(error: StoreError, path: &Path) -> LearnError {
    let nothing = [ErrorKind::NotFound, ErrorKind::NotADirectory];
    let has_manifest = path.join(MANIFEST).is_file();
    let reason = match &error {
        StoreError::Io { source, .. } if nothing.contains(&source.kind()) && !has_manifest => {
            nothing_at(path)
        }
        _ if is_deep(path) => {
            "is a deep model, which sanderling.torch.open_model and sanderling.torch.predict read".to_owned()
        }
        _ => return error.into(),
    };
    LearnError::Model { path: path.into(), reason }
}

/// Whether something was ever saved there. A folder alone is what a process leaves that is killed in its first save.
pub(crate) fn is_saved(path: &Path) -> bool {
    path.join(MANIFEST).exists()
}

/// Why a checkpoint without a configuration is no model.
pub(crate) fn other_kind(checkpoint: &Checkpoint, path: &Path) -> LearnError {
    let reason = if checkpoint.blobs().iter().any(|blob| blob.name == SERVER_BLOB) {
        "is a checkpoint of a parameter server: sanderling ps --restore starts from it; name the model that sanderling \
         train has saved, such as runs/NAME/model, and see the servers' rows with --ps"
    } else {
        "holds tables without the configuration of a model, as sanderling.save_tables writes them: sanderling.Table.load \
         reads them in Python; name the model that sanderling train has saved, such as runs/NAME/model"
    };
    LearnError::Model { path: path.into(), reason: reason.to_owned() }
}

/// Refuses to begin a run that could not save its model in the end.
pub(crate) fn check_replaceable(path: &Path) -> Result<(), LearnError> {
    if !is_deep(path) {
        return Ok(());
    }
    let reason = "is a deep model, of an earlier run of this name, and this run would save over it: give it another name \
                  (--name), or remove that model";
    Err(LearnError::Model { path: path.into(), reason: reason.to_owned() })
}

fn nothing_at(path: &Path) -> String {
    let is_run = |path: &Path| path.join(METRICS).is_file();
    const NAME_ONE: &str = "name the directory of a saved model, such as runs/NAME/model";
    const UNSAVED: &str = "which saves its model after its first pass, or when Ctrl-C stops it";
    if !path.exists() {
        return match path.parent() {
            Some(run) if is_run(run) => format!("is not there yet: {} is a run, {UNSAVED}", run.display()),
            _ => format!("is not there; {NAME_ONE}"),
        };
    }
    if !path.is_dir() {
        return format!("is a file; {NAME_ONE}");
    }
    let (model, last) = (path.join("model"), path.join("last"));
    if model.join(MANIFEST).is_file() {
        return format!(
            "is the directory of a run and holds no model itself; did you mean {}?",
            model.display()
        );
    }
    if last.join(MANIFEST).is_file() {
        return format!(
            "is the directory of a run that was not validated yet and has no best model; what it has saved on the way is {}",
            last.display()
        );
    }
    if is_run(path) {
        return format!("is the directory of a run, {UNSAVED}; there is none yet");
    }
    let names = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.file_name());
    if names.into_iter().any(|name| name.to_string_lossy().starts_with(SHARD)) {
        return format!(
            "holds the parts of a checkpoint of parameter servers: sanderling ps --restore starts from it; {NAME_ONE}"
        );
    }
    format!("holds no model; {NAME_ONE}")
}

/// Whether a directory holds a deep model, which has a dense part beside its tables.
#[must_use]
pub fn is_deep(path: &Path) -> bool {
    deep_manifest(path).is_some()
}

/// Directories of the parts of a deep model, as far as it has them.
#[derive(Debug)]
pub(crate) struct DeepParts {
    /// Its tables.
    pub(crate) rows: Option<PathBuf>,
    /// Its feature spec, and names of keys.
    pub(crate) reading: Option<PathBuf>,
}

/// The parts of a deep model; `None` for other directories.
pub(crate) fn deep_parts(path: &Path) -> Option<DeepParts> {
    let manifest = deep_manifest(path)?;
    let part = |name: &str| {
        let part = manifest.get(name)?.as_str()?;
        (!part.is_empty() && !part.contains(['/', '\\'])).then(|| path.join(part))
    };
    Some(DeepParts { rows: part("rows"), reading: part("reading") })
}

fn deep_manifest(path: &Path) -> Option<serde_json::Value> {
    let mut text = Vec::new();
    let file = open_regular(&path.join(MANIFEST)).ok()?;
    // A longer file is not read to its end.
    file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut text).ok()?;
    let manifest: serde_json::Value = serde_json::from_slice(&text).ok()?;
    manifest.get("dense").is_some().then_some(manifest)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_no_manifest_is_no_deep_model() {
        const DENSE: &str = r#"{"dense": {"file": "dense-1.pt"}}"#;
        type Make = fn(&Path);
        let cases: [(&str, Make, bool); 5] = [
            ("nothing", |_| {}, false),
            ("a file", |at| fs::write(at, DENSE).unwrap(), true),
            ("another", |at| fs::write(at, "{}").unwrap(), false),
            // It would be read until the memory is full.
            ("a device", |at| std::os::unix::fs::symlink("/dev/zero", at).unwrap(), false),
            // Opening it would block until a writer comes.
            ("a pipe", |at| assert!(Command::new("mkfifo").arg(at).status().unwrap().success()), false),
        ];
        for (what, make, expected) in cases {
            let dir = tempfile::tempdir().unwrap();
            make(&dir.path().join(MANIFEST));
            let (says, hears) = channel();
            let path = dir.path().to_path_buf();
            std::thread::spawn(move || says.send(is_deep(&path)));
            assert_eq!(hears.recv_timeout(Duration::from_secs(60)), Ok(expected), "{what}");
        }
    }
}
