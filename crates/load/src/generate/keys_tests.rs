//! Drawn keys, against the exact laws; that draws are functions of seed and cycle; drift, fresh
//! keys and traces. Knows the numbers of keys only, through the dense spread.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use super::scatter::Scatter;
use super::{
    At, FRESH_CYCLES_MAX, FRESH_DRAWS_MAX, FRESH_KEYS_MAX, KEYS_MAX, KeyLaw, KeySource, Seeds, Spread,
    chi_square,
};

/// Ranks below this, from 1, have a cell each; the others share one per quarter of an octave.
const SINGLE_RANKS: u64 = 64;
const ONE_MILLION: u64 = 1_000_000;

fn at(cycle: u64) -> At {
    At { cycle, ..At::default() }
}

fn dense(law: &KeyLaw, keys: u64) -> KeySource {
    let mut source = KeySource::new(law, keys, &Seeds::new(5)).unwrap();
    source.spread(Spread::Dense);
    source
}

fn drawn(source: &KeySource, at: &At, count: usize) -> Vec<u64> {
    let mut out = Vec::new();
    source.fill(at, count, &mut out).unwrap();
    assert_eq!(out.len(), count);
    out
}

/// The rank, from 0, whose number this is: multiplication by the inverse of the step.
fn unscattered(n: u64) -> impl Fn(u64) -> u64 {
    let (scatter, modulus) = (Scatter::new(n), i128::from(n));
    let (mut a, mut b, mut x, mut y) = (i128::from(scatter.number(1 % n)), modulus, 1i128, 0i128);
    while b > 0 {
        (a, b, x, y) = (b, a % b, y, x - a / b * y);
    }
    assert!(a == 1 || n == 1);
    move |number| (i128::from(number) * x.rem_euclid(modulus)).rem_euclid(modulus) as u64
}

/// The first rank, from 1, of each cell, and one more than the last rank.
fn cell_starts(n: u64) -> Vec<u64> {
    let quarters = |octave: u32| (4..8).map(move |quarter| quarter << (octave - 2));
    let mut starts: Vec<u64> = (1..SINGLE_RANKS).chain((6..41).flat_map(quarters)).collect();
    starts.retain(|&start| start <= n);
    starts.push(n + 1);
    starts
}

/// `sum r^-theta` over `from..to`: exactly for few, else by the formula of Euler and Maclaurin.
fn zipf_weight(theta: f64, from: u64, to: u64) -> f64 {
    let power = |r: f64| r.powf(-theta);
    if to - from < 16 {
        return (from..to).map(|r| power(r as f64)).sum();
    }
    let (a, b) = (from as f64, (to - 1) as f64);
    let integral =
        if theta == 1.0 { (b / a).ln() } else { (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta) };
    integral + (power(a) + power(b)) / 2.0 + theta * (power(a) / a - power(b) / b) / 12.0
}

/// Chi-square of the ranks, from 1, that `rank` finds in the numbers drawn in a cycle, against the zipf law.
fn check_zipf(law: &KeyLaw, n: u64, theta: f64, draws: u64, rank: impl Fn(&KeySource, u64, u64) -> u64) {
    let (source, starts) = (dense(law, n), cell_starts(n));
    let (mut seen, mut out) = (vec![0; starts.len() - 1], Vec::new());
    for cycle in 0..draws / 1000 {
        out.clear();
        source.fill(&at(cycle), 1000, &mut out).unwrap();
        for &number in &out {
            let rank = rank(&source, cycle, number);
            assert!((1..=n).contains(&rank));
            seen[starts.partition_point(|&start| start <= rank) - 1] += 1;
        }
    }
    let weights: Vec<f64> = starts.windows(2).map(|cell| zipf_weight(theta, cell[0], cell[1])).collect();
    chi_square::check(&format!("{law:?} of {n}"), &seen, &weights);
}

fn check_scattered_zipf(n: u64, theta: f64, draws: u64) {
    let unscattered = unscattered(n);
    check_zipf(&KeyLaw::Zipf { theta }, n, theta, draws, |_, _, number| unscattered(number) + 1);
}

#[test]
fn zipf_is_exact() {
    for theta in [0.0, 0.5, 0.75, 0.99, 1.0, 1.2] {
        for n in [1, 2, 3, 65, 1000, 10_000_000, 1_000_000_000, KEYS_MAX - 1, KEYS_MAX] {
            check_scattered_zipf(n, theta, 100_000);
        }
    }
}

