//! Which part of a training holds it up, told from the time of its stages. Knows no thread and no clock.

use sanderling_observe::StageTotal;

use super::ServerCalls;
use super::numbers::percent;

/// Below this share of their time spent waiting, workers are not held up.
const WAIT_SHARE: f64 = 0.05;
/// The stages of each part, of workers alone, of jobs and of feed queues.
const PARTS: [(&str, &[&str]); 6] = [
    ("the reader", &["read", "decode", "parse", "shuffle", "assemble"]),
    ("pulls", &["pull", "EmbeddingLookup"]),
    ("compute", &["compute", "score"]),
    ("pushes", &["push", "PushGrad"]),
    ("validation", &["evaluate"]),
    ("saves", &["save"]),
];
/// Stages in which workers train or wait for something to train on.
const TRAINING: [&str; 6] = ["wait", "assemble", "pull", "compute", "score", "push"];

/// In a sentence, which part holds the training up; `None` before anything was timed.
#[must_use]
pub fn bottleneck(stages: &[StageTotal]) -> Option<String> {
    let seconds = |names: &[&str]| -> f64 {
        stages.iter().filter(|stage| names.contains(&&*stage.name)).map(|stage| stage.seconds).sum()
    };
    let all: f64 = stages.iter().map(|stage| stage.seconds).sum();
    if all <= 0.0 {
        return None;
    }
    let waits = seconds(&["wait"]) / seconds(&TRAINING).max(f64::MIN_POSITIVE);
    let starves = match waits >= WAIT_SHARE {
        true => format!(
            "The reader starves the workers: they wait for minibatches for {} of their time. ",
            percent(waits)
        ),
        false => String::new(),
    };
    let mut parts = PARTS.map(|(name, names)| (name, seconds(names) / all));
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let [(first, most), (second, next), ..] = parts;
    let mut letters = first.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
    let takes = if first.ends_with('s') { "take" } else { "takes" };
    let (most, next) = (percent(most), percent(next));
    Some(format!("{starves}{first} {takes} the most time, {most}; then {second}, {next}."))
}

/// A server is hot if its calls take so many times those of the fastest one.
const HOT_FACTOR: f64 = 1.5;

/// In a sentence, the server that is slower than the others; `None` if they are alike.
pub(super) fn slowest_server(servers: &[ServerCalls]) -> Option<String> {
    let known = servers.iter().filter(|server| server.latency.count > 0);
    let time = |server: &ServerCalls| server.latency.average_ns;
    let (least, most) = (known.clone().min_by_key(|one| time(one))?, known.max_by_key(|one| time(one))?);
    let factor = time(most) as f64 / time(least).max(1) as f64;
    (factor >= HOT_FACTOR).then(|| {
        let us = time(most) as f64 / 1e3;
        format!(
            "Server {} is the slowest: a call takes {us:.0} us, {factor:.1} times as long as at {}. Its own pages show why: \
             /connections its clients, /hot its keys, /threads its processor time.",
            most.server, least.server
        )
    })
}

#[cfg(test)]
mod tests {
    use sanderling_observe::LatencySummary;

    use super::*;

    #[test]
    fn the_slowest_server_is_named() {
        let server = |name: &str, average_ns: u64, count: u64| ServerCalls {
            server: name.to_owned(),
            transport: "tcp".to_owned(),
            latency: LatencySummary { average_ns, count, ..LatencySummary::default() },
        };
        for (servers, expected) in [
            (vec![], None),
            (vec![server("a", 100_000, 5)], None),
            (vec![server("a", 100_000, 5), server("b", 140_000, 5)], None),
            (
                vec![server("a", 100_000, 5), server("b", 400_000, 5), server("c", 1, 0)],
                Some("Server b is the slowest"),
            ),
        ] {
            let found = slowest_server(&servers);
            assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
            assert!(found.is_none_or(|found| found.starts_with(expected.unwrap_or_default())));
        }
    }

    #[test]
    fn the_part_that_holds_up_is_named() {
        for (stages, expected) in [
            (&[][..], None),
            (&[("read", 0.0)], None),
            (
                &[("read", 1.0), ("decode", 1.0), ("compute", 6.0), ("score", 1.0), ("pull", 1.0)],
                Some("Compute takes the most time, 70.0 %; then the reader, 20.0 %."),
            ),
            (
                &[("push", 3.0), ("pull", 6.0), ("save", 1.0)],
                Some("Pulls take the most time, 60.0 %; then pushes, 30.0 %."),
            ),
            (
                &[("decode", 9.0), ("wait", 3.0), ("compute", 7.0)],
                Some(
                    "The reader starves the workers: they wait for minibatches for 30.0 % of their time. The reader takes \
                     the most time, 47.4 %; then compute, 36.8 %.",
                ),
            ),
            (
                &[("wait", 1.0), ("evaluate", 300.0), ("compute", 99.0)],
                Some("Validation takes the most time, 75.0 %; then compute, 24.8 %."),
            ),
        ] {
            let total = |&(name, seconds): &(&str, f64)| StageTotal {
                name: name.to_owned(),
                seconds,
                count: 1,
                share: 0.0,
            };
            let stages: Vec<StageTotal> = stages.iter().map(total).collect();
            assert_eq!(bottleneck(&stages).as_deref(), expected);
        }
    }
}
