//! Applies the rules of techniques to one segment: changes its operators and counts its parameters. The code knows no
//! technique by name.

use crate::footprint::{BytesPerParameter, Precision};
use crate::graph::{OpId, OperatorGraph, PartialOffload, TensorId};
use crate::layer_names::{block_boundary_tensors, layer_input_tensors, name_within_layer};
use crate::memory::activations::{TechniqueRewriter, hands_on_rank, name_of_sampled};
use crate::memory::error::TechniqueError;
use crate::memory::parameters::{BytesByPlace, NumberWidths, ParameterTensors, SegmentStatics};
use crate::memory::policy::{
    Adapter, OffloadPlace, OffloadTarget, ReadOnlyItem, Rebuild, Representation, SliceAxis, TechniqueRule, TensorClass,
};
use crate::model::Model;
use crate::training::{Segment, SegmentKind, TrainingGraph};
use std::collections::{BTreeMap, BTreeSet};

/// The name of a layer's input in rules, whatever operator makes it.
const INPUT: &str = "input";

/// A rule and its technique's name.
pub(crate) struct NamedRule {
    pub(crate) name: String,
    pub(crate) rule: TechniqueRule,
}

/// The strongest match of a rule in the model's segments so far.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RuleMatch {
    Nothing,
    /// Only tensors that are already offloaded.
    Gone,
    /// Only frozen weights, which have no tensors of the rule's class.
    Frozen,
    /// Only tensors in kernels where the rule's form would take more memory than it saves.
    KeptWhole,
    Something,
}

/// Applies the rules to a segment's operators. Returns the bytes of its parameters, and records each rule's match in
/// `found`.
pub(crate) fn change_segment(
    model: &Model,
    segment: &mut Segment,
    rules: &[NamedRule],
    period: u64,
    found: &mut [RuleMatch],
) -> Result<SegmentStatics, TechniqueError> {
    let width = if segment.kind == SegmentKind::Embedding { model.embedding_width } else { 0 };
    let parameters = ParameterTensors::new(&segment.graph, &segment.lowering, segment.tied_parameters, width);
    let mut change = SegmentChange { heads: model.heads, segment, parameters };
    for (rule, found) in rules.iter().zip(found) {
        if let Some(here) = change.apply_rule(rule)? {
            *found = here.max(*found);
        }
    }
    let SegmentChange { segment, parameters, .. } = change;
    let per = segment.bytes_per_parameter();
    let widths = NumberWidths {
        per,
        adapter: if segment.lowering.wide_adapters {
            BytesPerParameter::new(segment.lowering.optimizer, &Precision::FP32)
        } else {
            per
        },
        states: segment.lowering.optimizer.states(),
        operand: segment.lowering.precision.operand.bytes(),
    };
    segment.update_extra = parameters.extra_update_kernels(&widths, segment.lowering.precision.operand, period);
    Ok(parameters.static_bytes(&widths))
}

/// A segment whose operators and parameters rules change.
struct SegmentChange<'a> {
    heads: u64,
    segment: &'a mut Segment,
    parameters: ParameterTensors,
}

fn rewrite_segment<'s>(segment: &'s mut Segment, technique: &'s str, heads: u64) -> TechniqueRewriter<'s> {
    TechniqueRewriter::new(&mut segment.graph, segment.lowering.wide_adapters, technique, heads)
}

