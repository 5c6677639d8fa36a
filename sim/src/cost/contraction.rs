//! Contractions, with elementwise work on their result if any: cost, latency and lower bounds.

use super::level_rates::{LevelBytes, LevelRates};
use super::library_model::LibraryModel;
use super::machine::{Machine, SpanResources};
use super::mapping::{BestMapping, ChosenMappings, MappingCost, choose_mappings, search_mappings};
use super::mapping_problem::{MappingProblem, chunk_length};
use super::route::Route;
use super::shared_traffic::{OuterTraffic, compute_outer_traffic};
use super::tensor_core::{ACCUMULATOR, SumPlace, ceil_div};
use super::{Bottleneck, CostModel, KernelCost, Traffic, library, vector_core};
use crate::hardware::Dataflow;
use crate::kernel::{Contraction, Epilogue};
use crate::units::Seconds;

impl MappingProblem {
    /// Returns a contraction with the elementwise work on its result.
    pub(super) fn of_contraction(
        machine: &Machine,
        view: &SpanResources,
        c: &Contraction,
        epilogue: Option<&Epilogue>,
    ) -> Self {
        let (lane_time, extra_read, extra_written) = epilogue.map_or((0.0, 0.0, 0.0), |e| {
            let function = &e.elementwise;
            (lane_cycles(e, machine) / machine.lane_rate(view), function.read.as_f64(), function.written.as_f64())
        });
        let summed = epilogue.map_or(1, |e| e.summed.max(1));
        Self {
            batch: c.batch as f64,
            m: c.m as f64,
            n: c.n as f64,
            k: c.k as f64,
            operand: c.operand.packed_bytes_per_number(),
            result: c.result.bytes() as f64 / summed as f64,
            rate: machine.mac_rate(c.operand),
            depth: machine.contracted_at_once(c.operand),
            epilogue_time: lane_time,
            epilogue_read: extra_read,
            epilogue_written: extra_written,
        }
    }

    /// Returns the cost of passes over memory if a dimension is zero and nothing is multiplied, else `None`.
    fn as_stream(&self, model: &CostModel, view: &SpanResources, operations: f64) -> Option<KernelCost> {
        (self.batch * self.m * self.n * self.k == 0.0).then(|| {
            let read = self.batch * self.k * (self.m + self.n) * self.operand + self.epilogue_read;
            vector_core::stream_pass(model, view, read, self.written_bytes(), self.epilogue_time, operations)
        })
    }
}

/// Returns the lane cycles of the elementwise work. If results are summed, each takes one more cycle.
fn lane_cycles(e: &Epilogue, machine: &Machine) -> f64 {
    let (function, sum) = (&e.elementwise, if e.summed > 1 { 1.0 } else { 0.0 });
    let cycles = vector_core::lane_cycles_of_element(machine, function.function, function.direction);
    function.elements as f64 * (cycles + sum)
}

/// Returns the operations of the elementwise work. If results are summed, each takes one more operation.
fn operations_of_epilogue(e: &Epilogue, machine: &Machine) -> f64 {
    let (function, sum) = (&e.elementwise, if e.summed > 1 { 1.0 } else { 0.0 });
    let cycles = vector_core::elementwise_cycles(function.function, function.direction, &machine.constants);
    function.elements as f64 * (cycles + sum)
}

/// Returns the vendor's library if it runs the product. The library has no kernel for an epilogue that sums the
/// results: the cores would keep the sums while they stream an operand, and no tile would end by writing results.
fn library_of_product<'v>(view: &'v SpanResources, epilogue: Option<&Epilogue>) -> Option<&'v LibraryModel> {
    view.library.as_ref().filter(|_| epilogue.is_none_or(|e| e.summed <= 1))
}

/// Returns the seconds before and after the work: the launch overhead, the library's floor per kernel (if a library
/// runs it), and the longest latency of a shared level on the shortest route.
fn overhead_seconds(model: &CostModel, view: &SpanResources) -> f64 {
    let floor = view.library.as_ref().map_or(0.0, LibraryModel::floor_seconds);
    model.machine.calibration.launch_overhead.0 + view.least_latency() + floor
}

