//! **ftrl-sync**, **fm-sync**, and the same without a shuffle: logistic regression by FTRL-proximal, and a factorization
//! machine, all workers in step. In a step every worker adds up the gradients of its rows, one sum per key; the sums of all
//! are applied once (z and n of a coordinate see one gradient, so n grows by the square of the sum), and everybody waits until
//! they are. Shuffled, rows are exchanged over all workers before each pass; in the order of the input that is saved, and an
//! input that is sorted, by label or by time, is learned in that order.

use sanderling_job::{Order, Worker};

use super::learner::Learner;
use crate::error::LearnError;

/// What every worker does.
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
