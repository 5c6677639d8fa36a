//! The exact search at one tensor width: minimal bottleneck by suffix of the chain and number of stages.

use super::instance::{Chain, Instance};
use super::rows::{Rows, Stages};
use super::search::{Best, Degrees};
use std::ops::Range;

/// Minimal bottleneck of each suffix, by its first position, split into a given number of stages of which at least a given
/// number (the *plane*) are narrow; infinite where no split fits or none is worth having.
#[derive(Default)]
struct Level {
    value: Vec<f64>,
    /// The first position of a finite value; past the end if there is none.
    from: usize,
}

impl Level {
    fn new(count: usize) -> Self {
        Self { value: vec![f64::INFINITY; count + 1], from: count + 1 }
    }

    fn set(&mut self, first: usize, bottleneck: f64, cut: f64) {
        if bottleneck <= cut && bottleneck.is_finite() {
            self.value[first] = bottleneck;
            self.from = self.from.min(first);
        }
    }

    /// The least `max(load, value)` over the ends `from..=to` of the stage that begins at `first`.
    fn join(&self, rows: &Rows, first: usize, from: usize, to: usize) -> f64 {
        let from = from.max(self.from);
        if from > to {
            return f64::INFINITY;
        }
        let higher = |a: f64, b: f64| if a > b { a } else { b };
        let lower = |a: f64, b: f64| if a < b { a } else { b };
        let (values, loads) = (&self.value[from..=to], rows.slice(first, from, to));
        // Four minima side by side: the compiler may not reorder a single one into vector instructions.
        let mut least = [f64::INFINITY; 4];
        let (values4, loads4) = (values.chunks_exact(4), loads.chunks_exact(4));
        let mut total = f64::INFINITY;
        for (&value, &load) in values4.remainder().iter().zip(loads4.remainder()) {
            total = lower(total, higher(value, load));
        }
        for (values, loads) in values4.zip(loads4) {
            for lane in 0..4 {
                least[lane] = lower(least[lane], higher(values[lane], loads[lane]));
            }
        }
        least.into_iter().fold(total, lower)
    }
}

/// The levels of every plane filled so far (`levels[plane][stages]`), and the last improvement found in them.
struct Table {
    levels: Vec<Vec<Level>>,
    found: Option<Completion>,
}

impl Table {
    /// `None`: no finite value.
    fn level(&self, plane: usize, stages: usize) -> Option<&Level> {
        self.levels.get(plane)?.get(stages).filter(|level| level.from < level.value.len())
    }

    /// Whether no plan of more stages can be built in the plane from `stages` on.
    fn exhausted(&self, plane: usize, stages: usize) -> bool {
        let below = plane.checked_sub(1).is_some_and(|below| {
            self.levels[below].iter().skip(stages).any(|level| level.from < level.value.len())
        });
        self.level(plane, stages).is_none() && !below
    }
}

/// A first stage `0..end` and the plan it completes.
struct Completion {
    stages: usize,
    plane: usize,
    degree: usize,
    end: usize,
}

pub(super) struct WidthSearch<'a> {
    stages: Stages<'a>,
    degrees: &'a Degrees,
    index: usize,
    /// End of the longest narrow stage that begins at each position (the position itself if there is none).
    narrow_end: Vec<usize>,
    /// Most stages of a plan that can be narrow, at a width where that saves devices.
    planes: usize,
    /// Devices of a narrow and of a wide stage.
    narrow: usize,
    wide: usize,
    most_stages: usize,
    /// Below the bottleneck of any split, by number of stages; raised by what the planes find.
    floor: Vec<f64>,
    /// An estimate of the time per batch, to order the widths by.
    pub promise: f64,
}

