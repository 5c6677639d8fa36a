//! Applies rules about activations to a segment's operators. They change the kept tensors and the kernels. The code
//! knows no technique by name.

use super::error::TechniqueError;
use super::policy::{
    Adapter, AdapterForm, AdapterTraining, BackwardReader, ProjectionBasis, Representation, TechniqueRule,
};
use super::slices::contracted_tokens;
use crate::graph::{
    BackwardChain, Gradient, KernelStep, NARROW, OpId, OperatorGraph, OperatorNode, OperatorRole, StandInKind,
    TensorId, TensorInfo, TensorRole,
};
use sim::kernel::{Contraction, DataType, Direction, Elementwise, ElementwiseFunction, Kernel, Reduction, RowFunction};
use sim::units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the kind of backward pass that a chain belongs to.
pub(crate) fn backward_reader_of_chain(op: &OperatorNode, chain: &BackwardChain) -> BackwardReader {
    let any = |steps: &[KernelStep], wanted: fn(&Kernel) -> bool| steps.iter().any(|s| wanted(&s.kernel));
    let norm = |k: &Kernel| matches!(k, Kernel::Reduction(r) if matches!(r.function, RowFunction::LayerNorm | RowFunction::RmsNorm));
    if chain.gradient == Gradient::Weights {
        return match () {
            () if any(&chain.steps, |k| matches!(k, Kernel::Contraction(_))) => BackwardReader::Product,
            () if any(&op.forward, norm) => BackwardReader::Norm,
            () => BackwardReader::Other,
        };
    }
    let attention = |k: &Kernel| matches!(k, Kernel::FusedAttention(_) | Kernel::Contraction(_));
    let softmax = |k: &Kernel| matches!(k, Kernel::Reduction(r) if r.function == RowFunction::Softmax);
    let function = |wanted: fn(ElementwiseFunction) -> bool| {
        chain.steps.iter().any(|s| matches!(&s.kernel, Kernel::Elementwise(e) if wanted(e.function)))
    };
    match () {
        () if any(&chain.steps, norm) => BackwardReader::Norm,
        () if any(&chain.steps, attention) => BackwardReader::Attention,
        () if any(&chain.steps, softmax) && op.role == OperatorRole::AttentionScores => BackwardReader::Attention,
        () if function(|f| {
            matches!(
                f,
                ElementwiseFunction::Gelu
                    | ElementwiseFunction::Silu
                    | ElementwiseFunction::SwiGlu
                    | ElementwiseFunction::Elu
                    | ElementwiseFunction::Selu
            )
        }) =>
        {
            BackwardReader::Activation
        }
        () if function(|f| f == ElementwiseFunction::Mul) => BackwardReader::Gate,
        () => BackwardReader::Other,
    }
}

/// Returns the first product in an operator's forward pass; `None` if it has none.
pub(crate) fn find_product(op: &OperatorNode) -> Option<Contraction> {
    op.forward.iter().find_map(|s| match s.kernel {
        Kernel::Contraction(c) => Some(c),
        _ => None,
    })
}

/// Returns whether an operator is a gated unit in one kernel. Its backward pass recomputes the activated gate from the
/// gate, because the gradient of the other factor needs the activated gate. With derivative bits instead of the gate,
/// the unit would have to keep the activated gate, which is as large.
fn is_gated_unit(op: &OperatorNode) -> bool {
    op.forward.iter().any(|s| matches!(&s.kernel, Kernel::Elementwise(e) if e.function == ElementwiseFunction::SwiGlu))
}

/// Separates the name of a tensor from the form in which a technique keeps it.
const STANDS_FOR: char = '~';

/// Rewrites a segment for one technique.
pub(crate) struct TechniqueRewriter<'a> {
    pub(crate) graph: &'a mut OperatorGraph,
    /// The technique's name, for errors.
    pub(crate) technique: &'a str,
    /// Number of attention heads; each head is a group that shares a scale.
    pub(crate) heads: u64,
    /// Replacements so far, by tensor. If every reader has its own replacement, the key also has the operator's index.
    shared: BTreeMap<(TensorId, Option<usize>), TensorId>,
    /// True if adapters are in fp32 and keep fp32 copies.
    pub(crate) wide_adapters: bool,
    /// True if a tensor kept its form because the new form would take more memory.
    pub(crate) kept_whole: bool,
}

/// The replacement of a tensor that a chain reads.
struct StandIn {
    kind: StandInKind,
    bytes: Bytes,
    forward: Vec<Kernel>,
    /// Kernels that run before the chain's own backward kernels.
    backward: Vec<Kernel>,
    /// Bytes that exist while the operator's backward pass runs.
    workspace: Bytes,
    /// New size of the weight gradient's product.
    gradient: Option<GradientSize>,
}

