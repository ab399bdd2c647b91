//! Planted faults, which the simulator must find: a test-only switch.

/// A fault of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Fault {
    /// The right machine.
    #[default]
    None,
    /// Pushes are acknowledged before followers have them.
    AcknowledgeBeforeBackup,
    /// A process that starts again is taken for the member that it was.
    MemberWithoutBoot,
    /// Marks of pushes are not sent to followers.
    MarksNotSent,
    /// A follower makes itself the primary without a compare-and-set.
    PromoteWithoutCompareAndSet,
    /// A repeated push is answered by its mark before followers have the push.
    RepeatAnsweredEarly,
    /// Updates that come too early are skipped.
    SkipInsteadOfWait,
    /// Removals have no numbers.
    RemovalsUnnumbered,
    /// A change is applied when the first stream has come to it.
    BarrierNotAwaited,
    /// A learner is in sync before it has what was acknowledged without it.
    AddedTooEarly,
    /// A primary answers pulls although no follower hears it.
    PullsWithoutLease,
    /// Keys' places are asked before the marks of pushes.
    PlacesBeforeMarks,
    /// A giving group takes slots again after a time, without asking the registry.
    TakenAgainAfterTimeout,
    /// A receiving group commits before the giving group has closed the slots.
    CommitWithoutClosed,
    /// A giving group takes pushes of a pinned table while its last rows are copied.
    PinnedStaysOpen,
}
