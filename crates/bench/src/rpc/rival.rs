//! The rival: gRPC as its users would tune it, over TCP on the loopback, with the same table looked up in the same way.
//!
//! Tuned are the flow-control windows and the frame size, large enough that a pull never waits for permission; TCP_NODELAY;
//! messages as `Bytes`, which share the memory that they were received in; and, by the environment of both processes, an
//! allocator that keeps large buffers. One channel per connection, on a runtime of several threads.

mod client;
mod server;

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
mod proto {
    tonic::include_proto!("sanderling.bench");
}

pub(crate) use client::{BidiCaller, UnaryCaller, connect, runtime};
pub(crate) use server::RivalServer;

/// How glibc is to allocate in both processes: memory that was taken from the system stays, however large the piece. The
/// environment of a process is read by the library before it starts.
pub const MALLOC: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1073741824:glibc.malloc.top_pad=67108864",
);

/// HTTP/2 settings of the tuned rival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tuning {
    /// Bytes that may be under way of one call, and of all.
    pub(crate) stream_window: u32,
    pub(crate) connection_window: u32,
    /// Longest HTTP/2 frame.
    pub(crate) frame: u32,
}

/// Windows and frames so large that a pull never waits for flow control.
pub(crate) const TUNED: Tuning =
    Tuning { stream_window: 8 << 20, connection_window: 64 << 20, frame: 1 << 20 };
