//! Loads and memory of stages by first position and end, computed only as far as the search can use them.

use super::evaluate;
use super::evaluate::StageRange;
use super::instance::{Chain, PhazeInstance};

/// Relative width of the band around the memory limit in which sums are recomputed in PHAZE's own order. Prefix sums
/// are off by a few units in the last place, and exact ties must be decided as PHAZE decides them.
const MEMORY_TIE: f64 = 1e-12;

/// Sums over the layers before each position: a stage's sum is a difference of two.
pub(super) struct LayerSums {
    pub forward: Vec<f64>,
    pub backward: Vec<f64>,
    pub parameters: Vec<f64>,
    pub activations: Vec<f64>,
    /// Parameters times the optimiser's copies, plus activations.
    fixed: Vec<f64>,
}

impl LayerSums {
    fn new(instance: &PhazeInstance, chain: &Chain) -> Self {
        let zeros = || vec![0.0; chain.len() + 1];
        let mut sums =
            Self { forward: zeros(), backward: zeros(), parameters: zeros(), activations: zeros(), fixed: zeros() };
        let copies = instance.optimizer.copies_per_parameter();
        let (mut forward, mut backward, mut parameters, mut activations) = (0.0, 0.0, 0.0, 0.0);
        for (at, layer) in chain.layers.iter().enumerate() {
            forward += layer.forward;
            backward += layer.backward;
            parameters += layer.parameter_bytes;
            activations += layer.activation_bytes;
            sums.forward[at + 1] = forward;
            sums.backward[at + 1] = backward;
            sums.parameters[at + 1] = parameters;
            sums.activations[at + 1] = activations;
            sums.fixed[at + 1] = copies * parameters + activations;
        }
        sums
    }
}

/// Skip edges as seen from their ends: `(other end, transfer time, bytes)`.
struct Skips {
    into: Vec<Vec<(usize, f64, f64)>>,
    out_of: Vec<Vec<(usize, f64, f64)>>,
}

/// Stage costs of one chain.
pub(super) struct ChainStages<'a> {
    pub instance: &'a PhazeInstance,
    pub chain: &'a Chain,
    pub sums: LayerSums,
    /// `transfer[i]`: time of the tensor from position `i` to `i + 1`; 0 for the last.
    transfer: Vec<f64>,
    skips: Option<Skips>,
    /// Bound on the rounding of a stage's fixed bytes.
    tie: f64,
    /// The largest possible stash, to which its rounding is proportional.
    stash_scale: f64,
}

impl<'a> ChainStages<'a> {
    pub fn new(instance: &'a PhazeInstance, chain: &'a Chain) -> Self {
        let sums = LayerSums::new(instance, chain);
        let mut transfer: Vec<f64> = chain.between.iter().map(|bytes| bytes / instance.bandwidth).collect();
        transfer.push(0.0);
        let skips = (!chain.skips.is_empty()).then(|| {
            let mut skips = Skips { into: vec![Vec::new(); chain.len()], out_of: vec![Vec::new(); chain.len()] };
            for link in &chain.skips {
                let time = link.bytes / instance.bandwidth;
                skips.into[link.to].push((link.from, time, link.bytes));
                skips.out_of[link.from].push((link.to, time, link.bytes));
            }
            skips
        });
        let tie = MEMORY_TIE * (instance.max_memory + sums.fixed[chain.len()]);
        let stash_scale = if instance.recompute {
            chain.between.iter().sum::<f64>() + chain.skips.iter().map(|link| link.bytes).sum::<f64>()
        } else {
            sums.activations[chain.len()]
        };
        Self { instance, chain, sums, transfer, skips, tie, stash_scale }
    }

    /// Returns the compute time of the stage, with one forward and one backward pass. It is a lower bound on the load
    /// at any place.
    pub fn compute_time(&self, first: usize, end: usize) -> f64 {
        self.forward_time(first, end) + self.sums.backward[end] - self.sums.backward[first]
    }

    pub fn forward_time(&self, first: usize, end: usize) -> f64 {
        self.sums.forward[end] - self.sums.forward[first]
    }

