//! Test sets of a run: the saved model scored on each, once, at the end. Changes no table.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sanderling_formats::BadRows;

use crate::error::{LearnError, names};
use crate::evaluate::Scan;
use crate::event::{Event, TestLine};
use crate::measured::{MeasuredOn, TestMetrics};
use crate::model::{Model, Purpose};
use crate::state::RunState;

/// Metrics of the model on each test set of its configuration; a stop leaves the rest out.
pub(super) fn test_sets(
    model: &Model,
    state: &RunState,
    stop: &AtomicBool,
    observer: &mut dyn FnMut(&Event<'_>),
) -> Result<Vec<TestMetrics>, LearnError> {
    let config = model.config();
    let mut found = Vec::new();
    for (name, inputs) in &config.data.test {
        let scan = Scan {
            model,
            inputs: &inputs.0,
            purpose: Purpose::Score,
            config: &config.data.reading,
            bad_rows: &Arc::new(BadRows::new(config.data.reading.on_bad_row)),
            threads: config.train.threads,
            stop,
            rows_max: u64::MAX,
            explains: false,
        };
        let metrics = match scan.run(&mut |scan| observer(&Event::Validating { scan })) {
            Err(LearnError::Stopped) => break,
            scored => scored?.scores.metrics(),
        };
        let (step, pass) = (state.step, state.best.map_or(state.pass, |(pass, _)| pass));
        let line = TestLine { step, pass, name, measured_on: MeasuredOn::Test, metrics };
        observer(&Event::Tested(&line));
        found.push(TestMetrics { name: name.clone(), data: names(&inputs.0), metrics });
    }
    Ok(found)
}
