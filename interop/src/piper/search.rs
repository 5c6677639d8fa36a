//! The exact search.
//!
//! A time is *reachable* if some plan's slowest stage takes at most that long. [`plan_within_limit`] decides if a given
//! time is reachable, stage by stage from the last. For each suffix, it keeps the Pareto-optimal pairs of copies and
//! devices. Fewer of either never hurt the stages before, because fewer copies mean fewer micro-batches in flight and
//! therefore less memory. A stage in front of a suffix may have as many micro-batches in flight as its fastest choices
//! within the time allow. Bisection then encloses the least reachable time: the upper end is the time of a known plan,
//! the lower end is not reachable.

use super::prepared::{PreparedGraph, layers_without};
use super::stage::{StageContext, fastest_stage, most_in_flight};
use super::{PiperPlan, PiperStage, evaluate_piper_plan};
use std::collections::BTreeMap;

/// The bisection ends at this relative width between the bounds: [`SolveStatus`](sim::status::SolveStatus) calls 1e-9
/// optimal.
const CLOSED: f64 = 5e-10;

/// Number of limits on the time that are tried for a first plan, each half as long again as the one before. Then the
/// limit is dropped.
const TRIES: usize = 12;

/// The answer of the search.
pub(super) struct PiperPlacement {
    /// The best plan; `None` if no plan fits.
    pub best: Option<PiperPlan>,
    /// Lower bound on the time of any plan.
    pub lower_bound: f64,
}

/// A Pareto-optimal placement of a suffix, in copies and devices.
#[derive(Debug, Clone, Copy)]
struct SuffixPlacement {
    /// Sum of the copies of its stages.
    copies: u32,
    devices: u32,
    /// The first stage: the suffix behind it, the placement of that suffix, and the degrees of the stage.
    rest: u32,
    then: u32,
    t: u32,
    d: u32,
}

/// Finds the plan with the least time, and a lower bound on that time.
pub(super) fn find_optimum(prepared: &PreparedGraph<'_>) -> PiperPlacement {
    // Times well above the optimum admit far more stages, so the search comes from below.
    let (mut tried, mut first) = (least_time_by_work(prepared), None);
    for _ in 0..TRIES {
        tried *= 1.5;
        first = plan_within_limit(prepared, tried, false);
        if first.is_some() {
            break;
        }
    }
    let Some(mut best) = first.or_else(|| plan_within_limit(prepared, f64::MAX, false)) else {
        return PiperPlacement { best: None, lower_bound: f64::INFINITY };
    };
    let mut upper = evaluate_piper_plan(prepared.instance, &best).time_per_sample;
    let mut lower = least_time_by_work(prepared).min(upper);
    while upper - lower > CLOSED * upper {
        // Once the bounds are close, the step tests just below the known plan, which is often the best already.
        let middle =
            if upper - lower < 1e-4 * upper { upper * (1.0 - CLOSED / 2.0) } else { lower + (upper - lower) / 2.0 };
        match plan_within_limit(prepared, middle, false) {
            Some(plan) => {
                let time = evaluate_piper_plan(prepared.instance, &plan).time_per_sample;
                // A sum in another order may differ in its last digits, so the bound falls by at least a small step.
                upper = time.min(upper * (1.0 - CLOSED / 4.0));
                best = plan;
            }
            None => lower = middle,
        }
    }
    let upper = evaluate_piper_plan(prepared.instance, &best).time_per_sample;
    // Stages with too many choices counted as not fitting. The bound must hold with these stages too.
    let mut bound = lower.min(upper);
    if plan_within_limit(prepared, bound * (1.0 - CLOSED), true).is_some() {
        let mut below = least_time_by_work(prepared).min(bound);
        while bound - below > 1e-4 * bound {
            let middle = below + (bound - below) / 2.0;
            if plan_within_limit(prepared, middle, true).is_some() { bound = middle } else { below = middle }
        }
        bound = below;
    }
    PiperPlacement { best: Some(best), lower_bound: bound }
}

/// Returns a lower bound on the time of any plan: all devices share the work, and each layer runs at its cheapest
/// degree.
fn least_time_by_work(prepared: &PreparedGraph<'_>) -> f64 {
    let instance = prepared.instance;
    let work = |choices: &BTreeMap<u32, Vec<super::PiperChoice>>| {
        let usable = choices.iter().filter(|(t, _)| **t <= instance.max_devices);
        usable
            .flat_map(|(t, list)| list.iter().map(|c| c.time_per_sample * f64::from(*t)))
            .fold(f64::INFINITY, f64::min)
    };
    instance.nodes.iter().map(|node| work(&node.choices)).sum::<f64>() / f64::from(instance.max_devices)
}

