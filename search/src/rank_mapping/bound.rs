//! A lower bound on the step time over all assignments.
//!
//! The step time never falls if a collective takes longer (see `step`). So no step is shorter than one in which every
//! collective takes the least time that it can have together with the others.
//!
//! A line is a set of groups that communicate alike. Either all groups of a line lie inside units, or some group
//! crosses between units. Only some lines can be inside together, because the ranks that their groups join must fit
//! into a unit. For each such choice every collective has a least cost:
//! - A line inside costs its price inside a unit.
//! - For any other line at least one group crosses. It costs the least over all spreads over two units or more, on the
//!   fastest link. Lines inside limit the members that a unit holds.
//! - If the lines inside fill units exactly, the spread of all other groups is known, and every unit takes part. The
//!   links that every unit needs then limit the slowest link of the slowest group (see `rates`).
//! - If sends between stages are not all inside, a unit holds a limited number of a pipeline's stages, so a minimum
//!   number of boundaries crosses.
//!
//! The bound is the least step time over all choices. It does not depend on the numbering of units, and a faster link
//! never raises it.
//!
//! If only whole units are moved, an order of the axes fixes the spread of every group, whichever units it gets.

use super::price::{CollectivePrices, SEND};
use super::rates::{GroupShape, LinkRates};
use super::traffic::{AxisOrder, NetworkTable, StepTraffic};
use sim::kernel::CollectiveKind;
use sim::network::{Fabric, GroupSpread, PlacementFinder};
use std::collections::BTreeMap;
use step::{ChipTimes, Communication};

/// Limit on the different lines whose joint choices are enumerated. The number of choices is 2 to this power.
const MAX_LINES: usize = 10;

/// Lower bound in seconds on the step over all assignments of ranks to devices. Without measured links, it is the step
/// on a silent network.
pub(super) fn lower_bound_of_mappings(traffic: &StepTraffic<'_>, fabric: &Fabric) -> f64 {
    let mut chip = traffic.own_cost_model();
    let (Some((links, unit)), Some(places)) = (fabric.measured_links(), PlacementFinder::of_fabric(fabric)) else {
        return traffic.step_seconds_on(&mut chip, &traffic.silent_network());
    };
    let prices = CollectivePrices::new(traffic, fabric);
    let mut bound = MappingBound {
        traffic,
        chip,
        prices,
        rates: LinkRates::of_links(links),
        unit,
        fabric,
        crossing: BTreeMap::new(),
    };
    if fabric.has_places_inside_units() { bound.lower_bound_of_whole_units(places) } else { bound.least_over_choices() }
}

struct MappingBound<'a> {
    traffic: &'a StepTraffic<'a>,
    chip: ChipTimes,
    prices: CollectivePrices<'a>,
    rates: LinkRates<'a>,
    /// Devices of a unit.
    unit: u32,
    fabric: &'a Fabric,
    /// Least cost of a collective with a crossing group, by request and by the most members that a unit holds.
    crossing: BTreeMap<(usize, u32), Communication>,
}

/// One choice of lines inside units, and its consequences.
struct InsideLines<'c> {
    /// By line, true if all its groups lie inside units; `None` if the choice leaves that open. Sends come last.
    inside: &'c [Option<bool>],
    joined: &'c JoinedRanks,
}

impl<'a> MappingBound<'a> {
    /// The least step in seconds over all choices of lines that lie inside units.
    fn least_over_choices(&mut self) -> f64 {
        let traffic = self.traffic;
        let lines = traffic.lines.len();
        let sends = usize::from(traffic.send.is_some());
        // Lines with equal groups have equal placements.
        let same: Vec<usize> = (0..lines)
            .map(|line| {
                traffic.lines[..line].iter().position(|l| l.groups == traffic.lines[line].groups).unwrap_or(line)
            })
            .collect();
        let mut chosen: Vec<usize> =
            (0..lines).filter(|line| same[*line] == *line).chain(lines..lines + sends).collect();
        chosen.truncate(MAX_LINES);
        let mut least = f64::INFINITY;
        for choice in 0..1_u32 << chosen.len() {
            let of = |line: usize| chosen.iter().position(|c| *c == line).map(|at| choice >> at & 1 == 1);
            let inside: Vec<Option<bool>> =
                (0..lines + 1).map(|line| of(same.get(line).copied().unwrap_or(line))).collect();
            let joined = JoinedRanks::of_choice(traffic, &inside);
            if joined.largest <= self.unit {
                least = least.min(self.least_under_choice(&InsideLines { inside: &inside, joined: &joined }));
            }
        }
        least
    }

