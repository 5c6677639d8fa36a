//! Fits a tier's physical scalars to measured collectives: how the numbers in the fabric files came about.

use super::fabric::{Fabric, Tier};
use crate::coordinate_search::coordinate_search;
pub use crate::grouped_errors::GroupError;
use crate::grouped_errors::Groups;
use crate::kernel::Collective;
use crate::units::{BytesPerSecond, Seconds};
use thiserror::Error;

/// One measured collective.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// What was run.
    pub collective: Collective,
    /// The measured time.
    pub time: Seconds,
    /// The group its error is averaged in (a data set and a size class); each group counts by its weight.
    pub group: String,
    /// Weight of the group in the fit: 1 over the error that is acceptable in it, for instance.
    pub weight: f64,
}

/// A fitted scalar.
#[derive(Debug, Clone, PartialEq)]
pub struct Scalar {
    /// Its key in the fabric file, unit included.
    pub key: &'static str,
    /// Its value before.
    pub before: f64,
    /// Its value after.
    pub after: f64,
}

/// What a fit found.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The fabric with the fitted scalars.
    pub fabric: Fabric,
    /// The scalars, in the order of the fabric file.
    pub scalars: Vec<Scalar>,
    /// The groups, sorted by name.
    pub groups: Vec<GroupError>,
}

/// A fit that cannot start.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum CalibrationError {
    /// Nothing to fit to.
    #[error("no measurement to fit fabric `{fabric}` to: give at least one row of it")]
    NoMeasurement {
        /// The fabric.
        fabric: String,
    },
    /// No such tier.
    #[error("fabric `{fabric}` has no tier {tier}: it has {tiers}; count from 0")]
    NoTier {
        /// The fabric.
        fabric: String,
        /// The tier asked for.
        tier: usize,
        /// Tiers it has.
        tiers: usize,
    },
    /// A measured time or weight is not a positive number.
    #[error("measurement {index} ({group}): {what} = {value}: must be a finite number above 0; mend or remove the row")]
    BadValue {
        /// Its position.
        index: usize,
        /// Its group.
        group: String,
        /// Which value.
        what: &'static str,
        /// The value given.
        value: f64,
    },
}

/// A scalar that can be fitted, in the unit of the fabric file; `get` is `None` where the tier does not have it.
struct Parameter {
    key: &'static str,
    /// Largest value; the smallest is 0 (exclusive for rates and fractions, which scale).
    max: f64,
    get: fn(&Fabric, usize) -> Option<f64>,
    set: fn(&mut Fabric, usize, f64),
}

fn tier(fabric: &Fabric, index: usize) -> &Tier {
    &fabric.tiers[index]
}

const LONGEST_US: f64 = 1e6;

const PARAMETERS: [Parameter; 10] = [
    Parameter {
        key: "launch_us",
        max: LONGEST_US,
        get: |f, _| Some(f.launch.micros()),
        set: |f, _, v| f.launch = Seconds::from_micros(v),
    },
    Parameter {
        key: "achieved_fraction",
        max: 1.0,
        get: |f, t| Some(tier(f, t).achieved_fraction),
        set: |f, t, v| f.tiers[t].achieved_fraction = v,
    },
    Parameter {
        key: "step_latency_us",
        max: LONGEST_US,
        get: |f, t| Some(tier(f, t).step.micros()),
        set: |f, t, v| f.tiers[t].step = Seconds::from_micros(v),
    },
    Parameter {
        key: "chunk_overhead_us",
        max: LONGEST_US,
        get: |f, t| Some(tier(f, t).chunk.micros()),
        set: |f, t, v| f.tiers[t].chunk = Seconds::from_micros(v),
    },
    Parameter {
        key: "final_copy_gb_per_s",
        max: 1e6,
        get: |f, t| Some(tier(f, t).final_copy.0 / 1e9).filter(|v| v.is_finite()),
        set: |f, t, v| f.tiers[t].final_copy = BytesPerSecond(v * 1e9),
    },
    Parameter {
        key: "low_latency_step_us",
        max: LONGEST_US,
        get: |f, t| tier(f, t).low_latency.map(|l| l.step.micros()),
        set: |f, t, v| {
            if let Some(l) = &mut f.tiers[t].low_latency {
                l.step = Seconds::from_micros(v);
            }
        },
    },
    Parameter {
        key: "low_latency_fraction",
        max: 1.0,
        get: |f, t| tier(f, t).low_latency.map(|l| l.fraction),
        set: |f, t, v| {
            if let Some(l) = &mut f.tiers[t].low_latency {
                l.fraction = v;
            }
        },
    },
    Parameter {
        key: "in_network_latency_us",
        max: LONGEST_US,
        get: |f, t| tier(f, t).in_network.map(|n| n.latency.micros()),
        set: |f, t, v| {
            if let Some(n) = &mut f.tiers[t].in_network {
                n.latency = Seconds::from_micros(v);
            }
        },
    },
    Parameter {
        key: "in_network_fraction",
        max: 1.0,
        get: |f, t| tier(f, t).in_network.map(|n| n.fraction),
        set: |f, t, v| {
            if let Some(n) = &mut f.tiers[t].in_network {
                n.fraction = v;
            }
        },
    },
    Parameter {
        key: "in_network_chunk_us",
        max: LONGEST_US,
        get: |f, t| tier(f, t).in_network.map(|n| n.chunk.micros()),
        set: |f, t, v| {
            if let Some(n) = &mut f.tiers[t].in_network {
                n.chunk = Seconds::from_micros(v);
            }
        },
    },
];

