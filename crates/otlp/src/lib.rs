//! Exports the spans of a process to a collector of OpenTelemetry: OTLP over HTTP, as JSON
//! ([why](../../docs/design/0051-traces-by-otlp.md)).
//!
//! A thread takes spans from a bounded queue and posts them. While the collector is away, spans are dropped and counted,
//! and no other thread notices. It knows no request, and reads no span back.

mod endpoint;
mod exporter;
mod json;

pub use endpoint::Endpoint;
pub use exporter::{Exporter, Resource};