    /// Returns the bytes of the stage that do not depend on its place.
    pub fn fixed_bytes(&self, first: usize, end: usize) -> f64 {
        self.sums.fixed[end] - self.sums.fixed[first]
    }

    /// Returns the bytes per micro-batch that a stage from `first` stashes, for one end after another.
    pub fn stash_at(&self, first: usize) -> StashByEnd<'_> {
        let arriving = if first == 0 { 0.0 } else { self.chain.between[first - 1] };
        StashByEnd { stages: self, first, arriving }
    }

    /// True if the stage exceeds the memory limit at `from_end`, given its stash per micro-batch.
    fn exceeds_memory(&self, first: usize, end: usize, from_end: usize, stash: f64) -> bool {
        let excess =
            self.sums.fixed[end] - self.sums.fixed[first] + (from_end - 1) as f64 * stash - self.instance.max_memory;
        let tie = self.tie + MEMORY_TIE * self.stash_scale * (from_end - 1) as f64;
        if excess.abs() > tie {
            excess > 0.0
        } else {
            from_end > evaluate::deepest_place(self.instance, self.chain, StageRange { first, end })
        }
    }

    /// Returns the place farthest from the end at which the stage fits, given its stash per micro-batch; 0 if it fits
    /// nowhere.
    fn deepest_place(&self, first: usize, end: usize, stash: f64) -> usize {
        let literal = || evaluate::deepest_place(self.instance, self.chain, StageRange { first, end });
        let room = self.instance.max_memory - self.fixed_bytes(first, end);
        if room.abs() <= self.tie {
            return literal();
        }
        if room < 0.0 {
            return 0;
        }
        let stashes = room / stash;
        if stashes > self.instance.max_devices as f64 {
            return self.instance.max_devices;
        }
        let whole = stashes as usize;
        let fraction = stashes - whole as f64;
        let from_whole = stash * if fraction < 0.5 { fraction } else { 1.0 - fraction };
        if from_whole > self.tie + MEMORY_TIE * self.stash_scale * stashes { whole + 1 } else { literal() }
    }

    /// Returns the largest number of stages with which the first layer alone fits as the first stage. Nothing enters
    /// that stage, so with recomputation it stashes nothing.
    pub fn first_layer_depth(&self) -> usize {
        self.deepest_place(0, 1, if self.instance.recompute { 0.0 } else { self.sums.activations[1] })
    }

    /// Returns the time of the shortest transfer between neighbours; 0 for a chain of one layer.
    pub fn least_transfer(&self) -> f64 {
        let least = self.transfer[..self.transfer.len() - 1].iter().copied().fold(f64::INFINITY, f64::min);
        if least.is_finite() { least } else { 0.0 }
    }

    /// True if the stage fits as the last one, which stashes nothing.
    pub fn fits_as_last(&self, first: usize, end: usize) -> bool {
        !self.exceeds_memory(first, end, 1, 0.0)
    }

    /// Returns the load of the last stage, which begins at `first`. Nothing leaves that stage, and it never recomputes.
    pub fn load_of_last_stage(&self, first: usize) -> f64 {
        let end = self.chain.len();
        let Some(skips) = &self.skips else {
            return self.arrival_time(first) + self.compute_time(first, end);
        };
        let mut done = self.arrival_time(first);
        for at in first..end {
            for &(from, time, _) in &skips.into[at] {
                if from < first && time > done {
                    done = time;
                }
            }
            done += self.chain.layers[at].forward;
        }
        done + self.sums.backward[end] - self.sums.backward[first]
    }

    fn arrival_time(&self, first: usize) -> f64 {
        if first == 0 { 0.0 } else { self.transfer[first - 1] }
    }
}

/// See [`ChainStages::stash_at`].
pub(super) struct StashByEnd<'a> {
    stages: &'a ChainStages<'a>,
    first: usize,
    /// Bytes that have entered the stage so far.
    arriving: f64,
}

