//! How bad a simulated run is, and the counts of what happened in it.

use sanderling_random::SplitMix64;

/// How bad the network and the machines are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weather {
    /// Of 1,000 messages, so many are lost, and so many come twice.
    pub(super) lost: u64,
    pub(super) repeated: u64,
    pub(super) delay_max: u64,
    /// One in this many ticks has a new fault.
    pub(super) calm: u64,
}

impl Weather {
    pub(super) fn draw(rng: &mut SplitMix64) -> Weather {
        match rng.below(4) {
            0 => Weather { lost: 0, repeated: 0, delay_max: 3, calm: 60 },
            1 => Weather { lost: 20, repeated: 20, delay_max: 6, calm: 100 },
            2 => Weather { lost: 100, repeated: 100, delay_max: 20, calm: 120 },
            _ => Weather { lost: 10, repeated: 0, delay_max: 10, calm: 40 },
        }
    }
}

/// Counts of a run's events.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) epochs: u64,
    pub(super) crashes: u64,
    pub(super) cuts: u64,
    pub(super) pauses: u64,
    pub(super) hand_overs: u64,
    pub(super) waited: u64,
    pub(super) removals: u64,
    pub(super) operations: u64,
    /// Tables of a run that are there from the beginning.
    pub(super) tables: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Counts) {
        self.epochs += other.epochs;
        self.crashes += other.crashes;
        self.cuts += other.cuts;
        self.pauses += other.pauses;
        self.hand_overs += other.hand_overs;
        self.waited += other.waited;
        self.removals += other.removals;
        self.operations += other.operations;
    }

    /// Whether the tables of every run are there.
    pub(super) fn has_tables(&self) -> bool {
        self.operations >= self.tables
    }

    pub(super) fn is_varied(&self) -> bool {
        let Counts { epochs, crashes, cuts, pauses, hand_overs, waited, removals, operations, .. } = *self;
        [epochs, crashes, cuts, pauses, hand_overs, waited, removals, operations]
            .iter()
            .all(|&count| count > 0)
    }
}
