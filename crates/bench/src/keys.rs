//! Which keys are asked for: how popular they are, and what their ids look like. Knows nothing of who asks.
//!
//! A key is a *number* below the number of keys; its *id* is the 64-bit key of the table. Popularity ranks are scattered
//! over the numbers by a bijection, so that the most frequent keys are not neighbours in memory.

use std::fmt;
use std::str::FromStr;

use sanderling_random::{Rng, Zipf, below, mix};
use serde::{Deserialize, Serialize};

/// Most keys; their numbers have 32 bits, and the shifted ids must stay apart.
pub const KEYS_MAX: u64 = 1 << 31;
/// Most keys of a bag; there is at least one.
pub const BAG_KEYS_MAX: u32 = 10;
/// Bits that [`Ids::Shifted`] leaves empty.
const SHIFT_BITS: u32 = 20;
/// Largest exponent: beyond it a handful of keys gets everything.
const EXPONENT_MAX: f64 = 4.0;

/// How popular the keys are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Dist {
    /// All alike.
    Uniform,
    /// The `r`-th most popular one is asked for with a probability proportional to `r^-exponent`.
    Zipf(f64),
}

impl fmt::Display for Dist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dist::Uniform => f.write_str("uniform"),
            Dist::Zipf(exponent) => write!(f, "zipf{exponent}"),
        }
    }
}

impl FromStr for Dist {
    type Err = String;

    /// `uniform`, or `zipf` and the exponent.
    fn from_str(name: &str) -> Result<Dist, String> {
        if name == "uniform" {
            return Ok(Dist::Uniform);
        }
        let exponent = name.strip_prefix("zipf").and_then(|exponent| exponent.parse::<f64>().ok());
        match exponent {
            Some(exponent) if (0.0..=EXPONENT_MAX).contains(&exponent) => Ok(Dist::Zipf(exponent)),
            _ => Err(format!(
                "expected uniform or zipf with an exponent up to {EXPONENT_MAX}, such as zipf0.99"
            )),
        }
    }
}

impl TryFrom<String> for Dist {
    type Error = String;

    fn try_from(name: String) -> Result<Dist, String> {
        name.parse()
    }
}

impl From<Dist> for String {
    fn from(dist: Dist) -> String {
        dist.to_string()
    }
}

/// Pattern of the 64-bit ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ids {
    /// Well-mixed bits, as of hashed strings.
    Random,
    /// 0, 1, 2, ...
    Dense,
    /// Dense ids shifted left by 20 bits, as in ids whose low bits hold another field.
    Shifted,
}

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ids::Random => "random",
            Ids::Dense => "dense",
            Ids::Shifted => "shifted",
        })
    }
}

impl FromStr for Ids {
    type Err = String;

    fn from_str(name: &str) -> Result<Ids, String> {
        [Ids::Random, Ids::Dense, Ids::Shifted]
            .into_iter()
            .find(|ids| ids.to_string() == name)
            .ok_or_else(|| "expected random, dense or shifted".to_string())
    }
}

impl Ids {
    /// The id of a key's number: another one for every number.
    #[inline]
    #[must_use]
    pub fn id(self, number: u32) -> u64 {
        match self {
            Ids::Random => mix(u64::from(number)),
            Ids::Dense => u64::from(number),
            Ids::Shifted => u64::from(number) << SHIFT_BITS,
        }
    }
}

/// Draws keys.
#[derive(Debug, Clone)]
pub struct Keys {
    keys: u32,
    ids: Ids,
    zipf: Option<Zipf>,
    /// Width of the bijection's domain: the power of two that the keys fit in.
    bits: u32,
}

impl Keys {
    /// `keys` of them, from 1 to [`KEYS_MAX`].
    #[must_use]
    pub fn new(keys: u32, dist: Dist, ids: Ids) -> Keys {
        let zipf = match dist {
            Dist::Uniform => None,
            Dist::Zipf(exponent) => Some(Zipf::new(u64::from(keys), exponent)),
        };
        Keys { keys, ids, zipf, bits: keys.next_power_of_two().ilog2().max(1) }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.keys
    }

