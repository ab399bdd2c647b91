//! Rows of tables by key and by value.

use sanderling_learner::{Model, Reading};
use sanderling_sample::Field;
use serde_json::{Value, json};

use crate::fixture::{Served, Trained, numbers};

#[test]
fn rows_are_those_of_the_model() {
    let trained = Trained::new("fm");
    let served = Served::new([trained.model(1)]);
    let model = Model::load(&trained.path).unwrap();
    let key = Reading::from(model.config()).key("user", Field::Text(b"u5")).unwrap();
    let expected = model.table("user").unwrap().get(key).unwrap().weights;
    let check = |row: &Value| {
        assert_eq!((row["key"].as_u64(), row["found"].as_bool()), (Some(key), Some(true)), "{row}");
        assert_eq!(row["hex"], format!("{key:016x}"));
        let weights: Vec<f32> = numbers(&row["weights"]).iter().map(|weight| *weight as f32).collect();
        assert_eq!(weights, expected);
    };
    for query in [
        format!("key={key}"),
        format!("key=0x{key:x}"),
        "value=u5".to_owned(),
        "value=%755&feature=user".to_owned(),
    ] {
        let answer = served.json(&format!("/tables/user/rows?{query}"), None);
        assert_eq!((&answer["table"], &answer["dim"]), (&json!("user"), &json!(expected.len())));
        check(&answer["rows"][0]);
    }
    let body = json!({ "keys": [1, key, key.to_string()], "values": ["u5", "nobody"] });
    let answer = served.json("/tables/user/rows", Some(&body));
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    rows[1..4].iter().for_each(check);
    assert_eq!(rows[0], json!({ "key": 1, "hex": "0000000000000001", "found": false, "weights": null }));
    assert_eq!(
        (&rows[4]["value"], &rows[4]["found"], &rows[4]["weights"]),
        (&json!("nobody"), &json!(false), &Value::Null)
    );
    assert_eq!(rows[3]["value"], "u5");
}

#[test]
fn wrong_lookups_are_refused_with_their_reason() {
    let served = Served::new([Trained::new("lr").model(1)]);
    for (table, body, status, reason) in [
        (
            "nowhere",
            r#"{"keys":[1]}"#,
            404,
            "no table \"nowhere\"; the tables of \"clicks\" are user, genres, age",
        ),
        ("user", "{}", 400, "no keys; give key or value"),
        (
            "user",
            r#"{"keys":["u5"]}"#,
            400,
            "a key is a number from 0 to 2^64 - 1, or 0x and hex digits, found \"u5\"",
        ),
        ("user", r#"{"keys":[-1]}"#, 400, "a key is a number"),
        (
            "user",
            r#"{"values":["u5"],"feature":"genres"}"#,
            400,
            "no feature \"genres\" reads this table; there are user",
        ),
        ("user", r#"{"values":[["a"]]}"#, 400, "a list has no single key"),
        ("genres", r#"{"values":["a|b"]}"#, 400, "a value has 2 keys, not one"),
        ("user", r#"{"values":["u5"],"model":"x"}"#, 404, "no model \"x\""),
    ] {
        served.refuses(&format!("/tables/{table}/rows"), body, status, reason);
    }
    let reply = served.get("/tables/user/rows?kay=1");
    assert!(
        reply.status == 400 && reply.text().contains("there are key, value, feature"),
        "{}",
        reply.text()
    );
}
