//! Requests that waited before they were read, according to the client's clock.

use super::*;

/// A push with a deadline that was sent some milliseconds before it is read, by a client that has sent its clock
/// before.
fn check(features: Features, waited_ms: u64, deadline_ms: u32, expected: fn(&Answer<()>) -> bool) {
    let mut fixture = Fixture::of(&Config::default(), features);
    let start = fixture.start;
    let (keys, counts): (&[u64], &[u32]) = (&[1], &[1]);
    let mut ask = |sent_ms: u64, read_ms: u64, deadline_ms: u32, sequence: u64| {
        fixture.start = start + Duration::from_millis(read_ms);
        if features.has(Features::SENT_AT) {
            fixture.encode(&Request::SentAt(sent_ms * 1000));
            assert!(matches!(fixture.handle(), Ok(Handled::NoReply)));
        }
        fixture.deadline_us = deadline_ms * 1000;
        fixture.done(&push(sequence, keys, counts, &[1.0; DIM]))
    };
    // The client's clock began seven seconds earlier.
    assert_eq!(ask(7000, 0, 0, 1), Ok(()));
    let found = ask(17_000, 10_000 + waited_ms, deadline_ms, 2);
    assert!(expected(&found), "{waited_ms} of {deadline_ms}: {found:?}");
}

#[test]
fn requests_that_waited_before_they_were_read_are_refused_early() {
    let is_done = |found: &Answer<()>| found.is_ok();
    let is_busy = |found: &Answer<()>| matches!(found, Err(Fault::Busy { .. }));
    let is_late = |found: &Answer<()>| matches!(found, Err(Fault::DeadlineExceeded));
    check(Features::SENT_AT, 0, 200, is_done);
    check(Features::SENT_AT, 99, 200, is_done);
    check(Features::SENT_AT, 110, 200, is_busy);
    check(Features::SENT_AT, 199, 200, is_busy);
    check(Features::SENT_AT, 210, 200, is_late);
    check(Features::SENT_AT, 1, 1000, is_done);
    check(Features::SENT_AT, 900, 0, is_done);
    check(Features::SENT_AT, 1100, 0, is_busy);
    check(Features::SENT_AT, 1100, 20_000, is_busy);
    // Without the client's clock, the wait is unknown.
    check(Features::NONE, 210, 200, is_done);
}

/// A client that is told to retry within its deadline has the time for it.
#[test]
fn who_has_little_time_is_asked_to_try_again_soon() {
    for (deadline_ms, expected_us) in [(16, 2000), (8000, 10_000), (0, 10_000)] {
        let refusal = Refusal::busy_before(Duration::from_millis(deadline_ms), "");
        assert_eq!(refusal.fault, Fault::Busy { retry_after_us: expected_us });
    }
}

#[test]
fn the_time_is_told_only_where_that_was_agreed_on() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.done(&Request::SentAt(1)), Err(Fault::BadRequest));
    let mut fixture = Fixture::of(&Config::default(), Features::SENT_AT);
    fixture.encode(&Request::SentAt(1));
    assert!(matches!(fixture.handle(), Ok(Handled::NoReply)));
    assert!(fixture.out.is_empty());
}
