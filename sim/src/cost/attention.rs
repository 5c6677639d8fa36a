//! Fused attention: the tile recurrence of FlashAttention (Dao et al., 2022; Dao, 2023, algorithms 1 and 2).
//!
//! A core keeps a tile of queries with its output accumulator and streams tiles of keys and values. For each tile the
//! arrays compute the products and the lanes the softmax recurrence. Double buffering overlaps the two, so a tile takes
//! the slower of them. The backward pass keeps a tile of keys and values and streams queries, their output gradients
//! and accumulators.
//!
//! Arrays that keep their sums in registers exchange scores with the lanes in those registers. All others write scores
//! and partial sums to the core's innermost memory, where the lanes read them and write the probabilities.
//! Accumulators, if any, take the partial sums of a tile size if that is better.

use super::level_rates::{LevelBytes, LevelRates};
use super::machine::{Machine, SpanResources};
use super::route::Route;
use super::tensor_core::{ACCUMULATOR, SumPlace, ceil_div};
use super::vector_core::Transcendentals;
use super::{Bottleneck, CostModel, KernelCost, Traffic};
use crate::hardware::Dataflow;
use crate::kernel::{Direction, FusedAttention};
use crate::units::{Joules, Seconds};

/// A tiling up to this factor slower than the fastest is preferred if its traffic takes less energy. Equally fast
/// tilings differ by less than this factor: only their first loads differ (by 0.1 of 4,128 us for 32 heads and 4,096
/// tokens on TPU v4). The reported time is the fastest tiling's, so that times stay exactly monotone in the hardware.
const NEAR_TIE: f64 = 1.0 + 1e-4;

/// The time and traffic of one tile size on one route.
#[derive(Debug, Clone, Copy, Default)]
struct AttentionTiling {
    time: f64,
    work: f64,
    moving: f64,
    /// The level with the slowest port: its position in [`crate::hardware::Accelerator::memory_levels`].
    level: usize,
    streamed: f64,
    /// Bytes of `streamed` that the device's memory moves.
    device: f64,
    into_arrays: f64,
    on_core: CoreExchange,
    route: Route,
}

/// Bytes between the arrays and the lanes of a core, in each direction (reads and writes are equal).
#[derive(Debug, Clone, Copy, Default)]
struct CoreExchange {
    /// Scores, probabilities and sums at the core's innermost memory.
    local: f64,
    /// Sums at the accumulators.
    accumulated: f64,
}

/// Returns the bytes that a core needs for a tile of `q` queries and `k` keys. Forward: the kept queries with their
/// fp32 output, two tiles of keys and values, and the fp32 scores. Backward: the kept keys and values with their fp32
/// gradients, two tiles of queries and of output gradients, an fp32 accumulator of the queries' gradients, and two fp32
/// tiles of scores.
fn footprint_of_tile(a: &FusedAttention, q: f64, k: f64) -> f64 {
    let (d, b, kv) = (a.head_dim as f64, a.operand.packed_bytes_per_number(), a.key_value_tensors() as f64);
    match a.direction {
        Direction::Forward => q * d * (b + 4.0) + 2.0 * kv * k * d * b + q * k * 4.0,
        Direction::Backward => k * d * kv * (b + 4.0) + 4.0 * q * d * b + q * d * 4.0 + 2.0 * q * k * 4.0,
    }
}

/// Returns the cost of fused attention. One kernel, launched once, works on the pieces of sequences one after the
/// other; the pieces of each length wait for the memories once. If that is not faster than masking whole sequences, the
/// kernel masks them.
pub(super) fn cost_of_attention(model: &CostModel, view: &SpanResources, a: &FusedAttention) -> KernelCost {
    let whole = cost_of_whole(model, view, &FusedAttention { pieces: None, ..*a });
    if a.pieces.is_none() {
        return whole;
    }
    let start = model.machine.calibration.launch_overhead.0;
    let mut cost = KernelCost { latency: Seconds(start), utilization: 0.0, energy: Joules::ZERO, ..whole };
    cost.traffic = Traffic::default();
    let mut longest = 0.0;
    for (kernel, times) in a.kernels_of_pieces() {
        let piece = cost_of_whole(model, view, &kernel);
        let time = (piece.latency.0 - start) * times;
        if time > longest {
            (longest, cost.bound) = (time, piece.bound);
        }
        cost.latency += Seconds(time);
        cost.energy += piece.energy * times;
        cost.traffic.add_times(&piece.traffic, times);
    }
    if cost.latency >= whole.latency {
        return whole;
    }
    let machine = &model.machine;
    cost.utilization = a.flops().as_f64() / (2.0 * machine.peak_macs(view, a.operand) * cost.latency.0);
    cost
}

