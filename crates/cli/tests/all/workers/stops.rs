//! Ctrl-C and SIGTERM in the middle of a job, at any rank, also while another process does not run at all: all commands end and
//! say why, and the run goes on as if nothing had been. Knows not how a worker hears of it.
//!
//! Nothing here measures time: whoever did not hear of a stop would wait for so long that the test would not end well.

use std::process::{Child, Command};

use super::commands::{Said, ended_well};
use super::{ROWS, Site};
use crate::process::wait_until_it_waits;

/// Passes that nobody comes to the end of.
const ENDLESS: &str = "--passes 1000000 --worker-timeout 10m";
/// What a command ends with that was interrupted.
const INTERRUPTED: i32 = 130;

pub(crate) fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

/// A command that does not run until this is dropped.
struct Paused(u32);

impl Paused {
    fn new(process: u32) -> Paused {
        signal("-STOP", process);
        Paused(process)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        signal("-CONT", self.0);
    }
}

/// A command that is killed if a test ends before it.
struct Worker {
    child: Child,
    said: Said,
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
    }
}

impl Worker {
    fn of(mut child: Child) -> Worker {
        let said = Said::of(&mut child);
        Worker { child, said }
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    /// It ends as one that was interrupted; what it says with these words.
    fn ends_with(mut self, words: &str) -> String {
        let line = self.said.wait_for(words);
        assert_eq!(self.child.wait().unwrap().code(), Some(INTERRUPTED), "{line}");
        line
    }

    /// The same; the pass after which it says that the job is saved.
    fn ends_saying(self, words: &str) -> u64 {
        // Not the words: who was waited for is named with them, too.
        let line = self.ends_with("as it was after pass ");
        assert!(line.contains(words), "{line}");
        let pass = line.rsplit_once("as it was after pass ").unwrap().1;
        let (pass, next) = pass.split_once(':').unwrap();
        assert_eq!(next, " start all workers with --resume to go on");
        pass.trim_end_matches(" or later").parse().unwrap()
    }
}

impl Site {
    fn start(&self, arguments: &str, workers: u32) -> Vec<Worker> {
        let arguments = format!("{arguments} {ENDLESS}");
        let start = |rank| Worker::of(self.train_as(&arguments, rank, workers));
        let mut workers: Vec<Worker> = (0..workers).map(start).collect();
        workers.iter_mut().for_each(|worker| drop(worker.said.wait_for("pass 2 trained")));
        workers
    }

