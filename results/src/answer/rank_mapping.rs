//! A mapping of ranks to devices with unequal links: a part of the answer of `coplace plan`, as data. Described in
//! `docs/json.md`.

use search::rank_mapping::{RankMapping, TrafficAxis};
use serde::Serialize;
use sim::status::SolveStatus;

/// A mapping of ranks to devices, with the proof of its quality.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankMappingRecord {
    /// `devices[rank]` is the device of a rank. Devices are numbered unit by unit, in the order of the rows of links.
    pub devices: Vec<u32>,
    /// Devices per unit that the links connect.
    pub unit_devices: u32,
    /// Step in seconds with ranks in the order of the devices.
    pub before_s: f64,
    /// Step in seconds under the best order of the parallel axes.
    pub ordered_s: f64,
    /// The order of the axes, fastest-varying first. Axes with one rank are omitted.
    pub order: Vec<TrafficAxis>,
    /// Step in seconds as mapped.
    pub after_s: f64,
    /// Step in seconds if collectives took only their launch time.
    pub without_links_s: f64,
    /// True if only mappings of whole units in an order of the axes are considered. This holds for units that are a
    /// torus or have several tiers.
    pub whole_units: bool,
    /// Lower bound of the step over the considered mappings, in seconds, under this model.
    pub lower_bound_s: f64,
    /// `optimal` or `gap`.
    pub status: &'static str,
    /// The relative gap: `(after - lower bound) / after`.
    pub gap: f64,
    /// Communication by axis.
    pub axes: Vec<AxisTraffic>,
    /// The number of moves that annealing tried, or the number of mappings if all were tried.
    pub moves: u64,
}

/// Exposed communication of an axis over a step, in the stage that is busy longest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AxisTraffic {
    /// The axis.
    pub axis: TrafficAxis,
    /// Seconds with ranks in the order of the devices.
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
            axes: m
                .axes
                .iter()
                .map(|a| AxisTraffic { axis: a.axis, before_s: a.before.0, after_s: a.after.0 })
                .collect(),
            moves: m.moves,
        }
    }
}

/// Returns the name of an axis.
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
