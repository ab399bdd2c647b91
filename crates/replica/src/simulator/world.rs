//! The simulated machines, network and registry. Virtual ticks; every choice is drawn from the seed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use sanderling_random::SplitMix64;
use sanderling_store::{Block, Dtype, Init, Optimizer, Row, RowColumns, TableConfig};
use sanderling_wire::Home;

use super::check::{Bits, COUNTERS, Check, bits};
use super::clients::{Client, KEYS, ORDERED, ORDERED_DIM, PASSING, PINNED};
pub(super) use super::weather::Counts;
use super::weather::Weather;
use crate::fault::Fault;
use crate::group::{Group, Member, Revised};
use crate::message::{Action, Answer, Event, Operation};
use crate::node::{Config, Node, Role};

/// Ticks with faults.
pub(super) const FAULTS_UNTIL: u64 = 700;
/// Ticks without faults within which everything must be settled.
pub(super) const SETTLES_WITHIN: u64 = 3000;
pub(super) const STREAMS: usize = 2;
/// The client that creates tables and imports rows.
const OPERATOR: usize = usize::MAX;
/// Clients and movers of several groups.
const OUTSIDE: usize = usize::MAX - 1;

/// A machine, with the process that runs on it.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) member: Member,
    pub(super) node: Option<Node>,
    pub(super) starts_at: u64,
    pub(super) paused_until: u64,
    /// Events that came while the process was paused.
    pub(super) held: Vec<Event>,
}

#[derive(Debug)]
pub(super) enum Delivery {
    Node(Member, Event),
    Read(Member),
    CompareAndSet(Member, u64, Group),
    Answer(u64, Answer),
}

/// Everything outside the nodes.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: u64,
    order: u64,
    pub(super) rng: SplitMix64,
    weather: Weather,
    pub(super) fault: Fault,
    min_in_sync: usize,
    group: u32,
    pub(super) machines: Vec<Machine>,
    pub(super) registry: Revised,
    pub(super) queue: BTreeMap<(u64, u64), Delivery>,
    /// Directions that lose everything; machines by number, the registry after them.
    pub(super) cuts: HashSet<(usize, usize)>,
    clients: Vec<Client>,
    requests: u64,
    /// Client of each request.
    askers: BTreeMap<u64, usize>,
    /// Changes that the operator still has to make, and when it asked for the first.
    operations: Vec<Operation>,
    asked: Option<(u64, u64)>,
    imports: bool,
    check: Check,
    pub(super) counts: Counts,
    /// A machine that crashes after its change of the record, and when.
    pub(super) crash: Option<(Option<u64>, usize)>,
    /// Answers to clients and movers of several groups.
    pub(super) outside: Vec<(u64, Answer)>,
    /// The faults, and the changes of the record, for the report of a problem.
    pub(super) notes: Vec<String>,
}

/// The note of a table says whether it is pinned.
const PINNED_NOTE: &str = "pinned to group 0";

fn note(number: u32) -> String {
    if number == PINNED { PINNED_NOTE.to_owned() } else { String::new() }
}

pub(super) fn home_of(note: &str) -> Home {
    if note == PINNED_NOTE { Home::Pinned(0) } else { Home::Sharded }
}

pub(super) fn table(number: u32) -> Operation {
    let (dim, dtype, optimizer) = match number {
        ORDERED => (
            ORDERED_DIM,
            Dtype::Bf16,
            Optimizer::Adam { lr: 0.05, beta1: 0.9, beta2: 0.99, eps: 1e-6, l2: 0.01 },
        ),
        _ => (1, Dtype::F32, Optimizer::Sgd { lr: 1.0, l2: 0.0 }),
    };
    let init = if number == ORDERED { Init::Normal { std: 0.1 } } else { Init::Zero };
    let block = Block { dims: dim, init, optimizer };
    let config = TableConfig { dtype, seed: 5, ..TableConfig::new(format!("t{number}"), vec![block]) };
    Operation::Create { table: number, config: Box::new(config), note: note(number) }
}

