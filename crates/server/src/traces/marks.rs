//! A sampled request as far as it got, and its keys, which a worker counts once the request has ended. Knows no lock.

use std::time::{Duration, Instant};

use sanderling_observe::SpanContext;
use sanderling_wire::{Request, slot_of};

use super::{Kept, keys, pulled_keys};
use crate::limit::{HOT_HALVED_EVERY, LOOKED_UP_KEYS_MAX, PUSHED_KEY_WORK, SAMPLED_KEYS_MAX};

/// The stages of a sampled request as far as it got.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Its own span, and that of the client.
    pub(super) span: Option<(SpanContext, Option<u64>)>,
    pub(super) table: Option<u32>,
    pub(super) table_name: Option<String>,
    pub(super) keys: Option<usize>,
    pub(super) waited: Duration,
    pub(super) decoded: Option<Instant>,
    /// After the keys were looked at, which is no part of any stage.
    pub(super) worked: Option<Instant>,
    pub(super) done: Option<Instant>,
    pub(super) sample: KeySample,
}

/// Keys of a sampled request that were looked at.
#[derive(Debug, Default)]
pub(super) struct KeySample {
    keys: Vec<u64>,
    /// The keys of the request per key of the sample.
    step: usize,
    /// Pulled keys that were looked up, and how many have no row.
    pulled: u64,
    unseen: u64,
    /// Requests since the worker's last sampled one, and the slots of the table, where they are counted.
    requests: Option<u64>,
    slots: Option<usize>,
    is_pull: bool,
}

impl Marks {
    /// The request is decoded and admitted, after this wait. `random` says which keys are looked at.
    pub(super) fn decoded(&mut self, request: &Request<'_>, waited: Duration, random: usize) {
        let (all, decoded) = (keys(request), Instant::now());
        (self.waited, self.table, self.keys) = (waited, request.table(), all.map(<[u64]>::len));
        if let (Some(_), Some(all)) = (self.table, all) {
            let step = all.len().div_ceil(SAMPLED_KEYS_MAX).max(1);
            let keys = all.iter().skip(random % step).step_by(step).copied().collect();
            let is_pull = pulled_keys(request).is_some();
            self.sample = KeySample { keys, step, is_pull, ..KeySample::default() };
        }
        (self.decoded, self.worked) = (Some(decoded), Some(Instant::now()));
    }

    /// Looks some keys of a pull up, to learn how many have no row.
    pub(super) fn look_up(&mut self, has_row: impl Fn(u64) -> bool) {
        if !self.sample.is_pull {
            return;
        }
        let KeySample { keys, pulled, unseen, .. } = &mut self.sample;
        for &key in keys.iter().step_by(keys.len().div_ceil(LOOKED_UP_KEYS_MAX).max(1)) {
            (*pulled, *unseen) = (*pulled + 1, *unseen + u64::from(!has_row(key)));
        }
        self.worked = Some(Instant::now());
    }

    /// Has the keys counted by slot, if their table has some.
    pub(super) fn count_slots(&mut self, requests: u64, slots: impl FnOnce(u32) -> Option<usize>) {
        (self.sample.requests, self.sample.slots) = (Some(requests), self.table.and_then(slots));
        self.worked = Some(Instant::now());
    }

    /// Counts the keys.
    pub(super) fn count(&self, kept: &mut Kept) {
        let KeySample { keys, step, pulled, unseen, requests, slots, is_pull } = &self.sample;
        if let Some(requests) = requests {
            kept.work.requests += requests;
            kept.work.sampled += 1;
        }
        let (Some(table), Some(decoded)) = (self.table, self.decoded) else { return };
        let halved = *kept.halved.get_or_insert(decoded);
        if decoded.saturating_duration_since(halved) >= HOT_HALVED_EVERY {
            kept.hot.halve();
            kept.shares.halve();
            kept.halved = Some(decoded);
        }
        keys.iter().for_each(|&key| kept.hot.add(table, key));
        if !keys.is_empty() {
            kept.shares.add(table, keys.iter().copied());
        }
        if *pulled > 0 {
            kept.shares.add_pulled(table, *pulled, *unseen);
        }
        if let Some(slots) = *slots {
            let of_key = *step as u64 * if *is_pull { 1 } else { PUSHED_KEY_WORK };
            kept.work.keys.resize(slots.max(kept.work.keys.len()), 0);
            keys.iter().for_each(|&key| kept.work.keys[slot_of(key, slots)] += of_key);
        }
    }
}
