//! The gRPC form of the Open Inference Protocol.

use std::borrow::Cow;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::batches::{self, Step};
use crate::catalog::Models;
use crate::error::{ServeError, quoted};
use crate::infer::{self, EXTENSIONS, InferRequest, Output, PLATFORM, WantedOutput};
use crate::models::ServedModel;
use crate::proto;
use crate::proto::model_infer_request::InferInputTensor;
use crate::proto::model_infer_response::InferOutputTensor;
use crate::proto::model_metadata_response::TensorMetadata;
use crate::service::Service;
use crate::shadow;
use crate::tensor::{Tensor, Values};
use crate::work::{Asked, status};

/// Parameter of a tensor in shared memory.
const SHARED_MEMORY: &str = "shared_memory_region";

/// The service of a server.
pub(crate) struct Inference(pub(crate) Arc<Service>);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl proto::grpc_inference_service_server::GrpcInferenceService for Inference {
    async fn server_live(&self, _: Request<proto::ServerLiveRequest>) -> Answer<proto::ServerLiveResponse> {
        Ok(Response::new(proto::ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<proto::ServerReadyRequest>,
    ) -> Answer<proto::ServerReadyResponse> {
        Ok(Response::new(proto::ServerReadyResponse { ready: self.0.is_ready() }))
    }

    async fn model_ready(
        &self,
        request: Request<proto::ModelReadyRequest>,
    ) -> Answer<proto::ModelReadyResponse> {
        let proto::ModelReadyRequest { name, version } = request.into_inner();
        self.0.models.current().find(&name, &version).map_err(|error| status(&error))?;
        Ok(Response::new(proto::ModelReadyResponse { ready: self.0.is_ready() }))
    }

    async fn server_metadata(
        &self,
        _: Request<proto::ServerMetadataRequest>,
    ) -> Answer<proto::ServerMetadataResponse> {
        Ok(Response::new(proto::ServerMetadataResponse {
            name: "sanderling".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: EXTENSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<proto::ModelMetadataRequest>,
    ) -> Answer<proto::ModelMetadataResponse> {
        let proto::ModelMetadataRequest { name, version } = request.into_inner();
        let models = self.0.models.current();
        let model = models.find(&name, &version).map_err(|error| status(&error))?;
        let tensor = |(name, datatype, shape): (&str, &str, Vec<i64>)| TensorMetadata {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape,
        };
        Ok(Response::new(proto::ModelMetadataResponse {
            name: model.name.clone(),
            versions: models.versions(&model.name).map(|version| version.to_string()).collect(),
            platform: PLATFORM.to_owned(),
            inputs: infer::inputs(&model).map(tensor).collect(),
            outputs: infer::outputs(&model).map(tensor).collect(),
        }))
    }

    async fn model_infer(
        &self,
        request: Request<proto::ModelInferRequest>,
    ) -> Answer<proto::ModelInferResponse> {
        let asked = request.extensions().get::<Asked>().cloned().unwrap_or_default();
        let (models, request) = (self.0.models.current(), Arc::new(request.into_inner()));
        let repeat = shadow::is_wanted(&models).then(|| (Arc::clone(&models), Arc::clone(&request)));
        if repeat.is_some() {
            asked.keep_scores();
        }
        let noted = asked.clone();
        let work = noted.queued(move || answer(&models, &asked, &request));
        let service = &self.0;
        let done = batches::run(&service.threads, service.batching, &noted.times, work).await;
        if let (Ok(_), Some((models, request))) = (&done, repeat) {
            let again = move |models: &Models, asked: &Asked| answer(models, asked, &request).map(drop);
            service.shadow.offer(service.threads.waiting() > 0, &models, &noted, again);
        }
        done.map(Response::new).map_err(|error| status(&error))
    }
}

/// Answers `ModelInfer`.
fn answer(
    models: &Models,
    asked: &Asked,
    request: &proto::ModelInferRequest,
) -> Result<Step<proto::ModelInferResponse>, ServeError> {
    let model = models.find(&request.model_name, &request.model_version)?;
    asked.of(&model);
    let raw = &request.raw_input_contents;
    let is_binary = !raw.is_empty();
    if is_binary && raw.len() != request.inputs.len() {
        let text = format!("{} inputs and {} raw_input_contents", request.inputs.len(), raw.len());
        return Err(ServeError::invalid(text));
    }
    let inputs = request.inputs.iter().enumerate().map(|(at, input)| {
        let invalid = |text: &str| ServeError::invalid(format!("input {}: {text}", quoted(&input.name)));
        if input.parameters.contains_key(SHARED_MEMORY) {
            return Err(invalid("shared memory is not supported; send the values"));
        }
        match (raw.get(at), &input.contents) {
            (Some(_), Some(_)) => Err(invalid("has contents and raw_input_contents; give one")),
            (Some(bytes), None) => Tensor::of_bytes(&input.name, &input.datatype, &input.shape, bytes),
            (None, contents) => of_contents(input, contents.as_ref()),
        }
    });
    let outputs =
        request.outputs.iter().map(|output| WantedOutput { name: output.name.clone(), is_binary: None });
    let inferred = InferRequest {
        id: request.id.clone(),
        inputs: inputs.collect::<Result<_, _>>()?,
        outputs: outputs.collect(),
        is_binary,
    };
    let found = infer::infer(&model, &inferred, asked)?;
    let InferRequest { id, outputs, .. } = inferred;
    let (asked, of) = (asked.clone(), Arc::clone(&model));
    batches::answer(found, &model, move |scores| {
        Ok(reply(&of, id, infer::outputs_of(&of, &scores, &outputs, is_binary, &asked), is_binary))
    })
}

fn reply(
    model: &ServedModel,
    id: String,
    outputs: Vec<Output>,
    is_binary: bool,
) -> proto::ModelInferResponse {
    let raw_output_contents = match is_binary {
        true => outputs.iter().map(|output| output.bytes().into()).collect(),
        false => Vec::new(),
    };
    let output = |output: Output| InferOutputTensor {
        name: output.name.to_owned(),
        datatype: "FP32".to_owned(),
        shape: output.shape.iter().map(|length| *length as i64).collect(),
        contents: (!is_binary)
            .then(|| proto::InferTensorContents { fp32_contents: output.values, ..Default::default() }),
        ..InferOutputTensor::default()
    };
    proto::ModelInferResponse {
        model_name: model.name.clone(),
        model_version: model.version.to_string(),
        id,
        outputs: outputs.into_iter().map(output).collect(),
        raw_output_contents,
        ..Default::default()
    }
}

/// A tensor whose values are fields of the message.
fn of_contents<'a>(
    input: &InferInputTensor,
    contents: Option<&'a proto::InferTensorContents>,
) -> Result<Tensor<'a>, ServeError> {
    let Some(contents) = contents else {
        return Tensor::of_bytes(&input.name, &input.datatype, &input.shape, &[]);
    };
    let values = match &*input.datatype {
        "BOOL" => Values::Bools(contents.bool_contents.clone()),
        "INT8" | "INT16" | "INT32" => {
            Values::Ints(contents.int_contents.iter().copied().map(i64::from).collect())
        }
        "INT64" => Values::Ints(contents.int64_contents.clone()),
        "UINT8" | "UINT16" | "UINT32" => {
            Values::Unsigned(contents.uint_contents.iter().copied().map(u64::from).collect())
        }
        "UINT64" => Values::Unsigned(contents.uint64_contents.clone()),
        "FP32" => Values::Floats(contents.fp32_contents.iter().copied().map(f64::from).collect()),
        "FP64" => Values::Floats(contents.fp64_contents.clone()),
        "BYTES" => Values::Texts(contents.bytes_contents.iter().map(|text| Cow::Borrowed(&**text)).collect()),
        // The error of a datatype that does not exist.
        datatype => return Tensor::of_bytes(&input.name, datatype, &input.shape, &[]),
    };
    Tensor::new(&input.name, &input.shape, values)
}
