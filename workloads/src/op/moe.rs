//! A mixture of experts instead of the MLP (Shazeer et al. 2017; Lepikhin et al., GShard, 2020). A router picks `top_k`
//! experts per token, and tokens travel to the devices of their experts. Each expert is an MLP. The results travel
//! back, and their weighted sum is the token's result.
//!
//! Routing is even by default: every expert gets the same share of the tokens. With a capacity factor, every expert
//! gets exactly its capacity (`factor * top_k * tokens / experts`, rounded up): experts with more tokens drop some,
//! experts with fewer are padded. An imbalance above 1, an option of the stack, describes the fullest device, for which
//! all others wait.
//!
//! Tokens travel by all-to-alls, once per chosen expert or once to every node. Alternatively, all devices of the group
//! gather all tokens. Experts are distributed over the expert-parallel devices. The tensor-parallel devices, or a
//! stated number of devices, split each expert's width.

use super::linear::{
    Linear, ProductSize, ProductWidths, WeightSplit, accumulate_weight_gradient, add_kept_conversion, convert_operands,
    reduce_bias_gradient, result_part,
};
use super::segment_plan::SegmentPlan;
use super::{
    OperatorContext, RowShape, activation, collective_step, elementwise_kernel, gated, input_chain, kernel_step,
    reduction_kernel, shared_expert, weight_chain,
};
use crate::graph::{GraphBuilder, KernelStep, NewOperator, Parameters, TensorId};
use crate::model::{ExpertGroups, Experts};
use sim::kernel::{
    Collective, CollectiveKind, DataType, Direction, ElementwiseFunction, Kernel, ParallelAxis, PartChoice, RankGroup,
    RowFunction,
};
use sim::units::Bytes;

/// Bytes of a routing weight and of the index of its expert (fp32 and int32).
const WEIGHT_BYTES: u64 = 4;
const INDEX_BYTES: u64 = 4;

/// The distribution of experts and tokens, as seen from one device.
#[derive(Debug, Clone, Copy)]
struct ExpertDispatch {
    experts: Experts,
    /// Number of expert-parallel devices.
    ranks: u32,
    /// Distance between expert-parallel devices in device numbers.
    stride: u32,
    /// Width of a token's vector during the exchange.
    hidden: u64,
    /// Number of experts on this device.
    local: u64,
    /// Token slots, over all experts, that this device sends, and that it receives under even routing. Under sequence
    /// parallelism, these are the slots of its own tokens.
    slots: u64,
    /// True if each token is sent only once to every unit of the network.
    once: bool,
    /// Tokens of the whole expert-parallel group, if every device gathers them; `None` if tokens are sent to experts.
    gathered: Option<u64>,
}

impl ExpertDispatch {
    fn new(plan: &SegmentPlan<'_>, experts: Experts) -> Self {
        let ranks = plan.lowering.expert_parallel.max(1);
        let inside = plan.lowering.serving.map_or(1, |pass| pass.expert_ranks.max(1));
        Self {
            experts,
            ranks,
            // Devices that split an expert come first. If these are the tensor-parallel group, the context-parallel
            // devices come before the expert-parallel ones too.
            stride: plan
                .lowering
                .expert_tensor_parallel
                .map_or(plan.shape.ranks.saturating_mul(plan.shape.context), |shared| shared),
            hidden: experts.latent.unwrap_or(plan.model.hidden),
            local: experts.count / u64::from(ranks.saturating_mul(inside)),
            slots: experts.expert_slots(plan.shape.local_tokens()).div_ceil(u64::from(inside)),
            once: plan.lowering.expert_deduplicated,
            gathered: plan
                .lowering
                .expert_all_gather
                .then(|| plan.shape.local_tokens().saturating_mul(u64::from(ranks))),
        }
    }

