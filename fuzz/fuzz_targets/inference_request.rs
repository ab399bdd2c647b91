//! Any bytes as a request of the Open Inference Protocol: decoding of JSON and of binary tensors does not panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sanderling_serve::InferRequest;

/// The JSON of a request whose one input is the bytes after it.
fn binary(datatype: u8, rows: i64, width: i64, bytes: usize) -> String {
    const DATATYPES: [&str; 6] = ["BYTES", "BOOL", "INT32", "UINT64", "FP32", "FP64"];
    let datatype = DATATYPES[usize::from(datatype) % DATATYPES.len()];
    format!(
        r#"{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":[{rows},{width}],"parameters":{{"binary_data_size":{bytes}}}}}]}}"#
    )
}

fuzz_target!(|bytes: &[u8]| {
    let _ = InferRequest::parse(bytes, None);
    let Some((&[cut, datatype, rows, width], rest)) = bytes.split_first_chunk() else { return };
    let _ = InferRequest::parse(rest, Some(cut.into()));
    // Then with what it takes to get through the JSON, so that tensors are reached.
    let head = binary(datatype, rows.into(), width.into(), rest.len());
    let body = [head.as_bytes(), rest].concat();
    let _ = InferRequest::parse(&body, Some(head.len()));
});
