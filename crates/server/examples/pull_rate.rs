//! How many pulls of 512 rows of 128 bytes per second a server in this process answers, per transport and number of
//! requests in flight: `cargo run --release -p sanderling-server --example pull_rate [ROWS] [SECONDS]`. Client and server
//! share the processors; what it prints is no promise.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // an example ends where something is wrong, and prints

use std::time::{Duration, Instant};

use sanderling_server::{Config, Server, framing};
use sanderling_transport::{ConnectOptions, Connection, connect};
use sanderling_wire::*;

const DIM: u32 = 32;
const KEYS: usize = 512;
const TABLE: &str =
    r#"{"blocks":[{"dims":32,"init":{"type":"uniform","bound":0.1},"optimizer":{"type":"sgd"}}]}"#;

fn send(connection: &mut Connection, agreed: &Agreed, id: u64, request: &Request<'_>) {
    let bytes = request.frame_bytes().unwrap();
    let mut slot = connection.sender.frame(bytes).unwrap();
    request.encode(agreed, id, 0, &mut slot).unwrap();
    slot.commit(bytes);
}

fn receive<T>(connection: &mut Connection, agreed: &Agreed, read: impl FnOnce(Reply<'_>) -> T) -> T {
    let bytes = connection.receiver.receive(Some(Instant::now() + Duration::from_secs(60))).unwrap().unwrap();
    let Parsed::Frame(frame) = Frame::parse(bytes, agreed).unwrap() else { panic!("not whole") };
    read(Reply::decode(&frame).unwrap())
}

fn main() {
    let mut args = std::env::args().skip(1).map(|text| text.parse::<u64>().unwrap());
    let (rows, seconds) = (args.next().unwrap_or(1_000_000), args.next().unwrap_or(2));
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config { runtime_dir: folder.path().into(), workers: 1, ..Config::default() };
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    let server = Server::start(&config, |event| println!("{event}")).unwrap();
    println!("{:24} {:>9} {:>12} {:>12}", "transport", "in flight", "pulls/s", "pings/s");
    for address in server.addresses() {
        let options = ConnectOptions::new(framing(config.frame_bytes_max));
        let mut peer = connect(address, &options).unwrap();
        let offer = Offer::of(Features::NO_CHECKSUM);
        let mut agreed = Agreed::BEFORE_HELLO;
        send(&mut peer, &agreed, 1, &Request::Hello(Hello { offer, token: "", name: "pull_rate" }));
        peer.sender.flush().unwrap();
        agreed = receive(&mut peer, &agreed, |reply| match reply {
            Reply::Hello(identity) => identity.agreed,
            other => panic!("{other:?}"),
        });
        let create = Create { home: Home::Sharded, name: "t", config: TABLE };
        send(&mut peer, &agreed, 2, &Request::Create(create));
        peer.sender.flush().unwrap();
        let (table, there) = receive(&mut peer, &agreed, |reply| match reply {
            Reply::Create(info) => (info.table, info.rows),
            other => panic!("{other:?}"),
        });
        let (counts, grads) = (vec![1; 1 << 14], vec![0.0; DIM as usize * (1 << 14)]);
        for first in (there..rows).step_by(1 << 14) {
            let keys: Vec<u64> = (first..rows.min(first + (1 << 14))).collect();
            let (counts, grads) = (&counts[..keys.len()], &grads[..keys.len() * DIM as usize]);
            let keys = &keys[..];
            let sequence = first + 1;
            let push = Push { table, client: 1, sequence, dim: DIM, lr: 1.0, keys, counts, grads };
            send(&mut peer, &agreed, 3, &Request::Push(push));
            peer.sender.flush().unwrap();
            receive(&mut peer, &agreed, |reply| assert!(matches!(reply, Reply::Push(_)), "{reply:?}"));
        }
        // Keys drawn beforehand, so that drawing them costs nothing here.
        let mut state = 1_u64;
        let batches: Vec<Vec<u64>> = (0..256)
            .map(|_| {
                (0..KEYS)
                    .map(|_| {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        (state >> 16) % rows
                    })
                    .collect()
            })
            .collect();
        let reply_bytes =
            PullShape { keys: KEYS, rows: KEYS, dim: DIM, format: RowFormat::F32 }.frame_bytes().unwrap();
        let (absent, format) = (Absent::Zero, RowFormat::F32);
        let body = vec![0; KEYS * 8];
        for in_flight in [1_u64, 4, 16] {
            let mut rates = Vec::new();
            for pings in [false, true] {
                let request = |at: u64| match pings {
                    false => Request::Pull(Pull {
                        table,
                        dim: DIM,
                        absent,
                        format,
                        keys: &batches[at as usize % 256],
                    }),
                    true => Request::Ping(Ping { reply_bytes: reply_bytes as u32 - 48, bytes: &body }),
                };
                let start = Instant::now();
                let (mut sent, mut received) = (0, 0);
                while start.elapsed() < Duration::from_secs(seconds) || received < sent {
                    while sent < received + in_flight && start.elapsed() < Duration::from_secs(seconds) {
                        send(&mut peer, &agreed, sent, &request(sent));
                        sent += 1;
                    }
                    peer.sender.flush().unwrap();
                    receive(&mut peer, &agreed, |reply| {
                        assert!(!matches!(reply, Reply::Failed(_)), "{reply:?}");
                    });
                    received += 1;
                }
                rates.push(received as f64 / start.elapsed().as_secs_f64());
            }
            let name = address.to_string();
            let name = name.split(['/', '-']).next().unwrap_or_default();
            println!("{name:24} {in_flight:>9} {:>12.0} {:>12.0}", rates[0], rates[1]);
        }
    }
    for row in server.control().stats(StatsScope::Commands) {
        println!("server time of {}: {:?}", row.command, row.summary);
    }
}
