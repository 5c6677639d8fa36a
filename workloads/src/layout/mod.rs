//! How a training run is laid out on devices: the parallel degrees and what data-parallel ranks share. The rules that tie them to a model and a
//! batch are in `rules`.
//!
//! Devices are numbered with the tensor axis fastest, then context, then data, then pipeline (Megatron-LM's order `tp-cp-dp-pp`; the
//! expert axis is a part of the data axis; where experts have a width of their own it is counted `etp-ep-edp-pp`). A run uses `tensor * context * data * pipeline` devices.

mod layer_ends;
mod limits;
mod rules;

pub use layer_ends::{InnerChunks, LayerEnds};
pub use rules::LayoutError;

use crate::lowering::ContextMethod;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the data-parallel ranks hold a share of instead of a copy (Rajbhandari et al., *ZeRO*, SC 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroStage {
    /// Nothing: plain data parallelism.
    #[default]
    None,
    /// Master weights and optimizer states (ZeRO-1, Megatron-LM's distributed optimizer).
    OptimizerStates,
    /// Those and gradients (ZeRO-2, FSDP's `SHARD_GRAD_OP`).
    Gradients,
    /// Those and weights (ZeRO-3, FSDP's `FULL_SHARD`).
    Parameters,
}

impl ZeroStage {
    /// The stage of a number.
    #[must_use]
    pub fn from_number(stage: u64) -> Option<Self> {
        [Self::None, Self::OptimizerStates, Self::Gradients, Self::Parameters].get(usize::try_from(stage).ok()?).copied()
    }
}

/// Which axis fills the devices first, after the tensor- and the context-parallel one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankOrder {
    /// Copies of a stage lie side by side, stages far apart (tp-cp-dp-pp).
    #[default]
    DataFirst,
    /// The stages of a copy lie side by side, copies far apart (tp-pp-dp; Megatron-LM's `--use-tp-pp-dp-mapping`). Not with context or expert
    /// parallelism, whose groups would no longer be evenly spaced.
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
    /// Devices over which every layer is split (t).
    pub tensor: u32,
    /// Pipeline stages (p).
    pub pipeline: u32,
    /// Data-parallel ranks (d), the ranks of ZeRO and FSDP among them.
    pub data: u32,
    /// Devices over which every sequence is split (c).
    pub context: u32,
    /// How attention reaches the other devices' part of a sequence.
    #[serde(default)]
    pub context_method: ContextMethod,
    /// Ranks over which the experts of a layer are split (e): of `data`, then of `context`, then of `tensor`.
    pub expert: u32,
    /// Devices over which every expert is split by width, where that is another number than what follows from the other degrees (Megatron-LM's
    /// `--expert-tensor-parallel-size`): then the ranks of a stage are expert-tensor first, expert-parallel ones next, and the rest hold the same
    /// experts. [`Layout::with_expert_tensor_degree`] sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_tensor: Option<u32>,
    /// Model chunks per pipeline stage (v): 1 is plain, more is interleaved.
    pub virtual_stages: u32,
    /// Whether norms, dropout and residual sums are split along the sequence over the tensor-parallel devices.
    pub sequence_parallel: bool,
    /// What the data-parallel ranks share.
    pub zero: ZeroStage,
    /// How ranks lie on the devices.
    #[serde(default)]
    pub order: RankOrder,
    /// Layers of the first and the last chunk and which of the others hold more, where the layers are not split evenly.
    #[serde(default)]
    pub ends: Option<LayerEnds>,
}

/// The batch of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Batch {
    /// Sequences that one data-parallel rank processes at a time.
    pub micro_batch: u64,
    /// Sequences of a step, all ranks together.
    pub global_batch: u64,
    /// Tokens in a sequence.
    pub sequence_length: u64,
}

/// Layers of the model chunks of a pipeline: those between the first and the last hold the same, or some side by side one layer more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ChunkSplit {
    /// Chunks.
    pub chunks: u64,
    /// Layers of the first chunk.
    pub first: u64,
    /// Layers of every chunk between but for the longer ones; of the only one, if it is alone.
    pub inner: u64,
    /// Layers of the last chunk.
    pub last: u64,
    /// Chunks between that hold one layer more than `inner`; not all of them.
    pub longer: u64,
    /// The first of them, from 0; 0 where there are none.
    pub longer_from: u64,
}

impl ChunkSplit {
    /// Layers of a chunk, from 0.
    #[must_use]
    pub fn layers_of_chunk(&self, chunk: u64) -> u64 {
        match chunk {
            0 => self.first,
            _ if chunk + 1 == self.chunks => self.last,
            _ => self.inner + u64::from(self.is_longer_chunk(chunk)),
        }
    }

    /// Layers of all chunks before one that is not the first.
    #[must_use]
    pub fn layers_before_chunk(&self, chunk: u64) -> u64 {
        let longer = chunk.min(self.longer_from + self.longer).saturating_sub(self.longer_from);
        self.first + self.inner * chunk.saturating_sub(1) + longer
    }

    /// Whether a chunk is one of the longer ones between.
    #[must_use]
    pub fn is_longer_chunk(&self, chunk: u64) -> bool {
        chunk.wrapping_sub(self.longer_from) < self.longer
    }
}

impl Default for Layout {
    /// One device.
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
            order: RankOrder::DataFirst,
            ends: None,
        }
    }
}

