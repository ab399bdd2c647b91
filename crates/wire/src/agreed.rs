//! Negotiation: the terms of a connection, as a function of both sides' offers.

use std::ops::{BitAnd, BitOr};

use crate::limit::{FRAME_BYTES_MAX, FRAME_BYTES_MIN, HELLO_BYTES_MAX};
use crate::{Fault, WireError};

/// A set of optional features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(pub u32);

impl Features {
    /// The empty set.
    pub const NONE: Features = Features(0);
    /// Payloads may be compressed with lz4 (block format).
    pub const LZ4: Features = Features(1);
    /// Payloads may be compressed with zstd.
    pub const ZSTD: Features = Features(1 << 1);
    /// Rows of pull replies may be IEEE 754 half precision.
    pub const F16_ROWS: Features = Features(1 << 2);
    /// Frames may go without a checksum. Offered where memory is shared.
    pub const NO_CHECKSUM: Features = Features(1 << 3);
    /// A hub describes its rows ([`Kind::Describe`](crate::Kind::Describe)).
    pub const DESCRIBE: Features = Features(1 << 4);
    /// A trainer unsubscribes from a hub ([`Kind::Leave`](crate::Kind::Leave)).
    pub const LEAVE: Features = Features(1 << 5);
    /// A server removes a fed batch that will not be pushed ([`Kind::Forget`](crate::Kind::Forget)).
    pub const FORGET: Features = Features(1 << 6);
    /// A server stores the number of a save with the checkpoint ([`Kind::SaveAs`](crate::Kind::SaveAs)) and reports it
    /// ([`Kind::Saved`](crate::Kind::Saved)).
    pub const SAVES: Features = Features(1 << 8);
    /// A server reads the send time of requests ([`Kind::SentAt`](crate::Kind::SentAt)) and measures how long they
    /// waited.
    pub const SENT_AT: Features = Features(1 << 10);
    /// A server has temporary tables: `temporary` in the configuration of [`Kind::Create`](crate::Kind::Create).
    pub const TEMPORARY: Features = Features(1 << 11);
    /// Messages that continue a push say so ([`flag::CONTINUES`](crate::flag::CONTINUES)), so that the push counts once.
    pub const PUSH_PARTS: Features = Features(1 << 12);
    /// A server tells what changes in its tables ([`Kind::Changes`](crate::Kind::Changes)).
    pub const CHANGES: Features = Features(1 << 13);
    /// A server's identity has its history ([`Identity::history_id`](crate::Identity)).
    pub const HISTORY: Features = Features(1 << 14);
    /// The peer is another replica of the server's group ([`Kind::Replicate`](crate::Kind::Replicate)).
    pub const REPLICATE: Features = Features(1 << 15);
    /// A replica in sync answers the pulls of this connection, though another one is the primary.
    pub const PULL_FROM_ANY: Features = Features(1 << 16);
    /// A server takes the trace that the next request belongs to ([`Kind::Trace`](crate::Kind::Trace)).
    pub const TRACES: Features = Features(1 << 17);
    /// A trainer accepts minibatches whose keys a hub has fed to the servers ([`Outcome::Fed`](crate::Outcome::Fed)),
    /// and requests their keys if necessary ([`Kind::Keys`](crate::Kind::Keys)).
    pub const FED: Features = Features(1 << 18);
    /// The peer speaks version 4 of [`Kind::Replicate`](crate::Kind::Replicate), and of transfers between groups.
    pub const REPLICATE_4: Features = Features(1 << 19);
    /// Replies to pulls may go without a checksum, because a network card gathers their rows. Offered where the card has a
    /// checksum of its own.
    pub const UNSUMMED_ROWS: Features = Features(1 << 20);

    /// Whether the set contains all of `others`.
    #[must_use]
    pub fn has(self, others: Features) -> bool {
        self & others == others
    }
}

impl BitAnd for Features {
    type Output = Features;
    fn bitand(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }
}

impl BitOr for Features {
    type Output = Features;
    fn bitor(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
}

/// The abilities of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Oldest supported version.
    pub version_min: u8,
    /// Newest supported version.
    pub version_max: u8,
    /// Optional features. Unknown bits are no error.
    pub features: Features,
    /// Maximum frame length that this side accepts.
    pub frame_bytes_max: u32,
}

impl Offer {
    /// The offer of this build with these features.
    #[must_use]
    pub const fn of(features: Features) -> Offer {
        Offer { version_min: 1, version_max: 1, features, frame_bytes_max: FRAME_BYTES_MAX as u32 }
    }

