//! Other splits of the layers than the even one: fewer layers in the first and the last chunk, where embedding and head are.
//!
//! Every plan with a pipeline has as many of these as [`workloads::Layout::splits`] lists: some hundreds. They are not evaluated one by one. A bound
//! that no split of a plan's layers goes below, whatever chunks it makes, is held against the list that the even splits have left:
//! - Let device `j` of `p` work `D_j` per micro-batch. Its first pass waits for one micro-batch's way through the devices before it, and after its
//!   last one that way goes back: the passes take at least `D_0 + ... + D_(j-1) + m D_j`. With `D` the sum of all devices, the largest of these is
//!   least where each device does `1 - 1 / m` of what the one before does: `D / (1 - (1 - 1 / m)^p)`.
//! - With several chunks per device, or backward passes in two parts, `m D / p` is what remains of it.
//!
//! For the plans that are left, the splits are bounded one by one by the first rule with their own `D_j`, and those below the list evaluated,
//! least bound first, until the best is no more than the next bound. So every plan of the list has its best split.

use super::search::{Candidate, Found, Search};
use crate::step::{ChipTimes, Degrees, Lowered, Recent, Shape, TrainingPlan};
use rayon::prelude::*;
use sim::pipeline::{PassesTime, Schedule};
use sim::units::Bytes;
use std::collections::BTreeMap;
use workloads::{ChunkSplit, LayerEnds, Layout};

/// Seconds of one micro-batch's passes on one device, forward and backward, what nothing hides included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Loads {
    /// The embedding.
    pub embedding: f64,
    /// One layer.
    pub layer: f64,
    /// The head.
    pub head: f64,
}

impl Loads {
    fn all(&self, layers: u64) -> f64 {
        self.embedding + self.layer * layers as f64 + self.head
    }

    /// Seconds that the passes of a split take at least.
    fn bound(&self, split: &ChunkSplit, layout: &Layout, schedule: Schedule, micro_batches: u64) -> f64 {
        let (m, p, v) = (micro_batches as f64, layout.pipeline, f64::from(layout.virtual_stages));
        let part = |layers: u64| self.layer * layers as f64;
        let (first, inner, last) = (self.embedding + part(split.first), part(split.inner), part(split.last) + self.head);
        if schedule == Schedule::ZbV {
            return m * (first + last).max(inner * v);
        }
        let others = inner * (v - 1.0);
        // The way to the last device but one, and to the last.
        let way = first + inner * f64::from(p.saturating_sub(3));
        let to = if p > 2 { [way, way + inner] } else { [0.0, first] };
        let between = if p > 2 { inner * v } else { 0.0 };
        if schedule == Schedule::ZbH1 {
            return m * (first + others).max(between).max(last + others);
        }
        (m * (first + others)).max(to[0] + m * between).max(to[1] + m * (last + others))
    }
}

/// What the passes of any split take at least, in terms of all devices' work for one micro-batch.
fn least_share(layout: &Layout, schedule: Schedule, micro_batches: u64) -> f64 {
    let (m, p) = (micro_batches as f64, f64::from(layout.pipeline));
    let waits = layout.virtual_stages == 1 && !matches!(schedule, Schedule::ZbH1 | Schedule::ZbV);
    if waits { 1.0 / (1.0 - (1.0 - 1.0 / m).powf(p)) } else { m / p }
}

/// A plan of a lot that has other splits.
struct Open {
    /// Its place among the lot's pairs and among the division's schedules.
    pair: usize,
    schedule: usize,
    /// [`least_share`].
    share: f64,
}

/// Degrees that a lot keeps at most.
const KEPT: usize = 4096;

/// What plans of a lot share: degrees do not depend on what a layer keeps.
struct Shared<'c> {
    chip: &'c mut ChipTimes,
    /// By division and split; none where the split cannot be.
    degrees: BTreeMap<(u32, Option<LayerEnds>), Option<Degrees>>,
}

/// How the other splits were decided.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tried {
    /// All there are.
    pub splits: u64,
    /// Evaluated.
    pub tried: u64,
}

