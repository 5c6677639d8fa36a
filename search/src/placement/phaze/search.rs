//! The search over tensor widths, and the arithmetic over data-parallel degrees that prunes it.
//!
//! PHAZE fills a table over (suffix, devices, stages). Here nothing depends on devices but the number of *narrow* stages
//! (those without a tensor-parallel layer, which take one device instead of `t`), and that number matters only in a graph
//! that mixes both kinds of layers. What is left is a minimal bottleneck per (suffix, stages), filled by rising number of
//! stages under two exact cuts: a stage whose load cannot beat the best time known at any degree is not considered, and
//! no more stages are tried than a bound on the bottleneck leaves a chance.

use super::Plan;
use super::evaluate;
use super::instance::{Chain, Instance};
use super::width::WidthSearch;

/// Kept apart from equality when a bound is compared with the best time known, so that rounding never cuts a better plan.
const SAFETY: f64 = 1.0 + 1e-12;

/// The data-parallel degrees worth trying, rising: for every number of micro-batches per copy the smallest degree, since a
/// larger one costs more synchronisation and leaves fewer devices per copy.
pub(super) struct Degrees {
    pub degree: Vec<usize>,
    /// Micro-batches per copy.
    pub micro_batches: Vec<f64>,
    /// Synchronisation time per byte of the first stage's parameters.
    pub synchronization: Vec<f64>,
}

impl Degrees {
    fn new(instance: &Instance) -> Self {
        let total = instance.micro_batches;
        let mut degrees = Self { degree: Vec::new(), micro_batches: Vec::new(), synchronization: Vec::new() };
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
    pub fn up_to(&self, most: usize) -> usize {
        self.degree.partition_point(|&degree| degree <= most)
    }

    /// The largest bottleneck of `stages` stages that beats `time` at some degree of `range` (indices), if the first stage
    /// holds at least `parameters` bytes of parameters; `-inf` if none does.
    pub fn limit(&self, range: std::ops::Range<usize>, stages: usize, time: f64, parameters: f64) -> f64 {
        let fill = (stages - 1) as f64;
        let mut limit = f64::NEG_INFINITY;
        for (micro_batches, synchronization) in self.micro_batches[range.clone()].iter().zip(&self.synchronization[range]) {
            let candidate = (time - synchronization * parameters) / (micro_batches + fill);
            limit = if candidate > limit { candidate } else { limit };
        }
        limit * SAFETY
    }
}

/// The best plan so far: a width's index, a degree and a split.
pub(super) struct Best {
    pub time: f64,
    pub chain: usize,
    pub degree: usize,
    pub ranges: Vec<(usize, usize)>,
}

/// The optimum and its time, `None` if no plan fits.
pub(super) fn optimum(instance: &Instance) -> Option<(f64, Plan)> {
    let degrees = Degrees::new(instance);
    let mut best = Best { time: f64::INFINITY, chain: 0, degree: 0, ranges: Vec::new() };
    let mut widths: Vec<WidthSearch<'_>> = Vec::with_capacity(instance.chains.len());
    for (index, chain) in instance.chains.iter().enumerate() {
        let width = WidthSearch::new(instance, chain, index, &degrees);
        width.single_stage(&mut best);
        widths.push(width);
    }
    // The most promising width first: its plan cuts the others short.
    widths.sort_by(|a, b| a.promise.total_cmp(&b.promise));
    for width in &mut widths {
        width.run(&mut best);
    }
    let chain: &Chain = instance.chains.get(best.chain)?;
    (best.degree > 0).then(|| evaluate::realise(instance, chain, best.degree, &best.ranges))
}
