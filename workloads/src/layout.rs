//! How a training run is laid out on devices: the parallel degrees, what data-parallel ranks share, and the rules that tie them to a
//! model and a batch.
//!
//! Devices are numbered with the tensor axis fastest, then context, then data, then pipeline (Megatron-LM's order `tp-cp-dp-pp`; the
//! expert axis is a part of the data axis). A run uses `tensor * context * data * pipeline` devices.

use crate::layer_ends::LayerEnds;
use crate::limits;
use crate::model::Model;
use crate::training::ContextMethod;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

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
    pub fn layers(&self, chunk: u64) -> u64 {
        match chunk {
            0 => self.first,
            _ if chunk + 1 == self.chunks => self.last,
            _ => self.inner + u64::from(self.is_longer(chunk)),
        }
    }

    /// Layers of all chunks before one that is not the first.
    #[must_use]
    pub fn layers_before(&self, chunk: u64) -> u64 {
        let longer = chunk.min(self.longer_from + self.longer).saturating_sub(self.longer_from);
        self.first + self.inner * chunk.saturating_sub(1) + longer
    }

    /// Whether a chunk is one of the longer ones between.
    #[must_use]
    pub fn is_longer(&self, chunk: u64) -> bool {
        chunk.wrapping_sub(self.longer_from) < self.longer
    }
}

/// A rule that a layout breaks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{key} = {value}: must be {limit}; {cure}")]
pub struct LayoutError {
    /// The degree or size at fault, in the words of the data: `tp`, `pp`, `dp`, `cp`, `ep`, `virtual_stages`, `global_batch`, `seq`.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// The rule, with the number that it is broken by.
    pub limit: String,
    /// The nearest values that obey it.
    pub cure: String,
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
    pub fn context_letter(&self) -> &'static str {
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
    pub fn devices(&self) -> u64 {
        [self.tensor, self.pipeline, self.data, self.context].into_iter().fold(1, |n, d| n.saturating_mul(d.into()))
    }

