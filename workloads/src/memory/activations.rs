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
    /// New dimensions of the weight gradient's product: (rows of the result, tokens).
    gradient: Option<(u64, u64)>,
}

impl<'a> TechniqueRewriter<'a> {
    pub(crate) fn new(graph: &'a mut OperatorGraph, technique: &'a str, heads: u64) -> Self {
        Self { graph, technique, heads, shared: BTreeMap::new(), wide_adapters: false, kept_whole: false }
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
                found |= self.change_chain_representation((at, chain), form, rule.read_by.is_some())?;
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
        (at, chain): (usize, usize),
        form: &Representation,
        asked: bool,
    ) -> Result<bool, TechniqueError> {
        self.widen_product_input((at, chain));
        let op = &self.graph.operators[at];
        let reads = op.backward[chain].reads.clone();
        if *form == Representation::SharedWithOutput {
            return Ok(self.share_norm_output((at, chain), &reads));
        }
        let mut found = false;
        for read in reads {
            let op = &self.graph.operators[at];
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
            self.replace_tensor((at, chain), read, form)?;
        }
        Ok(found)
    }

    /// Makes a chain read a product's input as it was before conversion to a narrow type. The new form is made from
    /// that input.
    fn widen_product_input(&mut self, (at, chain): (usize, usize)) {
        let Some(wide) = self.graph.operators[at].inputs.first().copied() else { return };
        let narrow = format!("{}{NARROW}", self.tensor_info(wide).name);
        let Some(narrow) = self.graph.find_tensor(&narrow) else { return };
        for read in self.graph.operators[at].backward[chain].reads.iter_mut().filter(|read| **read == narrow) {
            *read = wide;
        }
    }

    fn replace_tensor(
        &mut self,
        (at, chain): (usize, usize),
        read: TensorId,
        form: &Representation,
    ) -> Result<(), TechniqueError> {
        let op = &self.graph.operators[at];
        let own = matches!(form, Representation::Quantised { per_reader: true, .. });
        let stand_in = self.stand_in_for((op, &op.backward[chain]), read, form)?;
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
        if let Some((rows, tokens)) = stand_in.gradient {
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
    fn share_norm_output(&mut self, (at, chain): (usize, usize), reads: &[TensorId]) -> bool {
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
                let bytes = Bytes(4) * rows;
                self.add_side_output(
                    at,
                    *input,
                    &StandIn {
                        kind: StandInKind::RowFactor,
                        bytes,
                        forward: vec![],
                        backward: vec![],
                        workspace: Bytes::ZERO,
                        gradient: None,
                    },
                )
            }
            _ => return false,
        };
        self.graph.operators[at].backward[chain].reads = vec![output, factor];
        true
    }

    /// Returns the replacement of the tensor `read` in `form`.
    fn stand_in_for(
        &self,
        (op, chain): (&OperatorNode, &BackwardChain),
        read: TensorId,
        form: &Representation,
    ) -> Result<StandIn, TechniqueError> {
        let tensor = self.tensor_info(read);
        // The copy that eager norms keep and autocast's tensors are fp32; every other tensor has the operand type.
        let wide = tensor.gradient_bytes == Bytes::ZERO || tensor.role.is_wide();
        let each = if wide { 4 } else { self.operand_bytes() };
        let elements = tensor.bytes.0 / each.max(1);
        let convert = |direction, read, written| {
            Kernel::Elementwise(Elementwise {
                function: ElementwiseFunction::Convert,
                direction,
                elements,
                read,
                written,
            })
        };
        let plain = |kind, bytes| StandIn {
            kind,
            bytes,
            forward: vec![],
            backward: vec![],
            workspace: Bytes::ZERO,
            gradient: None,
        };
        match form {
            Representation::Quantised { bits, group, meta_bytes, .. } => {
                let groups = if *group == 0.0 { self.heads as f64 } else { (elements as f64 / group).ceil() };
                let bytes = Bytes((elements as f64 * bits / 8.0).ceil() as u64 + (groups * meta_bytes).ceil() as u64);
                Ok(StandIn {
                    forward: vec![convert(Direction::Forward, tensor.bytes, bytes)],
                    backward: vec![convert(Direction::Backward, bytes, tensor.bytes)],
                    workspace: tensor.bytes,
                    ..plain(StandInKind::Quantised, bytes)
                })
            }
            Representation::DerivativeBits { bits } => {
                Ok(plain(StandInKind::Bits, Bytes((elements as f64 * bits / 8.0).ceil() as u64)))
            }
            Representation::Absent | Representation::Factored | Representation::SharedWithOutput => Err(self.refusal(
                format!("{}: an activation cannot have this form", tensor.name),
                "choose another in the preset",
            )),
            _ => self.stand_in_for_rows((op, chain), tensor, form),
        }
    }

