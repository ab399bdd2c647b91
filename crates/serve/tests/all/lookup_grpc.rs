//! The gRPC service of rows, with the client that its definition generates.

use sanderling_serve::lookup_proto::lookup_client::LookupClient;
use sanderling_serve::lookup_proto::{Dtype, Keys, Pooling, Rows, RowsRequest};
use serde_json::Value;
use tonic::{Code, Status};

use crate::fixture::{Served, Trained, numbers};

fn ask(served: &Served, request: RowsRequest) -> Result<Vec<Rows>, Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = LookupClient::connect(served.server.url().to_owned()).await.unwrap();
        let reply = client.rows(request).await?.into_inner();
        assert_eq!((&*reply.model, reply.version), ("clicks", 7));
        Ok(reply.tables)
    })
}

fn weights(rows: &Rows) -> Vec<f32> {
    rows.weights.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn values(values: &[&'static str]) -> Vec<axum::body::Bytes> {
    values.iter().map(|value| value.as_bytes().into()).collect()
}

/// Key and weights of a value, as JSON has them.
fn row(served: &Served, table: &str, value: &str) -> (u64, Vec<f32>) {
    let answer: Value = served.json(&format!("/tables/{table}/rows?value={value}"), None);
    let weights = numbers(&answer["rows"][0]["weights"]).iter().map(|weight| *weight as f32).collect();
    (answer["rows"][0]["key"].as_u64().unwrap(), weights)
}

#[test]
fn rows_of_several_tables_are_those_of_json() {
    let trained = Trained::new("fm");
    let served = Served::new([trained.model(7)]);
    let ((key, user), (first, second)) =
        (row(&served, "user", "u5"), (row(&served, "genres", "g0"), row(&served, "genres", "g1")));
    let user_keys = Keys { table: "user".to_owned(), keys: vec![1, key, key], ..Default::default() };
    let genres = Keys { table: "genres".to_owned(), values: values(&["g0", "", "x"]), ..Default::default() };
    let pooled = Keys {
        values: values(&["g0|g1", "g1", "x"]),
        pooling: Pooling::Sum.into(),
        offsets: vec![0, 1, 1, 3],
        ..genres.clone()
    };
    let mean = Keys {
        values: values(&["g0|g1"]),
        pooling: Pooling::Mean.into(),
        offsets: Vec::new(),
        ..pooled.clone()
    };
    let tables =
        vec![user_keys.clone(), genres, pooled, mean, Keys { keys: Vec::new(), ..user_keys.clone() }];
    let request = RowsRequest { tables, ..Default::default() };
    let found = ask(&served, request.clone()).unwrap();
    let dim = user.len();
    let zeros = vec![0.0; dim];
    let sum: Vec<f32> = first.1.iter().zip(&second.1).map(|(a, b)| a + b).collect();
    let half: Vec<f32> = sum.iter().map(|weight| weight / 2.0).collect();
    for (at, (found, (expected, absent))) in found
        .iter()
        .zip([
            ([&*zeros, &*user, &*user].concat(), &[0][..]),
            ([&*first.1, &*zeros, &*zeros].concat(), &[1, 2]),
            ([&*sum, &*zeros, &*second.1].concat(), &[2]),
            (half, &[]),
            (Vec::new(), &[]),
        ])
        .enumerate()
    {
        assert_eq!(
            (found.dim as usize, found.rows as usize, &*found.absent),
            (dim, expected.len() / dim, absent),
            "{at}"
        );
        assert_eq!(weights(found), expected, "{at}");
    }
    let halves = ask(&served, RowsRequest { dtype: Dtype::F16.into(), ..request }).unwrap();
    assert_eq!((halves[0].weights.len(), &halves[0].absent), (3 * dim * 2, &vec![0]));
}

#[test]
fn wrong_requests_are_refused_with_their_reason() {
    let served = Served::with(|config| config.batch_max = 4, [Trained::new("lr").model(7)]);
    let keys =
        |count: u64| Keys { table: "user".to_owned(), keys: (0..count).collect(), ..Default::default() };
    let request = |tables: &[Keys]| RowsRequest { tables: tables.to_vec(), ..Default::default() };
    let sum = Pooling::Sum.into();
    for (request, code, reason) in [
        (
            RowsRequest { model: "other".to_owned(), ..request(&[keys(1)]) },
            Code::NotFound,
            "no model \"other\"",
        ),
        (RowsRequest { version: "8".to_owned(), ..request(&[keys(1)]) }, Code::NotFound, "no version \"8\""),
        (request(&[Keys { table: "x".to_owned(), ..keys(1) }]), Code::NotFound, "no table \"x\""),
        (
            request(&[Keys { values: values(&["a"]), ..keys(1) }]),
            Code::InvalidArgument,
            "has keys and values",
        ),
        (request(&[Keys { lengths: vec![1], ..keys(1) }]), Code::InvalidArgument, "without a pooling"),
        (
            request(&[Keys { lengths: vec![2], pooling: sum, ..keys(1) }]),
            Code::InvalidArgument,
            "the lengths add up to 2",
        ),
        (
            request(&[Keys { offsets: vec![0], pooling: sum, ..keys(1) }]),
            Code::InvalidArgument,
            "offsets ascend from 0",
        ),
        (request(&[Keys { pooling: 9, ..keys(1) }]), Code::InvalidArgument, "no such pooling"),
        (request(&[keys(2), keys(3)]), Code::InvalidArgument, "5 keys in one request, at most 4"),
        (
            request(&[Keys { lengths: vec![0; 5], pooling: sum, ..keys(0) }]),
            Code::InvalidArgument,
            "5 keys in one request",
        ),
        (request(&vec![keys(0); 257]), Code::InvalidArgument, "257 tables in one request, at most 256"),
        (
            request(&[Keys { table: "genres".to_owned(), values: values(&["a|b"]), ..Default::default() }]),
            Code::InvalidArgument,
            "a value has 2 keys, not one",
        ),
    ] {
        let status = ask(&served, request).unwrap_err();
        assert!(status.code() == code && status.message().contains(reason), "{status}");
    }
    let metrics = served.get("/metrics").text().to_owned();
    let line = "sanderling_serve_requests_total{protocol=\"grpc\",endpoint=\"rows\",model=\"clicks\",version=\"7\",code=\"InvalidArgument\"} 9";
    assert!(metrics.contains(line), "{line} is not in\n{metrics}");
}
