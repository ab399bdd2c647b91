//! Faults of peers, people and systems: each is a typed error that names the peer and the cause, and affects no other
//! connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::endpoints::{FRAME_BYTES_MAX, FRAMING, HEADER_BYTES, TestEndpoint, frame, kinds, within_a_minute};
use sanderling_transport::{
    Address, ConnectOptions, Connection, Error, ListenOptions, Listener, Received, connect,
};

/// A peer of ours that speaks raw bytes.
fn raw_pair(kind: &str) -> (Connection, Box<dyn Write>) {
    let mut place = TestEndpoint::new(kind);
    let listener = place.listener();
    let raw: Box<dyn Write> = match &place.address {
        Address::Unix(path) => Box::new(UnixStream::connect(path).unwrap()),
        Address::Tcp(endpoints) => Box::new(TcpStream::connect(endpoints[0].to_string()).unwrap()),
        other => panic!("no raw bytes over {other}"),
    };
    (listener.accept().unwrap().unwrap(), raw)
}

const RAW_KINDS: [&str; 2] = ["unix", "tcp"];

#[test]
fn a_stream_cut_at_every_byte() {
    let sizes = [0, 5, 16, 1];
    let stream: Vec<u8> = sizes.iter().flat_map(|&bytes| frame(bytes, bytes)).collect();
    let ends: Vec<usize> =
        (0..=sizes.len()).map(|n| sizes[..n].iter().map(|bytes| bytes + 8).sum()).collect();
    for kind in RAW_KINDS {
        for cut in 0..=stream.len() {
            let (mut ours, mut raw) = raw_pair(kind);
            raw.write_all(&stream[..cut]).unwrap();
            drop(raw);
            let whole = ends.iter().filter(|&&end| end <= cut).count() - 1;
            for &bytes in &sizes[..whole] {
                assert_eq!(
                    ours.receiver.receive(within_a_minute()).unwrap(),
                    Some(&frame(bytes, bytes)[..]),
                    "{kind} cut at {cut}"
                );
            }
            match (ours.receiver.receive(within_a_minute()), cut - ends[whole]) {
                (Ok(None), 0) => {}
                (Err(Error::Cut { bytes, .. }), part) => assert_eq!(bytes, part, "{kind} cut at {cut}"),
                (other, _) => panic!("{kind} cut at {cut}: {other:?}"),
            }
        }
    }
}

#[test]
fn one_byte_at_a_time() {
    for kind in RAW_KINDS {
        let (mut ours, mut raw) = raw_pair(kind);
        let (first, second) = (frame(1, 30), frame(2, 3));
        for &byte in &first[..first.len() - 1] {
            raw.write_all(&[byte]).unwrap();
            assert_eq!(ours.receiver.try_receive().unwrap(), Received::Nothing, "{kind}");
        }
        raw.write_all(&first[first.len() - 1..]).unwrap();
        raw.write_all(&second).unwrap();
        assert_eq!(ours.receiver.receive(within_a_minute()).unwrap(), Some(&first[..]), "{kind}");
        assert_eq!(ours.receiver.receive(within_a_minute()).unwrap(), Some(&second[..]), "{kind}");
    }
}

#[test]
fn lengths_that_lie() {
    for kind in RAW_KINDS {
        for (length, expected) in [
            (4u64 << 30, "a frame of 4294967304 bytes is longer than the limit of 300000"),
            (u64::MAX, "is longer than the limit of 300000"),
            (FRAME_BYTES_MAX as u64 - 7, "a frame of 300001 bytes is longer than the limit of 300000"),
            (0x5050_5450, "not a frame: not our protocol"),
        ] {
            let (mut ours, mut raw) = raw_pair(kind);
            raw.write_all(&length.to_le_bytes()).unwrap();
            let error = ours.receiver.receive(within_a_minute()).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains(&kind[..3]), "{kind}: {error}");
        }
        // The longest that is allowed is believed, and then cut.
        let (mut ours, mut raw) = raw_pair(kind);
        raw.write_all(&(FRAME_BYTES_MAX as u64 - 8).to_le_bytes()).unwrap();
        drop(raw);
        let error = ours.receiver.receive(within_a_minute()).unwrap_err();
        assert!(matches!(error, Error::Cut { bytes: 8, .. }), "{kind}: {error}");
    }
}

