//! Answers of a hub, applied to the trainer's state of that hub. Sends no request.

use std::collections::BTreeSet;

use sanderling_sample::{PackedBatch, PackedBuffer};
use sanderling_wire::{
    Ahead, Features, Frame, Outcome, Parsed, Reply, Request, Subscribe, Subscribed, WireError, on_one_line,
};

use super::error::HubError;
use super::full_batches::Answer;
use super::link::{Announced, Link, Phase, UnsubscribeState};
use super::{Delivered, FedBatch};

/// Longest pause that a hub may ask for.
const RETRY_MAX_US: u64 = 1_000_000;

impl Link {
    /// Processes a frame; minibatches are put into spare buffers.
    pub(super) fn receive(&mut self, now_us: u64, bytes: &[u8], spare: &mut Vec<PackedBuffer>) {
        self.heard_us = now_us;
        if let Err(error) = self.take_frame(now_us, bytes, spare) {
            self.broken(&error);
        }
        if self.error.is_some() {
            self.phase = Phase::Closing { until_us: u64::MAX };
        }
    }

    fn take_frame(
        &mut self,
        now_us: u64,
        bytes: &[u8],
        spare: &mut Vec<PackedBuffer>,
    ) -> Result<(), WireError> {
        let Parsed::Frame(frame) = Frame::parse(bytes, &self.agreed)? else {
            let (needed, found) = (bytes.len() as u64 + 1, bytes.len() as u64);
            return Err(WireError::Cut { what: "frame", needed, found });
        };
        let mut unpacker = std::mem::take(&mut self.unpacker);
        let taken = match unpacker.unpack(frame, &self.agreed) {
            Ok(frame) => self.take_plain(now_us, &frame, spare),
            Err(error) => Err(error),
        };
        self.unpacker = unpacker;
        taken
    }

    fn take_plain(
        &mut self,
        now_us: u64,
        frame: &Frame<'_>,
        spare: &mut Vec<PackedBuffer>,
    ) -> Result<(), WireError> {
        let id = frame.header.id;
        if !self.is_connected() {
            return Ok(());
        }
        match (self.phase, Reply::decode(frame)?) {
            (_, Reply::Failed(failure)) => {
                // A hub that is about to stop will be back, or its successor.
                if failure.fault.is_transient() {
                    self.cause = on_one_line(failure.reason);
                    self.give_up(now_us);
                } else {
                    let reason = format!("{} ({})", on_one_line(failure.reason), failure.fault);
                    self.error = Some(HubError::Refused { hub: self.hub.clone(), reason });
                }
            }
            (Phase::Greeting, Reply::Hello(identity)) => {
                self.agreed = self.offer.accept(identity.agreed)?;
                self.phase = Phase::Subscribing;
                let held: Vec<u64> = self.held.iter().chain(&self.used).copied().collect();
                let (trainer, options) = (self.trainer.clone(), self.options.clone());
                let subscribe = Subscribe {
                    trainer: &trainer,
                    instance: options.instance,
                    stream: self.stream,
                    window: options.window,
                    rank: options.rank,
                    held: &held,
                };
                self.put(&Request::Subscribe(subscribe), 0);
            }
            (Phase::Subscribing, Reply::Subscribe(subscribed)) => self.subscribed(&subscribed),
            (Phase::Describing, Reply::Describe(text)) => {
                self.description = Some(text.to_owned());
                self.up();
            }
            (Phase::Up, Reply::Leave(left)) if self.unsubscribe == UnsubscribeState::Said => {
                self.late += left.late.len() as u64;
                self.unsubscribe = UnsubscribeState::Over;
                self.phase = Phase::Closing { until_us: u64::MAX };
            }
            (Phase::Up, Reply::Next(reply)) => {
                if self.asked.remove(&id).is_none() {
                    return Ok(());
                }
                self.late += reply.late.len() as u64;
                self.outcome(now_us, reply.outcome, spare);
            }
            (Phase::Up, Reply::Keys(outcome)) => self.whole(now_us, id, outcome),
            (_, Reply::Goaway(goaway)) => {
                self.cause = on_one_line(goaway.reason);
                self.give_up(now_us);
            }
            (_, reply) => {
                return Err(WireError::Direction {
                    kind: reply.kind(),
                    expected: "an answer to what was asked",
                });
            }
        }
        Ok(())
    }

    fn subscribed(&mut self, subscribed: &Subscribed<'_>) {
        if self.stream != 0 && self.stream != subscribed.stream {
            self.error = Some(HubError::Restarted { hub: self.hub.clone() });
            return;
        }
        let columns: Vec<_> =
            subscribed.columns.iter().map(|column| (column.name.to_owned(), column.weighted)).collect();
        // The columns are announced to the reader once and may not change.
        if self.known.as_ref().is_some_and(|known| known.columns != columns) {
            let reason = "its features have changed: restart the trainers".to_owned();
            self.error = Some(HubError::Protocol { hub: self.hub.clone(), reason });
            return;
        }
        self.stream = subscribed.stream;
        self.known = Some(Announced {
            columns,
            passes: subscribed.passes,
            stride: subscribed.stride,
            rows: subscribed.rows,
            window: subscribed.window,
        });
        let late: BTreeSet<u64> = subscribed.late.iter().copied().collect();
        self.late += late.len() as u64;
        self.held.retain(|number| !late.contains(number));
        self.used.retain(|number| !late.contains(number));
        self.traced.retain(|(number, _)| !late.contains(number));
        // They are leased to other trainers now and must not be used here.
        self.ready.retain(|delivered| !late.contains(&delivered.number));
        if self.description.is_none() && self.agreed.features.has(Features::DESCRIBE) {
            self.phase = Phase::Describing;
            self.put(&Request::Describe, 0);
        } else {
            self.up();
        }
    }