    /// Are there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// The number of the next key asked for.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> u32 {
        match &self.zipf {
            None => ((u128::from(rng.next()) * u128::from(self.keys)) >> 64) as u32,
            Some(zipf) => self.scatter((zipf.rank(rng) - 1) as u32),
        }
    }

    /// Bags of 1 to [`BAG_KEYS_MAX`] keys, as the features of samples have them: their numbers are added to `numbers`,
    /// and where each begins and the last one ends, counted from the first number added, to `offsets`.
    pub fn draw_bags(&self, bags: usize, rng: &mut Rng, numbers: &mut Vec<u32>, offsets: &mut Vec<u32>) {
        let first = numbers.len();
        offsets.push(0);
        for _ in 0..bags {
            let keys = 1 + below(rng.next() as u32, BAG_KEYS_MAX);
            numbers.extend((0..keys).map(|_| self.draw(rng)));
            offsets.push((numbers.len() - first) as u32);
        }
    }

    /// The id of a number.
    #[inline]
    #[must_use]
    pub fn id(&self, number: u32) -> u64 {
        self.ids.id(number)
    }

    /// A bijection of `0..keys` that looks random: multiplications by odd constants and shifts, which are bijections of
    /// the next power of two, repeated until the result is a number (cycle walking, Black and Rogaway 2002).
    #[inline]
    fn scatter(&self, place: u32) -> u32 {
        let (mask, half) = (u32::MAX >> (u32::BITS - self.bits), self.bits.div_ceil(2));
        let mut number = place;
        loop {
            for odd in [0x9E37_79B1_u32, 0x85EB_CA77, 0xC2B2_AE3D] {
                number = number.wrapping_mul(odd).wrapping_add(odd >> 3) & mask;
                number ^= number >> half;
            }
            if number < self.keys {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_scattered_without_loss() {
        for keys in [1, 2, 3, 5, 64, 1000, 65_537, 300_000] {
            let all = Keys::new(keys, Dist::Zipf(0.9), Ids::Random);
            let mut seen = vec![false; keys as usize];
            let mut near = 0;
            for place in 0..keys {
                let number = all.scatter(place);
                assert!(!std::mem::replace(&mut seen[number as usize], true), "{number} of {keys} twice");
                near += u32::from(place > 0 && number.abs_diff(all.scatter(place - 1)) < 16);
            }
            // Neighbours in rank are neighbours in number as often as chance has it: 32 of all.
            assert!(keys < 1000 || near < keys / 10 + 64, "{near} of {keys} stay together");
        }
    }

    /// Chi-square of the numbers drawn against the exact law, through the bijection: the most popular keys one by one,
    /// the others by the octave of their rank.
    #[test]
    fn popularity_follows_the_law() {
        fn check(keys: u32, dist: Dist) {
            let all = Keys::new(keys, dist, Ids::Dense);
            let exponent = if let Dist::Zipf(exponent) = dist { exponent } else { 0.0 };
            let scattered = |place| if dist == Dist::Uniform { place } else { all.scatter(place) };
            let group = |place: u32| if place < 63 { place } else { 57 + (place + 1).ilog2() } as usize;
            let mut group_of = vec![0; keys as usize];
            let mut expected = vec![0.0; 128];
            for place in 0..keys {
                group_of[scattered(place) as usize] = group(place);
                expected[group(place)] += f64::from(place + 1).powf(-exponent);
            }
            let (total, draws) = (expected.iter().sum::<f64>(), 400_000);
            let (mut seen, mut rng) = (vec![0_u32; 128], Rng::new(3, 5, u64::from(keys)));
            (0..draws).for_each(|_| seen[group_of[all.draw(&mut rng) as usize]] += 1);
            let (mut chi2, mut groups) = (0.0, 0.0_f64);
            for (weight, &seen) in expected.iter().zip(&seen).filter(|(weight, _)| **weight > 0.0) {
                let expected = weight / total * f64::from(draws);
                chi2 += (f64::from(seen) - expected).powi(2) / expected;
                groups += 1.0;
            }
            let limit = groups + 5.0 * (2.0 * groups).sqrt();
            assert!(chi2 < limit, "{keys} keys, {dist}: chi-square {chi2:.1} over {groups} groups");
        }
        for dist in [Dist::Uniform, Dist::Zipf(0.9), Dist::Zipf(0.99), Dist::Zipf(1.0), Dist::Zipf(1.2)] {
            [1, 2, 1000, 1_000_000].into_iter().for_each(|keys| check(keys, dist));
        }
    }

    #[test]
    fn bags_have_one_to_ten_keys() {
        let (keys, mut rng) = (Keys::new(100, Dist::Uniform, Ids::Dense), Rng::new(1, 2, 3));
        let (mut numbers, mut offsets) = (vec![7], vec![9]);
        keys.draw_bags(2000, &mut rng, &mut numbers, &mut offsets);
        assert_eq!((numbers[0], offsets[0], offsets[1]), (7, 9, 0));
        assert_eq!((offsets.len(), offsets[2001] as usize), (2002, numbers.len() - 1));
        let mut seen = [0; 11];
        offsets[1..].windows(2).for_each(|bag| seen[(bag[1] - bag[0]) as usize] += 1);
        assert!(seen[0] == 0 && seen[1..].iter().all(|&bags| (120..280).contains(&bags)), "{seen:?}");
    }

    #[test]
    fn names_and_ids() {
        for (name, dist) in [
            ("uniform", Some(Dist::Uniform)),
            ("zipf0.9", Some(Dist::Zipf(0.9))),
            ("zipf0.99", Some(Dist::Zipf(0.99))),
            ("zipf", None),
            ("zipf-1", None),
            ("zipfNaN", None),
            ("normal", None),
        ] {
            assert_eq!(name.parse().ok(), dist, "{name}");
            assert!(dist.is_none_or(|dist| dist.to_string() == name));
        }
        for (name, id_of_3) in [("dense", 3), ("shifted", 3 << 20), ("random", mix(3))] {
            let ids: Ids = name.parse().unwrap();
            assert_eq!((ids.id(3), ids.to_string().as_str()), (id_of_3, name));
        }
        assert!("odd".parse::<Ids>().is_err());
        assert_eq!(Ids::Shifted.id(u32::MAX) >> SHIFT_BITS, u64::from(u32::MAX));
    }
}
