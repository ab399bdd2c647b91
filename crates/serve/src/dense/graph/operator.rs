//! The operators of dense parts, as the ONNX specification defines them for floats.

use crate::dense::graph::matrix::Packed;
use crate::dense::graph::onnx::Node;
use crate::dense::graph::tensor::{Tensor, Values, axis, common_shape, places, size, strides};

/// An operator with its constant choices.
pub(crate) enum Operator {
    Binary(fn(f32, f32) -> f32),
    Unary(fn(f32) -> f32),
    Concat(i64),
    Expand,
    Gather(i64),
    GatherNd,
    /// Factors of product and addend; whether the matrices are transposed; the second matrix, if it is constant.
    Gemm {
        alpha: f32,
        beta: f32,
        transposed: [bool; 2],
        weights: Option<Packed>,
    },
    MatMul(Option<Packed>),
    ReduceSum {
        keeps: bool,
    },
    Reshape,
    Shape {
        start: i64,
        end: i64,
    },
    Slice,
    Squeeze,
    Transpose(Vec<i64>),
    Unsqueeze,
}

type Found = Result<Tensor, String>;

impl Operator {
    /// The operator of a node; `weights` is its second operand, if it is constant.
    pub(crate) fn of(node: &Node, weights: Option<&Tensor>) -> Result<Operator, String> {
        let matrix = weights.filter(|weights| weights.shape.len() == 2);
        Ok(match &*node.op_type {
            "Add" => Operator::Binary(|a, b| a + b),
            "Sub" => Operator::Binary(|a, b| a - b),
            "Mul" => Operator::Binary(|a, b| a * b),
            "Div" => Operator::Binary(|a, b| a / b),
            "Pow" => Operator::Binary(f32::powf),
            "Relu" => Operator::Unary(|x| x.max(0.0)),
            "Sigmoid" => Operator::Unary(|x| 1.0 / (1.0 + (-x).exp())),
            "Concat" => Operator::Concat(node.int("axis", 0)),
            "Expand" => Operator::Expand,
            "Gather" => Operator::Gather(node.int("axis", 0)),
            "GatherND" if node.int("batch_dims", 0) == 0 => Operator::GatherNd,
            "Gemm" => {
                let transposed = [node.int("transA", 0) != 0, node.int("transB", 0) != 0];
                let weights = matrix.map(|weights| packed(weights, transposed[1])).transpose()?;
                Operator::Gemm {
                    alpha: node.float("alpha", 1.0),
                    beta: node.float("beta", 1.0),
                    transposed,
                    weights,
                }
            }
            "MatMul" => Operator::MatMul(matrix.map(|weights| packed(weights, false)).transpose()?),
            "ReduceSum" if node.int("noop_with_empty_axes", 0) == 0 => {
                Operator::ReduceSum { keeps: node.int("keepdims", 1) != 0 }
            }
            "Reshape" => Operator::Reshape,
            "Shape" => Operator::Shape { start: node.int("start", 0), end: node.int("end", i64::MAX) },
            "Slice" => Operator::Slice,
            "Squeeze" => Operator::Squeeze,
            "Transpose" => {
                Operator::Transpose(node.attribute("perm").map_or(Vec::new(), |perm| perm.ints.clone()))
            }
            "Unsqueeze" => Operator::Unsqueeze,
            other => {
                return Err(format!(
                    "the built-in engine does not know the operator {other}: pip install onnxruntime"
                ));
            }
        })
    }

