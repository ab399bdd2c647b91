//! Exchanges the copies of frequent keys with the table within a run of samples.
//!
//! Keys that are in most samples carry most of a sample's score. Two workers that both correct them for a whole run
//! without a sight of each other correct twice as far as they should. See `docs/design/0032`.

use super::flush::Copies;
use super::{Fetch, LocalCache, PARTS, Target};
use crate::StoreError;
use crate::lookup::{CHUNK_KEYS, with_lookup};
use crate::simd;
use crate::update::failures::PushFailures;

/// The frequent keys of a run, and their copies side by side.
#[derive(Debug, Default)]
pub(super) struct Frequent {
    /// Per key its position among the distinct keys, and the part of its occurrences that an exchange accounts for.
    parts: Vec<(u32, u32)>,
    is_known: bool,
    /// Exchanges left in this run.
    left: u32,
    keys: Vec<u64>,
    rows: Vec<f32>,
    fetched: Vec<f32>,
    versions: Vec<u32>,
    places: Vec<u32>,
    counts: Vec<u32>,
}

impl Frequent {
    /// Forgets which keys are frequent.
    pub(super) fn clear(&mut self) {
        self.is_known = false;
    }
}

impl LocalCache<'_> {
    /// Writes the copies of frequent keys back and fetches their rows again, so that several workers see each other's
    /// updates within a run of samples.
    ///
    /// A key is frequent if it occurs at least `count_min` times in the run; at most 2048 keys are. Call it after each
    /// of `parts` equal parts of a run: `parts - 1` calls account for one part of the occurrences each, and the flush
    /// for the rest. Further calls have no effect.
    ///
    /// # Errors
    ///
    /// As [`LocalCache::flush`].
    pub fn exchange(&mut self, count_min: u32, parts: u32) -> Result<(), StoreError> {
        let (table, lane, dim, since) = (self.table, self.lane, self.dim, self.since);
        table.check_not_writing()?;
        let buffers = &mut *self.buffers;
        let frequent = &mut buffers.frequent;
        if !frequent.is_known {
            frequent.is_known = true;
            frequent.left = parts.saturating_sub(1);
            frequent.parts.clear();
            // An exchange accounts for an update at least, or others would take the row for unchanged.
            let count_min = count_min.max(parts);
            let counts = buffers.dedup.counts.iter().zip(0_u32..);
            let often = counts.filter(|(count, _)| **count >= count_min).take(CHUNK_KEYS);
            frequent.parts.extend(often.map(|(&count, at)| (at, count / parts.max(1))));
        }
        if frequent.parts.is_empty() || frequent.left == 0 {
            return Ok(());
        }
        frequent.left -= 1;
        frequent.gather(&mut buffers.dedup.counts, &buffers.dedup.unique, dim, |at| {
            (
                &buffers.rows[at * PARTS * dim..],
                &buffers.fetched[at * 2 * dim..],
                buffers.versions[at],
                buffers.places[at],
            )
        });
        let mut failures = PushFailures::default();
        let Frequent { parts, keys, rows, fetched, versions, places, counts, .. } = frequent;
        let full = Copies {
            table,
            blocks: &self.blocks,
            keys,
            rows,
            fetched,
            versions,
            places,
            counts,
            clock: table.tick(lane),
            are_the_same: true,
            failures: &mut failures,
        }
        .flush(lane, since);
        failures.note_full(full);
        failures.check(table)?;
        with_lookup(|lookup| {
            let into =
                Target { layout: &table.layout, blocks: &self.blocks, keys, rows, fetched, versions, places };
            simd::run(table.width(), Fetch { table, lane, lookup, into });
        });
        for (from, &(at, _)) in parts.iter().enumerate() {
            let at = at as usize;
            buffers.rows[at * PARTS * dim..][..PARTS * dim]
                .copy_from_slice(&rows[from * PARTS * dim..][..PARTS * dim]);
            buffers.fetched[at * 2 * dim..][..2 * dim].copy_from_slice(&fetched[from * 2 * dim..][..2 * dim]);
            buffers.versions[at] = versions[from];
            buffers.places[at] = places[from];
        }
        Ok(())
    }
}

impl Frequent {
    /// Copies the copies of the frequent keys side by side, and takes a part of their occurrences.
    fn gather<'a>(
        &mut self,
        run_counts: &mut [u32],
        unique: &[u64],
        dim: usize,
        copy: impl Fn(usize) -> (&'a [f32], &'a [f32], u32, u32),
    ) {
        let Frequent { parts, keys, rows, fetched, versions, places, counts, .. } = self;
        keys.clear();
        rows.clear();
        fetched.clear();
        versions.clear();
        places.clear();
        counts.clear();
        for &(at, part) in &*parts {
            let at = at as usize;
            run_counts[at] -= part;
            let (row, fetched_row, version, place) = copy(at);
            keys.push(unique[at]);
            rows.extend_from_slice(&row[..PARTS * dim]);
            fetched.extend_from_slice(&fetched_row[..2 * dim]);
            versions.push(version);
            places.push(place);
            counts.push(part);
        }
    }
}
