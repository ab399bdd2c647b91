//! The copy of a move's rows, at the receiving group's primary.

use std::sync::Arc;

use sanderling_store::{StreamPlace, TableConfig};
use sanderling_wire::Home;

use super::{
    Around, Content, Doing, Move, MoveState, Mover, Page, Progress, Question, Reply, TableHead, Task,
    keys_of, remove_some,
};
use crate::fault::Fault;
use crate::limit::{FEW_ROWS, MOVED_KEYS, PAGE_BYTES, ROUNDS_MAX};
use crate::placement::{Placement, SlotSpan};

/// An attempt to receive the slots and pinned tables of a move.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) id: u64,
    attempt: u64,
    slots: Arc<Vec<SlotSpan>>,
    /// The groups whose pinned tables move.
    pinned: Vec<u32>,
    /// The giving primary's epoch; 0 before its first answer.
    source: u64,
    /// Rows of an earlier attempt that are still to be removed; `None` before they were looked for.
    former: Option<Vec<(u32, Vec<u64>)>>,
    /// Tables that this group lacks.
    missing: Vec<TableHead>,
    is_listed: bool,
    copies: Vec<Copy>,
    /// Rows and removals of the round under way.
    changed: usize,
    rounds: usize,
    rows: u64,
    rows_expected: u64,
    /// The version in which the slots are closed; 0: they are not.
    closing: u64,
    /// Whether the giving group has applied that version.
    is_closed: bool,
    /// Whether this group's followers are asked for the last time.
    is_confirmed: bool,
}

/// A table's progress.
#[derive(Debug)]
struct Copy {
    name: String,
    number: u32,
    place: StreamPlace,
    /// Keys of a page.
    keys_max: u32,
    /// Drains, or exports, that are still to be completed in this round.
    due: usize,
}

/// A page that is being imported.
#[derive(Debug)]
pub(super) struct Taken {
    table: u32,
    next: StreamPlace,
    has_more: bool,
    rows: usize,
    removed: usize,
}

/// Of the rows of a move's giving group, those that move, as if each slot had as many.
fn share_of(placement: &Placement, id: u64, heads: &[TableHead]) -> u64 {
    let Some(one) = placement.moves.iter().find(|one| one.id == id) else { return 0 };
    let slots = placement.groups().iter().filter(|&&group| group == one.from).count();
    let rows = |is_whole: bool| -> u128 {
        let of_kind = heads.iter().filter(|head| (head.home != Home::Sharded) == is_whole);
        of_kind.map(|head| u128::from(head.rows)).sum()
    };
    (rows(true) + rows(false) * u128::from(one.count()) / slots.max(1) as u128) as u64
}

/// Keys of a page, so that its rows are within a bound.
fn keys_of_page(config: &TableConfig) -> u32 {
    let row_bytes = 4 * (config.dim() + config.state() + 5);
    (PAGE_BYTES / row_bytes).clamp(1, MOVED_KEYS) as u32
}

impl Work {
    fn new(one: &Move, attempt: u64) -> Work {
        Work {
            id: one.id,
            attempt,
            slots: Arc::new(one.slots.clone()),
            pinned: one.pinned.clone(),
            source: 0,
            former: None,
            missing: Vec::new(),
            is_listed: false,
            copies: Vec::new(),
            changed: 0,
            rounds: 0,
            rows: 0,
            rows_expected: 0,
            closing: 0,
            is_closed: false,
            is_confirmed: false,
        }
    }

    pub(super) fn progress(&self) -> Progress {
        let Work { id, rows, rows_expected, rounds, .. } = *self;
        Progress { id, rows, rows_expected, rounds: rounds as u64 }
    }