/// `cargo test --release -p sanderling-load --lib 100_million -- --ignored`
#[test]
#[ignore = "ten seconds of a release build"]
fn zipf_is_exact_in_100_million_draws() {
    for (n, theta) in [(10_000_000, 0.99), (1_000_000_000, 0.99), (1_000_000_000, 0.5), (KEYS_MAX, 1.2)] {
        check_scattered_zipf(n, theta, 100_000_000);
    }
}

#[test]
fn latest_is_zipf_below_the_newest() {
    for (n, theta) in [(1, 0.99), (1000, 0.99), (1_000_000_000, 1.2)] {
        let rank = |source: &KeySource, cycle, number| source.newest(cycle) - number;
        check_zipf(&KeyLaw::Latest { theta }, n, theta, 200_000, rank);
    }
    let mut source = dense(&KeyLaw::Latest { theta: 0.99 }, 1000);
    assert_eq!(
        (source.newest(0), source.newest(19), source.newest(20), source.newest(4000)),
        (1000, 1000, 1001, 1200)
    );
    source.grow(2.5).unwrap();
    assert_eq!((source.newest(1), source.newest(2)), (1002, 1005));
    let mut newest = vec![7];
    source.fill_newest(&at(2), 3, &mut newest);
    assert_eq!(newest, [7, 1002, 1003, 1004]);
    source.fill_newest(&at(0), 5000, &mut newest);
    assert_eq!(newest.len(), 1004, "no more than there are");
}

/// Chi-square of numbers drawn from few keys against a weight per rank.
fn check_small(law: &KeyLaw, n: u64, weight: impl Fn(u64) -> f64) {
    let (source, unscattered) = (dense(law, n), unscattered(n));
    let mut seen = vec![0; n as usize];
    (0..200).for_each(|cycle| {
        drawn(&source, &at(cycle), 1000).iter().for_each(|&number| seen[unscattered(number) as usize] += 1);
    });
    chi_square::check(&format!("{law:?} of {n}"), &seen, &(0..n).map(weight).collect::<Vec<_>>());
}

#[test]
fn uniform_and_hotspot_are_exact() {
    for n in [1, 2, 3, 1000] {
        check_small(&KeyLaw::Uniform, n, |_| 1.0);
        check_small(&KeyLaw::Sequential, n, |_| 1.0);
    }
    for (n, hot_keys, hot_draws, hot) in [
        (1000, 0.2, 0.8, 200),
        (7, 0.3, 0.5, 2),
        (10, 1.0, 0.3, 10),
        (10, 0.0, 0.9, 1),
        (50, 0.1, 1.0, 5),
        (50, 0.1, 0.0, 5),
    ] {
        check_small(&KeyLaw::Hotspot { hot_keys, hot_draws }, n, |rank| match rank < hot {
            true if hot == n => 1.0,
            true => hot_draws / hot as f64,
            false => (1.0 - hot_draws) / (n - hot) as f64,
        });
    }
}

#[test]
fn single_ranks_of_long_blocks_are_alike() {
    for law in
        [KeyLaw::Uniform, KeyLaw::Zipf { theta: 0.5 }, KeyLaw::Hotspot { hot_keys: 0.5, hot_draws: 0.5 }]
    {
        for n in [1_000_000_000, KEYS_MAX] {
            let (source, unscattered) = (dense(&law, n), unscattered(n));
            let mut seen = [0; 64];
            for cycle in 0..100 {
                for number in drawn(&source, &at(cycle), 1000) {
                    let rank = unscattered(number);
                    seen[(rank % 64) as usize] += u64::from(rank > 100_000);
                }
            }
            chi_square::check(&format!("low bits of {law:?} of {n}"), &seen, &[1.0; 64]);
        }
    }
}

#[test]
fn sequential_leaves_no_key_out() {
    let source = dense(&KeyLaw::Sequential, 10);
    let cycles: Vec<_> = (0..4).map(|cycle| drawn(&source, &at(cycle), 4)).collect();
    assert_eq!(cycles, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5]]);
    assert_eq!(drawn(&source, &at(u64::MAX), 12)[..2], [((u128::from(u64::MAX) * 12) % 10) as u64, 1]);
}

fn laws() -> Vec<KeyLaw> {
    vec![
        KeyLaw::Uniform,
        KeyLaw::Zipf { theta: 0.99 },
        KeyLaw::Hotspot { hot_keys: 0.1, hot_draws: 0.9 },
        KeyLaw::Latest { theta: 0.9 },
    ]
}

