//! Bytes that are no frames, frames that are cut or damaged, and connections that nobody uses, to a server and to a client.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use sanderling_client::{ClientError, Cluster, ConnectOptions, RemoteTable};
use sanderling_transport::Address;
use sanderling_wire::{Agreed, Features, HEADER_BYTES, Hello, Offer, Push, Request, body_bytes};

use super::{TO_FILE, Witness, cluster, config, eventually, options, pull};
use crate::process::Process;
use sanderling_testkit::LONG;

pub(crate) fn raw(address: &Address) -> TcpStream {
    let Address::Tcp(endpoints) = address else { panic!("{address} is not TCP") };
    let stream = TcpStream::connect(("127.0.0.1", endpoints[0].port)).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn encoded(request: &Request<'_>, agreed: &Agreed) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let length = request.encode(agreed, 1, 0, &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

pub(crate) fn hello(offer: Offer) -> Vec<u8> {
    encoded(&Request::Hello(Hello { offer, token: "", name: "raw" }), &Agreed::BEFORE_HELLO)
}

fn plain_hello() -> Vec<u8> {
    hello(Offer::of(Features::NONE))
}

/// One whole frame of a server.
pub(crate) fn receive(stream: &mut TcpStream) -> Vec<u8> {
    let mut frame = vec![0; HEADER_BYTES];
    stream.read_exact(&mut frame).unwrap();
    let body = body_bytes(frame[..].try_into().unwrap()).unwrap();
    frame.resize(HEADER_BYTES + body, 0);
    stream.read_exact(&mut frame[HEADER_BYTES..]).unwrap();
    frame
}

/// A connection that has said hello.
fn greeted(address: &Address) -> TcpStream {
    let mut stream = raw(address);
    stream.write_all(&plain_hello()).unwrap();
    receive(&mut stream);
    stream
}

const GREETED: Agreed = Agreed { version: 1, features: Features::NONE, frame_bytes_max: 1 << 20 };

/// A push of ones to key 5 of table 1 of [`config`].
fn push_frame() -> Vec<u8> {
    let (client, sequence, keys, counts, grads) = (99, 1, &[5][..], &[1][..], &[-1.0, -1.0][..]);
    encoded(
        &Request::Push(Push {
            table: 1,
            client,
            sequence,
            continues: false,
            dim: 2,
            lr_scale: 1.0,
            keys,
            counts,
            grads,
        }),
        &GREETED,
    )
}

#[test]
fn what_is_no_frame_closes_its_connection_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), TO_FILE, "");
    let address = &process.addresses[0];
    let table = RemoteTable::create(&cluster(address, LONG), &config("t")).unwrap();
    let witness = Witness::start(address);
    let files = process.files();
    let four_gib = (20, 0xFFFF_FFF8_u32.to_le_bytes().to_vec());
    let changes = [four_gib, (20, vec![7, 0, 0, 0]), (4, vec![9]), (5, vec![200]), (40, vec![0xAA])];
    for is_greeted in [false, true] {
        let good = if is_greeted { push_frame() } else { plain_hello() };
        let changed = changes.iter().map(|(at, bytes)| {
            let mut frame = good.clone();
            frame[*at..at + bytes.len()].copy_from_slice(bytes);
            frame
        });
        let others = [b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec(), vec![0; 64], vec![0xFF; 5000]];
        for bytes in others.into_iter().chain(changed) {
            let mut stream = if is_greeted { greeted(address) } else { raw(address) };
            // The server may have seen enough before all is sent.
            let _ = stream.write_all(&bytes);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.len() < 2000, "{bytes:?}: {} bytes", answer.len());
        }
        witness.goes_on();
    }
    assert_eq!(pull(&table, 5).unwrap(), 0.0, "a damaged push was applied");
    // The one of the table's cluster came after the count.
    eventually("connections are left over", || process.files() <= files + 1);
    witness.end();
}

#[test]
fn a_frame_cut_at_any_byte_is_not_applied_and_half_open_connections_cost_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), TO_FILE, "");
    let address = &process.addresses[0];
    let table = RemoteTable::create(&cluster(address, LONG), &config("t")).unwrap();
    let witness = Witness::start(address);
    pull(&table, 5).unwrap();
    let files = process.files();
    let (hello, push) = (plain_hello(), push_frame());
    let mut open: Vec<TcpStream> = Vec::new();
    for bytes in 0..push.len() {
        greeted(address).write_all(&push[..bytes]).unwrap();
        // These stay, with half a frame.
        let mut stream = greeted(address);
        stream.write_all(&push[..bytes]).unwrap();
        open.push(stream);
    }
    for bytes in 0..hello.len() {
        raw(address).write_all(&hello[..bytes]).unwrap();
        let mut stream = raw(address);
        stream.write_all(&hello[..bytes]).unwrap();
        open.push(stream);
    }
    witness.goes_on();
    assert_eq!(pull(&table, 5).unwrap(), 0.0, "half a push was applied");
    // Who never says hello is closed in time, by the server.
    let closed = open.last_mut().unwrap().read_to_end(&mut Vec::new());
    let is_over = closed.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true);
    assert!(is_over, "the server waits for ever: {closed:?}");
    drop(open);
    eventually("connections are left over", || process.files() <= files);
    let mut stream = greeted(address);
    stream.write_all(&push).unwrap();
    receive(&mut stream);
    assert_eq!(pull(&table, 5).unwrap(), 1.0);
    witness.end();
}

/// `reply` is what a server says to a hello before it says nothing more, or ends.
fn false_server(reply: Vec<u8>, ends: bool, patience: Duration) -> ClientError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let serving = std::thread::spawn(move || {
        let mut open = Vec::new();
        listener.set_nonblocking(true).unwrap();
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            let Ok((mut stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            stream.set_nonblocking(false).unwrap();
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(&reply);
            if !ends {
                open.push(stream);
            }
        }
    });
    let options = ConnectOptions { connect_timeout: patience, ..options(patience) };
    let error = Cluster::connect(std::slice::from_ref(&address), options).unwrap_err();
    stop.send(()).unwrap();
    serving.join().unwrap();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    error
}

#[test]
fn what_a_false_server_says_is_an_error_of_its_kind() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), TO_FILE, "");
    let mut stream = raw(&process.addresses[0]);
    stream.write_all(&plain_hello()).unwrap();
    let good = receive(&mut stream);
    let change = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    for (what, reply, ends) in [
        ("silence", Vec::new(), false),
        ("an end", Vec::new(), true),
        ("another protocol", b"HTTP/1.1 400 Bad Request\r\n\r\n and so on".to_vec(), true),
        ("4 GiB", change(20, &0xFFFF_FFF8_u32.to_le_bytes()), false),
        ("64 MiB that never come", change(20, &((64_u32 << 20) - 32).to_le_bytes()), false),
        ("half a frame", good[..good.len() / 2].to_vec(), false),
        ("a damaged byte", change(good.len() - 1, &[0xAA]), false),
    ] {
        let error = false_server(reply, ends, Duration::from_millis(300));
        assert!(matches!(error, ClientError::Late { .. }), "{what}: {error:?}");
    }
    for (what, reply) in [("another version", change(4, &[9])), ("an unknown kind", change(5, &[200]))] {
        let error = false_server(reply, false, LONG);
        assert!(matches!(error, ClientError::Protocol { .. }), "{what}: {error:?}");
    }
}
