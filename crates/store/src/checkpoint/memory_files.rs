//! A directory in memory for crash tests, which knows what a loss of power may leave.

#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::files::{Files, Sink};

/// Directory of the checkpoints, which does not exist at first.
pub(super) const DIR: &str = "/models/model";

pub(super) type Entries = BTreeMap<String, usize>;

/// The fault at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    /// It fails, and later ones succeed, as with a full disk.
    Error,
    /// It and all later ones fail, as after a crash of the process.
    Stop,
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    Create(String, usize),
    Rename(String, String),
    Remove(String),
}

/// A directory in memory, [`DIR`], that knows the content after a power loss.
#[derive(Default)]
pub(super) struct State {
    /// The directory and its ancestors, as far as they exist, and those among them that survive a power loss.
    pub(super) dirs: BTreeSet<PathBuf>,
    pub(super) durable_dirs: BTreeSet<PathBuf>,
    pub(super) entries: Entries,
    /// Entries at the last sync of the directory, and changes since.
    pub(super) durable: Entries,
    pub(super) changes: Vec<Change>,
    pub(super) contents: Vec<Vec<u8>>,
    /// Synced length of each content.
    pub(super) synced: Vec<usize>,
    pub(super) operations: usize,
    pub(super) fault: Option<(usize, Fault)>,
}

#[derive(Clone, Default)]
pub(super) struct Memory(pub(super) Arc<Mutex<State>>);

struct MemoryFile(Memory, usize);

fn apply(entries: &mut Entries, change: &Change) {
    match change {
        Change::Create(name, id) => {
            entries.insert(name.clone(), *id);
        }
        Change::Rename(from, to) => {
            if let Some(id) = entries.remove(from) {
                entries.insert(to.clone(), id);
            }
        }
        Change::Remove(name) => {
            entries.remove(name);
        }
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_string()
}

impl Memory {
    fn step<T>(&self, f: impl FnOnce(&mut State) -> T) -> io::Result<T> {
        let mut state = self.0.lock().unwrap();
        let number = state.operations;
        state.operations += 1;
        match state.fault {
            Some((at, Fault::Error)) if number == at => Err(io::Error::other("injected")),
            Some((at, Fault::Stop)) if number >= at => Err(io::Error::other("stopped")),
            _ => Ok(f(&mut state)),
        }
    }

    fn change(&self, change: Change) -> io::Result<()> {
        self.step(|state| {
            apply(&mut state.entries, &change);
            state.changes.push(change);
        })
    }

    /// All directories that a power loss may leave: any subset of the unsynced changes, with unsynced content
    /// whole, halved, without its first half, or gone.
    pub(super) fn images(&self) -> BTreeSet<BTreeMap<String, Vec<u8>>> {
        let state = self.0.lock().unwrap();
        let mut images = BTreeSet::new();
        if !state.durable_dirs.contains(Path::new(DIR)) {
            // The directory itself may be gone with all its content.
            images.insert(BTreeMap::new());
        }
        for subset in 0..1_u32 << state.changes.len() {
            let mut entries = state.durable.clone();
            for (at, change) in state.changes.iter().enumerate() {
                if subset >> at & 1 == 1 {
                    apply(&mut entries, change);
                }
            }
            for (part, has_hole) in [(0, false), (1, false), (2, false), (2, true)] {
                let cut = |id: usize| {
                    let (content, synced) = (&state.contents[id], state.synced[id]);
                    let half = (content.len() - synced) / 2;
                    let mut left = content[..content.len().min(synced + half * part + part / 2)].to_vec();
                    if has_hole {
                        left[synced..synced + half].fill(0);
                    }
                    left
                };
                images.insert(entries.iter().map(|(name, &id)| (name.clone(), cut(id))).collect());
            }
        }
        images
    }
}

impl Sink for MemoryFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.step(|state| state.contents[self.1].extend_from_slice(bytes))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.step(|state| state.synced[self.1] = state.contents[self.1].len())
    }
}

impl Files for Memory {
    fn create_dir(&self, path: &Path) -> io::Result<bool> {
        self.step(|state| state.dirs.insert(path.to_path_buf()))
    }

    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        self.step(|state| state.entries.get(&name(path)).map(|&id| state.contents[id].clone()))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>> {
        let id = self.step(|state| {
            state.contents.push(Vec::new());
            state.synced.push(0);
            let id = state.contents.len() - 1;
            apply(&mut state.entries, &Change::Create(name(path), id));
            state.changes.push(Change::Create(name(path), id));
            id
        })?;
        Ok(Box::new(MemoryFile(self.clone(), id)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(Change::Rename(name(from), name(to)))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step(|state| {
            let State { dirs, durable_dirs, .. } = state;
            // The content of a directory survives if the directory does.
            if path == Path::new("/") || durable_dirs.contains(path) {
                durable_dirs.extend(dirs.iter().filter(|dir| dir.parent() == Some(path)).cloned());
            }
            if path == Path::new(DIR) {
                state.durable = state.entries.clone();
                state.changes.clear();
            }
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change(Change::Remove(name(path)))
    }

    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        self.step(|state| state.entries.keys().cloned().collect())
    }
}

impl Memory {
    /// Makes all of its content survive, and the operation `at` from now fail.
    pub(super) fn fail_at(&self, at: usize, fault: Fault) {
        let mut state = self.0.lock().unwrap();
        state.durable = state.entries.clone();
        state.changes.clear();
        (state.operations, state.fault) = (0, Some((at, fault)));
    }

    /// Lets all further operations succeed.
    pub(super) fn mend(&self) {
        self.0.lock().unwrap().fault = None;
    }

    /// Returns whether the operation at which it fails was reached.
    pub(super) fn is_reached(&self) -> bool {
        let state = self.0.lock().unwrap();
        state.fault.is_some_and(|(at, _)| state.operations > at)
    }
}

/// Writes an image to a directory.
pub(super) fn write_image(image: &BTreeMap<String, Vec<u8>>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in image {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    dir
}