/// Returns the cost on whole sequences with power-of-two tiles that fit the local buffer. The time and its bound are
/// those of the fastest tiling. Traffic and energy are those of the tiling with the least energy among those up to
/// [`NEAR_TIE`] slower.
fn cost_of_whole(model: &CostModel, view: &SpanResources, a: &FusedAttention) -> KernelCost {
    let machine = &model.machine;
    let plans = list_tilings(model, view, a);
    let first = plans.first().copied().unwrap_or_default();
    let faster = |best: AttentionTiling, other: &AttentionTiling| {
        if other.total_seconds() < best.total_seconds() { *other } else { best }
    };
    let fastest = plans.iter().fold(first, faster);
    let thrifty = least_energy_tiling(model, view, a, &plans, fastest);
    let overhead = machine.calibration.launch_overhead.0 + view.least_latency() + fastest.route.extra_latency;
    let total = overhead + fastest.time;
    let traffic = traffic_of_tiling(view, a, &thrifty);
    let scores = score_count(a);
    let operations = scores * machine.constants.cycles_of_score(a.direction);
    let bound = if overhead > fastest.time {
        Bottleneck::Overhead
    } else if fastest.work >= fastest.moving {
        Bottleneck::Compute
    } else {
        Bottleneck::Memory(fastest.level as u8)
    };
    let energy = model.energy_model();
    KernelCost {
        latency: Seconds(total),
        energy: model.energy_of_traffic(&traffic)
            + energy.macs_energy(a.operand, a.flops().0 / 2)
            + energy.vector_energy(operations as u128),
        traffic,
        utilization: if total > 0.0 {
            a.flops().as_f64() / (2.0 * machine.peak_macs(view, a.operand) * total)
        } else {
            0.0
        },
        bound,
    }
}

/// Returns the tilings to choose from: each pair of tile sizes that fits, with each place of partial sums, on each
/// route.
fn list_tilings(model: &CostModel, view: &SpanResources, a: &FusedAttention) -> Vec<AttentionTiling> {
    let capacity = view.local.first().map_or(f64::INFINITY, |level| level.capacity);
    let mut plans = Vec::new();
    for q in tile_sizes(a.queries) {
        for k in tile_sizes(a.keys) {
            let smallest = q <= 16.0 && k <= 16.0;
            if smallest || footprint_of_tile(a, q, k) <= capacity {
                push_tilings(model, view, a, QueryKeyTile { q, k }, &mut plans);
            }
        }
    }
    plans
}

/// Returns the tiling of least energy among those that [`NEAR_TIE`] allows, or the fastest.
fn least_energy_tiling(
    model: &CostModel,
    view: &SpanResources,
    a: &FusedAttention,
    plans: &[AttentionTiling],
    fastest: AttentionTiling,
) -> AttentionTiling {
    let least = fastest.total_seconds();
    // No port may be busy for longer than the reported time.
    let allowed = |plan: &&AttentionTiling| plan.total_seconds() <= least * NEAR_TIE && plan.moving <= least;
    let energy = |plan: &AttentionTiling| model.energy_of_traffic(&traffic_of_tiling(view, a, plan)).0;
    let near = plans.iter().filter(allowed).map(|plan| (energy(plan), plan));
    near.min_by(|(left, _), (right, _)| left.total_cmp(right)).map_or(fastest, |(_, plan)| *plan)
}

