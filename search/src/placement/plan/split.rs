//! The best split for one pair of pipeline depth and data-parallel degree.

use super::bound::{Floor, Pair};
use super::profile::GradientSync;
use super::schedule::{in_flight, step_seconds};
use super::stage::{Place, Stages};

/// A complete split: the end of every stage, and its step time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Split {
    pub ends: Vec<usize>,
    pub step: f64,
}

/// Stages 0 to k - 1 laid over the chain's start.
#[derive(Debug, Clone, Copy)]
struct Label {
    sum: f64,
    bottleneck: f64,
    tail: f64,
    /// Where it ends, and the label it extends.
    end: usize,
    parent: usize,
}

pub(super) struct Splitter<'s, 'a, S: ?Sized> {
    pub stages: &'s mut Stages<'a, S>,
    pub pair: Pair,
    pub floor: Floor,
    /// The least bottleneck of any split of the pair.
    pub bottleneck: f64,
    /// Labels made.
    pub labels: u64,
}

impl<S: GradientSync + ?Sized> Splitter<'_, '_, S> {
    fn place(&self, stage: usize, first: usize, end: usize) -> Place {
        let depth = in_flight(self.pair.micro_batches, self.pair.stages, stage);
        Place { first, end, depth, data_parallel: self.pair.data_parallel }
    }

    /// The last position stage `stage` may end at: one piece is left for each stage after it.
    fn last_end(&self, stage: usize) -> usize {
        self.stages.chain.len() - (self.pair.stages - 1 - stage)
    }

    /// Ends of the stages of a split that fits `capacity` bytes at least possible memory, if there is one: from the last stage back, each
    /// takes as much as fits.
    ///
    /// This decides whether any split fits because it never starts a stage later than a split that fits does. Where such a split's own
    /// stage overlaps what is left, the overlap fits; where it does not, the piece that must come next lies in one of its earlier stages,
    /// which keep at least as many micro-batches. From the first stage on this fails: taking more would force a large piece
    /// into a stage that keeps more micro-batches than it has to.
    pub fn fill_memory(&mut self, capacity: u64) -> Option<Vec<usize>> {
        if capacity == u64::MAX {
            // Everything fits: each stage but the last is left one piece.
            return Some((1..self.pair.stages).chain([self.stages.chain.len()]).collect());
        }
        let (mut at, mut ends) = (self.stages.chain.len(), Vec::with_capacity(self.pair.stages));
        for stage in (0..self.pair.stages).rev() {
            // Memory grows as the start falls, which leaves one piece for each stage before: bisect.
            let (mut low, mut high) = (stage, at);
            while low < high {
                let middle = usize::midpoint(low, high);
                let fits = self.stages.least_memory(self.place(stage, middle, at)) <= capacity;
                if fits { high = middle } else { low = middle + 1 }
            }
            if low == at {
                return None;
            }
            ends.push(at);
            at = low;
        }
        ends.reverse();
        (at == 0).then_some(ends)
    }

    /// The step time of stages that fit.
    pub fn evaluate(&mut self, ends: &[usize]) -> Split {
        let (mut sum, mut bottleneck, mut tail, mut first) = (0.0, 0.0_f64, 0.0_f64, 0);
        for (stage, &end) in ends.iter().enumerate() {
            let place = self.place(stage, first, end);
            let time = self.time(place);
            sum += time;
            bottleneck = bottleneck.max(time);
            tail = tail.max(self.stages.tail(place));
            first = end;
        }
        Split { ends: ends.to_vec(), step: step_seconds(sum, bottleneck, self.pair.micro_batches, tail) }
    }

    /// [`Splitter::time`] if it is known, else at most that.
    fn time_bound(&mut self, place: Place) -> f64 {
        let extra = self.stages.extra_bound(place);
        self.stages.chain.seconds(place.first, place.end) + extra + self.stages.transfer(place)
    }

    fn time(&mut self, place: Place) -> f64 {
        let extra = self.stages.extra(place);
        self.stages.chain.seconds(place.first, place.end) + extra + self.stages.transfer(place)
    }

    /// Each stage takes as much as keeps its time within `limit`.
    fn fill_time(&mut self, limit: f64) -> Option<Vec<usize>> {
        let (mut at, mut ends) = (0, Vec::with_capacity(self.pair.stages));
        for stage in 0..self.pair.stages {
            let last = self.last_end(stage);
            // Time grows with the end, but for transfers: bisect.
            let (mut end, mut high) = (at, self.stages.chain.reach(at, limit).min(last));
            while end < high {
                let middle = (end + high).div_ceil(2);
                if self.time_bound(self.place(stage, at, middle)) <= limit * (1.0 + 1e-12) {
                    end = middle;
                } else {
                    high = middle - 1;
                }
            }
            if end == at {
                return None;
            }
            at = end;
            ends.push(at);
        }
        (at == self.stages.chain.len()).then_some(ends)
    }

    /// A good split to begin with: bisect the bottleneck between its bound and that of a split known to fit, going by the relaxation's times.
    pub fn seed(&mut self, fits: &[usize]) -> Split {
        let (mut slowest, mut first) = (0.0_f64, 0);
        for (stage, &end) in fits.iter().enumerate() {
            slowest = slowest.max(self.time_bound(self.place(stage, first, end)));
            first = end;
        }
        let (mut low, mut high) = (self.bottleneck, slowest);
        let mut ends = None;
        for round in 0..12 {
            let limit = if round == 0 { low } else { (low * high).sqrt() };
            match self.fill_time(limit) {
                Some(found) => (ends, high) = (Some(found), limit),
                None => low = low.max(limit),
            }
            if high <= low * (1.0 + 1e-3) {
                break;
            }
        }
        self.evaluate(ends.as_deref().unwrap_or(fits))
    }

