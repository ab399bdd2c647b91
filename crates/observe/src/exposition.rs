//! Numbers as the text that Prometheus reads, version 0.0.4 of its format. Knows neither what they mean nor HTTP.

use std::fmt::{Display, Write as _};

use crate::{LatencySummary, StageTotal};

/// Media type of the format in a header.
pub const EXPOSITION_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const NS_PER_S: f64 = 1e9;

/// Families of samples, one after another.
///
/// ```
/// let mut text = sanderling_observe::Exposition::default();
/// text.single("queue_rows", "gauge", "Rows that wait.", 3);
/// assert_eq!(text.finish(), "# HELP queue_rows Rows that wait.\n# TYPE queue_rows gauge\nqueue_rows 3\n");
/// ```
#[derive(Debug, Default)]
pub struct Exposition(String);

/// Names and values.
pub type Labels<'a> = Vec<(&'a str, &'a str)>;

impl Exposition {
    /// Begins a family; its samples must follow.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    /// One number of the family.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.line(format_args!("{} {value}", Exposition::series(name, labels)));
    }

    /// The name of a series: that of its metric with its labels.
    #[must_use]
    pub fn series(name: &str, labels: &[(&str, &str)]) -> String {
        let escaped = |value: &str| value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        match labels.is_empty() {
            true => name.to_owned(),
            false => format!("{name}{{{}}}", labels.join(",")),
        }
    }

    /// A family of one sample.
    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// `NAME_seconds`, a summary with its quantiles, and two gauges for least and most, which a summary cannot have.
    pub fn latencies(&mut self, name: &str, help: &str, rows: &[(Labels<'_>, LatencySummary)]) {
        let seconds = |ns: u64| ns as f64 / NS_PER_S;
        let summary = format!("{name}_seconds");
        self.family(&summary, "summary", help);
        for (labels, latency) in rows {
            let mut labels = labels.clone();
            let quantiles = [
                ("0.5", latency.p50_ns),
                ("0.95", latency.p95_ns),
                ("0.99", latency.p99_ns),
                ("0.999", latency.p999_ns),
            ];
            for (quantile, ns) in quantiles {
                labels.push(("quantile", quantile));
                self.sample(&summary, &labels, seconds(ns));
                labels.pop();
            }
            self.sample(&format!("{summary}_sum"), &labels, seconds(latency.sum_ns));
            self.sample(&format!("{summary}_count"), &labels, latency.count);
        }
        for extreme in ["min", "max"] {
            let name = format!("{name}_{extreme}_seconds");
            self.family(&name, "gauge", &format!("The {extreme} of the same since the start."));
            for (labels, latency) in rows {
                let ns = if extreme == "min" { latency.min_ns } else { latency.max_ns };
                self.sample(&name, labels, seconds(ns));
            }
        }
    }

    /// `NAME_seconds_total` and `NAME_entered_total`: time that threads spent in each stage, and how often.
    pub fn stages(&mut self, name: &str, labels: &[(&str, &str)], stages: &[StageTotal]) {
        for (what, help) in [
            ("seconds", "Time of threads in a stage, added up over threads."),
            ("entered", "How often a thread entered a stage."),
        ] {
            let name = format!("{name}_{what}_total");
            self.family(&name, "counter", help);
            for stage in stages {
                let mut labels = labels.to_vec();
                labels.push(("stage", &stage.name));
                match what {
                    "seconds" => self.sample(&name, &labels, stage.seconds),
                    _ => self.sample(&name, &labels, stage.count),
                }
            }
        }
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        self.0
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a string takes everything");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_help_are_escaped() {
        let mut text = Exposition::default();
        text.family("a", "gauge", "one \\ two\nthree \"four\"");
        text.sample("a", &[("b", "x\"y\\z\n{}"), ("c", "é")], 1.5);
        text.sample("a", &[], u64::MAX);
        let expected = "# HELP a one \\\\ two\\nthree \"four\"\n# TYPE a gauge\n\
            a{b=\"x\\\"y\\\\z\\n{}\",c=\"é\"} 1.5\na 18446744073709551615\n";
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn stages_have_their_time_and_their_count() {
        let mut text = Exposition::default();
        let stage = StageTotal { name: "read".to_owned(), seconds: 1.5, count: 7, share: 1.0 };
        text.stages("hub_stage", &[("hub", "h")], &[stage]);
        let text = text.finish();
        for line in [
            "hub_stage_seconds_total{hub=\"h\",stage=\"read\"} 1.5",
            "hub_stage_entered_total{hub=\"h\",stage=\"read\"} 7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
