//! Techniques as users request them, their compatibility, and their application to a lowered model.

mod change;
mod targets;

use crate::footprint::{Optimizer, Precision};
use crate::lowering::Lowering;
use crate::memory::TechniqueEffects;
use crate::memory::amount::TrainingQuantities;
use crate::memory::error::TechniqueError;
use crate::memory::policy::{Representation, TechniqueRule, TensorClass, TrainingEffect};
use crate::memory::preset::{Preset, ServingEffect};
use crate::model::Model;
use crate::recompute_policy::{ActivationPolicy, ReplayExtent};
use crate::training::{Segment, SegmentKind, TrainingGraph};
use change::{NamedRule, RuleMatch, change_segment, read_only_bytes, redraw_reason};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use targets::{AdapterTarget, rules_of_targets, target_error, unmatched_adapter};

/// A technique and the parameters that the user gave, such as `galore,rank=256`.
#[derive(Debug, Clone, PartialEq)]
pub struct Technique {
    preset: Arc<Preset>,
    given: BTreeMap<String, f64>,
    /// Modules to which adapters are attached, instead of the preset's; empty for the preset's.
    targets: Vec<AdapterTarget>,
    /// Expected factor on the number of steps; `None` if the user did not allow the technique.
    multiplier: Option<f64>,
}

/// Permission to use a technique that changes what is trained: `NAME`, or `NAME,step_multiplier=X`.
#[derive(Debug, Clone, PartialEq)]
pub struct Allowance {
    /// The technique's name, or the path of its file.
    name: String,
    multiplier: Option<f64>,
}

impl FromStr for Allowance {
    type Err = TechniqueError;

    fn from_str(text: &str) -> Result<Self, TechniqueError> {
        let (name, rest) = text.split_once(',').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let form = |part: &str| TechniqueError::Form { text: text.to_owned(), part: part.to_owned() };
        let multiplier = match rest {
            None => None,
            Some(rest) => {
                let value = rest.trim().strip_prefix("step_multiplier=").map(str::trim).ok_or_else(|| form(rest))?;
                let possible: Option<f64> = value.parse().ok().filter(|number| (1.0..=1e3).contains(number));
                Some(possible.ok_or_else(|| TechniqueError::Value {
                    technique: name.trim().to_owned(),
                    key: "step_multiplier".into(),
                    value: value.to_owned(),
                    limit: "a number from 1 to 1000".into(),
                    meaning: "the factor on the number of training steps".into(),
                })?)
            }
        };
        Ok(Self { name: name.trim().to_owned(), multiplier })
    }
}

/// The key of an adapter's target modules. Its value is a list of names; all other parameters are numbers.
const TARGETS: &str = "targets";

/// Number of equal steps in which an adaptive technique's offload fraction is tried. MEMO's alpha is in eighths (Zhao
/// et al., SIGMOD 2025, section 4).
const PARTS: u32 = 8;

impl Technique {
    /// Returns the technique's preset.
    #[must_use]
    pub fn preset(&self) -> &Preset {
        &self.preset
    }

    /// Returns a copy with one parameter set.
    #[must_use]
    pub fn with_parameter(&self, key: &str, value: f64) -> Self {
        let mut given = self.given.clone();
        given.insert(key.to_owned(), value);
        Self { given, ..self.clone() }
    }

    /// Returns the expected factor on the number of steps, 1 if none is known; throughput is divided by it.
    #[must_use]
    pub fn step_multiplier(&self) -> f64 {
        self.multiplier.unwrap_or(1.0)
    }

    /// Returns whether the offload fraction is open: the technique is adaptive and the user gave no fraction.
    #[must_use]
    pub fn is_adaptive(&self) -> bool {
        self.preset.adaptive && !self.has_parameter("fraction")
    }

