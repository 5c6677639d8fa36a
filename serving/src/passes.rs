//! Times of single passes: one decoding iteration, one chunk of a prompt.
//!
//! A pass runs its kernels one after the other, as engines launch them. On a chip with a kernel library, attention is
//! the serving library's call, which rotates queries and keys and writes the cache. Residual sums and conversions run
//! inside neighbouring kernels, so they cost the time of their bytes but no launch.

use crate::context;
use crate::engine::Batching;
use crate::kernels::KernelTimes;
use crate::lengths::{LengthClass, RequestLengths};
use crate::memory::{AwayMemory, ServingMemory, cache_of_device, memory_of_plan};
use crate::method::{CacheStore, Drafter, ServingMethod};
use crate::pass_time::PassTime;
use crate::technique::MergedChunks;
use crate::{ServingEngine, ServingError, ServingPlan};
use sim::cost::{AttentionSoftware, CostModel};
use sim::hardware::Accelerator;
use sim::kernel::{Collective, CollectiveKind, Contraction, DataType, RankGroup};
use sim::network::Fabric;
use sim::units::{Bytes, Seconds};
use std::borrow::Cow;
use std::collections::BTreeMap;
use workloads::parallel::tensor_parallel_degrees;
use workloads::serving::{ServingGraph, ServingPass, WeightsOf, drafting_module, drafting_weights};
use workloads::{Model, Segment, SegmentKind};

/// Largest difference in tokens between the vocabularies of a model and of its drafter. Tables are padded to multiples,
/// at most 512 in published models. Range 0 to 1024.
const PADDED_TOKENS: u64 = 512;

/// Keys in errors of the options that need a memory off the device.
const AWAY: &str = "cache_place";
const MEMORIES: &str = "technique";

/// The shape of a pass: sequences, the new tokens of each, and the tokens of each in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PassShape {
    sequences: u64,
    new: u64,
    cached: u64,
    kind: PassKind,
}

impl PassShape {
    /// Returns whether the engine replays a captured graph: for decoding, and for one new token per sequence.
    fn is_captured(self) -> bool {
        self.kind == PassKind::Decode || self.new == 1
    }
}

/// The work of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PassKind {
    /// Computes prompts.
    Prefill,
    /// Makes one token for every sequence, or verifies drafts. The engine replays a captured graph.
    Decode,
}

/// Times of a plan's passes on a chip and a fabric under an engine. Each pass is computed once and cached.
#[derive(Debug, Clone)]
pub struct PassTimes<'a> {
    model: Cow<'a, Model>,
    kernels: KernelTimes<'a>,
    plan: ServingPlan,
    method: ServingMethod<'a>,
    drafter: Option<Box<PassTimes<'a>>>,
    /// Weights that every pass multiplies on every device besides the model's own.
    further_weights: u64,
    known: BTreeMap<PassShape, PassTime>,
}

impl<'a> PassTimes<'a> {
    /// Returns the pass times of a plan without drafts, held prefixes or any other [`ServingMethod`].
    ///
    /// # Errors
    /// Degrees that do not fit the model or the engine, a number format that the chip does not multiply, a chip that
    /// the cost model cannot use, a fabric without enough devices, or an attention library without measurements on the
    /// chip.
    pub fn new(
        model: &'a Model,
        chip: &Accelerator,
        fabric: &'a Fabric,
        engine: &'a ServingEngine,
        plan: ServingPlan,
    ) -> Result<Self, ServingError> {
        plan.check_degrees(model)?;
        check_formats(chip, &plan, model)?;
        context::check_engine(engine, model, plan.context)?;
        let hardware = |e: &dyn std::fmt::Display| ServingError::Hardware(e.to_string());
        let chip = CostModel::new(chip.clone()).map_err(|e| hardware(&e))?;
        fabric.check_group(RankGroup { ranks: plan.devices(), stride: 1 }).map_err(|e| hardware(&e))?;
        let attention = match &engine.kernels.attention_library {
            None => AttentionSoftware::Serving,
            Some(name) => AttentionSoftware::measured_on_chip(chip.accelerator(), name).map_err(|e| hardware(&e))?,
        };
        Ok(Self {
            model: Cow::Borrowed(model),
            kernels: KernelTimes {
                chip,
                fabric,
                engine,
                formats: plan.formats,
                attention,
                shared: plan.shared_cache(model),
            },
            plan,
            method: ServingMethod::default(),
            drafter: None,
            further_weights: 0,
            known: BTreeMap::new(),
        })
    }

