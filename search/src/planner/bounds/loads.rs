//! Lower bounds on the passes of splits of a plan's layers, from the work of one micro-batch on a device.

use crate::planner::bounds::near::{NEAR_TRIED, near_splits};
use sim::pipeline::{ChunkWork, LongerRunPipeline, PipelineSchedule, UnequalEndsPipeline};
use sim::units::Seconds;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::RangeInclusive;
use step::{Arrangement, DeviceGroup, DeviceHolding, EndChunk, PieceLoad, PlanShape, SoftwareStack, TrainingPlan};
use workloads::{ChunkSplit, Layout};

/// Seconds of one micro-batch's passes on one device, forward and backward, with exposed communication.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PassLoads {
    /// The embedding.
    pub embedding: f64,
    /// One layer.
    pub layer: f64,
    /// The head.
    pub head: f64,
    /// The embedding, one layer and the head, if gradients of weights are separate passes.
    pub apart: [PassSeconds; 3],
    /// Lower bound on the further seconds of every chunk: forward and backward.
    pub chunk: [f64; 2],
    /// Lower bound on the further seconds of an inner chunk, if it exceeds `chunk`: a constant part, and a part per
    /// layer. Each is (forward, backward).
    pub between: [[f64; 2]; 2],
    /// Lower bounds in seconds on the exposed time of a send between chunks, and on the further time of all sends
    /// between more distant devices.
    pub sends: [f64; 2],
}

/// Seconds of one micro-batch's passes, if gradients of weights are separate passes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct PassSeconds {
    pub forward: f64,
    /// Reruns, and gradients of inputs.
    pub input: f64,
    /// The gradients of weights.
    pub weight: f64,
}

impl PassLoads {
    /// Loads of a shape, without the further seconds of chunks and sends.
    pub fn of_shape(shape: &PlanShape, stack: &SoftwareStack) -> Self {
        let loads = shape.piece_loads(stack);
        let [embedding, layer, head] = loads.map(|load| (load.forward + load.backward).0);
        let apart = loads.map(|PieceLoad { forward, apart: [input, weight], .. }| PassSeconds {
            forward: forward.0,
            input: input.0,
            weight: weight.0,
        });
        Self { embedding, layer, head, apart, chunk: [0.0; 2], between: [[0.0; 2]; 2], sends: [0.0; 2] }
    }

    pub fn all_loads(&self, layers: u64) -> f64 {
        self.embedding + self.layer * layers as f64 + self.head
    }

    /// Lower bound in seconds on a split's passes and the exchanges after them. `late` gives the seconds of a device's
    /// exchange.
    ///
    /// A device's passes start once the first micro-batch has reached it, and its exchange follows them. The first
    /// device's exchange follows the last pass of all. If gradients of weights are separate passes, this does not hold;
    /// then the last micro-batch's way back to the first device is not counted either.
    pub fn lower_bound_of_split(
        &self,
        split: &ChunkSplit,
        layout: &Layout,
        schedule: PipelineSchedule,
        micro_batches: u64,
        mut late: impl FnMut(DeviceHolding) -> f64,
    ) -> f64 {
        let arrangement = Arrangement::new(*layout, *split, schedule, micro_batches);
        let back = if schedule.splits_backward() { 0.0 } else { 1.0 };
        let between = |layers: u64| if layers > 0 { self.overhead_of_chunk(layers) } else { self.chunk };
        let besides =
            [self.chunk, between(split.inner), self.chunk, between(split.inner + 1)].map(|[up, down]| up + down);
        let (mut passes, mut ends, mut first) = (0.0_f64, 0.0_f64, 0.0);
        for DeviceGroup { from, to, counts, .. } in arrangement.device_groups() {
            let held =
                DeviceHolding { layers: arrangement.layers_on_device(from), ends: [counts[0] > 0, counts[2] > 0] };
            let [embedding, head] = held.ends.map(|held| f64::from(u8::from(held)));
            let chunks: f64 = counts.iter().zip(besides).map(|(&count, each)| count as f64 * each).sum();
            let work = self.seconds_of_layers(held.layers) + embedding * self.embedding + head * self.head + chunks;
            // The last of several devices that hold the same layers has the longest way.
            let before = if to > 0 { Some(split.layers_before_chunk(to.into()) as f64) } else { None };
            let way = |end: f64, layer: f64| before.map_or(0.0, |layers| end + layer * layers);
            let up = way(self.apart[0].forward, self.apart[1].forward);
            let around = up + back * (way(self.embedding, self.layer) - up);
            let (all, late) = (micro_batches as f64 * work, late(held));
            passes = passes.max(around + all);
            ends = ends.max(up + all + late);
            if from == 0 {
                first = back * late;
            }
        }
        ends.max(passes + first)
    }

