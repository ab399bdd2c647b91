//! Figures of results: latency against throughput, a run over time, percentiles; as SVG. Knows what is drawn, not how; that is
//! `sanderling_observe::plot`.

use sanderling_observe::plot::{Figure, LineChart, Look, Series, standalone};

use crate::observed::distribution::SAMPLES_BEYOND_MIN;
use crate::observed::{Distribution, Interval};
use crate::result::estimate::coarse_quantile_ns;
use crate::result::{Load, Objective, RunResult};

const WIDTH_PX: i32 = 760;
const HEIGHT_PX: i32 = 420;
/// Of the panels of a time series.
const RATE_HEIGHT_PX: i32 = 230;
const FAILED_HEIGHT_PX: i32 = 150;
const LATENCY_HEIGHT_PX: i32 = 320;
/// Percentiles that are drawn.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
/// A throughput that varies by more than this factor is drawn on a logarithmic axis.
const RATE_LINEAR_MAX: f64 = 20.0;
/// Points per decade of a curve of percentiles.
const STEPS_PER_DECADE: i32 = 40;
/// The most runs whose percentiles are overlaid: more than colours.
pub const OVERLAID_MAX: usize = 6;
/// Intervals are not taken together for fewer groups than this.
const GROUPS_MIN: usize = 12;
/// Ticks of an axis of percentiles, at 1 / (1 - quantile).
const PERCENTILE_TICKS: [(&str, f64); 10] = [
    ("0 %", 1.0),
    ("50 %", 2.0),
    ("90 %", 1e1),
    ("99 %", 1e2),
    ("99.9 %", 1e3),
    ("99.99 %", 1e4),
    ("99.999 %", 1e5),
    ("99.9999 %", 1e6),
    ("99.99999 %", 1e7),
    ("99.999999 %", 1e8),
];

/// A figure as a file of SVG, on white.
#[must_use]
pub fn svg(figure: &Figure) -> String {
    standalone(&figure.svg())
}

/// Response time against throughput, a point per run: where the curve bends is what the server can bear. Runs
/// that are not valid are crosses. What was wanted of them are lines across.
#[must_use]
pub fn curve(runs: &[RunResult]) -> Figure {
    let wanted = crate::show::wanted(runs);
    let mut runs: Vec<&RunResult> = runs.iter().collect();
    let due = |run: &RunResult| match run.asked.load {
        Load::Open { rate_per_s, .. } => rate_per_s,
        Load::Closed => run.measured.calls_per_s(),
    };
    runs.sort_by(|a, b| due(a).total_cmp(&due(b)));
    let responses: Vec<Distribution> = runs.iter().map(|run| run.measured.response()).collect();
    let rates: Vec<f64> = runs.iter().map(|run| run.measured.calls_per_s()).collect();
    let all = responses.iter().flat_map(|of| QUANTILES.map(|(_, quantile)| of.quantile_ns(quantile)));
    let unit = Unit::of(all.flatten().map(|ns| ns as f64));
    let mut series = Vec::new();
    let mut doubted = Vec::new();
    for (color, (name, quantile)) in QUANTILES.into_iter().enumerate() {
        let points = |valid: bool| -> Vec<(f64, f64)> {
            let of =
                runs.iter().zip(&responses).zip(&rates).filter(|((run, _), _)| run.validity.valid == valid);
            of.filter_map(|((_, of), &rate)| Some((rate, unit.number(of.quantile_ns(quantile)? as f64))))
                .collect()
        };
        series.push(Series { name: name.to_owned(), points: points(true), look: Look::Dots, color });
        doubted.push(Series { name: String::new(), points: points(false), look: Look::Crosses, color });
    }
    // Once in the legend is enough.
    if let Some(crosses) = doubted.iter_mut().find(|crosses| !crosses.points.is_empty()) {
        crosses.name = "not valid".to_owned();
    }
    series.append(&mut doubted);
    let (low, high) = rates
        .iter()
        .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), &rate| (low.min(rate), high.max(rate)));
    let y_marks = wanted.iter().map(|of: &Objective| {
        let name = crate::show::percentile(of.quantile);
        (
            unit.number(of.below_ns as f64),
            format!("wanted: {name} below {}", crate::show::duration(of.below_ns as f64)),
        )
    });
    let chart = LineChart {
        title: title("Response time and throughput", runs.first().copied()),
        x_label: "calls per second".to_owned(),
        y_label: unit.label("response time"),
        x_log: high > RATE_LINEAR_MAX * low,
        x_room: true,
        y_log: true,
        series,
        y_marks: y_marks.collect(),
        ..LineChart::default()
    };
    Figure { width_px: WIDTH_PX, panels: vec![(chart, HEIGHT_PX)] }
}

