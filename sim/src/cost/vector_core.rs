//! Vector work: explicit passes over memory, bounded by the lanes and by every memory port that the data crosses. Data
//! crosses a scratchpad with a path around it only if a core without a memory of its own keeps rows in it.
//!
//! Cycles per element are lane cycles of PHAZE's published vector-core estimator (Wang et al., ICML 2024). It gives
//! addition, multiplication and ReLU 1; division 10; square root and erf 15; sigmoid and SiLU 12; sine and cosine 13;
//! dropout 2; the exponential inside softmax 10. Functions that it does not list are composed of those operations. Tanh
//! is composed too, because the estimator's 27 exceeds the cost through its own sigmoid.
//!
//! Units beside the lanes (`vector.transcendentals_per_cycle`) take a part of the transcendental functions, so that
//! both finish at the same time. The units' energy is counted as the lanes'.

use super::level_rates::LevelBytes;
use super::machine::{Machine, SpanResources};
use super::route::Route;
use super::tensor_core::ceil_nonnegative;
use super::{Bottleneck, CostModel, KernelCost, Traffic};
use crate::hardware::constants::KernelConstants;
use crate::kernel::{Direction, Elementwise, ElementwiseFunction, Kernel, Reduction, RowFunction};
use crate::units::Seconds;

const EXP: f64 = 10.0;
const ERF: f64 = 15.0;
const SIGMOID: f64 = 12.0;
/// 2 sigmoid(2 x) - 1.
const TANH: f64 = SIGMOID + 3.0;
const DIVISION: f64 = 10.0;
const SQUARE_ROOT: f64 = 15.0;
const DROPOUT: f64 = 2.0;

/// Rows that a core works on at a time: the sublanes of a TPU's vector unit (8 x 128 registers), or the blocks of 256
/// threads that fill the 2048 threads of a GPU's multiprocessor.
const ROWS_IN_FLIGHT: f64 = 8.0;

/// Rows that a core of a GPU works on at a time if a framework's own normalisation runs alone by the device's clock. A
/// row takes 128 of the 2,048 threads of a multiprocessor, as in PyTorch's layer_norm_kernel.cu (from memory). Chosen
/// on 34 measurements of an earlier H100 (PyTorch 2.11), in which rows of 16 KiB take three passes. In A100
/// measurements by the host's clock (LLMCompass) they take two, so all other kernels keep [`ROWS_IN_FLIGHT`].
const ROWS_IN_FLIGHT_ALONE: f64 = 16.0;

/// Transcendental functions of one element that units beside the lanes can compute, and their cycles on the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Transcendentals {
    count: f64,
    lane_cycles: f64,
}

impl Transcendentals {
    const NONE: Self = Self { count: 0.0, lane_cycles: 0.0 };
    pub(super) const EXPONENTIAL: Self = Self { count: 1.0, lane_cycles: EXP };
    const TANH: Self = Self { count: 1.0, lane_cycles: TANH };
    /// An exponential and a reciprocal.
    const SIGMOID: Self = Self { count: 2.0, lane_cycles: SIGMOID };
    /// A root and a reciprocal.
    const ROOT_AND_DIVISION: Self = Self { count: 2.0, lane_cycles: SQUARE_ROOT + DIVISION };

    fn times(self, factor: f64) -> Self {
        Self { count: self.count * factor, lane_cycles: self.lane_cycles * factor }
    }

    fn plus(self, more: Self) -> Self {
        Self { count: self.count + more.count, lane_cycles: self.lane_cycles + more.lane_cycles }
    }

    /// Returns the lane cycles per element of a function that takes `cycles` on the lanes alone, if software gives the
    /// units the part that lets both sides finish first. The units of a lane compute `units_per_lane` functions per
    /// cycle.
    pub(super) fn least_lane_cycles(self, cycles: f64, units_per_lane: f64) -> f64 {
        if units_per_lane <= 0.0 || self.count <= 0.0 {
            return cycles;
        }
        let (rest, on_units) = (cycles - self.lane_cycles, self.count / units_per_lane);
        // With a part f on the units the lanes take `cycles - f lane_cycles`, and the units f `on_units`.
        if rest >= on_units { rest } else { cycles * on_units / (self.lane_cycles + on_units) }
    }
}

