//! A server that answers every frame with the same bytes, copied into the memory that the transport lends as rows would
//! be: what a transport alone can do. Knows of frames only where their id is.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::JoinHandle;

use sanderling_transport::{Connection, Error, Listener, Poller, Received, Stopper, Token, Waker};

/// Frames taken from one connection before the others have their turn, as a worker of the real server does.
const TURN_FRAMES: usize = 16;
/// Where a frame has its id.
const ID: std::ops::Range<usize> = 8..16;

/// Threads that accept, and one that answers. They end when it is dropped.
#[derive(Debug)]
pub(crate) struct ConstantServer {
    stoppers: Vec<Stopper>,
    waker: Waker,
    threads: Vec<JoinHandle<()>>,
}

impl ConstantServer {
    /// Answers on all of these with `reply`, in which only the id is changed.
    pub(crate) fn start(
        listeners: Vec<Listener>,
        reply: Vec<u8>,
        spin_us: u32,
    ) -> Result<ConstantServer, Error> {
        let poller = Poller::new(spin_us)?;
        let waker = poller.waker();
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
        threads.push(std::thread::spawn(move || serve(poller, &joining, &reply)));
        Ok(ConstantServer { stoppers, waker, threads })
    }
}

impl Drop for ConstantServer {
    fn drop(&mut self) {
        self.stoppers.iter().for_each(Stopper::stop);
        let answering = self.threads.pop();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        // No connection can join any more.
        self.waker.wake();
        drop(answering.map(JoinHandle::join));
    }
}

fn serve(mut poller: Poller, joining: &Receiver<Connection>, reply: &[u8]) {
    let mut ready: Vec<Token> = Vec::new();
    while let Ok(woken) = poller.wait(&mut ready, None) {
        if woken && !join_all(&mut poller, joining) {
            return;
        }
        for &token in &ready {
            let answered = poller.connection(token).map(|connection| answer(connection, reply));
            if !matches!(answered, Some(Ok(false))) {
                poller.remove(token);
            }
        }
    }
}

/// Takes the connections that wait. `false`: there will be no more, and it is time to end.
fn join_all(poller: &mut Poller, joining: &Receiver<Connection>) -> bool {
    loop {
        match joining.try_recv() {
            Ok(connection) => drop(poller.add(connection)),
            Err(error) => return error == TryRecvError::Empty,
        }
    }
}

/// Answers what is there. `true`: the peer has sent its last frame.
fn answer(connection: &mut Connection, reply: &[u8]) -> Result<bool, Error> {
    let Connection { sender, receiver } = connection;
    for _ in 0..TURN_FRAMES {
        let Some(mut slot) = sender.try_frame(reply.len())? else { break };
        match receiver.try_receive()? {
            Received::Frame(frame) => {
                slot[..reply.len()].copy_from_slice(reply);
                slot[ID].copy_from_slice(&frame[ID]);
                slot.commit(reply.len());
            }
            Received::Nothing => break,
            Received::End => return Ok(true),
        }
    }
    sender.try_flush().map(|_| false)
}