impl StandIn {
    /// Returns a replacement that no kernel makes or reads.
    fn without_kernels(kind: StandInKind, bytes: Bytes) -> Self {
        Self { kind, bytes, forward: vec![], backward: vec![], workspace: Bytes::ZERO, gradient: None }
    }
}

/// The largest size of a weight gradient's product: rows of the result and tokens.
#[derive(Debug, Clone, Copy)]
struct GradientSize {
    rows: u64,
    tokens: u64,
}

/// A backward chain of an operator, both by index.
#[derive(Debug, Clone, Copy)]
struct ChainPlace {
    operator: usize,
    chain: usize,
}

/// Returns a kernel that processes each element alone.
fn elementwise(
    function: ElementwiseFunction,
    direction: Direction,
    elements: u64,
    read: Bytes,
    written: Bytes,
) -> Kernel {
    Kernel::Elementwise(Elementwise { function, direction, elements, read, written })
}

/// The rows that a product multiplies with its weights.
struct ProductRows<'a> {
    op: &'a OperatorNode,
    tensor: &'a TensorInfo,
    product: Contraction,
    /// Bytes per element.
    operand: u64,
    rows: u64,
}

impl ProductRows<'_> {
    fn width(&self) -> u64 {
        self.product.k.max(1)
    }

    fn bytes(&self, numbers: u64) -> Bytes {
        Bytes(self.operand) * numbers
    }

    /// Returns the replacement by rows of `rank` elements. A random matrix, drawn for each pass, projects the rows.
    fn project_to_rank(&self, rank: u64) -> StandIn {
        let (drawn, c) = (self.width() * rank, self.product);
        let draw = elementwise(ElementwiseFunction::Dropout, Direction::Forward, drawn, Bytes::ZERO, self.bytes(drawn));
        let project = Kernel::Contraction(Contraction { batch: 1, m: self.rows, n: rank, k: self.width(), ..c });
        StandIn {
            forward: vec![draw, project],
            gradient: Some(GradientSize { rows: rank, tokens: c.m }),
            ..StandIn::without_kernels(StandInKind::Projected, self.bytes(self.rows * rank))
        }
    }

    /// Returns the replacement by a sample of the rows, chosen by their norms, with `index_bytes` per sampled row.
    fn sample_rows(&self, chain: &BackwardChain, fraction: f64, index_bytes: f64) -> StandIn {
        let (rows, width, c) = (self.rows, self.width(), self.product);
        let sampled = ((rows as f64 * fraction).ceil() as u64).clamp(1, rows.max(1));
        let kept = self.bytes(sampled * width);
        let norms = Kernel::Reduction(Reduction {
            function: RowFunction::Sum,
            direction: Direction::Forward,
            rows,
            columns: width,
            read: self.tensor.bytes,
            written: Bytes(4) * rows,
        });
        let gather = elementwise(ElementwiseFunction::Gather, Direction::Forward, sampled * width, kept, kept);
        // The gathered rows are of the result's gradient or, with an adapter, of the gradient of the first factor's
        // result.
        let columns = chain.steps.iter().find_map(contracts_tokens).map_or(c.n, |gradient| gradient.n);
        let of_gradient = self.bytes(sampled * columns);
        let gather_gradient =
            elementwise(ElementwiseFunction::Gather, Direction::Backward, sampled * columns, of_gradient, of_gradient);
        let tokens = ((c.m as f64 * fraction).ceil() as u64).max(1);
        let index = Bytes((sampled as f64 * index_bytes).ceil() as u64);
        StandIn {
            forward: vec![norms, gather],
            backward: vec![gather_gradient],
            workspace: of_gradient,
            gradient: Some(GradientSize { rows: c.k, tokens }),
            ..StandIn::without_kernels(StandInKind::Sampled, kept + index)
        }
    }

    /// Returns the replacement by one scalar per row and group of elements.
    fn reduce_to_groups(&self, groups: u64) -> StandIn {
        let (whole, size) = (self.tensor.bytes, self.bytes(self.rows * groups));
        let elements = self.rows.saturating_mul(self.width());
        let pass = |direction, read, written| elementwise(ElementwiseFunction::Mul, direction, elements, read, written);
        StandIn {
            forward: vec![pass(Direction::Forward, whole, size)],
            backward: vec![pass(Direction::Backward, size, whole)],
            workspace: whole,
            ..StandIn::without_kernels(StandInKind::GroupScalars, size)
        }
    }
}

