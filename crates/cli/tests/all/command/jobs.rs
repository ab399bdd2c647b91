//! Training by several workers of one process.

use serde_json::Value;

use super::{ADULT, Place, has_metrics};

#[test]
fn several_workers_train_together() {
    let place = Place::new();
    let config = std::fs::read_to_string(format!("{ADULT}/../../examples/adult_ftrl_sync.toml")).unwrap();
    place.write("adult.toml", &config.replace("data/adult", ADULT));
    let trained = place.run("train adult.toml --algorithm ftrl-sync --workers 2 --passes 3 --json");
    let json = trained.json();
    has_metrics(&json, 3 * 32_561);
    assert!(json["auc"].as_f64().unwrap() > 0.89, "{json}");
    let timing = &json["timing"];
    assert_eq!((&timing["algorithm"], &timing["workers"]), (&"ftrl-sync".into(), &2.into()));
    for stage in ["read", "parse", "shuffle", "pull", "compute", "push", "wait", "score", "evaluate"] {
        let stages = timing["stages"].as_array().unwrap();
        assert!(stages.iter().any(|total| total["name"] == stage), "{stage} in {timing}");
    }
    for part in ["ftrl-sync: 2 workers", "pass 3 trained", "normalized entropy", "pass 3 validated"] {
        assert!(trained.err.contains(part), "{part} in\n{}", trained.err);
    }
    let lines = place.read("runs/adult/metrics.jsonl");
    let passes: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["kind"] == "pass")
        .collect();
    assert_eq!(passes.len(), 3);
    for (at, pass) in (1..).zip(&passes) {
        assert_eq!((&pass["pass"], &pass["examples"]), (&at.into(), &32_561.into()));
        assert!(pass["normalized_entropy"].as_f64().unwrap() < 1.0 && pass["auc_exact"] == false);
    }
    // Each worker on its own: how many pushes each push missed is counted.
    let alone = place.run("train adult.toml --algorithm ftrl --workers 3 --staleness 4 --passes 1 --json");
    let json = alone.json();
    has_metrics(&json, 32_561);
    let counts = json["timing"]["staleness"].as_array().unwrap();
    assert_eq!(counts.iter().filter_map(Value::as_u64).sum::<u64>(), json["steps"].as_u64().unwrap());
    assert!(alone.err.contains("at most 4 minibatches ahead"), "{}", alone.err);
    assert!(json["zero_weights"].as_u64().unwrap() > 0 && json["normalized_entropy"].is_number());
    let shown = place.run("inspect runs/adult/model");
    assert!(shown.out.contains("zeros"), "{}", shown.out);
}

/// A file of five blocks, which are fewer than the lanes of a step.
#[test]
fn steps_of_few_units_are_whole_and_the_same_for_any_number_of_workers() {
    let place = Place::with_synth();
    assert_eq!(place.run("convert c.toml a.batch --block-rows 700").code, Some(0));
    let mut first = None;
    for workers in [1, 2, 4] {
        let name = format!("of_{workers}");
        let line = format!(
            "train c.toml --train a.batch --algorithm ftrl-sync-no-shuffle --batch-size 128 --passes 2 --name {name}"
        );
        let json = place.run(&format!("{line} --workers {workers} --json")).json();
        assert_eq!((&json["examples"], &json["steps"]), (&6000.into(), &48.into()), "{workers}: {json}");
        let scores = place.run(&format!("predict runs/{name}/model valid.svm")).out;
        assert!(
            *first.get_or_insert_with(|| scores.clone()) == scores,
            "{workers} workers give another model"
        );
    }
}
