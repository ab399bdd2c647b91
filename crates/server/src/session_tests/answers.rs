//! Replies to single requests, and that they allocate no memory.

use super::*;
use crate::limit::EXPORT_WINDOWS_MAX;

/// A sink that has no room.
struct Full;

impl ReplySink for Full {
    fn put(&mut self, _: usize, _: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        false
    }
}

#[test]
fn without_room_for_the_answer_nothing_is_done() {
    let mut fixture = Fixture::new();
    let counts: &[u32] = &[1];
    fixture.encode(&push(1, &[1], counts, &[1.0; DIM]));
    let when = When { arrived: fixture.start, now: fixture.start };
    let step = fixture.session.handle(fixture.frame.bytes(), when, &mut fixture.workspace, &mut Full);
    assert!(matches!(step, Ok(Handled::NoRoom)));
    assert!(fixture.state.tables.directory().entries[0].table.is_empty());
    let again = fixture
        .ask(&push(1, &[1], counts, &[1.0; DIM]), |reply| reply == Reply::Push(Pushed { repeated: false }));
    assert_eq!(again, Ok(true));
}

#[test]
fn pushes_are_applied_once() {
    let mut fixture = Fixture::new();
    let (counts, grads): (&[u32], &[f32]) = (&[1], &[1.0; DIM]);
    let mut check = |sequence, expected: Answer<bool>, updates| {
        let found = fixture.ask(&push(sequence, &[1], counts, grads), |reply| {
            reply == Reply::Push(Pushed { repeated: true })
        });
        assert_eq!(found, expected, "{sequence}");
        let row = fixture.state.tables.directory().entries[0].table.get(1).unwrap();
        assert_eq!(row.version, updates, "{sequence}");
    };
    check(1, Ok(false), 1);
    check(1, Ok(true), 1);
    check(2 + PUSH_WINDOW, Ok(false), 2);
    check(1, Err(Fault::StalePush { sequence: 1 }), 2);
    check(3, Ok(false), 3);
    check(3, Ok(true), 3);
}

/// A fixture with the server of another one, whose slots have moved so that it is this shard of two.
fn moved(fixture: Fixture, shard: u16) -> Fixture {
    let Fixture { state, session, workspace, .. } = fixture;
    drop((session, workspace));
    let mut state = Arc::into_inner(state).unwrap();
    state.placement = Placement::new(shard, 2, vec![String::new(); 2]);
    let state = Arc::new(state);
    let session = Session::new(Arc::clone(&state), ALL, false);
    let mut moved = Fixture { state, session, ..Fixture::silent(&Config::default()) };
    moved.hello(Features::NONE, "").unwrap();
    moved
}

#[test]
fn an_applied_push_is_repeated_though_its_keys_have_moved() {
    let fixture = Fixture::of(&Config { shard: 0, shards: 2, ..Config::default() }, Features::NONE);
    let key = (0..).find(|&key| fixture.state.placement.is_here(key)).unwrap();
    let push = |fixture: &mut Fixture, sequence| {
        let request = push(sequence, std::slice::from_ref(&key), &[1], &[1.0; DIM]);
        let answer = fixture.ask(&request, |reply| reply == Reply::Push(Pushed { repeated: true }));
        let version = fixture.state.tables.directory().entries[0].table.get(key).unwrap().version;
        (answer, version)
    };
    let mut fixture = moved(fixture, 0);
    assert_eq!(push(&mut fixture, 1), (Ok(false), 1));
    let mut fixture = moved(fixture, 1);
    assert_eq!(push(&mut fixture, 1), (Ok(true), 1));
    // One that is refused leaves no mark.
    let elsewhere = Err(Fault::NotHere { placement_version: 1 });
    assert_eq!(push(&mut fixture, 2), (elsewhere, 1));
    assert_eq!(push(&mut fixture, 2), (elsewhere, 1));
    let mut fixture = moved(fixture, 0);
    assert_eq!(push(&mut fixture, 2), (Ok(false), 2));
}

