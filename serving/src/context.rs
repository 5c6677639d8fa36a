//! Context parallelism while decoding: devices of a tensor-parallel group that would hold copies of the same keys share
//! the tokens of every sequence instead.
//!
//! The definition is that of vLLM's `--decode-context-parallel-size` (`docs/serving/context_parallel_deployment.md`).
//! The degree divides the number of copies inside the tensor-parallel group, so the number of devices and the weights
//! stay the same. Helix (arXiv:2507.07120; TensorRT-LLM's `cp_type: HELIX`) splits the cache in the same way, and
//! counts the degree beside its tensor parallelism of attention: its `tp x cp` is the tensor-parallel degree here. It
//! multiplies the queries' weights on every device in place of gathering queries, and exchanges outputs all to all.
//!
//! A decoding layer gathers the queries of all devices' heads, attends to the device's own tokens, gathers the
//! log-sum-exps, weighs the outputs by them, and sums and scatters the outputs (vLLM, `cp_lse_ag_out_rs`). A chunk of a
//! prompt attends to earlier tokens in the same way. With latent attention, it gathers the narrow vectors of keys and
//! values instead (vLLM, `mla_attention.py`). Tokens of the same chunk attend to each other on every device, as without
//! context parallelism.
//!
//! Models with windows, chosen keys or recurrent states are refused, as in vLLM: their cache does not grow with all
//! tokens.

use crate::engine::SharedTokens;
use crate::{ServingEngine, ServingError};
use sim::kernel::{
    Collective, CollectiveKind, DataType, Direction, Elementwise, ElementwiseFunction, FusedAttention, RankGroup,
};
use sim::units::Bytes;
use workloads::Model;
use workloads::layer_list::{KeyChoice, Mixer};
use workloads::parallel::tensor_parallel_degrees;

/// Bytes of a log-sum-exp: fp32.
const LOG_SUM_EXP: Bytes = Bytes(4);

/// Largest tensor-parallel degree that a cure suggests. The largest fast domain of the built-in fabrics has 72 devices;
/// range 16 to 1024.
const MOST_TENSOR: u32 = 128;

/// The key of the degree in errors.
pub(crate) const KEY: &str = "dcp";

/// Returns the number of devices, of `tensor`, that hold the same keys. A degree of context parallelism must divide it.
///
/// # Errors
/// A text: the first kind of layer whose cache cannot be split by tokens, or that the model has no attention.
pub fn copies_of_keys(model: &Model, tensor: u32) -> Result<u32, String> {
    let mut attends = false;
    for (kind, _) in model.layer_kinds() {
        match kind.mixer {
            Mixer::None => {}
            Mixer::Attention if kind.window.is_none() && kind.keys == KeyChoice::All => attends = true,
            _ => return Err(format!("needs layers that attend to all tokens, and the model has {kind}")),
        }
    }
    if !attends {
        return Err("needs attention, which the model has not".to_owned());
    }
    if model.variations.latent.is_some() {
        return Ok(tensor.max(1));
    }
    let copies = model
        .attention_heads()
        .into_iter()
        .map(|(_, keys)| u32::try_from(u64::from(tensor) / keys.max(1)).unwrap_or(1).max(1));
    Ok(copies.reduce(num_integer::gcd).unwrap_or(1))
}

/// Keeps the tensor-parallel degrees in `tensors` that allow the degree `context`. If none does, keeps the last one, so
/// that its refusal states the reason.
pub(crate) fn keep_allowing(tensors: &mut Vec<u32>, model: &Model, context: u32) {
    let allows =
        |tensor: &u32| context == 1 || copies_of_keys(model, *tensor).is_ok_and(|all| all.is_multiple_of(context));
    let last = tensors.last().copied();
    tensors.retain(allows);
    if tensors.is_empty() {
        tensors.extend(last);
    }
}

/// Returns the degrees of context parallelism that a plan of `tensor` devices may have under an engine: powers of two,
/// 1 first.
#[must_use]
pub(crate) fn context_degrees(model: &Model, engine: &ServingEngine, tensor: u32) -> Vec<u32> {
    let copies = copies_of_keys(model, tensor).unwrap_or(1);
    let most = if shares_tokens(engine, model) { copies } else { 1 };
    let doubled = std::iter::successors(Some(1u32), |degree| degree.checked_mul(2));
    doubled.take_while(|degree| *degree <= most).filter(|degree| copies.is_multiple_of(*degree)).collect()
}

/// Checks a degree of context parallelism against the model and the tensor-parallel degree.
pub(crate) fn check_degree(model: &Model, tensor: u32, degree: u32) -> Result<(), ServingError> {
    let fault =
        |limit: String, cure: String| Err(ServingError::Plan { key: KEY, value: degree.to_string(), limit, cure });
    match copies_of_keys(model, tensor) {
        _ if degree == 1 => Ok(()),
        Err(why) => fault(why, "give 1".to_owned()),
        Ok(1) if model.variations.latent.is_some() => fault(
            format!("needs devices that hold the same keys, and tp {tensor} is one device"),
            "give a larger tp".to_owned(),
        ),
        Ok(1) => {
            let keys = model.attention_heads().into_iter().map(|(_, keys)| keys).max().unwrap_or(1);
            let limit = format!("needs devices that hold the same keys, and tp {tensor} splits the {keys} key heads");
            let allowed = tensor_parallel_degrees(model, MOST_TENSOR);
            let shares = |tensor: &u32| copies_of_keys(model, *tensor).is_ok_and(|all| all.is_multiple_of(degree));
            let cure = match allowed.into_iter().find(shares) {
                Some(tensor) => format!("give 1, or tp {tensor}"),
                None => "give 1: no degree of tp leaves the model's keys on as many devices".to_owned(),
            };
            fault(limit, cure)
        }
        Ok(copies) if copies.is_multiple_of(degree) => Ok(()),
        Ok(copies) => {
            let divisors: Vec<String> =
                (1..=copies).filter(|n| copies.is_multiple_of(*n)).map(|n| n.to_string()).collect();
            let limit = format!("must divide the {copies} of tp {tensor} devices that hold the same keys");
            fault(limit, format!("give {}", divisors.join(", ")))
        }
    }
}

