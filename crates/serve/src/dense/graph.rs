//! The engine that is built in: an interpreter of ONNX graphs with the operators that exported dense parts have. Slower
//! than ONNX Runtime, but always there.

mod matrix;

mod onnx;

mod operator;

mod tensor;

use std::collections::HashMap;

use crate::dense::engine::{DenseEngine, DenseInput, Signature};
use operator::Operator;
use tensor::Tensor;

/// A dense part that is computed operator by operator.
pub(crate) struct Graph {
    /// Values that do not change, by their place; inputs and results are filled in by a run.
    constants: Vec<Option<Tensor>>,
    inputs: Vec<usize>,
    steps: Vec<Step>,
    output: usize,
}

/// An operator with the places of its operands and of its result.
struct Step {
    operator: Operator,
    operands: Vec<usize>,
    result: usize,
    /// Places that no later step reads.
    last_used: Vec<usize>,
}

impl Graph {
    /// Reads an ONNX file.
    ///
    /// # Errors
    /// A damaged file, or an operator that is not known.
    pub(crate) fn load(bytes: &[u8], signature: &Signature) -> Result<Graph, String> {
        let graph = onnx::parse(bytes)?;
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut constants = Vec::new();
        for initializer in &graph.initializer {
            places.insert(&initializer.name, constants.len());
            constants.push(Some(initializer.tensor()?));
        }
        let mut inputs = Vec::new();
        for name in &signature.inputs {
            inputs.push(constants.len());
            places.insert(name, constants.len());
            constants.push(None);
        }
        let mut steps = Vec::with_capacity(graph.node.len());
        for node in &graph.node {
            let known = |name: &String| {
                let missing = || {
                    format!("the ONNX file is damaged: {} reads {name:?}, which is not there", node.op_type)
                };
                places.get(name.as_str()).copied().ok_or_else(missing)
            };
            let operands: Vec<usize> = node.input.iter().map(known).collect::<Result<_, _>>()?;
            let [result] = &*node.output else {
                return Err(format!(
                    "operator {} with {} results is not known",
                    node.op_type,
                    node.output.len()
                ));
            };
            let weights = operands.get(1).and_then(|place| constants[*place].as_ref());
            let operator = Operator::of(node, weights)?;
            places.insert(result, constants.len());
            steps.push(Step { operator, operands, result: constants.len(), last_used: Vec::new() });
            constants.push(None);
        }
        let output = *places.get(&*signature.output).ok_or("the ONNX file has no output of the model's")?;
        let mut is_used = vec![false; constants.len()];
        is_used[output] = true;
        for step in steps.iter_mut().rev() {
            for place in &step.operands {
                if constants[*place].is_none() && !std::mem::replace(&mut is_used[*place], true) {
                    step.last_used.push(*place);
                }
            }
        }
        Ok(Graph { constants, inputs, steps, output })
    }
}

impl DenseEngine for Graph {
    fn name(&self) -> &'static str {
        "the built-in engine"
    }

    fn run(&self, inputs: &[DenseInput<'_>], output: &mut Vec<f32>) -> Result<(), String> {
        let mut values = self.constants.clone();
        for (place, input) in self.inputs.iter().zip(inputs) {
            let shape = input.shape[..input.dimensions].iter().map(|length| *length as usize).collect();
            values[*place] = Some(Tensor::floats(shape, input.values.to_vec()));
        }
        for step in &self.steps {
            let operands: Option<Vec<&Tensor>> =
                step.operands.iter().map(|place| values[*place].as_ref()).collect();
            let operands = operands.ok_or("an input of the dense part is missing")?;
            let result = step.operator.apply(&operands)?;
            values[step.result] = Some(result);
            step.last_used.iter().for_each(|place| values[*place] = None);
        }
        let result = values[self.output].as_ref().ok_or("the dense part has no result")?;
        output.extend_from_slice(result.as_floats()?);
        Ok(())
    }
}
