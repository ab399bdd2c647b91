//! `sanderling ps --kept`: tables that outlive a killed server, what the next one says, and what it refuses.

use std::path::Path;
use std::process::Command;

use crate::process::Process;
use sanderling_testkit::{RawClient, TABLE};
use sanderling_wire::{Fault, Reply, Request, Restore};

fn client(process: &Process) -> (RawClient, u32) {
    let mut client = RawClient::new(&process.addresses[0]);
    let table = client.create("t", TABLE).unwrap();
    (client, table)
}

/// The place of kept tables below a folder.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Folder,
    /// A file that stands for a device without a file system.
    Device,
}

/// A folder in which `kept` is such a place.
fn folder_with(place: Place) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    if place == Place::Device {
        std::fs::File::create(folder.path().join("kept")).unwrap().set_len(256 << 20).unwrap();
    }
    folder
}

/// What a start that fails says.
fn refused(folder: &Path, options: &str) -> String {
    let options = format!("ps --listen 127.0.0.1:0 --runtime-dir run {options}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling"));
    let ended = command.args(options.split(' ')).current_dir(folder).output().unwrap();
    assert!(!ended.status.success());
    String::from_utf8(ended.stderr).unwrap()
}

#[test]
fn the_next_server_has_every_push_that_a_killed_one_acknowledged() {
    for place in [Place::Folder, Place::Device] {
        let folder = folder_with(place);
        let keys: Vec<u64> = (0..20_000).collect();
        let mut expected = None;
        for round in 0..4 {
            let process = Process::start(folder.path(), "", "--kept kept");
            let (mut peer, table) = client(&process);
            if let Some(expected) = &expected {
                assert_eq!(peer.pull(table, &keys).unwrap(), *expected, "{place:?} {round}");
                // The last push of the server before, sent again: it is answered, and not applied again.
                assert_eq!(peer.push(table, round, &keys, 0.5), Ok(true), "{place:?} {round}");
                assert_eq!(peer.pull(table, &keys).unwrap(), *expected, "{place:?} {round}");
            }
            assert_eq!(peer.push(table, round + 1, &keys, 0.5), Ok(false), "{place:?} {round}");
            expected = Some(peer.pull(table, &keys).unwrap());
            process.signal("KILL");
            let (_, errors) = process.end();
            let found = errors.contains("table t: attached from")
                && errors.contains(": 20000 rows, nothing was interrupted");
            assert_eq!(found, round > 0, "{errors}");
            assert!(errors.contains("4 KiB"), "{errors}");
            assert!(
                errors.contains("kept/shard-0-of-1: tables outlive this process, not the loss of power"),
                "{errors}"
            );
        }
        let described = Command::new(env!("CARGO_BIN_EXE_sanderling"))
            .args(["inspect", "kept", "--json"])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let described = String::from_utf8(described.stdout).unwrap();
        let described: serde_json::Value = serde_json::from_str(described.trim()).unwrap();
        let table = &described["tables"][0];
        assert_eq!(
            (&table["name"], &table["rows"], &table["pushes"]),
            (&"t".into(), &20_000.into(), &4.into())
        );
    }
}

#[test]
fn a_start_says_what_its_tables_cannot_survive() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    for (options, reason) in [
        (
            "--kept kept --durability power",
            "cannot survive the loss of power; name a folder on persistent memory",
        ),
        (
            "--kept kept --durability most",
            "durability \"most\" is unknown: detect, process, power or emulate",
        ),
        ("--durability process", "durability needs a folder of kept tables"),
    ] {
        let said = refused(folder.path(), options);
        assert!(said.contains(reason), "{said}");
    }
    let process = Process::start(folder.path(), "", "--kept kept --durability emulate");
    // Its rows are updated in place.
    let refusal = RawClient::new(&process.addresses[0]).create("t", TABLE).unwrap_err();
    assert!(format!("{refusal:?}").contains("copy_on_write"), "{refusal:?}");
    process.signal("TERM");
    drop(process.end());
}

#[test]
fn kept_tables_and_checkpoints_go_together() {
    for place in [Place::Folder, Place::Device] {
        let folder = folder_with(place);
        let keys: Vec<u64> = (0..500).collect();
        let options = "--kept kept --data data";
        // A checkpoint, and a later push that only the kept table has.
        let process = Process::start(folder.path(), "", options);
        let (mut peer, table) = client(&process);
        peer.push(table, 1, &keys, 0.5).unwrap();
        let saved = peer.pull(table, &keys).unwrap();
        process.signal("TERM");
        assert!(process.end().0.success());
        let process = Process::start(folder.path(), "", options);
        let (mut peer, table) = client(&process);
        peer.push(table, 2, &keys, 0.5).unwrap();
        let later = peer.pull(table, &keys).unwrap();
        // Not under the tables in use.
        let restore = Request::Restore(Restore { name: "latest" });
        let refusal = peer.ask(&restore, |reply| matches!(reply, Reply::Restore(_))).unwrap_err();
        assert!(
            refusal.0 == Fault::BadRequest && refusal.1.contains("--forget --restore latest"),
            "{refusal:?}"
        );
        let busy = refused(folder.path(), "--kept kept");
        assert!(busy.contains("uses this "), "{busy}");
        process.signal("KILL");
        drop(process.end());
        let both = refused(folder.path(), &format!("{options} --restore latest"));
        assert!(both.contains("--forget drops them for latest"), "{both}");

        let process = Process::start(folder.path(), "", options);
        let (mut peer, table) = client(&process);
        assert_eq!(peer.pull(table, &keys).unwrap(), later);
        process.signal("KILL");
        drop(process.end());
        // Restored into the folder, and there after a kill.
        for options in [format!("{options} --forget --restore latest"), "--kept kept".to_owned()] {
            let process = Process::start(folder.path(), "", &options);
            let (mut peer, table) = client(&process);
            assert_eq!(peer.pull(table, &keys).unwrap(), saved, "{options}");
            process.signal("KILL");
            drop(process.end());
        }
    }
}

#[test]
fn a_dropped_table_does_not_come_back_and_its_name_is_free_at_once() {
    for place in [Place::Folder, Place::Device] {
        let folder = folder_with(place);
        let process = Process::start(folder.path(), "", "--kept kept");
        let (mut peer, table) = client(&process);
        peer.push(table, 1, &[1, 2, 3], 0.5).unwrap();
        let drop_it = Request::Drop("t");
        for round in 0..3 {
            peer.ask(&drop_it, |_| ()).unwrap();
            let table = peer.create("t", TABLE).unwrap();
            assert_eq!(peer.pull(table, &[1]).unwrap().1, [0], "round {round}");
            peer.push(table, 2 + round, &[1, 2, 3], 0.5).unwrap();
        }
        peer.ask(&drop_it, |_| ()).unwrap();
        process.signal("KILL");
        let process = Process::start(folder.path(), "", "--kept kept");
        let (_, errors) = {
            let (_peer, _table) = client(&process);
            process.signal("TERM");
            process.end()
        };
        assert!(!errors.contains("attached"), "{errors}");
    }
}
