//! How far a run is, and how sure that is: a run that was killed says nothing of its end. Knows no clock.

use serde::{Deserialize, Serialize};

use super::numbers;
use crate::metrics::nan_as_null;

/// Age of a record above which its run is told to be silent. A run writes every two seconds.
const SILENT_S: u64 = 15;

/// How far a run is that has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnderWay {
    /// Its present work, such as "training".
    pub phase: String,
    /// The pass, first is 1; 0 before the first one.
    pub pass: u64,
    /// Passes in all.
    pub passes: u64,
    /// Part of the phase that is done, 0 to 1; `None` where its end is not known.
    pub share: Option<f64>,
    /// Time since the start of the session.
    #[serde(with = "nan_as_null")]
    pub elapsed_s: f64,
    /// Time that the training that is left takes, as the pass goes so far; `None` where that is not known.
    pub left_s: Option<f64>,
    /// Process that trains.
    pub process: u32,
    /// When this was noted, seconds since 1970 (UTC).
    pub noted_unix_s: u64,
    /// Why the run ended without a result.
    pub failure: Option<String>,
}

impl UnderWay {
    /// The state in words, such as "training, pass 2 of 5, 34 %". `now_unix_s` is the time of the reader.
    pub(super) fn words(&self, now_unix_s: u64) -> String {
        if self.failure.is_some() {
            return "failed".to_owned();
        }
        if self.is_silent(now_unix_s) {
            return "silent".to_owned();
        }
        let pass = match (self.pass, self.passes) {
            (0, _) | (_, 0) => String::new(),
            (pass, passes) => format!(", pass {pass} of {passes}"),
        };
        let share = self.share.map_or(String::new(), |share| format!(", {:.0} %", share * 100.0));
        format!("{}{pass}{share}", self.phase)
    }

    /// A warning about a run that is not as it should be.
    pub(super) fn warning(&self, now_unix_s: u64) -> Option<String> {
        if let Some(failure) = &self.failure {
            return Some(format!("The run has failed: {failure}"));
        }
        let age = numbers::duration(now_unix_s.saturating_sub(self.noted_unix_s) as f64);
        self.is_silent(now_unix_s).then(|| {
            format!(
                "The run has written nothing for {age}: its process {} was killed or is suspended. What follows is how it was \
                 then.",
                self.process
            )
        })
    }

    /// Whether the page may change by itself.
    pub(super) fn is_alive(&self, now_unix_s: u64) -> bool {
        self.failure.is_none() && !self.is_silent(now_unix_s)
    }

    fn is_silent(&self, now_unix_s: u64) -> bool {
        now_unix_s.saturating_sub(self.noted_unix_s) > SILENT_S
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_says_how_far_it_is_and_its_reader_whether_it_still_runs() {
        let training = UnderWay {
            phase: "training".to_owned(),
            pass: 2,
            passes: 5,
            share: Some(0.337),
            elapsed_s: 9.0,
            left_s: Some(60.0),
            process: 7,
            noted_unix_s: 1000,
            failure: None,
        };
        let failed = UnderWay { failure: Some("no rows".to_owned()), ..training.clone() };
        let starting = UnderWay { pass: 0, share: None, phase: "starting".to_owned(), ..training.clone() };
        for (under_way, now, words, warning) in [
            (&training, 1002, "training, pass 2 of 5, 34 %", None),
            (&training, 900, "training, pass 2 of 5, 34 %", None),
            (&training, 1300, "silent", Some("nothing for 5 min 00 s: its process 7 was killed")),
            (&failed, 1002, "failed", Some("The run has failed: no rows")),
            (&failed, 9000, "failed", Some("The run has failed: no rows")),
            (&starting, 1000, "starting", None),
        ] {
            assert_eq!(under_way.words(now), words);
            let found = under_way.warning(now);
            assert_eq!(found.is_some(), warning.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().contains(warning.unwrap_or_default()));
            assert_eq!(under_way.is_alive(now), warning.is_none());
        }
    }
}
