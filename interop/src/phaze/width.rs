//! The exact search at one tensor width, with a table of the least bottleneck by suffix of the chain and number of
//! stages.

use super::degrees::{BestPlacement, DataParallelDegrees};
use super::evaluate::StageRange;
use super::instance::{Chain, PhazeInstance};
use super::levels::{Completion, LevelDraft, LevelTable, lower};
use super::rows::{ChainStages, StageLoadRows};

pub(super) struct WidthSearch<'a> {
    stages: ChainStages<'a>,
    degrees: &'a DataParallelDegrees,
    index: usize,
    /// End of the longest narrow stage that begins at each position (the position itself if there is none).
    narrow_end: Vec<usize>,
    /// Largest number of narrow stages in a plan; 0 at a width where narrow stages save no devices.
    planes: usize,
    /// Devices of a narrow and of a wide stage.
    narrow: usize,
    wide: usize,
    /// Work of the tensor-parallel layers, which are all in wide stages; 0 unless the chain mixes both kinds of layers.
    parallel_work: f64,
    most_stages: usize,
    /// For each number of stages, the number of ascending degrees that a pipeline can have in the last plane.
    ends: Vec<usize>,
    /// Lower bound on the bottleneck of any split, by number of stages; raised by the results of the planes.
    floor: Vec<f64>,
    /// An estimate of the time per batch, for the order of the widths.
    pub promise: f64,
}

impl<'a> WidthSearch<'a> {
    pub fn new(instance: &'a PhazeInstance, chain: &'a Chain, index: usize, degrees: &'a DataParallelDegrees) -> Self {
        let count = chain.len();
        let stages = ChainStages::new(instance, chain);
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
        // The first stage holds at least the first layer, at the place given by the number of stages.
        let fits = |&stages: &usize| {
            search.devices_of_pipeline(stages, search.planes) <= instance.max_devices && stages <= deepest
        };
        search.most_stages = (1..=count).take_while(fits).last().unwrap_or(0);
        if mixed {
            let parallel = chain.layers.iter().filter(|layer| layer.tensor_parallel);
            search.parallel_work = parallel.map(|layer| layer.forward + layer.backward).sum();
        }
        search.ends =
            (0..=search.most_stages).map(|stages| search.degree_count(stages.max(1), search.planes)).collect();
        let copies = (instance.max_devices / wide).clamp(1, instance.micro_batches);
        search.promise = search.stages.compute_time(0, count) * instance.micro_batches.div_ceil(copies) as f64;
        search
    }

    /// Returns the devices of one copy of a pipeline with `plane` narrow stages, or with only narrow stages if it has
    /// fewer than `plane`.
    fn devices_of_pipeline(&self, stages: usize, plane: usize) -> usize {
        let narrow = plane.min(stages);
        self.wide * (stages - narrow) + self.narrow * narrow
    }

    /// Returns the number of ascending degrees that a pipeline of `stages` stages can have in a plane.
    fn degree_count(&self, stages: usize, plane: usize) -> usize {
        self.degrees.count_up_to(self.stages.instance.max_devices / self.devices_of_pipeline(stages, plane))
    }

    /// Returns the index of the first degree that only this plane makes possible; the planes before it cover the
    /// smaller degrees.
    fn first_degree(&self, stages: usize, plane: usize) -> usize {
        plane.checked_sub(1).map_or(0, |before| self.degree_count(stages, before))
    }

    /// Returns the largest bottleneck with which `stages` stages could still beat `time` in `plane` or above.
    fn bottleneck_limit(&self, stages: usize, plane: usize, time: f64) -> f64 {
        let range = self.first_degree(stages, plane)..self.ends[stages];
        if time.is_infinite() && !range.is_empty() {
            return f64::INFINITY;
        }
        self.degrees.bottleneck_limit(range, stages, time, self.stages.sums.parameters[1])
    }

    /// As [`Self::bottleneck_limit`] over all degrees of any plane. It falls as the number of stages rises, so values
    /// cut from a level are of no use to later levels either.
    fn bottleneck_limit_over_planes(&self, stages: usize, time: f64) -> f64 {
        self.bottleneck_limit(stages, 0, time)
    }

    /// Keeps the plan of one stage if it fits and is better.
    pub fn take_single_stage(&self, best: &mut BestPlacement) {
        let ChainStages { instance, chain, sums, .. } = &self.stages;
        let count = chain.len();
        if self.stages.fits_as_last(0, count) {
            let copies = instance.max_devices / chain.devices_of_stage(0, count);
            best.take_single_stage(
                self.index,
                self.stages.load_of_last_stage(0),
                sums.parameters[count],
                count,
                copies,
                self.degrees,
            );
        }
    }

