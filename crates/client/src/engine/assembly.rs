//! Puts the answer to a message together from those of its parts, as if one server had answered. Knows no server.

use sanderling_wire::{Bits, Kind, PullReply, Pushed, Reply, RowValues, set_bit};

use super::pulled;
use crate::error::ClientError;

/// The share that a message has in another one.
#[derive(Debug, Clone, Default)]
pub(super) struct Part {
    /// Tag of the other message.
    pub(super) whole: usize,
    /// Of each key, where it stands in the other message.
    pub(super) keys: Vec<u32>,
    /// Of each row, where it stands in the other message.
    pub(super) rows: Vec<u32>,
    /// How often its keys were sent on.
    pub(super) attempts: u32,
}

/// The answer so far.
#[derive(Debug)]
pub(super) struct Assembly {
    kind: Kind,
    dim: usize,
    keys: usize,
    /// Parts without an answer.
    pub(super) open: usize,
    /// Whether a part has an answer.
    pub(super) is_begun: bool,
    failed: Option<ClientError>,
    /// Of pulls: the rows, and a bit for each key without one.
    rows: Vec<f32>,
    absent: Vec<u64>,
    floats: Vec<f32>,
    /// Of others: rows that were removed or written.
    count: u64,
}

impl Assembly {
    /// For a message of a kind, with so many keys and rows, in so many parts.
    pub(super) fn new(kind: Kind, keys: usize, rows: usize, dim: usize, parts: usize) -> Assembly {
        Assembly {
            kind,
            dim,
            keys,
            open: parts,
            is_begun: false,
            failed: None,
            rows: vec![0.0; rows * dim],
            absent: vec![0; keys.div_ceil(64)],
            floats: Vec::new(),
            count: 0,
        }
    }

    /// Takes the end of a part. The first failure counts.
    pub(super) fn note(&mut self, part: &Part, result: Result<Reply<'_>, ClientError>) {
        self.open -= 1;
        match result {
            Ok(reply) => self.take(part, &reply),
            Err(error) => _ = self.failed.get_or_insert(error),
        }
    }

    fn take(&mut self, part: &Part, reply: &Reply<'_>) {
        self.is_begun = true;
        if let Reply::Delete(count) | Reply::Import(count) = reply {
            self.count += count;
        }
        let Some(pulled) = pulled(reply) else { return };
        if self.kind == Kind::PullPooled {
            self.floats.resize(pulled.values.len(), 0.0);
            pulled.values.copy_to(&mut self.floats);
            for (sums, &at) in self.floats.chunks_exact(self.dim).zip(&part.rows) {
                let row = &mut self.rows[at as usize * self.dim..][..self.dim];
                row.iter_mut().zip(sums).for_each(|(sum, value)| *sum += value);
            }
        } else {
            pulled.values.scatter(self.dim, &part.rows, &mut self.rows);
        }
        pulled.absent.positions().for_each(|at| set_bit(&mut self.absent, part.keys[at] as usize));
    }

    /// The whole answer, when no part is open.
    pub(super) fn reply(&mut self) -> Result<Reply<'_>, ClientError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        Ok(match self.kind {
            Kind::Push => Reply::Push(Pushed { repeated: false }),
            Kind::Delete => Reply::Delete(self.count),
            Kind::Import => Reply::Import(self.count),
            kind => {
                let absent = Bits::new(&self.absent, self.keys).expect("a word per 64 keys");
                let dim = self.dim as u32;
                let rows = PullReply { dim, absent, values: RowValues::F32(&self.rows) };
                if kind == Kind::Pull { Reply::Pull(rows) } else { Reply::PullPooled(rows) }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(keys: &[u32], rows: &[u32]) -> Part {
        Part { keys: keys.to_vec(), rows: rows.to_vec(), ..Part::default() }
    }

    fn rows<'a>(values: RowValues<'a>, absent: &'a [u64], keys: usize) -> PullReply<'a> {
        PullReply { dim: 2, absent: Bits::new(absent, keys).unwrap(), values }
    }

    fn refused() -> ClientError {
        ClientError::Cluster { reason: "refused".to_owned() }
    }

    #[test]
    fn rows_and_missing_keys_stand_as_in_the_whole_message() {
        let mut whole = Assembly::new(Kind::Pull, 3, 3, 2, 2);
        let values = RowValues::F32(&[3.0, 3.5, 1.0, 1.5]);
        whole.note(&part(&[2, 0], &[2, 0]), Ok(Reply::Pull(rows(values, &[0b01], 2))));
        // 1 and 2 as halves.
        let values = RowValues::F16(&[0x3C00, 0x4000]);
        whole.note(&part(&[1], &[1]), Ok(Reply::Pull(rows(values, &[0], 1))));
        assert_eq!(whole.open, 0);
        let values = RowValues::F32(&[1.0, 1.5, 1.0, 2.0, 3.0, 3.5]);
        assert_eq!(whole.reply().unwrap(), Reply::Pull(rows(values, &[0b100], 3)));
    }

    #[test]
    fn pooled_rows_are_added_and_samples_without_keys_are_zeros() {
        let mut whole = Assembly::new(Kind::PullPooled, 4, 3, 2, 2);
        let values = RowValues::F32(&[1.0, 2.0, 5.0, 6.0]);
        whole.note(&part(&[0, 3], &[0, 2]), Ok(Reply::PullPooled(rows(values, &[0b10], 2))));
        let values = RowValues::F32(&[10.0, 20.0]);
        whole.note(&part(&[1, 2], &[0]), Ok(Reply::PullPooled(rows(values, &[0b01], 2))));
        let values = RowValues::F32(&[11.0, 22.0, 0.0, 0.0, 5.0, 6.0]);
        assert_eq!(whole.reply().unwrap(), Reply::PullPooled(rows(values, &[0b1010], 4)));
    }

    #[test]
    fn counts_are_added_and_the_first_failure_is_that_of_the_whole() {
        for (kind, one, other, expected) in [
            (Kind::Delete, Reply::Delete(3), Reply::Delete(4), Reply::Delete(7)),
            (Kind::Import, Reply::Import(1), Reply::Import(0), Reply::Import(1)),
            (
                Kind::Push,
                Reply::Push(Pushed { repeated: true }),
                Reply::Push(Pushed { repeated: false }),
                Reply::Push(Pushed { repeated: false }),
            ),
        ] {
            let mut whole = Assembly::new(kind, 0, 0, 2, 2);
            whole.note(&Part::default(), Ok(one.clone()));
            assert!(whole.is_begun);
            whole.note(&Part::default(), Ok(other));
            assert_eq!(whole.reply().unwrap(), expected);
            let mut whole = Assembly::new(kind, 0, 0, 2, 3);
            whole.note(&Part::default(), Err(refused()));
            whole.note(&Part::default(), Ok(one));
            whole.note(&Part::default(), Err(ClientError::NotHere));
            assert_eq!(whole.reply().unwrap_err().to_string(), "refused");
        }
    }
}
