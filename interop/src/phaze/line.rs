//! A chain prepared for probes ([`super::probe`]): sums of relaxed costs.
//!
//! Probes need this property: if a stage is good, every stage inside it is good too, at the same place and at every
//! smaller place except 1. (Neither stage may begin at position 0.) Lower loads and bytes in some places ensure it:
//! - A load is arrival + forward + departure + backward, or with recomputation arrival + forward + max(forward,
//!   departure) + backward. (The last stage has no departure and does not recompute, but nothing else can be at its
//!   place.) Removing a layer at either end removes its work from the load and replaces one transfer by a neighbouring
//!   one. So the transfers are lowered to the largest values that do not exceed the true ones and of which no two
//!   neighbours differ by more than the work of the layer between them.
//! - Skip edges only delay layers and add to the stash, so they are left out. A skip edge that takes no longer than any
//!   transfer between neighbours delays nothing anyway, because a stage that it enters or leaves waits for its
//!   neighbour's tensor.
//! - Memory is fixed + (place - 1) * stash. Without recomputation, both terms are sums over the layers. With
//!   recomputation, the stash is the arriving tensor. It is lowered so that its rise from one position to the next,
//!   times the largest number of stages, does not exceed the fixed bytes of the layer between them.
//!
//! On most chains none of this changes a cost ([`ProbeChain::exact`]). On others, a split that no probe finds does not
//! exist, and a split that a probe finds must be evaluated under the true costs ([`ProbeChain::true_bottleneck`]).

use super::evaluate;
use super::evaluate::StageRange;
use super::instance::{Chain, PhazeInstance};

/// Relative width of the band around the memory limit in which sums are recomputed in PHAZE's own order. Prefix sums
/// are off by a few units in the last place, and exact ties must be decided as PHAZE decides them.
const MEMORY_TIE: f64 = 1e-12;

