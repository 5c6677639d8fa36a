//! The mapper: how a contraction is cut into tiles for the memories, the cores and the arrays.
//!
//! A *unit* is the part (um, un) of one product's result that one core computes at a time, over all of K. It is feasible
//! in a local buffer if one of three residencies fits: the accumulators stay (operands stream in double-buffered chunks),
//! the unit's rows of the left operand stay, or its columns of the right operand stay. Either way a unit fetches um x K and
//! K x un once, so the left operand crosses the port ceil(N/un) times and the right one ceil(M/um) times. Edges are exact
//! (imperfect factors). The same closed form gives the traffic into every shared level from the next outer one.
//!
//! Time = launch + latencies + max(fill + compute + drain, every port), compute in waves of units over the cores, units of
//! edge size in waves of their own; the part of computing and moving that a chip's software stack does not overlap
//! (`overlap_fraction`) is added. Every candidate's time only falls with bandwidth, its feasibility only grows with
//! capacity, more effort only adds candidates, and the best is taken: the mapper is monotone in all three.

use super::machine::{Machine, View};
use super::tensor_core::{ceil, ceil_div};
use super::tiles::{MappingEffort, Sizes};
use super::{Bound, CostModel, KernelCost, Traffic, vector_core};
use crate::kernel::{Contraction, Elementwise};
use crate::units::Seconds;

/// Bytes of an accumulator (fp32, or int32 for int8).
const ACCUMULATOR: f64 = 4.0;

/// A contraction in floats.
#[derive(Debug, Clone, Copy)]
struct Problem {
    batch: f64,
    m: f64,
    n: f64,
    k: f64,
    operand: f64,
    result: f64,
    /// Multiply-accumulates per unit and second.
    rate: f64,
    /// Elementwise work on each result while it is on chip: seconds on the lanes, and bytes read besides.
    epilogue_time: f64,
    epilogue_read: f64,
    /// Bytes written besides the result.
    epilogue_written: f64,
}

/// The part of the traffic that no unit size changes: what enters each shared on-chip level, outermost first.
#[derive(Debug, Clone, Copy, Default)]
struct Outer {
    /// Operand bytes that leave shared level i for shared level i + 1.
    fills: [f64; super::MAX_LEVELS],
}

impl Outer {
    /// Operand bytes into shared level `i` and out of it towards the cores. No level is filled with more than the cores
    /// take: what it cannot keep bypasses it.
    fn through(&self, i: usize, last: usize, into_cores: f64) -> (f64, f64) {
        let at = |index: usize| self.fills.get(index).copied().unwrap_or(0.0).min(into_cores);
        let filled = if i == 0 { 0.0 } else { at(i - 1) };
        (filled, if i == last { into_cores } else { at(i) })
    }
}

/// A mapping's time and traffic.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    time: f64,
    compute: f64,
    slowest_port: f64,
    slowest_level: usize,
    /// Operand bytes into the cores.
    into_cores: f64,
    /// Operand bytes from the cores' innermost memory into the arrays.
    into_arrays: f64,
    /// Partial results written and reread because K is split.
    partials: f64,
    park: usize,
}

/// Bytes of a tile's first chunk along K: enough to fill the array's rows once.
fn chunk(machine: &Machine, k: f64) -> f64 {
    k.min(machine.arrays.rows)
}

/// Whether a tile (m, n) of a product over k has a residency in `capacity` bytes: accumulators, left rows or right columns.
#[inline]
fn fits(capacity: f64, m: f64, n: f64, k: f64, chunk: f64, operand: f64) -> bool {
    let accumulators = m * n * ACCUMULATOR + 2.0 * (m + n) * chunk * operand;
    if accumulators <= capacity {
        return true;
    }
    let least = 2.0 * chunk * operand;
    // One array-sized strip of results at a time beside the resident operand.
    m * k * operand + least + chunk * m * ACCUMULATOR <= capacity || k * n * operand + least + chunk * n * ACCUMULATOR <= capacity
}

