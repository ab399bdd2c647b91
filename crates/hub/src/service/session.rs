//! The protocol of one connection, without I/O: frames in, replies out. It keeps the negotiated settings; leases are
//! the lease table's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use sanderling_observe::SpanQueue;
use sanderling_wire::{
    Agreed, Buffer, Codec, Column, Compression, Failure, Fault, Features, Frame, HEADER_BYTES, Hello,
    Identity, Kind, Left, NextReply, Offer, Outcome, Parsed, Pong, Reply, Request, Subscribed, WireError,
    limit, same_token,
};

use super::batch_reply::BatchReply;
use super::feeding;
use super::lease_queue::LeaseQueue;
use super::leases::Answer;
use super::limit::{IN_FLIGHT_MAX, RETRY_AFTER};
use super::traced::Traced;

/// The reply to a request for minibatches without a subscription.
const NOT_SUBSCRIBED: &str =
    "no trainer is subscribed on this connection; another one took its name, or it has unsubscribed";

/// Facts that all connections are told.
#[derive(Debug)]
pub(crate) struct HubFacts {
    pub(crate) name: String,
    pub(crate) token: Option<String>,
    pub(crate) frame_bytes_max: u32,
    pub(crate) boot_id: u64,
    pub(crate) host_id: u64,
    pub(crate) passes: u64,
    pub(crate) rows: u32,
    pub(crate) stride: u32,
    /// The features whose keys are fed to servers, as text; empty if none.
    pub(crate) feeds: String,
    /// The description of the rows; `None`: it is too long to be sent.
    pub(crate) description: Option<String>,
    /// The features: name, and whether keys carry values.
    pub(crate) columns: Vec<(String, bool)>,
    /// Where the spans of traced minibatches go.
    pub(crate) spans: Option<Arc<SpanQueue>>,
}

/// A reply to be sent.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// A whole frame.
    Frame(Buffer),
    /// A whole frame that is never compressed.
    Plain(Buffer),
    /// A compressed frame, which the session keeps until it is sent.
    Packed,
    /// A minibatch, encoded straight into the transport's memory.
    BatchReply { id: u64, leased: BatchReply },
}

/// The protocol state of one connection.
#[derive(Debug)]
pub(crate) struct Session {
    /// The connection's number in the lease table.
    pub(crate) connection: u64,
    pub(crate) since: Instant,
    pub(crate) greeted: bool,
    /// Whether the connection closes once the pending replies are sent.
    pub(crate) closing: bool,
    /// The reply that did not fit into the connection yet.
    pub(crate) pending: Option<Outgoing>,
    /// Replies in request order, each with the number of changes that must be in the journal before it is sent.
    pub(crate) waiting: VecDeque<(u64, Outgoing)>,
    /// Whether the session is on the list that is checked after each journal write.
    pub(crate) is_listed: bool,
    /// The number of changes that must be in the journal before the latest reply is sent.
    pub(crate) after: u64,
    agreed: Agreed,
    offer: Offer,
    packing: Packing,
    traced: Traced,
}

/// Compression of one connection's frames. Takes at most four of its longest frames of memory once something was
/// compressed.
#[derive(Debug)]
struct Packing {
    /// The compression that the trainer chose, or the only one it offered.
    how: Option<Compression>,
    codec: Box<Codec>,
    unpacker: Box<Codec>,
    plain: Buffer,
    packed: Buffer,
}

impl Packing {
    fn new(frame_bytes_max: u32) -> Packing {
        let buffer = |times: usize| Buffer::new(times * frame_bytes_max as usize);
        Packing {
            how: None,
            codec: Box::default(),
            unpacker: Box::default(),
            plain: buffer(1),
            // An incompressible frame may grow.
            packed: buffer(2),
        }
    }
}

impl Session {
    pub(crate) fn new(connection: u64, features: Features, facts: &HubFacts, since: Instant) -> Session {
        let describes = if facts.description.is_some() { Features::DESCRIBE } else { Features::NONE };
        let traces = if facts.spans.is_some() { Features::TRACES } else { Features::NONE };
        let features = features | Features::LEAVE | Features::FED | describes | traces;
        let offer = Offer { frame_bytes_max: facts.frame_bytes_max, ..Offer::of(features) };
        let agreed = Agreed::BEFORE_HELLO;
        Session {
            connection,
            since,
            greeted: false,
            closing: false,
            pending: None,
            waiting: VecDeque::new(),
            is_listed: false,
            after: 0,
            agreed,
            offer,
            packing: Packing::new(facts.frame_bytes_max),
            traced: Traced::default(),
        }
    }

