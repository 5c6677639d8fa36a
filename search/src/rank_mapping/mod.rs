//! Maps ranks to devices of a fabric whose links differ: a measured matrix of rates between nodes or devices.
//!
//! # Objective
//! The objective is the step time of a plan as a function of the assignment: [`step::step_time`] on
//! [`step::PlacedNetwork`], the one model of a step. Every collective of every axis is priced on the links between its
//! members, by the fastest algorithm. The deciding link is the slowest link of a ring or the slowest member of an
//! exchange ([`sim::network::PlacementFinder`]). The slowest group of an axis decides, whichever stage it is in. Ranks
//! in device order take the same time as the plan without a mapping.
//!
//! A search evaluates one plan many times. So the step's requests to the network are recorded once (see `traffic`), and
//! a table answers them. An assignment changes only the placement of groups, and few different placements occur.
//!
//! # Search
//! If there are at most [`RankMappingEffort::moves`] assignments, all are tried. Otherwise the search starts from the
//! best orders of the parallel axes over the devices. Units are sorted by the rates of their links. A second set of
//! starts puts units with fast links side by side (see `seriation`). So the numbering of units does not matter unless
//! two units have links of equal rates.
//!
//! Simulated annealing swaps devices, swaps aligned blocks and reverses runs of blocks. Seeds are fixed, so the answer
//! is reproducible. A lower bound (see `bound`) limits the distance to the optimum.
//!
//! With operator schedules, each pass is scheduled again if its collectives take another time, and the schedule is
//! cached. An unproven schedule may be longer than necessary, and then the bound is longer too.
//!
//! Zero-bubble schedules take long to simulate, so assignments are compared by a lower bound on the step. The best
//! assignment, the best order of the axes and rank order are simulated event by event.
//!
//! If units are tori or have several tiers (slices joined by measured links), only whole units are moved. Inside a
//! unit, ranks lie in the order of the axes, and the unit's own tiers and dimensions price the groups. The lower bound
//! then holds for such mappings only.

mod anneal;
mod bound;
mod every;
mod price;
mod rates;
mod seriation;
mod state;
#[cfg(test)]
mod tests;
mod traffic;

pub use traffic::{StepTraffic, TrafficAxis};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use seriation::seriate_units;
use sim::network::{Fabric, LinkMatrix};
use sim::status::SolveStatus;
use sim::units::Seconds;
use state::MappingState;
use step::{StepError, StepTime};
use thiserror::Error;
use traffic::AxisOrder;

/// Why ranks cannot be mapped.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum MappingError {
    /// The step has no time.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The fabric has no measured links.
    #[error("fabric `{fabric}`: its outermost tier is not a matrix of links; give --links FILE.csv")]
    NoLinks {
        /// The fabric.
        fabric: String,
    },
    /// The plan's number of ranks differs from the fabric's number of devices.
    #[error("{ranks} ranks on {devices} devices of fabric `{fabric}`: must be equal; cut the fabric to the ranks")]
    Size {
        /// The fabric.
        fabric: String,
        /// Ranks of the plan.
        ranks: u32,
        /// Devices of the fabric.
        devices: u32,
    },
}

/// Effort limits of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankMappingEffort {
    /// Moves tried from each start. If there are no more assignments than this, all are tried.
    pub moves: u32,
    /// Number of starts, taken from the best orders of the axes.
    pub starts: usize,
}

impl Default for RankMappingEffort {
    fn default() -> Self {
        Self { moves: 40_000, starts: 4 }
    }
}

/// The exposed communication of one axis over a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AxisTime {
    /// The axis.
    pub axis: TrafficAxis,
    /// Seconds with ranks in device order.
    pub before: Seconds,
    /// Seconds under the mapping.
    pub after: Seconds,
}

/// A mapping of ranks to devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankMapping {
    /// `devices[rank]` is the device of a rank. Devices are numbered unit by unit (node by node), in the matrix's
    /// order.
    pub devices: Vec<u32>,
    /// Devices in a unit of the matrix.
    pub unit_devices: u32,
    /// Step time with ranks in device order: the plan's time without a mapping.
    pub before: Seconds,
    /// Step time under the best order of the axes, at most `before`.
    pub ordered: Seconds,
    /// The axes in that order, fastest-changing first; axes of one rank are left out.
    pub order: Vec<TrafficAxis>,
    /// Step time under the mapping.
    pub after: Seconds,
    /// Step time if collectives and sends took no time except their launches.
    pub without_links: Seconds,
    /// True if only mappings of whole units in an order of the axes are considered, because a unit is a torus or has
    /// several tiers.
    pub whole_units: bool,
    /// Lower bound on the step time over all mappings considered.
    pub lower_bound: Seconds,
    /// The proven distance of `after` from the optimum.
    pub status: SolveStatus,
    /// Exposed communication by axis, for axes that communicate.
    pub axes: Vec<AxisTime>,
    /// Moves tried, or the number of assignments if all were tried.
    pub moves: u64,
}

