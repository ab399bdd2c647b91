//! **fm-sync**: a factorization machine, all workers in step. Before each pass rows are shuffled over all workers; in a step
//! the gradients of weights and factors are added up over all workers and applied once, and everybody waits until they are.

use sanderling_job::{Order, Worker};

use super::learner::Learner;
use crate::error::LearnError;

/// What every worker does.
pub(super) fn train(learner: &mut Learner<'_>, worker: &mut Worker) -> Result<(), LearnError> {
    while let Some(pass) = learner.next_pass() {
        let mut steps = worker.steps(&learner.input(), pass, Order::Shuffled, learner.global_batch())?;
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
