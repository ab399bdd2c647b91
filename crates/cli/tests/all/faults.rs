//! Servers as processes that are killed, paused, filled and lied to, and clients as training uses them: whoever is concerned
//! learns what is wrong and from whom, nobody else is disturbed, and nothing is left over. `docs/operations.md` has the list.

mod hostile;
mod links;
mod tls;

use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::hostile::{hello, raw, receive};
use crate::process::Process;
use sanderling_client::{Client, ClientError, Cluster, ConnectOptions, RemoteTable};
use sanderling_sample::{Batch, Rows};
use sanderling_store::{Absent, Init, Optimizer, Pooling, PushScale, TableConfig};
use sanderling_testkit::{DIM, LONG, RawClient, TABLE};
use sanderling_transport::Address;
use sanderling_wire::{Fault, Features, Offer, Pull, Request, RowFormat};

/// In the environment of a process that is only a client: where the server is.
const CLIENT_OF: &str = "SANDERLING_TEST_CLIENT_OF";
/// After so long a client gives up where it is meant to; everything that goes well takes far less.
const PATIENCE: Duration = Duration::from_secs(3);
/// Standard error of a server in a file, which never fills up as a pipe does.
const TO_FILE: &str = "exec 2>>errors;";

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn config(name: &str) -> TableConfig {
    TableConfig::single(name, 2, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 })
}

fn options(timeout: Duration) -> ConnectOptions {
    ConnectOptions { timeout, prefer_local: false, ..ConnectOptions::default() }
}

fn cluster(address: &Address, timeout: Duration) -> Arc<Cluster> {
    Cluster::connect(std::slice::from_ref(address), options(timeout)).unwrap()
}

/// Adds 1 to the weights of a key.
fn push(table: &RemoteTable, key: u64) -> Result<(), ClientError> {
    table.push(&[key], &[-1.0, -1.0], PushScale::default())
}

fn pull(table: &RemoteTable, key: u64) -> Result<f32, ClientError> {
    let mut row = [0.0; 2];
    table.pull(&[key], Absent::Zero, &mut row, None)?;
    assert_eq!(row[0], row[1], "half a push");
    Ok(row[0])
}

/// Another client, on whom nothing that happens may have any effect: it pushes and pulls, and counts along.
struct Witness {
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Witness {
    fn start(address: &Address) -> Witness {
        let (rounds, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, stopped) = (Arc::clone(&rounds), Arc::clone(&stop));
        let table = RemoteTable::create(&cluster(address, LONG), &config("witness")).unwrap();
        let before = pull(&table, 7).unwrap();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                push(&table, 7).unwrap();
                let round = counted.fetch_add(1, Ordering::Relaxed) + 1;
                assert_eq!(pull(&table, 7).unwrap(), before + round as f32);
            }
        });
        let witness = Witness { rounds, stop, thread };
        witness.goes_on();
        witness
    }

    fn goes_on(&self) {
        let from = self.rounds.load(Ordering::Relaxed);
        eventually("another client is disturbed", || {
            assert!(!self.thread.is_finished(), "another client has failed");
            self.rounds.load(Ordering::Relaxed) > from + 20
        });
    }

    fn end(self) {
        self.goes_on();
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

#[test]
fn a_server_killed_in_a_push_stream_has_its_last_save_and_says_that_it_is_another() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| check_killed(&format!("unix:{}/a", folder.path().display())));
        scope.spawn(|| check_killed("127.0.0.1:0"));
    });
}