/// Returns a lower bound in seconds over all tile sizes: the launch overhead plus the larger of the arrays' and the
/// lanes' work, spread over all cores. The arrays' work includes the rows and columns that a head's products cannot
/// fill.
pub(super) fn lower_bound_of_attention(model: &CostModel, view: &SpanResources, a: &FusedAttention) -> f64 {
    let machine = &model.machine;
    let arrays = &machine.arrays;
    let workers = view.cores.min(view.vector_cores);
    let vector = score_count(a) * lane_cycles(machine, a) / machine.lane_rate(view);
    // For weight-stationary arrays and head dimension d: q x k products over d take ceil(d / rows) k / columns folds of
    // q. Products over k take k / rows ceil(d / columns) folds, and those over q the same with q and k exchanged.
    let (rows, columns) = (ceil_div(a.head_dim as f64, arrays.rows), ceil_div(a.head_dim as f64, arrays.columns));
    let (over_head, over_rest) = match (arrays.dataflow, a.direction) {
        (Dataflow::WeightStationary, Direction::Forward) => (1.0, 1.0),
        (Dataflow::WeightStationary, Direction::Backward) => (2.0, 3.0),
        _ => (0.0, 0.0),
    };
    let cycles = score_count(a) * (over_head * rows / arrays.columns + over_rest * columns / arrays.rows);
    let tensor = cycles / (machine.mac_rate(a.operand) * arrays.count * workers);
    machine.calibration.launch_overhead.0 + vector.max(tensor)
}

/// Returns the lane cycles per score. The units for transcendental functions, if any, compute the exponentials.
fn lane_cycles(machine: &Machine, a: &FusedAttention) -> f64 {
    let cycles = machine.constants.cycles_of_score(a.direction);
    Transcendentals::EXPONENTIAL.least_lane_cycles(cycles, machine.transcendentals_per_lane)
}

fn score_count(a: &FusedAttention) -> f64 {
    let all = a.batch as f64 * a.heads as f64 * a.queries as f64 * a.keys as f64;
    match a.window.filter(|window| *window < a.keys).is_some() || a.pieces.is_some() {
        true => a.score_count() as f64,
        false if a.causal => all / 2.0,
        false => all,
    }
}

/// Queries and keys of a tile, and the numbers of tiles along both.
#[derive(Clone, Copy)]
struct AttentionTiles {
    q: f64,
    k: f64,
    tq: f64,
    tk: f64,
}

/// Number of tile pairs, at most `tq` x `tk`, that the mask does not empty. A causal mask computes the diagonal tiles
/// whole, so a row of tiles keeps on average half of its tiles plus half a tile. With a window of w keys a tile of q
/// queries sees w + q keys, except for the first w queries of a causal sequence.
fn tile_pairs(a: &FusedAttention, AttentionTiles { q, k, tq, tk }: AttentionTiles) -> f64 {
    let all = if a.causal { (tq * tk * 0.5 + 0.5 * tq.max(tk)).min(tq * tk) } else { tq * tk };
    match a.window.filter(|window| *window < a.keys) {
        None => all,
        Some(window) => {
            let w = window as f64;
            // The first w queries of a causal sequence see fewer than w keys. If only a fraction of the queries is
            // computed, the shortfall is the same fraction.
            let share = a.queries as f64 / a.keys as f64;
            let lacking = if a.causal { share * w * w / (2.0 * q * k) } else { 0.0 };
            // A row of tiles has at least one tile.
            (tq * (w + q) / k - lacking).max(tq).min(all.max(tq))
        }
    }
}

/// Returns the powers of two from 16 to 1024, cut off at the dimension.
fn tile_sizes(dimension: u64) -> impl Iterator<Item = f64> {
    let dimension = dimension.max(1);
    [16_u64, 32, 64, 128, 256, 512, 1024]
        .into_iter()
        .filter(move |t| *t < dimension.saturating_mul(2))
        .map(move |t| t.min(dimension) as f64)
        .chain((dimension < 16).then_some(dimension as f64))
}