impl StashByEnd<'_> {
    /// Returns the stash per micro-batch of the stage that ends at `end`. Calls must give the ends in order, from
    /// `first + 1` on.
    pub fn next(&mut self, end: usize) -> f64 {
        if let Some(skips) = &self.stages.skips {
            let entering = skips.into[end - 1].iter().filter(|&&(from, _, _)| from < self.first);
            self.arriving += entering.map(|&(_, _, bytes)| bytes).sum::<f64>();
        }
        if self.stages.instance.recompute {
            self.arriving
        } else {
            self.stages.sums.activations[end] - self.stages.sums.activations[self.first]
        }
    }
}

/// Loads of all stages except the last, by first position. Row `i` holds the ends `i + 1`, `i + 2`, ... as far as
/// memory at the second place from the end and the largest useful load allow.
pub(super) struct StageLoadRows {
    loads: Vec<f64>,
    /// Bytes stashed per micro-batch, parallel to `loads`. Filled only with recomputation and skip edges; otherwise a
    /// closed form gives them.
    stashes: Vec<f64>,
    /// The index at which row `i` would hold the end 0.
    base: Vec<usize>,
    /// The largest end of each row.
    pub extent: Vec<usize>,
    /// The largest end still in reach of each row. It shrinks as the place moves away from the end.
    pub reach: Vec<usize>,
    /// For each row, a place at which every end in reach fits.
    depth: Vec<usize>,
}

/// The smallest place from the end that a stage of the rows can have.
const FIRST_PLACE: usize = 2;

impl StageLoadRows {
    /// Computes the rows. Loads above `limit` are left out.
    pub fn new(stages: &ChainStages<'_>, limit: f64) -> Self {
        let count = stages.chain.len();
        let paired = stages.skips.is_some() && stages.instance.recompute;
        let mut rows = Self {
            loads: Vec::with_capacity(count * (count + 3) / 2 + 1),
            stashes: Vec::new(),
            base: vec![0; count],
            extent: vec![0; count],
            reach: Vec::new(),
            depth: Vec::new(),
        };
        // Space before the first row, so that no base is negative.
        rows.loads.resize(count + 1, f64::INFINITY);
        if paired {
            rows.stashes.resize(count + 1, 0.0);
        }
        let mut backward = if stages.skips.is_some() { vec![0.0; count + 1] } else { Vec::new() };
        for first in (0..count).rev() {
            rows.base[first] = rows.loads.len() - first - 1;
            match &stages.skips {
                None => rows.push_chain_row(stages, first, limit),
                Some(skips) => rows.push_skip_row(stages, skips, first, limit, &mut backward),
            }
            rows.extent[first] = rows.loads.len() - rows.base[first] - 1;
        }
        rows
    }

    fn push_chain_row(&mut self, stages: &ChainStages<'_>, first: usize, limit: f64) {
        let (count, sums) = (stages.chain.len(), &stages.sums);
        let recompute = stages.instance.recompute;
        let arrival = stages.arrival_time(first);
        let (forward0, backward0) = (sums.forward[first], sums.backward[first]);
        let again = if recompute { 1.0 } else { 0.0 };
        let stashed = if first == 0 { 0.0 } else { stages.chain.between[first - 1] };
        let columns = sums.forward[first + 1..count].iter().zip(&sums.backward[first + 1..count]);
        let memory = sums.fixed[first + 1..count].iter().zip(&sums.activations[first + 1..count]);
        let room = stages.instance.max_memory - stages.tie - MEMORY_TIE * stages.stash_scale + sums.fixed[first];
        for (at, (((forward, backward), (fixed, activations)), departure)) in
            columns.zip(memory).zip(&stages.transfer[first..]).enumerate()
        {
            let (forward, backward) = (forward - forward0, backward - backward0);
            if arrival + forward + backward + again * forward > limit {
                break;
            }
            let stash = if recompute { stashed } else { activations - sums.activations[first] };
            if fixed + stash > room && stages.exceeds_memory(first, first + 1 + at, FIRST_PLACE, stash) {
                break;
            }
            let wait = if recompute && forward > *departure { forward } else { *departure };
            self.loads.push(arrival + forward + wait + backward);
        }
    }

