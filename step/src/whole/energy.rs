//! Energy of a step over all devices: kernels of every micro-batch with recomputation, copies to and from host and
//! storage, the optimizer's update, and static power over the step's time.
//!
//! Not modelled: links, switches, hosts, and a waiting chip's draw beyond its static power.

use crate::pipeline::arrangement::Arrangement;
use crate::whole::evaluate::PlanOnNetwork;
use crate::{ChipTimes, PieceProfile, StepError, StepProfile, TrainingPlan};
use serde::{Deserialize, Serialize};
use sim::kernel::Kernel;
use sim::network::Fabric;
use sim::units::{Joules, Seconds};
use workloads::graph::OperatorGraph;
use workloads::{ActivationPolicy, Model};

/// Energy of one step over all devices.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StepEnergy {
    /// Kernels of all passes, and copies to and from host and storage; without static power.
    pub passes: Joules,
    /// The optimizer's update, without static power.
    pub update: Joules,
    /// Static energy of all chips over the step's time.
    pub standing: Joules,
}

impl StepEnergy {
    /// Returns the sum.
    #[must_use]
    pub fn total_energy(&self) -> Joules {
        self.passes + self.update + self.standing
    }
}

/// Returns the energy of a plan's step over all devices. `step` is the step's time. The profile must be made for a plan
/// with the same lowering.
///
/// # Errors
/// Layers that do not divide among the plan's chunks, or a schedule that needs another number of chunks.
pub fn step_energy_of(
    chip: &mut ChipTimes,
    model: &Model,
    fabric: &Fabric,
    plan: &TrainingPlan,
    profile: &StepProfile,
    step: Seconds,
) -> Result<StepEnergy, StepError> {
    let planned = PlanOnNetwork { fabric, plan, profile };
    let arrangement = planned.arrange_model(model)?;
    let layout = &plan.layout;
    // Number of devices of one stage, and of all stages.
    let side_by_side = f64::from(layout.tensor) * f64::from(layout.context) * f64::from(layout.data);
    let devices = side_by_side * f64::from(layout.pipeline);
    let runs: Vec<(&ActivationPolicy, u64)> = match (plan.activations.uniform_policy(), plan.activations.chunk_mixes())
    {
        (Some(policy), _) => vec![(policy, model.layers)],
        (None, chunks) => chunks.into_iter().flatten().flatten().map(|run| (&run.policy, run.layers)).collect(),
    };
    let (mut model_once, mut copies) = (profile.embedding, Joules::ZERO);
    for (policy, layers) in runs {
        model_once = model_once.plus(profile.layer_with_policy(policy).times(layers));
        copies += chip.copy_energy(&profile.layer_segment.graph, policy) * layers as f64;
    }
    for end in [&profile.leading_segment, &profile.trailing_segment].into_iter().flatten() {
        copies += chip.copy_energy(&end.graph, plan.activations.first_layer_policy());
    }
    copies += planned.energy_of_parameter_copies(chip, model.layers);
    let model_once = model_once.plus(profile.head);
    let kernels = model_once.forward.energy + model_once.recompute.energy + model_once.backward.energy;
    Ok(StepEnergy {
        passes: (kernels + copies) * arrangement.micro_batches as f64 * side_by_side,
        update: update_energies(chip, &planned, &arrangement) * side_by_side,
        standing: chip.chip().energy.static_power * step * devices,
    })
}

/// Returns the summed energy of the updates of one device of every stage.
fn update_energies(chip: &mut ChipTimes, step: &PlanOnNetwork<'_>, arrangement: &Arrangement) -> Joules {
    let pieces = arrangement.chunk_pieces(step.profile);
    let mut all = Joules::ZERO;
    for alike in arrangement.device_groups() {
        let sum = |of: fn(&PieceProfile) -> u64| pieces.iter().zip(alike.counts).map(|(piece, n)| of(piece) * n).sum();
        let share = step.updated_parameters(chip, sum(|p| p.parameters), sum(|p| p.expert_parameters));
        all += chip.energy_of_update(step.profile, share) * f64::from(alike.to + 1 - alike.from);
    }
    all
}

impl ChipTimes {
    /// Returns the energy of a piece's offload copies and of their return, for one micro-batch on one device.
    fn copy_energy(&mut self, graph: &OperatorGraph, policy: &ActivationPolicy) -> Joules {
        let copies = self.copied_bytes(graph, policy).transfers();
        copies.map(|copy| self.energy_of_kernel(&Kernel::Transfer(copy)) * 2.0).sum()
    }
}

#[cfg(test)]
#[path = "energy_tests.rs"]
mod tests;