/// Queries and keys of a tile.
#[derive(Clone, Copy)]
struct QueryKeyTile {
    q: f64,
    k: f64,
}

/// Adds the tilings of a tile size, one for each place of partial sums and each route.
fn push_tilings(
    model: &CostModel,
    view: &SpanResources,
    a: &FusedAttention,
    QueryKeyTile { q, k }: QueryKeyTile,
    plans: &mut Vec<AttentionTiling>,
) {
    let machine = &model.machine;
    let (queries, keys, d, bytes) =
        (a.queries as f64, a.keys as f64, a.head_dim as f64, a.operand.packed_bytes_per_number());
    let heads = a.batch as f64 * a.heads as f64;
    let (tq, tk) = (ceil_div(queries, q), ceil_div(keys, k));
    let pairs = tile_pairs(a, AttentionTiles { q, k, tq, tk });
    let arrays = &machine.arrays;
    let products = |m: f64, n: f64, c: f64| arrays.tile_cycles(m, n, c, arrays.count);
    let cycles = match a.direction {
        Direction::Forward => products(q, k, d) + products(q, d, k),
        Direction::Backward => 2.0 * products(q, k, d) + 2.0 * products(k, d, q) + products(q, d, k),
    };
    let tensor = cycles / machine.mac_rate(a.operand);
    // If vector cores outnumber tensor cores, several vector cores serve one tensor core, so all lanes work.
    let workers = view.cores.min(view.vector_cores);
    let lanes = machine.lane_rate(view) / workers;
    let rescale = match a.direction {
        Direction::Forward => q * d,
        Direction::Backward => 0.0,
    };
    let vector = (q * k * lane_cycles(machine, a) + rescale) / lanes;
    let kept = match a.direction {
        Direction::Forward => tq,
        Direction::Backward => tk,
    };
    let units = heads * kept;
    let step = tensor.max(vector);
    let steps = pairs / kept;
    // A unit runs its first product before any softmax. Then each tile pair takes the longer of its products and its
    // softmax. Units run in waves over the cores.
    let work = ceil_div(units, workers) * (steps * step) + tensor.min(vector);
    let kv = a.key_value_tensors() as f64;
    let streamed = match a.direction {
        Direction::Forward => heads * pairs * kv * k * d * bytes + heads * queries * d * bytes,
        // Q, dO and the fp32 dQ accumulator (read and written) per tile of keys; K and V once.
        Direction::Backward => heads * pairs * q * d * (2.0 * bytes + 8.0) + heads * keys * kv * d * bytes,
    };
    let first = view.shared.first().map_or(0.0, |l| l.busy_seconds(units.min(workers) * (q + k) * d * bytes, 0.0));
    let into_arrays = heads * pairs * (q + k) * d * bytes * 2.0;
    for sums in arrays.sums.list_alternatives() {
        let on_core = exchange_of_pair(machine, sums, a, QueryKeyTile { q, k }).times(heads * pairs);
        let base = AttentionTiling { work, streamed, into_arrays, on_core, ..AttentionTiling::default() };
        let (local, local_level) = base.slowest_local_port(model, view, a);
        plans.extend(view.routes.iter().map(|route| {
            let device = device_bytes(view, *route, a, streamed, kept);
            let plan = AttentionTiling { device, route: *route, ..base };
            let (shared, level) = plan.slowest_shared_port(view, a);
            let (moving, level) = if local > shared { (local, local_level) } else { (shared, level) };
            AttentionTiling { time: (work + first).max(moving), moving, level, ..plan }
        }));
    }
}

