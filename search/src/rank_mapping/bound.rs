//! A time that no assignment beats.
//!
//! In a stage, every axis either has all its groups inside units or some group that crosses between units. Which axes can be inside at
//! once is limited: what their groups join must fit into a unit. For each such choice every demand has a least cost:
//! - an axis inside: the cost inside a unit;
//! - otherwise at least one group crosses: the least cost of any spread over two units or more, on the fastest link, with no more members in a
//!   unit than what the axes inside leave room for;
//! - where the axes inside fill units exactly, the spread of all other groups is known, and every unit takes part: in the stage that holds the unit
//!   with the slowest links, a ring through three units or more needs two links of it, so it is no faster than its second fastest.
//!
//! The step is the longest of paths (see `pace`), each a sum over stages that rises with every cost: the least over one choice per stage, path by
//! path (half of a send counts in each of its two stages), is below every assignment's time.
//!
//! Where only whole units are moved, the spread of every group is that of its order of the axes, whichever units it gets: per order, every group
//! costs what it costs on the fastest links, and those with ranks on the unit with the slowest links what it costs on that unit's. Which ranks
//! those are is not known: the least over all unit-sized blocks of ranks.

use super::pace::{Pace, Path};
use super::price::Prices;
use super::traffic::{Demand, Role, StepTraffic, boundary};
use sim::kernel::CollectiveKind;
use sim::network::{Fabric, LinkMatrix, Spread};
use std::collections::BTreeMap;

/// Different patterns of groups in a stage beyond which their joint choices are not enumerated (2 to this power of them).
const MAX_PATTERNS: usize = 10;

/// Pairs of limits (on passes, on what follows them) beyond which passes are not limited.
const MAX_LIMITS: usize = 400;

/// Seconds that no assignment of all ranks goes below.
pub(super) fn lower_bound(traffic: &StepTraffic, fabric: &Fabric) -> f64 {
    let Some((links, _)) = fabric.links() else { return traffic.time(|_| 0.0) };
    if Prices::new(fabric).whole {
        return whole_units(traffic, Prices::new(fabric), &Rates::of(links));
    }
    let mut bounds = Bounds { traffic, prices: Prices::new(fabric), rates: Rates::of(links), crossing: BTreeMap::new() };
    let stages = 0..traffic.busy.len();
    let plain: Vec<Vec<Times>> = stages.clone().map(|s| bounds.stage(s, false)).collect();
    let worst: Vec<Vec<Times>> = stages.clone().map(|s| bounds.stage(s, true)).collect();
    let least = bounds.together(&plain, &worst);
    least + bounds.end() + traffic.rest
}

/// Seconds that no order of the axes goes below, whichever whole units its blocks get.
fn whole_units(traffic: &StepTraffic, mut prices: Prices<'_>, rates: &Rates) -> f64 {
    let mut least = f64::INFINITY;
    for (_, devices) in super::starts(traffic, prices.unit, true) {
        // Per demand: its groups' costs on the fastest links, and per unit-sized block what those with ranks in it cost on the slowest.
        let blocks = traffic.ranks().div_ceil(prices.unit) as usize;
        let (mut fast, mut slow) = (vec![0.0_f64; traffic.demands.len()], vec![vec![0.0_f64; traffic.demands.len()]; blocks]);
        for (id, demand) in traffic.demands.iter().enumerate() {
            for group in demand.groups() {
                let spread = prices.spread_of(group.iter().map(|rank| devices[*rank as usize]));
                let held: Vec<u32> = prices.units().collect();
                fast[id] = fast[id].max(prices.spread(id, demand, spread, rates.fastest));
                let ring = spread.units > 2 && demand.collective.kind != CollectiveKind::AllToAll;
                let rate = if ring { rates.second } else { rates.best };
                let cost = if spread.units > 1 { prices.spread(id, demand, spread, rate) } else { 0.0 };
                for unit in held {
                    let known = &mut slow[unit as usize][id];
                    *known = known.max(cost);
                }
            }
        }
        for slowest in &slow {
            least = least.min(traffic.time(|id| fast[id].max(slowest[id])));
        }
    }
    least
}

/// The fastest link, and the best and the second best link of the unit whose second best is slowest.
struct Rates {
    fastest: f64,
    best: f64,
    second: f64,
}

