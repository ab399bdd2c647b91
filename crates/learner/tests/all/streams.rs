//! Training on a pipe that stays open and says nothing more.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::sync::mpsc::channel;

use crate::runs::Place;
use sanderling_formats::BLOCK_BYTES;
use sanderling_learner::{Event, LearnError, Summary};

/// Looks at the progress after which the pipe is closed, so that who waits for it comes to an end.
const LOOKS_MAX: u32 = 400;

/// Trains with two threads on a pipe of this name, to which so much is written. Asks the run to stop at this look at its progress.
fn check(name: &str, text: Vec<u8>, stop_at: u32) -> Result<Summary, LearnError> {
    let place = Place::new();
    let pipe = place.path(name);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let toml = format!(
        "data = {{ train = {pipe:?} }}\ntrain = {{ threads = 2, batch_size = 16, shuffle_rows = 0 }}\n{}",
        if name.ends_with(".svm") { "" } else { "[[feature]]\nname = \"x\"" }
    );
    let (open, closed) = channel::<()>();
    // Open for reading, too: then it waits for nobody. Nobody waits for it.
    let mut writer = File::options().read(true).write(true).open(&pipe).unwrap();
    std::thread::spawn(move || {
        writer.write_all(&text).unwrap();
        _ = closed.recv();
    });
    let (open, looks) = (RefCell::new(Some(open)), Cell::new(0));
    let result = place.run_with(&toml, false, |event| {
        if matches!(event, Event::Training { .. }) {
            looks.set(looks.get() + 1);
            if looks.get() == LOOKS_MAX {
                open.take();
            }
        }
        looks.get() >= stop_at
    });
    assert!(open.borrow().is_some(), "{name}: the run waited for its input");
    result.map(|(summary, _)| summary)
}

#[test]
fn an_error_of_one_thread_ends_the_others() {
    let rows = "1 1:1 2:1\n".repeat(BLOCK_BYTES / 10 * 3 / 2);
    let error = check("rows.svm", format!("1 1:x\n{rows}").into_bytes(), u32::MAX).unwrap_err().to_string();
    assert!(error.contains("rows.svm:1:"), "{error}");
}

#[test]
fn a_copy_of_a_columnar_file_is_not_waited_for_once_interrupted() {
    let summary = check("rows.parquet", b"PAR1".to_vec(), 4).unwrap();
    assert!(summary.stopped && summary.examples == 0, "{summary:?}");
}
