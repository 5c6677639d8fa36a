//! Enumerates a space's plans, decision by decision. It notes the rule that each discarded choice breaks, so it can
//! explain why a space has no plans. Nothing else enumerates plans.

use crate::ask::{PlanSpace, Splits};
use crate::planner::Job;
use crate::planner::space::groups::{DegreeClass, LayoutSchedules, PlanGroup, PlanGroupKey};
use crate::planner::space::plan_space::{MOST_CHUNKS, broken, divisors, small_divisors, usual_chunks};
use sim::pipeline::PipelineSchedule;
use std::collections::BTreeMap;
use workloads::memory::TechniqueError;
use workloads::parallel::tensor_parallel_degrees;
use workloads::{Batch, Layout, LayoutError};

/// A rule that a choice breaks.
#[derive(Debug)]
pub(crate) struct BrokenRule {
    /// The number of rules obeyed before it, in the order of the enumeration.
    pub obeyed: u32,
    pub rule: LayoutError,
    /// The layout chosen so far.
    pub layout: Layout,
    pub micro_batch: u64,
}

/// Notes the broken rule of the choice that obeys the most rules before it.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// The nearest broken rule, if one was broken.
    pub nearest: Option<BrokenRule>,
    /// True if broken rules are not noted.
    ignored: bool,
    /// If set, only plans that run this schedule count. Plans of one stage run none.
    running: Option<PipelineSchedule>,
}

impl Refusals {
    /// Notes nothing. If `running` is a schedule, only plans that run it count.
    pub fn ignored(running: Option<PipelineSchedule>) -> Self {
        Self { nearest: None, ignored: true, running }
    }

    /// Notes rules. If `running` is a schedule, only plans that run it count.
    pub fn noted(running: Option<PipelineSchedule>) -> Self {
        Self { nearest: None, ignored: false, running }
    }

    /// Notes the rule that a choice breaks, if the choice obeys more rules before it than the one noted.
    fn note(&mut self, obeyed: u32, (layout, micro_batch): (Layout, u64), rule: impl FnOnce() -> LayoutError) {
        if !self.ignored && self.nearest.as_ref().is_none_or(|nearest| obeyed > nearest.obeyed) {
            self.nearest = Some(BrokenRule { obeyed, rule: rule(), layout, micro_batch });
        }
    }

    /// Notes a broken rule: `key` has `value`, and must be `limit`.
    fn rule(&mut self, obeyed: u32, layout: Layout, key: &'static str, value: u64, limit: impl FnOnce() -> String) {
        self.note(obeyed, (layout, 1), || broken(key, value, limit(), String::new()));
    }
}

/// The values to try, in ascending order: those requested, otherwise the usual ones.
fn candidates<T: Copy + Ord>(asked: &Option<Vec<T>>, usual: impl FnOnce() -> Vec<T>) -> Vec<T> {
    let Some(list) = asked else { return usual() };
    let mut list = list.clone();
    list.sort_unstable();
    list.dedup();
    list
}

/// Devices in words.
fn counted(devices: u32) -> String {
    if devices == 1 { "one device".to_owned() } else { format!("{devices} devices") }
}

/// The devices that degrees leave, in words.
fn left(job: &Job<'_>, rest: u64, degrees: &str, product: u64) -> String {
    if product == 1 {
        format!("{rest} devices")
    } else {
        format!("{rest} devices that {degrees} = {product} leaves of {}", job.devices)
    }
}

fn batch(job: &Job<'_>, micro_batch: u64) -> Batch {
    Batch { micro_batch, global_batch: job.global_batch, sequence_length: job.sequence_length }
}

impl PlanSpace {
    /// The plans of the space without their policies, by degree class.
    pub(crate) fn families(&self, job: &Job<'_>) -> Vec<DegreeClass> {
        self.enumerate(job, &mut Refusals::ignored(None))
    }

    /// As [`Self::families`], with broken rules noted in `refusals`.
    pub(crate) fn enumerate(&self, job: &Job<'_>, refusals: &mut Refusals) -> Vec<DegreeClass> {
        let mut families: BTreeMap<(u32, u32, u32, Option<u32>), Vec<LayoutSchedules>> = BTreeMap::new();
        for layout in self.degrees(job, refusals) {
            let key = (layout.tensor, layout.context, layout.expert, layout.expert_tensor);
            for layout in self.chunked(job, layout, refusals) {
                families.entry(key).or_default().extend(self.divisions(job, layout));
            }
        }
        let lots = |divisions: Vec<LayoutSchedules>, refusals: &mut Refusals| DegreeClass {
            lots: self.lots(job, &divisions, refusals),
            divisions,
        };
        let families = families.into_values().map(|divisions| lots(divisions, refusals));
        families.filter(|family| !family.lots.is_empty()).collect()
    }

