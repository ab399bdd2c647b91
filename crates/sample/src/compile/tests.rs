//! Bounds of what one feature makes of a row.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use super::*;
use crate::batch::Batch;
use crate::spec::Spec;

#[test]
fn a_cross_has_a_bound_on_its_keys() {
    let spec: Spec = toml::from_str(
        "feature = [{ name = \"x\", type = \"cross\", columns = [\"a\", \"b\"], separator = \"|\" }]",
    )
    .unwrap();
    let feature = spec.expand().unwrap().feature.remove(0);
    let compiled = Compiled::new(&feature, vec![0, 1]);
    let values: Vec<String> = (0..257).map(|value| value.to_string()).collect();
    let (many, fewer) = (values.join("|"), values[..256].join("|"));
    let encode = |a: &str, b: &str| {
        let mut batch = Batch::new(&[false]);
        let fields = [Field::Text(a.as_bytes()), Field::Text(b.as_bytes())];
        compiled.encode(&fields, &[], &mut batch.columns[0]).map(|()| batch.columns[0].keys.len())
    };
    assert_eq!(encode(&fewer, &fewer), Ok(CROSS_KEYS_MAX));
    let error = encode(&many, &fewer).unwrap_err();
    assert_eq!(error.expected, format!("at most {CROSS_KEYS_MAX} combinations of the values of a cross"));
}
