//! Explains why there is no plan to choose from: the rule that the nearest plans break, and the nearest values with
//! which there are plans.

use crate::ask::{DECISIONS, Degree, PlanSpace, Splits};
use crate::planner::Job;
use crate::planner::space::enumerate::{BrokenRule, Refusals};
use crate::planner::space::groups::DegreeClass;
use crate::planner::space::plan_space::{broken, divisors};
use sim::network::Fabric;
use sim::pipeline::{PipelineSchedule, SCHEDULES};
use std::collections::BTreeSet;
use workloads::parallel::tensor_parallel_degrees;
use workloads::{Layout, LayoutError, RankOrder};

/// The key of rules about how layers are split.
const SPLIT: &str = "layer_split";

/// Limit on the decisions that a cure names.
const MOST_CURES: usize = 3;

/// Limit on the numbers of devices that are tried above and below for the nearest one with plans.
const TRIED: usize = 64;

/// The decisions that are degrees of the layout, by their keys.
fn degrees() -> impl Iterator<Item = (&'static str, Degree)> {
    DECISIONS.iter().filter_map(|decision| Some((decision.key, decision.degree?)))
}

impl PlanSpace {
    /// Explains why a requested value is in no plan of the job, or why `space` has no plan with all requested values.
    /// `space` is this space, or a larger one with the same values. `cluster` is the job's fabric with all devices that
    /// it can join. The error has the broken rule with its number, and the nearest values with which there are plans.
    /// `None` if every value is in some plan and `space` has plans.
    #[must_use]
    pub fn fault(&self, space: &Self, job: &Job<'_>, cluster: &Fabric) -> Option<LayoutError> {
        if let Some(rule) = self.broken_without_layout(job) {
            return Some(rule);
        }
        let question = SpaceProbe { job, cluster, running: None };
        let alone = self.values_alone(space, job).iter().find_map(|alone| question.emptiness(alone));
        let idle = || {
            let asked = self.schedules.as_ref()?.len();
            self.idle_of(&question).into_iter().map(|(_, rule)| rule).nth(asked.checked_sub(1)?)
        };
        let fault = alone.or_else(idle).or_else(|| question.emptiness(space))?;
        Some(question.cluster_fault().unwrap_or(fault))
    }

    /// The requested schedules that no plan of the space runs, by name, each with the broken rule. 1F1B is not among
    /// them. If every requested schedule is among them, [`Self::fault`] reports the last.
    #[must_use]
    pub fn idle_schedules(&self, job: &Job<'_>, cluster: &Fabric) -> Vec<(&'static str, LayoutError)> {
        self.idle_of(&SpaceProbe { job, cluster, running: None })
    }

    /// Explains why the space has no plans: the broken rule with its number, and the nearest values with which there
    /// are plans. `None` if it has plans.
    #[must_use]
    pub fn emptiness(&self, job: &Job<'_>, cluster: &Fabric) -> Option<LayoutError> {
        SpaceProbe { job, cluster, running: None }.emptiness(self)
    }

    /// As [`Self::emptiness`], for a space that a file gives as a whole, such as a study. The cure is another batch or
    /// another number of devices, written as flags.
    #[must_use]
    pub fn unfit_cluster(&self, job: &Job<'_>, cluster: &Fabric) -> Option<LayoutError> {
        let question = SpaceProbe { job, cluster, running: None };
        let (space, nearest) = question.nearest(self)?;
        let batch = question.batches(&space, &nearest).map(|values| format!("--global-batch {values}"));
        let devices = question.clusters(&space).map(|values| format!("--devices {values}"));
        let cures: Vec<String> =
            batch.into_iter().chain(devices).chain(["other degrees in the study's [plan]".to_owned()]).collect();
        Some(LayoutError { cure: advice(&cures), ..nearest.rule })
    }

