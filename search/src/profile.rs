//! A shape on a chip: its kernels costed, its passes scheduled, its recomputation priced. What the planner needs, in seconds and bytes.

use crate::bench::Bench;
use crate::bound::Times;
use crate::memory::{OperatorSet, RecomputePolicy};
use crate::placement::plan::{ChainProfile, Effort, Segment, SegmentPolicy};
use crate::shape::{KernelIndex, Program, SegmentShape, Shape};
use sim::cost::{CostError, CostModel};
use sim::costed::{Costs, Device, seconds};
use sim::hardware::Accelerator;
use sim::kernel::{Collective, CollectiveKind, Group};
use sim::schedule::{Method, Operator, Problem, ScheduleError};
use sim::units::{Bytes, Joules, Seconds};
use std::sync::Arc;
use thiserror::Error;
use workloads::{RecomputeSet, SegmentKind};

/// Why a shape cannot be profiled on a chip.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// The chip's figures.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// A graph that cannot be scheduled: a chip so slow that its times leave the range of the schedule's ticks.
    #[error("the {pass} pass of {segment} on {chip}: {source}")]
    Schedule {
        /// The chip.
        chip: String,
        /// The segment.
        segment: String,
        /// Forward or backward.
        pass: &'static str,
        /// What is wrong.
        source: ScheduleError,
    },
    /// The planner or the memory optimiser refused the numbers.
    #[error("{chip}: {why}")]
    Numbers {
        /// The chip.
        chip: String,
        /// What was refused.
        why: String,
    },
}

/// A pass of a segment as it is scheduled on a chip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pass {
    /// How long it takes.
    pub time: Seconds,
    /// No schedule takes less.
    pub bound: Seconds,
    /// Energy of its kernels, static power apart.
    pub energy: Joules,
    /// What proved the schedule.
    pub method: Method,
}

/// A way to treat a segment's saved tensors, on a chip.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyProfile {
    /// What is kept and what runs again. Its `extra` is what the backward pass takes longer: as scheduled where `pass` is known, a lower
    /// bound where it is not.
    pub policy: RecomputePolicy,
    /// The backward pass with its recomputation, once it has been scheduled.
    pub pass: Option<Pass>,
}

/// A segment on a chip.
#[derive(Debug, Clone, PartialEq)]
pub struct SegmentProfile {
    /// Its forward pass.
    pub forward: Pass,
    /// Its backward pass with nothing recomputed.
    pub backward: Pass,
    /// What may be recomputed, keeping everything first; empty until [`ChipOnBench::open_policies`].
    pub policies: Vec<PolicyProfile>,
    /// Its optimizer step.
    pub optimizer: Seconds,
    /// Energy of the optimizer step.
    pub optimizer_energy: Joules,
}

/// A shape on a chip: its segments in pipeline order.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The segments.
    pub segments: Vec<SegmentProfile>,
}

impl Profile {
    /// The largest relative gap of the schedules it rests on: 0 when all are proven optimal.
    #[must_use]
    pub fn schedule_gap(&self) -> f64 {
        let gap = |p: &Pass| if p.time.0 > 0.0 { 1.0 - p.bound.0 / p.time.0 } else { 0.0 };
        let passes = |s: &SegmentProfile| {
            let recomputing = s.policies.iter().filter_map(|p| p.pass.as_ref()).map(gap).fold(0.0, f64::max);
            gap(&s.forward).max(gap(&s.backward)).max(recomputing)
        };
        self.segments.iter().map(passes).fold(0.0, f64::max)
    }
}

/// The planner's two views of a profile.
#[derive(Debug, Clone, PartialEq)]
pub struct Chains {
    /// For plans of one stage: a tied head shares the embedding's weights.
    pub whole: ChainProfile,
    /// For plans of several stages: a tied head holds its own copy, whose gradients are summed with the embedding's.
    pub split: ChainProfile,
}

/// A chip on the bench: the costs of kernels found so far.
#[derive(Debug)]
pub struct ChipOnBench<'a> {
    bench: &'a Bench,
    device: Device,
    effort: Effort,
    costs: Vec<Option<Costs>>,
}

impl<'a> ChipOnBench<'a> {
    /// Prepares a chip; `effort` is spent on its schedules.
    ///
    /// # Errors
    /// A figure of the chip that the cost model cannot use.
    pub fn new(bench: &'a Bench, chip: Accelerator, effort: Effort) -> Result<Self, ProfileError> {
        let device = Device { model: CostModel::new(chip)?, fabric: bench.fabric.clone() };
        Ok(Self { bench, device, effort, costs: vec![None; bench.table.kernels().len()] })
    }

    /// The bench.
    #[must_use]
    pub fn bench(&self) -> &'a Bench {
        self.bench
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn cost(&mut self, index: KernelIndex) -> Costs {
        let slot = &mut self.costs[index as usize];
        *slot.get_or_insert_with(|| self.device.costs(&self.bench.table.kernels()[index as usize]))
    }

