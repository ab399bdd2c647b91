//! Names, versions and aliases of models.

use sanderling_serve::{LIVE, Models};
use serde_json::{Value, json};

use crate::fixture::{Served, Trained};

#[test]
fn a_request_names_a_version_by_number_or_alias() {
    let trained = Trained::new("lr");
    let served = Served::new([]);
    let models = Models::new([1, 2, 3].map(|version| trained.model(version)));
    served.server.publish(models.with_alias("clicks", LIVE, 2).with_alias("clicks", "old", 1));
    let row = json!([{ "user": "u1", "genres": [], "age": 1 }]);
    for (model, version, expected) in [
        ("", "", "2"),
        ("clicks", "", "2"),
        ("clicks", "live", "2"),
        ("clicks@live", "", "2"),
        ("clicks@3", "", "3"),
        ("clicks", "3", "3"),
        ("clicks@old", "", "1"),
        ("", "old", "1"),
    ] {
        let body = json!({ "model": model, "version": version, "rows": row });
        assert_eq!(served.json("/predict", Some(&body))["version"], expected, "{model} {version}");
        let rows = served.json(&format!("/tables/user/rows?key=1&model={model}&version={version}"), None);
        assert_eq!(rows["version"], expected, "{model} {version}");
        let path = match (model, version) {
            ("", _) => continue,
            (model, "") => format!("/v2/models/{model}/infer"),
            (model, version) => format!("/v2/models/{model}/versions/{version}/infer"),
        };
        let tensor = |name: &str, datatype: &str, data: Value| json!({ "name": name, "datatype": datatype, "shape": [1], "data": data });
        let inputs = json!({ "inputs": [
            tensor("user", "BYTES", json!(["u1"])),
            tensor("genres", "BYTES", json!([""])),
            tensor("age", "FP32", json!([1])),
        ] });
        assert_eq!(served.json(&path, Some(&inputs))["model_version"], expected, "{path}");
    }
    for (version, reason) in [("4", "no version"), ("new", "served are 1, 2, 3, live, old")] {
        let body = json!({ "version": version, "rows": row }).to_string();
        served.refuses("/predict", &body, 404, reason);
    }
    let models = served.json("/models", None);
    let aliases: Vec<&Value> =
        models["models"].as_array().unwrap().iter().map(|model| &model["aliases"]).collect();
    assert_eq!(aliases, [&json!(["old"]), &json!(["live"]), &json!([])]);
    let metrics = served.get("/metrics");
    let line = "sanderling_serve_alias_version{model=\"clicks\",alias=\"live\"} 2";
    assert!(metrics.text().lines().any(|found| found == line), "{}", metrics.text());
}