    /// Model chunks: pipeline stages times chunks per stage.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        u64::from(self.pipeline) * u64::from(self.virtual_stages)
    }

    /// Devices over which an expert is split by width, where the expert-parallel ranks do not all fit into the data- and context-parallel
    /// ones and reach into the tensor-parallel group; `None` where that group shares every expert.
    #[must_use]
    pub fn expert_tensor(&self) -> Option<u32> {
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
            return self.ended_split(layers, ends);
        }
        let chunks = self.chunks().max(1);
        let even = |total: u64| total.is_multiple_of(chunks).then_some(total / chunks);
        let (inner, first, last) = match (even(layers), even(layers + 1), even(layers + 2)) {
            (Some(per), ..) if per > 0 => (per, 0, 0),
            // The first and the last chunk may hold the embedding and the head only (Llama 3 405B).
            (_, _, Some(per)) if per > 1 || chunks > 2 => (per, 1, 1),
            (_, Some(per), _) if per > 1 => (per, 0, 1),
            _ => return Err(self.uneven(layers, chunks)),
        };
        Ok(ChunkSplit { chunks, first: inner - first, inner, last: inner - last, ..ChunkSplit::default() })
    }

    /// [`Layout::chunk_split`] as a list, first chunk first.
    ///
    /// # Errors
    /// As there.
    pub fn chunk_layers(&self, layers: u64) -> Result<Vec<u64>, LayoutError> {
        let split = self.chunk_split(layers)?;
        Ok((0..split.chunks).map(|chunk| split.layers(chunk)).collect())
    }

    fn uneven(&self, layers: u64, chunks: u64) -> LayoutError {
        let fits = |n: u64| {
            (0..3).any(|extra| {
                (layers + extra).is_multiple_of(n)
                    && ((layers + extra) / n > u64::from(extra > 0) || (extra == 2 && n > 2 && layers + extra >= n))
            })
        };
        let (p, v) = (u64::from(self.pipeline), u64::from(self.virtual_stages));
        let stages = nearest(p, layers + 2, "pp", |p| fits(p * v));
        let (key, value, cure) = if v == 1 {
            ("pp", p.to_string(), stages)
        } else if (1..=layers).any(|v| fits(p * v)) {
            // Other numbers of chunks leave the devices as they are.
            ("virtual_stages", v.to_string(), nearest(v, layers, "virtual_stages", |v| fits(p * v)))
        } else {
            ("virtual_stages", v.to_string(), stages)
        };
        LayoutError {
            key,
            value,
            limit: format!(
                "such that pp x virtual_stages = {chunks} divides the {layers} layers (or {} with the embedding and the head as layers)",
                layers + 2
            ),
            cure,
        }
    }

    /// Checks the degrees against a model and a batch.
    ///
    /// # Errors
    /// The first rule broken: heads by t, layers by p x v, the batch by micro-batch x d, the data-parallel ranks by e, the sequence by
    /// c (and t under sequence parallelism), and before them the limits of what is costed at all ([`crate::limits`]).
    pub fn check(&self, model: &Model, batch: &Batch) -> Result<(), LayoutError> {
        self.check_positive(batch)?;
        limits::check(self, model, batch)?;
        self.check_order()?;
        let t = u64::from(self.tensor);
        let obeys = |t: u64| {
            let kv = if t <= model.kv_heads { model.kv_heads.is_multiple_of(t) } else { t.is_multiple_of(model.kv_heads) };
            model.heads.is_multiple_of(t) && model.ffn.is_multiple_of(t) && kv
        };
        if !obeys(t) {
            return Err(LayoutError {
                key: "tp",
                value: t.to_string(),
                limit: format!(
                    "a divisor of the {} heads and of the MLP width {}, and a divisor or a multiple of the {} key/value heads",
                    model.heads, model.ffn, model.kv_heads
                ),
                cure: nearest(t, model.heads, "tp", obeys),
            });
        }
        let (heads, c) = (model.heads / t, u64::from(self.context));
        if self.context_method == ContextMethod::Ulysses && !heads.is_multiple_of(c) {
            return Err(LayoutError {
                key: "cp",
                value: c.to_string(),
                limit: format!("a divisor of the {heads} heads of a device: Ulysses splits heads"),
                cure: format!("{}, or the ring method", nearest(c, heads, "cp", |c| heads.is_multiple_of(c))),
            });
        }
        if self.virtual_stages > 1 && self.pipeline == 1 {
            return Err(LayoutError {
                key: "virtual_stages",
                value: self.virtual_stages.to_string(),
                limit: "1 without a pipeline".to_owned(),
                cure: "use 1, or pp of at least 2".to_owned(),
            });
        }
        self.chunk_split(model.layers)?;
        self.check_batch(batch)
    }

    fn check_positive(&self, batch: &Batch) -> Result<(), LayoutError> {
        let degrees = [
            ("tp", u64::from(self.tensor)),
            ("pp", self.pipeline.into()),
            ("dp", self.data.into()),
            ("cp", self.context.into()),
            ("ep", self.expert.into()),
            ("virtual_stages", self.virtual_stages.into()),
            ("micro_batch", batch.micro_batch),
            ("global_batch", batch.global_batch),
            ("seq", batch.sequence_length),
        ];
        match degrees.into_iter().find(|(_, value)| *value == 0) {
            Some((key, _)) => {
                Err(LayoutError { key, value: "0".to_owned(), limit: "at least 1".to_owned(), cure: "use 1 or more".to_owned() })
            }
            None => Ok(()),
        }
    }

    fn check_order(&self) -> Result<(), LayoutError> {
        let axes = [("cp", self.context), ("ep", self.expert)];
        match axes.into_iter().find(|(_, degree)| self.order == RankOrder::PipelineFirst && *degree > 1) {
            Some((key, degree)) => Err(LayoutError {
                key,
                value: degree.to_string(),
                limit: "1 where the stages of a copy lie side by side".to_owned(),
                cure: "use the order tp-cp-dp-pp".to_owned(),
            }),
            None => Ok(()),
        }
    }

    fn check_batch(&self, batch: &Batch) -> Result<(), LayoutError> {
        let share = batch.micro_batch.saturating_mul(self.data.into());
        if !batch.global_batch.is_multiple_of(share) {
            return Err(LayoutError {
                key: "global_batch",
                value: batch.global_batch.to_string(),
                limit: format!("a multiple of micro_batch x dp = {} x {} = {share}", batch.micro_batch, self.data),
                cure: multiples(batch.global_batch, share),
            });
        }
        let ranks = u64::from(self.data) * u64::from(self.context) * u64::from(self.tensor);
        if !ranks.is_multiple_of(self.expert.into()) {
            return Err(LayoutError {
                key: "ep",
                value: self.expert.to_string(),
                limit: format!("a divisor of the {ranks} tensor-, context- and data-parallel ranks"),
                cure: nearest(self.expert.into(), ranks, "ep", |e| ranks.is_multiple_of(e)),
            });
        }
        let split = u64::from(self.context) * if self.sequence_parallel { u64::from(self.tensor) } else { 1 };
        if !batch.sequence_length.is_multiple_of(split) {
            return Err(LayoutError {
                key: "seq",
                value: batch.sequence_length.to_string(),
                limit: format!("a multiple of the {split} devices that a sequence is split over"),
                cure: multiples(batch.sequence_length, split),
            });
        }
        Ok(())
    }
}

