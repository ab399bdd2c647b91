//! What servers and connections do wrong: requests are repeated where that is safe, and otherwise fail with an error that
//! names server and table.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::servers::{self, Misdeed, Server};
use sanderling_client::{
    Client, ClientError, Cluster, ConnectOptions, NOTICE_AFTER, Notice, OnWait, RemoteTable, Stop,
};
use sanderling_sample::{Batch, Rows};
use sanderling_store::{Absent, Init, Optimizer, PushScale, TableConfig};

const KEYS: [u64; 3] = [1, 2, 3];

fn config(dims: usize) -> TableConfig {
    TableConfig::single("t", dims, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 })
}

/// For what is meant to take too long. Little enough that nobody waits long for it, and much for what is meant to go well
/// with the same options.
fn impatient() -> ConnectOptions {
    ConnectOptions { timeout: Duration::from_secs(2), ..servers::options() }
}

/// One server with a table of dim 2.
fn one(folder: &tempfile::TempDir, options: ConnectOptions) -> (Server, RemoteTable) {
    one_at(&servers::address(folder), options)
}

fn one_at(address: &str, options: ConnectOptions) -> (Server, RemoteTable) {
    let server = Server::start(address, 0, 1);
    let cluster = servers::connect(std::slice::from_ref(&server), options);
    let table = RemoteTable::create(&cluster, &config(2)).unwrap();
    (server, table)
}

fn push(table: &RemoteTable) -> Result<(), String> {
    table.push(&KEYS, &[-1.0; 6], PushScale::default()).map_err(|error| error.to_string())
}

fn pull(table: &RemoteTable) -> Result<f32, String> {
    let mut rows = [0.0; 6];
    table.pull(&KEYS, Absent::Zero, &mut rows, None).map_err(|error| error.to_string())?;
    assert_eq!(rows, [rows[0]; 6]);
    Ok(rows[0])
}

