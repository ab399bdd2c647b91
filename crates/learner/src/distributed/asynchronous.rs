//! **ftrl** and **fm**: asynchronous logistic regression by FTRL-proximal, and factorization machine.
//!
//! Each worker reads its share of the input. Its pushes are applied at once, to rows that others may have changed
//! since the pull; the number of missed pushes is counted. With a staleness bound no worker is more than that many
//! minibatches ahead of the slowest. The model determines the contents of a row: a weight, or a weight and its
//! factors.

use sanderling_job::{Order, Worker};

use super::learner::Learner;
use crate::error::LearnError;

/// The loop of every worker.
pub(super) fn train(learner: &mut Learner<'_>, worker: &mut Worker, order: Order) -> Result<(), LearnError> {
    while let Some(pass) = learner.next_pass() {
        let mut share = worker.share(&learner.input(), pass, order)?;
        while let Some(rows) = share.next(worker, learner.minibatch())? {
            if learner.is_online() {
                learner.learn_row_by_row(worker, &rows)?;
            } else {
                learner.pull(worker, &rows)?;
                learner.forward(worker, &rows)?;
                learner.score(worker, &rows);
                learner.backward(worker, &rows);
                learner.push(worker, &rows)?;
            }
            learner.keep_within_bound(worker)?;
            learner.settle(worker, &mut share)?;
        }
        learner.end_pass(worker)?;
    }
    Ok(())
}
