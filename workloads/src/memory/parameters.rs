//! Applies rules about weights, gradients and optimizer states to the bytes of every parameter tensor. The code knows
//! no technique by name.

use super::error::TechniqueError;
use super::matrix::Matrix;
use super::policy::{
    Adapter, AdapterForm, AdapterTraining, OffloadPlace, OffloadTarget, ProjectionBasis, Representation, TechniqueRule,
    TensorClass,
};
use crate::footprint::BytesPerParameter;
use crate::graph::{Gradient, OperatorGraph, OperatorNode, OperatorRole, Parameters};
use crate::layer_names::name_within_layer;
use crate::lowering::Lowering;
use serde::{Deserialize, Serialize};
use sim::kernel::{CollectiveKind, Kernel};
use sim::units::Bytes;

/// Bytes of one tensor class by memory. Each [`Parameters`] here counts bytes: those split by tensor parallelism, those
/// replicated, and those of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BytesByPlace {
    /// In device memory.
    pub device: Parameters,
    /// In host memory.
    pub host: Parameters,
    /// In storage.
    pub nvme: Parameters,
}

impl BytesByPlace {
    fn add_split_bytes(&mut self, kind: ParameterSplit, bytes: u64, place: Option<&OffloadPlace>) {
        let away = place.map_or(0, |place| (bytes as f64 * place.fraction).ceil() as u64).min(bytes);
        kind.add_count(&mut self.device, bytes - away);
        match place.map(|place| place.to) {
            Some(OffloadTarget::Nvme) => kind.add_count(&mut self.nvme, away),
            _ => kind.add_count(&mut self.host, away),
        }
    }

    /// Adds bytes that every device holds in full.
    pub(crate) fn add_unsplit_bytes(&mut self, bytes: u64, place: Option<&OffloadPlace>) {
        self.add_split_bytes(ParameterSplit::Replicated, bytes, place);
    }

    fn add_each(self, other: Self, of: impl Fn(Parameters, Parameters) -> Parameters) -> Self {
        Self { device: of(self.device, other.device), host: of(self.host, other.host), nvme: of(self.nvme, other.nvme) }
    }
}

/// Bytes that the parameters of one piece take under techniques.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StaticBytes {
    /// Weights in the form that products read.
    pub weights: BytesByPlace,
    /// The frozen part of `weights` on the device. It has no master copy.
    pub frozen: Parameters,
    /// Further copies of trained weights; the update reads them.
    pub copies: BytesByPlace,
    /// The optimizer's master copy of the weights.
    pub masters: BytesByPlace,
    /// Gradients that exist at the same time.
    pub gradients: BytesByPlace,
    /// Optimizer states.
    pub states: BytesByPlace,
    /// Read-only data.
    pub stock: BytesByPlace,
    /// Bytes of the largest gradient among those that are consumed one after the other.
    pub largest_gradient: u64,
    /// Number of parameters that the optimizer updates.
    pub updated: Parameters,
    /// The part of `updated` whose update waits for all gradients. The rest is updated as each gradient arrives.
    pub at_once: Parameters,
    /// Number of gradient elements that data-parallel ranks exchange.
    pub exchanged: Parameters,
}

impl StaticBytes {
    /// Returns the sum over two pieces.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let sum = |a: BytesByPlace, b| a.add_each(b, Parameters::plus);
        Self {
            weights: sum(self.weights, other.weights),
            frozen: self.frozen.plus(other.frozen),
            copies: sum(self.copies, other.copies),
            masters: sum(self.masters, other.masters),
            gradients: sum(self.gradients, other.gradients),
            states: sum(self.states, other.states),
            stock: sum(self.stock, other.stock),
            largest_gradient: self.largest_gradient.max(other.largest_gradient),
            updated: self.updated.plus(other.updated),
            at_once: self.at_once.plus(other.at_once),
            exchanged: self.exchanged.plus(other.exchanged),
        }
    }

    /// Returns the bytes of `count` pieces.
    #[must_use]
    pub fn times_pieces(self, count: u64) -> Self {
        let times = |a: BytesByPlace| a.add_each(a, |a, _| a.times_pieces(count));
        Self {
            weights: times(self.weights),
            frozen: self.frozen.times_pieces(count),
            copies: times(self.copies),
            masters: times(self.masters),
            gradients: times(self.gradients),
            states: times(self.states),
            stock: times(self.stock),
            largest_gradient: if count == 0 { 0 } else { self.largest_gradient },
            updated: self.updated.times_pieces(count),
            at_once: self.at_once.times_pieces(count),
            exchanged: self.exchanged.times_pieces(count),
        }
    }
}