    /// Computes the result.
    pub(crate) fn apply(&self, operands: &[&Tensor]) -> Found {
        let operand =
            |at: usize| operands.get(at).copied().ok_or("the ONNX file is damaged: an operand is missing");
        let first = operand(0)?;
        match self {
            Operator::Binary(apply) => binary(first, operand(1)?, *apply),
            Operator::Unary(apply) => {
                let values = first.as_floats()?.iter().map(|value| apply(*value)).collect();
                Ok(Tensor::floats(first.shape.clone(), values))
            }
            Operator::Concat(at) => concat(operands, axis(*at, first.shape.len())?),
            Operator::Expand => {
                let shape = common_shape(&first.shape, &lengths(operand(1)?)?)?;
                first.pick(shape.clone(), &places(&shape, &first.broadcast_strides(&shape)?, 0))
            }
            Operator::Gather(at) => gather(first, operand(1)?, axis(*at, first.shape.len())?),
            Operator::GatherNd => gather_nd(first, operand(1)?),
            Operator::Gemm { alpha, beta, transposed, weights } => {
                let left = if transposed[0] { transpose(first, &[1, 0])? } else { first.clone() };
                let own;
                let right = match weights {
                    Some(weights) => weights,
                    None => {
                        own = packed(operand(1)?, transposed[1])?;
                        &own
                    }
                };
                let product = multiply(&left, right)?;
                let product = if *alpha == 1.0 { product } else { scaled(&product, *alpha)? };
                match operands.get(2) {
                    None => Ok(product),
                    Some(addend) if *beta == 1.0 => binary(&product, addend, |a, b| a + b),
                    Some(addend) => binary(&product, &scaled(addend, *beta)?, |a, b| a + b),
                }
            }
            Operator::MatMul(Some(weights)) => multiply(first, weights),
            Operator::MatMul(None) => mat_mul(first, operand(1)?),
            Operator::ReduceSum { keeps } => reduce_sum(first, operand(1)?.as_ints()?, *keeps),
            Operator::Reshape => reshape(first, operand(1)?.as_ints()?),
            Operator::Shape { start, end } => {
                let dimensions = first.shape.len() as i64;
                let bound =
                    |at: i64| (if at < 0 { at + dimensions } else { at }).clamp(0, dimensions) as usize;
                let (start, end) = (bound(*start), bound(*end));
                let lengths = first.shape.get(start..end).unwrap_or_default();
                Ok(Tensor::ints(vec![lengths.len()], lengths.iter().map(|length| *length as i64).collect()))
            }
            Operator::Slice => slice(first, operands),
            Operator::Squeeze => {
                let axes = axes(operand(1)?.as_ints()?, first.shape.len())?;
                let kept = first.shape.iter().enumerate().filter(|(at, _)| !axes.contains(at));
                first.reshaped(kept.map(|(_, length)| *length).collect())
            }
            Operator::Transpose(order) => {
                let dimensions = first.shape.len();
                let order: Vec<usize> = match order.is_empty() {
                    true => (0..dimensions).rev().collect(),
                    false => axes(order, dimensions)?,
                };
                transpose(first, &order)
            }
            Operator::Unsqueeze => {
                let added = operand(1)?.as_ints()?;
                let dimensions = first.shape.len() + added.len();
                let added = axes(added, dimensions)?;
                let mut lengths = first.shape.iter();
                let length =
                    |at: usize| if added.contains(&at) { 1 } else { lengths.next().copied().unwrap_or(1) };
                first.reshaped((0..dimensions).map(length).collect())
            }
        }
    }
}

fn axes(given: &[i64], dimensions: usize) -> Result<Vec<usize>, String> {
    given.iter().map(|at| axis(*at, dimensions)).collect()
}

fn lengths(shape: &Tensor) -> Result<Vec<usize>, String> {
    let length = |length: &i64| usize::try_from(*length).map_err(|_| format!("a dimension of {length}"));
    shape.as_ints()?.iter().map(length).collect()
}

fn binary(a: &Tensor, b: &Tensor, apply: fn(f32, f32) -> f32) -> Found {
    let (left, right) = (a.as_floats()?, b.as_floats()?);
    if a.shape == b.shape {
        let values = left.iter().zip(right).map(|(a, b)| apply(*a, *b)).collect();
        return Ok(Tensor::floats(a.shape.clone(), values));
    }
    let shape = common_shape(&a.shape, &b.shape)?;
    let all = |tensor: &Tensor| Ok::<_, String>(places(&shape, &tensor.broadcast_strides(&shape)?, 0));
    let values = all(a)?.iter().zip(&all(b)?).map(|(a, b)| apply(left[*a], right[*b])).collect();
    Ok(Tensor::floats(shape, values))
}

fn scaled(tensor: &Tensor, factor: f32) -> Found {
    Ok(Tensor::floats(tensor.shape.clone(), tensor.as_floats()?.iter().map(|value| factor * value).collect()))
}