fn check_killed(listen: &str) {
    let folder = tempfile::tempdir().unwrap();
    let start = |at: &str| Process::start_at(folder.path(), at, 1, TO_FILE, "--no-local --data data");
    let other = format!("unix:{}/b", folder.path().display());
    let other = Process::start_at(folder.path(), &other, 1, TO_FILE, "");
    let witness = Witness::start(&other.addresses[0]);
    let process = start(listen);
    let at = process.addresses[0].to_string();
    let patient = cluster(&process.addresses[0], LONG);
    let table = RemoteTable::create(&patient, &config("t")).unwrap();
    (0..1000).for_each(|at| push(&table, at % 10).unwrap());
    assert_eq!(patient.save("latest", LONG).unwrap().rows, 10);
    let servers = cluster(&process.addresses[0], PATIENCE);
    let table = RemoteTable::open(&servers, "t").unwrap();
    let pushed = Arc::<AtomicU64>::default();
    let pushing = std::thread::spawn({
        let (table, pushed) = (table.clone(), Arc::clone(&pushed));
        move || loop {
            match push(&table, 3) {
                Ok(()) => pushed.fetch_add(1, Ordering::Relaxed),
                Err(error) => return error,
            };
        }
    });
    eventually("it pushes", || pushed.load(Ordering::Relaxed) > 100);
    process.signal("KILL");
    let error = pushing.join().unwrap();
    assert!(matches!(&error, ClientError::Late { server, .. } if *server == at), "{error}");
    witness.goes_on();
    drop(process);

    let process = start(&at);
    let mut error = None;
    // A slow machine may let it be late once more.
    eventually("it is there again", || {
        let found = push(&table, 3).unwrap_err();
        let is_late = matches!(found, ClientError::Late { .. });
        error = Some(found);
        !is_late
    });
    let error = error.unwrap();
    assert!(matches!(&error, ClientError::Restarted { server, .. } if *server == at), "{error}");
    eventually("it can be used again", || {
        RemoteTable::open(&servers, "t").is_ok_and(|t| pull(&t, 3).is_ok())
    });
    let table = RemoteTable::open(&cluster(&process.addresses[0], LONG), "t").unwrap();
    let found: Vec<f32> = (0..10).map(|key| pull(&table, key).unwrap()).collect();
    assert_eq!(found, [100.0; 10], "what was saved, and nothing since");
    push(&table, 3).unwrap();
    assert_eq!(pull(&table, 3).unwrap(), 101.0);
    witness.end();
}

#[test]
fn a_paused_server_is_named_and_its_pushes_are_applied_at_most_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = format!("unix:{}/other", folder.path().display());
    let other = Process::start_at(folder.path(), &at, 1, TO_FILE, "");
    let witness = Witness::start(&other.addresses[0]);
    // Each way with a server of its own, all at once: each takes the client's whole patience.
    let check = |way: usize| {
        let folder = tempfile::tempdir().unwrap();
        let process = Process::start(folder.path(), TO_FILE, "");
        let address = &process.addresses[way];
        let name = address.to_string();
        push(&RemoteTable::create(&cluster(address, LONG), &config(&name)).unwrap(), 1).unwrap();
        let table = RemoteTable::open(&cluster(address, PATIENCE), &name).unwrap();
        process.signal("STOP");
        let error = push(&table, 1).unwrap_err();
        assert!(
            matches!(&error, ClientError::Late { server, sent: true, .. } if *server == name),
            "{name}: {error}"
        );
        assert!(error.to_string().contains("whether the request was carried out is unknown"), "{error}");
        witness.goes_on();
        process.signal("CONT");
        let mut weight = 0.0;
        // A slow machine may let it be late once more.
        eventually("it is there again", || pull(&table, 1).map(|found| weight = found).is_ok());
        assert!(weight == 1.0 || weight == 2.0, "{name}: {weight}");
    };
    std::thread::scope(|scope| {
        for way in 0..3 {
            scope.spawn(move || check(way));
        }
    });
    witness.end();
}

