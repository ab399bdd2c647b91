//! Deep models in serving: embeddings from tables in memory, and the dense part from the ONNX file that
//! `sanderling export --onnx` wrote.

mod description;
pub(crate) use description::FILE as DESCRIPTION_FILE;

mod engine;
pub use engine::Engines;
#[cfg(test)]
pub(crate) use engine::{DenseEngine, DenseInput};

mod graph;

mod inputs;
pub(crate) use inputs::DenseInputs;

mod model;
pub(crate) use model::DeepModel;

mod onnx_runtime;

mod scorer;
pub(crate) use scorer::DeepScorer;
