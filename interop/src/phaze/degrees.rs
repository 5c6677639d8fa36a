//! The data-parallel degrees worth trying, and the best plan under them so far.

use super::evaluate::StageRange;
use super::instance::PhazeInstance;
use std::ops::Range;

/// Factor for comparing a bound with the best known time, so that rounding neither prunes a better plan nor makes a
/// plan look better.
pub(super) const SAFETY: f64 = 1.0 + 1e-12;

/// The data-parallel degrees worth trying, ascending. For every number of micro-batches per copy, this is the smallest
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
        // Each degree or its share (micro-batches per copy) is at most the root of the total, so there are at most
        // about twice as many degrees as the root.
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

    /// Returns the number of degrees that are at most `most`.
    pub fn count_up_to(&self, most: usize) -> usize {
        self.degree.partition_point(|&degree| degree <= most)
    }

    /// Returns an upper bound on the bottleneck of a plan that beats `time`. The plan has `stages` stages, a degree of
    /// `range` (indices), and at least `parameters` bytes of parameters in its first stage. The bound is at most 0 if
    /// synchronisation alone takes `time` at every degree, and `-inf` for an empty range.
    pub fn bottleneck_limit(&self, range: Range<usize>, stages: usize, time: f64, parameters: f64) -> f64 {
        let fill = (stages - 1) as f64;
        let mut limit = f64::NEG_INFINITY;
        for (micro_batches, synchronization) in
            self.micro_batches[range.clone()].iter().zip(&self.synchronization[range])
        {
            let candidate = (time - synchronization * parameters) / (micro_batches + fill);
            limit = if candidate > limit { candidate } else { limit };
        }
        limit * SAFETY
    }

    /// Returns a lower bound on the time of a plan with `stages` stages and a bottleneck of at least `bottleneck`, at
    /// any of the first `end` degrees (at least one).
    pub fn least_time_of(&self, end: usize, stages: usize, bottleneck: f64) -> f64 {
        bottleneck * (self.micro_batches[end - 1] + (stages - 1) as f64)
    }

    /// As [`Self::least_time_of`], over a range of degrees (indices) and for a first stage that holds at least
    /// `parameters` bytes of parameters.
    pub fn least_time_over(&self, range: Range<usize>, stages: usize, bottleneck: f64, parameters: f64) -> f64 {
        let fill = (stages - 1) as f64;
        let mut least = f64::INFINITY;
        for (micro_batches, synchronization) in
            self.micro_batches[range.clone()].iter().zip(&self.synchronization[range])
        {
            let candidate = bottleneck * (micro_batches + fill) + synchronization * parameters;
            least = if candidate < least { candidate } else { least };
        }
        least
    }

    /// Returns the least time over a range of degrees (indices) with its degree; `None` if no time is below `time`.
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
                // Smaller degrees have more micro-batches per copy, so none of them is faster.
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
    pub ranges: Vec<StageRange>,
}

impl BestPlacement {
    /// Keeps the plan with all layers in one stage if it is better than the best so far.
    pub fn take_single_stage(
        &mut self,
        index: usize,
        load: f64,
        parameters: f64,
        layers: usize,
        copies: usize,
        degrees: &DataParallelDegrees,
    ) {
        let range = 0..degrees.count_up_to(copies);
        if let Some((time, degree)) = degrees.cheapest_degree(range, 1, load, parameters, self.time) {
            *self = Self { time, chain: index, degree, ranges: vec![StageRange { first: 0, end: layers }] };
        }
    }
}
