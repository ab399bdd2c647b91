//! Moves of slots and pinned tables: the work of a primary whose group gives them away or receives some.
//!
//! [`Mover::step`] takes what became of the last task and returns the next one. It knows no registry, connection, clock
//! or thread. `docs/design/0048-moves-of-slots.md` has the protocol.

use std::sync::Arc;

use sanderling_store::{RowColumns, StreamPlace, Table, TableConfig};
use sanderling_wire::Home;

use crate::fault::Fault;
use crate::limit::{CLOSED_WITHIN, LEAVING_KEYS};
use crate::placement::{Move, MoveState, Placement, SlotSpan};
use crate::push_dedup::Outcome;

mod giver;
mod work;

pub use giver::answer;
use work::{Taken, Work};

/// A table of this group.
#[derive(Debug, Clone)]
pub struct GroupTable {
    /// Its number in this group.
    pub number: u32,
    /// Whether its rows move with slots, or all together.
    pub home: Home,
    /// A note of the driver, as of [`Operation::Create`](crate::Operation::Create).
    pub note: String,
    /// The rows.
    pub table: Arc<Table>,
}

/// The surroundings of a mover at a moment.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    /// The time in ticks.
    pub now: u64,
    /// The epoch in which this replica is the primary and takes changes; 0: it is not, or does not.
    pub epoch: u64,
    /// The newest known record.
    pub placement: &'a Arc<Placement>,
    /// The tables.
    pub tables: &'a [GroupTable],
}

/// A question to the primary of another group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Which tables are there, and which version of the placement has the group applied?
    Tables,
    /// The next page of the rows of these slots, or of all rows of a pinned table.
    Rows {
        /// Name of the table.
        table: String,
        /// The slots.
        slots: Arc<Vec<SlotSpan>>,
        /// Place in the stream of changes.
        place: StreamPlace,
        /// Keys of the page, at most.
        keys_max: u32,
    },
}

/// An answer to another group.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Epoch of the primary that answers. Places in its streams are of no use at another one.
    pub source: u64,
    /// The version of the placement that all its replicas in sync have applied in this epoch.
    pub placed: u64,
    /// The content.
    pub content: Content,
}

/// The content of an answer.
#[derive(Debug, Clone)]
pub enum Content {
    /// The tables.
    Tables(Vec<TableHead>),
    /// Rows.
    Rows(Page),
    /// The changes since the place are not kept, or there is no such table: begin anew.
    TooLate,
}

/// A table of another group.
#[derive(Debug, Clone)]
pub struct TableHead {
    /// Its configuration, with the name.
    pub config: TableConfig,
    /// See [`GroupTable::note`].
    pub note: String,
    /// See [`GroupTable::home`].
    pub home: Home,
    /// Its rows, in all slots of the giving group.
    pub rows: u64,
}

/// A page of rows.
#[derive(Debug, Clone)]
pub struct Page {
    /// Place of the next page.
    pub next: StreamPlace,
    /// Another drain must follow at once.
    pub has_more: bool,
    /// Pushes of the table so far.
    pub pushes: u64,
    /// Rows that are there.
    pub rows: RowColumns,
    /// Keys whose rows are gone.
    pub removed: Vec<u64>,
}

/// A task for the driver, one at a time.
#[derive(Debug, Clone)]
pub enum Task {
    /// Nothing is to be done before the record changes, or a tick has passed.
    Wait,
    /// Replace the record, if it is still the one that the mover has seen.
    Set(Placement),
    /// Apply this version in the group, between pushes.
    Place(Arc<Placement>),
    /// Ask the primary of a group.
    Ask {
        /// The group.
        group: u32,
        /// The question.
        question: Question,
    },
    /// Create a table in the group.
    Create(Box<TableHead>),
    /// Replace rows of a table in the group, whose use clock reaches `pushes`.
    Import {
        /// Number of the table.
        table: u32,
        /// The rows.
        rows: Arc<RowColumns>,
        /// Pushes of the table in the giving group.
        pushes: u64,
    },
}

