//! Rows of tables by key, or by the text of a feature, which becomes the key as in training; single or pooled.

mod grpc;
mod json;
mod octets;
pub(crate) use grpc::LookupService;
pub(crate) use json::{Form, answer_body, answer_query};

use axum::body::Bytes;
use sanderling_sample::Field;
use sanderling_store::{Absent, Pooling, Table};

use crate::error::{ServeError, listed, quoted};
use crate::models::ServedModel;

/// The keys of a request to one table. Each of its items, keys or values, has one key; a value may have any number.
#[derive(Debug, Default)]
pub(crate) struct Items {
    keys: Vec<u64>,
    /// The end of the keys of each item; empty while each item has one key.
    ends: Vec<u32>,
    /// The feature of the values, for errors.
    feature: String,
}

impl From<Vec<u64>> for Items {
    fn from(keys: Vec<u64>) -> Items {
        Items { keys, ..Items::default() }
    }
}

/// The rows of a request, item by item, or group by group if they are pooled.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub(crate) dim: usize,
    /// Row-major. A row that is absent has zeros, and adds nothing to a pooled one.
    pub(crate) weights: Vec<f32>,
    /// Places of the items without a row, ascending.
    pub(crate) absent: Vec<u32>,
}

impl Found {
    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.weights.len() / self.dim.max(1)
    }
}

impl Items {
    /// Number of items.
    pub(crate) fn len(&self) -> usize {
        if self.ends.is_empty() { self.keys.len() } else { self.ends.len() }
    }

    pub(crate) fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Appends the keys of a value.
    fn add(&mut self, keys: &[u64]) {
        if self.ends.is_empty() {
            if let [key] = keys {
                self.keys.push(*key);
                return;
            }
            self.ends.extend(1..=self.keys.len() as u32);
        }
        self.keys.extend_from_slice(keys);
        self.ends.push(self.keys.len() as u32);
    }

    /// Appends values of a table's feature. An empty name means the only feature that reads the table.
    pub(crate) fn add_values<'a>(
        &mut self,
        model: &ServedModel,
        table: &str,
        feature: &str,
        values: impl Iterator<Item = Field<'a>>,
    ) -> Result<(), ServeError> {
        let feature = feature_of(model, table, feature)?;
        feature.clone_into(&mut self.feature);
        model.with_encoder(feature, |encoder| {
            for value in values {
                let keys = encoder.keys(value).map_err(|error| {
                    let text = format!("expected {}, found {}", error.expected, error.found);
                    ServeError::invalid(format!("feature {feature:?}: {text}"))
                })?;
                self.add(keys);
            }
            Ok(())
        })
    }

    /// The keys of each item.
    fn of_each(&self) -> impl Iterator<Item = &[u64]> {
        let mut start = 0;
        (0..self.len()).map(move |at| {
            let end = self.ends.get(at).map_or(at + 1, |end| *end as usize);
            let keys = &self.keys[start..end];
            start = end;
            keys
        })
    }

    /// Fails if an item has not exactly one key, or no key where that `may_lack` it.
    pub(crate) fn check_single(&self, may_lack: bool) -> Result<(), ServeError> {
        if self.ends.is_empty() {
            return Ok(());
        }
        match self.of_each().map(<[u64]>::len).find(|keys| *keys > 1 || *keys == 0 && !may_lack) {
            None => Ok(()),
            Some(keys) => {
                let text = format!("feature {:?}: a value has {keys} keys, not one", self.feature);
                Err(ServeError::invalid(text))
            }
        }
    }

    /// One row per item.
    ///
    /// # Errors
    /// A value with several keys.
    pub(crate) fn rows(&self, table: &Table) -> Result<Found, ServeError> {
        self.check_single(true)?;
        let dim = table.dim();
        let (mut weights, mut absent) = (vec![0.0; self.keys.len() * dim], Vec::new());
        table
            .pull(&self.keys, Absent::Zero, &mut weights, Some(&mut absent))
            .map_err(|error| ServeError::of_table(&error))?;
        if self.ends.is_empty() || self.keys.len() == self.len() {
            return Ok(Found { dim, weights, absent });
        }
        // Some values are missing, and have no key.
        let (mut spread, mut pulled) = (vec![0.0; self.len() * dim], weights.chunks_exact(dim).zip(0_u32..));
        let mut places = Vec::new();
        for (at, keys) in self.of_each().enumerate() {
            match keys.first().and_then(|_| pulled.next()) {
                Some((row, key)) if absent.binary_search(&key).is_err() => {
                    spread[at * dim..][..dim].copy_from_slice(row);
                }
                _ => places.push(at as u32),
            }
        }
        Ok(Found { dim, weights: spread, absent: places })
    }

    /// One row per group of consecutive items; `ends` has the end of each group.
    pub(crate) fn pooled(&self, table: &Table, pooling: Pooling, ends: &[u32]) -> Result<Found, ServeError> {
        let end_of_keys = |items: u32| match (self.ends.is_empty(), items) {
            (true, items) => items,
            (false, 0) => 0,
            (false, items) => self.ends[items as usize - 1],
        };
        let offsets: Vec<u32> = std::iter::once(0).chain(ends.iter().copied()).map(end_of_keys).collect();
        let dim = table.dim();
        let (mut weights, mut missing) = (vec![0.0; ends.len() * dim], Vec::new());
        table
            .pull_pooled(&self.keys, None, &offsets, pooling, Absent::Zero, &mut weights, Some(&mut missing))
            .map_err(|error| ServeError::of_table(&error))?;
        let absent = if self.ends.is_empty() { missing } else { self.without_rows(&missing) };
        Ok(Found { dim, weights, absent })
    }

    /// Places of the items none of whose keys has a row.
    fn without_rows(&self, missing: &[u32]) -> Vec<u32> {
        let (mut missing, mut start) = (missing, 0);
        let lacks = |end: &u32| {
            let lacking = missing.iter().take_while(|key| **key < *end).count();
            let keys = *end - start;
            (missing, start) = (&missing[lacking..], *end);
            lacking == keys as usize
        };
        let lacking: Vec<bool> = self.ends.iter().map(lacks).collect();
        (0..).zip(lacking).filter(|(_, lacks)| *lacks).map(|(at, _)| at).collect()
    }
}