    /// The least step in seconds under one choice; infinite if the choice is impossible.
    fn least_under_choice(&mut self, choice: &InsideLines<'_>) -> f64 {
        let traffic = self.traffic;
        let mut table = traffic.silent_network();
        for (at, line) in traffic.lines.iter().enumerate() {
            let members = line.groups[0].len() as u32;
            for &ask in &line.asks {
                let within = || members <= self.unit;
                table.times[ask] = match choice.inside[at] {
                    Some(true) if !within() => return f64::INFINITY,
                    Some(true) => self.cost_inside_unit(ask, members),
                    Some(false) => self.cost_outside_unit(ask, &line.groups, line.exchange, choice.joined),
                    None if within() => {
                        self.cost_inside_unit(ask, members).at_least(self.least_crossing_cost(ask, members, u32::MAX))
                    }
                    None => self.least_crossing_cost(ask, members, u32::MAX),
                };
            }
        }
        let crossing = if traffic.send.is_some() { self.least_send_seconds(&mut table, choice) } else { 0 };
        let anywhere = crossing == 0 || crossing == table.tiers.len();
        if anywhere {
            traffic.step_seconds_on(&mut self.chip, &table)
        } else {
            traffic.lower_bound_by_crossings(&mut self.chip, &table)
        }
    }

    /// Fills in the least cost of sends. Returns the least number of boundaries that cross between units.
    fn least_send_seconds(&mut self, table: &mut NetworkTable<'_>, choice: &InsideLines<'_>) -> usize {
        let outer = self.fabric.tiers.len() - 1;
        let (boundaries, joined) = (table.tiers.len(), choice.joined);
        let inner = outer.saturating_sub(1);
        if self.unit > 1 {
            table.sends[inner] = self.cost_inside_unit(SEND, 2);
        }
        let crossing = match choice.inside[self.traffic.lines.len()] {
            Some(false) => {
                // The sets of stages are disjoint, so a unit holds at most this many stages of a pipeline.
                let held = (self.unit / joined.smallest_in_stage).max(1) as usize;
                (boundaries + 1).div_ceil(held).saturating_sub(1).max(1)
            }
            _ => 0,
        };
        table.tiers.fill(inner);
        table.tiers[..crossing].fill(outer);
        if crossing > 0 {
            let rate = if joined.fills_units(self.unit) {
                let pairs = &self.traffic.boundaries;
                let chain = |at: usize| joined.set_count(pairs.iter().flat_map(move |pairs| pairs[at]));
                let units = (0..pairs[0].len()).map(chain).min().unwrap_or(2).max(2);
                self.rates.fastest_through(units, GroupShape::Chain)
            } else {
                self.rates.fastest_link()
            };
            let spread = GroupSpread { members: 2, units: 2, most: 1, least: 1, stride: 1 };
            table.sends[outer] = self.prices.price_of(SEND, spread, rate);
        }
        crossing
    }

    /// The cost of a group inside a unit.
    fn cost_inside_unit(&mut self, ask: usize, members: u32) -> Communication {
        self.prices.price_of(
            ask,
            GroupSpread { members, units: 1, most: members, least: members, stride: 1 },
            f64::INFINITY,
        )
    }

    /// The least cost of a line that is outside: at least one of its groups crosses.
    fn cost_outside_unit(
        &mut self,
        ask: usize,
        groups: &[Vec<u32>],
        exchange: bool,
        joined: &JoinedRanks,
    ) -> Communication {
        let members = groups[0].len() as u32;
        // Sets lie wholly inside units. This limits the sets in a unit, and the members of a group in each set.
        let (size, most) = joined.tightest_packing(groups);
        let least = self.least_crossing_cost(ask, members, self.unit / size * most);
        let spreads: Vec<GroupSpread> =
            if joined.fills_units(self.unit) { joined.spreads_over_units(groups) } else { Vec::new() };
        spreads.iter().filter(|spread| spread.units > 1).fold(least, |known, spread| {
            let rate = self.limiting_rate(&spreads, groups, *spread, exchange);
            known.at_most(self.prices.price_of(ask, *spread, rate))
        })
    }

