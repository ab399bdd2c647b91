//! A group all of whose servers have ended: it is shown, is not begun anew by itself or too early, and takes rows again
//! after `ctl begin-anew`.

use std::process::Command;
use std::time::{Duration, Instant};

use sanderling_client::RemoteTable;
use sanderling_store::{Absent, Init, Optimizer, PushScale, TableConfig};
use serde_json::{Value, json};

use super::{LONG, Place, ctl};

const KEYS: [u64; 3] = [1, 2, 3];

fn view(place: &Place) -> Value {
    ctl(&["cluster", "--registry", &place.keeper.url()])
}

/// Pushes once to a new table; returns the row of the first key.
fn push_and_pull(place: &Place) -> f32 {
    let sgd = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
    let config = TableConfig::single("t", 1, Init::Zero, sgd);
    let table = RemoteTable::create(&place.connect(), &config).unwrap();
    table.push(&KEYS, &[-1.0; 3], PushScale::default()).unwrap();
    let mut rows = [0.0; KEYS.len()];
    table.pull(&KEYS, Absent::Zero, &mut rows, None).unwrap();
    rows[0]
}

fn begin_anew(place: &Place) -> (bool, String) {
    let program = env!("CARGO_BIN_EXE_sanderling");
    let words = ["ctl", "begin-anew", "--group", "0", "--registry", &place.keeper.url()];
    let done = Command::new(program).args(words).output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn a_group_whose_servers_have_all_ended_begins_anew() {
    let mut place = Place::new(1);
    assert_eq!(push_and_pull(&place), 1.0);
    let before = place.settled(0, 0);
    let (is_done, said) = begin_anew(&place);
    assert!(!is_done && said.contains("a server with the rows of group 0 runs"), "{said}");
    assert_eq!(view(&place)["lost_groups"], json!([]));

    (0..2).for_each(|at| place.kill(at));
    // At their former addresses they take their former places at once.
    (0..2).for_each(|at| place.start(at));
    let start = Instant::now();
    let catching_up = |view: &Value| {
        let servers = view["servers"].as_array().unwrap();
        servers.iter().filter(|server| server["role"] == "catching up" && server["rows"].is_u64()).count()
    };
    while catching_up(&view(&place)) < 2 {
        assert!(start.elapsed() < LONG, "{}", view(&place));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(view(&place)["lost_groups"], json!([0]));
    let after = place.record(0).unwrap();
    assert_eq!(after.group, before.group, "a server without rows has become the primary by itself");

    let (is_done, said) = begin_anew(&place);
    assert!(is_done && said.contains("group 0 begins anew without rows"), "{said}");
    let begun = place.settled(0, before.group.epoch + 1);
    assert_ne!(begun.group.history, before.group.history);
    assert_eq!(view(&place)["lost_groups"], json!([]));
    // The rows of before are gone.
    assert_eq!(push_and_pull(&place), 1.0);
    let (is_done, said) = begin_anew(&place);
    assert!(!is_done, "{said}");
}
