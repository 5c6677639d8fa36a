//! The plans nearest to obeying all rules: a walk through a space's choices, decision by decision, and the rule that the one that comes
//! farthest breaks.

use crate::planner::Job;
use crate::planner::space::plan_space::{MOST_CHUNKS, PlanSpace, Splits, divisors, small_divisors};
use sim::pipeline::PipelineSchedule;
use workloads::parallel::tensor_parallel_degrees;
use workloads::{Batch, Layout, LayoutError};

/// A rule broken, with the values that obey it.
pub(crate) fn broken(key: &'static str, value: impl ToString, limit: impl Into<String>, cure: String) -> LayoutError {
    LayoutError { key, value: value.to_string(), limit: limit.into(), cure }
}

/// The names of the schedules.
pub(crate) const SCHEDULES: [(&str, PipelineSchedule); 4] = [
    ("1f1b", PipelineSchedule::OneForwardOneBackward),
    ("gpipe", PipelineSchedule::GPipe),
    ("zb-h1", PipelineSchedule::ZbH1),
    ("zb-v", PipelineSchedule::ZbV),
];

/// A schedule by its name: 1f1b (interleaved where there are several chunks), gpipe, zb-h1, zb-v.
#[must_use]
pub fn schedule_of(name: &str) -> Option<PipelineSchedule> {
    SCHEDULES.iter().find(|(known, _)| *known == name).map(|(_, schedule)| *schedule)
}

/// The name of a schedule, as [`schedule_of`] knows it.
#[must_use]
pub fn schedule_name(schedule: PipelineSchedule) -> &'static str {
    SCHEDULES.iter().find(|(_, known)| *known == schedule).map_or("interleaved", |(name, _)| name)
}

/// Devices in words.
fn counted(devices: u32) -> String {
    if devices == 1 { "one device".to_owned() } else { format!("{devices} devices") }
}

/// A rule broken by what has been decided so far.
#[derive(Debug)]
pub(crate) struct BrokenRule {
    /// Rules obeyed before it, in the order of the walk.
    pub obeyed: u32,
    pub rule: LayoutError,
    /// What has been decided.
    pub layout: Layout,
    pub micro_batch: u64,
}

/// A walk through all choices of a space, decision by decision; it keeps the choice that obeys most rules before it breaks one.
pub(crate) struct PlanWalk<'a> {
    space: &'a PlanSpace,
    job: &'a Job<'a>,
    /// The schedule that a choice has to run to be one.
    running: Option<PipelineSchedule>,
    pub nearest: Option<BrokenRule>,
    /// Whether a choice obeys all.
    pub plans: bool,
}

impl<'a> PlanWalk<'a> {
    /// Walks through a space; where `running` is a schedule, plans of one stage, which run none, break a rule.
    pub fn of(space: &'a PlanSpace, job: &'a Job<'a>, running: Option<PipelineSchedule>) -> Self {
        let mut walk = Self { space, job, running, nearest: None, plans: false };
        walk.tensor();
        walk
    }

    /// Notes a broken rule.
    fn note(&mut self, obeyed: u32, layout: Layout, micro_batch: u64, rule: LayoutError) {
        if self.nearest.as_ref().is_none_or(|nearest| obeyed > nearest.obeyed) {
            self.nearest = Some(BrokenRule { obeyed, rule, layout, micro_batch });
        }
    }

    /// As [`PlanWalk::note_fitting_plan`], of a rule stated here.
    fn rule(&mut self, obeyed: u32, layout: Layout, key: &'static str, value: u64, limit: String) {
        self.note(obeyed, layout, 1, broken(key, value, limit, String::new()));
    }

    fn batch(&self, micro_batch: u64) -> Batch {
        Batch { micro_batch, global_batch: self.job.global_batch, sequence_length: self.job.sequence_length }
    }

    fn tensor(&mut self) {
        let devices = u64::from(self.job.devices);
        let usual = || tensor_parallel_degrees(self.job.model, self.job.devices);
        for tensor in self.space.tensor.clone().unwrap_or_else(usual) {
            let layout = Layout { tensor, ..Layout::default() };
            if let Err(rule) = layout.check_model_and_batch(self.job.model, &self.batch(1)) {
                self.note(0, layout, 1, rule);
            } else if !devices.is_multiple_of(tensor.into()) {
                self.rule(1, layout, "tp", tensor.into(), format!("a divisor of the {devices} devices"));
            } else {
                self.context(layout, devices / u64::from(tensor));
            }
        }
    }

