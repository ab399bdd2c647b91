//! Byte channels that carry whole frames between a client and a server: shared memory, unix sockets, TCP, TLS over TCP,
//! and RDMA.
//!
//! The crate knows no message. [`Framing`] tells it how long a frame is; the crates above define the rest.
//!
//! ```
//! use sanderling_transport::{Address, ConnectOptions, Framing, ListenOptions, Listener, connect};
//!
//! // Frames of this example: one length byte, then the body.
//! let framing = Framing { header_bytes: 1, body_bytes: |header| Ok(header[0].into()), frame_bytes_max: 256 };
//! let listener = Listener::bind(&"127.0.0.1:0".parse()?, &ListenOptions::new(framing))?;
//! let address = listener.address().clone();
//! let server = std::thread::spawn(move || {
//!     let mut connection = listener.accept()?.expect("a connection");
//!     let question = connection.receiver.receive(None)?.expect("a frame").to_vec();
//!     let mut frame = connection.sender.frame(3)?;
//!     frame[..3].copy_from_slice(&[2, question[1], question[1]]);
//!     frame.commit(3);
//!     connection.sender.flush()
//! });
//! let mut connection = connect(&address, &ConnectOptions::new(framing))?;
//! connection.sender.frame(2)?.write(&[1, 7]);
//! connection.sender.flush()?;
//! assert_eq!(connection.receiver.receive(None)?, Some(&[2, 7, 7][..]));
//! server.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod error;

mod options;
mod spin;

mod pipe;
mod socket;
mod stream;
mod tls;

mod shm;

#[cfg(feature = "rdma")]
mod rdma;

mod connection;
mod endpoint;
mod memory;
mod not_accepted;
mod own_token;
mod peer_user;
mod poller;
mod receive_budget;
mod received;
mod resolve;

pub use address::{Address, AddressError, Endpoint};
pub use connection::{Connection, Receiver, Sender, SlotMut};
pub use endpoint::{Listener, Stopper, connect, rdma_host};
pub use error::Error;
pub use memory::reserve_with_headroom;
pub use not_accepted::NotAccepted;
pub use options::{ConnectOptions, Framing, ListenOptions};
pub use own_token::{OwnToken, make_private, own_token, user_dir};
pub use poller::{Poller, Token, Waker};
#[cfg(feature = "rdma")]
pub use rdma::{Card, CardMemory, GatherDomain, GatherFrame, Loopback, Part};
pub use receive_budget::ReceiveBudget;
pub use received::Received;
pub use spin::SPIN_US_DEFAULT;
pub use tls::{TlsClient, TlsServer, tls_reason};