/// The result of a task.
#[derive(Debug)]
pub enum Told {
    /// There was none, or it has no result.
    Nothing,
    /// All replicas in sync have made the change.
    Made(Outcome),
    /// The answer of another group.
    Reply(Box<Reply>),
    /// It came to nothing.
    Failed,
}

/// The task under way.
#[derive(Debug, Default)]
enum Doing {
    #[default]
    Nothing,
    Placing(u64),
    Asking,
    Importing(Taken),
}

/// Rows that leave a table, some at a time, so that followers keep up with their removals.
#[derive(Debug)]
struct Leaving {
    id: u64,
    keys: Vec<(u32, Vec<u64>)>,
    /// They are gone, and the followers are being asked whether they know.
    is_confirmed: bool,
}

/// The progress of a move that this group receives, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Number of the move; 0: there is none.
    pub id: u64,
    /// Rows copied so far, repeated ones included.
    pub rows: u64,
    /// Rows that the slots have, by the giving group's rows and slots; 0 before it has told.
    pub rows_expected: u64,
    /// Rounds of copies so far.
    pub rounds: u64,
}

/// See the top of this file.
#[derive(Debug)]
pub struct Mover {
    group: u32,
    epoch: u64,
    /// The version of the placement that all replicas in sync have applied in this epoch.
    placed: u64,
    doing: Doing,
    leaving: Option<Leaving>,
    work: Option<Work>,
    /// Attempts drawn in this epoch.
    drawn: u64,
    /// The move whose slots are closed here, and since when.
    closed: Option<(u64, u64)>,
    problem: Option<String>,
    pub(crate) fault: Fault,
}

/// Takes up to `LEAVING_KEYS` keys out of tables; returns whether some are left.
fn remove_some(keys: &mut Vec<(u32, Vec<u64>)>, tables: &[GroupTable]) -> bool {
    let mut left = LEAVING_KEYS;
    while let Some((number, of_table)) = keys.last_mut()
        && left > 0
    {
        let table = tables.iter().find(|table| table.number == *number);
        let gone = of_table.split_off(of_table.len().saturating_sub(left));
        left -= gone.len();
        for key in gone {
            table.iter().for_each(|table| _ = table.table.remove(key));
        }
        if of_table.is_empty() {
            keys.pop();
        }
    }
    !keys.is_empty()
}

/// The keys of a move that have rows.
fn keys_of(one: &Move, slots: u32, tables: &[GroupTable]) -> Vec<(u32, Vec<u64>)> {
    let is_in = giver::membership(&one.slots, slots);
    let keys = |table: &GroupTable| {
        let mut keys = Vec::new();
        match table.home {
            Home::Sharded => table.table.for_each_key(&is_in, |key| keys.push(key)),
            Home::Pinned(home) if one.pinned.contains(&home) => {
                table.table.for_each_key(|_| true, |key| keys.push(key));
            }
            Home::Pinned(_) => {}
        }
        (table.number, keys)
    };
    tables.iter().map(keys).filter(|(_, keys)| !keys.is_empty()).collect()
}

impl Mover {
    /// The mover of a replica of a group.
    #[must_use]
    pub fn new(group: u32) -> Mover {
        Mover {
            group,
            epoch: 0,
            placed: 0,
            doing: Doing::Nothing,
            leaving: None,
            work: None,
            drawn: 0,
            closed: None,
            problem: None,
            fault: Fault::None,
        }
    }

    /// The version that all replicas in sync have applied in this epoch, for [`answer`].
    #[must_use]
    pub fn placed(&self) -> u64 {
        self.placed
    }

