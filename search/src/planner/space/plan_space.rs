//! The plans that fixed hardware leaves to choose from.

use crate::planner::Job;
use crate::planner::space::groups::{DegreeClass, LayoutSchedules, PlanGroup, PlanGroupKey};
use sim::pipeline::PipelineSchedule;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use step::{MixKind, SoftwareStack, TrainingPlan};
use workloads::parallel::tensor_parallel_degrees;
use workloads::training::ContextMethod;
use workloads::{ActivationPolicy, Batch, LayerEnds, Layout, RankOrder, ZeroStage};

/// From so many tokens on sequences are split over devices without being asked for (NVIDIA's recipes for Llama 3 70B at 8,192 tokens have two
/// context-parallel devices: NeMo, `llama3_70b` pre-training), over more than [`FEW_CONTEXTS`] beyond it.
const LONG_SEQUENCE: u64 = 8192;

/// Limit on the devices for a sequence of [`LONG_SEQUENCE`] tokens: a node of eight.
const FEW_CONTEXTS: u32 = 8;

/// Largest gain of a plan by a split of its layers that the search leaves out. Predictions are several percent off, and
/// half a percent is less than a run's own spread from step to step. The tolerance skips most splits.
pub const SPLIT_TOLERANCE: f64 = 0.005;

/// Most model chunks per stage.
pub(crate) const MOST_CHUNKS: u64 = 64;

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
    /// What data-parallel ranks share; `None` is all four without a pipeline, and ZeRO-0 to ZeRO-2 with one (ZeRO-3 would communicate in every
    /// micro-batch; ZeRO-2 reduces gradients once per step there, as FSDP did for Llama 3 405B, The Llama 3 Herd of Models, 2024, section 3.3.2).
    pub zero: Option<Vec<ZeroStage>>,
    /// How ranks lie on the devices; `None` is both orders where they differ. On links that differ, where the mapping orders the ranks, only the
    /// first.
    pub orders: Option<Vec<RankOrder>>,
    /// How layers are split into stages; `None` is [`Splits::Near`].
    pub splits: Option<Splits>,
    /// Whether norms, dropout and residual sums are split along the sequence over tensor-parallel devices; `None` is both.
    pub sequence_parallel: Option<Vec<bool>>,
    /// Sequences per micro-batch.
    pub micro_batch: Option<Vec<u64>>,
    /// What layers keep; `None` is nothing recomputed, the attention core, everything.
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
    /// [`SPLIT_TOLERANCE`].
    Near,
    /// As is fastest and fits, for every plan of the list.
    Best,
    /// [`Splits::Near`] for the fastest plans of those that are split evenly, and for those that are of this space as well, which differs in contexts,
    /// ZeRO stages, schedules and policies at most; evenly for the others.
    NearOf(Box<PlanSpace>),
    /// In one of these ways: evenly (`None`), or with so many layers in the first and the last model chunk and the longer ones between where stated.
    Listed(Vec<Option<LayerEnds>>),
}

/// Chunks per stage of plans of which no list is given: of the numbers whose fullest chunk holds as many layers the fewest, which splits them most
/// evenly, and those that divide the layers with one or both of the ends counted as a layer.
fn usual_chunks(layers: u64, pipeline: u32) -> Vec<u32> {
    let chunks = |v: u32| u64::from(v) * u64::from(pipeline);
    let fullest = |v: u32| layers.div_ceil(chunks(v));
    let usual = |v: &u32| {
        let v = *v;
        v == 1 || fullest(v - 1) > fullest(v) || [1, 2].iter().any(|ends| (layers + ends).is_multiple_of(chunks(v)))
    };
    (1..=layers.min(MOST_CHUNKS) as u32).filter(usual).collect()
}

/// The divisors of a number, ascending.
pub(crate) fn divisors(n: u64) -> Vec<u64> {
    let mut small: Vec<u64> = (1..).take_while(|d| d * d <= n).filter(|d| n.is_multiple_of(*d)).collect();
    let large: Vec<u64> = small.iter().rev().map(|d| n / d).filter(|d| d * d > n).collect();
    small.extend(large);
    small
}

/// The allowed values of a decision among the possible ones.
fn among<T: Copy + PartialEq>(allowed: &Option<Vec<T>>, possible: Vec<T>) -> Vec<T> {
    match allowed {
        Some(list) => possible.into_iter().filter(|v| list.contains(v)).collect(),
        None => possible,
    }
}

pub(crate) fn small_divisors(n: u64) -> Vec<u32> {
    divisors(n).into_iter().filter_map(|d| u32::try_from(d).ok()).collect()
}

