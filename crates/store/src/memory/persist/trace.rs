//! A record of stores, flushes and fences to the files of kept tables, and the images that a loss of power can leave.
//!
//! At each point of the protocol the mapped files are compared with how they were. So stores between two points have no
//! order, and those before and after a point have one. At a crash each cache line has a prefix of its stores, at least
//! the lines that a thread has flushed and then waited for.
#![allow(unsafe_code)] // reads mapped files while no thread changes them
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex};

use sanderling_random::SplitMix64;

use super::{LINE_BYTES, Step};

const LINE_WORDS: usize = LINE_BYTES / 8;
const PAGE_WORDS: usize = 512;
/// Files and pieces of a device of fewer words are indexes and records, not rows.
const SMALL_WORDS: usize = 4096;
/// So many lines of rows are chosen at random only.
const OPEN_MANY: usize = 200;

/// A part of the protocol that a test leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Flush(Step),
    Fence(Step),
}

thread_local! {
    static RECORDER: RefCell<Option<Shared>> = const { RefCell::new(None) };
    static BOOT: RefCell<Option<String>> = const { RefCell::new(None) };
    static LEFT_OUT: Cell<Option<Part>> = const { Cell::new(None) };
    static THREAD: Cell<usize> = const { Cell::new(0) };
}

type Shared = Arc<Mutex<Recorder>>;
/// Sees every state of the record before stores become durable.
pub(crate) type Observer = Box<dyn FnMut(&Recorder) + Send>;
/// Work of another thread.
pub(crate) type Meanwhile = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct Recorder {
    files: Vec<TracedFile>,
    time: u64,
    /// There are stores since the last observation.
    is_new: bool,
    observer: Option<Observer>,
    meanwhile: Option<Meanwhile>,
}

#[derive(Clone)]
struct TracedFile {
    inode: u64,
    maps: Vec<Map>,
    /// The content when it was last compared, and what of it is durable for certain.
    now: Vec<u64>,
    durable: Vec<u64>,
    /// Lines with stores that are not durable for certain.
    lines: BTreeMap<usize, Line>,
}

/// A part of a file that is mapped.
#[derive(Clone, Copy)]
struct Map {
    address: usize,
    /// Its first word in the file.
    first: usize,
    words: usize,
}

#[derive(Clone, Default)]
struct Line {
    stores: Vec<Stores>,
    /// The number of stores that each thread has flushed.
    flushed: BTreeMap<usize, usize>,
}

/// Stores to a line between two points.
#[derive(Clone)]
struct Stores {
    time: u64,
    words: Vec<(usize, u64)>,
}

/// The stores of each line that an image has: whole ones, and a mask of the words of the next.
type Choice = Vec<(usize, u64)>;

/// Content of a file of an image.
pub(crate) type Content = (u64, Vec<u8>);

/// Pending stores of a process that was killed, by inode.
pub(crate) struct Pending(Vec<TracedFile>);

impl Recorder {
    /// Compares all files with how they were.
    fn look(&mut self) {
        self.time += 1;
        for file in &mut self.files {
            for Map { address, first: start, words } in file.maps.clone() {
                // SAFETY: so many words are mapped there, and no thread changes them: all others wait.
                let words = unsafe { std::slice::from_raw_parts(address as *const u64, words) };
                for first in (0..words.len()).step_by(PAGE_WORDS) {
                    let page = first..(first + PAGE_WORDS).min(words.len());
                    if words[page.clone()] == file.now[start + page.start..start + page.end] {
                        continue;
                    }
                    let changed = page.filter(|&at| words[at] != file.now[start + at]);
                    for at in changed.collect::<Vec<_>>() {
                        let (word, at) = (words[at], start + at);
                        let line = file.lines.entry(at / LINE_WORDS).or_default();
                        if line.stores.last().is_none_or(|stores| stores.time != self.time) {
                            line.stores.push(Stores { time: self.time, words: Vec::new() });
                        }
                        line.stores.last_mut().unwrap().words.push((at % LINE_WORDS, word));
                        file.now[at] = word;
                        self.is_new = true;
                    }
                }
            }
        }
    }

    fn observe(&mut self) {
        if !std::mem::take(&mut self.is_new) {
            return;
        }
        if let Some(mut observer) = self.observer.take() {
            observer(self);
            self.observer = Some(observer);
        }
    }

    fn flush(&mut self, thread: usize, start: usize, bytes: usize) {
        for file in &mut self.files {
            let has = |map: &&Map| map.address <= start && start < map.address + map.words * 8;
            let Some(map) = file.maps.iter().find(has) else { continue };
            let start = start - map.address + map.first * 8;
            let lines = start / LINE_BYTES..(start + bytes).div_ceil(LINE_BYTES);
            for line in file.lines.range_mut(lines).map(|(_, line)| line) {
                line.flushed.insert(thread, line.stores.len());
            }
        }
    }