#[test]
fn a_full_table_says_so_and_sending_again_changes_nothing() {
    let mut fixture = Fixture::silent(&Config { table_budget_bytes: Some(1 << 20), ..Config::default() });
    fixture.hello(ALL, "").unwrap();
    fixture.create("t", TABLE).unwrap();
    let keys: Vec<u64> = (0..100_000).collect();
    let (counts, grads) = (vec![1; keys.len()], vec![1.0; keys.len() * DIM]);
    let request = push(1, &keys, &counts, &grads);
    let Err(Fault::TableFull { rejected, rows, budget_bytes }) = fixture.done(&request) else {
        panic!("a budget of 1 MiB is enough")
    };
    assert_eq!((rejected + rows, budget_bytes), (100_000, 1 << 20));
    let before = fixture.rows(&pull(&keys[..10])).unwrap();
    assert_eq!(fixture.done(&request), Err(Fault::TableFull { rejected, rows, budget_bytes }));
    assert_eq!(fixture.rows(&pull(&keys[..10])).unwrap(), before);
}

#[test]
fn keys_of_other_shards_are_refused_whole() {
    let config = |shard| Config { shard, shards: 3, ..Config::default() };
    let mut servers: Vec<Fixture> = (0..3).map(|shard| Fixture::of(&config(shard), ALL)).collect();
    let (slots, urls) = servers[0]
        .ask(&Request::Placement, |reply| match reply {
            Reply::Placement(map) => (map.slots.to_vec(), map.servers.len()),
            other => panic!("{other:?}"),
        })
        .unwrap();
    assert_eq!(urls, 3);
    let (counts, grads): (&[u32], &[f32]) = (&[1, 1], &[1.0; 2 * DIM]);
    for key in 0..100_u64 {
        let home = slots[slot_of(key, slots.len())];
        for (shard, server) in (0..).zip(&mut servers) {
            let expected = if home == shard { Ok(()) } else { Err(Fault::NotHere { placement_version: 1 }) };
            assert_eq!(server.done(&pull(&[key])), expected, "{key} {shard}");
            let foreign = (0..).find(|&other| slots[slot_of(other, slots.len())] != shard).unwrap();
            let both = [key, foreign];
            assert!(server.done(&push(key + 1, &both, counts, grads)).is_err());
            let (columns, values) = ([1, 1], [1.0; 2 * DIM]);
            let rows = RowBlock {
                dim: 3,
                state: 3,
                keys: &both,
                frequencies: &columns,
                last_uses: &columns,
                versions: &columns,
                weights: &values,
                states: &values,
            };
            let import = Request::Import(Import { table: 1, rows });
            assert_eq!(server.done(&import), Err(Fault::NotHere { placement_version: 1 }));
        }
    }
    assert!(servers.iter().all(|server| server.state.tables.directory().entries[0].table.is_empty()));
}

#[test]
fn compressed_requests_are_answered_compressed() {
    for (compression, feature) in [(Compression::Lz4, Features::LZ4), (Compression::Zstd, Features::ZSTD)] {
        let mut fixture = Fixture::of(&Config::default(), feature);
        fixture.compression = Some(compression);
        let keys = [7; 1000];
        let zeros = |table| Pull { table, dim: 3, absent: Absent::Zero, format: RowFormat::F32, keys: &keys };
        assert_eq!(fixture.rows(&Request::Pull(zeros(1))).unwrap().0, vec![0.0; 3000]);
        // 12,000 zeros compress well.
        assert!(fixture.session.reply().len() < 1000, "{}", fixture.session.reply().len());
        assert_eq!(fixture.done(&Request::Pull(zeros(2))), Err(Fault::UnknownTable));
        assert_eq!(fixture.create("t", TABLE), Ok(1), "replies that wait are packed too");
    }
}

#[test]
fn half_precision_rows_are_the_rounded_ones() {
    let mut fixture = Fixture::new();
    let (keys, halves) = ([1, 2, 3], RowFormat::F16);
    let pull = Pull { table: 1, dim: 3, absent: Absent::Init, format: RowFormat::F32, keys: &keys };
    let exact = fixture.rows(&Request::Pull(pull)).unwrap();
    let rounded = fixture.rows(&Request::Pull(Pull { format: halves, ..pull })).unwrap();
    assert_eq!(exact.1, rounded.1);
    let mut narrowed = vec![0; exact.0.len()];
    narrow(&exact.0, &mut narrowed);
    let mut expected = vec![0.0; exact.0.len()];
    widen(&narrowed, &mut expected);
    assert_eq!(rounded.0, expected);
    assert_ne!(rounded.0, exact.0);
}

