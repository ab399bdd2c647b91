//! Connections to the other replicas: a thread for each, which connects, greets and sends. What finds no room is
//! dropped, because the machine sends it again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use sanderling_replica::Member;
use sanderling_transport::{
    Address, ConnectOptions, Connection, Endpoint, Error, Received, TlsClient, connect, own_token,
};
use sanderling_wire::{
    Agreed, Features, Frame, HEADER_BYTES, Hello, Offer, Parsed, Replicate, Reply, Request, limit,
};

use super::codec::Outgoing;
use super::{Replication, Spoken};
use crate::limit::{PEER_CONNECT_WITHIN, PEER_FRAMES_MAX, PEER_RETRY};
use crate::listen::framing;

/// How often an idle connection is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Longest buffer that a link keeps.
const BUFFER_BYTES_MAX: usize = 4 << 20;

/// How this server reaches the others.
#[derive(Debug, Clone)]
pub(crate) struct PeerOptions {
    /// Its own address.
    pub(crate) url: String,
    pub(crate) token: Option<String>,
    pub(crate) tls: Option<TlsClient>,
    pub(crate) name: String,
}

/// The connections by member. A server that starts again is another member.
#[derive(Debug)]
pub(super) struct Peers {
    options: Arc<PeerOptions>,
    shared: Arc<Replication>,
    links: HashMap<Member, Link>,
}

#[derive(Debug)]
struct Link {
    url: String,
    messages: SyncSender<Outgoing>,
}

impl Peers {
    pub(super) fn new(options: PeerOptions, shared: Arc<Replication>) -> Peers {
        Peers { options: Arc::new(options), shared, links: HashMap::new() }
    }

    pub(super) fn options(&self) -> PeerOptions {
        (*self.options).clone()
    }

    /// Sends a message to a member. The thread of its link encodes it.
    pub(super) fn send(&mut self, to: Member, url: &str, message: Outgoing) {
        if self.links.get(&to).is_none_or(|link| link.url != url) {
            // The thread of a dropped link ends.
            self.links.retain(|member, _| member.server != to.server);
            let (messages, queued) = sync_channel(PEER_FRAMES_MAX);
            let (options, shared, address) =
                (Arc::clone(&self.options), Arc::clone(&self.shared), url.to_owned());
            let thread = std::thread::Builder::new().name(format!("replica-{}", to.server));
            let run = move || run(to, &address, &options, &shared, &queued);
            if thread.spawn(run).is_err() {
                return;
            }
            self.links.insert(to, Link { url: url.to_owned(), messages });
        }
        let link = &self.links[&to];
        drop(link.messages.try_send(message));
    }
}

/// Serves one link until it is dropped.
fn run(to: Member, url: &str, options: &PeerOptions, shared: &Replication, queued: &Receiver<Outgoing>) {
    loop {
        match reach(to, url, options, shared.spoken) {
            Ok((mut connection, agreed)) => {
                let refused = |reason: &str| {
                    shared.note_refusal(format!("server {} at {url} refuses messages: {reason}", to.server));
                };
                if serve(&mut connection, &agreed, options, queued, refused).is_ok() {
                    return;
                }
            }
            Err(Unreached::Ended) => shared.note_end(to),
            Err(Unreached::Other) => {}
        }
        // Waiting messages are old by the next attempt.
        let until = Instant::now() + PEER_RETRY;
        loop {
            match queued.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// Why a member was not reached.
pub(super) enum Unreached {
    /// Its process has ended: its port is closed, or another process listens there.
    Ended,
    Other,
}

/// Reaches a member, for messages of the versions that this server speaks.
pub(super) fn reach(
    to: Member,
    url: &str,
    options: &PeerOptions,
    spoken: Spoken,
) -> Result<(Connection, Agreed), Unreached> {
    let address: Address = url.parse().map_err(|_| Unreached::Other)?;
    let mut by = ConnectOptions::new(framing(limit::FRAME_BYTES_MAX as u32));
    (by.timeout, by.tls, by.spin_us) = (PEER_CONNECT_WITHIN, options.tls.clone(), 0);
    let mut connection = connect(&address, &by).map_err(|error| match error {
        Error::Refused { .. } => Unreached::Ended,
        _ => Unreached::Other,
    })?;
    let own = |endpoint: &Endpoint| own_token(&endpoint.host, endpoint.port);
    let token = match (&options.token, &address) {
        (Some(token), _) => token.clone(),
        (None, address) => address.endpoints().first().and_then(own).unwrap_or_default(),
    };
    let features = if address.in_memory() { Features::NO_CHECKSUM } else { Features::NONE };
    let offer = Offer::of(features | spoken.features());
    let hello = Request::Hello(Hello { offer, token: &token, name: &options.name });
    let (boot_id, agreed) = greet(&mut connection, &hello, &offer).ok_or(Unreached::Other)?;
    if boot_id == to.boot { Ok((connection, agreed)) } else { Err(Unreached::Ended) }
}

/// Says hello; returns who answers, and the terms.
fn greet(connection: &mut Connection, hello: &Request<'_>, offer: &Offer) -> Option<(u64, Agreed)> {
    send(connection, hello, &Agreed::BEFORE_HELLO).ok()?;
    connection.sender.flush().ok()?;
    let until = Instant::now() + PEER_CONNECT_WITHIN;
    let reply = connection.receiver.receive(Some(until)).ok()??;
    let Ok(Parsed::Frame(frame)) = Frame::parse(reply, &Agreed::BEFORE_HELLO) else { return None };
    let Ok(Reply::Hello(identity)) = Reply::decode(&frame) else { return None };
    let agreed = offer.accept(identity.agreed).ok()?;
    agreed.features.has(Features::REPLICATE).then_some((identity.boot_id, agreed))
}

pub(super) fn send(
    connection: &mut Connection,
    request: &Request<'_>,
    agreed: &Agreed,
) -> Result<(), String> {
    let bytes = request.frame_bytes().map_err(|error| error.to_string())?;
    let mut slot = connection.sender.frame(bytes).map_err(|error| error.to_string())?;
    let written = request.encode(agreed, 0, 0, &mut slot).map_err(|error| error.to_string())?;
    slot.commit(written);
    Ok(())
}

/// Sends until the link is dropped, or the connection fails.
fn serve(
    connection: &mut Connection,
    agreed: &Agreed,
    options: &PeerOptions,
    queued: &Receiver<Outgoing>,
    refused: impl Fn(&str),
) -> Result<(), String> {
    let mut buffer = Vec::new();
    loop {
        let first = match queued.recv_timeout(LOOK) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        for message in first.into_iter().chain(queued.try_iter().take(PEER_FRAMES_MAX)) {
            message.encode(&mut buffer, |envelope| {
                // Whatever does not fit, the other side would refuse.
                if envelope.len() + options.url.len() + HEADER_BYTES + 64 > agreed.frame_bytes_max as usize {
                    return Ok(());
                }
                send(connection, &Request::Replicate(Replicate { url: &options.url, envelope }), agreed)
            })?;
        }
        buffer.shrink_to(BUFFER_BYTES_MAX);
        connection.sender.flush().map_err(|error| error.to_string())?;
        // Nothing comes but refusals, and the end.
        loop {
            match connection.receiver.try_receive().map_err(|error| error.to_string())? {
                Received::Frame(bytes) => {
                    if let Ok(Parsed::Frame(frame)) = Frame::parse(bytes, agreed)
                        && let Ok(Reply::Failed(failure)) = Reply::decode(&frame)
                    {
                        refused(failure.reason);
                    }
                }
                Received::Nothing => break,
                Received::End => return Err("closed".to_owned()),
            }
        }
    }
}