/// Returns the bytes that a pair of tiles moves between the arrays and the lanes of a core. Every product writes its
/// sums once per fold. They are read as often: for the next fold, or by the lanes. The lanes write the operand of the
/// next product. Sums that no fold adds to bypass the accumulators.
fn exchange_of_pair(
    machine: &Machine,
    sums: SumPlace,
    a: &FusedAttention,
    QueryKeyTile { q, k }: QueryKeyTile,
) -> CoreExchange {
    let (d, arrays) = (a.head_dim as f64, &machine.arrays);
    let product = |m: f64, n: f64, c: f64| {
        let passes = arrays.partial_passes(ceil_div(c, machine.contracted_at_once(a.operand)));
        let (once, all) = (m * n * ACCUMULATOR, m * n * ACCUMULATOR * (passes + 1.0));
        match sums {
            SumPlace::Free => CoreExchange::default(),
            SumPlace::Memory { .. } if passes > 0.0 => CoreExchange { local: once, accumulated: all },
            SumPlace::LocalBuffer | SumPlace::Memory { .. } => CoreExchange { local: all, accumulated: 0.0 },
        }
    };
    let probabilities = match sums {
        SumPlace::Free => 0.0,
        SumPlace::LocalBuffer | SumPlace::Memory { .. } => q * k * a.operand.packed_bytes_per_number(),
    };
    let products = match a.direction {
        Direction::Forward => [product(q, k, d), product(q, d, k), CoreExchange::default(), CoreExchange::default()],
        Direction::Backward => [
            product(q, k, d).times(2.0),
            product(k, d, q).times(2.0),
            product(q, d, k),
            // The gradient of the scores enters two products.
            CoreExchange { local: 2.0 * probabilities, accumulated: 0.0 },
        ],
    };
    let start = CoreExchange { local: probabilities, accumulated: 0.0 };
    products.iter().fold(start, CoreExchange::add)
}

impl CoreExchange {
    fn add(mut self, more: &Self) -> Self {
        self.local += more.local;
        self.accumulated += more.accumulated;
        self
    }

    fn times(self, factor: f64) -> Self {
        Self { local: self.local * factor, accumulated: self.accumulated * factor }
    }
}

impl AttentionTiling {
    /// Returns the seconds of the tiling, without the launch and without the shortest route's latency.
    fn total_seconds(&self) -> f64 {
        self.time + self.route.extra_latency
    }

    /// Returns the bytes read from and written to shared level `i`. The innermost level on the route streams tiles to
    /// the cores. Results bypass the levels that have a bypass.
    fn bytes_through_shared(&self, view: &SpanResources, a: &FusedAttention, i: usize) -> LevelBytes {
        if !self.route.crosses_level(i) {
            return LevelBytes::default();
        }
        let out = written_bytes(a);
        let device = (self.device - out).max(0.0);
        let read = if i > 0 && self.route.next_level(i).is_none() { self.streamed } else { device };
        let filled = if i == 0 { 0.0 } else { device };
        let results = if view.shared.get(i).is_some_and(|level| level.bypass) { 0.0 } else { out };
        LevelBytes { read, written: results + filled }
    }

    /// Returns the bytes read from and written to a core's own memory. The innermost of these memories serves arrays
    /// and lanes.
    fn bytes_through_local(&self, a: &FusedAttention, innermost: bool) -> LevelBytes {
        let exchanged = if innermost { self.on_core.local } else { 0.0 };
        LevelBytes { read: self.into_arrays + exchanged, written: self.streamed + written_bytes(a) + exchanged }
    }

    fn slowest_shared_port(&self, view: &SpanResources, a: &FusedAttention) -> (f64, usize) {
        let mut slowest = (0.0, 0);
        for (i, level) in view.shared.iter().enumerate() {
            let LevelBytes { read, written } = self.bytes_through_shared(view, a, i);
            let time = level.busy_seconds(read, written);
            if time > slowest.0 {
                slowest = (time, level.index);
            }
        }
        slowest
    }

    /// Returns the time in seconds and the level of the slowest of a core's own ports. For arrays that keep their sums
    /// in registers, only the innermost memory's stream counts: the scalars of GPUs were fitted that way.
    fn slowest_local_port(&self, model: &CostModel, view: &SpanResources, a: &FusedAttention) -> (f64, usize) {
        let workers = view.cores.min(view.vector_cores);
        let sums = model.machine.arrays.sums;
        if matches!(sums, SumPlace::Free) {
            let on = |level: &LevelRates| (level.busy_seconds(self.into_arrays, self.streamed) / workers, level.index);
            return view.local.last().map_or((0.0, 0), on);
        }
        // Accumulators count as the innermost memory.
        let innermost = view.local.last().map_or(0, |level| level.index);
        let mut slowest = (self.on_core.accumulated * sums.seconds_per_byte() / workers, innermost);
        for (i, level) in view.local.iter().enumerate() {
            let LevelBytes { read, written } = self.bytes_through_local(a, i + 1 == view.local.len());
            let time = level.busy_seconds(read, written) / workers;
            if time > slowest.0 {
                slowest = (time, level.index);
            }
        }
        slowest
    }
}

