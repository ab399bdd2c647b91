//! `ctl save` and `ctl restore` of a running cluster: all replicas of all groups have the rows of the checkpoint, also
//! after slots and pinned tables have moved, and a primary that dies in the middle leaves the present rows.

use std::process::Command;

use sanderling_client::{Cluster, RemoteTable};
use sanderling_registry::{PlannedMove, begin_moves, layout};
use sanderling_store::{Absent, Init, Optimizer, PushScale, TableConfig};

use super::{LONG, Place, ctl};

const ROWS: u64 = 60_000;
const PINNED_ROWS: u64 = 100;

/// Creates a table that counts pushes, unless it is there.
fn table(cluster: &std::sync::Arc<Cluster>, name: &str) -> RemoteTable {
    RemoteTable::create(cluster, &config(name)).unwrap()
}

fn config(name: &str) -> TableConfig {
    let adagrad = Optimizer::Adagrad { lr: 1.0, eps: 1e-10, initial: 0.0, l2: 0.0 };
    TableConfig::single(name, 2, Init::Zero, adagrad)
}

fn push(table: &RemoteTable, rounds: usize) {
    let keys: Vec<u64> = (0..ROWS).collect();
    for _ in 0..rounds {
        table.push(&keys, &vec![-1.0; 2 * keys.len()], PushScale::default()).unwrap();
    }
}

/// All rows with their state, their versions and the use clock's reading.
fn rows(place: &Place, name: &str) -> Vec<(u64, u32, u32, Vec<u32>)> {
    let table = RemoteTable::open(&place.connect(), name).unwrap();
    let mut all = Vec::new();
    let read = table.export(|block| {
        for (at, &key) in block.keys.iter().enumerate() {
            let weights = block.weights[at * 2..][..2].iter();
            let values = weights.chain(&block.states[at * 2..][..2]).map(|value| value.to_bits()).collect();
            all.push((key, block.versions[at], block.last_uses[at], values));
        }
    });
    read.unwrap();
    all.sort_unstable();
    all
}

fn move_slots(place: &Place) {
    let groups = layout(&*place.registry).unwrap().1.groups();
    let slots = (0..4096).filter(|slot| groups[*slot as usize] == 0 && slot % 3 == 0).collect();
    begin_moves(&*place.registry, &[PlannedMove { from: 0, to: 1, slots, pinned: vec![0] }]).unwrap();
    place.connect().settle(LONG).unwrap();
}

#[test]
fn a_checkpoint_replaces_the_rows_of_a_running_cluster() {
    let mut place = Place::with(2, "--rebalance off --data data");
    let url = place.keeper.url();
    let cluster = place.connect();
    let counters = table(&cluster, "counters");
    push(&counters, 3);
    let pinned = RemoteTable::create_pinned(&cluster, &config("pinned"), 0).unwrap();
    let (keys, grads) = ((0..PINNED_ROWS).collect::<Vec<u64>>(), vec![-1.0; 2 * PINNED_ROWS as usize]);
    pinned.push(&keys, &grads, PushScale::default()).unwrap();
    let (saved, saved_pinned) = (rows(&place, "counters"), rows(&place, "pinned"));
    assert_eq!(saved.len() as u64, ROWS);
    let answer = ctl(&["save", "named", "--registry", &url]);
    assert_eq!(answer["rows"], ROWS + PINNED_ROWS, "{answer}");

    push(&counters, 2);
    pinned.push(&keys, &grads, PushScale::default()).unwrap();
    push(&table(&cluster, "later"), 1);
    move_slots(&place);
    let before = rows(&place, "counters");
    assert_ne!(before, saved);
    // It dies while its group gets the rows.
    let restoring = Command::new(env!("CARGO_BIN_EXE_sanderling"))
        .args(["ctl", "restore", "named", "--registry", &url])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    place.kill_primary(1);
    let done = restoring.wait_with_output().unwrap();
    // Either it came first, or the rows of group 1 are those of before.
    let now = rows(&place, "counters");
    assert!(done.status.success() || now.iter().zip(&before).any(|(one, other)| one == other), "{done:?}");

    let answer = ctl(&["restore", "named", "--registry", &url]);
    assert_eq!(answer["rows"], ROWS + PINNED_ROWS, "{answer}");
    assert_eq!(rows(&place, "counters"), saved);
    // The group that has the tables pinned to group 0 now.
    assert_eq!(rows(&place, "pinned"), saved_pinned);
    let error = RemoteTable::open(&place.connect(), "later").unwrap_err().to_string();
    assert!(error.contains("later"), "{error}");
    // The table of before is gone, and its namesake takes pushes.
    let mut row = [0.0; 2];
    let error = counters.push(&[1], &row, PushScale::default()).unwrap_err().to_string();
    assert!(error.contains("no table"), "{error}");
    // The other replicas have the rows, too.
    (0..2).for_each(|group| place.kill_primary(group));
    assert_eq!(rows(&place, "counters"), saved);
    let after = table(&place.connect(), "counters");
    push(&after, 1);
    after.pull(&[7], Absent::Zero, &mut row, None).unwrap();
    let sum = |rounds: i32| (1..=rounds).map(|count| 1.0 / (count as f32).sqrt()).sum::<f32>();
    assert!((row[0] - sum(4)).abs() < 1e-5, "{row:?}");
}
