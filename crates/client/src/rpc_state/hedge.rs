//! Hedged pulls: a pull that takes unusually long is repeated over a second connection to the same server, and the
//! first answer is taken (Dean & Barroso, The Tail at Scale, 2013). It helps against a slow connection or worker, not
//! against a slow server. Opens nothing and reads no clock.
//!
//! Pushes are never hedged, and no pull is hedged while pushes are under way: over another connection it might not
//! see them.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sanderling_observe::numbers;

use super::{Phase, RpcState};

/// Of so many pulls one may be hedged: 5 %.
const PULLS_PER_HEDGE: u32 = 20;
/// Hedges that may be saved up while all is well.
const SAVED_MAX: u32 = 16;
/// Recent pulls whose times are known, per thread; and how many must be before they say anything.
const RECENT: usize = 256;
const RECENT_MIN: usize = 64;

/// When a pull is asked for a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hedge {
    /// After so long.
    After(Duration),
    /// When it takes longer than 95 % of the thread's recent pulls from the server.
    P95,
}

impl FromStr for Hedge {
    type Err = String;

    /// `p95`, or a time with a unit, such as `500us`.
    fn from_str(text: &str) -> Result<Hedge, String> {
        match numbers::time(text).filter(|time| !time.is_zero()) {
            _ if text == "p95" => Ok(Hedge::P95),
            Some(time) => Ok(Hedge::After(time)),
            None => Err(format!("{text:?}: must be p95, or a time with a unit, such as 500us")),
        }
    }
}

/// Counts of hedged pulls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HedgeCounts {
    /// Pulls, each request of them counted.
    pub pulls: u64,
    /// Of these asked for a second time.
    pub hedged: u64,
    /// Of these answered over the second connection first.
    pub won: u64,
}

/// [`HedgeCounts`] of all threads.
#[derive(Debug, Default)]
pub(crate) struct HedgeCounters {
    pulls: AtomicU64,
    hedged: AtomicU64,
    won: AtomicU64,
}

impl HedgeCounters {
    pub(crate) fn counts(&self) -> HedgeCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HedgeCounts { pulls: load(&self.pulls), hedged: load(&self.hedged), won: load(&self.won) }
    }
}

/// Hedging of one thread's pulls from one server.
#[derive(Debug)]
pub(crate) struct Hedging {
    when: Hedge,
    counters: Arc<HedgeCounters>,
    /// Pulls that have not been spent on a hedge.
    saved: u32,
    /// How long recent pulls took, a ring; and the next place in it.
    recent_us: Vec<u32>,
    next: usize,
    sorted_us: Vec<u32>,
    p95_us: Option<u64>,
}

impl Hedging {
    pub(crate) fn new(when: Hedge, counters: &Arc<HedgeCounters>) -> Hedging {
        Hedging {
            when,
            counters: Arc::clone(counters),
            saved: 0,
            recent_us: Vec::new(),
            next: 0,
            sorted_us: Vec::new(),
            p95_us: None,
        }
    }

    /// Hedging of another server, which has answered nothing yet.
    pub(crate) fn anew(&self) -> Hedging {
        Hedging::new(self.when, &self.counters)
    }

    fn delay_us(&self) -> Option<u64> {
        match self.when {
            Hedge::After(delay) => Some(delay.as_micros() as u64),
            Hedge::P95 => self.p95_us,
        }
    }

    /// When [`Hedging::race`] has something to do, if nothing comes before.
    pub(crate) fn wake_us(&self, first: &RpcState) -> Option<u64> {
        if self.saved < PULLS_PER_HEDGE || first.calls.has_pushes() {
            return None;
        }
        Some(first.calls.oldest_pull()?.1.saturating_add(self.delay_us()?))
    }

    /// Asks over the second connection for what has waited for too long on the first.
    pub(crate) fn race(&mut self, now_us: u64, first: &mut RpcState, second: &mut RpcState) {
        while second.has_room()
            && self.wake_us(first).is_some_and(|at_us| at_us <= now_us)
            && let Some((slot, _)) = first.calls.oldest_pull()
        {
            if second.repeat(first, slot).is_err() {
                // No memory for the copy: the first attempt is as good as any.
                return;
            }
            self.saved -= PULLS_PER_HEDGE;
            self.counters.hedged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A pull has its answer after so long, over the first connection or the second.
    pub(crate) fn answered(&mut self, took_us: u64, by_second: bool) {
        self.counters.pulls.fetch_add(1, Ordering::Relaxed);
        self.counters.won.fetch_add(by_second.into(), Ordering::Relaxed);
        self.saved = (self.saved + 1).min(SAVED_MAX * PULLS_PER_HEDGE);
        if self.when != Hedge::P95 {
            return;
        }
        let took_us = took_us.min(u32::MAX.into()) as u32;
        if self.recent_us.len() < RECENT {
            self.recent_us.push(took_us);
        } else {
            self.recent_us[self.next] = took_us;
        }
        self.next = (self.next + 1) % RECENT;
        if self.recent_us.len() >= RECENT_MIN && self.next.is_multiple_of(RECENT_MIN) {
            self.sorted_us.clone_from(&self.recent_us);
            let at = self.sorted_us.len() * 95 / 100;
            let (_, p95_us, _) = self.sorted_us.select_nth_unstable(at);
            self.p95_us = Some((*p95_us).into());
        }
    }
}

impl RpcState {
    /// Takes over a copy of a pull that another connection to the server has under way.
    fn repeat(&mut self, other: &mut RpcState, slot: u32) -> Result<(), sanderling_wire::WireError> {
        let slot = self.calls.repeat(&mut other.calls, slot, &self.agreed)?;
        if let (Phase::Up | Phase::Leaving, Some(peer)) = (self.phase, &self.peer) {
            self.calls.check_needs(slot, peer);
        }
        Ok(())
    }

    /// Forgets a hedged pull, which has its answer from elsewhere.
    pub(crate) fn forget(&mut self, tag: u64) {
        self.calls.forget(tag);
    }

    /// Is this hedged pull under way here?
    pub(crate) fn has_hedged(&self, tag: u64) -> bool {
        self.calls.has_hedged(tag)
    }
}
