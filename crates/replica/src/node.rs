//! A replica: its role, its view of the group, and what it does at each event.

use std::sync::Arc;

use sanderling_wire::Home;

use crate::fault::Fault;
use crate::follower::Follower;
use crate::group::{Group, Member, Revised};
use crate::limit::{HAND_OVER_WITHIN, HEARTBEAT, JOIN_WITHIN, PROMOTE_AFTER, REGISTRY_WITHIN};
use crate::message::{Action, Answer, Envelope, Event, Message};
use crate::primary::{Outbox, Primary};
use crate::push_dedup::PushDedup;
use crate::rows::Rows;

mod requests;
mod view;
pub use view::Standing;

/// The settings of a replica.
#[derive(Debug, Clone)]
pub struct Config {
    /// This process.
    pub me: Member,
    /// Workers that push, each with a stream of its own.
    pub streams: usize,
    /// Replicas that must have a push before it is acknowledged, the primary included. With fewer, it is busy.
    pub min_in_sync: usize,
    /// The group, which has what the placement says, and nothing before one is applied. None: it has all keys.
    pub group: Option<u32>,
    /// Reads the driver's note of a table: whether its rows are shared out by slots.
    pub home_of: fn(&str) -> Home,
    /// Number for the group's history, if this replica begins the group; drawn at random.
    pub history: u64,
}

/// A replica of a group, without clock, socket or thread: events in, actions out.
#[derive(Debug)]
pub struct Node {
    config: Config,
    /// The time in ticks.
    now: u64,
    known: Revised,
    /// A change of the record whose outcome is open.
    proposal: Option<Proposal>,
    /// When the registry was asked last.
    asked: u64,
    /// Epoch and number of the last session.
    last_session: (u64, u64),
    pub(crate) rows: Rows,
    push_dedup: Arc<PushDedup>,
    pub(crate) role: Role,
    actions: Vec<Action>,
}

#[derive(Debug)]
struct Proposal {
    revision: u64,
    group: Group,
}

#[derive(Debug)]
pub(crate) enum Role {
    /// Without a session.
    Learner,
    /// In sync, or on the way to it.
    Follower(Box<Follower>),
    Primary(Box<Primary>),
}

impl Node {
    /// Creates a replica without rows, at the start of its process. Workers that push share its dedup windows.
    #[must_use]
    pub fn new(config: Config, push_dedup: Arc<PushDedup>) -> Node {
        Node { push_dedup, ..Node::with_fault(config, Fault::None) }
    }

    pub(crate) fn with_fault(config: Config, fault: Fault) -> Node {
        Node {
            now: 0,
            known: Revised::default(),
            proposal: None,
            asked: 0,
            last_session: (0, 0),
            rows: Rows::new(config.group, config.home_of, fault),
            config,
            push_dedup: Arc::default(),
            role: Role::Learner,
            actions: vec![Action::Read],
        }
    }

    /// Takes an event at a time in ticks, which never goes back; returns what is to be done.
    ///
    /// An [`Event::Tick`] comes once a tick while the process runs. A process that was stopped gives the present time
    /// with its next event.
    pub fn step(&mut self, now: u64, event: Event) -> Vec<Action> {
        self.now = now;
        match event {
            Event::Tick => self.tick(),
            Event::Registry(revised) => self.learn(revised),
            Event::Message(envelope) => self.take(*envelope),
            Event::Push { request, stream, push } => {
                if let Err(answer) = self.push(request, stream, push) {
                    self.actions.push(Action::Answer { request, answer });
                }
            }
            Event::Applied { request, stream, epoch, applied } => {
                self.send_applied((request, stream), epoch, *applied);
            }
            Event::Repeated { request, client, sequence, outcome } => {
                let answer = match &mut self.role {
                    Role::Primary(primary) => match primary.join_pending(client, sequence, request) {
                        true => None,
                        false => Some(Answer::Done(outcome)),
                    },
                    _ => Some(Answer::NotHere),
                };
                self.actions.extend(answer.map(|answer| Action::Answer { request, answer }));
            }
            Event::Ended(member) => self.take_end(member),
            Event::Pull { request, table, keys } => {
                let answer = self.pull(table, &keys);
                self.actions.push(Action::Answer { request, answer });
            }
            Event::Operate { request, operation } => {
                if let Err(answer) = self.operate(request, &operation) {
                    self.actions.push(Action::Answer { request, answer });
                }
            }
            Event::Remove { table, key } => {
                if let (Role::Primary(_), Some(table)) = (&self.role, self.rows.tables.get(&table)) {
                    table.remove(key);
                }
            }
            Event::HandOver => {
                if let Role::Primary(primary) = &mut self.role {
                    primary.handing_over.get_or_insert((self.now, None));
                }
            }
        }
        self.answer();
        std::mem::take(&mut self.actions)
    }

