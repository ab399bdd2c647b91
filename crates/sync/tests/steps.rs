//! Steps and meetings of one group: sums against sums made otherwise, and everything that is refused. Knows no network.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::collections::BTreeMap;

use proptest::prelude::*;
use sanderling_sync::{Budget, Fixed, Gradients, Group, Met, Part, Refused, Said, Uneven, Who};

fn group(workers: u32) -> Group<Uneven> {
    Group::new(workers, Budget::new(1 << 20)).unwrap()
}

fn who(worker: u32, workers: u32) -> Who {
    Who { worker, workers, attempt: 0 }
}

fn part(keys: &[u64], gradients: Gradients) -> Part {
    let (keys, counts) = (keys.to_vec(), vec![1; keys.len()]);
    Part { table: 7, lr_scale: 0.5, dim: gradients.len() / keys.len().max(1), keys, counts, gradients }
}

/// What a step is applied as: per key, its count and its gradients' bits.
type Applied = BTreeMap<u64, (u32, Vec<u32>)>;

fn apply(group: &mut Group<Uneven>) -> Applied {
    let mut complete = group.begin().expect("all is there");
    let mut applied = Applied::new();
    let result = complete.each(|sums| {
        assert_eq!((sums.table, sums.lr_scale), (7, 0.5));
        let dim = sums.gradients.len() / sums.keys.len().max(1);
        for (at, &key) in sums.keys.iter().enumerate() {
            let row = sums.gradients[at * dim..][..dim].iter().map(|g| g.to_bits()).collect();
            assert!(applied.insert(key, (sums.counts[at], row)).is_none(), "a key twice");
        }
        Ok(())
    });
    group.end(complete, result);
    applied
}

const DIM: usize = 3;

