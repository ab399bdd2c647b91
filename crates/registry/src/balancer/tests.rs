//! Tests of the balancer with loads that are given, and over hours of a load that shifts.

use std::collections::BTreeSet;

use sanderling_replica::{Move, SlotSpan, SlotWork};

use super::*;
use crate::group_load::LoadWindow;

fn load(keys_per_s: f64, row_millions: u64) -> GroupLoad {
    GroupLoad { keys_per_s, rows: row_millions * 1_000_000, ..GroupLoad::default() }
}

/// Steps every 10 seconds with the same loads; the second at which it gives advice.
fn advised(
    balancer: &mut Balancer,
    from_s: u64,
    placement: &Placement,
    ready: &[u32],
    loads: &[GroupLoad],
) -> Option<(u64, Advice)> {
    let loads: BTreeMap<u32, GroupLoad> = (0..).zip(loads.iter().cloned()).collect();
    (from_s..from_s + 600).step_by(10).find_map(|now_s| {
        let advice = balancer.step(now_s, placement, &[0, 1], ready, &loads)?;
        Some((now_s, advice))
    })
}

#[test]
fn it_begins_after_a_minute_and_only_where_moves_help() {
    let placement = Placement::even(8, 2);
    let uneven = [load(6000.0, 100), load(2000.0, 100)];
    let hot = GroupLoad { heavy: vec![(2, 5990.0)], ..uneven[0].clone() };
    let full = GroupLoad { table_bytes: 9, table_budget_bytes: 10, ..uneven[1].clone() };
    for (name, loads, ready, expected) in [
        ("loads are alike", [load(5000.0, 100), load(5700.0, 100)], &[0, 1][..], None),
        ("one has more load", uneven.clone(), &[0, 1], Some(1)),
        ("few keys are asked for, and rows are alike", [load(60.0, 100), load(20.0, 100)], &[0, 1], None),
        ("one has more rows", [load(60.0, 300), load(20.0, 100)], &[0, 1], Some(1)),
        ("one slot has the load", [hot, uneven[1].clone()], &[0, 1], None),
        ("the other has no memory", [uneven[0].clone(), full], &[0, 1], None),
        ("the other is not in sync", uneven.clone(), &[0], None),
    ] {
        let found = advised(&mut Balancer::default(), 1000, &placement, ready, &loads);
        let slots = found.map(|(at_s, advice)| {
            assert_eq!((at_s, advice.most.0), (1060, 0), "{name}");
            advice.moves.iter().map(|one| one.slots.len()).sum::<usize>()
        });
        assert_eq!(slots, expected, "{name}");
    }
    // The load of a group is not known.
    assert_eq!(advised(&mut Balancer::default(), 0, &placement, &[0, 1], &uneven[..1]), None);
}

#[test]
fn groups_rest_after_moves() {
    let placement = Placement::even(8, 2);
    let uneven = [load(6000.0, 100), load(2000.0, 100)];
    let mut moving = placement.clone();
    let slots = SlotSpan::of_slots(&[1]);
    moving.moves.push(Move::new(1, (0, 1), slots, Vec::new()));
    let mut balancer = Balancer::default();
    assert_eq!(advised(&mut balancer, 0, &moving, &[0, 1], &uneven), None);
    // The last look at the move was at 590 s.
    let (at_s, _) = advised(&mut balancer, 600, &placement, &[0, 1], &uneven).expect("it begins again");
    assert_eq!(at_s, 890);
}

