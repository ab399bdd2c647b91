//! Crash tests of the journal: with a failure or a loss of power at every operation of the disk, each acknowledged change
//! is there, and no part of another one.

#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};

use sanderling_registry::protocol::JsonText;
use sanderling_registry::state_machine::{Reply, Request, StateMachine};
use serde_json::json;

use crate::committer::{CommitError, Committer, Requests};
use crate::disk::{Disk, DiskFile};
use crate::journal::{JOURNAL, Journal, ReadError, read};

/// The fault at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// It fails, and later ones succeed, as with a full disk.
    Error,
    /// It and the next one fail, so that a write cannot be taken back.
    Twice,
    /// It and all later ones fail, as after the end of the process.
    Stop,
}

#[derive(Clone, Debug)]
enum Renaming {
    Create(String, usize),
    Rename(String, String),
    Remove(String),
}

type Names = BTreeMap<String, usize>;
type Image = BTreeMap<String, Vec<u8>>;

#[derive(Debug, Default)]
struct State {
    names: Names,
    /// Names at the last sync of them, and changes since.
    durable: Names,
    renamings: Vec<Renaming>,
    /// Contents, and what was last synced of each.
    contents: Vec<(Vec<u8>, Vec<u8>)>,
    operations: usize,
    fault: Option<(usize, Fault)>,
}

/// A folder in memory that knows what a loss of power may leave.
#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<State>>);

#[derive(Debug)]
struct MemoryFile(Memory, usize);

fn apply(names: &mut Names, renaming: &Renaming) {
    match renaming {
        Renaming::Create(name, content) => {
            names.insert(name.clone(), *content);
        }
        Renaming::Rename(from, to) => {
            if let Some(content) = names.remove(from) {
                names.insert(to.clone(), content);
            }
        }
        Renaming::Remove(name) => {
            names.remove(name);
        }
    }
}

impl Memory {
    fn of(image: &Image) -> Memory {
        let memory = Memory::default();
        let mut state = memory.0.lock().unwrap();
        for (at, (name, content)) in image.iter().enumerate() {
            state.names.insert(name.clone(), at);
            state.contents.push((content.clone(), content.clone()));
        }
        state.durable = state.names.clone();
        drop(state);
        memory
    }

    /// Does an operation; a failed one does what `fails` says.
    fn step<T>(&self, works: impl FnOnce(&mut State) -> T, fails: impl FnOnce(&mut State)) -> io::Result<T> {
        let mut state = self.0.lock().unwrap();
        let number = state.operations;
        state.operations += 1;
        let is_failure = state.fault.is_some_and(|(at, fault)| match fault {
            Fault::Error => number == at,
            Fault::Twice => (at..at + 2).contains(&number),
            Fault::Stop => number >= at,
        });
        if is_failure {
            fails(&mut state);
            return Err(io::Error::other("injected"));
        }
        Ok(works(&mut state))
    }

    fn rename_by(&self, renaming: Renaming) -> io::Result<()> {
        let works = |state: &mut State| {
            apply(&mut state.names, &renaming);
            state.renamings.push(renaming);
        };
        self.step(works, |_| {})
    }

    /// All folders that a loss of power may leave: the changes of names up to any moment, with unsynced content whole, in
    /// part, with a hole, or gone.
    fn images(&self) -> BTreeSet<Image> {
        let state = self.0.lock().unwrap();
        let mut images = BTreeSet::new();
        for subset in 0..1_u32 << state.renamings.len() {
            let mut names = state.durable.clone();
            for (at, renaming) in state.renamings.iter().enumerate() {
                if subset >> at & 1 == 1 {
                    apply(&mut names, renaming);
                }
            }
            for variant in 0..4 {
                let left = |content: usize| {
                    let (present, synced) = &state.contents[content];
                    let half = present.len().saturating_sub(synced.len()) / 2;
                    match variant {
                        0 => synced.clone(),
                        1 => present.clone(),
                        // A file that was cut has no part of its own.
                        _ if !present.starts_with(synced) => present.clone(),
                        2 => present[..synced.len() + half].to_vec(),
                        _ => {
                            let mut left = present.clone();
                            left[synced.len()..synced.len() + half].fill(0);
                            left
                        }
                    }
                };
                images.insert(names.iter().map(|(name, &content)| (name.clone(), left(content))).collect());
            }
        }
        images
    }
}