impl<'a> WidthSearch<'a> {
    pub fn new(instance: &'a Instance, chain: &'a Chain, index: usize, degrees: &'a Degrees) -> Self {
        let count = chain.len();
        let stages = Stages::new(instance, chain);
        let narrow_end = chain.narrow_ends();
        let parallel = chain.layers.iter().filter(|layer| layer.tensor_parallel).count();
        let mixed = chain.width > 1 && parallel > 0 && parallel < count;
        let wide = if parallel > 0 { chain.width } else { 1 };
        let narrow = if mixed { 1 } else { wide };
        let planes = if mixed { count - parallel } else { 0 };
        let mut search = Self {
            stages, degrees, index, narrow_end, planes, narrow, wide,
            most_stages: 0, floor: Vec::new(), promise: 0.0,
        };
        let fits = |stages: &usize| search.devices(*stages, search.planes) <= instance.max_devices;
        search.most_stages = (1..=count).take_while(fits).last().unwrap_or(0);
        let copies = (instance.max_devices / wide).clamp(1, instance.micro_batches);
        search.promise = search.stages.work(0, count) * instance.micro_batches.div_ceil(copies) as f64;
        search
    }

    /// Devices of one copy of a pipeline with at least `plane` narrow stages, or with as many as it has stages.
    fn devices(&self, stages: usize, plane: usize) -> usize {
        let narrow = plane.min(stages);
        self.wide * (stages - narrow) + self.narrow * narrow
    }

    /// The degrees (as indices) that a pipeline of so many stages can have in `plane` but not in the one before.
    fn range(&self, stages: usize, plane: usize) -> Range<usize> {
        let most = |plane| self.degrees.up_to(self.stages.instance.max_devices / self.devices(stages, plane));
        let from = if plane == 0 { 0 } else { most(plane - 1) };
        from..most(plane)
    }

    /// All degrees from those that need `plane` on, with as many narrow stages as there can be.
    fn reachable(&self, stages: usize, plane: usize) -> Range<usize> {
        self.range(stages, plane).start..self.range(stages, self.planes).end
    }

    /// The largest bottleneck by which `stages` stages could still beat `time` in `plane` or above.
    fn limit(&self, stages: usize, plane: usize, time: f64) -> f64 {
        let range = self.reachable(stages, plane);
        if time.is_infinite() && !range.is_empty() {
            return f64::INFINITY;
        }
        self.degrees.limit(range, stages, time, self.stages.sums.parameters[1])
    }

    /// As [`Self::limit`] over all degrees of any plane: falls as the number of stages rises, so that what it cuts from a
    /// level is of no use to later levels either.
    fn cut(&self, stages: usize, time: f64) -> f64 {
        if time.is_infinite() {
            return f64::INFINITY;
        }
        self.degrees.limit(0..self.range_end(stages), stages, time, self.stages.sums.parameters[1])
    }

    fn range_end(&self, stages: usize) -> usize {
        self.degrees.up_to(self.stages.instance.max_devices / self.devices(stages, self.planes))
    }

    /// Takes the plan of one stage if it fits and is better.
    pub fn single_stage(&self, best: &mut Best) {
        let count = self.stages.chain.len();
        if self.most_stages == 0 || !self.stages.fits_last(0, count) {
            return;
        }
        let plane = usize::from(self.narrow_end[0] == count).min(self.planes);
        let all = 0..self.range(1, plane).end;
        let completion = self.cheapest(all, 1, self.stages.last_load(0), count, best.time);
        if let Some((time, degree)) = completion {
            *best = Best { time, chain: self.index, degree, ranges: vec![(0, count)] };
        }
    }

    /// The least time below `time` over a range of degrees, and its degree.
    fn cheapest(
        &self,
        range: Range<usize>,
        stages: usize,
        bottleneck: f64,
        end: usize,
        time: f64,
    ) -> Option<(f64, usize)> {
        let degrees = self.degrees;
        let (fill, parameters) = ((stages - 1) as f64, self.stages.sums.parameters[end]);
        let mut cheapest = None;
        let mut least = time;
        for at in range {
            let total = bottleneck * (degrees.micro_batches[at] + fill) + degrees.synchronization[at] * parameters;
            if total < least {
                least = total;
                cheapest = Some((total, degrees.degree[at]));
            }
        }
        cheapest
    }

