//! Admission: decides which new keys get a row.

use crate::Admission;
use crate::index::hash::mix;
use crate::memory::budget::Budget;
use crate::policy::sketch::Sketch;

/// Decides which new keys get a row.
#[derive(Debug)]
pub(crate) enum AdmissionFilter {
    Always,
    Sightings { sightings: u8, filter: Sketch },
    Probability { seed: u64, threshold: u64 },
}

impl AdmissionFilter {
    /// Creates a filter with memory from the budget; `Err` with the bytes that it needs.
    pub(crate) fn new(admission: Admission, seed: u64, budget: &Budget) -> Result<AdmissionFilter, usize> {
        Ok(match admission {
            Admission::Always => AdmissionFilter::Always,
            Admission::Sightings { sightings, filter_bytes } => {
                let bytes = Sketch::rounded_bytes(filter_bytes);
                let filter = budget.take(bytes).then(|| Sketch::new(bytes)).flatten().ok_or(bytes)?;
                AdmissionFilter::Sightings { sightings, filter }
            }
            Admission::Probability { probability } => {
                // 2^64 for a probability of 1 saturates: all but one hash are below.
                AdmissionFilter::Probability {
                    seed,
                    threshold: (f64::from(probability) * 2.0_f64.powi(64)) as u64,
                }
            }
        })
    }

    /// Counts a sighting of the hash; returns whether the key is admitted.
    pub(crate) fn admits(&self, hash: u64, clock: u32) -> bool {
        match self {
            AdmissionFilter::Always => true,
            AdmissionFilter::Sightings { sightings, filter } => filter.add(hash) >= *sightings,
            AdmissionFilter::Probability { seed, threshold } => {
                mix(mix(hash ^ seed) ^ u64::from(clock)) <= *threshold
            }
        }
    }

    /// Ages the filter by `sightings`.
    pub(crate) fn age(&self, sightings: usize) {
        if let AdmissionFilter::Sightings { filter, .. } = self {
            filter.age(sightings);
        }
    }

    /// Returns whether every key is admitted.
    pub(crate) fn admits_all(&self) -> bool {
        matches!(self, AdmissionFilter::Always)
    }

    /// Forgets all sightings.
    pub(crate) fn clear(&self) {
        if let AdmissionFilter::Sightings { filter, .. } = self {
            filter.clear();
        }
    }
}
