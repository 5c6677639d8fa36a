//! Finds the best training plan for given hardware.
//!
//! Every plan of a [`PlanSpace`] is evaluated in closed form ([`step::Evaluator`]): the need of the fullest device, and
//! the step's time. If only the event simulation gives the time (zero-bubble schedules, end chunks lighter than the
//! inner ones), the closed form is a lower bound. Such plans that fit are simulated in the order of their bounds, until
//! no bound is below the last plan of the requested list. So the list is exact for the space under this model. Nothing
//! depends on the number of threads.
//!
//! A plan of the space leaves open how its layers are split into stages. It is counted and evaluated under the even
//! split. Then `splits` tries splits near the even one for every plan that may enter the list, and looks for any other
//! split that makes a plan much faster than the first. With [`Splits::Best`], every plan of the list gets its best
//! split instead.
//!
//! A space that is too large for this ([`Splits::NearOf`]) contains a small space that is searched first. The times of
//! its list prune most other plans by a bound on their work, before anything else of them is evaluated.

mod bounds;
mod chips;
mod mapped;
mod mixes;
mod neighbours;
mod search;
mod space;
mod splits;
#[cfg(test)]
mod tests;

pub use chips::fastest::FastestPlan;
pub use chips::on_chip::{ChipKernels, GroupBounds};
pub use chips::prepared::PreparedJob;
pub use mapped::{MapRanks, PlanMappingError, map_plans};
pub use mixes::mixed::MixStatistics;
pub use neighbours::{Neighbour, NeighbourOutcome, neighbours};
pub use search::core::{search_plans, search_plans_watched};
pub use search::watch::{PlanPart, PlanProgress, PlanWatch};
pub use space::plan_space::{PlanSpace, SPLIT_TOLERANCE, Splits};
pub use space::policies::default_policies;
pub(crate) use space::walk::SCHEDULES;
pub use space::walk::{schedule_name, schedule_of};

use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::pipeline::{PipelineSchedule, Timeline};
use sim::units::{Bytes, Joules, Seconds};
use step::{
    ChipTimes, DeviceMemory, OverCapacity, SoftwareStack, StageMemory, StepError, StepMemory, StepProfile, StepTime,
    TrainingPlan, lower_plan, sharing_domain, step_energy_of, step_memory_of, step_time_of, step_timeline, usable_hbm,
    with_fullest_experts,
};
use workloads::footprint::{BytesPerParameter, Optimizer, Precision};
use workloads::memory::{TechniqueError, TrainingQuantities};
use workloads::training::{Attention, Lowering};
use workloads::{ActivationPolicy, Batch, ChunkSplit, Layout, Model, RankOrder, StagePolicies, Techniques, TrainingGraph};

/// What is trained, on which hardware, under which software; the plan is left open.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The model.
    pub model: &'a Model,
    /// The chip of every device.
    pub chip: &'a Accelerator,
    /// The network, cut to the devices.
    pub fabric: &'a Fabric,
    /// The software.
    pub stack: &'a SoftwareStack,
    /// Number of devices; all are used.
    pub devices: u32,
    /// Sequences per step.
    pub global_batch: u64,
    /// Tokens per sequence.
    pub sequence_length: u64,
    /// How attention is computed.
    pub attention: Attention,
    /// Number formats.
    pub precision: Precision,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Bytes of every device's memory that plans leave free.
    pub headroom: Bytes,
    /// Memory techniques of every plan.
    pub techniques: &'a Techniques,
}

impl Job<'_> {
    /// The assumptions about the model, and about a network that is sold with other chips.
    #[must_use]
    pub fn assumptions(&self) -> Vec<String> {
        let (fabric, chip) = (self.fabric, self.chip);
        let foreign = sim::is_foreign_network(fabric, chip).then(|| {
            let joins = fabric.joins.join(", ");
            format!("{} is a network of {joins}, not of {}: its links are taken as they are", fabric.name, chip.name)
        });
        self.model.assumptions.iter().cloned().chain(foreign).collect()
    }
}

/// A plan that fits, with its time, memory and energy.
#[derive(Debug, Clone, PartialEq)]
pub struct RankedPlan {
    /// The plan.
    pub plan: TrainingPlan,
    /// Its step.
    pub time: StepTime,
    /// Its memory.
    pub memory: StepMemory,
    /// The energy of a step over all devices.
    pub energy: Joules,
    /// The number of similar plans that the search found and does not list. They have the same degrees, micro-batch,
    /// ZeRO stage and schedule, and the same kind of recomputation. Time and memory agree within [`ALIKE_TIME`] and
    /// [`ALIKE_MEMORY`].
    pub alike: usize,
}

/// Largest relative difference of the times of similar plans: within four digits.
pub const ALIKE_TIME: f64 = 1e-3;

/// Largest relative difference of their memory peaks: a few tenths of a GiB, which an allocator rounds and fragments
/// anyhow.
pub const ALIKE_MEMORY: f64 = 0.02;

