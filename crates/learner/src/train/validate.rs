//! Validation and saving of a run, between two segments of training. Knows no worker.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use sanderling_formats::BadRows;

use super::{Trainer, remove_dir};
use crate::config::Monitor;
use crate::error::{LearnError, names};
use crate::evaluate::{Evaluation, Scan};
use crate::event::{Event, PredictedFirstLine, ValidLine};
use crate::kept;
use crate::known_keys::KnownKeys;
use crate::measured::MeasuredOn;
use crate::metrics::Metrics;
use crate::model::Purpose;
use crate::progressive::{ProgressivePoint, add_point};
use crate::table_counters::counters_now;

impl Trainer<'_> {
    /// Scores the validation files; true if this pass is the best so far.
    pub(super) fn validate(&mut self) -> Result<bool, LearnError> {
        let start = Instant::now();
        let mut timer = self.stages.timer();
        timer.switch(self.stage_list.evaluate);
        let config = self.model.config().clone();
        let bad_rows = Arc::new(BadRows::new(config.data.reading.on_bad_row));
        let observer = &mut *self.observer;
        let scan = Scan {
            model: &self.model,
            inputs: config.data.valid_inputs(),
            purpose: Purpose::Valid,
            config: &config.data.reading,
            bad_rows: &bad_rows,
            threads: self.threads,
            stop: self.stop,
            rows_max: u64::MAX,
            explains: true,
        };
        let Evaluation { scores, known, importance, .. } =
            scan.run(&mut |scan| observer(&Event::Validating { scan }))?;
        timer.stop();
        if known.iter().any(KnownKeys::is_unknown) && self.known != known {
            (self.observer)(&Event::UnknownKeys { known: &known });
        }
        self.known = known;
        self.state.valid_bad_rows = bad_rows.count();
        self.report_bad_rows(&bad_rows);
        let metrics = scores.metrics();
        let best = self.state.best.is_none_or(|(_, best)| improves(config.train.monitor(), &metrics, &best));
        if best {
            self.state.best = Some((self.state.pass, metrics));
            self.state.since_best = 0;
            self.plot_scores = Some(scores);
            self.importance = importance;
        } else {
            self.state.since_best += 1;
            self.state.plateaus += 1;
        }
        let (step, examples, pass) = (self.state.step, self.state.examples, self.state.pass);
        self.state.valid_curve.push((step, examples, pass, metrics));
        let seconds = start.elapsed().as_secs_f64();
        let measured_on = MeasuredOn::Valid;
        let line = ValidLine { step, pass, trained_examples: examples, measured_on, metrics, best, seconds };
        (self.observer)(&Event::Valid(&line));
        self.line.since += start.elapsed();
        Ok(best)
    }

    /// Scores the training files before anything is learned from them, if the configuration asks for it and the model
    /// has rows. A stop leaves it undone.
    pub(crate) fn predict_first(&mut self) -> Result<(), LearnError> {
        let config = self.model.config().clone();
        let asked = config.train.predict_first && self.state.step == 0 && !self.state.predicted_first;
        if !asked || self.model.size()?.0 == 0 {
            return Ok(());
        }
        let start = Instant::now();
        let mut timer = self.stages.timer();
        timer.switch(self.stage_list.evaluate);
        let bad_rows = Arc::new(BadRows::new(config.data.reading.on_bad_row));
        let observer = &mut *self.observer;
        let scan = Scan {
            model: &self.model,
            inputs: &config.data.train.0,
            purpose: Purpose::ScoreTrain,
            config: &config.data.reading,
            bad_rows: &bad_rows,
            threads: self.threads,
            stop: self.stop,
            rows_max: u64::MAX,
            explains: false,
        };
        let found = match scan.run(&mut |scan| observer(&Event::Validating { scan })) {
            Err(LearnError::Stopped) => return Ok(()),
            found => found?,
        };
        timer.stop();
        let (data, metrics) = (names(&config.data.train.0), found.scores.metrics());
        let seconds = start.elapsed().as_secs_f64();
        let measured_on = MeasuredOn::Train;
        let line = PredictedFirstLine { step: 0, pass: 0, data: &data, measured_on, metrics, seconds };
        (self.observer)(&Event::PredictedFirst(&line));
        let point = ProgressivePoint { run: config.name, data, metrics };
        add_point(&mut self.state.progressive_curve, point);
        self.state.predicted_first = true;
        self.begin_line();
        Ok(())
    }

    /// Whether a run that stops here saves nothing: an untrained model is not worth what an earlier run has saved.
    pub(super) fn leaves_earlier(&self) -> bool {
        self.has_earlier && self.state.step == 0
    }

    /// Saves a run that ends here: before the first validation, what was trained so far is the best there is.
    pub(crate) fn save_stopped(&mut self) -> Result<(), LearnError> {
        if self.leaves_earlier() {
            return Err(LearnError::Stopped);
        }
        if self.validates() && self.state.best.is_none() {
            self.save(&self.model_dir.clone())?;
        }
        self.save_state()
    }

    /// Saves what a resumed run needs: beside the best model if there is one, else as the model.
    pub(super) fn save_state(&mut self) -> Result<(), LearnError> {
        let path = if self.validates() { self.last_dir.clone() } else { self.model_dir.clone() };
        self.save(&path)
    }

    pub(crate) fn save(&mut self, path: &Path) -> Result<(), LearnError> {
        let start = Instant::now();
        let mut timer = self.stages.timer();
        timer.switch(self.stage_list.save);
        self.state.table_counters = counters_now(self.model.client(), &self.counters_before);
        self.state.save = Some(sanderling_observe::unique());
        self.model.save(path, &self.state.to_blobs(&self.pass_scores))?;
        kept::note_save(self.model.client(), self.state.save);
        if std::mem::take(&mut self.has_earlier) && *path != self.last_dir {
            // The resume state of an earlier run is removed once this run has saved its own.
            remove_dir(&self.last_dir)?;
        }
        timer.stop();
        (self.observer)(&Event::Saved { path });
        self.line.since += start.elapsed();
        Ok(())
    }
}

fn improves(monitor: Monitor, new: &Metrics, best: &Metrics) -> bool {
    match monitor {
        // One class has no AUC: then the loss decides, rather than the first pass for ever.
        Monitor::Auc if new.auc.is_finite() && best.auc.is_finite() => new.auc > best.auc,
        Monitor::Auc | Monitor::Logloss => new.logloss < best.logloss,
        Monitor::Mse | Monitor::Rmse => new.numbers.map(|it| it.mse) < best.numbers.map(|it| it.mse),
        Monitor::Mae => new.numbers.map(|it| it.mae) < best.numbers.map(|it| it.mae),
    }
}
