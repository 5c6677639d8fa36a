//! Bounds on the passes of splits of a plan's layers, by what one micro-batch takes on a device.

use super::near::{NEAR_TRIED, near_splits};
use sim::pipeline::{ChunkWork, EndedPipeline, RowPipeline, Schedule};
use sim::units::Seconds;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use step::{Alike, Arrangement, Shape, SoftwareStack, TrainingPlan};
use workloads::{ChunkSplit, Layout};

/// Seconds of one micro-batch's passes on one device, forward and backward, what nothing hides included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Loads {
    /// The embedding.
    pub embedding: f64,
    /// One layer.
    pub layer: f64,
    /// The head.
    pub head: f64,
    /// What every chunk takes besides, at least.
    pub chunk: f64,
    /// What nothing hides of a send between chunks, and what the sends between devices farther apart take longer, all together: at least.
    pub sends: [f64; 2],
}

impl Loads {
    /// Those of a shape, what chunks and sends take besides left out.
    pub fn of(shape: &Shape, stack: &SoftwareStack) -> Self {
        let [embedding, layer, head] = shape.loads(stack).map(|time| time.0);
        Self { embedding, layer, head, chunk: 0.0, sends: [0.0; 2] }
    }

    pub fn all(&self, layers: u64) -> f64 {
        self.embedding + self.layer * layers as f64 + self.head
    }

    /// Seconds that the passes of a split take at least: each device's, behind the way to it.
    pub fn bound(&self, split: &ChunkSplit, layout: &Layout, schedule: Schedule, micro_batches: u64) -> f64 {
        let arrangement = Arrangement::new(*layout, *split, schedule, micro_batches);
        let waits = !schedule.splits_backward();
        let device = |alike: Alike| {
            let ends = [alike.counts[0], alike.counts[2]].map(|count| count as f64);
            let chunks = f64::from(layout.virtual_stages) * self.chunk;
            let work = self.part(arrangement.layers_on(alike.from)) + ends[0] * self.embedding + ends[1] * self.head + chunks;
            // Of the devices that hold the same the last has the longest way to it.
            let way = if waits && alike.to > 0 { self.embedding + self.part(split.layers_before(alike.to.into())) } else { 0.0 };
            way + micro_batches as f64 * work
        };
        arrangement.devices().map(device).fold(0.0, f64::max)
    }

    /// Seconds that the passes of a split take at least under GPipe and 1F1B, plain or interleaved: paths whose bounds ([`RowPipeline`]) are sums of
    /// whole chunks' passes, forward and backward, or means of two such, so that half of either direction does.
    pub fn paths(&self, split: &ChunkSplit, layout: &Layout, schedule: Schedule, micro_batches: u64) -> f64 {
        let half = |seconds: f64| ChunkWork {
            forward: Seconds((seconds + self.chunk) / 2.0),
            backward: Seconds((seconds + self.chunk) / 2.0),
            ..ChunkWork::default()
        };
        let pipeline = EndedPipeline {
            first: half(self.embedding + self.part(split.first)),
            inner: half(self.part(split.inner)),
            last: half(self.part(split.last) + self.head),
            send: Seconds(self.sends[0]),
            farther: Seconds(self.sends[1]),
            devices: layout.pipeline,
            micro_batches: u32::try_from(micro_batches).unwrap_or(u32::MAX),
        };
        let longer = half(self.part(split.inner + 1));
        let row = RowPipeline { pipeline, longer, from: split.longer_from, count: split.longer };
        row.time(Arrangement::new(*layout, *split, schedule, micro_batches).schedule).seconds().0
    }

    /// Seconds of so many layers.
    fn part(&self, layers: u64) -> f64 {
        self.layer * layers as f64
    }

    /// All splits of a plan's layers whose bound may be below a limit, in the order of their bounds: of the passes, and what follows them at least
    /// where the first device holds so many layers.
    pub fn splits(&self, layers: u64, plan: &TrainingPlan, limit: f64, rest: &mut impl Rest) -> InOrder {
        let (layout, m) = (&plan.layout, plan.micro_batches());
        let v = u64::from(layout.virtual_stages);
        let each = limit / m as f64;
        let mut splits = Vec::new();
        for between in layout.betweens(layers) {
            // What a device between works at least, and the ends' devices besides their ends.
            let inner = if layout.pipeline > 2 { between.inner * v + u64::from(v == 1 && between.longer > 0) } else { 0 };
            if self.part(inner) > each {
                continue;
            }
            let others = if plan.schedule == Schedule::ZbV { 0.0 } else { self.part(between.inner * (v - 1)) };
            // What rounding leaves out of a whole number is given back.
            let most = |end: f64| ((each - others - end) / self.layer + 1e-9).clamp(-1.0, layers as f64).floor();
            let (first, last) = (most(self.embedding), most(self.head));
            if first < 0.0 || last < 0.0 {
                continue;
            }
            let ends = layers - between.layers();
            for first in ends.saturating_sub(last as u64)..=ends.min(first as u64) {
                let split = between.split(first, ends - first);
                splits.extend(self.coarse(split, plan, limit, rest));
            }
        }
        InOrder { waiting: splits.into() }
    }