/// Returns the transcendental functions of an elementwise function. Erf is a polynomial on the lanes.
fn elementwise_transcendentals(function: ElementwiseFunction, direction: Direction) -> Transcendentals {
    use ElementwiseFunction::{Adafactor, Adam, Adam8bit, Elu, Exp, Gelu, Selu, Sigmoid, Silu, SwiGlu, Tanh};
    match (function, direction) {
        (Elu | Selu | Exp, Direction::Forward) | (Gelu, Direction::Backward) => Transcendentals::EXPONENTIAL,
        (Silu | SwiGlu, _) | (Sigmoid, Direction::Forward) => Transcendentals::SIGMOID,
        (Tanh, Direction::Forward) => Transcendentals::TANH,
        (Adam | Adafactor, _) => Transcendentals::ROOT_AND_DIVISION,
        (Adam8bit, _) => {
            Transcendentals::ROOT_AND_DIVISION.plus(Transcendentals { count: 2.0, lane_cycles: 2.0 * DIVISION })
        }
        _ => Transcendentals::NONE,
    }
}

fn row_transcendentals(function: RowFunction, direction: Direction) -> Transcendentals {
    match (function, direction) {
        (RowFunction::Softmax, Direction::Forward) => Transcendentals::EXPONENTIAL.times(2.0),
        (RowFunction::CrossEntropy, _) => Transcendentals::EXPONENTIAL,
        _ => Transcendentals::NONE,
    }
}

/// Returns the lane cycles per result of an elementwise function, less the part that the units for transcendental
/// functions take.
pub(super) fn lane_cycles_of_element(machine: &Machine, function: ElementwiseFunction, direction: Direction) -> f64 {
    let cycles = elementwise_cycles(function, direction, &machine.constants);
    elementwise_transcendentals(function, direction).least_lane_cycles(cycles, machine.transcendentals_per_lane)
}

/// Returns the lane cycles per result of an elementwise function, all of it on the lanes.
#[must_use]
pub fn elementwise_cycles(function: ElementwiseFunction, direction: Direction, constants: &KernelConstants) -> f64 {
    use ElementwiseFunction::{
        Adafactor, Adam, Adam8bit, Add, BinaryStep, Convert, Copy, Dropout, Elu, Exp, Gather, Gelu, Indexed, LeakyRelu,
        Momentum, Mul, ParametricRelu, Relu, Rope, Scatter, ScatterAdd, Selu, Sgd, Sigmoid, Silu, SwiGlu, Tanh,
    };
    match (function, direction) {
        (Copy | Add | Mul | Relu | BinaryStep | Convert | Gather | Scatter, _) => 1.0,
        (Indexed, _) => constants.indexed,
        (ScatterAdd, _) => constants.atomic_add,
        // A comparison and a product.
        (LeakyRelu | ParametricRelu, Direction::Forward) => 2.0,
        (LeakyRelu | ParametricRelu, Direction::Backward) => 3.0,
        // Both branches are computed and one is selected.
        (Elu, Direction::Forward) => EXP + 2.0,
        (Selu, Direction::Forward) => EXP + 3.0,
        (Elu | Selu, Direction::Backward) => 3.0,
        // x Phi(x): erf, and a product with the scaling folded into it.
        (Gelu, Direction::Forward) => ERF + 1.0,
        // Phi(x) + x phi(x): erf and an exponential, three products and a sum.
        (Gelu, Direction::Backward) => ERF + EXP + 4.0,
        (Silu, Direction::Forward) => SIGMOID,
        // s (1 + x (1 - s)).
        (Silu, Direction::Backward) => SIGMOID + 4.0,
        (SwiGlu, Direction::Forward) => SIGMOID + 1.0,
        (SwiGlu, Direction::Backward) => SIGMOID + 7.0,
        (Sigmoid, Direction::Forward) => SIGMOID,
        (Tanh, Direction::Forward) => TANH,
        // From the saved result: a product, a difference, a product.
        (Sigmoid | Tanh, Direction::Backward) => 2.0,
        (Exp, Direction::Forward) => EXP,
        (Exp, Direction::Backward) => 1.0,
        // Two products and a sum with the tabulated sine and cosine.
        (Rope, _) => 3.0,
        (Dropout, Direction::Forward) => DROPOUT,
        (Dropout, Direction::Backward) => 1.0,
        (Sgd, _) => 2.0,
        (Momentum, _) => 4.0,
        // Two moments (2 x 3), bias correction folded into the step size, a square root, a division, decay and update.
        (Adam, _) => 6.0 + SQUARE_ROOT + DIVISION + 4.0,
        // The square and its sums along rows and columns, a product of both moments, a root, a division, decay and
        // update.
        (Adafactor, _) => 4.0 + SQUARE_ROOT + DIVISION + 4.0,
        // Adam, and for both moments a product with the block's scale in, the block's largest magnitude and a division
        // out.
        (Adam8bit, _) => 6.0 + SQUARE_ROOT + DIVISION + 4.0 + 2.0 * (2.0 + DIVISION),
    }
}