const GROUPS: u32 = 4;
const SLOTS: u32 = 512;
const KEYS: usize = 100_000;
const KEYS_PER_S: f64 = 200_000.0;
const KEYS_PER_REQUEST: usize = 64;
const LOOK_S: u64 = 10;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below_one(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Keys per second of each slot: ranks of a Zipf distribution (exponent 0.8) fall on other slots in each hour.
fn slot_rates(random: &mut Random) -> Vec<f64> {
    let mut rates = vec![0.0; SLOTS as usize];
    for rank in 1..=KEYS {
        rates[(random.next() % u64::from(SLOTS)) as usize] += (rank as f64).powf(-0.8);
    }
    let sum: f64 = rates.iter().sum();
    rates.iter().map(|rate| rate / sum * KEYS_PER_S).collect()
}

/// Counts of the server of a group after 10 more seconds of this load.
fn work(work: &mut SlotWork, own: &[(u32, f64)], random: &mut Random) {
    let mut rate = 0.0;
    let up_to: Vec<f64> = own
        .iter()
        .map(|(_, of_slot)| {
            rate += of_slot;
            rate
        })
        .collect();
    let requests = (rate * LOOK_S as f64 / KEYS_PER_REQUEST as f64) as u64;
    let sampled = (0..requests / 200).filter(|_| random.below_one() < 0.2).count() as u64;
    work.keys.resize(SLOTS as usize, 0);
    for _ in 0..sampled * KEYS_PER_REQUEST as u64 {
        let at = random.below_one() * rate;
        let slot = own.get(up_to.partition_point(|up_to| *up_to <= at));
        slot.into_iter().for_each(|(slot, _)| work.keys[*slot as usize] += 1);
    }
    (work.requests, work.sampled) = (work.requests + requests, work.sampled + sampled);
}

#[test]
fn a_load_that_shifts_is_evened_out_without_moving_to_and_fro() {
    const HOURS: u64 = 10;
    let groups: Vec<u32> = (0..GROUPS).collect();
    let mut random = Random(7);
    let mut placement = Placement::even(SLOTS, GROUPS);
    let mut balancer = Balancer::default();
    let mut servers: Vec<(LoadWindow, SlotWork)> = groups.iter().map(|_| Default::default()).collect();
    let fair = 1.0 / f64::from(GROUPS);
    for hour in 0..HOURS {
        let rates = slot_rates(&mut random);
        let exact = Weights {
            load: rates.iter().map(|rate| rate / KEYS_PER_S).collect(),
            rows: Vec::new(),
            alike: 1.0,
        };
        let needed: usize =
            plan(&placement, &Sharing::of(&groups), &exact).iter().map(|one| one.slots.len()).sum();
        let (mut moved, mut distinct) = (0, BTreeSet::new());
        for now_s in (hour * 3600..(hour + 1) * 3600).step_by(LOOK_S as usize) {
            let of_slot = placement.groups();
            let mut loads = BTreeMap::new();
            for (&group, (window, counts)) in groups.iter().zip(&mut servers) {
                let own: Vec<(u32, f64)> = (0..SLOTS).map(|slot| (slot, rates[slot as usize])).collect();
                let own: Vec<_> =
                    own.into_iter().filter(|(slot, _)| of_slot[*slot as usize] == group).collect();
                work(counts, &own, &mut random);
                let rows = own.len() as u64 * 10_000;
                if let Some((keys_per_s, heavy)) = window.add(now_s * 1000, counts.clone()) {
                    loads.insert(group, GroupLoad { keys_per_s, heavy, rows, ..GroupLoad::default() });
                }
            }
            if let Some(one) = placement.moves.first().cloned() {
                placement = placement.committed(one.id).with_move(one.id, None);
            }
            let Some(advice) = balancer.step(now_s, &placement, &groups, &groups, &loads) else { continue };
            for (id, one) in (now_s * 100..).zip(&advice.moves) {
                moved += one.slots.len();
                distinct.extend(one.slots.iter().copied());
                let slots = SlotSpan::of_slots(&one.slots);
                placement.moves.push(Move::new(id, (one.from, one.to), slots, Vec::new()));
            }
        }
        assert!(placement.moves.is_empty(), "hour {hour}: it still moves slots");
        assert!(moved <= 2 * needed.max(4), "hour {hour}: {moved} slots moved, {needed} were needed");
        assert_eq!(distinct.len(), moved, "hour {hour}: a slot moved twice");
        let costs = costs(&placement, &groups, &exact);
        let most = costs.iter().copied().fold(0.0, f64::max);
        assert!(most <= fair * (COST_MAX + 0.05), "hour {hour}: {costs:?}");
    }
}
