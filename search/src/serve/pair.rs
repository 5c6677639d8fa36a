//! Finds the best two chips for separate pools of prompts and decoding.

use super::bounded::{BoundedValues, JoinedValues, PricedValue};
use super::{ServedChip, ServedSpace};
use serving::apart::{
    SizedRate, apart, best_rate_of_pools, decode_rates, highest_per_device, prompt_rates, rate_of_many_devices,
};
use serving::best::{DeviceBounds, ServingAnswer, ServingHardware, ServingQuestion};
use std::sync::OnceLock;

/// The best chips of a space for separate pools.
#[derive(Debug, Clone)]
pub struct BestPair {
    /// Index of the chip for prompts, on many devices.
    pub prompts: usize,
    /// Index of the chip for decoding, on many devices.
    pub decoding: usize,
    /// Output tokens per second per device of this pair, on a cluster so large that any division is possible. No pair
    /// serves more per device on any cluster.
    pub many_devices: f64,
    /// The same rate with the best single chip in both pools.
    pub one_kind: f64,
    /// The best pair on the question's devices; `None` if none serves there.
    pub cluster: Option<ClusterPair>,
    /// Number of chips priced for prompts, and for decoding.
    pub priced: [usize; 2],
}

/// The best pair of chips on a finite cluster. No other pair or division of its devices serves more.
#[derive(Debug, Clone)]
pub struct ClusterPair {
    /// Index of the chip for prompts.
    pub prompts: usize,
    /// Index of the chip for decoding.
    pub decoding: usize,
    /// Output tokens per second of the cluster.
    pub tokens_per_second: f64,
    /// Number of pairs whose divisions were tried. The others cannot serve more, by their rates on many devices.
    pub tried: usize,
    /// Its deployments.
    pub answer: ServingAnswer,
}

/// Computes the rates of a pool by the size of its replicas.
type PoolRatesOf = fn(&ServingQuestion<'_>, ServingHardware<'_>) -> Vec<SizedRate>;

/// The rates of one of the two pools, by chip and size of a replica. Each is computed once.
struct PoolTable<'s> {
    space: &'s ServedSpace<'s>,
    chips: &'s [ServedChip],
    compute: PoolRatesOf,
    by_size: Vec<OnceLock<Vec<SizedRate>>>,
}

impl<'s> PoolTable<'s> {
    fn new(space: &'s ServedSpace<'s>, chips: &'s [ServedChip], compute: PoolRatesOf) -> Self {
        Self { space, chips, compute, by_size: vec![OnceLock::new(); chips.len()] }
    }

    fn rates_of(&self, at: usize) -> &[SizedRate] {
        let compute = || {
            let hardware = self.chips.get(at).and_then(|chip| self.space.hardware(chip));
            hardware.map_or_else(Vec::new, |hardware| (self.compute)(self.space.question, hardware))
        };
        self.by_size.get(at).map_or(&[], |rates| rates.get_or_init(compute))
    }

    fn price(&self, at: usize) -> PricedValue {
        PricedValue::Exact(highest_per_device(self.rates_of(at)))
    }
}

/// Both pools, with the requests per second per device of each chip in each.
struct TwoPools<'s> {
    prompts: PoolTable<'s>,
    decoding: PoolTable<'s>,
    by_prompts: BoundedValues,
    by_decoding: BoundedValues,
}

/// The chips of the two pools, by index.
#[derive(Debug, Clone, Copy)]
struct PoolChips {
    prompts: usize,
    decoding: usize,
}

/// The best chips of the two pools on a finite cluster.
struct PairOnCluster {
    chips: PoolChips,
    /// Requests per second.
    rate: f64,
    /// Number of pairs tried.
    tried: usize,
}

impl<'s> TwoPools<'s> {
    fn new(space: &'s ServedSpace<'s>, chips: &'s [ServedChip]) -> Self {
        let bounds = |of: fn(&DeviceBounds) -> f64| {
            BoundedValues::from_bounds(chips.iter().map(|chip| of(&chip.bounds)).collect())
        };
        Self {
            prompts: PoolTable::new(space, chips, prompt_rates),
            decoding: PoolTable::new(space, chips, decode_rates),
            by_prompts: bounds(DeviceBounds::prompts),
            by_decoding: bounds(DeviceBounds::decoding),
        }
    }

