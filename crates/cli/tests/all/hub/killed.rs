//! A hub that is killed under load and started anew with its position: trainers that live on use every row once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use super::*;

/// Uses up all that it gets until all is over; what it used.
fn trainer(hubs: &str, name: &str, seen: &Arc<AtomicU64>) -> JoinHandle<String> {
    let (hubs, name, seen) = (hubs.to_owned(), name.to_owned(), Arc::clone(seen));
    std::thread::spawn(move || {
        let (mut subscription, mut notes) = (open(&hubs, &name), String::new());
        while let Some(delivered) = next(&mut subscription) {
            notes += &line_of(&delivered);
            subscription.acknowledge(delivered.hub, delivered.number);
            subscription.reuse(delivered.batch);
            seen.fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(subscription.waits_and_late().1, 0, "{name}: what it acknowledged counts");
        notes
    })
}

/// With a position that is written anew all the time, and with one that is not written anew at all.
#[test]
fn a_killed_hub_hands_out_no_row_twice_to_trainers_that_live_on() {
    for save_every in ["20ms", "1h"] {
        let dir = folder(2);
        let start = || {
            let options = format!(
                "--position position --save-every {save_every} --passes 2 --shuffle-rows 1000 --batch-size 10"
            );
            let command = format!("hub --listen unix:hub --spec spec.toml {options} day_0.csv day_1.csv");
            Process::start_command(dir.path(), "", &command, 1)
        };
        let mut hub = start();
        let hubs = format!("hub://unix:{}", dir.path().join("hub").display());
        let seen = Arc::<AtomicU64>::default();
        let mut trainers: Vec<_> = ["a", "b", "c"].iter().map(|name| trainer(&hubs, name, &seen)).collect();
        for kill in 1..=6 {
            while seen.load(Ordering::Relaxed) < kill * 300 && !trainers.iter().all(JoinHandle::is_finished) {
                std::thread::yield_now();
            }
            // Some come just before.
            trainers.push(trainer(&hubs, &format!("newcomer {kill}"), &seen));
            std::thread::sleep(Duration::from_millis(kill % 3));
            hub.signal("KILL");
            let (status, said) = hub.end();
            assert!(!status.success(), "it ended before it was killed: {said}");
            hub = start();
        }
        let notes: String = trainers.into_iter().map(|trainer| trainer.join().unwrap()).collect();
        check_each_once(&notes, 2);
        let (status, said) = hub.end();
        assert!(status.success() && said.contains("all minibatches were used"), "{said}");
    }
}

/// A file that cannot be written is said, trainers go on meanwhile, and once it can be written it says all again.
#[test]
fn trainers_go_on_while_a_position_cannot_be_written() {
    let dir = folder(1);
    // The first lines fit below this limit of a file's size, and no others before the file is written anew.
    let command =
        "hub --listen unix:hub --spec spec.toml --batch-size 2 --save-every 1h --position position day_0.csv";
    let hub = Process::start_command(dir.path(), "ulimit -f 8; trap '' XFSZ;", command, 1);
    let hubs = format!("hub://unix:{}", dir.path().join("hub").display());
    let mut subscription = open(&hubs, "t");
    let (mut notes, mut size) = (String::new(), 0);
    while let Some(delivered) = next(&mut subscription) {
        notes += &line_of(&delivered);
        subscription.acknowledge(delivered.hub, delivered.number);
        size = size.max(std::fs::metadata(dir.path().join("position")).unwrap().len());
    }
    drop(subscription);
    check_each_once(&notes, 1);
    let (status, said) = hub.end();
    assert!(status.success() && said.contains("all minibatches were used"), "{said}");
    assert!(size > 1024 && said.contains("the position was not saved: position: "), "{size}: {said}");
    assert!(said.contains("would repeat minibatches"), "{said}");
}
