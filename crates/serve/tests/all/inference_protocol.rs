//! The REST form of the Open Inference Protocol: metadata, tensors in JSON and in bytes, refusals.

use sanderling_testkit::http;
use serde_json::{Value, json};

use crate::fixture::{Example, Served, Trained, assert_close, examples, numbers};

/// Texts with their lengths before them.
pub(crate) fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    texts.into_iter().flat_map(text).collect()
}

/// The users, genres and ages of rows; a missing age is an empty text.
pub(crate) fn columns(rows: &[Example]) -> (Vec<&str>, Vec<&str>, Vec<usize>, Vec<String>) {
    let users = rows.iter().map(|row| &*row.user).collect();
    let genres = rows.iter().flat_map(|row| row.genres.iter().map(String::as_str)).collect();
    let lengths = rows.iter().map(|row| row.genres.len()).collect();
    let ages = rows.iter().map(|row| row.age.map(|age| age.to_string()).unwrap_or_default()).collect();
    (users, genres, lengths, ages)
}

#[test]
fn metadata_names_inputs_and_outputs() {
    let served = Served::new([Trained::new("fm").model(2), Trained::new("fm").model(4)]);
    let server = served.json("/v2", None);
    assert_eq!(
        (&server["name"], &server["extensions"]),
        (&json!("sanderling"), &json!(["binary_tensor_data"]))
    );
    let expected = json!({
        "name": "clicks",
        "versions": ["2", "4"],
        "platform": "sanderling",
        "inputs": [
            { "name": "user", "datatype": "BYTES", "shape": [-1] },
            { "name": "genres", "datatype": "BYTES", "shape": [-1, -1] },
            { "name": "age", "datatype": "FP64", "shape": [-1] },
        ],
        "outputs": [
            { "name": "score", "datatype": "FP32", "shape": [-1] },
            { "name": "contributions", "datatype": "FP32", "shape": [-1, 3] },
        ],
    });
    assert_eq!(served.json("/v2/models/clicks", None), expected);
    assert_eq!(served.json("/v2/models/clicks/versions/2", None), expected);
    assert_eq!(served.get("/v2/models/clicks/versions/x").status, 404);
}

#[test]
fn tensors_have_the_scores_of_files() {
    let trained = Trained::new("fm");
    let served = Served::new([trained.model(1)]);
    let rows = examples(600);
    let expected = trained.scores(&rows);
    let (users, genres, lengths, ages) = columns(&rows);
    let count = rows.len();
    let infer = "/v2/models/clicks/versions/1/infer";

    let body = json!({ "id": "a", "inputs": [
        { "name": "user", "datatype": "BYTES", "shape": [count], "data": users },
        { "name": "genres", "datatype": "BYTES", "shape": [genres.len()], "data": genres },
        { "name": "genres:lengths", "datatype": "INT32", "shape": [count], "data": lengths },
        { "name": "age", "datatype": "BYTES", "shape": [count, 1], "data": ages },
    ]});
    let answer = served.json(infer, Some(&body));
    let (score, names) =
        (&answer["outputs"][0], (&answer["model_name"], &answer["model_version"], &answer["id"]));
    assert_eq!(names, (&json!("clicks"), &json!("1"), &json!("a")));
    assert_eq!((&score["name"], &score["shape"]), (&json!("score"), &json!([count])));
    assert_close(&numbers(&score["data"]), &expected);

    let lengths_bytes: Vec<u8> = lengths.iter().flat_map(|length| (*length as i64).to_le_bytes()).collect();
    let parts =
        [texts(users), texts(genres.iter().copied()), lengths_bytes, texts(ages.iter().map(String::as_str))];
    let input = |name: &str, datatype: &str, length: usize, part: usize| json!({ "name": name, "datatype": datatype, "shape": [length], "parameters": { "binary_data_size": parts[part].len() } });
    let head = json!({
        "inputs": [
            input("user", "BYTES", count, 0),
            input("genres", "BYTES", genres.len(), 1),
            input("genres:lengths", "INT64", count, 2),
            input("age", "BYTES", count, 3),
        ],
        "outputs": [
            { "name": "contributions", "parameters": { "binary_data": false } },
            { "name": "score", "parameters": { "binary_data": true } },
        ],
    })
    .to_string();
    let length = format!("inference-header-content-length: {}", head.len());
    let body = [head.as_bytes(), &parts.concat()].concat();
    let reply = http(&served.address, "POST", infer, &[&length], &body);
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    let cut: usize = reply.header("inference-header-content-length").unwrap().parse().unwrap();
    let (head, bytes) = reply.body.split_at(cut);
    let head: Value = serde_json::from_slice(head).unwrap();
    assert_eq!(head["outputs"][1]["parameters"]["binary_data_size"], bytes.len());
    let scores: Vec<f64> =
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect();
    assert_close(&scores, &expected);
    let contributions = &head["outputs"][0];
    assert_eq!(contributions["shape"], json!([count, 3]));
    let explained = served.json("/predict", Some(&json!({ "rows": [rows[1].json()], "explain": true })));
    let expected = explained["explanations"][0]["contributions"].as_object().unwrap();
    let expected: Vec<f32> = expected.values().map(|part| part.as_f64().unwrap() as f32).collect();
    assert_close(&numbers(&contributions["data"])[3..6], &expected);
}