    /// Returns the step that exchanges all slots among the expert-parallel devices, or gathers all tokens and, with
    /// `back`, sums the results. `None` for one expert-parallel device.
    fn exchange_slots(&self, shape: &OperatorContext, label: &str, back: bool) -> Option<KernelStep> {
        let (kind, name) = match (self.gathered, back) {
            (None, _) if self.once => (CollectiveKind::Dispatch(self.choose_experts()), "dispatch"),
            (None, _) => (CollectiveKind::AllToAll, "all_to_all"),
            (Some(_), false) => (CollectiveKind::AllGather, "all_gather"),
            (Some(_), true) => (CollectiveKind::ReduceScatter, "reduce_scatter"),
        };
        let group = RankGroup { ranks: self.ranks, stride: self.stride };
        let collective = Collective { kind, bytes: self.exchanged_bytes(shape), group };
        (self.ranks > 1).then(|| collective_step(&format!("{label}.{name}"), ParallelAxis::Expert, collective))
    }

    /// Returns the context of the experts' products, which process one long sequence of slots. Under sequence
    /// parallelism, the devices that split an expert gather its slots before the first product.
    fn slot_context(&self, plan: &SegmentPlan<'_>) -> OperatorContext {
        let shape = &plan.shape;
        let ranks = plan.lowering.expert_tensor_parallel.unwrap_or(shape.ranks / expert_ranks_within_group(shape));
        // If the tensor-parallel degree is one, the devices that split an expert each have their own tokens.
        let sequence_parallel = (shape.sequence_parallel || shape.ranks == 1) && ranks > 1;
        let split = if sequence_parallel { u64::from(ranks) } else { 1 };
        let sequence = self.slots.saturating_mul(split);
        let product = shape.serving.and_then(|pass| pass.expert_product).unwrap_or(shape.product);
        OperatorContext { batch: 1, sequence, context: 1, ranks, sequence_parallel, product, ..*shape }
    }

    /// Returns the number of this device's experts that at least one token is expected to reach, rounded up. Each of T
    /// tokens of the group chooses k of E experts at random and misses a given expert with probability 1 - k / E.
    fn reached_experts(&self, inside: u32) -> u64 {
        let (count, chosen) = (self.experts.count.max(1) as f64, self.experts.top_k as f64);
        let tokens = self.slots as f64 * f64::from(self.ranks.saturating_mul(inside)) / chosen.max(1.0);
        let missed = (1.0 - (chosen / count).min(1.0)).powf(tokens);
        (self.local as f64 * (1.0 - missed)).ceil() as u64
    }

    /// Returns the rule by which a token chooses its experts.
    fn choose_experts(&self) -> PartChoice {
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let groups = self.experts.groups.unwrap_or(ExpertGroups { count: 1, chosen: 1 });
        PartChoice {
            parts: small(self.experts.count),
            chosen: small(self.experts.top_k),
            groups: small(groups.count),
            groups_chosen: small(groups.chosen),
        }
    }

    /// Returns the bytes on a device before or after an exchange, whichever are more.
    fn exchanged_bytes(&self, shape: &OperatorContext) -> Bytes {
        shape.activation_bytes(self.gathered.unwrap_or(self.slots).saturating_mul(self.hidden))
    }
}

/// Adds router, dispatch, experts and combination, and returns the branch's result.
pub(crate) fn add_mixture(graph: &mut GraphBuilder, plan: &SegmentPlan<'_>, experts: Experts, x: TensorId) -> TensorId {
    let (model, shape) = (plan.model, &plan.shape);
    let dispatch = ExpertDispatch::new(plan, experts);
    let weights = add_router(graph, plan, experts, x);
    let sent = add_own_norm(graph, plan, experts, "routed_norm", x);
    let narrow = experts.latent.map_or(sent, |latent| {
        let widths = ProductWidths { input: model.hidden, output: latent };
        add_latent_product(graph, shape, "latent_down", "latent", widths, sent)
    });
    let tokens = add_dispatch(graph, shape, &dispatch, narrow);
    let results = add_expert_products(graph, plan, &dispatch, weights, tokens);
    let late = (!plan.lowering.weighted_experts).then_some(weights);
    let combined = add_combine(graph, shape, &dispatch, results, late);
    if shape.serving.is_some() && experts.shared.is_none() {
        // With a shared expert, this sum is not needed: the sum of the shared expert's result over the devices includes
        // the routed results.
        let sum = shape.sum_over_tensor_ranks("forward", graph.tensor_bytes(combined));
        graph.extend_forward_of_last(sum);
    }
    let routed = experts.latent.map_or(combined, |latent| {
        let widths = ProductWidths { input: latent, output: model.hidden };
        add_latent_product(graph, shape, "latent_up", "out", widths, combined)
    });
    let routed = add_own_norm(graph, plan, experts, "routed_output_norm", routed);
    match experts.shared {
        Some(shared) => shared_expert::add_shared_expert(graph, plan, shared, [x, routed]),
        None => routed,
    }
}

