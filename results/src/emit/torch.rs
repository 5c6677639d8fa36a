//! PyTorch's selective activation checkpointing. The policy of one layer is a callback of
//! `torch.utils.checkpoint.create_selective_checkpoint_contexts` (PyTorch 2.4 and later, `torch/utils/checkpoint.py`).
//! For every operator, PyTorch asks the callback whether to keep the result. Products with weights are identified by
//! their order, as in TorchTitan's `selective_ac_option = "op"`.

use super::kept::{TreatedLayer, plan_by_policies, policy_on_layer};
use super::{EmittedLines, EmittedPlan, Inexpressible, PlanRecipe};
use sim::kernel::{CollectiveKind, Kernel};
use std::collections::BTreeSet;
use step::Framework;
use workloads::ActivationPolicy;
use workloads::graph::{Gradient, OperatorNode, PartialOffload};
use workloads::recompute_policy::Treatment;

/// Writes the policy of a plan's layers as a Python module with a function `layer_context`. Comments name the parts
/// that PyTorch cannot express.
///
/// # Errors
/// None: every layer has operators.
pub fn write_torch(recipe: &PlanRecipe<'_>) -> Result<EmittedPlan, Inexpressible> {
    let recipe = &PlanRecipe { plan: &plan_by_policies(recipe), ..*recipe };
    let mut lines = recipe.push_comments(|framework| framework == Framework::TorchTitan);
    for technique in recipe.plan.techniques.iter() {
        lines.push_lack(true, &format!("technique {technique}: no policy of torch.utils.checkpoint"));
    }
    match recipe.plan.activations.uniform_policy() {
        None => {
            lines.push_lack(true, "recompute by stage: write one policy for every stage with evaluate's --recompute")
        }
        Some(ActivationPolicy::None) => lines.push("# every layer keeps all: no checkpoint around it".to_owned()),
        Some(ActivationPolicy::Full) => {
            lines.push("# around every layer, which is recomputed as a whole:".to_owned());
            lines.push("# torch.utils.checkpoint.checkpoint(layer, *inputs, use_reentrant=False)".to_owned());
        }
        Some(policy) => write_selective(recipe, policy, &mut lines),
    }
    Ok(lines.into_text())
}

/// The class of an operator, as PyTorch's dispatcher distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DispatchedOperator {
    /// A matrix product with weights: `aten.mm`.
    Product,
    /// A matrix product with weights whose result is summed over the tensor-parallel devices.
    Sum,
    Attention,
    /// Any other operator; the dispatcher cannot distinguish these.
    Other,
}

impl DispatchedOperator {
    fn of_tensor(op: &OperatorNode) -> Self {
        let has = |wanted: fn(&Kernel) -> bool| op.forward.iter().any(|step| wanted(&step.kernel));
        let weighs = op.backward.iter().any(|chain| chain.gradient == Gradient::Weights);
        let sums = has(
            |k| matches!(k, Kernel::Collective(c) if matches!(c.kind, CollectiveKind::ReduceScatter | CollectiveKind::AllReduce)),
        );
        match () {
            () if has(|k| matches!(k, Kernel::Contraction(_) | Kernel::Epilogue(_))) && weighs && sums => Self::Sum,
            () if has(|k| matches!(k, Kernel::Contraction(_) | Kernel::Epilogue(_))) && weighs => Self::Product,
            () if has(|k| matches!(k, Kernel::FusedAttention(_))) => Self::Attention,
            () => Self::Other,
        }
    }
}

fn write_selective(recipe: &PlanRecipe<'_>, policy: &ActivationPolicy, lines: &mut EmittedLines) {
    let Some(treated) = policy_on_layer(recipe, policy) else {
        return lines.push_lack(true, &format!("recompute {policy}: the model has no layer of one kind"));
    };
    let products = treated.operators_of(&[DispatchedOperator::Product, DispatchedOperator::Sum]);
    let saved_products = treated.saved_places(&products, DispatchedOperator::Product);
    let sums = treated.operators_of(&[DispatchedOperator::Sum]);
    let saved_sums = treated.saved_places(&sums, DispatchedOperator::Sum);
    let attention = treated.operators_of(&[DispatchedOperator::Attention]);
    lines.push_note(
        true,
        "around every layer: torch.utils.checkpoint.checkpoint(layer, *inputs, use_reentrant=False, \
        context_fn=layer_context)",
    );
    let all: Vec<String> =
        products.iter().enumerate().map(|(at, op)| format!("{at} {}", short_name(&op.name))).collect();
    lines.push_note(true, &format!("products with weights in the order in which they run: {}", all.join(", ")));
    let text = policy_module(&saved_products, &saved_sums, attention.iter().any(|op| treated.is_held(op)));
    text.lines().for_each(|line| lines.push(line.to_owned()));
    treated.push_lacks(lines);
}

