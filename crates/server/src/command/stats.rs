//! The reply with statistics.

use sanderling_wire::{Counter, Latency, Reply, Statistics, StatsScope, limit};

use crate::refusal::Refusal;
use crate::session::Handled;
use crate::state::State;

pub(crate) fn stats(
    state: &State,
    scope: StatsScope,
    write: &mut dyn FnMut(Reply<'_>) -> Result<Handled, Refusal>,
) -> Result<Handled, Refusal> {
    let (latencies, counters) = (state.latencies(scope), state.counters());
    let latencies = latencies.iter().take(limit::STATS_MAX).map(|(name, summary)| Latency {
        name: cut(name),
        count: summary.count,
        average_ns: summary.average_ns,
        min_ns: summary.min_ns,
        max_ns: summary.max_ns,
        p50_ns: summary.p50_ns,
        p95_ns: summary.p95_ns,
        p99_ns: summary.p99_ns,
        p999_ns: summary.p999_ns,
    });
    let counters = counters.iter().map(|&(name, value)| Counter { name, value });
    let uptime_us = state.started.elapsed().as_micros() as u64;
    write(Reply::Stats(Statistics {
        uptime_us,
        latencies: latencies.collect(),
        counters: counters.collect(),
    }))
}

/// Cuts a name to the wire's limit. Clients choose their names freely.
fn cut(name: &str) -> &str {
    let mut end = name.len().min(limit::NAME_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}
