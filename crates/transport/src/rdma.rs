//! Frames by RDMA: a reliable connection (RC) of two queue pairs, beside a bootstrap connection over TCP.
//!
//! A connection begins as frames over TCP, with TLS if it is configured. When the server has answered the client's first
//! frame, and so has let it in, both set up a queue pair, tell each other of it over TCP, and switch: further frames are
//! written into a ring of the other end's registered memory (RDMA WRITE WITH IMMEDIATE), and the completion queue says
//! which slot has a frame. No byte of a frame ever announces it. The TCP connection stays open, and its end is the end of
//! the peer.
//!
//! A server's frames may be gathered by its card ([`GatherFrame`]): the card reads registered memory, which nothing may
//! change until the completion, and the hold of the caller is kept until then. The peer sees no difference.
//!
//! Frames by RDMA are not encrypted. Memory of a ring is bounded and registered once per connection; frames
//! longer than a slot go in pieces. The peer may be hostile or die at any moment, as for shared memory: what it writes is
//! read once and checked, and every wait for it ends by a deadline.

mod card;
mod channel;
mod device;
mod devices;
mod ffi;
mod gather;
mod link;
mod queue_pair;
mod receiver;
mod record;
mod ring;
mod sender;

use std::sync::Arc;
use std::time::Duration;

pub use card::{Card, CardMemory, GatherDomain, Loopback};
pub use gather::{GatherFrame, Part};
pub(crate) use receiver::RdmaReceiver;
pub(crate) use sender::{RdmaCommit, RdmaSender};

use crate::error::Error;
use crate::options::Framing;
use crate::pipe::Pipe;
use crate::spin::Spin;

/// Size of the ring of each direction. A connection pins two of them.
const RING_BYTES: usize = 1 << 20;
/// Bounds of the ring of another version.
const RING_BYTES_MIN: usize = 64 << 10;
const RING_BYTES_MAX: usize = 64 << 20;
/// Messages of one direction that are under way or not yet released.
const MESSAGES: u32 = 128;
const MESSAGES_MIN: u32 = 8;
const MESSAGES_MAX: u32 = 1 << 12;
/// Writes of gathered frames that are under way, and elements of each, as far as the device has them.
const GATHER_WRITES: u32 = 512;
const ELEMENTS_MAX: usize = 30;

/// Finds out whether this machine has a device, before anything is opened.
pub(crate) fn check(address: &str) -> Result<(), Error> {
    device::check().map_err(|reason| Error::NoRdma { address: address.to_owned(), reason })
}

/// An IP address of this machine on the first active port of a device.
pub(crate) fn host() -> Result<std::net::IpAddr, Error> {
    const ANY: &str = "rdma://";
    check(ANY)?;
    let unspecified = std::net::Ipv6Addr::UNSPECIFIED.into();
    let port = devices::find(std::path::Path::new(devices::CLASS), unspecified);
    port.and_then(|port| port.host()).map_err(|reason| Error::NoRdma { address: ANY.to_owned(), reason })
}

/// The end of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    Client,
    /// Frames may be gathered by the cards of the domain, if there is one.
    Server(Option<GatherDomain>),
}

/// Both halves of a connection, which begins over a pipe.
pub(crate) fn halves(
    pipe: Pipe,
    framing: Framing,
    write_timeout: Duration,
    spin: Spin,
    role: Role,
) -> Result<(RdmaSender, RdmaReceiver), Error> {
    let channel = Arc::new(channel::Channel::new(pipe, framing, write_timeout, role)?);
    let receiver = RdmaReceiver::new(Arc::clone(&channel), framing, spin)?;
    Ok((RdmaSender::new(channel, framing, write_timeout), receiver))
}
