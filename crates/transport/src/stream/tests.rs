//! The places of borrowed frames when the peer has accepted only a part of earlier ones, and the order of the bytes.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::socket::Socket;
use crate::tls::{TlsChannel, TlsClient, TlsServer};

const FRAMING: Framing =
    Framing { header_bytes: 1, body_bytes: |_| Ok(0), frame_bytes_max: BUFFER_BYTES_BATCH * 2 };

/// Longer than any operation of a passing test takes.
const LONG: Duration = Duration::from_secs(60);

fn sockets() -> (Socket, Socket) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let socket = |end: UnixStream| Socket::new(OwnedFd::from(end), "test".to_owned()).expect("a socket");
    (socket(ours), socket(theirs))
}

fn pair() -> (StreamSender, Socket) {
    let (ours, theirs) = sockets();
    (StreamSender::new(Pipe::Plain(Arc::new(ours)), FRAMING, LONG).expect("memory"), theirs)
}

/// A pair whose first end encrypts.
fn tls_pair() -> (StreamSender, TlsChannel) {
    let folder = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(["test".to_owned()]).expect("a certificate");
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let (ours, theirs) = sockets();
    let server = TlsServer::from_files(&certificate, &key).expect("they fit").accept(ours).expect("a server");
    let client = TlsClient::from_ca_file(&certificate).expect("it can be read");
    let connecting = std::thread::spawn(move || {
        client.connect(theirs, "test", Instant::now() + LONG).expect("they agree")
    });
    // The client finishes first.
    while !connecting.is_finished() {
        server.try_read(&mut [0; 8]).expect("they agree");
        std::thread::sleep(Duration::from_micros(100));
    }
    while server.sends_after_reading() {
        server.try_read(&mut [0; 8]).expect("they agree");
    }
    let client = connecting.join().expect("it ends").expect("in time");
    (StreamSender::new(Pipe::Tls(Arc::new(server)), FRAMING, LONG).expect("memory"), client)
}

/// A slow peer that accepts some of the encrypted bytes is not given up, although no more can be encrypted yet.
#[test]
fn who_takes_a_part_of_what_was_encrypted_has_time_again() {
    let (mut sender, peer) = tls_pair();
    // These frames exceed the socket's buffer by less than the limit of encrypted bytes, so that no plaintext waits.
    let mut beyond = 0;
    while beyond < 8 {
        let (slot, filled) = sender.frame(16 << 10).expect("there is room");
        *filled += slot.len();
        beyond += u32::from(!sender.try_flush().expect("it is open"));
    }
    assert_eq!(sender.sent, sender.filled);
    let first = sender.gives_up_at().expect("it waits");
    // Lets clocks of any resolution tell the two times apart.
    std::thread::sleep(Duration::from_millis(20));
    let mut part = [0; 4 << 10];
    let mut left: usize = 64 << 10;
    while !sender.try_flush().expect("it is open") && left > 0 && sender.gives_up_at() == Some(first) {
        let Read::Bytes(bytes) = peer.socket.try_read(&mut part).expect("it is open") else { break };
        left = left.saturating_sub(bytes);
    }
    assert!(sender.gives_up_at().is_some_and(|at| at > first));
}

/// Reads everything that is available.
fn drain(socket: &Socket, into: &mut Vec<u8>) {
    let mut buffer = [0; 1 << 16];
    while let Read::Bytes(bytes) = socket.try_read(&mut buffer).expect("it is open") {
        into.extend_from_slice(&buffer[..bytes]);
    }
}