/// Returns the lane cycles per element of a row function, without its work per row (one division or root).
#[must_use]
pub fn row_cycles(function: RowFunction, direction: Direction) -> f64 {
    match (function, direction) {
        // Three passes: maximum; difference, exponential and sum; difference, exponential again and scaling.
        (RowFunction::Softmax, Direction::Forward) => 1.0 + (EXP + 2.0) + (EXP + 2.0),
        // y (dy - sum(y dy)): product and sum; difference and product.
        (RowFunction::Softmax, Direction::Backward) => 4.0,
        // Welford or two sums (4), then difference, scale, weight, bias.
        (RowFunction::LayerNorm, Direction::Forward) => 8.0,
        (RowFunction::LayerNorm, Direction::Backward) => 14.0,
        // Square and sum, then scale and weight.
        (RowFunction::RmsNorm, Direction::Forward) => 4.0,
        (RowFunction::RmsNorm, Direction::Backward) => 9.0,
        // Maximum, then difference, exponential and sum.
        (RowFunction::CrossEntropy, Direction::Forward) => EXP + 3.0,
        // Difference, exponential, scaling, minus the label.
        (RowFunction::CrossEntropy, Direction::Backward) => EXP + 3.0,
        (RowFunction::Sum, _) => 1.0,
    }
}

/// Passes of a row function over its data in two cases: a fused kernel whose rows do not stay on chip, and the unfused
/// sequence of a stack without fused kernels.
struct RowPasses {
    /// Reads of the operand when a row does not stay on chip; otherwise it is read once.
    spilled_reads: f64,
    /// Reads and writes of the whole data by the unfused sequence; `unfused_kernels` is its number of kernels.
    unfused_touches: f64,
    unfused_kernels: f64,
}

fn passes_of_function(function: RowFunction, direction: Direction) -> RowPasses {
    match (function, direction) {
        // Unfused: maximum [r], difference and exponential [r w], sum [r], division [r w]. Spilled: online maximum and
        // sum, then the result.
        (RowFunction::Softmax, Direction::Forward) => {
            RowPasses { spilled_reads: 2.0, unfused_touches: 6.0, unfused_kernels: 4.0 }
        }
        // Unfused: mean [r], centring [r w], variance [r], scaling [r w], weight and bias [r w].
        (RowFunction::LayerNorm, Direction::Forward) => {
            RowPasses { spilled_reads: 2.0, unfused_touches: 8.0, unfused_kernels: 5.0 }
        }
        // Unfused: mean square [r], scaling [r w], weight [r w].
        (RowFunction::RmsNorm, Direction::Forward) => {
            RowPasses { spilled_reads: 2.0, unfused_touches: 5.0, unfused_kernels: 3.0 }
        }
        (RowFunction::CrossEntropy, Direction::Forward) => {
            RowPasses { spilled_reads: 1.0, unfused_touches: 4.0, unfused_kernels: 3.0 }
        }
        (RowFunction::Sum, _) => RowPasses { spilled_reads: 1.0, unfused_touches: 1.0, unfused_kernels: 1.0 },
        // Backward passes read two operands and write one gradient. Unfused they add one product and one sum over the
        // row.
        (RowFunction::CrossEntropy, Direction::Backward) => {
            RowPasses { spilled_reads: 1.0, unfused_touches: 4.0, unfused_kernels: 2.0 }
        }
        (_, Direction::Backward) => RowPasses { spilled_reads: 2.0, unfused_touches: 8.0, unfused_kernels: 4.0 },
    }
}

