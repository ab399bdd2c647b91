//! Places the two parts of a row: its weights, which pulls read, and its header and optimizer state, which only changes
//! need.
//!
//! In one piece, the state follows the weights. Split, all weights lie in one region and all headers and states in
//! another: both take fewer bytes, and a push touches two pages instead of one.
//! [Numbers](../../../../docs/design/0033-rows-in-two-parts.md).

use crate::Packing;

/// Words of a row's header: key low, key high, frequency, last use, version; stored as the bits of f32 values.
pub(crate) const HEADER_WORDS: usize = 5;
/// Words per cache line.
pub(crate) const LINE_WORDS: usize = 16;

/// Positions of a table's rows in the slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Words of the weights.
    pub(crate) weights: usize,
    /// Words of header and state.
    pub(crate) rest: usize,
    /// Words from the weights of one row to those of the next.
    pub(crate) weights_stride: usize,
    /// Words from the header of one row to that of the next.
    pub(crate) rest_stride: usize,
    /// Weights and rest lie in two regions.
    pub(crate) is_split: bool,
}

/// Cache lines to prefetch before a use of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowLines {
    /// Lines from the first weight on.
    pub(crate) first: usize,
    /// Lines from the header on, if that lies in another region.
    pub(crate) rest: usize,
    /// The last words of both parts, for parts that may begin anywhere in a line.
    pub(crate) last_words: Option<(usize, usize)>,
}

/// Rows in a line of rows whose stride is one word: positions repeat after as many rows.
const PERIOD: usize = LINE_WORDS;

/// Words from one part to the next, so that neither a part nor its first `hot` words touch more cache lines than
/// necessary.
fn aligned_stride(words: usize, hot: usize) -> usize {
    // Parts start at multiples of a power of two, up to a line, which must hold the words beyond the last full line.
    let hangs_over = |words: usize| (words - 1) % LINE_WORDS + 1;
    let grain = hangs_over(words).max(hangs_over(hot.max(1))).next_power_of_two();
    words.next_multiple_of(grain)
}

/// Cache lines of the first `words` words of [`PERIOD`] parts, which may start anywhere in a line.
fn lines(words: usize, stride: usize) -> usize {
    let lines = |at: usize| (at % LINE_WORDS + words).div_ceil(LINE_WORDS);
    (0..PERIOD).map(|row| lines(row * stride)).sum()
}

impl Placement {
    /// Chooses the placement of rows with `weights` words of weights and `rest` words of header and state.
    pub(crate) fn new(weights: usize, rest: usize, packing: Packing) -> Placement {
        let one_piece = |stride| Placement {
            weights,
            rest,
            weights_stride: stride,
            rest_stride: stride,
            is_split: false,
        };
        let split = |weights_stride, rest_stride| Placement {
            weights,
            rest,
            weights_stride,
            rest_stride,
            is_split: true,
        };
        let fast = one_piece(aligned_stride(weights + rest, weights));
        if packing == Packing::Fast {
            return fast;
        }
        let aligned = split(aligned_stride(weights, weights), rest);
        let all = [fast, one_piece(weights + rest), aligned, split(weights, rest)];
        let lines = |placement: &Placement| placement.pull_lines() + placement.push_lines();
        // The first of equal ones.
        all.into_iter().min_by_key(|placement| (placement.words(), lines(placement))).unwrap_or(fast)
    }

    /// Words of a row in memory.
    pub(crate) fn words(&self) -> usize {
        if self.is_split { self.weights_stride + self.rest_stride } else { self.weights_stride }
    }

    /// Bytes of a row in memory.
    pub(crate) fn row_bytes(&self) -> usize {
        self.words() * size_of::<u32>()
    }

    /// Cache lines that pulls of [`PERIOD`] rows touch.
    fn pull_lines(&self) -> usize {
        lines(self.weights, self.weights_stride)
    }

    /// Cache lines that pushes to [`PERIOD`] rows touch.
    fn push_lines(&self) -> usize {
        if self.is_split {
            self.pull_lines() + lines(self.rest, self.rest_stride)
        } else {
            lines(self.weights + self.rest, self.weights_stride)
        }
    }

