//! Tensors of the interpreter: a shape, and values that copies share.

use std::sync::Arc;

/// A tensor in row-major order.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Values,
}

/// Values of one type.
#[derive(Debug, Clone)]
pub(crate) enum Values {
    Floats(Arc<Vec<f32>>),
    Ints(Arc<Vec<i64>>),
}

impl Tensor {
    pub(crate) fn floats(shape: Vec<usize>, values: Vec<f32>) -> Tensor {
        Tensor { shape, values: Values::Floats(Arc::new(values)) }
    }

    pub(crate) fn ints(shape: Vec<usize>, values: Vec<i64>) -> Tensor {
        Tensor { shape, values: Values::Ints(Arc::new(values)) }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.values {
            Values::Floats(values) => values.len(),
            Values::Ints(values) => values.len(),
        }
    }

    pub(crate) fn as_floats(&self) -> Result<&[f32], String> {
        match &self.values {
            Values::Floats(values) => Ok(values),
            Values::Ints(_) => Err("an operator on integers is not known".to_owned()),
        }
    }

    pub(crate) fn as_ints(&self) -> Result<&[i64], String> {
        match &self.values {
            Values::Ints(values) => Ok(values),
            Values::Floats(_) => Err("an operator has floats for a shape or places".to_owned()),
        }
    }

    /// The values in another shape.
    pub(crate) fn reshaped(&self, shape: Vec<usize>) -> Result<Tensor, String> {
        if size(&shape) != self.len() {
            return Err(format!("{:?} cannot have the shape {shape:?}", self.shape));
        }
        Ok(Tensor { shape, values: self.values.clone() })
    }

    /// The values at some places.
    pub(crate) fn pick(&self, shape: Vec<usize>, places: &[usize]) -> Result<Tensor, String> {
        if places.iter().any(|place| *place >= self.len()) {
            return Err(format!("a place beyond the shape {:?}", self.shape));
        }
        Ok(match &self.values {
            Values::Floats(values) => {
                Tensor::floats(shape, places.iter().map(|place| values[*place]).collect())
            }
            Values::Ints(values) => Tensor::ints(shape, places.iter().map(|place| values[*place]).collect()),
        })
    }

    /// Distances between neighbours of each dimension.
    pub(crate) fn strides(&self) -> Vec<usize> {
        strides(&self.shape)
    }

    /// The strides by which the tensor is read in a larger shape: 0 where it has one value for all.
    pub(crate) fn broadcast_strides(&self, shape: &[usize]) -> Result<Vec<usize>, String> {
        let Some(more) = shape.len().checked_sub(self.shape.len()) else {
            return Err(format!("{:?} cannot have the shape {shape:?}", self.shape));
        };
        let mut found = vec![0; more];
        for ((own, wanted), stride) in self.shape.iter().zip(&shape[more..]).zip(self.strides()) {
            if own != wanted && *own != 1 {
                return Err(format!("{:?} cannot have the shape {shape:?}", self.shape));
            }
            found.push(if own == wanted { stride } else { 0 });
        }
        Ok(found)
    }
}

/// The number of values of a shape.
pub(crate) fn size(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Distances between neighbours of each dimension, in row-major order.
pub(crate) fn strides(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|at| size(&shape[at + 1..])).collect()
}

/// The places of all values of a shape, in row-major order, in a tensor with these strides.
pub(crate) fn places(shape: &[usize], strides: &[usize], first: usize) -> Vec<usize> {
    let mut all = vec![first];
    for (length, stride) in shape.iter().zip(strides) {
        all = all.iter().flat_map(|place| (0..*length).map(move |at| place + at * stride)).collect();
    }
    all
}

/// The smallest shape that both have by repetition.
pub(crate) fn common_shape(a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
    let dimensions = a.len().max(b.len());
    let length =
        |shape: &[usize], at: usize| (at + shape.len()).checked_sub(dimensions).map_or(1, |at| shape[at]);
    (0..dimensions)
        .map(|at| match (length(a, at), length(b, at)) {
            (a, b) if a == b => Ok(a),
            (1, other) | (other, 1) => Ok(other),
            _ => Err(format!("{a:?} and {b:?} have no common shape")),
        })
        .collect()
}

/// A dimension, of which negative numbers count from the end.
pub(crate) fn axis(axis: i64, dimensions: usize) -> Result<usize, String> {
    let from_start = if axis < 0 { axis + dimensions as i64 } else { axis };
    let found = usize::try_from(from_start).ok().filter(|axis| *axis < dimensions);
    found.ok_or_else(|| format!("no dimension {axis} of {dimensions}"))
}