/// True if frameworks compose the kernel from operations of their own language when it is timed from the host. These
/// are both normalisations, GELU, SwiGLU and the rotary embedding; all other kernels count as single library calls.
pub(super) fn is_composed(kernel: &Kernel) -> bool {
    match kernel {
        Kernel::Reduction(r) => matches!(r.function, RowFunction::LayerNorm | RowFunction::RmsNorm),
        Kernel::Elementwise(e) => {
            matches!(e.function, ElementwiseFunction::Gelu | ElementwiseFunction::SwiGlu | ElementwiseFunction::Rope)
        }
        _ => false,
    }
}

/// Returns the cost of one pass: `read` and `written` bytes, `busy` seconds and `operations` on the lanes.
pub(super) fn stream_pass(
    model: &CostModel,
    view: &SpanResources,
    read: f64,
    written: f64,
    busy: f64,
    operations: f64,
) -> KernelCost {
    finish_cost(model, view, |_| StreamPass {
        read,
        written,
        busy,
        operations,
        useful: operations,
        kernels: 1.0,
        slower: 1.0,
        wait: 0.0,
    })
}

#[derive(Debug, Clone, Copy)]
struct StreamPass {
    read: f64,
    written: f64,
    busy: f64,
    operations: f64,
    useful: f64,
    kernels: f64,
    /// Time at the device's memory relative to a long stream's.
    slower: f64,
    /// The least time of the work, in seconds.
    wait: f64,
}

/// The slowest port of a pass.
#[derive(Debug, Clone, Copy)]
struct SlowestPort {
    seconds: f64,
    /// Its level's position in [`crate::hardware::Accelerator::memory_levels`].
    level: usize,
    /// The longest latency of a shared level that the pass crosses.
    latency: f64,
}

impl StreamPass {
    /// Returns the bytes read and written through a shared level. On-chip levels (all but the first) are also filled
    /// from outside and emptied outwards.
    fn bytes_through_level(&self, level: usize) -> LevelBytes {
        let through = if level == 0 { 0.0 } else { 1.0 };
        LevelBytes { read: self.read + through * self.written, written: self.written + through * self.read }
    }

    fn slowest_port(&self, view: &SpanResources, route: Route) -> SlowestPort {
        let mut port = SlowestPort { seconds: 0.0, level: 0, latency: 0.0 };
        for (i, level) in route.levels_crossed(&view.shared) {
            let LevelBytes { read, written } = self.bytes_through_level(i);
            let time = level.busy_seconds(read, written) * if i == 0 { self.slower } else { 1.0 };
            if time > port.seconds {
                (port.seconds, port.level) = (time, level.index);
            }
            port.latency = port.latency.max(level.latency);
        }
        for level in &view.local {
            let bytes = self.read + self.written;
            let time = level.busy_seconds(bytes, bytes) / view.vector_cores;
            if time > port.seconds {
                (port.seconds, port.level) = (time, level.index);
            }
        }
        port
    }

    /// Returns the seconds of launches and latencies, and those of the work.
    fn total_seconds(&self, model: &CostModel, view: &SpanResources, port: &SlowestPort) -> (f64, f64) {
        let floor = view.library.map_or(0.0, |library| library.floor_seconds());
        let start = model.machine.calibration.launch_overhead.0 + port.latency + floor;
        (start * self.kernels, self.busy.max(port.seconds).max(self.wait))
    }
}

/// A pass on its fastest route.
struct RoutedPass {
    route: Route,
    pass: StreamPass,
    port: SlowestPort,
    /// Seconds of launches and latencies, and of the work.
    overhead: f64,
    work: f64,
}

impl RoutedPass {
    fn total_seconds(&self) -> f64 {
        self.overhead + self.work
    }
}

