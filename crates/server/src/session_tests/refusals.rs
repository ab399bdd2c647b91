//! Refused requests: each is answered with its fault, and nothing of it is done.

use super::*;

#[test]
fn what_is_wrong_is_answered_with_its_fault() {
    let check = |request: &Request<'_>, expected: Fault| {
        let config = Config { frame_bytes_max: 9 << 20, ..Config::default() };
        let mut fixture = Fixture::of(&config, Features::F16_ROWS);
        let found = fixture.done(request).expect_err("a fault");
        // Other tests check the numbers.
        assert_eq!(found.code(), expected.code(), "{request:?}: {found:?}");
        // The connection goes on.
        assert!(!fixture.session.is_closing());
        fixture.done(&pull(&[1])).unwrap();
    };
    let (keys, counts, grads): (&[u64], &[u32], &[f32]) = (&[1, 2], &[1, 1], &[0.0; 2 * DIM]);
    let nan: &[f32] = &[0.0, 0.0, 0.0, 0.0, f32::NAN, 0.0];
    let of = Pull { table: 1, dim: 3, absent: Absent::Zero, format: RowFormat::F32, keys };
    let ragged = Ragged { keys, offsets: &[0, 2], values: None };
    let pooled = PullPooled {
        table: 1,
        dim: 3,
        pooling: Pooling::Sum,
        absent: Absent::Zero,
        format: RowFormat::F32,
        ragged,
    };
    let fed =
        PullFed { table: 1, batch: 1, feature: 0, dim: 3, absent: Absent::Zero, format: RowFormat::F32 };
    let pushed = Push {
        table: 1,
        client: 1,
        sequence: 1,
        continues: false,
        dim: 3,
        lr_scale: 1.0,
        keys,
        counts,
        grads,
    };
    let push_fed = PushFed {
        table: 1,
        client: 1,
        sequence: 1,
        batch: 1,
        feature: 0,
        dim: 3,
        lr_scale: 1.0,
        grads: &[0.0; 3],
    };
    let many = vec![1; 1 << 20];
    let mismatch = Fault::DimensionMismatch { expected: 3, found: 4 };
    let create = |name, config| Request::Create(Create { home: Home::Sharded, name, config });
    for (request, expected) in [
        (Request::Pull(Pull { table: 2, ..of }), Fault::UnknownTable),
        (Request::Pull(Pull { table: 0, ..of }), Fault::UnknownTable),
        (Request::Pull(Pull { dim: 4, ..of }), mismatch),
        (Request::Pull(Pull { keys: &many, ..of }), Fault::TooLarge { bytes: 0, bytes_max: 0 }),
        (Request::PullPooled(PullPooled { table: 3, ..pooled }), Fault::UnknownTable),
        (Request::PullPooled(PullPooled { dim: 4, ..pooled }), mismatch),
        (Request::PullFed(fed), Fault::UnknownBatch),
        (Request::Keys(Keys { number: 1 }), Fault::BadRequest),
        (Request::Forget(Forget { table: 2, batch: 1, feature: 0 }), Fault::UnknownTable),
        (Request::PullFed(PullFed { table: 2, ..fed }), Fault::UnknownTable),
        (Request::PullFed(PullFed { dim: 4, ..fed }), mismatch),
        (Request::Push(Push { table: 9, ..pushed }), Fault::UnknownTable),
        (Request::Push(Push { dim: 2, grads: &[0.0; 4], ..pushed }), mismatch),
        (Request::Push(Push { lr_scale: -1.0, ..pushed }), Fault::BadRequest),
        (
            Request::Push(Push { grads: nan, ..pushed }),
            Fault::BadGradient { key: 2, coordinate: 1, value: 0.0 },
        ),
        (Request::PushFed(push_fed), Fault::UnknownBatch),
        (Request::PushFed(PushFed { dim: 1, ..push_fed }), mismatch),
        (
            Request::Feed(Feed { table: 2, batch: 1, feature: 0, pooling: Pooling::Sum, ragged }),
            Fault::UnknownTable,
        ),
        (Request::Delete(Delete { table: 2, keys }), Fault::UnknownTable),
        (Request::Export(Export { table: 2, cursor: 0, rows_max: 1 }), Fault::UnknownTable),
        (Request::Open("other"), Fault::UnknownTable),
        (Request::Drop("other"), Fault::UnknownTable),
        (create("t", r#"{"blocks":[]}"#), Fault::TableExists),
        (create("u", r#"{"blocks":[]}"#), Fault::BadConfig),
        (create("u", "no JSON"), Fault::BadConfig),
        (
            Request::Create(Create { home: Home::Pinned(1), name: "u", config: TABLE }),
            Fault::NotHere { placement_version: 0 },
        ),
        (Request::Hello(Hello { offer: Offer::of(ALL), token: "", name: "" }), Fault::BadRequest),
    ] {
        check(&request, expected);
    }
}

#[test]
fn a_table_that_is_there_says_what_differs() {
    let config = r#"{"blocks":[]}"#;
    let fixture = Fixture::new();
    let other = TABLE.replace("\"dims\":3", "\"dims\":5");
    for (home, asked, expected) in [
        (
            Home::Sharded,
            config,
            ["is there on all shards with", "\"dims\":3", "wanted is one on all shards with"],
        ),
        (
            Home::Pinned(0),
            &other,
            ["is there on all shards with", "\"dims\":5", "one pinned to server 0 with"],
        ),
    ] {
        let error = fixture.state.create("t", home, asked).unwrap_err();
        assert_eq!(error.fault, Fault::TableExists);
        expected.iter().for_each(|part| assert!(error.reason.contains(part), "{part}: {}", error.reason));
    }
}

/// 1 GiB over three servers, restored on two: each gets (1 GiB / 3, rounded up) * 3 / 2, rounded up.
#[test]
fn a_share_of_a_budget_may_have_been_rounded() {
    let fixture = Fixture::new();
    let create = |budget_bytes: u64| {
        let config = TABLE.replacen('{', &format!("{{\"budget_bytes\":{budget_bytes},"), 1);
        fixture.state.create("bounded", Home::Sharded, &config).map(|_| ()).map_err(|refusal| refusal.fault)
    };
    let restored = ((1u64 << 30).div_ceil(3) * 3).div_ceil(2);
    assert_ne!(restored, 1 << 29);
    assert_eq!(create(restored), Ok(()));
    assert_eq!(create(1 << 29), Ok(()));
    assert_eq!(create((1 << 29) + (1 << 20)), Err(Fault::TableExists));
}

#[test]
fn a_batch_is_not_kept_if_its_rows_would_be_more_than_a_worker_may_hold() {
    const WIDE: usize = 4096;
    let fits = limit::FED_ROWS_BYTES_MAX / (size_of::<f32>() * WIDE);
    let check = |occurrences: usize, distinct: usize, expected: Answer<()>| {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.create("wide", &TABLE.replace("\"dims\":3", "\"dims\":4096")), Ok(2));
        let keys: Vec<u64> = (0..occurrences as u64).map(|at| at % distinct as u64).collect();
        let ragged = Ragged { keys: &keys, offsets: &[0, occurrences as u32], values: None };
        let feed = Feed { table: 2, batch: 1, feature: 0, pooling: Pooling::Sum, ragged };
        assert_eq!(fixture.done(&Request::Feed(feed)), expected, "{occurrences} keys, {distinct} distinct");
        assert_eq!(fixture.state.batches.sizes().0, usize::from(expected.is_ok()));
    };
    check(fits, fits, Ok(()));
    check(10 * fits, fits, Ok(()));
    let bytes_max = limit::FED_ROWS_BYTES_MAX as u64;
    let bytes = bytes_max + (size_of::<f32>() * WIDE) as u64;
    check(fits + 1, fits + 1, Err(Fault::TooLarge { bytes, bytes_max }));
}

#[test]
fn hello_comes_first_and_fits() {
    let check =
        |config: &Config, change: &dyn Fn(&mut Fixture), offer: Offer, token: &str, expected: Answer<()>| {
            let mut fixture = Fixture::silent(config);
            change(&mut fixture);
            let hello = Request::Hello(Hello { offer, token, name: "n" });
            assert_eq!(fixture.done(&hello), expected, "{offer:?}");
            assert_eq!(fixture.session.is_greeted(), expected.is_ok());
            assert_eq!(fixture.session.is_closing(), expected.is_err());
        };
    let (open, nothing) = (Config::default(), |_: &mut Fixture| {});
    let closed = Config { token: Some("secret".to_owned()), ..Config::default() };
    let offer = Offer::of(ALL);
    let newer = Offer { version_min: 2, version_max: 9, ..offer };
    check(&open, &nothing, offer, "", Ok(()));
    check(&open, &nothing, offer, "whatever", Ok(()));
    check(&open, &nothing, newer, "", Err(Fault::Version { min: 1, max: 1 }));
    check(&closed, &nothing, offer, "secret", Ok(()));
    check(&closed, &nothing, offer, "", Err(Fault::Unauthorized));
    check(&closed, &nothing, offer, "secreT", Err(Fault::Unauthorized));
    // Processes of the server's user need no generated token. A configured token is required from all clients.
    let own = Config { admit_this_user: true, ..closed.clone() };
    let vouched = |fixture: &mut Fixture| fixture.session.vouch(true);
    check(&own, &vouched, offer, "", Ok(()));
    check(&own, &nothing, offer, "", Err(Fault::Unauthorized));
    check(&own, &nothing, offer, "secret", Ok(()));
    check(&closed, &vouched, offer, "", Err(Fault::Unauthorized));
    check(&open, &|fixture| fixture.state.drain(), offer, "", Err(Fault::Draining));
    let over_limit = |fixture: &mut Fixture| {
        fixture.session = Session::new(Arc::clone(&fixture.state), ALL, true);
    };
    check(&open, &over_limit, offer, "", Err(Refusal::busy("").fault));
    let mut early = Fixture::silent(&open);
    assert_eq!(early.done(&Request::Tables), Err(Fault::BadRequest));
    assert!(early.session.is_closing());
}

#[test]
fn bytes_that_are_no_frame_end_the_connection() {
    let mut fixture = Fixture::new();
    fixture.encode(&pull(&[1, 2, 3]));
    let good = fixture.frame.bytes().to_vec();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x40;
        fixture.frame.bytes_mut().copy_from_slice(&bytes);
        assert!(fixture.handle().is_err(), "byte {at}");
    }
    fixture.frame.bytes_mut().copy_from_slice(&good);
    assert!(matches!(fixture.handle(), Ok(Handled::Replied)));
}

#[test]
fn time_that_has_passed_is_not_worked_on() {
    let keys: &[u64] = &[1];
    for (waited, deadline_us, expected) in [
        (Duration::ZERO, 0, Ok(())),
        (WAIT_MAX, 0, Ok(())),
        (WAIT_MAX * 2, 0, Err(Refusal::busy("").fault)),
        (Duration::from_micros(100), 100, Ok(())),
        (Duration::from_micros(101), 100, Err(Fault::DeadlineExceeded)),
    ] {
        let mut fixture = Fixture::new();
        (fixture.waited, fixture.deadline_us) = (waited, deadline_us);
        let counts: &[u32] = &[1];
        assert_eq!(
            fixture.done(&push(1, keys, counts, &[1.0; DIM])),
            expected,
            "{waited:?} of {deadline_us}"
        );
        (fixture.waited, fixture.deadline_us) = (Duration::ZERO, 0);
        let (_, absent) = fixture.rows(&pull(keys)).unwrap();
        assert_eq!(absent.is_empty(), expected.is_ok());
    }
}
