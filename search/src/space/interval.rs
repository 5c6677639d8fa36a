//! Interval arithmetic: the range of an expression while its names range over intervals.
//!
//! Sums, products and quotients of doubles are rounded monotonically, so results at the ends hold in between. Functions
//! of the mathematics library need not be monotonic, so their results are widened by more than their error.

use exmex::{BinOp, FlatEx, MakeOperators, Operator};
use std::num::ParseFloatError;
use std::str::FromStr;

/// Relative allowance for errors of library functions. They are within an ulp or two (2.2e-16).
const LIBRARY: f64 = 1e-13;

/// A closed interval of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct NumberInterval {
    pub low: f64,
    pub high: f64,
}

/// The interval of an unknown result: any number, or NaN.
const ANY: NumberInterval = NumberInterval { low: f64::NEG_INFINITY, high: f64::INFINITY };

/// An expression over intervals.
pub(super) type Expression = FlatEx<NumberInterval, Operators>;

impl NumberInterval {
    pub fn new(low: f64, high: f64) -> Self {
        if low.is_nan() || high.is_nan() || low > high { ANY } else { Self { low, high } }
    }

    pub fn point(value: f64) -> Self {
        Self::new(value, value)
    }

    /// The smallest interval that contains all numbers.
    pub fn hull_of(numbers: &[f64]) -> Self {
        if numbers.iter().any(|number| number.is_nan()) {
            return ANY;
        }
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        Self::new(least, numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max))
    }

    pub fn is_finite(self) -> bool {
        self.low.is_finite() && self.high.is_finite()
    }

    /// Widens both ends by a fraction of their absolute values.
    pub fn widen_relatively(self, by: f64) -> Self {
        Self::new(self.low - by * self.low.abs(), self.high + by * self.high.abs())
    }

    /// Applies a function that grows with its argument.
    fn map_growing(self, function: impl Fn(f64) -> f64) -> Self {
        Self::new(function(self.low), function(self.high))
    }

    fn map_corners(self, other: Self, function: impl Fn(f64, f64) -> f64) -> Self {
        let of = [(self.low, other.low), (self.low, other.high), (self.high, other.low), (self.high, other.high)];
        Self::hull_of(&of.map(|(a, b)| function(a, b)))
    }

    fn divide_by(self, divisor: Self) -> Self {
        if divisor.low <= 0.0 && divisor.high >= 0.0 { ANY } else { self.map_corners(divisor, |a, b| a / b) }
    }

    /// For a positive base, every power lies between those at the ends. For any other base, the result is unknown.
    fn raise_to(self, exponent: Self) -> Self {
        if self.low > 0.0 { self.map_corners(exponent, f64::powf).widen_relatively(LIBRARY) } else { ANY }
    }

    fn abs(self) -> Self {
        let ends = Self::hull_of(&[self.low.abs(), self.high.abs()]);
        if self.low <= 0.0 && self.high >= 0.0 { Self::new(0.0, ends.high) } else { ends }
    }

    fn logarithm(self, function: impl Fn(f64) -> f64) -> Self {
        if self.low > 0.0 { self.map_growing(function).widen_relatively(LIBRARY) } else { ANY }
    }
}

impl FromStr for NumberInterval {
    type Err = ParseFloatError;

    fn from_str(text: &str) -> Result<Self, ParseFloatError> {
        text.parse().map(Self::point)
    }
}

/// The operators of expressions that have an interval version, with the names and priorities of
/// [`exmex::FloatOpsFactory`].
#[derive(Debug, Clone)]
pub(super) struct Operators;

