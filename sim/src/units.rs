//! Units as types: a quantity's unit is part of its type and is converted once, where a file is read.
//!
//! Counts ([`Bytes`], [`Flops`], [`Cycles`]) are integers; rates, times, energies and areas are `f64`.
//! Only the products and quotients that mean something exist: `Bytes / BytesPerSecond = Seconds`,
//! `Cycles / Hertz = Seconds`; `Cycles + Seconds` does not compile.
//!
//! Integer counts saturate instead of wrapping. A saturated size fits no memory and a saturated amount of work fits no
//! time, so an absurd input ends as "does not fit" and not as a small number.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

macro_rules! count {
    ($(#[$doc:meta])* $name:ident, $int:ty, $suffix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $int);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0);

            /// The count as a float, for ratios and rates.
            #[must_use]
            pub fn as_f64(self) -> f64 {
                self.0 as f64
            }

            /// Returns the difference, or zero if `other` is larger.
            #[must_use]
            pub fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Mul<$int> for $name {
            type Output = Self;
            fn mul(self, factor: $int) -> Self {
                Self(self.0.saturating_mul(factor))
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} {}", self.0, $suffix)
            }
        }
    };
}

macro_rules! measure {
    ($(#[$doc:meta])* $name:ident, $suffix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub f64);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0.0);

            /// Returns the larger of two.
            #[must_use]
            pub fn max(self, other: Self) -> Self {
                Self(self.0.max(other.0))
            }

            /// Returns the smaller of two.
            #[must_use]
            pub fn min(self, other: Self) -> Self {
                Self(self.0.min(other.0))
            }

            /// True if the value is neither NaN nor infinite.
            #[must_use]
            pub fn is_finite(self) -> bool {
                self.0.is_finite()
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl Mul<f64> for $name {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }

        impl Div<f64> for $name {
            type Output = Self;
            fn div(self, divisor: f64) -> Self {
                Self(self.0 / divisor)
            }
        }

        impl Div for $name {
            type Output = f64;
            fn div(self, other: Self) -> f64 {
                self.0 / other.0
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match f.precision() {
                    Some(p) => write!(f, "{:.*} {}", p, self.0, $suffix),
                    None => write!(f, "{} {}", self.0, $suffix),
                }
            }
        }
    };
}

count!(
    /// A number of bytes.
    Bytes, u64, "B"
);
count!(
    /// A number of floating-point operations; a multiply-accumulate counts as two. It has 128 bits: one step of a
    /// 175-billion-parameter model at a batch of 4096 sequences already needs half of the range of 64 bits.
    Flops, u128, "FLOP"
);
count!(
    /// A number of clock cycles. Cycles stay inside [`crate::cost`]; all other code uses [`Seconds`].
    Cycles, u64, "cycles"
);

measure!(
    /// A time in seconds.
    Seconds, "s"
);
measure!(
    /// An energy in joules.
    Joules, "J"
);
measure!(
    /// A power in watts.
    Watts, "W"
);
measure!(
    /// An area in square millimetres.
    SquareMillimeters, "mm^2"
);
measure!(
    /// A frequency in hertz.
    Hertz, "Hz"
);
measure!(
    /// A bandwidth in bytes per second.
    BytesPerSecond, "B/s"
);
measure!(
    /// A rate of work in floating-point operations per second.
    FlopsPerSecond, "FLOP/s"
);

impl Bytes {
    /// Converts from binary gigabytes (GiB, 2^30 bytes).
    #[must_use]
    pub fn from_gib(gib: f64) -> Self {
        Self((gib * 1_073_741_824.0).round() as u64)
    }

    /// Returns the size in binary gigabytes (GiB, 2^30 bytes).
    #[must_use]
    pub fn gib(self) -> f64 {
        self.as_f64() / 1_073_741_824.0
    }
}

impl Seconds {
    /// Converts from microseconds.
    #[must_use]
    pub fn from_micros(us: f64) -> Self {
        Self(us * 1e-6)
    }

    /// Returns the time in microseconds.
    #[must_use]
    pub fn micros(self) -> f64 {
        self.0 * 1e6
    }
}

impl Div<BytesPerSecond> for Bytes {
    type Output = Seconds;
    fn div(self, rate: BytesPerSecond) -> Seconds {
        Seconds(self.as_f64() / rate.0)
    }
}

impl Div<FlopsPerSecond> for Flops {
    type Output = Seconds;
    fn div(self, rate: FlopsPerSecond) -> Seconds {
        Seconds(self.as_f64() / rate.0)
    }
}

impl Div<Hertz> for Cycles {
    type Output = Seconds;
    fn div(self, clock: Hertz) -> Seconds {
        Seconds(self.as_f64() / clock.0)
    }
}

impl Div<Seconds> for Joules {
    type Output = Watts;
    fn div(self, time: Seconds) -> Watts {
        Watts(self.0 / time.0)
    }
}

impl Mul<Seconds> for Watts {
    type Output = Joules;
    fn mul(self, time: Seconds) -> Joules {
        Joules(self.0 * time.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_have_the_right_unit() {
        assert_eq!(Bytes(1000) / BytesPerSecond(500.0), Seconds(2.0));
        assert_eq!(Cycles(1_050_000_000) / Hertz(1.05e9), Seconds(1.0));
        assert_eq!(Watts(100.0) * Seconds(2.0), Joules(200.0));
    }

    #[test]
    fn counts_saturate() {
        assert_eq!(Bytes(u64::MAX) + Bytes(1), Bytes(u64::MAX));
        assert_eq!(Bytes(u64::MAX) * 2, Bytes(u64::MAX));
        assert_eq!(Bytes(1).saturating_sub(Bytes(2)), Bytes::ZERO);
    }

    #[test]
    fn gib_is_binary() {
        assert_eq!(Bytes::from_gib(32.0), Bytes(34_359_738_368));
    }
}