/// A pair of trained low-rank products beside a product.
struct AdapterPair {
    product: Contraction,
    rank: u64,
}

impl AdapterPair {
    fn kernel(&self, m: u64, n: u64, k: u64, result: DataType) -> Kernel {
        Kernel::Contraction(Contraction { m, n, k, result, ..self.product })
    }

    /// Returns the kernel that adds a result of `width` to the product's own.
    fn addition(&self, direction: Direction, width: u64) -> Kernel {
        let elements = self.product.batch * self.product.m * width;
        let size = Bytes(self.product.result.bytes()) * elements;
        elementwise(ElementwiseFunction::Add, direction, elements, size * 2, size)
    }

    fn forward_kernels(&self) -> Vec<Kernel> {
        let c = self.product;
        vec![
            self.kernel(c.m, self.rank, c.k, c.result),
            self.kernel(c.m, c.n, self.rank, c.result),
            self.addition(Direction::Forward, c.n),
        ]
    }

    fn input_gradient_steps(&self) -> [KernelStep; 3] {
        let c = self.product;
        [
            device_step("backward_input.adapter_up", self.kernel(c.m, self.rank, c.n, c.result)),
            device_step("backward_input.adapter_down", self.kernel(c.m, c.k, self.rank, c.result)),
            device_step("backward_input.adapter_add", self.addition(Direction::Backward, c.k)),
        ]
    }
}

fn device_step(label: &str, kernel: Kernel) -> KernelStep {
    KernelStep { label: label.to_owned(), kernel, axis: None }
}

fn weight_gradient_chain(reads: TensorId, label: &str, kernel: Kernel) -> BackwardChain {
    BackwardChain { gradient: Gradient::Weights, reads: vec![reads], steps: vec![device_step(label, kernel)] }
}

impl<'a> TechniqueRewriter<'a> {
    pub(crate) fn new(graph: &'a mut OperatorGraph, wide_adapters: bool, technique: &'a str, heads: u64) -> Self {
        Self { graph, technique, heads, shared: BTreeMap::new(), wide_adapters, kept_whole: false }
    }

    fn refusal(&self, why: String, cure: &str) -> TechniqueError {
        TechniqueError::refuse(self.technique, why, cure)
    }

    fn operand_bytes(&self) -> u64 {
        self.graph.operand.bytes()
    }

    fn tensor_info(&self, id: TensorId) -> &TensorInfo {
        &self.graph.tensors[id.index()]
    }

    /// Changes the representation of the tensors that the selected chains read. Returns whether any matched.
    ///
    /// # Errors
    /// A backward pass that cannot use the form, or a second form for one tensor.
    pub(crate) fn change_representation(
        &mut self,
        rule: &TechniqueRule,
        form: &Representation,
    ) -> Result<bool, TechniqueError> {
        let mut found = false;
        for at in 0..self.graph.operators.len() {
            if !rule.at.selects_operator(&self.graph.operators[at].name) {
                continue;
            }
            for chain in 0..self.graph.operators[at].backward.len() {
                let op = &self.graph.operators[at];
                let kind = backward_reader_of_chain(op, &op.backward[chain]);
                if rule.read_by.is_some_and(|wanted| wanted != kind)
                    || rule.read_by.is_none() && !kind.accepts_form(form)
                {
                    continue;
                }
                if !kind.accepts_form(form) {
                    let why = format!("{} is read by {kind}, which cannot work with that form", op.name);
                    return Err(self.refusal(why, "choose other operators in the preset"));
                }
                found |=
                    self.change_chain_representation(ChainPlace { operator: at, chain }, form, rule.read_by.is_some())?;
            }
        }
        self.mark_saved();
        Ok(found)
    }

    /// Marks exactly the tensors that backward chains read as saved.
    pub(crate) fn mark_saved(&mut self) {
        self.graph.tensors.iter_mut().for_each(|t| t.saved = false);
        let reads: Vec<TensorId> =
            self.graph.operators.iter().flat_map(|op| &op.backward).flat_map(|c| &c.reads).copied().collect();
        for read in reads {
            self.graph.tensors[read.index()].saved = true;
        }
    }

