//! How many of the keys that were asked are distinct, in bounded memory: a sample of the keys by their
//! hashes. Knows nothing of requests.
//!
//! Adaptive sampling (M. Wegman; P. Flajolet, "On adaptive sampling", Computing 43, 1990): of all keys, those
//! are kept whose hash begins with so many zero bits that they fit; each stands for a power of two of keys.
//! Exact while all fit, and then off by a standard error of 1.2 / sqrt([`KEPT_MAX`]).

use sanderling_random::mix;

/// The most keys that are kept.
pub const KEPT_MAX: usize = 4096;
/// Places of the table of kept keys: a power of two, at least twice as many.
const PLACES: usize = 2 * KEPT_MAX;
/// Marks a free place. The hash of no kept key: that of key 0 is kept apart.
const FREE: u64 = 0;

/// Keys that were noted, and a sample of the distinct ones.
#[derive(Debug, Clone)]
pub struct DistinctKeys {
    asked: u64,
    /// Hashes up to this are kept.
    limit: u64,
    places: Vec<u64>,
    kept: usize,
    /// Whether the key was seen whose hash is [`FREE`].
    free_seen: bool,
}

/// How many keys were distinct.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Distinct {
    /// Keys that were noted.
    pub asked: u64,
    /// Distinct ones among them, estimated.
    pub distinct: f64,
    /// Standard error of the estimate as a part of it; 0 when it is exact.
    pub error: f64,
}

impl Distinct {
    /// Distinct keys per key.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        (self.distinct / self.asked as f64).min(1.0)
    }
}

impl Default for DistinctKeys {
    fn default() -> DistinctKeys {
        DistinctKeys::new()
    }
}

impl DistinctKeys {
    /// None yet.
    #[must_use]
    pub fn new() -> DistinctKeys {
        DistinctKeys { asked: 0, limit: u64::MAX, places: vec![FREE; PLACES], kept: 0, free_seen: false }
    }

    /// Notes keys.
    pub fn note(&mut self, keys: &[u64]) {
        self.asked += keys.len() as u64;
        for &key in keys {
            let hash = mix(key);
            if hash <= self.limit {
                self.keep(hash);
            }
        }
    }

    /// Adds another's keys.
    pub fn merge(&mut self, other: &DistinctKeys) {
        self.asked += other.asked;
        self.free_seen |= other.free_seen;
        if other.limit < self.limit {
            self.shrink_to(other.limit);
        }
        for &hash in other.places.iter().filter(|&&hash| hash != FREE) {
            if hash <= self.limit {
                self.keep(hash);
            }
        }
    }

    /// The estimate; none if no key was recorded.
    #[must_use]
    pub fn summary(&self) -> Option<Distinct> {
        let exact = self.limit == u64::MAX;
        let part = if exact { 1.0 } else { (self.limit as f64 + 1.0) / 2f64.powi(64) };
        let distinct = self.kept as f64 / part + f64::from(u8::from(self.free_seen));
        let error = if exact { 0.0 } else { 1.2 / (KEPT_MAX as f64).sqrt() };
        (self.asked > 0).then_some(Distinct { asked: self.asked, distinct, error })
    }

    #[cold]
    #[inline(never)]
    fn keep(&mut self, hash: u64) {
        if hash == FREE {
            self.free_seen = true;
            return;
        }
        // All kept hashes begin with the same zero bits, so the place comes from the low ones.
        let mut place = hash as usize % PLACES;
        while self.places[place] != FREE {
            if self.places[place] == hash {
                return;
            }
            place = (place + 1) % PLACES;
        }
        self.places[place] = hash;
        self.kept += 1;
        while self.kept > KEPT_MAX {
            self.shrink_to(self.limit / 2);
        }
    }

    fn shrink_to(&mut self, limit: u64) {
        let kept: Vec<u64> =
            self.places.iter().copied().filter(|&hash| hash != FREE && hash <= limit).collect();
        self.limit = limit;
        self.places.fill(FREE);
        self.kept = 0;
        kept.into_iter().for_each(|hash| self.keep(hash));
    }
}