    pub(crate) fn check(&self) -> Result<(), WireError> {
        let value = |what, found: u32| Err(WireError::Value { what, found: u64::from(found) });
        if self.version_min == 0 || self.version_min > self.version_max {
            return value("version_min", u32::from(self.version_min));
        }
        if (self.frame_bytes_max as usize) < FRAME_BYTES_MIN {
            return value("frame_bytes_max", self.frame_bytes_max);
        }
        Ok(())
    }

    /// Negotiates the newest common version, the common features and the smaller frame limit. The server answers a
    /// hello with them.
    pub fn meet(&self, other: &Offer) -> Result<Agreed, Fault> {
        let version = self.version_max.min(other.version_max);
        if version < self.version_min.max(other.version_min) {
            return Err(Fault::Version { min: self.version_min, max: self.version_max });
        }
        let frame_bytes_max = self.frame_bytes_max.min(other.frame_bytes_max).min(FRAME_BYTES_MAX as u32);
        Ok(Agreed { version, features: self.features & other.features, frame_bytes_max })
    }

    /// Checks that the server's answer stays within this offer.
    pub fn accept(&self, agreed: Agreed) -> Result<Agreed, WireError> {
        let value = |what, found: u32| Err(WireError::Value { what, found: u64::from(found) });
        if !(self.version_min..=self.version_max).contains(&agreed.version) {
            return value("version", u32::from(agreed.version));
        }
        if !self.features.has(agreed.features) {
            return value("features", agreed.features.0);
        }
        if agreed.frame_bytes_max > self.frame_bytes_max
            || (agreed.frame_bytes_max as usize) < FRAME_BYTES_MIN
        {
            return value("frame_bytes_max", agreed.frame_bytes_max);
        }
        Ok(agreed)
    }
}

/// The negotiated terms of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Version of all frames except hello.
    pub version: u8,
    /// Features that frames may use.
    pub features: Features,
    /// Maximum frame length, including the header.
    pub frame_bytes_max: u32,
}

impl Agreed {
    /// The terms until the hello is answered. Hello frames always have this version.
    pub const BEFORE_HELLO: Agreed =
        Agreed { version: 1, features: Features::NONE, frame_bytes_max: HELLO_BYTES_MAX as u32 };

    /// Whether frames must have a checksum.
    #[must_use]
    pub fn needs_checksum(&self) -> bool {
        !self.features.has(Features::NO_CHECKSUM)
    }

    pub(crate) fn check_frame(&self, frame_bytes: usize) -> Result<(), WireError> {
        let (found, max) = (frame_bytes as u64, u64::from(self.frame_bytes_max));
        if found > max { Err(WireError::TooLong { what: "frame", found, max }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(version_min: u8, version_max: u8, features: u32, frame_bytes_max: u32) -> Offer {
        Offer { version_min, version_max, features: Features(features), frame_bytes_max }
    }

    #[test]
    fn both_sides_meet_where_they_can() {
        let check = |server: Offer, client: Offer, expected: Result<(u8, u32, u32), (u8, u8)>| {
            let found = server.meet(&client);
            let accepted = found.map(|agreed| client.accept(agreed).expect("within the offer"));
            let expected = expected
                .map(|(version, features, frame_bytes_max)| Agreed {
                    version,
                    features: Features(features),
                    frame_bytes_max,
                })
                .map_err(|(min, max)| Fault::Version { min, max });
            assert_eq!(accepted, expected);
        };
        let bytes = FRAME_BYTES_MIN as u32;
        check(offer(1, 1, 15, bytes), offer(1, 1, 15, bytes), Ok((1, 15, bytes)));
        check(offer(1, 3, 0b101, 2 * bytes), offer(2, 9, 0b110, bytes), Ok((3, 0b100, bytes)));
        check(offer(1, 3, 0, u32::MAX), offer(3, 3, 0, u32::MAX), Ok((3, 0, FRAME_BYTES_MAX as u32)));
        check(offer(1, 2, 0, bytes), offer(3, 4, 0, bytes), Err((1, 2)));
        check(offer(5, 6, 0, bytes), offer(3, 4, 0, bytes), Err((5, 6)));
    }

    #[test]
    fn an_answer_beyond_the_offer_is_refused() {
        let bytes = FRAME_BYTES_MIN as u32;
        let ours = offer(1, 2, 0b11, 2 * bytes);
        let good = Agreed { version: 2, features: Features(1), frame_bytes_max: bytes };
        assert_eq!(ours.accept(good), Ok(good));
        for bad in [
            Agreed { version: 3, ..good },
            Agreed { features: Features(0b100), ..good },
            Agreed { frame_bytes_max: 2 * bytes + 1, ..good },
            Agreed { frame_bytes_max: bytes - 1, ..good },
        ] {
            assert!(matches!(ours.accept(bad), Err(WireError::Value { .. })), "{bad:?}");
        }
    }
}