    fn change_chain_representation(
        &mut self,
        place: ChainPlace,
        form: &Representation,
        asked: bool,
    ) -> Result<bool, TechniqueError> {
        self.widen_product_input(place);
        let op = &self.graph.operators[place.operator];
        let reads = op.backward[place.chain].reads.clone();
        if *form == Representation::SharedWithOutput {
            return Ok(self.share_norm_output(place, &reads));
        }
        let mut found = false;
        for read in reads {
            let op = &self.graph.operators[place.operator];
            let tensor = self.tensor_info(read);
            let statistic = tensor.gradient_bytes == Bytes::ZERO && tensor.role != TensorRole::WideCopy;
            let stands_in = matches!(tensor.role, TensorRole::StandIn(_));
            let derivative = matches!(form, Representation::DerivativeBits { .. });
            // Derivative bits can replace only the argument of a nonlinearity; in a gated unit that is the gate.
            let argument = op.inputs.first() == Some(&read);
            // An adapter's inner tensor already has the adapter's rank. Its first factor reads the product's input, in
            // any form.
            let rows = matches!(form, Representation::SampledRows { .. } | Representation::GroupScalars { .. });
            if rows && tensor.role == TensorRole::StandIn(StandInKind::Adapted) {
                continue;
            }
            if stands_in && asked {
                let why = format!("the copy of {1} that {0} keeps has another form already", op.name, tensor.name);
                return Err(self.refusal(why, "leave one of the techniques out"));
            }
            if statistic || stands_in || derivative && !argument {
                continue;
            }
            if derivative && is_gated_unit(op) {
                self.kept_whole = true;
                continue;
            }
            found = true;
            self.replace_tensor(place, read, form)?;
        }
        Ok(found)
    }

    /// Makes a chain read a product's input as it was before conversion to a narrow type. The new form is made from
    /// that input.
    fn widen_product_input(&mut self, ChainPlace { operator: at, chain }: ChainPlace) {
        let Some(wide) = self.graph.operators[at].inputs.first().copied() else { return };
        let narrow = format!("{}{NARROW}", self.tensor_info(wide).name);
        let Some(narrow) = self.graph.find_tensor(&narrow) else { return };
        for read in self.graph.operators[at].backward[chain].reads.iter_mut().filter(|read| **read == narrow) {
            *read = wide;
        }
    }

    fn replace_tensor(
        &mut self,
        ChainPlace { operator: at, chain }: ChainPlace,
        read: TensorId,
        form: &Representation,
    ) -> Result<(), TechniqueError> {
        let op = &self.graph.operators[at];
        let own = matches!(form, Representation::Quantised { per_reader: true, .. });
        let stand_in = self.stand_in_for(op, &op.backward[chain], read, form)?;
        let key = (read, own.then_some(at));
        let known = self.shared.get(&key).copied().filter(|_| matches!(form, Representation::Quantised { .. }));
        let id = match known {
            Some(id) => id,
            None => {
                let id = self.add_side_output(at, read, &stand_in);
                self.shared.insert(key, id);
                id
            }
        };
        let op = &mut self.graph.operators[at];
        op.workspace += stand_in.workspace;
        let chain = &mut op.backward[chain];
        for other in chain.reads.iter_mut().filter(|t| **t == read) {
            *other = id;
        }
        if let Some(GradientSize { rows, tokens }) = stand_in.gradient {
            shrink_gradient_kernels(&mut chain.steps, rows, tokens);
        }
        let suffix = stand_in.kind.word();
        let before = stand_in.backward.into_iter().map(|kernel| KernelStep {
            label: format!("backward.{suffix}"),
            kernel,
            axis: None,
        });
        chain.steps.splice(0..0, before);
        Ok(())
    }

    /// Adds a tensor that an operator makes besides its results. Returns its id.
    fn add_side_output(&mut self, at: usize, of: TensorId, stand_in: &StandIn) -> TensorId {
        let id = TensorId(self.graph.tensors.len() as u32);
        let suffix = stand_in.kind.word();
        let name = format!("{}{STANDS_FOR}{suffix}", self.tensor_info(of).name);
        let op = &mut self.graph.operators[at];
        op.outputs.push(id);
        for kernel in &stand_in.forward {
            op.forward.push(KernelStep { label: format!("forward.{suffix}"), kernel: *kernel, axis: None });
        }
        self.graph.tensors.push(TensorInfo {
            id,
            name,
            bytes: stand_in.bytes,
            gradient_bytes: Bytes::ZERO,
            producer: Some(self.graph.operators[at].id),
            saved: true,
            is_segment_input: false,
            role: TensorRole::StandIn(stand_in.kind),
        });
        id
    }

