//! One server address of every kind, with what is needed to listen at it and to connect to it. It sends nothing.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sanderling_transport::{
    Address, ConnectOptions, Connection, Framing, ListenOptions, Listener, TlsClient, TlsServer, connect,
};

/// A deadline that passes only where something has gone wrong: such a test fails rather than waits for ever.
pub(crate) fn within_a_minute() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

/// Frames of the tests: the length of the body as 8 bytes little endian, then the body.
pub(crate) const HEADER_BYTES: usize = 8;
/// Longest frame of the tests.
pub(crate) const FRAME_BYTES_MAX: usize = 300_000;
pub(crate) const FRAMING: Framing = Framing {
    header_bytes: HEADER_BYTES,
    body_bytes: |header| {
        let length = u64::from_le_bytes(header.try_into().map_err(|_| "short header".to_owned())?);
        if length == 0x5050_5450 { Err("not our protocol".to_owned()) } else { Ok(length as usize) }
    },
    frame_bytes_max: FRAME_BYTES_MAX,
};

/// The address of this machine on an RDMA device (`tests/guest_rdma.sh`).
const RDMA_HOST: &str = "SANDERLING_TEST_RDMA_HOST";
/// Frames in each direction after which a connection by RDMA has left TCP.
pub(crate) const ROUNDS_OVER_TCP: usize = 10;

/// The kinds of transports. Where a device is named, those by RDMA, of which a cold one still goes over TCP.
pub(crate) fn kinds() -> &'static [&'static str] {
    match std::env::var_os(RDMA_HOST) {
        None => &["shm", "unix", "tcp", "tls"],
        Some(_) => &["rdma", "rdma-cold"],
    }
}

/// A server's side and how a client reaches it. Files live as long as it does.
pub(crate) struct TestEndpoint {
    pub(crate) address: Address,
    pub(crate) listen: ListenOptions,
    pub(crate) connect: ConnectOptions,
    is_warm: bool,
    pub(crate) folder: tempfile::TempDir,
}

impl TestEndpoint {
    pub(crate) fn new(kind: &str) -> TestEndpoint {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().unwrap();
        let address = match kind {
            "unix" => format!("unix:{}", folder.path().join("socket").display()),
            "shm" => format!("shm:test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)),
            "rdma" | "rdma-cold" => format!("rdma://{}:0", std::env::var(RDMA_HOST).unwrap()),
            _ => "tcp://localhost:0".to_owned(),
        };
        let mut place = TestEndpoint {
            address: address.parse().unwrap(),
            listen: ListenOptions::new(FRAMING),
            connect: ConnectOptions::new(FRAMING),
            is_warm: kind == "rdma",
            folder,
        };
        (place.listen.expose, place.listen.insecure) = (kind.starts_with("rdma"), true);
        if kind == "tls" {
            let (server, client) = place.certificates("localhost");
            (place.listen.tls, place.connect.tls) = (Some(server), Some(client));
        }
        place
    }

    /// A certificate for `host` that signs itself, in files.
    pub(crate) fn certificates(&self, host: &str) -> (TlsServer, TlsClient) {
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        let (certificate, key) = (self.folder.path().join("cert.pem"), self.folder.path().join("key.pem"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        (TlsServer::from_files(&certificate, &key).unwrap(), TlsClient::from_ca_file(&certificate).unwrap())
    }

    pub(crate) fn listener(&mut self) -> Listener {
        let listener = Listener::bind(&self.address, &self.listen).unwrap();
        self.address = listener.address().clone();
        listener
    }

    /// Both ends of a new connection, server first.
    pub(crate) fn pair(&mut self) -> (Connection, Connection) {
        let listener = self.listener();
        let (address, options) = (self.address.clone(), self.connect.clone());
        // The handshake of TLS needs the server's side to be driven.
        let client = std::thread::spawn(move || connect(&address, &options).unwrap());
        let mut server = listener.accept().unwrap().unwrap();
        while !client.is_finished() {
            assert!(!matches!(server.receiver.try_receive(), Ok(sanderling_transport::Received::Frame(_))));
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut client = client.join().unwrap();
        for round in 0..if self.is_warm { ROUNDS_OVER_TCP } else { 0 } {
            for (from, to) in
                [(&mut client.sender, &mut server.receiver), (&mut server.sender, &mut client.receiver)]
            {
                from.frame(100).unwrap().write(&frame(round, 9));
                from.flush().unwrap();
                assert_eq!(to.receive(within_a_minute()).unwrap(), Some(&frame(round, 9)[..]));
            }
        }
        (server, client)
    }
}

/// A frame whose body has `bytes` bytes that follow from `seed`.
pub(crate) fn frame(seed: usize, bytes: usize) -> Vec<u8> {
    let body = (0..bytes).map(|at| (at.wrapping_mul(31) ^ seed ^ (at >> 8)) as u8);
    (bytes as u64).to_le_bytes().into_iter().chain(body).collect()
}