/// Returns an error for a degree above 1 if the engine does not run it for the model.
pub(crate) fn check_engine(engine: &ServingEngine, model: &Model, degree: u32) -> Result<(), ServingError> {
    if degree == 1 || shares_tokens(engine, model) {
        return Ok(());
    }
    let limit = match engine.memory.shared_tokens {
        SharedTokens::Latent => format!("{} shares out the tokens of latent attention alone", engine.name),
        _ => format!("{} is not known to share out a sequence's tokens", engine.name),
    };
    let cure = "give 1, an engine such as vllm, or an engine's file with memory.shared_tokens".to_owned();
    Err(ServingError::Plan { key: KEY, value: degree.to_string(), limit, cure })
}

fn shares_tokens(engine: &ServingEngine, model: &Model) -> bool {
    match engine.memory.shared_tokens {
        SharedTokens::None => false,
        SharedTokens::Latent => model.variations.latent.is_some(),
        SharedTokens::All => true,
    }
}

/// The cache of a plan whose devices share the tokens of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedCache {
    /// Number of devices that share the tokens.
    ranks: u32,
    /// Widths of a query (and of a token in the cache) and of an output, in latent attention.
    latent: Option<(u64, u64)>,
    /// Keys and values in the cache.
    format: DataType,
}

/// Attention to a shared cache on one device, with its exchanges.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedAttention {
    /// Attention to the device's own tokens, or to the gathered tokens of all devices.
    pub attention: FusedAttention,
    /// The exchanges, in order.
    pub exchanges: Vec<Collective>,
    /// The outputs' product with their weights, if outputs are summed.
    pub weighing: Option<Elementwise>,
}

impl SharedCache {
    /// Returns the cache that `ranks` devices share, in `format`; `None` for one device.
    pub(crate) fn of_ranks(model: &Model, ranks: u32, format: DataType) -> Option<Self> {
        let latent = model.variations.latent.map(|latent| (latent.kv_rank + latent.rope_dim, latent.kv_rank));
        (ranks > 1).then_some(Self { ranks, latent, format })
    }

    /// Returns the attention to cached tokens on devices that share them. `whole` is the attention of one device's
    /// heads to all tokens. `decodes` is true for single tokens and drafts, and false for a chunk of a prompt.
    #[must_use]
    pub fn share(&self, whole: &FusedAttention, decodes: bool) -> SharedAttention {
        let group = RankGroup { ranks: self.ranks, stride: 1 };
        let ranks = u64::from(self.ranks);
        if let Some((key, _)) = self.latent.filter(|_| !decodes) {
            let bytes = self.format.packed_bytes_of(whole.batch.saturating_mul(whole.keys).saturating_mul(key));
            let exchanges = vec![Collective { kind: CollectiveKind::AllGather, bytes, group }];
            return SharedAttention { attention: *whole, exchanges, weighing: None };
        }
        let (query, output) = self.latent.unwrap_or((whole.head_dim, whole.head_dim));
        let rows = rows_of(whole).saturating_mul(ranks);
        let wide = Bytes(DataType::Bf16.bytes());
        let (queries, outputs) = (wide * rows.saturating_mul(query), wide * rows.saturating_mul(output));
        let sums = LOG_SUM_EXP * rows.saturating_mul(ranks);
        let of = |kind, bytes| Collective { kind, bytes, group };
        // While decoding, the query heads that share a key count as queries.
        let heads = if decodes { whole.heads } else { whole.heads.saturating_mul(ranks) };
        let joined = if decodes { whole.queries.saturating_mul(ranks) } else { whole.queries };
        SharedAttention {
            attention: FusedAttention { heads, queries: joined, keys: whole.keys.div_ceil(ranks), ..*whole },
            exchanges: vec![
                of(CollectiveKind::AllGather, queries),
                of(CollectiveKind::AllGather, sums),
                of(CollectiveKind::ReduceScatter, outputs),
            ],
            weighing: Some(Elementwise {
                function: ElementwiseFunction::Mul,
                direction: Direction::Forward,
                elements: rows.saturating_mul(output),
                read: outputs + sums,
                written: outputs,
            }),
        }
    }

    /// Returns the number of kernels of [`Self::share`].
    #[must_use]
    pub(crate) fn kernel_count(&self, decodes: bool) -> u64 {
        if self.latent.is_some() && !decodes { 2 } else { 5 }
    }

    /// Returns the peak bytes of gathered queries and outputs: those of `sequences` sequences that decode, or of a
    /// chunk of `tokens` tokens. `heads` is the number of query heads per device.
    pub(crate) fn working_bytes(&self, sequences: u64, tokens: u64, heads: u64, head_dim: u64) -> Bytes {
        let rows = heads.saturating_mul(u64::from(self.ranks));
        let wide = Bytes(DataType::Bf16.bytes());
        match self.latent {
            Some((query, output)) => wide * sequences.saturating_mul(rows).saturating_mul(query + output),
            None => wide * tokens.max(sequences).saturating_mul(rows).saturating_mul(2 * head_dim),
        }
    }
}

/// Returns the number of query rows of a device over all its heads.
fn rows_of(a: &FusedAttention) -> u64 {
    a.batch.saturating_mul(a.heads).saturating_mul(a.queries)
}
