//! Fused attention: the tile recurrence of FlashAttention (Dao et al., 2022; Dao, 2023, algorithms 1 and 2).
//!
//! A core keeps a tile of queries with its output accumulator and streams tiles of keys and values. For each tile the
//! arrays compute the products and the lanes the softmax recurrence. Double buffering overlaps the two, so a tile takes
//! the slower of them. The backward pass keeps a tile of keys and values and streams queries, their output gradients
//! and accumulators.

use super::machine::SpanResources;
use super::tensor_core::ceil_div;
use super::{Bottleneck, CostModel, KernelCost, Traffic};
use crate::hardware::Dataflow;
use crate::kernel::{Direction, FusedAttention};
use crate::units::Seconds;

/// Lane-cycles per score forward: scale, maximum, difference, exponential (10), sum.
const FORWARD_CYCLES: f64 = 14.0;
/// Backward: scale, difference with the log-sum-exp, exponential (10); difference with delta, product, scale.
const BACKWARD_CYCLES: f64 = 15.0;

/// The time and traffic of one tile size.
struct AttentionTiling {
    time: f64,
    work: f64,
    moving: f64,
    level: usize,
    streamed: f64,
    /// Bytes of `streamed` that the device's memory moves.
    device: f64,
    into_arrays: f64,
}

/// Bytes that a core needs for a tile of `q` queries and `k` keys: the kept tile with its fp32 accumulators, two tiles
/// of the streamed operand, and the fp32 scores.
fn footprint_of_tile(a: &FusedAttention, q: f64, k: f64) -> f64 {
    let (d, b) = (a.head_dim as f64, a.operand.bytes() as f64);
    match a.direction {
        Direction::Forward => q * d * (b + 4.0) + 4.0 * k * d * b + q * k * 4.0,
        Direction::Backward => k * d * (2.0 * b + 8.0) + 4.0 * q * d * b + q * d * 4.0 + 2.0 * q * k * 4.0,
    }
}

/// The cost of fused attention: the fastest of the power-of-two tiles that fit the local buffer.
pub(super) fn cost_of_attention(model: &CostModel, view: &SpanResources, a: &FusedAttention) -> KernelCost {
    let machine = &model.machine;
    let capacity = view.local.first().map_or(f64::INFINITY, |level| level.capacity);
    let mut best: Option<AttentionTiling> = None;
    for q in tile_sizes(a.queries) {
        for k in tile_sizes(a.keys) {
            let smallest = q <= 16.0 && k <= 16.0;
            if smallest || footprint_of_tile(a, q, k) <= capacity {
                let plan = plan_tiling(model, view, a, q, k);
                if best.as_ref().is_none_or(|b| plan.time < b.time) {
                    best = Some(plan);
                }
            }
        }
    }
    let plan = best.unwrap_or(AttentionTiling {
        time: 0.0,
        work: 0.0,
        moving: 0.0,
        level: 0,
        streamed: 0.0,
        device: 0.0,
        into_arrays: 0.0,
    });
    let latency: f64 = view.shared.iter().map(|level| level.latency).fold(0.0, f64::max);
    let overhead = machine.calibration.launch_overhead.0 + latency;
    let total = overhead + plan.time;
    let traffic = traffic_of_tiling(view, a, &plan);
    let scores = score_count(a);
    let operations = scores * vector_cycles(a);
    let bound = if overhead > plan.time {
        Bottleneck::Overhead
    } else if plan.work >= plan.moving {
        Bottleneck::Compute
    } else {
        Bottleneck::Memory(plan.level as u8)
    };
    let energy = model.energy_model();
    KernelCost {
        latency: Seconds(total),
        energy: model.add_traffic_energy(&traffic)
            + energy.macs_energy(a.operand, a.flops().0 / 2)
            + energy.vector_energy(operations as u128),
        traffic,
        utilization: if total > 0.0 { a.flops().as_f64() / (2.0 * machine.peak_macs(view, a.operand) * total) } else { 0.0 },
        bound,
    }
}

