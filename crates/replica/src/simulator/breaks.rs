//! Faults of the simulated machines and network.

use super::world::{Delivery, World};
use crate::fault::Fault;
use crate::group::{Group, Member};
use crate::message::Event;
use crate::node::Role;

impl World {
    /// Crashes, pauses, cuts or heals something, or hands the primary over.
    pub(super) fn break_something(&mut self) {
        let (nodes, now) = (self.machines.len() as u64, self.now);
        let at = self.rng.below(nodes) as usize;
        let kind = self.rng.below(9);
        self.notes.push(format!("{now}: fault {kind} of {at}"));
        match kind {
            0 | 1 if self.survives(at) => self.crash(at),
            2 => {
                self.machines[at].paused_until = now + self.rng.below(200);
                self.counts.pauses += 1;
            }
            3 | 4 => {
                // One-way cuts, also from and to the registry.
                let (from, to) = (self.rng.below(nodes + 1) as usize, self.rng.below(nodes + 1) as usize);
                if from != to {
                    self.notes.push(format!("{now}: cut {from} to {to}"));
                    self.cuts.insert((from, to));
                    self.counts.cuts += 1;
                }
            }
            5 | 6 => self.cuts.clear(),
            7 => {
                // Clients still reach it, other machines do not.
                for other in (0..=self.machines.len()).filter(|other| *other != at) {
                    self.cuts.extend([(at, other), (other, at)]);
                }
                self.counts.cuts += 1;
            }
            _ => {
                (0..self.machines.len()).for_each(|at| self.ask_node(at, Event::HandOver));
                self.counts.hand_overs += 1;
            }
        }
    }

    /// Now and then a primary crashes soon after its change of the record, and nothing that it sends in between arrives.
    pub(super) fn plan_crash(&mut self, at: usize, group: &Group) {
        if !self.is_healed() && self.now > 60 && self.rng.below(5) == 0 {
            self.notes.push(format!("{}: {at} is cut off before a crash", self.now));
            self.cuts.extend(group.in_sync.iter().map(|member| (at, member.server as usize)));
            self.crash = Some((None, at));
        }
    }

    /// The change of a machine was made.
    pub(super) fn doom(&mut self, member: Member) {
        let soon = self.now + self.rng.below(4);
        if let Some((due, at)) = &mut self.crash
            && *at == member.server as usize
        {
            *due = due.or(Some(soon));
        }
    }

    pub(super) fn crash_as_planned(&mut self) {
        let Some((Some(due), at)) = self.crash else { return };
        if due <= self.now {
            self.crash = None;
            if !self.is_healed() && self.machines[at].node.is_some() && self.survives(at) {
                self.notes.push(format!("{}: crash of {at}", self.now));
                self.crash(at);
            }
        }
    }

    fn crash(&mut self, at: usize) {
        let (now, member) = (self.now, self.machines[at].member);
        self.machines[at].node = None;
        self.machines[at].held.clear();
        self.machines[at].starts_at = now + self.rng.below(150);
        self.counts.crashes += 1;
        // Its last change of the record could leave the group with no member that is alive.
        self.queue.retain(|_, delivery| match delivery {
            Delivery::CompareAndSet(from, ..) => *from != member,
            _ => true,
        });
    }

    /// Whether every acknowledged push outlives a crash of this machine.
    fn survives(&mut self, victim: usize) -> bool {
        let Some(group) = &self.registry.group else { return false };
        group.in_sync.iter().chain([&group.primary]).any(|member| {
            let machine = &self.machines[member.server as usize];
            let role = machine.node.as_ref().map(|node| &node.role);
            member.server as usize != victim
                && (machine.member == *member || self.fault == Fault::MemberWithoutBoot)
                && role.is_some_and(|role| !matches!(role, Role::Learner))
        })
    }
}
