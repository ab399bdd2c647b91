//! The numbers of two runs, one per row, and by how much the second is better. Reads no file and prints nothing.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::Serialize;

use super::{Call, Run, Stage};
use crate::output;
use crate::quality::{further_of, is_higher_better};

/// A time of calls.
type Nanos = fn(&Call) -> u64;

/// Which of two numbers is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    Lower,
    Higher,
    /// A count: neither.
    Neither,
}

/// One number of both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    /// `run`, the name of a stage, or that of a command.
    pub(super) name: String,
    /// Nothing, `stage`, or which time of a command.
    pub(super) of: String,
    /// Counted quantity, with its unit.
    pub(super) number: Cow<'static, str>,
    /// None where the run has no such number.
    pub(super) a: Option<f64>,
    pub(super) b: Option<f64>,
    pub(super) better: Better,
    /// Of B over A, in percent of A: positive where B is better.
    pub(super) improvement_percent: Option<f64>,
}

impl Row {
    fn new(
        (name, of, number): (&str, &str, impl Into<Cow<'static, str>>),
        (a, b): (Option<f64>, Option<f64>),
        better: Better,
    ) -> Row {
        let change = a.zip(b).filter(|(a, _)| *a != 0.0).map(|(a, b)| 100.0 * (b - a) / a);
        let improvement_percent = match better {
            Better::Lower => change.map(|percent| 0.0 - percent),
            Better::Higher => change,
            Better::Neither => None,
        };
        let (name, of, number) = (name.to_owned(), of.to_owned(), number.into());
        Row { name, of, number, a, b, better, improvement_percent }
    }

    /// Whether it is of calls of servers.
    pub(super) fn is_of_calls(&self) -> bool {
        !self.of.is_empty() && self.name != "run" && self.of != "stage"
    }

    /// As the cells of a table.
    pub(super) fn cells(&self) -> Vec<String> {
        let number = |value| self.number(value);
        let improvement = self.improvement();
        vec![
            self.name.clone(),
            self.of.clone(),
            self.number.to_string(),
            number(self.a),
            number(self.b),
            improvement,
        ]
    }

    fn number(&self, value: Option<f64>) -> String {
        let decimals = match &self.number[..] {
            "seconds" => 3,
            "count" | "examples/s" => 0,
            _ if self.is_of_calls() || self.of == "stage" => 1,
            _ => 6,
        };
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
    }

    fn improvement(&self) -> String {
        self.improvement_percent.map_or_else(String::new, |percent| format!("{percent:+.1} %"))
    }
}

/// All numbers: of the runs, of their stages, of their calls. What only one run has stands after what A has.
pub(super) fn rows(a: &Run, b: &Run) -> Vec<Row> {
    let both = |of: &dyn Fn(&Run) -> Option<f64>| (of(a), of(b));
    let run =
        |number, of: &dyn Fn(&Run) -> Option<f64>, better| Row::new(("run", "", number), both(of), better);
    let mut rows = vec![
        Row::new(("run", "total", "seconds"), both(&|run| Some(run.timing.total_s)), Better::Lower),
        Row::new(("run", "training", "seconds"), both(&|run| Some(run.summary.train_s)), Better::Lower),
        run("examples/s", &|run| Some(run.summary.examples_per_s), Better::Higher),
        run("auc", &|run| run.summary.auc, Better::Higher),
        run("logloss", &|run| run.summary.logloss, Better::Lower),
    ];
    rows.extend(further(a, b));
    // A regression has neither AUC nor logloss.
    rows.retain(|row| !["auc", "logloss"].contains(&&row.number[..]) || row.a.or(row.b).is_some());
    let stages = union(&a.timing.stages, &b.timing.stages, |stage| stage.name.clone());
    for (a, b) in stages {
        let name = a.or(b).map_or("", |stage: &Stage| &stage.name[..]);
        let both = |of: fn(&Stage) -> f64| (a.map(of), b.map(of));
        let (seconds, share) = (both(|stage| stage.seconds), both(|stage| 100.0 * stage.share));
        // A stage that neither ever was in.
        if seconds.0.unwrap_or(0.0) + seconds.1.unwrap_or(0.0) > 0.0 {
            rows.push(Row::new((name, "stage", "seconds"), seconds, Better::Lower));
            rows.push(Row::new((name, "stage", "share %"), share, Better::Neither));
        }
    }
    let calls = union(&a.timing.calls, &b.timing.calls, |call| (call.command.clone(), call.of.clone()));
    for (a, b) in calls {
        let (command, of) = a.or(b).map_or(("", ""), |call: &Call| (&call.command[..], &call.of[..]));
        let both = |of: fn(&Call) -> u64, unit: f64| {
            let of = |call: &Call| of(call) as f64 / unit;
            (a.map(of), b.map(of))
        };
        rows.push(Row::new((command, of, "count"), both(|call| call.count, 1.0), Better::Neither));
        let times: [(&'static str, Nanos); 7] = [
            ("average us", |call| call.average_ns),
            ("max us", |call| call.max_ns),
            ("min us", |call| call.min_ns),
            ("p50 us", |call| call.p50_ns),
            ("p95 us", |call| call.p95_ns),
            ("p99 us", |call| call.p99_ns),
            ("p999 us", |call| call.p999_ns),
        ];
        rows.extend(
            times
                .into_iter()
                .map(|(number, ns)| Row::new((command, of, number), both(ns, 1e3), Better::Lower)),
        );
    }
    rows
}

/// Metrics that only some models have.
fn further(a: &Run, b: &Run) -> Vec<Row> {
    let [a, b] = [a, b].map(|run| further_of(&run.summary.fields));
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let row = |name: &String| {
        let better = if is_higher_better(name) { Better::Higher } else { Better::Lower };
        Row::new(("run", "", name.clone()), (a.get(name).copied(), b.get(name).copied()), better)
    };
    names.into_iter().map(row).collect()
}

/// A table of rows that are of calls: three lines for each command and time, the numbers side by side.
pub(super) fn of_calls(rows: &[&Row], width: Option<usize>) -> String {
    let groups: Vec<&[&Row]> = rows.chunk_by(|a, b| (&a.name, &a.of) == (&b.name, &b.of)).collect();
    let mut header = vec!["", "", ""];
    header.extend(groups.first().iter().flat_map(|group| group.iter().map(|row| &row.number[..])));
    let mut lines = Vec::new();
    for group in groups {
        let line = |name: &str, of: &str, side: &str, cell: &dyn Fn(&Row) -> String| {
            let labels = [name, of, side].map(str::to_owned);
            labels.into_iter().chain(group.iter().map(|row| cell(row))).collect::<Vec<String>>()
        };
        let (name, of) = group.first().map_or(("", ""), |row| (&row.name, &row.of));
        lines.push(line(name, of, "A", &|row| row.number(row.a)));
        lines.push(line("", "", "B", &|row| row.number(row.b)));
        lines.push(line("", "", "improvement", &Row::improvement));
    }
    output::columns_within(&header, &lines, &[0, 1, 2], width)
}

/// Pairs of what has the same name: in A's order, then what only B has.
fn union<'a, T, K: PartialEq>(
    a: &'a [T],
    b: &'a [T],
    name: impl Fn(&T) -> K,
) -> Vec<(Option<&'a T>, Option<&'a T>)> {
    let find = |of: &'a [T], wanted: &T| of.iter().find(|one| name(one) == name(wanted));
    let in_a = a.iter().map(|one| (Some(one), find(b, one)));
    in_a.chain(b.iter().filter(|one| find(a, one).is_none()).map(|one| (None, Some(one)))).collect()
}
