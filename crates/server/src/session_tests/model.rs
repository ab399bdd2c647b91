//! Random histories: a session answers like a table in this process, and every frame has an answer.

use super::*;

/// One operation of a random history.
#[derive(Debug, Clone)]
enum Op {
    Pull(Vec<u64>),
    Pooled(Vec<Vec<u64>>, bool),
    Push(Vec<u64>, f32),
    PushAgain,
    Fed(Vec<Vec<u64>>, bool, f32),
    Delete(Vec<u64>),
}

fn op() -> impl Strategy<Value = Op> {
    let keys = || prop::collection::vec(0_u64..50, 0..20);
    let samples = || prop::collection::vec(prop::collection::vec(0_u64..50, 0..5), 0..6);
    let grad = || -2.0_f32..2.0;
    prop_oneof![
        keys().prop_map(Op::Pull),
        (samples(), any::<bool>()).prop_map(|(samples, mean)| Op::Pooled(samples, mean)),
        (keys(), grad()).prop_map(|(keys, grad)| Op::Push(keys, grad)),
        Just(Op::PushAgain),
        (samples(), any::<bool>(), grad()).prop_map(|(samples, mean, grad)| Op::Fed(samples, mean, grad)),
        keys().prop_map(Op::Delete),
    ]
}

fn flatten(samples: &[Vec<u64>]) -> (Vec<u64>, Vec<u32>) {
    let mut offsets = vec![0];
    offsets.extend(samples.iter().scan(0, |sum, sample| {
        *sum += sample.len() as u32;
        Some(*sum)
    }));
    (samples.concat(), offsets)
}

fn close(found: &[f32], expected: &[f32]) -> bool {
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(1.0))
}

fn play(ops: &[Op]) {
    let (mut fixture, model) = (Fixture::new(), embedded());
    let (mut sequence, mut last) = (0, None::<(Vec<u64>, f32)>);
    for op in ops {
        match op {
            Op::Pull(keys) => {
                let mut expected = vec![0.0; keys.len() * DIM];
                let mut missing = Vec::new();
                model.pull(keys, Absent::Init, &mut expected, Some(&mut missing)).unwrap();
                let (found, absent) = fixture.rows(&pull(keys)).unwrap();
                assert!(close(&found, &expected), "{found:?} {expected:?}");
                assert!(absent.iter().map(|&at| at as u32).eq(missing));
            }
            Op::Pooled(samples, mean) => {
                let (keys, offsets) = flatten(samples);
                let mut expected = vec![0.0; samples.len() * DIM];
                let mut missing = Vec::new();
                let pooling = if *mean { Pooling::Mean } else { Pooling::Sum };
                model
                    .pull_pooled(
                        &keys,
                        None,
                        &offsets,
                        pooling,
                        Absent::Zero,
                        &mut expected,
                        Some(&mut missing),
                    )
                    .unwrap();
                let ragged = Ragged { keys: &keys, offsets: &offsets, values: None };
                let (absent, format) = (Absent::Zero, RowFormat::F32);
                let request = PullPooled { table: 1, dim: 3, pooling, absent, format, ragged };
                let (found, absent) = fixture.rows(&Request::PullPooled(request)).unwrap();
                assert!(close(&found, &expected), "{found:?} {expected:?}");
                assert!(absent.iter().map(|&at| at as u32).eq(missing));
            }
            Op::Push(keys, grad) => {
                let mut dedup = store::Dedup::new();
                dedup.assign(keys);
                sequence += 1;
                let grads = vec![*grad; dedup.unique.len() * DIM];
                fixture.done(&push(sequence, &dedup.unique, &dedup.counts, &grads)).unwrap();
                model.push_unique(&dedup.unique, &dedup.counts, &grads, PushScale::default()).unwrap();
                last = Some((dedup.unique.clone(), *grad));
            }
            Op::PushAgain => {
                let Some((keys, grad)) = &last else { continue };
                let (counts, grads) = (vec![1; keys.len()], vec![*grad; keys.len() * DIM]);
                let repeated = |reply: Reply<'_>| reply == Reply::Push(Pushed { repeated: true });
                assert_eq!(fixture.ask(&push(sequence, keys, &counts, &grads), repeated), Ok(true));
            }
            Op::Fed(samples, mean, grad) => {
                let (keys, offsets) = flatten(samples);
                let pooling = if *mean { Pooling::Mean } else { Pooling::Sum };
                let ragged = Ragged { keys: &keys, offsets: &offsets, values: None };
                fixture
                    .done(&Request::Feed(Feed { table: 1, batch: 3, feature: 1, pooling, ragged }))
                    .unwrap();
                let (absent, format) = (Absent::Init, RowFormat::F32);
                let fed = PullFed { table: 1, batch: 3, feature: 1, dim: 3, absent, format };
                let found = fixture.rows(&Request::PullFed(fed)).unwrap();
                let pooled = PullPooled { table: 1, dim: 3, pooling, absent, format, ragged };
                let expected = fixture.rows(&Request::PullPooled(pooled)).unwrap();
                assert!(close(&found.0, &expected.0) && found.1 == expected.1, "{found:?} {expected:?}");
                // The model gets one gradient per occurrence.
                let per_key = samples.iter().flat_map(|sample| {
                    let share = if *mean { 1.0 / sample.len() as f32 } else { 1.0 };
                    vec![grad * share; sample.len() * DIM]
                });
                model.push(&keys, &per_key.collect::<Vec<_>>(), PushScale::default()).unwrap();
                sequence += 1;
                last = None;
                // A removed batch is gone, and removing it again is no error. Then it is fed again.
                let forget = Request::Forget(Forget { table: 1, batch: 3, feature: 1 });
                for _ in 0..2 {
                    assert_eq!(fixture.done(&forget), Ok(()));
                    assert_eq!(fixture.rows(&Request::PullFed(fed)), Err(Fault::UnknownBatch));
                }
                fixture
                    .done(&Request::Feed(Feed { table: 1, batch: 3, feature: 1, pooling, ragged }))
                    .unwrap();
                let grads = &vec![*grad; samples.len() * DIM][..];
                let push = PushFed {
                    table: 1,
                    client: 5,
                    sequence,
                    batch: 3,
                    feature: 1,
                    dim: 3,
                    lr_scale: 1.0,
                    grads,
                };
                assert_eq!(fixture.done(&Request::PushFed(push)), Ok(()));
                let repeated = |reply: Reply<'_>| reply == Reply::PushFed(Pushed { repeated: true });
                assert_eq!(fixture.ask(&Request::PushFed(push), repeated), Ok(true));
                assert_eq!(fixture.rows(&Request::PullFed(fed)), Err(Fault::UnknownBatch));
            }
            Op::Delete(keys) => {
                let gone = keys.iter().filter(|&&key| model.remove(key)).count() as u64;
                let found = fixture
                    .ask(&Request::Delete(Delete { table: 1, keys }), |reply| reply == Reply::Delete(gone));
                assert_eq!(found, Ok(true));
            }
        }
        assert_eq!(fixture.state.tables.directory().entries[0].table.len(), model.len());
    }
}

