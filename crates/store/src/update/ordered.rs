//! Pushes of replicated tables: a primary reports the version of each row, a follower applies each row's updates in
//! the order of their versions.

use crate::lookup::Lookup;
use crate::rows::access::RowMut;
use crate::rows::layout::{VERSION, version_after};
use crate::simd::Vector;
use crate::table::Table;
use crate::table::removal_log::RemovalLog;
use crate::update::edit::Edit;

/// Rows of a push after it, in the order of its keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowVersions {
    /// Version of each key's row after the push; 0 if the row was not updated.
    pub versions: Vec<u32>,
    /// Removals of the table before each update, see [`Table::removals`].
    pub removals: Vec<u64>,
}

impl RowVersions {
    pub(super) fn assign(&mut self, keys: usize) {
        self.versions.clear();
        self.versions.resize(keys, 0);
        self.removals.clear();
        self.removals.resize(keys, 0);
    }
}

/// The service of a push for replicas.
pub(crate) enum Replication<'a> {
    None,
    /// Reports the versions of rows.
    Report(&'a mut RowVersions),
    /// Updates a row only from the version before its own; positions of keys whose row is older go to `later`.
    InOrder {
        versions: &'a [u32],
        later: &'a mut Vec<u32>,
    },
}

/// Place of an update relative to a row's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Past,
    Next,
    Later,
}

/// Returns whether `version` is after `present`, in the cyclic order of large versions.
///
/// Versions above 2^31 repeat after 2^31 updates, so replicas must be less than 2^30 updates apart.
#[must_use]
pub fn is_newer_version(version: u32, present: u32) -> bool {
    const UPPER_HALF: u32 = 1 << 31;
    if version < UPPER_HALF || present < UPPER_HALF {
        return version > present;
    }
    let ahead = version.wrapping_sub(present) % UPPER_HALF;
    ahead > 0 && ahead < UPPER_HALF / 2
}

fn place(version: u32, present: u32) -> Place {
    if version == version_after(present, 1) {
        Place::Next
    } else if version != 0 && is_newer_version(version, present) {
        Place::Later
    } else {
        Place::Past
    }
}

/// Returns whether the row still belongs to the key: removals of replicated tables change the row's key.
#[inline(always)]
fn has_key(row: RowMut<'_>, key: u64) -> bool {
    u64::from(row.get(0)) | u64::from(row.get(1)) << 32 == key
}

/// Edits rows as [`Replication`] says. One type for both kinds, since each is compiled for every width and format.
pub(super) struct ReplicatedEdit<'a, 'b, E> {
    pub(super) edit: E,
    pub(super) keys: &'a [u64],
    pub(super) log: &'a RemovalLog,
    /// Position of the first key in the push.
    pub(super) first: usize,
    pub(super) replication: &'a mut Replication<'b>,
}

impl<E: Edit> Edit for ReplicatedEdit<'_, '_, E> {
    #[inline(always)]
    fn use_clock(&self) -> Option<u32> {
        self.edit.use_clock()
    }

    fn initializes(&self, at: usize) -> bool {
        self.edit.initializes(at)
    }

    #[inline(always)]
    fn edit(&mut self, vector: impl Vector, at: usize, row: RowMut<'_>, is_new: bool) {
        let (present, position) = (row.get(VERSION), self.first + at);
        let has_key = has_key(row, self.keys[at]);
        if let Replication::InOrder { versions, later } = &mut *self.replication {
            match place(versions[position], present) {
                Place::Next if has_key => {}
                Place::Past if has_key => return,
                _ => return later.push(position as u32),
            }
        }
        // Otherwise the update came before the removal, which no replica can tell from no update.
        if !has_key {
            return;
        }
        self.edit.edit(vector, at, row, is_new);
        let version = row.get(VERSION);
        if let Replication::Report(RowVersions { versions, removals }) = &mut *self.replication
            && version != present
        {
            versions[position] = version;
            // While the row is locked: a removal of this row gets a higher number, and one of an earlier row of the
            // key has a lower one.
            removals[position] = self.log.count();
        }
    }

    fn admit(&mut self, table: &Table, lane: usize, lookup: &mut Lookup) {
        let Replication::InOrder { versions, later } = &mut *self.replication else {
            return self.edit.admit(table, lane, lookup);
        };
        let first = self.first;
        // Rows are created by their first update alone: the primary has decided about admission.
        lookup.absent.retain(|&at| match versions[first + at as usize] {
            0 => false,
            1 => true,
            _ => {
                later.push(first as u32 + at);
                false
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn versions_stay_in_order_beyond_the_largest() {
        let max = u32::MAX;
        let upper = 1 << 31;
        for (present, version, expected) in [
            (0, 0, Place::Past),
            (5, 0, Place::Past),
            (0, 1, Place::Next),
            (0, 2, Place::Later),
            (7, 7, Place::Past),
            (7, 6, Place::Past),
            (upper - 1, upper, Place::Next),
            (upper - 1, upper + 1, Place::Later),
            (upper + 1, upper - 1, Place::Past),
            (max - 1, max, Place::Next),
            (max, upper, Place::Next),
            (max, upper + 1, Place::Later),
            (max - 3, upper + 9, Place::Later),
            (upper, max, Place::Past),
            (upper + 1, max, Place::Past),
            (upper, upper, Place::Past),
        ] {
            assert_eq!(place(version, present), expected, "{version} after {present}");
        }
    }
}
