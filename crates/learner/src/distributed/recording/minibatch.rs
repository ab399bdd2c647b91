//! The entry of one minibatch in a recording, as bytes. Knows no file and no worker.
//!
//! Integers are varints: seven bits per byte, low bits first. Per key there are the version that the pull has seen, and
//! the number of pushes of other workers between this pull and this push. Only a key with such pushes has its key in the
//! entry.

/// The order of one table's rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TableOrder {
    /// Reading of the table's use clock at the push.
    pub(super) clock: u32,
    /// Version of each key's row that the pull has seen; 0: no row.
    pub(super) pulled: Vec<u32>,
    /// Version of each key's row after the push.
    pub(super) pushed: Vec<u32>,
    /// Positions of keys that others have pushed between this pull and this push, ascending, with the keys.
    pub(super) overtaken: Vec<(u32, u64)>,
}

/// One minibatch of one worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Minibatch {
    pub(super) worker: u32,
    /// Number of the minibatch among those of the worker in the pass.
    pub(super) number: u64,
    /// Digest of the rows.
    pub(super) digest: u64,
    pub(super) tables: Vec<TableOrder>,
}

impl TableOrder {
    /// Sets the versions of these keys; the position of a key that the push did not update, if there is one.
    pub(super) fn set_pushed(&mut self, keys: &[u64], pushed: &[u32]) -> Option<usize> {
        self.pushed.clear();
        self.pushed.extend_from_slice(pushed);
        self.overtaken.clear();
        for (at, (&before, &after)) in self.pulled.iter().zip(pushed).enumerate() {
            match after.checked_sub(before) {
                Some(1) => {}
                Some(2..) => self.overtaken.push((at as u32, keys[at])),
                Some(0) | None => return Some(at),
            }
        }
        None
    }
}

impl Minibatch {
    /// Replaces the contents of `bytes`.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        put(u64::from(self.worker), bytes);
        put(self.number, bytes);
        bytes.extend(self.digest.to_le_bytes());
        put(self.tables.len() as u64, bytes);
        for table in &self.tables {
            put(u64::from(table.clock), bytes);
            put(table.pulled.len() as u64, bytes);
            for (&before, &after) in table.pulled.iter().zip(&table.pushed) {
                let is_overtaken = after - before > 1;
                put(u64::from(before) << 1 | u64::from(is_overtaken), bytes);
            }
            for &(at, key) in &table.overtaken {
                let at = at as usize;
                put(u64::from(table.pushed[at] - table.pulled[at] - 1), bytes);
                bytes.extend(key.to_le_bytes());
            }
        }
    }

    /// `None` for bytes that are no entry.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Minibatch> {
        let bytes = &mut bytes;
        let (worker, number) = (small(bytes)?, get(bytes)?);
        let digest = word(bytes)?;
        let tables = (0..count(bytes)?).map(|_| table(bytes)).collect::<Option<Vec<_>>>()?;
        bytes.is_empty().then_some(Minibatch { worker, number, digest, tables })
    }
}

fn table(bytes: &mut &[u8]) -> Option<TableOrder> {
    let (clock, keys) = (small(bytes)?, count(bytes)?);
    let mut order = TableOrder { clock, ..TableOrder::default() };
    for at in 0..keys {
        let value = get(bytes)?;
        let before = u32::try_from(value >> 1).ok()?;
        order.pulled.push(before);
        order.pushed.push(before.checked_add(1)?);
        if value & 1 == 1 {
            order.overtaken.push((at as u32, 0));
        }
    }
    for (at, key) in &mut order.overtaken {
        let pushed = &mut order.pushed[*at as usize];
        *pushed = pushed.checked_add(small(bytes).filter(|&missed| missed > 0)?)?;
        *key = word(bytes)?;
    }
    Some(order)
}

fn put(mut value: u64, bytes: &mut Vec<u8>) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn get(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn small(bytes: &mut &[u8]) -> Option<u32> {
    u32::try_from(get(bytes)?).ok()
}

/// A number of things with at least one byte each, which bounds what is allocated for them.
fn count(bytes: &mut &[u8]) -> Option<usize> {
    usize::try_from(get(bytes)?).ok().filter(|&count| count <= bytes.len())
}

fn word(bytes: &mut &[u8]) -> Option<u64> {
    let (word, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(clock: u32, rows: &[(u32, u32, u64)]) -> TableOrder {
        let keys: Vec<u64> = rows.iter().map(|row| row.2).collect();
        let pulled = rows.iter().map(|row| row.0).collect();
        let pushed: Vec<u32> = rows.iter().map(|row| row.0.saturating_add(row.1).max(row.0 + 1)).collect();
        let mut order = TableOrder { clock, pulled, ..TableOrder::default() };
        assert_eq!(order.set_pushed(&keys, &pushed), None);
        order
    }

    proptest! {
        #[test]
        fn an_entry_survives_its_bytes(
            worker: u32, number: u64, digest: u64,
            tables in proptest::collection::vec(
                (any::<u32>(), proptest::collection::vec((0..u32::MAX, 1..5_u32, any::<u64>()), 0..9)), 0..4),
        ) {
            let tables = tables.into_iter().map(|(clock, rows)| order(clock, &rows)).collect();
            let minibatch = Minibatch { worker, number, digest, tables };
            let mut bytes = Vec::new();
            minibatch.encode(&mut bytes);
            prop_assert_eq!(Minibatch::decode(&bytes), Some(minibatch));
            prop_assert_eq!(Minibatch::decode(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Minibatch::decode(&bytes);
        }
    }

    #[test]
    fn a_key_without_an_update_is_found() {
        for (pulled, pushed, expected) in [
            (vec![0, 7], vec![1, 9], None),
            (vec![0, 7], vec![1, 7], Some(1)),
            (vec![3, 7], vec![0, 8], Some(0)),
        ] {
            let mut order = TableOrder { pulled, ..TableOrder::default() };
            assert_eq!(order.set_pushed(&[10, 11], &pushed), expected);
        }
    }

    #[test]
    fn a_row_without_pushes_of_others_takes_one_byte() {
        let minibatch =
            |missed| Minibatch { tables: vec![order(1, &[(63, missed, 5)])], ..Minibatch::default() };
        let bytes = |missed| {
            let mut bytes = Vec::new();
            minibatch(missed).encode(&mut bytes);
            bytes.len()
        };
        assert_eq!((bytes(1), bytes(2)), (14, 23));
    }
}