    /// The layouts whose degrees use all devices: tensor, context, pipeline, data and expert parallelism.
    fn degrees(&self, job: &Job<'_>, refusals: &mut Refusals) -> Vec<Layout> {
        let (devices, tokens) = (u64::from(job.devices), job.sequence_length);
        let mut layouts = Vec::new();
        let usual = tensor_parallel_degrees(job.model, job.devices);
        for tensor in candidates(&self.tensor, || usual.clone()) {
            let layout = Layout { tensor, ..Layout::default() };
            if let Err(rule) = layout.check_model_and_batch(job.model, &batch(job, 1)) {
                refusals.note(0, (layout, 1), || rule);
                continue;
            }
            if !devices.is_multiple_of(tensor.into()) || !usual.contains(&tensor) {
                refusals.rule(1, layout, "tp", tensor.into(), || format!("a divisor of the {devices} devices"));
                continue;
            }
            let rest = devices / u64::from(tensor);
            for context in candidates(&self.context, || self.contexts(job, rest)) {
                let layout = Layout { context, ..layout };
                if !tokens.is_multiple_of(context.into()) {
                    let limit = || format!("a divisor of the {tokens} tokens of a sequence");
                    refusals.rule(2, layout, "cp", context.into(), limit);
                    continue;
                }
                if !rest.is_multiple_of(context.into()) {
                    let limit = || format!("a divisor of the {}", left(job, rest, "tp", tensor.into()));
                    refusals.rule(3, layout, "cp", context.into(), limit);
                    continue;
                }
                layouts.extend(self.divide_pipelines(job, layout, refusals));
            }
        }
        layouts
    }

    /// The layouts of a tensor and a context degree with each pipeline, data and expert degree that uses all devices.
    fn divide_pipelines(&self, job: &Job<'_>, layout: Layout, refusals: &mut Refusals) -> Vec<Layout> {
        let (devices, sequences) = (job.devices, job.global_batch);
        let product = u64::from(layout.tensor) * u64::from(layout.context);
        let rest = u64::from(devices) / product;
        let mut layouts = Vec::new();
        for pipeline in candidates(&self.pipeline, || small_divisors(rest)) {
            let data = (rest / u64::from(pipeline.max(1))) as u32;
            let layout = Layout { pipeline, data, ..layout };
            let copies = || format!("{data}, the copies of {} (tp x cp x pp) among {devices}", counted(devices / data));
            if !rest.is_multiple_of(pipeline.into()) {
                let limit = || format!("a divisor of the {}", left(job, rest, "tp x cp", product));
                refusals.rule(4, layout, "pp", pipeline.into(), limit);
            } else if let Some(asked) = self.data.as_ref().filter(|list| !list.contains(&data)) {
                let asked = asked.first().copied().unwrap_or_default();
                let limit = || match asked > 0 && devices.is_multiple_of(asked) {
                    true => copies(),
                    false => format!("a divisor of the {devices} devices"),
                };
                refusals.rule(4, layout, "dp", asked.into(), limit);
            } else if !sequences.is_multiple_of(data.into()) {
                refusals.rule(5, layout, "global_batch", sequences, || format!("a multiple of dp = {}", copies()));
            } else {
                layouts.extend(self.experts(job, layout, refusals));
            }
        }
        layouts
    }