    fn context(&mut self, layout: Layout, rest: u64) {
        let tokens = self.job.sequence_length;
        for context in self.space.context.clone().unwrap_or_else(|| self.space.contexts(self.job, rest)) {
            let layout = Layout { context, ..layout };
            if !tokens.is_multiple_of(context.into()) {
                self.rule(2, layout, "cp", context.into(), format!("a divisor of the {tokens} tokens of a sequence"));
            } else if !rest.is_multiple_of(context.into()) {
                let left = self.left(rest, "tp", layout.tensor.into());
                self.rule(3, layout, "cp", context.into(), format!("a divisor of the {left}"));
            } else {
                self.pipeline(layout, rest / u64::from(context));
            }
        }
    }

    /// What degrees leave of the devices, in words.
    fn left(&self, rest: u64, degrees: &str, product: u64) -> String {
        if product == 1 {
            format!("{rest} devices")
        } else {
            format!("{rest} devices that {degrees} = {product} leaves of {}", self.job.devices)
        }
    }

    fn pipeline(&mut self, layout: Layout, rest: u64) {
        let batch = self.job.global_batch;
        for pipeline in self.space.pipeline.clone().unwrap_or_else(|| small_divisors(rest)) {
            let data = (rest / u64::from(pipeline)) as u32;
            let layout = Layout { pipeline, data, ..layout };
            if !rest.is_multiple_of(pipeline.into()) {
                let left = self.left(rest, "tp x cp", u64::from(layout.tensor) * u64::from(layout.context));
                self.rule(4, layout, "pp", pipeline.into(), format!("a divisor of the {left}"));
            } else if !batch.is_multiple_of(data.into()) {
                let copy = counted(self.job.devices / data);
                let limit = format!("a multiple of dp = {data}, the copies of {copy} (tp x cp x pp) among {}", self.job.devices);
                self.rule(5, layout, "global_batch", batch, limit);
            } else {
                self.expert(layout);
            }
        }
    }

    fn expert(&mut self, layout: Layout) {
        if let Some(widths) = self.space.expert_tensor.as_ref().filter(|_| self.job.model.experts.is_some()) {
            return widths.iter().for_each(|width| self.expert_tensor(layout, *width));
        }
        let usual = || small_divisors(layout.data.into());
        let experts = if self.job.model.experts.is_some() { self.space.expert.clone().unwrap_or_else(usual) } else { vec![1] };
        for expert in experts {
            if layout.data.is_multiple_of(expert) {
                self.chunks(Layout { expert, ..layout });
            } else {
                let copy = counted(self.job.devices / layout.data);
                let limit = format!("a divisor of dp = {}, the copies of {copy} among {}", layout.data, self.job.devices);
                self.rule(6, layout, "ep", expert.into(), limit);
            }
        }
    }

    fn expert_tensor(&mut self, layout: Layout, width: u32) {
        let ranks = layout.ranks_per_stage();
        if !ranks.is_multiple_of(width.into()) {
            let limit = format!("a divisor of the {ranks} ranks of a stage (tp x cp x dp)");
            return self.rule(6, layout, "etp", width.into(), limit);
        }
        let left = ranks / u64::from(width);
        for expert in self.space.expert.clone().unwrap_or_else(|| small_divisors(left)) {
            if left.is_multiple_of(expert.into()) {
                self.chunks(Layout { expert, ..layout }.with_expert_tensor_degree(width));
            } else {
                let limit = format!("a divisor of the {left} ranks that etp = {width} leaves of a stage (tp x cp x dp / etp)");
                self.rule(6, layout, "ep", expert.into(), limit);
            }
        }
    }