    /// For every requested value, a space that requests only this value, with the schedules of `space`.
    fn values_alone(&self, space: &Self, job: &Job<'_>) -> Vec<Self> {
        let mut spaces = Vec::new();
        let mut asked = self.clone();
        for (key, Degree { list, .. }) in degrees() {
            for value in list(&mut asked).iter().flatten() {
                let mut alone = Self::open(job);
                *list(&mut alone) = Some(vec![*value]);
                // If each expert is narrower than a tensor-parallel group, experts spread over more than the
                // data-parallel ranks.
                if key == "ep" {
                    alone.expert_tensor.clone_from(&self.expert_tensor);
                }
                // ZB-V and GPipe allow other numbers of chunks, but they are a cure only if they were requested. The
                // same holds for other stages and other splits.
                if key == "virtual_stages" {
                    alone.schedules.clone_from(&space.schedules);
                    alone.pipeline.clone_from(&self.pipeline);
                    alone.splits.clone_from(&self.splits);
                }
                spaces.push(alone);
            }
        }
        if let Some(Splits::Listed(list)) = &self.splits {
            // A split does not name its number of stages, so the requested ones are used.
            let alone = |ends| Self {
                splits: Some(Splits::Listed(vec![ends])),
                pipeline: self.pipeline.clone(),
                virtual_stages: self.virtual_stages.clone(),
                ..Self::open(job)
            };
            spaces.extend(list.iter().map(|ends| alone(*ends)));
        }
        spaces
            .extend(self.micro_batch.iter().flatten().map(|b| Self { micro_batch: Some(vec![*b]), ..Self::open(job) }));
        spaces
    }

    /// The requested schedules that no plan of the space runs, and why. 1F1B is left out, because plans of one stage
    /// run it, whatever is requested.
    fn idle_of(&self, question: &SpaceProbe<'_>) -> Vec<(&'static str, LayoutError)> {
        let asked =
            self.schedules.iter().flatten().filter(|schedule| **schedule != PipelineSchedule::OneForwardOneBackward);
        let idle = asked.copied().filter_map(|schedule| {
            let context = self.context.clone().or(Self::open(question.job).context);
            let alone = Self { schedules: Some(vec![schedule]), context, ..self.clone() };
            let rule = SpaceProbe { running: Some(schedule), ..*question }.emptiness(&alone)?;
            Some((schedule.word(), rule))
        });
        idle.collect()
    }

    /// The space with every value of the decisions on which the existence of plans depends.
    fn open(job: &Job<'_>) -> Self {
        Self {
            context: Self::every_degree(job).context,
            orders: Some(vec![RankOrder::DataFirst]),
            schedules: Some(SCHEDULES.map(|(.., schedule)| schedule).to_vec()),
            ..Self::default()
        }
    }
}

/// Checks if a space has plans for a job, and explains why not.
#[derive(Clone, Copy)]
struct SpaceProbe<'a> {
    job: &'a Job<'a>,
    /// The job's fabric with all devices that it can join.
    cluster: &'a Fabric,
    /// If set, only plans with this schedule count.
    running: Option<PipelineSchedule>,
}

