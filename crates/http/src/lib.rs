//! HTTP ports: HTTP/1, HTTP/2 and gRPC on one TCP or TLS port, with a bounded number of connections.
//!
//! [`serve`] answers at a port by the routes of its caller. [`web_page`] tells which requests a page may have sent
//! through a browser. The crate knows no path, no token and no answer.

mod sockets;
pub use sockets::SocketHandle;

mod incoming;
pub use incoming::acceptor;
pub use tokio_rustls::TlsAcceptor;

mod serve;
pub use serve::{Limits, serve};

mod refuse;
pub use refuse::{bearer_token, refuse};

pub mod web_page;
