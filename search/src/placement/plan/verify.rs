//! An independent check of a plan: every rule looked at piece by piece, every number recomputed from the profile.

use super::answer::{Plan, StagePlan};
use super::profile::{ChainProfile, ClusterLimits, GradientSync, Segment};
use sim::units::{Bytes, Seconds};
use thiserror::Error;

/// What is wrong with a plan.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PlanFault {
    /// The stages do not cover the chain once, in order, none empty.
    #[error(
        "stage {stage} begins at piece {first} and ends at {end}: stages must follow each other from 0 to {units}, none empty"
    )]
    Cover {
        /// The stage.
        stage: usize,
        /// Where it begins.
        first: usize,
        /// Where it ends.
        end: usize,
        /// Pieces of the chain.
        units: usize,
    },
    /// A stage's shares or policy counts do not match its range.
    #[error("stage {stage}: {what}")]
    Shares {
        /// The stage.
        stage: usize,
        /// What does not match.
        what: String,
    },
    /// Degrees break a limit.
    #[error("{what}: {value} against a limit of {limit}")]
    Limit {
        /// Which rule.
        what: &'static str,
        /// The plan's value.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A stage does not fit.
    #[error("stage {stage} needs {need}, the device has {have}")]
    Memory {
        /// The stage.
        stage: usize,
        /// What it needs.
        need: Bytes,
        /// What there is.
        have: Bytes,
    },
    /// A stated number differs from the recomputed one.
    #[error("{what}: stated {stated}, recomputed {recomputed}")]
    Number {
        /// Which number, with its stage.
        what: String,
        /// What the plan says.
        stated: f64,
        /// What it is.
        recomputed: f64,
    },
}

/// Every fault of a plan; empty when it is sound. Times are compared to 1e-9 relative, bytes exactly.
#[must_use]
pub fn verify_plan<S: GradientSync + ?Sized>(
    profile: &ChainProfile,
    limits: ClusterLimits,
    sync: &S,
    plan: &Plan,
) -> Vec<PlanFault> {
    let mut faults = Vec::new();
    degrees(limits, plan, &mut faults);
    let pieces: Vec<usize> = profile.segments.iter().enumerate().flat_map(|(i, s)| std::iter::repeat_n(i, s.repeat)).collect();
    let mut at = 0;
    for (stage, s) in plan.stages.iter().enumerate() {
        if s.first != at || s.end <= s.first || s.end > pieces.len() {
            faults.push(PlanFault::Cover { stage, first: s.first, end: s.end, units: pieces.len() });
            return faults;
        }
        at = s.end;
    }
    if at != pieces.len() || plan.stages.len() != plan.pipeline_stages {
        faults.push(PlanFault::Cover { stage: plan.stages.len(), first: at, end: at, units: pieces.len() });
        return faults;
    }
    let check = Check { profile, sync, plan, pieces: &pieces };
    for (stage, s) in plan.stages.iter().enumerate() {
        check.stage(stage, s, &mut faults);
    }
    check.step(&mut faults);
    faults
}

fn degrees(limits: ClusterLimits, plan: &Plan, faults: &mut Vec<PlanFault>) {
    let mut equal = |what, value, limit| {
        if value != limit {
            faults.push(PlanFault::Limit { what, value, limit });
        }
    };
    equal("tensor width", plan.tensor_width, limits.tensor_width);
    equal("micro-batch size", plan.micro_batch, limits.micro_batch);
    let batch = plan.micro_batches * plan.data_parallel * plan.micro_batch;
    equal("micro-batches times replicas times micro-batch size", batch, limits.global_batch);
    let devices = plan.pipeline_stages as u64 * plan.data_parallel * plan.tensor_width;
    equal("devices stated", plan.devices, devices);
    if devices > limits.devices {
        faults.push(PlanFault::Limit { what: "devices", value: devices, limit: limits.devices });
    }
}

struct Check<'a, S: ?Sized> {
    profile: &'a ChainProfile,
    sync: &'a S,
    plan: &'a Plan,
    /// Segment of every piece.
    pieces: &'a [usize],
}

fn number(what: String, stated: f64, recomputed: f64, faults: &mut Vec<PlanFault>) {
    if (stated - recomputed).abs() > 1e-9 * recomputed.abs() {
        faults.push(PlanFault::Number { what, stated, recomputed });
    }
}

