//! State notifications to a service manager, by the protocol of `sd_notify(3)`.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a state such as `READY=1` or `STOPPING=1`. Without a service manager it does nothing.
///
/// # Errors
/// The manager's socket cannot be written to. The server can ignore this.
pub fn notify(state: &str) -> io::Result<()> {
    match std::env::var("NOTIFY_SOCKET") {
        Ok(socket) if !socket.is_empty() => send(&socket, state),
        _ => Ok(()),
    }
}

fn send(socket: &str, state: &str) -> io::Result<()> {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_gets_the_state_at_a_path_and_at_a_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify").display().to_string();
        let name = format!("sanderling-notify-test-{}", std::process::id());
        for (socket, manager) in [
            (path.clone(), UnixDatagram::bind(&path)),
            (
                format!("@{name}"),
                SocketAddr::from_abstract_name(&name).and_then(|at| UnixDatagram::bind_addr(&at)),
            ),
        ] {
            let manager = manager.expect("bound");
            send(&socket, "READY=1").expect("sent");
            let mut bytes = [0; 100];
            let count = manager.recv(&mut bytes).expect("received");
            assert_eq!(&bytes[..count], b"READY=1");
        }
        assert!(send(&format!("{path}-gone"), "READY=1").is_err());
    }
}
