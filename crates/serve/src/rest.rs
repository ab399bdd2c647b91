//! The REST form of the Open Inference Protocol: JSON, with tensors as JSON or as bytes after it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::catalog::{Models, bytes_of};
use crate::cell::Cell;
use crate::error::{ServeError, quoted};
use crate::infer::{self, EXTENSIONS, InferRequest, Output, PLATFORM, WantedOutput};
use crate::models::ServedModel;
use crate::tensor::Tensor;
use crate::work::{Answer, Asked};

/// The JSON of a request.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    parameters: Parameters,
    #[serde(borrow)]
    inputs: Vec<Input<'a>>,
    #[serde(default)]
    outputs: Vec<HeadOutput>,
}

#[derive(Deserialize)]
struct Input<'a> {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    #[serde(default)]
    parameters: Parameters,
    #[serde(default, borrow)]
    data: Option<Cell<'a>>,
}

#[derive(Deserialize)]
struct HeadOutput {
    name: String,
    #[serde(default)]
    parameters: Parameters,
}

/// The parameters that the server knows; it ignores others.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Parameters {
    binary_data_size: Option<usize>,
    binary_data: Option<bool>,
    binary_data_output: Option<bool>,
    shared_memory_region: Option<String>,
}

impl<'a> InferRequest<'a> {
    /// Parses the body of a request. `json_bytes` is the length of its JSON, if bytes come after it.
    ///
    /// # Errors
    /// The body is malformed.
    pub fn parse(body: &'a [u8], json_bytes: Option<usize>) -> Result<InferRequest<'a>, ServeError> {
        let cut = json_bytes.unwrap_or(body.len());
        let Some((json, mut bytes)) = body.split_at_checked(cut) else {
            let text = format!("Inference-Header-Content-Length is {cut}, the body has {} bytes", body.len());
            return Err(ServeError::invalid(text));
        };
        let head: Head<'a> = serde_json::from_slice(json)
            .map_err(|error| ServeError::invalid(format!("the request: {error}")))?;
        let mut inputs = Vec::with_capacity(head.inputs.len());
        for Input { name, datatype, shape, parameters, data } in head.inputs {
            let invalid = |text: &str| ServeError::invalid(format!("input {}: {text}", quoted(&name)));
            if parameters.shared_memory_region.is_some() {
                return Err(invalid("shared memory is not supported; send the values"));
            }
            inputs.push(match (parameters.binary_data_size, data) {
                (Some(_), Some(_)) => return Err(invalid("has data and binary_data_size; give one")),
                (None, None) => return Err(invalid("has neither data nor binary_data_size")),
                (None, Some(data)) => Tensor::of_json(&name, &datatype, &shape, &data)?,
                (Some(size), None) => {
                    let parts = bytes.split_at_checked(size);
                    let (values, rest) =
                        parts.ok_or_else(|| invalid("binary_data_size is more than is left of the body"))?;
                    bytes = rest;
                    Tensor::of_bytes(&name, &datatype, &shape, values)?
                }
            });
        }
        if !bytes.is_empty() {
            let text = format!("{} bytes of the body belong to no input", bytes.len());
            return Err(ServeError::invalid(text));
        }
        let outputs = head.outputs.into_iter().map(|output| {
            let is_binary = output.parameters.binary_data;
            WantedOutput { name: output.name, is_binary }
        });
        Ok(InferRequest {
            id: head.id.unwrap_or_default(),
            inputs,
            outputs: outputs.collect(),
            is_binary: head.parameters.binary_data_output.unwrap_or_default(),
        })
    }
}

#[derive(Serialize)]
struct Reply<'a> {
    model_name: &'a str,
    model_version: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    outputs: Vec<ReplyOutput<'a>>,
}

#[derive(Serialize)]
struct ReplyOutput<'a> {
    name: &'static str,
    datatype: &'static str,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<ReplyParameters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a [f32]>,
}

#[derive(Serialize)]
struct ReplyParameters {
    binary_data_size: usize,
}

/// Answers `infer` of a model.
pub(crate) fn answer(
    model: &ServedModel,
    asked: &Asked,
    body: &[u8],
    json_bytes: Option<usize>,
) -> Result<Answer, ServeError> {
    let request = InferRequest::parse(body, json_bytes)?;
    let outputs = infer::infer(model, &request, asked.batch_max)?;
    asked.count_rows(outputs.first().map_or(0, |output| output.shape[0]));
    let parts: Vec<Vec<u8>> = outputs.iter().filter(|output| output.is_binary).map(Output::bytes).collect();
    let reply = |output| {
        let Output { name, shape, values, is_binary }: &Output = output;
        let size = is_binary.then_some(values.len() * size_of::<f32>());
        ReplyOutput {
            name,
            datatype: "FP32",
            shape,
            parameters: size.map(|binary_data_size| ReplyParameters { binary_data_size }),
            data: (!is_binary).then_some(values),
        }
    };
    let outputs = outputs.iter().map(reply).collect();
    let (model_name, model_version) = (&*model.name, model.version.to_string());
    let answer = Answer::json(&Reply { model_name, model_version, id: &request.id, outputs })?;
    Ok(answer.with_bytes(&parts))
}

