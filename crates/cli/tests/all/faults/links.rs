//! What is for slow links: rows in half precision, compression, pulls that are asked for twice. A relay counts what travels
//! and can hold a connection up.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use sanderling_client::{Cluster, Compression, ConnectOptions, Hedge, HedgeCounts, RemoteTable};
use sanderling_store::{Absent, Init, Optimizer, Pooling, PushScale, Table, TableConfig};
use sanderling_transport::Address;

use super::{TO_FILE, options};
use crate::process::Process;
use sanderling_testkit::{LONG, TestServer};
use sanderling_wire::StatsScope;

const DIM: usize = 8;
/// No connection.
const NONE: usize = usize::MAX;

/// The value of an IEEE 754 half, from its definition.
fn value(half: u16) -> f64 {
    let (sign, exponent, fraction) = (half >> 15, i32::from(half >> 10 & 31), f64::from(half & 1023));
    let magnitude = match exponent {
        0 => fraction * 2_f64.powi(-24),
        _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

/// The half that is nearest to a number, of two the one whose last bit is 0; what is too large is the largest. By looking at
/// all of them.
fn nearest(number: f32) -> f32 {
    let finite = (0..=u16::MAX).filter(|half| half >> 10 & 31 != 31);
    let by_distance = |half: &u16| ((value(*half) - f64::from(number)).abs(), half & 1);
    value(finite.min_by(|a, b| by_distance(a).partial_cmp(&by_distance(b)).unwrap()).unwrap()) as f32
}

/// Rows of all sizes: subnormal halves, halfway between two, too large.
fn gradients(keys: &[u64]) -> Vec<f32> {
    let mut state = 12345_u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f32 / (1_u64 << 31) as f32
    };
    let mut grads: Vec<f32> =
        (0..keys.len() * DIM).map(|at| (next() - 0.5) * 2_f32.powi(at as i32 % 40 - 26)).collect();
    let special =
        [1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 65504.0, 65519.9, 1e6, -1e10, 2_f32.powi(-25), 0.0];
    grads[..DIM].copy_from_slice(&special);
    grads
}

fn config(name: &str) -> TableConfig {
    TableConfig::single(name, DIM, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 })
}

fn table(cluster: &Arc<Cluster>, name: &str) -> RemoteTable {
    RemoteTable::create(cluster, &config(name)).unwrap()
}

fn connect(address: &Address, change: impl FnOnce(&mut ConnectOptions)) -> Arc<Cluster> {
    let mut options = options(LONG);
    change(&mut options);
    Cluster::connect(std::slice::from_ref(address), options).unwrap()
}

#[test]
fn rows_in_half_precision_are_rounded_to_the_nearest_over_every_transport() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), TO_FILE, "");
    let keys: Vec<u64> = (0..100).collect();
    let grads = gradients(&keys);
    let negated: Vec<f32> = grads.iter().map(|value| -value).collect();
    let rounded: Vec<f32> = grads.iter().map(|value| nearest(*value)).collect();
    let offsets: Vec<u32> = (0..=100).collect();
    for address in &process.addresses {
        for compression in [None, Some(Compression::Lz4), Some(Compression::Zstd)] {
            for f16_rows in [false, true] {
                let what = format!("{address} {compression:?} {f16_rows}");
                let servers = connect(address, |options| {
                    (options.f16_rows, options.compression) = (f16_rows, compression);
                });
                let table = table(&servers, &what);
                table.push(&keys, &negated, PushScale::default()).unwrap();
                let expected = if f16_rows { &rounded } else { &grads };
                let mut rows = vec![0.0; grads.len()];
                // The first request is made before anything is agreed on, the second after.
                for _ in 0..2 {
                    assert_eq!(table.pull(&keys, Absent::Zero, &mut rows, None).unwrap(), 0);
                    assert!(rows == *expected, "{what}");
                }
                let sum = Pooling::Sum;
                table.pull_pooled(&keys, None, &offsets, sum, Absent::Zero, &mut rows, None).unwrap();
                assert!(rows == *expected, "{what}, pooled");
            }
        }
    }
}

/// Short frames cut each push into many messages. The use clock, by which rows are evicted, counts pushes.
#[test]
fn a_push_in_several_messages_advances_the_use_clock_once() {
    let server =
        TestServer::new(|config| config.frame_bytes_max = sanderling_wire::limit::FRAME_BYTES_MIN as u32);
    let servers = connect(&server.address("tcp"), |_| {});
    let (remote, here) = (table(&servers, "t"), Table::new(config("t")).unwrap());
    let control = server.server().control();
    for keys in [0..5_000_u64, 2_000..2_001, 1_000..9_000] {
        let keys: Vec<u64> = keys.collect();
        let grads = vec![1.0; keys.len() * DIM];
        remote.push(&keys, &grads, PushScale::default()).unwrap();
        here.push(&keys, &grads, PushScale::default()).unwrap();
        assert_eq!(control.tables()[0].stats.pushes, here.stats().pushes);
    }
    let messages = control.stats(StatsScope::Commands);
    let messages = messages.iter().find(|row| row.command == "push").unwrap().summary.count;
    assert!(messages > 10, "{messages}: they were not cut");
    // All rows of one push have one reading of the clock.
    let mut found = last_uses(&remote);
    found.sort_unstable();
    let expected: Vec<(u64, u32)> = (0..9_000).map(|key| (key, here.get(key).unwrap().last_use)).collect();
    assert_eq!(found, expected);
}

/// Keys and last uses of all rows of a table.
fn last_uses(table: &RemoteTable) -> Vec<(u64, u32)> {
    let mut rows = Vec::new();
    table
        .export(|block| rows.extend(block.keys.iter().copied().zip(block.last_uses.iter().copied())))
        .unwrap();
    rows
}

