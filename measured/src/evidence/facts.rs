//! The grounds of a prediction: chip, fabric, software, the mechanisms of the plan, the number of chips.

use sim::hardware::Accelerator;
use sim::network::{Fabric, Topology};
use std::collections::BTreeSet;
use step::{ExecutionMode, SoftwareStack, TrainingPlan};
use workloads::{ActivationPolicy, Model, ZeroStage};

/// A name with its kind. Things of one kind are related.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedKind {
    /// Its name.
    pub name: String,
    /// The common property of related things.
    pub kind: String,
}

/// The facts on which a predicted step or peak rests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PredictionFacts {
    /// The chip. Chips of one kind run products alike: by tiles of a library, or on systolic arrays.
    pub chip: NamedKind,
    /// The fabric. Fabrics of one kind have tiers of the same topologies.
    pub fabric: NamedKind,
    /// The software stack. Stacks of one kind run kernels alike, in a stream or by their own schedule, and have the
    /// same launch cost on the host.
    pub stack: NamedKind,
    /// The mechanisms_of_plan of the plan, by name ([`mechanisms_of_plan`]).
    pub mechanisms: BTreeSet<String>,
    /// Chips of the cluster.
    pub chips: u32,
}

impl PredictionFacts {
    /// The facts of a plan of a model on a cluster.
    #[must_use]
    pub fn of_plan(chip: &Accelerator, fabric: &Fabric, stack: &SoftwareStack, model: &Model, plan: &TrainingPlan) -> Self {
        Self {
            chip: NamedKind { name: chip.name.clone(), kind: chip_kind(chip).to_owned() },
            fabric: NamedKind { name: fabric.name.clone(), kind: fabric_kind(fabric, chip) },
            stack: NamedKind { name: stack.name.clone(), kind: stack_kind(stack) },
            mechanisms: mechanisms_of_plan(model, plan, fabric.fast_domain_devices()),
            chips: u32::try_from(plan.layout.device_count()).unwrap_or(u32::MAX),
        }
    }
}

fn chip_kind(chip: &Accelerator) -> &'static str {
    if chip.library.is_some() { "library" } else { "arrays" }
}

/// The topologies of the tiers. A network that is sold with other chips is related to no measured one.
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

/// Stacks with different launch costs on the host were measured separately; others were derived from each other. A
/// stack that a user calibrated has the kind of its base stack.
fn stack_kind(stack: &SoftwareStack) -> String {
    if let Some(base) = stack.calibrated_from.as_deref().and_then(|from| SoftwareStack::load(from).ok()) {
        return stack_kind(&base);
    }
    let launch = &stack.launch;
    match (stack.kernels.execution, stack.sustained.throttled) {
        (ExecutionMode::Scheduled, _) => "scheduled".to_owned(),
        // Chips that never slow down and software without overhead are no measured software.
        (ExecutionMode::Stream, false) => "ideal".to_owned(),
        (ExecutionMode::Stream, true) => {
            format!("stream {}/{}/{} us", launch.host_forward_us, launch.host_backward_us, launch.pipeline_pass_us)
        }
    }
}

/// The mechanisms of a model's plan, beyond those of every plan: one word for each.
#[must_use]
pub fn mechanisms_of_plan(model: &Model, plan: &TrainingPlan, fast_domain: u32) -> BTreeSet<String> {
    let layout = &plan.layout;
    let mut used: BTreeSet<String> = BTreeSet::new();
    let mut add = |is: bool, name: &str| {
        if is {
            used.insert(name.to_owned());
        }
    };
    add(layout.tensor > 1, "tensor");
    add(layout.tensor > fast_domain, "tensor-between-nodes");
    add(layout.pipeline > 1, "pipeline");
    add(layout.pipeline > 1 && layout.virtual_stages > 1, "interleaved");
    add(layout.pipeline > 1 && !matches!(plan.schedule.name(), "1F1B" | "interleaved"), plan.schedule.name());
    add(layout.context > 1, "context");
    add(layout.expert > 1, "expert");
    add(model.experts.is_some(), "experts");
    add(model.variations.latent.is_some(), "latent-attention");
    add(layout.zero != ZeroStage::None, ["", "zero-1", "zero-2", "zero-3"][layout.zero as usize]);
    if let Some(product) = plan.precision.product.filter(|product| product.bytes() < 2) {
        add(true, &product.to_string());
    }
    for policy in plan.activations.distinct_policies() {
        used.extend(mechanisms_of_policy(policy));
    }
    for technique in plan.techniques.iter() {
        used.insert(technique.to_string().split(',').next().unwrap_or_default().to_owned());
    }
    used
}

/// The mechanisms of a policy.
pub fn mechanisms_of_policy(policy: &ActivationPolicy) -> impl Iterator<Item = String> + use<> {
    let offload = policy.to_string().contains("offload").then(|| OFFLOAD.to_owned());
    std::iter::once(recompute_kind(policy).to_owned()).chain(offload)
}

/// All mechanisms of policies.
pub const KEEPING: [&str; 5] = [KEEPS, "recompute-selective", "recompute-full", "recompute-by-tensor", OFFLOAD];
/// The mechanism of a policy that keeps everything.
pub const KEEPS: &str = "recompute-none";
const OFFLOAD: &str = "offload";

/// The kind of recomputation.
fn recompute_kind(policy: &ActivationPolicy) -> &'static str {
    match policy {
        ActivationPolicy::None => KEEPS,
        ActivationPolicy::Selective | ActivationPolicy::SelectivePerOperator => "recompute-selective",
        ActivationPolicy::Full => "recompute-full",
        ActivationPolicy::Named { .. } | ActivationPolicy::Custom { .. } | ActivationPolicy::Tensors { .. } => {
            "recompute-by-tensor"
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
