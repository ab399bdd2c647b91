//! Messages that tell of the requests after them: when they were sent, and the trace that the next one belongs to. They
//! have no reply. Knows no table.

use std::time::Instant;

use sanderling_observe::SpanContext;
use sanderling_wire::{Features, Frame, Request};

use super::{Handled, Session};
use crate::refusal::Refusal;
use crate::reply_sink::ReplySink;

impl Session {
    /// Takes such a message.
    pub(super) fn note(&mut self, frame: &Frame<'_>, now: Instant, out: &mut dyn ReplySink) -> Handled {
        let features = self.agreed.features;
        match Request::decode(frame) {
            Ok(Request::SentAt(sent_us)) if features.has(Features::SENT_AT) => {
                self.waiting.note(sent_us, now);
                Handled::NoReply
            }
            Ok(Request::Trace(trace)) if features.has(Features::TRACES) => {
                let number = u128::from(trace.trace_high) << 64 | u128::from(trace.trace_low);
                let is_one = number != 0 && trace.span != 0;
                self.trace = is_one.then_some(SpanContext { trace: number, span: trace.span });
                Handled::NoReply
            }
            Ok(request) => {
                let reason = format!("{} was not agreed on", request.kind());
                self.refuse(frame, &Refusal::bad(reason), out)
            }
            Err(error) => self.refuse(frame, &Refusal::bad(error.to_string()), out),
        }
    }

    /// The trace that the next request belongs to.
    pub(crate) fn trace(&self) -> Option<SpanContext> {
        self.trace
    }

    /// A request was handled: the next one belongs to no trace yet.
    pub(crate) fn end_trace(&mut self) {
        self.trace = None;
    }
}