    /// Makes the stores that a thread has flushed durable.
    fn fence(&mut self, thread: usize) {
        for file in &mut self.files {
            for (&at, line) in &mut file.lines {
                let Some(count) = line.flushed.remove(&thread) else { continue };
                for (word, value) in line.stores.drain(..count).flat_map(|stores| stores.words) {
                    file.durable[at * LINE_WORDS + word] = value;
                }
                line.flushed.values_mut().for_each(|flushed| *flushed = flushed.saturating_sub(count));
            }
            file.lines.retain(|_, line| !line.stores.is_empty());
        }
    }

    /// The lines with stores that may be lost: their number of stores, with the times.
    fn open(&self) -> Vec<&Line> {
        self.files.iter().flat_map(|file| file.lines.values()).collect()
    }

    /// Images that a loss of power may leave now.
    ///
    /// All stores, none, and each line of a small file with all stores or none, unlike all others, are always among them;
    /// of others there are up to `most`, at random.
    pub(crate) fn images(&self, most: usize, random: &mut SplitMix64) -> Vec<Vec<Content>> {
        let open = self.open();
        let all: Choice = open.iter().map(|line| (line.stores.len(), 0)).collect();
        let none: Choice = vec![(0, 0); open.len()];
        let (mut choices, mut always) = (BTreeSet::new(), BTreeSet::from([all.clone(), none.clone()]));
        let is_small: Vec<bool> = self
            .files
            .iter()
            .flat_map(|file| file.lines.keys().map(|&line| file.words_around(line) < SMALL_WORDS))
            .collect();
        let times: BTreeSet<u64> =
            open.iter().flat_map(|line| line.stores.iter().map(|stores| stores.time)).collect();
        for time in times {
            let before = |line: &&Line| line.stores.iter().filter(|stores| stores.time <= time).count();
            choices.insert(open.iter().map(|line| (before(line), 0)).collect());
        }
        for (at, line) in open.iter().enumerate().filter(|(at, _)| is_small[*at] || open.len() < OPEN_MANY) {
            for others in [&all, &none] {
                for count in 0..=line.stores.len() {
                    let mut choice = others.clone();
                    choice[at] = (count, 0);
                    let is_extreme = count == 0 || count == line.stores.len();
                    let kept = if is_small[at] && is_extreme { &mut always } else { &mut choices };
                    kept.insert(choice);
                }
            }
        }
        let mut choices: Vec<Choice> = choices.into_iter().collect();
        for _ in 0..most / 2 {
            let mut any = |line: &&Line| {
                let count = random.next() as usize % (line.stores.len() + 1);
                (count, if count < line.stores.len() { random.next() } else { 0 })
            };
            choices.push(open.iter().map(&mut any).collect());
        }
        while choices.len() > most {
            choices.swap_remove(random.next() as usize % choices.len());
        }
        always.iter().chain(&choices).map(|choice| self.image(choice)).collect()
    }

    /// The image that the kill of the process leaves: all stores. No fence waits any more for what it has flushed.
    pub(crate) fn killed(&self) -> (Vec<Content>, Pending) {
        let all: Choice = self.open().iter().map(|line| (line.stores.len(), 0)).collect();
        let mut files = self.files.clone();
        files.iter_mut().flat_map(|file| file.lines.values_mut()).for_each(|line| line.flushed.clear());
        (self.image(&all), Pending(files))
    }

    fn image(&self, choice: &Choice) -> Vec<Content> {
        let mut choice = choice.iter();
        let content = |file: &TracedFile| {
            let mut words = file.durable.clone();
            for (&at, line) in &file.lines {
                let &(count, mask) = choice.next().unwrap();
                let mut set = |(word, value): (usize, u64)| words[at * LINE_WORDS + word] = value;
                line.stores[..count].iter().flat_map(|stores| &stores.words).copied().for_each(&mut set);
                let next = line.stores.get(count).into_iter().flat_map(|stores| &stores.words);
                next.filter(|(word, _)| mask >> word & 1 == 1).copied().for_each(&mut set);
            }
            (file.inode, words.iter().flat_map(|word| word.to_ne_bytes()).collect())
        };
        self.files.iter().map(content).collect()
    }
}

/// Records this thread until the result is dropped.
pub(crate) struct Recording(Shared);

impl Recording {
    pub(crate) fn start() -> Recording {
        let shared = Shared::default();
        RECORDER.set(Some(Arc::clone(&shared)));
        Recording(shared)
    }

    /// Passes every state from now on to `observer`. Everything so far is durable.
    pub(crate) fn observe(&self, observer: Observer) {
        let recorder = &mut *self.0.lock().unwrap();
        recorder.look();
        for file in &mut recorder.files {
            file.durable.clone_from(&file.now);
            file.lines.clear();
        }
        (recorder.is_new, recorder.observer) = (true, Some(observer));
    }