/// Bytes of a segment's parameters, on the stage of the embedding that it is tied to and on a stage without that
/// embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SegmentStatics {
    /// On the embedding's stage, or if the segment is tied to no embedding.
    pub own: StaticBytes,
    /// On a stage without the embedding, with a copy of the shared parameters.
    pub apart: StaticBytes,
}

/// The way in which tensor and expert parallelism split a parameter tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParameterSplit {
    Sharded,
    Replicated,
    Expert,
}

impl ParameterSplit {
    fn add_count(self, to: &mut Parameters, count: u64) {
        let slot = match self {
            Self::Sharded => &mut to.sharded,
            Self::Replicated => &mut to.replicated,
            Self::Expert => &mut to.expert,
        };
        *slot = slot.saturating_add(count);
    }
}

/// The rules' treatment of one class (weights, masters, gradients or states) of a parameter tensor.
#[derive(Debug, Clone, Default)]
struct ClassTreatment {
    forms: Vec<Representation>,
    place: Option<OffloadPlace>,
    one_at_a_time: bool,
}

/// Parameters of one operator that are split the same way.
#[derive(Debug, Clone)]
struct ParameterTensor {
    operator: String,
    /// True for the factors of an adapter beside the operator.
    adapter: bool,
    matrix: Option<Matrix>,
    numbers: u64,
    kind: ParameterSplit,
    trained: bool,
    /// True if the segment itself counts the tensor. Otherwise only a stage without the embedding counts it.
    counted: bool,
    held: [ClassTreatment; 4],
}

/// A product's weights and the rank of the adapter beside them.
struct AdaptedMatrix<'a> {
    tensor: &'a ParameterTensor,
    matrix: Matrix,
    rank: u64,
    /// True if the product is split by rows.
    by_rows: bool,
}

impl AdaptedMatrix<'_> {
    fn adapter_tensor(&self, numbers: u64, kind: ParameterSplit) -> ParameterTensor {
        ParameterTensor {
            operator: self.tensor.operator.clone(),
            adapter: true,
            matrix: None,
            numbers,
            kind,
            trained: true,
            counted: true,
            held: Default::default(),
        }
    }

    /// Returns the adapter's vectors. A vector of the result's width is split like the result; a vector of the input's
    /// width is split like the input.
    fn vectors(&self, form: AdapterForm) -> Vec<ParameterTensor> {
        let (matrix, rank) = (self.matrix, self.rank);
        let vector = |numbers: u64, kind| self.adapter_tensor(numbers.saturating_mul(matrix.copies), kind);
        let along = |split: bool| match self.tensor.kind {
            ParameterSplit::Sharded if !split => ParameterSplit::Replicated,
            kind => kind,
        };
        let (inputs, outputs) = (along(self.by_rows), along(!self.by_rows));
        match form {
            AdapterForm::LowRank | AdapterForm::Corrected | AdapterForm::WeightUpdate | AdapterForm::ChangedWeights => {
                Vec::new()
            }
            AdapterForm::Decomposed => vec![vector(matrix.columns, outputs)],
            AdapterForm::SharedProjection => {
                vec![vector(matrix.columns, outputs), vector(rank, ParameterSplit::Replicated)]
            }
            AdapterForm::InputSums => vec![vector(rank.saturating_mul(matrix.columns), outputs)],
            AdapterForm::ScaledInput => vec![vector(matrix.rows, inputs)],
            AdapterForm::ScaledOutput | AdapterForm::Bias => vec![vector(matrix.columns, outputs)],
        }
    }

    /// Returns the adapter's two factors; none for a form without factors. If a product is split by columns, its first
    /// factor is whole on every device. If it is split by rows, its second factor is whole.
    fn factors(&self, adapter: &Adapter) -> Vec<ParameterTensor> {
        let has_factors = matches!(
            adapter.form,
            AdapterForm::LowRank
                | AdapterForm::Corrected
                | AdapterForm::Decomposed
                | AdapterForm::WeightUpdate
                | AdapterForm::ChangedWeights
        );
        if !has_factors {
            return Vec::new();
        }
        let (matrix, rank) = (self.matrix, self.rank);
        let kinds = match (self.tensor.kind, self.by_rows) {
            (ParameterSplit::Sharded, true) => [ParameterSplit::Sharded, ParameterSplit::Replicated],
            (ParameterSplit::Sharded, false) => [ParameterSplit::Replicated, ParameterSplit::Sharded],
            (kind, _) => [kind; 2],
        };
        let factor = |rows, columns, kind, first: bool| {
            let ranks = if kind == ParameterSplit::Replicated { 1 } else { matrix.ranks };
            let factor = Matrix { copies: matrix.copies, rows, columns, ranks, by_rows: first };
            ParameterTensor {
                matrix: Some(factor),
                trained: !first || adapter.trained == AdapterTraining::Both,
                ..self.adapter_tensor(factor.number_count(), kind)
            }
        };
        vec![factor(matrix.rows, rank, kinds[0], true), factor(rank, matrix.columns, kinds[1], false)]
    }
}

