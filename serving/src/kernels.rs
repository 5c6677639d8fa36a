//! Times of single kernels under an engine.

use crate::context::{SharedAttention, SharedCache};
use crate::engine::ServingEngine;
use crate::pass_time::PassTime;
use crate::plan::ServingFormats;
use sim::cost::{AttentionCall, AttentionSoftware, CostModel, Routine, Span};
use sim::hardware::Accelerator;
use sim::kernel::{
    Collective, CollectiveKind, Contraction, DataType, Direction, ElementwiseFunction, FusedAttention, Kernel,
    KernelNode,
};
use sim::network::Fabric;
use sim::units::{Joules, Seconds};
use workloads::Segment;
use workloads::serving::WeightsOf;

/// Fraction of the arrays' peak that decoding attention with many query heads per key reaches (FlashMLA's README,
/// DeepSeek 2025: 660 of H800's 989 TFLOP/s). Range 0.5 to 0.8 by its versions.
const LATENT_DECODE_ISSUE: f64 = 0.67;

/// Largest number of queries that share the keys of one tile of decoding attention, on a chip with a kernel library
/// (`sim/src/cost/library_attention.rs`, fitted on groups of query heads).
const PACKED_QUERIES: u64 = 32;

/// Largest number of parts into which keys are split if few sequences decode on many cores.
const MOST_KEY_PARTS: u64 = 64;

/// Times of kernels on a chip and a fabric, under an engine's launches and formats.
#[derive(Debug, Clone)]
pub(crate) struct KernelTimes<'a> {
    pub(crate) chip: CostModel,
    pub(crate) fabric: &'a Fabric,
    pub(crate) engine: &'a ServingEngine,
    pub(crate) formats: ServingFormats,
    /// The library that runs attention.
    pub(crate) attention: AttentionSoftware,
    /// The cache, if devices share its tokens.
    pub(crate) shared: Option<SharedCache>,
}