    /// Upper bound on the rate, in bytes per second, that limits groups of one spread. If every rank takes part and no
    /// group stays inside, every unit takes part.
    fn limiting_rate(&self, spreads: &[GroupSpread], groups: &[Vec<u32>], spread: GroupSpread, exchange: bool) -> f64 {
        let ranks: usize = groups.iter().map(Vec::len).sum();
        if spreads.len() > 1 || ranks < self.traffic.rank_count() as usize {
            return self.rates.fastest_link();
        }
        if exchange {
            self.rates.slowest_exchange(spread.units)
        } else {
            self.rates.fastest_through(spread.units, GroupShape::Ring)
        }
    }

    /// The least cost of any spread over two units or more with at most `most` members in one unit, on the fastest
    /// link.
    fn least_crossing_cost(&mut self, ask: usize, members: u32, most: u32) -> Communication {
        let most = most.min(self.unit).min(members - 1).max(1);
        if let Some(known) = self.crossing.get(&(ask, most)) {
            return *known;
        }
        let fastest = self.rates.fastest_link();
        let mut cost: Option<Communication> = None;
        for most in 1..=most {
            for units in members.div_ceil(most).max(2)..=members {
                for least in 1..=most.min(members / units) {
                    let one =
                        self.prices.price_of(ask, GroupSpread { members, units, most, least, stride: 1 }, fastest);
                    cost = Some(cost.map_or(one, |cost| cost.at_least(one)));
                }
            }
        }
        let cost = cost.unwrap_or_default();
        self.crossing.insert((ask, most), cost);
        cost
    }

    /// Lower bound in seconds over all orders of the axes, whichever whole units their blocks get.
    fn lower_bound_of_whole_units(&mut self, mut places: PlacementFinder<'_>) -> f64 {
        let (traffic, lines) = (self.traffic, self.traffic.lines.len());
        let mut least = f64::INFINITY;
        for AxisOrder { devices, .. } in super::starting_orders(traffic, self.unit, true) {
            let mut table = traffic.silent_network();
            let mut spreads = |groups: &[Vec<u32>]| {
                let mut list: Vec<GroupSpread> = Vec::new();
                for group in groups {
                    let place =
                        places.place_group(CollectiveKind::AllReduce, group.iter().map(|rank| devices[*rank as usize]));
                    if !list.contains(&place.spread) {
                        list.push(place.spread);
                    }
                }
                list
            };
            for line in &traffic.lines[..lines] {
                let list = spreads(&line.groups);
                for spread in &list {
                    let rate = self.limiting_rate(&list, &line.groups, *spread, line.exchange);
                    for &ask in &line.asks {
                        table.times[ask] = table.times[ask].at_most(self.prices.price_of(ask, *spread, rate));
                    }
                }
            }
            for (at, pairs) in traffic.boundaries.iter().enumerate() {
                let meeting = |[a, b]: &[u32; 2]| self.fabric.meeting_tier(devices[*a as usize], devices[*b as usize]);
                let tier = pairs.iter().map(meeting).max().unwrap_or(0);
                table.tiers[at] = tier;
                let groups: Vec<Vec<u32>> = pairs.iter().map(|pair| pair.to_vec()).collect();
                for spread in spreads(&groups) {
                    table.sends[tier] =
                        table.sends[tier].at_most(self.prices.price_of(SEND, spread, self.rates.fastest_link()));
                }
            }
            least = least.min(traffic.step_seconds_on(&mut self.chip, &table));
        }
        least
    }
}

/// Sets of ranks that must share a unit, joined by the groups inside units.
struct JoinedRanks {
    /// The set of each rank.
    set: Vec<usize>,
    /// Ranks in each set.
    sizes: Vec<u32>,
    /// Ranks in the largest set.
    largest: u32,
    /// Ranks in the smallest set.
    smallest: u32,
    /// Ranks in the smallest set if stages are not joined with each other.
    smallest_in_stage: u32,
}

