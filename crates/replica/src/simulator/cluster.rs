//! Two simulated groups, between which slots and a pinned table move while clients push: each group is a world with
//! faults of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use sanderling_random::SplitMix64;

use super::check::{Bits, COUNTERS, Check, bits, counter};
use super::clients::{KEYS, ORDERED, PASSING, PINNED};
use super::routing::Router;
use super::world::{FAULTS_UNTIL, SETTLES_WITHIN, World, home_of, table};
use crate::fault::Fault;
use crate::group::Member;
use crate::message::{Answer, Event, Operation};
use crate::mover::{Around, GroupTable, Mover, Question, Reply, Task, Told, answer};
use crate::node::{Node, Standing};
use crate::placement::{Move, MoveState, Placement, SlotSpan};

/// Slots of the cluster.
pub(super) const SLOTS: u32 = 8;
/// Ticks after which a task whose result was lost has failed.
const TASK_WITHIN: u64 = 60;
/// Ticks that an answer of the registry takes at most, while there are faults.
const REGISTRY_DELAY: u64 = 12;

/// Counts of a run's events.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Counts {
    committed: u64,
    /// Of these, moves of the pinned table.
    pinned: u64,
    cancelled: u64,
    reopened: u64,
    attempts: u64,
    redirected: u64,
    crashes: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Counts) {
        self.committed += other.committed;
        self.pinned += other.pinned;
        self.cancelled += other.cancelled;
        self.reopened += other.reopened;
        self.attempts += other.attempts;
        self.redirected += other.redirected;
        self.crashes += other.crashes;
    }

    pub(super) fn is_varied(&self) -> bool {
        let Counts { committed, pinned, cancelled, reopened, attempts, redirected, crashes } = *self;
        [committed, pinned, cancelled, reopened, attempts, redirected, crashes].iter().all(|&count| count > 0)
    }
}

/// A process's mover, with the task under way.
#[derive(Debug)]
struct Host {
    member: Member,
    mover: Mover,
    /// The record as this process knows it.
    revision: u64,
    placement: Arc<Placement>,
    /// Number of the task under way, and since when; the request to the own group, if it is one.
    task: Option<(u64, u64)>,
    request: Option<u64>,
    told: Told,
    slept_until: u64,
}

/// A message between processes and the registry of placements.
#[derive(Debug)]
enum Parcel {
    Set { host: (usize, usize), member: Member, task: u64, revision: u64, placement: Placement },
    Seen { host: (usize, usize), member: Member, task: u64, revision: u64, placement: Arc<Placement> },
    Ask { host: (usize, usize), member: Member, task: u64, group: usize, question: Question },
    Reply { host: (usize, usize), member: Member, task: u64, reply: Box<Reply> },
}

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Cluster {
    rng: SplitMix64,
    fault: Fault,
    worlds: Vec<World>,
    hosts: BTreeMap<(usize, usize), Host>,
    revision: u64,
    placement: Arc<Placement>,
    parcels: BTreeMap<(u64, u64), Parcel>,
    parcel: u64,
    tasks: u64,
    moves: u64,
    router: Router,
    check: Check,
    counts: Counts,
    notes: Vec<String>,
}

/// The tables of a node, for its mover.
fn group_tables(node: &Node) -> Vec<GroupTable> {
    let (_, tables) = node.tables();
    let one = |(&number, table): (&u32, &Arc<sanderling_store::Table>)| {
        let note = node.note(number).unwrap_or_default().to_owned();
        GroupTable { number, home: home_of(&note), note, table: Arc::clone(table) }
    };
    tables.iter().map(one).collect()
}

/// The epoch in which a node takes changes; 0: it does not.
fn epoch(node: &Node) -> u64 {
    match node.standing() {
        Standing::Primary { epoch, is_open: true } => epoch,
        _ => 0,
    }
}

