//! The exact search for the best cut, over all numbers of stages and copies at one tensor width.
//!
//! Every stage of a width takes the same number of devices, so its links depend only on its place from the end. A
//! dynamic programme over (place from the end, first layer) therefore finds, for every suffix, the smallest possible
//! value of the largest load. The first stage is decided separately, because the copies all-reduce its weights.

use super::instance::{NestGraph, NestInstance, NestPlan};
use super::network::{self, AllReduceCost};
use super::tables::StageTables;

/// Factor that widens a bound, so that rounding from another order of summation prunes nothing.
const ROUNDING: f64 = 1.0 + 1e-12;

/// Exact degrees that a search is restricted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlanDegrees {
    pub stages: u64,
    pub copies: u64,
}

/// Returns the fastest plan of one tensor width, by the times of the dynamic programme; `None` if none fits. With
/// `degrees`, only plans with exactly these degrees count.
pub(super) fn find_best_plan(instance: &NestInstance, width: u64, degrees: Option<PlanDegrees>) -> Option<NestPlan> {
    let graph = instance.graphs.get(&width)?;
    let search = WidthSearch::new(instance, graph, width, degrees)?;
    let bounds = search.bound_times_by_stages();
    let mut suffixes: Vec<SuffixCuts> = Vec::new();
    let mut best: Option<FirstStage> = None;
    for stages in 1..=search.most_stages {
        if best.as_ref().is_some_and(|best| bounds[stages - 1] >= best.time) {
            break;
        }
        // The first stage is tried separately, so it needs suffixes with one stage less.
        if stages > 1 {
            suffixes.push(search.solve_suffixes(suffixes.last(), stages - 1));
        }
        if degrees.is_none_or(|degrees| degrees.stages as usize == stages) {
            search.try_first_stages(&suffixes, stages, degrees, &mut best);
        }
    }
    best.map(|best| search.trace_plan(&suffixes, &best))
}

/// A complete plan, by its first stage.
struct FirstStage {
    time: f64,
    stages: usize,
    end: usize,
    copies: u64,
}

/// The best cut of every suffix, by the suffix's first layer.
struct SuffixCuts {
    /// The smallest possible value of the largest load; infinite if no cut fits.
    load: Vec<f64>,
    /// The end of the first stage of that cut.
    end: Vec<usize>,
}

struct WidthSearch<'a> {
    instance: &'a NestInstance,
    width: u64,
    group: u64,
    most_stages: usize,
    /// The level of the link before each stage, indexed by the place from the end less one.
    links: Vec<usize>,
    tables: StageTables,
}

impl<'a> WidthSearch<'a> {
    fn new(instance: &'a NestInstance, graph: &NestGraph, width: u64, degrees: Option<PlanDegrees>) -> Option<Self> {
        let group = instance.devices_of_stage(width);
        let possible = (instance.devices / group).min(graph.layers.len() as u64);
        let most_stages = degrees.map_or(possible, |degrees| degrees.stages);
        if most_stages == 0 || most_stages > possible {
            return None;
        }
        let most_stages = most_stages as usize;
        // The first stage has no link before it; level 0 stands in, and no edge uses it.
        let link = |place: usize| {
            if place == most_stages { 0 } else { network::level_before_stage(instance, place as u64, group) }
        };
        let links: Vec<usize> = (1..=most_stages).map(link).collect();
        let mut levels = links.clone();
        levels.sort_unstable();
        levels.dedup();
        let tables = StageTables::new(instance, graph, &levels);
        Some(Self { instance, width, group, most_stages, links, tables })
    }

    /// Returns the load of a stage at a place from the end; infinite if the stage does not fit the memory.
    fn load_of_stage(&self, first: usize, end: usize, place: usize) -> f64 {
        let at = end - 1 - first;
        let bytes = self.tables.fixed[first][at] + (place - 1) as f64 * self.tables.stash[first][at];
        if bytes > self.instance.memory_bytes {
            return f64::INFINITY;
        }
        let behind = if place == 1 { self.links[0] } else { self.links[place - 2] };
        self.tables.forward[self.links[place - 1]][first][at] + self.tables.backward[behind][first][at]
    }

    /// Returns lower bounds on the time of all plans with at least so many stages, indexed by that number less one. The
    /// slowest stage has at least the work of the heaviest layer, and at least the mean work of a stage.
    fn bound_times_by_stages(&self) -> Vec<f64> {
        let heaviest = self.tables.work.iter().map(|row| row[0]).fold(0.0, f64::max);
        let whole = self.tables.work[0][self.tables.layers - 1];
        let micro_batches = self.instance.micro_batches();
        let bound = |stages: usize| {
            let copies = micro_batches.min(self.instance.devices / (stages as u64 * self.group));
            let turns = micro_batches.div_ceil(copies) + stages as u64 - 1;
            heaviest.max(whole / stages as f64) * turns as f64 / ROUNDING
        };
        let mut bounds: Vec<f64> = (1..=self.most_stages).map(bound).collect();
        for at in (1..bounds.len()).rev() {
            bounds[at - 1] = bounds[at - 1].min(bounds[at]);
        }
        bounds
    }