/// A run over time: throughput above, response times below.
#[must_use]
pub fn time_series(run: &RunResult) -> Figure {
    let measured = &run.measured;
    let intervals = measured.series.whole(measured.seconds);
    let length_s = measured.series.interval().as_secs_f64();
    let x_ends = Some((0.0, measured.seconds));
    let at = |number: usize| (number as f64 + 0.5) * length_s;
    let keys = measured.keys() > 0;
    let rates = intervals.iter().enumerate().map(|(number, interval)| {
        let count = if keys { interval.keys } else { interval.calls };
        (at(number), count as f64 / length_s)
    });
    let what = if keys { "keys per second" } else { "calls per second" };
    let line = |name: &str, points, look, color| Series { name: name.to_owned(), points, look, color };
    let rate = LineChart {
        title: title(&format!("Throughput, {what}"), Some(run)),
        y_from_zero: true,
        series: vec![line("", rates.collect(), Look::Line, 0)],
        x_ends,
        ..LineChart::default()
    };
    let mut panels = vec![(rate, RATE_HEIGHT_PX)];
    if intervals.iter().any(|interval| interval.failed > 0) {
        let failed = |(number, interval): (usize, &Interval)| (at(number), interval.failed as f64 / length_s);
        let failed = intervals.iter().enumerate().map(failed).collect();
        let failures = LineChart {
            title: "Failed calls per second".to_owned(),
            y_from_zero: true,
            series: vec![line("", failed, Look::Line, 1)],
            x_ends,
            ..LineChart::default()
        };
        panels.push((failures, FAILED_HEIGHT_PX));
    }
    // Neighbours are taken together where one has too few samples for a p99, if enough groups are left of them.
    let calls: u64 = intervals.iter().map(|interval| interval.response.len()).sum();
    let needed = |quantile: f64| SAMPLES_BEYOND_MIN / (1.0 - quantile) * (1.0 - 1e-9);
    let together = (1.5 * needed(0.99) * intervals.len() as f64 / calls.max(1) as f64).ceil() as usize;
    let together = if together * GROUPS_MIN > intervals.len() { 1 } else { together.max(1) };
    let group = |(number, group): (usize, &[Interval])| {
        let mut sum = group[0].response.clone();
        group[1..].iter().for_each(|next| sum.add(&next.response).expect("all have the same bounds"));
        (at(number * together) + 0.5 * (group.len() - 1) as f64 * length_s, sum)
    };
    let groups: Vec<_> = intervals.chunks(together).enumerate().map(group).collect();
    let of_groups = |quantile: f64| -> Vec<(f64, f64)> {
        let known = groups.iter().filter(|(_, of)| of.len() as f64 >= needed(quantile));
        let points = known.filter_map(|(at, of)| Some((*at, coarse_quantile_ns(of, quantile)?)));
        let points: Vec<(f64, f64)> = points.collect();
        // A line over gaps would show what was not seen.
        if 2 * points.len() < groups.len() { Vec::new() } else { points }
    };
    let longest =
        groups.iter().filter(|(_, of)| !of.is_empty()).map(|(at, of)| (*at, of.max() as f64)).collect();
    let mut lines: Vec<Series> = QUANTILES
        .into_iter()
        .enumerate()
        .map(|(color, (name, quantile))| line(name, of_groups(quantile), Look::Line, color))
        .filter(|series| !series.points.is_empty())
        .collect();
    lines.push(line("longest", longest, Look::Dashed, QUANTILES.len()));
    let unit = Unit::of(lines.iter().flat_map(|series| &series.points).map(|point| point.1));
    for (_, y) in lines.iter_mut().flat_map(|series| &mut series.points) {
        *y = unit.number(*y);
    }
    let latency = LineChart {
        title: format!("Response time in {}, by when calls were due", unit.name),
        x_label: "seconds since the measured part began".to_owned(),
        y_log: true,
        series: lines,
        x_ends,
        ..LineChart::default()
    };
    panels.push((latency, LATENCY_HEIGHT_PX));
    Figure { width_px: WIDTH_PX, panels }
}

