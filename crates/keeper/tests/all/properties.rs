//! What every registry must do: compare-and-set that is linearizable under threads, watches that miss nothing, leases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_registry::limit::{VALUE_BYTES_MAX, VALUE_DEPTH_MAX};
use sanderling_registry::{Change, Edit, Outcome, Record, Registry, RegistryError, Watched};
use serde_json::{Value, json};

use crate::backends::{Backend, WITHIN};

/// Runs a property over all registries.
fn check(property: impl Fn(&Backend)) {
    for backend in Backend::all() {
        eprintln!("over {}", backend.name());
        property(&backend);
    }
}

fn put(registry: &dyn Registry, name: &str, expected: u64, value: impl Into<Value>) -> Outcome {
    registry.compare_and_set(name, expected, Edit::put(value.into()), WITHIN).unwrap()
}

fn done(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::Done(revision) => revision,
        other => panic!("{other:?}"),
    }
}

fn record(name: &str, revision: u64, value: impl Into<Value>) -> Record {
    Record { name: name.to_owned(), revision, lease: None, value: value.into() }
}

fn delete(registry: &dyn Registry, name: &str, expected: u64) -> Outcome {
    registry.compare_and_set(name, expected, Edit::Delete, WITHIN).unwrap()
}

/// The changes after a revision, one answer after another, until `is_last` says so of one.
fn watch_until(
    registry: &dyn Registry,
    prefix: &str,
    mut after: u64,
    is_last: impl Fn(&Change) -> bool,
) -> Vec<Change> {
    let (mut all, deadline) = (Vec::new(), Instant::now() + WITHIN);
    while !all.last().is_some_and(&is_last) {
        assert!(Instant::now() < deadline, "{} changes, and not the last", all.len());
        match registry.watch(prefix, after, WITHIN).unwrap() {
            Watched::Changes { changes, after: next } => {
                assert!(next >= after);
                all.extend(changes);
                after = next;
            }
            Watched::BeginAgain => panic!("the changes after {after} are gone"),
        }
    }
    all
}

#[test]
fn a_record_changes_only_at_its_revision() {
    check(|backend| {
        let registry = backend.open();
        let one = done(put(&*registry, "groups/1", 0, 1));
        assert_eq!(put(&*registry, "groups/1", 0, 2), Outcome::Other(Some(record("groups/1", one, 1))));
        let value = json!({ "epoch": u64::MAX, "text": "\u{1f426}\n\"", "list": [1, 2.5, null] });
        let two = done(put(&*registry, "groups/1", one, value.clone()));
        assert!(two > one);
        let present = Some(record("groups/1", two, value));
        assert_eq!(put(&*registry, "groups/1", one, 3), Outcome::Other(present.clone()));
        assert_eq!(delete(&*registry, "groups/1", one), Outcome::Other(present.clone()));
        assert_eq!(registry.get("groups/1", WITHIN).unwrap(), present);
        let three = done(delete(&*registry, "groups/1", two));
        assert!(three > two);
        assert_eq!(registry.get("groups/1", WITHIN).unwrap(), None);
        assert_eq!(delete(&*registry, "groups/1", two), Outcome::Other(None));
        assert_eq!(put(&*registry, "groups/1", two, 3), Outcome::Other(None));
        // No revision is used again.
        assert!(done(put(&*registry, "groups/1", 0, 4)) > three);
    });
}

#[test]
fn a_list_has_the_records_of_a_prefix_and_a_cluster() {
    check(|backend| {
        let registry = backend.open();
        for name in ["groups/10", "config", "groups/1", "groups/2", "groupsx"] {
            put(&*registry, name, 0, name);
        }
        let names = |prefix: &str| -> Vec<String> {
            let listing = registry.list(prefix, WITHIN).unwrap();
            assert!(listing.records.iter().all(|record| record.revision <= listing.revision));
            listing.records.into_iter().map(|record| record.name).collect()
        };
        assert_eq!(names("groups/"), ["groups/1", "groups/10", "groups/2"]);
        assert_eq!(names("groups/1"), ["groups/1", "groups/10"]);
        assert_eq!(names("nothing"), [""; 0]);
        assert_eq!(names("").len(), 5);
        if !matches!(backend, Backend::Memory(_)) {
            assert_eq!(backend.open().list("", WITHIN).unwrap().records, []);
        }
    });
}