#[test]
fn our_own_frames_are_bounded_too() {
    for &kind in kinds() {
        let (mut server, _client) = TestEndpoint::new(kind).pair();
        let error = server.sender.frame(FRAME_BYTES_MAX + 1).unwrap_err();
        assert!(matches!(error, Error::FrameTooLong { bytes: 300_001, .. }), "{kind}: {error}");
    }
}

fn refuse(address: &str, listen: Option<&ListenOptions>, expected: &str) {
    let address: Address = address.parse().unwrap();
    let error = match listen {
        Some(options) => Listener::bind(&address, options).map(|_| ()).unwrap_err(),
        None => connect(&address, &ConnectOptions::new(FRAMING)).map(|_| ()).unwrap_err(),
    };
    assert!(error.to_string().contains(expected), "{address}: {error}, expected {expected}");
}

#[test]
fn errors_of_opening_name_the_address() {
    let plain = ListenOptions::new(FRAMING);
    let folder = tempfile::tempdir().unwrap();
    let path = format!("unix:{}", folder.path().join("s").display());
    let unix = Listener::bind(&path.parse().unwrap(), &plain).unwrap();
    let tcp = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &plain).unwrap();
    for address in [unix.address(), tcp.address()] {
        let address = address.to_string();
        refuse(&address, Some(&plain), &format!("{address}: already in use"));
    }
    let port = tcp.address().to_string();
    drop((unix, tcp));
    refuse(&path, None, &format!("{path}: connection refused"));
    refuse(&port, None, &format!("{port}: connection refused"));
    refuse("unix:/no/such/folder/s", Some(&plain), "unix:/no/such/folder/s: cannot create the socket's file");
    refuse("embedded:", None, "address \"embedded:\": there is no server to reach");
    refuse("embedded:", Some(&plain), "address \"embedded:\": there is no server");
    refuse("localhost:1,localhost:2", None, "lists several servers");
    refuse("localhost:1,localhost:2", Some(&plain), "lists several servers");
    let file = folder.path().join("plain");
    std::fs::write(&file, "not a socket").unwrap();
    refuse(&format!("unix:{}", file.display()), Some(&plain), "plain: is there already and is no socket");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "not a socket");
}

#[test]
fn frames_must_have_sensible_bounds() {
    for (header_bytes, frame_bytes_max, expected) in [
        (0, 10, "a header of 0 bytes"),
        (257, 1000, "a header of 257"),
        (8, 7, "frames of at most 7 bytes"),
        (8, 1 << 40, "possible"),
    ] {
        let mut framing = FRAMING;
        (framing.header_bytes, framing.frame_bytes_max) = (header_bytes, frame_bytes_max);
        refuse("127.0.0.1:0", Some(&ListenOptions::new(framing)), expected);
    }
}

#[test]
fn other_machines_are_let_in_only_on_purpose() {
    let place = TestEndpoint::new("tls");
    let options = |expose, insecure, token, tls: bool| ListenOptions {
        expose,
        insecure,
        token,
        tls: place.listen.tls.clone().filter(|_| tls),
        ..ListenOptions::new(FRAMING)
    };
    for address in ["0.0.0.0:0", "[::]:0"] {
        refuse(address, Some(&options(false, true, true, true)), "not a loopback address; set `expose`");
        refuse(address, Some(&options(true, false, false, true)), "exposed without TLS and a token");
        refuse(address, Some(&options(true, false, true, false)), "exposed without TLS and a token");
    }
    for allowed in [options(true, true, false, false), options(true, false, true, true)] {
        Listener::bind(&"0.0.0.0:0".parse().unwrap(), &allowed).unwrap();
    }
}

#[test]
fn a_socket_left_by_a_dead_server_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    // The standard library's listener leaves its file behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = Listener::bind(&Address::Unix(path.clone()), &ListenOptions::new(FRAMING)).unwrap();
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
    assert_eq!(mode & 0o777, 0o600, "for its owner only");
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn listeners_can_be_stopped() {
    for &kind in kinds() {
        let listener = TestEndpoint::new(kind).listener();
        let stopper = listener.stopper();
        let accepting = std::thread::spawn(move || listener.accept().map(|connection| connection.is_none()));
        stopper.stop();
        assert!(accepting.join().unwrap().unwrap(), "{kind}");
    }
}

