//! The orders of passes from which schedules in a V choose. ZB-V, V-Half and V-Min have the same scheduler within three
//! limits of memory; DualPipeV has one published order (`dual_pipe.rs`).
//!
//! Qi et al. (ICLR 2024) decide an order before the run. Their scheduler (`zbv.py` in
//! sail-sg/zero-bubble-pipeline-parallelism) tries a heuristic under several settings and keeps the order with the
//! least bubble. Here every order is a greedy list schedule for passes with nominal times ([`NOMINALS`]), so the orders
//! depend only on the numbers of devices and micro-batches. The step takes the time of the fastest order under its real
//! passes and sends. Under a fixed order that is the heaviest path through its passes, which grows with every pass and
//! send, and so does the minimum over several orders. A list schedule that decides from the real times has no such law
//! (Graham, 1969).
//!
//! The [`NOMINALS`] after the first were chosen one after another out of 480, each reducing the mean time most over 937
//! plans of 14 jobs (built-in models on built-in fabrics) and 239 pipelines with random passes. The table compares the
//! result with a list schedule that decides from the real times:
//!
//! | plans | mean | median | worst tenth | worst |
//! |---|---|---|---|---|
//! | 491 plans of eight other jobs | 1.2 % faster | equal | 0.7 % slower or worse | 21 % slower (2 micro-batches, 16 devices) |
//! | with at least two micro-batches per device | 2.1 % faster | | | 5.0 % slower |

use super::pass::{PassOrder, PipelinePass, StageTurn};
use super::reductions::{PassSpan, times_of_reductions};
use super::{Pipeline, VSchedule};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Nominal times from which an order is decided, in eighths of a stage's forward pass.
#[derive(Clone, Copy)]
struct NominalWork {
    /// Forward pass, input gradient and weight gradient of a stage.
    passes: [u64; 3],
    /// Scale of the first stage's passes in eighths; below 8 it runs ahead.
    first: u64,
    /// Scale of the last stage's passes in eighths.
    last: u64,
    /// Send time between devices.
    send: u64,
}

/// The first is the case for which the schedule was designed: passes of all kinds and stages take equal time.
const NOMINALS: [NominalWork; 12] = [
    NominalWork { passes: [8, 8, 8], first: 8, last: 8, send: 0 },
    NominalWork { passes: [8, 12, 4], first: 4, last: 8, send: 0 },
    NominalWork { passes: [8, 16, 4], first: 4, last: 12, send: 0 },
    NominalWork { passes: [8, 8, 4], first: 8, last: 8, send: 0 },
    NominalWork { passes: [8, 16, 8], first: 6, last: 10, send: 0 },
    NominalWork { passes: [8, 8, 4], first: 4, last: 16, send: 8 },
    NominalWork { passes: [8, 24, 4], first: 8, last: 10, send: 8 },
    NominalWork { passes: [8, 8, 4], first: 4, last: 10, send: 4 },
    NominalWork { passes: [8, 12, 4], first: 6, last: 10, send: 0 },
    NominalWork { passes: [8, 8, 8], first: 4, last: 8, send: 0 },
    NominalWork { passes: [8, 16, 4], first: 4, last: 8, send: 0 },
    NominalWork { passes: [8, 24, 8], first: 4, last: 12, send: 0 },
];

/// Most passes, over all orders, in the cache.
const KEPT: usize = 1 << 22;

/// Orders by schedule, devices and micro-batches.
type OrderCache = HashMap<(VSchedule, usize, usize), Arc<[PassOrder]>>;

static KNOWN: LazyLock<Mutex<OrderCache>> = LazyLock::new(Mutex::default);

/// Returns the orders of a schedule in a V for these numbers of devices and micro-batches, from the cache if they are
/// known.
pub(super) fn v_orders(schedule: VSchedule, devices: usize, micro_batches: usize) -> Arc<[PassOrder]> {
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(orders) = known().get(&(schedule, devices, micro_batches)) {
        return Arc::clone(orders);
    }
    let limit = schedule.most_passes(devices as u32) as usize;
    let orders: Arc<[PassOrder]> = match schedule.published_order(devices, micro_batches) {
        Some(order) => Arc::new([order]),
        None => NOMINALS.iter().map(|nominal| decide_order(nominal, devices, micro_batches, limit)).collect(),
    };
    let mut known = known();
    let turns = |orders: &Arc<[PassOrder]>| orders.iter().map(Vec::len).sum::<usize>();
    if known.values().chain([&orders]).map(turns).sum::<usize>() > KEPT {
        known.clear();
    }
    known.insert((schedule, devices, micro_batches), Arc::clone(&orders));
    orders
}

