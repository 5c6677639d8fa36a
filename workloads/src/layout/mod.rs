//! The layout of a training run on devices: the parallel degrees and the ZeRO stage. `rules` checks them against a
//! model and a batch.
//!
//! Devices are numbered with the tensor axis fastest, then context, data and pipeline (Megatron-LM's order
//! `tp-cp-dp-pp`). The expert axis is part of the data axis. If experts have their own tensor-parallel degree, the
//! order is `etp-ep-edp-pp`. A run uses `tensor * context * data * pipeline` devices.

mod cost_split;
mod error;
mod layer_ends;
mod limits;
mod rules;

pub use cost_split::split_by_cost;
pub use error::LayoutError;
pub use layer_ends::{InnerChunks, LayerEnds};

use crate::lowering::ContextMethod;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The state that data-parallel ranks shard instead of replicating (Rajbhandari et al., *ZeRO*, SC 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroStage {
    /// Nothing: plain data parallelism.
    #[default]
    None,
    /// Master weights and optimizer states (ZeRO-1, Megatron-LM's distributed optimizer).
    OptimizerStates,
    /// Optimizer states and gradients (ZeRO-2, FSDP's `SHARD_GRAD_OP`).
    Gradients,
    /// Optimizer states, gradients and weights (ZeRO-3, FSDP's `FULL_SHARD`).
    Parameters,
}

impl ZeroStage {
    /// All stages, by their numbers.
    pub const ALL: [Self; 4] = [Self::None, Self::OptimizerStates, Self::Gradients, Self::Parameters];

    /// Returns the stage with this number; `None` above 3.
    #[must_use]
    pub fn from_number(stage: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(stage).ok()?).copied()
    }
}

/// The axis that varies fastest over the devices, after the tensor and context axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankOrder {
    /// Replicas of a stage are neighbours, and stages are far apart (tp-cp-dp-pp).
    #[default]
    DataFirst,
    /// Stages of a replica are neighbours, and replicas are far apart (tp-pp-dp; Megatron-LM's
    /// `--use-tp-pp-dp-mapping`). This order excludes context and expert parallelism, whose groups would no longer be
    /// evenly spaced.
    PipelineFirst,
}

impl fmt::Display for RankOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DataFirst => "t-d-p",
            Self::PipelineFirst => "t-p-d",
        })
    }
}

/// The parallel degrees of a training run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Layout {
    /// Devices that split every layer (t).
    pub tensor: u32,
    /// Pipeline stages (p).
    pub pipeline: u32,
    /// Data-parallel ranks (d), which include the ranks of ZeRO and FSDP.
    pub data: u32,
    /// Devices that split every sequence (c).
    pub context: u32,
    /// The way in which attention reaches the part of a sequence on other devices.
    #[serde(default)]
    pub context_method: ContextMethod,
    /// Ranks that share the experts of a layer (e). They are taken from `data`, then `context`, then `tensor`.
    pub expert: u32,
    /// Devices that split every expert by width, if the number differs from the one that the other degrees imply
    /// (Megatron-LM's `--expert-tensor-parallel-size`). A stage's ranks are then numbered expert-tensor first and
    /// expert-parallel next; the remaining ranks replicate the experts. Set by [`Layout::with_expert_tensor_degree`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_tensor: Option<u32>,
    /// Model chunks per pipeline stage (v); above 1 the schedule is interleaved.
    pub virtual_stages: u32,
    /// True if the tensor-parallel devices split norms, dropout and residual sums along the sequence.
    pub sequence_parallel: bool,
    /// State that data-parallel ranks shard.
    pub zero: ZeroStage,
    /// Number of data-parallel ranks, context-parallel ones included, that share one copy of the sharded state; the
    /// other ranks hold further copies (hybrid sharding: Megatron-LM's `--num-distributed-optimizer-instances`,
    /// PyTorch's `HYBRID_SHARD`). `None` means the software stack's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<u32>,
    /// Order of the ranks on the devices.
    #[serde(default)]
    pub order: RankOrder,
    /// Layers of the first and last chunk, and the inner chunks that hold one more; `None` for an even split.
    #[serde(default)]
    pub ends: Option<LayerEnds>,
}

/// The batch of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Batch {
    /// Sequences that a data-parallel rank processes at a time.
    pub micro_batch: u64,
    /// Sequences per step over all ranks.
    pub global_batch: u64,
    /// Tokens per sequence.
    pub sequence_length: u64,
}

