//! The search over tensor widths, and the arithmetic over data-parallel degrees that prunes it.
//!
//! PHAZE fills a table over (suffix, devices, stages). Here the only dependence on devices is the number of *narrow*
//! stages: stages without a tensor-parallel layer, which take one device instead of `t`. That number matters only in a
//! graph that mixes both kinds of layers. If narrow layers are only at the ends of the chain, no table is needed
//! ([`super::sweep`]).
//!
//! Other widths, and those that probes do not decide, keep a table ([`super::width`]): a least bottleneck per (suffix,
//! stages), filled by rising number of stages. Two exact cuts apply. A stage whose load cannot beat the best known time
//! at any degree is skipped, and the number of stages ends where a bound on the bottleneck leaves no chance.

use super::PhazePlan;
use super::evaluate;
use super::instance::PhazeInstance;
use super::sweep::{self, LineWidth};
use super::width::WidthSearch;
use std::ops::Range;

/// Margin for comparing a bound with the best known time, so that rounding never prunes a better plan and never makes a
/// plan better.
pub(super) const SAFETY: f64 = 1.0 + 1e-12;

/// The data-parallel degrees worth trying, ascending. For every number of micro-batches per copy it is the smallest
/// degree, because a larger one costs more synchronisation and leaves fewer devices per copy.
pub(super) struct DataParallelDegrees {
    pub degree: Vec<usize>,
    /// Micro-batches per copy.
    pub micro_batches: Vec<f64>,
    /// Synchronisation time per byte of the first stage's parameters.
    pub synchronization: Vec<f64>,
}

impl DataParallelDegrees {
    pub fn new(instance: &PhazeInstance) -> Self {
        let total = instance.micro_batches;
        // Shares below the root of the total, and degrees below it: at most twice the root.
        let most = (2 * total.isqrt() + 1).min(instance.max_devices);
        let room = || Vec::with_capacity(most);
        let mut degrees = Self { degree: Vec::with_capacity(most), micro_batches: room(), synchronization: room() };
        let mut degree = 1;
        while degree <= instance.max_devices.min(total) {
            let share = total.div_ceil(degree);
            degrees.degree.push(degree);
            degrees.micro_batches.push(share as f64);
            let d = degree as f64;
            degrees.synchronization.push(4.0 * (d - 1.0) / instance.bandwidth / d);
            if share == 1 {
                break;
            }
            // The smallest degree whose share is below this one.
            degree = total.div_ceil(share - 1);
        }
        degrees
    }

    /// How many of the degrees are at most `most`.
    pub fn count_up_to(&self, most: usize) -> usize {
        self.degree.partition_point(|&degree| degree <= most)
    }

    /// The largest bottleneck of `stages` stages that beats `time` at some degree of `range` (indices), if the first
    /// stage holds at least `parameters` bytes of parameters; `-inf` if none does.
    pub fn bottleneck_limit(&self, range: Range<usize>, stages: usize, time: f64, parameters: f64) -> f64 {
        let fill = (stages - 1) as f64;
        let mut limit = f64::NEG_INFINITY;
        for (micro_batches, synchronization) in self.micro_batches[range.clone()].iter().zip(&self.synchronization[range]) {
            let candidate = (time - synchronization * parameters) / (micro_batches + fill);
            limit = if candidate > limit { candidate } else { limit };
        }
        limit * SAFETY
    }

    /// Lower bound on the time of a plan with `stages` stages and a bottleneck of at least `bottleneck`, at any of the
    /// first `end` degrees (at least one).
    pub fn least_time_of(&self, end: usize, stages: usize, bottleneck: f64) -> f64 {
        bottleneck * (self.micro_batches[end - 1] + (stages - 1) as f64)
    }

    /// As [`Self::least_time_of`] over a range of degrees (indices), if the first stage holds at least `parameters`
    /// bytes of parameters.
    pub fn least_time_over(&self, range: Range<usize>, stages: usize, bottleneck: f64, parameters: f64) -> f64 {
        let fill = (stages - 1) as f64;
        let mut least = f64::INFINITY;
        for (micro_batches, synchronization) in self.micro_batches[range.clone()].iter().zip(&self.synchronization[range]) {
            let candidate = bottleneck * (micro_batches + fill) + synchronization * parameters;
            least = if candidate < least { candidate } else { least };
        }
        least
    }

    /// The least time below `time` over a range of degrees, and its degree.
    pub fn cheapest_degree(
        &self,
        range: Range<usize>,
        stages: usize,
        bottleneck: f64,
        parameters: f64,
        time: f64,
    ) -> Option<(f64, usize)> {
        let fill = (stages - 1) as f64;
        let (mut least, mut found) = (time, None);
        for at in range.rev() {
            let pipeline = bottleneck * (self.micro_batches[at] + fill);
            if pipeline >= least {
                // Smaller degrees have more micro-batches.
                break;
            }
            let total = pipeline + self.synchronization[at] * parameters;
            if total < least {
                least = total;
                found = Some((total, self.degree[at]));
            }
        }
        found
    }
}

/// The best plan so far: a width's index, a degree and a split.
pub(super) struct BestPlacement {
    pub time: f64,
    pub chain: usize,
    pub degree: usize,
    pub ranges: Vec<(usize, usize)>,
}

impl BestPlacement {
    /// Keeps the plan of one stage with all these layers if it is better.
    pub fn take_single_stage(
        &mut self,
        index: usize,
        (load, parameters, layers): (f64, f64, usize),
        copies: usize,
        degrees: &DataParallelDegrees,
    ) {
        let range = 0..degrees.count_up_to(copies);
        if let Some((time, degree)) = degrees.cheapest_degree(range, 1, load, parameters, self.time) {
            *self = Self { time, chain: index, degree, ranges: vec![(0, layers)] };
        }
    }
}

/// The optimum and its time, `None` if no plan fits.
pub(super) fn find_optimum(instance: &PhazeInstance) -> Option<(f64, PhazePlan)> {
    let degrees = DataParallelDegrees::new(instance);
    let mut best = BestPlacement { time: f64::INFINITY, chain: 0, degree: 0, ranges: Vec::new() };
    let mut lines = Vec::with_capacity(instance.chains.len());
    // Widths for the table: the single-stage plans of all widths come first.
    let mut tables = Vec::new();
    for (index, chain) in instance.chains.iter().enumerate() {
        if let Some(line) = LineWidth::new(instance, chain, index) {
            line.take_single_stage(&degrees, &mut best);
            lines.push(line);
        } else {
            let table = WidthSearch::new(instance, chain, index, &degrees);
            table.take_single_stage(&mut best);
            tables.push(table);
        }
    }
    sweep::sweep_widths(&mut lines, &degrees, instance.micro_batches, &mut best);
    let undecided = lines.iter().filter_map(LineWidth::undecided_width);
    tables.extend(undecided.map(|index| WidthSearch::new(instance, &instance.chains[index], index, &degrees)));
    // The most promising width comes first, because its plan shortens the others.
    tables.sort_by(|a, b| a.promise.total_cmp(&b.promise));
    for table in &mut tables {
        table.search_width(&mut best);
    }
    let chain = instance.chains.get(best.chain)?;
    (best.degree > 0).then(|| evaluate::realise_split(instance, chain, best.degree, &best.ranges))
}