impl MakeOperators<NumberInterval> for Operators {
    fn make<'a>() -> Vec<Operator<'a, NumberInterval>> {
        let binary = |apply, prio, is_commutative| BinOp { apply, prio, is_commutative };
        vec![
            Operator::make_bin("^", binary(NumberInterval::raise_to, 4, false)),
            Operator::make_bin("*", binary(|a, b| a.map_corners(b, |a, b| a * b), 2, true)),
            Operator::make_bin("/", binary(NumberInterval::divide_by, 3, false)),
            Operator::make_bin_unary(
                "+",
                binary(|a, b| NumberInterval::new(a.low + b.low, a.high + b.high), 0, true),
                |a| a,
            ),
            Operator::make_bin_unary(
                "-",
                binary(|a, b| NumberInterval::new(a.low - b.high, a.high - b.low), 1, false),
                |a| NumberInterval::new(-a.high, -a.low),
            ),
            Operator::make_bin(
                "min",
                binary(|a, b| NumberInterval::new(a.low.min(b.low), a.high.min(b.high)), 0, false),
            ),
            Operator::make_bin(
                "max",
                binary(|a, b| NumberInterval::new(a.low.max(b.low), a.high.max(b.high)), 0, false),
            ),
            Operator::make_unary("abs", NumberInterval::abs),
            Operator::make_unary("floor", |a| a.map_growing(f64::floor)),
            Operator::make_unary("round", |a| a.map_growing(f64::round)),
            Operator::make_unary("ceil", |a| a.map_growing(f64::ceil)),
            Operator::make_unary("sqrt", |a| if a.low >= 0.0 { a.map_growing(f64::sqrt) } else { ANY }),
            Operator::make_unary("exp", |a| a.map_growing(f64::exp).widen_relatively(LIBRARY)),
            Operator::make_unary("ln", |a| a.logarithm(f64::ln)),
            Operator::make_unary("log2", |a| a.logarithm(f64::log2)),
            Operator::make_unary("log10", |a| a.logarithm(f64::log10)),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use exmex::Express;
    use proptest::prelude::*;

    const EXPRESSIONS: [&str; 12] = [
        "a * b / 16 + 2",
        "32000 * a / b / 3",
        "max(a, 2) - min(b, 7.5) * 0.1",
        "ceil(a / b) * floor(b)",
        "a ^ 2 / (b + 1)",
        "2 ^ (a / 10) - b",
        "sqrt(a) * log2(b) + ln(a + b)",
        "round(a / 3) * abs(a - b)",
        "-a * b",
        "(a - b) * (a - b)",
        "a - b - 2 * a",
        "exp(a / 20) / log10(b + 1)",
    ];

    proptest! {
        #[test]
        fn ends_hold_for_all_between(
            which in 0..EXPRESSIONS.len(), a in (0.5..40.0_f64, 0.0..30.0_f64), b in (0.5..40.0_f64, 0.0..30.0_f64),
            at in (0.0..=1.0_f64, 0.0..=1.0_f64),
        ) {
            let ends = Expression::parse(EXPRESSIONS[which]).unwrap();
            let exact: FlatEx<f64> = exmex::parse(EXPRESSIONS[which]).unwrap();
            let range = ends.eval(&[NumberInterval::new(a.0, a.0 + a.1), NumberInterval::new(b.0, b.0 + b.1)]).unwrap();
            let value = exact.eval(&[a.0 + at.0 * a.1, b.0 + at.1 * b.1]).unwrap();
            prop_assert!(range.is_finite());
            prop_assert!((range.low..=range.high).contains(&value), "{}: {value} outside {range:?}", EXPRESSIONS[which]);
            let here = ends.eval(&[NumberInterval::point(a.0), NumberInterval::point(b.0)]).unwrap();
            let value = exact.eval(&[a.0, b.0]).unwrap();
            prop_assert!((here.low..=here.high).contains(&value) && here.high - here.low <= 1e-9 * value.abs().max(1.0));
        }
    }

    #[test]
    fn what_has_no_ends_is_anything() {
        let of = |text: &str, a: NumberInterval| Expression::parse(text).unwrap().eval(&[a]).unwrap();
        assert_eq!(of("1 / a", NumberInterval::new(-1.0, 1.0)), ANY);
        assert_eq!(of("ln(a)", NumberInterval::new(0.0, 1.0)), ANY);
        assert_eq!(of("0 * (1 / a)", NumberInterval::new(0.0, 1.0)), ANY);
        assert!(Expression::parse("sin(a)").is_err());
    }
}