/// The least operand bytes into a memory of `capacity` for one product: over tiles (j-th even split of M, the largest N
/// that fits beside it), accumulators resident here or in the `inner` memories, or a panel of either operand resident.
fn least_operand_bytes(p: &Problem, capacity: f64, inner: f64, chunk: f64) -> f64 {
    let (left, right) = (p.m * p.k * p.operand, p.k * p.n * p.operand);
    let compulsory = left + right;
    if compulsory <= capacity || left + 2.0 * chunk * p.operand <= capacity || right + 2.0 * chunk * p.operand <= capacity {
        return compulsory;
    }
    let panel = (capacity - 2.0 * chunk * p.operand) / (p.k * p.operand);
    let mut best = f64::INFINITY;
    if panel >= 1.0 {
        best = (left + right * ceil_div(p.m, panel.floor())).min(right + left * ceil_div(p.n, panel.floor()));
    }
    let mut split = 1.0;
    while split <= 4096.0 && right * split + left < best {
        let m = ceil_div(p.m, split);
        // m n 4 <= capacity + inner, 2 (m + n) chunk operand <= capacity
        let by_accumulators = (capacity + inner - 2.0 * m * chunk * p.operand) / (m * ACCUMULATOR);
        let by_chunks = capacity / (2.0 * chunk * p.operand) - m;
        let n = by_accumulators.min(by_chunks).floor().min(p.n);
        if n >= 1.0 {
            best = best.min(right * split + left * ceil_div(p.n, n));
        }
        split = if split < 16.0 { split + 1.0 } else { ceil(split * 1.25) };
    }
    if best.is_finite() { best } else { 2.0 * p.m * p.n * p.k * p.operand }
}

/// A mapping this much slower than the fastest is as good where it moves fewer bytes: the fastest one's time is reported,
/// the traffic and energy are those of the chosen one.
const THRIFT: f64 = 1.01;

/// The best mapping so far.
struct Best {
    fastest: f64,
    chosen: Option<Mapped>,
    /// Whether candidates that cannot win are passed over.
    prune: bool,
}

impl Best {
    /// A candidate that cannot be faster than this is passed over.
    fn limit(&self) -> f64 {
        if self.prune { self.fastest } else { f64::INFINITY }
    }

    fn offer(&mut self, candidate: Mapped) {
        self.fastest = self.fastest.min(candidate.time);
        let moved = |m: &Mapped| m.into_cores + m.partials;
        let better = match &self.chosen {
            Some(chosen) if chosen.time <= self.fastest * THRIFT => {
                candidate.time <= self.fastest * THRIFT && moved(&candidate) < moved(chosen)
            }
            _ => candidate.time <= self.fastest,
        };
        if better {
            self.chosen = Some(candidate);
        }
    }
}

/// The fastest mapping. Units of work are dealt to cores, or to single arrays.
fn search(machine: &Machine, view: &View, p: &Problem, effort: MappingEffort, prune: bool) -> (f64, Mapped) {
    let outer = outer_traffic(machine, view, p);
    let mut best = Best { fastest: f64::INFINITY, chosen: None, prune };
    let (granule_m, granule_n) = machine.arrays.spatial_granules();
    let ms = Sizes::new(p.m, effort, granule_m.filter(|_| prune));
    let ns = Sizes::new(p.n, effort, granule_n.filter(|_| prune));
    let chunk = chunk(machine, p.k);
    let capacity = view.local.first().map_or(0.0, |level| level.capacity);
    let floor = machine.arrays.rows.min(machine.arrays.columns);
    for um in ms.iter() {
        for un in ns.iter() {
            for independent in [false, true] {
                let arrays = if independent { machine.arrays.count } else { 1.0 };
                if independent && machine.arrays.count <= 1.0 {
                    continue;
                }
                let smallest = um <= floor && un <= floor;
                if !smallest && !fits(capacity / arrays, um, un, p.k, chunk, p.operand) {
                    continue;
                }
                let mut split = 1.0;
                loop {
                    let partials = if split > 1.0 { p.batch * p.m * p.n * split * ACCUMULATOR } else { 0.0 };
                    for (park, level) in view.shared.iter().enumerate() {
                        // The device's memory holds partial results always, an on-chip level where they fit.
                        if park == 0 || (partials > 0.0 && level.capacity >= partials) {
                            evaluate(machine, view, p, &outer, &Tile { um, un, split, independent, partials, park }, &mut best);
                        }
                    }
                    let units = p.batch * ceil_div(p.m, um) * ceil_div(p.n, un) * split;
                    split *= 2.0;
                    if units >= view.cores * arrays || split * machine.arrays.rows > p.k || split > 64.0 {
                        break;
                    }
                }
            }
        }
    }
    let nothing = Mapped {
        time: 0.0,
        compute: 0.0,
        slowest_port: 0.0,
        slowest_level: 0,
        into_cores: 0.0,
        into_arrays: 0.0,
        partials: 0.0,
        park: 0,
    };
    best.chosen.map_or((0.0, nothing), |chosen| (best.fastest, chosen))
}

