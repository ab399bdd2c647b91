//! Predictions and rows of a saved model over HTTP and gRPC, on one port.
//!
//! A [`Server`] starts without a model: it is live and not ready. [`Server::publish`] replaces all its models in one
//! step. Rows become keys by the encoder of training, so a request has the score that `sanderling predict` gives.
//! Decoding, scoring and encoding run on a fixed number of scoring threads behind a bounded queue; the thread of the
//! port only moves bytes. The crate trains nothing and knows no command line.

pub mod limit;

/// The messages of the Open Inference Protocol, as `proto/open_inference.proto` describes them.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)] // generated
pub mod proto {
    tonic::include_proto!("inference");
}

/// The messages of the service of rows, as `proto/lookup.proto` describes them.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)] // generated
pub mod lookup_proto {
    tonic::include_proto!("sanderling.serve");
}

mod config;
pub use config::Config;

mod error;
pub use error::{Kind, ServeError};

mod pool;

mod dense;
pub use dense::Engines;

mod scored;

mod models;
pub use models::{FollowOptions, ServedModel};

mod catalog;
pub use catalog::{LIVE, Models, SHADOW};

mod folder;
pub use folder::is_name;

mod publisher;

mod repository;
pub use repository::RepositoryConfig;

mod versions;

mod cell;

mod scores;

mod batch;

mod batches;

mod predict;

mod tensor;

mod infer;
pub use infer::InferRequest;

mod rest;

mod query;

mod lookup;

mod limiter;

mod scoring;

mod slow;

mod traced;

mod shadow;

mod access_log;

mod metrics;

mod service;

mod work;

mod grpc;

mod resp;
#[cfg(fuzzing)]
pub use resp::resp_command_bytes;

mod pages;

mod router;

mod replica;
pub use replica::{CheckpointPlace, ReplicaConfig, ReplicaSource};

mod server;
pub use server::{Server, StartError};

/// The descriptors of the services, for reflection.
const DESCRIPTION: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/services.bin"));
