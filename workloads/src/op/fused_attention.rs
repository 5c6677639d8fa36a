//! Attention fused over tiles (Dao et al. 2022). It keeps queries, keys, values, the output and one fp32 log-sum-exp
//! per row. The backward pass redraws dropout's mask from the generator's state. Under context parallelism (ring),
//! every device keeps its queries, and keys and values pass around the ring. They pass again in the backward pass, and
//! their gradients return to their devices.
//!
//! In latent attention, queries and values differ in dimension. The kernel is modelled with one dimension that gives
//! the same number of operations. In the forward pass it is the mean of both, which also moves the same bytes. In the
//! backward pass it is (3 query + 2 value) / 5, over the five products. Both are rounded up.

use super::{OperatorContext, RowShape, input_chain, kernel_step, reduction_kernel, weight_chain};
use crate::graph::{BackwardChain, GraphBuilder, KernelStep, NewOperator, OperatorRole, Parameters, TensorId};
use crate::layer_list::KeyWindow;
use crate::parallel::Heads;
use crate::serving_pass::ServingPass;
use sim::kernel::{CollectiveKind, Direction, FusedAttention, Kernel, RowFunction};
use sim::units::Bytes;

/// The dimensions and masks of a fused kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionCore {
    /// Heads on this device.
    pub(crate) heads: Heads,
    /// Keys per sequence.
    pub(crate) keys: u64,
    /// True if a query sees only its own key and earlier ones.
    pub(crate) causal: bool,
    /// The near keys that a query sees.
    pub(crate) window: Option<KeyWindow>,
    /// True if every head has a learned logit in addition to its scores.
    pub(crate) sinks: bool,
    /// Keys that every query chooses for itself; `None` without a choice.
    pub(crate) chosen: Option<ChosenKeys>,
}

/// The keys that a query chooses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChosenKeys {
    /// The largest number of chosen keys; `count` is the mean number.
    pub(crate) most: u64,
    pub(crate) count: u64,
    /// True if whole blocks are chosen. Queries that choose the same block then share its tiles (MoBA,
    /// arXiv:2502.13189, section 2.3), as in a window.
    pub(crate) in_blocks: bool,
    /// True if keys and values are one tensor.
    pub(crate) one_tensor: bool,
    /// The tensor with the indices of the chosen keys, if this layer made it.
    pub(crate) choice: Option<TensorId>,
}

impl AttentionCore {
    /// Returns the kernel for a head dimension. If every query has its own keys, each token is modelled as a sequence.
    /// The query heads that share a key head are its queries, and it reads its own keys from memory.
    fn kernel(&self, shape: &OperatorContext, direction: Direction, head_dim: u64) -> FusedAttention {
        let (heads, keys, operand) = (self.heads, self.keys, shape.operand);
        let common = FusedAttention {
            direction,
            batch: shape.batch,
            heads: heads.query,
            kv_heads: heads.kv,
            queries: shape.sequence,
            keys,
            head_dim,
            causal: self.causal,
            window: self.window.and_then(KeyWindow::sliding).filter(|window| *window < keys),
            values_are_keys: false,
            pieces: shape.pieces,
            operand,
        };
        match self.chosen {
            None => common,
            Some(chosen) if chosen.in_blocks => FusedAttention { window: Some(chosen.most), ..common },
            Some(chosen) => FusedAttention {
                batch: shape.tokens(),
                heads: heads.kv,
                queries: heads.query / heads.kv.max(1),
                keys: chosen.count,
                causal: false,
                window: None,
                values_are_keys: chosen.one_tensor,
                pieces: None,
                ..common
            },
        }
    }
}