/// Returns the pass on its fastest route. Ties go to the shortest route.
fn choose_fastest_route(model: &CostModel, view: &SpanResources, pass: impl Fn(Route) -> StreamPass) -> RoutedPass {
    let on = |route: Route| {
        let pass = pass(route);
        let port = pass.slowest_port(view, route);
        let (overhead, work) = pass.total_seconds(model, view, &port);
        RoutedPass { route, pass, port, overhead, work }
    };
    let others = view.stream_routes().iter().skip(1).map(|route| on(*route));
    let shortest = on(view.routes.first().copied().unwrap_or_default());
    others.fold(shortest, |best, other| if other.total_seconds() < best.total_seconds() { other } else { best })
}

fn finish_cost(model: &CostModel, view: &SpanResources, pass: impl Fn(Route) -> StreamPass) -> KernelCost {
    let RoutedPass { route, pass, port, overhead, work } = choose_fastest_route(model, view, pass);
    let mut traffic = Traffic::default();
    for (i, level) in route.levels_crossed(&view.shared) {
        let LevelBytes { read, written } = pass.bytes_through_level(i);
        traffic.add_traffic(level.index, read, written);
    }
    for level in &view.local {
        let bytes = pass.read + pass.written;
        traffic.add_traffic(level.index, bytes, bytes);
    }
    let bound = if overhead > work {
        Bottleneck::Overhead
    } else if pass.busy >= port.seconds {
        Bottleneck::Compute
    } else {
        Bottleneck::Memory(port.level as u8)
    };
    let total = overhead + work;
    KernelCost {
        latency: Seconds(total),
        energy: model.energy_of_traffic(&traffic) + model.energy_model().vector_energy(pass.operations as u128),
        traffic,
        utilization: if total > 0.0 { pass.useful / (view.lanes * model.machine.clock * total) } else { 0.0 },
        bound,
    }
}

/// Returns the latency of an elementwise kernel or a reduction; `None` for any other kernel.
pub(super) fn latency_of_vector_kernel(model: &CostModel, view: &SpanResources, kernel: &Kernel) -> Option<f64> {
    let fastest = match kernel {
        Kernel::Elementwise(e) => choose_fastest_route(model, view, |_| elementwise_pass(model, view, e)),
        Kernel::Reduction(r) => choose_fastest_route(model, view, |route| reduction_pass(model, view, r, route)),
        _ => return None,
    };
    Some(fastest.total_seconds())
}

/// Returns the cost of one function over elements, in one pass.
pub(super) fn cost_of_elementwise(model: &CostModel, view: &SpanResources, e: &Elementwise) -> KernelCost {
    finish_cost(model, view, |_| elementwise_pass(model, view, e))
}

fn elementwise_pass(model: &CostModel, view: &SpanResources, e: &Elementwise) -> StreamPass {
    let cycles = elementwise_cycles(e.function, e.direction, &model.machine.constants);
    let operations = e.elements as f64 * cycles;
    // The lanes work in step, so a partly filled last vector takes as long as a full one.
    let on_lanes = lane_cycles_of_element(&model.machine, e.function, e.direction);
    let steps = ceil_nonnegative(e.elements as f64 / view.lanes) * on_lanes;
    let busy = steps / (model.machine.clock * model.machine.calibration.vector_achieved_fraction);
    let (read, written) = (e.read.as_f64(), e.written.as_f64());
    let slower = slowdown_alone(model, view, !is_update(e.function));
    StreamPass { read, written, busy, operations, useful: operations, kernels: 1.0, slower, wait: 0.0 }
}

/// Returns the cost of a row function. It reads and writes its rows once while the rows in flight stay on chip, and
/// reads them again if they spill. The chip's unfused fraction adds elementary passes, each a kernel of its own.
pub(super) fn cost_of_reduction(model: &CostModel, view: &SpanResources, r: &Reduction) -> KernelCost {
    finish_cost(model, view, |route| reduction_pass(model, view, r, route))
}