    /// Makes a norm's backward pass read its result and one factor per row instead of its input. Returns whether this
    /// was possible: another operator must already keep the result.
    fn share_norm_output(&mut self, ChainPlace { operator: at, chain }: ChainPlace, reads: &[TensorId]) -> bool {
        let op = &self.graph.operators[at];
        let Some(output) = op.outputs.first().copied() else { return false };
        let own = op.id;
        let elsewhere = |o: &&OperatorNode| o.id != own;
        if !self.graph.operators.iter().filter(elsewhere).flat_map(|o| &o.backward).any(|c| c.reads.contains(&output)) {
            return false;
        }
        let factor = op.outputs.iter().copied().find(|t| self.tensor_info(*t).role.is_row_factor());
        let rows = op.forward.iter().find_map(|s| match s.kernel {
            Kernel::Reduction(r) => Some(r.rows),
            _ => None,
        });
        let factor = match (factor, reads.first(), rows) {
            (Some(factor), ..) => factor,
            (None, Some(input), Some(rows)) => {
                let stand_in = StandIn::without_kernels(StandInKind::RowFactor, Bytes(4) * rows);
                self.add_side_output(at, *input, &stand_in)
            }
            _ => return false,
        };
        self.graph.operators[at].backward[chain].reads = vec![output, factor];
        true
    }

    /// Returns what replaces the tensor `read` if it is kept in `form`: the bytes, and the kernels that convert it.
    fn stand_in_for(
        &self,
        op: &OperatorNode,
        chain: &BackwardChain,
        read: TensorId,
        form: &Representation,
    ) -> Result<StandIn, TechniqueError> {
        let tensor = self.tensor_info(read);
        // The copy that eager norms keep and autocast's tensors are fp32; every other tensor has the operand type.
        let wide = tensor.gradient_bytes == Bytes::ZERO || tensor.role.is_wide();
        let each = if wide { 4 } else { self.operand_bytes() };
        let elements = tensor.bytes.0 / each.max(1);
        let convert =
            |direction, read, written| elementwise(ElementwiseFunction::Convert, direction, elements, read, written);
        match form {
            Representation::Quantised { bits, group, meta_bytes, .. } => {
                let groups = if *group == 0.0 { self.heads as f64 } else { (elements as f64 / group).ceil() };
                let bytes = Bytes((elements as f64 * bits / 8.0).ceil() as u64 + (groups * meta_bytes).ceil() as u64);
                Ok(StandIn {
                    forward: vec![convert(Direction::Forward, tensor.bytes, bytes)],
                    backward: vec![convert(Direction::Backward, bytes, tensor.bytes)],
                    workspace: tensor.bytes,
                    ..StandIn::without_kernels(StandInKind::Quantised, bytes)
                })
            }
            Representation::DerivativeBits { bits } => {
                let bytes = Bytes((elements as f64 * bits / 8.0).ceil() as u64);
                Ok(StandIn::without_kernels(StandInKind::Bits, bytes))
            }
            Representation::Absent | Representation::Factored | Representation::SharedWithOutput => Err(self.refusal(
                format!("{}: an activation cannot have this form", tensor.name),
                "choose another in the preset",
            )),
            _ => self.stand_in_for_rows(op, chain, tensor, form),
        }
    }

    /// Returns the replacement, in `form`, of the rows that a product multiplies with its weights.
    fn stand_in_for_rows(
        &self,
        op: &OperatorNode,
        chain: &BackwardChain,
        tensor: &TensorInfo,
        form: &Representation,
    ) -> Result<StandIn, TechniqueError> {
        let Some(product) = find_product(op) else {
            return Err(self.refusal(format!("{} is not a product", op.name), "choose other operators in the preset"));
        };
        let (operand, width) = (self.operand_bytes(), product.k.max(1));
        let rows = ProductRows { op, tensor, product, operand, rows: tensor.bytes.0 / operand.max(1) / width };
        match form {
            Representation::Projected { rank, .. } => {
                Ok(rows.project_to_rank(self.rank_within_width(op, *rank, width)?))
            }
            Representation::SampledRows { fraction, index_bytes } => {
                Ok(rows.sample_rows(chain, *fraction, *index_bytes))
            }
            Representation::GroupScalars { groups } => {
                let groups = self.rank_within_width(op, *groups, width)?;
                self.check_groups_divide(&rows, groups)?;
                Ok(rows.reduce_to_groups(groups))
            }
            _ => Err(self.refusal(format!("{}: rows cannot have this form", op.name), "choose another in the preset")),
        }
    }

    fn check_groups_divide(&self, rows: &ProductRows<'_>, groups: u64) -> Result<(), TechniqueError> {
        let width = rows.width();
        if width.is_multiple_of(groups) {
            return Ok(());
        }
        let why = format!("{groups} groups do not divide the dimension of {}, {width} on one device", rows.op.name);
        let below = (1..groups).rev().find(|groups| width.is_multiple_of(*groups)).unwrap_or(1);
        Err(self.refusal(why, &format!("use {below}, or another divisor of {width}")))
    }

