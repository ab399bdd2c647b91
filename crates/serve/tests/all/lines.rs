//! Models of libsvm and libffm lines: a row is a line, with the score that the learner gives the file.

use serde_json::{Value, json};

use crate::fixture::{Served, Trained, assert_close, numbers};
use crate::inference_protocol::texts;

/// The data that the repository has in libsvm text.
const LIBSVM: &str = include_str!("../../../learner/tests/golden/rows.svm");

/// The same with the place of each pair as its field.
fn libffm() -> String {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let label = words.next().unwrap_or_default().to_owned();
        words.enumerate().fold(label, |line, (field, pair)| format!("{line} {field}:{pair}")) + "\n"
    };
    LIBSVM.lines().map(line).collect()
}

fn fields() -> Value {
    json!([{ "each": ["field_0", "field_1", "field_2"], "type": "sparse" }])
}

/// Scores lines in every protocol, with their label and without it.
fn check(kind: &str, file: &str, text: &str, features: Option<Value>) {
    let trained = Trained::of_file(file, text, kind, features);
    let served = Served::new([trained.model(1)]);
    let expected = trained.scores_of_file(file, text);
    let labelled: Vec<&str> = text.lines().collect();
    let plain: Vec<&str> = labelled.iter().map(|line| line.split_once(' ').unwrap().1).collect();
    for lines in [&labelled, &plain] {
        let answer = served.json("/predict", Some(&json!({ "rows": lines })));
        assert_close(&numbers(&answer["scores"]), &expected);
    }
    let rows: Vec<Value> = plain.iter().map(|line| json!({ "line": line })).collect();
    let answer = served.json("/predict", Some(&json!({ "rows": rows, "explain": true })));
    assert_close(&numbers(&answer["scores"]), &expected);
    let parts = answer["explanations"][0].clone();
    let sum: f64 =
        parts["contributions"].as_object().unwrap().values().map(|part| part.as_f64().unwrap()).sum();
    assert!(
        (parts["bias"].as_f64().unwrap() + sum - parts["logit"].as_f64().unwrap()).abs() < 1e-9,
        "{parts}"
    );

    let metadata = served.json("/v2/models/clicks", None);
    assert_eq!(metadata["inputs"], json!([{ "name": "line", "datatype": "BYTES", "shape": [-1] }]));
    let input = json!({ "name": "line", "datatype": "BYTES", "shape": [plain.len()], "data": plain });
    let answer = served.json("/v2/models/clicks/infer", Some(&json!({ "inputs": [input] })));
    assert_close(&numbers(&answer["outputs"][0]["data"]), &expected);
    let bytes = texts(plain.iter().copied());
    let size = json!({ "binary_data_size": bytes.len() });
    let head = json!({ "inputs": [{ "name": "line", "datatype": "BYTES", "shape": [plain.len()], "parameters": size }] });
    let head = head.to_string();
    let length = format!("inference-header-content-length: {}", head.len());
    let body = [head.as_bytes(), &bytes].concat();
    let reply =
        sanderling_testkit::http(&served.address, "POST", "/v2/models/clicks/infer", &[&length], &body);
    let answer: Value = serde_json::from_str(reply.text()).unwrap();
    assert_close(&numbers(&answer["outputs"][0]["data"]), &expected);
}

#[test]
fn libsvm_lines_have_the_scores_of_files() {
    check("lr", "rows.svm", LIBSVM, None);
    check("fm", "rows.svm", LIBSVM, None);
}

#[test]
fn libffm_lines_have_the_scores_of_files() {
    check("ffm", "rows.ffm", &libffm(), Some(fields()));
    check("fm", "rows.ffm", &libffm(), None);
}

#[test]
fn other_rows_are_refused_with_their_reason() {
    let served = Served::new([Trained::of_file("rows.svm", LIBSVM, "lr", None).model(1)]);
    let of_fields = Served::new([Trained::of_file("rows.ffm", &libffm(), "ffm", Some(fields())).model(1)]);
    for (served, row, reason) in [
        (&served, json!("3:1 x"), "row 1: column \"line\": expected index:value (word 2), found \"x\""),
        (&served, json!("3:1\n7:1"), "expected one line, found a line feed"),
        (&served, json!("# 3:1"), "expected a row, found an empty line or a comment"),
        (&served, json!(""), "column \"line\""),
        (&served, json!("3:nan"), "a finite number after the colon"),
        (&served, json!({ "line": 3 }), "expected a line of text"),
        (&served, json!({ "user": "u1" }), "no column \"user\"; the columns are line"),
        (&of_fields, json!("3:1"), "field:index:value"),
    ] {
        let first = if std::ptr::eq(served, &of_fields) { "0:3:1" } else { "3:1" };
        served.refuses("/predict", &json!({ "rows": [first, row] }).to_string(), 400, reason);
    }
    let named = Served::new([Trained::new("lr").model(1)]);
    named.refuses("/predict", r#"{"rows":["3:1"]}"#, 400, "row 0: no column \"line\"");
}

#[test]
fn rows_of_indices_are_looked_up() {
    let served = Served::new([Trained::of_file("rows.svm", LIBSVM, "fm", None).model(1)]);
    let answer = served.json("/tables/features/rows?value=3&key=3&key=99", None);
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!((&rows[0]["weights"], &rows[0]["key"]), (&rows[2]["weights"], &json!(3)));
    assert_eq!((&rows[0]["found"], &rows[1]["found"]), (&json!(true), &json!(false)));
}