/// Fits the launch and the scalars of `tier` by cyclic coordinate search: each scalar in turn is scaled up and down,
/// steps shrink when nothing improves. Minimises the weighted mean over groups of the mean absolute relative error;
/// never ends above where it starts. Bandwidths stay nominal. Deterministic.
///
/// # Errors
/// No measurements, no such tier, a time or weight that is not positive.
pub fn calibrate(fabric: &Fabric, tier: usize, measurements: &[Measurement]) -> Result<Fit, CalibrationError> {
    check(fabric, tier, measurements)?;
    let objective = Objective::new(measurements);
    let found = coordinate_search(
        fabric.clone(),
        PARAMETERS.len(),
        |from, index, step| PARAMETERS.get(index).map_or([None, None], |parameter| neighbours(parameter, from, tier, step)),
        |point| Ok(objective.value(point)),
    )?;
    Ok(report(fabric, found.point, tier, &objective))
}

/// The fabric with a tier's scalar scaled up and down by a step; none where the tier does not have it.
fn neighbours(parameter: &Parameter, from: &Fabric, tier: usize, step: f64) -> [Option<Fabric>; 2] {
    let Some(now) = (parameter.get)(from, tier) else { return [None, None] };
    [now * (1.0 + step), now / (1.0 + step)].map(|candidate| {
        let mut fabric = from.clone();
        (parameter.set)(&mut fabric, tier, candidate.min(parameter.max));
        Some(fabric)
    })
}

fn check(fabric: &Fabric, tier: usize, measurements: &[Measurement]) -> Result<(), CalibrationError> {
    if measurements.is_empty() {
        return Err(CalibrationError::NoMeasurement { fabric: fabric.name.clone() });
    }
    if tier >= fabric.tiers.len() {
        return Err(CalibrationError::NoTier { fabric: fabric.name.clone(), tier, tiers: fabric.tiers.len() });
    }
    for (index, m) in measurements.iter().enumerate() {
        for (what, value) in [("time", m.time.0), ("weight", m.weight)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(CalibrationError::BadValue { index, group: m.group.clone(), what, value });
            }
        }
    }
    Ok(())
}

fn report(before: &Fabric, fabric: Fabric, tier: usize, objective: &Objective<'_>) -> Fit {
    let scalars = PARAMETERS
        .iter()
        .filter_map(|p| Some(Scalar { key: p.key, before: (p.get)(before, tier)?, after: (p.get)(&fabric, tier)? }))
        .collect();
    let (old, new) = (objective.errors(before), objective.errors(&fabric));
    let groups = objective.groups.report(&old, &new);
    Fit { fabric, scalars, groups }
}

struct Objective<'a> {
    measurements: &'a [Measurement],
    groups: Groups,
    /// Each group's part of the weights.
    weights: Vec<f64>,
}

impl<'a> Objective<'a> {
    fn new(measurements: &'a [Measurement]) -> Self {
        let groups = Groups::new(measurements.iter().map(|m| m.group.as_str()));
        let mut weights = vec![0.0; groups.len()];
        for (m, &group) in measurements.iter().zip(groups.of()) {
            weights[group] = m.weight;
        }
        let all: f64 = weights.iter().sum();
        Self { measurements, groups, weights: weights.into_iter().map(|weight| weight / all).collect() }
    }

    /// Mean absolute relative error per group.
    fn errors(&self, fabric: &Fabric) -> Vec<f64> {
        let error = |m: &Measurement| (fabric.collective(&m.collective).latency / m.time - 1.0).abs();
        self.groups.means(self.measurements.iter().map(error))
    }

    fn value(&self, fabric: &Fabric) -> f64 {
        self.errors(fabric).iter().zip(&self.weights).map(|(error, weight)| error * weight).sum()
    }
}
