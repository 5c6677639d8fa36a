//! Which rank runs on which device, where links differ: a measured matrix between nodes or devices.
//!
//! # Objective
//! The step time of a plan as a function of the assignment. Every collective of every axis and every stage is priced on the links
//! that its members use under the assignment ([`sim::network::Fabric::collective_spread`]: the slowest link of a ring, the slowest
//! member of an exchange); the slowest group of an axis in a stage decides for the stage. The step is the longest of some paths through the
//! schedule (see `pace`), the slowest stage's reductions, the sum of a tied embedding's gradients, and `rest`, which no assignment changes.
//! `rest`, and the share of each communication that work hides, are such that on links that are all alike (at the harmonic mean of the
//! measured ones) the step is that of [`step::step_time`]: they depend on which links there are, not on where. On the links as they
//! are the time of rank order is therefore near the step model's, not equal. Replicas of the pipeline are taken to wait for each other in
//! every micro-batch.
//!
//! # Search
//! Starts are rank order and the best orders of the parallel axes over the devices, with units as they are numbered and with those side by
//! side that have fast links between them (see `seriation`); simulated annealing swaps devices, swaps aligned blocks
//! and reverses runs of blocks; seeds are fixed, so the answer is always the same. A lower bound (see `bound`) says how far from the optimum
//! it can be.
//!
//! Where units are tori or have several tiers (slices joined by measured links), whole units are moved only: inside, ranks lie in the order
//! of the axes, and groups are priced by the unit's own tiers and dimensions. The bound is then one on such mappings.

mod anneal;
mod bound;
mod pace;
mod price;
mod seriation;
mod state;
#[cfg(test)]
mod tests;
mod traffic;

pub use pace::{Pace, Rhythm};
pub use traffic::{Demand, Role, StepTraffic, TrafficAxis};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use seriation::seriation;
use sim::network::Fabric;
use sim::status::SolveStatus;
use sim::units::Seconds;
use state::State;
use thiserror::Error;

/// Why ranks cannot be mapped.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MappingError {
    /// The fabric does not say which links there are.
    #[error("fabric `{fabric}`: its outermost tier is not a matrix of links; give --links FILE.csv")]
    NoLinks {
        /// The fabric.
        fabric: String,
    },
    /// The ranks are not as many as the devices.
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

/// How long to search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Moves tried from each start.
    pub moves: u32,
    /// Starts: rank order and the best other orders of the axes.
    pub starts: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { moves: 40_000, starts: 4 }
    }
}

/// The slowest group of an axis, in any stage, over a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AxisTime {
    /// The axis.
    pub axis: TrafficAxis,
    /// In rank order.
    pub before: Seconds,
    /// As mapped.
    pub after: Seconds,
}

/// A mapping of ranks to devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankMapping {
    /// `devices[rank]` is where the rank runs; devices count unit by unit (node by node), in the matrix's order.
    pub devices: Vec<u32>,
    /// Devices of a unit of the matrix.
    pub unit_devices: u32,
    /// Step with ranks in the order of devices.
    pub before: Seconds,
    /// Step under the best order of the axes.
    pub ordered: Seconds,
    /// That order, fastest first; axes of one rank are left out.
    pub order: Vec<TrafficAxis>,
    /// Step as mapped.
    pub after: Seconds,
    /// Of it, what is not communication that an assignment prices.
    pub without_links: Seconds,
    /// Whether only mappings of whole units, in an order of the axes, are considered: where a unit is a torus or has several tiers.
    pub whole_units: bool,
    /// None of the mappings considered is faster (status of `after`).
    pub lower_bound: Seconds,
    /// How good the mapping is known to be.
    pub status: SolveStatus,
    /// Communication by axis.
    pub axes: Vec<AxisTime>,
    /// Moves tried.
    pub moves: u64,
}