    fn is_me(&self, member: &Member) -> bool {
        *member == self.config.me
            || self.rows.fault == Fault::MemberWithoutBoot && member.server == self.config.me.server
    }

    fn is_in_sync(&self) -> bool {
        self.known.in_sync().iter().any(|member| self.is_me(member))
    }

    /// Followers that a push must have reached: in the known record, in the one that may replace it, and learners that
    /// are about to be in it.
    fn must_have(&self) -> Vec<Member> {
        let proposed = self.proposal.iter().flat_map(|proposal| &proposal.group.in_sync);
        let joining = match &self.role {
            Role::Primary(primary) => Some(primary.joining()),
            _ => None,
        };
        let members = self.known.in_sync().iter().chain(proposed).chain(joining.into_iter().flatten());
        let mut members: Vec<Member> = members.copied().collect();
        members.sort_unstable();
        members.dedup();
        members
    }

    fn has_enough(&self) -> bool {
        self.known.in_sync().len() + 1 >= self.config.min_in_sync
    }

    fn send(&mut self, to: Member, session: u64, message: Message) {
        let envelope = Envelope { from: self.config.me, epoch: self.epoch(), session, message };
        self.actions.push(Action::Send { to, envelope: Box::new(envelope) });
    }

    fn send_all(&mut self, out: Outbox) {
        out.into_iter().for_each(|(to, session, message)| self.send(to, session, message));
    }

    /// Asks for a change of the record, one at a time.
    fn propose(&mut self, group: Group) {
        if self.proposal.is_none() {
            let revision = self.known.revision;
            self.proposal = Some(Proposal { revision, group: group.clone() });
            self.asked = self.now;
            self.actions.push(Action::CompareAndSet { revision, group });
        }
    }

    /// Asks to become the primary of the next epoch.
    fn propose_promotion(&mut self) {
        let Some(group) = &self.known.group else { return };
        let (epoch, history) = (group.epoch + 1, group.history);
        // The others may hold other pushes that were not acknowledged: they begin anew.
        let next = Group { epoch, history, primary: self.config.me, in_sync: Vec::new() };
        if self.rows.fault == Fault::PromoteWithoutCompareAndSet {
            self.known.group = Some(next);
            self.adopt();
        } else {
            self.propose(next);
        }
    }

    fn tick(&mut self) {
        if self.now - self.asked >= REGISTRY_WITHIN {
            self.asked = self.now;
            // A proposal whose answer was lost is asked again: it takes effect once at most.
            self.actions.push(match &self.proposal {
                Some(Proposal { revision, group }) => {
                    Action::CompareAndSet { revision: *revision, group: group.clone() }
                }
                None => Action::Read,
            });
        }
        let (now, is_in_sync) = (self.now, self.is_in_sync());
        match &self.role {
            Role::Learner => self.tick_as_learner(),
            Role::Follower(follower)
                if is_in_sync && (follower.is_ended || now - follower.heard >= PROMOTE_AFTER) =>
            {
                self.propose_promotion();
            }
            // It keeps what it has until another session begins: it may be in sync by now without knowing it.
            Role::Follower(follower)
                if now - follower.heard >= JOIN_WITHIN && now.is_multiple_of(2 * HEARTBEAT) =>
            {
                let (primary, session, ack) = (follower.primary, follower.session, follower.ack());
                self.send(primary, session, ack);
            }
            Role::Follower(_) => {}
            Role::Primary(_) => self.tick_as_primary(),
        }
    }