    /// Returns the times of the same plan with a method.
    ///
    /// # Errors
    /// Drafts or merged chunks in a pipeline, a model that cannot draft for this one, a memory off the device that the
    /// chip lacks, or stored memories that exceed the storage.
    pub fn with_method(mut self, method: ServingMethod<'a>) -> Result<Self, ServingError> {
        self.drafter = match method.speculation.map(|speculation| speculation.drafter) {
            None | Some(Drafter::Lookup) => None,
            Some(Drafter::Module) => {
                let module = Cow::Owned(drafting_module(&self.model)?);
                let further_weights = drafting_weights(&self.model);
                Some(Box::new(Self { model: module, further_weights, known: BTreeMap::new(), ..self.clone() }))
            }
            Some(Drafter::Model(draft)) => Some(Box::new(self.with_draft_model(draft)?)),
        };
        if method.speculation.is_some() && self.plan.pipeline > 1 {
            return Err(ServingError::Plan {
                key: "pp",
                value: self.plan.pipeline.to_string(),
                limit: "drafts need all stages before the next one starts, and engines refuse them".to_owned(),
                cure: "give 1, or leave the drafts out".to_owned(),
            });
        }
        if let Some(away) = &method.away {
            away.store.rates(self.chip(), AWAY, away.store.name())?;
        }
        if method.merged().is_some() && self.plan.pipeline > 1 {
            return Err(ServingError::Plan {
                key: "pp",
                value: self.plan.pipeline.to_string(),
                limit: "a prompt whose chunks are merged passes its layers node after node".to_owned(),
                cure: "give 1, or leave the technique out".to_owned(),
            });
        }
        if let Some(memories) = &method.memories() {
            let rates = CacheStore::Nvme.rates(self.chip(), MEMORIES, "memory3")?;
            let bank = memories.texts * memories.stored_tokens * self.cache_per_token();
            if bank > rates.capacity.as_f64() {
                return Err(ServingError::Plan {
                    key: "references",
                    value: memories.texts.to_string(),
                    limit: format!(
                        "their memories take {:.1} GB of every device's {:.1} GB of storage",
                        bank / 1e9,
                        rates.capacity.as_f64() / 1e9
                    ),
                    cure: "give fewer texts, or more storage".to_owned(),
                });
            }
        }
        Ok(Self { method, ..self })
    }

