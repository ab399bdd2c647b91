//! Takes requests, and fits them to what the server is known to be capable of.

use std::time::Duration;

use sanderling_wire::{Features, Push, Request, RowFormat, WireError};

use super::{Needs, Phase, RpcState};

/// The time in which a request must be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timeout {
    pub(crate) us: u64,
    /// Is it the request's own? Then whoever asked decides what to do when the server is busy.
    pub(crate) is_limited: bool,
}

impl RpcState {
    /// Takes a request; its answer, or its failure, will have the tag. It is only for a
    /// server that has what it `needs`. Needs [`RpcState::has_room`].
    pub(crate) fn begin(
        &mut self,
        now_us: u64,
        timeout: Timeout,
        tag: u64,
        needs: Needs,
        request: &Request<'_>,
    ) -> Result<(), WireError> {
        let whole;
        let request = match request {
            Request::Push(push) if push.continues && self.lacks(Features::PUSH_PARTS) => {
                whole = Request::Push(Push { continues: false, ..*push });
                &whole
            }
            request => request,
        };
        let slot = self.calls.begin(now_us, timeout.us, tag, needs, request, &self.agreed)?;
        if timeout.is_limited {
            self.calls.limit(slot);
        }
        if let (Phase::Up | Phase::Leaving, Some(peer)) = (self.phase, &self.peer) {
            self.calls.check_needs(slot, peer);
        }
        Ok(())
    }

    /// The time-out of a request, for which `within` may be below the usual one.
    pub(crate) fn timeout(&self, within: Option<Duration>) -> Timeout {
        let timeout = within.map_or(self.patience.timeout, |within| within.min(self.patience.timeout));
        let us = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        Timeout { us, is_limited: within.is_some() }
    }

    /// How rows are to be asked for by one who wants them so: before the first hello as he wants, since that can be changed
    /// when the server is known.
    pub(crate) fn row_format(&self, wanted: RowFormat) -> RowFormat {
        if self.lacks(Features::F16_ROWS) { RowFormat::F32 } else { wanted }
    }

    /// Whether the server is known not to have these features. Before the first hello, requests are encoded with them and
    /// adapted when the server is known.
    fn lacks(&self, features: Features) -> bool {
        let is_known = matches!(self.phase, Phase::Up | Phase::Leaving);
        is_known && !self.agreed.features.has(features)
    }
}
