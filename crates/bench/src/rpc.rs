//! The transports side by side: the same pulls over each of them, in interleaved rounds, beside what the transport does
//! when it answers with a constant buffer, and beside gRPC. Knows no command line and prints nothing.
//!
//! Servers are processes of their own, as in a real deployment, each with a table of its own that is filled before. The
//! client is a thread per connection in this process. A turn is a closed loop with so many pulls under way; then, at half
//! of the rate that was found, pulls that are due at fixed times.

mod batches;
mod call;
mod child;
mod constant;
mod embedded;
mod frames;
mod options;
mod result;
mod rival;
mod serve;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sanderling_observe::Machine;
use sanderling_observe::machine::available_bytes;
use sanderling_server::framing;
use sanderling_store::Table;
use sanderling_transport::{ConnectOptions, TlsClient};

use crate::result::BenchError;
use crate::rounds::median;
use batches::{Batches, loaded_table, table_config};
use call::{Caller, Turn, Turns, together};
use child::{ServerProcess, pin_ourselves};
use embedded::EmbeddedCaller;
use frames::FramedCaller;
use rival::{BidiCaller, UnaryCaller};
use serve::CERTIFICATE;

pub use options::{Gather, Pinning, RpcOptions, Transport};
pub use result::{HalfLoad, RpcReport, RpcRow};
pub use rival::MALLOC;
pub use serve::{Place, Role, ServeOptions, Serving, start as serve};

/// Longest frame.
pub(crate) const FRAME_BYTES_MAX: u32 = 16 << 20;
/// An answer that has not come by then never will.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Batches whose rows are compared with what they must be.
const COMPARED: usize = 4;

/// How a server's process is started: a program, and its arguments but for the last one, which is added.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The program.
    pub program: &'a Path,
    /// Its first arguments.
    pub args: &'a [String],
}

/// Runs the benchmark. `progress` is told what comes next, how many steps are done, and of how many.
///
/// # Errors
/// [`BenchError`] for options out of range, for memory that is not there, for servers that do not start, and for answers
/// that are wrong.
pub fn run(
    options: &RpcOptions,
    launch: Launch<'_>,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<RpcReport, BenchError> {
    options.check()?;
    if let Some(available_bytes) = available_bytes()
        && available_bytes < options.needed_bytes()
    {
        let needed_bytes = options.needed_bytes();
        return Err(BenchError::Tables { rows: options.rows, needed_bytes, available_bytes });
    }
    let roles = roles(options);
    let cells = cells(options);
    let rows = cells.iter().filter(|cell| !cell.constant).count();
    let turns = cells.len() + if options.half_load { rows } else { 0 };
    let steps = roles.len() + 2 + options.rounds * turns;
    let mut done = 0;
    let mut step = |what: &str| {
        progress(what, done, steps);
        done += 1;
    };
    let folder =
        tempfile::tempdir().map_err(|error| BenchError::Server(format!("no folder for sockets: {error}")))?;
    let folder = folder.path();
    // Before this thread is bound to some of its processors.
    let machine = Machine::detect();
    let mut servers = Vec::new();
    for role in roles {
        step("starting servers and filling their tables");
        let serve = ServeOptions { role, options: options.clone(), folder: folder.to_owned() };
        servers.push(ServerProcess::start(launch.program, launch.args, &serve)?);
    }
    step("connecting, and comparing rows");
    let mut callers = connect(options, &servers, folder)?;
    let mut measured: Vec<Turns> = cells.iter().map(|_| Turns::default()).collect();
    for round in 0..options.rounds {
        for turn in 0..cells.len() {
            // The order is another one in every round.
            let at = (turn + round) % cells.len();
            let cell = cells[at];
            step(&cell.name());
            pin(&servers, cell.pinning)?;
            measured[at].add(&cell.closed(options, callers.of(cell)?)?);
        }
    }
    let mut offered: Vec<Turns> = cells.iter().map(|_| Turns::default()).collect();
    for _ in 0..if options.half_load { options.rounds } else { 0 } {
        for (at, cell) in cells.iter().enumerate().filter(|(_, cell)| !cell.constant) {
            step(&format!("{} at half load", cell.name()));
            pin(&servers, cell.pinning)?;
            let per_s = median(&measured[at].per_s) / 2.0;
            offered[at].add(&cell.open(options, per_s, callers.of(*cell)?)?);
        }
    }
    progress("", steps, steps);
    let results = cells.iter().enumerate().filter(|(_, cell)| !cell.constant).map(|(at, cell)| {
        let constant = cells.iter().position(|other| *other == Cell { constant: true, ..*cell });
        let half = options.half_load.then_some(&offered[at]);
        cell.row(&measured[at], constant.map(|at| &measured[at]), half)
    });
    Ok(RpcReport {
        machine,
        options: options.clone(),
        malloc: std::env::var(MALLOC.0).ok(),
        results: results.collect(),
    })
}

fn roles(options: &RpcOptions) -> Vec<Role> {
    let any = |of: fn(Transport) -> bool| options.transports.iter().any(|&one| of(one));
    let mut roles = Vec::new();
    if any(|one| one.has_constant() && one != Transport::Tls) {
        roles.push(Role::Frames);
    }
    if any(|one| one == Transport::Tls) {
        roles.push(Role::Tls);
    }
    if any(Transport::is_grpc) {
        roles.push(Role::Grpc);
    }
    roles
}

fn pin(servers: &[ServerProcess], pinning: Pinning) -> Result<(), BenchError> {
    servers.iter().try_for_each(|server| server.pin(pinning))?;
    pin_ourselves(pinning)
}

/// A measurement of each round.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    transport: Transport,
    in_flight: usize,
    pinning: Pinning,
    constant: bool,
}