#[test]
fn a_wrong_request_changes_nothing() {
    check(|backend| {
        let registry = backend.open();
        let before = registry.list("", WITHIN).unwrap();
        let long = Value::from("x".repeat(VALUE_BYTES_MAX));
        let deep = |levels| (0..levels).fold(Value::Null, |value, _| json!([value]));
        for (name, expected, edit) in [
            ("a b", 0, Edit::put(1.into())),
            ("", 0, Edit::put(1.into())),
            ("a", 0, Edit::put(long)),
            ("a", 0, Edit::put(deep(VALUE_DEPTH_MAX + 1))),
            ("a", 0, Edit::Delete),
        ] {
            let error = registry.compare_and_set(name, expected, edit, WITHIN).unwrap_err();
            assert!(matches!(error, RegistryError::Invalid(_)), "{error:?}");
        }
        for term in [Duration::ZERO, Duration::from_secs(1 << 20)] {
            assert!(matches!(registry.grant(term, WITHIN).unwrap_err(), RegistryError::Invalid(_)));
        }
        assert!(matches!(registry.list("a b", WITHIN).unwrap_err(), RegistryError::Invalid(_)));
        let after = registry.list("", WITHIN).unwrap();
        assert_eq!(after.records, before.records);
        let largest = Value::from("x".repeat(VALUE_BYTES_MAX - 2));
        let revision = done(put(&*registry, "largest", 0, largest.clone()));
        assert_eq!(registry.get("largest", WITHIN).unwrap(), Some(record("largest", revision, largest)));
        let deepest = deep(VALUE_DEPTH_MAX);
        let revision = done(put(&*registry, "deepest", 0, deepest.clone()));
        assert_eq!(registry.get("deepest", WITHIN).unwrap(), Some(record("deepest", revision, deepest)));
        let edit = Edit::Put { value: 1.into(), lease: Some(0) };
        let error = registry.compare_and_set("leased", 0, edit, WITHIN).unwrap_err();
        assert_eq!(error, RegistryError::LeaseEnded { lease: 0 });
    });
}

#[test]
fn counting_by_threads_is_linearizable() {
    const THREADS: u64 = 4;
    const EACH: u64 = 25;
    check(|backend| {
        let cluster = format!("count-{}", backend.name());
        let count = || {
            let registry = backend.open_cluster(&cluster);
            let (mut written, mut last) = (Vec::new(), 0);
            while (written.len() as u64) < EACH {
                let present = registry.get("counter", WITHIN).unwrap();
                let (revision, value) =
                    present.map_or((0, 0), |found| (found.revision, found.value.as_u64().unwrap()));
                // Neither does a read go back, nor does it miss this thread's own change.
                assert!(revision >= last, "revision {revision} after {last}");
                last = match put(&*registry, "counter", revision, value + 1) {
                    Outcome::Done(revision) => {
                        written.push((value + 1, revision));
                        revision
                    }
                    Outcome::Other(Some(present)) => {
                        assert!(present.revision > revision);
                        present.revision
                    }
                    Outcome::Other(None) => panic!("nobody removes it"),
                };
            }
            written
        };
        let mut all: Vec<(u64, u64)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(count)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert!(all.iter().map(|(value, _)| *value).eq(1..=THREADS * EACH), "each value was written once");
        assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].1), "revisions are in the order of the values");
        let found = backend.open_cluster(&cluster).get("counter", WITHIN).unwrap().unwrap();
        assert_eq!((found.value, found.revision), ((THREADS * EACH).into(), all.last().unwrap().1));
    });
}

#[test]
fn a_watch_sees_all_changes_in_order() {
    const CHANGES: u64 = 60;
    check(|backend| {
        let cluster = format!("watch-{}", backend.name());
        let registry = backend.open_cluster(&cluster);
        let begun = registry.list("", WITHIN).unwrap().revision;
        put(&*registry, "other", 0, 1);
        let write = |name: &'static str| {
            let registry = backend.open_cluster(&cluster);
            let (mut revision, mut written) = (0, Vec::new());
            for number in 0..CHANGES {
                if number % 7 == 6 {
                    written.push((done(delete(&*registry, name, revision)), name, None));
                    revision = 0;
                } else {
                    revision = done(put(&*registry, name, revision, number));
                    written.push((revision, name, Some(Value::from(number))));
                }
            }
            written
        };
        let is_last = |change: &Change| change.name == "seen/last";
        let (mut written, seen) = std::thread::scope(|scope| {
            let seen = [0, 1].map(|_| {
                let registry = backend.open_cluster(&cluster);
                scope.spawn(move || watch_until(&*registry, "seen/", begun, is_last))
            });
            let writers: Vec<_> = ["seen/a", "seen/b"].map(|name| scope.spawn(move || write(name))).into();
            let written: Vec<_> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
            put(&*registry, "seen/last", 0, 0);
            (written, seen.map(|thread| thread.join().unwrap()))
        });
        written.sort_unstable_by_key(|(revision, ..)| *revision);
        for seen in seen {
            let found = seen[..seen.len() - 1].iter();
            let found = found.map(|change| {
                let value = change.record.as_ref().map(|record| {
                    assert_eq!((&record.name, record.revision), (&change.name, change.revision));
                    record.value.clone()
                });
                (change.revision, &*change.name, value)
            });
            assert!(found.eq(written.iter().cloned()), "{seen:?} is not {written:?}");
        }
    });
}

