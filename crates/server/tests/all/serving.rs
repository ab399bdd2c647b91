//! A server in this process and clients over every transport: what a client sees is what a table in its own process would
//! have answered.

use std::time::Instant;

use sanderling_store::{Init, Optimizer, PushScale, Table, TableConfig};
use sanderling_testkit::{DIM, LONG, RawClient, TABLE, TestServer, rows};
use sanderling_transport::Connection;
use sanderling_wire::*;

const KINDS: [&str; 3] = ["tcp", "unix", "shm"];

fn embedded() -> Table {
    let (init, optimizer) =
        (Init::Uniform { bound: 0.5 }, Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial: 0.0, l2: 0.0 });
    Table::new(TableConfig { seed: 7, ..TableConfig::single("t", 4, init, optimizer) }).unwrap()
}

#[test]
fn every_transport_answers_as_a_table_here() {
    let place = TestServer::new(|_| {});
    let keys: Vec<u64> = (0..500).map(|key| key * key).collect();
    let mut sequence = 0;
    for kind in KINDS {
        let mut peer = RawClient::new(&place.address(kind));
        assert_eq!(peer.local_url, place.address("shm").to_string());
        let (model, table) = (embedded(), peer.create(kind, TABLE).unwrap());
        assert_eq!(peer.create(kind, TABLE), Ok(table), "the same again");
        let mut expected = vec![0.0; keys.len() * DIM as usize];
        for round in 0..5 {
            model.pull(&keys, sanderling_store::Absent::Init, &mut expected, None).unwrap();
            let (found, absent) = peer.pull(table, &keys).unwrap();
            let half = keys.len() / 2;
            assert_eq!(found, expected, "{kind}");
            assert_eq!(absent, if round == 0 { (0..500).collect() } else { (half..500).collect::<Vec<_>>() });
            let some = &keys[..half];
            model.push(some, &vec![0.25; half * 4], PushScale::default()).unwrap();
            sequence += 1;
            assert_eq!(peer.push(table, sequence, some, 0.25), Ok(false));
            assert_eq!(peer.push(table, sequence, some, 0.25), Ok(true), "sent again");
        }
    }
    let server = place.server();
    assert_eq!(server.control().tables().len(), KINDS.len());
    let pulls = server.control().stats(StatsScope::Commands);
    assert_eq!(pulls.iter().find(|row| row.command == "pull").unwrap().summary.count, 15);
}

#[test]
fn many_requests_are_under_way_at_once() {
    let place = TestServer::new(|_| {});
    for kind in KINDS {
        let mut peer = RawClient::new(&place.address(kind));
        let table = peer.create("t", TABLE).unwrap();
        let (format, absent) = (RowFormat::F32, Absent::Init);
        let keys: Vec<u64> = (0..2000).collect();
        // 600 replies of 32 KB are far more than all buffers together hold: who sends must wait for who receives.
        let agreed = peer.agreed;
        let Connection { mut sender, mut receiver } = peer.connection;
        std::thread::scope(|scope| {
            let keys = &keys;
            scope.spawn(move || {
                for at in 0..600 {
                    let pull = Request::Pull(Pull { table, dim: DIM, absent, format, keys: &keys[at..] });
                    let bytes = pull.frame_bytes().unwrap();
                    let mut slot = sender.frame(bytes).unwrap();
                    pull.encode(&agreed, at as u64, 0, &mut slot).unwrap();
                    slot.commit(bytes);
                    sender.flush().unwrap();
                }
            });
            for at in 0..600 {
                let bytes = receiver.receive(Some(Instant::now() + LONG)).unwrap().unwrap();
                let Ok(Parsed::Frame(frame)) = Frame::parse(bytes, &agreed) else { panic!("no frame") };
                assert_eq!(frame.header.id, at as u64, "{kind}");
                assert_eq!(rows(Reply::decode(&frame).unwrap()).0.len(), (2000 - at) * 4);
            }
        });
    }
}