/// Finds the mapping of a step's ranks to the devices of a fabric with measured links.
///
/// # Errors
/// A fabric without measured links, or of another size.
pub fn map_ranks(traffic: &StepTraffic, fabric: &Fabric, effort: Effort) -> Result<RankMapping, MappingError> {
    let (_, unit_devices) = check(traffic.ranks(), fabric)?;
    let identity: Vec<u32> = (0..traffic.ranks()).collect();
    let first = State::new(traffic, fabric, identity);
    let before = first.time();
    let state = |(order, devices): (Vec<TrafficAxis>, Vec<u32>)| {
        let state = State::new(traffic, fabric, devices);
        (state.time(), order, state)
    };
    let orders = starts(traffic, unit_devices, first.whole());
    let together = fabric.links().map_or_else(Vec::new, |(links, _)| seriation(links));
    let moved = |device: u32| together[(device / unit_devices) as usize] * unit_devices + device % unit_devices;
    let side_by_side: Vec<_> =
        orders.iter().map(|(o, devices)| (o.clone(), devices.iter().map(|d| moved(*d)).collect())).collect();
    let mut starts: Vec<_> = orders.into_iter().map(state).collect();
    starts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (ordered, order) = starts.first().map_or((before, Vec::new()), |s| (s.0, s.1.clone()));
    starts.extend(side_by_side.into_iter().map(state));
    starts.sort_by(|a, b| a.0.total_cmp(&b.0));
    starts.truncate(effort.starts.saturating_sub(1));
    let states: Vec<State<'_>> = std::iter::once(first.clone()).chain(starts.into_iter().map(|s| s.2)).collect();
    let bound = bound::lower_bound(traffic, fabric);
    let found: Vec<anneal::Found> =
        states.into_par_iter().enumerate().map(|(seed, state)| anneal::anneal(state, seed as u64, effort.moves, bound)).collect();
    let moves = found.iter().map(|f| f.moves).sum();
    let best = found.into_iter().min_by(|a, b| a.time.total_cmp(&b.time));
    let (after, devices) = best.map_or((before, (0..traffic.ranks()).collect()), |b| (b.time, b.devices));
    let mapped = State::new(traffic, fabric, devices.clone());
    let axes = first.axis_times().into_iter().zip(mapped.axis_times());
    let lower = bound.min(after);
    Ok(RankMapping {
        devices,
        unit_devices,
        before: Seconds(before),
        ordered: Seconds(ordered.min(before)),
        order,
        after: Seconds(after),
        without_links: Seconds(traffic.time(|_| 0.0)),
        whole_units: first.whole(),
        lower_bound: Seconds(lower),
        status: SolveStatus::from_bounds(lower, after),
        axes: axes
            .map(|((axis, before), (_, after))| AxisTime { axis, before: Seconds(before), after: Seconds(after) })
            .collect(),
        moves,
    })
}

/// The step with a given assignment (`devices[rank]`).
///
/// # Errors
/// As [`map_ranks`].
pub fn mapped_time(traffic: &StepTraffic, fabric: &Fabric, devices: &[u32]) -> Result<Seconds, MappingError> {
    check(traffic.ranks(), fabric)?;
    Ok(Seconds(State::new(traffic, fabric, devices.to_vec()).time()))
}

/// Orders of the axes with their devices: where it matters how a group lies inside a unit, those in which every group is evenly spaced
/// there and takes as many devices of each unit; rank order at least.
fn starts(traffic: &StepTraffic, unit: u32, whole: bool) -> Vec<(Vec<TrafficAxis>, Vec<u32>)> {
    let mut orders = traffic.axis_orders();
    let even = |devices: &[u32]| {
        traffic.demands.iter().flat_map(Demand::groups).all(|group| {
            let places: Vec<u32> = group.iter().map(|rank| devices[*rank as usize]).collect();
            let steps = |pair: &[u32]| pair[1].abs_diff(pair[0]);
            let inside: Vec<&[u32]> = places.windows(2).filter(|pair| pair[0] / unit == pair[1] / unit).collect();
            let counts: Vec<usize> = places.chunk_by(|a, b| a / unit == b / unit).map(<[u32]>::len).collect();
            inside.windows(2).all(|two| steps(two[0]) == steps(two[1])) && counts.windows(2).all(|two| two[0] == two[1])
        })
    };
    if whole {
        let identity: Vec<u32> = (0..traffic.ranks()).collect();
        orders.retain(|(_, devices)| *devices == identity || even(devices));
    }
    orders
}

fn check(ranks: u32, fabric: &Fabric) -> Result<(u32, u32), MappingError> {
    let name = || fabric.name.clone();
    let (links, unit_devices) = fabric.links().ok_or_else(|| MappingError::NoLinks { fabric: name() })?;
    if ranks != fabric.devices() {
        return Err(MappingError::Size { fabric: name(), ranks, devices: fabric.devices() });
    }
    Ok((links.units(), unit_devices))
}