impl Cluster {
    /// Runs a seed; the problem that it found, if any.
    pub(super) fn run(seed: u64, fault: Fault) -> Result<Counts, String> {
        let mut cluster = Cluster::new(seed, fault);
        let mut settled = 0;
        for now in 1..FAULTS_UNTIL + 2 * SETTLES_WITHIN {
            cluster.tick(now).map_err(|problem| format!("tick {now}: {problem}\n{}", cluster.state()))?;
            settled = if now > FAULTS_UNTIL && cluster.is_settled() { settled + 1 } else { 0 };
            if settled > 30 {
                cluster.equal().map_err(|problem| format!("{problem}\n{}", cluster.state()))?;
                return Ok(cluster.counts);
            }
        }
        Err(format!("not settled: {}", cluster.state()))
    }

    fn new(seed: u64, fault: Fault) -> Cluster {
        let mut rng = SplitMix64::new(seed ^ 0x6d6f_7665);
        let worlds =
            (0..2_u32).map(|group| World::new(rng.below(u64::MAX), fault, group).of_several()).collect();
        Cluster {
            fault,
            worlds,
            hosts: BTreeMap::new(),
            revision: 1,
            placement: Arc::new(Placement::even(SLOTS, 2)),
            parcels: BTreeMap::new(),
            parcel: 0,
            tasks: 0,
            moves: 0,
            router: Router::new(3, 30 + rng.below(60) as u32),
            check: Check::default(),
            counts: Counts::default(),
            notes: Vec::new(),
            rng,
        }
    }

    fn is_healed(&self) -> bool {
        self.worlds[0].is_healed()
    }

    fn send(&mut self, now: u64, parcel: Parcel) {
        let is_healed = self.is_healed();
        if !is_healed && self.rng.below(20) == 0 {
            return;
        }
        let most = if is_healed { 2 } else { REGISTRY_DELAY };
        self.parcel += 1;
        self.parcels.insert((now + 1 + self.rng.below(most), self.parcel), parcel);
    }

    fn tick(&mut self, now: u64) -> Result<(), String> {
        for (group, world) in self.worlds.iter_mut().enumerate() {
            world.tick().map_err(|problem| format!("group {group}: {problem}"))?;
        }
        self.operate(now);
        while let Some(entry) = self.parcels.first_entry().filter(|entry| entry.key().0 <= now) {
            let parcel = entry.remove();
            self.deliver(now, parcel);
        }
        for group in 0..self.worlds.len() {
            for (request, answer) in std::mem::take(&mut self.worlds[group].outside) {
                self.answered(group, request, &answer)?;
            }
            for at in 0..self.worlds[group].machines.len() {
                self.run_mover(now, (group, at));
            }
        }
        if self.worlds.iter().all(|world| world.counts.has_tables()) {
            let Cluster { router, worlds, rng, check, placement, .. } = self;
            let gives_up = now <= FAULTS_UNTIL;
            self.counts.redirected += router.tick(now, worlds, placement, gives_up, rng, check);
        }
        Ok(())
    }

    /// Begins moves, and cancels some.
    fn operate(&mut self, now: u64) {
        if self.is_healed() || now < 80 {
            return;
        }
        let is_idle = self.placement.moves.is_empty();
        if is_idle && self.rng.below(10) == 0 {
            let from = self.rng.below(2) as u32;
            let groups = self.placement.groups();
            let mut slots: Vec<u32> = (0..SLOTS).filter(|&slot| groups[slot as usize] == from).collect();
            slots.retain(|_| self.rng.below(2) == 0);
            // A server checks the place of a table that is created.
            let has_pinned = self.worlds[0].counts.has_tables() && self.placement.pinned_to(0) == from;
            let moves_pinned = has_pinned && self.rng.below(2) == 0;
            // Alone, or with slots.
            if moves_pinned && self.rng.below(2) == 0 {
                slots.clear();
            }
            let pinned = if moves_pinned { vec![0] } else { Vec::new() };
            if moves_pinned || !slots.is_empty() {
                self.moves += 1;
                let one = Move::new(self.moves, (from, 1 - from), SlotSpan::of_slots(&slots), pinned);
                self.set(now, self.placement.changed(|next| next.moves.push(one)));
            }
        } else if !is_idle && self.rng.below(400) == 0 {
            let id = self.placement.moves[0].id;
            if matches!(self.placement.moves[0].state, MoveState::Copying | MoveState::HandingOver) {
                self.counts.cancelled += 1;
                self.set(now, self.placement.with_move(id, Some(MoveState::Cancelled)));
            }
        }
    }

