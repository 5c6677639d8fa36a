//! Inference: a forward pass over new tokens while earlier tokens are in a cache, and the bytes of that cache.
//!
//! A pass decodes (one new token of each sequence) or prefills (a prompt, or a chunk of it). [`ServingGraph`] holds its
//! kernels: those of a training step's forward pass, with four differences. Attention reads the cache. Recurrent mixers
//! continue from states. Few tokens reach only some experts. The head computes logits only for the last token of every
//! sequence, or for drafts.

use crate::error::WorkloadError;
use crate::graph::{OperatorNode, OperatorRole};
use crate::layer_list::{EncoderDecoderSide, KeyChoice, Mixer};
use crate::lowering::Lowering;
use crate::model::{Dropout, Model};
use crate::op::STATE_BYTES;
use crate::parallel::kv_heads_of_device;
pub use crate::serving_pass::ServingPass;
use crate::training::{Segment, TrainingGraph};
use crate::variations::Recurrence;
use serde::{Deserialize, Serialize};
use sim::kernel::{DataType, Kernel};
use sim::units::Bytes;

/// A serving pass, lowered for one device.
#[derive(Debug, Clone)]
pub struct ServingGraph {
    /// Embedding, layer, head: in pipeline order.
    pub segments: Vec<Segment>,
}

impl ServingGraph {
    /// Lowers a pass over `lowering.sequence_length` new tokens of `lowering.micro_batch` sequences.
    ///
    /// # Errors
    /// A model that generates no text; a batch, length or degree that does not fit the model.
    pub fn new(model: &Model, lowering: &Lowering, pass: ServingPass) -> Result<Self, WorkloadError> {
        check_generates(model)?;
        let served = served_model(model);
        let lowering = Lowering { serving: Some(pass), sequence_parallel: false, ..*lowering };
        Ok(Self { segments: TrainingGraph::new(&served, &lowering)?.segments })
    }
}

/// Returns the bytes of a segment's weights on one device, rounded up. With `shares_head`, the head's matrix is left
/// out, because the embedding counts it. `bytes` returns the bytes per weight for each owner: layers' products and
/// experts may have their own formats.
#[must_use]
pub fn weight_bytes_of_segment(segment: &Segment, shares_head: bool, bytes: impl Fn(WeightsOf) -> f64) -> Bytes {
    let of_operator = |operator: &OperatorNode| {
        let each = bytes(WeightsOf::operator(operator, segment.lowering.precision.operand));
        each * operator.parameters.per_device_count() as f64
    };
    let held = |operator: &&OperatorNode| !shares_head || operator.role != OperatorRole::Logits;
    Bytes(segment.operators().iter().filter(held).map(of_operator).sum::<f64>().ceil() as u64)
}

/// The part of the model that an operator's weights belong to, for the choice of their format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightsOf {
    /// Experts.
    Experts,
    /// A product of a layer outside its experts; its weights may be in a narrow format.
    Layers,
    /// Anything else: norms, the embedding, the router, the head.
    Rest,
}

impl WeightsOf {
    /// Returns the owner of an operator's weights. A product belongs to `Layers` if its operand type is not `wide`, or
    /// if it is in a layer and tensor parallelism splits its weights. A router's weights are not split, so they belong
    /// to `Rest`.
    #[must_use]
    pub fn operator(operator: &OperatorNode, wide: DataType) -> Self {
        if operator.parameters.expert > 0 {
            return Self::Experts;
        }
        if operator.role == OperatorRole::SharedWeights {
            return Self::Layers;
        }
        let product = operator.forward.iter().find_map(|step| match step.kernel {
            Kernel::Contraction(product) => Some(product.operand),
            _ => None,
        });
        match product {
            Some(operand) if operand != wide => Self::Layers,
            Some(_) if operator.layer.is_some() && operator.parameters.sharded > 0 => Self::Layers,
            _ => Self::Rest,
        }
    }
}

/// Returns the peak bytes of activations in a segment's pass on one device.
#[must_use]
pub fn working_bytes_of_segment(segment: &Segment) -> Bytes {
    segment.graph.peak_forward_bytes(|_| false, |_| Bytes::ZERO)
}

