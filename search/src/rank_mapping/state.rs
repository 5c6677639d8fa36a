//! An assignment with the cost of every group, changed in place.

use super::price::Prices;
use super::traffic::{StepTraffic, TrafficAxis};
use sim::network::Fabric;

/// Weight of the mean group beside the slowest in the energy: a move that betters a group which does not decide is a step forward.
const MEAN_SHARE: f64 = 0.02;

#[derive(Debug, Clone)]
pub(super) struct State<'a> {
    traffic: &'a StepTraffic,
    prices: Prices<'a>,
    /// Device of every rank.
    pub devices: Vec<u32>,
    /// Ranks of every group, all demands one after the other.
    groups: Vec<Vec<u32>>,
    /// Demand of every group.
    demand: Vec<usize>,
    /// First group of every demand, and the end.
    first: Vec<usize>,
    /// Groups that a rank is in.
    of_rank: Vec<Vec<usize>>,
    costs: Vec<f64>,
    /// Costs before the last change.
    undo: Vec<(usize, f64)>,
    stamp: Vec<u64>,
    clock: u64,
}

impl<'a> State<'a> {
    pub fn new(traffic: &'a StepTraffic, fabric: &'a Fabric, devices: Vec<u32>) -> Self {
        let (mut groups, mut demand, mut first) = (Vec::new(), Vec::new(), vec![0]);
        for (id, d) in traffic.demands.iter().enumerate() {
            groups.extend(d.groups());
            demand.resize(groups.len(), id);
            first.push(groups.len());
        }
        let mut of_rank = vec![Vec::new(); devices.len()];
        for (group, ranks) in groups.iter().enumerate() {
            for &rank in ranks {
                of_rank[rank as usize].push(group);
            }
        }
        let count = groups.len();
        let prices = Prices::new(fabric);
        let (costs, stamp) = (vec![0.0; count], vec![0; count]);
        let mut state =
            Self { traffic, prices, devices, groups, demand, first, of_rank, costs, undo: Vec::new(), stamp, clock: 0 };
        for group in 0..count {
            state.costs[group] = state.price(group);
        }
        state
    }

    fn price(&mut self, group: usize) -> f64 {
        let id = self.demand[group];
        let devices = &self.devices;
        self.prices.among(id, &self.traffic.demands[id], self.groups[group].iter().map(|r| devices[*r as usize]))
    }

    fn slowest(&self, demand: usize) -> f64 {
        self.costs[self.first[demand]..self.first[demand + 1]].iter().copied().fold(0.0, f64::max)
    }

    /// Seconds of the step.
    pub fn time(&self) -> f64 {
        self.traffic.time(|demand| self.slowest(demand))
    }

    /// The time with a small part of what the groups that do not decide take.
    pub fn energy(&self) -> f64 {
        let mean = |demand: usize| {
            let costs = &self.costs[self.first[demand]..self.first[demand + 1]];
            costs.iter().sum::<f64>() / costs.len().max(1) as f64
        };
        self.time() + MEAN_SHARE * self.traffic.time(mean)
    }

    /// Devices of a unit.
    pub fn unit(&self) -> u32 {
        self.prices.unit
    }

    /// Whether only whole units are moved.
    pub fn whole(&self) -> bool {
        self.prices.whole
    }

    /// Gives ranks other devices; the devices given must be those that the ranks have.
    pub fn assign(&mut self, changes: &[(usize, u32)]) {
        self.clock += 1;
        self.undo.clear();
        for &(rank, device) in changes {
            self.devices[rank] = device;
        }
        for &(rank, _) in changes {
            for i in 0..self.of_rank[rank].len() {
                let group = self.of_rank[rank][i];
                if self.stamp[group] != self.clock {
                    self.stamp[group] = self.clock;
                    self.undo.push((group, self.costs[group]));
                    self.costs[group] = self.price(group);
                }
            }
        }
    }

    /// Takes the last [`Self::assign`] back; `before` is what the ranks had.
    pub fn revert(&mut self, before: &[(usize, u32)]) {
        for &(rank, device) in before {
            self.devices[rank] = device;
        }
        for &(group, cost) in &self.undo {
            self.costs[group] = cost;
        }
    }

    /// Per axis, seconds over a step of the stage where its slowest groups take longest.
    pub fn axis_times(&self) -> Vec<(TrafficAxis, f64)> {
        self.traffic.axis_times(|demand| self.slowest(demand))
    }
}