    /// Returns the best cuts of all suffixes into `place` stages. `behind` has the best cuts into one stage less;
    /// `None` for the last stage.
    fn solve_suffixes(&self, behind: Option<&SuffixCuts>, place: usize) -> SuffixCuts {
        let layers = self.tables.layers;
        let mut cuts = SuffixCuts { load: vec![f64::INFINITY; layers + 1], end: vec![layers; layers + 1] };
        for first in 1..layers {
            (cuts.load[first], cuts.end[first]) = match behind {
                None => (self.load_of_stage(first, layers, 1), layers),
                Some(behind) => self.best_first_cut(behind, first, place),
            };
        }
        cuts
    }

    fn best_first_cut(&self, behind: &SuffixCuts, first: usize, place: usize) -> (f64, usize) {
        let mut best = (f64::INFINITY, self.tables.layers);
        for end in first + 1..self.tables.layers {
            let at = end - 1 - first;
            if self.tables.work[first][at] >= best.0 * ROUNDING
                || self.tables.fixed[first][at] > self.instance.memory_bytes
            {
                break;
            }
            let load = behind.load[end].max(self.load_of_stage(first, end, place));
            if load < best.0 {
                best = (load, end);
            }
        }
        best
    }

    /// Tries every first stage with every useful number of copies.
    fn try_first_stages(
        &self,
        suffixes: &[SuffixCuts],
        stages: usize,
        degrees: Option<PlanDegrees>,
        best: &mut Option<FirstStage>,
    ) {
        let layers = self.tables.layers;
        let choices = self.useful_copies(stages, degrees);
        let Some(fewest_turns) = choices.iter().map(|choice| choice.turns).reduce(f64::min) else { return };
        let ends = if stages == 1 { layers..=layers } else { 1..=layers - 1 };
        let mut least = f64::INFINITY;
        for end in ends {
            let behind = if stages == 1 { 0.0 } else { suffixes[stages - 2].load[end] };
            let load = behind.max(self.load_of_stage(0, end, stages));
            // A shorter first stage reduces fewer bytes, so only a smaller load can be better.
            if load >= least {
                continue;
            }
            least = load;
            if best.as_ref().is_some_and(|best| load * fewest_turns >= best.time) {
                continue;
            }
            for choice in &choices {
                let reduced = self.tables.leading_parameters[end - 1];
                let time = load * choice.turns + choice.all_reduce.time_for(reduced);
                if best.as_ref().is_none_or(|best| time < best.time) {
                    *best = Some(FirstStage { time, stages, end, copies: choice.copies });
                }
            }
        }
    }

    /// Returns the numbers of copies worth trying: for each number of micro-batches per copy, the smallest number of
    /// copies. An all-reduce among fewer copies never takes longer.
    fn useful_copies(&self, stages: usize, degrees: Option<PlanDegrees>) -> Vec<CopyChoice> {
        let pipeline = stages as u64 * self.group;
        let micro_batches = self.instance.micro_batches();
        let most = micro_batches.min(self.instance.devices / pipeline);
        let choice = |copies: u64| CopyChoice {
            copies,
            turns: (micro_batches.div_ceil(copies) + stages as u64 - 1) as f64,
            all_reduce: AllReduceCost::between_copies(self.instance, copies, pipeline),
        };
        if let Some(degrees) = degrees {
            return (1..=most).contains(&degrees.copies).then(|| choice(degrees.copies)).into_iter().collect();
        }
        let mut choices = Vec::new();
        let mut copies = 1;
        while copies <= most {
            choices.push(choice(copies));
            let share = micro_batches.div_ceil(copies);
            if share == 1 {
                break;
            }
            copies = micro_batches.div_ceil(share - 1);
        }
        choices
    }

    fn trace_plan(&self, suffixes: &[SuffixCuts], best: &FirstStage) -> NestPlan {
        let mut stages = vec![best.end];
        let mut first = best.end;
        for place in (1..best.stages).rev() {
            let end = suffixes[place - 1].end[first];
            stages.push(end - first);
            first = end;
        }
        NestPlan::new(self.instance, self.width, best.copies, stages)
    }
}

/// A number of data-parallel copies, with the resulting pipeline turns and cost of an all-reduce.
struct CopyChoice {
    copies: u64,
    /// Turns of a copy's pipeline: its micro-batches, and the turns that fill the pipeline.
    turns: f64,
    all_reduce: AllReduceCost,
}