/// Adds the norm `layer.moe.part` if the experts have norms of their own.
fn add_own_norm(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    experts: Experts,
    part: &str,
    x: TensorId,
) -> TensorId {
    match experts.own_norms {
        true => plan.add_norm_operator(graph, &format!("layer.moe.{part}"), plan.model.hidden, x),
        false => x,
    }
}

/// Adds the router and the choice of experts, and returns the weights of the chosen ones.
fn add_router(graph: &mut GraphBuilder, plan: &SegmentPlan<'_>, experts: Experts, x: TensorId) -> TensorId {
    let routed_from = add_own_norm(graph, plan, experts, "router_norm", x);
    let router = Linear {
        name: "layer.moe.router".to_owned(),
        input: plan.model.hidden,
        outputs: &[result_part("logits", experts.count)],
        bias: experts.router_bias,
        split: WeightSplit::Replicated,
        shares_input: false,
        narrow: false,
        chunks: 1,
    };
    let logits = router.add_linear(graph, &plan.shape, routed_from)[0];
    add_top_k(graph, &plan.shape, experts, logits)
}

/// Adds the experts' products and activations on the dispatched `tokens`, and returns the results of all slots. If the
/// stack weighs experts early, the activations' rows are scaled by the routing `weights`.
fn add_expert_products(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    dispatch: &ExpertDispatch,
    weights: TensorId,
    tokens: TensorId,
) -> TensorId {
    let (model, slots) = (plan.model, dispatch.slot_context(plan));
    let width = model.ffn / u64::from(slots.ranks.max(1));
    let reached = dispatch.reached_experts(expert_ranks_within_group(&plan.shape));
    let product = |name: &'static str, widths, split| GroupedProduct {
        name,
        experts: dispatch.local,
        reached,
        widths,
        split,
        bias: model.mlp_bias,
    };
    let wide =
        |name, columns| product(name, ProductWidths { input: dispatch.hidden, output: columns }, WeightSplit::Columns);
    let y = if model.gated {
        let parts = wide("layer.moe.gate_up", 2 * width).add_grouped_product(graph, &slots, tokens, &["gate", "up"]);
        let gate_and_up = <[TensorId; 2]>::try_from(parts).unwrap_or([tokens; 2]);
        gated::add_gated_unit(graph, &slots, "layer.moe.gated", model.activation, width, gate_and_up)
    } else {
        let parts = wide("layer.moe.fc1", width).add_grouped_product(graph, &slots, tokens, &["out"]);
        activation::add_activation(graph, &slots, "layer.moe.activation", model.activation, width, parts[0])
    };
    if plan.lowering.weighted_experts {
        graph.scale_rows_of_last(weights);
    }
    let last = if model.gated { "layer.moe.down" } else { "layer.moe.fc2" };
    let widths = ProductWidths { input: width, output: dispatch.hidden };
    product(last, widths, WeightSplit::Rows).add_grouped_product(graph, &slots, y, &["out"])[0]
}

/// Returns the number of tensor-parallel devices of a serving pass that have different experts; 1 in training.
fn expert_ranks_within_group(shape: &OperatorContext) -> u32 {
    shape.serving.map_or(1, |pass| pass.expert_ranks.max(1))
}

/// Adds the product that changes the width of tokens' vectors before the dispatch or after the combination. Every
/// tensor-parallel device runs it for its own tokens.
fn add_latent_product(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    part: &str,
    output: &'static str,
    widths: ProductWidths,
    x: TensorId,
) -> TensorId {
    let product = Linear {
        name: format!("layer.moe.{part}"),
        input: widths.input,
        outputs: &[result_part(output, widths.output)],
        bias: false,
        split: WeightSplit::Replicated,
        shares_input: false,
        narrow: false,
        chunks: 1,
    };
    product.add_linear(graph, shape, x)[0]
}