    /// Changes the record.
    fn set(&mut self, now: u64, placement: Placement) {
        let state = |placement: &Placement| placement.moves.first().map(|one| (one.state, one.attempt));
        let (before, after) = (state(&self.placement), state(&placement));
        match (before, after) {
            (Some((MoveState::HandingOver, _)), Some((MoveState::Releasing, _))) => {
                self.counts.committed += 1;
                self.counts.pinned += u64::from(placement.pinned != self.placement.pinned);
            }
            (Some((MoveState::HandingOver, one)), Some((MoveState::Copying, other))) if one == other => {
                self.counts.reopened += 1;
            }
            (Some((_, one)), Some((_, other))) if one != other => self.counts.attempts += 1,
            _ => {}
        }
        self.revision += 1;
        self.notes.push(format!(
            "{now}: placement {} {:?} {:?}: {after:?}",
            placement.version,
            placement.groups(),
            placement.pinned
        ));
        self.placement = Arc::new(placement);
    }

    fn deliver(&mut self, now: u64, parcel: Parcel) {
        match parcel {
            Parcel::Set { host, member, task, revision, placement } => {
                if revision == self.revision && placement.version > self.placement.version {
                    self.set(now, placement);
                }
                let (revision, placement) = (self.revision, Arc::clone(&self.placement));
                self.send(now, Parcel::Seen { host, member, task, revision, placement });
            }
            Parcel::Seen { host, member, task, revision, placement } => {
                if let Some(known) = self.hosts.get_mut(&host).filter(|known| known.member == member) {
                    if revision > known.revision {
                        (known.revision, known.placement) = (revision, placement);
                    }
                    known.task.take_if(|under_way| under_way.0 == task);
                }
            }
            Parcel::Ask { host, member, task, group, question } => {
                let world = &self.worlds[group];
                let Some(primary) = world.registry.group.as_ref().map(|group| group.primary) else { return };
                let (machine, at) = (&world.machines[primary.server as usize], primary.server as usize);
                let Some(node) = machine.node.as_ref().filter(|_| machine.member == primary) else { return };
                if now < machine.paused_until || epoch(node) == 0 {
                    return;
                }
                let Some(asked) = self.hosts.get(&(group, at)).filter(|asked| asked.member == primary) else {
                    return;
                };
                let placed = asked.mover.placed();
                let reply = answer(&question, (epoch(node), placed), SLOTS, &group_tables(node));
                self.send(now, Parcel::Reply { host, member, task, reply: Box::new(reply) });
            }
            Parcel::Reply { host, member, task, reply } => {
                if let Some(known) = self.hosts.get_mut(&host).filter(|known| known.member == member)
                    && known.task.take_if(|under_way| under_way.0 == task).is_some()
                {
                    known.told = Told::Reply(reply);
                }
            }
        }
    }

    fn answered(&mut self, group: usize, request: u64, answer: &Answer) -> Result<(), String> {
        let hosts = self.hosts.iter_mut().filter(|((of, _), _)| *of == group);
        if let Some((_, host)) = hosts.into_iter().find(|(_, host)| host.request == Some(request)) {
            (host.task, host.request) = (None, None);
            host.told = match answer {
                Answer::Done(outcome) => Told::Made(*outcome),
                _ => Told::Failed,
            };
            return Ok(());
        }
        let Cluster { router, rng, check, .. } = self;
        router.take((group, request), answer, rng, check)
    }

