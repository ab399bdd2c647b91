//! The messages of the bootstrap connection: frames and records in envelopes, and the queue pair that a record names. It
//! knows no device and no socket.

use crate::options::Framing;

/// Length of an envelope's header: its kind, its sender's version, the length of its content.
pub(super) const ENVELOPE_BYTES: usize = 8;
/// The first two bytes of an envelope. No TLS record and no frame of ours begins so.
const MAGIC: [u8; 2] = [0xd7, b'R'];
/// Version of the records.
const VERSION: u8 = 1;
/// Length of a record.
pub(super) const RECORD_BYTES: usize = 48;

/// Longest content that is no frame: the reason of a refusal.
const OTHER_BYTES_MAX: usize = 512;

/// The content of an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A whole frame.
    Frame,
    /// The client's queue pair.
    Client,
    /// The server's queue pair.
    Server,
    /// Further frames of this direction come over the queue pair.
    Switch,
    /// The server has no queue pair, for this reason.
    Refused,
}

const CONTENTS: [Content; 5] =
    [Content::Frame, Content::Client, Content::Server, Content::Switch, Content::Refused];

/// The framing of envelopes around frames of at most so many bytes.
pub(super) fn framing(frames: &Framing) -> Framing {
    Framing {
        header_bytes: ENVELOPE_BYTES,
        body_bytes: |header| {
            let [magic @ .., version, _, b0, b1, b2, b3] = header else {
                return Err("a header of another length".to_owned());
            };
            if *magic != MAGIC {
                let reason =
                    "no message of rdma://; the peer may talk tcp:// (rdma:// has a port of its own)";
                return Err(reason.to_owned());
            }
            if *version != VERSION {
                return Err(format!("version {version} of rdma://, and this side has {VERSION}"));
            }
            Ok(u32::from_le_bytes([*b0, *b1, *b2, *b3]) as usize)
        },
        frame_bytes_max: envelope_bytes_max(frames.frame_bytes_max),
    }
}

/// The longest envelope, where frames have at most so many bytes.
pub(super) fn envelope_bytes_max(frame_bytes_max: usize) -> usize {
    ENVELOPE_BYTES + frame_bytes_max.max(OTHER_BYTES_MAX)
}

/// The header of an envelope.
pub(super) fn envelope(content: Content, bytes: usize) -> [u8; ENVELOPE_BYTES] {
    let [b0, b1, b2, b3] = u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
    let kind = CONTENTS.iter().position(|one| *one == content).unwrap_or_default() as u8;
    [MAGIC[0], MAGIC[1], VERSION, kind, b0, b1, b2, b3]
}

/// The kind of an envelope whose header the framing has accepted.
pub(super) fn content(header: &[u8]) -> Result<Content, String> {
    let kind = header.get(3).copied().unwrap_or(u8::MAX);
    CONTENTS.get(usize::from(kind)).copied().ok_or_else(|| format!("a message of kind {kind}"))
}

/// One end of a queue pair, as the other end needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Remote {
    /// Number of the queue pair, and of its first packet.
    pub(super) qp_num: u32,
    pub(super) psn: u32,
    pub(super) lid: u16,
    /// `enum ibv_mtu`
    pub(super) mtu: u8,
    pub(super) is_ethernet: bool,
    pub(super) gid: [u8; 16],
    /// The ring that this end reads, as the other end addresses it.
    pub(super) ring_at: u64,
    pub(super) rkey: u32,
    pub(super) ring_bytes: u32,
    /// Messages that the other end may have under way.
    pub(super) messages: u32,
}

/// Largest values of fields, beyond which a record is refused.
const NUMBER_MAX: u32 = (1 << 24) - 1;
const MTU_MAX: u8 = 5;