/// Finds a fast mapping of a step's ranks to the devices of a fabric with measured links, and a lower bound.
///
/// # Errors
/// A fabric without measured links or of another size, or a step without a time.
pub fn map_ranks(
    traffic: &StepTraffic<'_>,
    fabric: &Fabric,
    effort: RankMappingEffort,
) -> Result<RankMapping, MappingError> {
    let unit_devices = check_unit_size(traffic.rank_count(), fabric)?;
    let no_links = || MappingError::NoLinks { fabric: fabric.name.clone() };
    // The search sorts the units in an order of its own, which does not depend on their numbers.
    let order = fabric.measured_links().map_or_else(Vec::new, |(links, _)| own_order_of_units(links));
    let sorted = &fabric.clone().permute_units(&order);
    let mut place = vec![0; order.len()];
    (0..).zip(&order).for_each(|(at, unit)| place[*unit as usize] = at);
    let through =
        |units: &[u32], device: u32| units[(device / unit_devices) as usize] * unit_devices + device % unit_devices;
    let all =
        |units: &[u32], devices: &[u32]| devices.iter().map(|device| through(units, *device)).collect::<Vec<u32>>();
    let identity: Vec<u32> = (0..traffic.rank_count()).collect();
    let mut first = MappingState::new(traffic, sorted, all(&place, &identity)).ok_or_else(no_links)?;
    let before = first.play_step()?;
    let whole = fabric.has_places_inside_units();
    let orders = starting_orders(traffic, unit_devices, whole);
    let timed = orders.iter().map(|AxisOrder { axes, devices }| {
        (first.with_assignment(&all(&place, devices)).step_seconds(), axes, devices)
    });
    let best_order =
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, axes, devices)| (axes.clone(), all(&place, devices)));
    let (order_of_axes, in_order) = best_order.unwrap_or_else(|| (Vec::new(), first.devices.clone()));
    let ordered = first.with_assignment(&in_order).play_step()?;
    let MappingSearch { found, moves, least } = search_mapping(&mut first, &orders, whole, effort);
    let bound = least.unwrap_or_else(|| bound::lower_bound_of_mappings(traffic, sorted));
    // Simulates rank order, the best order of the axes and the search's answer, and keeps the fastest.
    let mut best = (before, first.devices.clone());
    for (step, devices) in [(ordered, in_order), (first.with_assignment(&found).play_step()?, found)] {
        if step.total < best.0.total {
            best = (step, devices);
        }
    }
    let (after, devices) = best;
    let lower = bound.min(after.total.0);
    let mut mapped = first.with_assignment(&devices);
    Ok(RankMapping {
        devices: all(&order, &devices),
        unit_devices,
        before: before.total,
        ordered: ordered.total.min(before.total),
        order: order_of_axes,
        after: after.total,
        without_links: traffic.step_on_network(&mut traffic.own_cost_model(), &traffic.silent_network())?.total,
        whole_units: whole,
        lower_bound: Seconds(lower),
        status: SolveStatus::from_bounds(lower, after.total.0),
        axes: axis_times([&before, &after], [first.play_step_without_sends()?, mapped.play_step_without_sends()?]),
        moves,
    })
}

/// The answer of a search.
struct MappingSearch {
    found: Vec<u32>,
    moves: u64,
    /// The least seconds of all assignments, if all were tried.
    least: Option<f64>,
}

