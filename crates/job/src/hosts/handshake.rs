//! The first frames of a connection between two workers: hello, token, and whether they belong to the same job. Knows
//! one connection at a time.

use std::time::Instant;

use sanderling_transport::{Connection, Error};
use sanderling_wire::{
    Agreed, Failure, Fault, Features, Frame, Hello, Identity, Join, Joined, Kind, Offer, Parsed, Reply,
    Request, limit, on_one_line, same_token,
};

use super::control_msg::frame;

/// Why a connection was not made.
#[derive(Debug)]
pub(super) enum HandshakeError {
    /// The other side does not want it, or is no worker: there is no use in trying again.
    Refused(String),
    /// It was cut, or has gone.
    Broken(String),
    /// TLS failed, or nothing came in time.
    Unheard(String),
}

fn broken(error: impl std::fmt::Display) -> HandshakeError {
    HandshakeError::Broken(error.to_string())
}

fn refused(error: impl std::fmt::Display) -> HandshakeError {
    HandshakeError::Refused(error.to_string())
}

/// A peer that is no worker stays one, so there is no retry.
fn unreceived(error: Error) -> HandshakeError {
    match error {
        Error::TalksTls { .. } | Error::NotAFrame { .. } | Error::Cut { bytes: 1.., .. } => {
            HandshakeError::Refused(format!(
                "{error}; it is no worker, or one that talks TLS (--worker-cert-file) while this one does not"
            ))
        }
        Error::Tls { .. } => HandshakeError::Unheard(format!(
            "{error}; do all workers talk TLS, with certificates that --worker-ca-file has signed?"
        )),
        Error::Deadline { .. } => HandshakeError::Unheard("no whole message of it came in time".to_owned()),
        error => broken(error),
    }
}

fn send(connection: &mut Connection, bytes: &[u8]) -> Result<(), HandshakeError> {
    connection.sender.frame(bytes.len()).map_err(broken)?.write(bytes);
    connection.sender.flush().map_err(broken)
}

fn receive<'a>(
    connection: &'a mut Connection,
    agreed: &Agreed,
    until: Instant,
) -> Result<Frame<'a>, HandshakeError> {
    // Unauthenticated peers get only small frames.
    connection.receiver.limit_frames(limit::FRAME_BYTES_MIN);
    let bytes = connection.receiver.receive(Some(until)).map_err(unreceived)?;
    let bytes = bytes.ok_or_else(|| HandshakeError::Broken("it has closed the connection".to_owned()))?;
    match Frame::parse(bytes, agreed).map_err(refused)? {
        Parsed::Frame(frame) => Ok(frame),
        Parsed::Incomplete { .. } => Err(HandshakeError::Refused("half a frame".to_owned())),
    }
}

/// The side of who connects: says who it is and hears who answers.
pub(super) fn introduce(
    connection: &mut Connection,
    token: &str,
    join: &Join,
    until: Instant,
) -> Result<(Agreed, Joined), HandshakeError> {
    let offer = Offer::of(Features::NONE);
    let name = format!("worker {}", join.rank);
    let hello = Request::Hello(Hello { offer, token, name: &name });
    send(connection, frame(&hello, &Agreed::BEFORE_HELLO, 1).map_err(refused)?.bytes())?;
    let answer = receive(connection, &Agreed::BEFORE_HELLO, until)?;
    let agreed = match Reply::decode(&answer).map_err(refused)? {
        Reply::Hello(identity) => offer.accept(identity.agreed).map_err(refused)?,
        Reply::Failed(failure) => return Err(HandshakeError::Refused(on_one_line(failure.reason))),
        _ => {
            return Err(HandshakeError::Refused(
                "it is no worker: it answers with something else".to_owned(),
            ));
        }
    };
    send(connection, frame(&Request::Join(*join), &agreed, 2).map_err(refused)?.bytes())?;
    let answer = receive(connection, &agreed, until)?;
    match Reply::decode(&answer).map_err(refused)? {
        Reply::Join(joined) => {
            connection.receiver.limit_frames(limit::FRAME_BYTES_MAX);
            Ok((agreed, joined))
        }
        Reply::Failed(failure) => Err(HandshakeError::Refused(on_one_line(failure.reason))),
        _ => Err(HandshakeError::Refused("it is no worker: it answers with something else".to_owned())),
    }
}

/// The side of who is connected to: hears who comes, and answers when `admit` has nothing against it. `claimed` is who it says
/// to be, as soon as it has.
pub(super) fn welcome(
    connection: &mut Connection,
    token: Option<&str>,
    ours: Joined,
    until: Instant,
    claimed: &mut Option<u32>,
    admit: impl FnOnce(&Join) -> Result<(), String>,
) -> Result<(Agreed, Join), HandshakeError> {
    let request = receive(connection, &Agreed::BEFORE_HELLO, until)?;
    let id = request.header.id;
    let Request::Hello(hello) = Request::decode(&request).map_err(refused)? else {
        return Err(HandshakeError::Refused("it does not say hello".to_owned()));
    };
    *claimed = hello.name.strip_prefix("worker ").and_then(|rank| rank.parse().ok());
    let met = match token {
        Some(token) if !same_token(token, hello.token) => {
            Err((Fault::Unauthorized, "the token is missing or wrong (--worker-token-file)".to_owned()))
        }
        _ => Offer::of(Features::NONE).meet(&hello.offer).map_err(|fault| (fault, fault.to_string())),
    };
    let agreed = match met {
        Ok(agreed) => agreed,
        Err((fault, reason)) => {
            let failure = Reply::Failed(Failure { kind: Kind::Hello, fault, reason: &reason });
            answer(connection, &failure, &Agreed::BEFORE_HELLO, id)?;
            return Err(HandshakeError::Refused(reason));
        }
    };
    let name = format!("worker {}", ours.rank);
    let identity = Identity {
        agreed,
        in_flight_max: 1,
        shard: 0,
        shards: 1,
        server_id: 0,
        boot_id: 0,
        host_id: 0,
        placement_version: 0,
        history_id: 0,
        name: &name,
        local_url: "",
    };
    answer(connection, &Reply::Hello(identity), &Agreed::BEFORE_HELLO, id)?;
    let request = receive(connection, &agreed, until)?;
    let (id, kind) = (request.header.id, request.header.kind);
    let admitted = match Request::decode(&request).map_err(refused)? {
        Request::Join(join) => admit(&join).map(|()| join),
        _ => Err("this is a worker of a job; only other workers have something to say to it".to_owned()),
    };
    match admitted {
        Ok(join) => {
            answer(connection, &Reply::Join(ours), &agreed, id)?;
            connection.receiver.limit_frames(limit::FRAME_BYTES_MAX);
            Ok((agreed, join))
        }
        Err(reason) => {
            let failure = Reply::Failed(Failure { kind, fault: Fault::BadRequest, reason: &reason });
            answer(connection, &failure, &agreed, id)?;
            Err(HandshakeError::Refused(reason))
        }
    }
}

fn answer(
    connection: &mut Connection,
    reply: &Reply<'_>,
    agreed: &Agreed,
    id: u64,
) -> Result<(), HandshakeError> {
    let mut buffer = sanderling_wire::Buffer::new(limit::FRAME_BYTES_MIN);
    buffer.append(|out| reply.encode(agreed, id, out)).map_err(refused)?;
    send(connection, buffer.bytes())
}