/// The classes of parameter tensors, in the order of [`ParameterTensor::held`].
const CLASSES: [TensorClass; 4] =
    [TensorClass::Weights, TensorClass::MasterWeights, TensorClass::Gradients, TensorClass::OptimizerStates];

/// All parameter tensors of one segment.
pub(crate) struct ParameterTensors {
    tensors: Vec<ParameterTensor>,
    /// Further copies of all trained weights: (bytes per element, place).
    copies: Vec<(f64, Option<OffloadPlace>)>,
}

/// Bytes per element of each class, and the number of optimizer states.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberWidths {
    pub(crate) per: BytesPerParameter,
    /// Bytes per element of adapters.
    pub(crate) adapter: BytesPerParameter,
    pub(crate) states: u64,
    pub(crate) operand: u64,
}

impl ParameterTensors {
    /// Collects the parameter tensors of a segment before any technique. `tied` is the number of the head's parameters
    /// that belong to the embedding. `width` is the number of columns of lookup tables.
    pub(crate) fn new(graph: &OperatorGraph, lowering: &Lowering, tied: u64, width: u64) -> Self {
        let mut tensors = Vec::new();
        for op in &graph.operators {
            let mut left = op.parameters;
            if let Some(matrix) = matrix_of_operator(op, width) {
                let slots = [
                    (ParameterSplit::Sharded, left.sharded),
                    (ParameterSplit::Replicated, left.replicated),
                    (ParameterSplit::Expert, left.expert),
                ];
                if let Some((kind, _)) = slots.into_iter().find(|(_, count)| *count >= matrix.number_count()) {
                    let slot = match kind {
                        ParameterSplit::Sharded => &mut left.sharded,
                        ParameterSplit::Replicated => &mut left.replicated,
                        ParameterSplit::Expert => &mut left.expert,
                    };
                    *slot -= matrix.number_count();
                    let ranks = match kind {
                        ParameterSplit::Replicated => 1,
                        ParameterSplit::Sharded => lowering.tensor_parallel,
                        ParameterSplit::Expert => lowering.expert_tensor_parallel.unwrap_or(lowering.tensor_parallel),
                    };
                    let matrix = Matrix { ranks: u64::from(ranks.max(1)), ..matrix };
                    let counted = tied == 0 || op.role != OperatorRole::Logits;
                    tensors.push(new_tensor(op, Some(matrix), matrix.number_count(), kind, counted));
                }
            }
            for (kind, count) in [
                (ParameterSplit::Sharded, left.sharded),
                (ParameterSplit::Replicated, left.replicated),
                (ParameterSplit::Expert, left.expert),
            ] {
                if count > 0 {
                    tensors.push(new_tensor(op, None, count, kind, true));
                }
            }
        }
        Self { tensors, copies: Vec::new() }
    }

