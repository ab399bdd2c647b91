//! Clients of two groups: each push is split by slots, and split anew where slots have moved.

use std::sync::Arc;

use sanderling_random::SplitMix64;
use sanderling_wire::slot_of;

use super::check::{COUNTERS, Check, counter};
use super::clients::{KEYS, ORDERED, ORDERED_DIM, PINNED};
use super::cluster::SLOTS;
use super::world::{STREAMS, World};
use crate::message::{Answer, Event, Push};
use crate::placement::Placement;

/// Ticks before a request is repeated.
const REPEAT_AFTER: u64 = 25;

/// All clients.
#[derive(Debug)]
pub(super) struct Router {
    clients: Vec<Client>,
}

/// A client with one push under way, in parts, and one pull.
#[derive(Debug)]
struct Client {
    number: u64,
    /// Per group, number of the last push.
    sequences: Vec<u64>,
    /// Pushes that are still to begin.
    left: u32,
    placement: Option<Arc<Placement>>,
    parts: Vec<Part>,
    pull: Option<(usize, u64, u64, Read)>,
}

/// The part of a push that one group gets.
#[derive(Debug)]
struct Part {
    group: usize,
    push: Arc<Push>,
    request: u64,
    at: u64,
    /// The placement by which it was cut is too old: it is cut anew when this version is known.
    elsewhere: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Read {
    counter: u64,
    /// Acknowledged pushes of the key when the pull began.
    least: u64,
}

fn group_of(placement: &Placement, table: u32, key: u64) -> usize {
    let group = match table {
        PINNED => placement.pinned_to(0),
        _ => placement.group_of(slot_of(key, SLOTS as usize) as u32).unwrap_or_default(),
    };
    group as usize
}

/// The counters that a push counts up.
fn counters(push: &Push) -> Vec<u64> {
    match push.table {
        COUNTERS | PINNED => push.keys.iter().map(|&key| counter(push.table, key)).collect(),
        _ => Vec::new(),
    }
}

impl Router {
    pub(super) fn new(clients: u64, pushes: u32) -> Router {
        let client = |number| Client {
            number,
            sequences: vec![0; 2],
            left: pushes,
            placement: None,
            parts: Vec::new(),
            pull: None,
        };
        Router { clients: (1..=clients).map(client).collect() }
    }

    pub(super) fn is_done(&self) -> bool {
        self.clients.iter().all(|client| client.left == 0 && client.parts.is_empty())
    }

    /// Begins, repeats and splits requests; returns how many were split anew.
    pub(super) fn tick(
        &mut self,
        now: u64,
        worlds: &mut [World],
        newest: &Arc<Placement>,
        gives_up: bool,
        rng: &mut SplitMix64,
        check: &mut Check,
    ) -> u64 {
        let mut redirected = 0;
        for client in &mut self.clients {
            // Its watch of the registry is late at times.
            if client.placement.is_none() || rng.below(20) == 0 {
                client.placement = Some(Arc::clone(newest));
            }
            redirected += client.tick(now, worlds, gives_up, rng, check);
        }
        redirected
    }

