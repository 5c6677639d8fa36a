//! Plans that fit, ranked, and the answer of a search over them.

use sim::units::{Bytes, Joules, Seconds};
use step::{OverCapacity, StageMemory, StepError, StepMemory, StepTime, TrainingPlan};
use workloads::{Layout, RankOrder, StagePolicies};

/// A plan that fits, with its time, memory and energy.
#[derive(Debug, Clone, PartialEq)]
pub struct RankedPlan {
    /// The plan.
    pub plan: TrainingPlan,
    /// Its step.
    pub time: StepTime,
    /// Its memory.
    pub memory: StepMemory,
    /// The energy of a step, summed over all devices.
    pub energy: Joules,
    /// The number of similar plans that the search found and does not list. They have the same degrees, micro-batch,
    /// ZeRO stage and schedule, and the same kind of recomputation. Time and memory agree within [`ALIKE_TIME`] and
    /// [`ALIKE_MEMORY`].
    pub alike: usize,
}

/// Largest relative difference between the step times of similar plans.
pub const ALIKE_TIME: f64 = 1e-3;

/// Largest relative difference between the memory peaks of similar plans. An allocator's rounding and fragmentation are
/// as large: a few tenths of a GiB.
pub const ALIKE_MEMORY: f64 = 0.02;

impl RankedPlan {
    /// True if two plans are similar: they have about the same memory and time, and differ at most in splits of the
    /// layers, order of ranks, tensors kept or offloaded, and the number of chunks per stage above one.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let same = |plan: &TrainingPlan| TrainingPlan {
            layout: Layout {
                virtual_stages: plan.layout.virtual_stages.min(2),
                ends: None,
                order: RankOrder::DataFirst,
                ..plan.layout
            },
            activations: StagePolicies::default(),
            ..plan.clone()
        };
        let kind = |plan: &TrainingPlan| plan.activations.uniform_policy().map(std::mem::discriminant);
        let close = |a: f64, b: f64, share: f64| (a - b).abs() <= share * a.max(b);
        let [peak, host] =
            [0, 1].map(|memory| [self, other].map(|ranked| ranked.peak_memory()[memory].map_or(0.0, Bytes::as_f64)));
        close(self.time.total.0, other.time.total.0, ALIKE_TIME)
            && close(peak[0], peak[1], ALIKE_MEMORY)
            && close(host[0], host[1], ALIKE_MEMORY)
            && kind(&self.plan) == kind(&other.plan)
            && same(&self.plan) == same(&other.plan)
    }

    /// True if their times are equal except for rounding: sums of the same parts in another order.
    fn is_as_fast(&self, other: &Self) -> bool {
        let [a, b] = [self, other].map(|ranked| ranked.time.total.0);
        (a - b).abs() <= 1e-12 * a
    }

    /// The peak memory of the fullest device, and the most host memory of a stage. `None` without stages.
    fn peak_memory(&self) -> [Option<Bytes>; 2] {
        let most = |of: fn(&StageMemory) -> Bytes| self.memory.stages.iter().map(of).max();
        [most(StageMemory::bytes_needed), most(|stage| stage.host)]
    }
}

/// Keeps the fastest plan of each set of similar ones and counts the others in [`RankedPlan::alike`]. `plans` are
/// sorted by time. On ties, fewer chunks win, then the usual order of ranks.
pub(crate) fn keep_one_of_alike(plans: Vec<RankedPlan>) -> Vec<RankedPlan> {
    let mut kept: Vec<RankedPlan> = Vec::with_capacity(plans.len());
    let choice = |ranked: &RankedPlan| (ranked.plan.layout.virtual_stages, ranked.plan.layout.order as u8);
    for plan in plans {
        match kept.iter_mut().find(|other| other.is_like(&plan)) {
            Some(other) => {
                let alike = other.alike + plan.alike + 1;
                if other.is_as_fast(&plan) && choice(&plan) < choice(other) {
                    *other = plan;
                }
                other.alike = alike;
            }
            None => kept.push(plan),
        }
    }
    kept
}

/// The answer of a search over plans.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanAnswer {
    /// The fastest plans that fit, fastest first, one of each set of similar plans ([`RankedPlan::alike`]). If the
    /// stack's framework cannot run the fastest ([`step::SoftwareStack::why_not_runnable`]), the fastest that it can
    /// run is included too. If it discourages plans ([`step::SoftwareStack::why_discouraged`]), the list has the
    /// others, and last the fastest discouraged plan if that is faster than the first ([`Job::count_documented`]).
    ///
    /// [`Job::count_documented`]: crate::planner::Job::count_documented
    pub best: Vec<RankedPlan>,
    /// Plans in the space.
    pub plans: usize,
    /// Timed plans: in closed form if that is exact, otherwise event by event.
    pub timed: usize,
    /// Plans simulated event by event, among those timed.
    pub simulated: usize,
    /// Plans too large for the devices' memory or for their hosts' share. Under [`crate::ask::Splits::NearOf`], only
    /// plans that the bound over all schedules leaves are counted.
    pub over_capacity: usize,
    /// Plans that a bound prunes: they are no better than the last plan of the list. These plans fit, except that the
    /// bound over all schedules prunes plans before their memory is checked.
    pub rejected_by_bound: usize,
    /// Plans refused by the model, the fabric or the schedule.
    pub refused: usize,
    /// Plans that a stopped search did not reach, or only bounded.
    pub not_reached: usize,
    /// If the search was stopped: lower bound on the time of any plan of the space, found or not.
    pub stopped: Option<Seconds>,
    /// The first reason of a refusal.
    pub refusal: Option<StepError>,
    /// Number of uneven splits of the layers. Plans are counted above under the even split only.
    pub splits: u64,
    /// Uneven splits that were evaluated one by one. All others are no better than the last plan of the list, by a
    /// bound over all splits of a plan or by a bound of their own.
    pub splits_tried: u64,
    /// Largest fraction by which an untried split can be faster than the first plan; `None` if the splits were given.
    pub split_tolerance: Option<f64>,
    /// Statistics of plans with policies by stage; `None` if all layers of every plan follow one policy.
    pub mixed: Option<MixStatistics>,
    /// The plan with the smallest shortfall, among those that do not fit.
    pub nearest: Option<(TrainingPlan, OverCapacity)>,
    /// Bytes of device memory with which the nearest plan would fit; `None` if host memory or storage is short too.
    pub enough: Option<Bytes>,
}

impl PlanAnswer {
    /// Adds the counts of another search, over other plans of the same space.
    pub(crate) fn add_counts(&mut self, other: &Self) {
        self.plans += other.plans;
        self.timed += other.timed;
        self.simulated += other.simulated;
        self.over_capacity += other.over_capacity;
        self.rejected_by_bound += other.rejected_by_bound;
        self.refused += other.refused;
        self.not_reached += other.not_reached;
        self.splits += other.splits;
        self.splits_tried += other.splits_tried;
        if self.refusal.is_none() {
            self.refusal.clone_from(&other.refusal);
        }
        if let (Some(own), Some(other)) = (&mut self.mixed, other.mixed) {
            *own = MixStatistics { tried: own.tried + other.tried, gap: own.gap.max(other.gap) };
        }
    }
}

/// Statistics of the search over mixes of policies.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MixStatistics {
    /// Layouts, splits and schedules whose stages were mixed. All others are slower than the fastest plan even if they
    /// keep everything, or do not fit even if they rerun everything.
    pub tried: usize,
    /// The largest possible gain of a better mix of the same policies, as a fraction of a stage's passes; 0 if all are
    /// proven.
    pub gap: f64,
}
