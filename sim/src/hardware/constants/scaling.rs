//! The dependence of energy on the process node and the clock.

use super::super::ProcessNode;
use super::{Constants, EnergyPair};
use crate::units::Hertz;

impl Constants {
    /// Returns the energy of an operation at this node, in the unit of `pair` (pJ).
    ///
    /// From 45 to 7 nm, except at 8 nm, it follows a power law in the node's number (a straight line on logarithmic
    /// scales). At 8 nm and below 7 nm it is the energy at 7 nm times a constant: the ratio at equal speed (`[scale]`
    /// in `energy.toml`).
    #[must_use]
    pub fn energy_at_node(&self, pair: EnergyPair, node: ProcessNode) -> f64 {
        let scale = &self.energy.scale;
        match node {
            ProcessNode::N8 => pair.n7 * scale.n8,
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

    /// Returns the clock to which [`Self::energy_at_node`] refers. `None` for planar nodes: their energies hold at the
    /// nominal voltage (45 nm: 0.9 V), which every chip here has.
    fn reference_clock(&self, node: ProcessNode) -> Option<Hertz> {
        let clock = self.energy.reference_clock * 1e6;
        match node {
            ProcessNode::N45 | ProcessNode::N28 | ProcessNode::N22 => None,
            ProcessNode::N16 => Some(Hertz(clock / self.energy.speed_of_n7_over_n16)),
            ProcessNode::N8
            | ProcessNode::N7
            | ProcessNode::N6
            | ProcessNode::N5
            | ProcessNode::N4
            | ProcessNode::N3 => Some(Hertz(clock)),
        }
    }

    /// Returns the energy of an operation at this clock, relative to [`Self::energy_at_node`]. It does not depend on
    /// the clock that the chip is designed for. A higher clock takes a higher voltage, or equivalent larger gates and
    /// deeper pipelines. The factor is the voltage's square; the voltage has a floor. It is 1 for planar nodes.
    #[must_use]
    pub fn energy_at_clock(&self, node: ProcessNode, clock: Hertz) -> f64 {
        let Some(reference) = self.reference_clock(node) else { return 1.0 };
        (clock.0 / reference.0)
            .powf(self.process.voltage_exponent)
            .max(self.process.voltage_floor.at_node(node))
            .powi(2)
    }

    /// Returns the voltage at a lower clock, as a fraction of the voltage at the designed clock.
    #[must_use]
    pub fn voltage_fraction(&self, node: ProcessNode, designed: Hertz, lowered: Hertz) -> f64 {
        if self.reference_clock(node).is_some() {
            return (self.energy_at_clock(node, lowered) / self.energy_at_clock(node, designed)).sqrt().min(1.0);
        }
        let curve = (lowered.0 / designed.0).powf(self.process.voltage_exponent);
        curve.clamp(self.process.voltage_floor.at_node(node), 1.0)
    }
}