impl Rates {
    fn of(links: &LinkMatrix) -> Self {
        let mut rates = Self { fastest: 0.0, best: f64::INFINITY, second: f64::INFINITY };
        for a in 0..links.units() {
            let mut row: Vec<f64> = (0..links.units()).filter(|b| *b != a).map(|b| links.rate(a, b)).collect();
            row.sort_by(|x, y| y.total_cmp(x));
            let at = |i: usize| row.get(i).copied().unwrap_or(f64::INFINITY);
            rates.fastest = rates.fastest.max(row.first().copied().unwrap_or(0.0));
            if at(1) < rates.second || a == 0 {
                (rates.best, rates.second) = (at(0), at(1));
            }
        }
        rates
    }
}

/// Least times of a stage under one choice.
#[derive(Clone, Copy)]
struct Times {
    /// Its passes for one micro-batch.
    passes: f64,
    /// Half of its sends with the stage before it, with the one after it, and between the last and the first.
    sends: [f64; 3],
    /// What follows its passes, behind the pipeline's last one.
    once: f64,
}

impl Times {
    fn no_worse(&self, other: &Self) -> bool {
        let sends = self.sends.iter().zip(other.sends).all(|(mine, theirs)| *mine <= theirs);
        self.passes <= other.passes && self.once <= other.once && sends
    }

    /// Its part of a path.
    fn on(&self, pace: &Pace, path: Path, stage: usize, stages: usize) -> f64 {
        let [before, after, around] = self.sends;
        let earlier = if stage > 0 { before * pace.sends_on(path, stage - 1) } else { 0.0 };
        pace.passes_on(path, stage) * self.passes
            + earlier
            + after * pace.sends_on(path, stage)
            + around * pace.sends_on(path, stages - 1)
    }
}

/// Least parts of a path, stage by stage: where the stage is any, and where it holds the unit with the slowest links.
struct Least {
    plain: Vec<f64>,
    worst: Vec<f64>,
}

impl Least {
    /// The path's time for every stage that may hold the slowest unit.
    fn times(&self) -> Vec<f64> {
        let mut after = vec![0.0; self.plain.len() + 1];
        for (i, part) in self.plain.iter().enumerate().rev() {
            after[i] = after[i + 1] + part;
        }
        let mut before = 0.0;
        let each = self.plain.iter().zip(&self.worst).zip(&after[1..]);
        each.map(|((plain, worst), after)| {
            let time = before + worst + after;
            before += plain;
            time
        })
        .collect()
    }
}

struct Bounds<'a> {
    traffic: &'a StepTraffic,
    prices: Prices<'a>,
    rates: Rates,
    /// Least costs of crossing demands, by demand and members that a unit holds at most.
    crossing: BTreeMap<(usize, u32), f64>,
}

/// What makes groups the same set of ranks.
type Pattern = (u32, u32, u32, u32, u32);

fn pattern(demand: &Demand) -> Pattern {
    let group = demand.collective.group;
    (group.ranks, group.stride, demand.first, demand.lanes, demand.blocks)
}