#[test]
fn exports_hold_every_row_with_its_state_in_blocks() {
    let mut fixture = Fixture::new();
    let keys: Vec<u64> = (0..1000).map(|key| key * 7).collect();
    let counts: Vec<u32> = (0..1000).map(|count| count % 5 + 1).collect();
    fixture.done(&push(1, &keys, &counts, &vec![0.5; 1000 * DIM])).unwrap();
    let table = &fixture.state.tables.directory().entries[0];
    let (mut exporter, mut found, mut from) = (crate::export::Exporter::default(), Vec::new(), 0);
    loop {
        let exported = exporter.rows(table, from, 300, 1 << 16).unwrap();
        let rows = exported.rows;
        assert!(rows.keys.len() <= 300 && (rows.dim, rows.state) == (3, 3));
        for (at, &key) in rows.keys.iter().enumerate() {
            let row = table.table.get(key).unwrap();
            assert_eq!((row.frequency, row.version), (rows.frequencies[at], rows.versions[at]));
            assert_eq!(row.weights, rows.weights[at * DIM..][..DIM]);
            assert_eq!(row.state, rows.states[at * DIM..][..DIM]);
            found.push(key);
        }
        let Some(next) = exported.next else { break };
        from = next;
    }
    assert_eq!(found, keys);
}

/// Several exports in turn, block by block. A key inserted behind the cursors appears in no later block, unless an
/// export repeats its pass.
fn check_exports_in_turn(exports: usize, expected: u64) {
    let state = Fixture::new().state;
    let named = |at: usize| state.create(&format!("t{at}"), Home::Sharded, TABLE).unwrap();
    let tables: Vec<_> = (0..exports).map(named).collect();
    let push = |keys: &[u64]| {
        for entry in &tables {
            entry.table.push(keys, &vec![0.5; keys.len() * DIM], PushScale::default()).unwrap();
        }
    };
    let mut exporter = crate::export::Exporter::default();
    let mut next_of_all = |from: u64| -> Vec<Option<u64>> {
        tables.iter().map(|entry| exporter.rows(entry, from, 1, 1 << 16).unwrap().next).collect()
    };
    push(&[10, 20, 30]);
    assert_eq!(next_of_all(0), vec![Some(20); exports]);
    push(&[25]);
    assert_eq!(next_of_all(20), vec![Some(expected); exports], "{exports} exports");
    assert_eq!(next_of_all(30), vec![None; exports]);
}

#[test]
fn exports_that_go_on_at_once_look_once_each() {
    check_exports_in_turn(1, 30);
    check_exports_in_turn(EXPORT_WINDOWS_MAX, 30);
    check_exports_in_turn(EXPORT_WINDOWS_MAX + 1, 25);
}

/// An aborted or finished export leaves no state that a later one could mistake for the present table.
#[test]
fn an_export_sees_what_was_there_when_it_began() {
    let mut fixture = Fixture::new();
    let mut exporter = crate::export::Exporter::new(100);
    let mut keys: Vec<u64> = Vec::new();
    for round in 0..4_u64 {
        let made: Vec<u64> = (0..350).map(|at| at * 4 + round).collect();
        fixture.done(&push(round + 1, &made, &[1; 350], &[0.5; 350 * DIM])).unwrap();
        keys.extend(made);
        keys.sort_unstable();
        let table = &fixture.state.tables.directory().entries[0];
        for blocks in [1, 5, usize::MAX] {
            let (mut found, mut from) = (Vec::new(), Some(0));
            for _ in 0..blocks {
                let Some(at) = from else { break };
                let exported = exporter.rows(table, at, 30, 1 << 16).unwrap();
                found.extend_from_slice(exported.rows.keys);
                from = exported.next;
            }
            assert_eq!(found, keys[..found.len()], "round {round}, {blocks} blocks");
            assert!(from.is_some() || found.len() == keys.len());
        }
    }
}

/// All rows of a server's first table, by key.
fn rows_of(fixture: &Fixture) -> Vec<store::Row> {
    let table = &fixture.state.tables.directory().entries[0].table;
    let mut keys = Vec::new();
    table.for_each_row(|row| keys.push(row.key));
    keys.sort_unstable();
    keys.into_iter().map(|key| table.get(key).unwrap()).collect()
}

