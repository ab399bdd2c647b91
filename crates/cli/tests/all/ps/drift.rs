//! Keys of a server against those of the checkpoint that it started from.

use std::process::Command;
use std::time::{Duration, Instant};

use sanderling_testkit::{RawClient, TABLE};

use crate::status_pages::{LONG, Web, with_token_file};

/// Keys of a push that are sampled, and the pushes that tell something of them.
const KEYS: u64 = 250;
const PUSHES: u64 = 12;

/// Pushes keys of one half of the space of hashes; returns what the page of the table says.
fn table_after(ps: &Web, half: u64) -> String {
    let address = ps.said[0].strip_prefix("listening at ").unwrap().parse().unwrap();
    let mut peer = RawClient::silent(&address).unwrap();
    peer.hello("secret", "").unwrap();
    let table = peer.create("t", TABLE).unwrap();
    let of_half = |key: &u64| key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == half;
    let keys: Vec<u64> = (0..).filter(of_half).take(KEYS as usize).collect();
    for sequence in 1..=PUSHES {
        peer.push(table, sequence, &keys, 0.5).unwrap();
    }
    ps.get("/tables/t", &[]).text().to_owned()
}

#[test]
fn other_keys_than_before_the_start_are_told() {
    let folder = with_token_file();
    let line =
        "ps --listen 127.0.0.1:0 --no-local --threads 1 --token-file token --data data --sample-every 1";
    for (half, expected) in [(0, None), (0, Some("0.0")), (1, Some(""))] {
        let mut ps = Web::start(folder.path(), line).with_token("secret");
        let page = table_after(&ps, half);
        let trained = page.lines().find(|line| line.starts_with("key_drift_trained"));
        let Some(expected) = expected else {
            assert_eq!(trained, None, "{page}");
            end(&mut ps);
            continue;
        };
        let drift = trained.unwrap_or_else(|| panic!("{page}")).split_whitespace().nth(1).unwrap();
        assert!(drift.starts_with(expected), "{drift}");
        let (metrics, series) = (ps.get("/metrics", &[]), "sanderling_table_key_drift_trained{table=\"t\"} ");
        assert!(metrics.text().contains(series), "{}", metrics.text());
        let is_other = drift.parse::<f64>().unwrap() > 0.25;
        assert_eq!(is_other, half > 0, "{drift}");
        end(&mut ps);
    }
}

/// Ends a server, which saves its tables.
fn end(ps: &mut Web) {
    let kill = Command::new("kill").args(["-TERM", &ps.child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let start = Instant::now();
    while ps.child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < LONG, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}
