//! Collectives: barriers, and bytes or numbers that every worker gets from every worker. Does not know where the
//! workers meet.

use std::time::Instant;

use sanderling_sync::limit::MEETING_BYTES_MAX;

use super::{SyncGroup, Way};
use crate::error::ClientError;

/// Bytes of all workers that one meeting has at most when an array is reduced: a long one takes several.
const MEETING_BYTES: usize = 1 << 20;

/// How the numbers of all workers become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum, in the order of workers.
    Sum,
    /// Their sum, divided by their number (whole numbers: rounded down).
    Mean,
    /// The largest.
    Max,
}

impl Reduce {
    fn name(self) -> &'static str {
        match self {
            Reduce::Sum => "sum",
            Reduce::Mean => "mean",
            Reduce::Max => "max",
        }
    }
}

impl SyncGroup {
    /// Waits until all workers are here.
    pub fn barrier(&mut self, name: &str) -> Result<(), ClientError> {
        self.gather(&format!("barrier {name}"), &[], self.participant.workers).map(|_| ())
    }

    /// Gathers the bytes of all workers, in their order.
    ///
    /// A worker brings at most 1 MiB, and at most an equal part of a frame of the servers (16 MiB by default). If one
    /// brings more, the others wait for it until the time-out.
    pub fn all_gather(&mut self, name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ClientError> {
        self.gather(&format!("all_gather {name}"), bytes, self.participant.workers)
    }

    /// Bytes of each, if so many of the workers bring any.
    fn part_bytes_max(&self, givers: u32) -> usize {
        match &self.way {
            Way::Here(..) => MEETING_BYTES_MAX,
            Way::Servers(servers) => servers.part_bytes_max(givers),
        }
    }

    /// [`SyncGroup::all_gather`] where this many of the workers bring bytes, each an equal part of a frame. All
    /// workers must give the same name, which includes the operation, so that the sum of one does not meet the mean
    /// of another.
    pub fn gather(&mut self, name: &str, bytes: &[u8], givers: u32) -> Result<Vec<Vec<u8>>, ClientError> {
        let bytes_max = self.part_bytes_max(givers);
        if bytes.len() > bytes_max {
            // Before anybody has what would be too much for all.
            let (worker, found) = (self.participant.worker, bytes.len());
            let reason = format!(
                "meeting {name:?}: {found} bytes of worker {worker} are above the limit, {bytes_max} for each of {givers}"
            );
            return Err(ClientError::Group { place: self.place(), reason });
        }
        let until = Instant::now() + self.timeout;
        let met = match &mut self.way {
            Way::Here(meeting, _) => {
                meeting.meet(self.participant, self.round, name, bytes, until, &self.cancel)?
            }
            Way::Servers(servers) => servers.meet(self.round, name, bytes, until, &self.cancel)?,
        };
        match met {
            Ok(parts) => {
                self.round += 1;
                Ok(parts)
            }
            Err(missing) => Err(self.awaited(format!("meeting {name:?}"), missing)),
        }
    }

    /// The bytes of one worker, at most 1 MiB, for all; what the others give is ignored.
    pub fn broadcast(&mut self, name: &str, from: u32, bytes: &[u8]) -> Result<Vec<u8>, ClientError> {
        let mine = if from == self.participant.worker { bytes } else { &[] };
        let mut parts = self.gather(&format!("broadcast {name} from {from}"), mine, 1)?;
        if from as usize >= parts.len() {
            let reason = format!("broadcast {name:?} from worker {from} of {}", parts.len());
            return Err(ClientError::Group { place: self.place(), reason });
        }
        Ok(parts.swap_remove(from as usize))
    }

    /// Each number becomes that of all workers; the result has the same bits for all.
    pub fn all_reduce(&mut self, name: &str, values: &mut [f64], reduce: Reduce) -> Result<(), ClientError> {
        let workers = f64::from(self.participant.workers);
        let combine = move |a: f64, b: f64| match reduce {
            Reduce::Sum | Reduce::Mean => a + b,
            // A NaN stays one.
            Reduce::Max if a.is_nan() || a > b => a,
            Reduce::Max => b,
        };
        let mut bits: Vec<u64> = values.iter().map(|value| value.to_bits()).collect();
        let name = format!("{} {name}", reduce.name());
        self.reduce_words(&name, &mut bits, |a, b| combine(f64::from_bits(a), f64::from_bits(b)).to_bits())?;
        for (value, bits) in values.iter_mut().zip(bits) {
            let sum = f64::from_bits(bits);
            *value = if reduce == Reduce::Mean { sum / workers } else { sum };
        }
        Ok(())
    }

    /// [`SyncGroup::all_reduce`] for counts. A sum that is too large is 2^64 - 1.
    pub fn all_reduce_counts(
        &mut self,
        name: &str,
        values: &mut [u64],
        reduce: Reduce,
    ) -> Result<(), ClientError> {
        let name = format!("{} of counts {name}", reduce.name());
        self.reduce_words(&name, values, |a, b| match reduce {
            Reduce::Sum | Reduce::Mean => a.saturating_add(b),
            Reduce::Max => a.max(b),
        })?;
        if reduce == Reduce::Mean {
            values.iter_mut().for_each(|value| *value /= u64::from(self.participant.workers));
        }
        Ok(())
    }

    fn reduce_words(
        &mut self,
        name: &str,
        words: &mut [u64],
        combine: impl Fn(u64, u64) -> u64,
    ) -> Result<(), ClientError> {
        let workers = self.participant.workers;
        let step = ((MEETING_BYTES / workers as usize).min(self.part_bytes_max(workers)) / 8).max(1);
        let mut mine = Vec::new();
        // Also when there are none: everybody comes.
        let mut at = 0;
        loop {
            let end = words.len().min(at + step);
            mine.clear();
            mine.extend(words[at..end].iter().flat_map(|word| word.to_le_bytes()));
            let parts = self.gather(name, &mine, workers)?;
            if let Some(worker) = parts.iter().position(|part| part.len() != mine.len()) {
                let reason = format!(
                    "meeting {name:?}: worker {worker} has an array of another length than worker {}",
                    self.participant.worker
                );
                return Err(ClientError::Group { place: self.place(), reason });
            }
            let word = |part: &[u8], at: usize| {
                part[8 * at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
            };
            for (place, out) in words[at..end].iter_mut().enumerate() {
                let all = parts.iter().map(|part| word(part, place));
                *out = all.reduce(&combine).unwrap_or_default();
            }
            at = end;
            if at == words.len() {
                return Ok(());
            }
        }
    }
}
