//! Random numbers and zipf ranks for generated data and load, and hash mixers. It knows no feature and no row.
//!
//! The sampler is exact, but for the 32 bits that choices are made with, and needs about a thousand cells for any number
//! of ranks: ranks are grouped into blocks whose length grows with the rank, an alias table (Walker 1977, in Vose's
//! construction) picks a block by its upper bound, and a draw within the block is accepted by the ratio of its
//! probability to that bound, nearly always without computing a power.

/// xoshiro256++ (Blackman and Vigna 2019), seeded through splitmix64.
#[derive(Debug, Clone)]
pub struct Rng([u64; 4]);

impl Rng {
    /// One stream per `(seed, stream, chunk)`.
    #[must_use]
    pub fn new(seed: u64, stream: u64, chunk: u64) -> Self {
        let mut z = mix(mix(seed ^ mix(stream)).wrapping_add(chunk));
        Rng(std::array::from_fn(|_| {
            z = z.wrapping_add(SPLITMIX_STEP);
            mix(z)
        }))
    }

    /// 64 random bits.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "it never ends, so an Option would only be in the way")]
    pub fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Uniform in [0, 1) with 53 bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// The finalizer of splitmix64: a bijection of 64 bits that mixes them well.
#[inline]
#[must_use]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// From one state of splitmix64 to the next.
pub const SPLITMIX_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number that splitmix64 (Steele, Lea, Flood 2014) draws in state `n`: one to one.
#[inline]
#[must_use]
pub fn splitmix(n: u64) -> u64 {
    mix(n.wrapping_add(SPLITMIX_STEP))
}

/// A sequence of random numbers by splitmix64 (Steele, Lea, Flood 2014), for backoff and tests. Not for secrets.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// 64 random bits.
    #[expect(clippy::should_implement_trait, reason = "it never ends, so an Option would only be in the way")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(SPLITMIX_STEP);
        mix(self.0)
    }

    /// A number in `0..n`; `n` is at least 1.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// Maps 32 random bits to `0..n`.
#[inline]
#[must_use]
pub fn below(bits: u32, n: u32) -> u32 {
    ((u64::from(bits) * u64::from(n)) >> 32) as u32
}

/// A block has at most `start / BLOCKS_PER_OCTAVE` ranks (and one at least), so its ranks differ little in probability.
const BLOCKS_PER_OCTAVE: u64 = 32;
/// Most ranks of a [`Zipf`]: 54 random bits pick one within a block, which is then uneven by 2^-19 at most.
pub const ZIPF_RANKS_MAX: u64 = 1 << 40;

#[derive(Debug, Clone)]
struct Block {
    start: u64,
    len: u64,
    /// A draw with acceptance bits up to this is accepted for any rank of the block.
    sure: u32,
    amplitude: f32,
}

/// A bounded zipf law: draws ranks 1..=n with probability proportional to `rank^-exponent`.
#[derive(Debug, Clone)]
pub struct Zipf {
    exponent: f64,
    /// (threshold, alias) per cell.
    cells: Vec<(u32, u32)>,
    blocks: Vec<Block>,
}

impl Zipf {
    /// The law of `n` ranks, from 1 to [`ZIPF_RANKS_MAX`]; exponent 0 is the uniform one.
    #[must_use]
    pub fn new(n: u64, exponent: f64) -> Self {
        Self::with_amplitudes(n, exponent, |_| 1.0)
    }

    /// A law whose blocks each carry an amplitude, computed from the first rank.
    #[must_use]
    pub fn with_amplitudes(n: u64, exponent: f64, amplitude: impl Fn(u64) -> f32) -> Self {
        assert!((1..=ZIPF_RANKS_MAX).contains(&n), "{n} ranks");
        let (mut blocks, mut bounds) = (Vec::new(), Vec::new());
        let mut start = 1u64;
        while start <= n {
            let len = (start / BLOCKS_PER_OCTAVE).max(1).min(n - start + 1);
            let least = (start as f64 / (start + (len - 1)) as f64).powf(exponent);
            // The margin keeps the shortcut on the safe side of rounding in `draw`.
            let sure = if len == 1 { u32::MAX } else { ((least - 1e-9) * 2f64.powi(32)).max(0.0) as u32 };
            blocks.push(Block { start, len, sure, amplitude: amplitude(start) });
            bounds.push(len as f64 * (start as f64).powf(-exponent));
            start += len;
        }
        Zipf { exponent, cells: alias_table(&bounds), blocks }
    }

