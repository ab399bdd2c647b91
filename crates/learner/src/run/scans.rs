//! Scans over the files of a run before and after its training. Changes no table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sanderling_formats::{BadRowPolicy, BadRows, Reader, Source, input::read_once};

use crate::config::Config;
use crate::error::LearnError;
use crate::evaluate::Scan;
use crate::event::Event;
use crate::importance::Importance;
use crate::metrics::Scores;
use crate::model::{Model, Purpose, encoder};
use crate::run::RunOptions;

/// Training rows over which feature importance is measured where there are no validation rows.
const IMPORTANCE_ROWS_MAX: u64 = 100_000;

/// Finds out that a file is missing, or has no rows to validate on, before an earlier run of this name is touched, and
/// before a pass is trained. If there is an earlier run, the first rows to train on are read, too: with a column that is
/// not there it could not be resumed any more.
pub(super) fn check_inputs(config: &Config, has_earlier: bool) -> Result<(), LearnError> {
    let data = &config.data;
    let [train, valid] = [Purpose::Train, Purpose::Valid].map(|purpose| encoder(config, purpose));
    let (train, valid) = (train?, valid?);
    Source::open(&data.train.0, &data.reading, &train)?;
    let inputs = [(&data.train.0[..], &train, has_earlier), (data.valid_inputs(), &valid, data.validates())];
    let mut is_valid = false;
    for (inputs, encoder, is_read) in inputs {
        let is_held_out = std::mem::replace(&mut is_valid, true) && data.holdout.is_some();
        if !is_read {
            continue;
        }
        let mut reader = Reader::open(inputs, &data.reading, encoder)?;
        if reader.stream().is_some() {
            continue;
        }
        let mut batch = encoder.new_batch();
        while batch.is_empty() {
            if !reader.next(&mut batch)? {
                if is_held_out {
                    let reason = format!("no row of {} is held out; raise fraction", data.describe_valid());
                    return Err(LearnError::Config { path: "data.valid".into(), reason });
                }
                return Err(LearnError::no_rows(inputs, reader.bad_rows()));
            }
        }
    }
    Ok(())
}

/// Scores and feature importance of the validation files; `None` after a stop.
pub(super) fn validate_again(
    model: &Model,
    stop: &AtomicBool,
    observer: &mut dyn FnMut(&Event<'_>),
) -> Result<(Option<Scores>, Option<Importance>), LearnError> {
    let config = model.config();
    let scan = Scan {
        model,
        inputs: config.data.valid_inputs(),
        purpose: Purpose::Valid,
        config: &config.data.reading,
        bad_rows: &Arc::new(BadRows::new(config.data.reading.on_bad_row)),
        threads: config.train.threads,
        stop,
        rows_max: u64::MAX,
        explains: true,
    };
    match scan.run(&mut |scan| observer(&Event::Validating { scan })) {
        Err(LearnError::Stopped) => Ok((None, None)),
        found => found.map(|found| (Some(found.scores), found.importance)),
    }
}

/// Feature importance over the first training rows; `None` after a stop and for inputs that can be read only once.
pub(super) fn explain_training(model: &Model, stop: &AtomicBool) -> Result<Option<Importance>, LearnError> {
    let config = model.config();
    if config.data.train.0.iter().any(|input| read_once(input)) || stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let scan = Scan {
        model,
        inputs: &config.data.train.0,
        purpose: Purpose::ScoreTrain,
        config: &config.data.reading,
        bad_rows: &Arc::new(BadRows::new(BadRowPolicy::Skip { max: u64::MAX })),
        threads: 1,
        stop,
        rows_max: IMPORTANCE_ROWS_MAX,
        explains: true,
    };
    match scan.run(&mut |_| {}) {
        // The run itself is saved: what the report would say of features is not worth its end.
        Err(LearnError::Stopped | LearnError::Prediction { .. } | LearnError::NoRows { .. }) => Ok(None),
        found => found.map(|found| found.importance),
    }
}

/// Refuses options that tables on servers do not support.
pub(super) fn check_servers(config: &Config, options: &RunOptions) -> Result<(), LearnError> {
    if options.servers.is_none() || config.train.batch_size > 1 {
        return Ok(());
    }
    let reason = "online learning (batch_size = 1) updates row by row in the memory of one process; with parameter servers \
                  set train.batch_size to 2 or more (256 is the default)";
    Err(LearnError::Config { path: "train.batch_size".into(), reason: reason.to_string() })
}