/// Returns the bytes that the device's memory moves. They are compulsory only where an on-chip shared level holds the
/// streamed operands of the heads in flight. Otherwise the cores that work on one head (one for each of its `kept`
/// tiles) stream the same tiles in step. A shared level passes each tile to all of them.
fn device_bytes(view: &SpanResources, route: Route, a: &FusedAttention, streamed: f64, kept: f64) -> f64 {
    let workers = view.cores.min(view.vector_cores);
    let in_flight = ceil_div(workers, kept).min(a.batch as f64 * a.heads as f64);
    let per_head = (a.keys as f64 * a.key_value_tensors() as f64 + a.queries as f64 * 2.0)
        * a.head_dim as f64
        * a.operand.packed_bytes_per_number();
    let compulsory = a.compulsory_bytes().as_f64();
    let held = route.levels_crossed(&view.shared).skip(1).any(|(_, level)| level.capacity >= in_flight * per_head);
    let sharing = if route.next_level(0).is_some() { kept.min(workers).max(1.0) } else { 1.0 };
    if held { compulsory } else { compulsory.max(streamed / sharing) }
}

fn written_bytes(a: &FusedAttention) -> f64 {
    let d = a.head_dim as f64 * a.operand.packed_bytes_per_number() * a.batch as f64;
    match a.direction {
        Direction::Forward => d * a.heads as f64 * a.queries as f64,
        Direction::Backward => {
            let kv = a.key_value_tensors() as f64;
            d * (a.heads as f64 * a.queries as f64 + kv * a.kv_heads as f64 * a.keys as f64)
        }
    }
}

fn traffic_of_tiling(view: &SpanResources, a: &FusedAttention, plan: &AttentionTiling) -> Traffic {
    let mut traffic = Traffic { accumulated: plan.on_core.accumulated, ..Traffic::default() };
    for (i, level) in view.shared.iter().enumerate() {
        let LevelBytes { read, written } = plan.bytes_through_shared(view, a, i);
        traffic.add_traffic(level.index, read, written);
    }
    for (i, level) in view.local.iter().enumerate() {
        let LevelBytes { read, written } = plan.bytes_through_local(a, i + 1 == view.local.len());
        traffic.add_traffic(level.index, read, written);
    }
    traffic
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use crate::cost::{CostModel, Span};
    use crate::hardware::Accelerator;
    use crate::kernel::{DataType, Direction, FusedAttention, Kernel};

    #[test]
    fn all_vector_cores_serve_the_tensor_cores() {
        let attention = FusedAttention {
            direction: Direction::Forward,
            batch: 2,
            heads: 12,
            kv_heads: 12,
            queries: 2048,
            keys: 2048,
            head_dim: 128,
            causal: true,
            window: None,
            values_are_keys: false,
            pieces: None,
            operand: DataType::Bf16,
        };
        let mut chip = Accelerator::built_in("gaudi2").unwrap();
        let mut time = |cores: u32, lanes: u32| {
            (chip.vector.cores, chip.vector.lanes) = (cores, lanes);
            CostModel::new(chip.clone())
                .unwrap()
                .latency_of_kernel(&Kernel::FusedAttention(attention), Span::AllCores)
                .0
        };
        let (many, few) = (time(24, 128), time(2, 12 * 128));
        assert!((many / few - 1.0).abs() < 1e-9, "as many lanes in 24 cores and in 2: {many} and {few}");
        assert!(time(2, 128) > 3.0 * many);
    }
}