    /// Returns a copy whose adapters are attached to `modules`, a list separated by `separator`.
    ///
    /// # Errors
    /// A technique without adapters or with adapters at fixed modules; no module; an unknown or repeated one.
    pub fn with_targets(&self, modules: &str, separator: char) -> Result<Self, TechniqueError> {
        let refused = |why: &str, cure: &str| Err(TechniqueError::refuse(&self.preset.name, why, cure));
        match self.preset.rules.iter().filter(|rule| rule.adapter.is_some()).count() {
            0 => return refused("has no adapters, so no target modules", "leave the targets out, or use lora"),
            1 => {}
            _ => return refused("its adapters stand beside modules of its own", "leave the targets out"),
        }
        let names: Vec<&str> = modules.split(separator).map(str::trim).filter(|name| !name.is_empty()).collect();
        if names.is_empty() {
            return refused("its targets name no module", "name some, such as q_proj,v_proj, or all-linear");
        }
        let targets: Vec<AdapterTarget> = names
            .iter()
            .map(|name| AdapterTarget::find(name).ok_or_else(|| target_error(&self.preset.name, name)))
            .collect::<Result<_, _>>()?;
        if let Some(twice) = names.iter().enumerate().find_map(|(at, name)| names[..at].contains(name).then_some(name))
        {
            return refused(&format!("its targets name {twice} twice"), "name it once");
        }
        Ok(Self { targets, ..self.clone() })
    }

    /// Returns whether the user gave the parameter `key`.
    #[must_use]
    pub fn has_parameter(&self, key: &str) -> bool {
        self.given.contains_key(key)
    }

    /// Returns the value that the user gave the parameter `key`, or `None`.
    #[must_use]
    pub fn given_parameter(&self, key: &str) -> Option<f64> {
        self.given.get(key).copied()
    }

    /// Returns the technique's effect on a deployment that serves `model` with prompts of `input` tokens, and the
    /// values of all parameters.
    ///
    /// # Errors
    /// A technique that has no effect in serving; an unknown parameter, or a value out of range.
    pub fn serving_effect(
        &self,
        model: &Model,
        input: u64,
    ) -> Result<(ServingEffect, BTreeMap<String, f64>), TechniqueError> {
        let preset = &self.preset;
        let Some(effect) = preset.serving else {
            let why = "it changes training, and serving neither keeps activations nor updates weights";
            return Err(TechniqueError::refuse(
                &preset.name,
                why,
                "serve with homer or memory3, or without a technique",
            ));
        };
        let lowering = Lowering { sequence_length: input, ..Lowering::new(model) };
        Ok((effect, self.parameter_values(&TrainingQuantities::new(model, &lowering))?))
    }

    /// Returns the values of all parameters for a model.
    ///
    /// # Errors
    /// An unknown parameter, or a value out of range.
    pub fn parameter_values(&self, facts: &TrainingQuantities) -> Result<BTreeMap<String, f64>, TechniqueError> {
        self.preset.parameter_values(&self.given, facts)
    }
}

impl fmt::Display for Technique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.preset.name)?;
        self.given.iter().try_for_each(|(key, value)| match value.abs() {
            // Very small and very large numbers are printed with an exponent.
            size if size != 0.0 && !(1e-4..1e16).contains(&size) => write!(f, ",{key}={value:e}"),
            _ => write!(f, ",{key}={value}"),
        })?;
        match self.targets.is_empty() {
            true => Ok(()),
            false => write!(f, ",{TARGETS}={}", self.targets.iter().map(|t| t.module).collect::<Vec<_>>().join("/")),
        }
    }
}

impl FromStr for Technique {
    type Err = TechniqueError;

    fn from_str(text: &str) -> Result<Self, TechniqueError> {
        let mut parts = text.split(',').map(str::trim);
        let preset = Arc::new(Preset::load(parts.next().unwrap_or(text))?);
        let (mut given, mut targets) = (BTreeMap::new(), None);
        for part in parts {
            let form = || TechniqueError::Form { text: text.to_owned(), part: part.to_owned() };
            let (key, value) = part.split_once('=').ok_or_else(form)?;
            if key.trim() == TARGETS {
                targets = Some(value.trim().to_owned());
                continue;
            }
            let finite = value.trim().parse().ok().filter(|v: &f64| v.is_finite());
            let value: f64 = finite.ok_or_else(|| TechniqueError::Value {
                technique: preset.name.clone(),
                key: key.trim().to_owned(),
                value: value.trim().to_owned(),
                limit: "a finite number".into(),
                meaning: "a parameter of the technique (coplace list techniques)".into(),
            })?;
            if given.insert(key.trim().to_owned(), value).is_some() {
                return Err(TechniqueError::refuse(
                    &preset.name,
                    format!("{} is given twice", key.trim()),
                    "give it once",
                ));
            }
        }
        let technique = Self { preset, given, targets: Vec::new(), multiplier: None };
        targets.map_or(Ok(technique.clone()), |modules| technique.with_targets(&modules, '/'))
    }
}

