//! What a stage costs, remembered per content and depth.

use super::chain::{Chain, Share};
use super::mix::{Mix, Mixer, Part, PolicyCounts, Question};
use super::profile::{ChainProfile, ClusterLimits, Effort, GradientSync, PlacementError};
use sim::status::SolveStatus;
use sim::units::Bytes;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Differences in time below this share of a stage's work do not matter: the planner's answers are optimal to 1e-9.
const RELATIVE_TOLERANCE: f64 = 1e-11;

/// Multiplies by 2^64 / golden ratio: the keys are small packed integers.
#[derive(Default)]
struct PackedKey(u64);

impl Hasher for PackedKey {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Memo<V> = HashMap<u64, V, BuildHasherDefault<PackedKey>>;

/// Which stage: a range of pieces, the micro-batches it keeps and the data-parallel degree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub first: usize,
    pub end: usize,
    pub depth: u64,
    pub data_parallel: u64,
}

/// Costs of stages of one chain on one device and fabric.
pub(super) struct Stages<'a, S: ?Sized> {
    pub chain: Chain<'a>,
    mixer: Mixer,
    limits: ClusterLimits,
    effort: Effort,
    sync: &'a S,
    /// Whether anything is divided over the replicas: else stages do not depend on their number.
    sharded: bool,
    /// Whether memory has no limit and every piece a policy that takes no time: no stage takes any extra.
    free: bool,
    least: Memo<u64>,
    bounds: Memo<f64>,
    extra: Memo<f64>,
    tails: Memo<f64>,
    /// The largest share of a stage's work and recomputation by which its mix may miss the optimum: zero while every mix is proven.
    pub unproven: f64,
    /// The first impossible answer of the fabric.
    pub fault: Option<PlacementError>,
}

impl<'a, S: GradientSync + ?Sized> Stages<'a, S> {
    pub fn new(profile: &'a ChainProfile, limits: ClusterLimits, sync: &'a S, effort: Effort) -> Self {
        let chain = Chain::new(profile);
        let mixer = Mixer::new(&chain);
        let sharded = profile.segments.iter().any(|s| s.sharded.0 > 0 || s.sharded_optimizer.0 > 0.0);
        Self {
            chain,
            mixer,
            limits,
            effort,
            sync,
            sharded,
            free: profile.hbm.0 == u64::MAX
                && profile.constant.0 == 0
                && profile.segments.iter().all(|s| matches!(s.policies[..], [only] if only.extra.0 == 0.0)),
            least: Memo::default(),
            bounds: Memo::default(),
            extra: Memo::default(),
            tails: Memo::default(),
            unproven: 0.0,
            fault: None,
        }
    }

    /// Packs what a stage's memory depends on. Depth is at most the number of stages, so 16 bits hold it; so do degrees below 65,536, larger
    /// ones are not remembered.
    fn key(&self, place: Place) -> Option<u64> {
        let (first, end) = self.chain.canonical(place.first, place.end);
        let degree = if self.sharded { place.data_parallel } else { 0 };
        (degree < 1 << 16).then_some(((first as u64) << 16 | end as u64) << 32 | place.depth << 16 | degree)
    }

    fn remember<V: Copy>(
        &mut self,
        memo: impl Fn(&mut Self) -> &mut Memo<V>,
        key: Option<u64>,
        find: impl FnOnce(&mut Self) -> V,
    ) -> V {
        if let Some(value) = key.and_then(|key| memo(self).get(&key).copied()) {
            return value;
        }
        let value = find(self);
        if let Some(key) = key {
            memo(self).insert(key, value);
        }
        value
    }

    /// Bytes of weights, gradients and optimiser states of a stage on one device.
    pub fn fixed_bytes(&self, place: Place) -> u64 {
        let (mut replicated, mut sharded) = (0_u64, 0_u64);
        for share in self.chain.shares(place.first, place.end) {
            let (segment, count) = (self.chain.segment(share.segment), share.count as u64);
            replicated = replicated.saturating_add(segment.replicated.0.saturating_mul(count));
            sharded = sharded.saturating_add(segment.sharded.0.saturating_mul(count));
        }
        replicated.saturating_add(sharded.div_ceil(place.data_parallel))
    }

    /// The least bytes a stage needs, whatever the policies.
    pub fn least_memory(&mut self, place: Place) -> u64 {
        let key = self.key(place);
        self.remember(
            |s| &mut s.least,
            key,
            |s| {
                let activations = s.mixer.least_memory(&s.parts(place), place.depth);
                s.fixed_bytes(place).saturating_add(s.chain.profile.constant.0).saturating_add(activations)
            },
        )
    }

