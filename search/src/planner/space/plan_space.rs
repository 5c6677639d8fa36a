//! The plans of a space for given hardware.

use crate::ask::{PlanSpace, Splits};
use crate::planner::Job;
use crate::planner::space::groups::LayoutSchedules;
use sim::pipeline::{PipelineSchedule, VSchedule};
use std::cmp::Ordering;
use step::{MixKind, SoftwareStack, TrainingPlan};
use workloads::parallel::tensor_parallel_degrees;
use workloads::training::ContextMethod;
use workloads::{ActivationPolicy, Layout, LayoutError, RankOrder, ZeroStage};

/// Sequences of at least this many tokens may be split over devices even if the user does not ask for it. At exactly
/// this length at most [`FEW_CONTEXTS`] devices share a sequence, above it any number. (NVIDIA's recipes for Llama 3
/// 70B at 8,192 tokens have two context-parallel devices: NeMo, `llama3_70b` pre-training.)
const LONG_SEQUENCE: u64 = 8192;

/// Limit on the devices for a sequence of [`LONG_SEQUENCE`] tokens: a node of eight.
const FEW_CONTEXTS: u32 = 8;

/// Largest gain, as a fraction of its time, that a plan may miss because the search skips a split of its layers.
/// Predictions are several percent off, and half a percent is less than a run's own spread from step to step. The
/// tolerance skips most splits.
pub const SPLIT_TOLERANCE: f64 = 0.005;

/// Limit on model chunks per stage.
pub(crate) const MOST_CHUNKS: u64 = 64;

