//! Times of single passes: one decoding iteration, one chunk of a prompt.
//!
//! A pass runs its kernels one after the other, as engines launch them. On a chip with a kernel library, attention is
//! the serving library's call, which rotates queries and keys and writes the cache. Residual sums and conversions run
//! inside the kernel beside them, so they cost their bytes but no launch.

use crate::engine::Batching;
use crate::{ServingEngine, ServingError, ServingPlan};
use serde::{Deserialize, Serialize};
use sim::cost::{AttentionCall, AttentionSoftware, CostModel, Routine, Span};
use sim::hardware::Accelerator;
use sim::kernel::{
    Collective, CollectiveKind, Contraction, DataType, Direction, ElementwiseFunction, FusedAttention, Kernel,
    KernelNode, RankGroup,
};
use sim::network::Fabric;
use sim::units::{Bytes, Joules, Seconds};
use std::collections::BTreeMap;
use workloads::serving::{ServingGraph, WeightsOf};
use workloads::{Model, Segment};

/// Fraction of the arrays' peak that decoding attention with many query heads per key reaches (FlashMLA's README,
/// DeepSeek 2025: 660 of H800's 989 TFLOP/s). Range 0.5 to 0.8 by its versions.
const LATENT_DECODE_ISSUE: f64 = 0.67;

/// Most parts that keys are split into where few sequences decode on many cores.
const MOST_KEY_PARTS: u64 = 64;

/// The time of a pass and its parts, which sum to it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PassTime {
    /// Products with weights.
    pub products: Seconds,
    /// Attention, and other work on the cache.
    pub attention: Seconds,
    /// Vector work.
    pub vector: Seconds,
    /// Communication inside the replica.
    pub communication: Seconds,
    /// Gaps between kernels.
    pub gaps: Seconds,
    /// Time that no kernel hides: the host between iterations, and its launches beyond the kernels' time.
    pub host: Seconds,
    /// Energy of its kernels on one device, without static power.
    pub energy: Joules,
}

impl PassTime {
    /// Returns the sum of the parts.
    #[must_use]
    pub fn total(&self) -> Seconds {
        self.on_device() + self.host
    }

    fn on_device(&self) -> Seconds {
        self.products + self.attention + self.vector + self.communication + self.gaps
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            products: self.products + other.products,
            attention: self.attention + other.attention,
            vector: self.vector + other.vector,
            communication: self.communication + other.communication,
            gaps: self.gaps + other.gaps,
            host: self.host + other.host,
            energy: self.energy + other.energy,
        }
    }

    fn times(self, n: f64) -> Self {
        Self {
            products: self.products * n,
            attention: self.attention * n,
            vector: self.vector * n,
            communication: self.communication * n,
            gaps: self.gaps * n,
            host: self.host * n,
            energy: self.energy * n,
        }
    }
}

/// A pass: new tokens of sequences with tokens in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PassShape {
    sequences: u64,
    new: u64,
    cached: u64,
}

/// Times of the passes of a plan on a chip and a fabric under an engine, computed once each.
#[derive(Debug, Clone)]
pub struct PassTimes<'a> {
    model: &'a Model,
    chip: CostModel,
    fabric: &'a Fabric,
    engine: &'a ServingEngine,
    plan: ServingPlan,
    known: BTreeMap<PassShape, PassTime>,
}

impl<'a> PassTimes<'a> {
    /// Prepares a plan.
    ///
    /// # Errors
    /// Degrees that do not fit the model, a chip that the cost model cannot use, a fabric without enough devices.
    pub fn new(
        model: &'a Model,
        chip: &Accelerator,
        fabric: &'a Fabric,
        engine: &'a ServingEngine,
        plan: ServingPlan,
    ) -> Result<Self, ServingError> {
        plan.check_degrees(model)?;
        check_formats(chip, &plan, model)?;
        let hardware = |e: &dyn std::fmt::Display| ServingError::Hardware(e.to_string());
        let chip = CostModel::new(chip.clone()).map_err(|e| hardware(&e))?;
        fabric.check_group(RankGroup { ranks: plan.devices(), stride: 1 }).map_err(|e| hardware(&e))?;
        Ok(Self { model, chip, fabric, engine, plan, known: BTreeMap::new() })
    }

    /// Returns the plan.
    #[must_use]
    pub fn plan(&self) -> &ServingPlan {
        &self.plan
    }

