//! A blocking client of the control plane, for one server and one call at a time.

use std::path::PathBuf;

use sanderling_transport::{own_token, tls_reason};
use tokio::runtime::Runtime;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Uri};
use tonic::{Code, Request, Response, Status};

use crate::limit::{ANSWER_WITHIN, CONNECT_WITHIN, KEEPALIVE_EVERY, KEEPALIVE_WITHIN, REPLY_BYTES_MAX};
use crate::proto;
use crate::proto::control_client::ControlClient;

/// The options of a client.
#[derive(Debug, Clone, Default)]
pub struct ClientOptions {
    /// The server's token. None: the token that a server of this user generated, if there is one.
    pub token: Option<String>,
    /// Trusted certificates (PEM file). They enable TLS.
    pub ca: Option<PathBuf>,
}

/// Why a call failed. Each variant names the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The address is invalid, or the options contradict it.
    #[error("{address:?}: {reason}")]
    Address {
        /// The given address.
        address: String,
        /// The problem.
        reason: String,
    },
    /// This process lacks resources.
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
    /// No server answers at the address, or not by this protocol.
    #[error(
        "{url}: not reached: {reason}; start the server, or give its control address, by default the port of \
         --listen plus 100"
    )]
    Unreachable {
        /// The server.
        url: String,
        /// The cause.
        reason: String,
    },
    /// The server refused the call.
    #[error("{url}: {reason}")]
    Refused {
        /// The server.
        url: String,
        /// The gRPC status code.
        code: Code,
        /// The server's message.
        reason: String,
    },
}

/// A connection to one server.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    stub: ControlClient<Channel>,
    bearer: Option<MetadataValue<Ascii>>,
    url: String,
}

/// The URL of an address.
fn url_of(address: &str, tls: bool) -> Result<Uri, String> {
    let (scheme, rest) = address.split_once("://").unwrap_or((if tls { "https" } else { "http" }, address));
    match (scheme, tls) {
        ("http", false) | ("https", true) => {}
        ("https", false) => return Err("TLS needs the certificates to trust (--ca-file FILE)".to_owned()),
        ("http", true) => {
            return Err("the address says http, but there are certificates to trust: write https".to_owned());
        }
        _ => return Err("is not of the form host:port, http://host:port or https://host:port".to_owned()),
    }
    let uri: Uri = format!("{scheme}://{}", rest.trim_end_matches('/'))
        .parse()
        .map_err(|error| format!("is not of the form host:port: {error}"))?;
    match uri.port_u16() {
        Some(_) => Ok(uri),
        None => Err("has no port; write host:port".to_owned()),
    }
}

/// Keeps a server's message on one line, so that it cannot imitate other output.
pub(crate) fn on_one_line(said: &str) -> String {
    said.replace(char::is_control, " ")
}

/// The innermost error: "connection refused" rather than "transport error".
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