#[test]
fn what_cannot_be_done_is_a_typed_error_that_names_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), TO_FILE, "");
    let address = &process.addresses[0];
    let servers = cluster(address, LONG);
    let witness = Witness::start(address);
    RemoteTable::create(&servers, &config("t")).unwrap();
    let check = |result: Result<(), ClientError>, expected: fn(&Fault) -> bool, words: &str| {
        let error = result.unwrap_err();
        let ClientError::Refused { server, fault, .. } = &error else { panic!("{words}: {error:?}") };
        let said = error.to_string();
        assert!(*server == address.to_string() && expected(fault) && said.contains(words), "{words}: {said}");
        witness.goes_on();
    };
    let opened = RemoteTable::open(&servers, "nowhere").map(|_| ());
    check(opened, |fault| *fault == Fault::UnknownTable, "\"nowhere\"");
    let wider = TableConfig::single("t", 3, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
    let made = RemoteTable::create(&servers, &wider).map(|_| ());
    check(made, |fault| *fault == Fault::TableExists, "\"t\"");
    let full = TableConfig { budget_bytes: Some(1 << 16), ..config("full") };
    let full = RemoteTable::create(&servers, &full).unwrap();
    let keys: Vec<u64> = (0..50_000).collect();
    let pushed = full.push(&keys, &vec![-1.0; 100_000], PushScale::default());
    check(pushed, |fault| matches!(fault, Fault::TableFull { .. }), "\"full\"");
    // What found room is there, and the table goes on.
    let rows = full.size().unwrap().0;
    let key = (0..50_000).find(|&key| pull(&full, key).unwrap() == 1.0).unwrap();
    push(&full, key).unwrap();
    assert_eq!((pull(&full, key).unwrap(), full.size().unwrap().0), (2.0, rows));
    check(servers.save("latest", LONG).map(|_| ()), |fault| *fault == Fault::UnknownCheckpoint, "--data");

    // What the client's own checks keep from being sent.
    let mut peer = RawClient::new(address);
    let table = peer.create("narrow", TABLE).unwrap();
    let keys = [1];
    let pull =
        Pull { table, dim: 3, absent: sanderling_wire::Absent::Zero, format: RowFormat::F32, keys: &keys };
    let (fault, _) = peer.ask(&Request::Pull(pull), |_| ()).unwrap_err();
    assert_eq!(fault, Fault::DimensionMismatch { expected: DIM, found: 3 });
    let (fault, _) = peer.ask(&Request::Pull(Pull { table: 77, ..pull }), |_| ()).unwrap_err();
    assert_eq!(fault, Fault::UnknownTable);
    let mut stream = raw(address);
    stream.write_all(&hello(Offer { version_min: 8, version_max: 9, ..Offer::of(Features::NONE) })).unwrap();
    let answer = receive(&mut stream);
    let status = u32::from_le_bytes(answer[16..20].try_into().unwrap());
    assert_eq!(status, Fault::Version { min: 1, max: 1 }.code());
    witness.end();
}

/// Not a test of its own: the process that the next test starts, with room for a thousand connections.
#[test]
fn thousand_clients() {
    let Ok(address) = std::env::var(CLIENT_OF) else { return };
    let address = address.parse().unwrap();
    let mut peers: Vec<RawClient> = (0..1000).map(|_| RawClient::new(&address)).collect();
    let table = peers[0].create("t", TABLE).unwrap();
    for round in 0..3 {
        for peer in &mut peers {
            assert!(peer.pull(table, &[1, 2]).is_ok(), "round {round}");
        }
    }
}

#[test]
fn a_thousand_connections_are_served_and_let_go() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), "ulimit -n 4096 && exec 2>>errors;", "");
    for address in process.addresses.iter().filter(|address| !matches!(address, Address::Shm(_))) {
        let witness = Witness::start(address);
        let files = process.files();
        let line = format!(
            "ulimit -n 4096 && exec '{}' faults::thousand_clients --exact --nocapture",
            std::env::current_exe().unwrap().display()
        );
        let done =
            Command::new("sh").args(["-c", &line]).env(CLIENT_OF, address.to_string()).output().unwrap();
        assert!(done.status.success(), "{address}: {}", String::from_utf8_lossy(&done.stdout));
        witness.goes_on();
        eventually("connections are left over", || process.files() <= files);
        witness.end();
    }
}

#[test]
fn a_full_disk_during_a_save_is_said_and_costs_neither_clients_nor_the_save_before() {
    let folder = tempfile::tempdir().unwrap();
    let at = format!("unix:{}/a", folder.path().display());
    // Files of more than 256 blocks, of 512 or 1024 bytes as the shell counts, cannot be written.
    let limited = format!("{TO_FILE} ulimit -f 256;");
    let process = Process::start_at(folder.path(), &at, 1, &limited, "--data data");
    let witness = Witness::start(&process.addresses[0]);
    let servers = cluster(&process.addresses[0], LONG);
    let table = RemoteTable::create(&servers, &config("t")).unwrap();
    push(&table, 1).unwrap();
    // The witness has a row as well.
    assert_eq!(servers.save("latest", LONG).unwrap().rows, 2);
    let keys: Vec<u64> = (0..100_000).collect();
    table.push(&keys, &vec![-1.0; 200_000], PushScale::default()).unwrap();
    let error = servers.save("latest", LONG).unwrap_err();
    let ClientError::Refused { server, fault: Fault::Io { os_error }, .. } = &error else {
        panic!("{error:?}")
    };
    const FILE_TOO_LARGE: u32 = 27;
    assert!(*server == at && *os_error == FILE_TOO_LARGE, "{error}");
    assert_eq!(pull(&table, 99_999).unwrap(), 1.0);
    witness.end();
    process.signal("KILL");
    drop(process);
    let process = Process::start_at(folder.path(), &at, 1, TO_FILE, "--data data");
    let table = RemoteTable::open(&cluster(&process.addresses[0], LONG), "t").unwrap();
    assert_eq!((pull(&table, 1).unwrap(), table.size().unwrap().0), (1.0, 1));
}

