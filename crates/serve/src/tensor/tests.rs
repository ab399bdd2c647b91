//! Tests of tensors: both forms of a tensor are equal, and wrong ones are refused with a reason.

use proptest::prelude::*;

use super::*;

fn json(datatype: &str, shape: &[i64], data: &str) -> Result<(usize, usize), String> {
    let data: Cell<'_> = serde_json::from_str(data).expect(data);
    let tensor = Tensor::of_json("x", datatype, shape, &data).map_err(|error| error.to_string())?;
    Ok((tensor.rows, tensor.width))
}

#[test]
fn json_is_checked_by_datatype_and_shape() {
    let check = |datatype: &str, shape: &[i64], data: &str, expected: Result<(usize, usize), &str>| match (
        json(datatype, shape, data),
        expected,
    ) {
        (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{data}"),
        (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
        (found, expected) => panic!("{datatype} {shape:?} {data}: {found:?} is not {expected:?}"),
    };
    check("INT64", &[2], "[1,-2]", Ok((2, 1)));
    check("INT64", &[2, 2], "[[1,2],[3,4]]", Ok((2, 2)));
    check("INT64", &[2, 2], "[1,2,3,4]", Ok((2, 2)));
    check("INT64", &[0], "[]", Ok((0, 1)));
    check("BYTES", &[2, 1], "[\"a\",\"\"]", Ok((2, 1)));
    check("FP32", &[3], "[1,2.5,-3]", Ok((3, 1)));
    check("BOOL", &[1], "[true]", Ok((1, 1)));
    check("UINT64", &[1], "[18446744073709551615]", Ok((1, 1)));
    check("INT8", &[1], "[128]", Err("INT8 (-128 to 127), found"));
    check("UINT8", &[1], "[-1]", Err("UINT8 (0 to 255), found"));
    check("INT64", &[1], "[1.5]", Err("found 1.5"));
    check("INT64", &[1], "[null]", Err("found null"));
    check("BYTES", &[1], "[1]", Err("a text"));
    check("FP64", &[1], "[\"1\"]", Err("found \"1\""));
    check("FP16", &[1], "[1]", Err("no datatype \"FP16\"; there are BOOL"));
    check("INT64", &[3], "[1,2]", Err("2 values, which is not the product of its shape"));
    check("INT64", &[], "[1]", Err("1 to 8 dimensions"));
    check("INT64", &[-1], "[1]", Err("1 to 8 dimensions"));
    check("INT64", &[i64::MAX, i64::MAX, 2], "[1]", Err("not the product"));
    check("FP32", &[1], "[1e300]", Err("value 0 is inf"));
}

#[test]
fn bytes_are_checked_by_datatype_and_shape() {
    let check = |datatype: &str, shape: &[i64], bytes: &[u8], expected: Result<usize, &str>| match (
        Tensor::of_bytes("x", datatype, shape, bytes),
        expected,
    ) {
        (Ok(found), Ok(expected)) => assert_eq!(found.values.len(), expected, "{datatype} {bytes:?}"),
        (Err(found), Err(expected)) => assert!(found.to_string().contains(expected), "{found}"),
        (found, expected) => panic!("{datatype} {bytes:?}: {found:?} is not {expected:?}"),
    };
    check("INT32", &[1], &[1, 0, 0, 0], Ok(1));
    check("INT32", &[1], &[1, 0, 0], Err("3 bytes are no whole INT32"));
    check("BYTES", &[2], b"\x01\0\0\0a\0\0\0\0", Ok(2));
    check("BYTES", &[1], b"\x02\0\0\0a", Err("text 0 is longer"));
    check("BYTES", &[2], b"\x01\0\0\0a\xff\xff\xff\xff", Err("text 1 is longer"));
    check("BYTES", &[1], b"\x01\0", Err("text 0 is longer"));
    check("FP64", &[1], &f64::NAN.to_le_bytes(), Err("value 0 is NaN; a missing number"));
    check("FP32", &[1], &f32::INFINITY.to_le_bytes(), Err("value 0 is inf"));
    check("BOOL", &[2], &[0, 1], Ok(2));
}

proptest! {
    #[test]
    fn numbers_are_equal_in_both_forms(numbers in prop::collection::vec(any::<i32>(), 0..20)) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let shape = [numbers.len() as i64];
        let text = serde_json::to_string(&numbers).expect("it is JSON");
        let data: Cell<'_> = serde_json::from_str(&text).expect("it is JSON");
        let found = Tensor::of_json("x", "INT32", &shape, &data).expect("it is a tensor");
        prop_assert_eq!(&found, &Tensor::of_bytes("x", "INT32", &shape, &bytes).expect("it is a tensor"));
        prop_assert_eq!(found.values, Values::Ints(numbers.into_iter().map(i64::from).collect()));
    }

    #[test]
    fn texts_are_equal_in_both_forms(texts in prop::collection::vec(".{0,8}", 0..20)) {
        let mut bytes = Vec::new();
        for text in &texts {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        let shape = [texts.len() as i64];
        let text = serde_json::to_string(&texts).expect("it is JSON");
        let data: Cell<'_> = serde_json::from_str(&text).expect("it is JSON");
        let found = Tensor::of_json("x", "BYTES", &shape, &data).expect("it is a tensor");
        prop_assert_eq!(found, Tensor::of_bytes("x", "BYTES", &shape, &bytes).expect("it is a tensor"));
    }

    #[test]
    fn any_bytes_are_a_tensor_or_an_error(
        datatype in prop::sample::select(&DATATYPES[..]),
        shape in prop::collection::vec(-1_i64..5, 0..4),
        bytes in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        if let Ok(tensor) = Tensor::of_bytes("x", datatype, &shape, &bytes) {
            prop_assert_eq!(tensor.rows * tensor.width, tensor.values.len());
        }
    }
}
