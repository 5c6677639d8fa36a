//! The objectives that rank deployments.

use crate::objective::{Objective, ObjectiveKind};
use crate::space::ChipFigures;
use serde::{Deserialize, Serialize};
use serving::best::{Deployment, DeviceBounds, ReplicaPool};
use sim::hardware::Accelerator;

/// The objective of a deployment: any [`Objective`] except the time of a step.
///
/// A value is the output tokens per second of the whole deployment, or this rate over the sum of a figure of the
/// devices in use, or output tokens per joule. Larger is better. Every plan runs at its highest rate within the service
/// level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "Objective", try_from = "Objective")]
pub struct ServedObjective(Objective);

impl From<ServedObjective> for Objective {
    fn from(served: ServedObjective) -> Self {
        served.0
    }
}

impl std::fmt::Display for ServedObjective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<Objective> for ServedObjective {
    type Error = String;

    fn try_from(objective: Objective) -> Result<Self, String> {
        match objective {
            timed if timed.kind() == ObjectiveKind::Time => Err("a deployment has no step; give throughput".to_owned()),
            served => Ok(Self(served)),
        }
    }
}

/// Returns the figures of a built chip, with its peak power capped at its published limit. `None` for a chip without an
/// area model.
#[must_use]
pub fn figures_of_built_chip(chip: &Accelerator) -> Option<ChipFigures> {
    let figures = ChipFigures::of_chip(chip).ok()?;
    let peak_power = chip.published.tdp.map_or(figures.peak_power, |limit| limit.min(figures.peak_power));
    Some(ChipFigures { peak_power, ..figures })
}

impl ServedObjective {
    /// Returns all objectives.
    #[must_use]
    pub fn all() -> Vec<Self> {
        Objective::NAMES.into_iter().filter_map(|(_, objective)| Self::try_from(objective).ok()).collect()
    }

    /// Returns the names of all objectives.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        let served = Objective::NAMES.into_iter().filter(|(_, objective)| Self::try_from(*objective).is_ok());
        served.map(|(name, _)| name).collect()
    }

    /// Returns the objective with this name.
    ///
    /// # Errors
    /// An unknown name, or the name of an objective for training only.
    pub fn from_name(name: &str) -> Result<Self, String> {
        let found = Objective::NAMES.into_iter().find(|(known, _)| *known == name);
        let unknown =
            || format!("no such objective; {}", sim::names::hint(name, &Self::names().join(", "), "use one of"));
        Self::try_from(found.ok_or_else(unknown)?.1)
    }

    /// True if the objective is output tokens per second of the whole deployment.
    #[must_use]
    pub fn is_throughput(self) -> bool {
        self.0.kind() == ObjectiveKind::Rate
    }

    /// Returns the unit of a value.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self.0.kind() {
            ObjectiveKind::Rate | ObjectiveKind::Time => "tokens/s",
            ObjectiveKind::RatePer(_) => self.0.row().unit,
            ObjectiveKind::Energy => "tokens per J",
        }
    }

    /// Returns the value of a deployment. `figures` gives the figures of a pool's chip. `None` if a chip lacks the
    /// figure.
    #[must_use]
    pub fn value(self, deployment: &Deployment, figures: impl Fn(&ReplicaPool) -> Option<ChipFigures>) -> Option<f64> {
        match self.0.kind() {
            ObjectiveKind::Rate | ObjectiveKind::Time => Some(deployment.tokens_per_second),
            // A chip without energies gives zero.
            ObjectiveKind::Energy => Some(deployment.tokens_per_joule).filter(|value| *value > 0.0),
            ObjectiveKind::RatePer(axis) => {
                let of_pool = |pool: &ReplicaPool| {
                    let devices = f64::from(pool.replicas) * f64::from(pool.plan.devices());
                    Some(devices * axis.figure_of_chip(&figures(pool)?)?)
                };
                let prefill = deployment.prefill.as_ref().map_or(Some(0.0), of_pool)?;
                Some(deployment.tokens_per_second / (of_pool(&deployment.decode)? + prefill))
            }
        }
    }

    /// Returns an upper bound on the value of any deployment on up to `devices` devices of a chip, with prompts and
    /// decoding on the same devices. `output` is the mean number of output tokens of a request. Zero for a chip that
    /// lacks the figure.
    #[must_use]
    pub fn upper_bound(self, bounds: &DeviceBounds, output: f64, devices: u32, figures: &ChipFigures) -> f64 {
        let per_device = bounds.requests() * output;
        match self.0.kind() {
            ObjectiveKind::Rate | ObjectiveKind::Time => per_device * f64::from(devices),
            ObjectiveKind::Energy => bounds.tokens_per_joule(),
            ObjectiveKind::RatePer(axis) => axis.figure_of_chip(figures).map_or(0.0, |figure| per_device / figure),
        }
    }
}