/// Returns the latency of [`cost_of_contraction`] if it is below `known` seconds, else `known`. Mappings that cannot be
/// faster are pruned.
pub(super) fn latency_of_contraction(
    model: &CostModel,
    view: &SpanResources,
    c: &Contraction,
    epilogue: Option<&Epilogue>,
    known: f64,
) -> f64 {
    let machine = &model.machine;
    let p = MappingProblem::of_contraction(machine, view, c, epilogue);
    if let Some(stream) = p.as_stream(model, view, 0.0) {
        return stream.latency.0.min(known);
    }
    if let Some(library) = library_of_product(view, epilogue) {
        return library::latency_of_product(machine, view, library, c, &p).min(known);
    }
    let overhead = overhead_seconds(model, view);
    // Rounded up, so that rounding does not prune an equally fast mapping.
    let limit = (known - overhead) * (1.0 + 1e-12);
    let mut best = BestMapping::below_limit(limit, Some(least_compute_seconds(machine, view, &p)));
    search_mappings(machine, view, &p, &compute_outer_traffic(machine, view, &p), model.effort, &mut best);
    if best.is_found() { known.min(overhead + best.fastest) } else { known }
}

/// Returns the cost of a contraction, with the elementwise work on its result while the result is on chip.
pub(super) fn cost_of_contraction(
    model: &CostModel,
    view: &SpanResources,
    c: &Contraction,
    epilogue: Option<&Epilogue>,
) -> KernelCost {
    let machine = &model.machine;
    let operations = epilogue.map_or(0.0, |epilogue| operations_of_epilogue(epilogue, machine));
    let p = MappingProblem::of_contraction(machine, view, c, epilogue);
    if let Some(stream) = p.as_stream(model, view, operations) {
        return stream;
    }
    if let Some(library) = library_of_product(view, epilogue) {
        return library::cost_of_product(model, view, library, c, &p, operations);
    }
    let outer = compute_outer_traffic(machine, view, &p);
    let least_compute = Some(least_compute_seconds(machine, view, &p));
    let ChosenMappings { fastest, thrifty } = choose_mappings(machine, view, &p, &outer, model.effort, least_compute);
    let overhead = overhead_seconds(model, view);
    let total = overhead + fastest.time;
    let traffic = traffic_of_mapping(view, &p, &outer, &thrifty);
    let bound = if overhead > fastest.time {
        Bottleneck::Overhead
    } else if fastest.work >= fastest.slowest_port {
        fastest.own_level.map_or(Bottleneck::Compute, |level| Bottleneck::Memory(level as u8))
    } else {
        Bottleneck::Memory(view.shared.get(fastest.slowest_level).map_or(0, |level| level.index as u8))
    };
    let energy = model.energy_model();
    KernelCost {
        latency: Seconds(total),
        energy: model.energy_of_traffic(&traffic)
            + energy.macs_energy(c.operand, CostModel::count_macs(c))
            + energy.vector_energy(operations as u128),
        traffic,
        utilization: p.batch * p.m * p.n * p.k / (machine.peak_macs(view, c.operand) * total),
        bound,
    }
}

fn traffic_of_mapping(view: &SpanResources, p: &MappingProblem, outer: &OuterTraffic, mapped: &MappingCost) -> Traffic {
    let mut traffic = Traffic { accumulated: mapped.accumulated, ..Traffic::default() };
    let shared = &mapped.shared;
    for (i, level) in view.shared.iter().enumerate() {
        let LevelBytes { read, written } = shared.bytes_through_level(view, p, outer, i);
        let reread = if i == shared.park { shared.partials } else { 0.0 };
        traffic.add_traffic(level.index, read + reread, written);
    }
    for (i, level) in view.local.iter().enumerate() {
        let LevelBytes { read, written } = mapped.bytes_through_local(view, p, i);
        traffic.add_traffic(level.index, read, written);
    }
    traffic
}

/// Returns a lower bound in seconds over all mappings: the overheads plus the longest of the arrays' folds over all
/// workers, the lanes' work, and the least traffic through the ports of shared levels and of the cores' own memories.
/// For a library's product it is the exact latency.
pub(super) fn lower_bound_of_contraction(
    model: &CostModel,
    view: &SpanResources,
    c: &Contraction,
    epilogue: Option<&Epilogue>,
) -> f64 {
    let machine = &model.machine;
    let p = MappingProblem::of_contraction(machine, view, c, epilogue);
    if let Some(library) = library_of_product(view, epilogue) {
        return library::latency_of_product(machine, view, library, c, &p);
    }
    let compute = least_array_cycles(machine, view, &p);
    let crossings = view
        .local
        .first()
        .map_or(p.m + p.n, |level| least_crossings(machine, level.capacity, chunk_length(machine, p.k), &p));
    let into_cores = p.batch * p.k * p.operand * crossings;
    let on = |route: &Route| least_port_time(view, &p, *route, into_cores);
    let port = view.routes.iter().map(on).fold(f64::INFINITY, f64::min);
    let own = least_local_time(machine, view, &p, into_cores);
    overhead_seconds(model, view) + compute.max(p.epilogue_time).max(port).max(own)
}

