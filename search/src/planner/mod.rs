//! The best training plan for hardware that stands already: what a training engineer asks.
//!
//! Every plan of a [`PlanSpace`] is bounded from below by its devices' own work ([`step_lower_bound`]); plans are then tried in the order of their bounds,
//! first for memory, then for time, until no bound is below the last plan of the list asked for. So the list is the true one of
//! the space under this model, whatever was not tried. Plans are tried in rounds of a fixed size: the answer does not depend on the number of threads.

mod neighbours;
mod space;
#[cfg(test)]
mod tests;

pub use neighbours::{Neighbour, Outcome, neighbours};
pub use space::PlanSpace;

use crate::step::{
    ChipTimes, OverCapacity, SoftwareStack, StepError, StepMemory, StepProfile, StepTime, TrainingPlan, lowering,
    step_lower_bound, step_memory_of, step_time_of, with_fullest_experts,
};
use rayon::prelude::*;
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::pipeline::Schedule;
use sim::units::Seconds;
use std::collections::BTreeMap;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, Layout, Lowering, Model, TrainingGraph};

/// Plans tried between two looks at the list.
const ROUND: usize = 256;

/// What is to be trained, on what, under which software; the plan is left open.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The model.
    pub model: &'a Model,
    /// Every device.
    pub chip: &'a Accelerator,
    /// The network, cut to the devices.
    pub fabric: &'a Fabric,
    /// The software.
    pub stack: &'a SoftwareStack,
    /// Devices, all of them used.
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
}

/// A plan that fits, with what it takes.
#[derive(Debug, Clone, PartialEq)]
pub struct RankedPlan {
    /// The plan.
    pub plan: TrainingPlan,
    /// Its step.
    pub time: StepTime,
    /// Its memory.
    pub memory: StepMemory,
}

/// The answer of a search over plans.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanAnswer {
    /// The fastest plans that fit, fastest first.
    pub best: Vec<RankedPlan>,
    /// Plans in the space.
    pub plans: usize,
    /// Of these, timed.
    pub timed: usize,
    /// Found too large for the devices' memory.
    pub over_capacity: usize,
    /// Not tried: no faster than the last of the list by their bound.
    pub rejected_by_bound: usize,
    /// Refused by the model, the fabric or the schedule, with the first reason.
    pub refused: usize,
    /// That reason.
    pub refusal: Option<StepError>,
    /// Of the plans that do not fit, the one that lacks least.
    pub nearest: Option<(TrainingPlan, OverCapacity)>,
}

impl<'a> Job<'a> {
    /// A plan of this job.
    #[must_use]
    pub fn plan(&self, layout: Layout, batch: Batch, activations: ActivationPolicy, schedule: Schedule) -> TrainingPlan {
        TrainingPlan {
            layout,
            batch,
            activations,
            attention: self.attention,
            precision: self.precision,
            optimizer: self.optimizer,
            schedule,
        }
    }

    /// Data-parallel ranks among which ZeRO shares, where the stack shares inside fast domains only.
    fn domain(&self, plan: &TrainingPlan) -> Option<u32> {
        let inside = (self.fabric.fast_domain() / plan.layout.data_stride().max(1)).max(1);
        self.stack.kernels.shard_within_domain.then_some(inside)
    }

    fn key(&self, plan: &TrainingPlan) -> Key {
        (lowering(self.model, plan, self.stack), plan.activations.clone())
    }

    /// Lowers and profiles the model for the plan of a key.
    fn shape(&self, chip: &mut ChipTimes, plan: &TrainingPlan) -> Result<Shape, StepError> {
        let graph = TrainingGraph::new(self.model, &lowering(self.model, plan, self.stack))?;
        let profile = chip.profile_of(self.model, &graph, self.fabric, plan)?;
        if self.model.experts.is_none() {
            return Ok(Shape { graph, profile });
        }
        let fullest = with_fullest_experts(self.model, plan, self.stack);
        Ok(Shape { graph: TrainingGraph::new(&fullest, &lowering(&fullest, plan, self.stack))?, profile })
    }

    /// Tries one plan.
    fn attempt(&self, chip: &mut ChipTimes, shape: &Shape, plan: &TrainingPlan) -> Result<Attempt, StepError> {
        let memory = step_memory_of(self.model, &shape.graph, plan, self.stack, self.chip.memory_capacity(), self.domain(plan))?;
        if let Err(why) = memory.fits() {
            return Ok(Attempt::OverCapacity(why));
        }
        let time = step_time_of(chip, self.model, self.fabric, plan, &shape.profile)?;
        Ok(Attempt::Fits(Box::new(RankedPlan { plan: plan.clone(), time, memory })))
    }
}