    /// The layout with each way to spread experts over its ranks; the layout alone for a model without experts.
    fn experts(&self, job: &Job<'_>, layout: Layout, refusals: &mut Refusals) -> Vec<Layout> {
        if job.model.experts.is_none() {
            return vec![layout];
        }
        let mut layouts = Vec::new();
        let Some(widths) = &self.expert_tensor else {
            for expert in candidates(&self.expert, || small_divisors(layout.data.into())) {
                if layout.data.is_multiple_of(expert) {
                    layouts.push(Layout { expert, ..layout });
                } else {
                    let limit = || {
                        let copy = counted(job.devices / layout.data);
                        format!("a divisor of dp = {}, the copies of {copy} among {}", layout.data, job.devices)
                    };
                    refusals.rule(6, layout, "ep", expert.into(), limit);
                }
            }
            return layouts;
        };
        let ranks = layout.ranks_per_stage();
        for &width in widths {
            if width == 0 || !ranks.is_multiple_of(width.into()) {
                let limit = || format!("a divisor of the {ranks} ranks of a stage (tp x cp x dp)");
                refusals.rule(6, layout, "etp", width.into(), limit);
                continue;
            }
            let left = ranks / u64::from(width);
            for expert in candidates(&self.expert, || small_divisors(left)) {
                if left.is_multiple_of(expert.into()) {
                    layouts.push(Layout { expert, ..layout }.with_expert_tensor_degree(width));
                } else {
                    let limit = || {
                        format!(
                            "a divisor of the {left} ranks that etp = {width} leaves of a stage (tp x cp x dp / etp)"
                        )
                    };
                    refusals.rule(6, layout, "ep", expert.into(), limit);
                }
            }
        }
        layouts.sort_unstable();
        layouts.dedup();
        layouts
    }

    /// The layouts of given degrees with every number of chunks, split, order of ranks and ZeRO stage. Sequence
    /// parallelism is left open.
    fn chunked(&self, job: &Job<'_>, layout: Layout, refusals: &mut Refusals) -> Vec<Layout> {
        let (layers, mut layouts) = (job.model.layers, Vec::new());
        let most = layers.min(MOST_CHUNKS) as u32;
        if let (1, Some(running)) = (layout.pipeline, refusals.running) {
            let limit = "left out without a pipeline: one stage has nothing to schedule";
            refusals.note(7, (layout, 1), || broken("schedule", running.word(), limit, String::new()));
            return layouts;
        }
        if u64::from(layout.pipeline) > layers + 2 {
            let limit = || {
                format!(
                    "at most {}: the {layers} layers, one for every stage, and the embedding's and the head's",
                    layers + 2
                )
            };
            // This counts as fewer rules than those of chunks and schedules, because the requested values may break one
            // of these with fewer stages.
            refusals.rule(6, layout, "pp", layout.pipeline.into(), limit);
            return layouts;
        }
        let few = self.virtual_stages.is_none() && matches!(self.splits, None | Some(Splits::Near));
        let usual = || match layout.pipeline {
            1 => vec![1],
            pipeline if few => usual_chunks(layers, pipeline),
            _ => (1..=most).collect(),
        };
        for virtual_stages in candidates(&self.virtual_stages, usual) {
            let layout = Layout { virtual_stages, ..layout };
            let chunks = u64::from(virtual_stages);
            if layout.pipeline == 1 && virtual_stages > 1 {
                refusals.rule(7, layout, "virtual_stages", chunks, || "1 without a pipeline".to_owned());
            } else if layout.pipeline > 1 && virtual_stages > most {
                refusals.rule(7, layout, "virtual_stages", chunks, || format!("at most {most}"));
            } else if self.has_schedule(layout, refusals) {
                for layout in self.split(job, layout, refusals) {
                    for order in self.orders(job, &layout) {
                        layouts.extend(self.shardings(Layout { order, ..layout }));
                    }
                }
            }
        }
        layouts
    }

    /// True if some schedule of the space runs a layout's number of chunks. 1F1B runs any number. Notes the other
    /// schedules' rules.
    fn has_schedule(&self, layout: Layout, refusals: &mut Refusals) -> bool {
        if layout.pipeline == 1 {
            return true;
        }
        let mut runs = false;
        for schedule in self.schedules.clone().unwrap_or_else(|| vec![PipelineSchedule::OneForwardOneBackward]) {
            let chunks = schedule.chunks_per_device();
            if schedule != PipelineSchedule::OneForwardOneBackward && chunks != layout.virtual_stages {
                let limit = || format!("{chunks} under {}", schedule.name());
                refusals.rule(8, layout, "virtual_stages", layout.virtual_stages.into(), limit);
            } else {
                runs = true;
            }
        }
        runs
    }