#[derive(Serialize)]
struct TensorMetadata<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: Vec<i64>,
}

impl<'a> From<(&'a str, &'static str, Vec<i64>)> for TensorMetadata<'a> {
    fn from((name, datatype, shape): (&'a str, &'static str, Vec<i64>)) -> TensorMetadata<'a> {
        TensorMetadata { name, datatype, shape }
    }
}

/// Metadata of the server.
pub(crate) fn server_metadata() -> Result<Answer, ServeError> {
    Answer::json(&serde_json::json!({
        "name": "sanderling",
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": EXTENSIONS,
    }))
}

/// Metadata of a model.
pub(crate) fn model_metadata(models: &Models, model: &ServedModel) -> Result<Answer, ServeError> {
    let versions: Vec<String> = models.versions(&model.name).map(|version| version.to_string()).collect();
    #[derive(Serialize)]
    struct Metadata<'a> {
        name: Cow<'a, str>,
        versions: Vec<String>,
        platform: &'static str,
        inputs: Vec<TensorMetadata<'a>>,
        outputs: Vec<TensorMetadata<'a>>,
    }
    Answer::json(&Metadata {
        name: Cow::Borrowed(&model.name),
        versions,
        platform: PLATFORM,
        inputs: infer::inputs(model).map(Into::into).collect(),
        outputs: infer::outputs(model).map(Into::into).into_iter().collect(),
    })
}

/// Lists the models with their columns, features and tables, for the page and for people.
pub(crate) fn list(models: &Models) -> Result<Answer, ServeError> {
    let model = |model: &std::sync::Arc<ServedModel>| {
        let config = model.model.config();
        let tables = model.model.tables().map(|table| {
            let reads = |feature: &&sanderling_sample::spec::Feature| feature.table() == table.name();
            let features = config.feature.iter().filter(reads).map(|feature| &feature.name);
            serde_json::json!({
                "name": table.name(), "rows": table.len(), "dim": table.dim(),
                "features": features.collect::<Vec<_>>(),
            })
        });
        let columns = model.columns.iter().filter(|column| !column.is_optional).map(|column| {
            serde_json::json!({ "name": column.name, "number": column.is_number, "list": column.takes_list })
        });
        serde_json::json!({
            "name": model.name,
            "version": model.version.to_string(),
            "aliases": models.aliases_of(model).collect::<Vec<_>>(),
            "description": config.describe(),
            "regression": model.is_regression(),
            "rows": model.rows(),
            "bytes": model.model.table_bytes(),
            "columns": columns.collect::<Vec<_>>(),
            "features": model.features().collect::<Vec<_>>(),
            "tables": tables.collect::<Vec<_>>(),
        })
    };
    let all: u64 = models.iter().map(|model| model.table_bytes()).sum();
    Answer::json(&serde_json::json!({
        "models": models.iter().map(model).collect::<Vec<_>>(),
        "shared_bytes": all - bytes_of(models.iter()),
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..60), cut in 0_usize..70) {
            let _ = InferRequest::parse(&bytes, None);
            prop_assert!(cut <= bytes.len() || InferRequest::parse(&bytes, Some(cut)).is_err());
            let size = bytes.len();
            for datatype in ["BYTES", "BOOL", "INT32", "FP64"] {
                let head = format!(
                    r#"{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":[{cut}],"parameters":{{"binary_data_size":{size}}}}}]}}"#
                );
                let body = [head.as_bytes(), &bytes].concat();
                if let Ok(request) = InferRequest::parse(&body, Some(head.len())) {
                    prop_assert_eq!(request.inputs[0].rows, cut);
                }
            }
        }

        #[test]
        fn a_changed_request_is_a_request_or_an_error(at in 0_usize..200, byte in any::<u8>()) {
            let mut json = br#"{"id":"a","inputs":[{"name":"user","datatype":"BYTES","shape":[2],"data":["u17","u18"]},{"name":"age","datatype":"FP32","shape":[2,1],"data":[[1],[2.5]]}],"outputs":[{"name":"score"}]}"#.to_vec();
            prop_assert!(InferRequest::parse(&json, None).is_ok());
            let at = at % json.len();
            json[at] = byte;
            let _ = InferRequest::parse(&json, None);
        }
    }
}
