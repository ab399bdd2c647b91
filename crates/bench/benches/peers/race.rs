//! Fills all rivals with the same rows, checks that they give the same answers, and lets them take turns. Knows nothing
//! of who they are, but that the last word is about Sanderling.

use std::sync::Arc;

use sanderling_bench::store::FEATURES;
use sanderling_bench::{BenchError, Dist, Keys, Op, Passes, StoreOptions, interleave};
use sanderling_observe::Machine;
use sanderling_random::Rng;
use sanderling_store::{Absent, PushScale};
use serde::Serialize;

use super::rivals::{Rival, Slab, rivals};

/// Rows that are made and copied at once.
const LOAD_BATCH: usize = 4096;
/// Requests that all must answer alike before anything is measured.
const CHECKED: usize = 20;

/// All of it.
#[derive(Debug, Serialize)]
pub(crate) struct RaceReport {
    /// Where.
    pub(crate) machine: Machine,
    /// The options.
    pub(crate) options: StoreOptions,
    /// The rates of the contestants.
    pub(crate) results: Vec<RaceRow>,
}

/// One rival under one load.
#[derive(Debug, Serialize)]
pub(crate) struct RaceRow {
    /// `pull` or `pull_pooled`.
    pub(crate) op: Op,
    /// Popularity of the keys.
    pub(crate) dist: Dist,
    /// Threads.
    pub(crate) threads: usize,
    /// Its name.
    pub(crate) who: String,
    /// Keys in the map.
    pub(crate) keys: u64,
    /// Weights per row.
    pub(crate) dim: usize,
    /// Million keys per second, median of the rounds.
    pub(crate) mkeys_per_s: f64,
    /// How many times as fast Sanderling is: median of the rounds' ratios.
    pub(crate) sanderling_ratio: f64,
}

/// Measures those of these names under every load of the options.
pub(crate) fn run(options: &StoreOptions, names: &[&str]) -> Result<RaceReport, BenchError> {
    let (len, dim) = (options.keys as usize, options.dim);
    let table = options.table()?;
    let mut slab = Slab { dim, weights: vec![0.0; len * dim] };
    let mut gradients = vec![0.0; LOAD_BATCH * dim];
    for (chunk, weights) in slab.weights.chunks_mut(LOAD_BATCH * dim).enumerate() {
        let first = chunk * LOAD_BATCH;
        let ids: Vec<u64> =
            (first..first + weights.len() / dim).map(|row| options.ids.id(row as u32)).collect();
        let gradients = &mut gradients[..weights.len()];
        // No two rows nearby are alike, so that a wrong one is noticed.
        gradients.iter_mut().enumerate().for_each(|(at, g)| *g = ((first * dim + at) % 1009) as f32 * 1e-3);
        table.push_unique(&ids, &vec![1; ids.len()], gradients, PushScale::default())?;
        let absent_keys = table.pull(&ids, Absent::Zero, weights, None)?;
        if absent_keys > 0 {
            return Err(BenchError::Lost(absent_keys as u64));
        }
    }
    let ids = || -> Box<dyn Iterator<Item = u64>> {
        let ids = options.ids;
        Box::new((0..len as u32).map(move |row| ids.id(row)))
    };
    let all = rivals(names, &ids, &Arc::new(slab), &table);
    let mut results = Vec::new();
    for &dist in &options.dists {
        let keys = Keys::new(len as u32, dist, options.ids);
        check(options, &keys, &all)?;
        for op in [Op::Pull, Op::PullPooled] {
            let scene = Scene { options, keys: &keys, op, rivals: taking_part(&all, op) };
            for &threads in &options.threads {
                let mut workers: Vec<_> = (0..threads).map(|thread| Runner::new(&scene, thread)).collect();
                let measured = interleave(&mut workers, scene.rivals.len(), options.rounds, &mut || ());
                let sanderling = scene.rivals.iter().position(|rival| rival.name() == "sanderling");
                let sanderling = sanderling.map(|at| &measured[at]);
                results.extend(scene.rivals.iter().zip(&measured).map(|(rival, measured)| RaceRow {
                    op,
                    dist,
                    threads,
                    who: rival.name().to_string(),
                    keys: options.keys,
                    dim,
                    mkeys_per_s: measured.median(),
                    sanderling_ratio: sanderling.map_or(f64::NAN, |ours| ours.ratio(measured)),
                }));
            }
        }
    }
    Ok(RaceReport { machine: Machine::detect(), options: options.clone(), results })
}

