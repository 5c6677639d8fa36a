//! Ranks on devices whose links differ: a part of what `coplace plan` shows, as data. Described in `docs/json.md`.

use search::rank_mapping::{RankMapping, TrafficAxis};
use serde::Serialize;
use sim::status::SolveStatus;

/// A mapping of ranks to devices, and how good it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankMappingRecord {
    /// `devices[rank]` is the device that the rank runs on; devices count unit by unit, in the order of the links' rows.
    pub devices: Vec<u32>,
    /// Devices of a unit that the links join.
    pub unit_devices: u32,
    /// Step in seconds with ranks in the order of the devices.
    pub before_s: f64,
    /// Step in seconds under the best order of the parallel axes.
    pub ordered_s: f64,
    /// That order, fastest first; axes of one rank are left out.
    pub order: Vec<TrafficAxis>,
    /// Step in seconds as mapped.
    pub after_s: f64,
    /// Step in seconds if no collective took any time but its launch.
    pub without_links_s: f64,
    /// Whether only mappings of whole units, in an order of the axes, are considered: where a unit is a torus or has several tiers.
    pub whole_units: bool,
    /// None of the mappings considered is faster under this model, in seconds.
    pub lower_bound_s: f64,
    /// `optimal` or `gap`.
    pub status: &'static str,
    /// `(after - lower bound) / after`.
    pub gap: f64,
    /// Communication by axis.
    pub axes: Vec<AxisTraffic>,
    /// Moves that the annealing tried, or all mappings where there are few.
    pub moves: u64,
}

/// An axis' communication in the stage that is busy longest, over a step, hidden parts left out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AxisTraffic {
    /// The axis.
    pub axis: TrafficAxis,
    /// Seconds in rank order.
    pub before_s: f64,
    /// Seconds as mapped.
    pub after_s: f64,
}

impl From<&RankMapping> for RankMappingRecord {
    fn from(m: &RankMapping) -> Self {
        Self {
            devices: m.devices.clone(),
            unit_devices: m.unit_devices,
            before_s: m.before.0,
            ordered_s: m.ordered.0,
            order: m.order.clone(),
            after_s: m.after.0,
            without_links_s: m.without_links.0,
            whole_units: m.whole_units,
            lower_bound_s: m.lower_bound.0,
            status: if m.status == SolveStatus::Optimal { "optimal" } else { "gap" },
            gap: m.status.relative_gap().unwrap_or(1.0),
            axes: m.axes.iter().map(|a| AxisTraffic { axis: a.axis, before_s: a.before.0, after_s: a.after.0 }).collect(),
            moves: m.moves,
        }
    }
}

/// An axis in words.
#[must_use]
pub fn axis_name(axis: TrafficAxis) -> &'static str {
    match axis {
        TrafficAxis::Tensor => "tensor",
        TrafficAxis::Context => "context",
        TrafficAxis::Data => "data",
        TrafficAxis::Pipeline => "pipeline",
        TrafficAxis::Expert => "expert",
        TrafficAxis::Tied => "tied embeddings",
    }
}