impl SpaceProbe<'_> {
    /// The plans of a space that count.
    fn families(&self, space: &PlanSpace) -> Vec<DegreeClass> {
        space.enumerate(self.job, &mut Refusals::ignored(self.running))
    }

    /// Explains why a space has no plans; `None` if it has some.
    fn emptiness(&self, space: &PlanSpace) -> Option<LayoutError> {
        let (space, nearest) = self.nearest(space)?;
        Some(LayoutError { cure: self.cures(&space, &nearest), ..nearest.rule })
    }

    /// For a space without plans: the space of the values that rule them out, and the rule that the nearest plan
    /// breaks. `None` if there are plans.
    fn nearest(&self, space: &PlanSpace) -> Option<(PlanSpace, BrokenRule)> {
        let orders = space.orders.clone().or_else(|| Some(vec![RankOrder::DataFirst]));
        let mut space = PlanSpace { zero: Some(space.one_zero()), orders, ..space.clone() };
        if let Some(Splits::NearOf(usual)) = &mut space.splits {
            usual.zero.clone_from(&space.zero);
        }
        let mut refusals = Refusals::noted(self.running);
        let found = space.enumerate(self.job, &mut refusals);
        Some((space, refusals.nearest.filter(|_| found.is_empty())?))
    }

    /// Explains why no plan at all uses the job's devices for its batch. `None` if some plan does. If none does, no
    /// other decision is to blame.
    fn cluster_fault(&self) -> Option<LayoutError> {
        let open = PlanSpace::open(self.job);
        let question = Self { running: None, ..*self };
        let (open, nearest) = question.nearest(&open)?;
        let (l, rule) = (&nearest.layout, &nearest.rule);
        let limit = format!(
            "tp x cp x pp x dp of a plan; the nearest product, {} x {} x {} x {}, breaks a rule: {} = {} must be {}",
            l.tensor, l.context, l.pipeline, l.data, rule.key, rule.value, rule.limit
        );
        let devices = question.clusters(&open).map(|values| format!("{values} devices"));
        let batch = question.batches(&open, &nearest).map(|values| format!("global_batch = {values}"));
        let cures: Vec<String> = devices.into_iter().chain(batch).collect();
        Some(broken("devices", self.job.devices, limit, advice(&cures)))
    }

    /// The nearest values with which there are plans, one decision at a time, as a sentence. The rule's own decision
    /// comes first.
    fn cures(&self, space: &PlanSpace, nearest: &BrokenRule) -> String {
        let mut cures = self.degrees(space, nearest);
        if let Some(values) = &space.micro_batch {
            let relaxed = PlanSpace { micro_batch: None, ..space.clone() };
            let found = self.families(&relaxed).iter().flat_map(|f| f.lots.iter().map(|lot| lot.micro_batch)).collect();
            let at = values.first().copied().unwrap_or(1);
            cures.extend(near(at, &found).map(|values| ("micro_batch", format!("micro_batch = {values}"))));
        }
        let in_order = PlanSpace { orders: None, ..space.clone() };
        if space.orders.is_some() && !self.families(&in_order).is_empty() {
            cures.push(("order", "another order of ranks".to_owned()));
        }
        cures.extend(self.schedules(space).map(|names| ("schedule", format!("the schedule {names}"))));
        let best = PlanSpace { splits: None, ..space.clone() };
        if matches!(space.splits, Some(Splits::Listed(_))) && !self.families(&best).is_empty() {
            let own = nearest.rule.cure.strip_prefix("use ").filter(|_| nearest.rule.key == SPLIT);
            cures.extend(own.map(|values| (SPLIT, values.to_owned())));
            cures.push((SPLIT, "the best split of the layers".to_owned()));
        }
        cures.extend(self.batches(space, nearest).map(|values| ("global_batch", format!("global_batch = {values}"))));
        if cures.is_empty() {
            cures.extend(self.clusters(space).map(|values| ("devices", format!("{values} devices"))));
        }
        cures.sort_by_key(|(key, _)| *key != nearest.rule.key);
        cures.truncate(MOST_CURES);
        advice(&cures.into_iter().map(|(_, cure)| cure).collect::<Vec<_>>())
    }

    /// The nearest values of the requested degrees, one degree at a time.
    fn degrees(&self, space: &PlanSpace, nearest: &BrokenRule) -> Vec<(&'static str, String)> {
        let mut cures = Vec::new();
        let mut asked = space.clone();
        for (key, Degree { list, value }) in degrees() {
            let Some(values) = list(&mut asked).clone() else { continue };
            let mut relaxed = space.clone();
            *list(&mut relaxed) = list(&mut PlanSpace::every_degree(self.job)).clone();
            let now = value(&nearest.layout);
            let at = if values.contains(&now) { now } else { values.first().copied().unwrap_or(now) };
            let found = layouts(&self.families(&relaxed)).map(|l| u64::from(value(l))).collect();
            cures.extend(near(at.into(), &found).map(|values| (key, format!("{key} = {values}"))));
        }
        cures
    }

    /// The schedules with plans, for example `gpipe or zb-h1`. `None` if no schedules were requested, or none has
    /// plans.
    fn schedules(&self, space: &PlanSpace) -> Option<String> {
        space.schedules.as_ref()?;
        let relaxed = PlanSpace { schedules: PlanSpace::open(self.job).schedules, ..space.clone() };
        let families = relaxed.families(self.job);
        let runs = |schedule: &PipelineSchedule| {
            let divisions =
                families.iter().flat_map(|f| f.lots.iter().flat_map(|lot| &lot.pairs).map(|(d, _)| &f.divisions[*d]));
            divisions.into_iter().any(|d| d.schedules.contains(schedule))
        };
        let names: Vec<&str> =
            SCHEDULES.iter().filter(|(.., schedule)| runs(schedule)).map(|(name, ..)| *name).collect();
        (!names.is_empty()).then(|| names.join(" or "))
    }

    /// The nearest batches with which there are plans.
    fn batches(&self, space: &PlanSpace, nearest: &BrokenRule) -> Option<String> {
        let (l, now) = (&nearest.layout, self.job.global_batch);
        let copies = u64::from(l.data);
        let steps = [copies, copies * nearest.micro_batch, copies * nearest.micro_batch * u64::from(l.pipeline)];
        // If a copy of the model needs more devices than there are, no batch helps.
        let around =
            steps.into_iter().filter(|step| *step > 0).flat_map(|step| [now / step * step, (now / step + 1) * step]);
        let has_plans = |batch: &u64| {
            let job = Job { global_batch: *batch, ..*self.job };
            *batch > 0 && !SpaceProbe { job: &job, ..*self }.families(space).is_empty()
        };
        near(now, &around.collect::<BTreeSet<u64>>().into_iter().filter(has_plans).collect())
    }

    /// The nearest numbers of devices that the cluster joins and with which there are plans.
    fn clusters(&self, space: &PlanSpace) -> Option<String> {
        let job = self.job;
        let has_plans = |devices: &u64| {
            u32::try_from(*devices).is_ok_and(|devices| {
                let job = Job { devices, ..*job };
                self.cluster.for_devices(devices).is_ok()
                    && !SpaceProbe { job: &job, ..*self }.families(space).is_empty()
            })
        };
        let (now, products) = (u64::from(job.devices), products(space, job));
        let below = products.range(..now).rev().take(TRIED).find(|n| has_plans(n));
        let above = products.range(now + 1..).take(TRIED).find(|n| has_plans(n));
        near(now, &below.into_iter().chain(above).copied().collect())
    }
}

