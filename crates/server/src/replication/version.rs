//! The versions of messages between servers of a cluster: those that a server speaks, and what a placement needs.
//!
//! Servers of a group may differ by one version, as `docs/design/0040-groups-of-replicas.md` says. A newer server
//! writes the older version to a server that reads no other. It knows no connection.

use sanderling_replica::Placement;
use sanderling_wire::Features;

/// The newest version that this program speaks.
const NEWEST: u8 = 4;
/// The oldest one.
const OLDEST: u8 = 3;
/// The first version whose placements have pinned tables in other groups.
pub const MOVES_PINNED_TABLES: u8 = 4;
/// The first version that has [`Operation::Replace`](sanderling_replica::Operation::Replace).
pub(super) const REPLACES_TABLES: u8 = 4;

/// The versions that a server speaks, from the oldest to the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spoken {
    pub(crate) oldest: u8,
    pub(crate) newest: u8,
}

impl Spoken {
    /// The versions of this program, or of a program whose newest version is this one.
    pub(crate) fn up_to(newest: Option<u8>) -> Spoken {
        let newest = newest.unwrap_or(NEWEST).min(NEWEST);
        Spoken { oldest: OLDEST.min(newest), newest }
    }

    pub(super) fn has(self, version: u8) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }

    /// The features of a hello. Version 3 has no feature of its own.
    pub(crate) fn features(self) -> Features {
        match self.newest {
            ..=3 => Features::REPLICATE,
            _ => Features::REPLICATE | Features::REPLICATE_4,
        }
    }

    /// The newest version that both sides of a connection speak, by the features that they have agreed on.
    pub(crate) fn with(self, agreed: Features) -> u8 {
        let other = if agreed.has(Features::REPLICATE_4) { NEWEST } else { OLDEST };
        self.newest.min(other)
    }

    /// Why a message of a server is not read, and what to do.
    pub(super) fn refusal(self, server: u32, found: u8) -> String {
        let Spoken { oldest, newest } = self;
        let advice = match found < oldest {
            true => format!("upgrade server {server} by versions in between"),
            false => "upgrade this server".to_owned(),
        };
        format!(
            "server {server} speaks version {found} of messages between servers, and this one speaks {oldest} to {newest}: \
             {advice}"
        )
    }
}

/// The version that a server must speak to be in a group with this placement.
pub(super) fn needed(placement: &Placement) -> u8 {
    let has_moved = !placement.pinned.is_empty() || placement.moves.iter().any(|one| !one.pinned.is_empty());
    if has_moved { MOVES_PINNED_TABLES } else { OLDEST }
}

#[cfg(test)]
mod tests {
    use sanderling_replica::{Envelope, Member, Message};

    use super::super::codec::{Outgoing, Unread, decode};
    use super::*;

    #[test]
    fn a_message_is_read_by_servers_that_speak_its_version() {
        let (from, message) = (Member { server: 7, boot: 9 }, Message::Heartbeat { sent: 5 });
        let envelope = Envelope { from, epoch: 3, session: 1, message };
        for (version, newest, is_read) in [
            (3, None, true),
            (4, None, true),
            (3, Some(3), true),
            (4, Some(3), false),
            (2, None, false),
            (5, None, false),
        ] {
            let (mut bytes, spans) = (Vec::new(), Vec::new());
            let outgoing = Outgoing { envelope: Box::new(envelope.clone()), version, spans };
            outgoing.encode(&mut bytes, |_| Ok::<(), ()>(())).unwrap();
            match decode(&bytes, Spoken::up_to(newest)) {
                Ok((read, _)) => assert!(is_read && read.from == from, "{version} {newest:?}"),
                Err(refused) => {
                    assert_eq!(refused, Unread::Version { server: 7, found: version });
                    assert!(!is_read, "{version} {newest:?}");
                }
            }
        }
    }

    #[test]
    fn two_servers_speak_the_older_of_their_versions() {
        let offer = |newest| (Spoken::up_to(newest), Spoken::up_to(newest).features());
        for (one, other, expected) in [
            (None, None, 4),
            (None, Some(3), 3),
            (Some(3), None, 3),
            (Some(3), Some(3), 3),
            (Some(9), None, 4),
        ] {
            let (spoken, features) = offer(one);
            assert_eq!(spoken.with(features & offer(other).1), expected, "{one:?} {other:?}");
        }
        assert_eq!(Spoken::up_to(Some(2)), Spoken { oldest: 2, newest: 2 });
        let reason = Spoken::up_to(None).refusal(7, 2);
        assert!(reason.contains("server 7 speaks version 2") && reason.contains("3 to 4"), "{reason}");
        assert!(Spoken::up_to(None).refusal(7, 5).ends_with("upgrade this server"));
    }

    #[test]
    fn a_placement_needs_the_version_that_knows_its_fields() {
        let mut placement = Placement::even(8, 2);
        assert_eq!(needed(&placement), 3);
        placement.pinned = vec![sanderling_replica::PinnedPlace { home: 0, group: 1 }];
        assert_eq!(needed(&placement), 4);
        let moving = Placement::even(8, 2)
            .changed(|next| next.moves.push(sanderling_replica::Move::new(1, (0, 1), Vec::new(), vec![0])));
        assert_eq!(needed(&moving), 4);
    }
}
