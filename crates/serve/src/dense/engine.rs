//! Engines of dense parts: the interface, and the choice of one.

use std::path::PathBuf;

use crate::dense::graph::Graph;
use crate::dense::onnx_runtime::OnnxRuntime;

/// An input of the dense part: its shape and its values in row-major order.
pub(crate) struct DenseInput<'a> {
    /// The number of rows, then the shape of each.
    pub(crate) shape: [i64; 3],
    /// Dimensions of `shape` in use.
    pub(crate) dimensions: usize,
    pub(crate) values: &'a [f32],
}

/// A loaded dense part. Threads share it; each run uses the calling thread only.
pub(crate) trait DenseEngine: Send + Sync {
    /// Its name, for people.
    fn name(&self) -> &'static str;

    /// Runs the dense part and appends its output; the inputs are in the order of their names.
    ///
    /// # Errors
    /// The message of the engine.
    fn run(&self, inputs: &[DenseInput<'_>], output: &mut Vec<f32>) -> Result<(), String>;
}

/// The names of the dense part's inputs and output.
pub(crate) struct Signature {
    pub(crate) inputs: Vec<String>,
    pub(crate) output: String,
}

/// The choice of an engine for the dense part of deep models.
#[derive(Debug, Clone, Default)]
pub struct Engines {
    /// The ONNX Runtime library, or a directory with it; by default it is looked for.
    pub onnxruntime: Option<PathBuf>,
    /// A directory where it is looked for first: that of the `onnxruntime` package of the running Python.
    pub package: Option<PathBuf>,
    /// Takes the engine that is built in, and loads no library.
    pub built_in: bool,
}

impl Engines {
    /// Loads a dense part by ONNX Runtime, or without its library by the engine that is built in.
    ///
    /// # Errors
    /// A named library that is none, or a file that the engine cannot read.
    pub(crate) fn load(&self, onnx: &[u8], signature: &Signature) -> Result<Box<dyn DenseEngine>, String> {
        match if self.built_in {
            None
        } else {
            Some(OnnxRuntime::find(self.onnxruntime.as_deref(), self.package.as_deref()))
        } {
            Some(Ok(runtime)) => Ok(Box::new(runtime.session(onnx, signature)?)),
            Some(Err(error)) if self.onnxruntime.is_some() => Err(error),
            _ => Ok(Box::new(Graph::load(onnx, signature)?)),
        }
    }
}