    /// Returns a rank as a whole number, at most `width`. A rank below 1 is a fraction of `width`.
    ///
    /// # Errors
    /// A rank above `width`.
    fn rank_within_width(&self, op: &OperatorNode, rank: f64, width: u64) -> Result<u64, TechniqueError> {
        if let Some(rank) = round_rank(rank, width) {
            return Ok(rank);
        }
        let why = format!("a rank of {rank} is above the dimension of {}, {width} on one device", op.name);
        Err(self.refusal(why, &format!("use a rank from 1 to {width}")))
    }

    /// Attaches adapters to the selected products, whose own weights are frozen. Returns whether any matched.
    ///
    /// # Errors
    /// A rank above the product's smaller dimension.
    pub(crate) fn add_adapters(&mut self, rule: &TechniqueRule, adapter: &Adapter) -> Result<bool, TechniqueError> {
        let mut found = false;
        for at in 0..self.graph.operators.len() {
            let op = &self.graph.operators[at];
            let product = find_product(op)
                .filter(|_| op.layer.is_some() && rule.at.selects_operator(&op.name) && own_weight_chain(op).is_some());
            let Some(c) = product else { continue };
            let rank = match adapter.form {
                // The product does not limit these forms' ranks: shared projections may be wider than the product, and
                // the other three forms have no rank.
                AdapterForm::SharedProjection
                | AdapterForm::ScaledInput
                | AdapterForm::ScaledOutput
                | AdapterForm::Bias => adapter.rank as u64,
                _ => self.rank_within_width(op, adapter.rank, c.k.min(c.n))?,
            };
            match adapter.form {
                AdapterForm::LowRank | AdapterForm::Corrected | AdapterForm::Decomposed => {
                    self.add_adapter_pair(at, &AdapterPair { product: c, rank }, adapter);
                }
                form => self.add_vector_adapter(at, c, rank, form),
            }
            found = true;
        }
        self.mark_saved();
        Ok(found)
    }

    /// Returns the bytes per element of an adapter's tensors.
    fn adapter_bytes(&self, c: &Contraction) -> u64 {
        if self.wide_adapters { DataType::Fp32.bytes() } else { c.operand.bytes() }
    }

    /// Adds a copy of `numbers` elements of `of`, with `each` bytes per element, that an adapter's backward pass reads.
    /// Returns its id.
    fn add_adapter_copy(&mut self, at: usize, of: TensorId, numbers: u64, each: u64) -> TensorId {
        let bytes = Bytes(each) * numbers;
        let copy = Kernel::Elementwise(Elementwise {
            function: ElementwiseFunction::Convert,
            direction: Direction::Forward,
            elements: numbers,
            read: Bytes(self.operand_bytes()) * numbers,
            written: bytes,
        });
        let stand_in = StandIn { forward: vec![copy], ..StandIn::without_kernels(StandInKind::AdapterCopy, bytes) };
        self.add_side_output(at, of, &stand_in)
    }

    /// Adds an adapter that is not a pair of trained low-rank products. Its kernels scale or sum tensors, or multiply
    /// with changed weights.
    fn add_vector_adapter(&mut self, at: usize, c: Contraction, rank: u64, form: AdapterForm) {
        let op = &self.graph.operators[at];
        let (Some(input), Some(output)) = (op.inputs.first().copied(), op.outputs.first().copied()) else { return };
        let (each, tokens) = (self.adapter_bytes(&c), c.batch * c.m);
        let of = |m, n, k| Kernel::Contraction(Contraction { batch: c.batch, m, n, k, ..c });
        let (inner_numbers, inner_kernels) = match form {
            AdapterForm::SharedProjection => (tokens * rank, vec![of(c.m, rank, c.k), of(c.m, c.n, rank)]),
            AdapterForm::InputSums => (tokens * rank, vec![of(c.m, c.n, rank)]),
            AdapterForm::WeightUpdate | AdapterForm::ChangedWeights => (0, vec![of(c.k, c.n, rank), of(c.m, c.n, c.k)]),
            _ => (0, vec![]),
        };
        let inner = StandIn {
            forward: inner_kernels,
            ..StandIn::without_kernels(StandInKind::Adapted, Bytes(each) * inner_numbers)
        };
        let mut reads = vec![self.add_side_output(at, input, &inner)];
        match form {
            AdapterForm::ChangedWeights => {
                reads.push(input);
                reads.push(self.add_adapter_copy(at, output, c.batch * c.k * c.n, c.operand.bytes()));
            }
            AdapterForm::WeightUpdate => {
                reads.push(self.add_adapter_copy(at, input, tokens * c.k, each));
                reads.push(self.add_adapter_copy(at, output, c.batch * c.k * c.n, each));
            }
            AdapterForm::ScaledInput => reads.push(self.add_adapter_copy(at, input, tokens * c.k, each)),
            AdapterForm::ScaledOutput => {
                reads.push(self.add_adapter_copy(at, output, tokens * c.n, c.operand.bytes()));
            }
            AdapterForm::SharedProjection => reads.push(self.add_adapter_copy(at, output, tokens * c.n, each)),
            _ => {}
        }
        let sum = Kernel::Reduction(Reduction {
            function: RowFunction::Sum,
            direction: Direction::Backward,
            rows: c.n,
            columns: tokens,
            read: Bytes(c.operand.bytes()) * (tokens * c.n),
            written: Bytes(each) * c.n,
        });
        let gradient = match form {
            AdapterForm::InputSums => of(rank, c.n, c.m),
            AdapterForm::WeightUpdate | AdapterForm::ChangedWeights => of(c.k, c.n, c.m),
            _ => sum,
        };
        let op = &mut self.graph.operators[at];
        op.backward.retain(|chain| chain.gradient != Gradient::Weights);
        let label = "backward_weight.adapter".to_owned();
        op.backward.push(BackwardChain {
            gradient: Gradient::Weights,
            reads,
            steps: vec![KernelStep { label, kernel: gradient, axis: None }],
        });
    }

