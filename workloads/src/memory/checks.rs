//! Checks of a technique's file beyond its syntax: rules have an effect, operators exist, numbers are in range, and the
//! stated training effect is true.

use super::error::TechniqueError;
use super::policy::{Representation, TechniqueRule, TensorClass, TrainingEffect};
use super::preset::Preset;
use crate::layer_names::{layer_of_name, name_within_layer};

/// Operator names that rules may list. Names in layers omit the layer's name.
const OPERATORS: &str = "\
    attention.context attention.core attention.norm.conditioned condition.activation condition.borrowed \
    condition.class condition.sum condition.time condition.time_out attention.dropout attention.exchange \
    attention.exchange_back attention.gate \
    attention.gated attention.index.key attention.index.norm attention.index.query attention.index.scores \
    attention.key attention.key_absorbed attention.value_up \
    attention.kv_down \
    attention.kv_norm attention.kv_up attention.norm attention.output attention.output_norm attention.qkv \
    attention.query \
    attention.query_down attention.query_key_norm.key attention.query_key_norm.query attention.query_norm \
    attention.query_up attention.residual attention.residual.dropout \
    attention.rope attention.scores attention.softmax attention.value cross.context cross.core cross.dropout \
    cross.encoded cross.key cross.norm cross.output cross.output_norm cross.query cross.residual \
    cross.residual.dropout cross.scores cross.softmax cross.value decoder_embedding.dropout decoder_embedding.norm \
    decoder_embedding.position decoder_embedding.token \
    embedding.activation embedding.condition.activation embedding.condition.class embedding.condition.lent \
    embedding.condition.sum embedding.condition.time embedding.condition.time_out embedding.convolution \
    embedding.dropout \
    embedding.norm embedding.patches embedding.position embedding.projection embedding.second_activation \
    embedding.second_convolution embedding.token embedding.token_type \
    encoder.norm encoder.result head.condition.activation head.condition.borrowed head.condition.class \
    head.condition.sum head.condition.time head.condition.time_out head.modulation.activation head.modulation.product \
    head.norm.conditioned head.prediction head.logits head.loss head.norm head.pooling head.projection head.transform \
    head.transform_activation head.transform_norm linear.activation linear.convolution linear.core linear.decay \
    linear.gate linear.gate_up linear.gated linear.gated.gate linear.gated.product linear.in linear.mixed \
    linear.narrow linear.norm linear.norm_of_result linear.out linear.output_norm linear.rates linear.residual \
    linear.residual.dropout mlp.activation mlp.activation_dropout mlp.down mlp.fc1 mlp.fc2 \
    mlp.gate mlp.gate_up mlp.gated mlp.gated.gate mlp.gated.product mlp.norm mlp.norm.conditioned mlp.output_norm \
    modulation.activation modulation.product \
    mlp.residual mlp.residual.dropout mlp.up moe.activation moe.activation_dropout moe.combine moe.dispatch \
    moe.down moe.fc1 moe.fc2 moe.gate moe.gate_up moe.gated moe.gated.gate \
    moe.gated.product moe.latent_down moe.latent_up moe.norm moe.output_norm moe.residual \
    moe.residual.dropout moe.return moe.routed_norm moe.routed_output_norm moe.router moe.router_norm \
    moe.shared.activation moe.shared.activation_dropout moe.shared.down moe.shared.fc1 moe.shared.fc2 moe.shared.gate \
    moe.shared.gate_up \
    moe.shared.gated moe.shared.gated.gate moe.shared.gated.product moe.shared.output_norm moe.shared.score \
    moe.shared.sigmoid \
    moe.shared.sum moe.shared.up \
    moe.shared.weighed moe.top_k moe.up scan.convolution scan.convolved scan.core scan.gate \
    scan.gated scan.gated.gate scan.gated.product scan.gated_norm scan.in scan.norm scan.out \
    scan.input scan.output_norm scan.residual scan.residual.dropout scan.select scan.state_norm scan.step \
    scan.step_norm scan.steps";