impl World {
    /// Runs a seed; the problem that it found, if any.
    pub(super) fn run(seed: u64, fault: Fault) -> Result<Counts, String> {
        let mut world = World::new(seed, fault, 0);
        let mut settled = 0;
        while world.now < FAULTS_UNTIL + SETTLES_WITHIN {
            world.tick().map_err(|problem| format!("tick {}: {problem}\n{}", world.now, world.state()))?;
            settled = if world.now > FAULTS_UNTIL && world.is_settled() { settled + 1 } else { 0 };
            if settled > 30 {
                world.equal()?;
                return Ok(world.counts);
            }
        }
        Err(format!("not settled: {}", world.state()))
    }

    pub(super) fn new(seed: u64, fault: Fault, group: u32) -> World {
        let mut rng = SplitMix64::new(seed);
        let weather = Weather::draw(&mut rng);
        let machines = 2 + rng.below(2) as usize;
        let min_in_sync = 1 + rng.below(2) as usize;
        let machine = |server| {
            let member = Member { server, boot: 0 };
            Machine { member, node: None, starts_at: u64::from(server), paused_until: 0, held: Vec::new() }
        };
        World {
            now: 0,
            order: 0,
            weather,
            fault,
            min_in_sync,
            group,
            machines: (0..machines as u32).map(machine).collect(),
            registry: Revised::default(),
            queue: BTreeMap::new(),
            cuts: HashSet::new(),
            clients: (1..=3).map(|number| Client::new(number, 20 + rng.below(60) as u32)).collect(),
            requests: 0,
            askers: BTreeMap::new(),
            // The last one comes first.
            operations: vec![table(ORDERED), table(COUNTERS)],
            asked: None,
            imports: true,
            check: Check::default(),
            counts: Counts { tables: 2, ..Counts::default() },
            crash: None,
            outside: Vec::new(),
            notes: Vec::new(),
            rng,
        }
    }

    pub(super) fn is_healed(&self) -> bool {
        self.now > FAULTS_UNTIL
    }

    /// Puts something on its way: it may be lost, late, or come twice.
    fn send(&mut self, from: usize, to: usize, again: Option<Delivery>, delivery: Delivery) {
        let weather = self.weather;
        if self.cuts.contains(&(from, to)) || (!self.is_healed() && self.rng.below(1000) < weather.lost) {
            return;
        }
        let twice = again.filter(|_| !self.is_healed() && self.rng.below(1000) < weather.repeated);
        for delivery in [Some(delivery), twice].into_iter().flatten() {
            let most = if self.is_healed() { 3 } else { weather.delay_max };
            let slow = if to == self.machines.len() && !self.is_healed() { self.rng.below(30) } else { 0 };
            let at = self.now + 1 + self.rng.below(most) + slow;
            self.order += 1;
            self.queue.insert((at, self.order), delivery);
        }
    }

    /// Of one of several groups: it has no clients of its own, and imports nothing.
    pub(super) fn of_several(mut self) -> World {
        self.clients.clear();
        self.imports = false;
        if self.group == 0 {
            self.operations.insert(0, table(PINNED));
            self.counts.tables = 3;
        }
        self
    }