    /// The best split with a step time below `limit`, if there is one.
    ///
    /// Stages count with their relaxation's time until a split that looks best makes their exact time known; once all stages of the best
    /// looking split are exact, no other can beat it.
    pub fn solve(&mut self, mut limit: f64) -> Option<Split> {
        let mut best = None;
        while let Some(looks_best) = self.solve_with_known_times(limit) {
            let exact = self.evaluate(&looks_best.ends);
            if exact.step < limit {
                limit = exact.step;
                best = Some(exact.clone());
            }
            // Its stages may all have been exact already, up to the order of additions.
            if exact.step <= looks_best.step * (1.0 + 1e-13) {
                break;
            }
        }
        best
    }

    fn solve_with_known_times(&mut self, limit: f64) -> Option<Split> {
        let len = self.stages.chain.len();
        let root = Label { sum: 0.0, bottleneck: 0.0, tail: 0.0, end: 0, parent: 0 };
        let mut arena = vec![root];
        let mut alive = vec![0_usize];
        let mut at: Vec<Vec<usize>> = vec![Vec::new(); len + 1];
        for stage in 0..self.pair.stages {
            for &label in &alive {
                self.extend(stage, label, limit, &mut arena, &mut at);
            }
            alive.clear();
            at.iter_mut().for_each(|here| alive.append(here));
        }
        self.labels += arena.len() as u64;
        let step = |l: usize| {
            let Label { sum, bottleneck, tail, .. } = arena[l];
            step_seconds(sum, bottleneck, self.pair.micro_batches, tail)
        };
        let best = alive.into_iter().min_by(|a, b| step(*a).total_cmp(&step(*b)).then(a.cmp(b)))?;
        let mut ends = Vec::with_capacity(self.pair.stages);
        let mut label = best;
        while label != 0 {
            ends.push(arena[label].end);
            label = arena[label].parent;
        }
        ends.reverse();
        Some(Split { ends, step: step(best) }).filter(|split| split.step < limit)
    }

    fn extend(&mut self, stage: usize, label: usize, limit: f64, arena: &mut Vec<Label>, at: &mut [Vec<usize>]) {
        let from = arena[label];
        let last = self.last_end(stage);
        let first_end = if stage + 1 == self.pair.stages { last } else { from.end + 1 };
        let left = (self.pair.stages - 1 - stage) as f64;
        let chain_sum = from.sum + self.stages.chain.total() - self.stages.chain.work[from.end]
            + left * 2.0 * self.stages.chain.least_boundary;
        let tail = from.tail.max(self.floor.tail);
        for (end, here) in at.iter_mut().enumerate().take(last + 1).skip(first_end) {
            let plain = self.stages.chain.work[end] - self.stages.chain.work[from.end];
            let bottleneck = from.bottleneck.max(plain).max(self.bottleneck);
            // Too much for this stage: longer ones are worse.
            if step_seconds(chain_sum, bottleneck, self.pair.micro_batches, tail) >= limit {
                break;
            }
            // Too little: the rest would take too long.
            if self.completion(stage, end, from.sum + plain, bottleneck, tail) >= limit {
                continue;
            }
            let place = self.place(stage, from.end, end);
            let time = self.time_bound(place);
            if time.is_infinite() {
                break;
            }
            let next = Label {
                sum: from.sum + time,
                bottleneck: from.bottleneck.max(time),
                tail: from.tail.max(self.stages.tail(place)),
                end,
                parent: label,
            };
            if self.completion(stage, end, next.sum, next.bottleneck, next.tail) < limit {
                insert(next, arena, here);
            }
        }
    }

    /// Average work of the stages after `stage` when it ends at `end`.
    fn rest_average(&self, stage: usize, end: usize) -> f64 {
        let left = self.pair.stages - 1 - stage;
        if left == 0 { 0.0 } else { (self.stages.chain.total() - self.stages.chain.work[end]) / left as f64 }
    }

    /// No completion of stages 0 to `stage` ending at `end` takes less.
    fn completion(&self, stage: usize, end: usize, sum: f64, bottleneck: f64, tail: f64) -> f64 {
        let chain = &self.stages.chain;
        let left = self.pair.stages - 1 - stage;
        let rest = chain.total() - chain.work[end];
        let cuts = if left == 0 { 0.0 } else { chain.boundary(end) + (left - 1) as f64 * 2.0 * chain.least_boundary };
        let bottleneck = bottleneck.max(self.bottleneck).max(self.rest_average(stage, end));
        step_seconds(sum + rest + cuts, bottleneck, self.pair.micro_batches, tail.max(self.floor.tail))
    }
}

/// Adds a label unless another at the same position is at least as good in all three; drops those it makes superfluous.
fn insert(label: Label, arena: &mut Vec<Label>, here: &mut Vec<usize>) {
    let covers = |a: &Label, b: &Label| a.sum <= b.sum && a.bottleneck <= b.bottleneck && a.tail <= b.tail;
    if here.iter().any(|&l| covers(&arena[l], &label)) {
        return;
    }
    here.retain(|&l| !covers(&label, &arena[l]));
    arena.push(label);
    here.push(arena.len() - 1);
}
