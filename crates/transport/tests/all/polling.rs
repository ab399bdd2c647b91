//! One thread that serves many connections: all get their turns, and slow, dead or greedy peers do not affect the
//! others.

use std::time::{Duration, Instant};

use crate::endpoints::{FRAME_BYTES_MAX, TestEndpoint, frame, kinds};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sanderling_transport::{Connection, Error, Listener, Poller, Received, Token, Waker, connect};

/// Frames taken from one connection before the others have their turn.
const TURN: usize = 4;

/// Echoes for everybody until woken; returns the errors of those who failed.
fn serve(mut poller: Poller, joining: &std::sync::mpsc::Receiver<Connection>) -> Vec<Error> {
    let (mut ready, mut errors) = (Vec::<Token>::new(), Vec::new());
    let mut open = true;
    while open || !poller.is_empty() {
        if poller.wait(&mut ready, None).unwrap() {
            loop {
                match joining.try_recv() {
                    Ok(connection) => drop(poller.add(connection).unwrap()),
                    Err(error) => {
                        open = error == std::sync::mpsc::TryRecvError::Empty;
                        break;
                    }
                }
            }
        }
        for &token in &ready {
            let ended = answer(poller.connection(token).unwrap());
            if !matches!(ended, Ok(false)) {
                drop(poller.remove(token).unwrap());
                assert!(poller.connection(token).is_none());
                errors.extend(ended.err());
            }
        }
    }
    errors
}

/// Echoes a few frames. `true`: the peer has sent its last one.
fn answer(connection: &mut Connection) -> Result<bool, Error> {
    for _ in 0..TURN {
        // Room first: a request is taken only when it can be answered.
        let Some(slot) = connection.sender.try_frame(FRAME_BYTES_MAX)? else { return Ok(false) };
        match connection.receiver.try_receive()? {
            Received::Frame(frame) => slot.write(frame),
            Received::Nothing => break,
            Received::End => {
                return connection.sender.try_flush();
            }
        }
    }
    connection.sender.try_flush().map(|_| false)
}

/// A serving thread for `listener`, which accepts in another.
fn start(listener: Listener, spin_us: u32) -> (Waker, std::thread::JoinHandle<Vec<Error>>) {
    let poller = Poller::new(spin_us).unwrap();
    let waker = poller.waker();
    let (join, joining) = std::sync::mpsc::channel();
    let wake = waker.clone();
    std::thread::spawn(move || {
        while let Some(connection) = listener.accept().unwrap() {
            join.send(connection).unwrap();
            wake.wake();
        }
        drop(join);
        wake.wake();
    });
    (waker, std::thread::spawn(move || serve(poller, &joining)))
}

fn check(kind: &str, clients: usize, spin_us: u32) {
    let mut place = TestEndpoint::new(kind);
    place.connect.spin_us = spin_us;
    // Rings of the usual size, a thousand times, are too much address space for some machines.
    place.listen.ring_bytes = 1 << 20;
    let listener = place.listener();
    let stopper = listener.stopper();
    let (_waker, server) = start(listener, spin_us);
    let mut all: Vec<_> = (0..clients).map(|_| connect(&place.address, &place.connect).unwrap()).collect();
    let deadline = Some(Instant::now() + Duration::from_secs(60));
    for round in 0..3 {
        for (number, client) in all.iter_mut().enumerate() {
            for n in 0..3 {
                client.sender.frame(100).unwrap().write(&frame(number + n, (round + n) * 10));
            }
            client.sender.flush().unwrap();
        }
        for (number, client) in all.iter_mut().enumerate() {
            for n in 0..3 {
                let got = client.receiver.receive(deadline).unwrap();
                assert_eq!(got, Some(&frame(number + n, (round + n) * 10)[..]), "{kind}: client {number}");
            }
        }
    }
    stopper.stop();
    drop(all);
    let errors = server.join().unwrap();
    // A client that closes while something is unread resets the connection; here nothing is.
    assert!(errors.is_empty(), "{kind}: {errors:?}");
}

#[test]
fn several_connections() {
    for &kind in kinds() {
        for spin_us in [0, 50] {
            check(kind, 1, spin_us);
            check(kind, 5, spin_us);
        }
    }
}

