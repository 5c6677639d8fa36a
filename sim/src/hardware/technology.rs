//! Process nodes, and how energy follows node and clock.

use super::constants::{Constants, EnergyPair};
use crate::units::Hertz;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A process node, named as its foundry names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessNode {
    /// 45 nm planar.
    N45,
    /// 28 nm planar.
    N28,
    /// 22 nm.
    N22,
    /// 16 nm FinFET, and 12 nm, its optical shrink.
    N16,
    /// 7 nm.
    N7,
    /// 6 nm, the optical shrink of 7 nm.
    N6,
    /// 5 nm.
    N5,
    /// 4 nm, the optical shrink of 5 nm (TSMC 4N and 4NP included).
    N4,
    /// 3 nm.
    N3,
}

impl ProcessNode {
    /// All nodes, oldest first.
    pub const ALL: [Self; 9] = [Self::N45, Self::N28, Self::N22, Self::N16, Self::N7, Self::N6, Self::N5, Self::N4, Self::N3];

    /// The number in the node's name, in nanometres.
    #[must_use]
    pub fn nanometres(self) -> u32 {
        match self {
            Self::N45 => 45,
            Self::N28 => 28,
            Self::N22 => 22,
            Self::N16 => 16,
            Self::N7 => 7,
            Self::N6 => 6,
            Self::N5 => 5,
            Self::N4 => 4,
            Self::N3 => 3,
        }
    }
}

impl Constants {
    /// The energy of an operation at this node.
    ///
    /// Between 45 and 7 nm it follows a power law in the node's number (a straight line on logarithmic scales). Below 7
    /// nm it follows the foundry's power at equal speed.
    #[must_use]
    pub fn energy_at_node(&self, pair: EnergyPair, node: ProcessNode) -> f64 {
        let scale = &self.energy.scale;
        match node {
            ProcessNode::N6 => pair.n7 * scale.n6,
            ProcessNode::N5 => pair.n7 * scale.n5,
            ProcessNode::N4 => pair.n7 * scale.n4,
            ProcessNode::N3 => pair.n7 * scale.n3,
            ProcessNode::N45 | ProcessNode::N28 | ProcessNode::N22 | ProcessNode::N16 | ProcessNode::N7 => {
                let t = (f64::from(node.nanometres()) / 7.0).ln() / (45.0_f64 / 7.0).ln();
                pair.n45.powf(t) * pair.n7.powf(1.0 - t)
            }
        }
    }

    /// The clock to which [`Self::energy_at_node`] refers; `None` for planar nodes, whose energies hold at the nominal
    /// voltage (45 nm: 0.9 V) of any chip here.
    fn reference_clock(&self, node: ProcessNode) -> Option<Hertz> {
        let clock = self.energy.reference_clock * 1e6;
        match node {
            ProcessNode::N45 | ProcessNode::N28 | ProcessNode::N22 => None,
            ProcessNode::N16 => Some(Hertz(clock / self.energy.speed_of_n7_over_n16)),
            ProcessNode::N7 | ProcessNode::N6 | ProcessNode::N5 | ProcessNode::N4 | ProcessNode::N3 => Some(Hertz(clock)),
        }
    }

    /// The energy of an operation on a chip designed for this clock, relative to [`Self::energy_at_node`]. A higher
    /// clock takes a higher voltage, or equivalent larger gates and deeper pipelines. The factor is the voltage's
    /// square, with the same curve and floor as under a power limit.
    #[must_use]
    pub fn energy_at_clock(&self, node: ProcessNode, clock: Hertz) -> f64 {
        let Some(reference) = self.reference_clock(node) else { return 1.0 };
        (clock.0 / reference.0).powf(self.process.voltage_exponent).max(self.process.voltage_floor.at_node(node)).powi(2)
    }

    /// The voltage as a fraction of the designed one, at this fraction of the designed clock.
    #[must_use]
    pub fn voltage_fraction(&self, node: ProcessNode, clock_fraction: f64) -> f64 {
        clock_fraction.powf(self.process.voltage_exponent).clamp(self.process.voltage_floor.at_node(node), 1.0)
    }
}

impl fmt::Display for ProcessNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} nm", self.nanometres())
    }
}