impl Bounds<'_> {
    /// A time below the longest path and the slowest stage's reductions, each stage with any one of its choices, one of them holding the unit
    /// with the slowest links. For every limit on passes and on what follows them, the assignments that just reach both: every path takes at
    /// least each stage's least among the choices within the limits, and a stage is busy with passes of that limit for all micro-batches.
    fn together(&self, plain: &[Vec<Times>], worst: &[Vec<Times>]) -> f64 {
        let stages = plain.len();
        let values = |of: fn(&Times) -> f64| {
            let mut list: Vec<f64> = plain.iter().chain(worst).flatten().map(of).collect();
            list.sort_by(f64::total_cmp);
            list.dedup();
            list
        };
        let (mut limits, onces) = (values(|t| t.passes), values(|t| t.once));
        // Without limits on passes the bound is lower, and still one.
        let limited = limits.len() * onces.len() <= MAX_LIMITS;
        if !limited {
            limits = vec![f64::INFINITY];
        }
        let pace = &self.traffic.pace;
        let paths = pace.paths(stages);
        let mut best = f64::INFINITY;
        for &passes in &limits {
            let busy = if limited { f64::from(pace.micro_batches) * passes } else { 0.0 };
            for &once in &onces {
                let mut slowest = vec![busy; stages];
                for &path in &paths {
                    let least = |(stage, choices): (usize, &Vec<Times>)| {
                        let within = choices.iter().filter(|t| t.passes <= passes && t.once <= once);
                        within.map(|t| t.on(pace, path, stage, stages)).fold(f64::INFINITY, f64::min)
                    };
                    let of = |list: &[Vec<Times>]| list.iter().enumerate().map(least).collect();
                    let times = Least { plain: of(plain), worst: of(worst) }.times();
                    slowest.iter_mut().zip(times).for_each(|(slowest, time)| *slowest = slowest.max(time));
                }
                best = best.min(slowest.into_iter().fold(f64::INFINITY, f64::min) + once);
            }
        }
        best
    }

    /// The choices of a stage that no other betters; `worst` where it is taken to hold the unit with the slowest links.
    fn stage(&mut self, stage: usize, worst: bool) -> Vec<Times> {
        let traffic = self.traffic;
        let mine = |d: &Demand| match d.role {
            Role::Pass(s) | Role::Once(s) => s == stage,
            Role::Send(a, b) => a == stage || b == stage,
            Role::End => false,
        };
        let demands: Vec<usize> = (0..traffic.demands.len()).filter(|i| mine(&traffic.demands[*i])).collect();
        let mut patterns: Vec<Pattern> = demands.iter().map(|i| pattern(&traffic.demands[*i])).collect();
        patterns.sort_unstable();
        patterns.dedup();
        let named = patterns.len().min(MAX_PATTERNS);
        let mut choices: Vec<Times> = Vec::new();
        for choice in 0..1_u32 << named {
            let inside: Vec<Pattern> = (0..named).filter(|i| choice >> i & 1 == 1).map(|i| patterns[i]).collect();
            let joined = Joined::of(traffic, &demands, &inside);
            if joined.largest > self.prices.unit {
                continue;
            }
            let times = self.choice(stage, &demands, &inside, patterns.len() > named, &joined, worst);
            if !choices.iter().any(|c| c.no_worse(&times)) {
                choices.retain(|c| !times.no_worse(c));
                choices.push(times);
            }
        }
        choices
    }

    /// The least times of a stage under a choice; `open` where patterns were left out of the enumeration.
    fn choice(&mut self, stage: usize, demands: &[usize], inside: &[Pattern], open: bool, joined: &Joined, worst: bool) -> Times {
        let traffic = self.traffic;
        let stages = traffic.busy.len();
        let mut times = Times { passes: traffic.busy[stage], sends: [0.0; 3], once: -traffic.leads[stage] };
        for &id in demands {
            let demand = &traffic.demands[id];
            let cost = if inside.contains(&pattern(demand)) {
                self.within(id)
            } else if open {
                self.within(id).min(self.crossing(id, u32::MAX))
            } else {
                self.outside(id, joined, worst)
            };
            let time = demand.weight * cost;
            match demand.role {
                Role::Pass(_) => times.passes += time,
                Role::Once(_) => times.once += time,
                Role::Send(low, high) => {
                    let place = match boundary(low, high, stages) {
                        at if at == low && low == stage => 1,
                        at if at == low => 0,
                        _ => 2,
                    };
                    times.sends[place] += time / 2.0;
                }
                Role::End => {}
            }
        }
        times
    }

    /// A group inside a unit; nothing where a unit cannot hold it.
    fn within(&mut self, id: usize) -> f64 {
        let demand = self.traffic.demands[id];
        let members = demand.collective.group.ranks;
        if members > self.prices.unit {
            return f64::INFINITY;
        }
        self.prices.spread(id, &demand, Spread { members, units: 1, most: members, least: members, stride: 1 }, 1.0)
    }

    /// A demand of which some group crosses.
    fn outside(&mut self, id: usize, joined: &Joined, worst: bool) -> f64 {
        let demand = self.traffic.demands[id];
        // Sets lie wholly inside units: a unit holds so many of them, each with so many members of a group.
        let (size, members) = joined.packing(&demand);
        let least = self.crossing(id, self.prices.unit / size * members);
        // Every rank of the stage must be in a group for the slowest unit to be met.
        let [tensor, context, data, _] = self.traffic.degrees;
        let covers = demand.lanes * demand.blocks * demand.collective.group.ranks == tensor * context * data;
        let known = if joined.smallest == self.prices.unit && covers && !matches!(demand.role, Role::Send(..)) {
            joined.spread(&demand)
        } else {
            None
        };
        let Some(spread) = known.filter(|s| s.units > 1) else { return least };
        let ring = spread.units > 2 && !matches!(demand.collective.kind, CollectiveKind::AllToAll);
        let rate = match (worst, ring) {
            (false, _) => self.rates.fastest,
            (true, true) => self.rates.second,
            (true, false) => self.rates.best,
        };
        self.prices.spread(id, &demand, spread, rate).max(least)
    }

    /// The least cost of any spread over two units or more with at most `most` members in one, on the fastest link.
    fn crossing(&mut self, id: usize, most: u32) -> f64 {
        let demand = self.traffic.demands[id];
        let members = demand.collective.group.ranks;
        let most = most.min(self.prices.unit).min(members - 1).max(1);
        if let Some(known) = self.crossing.get(&(id, most)) {
            return *known;
        }
        let mut cost = f64::INFINITY;
        for most in 1..=most {
            for units in members.div_ceil(most).max(2)..=members {
                for least in 1..=most.min(members / units) {
                    let spread = Spread { members, units, most, least, stride: 1 };
                    cost = cost.min(self.prices.spread(id, &demand, spread, self.rates.fastest));
                }
            }
        }
        self.crossing.insert((id, most), cost);
        cost
    }

    /// The tied embedding's sum: it may stay inside.
    fn end(&mut self) -> f64 {
        let ids: Vec<usize> = (0..self.traffic.demands.len()).filter(|i| self.traffic.demands[*i].role == Role::End).collect();
        ids.into_iter().map(|id| self.traffic.demands[id].weight * self.within(id).min(self.crossing(id, u32::MAX))).sum()
    }
}

