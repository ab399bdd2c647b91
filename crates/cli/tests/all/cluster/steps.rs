//! Workers that go in step over a cluster: the bits are those of one process, also if a primary is killed.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sanderling_registry::{PlannedMove, begin_moves, layout};

use super::{LONG, Place};
use crate::remote_training::{IN_STEP, assert_same};

const JOB: &str = "--algorithm ftrl-sync --workers 2 --passes 16 --quiet";

fn command(place: &Place, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling"));
    command.args(line.split_whitespace()).current_dir(place.folder.path());
    command
}

fn run(place: &Place, line: &str) {
    let output = command(place, line).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_run_in_step_has_the_same_bits_though_a_primary_is_killed_and_slots_move() {
    let mut place = Place::new(2);
    let folder = place.folder.path().to_owned();
    std::fs::write(folder.join("step.toml"), IN_STEP).unwrap();
    run(&place, "synth train.svm --rows 3000 --vocabulary 2000");
    run(&place, &format!("train step.toml {JOB} --runs-dir here"));
    let ps = place.keeper.url();
    run(&place, &format!("train step.toml {JOB} --runs-dir calm --ps {ps}"));
    assert_same(&folder.join("calm/run/model"), &folder.join("here/run/model"));

    let before = place.settled(1, 0);
    let at = place.at(&before, before.group.primary.server);
    let errors = disturbed(&place, "killed", || place.servers[at].1.as_ref().unwrap().signal("KILL"));
    place.servers[at].1 = None;
    assert_eq!(errors.matches("the run puts its last save back on the servers").count(), 1, "{errors}");
    assert_same(&folder.join("killed/run/model"), &folder.join("here/run/model"));

    // Slots that move between steps disturb nobody, and in the middle of one they take the run back, too.
    place.start(at);
    place.settled(1, before.group.epoch + 1);
    disturbed(&place, "moved", || {
        let slots = (0..2048).step_by(16).collect();
        begin_moves(&*place.registry, &[PlannedMove { from: 0, to: 1, slots, pinned: vec![] }]).unwrap();
    });
    let placement = layout(&*place.registry).unwrap().1;
    assert_eq!((placement.moves.len(), placement.group_of(16)), (0, Some(1)));
    assert_same(&folder.join("moved/run/model"), &folder.join("here/run/model"));
}

/// Trains, and disturbs the cluster after the first save; what the command said.
fn disturbed(place: &Place, name: &str, disturb: impl FnOnce()) -> String {
    let ps = place.keeper.url();
    let line = format!("train step.toml {JOB} --runs-dir {name} --ps {ps}");
    let training = command(place, &line).stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
    let (mut training, start) = (training.unwrap(), Instant::now());
    let saved = place.folder.path().join(name).join("run/model/manifest.json");
    while !saved.exists() {
        assert!(start.elapsed() < LONG && training.try_wait().unwrap().is_none(), "nothing is saved");
        std::thread::sleep(Duration::from_millis(1));
    }
    disturb();
    let output = training.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{name}: {errors}");
    errors
}