#[test]
fn keys_are_a_function_of_their_seed_and_the_cycle() {
    let seeds = Seeds::new(11);
    assert!(seeds.keys != seeds.sizes && seeds.sizes != seeds.arrivals && seeds != Seeds::new(12));
    for law in laws() {
        let source = |seeds: Seeds| {
            let mut source = KeySource::new(&law, ONE_MILLION, &seeds).unwrap();
            source.fresh(0.1).unwrap();
            source
        };
        let all = |seeds: Seeds, order: &mut dyn Iterator<Item = u64>| {
            let source = source(seeds);
            let mut all: Vec<_> = order.map(|cycle| (cycle, drawn(&source, &at(cycle), 50))).collect();
            all.sort();
            all
        };
        let forth = all(seeds, &mut (0..40));
        assert_eq!(forth, all(seeds, &mut (0..40).rev()), "{law:?}");
        assert_eq!(forth, all(Seeds { sizes: 1, arrivals: 2, ..seeds }, &mut (0..40)), "{law:?}");
        let others = all(Seeds { keys: 1, ..seeds }, &mut (0..40));
        assert!(forth.iter().zip(&others).all(|(a, b)| a.1 != b.1), "{law:?}");
        let distinct: HashSet<_> = forth.iter().map(|(_, keys)| keys).collect();
        assert_eq!(distinct.len(), 40, "{law:?}: cycles differ");
        let source = source(seeds);
        let mut longer = vec![1, 2, 3];
        source.fill(&at(3), 80, &mut longer).unwrap();
        assert_eq!((&longer[..3], &longer[3..53]), (&[1, 2, 3][..], &forth[3].1[..]), "{law:?}");
        assert_ne!(drawn(&source, &At { draw: 1, ..at(3) }, 50), forth[3].1, "{law:?}: draws differ");
        assert!(drawn(&source, &at(3), 0).is_empty());
    }
}

#[test]
fn spreads_tell_the_same_numbers_in_other_bits() {
    let numbers = drawn(&dense(&KeyLaw::Uniform, KEYS_MAX), &at(1), 1000);
    for spread in [Spread::Scrambled, Spread::Dense, Spread::Shifted(20), Spread::Shifted(40)] {
        let mut source = KeySource::new(&KeyLaw::Uniform, KEYS_MAX, &Seeds::new(5)).unwrap();
        source.spread(spread);
        let keys: Vec<u64> = numbers.iter().map(|&n| source.key(n)).collect();
        assert_eq!(drawn(&source, &at(1), 1000), keys, "{spread:?}");
        let distinct: HashSet<u64> =
            (0..100_000).chain(KEYS_MAX - 100_000..KEYS_MAX).map(|n| source.key(n)).collect();
        assert_eq!(distinct.len(), 200_000, "{spread:?}");
    }
    let mut source = dense(&KeyLaw::Uniform, 10);
    assert_eq!((source.key(3), source.keys()), (3, 10));
    source.spread(Spread::Shifted(20));
    assert_eq!(source.key(3), 3 << 20);
}

#[test]
fn drift_moves_a_share_of_the_ranks_and_only_between_epochs() {
    const EVERY: Duration = Duration::from_millis(300);
    for (law, share) in [(KeyLaw::Uniform, 0.1), (KeyLaw::Uniform, 0.0), (KeyLaw::Uniform, 1.0)] {
        let still = dense(&law, ONE_MILLION);
        let mut moving = still.clone();
        moving.drift(share, EVERY).unwrap();
        let keys = |source: &KeySource, now| drawn(source, &At { now, ..at(9) }, 50_000);
        let mut before = keys(&still, Duration::ZERO);
        for epoch in 0..12 {
            let now = keys(&moving, EVERY * epoch);
            assert_eq!(now, keys(&moving, EVERY * (epoch + 1) - Duration::from_nanos(1)), "within an epoch");
            let moved = before.iter().zip(&now).filter(|(a, b)| a != b).count() as f64 / 50_000.0;
            let expected = if epoch == 0 { 0.0 } else { share };
            assert!((moved - expected).abs() < 0.01, "{share}, epoch {epoch}: {moved} moved");
            before = now;
        }
    }
    // The law stays: as many distinct keys, and as frequent.
    let mut source = dense(&KeyLaw::Zipf { theta: 1.2 }, 1000);
    let counts = |source: &KeySource, now| {
        let mut counts = vec![0; 1000];
        drawn(source, &At { now, ..at(1) }, 20_000).iter().for_each(|&key| counts[key as usize] += 1);
        counts
    };
    let still = counts(&source, Duration::ZERO);
    source.drift(0.5, EVERY).unwrap();
    let (mut sorted, mut moved) = (still.clone(), counts(&source, EVERY * 7));
    assert_ne!(still, moved);
    sorted.sort_unstable();
    moved.sort_unstable();
    assert_eq!(sorted, moved);
}

