//! The report as a page: every section there, hostile text harmless, nothing from outside, and no run too odd.

use sanderling_learner::metrics::{CalibrationBin, Metrics, RocPoint};
use sanderling_learner::report::{
    CurvePoint, FeatureImportance, FeatureStats, Importance, RunReport, SeenMetrics, TOP_KEYS_MAX,
    TableTally, render,
};
use sanderling_observe::{Machine, Resident, StageTotal};

const SECTIONS: [&str; 10] =
    ["curves", "quality", "importance", "tables", "features", "keys", "timings", "data", "machine", "config"];
const HOSTILE: &str = "</title></pre><script>alert(1)</script><img src=x onerror='a'>\"&\u{0}";

/// A run like a real one: three passes, ten tables.
fn typical() -> RunReport {
    let mut random = 0.37f64;
    let mut noise = move || {
        random = (random * 997.0 + 0.123).fract();
        random - 0.5
    };
    let mut point = |step: u64, spread: f64| {
        let learned = 1.0 - (-(step as f64) / 700.0).exp();
        CurvePoint {
            step,
            pass: 1 + (step.saturating_sub(1) / 800) as u32,
            examples: step * 256,
            auc: 0.62 + 0.34 * learned + spread * noise(),
            logloss: 0.64 - 0.42 * learned + spread * noise(),
            prob_mean: 0.334 + spread * noise(),
            real_mean: 0.3333,
            numbers: None,
            examples_per_s: 140_000.0 + 20_000.0 * noise(),
        }
    };
    let train_curve: Vec<CurvePoint> = (1..=120).map(|i| point(i * 20, 0.015)).collect();
    let valid_curve: Vec<CurvePoint> = (1..=3).map(|pass| point(pass * 800, 0.001)).collect();
    let metrics = Metrics {
        examples: 57_600,
        auc: 0.9687,
        logloss: 0.2214,
        prob_mean: 0.3371,
        real_mean: 0.3333,
        normalized_entropy: 0.7,
        auc_exact: true,
        numbers: None,
    };
    let roc = (0..=200).map(|i| f64::from(i) / 200.0);
    let roc = roc.map(|x| RocPoint { false_positive_rate: x, true_positive_rate: x.powf(0.07) }).collect();
    let calibration = (0..20).map(|i| {
        let p = (f64::from(i) + 0.5) / 20.0;
        let real_mean = (p + 0.03 * (p * 9.0).sin()).clamp(0.0, 1.0);
        CalibrationBin { prob_mean: p, real_mean, weight: 9000.0 / (1.0 + f64::from(i)) + 200.0 }
    });
    let names = "user item daytime weekday isweekend homework cost weather country city";
    let tables = names.split(' ').enumerate().map(|(i, name)| {
        let mut tally = TableTally::new(name, 11, TOP_KEYS_MAX);
        for key in 0..4000 / (1 + 7 * i as u64 * i as u64) {
            let size = 1.0 / (1.0 + key as f32 / 50.0) / (1.0 + i as f32 * 0.4);
            tally.add(
                key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                600_000 / (key + 5),
                &[size * 1.5, -size, size * 0.4],
                0,
            );
        }
        let mut summary = tally.finish(1_450_000 / (1 + i as u64));
        for (rank, top) in summary.top.iter_mut().enumerate() {
            top.value = Some(format!("{name}={}", 100 + rank));
        }
        summary
    });
    let importance = names.split(' ').enumerate().map(|(i, name)| FeatureImportance {
        feature: name.into(),
        mean_abs_contribution: 1.0 / (1.0 + i as f64),
    });
    let stages = [
        ("read", 0.11),
        ("decode", 0.42),
        ("pull", 0.88),
        ("compute", 1.31),
        ("push", 1.02),
        ("evaluate", 0.2),
    ];
    let total: f64 = stages.iter().map(|stage| stage.1).sum();
    let stages = stages.map(|(name, seconds)| StageTotal {
        name: name.into(),
        seconds,
        count: 2400,
        share: seconds / total,
    });
    RunReport {
        tests: Vec::new(),
        progressive_curve: Vec::new(),
        name: "frappe_fm".into(),
        under_way: None,
        stopped: false,
        model: "factorization machine, rank 10".into(),
        started_unix_s: 1_785_333_780,
        train_s: 4.31,
        examples: 614_400,
        passes: 3,
        best_pass: 3,
        threads: 1,
        examples_per_s: 142_552.0,
        metrics,
        valid: Some("../shared/data/frappe_x1/valid.csv".into()),
        seen: None,
        plots_seen: false,
        warnings: vec!["predictions are 3 times too high on average".into()],
        importance: Some(Importance { rows: 28_800, features: importance.collect() }),
        train_curve,
        valid_curve,
        roc,
        calibration: calibration.collect(),
        tables: tables.collect(),
        features: vec![
            FeatureStats {
                name: "user".into(),
                table: "user".into(),
                readers: 2,
                unseen_share: Some(0.25),
                drift_trained: Some(0.31),
                ..FeatureStats::default()
            },
            FeatureStats { name: "item".into(), table: "user".into(), readers: 2, ..FeatureStats::default() },
        ],
        stages: stages.to_vec(),
        timed_examples: 614_400,
        calls: Vec::new(),
        servers: Vec::new(),
        saved: None,
        machine: Machine::detect(),
        memory_peak_bytes: Resident::read().peak_bytes,
        bad_rows: 2,
        valid_bad_rows: 0,
        bad_row_messages: vec![
            "train.csv:17: column label: expected a number, found \"yes\"".into(),
            "train.csv:99: column 3: expected 11 fields, found 4".into(),
        ],
        model_path: "runs/frappe_fm/model".into(),
        eval_command: "sanderling eval runs/frappe_fm/model ../shared/data/frappe_x1/test.csv".into(),
        config: "name = \"frappe_fm\"\nseed = 42\n\n[model]\ntype = \"fm\"\nrank = 10\ninit_std = 0.01\n"
            .into(),
    }
}