impl Serialize for Technique {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Technique {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Techniques used together; usually none. Cloning is cheap.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Technique>", into = "Vec<Technique>")]
pub struct Techniques(Arc<Vec<Technique>>);

impl From<Vec<Technique>> for Techniques {
    fn from(techniques: Vec<Technique>) -> Self {
        Self(Arc::new(techniques))
    }
}

impl From<Techniques> for Vec<Technique> {
    fn from(techniques: Techniques) -> Self {
        techniques.0.to_vec()
    }
}

impl FromIterator<Technique> for Techniques {
    fn from_iter<I: IntoIterator<Item = Technique>>(techniques: I) -> Self {
        Self(Arc::new(techniques.into_iter().collect()))
    }
}

impl fmt::Display for Techniques {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&names.join(" + "))
    }
}

impl Techniques {
    /// Returns a reference to no techniques.
    #[must_use]
    pub fn none() -> &'static Self {
        static NONE: LazyLock<Techniques> = LazyLock::new(Techniques::default);
        &NONE
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the techniques.
    pub fn iter(&self) -> impl Iterator<Item = &Technique> {
        self.0.iter()
    }

    /// Returns copies with the first open offload fraction at 8/8, 7/8, and so on to 0. If no fraction is open, it
    /// returns one unchanged copy.
    #[must_use]
    pub fn offload_choices(&self) -> Vec<Self> {
        let Some(open) = self.iter().position(Technique::is_adaptive) else { return vec![self.clone()] };
        let of = |part: u32| {
            let fraction = f64::from(part) / f64::from(PARTS);
            let choose = |(at, technique): (usize, &Technique)| {
                if at == open { technique.with_parameter("fraction", fraction) } else { technique.clone() }
            };
            self.iter().enumerate().map(choose).collect()
        };
        (0..=PARTS).rev().map(of).collect()
    }

    /// Returns the techniques with the user's allowances applied.
    ///
    /// # Errors
    /// A technique that changes what is trained without an allowance; an allowance for a technique that is not used;
    /// two allowances for one technique; a step multiplier for an exact technique.
    pub fn with_allowances(&self, allowances: &[Allowance]) -> Result<Self, TechniqueError> {
        let named = |allowance: &&Allowance, technique: &Technique| technique.preset.is_called(&allowance.name);
        for (at, allowance) in allowances.iter().enumerate() {
            let refused = |why: &str, cure: String| Err(TechniqueError::refuse(&allowance.name, why, cure));
            let Some(technique) = self.iter().find(|technique| named(&allowance, technique)) else {
                let cure = format!("add --technique {}, or leave it out of --allow", allowance.name);
                return refused("it is allowed, but not among the techniques", cure);
            };
            if allowances[at + 1..].iter().any(|other| named(&other, technique)) {
                return refused("it is allowed twice", "give one --allow for it".to_owned());
            }
            if technique.preset.gate == TrainingEffect::Exact && allowance.multiplier.is_some() {
                return refused(
                    "it is exact: it does not change the number of steps",
                    "leave out its step_multiplier".to_owned(),
                );
            }
        }
        let allowed = |technique: &Technique| {
            let multiplier = allowances.iter().find(|a| named(a, technique)).map(|a| a.multiplier.unwrap_or(1.0));
            let preset = &technique.preset;
            if multiplier.is_none() && preset.gate != TrainingEffect::Exact {
                let why = format!("its gradients or updates are {}: it changes what is trained", preset.gate);
                let cure = format!(
                    "add --allow {0}, or --allow {0},step_multiplier=X if X times as many steps are expected",
                    preset.name
                );
                return Err(TechniqueError::refuse(&preset.name, why, cure));
            }
            Ok(Technique { multiplier, ..technique.clone() })
        };
        self.iter().map(allowed).collect()
    }