pub(super) const fn higher(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

pub(super) const fn lower(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

/// Sums over the layers before a position, for stages that begin or end there.
#[derive(Clone, Copy, Default)]
pub(super) struct ChainPosition {
    /// Compute time before the position, less the arrival. The second value counts the forward work twice.
    pub from: [f64; 2],
    /// Compute time before the position, plus the departure. The second value counts the forward work twice, for
    /// recomputation. A load is the larger of the two differences between `to` and `from`.
    pub to: [f64; 2],
    /// Parameters times the optimiser's copies, plus activations.
    pub fixed: f64,
    /// The stash of a stage is `stash_to` at its end less `stash_from` at its start.
    pub stash_from: f64,
    pub stash_to: f64,
    pub parameters: f64,
}

/// A chain prepared for probes.
pub(super) struct ProbeChain<'a> {
    pub instance: &'a PhazeInstance,
    pub chain: &'a Chain,
    pub positions: Vec<ChainPosition>,
    /// For each cut, the time by which its transfer is lowered, and the index of the transfer that decides the lowered
    /// value. Empty if no transfer is lowered.
    pub lowered: Vec<(f64, usize)>,
    /// Compute time of the whole chain, and the forward part of that time.
    pub work: f64,
    pub forward: f64,
    /// Compute time of the most expensive layer.
    pub dearest: f64,
    /// The shortest transfer between neighbours.
    pub transfer: f64,
    /// Numbers of layers without tensor parallelism at the front and at the back. All other layers are tensor parallel.
    pub prefix: usize,
    pub suffix: usize,
    /// True if the probes use all loads and bytes unchanged.
    pub exact: bool,
    /// Bounds on the rounding of a stage's fixed bytes and of its stash.
    pub tie: [f64; 2],
}

impl<'a> ProbeChain<'a> {
    /// Prepares the chain for probes; `None` if layers without tensor parallelism lie between layers with it.
    pub fn new(instance: &'a PhazeInstance, chain: &'a Chain) -> Option<Self> {
        let (layers, count) = (&chain.layers, chain.len());
        let prefix = layers.iter().take_while(|layer| !layer.tensor_parallel).count();
        let suffix = layers.iter().rev().take_while(|layer| !layer.tensor_parallel).count();
        if prefix < count && !layers[prefix..count - suffix].iter().all(|layer| layer.tensor_parallel) {
            return None;
        }
        let mut line = Self {
            instance,
            chain,
            positions: Vec::with_capacity(count + 1),
            lowered: Vec::new(),
            work: 0.0,
            forward: 0.0,
            dearest: 0.0,
            transfer: f64::INFINITY,
            prefix,
            suffix,
            exact: true,
            tie: [0.0; 2],
        };
        line.sum_up();
        let skips = &chain.skips;
        line.exact &= skips.is_empty()
            || (!instance.recompute && skips.iter().all(|l| l.bytes / instance.bandwidth <= line.transfer));
        line.lower_transfers();
        let incoming = chain.between.iter().sum::<f64>() + skips.iter().map(|link| link.bytes).sum::<f64>();
        let last = line.positions[count];
        let stashed = if instance.recompute { incoming } else { last.stash_to };
        line.tie = [MEMORY_TIE * (instance.max_memory + last.fixed), MEMORY_TIE * stashed];
        if count == 1 {
            line.transfer = 0.0;
        }
        Some(line)
    }

    /// Fills the sums, and lowers the stashes.
    fn sum_up(&mut self) {
        let PhazeInstance { recompute, bandwidth, .. } = *self.instance;
        let (copies, places) =
            (self.instance.optimizer.copies_per_parameter(), self.chain.len().saturating_sub(2).max(1) as f64);
        let (mut forward, mut backward, mut parameters, mut activations) = (0.0, 0.0, 0.0, 0.0);
        let mut stash = f64::INFINITY;
        let cuts = self.chain.between.iter().copied().map(Some).chain([None]);
        self.positions.push(ChainPosition::default());
        for (layer, cut) in self.chain.layers.iter().zip(cuts) {
            let mut position = ChainPosition::default();
            forward += layer.forward;
            backward += layer.backward;
            parameters += layer.parameter_bytes;
            activations += layer.activation_bytes;
            self.dearest = higher(self.dearest, layer.forward + layer.backward);
            let work = forward + backward;
            position.fixed = copies * parameters + activations;
            position.parameters = parameters;
            let Some(bytes) = cut else {
                position.to = [work, f64::NEG_INFINITY];
                position.stash_to = if recompute { 0.0 } else { activations };
                self.positions.push(position);
                break;
            };
            let transfer = bytes / bandwidth;
            self.transfer = if transfer < self.transfer { transfer } else { self.transfer };
            position.from = [work - transfer, work - transfer + forward];
            position.to = [work + transfer, if recompute { work + forward } else { f64::NEG_INFINITY }];
            if recompute {
                let most = stash + (copies * layer.parameter_bytes + layer.activation_bytes) / places;
                self.exact &= bytes <= most;
                stash = if bytes < most { bytes } else { most };
                position.stash_from = -stash;
            } else {
                position.stash_from = activations;
                position.stash_to = activations;
            }
            self.positions.push(position);
        }
        (self.work, self.forward) = (forward + backward, forward);
    }

    /// Lowers transfers, so that neighbouring ones differ by no more than the work of the layer between them.
    fn lower_transfers(&mut self) {
        let layers = &self.chain.layers;
        let work = |at: usize| layers[at].forward + layers[at].backward;
        let uneven =
            |(at, bytes): (usize, &[f64])| (bytes[1] - bytes[0]).abs() > work(at + 1) * self.instance.bandwidth;
        if !self.chain.between.windows(2).enumerate().any(uneven) {
            return;
        }
        let transfers: Vec<f64> = self.chain.between.iter().map(|bytes| bytes / self.instance.bandwidth).collect();
        let mut low: Vec<(f64, usize)> = transfers.iter().copied().zip(0..).collect();
        for at in 1..low.len() {
            let (near, source) = low[at - 1];
            if near + work(at) < low[at].0 {
                low[at] = (near + work(at), source);
            }
        }
        for at in (1..low.len()).rev() {
            let (near, source) = low[at];
            if near + work(at) < low[at - 1].0 {
                low[at - 1] = (near + work(at), source);
            }
        }
        for ((position, transfer), low) in self.positions[1..].iter_mut().zip(transfers).zip(&mut low) {
            let lowered = transfer - low.0;
            position.from = position.from.map(|time| time + lowered);
            position.to[0] -= lowered;
            low.0 = lowered;
        }
        self.exact = false;
        self.lowered = low;
    }

    pub fn len(&self) -> usize {
        self.chain.len()
    }

    /// Returns the bytes of parameters of the layers before a position.
    pub fn parameters_before(&self, end: usize) -> f64 {
        self.positions[end].parameters
    }

    /// Returns the compute time of the tensor-parallel layers. The chain must have one.
    pub fn parallel_work_between(&self) -> f64 {
        self.chain.layers[self.prefix..self.len() - self.suffix]
            .iter()
            .map(|layer| layer.forward + layer.backward)
            .sum()
    }

    pub fn load_of_stage(&self, first: usize, to: [f64; 2]) -> f64 {
        let [once, twice] = self.positions[first].from;
        higher(to[0] - once, to[1] - twice)
    }

    /// Returns the time by which the transfer of the cut at a position is lowered.
    pub fn lowered_by(&self, position: usize) -> f64 {
        self.lowered.get(position - 1).map_or(0.0, |lowered| lowered.0)
    }

    /// Returns two loads of a first stage that is not the only stage: its true load, and a lower load that does not
    /// fall as `end` rises.
    pub fn load_of_first_stage(&self, end: usize) -> (f64, f64) {
        let to = self.positions[end].to;
        let low = self.load_of_stage(0, to);
        (self.load_of_stage(0, [to[0] + self.lowered_by(end), to[1]]), low)
    }

    /// True if the stage does not fit the memory at its place.
    #[inline]
    pub fn exceeds_memory(&self, first: usize, end: usize, place: usize) -> bool {
        let (from, to) = (&self.positions[first], &self.positions[end]);
        let behind = (place - 1) as f64;
        let excess = to.fixed - from.fixed + behind * (to.stash_to - from.stash_from) - self.instance.max_memory;
        let tie = self.tie[0] + behind * self.tie[1];
        if excess.abs() > tie {
            excess > 0.0
        } else {
            self.exact && !self.fits_literally(StageRange { first, end }, place)
        }
    }

    /// True if the stage fits at its place by the formulas in PHAZE's own order.
    #[cold]
    #[inline(never)]
    pub fn fits_literally(&self, range: StageRange, place: usize) -> bool {
        place <= evaluate::deepest_place(self.instance, self.chain, range)
    }
}
