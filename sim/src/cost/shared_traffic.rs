//! Traffic through the levels that all cores share: operands on a route, results, partial results of a split K.
//!
//! One function counts the bytes, for the time, the energy and the report.

use super::level_rates::LevelBytes;
use super::machine::{Machine, SpanResources};
use super::mapping_problem::{MappingProblem, chunk_length, least_operand_bytes};
use super::route::Route;

/// Traffic that is the same for all unit sizes: the operand bytes into each shared on-chip level.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OuterTraffic {
    /// Operand bytes into each shared level that is crossed.
    fills: [f64; super::MAX_LEVELS],
}

impl OuterTraffic {
    /// Returns the operand bytes into shared level `i`. A level is never filled with more than the cores take.
    #[inline]
    fn bytes_into_level(&self, i: usize, into_cores: f64) -> f64 {
        if i == 0 { 0.0 } else { self.fills.get(i).copied().unwrap_or(0.0).min(into_cores) }
    }
}

/// Bytes through the shared levels that depend on the mapping; [`OuterTraffic`] and the problem give the rest.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedTraffic {
    /// The levels that the operands cross.
    pub(super) route: Route,
    /// Operand bytes into the cores.
    pub(super) into_cores: f64,
    /// Bytes of partial results written and reread because K is split, and the shared level that holds them.
    pub(super) partials: f64,
    pub(super) park: usize,
}

impl SharedTraffic {
    /// Returns the bytes read from and written to shared level `i`, without the rereading of partial results. A level
    /// on the route is read for the next level inwards and filled from outside. Results and the epilogue's operands
    /// cross only the levels without a path around them, the device's memory among them.
    #[inline]
    pub(super) fn bytes_through_level(
        &self,
        view: &SpanResources,
        p: &MappingProblem,
        outer: &OuterTraffic,
        i: usize,
    ) -> LevelBytes {
        let parked = if i == self.park { self.partials } else { 0.0 };
        if !self.route.crosses_level(i) {
            return LevelBytes { read: 0.0, written: parked };
        }
        let next = self.route.next_level(i);
        let inward = next.map_or(self.into_cores, |next| outer.bytes_into_level(next, self.into_cores));
        let filled = outer.bytes_into_level(i, self.into_cores);
        if view.shared.get(i).is_some_and(|level| level.bypass) {
            return LevelBytes { read: inward, written: filled + parked };
        }
        let results = p.written_bytes();
        let passing = if i == 0 { 0.0 } else { results };
        LevelBytes { read: inward + passing + p.epilogue_read, written: filled + results + parked }
    }
}

pub(super) fn compute_outer_traffic(machine: &Machine, view: &SpanResources, p: &MappingProblem) -> OuterTraffic {
    let mut outer = OuterTraffic::default();
    let local: f64 = view.local.iter().map(|level| level.capacity).sum::<f64>() * view.cores;
    let chunk = chunk_length(machine, p.k);
    for (fill, level) in outer.fills.iter_mut().zip(&view.shared).skip(1) {
        *fill = p.batch * least_operand_bytes(p, level.capacity, local, chunk);
    }
    outer
}

/// Returns the least time at the shared ports over all routes, with K whole.
#[inline]
pub(super) fn least_shared_time(
    view: &SpanResources,
    p: &MappingProblem,
    outer: &OuterTraffic,
    into_cores: f64,
) -> f64 {
    let on = |route: &Route| {
        let shared = SharedTraffic { route: *route, into_cores, partials: 0.0, park: 0 };
        time_shared_ports(view, p, outer, &shared).slowest
    };
    view.routes.iter().map(on).fold(f64::INFINITY, f64::min)
}

/// Returns the port times of the shared levels.
#[inline]
pub(super) fn time_shared_ports(
    view: &SpanResources,
    p: &MappingProblem,
    outer: &OuterTraffic,
    shared: &SharedTraffic,
) -> SharedPortTimes {
    let mut times = SharedPortTimes { slowest: 0.0, level: 0, in_turn: 0.0, energy: 0.0 };
    for (i, level) in view.shared.iter().enumerate() {
        let LevelBytes { read, written } = shared.bytes_through_level(view, p, outer, i);
        let time = level.busy_seconds(read, written);
        times.in_turn += time;
        times.energy += level.traffic_energy(read, written);
        if time > times.slowest {
            (times.slowest, times.level) = (time, i);
        }
    }
    times
}

/// Port times of the shared levels.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedPortTimes {
    /// Seconds of the slowest level's ports; `level` is the position of that level in `view.shared`.
    pub(super) slowest: f64,
    pub(super) level: usize,
    /// The sum of all port times, for data that moves inwards without overlap.
    pub(super) in_turn: f64,
    /// Joules.
    pub(super) energy: f64,
}