fn outer_traffic(machine: &Machine, view: &View, p: &Problem) -> Outer {
    let mut outer = Outer::default();
    let local: f64 = view.local.iter().map(|level| level.capacity).sum::<f64>() * view.cores;
    let chunk = chunk(machine, p.k);
    for (fill, level) in outer.fills.iter_mut().zip(view.shared.iter().skip(1)) {
        *fill = p.batch * least_operand_bytes(p, level.capacity, local, chunk);
    }
    outer
}

#[derive(Debug, Clone, Copy)]
struct Tile {
    um: f64,
    un: f64,
    /// Parts of K on different workers.
    split: f64,
    /// Whether each array works on a unit of its own.
    independent: bool,
    /// Bytes of the partial results, and the shared level where they wait.
    partials: f64,
    park: usize,
}

fn evaluate(machine: &Machine, view: &View, p: &Problem, outer: &Outer, tile: &Tile, best: &mut Best) {
    let limit = best.limit();
    let a = &machine.arrays;
    let (tm, tn) = (ceil_div(p.m, tile.um), ceil_div(p.n, tile.un));
    let into_cores = p.batch * p.k * p.operand * (p.m * tn + p.n * tm);
    let results = p.batch * p.m * p.n;
    let ports = ports(view, p, outer, into_cores, results * p.result + p.epilogue_written, tile);
    if ports.slowest >= limit {
        return;
    }
    let (workers, per_unit) = if tile.independent { (view.cores * a.count, 1.0) } else { (view.cores, a.count) };
    let k = ceil_div(p.k, tile.split);
    let cycles = waves(p, tile, tm, tn, workers, |m, n| a.tile_cycles(m, n, k, per_unit));
    // Filling and draining run at the clock, whatever fraction of their peak the streaming arrays achieve.
    let compute = cycles / p.rate + a.fill_cycles(tile.um.min(p.m), tile.un.min(p.n), k) / machine.clock;
    if compute >= limit {
        return;
    }
    let units = p.batch * tm * tn * tile.split;
    let active = units.min(workers);
    let (local_time, into_arrays) = local_ports(machine, view, p, tile, units / active.min(view.cores));
    let memory = view.shared.first().map_or(0.0, |level| {
        let first = active * (tile.um + tile.un) * k.min(a.rows) * p.operand;
        level.busy(first, 0.0) + level.busy(0.0, active * tile.um * tile.un * p.result)
    });
    let epilogue = p.epilogue_time;
    // Rereading the partial results for their sum, after the last of them is written.
    let reread = view.shared.get(tile.park).map_or(0.0, |level| level.busy(tile.partials, 0.0));
    let reduce = if tile.partials > 0.0 { reread + results * tile.split / machine.lane_rate(view) } else { 0.0 };
    let work = compute.max(epilogue).max(local_time);
    let moving = ports.slowest;
    let time = (work + memory).max(moving) + view.exposed * (ports.in_turn + work - moving.max(work)) + reduce;
    best.offer(Mapped {
        time,
        compute: work,
        slowest_port: moving,
        slowest_level: ports.level,
        into_cores,
        into_arrays,
        partials: tile.partials,
        park: tile.park,
    });
}

