//! Why something is not taken. Knows neither who is told nor in which protocol.

/// Why something is not taken; nothing of it was. `F` is how a step failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused<F> {
    /// The group has another number of workers, or this one cannot be among them.
    #[error("worker {worker} of {found}, but the group has {expected} workers")]
    Workers {
        /// Which it is.
        worker: u32,
        /// How many workers there are.
        expected: u32,
        /// How many there are according to it.
        found: u32,
    },
    /// Another process has taken this worker's place.
    #[error("worker {worker}, attempt {attempt}: attempt {newest} has taken its place")]
    Replaced {
        /// Which it is.
        worker: u32,
        /// Its attempt.
        attempt: u32,
        /// The one that is known.
        newest: u32,
    },
    /// A step that cannot be the next.
    #[error(
        "step {step}, but step {applied} is the last that was applied; start a new group if it was forgotten"
    )]
    Step {
        /// Its number.
        step: u64,
        /// The last one.
        applied: u64,
    },
    /// A part is said to be whole that is not.
    #[error("step {step}: of {expected} messages of worker {worker} there are {found}")]
    Incomplete {
        /// Its number.
        step: u64,
        /// Whose part.
        worker: u32,
        /// Messages that were handed in.
        found: u32,
        /// Messages according to it.
        expected: u32,
    },
    /// A meeting that cannot be the next.
    #[error("meeting {round}, but meeting {next} is the next; start a new group if it was forgotten")]
    Round {
        /// Its number.
        round: u64,
        /// The one that is next.
        next: u64,
    },
    /// The others are at another place of the program.
    #[error("meeting {round} is {expected:?} for others and {found:?} for worker {worker}")]
    OtherMeeting {
        /// Its number.
        round: u64,
        /// Who calls it otherwise.
        worker: u32,
        /// What the first one called it.
        expected: String,
        /// What this one calls it.
        found: String,
    },
    /// Larger than its limit.
    #[error("{what}: {found} is above the limit of {max}")]
    TooLarge {
        /// Which size.
        what: &'static str,
        /// How large it is.
        found: u64,
        /// How large it may be.
        max: u64,
    },
    /// No room for it now; there will be when others are done.
    #[error("no room now: {what}")]
    Full {
        /// What there is too much of.
        what: String,
    },
    /// The step failed when it was applied, and the group with it.
    #[error("step {step} failed: {failure}")]
    Failed {
        /// Its number.
        step: u64,
        /// How.
        failure: F,
    },
}
