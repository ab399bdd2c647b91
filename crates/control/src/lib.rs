//! The control plane of a parameter server: what an operator asks of it, over gRPC and plain HTTP, beside the data plane.
//!
//! A [`Plane`] is one thread with a small async runtime. It answers the service of `proto/control.proto`, reflection and the
//! standard health service, and by plain HTTP `/metrics` (Prometheus) and `/healthz`, all on one port. [`Client`] is the
//! other side, without any async in its interface. A [`MetricsPage`] is `/metrics` alone, for processes without a control
//! plane. None of it is on the way of a pull or a push. Nothing here knows what is in a frame or a table, and neither signals
//! nor command lines.

pub mod limit;

/// Messages of the service, as `proto/control.proto` describes them.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)] // generated
pub mod proto {
    tonic::include_proto!("sanderling.control");
}

mod metrics;
mod service;
mod work;

mod guest;
mod line;
mod plane;
mod router;
mod web_page;

mod page;

mod client;

pub use client::{Client, ClientOptions, ControlError};
pub use page::{MetricsPage, PageError};
pub use plane::{Plane, PlaneError};
pub use tonic::Code;

/// The description of the service and its messages, for reflection.
const DESCRIPTION: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/control.bin"));