    /// Makes the selected products read frozen weights of `bytes_per_number` bytes. The weights are converted before
    /// every product into a whole matrix, which exists while the product runs.
    pub(crate) fn quantise_weights(&mut self, rule: &TechniqueRule, bytes_per_number: f64) {
        let operand = self.operand_bytes();
        for at in 0..self.graph.operators.len() {
            let op = &self.graph.operators[at];
            let Some(c) = find_product(op).filter(|_| op.layer.is_some() && rule.at.selects_operator(&op.name)) else {
                continue;
            };
            // Products of activations have no parameters.
            if op.parameters.per_device_count() == 0 {
                continue;
            }
            let numbers = c.batch.saturating_mul(c.k).saturating_mul(c.n);
            let whole = Bytes(operand) * numbers;
            let convert = |direction| {
                Kernel::Elementwise(Elementwise {
                    function: ElementwiseFunction::Convert,
                    direction,
                    elements: numbers,
                    read: Bytes((numbers as f64 * bytes_per_number).ceil() as u64),
                    written: whole,
                })
            };
            let step = |label: &str, direction| KernelStep {
                label: format!("{label}.dequantise"),
                kernel: convert(direction),
                axis: None,
            };
            let input = op.inputs.first().copied();
            let op = &mut self.graph.operators[at];
            op.forward.insert(0, step("forward", Direction::Forward));
            op.workspace += whole;
            for chain in op.backward.iter_mut().filter(|chain| chain.gradient != Gradient::Weights) {
                chain.steps.insert(0, step("backward_input", Direction::Backward));
                chain.reads.extend(input.filter(|input| rule.keeps_input && !chain.reads.contains(input)));
            }
        }
        self.mark_saved();
    }

    /// Attaches a pair of low-rank products to the product of operator `at`.
    fn add_adapter_pair(&mut self, at: usize, pair: &AdapterPair, adapter: &Adapter) {
        let (c, rank) = (pair.product, pair.rank);
        let Some(input) = self.graph.operators[at].inputs.first().copied() else { return };
        let (each, tokens) = (self.adapter_bytes(&c), c.batch * c.m);
        let inner = StandIn {
            forward: pair.forward_kernels(),
            ..StandIn::without_kernels(StandInKind::Adapted, Bytes(each) * (tokens * rank))
        };
        let inner = self.add_side_output(at, input, &inner);
        let both = adapter.trained == AdapterTraining::Both;
        let first =
            if self.wide_adapters && both { self.add_adapter_copy(at, input, tokens * c.k, each) } else { input };
        let output = self.graph.operators[at].outputs.first().copied().unwrap_or(input);
        let scaled = self.add_scaled_copies(at, output, &c, adapter.form);
        let op = &mut self.graph.operators[at];
        let gradient = own_weight_chain(op)
            .and_then(|chain| chain.steps.iter().find_map(contracts_tokens))
            .map_or(c.result, |g| g.result);
        op.backward.retain(|chain| chain.gradient != Gradient::Weights);
        for chain in &mut op.backward {
            chain.steps.extend(pair.input_gradient_steps());
            chain.reads.extend(&scaled);
        }
        let up = pair.kernel(rank, c.n, c.m, gradient);
        op.backward.push(weight_gradient_chain(inner, "backward_weight.adapter_up", up));
        if both {
            let down = pair.kernel(c.k, rank, c.m, gradient);
            op.backward.push(weight_gradient_chain(first, "backward_weight.adapter_down", down));
        }
    }