impl Search<'_> {
    /// Gives every plan of the list its best split, and the list every plan that belongs there with its best split. `loads` are those of the
    /// policies of every lot, in the order of [`Search::places`].
    pub(super) fn uneven(&self, found: &mut Found, loads: &[Vec<Option<Loads>>]) -> Tried {
        let limit = found.limit(self.length);
        let places = self.places();
        let each: Vec<(Found, Tried)> = places
            .par_iter()
            .zip(loads)
            .map_init(|| self.chip.clone(), |chip, (&(family, lot), loads)| self.uneven_lot(chip, (family, lot), loads, limit))
            .collect();
        let mut all = Tried::default();
        for (one, tried) in each {
            one.best.into_iter().for_each(|candidate| found.better(candidate, self.length));
            all = Tried { splits: all.splits + tried.splits, tried: all.tried + tried.tried };
        }
        all
    }

    fn uneven_lot(
        &self,
        chip: &mut ChipTimes,
        (family, lot): (usize, usize),
        loads: &[Option<Loads>],
        limit: f64,
    ) -> (Found, Tried) {
        let (mut found, mut tried) = (Found::default(), Tried::default());
        let layers = self.job.model.layers;
        let (open, splits) = self.open(family, lot);
        let least = open.iter().map(|o| o.share).fold(f64::INFINITY, f64::min);
        let overhead = self.evaluator.overhead().0;
        let mut shared = Shared { chip, degrees: BTreeMap::new() };
        let mut lowered = None;
        for (policy, loads) in loads.iter().enumerate() {
            let Some(loads) = loads else { continue };
            tried.splits += splits;
            let work = loads.all(layers);
            if work * least + overhead >= limit.min(found.limit(self.length)) {
                continue;
            }
            let mut shape = None;
            for plan in &open {
                if work * plan.share + overhead >= limit.min(found.limit(self.length)) {
                    continue;
                }
                let candidate = self.candidate((family, lot), policy, plan);
                let first = self.plan(candidate);
                let lowered = lowered.get_or_insert_with(|| Lowered::new(self.job.model, &first, self.job.stack));
                let Ok(lowered) = lowered else { continue };
                let shape = shape.get_or_insert_with(|| lowered.shape(shared.chip, self.job.fabric, &first));
                let Ok(shape) = shape else { continue };
                let limit = limit.min(found.limit(self.length));
                let (best, count) = self.best_split(&mut shared, shape, &first, candidate, loads, limit);
                tried.tried += count;
                if let Some(best) = best {
                    found.rank(best, self.length);
                }
            }
        }
        (found, tried)
    }

    /// The plans of a lot under one policy that have other splits, and how many of those there are.
    fn open(&self, family: usize, lot: usize) -> (Vec<Open>, u64) {
        let (mut open, mut splits) = (Vec::new(), 0);
        let family = &self.families[family];
        for (pair, &(place, m)) in family.lots[lot].pairs.iter().enumerate() {
            let division = &family.divisions[place];
            if division.layout.pipeline < 2 {
                continue;
            }
            // The even split, or the one in its place, has been evaluated.
            let others = division.layout.split_count(self.job.model.layers).saturating_sub(1);
            for (schedule, &kind) in division.schedules.iter().enumerate() {
                splits += others;
                open.push(Open { pair, schedule, share: least_share(&division.layout, kind, m) });
            }
        }
        (open, splits)
    }

    fn candidate(&self, (family, lot): (usize, usize), policy: usize, open: &Open) -> Candidate {
        let (division, _) = self.families[family].lots[lot].pairs[open.pair];
        Candidate {
            time: 0.0,
            family: family as u32,
            lot: lot as u32,
            policy: policy as u32,
            division: division as u32,
            schedule: open.schedule as u32,
            ends: None,
        }
    }

    /// The fastest other split of a plan that fits and is faster than `limit`, and how many were evaluated.
    fn best_split(
        &self,
        shared: &mut Shared<'_>,
        shape: &Shape,
        plan: &TrainingPlan,
        candidate: Candidate,
        loads: &Loads,
        limit: f64,
    ) -> (Option<Candidate>, u64) {
        let (layers, m) = (self.job.model.layers, plan.micro_batches());
        let domain = self.job.domain(plan);
        if self.evaluator.least_need(shape, plan, domain) > self.evaluator.capacity().device {
            return (None, 0);
        }
        let (known, overhead) = (plan.layout.chunk_split(layers).ok(), self.evaluator.overhead().0);
        let mut splits: Vec<(f64, ChunkSplit)> = (plan.layout.splits(layers))
            .filter(|split| Some(*split) != known)
            .map(|split| (loads.bound(&split, &plan.layout, plan.schedule, m) + overhead, split))
            .filter(|(bound, _)| *bound < limit)
            .collect();
        splits.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let sends = self.evaluator.sends(shared.chip, shape, plan);
        let (mut best, mut tried): (Option<Candidate>, u64) = (None, 0);
        let mut plan = plan.clone();
        for (bound, split) in splits {
            let least = best.map_or(limit, |b| b.time);
            if bound >= least {
                break;
            }
            tried += 1;
            plan.layout.ends = split.ends();
            if shared.degrees.len() >= KEPT {
                shared.degrees.clear();
            }
            let Shared { chip, degrees } = &mut *shared;
            let degrees = degrees.entry((candidate.division, plan.layout.ends));
            let degrees = degrees.or_insert_with(|| self.evaluator.degrees(chip, shape, &plan, domain).ok());
            let Some(degrees) = degrees else { continue };
            if self.evaluator.lack(self.evaluator.need(shape, degrees, plan.schedule, m)) > Bytes::ZERO {
                continue;
            }
            let time = match self.evaluator.time(&mut Recent::default(), shape, degrees, &sends, plan.schedule, m) {
                PassesTime::AtLeast(bound) if bound.0 < least => {
                    self.evaluator.simulate(shape, degrees, &sends, plan.schedule, m).ok()
                }
                PassesTime::AtLeast(_) => None,
                PassesTime::Exact(time) => Some(time),
            };
            if let Some(time) = time.filter(|time| time.0 < least) {
                best = Some(Candidate { time: time.0, ends: plan.layout.ends, ..candidate });
            }
        }
        (best, tried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sim::pipeline::{StageWork, one_f_one_b_exact_time};
    use sim::units::Seconds;

    /// All lists of `p` numbers with the sum `n`.
    fn compositions(n: u64, p: u32) -> Vec<Vec<u64>> {
        if p == 1 {
            return vec![vec![n]];
        }
        (0..=n)
            .flat_map(|last| {
                compositions(n - last, p - 1).into_iter().map(move |mut list| {
                    list.push(last);
                    list
                })
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Against every contiguous split, those with unequal chunks between included.
        #[test]
        fn no_contiguous_split_is_below_the_bounds(
            (p, n, m) in (2_u32..6, 1_u64..9, 1_u64..12),
            (forward, backward, send) in (0.5_f64..2.0, 0.5_f64..4.0, 0.0_f64..0.5),
            embedding in 0.0_f64..2.0,
            head in 0.0_f64..8.0,
        ) {
            let layout = Layout { pipeline: p, ..Layout::default() };
            let loads = Loads { embedding, layer: forward + backward, head };
            let schedule = Schedule::OneForwardOneBackward;
            let share = least_share(&layout, schedule, m) * loads.all(n);
            let third = |x: f64| StageWork { forward: Seconds(x / 3.0), backward: Seconds(x * 2.0 / 3.0) };
            let sends = vec![Seconds(send); p as usize - 1];
            for list in compositions(n, p) {
                let mut work: Vec<StageWork> = list
                    .iter()
                    .map(|l| StageWork { forward: Seconds(forward * *l as f64), backward: Seconds(backward * *l as f64) })
                    .collect();
                for (end, more) in [(0, third(embedding)), (p as usize - 1, third(head))] {
                    work[end].forward += more.forward;
                    work[end].backward += more.backward;
                }
                let time = one_f_one_b_exact_time(&work, &sends, m as u32).0;
                prop_assert!(share <= time * (1.0 + 1e-9), "{list:?}: {share} {time}");
                let inner = &list[1..p as usize - 1];
                if inner.iter().all(|l| *l == inner[0]) {
                    let (first, last) = (list[0], list[p as usize - 1]);
                    let split = ChunkSplit { chunks: p.into(), first, inner: inner.first().copied().unwrap_or(0), last };
                    let bound = loads.bound(&split, &layout, schedule, m);
                    prop_assert!(bound <= time * (1.0 + 1e-9) && share <= bound * (1.0 + 1e-9), "{list:?}: {share} {bound} {time}");
                }
            }
        }
    }
}