#[test]
fn lists_of_one_length_need_no_lengths() {
    let trained = Trained::new("fm");
    let served = Served::new([trained.model(1)]);
    let body = json!({ "inputs": [
        { "name": "user", "datatype": "BYTES", "shape": [2], "data": ["u1", "u2"] },
        { "name": "genres", "datatype": "BYTES", "shape": [2, 2], "data": [["g1", "g2"], ["g3", "g4"]] },
        { "name": "age", "datatype": "FP32", "shape": [2], "data": [1.5, 2] },
    ]});
    let rows = json!({ "rows": [
        { "user": "u1", "genres": ["g1", "g2"], "age": 1.5 },
        { "user": "u2", "genres": "g3|g4", "age": "2" },
    ]});
    let found = served.json("/v2/models/clicks/infer", Some(&body));
    let expected = served.json("/predict", Some(&rows));
    assert_eq!(numbers(&found["outputs"][0]["data"]), numbers(&expected["scores"]));
}

#[test]
fn wrong_tensors_are_refused_with_their_reason() {
    let served = Served::new([Trained::new("fm").model(1)]);
    let user = json!({ "name": "user", "datatype": "BYTES", "shape": [1], "data": ["u1"] });
    let genres = json!({ "name": "genres", "datatype": "BYTES", "shape": [1, 1], "data": ["g"] });
    let age = json!({ "name": "age", "datatype": "FP32", "shape": [1], "data": [1] });
    let with = |input: &Value, name: &str, value: Value| {
        let mut input = input.clone();
        input[name] = value;
        input
    };
    let inputs = |inputs: &[&Value]| json!({ "inputs": inputs });
    let outputs = |names: &[&str]| {
        let outputs: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
        json!({ "inputs": [user, genres, age], "outputs": outputs })
    };
    let lengths = |data: Value| json!({ "name": "genres:lengths", "datatype": "INT32", "shape": [data.as_array().unwrap().len()], "data": data });
    for (body, reason) in [
        (json!({}), "missing field `inputs`"),
        (inputs(&[&user, &genres]), "no input \"age\""),
        (
            inputs(&[&user, &genres, &age, &with(&age, "name", json!("agee"))]),
            "input \"agee\": no column \"agee\"",
        ),
        (inputs(&[&user, &user, &genres, &age]), "input \"user\" is there twice"),
        (inputs(&[&with(&user, "shape", json!([2])), &genres, &age]), "1 values, which is not the product"),
        (inputs(&[&with(&user, "datatype", json!("TEXT")), &genres, &age]), "no datatype \"TEXT\""),
        (inputs(&[&with(&user, "data", json!([1])), &genres, &age]), "expected BYTES, a text, found"),
        (
            inputs(&[&user, &genres, &with(&with(&age, "shape", json!([2])), "data", json!([1, 2]))]),
            "input \"age\" has 2 rows, others have 1",
        ),
        (
            inputs(&[&with(&with(&user, "shape", json!([1, 2])), "data", json!(["a", "b"])), &genres, &age]),
            "2 values per row of a column that takes one",
        ),
        (inputs(&[&user, &genres, &age, &lengths(json!([2]))]), "the lengths do not add up to the 1 values"),
        (inputs(&[&user, &genres, &age, &lengths(json!([-1]))]), "the lengths do not add up"),
        (
            inputs(&[&user, &genres, &age, &lengths(json!([0, 1]))]),
            "\"genres:lengths\" has 2 rows, others have 1",
        ),
        (inputs(&[&user, &with(&genres, "data", json!([null])), &age]), "found null"),
        (
            inputs(&[&user, &with(&genres, "parameters", json!({ "binary_data_size": 3 })), &age]),
            "has data and binary_data_size",
        ),
        (
            inputs(&[&json!({ "name": "user", "datatype": "BYTES", "shape": [1] }), &genres, &age]),
            "has neither data nor binary_data_size",
        ),
        (
            inputs(&[&with(&user, "parameters", json!({ "shared_memory_region": "x" })), &genres, &age]),
            "shared memory is not supported",
        ),
        (outputs(&["probability"]), "no output \"probability\"; there are score, contributions"),
        (outputs(&["score", "score", "score"]), "asked for twice"),
    ] {
        served.refuses("/v2/models/clicks/infer", &body.to_string(), 400, reason);
    }
    let infer = |length: &str, body: &[u8]| {
        let header = format!("inference-header-content-length: {length}");
        let reply = http(&served.address, "POST", "/v2/models/clicks/infer", &[&header], body);
        assert_eq!(reply.status, 400);
        reply.text().to_owned()
    };
    assert!(infer("9", b"{}").contains("Inference-Header-Content-Length is 9, the body has 2 bytes"));
    assert!(infer("x", b"{}").contains("is no number"));
    let head = inputs(&[&user, &genres, &age]).to_string();
    let reply = infer(&head.len().to_string(), format!("{head}abc").as_bytes());
    assert!(reply.contains("3 bytes of the body belong to no input"), "{reply}");
    served.refuses("/v2/models/other/infer", "{}", 404, "no model \"other\"");
    served.refuses("/v2/models/clicks/versions/9/infer", "{}", 404, "no version \"9\"; served are 1");
}