    /// Costs every kernel of a program: what is to be scheduled.
    fn problem(&mut self, program: &Program, segment: &SegmentShape, pass: &'static str) -> Result<Problem, ProfileError> {
        let kernels = self.bench.table.kernels();
        let operators = program.kernels.iter().map(|&k| {
            let costs = self.cost(k);
            self.device.operator(&kernels[k as usize], &costs)
        });
        let operators: Vec<Operator> = operators.collect();
        Problem::new(self.device.cores(), operators, program.edges.clone()).map_err(|source| ProfileError::Schedule {
            chip: self.device.chip().name.clone(),
            segment: segment.segment.name.clone(),
            pass,
            source,
        })
    }

    /// Costs every kernel of a program and schedules it.
    fn pass(&mut self, program: &Program, segment: &SegmentShape, pass: &'static str) -> Result<Pass, ProfileError> {
        let problem = self.problem(program, segment, pass)?;
        let schedule = self.bench.memo(self.effort).solve(&problem);
        self.bench.schedules.add(schedule.method);
        let costs: Vec<Costs> = program.kernels.iter().map(|&k| self.cost(k)).collect();
        let energy =
            costs.iter().zip(&schedule.exclusive).map(|(c, &all)| if all { c.all_cores.energy } else { c.one_core.energy });
        Ok(Pass {
            time: seconds(schedule.makespan),
            bound: seconds(schedule.lower_bound),
            energy: energy.sum(),
            method: schedule.method,
        })
    }

    /// Schedules the forward and backward passes of a shape; what may be recomputed is left for [`Self::open_policies`].
    ///
    /// # Errors
    /// A chip so slow that its times leave the schedule's range.
    pub fn profile(&mut self, shape: &Shape) -> Result<Profile, ProfileError> {
        let segments = shape.segments.iter().map(|s| self.segment(s)).collect::<Result<Vec<_>, _>>()?;
        Ok(Profile { segments })
    }

    /// The least times of a shape's passes by the bounds of schedules, nothing searched and nothing recomputed.
    ///
    /// # Errors
    /// As [`Self::profile`].
    pub(crate) fn least_times(&mut self, shape: &Shape) -> Result<Vec<Times>, ProfileError> {
        let mut times = Vec::with_capacity(shape.segments.len());
        for s in &shape.segments {
            let forward = sim::schedule::bounds(&self.problem(&s.forward, s, "forward")?).0;
            let backward = sim::schedule::bounds(&self.problem(&s.backward, s, "backward")?).0;
            let optimizer = s.optimizer.iter().map(|&k| self.cost(k).fastest()).sum();
            times.push(Times { forward: seconds(forward), backward: seconds(backward), optimizer });
        }
        Ok(times)
    }

    fn segment(&mut self, shape: &SegmentShape) -> Result<SegmentProfile, ProfileError> {
        let forward = self.pass(&shape.forward, shape, "forward")?;
        let backward = self.pass(&shape.backward, shape, "backward")?;
        let optimizer: Vec<Costs> = shape.optimizer.iter().map(|&k| self.cost(k)).collect();
        Ok(SegmentProfile {
            forward,
            backward,
            policies: Vec::new(),
            optimizer: optimizer.iter().map(Costs::fastest).sum(),
            optimizer_energy: optimizer.iter().map(|c| c.all_cores.energy).sum(),
        })
    }

    /// Gives every segment its only policy: keep everything.
    pub fn keep_everything(shape: &Shape, profile: &mut Profile) {
        for (s, p) in shape.segments.iter().zip(&mut profile.segments) {
            let policy = s.recompute.layer().policy(OperatorSet::default());
            p.policies =
                vec![PolicyProfile { policy: RecomputePolicy { extra: Seconds::ZERO, ..policy }, pass: Some(p.backward) }];
        }
    }

    /// Finds what each segment may recompute: the Pareto front of stash against the operators' own times. How much longer each
    /// backward pass takes is bounded from below by its critical path until [`Self::close_policy`] schedules it.
    ///
    /// # Errors
    /// Times that are not numbers.
    pub fn open_policies(&mut self, shape: &Shape, profile: &mut Profile) -> Result<(), ProfileError> {
        for (s, p) in shape.segments.iter().zip(&mut profile.segments) {
            let times: Vec<Seconds> =
                s.operators.iter().map(|kernels| kernels.iter().map(|&k| self.cost(k).fastest()).sum()).collect();
            let front = s
                .recompute
                .front(&times)
                .map_err(|e| ProfileError::Numbers { chip: self.device.chip().name.clone(), why: e.to_string() })?;
            p.policies.clear();
            for policy in front {
                let none = policy.operators.is_empty();
                let extra = if none {
                    Seconds::ZERO
                } else {
                    let program = self.recomputing(s, policy.operators)?;
                    let least = program.critical_path(|k| self.cost(k).fastest());
                    (least - p.backward.time).max(Seconds::ZERO)
                };
                let pass = none.then_some(p.backward);
                p.policies.push(PolicyProfile { policy: RecomputePolicy { extra, ..policy }, pass });
            }
        }
        Ok(())
    }

