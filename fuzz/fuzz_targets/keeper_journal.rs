//! Arbitrary changes of records give a journal that is read as the same records; with changed bytes or frames it gives a typed
//! error or records, but no panic. Checksums are fixed first, because they would reject most inputs.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sanderling_keeper::fuzzing::{frame, read_journal};
use sanderling_registry::protocol::JsonText;
use sanderling_registry::state_machine::{Entry, Reply, Request, StateMachine};

#[derive(Arbitrary, Debug)]
struct Input {
    changes: Vec<Change>,
    /// Further frames, as text.
    texts: Vec<String>,
    /// Changed bytes: position, byte.
    edits: Vec<(u16, u8)>,
    cut: Option<u16>,
}

#[derive(Arbitrary, Debug)]
enum Change {
    Put {
        name: u8,
        at_present: bool,
        value: u32,
        lease: Option<u8>,
    },
    Delete {
        name: u8,
        at_present: bool,
    },
    Grant {
        lease: u8,
        term_s: u16,
    },
    KeepAlive {
        lease: u8,
    },
    Revoke {
        lease: u8,
    },
    /// Time passes, and leases end.
    Pass {
        seconds: u16,
    },
}

const HEAD: &str = r#"{"format":1,"keeper":"k","begun_with":0}"#;

fuzz_target!(|input: Input| {
    let (mut machine, mut now) = (StateMachine::default(), Duration::ZERO);
    let mut journal = frame(HEAD.as_bytes());
    for change in &input.changes {
        let expected = |name: &str, at_present: bool| {
            let present = machine.get(name).map_or(0, |held| held.revision);
            if at_present { present } else { present + 1 }
        };
        let request = match *change {
            Change::Put { name, at_present, value, lease } => {
                let name = format!("c/{}", name % 8);
                let expected = expected(&name, at_present);
                let value = JsonText::new(&name, &value.into()).unwrap();
                Request::Put {
                    name: name.into(),
                    expected,
                    value,
                    lease: lease.map(|lease| u64::from(lease % 4)),
                }
            }
            Change::Delete { name, at_present } => {
                let name = format!("c/{}", name % 8);
                Request::Delete { expected: expected(&name, at_present), name: name.into() }
            }
            Change::Grant { lease, term_s } => {
                Request::Grant { lease: u64::from(lease % 4), term_s: u64::from(term_s) }
            }
            Change::KeepAlive { lease } => Request::KeepAlive { lease: u64::from(lease % 4) },
            Change::Revoke { lease } => Request::Revoke { lease: u64::from(lease % 4) },
            Change::Pass { seconds } => {
                now += Duration::from_secs(u64::from(seconds));
                let Some(&lease) = machine.ended(now).first() else { continue };
                Request::Revoke { lease }
            }
        };
        let before = machine.revision();
        let (entries, reply) = machine.decide(&request, now);
        for entry in &entries {
            machine.apply(entry, now).expect("it was decided on this machine");
        }
        if let Reply::Done(revision) = reply {
            assert!(revision == before + 1 && machine.revision() == revision);
        }
        if !entries.is_empty() {
            journal.extend(frame(&serde_json::to_vec::<Vec<Entry>>(&entries).unwrap()));
        }
    }
    let found = read_journal(&journal).expect("it is whole");
    assert_eq!(found.snapshot(), machine.snapshot());
    let mut again = StateMachine::default();
    for entry in machine.snapshot() {
        again.apply(&entry, now).expect("a snapshot makes a machine");
    }
    assert_eq!((again.snapshot(), again.bytes()), (machine.snapshot(), machine.bytes()));
    input.texts.iter().for_each(|text| journal.extend(frame(text.as_bytes())));
    let _ = read_journal(&journal);
    for &(at, byte) in &input.edits {
        let at = usize::from(at) % journal.len();
        journal[at] = byte;
    }
    journal.truncate(input.cut.map_or(journal.len(), usize::from).min(journal.len()));
    let _ = read_journal(&journal);
});
