//! The client for rows against servers: rows of one version, its cache, replicas, second requests.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sanderling_rows::{Hedge, Options, Rows, RowsClient, RowsError, TlsClient};
use sanderling_serve::{Config, Models};

use crate::fixture::{Served, Trained};

const LONG: Duration = Duration::from_secs(60);
/// Longer than an answer takes.
const AFTER: Hedge = Hedge::After(Duration::from_millis(100));

fn client(replicas: &[&str], adjust: impl FnOnce(&mut Options)) -> RowsClient {
    let mut options = Options::new(replicas.iter().copied());
    options.timeout = LONG;
    adjust(&mut options);
    RowsClient::new(options).unwrap()
}

/// The keys and weights of a model's table.
fn planted(trained: &Trained) -> BTreeMap<u64, Vec<f32>> {
    let model = sanderling_learner::Model::load(&trained.path).unwrap();
    let mut rows = BTreeMap::new();
    model.table("user").unwrap().for_each_row(|row| _ = rows.insert(row.key, row.weights.to_vec()));
    rows
}

/// Checks that rows are those of one model.
#[track_caller]
fn assert_rows(found: &Rows, keys: &[u64], expected: &BTreeMap<u64, Vec<f32>>) {
    for (at, key) in keys.iter().enumerate() {
        let weights = &found.weights[at * found.dim..(at + 1) * found.dim];
        let is_absent = found.absent.contains(&at);
        assert_eq!(expected.contains_key(key), !is_absent, "{key}");
        let row = expected.get(key).cloned().unwrap_or_else(|| vec![0.0; found.dim]);
        assert_eq!(weights, row, "{key}");
    }
}

#[test]
fn rows_come_from_the_cache_until_the_version_changes() {
    let trained = [Trained::new("fm"), Trained::with("fm", 5)];
    let rows = trained.each_ref().map(planted);
    let served = Served::new([trained[0].model(1)]);
    let mut plain = client(&[&served.address], |_| ());
    let mut cached = client(&[&served.address], |options| options.age_max = LONG);
    let mut keys: Vec<u64> = rows[0].keys().copied().take(10).chain([1, 2]).collect();
    for client in [&mut plain, &mut cached] {
        for _ in 0..3 {
            let found = client.rows("user", &keys, None).unwrap();
            assert_eq!((found.version, &found.absent), (1, &vec![10, 11]));
            assert_rows(&found, &keys, &rows[0]);
        }
    }
    assert_eq!((plain.statistics().hits, plain.statistics().misses), (0, 36));
    assert_eq!((cached.statistics().hits, cached.statistics().misses), (24, 12));
    served.server.publish(Models::new([trained[1].model(2)]));
    // A key that is not in the cache brings the news, and no row of the version before.
    keys.push(3);
    let found = cached.rows("user", &keys, None).unwrap();
    assert_eq!((found.version, cached.statistics().flips), (2, 1));
    assert_rows(&found, &keys, &rows[1]);
    // More keys than a request may have, an empty read, a pinned version, and refusals.
    let many: Vec<u64> = (0..10_000).chain(keys.iter().copied()).collect();
    assert_rows(&plain.rows("user", &many, None).unwrap(), &many, &rows[1]);
    assert!(plain.rows("user", &[], None).unwrap().weights.is_empty());
    let mut pinned = client(&[&served.address], |options| options.model = "clicks@1".to_owned());
    for (client, table, reason) in [(&mut plain, "a b/ü", "no table"), (&mut pinned, "user", "no version")] {
        match client.rows(table, &keys, None) {
            Err(RowsError::Refused { status: 404, text, .. }) => assert!(text.contains(reason), "{text}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn reads_of_changing_versions_are_not_mixed() {
    let trained = [Trained::new("fm"), Trained::with("fm", 5)];
    let rows = trained.each_ref().map(planted);
    let served = Served::new([trained[0].model(0)]);
    let keys: Vec<u64> = rows[0].keys().copied().take(16).collect();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut client = client(&[&served.address], |options| options.age_max = Duration::from_millis(2));
            let mut reads = 0;
            while !ended.load(Ordering::Relaxed) {
                // Other keys each time, so that some are in the cache and some are not.
                let keys: Vec<u64> = keys.iter().copied().skip(reads % 7).step_by(1 + reads % 3).collect();
                match client.rows("user", &keys, None) {
                    Ok(found) => assert_rows(&found, &keys, &rows[found.version as usize % 2]),
                    Err(RowsError::Versions) => {}
                    Err(error) => panic!("{error}"),
                }
                reads += 1;
            }
            client.statistics()
        });
        for version in 1..200 {
            served.server.publish(Models::new([trained[version as usize % 2].model(version)]));
        }
        ended.store(true, Ordering::Relaxed);
        let statistics = reader.join().unwrap();
        assert!(statistics.flips > 0, "{statistics:?}");
    });
}