/// Returns the greedy schedule. The device that can start earliest takes its most urgent pass: backward, then forward
/// (the later chunk first) within the memory limit, else a weight gradient that fills the gap.
fn decide_order(nominal: &NominalWork, devices: usize, micro_batches: usize, limit: usize) -> PassOrder {
    let mut greedy = GreedyScheduler::new(nominal, devices, micro_batches, limit);
    let mut order = Vec::with_capacity(6 * devices * micro_batches);
    let mut choices: Vec<Option<NextPass>> = (0..devices).map(|k| greedy.most_urgent_pass(k)).collect();
    loop {
        let mut best: Option<(usize, NextPass)> = None;
        for (k, choice) in choices.iter().enumerate() {
            if let Some(choice) = choice
                && best.is_none_or(|(_, b)| choice.start < b.start)
            {
                best = Some((k, *choice));
            }
        }
        let Some((k, choice)) = best else { return order };
        greedy.run_turn(k, choice);
        order.push(StageTurn { stage: choice.stage as u32, pass: choice.pass, with_next: false });
        // A pass feeds its own device and those of the adjacent stages, which are neighbours.
        for (near, choice) in choices.iter_mut().enumerate().take(k + 2).skip(k.saturating_sub(1)) {
            *choice = greedy.most_urgent_pass(near);
        }
    }
}

/// The next pass of a device, and its start.
#[derive(Clone, Copy)]
struct NextPass {
    start: u64,
    stage: usize,
    pass: PipelinePass,
}

struct GreedyScheduler<'a> {
    nominal: &'a NominalWork,
    devices: usize,
    micro_batches: usize,
    /// The most passes in flight on a device.
    limit: usize,
    /// Ends of the forward passes and input gradients that have run, by stage.
    ends: [Vec<Vec<u64>>; 2],
    /// Number of weight gradients that have run, by stage.
    weights: Vec<usize>,
    /// The time at which each device is free.
    free: Vec<u64>,
}

impl<'a> GreedyScheduler<'a> {
    fn new(nominal: &'a NominalWork, devices: usize, micro_batches: usize, limit: usize) -> Self {
        let none = || vec![Vec::with_capacity(micro_batches); 2 * devices];
        Self {
            nominal,
            devices,
            micro_batches,
            limit,
            ends: [none(), none()],
            weights: vec![0; 2 * devices],
            free: vec![0; devices],
        }
    }

    /// Returns the number of passes of a stage that have run.
    fn passes_done(&self, stage: usize, pass: PipelinePass) -> usize {
        match pass {
            PipelinePass::Forward => self.ends[0][stage].len(),
            PipelinePass::Backward | PipelinePass::WholeBackward => self.ends[1][stage].len(),
            PipelinePass::Weight => self.weights[stage],
        }
    }

    /// Returns the arrival time of the input of a stage's next pass; `None` if its producer has not run.
    fn arrival_of_input(&self, stage: usize, pass: PipelinePass) -> Option<u64> {
        let [forward, backward] = &self.ends;
        let at = self.passes_done(stage, pass);
        // The two middle stages are on one device.
        let send = |before: usize| if before + 1 == self.devices { 0 } else { self.nominal.send };
        match pass {
            PipelinePass::Forward if stage == 0 => Some(0),
            PipelinePass::Forward => forward[stage - 1].get(at).map(|end| end + send(stage - 1)),
            PipelinePass::Weight => backward[stage].get(at).copied(),
            _ if stage + 1 == 2 * self.devices => forward[stage].get(at).copied(),
            _ => backward[stage + 1].get(at).map(|end| end + send(stage)),
        }
    }

    fn most_urgent_pass(&self, k: usize) -> Option<NextPass> {
        let (early, late) = (k, 2 * self.devices - 1 - k);
        let held = |stage: usize| {
            self.passes_done(stage, PipelinePass::Forward) - self.passes_done(stage, PipelinePass::Weight)
        };
        let (held, limit) = (held(early) + held(late), self.limit);
        let mut best: Option<NextPass> = None;
        // In order of urgency: a later entry wins only if it can start strictly earlier.
        for (stage, pass) in [
            (late, PipelinePass::Backward),
            (early, PipelinePass::Backward),
            (late, PipelinePass::Forward),
            (early, PipelinePass::Forward),
            (late, PipelinePass::Weight),
            (early, PipelinePass::Weight),
        ] {
            // The early chunk leaves one place to the late one, which frees memory.
            let full = pass == PipelinePass::Forward && held >= if stage == early { limit - 1 } else { limit };
            if self.passes_done(stage, pass) >= self.micro_batches || full {
                continue;
            }
            if let Some(arrived) = self.arrival_of_input(stage, pass) {
                let start = arrived.max(self.free[k]);
                if best.is_none_or(|b| start < b.start) {
                    best = Some(NextPass { start, stage, pass });
                }
            }
        }
        best
    }