    /// The layout with each requested split of the layers that its chunks allow. Notes the broken rule if there is
    /// none.
    fn split(&self, job: &Job<'_>, layout: Layout, refusals: &mut Refusals) -> Vec<Layout> {
        let (divided, layers) = (self.divided(job, layout), job.model.layers);
        if divided.is_empty() {
            let ends = match &self.splits {
                Some(Splits::Listed(list)) => list.first().copied().flatten(),
                // Stages of one chunk may hold different numbers of layers, so any number of stages up to this limit
                // can hold all layers.
                _ if layout.virtual_stages == 1 => {
                    let limit = || {
                        format!(
                            "at most {}: the {layers} layers, one for every stage, and the embedding's and the head's",
                            layers + 2
                        )
                    };
                    refusals.rule(9, layout, "pp", layout.pipeline.into(), limit);
                    return divided;
                }
                _ => None,
            };
            let layout = Layout { ends, ..layout };
            if let Err(rule) = layout.chunk_split(layers) {
                // A requested split is meant for a pipeline, so without one it counts as one rule less.
                let obeyed = if ends.is_some() && layout.pipeline == 1 { 8 } else { 9 };
                refusals.note(obeyed, (layout, 1), || rule);
            }
        }
        divided
    }

    /// The groups of plans that are lowered alike: micro-batches, each with the layouts that it goes with.
    fn lots(&self, job: &Job<'_>, divisions: &[LayoutSchedules], refusals: &mut Refusals) -> Vec<PlanGroup> {
        let mut lots: BTreeMap<PlanGroupKey, Vec<(usize, u64)>> = BTreeMap::new();
        for (i, division) in divisions.iter().enumerate() {
            let layout = &division.layout;
            let per_rank = job.global_batch / u64::from(layout.data);
            for micro_batch in candidates(&self.micro_batch, || divisors(per_rank)) {
                let Some(m) = micro_batches(job, division, micro_batch, refusals) else { continue };
                for (context_method, sequence_parallel) in self.sequences(layout) {
                    let layout = Layout { context_method, sequence_parallel, ..*layout };
                    if let Err(rule) = layout.check_model_and_batch(job.model, &batch(job, micro_batch)) {
                        refusals.note(13, (layout, micro_batch), || rule);
                    } else if !job.may_accumulate(m) {
                        refusals.note(14, (layout, micro_batch), || accumulation_rule(job, m));
                    } else {
                        // Separate kernels may sum the gradients of several micro-batches, which is another lowering.
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
}

/// The number of micro-batches per step for a micro-batch size. `None` if the size breaks a rule, which is noted.
fn micro_batches(job: &Job<'_>, division: &LayoutSchedules, size: u64, refusals: &mut Refusals) -> Option<u64> {
    let layout = division.layout;
    let (sequences, copies, p) = (job.global_batch, layout.data, u64::from(layout.pipeline));
    let each = sequences / u64::from(copies);
    let m = each / size.max(1);
    let at = (layout, 1);
    let interleaved = layout.virtual_stages > 1 && !division.schedules.iter().any(|schedule| schedule.is_in_v());
    if !sequences.is_multiple_of(size) {
        let limit = || format!("a divisor of the {sequences} sequences of a step");
        refusals.note(10, at, || broken("micro_batch", size, limit(), String::new()));
        return None;
    }
    if !each.is_multiple_of(size) {
        let limit =
            || format!("a divisor of the {each} sequences of each of dp = {copies} copies ({sequences} per step)");
        refusals.note(11, at, || broken("micro_batch", size, limit(), String::new()));
        return None;
    }
    if interleaved && !m.is_multiple_of(p) {
        let limit = || {
            format!(
                "1 where the {m} micro-batches of a copy ({sequences} sequences / (dp {copies} x micro_batch {size})) are no multiple of \
                 pp = {p}: interleaving runs them pp at a time"
            )
        };
        refusals.note(12, (layout, size), || broken("virtual_stages", layout.virtual_stages, limit(), String::new()));
        return None;
    }
    let least = |schedule: &PipelineSchedule| u64::from(schedule.least_micro_batches(layout.pipeline));
    if let Some(schedule) = division.schedules.iter().find(|schedule| least(schedule) > m) {
        let limit = || {
            format!(
                "one with at most the {m} micro-batches of a copy ({sequences} sequences / (dp {copies} x \
                 micro_batch {size})): {} needs {}, two for each of pp = {p}",
                schedule.name(),
                least(schedule)
            )
        };
        refusals.note(12, (layout, size), || broken("schedule", schedule.word(), limit(), String::new()));
        return None;
    }
    Some(m)
}

/// The rule of the job's techniques that this many micro-batches per step break.
fn accumulation_rule(job: &Job<'_>, micro_batches: u64) -> LayoutError {
    let why = match job.accumulation_refusal(micro_batches) {
        Some(TechniqueError::Refused { technique, why, .. }) => format!("technique {technique}: {why}"),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    broken("global_batch", job.global_batch, format!("one micro-batch per replica ({why})"), String::new())
}
