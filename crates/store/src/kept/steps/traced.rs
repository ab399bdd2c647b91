//! A process that another one runs step by step (`ptrace`), and images of a table's files between two steps.
#![allow(unsafe_code)] // ptrace and signals
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::{ACKNOWLEDGED, DIR, FAULT, SCRIPT};
use crate::kept::head::COPY_BYTES;
use crate::kept::live::LIVE_WORDS;
use crate::memory::Region;
use crate::memory::file::PageFile;

/// Lets the parent watch this thread, from its first stop on.
pub(super) fn be_watched(root: &Path) {
    // SAFETY: asks the parent to watch this thread.
    let (thread, traced) =
        unsafe { (libc::syscall(libc::SYS_gettid), libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0)) };
    assert_eq!(traced, 0, "{}", std::io::Error::last_os_error());
    std::fs::write(root.with_extension("thread.new"), thread.to_string()).unwrap();
    std::fs::rename(root.with_extension("thread.new"), root.with_extension("thread")).unwrap();
}

/// Stops this thread until the parent lets it go on.
pub(super) fn stop() {
    // SAFETY: a signal to this thread, whose parent waits for it.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), libc::SIGSTOP)
    };
}

/// A process that runs step by step.
pub(super) struct Traced {
    child: Child,
    thread: i32,
}

impl Traced {
    pub(super) fn start(root: &Path, name: &str, fault: usize) -> Traced {
        std::fs::write(root.with_extension(ACKNOWLEDGED), 0_u64.to_le_bytes()).unwrap();
        let _ = std::fs::remove_file(root.with_extension("thread"));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kept::steps::child", "--ignored", "--test-threads=1", "-q"])
            .env(DIR, root)
            .env(SCRIPT, name)
            .env(FAULT, fault.to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let thread = loop {
            if let Ok(thread) = std::fs::read_to_string(root.with_extension("thread")) {
                break thread.parse().unwrap();
            }
            assert!(child.try_wait().unwrap().is_none(), "the child ended");
            std::thread::yield_now();
        };
        let traced = Traced { child, thread };
        assert_eq!(traced.wait(), Some(libc::SIGSTOP), "the child did not get to the watched acts");
        traced
    }

    /// Waits until the thread stops; returns the signal, or `None` if it ended.
    fn wait(&self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: writes the status and nothing else.
        let found = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL) };
        assert_eq!(found, self.thread, "{}", std::io::Error::last_os_error());
        libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
    }

    /// Executes an instruction; returns whether there is another one to watch.
    pub(super) fn step(&self) -> bool {
        // SAFETY: the thread is stopped, and watched by this one.
        let done = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.thread, 0, 0) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        match self.wait() {
            Some(libc::SIGTRAP) => true,
            Some(libc::SIGSTOP) => false,
            other => panic!("the child ended, or was stopped by signal {other:?}"),
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // A watched thread that is dead stays until the watcher has seen it.
        // SAFETY: writes no status.
        unsafe { libc::waitpid(self.thread, std::ptr::null_mut(), libc::__WALL) };
        let _ = self.child.wait();
    }
}

/// Contents of files by name.
pub(in crate::kept) type Files = BTreeMap<String, Vec<u8>>;

/// The files of a table that can change, as they are now.
pub(super) fn files(folder: &Path) -> Files {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let names =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name != "lock");
    names.filter_map(|name| Some((name.clone(), std::fs::read(folder.join(&name)).ok()?))).collect()
}

/// The parts of a table's files that its acts change, mapped, to see quickly whether an instruction has changed one.
#[derive(Default)]
pub(super) struct Watch {
    /// Each file's words from a position on, and their values when they were last looked at.
    parts: Vec<(Region<AtomicU64>, usize, Vec<u64>)>,
}

impl Watch {
    /// Parts of the head: of the bytes of a copy only its generation and its checksum.
    const HEADS: usize = 2;
    const HEAD_WORDS: usize = 4;
    /// Words of other files: more than the records of locks and the rows of the scripts.
    const WORDS: usize = LIVE_WORDS;

    pub(super) fn has_changed(&mut self, root: &Path, folder: &Path) -> bool {
        let (mut changed, mut is_new_head) = (false, self.parts.is_empty());
        for (at, (words, first, last)) in self.parts.iter_mut().enumerate() {
            for (word, last) in words[*first..].iter().zip(last) {
                let now = word.load(Relaxed);
                if now != *last {
                    (changed, is_new_head) = (true, is_new_head || at < Watch::HEADS);
                    *last = now;
                }
            }
        }
        if is_new_head {
            let head = folder.join("head");
            self.parts = [0, 1].map(|copy| words_of(&head, copy * COPY_BYTES / 8, Watch::HEAD_WORDS)).into();
            let names = files(folder).into_keys().filter(|name| !name.starts_with("head"));
            self.parts.extend(names.map(|name| words_of(&folder.join(name), 0, Watch::WORDS)));
            self.parts.push(words_of(&root.with_extension(ACKNOWLEDGED), 0, 1));
        }
        changed || is_new_head
    }
}

/// Maps words of a file, up to its end.
fn words_of(path: &Path, first: usize, words: usize) -> (Region<AtomicU64>, usize, Vec<u64>) {
    let file = PageFile::open(path).unwrap();
    let words = (first + words).min(file.bytes().unwrap() as usize / 8);
    let region = Region::of_file(file, words).unwrap();
    let last = region[first..].iter().map(|word: &AtomicU64| word.load(Relaxed)).collect();
    (region, first, last)
}

/// Makes a folder with these files.
pub(in crate::kept) fn copied(files: &Files, folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    for (name, content) in files {
        // Without the pages of zeros at the end, which are most of a file.
        let used = content.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let file = File::create(folder.join(name)).unwrap();
        file.write_all_at(&content[..used], 0).unwrap();
        file.set_len(content.len() as u64).unwrap();
    }
}