    fn tick_as_learner(&mut self) {
        match &self.known.group {
            // Revision 0: the group has yet to begin.
            None if self.asked > 0 => {
                let (history, primary) = (self.config.history, self.config.me);
                self.propose(Group { epoch: 1, history, primary, in_sync: Vec::new() });
            }
            Some(group) if self.now.is_multiple_of(2 * HEARTBEAT) && !self.is_me(&group.primary) => {
                let (epoch, session) = self.last_session;
                let last = if epoch == group.epoch { session } else { 0 };
                self.send(group.primary, last, Message::Join);
            }
            _ => {}
        }
    }

    fn tick_as_primary(&mut self) {
        let (must_have, now, mut out) = (self.must_have(), self.now, Outbox::new());
        let Role::Primary(primary) = &mut self.role else { return };
        primary.tick(&must_have, now, &self.rows, &mut out);
        let needed = self.config.min_in_sync.saturating_sub(1);
        let wanted = primary.wanted(self.known.in_sync(), needed, now, self.rows.fault);
        let mut change = None;
        if let Some((since, to)) = primary.handing_over {
            if self.proposal.is_some() {
                // The record is about to change, and with it the heir's view.
            } else if now - since >= HAND_OVER_WITHIN {
                if to.is_none() {
                    primary.handing_over = None;
                } else {
                    // The record as it is, under a new revision: the heir's change cannot come any more.
                    change = self.known.group.clone();
                }
            } else if let Some((member, session)) = primary.heir(self.known.in_sync(), to)
                && (to.is_none() || now.is_multiple_of(HEARTBEAT))
            {
                primary.handing_over = Some((since, Some(member)));
                out.push((member, session, Message::HandOver));
            }
        } else if wanted != self.known.in_sync()
            && let Some(group) = &self.known.group
        {
            change = Some(Group { in_sync: wanted, ..group.clone() });
        }
        change.into_iter().for_each(|group| self.propose(group));
        self.send_all(out);
    }

    /// Takes the registry's record.
    fn learn(&mut self, revised: Revised) {
        if revised.revision <= self.known.revision {
            return;
        }
        if self.proposal.as_ref().is_some_and(|proposal| revised.revision > proposal.revision) {
            self.proposal = None;
        }
        self.known = revised;
        if let Role::Primary(primary) = &mut self.role
            && primary.handing_over.is_some_and(|(_, to)| to.is_some())
        {
            // Either the heir is the primary now, or the hand-over is called off.
            primary.handing_over = None;
        }
        self.adopt();
    }

    /// Takes the role that the record gives.
    fn adopt(&mut self) {
        let Some(Group { epoch, primary: leader, .. }) = self.known.group.clone() else { return };
        let is_me = self.is_me(&leader);
        match &mut self.role {
            Role::Primary(primary) if is_me && primary.epoch == epoch => {}
            Role::Follower(follower) if !is_me && follower.epoch == epoch && follower.primary == leader => {}
            _ if is_me => self.lead(epoch),
            _ => self.resign(),
        }
    }

    /// Becomes the primary.
    fn lead(&mut self, epoch: u64) {
        if let Role::Follower(follower) = &mut self.role
            && follower.finish(&mut self.rows).is_err()
        {
            // A row that cannot be updated: the rest of the group has none that is better.
            self.role = Role::Learner;
        }
        self.rows.lead();
        self.role = Role::Primary(Box::new(Primary::new(epoch, self.config.streams, &self.rows)));
    }

