//! What a search over chips minimises, and against what its front is drawn.
//!
//! Every objective is a step's time, or its energy, times what a chip takes whatever runs on it. So a bound on the time is one on the objective.

use crate::space::Figures;
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

    /// What people read for a value that is minimised, of a cluster of `devices` and steps of `tokens`; with its unit.
    #[must_use]
    pub fn shown(self, value: f64, devices: f64, tokens: f64) -> (f64, &'static str) {
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