/// Values tried on either side of one that breaks a rule.
const NEAR: u64 = 1 << 16;

/// The nearest values below and above that obey a rule, none of which is over `limit`, as advice.
fn nearest(value: u64, limit: u64, key: &str, obeys: impl Fn(u64) -> bool) -> String {
    let below = (1..value.min(limit.saturating_add(1))).rev().take(NEAR as usize).find(|n| obeys(*n));
    let above = (value.saturating_add(1)..=limit.min(value.saturating_add(NEAR))).find(|n| obeys(*n));
    match (below, above) {
        (Some(low), Some(high)) => format!("use {key} = {low} or {high}"),
        (Some(one), None) | (None, Some(one)) => format!("use {key} = {one}"),
        (None, None) => format!("no {key} obeys it: change the model"),
    }
}

/// The multiples of `step` around a value, as advice.
fn multiples(value: u64, step: u64) -> String {
    let below = value / step * step;
    let above = below.saturating_add(step);
    if below == 0 { format!("use {above}") } else { format!("use {below} or {above}") }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{} p{} d{}", self.tensor, self.pipeline, self.data)?;
        for (letter, degree) in [(self.context_letter(), self.context), ("e", self.expert), ("v", self.virtual_stages)] {
            if degree > 1 {
                write!(f, " {letter}{degree}")?;
            }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn layout(tensor: u32, pipeline: u32, data: u32, virtual_stages: u32) -> Layout {
        Layout { tensor, pipeline, data, virtual_stages, ..Layout::default() }
    }

    fn batch(micro_batch: u64, global_batch: u64) -> Batch {
        Batch { micro_batch, global_batch, sequence_length: 2048 }
    }

    #[test]
    fn layers_split_evenly_or_with_the_ends_as_layers() {
        assert_eq!(layout(8, 8, 1, 3).chunk_layers(96).unwrap(), vec![4; 24]);
        let llama = layout(8, 16, 1, 1).chunk_layers(126).unwrap();
        assert_eq!((llama[0], llama[1], llama[15], llama.iter().sum::<u64>()), (7, 8, 7, 126));
        let ends_alone = layout(8, 16, 1, 8).chunk_layers(126).unwrap();
        assert_eq!((ends_alone[0], ends_alone[1], ends_alone[127], ends_alone.iter().sum::<u64>()), (0, 1, 0, 126));
        let last_only = layout(1, 4, 1, 1).chunk_layers(31).unwrap();
        assert_eq!(last_only, [8, 8, 8, 7]);
    }

    #[test]
    fn a_broken_rule_names_the_nearest_values() {
        let model = Model::load("gpt3-175b").unwrap();
        let fault = |l: Layout, b: Batch| l.check(&model, &b).unwrap_err().to_string();
        assert_eq!(
            fault(layout(7, 1, 1, 1), batch(1, 1)),
            "tp = 7: must be a divisor of the 96 heads and of the MLP width 49152, and a divisor or a multiple of the 96 key/value \
             heads; use tp = 6 or 8"
        );
        assert_eq!(
            fault(layout(8, 20, 1, 1), batch(1, 20)),
            "pp = 20: must be such that pp x virtual_stages = 20 divides the 96 layers (or 98 with the embedding and the head as \
             layers); use pp = 16 or 24"
        );
        assert_eq!(
            fault(layout(8, 8, 4, 1), batch(3, 64)),
            "global_batch = 64: must be a multiple of micro_batch x dp = 3 x 4 = 12; use 60 or 72"
        );
        assert!(layout(8, 8, 4, 3).check(&model, &batch(1, 64)).is_ok());
        let chunks = fault(layout(8, 8, 4, 5), batch(1, 64));
        assert!(
            chunks.starts_with("virtual_stages = 5: must be such that pp x virtual_stages = 40 divides the 96 layers"),
            "{chunks}"
        );
        assert!(chunks.ends_with("use virtual_stages = 4 or 6"), "{chunks}");
    }
}