/// Returns a plan whose stages all take at most `limit` seconds; `None` if there is none. `optimistic` decides how
/// stages with too many choices count ([`StageContext`]).
fn plan_within_limit(prepared: &PreparedGraph<'_>, limit: f64, optimistic: bool) -> Option<PiperPlan> {
    let instance = prepared.instance;
    let (devices, most) = (instance.max_devices, prepared.most_copies as usize);
    let mut ways: Vec<Vec<SuffixPlacement>> =
        vec![vec![SuffixPlacement { copies: 0, devices: 0, rest: 0, then: 0, t: 0, d: 0 }]];
    let mut by_copies: Vec<Option<SuffixPlacement>> = vec![None; most + 1];
    for stages in &prepared.stages[1..] {
        by_copies.fill(None);
        for stage in stages.iter().filter(|stage| !ways[stage.rest].is_empty()) {
            for (t, classes) in &stage.widths {
                for &d in prepared.degrees.iter().take_while(|d| u64::from(**d) * u64::from(*t) <= u64::from(devices)) {
                    let setting = stage_context(prepared, d, optimistic);
                    let in_flight = most_in_flight(classes, &setting, limit, (most as u32).div_ceil(d));
                    // ceil(copies / d) micro-batches are in flight, so copies may grow up to d times their number.
                    let room = u64::from(in_flight) * u64::from(d);
                    for (then, way) in ways[stage.rest].iter().enumerate() {
                        let (copies, used) = (way.copies + d, way.devices + t * d);
                        if u64::from(copies) > room || copies as usize > most {
                            break;
                        }
                        let slot = &mut by_copies[copies as usize];
                        if used <= devices && slot.is_none_or(|known| used < known.devices) {
                            *slot = Some(SuffixPlacement {
                                copies,
                                devices: used,
                                rest: stage.rest as u32,
                                then: then as u32,
                                t: *t,
                                d,
                            });
                        }
                    }
                }
            }
        }
        let mut fewest = u32::MAX;
        let unbeaten = by_copies.iter().flatten().filter(|way| {
            let better = way.devices < fewest;
            fewest = fewest.min(way.devices);
            better
        });
        let unbeaten: Vec<SuffixPlacement> = unbeaten.copied().collect();
        ways.push(unbeaten);
    }
    ways.last()?.first()?;
    if optimistic {
        return Some(PiperPlan { stages: Vec::new() });
    }
    Some(trace_plan(prepared, &ways))
}

fn stage_context(prepared: &PreparedGraph<'_>, copies: u32, optimistic: bool) -> StageContext {
    StageContext {
        copies: f64::from(copies),
        bandwidth: prepared.instance.bandwidth,
        micro_batches: f64::from(prepared.instance.micro_batches),
        memory: prepared.instance.max_memory_per_device,
        optimistic,
    }
}

/// Returns the plan of the first complete placement, with the fastest choices in each stage.
fn trace_plan(prepared: &PreparedGraph<'_>, ways: &[Vec<SuffixPlacement>]) -> PiperPlan {
    let mut stages = Vec::new();
    let (mut suffix, mut at) = (ways.len() - 1, 0_usize);
    while suffix != 0 {
        let way = ways[suffix][at];
        stages.push(stage_of_placement(prepared, suffix, &way));
        (suffix, at) = (way.rest as usize, way.then as usize);
    }
    PiperPlan { stages }
}

fn stage_of_placement(prepared: &PreparedGraph<'_>, suffix: usize, way: &SuffixPlacement) -> PiperStage {
    let instance = prepared.instance;
    let (set, rest) = (&prepared.suffixes[suffix], &prepared.suffixes[way.rest as usize]);
    let layers = layers_without(set, rest);
    let known = prepared.stages[suffix].iter().find(|stages| stages.rest == way.rest as usize);
    let classes = known.and_then(|stages| stages.widths.iter().find(|(t, _)| *t == way.t)).map(|(_, classes)| classes);
    let classes = classes.map(Vec::as_slice).unwrap_or_default();
    let in_flight = f64::from(way.copies.div_ceil(way.d));
    let mut taken = fastest_stage(classes, &stage_context(prepared, way.d, false), in_flight, f64::MAX)
        .map(|f| f.taken)
        .unwrap_or_default();
    let mut choices = BTreeMap::new();
    for &layer in &layers {
        let node = &instance.nodes[layer];
        let options = prepared.options_of_layer(layer, way.t, set, rest).unwrap_or_default();
        let class = classes.iter().position(|class| class.options == options);
        let left = class.and_then(|class| taken.get_mut(class));
        let option = left.and_then(|left| {
            let option = left.iter().position(|n| *n > 0)?;
            left[option] -= 1;
            Some(option)
        });
        if let Some(choice) = option.and_then(|option| node.choices.get(&way.t)?.get(option)) {
            choices.insert(node.id, choice.id.clone());
        }
    }
    let mut nodes: Vec<i64> = layers.iter().map(|&layer| instance.nodes[layer].id).collect();
    nodes.sort_unstable();
    PiperStage { nodes, data_parallel: way.d, tensor_parallel: way.t, choices }
}