    /// A run that was stopped after so many passes makes one more, and is then what it would have been.
    fn goes_on(&self, arguments: &str, name: &str, passes: u64, workers: u32) {
        let again = format!("{arguments} --passes {} --name {name} --resume --attempt 2", passes + 1);
        let arguments = format!("{arguments} --quiet --passes {}", passes + 1);
        let together = format!("{arguments} --name {name} --resume --attempt 1");
        let children: Vec<Child> = (0..workers).map(|rank| self.train_as(&together, rank, workers)).collect();
        children.into_iter().for_each(|child| drop(ended_well(child)));
        ended_well(self.train(&format!("{arguments} --name alone")).spawn().unwrap());
        assert!(self.model("alone") == self.model(name), "the models differ");
        // Nobody makes anything up who has nothing left to do.
        let children: Vec<Child> = (0..workers).map(|rank| self.train_as(&again, rank, workers)).collect();
        for said in children.into_iter().map(ended_well) {
            let nothing = format!("nothing is left to do after pass {}", passes + 1);
            assert!(said.contains(&nothing) && !said.contains("lost"), "{said}");
        }
    }
}

#[test]
fn one_worker_is_stopped_and_all_end_and_go_on_later() {
    let site = Site::new(ROWS / 16);
    site.write_config();
    for (signal_name, algorithm) in [
        ("-INT", "ftrl-sync"),
        ("-TERM", "fm-sync-no-shuffle"),
        ("-INT", "ftrl --staleness 1"),
        ("-TERM", "ftrl"),
    ] {
        let arguments = format!("--algorithm {algorithm}");
        let mut workers = site.start(&format!("{arguments} --name stopped"), 3);
        let [_, second, _] = &workers[..] else { panic!("three were started") };
        signal(signal_name, second.id());
        let third = workers.pop().unwrap().ends_saying("worker 1 at unix:");
        let second = workers.pop().unwrap().ends_saying("worker 1 was stopped");
        let saved = workers.pop().unwrap().ends_saying("worker 1 at unix:");
        // Who is not told that a pass is saved says less, not more.
        assert!((1..=saved).contains(&second) && (1..=saved).contains(&third), "{second} {third} {saved}");
        let summary = std::fs::read(site.folder.path().join("runs/stopped/summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
        assert_eq!((&summary["stopped"], summary["passes"].as_u64()), (&true.into(), Some(saved)));
        if algorithm.contains("sync") {
            site.goes_on(&arguments, "stopped", saved, 3);
        }
    }
}

/// Over an earlier run of its name, a job that has saved no pass saves nothing, and nobody says to go on with it.
#[test]
fn who_is_stopped_in_the_first_pass_leaves_an_earlier_run_as_it_was() {
    // So many steps that nobody comes to their end.
    let site = Site::new(2 * ROWS);
    site.write_config();
    let text = std::fs::read_to_string(site.folder.path().join("c.toml")).unwrap();
    std::fs::write(
        site.folder.path().join("c.toml"),
        text.replace("passes", "print_every_steps = 1, passes"),
    )
    .unwrap();
    let arguments = "--algorithm ftrl-sync --name again";
    let together = |more: &str| [0, 1].map(|rank| site.train_as(&format!("{arguments} {more}"), rank, 2));
    together("--quiet").into_iter().for_each(|child| drop(ended_well(child)));
    let earlier = site.model("again");
    for told in [0, 1] {
        let mut workers = together("--batch-size 2").map(Worker::of);
        workers[0].said.wait_for("step 1,");
        signal("-INT", workers[told].id());
        let [first, second] = workers;
        let said = first.ends_with("the earlier run of this name is as it was");
        assert_eq!(said.contains("worker 1 at unix:"), told == 1, "{said}");
        let said = second.ends_with("worker 0 says how to go on");
        assert!(said.contains("was stopped"), "{said}");
        assert!(site.model("again") == earlier, "the models differ");
    }
    for child in together("--resume --passes 3") {
        let said = ended_well(child);
        assert!(said.contains("pass 3 trained") && !said.contains("pass 1 trained"), "{said}");
    }
}

#[test]
fn a_worker_is_stopped_while_another_one_does_not_run() {
    let site = Site::new(ROWS / 16);
    site.write_config();
    // Who does not run, who is stopped, and what is done when one is lost.
    for (name, paused, stopped, on_loss) in
        [("a", 2, 1, "stop"), ("b", 0, 1, "redo"), ("c", 1, 0, "redo"), ("d", 0, 2, "stop")]
    {
        let arguments = format!("--algorithm ftrl-sync --name {name} --on-worker-loss {on_loss}");
        let mut workers: Vec<Option<Worker>> = site.start(&arguments, 3).into_iter().map(Some).collect();
        let mut take = |rank: usize| workers[rank].take().unwrap();
        let (paused_one, stopped_one) = (take(paused), take(stopped));
        let pause = Paused::new(paused_one.id());
        wait_until_it_waits(stopped_one.id());
        signal("-INT", stopped_one.id());
        let mut saved =
            vec![stopped_one.ends_saying(if stopped == 0 { "the job was stopped" } else { "was stopped" })];
        let other = take(3 - paused - stopped);
        let named = format!("worker {stopped} at unix:");
        if paused == 0 {
            // Only the first one tells the others.
            drop(pause);
            saved.push(other.ends_saying(&named));
        } else {
            saved.push(other.ends_saying(&named));
            drop(pause);
        }
        saved.push(paused_one.ends_saying(&named));
        assert!(saved.iter().all(|&pass| pass >= 1), "{saved:?}");
    }
}

#[test]
fn workers_of_one_process_are_stopped_together_and_go_on_later() {
    let site = Site::new(ROWS / 16);
    site.write_config();
    for algorithm in ["ftrl-sync", "fm-sync-no-shuffle"] {
        let arguments = format!("--algorithm {algorithm} --workers 2");
        let child = site.train(&format!("{arguments} --name threads --passes 1000000")).spawn().unwrap();
        let mut worker = Worker::of(child);
        worker.said.wait_for("pass 2 trained");
        signal("-INT", worker.id());
        let saved = worker.ends_saying("the job was stopped; it is saved");
        let again = format!("{arguments} --quiet --name threads --resume --passes {}", saved + 1);
        ended_well(site.train(&again).spawn().unwrap());
        let alone = format!("--algorithm {algorithm} --quiet --name alone --passes {}", saved + 1);
        ended_well(site.train(&alone).spawn().unwrap());
        assert!(site.model("alone") == site.model("threads"), "the models differ");
    }
}

#[test]
fn a_second_signal_ends_a_worker_at_once_whatever_it_waits_for() {
    let site = Site::new(ROWS / 16);
    site.write_config();
    let mut workers = site.start("--algorithm ftrl-sync --name twice", 2);
    // A server that does not answer is waited for; it is no worker.
    site.servers.iter().for_each(|server| server.signal("STOP"));
    workers.iter().for_each(|worker| wait_until_it_waits(worker.id()));
    // The first one last: without it the others end by themselves.
    for worker in workers.iter_mut().rev() {
        signal("-INT", worker.id());
        worker.said.wait_for("once more to stop at once");
    }
    for worker in workers.iter_mut().rev() {
        signal("-INT", worker.id());
        assert_eq!(worker.child.wait().unwrap().code(), Some(INTERRUPTED));
    }
}

/// The others have ended for want of worker 0, which must not take them for lost and finish alone when it wakes.
#[test]
fn a_worker_0_that_was_stopped_for_too_long_ends_when_it_wakes() {
    let site = Site::new(ROWS / 16);
    site.write_config();
    for algorithm in ["ftrl", "ftrl-sync"] {
        let name = format!("{algorithm}-slept");
        let arguments = format!("--algorithm {algorithm} --name {name} --passes 1000000 --worker-timeout 4s");
        let mut workers: Vec<Worker> =
            (0..2).map(|rank| Worker::of(site.train_as(&arguments, rank, 2))).collect();
        workers.iter_mut().for_each(|worker| drop(worker.said.wait_for("pass 2 trained")));
        let paused = Paused::new(workers[0].id());
        let mut second = workers.pop().unwrap();
        let line = second.said.wait_for("nothing was heard of it for");
        assert!(line.contains("worker 0"), "{line}");
        assert_eq!(second.child.wait().unwrap().code(), Some(1));
        drop(paused);
        let mut first = workers.pop().unwrap();
        let line = first.said.wait_for("it was stopped for");
        assert!(line.contains("--worker-timeout"), "{line}");
        assert_eq!(first.child.wait().unwrap().code(), Some(1));
    }
}
