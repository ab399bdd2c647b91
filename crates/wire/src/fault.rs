//! The failures that a server reports, as numbered codes.

use crate::limit::REASON_BYTES_MAX;
use crate::reader::Reader;
use crate::writer::Writer;
use crate::{Kind, WireError};

/// Why a request failed. Nothing of it was applied unless the variant says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Fault {
    /// The request contradicts itself or the protocol. Repeating it is useless.
    #[error("bad request")]
    BadRequest,
    /// There is no common version.
    #[error("the server speaks versions {min} to {max}")]
    Version {
        /// Oldest version of the server.
        min: u8,
        /// Newest version of the server.
        max: u8,
    },
    /// The token is missing or wrong.
    #[error("unauthorized: the token is missing or wrong")]
    Unauthorized,
    /// A queue is full. Try again later.
    #[error("busy; try again in {retry_after_us} us")]
    Busy {
        /// Suggested delay before another try.
        retry_after_us: u64,
    },
    /// The deadline passed before work on the request began.
    #[error("deadline exceeded before the server began")]
    DeadlineExceeded,
    /// The server is about to stop and takes no new requests.
    #[error("the server is draining")]
    Draining,
    /// The placement assigns the keys or the table to another server.
    #[error("not on this server as of placement {placement_version}")]
    NotHere {
        /// Version of the server's placement.
        placement_version: u64,
    },
    /// There is no table of this name or number.
    #[error("no such table")]
    UnknownTable,
    /// A table of this name exists with another configuration.
    #[error("a table of this name has another configuration")]
    TableExists,
    /// The table's configuration is invalid.
    #[error("bad table configuration")]
    BadConfig,
    /// The row length of the request is not the table's.
    #[error("dim {found}, the table has {expected}")]
    DimensionMismatch {
        /// Weights per row of the table.
        expected: u32,
        /// Weights per row of the request.
        found: u32,
    },
    /// No room for new rows. The other keys were updated exactly once.
    #[error("the table is full: {rows} rows, {}, {rejected} keys were left out", budget(*budget_bytes))]
    TableFull {
        /// Distinct keys that were not applied.
        rejected: u64,
        /// Rows after the request.
        rows: u64,
        /// The table's budget; `u64::MAX`: none.
        budget_bytes: u64,
    },
    /// A gradient that is not finite, or too large.
    #[error("gradient of key {key}, coordinate {coordinate} is {value}")]
    BadGradient {
        /// The key.
        key: u64,
        /// Coordinate within the row.
        coordinate: u32,
        /// The gradient.
        value: f32,
    },
    /// The server has no such batch: never fed, already pushed, or given up.
    #[error("no such batch")]
    UnknownBatch,
    /// The push is outside the dedup window, so its outcome is unknown.
    #[error("push {sequence} is older than what the server remembers")]
    StalePush {
        /// Its number.
        sequence: u64,
    },
    /// The reply would exceed the frame limit, or the rows of a fed batch exceed their [`limit`](crate::limit).
    /// Request less.
    #[error("the answer, or what it is made of, has {bytes} bytes, above the limit of {bytes_max}")]
    TooLarge {
        /// Bytes of the reply, or of the rows.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// There is no checkpoint of this name.
    #[error("no such checkpoint")]
    UnknownCheckpoint,
    /// The checkpoint is damaged.
    #[error("the checkpoint is damaged")]
    Damaged,
    /// A file operation failed.
    #[error("input or output error {os_error}")]
    Io {
        /// Error number of the operating system, or 0.
        os_error: u32,
    },
    /// A bug of the server.
    #[error("internal error")]
    Internal,
    /// The changes since a follower's place are not kept: begin at the start.
    #[error("the changes since then are not kept, but those since epoch {oldest}")]
    StreamTooLate {
        /// The oldest epoch from which a follower can go on.
        oldest: u64,
    },
    /// Another replica of this server's group is the primary, or will be. Nothing was applied.
    #[error("not the primary of its group, as of record {version}")]
    NotPrimary {
        /// Revision of the group's record.
        version: u64,
    },
}

type Numbers = [u64; 3];