#[test]
fn tls_with_whom_it_should_not_be() {
    // A server whose certificate is another's, one for another host, and none at all.
    let mut strange = TestEndpoint::new("tls");
    strange.connect.tls = TestEndpoint::new("tls").connect.tls;
    let mut elsewhere = TestEndpoint::new("tls");
    let (server, client) = elsewhere.certificates("elsewhere.example");
    (elsewhere.listen.tls, elsewhere.connect.tls) = (Some(server), Some(client));
    let mut plain = TestEndpoint::new("tls");
    plain.listen.tls = None;
    for (mut place, expected) in [
        (strange, "TLS: invalid peer certificate"),
        (elsewhere, "TLS: invalid peer certificate: certificate not valid for name \"localhost\""),
        (plain, "it does not talk TLS, and this connection does"),
    ] {
        let listener = place.listener();
        let (address, options) = (place.address.clone(), place.connect.clone());
        let client =
            std::thread::spawn(move || connect(&address, &options).map(|_| ()).unwrap_err().to_string());
        let mut server = listener.accept().unwrap().unwrap();
        let seen = server.receiver.receive(within_a_minute());
        assert!(!matches!(seen, Ok(Some(_))), "{seen:?}");
        drop(server);
        let error = client.join().unwrap();
        assert!(error.contains(expected) && error.contains("tcp://localhost"), "{error}");
    }
}

#[test]
fn who_talks_to_tls_without_it_is_told_so() {
    let mut place = TestEndpoint::new("tls");
    let listener = place.listener();
    let server = std::thread::spawn(move || {
        let mut connection = listener.accept().unwrap().unwrap();
        connection.receiver.receive(within_a_minute()).map(|_| ()).unwrap_err()
    });
    place.connect.tls = None;
    let mut client = connect(&place.address, &place.connect).unwrap();
    client.sender.frame(HEADER_BYTES).unwrap().write(&frame(0, 0));
    client.sender.flush().unwrap();
    let error = client.receiver.receive(within_a_minute()).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::TalksTls { .. }), "{error}");
    assert!(matches!(server.join().unwrap(), Error::Tls { .. }));
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    // By its number: looking up a name would take of the time, too.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("127.0.0.1:{}", silent.local_addr().unwrap().port()).parse().unwrap();
    let mut options = TestEndpoint::new("tls").connect;
    options.timeout = Duration::from_millis(500);
    let error = connect(&address, &options).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::ConnectTimeout { .. }), "{error}");
}

#[test]
fn tls_cut_without_farewell_is_a_cut() {
    let mut place = TestEndpoint::new("tls");
    let listener = place.listener();
    let Address::Tcp(endpoints) = &place.address else { panic!("tls is tcp") };
    // A man in the middle, who lets the handshake and one frame pass and then cuts the line.
    let middle = std::net::TcpListener::bind("localhost:0").unwrap();
    let through = Address::Tcp(vec![sanderling_transport::Endpoint {
        host: "localhost".to_owned(),
        port: middle.local_addr().unwrap().port(),
    }]);
    let to = endpoints[0].to_string();
    let (cut, is_cut) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (client, server) = (middle.accept().unwrap().0, TcpStream::connect(to).unwrap());
            let pump = |mut from: TcpStream, mut to: TcpStream| {
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                        let _ = to.write_all(&buffer[..bytes]);
                    }
                })
            };
            pump(client.try_clone().unwrap(), server.try_clone().unwrap());
            pump(server.try_clone().unwrap(), client.try_clone().unwrap());
            is_cut.recv().unwrap();
            client.shutdown(std::net::Shutdown::Both).unwrap();
            server.shutdown(std::net::Shutdown::Both).unwrap();
        });
        let server = scope.spawn(move || {
            let mut server = listener.accept().unwrap().unwrap();
            assert_eq!(server.receiver.receive(within_a_minute()).unwrap(), Some(&frame(1, 9)[..]));
            cut.send(()).unwrap();
            server.receiver.receive(within_a_minute()).map(|_| ()).unwrap_err()
        });
        let mut client = connect(&through, &place.connect).unwrap();
        client.sender.frame(17).unwrap().write(&frame(1, 9));
        client.sender.flush().unwrap();
        let error = server.join().unwrap();
        assert!(matches!(error, Error::Cut { .. }), "{error}");
    });
}