/// Refuses models that do not generate text token by token.
fn check_generates(model: &Model) -> Result<(), WorkloadError> {
    let why = if model.variations.conditioning.is_some() {
        Some("it denoises images, all tokens of an image at once and step after step")
    } else if model.variations.patches.is_some() {
        Some("it reads images")
    } else if model.variations.side != EncoderDecoderSide::Only {
        Some("it has an encoder and a decoder")
    } else if !model.causal {
        Some("its tokens see later ones")
    } else if model.variations.task_head.is_some() {
        Some("its head gives classes")
    } else {
        None
    };
    match why {
        None => Ok(()),
        Some(why) => Err(WorkloadError::BadLowering {
            model: model.name.clone(),
            setting: "the workload".to_owned(),
            value: "serving".to_owned(),
            limit: format!("a decoder that generates text; {why}"),
            cure: "serve a decoder-only model, such as llama3-8b".to_owned(),
        }),
    }
}

/// Returns the model as served: without dropout, and without the modules that only training uses.
fn served_model(model: &Model) -> Model {
    let none = Dropout { embedding: 0.0, attention: 0.0, residual: 0.0, activation: 0.0 };
    let mut served = Model { dropout: none, ..model.clone() };
    served.variations.further_tokens = 0;
    served
}

/// Returns a module that drafts one token ahead, as a model of one layer. It shares the embedding and head of `model`,
/// and its layer is like the last one. DeepSeek-V3's module for multi-token prediction is such a module
/// (arXiv:2412.19437, section 2.2), and so is EAGLE's head (arXiv:2401.15077, section 3.1). The product that
/// [`drafting_weights`] counts is not part of the layer.
///
/// # Errors
/// A model that [`Model::with_further_token_modules`] refuses.
pub fn drafting_module(model: &Model) -> Result<Model, WorkloadError> {
    model.clone().with_further_token_modules(1)?;
    let mut module = model.with_uniform_kind(&model.last_kind());
    module.layers = 1;
    Ok(module)
}

/// Returns the number of weights of a drafting module's input product, which maps the token's embedding and the
/// previous hidden vector, concatenated, to one vector.
#[must_use]
pub fn drafting_weights(model: &Model) -> u64 {
    2 * model.hidden * model.hidden
}

/// The bytes that a sequence takes in one device's cache.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CacheSize {
    /// Bytes per sequence of any length: recurrent states and the last tokens of convolutions.
    pub per_sequence: Bytes,
    /// Bytes per token, in layers whose queries see all tokens.
    pub per_token: Bytes,
    /// For layers with windows or chunks: (largest number of cached tokens, bytes per token).
    pub windows: Vec<(u64, Bytes)>,
}