    /// Returns the times of the passes of a drafting model. The model is split over the same tensor-parallel devices if
    /// its heads allow that. Otherwise every device runs it whole (the two choices of vLLM's
    /// `draft_tensor_parallel_size`).
    fn with_draft_model(&self, draft: &'a Model) -> Result<Self, ServingError> {
        // The tokenizers may differ in padding.
        if draft.vocabulary.abs_diff(self.model.vocabulary) > PADDED_TOKENS {
            return Err(ServingError::Plan {
                key: "draft_model",
                value: draft.name.clone(),
                limit: format!(
                    "has a vocabulary of {} tokens, and {} has {}",
                    draft.vocabulary, self.model.name, self.model.vocabulary
                ),
                cure: "give a model with the same tokenizer".to_owned(),
            });
        }
        let tensor = self.plan.tensor;
        let splits = tensor_parallel_degrees(draft, tensor).contains(&tensor);
        let one = ServingPlan::of_one_device(self.plan.formats);
        let plan = ServingPlan { tensor: if splits { tensor } else { 1 }, ..one };
        Self::new(draft, self.chip(), self.kernels.fabric, self.kernels.engine, plan)
    }

    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> &ServingMethod<'a> {
        &self.method
    }

    /// Returns the memory of one device under requests of given lengths: the plan's memory, with the weights and cache
    /// of a drafter, held prefixes, and the cache off the device.
    ///
    /// # Errors
    /// As [`memory_of_plan`]; also prefixes with fewer tokens than a prompt finds held.
    pub fn memory(&self, lengths: &RequestLengths) -> Result<ServingMemory, ServingError> {
        let mut memory = memory_of_plan(&self.model, self.chip(), self.kernels.engine, &self.plan)?;
        let verified = self.method.verified_tokens();
        if verified > 1 {
            let logits = self.model.vocabulary / u64::from(self.plan.tensor.max(1));
            memory.working += Bytes(4) * self.kernels.engine.batching.most_sequences * logits * (verified - 1);
            // A recurrent state is kept after every draft, until the last accepted draft is known.
            memory.cache.per_sequence = memory.cache.per_sequence * verified;
        }
        if let Some(drafter) = &self.drafter {
            let own = memory_of_plan(&drafter.model, self.chip(), self.kernels.engine, &drafter.plan)?;
            // A module shares the model's embedding and head, so only its layers and its further weights count.
            memory.weights += match drafter.further_weights {
                0 => own.weights,
                further => own.weights_of_layers + Bytes(DataType::Bf16.bytes()) * further,
            };
            memory.cache = memory.cache.plus(&own.cache);
        }
        if let Some(away) = &self.method.away {
            let layers = (self.model.layers.div_ceil(self.plan.pipeline.into())).max(1);
            let staged = (2.0 / layers as f64).min(1.0);
            let capacity = away.store.rates(self.chip(), AWAY, away.store.name())?.capacity;
            memory.away = Some(AwayMemory { fraction: away.fraction, staged, capacity });
        }
        let held = Bytes((self.method.memories().map_or(0.0, |own| own.held_tokens) * self.cache_per_token()) as u64);
        memory.cache.per_sequence += held;
        if let Some(merged) = &self.method.merged() {
            let of = |class: &LengthClass| merged.peak_tokens(class.input) - merged.kept_tokens(class.input) as f64;
            let beyond = lengths.classes().iter().map(of).fold(0.0, f64::max);
            memory.working += Bytes((beyond * self.cache_per_token()) as u64);
        }
        if let Some(prefixes) = &self.method.prefixes {
            let of = |class: &LengthClass| self.method.held_tokens(class.input);
            let longest = lengths.classes().iter().map(of).max().unwrap_or(0);
            let mean = lengths.classes().iter().map(|class| class.share * of(class) as f64).sum::<f64>();
            // A single prefix has the tokens of the longest one. Several prefixes have the mean length.
            memory.prefixes = match prefixes.tokens {
                _ if mean == 0.0 => Bytes::ZERO,
                None => memory.cache_on_device(longest),
                Some(tokens) if (tokens as f64) < mean => {
                    return Err(ServingError::Plan {
                        key: "prefix_tokens",
                        value: tokens.to_string(),
                        limit: format!("must be at least the {mean:.0} tokens that a prompt finds held"),
                        cure: "give the tokens of all held prefixes, or leave it out for a single one".to_owned(),
                    });
                }
                Some(tokens) => Bytes((memory.cache_on_device(mean as u64).as_f64() * (tokens as f64 / mean)) as u64),
            };
        }
        Ok(memory)
    }

    /// Returns the plan.
    #[must_use]
    pub fn plan(&self) -> &ServingPlan {
        &self.plan
    }

    /// Returns the fabric.
    #[must_use]
    pub fn fabric(&self) -> &'a Fabric {
        self.kernels.fabric
    }

    /// Returns the engine.
    #[must_use]
    pub fn engine(&self) -> &'a ServingEngine {
        self.kernels.engine
    }

    /// Returns the chip.
    #[must_use]
    pub fn chip(&self) -> &Accelerator {
        self.kernels.chip()
    }

    /// Returns the time of one decoding iteration of the replica: a token for each of `sequences` sequences with a mean
    /// of `cached` tokens, or drafts and the pass that verifies them. Groups with attention of their own, and the
    /// stages of a pipeline, share the sequences.
    ///
    /// # Errors
    /// A batch or a length beyond what the model allows.
    pub fn decode(&mut self, sequences: u64, cached: u64) -> Result<PassTime, ServingError> {
        let parts = u64::from(self.plan.attention_data.saturating_mul(self.plan.pipeline));
        let own = sequences.div_ceil(parts).max(1);
        let shape = PassShape { sequences: own, new: self.method.verified_tokens(), cached, kind: PassKind::Decode };
        let mut pass = self.pass(shape)?;
        pass.fetches += self.time_of_memories(own as f64 * self.method.tokens_per_pass())?;
        if let (Some(drafter), Some(speculation)) = (&mut self.drafter, &self.method.speculation) {
            let draft = drafter.pass(PassShape { new: 1, ..shape })?.times(speculation.drafted.into());
            pass.drafts += draft.total();
            pass.energy += draft.energy;
        }
        let launch = &self.kernels.engine.launch;
        // Every group with attention of its own has a scheduler of its own.
        let scheduled = sequences.div_ceil(u64::from(self.plan.attention_data));
        let host = Seconds::from_micros(launch.iteration_us + launch.sequence_us * scheduled as f64);
        Ok(PassTime { host: pass.host + host, ..pass })
    }

    /// Returns the time of prefilling `new` tokens of each of `prompts` prompts that have `cached` tokens in the cache.
    /// The stages of a pipeline work in sequence.
    ///
    /// # Errors
    /// A length beyond what the model allows.
    pub fn prefill(&mut self, prompts: u64, new: u64, cached: u64) -> Result<PassTime, ServingError> {
        let own = prompts.div_ceil(u64::from(self.plan.attention_data)).max(1);
        let shape = PassShape { sequences: own, new: new.max(1), cached, kind: PassKind::Prefill };
        let mut pass = self.pass(shape)?;
        pass.fetches += self.time_of_memories((own * shape.new) as f64)?;
        if let Some(drafter) = &mut self.drafter {
            let draft = drafter.pass(shape)?;
            pass.drafts += draft.total();
            pass.energy += draft.energy;
        }
        Ok(PassTime { host: pass.host + Seconds::from_micros(self.kernels.engine.launch.iteration_us), ..pass })
    }

    /// Returns the number of passes in flight: a pipeline works on as many passes at once as it has stages.
    #[must_use]
    pub fn passes_in_flight(&self) -> f64 {
        f64::from(self.plan.pipeline)
    }

    /// Returns the way in which the engine joins prompts and decoding.
    #[must_use]
    pub fn batching(&self) -> Batching {
        self.kernels.engine.batching.form
    }

    fn pass(&mut self, shape: PassShape) -> Result<PassTime, ServingError> {
        if let Some(known) = self.known.get(&shape) {
            return Ok(*known);
        }
        let (mut sum, mut kernels) = (PassTime::default(), 0.0);
        for (_, time, count) in self.times_of_segments(shape)? {
            sum = sum.plus(time);
            kernels += count;
        }
        let sends = self.time_of_sends(shape);
        sum.communication += sends;
        sum = sum.plus(self.time_of_further_weights(shape));
        if !shape.is_captured() {
            let launching = Seconds::from_micros(self.kernels.engine.launch.prompt_kernel_us) * kernels;
            sum.host = (launching - sum.on_device()).max(Seconds::ZERO);
        }
        sum.fetches = self.exposed_fetches(shape, sum.on_device() + sum.host)?;
        self.known.insert(shape, sum);
        Ok(sum)
    }

    /// Returns the time and the number of the kernels of every segment in a pass.
    fn times_of_segments(&self, shape: PassShape) -> Result<Vec<(SegmentKind, PassTime, f64)>, ServingError> {
        let lowering = self.plan.lowering(&self.model, shape.sequences, shape.new);
        let verifies = shape.kind == PassKind::Decode && shape.new > 1;
        let cached = shape.cached.saturating_add(self.memory_tokens());
        let after = ServingPass { verifies, ..self.plan.pass_after(cached) };
        let graph = ServingGraph::new(&self.model, &lowering, after)?;
        let drafts = if shape.is_captured() { shape.new } else { 0 };
        let of_segment = |segment: &Segment| {
            let nodes = segment.forward_graph();
            let time = |node| self.kernels.time_of_node(segment, node, drafts);
            let one = nodes.node_weights().map(time).fold(PassTime::default(), PassTime::plus);
            let launches: u64 = nodes.node_weights().map(|node| self.kernels.launches_of_node(node, drafts)).sum();
            let count = (launches * segment.repeat) as f64;
            (segment.kind, one.times(segment.repeat as f64), count)
        };
        Ok(graph.segments.iter().map(of_segment).collect())
    }

    /// Returns the time of the product with a drafting module's own weights.
    fn time_of_further_weights(&self, shape: PassShape) -> PassTime {
        if self.further_weights == 0 {
            return PassTime::default();
        }
        let (n, operand) = (self.model.hidden, DataType::Bf16);
        let m = shape.sequences.saturating_mul(shape.new);
        let product = Contraction { batch: 1, m, n, k: self.further_weights / n, operand, result: operand };
        let (time, energy) = self.kernels.cost_of_product(&product, WeightsOf::Rest);
        PassTime { products: time / self.kernels.engine.kernels.product_fraction, energy, ..PassTime::default() }
    }

    /// Returns the exposed time of the traffic with a memory off the device, beside a pass that takes `work`. A layer's
    /// part of the earlier tokens is read while the previous layer is at work. The new tokens are written meanwhile.
    /// Nothing hides the first layer's read.
    fn exposed_fetches(&self, shape: PassShape, work: Seconds) -> Result<Seconds, ServingError> {
        let Some(away) = self.method.away.filter(|away| away.fraction > 0.0) else { return Ok(Seconds::ZERO) };
        let rates = away.store.rates(self.chip(), AWAY, away.store.name())?;
        let per_token = self.cache_per_token();
        let of = |tokens: u64| per_token * shape.sequences as f64 * tokens as f64 * away.fraction;
        let read = Seconds(of(shape.cached) / rates.read.0);
        let written = Seconds(of(shape.new) / rates.write.0);
        let first = read / self.model.layers.max(1) as f64;
        Ok(first + ((read - first).max(written) - work).max(Seconds::ZERO))
    }

    /// Returns the bytes of a token's keys and values on one device, in layers whose queries see all tokens.
    fn cache_per_token(&self) -> f64 {
        cache_of_device(&self.model, &self.plan).per_token.as_f64()
    }

    /// Returns the number of tokens of stored memories that a sequence attends to.
    fn memory_tokens(&self) -> u64 {
        self.method.memories().map_or(0, |memories| memories.held_tokens.ceil() as u64)
    }

    /// Returns the time to read stored memories for `tokens` new tokens of one group. Nothing hides it: a sequence
    /// waits for its memories.
    fn time_of_memories(&self, tokens: f64) -> Result<Seconds, ServingError> {
        let Some(memories) = self.method.memories() else { return Ok(Seconds::ZERO) };
        let read = memories.held_tokens * self.cache_per_token() / memories.interval;
        Ok(Seconds(read * tokens / CacheStore::Nvme.rates(self.chip(), MEMORIES, "memory3")?.read.0))
    }

    /// Returns the time of `prompts` prompts of `input` tokens whose chunks are merged. The nodes run in sequence, and
    /// each passes its share of the layers. The last node's token gives the answer's first.
    pub(crate) fn merged_prefill(
        &mut self,
        prompts: u64,
        input: u64,
        merged: MergedChunks,
    ) -> Result<PassTime, ServingError> {
        let own = prompts.div_ceil(u64::from(self.plan.attention_data)).max(1);
        let (levels, mut sum) = (merged.levels(input), PassTime::default());
        for (height, level) in levels.iter().enumerate() {
            let shape = PassShape { sequences: 1, new: level.tokens, cached: 0, kind: PassKind::Prefill };
            let share = level.layers as f64 / merged.layers.max(1) as f64;
            let mut node = (PassTime::default(), 0.0);
            for (kind, time, kernels) in self.times_of_segments(shape)? {
                let part = match kind {
                    SegmentKind::Embedding => f64::from(u8::from(height == 0)),
                    SegmentKind::Layer => share,
                    SegmentKind::Head => f64::from(u8::from(height + 1 == levels.len())),
                };
                node = (node.0.plus(time.times(part)), node.1 + kernels * part);
            }
            let launching = Seconds::from_micros(self.kernels.engine.launch.prompt_kernel_us) * node.1;
            node.0.host = (launching - node.0.on_device()).max(Seconds::ZERO);
            sum = sum.plus(node.0.times(level.nodes as f64));
        }
        let iteration = Seconds::from_micros(self.kernels.engine.launch.iteration_us);
        Ok(PassTime { host: sum.host + iteration, ..sum }.times(own as f64))
    }

    /// Returns the time to send hidden states through all stages of a pipeline, one send after the other.
    fn time_of_sends(&self, shape: PassShape) -> Seconds {
        let stages = self.plan.pipeline;
        if stages < 2 {
            return Seconds::ZERO;
        }
        let tokens = shape.sequences.saturating_mul(shape.new);
        let bytes = Bytes(DataType::Bf16.bytes()) * tokens * self.model.hidden;
        let group = RankGroup { ranks: 2, stride: self.plan.tensor.saturating_mul(self.plan.attention_data) };
        let send = Collective { kind: CollectiveKind::SendRecv, bytes, group };
        self.kernels.fabric.cost_of_collective(&send).latency * f64::from(stages - 1)
    }
}

/// Returns an error for products in a type that the chip's arrays do not multiply.
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
