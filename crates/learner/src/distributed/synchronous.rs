//! **ftrl-sync**, **fm-sync** and their variants without a shuffle: synchronous FTRL-proximal and factorization
//! machine.
//!
//! In a step every worker sums the gradients of its rows per key; the sums of all workers are applied once, and all
//! workers wait for that. z and n of a coordinate see one gradient, so n grows by the square of the sum. Shuffled,
//! rows are exchanged between all workers before each pass. In the order of the input that is saved, but an input
//! sorted by label or time is learned in that order.

use sanderling_job::{Order, Worker};

use super::learner::Learner;
use crate::error::LearnError;

/// The loop of every worker.
pub(super) fn train(learner: &mut Learner<'_>, worker: &mut Worker, order: Order) -> Result<(), LearnError> {
    while let Some(pass) = learner.next_pass() {
        let mut steps = worker.steps(&learner.input(), pass, order, learner.global_batch())?;
        while steps.next(worker)?.is_some() {
            let rows = steps.rows();
            learner.pull(worker, &rows)?;
            learner.forward(worker, &rows)?;
            learner.backward_in_step(worker, &rows)?;
            let step = learner.hand_in(worker)?;
            steps.prepare(worker);
            if learner.wait_applied(worker, step)? {
                learner.score(worker, &steps.rows());
            }
        }
        learner.end_pass(worker)?;
    }
    Ok(())
}