/// The ranks that the groups inside units join.
struct Joined {
    /// Representative of every rank's set.
    root: Vec<usize>,
    /// Ranks of every set, by its representative.
    sizes: Vec<u32>,
    /// Ranks of the largest set.
    largest: u32,
    /// Ranks of the smallest set in the stages that the patterns touch.
    smallest: u32,
}

impl Joined {
    fn of(traffic: &StepTraffic, demands: &[usize], inside: &[Pattern]) -> Self {
        let mut root: Vec<usize> = (0..traffic.ranks() as usize).collect();
        let mut done: Vec<Pattern> = Vec::new();
        for &id in demands {
            let demand = &traffic.demands[id];
            let this = pattern(demand);
            if !inside.contains(&this) || done.contains(&this) {
                continue;
            }
            done.push(this);
            for group in demand.groups() {
                for rank in &group[1..] {
                    let (a, b) = (find(&mut root, group[0] as usize), find(&mut root, *rank as usize));
                    root[a] = b;
                }
            }
        }
        let mut sizes = vec![0_u32; root.len()];
        for rank in 0..root.len() {
            let set = find(&mut root, rank);
            sizes[set] += 1;
        }
        let largest = sizes.iter().copied().max().unwrap_or(1);
        let touched = demands.iter().filter(|id| !matches!(traffic.demands[**id].role, Role::Send(..)));
        let mut smallest = u32::MAX;
        for &id in touched {
            for group in traffic.demands[id].groups() {
                for rank in group {
                    let set = find(&mut root, rank as usize);
                    smallest = smallest.min(sizes[set]);
                }
            }
        }
        Self { root, sizes, largest, smallest }
    }

    /// The ranks of the smallest set that a demand's groups touch, and the most members that a group has in one set.
    fn packing(&self, demand: &Demand) -> (u32, u32) {
        let (mut size, mut members) = (u32::MAX, 1);
        for group in demand.groups() {
            let mut sets: Vec<usize> = group.iter().map(|rank| top(&self.root, *rank as usize)).collect();
            sets.sort_unstable();
            for same in sets.chunk_by(|a, b| a == b) {
                size = size.min(self.sizes[same[0]]);
                members = members.max(same.len() as u32);
            }
        }
        (size.max(1), members)
    }

    /// The spread of every group of a demand where each set fills a unit; `None` where groups differ.
    fn spread(&self, demand: &Demand) -> Option<Spread> {
        let mut all = demand.groups().map(|group| {
            let mut sets: Vec<usize> = group.iter().map(|rank| top(&self.root, *rank as usize)).collect();
            sets.sort_unstable();
            let counts: Vec<u32> = sets.chunk_by(|a, b| a == b).map(|c| c.len() as u32).collect();
            Spread {
                members: group.len() as u32,
                units: counts.len() as u32,
                most: counts.iter().copied().max().unwrap_or(1),
                least: counts.iter().copied().min().unwrap_or(1),
                stride: 1,
            }
        });
        let first = all.next()?;
        all.all(|s| s == first).then_some(first)
    }
}

fn find(root: &mut [usize], mut rank: usize) -> usize {
    while root[rank] != rank {
        root[rank] = root[root[rank]];
        rank = root[rank];
    }
    rank
}

fn top(root: &[usize], mut rank: usize) -> usize {
    while root[rank] != rank {
        rank = root[rank];
    }
    rank
}