impl Disk for Memory {
    fn read(&self, name: &str, _bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let state = self.0.lock().unwrap();
        Ok(state.names.get(name).map(|&content| state.contents[content].0.clone()))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let number = self.0.lock().unwrap().contents.len();
        let works = |state: &mut State| {
            state.contents.push(Default::default());
            let renaming = Renaming::Create(name.to_owned(), number);
            apply(&mut state.names, &renaming);
            state.renamings.push(renaming);
        };
        self.step(works, |_| {})?;
        Ok(Box::new(MemoryFile(self.clone(), number)))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let content = self.0.lock().unwrap().names[name];
        self.step(|_| {}, |_| {})?;
        Ok(Box::new(MemoryFile(self.clone(), content)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.rename_by(Renaming::Rename(from.to_owned(), to.to_owned()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.rename_by(Renaming::Remove(name.to_owned()))
    }

    fn sync_names(&self) -> io::Result<()> {
        let works = |state: &mut State| {
            state.durable = state.names.clone();
            state.renamings.clear();
        };
        self.step(works, |_| {})
    }
}

impl DiskFile for MemoryFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let content = self.1;
        let append = |part: &[u8], state: &mut State| state.contents[content].0.extend_from_slice(part);
        let fails = |state: &mut State| append(&bytes[..bytes.len() / 2], state);
        self.0.step(|state| append(bytes, state), fails)
    }

    fn sync(&mut self) -> io::Result<()> {
        let works = |state: &mut State| {
            let (present, synced) = &mut state.contents[self.1];
            synced.clone_from(present);
        };
        self.0.step(works, |_| {})
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        let works = |state: &mut State| state.contents[self.1].0.truncate(bytes as usize);
        self.0.step(works, |_| {})
    }
}

/// Everything that a restart must keep.
fn facts(machine: &StateMachine) -> String {
    format!("{} {:?}", machine.revision(), machine.snapshot())
}

fn put(name: &str, expected: u64, lease: Option<u64>, bytes: usize) -> Request {
    let value = JsonText::new(name, &json!({ "text": "x".repeat(bytes) })).unwrap();
    Request::Put { name: name.into(), expected, value, lease }
}

/// Changes of all kinds; some are large enough that the journal is written anew between them.
fn script() -> Vec<Request> {
    vec![
        put("a/config", 0, None, 10),
        Request::Grant { lease: 7, term_s: 3600 },
        put("a/members/1", 0, Some(7), 200),
        put("a/members/2", 0, Some(7), 500),
        put("a/config", 1, None, 20),
        Request::Delete { name: "a/config".into(), expected: 4 },
        Request::Revoke { lease: 7 },
        put("a/groups/1", 0, None, 400),
        put("a/groups/2", 0, None, 400),
        put("a/groups/1", 8, None, 300),
    ]
}

fn ask(requests: &Requests, request: &Request) -> Result<Reply, CommitError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(requests.ask(request.clone()))
}

/// Recovers each image that a loss of power may leave, and goes on from there.
fn check_images(memory: &Memory, allowed: &[String], what: &str) {
    for image in memory.images() {
        let copy = Memory::of(&image);
        let (journal, found) = match Journal::open(Box::new(copy.clone()), "k".to_owned()) {
            Ok(opened) => opened,
            Err(error) => panic!("{what}: {error}"),
        };
        let facts_found = facts(&found.machine);
        assert!(allowed.contains(&facts_found), "{what}: {facts_found} is none of {allowed:?}");
        let expected = found.machine.get("next").map_or(0, |held| held.revision);
        let committer = Committer::start(journal, found, |_| {}).unwrap();
        let reply = ask(&committer.requests(), &put("next", expected, None, 5)).unwrap();
        assert!(matches!(reply, Reply::Done(_)), "{what}: {reply:?}");
        let written = facts(&committer.shared.published().machine);
        committer.stop();
        for image in copy.images() {
            let found = read(&image[JOURNAL]).unwrap();
            assert_eq!(facts(&found.machine), written, "{what}: after the next change");
        }
    }
}

/// Runs the script with a fault at an operation; returns whether the fault was reached.
fn run_with(fault: Fault, at: usize) -> bool {
    let memory = Memory::default();
    let (journal, found) = Journal::open(Box::new(memory.clone()), "k".to_owned()).unwrap();
    let begun = memory.0.lock().unwrap().operations;
    memory.0.lock().unwrap().fault = Some((begun + at, fault));
    let committer = Committer::start(journal, found, |_| {}).unwrap();
    let requests = committer.requests();
    let mut acknowledged = facts(&StateMachine::default());
    // The records after a change whose outcome is unknown.
    let mut unknown = None;
    // The thread may write the journal anew after its answer; the next answer waits for that.
    for (number, request) in script().iter().enumerate() {
        let mut tried = committer.shared.published().machine.clone();
        let (entries, _) = tried.decide(request, Default::default());
        entries.iter().for_each(|entry| drop(tried.apply(entry, Default::default()).unwrap()));
        match ask(&requests, request) {
            // It changed nothing, so an unknown change before it may still be found.
            Ok(_) if entries.is_empty() => {}
            Ok(_) => (acknowledged, unknown) = (facts(&tried), None),
            Err(CommitError::Refused(_)) => {}
            Err(CommitError::Unknown(_)) => unknown = Some(facts(&tried)),
        }
        assert_eq!(
            facts(&committer.shared.published().machine),
            acknowledged,
            "{fault:?} at {at}, change {number}"
        );
        let allowed: Vec<String> = [acknowledged.clone()].into_iter().chain(unknown.clone()).collect();
        check_images(&memory, &allowed, &format!("{fault:?} at operation {at}, change {number}"));
    }
    let is_reached = memory.0.lock().unwrap().operations > begun + at;
    // After the fault it goes on.
    memory.0.lock().unwrap().fault = None;
    let expected = committer.shared.published().machine.get("last").map_or(0, |held| held.revision);
    let reply = ask(&requests, &put("last", expected, None, 1)).unwrap();
    assert!(matches!(reply, Reply::Done(_)), "{fault:?} at {at}: {reply:?}");
    let written = facts(&committer.shared.published().machine);
    committer.stop();
    check_images(&memory, &[written], &format!("after {fault:?} at operation {at}"));
    is_reached
}

#[test]
fn acknowledged_changes_survive_a_failure_of_any_operation() {
    for fault in [Fault::Error, Fault::Twice, Fault::Stop] {
        let reached = (0..).take_while(|&at| run_with(fault, at)).count();
        assert!(reached > 25, "{fault:?}: {reached} operations");
    }
}

/// A journal with its changes after the beginning, one per frame.
fn journal() -> (Vec<u8>, Vec<(usize, String)>) {
    let memory = Memory::default();
    let (mut journal, found) = Journal::open(Box::new(memory.clone()), "k".to_owned()).unwrap();
    let mut machine = found.machine;
    let mut ends = vec![(journal.bytes() as usize, facts(&machine))];
    for request in &script()[..4] {
        let (entries, _) = machine.decide(request, Default::default());
        entries.iter().for_each(|entry| drop(machine.apply(entry, Default::default()).unwrap()));
        journal.append(&entries).unwrap();
        ends.push((journal.bytes() as usize, facts(&machine)));
    }
    let content = memory.read(JOURNAL, u64::MAX).unwrap().unwrap();
    assert_eq!(content.len(), ends.last().unwrap().0);
    (content, ends)
}

#[test]
fn a_torn_change_is_cut_and_damage_is_refused() {
    let (content, ends) = journal();
    let begun = ends[0].0;
    for bytes in 0..=content.len() {
        match read(&content[..bytes]) {
            Ok(found) => {
                let (end, expected) = ends.iter().rev().find(|(end, _)| *end <= bytes).unwrap();
                assert_eq!((facts(&found.machine), found.torn_bytes), (expected.clone(), bytes - end));
            }
            Err(error) => assert!(bytes < begun, "{bytes} bytes: {error}"),
        }
    }
    let last = ends[ends.len() - 2].0;
    for at in 0..content.len() {
        let mut changed = content.clone();
        changed[at] ^= 0x10;
        match read(&changed) {
            // Only the last change may be taken for a torn one.
            Ok(found) => {
                assert!(at >= last, "a changed byte {at} was not seen");
                assert_eq!(facts(&found.machine), ends[ends.len() - 2].1);
            }
            Err(ReadError::Damaged { .. }) => assert!(at < last, "byte {at} of the last change is damage"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_journal_of_many_records_begins_with_pieces_and_is_whole() {
    let memory = Memory::default();
    let (journal, found) = Journal::open(Box::new(memory.clone()), "k".to_owned()).unwrap();
    let committer = Committer::start(journal, found, |_| {}).unwrap();
    let requests = committer.requests();
    for number in 0..60 {
        ask(&requests, &put(&format!("a/{number}"), 0, None, 200 << 10)).unwrap();
    }
    let written = facts(&committer.shared.published().machine);
    committer.stop();
    let content = memory.read(JOURNAL, u64::MAX).unwrap().unwrap();
    assert_eq!(facts(&read(&content).unwrap().machine), written);
    // A beginning that lacks its last part is no torn change.
    let (mut journal, found) = Journal::open(Box::new(memory.clone()), "k".to_owned()).unwrap();
    journal.rewrite(&found.machine).unwrap();
    let content = memory.read(JOURNAL, u64::MAX).unwrap().unwrap();
    let error = read(&content[..content.len() - 1]).unwrap_err();
    assert!(error.to_string().contains("entries of its beginning are missing"), "{error}");
}