impl PlanSpace {
    /// The plans of the space that a stack's framework can run, except for chunks without layers; `None` if it can run
    /// none.
    pub(crate) fn runnable(&self, stack: &SoftwareStack) -> Option<Self> {
        let activations: Vec<_> = self.policies().into_iter().filter(|policy| stack.runs_policy(policy)).collect();
        let schedules = self.schedules.clone().unwrap_or_else(|| vec![PipelineSchedule::OneForwardOneBackward]);
        let runs = |schedule: &PipelineSchedule| [1, 2].iter().any(|chunks| stack.runs_schedule(*schedule, *chunks));
        let schedules: Vec<PipelineSchedule> = schedules.into_iter().filter(runs).collect();
        let pipeline = if schedules.is_empty() { Some(vec![1]) } else { self.pipeline.clone() };
        let possible = pipeline == self.pipeline || self.pipeline.as_ref().is_none_or(|list| list.contains(&1));
        (possible && !activations.is_empty()).then(|| Self {
            pipeline,
            activations: Some(activations),
            mixes: Some(self.mix_kind().min(stack.framework.mixes)),
            schedules: Some(schedules),
            ..self.clone()
        })
    }

    /// This space, with `other`'s values where it names none.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            tensor: self.tensor.or(other.tensor),
            pipeline: self.pipeline.or(other.pipeline),
            context: self.context.or(other.context),
            context_methods: self.context_methods.or(other.context_methods),
            expert: self.expert.or(other.expert),
            expert_tensor: self.expert_tensor.or(other.expert_tensor),
            virtual_stages: self.virtual_stages.or(other.virtual_stages),
            zero: self.zero.or(other.zero),
            orders: self.orders.or(other.orders),
            splits: self.splits.or(other.splits),
            sequence_parallel: self.sequence_parallel.or(other.sequence_parallel),
            micro_batch: self.micro_batch.or(other.micro_batch),
            activations: self.activations.or(other.activations),
            mixes: self.mixes.or(other.mixes),
            schedules: self.schedules.or(other.schedules),
        }
    }

    /// Every plan of the space that uses all of the job's devices and obeys the layout's rules. For spaces of up to some hundred thousand
    /// plans; the search itself makes no list.
    #[must_use]
    pub fn plans(&self, job: &Job<'_>) -> Vec<TrainingPlan> {
        let policies = self.policies();
        let open = self.open_policies(&policies);
        let mut plans = Vec::new();
        for family in self.families(job) {
            for lot in &family.lots {
                for (policy, open) in policies.iter().zip(&open) {
                    for &(division, _) in lot.pairs.iter().filter(|(division, _)| *open || family.divisions[*division].even) {
                        for &schedule in &family.divisions[division].schedules {
                            plans.push(family.plan(job, lot, division, policy, schedule));
                        }
                    }
                }
            }
        }
        plans
    }

    /// This space; if it names no policies, they may differ from stage to stage as far as the stack's framework allows.
    #[must_use]
    pub fn with_mixes_of(self, stack: &SoftwareStack) -> Self {
        let usual = self.activations.is_none().then_some(stack.framework.mixes);
        Self { mixes: self.mixes.or(usual), ..self }
    }

    /// How far policies may differ from stage to stage.
    pub(crate) fn mix_kind(&self) -> MixKind {
        self.mixes.unwrap_or(MixKind::None)
    }

    /// By policy, whether its layers may have the fastest split; the others go only with even splits.
    pub(crate) fn open_policies(&self, policies: &[ActivationPolicy]) -> Vec<bool> {
        match &self.splits {
            Some(Splits::NearOf(space)) => {
                let usual = space.policies();
                policies.iter().map(|policy| usual.contains(policy)).collect()
            }
            _ => vec![true; policies.len()],
        }
    }

    /// Whether plans of a layout under a schedule may have the fastest split, if their policy allows it too.
    fn is_open(&self, job: &Job<'_>, layout: &Layout, schedule: PipelineSchedule) -> bool {
        match &self.splits {
            None | Some(Splits::Near | Splits::Best) => true,
            Some(Splits::Listed(_)) => false,
            Some(Splits::NearOf(space)) => {
                let rest = job.devices / layout.tensor;
                let contexts = space.contexts(job, rest.into());
                contexts.contains(&layout.context) && space.zeros(layout).contains(&layout.zero) && space.allows(schedule)
            }
        }
    }

    fn allows(&self, schedule: PipelineSchedule) -> bool {
        self.schedules.as_ref().map_or(schedule == PipelineSchedule::OneForwardOneBackward, |list| list.contains(&schedule))
    }

    /// The plans of the space but for their policies, by what they share.
    pub(crate) fn families(&self, job: &Job<'_>) -> Vec<DegreeClass> {
        let devices = u64::from(job.devices);
        let mut families: BTreeMap<(u32, u32, u32, Option<u32>), Vec<LayoutSchedules>> = BTreeMap::new();
        let widths = tensor_parallel_degrees(job.model, job.devices);
        let widths = widths.into_iter().filter(|t| devices.is_multiple_of(u64::from(*t))).collect();
        for tensor in among(&self.tensor, widths) {
            let rest = devices / u64::from(tensor);
            for context in self.contexts(job, rest) {
                let rest = rest / u64::from(context);
                for pipeline in among(&self.pipeline, small_divisors(rest)) {
                    let data = (rest / u64::from(pipeline)) as u32;
                    for layout in self.layouts(job, Layout { tensor, context, pipeline, data, ..Layout::default() }) {
                        let key = (tensor, context, layout.expert, layout.expert_tensor);
                        families.entry(key).or_default().extend(self.divisions(job, layout));
                    }
                }
            }
        }
        let lots = |divisions: Vec<LayoutSchedules>| DegreeClass { lots: self.lots(job, &divisions), divisions };
        families.into_values().map(lots).filter(|family| !family.lots.is_empty()).collect()
    }

    /// The context-parallel widths for the devices that the tensor-parallel one leaves.
    pub(crate) fn contexts(&self, job: &Job<'_>, rest: u64) -> Vec<u32> {
        match &self.context {
            Some(list) => among(&Some(list.clone()), small_divisors(rest)),
            None => {
                let most = match job.sequence_length.cmp(&LONG_SEQUENCE) {
                    Ordering::Less => 1,
                    Ordering::Equal => FEW_CONTEXTS,
                    Ordering::Greater => u32::MAX,
                };
                small_divisors(rest).into_iter().filter(|c| c.is_power_of_two() && *c <= most).collect()
            }
        }
    }

    /// The layouts of given degrees; whether sequences are split over tensor-parallel devices is left open.
    fn layouts(&self, job: &Job<'_>, layout: Layout) -> Vec<Layout> {
        let mut layouts = Vec::new();
        if !job.global_batch.is_multiple_of(layout.data.into()) || u64::from(layout.pipeline) > job.model.layers + 2 {
            return layouts;
        }
        let few = self.virtual_stages.is_none() && matches!(self.splits, None | Some(Splits::Near));
        let chunks = match layout.pipeline {
            1 => vec![1],
            pipeline if few => usual_chunks(job.model.layers, pipeline),
            _ => (1..=job.model.layers.min(MOST_CHUNKS) as u32).collect(),
        };
        for layout in self.experts(job, layout) {
            for virtual_stages in among(&self.virtual_stages, chunks.clone()) {
                for layout in self.divided(job, Layout { virtual_stages, ..layout }) {
                    for order in self.orders(job, &layout) {
                        layouts.extend(self.zeros(&layout).into_iter().map(|zero| Layout { zero, order, ..layout }));
                    }
                }
            }
        }
        layouts
    }

    /// A layout with the ways to spread experts over its ranks.
    fn experts(&self, job: &Job<'_>, layout: Layout) -> Vec<Layout> {
        if job.model.experts.is_none() {
            return vec![layout];
        }
        let Some(widths) = &self.expert_tensor else {
            let ranks = among(&self.expert, small_divisors(layout.data.into()));
            return ranks.into_iter().map(|expert| Layout { expert, ..layout }).collect();
        };
        let ranks = layout.ranks_per_stage();
        let divide = widths.iter().filter(|width| **width > 0 && ranks.is_multiple_of(u64::from(**width)));
        let mut layouts: Vec<Layout> = divide
            .flat_map(|width| {
                let experts = among(&self.expert, small_divisors(ranks / u64::from(*width)));
                experts.into_iter().map(|expert| Layout { expert, ..layout }.with_expert_tensor_degree(*width))
            })
            .collect();
        layouts.sort_unstable();
        layouts.dedup();
        layouts
    }

    /// A layout with the splits of the layers asked for that its chunks allow. Where none is: evenly; where that cannot be, as evenly as layers that
    /// do not divide can.
    pub(crate) fn divided(&self, job: &Job<'_>, layout: Layout) -> Vec<Layout> {
        let layers = job.model.layers;
        let with = |ends| Layout { ends, ..layout };
        let allowed = |layout: &Layout| layout.chunk_split(layers).is_ok();
        let runs = |layout: &Layout| layout.chunk_split(layers).is_ok_and(|split| job.may_hold_split(&split));
        match &self.splits {
            Some(Splits::Listed(list)) => list.iter().map(|ends| with(*ends)).filter(allowed).collect(),
            _ if allowed(&layout) => Some(layout).filter(runs).into_iter().collect(),
            _ => layout.balanced_ends(layers).map(|ends| with(Some(ends))).filter(runs).into_iter().collect(),
        }
    }

    fn orders(&self, job: &Job<'_>, layout: &Layout) -> Vec<RankOrder> {
        let alike = layout.pipeline == 1 || layout.data == 1 || job.fabric.tiers.len() == 1 || job.fabric.links_differ();
        if alike || layout.context > 1 || layout.expert > 1 || layout.expert_tensor.is_some() {
            return vec![RankOrder::DataFirst];
        }
        self.orders.clone().unwrap_or_else(|| vec![RankOrder::DataFirst, RankOrder::PipelineFirst])
    }

    fn zeros(&self, layout: &Layout) -> Vec<ZeroStage> {
        use ZeroStage::{Gradients, None as Copies, OptimizerStates, Parameters};
        if layout.data == 1 && layout.context == 1 {
            return vec![Copies];
        }
        match &self.zero {
            Some(list) => list.clone(),
            None if layout.pipeline > 1 => vec![Copies, OptimizerStates, Gradients],
            None => vec![Copies, OptimizerStates, Gradients, Parameters],
        }
    }

    /// A layout with the schedules that it may run. Under ZB-V devices hold other chunks: a division of its own.
    fn divisions(&self, job: &Job<'_>, layout: Layout) -> Vec<LayoutSchedules> {
        let plain = PipelineSchedule::OneForwardOneBackward;
        let allowed = |schedule: &PipelineSchedule| self.allows(*schedule);
        let schedules = match (layout.pipeline, layout.virtual_stages) {
            (1, _) => vec![plain],
            (_, 1) => [plain, PipelineSchedule::GPipe, PipelineSchedule::ZbH1].into_iter().filter(allowed).collect(),
            _ => [plain].into_iter().filter(allowed).collect(),
        };
        let v = layout.pipeline > 1 && layout.virtual_stages == 2 && self.allows(PipelineSchedule::ZbV);
        let even = layout.ends.is_none() || !matches!(self.splits, Some(Splits::NearOf(_)));
        let lists = [schedules, if v { vec![PipelineSchedule::ZbV] } else { Vec::new() }];
        let division = |schedules: Vec<PipelineSchedule>| {
            let with_splits = schedules.into_iter().map(|schedule| (schedule, self.is_open(job, &layout, schedule)));
            let (schedules, open): (Vec<_>, Vec<_>) = with_splits.filter(|(_, open)| even || *open).unzip();
            LayoutSchedules { layout, schedules, open, even }
        };
        lists.into_iter().map(division).filter(|division| !division.schedules.is_empty()).collect()
    }

    /// Micro-batches, with the divisions that they go with.
    fn lots(&self, job: &Job<'_>, divisions: &[LayoutSchedules]) -> Vec<PlanGroup> {
        let mut lots: BTreeMap<PlanGroupKey, Vec<(usize, u64)>> = BTreeMap::new();
        for (i, division) in divisions.iter().enumerate() {
            let layout = &division.layout;
            let per_rank = job.global_batch / u64::from(layout.data);
            let interleaved = layout.virtual_stages > 1 && !division.schedules.contains(&PipelineSchedule::ZbV);
            for micro_batch in among(&self.micro_batch, divisors(per_rank)) {
                let m = per_rank / micro_batch;
                if interleaved && !m.is_multiple_of(layout.pipeline.into()) {
                    continue;
                }
                let batch = Batch { micro_batch, global_batch: job.global_batch, sequence_length: job.sequence_length };
                for (context_method, sequence_parallel) in self.sequences(layout) {
                    let possible = (Layout { context_method, sequence_parallel, ..*layout })
                        .check_model_and_batch(job.model, &batch)
                        .is_ok();
                    if possible && job.may_accumulate(m) {
                        // Gradients of several micro-batches may be summed by kernels of their own: another lowered.
                        let sums = job.stack.kernels.separate_accumulation && m > 1;
                        lots.entry((context_method, sequence_parallel, micro_batch, sums)).or_default().push((i, m));
                    }
                }
            }
        }
        let lot = |((context_method, sequence_parallel, micro_batch, _), pairs)| PlanGroup {
            context_method,
            sequence_parallel,
            micro_batch,
            pairs,
        };
        lots.into_iter().map(lot).collect()
    }

    /// How sequences may be split over context- and over tensor-parallel devices.
    pub(crate) fn sequences(&self, layout: &Layout) -> Vec<(ContextMethod, bool)> {
        let both = || vec![ContextMethod::Ring, ContextMethod::Ulysses];
        let methods =
            if layout.context > 1 { self.context_methods.clone().unwrap_or_else(both) } else { vec![ContextMethod::Ring] };
        let splits = if layout.tensor > 1 { among(&self.sequence_parallel, vec![true, false]) } else { vec![false] };
        methods.into_iter().flat_map(|method| splits.iter().map(move |split| (method, *split))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_all_and_rise() {
        assert_eq!(divisors(1), [1]);
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
        assert_eq!(divisors(97), [1, 97]);
    }
}