    fn up(&mut self) {
        (self.phase, self.attempts, self.down_since_us) = (Phase::Up, 0, None);
        (self.introduced, self.wait_until_us) = (true, 0);
    }

    fn outcome(&mut self, now_us: u64, outcome: Outcome<'_>, spare: &mut Vec<PackedBuffer>) {
        match outcome {
            Outcome::Batch { pass, number, payload, .. } => {
                let parsed = self.parse(payload, spare.pop().unwrap_or_default());
                self.deliver(pass, number, parsed.map(|batch| (batch, None)));
            }
            Outcome::Fed { pass, number, payload, ahead, .. } => {
                let parsed = self.parse(payload, spare.pop().unwrap_or_default());
                let parsed = parsed.and_then(|batch| {
                    let fed = self.check_ahead(now_us, &batch, &ahead)?;
                    Ok((batch, Some(Box::new(fed))))
                });
                self.deliver(pass, number, parsed);
            }
            Outcome::Wait { retry_after_us } => {
                self.waits += 1;
                self.starved = true;
                self.wait_until_us = now_us + retry_after_us.min(RETRY_MAX_US);
            }
            Outcome::Over => {
                self.over = true;
                self.phase = Phase::Closing { until_us: u64::MAX };
            }
            Outcome::Failed { reason } => {
                let (hub, reason) = (self.hub.clone(), on_one_line(reason));
                self.error = Some(HubError::Failed { hub, reason });
            }
            Outcome::Nothing => {}
        }
    }

    fn parse(&self, payload: &[u8], mut buffer: PackedBuffer) -> Result<PackedBatch, String> {
        buffer.resize(payload.len()).copy_from_slice(payload);
        let parsed = PackedBatch::parse(buffer).map_err(|error| error.to_string());
        parsed.and_then(|batch| self.check_columns(batch))
    }

    fn deliver(
        &mut self,
        pass: u64,
        number: u64,
        parsed: Result<(PackedBatch, Option<Box<FedBatch>>), String>,
    ) {
        self.starved = false;
        match parsed {
            Ok((batch, fed)) if self.held.insert(number) => {
                self.ready.push_back(Delivered { hub: self.index, pass, number, batch, fed });
            }
            // A duplicate of a minibatch that is here.
            Ok(_) => {}
            Err(reason) => self.no_minibatch(number, &reason),
        }
    }

    fn no_minibatch(&mut self, number: u64, reason: &str) {
        let reason = format!("minibatch {number} {reason}");
        self.error = Some(HubError::Protocol { hub: self.hub.clone(), reason });
    }

    /// Checks that the fed columns exist and that the minibatch lacks their keys.
    fn check_ahead(&self, now_us: u64, batch: &PackedBatch, ahead: &Ahead<'_>) -> Result<FedBatch, String> {
        if !self.agreed.features.has(Features::FED) {
            return Err("lacks keys, which this trainer did not accept".to_owned());
        }
        let &Ahead { batch: number, age_us, placement_version, columns, servers, keys } = ahead;
        let rows = batch.rows();
        for &column in columns {
            if column as usize >= batch.columns() {
                return Err(format!("has {} columns, but column {column} was fed", batch.columns()));
            }
            if !rows.keys(column as usize).is_empty() {
                return Err(format!("has keys in column {column}, which were fed"));
            }
        }
        Ok(FedBatch {
            batch: number,
            columns: columns.to_vec(),
            placement_version,
            servers: servers as usize,
            keys: keys.to_vec(),
            age: std::time::Duration::from_micros(age_us),
            received_us: now_us,
        })
    }

    /// Processes a minibatch with all its keys, or the reason that there is none.
    fn whole(&mut self, now_us: u64, id: u64, outcome: Outcome<'_>) {
        let Some(asked) = self.full_requested.remove(&id) else { return };
        let answer: Answer = match outcome {
            Outcome::Batch { number, payload, .. } if number == asked.number => {
                match self.parse(payload, PackedBuffer::new()) {
                    Ok(batch) => Some(batch),
                    Err(reason) => return self.no_minibatch(number, &reason),
                }
            }
            Outcome::Batch { number, .. } | Outcome::Fed { number, .. } => {
                return self.no_minibatch(
                    number,
                    &format!("is no answer to a request for all keys of {}", asked.number),
                );
            }
            Outcome::Wait { retry_after_us } => {
                self.whole_until_us = now_us + retry_after_us.min(RETRY_MAX_US);
                return self.full_wanted.push_back(asked);
            }
            Outcome::Failed { reason } => {
                let (hub, reason) = (self.hub.clone(), on_one_line(reason));
                self.error = Some(HubError::Failed { hub, reason });
                return;
            }
            Outcome::Over | Outcome::Nothing => None,
        };
        self.full_batches.push((asked.ticket, answer));
    }

    /// Checks that a minibatch has the columns that were announced.
    fn check_columns(&self, batch: PackedBatch) -> Result<PackedBatch, String> {
        let announced = self.known.as_ref().map_or(&[][..], |known| &known.columns);
        let (found, rows) = (batch.columns(), batch.rows());
        if found != announced.len() {
            return Err(format!("has {found} columns, not the {} announced", announced.len()));
        }
        let other =
            announced.iter().enumerate().find(|&(at, (_, weighted))| rows.values(at).is_some() != *weighted);
        match other {
            Some((_, (name, true))) => Err(format!("lacks the values of column {name:?}")),
            Some((_, (name, false))) => {
                Err(format!("has values in column {name:?}, which were not announced"))
            }
            None => Ok(batch),
        }
    }
}
