//! The same conversation over every transport: frames arrive whole, in order and aligned, and no other bytes arrive.

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::endpoints::{FRAME_BYTES_MAX, HEADER_BYTES, TestEndpoint, frame, kinds, within_a_minute};
use sanderling_transport::{Connection, Error, Received};

const BODY_BYTES_MAX: usize = FRAME_BYTES_MAX - HEADER_BYTES;

/// Answers every frame with itself until the peer has sent its last one, for which it waits without a deadline.
fn echo(mut connection: Connection) {
    while let Some(frame) = connection.receiver.receive(None).unwrap() {
        connection.sender.frame(frame.len()).unwrap().write(frame);
        connection.sender.flush().unwrap();
    }
}

fn check(kind: &str, spin_us: u32, sizes: &[usize], batch: usize) {
    let context = format!("{kind}, spin {spin_us}, batch {batch}");
    let mut place = TestEndpoint::new(kind);
    (place.listen.spin_us, place.connect.spin_us) = (spin_us, spin_us);
    let (server, client) = place.pair();
    let server = std::thread::spawn(move || echo(server));
    let (mut sender, mut receiver) = client.split();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (position, &bytes) in sizes.iter().enumerate() {
                sender.frame(HEADER_BYTES + bytes).unwrap().write(&frame(position, bytes));
                if position % batch == batch - 1 {
                    sender.flush().unwrap();
                }
            }
            sender.flush().unwrap();
            drop(sender);
        });
        let deadline = Some(Instant::now() + Duration::from_secs(60));
        for (position, &bytes) in sizes.iter().enumerate() {
            let got = receiver.receive(deadline).unwrap().unwrap_or_else(|| panic!("{context}: ended early"));
            assert_eq!(got.as_ptr() as usize % 8, 0, "{context}: not aligned");
            assert!(got == frame(position, bytes), "{context}: frame {position} of {bytes} bytes differs");
        }
        assert_eq!(receiver.receive(deadline).unwrap(), None, "{context}");
    });
    server.join().unwrap();
}

#[test]
fn every_size_arrives() {
    let mut sizes: Vec<usize> = (0..70).collect();
    sizes.extend([
        4095,
        4096,
        4097,
        65_535,
        65_536,
        65_537,
        BODY_BYTES_MAX - 1,
        BODY_BYTES_MAX,
        0,
        BODY_BYTES_MAX,
    ]);
    for &kind in kinds() {
        for spin_us in [0, 50] {
            for batch in [1, 3, 16] {
                check(kind, spin_us, &sizes, batch);
            }
        }
    }
}

#[test]
fn long_streams_arrive() {
    let sizes: Vec<usize> = (0..2000).map(|n: usize| n.wrapping_mul(2_654_435_761) % 20_000).collect();
    for &kind in kinds() {
        for batch in [1, 7] {
            check(kind, 50, &sizes, batch);
        }
    }
}

/// Each side sends more than all buffers hold before either reads anything.
#[test]
fn both_directions_may_be_full() {
    const FRAMES: usize = 100;
    for &kind in kinds() {
        let (server, client) = TestEndpoint::new(kind).pair();
        let full = [AtomicBool::new(false), AtomicBool::new(false)];
        std::thread::scope(|scope| {
            for ((mut sender, mut receiver), is_full) in
                [server.split(), client.split()].into_iter().zip(&full)
            {
                scope.spawn(move || {
                    for n in 0..FRAMES {
                        loop {
                            if let Some(slot) = sender.try_frame(FRAME_BYTES_MAX).unwrap() {
                                break slot.write(&frame(n, BODY_BYTES_MAX));
                            }
                            is_full.store(true, Ordering::Release);
                            std::thread::yield_now();
                        }
                        while !sender.try_flush().unwrap() {
                            is_full.store(true, Ordering::Release);
                            std::thread::yield_now();
                        }
                    }
                });
                let full = &full;
                scope.spawn(move || {
                    let deadline = Instant::now() + Duration::from_secs(60);
                    while !full.iter().all(|is_full| is_full.load(Ordering::Acquire)) {
                        assert!(
                            Instant::now() < deadline,
                            "{kind}: {FRAMES} frames never filled both directions"
                        );
                        std::thread::yield_now();
                    }
                    for n in 0..FRAMES {
                        let got = receiver.receive(within_a_minute()).unwrap().unwrap();
                        assert!(got == frame(n, BODY_BYTES_MAX), "{kind}: frame {n} differs");
                    }
                    // Until the peer has read all too.
                    assert_eq!(receiver.receive(within_a_minute()).unwrap(), None);
                });
            }
        });
    }
}

