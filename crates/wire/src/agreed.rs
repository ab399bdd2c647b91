//! What the two sides of a connection agree on, as a function of what each offers. Knows nothing of how the offers travel.

use std::ops::{BitAnd, BitOr};

use crate::limit::{FRAME_BYTES_MAX, FRAME_BYTES_MIN, HELLO_BYTES_MAX};
use crate::{Fault, WireError};

/// A set of optional abilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(pub u32);

impl Features {
    /// None.
    pub const NONE: Features = Features(0);
    /// Payloads may be compressed with lz4 (block format).
    pub const LZ4: Features = Features(1);
    /// Payloads may be compressed with zstd.
    pub const ZSTD: Features = Features(1 << 1);
    /// Rows of pull replies may be IEEE 754 half precision.
    pub const F16_ROWS: Features = Features(1 << 2);
    /// Frames may go without a checksum; to be offered where memory is shared.
    pub const NO_CHECKSUM: Features = Features(1 << 3);
    /// A hub says what its rows are made by when it is asked ([`Kind::Describe`](crate::Kind::Describe)).
    pub const DESCRIBE: Features = Features(1 << 4);
    /// A trainer says farewell to a hub ([`Kind::Leave`](crate::Kind::Leave)).
    pub const LEAVE: Features = Features(1 << 5);
    /// A server forgets a batch that was fed and will not be pushed ([`Kind::Forget`](crate::Kind::Forget)).
    pub const FORGET: Features = Features(1 << 6);
    /// A trainer takes minibatches of which a hub has fed keys to the servers ([`Outcome::Fed`](crate::Outcome::Fed)), and
    /// asks for their keys where it needs them after all ([`Kind::Keys`](crate::Kind::Keys)).
    pub const FED: Features = Features(1 << 7);
    /// A server keeps with a checkpoint by which save of all servers it was made ([`Kind::SaveAs`](crate::Kind::SaveAs)), and
    /// says so ([`Kind::Saved`](crate::Kind::Saved)).
    pub const SAVES: Features = Features(1 << 8);
    /// A server reads when requests were sent ([`Kind::SentAt`](crate::Kind::SentAt)), and measures how long they waited.
    pub const SENT_AT: Features = Features(1 << 10);
    /// A server has temporary tables: `temporary` in the configuration of [`Kind::Create`](crate::Kind::Create).
    pub const TEMPORARY: Features = Features(1 << 11);

    /// Has it all of `others`?
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

/// What one side can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Oldest version it speaks.
    pub version_min: u8,
    /// Newest version it speaks.
    pub version_max: u8,
    /// What it can do beyond the version. Bits that the other side does not know are not an error.
    pub features: Features,
    /// Longest frame it takes.
    pub frame_bytes_max: u32,
}

impl Offer {
    /// What this build can do, with these features.
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

    /// The newest version, all features and the longest frame that both can do; the server answers a hello with it.
    pub fn meet(&self, other: &Offer) -> Result<Agreed, Fault> {
        let version = self.version_max.min(other.version_max);
        if version < self.version_min.max(other.version_min) {
            return Err(Fault::Version { min: self.version_min, max: self.version_max });
        }
        let frame_bytes_max = self.frame_bytes_max.min(other.frame_bytes_max).min(FRAME_BYTES_MAX as u32);
        Ok(Agreed { version, features: self.features & other.features, frame_bytes_max })
    }

    /// Does the answer stay within this offer? The client asks before it believes the server.
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

/// What holds on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Version of all frames but hello.
    pub version: u8,
    /// What frames may use.
    pub features: Features,
    /// Longest frame, header included.
    pub frame_bytes_max: u32,
}

impl Agreed {
    /// What holds until the hello has been answered. Hello frames always have this version.
    pub const BEFORE_HELLO: Agreed =
        Agreed { version: 1, features: Features::NONE, frame_bytes_max: HELLO_BYTES_MAX as u32 };

    /// Must frames have a checksum?
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