    /// Applies a rule; returns whether it matched anything.
    ///
    /// # Errors
    /// A form that the tensor cannot have or that conflicts with an earlier form; quantised weights that are trained.
    pub(crate) fn apply_rule(&mut self, rule: &TechniqueRule, technique: &str) -> Result<bool, TechniqueError> {
        let mut found = false;
        if let Some(bytes) = rule.copy_bytes {
            self.copies.push((bytes, rule.place.clone()));
            return Ok(true);
        }
        let Some(class) = CLASSES.iter().position(|class| *class == rule.class) else { return Ok(false) };
        for tensor in self.tensors.iter_mut().filter(|t| rule.at.selects_operator(&t.operator)) {
            if rule.frozen {
                tensor.trained &= tensor.adapter;
                found = true;
                continue;
            }
            if class > 0 && !tensor.trained {
                continue;
            }
            if class == 0 && matches!(rule.representation, Some(Representation::Quantised { .. })) {
                // Only products have quantised weights; their adapters do not.
                if tensor.adapter || tensor.matrix.is_none() {
                    continue;
                }
                if tensor.trained {
                    let why = format!("it quantises the weights of {}, which are trained", tensor.operator);
                    let cure = "add an adapter, which freezes them (--technique lora), or leave it out";
                    return Err(TechniqueError::refuse(technique, why, cure));
                }
            }
            found = true;
            let held = &mut tensor.held[class];
            if let Some(form) = &rule.representation {
                if let Some(other) = held.forms.iter().find(|other| !can_follow(other, form)) {
                    let why = format!("the {} of {} are {} already", rule.class, tensor.operator, describe_form(other));
                    return Err(TechniqueError::refuse(technique, why, "leave one of the techniques out"));
                }
                if matches!(form, Representation::Projected { basis: ProjectionBasis::SingularVectors, .. })
                    && tensor.adapter
                {
                    let why =
                        format!("the trained part of {} is an adapter, which has a low rank already", tensor.operator);
                    return Err(TechniqueError::refuse(technique, why, "leave one of the techniques out"));
                }
                form_fits_tensor(form, tensor.matrix, &tensor.operator, technique)?;
                held.forms.push(form.clone());
            }
            if let Some(place) = &rule.place {
                held.place = Some(place.clone());
            }
            held.one_at_a_time |= rule.slice.is_some();
        }
        Ok(found)
    }

    /// Returns whether `rule` gives a form to some parameters, and all of them are frozen.
    pub(crate) fn are_frozen_at(&self, rule: &TechniqueRule) -> bool {
        let mut at = self
            .tensors
            .iter()
            .filter(|t| rule.representation.is_some() && rule.at.selects_operator(&t.operator))
            .peekable();
        at.peek().is_some() && at.all(|t| !t.trained)
    }

    /// Projects gradients and states of the selected products to `rank`, because the products' inputs are kept
    /// projected.
    pub(crate) fn project_gradients(
        &mut self,
        rule: &TechniqueRule,
        rank: f64,
        technique: &str,
    ) -> Result<(), TechniqueError> {
        let form = Representation::Projected { rank, basis: ProjectionBasis::Seed };
        for class in [TensorClass::Gradients, TensorClass::OptimizerStates] {
            let mut of_products = rule.clone();
            (of_products.class, of_products.representation) = (class, Some(form.clone()));
            (of_products.read_by, of_products.place, of_products.slice) = (None, None, None);
            self.apply_rule(&of_products, technique)?;
        }
        Ok(())
    }

    /// Adds the parameters of adapters at the selected products.
    pub(crate) fn add_adapters(&mut self, rule: &TechniqueRule, adapter: &Adapter, graph: &OperatorGraph) {
        let mut added = Vec::new();
        let selected = |t: &&ParameterTensor| {
            !t.adapter && rule.at.selects_operator(&t.operator) && name_within_layer(&t.operator).is_some()
        };
        for tensor in self.tensors.iter().filter(selected) {
            let Some(matrix) = tensor.matrix else { continue };
            let beside = AdaptedMatrix {
                tensor,
                matrix,
                rank: adapter.rank as u64,
                by_rows: graph.find_operator(&tensor.operator).is_some_and(sums_over_devices),
            };
            added.extend(beside.vectors(adapter.form));
            added.extend(beside.factors(adapter));
        }
        self.tensors.extend(added);
    }