#[test]
fn frames_from_pieces() {
    for &kind in kinds() {
        let (server, mut client) = TestEndpoint::new(kind).pair();
        let server = std::thread::spawn(move || echo(server));
        let whole = frame(1, 200_000);
        // More pieces than the kernel takes at once, some of them empty.
        let pieces: Vec<_> =
            whole.chunks(100).flat_map(|piece| [IoSlice::new(piece), IoSlice::new(&[])]).collect();
        client.sender.frame(8).unwrap().write(&frame(0, 0));
        client.sender.send_vectored(&pieces).unwrap();
        assert_eq!(client.receiver.receive(within_a_minute()).unwrap(), Some(&frame(0, 0)[..]), "{kind}");
        assert!(client.receiver.receive(within_a_minute()).unwrap() == Some(&whole[..]), "{kind}");
        drop(client);
        server.join().unwrap();
    }
}

#[test]
fn deadlines_and_attempts_leave_the_connection_good() {
    for &kind in kinds() {
        let (mut server, mut client) = TestEndpoint::new(kind).pair();
        for spin_us in [0, 20_000] {
            let deadline = Instant::now() + Duration::from_micros(spin_us);
            let error = client.receiver.receive(Some(deadline)).unwrap_err();
            assert!(matches!(error, Error::Deadline { .. }), "{kind}: {error}");
            assert!(Instant::now() >= deadline, "{kind}: gave up early");
        }
        assert_eq!(client.receiver.try_receive().unwrap(), Received::Nothing, "{kind}");
        // An uncommitted frame is not sent.
        let _ = server.sender.frame(100).unwrap();
        server.sender.frame(100).unwrap().write(&frame(5, 3));
        server.sender.flush().unwrap();
        assert_eq!(client.receiver.receive(within_a_minute()).unwrap(), Some(&frame(5, 3)[..]), "{kind}");
        drop(server);
        assert_eq!(client.receiver.receive(within_a_minute()).unwrap(), None, "{kind}");
        assert_eq!(client.receiver.try_receive().unwrap(), Received::End, "{kind}");
    }
}

#[test]
fn a_peer_that_takes_nothing_is_given_up() {
    for &kind in kinds() {
        let mut place = TestEndpoint::new(kind);
        place.listen.write_timeout = Duration::from_millis(50);
        let (mut server, client) = place.pair();
        let error = loop {
            let sent = server.sender.frame(FRAME_BYTES_MAX).map(|slot| slot.write(&frame(0, BODY_BYTES_MAX)));
            let sent = sent.and_then(|()| server.sender.flush());
            if let Err(error) = sent {
                break error;
            }
        };
        // Over TCP the system may be first.
        let may_be_first = ["tcp", "tls", "rdma-cold"].contains(&kind);
        let is_given_up = matches!(error, Error::SendTimeout { .. })
            || may_be_first && matches!(error, Error::GivenUp { .. });
        assert!(is_given_up, "{kind}: {error}");
        drop(client);
    }
}

#[test]
#[should_panic(expected = "a frame whose header says Ok(3)")]
fn a_frame_that_contradicts_its_header_is_our_mistake() {
    let (mut server, _client) = TestEndpoint::new("unix").pair();
    server.sender.frame(100).unwrap().write(&frame(0, 3)[..10]);
}
