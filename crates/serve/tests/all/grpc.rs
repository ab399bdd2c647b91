//! The gRPC form of the Open Inference Protocol, with the client that its definition generates.

use sanderling_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use sanderling_serve::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use sanderling_serve::proto::{self, InferTensorContents, ModelInferRequest};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::fixture::{Served, Trained, assert_close, examples};
use crate::inference_protocol::{columns, texts};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn input(name: &str, datatype: &str, length: usize) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![length as i64],
        ..Default::default()
    }
}

#[test]
fn tensors_have_the_scores_of_files() {
    let trained = Trained::new("ffm");
    let served = Served::new([trained.model(1)]);
    let rows = examples(200);
    let expected = trained.scores(&rows);
    let (users, genres, lengths, ages) = columns(&rows);
    let names = [
        input("user", "BYTES", rows.len()),
        input("genres", "BYTES", genres.len()),
        input("genres:lengths", "INT64", rows.len()),
        input("age", "BYTES", rows.len()),
    ];
    let bytes = |texts: &[&str]| InferTensorContents {
        bytes_contents: texts.iter().map(|text| text.as_bytes().to_vec().into()).collect(),
        ..Default::default()
    };
    let ages: Vec<&str> = ages.iter().map(String::as_str).collect();
    let numbers = InferTensorContents {
        int64_contents: lengths.iter().map(|length| *length as i64).collect(),
        ..Default::default()
    };
    let contents = [bytes(&users), bytes(&genres), numbers, bytes(&ages)];
    let with_contents = names.iter().cloned().zip(contents);
    let inputs: Vec<_> = with_contents
        .map(|(input, contents)| InferInputTensor { contents: Some(contents), ..input })
        .collect();
    let request =
        ModelInferRequest { model_name: "clicks".to_owned(), id: "7".to_owned(), ..Default::default() };
    let lengths = lengths.iter().flat_map(|length| (*length as i64).to_le_bytes()).collect::<Vec<u8>>();
    let raw = [texts(users), texts(genres), lengths, texts(ages)].map(Into::into).to_vec();
    runtime().block_on(async {
        let mut client = GrpcInferenceServiceClient::connect(served.server.url().to_owned()).await.unwrap();
        let plain = ModelInferRequest { inputs, ..request.clone() };
        let reply = client.model_infer(plain.clone()).await.unwrap().into_inner();
        assert_eq!((&*reply.model_name, &*reply.model_version, &*reply.id), ("clicks", "1", "7"));
        let found = reply.outputs[0].contents.as_ref().unwrap();
        let found: Vec<f64> = found.fp32_contents.iter().copied().map(f64::from).collect();
        assert_close(&found, &expected);

        let outputs = ["contributions", "score"]
            .map(|name| InferRequestedOutputTensor { name: name.to_owned(), ..Default::default() });
        let raw = ModelInferRequest {
            inputs: names.to_vec(),
            outputs: outputs.to_vec(),
            raw_input_contents: raw,
            ..request
        };
        let reply = client.model_infer(raw.clone()).await.unwrap().into_inner();
        assert_eq!(reply.outputs[0].shape, [rows.len() as i64, 3]);
        let found: Vec<f64> = reply.raw_output_contents[1]
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes).into())
            .collect();
        assert_close(&found, &expected);

        let both = ModelInferRequest { inputs: plain.inputs, ..raw.clone() };
        for (request, code, reason) in [
            (
                ModelInferRequest { model_name: "other".to_owned(), ..raw.clone() },
                Code::NotFound,
                "no model \"other\"",
            ),
            (
                ModelInferRequest { model_version: "2".to_owned(), ..raw.clone() },
                Code::NotFound,
                "no version \"2\"",
            ),
            (both, Code::InvalidArgument, "has contents and raw_input_contents"),
            (
                ModelInferRequest { inputs: names[..1].to_vec(), ..raw },
                Code::InvalidArgument,
                "1 inputs and 4 raw_input_contents",
            ),
            (
                ModelInferRequest { inputs: vec![input("user", "FP16", 0)], ..Default::default() },
                Code::InvalidArgument,
                "no datatype \"FP16\"",
            ),
        ] {
            let status = client.model_infer(request).await.unwrap_err();
            assert!(status.code() == code && status.message().contains(reason), "{status}");
        }
    });
    let metrics = served.get("/metrics").text().to_owned();
    for line in [
        "sanderling_serve_requests_total{protocol=\"grpc\",endpoint=\"infer\",model=\"clicks\",version=\"1\",code=\"Ok\"} 2",
        "sanderling_serve_requests_total{protocol=\"grpc\",endpoint=\"infer\",model=\"\",version=\"\",code=\"NotFound\"} 2",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[test]
fn metadata_and_health_are_those_of_http() {
    let trained = Trained::new("lr");
    let token = "0123456789abcdef";
    let served = Served::with(|config| config.token = Some(token.to_owned()), []);
    runtime().block_on(async {
        let channel = tonic::transport::Channel::from_shared(served.server.url().to_owned())
            .unwrap()
            .connect()
            .await
            .unwrap();
        let mut health = HealthClient::new(channel.clone());
        let mut client = GrpcInferenceServiceClient::new(channel);
        assert!(client.server_live(proto::ServerLiveRequest {}).await.unwrap().into_inner().live);
        assert!(!client.server_ready(proto::ServerReadyRequest {}).await.unwrap().into_inner().ready);
        served.server.publish(sanderling_serve::Models::new([trained.model(1)]));
        assert!(client.server_ready(proto::ServerReadyRequest {}).await.unwrap().into_inner().ready);
        while health.check(HealthCheckRequest::default()).await.unwrap().into_inner().status()
            != ServingStatus::Serving
        {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let ask = || proto::ModelMetadataRequest { name: "clicks".to_owned(), version: String::new() };
        let refused = client.model_metadata(ask()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
        let mut request = tonic::Request::new(ask());
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        let metadata = client.model_metadata(request).await.unwrap().into_inner();
        let inputs: Vec<_> =
            metadata.inputs.iter().map(|input| (&*input.name, &*input.datatype, &*input.shape)).collect();
        assert_eq!(
            inputs,
            [("user", "BYTES", &[-1][..]), ("genres", "BYTES", &[-1, -1]), ("age", "FP64", &[-1])]
        );
        assert_eq!((metadata.versions, metadata.platform), (vec!["1".to_owned()], "sanderling".to_owned()));
    });
}
