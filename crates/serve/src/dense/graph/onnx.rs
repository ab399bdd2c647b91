//! The messages of an ONNX file, as far as dense parts have them.

use prost::Message;

use crate::dense::graph::tensor::Tensor;

/// `TensorProto.DataType`
const FLOAT: i32 = 1;
const INT64: i32 = 7;

#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
}

/// The graph: nodes in an order in which they can be computed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub(crate) node: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) initializer: Vec<TensorProto>,
}

/// An operator.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub(crate) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) output: Vec<String>,
    #[prost(string, tag = "4")]
    pub(crate) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attribute: Vec<Attribute>,
}

/// A constant choice of an operator.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attribute {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(float, tag = "2")]
    pub(crate) f: f32,
    #[prost(int64, tag = "3")]
    pub(crate) i: i64,
    #[prost(int64, repeated, tag = "8")]
    pub(crate) ints: Vec<i64>,
}

/// A constant tensor.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(float, repeated, tag = "4")]
    float_data: Vec<f32>,
    #[prost(int64, repeated, tag = "7")]
    int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub(crate) name: String,
    #[prost(bytes = "vec", tag = "9")]
    raw_data: Vec<u8>,
}

/// Parses an ONNX file.
pub(crate) fn parse(bytes: &[u8]) -> Result<GraphProto, String> {
    let model = Model::decode(bytes).map_err(|error| format!("the ONNX file is damaged: {error}"))?;
    model.graph.ok_or_else(|| "the ONNX file has no graph".to_owned())
}

impl Node {
    pub(crate) fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// An integer, or its default.
    pub(crate) fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).map_or(default, |attribute| attribute.i)
    }

    /// A float, or its default.
    pub(crate) fn float(&self, name: &str, default: f32) -> f32 {
        self.attribute(name).map_or(default, |attribute| attribute.f)
    }
}

impl TensorProto {
    /// The tensor.
    pub(crate) fn tensor(&self) -> Result<Tensor, String> {
        let lengths = self.dims.iter().map(|length| usize::try_from(*length).ok());
        let shape: Option<Vec<usize>> = lengths.collect();
        let count =
            shape.as_ref().and_then(|shape| shape.iter().try_fold(1_usize, |all, it| all.checked_mul(*it)));
        let damaged = || format!("the ONNX file is damaged: tensor {:?}", self.name);
        let shape = shape.ok_or_else(damaged)?;
        let tensor = match self.data_type {
            FLOAT if self.raw_data.is_empty() => Tensor::floats(shape, self.float_data.clone()),
            FLOAT => {
                let values = self.raw_data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
                Tensor::floats(shape, values.collect())
            }
            INT64 if self.raw_data.is_empty() => Tensor::ints(shape, self.int64_data.clone()),
            INT64 => {
                let values = self.raw_data.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
                Tensor::ints(shape, values.collect())
            }
            other => return Err(format!("tensor {:?} of data type {other} is not known", self.name)),
        };
        if count == Some(tensor.len()) { Ok(tensor) } else { Err(damaged()) }
    }
}