/// Numbers that are often sizes, flags or keys.
fn word() -> impl Strategy<Value = u64> {
    let half = || prop_oneof![0_u32..5, 0_u32..5, Just(1 << 20), Just(u32::MAX), any::<u32>()];
    (half(), half()).prop_map(|(low, high)| u64::from(low) | u64::from(high) << 32)
}

/// The kinds that have a request.
fn requests() -> Vec<Kind> {
    Kind::ALL.into_iter().filter(|&kind| kind != Kind::Goaway).collect()
}

proptest! {
    /// Every well-formed frame has an answer, and the connection goes on.
    #[test]
    fn any_payload_has_an_answer(
        kind in proptest::sample::select(requests()),
        table in 0_u32..3, words in prop::collection::vec(word(), 0..40)) {
        let mut fixture = Fixture::new();
        let header = Header {
            version: 1,
            kind,
            flags: 0,
            id: 9,
            deadline_or_status: 0,
            payload_bytes: words.len() as u32 * 8,
            table: if kind.is_about_a_table() { table } else { 0 },
            checksum: 0,
        };
        let mut frame = header.to_bytes().to_vec();
        words.iter().for_each(|word| frame.extend(word.to_le_bytes()));
        seal(&mut frame, fixture.session.agreed());
        fixture.frame.clear();
        fixture.frame.room(frame.len()).unwrap()[..frame.len()].copy_from_slice(&frame);
        fixture.frame.advance(frame.len());
        prop_assert!(fixture.handle().is_ok());
        prop_assert!(fixture.done(&Request::Tables).is_ok());
    }

    #[test]
    fn a_session_answers_as_a_table_here(ops in prop::collection::vec(op(), 1..40)) {
        play(&ops);
    }
}