/// The slowest port of the shared levels: its time and its place in `view.shared`.
fn ports(view: &View, p: &Problem, outer: &Outer, into_cores: f64, results: f64, tile: &Tile) -> Ports {
    let last = view.shared.len().saturating_sub(1);
    let mut slowest = (0.0, 0);
    let mut sum = 0.0;
    for (i, level) in view.shared.iter().enumerate() {
        let (filled, inward) = outer.through(i, last, into_cores);
        let passing = if i == 0 { 0.0 } else { results };
        let parked = if i == tile.park { tile.partials } else { 0.0 };
        let time = level.busy(inward + passing + p.epilogue_read, filled + results + parked);
        sum += time;
        if time > slowest.0 {
            slowest = (time, i);
        }
    }
    Ports { slowest: slowest.0, level: slowest.1, in_turn: sum }
}

/// How long the shared levels' ports are busy.
struct Ports {
    /// The slowest of them, and its place in `view.shared`.
    slowest: f64,
    level: usize,
    /// All of them one after the other, as data moves inwards where nothing is overlapped.
    in_turn: f64,
}

/// Waves of units over the workers: units of one size are dealt before the next smaller size, a wave takes as long as its
/// largest unit.
#[inline]
fn waves(p: &Problem, tile: &Tile, tm: f64, tn: f64, workers: f64, cycles: impl Fn(f64, f64) -> f64) -> f64 {
    let (edge_m, edge_n) = (p.m - (tm - 1.0) * tile.um, p.n - (tn - 1.0) * tile.un);
    let parts = p.batch * tile.split;
    let (whole_m, whole_n) = if edge_m == tile.um { (tm, 0.0) } else { (tm - 1.0, 1.0) };
    let (full_n, part_n) = if edge_n == tile.un { (tn, 0.0) } else { (tn - 1.0, 1.0) };
    let mut classes = [
        (parts * whole_m * full_n, tile.um, tile.un, 0.0),
        (parts * whole_m * part_n, tile.um, edge_n, 0.0),
        (parts * whole_n * full_n, edge_m, tile.un, 0.0),
        (parts * whole_n * part_n, edge_m, edge_n, 0.0),
    ];
    for class in &mut classes {
        if class.0 > 0.0 {
            class.3 = cycles(class.1, class.2);
        }
    }
    if classes[2].3 > classes[1].3 {
        classes.swap(1, 2);
    }
    let (mut dealt, mut waves, mut total) = (0.0, 0.0, 0.0);
    for (count, _, _, time) in classes {
        dealt += count;
        let reached = ceil_div(dealt, workers);
        total += (reached - waves) * time;
        waves = reached;
    }
    total
}

/// Time of the busiest core's own memories and the operand bytes into the arrays of all cores.
fn local_ports(machine: &Machine, view: &View, p: &Problem, tile: &Tile, units_per_core: f64) -> (f64, f64) {
    let a = &machine.arrays;
    let sharing = if tile.independent { 1.0 } else { a.count };
    let (m, n, k) = (tile.um.min(p.m), tile.un.min(p.n), ceil_div(p.k, tile.split));
    use crate::hardware::Dataflow::{InputStationary, OutputStationary, WeightStationary};
    // Arrays that work on neighbouring columns of folds share the streamed operand.
    let words = match a.dataflow {
        OutputStationary => m * k * ceil_div(ceil_div(n, a.columns), sharing) + k * n * ceil_div(m, a.rows),
        WeightStationary => m * k * ceil_div(ceil_div(n, a.columns), sharing) + k * n,
        InputStationary => k * n * ceil_div(ceil_div(m, a.columns), sharing) + m * k,
    };
    let into_arrays = words * p.operand;
    let fetched = (m + n) * k * p.operand;
    let written = m * n * p.result;
    let mut slowest = 0.0_f64;
    let last = view.local.len().saturating_sub(1);
    for (i, level) in view.local.iter().enumerate() {
        let inward = if i == last { into_arrays } else { inner_bytes(view, p, i, m, n, k) };
        slowest = slowest.max(level.busy(inward + written, fetched + written) * ceil(units_per_core));
    }
    let all = p.batch * ceil_div(p.m, tile.um) * ceil_div(p.n, tile.un) * tile.split * into_arrays;
    (slowest, all)
}