    fn chunks(&mut self, layout: Layout) {
        let layers = self.job.model.layers;
        let most = layers.min(MOST_CHUNKS) as u32;
        let usual = || if layout.pipeline > 1 { (1..=most).collect() } else { vec![1] };
        for virtual_stages in self.space.virtual_stages.clone().unwrap_or_else(usual) {
            let layout = Layout { virtual_stages, ..layout };
            let chunks = u64::from(virtual_stages);
            if layout.pipeline == 1 && virtual_stages > 1 {
                self.rule(7, layout, "virtual_stages", chunks, "1 without a pipeline".to_owned());
            } else if layout.pipeline > 1 && virtual_stages > most {
                self.rule(7, layout, "virtual_stages", chunks, format!("at most {most}"));
            } else {
                self.schedule(layout);
            }
        }
    }

    fn schedule(&mut self, layout: Layout) {
        if let (1, Some(running)) = (layout.pipeline, self.running) {
            let limit = "left out without a pipeline: one stage has nothing to schedule";
            return self.note(7, layout, 1, broken("schedule", schedule_name(running), limit, String::new()));
        }
        let plain = || vec![PipelineSchedule::OneForwardOneBackward];
        for schedule in self.space.schedules.clone().unwrap_or_else(plain) {
            // 1F1B runs any number of chunks.
            let fixed = layout.pipeline > 1 && schedule != PipelineSchedule::OneForwardOneBackward;
            match schedule.chunks_per_device() {
                chunks if fixed && chunks != layout.virtual_stages => {
                    let limit = format!("{chunks} under {}", schedule.name());
                    self.rule(8, layout, "virtual_stages", layout.virtual_stages.into(), limit);
                }
                _ => self.split(layout, schedule),
            }
        }
    }

    fn split(&mut self, layout: Layout, schedule: PipelineSchedule) {
        let divided = self.space.divided(self.job, layout);
        for layout in &divided {
            self.micro_batch(*layout, schedule);
        }
        if !divided.is_empty() {
            return;
        }
        let ends = match &self.space.splits {
            Some(Splits::Listed(list)) => list.first().copied().flatten(),
            // Stages of one chunk may hold other numbers of layers each, so that any number of them up to this one holds all layers.
            _ if layout.virtual_stages == 1 => {
                let layers = self.job.model.layers;
                let limit = format!(
                    "at most {}: the {layers} layers, one for every stage, and the embedding's and the head's",
                    layers + 2
                );
                return self.rule(9, layout, "pp", layout.pipeline.into(), limit);
            }
            _ => None,
        };
        if let Err(rule) = (Layout { ends, ..layout }).chunk_split(self.job.model.layers) {
            // A split is asked for with a pipeline in mind.
            let obeyed = if ends.is_some() && layout.pipeline == 1 { 8 } else { 9 };
            self.note(obeyed, Layout { ends, ..layout }, 1, rule);
        }
    }

    fn micro_batch(&mut self, layout: Layout, schedule: PipelineSchedule) {
        let (batch, copies, p) = (self.job.global_batch, layout.data, u64::from(layout.pipeline));
        let each = batch / u64::from(copies);
        let interleaved = layout.virtual_stages > 1 && schedule == PipelineSchedule::OneForwardOneBackward;
        for size in self.space.micro_batch.clone().unwrap_or_else(|| divisors(each)) {
            if !batch.is_multiple_of(size) {
                self.rule(10, layout, "micro_batch", size, format!("a divisor of the {batch} sequences of a step"));
            } else if !each.is_multiple_of(size) {
                let limit = format!("a divisor of the {each} sequences of each of dp = {copies} copies ({batch} per step)");
                self.rule(11, layout, "micro_batch", size, limit);
            } else if interleaved && !(each / size).is_multiple_of(p) {
                let limit = format!(
                    "1 where the {} micro-batches of a copy ({batch} sequences / (dp {copies} x micro_batch {size})) are no multiple of pp = {p}: \
                     interleaving runs them pp at a time",
                    each / size
                );
                let rule = broken("virtual_stages", layout.virtual_stages, limit, String::new());
                self.note(12, layout, size, rule);
            } else {
                for (context_method, sequence_parallel) in self.space.sequences(&layout) {
                    let layout = Layout { context_method, sequence_parallel, ..layout };
                    match layout.check_model_and_batch(self.job.model, &self.batch(size)) {
                        Err(rule) => self.note(13, layout, size, rule),
                        Ok(()) => self.plans = true,
                    }
                }
            }
        }
    }
}
