//! Chooses where a feature's rows are pooled, by the bytes that either way moves. At the trainer: distinct rows are
//! pulled and their gradients pushed. At the servers: keys are fed, and a row and a gradient per sample are moved.
//! Knows no table.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sanderling_client::Feedable;
use sanderling_store::Pooling;
use serde::Serialize;

use crate::pooling::FeaturePooling;

const KEY: u64 = 8;
const WORD: u64 = 4;
/// Feeding takes a round trip more, so it has to save a part of the bytes: servers that move no fewer than so many of four
/// quarters are not worth it.
const WORTH_QUARTERS: u64 = 3;

/// Where rows of tables on servers are pooled. Rows of tables in this process are pooled in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoolAt {
    /// The servers where that saves more than a quarter of the bytes, by feature and minibatch; else the trainer.
    #[default]
    Auto,
    /// The trainer.
    Trainer,
    /// The servers, wherever they can.
    Servers,
}

/// Features that were looked up one way, and what that moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WayTotal {
    /// Features of minibatches.
    pub features: u64,
    /// Bytes of their keys, rows and gradients, if they are pushed, too.
    pub bytes: u64,
}

impl WayTotal {
    fn add(&mut self, bytes: u64) {
        self.features += 1;
        self.bytes += bytes;
    }
}

/// How features of tables on servers were looked up; nothing for tables in this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PooledAt {
    /// Pooled by the trainer; of features that share a table each counts, the bytes once.
    pub trainer: WayTotal,
    /// Pooled by the servers.
    pub servers: WayTotal,
    /// Pooled by the servers from keys that a hub has fed: bytes are those of rows and gradients.
    pub hub: WayTotal,
    /// Of those, features whose gradients were left out, as their minibatch was another trainer's by then.
    pub late: WayTotal,
}

/// Adds up how features were looked up.
#[derive(Debug, Default)]
pub(crate) struct Ways(Mutex<PooledAt>);

impl Ways {
    fn lock(&self) -> MutexGuard<'_, PooledAt> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn by_servers(&self, bytes: u64) {
        self.lock().servers.add(bytes);
    }

    pub(crate) fn by_trainer(&self, bytes: u64) {
        self.lock().trainer.add(bytes);
    }

    pub(crate) fn by_hub(&self, bytes: u64) {
        self.lock().hub.add(bytes);
    }

    pub(crate) fn late(&self, features: usize) {
        self.lock().late.features += features as u64;
    }

    pub(crate) fn total(&self) -> PooledAt {
        *self.lock()
    }
}

/// Bytes of so many distinct keys with their rows, and of the keys, counts and gradients of their push.
pub(crate) fn trainer_bytes(distinct: usize, dim: usize) -> u64 {
    let row = WORD * dim as u64;
    distinct as u64 * ((KEY + row) + (KEY + WORD + row))
}

/// Bytes of the keys that are fed, and of a row and a gradient per sample and server.
pub(crate) fn servers_bytes(feature: &Feedable) -> u64 {
    let (keys, samples, servers) = (feature.keys as u64, feature.samples as u64, feature.servers as u64);
    let values = if feature.has_values { WORD * keys } else { 0 };
    KEY * keys + values + servers * (WORD * (samples + 1) + 2 * samples * WORD * feature.dim as u64)
}

/// Bytes of a row and a gradient per sample and server.
pub(crate) fn hub_bytes(samples: usize, dim: usize, servers: usize) -> u64 {
    (servers * 2 * samples * dim) as u64 * WORD
}

/// Whether a trainer's link, to the hub and to the servers, has fewer bytes if the hub feeds a feature's keys.
pub(crate) fn saves_by_hub(feature: &Feedable) -> bool {
    let keys = feature.keys as u64;
    let from_hub = KEY * keys + if feature.has_values { WORD * keys } else { 0 };
    let by_keys = from_hub + trainer_bytes(feature.distinct, feature.dim);
    hub_bytes(feature.samples, feature.dim, feature.servers) < by_keys
}

impl PoolAt {
    /// How the servers are to pool a feature, if they are.
    pub(crate) fn choose(self, pooling: FeaturePooling, feature: &Feedable) -> Option<Pooling> {
        // A largest coordinate of several servers' has no gradient that they could spread, and a sequence no sum.
        let FeaturePooling::Linear(there) = pooling else { return None };
        let is_less =
            || servers_bytes(feature) * 4 < trainer_bytes(feature.distinct, feature.dim) * WORTH_QUARTERS;
        let is_chosen = match self {
            PoolAt::Trainer => false,
            PoolAt::Servers => true,
            PoolAt::Auto => is_less(),
        };
        (is_chosen && feature.fits).then_some(there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 samples of 50 keys each, 16 weights per row.
    fn feature() -> Feedable {
        Feedable {
            feature: 0,
            keys: 5000,
            distinct: 5000,
            samples: 100,
            dim: 16,
            servers: 2,
            has_values: false,
            fits: true,
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_messages() {
        assert_eq!(servers_bytes(&feature()), 40_000 + 2 * 404 + 2 * 2 * 6400);
        assert_eq!(servers_bytes(&Feedable { has_values: true, ..feature() }), 60_000 + 2 * 404 + 25_600);
        assert_eq!(trainer_bytes(5000, 16), 5000 * (72 + 76));
    }

    #[test]
    fn a_hub_feeds_where_the_trainers_link_has_fewer_bytes() {
        // 25,600 bytes of rows and gradients, against 8 per key and 148 per distinct key.
        assert!(saves_by_hub(&feature()));
        let few = Feedable { keys: 200, distinct: 162, ..feature() };
        assert_eq!((hub_bytes(100, 16, 2), trainer_bytes(162, 16)), (25_600, 23_976));
        assert!(!saves_by_hub(&few));
        assert!(saves_by_hub(&Feedable { keys: 204, ..few }));
        assert!(saves_by_hub(&Feedable { has_values: true, ..few }));
        assert!(!saves_by_hub(&Feedable { keys: 204, servers: 3, ..few }));
    }

    #[test]
    fn the_choice_follows_the_bytes() {
        let cases = [
            (PoolAt::Auto, feature(), true),
            // 66,408 bytes against three quarters of 599 or 598 times 148.
            (PoolAt::Auto, Feedable { distinct: 599, ..feature() }, true),
            (PoolAt::Auto, Feedable { distinct: 598, ..feature() }, false),
            (PoolAt::Auto, Feedable { distinct: 599, servers: 3, ..feature() }, false),
            (PoolAt::Auto, Feedable { distinct: 599, has_values: true, ..feature() }, false),
            (PoolAt::Auto, Feedable { fits: false, ..feature() }, false),
            (PoolAt::Trainer, feature(), false),
            (PoolAt::Servers, Feedable { distinct: 1, ..feature() }, true),
            (PoolAt::Servers, Feedable { fits: false, ..feature() }, false),
        ];
        for (pool_at, feature, expected) in cases {
            for (pooling, can_be) in [
                (FeaturePooling::SUM, true),
                (FeaturePooling::MEAN, true),
                (FeaturePooling::Max, false),
                (FeaturePooling::None, false),
            ] {
                let chosen = pool_at.choose(pooling, &feature).is_some();
                assert_eq!(chosen, expected && can_be, "{pool_at:?} {pooling:?} {feature:?}");
            }
        }
    }
}