/// Carries bytes between clients and a server, counts them, and can stop carrying answers.
struct Relay {
    address: Address,
    /// From clients, and from the server.
    carried: [Arc<AtomicU64>; 2],
    /// The connection, counted from 0, whose answers wait.
    held: Arc<AtomicUsize>,
}

impl Relay {
    fn start(server: &Address) -> Relay {
        let Address::Tcp(endpoints) = server else { panic!("{server} is not TCP") };
        let port = endpoints[0].port;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (carried, held) = (<[Arc<AtomicU64>; 2]>::default(), Arc::new(AtomicUsize::new(NONE)));
        let (counted, holding) = (carried.clone(), Arc::clone(&held));
        // Its threads end with the connections, and it with the test.
        std::thread::spawn(move || {
            for number in 0.. {
                let Ok((client, _)) = listener.accept() else { return };
                let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let [there, here] = counted.clone();
                std::thread::spawn(move || carry(client, server, &there, || false));
                let held = Arc::clone(&holding);
                std::thread::spawn(move || {
                    carry(back.0, back.1, &here, || held.load(Ordering::Relaxed) == number);
                });
            }
        });
        Relay { address, carried, held }
    }

    /// Bytes from clients and from the server since the last call.
    fn carried(&self) -> [u64; 2] {
        self.carried.each_ref().map(|count| count.swap(0, Ordering::Relaxed))
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, count: &AtomicU64, is_held: impl Fn() -> bool) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        while is_held() {
            std::thread::sleep(Duration::from_millis(1));
        }
        count.fetch_add(read as u64, Ordering::Relaxed);
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn what_was_asked_for_shortens_what_travels() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), TO_FILE, "");
    let relay = Relay::start(&process.addresses[0]);
    let keys: Vec<u64> = (0..4000).collect();
    // Rows that compress well.
    let grads = vec![-1.0; keys.len() * DIM];
    let carried = |compression: Option<Compression>, f16_rows: bool| {
        let servers = connect(&relay.address, |options| {
            (options.f16_rows, options.compression) = (f16_rows, compression);
        });
        let table = table(&servers, &format!("{compression:?} {f16_rows}"));
        table.push(&keys, &grads, PushScale::default()).unwrap();
        relay.carried();
        let mut rows = vec![0.0; grads.len()];
        table.pull(&keys[..100], Absent::Zero, &mut rows[..100 * DIM], None).unwrap();
        let few = relay.carried();
        table.pull(&keys, Absent::Zero, &mut rows, None).unwrap();
        assert!(rows.iter().all(|row| *row == 1.0));
        (few, relay.carried())
    };
    let (few, [asked, answered]) = carried(None, false);
    assert!(asked >= 4000 * 8 && answered >= 4000 * 4 * DIM as u64 && few[1] >= 100 * 4 * DIM as u64);
    let (few_halves, [_, halves]) = carried(None, true);
    assert!(halves * 100 < answered * 55 && few_halves[1] * 100 < few[1] * 60, "{halves} of {answered}");
    for compression in [Compression::Lz4, Compression::Zstd] {
        let (few_packed, [asked_packed, packed]) = carried(Some(compression), false);
        assert!(packed * 10 < answered, "{compression:?}: {packed} of {answered}");
        assert!(asked_packed * 10 < asked * 9, "{compression:?}: {asked_packed} of {asked}");
        // A short request has a compressed answer, too.
        assert!(few_packed[1] * 2 < few[1], "{compression:?}: {few_packed:?} of {few:?}");
    }
}

#[test]
fn a_pull_over_a_connection_that_is_held_up_is_answered_over_another() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), TO_FILE, "");
    let relay = Relay::start(&process.addresses[0]);
    let servers = connect(&relay.address, |options| {
        options.hedge = Some(Hedge::After(Duration::from_millis(200)));
    });
    let table = table(&servers, "t");
    let keys: Vec<u64> = (0..100).collect();
    let grads: Vec<f32> = (0..keys.len() * DIM).map(|at| -(at as f32)).collect();
    table.push(&keys, &grads, PushScale::default()).unwrap();
    let check = |key: u64| {
        let mut row = [0.0; DIM];
        assert_eq!(table.pull(&[key], Absent::Zero, &mut row, None).unwrap(), 0);
        let expected: Vec<f32> = (0..DIM).map(|at| (key as usize * DIM + at) as f32).collect();
        assert_eq!(row[..], expected, "the rows of another pull");
    };
    let many = || (0..400).for_each(|at| check(at % 100));
    many();
    let before = servers.hedges();
    assert_eq!(before.pulls, 400);
    // The first connection was the cluster's, to learn who is there; the second is that of all pulls so far.
    relay.held.store(1, Ordering::Relaxed);
    check(42);
    check(43);
    relay.held.store(NONE, Ordering::Relaxed);
    // The late answers come now, and are those of nobody.
    many();
    let HedgeCounts { pulls, hedged, won } = servers.hedges();
    assert!(
        pulls == 802 && hedged >= before.hedged + 2 && won >= before.won + 2,
        "{before:?} {hedged} {won}"
    );
    assert!(hedged * 20 <= pulls);
    // A push goes over one connection, and there it waits.
    relay.held.store(1, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let pushing = scope.spawn(|| table.push(&[7], &[-1.0; DIM], PushScale::default()));
        std::thread::sleep(Duration::from_millis(400));
        assert!(!pushing.is_finished());
        relay.held.store(NONE, Ordering::Relaxed);
        pushing.join().unwrap().unwrap();
    });
    let mut row = [0.0; DIM];
    table.pull(&[7], Absent::Zero, &mut row, None).unwrap();
    assert_eq!(row[0], (7 * DIM + 1) as f32);
}
