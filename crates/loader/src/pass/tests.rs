//! Shuffle buffers that more rows do not fit into.

use sanderling_observe::Stages;
use sanderling_sample::{EncodeOptions, LabelUse, Spec};

use super::*;
use crate::STAGES;

/// Rows of one key each.
const ROWS: usize = 1000;
/// Bytes of a unit, and so about this many rows of each.
const UNIT_BYTES: usize = 600;

#[test]
fn a_shuffle_buffer_that_holds_fewer_rows_than_it_should_is_an_error_where_a_run_may_go_on_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.libsvm");
    std::fs::write(&path, "0 1:1\n".repeat(ROWS)).unwrap();
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: true };
    let encoder = Arc::new(Encoder::new(&Spec::libsvm(), &options).unwrap());
    let check = |shuffle: usize, workers: usize, keys_max: usize, expected: Result<usize, &str>| {
        let options =
            PassOptions { shuffle, seed: 1, number: 0, workers, used_rows: 0, unit_bytes: UNIT_BYTES };
        let config = DataConfig::default();
        let bad_rows = Arc::new(BadRows::new(config.on_bad_row));
        let inputs = [path.to_string_lossy().into_owned()];
        let mut pass = Pass::open(&inputs, &config, &encoder, &bad_rows, options).unwrap();
        pass.keys_max = keys_max;
        let (mut feed, mut timer, mut found) = (pass.feed(), Stages::new(&STAGES).timer(), Ok(0));
        while let Ok(rows) = &mut found {
            match feed.next(64, &mut timer) {
                Ok(Some(next)) => *rows += next.len(),
                Ok(None) => break,
                Err(error) => found = Err(error.to_string()),
            }
        }
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
            (found, _) => panic!("{shuffle} rows of {workers} workers, {keys_max} keys: {found:?}"),
        }
    };
    check(500, 1, 501, Ok(ROWS));
    check(500, 1, 300, Err("shuffle_rows = 500: 300 rows have 300 keys of one feature"));
    check(200, 1, 300, Ok(ROWS));
    // All that there are.
    check(5000, 1, ROWS + 1, Ok(ROWS));
    // The rows that several workers used are no prefix of the input anyway.
    check(1000, 2, 300, Ok(ROWS));
    check(0, 1, 300, Ok(ROWS));
}