    fn parts(&self, place: Place) -> Vec<Part> {
        let mut parts = Vec::with_capacity(4);
        self.mixer.parts(self.chain.shares(place.first, place.end), &mut parts);
        parts
    }

    fn question<'q>(&self, place: Place, parts: &'q [Part]) -> Option<Question<'q>> {
        let taken = self.fixed_bytes(place).saturating_add(self.chain.profile.constant.0);
        let available = self.chain.profile.hbm.0.checked_sub(taken)?;
        let tolerance = RELATIVE_TOLERANCE * self.chain.seconds(place.first, place.end);
        Some(Question { parts, depth: place.depth, available, tolerance, state_limit: self.effort.state_limit() })
    }

    /// [`Stages::extra`] if it is known, else what the relaxation says: at most that, and cheaper.
    pub fn extra_bound(&mut self, place: Place) -> f64 {
        if self.free {
            return 0.0;
        }
        let key = self.key(place);
        if key.is_none() {
            return self.extra(place);
        }
        self.remember(
            |s| &mut s.bounds,
            key,
            |s| {
                let parts = s.parts(place);
                s.question(place, &parts).map_or(f64::INFINITY, |question| s.mixer.bound(question))
            },
        )
    }

    /// The least extra seconds that make a stage fit; infinite where nothing does.
    pub fn extra(&mut self, place: Place) -> f64 {
        if self.free {
            return 0.0;
        }
        let key = self.key(place);
        let extra = self.remember(
            |s| &mut s.extra,
            key,
            |s| {
                let parts = s.parts(place);
                let Some(mix) = s.question(place, &parts).and_then(|question| s.mixer.best(question)) else {
                    return f64::INFINITY;
                };
                let stage = s.chain.seconds(place.first, place.end) + mix.extra;
                if mix.extra > mix.bound {
                    s.unproven = s.unproven.max((mix.extra - mix.bound) / stage);
                }
                mix.extra
            },
        );
        if let Some(key) = key {
            self.bounds.insert(key, extra);
        }
        extra
    }

    /// How good a step time is, given how far each stage's is proven: a step is a sum of multiples of its stages' times, so it misses its
    /// optimum by no larger share than any of them does.
    pub fn status(&self, step: f64) -> SolveStatus {
        SolveStatus::from_bounds(step * (1.0 - self.unproven), step)
    }

    /// The mix behind [`Stages::extra`]: its seconds, and (share, policy, pieces).
    pub fn mix(&self, place: Place, shares: &[Share]) -> Option<(f64, PolicyCounts)> {
        let parts = self.parts(place);
        let mix: Mix = self.mixer.best(self.question(place, &parts)?)?;
        Some((mix.extra, self.mixer.distribute(shares, &parts, &mix)))
    }

    /// Exposed transfer seconds of a stage per micro-batch.
    pub fn transfer(&self, place: Place) -> f64 {
        self.chain.boundary(place.first) + self.chain.boundary(place.end)
    }

    /// Gradient reduction and optimiser of a stage.
    pub fn tail(&mut self, place: Place) -> f64 {
        let (first, end) = self.chain.canonical(place.first, place.end);
        let key = (place.data_parallel < 1 << 32).then_some(((first as u64) << 16 | end as u64) << 32 | place.data_parallel);
        self.remember(
            |s| &mut s.tails,
            key,
            |s| {
                let (mut bytes, mut optimizer) = (0_u64, 0.0);
                for share in s.chain.shares(place.first, place.end) {
                    let segment = s.chain.segment(share.segment);
                    bytes = bytes.saturating_add(segment.gradient.0.saturating_mul(share.count as u64));
                    let seconds = segment.optimizer.0 + segment.sharded_optimizer.0 / place.data_parallel as f64;
                    optimizer += share.count as f64 * seconds;
                }
                s.reduce(bytes, place.data_parallel) + optimizer
            },
        )
    }

    /// Seconds of reducing gradients of `bytes` over the replicas.
    pub fn reduce(&mut self, bytes: u64, data_parallel: u64) -> f64 {
        if data_parallel == 1 || bytes == 0 {
            return 0.0;
        }
        let seconds = self.sync.seconds(Bytes(bytes), data_parallel, self.limits.tensor_width).0;
        if !(seconds.is_finite() && seconds >= 0.0) {
            self.fault.get_or_insert(PlacementError::Sync { bytes: Bytes(bytes), ranks: data_parallel, seconds });
            return 0.0;
        }
        seconds
    }
}