    /// Of the splits near the even one ([`near_splits`]) the few of the least bounds, where these are below a limit.
    pub fn near(&self, layers: u64, plan: &TrainingPlan, limit: f64, rest: &mut impl Rest) -> InOrder {
        let waiting = near_splits(&plan.layout, layers).into_iter().filter_map(|split| self.coarse(split, plan, limit, rest));
        let mut all = InOrder { waiting: waiting.collect() };
        let least = std::iter::from_fn(|| all.next(self, plan, limit, rest)).take(NEAR_TRIED);
        InOrder { waiting: least.map(|(bound, split)| Reverse(Bounded { bound, fine: true, split, once: 0.0 })).collect() }
    }

    /// A split bounded by its devices' work, where that is below a limit.
    fn coarse(&self, split: ChunkSplit, plan: &TrainingPlan, limit: f64, rest: &mut impl Rest) -> Option<Reverse<Bounded>> {
        let (layout, m) = (&plan.layout, plan.micro_batches());
        let passes = self.bound(&split, layout, plan.schedule, m);
        if passes >= limit {
            return None;
        }
        let once = rest.once(Arrangement::new(*layout, split, plan.schedule, m).layers_on(0));
        let bound = passes + once;
        (bound < limit).then_some(Reverse(Bounded { bound, fine: false, split, once }))
    }

    /// A split bounded by paths through its schedule too, where it may fit.
    fn fine(&self, coarse: Bounded, plan: &TrainingPlan, rest: &impl Rest) -> Option<Bounded> {
        if !rest.may_fit(coarse.split) {
            return None;
        }
        let bound = match plan.schedule.splits_backward() {
            true => coarse.bound,
            false => coarse.bound.max(self.paths(&coarse.split, &plan.layout, plan.schedule, plan.micro_batches()) + coarse.once),
        };
        Some(Bounded { bound, fine: true, ..coarse })
    }
}

/// Splits in the order of their bounds. A split's paths, and whether it may fit, are looked at when its turn comes: of thousands few are asked for.
pub(super) struct InOrder {
    waiting: BinaryHeap<Reverse<Bounded>>,
}

impl InOrder {
    /// The split of the least bound with its bound, if that is below a limit.
    pub fn next(&mut self, loads: &Loads, plan: &TrainingPlan, limit: f64, rest: &impl Rest) -> Option<(f64, ChunkSplit)> {
        loop {
            let Reverse(least) = self.waiting.pop()?;
            if least.bound >= limit {
                return None;
            }
            if least.fine {
                return Some((least.bound, least.split));
            }
            self.waiting.extend(loads.fine(least, plan, rest).map(Reverse));
        }
    }
}

/// A split and seconds that its step is not below.
#[derive(Debug, Clone, Copy)]
struct Bounded {
    bound: f64,
    /// Whether paths are in the bound and the split may fit.
    fine: bool,
    split: ChunkSplit,
    /// Seconds of the bound that are not of the passes.
    once: f64,
}

impl Ord for Bounded {
    /// Of equal bounds what is not yet fine comes first: it may turn out larger. Then by the splits.
    fn cmp(&self, other: &Self) -> Ordering {
        self.bound.total_cmp(&other.bound).then(self.fine.cmp(&other.fine)).then(self.split.cmp(&other.split))
    }
}

impl PartialOrd for Bounded {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Bounded {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Bounded {}

/// What is known of a plan's splits besides their passes.
pub(super) trait Rest {
    /// Seconds that a step takes at least besides its passes and the overhead, where the first device holds so many layers.
    fn once(&mut self, layers: u64) -> f64;

    /// Whether a split may fit.
    fn may_fit(&self, split: ChunkSplit) -> bool;
}

/// What the passes of any split take at least, in terms of all devices' work for one micro-batch.
pub(super) fn least_share(layout: &Layout, schedule: Schedule, micro_batches: u64) -> f64 {
    let (m, p) = (micro_batches as f64, f64::from(layout.pipeline));
    let waits = layout.virtual_stages == 1 && !matches!(schedule, Schedule::ZbH1 | Schedule::ZbV);
    if waits { 1.0 / (1.0 - (1.0 - 1.0 / m).powf(p)) } else { m / p }
}