/// Operand bytes of a unit (m, n, k) out of core level `i` into the next inner one: once where that holds the unit's
/// accumulators, else as often as its capacity demands.
fn inner_bytes(view: &View, p: &Problem, i: usize, m: f64, n: f64, k: f64) -> f64 {
    let inner = view.local.get(i + 1).map_or(0.0, |level| level.capacity);
    if m * n * ACCUMULATOR <= inner {
        return (m + n) * k * p.operand;
    }
    let unit = Problem { batch: 1.0, m, n, k, ..*p };
    least_operand_bytes(&unit, inner, 0.0, 1.0)
}

/// The cost of a contraction, with elementwise work on its result while it is on chip where there is any.
pub(super) fn cost(model: &CostModel, view: &View, c: &Contraction, epilogue: Option<&Elementwise>) -> KernelCost {
    let machine = &model.machine;
    let (lane_time, extra_read, extra_written, operations) = epilogue.map_or((0.0, 0.0, 0.0, 0.0), |e| {
        let work = e.elements as f64 * vector_core::elementwise_cycles(e.function, e.direction);
        (work / machine.lane_rate(view), e.read.as_f64(), e.written.as_f64(), work)
    });
    let p = Problem {
        batch: c.batch as f64,
        m: c.m as f64,
        n: c.n as f64,
        k: c.k as f64,
        operand: c.operand.bytes() as f64,
        result: c.result.bytes() as f64,
        rate: machine.mac_rate(c.operand),
        epilogue_time: lane_time,
        epilogue_read: extra_read,
        epilogue_written: extra_written,
    };
    if p.batch * p.m * p.n * p.k == 0.0 {
        let written = p.batch * p.m * p.n * p.result + extra_written;
        let read = p.batch * p.k * (p.m + p.n) * p.operand + extra_read;
        return vector_core::stream(model, view, read, written, lane_time, operations);
    }
    let (time, mapped) = search(machine, view, &p, model.effort, true);
    let latency: f64 = view.shared.iter().map(|level| level.latency).fold(0.0, f64::max);
    let overhead = machine.calibration.launch_overhead.0 + latency;
    let total = overhead + time;
    let traffic = traffic(machine, view, &p, &mapped);
    let bound = if overhead > time {
        Bound::Overhead
    } else if mapped.compute >= mapped.slowest_port {
        Bound::Compute
    } else {
        Bound::Memory(view.shared.get(mapped.slowest_level).map_or(0, |level| level.index as u8))
    };
    let energy = model.energy_model();
    KernelCost {
        latency: Seconds(total),
        energy: model.traffic_energy(&traffic)
            + energy.macs(c.operand, CostModel::macs(c))
            + energy.vector_operations(operations as u128),
        traffic,
        utilization: p.batch * p.m * p.n * p.k / (machine.peak_macs(view, c.operand) * total),
        bound,
    }
}

fn traffic(machine: &Machine, view: &View, p: &Problem, mapped: &Mapped) -> Traffic {
    let mut traffic = Traffic::default();
    let outer = outer_traffic(machine, view, p);
    let results = p.batch * p.m * p.n * p.result + p.epilogue_written;
    let last = view.shared.len().saturating_sub(1);
    for (i, level) in view.shared.iter().enumerate() {
        let (filled, inward) = outer.through(i, last, mapped.into_cores);
        let passing = if i == 0 { 0.0 } else { results };
        traffic.add(level.index, inward + passing + p.epilogue_read, filled + results);
    }
    if let Some(level) = view.shared.get(mapped.park) {
        traffic.add(level.index, mapped.partials, mapped.partials);
    }
    let innermost = view.local.len().saturating_sub(1);
    for (i, level) in view.local.iter().enumerate() {
        let inward = if i == innermost { mapped.into_arrays } else { mapped.into_cores };
        traffic.add(level.index, inward + results, mapped.into_cores + results);
    }
    traffic
}

#[cfg(test)]
#[path = "mapping_tests.rs"]
mod tests;
