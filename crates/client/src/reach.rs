//! Connects to a server and stops early on request. Knows no message.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use sanderling_transport::{
    Address, ConnectOptions as TransportOptions, Connection, Error, Framing, connect,
};

use crate::options::ConnectOptions;
use crate::rpc_state::Peer;

/// How often it is asked whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Connects. Neither names nor TLS nor who is slow to greet can be interrupted, so where there is a stop to ask, it is done by a
/// thread of its own, which is left behind until its time to connect is over.
pub(crate) fn reach(
    address: &Address,
    options: &ConnectOptions,
    framing: Framing,
    within: Duration,
) -> Result<Connection, Error> {
    reach_by(connect, address, options, framing, within)
}

fn reach_by(
    connect: impl Fn(&Address, &TransportOptions) -> Result<Connection, Error> + Clone + Send + 'static,
    address: &Address,
    options: &ConnectOptions,
    framing: Framing,
    within: Duration,
) -> Result<Connection, Error> {
    let transport = options.transport(framing, within);
    let Some(stop) = &options.stop else { return connect(address, &transport) };
    let start = Instant::now();
    let late = || Error::ConnectTimeout { address: address.to_string(), timeout: start.elapsed() };
    let (done, connected) = sync_channel(1);
    let (to, by, connect_there) = (address.clone(), transport.clone(), connect.clone());
    let thread = std::thread::Builder::new().name("connect".to_owned());
    // A late result is dropped.
    if thread.spawn(move || drop(done.send(connect_there(&to, &by)))).is_err() {
        return connect(address, &transport);
    }
    let mut until: Option<Instant> = None;
    loop {
        let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()).min(LOOK));
        match connected.recv_timeout(left) {
            Ok(connected) => return connected,
            Err(RecvTimeoutError::Disconnected) => return Err(late()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if until.is_none() {
            until = stop.told().map(|grace| Instant::now() + grace);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(late());
        }
    }
}

/// The way that a server offers to clients of its host, if this is one and the way is faster.
pub(crate) fn faster_way(address: &Address, peer: &Peer, options: &ConnectOptions) -> Option<Address> {
    let rank = |address: &Address| match address {
        Address::Shm(_) => 2,
        Address::Unix(_) => 1,
        _ => 0,
    };
    if !options.prefer_local || peer.host_id == 0 || peer.host_id != sanderling_observe::machine::host_id() {
        return None;
    }
    peer.local_url.parse().ok().filter(|local| rank(local) > rank(address))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use sanderling_wire::HEADER_BYTES;

    use super::*;
    use crate::stop::Stop;

    /// A connector that blocks until the caller has gone.
    #[test]
    fn who_is_asked_to_stop_does_not_wait_for_a_greeting() {
        for grace in [Duration::ZERO, Duration::from_millis(150)] {
            let asked_to_stop = Arc::new(AtomicBool::new(false));
            let has_gone = Arc::new(AtomicBool::new(false));
            let (saw, seen) = channel();
            let (stop, gone) = (Arc::clone(&asked_to_stop), Arc::clone(&has_gone));
            let connect = move |address: &Address, _: &TransportOptions| {
                stop.store(true, Ordering::SeqCst);
                let until = Instant::now() + Duration::from_secs(30);
                while !gone.load(Ordering::SeqCst) && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let _ = saw.send(gone.load(Ordering::SeqCst));
                Err(Error::NoServer { address: address.to_string() })
            };
            let told = move || asked_to_stop.load(Ordering::SeqCst).then_some(grace);
            let options = ConnectOptions { stop: Some(Stop::new(told)), ..ConnectOptions::default() };
            let framing =
                Framing { header_bytes: HEADER_BYTES, body_bytes: |_| Ok(0), frame_bytes_max: 1 << 20 };
            let address = "127.0.0.1:1".parse().unwrap();
            let reached = reach_by(connect, &address, &options, framing, Duration::MAX);
            has_gone.store(true, Ordering::SeqCst);
            assert!(matches!(reached, Err(Error::ConnectTimeout { .. })), "{grace:?}");
            assert!(seen.recv().unwrap(), "{grace:?}: it waited");
        }
    }
}