    /// Keeps the best plan of this width if it is better than the best so far.
    pub fn search_width(&mut self, best: &mut BestPlacement) {
        if self.most_stages < 2 {
            return;
        }
        self.set_floor();
        let mut table = LevelTable::new(self.stages.chain.len());
        let mut rows: Option<StageLoadRows> = None;
        for plane in 0..=self.planes {
            let Some(mut last) = self.last_useful_stage_count(2, plane, best.time) else { break };
            if plane == 0 {
                self.raise_floor(last);
                last = self.last_useful_stage_count(2, plane, best.time).unwrap_or(0);
            }
            let rows = rows.get_or_insert_with(|| {
                StageLoadRows::new(&self.stages, self.bottleneck_limit_over_planes(2, best.time))
            });
            rows.reset_ends();
            self.fill_plane(plane, last, rows, &mut table, best);
        }
        if let (Some(found), Some(rows)) = (&table.found, &rows) {
            best.chain = self.index;
            best.degree = found.degree;
            best.ranges = self.trace_split(found, rows, &table);
        }
    }

    /// Sets lower bounds on the bottleneck: the mean load of a stage, and the load of the most expensive layer.
    ///
    /// Every cut costs a transfer in the stage on either side, and every stage of a split has a cut next to it. With
    /// recomputation, the transfer in the stage before the cut may be hidden, but every stage except the last does its
    /// forward work twice. The last stage's forward work does not exceed the bottleneck either.
    fn set_floor(&mut self) {
        let count = self.stages.chain.len();
        let (work, transfer) = (self.stages.compute_time(0, count), self.stages.least_transfer());
        let forward = if self.stages.instance.recompute { self.stages.forward_time(0, count) } else { 0.0 };
        let dearest = (0..count).fold(0.0_f64, |most, at| most.max(self.stages.compute_time(at, at + 1)));
        self.floor = vec![0.0; self.most_stages + 1];
        for stages in 2..=self.most_stages {
            let cuts = (stages - 1) as f64;
            let mean = (work + 2.0 * cuts * transfer) / stages as f64;
            let repeating = (work + forward + (cuts + 1.0) * transfer) / (stages + 1) as f64;
            self.floor[stages] = mean.max(dearest + transfer).max(if forward > 0.0 { repeating } else { 0.0 });
        }
    }

    /// Raises the bounds for up to `last` stages. The longest stage has at least the mean number of layers, so its load
    /// is at least that of the cheapest run of that many layers.
    fn raise_floor(&mut self, last: usize) {
        let count = self.stages.chain.len();
        let transfer = self.stages.least_transfer();
        let (mut run, mut cheapest) = (0, 0.0);
        for stages in 2..=last {
            let longest = count.div_ceil(stages);
            if longest != run {
                run = longest;
                let runs = (0..=count - run).map(|at| self.stages.compute_time(at, at + run));
                cheapest = runs.fold(f64::INFINITY, |least, work| if work < least { work } else { least });
            }
            self.floor[stages] = self.floor[stages].max(cheapest + transfer);
        }
    }

    /// Returns the largest number of stages, at least `from`, that may still beat `time` in `plane` or above; `None` if
    /// there is none.
    fn last_useful_stage_count(&self, from: usize, plane: usize, time: f64) -> Option<usize> {
        (from..=self.most_stages).rev().find(|&stages| {
            if self.planes > 0 && stages <= plane {
                return false;
            }
            let floor = self.floor[stages].max(self.parallel_work / (stages - plane) as f64);
            let quickest = self.ends[stages].checked_sub(1).map_or(f64::INFINITY, |at| self.degrees.micro_batches[at]);
            floor * (quickest + (stages - 1) as f64) < time && floor < self.bottleneck_limit(stages, plane, time)
        })
    }

    fn fill_plane(
        &mut self,
        plane: usize,
        mut last: usize,
        rows: &mut StageLoadRows,
        table: &mut LevelTable,
        best: &mut BestPlacement,
    ) {
        table.begin_plane();
        let mut draft = table.draft();
        self.fill_last_stages(plane, self.bottleneck_limit_over_planes(2, best.time), &mut draft);
        table.push_draft(plane, &mut draft);
        let mut stages = 2;
        while stages <= last {
            if table.is_exhausted(plane, stages - 1) {
                self.floor[stages..=last].fill(f64::INFINITY);
                return;
            }
            if self.complete_plans(stages, plane, rows, table, best) {
                last = self.last_useful_stage_count(stages + 1, plane, best.time).unwrap_or(0);
            }
            if stages < last {
                self.fill_next_level(
                    stages,
                    plane,
                    self.bottleneck_limit_over_planes(stages + 1, best.time),
                    rows,
                    table,
                    &mut draft,
                );
                table.push_draft(plane, &mut draft);
            }
            stages += 1;
        }
    }