impl Client {
    /// Connects to the control plane at `host:port`, `http://host:port` or `https://host:port`.
    ///
    /// # Errors
    /// [`ControlError::Address`] for an invalid address, [`ControlError::Unreachable`] when no server answers.
    pub fn connect(address: &str, options: &ClientOptions) -> Result<Client, ControlError> {
        let wrong = |reason: String| ControlError::Address { address: address.to_owned(), reason };
        let uri = url_of(address, options.ca.is_some()).map_err(wrong)?;
        let url = uri.to_string().trim_end_matches('/').to_owned();
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or_default();
        let mut endpoint = Endpoint::from(uri)
            .connect_timeout(CONNECT_WITHIN)
            .http2_keep_alive_interval(KEEPALIVE_EVERY)
            .keep_alive_timeout(KEEPALIVE_WITHIN);
        if let Some(path) = &options.ca {
            let pem = std::fs::read(path).map_err(|error| wrong(format!("{}: {error}", path.display())))?;
            let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)).domain_name(&host);
            let failed = |error| wrong(format!("{}: {}", path.display(), root_cause(&error)));
            endpoint = endpoint.tls_config(tls).map_err(failed)?;
        }
        let token = options.token.clone().or_else(|| own_token(&host, port));
        let bearer = match &token {
            Some(token) => Some(
                format!("Bearer {token}")
                    .parse()
                    .map_err(|_| wrong("the token has characters that cannot be sent".to_owned()))?,
            ),
            None => None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let unreachable = |reason| ControlError::Unreachable { url: url.clone(), reason };
        // The library's timeout covers TCP, not the TLS handshake.
        let connected =
            runtime.block_on(async { tokio::time::timeout(CONNECT_WITHIN, endpoint.connect()).await });
        let channel = match connected {
            Ok(connected) => connected.map_err(|error| unreachable(tls_reason(&root_cause(&error))))?,
            Err(_) => return Err(unreachable(format!("no connection within {CONNECT_WITHIN:?}"))),
        };
        let stub = ControlClient::new(channel).max_decoding_message_size(REPLY_BYTES_MAX);
        Ok(Client { runtime, stub, bearer, url })
    }

    /// The server's address, as a URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Adds the token, and a timeout if the call is quick.
    fn request<T>(&self, message: T, is_quick: bool) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(bearer) = &self.bearer {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        if is_quick {
            request.set_timeout(ANSWER_WITHIN);
        }
        request
    }

    fn answer<T>(&self, answer: Result<Response<T>, Status>) -> Result<T, ControlError> {
        answer.map(Response::into_inner).map_err(|status| {
            let url = self.url.clone();
            match std::error::Error::source(&status) {
                // The server's own messages have no source.
                Some(source) => ControlError::Unreachable { url, reason: root_cause(source) },
                None => {
                    let code = status.code();
                    let reason = match status.message() {
                        // The control plane gives a reason for every refusal.
                        "" => format!("{}; is this the control plane's port?", code.description()),
                        said => on_one_line(said),
                    };
                    ControlError::Refused { url, code, reason }
                }
            }
        })
    }

    /// The state of the server.
    ///
    /// # Errors
    /// The server is unreachable, or refuses the call.
    pub fn status(&mut self) -> Result<proto::StatusReply, ControlError> {
        let request = self.request(proto::StatusRequest {}, true);
        let answer = self.runtime.block_on(self.stub.status(request));
        self.answer(answer)
    }

    /// The tables of the server.
    ///
    /// # Errors
    /// The server is unreachable, or refuses the call.
    pub fn tables(&mut self) -> Result<proto::TablesReply, ControlError> {
        let request = self.request(proto::TablesRequest {}, true);
        let answer = self.runtime.block_on(self.stub.tables(request));
        self.answer(answer)
    }

    /// The connections of its data plane.
    ///
    /// # Errors
    /// The server is unreachable, or refuses the call.
    pub fn connections(&mut self) -> Result<proto::ConnectionsReply, ControlError> {
        let request = self.request(proto::ConnectionsRequest {}, true);
        let answer = self.runtime.block_on(self.stub.connections(request));
        self.answer(answer)
    }

    /// The keys that occur most in sampled requests.
    ///
    /// # Errors
    /// The server is unreachable, or refuses the call.
    pub fn hot(&mut self) -> Result<proto::HotReply, ControlError> {
        let request = self.request(proto::HotRequest {}, true);
        let answer = self.runtime.block_on(self.stub.hot(request));
        self.answer(answer)
    }

    /// Request latencies, by command or by peer and command.
    ///
    /// # Errors
    /// The server is unreachable, or refuses the call.
    pub fn stats(&mut self, by_peer: bool) -> Result<proto::StatsReply, ControlError> {
        let request = self.request(proto::StatsRequest { by_peer }, true);
        let answer = self.runtime.block_on(self.stub.stats(request));
        self.answer(answer)
    }

    /// Saves all tables, or as a delta what changed, and returns when that is on disk. Servers of one save get the same number.
    ///
    /// # Errors
    /// The name is invalid, or writing failed: the previous checkpoint is intact then.
    pub fn save(&mut self, name: &str, number: u64, delta: bool) -> Result<proto::SaveReply, ControlError> {
        let request = self.request(proto::SaveRequest { name: name.to_owned(), number, delta }, false);
        let answer = self.runtime.block_on(self.stub.save(request));
        self.answer(answer)
    }

    /// The save number of a checkpoint. None: the server is too old for save numbers.
    ///
    /// # Errors
    /// There is no such checkpoint, or it is damaged.
    pub fn saved(&mut self, name: &str) -> Result<Option<u64>, ControlError> {
        let request = self.request(proto::SavedRequest { name: name.to_owned() }, false);
        let answer = self.runtime.block_on(self.stub.saved(request));
        match self.answer(answer) {
            Ok(reply) => Ok(Some(reply.number)),
            Err(ControlError::Refused { code: Code::Unimplemented, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The checkpoints of the server.
    ///
    /// # Errors
    /// The server is unreachable, or has no folder for checkpoints.
    pub fn checkpoints(&mut self) -> Result<proto::CheckpointsReply, ControlError> {
        let request = self.request(proto::CheckpointsRequest {}, true);
        let answer = self.runtime.block_on(self.stub.checkpoints(request));
        self.answer(answer)
    }

    /// Replaces all tables by those of a checkpoint.
    ///
    /// # Errors
    /// There is no such checkpoint, or it is damaged: the tables stay as they are then.
    pub fn restore(&mut self, name: &str) -> Result<proto::RestoreReply, ControlError> {
        let request = self.request(proto::RestoreRequest { name: name.to_owned() }, false);
        let answer = self.runtime.block_on(self.stub.restore(request));
        self.answer(answer)
    }

    /// Drops a table and its rows.
    ///
    /// # Errors
    /// There is no table of this name.
    pub fn drop_table(&mut self, table: &str) -> Result<(), ControlError> {
        let request = self.request(proto::DropRequest { table: table.to_owned() }, true);
        let answer = self.runtime.block_on(self.stub.drop(request));
        self.answer(answer).map(|proto::DropReply {}| ())
    }

    /// Asks the server to save and end, and returns at once. The result is the number of connections that it closes.
    ///
    /// # Errors
    /// The server is unreachable, or refuses the call.
    pub fn drain(&mut self) -> Result<u64, ControlError> {
        let request = self.request(proto::DrainRequest {}, true);
        let answer = self.runtime.block_on(self.stub.drain(request));
        self.answer(answer).map(|reply| reply.connections)
    }

    /// Lets another replica become the primary, and waits until it is.
    ///
    /// # Errors
    /// The server is no primary, no other replica is in sync, or the hand-over took too long and was called off.
    pub fn hand_over(&mut self) -> Result<proto::HandOverReply, ControlError> {
        let request = self.request(proto::HandOverRequest {}, false);
        let answer = self.runtime.block_on(self.stub.hand_over(request));
        self.answer(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn who_takes_a_connection_and_says_nothing_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let folder = tempfile::tempdir().expect("a folder");
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, made.cert.pem()).expect("written");
        let error =
            Client::connect(&address, &ClientOptions { ca: Some(ca), token: None }).expect_err("silence");
        assert!(matches!(error, ControlError::Unreachable { .. }), "{error}");
    }

    #[test]
    fn addresses() {
        for (address, tls, expected) in [
            ("127.0.0.1:7100", false, Ok("http://127.0.0.1:7100/")),
            ("http://host:7100/", false, Ok("http://host:7100/")),
            ("host:7100", true, Ok("https://host:7100/")),
            ("https://[::1]:7100", true, Ok("https://[::1]:7100/")),
            ("https://host:7100", false, Err("--ca-file")),
            ("http://host:7100", true, Err("write https")),
            ("tcp://host:7000", false, Err("is not of the form")),
            ("unix:/run/x", false, Err("no port")),
            ("host", false, Err("no port")),
            ("", false, Err("is not of the form")),
            ("a b:1", false, Err("is not of the form")),
        ] {
            match (url_of(address, tls), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found.to_string(), expected, "{address}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{address}: {found}"),
                (found, _) => panic!("{address}: {found:?}"),
            }
        }
    }
}
