//! What is particular to frames over gRPC: who is admitted, what is too long, and what is said where something else is
//! spoken.

use std::os::unix::fs::PermissionsExt;
use std::sync::OnceLock;

use sanderling_client::{ClientError, Cluster, ConnectOptions, Connector, RemoteTable, TlsClient, addresses};
use sanderling_transport::{Address, Error};
use sanderling_wire::{Features, HEADER_BYTES, Offer};

use crate::peer::{LONG, Peer};
use crate::process::Process;
use crate::{PATIENCE, TO_FILE, Witness, cluster, config, eventually, options, pull, push};

/// One for all tests of this process, as a program has one.
pub(crate) fn connector() -> Connector {
    static CONNECTOR: OnceLock<Connector> = OnceLock::new();
    CONNECTOR.get_or_init(sanderling_control::connector).clone()
}

/// A client as small as can be, over whatever the address says.
pub(crate) fn peer(address: &Address) -> Peer {
    let mut peer = Peer::silent_by(address, Some(connector())).unwrap();
    peer.hello("", "").unwrap();
    peer
}

fn connect(address: &Address, change: impl FnOnce(&mut ConnectOptions)) -> Result<(), ClientError> {
    let mut options = options(PATIENCE);
    change(&mut options);
    let servers = Cluster::connect(std::slice::from_ref(address), options)?;
    assert_eq!(servers.transport(), "grpc-tls");
    let table = RemoteTable::create(&servers, &config("t"))?;
    push(&table, 1)?;
    assert!(pull(&table, 1)? >= 1.0);
    Ok(())
}

