//! The unanswered requests of one server, as frames, and the order in which they are sent. Knows no connection and
//! reads no clock.

use std::collections::VecDeque;

use sanderling_wire::{Agreed, Buffer, Kind, Request, WireError, limit, refit, set_deadline};

use super::{CallError, Done, IN_FLIGHT_MAX, Needs, Peer};

/// Bits of a request's id that say where it is kept; the rest counts requests.
const SLOT_BITS: u32 = 8;
/// A frame that has waited here for less goes as it is: its checksum need not be made anew.
const AGED_US_MIN: u32 = 500;
/// A request with a short time-out of its own shows that its server is silent only if nothing was heard for so long.
const SILENT_US_MIN: u64 = 5_000_000;
/// A call's buffer that has grown beyond this is given back once the call has ended.
const KEPT_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Queued,
    Sent { at_us: u64 },
}

#[derive(Debug)]
struct Call {
    id: u64,
    tag: u64,
    kind: Kind,
    state: State,
    /// The state of the server that it needs.
    needs: Needs,
    /// May it have been carried out? It was sent, and the server did not say that it had no time for it.
    was_sent: bool,
    /// Whether it was sent before its last attempt.
    was_sent_before: bool,
    /// Why the server had no time for it, when it last said so.
    busy: Option<String>,
    /// Is it a pull that is asked for over another connection, too, or that was asked for over another one first?
    is_hedged: bool,
    /// Is it a pull, sent behind a push that the server had no time for? Then its answer may be of rows without the push.
    is_early: bool,
    began_us: u64,
    deadline_us: u64,
    /// The remaining time that its frame carries.
    within_us: u32,
    /// Has it a time-out of its own? Then whoever asked decides what to do when the server is busy.
    is_limited: bool,
    frame: Buffer,
}

impl Call {
    /// Until when a server that was away for too long may be tried for this request: one attempt is enough.
    fn last_try_until_us(&self, last_try_us: u64, vain_us: Option<u64>) -> u64 {
        let was_tried = vain_us.is_some_and(|vain_us| vain_us >= self.began_us);
        if was_tried { 0 } else { self.began_us.saturating_add(last_try_us) }
    }
}

/// A request that a server has not carried out, since keys of it are elsewhere by a placement that the server knows.
#[derive(Debug)]
pub(crate) struct MovedCall {
    /// Version of that placement.
    pub(crate) placement_version: u64,
    /// The server's words.
    pub(crate) reason: String,
    /// The request, as it was agreed on with the server.
    pub(crate) frame: Buffer,
    pub(crate) agreed: Agreed,
    pub(crate) deadline_us: u64,
    /// Has it a time-out of its own?
    pub(crate) is_limited: bool,
}

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: Vec<Call>,
    free: Vec<u32>,
    /// Calls to send, in order.
    queue: VecDeque<u32>,
    sent: usize,
    counter: u64,
    failures: VecDeque<(u64, CallError)>,
}

impl Calls {
    /// Requests that have neither an answer nor failed.
    pub(super) fn outstanding(&self) -> usize {
        self.calls.len() - self.free.len()
    }

