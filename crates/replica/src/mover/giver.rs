//! The answers of a giving group's primary. It keeps nothing about a move.

use sanderling_store::{FollowOptions, RowColumns};
use sanderling_wire::{Home, slot_of};

use super::{Content, GroupTable, Page, Question, Reply, TableHead};
use crate::limit::{MOVED_KEYS, MOVED_KEYS_KEPT};
use crate::placement::SlotSpan;

/// Whether a key is in one of these slots.
pub(super) fn membership(spans: &[SlotSpan], slots: u32) -> impl Fn(u64) -> bool {
    let mut is_in = vec![false; slots as usize];
    for span in spans {
        let end = span.first.saturating_add(span.count).min(slots);
        is_in[span.first.min(end) as usize..end as usize].fill(true);
    }
    move |key| is_in[slot_of(key, is_in.len())]
}

/// Answers a question of a receiving group, as the primary of an epoch whose replicas in sync have applied a version of
/// the placement.
#[must_use]
pub fn answer(question: &Question, (source, placed): (u64, u64), slots: u32, tables: &[GroupTable]) -> Reply {
    let content = match question {
        Question::Tables => {
            let head = |table: &GroupTable| TableHead {
                config: table.table.config().clone(),
                note: table.note.clone(),
                home: table.home,
                rows: table.table.len() as u64,
            };
            Content::Tables(tables.iter().map(head).collect())
        }
        Question::Rows { table, slots: wanted, place, keys_max } => {
            let is_in = membership(wanted, slots);
            let found = tables.iter().find(|found| found.table.name() == table);
            let options = FollowOptions {
                fresh: std::time::Duration::ZERO,
                keys: MOVED_KEYS.min(*keys_max as usize),
                keys_kept: MOVED_KEYS_KEPT,
            };
            let (mut rows, mut removed) = (RowColumns::default(), Vec::new());
            let page = found.map(|found| {
                let pushes = found.table.pushes();
                let is_whole = found.home != Home::Sharded;
                let moves = |key| is_whole || is_in(key);
                let page = found.table.follow_changes(*place, &options, moves, |key, row| match row {
                    Some(row) => rows.push(row),
                    None => removed.push(key),
                });
                (page, pushes)
            });
            match page {
                Some((Ok(page), pushes)) => {
                    let (next, has_more) = (page.next, page.has_more);
                    Content::Rows(Page { next, has_more, pushes, rows, removed })
                }
                _ => Content::TooLate,
            }
        }
    };
    Reply { source, placed, content }
}