    fn run_turn(&mut self, k: usize, NextPass { start, stage, pass }: NextPass) {
        let NominalWork { passes, first, last, .. } = *self.nominal;
        let eighths = match stage {
            0 => first,
            _ if stage + 1 == 2 * self.devices => last,
            _ => 8,
        };
        let end = start + passes[pass.kind_index()] * eighths / 8;
        match pass {
            PipelinePass::Forward => self.ends[0][stage].push(end),
            PipelinePass::Backward | PipelinePass::WholeBackward => self.ends[1][stage].push(end),
            PipelinePass::Weight => self.weights[stage] += 1,
        }
        self.free[k] = end;
    }
}

impl Pipeline {
    /// Returns the order with the shortest step, and the first of equals; `None` without orders.
    pub(super) fn fastest_v_order<'o>(&self, orders: &'o [PassOrder]) -> Option<&'o PassOrder> {
        let mut best: Option<(f64, &PassOrder)> = None;
        for order in orders {
            let total = self.time_under_order(order);
            if best.is_none_or(|(least, _)| total < least) {
                best = Some((total, order));
            }
        }
        best.map(|(_, order)| order)
    }

    /// Returns the total time of [`Pipeline::simulate_step`] under an order, without any other result.
    fn time_under_order(&self, order: &PassOrder) -> f64 {
        let (devices, m) = (self.device_count() as usize, self.micro_batches as usize);
        let last = self.stages.len() - 1;
        let mut free = vec![0.0_f64; devices];
        let mut ends = [vec![0.0_f64; self.stages.len() * m], vec![0.0_f64; self.stages.len() * m]];
        let mut next = vec![[0_usize; 3]; self.stages.len()];
        let mut gradients = vec![PassSpan::default(); self.stages.len()];
        let send = |before: usize| if before + 1 == devices { 0.0 } else { self.sends[before].0 };
        let arrival = |ends: &[Vec<f64>; 2], pass: PipelinePass, s: usize, at: usize| match pass {
            PipelinePass::Weight => 0.0,
            PipelinePass::Forward if s == 0 => 0.0,
            PipelinePass::Forward => ends[0][at - m] + send(s - 1),
            _ if s == last => 0.0,
            _ => ends[1][at + m] + send(s),
        };
        // The forward pass whose result leaves with that of the turn after it.
        let mut together = None;
        for (place, &StageTurn { stage, pass, with_next }) in order.iter().enumerate() {
            let s = stage as usize;
            let stage = &self.stages[s];
            let at = s * m + next[s][pass.kind_index()];
            next[s][pass.kind_index()] += 1;
            let free = &mut free[if s < devices { s } else { last - s }];
            *free = free.max(arrival(&ends, pass, s, at));
            if let Some(other) = order.get(place + 1).filter(|_| with_next) {
                let s = other.stage as usize;
                *free = free.max(arrival(&ends, other.pass, s, s * m + next[s][other.pass.kind_index()]));
            }
            match pass {
                PipelinePass::Forward => {
                    *free += stage.forward.0;
                    ends[0][at] = *free;
                }
                PipelinePass::Backward => {
                    *free += stage.recompute.0 + stage.backward_input.0;
                    ends[1][at] = *free;
                }
                PipelinePass::WholeBackward => {
                    let start = *free + stage.recompute.0;
                    *free = start + stage.backward_input.0 + stage.backward_weight.0;
                    ends[1][at] = *free;
                    gradients[s] = PassSpan { start, end: *free };
                }
                PipelinePass::Weight => {
                    let span = PassSpan { start: *free, end: *free + stage.backward_weight.0 };
                    gradients[s] = span;
                    *free = span.end;
                }
            }
            if let Some(at) = together.take() {
                ends[0][at] = *free;
            }
            together = with_next.then_some(at);
        }
        self.end_of_updates(&free, &gradients)
    }

    /// Returns the end of the last update, from the ends of all devices' passes and the spans of the stages' last
    /// gradients.
    fn end_of_updates(&self, free: &[f64], gradients: &[PassSpan]) -> f64 {
        let last = self.stages.len() - 1;
        let stages = |device: usize| [device, last - device];
        let reduced = |k: usize| {
            times_of_reductions(self, &stages(k), free[k], gradients)
                .last()
                .map_or(free[k], |reduction| reduction.span.end.max(free[k]))
        };
        let reduced: Vec<f64> = (0..free.len()).map(reduced).collect();
        let all = reduced.iter().copied().fold(0.0, f64::max);
        let ends = reduced.iter().enumerate().map(|(k, &own)| {
            let start = if self.optimizer_waits_for_all { all } else { own };
            stages(k).iter().fold(start, |now, &s| now + self.stages[s].optimizer.0)
        });
        ends.fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::pipeline::{GradientReduction, PipelineSchedule, PipelineStage, v_in_flight};
    use crate::units::Seconds;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// The simulated order is the one that the search among the orders chose, and no order is faster.
        #[test]
        fn the_order_that_is_run_takes_least(
            (p, m) in (1_usize..6, 1_u32..14),
            passes in prop::collection::vec((0_u32..9, 0_u32..9, 0_u32..5, 0_u32..5), 12),
            (waits, buckets) in (any::<bool>(), 0_u32..4),
            schedule in prop::sample::select(VSchedule::ALL.to_vec()),
        ) {
            let time = |x: u32| Seconds(f64::from(x) / 2.0);
            let stage = |&(f, b, w, c): &(u32, u32, u32, u32)| PipelineStage {
                forward: time(f),
                recompute: time(c),
                backward_input: time(b),
                backward_weight: time(w),
                reduction: time(3 * c),
                optimizer: time(w + c),
                ..PipelineStage::default()
            };
            let whole = PipelineSchedule::InV(schedule);
            let m = m.max(whole.least_micro_batches(p as u32));
            let pipeline = Pipeline {
                stages: passes[..2 * p].iter().map(stage).collect(),
                sends: passes[1..2 * p].iter().map(|(.., c)| time(*c)).collect(),
                reduction: if buckets > 0 { GradientReduction::Overlapped { buckets } } else { GradientReduction::AfterBackward },
                optimizer_waits_for_all: waits,
                ..Pipeline::with_uniform_stages(PipelineStage::default(), 2 * p, m, whole)
            };
            let orders = v_orders(schedule, p, m as usize);
            let totals: Vec<f64> = orders.iter().map(|order| pipeline.time_under_order(order)).collect();
            let least = totals.iter().copied().fold(f64::INFINITY, f64::min);
            let simulated = pipeline.simulate_step().unwrap();
            prop_assert_eq!(simulated.total, Seconds(least));
            prop_assert_eq!(pipeline.simulate_without_records().unwrap().total, simulated.total);
        }
    }

    /// A device never has more passes in flight through its later chunk than through its earlier one: forward passes
    /// reach it later, and its weight gradients come first.
    #[test]
    fn orders_hold_no_more_than_the_limit_and_no_more_late_passes_than_early_ones() {
        let sizes = (1..10).flat_map(|p| [1, 2, p, 2 * p - 1, 2 * p, 4 * p + 3].map(move |m| (p, m)));
        for (schedule, (p, m)) in VSchedule::ALL.into_iter().flat_map(|v| sizes.clone().map(move |size| (v, size))) {
            let limit = schedule.most_passes(p as u32) as usize;
            let m = m.max(PipelineSchedule::InV(schedule).least_micro_batches(p as u32) as usize);
            for order in v_orders(schedule, p, m).iter() {
                let passes = |turn: &StageTurn| if turn.pass == PipelinePass::WholeBackward { 2 } else { 1 };
                assert_eq!(order.iter().map(passes).sum::<usize>(), 6 * p * m);
                let (mut held, mut waiting) = (vec![0_usize; 2 * p], vec![0_usize; 2 * p]);
                for turn in order {
                    let stage = turn.stage as usize;
                    match turn.pass {
                        PipelinePass::Forward => held[stage] += 1,
                        PipelinePass::Backward => {
                            waiting[stage] += 1;
                            assert!(held[stage] >= waiting[stage]);
                        }
                        PipelinePass::Weight => {
                            (held[stage], waiting[stage]) = (held[stage] - 1, waiting[stage] - 1);
                        }
                        // Weight gradients are taken in order of micro-batches.
                        PipelinePass::WholeBackward => {
                            assert_eq!(waiting[stage], 0);
                            held[stage] -= 1;
                        }
                    }
                    let other = 2 * p - 1 - stage;
                    let (early, late) = (held[stage.min(other)], held[stage.max(other)]);
                    assert!(
                        early + late <= limit && late <= early && early <= (limit - 1).min(m),
                        "{schedule:?} p {p} m {m}: {early} {late}"
                    );
                    // Never more than at one of the corners, whichever chunk keeps more.
                    let corners = v_in_flight(schedule, p as u32, m as u32);
                    for [one, other] in [[0, 1], [1, 1], [1, 0], [3, 1], [1, 3]] {
                        let most = corners.map(|[early, late]| early as usize * one + late as usize * other);
                        assert!(
                            early * one + late * other <= most[0].max(most[1]),
                            "p {p} m {m}: {early} {late}, {corners:?}"
                        );
                    }
                }
                assert!(held.iter().all(|held| *held == 0));
            }
        }
    }
}