    /// Takes the best plan of this width if it is better than the best so far.
    pub fn run(&mut self, best: &mut Best) {
        if self.most_stages < 2 {
            return;
        }
        self.set_floor();
        let mut table = Table { levels: Vec::new(), found: None };
        let mut rows: Option<Rows> = None;
        for plane in 0..=self.planes {
            let Some(last) = self.last_useful(2, plane, best.time) else { break };
            let rows = rows.get_or_insert_with(|| Rows::new(&self.stages, self.cut(2, best.time)));
            rows.reset();
            self.fill_plane(plane, last, rows, &mut table, best);
        }
        if let (Some(found), Some(rows)) = (&table.found, &rows) {
            best.chain = self.index;
            best.degree = found.degree;
            best.ranges = self.trace(found, rows, &table);
        }
    }

    /// Bounds the bottleneck from below: the mean work of a stage, the dearest layer, and the cheapest run of as many layers
    /// as the longest stage must have. With recomputation every stage but the last does its forward work twice.
    fn set_floor(&mut self) {
        let count = self.stages.chain.len();
        let work = self.stages.work(0, count);
        let twice = if self.stages.instance.recompute { work + self.stages.forward(0, count) } else { 0.0 };
        let dearest = (0..count).fold(0.0_f64, |most, at| most.max(self.stages.work(at, at + 1)));
        let (mut run, mut cheapest_run) = (0, 0.0);
        self.floor = vec![0.0; self.most_stages + 1];
        for stages in 2..=self.most_stages {
            let longest = count.div_ceil(stages);
            if longest != run {
                run = longest;
                let runs = (0..=count - run).map(|at| self.stages.work(at, at + run));
                cheapest_run = runs.fold(f64::INFINITY, f64::min);
            }
            let mean = (work / stages as f64).max(twice / (stages + 1) as f64);
            self.floor[stages] = mean.max(dearest).max(cheapest_run);
        }
    }

    /// The largest number of stages, from `from` on, that may still beat `time` in `plane` or above.
    fn last_useful(&self, from: usize, plane: usize, time: f64) -> Option<usize> {
        (from..=self.most_stages).rev().find(|&stages| {
            let end = self.range_end(stages);
            let quickest = end.checked_sub(1).map_or(f64::INFINITY, |at| self.degrees.micro_batches[at]);
            self.floor[stages] * (quickest + (stages - 1) as f64) < time
                && self.floor[stages] < self.limit(stages, plane, time)
        })
    }

    fn fill_plane(&mut self, plane: usize, mut last: usize, rows: &mut Rows, table: &mut Table, best: &mut Best) {
        let first_level = self.last_stages(plane, self.cut(2, best.time));
        table.levels.push(vec![Level::default(), first_level]);
        let mut stages = 2;
        while stages <= last {
            if table.exhausted(plane, stages - 1) {
                self.floor[stages..=last].fill(f64::INFINITY);
                return;
            }
            if self.complete(stages, plane, rows, table, best) {
                last = self.last_useful(stages + 1, plane, best.time).unwrap_or(0);
            }
            if stages < last {
                let level = self.next_level(stages, plane, self.cut(stages + 1, best.time), rows, table);
                table.levels[plane].push(level);
            }
            stages += 1;
        }
    }

    /// Level 1: suffixes that are one stage.
    fn last_stages(&self, plane: usize, cut: f64) -> Level {
        let count = self.stages.chain.len();
        let mut level = Level::new(count);
        for first in (1..count).rev() {
            let narrow = usize::from(self.narrow_end[first] == count);
            if plane > narrow {
                continue;
            }
            if self.stages.work(first, count) > cut || !self.stages.fits_last(first, count) {
                break;
            }
            level.set(first, self.stages.last_load(first), cut);
        }
        level
    }

