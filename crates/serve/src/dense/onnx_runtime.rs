//! ONNX Runtime as an engine. Its library is loaded when the first deep model is: that of the `onnxruntime` wheel of the
//! active Python, or of the system.

mod c_api;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dense::engine::{DenseEngine, DenseInput, Signature};
use c_api::{Library, Session};

/// Beginning of the names of the library.
const NAME: &str = "libonnxruntime.so";
/// Where the wheel has the library, below `site-packages`.
const IN_WHEEL: &str = "onnxruntime/capi";

/// A loaded library.
pub(crate) struct OnnxRuntime(Arc<Library>);

impl OnnxRuntime {
    /// Loads the library at a path, or finds it in a directory of the package, in the active Python or in the system.
    ///
    /// # Errors
    /// No library, or one that is not ONNX Runtime.
    pub(crate) fn find(path: Option<&Path>, package: Option<&Path>) -> Result<OnnxRuntime, String> {
        let found = match path {
            Some(path) if path.is_dir() => {
                let found = library_in(path).or_else(|| library_in(&path.join(IN_WHEEL)));
                let found = found.or_else(|| in_prefix(path));
                Some(found.ok_or_else(|| format!("{}: no {NAME} in this directory", path.display()))?)
            }
            Some(path) => Some(path.to_owned()),
            None => {
                let in_package = package.and_then(|package| library_in(&package.join("capi")));
                in_package.or_else(|| prefixes().iter().find_map(|prefix| in_prefix(prefix)))
            }
        };
        let library = match found {
            Some(path) => Library::load(&path)?,
            None => Library::load(Path::new(NAME))?,
        };
        Ok(OnnxRuntime(Arc::new(library)))
    }

    /// Loads a dense part.
    pub(crate) fn session(&self, onnx: &[u8], signature: &Signature) -> Result<OnnxSession, String> {
        let session = Session::new(&self.0, onnx, &signature.inputs, &signature.output)?;
        Ok(OnnxSession(session))
    }
}

/// A dense part in ONNX Runtime: one session, which runs on the threads that call it.
pub(crate) struct OnnxSession(Session);

impl DenseEngine for OnnxSession {
    fn name(&self) -> &'static str {
        "ONNX Runtime"
    }

    fn run(&self, inputs: &[DenseInput<'_>], output: &mut Vec<f32>) -> Result<(), String> {
        self.0.run(inputs, output)
    }
}

/// Directories of Python installations: the active environment, that of the running interpreter, that of the program.
fn prefixes() -> Vec<PathBuf> {
    let named = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os);
    let programs = [std::env::args_os().next(), std::env::current_exe().ok().map(OsString::from)];
    let programs = programs.into_iter().flatten().map(PathBuf::from);
    // prefix/bin/program
    let above = programs.filter_map(|program| program.parent()?.parent().map(Path::to_owned));
    named.map(PathBuf::from).chain(above).collect()
}

fn in_prefix(prefix: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(prefix.join("lib")).ok()?.flatten();
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path()).collect();
    versions.sort();
    versions.iter().rev().find_map(|version| library_in(&version.join("site-packages").join(IN_WHEEL)))
}

/// The library in a directory; of several, that of the latest name.
fn library_in(directory: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    files.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(NAME))).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_in_a_wheel_and_other_files_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let wheel = folder.path().join("lib/python3.11/site-packages").join(IN_WHEEL);
        std::fs::create_dir_all(&wheel).expect("folders");
        assert_eq!(in_prefix(folder.path()), None);
        let library = wheel.join("libonnxruntime.so.1.32.0");
        std::fs::write(&library, "no library").expect("a file");
        std::fs::write(wheel.join("onnxruntime_pybind11_state.so"), "").expect("a file");
        assert_eq!(in_prefix(folder.path()).as_deref(), Some(&*library));
        let check = |path: &Path, expected: &str| {
            let error = OnnxRuntime::find(Some(path), None).map(|_| ()).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        };
        check(folder.path(), "libonnxruntime.so.1.32.0");
        check(&library, "libonnxruntime.so.1.32.0");
        check(&folder.path().join("lib"), "no libonnxruntime.so in this directory");
        check(&folder.path().join("nothing"), "nothing");
    }
}