/// How the rows of a request are pooled: by the lengths of groups of items, or all in one.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    pub(crate) pooling: Pooling,
    ends: Vec<u32>,
}

impl Groups {
    /// Groups by their lengths.
    ///
    /// # Errors
    /// The lengths do not add up to the items.
    pub(crate) fn of_lengths(pooling: Pooling, lengths: &[u32], items: usize) -> Result<Groups, ServeError> {
        let mut end = 0_u32;
        let add = |length: &u32| {
            end = end.saturating_add(*length);
            end
        };
        let ends: Vec<u32> = lengths.iter().map(add).collect();
        if end as usize != items {
            return Err(ServeError::invalid(format!("the lengths add up to {end}, not to the {items} keys")));
        }
        Ok(Groups { pooling, ends })
    }

    /// Groups by the start of each and the end of the last.
    ///
    /// # Errors
    /// The offsets do not ascend from 0 to the number of items.
    pub(crate) fn of_offsets(pooling: Pooling, offsets: &[u32], items: usize) -> Result<Groups, ServeError> {
        let fits = offsets.first() == Some(&0)
            && offsets.last().is_some_and(|last| *last as usize == items)
            && offsets.is_sorted();
        if !fits {
            return Err(ServeError::invalid(format!("offsets ascend from 0 to the {items} keys")));
        }
        Ok(Groups { pooling, ends: offsets[1..].to_vec() })
    }

    /// One group of all items.
    pub(crate) fn one(pooling: Pooling, items: usize) -> Groups {
        Groups { pooling, ends: vec![items as u32] }
    }

    /// Number of groups.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }
}

/// The rows of items, pooled if there are groups.
pub(crate) fn find(table: &Table, items: &Items, groups: Option<&Groups>) -> Result<Found, ServeError> {
    match groups {
        None => items.rows(table),
        Some(groups) => items.pooled(table, groups.pooling, &groups.ends),
    }
}

/// The pooling of a name in a request.
pub(crate) fn pooling_named(name: &str) -> Result<Pooling, ServeError> {
    Pooling::named(name).ok_or_else(|| {
        let names = listed(Pooling::ALL.map(Pooling::name));
        ServeError::invalid(format!("no pooling {}; there are {names}", quoted(name)))
    })
}

/// Weights as the bytes of an answer, which shares their memory.
struct Weights(Vec<f32>);

impl AsRef<[u8]> for Weights {
    fn as_ref(&self) -> &[u8] {
        // Little-endian, as the crate `wire` requires of the machine.
        bytemuck::cast_slice(&self.0)
    }
}

/// Weights as little-endian numbers of 4 bytes, or rounded to 2.
fn bytes_of(weights: Vec<f32>, is_half: bool) -> Bytes {
    if is_half { halves_of(&weights).into() } else { Bytes::from_owner(Weights(weights)) }
}

/// Weights rounded to 2 bytes each.
fn halves_of(weights: &[f32]) -> Vec<u8> {
    let mut halves = vec![0; weights.len()];
    sanderling_wire::narrow(weights, &mut halves);
    bytemuck::cast_slice(&halves).to_vec()
}

