//! Traffic through the ports of a core's own memories: operands, partial sums, results.
//!
//! One function counts the bytes of a unit, both for its time and for the report.

use super::machine::{Machine, SpanResources};
use super::mapping_problem::{MappingProblem, least_operand_bytes};
use super::tensor_core::{ACCUMULATOR, SumPlace, ceil_div};
use crate::hardware::Dataflow;

/// The part of a product that a core computes at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct CoreUnit {
    pub(super) m: f64,
    pub(super) n: f64,
    pub(super) k: f64,
    /// Arrays that share the unit's folds.
    pub(super) arrays: f64,
    /// Units in a core's memories at a time: one per array if the arrays work on units of their own.
    pub(super) in_core: f64,
    /// Parts of K on different workers. The sums of a part are not the result yet.
    pub(super) split: f64,
}

/// Bytes of a unit that do not depend on the memory level.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnitTraffic {
    /// Operands from the innermost memory into the arrays.
    pub(super) into_arrays: f64,
    /// Partial sums, written to the innermost memory and read from it.
    pub(super) local_sums: f64,
    /// Sums, written to the accumulators and read from them.
    pub(super) accumulated: f64,
    /// Operands from outside the core, each once.
    fetched: f64,
    /// Results, or the sums of a part of K, and what the epilogue writes.
    written: f64,
    /// Bytes that the epilogue reads.
    epilogue_read: f64,
}

/// A unit's bytes, and its time at the slowest port.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalPorts {
    pub(super) seconds: f64,
    /// The level with the slowest port: its position in [`crate::hardware::Accelerator::memory_levels`]. Accumulators
    /// count as the innermost memory, whose sums they hold.
    pub(super) level: usize,
    pub(super) traffic: UnitTraffic,
}

/// The ports of a unit for each place where its sums can stay.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlacedSums {
    pub(super) fastest: LocalPorts,
    /// The ports if the sums stay in the other place, which may take less energy.
    pub(super) other: Option<LocalPorts>,
}

/// Returns the bytes and the time of one unit at the ports of a core's memories. On a chip with accumulators the sums
/// stay there or in the local buffer.
pub(super) fn time_of_unit(machine: &Machine, view: &SpanResources, p: &MappingProblem, unit: &CoreUnit) -> PlacedSums {
    let a = &machine.arrays;
    let through = |into: f64, local: f64, accumulated: f64| {
        let traffic = UnitTraffic { local_sums: local, accumulated, ..unit_traffic(p, unit, into) };
        let (seconds, level) = slowest_port(view, p, unit, &traffic);
        let own = accumulated * a.sums.seconds_per_byte();
        let level = if own > seconds { view.local.last().map_or(0, |level| level.index) } else { level };
        LocalPorts { seconds: seconds.max(own), level, traffic }
    };
    let words = operand_words(machine, unit);
    let (into, sums) = (words.streamed + words.stationary, unit.m * unit.n * ACCUMULATOR);
    let passes = a.partial_passes(ceil_div(unit.k, p.depth));
    let local = || through(into * p.operand, sums * passes, 0.0);
    let only = |fastest: LocalPorts| PlacedSums { fastest, other: None };
    match a.sums {
        _ if passes == 0.0 => only(local()),
        SumPlace::Free => only(through(into * p.operand, 0.0, 0.0)),
        SumPlace::LocalBuffer => only(local()),
        SumPlace::Memory { capacity, .. } => {
            let local = local();
            let again = a.stationary_passes(capacity / unit.in_core, unit.m, unit.n, unit.k, unit.arrays);
            // Each sum leaves the accumulators once more, as a result.
            let own = again.map(|times| {
                let into = words.streamed + words.stationary * times;
                through(into * p.operand, 0.0, sums * (passes + 1.0))
            });
            match own {
                Some(own) if own.seconds < local.seconds => PlacedSums { fastest: own, other: Some(local) },
                own => PlacedSums { fastest: local, other: own },
            }
        }
    }
}

/// Words of operands that enter the arrays. The stationary operand counts once, even if it is loaded several times.
struct OperandWords {
    streamed: f64,
    stationary: f64,
}

/// Returns the words of operands that enter the arrays. Arrays on neighbouring columns of folds share the streamed
/// operand.
fn operand_words(machine: &Machine, unit: &CoreUnit) -> OperandWords {
    let a = &machine.arrays;
    let CoreUnit { m, n, k, arrays, .. } = *unit;
    let columns = |spatial: f64| ceil_div(ceil_div(spatial, a.columns), arrays);
    match a.dataflow {
        Dataflow::OutputStationary => {
            OperandWords { streamed: m * k * columns(n) + k * n * ceil_div(m, a.rows), stationary: 0.0 }
        }
        Dataflow::WeightStationary => OperandWords { streamed: m * k * columns(n), stationary: k * n },
        Dataflow::InputStationary => OperandWords { streamed: k * n * columns(m), stationary: m * k },
    }
}

fn unit_traffic(p: &MappingProblem, unit: &CoreUnit, into_arrays: f64) -> UnitTraffic {
    let CoreUnit { m, n, k, split, .. } = *unit;
    let share = m * n / (p.batch * p.m * p.n) / split;
    let result = if split > 1.0 { ACCUMULATOR } else { p.result };
    UnitTraffic {
        into_arrays,
        local_sums: 0.0,
        accumulated: 0.0,
        fetched: (m + n) * k * p.operand,
        written: m * n * result + p.epilogue_written * share,
        epilogue_read: p.epilogue_read * share,
    }
}

/// Returns the seconds and the level of the slowest port.
fn slowest_port(view: &SpanResources, p: &MappingProblem, unit: &CoreUnit, traffic: &UnitTraffic) -> (f64, usize) {
    let mut slowest = (0.0, 0);
    let last = view.local.len().saturating_sub(1);
    for (i, level) in view.local.iter().enumerate() {
        let inner = if i == last { traffic.into_arrays + traffic.local_sums } else { inner_bytes(view, p, i, unit) };
        let sums = if i == last { traffic.local_sums } else { 0.0 };
        let passing = traffic.written + traffic.epilogue_read;
        let seconds = level.busy_seconds(inner + passing, traffic.fetched + sums + passing);
        if seconds > slowest.0 {
            slowest = (seconds, level.index);
        }
    }
    slowest
}

/// Returns the operand bytes of a unit out of core level `i` into the next inner one. They move once if the inner level
/// holds the unit's accumulators, else as often as its capacity demands.
fn inner_bytes(view: &SpanResources, p: &MappingProblem, i: usize, unit: &CoreUnit) -> f64 {
    let CoreUnit { m, n, k, .. } = *unit;
    let inner = view.local.get(i + 1).map_or(0.0, |level| level.capacity);
    if m * n * ACCUMULATOR <= inner {
        return (m + n) * k * p.operand;
    }
    let unit = MappingProblem { batch: 1.0, m, n, k, ..*p };
    least_operand_bytes(&unit, inner, 0.0, 1.0)
}
