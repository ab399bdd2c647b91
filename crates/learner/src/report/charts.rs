//! The report's charts: which numbers go into which, and the words around them. Knows no HTML.

use sanderling_observe::plot::{Bar, CalibrationPoint, LineChart, Look, Series, bars, calibration, roc};

use super::{CurvePoint, FeatureImportance, ProgressivePoint, RunReport, numbers};

/// The most features drawn as bars; the list below the chart has all.
pub(super) const BARS_MAX: usize = 20;
/// The most passes whose ends are marked: more would be a hatching.
const PASS_MARKS_MAX: usize = 30;
/// Positions in the palette.
const TRAIN: usize = 0;
const VALID: usize = 1;
const SEEN: usize = 2;

/// A learning curve of one metric.
pub(super) fn learning(report: &RunReport, title: &str, metric: fn(&CurvePoint) -> f64) -> String {
    let line = |name: &str, curve: &[CurvePoint], look, color| Series {
        name: name.to_owned(),
        points: curve.iter().map(|point| (point.step as f64, metric(point))).collect(),
        look,
        color,
    };
    let first = report.train_curve.partition_point(|point| point.pass <= 1);
    let (progressive, seen) = report.train_curve.split_at(first);
    let mut series = vec![line("train (progressive)", progressive, Look::Line, TRAIN)];
    if !seen.is_empty() {
        series.push(line("train (seen rows)", seen, Look::Line, SEEN));
    }
    if !report.valid_curve.is_empty() {
        series.push(line("validation", &report.valid_curve, Look::Dots, VALID));
    }
    let (x_label, x_marks) = ends_of_passes(report);
    LineChart { title: title.to_owned(), x_label, series, x_marks, ..LineChart::default() }.svg()
}

/// Examples per second of training.
pub(super) fn rate(report: &RunReport) -> String {
    let points = report.train_curve.iter().map(|point| (point.step as f64, point.examples_per_s)).collect();
    let series = vec![Series { name: String::new(), points, look: Look::Line, color: TRAIN }];
    let (x_label, x_marks) = ends_of_passes(report);
    let title = "Examples per second".to_owned();
    LineChart { title, x_label, series, x_marks, y_from_zero: true, ..LineChart::default() }.svg()
}

/// The label of steps, and the steps at which passes ended.
fn ends_of_passes(report: &RunReport) -> (String, Vec<f64>) {
    let pairs = report.train_curve.windows(2).filter(|pair| pair[0].pass != pair[1].pass);
    let mut marks: Vec<f64> = pairs.map(|pair| pair[0].step as f64).collect();
    let label = if marks.is_empty() { "step" } else { "step (dashed: end of a pass)" };
    if marks.len() > PASS_MARKS_MAX {
        marks.clear();
    }
    (label.to_owned(), marks)
}

/// Progressive validation by one metric.
pub(super) fn progressive(
    curve: &[ProgressivePoint],
    title: &str,
    metric: fn(&ProgressivePoint) -> f64,
) -> String {
    let points = curve.iter().enumerate().map(|(at, point)| ((at + 1) as f64, metric(point))).collect();
    let series = vec![Series { name: "before learning".to_owned(), points, look: Look::Dots, color: VALID }];
    let (title, x_label) = (title.to_owned(), "run".to_owned());
    LineChart { title, x_label, series, ..LineChart::default() }.svg()
}

/// The ROC curve.
pub(super) fn roc_curve(report: &RunReport) -> String {
    let points: Vec<(f64, f64)> =
        report.roc.iter().map(|point| (point.false_positive_rate, point.true_positive_rate)).collect();
    roc(&format!("ROC, AUC {}", numbers::decimal(report.metrics.auc, 4)), &points)
}

/// The calibration plot.
pub(super) fn calibration_plot(report: &RunReport) -> String {
    // As many examples as the mean weight makes of a bin: weights alone say nothing of how sure its rate is.
    let weight: f64 = report.calibration.iter().map(|bin| bin.weight).sum();
    let per_weight = report.metrics.examples as f64 / weight;
    let point = |bin: &super::CalibrationBin| CalibrationPoint {
        predicted: bin.prob_mean,
        observed: bin.real_mean,
        examples: bin.weight * per_weight,
    };
    calibration("Calibration", &report.calibration.iter().map(point).collect::<Vec<_>>())
}

/// Importance of the first features.
pub(super) fn importance(features: &[FeatureImportance]) -> String {
    let bar = |feature: &FeatureImportance| Bar {
        name: feature.feature.clone(),
        value: feature.mean_abs_contribution,
        text: numbers::figure(feature.mean_abs_contribution),
    };
    let bars_shown: Vec<Bar> = features.iter().take(BARS_MAX).map(bar).collect();
    bars("Mean absolute contribution to the logit, by feature", &bars_shown)
}

/// Time by stage.
pub(super) fn stages(report: &RunReport) -> String {
    let bar = |stage: &sanderling_observe::StageTotal| Bar {
        name: stage.name.clone(),
        value: stage.seconds,
        text: format!("{} ({})", numbers::duration(stage.seconds), numbers::percent(stage.share)),
    };
    bars("Thread time by stage", &report.stages.iter().map(bar).collect::<Vec<_>>())
}