#[test]
fn a_watch_ends_in_time_and_goes_on_or_begins_again() {
    check(|backend| {
        let registry = backend.open();
        let begun = registry.list("", WITHIN).unwrap().revision;
        let waited = registry.watch("a", begun, Duration::from_millis(100)).unwrap();
        let Watched::Changes { changes, after } = waited else { panic!("{waited:?}") };
        assert_eq!(changes, []);
        let revision = done(put(&*registry, "a", 0, 1));
        let seen = watch_until(&*registry, "a", after, |_| true);
        assert_eq!(seen, [Change { name: "a".into(), revision, record: Some(record("a", revision, 1)) }]);
        put(&*registry, "a", revision, 2);
        backend.forget_changes();
        assert_eq!(registry.watch("a", begun, WITHIN).unwrap(), Watched::BeginAgain);
        let listing = registry.list("a", WITHIN).unwrap();
        assert_eq!(listing.records[0].value, 2);
        let waited = registry.watch("a", listing.revision, Duration::from_millis(10)).unwrap();
        assert!(matches!(waited, Watched::Changes { changes, .. } if changes.is_empty()));
    });
}

#[test]
fn records_end_with_their_lease() {
    check(|backend| {
        let registry = backend.open();
        let put_leased = |name: &str, expected, lease| {
            let edit = Edit::Put { value: 1.into(), lease: Some(lease) };
            registry.compare_and_set(name, expected, edit, WITHIN)
        };
        let lease = registry.grant(Duration::from_secs(3600), WITHIN).unwrap();
        assert_ne!(registry.grant(Duration::from_secs(3600), WITHIN).unwrap(), lease);
        for name in ["members/1", "members/2", "members/3"] {
            done(put_leased(name, 0, lease).unwrap());
        }
        let listing = registry.list("members/", WITHIN).unwrap();
        assert!(listing.records.iter().all(|record| record.lease == Some(lease)));
        // A record that is written again without the lease stays.
        done(put(&*registry, "members/2", listing.records[1].revision, 2));
        assert!(registry.keep_alive(lease, WITHIN).unwrap());
        registry.revoke(lease, WITHIN).unwrap();
        let names: BTreeMap<String, u64> = watch_until(&*registry, "members/", listing.revision, |change| {
            change.record.is_none() && registry.get("members/3", WITHIN).unwrap().is_none()
        })
        .into_iter()
        .filter(|change| change.record.is_none())
        .map(|change| (change.name, change.revision))
        .collect();
        assert!(names.keys().eq(["members/1", "members/3"]), "{names:?}");
        assert_eq!(registry.list("members/", WITHIN).unwrap().records.len(), 1);
        assert!(!registry.keep_alive(lease, WITHIN).unwrap());
        registry.revoke(lease, WITHIN).unwrap();
        assert_eq!(put_leased("members/1", 0, lease), Err(RegistryError::LeaseEnded { lease }));
        assert_eq!(registry.get("members/1", WITHIN).unwrap(), None);
    });
}

#[test]
fn a_lease_ends_unless_it_is_kept_alive() {
    check(|backend| {
        let registry: Arc<dyn Registry> = backend.open();
        let [silent, kept] = [0; 2].map(|_| registry.grant(Duration::from_secs(1), WITHIN).unwrap());
        for (name, lease) in [("members/1", silent), ("members/2", kept)] {
            let edit = Edit::Put { value: 1.into(), lease: Some(lease) };
            done(registry.compare_and_set(name, 0, edit, WITHIN).unwrap());
        }
        let deadline = Instant::now() + WITHIN;
        while registry.get("members/1", WITHIN).unwrap().is_some() {
            assert!(registry.keep_alive(kept, WITHIN).unwrap());
            assert!(Instant::now() < deadline, "the lease does not end");
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(registry.get("members/2", WITHIN).unwrap().is_some());
        assert!(!registry.keep_alive(silent, WITHIN).unwrap());
    });
}
