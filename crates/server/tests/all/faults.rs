//! Clients that are broken, hostile, slow, paused or killed: they learn what is wrong, and cost the others nothing.
#![allow(clippy::print_stderr)] // a skipped test says so

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use sanderling_server::Event;
use sanderling_testkit::{DIM, LONG, RawClient, TABLE, TestServer};
use sanderling_transport::Address;
use sanderling_wire::*;

/// In the environment of a process that is only a client: where the server is.
const CLIENT_OF: &str = "SANDERLING_TEST_CLIENT_OF";

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn raw(address: &Address) -> TcpStream {
    let Address::Tcp(endpoints) = address else { panic!("{address} is not TCP") };
    let stream = TcpStream::connect(("127.0.0.1", endpoints[0].port)).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn hello_frame() -> Vec<u8> {
    let hello = Request::Hello(Hello { offer: Offer::of(Features::NONE), token: "", name: "raw" });
    let mut bytes = vec![0; 4096];
    let length = hello.encode(&Agreed::BEFORE_HELLO, 1, 0, &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

#[test]
fn what_is_no_frame_closes_its_connection_only() {
    let place = TestServer::new(|_| {});
    let (address, mut other) = (place.address("tcp"), RawClient::new(&place.address("tcp")));
    let table = other.create("t", TABLE).unwrap();
    let hello = hello_frame();
    let change = |at: usize, bytes: &[u8]| {
        let mut frame = hello.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    for (what, bytes) in [
        ("another protocol", b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec()),
        ("zeros", vec![0; 64]),
        ("4 GiB", change(20, &0xFFFF_FFF8_u32.to_le_bytes())),
        ("64 MiB", change(20, &((64_u32 << 20) - 32).to_le_bytes())),
        ("1 MiB from one who is not known", change(20, &((1_u32 << 20) - 32).to_le_bytes())),
        ("another version", change(4, &[9])),
        ("an unknown kind", change(5, &[200])),
        ("a damaged byte", change(40, &[0xAA])),
    ] {
        let mut stream = raw(&address);
        // The server may have seen enough before all is sent.
        let _ = stream.write_all(&bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 2000, "{what}: {} bytes", answer.len());
        assert!(other.pull(table, &[1]).is_ok(), "{what}");
    }
    eventually("they are closed", || place.server().control().connections().len() == 1);
    // What is to be told of one is told after it is closed; of those whom nobody knows, of the first one of each worker.
    let is_lost = |event: &&Event| matches!(event, Event::Lost { .. });
    eventually("some are told of", || place.events.lock().unwrap().iter().filter(is_lost).count() >= 2);
    for event in place.events.lock().unwrap().iter().filter(is_lost) {
        assert!(!event.to_string().contains("no hello within"), "{event}: it was waited for");
    }
}

#[test]
fn many_who_talk_no_frames_fill_no_log() {
    let place = TestServer::new(|_| {});
    let address = place.address("tcp");
    let mut other = RawClient::new(&address);
    for _ in 0..1000 {
        let mut stream = raw(&address);
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert!(other.create("t", TABLE).is_ok());
    let is_lost = |event: &&Event| matches!(event, Event::Lost { .. });
    let told = place.events.lock().unwrap().iter().filter(is_lost).count();
    assert!((1..200).contains(&told), "{told}");
}

#[test]
fn a_frame_cut_at_any_byte_costs_its_connection_only() {
    let place = TestServer::new(|_| {});
    let (address, mut other) = (place.address("tcp"), RawClient::new(&place.address("tcp")));
    let hello = hello_frame();
    for bytes in 1..hello.len() {
        raw(&address).write_all(&hello[..bytes]).unwrap();
    }
    // Those who stay, with half a frame, cost nobody anything either.
    let halves: Vec<TcpStream> = (1..hello.len())
        .map(|bytes| {
            let mut stream = raw(&address);
            stream.write_all(&hello[..bytes]).unwrap();
            stream
        })
        .collect();
    assert!(other.create("t", TABLE).is_ok());
    drop(halves);
    eventually("they are closed", || place.server().control().connections().len() == 1);
}

#[test]
fn a_thousand_connections_are_served() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let needed = 3000;
    if limit.maximum.is_some_and(|files| files < needed) {
        eprintln!("skipped: only {:?} files may be open, {needed} are needed", limit.maximum);
        return;
    }
    let place = TestServer::new(|_| {});
    for kind in ["tcp", "unix"] {
        let mut peers: Vec<RawClient> = (0..1000).map(|_| RawClient::new(&place.address(kind))).collect();
        let table = peers[0].create("t", TABLE).unwrap();
        let (absent, format) = (Absent::Zero, RowFormat::F32);
        let pull = Request::Pull(Pull { table, dim: DIM, absent, format, keys: &[1, 2] });
        for _ in 0..3 {
            let ids: Vec<u64> = peers.iter_mut().map(|peer| peer.send(&pull).unwrap()).collect();
            for (peer, id) in peers.iter_mut().zip(ids) {
                assert_eq!(peer.answer(&pull, id, |_| ()), Ok(()));
            }
        }
        assert_eq!(place.server().control().connections().len(), 1000);
        drop(peers);
        eventually("all are gone", || place.server().control().connections().is_empty());
    }
}

#[test]
fn who_takes_no_answers_is_closed_and_holds_nobody_up() {
    let place = TestServer::new(|config| {
        config.workers = 1;
        config.write_timeout = Duration::from_millis(300);
    });
    for kind in ["tcp", "unix", "shm"] {
        let mut other = RawClient::new(&place.address(kind));
        let table = other.create(kind, TABLE).unwrap();
        let mut greedy = RawClient::new(&place.address(kind));
        let keys = vec![5; 10_000];
        let (absent, format) = (Absent::Zero, RowFormat::F32);
        let pull = Request::Pull(Pull { table, dim: DIM, absent, format, keys: &keys });
        // It asks for ever and never listens, until it is thrown out.
        let asking = std::thread::spawn({
            let pull_bytes = pull.frame_bytes().unwrap();
            let mut frame = vec![0_u64; pull_bytes / 8];
            let bytes: &mut [u8] = bytes_of(&mut frame);
            pull.encode(&greedy.agreed, 1, 0, bytes).unwrap();
            let frame = bytes.to_vec();
            move || {
                while greedy.connection.sender.frame(frame.len()).is_ok_and(|slot| {
                    slot.write(&frame);
                    true
                }) && greedy.connection.sender.flush().is_ok()
                {}
            }
        });
        while !asking.is_finished() {
            assert!(other.pull(table, &[1]).is_ok());
        }
        asking.join().unwrap();
        eventually("it is closed", || place.server().control().connections().len() == 1);
        drop(other);
        eventually("both are", || place.server().control().connections().is_empty());
    }
    let events = place.events.lock().unwrap();
    assert!(events.iter().any(|event| matches!(event, Event::Lost { .. })), "{events:?}");
}

fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    // Memory for a frame starts at a multiple of 8.
    bytemuck::cast_slice_mut(words)
}

/// Not a test of its own: the process that the next test pauses and kills. It pulls until it is killed.
#[test]
fn client_process() {
    let Ok(address) = std::env::var(CLIENT_OF) else { return };
    let mut peer = RawClient::new(&address.parse().unwrap());
    let table = peer.create("t", TABLE).unwrap();
    let keys: Vec<u64> = (0..5000).collect();
    let (absent, format) = (Absent::Zero, RowFormat::F32);
    loop {
        for _ in 0..8 {
            peer.send(&Request::Pull(Pull { table, dim: DIM, absent, format, keys: &keys })).unwrap();
        }
        for _ in 0..8 {
            peer.receive(|_| ()).unwrap();
        }
    }
}

/// A process that ends with the test, also when that fails: one that is paused would stay for ever.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_client_that_is_paused_or_killed_disturbs_nobody() {
    let place = TestServer::new(|config| {
        config.workers = 1;
        config.write_timeout = LONG;
    });
    for kind in ["tcp", "unix", "shm"] {
        let address = place.address(kind);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["faults::client_process", "--exact", "--nocapture"])
            .env(CLIENT_OF, address.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = Process(child.unwrap());
        let control = place.server().control();
        let busy = || control.connections().iter().any(|connection| connection.requests > 100);
        eventually("the client works", busy);
        kill_process(Pid::from_child(&child.0), Signal::STOP).unwrap();
        let mut other = RawClient::new(&address);
        let table = other.create("t", TABLE).unwrap();
        for sequence in 0..100 {
            assert!(other.push(table, sequence, &[1, 2, 3], 0.1).is_ok());
            assert!(other.pull(table, &[1, 2, 3]).is_ok());
        }
        assert_eq!(control.connections().len(), 2, "{kind}: a pause is not an end");
        drop(child);
        eventually("the killed one is gone", || control.connections().len() == 1);
        assert!(other.pull(table, &[1]).is_ok());
        drop(other);
        eventually("both are gone", || control.connections().is_empty());
    }
}

/// As those of another user are, who is refused.
#[test]
fn connections_that_cannot_be_accepted_hold_nobody_up() {
    let place = TestServer::new(|_| {});
    let address = place.address("shm");
    let Address::Shm(name) = &address else { panic!("{address}") };
    let name = format!("sanderling-shm-{}-{name}", rustix::process::geteuid().as_raw());
    let name = SocketAddr::from_abstract_name(name).unwrap();
    // Gone before they can be sent the memory. More than may wait.
    for _ in 0..1500 {
        drop(UnixStream::connect_addr(&name).unwrap());
    }
    assert!(RawClient::new(&address).create("t", TABLE).is_ok());
    let is_refused = |event: &&Event| matches!(event, Event::NotAccepted { .. });
    let told = place.events.lock().unwrap().iter().filter(is_refused).count();
    assert!((1..100).contains(&told), "{told}");
}

/// Processor time of a thread of this process so far, in ticks of 10 ms.
fn ticks_of(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("stat"));
    let stats: Vec<String> = tasks.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
    let stat = stats.iter().find(|stat| stat.contains(&format!("({name})"))).unwrap();
    // Fields 14 and 15, of which the first two are before.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// A client that has sent its last request, a save, is waited for without looking, and is answered if it is still there.
#[test]
fn who_is_gone_while_its_save_goes_on_costs_no_processor() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for kind in ["tcp", "unix", "shm"] {
        for stays in [false, true] {
            // No other test has so many workers.
            let place = TestServer::new(|config| (config.workers, config.data) = (9, Some(data.clone())));
            let others: Vec<RawClient> = (0..8).map(|_| RawClient::new(&place.address(kind))).collect();
            let mut peer = RawClient::new(&place.address(kind));
            let (id, stuck) = peer.save_stuck(&place, &data, &format!("{kind}-{stays}"));
            let RawClient { connection, agreed, .. } = peer;
            let (sender, receiver) = connection.split();
            drop(sender);
            let receiver = stays.then_some(receiver);
            let before = ticks_of("worker-8");
            std::thread::sleep(Duration::from_millis(300));
            let ticks = ticks_of("worker-8") - before;
            assert!(ticks < 15, "{kind} {stays}: {ticks} ticks of 30");
            drop(stuck);
            if let Some(mut receiver) = receiver {
                let frame = receiver.receive(Some(Instant::now() + LONG)).unwrap().unwrap();
                let Ok(Parsed::Frame(frame)) = Frame::parse(frame, &agreed) else { panic!("no frame") };
                assert_eq!(frame.header.id, id, "{kind}");
                assert!(matches!(receiver.receive(Some(Instant::now() + LONG)), Ok(None)), "{kind}");
            }
            eventually("it is closed", || place.server().control().connections().len() == others.len());
        }
    }
}

#[test]
fn too_many_slow_requests_are_refused_and_the_others_answered() {
    let place = TestServer::at(tempfile::tempdir().unwrap(), |_| {});
    let mut peer = RawClient::new(&place.address("unix"));
    // There is nowhere to save to, which every one of them learns, unless there are too many at once.
    for _ in 0..200 {
        peer.send(&Request::Save(Save { name: "x" })).unwrap();
    }
    for _ in 0..200 {
        let (_, result) = peer.receive(|_| ()).unwrap().unwrap();
        let (fault, reason) = result.unwrap_err();
        assert!(matches!(fault, Fault::UnknownCheckpoint | Fault::Busy { .. }), "{fault:?}: {reason}");
    }
    assert!(peer.create("t", TABLE).is_ok());
}
