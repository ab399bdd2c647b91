//! Meetings: every worker brings bytes, and when all have come everybody is given all. Knows not what the bytes are.

use std::collections::VecDeque;

use crate::budget::{Budget, Held};
use crate::limit::MEETING_BYTES_MAX;
use crate::refused::Refused;

/// What comes of a meeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Met<'a> {
    /// These workers have not come.
    Waiting(Vec<u32>),
    /// What each brought, in their order.
    All(Vec<&'a [u8]>),
}

/// The meetings of a group: the one that is going on, and the one before, which somebody may not have left yet.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    kept: VecDeque<Round>,
}

#[derive(Debug)]
struct Round {
    number: u64,
    name: String,
    brought: Vec<Option<Brought>>,
}

#[derive(Debug)]
struct Brought {
    bytes: Box<[u8]>,
    _held: Held,
}

impl Round {
    fn missing(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.brought).filter(|(_, brought)| brought.is_none()).map(|(worker, _)| worker)
    }

    fn is_over(&self) -> bool {
        self.missing().next().is_none()
    }
}

impl Rounds {
    /// The first meeting for which this worker is awaited. One that it has come to and that is not over counts: whoever
    /// takes its place may come again.
    pub(crate) fn next(&self, worker: u32) -> u64 {
        self.kept.back().map_or(1, |newest| {
            let has_come = newest.brought[worker as usize].is_some();
            if has_come && newest.is_over() { newest.number + 1 } else { newest.number }
        })
    }

    /// A worker comes, or asks again.
    pub(crate) fn meet<F>(
        &mut self,
        (worker, workers): (u32, u32),
        (number, name): (u64, &str),
        bytes: &[u8],
        budget: &Budget,
    ) -> Result<Met<'_>, Refused<F>> {
        if bytes.len() > MEETING_BYTES_MAX {
            let (what, found, max) = ("bytes of a meeting", bytes.len() as u64, MEETING_BYTES_MAX as u64);
            return Err(Refused::TooLarge { what, found, max });
        }
        let found = self.kept.iter().position(|round| round.number == number);
        let next = self.kept.back().map_or(1, |newest| newest.number + u64::from(newest.is_over()));
        if found.is_none() && number != next {
            return Err(Refused::Round { round: number, next });
        }
        let held = budget.hold(bytes.len() + name.len() + size_of::<Brought>());
        let full = || Refused::Full { what: "all that workers have brought and not taken yet".to_owned() };
        let held = held.ok_or_else(full)?;
        let at = found.unwrap_or_else(|| {
            // All have come to the newest, so all have left the one before.
            self.kept.drain(..self.kept.len().saturating_sub(1));
            let brought = (0..workers).map(|_| None).collect();
            self.kept.push_back(Round { number, name: name.to_owned(), brought });
            self.kept.len() - 1
        });
        let round = &mut self.kept[at];
        if round.name != name {
            let (expected, found) = (round.name.clone(), name.to_owned());
            return Err(Refused::OtherMeeting { round: number, worker, expected, found });
        }
        if !round.is_over() {
            round.brought[worker as usize] = Some(Brought { bytes: bytes.into(), _held: held });
        }
        if !round.is_over() {
            return Ok(Met::Waiting(round.missing().collect()));
        }
        Ok(Met::All(round.brought.iter().flatten().map(|brought| &*brought.bytes).collect()))
    }
}