    /// Adds the row of `first` for a chain with skip edges. On entry, `backward[end]` is the time of the backward pass
    /// of the stage `first + 1 .. end`; on return, that of `first .. end`.
    fn push_skip_row(
        &mut self,
        stages: &ChainStages<'_>,
        skips: &Skips,
        first: usize,
        limit: f64,
        backward: &mut [f64],
    ) {
        let (count, sums) = (stages.chain.len(), &stages.sums);
        let recompute = stages.instance.recompute;
        backward[first + 1] = stages.transfer[first];
        for &(to, time, _) in &skips.out_of[first] {
            for done in &mut backward[first + 1..=to] {
                *done = done.max(time);
            }
        }
        for done in &mut backward[first + 1..] {
            *done += stages.chain.layers[first].backward;
        }
        let mut forward = stages.arrival_time(first);
        let mut stash = stages.stash_at(first);
        for (end, &done) in backward.iter().enumerate().take(count).skip(first + 1) {
            let at = end - 1;
            for &(from, time, _) in &skips.into[at] {
                if from < first {
                    forward = forward.max(time);
                }
            }
            forward += stages.chain.layers[at].forward;
            let (again, pass) = (stages.forward_time(first, end), sums.backward[end] - sums.backward[first]);
            let least = forward + pass + if recompute { again } else { 0.0 };
            let kept = stash.next(end);
            if least > limit || stages.exceeds_memory(first, end, FIRST_PLACE, kept) {
                break;
            }
            self.loads.push(forward + if recompute { done.max(again + pass) } else { done });
            if recompute {
                self.stashes.push(kept);
            }
        }
    }

    /// Puts every end back in reach.
    pub fn reset_ends(&mut self) {
        self.reach.clone_from(&self.extent);
        self.depth.clear();
        self.depth.resize(self.base.len(), FIRST_PLACE);
    }

    /// Returns the bytes that the stage keeps for each micro-batch in flight after the first.
    fn stash_of_stage(&self, stages: &ChainStages<'_>, first: usize, end: usize) -> f64 {
        if !stages.instance.recompute {
            stages.sums.activations[end] - stages.sums.activations[first]
        } else if stages.skips.is_some() {
            self.stashes[self.base[first] + end]
        } else if first == 0 {
            0.0
        } else {
            stages.chain.between[first - 1]
        }
    }

    /// Returns the load of the stage `first..end`. `end` must not exceed the row's `extent`.
    pub fn load_of_stage(&self, first: usize, end: usize) -> f64 {
        self.loads[self.base[first] + end]
    }

    /// Returns the loads of the ends `from..=to` of a row.
    pub fn loads_between(&self, first: usize, from: usize, to: usize) -> &[f64] {
        let base = self.base[first];
        &self.loads[base + from..=base + to]
    }

    /// Drops ends from the far end of the row that do not fit at `from_end` or whose load is above `limit`. Memory
    /// grows with the end and with the place, and limits only fall, so dropped ends stay out.
    pub fn shrink_row(&mut self, stages: &ChainStages<'_>, first: usize, from_end: usize, limit: f64) {
        let base = self.base[first];
        let mut end = self.reach[first];
        while end > first && self.loads[base + end] > limit {
            end -= 1;
        }
        if from_end > self.depth[first] {
            while end > first && stages.exceeds_memory(first, end, from_end, self.stash_of_stage(stages, first, end)) {
                end -= 1;
            }
            self.depth[first] = if end > first {
                stages.deepest_place(first, end, self.stash_of_stage(stages, first, end))
            } else {
                usize::MAX
            };
        }
        self.reach[first] = end;
    }

    /// True if the stage fits at `from_end`.
    pub fn fits_at(&self, stages: &ChainStages<'_>, first: usize, end: usize, from_end: usize) -> bool {
        !stages.exceeds_memory(first, end, from_end, self.stash_of_stage(stages, first, end))
    }
}