    /// Lets the mover of a process take a step, if no task is under way.
    fn run_mover(&mut self, now: u64, at: (usize, usize)) {
        let machine = &self.worlds[at.0].machines[at.1];
        let Some(node) = machine.node.as_ref().filter(|_| now >= machine.paused_until) else { return };
        let member = machine.member;
        if self.hosts.get(&at).is_none_or(|host| host.member != member) {
            let mut mover = Mover::new(at.0 as u32);
            mover.fault = self.fault;
            let (revision, placement) = (self.revision, Arc::clone(&self.placement));
            let (told, slept_until) = (Told::Nothing, 0);
            let host =
                Host { member, mover, revision, placement, task: None, request: None, told, slept_until };
            self.hosts.insert(at, host);
            self.counts.crashes += 1;
        }
        let (epoch, tables) = (epoch(node), group_tables(node));
        let host = self.hosts.get_mut(&at).expect("it was just made");
        if let Some((_, since)) = host.task {
            if now - since < TASK_WITHIN {
                return;
            }
            (host.task, host.request, host.told) = (None, None, Told::Failed);
        }
        if now < host.slept_until {
            return;
        }
        let placement = Arc::clone(&host.placement);
        let around = Around { now, epoch, placement: &placement, tables: &tables };
        let told = std::mem::replace(&mut host.told, Told::Nothing);
        let task = host.mover.step(&around, told);
        self.tasks += 1;
        let number = self.tasks;
        host.task = Some((number, now));
        let revision = host.revision;
        // No record has revision 0: the registry answers with the present one.
        let known = (*placement).clone();
        let read = |task| Parcel::Set { host: at, member, task, revision: 0, placement: known };
        let mut made = None;
        let parcel = match task {
            Task::Wait => {
                // The registry is read again.
                host.slept_until = now + 1 + self.rng.below(8);
                read(number)
            }
            Task::Set(placement) => Parcel::Set { host: at, member, task: number, revision, placement },
            Task::Ask { group, question } => {
                Parcel::Ask { host: at, member, task: number, group: group as usize, question }
            }
            Task::Place(placement) => {
                made = Some(Operation::Place(placement));
                read(0)
            }
            Task::Create(head) => {
                let number = head.config.name.trim_start_matches('t').parse().unwrap_or_default();
                made = Some(table(number));
                read(0)
            }
            Task::Import { table, rows, pushes } => {
                made = Some(Operation::Import { table, rows, pushes });
                read(0)
            }
        };
        self.send(now, parcel);
        if let Some(operation) = made {
            let request =
                self.worlds[at.0].ask_outside(at.1, |request| Event::Operate { request, operation });
            self.hosts.get_mut(&at).expect("it was just made").request = Some(request);
        }
    }

    /// Whether all clients are done, no move is under way, and all groups are at rest.
    fn is_settled(&mut self) -> bool {
        self.router.is_done()
            && self.placement.moves.is_empty()
            && self.worlds.iter_mut().all(World::is_settled)
            && self.worlds.iter().all(|world| {
                world.machines.iter().all(|machine| {
                    let placed = machine.node.as_ref().and_then(|node| node.placement());
                    placed.is_some_and(|placed| placed.version == self.placement.version)
                })
            })
    }

    /// Compares replicas, and the counters of each key with what clients know, where the key is. Elsewhere it has no row.
    fn equal(&self) -> Result<(), String> {
        let mut counters = Bits::new();
        for (group, world) in self.worlds.iter().enumerate() {
            world.equal()?;
            let Some(node) = &world.machines[0].node else { continue };
            for number in [COUNTERS, ORDERED, PASSING, PINNED] {
                let Some(table) = node.tables().1.get(&number) else { continue };
                let rows = bits(table);
                for key in 0..KEYS {
                    let slot = sanderling_wire::slot_of(key, SLOTS as usize) as u32;
                    let there = match number {
                        PINNED => Some(self.placement.pinned_to(0)),
                        _ => self.placement.group_of(slot),
                    };
                    let is_here = there == Some(group as u32);
                    match rows.get(&key) {
                        Some(_) if !is_here => {
                            return Err(format!("group {group} has key {key} of table {number} still"));
                        }
                        Some(row) if matches!(number, COUNTERS | PINNED) => {
                            counters.insert(counter(number, key), row.clone());
                        }
                        _ => {}
                    }
                }
            }
        }
        self.check.counters(&counters)
    }

    fn state(&self) -> String {
        let worlds = self.worlds.iter().map(World::state).collect::<Vec<_>>().join("\n--\n");
        format!("{}\n{}\n{worlds}\n{:?}", self.notes.join("\n"), self.placement.version, self.placement.moves)
    }
}