#[test]
fn exported_rows_are_imported_as_they_are() {
    let mut from = Fixture::new();
    let keys: Vec<u64> = (0..5000).map(|key| key * 7).collect();
    for sequence in 1..4_u64 {
        let counts = vec![sequence as u32; keys.len()];
        let grads: Vec<f32> = (0..keys.len() * DIM).map(|at| (at as f32 + sequence as f32).sin()).collect();
        let some = keys.len() / sequence as usize;
        from.done(&push(sequence, &keys[..some], &counts[..some], &grads[..some * DIM])).unwrap();
    }
    let check = |to: &mut Fixture, pushes: u64| {
        let table = Arc::clone(&from.state.tables.directory().entries[0]);
        let (mut exporter, mut cursor) = (crate::export::Exporter::default(), 0);
        loop {
            let exported = exporter.rows(&table, cursor, 999, 1 << 16).unwrap();
            let rows = exported.rows.keys.len() as u64;
            let import = Request::Import(Import { table: 1, rows: exported.rows });
            assert_eq!(to.ask(&import, |reply| reply == Reply::Import(rows)), Ok(true));
            let Some(next) = exported.next else { break };
            cursor = next;
        }
        let mut expected = rows_of(&from);
        expected.iter_mut().for_each(|row| row.last_use = row.last_use.min(pushes as u32));
        assert!(rows_of(to) == expected);
        assert_eq!(to.state.tables.directory().entries[0].table.stats().pushes, pushes);
    };
    check(&mut Fixture::new(), 3);
    // Existing rows are replaced, and the use clock does not go back.
    let mut used = Fixture::new();
    used.done(&push(1, &keys[..100], &[1; 100], &[0.5; 100 * DIM])).unwrap();
    check(&mut used, 1);
}

#[test]
fn rows_that_do_not_fit_are_not_imported() {
    let mut fixture = Fixture::new();
    let (keys, values, nan) = ([5, 6], [1.0; 8], [f32::NAN; 8]);
    let block = |dim: u32, state: u32| RowBlock {
        dim,
        state,
        keys: &keys,
        frequencies: &[1, 1],
        last_uses: &[1, 1],
        versions: &[1, 1],
        weights: &values[..2 * dim as usize],
        states: &values[..2 * state as usize],
    };
    let good = block(3, 3);
    for (table, rows, expected) in [
        (1, block(4, 3), Err(Fault::DimensionMismatch { expected: 3, found: 4 })),
        (1, block(3, 0), Err(Fault::BadRequest)),
        (1, RowBlock { weights: &nan[..6], ..good }, Err(Fault::BadRequest)),
        (1, RowBlock { states: &nan[..6], ..good }, Err(Fault::BadRequest)),
        (1, RowBlock { keys: &[5, 5], ..good }, Err(Fault::BadRequest)),
        (2, good, Err(Fault::UnknownTable)),
    ] {
        assert_eq!(fixture.done(&Request::Import(Import { table, rows })), expected, "{rows:?}");
        assert_eq!(rows_of(&fixture), []);
    }
    assert_eq!(fixture.done(&Request::Import(Import { table: 1, rows: good })), Ok(()));
    assert_eq!(rows_of(&fixture).len(), 2);
}

#[test]
fn in_steady_state_a_request_allocates_nothing() {
    let mut fixture = Fixture::new();
    let keys: Vec<u64> = (0..512).collect();
    let offsets: Vec<u32> = (0..=256).map(|sample| sample * 2).collect();
    let (counts, grads) = (vec![1; 512], vec![0.1; 512 * DIM]);
    let ragged = Ragged { keys: &keys, offsets: &offsets, values: None };
    let (pooling, absent) = (Pooling::Sum, Absent::Zero);
    let halves = Pull { table: 1, dim: 3, absent, format: RowFormat::F16, keys: &keys };
    let format = RowFormat::F32;
    let pooled = PullPooled { table: 1, dim: 3, pooling, absent, format, ragged };
    let mut sequence = 0;
    let mut requests = |fixture: &mut Fixture, measured: &mut u64| {
        sequence += 1;
        for request in [
            push(sequence, &keys, &counts, &grads),
            pull(&keys),
            Request::Pull(halves),
            Request::PullPooled(pooled),
            Request::Ping(Ping { reply_bytes: 1000, bytes: &[] }),
        ] {
            fixture.encode(&request);
            let allocated = allocation_counter::measure(|| {
                assert!(matches!(fixture.handle(), Ok(Handled::Replied)));
            });
            *measured += allocated.count_total;
        }
    };
    let (mut warming, mut measured) = (0, 0);
    (0..3).for_each(|_| requests(&mut fixture, &mut warming));
    (0..100).for_each(|_| requests(&mut fixture, &mut measured));
    assert!(warming > 0, "the counter counts");
    assert_eq!(measured, 0);
}
