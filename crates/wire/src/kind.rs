//! The table of message kinds, with names and numbers.

use std::fmt;

/// The kind of a message. Request and reply have the same kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // the names say it; the messages of the same names have the documentation
pub enum Kind {
    Hello = 1,
    Ping = 2,
    Create = 3,
    Open = 4,
    Drop = 5,
    Tables = 6,
    Pull = 7,
    PullPooled = 8,
    PullFed = 9,
    Push = 10,
    PushFed = 11,
    Feed = 12,
    Export = 13,
    Import = 14,
    Delete = 15,
    Save = 16,
    Restore = 17,
    Stats = 18,
    Placement = 19,
    Goaway = 20,
    PushStep = 21,
    WaitStep = 22,
    Meet = 23,
    Subscribe = 24,
    Next = 25,
    Join = 26,
    Rows = 27,
    RowsEnd = 28,
    Part = 29,
    Alive = 30,
    TurnOver = 31,
    Lost = 32,
    Regroup = 33,
    Fail = 34,
    Pace = 35,
    Describe = 36,
    Leave = 37,
    Forget = 38,
    Keys = 39,
    Stop = 44,
    SaveAs = 45,
    Saved = 46,
    SentAt = 48,
    Changes = 49,
    Replicate = 50,
    Transfer = 51,
    Trace = 52,
}

impl Kind {
    /// All kinds by number. Numbers start at 1 and may have gaps.
    pub const ALL: [Kind; 47] = [
        Kind::Hello,
        Kind::Ping,
        Kind::Create,
        Kind::Open,
        Kind::Drop,
        Kind::Tables,
        Kind::Pull,
        Kind::PullPooled,
        Kind::PullFed,
        Kind::Push,
        Kind::PushFed,
        Kind::Feed,
        Kind::Export,
        Kind::Import,
        Kind::Delete,
        Kind::Save,
        Kind::Restore,
        Kind::Stats,
        Kind::Placement,
        Kind::Goaway,
        Kind::PushStep,
        Kind::WaitStep,
        Kind::Meet,
        Kind::Subscribe,
        Kind::Next,
        Kind::Join,
        Kind::Rows,
        Kind::RowsEnd,
        Kind::Part,
        Kind::Alive,
        Kind::TurnOver,
        Kind::Lost,
        Kind::Regroup,
        Kind::Fail,
        Kind::Pace,
        Kind::Describe,
        Kind::Leave,
        Kind::Forget,
        Kind::Keys,
        Kind::Stop,
        Kind::SaveAs,
        Kind::Saved,
        Kind::SentAt,
        Kind::Changes,
        Kind::Replicate,
        Kind::Transfer,
        Kind::Trace,
    ];

    /// The kind with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Name in statistics and errors.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Hello => "hello",
            Kind::Ping => "ping",
            Kind::Create => "create",
            Kind::Open => "open",
            Kind::Drop => "drop",
            Kind::Tables => "tables",
            Kind::Pull => "pull",
            Kind::PullPooled => "pull_pooled",
            Kind::PullFed => "pull_fed",
            Kind::Push => "push",
            Kind::PushFed => "push_fed",
            Kind::Feed => "feed",
            Kind::Export => "export",
            Kind::Import => "import",
            Kind::Delete => "delete",
            Kind::Save => "save",
            Kind::Restore => "restore",
            Kind::Stats => "stats",
            Kind::Placement => "placement",
            Kind::Goaway => "goaway",
            Kind::PushStep => "push_step",
            Kind::WaitStep => "wait_step",
            Kind::Meet => "meet",
            Kind::Subscribe => "subscribe",
            Kind::Next => "next",
            Kind::Join => "join",
            Kind::Rows => "rows",
            Kind::RowsEnd => "rows_end",
            Kind::Part => "part",
            Kind::Alive => "alive",
            Kind::TurnOver => "turn_over",
            Kind::Lost => "lost",
            Kind::Regroup => "regroup",
            Kind::Fail => "fail",
            Kind::Pace => "pace",
            Kind::Describe => "describe",
            Kind::Leave => "leave",
            Kind::Forget => "forget",
            Kind::Keys => "keys",
            Kind::Stop => "stop",
            Kind::SaveAs => "save_as",
            Kind::Saved => "saved",
            Kind::SentAt => "sent_at",
            Kind::Changes => "changes",
            Kind::Replicate => "replicate",
            Kind::Transfer => "transfer",
            Kind::Trace => "trace",
        }
    }

    /// Whether a request may be repeated when its outcome is unknown. Pushes may, because servers track their sequence
    /// numbers.
    #[must_use]
    pub fn is_repeatable(self) -> bool {
        use Kind::{Drop, Goaway, Replicate, Restore, Save, SaveAs};
        !matches!(self, Drop | Save | SaveAs | Restore | Goaway | Replicate) && !self.is_told()
    }

    /// Whether one worker of a job sends it to another without a reply.
    #[must_use]
    pub fn is_told(self) -> bool {
        use Kind::{Alive, Fail, Lost, Pace, Part, Regroup, Rows, RowsEnd, Stop, TurnOver};
        matches!(self, Rows | RowsEnd | Part | Alive | TurnOver | Lost | Regroup | Fail | Pace | Stop)
    }

    /// Whether its reply has rows, which may be f16.
    #[must_use]
    pub fn has_rows(self) -> bool {
        matches!(self, Kind::Pull | Kind::PullPooled | Kind::PullFed | Kind::Changes)
    }

    /// Whether its request concerns one table, which the header names.
    #[must_use]
    pub fn is_about_a_table(self) -> bool {
        use Kind::{
            Changes, Delete, Export, Feed, Forget, Import, Pull, PullFed, PullPooled, Push, PushFed, PushStep,
        };
        matches!(
            self,
            Pull | PullPooled
                | PullFed
                | Push
                | PushFed
                | Feed
                | Forget
                | Export
                | Changes
                | Import
                | Delete
                | PushStep
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_kinds_agree() {
        assert!(Kind::ALL.is_sorted());
        for number in 0..=u8::MAX {
            let kind = Kind::of(number);
            let known = Kind::ALL.iter().any(|kind| *kind as u8 == number);
            assert_eq!(kind.map(|kind| kind as u8), known.then_some(number));
        }
    }
}
