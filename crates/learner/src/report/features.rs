//! The section of a report about features: unseen keys, norms, updates, drifts. Knows no style.

use maud::{Markup, html};

use super::sections::section;
use super::{FeatureStats, RunReport, numbers};

/// Columns of the section: titles, and how their numbers are written.
const COLUMNS: [(&str, Written, Of); 15] = [
    ("admitted", Written::Count, |feature| feature.admitted.map(|count| count as f64)),
    ("rejected", Written::Count, |feature| feature.rejected.map(|count| count as f64)),
    ("evicted", Written::Count, |feature| feature.evicted.map(|count| count as f64)),
    ("unseen", Written::Share, |feature| feature.unseen_share),
    ("hits", Written::Share, |feature| feature.hit_share),
    ("norm p50", Written::Figure, |feature| feature.norm_p50),
    ("norm p90", Written::Figure, |feature| feature.norm_p90),
    ("norm p99", Written::Figure, |feature| feature.norm_p99),
    ("gradient p50", Written::Figure, |feature| feature.gradient_p50),
    ("gradient p99", Written::Figure, |feature| feature.gradient_p99),
    ("update", Written::Figure, |feature| feature.update_norm),
    ("relative", Written::Share, |feature| feature.update_ratio),
    ("idle p50", Written::Count, |feature| feature.idle_p50.map(f64::from)),
    ("drift", Written::Drift, |feature| feature.drift),
    ("from trained", Written::Drift, |feature| feature.drift_trained),
];

type Of = fn(&FeatureStats) -> Option<f64>;

#[derive(Clone, Copy, PartialEq)]
enum Written {
    Count,
    Share,
    Figure,
    Drift,
}

/// From this stability index on, keys are others than before.
const DRIFT_MAX: f64 = 0.25;

impl Written {
    fn text(self, number: Option<f64>) -> String {
        let number = number.unwrap_or(f64::NAN);
        match self {
            Written::Count if number.is_finite() => numbers::count(number as u64),
            Written::Share => numbers::percent(number),
            Written::Drift => numbers::decimal(number, 3),
            Written::Count | Written::Figure => numbers::figure(number),
        }
    }
}

const LEAD: &str = "From sampled minibatches. Unseen: keys that have no row yet. Hits: keys whose row the minibatch had already. \
     Norms and gradients are L2 norms of rows by occurrence. Admitted, rejected and evicted are of the feature's table, \
     with the features that share it. Update: the change of a row by one update; idle: pushes to the table since a row's last \
     one. Drift: population stability index of the keys of late against all of the run, and against those of the model that it began from; above 0.25 the keys are others.";

/// Columns that have a number of some feature.
fn columns(report: &RunReport) -> Vec<(&'static str, Written, Of)> {
    let has_some = |of: Of| report.features.iter().any(|feature| of(feature).is_some());
    COLUMNS.into_iter().filter(|(.., of)| has_some(*of)).collect()
}

/// The section.
pub(super) fn features(report: &RunReport) -> Markup {
    let columns = columns(report);
    let body = html! {
        @if report.features.is_empty() {
            p.none { "This run has no sampled minibatches: it predates them, or learns from each row alone." }
        } @else {
            div.scroll { table {
                thead { tr {
                    th { "feature" } th { "table" }
                    @for (title, ..) in &columns { th.number { (title) } }
                } }
                tbody { @for feature in &report.features { tr {
                    td.name title=(feature.name) { (feature.name) }
                    td.name title=(feature.table) {
                        (feature.table)
                        @let others = feature.shares_table_with(&report.features);
                        @if !others.is_empty() { " (with " (others.join(", ")) ")" }
                    }
                    @for (_, written, of) in &columns {
                        @let value = of(feature);
                        @let is_other = *written == Written::Drift && value.is_some_and(|drift| drift > DRIFT_MAX);
                        td.number {
                            @if is_other { strong { (written.text(value)) } } @else { (written.text(value)) }
                        }
                    }
                } } }
            } }
        }
    };
    section("features", "Features", LEAD, &body)
}

/// The header and the rows of the section as text.
pub(super) fn lines(report: &RunReport) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let columns = columns(report);
    let header = ["feature", "table"].into_iter().chain(columns.iter().map(|(title, ..)| *title)).collect();
    let row = |feature: &FeatureStats| {
        let cells = columns.iter().map(|(_, written, of)| written.text(of(feature)));
        let others = feature.shares_table_with(&report.features);
        let table = match others.is_empty() {
            true => feature.table.clone(),
            false => format!("{} (with {})", feature.table, others.join(", ")),
        };
        [feature.name.clone(), table].into_iter().chain(cells).collect()
    };
    (header, report.features.iter().map(row).collect())
}

/// Share of keys without a row from which on a feature learns nothing, and the keys that tell.
const UNSEEN_MAX: f64 = 0.95;
const UNSEEN_KEYS_MIN: u64 = 1000;

/// Features that are broken, in a sentence each.
pub(super) fn warnings(report: &RunReport) -> Vec<String> {
    let unseen = report.features.iter().filter_map(|feature| {
        let share =
            feature.unseen_share.filter(|share| *share >= UNSEEN_MAX && feature.keys >= UNSEEN_KEYS_MIN)?;
        Some(format!(
            "the keys of feature {:?} do not come again, so it learns nothing: {} of them have no row",
            feature.name,
            numbers::percent(share)
        ))
    });
    let drifts = report.features.iter().filter_map(|feature| {
        let (drift, than) = match (feature.drift_trained, feature.drift) {
            (Some(drift), _) if drift > DRIFT_MAX => (drift, "the ones of the model that the run began from"),
            (_, Some(drift)) if drift > DRIFT_MAX => (drift, "the earlier ones of this run"),
            _ => return None,
        };
        Some(format!(
            "the keys of feature {:?} are others than {than}: stability index {drift:.2}",
            feature.name
        ))
    });
    unseen.chain(drifts).collect()
}
