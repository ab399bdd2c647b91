//! Pulls over a transport of ours: frames of the wire format over one connection, as many under way as asked for. Against
//! a server, or against one that answers with a constant: then without hello and without checksums.
//!
//! It measures the exchange below the client's sessions, which have room for one request at a time: a request is
//! encoded into the memory that the transport lends, and an answer is checked and decoded where it was received.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_transport::{Address, ConnectOptions, Connection, Received, connect};
use sanderling_wire::{
    Absent, Agreed, Features, Frame, Hello, Kind, Offer, Parsed, Pull, PullReply, PullShape, Reply, Request,
    RowFormat, seal,
};

use crate::result::BenchError;
use crate::rpc::batches::{Batches, TABLE};
use crate::rpc::call::{Call, Caller, Schedule};
use crate::rpc::options::{RpcOptions, Transport};
use crate::rpc::{ANSWER_WITHIN, FRAME_BYTES_MAX};

/// Requests and answers of one connection.
pub(crate) struct FramedCaller {
    transport: Transport,
    connection: Connection,
    agreed: Agreed,
    table: u32,
    dim: u32,
    batches: Arc<Batches>,
    /// Most calls of an open loop under way.
    open_in_flight: usize,
    /// Number of the turn's first call, which its requests' ids start from.
    first: usize,
}

/// The negotiated features of a server of constants.
pub(crate) const BARE: Agreed =
    Agreed { version: 1, features: Features::NO_CHECKSUM, frame_bytes_max: FRAME_BYTES_MAX };

impl FramedCaller {
    /// Connects to a server of constants.
    pub(crate) fn bare(
        transport: Transport,
        address: &Address,
        connect_options: &ConnectOptions,
        options: &RpcOptions,
        batches: &Arc<Batches>,
    ) -> Result<FramedCaller, BenchError> {
        let connection = connect(address, connect_options)?;
        let (agreed, dim, batches) = (BARE, options.dim as u32, Arc::clone(batches));
        let (table, open_in_flight, first) = (1, options.open_in_flight(), 0);
        Ok(FramedCaller { transport, connection, agreed, table, dim, batches, open_in_flight, first })
    }

    /// Connects to a server and opens the table.
    pub(crate) fn to_server(
        transport: Transport,
        address: &Address,
        connect_options: &ConnectOptions,
        options: &RpcOptions,
        batches: &Arc<Batches>,
    ) -> Result<FramedCaller, BenchError> {
        let mut caller = FramedCaller::bare(transport, address, connect_options, options, batches)?;
        // As the client does.
        let features = if address.in_memory() { Features::NO_CHECKSUM } else { Features::NONE };
        let offer = Offer { frame_bytes_max: FRAME_BYTES_MAX, ..Offer::of(features) };
        caller.agreed = Agreed::BEFORE_HELLO;
        let hello = Request::Hello(Hello { offer, token: "", name: "bench rpc" });
        caller.agreed = caller.ask(&hello, |reply| match reply {
            Reply::Hello(identity) => offer.accept(identity.agreed).ok(),
            _ => None,
        })?;
        caller.table = caller.ask(&Request::Open(TABLE), |reply| match reply {
            Reply::Open(info) => Some(info.table),
            _ => None,
        })?;
        Ok(caller)
    }

    fn ask<T>(
        &mut self,
        request: &Request<'_>,
        read: impl FnOnce(&Reply<'_>) -> Option<T>,
    ) -> Result<T, BenchError> {
        let Connection { sender, receiver } = &mut self.connection;
        let mut slot = sender.frame(request.frame_bytes()?)?;
        let bytes = request.encode(&self.agreed, 0, 0, &mut slot)?;
        slot.commit(bytes);
        sender.flush()?;
        let frame = receiver.receive(Some(Instant::now() + ANSWER_WITHIN))?;
        let (_, reply) = decode(frame.ok_or(BenchError::Answer(self.transport))?, &self.agreed)?;
        read(&reply).ok_or(BenchError::Answer(self.transport))
    }

    /// Puts a pull into the send buffer; its id is the number of the call.
    fn send(&mut self, call: usize) -> Result<(), BenchError> {
        let (absent, format) = (Absent::Zero, RowFormat::F32);
        let keys = self.batches.keys(self.first + call);
        let request = Request::Pull(Pull { table: self.table, dim: self.dim, absent, format, keys });
        let mut slot = self.connection.sender.frame(request.frame_bytes()?)?;
        let bytes = request.encode(&self.agreed, call as u64, 0, &mut slot)?;
        slot.commit(bytes);
        Ok(())
    }

    /// Waits for an answer; which call's it is.
    fn receive(&mut self, until: Instant) -> Result<usize, BenchError> {
        let frame = self.connection.receiver.receive(Some(until))?;
        let answer = pulled(frame.ok_or(BenchError::Answer(self.transport))?, &self.agreed)?;
        self.check(answer)
    }

    /// Takes an answer that is there; which call's it is.
    fn try_receive(&mut self) -> Result<Option<usize>, BenchError> {
        match self.connection.receiver.try_receive()? {
            Received::Nothing => Ok(None),
            Received::End => Err(BenchError::Answer(self.transport)),
            Received::Frame(frame) => {
                let answer = pulled(frame, &self.agreed)?;
                self.check(answer).map(Some)
            }
        }
    }

    /// Has an answer the rows of all keys?
    fn check(&self, answer: Option<Shape>) -> Result<usize, BenchError> {
        match answer {
            Some(Shape { call, values, absent: 0 }) if values == self.batches.batch() * self.dim as usize => {
                Ok(call)
            }
            _ => Err(BenchError::Answer(self.transport)),
        }
    }
}

/// The sizes of an answer to a pull.
#[derive(Clone, Copy)]
struct Shape {
    call: usize,
    values: usize,
    absent: usize,
}

fn decode<'a>(frame: &'a [u8], agreed: &Agreed) -> Result<(u64, Reply<'a>), BenchError> {
    let Parsed::Frame(frame) = Frame::parse(frame, agreed)? else {
        return Err(BenchError::Server("a part of a frame".to_owned()));
    };
    match Reply::decode(&frame)? {
        Reply::Failed(failure) => Err(BenchError::Server(format!("{}: {}", failure.fault, failure.reason))),
        reply => Ok((frame.header.id, reply)),
    }
}

