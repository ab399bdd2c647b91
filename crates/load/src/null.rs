//! A server that looks nothing up: it says hello, has every table that is named, and answers pulls with rows of zeros. What a
//! client does against it is the most that this client can do. Knows frames, and nothing of rows.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use sanderling_server::framing;
use sanderling_transport::{
    Address, Connection, Error, ListenOptions, Listener, Poller, Received, Sender, Stopper, Token, Waker,
};
use sanderling_wire::{
    Agreed, Failure, Fault, Features, Frame, Home, Identity, Kind, Offer, Parsed, PlacementMap, PullReply,
    PullShape, Pushed, Reply, Request, RowFormat, TableInfo, seal,
};

/// The longest frame.
const FRAME_BYTES_MAX: usize = 16 << 20;
/// The longest frame that is no answer to a pull: it has the configuration of a table.
const SMALL_FRAME_BYTES_MAX: usize = 128 << 10;
/// Frames taken from one connection before the others have their turn.
const TURN_FRAMES: usize = 16;
/// Requests that a client may have under way.
const IN_FLIGHT_MAX: u32 = 64;

/// Threads that accept, and one that answers. They end when it is dropped.
#[derive(Debug)]
pub struct NullServer {
    addresses: Vec<Address>,
    stoppers: Vec<Stopper>,
    waker: Waker,
    threads: Vec<JoinHandle<()>>,
}

impl NullServer {
    /// Answers at these addresses; all tables have so many weights per row.
    pub fn start(addresses: &[Address], dim: u32, spin_us: u32) -> Result<NullServer, Error> {
        NullServer::start_with_pause(addresses, dim, spin_us, Arc::default())
    }

    /// Starts a null server that stands still while another thread holds the lock.
    pub(crate) fn start_with_pause(
        addresses: &[Address],
        dim: u32,
        spin_us: u32,
        pause: Arc<Mutex<()>>,
    ) -> Result<NullServer, Error> {
        let mut options = ListenOptions::new(framing(FRAME_BYTES_MAX as u32));
        options.spin_us = spin_us;
        let listeners = addresses
            .iter()
            .map(|address| Listener::bind(address, &options))
            .collect::<Result<Vec<_>, _>>()?;
        let poller = Poller::new(spin_us)?;
        let waker = poller.waker();
        let addresses = listeners.iter().map(|listener| listener.address().clone()).collect();
        let stoppers = listeners.iter().map(Listener::stopper).collect();
        let (join, joining) = channel();
        let mut threads = Vec::new();
        for listener in listeners {
            let (join, waker) = (join.clone(), waker.clone());
            threads.push(std::thread::spawn(move || {
                while let Ok(Some(connection)) = listener.accept() {
                    if join.send(connection).is_err() {
                        return;
                    }
                    waker.wake();
                }
            }));
        }
        drop(join);
        threads.push(std::thread::spawn(move || serve(poller, &joining, dim, &pause)));
        Ok(NullServer { addresses, stoppers, waker, threads })
    }

    /// Where it is, in the order given.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        self.stoppers.iter().for_each(Stopper::stop);
        let answering = self.threads.pop();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        // No connection can join any more.
        self.waker.wake();
        drop(answering.map(JoinHandle::join));
    }
}