    /// Requests that are sent and not answered.
    pub(super) fn sent(&self) -> usize {
        self.sent
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// When the first of them has to be given up.
    pub(super) fn first_deadline_us(&self) -> Option<u64> {
        self.open().map(|(_, call)| call.deadline_us).min()
    }

    /// When the first of them was asked for.
    pub(super) fn first_begun_us(&self) -> Option<u64> {
        self.open().map(|(_, call)| call.began_us).min()
    }

    /// Queues a request; where it is kept.
    pub(super) fn begin(
        &mut self,
        now_us: u64,
        timeout_us: u64,
        tag: u64,
        needs: Needs,
        request: &Request<'_>,
        agreed: &Agreed,
    ) -> Result<u32, WireError> {
        let slot = self.take_slot();
        let id = self.new_id(slot);
        let call = &mut self.calls[slot as usize];
        call.frame.clear();
        // More than 71 minutes a frame cannot say; the client's own deadline is as it was asked for.
        let within_us = u32::try_from(timeout_us).unwrap_or(u32::MAX);
        if let Err(error) = call.frame.append(|out| request.encode(agreed, id, within_us, out)) {
            self.free.push(slot);
            return Err(error);
        }
        (call.id, call.tag, call.kind, call.state) = (id, tag, request.kind(), State::Queued);
        (call.needs, call.was_sent, call.is_hedged, call.busy) = (needs, false, false, None);
        (call.began_us, call.deadline_us) = (now_us, now_us.saturating_add(timeout_us));
        (call.within_us, call.is_limited) = (within_us, false);
        self.queue.push_back(slot);
        Ok(slot)
    }

    fn take_slot(&mut self) -> u32 {
        assert!(self.outstanding() < IN_FLIGHT_MAX, "more requests than IN_FLIGHT_MAX");
        self.free.pop().unwrap_or_else(|| {
            self.calls.push(Call {
                id: 0,
                tag: 0,
                kind: Kind::Ping,
                state: State::Free,
                needs: Needs::Nothing,
                was_sent: false,
                was_sent_before: false,
                busy: None,
                is_hedged: false,
                is_early: false,
                began_us: 0,
                deadline_us: 0,
                within_us: 0,
                is_limited: false,
                frame: Buffer::new(limit::FRAME_BYTES_MAX),
            });
            self.calls.len() as u32 - 1
        })
    }

    fn new_id(&mut self, slot: u32) -> u64 {
        self.counter += 1;
        self.counter << SLOT_BITS | u64::from(slot)
    }

    /// Calls that are under way.
    fn open(&self) -> impl Iterator<Item = (u32, &Call)> {
        (0..).zip(&self.calls).filter(|(_, call)| call.state != State::Free)
    }

    /// Are there pushes without an answer?
    pub(super) fn has_pushes(&self) -> bool {
        self.open().any(|(_, call)| matches!(call.kind, Kind::Push | Kind::PushFed))
    }

    /// The pull that was asked for longest ago, over this connection only, and when.
    pub(super) fn oldest_pull(&self) -> Option<(u32, u64)> {
        let alone = self.open().filter(|(_, call)| call.kind.has_rows() && !call.is_hedged);
        alone.map(|(slot, call)| (slot, call.began_us)).min_by_key(|(_, began_us)| *began_us)
    }

    /// Queues a pull that is under way elsewhere; where it is kept.
    pub(super) fn repeat(&mut self, other: &mut Calls, slot: u32, agreed: &Agreed) -> Result<u32, WireError> {
        let from = &mut other.calls[slot as usize];
        let to = self.take_slot();
        let id = self.new_id(to);
        let call = &mut self.calls[to as usize];
        call.frame.clear();
        let bytes = from.frame.len();
        match call.frame.room(bytes) {
            Ok(room) => room[..bytes].copy_from_slice(from.frame.bytes()),
            Err(error) => {
                self.free.push(to);
                return Err(error);
            }
        }
        call.frame.advance(bytes);
        refit(call.frame.bytes_mut(), id, agreed);
        (call.id, call.tag, call.kind, call.state) = (id, from.tag, from.kind, State::Queued);
        (call.needs, call.was_sent, call.busy) = (from.needs, false, None);
        (call.began_us, call.deadline_us, call.within_us) = (from.began_us, from.deadline_us, from.within_us);
        (call.is_hedged, from.is_hedged) = (true, true);
        call.is_limited = from.is_limited;
        self.queue.push_back(to);
        Ok(to)
    }

    /// Forgets a hedged pull: it has its answer from elsewhere. One that still comes here is late.
    pub(super) fn forget(&mut self, tag: u64) {
        self.failures.retain(|(failed, _)| *failed != tag);
        let found = self.open().find(|(_, call)| call.is_hedged && call.tag == tag).map(|(slot, _)| slot);
        let Some(slot) = found else { return };
        if matches!(self.calls[slot as usize].state, State::Sent { .. }) {
            self.sent -= 1;
        } else {
            self.queue.retain(|&queued| queued != slot);
        }
        self.release(slot);
    }

    /// Is this hedged pull under way here?
    pub(super) fn has_hedged(&self, tag: u64) -> bool {
        self.open().any(|(_, call)| call.is_hedged && call.tag == tag)
    }

    /// The frame that goes next.
    pub(super) fn next_frame(&self) -> &[u8] {
        self.queue.front().map_or(&[], |&slot| self.calls[slot as usize].frame.bytes())
    }

    /// Takes the time that the frame that goes next has waited here off the time in which its answer is of use. `true`: the frame
    /// is another one now.
    pub(super) fn age_next(&mut self, now_us: u64, agreed: &Agreed) -> bool {
        let Some(&slot) = self.queue.front() else { return false };
        let call = &mut self.calls[slot as usize];
        let left_us = u32::try_from(call.deadline_us.saturating_sub(now_us)).unwrap_or(u32::MAX).max(1);
        if left_us.abs_diff(call.within_us) <= AGED_US_MIN {
            return false;
        }
        call.within_us = left_us;
        set_deadline(call.frame.bytes_mut(), left_us, agreed);
        true
    }

    /// Its number.
    pub(super) fn next_id(&self) -> u64 {
        self.queue.front().map_or(0, |&slot| self.calls[slot as usize].id)
    }

    /// Its tag.
    pub(super) fn next_tag(&self) -> Option<u64> {
        self.queue.front().map(|&slot| self.calls[slot as usize].tag)
    }

    /// It is on its way.
    pub(super) fn next_sent(&mut self, now_us: u64) {
        if let Some(slot) = self.queue.pop_front() {
            let call = &mut self.calls[slot as usize];
            call.was_sent_before = std::mem::replace(&mut call.was_sent, true);
            (call.state, call.is_early) = (State::Sent { at_us: now_us }, false);
            self.sent += 1;
        }
    }

    /// Where the request that has this id, and was sent, is kept, and of which kind it is.
    pub(super) fn find(&self, id: u64) -> Option<(u32, Kind)> {
        let slot = (id & ((1 << SLOT_BITS) - 1)) as u32;
        let call = self.calls.get(slot as usize)?;
        (call.id == id && matches!(call.state, State::Sent { .. })).then_some((slot, call.kind))
    }

    /// Was there ever a request of this id?
    pub(super) fn was_asked(&self, id: u64) -> bool {
        id != 0 && id >> SLOT_BITS <= self.counter
    }

    /// Ends a request that was answered.
    pub(super) fn answered(&mut self, slot: u32) -> Done {
        self.sent -= 1;
        self.release(slot);
        let Call { tag, began_us, is_hedged, .. } = self.calls[slot as usize];
        Done { tag, began_us, is_hedged }
    }

    /// Ends a request that goes on at other servers, and hands its frame over.
    pub(super) fn moved(
        &mut self,
        slot: u32,
        placement_version: u64,
        reason: &str,
        agreed: Agreed,
    ) -> (Done, MovedCall) {
        let call = &mut self.calls[slot as usize];
        let (deadline_us, is_limited) = (call.deadline_us, call.is_limited);
        let frame = std::mem::replace(&mut call.frame, Buffer::new(limit::FRAME_BYTES_MAX));
        let reason = reason.to_owned();
        let moved = MovedCall { placement_version, reason, frame, agreed, deadline_us, is_limited };
        (self.answered(slot), moved)
    }

    /// The server had no time for a call: to be sent again. Of a push, pulls that were sent behind it are so, too, once they
    /// are answered: they must see it.
    pub(super) fn put_off(&mut self, slot: u32, why: &str) {
        let &Call { id, kind, .. } = &self.calls[slot as usize];
        if matches!(kind, Kind::Push | Kind::PushFed) {
            let behind = |call: &&mut Call| {
                matches!(call.state, State::Sent { .. }) && call.id > id && call.kind.has_rows()
            };
            self.calls.iter_mut().filter(behind).for_each(|call| call.is_early = true);
        }
        self.ask_again(slot, why);
    }

    /// This request has a time-out of its own.
    pub(super) fn limit(&mut self, slot: u32) {
        self.calls[slot as usize].is_limited = true;
    }

    /// Has it?
    pub(super) fn is_limited(&self, slot: u32) -> bool {
        self.calls[slot as usize].is_limited
    }

    /// Is this the answer to a pull that was sent behind a push, and overtook it?
    pub(super) fn is_early(&self, slot: u32) -> bool {
        self.calls[slot as usize].is_early
    }

    /// Puts a call that was sent back into the queue, where it stood: the server has not carried it out.
    pub(super) fn ask_again(&mut self, slot: u32, why: &str) {
        self.sent -= 1;
        let call = &mut self.calls[slot as usize];
        (call.state, call.was_sent, call.busy) = (State::Queued, call.was_sent_before, Some(why.to_owned()));
        self.queue.push_front(slot);
        let calls = &self.calls;
        self.queue.make_contiguous().sort_unstable_by_key(|&at| calls[at as usize].id);
    }

    /// Puts what was sent back to the head of the queue, in the order in which it was asked for.
    pub(super) fn requeue(&mut self, cause: &str) {
        self.sent = 0;
        self.queue.clear();
        let calls = &mut self.calls;
        let mut slots: Vec<u32> =
            (0..calls.len() as u32).filter(|&at| calls[at as usize].state != State::Free).collect();
        slots.sort_unstable_by_key(|&at| calls[at as usize].id);
        for slot in slots {
            let call = &mut self.calls[slot as usize];
            if matches!(call.state, State::Sent { .. }) && !call.kind.is_repeatable() {
                self.fail(slot, CallError::Lost { cause: cause.to_owned() });
                continue;
            }
            call.state = State::Queued;
            self.queue.push_back(slot);
        }
    }

    /// Gives every request the time between `looked_us`, or when it was made, and now once more.
    pub(super) fn postpone(&mut self, now_us: u64, looked_us: u64) {
        for call in self.calls.iter_mut().filter(|call| call.state != State::Free) {
            let unseen_us = now_us.saturating_sub(looked_us.max(call.began_us));
            call.deadline_us = call.deadline_us.saturating_add(unseen_us);
        }
    }

    /// When the first of them has to be given up because the server is away for longer than until `over_us`.
    pub(super) fn first_away_us(&self, over_us: u64, last_try_us: u64, vain_us: Option<u64>) -> Option<u64> {
        let until = |(_, call): (u32, &Call)| over_us.max(call.last_try_until_us(last_try_us, vain_us));
        self.open().map(until).min()
    }

    /// Ends what the server, which is away, has had time enough for.
    pub(super) fn expire_away(
        &mut self,
        now_us: u64,
        over_us: u64,
        last_try_us: u64,
        vain_us: Option<u64>,
        cause: Option<&str>,
    ) {
        for slot in 0..self.calls.len() as u32 {
            let call = &self.calls[slot as usize];
            let until_us = over_us.max(call.last_try_until_us(last_try_us, vain_us));
            if call.state == State::Free || until_us > now_us {
                continue;
            }
            if let State::Sent { .. } = call.state {
                self.sent -= 1;
            }
            let (sent, busy) = (call.was_sent, self.calls[slot as usize].busy.take());
            self.queue.retain(|&queued| queued != slot);
            self.fail(slot, CallError::Away { sent, cause: cause.map(str::to_owned).or(busy) });
        }
    }

    /// Ends what was not answered in time. When one of them was sent, after which nothing was heard.
    pub(super) fn expire(&mut self, now_us: u64, heard_us: u64, cause: Option<&str>) -> Option<u64> {
        let mut silent_us = None::<u64>;
        for slot in 0..self.calls.len() as u32 {
            let call = &self.calls[slot as usize];
            if call.state == State::Free || call.deadline_us > now_us {
                continue;
            }
            if let State::Sent { at_us } = call.state {
                self.sent -= 1;
                let since_us = if call.is_limited { now_us.saturating_sub(SILENT_US_MIN) } else { u64::MAX };
                if heard_us <= at_us.min(since_us) {
                    silent_us = Some(silent_us.map_or(at_us, |earlier| earlier.min(at_us)));
                }
            }
            let (sent, busy) = (call.was_sent, self.calls[slot as usize].busy.take());
            self.queue.retain(|&queued| queued != slot);
            self.fail(slot, CallError::Late { sent, cause: cause.map(str::to_owned).or(busy) });
        }
        silent_us
    }

    /// Fits what is queued to what was agreed on with a server; fails what does not fit.
    pub(super) fn greeted(&mut self, peer: &Peer, agreed: &Agreed) {
        for slot in 0..self.calls.len() as u32 {
            if !self.check_needs(slot, peer) {
                continue;
            }
            let call = &mut self.calls[slot as usize];
            let bytes = call.frame.len();
            if bytes > agreed.frame_bytes_max as usize {
                let (found, max) = (bytes as u64, u64::from(agreed.frame_bytes_max));
                let reason = WireError::TooLong { what: "frame", found, max }.to_string();
                self.queue.retain(|&queued| queued != slot);
                self.fail(slot, CallError::Protocol { reason });
            } else {
                refit(call.frame.bytes_mut(), call.id, agreed);
            }
        }
    }

    /// Fails a call that needs what the server has lost; is there still a call?
    pub(super) fn check_needs(&mut self, slot: u32, peer: &Peer) -> bool {
        let call = &self.calls[slot as usize];
        if call.state == State::Free {
            return false;
        }
        if call.needs.is_met_by(peer) {
            return true;
        }
        self.queue.retain(|&queued| queued != slot);
        self.fail(slot, CallError::Restarted);
        false
    }

    pub(super) fn fail_all(&mut self, error: &CallError) {
        self.queue.clear();
        self.sent = 0;
        for slot in 0..self.calls.len() as u32 {
            if self.calls[slot as usize].state != State::Free {
                self.fail(slot, error.clone());
            }
        }
    }

    fn fail(&mut self, slot: u32, error: CallError) {
        self.failures.push_back((self.calls[slot as usize].tag, error));
        self.release(slot);
    }

    fn release(&mut self, slot: u32) {
        let call = &mut self.calls[slot as usize];
        call.state = State::Free;
        call.frame.clear();
        call.frame.trim(KEPT_BYTES_MAX);
        self.free.push(slot);
    }

    /// The next request that failed, by its tag.
    pub(super) fn next_failure(&mut self) -> Option<(u64, CallError)> {
        self.failures.pop_front()
    }
}
