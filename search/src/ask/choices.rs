//! The plans to choose from: a list of values for each decision.

use super::layout_filter::LayoutFilter;
use sim::pipeline::PipelineSchedule;
use step::MixKind;
use workloads::training::ContextMethod;
use workloads::{ActivationPolicy, LayerEnds, RankOrder, ZeroStage};

/// The values that each decision may take. `None` means every value that obeys the rules, unless the field says
/// otherwise.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PlanSpace {
    /// Tensor-parallel degrees.
    pub tensor: Option<Vec<u32>>,
    /// Pipeline stages.
    pub pipeline: Option<Vec<u32>>,
    /// Data-parallel degrees. The devices and the other degrees decide them, so a list is only a condition on those.
    pub data: Option<Vec<u32>>,
    /// Context-parallel degrees. `None` means 1 below 8,192 tokens per sequence, powers of two up to 8 at 8,192 tokens,
    /// and every power of two above.
    pub context: Option<Vec<u32>>,
    /// The methods by which attention reaches the rest of a split sequence; `None` means both.
    pub context_methods: Option<Vec<ContextMethod>>,
    /// Expert-parallel degrees, for models with experts.
    pub expert: Option<Vec<u32>>,
    /// Devices that split every expert by width, for models with experts. `None` means the width that follows from the
    /// other degrees; expert-parallel degrees then divide the data-parallel ranks.
    pub expert_tensor: Option<Vec<u32>>,
    /// Model chunks per stage.
    pub virtual_stages: Option<Vec<u32>>,
    /// The state that data-parallel ranks shard. `None` means all four stages without a pipeline, and ZeRO-0 to ZeRO-2
    /// with one: ZeRO-3 would communicate in every micro-batch, while ZeRO-2 reduces gradients once per step there (as
    /// for Llama 3 405B: The Llama 3 Herd of Models, 2024, section 3.3.2).
    pub zero: Option<Vec<ZeroStage>>,
    /// Numbers of ranks that share one copy of the sharded state. `None` means as the stack shards.
    pub shards: Option<Vec<u32>>,
    /// Orders of ranks on the devices. `None` means both orders if they differ. On links that differ it means only the
    /// first, because the mapping orders the ranks there. Plans with context or expert parallelism always have the
    /// first.
    pub orders: Option<Vec<RankOrder>>,
    /// Splits of the layers into stages; `None` means [`Splits::Near`].
    pub splits: Option<Splits>,
    /// True if tensor-parallel devices split norms, dropout and residual sums along the sequence. `None` means both.
    pub sequence_parallel: Option<Vec<bool>>,
    /// Sequences per micro-batch.
    pub micro_batch: Option<Vec<u64>>,
    /// Policies for the activations that layers keep. `None` means three: nothing, the attention core, or everything is
    /// recomputed.
    pub activations: Option<Vec<ActivationPolicy>>,
    /// Numbers of layers at the start of every model chunk that keep only their input, while the others keep everything
    /// (Megatron-LM's `--recompute-method block`). Empty means no such plans. Without [`Self::activations`], these are
    /// the only choices.
    pub blocks: Vec<u64>,
    /// The kind of mixes by which policies may differ from stage to stage; the best mix is chosen. `None` means one
    /// policy for all stages.
    pub mixes: Option<MixKind>,
    /// Pipeline schedules; `None` means 1F1B, interleaved if there are several model chunks. ZB-V needs two.
    pub schedules: Option<Vec<PipelineSchedule>>,
    /// The layouts that count. This is not a decision: a search sets it, and it is in neither files nor records.
    pub layouts: LayoutFilter,
}

/// The allowed splits of a plan's layers into stages.
#[derive(Debug, Clone, PartialEq)]
pub enum Splits {
    /// The even split, and splits whose ends are lighter by a few layers. Other splits are tried if they may make a
    /// plan faster than the fastest by more than half a percent.
    Near,
    /// The fastest split that fits, for every plan of the list.
    Best,
    /// [`Splits::Near`] for the fastest evenly split plans and for the plans of the inner space, and the even split for
    /// all others. The inner space differs from the containing one only in contexts, ZeRO stages, schedules and
    /// policies.
    NearOf(Box<PlanSpace>),
    /// One of these splits: even (`None`), or with the stated layers in the first, last and longer inner chunks.
    Listed(Vec<Option<LayerEnds>>),
}