impl SegmentChange<'_> {
    /// Applies a rule. Returns its match; `None` if the operator beside which it acts is not in the segment.
    fn apply_rule(&mut self, NamedRule { name, rule }: &NamedRule) -> Result<Option<RuleMatch>, TechniqueError> {
        let beside = |other: &String| self.segment.graph.operators.iter().any(|op| op.name.ends_with(other.as_str()));
        if rule.at.beside.as_ref().is_some_and(|other| !beside(other)) {
            return Ok(None);
        }
        if rule.frozen && !self.segment.lowering.autocast.is_none() {
            let why =
                "frozen weights are fp32 under autocast, and cast again for every product: not modelled".to_owned();
            return Err(TechniqueError::refuse(name, why, "leave kernels.autocast out"));
        }
        let here = match rule.class {
            TensorClass::ReadOnly => RuleMatch::Something,
            TensorClass::SavedActivations => self.change_activations(name, rule)?,
            TensorClass::Transients | TensorClass::Logits => {
                something_if(slice_tensors(&mut self.segment.graph, rule, name)?, RuleMatch::Nothing)
            }
            _ => match &rule.adapter {
                Some(adapter) => self.add_adapters(name, rule, adapter)?,
                None => self.change_parameters(name, rule)?,
            },
        };
        Ok(Some(here))
    }

    fn change_activations(&mut self, name: &str, rule: &TechniqueRule) -> Result<RuleMatch, TechniqueError> {
        let mut formed = RuleMatch::Nothing;
        if let Some(form) = &rule.representation {
            let mut rewriter = rewrite_segment(self.segment, name, self.heads);
            let any = rewriter.change_representation(rule, form)?;
            let without = if rewriter.kept_whole { RuleMatch::KeptWhole } else { RuleMatch::Nothing };
            formed = something_if(any, without);
            if let Some(rank) = hands_on_rank(form).filter(|_| any) {
                self.parameters.project_gradients(rule, rank, name)?;
            }
        }
        Ok(merge_placements(&mut self.segment.graph, rule, name)?.max(formed))
    }

    fn add_adapters(
        &mut self,
        name: &str,
        rule: &TechniqueRule,
        adapter: &Adapter,
    ) -> Result<RuleMatch, TechniqueError> {
        let any = rewrite_segment(self.segment, name, self.heads).add_adapters(rule, adapter)?;
        self.parameters.add_adapters(rule, adapter, &self.segment.graph);
        Ok(something_if(any, RuleMatch::Nothing))
    }

    fn change_parameters(&mut self, name: &str, rule: &TechniqueRule) -> Result<RuleMatch, TechniqueError> {
        let mut rewriter = rewrite_segment(self.segment, name, self.heads);
        if rule.frozen {
            rewriter.freeze_weights(rule);
        }
        let any = self.parameters.apply_rule(rule, name)?;
        if let (TensorClass::Weights, Some(Representation::Quantised { bits, group, meta_bytes, .. })) =
            (rule.class, &rule.representation)
        {
            rewriter.quantise_weights(rule, bits / 8.0 + meta_bytes / group.max(1.0));
        }
        let frozen = self.parameters.are_frozen_at(rule);
        Ok(something_if(any, if frozen { RuleMatch::Frozen } else { RuleMatch::Nothing }))
    }
}

fn something_if(any: bool, without: RuleMatch) -> RuleMatch {
    if any { RuleMatch::Something } else { without }
}

/// Applies a rule's rebuild and placement. Returns the stronger match of the two.
fn merge_placements(
    graph: &mut OperatorGraph,
    rule: &TechniqueRule,
    technique: &str,
) -> Result<RuleMatch, TechniqueError> {
    let rebuilt = match rule.rebuild {
        Some(rebuild) => drop_rebuilt(graph, rule, rebuild, technique)?,
        None => RuleMatch::Nothing,
    };
    let gone = match &rule.place {
        Some(place) => offload_tensors(graph, rule, place, technique)?,
        None => RuleMatch::Nothing,
    };
    Ok(rebuilt.max(gone))
}

/// Returns the reason why a random sample of the rows of `of` cannot be recomputed.
pub(crate) fn redraw_reason(of: &str) -> String {
    format!(
        "rows of {of} are drawn at random: a recomputation would draw others, because the generator's state is \
        not kept"
    )
}

/// Drops the tensors that a rule rebuilds. A dropped random sample is an error.
fn drop_rebuilt(
    graph: &mut OperatorGraph,
    rule: &TechniqueRule,
    rebuild: Rebuild,
    technique: &str,
) -> Result<RuleMatch, TechniqueError> {
    let chosen = |id: OpId| rule.at.selects_operator(&graph.operators[id.index()].name);
    let read_outside: BTreeSet<TensorId> =
        graph.operators.iter().filter(|op| !chosen(op.id)).flat_map(|op| &op.inputs).copied().collect();
    // Tensors that layers of a segment pass to each other are kept like a layer's input.
    let handed = block_boundary_tensors(graph);
    let made =
        graph.tensors.iter().filter(|t| t.producer.is_some_and(chosen)).map(|t| t.id).filter(|t| !handed.contains(t));
    let dropped: Vec<TensorId> = match rebuild {
        Rebuild::Outputs => made.collect(),
        Rebuild::Inside => made.filter(|t| !read_outside.contains(t)).collect(),
    };
    if let Some(of) = dropped.iter().find_map(|t| name_of_sampled(&graph.tensors[t.index()])) {
        return Err(TechniqueError::refuse(technique, redraw_reason(of), "leave one of the techniques out"));
    }
    let found = if dropped.is_empty() { RuleMatch::Nothing } else { RuleMatch::Something };
    graph.settled.rebuilt.extend(dropped);
    Ok(found)
}

