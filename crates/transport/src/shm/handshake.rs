//! The handshake of shared memory: the server creates and seals it, and sends it over the client's unix socket. Both
//! sides refuse processes of other users.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::memory::{RingMemory, map, mapping_bytes};
use super::receiver::RingReceiver;
use super::sender::{RingSender, frame_bytes_max};
use crate::error::Error;
use crate::options::Framing;
use crate::socket::Socket;
use crate::spin::Spin;

/// The first 8 bytes of the greeting. The size of a ring follows as 8 bytes, little endian.
const MAGIC: [u8; 8] = *b"sndrring";
const GREETING_BYTES: usize = 16;
/// Bounds of a ring's size.
const RING_BYTES_MIN: usize = 16 << 10;
const RING_BYTES_MAX: usize = 1 << 30;
/// Operations on the memory that are sealed.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The name in the kernel's abstract socket namespace, distinct for each user.
pub(crate) fn abstract_name(name: &str) -> Vec<u8> {
    format!("sanderling-shm-{}-{name}", rustix::process::geteuid().as_raw()).into_bytes()
}

/// The size of a ring: as configured, but large enough for the longest frame.
pub(crate) fn ring_bytes(asked: usize, framing: &Framing) -> usize {
    let mut bytes = asked.clamp(RING_BYTES_MIN, RING_BYTES_MAX).next_power_of_two();
    while bytes < RING_BYTES_MAX && frame_bytes_max(bytes) < framing.frame_bytes_max {
        bytes *= 2;
    }
    bytes
}

/// The server's side: creates the memory and sends it.
pub(crate) fn send_memory(
    socket: Socket,
    ring_bytes: usize,
    framing: Framing,
    write_timeout: Duration,
    spin: &Spin,
) -> Result<(RingSender, RingReceiver), Error> {
    check_user(&socket)?;
    let failed = |error| Error::io(&socket.peer, "share memory", error);
    let make = || {
        let fd =
            rustix::fs::memfd_create("sanderling-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, mapping_bytes(ring_bytes) as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        let rings = map(fd.as_fd(), ring_bytes)?;
        let mut greeting = [0; GREETING_BYTES];
        greeting[..8].copy_from_slice(&MAGIC);
        greeting[8..].copy_from_slice(&(ring_bytes as u64).to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&socket, &[IoSlice::new(&greeting)], &mut control, flags)?;
        Ok(rings)
    };
    let [requests, replies] = make().map_err(|error: rustix::io::Errno| failed(error))?;
    Ok(halves([replies, requests], socket, framing, write_timeout, spin, true))
}

/// The client's side: receives the memory and checks it. `None`: the deadline passed.
pub(crate) fn receive_memory(
    socket: Socket,
    framing: Framing,
    write_timeout: Duration,
    spin: &Spin,
    deadline: Instant,
) -> Result<Option<(RingSender, RingReceiver)>, Error> {
    check_user(&socket)?;
    if !socket.wait_readable(Some(deadline))? {
        return Ok(None);
    }
    let failed = |error| Error::io(&socket.peer, "take over shared memory", error);
    let corrupt = |reason: &str| Error::Corrupt { peer: socket.peer.clone(), reason: reason.to_owned() };
    let mut greeting = [0; GREETING_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut greeting)], &mut control, flags);
    let bytes = got.map_err(failed)?.bytes;
    let mut fd: Option<OwnedFd> = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fd = fds.last();
        }
    }
    if bytes == 0 {
        return Err(Error::Closed { peer: socket.peer.clone() });
    }
    let (Some(fd), GREETING_BYTES, true) = (fd, bytes, greeting.starts_with(&MAGIC)) else {
        return Err(corrupt("the greeting is not that of a server of this version"));
    };
    let [_, _, _, _, _, _, _, _, size @ ..] = greeting;
    let ring_bytes = usize::try_from(u64::from_le_bytes(size)).unwrap_or(usize::MAX);
    if !ring_bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes) {
        return Err(corrupt("the size of the rings is not a power of two within bounds"));
    }
    let seals = rustix::fs::fcntl_get_seals(&fd).map_err(failed)?;
    let size = rustix::fs::fstat(&fd).map_err(failed)?.st_size;
    if !seals.contains(SEALS) || size != mapping_bytes(ring_bytes) as i64 {
        return Err(corrupt("the memory has another size, or one that can be changed"));
    }
    let [requests, replies] = map(fd.as_fd(), ring_bytes).map_err(failed)?;
    Ok(Some(halves([requests, replies], socket, framing, write_timeout, spin, false)))
}

fn halves(
    [outgoing, incoming]: [RingMemory; 2],
    socket: Socket,
    framing: Framing,
    write_timeout: Duration,
    spin: &Spin,
    copies: bool,
) -> (RingSender, RingReceiver) {
    let socket = Arc::new(socket);
    let sender = RingSender::new(outgoing, socket.clone(), framing, write_timeout, spin.clone());
    (sender, RingReceiver::new(incoming, socket, framing, spin.clone(), copies))
}

fn check_user(socket: &Socket) -> Result<(), Error> {
    let peer = rustix::net::sockopt::socket_peercred(socket)
        .map_err(|error| Error::io(&socket.peer, "ask for the peer's user", error))?;
    if peer.uid != rustix::process::geteuid() {
        return Err(Error::OtherUser { peer: socket.peer.clone(), uid: peer.uid.as_raw() });
    }
    Ok(())
}