    /// Cache lines of a row that a pull and a push touch, averaged over all rows.
    #[cfg(any(test, feature = "bench"))]
    pub(crate) fn lines_per_row(&self) -> (f64, f64) {
        let average = |lines: usize| lines as f64 / PERIOD as f64;
        (average(self.pull_lines()), average(self.push_lines()))
    }

    /// The lines to prefetch of whole rows, or of weights alone.
    #[inline(always)]
    pub(crate) fn prefetched(&self, whole: bool) -> RowLines {
        let (first, rest) = match (whole, self.is_split) {
            (false, _) => (self.weights, 0),
            (true, false) => (self.weights + self.rest, 0),
            (true, true) => (self.weights, self.rest),
        };
        // Otherwise the lines from the first word on are all.
        let is_aligned = |words: usize, stride: usize| {
            words == 0 || lines(words, stride) == PERIOD * words.div_ceil(LINE_WORDS)
        };
        let all = is_aligned(first, self.weights_stride) && is_aligned(rest, self.rest_stride);
        let last_words = (!all).then(|| (first.max(1) - 1, rest.max(1) - 1));
        RowLines { first: first.div_ceil(LINE_WORDS).max(1), rest: rest.div_ceil(LINE_WORDS), last_words }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn aligned_parts_straddle_no_more_lines_than_they_must() {
        let lines = |words: usize, at: usize| (at + words).div_ceil(LINE_WORDS) - at / LINE_WORDS;
        for words in 1..100 {
            for hot in 1..=words {
                let stride = aligned_stride(words, hot);
                assert!(stride >= words && stride < words + LINE_WORDS);
                for row in 0..64 {
                    assert_eq!(lines(words, row * stride), lines(words, 0), "{words} {hot}");
                    assert_eq!(lines(hot, row * stride), lines(hot, 0), "{words} {hot}");
                }
            }
        }
        assert_eq!((aligned_stride(8, 1), aligned_stride(69, 32)), (8, 80));
    }

    /// Fast packing touches the fewest lines that a row can. Compact packing takes the bytes of the words.
    #[test]
    fn fast_costs_no_line_and_compact_no_byte() {
        for weights in 1..80 {
            for state in [0, 1, weights, 2 * weights] {
                let rest = HEADER_WORDS + state;
                let fast = Placement::new(weights, rest, Packing::Fast);
                assert_eq!(fast.pull_lines(), PERIOD * weights.div_ceil(LINE_WORDS), "{weights} {rest}");
                assert_eq!(
                    fast.push_lines(),
                    PERIOD * (weights + rest).div_ceil(LINE_WORDS),
                    "{weights} {rest}"
                );
                let compact = Placement::new(weights, rest, Packing::Compact);
                assert_eq!(compact.words(), weights + rest, "{weights} {rest}");
            }
        }
    }

    /// Every line of a row is prefetched.
    #[test]
    fn prefetched_lines_are_all_lines() {
        for weights in 1..70 {
            for (state, packing) in [(0, Packing::Fast), (1, Packing::Compact), (weights, Packing::Compact)] {
                let placement = Placement::new(weights, HEADER_WORDS + state, packing);
                for whole in [false, true] {
                    let RowLines { first, rest, last_words } = placement.prefetched(whole);
                    // Aligned parts need no further line.
                    assert!(last_words.is_none() || packing == Packing::Compact, "{weights} {state} {whole}");
                    for row in 0..PERIOD {
                        let covers = |at: usize, words: usize, count: usize, last: Option<usize>| {
                            let asked = (0..count)
                                .map(|line| at + line * LINE_WORDS)
                                .chain(last.map(|last| at + last));
                            let asked: Vec<usize> = asked.map(|word| word / LINE_WORDS).collect();
                            (at..at + words).all(|word| asked.contains(&(word / LINE_WORDS)))
                        };
                        let Placement { weights, rest: words, weights_stride, rest_stride, is_split } =
                            placement;
                        let contiguous = if whole && !is_split { weights + words } else { weights };
                        assert!(covers(
                            row * weights_stride,
                            contiguous,
                            first,
                            last_words.map(|(last, _)| last)
                        ));
                        if whole && is_split {
                            assert!(covers(row * rest_stride, words, rest, last_words.map(|(_, last)| last)));
                        }
                    }
                }
            }
        }
    }
}
