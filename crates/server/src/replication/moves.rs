//! The thread of moves: it does the tasks of the machine that gives and receives slots, one at a time.

use std::io;
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sanderling_replica::{
    Around, Member, Mover, Placement, Question, Reply as Answer, TableHead, Task, Told,
};
use sanderling_store::RowColumns;
use sanderling_transport::Connection;
use sanderling_wire::{Agreed, Frame, Parsed, Reply, Request};

use super::peers::{PeerOptions, reach, send};
use super::version::needed;
use super::{Input, Replication, transfer};
use crate::event::{Event, Log};
use crate::limit::{MOVE_ANSWER_WITHIN, TICK};
use crate::state::State;

/// How long the thread waits for a change of the record at once. It ends at most so long after its server.
const WATCH_WITHIN: Duration = Duration::from_millis(500);
/// Pause of a thread whose server is not the primary.
const IDLE: Duration = Duration::from_millis(20);
/// Pause before a task that came to nothing is done again, and between two looks at closed slots.
const AGAIN: Duration = Duration::from_millis(2);

/// Keeps the placement of the cluster, and changes it by compare-and-set. Calls may take long.
pub trait PlacementRecords: Send {
    /// Reads the record and its revision, 0 if there is none.
    ///
    /// # Errors
    /// The registry is out of reach, or the record is damaged.
    fn read(&mut self) -> io::Result<(u64, Option<Placement>)>;

    /// Replaces the record if it is at this revision; returns the record afterwards, whoever wrote it.
    ///
    /// # Errors
    /// The registry is out of reach; the record may have been replaced or not.
    fn compare_and_set(
        &mut self,
        revision: u64,
        placement: &Placement,
    ) -> io::Result<(u64, Option<Placement>)>;

    /// Waits until the record has changed since it was read, or for so long.
    ///
    /// # Errors
    /// The registry is out of reach.
    fn wait(&mut self, within: Duration) -> io::Result<()>;

    /// The primary of a group and its address.
    ///
    /// # Errors
    /// The registry is out of reach, or the group has no primary.
    fn primary(&mut self, group: u32) -> io::Result<(Member, String)>;
}

/// A change that the thread of replication makes for a move.
#[derive(Debug)]
pub(crate) enum MoveChange {
    Place(Arc<Placement>),
    Create(Box<TableHead>),
    Import { table: u32, rows: Arc<RowColumns>, pushes: u64 },
}

/// See the top of this file.
pub(crate) struct MoveThread {
    pub(crate) state: Weak<State>,
    pub(crate) shared: Arc<Replication>,
    pub(crate) records: Box<dyn PlacementRecords>,
    pub(crate) peers: PeerOptions,
    /// Bytes of rows per second that a move copies, while slots are not closed.
    pub(crate) bytes_per_s: u64,
    pub(crate) log: Log,
}

/// The record and its revision.
type Seen = (u64, Arc<Placement>);

/// A connection to the primary of another group.
struct Link {
    group: u32,
    server: u32,
    connection: Connection,
    agreed: Agreed,
}