    /// Draws a rank.
    #[inline]
    pub fn rank(&self, rng: &mut Rng) -> u64 {
        self.draw(rng).0
    }

    /// Draws a rank; also returns the amplitude of its block.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> (u64, f32) {
        loop {
            let (pick, within) = (rng.next(), rng.next());
            // The bits left from picking a cell extend those that pick a rank, for long blocks.
            let scaled = (pick & 0xffff_ffff) * self.cells.len() as u64;
            let (cell, rest) = ((scaled >> 32) as u32, scaled & 0xffff_ffff);
            let (threshold, alias) = self.cells[cell as usize];
            let cell = if (pick >> 32) as u32 >= threshold { alias } else { cell };
            let block = &self.blocks[cell as usize];
            let offset = (u128::from(within << 32 | rest) * u128::from(block.len)) >> 64;
            let rank = block.start + offset as u64;
            let accept = (within >> 32) as u32;
            if accept <= block.sure || self.accept(block, rank, accept) {
                return (rank, block.amplitude);
            }
        }
    }

    #[cold]
    fn accept(&self, block: &Block, rank: u64, accept: u32) -> bool {
        f64::from(accept) < (block.start as f64 / rank as f64).powf(self.exponent) * 2f64.powi(32)
    }
}

/// Vose's alias method: cell `i` keeps itself when 32 random bits lie below its threshold, else yields its alias.
fn alias_table(weights: &[f64]) -> Vec<(u32, u32)> {
    let mean = weights.iter().sum::<f64>() / weights.len() as f64;
    let mut left: Vec<f64> = weights.iter().map(|w| w / mean).collect();
    // A cell that is never split aliases itself, so its threshold does not matter.
    let mut cells: Vec<(u32, u32)> = (0..weights.len() as u32).map(|i| (u32::MAX, i)).collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..left.len()).partition(|&i| left[i] < 1.0);
    while let (Some(&low), Some(&high)) = (small.last(), large.last()) {
        small.pop();
        cells[low] = ((left[low] * 2f64.powi(32)) as u32, high as u32);
        left[high] -= 1.0 - left[low];
        if left[high] < 1.0 {
            large.pop();
            small.push(high);
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_splitmix64() {
        let mut random = SplitMix64::new(1_234_567);
        // Published test vector of the reference implementation.
        assert_eq!(
            [(); 3].map(|()| random.next()),
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
        assert!((0..1000).all(|_| random.below(7) < 7));
    }

    /// Chi-square of `draws` ranks, grouped by octave and, below 64, one by one, against the exact law.
    fn check(n: u64, exponent: f64) {
        let zipf = Zipf::new(n, exponent);
        let group = |rank: u64| if rank < 64 { rank as usize } else { 58 + rank.ilog2() as usize };
        let mut expected = vec![0.0f64; 128];
        (1..=n).for_each(|rank| expected[group(rank)] += (rank as f64).powf(-exponent));
        let total: f64 = expected.iter().sum();
        let draws = 400_000;
        let mut seen = vec![0u32; 128];
        let mut rng = Rng::new(7, 1, n);
        for _ in 0..draws {
            let rank = zipf.rank(&mut rng);
            assert!((1..=n).contains(&rank));
            seen[group(rank)] += 1;
        }
        let (mut chi2, mut groups) = (0.0, 0.0);
        for (e, s) in expected.iter().zip(&seen) {
            let e = e / total * f64::from(draws);
            if e > 0.0 {
                chi2 += (f64::from(*s) - e).powi(2) / e;
                groups += 1.0;
            }
        }
        let limit: f64 = groups + 5.0 * f64::sqrt(2.0 * groups);
        assert!(chi2 < limit, "n {n}, exponent {exponent}: chi-square {chi2:.1} over {groups} groups");
    }

    #[test]
    fn ranks_follow_the_law() {
        for (n, exponent) in [
            (1, 1.1),
            (2, 1.1),
            (3, 0.0),
            (63, 1.0),
            (65, 2.0),
            (1000, 1.1),
            (500_000, 0.0),
            (3_000_000, 1.05),
            (10_000_000, 0.9),
            (10_000_000, 0.99),
        ] {
            check(n, exponent);
        }
    }
}
