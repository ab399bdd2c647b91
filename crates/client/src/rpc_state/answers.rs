//! Handles received frames: greetings, answers, farewells, and invalid bytes.

use sanderling_wire::{Codec, Fault, Frame, Identity, Parsed, Reply, WireError, on_one_line};

use crate::error::said;

use super::{Answer, BACKOFF_MAX_US, BACKOFF_MIN_US, CallError, Peer, Phase, RpcState};

/// Why a pull is asked for again.
const OVERTOOK: &str = "the server had no time for a push before it";

impl RpcState {
    /// Takes a received frame, which `codec` decompresses. If it shows that the connection is of no use, [`RpcState::want`]
    /// will say so.
    pub(crate) fn receive<'a>(&mut self, now_us: u64, bytes: &'a [u8], codec: &'a mut Codec) -> Answer<'a> {
        if matches!(self.phase, Phase::Closing { .. } | Phase::Down { .. }) {
            // Frames that were behind the one that ended it.
            return Answer::None;
        }
        match self.understand(now_us, bytes, codec) {
            Ok(answer) => answer,
            Err(error @ WireError::Checksum { .. }) => {
                // Damaged on the way: another connection may do better.
                self.give_up(now_us, &error.to_string());
                Answer::None
            }
            Err(error) => {
                self.calls.fail_all(&CallError::Protocol { reason: error.to_string() });
                self.give_up(now_us, &error.to_string());
                Answer::None
            }
        }
    }

    fn understand<'a>(
        &mut self,
        now_us: u64,
        bytes: &'a [u8],
        codec: &'a mut Codec,
    ) -> Result<Answer<'a>, WireError> {
        let agreed = self.agreed();
        let frame = match Frame::parse(bytes, &agreed)? {
            Parsed::Frame(frame) if frame.header.frame_bytes() == bytes.len() => frame,
            _ => return Err(WireError::Trailing { found: bytes.len() as u64 }),
        };
        (self.heard_us, self.given_up) = (now_us, false);
        let frame = codec.unpack(frame, &agreed)?;
        let reply = Reply::decode(&frame)?;
        let id = frame.header.id;
        match (self.phase, reply) {
            (Phase::Greeting { sent: true }, Reply::Hello(identity)) => self.greeted(now_us, &identity)?,
            (Phase::Greeting { sent: true }, Reply::Failed(failure)) => {
                if !matches!(failure.fault, Fault::Busy { .. } | Fault::Draining) {
                    self.calls.fail_all(&CallError::Refused {
                        fault: failure.fault,
                        reason: failure.reason.to_owned(),
                    });
                }
                self.give_up(now_us, &said(&failure.fault, failure.reason));
            }
            (Phase::Greeting { .. }, Reply::Goaway(goaway)) => {
                self.give_up(now_us, &on_one_line(goaway.reason));
            }
            (Phase::Up | Phase::Leaving, Reply::Goaway(goaway)) => {
                self.cause = Some(on_one_line(goaway.reason));
                self.phase = Phase::Leaving;
            }
            (Phase::Up | Phase::Leaving, reply) => return self.answered(now_us, id, reply),
            (_, reply) => {
                return Err(WireError::Direction { kind: reply.kind(), expected: "the answer to a hello" });
            }
        }
        Ok(Answer::None)
    }

    fn greeted(&mut self, now_us: u64, identity: &Identity<'_>) -> Result<(), WireError> {
        let place = (identity.shard, identity.shards);
        if self.place.is_some_and(|expected| expected != place) {
            let reason = format!("it is now shard {} of {}; connect anew", place.0, place.1);
            self.calls.fail_all(&CallError::Protocol { reason: reason.clone() });
            self.give_up(now_us, &reason);
            return Ok(());
        }
        self.agreed = self.offer.accept(identity.agreed)?;
        let peer = self.peer.insert(Peer::of(identity));
        self.calls.greeted(peer, &self.agreed);
        (self.phase, self.hold_until_us) = (Phase::Up, 0);
        Ok(())
    }

    fn answered<'a>(&mut self, now_us: u64, id: u64, reply: Reply<'a>) -> Result<Answer<'a>, WireError> {
        let Some((slot, kind)) = self.calls.find(id) else {
            // The answer to a request that was given up is late, not wrong.
            return if self.calls.was_asked(id) {
                Ok(Answer::None)
            } else {
                Err(WireError::Value { what: "id", found: id })
            };
        };
        if kind != reply.kind() {
            return Err(WireError::Direction { kind: reply.kind(), expected: "the answer to its request" });
        }
        if let Reply::Failed(failure) = &reply {
            match failure.fault {
                // There is little time, and to wait with all others of the connection takes it from them, too.
                Fault::Busy { .. } if self.calls.is_limited(slot) => {}
                Fault::Busy { retry_after_us } => {
                    self.attempts = self.attempts.saturating_add(1);
                    let least = retry_after_us.clamp(BACKOFF_MIN_US, BACKOFF_MAX_US);
                    self.hold_until_us = now_us + least + self.random.below(least << self.attempts.min(4));
                    self.calls.put_off(slot, &said(&failure.fault, failure.reason));
                    return Ok(Answer::None);
                }
                Fault::NotPrimary { .. } | Fault::Draining
                    if failure.fault == Fault::Draining || self.follows_group =>
                {
                    // It was not carried out. Perhaps the server comes back in time, or another one is the primary.
                    let why = said(&failure.fault, failure.reason);
                    self.cause = Some(why.clone());
                    self.phase = Phase::Leaving;
                    self.calls.put_off(slot, &why);
                    return Ok(Answer::None);
                }
                _ => {}
            }
        }
        if self.calls.is_early(slot) {
            self.calls.ask_again(slot, OVERTOOK);
            return Ok(Answer::None);
        }
        self.attempts = 0;
        Ok(Answer::To(self.calls.answered(slot), reply))
    }
}