fn taking_part<'a>(all: &'a [Box<dyn Rival + 'a>], op: Op) -> Vec<&'a dyn Rival> {
    let pools = |rival: &&dyn Rival| op == Op::Pull || rival.pull_pooled(&[], &[0], &mut []);
    all.iter().map(AsRef::as_ref).filter(pools).collect()
}

/// All give the same answers: the same bits, but for sums, which some add in another order.
fn check(options: &StoreOptions, keys: &Keys, all: &[Box<dyn Rival + '_>]) -> Result<(), BenchError> {
    for op in [Op::Pull, Op::PullPooled] {
        let scene = Scene { options, keys, op, rivals: taking_part(all, op) };
        let mut answers: Vec<Vec<f32>> = Vec::new();
        for at in 0..scene.rivals.len() {
            // Each from the start of the same stream.
            let mut runner = Runner::new(&scene, 0);
            runner.prepare(at);
            let mut answer = Vec::new();
            (0..CHECKED.min(runner.ends.len())).for_each(|request| {
                runner.out.fill(f32::NAN);
                let len = runner.request(at, request);
                answer.extend_from_slice(&runner.out[..len]);
            });
            answers.push(answer);
        }
        for (rival, answer) in scene.rivals.iter().zip(&answers) {
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * a.abs().max(1.0);
            if answer.len() != answers[0].len() || !answer.iter().zip(&answers[0]).all(close) {
                let (name, first) = (rival.name(), scene.rivals[0].name());
                return Err(BenchError::Options(format!("{op}: {name} and {first} give different rows")));
            }
        }
    }
    Ok(())
}

struct Scene<'a> {
    options: &'a StoreOptions,
    keys: &'a Keys,
    op: Op,
    rivals: Vec<&'a dyn Rival>,
}

/// One thread's requests, drawn fresh for every turn.
struct Runner<'a> {
    scene: &'a Scene<'a>,
    rng: Rng,
    numbers: Vec<u32>,
    ids: Vec<u64>,
    offsets: Vec<u32>,
    ends: Vec<usize>,
    out: Vec<f32>,
}

impl<'a> Runner<'a> {
    fn new(scene: &'a Scene<'a>, thread: usize) -> Runner<'a> {
        let StoreOptions { seed, dim, batch, samples, .. } = *scene.options;
        Runner {
            scene,
            rng: Rng::new(seed, thread as u64, 1),
            numbers: Vec::new(),
            ids: Vec::new(),
            offsets: Vec::new(),
            ends: Vec::new(),
            out: vec![0.0; batch.max(samples * FEATURES) * dim],
        }
    }

    /// Returns how much of `out` was written.
    fn request(&mut self, pass: usize, at: usize) -> usize {
        let (rival, dim) = (self.scene.rivals[pass], self.scene.options.dim);
        let keys = &self.ids[if at == 0 { 0 } else { self.ends[at - 1] }..self.ends[at]];
        if self.scene.op == Op::Pull {
            rival.pull(keys, &mut self.out[..keys.len() * dim]);
            return keys.len() * dim;
        }
        let bags = self.scene.options.samples * FEATURES;
        let offsets = &self.offsets[at * (bags + 1)..][..=bags];
        rival.pull_pooled(keys, offsets, &mut self.out[..bags * dim]);
        bags * dim
    }
}

impl Passes for Runner<'_> {
    fn prepare(&mut self, _pass: usize) {
        let Scene { options, keys, op, .. } = *self.scene;
        let wanted = options.batch * options.batches;
        [&mut self.numbers, &mut self.offsets].into_iter().for_each(Vec::clear);
        self.ends.clear();
        while self.ends.is_empty() || self.numbers.len() < wanted {
            if op == Op::Pull {
                self.numbers.extend((0..options.batch).map(|_| keys.draw(&mut self.rng)));
            } else {
                let bags = options.samples * FEATURES;
                keys.draw_bags(bags, &mut self.rng, &mut self.numbers, &mut self.offsets);
            }
            self.ends.push(self.numbers.len());
        }
        self.ids.clear();
        self.ids.extend(self.numbers.iter().map(|&number| keys.id(number)));
    }

    fn run(&mut self, pass: usize, lap: &mut dyn FnMut(u64, bool)) {
        for at in 0..self.ends.len() {
            self.request(pass, at);
            let first = if at == 0 { 0 } else { self.ends[at - 1] };
            lap((self.ends[at] - first) as u64, false);
        }
    }
}