/// Adds the softmax of the logits and the choice of the largest, and returns the chosen weights. It keeps the fp32
/// probabilities, and a weight and an index per choice.
fn add_top_k(graph: &mut GraphBuilder, shape: &OperatorContext, experts: Experts, logits: TensorId) -> TensorId {
    let tokens = shape.local_tokens();
    let choices = tokens.saturating_mul(experts.top_k);
    let probabilities =
        graph.add_constant("layer.moe.top_k.probabilities", Bytes(WEIGHT_BYTES) * tokens.saturating_mul(experts.count));
    let indices = graph.add_constant("layer.moe.top_k.indices", Bytes(INDEX_BYTES) * choices);
    let weights = graph.add_tensor_of_bytes("layer.moe.top_k.weights", Bytes(WEIGHT_BYTES) * choices);
    let (read, kept) = (graph.tensor_bytes(logits), graph.tensor_bytes(probabilities));
    let chosen = graph.tensor_bytes(indices) + graph.tensor_bytes(weights);
    let rows = RowShape { rows: tokens, columns: experts.count };
    let forward = reduction_kernel(RowFunction::Softmax, Direction::Forward, rows, read, kept + chosen);
    let backward = reduction_kernel(RowFunction::Softmax, Direction::Backward, rows, kept + chosen, read);
    graph.add_operator(NewOperator {
        name: "layer.moe.top_k".to_owned(),
        inputs: vec![logits],
        outputs: vec![weights, probabilities, indices],
        forward: vec![kernel_step("forward", forward)],
        backward: vec![input_chain(
            &[logits],
            &[probabilities, indices],
            vec![kernel_step("backward_input", backward)],
        )],
        ..NewOperator::default()
    });
    weights
}

/// Returns the function that sums a token's slots. Frameworks of single operations add the slots to their tokens
/// atomically; all others sort the slots by token, and a kernel sums neighbours.
fn choose_sum_of_slots(shape: &OperatorContext) -> ElementwiseFunction {
    if shape.composed { ElementwiseFunction::ScatterAdd } else { ElementwiseFunction::Scatter }
}

/// Adds the sort of tokens by expert and the exchange that sends them to the experts' devices. Returns the received
/// slots.
fn add_dispatch(graph: &mut GraphBuilder, shape: &OperatorContext, dispatch: &ExpertDispatch, x: TensorId) -> TensorId {
    let elements = dispatch.slots.saturating_mul(dispatch.hidden);
    let output = graph.add_activation("layer.moe.dispatch.out", elements);
    let (size, input) = (shape.activation_bytes(elements), graph.tensor_bytes(x));
    let gather = elementwise_kernel(ElementwiseFunction::Gather, Direction::Forward, elements, size, size);
    let scatter = elementwise_kernel(choose_sum_of_slots(shape), Direction::Backward, elements, size, input);
    let mut forward = vec![kernel_step("forward", gather)];
    forward.extend(dispatch.exchange_slots(shape, "forward", false));
    let mut backward: Vec<KernelStep> = dispatch.exchange_slots(shape, "backward_input", true).into_iter().collect();
    backward.push(kernel_step("backward_input", scatter));
    graph.add_operator(NewOperator {
        name: "layer.moe.dispatch".to_owned(),
        inputs: vec![x],
        outputs: vec![output],
        forward,
        backward: vec![input_chain(&[x], &[], backward)],
        workspace: if dispatch.ranks > 1 { dispatch.exchanged_bytes(shape) } else { Bytes::ZERO },
        ..NewOperator::default()
    });
    output
}

