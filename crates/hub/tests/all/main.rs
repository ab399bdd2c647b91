//! Hubs and trainers in one process, over real channels: every row once per pass, whatever happens to the trainers; what
//! goes wrong is said by who it went wrong at.
#![allow(clippy::unwrap_used)] // In a test a panic is the report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sanderling_hub::service::{Ended, Service, ServiceConfig, ServiceError, Status};
use sanderling_hub::{Compression, Delivered, HubError, Next, SubscribeOptions, Subscription, hub_addresses};

mod errors;

/// Rows of the input: several units of text, the last one short.
const ROWS: u64 = 9_000;
/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The rows 0..ROWS, whose only key is their number, over some files.
fn input(dir: &std::path::Path, files: u64) -> Vec<String> {
    // A field that nobody asks for makes the lines long, and so the units many.
    let padding = "x".repeat(120);
    let file = |number: u64| {
        let path = dir.join(format!("{number}.csv"));
        let rows = ROWS * number / files..ROWS * (number + 1) / files;
        let lines: String = rows.map(|row| format!("{},{row},{padding}\n", row % 2)).collect();
        std::fs::write(&path, format!("label,id,padding\n{lines}")).unwrap();
        path.to_string_lossy().into_owned()
    };
    (0..files).map(file).collect()
}

fn config(inputs: &[String]) -> ServiceConfig {
    ServiceConfig {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        inputs: inputs.to_vec(),
        spec: toml::from_str("[[feature]]\nname = \"id\"\nkey = \"raw\"").unwrap(),
        batch: 100,
        passes: 2,
        shuffle: 1000,
        threads: 2,
        ..ServiceConfig::default()
    }
}

/// A hub that runs on a thread.
struct Hub {
    address: String,
    stop: Arc<AtomicBool>,
    run: JoinHandle<(Result<Ended, ServiceError>, Status)>,
}

impl Hub {
    fn start(config: &ServiceConfig) -> Hub {
        let service = Service::start(config, |_| ()).unwrap();
        let (address, stop) = (service.addresses()[0].to_string(), Arc::<AtomicBool>::default());
        let stopping = Arc::clone(&stop);
        let run = std::thread::spawn(move || service.run(&stopping, |_| ()));
        Hub { address, stop, run }
    }

    fn end(self) -> (Result<Ended, ServiceError>, Status) {
        self.run.join().unwrap()
    }

    fn stop(self) -> (Result<Ended, ServiceError>, Status) {
        self.stop.store(true, Ordering::Relaxed);
        self.end()
    }
}

fn open(hubs: &[&str], name: &str, options: &SubscribeOptions) -> Result<Subscription, HubError> {
    Subscription::open(&hub_addresses(&format!("hub://{}", hubs.join(",")))?, name, options)
}

/// The next one; None when all is over.
fn next(subscription: &mut Subscription) -> Option<Delivered> {
    match subscription.next(Instant::now() + PATIENCE).unwrap() {
        Next::Batch(delivered) => Some(delivered),
        Next::Over => None,
        Next::Wait => panic!("nothing came for {PATIENCE:?}"),
    }
}

/// How often each row was used, by pass.
type Used = BTreeMap<(u64, u64), u32>;

fn use_up(subscription: &mut Subscription, delivered: Delivered, used: &mut Used) {
    let rows = delivered.batch.rows();
    assert!(rows.labels().iter().zip(rows.keys(0)).all(|(label, id)| *label == (id % 2) as f32));
    for &id in rows.keys(0) {
        *used.entry((delivered.pass, id)).or_default() += 1;
    }
    subscription.acknowledge(delivered.hub, delivered.number);
    subscription.reuse(delivered.batch);
}

fn check_each_once(used: &Used, passes: u64) {
    let all = (0..passes).flat_map(|pass| (0..ROWS).map(move |row| (pass, row)));
    assert!(used.iter().map(|(key, count)| (*key, *count)).eq(all.map(|key| (key, 1))), "{}", used.len());
}

