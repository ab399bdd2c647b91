//! Whose process is at the other end of a connection within this host, as the kernel says. Knows no protocol.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, socket_with};

/// Users that are outside of this user namespace are all said to be this one (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_UID: u32 = 65534;
const ROOT: u32 = 0;

/// Request and reply of `NETLINK_SOCK_DIAG` (`linux/sock_diag.h`, `linux/inet_diag.h`).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const TCP: u8 = 6;
const HEADER_BYTES: usize = 16;
const ID_AT: usize = HEADER_BYTES + 4;
/// The ports and addresses of a socket's name; what follows in its id is not needed.
const NAME_BYTES: usize = 2 + 2 + 16 + 16;
const ID_BYTES: usize = NAME_BYTES + 4 + 8;
const UID_AT: usize = ID_AT + ID_BYTES + 12;
const REPLY_BYTES: usize = UID_AT + 8;
/// States of TCP in which a socket is nobody's: after its end (TIME_WAIT, CLOSE), and while it listens.
const NOBODYS: [u8; 3] = [6, 7, 10];

/// Is the process at the other end of this socket one of this user, or of root? Only connections within this host can be
/// known: over a unix socket, or over TCP on the loopback. Whatever is in doubt is not.
pub(crate) fn is_of_this_user(socket: impl AsFd) -> bool {
    let own = rustix::process::geteuid().as_raw();
    user(socket.as_fd()).is_some_and(|uid| uid == ROOT || uid == own && uid != OVERFLOW_UID)
}

fn user(socket: BorrowedFd<'_>) -> Option<u32> {
    let peer = rustix::net::getpeername(socket).ok()??;
    if peer.address_family() == AddressFamily::UNIX {
        return Some(rustix::net::sockopt::socket_peercred(socket).ok()?.uid.as_raw());
    }
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let peer = canonical(SocketAddr::try_from(peer).ok()?);
    let local = canonical(SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?);
    if !peer.ip().is_loopback() || !local.ip().is_loopback() {
        return None;
    }
    tcp_user(peer, local)
}

/// Who has the socket at `peer` of the TCP connection to `local`.
fn tcp_user(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut name = [0; NAME_BYTES];
    name[..2].copy_from_slice(&peer.port().to_be_bytes());
    name[2..4].copy_from_slice(&local.port().to_be_bytes());
    for (address, at) in [(peer, 4), (local, 20)] {
        match address.ip() {
            IpAddr::V4(ip) => name[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => name[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    let family = u8::try_from(family.as_raw()).ok()?;
    let mut request = Vec::with_capacity(HEADER_BYTES + 8 + ID_BYTES);
    request.extend(((HEADER_BYTES + 8 + ID_BYTES) as u32).to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    // The sequence and the sender, which the kernel sends back; then which sockets, in whatever state.
    request.extend([0; 8]);
    request.extend([family, TCP, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(name);
    // On any interface, without the kernel's own number of the socket.
    request.extend([0; 4]);
    request.extend([0xff; 8]);

    let asked = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(netlink::SOCK_DIAG),
    )
    .ok()?;
    rustix::net::send(&asked, &request, SendFlags::empty()).ok()?;
    // The kernel answers before `send` returns.
    let mut reply = [0; 512];
    let (_, bytes) = rustix::net::recv(&asked, &mut reply[..], RecvFlags::DONTWAIT).ok()?;
    let reply = reply.get(..bytes).filter(|reply| reply.len() >= REPLY_BYTES)?;
    let word = |at: usize| Some(u32::from_ne_bytes(reply.get(at..at + 4)?.try_into().ok()?));
    let (kind, state, inode) = (&reply[4..6], reply[HEADER_BYTES + 1], word(UID_AT + 4)?);
    // A socket that its process has closed has no inode, and would be said to be root's.
    let is_that = kind == SOCK_DIAG_BY_FAMILY.to_ne_bytes() && ends(reply) == Some((peer, local));
    (is_that && inode != 0 && !NOBODYS.contains(&state)).then(|| word(UID_AT)).flatten()
}

/// The two ends of the socket that a reply is about: that of an IPv6 client of an IPv4 server has both forms.
fn ends(reply: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let is_ipv4 = u16::from(reply[HEADER_BYTES]) == AddressFamily::INET.as_raw();
    let end = |port_at: usize, at: usize| {
        let port = u16::from_be_bytes(reply.get(port_at..port_at + 2)?.try_into().ok()?);
        let bytes: [u8; 16] = reply.get(at..at + 16)?.try_into().ok()?;
        let ip = match is_ipv4 {
            true => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
            false => Ipv6Addr::from(bytes).to_canonical(),
        };
        Some(SocketAddr::new(ip, port))
    };
    Some((end(ID_AT, ID_AT + 4)?, end(ID_AT + 2, ID_AT + 20)?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use rustix::process::Uid;
    use rustix::thread::set_thread_res_uid;

    use super::*;

    fn connected(host: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn a_connection_within_the_host_tells_its_user() {
        for host in ["127.0.0.1", "::1"] {
            // Not every machine has both.
            if TcpListener::bind((host, 0)).is_err() {
                continue;
            }
            let (client, server) = connected(host);
            assert!(is_of_this_user(&server), "{host}");
            assert_eq!(user(server.as_fd()), Some(rustix::process::geteuid().as_raw()));
            drop(client);
            assert!(!is_of_this_user(&server), "{host}: nobody has it any more");
        }
        // A client by IPv6 of a server by IPv4.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        if let Ok(_client) = TcpStream::connect(format!("[::ffff:127.0.0.1]:{port}")) {
            assert!(is_of_this_user(&listener.accept().unwrap().0));
        }
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(is_of_this_user(&one));
        assert!(!is_of_this_user(std::io::stdin()), "no socket");
    }

    #[test]
    fn a_process_of_another_user_is_not_of_this_one() {
        if rustix::process::geteuid().as_raw() != ROOT {
            // Only root can be somebody else.
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Of this thread alone.
        let other = std::thread::spawn(move || {
            let uid = Uid::from_raw(4711);
            set_thread_res_uid(uid, uid, uid).unwrap();
            TcpStream::connect(address).unwrap()
        });
        let client = other.join().unwrap();
        let (server, _) = listener.accept().unwrap();
        assert_eq!(user(server.as_fd()), Some(4711));
        assert!(!is_of_this_user(&server));
        drop(client);
        assert_eq!(user(server.as_fd()), None, "a closed socket is not root's");
    }
}
