//! Kept tables on a device without a file system; a plain file stands for the device.

use std::path::{Path, PathBuf};
use std::process::Command;

use sanderling_store::{
    Absent, Durability, Init, KeptBytes, KeptText, Optimizer, PushScale, StoreError, Table, TableConfig,
    Writes, forget_all_kept, forget_kept, kept_tables,
};

const DEVICE: &str = "DEVICE_OF_A_KILLED_PROCESS";
const BATCH: u64 = 500;
const DIM: usize = 8;

fn config(name: &str) -> TableConfig {
    let optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
    TableConfig { writes: Writes::CopyOnWrite, ..TableConfig::single(name, DIM, Init::Zero, optimizer) }
}

fn device(bytes: u64) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    (dir, path)
}

fn open(root: &Path, name: &str) -> Result<Table, StoreError> {
    Table::kept_for(config(name), root, "a note", Durability::Emulate).map(|(table, _)| table)
}

/// Subtracts `times` from each weight of a batch.
fn push(table: &Table, batch: u64, times: f32) -> Result<(), StoreError> {
    let keys: Vec<u64> = (batch * BATCH..(batch + 1) * BATCH).collect();
    table.push(&keys, &vec![times; keys.len() * DIM], PushScale::default())
}

fn check(table: &Table, batch: u64, times: f32) {
    let keys: Vec<u64> = (batch * BATCH..(batch + 1) * BATCH).collect();
    let mut weights = vec![0.0; keys.len() * DIM];
    table.pull(&keys, Absent::Zero, &mut weights, None).unwrap();
    assert!(weights.iter().all(|weight| *weight == -times), "batch {batch} of {}", table.name());
}

#[test]
fn tables_share_a_device_and_grow_beside_each_other() {
    let (_dir, device) = device(64 << 20);
    let names = ["one", "another", "a third/with a strange name"];
    {
        let tables = names.map(|name| open(&device, name).unwrap());
        for batch in 0..20 {
            for (table, times) in tables.iter().zip(1..) {
                push(table, batch, times as f32).unwrap();
            }
        }
        let again = open(&device, "one").unwrap_err().to_string();
        assert!(again.contains("this process uses the table already"), "{again}");
        let found = kept_tables(&device).unwrap();
        assert_eq!(found.len(), 3, "also while they are used");
        assert!(found.iter().all(|table| table.rows == 20 * BATCH && table.note == "a note"));
    }
    for (name, times) in names.iter().zip(1..) {
        let (table, attached) = Table::kept(config(name), &device, "").unwrap();
        assert!(!attached.is_new && attached.rows == 20 * BATCH && attached.folder.starts_with(&device));
        (0..20).for_each(|batch| check(&table, batch, times as f32));
        table.clear();
        push(&table, 3, 7.0).unwrap();
        check(&table, 3, 7.0);
    }
    assert!(forget_kept(&device, "another").unwrap() && !forget_kept(&device, "another").unwrap());
    check(&open(&device, "one").unwrap(), 3, 7.0);
    assert_eq!(forget_all_kept(&device).unwrap().len(), 2);
    assert_eq!(kept_tables(&device).unwrap(), []);
}

/// A full device is a full table; the space of a table that is removed serves another.
#[test]
fn a_full_device_is_a_full_table() {
    let (_dir, device) = device(4 << 20);
    let mut filled = Vec::new();
    for name in ["first", "second"] {
        let table = open(&device, name).unwrap();
        let (batches, error) =
            (0..).find_map(|batch| Some((batch, push(&table, batch, 1.0).err()?))).unwrap();
        assert!(matches!(error, StoreError::TableFull { .. }), "{error}");
        (0..batches).for_each(|batch| check(&table, batch, 1.0));
        filled.push(batches);
        table.forget_kept().unwrap();
    }
    assert!(filled[0] > 10 && filled[1] + 2 > filled[0], "{filled:?} batches");
}

