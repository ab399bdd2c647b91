//! A run as a result: what was asked, and all that was observed, in the form that is kept. Computes nothing.

use std::collections::BTreeMap;
use std::time::SystemTime;

use sanderling_observe::Machine;

use super::{Length, Plan, Ran, Schedule, concurrency, verdict};
use crate::result::{Asked, COUNT_MAX, ClientCpu, Limit, Load, RunResult, Script, ServerLatency, Versions};
use crate::target::Target;

/// The version of Rune that is pinned.
const RUNE: &str = "0.14.2";

pub(super) fn result(target: &Target, plan: &Plan, ran: Ran, server: Vec<ServerLatency>) -> RunResult {
    let served = target.cluster().is_some();
    let validity = verdict::validity(plan, served, &ran);
    let busiest = ran.ends.iter().map(|end| end.cpu).fold(0.0, f64::max);
    RunResult {
        label: String::new(),
        began_unix_s: ran
            .began
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0.0, |since| since.as_secs_f64()),
        asked: asked(target, plan),
        versions: Versions { sanderling: env!("CARGO_PKG_VERSION").to_owned(), rune: RUNE.to_owned() },
        machine: Machine::detect(),
        measured: ran.measured,
        client: ClientCpu {
            user_s: ran.cpu.user_s,
            system_s: ran.cpu.system_s,
            busiest_thread: Some(busiest.min(1.0)),
        },
        server,
        validity,
    }
}

fn asked(target: &Target, plan: &Plan) -> Asked {
    let params = plan.program.describe().map(|about| about.params).unwrap_or_default();
    let params: BTreeMap<String, String> =
        params.iter().map(|param| (param.name.clone(), param.value.to_string())).collect();
    let seeds = [("keys", plan.seeds.keys), ("sizes", plan.seeds.sizes), ("arrivals", plan.seeds.arrivals)];
    Asked {
        address: target.address().to_owned(),
        script: Script { name: plan.program.name.clone(), source: plan.program.source.clone(), params },
        functions: plan.mix.parts().to_vec(),
        seeds: seeds.map(|(name, seed)| (name.to_owned(), seed)).into(),
        threads: plan.threads,
        concurrency: plan.threads * concurrency(target, plan),
        load: match plan.schedule {
            Schedule::Closed => Load::Closed,
            Schedule::Open { per_s, arrivals } => {
                Load::Open { rate_per_s: per_s, arrivals: arrivals.to_string() }
            }
        },
        warmup_s: plan.warmup.as_secs_f64(),
        limit: match plan.length {
            Length::Time(window) => Limit::Seconds { seconds: window.as_secs_f64() },
            Length::Calls(calls) => Limit::Calls { calls },
        },
        cycles: (plan.cycles != (0..u64::MAX)).then_some((plan.cycles.start, plan.cycles.end.min(COUNT_MAX))),
        objectives: Vec::new(),
    }
}
