//! Admissible bounds: what no plan of a given pipeline depth and data-parallel degree can beat.

use super::chain::Chain;
use super::profile::GradientSync;
use super::schedule::step_seconds;
use super::stage::Stages;

/// One pair of pipeline depth and data-parallel degree.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pair {
    pub stages: usize,
    pub data_parallel: u64,
    pub micro_batches: u64,
    /// Devices used, for ties.
    pub devices: u64,
}

/// The least bottleneck of `stages` contiguous stages when memory and transfers are free, for every number of stages asked for.
pub(super) struct Bottlenecks {
    known: Vec<Option<f64>>,
}

impl Bottlenecks {
    pub fn new(chain: &Chain<'_>) -> Self {
        Self { known: vec![None; chain.len() + 1] }
    }

    /// The value for one number of stages: starting from the average, fill stages greedily and raise the limit to the
    /// smallest one that changes anything until they suffice.
    pub fn of(&mut self, chain: &Chain<'_>, stages: usize) -> f64 {
        if let Some(known) = self.known[stages] {
            return known;
        }
        let mut limit = (chain.total() / stages as f64).max(chain.longest);
        loop {
            let (mut at, mut raised) = (0, f64::INFINITY);
            for _ in 0..stages {
                if at == chain.len() {
                    break;
                }
                let end = chain.reach(at, limit);
                if end < chain.len() {
                    raised = raised.min(chain.work[end + 1] - chain.work[at]);
                }
                at = end;
            }
            if at == chain.len() {
                self.known[stages] = Some(limit);
                return limit;
            }
            limit = raised;
        }
    }
}

/// What every plan of a pair pays whatever its split.
#[derive(Debug, Clone, Copy)]
pub(super) struct Floor {
    /// Seconds of one micro-batch through all stages.
    pub sum: f64,
    /// Gradient reduction and optimiser of the slowest stage.
    pub tail: f64,
}

pub(super) fn floor<S: GradientSync + ?Sized>(stages: &mut Stages<'_, S>, pair: Pair) -> Floor {
    let (mut bytes, mut largest, mut optimizer) = (0_u64, 0_u64, 0.0);
    for segment in &stages.chain.profile.segments {
        bytes = bytes.saturating_add(segment.gradient.0.saturating_mul(segment.repeat as u64));
        largest = largest.max(segment.gradient.0);
        let seconds = segment.optimizer.0 + segment.sharded_optimizer.0 / pair.data_parallel as f64;
        optimizer += segment.repeat as f64 * seconds;
    }
    // Some stage has at least the average; some stage has the largest piece.
    let reduced = stages.reduce((bytes / pair.stages as u64).max(largest), pair.data_parallel);
    let cuts = if pair.stages > 1 { (pair.stages - 1) as f64 * 2.0 * stages.chain.least_boundary } else { 0.0 };
    Floor { sum: stages.chain.total() + cuts, tail: reduced.max(optimizer / pair.stages as f64) }
}

impl Floor {
    /// No plan of the pair takes less, its bottleneck being at least `bottleneck`.
    pub fn step(&self, pair: Pair, bottleneck: f64) -> f64 {
        step_seconds(self.sum, bottleneck, pair.micro_batches, self.tail)
    }
}
