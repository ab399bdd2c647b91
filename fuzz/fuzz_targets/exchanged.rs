//! Any bytes as what workers and runs hand to each other beside messages: rows of a shuffle, saved scores, a run's
//! configuration as TOML and as JSON, a feature spec, addresses. What is read can be written and read again. Knows the crates'
//! public API, and of the job what it shows to fuzzers.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use sanderling_learner::{Config, Scores};
use sanderling_sample::{Batch, Spec};

fuzz_target!(|bytes: &[u8]| {
    let Some((&what, bytes)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    match what % 6 {
        0 => {
            let mut batch = Batch::new(&[false, true]);
            if sanderling_job::unpack_rows(bytes, &mut batch).is_ok() {
                let (mut packed, mut again) = (Vec::new(), Batch::like(&batch));
                sanderling_job::pack_rows(&batch, &mut packed).expect("what was read can be written");
                sanderling_job::unpack_rows(&packed, &mut again).expect("what was written can be read");
                let bits = |floats: &[f32]| floats.iter().map(|float| float.to_bits()).collect::<Vec<_>>();
                for (column, other) in batch.columns.iter().zip(&again.columns) {
                    assert_eq!(column.offsets, other.offsets);
                    assert_eq!(column.keys, other.keys);
                    assert_eq!(bits(&column.values), bits(&other.values));
                }
                assert_eq!(
                    (bits(&batch.labels), bits(&batch.weights)),
                    (bits(&again.labels), bits(&again.weights))
                );
            }
        }
        1 => {
            if let Some(scores) = Scores::from_bytes(bytes, 1 << 10) {
                assert_eq!(scores.to_bytes(), bytes, "as it was");
                let _ = scores.metrics();
            }
        }
        2 => {
            if let Ok(config) = Config::parse(&text, Path::new("a.toml"), "a") {
                let again = config.to_toml();
                Config::parse(&again, Path::new("b.toml"), "b")
                    .unwrap_or_else(|error| panic!("{error}: {again}"));
            }
        }
        3 => {
            let _ = Config::from_json(&text, |_| ());
        }
        4 => {
            if let Ok(spec) = serde_json::from_str::<Spec>(&text) {
                let _ = spec.expand();
                let options = sanderling_sample::EncodeOptions {
                    missing: &[],
                    label: sanderling_sample::LabelUse::Optional,
                    down_sample: true,
                };
                let _ = sanderling_sample::Encoder::new(&spec, &options);
            }
        }
        _ => {
            if let Ok(address) = text.parse::<sanderling_transport::Address>() {
                let again = address.to_string().parse::<sanderling_transport::Address>();
                assert_eq!(again.expect("an address can be written and read"), address);
            }
        }
    }
});