    /// The longest frame accepted now: a short one before the hello.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.agreed.frame_bytes_max as usize
    }

    /// Answers a frame. `None`: it has no answer.
    ///
    /// # Errors
    ///
    /// The stream has lost its framing: the connection must be closed.
    pub(crate) fn answer(
        &mut self,
        bytes: &[u8],
        facts: &HubFacts,
        lease_queue: &LeaseQueue,
        statistics: &dyn Fn() -> super::Status,
    ) -> Result<Option<Outgoing>, WireError> {
        self.after = 0;
        let Parsed::Frame(frame) = Frame::parse(bytes, &self.agreed)? else {
            let (needed, found) = (HEADER_BYTES as u64, bytes.len() as u64);
            return Err(WireError::Cut { what: "frame", needed, found });
        };
        // The answer to a hello is always plain.
        if !self.greeted {
            let outgoing = self.answer_plain(&frame, facts, lease_queue, statistics)?;
            return Ok(Some(match outgoing {
                Outgoing::Frame(buffer) => Outgoing::Plain(buffer),
                other => other,
            }));
        }
        if frame.header.kind == Kind::Trace
            && let Ok(Request::Trace(trace)) = Request::decode(&frame)
        {
            self.traced.announce(&trace);
            return Ok(None);
        }
        if let Some(how) = Compression::of(&frame.header) {
            self.packing.how = Some(how);
        }
        let mut unpacker = std::mem::take(&mut self.packing.unpacker);
        let outgoing = match unpacker.unpack(frame, &self.agreed) {
            Ok(frame) => self.answer_plain(&frame, facts, lease_queue, statistics),
            Err(error) => {
                let (id, kind, reason) = (frame.header.id, frame.header.kind, error.to_string());
                self.frame(id, &Reply::Failed(Failure { kind, fault: Fault::BadRequest, reason: &reason }))
            }
        };
        self.packing.unpacker = unpacker;
        outgoing.map(Some)
    }

    /// Compresses the next reply, if the trainer wants that and it becomes shorter.
    pub(crate) fn pack(&mut self, outgoing: Outgoing) -> Result<Outgoing, WireError> {
        let Some(how) = self.packing.how else { return Ok(outgoing) };
        let is_plain = matches!(outgoing, Outgoing::Plain(_));
        if is_plain || self.frame_bytes(&outgoing)? < HEADER_BYTES + limit::PACK_BYTES_MIN {
            return Ok(outgoing);
        }
        let mut plain = std::mem::replace(&mut self.packing.plain, Buffer::new(0));
        plain.clear();
        let written = plain.append(|out| self.write(&outgoing, out));
        let Packing { codec, packed, .. } = &mut self.packing;
        packed.clear();
        let is_packed = written.is_ok() && codec.pack(plain.bytes(), how, &self.agreed, packed).is_ok();
        self.packing.plain = plain;
        // An incompressible reply is sent plain.
        Ok(if is_packed { Outgoing::Packed } else { outgoing })
    }

    fn answer_plain(
        &mut self,
        frame: &Frame<'_>,
        facts: &HubFacts,
        lease_queue: &LeaseQueue,
        statistics: &dyn Fn() -> super::Status,
    ) -> Result<Outgoing, WireError> {
        let (id, kind) = (frame.header.id, frame.header.kind);
        let refuse = |fault, reason: &str| self.frame(id, &Reply::Failed(Failure { kind, fault, reason }));
        let request = match Request::decode(frame) {
            Ok(request) => request,
            Err(error) => return refuse(Fault::BadRequest, &error.to_string()),
        };
        match request {
            Request::Hello(hello) => self.greet(id, &hello, facts),
            _ if !self.greeted => {
                let answer = refuse(Fault::BadRequest, "send a hello first");
                self.closing = true;
                answer
            }
            Request::Ping(ping) => {
                let bytes = vec![0; ping.reply_bytes as usize];
                self.frame(id, &Reply::Ping(Pong { serving: true, bytes: &bytes }))
            }
            Request::Stats(_) => {
                let status = statistics();
                self.frame(id, &Reply::Stats(status.statistics(&status.counters())))
            }
            Request::Subscribe(_) if !facts.feeds.is_empty() && !self.agreed.features.has(Features::FED) => {
                let reason = format!(
                    "this hub feeds the keys of {} to parameter servers, and this trainer does not take minibatches without them: \
                     train with a feed queue over tables on those servers, or start the hub without --feed",
                    facts.feeds
                );
                refuse(Fault::BadRequest, &reason)
            }
            Request::Subscribe(request) => {
                let mut leases = lease_queue.leases();
                match leases.subscribe(self.connection, &request) {
                    Ok(admitted) => {
                        self.after = leases.changes();
                        lease_queue.made_room();
                        lease_queue.changed();
                        let column = |(name, weighted): &'_ (String, bool)| (name.clone(), *weighted);
                        let columns: Vec<_> = facts.columns.iter().map(column).collect();
                        let subscribed = Subscribed {
                            stream: leases.stream(),
                            passes: facts.passes,
                            rows: facts.rows,
                            window: admitted.window,
                            stride: facts.stride,
                            late: &admitted.late,
                            columns: columns
                                .iter()
                                .map(|(name, weighted)| Column { name, weighted: *weighted })
                                .collect(),
                        };
                        self.frame(id, &Reply::Subscribe(subscribed))
                    }
                    Err(reason) => refuse(Fault::BadRequest, &reason),
                }
            }
            Request::Next(next) => {
                let mut leases = lease_queue.leases();
                let Some((late, answer)) = leases.next(self.connection, next.wanted, next.used) else {
                    return refuse(Fault::BadRequest, NOT_SUBSCRIBED);
                };
                self.after = match &answer {
                    _ if !next.used.is_empty() => leases.changes(),
                    Answer::Batch { .. } | Answer::Fed { .. } => leases.changes_before_hand_out(),
                    _ => 0,
                };
                drop(leases);
                lease_queue.made_room();
                lease_queue.changed();
                self.note_leases(facts, next.used, &answer);
                let outcome = match answer {
                    Answer::Batch { number, batch } => {
                        return Ok(Outgoing::BatchReply {
                            id,
                            leased: BatchReply::Batch { late, number, batch },
                        });
                    }
                    Answer::Fed { number, batch, fed, age_us } => {
                        let leased = match feeding::rest(number, &batch, &fed) {
                            Ok(payload) => BatchReply::Fed { late, number, batch, fed, age_us, payload },
                            // It was packed before. The minibatch with its keys is equally valid.
                            Err(_) => BatchReply::Batch { late, number, batch },
                        };
                        return Ok(Outgoing::BatchReply { id, leased });
                    }
                    Answer::Failed(reason) => {
                        let outcome = Outcome::Failed { reason: &reason };
                        return self.frame(id, &Reply::Next(NextReply { late: &late, outcome }));
                    }
                    other => without_batch(&other),
                };
                self.frame(id, &Reply::Next(NextReply { late: &late, outcome }))
            }
            Request::Keys(keys) => {
                let Some(answer) = lease_queue.leases().keys(self.connection, keys.number) else {
                    return refuse(Fault::BadRequest, NOT_SUBSCRIBED);
                };
                match answer {
                    Answer::Batch { number, batch } => {
                        Ok(Outgoing::BatchReply { id, leased: BatchReply::Whole { number, batch } })
                    }
                    Answer::Failed(reason) => {
                        self.frame(id, &Reply::Keys(Outcome::Failed { reason: &reason }))
                    }
                    other => self.frame(id, &Reply::Keys(without_batch(&other))),
                }
            }
            Request::Leave(leave) => {
                let mut leases = lease_queue.leases();
                let Some((late, _)) = leases.leave(self.connection, leave.used) else {
                    return refuse(Fault::BadRequest, NOT_SUBSCRIBED);
                };
                self.after = leases.changes();
                lease_queue.changed();
                self.frame(id, &Reply::Leave(Left { late: &late }))
            }
            Request::Describe => match &facts.description {
                Some(text) => self.frame(id, &Reply::Describe(text)),
                None => refuse(Fault::BadRequest, "the description of the rows is too long to be sent"),
            },
            _ => refuse(Fault::BadRequest, "this is a hub; tables are on parameter servers"),
        }
    }

    /// Notes what is traced of acknowledged minibatches and of one that the trainer gets.
    fn note_leases(&mut self, facts: &HubFacts, used: &[u64], answer: &Answer) {
        let Some(spans) = facts.spans.as_ref().filter(|_| self.agreed.features.has(Features::TRACES)) else {
            return;
        };
        self.traced.acknowledge(used, spans);
        if let Answer::Batch { number, batch } | Answer::Fed { number, batch, .. } = answer {
            self.traced.lease(*number, batch);
        }
    }

    fn greet(&mut self, id: u64, hello: &Hello<'_>, facts: &HubFacts) -> Result<Outgoing, WireError> {
        let refused = |fault, reason: &str| {
            let reply = Reply::Failed(Failure { kind: Kind::Hello, fault, reason });
            encoded(|out| reply.encode(&Agreed::BEFORE_HELLO, id, out))
        };
        if self.greeted {
            return self.frame(
                id,
                &Reply::Failed(Failure {
                    kind: Kind::Hello,
                    fault: Fault::BadRequest,
                    reason: "this connection has sent a hello before",
                }),
            );
        }
        // After any error the connection is closed.
        self.closing = true;
        if let Some(token) = &facts.token
            && !same_token(token, hello.token)
        {
            return refused(Fault::Unauthorized, "the token is missing or wrong");
        }
        let agreed = match self.offer.meet(&hello.offer) {
            Ok(agreed) => agreed,
            Err(fault) => return refused(fault, &fault.to_string()),
        };
        let identity = Identity {
            agreed,
            in_flight_max: IN_FLIGHT_MAX,
            shard: 0,
            shards: 1,
            server_id: 0,
            boot_id: facts.boot_id,
            host_id: facts.host_id,
            placement_version: 0,
            history_id: 0,
            name: &facts.name,
            local_url: "",
        };
        let answer = encoded(|out| Reply::Hello(identity).encode(&Agreed::BEFORE_HELLO, id, out));
        (self.agreed, self.greeted, self.closing) = (agreed, true, false);
        self.packing.how = Compression::wanted(agreed.features);
        answer
    }

    fn frame(&self, id: u64, reply: &Reply<'_>) -> Result<Outgoing, WireError> {
        encoded(|out| reply.encode(&self.agreed, id, out))
    }

    /// The frame's length in bytes.
    pub(crate) fn frame_bytes(&self, outgoing: &Outgoing) -> Result<usize, WireError> {
        match outgoing {
            Outgoing::Frame(buffer) | Outgoing::Plain(buffer) => Ok(buffer.len()),
            Outgoing::Packed => Ok(self.packing.packed.len()),
            Outgoing::BatchReply { leased, .. } => leased.reply().frame_bytes(),
        }
    }

    /// Writes the frame and returns its length.
    pub(crate) fn write(&self, outgoing: &Outgoing, out: &mut [u8]) -> Result<usize, WireError> {
        match outgoing {
            Outgoing::Frame(buffer) | Outgoing::Plain(buffer) => copy_to(buffer.bytes(), out),
            Outgoing::Packed => copy_to(self.packing.packed.bytes(), out),
            Outgoing::BatchReply { id, leased } => leased.reply().encode(&self.agreed, *id, out),
        }
    }
}

/// The outcome of a request that gets no minibatch.
fn without_batch(answer: &Answer) -> Outcome<'static> {
    match answer {
        Answer::Wait => Outcome::Wait { retry_after_us: RETRY_AFTER.as_micros() as u64 },
        Answer::Over => Outcome::Over,
        Answer::Nothing | Answer::Batch { .. } | Answer::Fed { .. } | Answer::Failed(_) => Outcome::Nothing,
    }
}

/// Copies bytes to the start of `out` and returns their number; without room an error with the length needed, as
/// encoders do.
fn copy_to(bytes: &[u8], out: &mut [u8]) -> Result<usize, WireError> {
    let (needed, found) = (bytes.len(), out.len());
    out.get_mut(..needed).ok_or(WireError::NoRoom { needed, found })?.copy_from_slice(bytes);
    Ok(needed)
}

fn encoded(encode: impl FnMut(&mut [u8]) -> Result<usize, WireError>) -> Result<Outgoing, WireError> {
    let mut buffer = Buffer::new(limit::FRAME_BYTES_MAX);
    buffer.append(encode)?;
    Ok(Outgoing::Frame(buffer))
}

#[cfg(test)]
mod tests;