/// The feature whose values are looked up in a table.
fn feature_of<'a>(model: &'a ServedModel, table: &str, wanted: &'a str) -> Result<&'a str, ServeError> {
    let readers = model.model.config().feature.iter().filter(|feature| feature.table() == table);
    let names: Vec<&str> = readers.map(|feature| feature.name.as_str()).collect();
    let found = match (&*names, wanted) {
        ([only], "") => Some(*only),
        (names, "") => names.iter().find(|name| **name == table).copied(),
        (names, wanted) => names.iter().find(|name| **name == wanted).copied(),
    };
    found.ok_or_else(|| {
        let names = listed(names);
        let text = match wanted {
            "" => format!("several features read this table; name one of {names} as the feature"),
            wanted => format!("no feature {} reads this table; there are {names}", quoted(wanted)),
        };
        ServeError::invalid(text)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sanderling_store::{Init, Optimizer, PushScale, TableConfig};

    use super::*;

    const DIM: usize = 3;

    /// A table whose even keys below 20 have rows.
    fn table() -> Table {
        let optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
        let table = Table::new(TableConfig::single("user", DIM, Init::Zero, optimizer)).expect("a table");
        let keys: Vec<u64> = (0..20).step_by(2).collect();
        let grads: Vec<f32> = keys.iter().flat_map(|key| row(*key).map(|weight| -weight)).collect();
        table.push(&keys, &grads, PushScale::default()).expect("rows");
        table
    }

    fn row(key: u64) -> [f32; DIM] {
        [key as f32 + 1.0, 0.5, -(key as f32)]
    }

    fn has_row(key: u64) -> bool {
        key < 20 && key.is_multiple_of(2)
    }

    fn items_of(lists: &[Vec<u64>]) -> Items {
        let mut items = Items::default();
        lists.iter().for_each(|keys| items.add(keys));
        items
    }

    proptest! {
        #[test]
        fn rows_are_those_of_their_items(lists in prop::collection::vec(prop::collection::vec(0_u64..24, 0..3), 0..9)) {
            let (table, items) = (table(), items_of(&lists));
            prop_assert_eq!(items.len(), lists.len());
            let expected = lists.iter().map(|keys| match keys[..] {
                [key] if has_row(key) => Some(row(key)),
                _ => None,
            });
            let expected: Vec<Option<[f32; DIM]>> = expected.collect();
            match items.rows(&table) {
                Err(_) => prop_assert!(lists.iter().any(|keys| keys.len() > 1)),
                Ok(found) => {
                    prop_assert!(lists.iter().all(|keys| keys.len() < 2));
                    let weights: Vec<f32> = expected.iter().flat_map(|row| row.unwrap_or_default()).collect();
                    prop_assert_eq!(found.weights, weights);
                    let absent = (0_u32..).zip(&expected).filter(|(_, row)| row.is_none()).map(|(at, _)| at);
                    prop_assert_eq!(found.absent, absent.collect::<Vec<u32>>());
                }
            }
        }

        #[test]
        fn pooled_rows_are_sums_of_their_group(
            lists in prop::collection::vec(prop::collection::vec(0_u64..24, 0..3), 0..9),
            cuts in prop::collection::vec(0_usize..10, 0..4),
            is_mean in any::<bool>(),
        ) {
            let (table, items) = (table(), items_of(&lists));
            let mut offsets: Vec<usize> = cuts.into_iter().filter(|cut| *cut <= lists.len()).collect();
            offsets.extend([0, lists.len()]);
            offsets.sort_unstable();
            let pooling = if is_mean { Pooling::Mean } else { Pooling::Sum };
            let expected: Vec<f32> = offsets.windows(2).flat_map(|span| {
                let keys: Vec<u64> = lists[span[0]..span[1]].concat();
                let mut sum = [0.0; DIM];
                for key in keys.iter().filter(|key| has_row(**key)) {
                    sum.iter_mut().zip(row(*key)).for_each(|(sum, weight)| *sum += weight);
                }
                sum.map(|sum| if is_mean && !keys.is_empty() { sum / keys.len() as f32 } else { sum })
            }).collect();
            let offsets: Vec<u32> = offsets.into_iter().map(|offset| offset as u32).collect();
            let lengths: Vec<u32> = offsets.windows(2).map(|span| span[1] - span[0]).collect();
            let absent = (0_u32..).zip(&lists).filter(|(_, keys)| !keys.iter().any(|key| has_row(*key)));
            let absent: Vec<u32> = absent.map(|(at, _)| at).collect();
            for groups in [
                Groups::of_offsets(pooling, &offsets, lists.len()),
                Groups::of_lengths(pooling, &lengths, lists.len()),
            ] {
                let found = find(&table, &items, Some(&groups.expect("they fit"))).expect("pooled rows");
                for (found, expected) in found.weights.iter().zip(&expected) {
                    prop_assert!((found - expected).abs() < 1e-4, "{found} is not {expected}");
                }
                prop_assert_eq!(found.weights.len(), expected.len());
                prop_assert_eq!(&found.absent, &absent);
            }
        }
    }

    #[test]
    fn groups_that_do_not_fit_are_refused() {
        for offsets in [&[][..], &[0], &[1, 3], &[0, 2], &[0, 3, 2, 3], &[0, 4]] {
            assert!(Groups::of_offsets(Pooling::Sum, offsets, 3).is_err(), "{offsets:?}");
        }
        for lengths in [&[][..], &[2], &[2, 2], &[u32::MAX, 4]] {
            assert!(Groups::of_lengths(Pooling::Sum, lengths, 3).is_err(), "{lengths:?}");
        }
    }

    #[test]
    fn halves_are_rounded_and_stay_finite() {
        assert_eq!(bytes_of(vec![1.0, -0.5, 1e9], true)[..], [0x00, 0x3c, 0x00, 0xb8, 0xff, 0x7b]);
        assert_eq!(bytes_of(vec![1.0], false)[..], [0, 0, 0x80, 0x3f]);
    }
}