#[test]
fn fresh_keys_are_new_every_time() {
    const KEYS: usize = 300;
    for (law, share) in laws().into_iter().chain([KeyLaw::Sequential]).zip([0.0, 1.0, 0.3, 0.05, 0.5]) {
        let plain = dense(&law, ONE_MILLION);
        let mut source = plain.clone();
        source.fresh(share).unwrap();
        let (mut seen, mut fresh) = (HashSet::new(), 0);
        let cycles = (0..100).chain([FRESH_CYCLES_MAX - 1]);
        for at in cycles.flat_map(|cycle| [0, 1, FRESH_DRAWS_MAX - 1].map(|draw| At { draw, ..at(cycle) })) {
            let known = drawn(&plain, &at, KEYS);
            for (key, known) in drawn(&source, &at, KEYS).into_iter().zip(known) {
                if key != known {
                    assert!(key >= 1 << 63 && key > source.newest(at.cycle), "{key} of {law:?}");
                    assert!(seen.insert(key), "{key} of {law:?} twice");
                    fresh += 1;
                }
            }
        }
        let (draws, fresh) = ((303 * KEYS) as f64, f64::from(fresh));
        let spread = (draws * share * (1.0 - share)).sqrt();
        assert!((fresh - draws * share).abs() <= 5.0 * spread, "{law:?}: {fresh} fresh of {draws}");
        for beyond in [at(FRESH_CYCLES_MAX), At { draw: FRESH_DRAWS_MAX, ..at(0) }] {
            let mut out = vec![1];
            assert_eq!(source.fill(&beyond, 1, &mut out).is_err(), share > 0.0);
            assert_eq!(source.fill(&at(0), FRESH_KEYS_MAX + 1, &mut out).is_err(), share > 0.0);
            assert!(share == 0.0 || out == [1]);
        }
    }
}

#[test]
fn traces_are_sent_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.txt");
    std::fs::write(&path, "5 6 7\n8\n").unwrap();
    let mut source = KeySource::new(&KeyLaw::Trace(path.clone()), 10, &Seeds::new(1)).unwrap();
    assert_eq!((source.request_keys(&at(0)), source.request_keys(&at(3))), (Some(3), Some(1)));
    assert_eq!((drawn(&source, &at(0), 3), drawn(&source, &at(3), 2)), (vec![5, 6, 7], vec![8, 5]));
    source.fresh(1.0).unwrap();
    assert!(drawn(&source, &at(0), 3).iter().all(|&key| key > 8));
    assert_eq!(dense(&KeyLaw::Uniform, 3).request_keys(&at(0)), None);
    std::fs::write(&path, "5\nsix\n").unwrap();
    let error = KeySource::new(&KeyLaw::Trace(path), 10, &Seeds::new(1)).unwrap_err().to_string();
    assert!(error.contains("keys.txt:2: \"six\" is not a key"), "{error}");
}

#[test]
fn impossible_sources_are_refused() {
    for (law, keys, message) in [
        (KeyLaw::Uniform, 0, "0 keys: there must be 1 to 1099511627776"),
        (KeyLaw::Uniform, KEYS_MAX + 1, "there must be 1 to"),
        (KeyLaw::Zipf { theta: -0.1 }, 5, "theta is -0.1: it must be from 0 to 4"),
        (KeyLaw::Zipf { theta: f64::NAN }, 5, "theta is NaN"),
        (KeyLaw::Latest { theta: 5.0 }, 5, "theta is 5"),
        (KeyLaw::Hotspot { hot_keys: 1.1, hot_draws: 0.5 }, 5, "hot_keys is 1.1"),
        (KeyLaw::Hotspot { hot_keys: 0.1, hot_draws: -0.5 }, 5, "hot_draws is -0.5"),
        (KeyLaw::Trace(PathBuf::from("/nowhere/keys")), 5, "cannot read the trace /nowhere/keys"),
    ] {
        let error = KeySource::new(&law, keys, &Seeds::new(1)).unwrap_err().to_string();
        assert!(error.contains(message), "{law:?}: {error}");
    }
    let mut source = dense(&KeyLaw::Uniform, 10);
    let second = Duration::from_secs(1);
    for (result, message) in [
        (source.drift(1.5, second), "drift is 1.5: it must be from 0 to 1"),
        (source.drift(0.5, Duration::ZERO), "the time between drifts is 0: it must be more than 0 s"),
        (source.fresh(-1.0), "fresh is -1"),
        (source.grow(f64::NAN), "growth per cycle is NaN"),
        (dense(&KeyLaw::Sequential, 10).drift(0.5, second), "keys of the law sequential do not drift"),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