#[test]
fn other_content_is_refused_until_it_is_to_be_forgotten() {
    let (_dir, device) = device(4 << 20);
    // The file of another program that only stands where a device was meant.
    for at in [0, 1024] {
        let mut content = vec![0; 4 << 20];
        content[at] = 7;
        std::fs::write(&device, &content).unwrap();
        let refused = open(&device, "table").unwrap_err().to_string();
        assert!(refused.contains("a file with other content"), "{refused}");
        assert!(kept_tables(&device).is_err() && forget_all_kept(&device).is_err());
        assert!(std::fs::read(&device).unwrap() == content);
    }
    // A damaged directory.
    std::fs::write(&device, [&b"SNDRDAX\0"[..], &vec![7; (4 << 20) - 8]].concat()).unwrap();
    let refused = open(&device, "table").unwrap_err().to_string();
    assert!(refused.contains("other content") && refused.contains("--forget"), "{refused}");
    assert!(kept_tables(&device).is_err());
    assert!(forget_all_kept(&device).unwrap().is_empty());
    push(&open(&device, "table").unwrap(), 1, 1.0).unwrap();
    check(&open(&device, "table").unwrap(), 1, 1.0);
    // Only what lies below the folder is removed.
    assert!(forget_all_kept(&device.join("shard-1-of-2")).unwrap().is_empty());
    check(&open(&device, "table").unwrap(), 1, 1.0);
    std::fs::File::create(&device).unwrap().set_len(1000).unwrap();
    let small = open(&device, "table").unwrap_err().to_string();
    assert!(small.contains("it has 0 bytes"), "{small}");
}

#[test]
fn bytes_beside_tables_are_kept() {
    let (_dir, device) = device(4 << 20);
    let open = || KeptBytes::open(&device.join("shard-0-of-1/pushes"), 3000, Durability::Emulate).unwrap();
    {
        let bytes = open();
        bytes[2999].store(5, std::sync::atomic::Ordering::Relaxed);
        bytes.write_back(2999..3000);
    }
    assert_eq!(open()[2999].load(std::sync::atomic::Ordering::Relaxed), 5);
    assert_eq!(open()[0].load(std::sync::atomic::Ordering::Relaxed), 0);
    let text = || KeptText::open(&device.join("shard-0-of-1/history"), 4000, Durability::Emulate).unwrap();
    assert_eq!(text().read(), None);
    text().write(b"one").unwrap();
    assert_eq!(text().read().as_deref(), Some(&b"one"[..]));
}

/// A table that is dropped while a request still has it does not hold up the next one of its name.
#[test]
fn the_name_of_a_removed_table_is_free_at_once() {
    let (_dir, device) = device(16 << 20);
    let first = open(&device, "table").unwrap();
    push(&first, 1, 1.0).unwrap();
    first.forget_kept().unwrap();
    let second = open(&device, "table").unwrap();
    push(&second, 1, 2.0).unwrap();
    check(&first, 1, 1.0);
    drop(first);
    assert!(open(&device, "table").unwrap_err().to_string().contains("uses the table already"));
    check(&second, 1, 2.0);
    drop(second);
    check(&open(&device, "table").unwrap(), 1, 2.0);
}

/// A process that is killed leaves its device to the next one; while it lives, no other process gets it.
#[test]
fn a_device_has_one_process_at_a_time() {
    if let Ok(device) = std::env::var(DEVICE) {
        let table = open(Path::new(&device), "table").unwrap();
        push(&table, 2, 1.0).unwrap();
        std::fs::write(Path::new(&device).with_extension("pushed"), "").unwrap();
        loop {
            push(&table, 3, 1.0).unwrap();
        }
    }
    let (_dir, device) = device(16 << 20);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kept_device::a_device_has_one_process_at_a_time", "--test-threads=1", "-q"])
        .env(DEVICE, &device)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !device.with_extension("pushed").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the child ended");
        std::thread::yield_now();
    }
    let used = open(&device, "table").unwrap_err().to_string();
    assert!(used.contains("another process uses this device"), "{used}");
    assert_eq!(kept_tables(&device).unwrap().len(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let table = open(&device, "table").unwrap();
    check(&table, 2, 1.0);
    let pulled = table.len() as u64;
    assert!((BATCH..=2 * BATCH).contains(&pulled), "{pulled} rows");
}
