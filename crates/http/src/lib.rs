//! HTTP ports: HTTP/1, HTTP/2 and gRPC on one TCP or TLS port, with a bounded number of connections.
//!
//! [`serve`] answers at a port by the routes of its caller. [`web_page`] tells which requests a page may have sent
//! through a browser. [`status_pages`] shows what a process tells of itself. The crate knows no token; status pages are the
//! only paths that it knows.

mod sockets;
pub use sockets::SocketHandle;

mod incoming;
pub use incoming::acceptor;
pub use tokio_rustls::TlsAcceptor;

mod serve;
pub use serve::{Limits, serve};

mod refuse;
pub use refuse::{ask_for_token, refuse, sent_token};

pub mod web_page;

pub mod status_pages;
