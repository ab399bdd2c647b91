//! `lr` and `lr_scale` of a push as factors on the learning rates that the tables were made with. Knows no arrays and
//! no request.

use pyo3::prelude::*;
use sanderling_feed::Scales;
use sanderling_store::{Optimizer, PushScale};

use crate::error::ConfigError;

/// The learning rate of a table.
#[derive(Debug, Clone)]
pub(crate) struct Rate {
    table: String,
    /// Of each block; None for FTRL, which has none.
    lr: Vec<Option<f32>>,
}

/// A number for all tables, or one for each.
#[derive(FromPyObject)]
pub(crate) enum OneOrEach {
    One(f64),
    Each(Vec<f64>),
}

impl OneOrEach {
    fn check(&self, what: &str, tables: usize) -> PyResult<()> {
        match self {
            OneOrEach::Each(list) if list.len() != tables => Err(ConfigError::new_err(format!(
                "{what}: a list has one number for each table, {tables}, not {}",
                list.len()
            ))),
            _ => Ok(()),
        }
    }

    fn of(&self, table: usize) -> f64 {
        match self {
            OneOrEach::One(number) => *number,
            OneOrEach::Each(list) => list[table],
        }
    }
}

impl Rate {
    pub(crate) fn of(table: &str, optimizers: impl Iterator<Item = Optimizer>) -> Rate {
        Rate { table: table.to_owned(), lr: optimizers.map(|optimizer| optimizer.lr()).collect() }
    }

    /// The one learning rate that the table has; None if it has none, or several.
    pub(crate) fn lr(&self) -> Option<f32> {
        let first = self.lr.first().copied().flatten()?;
        self.lr.iter().all(|lr| *lr == Some(first)).then_some(first)
    }

    /// Factor of a push, so that the table learns at `lr` times `lr_scale`.
    fn scale(&self, lr: f64, lr_scale: f64) -> PyResult<PushScale> {
        let refused =
            |reason: &str| Err(ConfigError::new_err(format!("table {:?}: lr = {lr}: {reason}", self.table)));
        if !lr.is_finite() || lr < 0.0 {
            return refused("a learning rate is a finite number from 0 on");
        }
        match self.lr() {
            Some(0.0) => refused("the table was made with a learning rate of 0, which no factor changes"),
            Some(own) => Ok(PushScale { lr_scale: (lr / f64::from(own) * lr_scale) as f32 }),
            None if self.lr.contains(&None) => {
                refused("ftrl has no lr; alpha is set when the table is made. Leave lr out")
            }
            None => refused("its blocks have different learning rates; scale them with lr_scale"),
        }
    }
}

/// Factor of a push to a table: it learns at `lr`, if given, else at its own rate, times `lr_scale`.
pub(crate) fn scale(
    rate: impl FnOnce() -> PyResult<Rate>,
    lr: Option<f64>,
    lr_scale: f64,
) -> PyResult<PushScale> {
    match lr {
        Some(lr) => rate()?.scale(lr, lr_scale),
        None => Ok(PushScale { lr_scale: lr_scale as f32 }),
    }
}

/// Factors of pushes to several tables.
pub(crate) fn scales(
    rates: &[Rate],
    lr: Option<&OneOrEach>,
    lr_scale: Option<&OneOrEach>,
) -> PyResult<Scales> {
    for (what, given) in [("lr", lr), ("lr_scale", lr_scale)] {
        given.map_or(Ok(()), |given| given.check(what, rates.len()))?;
    }
    let lr_scale = lr_scale.unwrap_or(&OneOrEach::One(1.0));
    if let (None, OneOrEach::One(lr_scale)) = (lr, lr_scale) {
        return Ok(Scales::All(PushScale { lr_scale: *lr_scale as f32 }));
    }
    let scale = |(table, rate): (usize, &Rate)| {
        scale(|| Ok(rate.clone()), lr.map(|lr| lr.of(table)), lr_scale.of(table))
    };
    Ok(Scales::Each(rates.iter().enumerate().map(scale).collect::<PyResult<Vec<PushScale>>>()?.into()))
}