fn reduction_pass(model: &CostModel, view: &SpanResources, r: &Reduction, route: Route) -> StreamPass {
    let machine = &model.machine;
    let cycles = row_cycles(r.function, r.direction);
    let elements = r.rows as f64 * r.columns as f64;
    let passes = passes_of_function(r.function, r.direction);
    let (read, written) = (r.read.as_f64(), r.written.as_f64());
    let row_bytes = if r.rows == 0 { 0.0 } else { read / r.rows as f64 };
    let stays = rows_stay(view, route, r, row_bytes);
    let reads = if stays { 1.0 } else { passes.spilled_reads };
    let unfused = view.unfused;
    let touch = read.max(written);
    let fused_touches = 1.0 + if written * 2.0 > read { 1.0 } else { 0.0 };
    let extra = unfused * (passes.unfused_touches - fused_touches).max(0.0) * touch;
    let kernels = 1.0 + unfused * (passes.unfused_kernels - 1.0);
    // Each row goes to one core; the lanes of a core share it.
    let rows_per_core = ceil_nonnegative(r.rows as f64 / view.vector_cores);
    let lanes = view.lanes / view.vector_cores;
    let vectors = if r.columns as f64 >= lanes {
        rows_per_core * ceil_nonnegative(r.columns as f64 / lanes)
    } else {
        ceil_nonnegative(rows_per_core * r.columns as f64 / lanes)
    };
    let per_row = match r.function {
        RowFunction::Sum => 0.0,
        _ => {
            DIVISION
                + if matches!(r.function, RowFunction::LayerNorm | RowFunction::RmsNorm) { SQUARE_ROOT } else { 0.0 }
        }
    };
    let row_work = ceil_nonnegative(rows_per_core / lanes) * per_row;
    let on_lanes =
        row_transcendentals(r.function, r.direction).least_lane_cycles(cycles, machine.transcendentals_per_lane);
    let busy = (vectors * on_lanes + row_work) / (machine.clock * machine.calibration.vector_achieved_fraction);
    // Intermediates of unfused passes are half reads and half writes.
    StreamPass {
        read: read * reads + extra * 0.5,
        written: written + extra * 0.5,
        busy,
        operations: elements * cycles,
        useful: elements * cycles,
        kernels,
        slower: if waits_for_sums(r, stays) { slowdown_alone(model, view, false) } else { 1.0 },
        wait: view.library.map_or(0.0, |library| library.row_wait_seconds()),
    }
}

/// True if the rows in flight stay on the core that works on them.
fn rows_stay(view: &SpanResources, route: Route, r: &Reduction, row_bytes: f64) -> bool {
    let (buffer, rows) = (view.row_buffer_on(route), r.rows as f64);
    let normalises = matches!(r.function, RowFunction::LayerNorm | RowFunction::RmsNorm);
    if normalises && view.library.is_some_and(|library| library.timed_by_device()) {
        // A framework's kernel keeps rows in a cache, which also holds other data: rows that just fill it do not stay.
        row_bytes * ROWS_IN_FLIGHT_ALONE.min(rows) < buffer
    } else {
        row_bytes * ROWS_IN_FLIGHT.min(rows) <= buffer
    }
}

/// True if a row function's reads wait for the sums of its rows. Normalisations whose rows do not stay on chip read the
/// rows twice, each time as a stream.
fn waits_for_sums(r: &Reduction, stays: bool) -> bool {
    stays || r.function == RowFunction::Softmax
}

/// True for an optimizer's update with state; plain SGD counts as a stream.
fn is_update(function: ElementwiseFunction) -> bool {
    use ElementwiseFunction::{Adafactor, Adam, Adam8bit, Momentum};
    matches!(function, Adafactor | Adam | Adam8bit | Momentum)
}

/// Returns a factor on the device memory's busy time, which assumes the chip's `hbm_achieved_fraction`. It is 1 in a
/// step and on chips without a library. A plain stream (`streams`) that runs alone reaches at least the library's
/// `read_fraction`, so its factor is at most 1. Other kernels that run alone reach at most
/// [`KernelConstants::broken_stream`], so theirs is at least 1.
fn slowdown_alone(model: &CostModel, view: &SpanResources, streams: bool) -> f64 {
    let achieved = model.machine.calibration.hbm_achieved_fraction;
    match view.library.filter(|library| library.alone) {
        None => 1.0,
        Some(library) if streams => (achieved / library.scalars.read_fraction).min(1.0),
        Some(_) => (achieved / model.machine.constants.broken_stream).max(1.0),
    }
}
