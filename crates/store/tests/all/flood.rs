//! Keys chosen to collide under a public hash.

use std::time::Instant;

use sanderling_store::{Absent, Init, Optimizer, PushScale, Table, TableConfig};

/// The key with this hash under the public finalizer of `SplitMix64`.
fn key_of(hash: u64) -> u64 {
    let mut key = hash ^ (hash >> 31) ^ (hash >> 62);
    key = key.wrapping_mul(0x3196_42B2_D24D_8EC3);
    key = (key ^ (key >> 27) ^ (key >> 54)).wrapping_mul(0x96DE_1B17_3F11_9089);
    (key ^ (key >> 30) ^ (key >> 60)).wrapping_sub(0x9E37_79B9_7F4A_7C15)
}

/// Under a public hash, each key would be found after all earlier ones.
#[test]
fn chosen_keys_are_found_as_fast_as_others() {
    let keys: Vec<u64> = (0..100_000).map(key_of).collect();
    let table =
        Table::new(TableConfig::single("t", 1, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 })).unwrap();
    let begun = Instant::now();
    for keys in keys.chunks(1000) {
        table.push(keys, &vec![-1.0; keys.len()], PushScale::default()).unwrap();
    }
    let lines = table.lines_per_search(&keys);
    assert!(lines < 1.5, "{lines} lines per search, after {:?}", begun.elapsed());
    let mut weights = vec![0.0; keys.len()];
    assert_eq!(table.pull(&keys, Absent::Zero, &mut weights, None).unwrap(), 0);
    assert!(weights.iter().all(|&weight| weight == 1.0));
    let mut seen = Vec::new();
    table.for_each_key(|_| true, |key| seen.push(key));
    seen.sort_unstable();
    let mut keys = keys;
    keys.sort_unstable();
    assert!(seen == keys);
}