/// `expected` is a part of the error, or the weight that every push has added 1 to.
fn check(misdeeds: &[Misdeed], deeds: &[(&str, Result<f32, &str>)]) {
    let is_late = misdeeds.contains(&Misdeed::Silent);
    // Over TCP: what stays in memory is not checked for damage.
    let options = if is_late { impatient() } else { servers::options() };
    let (server, table) = one_at("tcp://127.0.0.1:0", options);
    server.misbehave(misdeeds);
    for (deed, expected) in deeds {
        let found = if *deed == "push" { push(&table).map(|()| 0.0) } else { pull(&table) };
        match (&found, expected) {
            (Ok(_), Ok(_)) if *deed == "push" => {}
            (Ok(found), Ok(expected)) if found == expected => {}
            (Err(found), Err(part)) if found.contains(part) && found.contains("tcp:") => {}
            _ => panic!("{misdeeds:?}, {deed}: {found:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn misdeeds_and_what_they_lead_to() {
    use Misdeed::{Busy, CutAfter, CutBefore, Damaged, Garbage, Goaway, Short, Silent};
    let fine = [("push", Ok(0.0)), ("pull", Ok(1.0)), ("push", Ok(0.0)), ("pull", Ok(2.0))];
    check(&[], &fine);
    check(&[Busy, Busy, Busy], &fine);
    check(&[CutBefore, CutBefore], &fine);
    // Applied, and never acknowledged: sent again, and not applied again.
    check(&[CutAfter, CutAfter, CutAfter], &fine);
    check(&[Damaged], &fine);
    check(&[Goaway, Goaway], &fine);
    // After an error the next request has another connection.
    check(&[Garbage], &[("push", Err("table \"t\": ")), ("push", Ok(0.0)), ("pull", Ok(1.0))]);
    check(&[Silent], &[("pull", Err("no answer within 2s")), ("push", Ok(0.0)), ("pull", Ok(1.0))]);
    check(&[Silent], &[("push", Err("whether the request was carried out is unknown")), ("pull", Ok(1.0))]);
    check(&[Short], &[("pull", Err("does not fit what was asked")), ("pull", Ok(0.0))]);
}

/// As where the next minibatch is long in coming, the answer to a push lies here for longer than one waits for answers.
#[test]
fn time_in_which_nobody_looks_is_no_delay_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let (server, table) = one(&folder, impatient());
    let client = Client::remote(vec![("t".to_owned(), table.clone())], [("a", "t")], None).unwrap();
    let mut batch = Batch::new(&[false]);
    batch.columns[0].push(KEYS[0], 1.0);
    batch.close_row(0.0, 1.0);
    let mut lookup = client.lookup();
    for (round, push) in [Client::push, Client::begin_push].into_iter().enumerate() {
        client.pull(&Rows::new(&batch, 0..1), Absent::Zero, &mut lookup).unwrap();
        lookup.backward(0).2.fill(-1.0);
        push(&client, &mut lookup, PushScale::default()).unwrap();
        std::thread::sleep(impatient().timeout * 5 / 4);
        client.pull(&Rows::new(&batch, 0..1), Absent::Zero, &mut lookup).unwrap();
        assert_eq!(lookup.backward(0).1, [(round + 1) as f32; 2]);
    }
    // Who is silent then is still found out.
    server.misbehave(&[Misdeed::Silent]);
    assert!(pull(&table).unwrap_err().contains("no answer within 2s"));
}

/// Who answers when somebody connects to shared memory, and never says where the memory is. The flag: whether who connects
/// is told to stop.
fn check_silent_greeting(name: &str, connect_timeout: Duration, is_told: bool, expected: &str) {
    let user = std::fs::metadata("/proc/self").unwrap().uid();
    let name = format!("silent-{}-{name}", std::process::id());
    let bound = SocketAddr::from_abstract_name(format!("sanderling-shm-{user}-{name}")).unwrap();
    let _silent = UnixListener::bind_addr(&bound).unwrap();
    let stop = is_told.then(|| Stop::flag(&Arc::new(AtomicBool::new(true))));
    let options = ConnectOptions { connect_timeout, stop, ..servers::options() };
    let address = format!("shm:{name}");
    let (said, is_said) = mpsc::channel();
    let addresses = [address.parse().unwrap()];
    std::thread::spawn(move || said.send(Cluster::connect(&addresses, options).map(|_| ())));
    let error = is_said.recv_timeout(Duration::from_secs(40)).expect("it is waited for without end");
    let error = error.unwrap_err().to_string();
    assert!(error.contains(&address) && error.contains(expected), "{error}");
}

#[test]
fn a_server_that_does_not_greet_is_given_up() {
    check_silent_greeting("late", Duration::from_millis(300), false, "no answer within 300ms: ");
    check_silent_greeting("told", Duration::from_secs(600), true, "stopped while this server did not answer");
}

/// Who is told to stop saves first; silence for longer than a second ends anything else.
#[test]
fn a_save_at_the_end_takes_as_long_as_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    let told = Arc::new(AtomicBool::new(false));
    let (server, table) =
        one(&folder, ConnectOptions { stop: Some(Stop::flag(&told)), ..servers::options() });
    server.memory.save_ms.store(2000, Ordering::Relaxed);
    told.store(true, Ordering::Relaxed);
    assert_eq!(table.cluster().save("last", Duration::from_secs(60)).unwrap().rows, 2);
    server.misbehave(&[Misdeed::Silent]);
    assert!(pull(&table).unwrap_err().contains("stopped while this server did not answer"));
}

#[test]
fn a_push_stream_through_cut_connections_is_applied_exactly_once() {
    let folder = tempfile::tempdir().unwrap();
    let (server, table) = one(&folder, servers::options());
    let misdeeds: Vec<Misdeed> =
        (0..60).map(|at| if at % 3 == 0 { Misdeed::CutAfter } else { Misdeed::CutBefore }).collect();
    for part in misdeeds.chunks(3) {
        server.misbehave(part);
        push(&table).unwrap();
    }
    assert_eq!(server.memory.pushes.load(Ordering::Relaxed), 20);
    assert_eq!(pull(&table).unwrap(), 20.0);
}

#[test]
fn a_server_that_is_gone_is_named_and_one_that_comes_back_is_another() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, table) = one(&folder, impatient());
    let cluster = Arc::clone(table.cluster());
    push(&table).unwrap();
    let address = server.address.to_string();
    server.stop();
    server.misbehave(&[Misdeed::CutBefore]);
    let error = push(&table).unwrap_err();
    assert!(error.contains(&address) && error.contains("connection refused"), "{error}");
    let memory = Arc::clone(&server.memory);
    drop(server);
    let _again = Server::start_with(&address, 0, 1, memory);
    let error = push(&table).unwrap_err();
    assert!(error.contains("started anew"), "{error}");
    let table = RemoteTable::open(&cluster, "t").unwrap();
    push(&table).unwrap();
    assert_eq!(pull(&table).unwrap(), 2.0);
}