impl RankedPlan {
    /// Whether two plans are similar: they differ at most in chunks per stage, splits of the layers, order of ranks,
    /// and tensors kept or offloaded, with about the same memory and time.
    fn is_like(&self, other: &Self) -> bool {
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

    /// Whether their times are equal except for rounding: sums of the same parts in another order.
    fn is_as_fast(&self, other: &Self) -> bool {
        let [a, b] = [self, other].map(|ranked| ranked.time.total.0);
        (a - b).abs() <= 1e-12 * a
    }

    /// The peak of the fullest device, and of its host.
    fn peak_memory(&self) -> [Option<Bytes>; 2] {
        let most = |of: fn(&StageMemory) -> Bytes| self.memory.stages.iter().map(of).max();
        [most(StageMemory::bytes_needed), most(|stage| stage.host)]
    }
}

/// Keeps one of similar plans: the fastest, with the number of the others. `plans` are sorted by time. Fewest chunks
/// break ties, then the usual order of ranks.
fn keep_one_of_alike(plans: Vec<RankedPlan>) -> Vec<RankedPlan> {
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
    /// stack's framework cannot run the fastest ([`SoftwareStack::why_not_runnable`]), the fastest that it can run is
    /// included too.
    pub best: Vec<RankedPlan>,
    /// Plans in the space.
    pub plans: usize,
    /// Timed plans: in closed form if that is exact, otherwise event by event.
    pub timed: usize,
    /// Plans played event by event, among those timed.
    pub simulated: usize,
    /// Plans too large for the devices' memory or for their hosts' share. Under [`Splits::NearOf`], counted only among
    /// plans that the bound over all schedules leaves.
    pub over_capacity: usize,
    /// Plans whose bound is no better than the last plan of the list. They fit, except those that the bound over all
    /// schedules rejects before.
    pub rejected_by_bound: usize,
    /// Plans refused by the model, the fabric or the schedule.
    pub refused: usize,
    /// Plans that a stopped search did not reach, or only bounded.
    pub not_reached: usize,
    /// If the search was stopped: lower bound on the time of any plan of the space, found or not.
    pub stopped: Option<Seconds>,
    /// The first reason of a refusal.
    pub refusal: Option<StepError>,
    /// Other splits of the layers than the even one, under which plans are counted above.
    pub splits: u64,
    /// Other splits that were evaluated one by one. All others are no better than the last plan of the list, by a bound
    /// over all splits of a plan or by their own.
    pub splits_tried: u64,
    /// How much faster than the first plan another split can be at most, as a fraction, for plans that have other
    /// splits; `None` if the splits were given.
    pub split_tolerance: Option<f64>,
    /// How plans with policies by stage were decided; `None` if all layers of a plan follow one policy.
    pub mixed: Option<MixStatistics>,
    /// The plan with the smallest shortfall, among those that do not fit.
    pub nearest: Option<(TrainingPlan, OverCapacity)>,
    /// Bytes of a device's memory with which that plan would fit; `None` if host memory or storage is short too.
    pub enough: Option<Bytes>,
}

impl<'a> Job<'a> {
    /// A plan of this job.
    #[must_use]
    pub fn make_plan(
        &self,
        layout: Layout,
        batch: Batch,
        activations: impl Into<StagePolicies>,
        schedule: PipelineSchedule,
    ) -> TrainingPlan {
        TrainingPlan {
            layout,
            batch,
            activations: activations.into(),
            attention: self.attention,
            precision: self.precision,
            optimizer: self.optimizer,
            schedule,
            techniques: self.techniques.clone(),
        }
    }

    /// Whether the job's techniques allow this many micro-batches per step.
    fn may_accumulate(&self, micro_batches: u64) -> bool {
        micro_batches <= 1 || self.accumulation_refusal(micro_batches).is_none()
    }

    /// Why the job's techniques do not allow this many micro-batches per step; `None` if they do.
    fn accumulation_refusal(&self, micro_batches: u64) -> Option<TechniqueError> {
        if self.techniques.is_empty() {
            return None;
        }
        let lowering = Lowering { sequence_length: self.sequence_length, ..Lowering::new(self.model) };
        self.techniques.check_together(&TrainingQuantities::new(self.model, &lowering), micro_batches).err()
    }

    /// The memory that a device has for plans.
    fn device_memory(&self) -> DeviceMemory {
        let memory = DeviceMemory::of_chip(self.chip);
        DeviceMemory { hbm: memory.hbm.saturating_sub(self.headroom), ..memory }
    }

    /// The fraction of the model's training operations that remain under the job's techniques. Gradients of frozen
    /// weights are not computed, and those of sampled or projected tokens cost less. 1 without techniques; operations
    /// that techniques add do not count.
    #[must_use]
    pub fn share_of_training(&self) -> f64 {
        if self.techniques.is_empty() {
            return 1.0;
        }
        let batch = Batch { micro_batch: 1, global_batch: 1, sequence_length: self.sequence_length };
        let plan = self.make_plan(Layout::default(), batch, ActivationPolicy::None, PipelineSchedule::OneForwardOneBackward);
        let flops = |techniques: &Techniques| {
            let graph =
                step::lower_plan(self.model, &TrainingPlan { techniques: techniques.clone(), ..plan.clone() }, self.stack);
            graph.ok().map(|graph| graph.kernel_flops().as_f64())
        };
        // A model that cannot be lowered has no plan that would use the fraction.
        flops(&plan.techniques).zip(flops(Techniques::none())).map_or(1.0, |(done, all)| (done / all).min(1.0))
    }