    /// Fills level 1: suffixes of one stage.
    fn fill_last_stages(&self, plane: usize, cut: f64, draft: &mut LevelDraft) {
        let count = self.stages.chain.len();
        for first in (1..count).rev() {
            let narrow = usize::from(self.narrow_end[first] == count);
            if plane > narrow {
                continue;
            }
            if self.stages.compute_time(first, count) > cut || !self.stages.fits_as_last(first, count) {
                break;
            }
            draft.set_value(first, self.stages.load_of_last_stage(first), cut);
        }
    }

    /// Fills the next level: suffixes of `stages` stages, from the suffixes with one stage less.
    fn fill_next_level(
        &self,
        stages: usize,
        plane: usize,
        cut: f64,
        rows: &mut StageLoadRows,
        table: &LevelTable,
        draft: &mut LevelDraft,
    ) {
        let count = self.stages.chain.len();
        let (below, same) = table.levels_behind(plane, stages - 1);
        let from = below.map_or(usize::MAX, |level| level.from).min(same.map_or(usize::MAX, |level| level.from));
        for first in (1..=count - stages).rev() {
            if rows.reach[first] < from {
                continue;
            }
            rows.shrink_row(&self.stages, first, stages, cut);
            let reach = rows.reach[first].min(count + 1 - stages);
            let mut turn = first;
            let mut bottleneck = f64::INFINITY;
            if let Some(below) = below {
                turn = self.narrow_end[first].min(reach);
                bottleneck = below.least_bottleneck(rows, first, first + 1, turn);
            }
            if let Some(same) = same {
                bottleneck = lower(bottleneck, same.least_bottleneck(rows, first, turn + 1, reach));
            }
            draft.set_value(first, bottleneck, cut);
        }
    }

    /// Returns the plane of the suffix behind the stage `first..end`, if the stage and the suffix together are in
    /// `plane`.
    fn plane_behind(&self, first: usize, end: usize, plane: usize) -> usize {
        if end <= self.narrow_end[first] { plane.saturating_sub(1) } else { plane }
    }

    /// Puts every first stage before the suffixes of `stages - 1` stages. Returns true if that improved the best plan.
    fn complete_plans(
        &mut self,
        stages: usize,
        plane: usize,
        rows: &mut StageLoadRows,
        table: &mut LevelTable,
        best: &mut BestPlacement,
    ) -> bool {
        let mut cut = self.bottleneck_limit_over_planes(stages, best.time);
        rows.shrink_row(&self.stages, 0, stages, cut);
        let reach = rows.reach[0].min(self.stages.chain.len() + 1 - stages);
        let range = self.first_degree(stages, plane)..self.degree_count(stages, plane);
        let (below, same) = table.levels_behind(plane, stages - 1);
        let mut least = cut;
        let mut found = None;
        for end in 1..=reach {
            let level = if plane > 0 && end <= self.narrow_end[0] { below } else { same };
            let Some(level) = level else { continue };
            let bottleneck = level.value[end].max(rows.load_of_stage(0, end));
            if bottleneck >= cut {
                continue;
            }
            least = least.min(bottleneck);
            let parameters = self.stages.sums.parameters[end];
            if let Some((time, degree)) =
                self.degrees.cheapest_degree(range.clone(), stages, bottleneck, parameters, best.time)
            {
                best.time = time;
                found = Some(Completion { stages, plane, degree, end });
                cut = self.bottleneck_limit_over_planes(stages, time);
            }
        }
        self.floor[stages] = self.floor[stages].max(least);
        let improved = found.is_some();
        if improved {
            table.found = found;
        }
        improved
    }

    /// Returns the split of a completion. At each level, it takes the first end that gives the bottleneck recorded
    /// there.
    fn trace_split(&self, found: &Completion, rows: &StageLoadRows, table: &LevelTable) -> Vec<StageRange> {
        let count = self.stages.chain.len();
        let mut ranges = vec![StageRange { first: 0, end: found.end }];
        let mut plane = self.plane_behind(0, found.end, found.plane);
        let mut first = found.end;
        for stages in (2..found.stages).rev() {
            let target = table.level(plane, stages).map_or(f64::INFINITY, |level| level.value[first]);
            let next = (first + 1..=rows.extent[first]).find(|&end| {
                let behind = table.level(self.plane_behind(first, end, plane), stages - 1);
                behind.is_some_and(|level| level.value[end].max(rows.load_of_stage(first, end)) == target)
                    && rows.fits_at(&self.stages, first, end, stages)
            });
            let end = next.unwrap_or(count);
            debug_assert!(next.is_some(), "a recorded bottleneck has a stage that gives it");
            plane = self.plane_behind(first, end, plane);
            ranges.push(StageRange { first, end });
            first = end;
        }
        ranges.push(StageRange { first, end: count });
        ranges
    }
}
