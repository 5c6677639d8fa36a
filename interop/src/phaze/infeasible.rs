//! Explains why no plan fits: finds the split that needs the least memory, and its shortfall.
//!
//! One copy of the pipeline gets all devices, so data parallelism is left out. The recurrence has the form of the
//! search for the bottleneck: it minimises, over the ends of the first stage, the larger of that stage's memory and the
//! need of the remaining stages. It is exact.

use super::evaluate;
use super::evaluate::StageRange;
use super::instance::{Chain, PhazeInstance};
use super::rows::ChainStages;

/// The least memory found so far.
struct LeastMemoryAttempt {
    bytes: f64,
    /// A split of `chain` with that need.
    split: Option<(usize, Vec<StageRange>)>,
}

/// Least bytes by first position, and the end of the first stage that leads to them.
struct LeastMemoryLevel {
    bytes: Vec<f64>,
    end: Vec<usize>,
}

impl LeastMemoryLevel {
    fn new(count: usize) -> Self {
        Self { bytes: vec![f64::INFINITY; count + 1], end: vec![0; count + 1] }
    }
}

/// The recurrence at one tensor width. `levels[plane][stages]` holds splits in which at least `plane` stages take one
/// device (see [`super::width`]).
struct LeastMemory<'a> {
    stages: ChainStages<'a>,
    narrow_end: Vec<usize>,
    levels: Vec<Vec<LeastMemoryLevel>>,
}

/// Explains why no plan fits.
pub(super) fn explain_infeasible(instance: &PhazeInstance) -> String {
    let mut best = LeastMemoryAttempt { bytes: f64::INFINITY, split: None };
    let mut too_wide = Vec::new();
    // The largest width splits memory most. Its need therefore prunes the search at the other widths.
    for (index, chain) in instance.chains.iter().enumerate().rev() {
        let parallel = chain.layers.iter().any(|layer| layer.tensor_parallel);
        if parallel && chain.width > instance.max_devices {
            too_wide.insert(0, chain.width.to_string());
        } else {
            LeastMemory::new(instance, chain).run_recurrence(index, &mut best);
        }
    }
    let mut why = match &best.split {
        Some((index, ranges)) => describe_shortfall(instance, &instance.chains[*index], ranges),
        None => String::from("no tensor width can be used"),
    };
    if !too_wide.is_empty() {
        let (widths, devices) = (too_wide.join(", "), instance.max_devices);
        why.push_str(&format!("; tensor width {widths} needs more than the {devices} device(s) there are"));
    }
    why
}

/// Describes the fullest stage of the best attempt.
fn describe_shortfall(instance: &PhazeInstance, chain: &Chain, ranges: &[StageRange]) -> String {
    let depth = ranges.len();
    let need = |index: usize| evaluate::memory_of_stage(instance, chain, ranges[index], depth - index);
    let fullest = (0..depth).max_by(|&a, &b| need(a).total_cmp(&need(b))).unwrap_or(0);
    let StageRange { first, end } = ranges[fullest];
    let (bytes, limit) = (need(fullest), instance.max_memory);
    format!(
        "no split fits {limit:.0} bytes per device; the nearest (tensor width {}, {depth} stage(s)) needs {bytes:.0} bytes for stage {} \
         (layers {} to {}) and lacks {:.0} bytes ({:.3} GB)",
        chain.width,
        fullest + 1,
        chain.layers[first].id,
        chain.layers[end - 1].id,
        (bytes - limit).ceil(),
        (bytes - limit) / 1e9,
    )
}

impl<'a> LeastMemory<'a> {
    fn new(instance: &'a PhazeInstance, chain: &'a Chain) -> Self {
        Self { stages: ChainStages::new(instance, chain), narrow_end: chain.narrow_ends(), levels: Vec::new() }
    }