impl Remote {
    pub(super) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        let flags = [self.mtu, u8::from(self.is_ethernet)];
        let parts: [&[u8]; 9] = [
            &self.qp_num.to_le_bytes(),
            &self.psn.to_le_bytes(),
            &self.lid.to_le_bytes(),
            &flags,
            &self.gid,
            &self.ring_at.to_le_bytes(),
            &self.rkey.to_le_bytes(),
            &self.ring_bytes.to_le_bytes(),
            &self.messages.to_le_bytes(),
        ];
        let mut at = 0;
        for part in parts {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        out
    }

    /// Reads a record and checks its fields, as far as this end can know.
    pub(super) fn decode(bytes: &[u8]) -> Result<Remote, String> {
        let Ok(bytes) = <&[u8; RECORD_BYTES]>::try_from(bytes) else {
            return Err(format!("a queue pair in {} bytes", bytes.len()));
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[12..28]);
        let remote = Remote {
            qp_num: word(0),
            psn: word(4),
            lid: u16::from_le_bytes([bytes[8], bytes[9]]),
            mtu: bytes[10],
            is_ethernet: bytes[11] == 1,
            gid,
            ring_at: u64::from(word(28)) | u64::from(word(32)) << 32,
            rkey: word(36),
            ring_bytes: word(40),
            messages: word(44),
        };
        let bounds = super::RING_BYTES_MIN..=super::RING_BYTES_MAX;
        let is_valid = remote.qp_num <= NUMBER_MAX
            && remote.psn <= NUMBER_MAX
            && (1..=MTU_MAX).contains(&remote.mtu)
            && bounds.contains(&(remote.ring_bytes as usize))
            && remote.ring_bytes.is_power_of_two()
            && (super::MESSAGES_MIN..=super::MESSAGES_MAX).contains(&remote.messages)
            && remote.ring_at.checked_add(remote.ring_bytes.into()).is_some();
        if is_valid { Ok(remote) } else { Err(format!("an impossible queue pair: {remote:?}")) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn remote() -> Remote {
        Remote {
            qp_num: 17,
            psn: 0x00ab_cdef,
            lid: 3,
            mtu: 3,
            is_ethernet: true,
            gid: [7; 16],
            ring_at: 0x7fff_1234_5000,
            rkey: 0xdead_beef,
            ring_bytes: 1 << 20,
            messages: 128,
        }
    }

    #[test]
    fn a_record_is_read_back_and_an_impossible_one_refused() {
        assert_eq!(Remote::decode(&remote().encode()), Ok(remote()));
        let wrong: [fn(&mut Remote); 7] = [
            |remote| remote.qp_num = 1 << 24,
            |remote| remote.psn = 1 << 24,
            |remote| remote.mtu = 6,
            |remote| remote.ring_bytes = 3 << 20,
            |remote| remote.ring_bytes = 1 << 30,
            |remote| remote.messages = 0,
            |remote| remote.ring_at = u64::MAX - 5,
        ];
        for change in wrong {
            let mut changed = remote();
            change(&mut changed);
            assert!(Remote::decode(&changed.encode()).is_err(), "{changed:?}");
        }
        assert!(Remote::decode(&[0; 5]).is_err());
    }

    #[test]
    fn envelopes_are_told_from_other_protocols() {
        let frames = Framing { header_bytes: 1, body_bytes: |_| Ok(0), frame_bytes_max: 100 };
        let framing = framing(&frames);
        for one in CONTENTS {
            let header = envelope(one, 77);
            assert_eq!(framing.frame_bytes(&header, "peer").ok(), Some(Some(ENVELOPE_BYTES + 77)));
            assert_eq!(content(&header), Ok(one));
        }
        let mut later = envelope(Content::Frame, 1);
        later[2] = 2;
        for (header, expected) in [
            (&b"SNDR\x01\0\0\0"[..], "talk tcp://"),
            (&[22, 3, 1, 0, 0, 0, 0, 0], "talk tcp://"),
            (&later, "version 2"),
        ] {
            let error = framing.frame_bytes(header, "peer").expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
        later[3] = 9;
        assert!(content(&later).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(remote) = Remote::decode(&bytes) {
                prop_assert_eq!(Remote::decode(&remote.encode()), Ok(remote));
            }
        }
    }
}
