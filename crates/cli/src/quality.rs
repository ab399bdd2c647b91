//! Metrics in words and numbers: of classes, of numbers (regression), and those that only some models have. Measures
//! nothing.

use std::collections::BTreeMap;

use sanderling_learner::{Metrics, NumberMetrics};
use serde_json::Value;

use crate::output;

/// Metrics that a summary has beside AUC and logloss, by name.
pub(crate) type Further = BTreeMap<String, f64>;

/// The two main metrics in a line of text: of a regression the errors.
pub(crate) fn in_words(metrics: &Metrics) -> String {
    let number = |value: f64| output::metric(value.is_finite().then_some(value));
    match metrics.numbers {
        None => format!("AUC {}, logloss {}", number(metrics.auc), number(metrics.logloss)),
        Some(NumberMetrics { rmse, mae, .. }) => format!("rmse {}, mae {}", number(rmse), number(mae)),
    }
}

/// The metrics in a line of a run.
pub(crate) fn in_a_line(metrics: &Metrics, with_entropy: bool) -> String {
    let Metrics { auc, logloss, prob_mean, real_mean, .. } = metrics;
    let means = format!("prob_mean {prob_mean:.6}, real_mean {real_mean:.6}");
    match metrics.numbers {
        Some(NumberMetrics { rmse, mae, .. }) => format!("rmse {rmse:.6}, mae {mae:.6}, {means}"),
        None if with_entropy => {
            let entropy = metrics.normalized_entropy;
            format!("auc {auc:.6}, logloss {logloss:.6}, normalized entropy {entropy:.6}, {means}")
        }
        None => format!("auc {auc:.6}, logloss {logloss:.6}, {means}"),
    }
}

/// The rows of [`output::pairs`] that a measurement begins with.
pub(crate) fn in_rows(
    scores: (Option<f64>, Option<f64>),
    means: (Option<f64>, Option<f64>),
    numbers: Option<NumberMetrics>,
) -> Vec<(&'static str, String)> {
    let mut rows = output::quality(scores, means);
    if let Some(NumberMetrics { rmse, mae, .. }) = numbers {
        rows.retain(|(name, _)| *name == "calibration");
        rows.extend([("rmse", output::metric(Some(rmse))), ("mae", output::metric(Some(mae)))]);
    }
    rows
}

/// Whether a field of a summary is a metric that only some models have: errors of a regression, metrics of ranked lists
/// (`ndcg@20`), and those of further labels (`buy.auc`).
fn is_further(name: &str) -> bool {
    ["mse", "rmse", "mae"].contains(&name) || name.contains(['@', '.'])
}

/// The further metrics among the fields of a summary.
pub(crate) fn further_of(fields: &BTreeMap<String, Value>) -> Further {
    let metric = |(name, value): (&String, &Value)| Some((name.clone(), value.as_f64()?));
    fields.iter().filter(|(name, _)| is_further(name)).filter_map(metric).collect()
}

/// Whether a larger value of a further metric is better.
pub(crate) fn is_higher_better(name: &str) -> bool {
    name.contains('@') || name.ends_with(".auc")
}

/// The further metrics that a list of runs has room for: the errors, and the ndcg of the longest list.
pub(crate) fn shortened(further: &Further) -> String {
    let cut = |name: &str| name.strip_prefix("ndcg@").and_then(|cut| cut.parse::<u64>().ok());
    let longest = further.keys().filter_map(|name| cut(name)).max();
    let is_shown =
        |name: &str| ["rmse", "mae"].contains(&name) || (longest.is_some() && cut(name) == longest);
    let shown = further.iter().filter(|(name, _)| is_shown(name));
    shown.map(|(name, value)| format!("{name} {value:.6}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_metrics_are_found_by_their_names() {
        let fields = serde_json::json!({
            "auc": 0.5, "rmse": 2.0, "mse": 4.0, "mae": null, "ndcg@5": 0.1, "ndcg@20": 0.3, "recall@20": 0.4,
            "buy.auc": 0.6, "name": "a.b",
        });
        let fields: BTreeMap<String, Value> = serde_json::from_value(fields).unwrap_or_default();
        let found = further_of(&fields);
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["buy.auc", "mse", "ndcg@20", "ndcg@5", "recall@20", "rmse"]);
        assert_eq!(shortened(&found), "ndcg@20 0.300000, rmse 2.000000");
        assert_eq!(
            ["rmse", "ndcg@5", "buy.auc", "buy.logloss"].map(is_higher_better),
            [false, true, true, false]
        );
    }
}