/// Samples, each with a key and its gradient, shared out in runs to so many workers, which come in the order that `shift` says.
fn step(samples: &[(u64, [f32; DIM])], workers: usize, shift: usize, fixed: Option<Fixed>) -> Applied {
    let mut group = group(workers as u32);
    let run = samples.len().div_ceil(workers).max(1);
    let mut runs: Vec<&[(u64, [f32; DIM])]> = samples.chunks(run).collect();
    runs.resize(workers, &[]);
    let workers = workers as u32;
    for at in 0..workers {
        let worker = (at + shift as u32) % workers;
        let mut sums: BTreeMap<u64, ([f32; DIM], [i64; DIM])> = BTreeMap::new();
        for (key, gradient) in runs[worker as usize] {
            let (single, exact) = sums.entry(*key).or_default();
            single.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
            fixed.unwrap_or_default().add(exact, gradient).unwrap();
        }
        let keys: Vec<u64> = sums.keys().copied().collect();
        let gradients = match fixed {
            Some(fixed) => Gradients::Fixed {
                unit_log2: fixed.unit_log2(),
                sums: sums.values().flat_map(|(_, exact)| *exact).collect(),
            },
            None => Gradients::Single(sums.values().flat_map(|(single, _)| *single).collect()),
        };
        let mut part = part(&keys, gradients);
        part.dim = DIM;
        part.counts = keys
            .iter()
            .map(|key| runs[worker as usize].iter().filter(|(other, _)| other == key).count() as u32)
            .collect();
        group.take(who(worker, workers), 1, 0, part).unwrap();
        assert!(group.begin().is_none(), "not all have said that their part is whole");
        group.say(who(worker, workers), 1, Said::Whole { messages: 1 }).unwrap();
    }
    apply(&mut group)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn sums_do_not_depend_on_who_had_which_samples_nor_on_who_came_first(
        samples in proptest::collection::vec((0..12_u64, [-2.0..2.0_f32, -1e-3..1e-3_f32, -3e4..3e4_f32]), 0..80),
        shift in 0..8_usize,
    ) {
        let fixed = Some(Fixed::default());
        let one = step(&samples, 1, 0, fixed);
        for workers in [2, 4, 8] {
            // The same bits however they are shared out.
            prop_assert_eq!(&step(&samples, workers, shift, fixed), &one);
            // Plain gradients: the same bits whatever the order of arrival, and near the sums.
            let single = step(&samples, workers, shift, None);
            prop_assert_eq!(&single, &step(&samples, workers, 0, None));
            prop_assert_eq!(single.len(), one.len());
            for (key, (count, row)) in &single {
                prop_assert_eq!(*count, one[key].0);
                for (coordinate, bits) in row.iter().enumerate() {
                    let of_key = samples.iter().filter(|(other, _)| other == key);
                    let values = of_key.map(|(_, gradient)| f64::from(gradient[coordinate]));
                    let (sum, size) = values.fold((0.0, 0.0), |(sum, size), g| (sum + g, size + g.abs()));
                    let near = |bits: u32| (f64::from(f32::from_bits(bits)) - sum).abs() <= 1e-6 * size + 1e-9;
                    prop_assert!(near(*bits) && near(one[key].1[coordinate]), "{} of {}", coordinate, key);
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_is_refused_and_nothing_of_it_is_taken() {
    let single = |value: f32| part(&[1], Gradients::Single(vec![value]));
    let whole = Said::Whole { messages: 1 };
    let mut group = group(2);
    let (a, b) = (who(0, 2), who(1, 2));
    group.take(a, 1, 0, single(1.0)).unwrap();
    assert_eq!(group.say(b, 1, Said::Nothing).unwrap().missing, [0, 1]);
    assert_eq!(group.say(a, 1, whole).unwrap().missing, [1]);
    for (refused, expected) in [
        (group.take(who(2, 3), 1, 0, single(1.0)), Refused::Workers { worker: 2, expected: 2, found: 3 }),
        (group.take(who(2, 2), 1, 0, single(1.0)), Refused::Workers { worker: 2, expected: 2, found: 2 }),
        (group.take(b, 2, 0, single(1.0)), Refused::Step { step: 2, applied: 0 }),
        (group.take(b, 0, 0, single(1.0)), Refused::Step { step: 0, applied: 0 }),
        (
            group.take(b, 1, u32::MAX, single(1.0)),
            Refused::TooLarge { what: "messages of a step", found: u64::from(u32::MAX), max: 1 << 16 },
        ),
        (
            group.say(b, 1, whole).map(|_| ()),
            Refused::Incomplete { step: 1, worker: 1, found: 0, expected: 1 },
        ),
    ] {
        assert_eq!(refused, Err(expected));
    }
    let large = part(&(0..70_000).collect::<Vec<u64>>(), Gradients::Single(vec![0.0; 70_000]));
    assert!(matches!(group.take(b, 1, 0, large), Err(Refused::Full { .. })));

    // What comes again replaces; what was said to be whole does not change any more.
    group.take(a, 1, 0, single(9.0)).unwrap();
    group.take(b, 1, 0, single(2.0)).unwrap();
    group.take(b, 1, 0, single(4.0)).unwrap();
    group.take(b, 1, 1, single(8.0)).unwrap();
    assert_eq!(group.say(b, 1, whole).unwrap().missing, [0; 0]);
    assert_eq!(apply(&mut group), Applied::from([(1, (2, vec![5.0_f32.to_bits()]))]));
    let progress = group.say(b, 1, whole).unwrap();
    assert_eq!((progress.applied, progress.decided, progress.missing.len()), (1, 1, 0));

    // A new attempt shuts the old one out, and its part of what is not decided does not count.
    group.take(a, 2, 0, single(1.0)).unwrap();
    group.say(a, 2, whole).unwrap();
    let again = Who { attempt: 3, ..a };
    assert_eq!(group.say(again, 2, Said::Nothing).unwrap().missing, [0, 1]);
    let replaced = Err(Refused::Replaced { worker: 0, attempt: 0, newest: 3 });
    assert_eq!(group.say(a, 2, whole).map(|_| ()), replaced);
    group.say(again, 2, Said::Whole { messages: 0 }).unwrap();
    group.say(b, 2, Said::Whole { messages: 0 }).unwrap();
    assert_eq!(apply(&mut group), Applied::new());

    // Workers that do not agree: the step fails for all of them, and there is no further one.
    group.take(again, 3, 0, single(1.0)).unwrap();
    group.take(b, 3, 0, part(&[1], Gradients::Fixed { unit_log2: -3, sums: vec![1] })).unwrap();
    group.say(again, 3, whole).unwrap();
    group.say(b, 3, whole).unwrap();
    assert_eq!(apply(&mut group), Applied::new());
    for found in [group.say(b, 3, whole).map(|_| ()), group.take(b, 4, 0, single(1.0)), group.check()] {
        assert!(
            matches!(&found, Err(Refused::Failed { step: 3, failure }) if failure.what == "units"),
            "{found:?}"
        );
    }
    assert!(group.begin().is_none());
}

#[test]
fn who_has_finished_least_is_waited_for() {
    let mut group = group(3);
    let mut finish = |worker: u32, step: u64| {
        let progress = group.say(who(worker, 3), step, Said::Finished).unwrap();
        (progress.finished, progress.missing)
    };
    assert_eq!(finish(0, 1), (0, vec![1, 2]));
    assert_eq!(finish(1, 2), (0, vec![2]));
    assert_eq!(finish(2, 1), (1, vec![]));
    assert_eq!(finish(1, 3), (1, vec![0, 2]));
    assert_eq!(finish(2, 0), (1, vec![]));
    assert_eq!(finish(0, 5), (1, vec![2]));
}

#[test]
fn a_meeting_gives_everybody_what_all_have_brought() {
    let mut group = group(3);
    let (a, b, c) = (who(0, 3), who(1, 3), who(2, 3));
    let mut meet = |who, round, name: &str, bytes: &[u8]| {
        group.meet(who, round, name, bytes).map(|met| match met {
            Met::Waiting(missing) => Err(missing),
            Met::All(all) => Ok(all.concat()),
        })
    };
    assert_eq!(meet(b, 1, "start", b"b"), Ok(Err(vec![0, 2])));
    // Who comes again has changed its mind.
    assert_eq!(meet(b, 1, "start", b"B"), Ok(Err(vec![0, 2])));
    assert_eq!(meet(a, 2, "next", b""), Err(Refused::Round { round: 2, next: 1 }));
    let (expected, found) = ("start".to_owned(), "end".to_owned());
    assert_eq!(meet(a, 1, "end", b""), Err(Refused::OtherMeeting { round: 1, worker: 0, expected, found }));
    assert_eq!(meet(c, 1, "start", b""), Ok(Err(vec![0])));
    assert_eq!(meet(a, 1, "start", b"a"), Ok(Ok(b"aB".to_vec())));
    // The first may be at the next one while others have not asked again.
    assert_eq!(meet(a, 2, "next", b"2"), Ok(Err(vec![1, 2])));
    assert_eq!(meet(b, 1, "start", b"too late"), Ok(Ok(b"aB".to_vec())));
    assert_eq!(meet(c, 1, "start", b""), Ok(Ok(b"aB".to_vec())));
    assert_eq!(meet(c, 2, "next", b""), Ok(Err(vec![1])));
    assert_eq!(meet(b, 2, "next", b""), Ok(Ok(b"2".to_vec())));
    assert_eq!(meet(b, 3, "last", b""), Ok(Err(vec![0, 2])));
    assert_eq!(meet(a, 1, "start", b"a"), Err(Refused::Round { round: 1, next: 3 }));
    let long = vec![0; (1 << 20) + 1];
    assert!(matches!(meet(a, 3, "last", &long), Err(Refused::TooLarge { .. })));
    // Who takes another's place is told where to go on.
    let again = Who { attempt: 1, ..b };
    assert_eq!(group.say(again, 0, Said::Nothing).unwrap().round, 3);
    assert_eq!(group.say(a, 0, Said::Nothing).unwrap().round, 3);
}