/// Passes bytes on to a server, keeps answers back while it is told to, and counts connections.
fn relay(to: String) -> (String, Arc<AtomicBool>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (holds, connections) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let (held, counted) = (Arc::clone(&holds), Arc::clone(&connections));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            counted.fetch_add(1, Ordering::Relaxed);
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&to).unwrap());
            let (mut requests, mut answers) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || drop(std::io::copy(&mut requests, &mut server)));
            let held = Arc::clone(&held);
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(read) = answers.read(&mut bytes) {
                    while held.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    if read == 0 || client.write_all(&bytes[..read]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, holds, connections)
}

#[test]
fn other_replicas_answer_for_one_that_is_slow_or_gone() {
    let trained = Trained::new("fm");
    let rows = planted(&trained);
    let served = Served::new([trained.model(1)]);
    let keys: Vec<u64> = rows.keys().copied().take(10).collect();
    let (slow, holds, connections) = relay(served.address.clone());
    // A user whose first choice is the slow one.
    let is_first = |user: &u64| {
        let before = connections.load(Ordering::Relaxed);
        let mut any = client(&[&slow, &served.address], |_| ());
        any.rows("user", &keys, Some(*user)).unwrap();
        connections.load(Ordering::Relaxed) > before
    };
    let user = (0..).find(is_first).unwrap();
    let mut hedged = client(&[&slow, &served.address], |options| options.hedge = Some(AFTER));
    for _ in 0..200 {
        assert_rows(&hedged.rows("user", &keys, Some(user)).unwrap(), &keys, &rows);
    }
    holds.store(true, Ordering::Relaxed);
    let before = hedged.statistics();
    for _ in 0..4 {
        assert_rows(&hedged.rows("user", &keys, Some(user)).unwrap(), &keys, &rows);
    }
    let after = hedged.statistics();
    assert_eq!(after.hedges_won - before.hedges_won, 4, "{after:?}");
    assert!(after.hedged <= after.requests / 20, "{after:?}");
    holds.store(false, Ordering::Relaxed);
    // Nobody listens at the first address.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut failing = client(&[&gone, &served.address], |_| ());
    for user in 0..20 {
        assert_rows(&failing.rows("user", &keys, Some(user)).unwrap(), &keys, &rows);
    }
    let mut none = client(&[&gone], |_| ());
    assert!(matches!(none.rows("user", &keys, None), Err(RowsError::Io { .. })));
    // A server without a model is no answer while another one has it.
    let empty = Served::new([]);
    let mut loading = client(&[&empty.address, &served.address], |_| ());
    for user in 0..20 {
        assert_rows(&loading.rows("user", &keys, Some(user)).unwrap(), &keys, &rows);
    }
}

#[test]
fn servers_are_verified_and_get_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["cert", "other"] {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(path(&format!("{name}.pem")), made.cert.pem()).unwrap();
        std::fs::write(path(&format!("{name}.key")), made.signing_key.serialize_pem()).unwrap();
    }
    let trained = Trained::new("fm");
    let rows = planted(&trained);
    let start = || {
        let secure = |config: &mut Config| {
            config.tls = Some((path("cert.pem"), path("cert.key")));
            config.token = Some("secret".to_owned());
        };
        Served::with(secure, [trained.model(1)])
    };
    let served = [start(), start()];
    let replicas = served.each_ref().map(|served| served.address.as_str());
    let keys: Vec<u64> = rows.keys().copied().collect();
    let read = |ca: Option<&str>, token: &str, hedge: Option<Hedge>| {
        let mut client = client(&replicas, |options| {
            options.tls = ca.map(|name| TlsClient::from_ca_file(&path(&format!("{name}.pem"))).unwrap());
            (options.token, options.hedge) = (Some(token.to_owned()), hedge);
        });
        // Over new and over kept connections.
        let found = (0..40).map(|user| client.rows("user", &keys, Some(user)));
        let found: Result<Vec<Rows>, RowsError> = found.collect();
        found.map(|found| (found, client.statistics())).map_err(|error| error.to_string())
    };
    for hedge in [None, Some(AFTER), Some(Hedge::After(Duration::from_nanos(1)))] {
        let (found, counts) = read(Some("cert"), "secret", hedge).unwrap();
        found.iter().for_each(|found| assert_rows(found, &keys, &rows));
        let is_hedged = hedge.is_some_and(|hedge| hedge != AFTER);
        assert!(!is_hedged || counts.hedged > 0, "{counts:?}");
    }
    for (ca, token, expected) in [
        (Some("cert"), "wrong", "401"),
        (Some("other"), "secret", "certificate"),
        (None, "secret", "127.0.0.1"),
    ] {
        let error = read(ca, token, None).unwrap_err();
        assert!(error.contains(expected), "{ca:?}: {error}");
    }
    // A server without TLS.
    let plain = Served::new([trained.model(1)]);
    let mut client = client(&[&plain.address], |options| {
        options.tls = Some(TlsClient::from_ca_file(&path("cert.pem")).unwrap());
    });
    let error = client.rows("user", &keys, None).unwrap_err().to_string();
    assert!(error.contains("talks no TLS"), "{error}");
}