/// A lower bound over all tile sizes: both units' work over all cores, including the array rows and columns that a
/// head's products cannot fill.
pub(super) fn lower_bound_of_attention(model: &CostModel, view: &SpanResources, a: &FusedAttention) -> f64 {
    let machine = &model.machine;
    let arrays = &machine.arrays;
    let workers = view.cores.min(view.vector_cores);
    let vector = score_count(a) * vector_cycles(a) / machine.lane_rate(view);
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

fn vector_cycles(a: &FusedAttention) -> f64 {
    match a.direction {
        Direction::Forward => FORWARD_CYCLES,
        Direction::Backward => BACKWARD_CYCLES,
    }
}

fn score_count(a: &FusedAttention) -> f64 {
    let all = a.batch as f64 * a.heads as f64 * a.queries as f64 * a.keys as f64;
    match a.window.filter(|window| *window < a.keys) {
        Some(_) => a.score_count() as f64,
        None if a.causal => all / 2.0,
        None => all,
    }
}

/// Number of tile pairs, at most `tq` x `tk`, that the mask does not empty. A causal mask computes the diagonal tile
/// whole, so each row of tiles keeps half a tile more than half. With a window of w keys a tile of q queries sees w + q
/// keys, except for the first w queries of a causal sequence.
fn tile_pairs(a: &FusedAttention, (q, k): (f64, f64), (tq, tk): (f64, f64)) -> f64 {
    let all = if a.causal { (tq * tk * 0.5 + 0.5 * tq.max(tk)).min(tq * tk) } else { tq * tk };
    match a.window.filter(|window| *window < a.keys) {
        None => all,
        Some(window) => {
            let w = window as f64;
            // If queries are a fraction of the keys, the same fraction of them lacks keys.
            let share = a.queries as f64 / a.keys as f64;
            let lacking = if a.causal { share * w * w / (2.0 * q * k) } else { 0.0 };
            // A row of tiles has at least one.
            (tq * (w + q) / k - lacking).max(tq).min(all.max(tq))
        }
    }
}

/// Powers of two from 16 to 1024, cut off at the dimension.
fn tile_sizes(dimension: u64) -> impl Iterator<Item = f64> {
    let dimension = dimension.max(1);
    [16_u64, 32, 64, 128, 256, 512, 1024]
        .into_iter()
        .filter(move |t| *t < dimension.saturating_mul(2))
        .map(move |t| t.min(dimension) as f64)
        .chain((dimension < 16).then_some(dimension as f64))
}

fn plan_tiling(model: &CostModel, view: &SpanResources, a: &FusedAttention, q: f64, k: f64) -> AttentionTiling {
    let machine = &model.machine;
    let (queries, keys, d, bytes) = (a.queries as f64, a.keys as f64, a.head_dim as f64, a.operand.bytes() as f64);
    let heads = a.batch as f64 * a.heads as f64;
    let (tq, tk) = (ceil_div(queries, q), ceil_div(keys, k));
    let pairs = tile_pairs(a, (q, k), (tq, tk));
    let arrays = &machine.arrays;
    let products = |m: f64, n: f64, c: f64| arrays.tile_cycles(m, n, c, arrays.count);
    let cycles = match a.direction {
        Direction::Forward => products(q, k, d) + products(q, d, k),
        Direction::Backward => 2.0 * products(q, k, d) + 2.0 * products(k, d, q) + products(q, d, k),
    };
    let tensor = cycles / machine.mac_rate(a.operand);
    // If vector cores outnumber tensor cores, several serve one: all lanes work.
    let workers = view.cores.min(view.vector_cores);
    let lanes = machine.lane_rate(view) / workers;
    let rescale = match a.direction {
        Direction::Forward => q * d,
        Direction::Backward => 0.0,
    };
    let vector = (q * k * vector_cycles(a) + rescale) / lanes;
    let kept = match a.direction {
        Direction::Forward => tq,
        Direction::Backward => tk,
    };
    let units = heads * kept;
    let step = tensor.max(vector);
    let steps = pairs / kept;
    // A unit runs its first product before any softmax, then the slower side per tile pair. Units run in waves over the
    // cores.
    let work = ceil_div(units, workers) * (steps * step) + tensor.min(vector);
    let streamed = match a.direction {
        Direction::Forward => heads * pairs * 2.0 * k * d * bytes + heads * queries * d * bytes,
        // Q, dO and the fp32 dQ accumulator (read and written) per tile of keys; K and V once.
        Direction::Backward => heads * pairs * q * d * (2.0 * bytes + 8.0) + heads * keys * 2.0 * d * bytes,
    };
    let device = device_bytes(view, a, streamed, kept);
    let (moving, level) = slowest_port(view, a, streamed, device);
    let first = view.shared.first().map_or(0.0, |l| l.busy_seconds(units.min(workers) * (q + k) * d * bytes, 0.0));
    let into_arrays = heads * pairs * (q + k) * d * bytes * 2.0;
    let local = view.local.last().map_or(0.0, |l| l.busy_seconds(into_arrays, streamed) / workers);
    let moving = moving.max(local);
    AttentionTiling { time: (work + first).max(moving), work, moving, level, streamed, device, into_arrays }
}

/// Bytes that the device's memory moves; streams come from the innermost shared level. The bytes are compulsory only
/// where an on-chip shared level holds the streamed operands of the heads in flight. Otherwise the cores that work on
/// one head stream the same tiles in step (`kept` tiles of it, one core each). The shared level passes each tile to all
/// of them.
fn device_bytes(view: &SpanResources, a: &FusedAttention, streamed: f64, kept: f64) -> f64 {
    let workers = view.cores.min(view.vector_cores);
    let in_flight = ceil_div(workers, kept).min(a.batch as f64 * a.heads as f64);
    let per_head = (a.keys as f64 * 2.0 + a.queries as f64 * 2.0) * a.head_dim as f64 * a.operand.bytes() as f64;
    let compulsory = a.compulsory_bytes().as_f64();
    let held = view.shared.iter().skip(1).any(|level| level.capacity >= in_flight * per_head);
    let sharing = if view.shared.len() > 1 { kept.min(workers).max(1.0) } else { 1.0 };
    if held { compulsory } else { compulsory.max(streamed / sharing) }
}

fn written_bytes(a: &FusedAttention) -> f64 {
    let d = a.head_dim as f64 * a.operand.bytes() as f64 * a.batch as f64;
    match a.direction {
        Direction::Forward => d * a.heads as f64 * a.queries as f64,
        Direction::Backward => d * (a.heads as f64 * a.queries as f64 + 2.0 * a.kv_heads as f64 * a.keys as f64),
    }
}

fn slowest_port(view: &SpanResources, a: &FusedAttention, streamed: f64, device: f64) -> (f64, usize) {
    let out = written_bytes(a);
    let mut slowest = (0.0, 0);
    for (i, level) in view.shared.iter().enumerate() {
        let read = if i + 1 == view.shared.len() && i > 0 { streamed } else { (device - out).max(0.0) };
        let filled = if i == 0 { 0.0 } else { (device - out).max(0.0) };
        let time = level.busy_seconds(read, out + filled);
        if time > slowest.0 {
            slowest = (time, level.index);
        }
    }
    slowest
}

fn traffic_of_tiling(view: &SpanResources, a: &FusedAttention, plan: &AttentionTiling) -> Traffic {
    let mut traffic = Traffic::default();
    let out = written_bytes(a);
    let device = (plan.device - out).max(0.0);
    for (i, level) in view.shared.iter().enumerate() {
        let read = if i + 1 == view.shared.len() && i > 0 { plan.streamed } else { device };
        traffic.add_traffic(level.index, read, out + if i == 0 { 0.0 } else { device });
    }
    for level in &view.local {
        traffic.add_traffic(level.index, plan.into_arrays, plan.streamed + out);
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
            operand: DataType::Bf16,
        };
        let mut chip = Accelerator::built_in("gaudi2").unwrap();
        let mut time = |cores: u32, lanes: u32| {
            (chip.vector.cores, chip.vector.lanes) = (cores, lanes);
            CostModel::new(chip.clone()).unwrap().latency_of_kernel(&Kernel::FusedAttention(attention), Span::AllCores).0
        };
        let (many, few) = (time(24, 128), time(2, 12 * 128));
        assert!((many / few - 1.0).abs() < 1e-9, "as many lanes in 24 cores and in 2: {many} and {few}");
        assert!(time(2, 128) > 3.0 * many);
    }
}
