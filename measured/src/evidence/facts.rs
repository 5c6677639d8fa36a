//! The facts on which a prediction rests: chip, fabric, software, the mechanisms of the plan, the number of chips.

use super::mechanism::{Mechanism, mechanisms_of_plan};
use serde::{Deserialize, Serialize};
use sim::hardware::Accelerator;
use sim::network::{Fabric, Topology};
use std::collections::BTreeSet;
use step::{ExecutionMode, FittedRuns, SoftwareStack, TrainingPlan};
use workloads::Model;

/// The name of a chip, fabric or stack, with its kind. Those of one kind are related.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedKind {
    /// Its name.
    pub name: String,
    /// The property that related ones share.
    pub kind: String,
}

/// The facts on which a predicted step or peak rests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictionFacts {
    /// The chip. Chips of one kind run products in the same way: by tiles of a library, or on systolic arrays.
    pub chip: NamedKind,
    /// The fabric. Fabrics of one kind have tiers of the same topologies.
    pub fabric: NamedKind,
    /// The software stack. Stacks of one kind run kernels in the same way, in a stream or by their own schedule, and
    /// have the same launch cost on the host.
    pub stack: NamedKind,
    /// The mechanisms of the plan ([`mechanisms_of_plan`]).
    pub mechanisms: BTreeSet<Mechanism>,
    /// Number of chips of the cluster.
    pub chips: u32,
    /// The runs that the stack was fitted to. Records do not keep them.
    #[serde(skip)]
    pub own_runs: FittedRuns,
}

impl PredictionFacts {
    /// Returns the facts of a plan of a model on a cluster.
    #[must_use]
    pub fn of_plan(
        chip: &Accelerator,
        fabric: &Fabric,
        stack: &SoftwareStack,
        model: &Model,
        plan: &TrainingPlan,
    ) -> Self {
        let chips = u32::try_from(plan.layout.device_count()).unwrap_or(u32::MAX);
        let mechanisms = mechanisms_of_plan(model, plan, stack, fabric.fast_domain_devices());
        Self { mechanisms, ..Self::of_cluster(chip, fabric, stack, chips) }
    }

    /// Returns the facts of a cluster of `chips` chips, without the mechanisms of a plan.
    #[must_use]
    pub fn of_cluster(chip: &Accelerator, fabric: &Fabric, stack: &SoftwareStack, chips: u32) -> Self {
        Self {
            chip: NamedKind { name: chip.known_name().to_owned(), kind: chip_kind(chip).to_owned() },
            fabric: NamedKind { name: fabric.name.clone(), kind: fabric_kind(fabric, chip) },
            stack: NamedKind { name: stack.name.clone(), kind: stack_kind(stack) },
            mechanisms: BTreeSet::new(),
            chips,
            own_runs: stack.runs.clone(),
        }
    }
}

fn chip_kind(chip: &Accelerator) -> &'static str {
    if chip.library.is_some() { "library" } else { "arrays" }
}

/// Returns the topologies of the tiers as the fabric's kind. A network that is sold with other chips has a kind that no
/// measured one has.
fn fabric_kind(fabric: &Fabric, chip: &Accelerator) -> String {
    if sim::is_foreign_network(fabric, chip) {
        return "of other chips".to_owned();
    }
    let tier = |topology: &Topology| match topology {
        Topology::Torus { .. } => "torus",
        Topology::Matrix(_) => "links",
        _ => "switch",
    };
    fabric.tiers.iter().map(|t| tier(&t.topology)).collect::<Vec<_>>().join("/")
}

/// Returns the kind of a stack: `scheduled`, `ideal`, or `stream` with its launch costs on the host. Built-in stacks
/// with equal launch costs were derived from each other; the others were measured separately. A stack that a user
/// calibrated has the kind of its base stack.
fn stack_kind(stack: &SoftwareStack) -> String {
    if let Some(base) = stack.calibrated_from.as_deref().and_then(|from| SoftwareStack::load(from).ok()) {
        return stack_kind(&base);
    }
    let launch = &stack.launch;
    match (stack.kernels.execution, stack.sustained.throttled) {
        (ExecutionMode::Scheduled, _) => "scheduled".to_owned(),
        // Stacks for chips that never throttle are ideal ones. No such software was measured.
        (ExecutionMode::Stream, false) => "ideal".to_owned(),
        (ExecutionMode::Stream, true) => {
            format!("stream {}/{}/{} us", launch.host_forward_us, launch.host_backward_us, launch.pipeline_pass_us)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_calibrated_stack_is_of_the_kind_of_its_base() {
        let base = SoftwareStack::load("nanotron").unwrap();
        let mut ours = SoftwareStack { name: "ours".into(), calibrated_from: Some("nanotron".into()), ..base.clone() };
        ours.launch.host_forward_us *= 1.7;
        assert_eq!(stack_kind(&ours), stack_kind(&base));
        ours.calibrated_from = None;
        assert_ne!(stack_kind(&ours), stack_kind(&base));
    }
}
