//! **fm**: a factorization machine, asynchronous. A key's row is its weight and its factors; the rest is as in ftrl: each
//! worker reads its share of the input, and what it pushes is applied as it comes.

use sanderling_job::{Order, Worker};

use super::learner::Learner;
use crate::error::LearnError;

/// What every worker does.
pub(super) fn train(learner: &mut Learner<'_>, worker: &mut Worker) -> Result<(), LearnError> {
    while let Some(pass) = learner.next_pass() {
        let mut share = worker.share(&learner.input(), pass, Order::Input)?;
        while let Some(rows) = share.next(worker, learner.minibatch())? {
            if learner.is_online() {
                learner.learn_row_by_row(worker, &rows)?;
            } else {
                learner.pull(worker, &rows)?;
                learner.forward(worker, &rows)?;
                learner.score(worker, &rows);
                learner.backward(worker, &rows);
                learner.push(worker)?;
            }
            learner.keep_within_bound(worker)?;
            learner.settle(worker, &mut share)?;
        }
        learner.end_pass(worker)?;
    }
    Ok(())
}