impl KernelTimes<'_> {
    /// Returns the chip.
    pub(crate) fn chip(&self) -> &Accelerator {
        self.chip.accelerator()
    }

    /// Returns the time of a pass's kernel, under the part of the pass that it belongs to. `drafts` is the number of
    /// new tokens of a decoding sequence, 0 for prompts.
    pub(crate) fn time_of_node(&self, segment: &Segment, node: &KernelNode, drafts: u64) -> PassTime {
        // If a chip's scalars include the launch of a kernel, there is no further gap.
        let own_launch = self.chip().calibration.launch_overhead > Seconds::ZERO;
        let gap = if own_launch { Seconds::ZERO } else { Seconds::from_micros(self.engine.launch.gap_us) };
        let launched = PassTime { gaps: gap, ..PassTime::default() };
        let cost = |kernel: &Kernel| self.chip.cost_of_kernel(kernel, Span::AllCores);
        match &node.kernel {
            Kernel::Collective(collective) => {
                PassTime { communication: self.time_of_collective(collective), ..launched }
            }
            Kernel::FusedAttention(attention) => {
                if let Some(shared) = self.shared.filter(|_| !attention.causal) {
                    return self.time_of_shared(&shared.share(attention, drafts > 0), launched, drafts);
                }
                let time = self.time_of_attention(attention, drafts) / self.attention_rate(drafts > 0);
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

    /// Returns the time of attention to a cache whose tokens devices share. Every kernel has the launch costs of
    /// `launched`.
    fn time_of_shared(&self, shared: &SharedAttention, launched: PassTime, drafts: u64) -> PassTime {
        let cost = |kernel: &Kernel| self.chip.cost_of_kernel(kernel, Span::AllCores);
        let attention = PassTime {
            attention: self.time_of_attention(&shared.attention, drafts) / self.attention_rate(drafts > 0),
            energy: cost(&Kernel::FusedAttention(shared.attention)).energy,
            ..launched
        };
        let exchanges = shared.exchanges.iter();
        let exchanges = exchanges.map(|of| PassTime { communication: self.time_of_collective(of), ..launched });
        let weighing = shared.weighing.map(|kernel| {
            let cost = cost(&Kernel::Elementwise(kernel));
            PassTime { vector: cost.latency, energy: cost.energy, ..launched }
        });
        exchanges.chain(weighing).fold(attention, PassTime::plus)
    }

    /// Returns the number of kernels that an engine launches for one kernel of a pass.
    pub(crate) fn launches_of_node(&self, node: &KernelNode, drafts: u64) -> u64 {
        match (&node.kernel, self.shared) {
            (Kernel::FusedAttention(attention), Some(shared)) if !attention.causal => shared.kernel_count(drafts > 0),
            _ => 1,
        }
    }

    fn attention_rate(&self, decodes: bool) -> f64 {
        if decodes { self.engine.kernels.decode_fraction } else { 1.0 }
    }

    /// Returns the time and the energy of a product. Weights that are stored in fewer bits than they are multiplied in
    /// use less of the memories' bandwidth. So the product is timed on memories that are faster by the ratio of all its
    /// bytes. Converting the weights takes issue slots from the products.
    pub(crate) fn cost_of_product(&self, product: &Contraction, of: WeightsOf) -> (Seconds, Joules) {
        let bytes = self.formats.bytes_of_weight(of);
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
        // This cannot fail: the chip was accepted with less bandwidth.
        CostModel::new(faster)
            .map_or_else(|_| cost_of_product_on(&self.chip, product, of), |chip| cost_of_product_on(&chip, product, of))
    }

    /// Returns the time of attention in the chip's attention library, or on the chip's own cores if it has no library.
    /// `drafts` is the number of new tokens of a sequence that decodes, 0 for prompts.
    fn time_of_attention(&self, a: &FusedAttention, drafts: u64) -> Seconds {
        let operand = self.formats.cache;
        if self.chip().library.is_none() {
            return self.time_on_cores(a, drafts > 0);
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
            software: self.attention,
        };
        let alone = |call: AttentionCall| self.chip.time_alone(&Routine::Attention(call));
        if let Some(group) = a.queries.checked_div(drafts) {
            // Drafts join the query heads that share a key. The kernel reads a key once per tile of such queries.
            let rows = if drafts > 1 { a.queries.min(PACKED_QUERIES).max(group) } else { a.queries };
            let step = AttentionCall { heads: a.heads * rows, kv_heads: a.heads, queries: 1, ..call };
            if drafts == 1 && !a.values_are_keys {
                return alone(step);
            }
            // If many queries share a key, their products may take longer than the reading of the keys. Keys that are
            // also values are read once.
            let once = AttentionCall { heads: 1, kv_heads: 1, head_dim: a.head_dim / 2, ..step };
            let reading = alone(if a.values_are_keys { once } else { step });
            let peak = self.chip().peak_flops(a.operand).map_or(f64::INFINITY, |peak| peak.0);
            return reading.max(Seconds(a.flops().as_f64() / (peak * LATENT_DECODE_ISSUE)));
        }
        if a.causal {
            return alone(AttentionCall { operand: a.operand, ..call });
        }
        // New tokens on cached keys: the time that the cached keys add to the new tokens' attention among themselves.
        let own = AttentionCall { keys: a.queries, operand: a.operand, ..call };
        (alone(AttentionCall { keys: a.queries + a.keys, ..own }) - alone(own)).max(Seconds::ZERO)
    }

    /// Returns the time of attention on the chip's cores. Decoding splits long keys over cores that would otherwise
    /// idle.
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

    /// Returns the time of a collective of the plan. Short sums inside a fast domain may take the engine's own kernel.
    /// In it, every device reads all others' buffers, or first its share of them and then the others' sums.
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

/// Returns the time and the energy of a product on a chip. Products of experts are one call, without the least time of
/// a single launch.
fn cost_of_product_on(chip: &CostModel, product: &Contraction, of: WeightsOf) -> (Seconds, Joules) {
    let cost = chip.cost_of_kernel(&Kernel::Contraction(*product), Span::AllCores);
    if of != WeightsOf::Experts || product.batch < 2 {
        return (cost.latency, cost.energy);
    }
    let floor = chip.accelerator().library.map_or(Seconds::ZERO, |library| library.floor);
    let grouped = chip.time_alone(&Routine::Grouped(*product)) - floor;
    (grouped.max(Seconds::ZERO), cost.energy)
}