    pub(super) fn tick(&mut self) -> Result<(), String> {
        self.now += 1;
        if self.now == FAULTS_UNTIL + 1 {
            self.cuts.clear();
            for machine in &mut self.machines {
                machine.paused_until = self.now.min(machine.paused_until);
                machine.starts_at = self.now.min(machine.starts_at);
            }
        } else if !self.is_healed() && self.now > 60 && self.rng.below(self.weather.calm) == 0 {
            self.break_something();
        }
        self.crash_as_planned();
        for at in 0..self.machines.len() {
            self.run_machine(at)?;
        }
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let delivery = entry.remove();
            self.deliver(delivery)?;
        }
        self.ask();
        Ok(())
    }

    fn run_machine(&mut self, at: usize) -> Result<(), String> {
        let (now, machine) = (self.now, &mut self.machines[at]);
        if machine.node.is_none() && now >= machine.starts_at {
            machine.member.boot = now;
            let (me, history) = (machine.member, now);
            let config = Config {
                me,
                streams: STREAMS,
                min_in_sync: self.min_in_sync,
                group: (!self.imports).then_some(self.group),
                home_of,
                history,
            };
            machine.node = Some(Node::with_fault(config, self.fault));
        }
        if machine.node.is_none() || now < machine.paused_until {
            return Ok(());
        }
        for event in std::mem::take(&mut machine.held) {
            self.step(at, event)?;
        }
        self.step(at, Event::Tick)
    }

    /// Gives an event to a node, and does what it asks for.
    fn step(&mut self, at: usize, event: Event) -> Result<(), String> {
        let (now, registry) = (self.now, self.machines.len());
        let machine = &mut self.machines[at];
        let member = machine.member;
        let Some(node) = &mut machine.node else { return Ok(()) };
        let actions = node.step(now, event);
        let epoch = node.epoch();
        self.counts.waited = self.counts.waited.max(node.waiting() as u64);
        for action in actions {
            match action {
                Action::Read => self.send(at, registry, None, Delivery::Read(member)),
                Action::CompareAndSet { revision, group } => {
                    self.plan_crash(at, &group);
                    let again = Some(Delivery::CompareAndSet(member, revision, group.clone()));
                    self.send(at, registry, again, Delivery::CompareAndSet(member, revision, group));
                }
                Action::Send { to, envelope } => {
                    let again = Some(Delivery::Node(to, Event::Message(envelope.clone())));
                    self.send(at, to.server as usize, again, Delivery::Node(to, Event::Message(envelope)));
                }
                Action::Answer { request, answer } => {
                    if matches!(answer, Answer::Done(_)) {
                        self.check.acknowledged_by(member, epoch)?;
                    }
                    self.send(at, at, None, Delivery::Answer(request, answer));
                }
            }
        }
        Ok(())
    }

    fn deliver(&mut self, delivery: Delivery) -> Result<(), String> {
        let registry = self.machines.len();
        let (asker, revised) = match delivery {
            Delivery::Node(to, event) => {
                let at = to.server as usize;
                let machine = &mut self.machines[at];
                // Clients do not know the boot.
                let is_there =
                    machine.member == to || !matches!(event, Event::Message(_) | Event::Registry(_));
                if machine.node.is_none() || !is_there {
                    return Ok(());
                }
                if self.now < machine.paused_until {
                    machine.held.push(event);
                    return Ok(());
                }
                return self.step(at, event);
            }
            Delivery::Answer(request, answer) => return self.answer(request, &answer),
            Delivery::Read(asker) => (asker, self.registry.clone()),
            Delivery::CompareAndSet(asker, revision, group) => {
                if self.registry.revision == revision {
                    self.notes.push(format!("{}: {} {group:?}", self.now, revision + 1));
                    self.doom(asker);
                    self.registry = Revised { revision: revision + 1, group: Some(group) };
                }
                (asker, self.registry.clone())
            }
        };
        let epochs = revised.group.as_ref().map_or(0, |group| group.epoch - 1);
        self.counts.epochs = self.counts.epochs.max(epochs);
        self.send(registry, asker.server as usize, None, Delivery::Node(asker, Event::Registry(revised)));
        Ok(())
    }

    fn answer(&mut self, request: u64, answer: &Answer) -> Result<(), String> {
        match self.askers.remove(&request) {
            Some(OPERATOR) => {
                if self.asked.is_some_and(|(asked, _)| asked == request) {
                    self.asked = None;
                    if matches!(answer, Answer::Done(_)) {
                        self.operations.pop();
                        self.counts.operations += 1;
                    }
                }
                Ok(())
            }
            Some(OUTSIDE) => {
                self.outside.push((request, answer.clone()));
                Ok(())
            }
            Some(client) => {
                let nodes = self.machines.len();
                self.clients[client].take(request, answer, nodes, &mut self.rng, &mut self.check)
            }
            None => Ok(()),
        }
    }

    /// Lets clients, operator and maintenance ask.
    fn ask(&mut self) {
        let (now, nodes) = (self.now, self.machines.len());
        let any = |rng: &mut SplitMix64| rng.below(nodes as u64) as usize;
        if self.operations.is_empty() && !self.is_healed() && self.rng.below(60) == 0 {
            let operation = match self.rng.below(3) {
                0 => table(PASSING),
                // For the other tables as good as a drop.
                1 if now % 2 == 0 => {
                    let note = |number| (number, note(number));
                    Operation::Replace { notes: [COUNTERS, ORDERED, PINNED].map(note).into() }
                }
                1 => Operation::Drop { table: PASSING },
                _ if self.imports => self.import(),
                _ => table(PASSING),
            };
            self.operations.push(operation);
        }
        if self.asked.is_some_and(|(_, at)| now - at > 20) {
            self.asked = None;
        }
        if self.asked.is_none()
            && let Some(operation) = self.operations.last().cloned()
        {
            self.requests += 1;
            let request = self.requests;
            self.asked = Some((request, now));
            self.askers.insert(request, OPERATOR);
            let at = any(&mut self.rng);
            self.ask_node(at, Event::Operate { request, operation });
        }
        if !self.counts.has_tables() {
            return;
        }
        if !self.is_healed() && self.rng.below(8) == 0 {
            let (table, key) = (ORDERED, self.rng.below(KEYS));
            self.counts.removals += 1;
            (0..nodes).for_each(|at| self.ask_node(at, Event::Remove { table, key }));
        }
        for client in 0..self.clients.len() {
            let World { clients, requests, rng, check, .. } = self;
            clients[client].look_elsewhere(now, nodes, rng);
            let gives_up = now <= FAULTS_UNTIL;
            let events = clients[client].tick(now, (nodes, STREAMS), gives_up, requests, rng, check);
            for (at, event) in events {
                if let Event::Push { request, .. } | Event::Pull { request, .. } = event {
                    self.askers.insert(request, client);
                }
                self.ask_node(at, event);
            }
        }
    }

    /// Sends a request of others; its number.
    pub(super) fn ask_outside(&mut self, at: usize, event: impl FnOnce(u64) -> Event) -> u64 {
        self.requests += 1;
        let request = self.requests;
        self.askers.insert(request, OUTSIDE);
        self.ask_node(at, event(request));
        request
    }

    pub(super) fn ask_node(&mut self, at: usize, event: Event) {
        let again = match &event {
            Event::Push { request, stream, push } => {
                let push = Event::Push { request: *request, stream: *stream, push: Arc::clone(push) };
                Some(Delivery::Node(self.machines[at].member, push))
            }
            _ => None,
        };
        self.send(at, at, again, Delivery::Node(self.machines[at].member, event));
    }

    fn import(&mut self) -> Operation {
        let mut rows = RowColumns::default();
        for key in 0..KEYS {
            if self.rng.below(3) == 0 {
                let version = self.rng.below(30) as u32 + 1;
                let (weights, state) = (vec![0.5; ORDERED_DIM], vec![0.25; 2 * ORDERED_DIM]);
                rows.push(Row { key, frequency: 1, last_use: 0, version, weights, state }.as_ref());
            }
        }
        Operation::Import { table: ORDERED, rows: Arc::new(rows), pushes: 0 }
    }

    /// Whether all clients are done, and all machines at rest.
    pub(super) fn is_settled(&mut self) -> bool {
        let Some(group) = &self.registry.group else { return false };
        group.in_sync.len() + 1 == self.machines.len()
            && self.operations.is_empty()
            && self.clients.iter().all(Client::is_done)
            && self.machines.iter().all(|machine| {
                let at_rest = |node: &Node| node.waiting() == 0 && !matches!(node.role, Role::Learner);
                machine.node.as_ref().is_some_and(at_rest)
            })
    }

    /// Compares the replicas, and the counters with what clients know.
    pub(super) fn equal(&self) -> Result<(), String> {
        let rows = |machine: &Machine| -> BTreeMap<u32, Bits> {
            let tables = machine.node.iter().flat_map(|node| &node.rows.tables);
            tables.map(|(&number, table)| (number, bits(table))).collect()
        };
        let first = rows(&self.machines[0]);
        self.check.counters(first.get(&COUNTERS).unwrap_or(&Bits::new()))?;
        for machine in &self.machines[1..] {
            let other = rows(machine);
            if first != other {
                return Err(format!("replicas differ:\n{first:?}\n{other:?}\n{}", self.state()));
            }
        }
        Ok(())
    }

    pub(super) fn state(&self) -> String {
        let mut state = self.notes.join("\n");
        for Machine { member, node, .. } in &self.machines {
            let (role, waiting) = match node {
                None => ("none".to_string(), 0),
                Some(node) => (
                    match &node.role {
                        Role::Learner => "learner".to_string(),
                        Role::Follower(follower) => format!("{follower:?}"),
                        Role::Primary(primary) => format!("primary {:?}", primary.epoch),
                    },
                    node.waiting(),
                ),
            };
            state += &format!("\n{member:?}: {role:.300}, {waiting} waiting");
        }
        state
    }
}