    /// Returns each trained matrix and the forms of its optimizer states.
    pub(crate) fn optimizer_state_forms(&self) -> impl Iterator<Item = (Matrix, &[Representation])> {
        let trained = self.tensors.iter().filter(|t| t.trained);
        trained.filter_map(|t| Some((t.matrix?, t.held[3].forms.as_slice())))
    }

    /// Returns the bytes of all parameter tensors, with and without the embedding on the same stage.
    pub(crate) fn static_bytes(&self, widths: &NumberWidths) -> SegmentStatics {
        let of = |apart: bool| {
            let mut sum = StaticBytes::default();
            self.tensors.iter().filter(|t| apart || t.counted).for_each(|t| self.add_tensor_bytes(&mut sum, t, widths));
            sum
        };
        SegmentStatics { own: of(false), apart: of(true) }
    }

    fn add_tensor_bytes(&self, sum: &mut StaticBytes, tensor: &ParameterTensor, widths: &NumberWidths) {
        let [weights, masters, gradients, states] = &tensor.held;
        let of = |held: &ClassTreatment, each: Bytes, arrays: u64| {
            bytes_of_arrays(tensor, &held.forms, each.0, arrays, widths.operand)
        };
        let per = if tensor.adapter { &widths.adapter } else { &widths.per };
        let mut own = BytesByPlace::default();
        own.add_split_bytes(tensor.kind, of(weights, per.weight, 1), weights.place.as_ref());
        sum.weights = sum.weights.add_each(own, Parameters::plus);
        if !tensor.trained {
            sum.frozen = sum.frozen.plus(own.device);
            return;
        }
        for (bytes, place) in &self.copies {
            sum.copies.add_split_bytes(tensor.kind, (tensor.numbers as f64 * bytes).ceil() as u64, place.as_ref());
        }
        tensor.kind.add_count(&mut sum.updated, tensor.numbers);
        sum.masters.add_split_bytes(tensor.kind, of(masters, per.master, 1), masters.place.as_ref());
        let arrays = widths.states.max(1);
        let factored = states.forms.contains(&Representation::Factored);
        let each = if factored || widths.states > 0 { Bytes(per.state.0 / arrays) } else { Bytes::ZERO };
        sum.states.add_split_bytes(tensor.kind, of(states, each, arrays), states.place.as_ref());
        let gradient = of(gradients, per.gradient, 1);
        let shape = tensor.matrix.map_or(1, |matrix| matrix.copies.max(1));
        let exchanged = gradient / per.gradient.0.max(1);
        tensor.kind.add_count(&mut sum.exchanged, exchanged);
        if !gradients.one_at_a_time {
            tensor.kind.add_count(&mut sum.at_once, tensor.numbers);
        }
        if gradients.one_at_a_time {
            sum.largest_gradient = sum.largest_gradient.max(gradient / shape);
            // A gradient in host memory or storage is held there in full.
            let gone = BytesByPlace::default();
            let mut placed = gone;
            placed.add_split_bytes(tensor.kind, gradient, gradients.place.as_ref());
            placed.device = gone.device;
            sum.gradients = sum.gradients.add_each(placed, Parameters::plus);
        } else {
            sum.gradients.add_split_bytes(tensor.kind, gradient, gradients.place.as_ref());
        }
    }
}

fn new_tensor(
    op: &OperatorNode,
    matrix: Option<Matrix>,
    numbers: u64,
    kind: ParameterSplit,
    counted: bool,
) -> ParameterTensor {
    ParameterTensor {
        operator: op.name.clone(),
        adapter: false,
        matrix,
        numbers,
        kind,
        trained: true,
        counted,
        held: Default::default(),
    }
}

/// Returns the matrix of a product or of a lookup table; `None` for other operators.
fn matrix_of_operator(op: &OperatorNode, width: u64) -> Option<Matrix> {
    if op.role == OperatorRole::Lookup {
        let numbers = op.parameters.per_device_count();
        let lookup = width > 0 && numbers > 0 && numbers.is_multiple_of(width);
        return lookup.then(|| Matrix { copies: 1, rows: numbers / width, columns: width, ranks: 1, by_rows: true });
    }
    let of = op.backward.iter().filter(|chain| chain.gradient == Gradient::Weights).flat_map(|chain| &chain.steps);
    let mut c = of.filter_map(|s| match s.kernel {
        Kernel::Contraction(c) => Some(c),
        _ => None,
    });
    c.next().map(|c| Matrix { copies: c.batch, rows: c.m, columns: c.n, ranks: 1, by_rows: sums_over_devices(op) })
}