/// Number of layers in each model chunk of a pipeline. Inner chunks are equal, or some neighbouring ones hold one more
/// layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ChunkSplit {
    /// Number of chunks.
    pub chunks: u64,
    /// Layers of the first chunk.
    pub first: u64,
    /// Layers of each inner chunk, except the longer ones. In a pipeline of one chunk, the layers of that chunk.
    pub inner: u64,
    /// Layers of the last chunk.
    pub last: u64,
    /// Number of inner chunks that hold one more layer than `inner`; fewer than all of them.
    pub longer: u64,
    /// Index of the first longer chunk, from 0; 0 if there are none.
    pub longer_from: u64,
}

impl ChunkSplit {
    /// Returns the number of layers of chunk `chunk`, counted from 0.
    #[must_use]
    pub fn layers_of_chunk(&self, chunk: u64) -> u64 {
        match chunk {
            0 => self.first,
            _ if chunk + 1 == self.chunks => self.last,
            _ => self.inner + u64::from(self.is_longer_chunk(chunk)),
        }
    }

    /// Returns the number of layers in all chunks before `chunk`, which must not be the first.
    #[must_use]
    pub fn layers_before_chunk(&self, chunk: u64) -> u64 {
        let longer = chunk.min(self.longer_from + self.longer).saturating_sub(self.longer_from);
        self.first + self.inner * chunk.saturating_sub(1) + longer
    }

    /// Returns whether a chunk is one of the longer ones.
    #[must_use]
    pub fn is_longer_chunk(&self, chunk: u64) -> bool {
        chunk.wrapping_sub(self.longer_from) < self.longer
    }
}

impl Default for Layout {
    /// Returns the layout of a run on one device.
    fn default() -> Self {
        Self {
            tensor: 1,
            pipeline: 1,
            data: 1,
            context: 1,
            context_method: ContextMethod::Ring,
            expert: 1,
            expert_tensor: None,
            virtual_stages: 1,
            sequence_parallel: false,
            zero: ZeroStage::None,
            shards: None,
            order: RankOrder::DataFirst,
            ends: None,
        }
    }
}