fn cells(options: &RpcOptions) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &pinning in &options.pinnings {
        for &transport in &options.transports {
            for &in_flight in &options.in_flight {
                // Without anybody to wait for there is one call at a time.
                if transport == Transport::InProcess && in_flight != options.in_flight[0] {
                    continue;
                }
                let in_flight = if transport == Transport::InProcess { 1 } else { in_flight };
                cells.push(Cell { transport, in_flight, pinning, constant: false });
                if transport.has_constant() {
                    cells.push(Cell { transport, in_flight, pinning, constant: true });
                }
            }
        }
    }
    cells
}

impl Cell {
    fn name(&self) -> String {
        let constant = if self.constant { " constant" } else { "" };
        format!("{}{constant}, {} in flight, {}", self.transport, self.in_flight, self.pinning)
    }

    fn closed(&self, options: &RpcOptions, callers: &mut [Box<dyn Caller>]) -> Result<Turn, BenchError> {
        let duration = Duration::from_secs_f64(options.seconds);
        let calls = together(callers, |caller| caller.closed(self.in_flight, duration))?;
        Ok(Turn::of(&calls, options.calls))
    }

    fn open(
        &self,
        options: &RpcOptions,
        per_s: f64,
        callers: &mut [Box<dyn Caller>],
    ) -> Result<Turn, BenchError> {
        let duration = Duration::from_secs_f64(options.seconds);
        let per_s = per_s / callers.len() as f64;
        let calls = together(callers, |caller| caller.open(per_s, duration))?;
        Ok(Turn::of(&calls, options.calls))
    }

    fn row(&self, this: &Turns, constant: Option<&Turns>, half: Option<&Turns>) -> RpcRow {
        let requests_per_s = median(&this.per_s);
        let ratios = |other: &Turns| {
            median(&this.per_s.iter().zip(&other.per_s).map(|(this, other)| this / other).collect::<Vec<_>>())
        };
        RpcRow {
            transport: self.transport,
            in_flight: self.in_flight,
            pinning: self.pinning,
            requests_per_s,
            rounds: this.per_s.clone(),
            constant_per_s: constant.map(|constant| median(&constant.per_s)),
            ratio: constant.map(ratios),
            call: this.call(),
            request: this.request(),
            half_load: half.map(|half| HalfLoad {
                offered_per_s: requests_per_s / 2.0,
                call: half.call(),
                p99_to_p50: median(&half.p99_to_p50),
            }),
        }
    }
}

/// The connections of every transport, to the server and to the server of constants.
struct Callers {
    all: HashMap<(Transport, bool), Vec<Box<dyn Caller>>>,
}

impl Callers {
    fn of(&mut self, cell: Cell) -> Result<&mut [Box<dyn Caller>], BenchError> {
        let found = self.all.get_mut(&(cell.transport, cell.constant));
        found
            .map(Vec::as_mut_slice)
            .ok_or_else(|| BenchError::Server(format!("no server for {}", cell.transport)))
    }
}

/// Connects to everything that is asked for, and compares some answers of each with what they must be.
fn connect(options: &RpcOptions, servers: &[ServerProcess], folder: &Path) -> Result<Callers, BenchError> {
    let batches = Arc::new(Batches::new(options));
    let empty = Table::new(table_config(options))?;
    let mut plain = ConnectOptions::new(framing(FRAME_BYTES_MAX));
    plain.spin_us = options.spin_us;
    let runtime = Arc::new(rival::runtime()?);
    let mut callers = Callers { all: HashMap::new() };
    if options.transports.contains(&Transport::InProcess) {
        let table = Arc::new(loaded_table(options)?);
        let caller = |_| -> Box<dyn Caller> {
            Box::new(EmbeddedCaller::new(Arc::clone(&table), Arc::clone(&batches), options.batch))
        };
        callers.all.insert((Transport::InProcess, false), (0..options.connections).map(caller).collect());
    }
    for place in servers.iter().flat_map(|server| &server.places) {
        let Place { transport, constant, address } = place;
        if !options.transports.contains(transport) {
            continue;
        }
        let mut way = plain.clone();
        if *transport == Transport::Tls {
            way.tls = Some(TlsClient::from_ca_file(&folder.join(CERTIFICATE))?);
        }
        let caller = |_| -> Result<Box<dyn Caller>, BenchError> {
            if transport.has_constant() {
                let to = address.parse().map_err(sanderling_transport::Error::from)?;
                let open = if *constant { FramedCaller::bare } else { FramedCaller::to_server };
                return Ok(Box::new(open(*transport, &to, &way, options, &batches)?));
            }
            let to = address.parse().map_err(|error| BenchError::Grpc(format!("{address}: {error}")))?;
            let tuned = *transport != Transport::GrpcUnaryUntuned;
            let channel = rival::connect(&runtime, to, tuned)?;
            Ok(if *transport == Transport::GrpcBidi {
                Box::new(BidiCaller::new(&runtime, channel, &batches, options.dim))
            } else {
                Box::new(UnaryCaller::new(&runtime, channel, &batches, options.dim, *transport))
            })
        };
        let opened = (0..options.connections).map(caller).collect::<Result<Vec<_>, _>>()?;
        callers.all.insert((*transport, *constant), opened);
    }
    for (&(transport, constant), callers) in &mut callers.all {
        for batch in 0..COMPARED.min(batches.len()) {
            let mut expected = batches.expected(batch, &empty)?;
            if constant {
                expected.fill(0.0);
            }
            for caller in &mut *callers {
                if caller.rows(batch)? != expected {
                    return Err(BenchError::Answer(transport));
                }
            }
        }
    }
    Ok(callers)
}