/// The numbers of chunks per stage to try if none are listed. A number is tried if its fullest chunk holds fewer layers
/// than with one chunk per stage less. It is also tried if its chunks divide the layers evenly, with one or both of the
/// ends counted as a layer.
pub(super) fn usual_chunks(layers: u64, pipeline: u32) -> Vec<u32> {
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

/// The possible values of a decision that are allowed; all if `allowed` is `None`.
fn among<T: Copy + PartialEq>(allowed: &Option<Vec<T>>, possible: Vec<T>) -> Vec<T> {
    match allowed {
        Some(list) => possible.into_iter().filter(|v| list.contains(v)).collect(),
        None => possible,
    }
}

pub(crate) fn small_divisors(n: u64) -> Vec<u32> {
    divisors(n).into_iter().filter_map(|d| u32::try_from(d).ok()).collect()
}

/// An error for a broken rule: `key` has `value`, and must be `limit`; `cure` names values that obey it.
pub(crate) fn broken(key: &'static str, value: impl ToString, limit: impl Into<String>, cure: String) -> LayoutError {
    LayoutError { key, value: value.to_string(), limit: limit.into(), cure }
}

impl PlanSpace {
    /// The plans of the space that the framework of a job's stack can run, without a check for chunks without layers.
    /// `None` if it can run none.
    pub(crate) fn runnable(&self, job: &Job<'_>) -> Option<Self> {
        let stack = job.stack;
        if stack.framework.name.why_product_not_trained(job.precision.product).is_some() {
            return None;
        }
        let degrees = self.tensor.clone().unwrap_or_else(|| tensor_parallel_degrees(job.model, job.devices));
        let tensor: Vec<u32> =
            degrees.into_iter().filter(|degree| stack.runs_tensor_degree(*degree, job.model)).collect();
        let activations: Vec<_> = self.policies().into_iter().filter(|policy| stack.runs_policy(policy)).collect();
        let schedules = self.schedules.clone().unwrap_or_else(|| vec![PipelineSchedule::OneForwardOneBackward]);
        let runs = |schedule: &PipelineSchedule| [1, 2].iter().any(|chunks| stack.runs_schedule(*schedule, *chunks));
        let schedules: Vec<PipelineSchedule> = schedules.into_iter().filter(runs).collect();
        let pipeline = if schedules.is_empty() { Some(vec![1]) } else { self.pipeline.clone() };
        let possible = pipeline == self.pipeline || self.pipeline.as_ref().is_none_or(|list| list.contains(&1));
        let interleaves = schedules.iter().any(|schedule| stack.runs_schedule(*schedule, 2));
        let chunks = self.virtual_stages.clone().filter(|_| interleaves).or((!interleaves).then(|| vec![1]));
        let possible = possible && (interleaves || self.virtual_stages.as_ref().is_none_or(|list| list.contains(&1)));
        let runs_blocks = stack.framework.mixes >= MixKind::Block;
        let possible = possible && (runs_blocks || !self.has_only_blocks());
        (possible && !activations.is_empty() && !tensor.is_empty()).then(|| Self {
            tensor: Some(tensor),
            pipeline,
            virtual_stages: chunks,
            activations: (!self.has_only_blocks()).then_some(activations),
            blocks: if runs_blocks { self.blocks.clone() } else { Vec::new() },
            mixes: Some(self.mix_kind().min(stack.framework.mixes)),
            schedules: Some(schedules),
            ..self.clone()
        })
    }

    /// Every plan of the space that uses all of the job's devices and obeys the layout's rules. Meant for spaces of up
    /// to some hundred thousand plans; the search itself makes no list.
    #[must_use]
    pub fn plans(&self, job: &Job<'_>) -> Vec<TrainingPlan> {
        let policies = self.policies();
        let open = self.open_policies(&policies);
        let mut plans = Vec::new();
        for family in self.families(job) {
            for lot in &family.lots {
                for (policy, open) in policies.iter().zip(&open) {
                    for &(division, _) in
                        lot.pairs.iter().filter(|(division, _)| *open || family.divisions[*division].even)
                    {
                        for &schedule in &family.divisions[division].schedules {
                            plans.push(family.plan(job, lot, division, policy, schedule));
                        }
                    }
                }
            }
        }
        plans
    }

    /// This space. If it names no policies, they may differ from stage to stage as far as the stack's framework allows.
    #[must_use]
    pub fn with_mixes_of(self, stack: &SoftwareStack) -> Self {
        let usual = self.activations.is_none().then_some(stack.framework.mixes);
        Self { mixes: self.mixes.or(usual), ..self }
    }

    /// The kind of mixes by which policies may differ from stage to stage.
    pub(crate) fn mix_kind(&self) -> MixKind {
        self.mixes.unwrap_or(MixKind::None)
    }

    /// By policy: true if its plans may have the fastest split of layers; the others have only even splits.
    pub(crate) fn open_policies(&self, policies: &[ActivationPolicy]) -> Vec<bool> {
        match &self.splits {
            Some(Splits::NearOf(space)) => {
                let usual = space.policies();
                policies.iter().map(|policy| usual.contains(policy)).collect()
            }
            _ => vec![true; policies.len()],
        }
    }

    /// True if plans of a layout under a schedule may have the fastest split of layers, if their policy allows it too.
    fn is_open(&self, job: &Job<'_>, layout: &Layout, schedule: PipelineSchedule) -> bool {
        match &self.splits {
            None | Some(Splits::Near | Splits::Best) => true,
            Some(Splits::Listed(_)) => false,
            Some(Splits::NearOf(space)) => {
                let rest = job.devices / layout.tensor;
                let contexts = space.contexts(job, rest.into());
                contexts.contains(&layout.context)
                    && space.zeros(layout).contains(&layout.zero)
                    && space.allows(schedule)
            }
        }
    }

    fn allows(&self, schedule: PipelineSchedule) -> bool {
        self.schedules
            .as_ref()
            .map_or(schedule == PipelineSchedule::OneForwardOneBackward, |list| list.contains(&schedule))
    }

    /// The context-parallel degrees that divide `rest`, the devices that tensor parallelism leaves.
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

    /// The layout with each requested split of the layers that its chunks allow. If no split is requested, layers are
    /// split evenly, or as evenly as possible.
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

    /// Returns the orders of a layout's ranks: only one if the orders do not differ or the layout allows only one. If
    /// the only requested order is not allowed, it is returned, and the layout's rules refuse it.
    pub(crate) fn orders(&self, job: &Job<'_>, layout: &Layout) -> Vec<RankOrder> {
        if layout.pipeline == 1 || layout.data == 1 || job.fabric.links_differ() {
            return vec![RankOrder::DataFirst];
        }
        let one = layout.context > 1 || layout.expert > 1 || layout.expert_tensor.is_some();
        match &self.orders {
            None if one || job.fabric.tiers.len() == 1 => vec![RankOrder::DataFirst],
            None => vec![RankOrder::DataFirst, RankOrder::PipelineFirst],
            Some(list) if one && list.contains(&RankOrder::DataFirst) => vec![RankOrder::DataFirst],
            Some(list) if job.fabric.tiers.len() == 1 => list.iter().take(1).copied().collect(),
            Some(list) => list.clone(),
        }
    }

    /// The layout with each ZeRO stage and number of shards, if it then counts.
    pub(super) fn shardings(&self, layout: Layout) -> Vec<Layout> {
        let with_zero = self.zeros(&layout).into_iter().map(|zero| Layout { zero, ..layout });
        let with_zero = with_zero.filter(|layout| self.layouts.admits_layout(layout));
        let shards: Vec<Option<u32>> = match &self.shards {
            Some(list) => list.iter().copied().map(Some).collect(),
            None => vec![None],
        };
        with_zero.flat_map(|layout| shards.iter().map(move |&shards| Layout { shards, ..layout })).collect()
    }

    /// The space with every degree. A list is `None` if an open list already has all values.
    pub(super) fn every_degree(job: &Job<'_>) -> Self {
        let shards = Some(small_divisors(job.devices.into()));
        Self { context: Some(small_divisors(job.sequence_length)), shards, ..Self::default() }
    }

    /// The rule that requested values break in every layout; `None` if there is none.
    pub(super) fn broken_without_layout(&self, job: &Job<'_>) -> Option<LayoutError> {
        let no_experts = |list: &Option<Vec<u32>>, least: u32| {
            list.iter().flatten().copied().find(|value| job.model.experts.is_none() && *value >= least)
        };
        let ep = no_experts(&self.expert, 2).map(|value| ("ep", value, "1 for a model without experts"));
        let etp =
            || no_experts(&self.expert_tensor, 0).map(|value| ("etp", value, "left out for a model without experts"));
        let copies = self.zero.as_deref() == Some(&[ZeroStage::None]);
        if let Some(shards) = self.shards.iter().flatten().find(|_| copies) {
            return Some(broken(
                "shards",
                *shards,
                "left out under ZeRO-0, which shards nothing",
                "use zero = 1, 2 or 3".into(),
            ));
        }
        if let Some(order) = self.orders.as_ref().and_then(|list| list.first()).filter(|_| self.asks_lost_order(job)) {
            let limit = "left out on links that differ: the mapping orders the ranks";
            return Some(broken("order", order, limit, "leave it out".to_owned()));
        }
        let (key, value, limit) = ep.or_else(etp)?;
        Some(broken(key, value, limit, "leave it out".to_owned()))
    }

    /// True if the only requested orders of ranks are ones that the mapping to links that differ would replace.
    fn asks_lost_order(&self, job: &Job<'_>) -> bool {
        job.fabric.links_differ() && self.orders.as_ref().is_some_and(|list| !list.contains(&RankOrder::DataFirst))
    }

    /// A ZeRO stage that suffices to find out if there are plans.
    pub(super) fn one_zero(&self) -> Vec<ZeroStage> {
        vec![if self.shards.is_some() { ZeroStage::OptimizerStates } else { ZeroStage::None }]
    }

    pub(crate) fn zeros(&self, layout: &Layout) -> Vec<ZeroStage> {
        if layout.data == 1 && layout.context == 1 {
            return vec![ZeroStage::None];
        }
        match &self.zero {
            Some(list) => list.clone(),
            None if layout.pipeline > 1 => {
                ZeroStage::ALL.into_iter().filter(|zero| *zero < ZeroStage::Parameters).collect()
            }
            None => ZeroStage::ALL.to_vec(),
        }
    }

    /// The layout with the schedules that it may run. Under a V schedule devices hold other chunks, so each such
    /// schedule is a separate division.
    pub(super) fn divisions(&self, job: &Job<'_>, layout: Layout) -> Vec<LayoutSchedules> {
        let plain = PipelineSchedule::OneForwardOneBackward;
        let allowed = |schedule: &PipelineSchedule| self.allows(*schedule);
        let schedules = match (layout.pipeline, layout.virtual_stages) {
            (1, _) => vec![plain],
            (_, 1) => [plain, PipelineSchedule::GPipe, PipelineSchedule::ZbH1].into_iter().filter(allowed).collect(),
            _ => [plain].into_iter().filter(allowed).collect(),
        };
        let v = layout.pipeline > 1 && layout.virtual_stages == 2;
        let in_v = VSchedule::ALL.map(PipelineSchedule::InV).into_iter().filter(|schedule| v && allowed(schedule));
        let even = layout.ends.is_none() || !matches!(self.splits, Some(Splits::NearOf(_)));
        let lists = std::iter::once(schedules).chain(in_v.map(|schedule| vec![schedule]));
        let division = |schedules: Vec<PipelineSchedule>| {
            let with_splits = schedules.into_iter().map(|schedule| (schedule, self.is_open(job, &layout, schedule)));
            let (schedules, open): (Vec<_>, Vec<_>) = with_splits.filter(|(_, open)| even || *open).unzip();
            LayoutSchedules { layout, schedules, open, even }
        };
        lists.map(division).filter(|division| !division.schedules.is_empty()).collect()
    }

    /// The ways to split sequences: the context-parallel method, and true for sequence parallelism over tensor-parallel
    /// devices.
    pub(crate) fn sequences(&self, layout: &Layout) -> Vec<(ContextMethod, bool)> {
        let both = || vec![ContextMethod::Ring, ContextMethod::Ulysses];
        let methods = if layout.context > 1 {
            self.context_methods.clone().unwrap_or_else(both)
        } else {
            vec![ContextMethod::Ring]
        };
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