    /// Takes over stores that a killed process has not made durable, by the inode of each file here.
    pub(crate) fn inherit(&self, pending: Pending, inode: impl Fn(u64) -> Option<u64>, observer: Observer) {
        let recorder = &mut *self.0.lock().unwrap();
        for file in pending.0 {
            if let Some(inode) = inode(file.inode) {
                recorder.files.push(TracedFile { inode, maps: Vec::new(), ..file });
            }
        }
        (recorder.is_new, recorder.observer) = (true, Some(observer));
    }

    /// Shows the present state.
    pub(crate) fn show(&self) {
        let recorder = &mut *self.0.lock().unwrap();
        recorder.look();
        recorder.is_new = true;
        recorder.observe();
    }

    /// Lets another thread do this at the next moment when no key is locked.
    pub(crate) fn meanwhile(&self, work: Meanwhile) {
        self.0.lock().unwrap().meanwhile = Some(work);
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        RECORDER.set(None);
    }
}

/// Leaves a part of the protocol out, in this thread and those that it starts with [`elsewhere`].
pub(crate) fn leave_out(part: Option<Part>) {
    LEFT_OUT.set(part);
}

/// Makes this the boot of the system for this thread.
pub(crate) fn set_boot(boot: &str) {
    BOOT.set(Some(boot.to_owned()));
}

/// Runs work on another thread, which is recorded as well, and waits for it.
pub(crate) fn elsewhere<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let recorder = RECORDER.with_borrow(Clone::clone);
    let (boot, left_out) = (boot(), LEFT_OUT.get());
    std::thread::scope(|scope| {
        let run = move || {
            RECORDER.set(recorder);
            BOOT.set(boot);
            LEFT_OUT.set(left_out);
            THREAD.set(1);
            work()
        };
        scope.spawn(run).join().unwrap()
    })
}

fn with<R>(f: impl FnOnce(&mut Recorder) -> R) -> Option<R> {
    let recorder = RECORDER.with_borrow(Clone::clone)?;
    let mut recorder = recorder.lock().unwrap();
    Some(f(&mut recorder))
}

/// Records a flush; returns whether it is to be done.
pub(super) fn flush(step: Step, start: usize, bytes: usize) -> bool {
    let is_done = LEFT_OUT.get() != Some(Part::Flush(step));
    with(|recorder| {
        recorder.look();
        if is_done {
            recorder.flush(THREAD.get(), start, bytes);
        }
    });
    is_done
}

/// Records a fence; returns whether it is to be done.
pub(super) fn fence(step: Step) -> bool {
    let is_done = LEFT_OUT.get() != Some(Part::Fence(step));
    with(|recorder| {
        recorder.look();
        if is_done {
            recorder.observe();
            recorder.fence(THREAD.get());
        }
    });
    is_done
}

pub(super) fn point() {
    with(Recorder::look);
}

pub(super) fn unlocked() {
    if let Some(work) = with(|recorder| recorder.meanwhile.take()).flatten() {
        elsewhere(work);
    }
}

pub(super) fn boot() -> Option<String> {
    BOOT.with_borrow(Clone::clone)
}

impl TracedFile {
    /// The words of the mapping that a line is in.
    fn words_around(&self, line: usize) -> usize {
        let has = |map: &&Map| (map.first..map.first + map.words).contains(&(line * LINE_WORDS));
        self.maps.iter().find(has).map_or(self.now.len(), |map| map.words)
    }
}

/// Notes that a file is mapped, or a piece of a device from `offset` on.
pub(in crate::memory) fn mapped(file: &File, offset: Option<u64>, address: usize, bytes: usize) {
    let (inode, words) = (file.metadata().unwrap().ino(), bytes / 8);
    let first = offset.unwrap_or(0) as usize / 8;
    with(|recorder| {
        recorder.look();
        // SAFETY: mapped for so many bytes by the caller, and no other thread knows the place.
        let mapped = unsafe { std::slice::from_raw_parts(address as *const u64, words) };
        let at = recorder.files.iter().position(|file| file.inode == inode).unwrap_or_else(|| {
            let now = if offset.is_some() { content(file) } else { mapped.to_vec() };
            let (durable, maps, lines) = (now.clone(), Vec::new(), BTreeMap::new());
            recorder.files.push(TracedFile { inode, maps, now, durable, lines });
            recorder.files.len() - 1
        });
        let file = &mut recorder.files[at];
        file.now.resize((first + words).max(file.now.len()), 0);
        file.durable.resize(file.now.len(), 0);
        file.maps.push(Map { address, first, words });
    });
}

/// The words of a file that stands for a device.
fn content(file: &File) -> Vec<u64> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
}

/// Notes that these addresses are not mapped any more.
pub(in crate::memory) fn unmapped(address: usize, bytes: usize) {
    with(|recorder| {
        recorder.look();
        let gone = address..address + bytes;
        recorder.files.iter_mut().for_each(|file| file.maps.retain(|map| !gone.contains(&map.address)));
    });
}