    /// Returns the best chip for prompts and the best for decoding; `None` if a pool has none.
    fn settle_each(&mut self) -> Option<PoolChips> {
        let prompts = self.by_prompts.settle_largest(&|at, _| self.prompts.price(at))?;
        let decoding = self.by_decoding.settle_largest(&|at, _| self.decoding.price(at))?;
        Some(PoolChips { prompts, decoding })
    }

    /// Returns the requests per second per device of the best single chip in both pools; 0 if there is none.
    fn settle_one_kind(&mut self) -> f64 {
        let joined = JoinedValues { join: &rate_of_many_devices, needed: &|_, _| 0.0 };
        let prompts = |at: usize, _: f64| self.prompts.price(at);
        let decoding = |at: usize, _: f64| self.decoding.price(at);
        let best = self.by_prompts.settle_joint(&mut self.by_decoding, &joined, &prompts, &decoding);
        best.map_or(0.0, |at| rate_of_many_devices(self.by_prompts.at_most(at), self.by_decoding.at_most(at)))
    }

    /// Returns the best pair on a finite cluster; `None` if none serves. The search starts at `start`, the best pair on
    /// many devices, whose rates bound all others.
    fn settle_cluster(&mut self, devices: u32, start: PoolChips) -> Option<PairOnCluster> {
        let rate_of = |pools: &Self, pair: PoolChips| {
            best_rate_of_pools(devices, pools.prompts.rates_of(pair.prompts), pools.decoding.rates_of(pair.decoding))
        };
        let count = f64::from(devices);
        let (mut best, mut rate, mut tried) = (start, rate_of(self, start), 1);
        // Prices the chips that could serve more beside the best chip of the other pool.
        let most_prompts = self.by_prompts.at_most(start.prompts);
        let most_decoding = self.by_decoding.at_most(start.decoding);
        let needed = |other: f64| {
            let rest = count / rate - 1.0 / other;
            if rate > 0.0 && rest > 0.0 { 1.0 / rest } else { 0.0 }
        };
        self.by_prompts.settle_above(&|at, _| self.prompts.price(at), needed(most_decoding));
        self.by_decoding.settle_above(&|at, _| self.decoding.price(at), needed(most_prompts));
        let (prompts, decoding) = (self.by_prompts.exact_by_falling(), self.by_decoding.exact_by_falling());
        for (prompts, own) in prompts {
            for &(decoding, other) in &decoding {
                if count * rate_of_many_devices(own, other) <= rate {
                    break;
                }
                tried += 1;
                let pair = PoolChips { prompts, decoding };
                let found = rate_of(self, pair);
                if found > rate {
                    (best, rate) = (pair, found);
                }
            }
        }
        (rate > 0.0).then_some(PairOnCluster { chips: best, rate, tried })
    }
}

impl ServedSpace<'_> {
    /// Returns the chips that serve most in separate pools; `None` if a pool has none. They are ranked by output tokens
    /// per second, whatever the objective.
    #[must_use]
    pub fn best_pair(&self, chips: &[ServedChip]) -> Option<BestPair> {
        let output = self.question.lengths.mean_output();
        let mut pools = TwoPools::new(self, chips);
        let chips_of_pools = pools.settle_each()?;
        let PoolChips { prompts, decoding } = chips_of_pools;
        let many = rate_of_many_devices(pools.by_prompts.at_most(prompts), pools.by_decoding.at_most(decoding));
        let one_kind = pools.settle_one_kind() * output;
        let found = pools.settle_cluster(self.question.devices, chips_of_pools);
        let cluster = found.and_then(|PairOnCluster { chips: PoolChips { prompts, decoding }, rate, tried }| {
            let side = |at: usize| self.hardware(chips.get(at)?);
            let answer = apart(self.question, side(prompts)?, side(decoding)?);
            Some(ClusterPair { prompts, decoding, tokens_per_second: rate * output, tried, answer })
        });
        let priced = [pools.by_prompts.priced(), pools.by_decoding.priced()];
        Some(BestPair { prompts, decoding, many_devices: many * output, one_kind, cluster, priced })
    }
}
