//! Messages between workers: shuffled rows, the end of an exchange, pieces of bytes.

/// Rows and bytes are sent in pieces of at most about this size.
pub(crate) const PARCEL_BYTES: usize = 256 << 10;

/// A message from one worker to another. `round` numbers the exchanges of a job.
#[derive(Debug, PartialEq)]
pub(crate) enum Parcel {
    /// Packed rows of a slice of places; see [`crate::packed_rows`].
    Rows { round: u64, slice: u32, bytes: Vec<u8> },
    /// The sender has sent all rows of the exchange.
    End { round: u64 },
    /// Bytes, a piece of them; the last one says so.
    Bytes { round: u64, is_last: bool, bytes: Vec<u8> },
}

impl Parcel {
    /// The exchange that it belongs to.
    pub(crate) fn round(&self) -> u64 {
        let (Parcel::Rows { round, .. } | Parcel::End { round } | Parcel::Bytes { round, .. }) = self;
        *round
    }
}
