//! Why there is no plan to choose from: the rule that the plans nearest to obeying all rules break, and the nearest values with which there are plans.

use super::Job;
use super::space::{Family, MOST_CHUNKS, PlanSpace, Splits, divisors, small_divisors};
use sim::pipeline::Schedule;
use std::collections::BTreeSet;
use workloads::parallel::tensor_parallel_degrees;
use workloads::{Batch, Layout, LayoutError, RankOrder, ZeroStage};

/// The key of rules about how layers are split.
const SPLIT: &str = "layer_split";

/// Most decisions that a cure names.
const MOST_CURES: usize = 3;

/// A decision that is a degree of the layout: its name, its values in a space, its value in a layout.
type Degree = (&'static str, fn(&mut PlanSpace) -> &mut Option<Vec<u32>>, fn(&Layout) -> u32);

const DEGREES: [Degree; 5] = [
    ("tp", |s| &mut s.tensor, |l| l.tensor),
    ("cp", |s| &mut s.context, |l| l.context),
    ("pp", |s| &mut s.pipeline, |l| l.pipeline),
    ("ep", |s| &mut s.expert, |l| l.expert),
    ("virtual_stages", |s| &mut s.virtual_stages, |l| l.virtual_stages),
];

const SCHEDULES: [(&str, Schedule); 4] =
    [("1f1b", Schedule::OneForwardOneBackward), ("gpipe", Schedule::GPipe), ("zb-h1", Schedule::ZbH1), ("zb-v", Schedule::ZbV)];

impl PlanSpace {
    /// Why a value asked for can be in no plan of the job, or all of them together in none: the rule broken with its number, and the nearest values
    /// with which there are plans. `None` where every value is in a plan and there are plans of the space.
    #[must_use]
    pub fn fault(&self, job: &Job<'_>) -> Option<LayoutError> {
        let experts = self.expert.iter().flatten().find(|e| job.model.experts.is_none() && **e > 1);
        let dense = experts.map(|e| broken("ep", *e, "1 for a model without experts", "leave it out".to_owned()));
        dense.or_else(|| self.values_alone(job).iter().find_map(|alone| alone.emptiness(job))).or_else(|| self.emptiness(job))
    }

    /// For every value asked for, the space in which it is the only thing asked for.
    fn values_alone(&self, job: &Job<'_>) -> Vec<Self> {
        let mut spaces = Vec::new();
        let mut asked = self.clone();
        for (key, list, _) in DEGREES {
            for value in list(&mut asked).iter().flatten() {
                let mut alone = Self::open(job);
                *list(&mut alone) = Some(vec![*value]);
                // Under ZB-V and GPipe other chunks are allowed; without being asked for they are no way out. Nor are other stages.
                if key == "virtual_stages" {
                    alone.schedules.clone_from(&self.schedules);
                    alone.pipeline.clone_from(&self.pipeline);
                }
                spaces.push(alone);
            }
        }
        if let Some(Splits::Listed(list)) = &self.splits {
            // A split says nothing of the stages that it is meant for: those asked for.
            let alone = |ends| Self {
                splits: Some(Splits::Listed(vec![ends])),
                pipeline: self.pipeline.clone(),
                virtual_stages: self.virtual_stages.clone(),
                ..Self::open(job)
            };
            spaces.extend(list.iter().map(|ends| alone(*ends)));
        }
        spaces.extend(self.micro_batch.iter().flatten().map(|b| Self { micro_batch: Some(vec![*b]), ..Self::open(job) }));
        spaces
    }

    /// Every value of the decisions that decide whether there are plans.
    fn open(job: &Job<'_>) -> Self {
        Self {
            context: Some(small_divisors(job.devices.into())),
            zero: Some(vec![ZeroStage::None]),
            orders: Some(vec![RankOrder::DataFirst]),
            schedules: Some(SCHEDULES.map(|(_, schedule)| schedule).to_vec()),
            ..Self::default()
        }
    }

    /// Why the space has no plans, if it has none: the rule broken with its number, and the nearest values with which there are plans.
    #[must_use]
    pub fn emptiness(&self, job: &Job<'_>) -> Option<LayoutError> {
        let space = Self { zero: Some(vec![ZeroStage::None]), orders: Some(vec![RankOrder::DataFirst]), ..self.clone() };
        if !space.families(job).is_empty() {
            return None;
        }
        let nearest = Walk::of(&space, job).nearest?;
        Some(LayoutError { cure: space.cures(job, &nearest), ..nearest.rule })
    }

    /// The nearest values of one decision at a time with which there are plans, those of the rule's own decision first.
    fn cures(&self, job: &Job<'_>, nearest: &Broken) -> String {
        let mut cures: Vec<(&str, String)> = Vec::new();
        let mut asked = self.clone();
        for (key, list, degree) in DEGREES {
            let Some(values) = list(&mut asked).clone() else { continue };
            let mut relaxed = self.clone();
            *list(&mut relaxed) = if key == "cp" { Self::open(job).context } else { None };
            let now = degree(&nearest.layout);
            let at = if values.contains(&now) { now } else { values.first().copied().unwrap_or(now) };
            let found = layouts(&relaxed.families(job)).map(|l| u64::from(degree(l))).collect();
            cures.extend(near(at.into(), &found).map(|values| (key, format!("{key} = {values}"))));
        }
        if let Some(values) = &self.micro_batch {
            let relaxed = Self { micro_batch: None, ..self.clone() };
            let found = relaxed.families(job).iter().flat_map(|f| f.lots.iter().map(|lot| lot.micro_batch)).collect();
            let at = values.first().copied().unwrap_or(1);
            cures.extend(near(at, &found).map(|values| ("micro_batch", format!("micro_batch = {values}"))));
        }
        if self.schedules.is_some() {
            let relaxed = Self { schedules: Self::open(job).schedules, ..self.clone() };
            let families = relaxed.families(job);
            let runs = |schedule: &Schedule| families.iter().flat_map(|f| &f.divisions).any(|d| d.schedules.contains(schedule));
            let names: Vec<&str> = SCHEDULES.iter().filter(|(_, schedule)| runs(schedule)).map(|(name, _)| *name).collect();
            cures.extend((!names.is_empty()).then(|| ("schedule", format!("the schedule {}", names.join(" or ")))));
        }
        if matches!(self.splits, Some(Splits::Listed(_))) && !(Self { splits: None, ..self.clone() }).families(job).is_empty() {
            let own = nearest.rule.cure.strip_prefix("use ").filter(|_| nearest.rule.key == SPLIT);
            cures.extend(own.map(|values| (SPLIT, values.to_owned())));
            cures.push((SPLIT, "the best split of the layers".to_owned()));
        }
        cures.extend(self.batches(job, nearest).map(|values| ("global_batch", format!("global_batch = {values}"))));
        if cures.is_empty() {
            cures.extend(self.clusters(job, nearest).map(|values| ("devices", format!("{values} devices"))));
        }
        cures.sort_by_key(|(key, _)| *key != nearest.rule.key);
        cures.truncate(MOST_CURES);
        let cures: Vec<String> = cures.into_iter().map(|(_, cure)| cure).collect();
        if cures.is_empty() { "restrict fewer decisions".to_owned() } else { format!("use {}", cures.join(", or ")) }
    }

    /// The nearest batches with which there are plans.
    fn batches(&self, job: &Job<'_>, nearest: &Broken) -> Option<String> {
        let (l, now) = (&nearest.layout, job.global_batch);
        let copies = u64::from(l.data);
        let steps = [copies, copies * nearest.micro_batch, copies * nearest.micro_batch * u64::from(l.pipeline)];
        // Where a copy of the model takes more devices than there are, no batch helps.
        let around = steps.into_iter().filter(|step| *step > 0).flat_map(|step| [now / step * step, (now / step + 1) * step]);
        let has_plans = |batch: &u64| *batch > 0 && !self.families(&Job { global_batch: *batch, ..*job }).is_empty();
        near(now, &around.collect::<BTreeSet<u64>>().into_iter().filter(has_plans).collect())
    }

    /// The nearest numbers of devices with which there are plans.
    fn clusters(&self, job: &Job<'_>, nearest: &Broken) -> Option<String> {
        let copy = u64::from(nearest.layout.tensor) * u64::from(nearest.layout.context) * u64::from(nearest.layout.pipeline);
        let now = u64::from(job.devices);
        let around: BTreeSet<u64> = divisors(job.global_batch).into_iter().map(|copies| copies.saturating_mul(copy)).collect();
        let has_plans =
            |devices: &u64| u32::try_from(*devices).is_ok_and(|devices| !self.families(&Job { devices, ..*job }).is_empty());
        let below = around.range(..now).rev().find(|n| has_plans(n));
        let above = around.range(now + 1..).find(|n| has_plans(n));
        near(now, &below.into_iter().chain(above).copied().collect())
    }
}

/// The layouts that families have plans of.
fn layouts(families: &[Family]) -> impl Iterator<Item = &Layout> {
    let pairs = families.iter().flat_map(|f| f.lots.iter().flat_map(move |lot| lot.pairs.iter().map(move |(at, _)| (f, *at))));
    pairs.map(|(family, at)| &family.divisions[at].layout)
}

/// The values next to one, below and above: `4 or 12`.
fn near(at: u64, values: &BTreeSet<u64>) -> Option<String> {
    let around = [values.range(..at).next_back(), values.range(at + 1..).next()];
    let around: Vec<String> = around.into_iter().flatten().map(u64::to_string).collect();
    (!around.is_empty()).then(|| around.join(" or "))
}

fn broken(key: &'static str, value: impl ToString, limit: impl Into<String>, cure: String) -> LayoutError {
    LayoutError { key, value: value.to_string(), limit: limit.into(), cure }
}

/// Devices in words.
fn counted(devices: u32) -> String {
    if devices == 1 { "one device".to_owned() } else { format!("{devices} devices") }
}

/// A rule broken by what has been decided so far.
#[derive(Debug)]
struct Broken {
    /// Rules obeyed before it, in the order of the walk.
    obeyed: u32,
    rule: LayoutError,
    layout: Layout,
    micro_batch: u64,
}

/// A walk through all choices of a space, decision by decision; it keeps the choice that obeys most rules before it breaks one.
struct Walk<'a> {
    space: &'a PlanSpace,
    job: &'a Job<'a>,
    nearest: Option<Broken>,
    /// Whether a choice obeys all.
    plans: bool,
}