impl Layout {
    /// `c`, or `u` where attention turns from tokens to heads.
    #[must_use]
    pub fn context_axis_letter(&self) -> &'static str {
        match self.context_method {
            ContextMethod::Ring => "c",
            ContextMethod::Ulysses => "u",
        }
    }

    /// Whether data-parallel ranks reduce gradients in every micro-batch rather than once per step: under ZeRO-3, and under ZeRO-2 without a
    /// pipeline. In a pipeline ZeRO-2 accumulates whole gradients and reduces them with the last micro-batch (PyTorch's
    /// `torch.distributed.pipelining` synchronises gradients in the last backward pass only), or, interleaved, after each row of micro-batches of a
    /// chunk, behind the rows that follow.
    #[must_use]
    pub fn reduces_every_micro_batch(&self) -> bool {
        self.zero == ZeroStage::Parameters || self.zero == ZeroStage::Gradients && self.pipeline == 1
    }

    /// Devices from a rank to the next of the data-parallel axis, the context-parallel one inside it.
    #[must_use]
    pub fn data_stride(&self) -> u32 {
        match self.order {
            RankOrder::DataFirst => self.tensor,
            RankOrder::PipelineFirst => self.tensor.saturating_mul(self.pipeline),
        }
    }

    /// Devices from a pipeline stage to the next.
    #[must_use]
    pub fn stage_stride(&self) -> u32 {
        let inner = self.tensor.saturating_mul(self.context);
        match self.order {
            RankOrder::DataFirst => inner.saturating_mul(self.data),
            RankOrder::PipelineFirst => inner,
        }
    }

    /// Devices of the run.
    #[must_use]
    pub fn device_count(&self) -> u64 {
        [self.tensor, self.pipeline, self.data, self.context].into_iter().fold(1, |n, d| n.saturating_mul(d.into()))
    }

    /// Model chunks: pipeline stages times chunks per stage.
    #[must_use]
    pub fn chunk_count(&self) -> u64 {
        u64::from(self.pipeline) * u64::from(self.virtual_stages)
    }

    /// Devices of a stage, all its copies together.
    #[must_use]
    pub fn ranks_per_stage(&self) -> u64 {
        [self.tensor, self.context, self.data].into_iter().fold(1, |n, d| n.saturating_mul(d.into()))
    }

    /// The layout with experts split by width over so many devices: unstated where those are the tensor-parallel group anyway.
    #[must_use]
    pub fn with_expert_tensor_degree(self, width: u32) -> Self {
        let follows = Self { expert_tensor: None, ..self };
        let anyway = width == self.tensor && follows.expert_tensor_degree().is_none();
        if anyway { follows } else { Self { expert_tensor: Some(width), ..self } }
    }

    /// Devices over which an expert is split by width, where that is stated or where the expert-parallel ranks do not all fit into the data- and
    /// context-parallel ones and reach into the tensor-parallel group; `None` where that group shares every expert.
    #[must_use]
    pub fn expert_tensor_degree(&self) -> Option<u32> {
        if self.expert_tensor.is_some() {
            return self.expert_tensor;
        }
        let outside = self.data.saturating_mul(self.context);
        (!outside.is_multiple_of(self.expert.max(1))).then(|| (outside.saturating_mul(self.tensor) / self.expert.max(1)).max(1))
    }

    /// Micro-batches per step and pipeline.
    #[must_use]
    pub fn micro_batches(&self, batch: &Batch) -> u64 {
        batch.global_batch / (batch.micro_batch.max(1).saturating_mul(self.data.max(1).into()))
    }

    /// Layers of each model chunk: those of [`Layout::ends`] where it states any. Otherwise, where the layers do not divide, the embedding
    /// and the head count as layers (Megatron-LM's `account_for_embedding_in_pipeline_split` and `..._loss_...`): the first and the last
    /// chunk hold one layer fewer, or only the last one does.
    ///
    /// # Errors
    /// More chunks than layers, layers that divide neither way, or ends that leave a chunk between them without layers.
    pub fn chunk_split(&self, layers: u64) -> Result<ChunkSplit, LayoutError> {
        if let Some(ends) = self.ends {
            return self.stated_split(layers, ends);
        }
        let chunks = self.chunk_count().max(1);
        let even = |total: u64| total.is_multiple_of(chunks).then_some(total / chunks);
        let (inner, first, last) = match (even(layers), even(layers + 1), even(layers + 2)) {
            (Some(per), ..) if per > 0 => (per, 0, 0),
            // The first and the last chunk may hold the embedding and the head only (Llama 3 405B).
            (_, _, Some(per)) if per > 1 || chunks > 2 => (per, 1, 1),
            (_, Some(per), _) if per > 1 => (per, 0, 1),
            _ => return Err(self.uneven_layers_error(layers, chunks)),
        };
        Ok(ChunkSplit { chunks, first: inner - first, inner, last: inner - last, ..ChunkSplit::default() })
    }

    /// [`Layout::chunk_split`] as a list, first chunk first.
    ///
    /// # Errors
    /// As there.
    pub fn chunk_layers(&self, layers: u64) -> Result<Vec<u64>, LayoutError> {
        let split = self.chunk_split(layers)?;
        Ok((0..split.chunks).map(|chunk| split.layers_of_chunk(chunk)).collect())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{} p{} d{}", self.tensor, self.pipeline, self.data)?;
        for (letter, degree) in [(self.context_axis_letter(), self.context), ("e", self.expert), ("v", self.virtual_stages)] {
            if degree > 1 {
                write!(f, " {letter}{degree}")?;
            }
        }
        if let Some(width) = self.expert_tensor {
            write!(f, " etp{width}")?;
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
