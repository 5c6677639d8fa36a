//! The plans to choose from: a list of values for each decision.

use sim::pipeline::PipelineSchedule;
use step::MixKind;
use workloads::training::ContextMethod;
use workloads::{ActivationPolicy, LayerEnds, RankOrder, ZeroStage};

/// Which values each decision may take; `None` is every value that obeys the rules.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PlanSpace {
    /// Tensor-parallel widths.
    pub tensor: Option<Vec<u32>>,
    /// Pipeline stages.
    pub pipeline: Option<Vec<u32>>,
    /// Context-parallel widths; `None` is 1, the powers of two up to 8 for sequences of 8,192 tokens, and every power of two for longer ones.
    pub context: Option<Vec<u32>>,
    /// How attention reaches the rest of a sequence that is split; `None` is both.
    pub context_methods: Option<Vec<ContextMethod>>,
    /// Expert-parallel widths, for models with experts.
    pub expert: Option<Vec<u32>>,
    /// Devices over which every expert is split by width, for models with experts; `None` is what follows from the other degrees, with
    /// expert-parallel widths that divide the data-parallel ranks.
    pub expert_tensor: Option<Vec<u32>>,
    /// Model chunks per stage.
    pub virtual_stages: Option<Vec<u32>>,
    /// The state that data-parallel ranks share; `None` is all four without a pipeline, and ZeRO-0 to ZeRO-2 with one (ZeRO-3 would communicate in every
    /// micro-batch; ZeRO-2 reduces gradients once per step there, as FSDP did for Llama 3 405B, The Llama 3 Herd of Models, 2024, section 3.3.2).
    pub zero: Option<Vec<ZeroStage>>,
    /// Ranks that share one copy of what ZeRO shards; `None` is as the stack shards.
    pub shards: Option<Vec<u32>>,
    /// How ranks lie on the devices; `None` is both orders where they differ. On links that differ, where the mapping orders the ranks, only the
    /// first.
    pub orders: Option<Vec<RankOrder>>,
    /// How layers are split into stages; `None` is [`Splits::Near`].
    pub splits: Option<Splits>,
    /// True if norms, dropout and residual sums are split along the sequence over tensor-parallel devices; `None` is both.
    pub sequence_parallel: Option<Vec<bool>>,
    /// Sequences per micro-batch.
    pub micro_batch: Option<Vec<u64>>,
    /// The activations that layers keep; `None` is nothing recomputed, the attention core, everything.
    pub activations: Option<Vec<ActivationPolicy>>,
    /// How far what is kept may differ from stage to stage, best chosen; `None` is not at all.
    pub mixes: Option<MixKind>,
    /// Pipeline schedules; `None` is 1F1B, interleaved where there are several model chunks. ZB-V needs two.
    pub schedules: Option<Vec<PipelineSchedule>>,
}

/// How the layers of a plan may be split into stages.
#[derive(Debug, Clone, PartialEq)]
pub enum Splits {
    /// Evenly, or so that the ends are lighter by a few layers; in any other way where that may make the fastest plan faster by more than
    /// half a percent.
    Near,
    /// As is fastest and fits, for every plan of the list.
    Best,
    /// [`Splits::Near`] for the fastest plans of those that are split evenly, and for those that are of this space as well, which differs in contexts,
    /// ZeRO stages, schedules and policies at most; evenly for the others.
    NearOf(Box<PlanSpace>),
    /// In one of these ways: evenly (`None`), or with so many layers in the first and the last model chunk and the longer ones between where stated.
    Listed(Vec<Option<LayerEnds>>),
}