/// A run that is trained anew under its name drops its tables and makes others.
#[test]
fn a_reader_goes_on_with_the_table_that_has_the_name_now() {
    let folder = tempfile::tempdir().unwrap();
    let server = Process::start_at(folder.path(), "127.0.0.1:0", 1, "", "--no-local");
    let (there, here) = (cluster(&server.addresses[0], LONG), cluster(&server.addresses[0], LONG));
    let retrain = |value: f32| {
        RemoteTable::drop_named(&there, "t").unwrap();
        let table = RemoteTable::create(&there, &config("t")).unwrap();
        table.push(&[7], &[-value, -value], PushScale::default()).unwrap();
        table
    };
    let trainer = retrain(1.0);
    let reader = RemoteTable::open(&here, "t").unwrap();
    let client = Client::remote(vec![("t".to_owned(), reader.clone())], [("id", "t")], None).unwrap();
    let mut batch = Batch::new(&[false]);
    batch.columns[0].push(7, 1.0);
    batch.close_row(0.0, 1.0);
    let (mut lookup, rows) = (client.lookup(), Rows::new(&batch, 0..1));
    // All the ways to read, of which each must find out by itself.
    let mut read = |way: usize, absent: Absent| -> Result<f32, ClientError> {
        let mut row = [0.0; 2];
        match way {
            0 => reader.pull(&[7], absent, &mut row, None).map(|_| row[0]),
            1 => {
                reader.pull_pooled(&[7], None, &[0, 1], Pooling::Sum, absent, &mut row, None).map(|_| row[0])
            }
            _ => client.pull(&rows, absent, &mut lookup).map(|_| lookup.backward(0).1[0]),
        }
    };
    for way in 0..3 {
        let value = 2.0 + way as f32;
        let gone = if way == 0 { trainer.clone() } else { retrain(1.5) };
        assert_eq!(read((way + 1) % 3, Absent::Zero).unwrap(), if way == 0 { 1.0 } else { 1.5 });
        retrain(value);
        assert_eq!(read(way, Absent::Zero).unwrap(), value, "{way}");
        assert_eq!(read(way, Absent::Zero).unwrap(), value, "{way}, once more");
        // Who trains would teach another's table.
        let error = gone.push(&[7], &[1.0, 1.0], PushScale::default()).unwrap_err();
        let said = "was dropped, or replaced by another of its name, since it was opened; open it again";
        assert!(error.to_string().contains(said), "{error}");
    }
    let error = reader.push(&[7], &[1.0, 1.0], PushScale::default()).unwrap_err();
    assert!(
        error.to_string().contains("table \"t\"") && error.to_string().contains("open it again"),
        "{error}"
    );
    let again = RemoteTable::open(&here, "t").unwrap();
    again.push(&[7], &[1.0, 1.0], PushScale::default()).unwrap();
    // While there is none, that is said; then it goes on.
    RemoteTable::drop_named(&there, "t").unwrap();
    let error = read(0, Absent::Zero).unwrap_err();
    assert!(matches!(error, ClientError::Refused { fault: Fault::UnknownTable, .. }), "{error}");
    retrain(9.0);
    assert_eq!(read(0, Absent::Zero).unwrap(), 9.0);
    // One of another shape is another table.
    RemoteTable::drop_named(&there, "t").unwrap();
    let wider = TableConfig::single("t", 3, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
    RemoteTable::create(&there, &wider).unwrap();
    for way in 0..3 {
        let error = read(way, Absent::Zero).unwrap_err().to_string();
        assert!(
            error.contains("replaced by another of this name") && error.contains("open it again"),
            "{error}"
        );
    }
    assert_eq!(RemoteTable::open(&here, "t").unwrap().dim(), 3);
}