/// What plans share that are lowered alike.
type Key = (Lowering, ActivationPolicy);

/// A model lowered and profiled for a key.
#[derive(Debug)]
struct Shape {
    /// As the device with the fullest experts holds it.
    graph: TrainingGraph,
    profile: StepProfile,
}

/// What came of trying a plan.
enum Attempt {
    Fits(Box<RankedPlan>),
    OverCapacity(OverCapacity),
}

/// The `top` fastest plans of `space` for a job.
///
/// # Errors
/// A chip that the cost model cannot use.
pub fn search_plans(job: &Job<'_>, space: &PlanSpace, top: usize) -> Result<PlanAnswer, StepError> {
    let chip = ChipTimes::new(job.chip, job.stack)?;
    let plans = space.plans(job);
    let mut answer = PlanAnswer {
        best: Vec::new(),
        plans: plans.len(),
        timed: 0,
        over_capacity: 0,
        rejected_by_bound: 0,
        refused: 0,
        refusal: None,
        nearest: None,
    };
    let keys: Vec<Key> = plans.iter().map(|plan| job.key(plan)).collect();
    let mut first: BTreeMap<&Key, &TrainingPlan> = BTreeMap::new();
    for (key, plan) in keys.iter().zip(&plans) {
        first.entry(key).or_insert(plan);
    }
    let made: Vec<(&Key, Result<Shape, StepError>)> =
        first.into_par_iter().map_init(|| chip.clone(), |chip, (key, plan)| (key, job.shape(chip, plan))).collect();
    let shapes: BTreeMap<&Key, Result<Shape, StepError>> = made.into_iter().collect();

    let mut queue: Vec<(f64, usize)> = Vec::new();
    for (i, plan) in plans.iter().enumerate() {
        let bound = match shapes.get(&keys[i]) {
            Some(Ok(shape)) => step_lower_bound(job.model, plan, &shape.profile),
            Some(Err(error)) => Err(error.clone()),
            None => continue,
        };
        match bound {
            Ok(bound) => queue.push((bound.0, i)),
            Err(error) => answer.refuse(error),
        }
    }
    queue.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut at = 0;
    while at < queue.len() {
        let worst = if answer.best.len() >= top { answer.best.last().map(|b| b.time.total) } else { None };
        let end = queue.len().min(at + ROUND);
        let round = &queue[at..end];
        let round = match worst {
            Some(Seconds(worst)) => &round[..round.partition_point(|(bound, _)| *bound < worst)],
            None => round,
        };
        if round.is_empty() {
            break;
        }
        let attempts: Vec<_> = round
            .par_iter()
            .map_init(
                || chip.clone(),
                |chip, (_, i)| match shapes.get(&keys[*i]) {
                    Some(Ok(shape)) => job.attempt(chip, shape, &plans[*i]),
                    Some(Err(error)) => Err(error.clone()),
                    None => Err(StepError::Hardware("a plan without a profile".to_owned())),
                },
            )
            .collect();
        for ((_, i), attempt) in round.iter().zip(attempts) {
            answer.take(&plans[*i], attempt, top);
        }
        at += round.len();
    }
    answer.rejected_by_bound = queue.len() - at;
    Ok(answer)
}

impl PlanAnswer {
    fn refuse(&mut self, error: StepError) {
        self.refused += 1;
        self.refusal.get_or_insert(error);
    }

    fn take(&mut self, plan: &TrainingPlan, attempt: Result<Attempt, StepError>, top: usize) {
        match attempt {
            Ok(Attempt::Fits(ranked)) => {
                self.timed += 1;
                let place = self.best.partition_point(|b| b.time.total <= ranked.time.total);
                self.best.insert(place, *ranked);
                self.best.truncate(top);
            }
            Ok(Attempt::OverCapacity(why)) => {
                self.over_capacity += 1;
                if self.nearest.as_ref().is_none_or(|(_, n)| lacking(&why) < lacking(n)) {
                    self.nearest = Some((plan.clone(), why));
                }
            }
            Err(error) => self.refuse(error),
        }
    }
}

fn lacking(why: &OverCapacity) -> u64 {
    why.need.0.saturating_sub(why.have.0)
}