/// Returns whether a product sums over tensor-parallel devices, each of which holds some rows of the weights. A
/// collective other than an all-gather shows this.
fn sums_over_devices(op: &OperatorNode) -> bool {
    op.forward.iter().any(|s| matches!(&s.kernel, Kernel::Collective(c) if c.kind != CollectiveKind::AllGather))
}

/// Returns whether a tensor can have both forms: one must be a projection and the other a quantisation.
fn can_follow(one: &Representation, other: &Representation) -> bool {
    let narrow = |form: &Representation| matches!(form, Representation::Quantised { .. });
    let low_rank = |form: &Representation| matches!(form, Representation::Projected { .. });
    low_rank(one) && narrow(other) || narrow(one) && low_rank(other)
}

fn describe_form(form: &Representation) -> &'static str {
    match form {
        Representation::Absent => "left out",
        Representation::Quantised { .. } => "quantised",
        Representation::Projected { .. } => "projected",
        Representation::Factored => "factored",
        _ => "in another form",
    }
}

/// Checks that a parameter tensor can have `form`.
///
/// # Errors
/// A rank above the matrix's dimension, or a form for activations.
fn form_fits_tensor(
    form: &Representation,
    matrix: Option<Matrix>,
    operator: &str,
    technique: &str,
) -> Result<(), TechniqueError> {
    match (form, matrix) {
        (Representation::Projected { rank, basis }, Some(matrix)) => {
            if matrix.rank_within_sides(*rank, *basis).is_some() {
                return Ok(());
            }
            let least = matrix.projected_side(*basis);
            let why = format!("a rank of {rank} is above the dimension of {operator}, {least} on one device");
            Err(TechniqueError::refuse(technique, why, format!("use a rank from 1 to {least}")))
        }
        (
            Representation::SampledRows { .. }
            | Representation::GroupScalars { .. }
            | Representation::DerivativeBits { .. }
            | Representation::SharedWithOutput,
            _,
        ) => Err(TechniqueError::refuse(technique, "parameters cannot have this form", "choose another in the preset")),
        _ => Ok(()),
    }
}

/// Returns the total bytes of `arrays` arrays with one element per parameter of the tensor, with all `forms` applied.
/// `each` is the bytes per element before.
fn bytes_of_arrays(tensor: &ParameterTensor, forms: &[Representation], each: u64, arrays: u64, operand: u64) -> u64 {
    let (mut numbers, mut bits, mut beside, mut scales) = (tensor.numbers, each as f64 * 8.0, 0, 0.0);
    // The projection applies first, whatever the order of the techniques.
    let ranked = |form: &&Representation| matches!(form, Representation::Projected { .. });
    for form in forms.iter().filter(ranked).chain(forms.iter().filter(|form| !ranked(form))) {
        match (form, tensor.matrix) {
            (Representation::Absent, _) => return 0,
            (Representation::Projected { rank, basis }, Some(matrix)) => {
                let rank = matrix.rank_within_sides(*rank, *basis).unwrap_or(0);
                let [projected, kept_basis] = matrix.projected_numbers(rank, *basis);
                beside += kept_basis * operand;
                numbers = projected + tensor.numbers.saturating_sub(matrix.number_count());
            }
            (Representation::Quantised { bits: narrow, group, meta_bytes, .. }, _) => {
                bits = *narrow;
                scales = (numbers as f64 / group).ceil() * meta_bytes;
            }
            (Representation::Factored, Some(matrix)) => {
                let vectors = tensor.numbers.saturating_sub(matrix.number_count());
                return 4 * (matrix.copies * (matrix.rows + matrix.columns) + vectors);
            }
            (Representation::Factored, None) => return 4 * tensor.numbers,
            _ => {}
        }
    }
    if each == 0 {
        return 0;
    }
    arrays * ((numbers as f64 * bits / 8.0).ceil() as u64 + scales as u64) + beside
}
