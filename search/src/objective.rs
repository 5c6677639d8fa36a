//! What a search over chips minimises, and against what its front is drawn.
//!
//! Every objective is a step's time, or its energy, times what a chip takes whatever runs on it. So a bound on the time is one on the objective.

use crate::space::Figures;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Objective {
    /// Tokens per second of the whole cluster.
    #[default]
    Throughput,
    /// The time of a step: the same designs in the same order.
    StepTime,
    /// Tokens per second and mm^2 of die.
    PerArea,
    /// Tokens per second and W of what the chips must be supplied with and cooled for: their power under the heaviest sustained load.
    PerWatt,
    /// Tokens per second and USD of the chips.
    PerDollar,
    /// Energy per token.
    EnergyPerToken,
}

/// Against what a front is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Axis {
    /// Die area.
    #[default]
    Area,
    /// Power under the heaviest sustained load.
    Power,
    /// What the chip costs to make.
    Cost,
    /// Energy of a step.
    Energy,
    /// Nothing: the best alone is looked for.
    None,
}

impl Objective {
    /// Every objective with its name.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("throughput", Self::Throughput),
        ("step-time", Self::StepTime),
        ("per-mm2", Self::PerArea),
        ("per-watt", Self::PerWatt),
        ("per-dollar", Self::PerDollar),
        ("energy-per-token", Self::EnergyPerToken),
    ];

    /// The factor between a step's seconds and what is minimised, of a chip; `None` where the chip has no such figure. Of energy per token there is
    /// none: a step's energy is minimised.
    #[must_use]
    pub fn factor(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::Throughput | Self::StepTime | Self::EnergyPerToken => Some(1.0),
            Self::PerArea => Some(figures.area.0),
            Self::PerWatt => Some(figures.peak_power.0),
            Self::PerDollar => figures.cost_usd,
        }
    }

    /// What people read for a value that is minimised; with its unit.
    #[must_use]
    pub fn shown(self, value: f64, scale: Scale) -> (f64, &'static str) {
        let Scale::Alone { devices, tokens } = scale else {
            let unit = match self {
                Self::Throughput | Self::StepTime => "times the reference's throughput",
                Self::PerArea => "times the reference's throughput, per mm²",
                Self::PerWatt => "times the reference's throughput, per W",
                Self::PerDollar => "times the reference's throughput, per USD",
                Self::EnergyPerToken => "times the reference's tokens per J",
            };
            return (1.0 / value, unit);
        };
        match self {
            Self::Throughput => (tokens / value, "tokens/s"),
            Self::StepTime => (value, "s per step"),
            Self::PerArea => (tokens / value / devices, "tokens/s per mm²"),
            Self::PerWatt => (tokens / value / devices, "tokens/s per W"),
            Self::PerDollar => (tokens / value / devices, "tokens/s per USD"),
            Self::EnergyPerToken => (value / tokens, "J per token"),
        }
    }

    /// The axis of the front where none is asked for: the front of speed against area is the search's main answer, of another objective the best is.
    #[must_use]
    pub fn usual_axis(self) -> Axis {
        if matches!(self, Self::Throughput | Self::StepTime) { Axis::Area } else { Axis::None }
    }
}

/// What a value is of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// One model alone.
    Alone {
        /// The cluster's.
        devices: f64,
        /// Of a step.
        tokens: f64,
    },
    /// Several models, each over what the reference does.
    Reference,
}

/// How the measures of several models make one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// The weighted geometric mean of their rates over the reference's.
    #[default]
    Geomean,
    /// The weighted arithmetic mean of the same.
    Mean,
}

impl Over {
    /// Every way with its name.
    pub const NAMES: [(&'static str, Self); 2] = [("geomean", Self::Geomean), ("mean", Self::Mean)];
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, over)| over == self).map_or("geomean", |(name, _)| name);
        f.write_str(name)
    }
}

/// What of a model's measure (a step's seconds, or its joules) is held against what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term {
    /// Its share among the models; the shares of all add up to one.
    pub share: f64,
    /// The measure of the reference.
    pub reference: f64,
}

