//! Sorts the keys of a request into a few parts, such as servers or shards of a table. Knows not what a part is.

/// Up to this many parts have their counts in one register: the next key may need a count that was just written, and a
/// load from memory would wait for that store.
const COUNTED_TOGETHER: usize = (u64::BITS / COUNT_BITS) as usize;
const COUNT_BITS: u32 = 16;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// The positions of each part's keys in the request; reused from request to request.
#[derive(Debug, Default)]
pub struct Scatter {
    parts: Vec<Part>,
}

#[derive(Debug, Default)]
struct Part {
    /// Long enough for the whole request, so that no key checks for room.
    positions: Vec<u32>,
    len: usize,
}

impl Scatter {
    /// Assigns each key to one of `parts` parts; the keys of a part keep their order.
    pub fn deal(&mut self, parts: usize, keys: &[u64], part_of: impl Fn(u64) -> usize) {
        self.parts.resize_with(parts, Part::default);
        for Part { positions, len } in &mut self.parts {
            *len = 0;
            if positions.len() < keys.len() {
                positions.resize(keys.len(), 0);
            }
        }
        let scatter = self.parts.as_mut_slice();
        if parts > COUNTED_TOGETHER {
            for (position, &key) in (0..).zip(keys) {
                let Part { positions, len } = &mut scatter[part_of(key)];
                positions[*len] = position;
                *len += 1;
            }
            return;
        }
        let mut position = 0;
        for keys in keys.chunks(COUNT_MASK as usize) {
            let mut counts = 0_u64;
            for &key in keys {
                let number = part_of(key);
                let shift = number as u32 * COUNT_BITS;
                let Part { positions, len } = &mut scatter[number];
                positions[*len + (counts >> shift & COUNT_MASK) as usize] = position;
                counts += 1 << shift;
                position += 1;
            }
            for Part { len, .. } in &mut *scatter {
                *len += (counts & COUNT_MASK) as usize;
                counts >>= COUNT_BITS;
            }
        }
    }

    /// Positions of a part's keys in the request.
    #[must_use]
    pub fn part(&self, number: usize) -> &[u32] {
        let Part { positions, len } = &self.parts[number];
        &positions[..*len]
    }

    /// Allocated bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.positions.capacity() * size_of::<u32>()).sum()
    }
}

/// Replaces the contents of `into` with the values at these positions, `dim` each.
#[inline]
pub fn gather<T: Copy>(positions: &[u32], dim: usize, values: &[T], into: &mut Vec<T>) {
    into.clear();
    if dim == 1 {
        into.extend(positions.iter().map(|&at| values[at as usize]));
    } else {
        positions.iter().for_each(|&at| into.extend_from_slice(&values[at as usize * dim..][..dim]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_goes_to_its_part_in_order() {
        let mut scatter = Scatter::default();
        for parts in [1, 2, 3, 4, 5, 7] {
            // More than are counted in one word, then fewer; to all parts, then to the last alone.
            for (len, spread) in [(200_000, true), (0, true), (70_000, false), (9, true), (1000, true)] {
                let keys: Vec<u64> = (0..len).map(|at| at * 31 % 1009).collect();
                let part_of = |key: u64| if spread { key as usize % parts } else { parts - 1 };
                scatter.deal(parts, &keys, part_of);
                let mut seen = 0;
                for part in 0..parts {
                    let expected = (0..len as u32).filter(|&at| part_of(keys[at as usize]) == part);
                    assert!(expected.eq(scatter.part(part).iter().copied()), "{part} of {parts}, {len} keys");
                    seen += scatter.part(part).len();
                }
                assert_eq!(seen, keys.len());
            }
        }
    }

    #[test]
    fn values_stand_in_the_order_of_positions() {
        let mut found = vec![9; 5];
        gather(&[2, 0], 1, &[10, 11, 12], &mut found);
        assert_eq!(found, [12, 10]);
        gather(&[2, 0], 2, &[10, 11, 20, 21, 30, 31], &mut found);
        assert_eq!(found, [30, 31, 10, 11]);
        gather(&[], 2, &[10, 11], &mut found);
        assert!(found.is_empty());
    }
}