    /// Returns the fabric.
    #[must_use]
    pub fn fabric(&self) -> &'a Fabric {
        self.fabric
    }

    /// Returns the engine.
    #[must_use]
    pub fn engine(&self) -> &'a ServingEngine {
        self.engine
    }

    /// Returns the chip.
    #[must_use]
    pub fn chip(&self) -> &Accelerator {
        self.chip.accelerator()
    }

    /// Returns one decoding iteration of the replica: a token for each of `sequences` sequences that have `cached`
    /// tokens on average. Groups with attention of their own, and the stages of a pipeline, share the sequences out.
    ///
    /// # Errors
    /// A batch or a length beyond what the model allows.
    pub fn decode(&mut self, sequences: u64, cached: u64) -> Result<PassTime, ServingError> {
        let parts = u64::from(self.plan.attention_data.saturating_mul(self.plan.pipeline));
        let shape = PassShape { sequences: sequences.div_ceil(parts).max(1), new: 1, cached };
        let pass = self.pass(shape)?;
        let launch = &self.engine.launch;
        // Every group with attention of its own has a scheduler of its own.
        let scheduled = sequences.div_ceil(u64::from(self.plan.attention_data));
        let host = Seconds::from_micros(launch.iteration_us + launch.sequence_us * scheduled as f64);
        Ok(PassTime { host: pass.host + host, ..pass })
    }

    /// Returns the time of prefilling `new` tokens of each of `prompts` prompts that have `cached` tokens in the cache.
    /// The stages of a pipeline follow each other.
    ///
    /// # Errors
    /// A length beyond what the model allows.
    pub fn prefill(&mut self, prompts: u64, new: u64, cached: u64) -> Result<PassTime, ServingError> {
        let own = prompts.div_ceil(u64::from(self.plan.attention_data)).max(1);
        let pass = self.pass(PassShape { sequences: own, new: new.max(1), cached })?;
        Ok(PassTime { host: pass.host + Seconds::from_micros(self.engine.launch.iteration_us), ..pass })
    }

    /// Returns how often all prompts' tokens pass the devices at once: a pipeline works on as many passes as stages.
    #[must_use]
    pub fn passes_in_flight(&self) -> f64 {
        f64::from(self.plan.pipeline)
    }

    /// Returns how the engine joins prompts and decoding.
    #[must_use]
    pub fn batching(&self) -> Batching {
        self.engine.batching.form
    }

    fn pass(&mut self, shape: PassShape) -> Result<PassTime, ServingError> {
        if let Some(known) = self.known.get(&shape) {
            return Ok(*known);
        }
        let lowering = self.plan.lowering(self.model, shape.sequences, shape.new);
        let graph = ServingGraph::new(self.model, &lowering, self.plan.pass_after(shape.cached))?;
        let captured = shape.new == 1;
        let (mut sum, mut kernels) = (PassTime::default(), 0.0);
        for segment in &graph.segments {
            let mut one = PassTime::default();
            let nodes = segment.forward_graph();
            for node in nodes.node_weights() {
                one = one.plus(self.time_of_node(segment, node, captured));
            }
            sum = sum.plus(one.times(segment.repeat as f64));
            kernels += (nodes.node_count() as u64 * segment.repeat) as f64;
        }
        let sends = self.time_of_sends(shape);
        sum.communication += sends;
        if !captured {
            let launching = Seconds::from_micros(self.engine.launch.prompt_kernel_us) * kernels;
            sum.host = (launching - sum.on_device()).max(Seconds::ZERO);
        }
        self.known.insert(shape, sum);
        Ok(sum)
    }

    /// Returns the sends of hidden states between the stages of a pipeline, one after the other.
    fn time_of_sends(&self, shape: PassShape) -> Seconds {
        let stages = self.plan.pipeline;
        if stages < 2 {
            return Seconds::ZERO;
        }
        let tokens = shape.sequences.saturating_mul(shape.new);
        let bytes = Bytes(DataType::Bf16.bytes()) * tokens * self.model.hidden;
        let group = RankGroup { ranks: 2, stride: self.plan.tensor.saturating_mul(self.plan.attention_data) };
        let send = Collective { kind: CollectiveKind::SendRecv, bytes, group };
        self.fabric.cost_of_collective(&send).latency * f64::from(stages - 1)
    }

    fn time_of_node(&self, segment: &Segment, node: &KernelNode, decodes: bool) -> PassTime {
        // A chip whose scalars hold the launch of a kernel has no gap besides.
        let own_launch = self.chip().calibration.launch_overhead > Seconds::ZERO;
        let gap = if own_launch { Seconds::ZERO } else { Seconds::from_micros(self.engine.launch.gap_us) };
        let launched = PassTime { gaps: gap, ..PassTime::default() };
        let cost = |kernel: &Kernel| self.chip.cost_of_kernel(kernel, Span::AllCores);
        match &node.kernel {
            Kernel::Collective(collective) => {
                PassTime { communication: self.time_of_collective(collective), ..launched }
            }
            Kernel::FusedAttention(attention) => {
                let time = self.time_of_attention(attention, decodes) / self.attention_rate(decodes);
                PassTime { attention: time, energy: cost(&node.kernel).energy, ..launched }
            }
            Kernel::Contraction(product) => {
                let operator = node.role.operator.and_then(|id| segment.operators().get(id.index()));
                let of = operator.map_or(WeightsOf::Rest, |own| WeightsOf::operator(own, DataType::Bf16));
                let (time, energy) = self.cost_of_product(product, of);
                PassTime { products: time / self.engine.kernels.product_fraction, energy, ..launched }
            }
            Kernel::Epilogue(_) => {
                let cost = cost(&node.kernel);
                PassTime { attention: cost.latency, energy: cost.energy, ..launched }
            }
            Kernel::Elementwise(pass) => {
                let cost = cost(&node.kernel);
                let inside_attention = self.chip().library.is_some() && pass.function == ElementwiseFunction::Rope;
                let beside = matches!(pass.function, ElementwiseFunction::Add | ElementwiseFunction::Convert)
                    || inside_attention;
                let time = if inside_attention { Seconds::ZERO } else { cost.latency };
                let gaps = if beside { Seconds::ZERO } else { gap };
                PassTime { vector: time, energy: cost.energy, gaps, ..launched }
            }
            Kernel::Reduction(_) | Kernel::Transfer(_) => {
                let cost = cost(&node.kernel);
                PassTime { vector: cost.latency, energy: cost.energy, ..launched }
            }
        }
    }

    fn attention_rate(&self, decodes: bool) -> f64 {
        if decodes { self.engine.kernels.decode_fraction } else { 1.0 }
    }

    /// Returns time and energy of a product. Weights that are stored in fewer bits than they are multiplied in need
    /// less of the memories: the product runs as on memories that are faster by the ratio of all its bytes. Converting
    /// the weights takes issue slots from the products.
    fn cost_of_product(&self, product: &Contraction, of: WeightsOf) -> (Seconds, Joules) {
        let bytes = self.plan.formats.bytes_of_weight(of);
        let wide = product.operand.packed_bytes_per_number();
        if of == WeightsOf::Rest || bytes >= wide {
            return cost_of_product_on(&self.chip, product, of);
        }
        let (left, right) = ((product.m * product.k) as f64, (product.k * product.n) as f64);
        let ratio = (left + right) * wide / (left * wide + right * bytes);
        let mut faster = self.chip().clone();
        faster.hbm.read_bandwidth = faster.hbm.read_bandwidth * ratio;
        faster.hbm.read_energy_per_byte = faster.hbm.read_energy_per_byte * (1.0 / ratio);
        faster.calibration = faster.calibration.scale_tensor_rates(self.engine.kernels.stored_fraction);
        if let Some(library) = &mut faster.library {
            library.core_read_bytes_per_cycle *= ratio;
            library.issue_fraction *= self.engine.kernels.stored_fraction;
        }
        // The chip was accepted with less bandwidth.
        CostModel::new(faster)
            .map_or_else(|_| cost_of_product_on(&self.chip, product, of), |chip| cost_of_product_on(&chip, product, of))
    }

    /// Returns attention by the serving library, or by the chip's own cores without one.
    fn time_of_attention(&self, a: &FusedAttention, decodes: bool) -> Seconds {
        let operand = self.plan.formats.cache;
        if self.chip().library.is_none() {
            return self.time_on_cores(a, decodes);
        }
        let call = AttentionCall {
            direction: Direction::Forward,
            batch: a.batch,
            heads: a.heads,
            kv_heads: a.kv_heads,
            queries: a.queries,
            keys: a.keys,
            head_dim: a.head_dim,
            window: a.window,
            operand,
            software: AttentionSoftware::Serving,
        };
        let alone = |call: AttentionCall| self.chip.time_alone(&Routine::Attention(call));
        if decodes {
            let step = AttentionCall { heads: a.heads * a.queries, kv_heads: a.heads, queries: 1, ..call };
            if !a.values_are_keys {
                return alone(step);
            }
            // Keys are values, so each is read once; many heads share it, and their products take longer.
            let reading = alone(AttentionCall { heads: 1, kv_heads: 1, head_dim: a.head_dim / 2, ..step });
            let peak = self.chip().peak_flops(a.operand).map_or(f64::INFINITY, |peak| peak.0);
            return reading.max(Seconds(a.flops().as_f64() / (peak * LATENT_DECODE_ISSUE)));
        }
        if a.causal {
            return alone(AttentionCall { operand: a.operand, ..call });
        }
        // New tokens on cached keys: what these add to the tokens' attention among themselves.
        let own = AttentionCall { keys: a.queries, operand: a.operand, ..call };
        (alone(AttentionCall { keys: a.queries + a.keys, ..own }) - alone(own)).max(Seconds::ZERO)
    }

    /// Returns attention on the chip's cores. Decoding splits long keys over cores that would idle.
    fn time_on_cores(&self, a: &FusedAttention, decodes: bool) -> Seconds {
        let time = |a: FusedAttention| self.chip.cost_of_kernel(&Kernel::FusedAttention(a), Span::AllCores).latency;
        let whole = time(*a);
        if !decodes {
            return whole;
        }
        let parts = std::iter::successors(Some(2u64), |parts| Some(parts * 2));
        parts
            .take_while(|parts| *parts <= MOST_KEY_PARTS.min(a.keys))
            .map(|parts| {
                let split = FusedAttention { batch: a.batch.saturating_mul(parts), keys: a.keys.div_ceil(parts), ..*a };
                time(split)
            })
            .fold(whole, Seconds::min)
    }

    /// Returns a collective of the plan. Short sums inside a fast domain may take the engine's own kernel: every device
    /// reads all others' buffers, or its share of them and then the others' sums.
    fn time_of_collective(&self, collective: &Collective) -> Seconds {
        let library = self.fabric.cost_of_collective(collective).latency;
        let kernels = &self.engine.kernels;
        let (bytes, ranks) = (collective.bytes.as_f64(), f64::from(collective.group.ranks));
        let near = collective.group.ranks.saturating_mul(collective.group.stride) <= self.fabric.fast_domain_devices();
        let own = collective.kind == CollectiveKind::AllReduce && near && bytes <= kernels.own_sum_kib * 1024.0;
        match self.fabric.tiers.first().filter(|_| own) {
            Some(tier) => {
                let rate = tier.bandwidth.0 * tier.achieved_fraction;
                let kernel = kernels.own_sum_us * 1e-6;
                let at_once = kernel + (ranks - 1.0) * bytes / rate;
                let by_shares = 2.0 * kernel + 2.0 * (ranks - 1.0) / ranks * bytes / rate;
                library.min(Seconds(at_once.min(by_shares)))
            }
            None => library,
        }
    }
}