fn pulled(frame: &[u8], agreed: &Agreed) -> Result<Option<Shape>, BenchError> {
    Ok(match decode(frame, agreed)? {
        (id, Reply::Pull(reply)) => {
            Some(Shape { call: id as usize, values: reply.values.len(), absent: reply.absent.count() })
        }
        _ => None,
    })
}

impl Caller for FramedCaller {
    fn rows(&mut self, batch: usize) -> Result<Vec<f32>, BenchError> {
        self.first = 0;
        self.send(batch)?;
        self.connection.sender.flush()?;
        let frame = self.connection.receiver.receive(Some(Instant::now() + ANSWER_WITHIN))?;
        match decode(frame.ok_or(BenchError::Answer(self.transport))?, &self.agreed)? {
            (id, Reply::Pull(reply)) if id == batch as u64 => {
                let mut rows = vec![0.0; reply.values.len()];
                reply.values.copy_to(&mut rows);
                Ok(rows)
            }
            _ => Err(BenchError::Answer(self.transport)),
        }
    }

    fn closed(&mut self, in_flight: usize, duration: Duration) -> Result<Vec<Call>, BenchError> {
        let start = Instant::now();
        let until = start + duration + ANSWER_WITHIN;
        let (mut calls, mut under_way) = (Vec::new(), 0);
        loop {
            let mut sent = start.elapsed();
            // One at least: who comes late to its turn has measured something, too.
            while under_way < in_flight && (sent < duration || calls.is_empty()) {
                self.send(calls.len())?;
                calls.push(Call { sent, done: Duration::ZERO });
                under_way += 1;
                sent = start.elapsed();
            }
            if under_way == 0 {
                self.first += calls.len();
                return Ok(calls);
            }
            self.connection.sender.flush()?;
            let call = self.receive(until)?;
            calls.get_mut(call).ok_or(BenchError::Answer(self.transport))?.done = start.elapsed();
            under_way -= 1;
        }
    }

    fn open(&mut self, per_s: f64, duration: Duration) -> Result<Vec<Call>, BenchError> {
        let schedule = Schedule::new(per_s, duration);
        let start = Instant::now();
        let until = duration + ANSWER_WITHIN;
        let mut calls = Vec::with_capacity(schedule.calls());
        let mut done = 0;
        while done < schedule.calls() {
            let now = start.elapsed();
            let sent = calls.len();
            while calls.len() - done < self.open_in_flight
                && let Some(due) = schedule.due_by(calls.len(), now)
            {
                self.send(calls.len())?;
                calls.push(Call { sent: due, done: Duration::ZERO });
            }
            if calls.len() > sent {
                self.connection.sender.flush()?;
            }
            // Awake all the time: whoever sends late because it slept would blame the server.
            while let Some(call) = self.try_receive()? {
                calls.get_mut(call).ok_or(BenchError::Answer(self.transport))?.done = start.elapsed();
                done += 1;
            }
            if now > until {
                return Err(BenchError::Answer(self.transport));
            }
            std::hint::spin_loop();
        }
        self.first += calls.len();
        Ok(calls)
    }
}

/// The answer of a server of constants to a pull: all rows, all zero.
pub(crate) fn constant_reply(options: &RpcOptions) -> Result<Vec<u8>, BenchError> {
    let (keys, dim, format) = (options.batch, options.dim as u32, RowFormat::F32);
    let shape = PullShape { keys, rows: keys, dim, format };
    let mut words = vec![0_u64; shape.frame_bytes()?.div_ceil(size_of::<u64>())];
    let frame = bytemuck::cast_slice_mut(&mut words);
    PullReply::begin(Kind::Pull, shape, &BARE, 0, frame)?;
    seal(frame, &BARE);
    Ok(frame.to_vec())
}
