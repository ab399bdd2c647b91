//! Host name resolution within a deadline. The system's resolver cannot be interrupted, so it runs on a thread that is
//! left behind when it is late.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Instant;

/// Maximum number of threads that wait for the resolver, so that a hanging one does not collect them.
const LOOKUPS_MAX: usize = 16;

/// A resolver of a name and a port. Tests replace the system's.
pub(crate) type Lookup = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// The system's resolver.
pub(crate) fn system(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

/// Returns its slot however the lookup ends.
struct Place(&'static AtomicUsize);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Resolves a host to at least one address. `None`: the deadline passed.
pub(crate) fn resolve(
    host: &str,
    port: u16,
    deadline: Instant,
    lookup: Lookup,
) -> io::Result<Option<Vec<SocketAddr>>> {
    static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
    // A numeric address needs no lookup.
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(Some(vec![SocketAddr::new(ip, port)]));
    }
    let place = Place(&LOOKUPS);
    if LOOKUPS.fetch_add(1, Ordering::Relaxed) >= LOOKUPS_MAX {
        let reason = format!("{LOOKUPS_MAX} look-ups of this process hang; check the name servers");
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, reason));
    }
    let (answer, answers) = sync_channel(1);
    let name = host.to_owned();
    std::thread::Builder::new().name("resolve".to_owned()).spawn(move || {
        let found = lookup(&name, port);
        drop(place);
        // After the deadline no thread receives it.
        let _ = answer.send(found);
    })?;
    match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Ok(found)) if found.is_empty() => {
            Err(io::Error::new(io::ErrorKind::NotFound, "it has no address"))
        }
        Ok(found) => found.map(Some),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the look-up was broken off")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_resolver_that_hangs_is_left_behind_and_cannot_collect_threads() {
        static OVER: AtomicBool = AtomicBool::new(false);
        fn hang(_: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            while !OVER.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
        }
        for _ in 0..LOOKUPS_MAX {
            assert!(matches!(resolve("host.invalid", 1, soon(), hang), Ok(None)));
        }
        let error = resolve("host.invalid", 1, later(), hang).expect_err("all places are taken");
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        // A numeric address needs no slot.
        let found = resolve("127.0.0.1", 7, soon(), hang).expect("a number").expect("at once");
        assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 7))]);
        let found = resolve("::1", 7, soon(), hang).expect("a number").expect("at once");
        assert_eq!(found, [SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 7))]);
        OVER.store(true, Ordering::Relaxed);
        // The slots are returned.
        let start = Instant::now();
        loop {
            match resolve("host.invalid", 9, later(), hang) {
                Ok(found) => {
                    assert_eq!(found, Some(vec![SocketAddr::from(([127, 0, 0, 1], 9))]));
                    break;
                }
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::ResourceBusy),
            }
            assert!(start.elapsed() < Duration::from_secs(60), "they never come back");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