fn search_mapping(
    first: &mut MappingState<'_>,
    orders: &[AxisOrder],
    whole: bool,
    effort: RankMappingEffort,
) -> MappingSearch {
    if let Some(every) = every::AllAssignments::new_up_to(first, orders, whole, effort.moves) {
        return every.find_best_assignment(first);
    }
    let unit = first.unit_size();
    let together = seriate_units(first.links());
    let moved = |device: &u32| together[(device / unit) as usize] * unit + device % unit;
    let side_by_side = orders.iter().map(|order| order.devices.iter().map(moved).collect());
    let starts = orders.iter().map(|order| order.devices.clone()).chain(side_by_side);
    let mut states: Vec<(f64, MappingState<'_>)> = starts
        .map(|devices: Vec<u32>| {
            let mut state = first.with_assignment(&devices);
            (state.step_seconds(), state)
        })
        .collect();
    states.sort_by(|a, b| a.0.total_cmp(&b.0));
    states.truncate(effort.starts.max(1));
    let bound = bound::lower_bound_of_mappings(first.traffic(), first.fabric());
    let found: Vec<anneal::AnnealedMapping> = states
        .into_par_iter()
        .enumerate()
        .map(|(seed, (_, state))| anneal::anneal_mapping(state, seed as u64, effort.moves, bound))
        .collect();
    let moves = found.iter().map(|f| f.moves).sum();
    let best = found.into_iter().min_by(|a, b| a.time.total_cmp(&b.time));
    MappingSearch { found: best.map_or_else(|| first.devices.clone(), |best| best.devices), moves, least: None }
}

/// Sorts units by the rates of their links. Units with equal rates are split further by the rates to each class of
/// units found so far.
fn own_order_of_units(links: &LinkMatrix) -> Vec<u32> {
    let units: Vec<u32> = (0..links.unit_count()).collect();
    let mut class = vec![0_usize; units.len()];
    loop {
        let key = |a: u32| {
            let others = units.iter().filter(|b| **b != a);
            let mut row: Vec<(usize, u64)> =
                others.map(|b| (class[*b as usize], links.rate_between(a, *b).to_bits())).collect();
            row.sort_unstable();
            (class[a as usize], row)
        };
        let keys: Vec<_> = units.iter().map(|a| key(*a)).collect();
        let mut sorted: Vec<_> = keys.iter().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let next: Vec<usize> = keys.iter().map(|key| sorted.partition_point(|other| *other < key)).collect();
        if next == class {
            break;
        }
        class = next;
    }
    let mut order = units;
    order.sort_by_key(|unit| class[*unit as usize]);
    order
}

/// The times of the axes that communicate before or after the mapping. Exposed sends are the difference between the
/// steps with and without sends.
fn axis_times(steps: [&StepTime; 2], without_sends: [StepTime; 2]) -> Vec<AxisTime> {
    let sends = |at: usize| Seconds((steps[at].total - without_sends[at].total).0.max(0.0));
    let of = |axis: TrafficAxis, part: fn(&StepTime) -> Seconds| AxisTime {
        axis,
        before: part(steps[0]),
        after: part(steps[1]),
    };
    let all = [
        of(TrafficAxis::Tensor, |step| step.tensor),
        of(TrafficAxis::Context, |step| step.context),
        of(TrafficAxis::Data, |step| step.data),
        AxisTime { axis: TrafficAxis::Pipeline, before: sends(0), after: sends(1) },
        of(TrafficAxis::Expert, |step| step.expert),
        of(TrafficAxis::Tied, |step| step.tied),
    ];
    all.into_iter().filter(|axis| axis.before.max(axis.after) > Seconds::ZERO).collect()
}

/// The step under a given assignment (`devices[rank]`), simulated event by event.
///
/// # Errors
/// As [`map_ranks`].
pub fn time_of_mapping(traffic: &StepTraffic<'_>, fabric: &Fabric, devices: &[u32]) -> Result<StepTime, MappingError> {
    check_unit_size(traffic.rank_count(), fabric)?;
    let no_links = || MappingError::NoLinks { fabric: fabric.name.clone() };
    Ok(MappingState::new(traffic, fabric, devices.to_vec()).ok_or_else(no_links)?.play_step()?)
}

/// All orders of the axes, each with the devices of the ranks. If only whole units are moved, an order is kept only if
/// every group is evenly spaced inside units and has equally many devices in each. Rank order is always kept.
fn starting_orders(traffic: &StepTraffic<'_>, unit: u32, whole: bool) -> Vec<AxisOrder> {
    let mut orders = traffic.axis_orders();
    let even = |devices: &[u32]| {
        traffic.all_groups().all(|group| {
            let places: Vec<u32> = group.iter().map(|rank| devices[*rank as usize]).collect();
            let steps = |pair: &[u32]| pair[1].abs_diff(pair[0]);
            let inside: Vec<&[u32]> = places.windows(2).filter(|pair| pair[0] / unit == pair[1] / unit).collect();
            let counts: Vec<usize> = places.chunk_by(|a, b| a / unit == b / unit).map(<[u32]>::len).collect();
            inside.windows(2).all(|two| steps(two[0]) == steps(two[1])) && counts.windows(2).all(|two| two[0] == two[1])
        })
    };
    if whole {
        let identity: Vec<u32> = (0..traffic.rank_count()).collect();
        orders.retain(|order| order.devices == identity || even(&order.devices));
    }
    orders
}

/// Checks that the plan fits the fabric. Returns the devices in a unit of the fabric's links.
fn check_unit_size(ranks: u32, fabric: &Fabric) -> Result<u32, MappingError> {
    let name = || fabric.name.clone();
    let (_, unit_devices) = fabric.measured_links().ok_or_else(|| MappingError::NoLinks { fabric: name() })?;
    if ranks != fabric.device_count() {
        return Err(MappingError::Size { fabric: name(), ranks, devices: fabric.device_count() });
    }
    Ok(unit_devices)
}