/// Returns a lower bound on the time at the innermost shared level that the operands cross on a route.
fn least_port_time(view: &SpanResources, p: &MappingProblem, route: Route, into_cores: f64) -> f64 {
    let Some((at, level)) = route.levels_crossed(&view.shared).next_back() else { return 0.0 };
    if level.bypass {
        return level.busy_seconds(into_cores, 0.0);
    }
    let results = p.written_bytes();
    level.busy_seconds(into_cores + if at == 0 { 0.0 } else { results } + p.epilogue_read, results)
}

/// Returns [`least_array_cycles`] less a rounding margin, for pruning.
pub(super) fn least_compute_seconds(machine: &Machine, view: &SpanResources, p: &MappingProblem) -> f64 {
    least_array_cycles(machine, view, p) * (1.0 - 1e-9)
}

/// Returns a lower bound in seconds on the arrays' time over all cuts. However M, N and K are cut, each part of a
/// stationary dimension takes at least its share of the whole's folds.
fn least_array_cycles(machine: &Machine, view: &SpanResources, p: &MappingProblem) -> f64 {
    let a = &machine.arrays;
    let (sr, sc, t) = match a.dataflow {
        Dataflow::OutputStationary => (p.m, p.n, p.k),
        Dataflow::WeightStationary => (p.k, p.n, p.m),
        Dataflow::InputStationary => (p.k, p.m, p.n),
    };
    let folds = ceil_div(sr, a.rows) * ceil_div(sc, a.columns);
    p.batch * folds * t / (view.cores * a.count * p.rate)
}

/// Returns a lower bound in seconds on the port time of the busiest core's own memories, given the operand bytes into
/// all cores. The busiest core has at least the mean number of units. Each level takes in these bytes and passes on at
/// least as many, as often as the next level's capacity demands. The innermost level feeds the arrays; arrays on
/// neighbouring columns share the streamed operand. It also holds the arrays' partial sums. However K is cut, each
/// result leaves the arrays at least once per fold of the whole K.
fn least_local_time(machine: &Machine, view: &SpanResources, p: &MappingProblem, into_cores: f64) -> f64 {
    let a = &machine.arrays;
    let results = p.batch * p.m * p.n * p.result;
    let wide = a.columns * a.count;
    let crossings = match a.dataflow {
        Dataflow::OutputStationary => (p.m * p.n / wide).max(p.m) + (p.m * p.n / a.rows).max(p.n),
        Dataflow::WeightStationary => (p.m * p.n / wide).max(p.m) + p.n,
        Dataflow::InputStationary => (p.m * p.n / wide).max(p.n) + p.m,
    };
    let sums = match a.sums {
        SumPlace::LocalBuffer => p.batch * p.m * p.n * ACCUMULATOR * a.partial_passes(ceil_div(p.k, p.depth)),
        SumPlace::Free | SumPlace::Memory { .. } => 0.0,
    };
    let of = |(i, level): (usize, &LevelRates)| {
        let sums = if i + 1 < view.local.len() { 0.0 } else { sums };
        let crossings =
            view.local.get(i + 1).map_or(crossings, |inner| least_crossings(machine, inner.capacity, 0.0, p));
        let inward =
            (p.batch * p.k * p.operand * crossings).max(if i + 1 < view.local.len() { into_cores } else { 0.0 });
        level.busy_seconds(inward + results + sums, into_cores + results + sums) / view.cores
    };
    view.local.iter().enumerate().map(of).fold(0.0, f64::max)
}

/// Returns a lower bound, over all feasible units (um, un), on `M tn + N tm`, where tn = ceil(N / un) and tm = ceil(M /
/// um).
///
/// `mapping::fits_capacity` defines feasible units. Resident accumulators require `4 um un + e (um + un) <= capacity`,
/// where e is the bytes of two chunks of an operand's row; `M N / un + N M / um` is then least at um = un. A resident
/// operand limits um (or un) to its resident rows and leaves the other dimension whole. Units no larger than the array
/// are always allowed.
fn least_crossings(machine: &Machine, capacity: f64, chunk: f64, p: &MappingProblem) -> f64 {
    let chunks = 2.0 * chunk * p.operand;
    let side = (-chunks + (chunks * chunks + ACCUMULATOR * capacity).sqrt()) / ACCUMULATOR;
    let side = side.max(machine.arrays.rows.min(machine.arrays.columns));
    let panel = (capacity - chunks) / (p.k * p.operand + chunk * ACCUMULATOR);
    let both = 2.0 * p.m * p.n / side;
    let one = if panel >= 1.0 { p.m.min(p.n) + p.m * p.n / panel } else { f64::INFINITY };
    both.min(one).max(p.m + p.n)
}
