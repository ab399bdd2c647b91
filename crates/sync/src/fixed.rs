//! Gradients as whole multiples of a power of two. Their sums are exact, so that neither the order in which samples come
//! nor how they were shared out to workers can be seen in them. Knows no worker.

/// One contribution, or a sum, that the unit does not fit.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "a gradient of {gradient:e} is {}, for sums of multiples of 2^{unit_log2} in 64 bits", if gradient.is_nan() { "no number" } else { "too large" }
)]
pub struct OutOfRange {
    /// The gradient with which it was noticed.
    pub gradient: f32,
    /// The unit.
    pub unit_log2: i8,
}

/// The unit of sums: 2 to a power. A gradient is rounded to a multiple of it once, when it is added; a sum may be up to
/// 2^63 units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed {
    unit_log2: i8,
}

impl Default for Fixed {
    /// 2^-40: sums up to 8 million, and a gradient of 1e-5 keeps 24 bits.
    fn default() -> Fixed {
        Fixed { unit_log2: -40 }
    }
}

/// 2 to a power, exactly.
pub(crate) fn power_of_two(exponent: i8) -> f64 {
    f64::from_bits(((1023 + i64::from(exponent)) as u64) << 52)
}

/// Contributions below this can be added to a sum with nothing else to look at but its overflow.
const LIMIT: f64 = (1_u64 << 62) as f64;

impl Fixed {
    /// Multiples of 2 to this power.
    #[must_use]
    pub fn new(unit_log2: i8) -> Fixed {
        Fixed { unit_log2 }
    }

    /// The power.
    #[must_use]
    pub fn unit_log2(self) -> i8 {
        self.unit_log2
    }

    /// Adds gradients to sums, one to each. After an error the sums are of no use.
    pub fn add(self, sums: &mut [i64], gradients: &[f32]) -> Result<(), OutOfRange> {
        assert_eq!(sums.len(), gradients.len(), "a sum per gradient");
        let mut adding = self.adding();
        sums.iter_mut().zip(gradients).for_each(|(sum, &gradient)| adding.add(sum, gradient));
        adding.end()
    }

    /// The same one by one.
    #[must_use]
    pub fn adding(self) -> Adding {
        // 2^128 is none of a f64's problems.
        Adding { per_unit: 1.0 / power_of_two(self.unit_log2), unit_log2: self.unit_log2, refused: None }
    }
}

/// Adds gradients to sums wherever these are.
#[derive(Debug)]
pub struct Adding {
    per_unit: f64,
    unit_log2: i8,
    /// The first gradient that did not fit.
    refused: Option<f32>,
}

/// Added to a smaller number, and taken away from the bits of the result, it leaves that number as an integer, rounded as
/// additions are: to the nearest, ties to even. Not every machine has an instruction for it.
const ROUNDING: f64 = 1.5 * (1_u64 << 52) as f64;
/// What is below this in absolute value can be rounded in that way.
const ROUNDING_LIMIT: f64 = (1_u64 << 51) as f64;

impl Adding {
    /// Adds a gradient to a sum.
    #[inline(always)]
    pub fn add(&mut self, sum: &mut i64, gradient: f32) {
        let units = f64::from(gradient) * self.per_unit;
        let whole = if units.abs() < ROUNDING_LIMIT {
            (units + ROUNDING).to_bits().wrapping_sub(ROUNDING.to_bits()) as i64
        } else {
            self.large(units, gradient)
        };
        let (added, overflows) = sum.overflowing_add(whole);
        if overflows {
            self.refuse(gradient);
        }
        *sum = added;
    }

    #[cold]
    fn large(&mut self, units: f64, gradient: f32) -> i64 {
        // False for NaN.
        if units.abs() < LIMIT {
            return units.round_ties_even() as i64;
        }
        self.refuse(gradient);
        0
    }

    #[cold]
    fn refuse(&mut self, gradient: f32) {
        self.refused.get_or_insert(gradient);
    }

    /// Whether all fitted. After an error the sums are of no use.
    pub fn end(self) -> Result<(), OutOfRange> {
        let Adding { unit_log2, refused, .. } = self;
        refused.map_or(Ok(()), |gradient| Err(OutOfRange { gradient, unit_log2 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_any_order_and_what_does_not_fit_is_an_error() {
        let values = [0.1_f32, -3.0e-9, 7.0, 1.0e-12, -7.1, f32::MIN_POSITIVE, 1.0e6];
        let fixed = Fixed::default();
        let sum = |values: &mut dyn Iterator<Item = f32>| {
            let mut sum = [0];
            values.for_each(|value| fixed.add(&mut sum, &[value]).expect("in range"));
            sum[0]
        };
        let expected = sum(&mut values.iter().copied());
        assert_eq!(sum(&mut values.iter().rev().copied()), expected);
        assert_eq!(sum(&mut values[3..].iter().copied()) + sum(&mut values[..3].iter().copied()), expected);
        let exact: f64 = values.iter().map(|&value| f64::from(value)).sum();
        assert!((expected as f64 * power_of_two(-40) - exact).abs() < 1e-9);
        // Whole multiples, ties to the even one, however large.
        for (unit_log2, gradient) in
            [(0, 0.5_f32), (0, 1.5), (0, -2.5), (0, 3.4), (0, -1.0e17), (-20, 3.0e9), (-40, -0.1)]
        {
            let mut sums = [0];
            Fixed::new(unit_log2).add(&mut sums, &[gradient]).expect("in range");
            let units = f64::from(gradient) / power_of_two(unit_log2);
            assert_eq!(sums[0], units.round_ties_even() as i64, "{gradient} of 2^{unit_log2}");
        }

        for (unit_log2, gradients, is_good) in [
            (-40, &[4.0e6_f32, 4.0e6][..], true),
            (-40, &[5.0e6, 5.0e6], false),
            (-40, &[f32::NAN], false),
            (-40, &[f32::INFINITY], false),
            (-128, &[1.0], false),
            (127, &[f32::MAX], true),
            (0, &[-1.0e18, -1.0e18], true),
        ] {
            let mut sums = [0];
            let fixed = Fixed::new(unit_log2);
            let added = gradients.iter().try_for_each(|&gradient| fixed.add(&mut sums, &[gradient]));
            assert_eq!(added.is_ok(), is_good, "{unit_log2} {gradients:?} {sums:?}");
        }
    }
}