    /// Lower bound in seconds on any split with `inner` layers per inner chunk (some with one more) and `ends` layers
    /// in both end chunks together. The first chunk's layers are in `firsts`. Each end counts with its least number of
    /// layers. Infinite if `firsts` is empty.
    fn lower_bound_with_ends(
        &self,
        inner: u64,
        firsts: &RangeInclusive<u64>,
        ends: u64,
        plan: &TrainingPlan,
        rest: &mut impl SplitCosts,
    ) -> f64 {
        if firsts.is_empty() {
            return f64::INFINITY;
        }
        let (first, last) = (*firsts.start(), ends - firsts.end());
        let split = ChunkSplit { chunks: plan.layout.chunk_count(), first, inner, last, ..ChunkSplit::default() };
        let passes = self.lower_bound_by_paths(&split, &plan.layout, plan.schedule, plan.micro_batches());
        let late = if plan.schedule.splits_backward() {
            0.0
        } else {
            rest.late_exchange_seconds(DeviceHolding::first_device(first))
        };
        passes + late
    }

    /// Lower bound in seconds on the passes of a split, from paths through its schedule.
    pub fn lower_bound_by_paths(
        &self,
        split: &ChunkSplit,
        layout: &Layout,
        schedule: PipelineSchedule,
        micro_batches: u64,
    ) -> f64 {
        let work = |layers: u64, ends: [f64; 2], besides: [f64; 2]| match schedule.splits_backward() {
            true => self.chunk_with_separate_gradients(layers, ends, besides),
            false => {
                let all = ends[0] * self.embedding
                    + self.seconds_of_layers(layers)
                    + ends[1] * self.head
                    + besides[0]
                    + besides[1];
                // The bounds of GPipe and 1F1B ([`LongerRunPipeline`]) are sums of whole chunks' passes, forward and
                // backward, or means of two such sums. So each direction may count half.
                ChunkWork { forward: Seconds(all / 2.0), backward: Seconds(all / 2.0), ..ChunkWork::default() }
            }
        };
        let inner =
            |layers: u64| work(layers, [0.0; 2], if layers > 0 { self.overhead_of_chunk(layers) } else { self.chunk });
        let pipeline = UnequalEndsPipeline {
            first: work(split.first, [1.0, 0.0], self.chunk),
            inner: inner(split.inner),
            last: work(split.last, [0.0, 1.0], self.chunk),
            send: Seconds(self.sends[0]),
            farther: Seconds(self.sends[1]),
            devices: layout.pipeline,
            micro_batches: u32::try_from(micro_batches).unwrap_or(u32::MAX),
        };
        let row = LongerRunPipeline {
            pipeline,
            longer: inner(split.inner + 1),
            from: split.longer_from,
            count: split.longer,
        };
        row.time_of_passes(Arrangement::new(*layout, *split, schedule, micro_batches).schedule).seconds().0
    }

    /// The work of a chunk with these layers and ends, if gradients of weights are separate passes.
    fn chunk_with_separate_gradients(&self, layers: u64, [embedding, head]: [f64; 2], besides: [f64; 2]) -> ChunkWork {
        let of = |pass: fn(&PassSeconds) -> f64| {
            let [first, layer, last] = self.apart.each_ref().map(pass);
            embedding * first + layers as f64 * layer + head * last
        };
        let weight = of(|load| load.weight);
        ChunkWork {
            forward: Seconds(of(|load| load.forward) + besides[0]),
            backward: Seconds(of(|load| load.input) + besides[1] + weight),
            weight: Seconds(weight),
        }
    }

