//! A given placement, as an expert writes it: its best policies, its layers split evenly or as well as possible.

use super::answer::{NoPlan, Placement, SearchCounts, Shortfall};
use super::assemble::assemble;
use super::bound::{Bottlenecks, Pair, floor};
use super::profile::{ChainProfile, ClusterLimits, Effort, GradientSync, PlacementError};
use super::schedule::in_flight;
use super::search::allowed;
use super::split::Splitter;
use super::stage::{Place, Stages};
use serde::{Deserialize, Serialize};
use sim::units::Bytes;

/// The degrees of a given placement; the tensor width is in the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedPlacement {
    /// Pipeline stages p.
    pub pipeline_stages: usize,
    /// Data-parallel degree d.
    pub data_parallel: u64,
}

/// How a given placement's chain is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerSplit {
    /// As people write it: what precedes the first repeated segment goes to the first stage, what follows the last one to the last stage,
    /// and the pieces between are shared out evenly; a remainder goes one each to stages 1, 2, ..., then 0, then the last,
    /// because those two have other work.
    Even,
    /// The best split.
    Optimal,
}

/// The best mix of policies under a given placement.
///
/// # Errors
/// As [`super::place`]. A placement the batch, the devices, the chain or the memory rule out is an answer.
pub fn evaluate_fixed<S: GradientSync + ?Sized>(
    profile: &ChainProfile,
    limits: ClusterLimits,
    sync: &S,
    fixed: FixedPlacement,
    split: LayerSplit,
) -> Result<Placement, PlacementError> {
    profile.check()?;
    limits.check()?;
    if fixed.data_parallel == 0 {
        return Err(PlacementError::Zero { what: "data_parallel" });
    }
    let mut counts = SearchCounts { candidates: 1, ..SearchCounts::default() };
    let pair = match pair(profile, limits, fixed) {
        Ok(pair) => pair,
        Err(why) => return Ok(Placement::none(why, counts)),
    };
    let mut stages = Stages::new(profile, limits, sync, Effort::Proof);
    let floor = floor(&mut stages, pair);
    let bottleneck = Bottlenecks::new(&stages.chain).of(&stages.chain, pair.stages);
    let mut splitter = Splitter { stages: &mut stages, pair, floor, bottleneck, labels: 0 };
    let ends = match split {
        LayerSplit::Even => Some(even_ends(profile, pair.stages)),
        LayerSplit::Optimal => splitter.fill_memory(profile.hbm.0).map(|filled| {
            let seed = splitter.seed(&filled);
            splitter.solve(seed.step).unwrap_or(seed).ends
        }),
    };
    counts.labels = splitter.labels;
    let plan = ends.as_ref().and_then(|ends| assemble(&mut stages, limits, pair, ends));
    if let Some(fault) = stages.fault {
        return Err(fault);
    }
    Ok(match plan {
        Some(plan) => {
            counts.solved = 1;
            Placement { status: stages.status(plan.step.0), outcome: Ok(plan), counts }
        }
        None => {
            counts.infeasible = 1;
            let shortfall = shortfall(&mut stages, pair, &ends.unwrap_or_else(|| even_ends(profile, pair.stages)));
            Placement::none(NoPlan::OverCapacity(shortfall), counts)
        }
    })
}

fn pair(profile: &ChainProfile, limits: ClusterLimits, fixed: FixedPlacement) -> Result<Pair, NoPlan> {
    allowed(limits)?;
    let (stages, data_parallel) = (fixed.pipeline_stages, fixed.data_parallel);
    let ClusterLimits { devices, global_batch, tensor_width, micro_batch } = limits;
    if stages == 0 || stages > profile.units() {
        return Err(NoPlan::Stages { stages, units: profile.units() });
    }
    let needed = (stages as u64).saturating_mul(data_parallel).saturating_mul(tensor_width);
    if needed > devices {
        return Err(NoPlan::TooFewDevices { needed, devices });
    }
    let per_round = micro_batch.saturating_mul(data_parallel);
    if !global_batch.is_multiple_of(per_round) {
        return Err(NoPlan::BatchDoesNotDivide { global_batch, micro_batch, data_parallel });
    }
    Ok(Pair { stages, data_parallel, micro_batches: global_batch / per_round, devices: needed })
}

/// See [`LayerSplit::Even`]. Where the pieces between are fewer than the stages, all pieces are shared out alike.
fn even_ends(profile: &ChainProfile, stages: usize) -> Vec<usize> {
    let units = profile.units();
    let repeated = |s: &super::profile::Segment| s.repeat > 1;
    let pieces = |segments: &[super::profile::Segment]| segments.iter().map(|s| s.repeat).sum::<usize>();
    let body = profile.segments.iter().position(repeated).zip(profile.segments.iter().rposition(repeated));
    let body = body.map(|(first, last)| (pieces(&profile.segments[..first]), pieces(&profile.segments[..=last])));
    let (start, end) = body.filter(|(start, end)| end - start >= stages).unwrap_or((0, units));
    let mut counts = vec![(end - start) / stages; stages];
    let order = (1..stages.saturating_sub(1)).chain([0, stages - 1]);
    for stage in order.take((end - start) % stages) {
        counts[stage] += 1;
    }
    counts[0] += start;
    counts[stages - 1] += units - end;
    counts
        .iter()
        .scan(0, |at, count| {
            *at += count;
            Some(*at)
        })
        .collect()
}

/// What the fullest stage of these lacks.
fn shortfall<S: GradientSync + ?Sized>(stages: &mut Stages<'_, S>, pair: Pair, ends: &[usize]) -> Shortfall {
    let (mut first, mut fullest) = (0, (0, 0));
    for (stage, &end) in ends.iter().enumerate() {
        let depth = in_flight(pair.micro_batches, pair.stages, stage);
        let need = stages.least_memory(Place { first, end, depth, data_parallel: pair.data_parallel });
        if need > fullest.0 {
            fullest = (need, stage);
        }
        first = end;
    }
    Shortfall {
        pipeline_stages: pair.stages,
        data_parallel: pair.data_parallel,
        stage: fullest.1,
        need: Bytes(fullest.0),
        have: stages.chain.profile.hbm,
    }
}
