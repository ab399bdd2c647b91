//! The libsvm parser with every instruction set against the careful reading of each line by itself.

use std::path::Path;

use proptest::prelude::*;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};

use super::*;
use crate::bad_rows::BadRows;
use crate::format::BadRowPolicy;
use crate::lines::WINDOW_BYTES;

fn encoder(settings: &str, feature: &str) -> Encoder {
    let spec = format!("{settings}\n[[feature]]\nname = \"features\"\ntype = \"sparse\"\n{feature}");
    let spec: Spec = toml::from_str(&spec).unwrap();
    Encoder::new(&spec, &EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: true })
        .unwrap()
}

/// The rows of a text by the careful reading, and the first messages about bad ones.
fn expected(encoder: &Encoder, text: &[u8]) -> (Batch, Vec<String>) {
    let (mut batch, mut messages) = (encoder.new_batch(), Vec::new());
    for (line, text) in (1..).zip(text.strip_suffix(b"\n").unwrap_or(text).split(|&byte| byte == b'\n')) {
        let mut pairs = Vec::new();
        let push = |index, value| pairs.push((index, value));
        match careful_line(text, |label| encoder.label_of_text(label), push) {
            Ok(None) => {}
            Ok(Some(label)) => {
                if let Some(weight) = encoder.keep(label, line) {
                    pairs
                        .iter()
                        .for_each(|&(index, value)| batch.columns[0].push(encoder.libsvm_key(index), value));
                    batch.close_row(label, weight);
                }
            }
            Err(LineError { token, expected, found }) => {
                messages.push(format!("x:{line}: column {token}: expected {expected}, found {found}"));
                batch.close_row(f32::NAN, f32::NAN);
            }
        }
    }
    messages.truncate(crate::bad_rows::BAD_ROW_MESSAGES_MAX);
    (batch, messages)
}

fn check(encoder: &Encoder, text: &[u8]) {
    let (expected, messages) =
        if text.is_empty() { (encoder.new_batch(), Vec::new()) } else { expected(encoder, text) };
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let bad_rows = BadRows::new(BadRowPolicy::Skip { max: u64::MAX }).placeholder(true);
        let path = Path::new("x");
        let lines = Lines { encoder, bad_rows: &bad_rows, path, row_id_base: 0, isa };
        let mut batch = encoder.new_batch();
        decode(&lines, &Block::of_text(text, 1), &mut Scratch::default(), &mut batch).unwrap();
        // By their text, so that NaN equals NaN and -0 differs from 0.
        assert_eq!(
            format!("{batch:?}"),
            format!("{expected:?}"),
            "{isa:?} {:?}",
            text.escape_ascii().to_string()
        );
        assert_eq!(bad_rows.messages(), messages);
    }
}

type Pairs = Vec<(u64, f32)>;

fn plain(line: &str) -> Result<(f32, Pairs), (usize, &'static str, String)> {
    let encoder = encoder("", "");
    check(&encoder, line.as_bytes());
    let mut pairs = Vec::new();
    let label = careful_line(
        line.as_bytes(),
        |label| encoder.label_of_text(label),
        |index, value| pairs.push((index, value)),
    );
    label
        .map(|label| (label.unwrap_or(-1.0), pairs))
        .map_err(|error| (error.token, error.expected, error.found))
}

#[test]
fn lines_that_read() {
    type Row<'a> = (&'a str, f32, &'a [(u64, f32)]);
    let rows: [Row<'_>; 12] = [
        (
            "1 3:0.25 5:12 1048823:1 20388211:1",
            1.0,
            &[(3, 0.25), (5, 12.0), (1_048_823, 1.0), (20_388_211, 1.0)],
        ),
        ("0", 0.0, &[]),
        ("-1 1:1", 0.0, &[(1, 1.0)]),
        ("+1 1:1 \r", 1.0, &[(1, 1.0)]),
        ("0.7\t1:-1.5e-3  2:+2", 1.0, &[(1, -0.0015), (2, 2.0)]),
        ("1 18446744073709551615:0.333333333333", 1.0, &[(u64::MAX, 0.333_333_34)]),
        ("  1  1:.5   2:5.  ", 1.0, &[(1, 0.5), (2, 5.0)]),
        ("1 qid:7 1:1 # 2:2", 1.0, &[(1, 1.0)]),
        ("1 1:1 #2:2", 1.0, &[(1, 1.0)]),
        ("# nothing but a comment", -1.0, &[]),
        ("0 0:0 0:0", 0.0, &[(0, 0.0), (0, 0.0)]),
        ("1 00000000000000000000000003:1", 1.0, &[(3, 1.0)]),
    ];
    for (line, label, pairs) in rows {
        assert_eq!(plain(line), Ok((label, pairs.to_vec())), "{line:?}");
    }
}