impl MoveThread {
    /// Runs until the server ends.
    pub(crate) fn run(mut self, inputs: &Sender<Input>) {
        let Some(group) = self.state.upgrade().map(|state| state.placement.shard) else { return };
        let mut mover = Mover::new(group.into());
        let mut known: Option<Seen> = None;
        let (mut told, mut link) = (Told::Nothing, None);
        let start = Instant::now();
        while let Some(state) = self.state.upgrade() {
            let epoch = self.shared.epoch();
            if epoch == 0 {
                self.shared.set_placed((0, 0), Default::default());
                (known, told, link) = (None, Told::Nothing, None);
                drop(state);
                std::thread::sleep(IDLE);
                continue;
            }
            if known.is_none() {
                known = self.read();
            }
            let Some((revision, placement)) = &known else {
                drop(state);
                std::thread::sleep(IDLE);
                continue;
            };
            let (revision, placement) = (*revision, Arc::clone(placement));
            let now = (start.elapsed().as_micros() / TICK.as_micros()) as u64;
            let tables = transfer::tables_of(&state);
            let around = Around { now, epoch, placement: &placement, tables: &tables };
            let has_failed = matches!(told, Told::Failed);
            let task = mover.step(&around, std::mem::replace(&mut told, Told::Nothing));
            self.shared.set_placed((epoch, mover.placed()), mover.progress());
            if let Some(reason) = mover.take_problem() {
                self.log.report(Event::MoveFailed { reason });
            }
            // Not while waiting: whoever drops the server ends this.
            drop((state, tables));
            if has_failed {
                std::thread::sleep(AGAIN);
            }
            match task {
                Task::Wait if mover.progress().id != 0 || mover.is_giving() => std::thread::sleep(AGAIN),
                Task::Wait => _ = self.records.wait(WATCH_WITHIN),
                Task::Set(next) => {
                    let seen = self.records.compare_and_set(revision, &next);
                    known = seen.ok().and_then(|(revision, found)| Some((revision, Arc::new(found?))));
                    continue;
                }
                Task::Place(placement) => told = make(inputs, epoch, MoveChange::Place(placement)),
                Task::Create(head) => told = make(inputs, epoch, MoveChange::Create(head)),
                Task::Import { table, rows, pushes } => {
                    let bytes = bytes_of(&rows);
                    told = make(inputs, epoch, MoveChange::Import { table, rows, pushes });
                    if !mover.is_closed() {
                        let pause = bytes as f64 / self.bytes_per_s.max(1) as f64;
                        std::thread::sleep(Duration::from_secs_f64(pause.min(1.0)));
                    }
                    continue;
                }
                Task::Ask { group, question } => {
                    told = match self.ask(&mut link, group, &question, needed(&placement)) {
                        Ok(reply) => Told::Reply(Box::new(reply)),
                        Err(_) => {
                            link = None;
                            Told::Failed
                        }
                    };
                    continue;
                }
            }
            known = self.read().or(known);
        }
    }

    fn read(&mut self) -> Option<Seen> {
        let (revision, placement) = self.records.read().ok()?;
        Some((revision, Arc::new(placement?)))
    }

    /// Asks the primary of another group, which must speak a version.
    fn ask(
        &mut self,
        link: &mut Option<Link>,
        group: u32,
        question: &Question,
        needed: u8,
    ) -> Result<Answer, String> {
        if link.as_ref().is_none_or(|link| link.group != group) {
            let (member, url) = self.records.primary(group).map_err(|error| error.to_string())?;
            let reached = reach(member, &url, &self.peers, self.shared.spoken);
            let (connection, agreed) = reached.map_err(|_| format!("{url} was not reached"))?;
            *link = Some(Link { group, server: member.server, connection, agreed });
        }
        let Some(Link { connection, agreed, server, .. }) = link else {
            return Err("no connection".to_owned());
        };
        let version = self.shared.spoken.with(agreed.features);
        if version < needed {
            let reason = format!(
                "moves of pinned tables from group {group} wait: server {server} speaks version {version} of messages between \
                 servers, and they need {needed}; upgrade it, or give the moves up by ctl rebalance --cancel"
            );
            self.shared.note_refusal(reason.clone());
            return Err(reason);
        }
        send(connection, &Request::Transfer(&transfer::encode_question(question, version)), agreed)?;
        connection.sender.flush().map_err(|error| error.to_string())?;
        let until = Instant::now() + MOVE_ANSWER_WITHIN;
        let received = connection.receiver.receive(Some(until)).map_err(|error| error.to_string())?;
        let bytes = received.ok_or("no answer in time")?;
        let Ok(Parsed::Frame(frame)) = Frame::parse(bytes, agreed) else {
            return Err("the answer is no frame".to_owned());
        };
        match Reply::decode(&frame).map_err(|error| error.to_string())? {
            Reply::Transfer(bytes) => transfer::read_reply(bytes, self.shared.spoken).map_err(str::to_owned),
            Reply::Failed(failure) => Err(format!("{}: {}", failure.fault, failure.reason)),
            other => Err(format!("the answer is a {}", other.kind())),
        }
    }
}

/// Lets the thread of replication make a change, and waits until all replicas in sync have it.
fn make(inputs: &Sender<Input>, epoch: u64, change: MoveChange) -> Told {
    let (told, result): (SyncSender<Told>, _) = sync_channel(1);
    if inputs.send(Input::Move { epoch, change, told }).is_err() {
        return Told::Failed;
    }
    result.recv_timeout(MOVE_ANSWER_WITHIN).unwrap_or(Told::Failed)
}

fn bytes_of(rows: &RowColumns) -> u64 {
    let rows = rows.rows();
    (rows.keys.len() * 20 + (rows.weights.len() + rows.states.len()) * 4) as u64
}