/// Adds the exchange that returns results to their tokens' devices, and the weighted sum of each token's results. The
/// weights' gradient needs the results, unless the results were weighted before the experts' last product.
fn add_combine(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    dispatch: &ExpertDispatch,
    results: TensorId,
    weights: Option<TensorId>,
) -> TensorId {
    let tokens = shape.local_tokens();
    let elements = dispatch.slots.saturating_mul(dispatch.hidden);
    let returned = graph.add_activation("layer.moe.return.out", elements);
    let (size, row) =
        (shape.activation_bytes(elements), weights.map_or(Bytes::ZERO, |weights| graph.tensor_bytes(weights)));
    let exchange = |label: &str, back| dispatch.exchange_slots(shape, label, back).into_iter().collect::<Vec<_>>();
    graph.add_operator(NewOperator {
        name: "layer.moe.return".to_owned(),
        inputs: vec![results],
        outputs: vec![returned],
        forward: exchange("forward", true),
        backward: vec![input_chain(&[results], &[], exchange("backward_input", false))],
        ..NewOperator::default()
    });
    let output = graph.add_activation("layer.moe.combine.out", tokens.saturating_mul(dispatch.hidden));
    let written = graph.tensor_bytes(output);
    let sum = elementwise_kernel(choose_sum_of_slots(shape), Direction::Forward, elements, size + row, written);
    let spread = elementwise_kernel(ElementwiseFunction::Gather, Direction::Backward, elements, written + row, size);
    let choices = tokens.saturating_mul(dispatch.experts.top_k);
    let weigh = reduction_kernel(
        RowFunction::Sum,
        Direction::Backward,
        RowShape { rows: choices, columns: dispatch.hidden },
        size + written,
        row,
    );
    let read: Vec<TensorId> = weights.into_iter().collect();
    let mut backward = vec![input_chain(&[returned], &read, vec![kernel_step("backward_input", spread)])];
    backward.extend(
        weights.map(|weights| input_chain(&[weights], &[returned], vec![kernel_step("backward_routing", weigh)])),
    );
    graph.add_operator(NewOperator {
        name: "layer.moe.combine".to_owned(),
        inputs: std::iter::once(returned).chain(weights).collect(),
        outputs: vec![output],
        forward: vec![kernel_step("forward", sum)],
        backward,
        ..NewOperator::default()
    });
    output
}

/// One product per local expert, as a batch: (slots of an expert, input width) x (input width, output width).
struct GroupedProduct {
    name: &'static str,
    /// Number of experts on this device.
    experts: u64,
    /// Number of these experts that a serving pass's tokens reach.
    reached: u64,
    /// Widths of input and output on this device.
    widths: ProductWidths,
    split: WeightSplit,
    bias: bool,
}

impl GroupedProduct {
    fn add_grouped_product(
        &self,
        graph: &mut GraphBuilder,
        shape: &OperatorContext,
        input: TensorId,
        parts: &[&str],
    ) -> Vec<TensorId> {
        let slots = shape.tokens();
        let result_slots = if self.split == WeightSplit::Rows { shape.local_tokens() } else { slots };
        let part = result_slots.saturating_mul(self.widths.output / parts.len().max(1) as u64);
        let outputs: Vec<TensorId> =
            parts.iter().map(|name| graph.add_activation(&format!("{}.{name}", self.name), part)).collect();
        let copy = add_kept_conversion(graph, shape, slots.saturating_mul(self.widths.input), input);
        let passes = GroupedPasses {
            product: self,
            shape,
            // Few tokens do not reach all experts. The weights of experts without tokens are not read.
            active: shape.serving.map_or(self.experts, |_| self.reached.min(slots).max(1)),
            converts_input: copy.is_none(),
        };
        graph.add_operator(NewOperator {
            name: self.name.to_owned(),
            inputs: std::iter::once(input).chain(copy).collect(),
            outputs: outputs.clone(),
            forward: passes.forward_steps(),
            backward_prepare: passes.prepare_steps(),
            backward: vec![
                input_chain(&[input], &[], passes.input_gradient_steps()),
                weight_chain(&[copy.unwrap_or(input)], passes.weight_gradient_steps()),
            ],
            parameters: Parameters { expert: self.weights().saturating_add(self.biases()), ..Parameters::default() },
            workspace: if shape.sequence_parallel { passes.gathered_bytes() } else { Bytes::ZERO },
            ..NewOperator::default()
        });
        outputs
    }

    /// Returns the number of weights of all experts on this device.
    fn weights(&self) -> u64 {
        self.experts.saturating_mul(self.widths.input).saturating_mul(self.widths.output)
    }

    fn biases(&self) -> u64 {
        if self.bias { self.experts.saturating_mul(self.widths.output) } else { 0 }
    }
}

/// A grouped product and the sizes that its passes share.
struct GroupedPasses<'a> {
    product: &'a GroupedProduct,
    shape: &'a OperatorContext,
    /// Number of experts that have tokens.
    active: u64,
    /// True if no converted input is kept.
    converts_input: bool,
}

