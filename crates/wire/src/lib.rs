//! Every byte between trainers, hubs and parameter servers, and the limits of it: frames, messages, negotiation.
//!
//! Deliberately knows no table, no thread, no clock and no socket: transports bring buffers of bytes and get structs
//! that borrow from them, and the other way round. `docs/wire-format.md` is the same thing as a document.
//!
//! The way in: [`Frame::parse`] cuts a frame from received bytes, [`Codec::unpack`] decompresses it if need be,
//! [`Request::decode`] or [`Reply::decode`] gives the message. A failure of the first means that the byte stream has
//! lost its framing, and the connection must be closed; a failure of the others concerns this one message, which is
//! answered with [`Fault::BadRequest`].
//!
//! The way out: [`Request::encode`], [`Reply::encode`], or [`PullReply::begin`], which lays a reply out and hands over
//! the area where the rows belong; then, on slow links, [`Codec::pack`].

#[cfg(target_endian = "big")]
compile_error!(
    "keys and rows travel as raw little-endian slices; a big-endian machine would have to swap them"
);

pub mod limit;

mod agreed;
mod bits;
mod buffer;
mod codec;
mod error;
mod fault;
mod frame;
mod kind;
mod message;
mod narrow;
mod reader;
mod token;
mod writer;

pub use agreed::{Agreed, Features, Offer};
pub use bits::{Bits, set_bit};
pub use buffer::Buffer;
pub use codec::{Codec, Compression};
pub use error::WireError;
pub use fault::{Failure, Fault, on_one_line};
pub use frame::{Frame, HEADER_BYTES, Header, MAGIC, Parsed, body_bytes, flag, refit, seal, set_deadline};
pub use kind::Kind;
pub use message::*;
pub use narrow::{narrow, widen};
pub use token::same_token;