impl<'a> Walk<'a> {
    fn of(space: &'a PlanSpace, job: &'a Job<'a>) -> Self {
        let mut walk = Self { space, job, nearest: None, plans: false };
        walk.tensor();
        walk
    }

    /// Notes a broken rule.
    fn note(&mut self, obeyed: u32, layout: Layout, micro_batch: u64, rule: LayoutError) {
        if self.nearest.as_ref().is_none_or(|nearest| obeyed > nearest.obeyed) {
            self.nearest = Some(Broken { obeyed, rule, layout, micro_batch });
        }
    }

    /// As [`Walk::note`], of a rule stated here.
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
            if let Err(rule) = layout.check(self.job.model, &self.batch(1)) {
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
        let plain = || vec![Schedule::OneForwardOneBackward];
        for schedule in self.space.schedules.clone().unwrap_or_else(plain) {
            let needed = match schedule {
                _ if layout.pipeline == 1 => None,
                Schedule::GPipe => Some((1, "GPipe")),
                Schedule::ZbH1 => Some((1, "ZB-H1")),
                Schedule::ZbV => Some((2, "ZB-V")),
                _ => None,
            };
            match needed {
                Some((chunks, name)) if chunks != layout.virtual_stages => {
                    let limit = format!("{chunks} under {name}");
                    self.rule(8, layout, "virtual_stages", layout.virtual_stages.into(), limit);
                }
                _ => self.split(layout, schedule),
            }
        }
    }

    fn split(&mut self, layout: Layout, schedule: Schedule) {
        let divided = self.space.divided(self.job, layout);
        for layout in &divided {
            self.micro_batch(*layout, schedule);
        }
        let ends = match &self.space.splits {
            Some(Splits::Listed(list)) => list.first().copied().flatten(),
            _ => None,
        };
        let layout = Layout { ends, ..layout };
        if let (true, Err(rule)) = (divided.is_empty(), layout.chunk_split(self.job.model.layers)) {
            self.note(9, layout, 1, rule);
        }
    }

    fn micro_batch(&mut self, layout: Layout, schedule: Schedule) {
        let (batch, copies, p) = (self.job.global_batch, layout.data, u64::from(layout.pipeline));
        let each = batch / u64::from(copies);
        let interleaved = layout.virtual_stages > 1 && schedule == Schedule::OneForwardOneBackward;
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
                    match layout.check(self.job.model, &self.batch(size)) {
                        Err(rule) => self.note(13, layout, size, rule),
                        Ok(()) => self.plans = true,
                    }
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