#[test]
fn each_row_is_used_once_per_pass_though_trainers_die() {
    for (files, addresses) in [(3, ["127.0.0.1:0", "127.0.0.1:0"]), (1, ["unix", "shm"])] {
        let dir = tempfile::tempdir().unwrap();
        let inputs = input(dir.path(), files);
        let hubs = addresses.iter().zip(0..).map(|(address, index)| {
            let address = match *address {
                "unix" => format!("unix:{}", dir.path().join("hub").display()),
                "shm" => format!("shm:hub-test-{}", std::process::id()),
                other => other.to_owned(),
            };
            Hub::start(&ServiceConfig {
                listen: vec![address.parse().unwrap()],
                share: (index, 2),
                ..config(&inputs)
            })
        });
        let hubs: Vec<Hub> = hubs.collect();
        // Nobody goes to the end before all have died as often as they shall: a hub that has told all who came that it is over
        // does not wait for one that dies after it has heard it.
        let mortals = Arc::new(AtomicU64::new(2));
        let trainers: Vec<_> = ["a", "b"]
            .map(|name| {
                let at: Vec<String> = hubs.iter().map(|hub| hub.address.clone()).collect();
                let mortals = Arc::clone(&mortals);
                std::thread::spawn(move || {
                    let at: Vec<&str> = at.iter().map(String::as_str).collect();
                    let (mut used, mut lives) = (Used::new(), 0_u64);
                    'lives: loop {
                        lives += 1;
                        if lives == 4 {
                            mortals.fetch_sub(1, Ordering::Relaxed);
                            let start = Instant::now();
                            while mortals.load(Ordering::Relaxed) > 0 {
                                assert!(start.elapsed() < PATIENCE, "the other does not come that far");
                                std::thread::sleep(Duration::from_millis(1));
                            }
                        }
                        // Each life has minibatches come in another way, as far as the hub's transport does it.
                        let ways = [None, Some(Compression::Lz4), Some(Compression::Zstd)];
                        let compression = ways[(lives % 3) as usize];
                        let options = SubscribeOptions { compression, ..SubscribeOptions::default() };
                        let mut subscription = open(&at, name, &options).unwrap();
                        let mut seen = 0;
                        while let Some(delivered) = next(&mut subscription) {
                            seen += 1;
                            // It dies with minibatches that it has not acknowledged, this one among them.
                            if lives < 4 && seen > 5 * lives {
                                subscription.settle(Instant::now() + PATIENCE).unwrap();
                                continue 'lives;
                            }
                            use_up(&mut subscription, delivered, &mut used);
                        }
                        return used;
                    }
                })
            })
            .into();
        let mut used = Used::new();
        for trainer in trainers {
            for (key, count) in trainer.join().unwrap() {
                *used.entry(key).or_default() += count;
            }
        }
        check_each_once(&used, 2);
        for hub in hubs {
            let (ended, _) = hub.end();
            assert_eq!(ended.unwrap(), Ended::Over);
        }
    }
}

#[test]
fn the_order_depends_on_the_seed_alone_and_a_hub_goes_on_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let inputs = input(dir.path(), 2);
    let run = |config: &ServiceConfig, stop_after: Option<usize>| {
        let hub = Hub::start(config);
        let options = SubscribeOptions { window: 64, ..SubscribeOptions::default() };
        let mut subscription = open(&[&hub.address], "t", &options).unwrap();
        let mut seen = Vec::new();
        while stop_after.is_none_or(|most| seen.len() < most) {
            let Some(delivered) = next(&mut subscription) else { break };
            let ids = delivered.batch.rows().keys(0).to_vec();
            // Before a stop every third one is not acknowledged, so that there are gaps.
            if stop_after.is_none() || seen.len() % 3 != 1 {
                subscription.acknowledge(delivered.hub, delivered.number);
            }
            seen.push((delivered.pass, delivered.number, ids));
        }
        subscription.settle(Instant::now() + PATIENCE).unwrap();
        let (ended, status) = if stop_after.is_some() { hub.stop() } else { hub.end() };
        assert_eq!(ended.unwrap(), if stop_after.is_some() { Ended::Stopped } else { Ended::Over });
        (seen, status)
    };
    let (whole, _) = run(&config(&inputs), None);
    let numbers: Vec<u64> = whole.iter().map(|(_, number, _)| *number).collect();
    assert_eq!(numbers, (0..180).collect::<Vec<_>>());
    let one_thread = ServiceConfig { threads: 1, ..config(&inputs) };
    assert_eq!(run(&one_thread, None).0, whole);
    assert_ne!(run(&ServiceConfig { seed: 7, ..one_thread }, None).0, whole);

    let position = Some(dir.path().join("position"));
    let resumed = ServiceConfig { position: position.clone(), ..config(&inputs) };
    let mut acknowledged = std::collections::BTreeSet::new();
    for stop_after in [Some(50), Some(61), Some(1), None] {
        let (seen, status) = run(&resumed, stop_after);
        // In the same minibatches, in order, without those that were acknowledged.
        let left: Vec<_> = whole.iter().filter(|(_, number, _)| !acknowledged.contains(number)).collect();
        assert!(seen.iter().eq(left.into_iter().take(seen.len())));
        let used = seen.iter().enumerate().filter(|(at, _)| stop_after.is_none() || at % 3 != 1);
        acknowledged.extend(used.map(|(_, (_, number, _))| *number));
        assert_eq!(status.acknowledged, acknowledged.len() as u64);
    }
    assert_eq!(acknowledged.len(), 180);
    // It is over, and stays so; and it is no position of another input.
    assert_eq!(run(&resumed, None).0, []);
    let error = Service::start(&ServiceConfig { batch: 99, ..resumed }, |_| ()).err().unwrap();
    assert!(error.to_string().contains("with batch 100, and this is 99"), "{error}");
}