impl Over {
    /// One over the mean of the rates over the reference's: with shares w, measures s and the reference's r, of the geometric mean the product of
    /// (s / r)^w, of the arithmetic one 1 / (sum of w r / s). What is minimised. Grows with every measure.
    #[must_use]
    pub fn value(self, terms: &[Term], measures: &[f64]) -> f64 {
        let pairs = terms.iter().zip(measures);
        match self {
            Self::Geomean => pairs.map(|(term, measure)| term.share * (measure / term.reference).ln()).sum::<f64>().exp(),
            Self::Mean => 1.0 / pairs.map(|(term, measure)| term.share * term.reference / measure).sum::<f64>(),
        }
    }

    /// The measure of one of the models from which on the value is at least `value` where the others have (at least) these: infinite where there is
    /// none.
    #[must_use]
    pub fn reached(self, terms: &[Term], measures: &[f64], of: usize, value: f64) -> f64 {
        let others = || terms.iter().zip(measures).enumerate().filter(|(at, _)| *at != of).map(|(_, pair)| pair);
        let own = terms[of];
        match self {
            Self::Geomean => {
                let rest: f64 = others().map(|(term, measure)| term.share * (measure / term.reference).ln()).sum();
                own.reference * ((value.ln() - rest) / own.share).exp()
            }
            Self::Mean => {
                let rest: f64 = others().map(|(term, measure)| term.share * term.reference / measure).sum();
                let left = 1.0 / value - rest;
                if left > 0.0 { own.share * own.reference / left } else { f64::INFINITY }
            }
        }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, objective)| objective == self).map_or("throughput", |(name, _)| name);
        f.write_str(name)
    }
}

impl Axis {
    /// Every axis with its name.
    pub const NAMES: [(&'static str, Self); 5] =
        [("area", Self::Area), ("power", Self::Power), ("cost", Self::Cost), ("energy", Self::Energy), ("none", Self::None)];

    /// What a chip costs along the axis; of energy, which a plan decides, and of nothing there is none. Infinite where the chip has no price.
    #[must_use]
    pub fn of(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::Area => Some(figures.area.0),
            Self::Power => Some(figures.peak_power.0),
            Self::Cost => Some(figures.cost_usd.unwrap_or(f64::INFINITY)),
            Self::Energy | Self::None => None,
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, axis)| axis == self).map_or("none", |(name, _)| name);
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_value_is_reached_where_it_is_said_to_be(
            shares in prop::collection::vec(0.1..1.0_f64, 1..4), references in prop::collection::vec(0.1..10.0_f64, 4),
            measures in prop::collection::vec(0.01..100.0_f64, 4), of in 0..3_usize, times in 0.2..5.0_f64,
        ) {
            let (all, of) = (shares.iter().sum::<f64>(), of % shares.len());
            let terms: Vec<Term> = shares.iter().zip(&references).map(|(share, &reference)| Term { share: share / all, reference }).collect();
            let measures = &measures[..terms.len()];
            for over in [Over::Geomean, Over::Mean] {
                let value = over.value(&terms, measures);
                let wanted = value * times;
                let reached = over.reached(&terms, measures, of, wanted);
                let mut there = measures.to_vec();
                there[of] = reached;
                if reached.is_finite() {
                    prop_assert!((over.value(&terms, &there) / wanted - 1.0).abs() < 1e-9);
                } else {
                    // However slow this one is, the others keep the mean of the rates up.
                    there[of] = 1e300;
                    prop_assert!(over.value(&terms, &there) <= wanted * (1.0 + 1e-9));
                }
                let mut slower = measures.to_vec();
                slower[of] *= 1.5;
                prop_assert!(over.value(&terms, &slower) > value);
            }
        }
    }

    #[test]
    fn equal_to_the_reference_is_one_and_twice_as_fast_a_half() {
        let terms = [Term { share: 0.25, reference: 3.0 }, Term { share: 0.75, reference: 8.0 }];
        for over in [Over::Geomean, Over::Mean] {
            assert!((over.value(&terms, &[3.0, 8.0]) - 1.0).abs() < 1e-12);
            assert!((over.value(&terms, &[1.5, 4.0]) - 0.5).abs() < 1e-12);
        }
        // One four times as fast: 4^0.25 and 0.25 x 4 + 0.75.
        assert!((Over::Geomean.value(&terms, &[0.75, 8.0]) - 1.0 / 2.0_f64.sqrt()).abs() < 1e-12);
        assert!((Over::Mean.value(&terms, &[0.75, 8.0]) - 1.0 / 1.75).abs() < 1e-12);
    }
}