    fn run_recurrence(&mut self, index: usize, best: &mut LeastMemoryAttempt) {
        let count = self.stages.chain.len();
        // No split needs less memory than the largest layer alone in the last place.
        let floor = (0..count).fold(0.0_f64, |most, at| most.max(self.stages.fixed_bytes(at, at + 1)));
        for plane in 0..=self.most_narrow_stages() {
            self.levels.push(vec![self.empty_level()]);
            // The least memory of a split that still has too few narrow stages.
            let mut pending = f64::INFINITY;
            for stages in 1..=count {
                if best.bytes <= floor {
                    return;
                }
                let level = self.next_level(plane, stages, best.bytes);
                let bytes = level.bytes[0];
                self.levels[plane].push(level);
                if self.devices_of_plan(stages, plane) > self.stages.instance.max_devices {
                    pending = pending.min(bytes);
                } else if bytes < best.bytes {
                    *best = LeastMemoryAttempt { bytes, split: Some((index, self.trace_split(plane, stages))) };
                }
            }
            if pending >= best.bytes {
                return;
            }
        }
    }

    /// Returns level 0, with nothing left to place. Only the empty suffix of plane 0 needs 0 bytes.
    fn empty_level(&self) -> LeastMemoryLevel {
        let count = self.stages.chain.len();
        let mut level = LeastMemoryLevel::new(count);
        if self.levels.is_empty() {
            level.bytes[count] = 0.0;
        }
        level
    }

    /// Returns the largest number of narrow stages in a split; 0 at a width where narrow stages save no devices.
    fn most_narrow_stages(&self) -> usize {
        let chain = self.stages.chain;
        let parallel = chain.layers.iter().filter(|layer| layer.tensor_parallel).count();
        if parallel == 0 || parallel == chain.len() { 0 } else { chain.len() - parallel }
    }

    fn devices_of_plan(&self, stages: usize, plane: usize) -> usize {
        let chain = self.stages.chain;
        let wide = if chain.layers.iter().any(|layer| layer.tensor_parallel) { chain.width } else { 1 };
        wide * (stages - plane.min(stages)) + plane.min(stages)
    }

    /// Computes one level. Values of at least `cut` bytes are left out.
    fn next_level(&self, plane: usize, stages: usize, cut: f64) -> LeastMemoryLevel {
        let count = self.stages.chain.len();
        let mut level = LeastMemoryLevel::new(count);
        let finite = |plane: usize| self.levels[plane][stages - 1].bytes.iter().position(|bytes| bytes.is_finite());
        let behind = [finite(plane), plane.checked_sub(1).and_then(finite)];
        let Some(nearest) = behind.into_iter().flatten().min() else { return level };
        for first in 0..=count - stages {
            // The stage must reach a suffix that can be placed.
            if nearest > first && self.stages.fixed_bytes(first, nearest) >= cut {
                continue;
            }
            let mut stash = self.stages.stash_at(first);
            for end in first + 1..=count + 1 - stages {
                let kept = stash.next(end);
                let bytes = self.stages.fixed_bytes(first, end) + (stages - 1) as f64 * kept;
                if bytes >= cut.min(level.bytes[first]) {
                    break;
                }
                let behind = if end <= self.narrow_end[first] { plane.saturating_sub(1) } else { plane };
                let total = bytes.max(self.levels[behind][stages - 1].bytes[end]);
                if total < level.bytes[first].min(cut) {
                    level.bytes[first] = total;
                    level.end[first] = end;
                }
            }
        }
        level
    }

    fn trace_split(&self, plane: usize, stages: usize) -> Vec<StageRange> {
        let (mut first, mut plane) = (0, plane);
        let mut ranges = Vec::with_capacity(stages);
        for left in (1..=stages).rev() {
            let end = self.levels[plane][left].end[first];
            ranges.push(StageRange { first, end });
            if end <= self.narrow_end[first] {
                plane = plane.saturating_sub(1);
            }
            first = end;
        }
        ranges
    }
}