#[test]
fn a_slow_trainer_is_waited_for_in_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(&ServiceConfig {
        queue_batches: 3,
        passes: 1,
        unacknowledged_bytes: 1,
        ..config(&input(dir.path(), 1))
    });
    let mut subscription = open(&[&hub.address], "slow", &SubscribeOptions::default()).unwrap();
    let mut used = Used::new();
    let mut waits = 0;
    while let Some(delivered) = next(&mut subscription) {
        // One at a time, since what is handed out and not acknowledged is bounded, too.
        if waits < 3 {
            let more = subscription.next(Instant::now() + Duration::from_millis(20)).unwrap();
            assert!(matches!(more, Next::Wait), "{more:?}");
            waits += 1;
        }
        use_up(&mut subscription, delivered, &mut used);
    }
    check_each_once(&used, 1);
    let (ended, status) = hub.end();
    assert_eq!(ended.unwrap(), Ended::Over);
    assert_eq!((status.ready_max, status.acknowledged, status.trainers[0].counts.rows), (3, 90, ROWS));
    assert_eq!((status.ready, status.unacknowledged, status.unacknowledged_bytes), (0, 0, 0));
    assert!(status.stages.iter().all(|stage| stage.count > 0), "{:?}", status.stages);
}

#[test]
fn ranks_take_turns() {
    let dir = tempfile::tempdir().unwrap();
    let inputs = input(dir.path(), 2);
    let hubs = [0, 1].map(|index| {
        Hub::start(&ServiceConfig { stride: 2, share: (index, 2), passes: 1, ..config(&inputs) })
    });
    let at = [hubs[0].address.clone(), hubs[1].address.clone()];
    let trainers = [0, 1].map(|rank| {
        let at = at.clone();
        std::thread::spawn(move || {
            let options = SubscribeOptions { rank: Some(rank), ..SubscribeOptions::default() };
            let mut subscription = open(&[&at[0], &at[1]], &format!("rank {rank}"), &options).unwrap();
            let mut seen = Vec::new();
            while let Some(delivered) = next(&mut subscription) {
                seen.push((delivered.hub, delivered.number));
                subscription.acknowledge(delivered.hub, delivered.number);
            }
            seen
        })
    });
    for (rank, trainer) in trainers.into_iter().enumerate() {
        let seen = trainer.join().unwrap();
        let expected = (0..46).map(|turn| (turn % 2, (turn / 2 * 2 + rank) as u64));
        assert_eq!(seen, expected.filter(|(_, number)| *number < 45).collect::<Vec<_>>());
    }
    for hub in hubs {
        hub.end().0.unwrap();
    }
}