impl JoinedRanks {
    fn of_choice(traffic: &StepTraffic<'_>, inside: &[Option<bool>]) -> Self {
        let lines = traffic.lines.len();
        let chosen = |line: &usize| inside[*line] == Some(true);
        let pairs: Vec<Vec<u32>> = traffic.boundaries.iter().flatten().map(|pair| pair.to_vec()).collect();
        let groups = (0..lines).filter(chosen).map(|line| &traffic.lines[line].groups);
        let sends = Some(&pairs).filter(|_| chosen(&lines) && traffic.send.is_some());
        let ranks = traffic.rank_count() as usize;
        let (set, sizes) = joined_sets(ranks, groups.chain(sends));
        let ends = traffic.line_of_ends();
        let within =
            (0..lines).filter(|line| chosen(line) && Some(*line) != ends).map(|line| &traffic.lines[line].groups);
        let (_, in_stage) = joined_sets(ranks, within);
        let smallest = |sizes: &[u32]| sizes.iter().copied().filter(|size| *size > 0).min().unwrap_or(1);
        let (largest, smallest, smallest_in_stage) =
            (sizes.iter().copied().max().unwrap_or(1), smallest(&sizes), smallest(&in_stage));
        Self { set, sizes, largest, smallest, smallest_in_stage }
    }

    /// True if every set is as large as a unit.
    fn fills_units(&self, unit: u32) -> bool {
        self.smallest == unit
    }

    /// The number of different sets among ranks.
    fn set_count(&self, ranks: impl Iterator<Item = u32>) -> u32 {
        let mut sets: Vec<usize> = ranks.map(|rank| self.set[rank as usize]).collect();
        sets.sort_unstable();
        sets.dedup();
        sets.len() as u32
    }

    /// The sets of a group's members, each with its number of members.
    fn members_by_set(&self, group: &[u32]) -> Vec<(usize, u32)> {
        let mut sets: Vec<usize> = group.iter().map(|rank| self.set[*rank as usize]).collect();
        sets.sort_unstable();
        sets.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u32)).collect()
    }

    /// The size of the smallest set that the groups touch, and the most members of a group in one set.
    fn tightest_packing(&self, groups: &[Vec<u32>]) -> (u32, u32) {
        let all = groups.iter().flat_map(|group| self.members_by_set(group));
        all.fold((u32::MAX, 1), |(size, most), (set, members)| (size.min(self.sizes[set]), most.max(members)))
    }

    /// The distinct spreads of groups, if each set fills a unit.
    fn spreads_over_units(&self, groups: &[Vec<u32>]) -> Vec<GroupSpread> {
        let mut list = Vec::new();
        for group in groups {
            let sets = self.members_by_set(group);
            let counts = sets.iter().map(|(_, members)| *members);
            let spread = GroupSpread {
                members: group.len() as u32,
                units: sets.len() as u32,
                most: counts.clone().max().unwrap_or(1),
                least: counts.min().unwrap_or(1),
                stride: 1,
            };
            if !list.contains(&spread) {
                list.push(spread);
            }
        }
        list
    }
}

/// Joins the members of each group (union-find). Returns the set of each rank, and the sets' sizes.
fn joined_sets<'g>(ranks: usize, groups: impl Iterator<Item = &'g Vec<Vec<u32>>>) -> (Vec<usize>, Vec<u32>) {
    let mut root: Vec<usize> = (0..ranks).collect();
    for group in groups.flatten() {
        for rank in &group[1..] {
            let (a, b) = (find_root(&mut root, group[0] as usize), find_root(&mut root, *rank as usize));
            root[a] = b;
        }
    }
    let set: Vec<usize> = (0..ranks).map(|rank| find_root(&mut root, rank)).collect();
    let mut sizes = vec![0; ranks];
    set.iter().for_each(|set| sizes[*set] += 1);
    (set, sizes)
}

fn find_root(root: &mut [usize], mut rank: usize) -> usize {
    while root[rank] != rank {
        root[rank] = root[root[rank]];
        rank = root[rank];
    }
    rank
}