/// What it has is not all of what the client takes it for, and other shards have the rest.
#[test]
fn a_server_that_has_become_another_shard_is_asked_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut both = servers::start(&folder, "unix", 2);
    let cluster = servers::connect(&both, servers::options());
    let table = RemoteTable::create(&cluster, &config(2)).unwrap();
    push(&table).unwrap();
    let mut first = both.remove(0);
    first.stop();
    first.misbehave(&[Misdeed::CutBefore]);
    let (address, memory) = (first.address.to_string(), Arc::clone(&first.memory));
    drop(first);
    let _again = Server::start_with(&address, 0, 3, memory);
    for found in
        [push(&table), pull(&table).map(|_| ()), table.size().map(|_| ()).map_err(|error| error.to_string())]
    {
        let error = found.unwrap_err();
        assert!(
            error.contains(&address) && error.contains("it is now shard 0 of 3; connect anew"),
            "{error}"
        );
    }
}

/// Two servers, of which the second fails: who has done what is said, and different saves are not restored.
#[test]
fn what_not_all_servers_saved_is_not_restored() {
    let folder = tempfile::tempdir().unwrap();
    let both = servers::start(&folder, "unix", 2);
    let cluster = servers::connect(&both, servers::options());
    let address = |at: usize| both[at].address.to_string();
    let fail = |fails| both[1].memory.has_no_disk.store(fails, Ordering::Relaxed);
    let patience = Duration::from_secs(20);
    let check = |is_restore: bool, expected: &[&str]| {
        let done = if is_restore { cluster.restore("x", patience) } else { cluster.save("x", patience) };
        let said = done.map_or_else(|error| error.to_string(), |size| format!("{} rows", size.rows));
        assert!(expected.iter().all(|part| said.contains(part)), "{said}, not {expected:?}");
    };
    check(true, &["x", &address(0)]);
    check(false, &["4 rows"]);
    check(true, &["4 rows"]);
    fail(true);
    check(true, &[&address(1), "no space; restored by: ", &address(0)]);
    check(false, &[&address(1), "no space; saved by: ", &address(0)]);
    fail(false);
    let restores = both[0].memory.restores.load(Ordering::Relaxed);
    check(true, &["different saves", "nothing was restored"]);
    assert_eq!(both[0].memory.restores.load(Ordering::Relaxed), restores);
    check(false, &["4 rows"]);
    check(true, &["4 rows"]);
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (server, table) = one(&folder, servers::options());
    let cluster = table.cluster();
    let failed = |result: Result<RemoteTable, ClientError>| result.unwrap_err().to_string();
    assert!(failed(RemoteTable::create(cluster, &config(3))).contains("another configuration"));
    assert!(failed(RemoteTable::open(cluster, "nowhere")).contains("\"nowhere\": no such table"));
    let mut full = config(2);
    (full.name, full.budget_bytes) = ("full".to_owned(), Some(1 << 16));
    let full = RemoteTable::create(cluster, &full).unwrap();
    let keys: Vec<u64> = (0..50_000).collect();
    let error = full.push(&keys, &vec![1.0; 100_000], PushScale::default()).unwrap_err().to_string();
    assert!(error.contains("\"full\": the table is full") && error.contains("left out"), "{error}");
    let error = table.push(&KEYS, &[f32::NAN; 6], PushScale::default()).unwrap_err().to_string();
    assert!(error.contains("gradient of key 1"), "{error}");
    assert!(table.push(&KEYS, &[0.0; 5], PushScale::default()).is_err());
    let connect = |options| Cluster::connect(&[server.address.clone(), server.address.clone()], options);
    assert!(connect(servers::options()).unwrap_err().to_string().contains("name each shard once"));
    *server.memory.token.lock().unwrap() = "secret".to_owned();
    let error =
        Cluster::connect(std::slice::from_ref(&server.address), servers::options()).unwrap_err().to_string();
    assert!(error.contains("token"), "{error}");
    let options = ConnectOptions { token: "secret".to_owned(), ..servers::options() };
    Cluster::connect(std::slice::from_ref(&server.address), options).unwrap();
}

#[test]
fn a_faster_way_of_the_same_server_is_taken_and_that_of_another_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let tcp = Server::start("tcp://127.0.0.1:0", 0, 1);
    let other = Server::start(&servers::address(&folder), 0, 1);
    *tcp.memory.local_url.lock().unwrap() = other.address.to_string();
    let way = |options| servers::connect(std::slice::from_ref(&tcp), options).servers()[0].way.to_string();
    assert_eq!(way(servers::options()), tcp.address.to_string(), "another server's");
    *tcp.memory.local_url.lock().unwrap() = format!("unix:{}/nobody", folder.path().display());
    assert_eq!(way(servers::options()), tcp.address.to_string(), "nobody's");
}