#[test]
fn a_trainer_lives_on_while_its_hub_is_started_anew_with_its_position() {
    let dir = tempfile::tempdir().unwrap();
    let config = ServiceConfig {
        listen: vec![format!("unix:{}", dir.path().join("hub").display()).parse().unwrap()],
        position: Some(dir.path().join("position")),
        ..config(&input(dir.path(), 2))
    };
    let mut hub = Some(Hub::start(&config));
    let address = hub.as_ref().unwrap().address.clone();
    let mut subscription = open(&[&address], "t", &SubscribeOptions::default()).unwrap();
    let (mut used, mut seen, mut waiting) = (Used::new(), 0, Vec::new());
    while let Some(delivered) = next(&mut subscription) {
        // It always has one that it has not acknowledged.
        waiting.push(delivered);
        if waiting.len() > 1 {
            use_up(&mut subscription, waiting.remove(0), &mut used);
        }
        seen += 1;
        if seen % 40 == 0 && seen < 180 {
            hub.take().unwrap().stop().0.unwrap();
            hub = Some(Hub::start(&config));
        }
        if seen == 180 {
            use_up(&mut subscription, waiting.remove(0), &mut used);
        }
    }
    check_each_once(&used, 2);
    assert_eq!(subscription.waits_and_late().1, 0);
    hub.unwrap().end().0.unwrap();
}

#[test]
fn trainers_keep_what_they_have_while_their_hub_is_started_anew() {
    let dir = tempfile::tempdir().unwrap();
    let config = ServiceConfig {
        listen: vec![format!("unix:{}", dir.path().join("hub").display()).parse().unwrap()],
        position: Some(dir.path().join("position")),
        ..config(&input(dir.path(), 2))
    };
    let mut hub = Hub::start(&config);
    let (address, seen) = (hub.address.clone(), Arc::<AtomicU64>::default());
    let trainers: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .map(|name| {
            let (address, seen) = (address.clone(), Arc::clone(&seen));
            std::thread::spawn(move || {
                let mut subscription = open(&[&address], name, &SubscribeOptions::default()).unwrap();
                let (mut used, mut waiting) = (Used::new(), Vec::new());
                loop {
                    // Each has one in hand, and others on the way, whenever the hub ends. When nothing comes any more it may be
                    // the last one.
                    let delivered = match subscription.next(Instant::now() + Duration::from_secs(1)).unwrap()
                    {
                        Next::Batch(delivered) => Some(delivered),
                        Next::Wait => None,
                        Next::Over => break,
                    };
                    if let Some(before) = waiting.pop() {
                        use_up(&mut subscription, before, &mut used);
                    }
                    seen.fetch_add(u64::from(delivered.is_some()), Ordering::Relaxed);
                    waiting.extend(delivered);
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(subscription.waits_and_late().1, 0, "{name}");
                used
            })
        })
        .collect();
    for stop_at in [30, 70, 110, 150] {
        // If they have failed, nothing more comes, and their ends say why.
        while seen.load(Ordering::Relaxed) < stop_at && !trainers.iter().all(JoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(1));
        }
        hub.stop().0.unwrap();
        hub = Hub::start(&config);
    }
    let mut used = Used::new();
    for trainer in trainers {
        trainer.join().unwrap().into_iter().for_each(|(row, times)| *used.entry(row).or_default() += times);
    }
    check_each_once(&used, 2);
    hub.end().0.unwrap();
}

#[test]
fn a_trainer_that_came_after_the_position_was_last_due_keeps_what_it_has_when_the_hub_dies() {
    let dir = tempfile::tempdir().unwrap();
    let position = dir.path().join("position");
    let config = ServiceConfig {
        listen: vec![format!("unix:{}", dir.path().join("hub").display()).parse().unwrap()],
        position: Some(position.clone()),
        save_every: Duration::from_secs(100_000),
        passes: 1,
        ..config(&input(dir.path(), 2))
    };
    let hub = Hub::start(&config);
    let address = hub.address.clone();
    let mut first = open(&[&address], "first", &SubscribeOptions::default()).unwrap();
    let kept = next(&mut first).unwrap();
    let start = Instant::now();
    let left = loop {
        let left = std::fs::read_to_string(&position).unwrap();
        if left.contains("first\"") {
            break left;
        }
        assert!(start.elapsed() < PATIENCE, "{left}");
        std::thread::sleep(Duration::from_millis(1));
    };
    // What it saves at its end it would not save if it died.
    hub.stop().0.unwrap();
    std::fs::write(&position, left).unwrap();
    let hub = Hub::start(&config);
    let (mut used, mut second) =
        (Used::new(), open(&[&address], "second", &SubscribeOptions::default()).unwrap());
    if let Next::Batch(delivered) = second.next(Instant::now() + Duration::from_millis(500)).unwrap() {
        use_up(&mut second, delivered, &mut used);
    }
    second.leave(Instant::now() + PATIENCE).unwrap();
    use_up(&mut first, kept, &mut used);
    while let Some(delivered) = next(&mut first) {
        use_up(&mut first, delivered, &mut used);
    }
    check_each_once(&used, 1);
    assert_eq!(first.waits_and_late().1, 0);
    hub.end().0.unwrap();
}