    /// Returns the product of all step multipliers; throughput is divided by it.
    #[must_use]
    pub fn step_multiplier(&self) -> f64 {
        self.iter().map(Technique::step_multiplier).product()
    }

    /// Returns the techniques that change what is trained.
    pub fn lossy_techniques(&self) -> impl Iterator<Item = &Technique> {
        self.iter().filter(|technique| technique.preset.gate != TrainingEffect::Exact)
    }

    /// Checks that the techniques can be used together, with `micro_batches` per step.
    ///
    /// # Errors
    /// A technique for inference only; two techniques that exclude each other, both have adapters or are the same; a
    /// technique that needs one micro-batch per step, if a step has several; a parameter that is unknown or out of
    /// range.
    pub fn check_together(&self, facts: &TrainingQuantities, micro_batches: u64) -> Result<(), TechniqueError> {
        for (at, technique) in self.0.iter().enumerate() {
            let preset = &technique.preset;
            if let Some(why) = &preset.inference_only {
                let cure = "leave it out of a training plan";
                return Err(TechniqueError::refuse(&preset.name, why.clone(), cure));
            }
            let values = technique.parameter_values(facts)?;
            if let Some(one) =
                preset.one_micro_batch.as_ref().filter(|one| micro_batches > 1 && one.applies_with(&values))
            {
                let why = format!("{} (a step has {micro_batches} micro-batches)", one.why);
                return Err(TechniqueError::refuse(
                    &preset.name,
                    why,
                    "use a global batch of one micro-batch per replica",
                ));
            }
            for other in &self.0[at + 1..] {
                let pair = format!("{} + {}", preset.name, other.preset.name);
                if preset.name == other.preset.name {
                    return Err(TechniqueError::refuse(&pair, "it is given twice", "give it once"));
                }
                if preset.has_adapters() && other.preset.has_adapters() {
                    return Err(TechniqueError::refuse(&pair, "both put adapters beside products", "use one of them"));
                }
                let reason =
                    preset.excludes.get(&other.preset.name).or_else(|| other.preset.excludes.get(&preset.name));
                if let Some(why) = reason {
                    return Err(TechniqueError::refuse(&pair, why.clone(), "use one of them"));
                }
            }
        }
        Ok(())
    }

    /// Checks that layers can follow `policy` under the techniques: a recomputation must not draw a random sample
    /// again. `training` is the model with the techniques applied.
    ///
    /// # Errors
    /// A policy, or another technique, that recomputes a sample of rows.
    pub fn check_policy(
        &self,
        policy: &ActivationPolicy,
        training: &TrainingGraph,
        replay: ReplayExtent,
    ) -> Result<(), TechniqueError> {
        let draws = |technique: &&Technique| {
            let mut forms = technique.preset.rules.iter().flat_map(|rule| &rule.representation);
            forms.any(|form| matches!(form, Representation::SampledRows { .. }))
        };
        let drawing: Vec<&str> = self.iter().filter(draws).map(|technique| technique.preset.name.as_str()).collect();
        if drawing.is_empty() {
            return Ok(());
        }
        let of = |segment: &Segment| {
            let treatment = policy.treatment_with_extent(&segment.graph, replay);
            treatment.find_redrawn_sample(&segment.graph).map(redraw_reason)
        };
        let Some(why) = training.segments.iter().find_map(of) else { return Ok(()) };
        Err(match policy {
            // This policy recomputes nothing by itself, so another technique does.
            ActivationPolicy::None => TechniqueError::refuse(&self.to_string(), why, "leave one of the techniques out"),
            _ => {
                let both = format!("{} + recompute {policy}", drawing.join(" + "));
                TechniqueError::refuse(&both, why, "use --recompute none, or leave the technique out")
            }
        })
    }