impl CacheSize {
    /// Returns the cache that `model` needs on one of `tensor_parallel` devices that split its heads. Keys and values
    /// are stored in `format`, recurrent states in fp32, and the inputs of convolutions in bf16.
    ///
    /// - Attention: a key and a value per key head. With more devices than key heads, several devices hold each head.
    /// - Latent attention: the low-rank vector and the shared rotated key (DeepSeek-V2, 2024, table 1), on all devices.
    /// - An indexer: its one key, on every device, in the indexer's own format if it has one.
    /// - A window of w tokens: the last w tokens. Chunks of c tokens: at most the last chunk, c tokens.
    /// - Linear attention and scans: one state.
    #[must_use]
    pub fn of_model(model: &Model, tensor_parallel: u32, format: DataType) -> Self {
        let mut size = Self::default();
        for (kind, count) in model.layer_kinds() {
            let alike = model.with_uniform_kind(&kind);
            let t = u64::from(tensor_parallel.max(1));
            if kind.mixer == Mixer::Compressed {
                size.add_entries(&alike, format, count);
            } else if kind.mixer.has_attention() {
                size.add_attention(&alike, kv_heads_of_device(&alike, t), format, count);
            }
            let variations = &alike.variations;
            let of_scan = variations
                .scan
                .map(|scan| (scan.state_numbers() / t, scan.convolved_width().saturating_mul(scan.convolution) / t));
            let of_channels = variations.channel_scan.map(|scan| {
                (scan.width.saturating_mul(scan.state) / t, scan.width.saturating_mul(scan.convolution) / t)
            });
            let (numbers, convolved) = match kind.mixer {
                Mixer::Linear => variations.linear.map_or((0, 0), |linear| {
                    let own = linear.share_of_device(t);
                    (own.state_numbers(), own.mixed_width().saturating_mul(own.convolution))
                }),
                Mixer::Scan | Mixer::AttentionAndScan => of_scan.unwrap_or_default(),
                Mixer::ChannelScan => of_channels.unwrap_or_default(),
                Mixer::SharedBlock => of_scan.or(of_channels).unwrap_or_default(),
                Mixer::Convolution => {
                    (0, variations.convolution.map_or(0, |mixer| model.hidden.saturating_mul(mixer.reach) / t))
                }
                // The cache holds the last token before each of the two mixes of a layer.
                Mixer::Recurrence => variations
                    .recurrence
                    .map_or((0, 0), |own| (Recurrence::STATE.saturating_mul(own.width) / t, 2 * model.hidden)),
                Mixer::Attention | Mixer::Compressed | Mixer::None => (0, 0),
            };
            let states = Bytes(STATE_BYTES) * numbers + Bytes(DataType::Bf16.bytes()) * convolved;
            size.per_sequence += states * count;
        }
        size
    }

    fn add_attention(&mut self, alike: &Model, kv_heads: u64, format: DataType, count: u64) {
        let variations = &alike.variations;
        let index = variations.indexer.filter(|_| variations.keys == KeyChoice::Indexed);
        let numbers = match variations.latent {
            Some(latent) => latent.kv_rank + latent.rope_dim,
            None => kv_heads.saturating_mul(alike.head_dim + alike.value_dim()),
        };
        let index = index.map_or(Bytes::ZERO, |index| index.cached_key_bytes(format));
        let per_token = (format.packed_bytes_of(numbers) + index) * count;
        match variations.window {
            None => self.per_token += per_token,
            Some(window) => self.windows.push((window.most_keys(), per_token)),
        }
    }

    /// Adds attention to near tokens and entries. It needs a key per token of the window, an entry and an indexer key
    /// per group of tokens, and the vectors and gates of the tokens that form the next entries. Every device holds all
    /// of them.
    fn add_entries(&mut self, alike: &Model, format: DataType, count: u64) {
        let variations = &alike.variations;
        let key = format.packed_bytes_of(alike.head_dim) * count;
        match variations.window {
            None => self.per_token += key,
            Some(window) => self.windows.push((window.most_keys(), key)),
        }
        let Some(form) = variations.compressed.and_then(|own| own.entry_form(variations.keys)) else { return };
        let index = variations.indexer.filter(|_| variations.keys == KeyChoice::Indexed);
        let indexed = index.map_or(Bytes::ZERO, |index| index.cached_key_bytes(format));
        let each = format.packed_bytes_of(alike.head_dim) + indexed;
        self.per_token += Bytes((each.0 * count).div_ceil(form.tokens.max(1)));
        let width = alike.head_dim + index.map_or(0, |index| index.head_dim);
        let waiting = 2 * form.tokens.saturating_mul(form.vectors()).saturating_mul(width);
        self.per_sequence += Bytes(DataType::Bf16.bytes()) * waiting * count;
    }

    /// Returns the sum of the caches of two models, or of two parts of one model.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        self.per_sequence += other.per_sequence;
        self.per_token += other.per_token;
        self.windows.extend_from_slice(&other.windows);
        self
    }

    /// Returns the bytes of the cache for a sequence of `tokens` tokens.
    #[must_use]
    pub fn of_sequence(&self, tokens: u64) -> Bytes {
        let windows: Bytes = self.windows.iter().map(|(window, bytes)| *bytes * (*window).min(tokens)).sum();
        self.per_sequence + self.per_token * tokens + windows
    }
}
