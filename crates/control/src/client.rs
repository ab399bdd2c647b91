//! The other side of the control plane, for programs that block: one server, one call at a time. Knows no terminal.

use std::path::PathBuf;

use sanderling_transport::{own_token, tls_reason};
use tokio::runtime::Runtime;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Uri};
use tonic::{Code, Request, Response, Status};

use crate::limit::{ANSWER_WITHIN, CONNECT_WITHIN, KEEPALIVE_EVERY, KEEPALIVE_WITHIN, REPLY_BYTES_MAX};
use crate::proto;
use crate::proto::control_client::ControlClient;

/// How a server is asked.
#[derive(Debug, Clone, Default)]
pub struct ClientOptions {
    /// The server's token; none: the one that a server of this user has made for itself, if there is one.
    pub token: Option<String>,
    /// Certificates to trust (PEM); then it is TLS.
    pub ca: Option<PathBuf>,
}

/// Why a server did not do what it was asked; each names the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The text is no address, or the options contradict it.
    #[error("{address:?}: {reason}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// The thread's own resources.
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
    /// Nobody answers there, or not by this protocol.
    #[error(
        "{url}: not reached: {reason}; is the server running, and is this its control address? It prints \"control at\" \
         with it, by default the port of --listen plus 100"
    )]
    Unreachable {
        /// The server.
        url: String,
        /// What happened.
        reason: String,
    },
    /// The server says no.
    #[error("{url}: {reason}")]
    Refused {
        /// The server.
        url: String,
        /// What kind of refusal it is.
        code: Code,
        /// The server's words.
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

/// Where a server is, as a URL.
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

/// What a peer says. It stays on one line, or it could look as if something else had been said.
pub(crate) fn on_one_line(said: &str) -> String {
    said.replace(char::is_control, " ")
}

/// What lies at the bottom of an error: "connection refused" rather than "transport error".
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
    /// [`ControlError::Address`] when the address makes no sense, [`ControlError::Unreachable`] when nobody answers.
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
        // The library's own limit ends with TCP; agreeing on TLS has none.
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

    /// With the token, and, when the answer takes only a look, with a time by which it is there.
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
                // What the server itself says has no source.
                Some(source) => ControlError::Unreachable { url, reason: root_cause(source) },
                None => {
                    let code = status.code();
                    let reason = match status.message() {
                        // The control plane gives reasons for whatever it refuses.
                        "" => format!("{}; is this the control plane's port?", code.description()),
                        said => on_one_line(said),
                    };
                    ControlError::Refused { url, code, reason }
                }
            }
        })
    }

    /// How the server is.
    ///
    /// # Errors
    /// As all calls: it is not reached, or refuses.
    pub fn status(&mut self) -> Result<proto::StatusReply, ControlError> {
        let request = self.request(proto::StatusRequest {}, true);
        let answer = self.runtime.block_on(self.stub.status(request));
        self.answer(answer)
    }

    /// Its tables.
    ///
    /// # Errors
    /// As all calls.
    pub fn tables(&mut self) -> Result<proto::TablesReply, ControlError> {
        let request = self.request(proto::TablesRequest {}, true);
        let answer = self.runtime.block_on(self.stub.tables(request));
        self.answer(answer)
    }

    /// Who is connected to its data plane.
    ///
    /// # Errors
    /// As all calls.
    pub fn connections(&mut self) -> Result<proto::ConnectionsReply, ControlError> {
        let request = self.request(proto::ConnectionsRequest {}, true);
        let answer = self.runtime.block_on(self.stub.connections(request));
        self.answer(answer)
    }

    /// How long requests took, by command or by peer and command.
    ///
    /// # Errors
    /// As all calls.
    pub fn stats(&mut self, by_peer: bool) -> Result<proto::StatsReply, ControlError> {
        let request = self.request(proto::StatsRequest { by_peer }, true);
        let answer = self.runtime.block_on(self.stub.stats(request));
        self.answer(answer)
    }

    /// Saves all tables; returns when they are on disk. All servers that are asked at once are given one number.
    ///
    /// # Errors
    /// The name is impossible, or writing failed; then what was saved before is intact.
    pub fn save(&mut self, name: &str, number: u64) -> Result<proto::SaveReply, ControlError> {
        let request = self.request(proto::SaveRequest { name: name.to_owned(), number }, false);
        let answer = self.runtime.block_on(self.stub.save(request));
        self.answer(answer)
    }

    /// The number of the save of this name; none of a server that does not know of numbers.
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

    /// Its checkpoints.
    ///
    /// # Errors
    /// As all calls; the server has no folder for checkpoints.
    pub fn checkpoints(&mut self) -> Result<proto::CheckpointsReply, ControlError> {
        let request = self.request(proto::CheckpointsRequest {}, true);
        let answer = self.runtime.block_on(self.stub.checkpoints(request));
        self.answer(answer)
    }

    /// Puts the tables of a checkpoint in the place of all.
    ///
    /// # Errors
    /// There is no such checkpoint, or it is damaged; then the tables stay as they are.
    pub fn restore(&mut self, name: &str) -> Result<proto::RestoreReply, ControlError> {
        let request = self.request(proto::RestoreRequest { name: name.to_owned() }, false);
        let answer = self.runtime.block_on(self.stub.restore(request));
        self.answer(answer)
    }

    /// Drops a table and its rows.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn drop_table(&mut self, table: &str) -> Result<(), ControlError> {
        let request = self.request(proto::DropRequest { table: table.to_owned() }, true);
        let answer = self.runtime.block_on(self.stub.drop(request));
        self.answer(answer).map(|proto::DropReply {}| ())
    }

    /// Asks the server to save and end; returns before it has. How many connections it tells to go.
    ///
    /// # Errors
    /// As all calls.
    pub fn drain(&mut self) -> Result<u64, ControlError> {
        let request = self.request(proto::DrainRequest {}, true);
        let answer = self.runtime.block_on(self.stub.drain(request));
        self.answer(answer).map(|reply| reply.connections)
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
