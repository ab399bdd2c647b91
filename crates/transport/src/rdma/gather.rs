//! Frames of which the card gathers parts from where they lie: the elements, writes and pieces of such a frame. It knows no
//! device and touches no memory.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// A part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The next bytes of the frame's own memory.
    Own {
        /// Their number.
        bytes: usize,
    },
    /// Memory that is registered with the connection's card.
    Memory {
        /// Address.
        at: usize,
        /// Length.
        bytes: usize,
        /// The card's key of this memory ([`CardMemory::key`](super::CardMemory::key)).
        key: u32,
    },
}

impl Part {
    fn bytes(&self) -> usize {
        match *self {
            Part::Own { bytes } | Part::Memory { bytes, .. } => bytes,
        }
    }
}

/// A frame whose parts the card gathers.
pub struct GatherFrame {
    /// The bytes of the parts that are the frame's own, one after another. The header is the first of them.
    pub own: Vec<u8>,
    /// All parts, in the order of the frame.
    pub parts: Vec<Part>,
    /// Dropped when the card has read all parts, or never will. Until then their memory must not change.
    pub keep: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for GatherFrame {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("GatherFrame").field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}

impl GatherFrame {
    /// Length of the frame.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Part::bytes).sum()
    }
}

/// An element of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    /// Bytes of the frame's own memory, from this one on.
    Own {
        from: usize,
        bytes: usize,
    },
    Memory {
        at: usize,
        bytes: usize,
        key: u32,
    },
}

/// A write of consecutive bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedWrite {
    pub(super) elements: Range<usize>,
    /// Offset of its bytes in the piece.
    pub(super) at: usize,
}

/// A piece of a frame, which takes one slot of the ring. Its last write announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedPiece {
    pub(super) bytes: usize,
    pub(super) writes: Range<usize>,
}

/// The writes of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) elements: Vec<Element>,
    pub(super) writes: Vec<PlannedWrite>,
    pub(super) pieces: Vec<PlannedPiece>,
}

impl Plan {
    /// The most writes of a piece.
    pub(super) fn writes_max(&self) -> usize {
        self.pieces.iter().map(|piece| piece.writes.len()).max().unwrap_or_default()
    }
}

/// Plans a frame of these parts: pieces are as long as possible, and so are writes, of at most so many elements each.
pub(super) fn plan(parts: &[Part], piece_bytes_max: usize, elements_max: usize) -> Plan {
    let mut plan = Plan { elements: Vec::with_capacity(parts.len()), ..Plan::default() };
    let mut own_from = 0;
    for part in parts {
        let mut done = 0;
        while done < part.bytes() {
            if plan.pieces.last().is_none_or(|piece| piece.bytes == piece_bytes_max) {
                let writes = plan.writes.len()..plan.writes.len();
                plan.pieces.push(PlannedPiece { bytes: 0, writes });
            }
            let Plan { elements, writes, pieces } = &mut plan;
            let Some(piece) = pieces.last_mut() else { break };
            let bytes = (part.bytes() - done).min(piece_bytes_max - piece.bytes);
            let element = match *part {
                Part::Own { .. } => Element::Own { from: own_from, bytes },
                Part::Memory { at, key, .. } => Element::Memory { at: at + done, bytes, key },
            };
            let is_first = piece.bytes == 0;
            match (elements.last_mut(), element) {
                // Consecutive bytes of one slot.
                (Some(Element::Own { bytes: before, .. }), Element::Own { .. }) if !is_first => {
                    *before += bytes;
                }
                _ => {
                    let is_full = |write: &PlannedWrite| write.elements.len() == elements_max;
                    if is_first || writes.last().is_none_or(is_full) {
                        writes
                            .push(PlannedWrite { elements: elements.len()..elements.len(), at: piece.bytes });
                    }
                    elements.push(element);
                    if let Some(write) = writes.last_mut() {
                        write.elements.end = elements.len();
                    }
                }
            }
            if let Element::Own { .. } = element {
                own_from += bytes;
            }
            piece.bytes += bytes;
            piece.writes.end = writes.len();
            done += bytes;
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(all: &[(bool, usize)]) -> Vec<Part> {
        let mut at = 1 << 20;
        let part = |&(is_own, bytes): &(bool, usize)| {
            at += bytes + 64;
            if is_own { Part::Own { bytes } } else { Part::Memory { at, bytes, key: at as u32 } }
        };
        all.iter().map(part).collect()
    }

    /// A header, 512 rows and 30 elements per write: 18 writes, as for PetPS.
    #[test]
    fn a_pull_takes_the_fewest_writes() {
        let mut all = vec![(true, 112)];
        all.extend([(false, 128); 512]);
        let plan = plan(&parts(&all), 128 << 10, 30);
        assert_eq!((plan.pieces.len(), plan.writes.len(), plan.elements.len()), (1, 18, 513));
        assert_eq!(plan.writes_max(), 18);
        // Absent rows are bytes of the slot, like the header before them.
        let absent = parts(&[(true, 112), (true, 128), (true, 128), (false, 128), (true, 128), (true, 4)]);
        let absent = super::plan(&absent, 128 << 10, 30);
        assert_eq!((absent.writes.len(), absent.elements.len()), (1, 3));
        assert_eq!(absent.elements[2], Element::Own { from: 368, bytes: 132 });
    }

    proptest! {
        /// Each byte of the frame goes to its place, once, from its part; no bound is exceeded.
        #[test]
        fn every_byte_goes_to_its_place(
            all in prop::collection::vec((any::<bool>(), 1..300_usize), 1..60),
            piece_bytes_max in (1..40_usize).prop_map(|words| words * 8),
            elements_max in 1..9_usize
        ) {
            let parts = parts(&all);
            // The source of each byte of the frame.
            let (mut expected, mut own) = (Vec::new(), 0);
            for part in &parts {
                match *part {
                    Part::Own { bytes } => {
                        expected.extend((own..own + bytes).map(|at| (0, at)));
                        own += bytes;
                    }
                    Part::Memory { at, bytes, key } => expected.extend((at..at + bytes).map(|at| (key, at))),
                }
            }
            let plan = plan(&parts, piece_bytes_max, elements_max);
            let (mut found, mut writes, mut elements) = (Vec::new(), 0, 0);
            for (number, piece) in plan.pieces.iter().enumerate() {
                let is_last = number + 1 == plan.pieces.len();
                prop_assert!(piece.bytes == piece_bytes_max || is_last && (1..piece_bytes_max).contains(&piece.bytes));
                prop_assert_eq!(piece.writes.start, writes);
                writes = piece.writes.end;
                let mut at = 0;
                for write in &plan.writes[piece.writes.clone()] {
                    prop_assert_eq!((write.at, write.elements.start), (at, elements));
                    prop_assert!((1..=elements_max).contains(&write.elements.len()));
                    elements = write.elements.end;
                    for element in &plan.elements[write.elements.clone()] {
                        let (key, from, bytes) = match *element {
                            Element::Own { from, bytes } => (0, from, bytes),
                            Element::Memory { at, bytes, key } => (key, at, bytes),
                        };
                        prop_assert!(bytes > 0);
                        found.extend((from..from + bytes).map(|at| (key, at)));
                        at += bytes;
                    }
                }
                prop_assert_eq!(at, piece.bytes);
            }
            prop_assert_eq!((writes, elements), (plan.writes.len(), plan.elements.len()));
            prop_assert_eq!(found, expected);
        }
    }
}
