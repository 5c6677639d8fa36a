//! Modules to which adapters can be attached, by the names that training frameworks use.

use super::NamedRule;
use crate::memory::error::TechniqueError;
use crate::memory::policy::TechniqueRule;
use crate::model::Model;

/// A module to which adapters can be attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AdapterTarget {
    /// Its name in transformers, PEFT or Megatron-LM.
    pub module: &'static str,
    /// The operators that may be this module; each model has some of them.
    operators: &'static [&'static str],
}

/// All target modules. The names are those of transformers' models and of Megatron-LM.
const TARGETS: [AdapterTarget; 24] = [
    target("all-linear", &["attention", "mlp", "moe"]),
    target("q_proj", &["attention.query"]),
    target("k_proj", &["attention.key"]),
    target("v_proj", &["attention.value"]),
    target("o_proj", &["attention.output"]),
    target("out_proj", &["attention.output"]),
    target("dense", &["attention.output"]),
    target("qkv_proj", &["attention.qkv"]),
    target("query_key_value", &["attention.qkv"]),
    target("c_attn", &["attention.qkv"]),
    target("Wqkv", &["attention.qkv"]),
    target("linear_qkv", &["attention.qkv"]),
    target("linear_proj", &["attention.output"]),
    target("gate_proj", &["mlp.gate", "moe.gate"]),
    target("up_proj", &["mlp.up", "moe.up"]),
    target("down_proj", &["mlp.down", "moe.down"]),
    target("gate_up_proj", &["mlp.gate_up", "moe.gate_up"]),
    target("fc1", &["mlp.fc1"]),
    target("fc2", &["mlp.fc2"]),
    target("c_fc", &["mlp.fc1"]),
    target("dense_h_to_4h", &["mlp.fc1"]),
    target("dense_4h_to_h", &["mlp.fc2"]),
    target("linear_fc1", &["mlp.gate_up", "mlp.fc1", "moe.gate_up", "moe.fc1"]),
    target("linear_fc2", &["mlp.down", "mlp.fc2", "moe.down", "moe.fc2"]),
];

const fn target(module: &'static str, operators: &'static [&'static str]) -> AdapterTarget {
    AdapterTarget { module, operators }
}

impl AdapterTarget {
    /// Returns the module of this name, or `None`.
    pub fn find(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| sim::names::are_same_name(target.module, name))
    }
}

/// Returns the error for a module that is not known.
pub(super) fn target_error(technique: &str, module: &str) -> TechniqueError {
    let known = TARGETS.map(|target| target.module).join(", ");
    let cure = sim::names::hint(module, &known, "known are");
    TechniqueError::refuse(technique, format!("targets: `{module}` is no module"), cure)
}

/// Returns an adapter's rule once per target, so that each target must match. Returns any other rule unchanged.
pub(super) fn rules_of_targets(rule: TechniqueRule, targets: &[AdapterTarget]) -> Vec<TechniqueRule> {
    if rule.adapter.is_none() || targets.is_empty() {
        return vec![rule];
    }
    let at_target = |target: &AdapterTarget| {
        let mut one = rule.clone();
        one.at.operators = target.operators.iter().map(|name| (*name).to_owned()).collect();
        one
    };
    targets.iter().map(at_target).collect()
}

/// Returns the error for an adapter that matches no product.
pub(super) fn unmatched_adapter(rule: &NamedRule, model: &Model) -> TechniqueError {
    let named = TARGETS.iter().find(|target| target.operators == rule.rule.at.operators.as_slice());
    let target = named.map_or_else(String::new, |target| format!(" ({})", target.module));
    let why = format!(
        "its adapters{target} match no product of {}'s layers as this stack runs them, so nothing would be trained",
        model.name
    );
    let cure = "name modules that the model has; a stack that runs query, key and value as one product has qkv_proj, \
        one that runs gate and up as one has gate_up_proj; --stack huggingface runs each alone";
    TechniqueError::refuse(&rule.name, why, cure)
}