    /// The progress of a move to this group.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.work.as_ref().map(Work::progress).unwrap_or_default()
    }

    /// Whether slots are closed in this group, or rows leave it: the next step must come soon.
    #[must_use]
    pub fn is_giving(&self) -> bool {
        self.closed.is_some() || self.leaving.is_some()
    }

    /// Whether the slots of the move to this group are closed: no group takes requests for them.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.work.as_ref().is_some_and(Work::is_closing)
    }

    /// Why a move was given up, once.
    pub fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }

    /// Takes the result of the last task; returns the next one.
    pub fn step(&mut self, around: &Around<'_>, told: Told) -> Task {
        if around.epoch != self.epoch || around.epoch == 0 {
            *self = Mover { epoch: around.epoch, fault: self.fault, ..Mover::new(self.group) };
            if around.epoch == 0 {
                return Task::Wait;
            }
        }
        let has_failed = matches!(told, Told::Failed);
        if let Some(task) = self.take(around, told) {
            return task;
        }
        if has_failed {
            return Task::Wait;
        }
        if self.placed != around.placement.version {
            return self.place(around.placement);
        }
        let moves = &around.placement.moves;
        let task = moves.iter().find_map(|one| self.give(one, around));
        let task = task.or_else(|| {
            let is_mine = |one: &&Move| {
                one.to == self.group && matches!(one.state, MoveState::Copying | MoveState::HandingOver)
            };
            let one = moves.iter().find(is_mine);
            if one.is_none() {
                self.work = None;
            }
            self.receive(one?, around)
        });
        task.unwrap_or(Task::Wait)
    }

    fn place(&mut self, placement: &Arc<Placement>) -> Task {
        self.doing = Doing::Placing(placement.version);
        Task::Place(Arc::clone(placement))
    }

    /// Takes the result of a task; the next one, if it follows from that.
    fn take(&mut self, around: &Around<'_>, told: Told) -> Option<Task> {
        match (std::mem::take(&mut self.doing), told) {
            (Doing::Placing(version), Told::Made(_)) => self.placed = version,
            (Doing::Importing(_), Told::Made(Outcome::Full { rejected })) => {
                let work = self.work.take()?;
                self.problem = Some(format!(
                    "move {} is cancelled: a table of group {} has no room for {rejected} of its rows",
                    work.id, self.group
                ));
                return Some(Task::Set(around.placement.with_move(work.id, Some(MoveState::Cancelled))));
            }
            (Doing::Importing(taken), Told::Made(_)) => {
                self.work.iter_mut().for_each(|work| work.advance(&taken));
            }
            (Doing::Asking, Told::Reply(reply)) => return self.read(around, *reply),
            _ => {}
        }
        None
    }

    /// The work of a group that removes rows, or that has closed slots.
    fn give(&mut self, one: &Move, around: &Around<'_>) -> Option<Task> {
        let leaves = match one.state {
            MoveState::Releasing => one.from,
            MoveState::Cancelled => one.to,
            MoveState::HandingOver if one.from == self.group => return self.reopen(one, around),
            MoveState::Copying | MoveState::HandingOver => return None,
        };
        if leaves != self.group {
            return None;
        }
        let leaving = match &mut self.leaving {
            Some(leaving) if leaving.id == one.id => leaving,
            other => other.insert(Leaving {
                id: one.id,
                keys: keys_of(one, around.placement.slots, around.tables),
                is_confirmed: false,
            }),
        };
        if remove_some(&mut leaving.keys, around.tables) {
            return Some(Task::Wait);
        }
        if !leaving.is_confirmed {
            // The followers have this version once more, and before it all removals.
            leaving.is_confirmed = true;
            return Some(self.place(around.placement));
        }
        self.leaving = None;
        Some(Task::Set(around.placement.with_move(one.id, None)))
    }

    /// Takes slots back that have been closed for too long.
    fn reopen(&mut self, one: &Move, around: &Around<'_>) -> Option<Task> {
        let since = match self.closed {
            Some((id, since)) if id == one.id => since,
            _ => self.closed.insert((one.id, around.now)).1,
        };
        if around.now - since < CLOSED_WITHIN {
            return None;
        }
        self.closed = None;
        let open = around.placement.with_move(one.id, Some(MoveState::Copying));
        if self.fault == Fault::TakenAgainAfterTimeout {
            return Some(Task::Place(Arc::new(open)));
        }
        Some(Task::Set(open))
    }
}
