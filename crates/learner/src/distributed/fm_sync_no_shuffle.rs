//! **fm-sync-no-shuffle**: as fm-sync, in the order of the input. It saves the exchange of rows; an input that is sorted, by
//! label or by time, is learned in that order.

use sanderling_job::{Order, Worker};

use super::learner::Learner;
use crate::error::LearnError;

/// What every worker does.
pub(super) fn train(learner: &mut Learner<'_>, worker: &mut Worker) -> Result<(), LearnError> {
    while let Some(pass) = learner.next_pass() {
        let mut steps = worker.steps(&learner.input(), pass, Order::Input, learner.global_batch())?;
        while let Some(rows) = steps.next(worker)? {
            learner.pull(worker, &rows)?;
            learner.forward(worker, &rows)?;
            learner.backward_in_step(worker, &rows)?;
            if learner.push_step(worker)? {
                learner.score(worker, &rows);
            }
        }
        learner.end_pass(worker)?;
    }
    Ok(())
}
