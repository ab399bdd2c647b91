//! Takes the power away while marks of pushes change in a file beside the rows, as a server's window of push numbers
//! does: a push that is there must be marked, and one that was acknowledged must be marked as done.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::KeptBytes;

/// The key that each push of the script changes.
pub(super) const MARKED: u64 = 1;
/// The file of the marks. A byte: twice the number of the last push that is done, minus one if it has only begun.
const MARKS: &str = "marks";
const MARKS_BYTES: usize = 64;

/// Checks the marks of an image, if it has any, by the number of pushes that its rows show.
pub(super) fn check_marks(files: &Files, rows: &Rows, acknowledged: u64) -> Result<(), String> {
    let Some(marks) = files.get(MARKS) else { return Ok(()) };
    // The last word of a row is its version. The first push has no mark.
    let seen = rows.get(&MARKED).and_then(|row| row.last()).map_or(0, |&version| u64::from(version) - 1);
    let mark = u64::from(marks[0]);
    if mark + 1 < 2 * seen || mark < 2 * acknowledged {
        return Err(format!("the mark is {mark} after {acknowledged} acknowledged pushes, {seen} are there"));
    }
    Ok(())
}

/// Runs the script, with a part left out.
fn mark(part: Option<Part>) -> Result<usize, String> {
    leave_out(None);
    PLANTED.set(0);
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let script = script("marks");
    let folder = dir.path().join(crate::kept::folder_name(&script.config.name));
    let checks = Checks::new("marks", &folder, 0);
    let states = states(&script);
    let recording = Recording::start();
    set_boot("first");
    let table = Table::kept_for(script.config.clone(), dir.path(), "", Durability::Emulate).unwrap().0;
    script.before.iter().enumerate().for_each(|(number, act)| act_on(&table, number, act));
    let marks = KeptBytes::open(&folder.join(MARKS), MARKS_BYTES, Durability::Emulate).unwrap();
    let set = |mark: usize| {
        marks[0].store(mark as u8, Relaxed);
        marks.write_back(0..1);
    };
    checks.lock().unwrap().may_be.clone_from(&states[0].after);
    recording.observe(Checks::observer(&checks));
    leave_out(part);
    for (number, act) in script.watched.iter().enumerate() {
        checks.lock().unwrap().may_be = [&states[number].after[..], &states[number + 1].after[..]].concat();
        set(2 * number + 1);
        act_on(&table, 100 + number, act);
        set(2 * number + 2);
        {
            let checks = &mut *checks.lock().unwrap();
            checks.may_be.clone_from(&states[number + 1].after);
            checks.pushes += 1;
        }
        recording.show();
        Checks::result(&checks)?;
    }
    leave_out(None);
    Ok(checks.lock().unwrap().images)
}

#[test]
fn marks_of_pushes_survive_the_loss_of_power_and_need_flush_and_fence() {
    println!("{} images", mark(None).unwrap());
    for part in parts(&[Step::Bytes]) {
        println!("{part:?}: {}", mark(Some(part)).expect_err(&format!("{part:?} is not found")));
    }
}