impl GroupedPasses<'_> {
    fn gathers_input(&self) -> bool {
        self.product.split == WeightSplit::Columns
    }

    /// Returns the size of an expert's forward product.
    fn forward_size(&self) -> ProductSize {
        let ProductWidths { input, output } = self.product.widths;
        ProductSize { m: self.slots_per_expert(), n: output, k: input }
    }

    fn slots_per_expert(&self) -> u64 {
        self.shape.tokens().div_ceil(self.active.max(1))
    }

    fn input_elements(&self) -> u64 {
        self.shape.tokens().saturating_mul(self.product.widths.input)
    }

    fn output_elements(&self) -> u64 {
        self.shape.tokens().saturating_mul(self.product.widths.output)
    }

    fn full_input(&self) -> Bytes {
        self.shape.activation_bytes(self.input_elements())
    }

    fn full_output(&self) -> Bytes {
        self.shape.activation_bytes(self.output_elements())
    }

    /// Returns the bytes of the activation that is gathered along the sequence.
    fn gathered_bytes(&self) -> Bytes {
        if self.gathers_input() { self.full_input() } else { self.full_output() }
    }

    fn product_step(&self, label: &str, size: ProductSize, result: DataType) -> KernelStep {
        kernel_step(label, Kernel::Contraction(size.contraction(self.active, self.shape.product, result)))
    }

    fn conversion_step(&self, label: &str, elements: u64) -> Option<KernelStep> {
        convert_operands(self.shape, elements).map(|kernel| kernel_step(label, kernel))
    }

    /// Returns the step that converts operands a second time; `None` if conversions are cached.
    fn further_conversion_step(&self, label: &str, elements: u64) -> Option<KernelStep> {
        if self.shape.cached_conversions { None } else { self.conversion_step(label, elements) }
    }

    fn forward_steps(&self) -> Vec<KernelStep> {
        let shape = self.shape;
        let gathered = self.gathers_input().then(|| shape.gather_sequence("forward", self.full_input()));
        let mut steps: Vec<KernelStep> = gathered.flatten().into_iter().collect();
        if self.converts_input {
            steps.extend(self.conversion_step("forward.convert_input", self.input_elements()));
        }
        steps.extend(self.further_conversion_step("forward.convert_weight", self.product.weights()));
        steps.push(self.product_step("forward", self.forward_size(), shape.operand));
        // In serving, results are summed over the devices after their combination.
        let sums_here = !self.gathers_input() && shape.serving.is_none();
        steps.extend(sums_here.then(|| shape.sum_over_tensor_ranks("forward", self.full_output())).flatten());
        steps
    }

    /// Returns the steps before both gradients.
    fn prepare_steps(&self) -> Vec<KernelStep> {
        let gathered = (!self.gathers_input()).then(|| self.shape.gather_sequence("backward", self.full_output()));
        let mut steps: Vec<KernelStep> = gathered.flatten().into_iter().collect();
        steps.extend(self.conversion_step("backward.convert_gradient", self.output_elements()));
        steps
    }

    fn input_gradient_steps(&self) -> Vec<KernelStep> {
        let shape = self.shape;
        let converted = self.further_conversion_step("backward_input.convert_weight", self.product.weights());
        let mut steps: Vec<KernelStep> = converted.into_iter().collect();
        steps.push(self.product_step("backward_input", self.forward_size().left_gradient(), shape.operand));
        let summed = self.gathers_input().then(|| shape.sum_over_tensor_ranks("backward_input", self.full_input()));
        steps.extend(summed.flatten());
        steps
    }

    fn weight_gradient_steps(&self) -> Vec<KernelStep> {
        let (shape, product) = (self.shape, self.product);
        let gathered = self.gathers_input().then(|| shape.gather_sequence("backward_weight", self.full_input()));
        let mut steps: Vec<KernelStep> = gathered.flatten().into_iter().collect();
        steps.extend(self.further_conversion_step("backward_weight.convert_input", self.input_elements()));
        steps.push(self.product_step("backward_weight", self.forward_size().right_gradient(), shape.gradient));
        steps.extend(shape.separate_accumulation.then(|| accumulate_weight_gradient(shape, product.weights())));
        steps.extend(product.bias.then(|| reduce_bias_gradient(shape, product.biases(), self.slots_per_expert())));
        steps
    }
}