fn short_name(name: &str) -> String {
    name.strip_prefix("layer.").unwrap_or(name).to_owned()
}

/// Joins distinct names in alphabetical order.
fn join_distinct(names: impl Iterator<Item = String>) -> String {
    names.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
}

/// Returns a set in Python.
fn set_of_numbers(numbers: &[usize]) -> String {
    let list = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if list.is_empty() { "set()".to_owned() } else { format!("{{{list}}}") }
}

/// Returns the Python module of a policy that saves these products and sums, by their order.
fn policy_module(saved_products: &[usize], saved_sums: &[usize], saves_attention: bool) -> String {
    format!(
        "import torch\n\
         from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts\n\n\
         SAVED_PRODUCTS = {}\n\
         SAVED_SUMS = {}\n\
         SAVE_ATTENTION = {}\n\
         ATTENTION = {{\n    torch.ops.aten._scaled_dot_product_flash_attention.default,\n    \
         torch.ops.aten._scaled_dot_product_efficient_attention.default,\n    \
         torch.ops.aten._scaled_dot_product_cudnn_attention.default,\n}}\n\
         SUMS = {{\n    torch.ops._c10d_functional.reduce_scatter_tensor.default,\n    \
         torch.ops._c10d_functional.all_reduce.default,\n}}\n\n\n\
         def layer_context():\n    # products and sums run in the forward pass, and again\n    ran, summed = {{False: \
         0, True: 0}}, {{False: 0, True: 0}}\n\n    \
         def policy(ctx, op, *args, **kwargs):\n        save = SAVE_ATTENTION and op in ATTENTION\n        \
         if op == torch.ops.aten.mm.default:\n            save = ran[ctx.is_recompute] in SAVED_PRODUCTS\n            \
         ran[ctx.is_recompute] += 1\n        \
         elif op in SUMS:\n            save = summed[ctx.is_recompute] in SAVED_SUMS\n            \
         summed[ctx.is_recompute] += 1\n        \
         return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE\n\n    \
         return create_selective_checkpoint_contexts(policy)",
        set_of_numbers(saved_products),
        set_of_numbers(saved_sums),
        if saves_attention { "True" } else { "False" },
    )
}

impl TreatedLayer {
    fn is_held(&self, op: &OperatorNode) -> bool {
        let Treatment { kept, offloaded, .. } = &self.treatment;
        op.outputs.iter().any(|t| kept.contains(t) || offloaded.contains(t))
    }

    fn operators_of(&self, wanted: &[DispatchedOperator]) -> Vec<&OperatorNode> {
        self.layer.operators.iter().filter(|op| wanted.contains(&DispatchedOperator::of_tensor(op))).collect()
    }

    /// Returns the places among `of` of the operators of one class whose results are held.
    fn saved_places(&self, of: &[&OperatorNode], wanted: DispatchedOperator) -> Vec<usize> {
        (0..of.len()).filter(|at| DispatchedOperator::of_tensor(of[*at]) == wanted && self.is_held(of[*at])).collect()
    }

    /// Adds the parts of the policy that PyTorch cannot express.
    fn push_lacks(&self, lines: &mut EmittedLines) {
        let Treatment { offloaded, partly, .. } = &self.treatment;
        let other = self.operators_of(&[DispatchedOperator::Other]);
        let other = join_distinct(other.iter().filter(|op| self.is_held(op)).map(|op| short_name(&op.name)));
        lines.push_lack(
            !other.is_empty(),
            &format!("kept results of operators that the dispatcher cannot distinguish: {other}"),
        );
        let away = join_distinct(offloaded.iter().map(|t| short_name(&self.layer.tensors[t.index()].name)));
        lines.push_lack(
            !offloaded.is_empty(),
            &format!(
                "offloaded: {away}; this policy keeps them on the device (torch.autograd.graph.save_on_cpu moves all \
                that a region saves)"
            ),
        );
        let part = partly.as_ref().filter(|partly| partly.recomputed).map(PartialOffload::offloaded_fraction);
        let words =
            |part| format!("for {part} of the tokens, with the others recomputed: a checkpoint applies to all tokens");
        lines.push_lack(part.is_some(), &part.map(words).unwrap_or_default());
    }
}
