//! Rows of tables by key and by value.

use sanderling_learner::{Model, Reading};
use sanderling_sample::Field;
use sanderling_testkit::http;
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

/// The numbers of a binary answer: dtype, rows, dim, version, places of absent rows, weights.
fn parsed(body: &[u8]) -> (u32, u32, u32, u64, Vec<u32>, Vec<f32>) {
    let number = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().unwrap());
    assert_eq!(&body[..4], b"SROW");
    let (dtype, rows, dim, absent) = (number(4), number(8), number(12), number(24) as usize);
    let version = u64::from_le_bytes(body[16..24].try_into().unwrap());
    let absent: Vec<u32> = (0..absent).map(|at| number(28 + at * 4)).collect();
    let weights = body[28 + absent.len() * 4..].as_chunks().0;
    (dtype, rows, dim, version, absent, weights.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// Every form of a request and of its answer has the same rows.
#[test]
fn bytes_have_the_rows_of_json() {
    let trained = Trained::new("fm");
    let served = Served::new([trained.model(7)]);
    let octets = "application/octet-stream";
    let users = ["u5", "nobody", "", "u0", "u5"];
    let json: Vec<Value> = ["u5", "nobody", "u0", "u5"]
        .map(|user| served.json(&format!("/tables/user/rows?value={user}"), None)["rows"][0].clone())
        .to_vec();
    let weights_of = |row: &Value, dim: usize| match row["found"].as_bool().unwrap() {
        true => numbers(&row["weights"]).iter().map(|weight| *weight as f32).collect(),
        false => vec![0.0; dim],
    };
    let dim = numbers(&json[0]["weights"]).len();
    let mut expected: Vec<Vec<f32>> = json.iter().map(|row| weights_of(row, dim)).collect();
    let keys: Vec<u8> = json.iter().flat_map(|row| row["key"].as_u64().unwrap().to_le_bytes()).collect();
    let post = |path: &str, sent: &str, body: &[u8]| {
        let (sent, accept) = (format!("content-type: {sent}"), format!("accept: {octets}"));
        let reply = http(&served.address, "POST", path, &[&sent, &accept], body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body.escape_ascii());
        assert_eq!(reply.header("content-type"), Some(octets));
        parsed(&reply.body)
    };
    let rows = |absent: &[u32], weights: &[Vec<f32>]| {
        (0, weights.len() as u32, dim as u32, 7, absent.to_vec(), weights.concat())
    };
    assert_eq!(post("/tables/user/rows", octets, &keys), rows(&[1], &expected));
    let body = json!({ "values": ["u5", "nobody", "u0", "u5"] }).to_string();
    assert_eq!(post("/tables/user/rows", "application/json", body.as_bytes()), rows(&[1], &expected));
    // A missing value has no row.
    expected.insert(2, vec![0.0; dim]);
    let texts = crate::inference_protocol::texts(users);
    assert_eq!(post("/tables/user/rows?input=values", octets, &texts), rows(&[1, 2], &expected));
    let halves = post("/tables/user/rows?dtype=f16", octets, &keys);
    assert_eq!((halves.0, halves.1, halves.2, &halves.4), (1, 4, dim as u32, &vec![1]));
    let get =
        http(&served.address, "GET", "/tables/user/rows?value=u5", &[&format!("accept: {octets}")], b"");
    assert_eq!(parsed(&get.body), rows(&[], &expected[..1]));
    for (path, sent, reason) in [
        ("/tables/user/rows", &keys[..7], "7 bytes: keys have 8 bytes each"),
        ("/tables/user/rows?input=values", &texts[..5], "value 0 is cut"),
        ("/tables/user/rows?input=text", &[], "no input \"text\"; there are keys, values"),
        ("/tables/user/rows?dtype=f8", &keys, "no dtype \"f8\"; there are f32, f16"),
    ] {
        let reply = http(&served.address, "POST", path, &[&format!("content-type: {octets}")], sent);
        let error: Value = serde_json::from_str(reply.text()).unwrap();
        assert!(reply.status == 400 && error["error"].as_str().unwrap().contains(reason), "{path}: {error}");
    }
}

#[test]
fn pooled_rows_are_sums_and_means() {
    let trained = Trained::new("fm");
    let served = Served::new([trained.model(1)]);
    let row = |value: &str| -> Vec<f64> {
        numbers(&served.json(&format!("/tables/genres/rows?value={value}"), None)["rows"][0]["weights"])
    };
    let (first, second) = (row("g0"), row("g1"));
    let sum: Vec<f64> = first.iter().zip(&second).map(|(a, b)| a + b).collect();
    let check = |answer: &Value, expected: &[&[f64]], absent: Value| {
        assert_eq!(answer["absent"], absent, "{answer}");
        let rows = answer["rows"].as_array().unwrap();
        assert_eq!(rows.len(), expected.len());
        for (row, expected) in rows.iter().zip(expected) {
            for (found, expected) in numbers(&row["weights"]).iter().zip(*expected) {
                assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
            }
        }
    };
    let answer = served.json("/tables/genres/rows?value=g0&value=g1&pooling=sum", None);
    check(&answer, &[&sum], json!([]));
    let halves: Vec<f64> = sum.iter().map(|weight| weight / 2.0).collect();
    // A text of several values has their rows.
    let body = json!({ "values": ["g0|g1", "nothing", "g0"], "pooling": "mean", "lengths": [1, 0, 2] });
    let of_last: Vec<f64> = first.iter().map(|weight| weight / 2.0).collect();
    let zeros = vec![0.0; sum.len()];
    let answer = served.json("/tables/genres/rows", Some(&body));
    check(&answer, &[&halves, &zeros, &of_last], json!([1]));
    assert_eq!(answer["pooling"], "mean");
    for (body, reason) in [
        (r#"{"keys":[1],"pooling":"max"}"#, "no pooling \"max\"; there are sum, mean"),
        (r#"{"keys":[1],"lengths":[1]}"#, "lengths without a pooling"),
        (r#"{"keys":[1],"pooling":"sum","lengths":[2]}"#, "the lengths add up to 2, not to the 1 keys"),
    ] {
        served.refuses("/tables/genres/rows", body, 400, reason);
    }
    let many = json!({ "keys": [1], "pooling": "sum", "lengths": vec![0; 5000].into_iter().chain([1]).collect::<Vec<_>>() });
    served.refuses("/tables/genres/rows", &many.to_string(), 413, "5001 keys in one request, at most 4096");
}