fn serve(mut poller: Poller, joining: &Receiver<Connection>, dim: u32, pause: &Mutex<()>) {
    let mut ready: Vec<Token> = Vec::new();
    let mut talks: Vec<(Token, Agreed)> = Vec::new();
    while let Ok(woken) = poller.wait(&mut ready, None) {
        if woken {
            loop {
                match joining.try_recv() {
                    Ok(connection) => {
                        if let Ok(token) = poller.add(connection) {
                            talks.push((token, Agreed::BEFORE_HELLO));
                        }
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
        drop(pause.lock());
        for &token in &ready {
            let agreed = talks.iter_mut().find(|(other, _)| *other == token).map(|(_, agreed)| agreed);
            let went_on = match (poller.connection(token), agreed) {
                (Some(connection), Some(agreed)) => answer_some(connection, agreed, dim),
                _ => false,
            };
            if !went_on {
                poller.remove(token);
                talks.retain(|(other, _)| *other != token);
            }
        }
    }
}

/// Answers what is there. `false`: the connection is of no use any more.
fn answer_some(connection: &mut Connection, agreed: &mut Agreed, dim: u32) -> bool {
    for _ in 0..TURN_FRAMES {
        let Connection { sender, receiver } = connection;
        let answered = match receiver.try_receive() {
            Ok(Received::Frame(bytes)) => answer(bytes, agreed, dim, sender),
            Ok(Received::Nothing) => break,
            Ok(Received::End) | Err(_) => return false,
        };
        if answered.is_none() {
            return false;
        }
    }
    connection.sender.try_flush().is_ok()
}

/// Sends the answer to a frame; waits while the client takes none. `None`: the client is not to be talked to.
fn answer(bytes: &[u8], agreed: &mut Agreed, dim: u32, sender: &mut Sender) -> Option<()> {
    let Parsed::Frame(frame) = Frame::parse(bytes, agreed).ok()? else { return None };
    let (id, request) = (frame.header.id, Request::decode(&frame).ok()?);
    let reply = match request {
        Request::Pull(pull) => {
            return rows(Kind::Pull, pull.keys.len(), pull.keys.len(), dim, agreed, id, sender);
        }
        Request::PullPooled(pull) => {
            let (keys, samples) = (pull.ragged.keys.len(), pull.ragged.offsets.len().saturating_sub(1));
            return rows(Kind::PullPooled, keys, samples, dim, agreed, id, sender);
        }
        Request::Push(_) => Reply::Push(Pushed { repeated: false }),
        Request::Delete(delete) => Reply::Delete(delete.keys.len() as u64),
        Request::Placement => Reply::Placement(PlacementMap { version: 0, servers: Vec::new(), slots: &[] }),
        Request::Create(create) => Reply::Create(info(create.name, create.config, dim)),
        Request::Open(name) => Reply::Open(info(name, "{}", dim)),
        Request::Hello(hello) => {
            let offer = Offer { frame_bytes_max: FRAME_BYTES_MAX as u32, ..Offer::of(Features::NO_CHECKSUM) };
            let met = offer.meet(&hello.offer).ok()?;
            let identity = Identity {
                agreed: met,
                in_flight_max: IN_FLIGHT_MAX,
                shard: 0,
                shards: 1,
                server_id: 1,
                boot_id: 1,
                host_id: 0,
                placement_version: 0,
                history_id: 0,
                name: "null",
                local_url: "",
            };
            send(&Reply::Hello(identity), agreed, id, sender)?;
            *agreed = met;
            return Some(());
        }
        other => Reply::Failed(Failure {
            kind: other.kind(),
            fault: Fault::BadRequest,
            reason: "this server does nothing",
        }),
    };
    send(&reply, agreed, id, sender)
}

fn send(reply: &Reply<'_>, agreed: &Agreed, id: u64, sender: &mut Sender) -> Option<()> {
    let mut slot = sender.frame(SMALL_FRAME_BYTES_MAX).ok()?;
    let length = reply.encode(agreed, id, &mut slot).ok()?;
    slot.commit(length);
    Some(())
}

fn rows(
    kind: Kind,
    keys: usize,
    rows: usize,
    dim: u32,
    agreed: &Agreed,
    id: u64,
    sender: &mut Sender,
) -> Option<()> {
    let shape = PullShape { keys, rows, dim, format: RowFormat::F32 };
    let length = shape.frame_bytes().ok()?;
    let mut slot = sender.frame(length).ok()?;
    PullReply::begin(kind, shape, agreed, id, &mut slot).ok()?;
    seal(&mut slot[..length], agreed);
    slot.commit(length);
    Some(())
}

fn info<'a>(name: &'a str, config: &'a str, dim: u32) -> TableInfo<'a> {
    TableInfo { table: 1, home: Home::Sharded, dim, state: 0, rows: 1, bytes: 0, name, config }
}
