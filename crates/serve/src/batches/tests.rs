//! Batches over requests by an engine that tells its runs.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use sanderling_sample::{Field, Spec};

use super::*;
use crate::dense::{DenseEngine, DenseInput};
use crate::scores::{Scoring, Wanted};

/// Longer than any operation of a passing test takes.
const LONG: Duration = Duration::from_secs(60);
/// A value for which the engine gives no number.
const UNDEFINED: f64 = 1e14;
/// A value at which the engine fails.
const FATAL: f64 = -1e14;

/// Gives twice each number, and tells how many rows each run has.
struct Doubler(Mutex<Sender<usize>>);

impl DenseEngine for Doubler {
    fn name(&self) -> &'static str {
        "a test"
    }

    fn run(&self, inputs: &[DenseInput<'_>], output: &mut Vec<f32>) -> Result<(), String> {
        let numbers = inputs[0].values;
        self.0.lock().expect("no panic").send(numbers.len()).expect("the test listens");
        if numbers.contains(&(FATAL as f32)) {
            return Err("it fails".to_owned());
        }
        let double = |x: &f32| if *x == UNDEFINED as f32 { f32::NAN } else { 2.0 * x };
        output.extend(numbers.iter().map(double));
        Ok(())
    }
}

fn model(runs: Sender<usize>) -> Arc<ServedModel> {
    let spec = serde_json::json!({ "feature": [{ "name": "x", "type": "numeric" }] });
    let spec: Spec = serde_json::from_value(spec).expect("a spec");
    let deep = DeepModel::of_numbers("x", spec, Box::new(Doubler(Mutex::new(runs))));
    Arc::new(ServedModel::of(Scored::Deep(Box::new(deep)), Some("clicks"), 1).expect("a model"))
}

/// The scores of a request of these rows, in a batch if it may join one.
async fn ask(
    threads: &Arc<ScoringThreads>,
    batching: Batching,
    model: &Arc<ServedModel>,
    rows: Vec<f64>,
) -> Result<Vec<f32>, ServeError> {
    let of = Arc::clone(model);
    let work = move || {
        let wanted = Wanted { explains: false, joins_max: batching.rows_max };
        let found = of.with_scorer(|scorer| {
            let times = StageTimes::default();
            let mut scoring = Scoring::new(&of, scorer, rows.len(), wanted, &times)?;
            for (at, number) in rows.iter().enumerate() {
                let field = |name: &str| if name == "x" { Field::Float(*number) } else { Field::Missing };
                let fields: Vec<Field<'_>> = of.columns.iter().map(|column| field(&column.name)).collect();
                scoring.add(at, &fields)?;
            }
            scoring.finish()
        })?;
        answer(found, &of, |scores| Ok(scores.scores))
    };
    run(threads, batching, &StageTimes::default(), work).await
}

/// Asks all at once, in order.
fn check(window: Duration, requests: &[&[f64]], expected_runs: &[usize], expected: &[Result<&[f32], &str>]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (runs, heard) = channel();
    let model = model(runs);
    let threads = Arc::new(ScoringThreads::start(1, 64, LONG, LONG).expect("threads"));
    let batching = Batching { window, rows_max: 4 };
    let found = runtime.block_on(async {
        let asked: Vec<_> = requests
            .iter()
            .map(|rows| {
                let (threads, model, rows) = (Arc::clone(&threads), Arc::clone(&model), rows.to_vec());
                tokio::spawn(async move { ask(&threads, batching, &model, rows).await })
            })
            .collect();
        let mut found = Vec::new();
        for asked in asked {
            found.push(asked.await.expect("no panic"));
        }
        found
    });
    for ((found, expected), request) in found.iter().zip(expected).zip(requests) {
        match expected {
            Ok(scores) => assert_eq!(found.as_deref(), Ok(*scores), "{request:?}"),
            Err(text) => {
                let error = found.as_ref().expect_err(text).to_string();
                assert!(error.contains(text), "{request:?}: {error}");
            }
        }
    }
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), expected_runs, "{requests:?}");
    let batches = batches_of(&model).expect("a deep model");
    let open = batches.lock();
    assert_eq!((open.entries.len(), open.rows, open.is_scheduled), (0, 0, false));
    let requests_in_batches = requests.iter().filter(|rows| rows.len() <= 4).count() as u64;
    assert_eq!(batches.statistics.lock().expect("no panic").requests, requests_in_batches);
}

#[test]
fn requests_are_scored_in_one_run_and_get_their_own_rows() {
    check(LONG, &[&[1.0], &[2.0, 3.0], &[4.0]], &[4], &[Ok(&[2.0]), Ok(&[4.0, 6.0]), Ok(&[8.0])]);
    // A request of more rows than a batch has runs alone, and at once.
    check(LONG, &[&[1.0, 1.0, 1.0, 1.0, 1.0]], &[5], &[Ok(&[2.0; 5])]);
    // The window ends.
    check(Duration::from_millis(1), &[&[7.0]], &[1], &[Ok(&[14.0])]);
    // A request that does not fit is in the next batch, which is full at once.
    check(LONG, &[&[1.0; 3], &[2.0; 3], &[3.0]], &[3, 4], &[Ok(&[2.0; 3]), Ok(&[4.0; 3]), Ok(&[6.0])]);
}

#[test]
fn a_request_has_its_own_errors() {
    let text = "row 1: its score is no finite number";
    check(LONG, &[&[1.0], &[2.0, UNDEFINED], &[4.0]], &[4], &[Ok(&[2.0]), Err(text), Ok(&[8.0])]);
    check(LONG, &[&[1.0, FATAL], &[2.0, 2.0]], &[4], &[Err("it fails"), Err("it fails")]);
}

#[test]
fn a_request_that_was_given_up_is_not_scored() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (runs, heard) = channel();
    let model = model(runs);
    let threads = Arc::new(ScoringThreads::start(1, 64, LONG, LONG).expect("threads"));
    let batching = Batching { window: LONG, rows_max: 4 };
    runtime.block_on(async {
        let given_up = ask(&threads, batching, &model, vec![1.0, 1.0]);
        assert!(tokio::time::timeout(Duration::from_millis(100), given_up).await.is_err());
        assert_eq!(ask(&threads, batching, &model, vec![3.0, 3.0]).await, Ok(vec![6.0, 6.0]));
    });
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [2]);
}