#[test]
fn a_thousand_connections() {
    let wanted = 4096;
    let limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.unwrap_or(wanted).min(wanted);
    setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), ..limit }).unwrap();
    let clients = 1000.min(allowed as usize / 3);
    for kind in ["shm", "unix", "tcp"] {
        check(kind, clients, 50);
    }
}

/// A client that sends and takes nothing is held back and in the end given up; the others do not notice.
#[test]
fn who_takes_nothing_is_held_back_alone() {
    for &kind in kinds() {
        let mut place = TestEndpoint::new(kind);
        place.listen.write_timeout = Duration::from_millis(300);
        place.connect.write_timeout = Duration::from_secs(60);
        let listener = place.listener();
        let stopper = listener.stopper();
        let (_waker, server) = start(listener, 0);
        let greedy = connect(&place.address, &place.connect).unwrap();
        let mut good = connect(&place.address, &place.connect).unwrap();
        let (mut sender, receiver) = greedy.split();
        let sending = std::thread::spawn(move || {
            let body = FRAME_BYTES_MAX - 8;
            loop {
                let sent = sender.frame(FRAME_BYTES_MAX).map(|slot| slot.write(&frame(0, body)));
                if let Err(error) = sent.and_then(|()| sender.flush()) {
                    break error;
                }
            }
        });
        while !sending.is_finished() {
            good.sender.frame(100).unwrap().write(&frame(3, 50));
            good.sender.flush().unwrap();
            let deadline = Some(Instant::now() + Duration::from_secs(60));
            assert_eq!(good.receiver.receive(deadline).unwrap(), Some(&frame(3, 50)[..]), "{kind}");
        }
        let error = sending.join().unwrap();
        assert!(matches!(error, Error::Closed { .. }), "{kind}: {error}");
        drop((receiver, good));
        stopper.stop();
        let errors = server.join().unwrap();
        // Over TCP the system may be first.
        let is_given_up = matches!(&errors[..], [Error::SendTimeout { .. } | Error::GivenUp { .. }]);
        assert!(is_given_up, "{kind}: {errors:?}");
    }
}

/// A client that goes while the server waits for it to take answers, with requests of its own unread, is noticed at once.
#[test]
fn who_takes_nothing_and_goes_is_not_waited_for() {
    for &kind in kinds() {
        let mut place = TestEndpoint::new(kind);
        place.listen.write_timeout = Duration::from_secs(60);
        // In shared memory nothing but a full ring of replies is left unsent when the client goes: there the server, which
        // may be late, must have come to that.
        place.connect.write_timeout =
            Duration::from_millis(if ["shm", "rdma"].contains(&kind) { 1000 } else { 300 });
        place.listen.ring_bytes = 1 << 20;
        let listener = place.listener();
        let stopper = listener.stopper();
        let (_waker, server) = start(listener, 0);
        let mut greedy = connect(&place.address, &place.connect).unwrap();
        let body = FRAME_BYTES_MAX - 8;
        let mut send = || {
            greedy.sender.frame(FRAME_BYTES_MAX)?.write(&frame(0, body));
            greedy.sender.flush()
        };
        // Until the server takes nothing any more.
        while send().is_ok() {}
        drop(greedy);
        stopper.stop();
        let errors = server.join().unwrap();
        let is_waited_for = errors.iter().any(|error| matches!(error, Error::SendTimeout { .. }));
        assert!(errors.len() == 1 && !is_waited_for, "{kind}: {errors:?}");
    }
}

#[test]
fn waits_end_by_deadline_and_by_waker() {
    let mut poller = Poller::new(50).unwrap();
    let mut ready = Vec::new();
    let deadline = Instant::now() + Duration::from_millis(5);
    assert!(!poller.wait(&mut ready, Some(deadline)).unwrap());
    assert!(Instant::now() >= deadline && ready.is_empty());
    poller.waker().wake();
    assert!(poller.wait(&mut ready, None).unwrap());
    let (waker, waiting) =
        (poller.waker(), std::thread::spawn(move || poller.wait(&mut Vec::new(), None).unwrap()));
    waker.wake();
    assert!(waiting.join().unwrap());
}