#[test]
fn one_thread_waits_while_another_acknowledges() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(&ServiceConfig { passes: 1, ..config(&input(dir.path(), 1)) });
    // One at a time: the next one comes only when the one before is acknowledged.
    let options = SubscribeOptions { window: 1, ..SubscribeOptions::default() };
    let mut subscription = open(&[&hub.address], "t", &options).unwrap();
    assert_eq!((subscription.columns(), subscription.rows()), (&[("id".to_owned(), false)][..], 100));
    let acknowledger = subscription.acknowledger();
    let (sender, taken) = std::sync::mpsc::channel::<Delivered>();
    let taking = std::thread::spawn(move || {
        while let Some(delivered) = next(&mut subscription) {
            sender.send(delivered).unwrap();
        }
    });
    let rows: usize = taken
        .into_iter()
        .map(|delivered| {
            acknowledger.acknowledge(delivered.hub, delivered.number);
            delivered.batch.len()
        })
        .sum();
    assert_eq!(rows as u64, ROWS);
    taking.join().unwrap();
    assert_eq!(hub.end().0.unwrap(), Ended::Over);
}

#[test]
fn what_a_trainer_has_when_it_says_farewell_goes_to_others_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let inputs = input(dir.path(), 2);
    // Nobody would live to see it happen by the timeout.
    let trainer_timeout = Duration::from_secs(100_000);
    let hub = Hub::start(&ServiceConfig { trainer_timeout, ..config(&inputs) });
    let mut used = Used::new();
    for life in 0..3 {
        // Another name each time: a hub hands what a trainer has lost to it first.
        let mut leaver =
            open(&[&hub.address], &format!("leaver {life}"), &SubscribeOptions::default()).unwrap();
        let mut kept = Vec::new();
        for at in 0..6 {
            let delivered = next(&mut leaver).unwrap();
            if at % 2 == 0 {
                use_up(&mut leaver, delivered, &mut used);
            } else {
                kept.push(delivered);
            }
        }
        leaver.leave(Instant::now() + PATIENCE).unwrap();
        assert!(matches!(leaver.next(Instant::now()).unwrap(), Next::Wait | Next::Batch(_)));
    }
    let mut stays = open(&[&hub.address], "stays", &SubscribeOptions::default()).unwrap();
    let first = next(&mut stays).unwrap();
    // Of 0 to 5 the first life used 0, 2 and 4, the second had 1, 3, 5 to 8, the third 3, 6, 8 to 11.
    assert_eq!(first.number, 6, "what was left comes before what is new");
    use_up(&mut stays, first, &mut used);
    while let Some(delivered) = next(&mut stays) {
        use_up(&mut stays, delivered, &mut used);
    }
    check_each_once(&used, 2);
    assert_eq!(hub.end().0.unwrap(), Ended::Over);
}

#[test]
fn a_hub_says_what_its_rows_are_made_by() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&input(dir.path(), 1));
    let hub = Hub::start(&ServiceConfig { stride: 1, ..config.clone() });
    let options = SubscribeOptions { rank: Some(0), ..SubscribeOptions::default() };
    let subscription = open(&[&hub.address], "t", &options).unwrap();
    let description = subscription.description().unwrap().unwrap();
    assert_eq!((description.spec, description.data), (config.spec.expand().unwrap(), config.reading));
    let served = subscription.served();
    assert_eq!((served[0].passes, served[0].rows, served[0].stride), (2, 100, 1));
    assert_eq!(served[0].hub, hub.address);
    // Hubs that make their rows otherwise are not taken for one.
    let spec = toml::from_str("[[feature]]\nname = \"id\"").unwrap();
    let inputs = config.inputs.clone();
    let other = Hub::start(&ServiceConfig { stride: 1, spec, ..self::config(&inputs) });
    let error = open(&[&hub.address, &other.address], "t", &options).unwrap_err();
    assert!(matches!(error, HubError::Different { what, .. } if what.contains("features")), "{error}");
    hub.stop().0.unwrap();
    other.stop().0.unwrap();
}