#[test]
fn token_and_tls_hold_over_grpc_as_over_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["cert", "other"] {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(path(&format!("{name}.pem")), made.cert.pem()).unwrap();
        std::fs::write(path(&format!("{name}.key")), made.signing_key.serialize_pem()).unwrap();
    }
    std::fs::write(path("token"), "secret\n").unwrap();
    std::fs::set_permissions(path("token"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let safe = "--no-local --token-file token --tls-cert cert.pem --tls-key cert.key";
    let process = Process::start_at(folder.path(), "grpc://127.0.0.1:0", 1, TO_FILE, safe);
    let address = &process.addresses[0];
    let believe = |name: &str| Some(TlsClient::from_ca_file(&path(&format!("{name}.pem"))).unwrap());
    let check = |ca: Option<&str>, token: &str, expected: &str| {
        let connected = connect(address, |options| {
            (options.tls, options.token) = (ca.and_then(believe), token.to_owned());
            // What the server says at once, however slow it is, and what may be tried again until the time is over.
            options.timeout = if ["connected", "token"].contains(&expected) { LONG } else { PATIENCE };
        });
        let said = connected.map_or_else(|error| error.to_string(), |()| "connected".to_owned());
        assert!(
            said.contains(expected) && (said.contains("grpc://") || said == "connected"),
            "{ca:?}: {said}"
        );
    };
    check(Some("cert"), "secret", "connected");
    check(Some("cert"), "wrong", "token");
    check(Some("cert"), "", "token");
    check(Some("other"), "secret", "certificate");
    check(None, "secret", "");
}

/// What no other attempt would change is said at once, over sockets and over gRPC.
#[test]
fn certificates_that_do_not_fit_are_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (name, is_ca) in [("cert", false), ("other", false), ("ca", true)] {
        let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        if is_ca {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        let key = rcgen::KeyPair::generate().unwrap();
        std::fs::write(path(&format!("{name}.pem")), params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }
    let start = |options: &str| {
        let listen = "127.0.0.1:0,grpc://127.0.0.1:0";
        Process::start_at(folder.path(), listen, 2, TO_FILE, &format!("--no-local {options}"))
    };
    let check = |address: &Address, ca: Option<&str>, expected: &str| {
        let options = ConnectOptions {
            tls: ca.map(|name| TlsClient::from_ca_file(&path(&format!("{name}.pem"))).unwrap()),
            connect_timeout: LONG,
            ..options(PATIENCE)
        };
        let since = std::time::Instant::now();
        let error = Cluster::connect(std::slice::from_ref(address), options).unwrap_err().to_string();
        assert!(error.contains(expected) && since.elapsed() < LONG / 4, "{address}, {ca:?}: {error}");
        assert_eq!(error.matches(&address.to_string()).count(), 1, "{error}");
    };
    let itself =
        "the server's certificate is itself a CA certificate; make a server certificate with CA:FALSE";
    let server = start("--tls-cert cert.pem --tls-key cert.key");
    server.addresses.iter().for_each(|address| check(address, Some("other"), "invalid peer certificate"));
    let no_tls_here = "it talks TLS, and this connection does not";
    server.addresses.iter().for_each(|address| check(address, None, no_tls_here));
    let server = start("--tls-cert ca.pem --tls-key ca.key");
    server.addresses.iter().for_each(|address| check(address, Some("ca"), itself));
    let server = start("");
    let no_tls_there = "it does not talk TLS, and this connection does";
    server.addresses.iter().for_each(|address| check(address, Some("cert"), no_tls_there));
}

#[test]
fn a_frame_that_is_too_long_ends_its_stream_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start_everywhere(folder.path(), TO_FILE, "--frame-max 1MiB");
    let address = &process.addresses[3];
    let witness = Witness::start(address);
    let files = process.files();
    for is_greeted in [false, true] {
        let mut peer = Peer::silent_by(address, Some(connector())).unwrap();
        if is_greeted {
            peer.hello("", "").unwrap();
        }
        // It says of itself that it is longer than the server takes, and is.
        let bytes = 4 << 20;
        let mut frame = crate::hello(Offer::of(Features::NONE));
        frame.resize(bytes, 0);
        frame[20..24].copy_from_slice(&((bytes - HEADER_BYTES) as u32).to_le_bytes());
        let mut connection = peer.connection;
        let sent = connection.sender.send_vectored(&[std::io::IoSlice::new(&frame)]);
        // The server may have seen enough before all is sent.
        assert!(matches!(sent, Ok(()) | Err(Error::Closed { .. } | Error::Carrier { .. })), "{sent:?}");
        let deadline = Some(std::time::Instant::now() + LONG);
        while let Ok(Some(answer)) = connection.receiver.receive(deadline) {
            assert!(answer.len() < 2000);
        }
    }
    witness.goes_on();
    eventually("connections are left over", || process.files() <= files);
    let said = std::fs::read_to_string(folder.path().join("errors")).unwrap();
    assert!(said.contains("grpc://127.0.0.1") && said.contains("longer than the limit"), "{said}");
    witness.end();
}

#[test]
fn what_is_spoken_elsewhere_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start_everywhere(folder.path(), TO_FILE, "");
    let port = |at: usize| process.addresses[at].to_string().rsplit(':').next().unwrap().to_owned();
    let witness = Witness::start(&process.addresses[3]);
    for (address, expected) in [
        (format!("grpc://127.0.0.1:{}", port(0)), "grpc://127.0.0.1"),
        (format!("tcp://127.0.0.1:{}", port(3)), "tcp://127.0.0.1"),
    ] {
        let error = Cluster::connect(&addresses(&address).unwrap(), options(PATIENCE)).unwrap_err();
        assert!(error.to_string().contains(expected), "{address}: {error}");
    }
    let ctl = format!("ctl --server 127.0.0.1:{} status", port(3));
    let ctl =
        std::process::Command::new(env!("CARGO_BIN_EXE_sanderling")).args(ctl.split(' ')).output().unwrap();
    let said = String::from_utf8(ctl.stderr).unwrap();
    assert!(said.contains("is this the control plane's port?"), "{said}");
    let bare = ConnectOptions { grpc: None, ..options(PATIENCE) };
    let error = Cluster::connect(&process.addresses[3..], bare).unwrap_err().to_string();
    assert!(error.contains("nothing that carries frames over gRPC"), "{error}");
    // A bare host and port after one of gRPC is gRPC.
    let found = addresses("grpc://a:1, b:2,tcp://c:3,d:4").unwrap();
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found, ["grpc://a:1", "grpc://b:2", "tcp://c:3", "tcp://d:4"]);
    // It is not left for a way that is faster.
    let fast = ConnectOptions { prefer_local: true, ..options(LONG) };
    let servers = Cluster::connect(&process.addresses[3..], fast).unwrap();
    assert_eq!(servers.transport(), "grpc");
    witness.end();
}

#[test]
fn a_server_that_ends_answers_and_saves_what_came_over_grpc() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start_everywhere(folder.path(), "", "--data data");
    let table = RemoteTable::create(&cluster(&process.addresses[3], LONG), &config("t")).unwrap();
    (0..100).for_each(|key| push(&table, key).unwrap());
    process.signal("TERM");
    let (status, errors) = process.end();
    assert!(status.success() && errors.contains("100 rows"), "{errors}");
}
