//! **ftrl** and **fm**: logistic regression by FTRL-proximal, and a factorization machine, asynchronous. Each worker reads its
//! share of the input, and what it pushes is applied as it comes, to rows that others may have changed since it pulled them.
//! How many pushes of others it missed is counted; with a bound of staleness nobody is more than so many minibatches ahead of
//! the slowest. What a row is made of, the model says: a weight, or a weight and its factors.

use sanderling_job::{Order, Worker};

use super::learner::Learner;
use crate::error::LearnError;

/// What every worker does.
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
