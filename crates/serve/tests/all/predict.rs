//! `POST /predict`: scores and explanations equal to the learner's, and typed refusals.

use serde_json::{Value, json};

use crate::fixture::{Example, Served, Trained, assert_close, examples, numbers};

fn body(examples: &[Example]) -> Value {
    json!({ "rows": examples.iter().map(Example::json).collect::<Vec<_>>() })
}

#[test]
fn scores_equal_those_of_files() {
    for kind in ["lr", "fm", "ffm"] {
        let trained = Trained::new(kind);
        let served = Served::new([trained.model(1)]);
        // More than are scored at a time.
        let rows = examples(700);
        let expected = trained.scores(&rows);
        let answer = served.json("/predict", Some(&body(&rows)));
        assert_eq!((&answer["model"], &answer["version"]), (&json!("clicks"), &json!("1")));
        assert_close(&numbers(&answer["scores"]), &expected);
        let by_row: Vec<f64> = rows[..20]
            .iter()
            .map(|row| numbers(&served.json("/predict", Some(&body(std::slice::from_ref(row))))["scores"])[0])
            .collect();
        assert_close(&by_row, &expected[..20]);
        assert_eq!(served.json("/predict", Some(&json!({ "rows": [] })))["scores"], json!([]));
    }
}

#[test]
fn explanations_add_up_to_the_logit() {
    for kind in ["lr", "fm", "ffm"] {
        let trained = Trained::new(kind);
        let served = Served::new([trained.model(1)]);
        let rows = examples(600);
        let mut asked = body(&rows);
        asked["explain"] = json!(true);
        let answer = served.json("/predict", Some(&asked));
        let scores = numbers(&answer["scores"]);
        assert_close(&scores, &trained.scores(&rows));
        let explanations = answer["explanations"].as_array().unwrap();
        assert_eq!(explanations.len(), rows.len());
        for (score, explanation) in scores.iter().zip(explanations) {
            let parts = explanation["contributions"].as_object().unwrap();
            assert_eq!(parts.keys().collect::<Vec<_>>(), ["user", "genres", "age"]);
            let sum: f64 = parts.values().map(|part| part.as_f64().unwrap()).sum();
            let logit = explanation["bias"].as_f64().unwrap() + sum;
            assert!((explanation["logit"].as_f64().unwrap() - logit).abs() < 1e-9, "{explanation}");
            let probability = 1.0 / (1.0 + (-logit).exp());
            assert!((probability - score).abs() < 1e-6, "{kind}: {probability} is not {score}");
        }
    }
}

/// Of logistic regression without repeated keys, a contribution is the weight of the feature's row.
#[test]
fn a_contribution_is_the_weight_in_the_table() {
    let trained = Trained::new("lr");
    let served = Served::new([trained.model(1)]);
    let row = json!({ "user": "u3", "genres": "g1", "age": null });
    let answer = served.json("/predict", Some(&json!({ "rows": [row], "explain": true })));
    for (table, value) in [("user", "u3"), ("genres", "g1")] {
        let rows = served.json(&format!("/tables/{table}/rows?value={value}"), None);
        let weight = rows["rows"][0]["weights"][0].as_f64().unwrap();
        let part = answer["explanations"][0]["contributions"][table].as_f64().unwrap();
        assert!(weight != 0.0 && (weight - part).abs() < 1e-7, "{table}: {weight}, {part}");
    }
}

#[test]
fn forms_of_a_value_have_one_score() {
    let trained = Trained::new("fm");
    let served = Served::new([trained.model(1)]);
    let rows = json!([
        { "user": "u1", "genres": ["g1", "g2"], "age": 3 },
        { "user": "u1", "genres": "g1|g2", "age": 3.0 },
        { "age": "3", "label": null, "genres": ["g1", "g2"], "user": "u1" },
        { "age": "3", "label": 1, "genres": ["g1", "g2"], "user": "u1" },
    ]);
    let scores = numbers(&served.json("/predict", Some(&json!({ "rows": rows })))["scores"]);
    assert!(scores.iter().all(|score| *score == scores[0]), "{scores:?}");
    for version in [json!(1), json!("1"), json!(null)] {
        let body = json!({ "rows": rows, "model": "clicks", "version": version });
        assert_eq!(numbers(&served.json("/predict", Some(&body))["scores"]), scores);
    }
}

#[test]
fn wrong_requests_are_refused_with_their_reason() {
    let served = Served::new([Trained::new("fm").model(3)]);
    let row = r#"{"user":"u1","genres":[],"age":1}"#;
    for (body, status, reason) in [
        (String::new(), 400, "the body: EOF"),
        ("[]".to_owned(), 400, "the body: "),
        (r#"{"row":[]}"#.to_owned(), 400, "unknown field `row`"),
        (r#"{"rows":[1]}"#.to_owned(), 400, "a row: an object of columns and values"),
        (
            format!(r#"{{"rows":[{row}],"model":"other"}}"#),
            404,
            "no model \"other\"; the served models are clicks",
        ),
        (format!(r#"{{"rows":[{row}],"version":1}}"#), 404, "no version \"1\"; served are 3"),
        (format!(r#"{{"rows":[{row}],"version":[]}}"#), 400, "version: a number or a text is expected"),
        (
            format!(r#"{{"rows":[{row},{{"usr":"u1"}}]}}"#),
            400,
            "row 1: no column \"usr\"; the columns are label, user, genres, age",
        ),
        (
            r#"{"rows":[{"user":"u1","age":1}]}"#.to_owned(),
            400,
            "row 0: has no column \"genres\"; a missing value is null",
        ),
        (r#"{"rows":[{"user":"u1","user":"u2"}]}"#.to_owned(), 400, "row 0: column \"user\" is there twice"),
        (
            r#"{"rows":[{"user":"u1","genres":[],"age":"old"}]}"#.to_owned(),
            400,
            "row 0: column \"age\": expected",
        ),
        (
            r#"{"rows":[{"user":["u1"],"genres":[],"age":1}]}"#.to_owned(),
            400,
            "row 0: column \"user\": expected",
        ),
        (r#"{"rows":[{"user":"u1","genres":[["g"]],"age":1}]}"#.to_owned(), 400, "a list in a list"),
        (
            r#"{"rows":[{"user":{},"genres":[],"age":1}]}"#.to_owned(),
            400,
            "a text, a number, true, false, null",
        ),
        (r#"{"rows":[{"user":"u1","genres":[],"age":NaN}]}"#.to_owned(), 400, "the body: expected value"),
        (r#"{"rows":[{"user":"u1","genres":[],"age":1e999}]}"#.to_owned(), 400, "number out of range"),
        (r#"{"rows":[{"user":"u1","genres":[],"age":1e30}]}"#.to_owned(), 200, ""),
    ] {
        match status {
            200 => assert_eq!(served.post("/predict", &body).status, 200, "{body}"),
            status => served.refuses("/predict", &body, status, reason),
        }
    }
}
