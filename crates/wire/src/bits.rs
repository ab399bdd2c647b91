//! A set of positions as one bit each, in 64-bit words, such as the absent keys of a request.

/// Bits `0..len`, bit `i` in word `i / 64` at `i % 64`; the bits after `len` are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits<'a> {
    words: &'a [u64],
    len: usize,
}

impl<'a> Bits<'a> {
    /// `None`: the number of words does not fit, or bits after `len` are set.
    #[must_use]
    pub fn new(words: &'a [u64], len: usize) -> Option<Bits<'a>> {
        let beyond = match (words.last(), len % 64) {
            (Some(last), bits @ 1..) => last >> bits,
            _ => 0,
        };
        (words.len() == len.div_ceil(64) && beyond == 0).then_some(Bits { words, len })
    }

    /// Number of positions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no positions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the position is in the set.
    #[must_use]
    pub fn get(&self, at: usize) -> bool {
        at < self.len && self.words[at / 64] >> (at % 64) & 1 == 1
    }

    /// Number of positions in the set.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The positions in the set, ascending.
    pub fn positions(&self) -> impl Iterator<Item = usize> + 'a {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let rest = |word: &u64| Some(word & word.wrapping_sub(1)).filter(|&rest| rest != 0);
            std::iter::successors(Some(word).filter(|&word| word != 0), rest)
                .map(move |word| at * 64 + word.trailing_zeros() as usize)
        })
    }

    pub(crate) fn words(&self) -> &'a [u64] {
        self.words
    }
}

/// Adds a position to the set.
pub fn set_bit(words: &mut [u64], at: usize) {
    words[at / 64] |= 1 << (at % 64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_that_were_set() {
        for (len, set) in [
            (0_usize, vec![]),
            (1, vec![0]),
            (64, vec![0, 63]),
            (65, vec![64]),
            (200, vec![3, 63, 64, 65, 127, 128, 199]),
        ] {
            let mut words = vec![0; len.div_ceil(64)];
            set.iter().for_each(|&at| set_bit(&mut words, at));
            let bits = Bits::new(&words, len).expect("fits");
            assert_eq!(bits.positions().collect::<Vec<_>>(), set);
            assert_eq!(bits.count(), set.len());
            assert!((0..len + 70).all(|at| bits.get(at) == set.contains(&at)));
        }
    }

    #[test]
    fn words_that_do_not_fit_are_refused() {
        assert_eq!(Bits::new(&[], 1), None);
        assert_eq!(Bits::new(&[0, 0], 64), None);
        assert_eq!(Bits::new(&[0b1000], 3), None);
        assert!(Bits::new(&[u64::MAX], 64).is_some());
    }
}
