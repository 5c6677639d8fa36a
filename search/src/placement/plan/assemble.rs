//! From a split to the full plan.

use super::answer::{Plan, PolicyCount, SegmentShare, StageMemory, StagePlan};
use super::bound::Pair;
use super::chain::Share;
use super::mix::working_set;
use super::profile::{ClusterLimits, GradientSync};
use super::schedule::{in_flight, step_seconds};
use super::stage::{Place, Stages};
use sim::units::{Bytes, Seconds};

/// The plan of a split with the best mix of policies in every stage; `None` where a stage does not fit.
pub(super) fn assemble<S: GradientSync + ?Sized>(
    stages: &mut Stages<'_, S>,
    limits: ClusterLimits,
    pair: Pair,
    ends: &[usize],
) -> Option<Plan> {
    let (mut first, mut plans) = (0, Vec::with_capacity(ends.len()));
    for (stage, &end) in ends.iter().enumerate() {
        let depth = in_flight(pair.micro_batches, pair.stages, stage);
        plans.push(stage_plan(stages, Place { first, end, depth, data_parallel: pair.data_parallel })?);
        first = end;
    }
    let most = |value: fn(&StagePlan) -> f64| plans.iter().map(value).fold(0.0, f64::max);
    let (bottleneck, tail) = (most(|s| s.time.0), most(|s| s.tail.0));
    let sum = plans.iter().map(|s| s.time.0).sum();
    Some(Plan {
        pipeline_stages: pair.stages,
        data_parallel: pair.data_parallel,
        tensor_width: limits.tensor_width,
        micro_batch: limits.micro_batch,
        micro_batches: pair.micro_batches,
        devices: pair.devices,
        step: Seconds(step_seconds(sum, bottleneck, pair.micro_batches, tail)),
        bottleneck: Seconds(bottleneck),
        tail: Seconds(tail),
        stages: plans,
    })
}

fn stage_plan<S: GradientSync + ?Sized>(stages: &mut Stages<'_, S>, place: Place) -> Option<StagePlan> {
    let shares: Vec<Share> = stages.chain.shares(place.first, place.end).collect();
    let (extra, counts) = stages.mix(place, &shares)?;
    let transfer = stages.transfer(place);
    Some(StagePlan {
        first: place.first,
        end: place.end,
        shares: shares.iter().enumerate().map(|(i, share)| segment_share(stages, i, share, &counts)).collect(),
        in_flight: place.depth,
        time: Seconds(stages.chain.seconds(place.first, place.end) + extra + transfer),
        recompute: Seconds(extra),
        transfer: Seconds(transfer),
        tail: Seconds(stages.tail(place)),
        memory: memory(stages, place, &shares, &counts),
    })
}

fn segment_share<S: GradientSync + ?Sized>(
    stages: &Stages<'_, S>,
    position: usize,
    share: &Share,
    counts: &[(usize, usize, usize)],
) -> SegmentShare {
    let policies = &stages.chain.segment(share.segment).policies;
    let mine = counts.iter().filter(|(i, _, _)| *i == position);
    SegmentShare {
        segment: share.segment,
        count: share.count,
        policies: mine.map(|&(_, policy, count)| PolicyCount { policy, id: policies[policy].id, count }).collect(),
    }
}

fn memory<S: GradientSync + ?Sized>(
    stages: &Stages<'_, S>,
    place: Place,
    shares: &[Share],
    counts: &[(usize, usize, usize)],
) -> StageMemory {
    let chosen = || counts.iter().map(|&(i, policy, count)| (stages.chain.segment(shares[i].segment), policy, count));
    let stash: Bytes = chosen().map(|(segment, policy, count)| segment.policies[policy].stash * count as u64).sum();
    StageMemory {
        fixed: Bytes(stages.fixed_bytes(place)),
        stash: stash * place.depth,
        working: Bytes(chosen().map(|(segment, policy, _)| working_set(segment, policy)).max().unwrap_or(0)),
        constant: stages.chain.profile.constant,
    }
}
