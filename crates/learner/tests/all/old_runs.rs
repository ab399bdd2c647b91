//! Runs that an earlier version saved, whose configurations have old names.

use std::path::Path;

use sanderling_learner::Model;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

#[test]
fn a_model_of_an_earlier_version_loads() {
    let model = Model::load(&Path::new(GOLDEN).join("old/model")).unwrap();
    let (train, model) = (&model.config().train, &model.config().model);
    assert_eq!((train.batch_size, train.shuffle_rows, train.max_steps), (16, 50, 15));
    assert_eq!((train.save_every_steps, train.print_every_steps), (5, 7));
    assert_eq!(train.ps_timeout.map(|timeout| timeout.as_millis()), Some(2500));
    assert_eq!(model.table_budget_bytes, 1 << 20);
}