    /// Whether the framework can run the chunks of a split.
    fn may_hold_split(&self, split: &ChunkSplit) -> bool {
        self.stack.framework.chunks_without_layers || split.first > 0 && split.last > 0 || split.chunks == 1
    }

    /// Why the stack's framework cannot run a plan; `None` if no reason is known.
    #[must_use]
    pub fn framework_refusal(&self, plan: &TrainingPlan) -> Option<String> {
        self.stack.why_not_runnable(plan, self.model.layers)
    }

    /// Lower bound on the devices that hold a plan. Each parameter's weight and optimizer states lie on at least one
    /// device, and its gradient too if the stack never frees gradients. No policy moves them to the host.
    #[must_use]
    pub fn least_devices(&self) -> u64 {
        if !self.techniques.is_empty() {
            return 1; // They may take less, or go away.
        }
        let per = BytesPerParameter::new(self.optimizer, &self.precision);
        let memory = &self.stack.memory;
        let stored = if memory.stored_master && per.master > Bytes::ZERO { Bytes::ZERO } else { per.weight };
        let gradient = if memory.gradients_persist { per.gradient } else { Bytes::ZERO };
        let least = (stored + per.master + per.state + gradient) * self.model.parameters();
        // Every device loses the framework's own memory.
        let framework = Bytes::from_gib(memory.context_gib);
        least.0.div_ceil(usable_hbm(self.stack, self.device_memory().hbm).saturating_sub(framework).0.max(1)).max(1)
    }

    /// Number of data-parallel ranks among which ZeRO shards, if the stack shards only inside fast domains.
    fn sharding_domain(&self, plan: &TrainingPlan) -> Option<u32> {
        sharing_domain(self.stack, self.fabric.fast_domain_devices(), &plan.layout)
    }

    /// Lowers and profiles the model for a plan.
    fn lower_shape(&self, chip: &mut ChipTimes, plan: &TrainingPlan) -> Result<LoweredShape, StepError> {
        let graph = lower_plan(self.model, plan, self.stack)?;
        let profile = chip.profile_lowered(self.model, &graph, self.fabric, plan)?;
        if self.model.experts.is_none() {
            return Ok(LoweredShape { graph, profile });
        }
        let fullest = with_fullest_experts(self.model, plan, self.stack);
        Ok(LoweredShape { graph: lower_plan(&fullest, plan, self.stack)?, profile })
    }

    /// A plan's step, event by event.
    ///
    /// # Errors
    /// A plan that the model, the fabric or the schedule does not allow.
    pub fn plan_timeline(&self, plan: &TrainingPlan) -> Result<Timeline, StepError> {
        let mut chip = ChipTimes::new(self.chip, self.stack)?;
        let shape = self.lower_shape(&mut chip, plan)?;
        step_timeline(&mut chip, self.model, self.fabric, plan, (&shape.profile, &shape.graph), self.sharding_domain(plan))
    }

    /// Evaluates a given plan; `None` if it does not fit.
    ///
    /// # Errors
    /// A plan that the model, the fabric or the schedule does not allow.
    pub fn rank_plan(&self, plan: &TrainingPlan) -> Result<Option<RankedPlan>, StepError> {
        plan.layout.check_model_and_batch(self.model, &plan.batch)?;
        let mut chip = ChipTimes::new(self.chip, self.stack)?;
        let shape = self.lower_shape(&mut chip, plan)?;
        Ok(match self.try_plan(&mut chip, &shape, plan)? {
            PlanAttempt::Fits(ranked) => Some(*ranked),
            PlanAttempt::OverCapacity(..) => None,
        })
    }

    /// Evaluates one plan.
    fn try_plan(&self, chip: &mut ChipTimes, shape: &LoweredShape, plan: &TrainingPlan) -> Result<PlanAttempt, StepError> {
        let memory =
            step_memory_of(self.model, &shape.graph, plan, self.stack, self.device_memory(), self.sharding_domain(plan))?;
        if let Err(why) = memory.check_fits() {
            return Ok(PlanAttempt::OverCapacity(why, Box::new(memory)));
        }
        let time = step_time_of(chip, self.model, self.fabric, plan, &shape.profile)?;
        let energy = step_energy_of(chip, self.model, self.fabric, plan, &shape.profile, time.total)?.total_energy();
        Ok(PlanAttempt::Fits(Box::new(RankedPlan { plan: plan.clone(), time, memory, energy, alike: 0 })))
    }
}

/// A model lowered and profiled for a plan.
#[derive(Debug)]
struct LoweredShape {
    /// As on the device with the fullest experts.
    graph: TrainingGraph,
    profile: StepProfile,
}

/// The outcome of evaluating a plan.
enum PlanAttempt {
    Fits(Box<RankedPlan>),
    OverCapacity(OverCapacity, Box<StepMemory>),
}