    /// Returns the replacement, in `form`, of the rows that a product multiplies with its weights.
    fn stand_in_for_rows(
        &self,
        (op, chain): (&OperatorNode, &BackwardChain),
        tensor: &TensorInfo,
        form: &Representation,
    ) -> Result<StandIn, TechniqueError> {
        let Some(c) = find_product(op) else {
            return Err(self.refusal(format!("{} is not a product", op.name), "choose other operators in the preset"));
        };
        let (operand, width) = (self.operand_bytes(), c.k.max(1));
        let rows = tensor.bytes.0 / operand.max(1) / width;
        let elements = rows.saturating_mul(width);
        let bytes = |numbers: u64| Bytes(operand) * numbers;
        let pass = |function, direction, elements, read, written| {
            Kernel::Elementwise(Elementwise { function, direction, elements, read, written })
        };
        let (kind, size, forward, backward, workspace, gradient) = match form {
            Representation::Projected { rank, .. } => {
                let rank = self.rank_within_width(op, *rank, width)?;
                let draw = pass(
                    ElementwiseFunction::Dropout,
                    Direction::Forward,
                    width * rank,
                    Bytes::ZERO,
                    bytes(width * rank),
                );
                let project = Kernel::Contraction(Contraction { batch: 1, m: rows, n: rank, k: width, ..c });
                (
                    StandInKind::Projected,
                    bytes(rows * rank),
                    vec![draw, project],
                    vec![],
                    Bytes::ZERO,
                    Some((rank, c.m)),
                )
            }
            Representation::SampledRows { fraction, index_bytes } => {
                let sampled = ((rows as f64 * fraction).ceil() as u64).clamp(1, rows.max(1));
                let kept = bytes(sampled * width);
                let norms = Kernel::Reduction(Reduction {
                    function: RowFunction::Sum,
                    direction: Direction::Forward,
                    rows,
                    columns: width,
                    read: tensor.bytes,
                    written: Bytes(4) * rows,
                });
                let gather = pass(ElementwiseFunction::Gather, Direction::Forward, sampled * width, kept, kept);
                // The gathered rows are of the result's gradient or, with an adapter, of the gradient of the first
                // factor's result.
                let columns = chain.steps.iter().find_map(contracts_tokens).map_or(c.n, |gradient| gradient.n);
                let of_gradient = bytes(sampled * columns);
                let gather_gradient =
                    pass(ElementwiseFunction::Gather, Direction::Backward, sampled * columns, of_gradient, of_gradient);
                let tokens = ((c.m as f64 * fraction).ceil() as u64).max(1);
                let index = Bytes((sampled as f64 * index_bytes).ceil() as u64);
                (
                    StandInKind::Sampled,
                    kept + index,
                    vec![norms, gather],
                    vec![gather_gradient],
                    of_gradient,
                    Some((c.k, tokens)),
                )
            }
            Representation::GroupScalars { groups } => {
                let groups = self.rank_within_width(op, *groups, width)?;
                if width % groups != 0 {
                    let why =
                        format!("{groups} groups do not divide the dimension of {}, {width} on one device", op.name);
                    let below = (1..groups).rev().find(|groups| width % groups == 0).unwrap_or(1);
                    return Err(self.refusal(why, &format!("use {below}, or another divisor of {width}")));
                }
                let size = bytes(rows * groups);
                let reduce = pass(ElementwiseFunction::Mul, Direction::Forward, elements, tensor.bytes, size);
                let expand = pass(ElementwiseFunction::Mul, Direction::Backward, elements, size, tensor.bytes);
                (StandInKind::GroupScalars, size, vec![reduce], vec![expand], tensor.bytes, None)
            }
            _ => {
                return Err(
                    self.refusal(format!("{}: rows cannot have this form", op.name), "choose another in the preset")
                );
            }
        };
        Ok(StandIn { kind, bytes: size, forward, backward, workspace, gradient })
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
                // Shared projections may be wider than a product; the other forms have no rank.
                AdapterForm::SharedProjection
                | AdapterForm::ScaledInput
                | AdapterForm::ScaledOutput
                | AdapterForm::Bias => adapter.rank as u64,
                _ => self.rank_within_width(op, adapter.rank, c.k.min(c.n))?,
            };
            match adapter.form {
                AdapterForm::LowRank | AdapterForm::Corrected | AdapterForm::Decomposed => {
                    self.add_adapter_to(at, c, rank, adapter);
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
        let stand_in = StandIn {
            kind: StandInKind::AdapterCopy,
            bytes,
            forward: vec![copy],
            backward: vec![],
            workspace: Bytes::ZERO,
            gradient: None,
        };
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
            kind: StandInKind::Adapted,
            bytes: Bytes(each) * inner_numbers,
            forward: inner_kernels,
            backward: vec![],
            workspace: Bytes::ZERO,
            gradient: None,
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

    fn add_adapter_to(&mut self, at: usize, c: Contraction, rank: u64, adapter: &Adapter) {
        let of =
            |m, n, k, result| Kernel::Contraction(Contraction { batch: c.batch, m, n, k, operand: c.operand, result });
        let step = |label: &str, kernel| KernelStep { label: label.to_owned(), kernel, axis: None };
        let add = |direction, width: u64| {
            let elements = c.batch * c.m * width;
            let size = Bytes(c.result.bytes()) * elements;
            Kernel::Elementwise(Elementwise {
                function: ElementwiseFunction::Add,
                direction,
                elements,
                read: size * 2,
                written: size,
            })
        };
        let Some(input) = self.graph.operators[at].inputs.first().copied() else { return };
        let inner = StandIn {
            kind: StandInKind::Adapted,
            bytes: Bytes(self.adapter_bytes(&c)) * (c.batch * c.m * rank),
            forward: vec![of(c.m, rank, c.k, c.result), of(c.m, c.n, rank, c.result), add(Direction::Forward, c.n)],
            backward: vec![],
            workspace: Bytes::ZERO,
            gradient: None,
        };
        let inner = self.add_side_output(at, input, &inner);
        let (each, tokens) = (self.adapter_bytes(&c), c.batch * c.m);
        let first = if self.wide_adapters && adapter.trained == AdapterTraining::Both {
            self.add_adapter_copy(at, input, tokens * c.k, each)
        } else {
            input
        };
        let mut scaled = Vec::new();
        if adapter.form == AdapterForm::Corrected {
            let output = self.graph.operators[at].outputs.first().copied().unwrap_or(input);
            scaled.push(self.add_adapter_copy(at, output, tokens * c.n, each));
        }
        if adapter.form == AdapterForm::Decomposed {
            let output = self.graph.operators[at].outputs.first().copied().unwrap_or(input);
            scaled.push(self.add_adapter_copy(at, output, tokens * c.n, c.operand.bytes()));
            scaled.push(self.add_adapter_copy(at, output, tokens * c.n, each));
            // The norm of weights and adapter holds both matrices whole, in the adapter's type.
            self.graph.operators[at].workspace += Bytes(2 * each) * (c.batch * c.k * c.n);
        }
        let op = &mut self.graph.operators[at];
        let gradient = own_weight_chain(op)
            .and_then(|chain| chain.steps.iter().find_map(contracts_tokens))
            .map_or(c.result, |g| g.result);
        op.backward.retain(|chain| chain.gradient != Gradient::Weights);
        for chain in &mut op.backward {
            chain.steps.push(step("backward_input.adapter_up", of(c.m, rank, c.n, c.result)));
            chain.steps.push(step("backward_input.adapter_down", of(c.m, c.k, rank, c.result)));
            chain.steps.push(step("backward_input.adapter_add", add(Direction::Backward, c.k)));
        }
        let chain = |reads: TensorId, label: &str, kernel| BackwardChain {
            gradient: Gradient::Weights,
            reads: vec![reads],
            steps: vec![step(label, kernel)],
        };
        op.backward.push(chain(inner, "backward_weight.adapter_up", of(rank, c.n, c.m, gradient)));
        for chain in op.backward.iter_mut().filter(|chain| chain.gradient != Gradient::Weights) {
            chain.reads.extend(&scaled);
        }
        if adapter.trained == AdapterTraining::Both {
            op.backward.push(chain(first, "backward_weight.adapter_down", of(c.k, rank, c.m, gradient)));
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

/// Returns the rank that the form of an input imposes on the weight's gradient. Only a projection drawn from a seed has
/// one.
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