    /// Lower bound on the further seconds of an inner chunk with these layers: forward and backward.
    pub(crate) fn overhead_of_chunk(&self, layers: u64) -> [f64; 2] {
        let [once, each] = self.between;
        [0, 1].map(|pass| (once[pass] + each[pass] * layers as f64).max(self.chunk[pass]))
    }

    /// Seconds of one micro-batch's passes through these layers.
    fn seconds_of_layers(&self, layers: u64) -> f64 {
        self.layer * layers as f64
    }

    /// All splits of a plan's layers whose bound may be below `limit` seconds, ascending by bound. The bound covers the
    /// passes and the least exchange after them for the layers of the first device.
    pub fn splits_by_bound(
        &self,
        layers: u64,
        plan: &TrainingPlan,
        limit: f64,
        rest: &mut impl SplitCosts,
    ) -> SplitsByBound {
        let (layout, m) = (&plan.layout, plan.micro_batches());
        let v = u64::from(layout.virtual_stages);
        let each = limit / m as f64;
        let (mut splits, mut known) = (Vec::new(), None);
        for between in layout.inner_chunk_choices(layers) {
            // The least number of layers on an inner device, and the seconds of the other chunks on the devices with
            // the ends.
            let inner =
                if layout.pipeline > 2 { between.inner * v + u64::from(v == 1 && between.longer > 0) } else { 0 };
            if self.seconds_of_layers(inner) > each {
                continue;
            }
            let others = if plan.schedule.is_in_v() { 0.0 } else { self.seconds_of_layers(between.inner * (v - 1)) };
            // The small addend gives back what rounding took from a whole number.
            let most = |end: f64| ((each - others - end) / self.layer + 1e-9).clamp(-1.0, layers as f64).floor();
            let (first, last) = (most(self.embedding), most(self.head));
            if first < 0.0 || last < 0.0 {
                continue;
            }
            let ends = layers - between.layer_count();
            let firsts = ends.saturating_sub(last as u64)..=ends.min(first as u64);
            // The bound does not depend on the position of the longer chunks.
            let alike = (between.inner, between.longer);
            let least = match known {
                Some((other, least)) if other == alike => least,
                _ => known.insert((alike, self.lower_bound_with_ends(between.inner, &firsts, ends, plan, rest))).1,
            };
            if least >= limit {
                continue;
            }
            // The other devices hold the fewest layers if this end holds the most.
            let [few, many] = [*firsts.start(), *firsts.end()].map(|first| between.with_ends(first, ends - first));
            if !rest.may_fit_without(few, EndChunk::Last) || !rest.may_fit_without(many, EndChunk::First) {
                continue;
            }
            for first in firsts {
                let split = between.with_ends(first, ends - first);
                splits.extend(self.bound_coarsely(split, plan, limit, rest));
            }
        }
        SplitsByBound { waiting: splits.into() }
    }

    /// The few splits with the least bounds below `limit` seconds, among those near the even one ([`near_splits`]).
    pub fn near_splits_by_bound(
        &self,
        layers: u64,
        plan: &TrainingPlan,
        limit: f64,
        rest: &mut impl SplitCosts,
    ) -> SplitsByBound {
        let waiting = near_splits(&plan.layout, layers)
            .into_iter()
            .filter_map(|split| self.bound_coarsely(split, plan, limit, rest));
        let mut all = SplitsByBound { waiting: waiting.collect() };
        let least = std::iter::from_fn(|| all.next_below(self, plan, limit, rest)).take(NEAR_TRIED);
        SplitsByBound { waiting: least.map(Reverse).collect() }
    }

    /// Bounds a split by its devices' work. `None` if the bound is not below the limit.
    fn bound_coarsely(
        &self,
        split: ChunkSplit,
        plan: &TrainingPlan,
        limit: f64,
        rest: &mut impl SplitCosts,
    ) -> Option<Reverse<BoundedSplit>> {
        let (layout, m) = (&plan.layout, plan.micro_batches());
        let first = DeviceHolding::first_device(Arrangement::new(*layout, split, plan.schedule, m).layers_on_device(0));
        let update = rest.update_seconds(first);
        let bound = self
            .lower_bound_of_split(&split, layout, plan.schedule, m, |held| rest.late_exchange_seconds(held))
            + update;
        if bound >= limit {
            return None;
        }
        let late = if plan.schedule.splits_backward() { 0.0 } else { rest.late_exchange_seconds(first) };
        Some(Reverse(BoundedSplit { bound, fine: false, split, once: late + update }))
    }

