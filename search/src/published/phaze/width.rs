//! The exact search at one tensor width: minimal bottleneck by suffix of the chain and number of stages.

use super::instance::{Chain, Instance};
use super::levels::{Completion, Draft, Table, lower};
use super::rows::{Rows, Stages};
use super::search::{Best, Degrees};

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
    /// Work of the tensor-parallel layers, all of which are in wide stages.
    parallel_work: f64,
    most_stages: usize,
    /// How many degrees (rising) a pipeline of so many stages can have at most, by number of stages.
    ends: Vec<usize>,
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
            stages,
            degrees,
            index,
            narrow_end,
            planes,
            narrow,
            wide,
            parallel_work: 0.0,
            most_stages: 0,
            ends: Vec::new(),
            floor: Vec::new(),
            promise: 0.0,
        };
        let deepest = search.stages.first_layer_depth();
        // The first stage holds at least the first layer, at the place of the number of stages.
        let fits = |&stages: &usize| search.devices(stages, search.planes) <= instance.max_devices && stages <= deepest;
        search.most_stages = (1..=count).take_while(fits).last().unwrap_or(0);
        if mixed {
            let parallel = chain.layers.iter().filter(|layer| layer.tensor_parallel);
            search.parallel_work = parallel.map(|layer| layer.forward + layer.backward).sum();
        }
        search.ends = (0..=search.most_stages).map(|stages| search.end(stages.max(1), search.planes)).collect();
        let copies = (instance.max_devices / wide).clamp(1, instance.micro_batches);
        search.promise = search.stages.work(0, count) * instance.micro_batches.div_ceil(copies) as f64;
        search
    }

    /// Devices of one copy of a pipeline with at least `plane` narrow stages, or with as many as it has stages.
    fn devices(&self, stages: usize, plane: usize) -> usize {
        let narrow = plane.min(stages);
        self.wide * (stages - narrow) + self.narrow * narrow
    }

    /// How many degrees a pipeline of so many stages can have in a plane.
    fn end(&self, stages: usize, plane: usize) -> usize {
        self.degrees.up_to(self.stages.instance.max_devices / self.devices(stages, plane))
    }

    /// The first degree (as an index) that a plane makes possible: the planes before it have all smaller ones.
    fn start(&self, stages: usize, plane: usize) -> usize {
        plane.checked_sub(1).map_or(0, |before| self.end(stages, before))
    }

    /// The largest bottleneck by which `stages` stages could still beat `time` in `plane` or above.
    fn limit(&self, stages: usize, plane: usize, time: f64) -> f64 {
        let range = self.start(stages, plane)..self.ends[stages];
        if time.is_infinite() && !range.is_empty() {
            return f64::INFINITY;
        }
        self.degrees.limit(range, stages, time, self.stages.sums.parameters[1])
    }

    /// As [`Self::limit`] over all degrees of any plane: falls as the number of stages rises, so that what it cuts from a
    /// level is of no use to later levels either.
    fn cut(&self, stages: usize, time: f64) -> f64 {
        self.limit(stages, 0, time)
    }

    /// Takes the plan of one stage if it fits and is better.
    pub fn single_stage(&self, best: &mut Best) {
        let Stages { instance, chain, sums, .. } = &self.stages;
        let count = chain.len();
        if self.stages.fits_last(0, count) {
            let copies = instance.max_devices / chain.devices(0, count);
            best.single_stage(self.index, (self.stages.last_load(0), sums.parameters[count], count), copies, self.degrees);
        }
    }

    /// Takes the best plan of this width if it is better than the best so far.
    pub fn run(&mut self, best: &mut Best) {
        if self.most_stages < 2 {
            return;
        }
        self.set_floor();
        let mut table = Table::new(self.stages.chain.len());
        let mut rows: Option<Rows> = None;
        for plane in 0..=self.planes {
            let Some(mut last) = self.last_useful(2, plane, best.time) else { break };
            if plane == 0 {
                self.raise_floor(last);
                last = self.last_useful(2, plane, best.time).unwrap_or(0);
            }
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

    /// Bounds the bottleneck from below by the mean load of a stage and the dearest layer. Every cut costs a transfer before
    /// and one behind it, and every stage of a split has a cut beside it. With recomputation the transfer behind may hide,
    /// but every stage but the last does its forward work twice; the last one's forward work is itself below the bottleneck.
    fn set_floor(&mut self) {
        let count = self.stages.chain.len();
        let (work, transfer) = (self.stages.work(0, count), self.stages.least_transfer());
        let forward = if self.stages.instance.recompute { self.stages.forward(0, count) } else { 0.0 };
        let dearest = (0..count).fold(0.0_f64, |most, at| most.max(self.stages.work(at, at + 1)));
        self.floor = vec![0.0; self.most_stages + 1];
        for stages in 2..=self.most_stages {
            let cuts = (stages - 1) as f64;
            let mean = (work + 2.0 * cuts * transfer) / stages as f64;
            let repeating = (work + forward + (cuts + 1.0) * transfer) / (stages + 1) as f64;
            self.floor[stages] = mean.max(dearest + transfer).max(if forward > 0.0 { repeating } else { 0.0 });
        }
    }

    /// Raises the bounds of up to `last` stages by the cheapest run of as many layers as the longest stage must have.
    fn raise_floor(&mut self, last: usize) {
        let count = self.stages.chain.len();
        let transfer = self.stages.least_transfer();
        let (mut run, mut cheapest) = (0, 0.0);
        for stages in 2..=last {
            let longest = count.div_ceil(stages);
            if longest != run {
                run = longest;
                let runs = (0..=count - run).map(|at| self.stages.work(at, at + run));
                cheapest = runs.fold(f64::INFINITY, |least, work| if work < least { work } else { least });
            }
            self.floor[stages] = self.floor[stages].max(cheapest + transfer);
        }
    }

    /// The largest number of stages, from `from` on, that may still beat `time` in `plane` or above.
    fn last_useful(&self, from: usize, plane: usize, time: f64) -> Option<usize> {
        (from..=self.most_stages).rev().find(|&stages| {
            if self.planes > 0 && stages <= plane {
                return false;
            }
            let floor = self.floor[stages].max(self.parallel_work / (stages - plane) as f64);
            let quickest = self.ends[stages].checked_sub(1).map_or(f64::INFINITY, |at| self.degrees.micro_batches[at]);
            floor * (quickest + (stages - 1) as f64) < time && floor < self.limit(stages, plane, time)
        })
    }

    fn fill_plane(&mut self, plane: usize, mut last: usize, rows: &mut Rows, table: &mut Table, best: &mut Best) {
        table.begin_plane();
        let mut draft = table.draft();
        self.last_stages(plane, self.cut(2, best.time), &mut draft);
        table.push(plane, &mut draft);
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
                self.next_level(stages, plane, self.cut(stages + 1, best.time), rows, table, &mut draft);
                table.push(plane, &mut draft);
            }
            stages += 1;
        }
    }

    /// Level 1: suffixes that are one stage.
    fn last_stages(&self, plane: usize, cut: f64, draft: &mut Draft) {
        let count = self.stages.chain.len();
        for first in (1..count).rev() {
            let narrow = usize::from(self.narrow_end[first] == count);
            if plane > narrow {
                continue;
            }
            if self.stages.work(first, count) > cut || !self.stages.fits_last(first, count) {
                break;
            }
            draft.set(first, self.stages.last_load(first), cut);
        }
    }

    /// Suffixes of one stage more.
    fn next_level(&self, stages: usize, plane: usize, cut: f64, rows: &mut Rows, table: &Table, draft: &mut Draft) {
        let count = self.stages.chain.len();
        let (below, same) = table.behind(plane, stages - 1);
        let from = below.map_or(usize::MAX, |level| level.from).min(same.map_or(usize::MAX, |level| level.from));
        for first in (1..=count - stages).rev() {
            if rows.reach[first] < from {
                continue;
            }
            rows.shrink(&self.stages, first, stages, cut);
            let reach = rows.reach[first].min(count + 1 - stages);
            let mut turn = first;
            let mut bottleneck = f64::INFINITY;
            if let Some(below) = below {
                turn = self.narrow_end[first].min(reach);
                bottleneck = below.join(rows, first, first + 1, turn);
            }
            if let Some(same) = same {
                bottleneck = lower(bottleneck, same.join(rows, first, turn + 1, reach));
            }
            draft.set(first, bottleneck, cut);
        }
    }

    /// The plane that a suffix behind the stage `first..end` has to be in for the whole to be in `plane`.
    fn plane_behind(&self, first: usize, end: usize, plane: usize) -> usize {
        if end <= self.narrow_end[first] { plane.saturating_sub(1) } else { plane }
    }

    /// Puts every first stage before the suffixes of `stages - 1` stages; whether that improved on the best plan.
    fn complete(&mut self, stages: usize, plane: usize, rows: &mut Rows, table: &mut Table, best: &mut Best) -> bool {
        let mut cut = self.cut(stages, best.time);
        rows.shrink(&self.stages, 0, stages, cut);
        let reach = rows.reach[0].min(self.stages.chain.len() + 1 - stages);
        let range = self.start(stages, plane)..self.end(stages, plane);
        let (below, same) = table.behind(plane, stages - 1);
        let mut least = cut;
        let mut found = None;
        for end in 1..=reach {
            let level = if plane > 0 && end <= self.narrow_end[0] { below } else { same };
            let Some(level) = level else { continue };
            let bottleneck = level.value[end].max(rows.load(0, end));
            if bottleneck >= cut {
                continue;
            }
            least = least.min(bottleneck);
            let parameters = self.stages.sums.parameters[end];
            if let Some((time, degree)) = self.degrees.cheapest(range.clone(), stages, bottleneck, parameters, best.time) {
                best.time = time;
                found = Some(Completion { stages, plane, degree, end });
                cut = self.cut(stages, time);
            }
        }
        self.floor[stages] = self.floor[stages].max(least);
        let improved = found.is_some();
        if improved {
            table.found = found;
        }
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
