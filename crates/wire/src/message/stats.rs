//! Latencies and counters of a server.

use crate::WireError;
use crate::limit::{NAME_BYTES_MAX, STATS_MAX};
use crate::reader::Reader;
use crate::writer::Writer;

/// The grouping of statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsScope {
    /// One latency per command.
    Commands,
    /// One latency per peer and command.
    Peers,
}

impl StatsScope {
    pub(crate) fn write(self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u8(self as u8);
        out.pad();
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<StatsScope, WireError> {
        let peers = from.bool("scope")?;
        from.pad("scope")?;
        Ok(if peers { StatsScope::Peers } else { StatsScope::Commands })
    }
}

/// Reply to a request for statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistics<'a> {
    /// Microseconds since the server started.
    pub uptime_us: u64,
    /// Latency distributions since then.
    pub latencies: Vec<Latency<'a>>,
    /// Named counters.
    pub counters: Vec<Counter<'a>>,
}

impl<'a> Statistics<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.uptime_us);
        out.count("latencies", self.latencies.len(), STATS_MAX)?;
        out.count("counters", self.counters.len(), STATS_MAX)?;
        self.latencies.iter().try_for_each(|latency| latency.write(out))?;
        self.counters.iter().try_for_each(|counter| counter.write(out))
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Statistics<'a>, WireError> {
        let uptime_us = from.u64("uptime_us")?;
        let latency_count = from.list("latencies", STATS_MAX, Latency::BYTES_MIN)?;
        let counter_count = from.list("counters", STATS_MAX, Counter::BYTES_MIN)?;
        let mut latencies = Vec::with_capacity(latency_count);
        for _ in 0..latency_count {
            latencies.push(Latency::read(from)?);
        }
        let mut counters = Vec::with_capacity(counter_count);
        for _ in 0..counter_count {
            counters.push(Counter::read(from)?);
        }
        Ok(Statistics { uptime_us, latencies, counters })
    }
}

/// A distribution of durations, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // numbers as they are called everywhere
pub struct Latency<'a> {
    /// The command, or peer and command.
    pub name: &'a str,
    pub count: u64,
    pub average_ns: u64,
    pub min_ns: u64,
    pub max_ns: u64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
}

impl<'a> Latency<'a> {
    /// Length with an empty name.
    const BYTES_MIN: usize = 72;

    fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        let durations = [self.average_ns, self.min_ns, self.max_ns, self.p50_ns];
        out.u64(self.count);
        durations.iter().for_each(|&ns| out.u64(ns));
        [self.p95_ns, self.p99_ns, self.p999_ns].iter().for_each(|&ns| out.u64(ns));
        out.text("name of a latency", self.name, NAME_BYTES_MAX)
    }

    fn read(from: &mut Reader<'a>) -> Result<Latency<'a>, WireError> {
        Ok(Latency {
            count: from.u64("count")?,
            average_ns: from.u64("average_ns")?,
            min_ns: from.u64("min_ns")?,
            max_ns: from.u64("max_ns")?,
            p50_ns: from.u64("p50_ns")?,
            p95_ns: from.u64("p95_ns")?,
            p99_ns: from.u64("p99_ns")?,
            p999_ns: from.u64("p999_ns")?,
            name: from.text("name of a latency", NAME_BYTES_MAX)?,
        })
    }
}

/// A named number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter<'a> {
    /// Name, with the unit last.
    pub name: &'a str,
    /// Its value.
    pub value: u64,
}

impl<'a> Counter<'a> {
    /// Length with an empty name.
    const BYTES_MIN: usize = 16;

    fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.value);
        out.text("name of a counter", self.name, NAME_BYTES_MAX)
    }

    fn read(from: &mut Reader<'a>) -> Result<Counter<'a>, WireError> {
        let value = from.u64("value of a counter")?;
        Ok(Counter { name: from.text("name of a counter", NAME_BYTES_MAX)?, value })
    }
}