/// The products of degrees that each obey their own rule, up to four times the job's devices. The products of all plans
/// are among them.
fn products(space: &PlanSpace, job: &Job<'_>) -> BTreeSet<u64> {
    let most = u64::from(job.devices).saturating_mul(4);
    let wide = |list: Vec<u32>| list.into_iter().map(u64::from).collect::<Vec<u64>>();
    let most_stages = u32::try_from(job.model.layers + 2).unwrap_or(u32::MAX);
    let factors = [
        wide(space.tensor.clone().unwrap_or_else(|| tensor_parallel_degrees(job.model, u32::MAX))),
        wide(space.context.clone().unwrap_or_else(|| vec![1])),
        wide(space.pipeline.clone().unwrap_or_else(|| (1..=most_stages).collect())),
        space.data.clone().map_or_else(|| divisors(job.global_batch), wide),
    ];
    factors.iter().fold(BTreeSet::from([1]), |products, factors| {
        let by_factor = |product: u64| factors.iter().map(move |factor| product.saturating_mul(*factor));
        products.into_iter().flat_map(by_factor).filter(|product| *product <= most).collect()
    })
}

/// The layouts that families have plans of.
fn layouts(families: &[DegreeClass]) -> impl Iterator<Item = &Layout> {
    let pairs =
        families.iter().flat_map(|f| f.lots.iter().flat_map(move |lot| lot.pairs.iter().map(move |(at, _)| (f, *at))));
    pairs.map(|(family, at)| &family.divisions[at].layout)
}

/// The nearest values below and above `at`, for example `4 or 12`. `None` if there are none.
fn near(at: u64, values: &BTreeSet<u64>) -> Option<String> {
    let around = [values.range(..at).next_back(), values.range(at + 1..).next()];
    let around: Vec<String> = around.into_iter().flatten().map(u64::to_string).collect();
    (!around.is_empty()).then(|| around.join(" or "))
}

fn advice(cures: &[String]) -> String {
    if cures.is_empty() { "restrict fewer decisions".to_owned() } else { format!("use {}", cures.join(", or ")) }
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