fn concat(parts: &[&Tensor], at: usize) -> Found {
    fn joined<'a, T: Copy + 'a>(parts: &[(&'a [T], usize)], outer: usize) -> Vec<T> {
        let run = |number: usize| {
            parts.iter().flat_map(move |(values, run)| &values[number * run..(number + 1) * run])
        };
        (0..outer).flat_map(run).copied().collect()
    }
    let mut shape = parts[0].shape.clone();
    shape[at] = 0;
    for part in parts {
        let is_like = |(other, length): (usize, &usize)| other == at || *length == part.shape[other];
        if part.shape.len() != shape.len() || !shape.iter().enumerate().all(is_like) {
            return Err(format!("{:?} and {:?} are not joined", parts[0].shape, part.shape));
        }
        shape[at] += part.shape[at];
    }
    let (outer, run) = (size(&shape[..at]), |part: &Tensor| size(&part.shape[at..]));
    Ok(match &parts[0].values {
        Values::Floats(_) => {
            let parts: Result<Vec<_>, String> =
                parts.iter().map(|part| Ok((part.as_floats()?, run(part)))).collect();
            Tensor::floats(shape, joined(&parts?, outer))
        }
        Values::Ints(_) => {
            let parts: Result<Vec<_>, String> =
                parts.iter().map(|part| Ok((part.as_ints()?, run(part)))).collect();
            Tensor::ints(shape, joined(&parts?, outer))
        }
    })
}

/// A place, of which negative numbers count from the end.
fn place(index: i64, length: usize) -> Result<usize, String> {
    axis(index, length)
}

fn gather(from: &Tensor, indices: &Tensor, at: usize) -> Found {
    let shape = [&from.shape[..at], &indices.shape, &from.shape[at + 1..]].concat();
    let (outer, inner, length) = (size(&from.shape[..at]), size(&from.shape[at + 1..]), from.shape[at]);
    let chosen: Vec<usize> =
        indices.as_ints()?.iter().map(|index| place(*index, length)).collect::<Result<_, _>>()?;
    let run = |outer: usize| {
        chosen.iter().flat_map(move |index| (0..inner).map(move |at| (outer * length + index) * inner + at))
    };
    from.pick(shape, &(0..outer).flat_map(run).collect::<Vec<_>>())
}

fn gather_nd(from: &Tensor, indices: &Tensor) -> Found {
    let (Some(depth), strides) = (indices.shape.last().copied(), from.strides()) else {
        return Err("GatherND without places".to_owned());
    };
    if depth == 0 || depth > from.shape.len() {
        return Err(format!("GatherND of {depth} dimensions in {:?}", from.shape));
    }
    let shape = [&indices.shape[..indices.shape.len() - 1], &from.shape[depth..]].concat();
    let inner = size(&from.shape[depth..]);
    let mut all = Vec::new();
    for tuple in indices.as_ints()?.chunks_exact(depth) {
        let mut first = 0;
        for ((index, length), stride) in tuple.iter().zip(&from.shape).zip(&strides) {
            first += place(*index, *length)? * stride;
        }
        all.extend(first..first + inner);
    }
    from.pick(shape, &all)
}

/// The second matrix of a product.
fn packed(matrix: &Tensor, is_transposed: bool) -> Result<Packed, String> {
    let (&[rows, columns], values) = (&*matrix.shape, matrix.as_floats()?) else {
        return Err(format!("{:?} is no matrix", matrix.shape));
    };
    Ok(match is_transposed {
        true => Packed::new(columns, rows, |row, column| values[column * columns + row]),
        false => Packed::new(rows, columns, |row, column| values[row * columns + column]),
    })
}

/// The product of all rows of a tensor with a matrix.
fn multiply(left: &Tensor, right: &Packed) -> Found {
    let Some((&inner, outer)) = left.shape.split_last().filter(|(inner, _)| **inner == right.rows) else {
        return Err(format!("no product of {:?} and {} x {}", left.shape, right.rows, right.columns));
    };
    let shape = [outer, &[right.columns]].concat();
    let values = if inner == 0 { vec![0.0; size(&shape)] } else { right.product(left.as_floats()?) };
    Ok(Tensor::floats(shape, values))
}

/// The product of two tensors, of which a vector is a row on the left and a column on the right.
fn mat_mul(left: &Tensor, right: &Tensor) -> Found {
    match (left.shape.len(), &*right.shape) {
        (1.., &[rows]) => {
            let product = multiply(left, &packed(&right.reshaped(vec![rows, 1])?, false)?)?;
            let outer = left.shape[..left.shape.len() - 1].to_vec();
            product.reshaped(outer)
        }
        (1.., [_, _]) => multiply(left, &packed(right, false)?),
        (3, &[batches, inner, columns]) if left.shape[0] == batches && left.shape[2] == inner => {
            let (rows, a, b) = (left.shape[1], left.as_floats()?, right.as_floats()?);
            let mut values = Vec::with_capacity(batches * rows * columns);
            for batch in 0..batches {
                let b = &b[batch * inner * columns..][..inner * columns];
                let of_batch = Packed::new(inner, columns, |row, column| b[row * columns + column]);
                values.extend(of_batch.product(&a[batch * rows * inner..][..rows * inner]));
            }
            let shape = vec![batches, rows, columns];
            Tensor::floats(vec![values.len()], values).reshaped(shape)
        }
        _ => Err(format!("no product of {:?} and {:?}", left.shape, right.shape)),
    }
}

fn reduce_sum(from: &Tensor, given: &[i64], keeps: bool) -> Found {
    let reduced = axes(given, from.shape.len())?;
    let is_reduced = |at: &usize| reduced.is_empty() || reduced.contains(at);
    let one = |(at, length): (usize, &usize)| if is_reduced(&at) { 1 } else { *length };
    let kept: Vec<usize> = from.shape.iter().enumerate().map(one).collect();
    let mut to = strides(&kept);
    (0..to.len()).filter(is_reduced).for_each(|at| to[at] = 0);
    let mut sums = vec![0.0; size(&kept)];
    for (value, at) in from.as_floats()?.iter().zip(places(&from.shape, &to, 0)) {
        sums[at] += value;
    }
    let left = from.shape.iter().enumerate().filter(|(at, _)| !is_reduced(at)).map(|(_, length)| *length);
    let shape = if keeps { kept } else { left.collect() };
    Ok(Tensor::floats(shape, sums))
}

fn reshape(from: &Tensor, wanted: &[i64]) -> Found {
    let known: i64 = wanted.iter().filter(|length| **length >= 0).product();
    let length = |length: &i64| match usize::try_from(*length) {
        Ok(length) => length,
        // The one that follows from the others.
        Err(_) => from.len().checked_div(known as usize).unwrap_or_default(),
    };
    from.reshaped(wanted.iter().map(length).collect())
}

fn slice(from: &Tensor, operands: &[&Tensor]) -> Found {
    let ints = |at: usize| operands.get(at).map(|tensor| tensor.as_ints()).transpose();
    let (Some(starts), Some(ends)) = (ints(1)?, ints(2)?) else {
        return Err("Slice without start and end".to_owned());
    };
    let all: Vec<i64> = (0..starts.len() as i64).collect();
    let (given, steps) = (ints(3)?.unwrap_or(&all), ints(4)?);
    let (mut shape, strides, mut first) = (from.shape.clone(), from.strides(), 0);
    for (number, (at, (start, end))) in given.iter().zip(starts.iter().zip(ends)).enumerate() {
        if steps.is_some_and(|steps| steps.get(number) != Some(&1)) {
            return Err("Slice with steps is not known".to_owned());
        }
        let at = axis(*at, from.shape.len())?;
        let length = from.shape[at] as i64;
        let bound = |index: i64| (if index < 0 { index + length } else { index }).clamp(0, length) as usize;
        let (start, end) = (bound(*start), bound(*end));
        first += start * strides[at];
        shape[at] = end.saturating_sub(start);
    }
    from.pick(shape.clone(), &places(&shape, &strides, first))
}

fn transpose(from: &Tensor, order: &[usize]) -> Found {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..from.shape.len()) {
        return Err(format!("{order:?} is no order of the dimensions of {:?}", from.shape));
    }
    let strides = from.strides();
    let shape: Vec<usize> = order.iter().map(|at| from.shape[*at]).collect();
    let strides: Vec<usize> = order.iter().map(|at| strides[*at]).collect();
    from.pick(shape.clone(), &places(&shape, &strides, 0))
}