/// Offloads the tensors, statistics included, that the backward passes of the selected operators read. Two targets, or
/// two techniques that offload a fraction, are an error.
fn offload_tensors(
    graph: &mut OperatorGraph,
    rule: &TechniqueRule,
    place: &OffloadPlace,
    technique: &str,
) -> Result<RuleMatch, TechniqueError> {
    let of_chosen = graph.operators.iter().filter(|op| rule.at.selects_operator(&op.name)).flat_map(|op| &op.backward);
    let mut reads: BTreeSet<TensorId> = of_chosen.flat_map(|chain| &chain.reads).copied().collect();
    let inputs = layer_input_tensors(graph);
    let named = |t: &TensorId| {
        let name = name_within_layer(&graph.tensors[t.index()].name).unwrap_or_default();
        let is = |wanted: &String| wanted == name || wanted == INPUT && inputs.contains(t);
        rule.tensors.is_empty() || rule.tensors.iter().any(is)
    };
    reads.retain(named);
    let any = !reads.is_empty();
    reads.retain(|t| !graph.settled.away.contains(t));
    let found = match (any, reads.is_empty()) {
        (_, false) => RuleMatch::Something,
        (true, true) => RuleMatch::Gone,
        (false, true) => RuleMatch::Nothing,
    };
    let settled = &mut graph.settled;
    let nvme = place.to == OffloadTarget::Nvme;
    if !(settled.away.is_empty() && settled.partly.is_none()) && settled.nvme != nvme {
        let why = "activations go both to the host and to NVMe at once, which is not modelled";
        return Err(TechniqueError::refuse(technique, why, "send them to one place"));
    }
    // With several techniques, tensors move one by one only if all techniques do so.
    let first = settled.away.is_empty() && settled.partly.is_none();
    let by_tensor = rule.slice.as_ref().is_some_and(|slice| slice.along == SliceAxis::Tensor);
    settled.by_tensor = by_tensor && (first || settled.by_tensor);
    settled.nvme = nvme;
    if place.fraction >= 1.0 {
        settled.away.extend(reads);
    } else if settled.partly.is_some() {
        return Err(TechniqueError::refuse(
            technique,
            "two techniques offload a fraction of the activations",
            "use one of them",
        ));
    } else {
        settled.partly = Some(PartialOffload::new(reads, place.fraction, place.rest));
    }
    settled.buffered_layers =
        settled.buffered_layers.max(rule.slice.as_ref().and_then(|s| s.count).unwrap_or(0.0) as u64);
    Ok(found)
}

/// Slices the tensors that only the selected operators read and write. Returns whether there are any.
///
/// # Errors
/// A tensor that is sliced already.
fn slice_tensors(graph: &mut OperatorGraph, rule: &TechniqueRule, technique: &str) -> Result<bool, TechniqueError> {
    let Some(count) = rule.slice.as_ref().filter(|s| s.along == SliceAxis::Sequence).and_then(|s| s.count) else {
        return Ok(false);
    };
    let chosen: BTreeSet<_> =
        graph.operators.iter().filter(|op| rule.at.selects_operator(&op.name)).map(|op| op.id).collect();
    let outside = |t: TensorId| graph.operators.iter().any(|op| !chosen.contains(&op.id) && op.inputs.contains(&t));
    let inner: Vec<TensorId> = graph
        .tensors
        .iter()
        .filter(|t| t.producer.is_some_and(|op| chosen.contains(&op)) && !outside(t.id) && t.id != graph.output)
        .map(|t| t.id)
        .collect();
    let found = !inner.is_empty();
    if let Some((sliced, count)) = inner.iter().find_map(|t| Some((t, graph.settled.slices.get(t)?))) {
        let why = format!("{} exists in {count} slices already", graph.tensors[sliced.index()].name);
        let cure = "use --loss whole if the loss runs by chunks, or leave one of the techniques out";
        return Err(TechniqueError::refuse(technique, why, cure));
    }
    let slices: &mut BTreeMap<TensorId, u64> = &mut graph.settled.slices;
    slices.extend(inner.into_iter().map(|t| (t, (count as u64).max(1))));
    crate::memory::slices::cut_products(graph, &chosen, (count as u64).max(1));
    Ok(found)
}

/// Returns the bytes of the rules' read-only data on one device, by memory.
pub(crate) fn read_only_bytes(model: &Model, training: &TrainingGraph, rules: &[NamedRule]) -> BytesByPlace {
    let ranks = u64::from(training.lowering.tensor_parallel.max(1));
    let operand = training.lowering.precision.operand.bytes();
    let key_values =
        (model.kv_heads / ranks).max(1) * (model.head_dim + model.value_dim()) * operand * model.layer_count();
    let mut sum = BytesByPlace::default();
    for NamedRule { rule, .. } in rules {
        let Some(stock) = &rule.stock else { continue };
        let each = match stock.item {
            ReadOnlyItem::TokenKeyValues => key_values as f64,
            ReadOnlyItem::Byte => 1.0,
            ReadOnlyItem::ModelCopy => 4.0 * model.parameters() as f64 / ranks as f64,
        };
        sum.add_unsplit_bytes((stock.count * each).ceil() as u64, rule.place.as_ref());
    }
    sum
}