#[test]
fn lines_that_do_not() {
    let rows = [
        ("x 1:1", 1, "a label (a number)", "\"x\""),
        ("1:1 2:1", 1, "a label before the first index:value", "\"1:1\""),
        ("1 2", 2, "index:value", "\"2\""),
        ("1 1:1 2:", 3, "a finite number after the colon", "\"2:\""),
        ("1 :1", 2, "an unsigned integer of 64 bits before the colon", "\":1\""),
        ("1 -1:1", 2, "an unsigned integer of 64 bits before the colon", "\"-1:1\""),
        ("1 1:2:3", 2, "index:value (field:index:value is libffm: set format = \"libffm\")", "\"1:2:3\""),
        (
            "1 18446744073709551616:1",
            2,
            "an unsigned integer of 64 bits before the colon",
            "\"18446744073709551616:1\"",
        ),
        ("1 1:nan", 2, "a finite number after the colon", "\"1:nan\""),
        ("1 1:1e39", 2, "a finite number after the colon", "\"1:1e39\""),
        ("1 1:.", 2, "a finite number after the colon", "\"1:.\""),
        ("1 1:1\u{0}", 2, "a finite number after the colon", "\"1:1\\x00\""),
        ("1 1:1\r2:2", 2, "a finite number after the colon", "\"1:1\\r2:2\""),
        ("1 é:1", 2, "an unsigned integer of 64 bits before the colon", "\"\\xc3\\xa9:1\""),
        ("\r", 1, "a row", "an empty line"),
        (" ", 1, "a row", "an empty line"),
    ];
    for (line, token, expected, found) in rows {
        assert_eq!(plain(line), Err((token, expected, found.to_string())), "{line:?}");
    }
}

#[test]
fn a_line_longer_than_the_window_reads_like_any_other() {
    let pairs: String = (0..4 * WINDOW_BYTES).map(|index| format!(" {index}:1")).collect();
    check(&encoder("", ""), format!("1 1:1\n1{pairs}\n0 2:2\n").as_bytes());
}

fn token() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => (any::<u64>(), 0_u32..64).prop_map(|(index, shift)| format!(" {}:1", index >> shift)),
        4 => (0_u32..1000, 0_u32..100_000, 0_u32..7).prop_map(|(index, mantissa, power)|
            format!(" {index}:{}", f64::from(mantissa) / 10_f64.powi(power as i32))),
        2 => (0_u32..1000, any::<f32>()).prop_map(|(index, value)| format!(" {index}:{value:e}")),
        1 => "[ \t0-9:.#q+-]{0,12}",
    ]
}

fn text() -> impl Strategy<Value = String> {
    let line = (
        prop_oneof![8 => "[01]", 2 => "[-+]1", 1 => "[-0-9.x ]{0,4}"],
        proptest::collection::vec(token(), 0..12),
        prop_oneof![6 => Just("\n"), 1 => Just("\r\n"), 1 => Just(" \n")],
    );
    proptest::collection::vec(line.prop_map(|(label, tokens, end)| label + &tokens.concat() + end), 0..20)
        .prop_map(|lines| lines.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_instruction_set_reads_what_the_careful_reading_does(text in text(), cut in 0_usize..2000,
        changes in proptest::collection::vec((any::<prop::sample::Index>(),
            prop_oneof![proptest::sample::select(b" :\n\r\t.019#-e\0".to_vec()), any::<u8>()]), 0..4)) {
        let mut text = text.into_bytes();
        text.truncate(cut);
        if !text.is_empty() {
            for (at, byte) in changes {
                let at = at.index(text.len());
                text[at] = byte;
            }
        }
        check(&encoder("", ""), &text);
        check(&encoder("negatives = {keep = 0.5}", ""), &text);
    }

    #[test]
    fn keys_may_be_hashed(text in text()) {
        check(&encoder("", "key = \"hash\""), text.as_bytes());
    }
}