    /// Takes an answer, if it is to a request that is still open.
    pub(super) fn take(
        &mut self,
        (group, request): (usize, u64),
        answer: &Answer,
        rng: &mut SplitMix64,
        check: &mut Check,
    ) -> Result<(), String> {
        for client in &mut self.clients {
            if let Some((of, _, _, read)) = client.pull.take_if(|pull| (pull.0, pull.1) == (group, request)) {
                debug_assert_eq!(of, group);
                if let Answer::Rows { weights, .. } = answer {
                    check.read(read.counter, weights[0], read.least)?;
                }
                return Ok(());
            }
            let is_of = |part: &Part| (part.group, part.request) == (group, request);
            let Some(at) = client.parts.iter().position(is_of) else { continue };
            let part = &mut client.parts[at];
            match answer {
                Answer::Done(_) => {
                    let part = client.parts.swap_remove(at);
                    check.acknowledge(&counters(&part.push));
                }
                Answer::Elsewhere { version } => part.elsewhere = Some(*version),
                Answer::NotHere | Answer::Busy => {
                    part.at = part.at.saturating_sub(REPEAT_AFTER - 2 - rng.below(3));
                }
                _ => return Err(format!("a push of table {} was answered {answer:?}", part.push.table)),
            }
            return Ok(());
        }
        Ok(())
    }
}

impl Client {
    fn tick(
        &mut self,
        now: u64,
        worlds: &mut [World],
        gives_up: bool,
        rng: &mut SplitMix64,
        check: &mut Check,
    ) -> u64 {
        if self.parts.is_empty() && self.left > 0 && rng.below(3) == 0 {
            self.left -= 1;
            let push = draw(rng);
            check.begin(&counters(&push));
            self.split(&push);
        }
        let version = self.placement.as_ref().map_or(0, |placement| placement.version);
        let (stale, kept): (Vec<Part>, Vec<Part>) = std::mem::take(&mut self.parts)
            .into_iter()
            .partition(|part| part.elsewhere.is_some_and(|needed| needed <= version));
        self.parts = kept;
        let redirected = stale.len() as u64;
        stale.iter().for_each(|part| self.split(&part.push));
        // One that gives up never knows.
        if gives_up && !self.parts.is_empty() && rng.below(600) == 0 {
            self.parts.clear();
        }
        for part in self.parts.iter_mut().filter(|part| part.elsewhere.is_none()) {
            if part.request == 0 || now - part.at > REPEAT_AFTER {
                let world = &mut worlds[part.group];
                let at = target(world, rng);
                let (stream, push) = (rng.below(STREAMS as u64) as usize, Arc::clone(&part.push));
                part.request = world.ask_outside(at, |request| Event::Push { request, stream, push });
                part.at = now;
            }
        }
        if self.pull.is_some_and(|pull| now - pull.2 > REPEAT_AFTER) {
            self.pull = None;
        }
        if self.pull.is_none()
            && rng.below(4) == 0
            && let Some(placement) = &self.placement
        {
            let (table, key) = ([COUNTERS, PINNED][rng.below(2) as usize], rng.below(KEYS));
            // Also from a group that had the key.
            let there = group_of(placement, table, key);
            let group = if rng.below(4) == 0 { rng.below(2) as usize } else { there };
            let at = target(&worlds[group], rng);
            let pull = |request| Event::Pull { request, table, keys: vec![key] };
            let request = worlds[group].ask_outside(at, pull);
            let counter = counter(table, key);
            self.pull = Some((group, request, now, Read { counter, least: check.acknowledged(counter) }));
        }
        redirected
    }

    /// Cuts a push into its groups' parts, under new numbers.
    fn split(&mut self, push: &Push) {
        let Some(placement) = &self.placement else { return };
        let dim = push.grads.len() / push.keys.len();
        for group in 0..self.sequences.len() {
            let is_there = |&at: &usize| group_of(placement, push.table, push.keys[at]) == group;
            let at: Vec<usize> = (0..push.keys.len()).filter(is_there).collect();
            if at.is_empty() {
                continue;
            }
            self.sequences[group] += 1;
            let part = Push {
                sequence: self.sequences[group],
                client: self.number,
                keys: at.iter().map(|&at| push.keys[at]).collect(),
                counts: at.iter().map(|&at| push.counts[at]).collect(),
                grads: at.iter().flat_map(|&at| push.grads[at * dim..][..dim].to_vec()).collect(),
                ..push.clone()
            };
            self.parts.push(Part { group, push: Arc::new(part), request: 0, at: 0, elsewhere: None });
        }
    }
}

/// The node to ask: mostly the primary.
fn target(world: &World, rng: &mut SplitMix64) -> usize {
    let any = rng.below(world.machines.len() as u64) as usize;
    let primary = world.registry.group.as_ref().map(|group| group.primary.server as usize);
    if rng.below(5) == 0 { any } else { primary.unwrap_or(any) }
}

fn draw(rng: &mut SplitMix64) -> Push {
    let table = [COUNTERS, ORDERED, PINNED][rng.below(3) as usize];
    let mut keys: Vec<u64> = (0..=rng.below(3)).map(|_| rng.below(KEYS)).collect();
    keys.sort_unstable();
    keys.dedup();
    let dim = if table == ORDERED { ORDERED_DIM } else { 1 };
    let grads = (0..keys.len() * dim)
        .map(|_| if table == ORDERED { rng.below(2001) as f32 / 1000.0 - 1.0 } else { -1.0 })
        .collect();
    let counts = vec![1; keys.len()];
    Push { table, client: 0, sequence: 0, continues: false, lr_scale: 1.0, keys, counts, grads }
}
