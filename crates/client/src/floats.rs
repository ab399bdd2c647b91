//! Floats that start at a cache line, so that rows of 16 or more floats do not touch one line more than they fill.
//! Minibatches keep rows, gradients and pooled rows in them.

use std::ops::{Deref, DerefMut};

const LINE_BYTES: usize = 64;
const LINE_FLOATS: usize = LINE_BYTES / size_of::<f32>();

/// As many floats as were asked for last, in memory that is kept.
#[derive(Debug, Default)]
pub struct Floats {
    memory: Vec<f32>,
    start: usize,
    length: usize,
}

impl Floats {
    /// As many as that, of any values.
    pub fn resize(&mut self, length: usize) {
        if self.memory.len() < length + LINE_FLOATS {
            // The next minibatch may be a little larger.
            self.memory = vec![0.0; length + length / 8 + LINE_FLOATS];
            // Where the memory is not to be had at a line's start, anywhere in it is right, too.
            let start = self.memory.as_ptr().align_offset(LINE_BYTES);
            self.start = if start < LINE_FLOATS { start } else { 0 };
        }
        self.length = length;
    }

    /// As many as that, the first of which are those that there were; new ones are of any values.
    pub fn extend(&mut self, length: usize) {
        if self.memory.len() < length + LINE_FLOATS {
            let mut longer = Floats::default();
            longer.resize(length);
            longer[..self.length].copy_from_slice(self);
            *self = longer;
        }
        self.length = length;
    }

    /// Keeps the first of them.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Memory behind them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.capacity() * size_of::<f32>()
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[self.start..][..self.length]
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..][..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_start_at_a_line_and_are_as_many_as_asked_for() {
        let mut floats = Floats::default();
        assert!(floats.is_empty());
        for length in [1, 1000, 3, 0, 1001, 70_000] {
            floats.resize(length);
            assert_eq!((floats.len(), floats.as_ptr() as usize % LINE_BYTES), (length, 0));
            floats.fill(1.5);
        }
        let before = floats.as_ptr();
        floats.resize(69_999);
        floats.truncate(5);
        floats.truncate(6);
        assert_eq!((floats.as_ptr(), &floats[..]), (before, &[1.5; 5][..]), "memory is kept");
        for length in [7, 100_000, 300_000] {
            floats.extend(length);
            assert_eq!((floats.len(), floats.as_ptr() as usize % LINE_BYTES), (length, 0));
            assert_eq!(floats[..5], [1.5; 5], "what there was is kept");
        }
        assert!(floats.bytes() >= 300_000 * 4);
    }
}
