//! The control plane of a parameter server: status, statistics, saves and shutdown over gRPC, and metrics over HTTP.
//!
//! A [`ControlPlane`] is one thread with a small async runtime. One port answers the service of `proto/control.proto`,
//! reflection, the standard health service, and plain HTTP `/metrics` (Prometheus), `/healthz` and status pages. [`Client`] is a
//! blocking client of the service. A [`MetricsPage`] is `/metrics` and status pages alone, for processes without a control plane. Pulls
//! and pushes do not pass through this crate, and it knows no frames, tables, signals or command lines.

pub mod limit;

/// The messages of the service, as `proto/control.proto` describes them.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)] // generated
pub mod proto {
    tonic::include_proto!("sanderling.control");
}

mod table_samples;

mod metrics;
mod service;
mod thread_pool;

mod pages;

mod control_plane;
mod router;

mod page;

mod client;

pub use client::{Client, ClientOptions, ControlError};
pub use control_plane::{ControlPlane, ControlPlaneError};
pub use page::{MetricsPage, PageAccess, PageError};
pub use sanderling_http::status_pages::{self, PageOptions};
pub use tonic::Code;

/// The descriptor of the service, for reflection.
const DESCRIPTION: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/control.bin"));