/// Renders, checks what holds for every report, and returns the page. To look at the pages in a browser, name a folder
/// in `SANDERLING_REPORT_PREVIEW`.
fn check(name: &str, report: &RunReport) -> String {
    let page = render(report);
    if let Some(folder) = std::env::var_os("SANDERLING_REPORT_PREVIEW") {
        std::fs::write(std::path::Path::new(&folder).join(format!("{name}.html")), &page)
            .expect("preview folder");
    }
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"));
    for section in SECTIONS {
        assert_eq!(page.matches(&format!("<section id=\"{section}\">")).count(), 1, "section {section}");
    }
    for outside in ["http:", "https:", "src=", "<script", "<link", "<img", "<iframe", "@import", "url("] {
        assert!(!page.contains(outside), "the page contains {outside}");
    }
    assert!(!page.contains("NaN") && !page.contains(">inf"), "a number is not one");
    let mut ids: Vec<&str> = page.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "an id occurs twice");
    page
}

#[test]
fn a_typical_run_shows_its_numbers() {
    let report = typical();
    let page = check("typical", &report);
    for text in [
        "frappe_fm",
        "2026-07-29 14:03 UTC",
        "0.9687",
        "0.2214",
        "142,552",
        "predicted 0.3371 / real 0.3333",
        "factorization machine, rank 10",
        "user=100",
        "runs/frappe_fm/model",
        "sanderling eval runs/frappe_fm/model",
        "train.csv:17: column label: expected a number, found &quot;yes&quot;",
        "init_std = 0.01",
        "25.0 %",
        "<strong>0.310</strong>",
        "user (with item)",
        report.machine.cpu.as_str(),
    ] {
        assert!(page.contains(text), "{text} is missing");
    }
    assert_eq!(page.matches("<svg ").count(), 7);
    assert!(page.len() < 300_000, "{} bytes", page.len());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["roc"][0], serde_json::json!([0.0, 0.0]));
    assert_eq!(json["metrics"]["auc"], 0.9687);
}