proptest! {
    /// Frames of any length. The peer accepts some bytes of each before the next one.
    #[test]
    fn frames_are_lent_at_multiples_of_eight(
        frames in prop::collection::vec((1_usize..40_000, 0_usize..60_000), 1..20),
    ) {
        let (mut sender, peer) = pair();
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for (at, &(bytes, taken)) in frames.iter().enumerate() {
            while sender.try_frame(bytes).expect("it is open").is_none() {
                drain(&peer, &mut received);
            }
            let (slot, filled) = sender.frame(bytes).expect("there is room");
            prop_assert!(slot.as_ptr().addr().is_multiple_of(FRAME_ALIGN_BYTES));
            prop_assert_eq!(slot.len(), bytes);
            slot.iter_mut().enumerate().for_each(|(byte, out)| *out = (byte * 7 + at) as u8);
            sent.extend_from_slice(slot);
            *filled += bytes;
            // Like the kernel, which accepts as much as there is room for.
            let waiting = sender.filled - sender.sent;
            let end = sender.sent + taken.min(waiting);
            let part = &bytemuck::cast_slice(&sender.buffer)[sender.sent..end];
            if !part.is_empty() {
                sender.sent += sender.pipe.try_write(&[IoSlice::new(part)]).expect("open").unwrap_or(0);
            }
            drain(&peer, &mut received);
        }
        while !sender.try_flush().expect("open") {
            drain(&peer, &mut received);
        }
        drain(&peer, &mut received);
        prop_assert!(sent == received);
        prop_assert!(sender.buffer.len() * FRAME_ALIGN_BYTES <= BUFFER_BYTES_BATCH);
    }
}

/// Frames of up to 4 MiB. The first four bytes tell the length.
const LONG_FRAMES: Framing = Framing {
    header_bytes: 4,
    body_bytes: |header| Ok(u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize),
    frame_bytes_max: 4 << 20,
};

/// A receiver that shares a budget, and its peer.
fn sharing(budget: &ReceiveBudget) -> (StreamReceiver, Socket) {
    let (ours, theirs) = sockets();
    let mut receiver =
        StreamReceiver::new(Pipe::Plain(Arc::new(ours)), LONG_FRAMES, Spin::new(0)).expect("memory");
    receiver.share_memory(budget);
    (receiver, theirs)
}

/// Sends bytes and receives in between. Returns the number of frames.
fn take_in(receiver: &mut StreamReceiver, peer: &Socket, mut bytes: &[u8]) -> Result<usize, Error> {
    let mut frames = 0;
    while !bytes.is_empty() {
        let piece = &bytes[..bytes.len().min(64 << 10)];
        bytes = &bytes[peer.try_write(piece)?.unwrap_or(0)..];
        while let Received::Frame(_) = receiver.try_receive()? {
            frames += 1;
        }
    }
    Ok(frames)
}

#[test]
fn long_frames_of_all_connections_share_their_memory() {
    let budget = ReceiveBudget::new(2 << 20);
    let mut long = vec![7; 1 << 20];
    long[..4].copy_from_slice(&((1_u32 << 20) - 4).to_le_bytes());
    let (begin, end) = long.split_at(900 << 10);
    let (mut one, to_one) = sharing(&budget);
    let (mut other, to_other) = sharing(&budget);
    // Half of a long frame holds memory. A third connection finds too little and fails alone.
    assert_eq!(take_in(&mut one, &to_one, begin).expect("there is room"), 0);
    assert_eq!(budget.used(), (1 << 20) - BUFFER_BYTES_BATCH);
    assert_eq!(take_in(&mut other, &to_other, begin).expect("there is room"), 0);
    let (mut third, to_third) = sharing(&budget);
    let error = take_in(&mut third, &to_third, begin).expect_err("there is no room");
    assert!(matches!(error, Error::BuffersFull { bytes_max, .. } if bytes_max == 2 << 20), "{error}");
    assert!(error.to_string().len() <= 200, "{error}");
    drop(third);
    // Short frames need none of it.
    let (mut short, to_short) = sharing(&budget);
    assert_eq!(take_in(&mut short, &to_short, &[0; 400]).expect("there is room"), 100);
    // Memory of closed connections and of finished frames is available again.
    drop(other);
    assert_eq!(budget.used(), (1 << 20) - BUFFER_BYTES_BATCH);
    let (mut other, to_other) = sharing(&budget);
    take_in(&mut other, &to_other, begin).expect("there is room");
    assert_eq!(take_in(&mut one, &to_one, end).expect("the frame before it"), 1);
    assert_eq!(budget.used(), (1 << 20) - BUFFER_BYTES_BATCH, "it is short again");
    assert_eq!(take_in(&mut one, &to_one, &long).expect("there is room"), 1);
    drop((one, other));
    assert_eq!(budget.used(), 0);
}
