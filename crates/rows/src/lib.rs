//! Rows of tables from servers of predictions (`sanderling serve`), for programs that read embeddings.
//!
//! A [`RowsClient`] asks over HTTP for rows as bytes. It may keep rows for a bounded time in bounded memory, ask a second
//! replica where the first is slow, and send the requests of a user to one replica. All rows of an answer are of one
//! version of the model. The crate knows no model and no table, and has no async runtime.

mod cache;

mod hedge;
pub use hedge::Hedge;

mod route;

mod connection;

mod answer;

mod client;
pub use sanderling_transport::TlsClient;

pub use client::{Options, Rows, RowsClient, RowsError, Statistics};