    /// Bounds a split by paths through its schedule too, after [`Self::bound_coarsely`]. `None` if the split certainly
    /// does not fit.
    fn bound_finely(&self, coarse: BoundedSplit, plan: &TrainingPlan, rest: &impl SplitCosts) -> Option<BoundedSplit> {
        if !rest.may_fit(coarse.split) {
            return None;
        }
        let paths =
            self.lower_bound_by_paths(&coarse.split, &plan.layout, plan.schedule, plan.micro_batches()) + coarse.once;
        Some(BoundedSplit { bound: coarse.bound.max(paths), fine: true, ..coarse })
    }
}

/// Splits in ascending order of their bounds. Paths and memory of a split are checked only when its turn comes, because
/// few of thousands are needed.
pub(crate) struct SplitsByBound {
    waiting: BinaryHeap<Reverse<BoundedSplit>>,
}

impl SplitsByBound {
    /// The next split with its fine bound; `None` if no further bound is below `limit`.
    pub fn next_below(
        &mut self,
        loads: &PassLoads,
        plan: &TrainingPlan,
        limit: f64,
        rest: &impl SplitCosts,
    ) -> Option<BoundedSplit> {
        loop {
            let Reverse(least) = self.waiting.pop()?;
            if least.bound >= limit {
                return None;
            }
            if least.fine {
                return Some(least);
            }
            // Callers never raise the limit, so a split above it can be dropped.
            let fine = loads.bound_finely(least, plan, rest).filter(|fine| fine.bound < limit);
            self.waiting.extend(fine.map(Reverse));
        }
    }
}

/// A split with a lower bound in seconds on its step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoundedSplit {
    pub bound: f64,
    /// True if the bound includes paths, and the split may fit.
    fine: bool,
    pub split: ChunkSplit,
    /// Seconds of the bound outside the passes.
    once: f64,
}

impl Ord for BoundedSplit {
    /// On equal bounds a coarse bound comes first, because it may rise. Further ties go by the split.
    fn cmp(&self, other: &Self) -> Ordering {
        self.bound.total_cmp(&other.bound).then(self.fine.cmp(&other.fine)).then(self.split.cmp(&other.split))
    }
}

impl PartialOrd for BoundedSplit {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for BoundedSplit {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for BoundedSplit {}

/// Costs of a plan's splits besides their passes.
pub(crate) trait SplitCosts {
    /// Lower bound in seconds on a device's exchange after its last pass.
    fn late_exchange_seconds(&mut self, held: DeviceHolding) -> f64;

    /// Seconds of a device's update.
    fn update_seconds(&mut self, held: DeviceHolding) -> f64;

    /// False only if a split certainly does not fit.
    fn may_fit(&self, split: ChunkSplit) -> bool;

    /// False only if the devices without this end chunk certainly do not fit.
    fn may_fit_without(&self, split: ChunkSplit, end: EndChunk) -> bool;
}

/// Seconds by what a device holds. Each value is computed once.
#[derive(Debug, Default)]
pub(crate) struct SecondsByHolding(Vec<Option<f64>>);

impl SecondsByHolding {
    pub fn get_or_insert_with(&mut self, held: DeviceHolding, compute: impl FnOnce() -> f64) -> f64 {
        let at = held.index();
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        *self.0[at].get_or_insert_with(compute)
    }
}

/// Lower bound on the time of the passes of any split, as a fraction of all devices' work for one micro-batch.
pub(crate) fn least_share_of_work(layout: &Layout, schedule: PipelineSchedule, micro_batches: u64) -> f64 {
    let (m, p) = (micro_batches as f64, f64::from(layout.pipeline));
    let waits = layout.virtual_stages == 1 && !schedule.splits_backward();
    if waits { 1.0 / (1.0 - (1.0 - 1.0 / m).powf(p)) } else { m / p }
}
