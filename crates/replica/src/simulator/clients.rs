//! Clients of the simulated group: they push, repeat under the same number, give up at times, and pull.

use std::collections::HashMap;
use std::sync::Arc;

use sanderling_random::SplitMix64;

use super::check::{COUNTERS, Check};
use crate::message::{Answer, Event, Push};

/// Ticks before a request is repeated.
const REPEAT_AFTER: u64 = 25;
/// The table whose rows depend on the order of updates. Its rows are removed and imported.
pub(super) const ORDERED: u32 = 1;
/// Weights of a row of [`ORDERED`].
pub(super) const ORDERED_DIM: usize = 3;
/// A table that comes and goes.
pub(super) const PASSING: u32 = 2;
/// A table whose weights count pushes, too, and which is pinned to group 0. Only clusters of several groups have it.
pub(super) const PINNED: u32 = 3;
/// Keys of each table.
pub(super) const KEYS: u64 = 6;

/// A client with at most one push and one pull under way.
#[derive(Debug)]
pub(super) struct Client {
    number: u64,
    sequence: u64,
    /// Pushes that are still to begin.
    left: u32,
    push: Option<Sent<Arc<Push>>>,
    pull: Option<Sent<Read>>,
    /// The node that is asked next.
    target: usize,
    /// The last value of each counter by epoch.
    seen: HashMap<(u64, u64), f32>,
}

#[derive(Debug)]
struct Sent<T> {
    what: T,
    request: u64,
    at: u64,
}

#[derive(Debug, Clone, Copy)]
struct Read {
    key: u64,
    /// Acknowledged pushes of the key when the pull began.
    least: u64,
}

impl Client {
    pub(super) fn new(number: u64, pushes: u32) -> Client {
        let (push, pull, seen) = (None, None, HashMap::new());
        Client { number, sequence: 0, left: pushes, push, pull, target: 0, seen }
    }

    pub(super) fn is_done(&self) -> bool {
        self.left == 0 && self.push.is_none()
    }

    /// Begins or repeats requests; returns them with the node that gets them.
    pub(super) fn tick(
        &mut self,
        now: u64,
        (nodes, streams): (usize, usize),
        gives_up: bool,
        next_request: &mut u64,
        rng: &mut SplitMix64,
        check: &mut Check,
    ) -> Vec<(usize, Event)> {
        let (mut events, mut next) = (Vec::new(), || {
            *next_request += 1;
            *next_request
        });
        if self.push.is_none() && self.left > 0 && rng.below(3) == 0 {
            self.left -= 1;
            self.sequence += 1;
            let push = self.draw(rng);
            if push.table == COUNTERS {
                check.begin(&push.keys);
            }
            self.push = Some(Sent { what: Arc::new(push), request: 0, at: 0 });
        }
        if let Some(push) = &mut self.push
            && (push.request == 0 || now - push.at > REPEAT_AFTER)
        {
            if push.request > 0 && gives_up && rng.below(40) == 0 {
                self.push = None;
            } else {
                (push.request, push.at) = (next(), now);
                let stream = rng.below(streams as u64) as usize;
                let (request, push) = (push.request, Arc::clone(&push.what));
                events.push((self.target, Event::Push { request, stream, push }));
            }
        }
        if self.pull.as_ref().is_some_and(|pull| now - pull.at > REPEAT_AFTER) {
            self.pull = None;
        }
        if self.pull.is_none() && rng.below(4) == 0 {
            let (key, request) = (rng.below(KEYS), next());
            let what = Read { key, least: check.acknowledged(key) };
            self.pull = Some(Sent { what, request, at: now });
            // Also from nodes that were the primary.
            let node = if rng.below(3) == 0 { rng.below(nodes as u64) as usize } else { self.target };
            events.push((node, Event::Pull { request, table: COUNTERS, keys: vec![key] }));
        }
        events
    }

    fn draw(&self, rng: &mut SplitMix64) -> Push {
        let table = [COUNTERS, COUNTERS, ORDERED, ORDERED, PASSING][rng.below(5) as usize];
        let mut keys: Vec<u64> = (0..=rng.below(3)).map(|_| rng.below(KEYS)).collect();
        keys.sort_unstable();
        keys.dedup();
        let counts = vec![1; keys.len()];
        let dim = if table == ORDERED { ORDERED_DIM } else { 1 };
        let grads = (0..keys.len() * dim)
            .map(|_| if table == ORDERED { rng.below(2001) as f32 / 1000.0 - 1.0 } else { -1.0 })
            .collect();
        let (client, sequence, lr_scale) = (self.number, self.sequence, 1.0);
        Push { table, client, sequence, continues: false, lr_scale, keys, counts, grads }
    }

    /// Takes an answer, if it is to a request of this client that is still open.
    pub(super) fn take(
        &mut self,
        request: u64,
        answer: &Answer,
        nodes: usize,
        rng: &mut SplitMix64,
        check: &mut Check,
    ) -> Result<(), String> {
        if let Some(push) = self.push.as_mut().filter(|push| push.request == request) {
            let table = push.what.table;
            match answer {
                Answer::Done(_) => {
                    if table == COUNTERS {
                        check.acknowledge(&push.what.keys);
                    }
                    self.push = None;
                }
                Answer::Refused if table == PASSING => self.push = None,
                Answer::NotHere | Answer::Busy => {
                    if *answer == Answer::NotHere {
                        self.target = rng.below(nodes as u64) as usize;
                    }
                    // Soon again.
                    push.at = push.at.saturating_sub(REPEAT_AFTER - 3);
                }
                _ => return Err(format!("a push of table {table} was answered {answer:?}")),
            }
        } else if self.pull.as_ref().is_some_and(|pull| pull.request == request) {
            let pull = self.pull.take();
            if let (Some(Sent { what: Read { key, least }, .. }), Answer::Rows { epoch, weights }) =
                (pull, answer)
            {
                check.read(key, weights[0], least)?;
                let seen = self.seen.entry((*epoch, key)).or_default();
                if weights[0] < *seen {
                    return Err(format!(
                        "key {key} went back from {seen} to {} in epoch {epoch}",
                        weights[0]
                    ));
                }
                *seen = weights[0];
            }
        }
        Ok(())
    }

    /// Asks another node, because the present one does not answer.
    pub(super) fn look_elsewhere(&mut self, now: u64, nodes: usize, rng: &mut SplitMix64) {
        if self.push.as_ref().is_some_and(|push| push.request > 0 && now - push.at == REPEAT_AFTER) {
            self.target = rng.below(nodes as u64) as usize;
        }
    }
}