impl<S: GradientSync + ?Sized> Check<'_, S> {
    fn segment(&self, piece: usize) -> &Segment {
        &self.profile.segments[self.pieces[piece]]
    }

    fn stage(&self, stage: usize, s: &StagePlan, faults: &mut Vec<PlanFault>) {
        for segment in 0..self.profile.segments.len() {
            let here = self.pieces[s.first..s.end].iter().filter(|&&p| p == segment).count();
            let stated: usize = s.shares.iter().filter(|share| share.segment == segment).map(|share| share.count).sum();
            let policies = s.shares.iter().filter(|share| share.segment == segment).flat_map(|share| &share.policies);
            let counted: usize = policies.map(|p| p.count).sum();
            if here != stated || here != counted {
                let what = format!("{here} pieces of segment {segment}, {stated} in the shares, {counted} with a policy");
                faults.push(PlanFault::Shares { stage, what });
                return;
            }
        }
        let known = |share: &super::answer::SegmentShare| {
            let policies = &self.profile.segments[share.segment].policies;
            share.policies.iter().all(|p| policies.get(p.policy).is_some_and(|q| q.id == p.id))
        };
        if !s.shares.iter().all(known) {
            faults.push(PlanFault::Shares { stage, what: "names a policy its segment does not have".into() });
            return;
        }
        self.memory(stage, s, faults);
        self.times(stage, s, faults);
    }

    fn memory(&self, stage: usize, s: &StagePlan, faults: &mut Vec<PlanFault>) {
        let alive = self.plan.micro_batches.min((self.plan.pipeline_stages - stage) as u64);
        let (mut sharded, mut need, mut working) = (0_u128, u128::from(self.profile.constant.0), 0_u128);
        for piece in s.first..s.end {
            need += u128::from(self.segment(piece).replicated.0);
            sharded += u128::from(self.segment(piece).sharded.0);
        }
        need += sharded.div_ceil(u128::from(self.plan.data_parallel));
        for share in &s.shares {
            let segment = &self.profile.segments[share.segment];
            for used in &share.policies {
                let policy = &segment.policies[used.policy];
                need += u128::from(policy.stash.0) * u128::from(alive) * used.count as u128;
                working = working.max(u128::from(policy.workspace.0) + u128::from(segment.transient.0));
            }
        }
        need += working;
        number(format!("stage {stage} micro-batches in flight"), s.in_flight as f64, alive as f64, faults);
        if u128::from(s.memory.total().0) != need {
            let (stated, recomputed) = (s.memory.total().as_f64(), need as f64);
            faults.push(PlanFault::Number { what: format!("stage {stage} memory"), stated, recomputed });
        }
        if need > u128::from(self.profile.hbm.0) {
            let need = Bytes(u64::try_from(need).unwrap_or(u64::MAX));
            faults.push(PlanFault::Memory { stage, need, have: self.profile.hbm });
        }
    }

    fn times(&self, stage: usize, s: &StagePlan, faults: &mut Vec<PlanFault>) {
        let mut time: Seconds = (s.first..s.end).map(|piece| self.segment(piece).forward + self.segment(piece).backward).sum();
        for share in &s.shares {
            let policies = &self.profile.segments[share.segment].policies;
            time += share.policies.iter().map(|used| policies[used.policy].extra * used.count as f64).sum();
        }
        if s.first > 0 {
            time += self.segment(s.first - 1).boundary;
        }
        if s.end < self.pieces.len() {
            time += self.segment(s.end - 1).boundary;
        }
        number(format!("stage {stage} time"), s.time.0, time.0, faults);
        let replicas = self.plan.data_parallel;
        let gradients: Bytes = (s.first..s.end).map(|piece| self.segment(piece).gradient).sum();
        let mut tail = if replicas > 1 && gradients.0 > 0 {
            self.sync.seconds(gradients, replicas, self.plan.tensor_width)
        } else {
            Seconds::ZERO
        };
        for piece in s.first..s.end {
            tail += self.segment(piece).optimizer + self.segment(piece).sharded_optimizer / replicas as f64;
        }
        number(format!("stage {stage} tail"), s.tail.0, tail.0, faults);
    }

    fn step(&self, faults: &mut Vec<PlanFault>) {
        let times = || self.plan.stages.iter().map(|s| s.time.0);
        let slowest = times().fold(0.0, f64::max);
        let tail = self.plan.stages.iter().map(|s| s.tail.0).fold(0.0, f64::max);
        let step = times().sum::<f64>() + (self.plan.micro_batches as f64 - 1.0) * slowest + tail;
        number("step time".into(), self.plan.step.0, step, faults);
        number("bottleneck".into(), self.plan.bottleneck.0, slowest, faults);
        number("tail".into(), self.plan.tail.0, tail, faults);
    }
}
