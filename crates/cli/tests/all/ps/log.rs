//! `sanderling ps --log --lose 0s`, killed under load: no answered push is lost, none is applied twice.

use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use crate::process::{Process, counters};
use sanderling_testkit::RawClient;
use sanderling_transport::Address;
use sanderling_wire::{Fault, Push, Reply, Request};

/// Each push subtracts 0.5 from each weight.
pub(super) const TABLE: &str =
    r#"{"blocks":[{"dims":4,"init":{"type":"zero"},"optimizer":{"type":"sgd","lr":1.0}}]}"#;
const CLIENTS: u64 = 3;
/// Keys of a push.
const KEYS: u64 = 200;

/// The pushes of a client.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sent {
    /// Applied for sure since the load began.
    pub(super) applied: u64,
    /// The last one had no answer.
    pub(super) is_open: bool,
    sequence: u64,
}

pub(super) fn keys_of(client: u64) -> Vec<u64> {
    (client * KEYS..(client + 1) * KEYS).collect()
}

fn push(peer: &mut RawClient, table: u32, client: u64, sequence: u64) -> Result<bool, (Fault, String)> {
    let keys = keys_of(client);
    let (counts, grads) = (vec![1; keys.len()], vec![0.5; keys.len() * 4]);
    let push = Push {
        table,
        client: client + 1,
        sequence,
        continues: false,
        dim: 4,
        lr_scale: 1.0,
        keys: &keys,
        counts: &counts,
        grads: &grads,
    };
    let id = peer.send(&Request::Push(push)).map_err(|error| (Fault::Internal, error.to_string()))?;
    match peer.receive(|reply| match reply {
        Reply::Push(pushed) => pushed.repeated,
        other => panic!("{other:?}"),
    }) {
        Ok(Some((of, result))) if of == id => result,
        // The server was killed.
        other => Err((Fault::Draining, format!("{:?}", other.err()))),
    }
}

/// How often each row of a client was pushed.
fn pushed(peer: &mut RawClient, table: u32, client: u64) -> Vec<u64> {
    let (values, _) = peer.pull(table, &keys_of(client)).unwrap();
    let rows = values.chunks(4);
    rows.map(|row| {
        assert!(row.iter().all(|value| *value == row[0]), "a row of two states: {row:?}");
        (row[0] * -2.0) as u64
    })
    .collect()
}

/// Pushes until the server is gone.
pub(super) fn load(address: &Address, client: u64, sent: &Mutex<Sent>) {
    let mut peer = RawClient::new(address);
    let table = peer.create("t", TABLE).unwrap();
    loop {
        let sequence = {
            let mut sent = sent.lock().unwrap();
            sent.sequence += 1;
            sent.is_open = true;
            sent.sequence
        };
        let result = push(&mut peer, table, client, sequence);
        let mut sent = sent.lock().unwrap();
        match result {
            Ok(repeated) => {
                assert!(!repeated);
                sent.applied += 1;
                sent.is_open = false;
            }
            Err((Fault::Draining, _) | (Fault::Internal, _)) => return,
            Err((Fault::Busy { .. }, _)) => sent.is_open = false,
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn no_answered_push_is_lost_or_applied_twice() {
    let folder = tempfile::tempdir().unwrap();
    let rounds: u64 = std::env::var("DRILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let clients: Vec<Mutex<Sent>> = (0..CLIENTS).map(|_| Mutex::default()).collect();
    // By client, what each row had when the last load began.
    let mut before = vec![vec![0; KEYS as usize]; CLIENTS as usize];
    let options = "--data data --log log --lose 0s --save-every 1s --delta-every 1s";
    for round in 0..rounds {
        let process = Process::start(folder.path(), "", options);
        let address = process.addresses[0].clone();
        let mut peer = RawClient::new(&address);
        let table = peer.create("t", TABLE).unwrap();
        if round == 0 {
            // The reply to `create` waited for its group.
            let counted = counters(&address);
            let is_written = counted["log_groups"] > 0 && counted["log_bytes"] > 0;
            assert!(is_written && counted["log_refused_since_unix_ms"] == 0, "{counted:?}");
        }
        for ((client, sent), before) in (0..).zip(&clients).zip(&mut before) {
            let sent = &mut *sent.lock().unwrap();
            // All answered pushes, and of one without an answer any part.
            let found = pushed(&mut peer, table, client);
            let beyond = |(found, before): (&u64, &u64)| found.wrapping_sub(before + sent.applied);
            let open: Vec<u64> = found.iter().zip(&*before).map(beyond).collect();
            let most = u64::from(sent.is_open);
            assert!(open.iter().all(|&open| open <= most), "round {round}: {sent:?} and {open:?}");
            if sent.is_open {
                // Sent again: it is applied if it was not, and never twice.
                let again = match push(&mut peer, table, client, sent.sequence) {
                    Ok(false) if open.iter().all(|&open| open == 0) => 1,
                    Ok(true) if open.iter().all(|&open| open == 1) => 0,
                    Err((Fault::StalePush { .. }, _)) => 0,
                    other => panic!("round {round}: {other:?} after {open:?}"),
                };
                let expected: Vec<u64> = found.iter().map(|found| found + again).collect();
                assert_eq!(pushed(&mut peer, table, client), expected, "round {round}");
            }
            *before = pushed(&mut peer, table, client);
            (sent.applied, sent.is_open) = (0, false);
        }
        std::thread::scope(|scope| {
            for (client, sent) in (0..).zip(&clients) {
                let address = &address;
                scope.spawn(move || load(address, client, sent));
            }
            // The moment of the kill is any.
            std::thread::sleep(Duration::from_millis(300 + round * 431 % 1500));
            process.signal("KILL");
        });
        process.end();
    }
    assert!(before.iter().flatten().all(|&pushes| pushes > rounds), "{before:?}");
    let inspect = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling"));
        let said = command.arg("inspect").args(words).current_dir(folder.path()).output().unwrap();
        String::from_utf8(said.stdout).unwrap()
    };
    let found: serde_json::Value = serde_json::from_str(inspect(&["--json", "log"]).trim()).unwrap();
    let log = &found["logs"][0];
    assert!(
        log["rows"].as_u64() > Some(0) && log["damage"].is_null() && log["segments"].is_array(),
        "{found}"
    );
    assert!(inspect(&["log"]).contains("delta log in "), "{}", inspect(&["log"]));
}