/// Adds the operator and returns attention's output.
pub(crate) fn add_fused_attention(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    core: AttentionCore,
    [query, key, value]: [TensorId; 3],
) -> TensorId {
    let (heads, sinks) = (core.heads, core.sinks);
    let rows = shape.tokens().saturating_mul(heads.query);
    let output = graph.add_activation(&format!("{name}.out"), rows.saturating_mul(heads.value));
    let log_sum_exp = graph.add_constant(&format!("{name}.log_sum_exp"), Bytes(4) * rows);
    let kernel = |direction| {
        let head_dim = match direction {
            Direction::Forward => (heads.dim + heads.value).div_ceil(2),
            Direction::Backward => (3 * heads.dim + 2 * heads.value).div_ceil(5),
        };
        Kernel::FusedAttention(core.kernel(shape, direction, head_dim))
    };
    // Absorbed latent attention has one tensor for keys and values.
    let own_value = (value != key).then_some(value);
    let local = graph.tensor_bytes(key) + own_value.map_or(Bytes::ZERO, |value| graph.tensor_bytes(value));
    let ring = |label: &str, kind| {
        (shape.context > 1).then(|| shape.context_collective_step(label, kind, local * u64::from(shape.context)))
    };
    let mut forward: Vec<KernelStep> = ring("forward.ring_all_gather", CollectiveKind::AllGather).into_iter().collect();
    match (shape.serving, kernel(Direction::Forward)) {
        (Some(pass), Kernel::FusedAttention(whole)) if core.chosen.is_none() => {
            let whole = FusedAttention { values_are_keys: own_value.is_none(), ..whole };
            forward.extend(serving_kernels(shape, pass, core.window, whole));
        }
        (_, kernel) => forward.push(kernel_step("forward", kernel)),
    }
    let mut backward: Vec<KernelStep> =
        ring("backward_input.ring_all_gather", CollectiveKind::AllGather).into_iter().collect();
    backward.push(kernel_step("backward_input", kernel(Direction::Backward)));
    backward.extend(ring("backward_input.ring_reduce_scatter", CollectiveKind::ReduceScatter));
    let choice = core.chosen.and_then(|chosen| chosen.choice);
    let inputs: Vec<TensorId> = [query, key].into_iter().chain(own_value).collect();
    let reads: Vec<TensorId> = inputs.iter().copied().chain([output, log_sum_exp]).chain(choice).collect();
    let mut chains = vec![input_chain(&inputs, &reads, backward)];
    let read = graph.tensor_bytes(log_sum_exp) + graph.tensor_bytes(output);
    chains.extend(sinks.then(|| sink_gradient(shape, heads, log_sum_exp, read)));
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: inputs.into_iter().chain(choice).collect(),
        outputs: vec![output, log_sum_exp],
        forward,
        backward: chains,
        parameters: sink_parameters(heads, sinks),
        // One share of keys and values, and of their gradients, arrives while another share is in use.
        workspace: if shape.context > 1 { local * 4 } else { Bytes::ZERO },
        role: OperatorRole::AttentionCore,
        ..NewOperator::default()
    });
    output
}

/// Returns the kernels of attention with a cache. Decoding reads every key once, for all query heads that share it and
/// all drafts of the sequence; these are the kernel's queries. Otherwise new tokens attend to each other and to the
/// cached tokens.
fn serving_kernels(
    shape: &OperatorContext,
    pass: ServingPass,
    window: Option<KeyWindow>,
    whole: FusedAttention,
) -> Vec<KernelStep> {
    if shape.decodes() {
        let keys = window.map_or(whole.keys, |window| window.keys_at_end(whole.keys, whole.queries));
        let shared = whole.kv_heads.max(1);
        let queries = (whole.heads / shared).saturating_mul(whole.queries);
        let step = FusedAttention { heads: shared, queries, keys, causal: false, window: None, ..whole };
        return vec![kernel_step("forward.decode", Kernel::FusedAttention(step))];
    }
    let new = whole.queries;
    let own = |pieces: u64, tokens: u64| {
        let window = whole.window.filter(|window| *window < tokens);
        let batch = whole.batch.saturating_mul(pieces);
        FusedAttention { batch, queries: tokens, keys: tokens, window, ..whole }
    };
    let earlier = |queries, keys| FusedAttention { queries, keys, causal: false, window: None, ..whole };
    let kernels = match window.and_then(KeyWindow::chunk) {
        None => vec![
            ("forward", own(1, new)),
            ("forward.cached", earlier(new, pass.mean_cached_keys(new, window.and_then(KeyWindow::sliding)))),
        ],
        // The first new tokens complete the chunk that cached tokens began. Whole chunks follow, and the last chunk may
        // be incomplete.
        Some(chunk) => {
            let begun = pass.cached % chunk;
            let first = if begun > 0 { new.min(chunk - begun) } else { 0 };
            let rest = new - first;
            vec![
                ("forward", own(rest / chunk, chunk)),
                ("forward.first_chunk", own(1, first)),
                ("forward.last_chunk", own(1, rest % chunk)),
                ("forward.cached", earlier(first, begun)),
            ]
        }
    };
    let works = |kernel: &FusedAttention| kernel.batch > 0 && kernel.queries > 0 && kernel.keys > 0;
    let steps = kernels.into_iter().filter(|(_, kernel)| works(kernel));
    steps.map(|(label, kernel)| kernel_step(label, Kernel::FusedAttention(kernel))).collect()
}

/// Returns the parameters of attention sinks: one learned logit per head, which only enters the softmax (GPT-OSS). None
/// without `sinks`.
pub(crate) fn sink_parameters(heads: Heads, sinks: bool) -> Parameters {
    Parameters { sharded: if sinks { heads.query } else { 0 }, ..Parameters::default() }
}

/// Returns the chain of the sinks' gradients. For each head, they sum over the rows; `read` is the bytes that the sum
/// reads.
pub(crate) fn sink_gradient(shape: &OperatorContext, heads: Heads, rows: TensorId, read: Bytes) -> BackwardChain {
    let written = shape.gradient_bytes(heads.query);
    let sum = reduction_kernel(
        RowFunction::Sum,
        Direction::Backward,
        RowShape { rows: heads.query, columns: shape.tokens() },
        read,
        written,
    );
    weight_chain(&[rows], vec![kernel_step("backward_weight", sum)])
}