#[test]
fn hostile_text_stays_text() {
    let mut report = typical();
    for text in [
        &mut report.name,
        &mut report.model,
        &mut report.model_path,
        &mut report.eval_command,
        &mut report.config,
        &mut report.machine.cpu,
        &mut report.bad_row_messages[0],
        &mut report.tables[0].name,
        &mut report.features[1].name,
        &mut report.stages[0].name,
    ] {
        *text = HOSTILE.replace("src=", "data-x=");
    }
    report.valid = Some(HOSTILE.replace("src=", "data-x="));
    report.tables[1].top[0].value = Some(HOSTILE.replace("src=", "data-x="));
    let page = check("hostile", &report);
    assert!(page.contains("&lt;script&gt;alert(1)"));
}

#[test]
fn odd_runs() {
    fn variant(name: &str, change: impl FnOnce(&mut RunReport)) -> String {
        let mut report = typical();
        change(&mut report);
        check(name, &report)
    }
    let page = variant("no_valid", |report| {
        report.valid = None;
        report.valid_curve.clear();
        report.seen = Some(SeenMetrics { pass: 3, metrics: report.metrics });
    });
    assert!(page.contains("no validation file") && page.contains("training, progressive, pass 1"));
    assert!(page.contains("Of pass 3 over training (seen) data: AUC 0.9687"));
    assert!(page.contains("train (progressive)") && page.contains("train (seen rows)"));
    variant("one_point", |report| {
        report.train_curve.truncate(1);
        report.valid_curve.truncate(1);
        report.passes = 1;
    });
    let page = variant("one_class", |report| {
        report.metrics.auc = f64::NAN;
        report.train_curve.iter_mut().chain(&mut report.valid_curve).for_each(|point| point.auc = f64::NAN);
    });
    assert!(
        page.contains("AUC is not defined")
            && !page.contains("ROC, AUC")
            && page.contains("no finite values")
    );
    let page = variant("nothing", |report| {
        report.tables.clear();
        report.importance = None;
        report.stages.clear();
        report.train_curve.clear();
        report.valid_curve.clear();
        report.roc.clear();
        report.calibration.clear();
        report.bad_row_messages.clear();
        (report.examples, report.passes, report.bad_rows, report.examples_per_s) = (0, 0, 0, f64::NAN);
        let nan = f64::NAN;
        report.metrics = Metrics {
            examples: 0,
            auc: nan,
            logloss: nan,
            prob_mean: nan,
            real_mean: nan,
            normalized_entropy: nan,
            auc_exact: true,
            numbers: None,
        };
    });
    assert!(!page.contains("<svg ") && page.contains("The model has no table."));
    assert!(page.contains("Feature importance was not measured."));
    let page = variant("many_tables", |report| {
        let empty = TableTally::new("empty", 1, TOP_KEYS_MAX).finish(0);
        report.tables = (0..200)
            .map(|i| {
                let mut table = empty.clone();
                table.name = format!("C{i}");
                table
            })
            .collect();
        let feature =
            |i: u64| FeatureImportance { feature: format!("C{i}"), mean_abs_contribution: i as f64 };
        report.importance = Some(Importance { rows: 9, features: (0..200).map(feature).collect() });
    });
    assert!(
        page.contains("All 200 tables")
            && page.contains("All 200 features")
            && page.contains(">C199<")
            && page.contains("No row has a weight")
    );
    let page = variant("long", |report| {
        report.metrics.real_mean = 0.0;
        report.name = "n".repeat(5000);
        report.tables[0].name = "t".repeat(5000);
        report.valid_curve = (0..100).map(|i| CurvePoint { pass: i + 1, ..report.valid_curve[0] }).collect();
        // By the logloss, say: not the one of the highest AUC.
        report.valid_curve[7].auc += 1e-3;
        report.best_pass = 5;
        (report.bad_rows, report.valid_bad_rows) = (1, 3);
    });
    let best: Vec<&str> = page.split("<tr class=\"best\">").skip(1).collect();
    assert!(best.len() == 1 && best[0].starts_with("<td class=\"number\">5</td>"), "{best:?}");
    assert!(page.contains("of 100 validations") && page.contains("1 bad row</strong> skipped"));
    assert!(page.contains("3 bad rows</strong> of the validation data skipped"));
}