impl Layout {
    /// Returns the letter of the context axis: `c`, or `u` under Ulysses.
    #[must_use]
    pub fn context_axis_letter(&self) -> &'static str {
        match self.context_method {
            ContextMethod::Ring => "c",
            ContextMethod::Ulysses => "u",
        }
    }

    /// Returns the ZeRO stage's number as text, with the shards of a copy if they are stated: `3 in 8`.
    #[must_use]
    pub fn sharding_words(&self) -> String {
        let shards = self.shards.map_or_else(String::new, |shards| format!(" in {shards}"));
        format!("{}{shards}", self.zero as u8)
    }

    /// Returns whether data-parallel ranks reduce gradients in every micro-batch instead of once per step. ZeRO-3
    /// always does so; ZeRO-2 does so only without a pipeline. In a pipeline, ZeRO-2 accumulates whole gradients and
    /// reduces them with the last micro-batch: PyTorch's `torch.distributed.pipelining` synchronises gradients only in
    /// the last backward pass. With an interleaved schedule, ZeRO-2 reduces after each row of a chunk's micro-batches,
    /// overlapped with the following rows.
    #[must_use]
    pub fn reduces_every_micro_batch(&self) -> bool {
        self.zero == ZeroStage::Parameters || self.zero == ZeroStage::Gradients && self.pipeline == 1
    }

    /// Returns the distance in devices between neighbours on the data axis, which contains the context axis.
    #[must_use]
    pub fn data_stride(&self) -> u32 {
        match self.order {
            RankOrder::DataFirst => self.tensor,
            RankOrder::PipelineFirst => self.tensor.saturating_mul(self.pipeline),
        }
    }

    /// Returns the distance in devices between neighbouring pipeline stages.
    #[must_use]
    pub fn stage_stride(&self) -> u32 {
        let inner = self.tensor.saturating_mul(self.context);
        match self.order {
            RankOrder::DataFirst => inner.saturating_mul(self.data),
            RankOrder::PipelineFirst => inner,
        }
    }

    /// Returns the number of devices of the run.
    #[must_use]
    pub fn device_count(&self) -> u64 {
        [self.tensor, self.pipeline, self.data, self.context].into_iter().fold(1, |n, d| n.saturating_mul(d.into()))
    }

    /// Returns the number of model chunks: pipeline stages times chunks per stage.
    #[must_use]
    pub fn chunk_count(&self) -> u64 {
        u64::from(self.pipeline) * u64::from(self.virtual_stages)
    }

    /// Returns the number of devices of one stage, over all replicas.
    #[must_use]
    pub fn ranks_per_stage(&self) -> u64 {
        [self.tensor, self.context, self.data].into_iter().fold(1, |n, d| n.saturating_mul(d.into()))
    }

    /// Returns the layout with `width` devices per expert. The width is left unstated if the other degrees imply it.
    #[must_use]
    pub fn with_expert_tensor_degree(self, width: u32) -> Self {
        let follows = Self { expert_tensor: None, ..self };
        let anyway = width == self.tensor && follows.expert_tensor_degree().is_none();
        if anyway { follows } else { Self { expert_tensor: Some(width), ..self } }
    }

    /// Returns the number of devices that split an expert by width, if it is stated. It is also known if the data and
    /// context ranks cannot hold all expert-parallel ranks, so that the expert-parallel ranks reach into the
    /// tensor-parallel group. Returns `None` if the whole tensor-parallel group splits every expert.
    #[must_use]
    pub fn expert_tensor_degree(&self) -> Option<u32> {
        if self.expert_tensor.is_some() {
            return self.expert_tensor;
        }
        let outside = self.data.saturating_mul(self.context);
        (!outside.is_multiple_of(self.expert.max(1)))
            .then(|| (outside.saturating_mul(self.tensor) / self.expert.max(1)).max(1))
    }

    /// Returns the number of micro-batches per step in each pipeline, rounded down.
    #[must_use]
    pub fn micro_batches(&self, batch: &Batch) -> u64 {
        batch.global_batch / (batch.micro_batch.max(1).saturating_mul(self.data.max(1).into()))
    }

    /// Returns the layers of each model chunk. If [`Layout::ends`] is stated, it decides. Otherwise the layers are
    /// split evenly. If they do not divide, the embedding and the head count as layers (Megatron-LM's
    /// `account_for_embedding_in_pipeline_split` and `..._loss_...`): the first and last chunk hold one layer fewer, or
    /// only the last one does.
    ///
    /// # Errors
    /// Layers that do not divide in any of these ways, more chunks than layers plus 2, or stated ends that fit no
    /// split.
    pub fn chunk_split(&self, layers: u64) -> Result<ChunkSplit, LayoutError> {
        if let Some(ends) = self.ends {
            return self.stated_split(layers, ends);
        }
        let chunks = self.chunk_count().max(1);
        let even = |total: u64| total.is_multiple_of(chunks).then_some(total / chunks);
        let (inner, first, last) = match (even(layers), even(layers + 1), even(layers + 2)) {
            (Some(per), ..) if per > 0 => (per, 0, 0),
            // The first and last chunk may hold only the embedding or the head (Llama 3 405B).
            (_, _, Some(per)) if per > 1 || chunks > 2 => (per, 1, 1),
            (_, Some(per), _) if per > 1 => (per, 0, 1),
            _ => return Err(self.uneven_layers_error(layers, chunks)),
        };
        Ok(ChunkSplit { chunks, first: inner - first, inner, last: inner - last, ..ChunkSplit::default() })
    }

    /// Returns [`Layout::chunk_split`] as a list of layer counts, first chunk first.
    ///
    /// # Errors
    /// As [`Layout::chunk_split`].
    pub fn chunk_layers(&self, layers: u64) -> Result<Vec<u64>, LayoutError> {
        let split = self.chunk_split(layers)?;
        Ok((0..split.chunks).map(|chunk| split.layers_of_chunk(chunk)).collect())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{} p{} d{}", self.tensor, self.pipeline, self.data)?;
        for (letter, degree) in
            [(self.context_axis_letter(), self.context), ("e", self.expert), ("v", self.virtual_stages)]
        {
            if degree > 1 {
                write!(f, " {letter}{degree}")?;
            }
        }
        if let Some(width) = self.expert_tensor {
            write!(f, " etp{width}")?;
        }
        if let Some(shards) = self.shards {
            write!(f, " {shards} shards")?;
        }
        if self.order == RankOrder::PipelineFirst {
            write!(f, " stages side by side")?;
        }
        if let Some(ends) = self.ends {
            write!(f, " layers {ends}")?;
        }
        Ok(())
    }
}
