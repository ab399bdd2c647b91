//! Which function a cycle calls, by weight: `pull:98,push:2`. Knows no script, only names.

use sanderling_random::splitmix;

use crate::generate::Seeds;

use super::params::did_you_mean;

/// Most functions that one mix may have.
pub const FUNCTIONS_MAX: usize = 64;

/// Functions and how often each is called.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// Names and weights, as given.
    parts: Vec<(String, f64)>,
    /// Where each part ends on the line of all 64-bit numbers; the last at its end.
    ends: Vec<u64>,
}

/// Why a mix makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("functions {given:?}: {reason}")]
pub struct MixError {
    /// As it was given.
    pub given: String,
    /// The problem and the possible values.
    pub reason: String,
}

impl Mix {
    /// Reads `pull:98,push:2`; a name without a weight has weight 1. `known` are the functions that there are.
    pub fn parse(text: &str, known: &[String]) -> Result<Mix, MixError> {
        let fail = |reason: String| MixError { given: text.to_owned(), reason };
        let mut parts = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, weight) = match part.split_once(':') {
                Some((name, weight)) => (name.trim(), weight.trim()),
                None => (part, "1"),
            };
            let weight = weight.parse().map_err(|_| {
                fail(format!("the weight {weight:?} of {name} is no number; write {name}:98"))
            })?;
            parts.push((name.to_owned(), weight));
        }
        Mix::new(parts, known).map_err(fail)
    }

    /// From names and weights; the error says what is wrong.
    pub(super) fn new(parts: Vec<(String, f64)>, known: &[String]) -> Result<Mix, String> {
        if parts.is_empty() || parts.len() > FUNCTIONS_MAX {
            return Err(format!("there must be 1 to {FUNCTIONS_MAX} functions; write pull:98,push:2"));
        }
        for (at, (name, weight)) in parts.iter().enumerate() {
            if !known.contains(name) {
                let hint = did_you_mean(name, known.iter().map(String::as_str));
                return Err(format!("there is no function {name}{hint}; there is {}", known.join(", ")));
            }
            if parts[..at].iter().any(|(other, _)| other == name) {
                return Err(format!("{name} is there twice"));
            }
            if !(weight.is_finite() && *weight >= 0.0) {
                return Err(format!("the weight {weight} of {name} must be 0 or more"));
            }
        }
        let sum: f64 = parts.iter().map(|(_, weight)| weight).sum();
        if !(sum.is_finite() && sum > 0.0) {
            return Err("all weights are 0".to_owned());
        }
        let mut below = 0.0;
        let mut ends: Vec<u64> = Vec::with_capacity(parts.len());
        for (_, weight) in &parts {
            below += weight;
            ends.push((below / sum * 2_f64.powi(64)) as u64); // saturates
        }
        // Rounding must not leave a gap behind the last function that may be called at all.
        if let Some(last) = parts.iter().rposition(|(_, weight)| *weight > 0.0) {
            ends[last..].fill(u64::MAX);
        }
        Ok(Mix { parts, ends })
    }

    /// Names and weights, in the order in which [`Mix::pick`] counts them.
    #[must_use]
    pub fn parts(&self) -> &[(String, f64)] {
        &self.parts
    }

    /// The function of a cycle, as its position among [`Mix::parts`]: a function of seed and cycle.
    #[must_use]
    pub fn pick(&self, seeds: &Seeds, cycle: u64) -> usize {
        if self.ends.len() == 1 {
            return 0;
        }
        // The seed of arrivals: what a cycle does and when it does it belong together.
        let drawn = splitmix(seeds.arrivals ^ splitmix(cycle ^ 0x6d69_7831));
        self.ends.iter().position(|end| drawn <= *end).unwrap_or(0)
    }
}