    /// Checks that every technique supports the optimizer, and that the optimizer has the states that the techniques
    /// change.
    fn check_optimizer(&self, optimizer: Optimizer) -> Result<(), TechniqueError> {
        for Technique { preset, .. } in self.iter() {
            let refused = |why: String, other: Optimizer| {
                let cure = format!("use --optimizer {other}, or leave the technique out");
                Err(TechniqueError::refuse(&preset.name, why, cure))
            };
            if let Some(of) = preset.optimizers.as_ref().filter(|of| !of.with.contains(&optimizer)) {
                return refused(
                    format!("{}, and the optimizer is {optimizer}", of.why),
                    of.with.first().copied().unwrap_or_default(),
                );
            }
            let narrowed = preset.rules.iter().any(|rule| {
                let form = rule.representation.as_ref();
                let of_states = form.is_some_and(|form| {
                    matches!(form, Representation::Quantised { .. } | Representation::Projected { .. })
                });
                rule.class == TensorClass::OptimizerStates && of_states
            });
            if narrowed && optimizer.states() == 0 {
                let why = format!("it changes the optimizer's states, and {optimizer} has none");
                return refused(why, Optimizer::Adam);
            }
        }
        Ok(())
    }

    /// Returns notes on runs with several data-parallel replicas: limits of the techniques' published code that the
    /// simulator does not apply. The list is empty for one replica.
    ///
    /// # Errors
    /// Parameters out of range.
    pub fn describe_replica_limits(
        &self,
        facts: &TrainingQuantities,
        replicas: u32,
    ) -> Result<Vec<String>, TechniqueError> {
        let mut notes = Vec::new();
        for technique in self.0.iter().filter(|_| replicas > 1) {
            let (preset, values) = (&technique.preset, technique.parameter_values(facts)?);
            if let Some(one) = preset.one_replica.as_ref().filter(|one| one.applies_with(&values)) {
                notes.push(format!("{}: {} (a step has {replicas} replicas)", preset.name, one.why));
            }
        }
        Ok(notes)
    }

    /// Applies the techniques to a lowered model.
    ///
    /// # Errors
    /// Parameters out of range, incompatible techniques, adapters without a matching module, or a kept form that a
    /// reader of the tensor cannot use.
    pub fn apply_to_graph(
        &self,
        model: &Model,
        mut training: TrainingGraph,
        micro_batches: u64,
    ) -> Result<TrainingGraph, TechniqueError> {
        if self.is_empty() {
            return Ok(training);
        }
        let facts = TrainingQuantities::new(model, &training.lowering);
        self.check_together(&facts, micro_batches)?;
        self.check_optimizer(training.lowering.optimizer)?;
        let rules = self.ordered_rules(&facts, &training.lowering.precision)?;
        let mut applied = self.effects(&facts)?;
        let mut found = vec![RuleMatch::Nothing; rules.len()];
        let stock_here = read_only_bytes(model, &training, &rules);
        for segment in &mut training.segments {
            let mut statics = change_segment(model, segment, &rules, applied.decomposed_every, &mut found)?;
            segment.second_backward = applied.second_backward;
            segment.overlapped_update = applied.overlapped_update;
            if segment.kind == SegmentKind::Embedding {
                (statics.own.stock, statics.apart.stock) = (stock_here, stock_here);
            }
            segment.statics = Some(Box::new(statics));
        }
        let precision = training.lowering.precision;
        for (technique, found) in rules.iter().zip(&found) {
            let note = note_of_match(model, technique, *found, &precision)?;
            applied.notes.extend(note.filter(|note| !applied.notes.contains(note)));
        }
        training.applied = Some(Box::new(applied));
        Ok(training)
    }

    /// Returns the rules of all techniques in the order in which they act: adapters, frozen weights, forms for one kind
    /// of reader, general forms, and the rest.
    fn ordered_rules(
        &self,
        facts: &TrainingQuantities,
        precision: &Precision,
    ) -> Result<Vec<NamedRule>, TechniqueError> {
        let bits_of = |class| bits_of_class(class, precision);
        let mut rules = Vec::new();
        for technique in self.0.iter() {
            let values = technique.parameter_values(facts)?;
            let own = technique.preset.resolve_rules(&values, facts, bits_of)?;
            let own = own.into_iter().flat_map(|rule| rules_of_targets(rule, &technique.targets));
            rules.extend(own.map(|rule| NamedRule { name: technique.preset.name.clone(), rule }));
        }
        // Adapters and frozen weights decide what is read. Forms then decide what is kept. The remaining rules rebuild
        // or offload what is kept.
        rules.sort_by_key(|NamedRule { rule, .. }| {
            match (&rule.adapter, rule.frozen, &rule.representation, rule.read_by) {
                (Some(_), ..) => 0,
                (_, true, ..) => 1,
                (_, _, Some(_), Some(_)) => 2,
                (_, _, Some(_), None) => 3,
                _ => 4,
            }
        });
        Ok(rules)
    }