impl Fault {
    /// Whether to repeat the request later, or at another server.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Fault::Busy { .. } | Fault::Draining | Fault::NotHere { .. } | Fault::NotPrimary { .. }
        )
    }

    /// The code in the header's status field. `docs/wire-format.md` has the table.
    #[must_use]
    pub fn code(&self) -> u32 {
        self.parts().0
    }

    fn parts(&self) -> (u32, Numbers) {
        match *self {
            Fault::BadRequest => (1, [0; 3]),
            Fault::Version { min, max } => (2, [min.into(), max.into(), 0]),
            Fault::Unauthorized => (3, [0; 3]),
            Fault::Busy { retry_after_us } => (4, [retry_after_us, 0, 0]),
            Fault::DeadlineExceeded => (5, [0; 3]),
            Fault::Draining => (6, [0; 3]),
            Fault::NotHere { placement_version } => (7, [placement_version, 0, 0]),
            Fault::UnknownTable => (8, [0; 3]),
            Fault::TableExists => (9, [0; 3]),
            Fault::BadConfig => (10, [0; 3]),
            Fault::DimensionMismatch { expected, found } => (11, [expected.into(), found.into(), 0]),
            Fault::TableFull { rejected, rows, budget_bytes } => (12, [rejected, rows, budget_bytes]),
            Fault::BadGradient { key, coordinate, value } => {
                (13, [key, coordinate.into(), value.to_bits().into()])
            }
            Fault::UnknownBatch => (14, [0; 3]),
            Fault::StalePush { sequence } => (15, [sequence, 0, 0]),
            Fault::TooLarge { bytes, bytes_max } => (16, [bytes, bytes_max, 0]),
            Fault::UnknownCheckpoint => (17, [0; 3]),
            Fault::Damaged => (18, [0; 3]),
            Fault::Io { os_error } => (19, [os_error.into(), 0, 0]),
            Fault::Internal => (20, [0; 3]),
            Fault::StreamTooLate { oldest } => (21, [oldest, 0, 0]),
            Fault::NotPrimary { version } => (22, [version, 0, 0]),
        }
    }

    fn of(code: u32, numbers: Numbers) -> Result<Fault, WireError> {
        let [a, b, c] = numbers;
        let wrong = |found| WireError::Value { what: "number of a failure", found };
        let short = |number: u64| u32::try_from(number).map_err(|_| wrong(number));
        let byte = |number: u64| u8::try_from(number).map_err(|_| wrong(number));
        let fault = match code {
            1 => Fault::BadRequest,
            2 => Fault::Version { min: byte(a)?, max: byte(b)? },
            3 => Fault::Unauthorized,
            4 => Fault::Busy { retry_after_us: a },
            5 => Fault::DeadlineExceeded,
            6 => Fault::Draining,
            7 => Fault::NotHere { placement_version: a },
            8 => Fault::UnknownTable,
            9 => Fault::TableExists,
            10 => Fault::BadConfig,
            11 => Fault::DimensionMismatch { expected: short(a)?, found: short(b)? },
            12 => Fault::TableFull { rejected: a, rows: b, budget_bytes: c },
            13 => Fault::BadGradient { key: a, coordinate: short(b)?, value: f32::from_bits(short(c)?) },
            14 => Fault::UnknownBatch,
            15 => Fault::StalePush { sequence: a },
            16 => Fault::TooLarge { bytes: a, bytes_max: b },
            17 => Fault::UnknownCheckpoint,
            18 => Fault::Damaged,
            19 => Fault::Io { os_error: short(a)? },
            20 => Fault::Internal,
            21 => Fault::StreamTooLate { oldest: a },
            22 => Fault::NotPrimary { version: a },
            other => return Err(WireError::Value { what: "status", found: other.into() }),
        };
        // Numbers that the code does not use must be zero.
        if fault.parts().1 != numbers {
            return Err(wrong(numbers[2]));
        }
        Ok(fault)
    }
}

/// The reply to a failed request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Failure<'a> {
    /// Kind of the request.
    pub kind: Kind,
    /// The failure, for the client's code.
    pub fault: Fault,
    /// The reason, for people. Encoding cuts it at [`REASON_BYTES_MAX`].
    pub reason: &'a str,
}

impl<'a> Failure<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        self.fault.parts().1.iter().for_each(|&number| out.u64(number));
        out.reason(self.reason)
    }

    pub(crate) fn read(kind: Kind, code: u32, from: &mut Reader<'a>) -> Result<Failure<'a>, WireError> {
        let mut numbers = [0; 3];
        for number in &mut numbers {
            *number = from.u64("number of a failure")?;
        }
        let fault = Fault::of(code, numbers)?;
        Ok(Failure { kind, fault, reason: from.text("reason", REASON_BYTES_MAX)? })
    }
}

/// Keeps a peer's text on one line, so that it cannot imitate other output.
#[must_use]
pub fn on_one_line(reason: &str) -> String {
    reason.replace(char::is_control, " ")
}

fn budget(bytes: u64) -> String {
    match bytes {
        u64::MAX => "no budget".to_owned(),
        bytes => format!("budget {bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_says_one_line() {
        assert_eq!(on_one_line("rate 0.1: \"é\""), "rate 0.1: \"é\"");
        assert_eq!(on_one_line("a\r\nerror: b\u{1b}[31m\u{9b}c"), "a  error: b [31m c");
    }
}