    /// Suffixes of one stage more.
    fn next_level(&self, stages: usize, plane: usize, cut: f64, rows: &mut Rows, table: &Table) -> Level {
        let count = self.stages.chain.len();
        let mut level = Level::new(count);
        for first in (1..=count - stages).rev() {
            rows.shrink(&self.stages, first, stages, cut);
            let bottleneck = self.join(first, stages, plane, rows, table);
            level.set(first, bottleneck, cut);
        }
        level
    }

    /// The minimal bottleneck of the suffix from `first`, over all ends of its first stage.
    fn join(&self, first: usize, stages: usize, plane: usize, rows: &Rows, table: &Table) -> f64 {
        let count = self.stages.chain.len();
        let reach = rows.reach[first].min(count + 1 - stages);
        let turn = if plane == 0 { first } else { self.narrow_end[first].min(reach) };
        let mut least = f64::INFINITY;
        if plane > 0
            && let Some(level) = table.level(plane - 1, stages - 1)
        {
            least = level.join(rows, first, first + 1, turn);
        }
        if let Some(level) = table.level(plane, stages - 1) {
            least = least.min(level.join(rows, first, turn + 1, reach));
        }
        least
    }

    /// The plane that a suffix behind the stage `first..end` has to be in for the whole to be in `plane`.
    fn plane_behind(&self, first: usize, end: usize, plane: usize) -> usize {
        if end <= self.narrow_end[first] { plane.saturating_sub(1) } else { plane }
    }

    /// Puts every first stage before the suffixes of `stages - 1` stages; whether that improved on the best plan.
    fn complete(&mut self, stages: usize, plane: usize, rows: &mut Rows, table: &mut Table, best: &mut Best) -> bool {
        let count = self.stages.chain.len();
        let mut cut = self.cut(stages, best.time);
        rows.shrink(&self.stages, 0, stages, cut);
        let range = self.range(stages, plane);
        let mut least = cut;
        let mut improved = false;
        for end in 1..=rows.reach[0].min(count + 1 - stages) {
            let behind = self.plane_behind(0, end, plane);
            let Some(level) = table.level(behind, stages - 1) else { continue };
            let bottleneck = level.value[end].max(rows.load(0, end));
            if bottleneck >= cut {
                continue;
            }
            least = least.min(bottleneck);
            let cheapest = self.cheapest(range.clone(), stages, bottleneck, end, best.time);
            if let Some((time, degree)) = cheapest {
                best.time = time;
                table.found = Some(Completion { stages, plane, degree, end });
                cut = self.cut(stages, time);
                improved = true;
            }
        }
        self.floor[stages] = self.floor[stages].max(least);
        improved
    }

    /// The split behind a completion: at each level the first end that gives the bottleneck recorded there.
    fn trace(&self, found: &Completion, rows: &Rows, table: &Table) -> Vec<(usize, usize)> {
        let count = self.stages.chain.len();
        let mut ranges = vec![(0, found.end)];
        let mut plane = self.plane_behind(0, found.end, found.plane);
        let mut first = found.end;
        for stages in (2..found.stages).rev() {
            let target = table.level(plane, stages).map_or(f64::INFINITY, |level| level.value[first]);
            let next = (first + 1..=rows.extent[first]).find(|&end| {
                let behind = table.level(self.plane_behind(first, end, plane), stages - 1);
                behind.is_some_and(|level| level.value[end].max(rows.load(first, end)) == target)
                    && rows.fits(&self.stages, first, end, stages)
            });
            let end = next.unwrap_or(count);
            debug_assert!(next.is_some(), "a recorded bottleneck has a stage that gives it");
            plane = self.plane_behind(first, end, plane);
            ranges.push((first, end));
            first = end;
        }
        ranges.push((first, count));
        ranges
    }
}
