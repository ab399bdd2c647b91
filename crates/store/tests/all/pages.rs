//! The change stream in pages: a copy that takes them equals the table after every drain, whatever happens between two
//! pages.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sanderling_store::{
    ChangePage, Dtype, Eviction, FollowOptions, Packing, PushScale, StoreError, StreamPlace, Table,
    TableConfig, Writes,
};

use crate::changes::{Bits, DIM, Replica, Step, bits, config, export, run, step};

/// A subscriber that takes pages: its rows, and those of an export under way.
#[derive(Default)]
struct Follower {
    place: StreamPlace,
    rows: BTreeMap<u64, Bits>,
    exported: BTreeMap<u64, Bits>,
    restarts: usize,
}

fn options(keys: usize, keys_kept: usize) -> FollowOptions {
    FollowOptions { fresh: Duration::ZERO, keys, keys_kept }
}

impl Follower {
    /// Takes a page; begins anew if it is too late, as `None` tells.
    fn take(&mut self, t: &Table, options: &FollowOptions) -> Option<ChangePage> {
        let is_export = self.place.since == 0;
        let rows = if is_export { &mut self.exported } else { &mut self.rows };
        let mut passed = Vec::new();
        let taken = t.follow_changes(
            self.place,
            options,
            |_| true,
            |key, row| {
                passed.push(key);
                match row {
                    None => _ = rows.remove(&key),
                    Some(row) => {
                        assert_eq!(row.key, key);
                        let header = [row.frequency, row.last_use, row.version];
                        rows.insert(key, bits(header, row.weights.iter().chain(row.state)));
                    }
                }
            },
        );
        assert!(passed.len() <= options.keys);
        passed.sort_unstable();
        assert!(passed.windows(2).all(|pair| pair[0] < pair[1]), "a key comes twice");
        match taken {
            Ok(page) => {
                self.place = page.next;
                if is_export && self.place.since != 0 {
                    self.rows = std::mem::take(&mut self.exported);
                }
                Some(page)
            }
            Err(StoreError::StreamTooLate { .. }) => {
                let restarts = self.restarts + 1;
                *self = Follower { restarts, ..Follower::default() };
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Takes pages until a drain that began now has ended.
    fn catch_up(&mut self, t: &Table, options: &FollowOptions) {
        // What is under way began earlier.
        while self.place.since != self.place.until || self.place.since == 0 {
            self.take(t, options);
        }
        let begun = Instant::now();
        loop {
            let passed = begun.elapsed();
            let Some(page) = self.take(t, options) else { continue };
            let is_end = page.next.since == page.next.until && page.next.since != 0;
            // Another subscriber may have begun the drain earlier.
            if is_end && !page.has_more && page.age <= passed {
                return;
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Turn {
    Table(Step),
    Begin,
    Page { follower: usize, keys: usize },
    CatchUp { follower: usize, keys: usize },
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        8 => step().prop_map(Turn::Table),
        1 => Just(Turn::Begin),
        6 => (0..4_usize, 1..400_usize).prop_map(|(follower, keys)| Turn::Page { follower, keys }),
        2 => (0..4_usize, 1..400_usize).prop_map(|(follower, keys)| Turn::CatchUp { follower, keys }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 48 }, ..ProptestConfig::default() })]

    /// Followers of any age beside subscribers that drain, with room for few or many keys of past epochs.
    #[test]
    fn a_copy_that_takes_pages_is_the_table(
        turns in prop::collection::vec(turn(), 1..120),
        copy_on_write in any::<bool>(),
        half in any::<bool>(),
        eviction in 0..3_usize,
        keys_max in prop_oneof![Just(0), Just(300), Just(1 << 20)],
    ) {
        let eviction = [Eviction::Never, Eviction::Clock, Eviction::Age { pushes: 5 }][eviction];
        let writes = if copy_on_write { Writes::CopyOnWrite } else { Writes::InPlace };
        let dtype = if half { Dtype::Bf16 } else { Dtype::F32 };
        let t = Table::new(config(writes, eviction, dtype, Packing::Fast)).unwrap();
        let (mut replicas, mut followers): (Vec<Replica>, _) = (Vec::new(), vec![Follower::default()]);
        for turn in &turns {
            match *turn {
                Turn::Table(ref step) => run(&t, step, &mut replicas, keys_max),
                Turn::Begin => followers.push(Follower::default()),
                Turn::Page { follower, keys } => {
                    let at = follower % followers.len();
                    followers[at].take(&t, &options(keys, keys_max));
                }
                Turn::CatchUp { follower, keys } => {
                    let at = follower % followers.len();
                    followers[at].catch_up(&t, &options(keys, keys_max));
                    prop_assert!(followers[at].rows == export(&t), "rows differ");
                }
            }
        }
        for follower in &mut followers {
            follower.catch_up(&t, &options(100, keys_max));
            prop_assert!(follower.rows == export(&t), "rows differ");
        }
    }
}

/// Followers share a drain that is fresh enough; an old follower is not too late while few keys change often.
#[test]
fn drains_are_shared_and_their_keys_merged() {
    let config = config(Writes::InPlace, Eviction::Never, Dtype::F32, Packing::Fast);
    let t = Table::new(TableConfig { budget_bytes: None, ..config }).unwrap();
    let push = |first: u64, keys: u64| {
        let keys: Vec<u64> = (first..first + keys).collect();
        t.push(&keys, &vec![0.5; keys.len() * DIM], PushScale::default()).unwrap();
    };
    push(0, 1_000);
    let (mut one, mut other, mut old) = (Follower::default(), Follower::default(), Follower::default());
    let own = options(100, 1_000);
    [&mut one, &mut other, &mut old].into_iter().for_each(|follower| follower.catch_up(&t, &own));
    push(500, 10);
    one.catch_up(&t, &own);
    push(600, 10);
    let long = FollowOptions { fresh: Duration::from_secs(3_600), ..own };
    let page = other.take(&t, &long).unwrap();
    // It gets the drain of the other one, and not what has changed since.
    assert_eq!(page.next, one.place);
    assert!(other.rows == one.rows);
    let again = other.take(&t, &long).unwrap();
    assert_eq!((again.next, again.has_more), (page.next, false));
    // 400 keys change in each of 50 epochs, ten times as many as are kept.
    for _ in 0..50 {
        push(0, 400);
        one.catch_up(&t, &own);
    }
    old.catch_up(&t, &own);
    assert_eq!(old.restarts, 0);
    assert!(old.rows == export(&t));
    // Each epoch has other keys: an old follower is too late, and gets all rows.
    for first in 0..50 {
        push(1_000 * first, 400);
        other.catch_up(&t, &own);
    }
    one.catch_up(&t, &own);
    assert_eq!(one.restarts, 1);
    assert!(one.rows == export(&t));
}

/// Places that no page has given, and a table without a subscriber.
#[test]
fn places_of_others_are_too_late() {
    let t = Table::new(config(Writes::InPlace, Eviction::Never, Dtype::F32, Packing::Fast)).unwrap();
    let take = |since, until, cursor| {
        let place = StreamPlace { since, until, cursor };
        let taken = t.follow_changes(place, &options(10, 100), |_| true, |_, _| {});
        assert!(matches!(taken, Err(StoreError::StreamTooLate { .. })), "{place:?}: {taken:?}");
    };
    take(5, 5, 0);
    let begun =
        t.follow_changes(StreamPlace::default(), &options(10, 100), |_| true, |_, _| {}).unwrap().next;
    assert_eq!((begun.since, begun.cursor), (begun.until, 0), "an empty table is exported at once");
    take(begun.since - 1, begun.since - 1, 0);
    take(begun.since, begun.since + 1, 7);
    take(u64::MAX, u64::MAX, u64::MAX);
    t.clear();
    take(begun.since, begun.until, 0);
}