/// Returns time and energy of a product on a chip. Products of experts are one call, whose floor of a single launch is
/// left out.
fn cost_of_product_on(chip: &CostModel, product: &Contraction, of: WeightsOf) -> (Seconds, Joules) {
    let cost = chip.cost_of_kernel(&Kernel::Contraction(*product), Span::AllCores);
    if of != WeightsOf::Experts || product.batch < 2 {
        return (cost.latency, cost.energy);
    }
    let floor = chip.accelerator().library.map_or(Seconds::ZERO, |library| library.floor);
    let grouped = chip.time_alone(&Routine::Grouped(*product)) - floor;
    (grouped.max(Seconds::ZERO), cost.energy)
}

/// Refuses products in a type that the chip's arrays do not multiply.
fn check_formats(chip: &Accelerator, plan: &ServingPlan, model: &Model) -> Result<(), ServingError> {
    let formats = [("products", plan.formats.products), ("experts", plan.formats.experts)];
    let used = formats.into_iter().take(if model.experts.is_some() { 2 } else { 1 });
    for (key, format) in used {
        if chip.peak_flops(format.operand()).is_none() {
            return Err(ServingError::Plan {
                key,
                value: format.to_string(),
                limit: format!("the arrays of {} multiply no {}", chip.name, format.operand()),
                cure: if format.operand() == DataType::Bf16 {
                    "serve on a chip with bf16".to_owned()
                } else {
                    "take bf16, or a format that only stores weights, such as fp8-weights".to_owned()
                },
            });
        }
    }
    Ok(())
}