    /// Returns the run-wide effects of all techniques.
    fn effects(&self, facts: &TrainingQuantities) -> Result<TechniqueEffects, TechniqueError> {
        let mut applied = TechniqueEffects::default();
        for technique in self.0.iter() {
            let (preset, values) = (&technique.preset, technique.parameter_values(facts)?);
            let value = |key: &Option<String>| key.as_ref().and_then(|key| values.get(key)).copied().unwrap_or(0.0);
            applied.planned_addresses |= preset.planned_addresses;
            if preset.only_stores_data() {
                let values: Vec<String> = values.iter().map(|(key, value)| format!("{key} {value}")).collect();
                applied.notes.push(format!("{}: {}", preset.name, values.join(", ")));
            }
            applied.second_backward |= value(&preset.second_backward) != 0.0;
            applied.overlapped_update |= value(&preset.overlapped_update) != 0.0;
            applied.decomposed_every = applied.decomposed_every.max(value(&preset.decomposed_every) as u64);
        }
        Ok(applied)
    }
}

/// Returns the note on a rule that changes nothing; `None` if it changes something.
///
/// # Errors
/// An adapter that no module matches, or a rule on weights that are all frozen.
fn note_of_match(
    model: &Model,
    technique: &NamedRule,
    found: RuleMatch,
    precision: &Precision,
) -> Result<Option<String>, TechniqueError> {
    let NamedRule { name, rule } = technique;
    let class = rule.class;
    Ok(Some(match found {
        RuleMatch::Something if is_as_wide(rule, precision) => {
            format!("{name}: the {class} have {} bits already: nothing changes", bits_of_class(class, precision))
        }
        RuleMatch::Something => return Ok(None),
        // The weights would be frozen with no adapter to train.
        _ if rule.adapter.is_some() => return Err(unmatched_adapter(technique, model)),
        RuleMatch::Frozen => {
            let why = format!("all weights whose {class} it changes are frozen");
            return Err(TechniqueError::refuse(name, why, "leave one of the techniques out"));
        }
        RuleMatch::Gone => format!("{name}: another technique already offloads the same tensors"),
        RuleMatch::Nothing => format!("{name}: {} has nothing that its rule on {class} matches", model.name),
        RuleMatch::KeptWhole => format!(
            "{name}: nothing changes: the gated unit of {} is one kernel, which keeps only gate and up; with bits for \
             the gate it would also keep the activated gate; run operator by operator (--stack-option \
             kernels.elementwise_fusion=false, or --stack huggingface), the technique saves what its paper states",
            model.name
        ),
    }))
}

/// Returns the bits per number of a class in this run; 32 for master weights.
fn bits_of_class(class: TensorClass, precision: &Precision) -> u64 {
    8 * match class {
        TensorClass::Gradients => precision.gradient.bytes(),
        TensorClass::OptimizerStates => precision.state_type().bytes(),
        TensorClass::MasterWeights => 4,
        _ => precision.operand.bytes(),
    }
}

/// Returns whether a rule quantises weights, gradients or optimizer states to the width that they already have.
fn is_as_wide(rule: &TechniqueRule, precision: &Precision) -> bool {
    let bits = match rule.representation {
        Some(Representation::Quantised { bits, .. }) => bits,
        _ => return false,
    };
    let class = rule.class;
    let of_parameters = matches!(class, TensorClass::Weights | TensorClass::Gradients | TensorClass::OptimizerStates);
    of_parameters && bits == bits_of_class(class, precision) as f64
}