    /// Becomes a learner of another primary.
    fn resign(&mut self) {
        if let Role::Primary(primary) = std::mem::replace(&mut self.role, Role::Learner) {
            for request in primary.give_up() {
                self.actions.push(Action::Answer { request, answer: Answer::NotHere });
            }
        }
    }

    fn take(&mut self, envelope: Envelope) {
        let Envelope { from, epoch, session, message } = envelope;
        if epoch != self.epoch() {
            return;
        }
        let (must_have, now, mut out) = (self.must_have(), self.now, Outbox::new());
        match (&mut self.role, &message) {
            (Role::Primary(primary), Message::Join) => {
                primary.join((from, session), &must_have, now, &self.rows, &self.push_dedup, &mut out);
            }
            (Role::Primary(primary), Message::Ack { .. }) => {
                let is_known = primary.acknowledge((from, session), &message, now, &self.rows, &mut out);
                if !is_known {
                    primary.join((from, 0), &must_have, now, &self.rows, &self.push_dedup, &mut out);
                }
            }
            (Role::Primary(_), _) | (_, Message::Join | Message::Ack { .. }) => {}
            (_, Message::Begin { .. }) => self.begin((from, epoch, session), message),
            // It may be the primary already without knowing it: no lease of the present one goes on.
            (Role::Follower(_), Message::Heartbeat { .. }) if self.proposal.is_some() => {}
            (Role::Follower(follower), _) if (follower.primary, follower.session) == (from, session) => {
                (follower.heard, follower.is_ended) = (now, false);
                match follower.take(&message, &mut self.rows, &self.push_dedup) {
                    Ok(()) => {
                        let ack = follower.ack();
                        self.send(from, session, ack);
                    }
                    Err(_) => self.give_up(from, session),
                }
                if matches!(message, Message::HandOver) {
                    match self.is_in_sync() {
                        true => self.propose_promotion(),
                        // The primary thinks so. It will say it again.
                        false => self.actions.push(Action::Read),
                    }
                }
            }
            _ => {}
        }
        self.send_all(out);
    }

    /// Begins a session as a follower, or acknowledges its beginning again.
    fn begin(&mut self, (from, epoch, session): (Member, u64, u64), message: Message) {
        let Message::Begin { starts, tables, marks, barrier, placement } = message else { return };
        if let Role::Follower(follower) = &self.role
            && (follower.epoch, follower.session) == (epoch, session)
        {
            let ack = follower.ack();
            self.send(from, session, ack);
        } else if (epoch, session) > self.last_session && self.proposal.is_none() {
            self.last_session = (epoch, session);
            self.push_dedup.restore((*marks).clone());
            if self.rows.begin(tables, placement).is_err() {
                return self.give_up(from, session);
            }
            let follower = Follower::new((from, epoch, session), &starts, barrier, self.now);
            self.send(from, session, follower.ack());
            self.role = Role::Follower(Box::new(follower));
        }
    }

    /// Ends a session that this replica cannot follow.
    fn give_up(&mut self, from: Member, session: u64) {
        self.role = Role::Learner;
        self.send(from, session, Message::Ack { received: Vec::new(), part: 0, echo: 0, is_broken: true });
    }

    /// A process that has ended is not waited for.
    fn take_end(&mut self, member: Member) {
        match &mut self.role {
            Role::Follower(follower) if follower.primary == member => {
                follower.is_ended = true;
                // It may be in sync by now without knowing it.
                self.actions.push(Action::Read);
            }
            Role::Primary(primary) => primary.take_end(member),
            _ => {}
        }
    }

    /// Answers pushes that every follower has by now.
    fn answer(&mut self) {
        if !self.has_enough() {
            return;
        }
        let must_have = self.must_have();
        if let Role::Primary(primary) = &mut self.role {
            let answers = primary.answers(&must_have, self.rows.fault);
            self.actions
                .extend(answers.into_iter().map(|(request, answer)| Action::Answer { request, answer }));
        }
    }
}