    /// Schedules the backward pass of one policy of a profile.
    ///
    /// # Errors
    /// A chip so slow that its times leave the schedule's range.
    pub fn close_policy(
        &mut self,
        shape: &Shape,
        profile: &mut Profile,
        segment: usize,
        policy: usize,
    ) -> Result<(), ProfileError> {
        let s = &shape.segments[segment];
        let p = &mut profile.segments[segment];
        let program = self.recomputing(s, p.policies[policy].policy.operators)?;
        let pass = self.pass(&program, s, "backward")?;
        let extra = (pass.time - p.backward.time).max(Seconds::ZERO);
        let slot = &mut p.policies[policy];
        slot.policy.extra = extra;
        slot.pass = Some(pass);
        Ok(())
    }

    fn recomputing(&self, segment: &SegmentShape, operators: OperatorSet) -> Result<Arc<Program>, ProfileError> {
        segment.backward_with(operators, &self.bench.table).ok_or_else(|| ProfileError::Numbers {
            chip: self.device.chip().name.clone(),
            why: format!("{} is not lowered on this bench", segment.segment.name),
        })
    }

    /// The planner's chains of a profile.
    #[must_use]
    pub fn chains(&self, shape: &Shape, profile: &Profile) -> Chains {
        let timing = |s: &SegmentProfile| Timing {
            forward: s.forward.time,
            backward: s.backward.time,
            optimizer: s.optimizer,
            policies: s.policies.iter().enumerate().map(|(id, p)| planner_policy(id, &p.policy)).collect(),
        };
        let timings: Vec<Timing> = profile.segments.iter().map(timing).collect();
        self.assemble(shape, &timings)
    }

    /// The planner's chains from the segments' times.
    fn assemble(&self, shape: &Shape, timings: &[Timing]) -> Chains {
        let group = Group { ranks: 2, stride: self.bench.stage_stride(shape.tensor_parallel) };
        let send = Collective { kind: CollectiveKind::SendRecv, bytes: shape.boundary, group };
        let boundary = self.device.fabric.collective(&send).latency;
        let segments: Vec<Segment> = shape.segments.iter().zip(timings).map(|(s, t)| chain_segment(s, t, boundary)).collect();
        let chain = |segments| ChainProfile { segments, hbm: self.device.chip().memory_capacity(), constant: Bytes::ZERO };
        let mut split = segments.clone();
        self.untie(shape, &mut split);
        Chains { whole: chain(segments), split: chain(split) }
    }

    /// Gives the head of a tied model its own copy of the embedding's weights, whose gradients are summed between the first and the
    /// last stage once per step (Megatron-LM's embedding group).
    fn untie(&self, shape: &Shape, chain: &mut [Segment]) {
        let Some(tied) = shape.segments.iter().find(|s| s.segment.tied_parameters > 0) else { return };
        let per = tied.segment.bytes_per_parameter();
        let parameters = tied.segment.tied_parameters;
        let gradient = per.gradient * parameters;
        let group = Group { ranks: 2, stride: self.bench.stage_stride(shape.tensor_parallel) };
        let sync = self.device.fabric.collective(&Collective { kind: CollectiveKind::AllReduce, bytes: gradient, group }).latency;
        for (segment, shape) in chain.iter_mut().zip(&shape.segments) {
            match shape.segment.kind {
                SegmentKind::Embedding => segment.optimizer += sync,
                SegmentKind::Head => {
                    // The head's copy is updated like the embedding's: the time is in proportion to its parameters.
                    segment.optimizer += sync + chain_update(self, parameters, shape);
                    segment.replicated += per.total() * parameters;
                    segment.gradient += gradient;
                }
                SegmentKind::Layer => {}
            }
        }
    }
}

/// The time to update `parameters` more parameters in a segment.
fn chain_update(chip: &ChipOnBench<'_>, parameters: u64, shape: &SegmentShape) -> Seconds {
    chip.device.costs(&shape.segment.update_kernel(parameters)).fastest()
}

/// The times of one segment and what it may recompute.
struct Timing {
    forward: Seconds,
    backward: Seconds,
    optimizer: Seconds,
    policies: Vec<SegmentPolicy>,
}

fn chain_segment(shape: &SegmentShape, timing: &Timing, boundary: Seconds) -> Segment {
    let s = &shape.segment;
    Segment {
        name: s.name.clone(),
        repeat: s.repeat as usize,
        forward: timing.forward,
        backward: timing.backward,
        policies: timing.policies.clone(),
        replicated: s.weight_bytes() + s.gradient_bytes() + s.optimizer_bytes(),
        sharded: Bytes::ZERO,
        gradient: s.gradient_bytes(),
        optimizer: timing.optimizer,
        sharded_optimizer: Seconds::ZERO,
        transient: s.transient_bytes(&RecomputeSet::none()),
        boundary: if s.kind == SegmentKind::Head { Seconds::ZERO } else { boundary },
    }
}

fn planner_policy(id: usize, policy: &RecomputePolicy) -> SegmentPolicy {
    SegmentPolicy { id, stash: policy.stash, extra: policy.extra, workspace: policy.workspace }
}
