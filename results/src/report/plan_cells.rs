//! Table cells that several tables of plans share.

use workloads::{ActivationPolicy, Layout, StagePolicies};

/// Returns the number of expert-parallel ranks, with the devices per expert if the layout states them: `8x2`.
pub(super) fn experts_cell(layout: &Layout) -> String {
    let width = layout.expert_tensor.map_or_else(String::new, |width| format!("x{width}"));
    format!("{}{width}", layout.expert)
}

/// Returns the policy for keeping and recomputing tensors, in a few words.
pub(super) fn recompute_cell(policies: &StagePolicies) -> String {
    match policies.uniform_policy() {
        Some(ActivationPolicy::Tensors { .. }) => "by tensor".to_owned(),
        _ => policies.to_string(),
    }
}
