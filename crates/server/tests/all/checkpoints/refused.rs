//! What lies below a server's folder for checkpoints and is not whole, or not its own, or too much: it is refused, and stays.

use sanderling_server::{Config, LATEST, Server};
use sanderling_wire::Fault;

use super::{restore, save};
use sanderling_testkit::{RawClient, TABLE, TestServer};

/// A folder with files of rows and no manifest was a checkpoint once: neither is it taken for none, nor is it written to.
#[test]
fn a_lost_manifest_is_refused_and_its_rows_stay() {
    for shards in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let start = || {
            let mut config = Config { local: false, workers: 1, shards, ..Config::default() };
            config.listen = vec!["127.0.0.1:0".parse().unwrap()];
            config.data = Some(data.clone());
            Server::start(&config, |_| {})
        };
        let server = start().unwrap();
        let mut peer = RawClient::new(&server.addresses()[0]);
        let table = peer.create("t", TABLE).unwrap();
        let keys: Vec<u64> = (0..)
            .filter(|&key| shards == 1 || peer.push(table, key + 1, &[key], 0.5).is_ok())
            .take(10)
            .collect();
        if shards == 1 {
            peer.push(table, 1, &keys, 0.5).unwrap();
        }
        save(&mut peer, "other").unwrap();
        drop(peer);
        let rows = server.finish().unwrap().unwrap().rows;
        assert_eq!(rows, 10);

        let of = |name: &str| match shards {
            1 => data.join(name),
            _ => data.join(name).join("shard-0-of-2"),
        };
        let files = |name: &str| -> Vec<String> {
            let entries = std::fs::read_dir(of(name)).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.filter(|name| name.ends_with(".table")).collect();
            names.sort();
            names
        };
        let before = files("latest");
        assert!(!before.is_empty());
        let manifest = std::fs::read(of("latest").join("manifest.json")).unwrap();
        std::fs::remove_file(of("latest").join("manifest.json")).unwrap();
        let said = start().unwrap_err().to_string();
        assert!(said.contains("manifest.json is missing, but ") && said.contains("put it back"), "{said}");
        assert_eq!(files("latest"), before);
        // One that is empty is as good as none.
        std::fs::write(of("latest").join("manifest.json"), "").unwrap();
        assert!(start().unwrap_err().to_string().contains("manifest.json"));
        assert_eq!(files("latest"), before);
        std::fs::write(of("latest").join("manifest.json"), manifest).unwrap();
        let server = start().unwrap();
        assert_eq!(RawClient::new(&server.addresses()[0]).counter("rows"), 10);

        // The same while it runs, of whatever name; and of what is not a server's.
        std::fs::remove_file(of("other").join("manifest.json")).unwrap();
        let before = files("other");
        let mut peer = RawClient::new(&server.addresses()[0]);
        assert_eq!(save(&mut peer, "other"), Err(Fault::Damaged));
        assert_eq!(restore(&mut peer, "other"), Err(Fault::Damaged));
        assert_eq!(files("other"), before);
        let mut model = sanderling_store::CheckpointWriter::create(of("model")).unwrap();
        model.blob("model.json", b"{}").unwrap();
        model.commit().unwrap();
        assert_eq!(save(&mut peer, "model"), Err(Fault::Damaged));
        assert_eq!(sanderling_store::Checkpoint::open(of("model")).unwrap().blobs()[0].name, "model.json");
        save(&mut peer, "another").unwrap();
    }
}

#[test]
fn checkpoints_of_any_number_of_names_do_not_fill_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let place = TestServer::new(|config| {
        (config.data, config.checkpoints_max) = (Some(folder.path().to_path_buf()), 2);
    });
    let mut peer = RawClient::new(&place.address("tcp"));
    for name in ["a", "b/c", LATEST, "a"] {
        save(&mut peer, name).unwrap();
    }
    assert_eq!(save(&mut peer, "d"), Err(Fault::BadRequest));
    assert_eq!((peer.counter("checkpoints"), peer.counter("saves_failed")), (3, 0));
    assert!(peer.counter("checkpoint_bytes") > 0 && !folder.path().join("d").exists());
    std::fs::remove_dir_all(folder.path().join("b")).unwrap();
    save(&mut peer, "d").unwrap();
    assert_eq!(peer.counter("checkpoints"), 3);
}