    /// Whether rows of a table with this home move.
    fn moves(&self, home: Home) -> bool {
        match home {
            Home::Sharded => !self.slots.is_empty(),
            Home::Pinned(home) => self.pinned.contains(&home),
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing != 0
    }

    /// A page is in the table.
    pub(super) fn advance(&mut self, taken: &Taken) {
        self.changed += taken.rows + taken.removed;
        self.rows += taken.rows as u64;
        let Some(copy) = self.copies.iter_mut().find(|copy| copy.number == taken.table) else { return };
        copy.place = taken.next;
        let is_whole = taken.next.since != 0 && taken.next.since == taken.next.until && !taken.has_more;
        copy.due -= usize::from(is_whole && copy.due > 0);
    }

    /// Begins another round, with one more drain of each table.
    fn begin_round(&mut self) {
        self.changed = 0;
        self.rounds += 1;
        self.copies.iter_mut().for_each(|copy| copy.due = 1);
    }

    /// The slots are closed: what is read from here on is final.
    fn close(&mut self) {
        self.is_closed = true;
        // A drain that has begun may have passed rows that changed since.
        self.copies
            .iter_mut()
            .for_each(|copy| copy.due = 1 + usize::from(copy.place.since != copy.place.until));
    }
}

impl Mover {
    /// The next task of a move to this group.
    pub(super) fn receive(&mut self, one: &Move, around: &Around<'_>) -> Option<Task> {
        let placement = around.placement;
        let known = self.work.as_ref().map(|work| (work.id, work.attempt));
        if known != Some((one.id, one.attempt)) {
            self.drawn += 1;
            let attempt = self.epoch << 20 | self.drawn;
            self.work = Some(Work::new(one, attempt));
            return Some(Task::Set(placement.changed(|next| {
                for other in next.moves.iter_mut().filter(|other| other.id == one.id) {
                    (other.attempt, other.state) = (attempt, MoveState::Copying);
                }
            })));
        }
        let work = self.work.as_mut()?;
        let former = work.former.get_or_insert_with(|| keys_of(one, placement.slots, around.tables));
        if remove_some(former, around.tables) {
            return Some(Task::Wait);
        }
        if one.state == MoveState::Copying && work.closing != 0 {
            // The giving group has taken the slots back.
            (work.closing, work.is_closed, work.is_confirmed) = (0, false, false);
            work.begin_round();
        }
        if one.state == MoveState::HandingOver && work.closing == 0 {
            (work.closing, work.is_listed) = (placement.version, false);
        }
        if let Some(head) = work.missing.pop() {
            work.is_listed = false;
            return Some(Task::Create(Box::new(head)));
        }
        if !work.is_listed {
            self.doing = Doing::Asking;
            return Some(Task::Ask { group: one.from, question: Question::Tables });
        }
        if work.closing != 0 && !work.is_closed {
            // Ask again soon.
            work.is_listed = false;
            return Some(Task::Wait);
        }
        if let Some(copy) = work.copies.iter().find(|copy| copy.due > 0) {
            let (table, slots, place) = (copy.name.clone(), Arc::clone(&work.slots), copy.place);
            let keys_max = copy.keys_max;
            self.doing = Doing::Asking;
            let question = Question::Rows { table, slots, place, keys_max };
            return Some(Task::Ask { group: one.from, question });
        }
        if work.closing == 0 {
            if work.changed > FEW_ROWS && work.rounds < ROUNDS_MAX {
                work.begin_round();
                return self.receive(one, around);
            }
            return Some(Task::Set(placement.with_move(one.id, Some(MoveState::HandingOver))));
        }
        if !work.is_confirmed {
            work.is_confirmed = true;
            return Some(self.place(placement));
        }
        Some(Task::Set(placement.committed(one.id)))
    }

    /// Takes an answer of the giving group.
    pub(super) fn read(&mut self, around: &Around<'_>, reply: Reply) -> Option<Task> {
        let work = self.work.as_mut()?;
        let Reply { source, placed, content } = reply;
        if work.source == 0 {
            work.source = source;
        }
        if work.source != source {
            // Another primary, whose streams are others.
            self.work = None;
            return None;
        }
        match content {
            Content::TooLate => self.work = None,
            Content::Tables(mut heads) => {
                heads.retain(|head| work.moves(head.home));
                if !work.is_listed {
                    work.rows_expected = share_of(around.placement, work.id, &heads);
                }
                work.is_listed = true;
                for head in heads {
                    let name = &head.config.name;
                    if work.copies.iter().any(|copy| copy.name == *name) {
                        continue;
                    }
                    match around.tables.iter().find(|table| table.table.name() == name) {
                        Some(table) => work.copies.push(Copy {
                            name: name.clone(),
                            number: table.number,
                            place: StreamPlace::default(),
                            keys_max: keys_of_page(&head.config),
                            due: 1,
                        }),
                        None => work.missing.push(head),
                    }
                }
                let knows = placed >= work.closing || self.fault == Fault::CommitWithoutClosed;
                if work.closing != 0 && knows && !work.is_closed && work.missing.is_empty() {
                    work.close();
                }
            }
            Content::Rows(page) => {
                let Page { next, has_more, pushes, rows, removed } = page;
                // Of the copy whose page was asked for.
                let copy = work.copies.iter().find(|copy| copy.due > 0)?;
                let number = copy.number;
                let taken = Taken { table: number, next, has_more, rows: rows.len(), removed: removed.len() };
                let table = around.tables.iter().find(|table| table.number == number);
                let Some(table) = table else {
                    // It was dropped.
                    work.copies.retain(|copy| copy.number != number);
                    return None;
                };
                removed.into_iter().for_each(|key| _ = table.table.remove(key));
                if rows.is_empty() {
                    work.advance(&taken);
                    return None;
                }
                self.doing = Doing::Importing(taken);
                return Some(Task::Import { table: number, rows: Arc::new(rows), pushes });
            }
        }
        None
    }
}