/// Returns whether `name` is an operator, a layer, or a prefix of operators that ends before a dot.
pub(crate) fn is_operator_name(name: &str) -> bool {
    let layer = layer_of_name(&format!("{name}.")).is_some_and(|layer| layer == name);
    let inner = name_within_layer(name).unwrap_or(name);
    layer
        || OPERATORS
            .split_whitespace()
            .any(|known| known.strip_prefix(inner).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// Returns a hint for a misspelt operator name: the nearest known name, or else the first words of operator names.
fn suggest_operator(name: &str) -> String {
    let begins =
        |known: &'static str| known.match_indices('.').map(|(at, _)| &known[..at]).chain([known]).collect::<Vec<_>>();
    let all: Vec<&str> = OPERATORS.split_whitespace().flat_map(begins).collect();
    let name = name_within_layer(name).unwrap_or(name);
    // Edit distance counts two swapped letters as two changes, which is too many for a short word. So anagrams are
    // tried first.
    let letters = |word: &str| {
        let mut letters: Vec<char> = word.to_lowercase().chars().collect();
        letters.sort_unstable();
        letters
    };
    let swapped = all.iter().copied().find(|known| letters(known) == letters(name));
    match swapped.or_else(|| sim::names::find_nearest(name, all.iter().copied())) {
        Some(known) => format!("did you mean `{known}`?"),
        None => {
            "names begin with attention, mlp, moe, scan, linear, cross, embedding or head, such as mlp.down".to_owned()
        }
    }
}

/// Returns the name in preset files of a form that changes the result of training; `None` for an exact form.
fn lossy_form_name<N>(form: &Representation<N>) -> Option<&'static str> {
    match form {
        Representation::Absent => Some("absent"),
        Representation::Quantised { .. } => Some("quantised"),
        Representation::Projected { .. } => Some("projected"),
        Representation::SampledRows { .. } => Some("sampled_rows"),
        Representation::GroupScalars { .. } => Some("group_scalars"),
        Representation::DerivativeBits { .. } => Some("derivative_bits"),
        Representation::Factored => Some("factored"),
        Representation::SharedWithOutput => None,
    }
}

/// Returns the key of a rule that changes the result of training; `None` for an exact rule.
fn training_effect_of_rule<N, P>(rule: &TechniqueRule<N, P>) -> Option<String> {
    match rule {
        TechniqueRule { representation: Some(form), .. } => {
            lossy_form_name(form).map(|form| format!("representation = {form}"))
        }
        TechniqueRule { adapter: Some(_), .. } => Some("adapter".into()),
        TechniqueRule { frozen: true, .. } => Some("frozen = true".into()),
        TechniqueRule { copy_bytes: Some(_), .. } => Some("copy_bytes".into()),
        _ => None,
    }
}

fn has_no_effect<N, P>(rule: &TechniqueRule<N, P>) -> bool {
    let TechniqueRule { representation, place, rebuild, slice, adapter, copy_bytes, stock, .. } = rule;
    let any = representation.is_some() || place.is_some() || rebuild.is_some() || slice.is_some();
    !(any || rule.frozen || adapter.is_some() || copy_bytes.is_some() || stock.is_some())
}

impl Preset {
    /// Returns the error for an invalid rule of this file.
    fn rule_error(&self, why: String) -> TechniqueError {
        TechniqueError::Malformed { file: self.file.clone(), why }
    }

    /// Checks the rules of the file.
    ///
    /// # Errors
    /// Neither rules nor planned addresses; a rule without effect, or with two effects that exclude each other; an
    /// unknown operator; `gate = exact` for a rule that is not exact.
    pub(crate) fn check_rules(&self) -> Result<(), TechniqueError> {
        if self.rules.is_empty() && !self.planned_addresses {
            return Err(self.rule_error("has no [[rule]]: add one, with a class and what is done to it".into()));
        }
        for (at, rule) in (1..).zip(&self.rules) {
            if has_no_effect(rule) {
                let what = "representation, place, rebuild, slice, frozen, adapter, copy_bytes or stock";
                return Err(self.rule_error(format!("rule {at}: does nothing: give it one of {what}, or leave it out")));
            }
            if rule.place.is_some() && rule.rebuild.is_some() {
                let why = "place and rebuild: a rebuilt tensor has no place; keep one of the two, or give each its \
                    own rule";
                return Err(self.rule_error(format!("rule {at}: {why}")));
            }
            let lists = [("operators", &rule.at.operators), ("except", &rule.at.except)];
            for (key, name) in lists.into_iter().flat_map(|(key, names)| names.iter().map(move |name| (key, name))) {
                if !is_operator_name(name) {
                    return Err(self.rule_error(format!(
                        "rule {at}: {key} = `{name}`: no model has an operator of that name; {}",
                        suggest_operator(name)
                    )));
                }
            }
            if let Some(what) = training_effect_of_rule(rule).filter(|_| self.gate == TrainingEffect::Exact) {
                let cure = "write gate = \"unbiased\" if gradients are right on average, otherwise gate = \"biased\"";
                return Err(
                    self.rule_error(format!("gate = exact: rule {at} changes what is computed ({what}): {cure}"))
                );
            }
        }
        Ok(())
    }

    /// Checks the numbers of rule `at`, counted from 1. `bits_of` returns the bits per number of a class in this run.
    ///
    /// # Errors
    /// A number out of range.
    pub(crate) fn check_numbers(
        &self,
        at: usize,
        rule: &TechniqueRule,
        bits_of: impl Fn(TensorClass) -> u64,
    ) -> Result<(), TechniqueError> {
        let wrong = |key, value, limit| Err(self.number_error(at, key, value, limit));
        if let Some(place) = rule.place.as_ref().filter(|place| !(0.0..=1.0).contains(&place.fraction)) {
            return wrong("place.fraction", place.fraction, "from 0 to 1: the offloaded fraction");
        }
        if let Some(count) =
            rule.slice.as_ref().and_then(|s| s.count).filter(|n| !(1.0..=1e12).contains(n) || n.fract() != 0.0)
        {
            return wrong("slice.count", count, "a whole number of at least 1");
        }
        if let Some(rank) =
            rule.adapter.as_ref().map(|a| a.rank).filter(|rank| !(1.0..=1e12).contains(rank) || rank.fract() != 0.0)
        {
            return wrong("adapter.rank", rank, "a whole number of at least 1");
        }
        if let Some(bytes) = rule.copy_bytes.filter(|bytes| !(*bytes > 0.0 && *bytes <= 8.0)) {
            return wrong("copy_bytes", bytes, "above 0 and at most 8 bytes per number");
        }
        if let Some(stock) = rule.stock.as_ref().filter(|stock| !(0.0..=1e18).contains(&stock.count)) {
            return wrong("stock.count", stock.count, "from 0 to 1e18");
        }
        self.check_representation(at, rule, bits_of(rule.class))
    }

    /// Returns the error for a number of rule `at` that is out of range.
    fn number_error(&self, at: usize, key: &str, value: f64, limit: &str) -> TechniqueError {
        self.rule_error(format!("rule {at}: {key} = {value}: must be {limit}"))
    }

    /// Checks the numbers of a rule's representation. It replaces numbers of `replaced_bits` bits.
    fn check_representation(&self, at: usize, rule: &TechniqueRule, replaced_bits: u64) -> Result<(), TechniqueError> {
        let wrong = |key, value, limit: &str| Err(self.number_error(at, key, value, limit));
        match &rule.representation {
            Some(Representation::Quantised { bits, .. }) if !(*bits > 0.0 && *bits <= replaced_bits as f64) => {
                let limit = format!("above 0 and at most the {replaced_bits} bits of the numbers that it replaces");
                wrong("representation.bits", *bits, &limit)
            }
            Some(Representation::DerivativeBits { bits }) if !(*bits > 0.0 && *bits < replaced_bits as f64) => {
                let limit = format!("above 0 and below the {replaced_bits} bits of the numbers that it replaces");
                wrong("representation.bits", *bits, &limit)
            }
            // A head is a group of activations alone.
            Some(Representation::Quantised { group, .. })
                if !(1.0..=1e12).contains(group) && (*group != 0.0 || rule.class != TensorClass::SavedActivations) =>
            {
                let per_head =
                    if rule.class == TensorClass::SavedActivations { ", or 0 for one group per head" } else { "" };
                wrong("representation.group", *group, &format!("at least 1 number per scale{per_head}"))
            }
            Some(Representation::Quantised { meta_bytes, .. }) if !(0.0..=1e6).contains(meta_bytes) => {
                wrong("representation.meta_bytes", *meta_bytes, "from 0 to 1000000 bytes of a group's scales")
            }
            Some(Representation::Projected { rank, .. } | Representation::GroupScalars { groups: rank })
                if !(*rank > 0.0 && rank.is_finite()) =>
            {
                wrong("representation.rank, groups", *rank, "above 0")
            }
            Some(Representation::SampledRows { fraction, .. }) if !(*fraction > 0.0 && *fraction <= 1.0) => {
                wrong("representation.fraction", *fraction, "above 0 and at most 1: the fraction of rows that is kept")
            }
            Some(Representation::SampledRows { index_bytes, .. }) if !(0.0..=64.0).contains(index_bytes) => {
                wrong("representation.index_bytes", *index_bytes, "from 0 to 64 bytes of a row's index")
            }
            _ => Ok(()),
        }
    }
}