/// Latency by percentile, with as much room for the last thousandth as for the first nine tenths; at most
/// [`OVERLAID_MAX`] runs. Service times, where they differ, are broken lines.
#[must_use]
pub fn percentiles(runs: &[RunResult]) -> Figure {
    let runs = &runs[..runs.len().min(OVERLAID_MAX)];
    let mut series = Vec::new();
    for (color, run) in runs.iter().enumerate() {
        let (response, service) = (run.measured.response(), run.measured.service());
        let name = if runs.len() == 1 {
            String::new()
        } else if run.label.is_empty() {
            format!("run {}, ", color + 1)
        } else {
            format!("{}, ", run.label)
        };
        let mut line = |what: &str, of: &Distribution, look| {
            series.push(Series { name: format!("{name}{what}"), points: by_percentile(of), look, color });
        };
        line("response", &response, Look::Line);
        if service != response {
            line("service", &service, Look::Dashed);
        }
    }
    let unit = Unit::of(series.iter().flat_map(|series| &series.points).map(|point| point.1));
    for (_, y) in series.iter_mut().flat_map(|series| &mut series.points) {
        *y = unit.number(*y);
    }
    let x_ticks = PERCENTILE_TICKS.map(|(name, x)| (x, name.to_owned())).into();
    let chart = LineChart {
        title: title("Latency by percentile", runs.first()),
        x_label: "share of calls that are no slower".to_owned(),
        y_label: unit.label("latency"),
        x_log: true,
        y_log: true,
        series,
        x_ticks,
        ..LineChart::default()
    };
    Figure { width_px: WIDTH_PX, panels: vec![(chart, HEIGHT_PX)] }
}

/// From the least up to the last percentile that has enough samples beyond it.
fn by_percentile(of: &Distribution) -> Vec<(f64, f64)> {
    let last = (of.count() as f64 / SAMPLES_BEYOND_MIN).log10();
    let steps = (last * f64::from(STEPS_PER_DECADE)).floor().max(-1.0) as i32;
    (0..=steps)
        .map(|step| {
            let x = 10f64.powf(f64::from(step) / f64::from(STEPS_PER_DECADE));
            (x, of.quantile_of_any_ns(1.0 - 1.0 / x) as f64)
        })
        .collect()
}

fn title(what: &str, run: Option<&RunResult>) -> String {
    run.map_or(what.to_owned(), |run| format!("{what}: {} on {}", run.asked.script.name, run.asked.address))
}

/// Unit of latencies in a figure.
#[derive(Clone, Copy)]
struct Unit {
    name: &'static str,
    ns: f64,
}

impl Unit {
    /// The one in which the middle of the range is a plain number.
    fn of(ns: impl Iterator<Item = f64>) -> Unit {
        let positive = ns.filter(|&ns| ns > 0.0 && ns.is_finite());
        let (low, high) =
            positive.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), ns| (low.min(ns), high.max(ns)));
        let middle = (low * high).sqrt();
        match middle {
            middle if middle >= 1e9 && middle.is_finite() => Unit { name: "s", ns: 1e9 },
            middle if middle < 1e3 => Unit { name: "ns", ns: 1.0 },
            middle if middle < 3e5 => Unit { name: "us", ns: 1e3 },
            _ => Unit { name: "ms", ns: 1e6 },
        }
    }

    fn number(self, ns: f64) -> f64 {
        ns / self.ns
    }

    fn label(self, what: &str) -> String {
        format!("{what}, {}", self.name)
    }
}

#[cfg(test)]
mod tests;