    /// Adds the copies of the result `output` that the backward pass of a corrected or decomposed adapter reads.
    fn add_scaled_copies(&mut self, at: usize, output: TensorId, c: &Contraction, form: AdapterForm) -> Vec<TensorId> {
        let (each, results) = (self.adapter_bytes(c), c.batch * c.m * c.n);
        match form {
            AdapterForm::Corrected => vec![self.add_adapter_copy(at, output, results, each)],
            AdapterForm::Decomposed => {
                let copies = [c.operand.bytes(), each].map(|each| self.add_adapter_copy(at, output, results, each));
                // The norm of weights and adapter holds both matrices whole, in the adapter's type.
                self.graph.operators[at].workspace += Bytes(2 * each) * (c.batch * c.k * c.n);
                copies.to_vec()
            }
            _ => Vec::new(),
        }
    }

    /// Removes the weight gradients at the selected operators, and no longer keeps the tensors that only those
    /// gradients read. Adapters keep their gradients.
    pub(crate) fn freeze_weights(&mut self, rule: &TechniqueRule) {
        let of_adapters = |t: &&TensorInfo| t.role == TensorRole::StandIn(StandInKind::Adapted);
        let adapted: BTreeSet<OpId> =
            self.graph.tensors.iter().filter(of_adapters).filter_map(|t| t.producer).collect();
        let frozen = |op: &&mut OperatorNode| rule.at.selects_operator(&op.name) && !adapted.contains(&op.id);
        for op in self.graph.operators.iter_mut().filter(frozen) {
            op.backward.retain(|chain| chain.gradient != Gradient::Weights);
        }
        self.mark_saved();
    }
}

fn contracts_tokens(step: &KernelStep) -> Option<Contraction> {
    match step.kernel {
        Kernel::Contraction(c) => Some(c),
        _ => None,
    }
}

/// Returns the chain that computes the gradient of a product's own weights; `None` if the weights are frozen.
fn own_weight_chain(op: &OperatorNode) -> Option<&BackwardChain> {
    op.backward.iter().find(|chain| backward_reader_of_chain(op, chain) == BackwardReader::Product)
}

/// Shrinks the kernels of a weight gradient to at most `rows` rows and about `tokens` tokens.
fn shrink_gradient_kernels(steps: &mut [KernelStep], rows: u64, tokens: u64) {
    let whole = steps.iter().find_map(contracts_tokens).map_or(rows, |c| c.m).max(1);
    let part = |count: u64| (u128::from(count) * u128::from(rows.min(whole)) / u128::from(whole)) as u64;
    for step in steps {
        match &mut step.kernel {
            Kernel::Contraction(c) => (c.m, c.k) = (rows.min(c.m), contracted_tokens(tokens, c.k)),
            // This kernel adds the gradient to the one in memory.
            Kernel::Elementwise(e) if e.function == ElementwiseFunction::Add => {
                (e.elements, e.read, e.written) = (part(e.elements), Bytes(part(e.read.0)), Bytes(part(e.written.0)));
            }
            _ => {}
        }
    }
}

/// Returns a rank as a whole number. A rank below 1 is a fraction of `width`. Returns `None` for a rank above `width`
/// or not above 0.
pub(crate) fn round_rank(rank: f64, width: u64) -> Option<u64> {
    let whole = if rank < 1.0 { ((rank * width as f64).round() as u64).max(1) } else { rank as u64 };
    (rank > 0.0 && whole <= width).then_some(whole)
}

/// Returns the rank that the form of an input imposes on the weight's gradient; `None` for any form but a projection
/// drawn from a seed.
pub(crate) fn hands_on_rank(form: &Representation) -> Option<f64> {
    match form {
        Representation::Projected { rank, basis: ProjectionBasis::Seed } => Some(*rank),
        _ => None,
    }
}

/// Returns the name of the original tensor if `tensor` is a random sample of its rows, else `None`.
pub(crate) fn name_of_sampled(tensor: &TensorInfo) -> Option<&str> {
    let sampled = tensor.role == TensorRole::StandIn(StandInKind::Sampled);
    sampled.then(|| tensor.name.rsplit_once(STANDS_FOR).map_or(tensor.name.as_str(), |(of, _)| of))
}