/// What the servers' absence is told with, and what was told.
fn told() -> (Option<OnWait>, Arc<Mutex<Vec<Notice>>>) {
    let told = Arc::<Mutex<Vec<Notice>>>::default();
    let tell = Arc::clone(&told);
    (Some(OnWait::new(move |notice| tell.lock().unwrap().push(notice.clone()))), told)
}

/// The server, the time, the limit and the cause of a notice that one is away.
fn away(notice: &Notice) -> (&str, Duration, Duration, &str) {
    let Notice::Away { server, waited, limit, cause } = notice else { panic!("{notice:?}") };
    (server, *waited, *limit, cause)
}

/// Its connections end with the next request, and connection refused any more.
fn kill(mut server: Server) {
    server.stop();
    server.misbehave(&[Misdeed::CutBefore; 64]);
}

/// One bound for all that is asked while a server is away, whoever asks and however long it may take otherwise.
#[test]
fn a_server_that_is_gone_is_waited_for_once() {
    let folder = tempfile::tempdir().unwrap();
    let (on_wait, told) = told();
    let timeout = Duration::from_secs(5);
    let (server, table) = one(&folder, ConnectOptions { timeout, on_wait, ..servers::options() });
    pull(&table).unwrap();
    kill(server);
    let start = Instant::now();
    // Several threads at once, one of which saves, which may take hours.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| pull(&table).unwrap_err());
        }
        let saved = scope.spawn(|| table.cluster().save("x", Duration::from_secs(3600)).unwrap_err());
        let error = saved.join().unwrap().to_string();
        assert!(error.contains("no answer within 5s: "), "{error}");
    });
    let first = start.elapsed();
    assert!(first > Duration::from_millis(4900) && first < Duration::from_secs(9), "{first:?}");
    // What comes after that, such as a clean-up, gets one attempt.
    let error = pull(&table).unwrap_err();
    assert!(error.contains("no answer within 5s: ") && error.contains("connection refused"), "{error}");
    let again = start.elapsed() - first;
    assert!(again < Duration::from_millis(4500), "{again:?}");
    let told = told.lock().unwrap();
    let name = table.cluster().servers()[0].way.to_string();
    let (server, waited, limit, _) = away(&told[0]);
    assert!(server == name && limit == timeout, "{told:?}");
    assert!(waited >= NOTICE_AFTER && waited < 3 * NOTICE_AFTER, "{told:?}");
    // Once for all who wait, and again at twice the time.
    assert!((2..=4).contains(&told.len()), "{told:?}");
    assert!(away(&told[1]).1 >= 2 * waited, "{told:?}");
}

/// It was away for longer than anybody waited for it, and is back: then requests may take as long as ever.
#[test]
fn a_server_that_is_back_is_asked_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let (on_wait, told) = told();
    let options = ConnectOptions { timeout: Duration::from_secs(2), on_wait, ..servers::options() };
    let (server, table) = one(&folder, options);
    let address = server.address.to_string();
    kill(server);
    assert!(pull(&table).unwrap_err().contains("no answer within 2s"));
    let server = Server::start(&address, 0, 1);
    // The table is gone with the memory; its server is not away.
    let error = pull(&table).unwrap_err();
    assert!(error.contains("was started anew"), "{error}");
    assert!(told.lock().unwrap().iter().any(|notice| matches!(notice, Notice::Back { .. })), "{told:?}");
    drop(server);
}

/// It takes connections and says nothing, as a process that was stopped.
#[test]
fn a_server_that_is_silent_is_told_and_given_up_once() {
    let folder = tempfile::tempdir().unwrap();
    let (on_wait, told) = told();
    let options = ConnectOptions { timeout: Duration::from_secs(4), on_wait, ..servers::options() };
    let (server, table) = one(&folder, options);
    server.misbehave(&[Misdeed::Silent; 64]);
    let start = Instant::now();
    assert!(pull(&table).unwrap_err().contains("no answer within 4s"));
    let told = told.lock().unwrap();
    let (_, waited, _, cause) = away(&told[0]);
    assert!(cause == "it does not answer" && waited < 3 * NOTICE_AFTER, "{told:?}");
    assert!(start.elapsed() < Duration::from_secs(8));
}
