//! A chunk of the pipeline: the times of its passes, and the communication that its work hides.

use crate::SoftwareStack;
use crate::communication::contention::{Communication, OverlapWindow};
use crate::pass::profile::PieceProfile;
use sim::pipeline::{ChunkWork, PipelineSchedule};
use sim::units::Seconds;
use workloads::Layout;

/// A chunk of the pipeline, with the times of its passes for one micro-batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Chunk {
    pub piece: PieceProfile,
    /// Number of layers, without the model's ends.
    pub(crate) layers: u64,
    pub forward: Seconds,
    pub recompute: Seconds,
    /// The backward pass in one go, without `recompute`.
    pub backward: Seconds,
    /// The backward pass as two separate passes: input gradients and weight gradients. Each waits for its own launches.
    pub(crate) apart: [Seconds; 2],
    /// Exposed data-parallel communication per micro-batch (ZeRO-2 and -3).
    pub(crate) data: Seconds,
    pub(crate) host: Seconds,
    /// Time for which its (forward pass, backward pass with recomputation) can hide the exchange once per step.
    pub(crate) hides: [Seconds; 2],
}

impl Chunk {
    /// Returns a chunk with given exposed gathers. A pass takes the time of its kernels, or of their launches if
    /// longer, plus the exposed gathers.
    pub(crate) fn with_exposed_gathers(
        stack: &SoftwareStack,
        layout: &Layout,
        layers: u64,
        piece: PieceProfile,
        ExposedGathers { forward: gathers, backward: scatters, apart: [scatters_inputs, scatters_weights] }: ExposedGathers,
    ) -> Self {
        let (f, r, b) = (piece.forward, piece.recompute, piece.backward);
        let busy = [f.busy_time(), r.busy_time() + b.busy_time()];
        let [forward, backward] = pass_windows(stack, &piece).map(|window| window.time);
        let waiting = (forward - busy[0]) + (backward - busy[1]);
        let exchange =
            if layout.pipeline > 1 { stack.pipeline_pass_overhead(layout.virtual_stages) } else { Seconds::ZERO };
        let (forward, backward) = (forward + exchange + gathers, backward + exchange + scatters);
        let host = waiting + exchange * 2.0;
        let [input, weight] = split_backward_times(stack, &piece);
        let apart = [input - r.busy_time() + exchange + scatters_inputs, weight + scatters_weights];
        let (recompute, data, hides) = (r.busy_time(), gathers + scatters, [forward, backward]);
        Self { piece, layers, forward, recompute, backward: backward - recompute, apart, data, host, hides }
    }

    /// Returns a chunk that gathers weights and scatters gradients in `units` parts in every micro-batch. Its passes
    /// include the exposed part.
    pub(crate) fn with_gathers(
        stack: &SoftwareStack,
        layout: &Layout,
        layers: u64,
        piece: PieceProfile,
        units: u64,
        exchange: ShardingExchange,
    ) -> Self {
        Self::with_exposed_gathers(stack, layout, layers, piece, exposed_gathers(stack, &piece, units, exchange))
    }

    /// Returns a lower bound of [`Self::with_gathers`], for a piece with passes bounded by their schedules and a
    /// schedule that splits the backward pass. Each part of that pass has its own minimum. Communication is hidden as
    /// if all passes had the times of the found schedules. So no pass and no communication is longer than under better
    /// schedules. Closed forms know the parts' joint time more precisely.
    pub(crate) fn new_lower_bound(
        stack: &SoftwareStack,
        layout: &Layout,
        layers: u64,
        piece: PieceProfile,
        units: u64,
        exchange: ShardingExchange,
    ) -> Self {
        let longest = lengthen_to_found_schedules(stack, piece);
        let exposed = exposed_gathers(stack, &longest, units, exchange);
        let long = Self::with_exposed_gathers(stack, layout, layers, longest, exposed);
        let chunk = Self::with_exposed_gathers(stack, layout, layers, piece, exposed);
        let overhead =
            if layout.pipeline > 1 { stack.pipeline_pass_overhead(layout.virtual_stages) } else { Seconds::ZERO };
        let [[_, input_host], [_, weight_host]] = split_backward_parts(stack, &piece);
        let (again, [inputs, weights]) = (piece.recompute.parts[0], piece.backward.parts);
        let input = (again + inputs).max(input_host) - chunk.recompute;
        let apart = [input + overhead + exposed.apart[0], weights.max(weight_host)];
        Self { piece: longest, apart, hides: long.hides, ..chunk }
    }

    pub(crate) fn busy_time(&self) -> Seconds {
        self.forward + self.recompute + self.backward
    }

    /// Returns the times of (input gradients, weight gradients) under a schedule, without `recompute`. If a schedule
    /// puts weight gradients off, each part takes the time of its kernels or its launches. Together they may then
    /// exceed a backward pass in one go, whose launches run ahead across the parts.
    pub fn gradient_times(&self, schedule: PipelineSchedule) -> [Seconds; 2] {
        if schedule.splits_backward() {
            return self.apart;
        }
        let weight = self.piece.backward.weight.min(self.backward);
        [self.backward - weight, weight]
    }

    pub(crate) fn chunk_work(&self, schedule: PipelineSchedule) -> ChunkWork {
        let [input, weight] = self.gradient_times(schedule);
        ChunkWork { forward: self.forward, backward: self.recompute + input + weight, weight }
    }
}

/// The exchange of one unit's shards per micro-batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShardingExchange {
    /// Gathers the unit's weights.
    pub gather: Communication,
    /// Scatters its gradients.
    pub scatter: Communication,
}

/// Exposed time of gathered weights and scattered gradients.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExposedGathers {
    /// In the forward pass.
    pub forward: Seconds,
    /// In a backward pass in one go.
    pub backward: Seconds,
    /// In separate passes: besides the input gradients, and besides the weight gradients.
    pub apart: [Seconds; 2],
}

/// Returns the exposed part of `units` gathers and scatters. A gather waits for nothing, so the next unit's weights are
/// fetched during this unit. A scatter reduces the previous unit's gradients. Separate input gradients contain the
/// exposed scatters. In bounded passes, longer weight gradients may hide so much that only the share that the stack
/// never hides is certainly exposed there.
pub fn exposed_gathers(
    stack: &SoftwareStack,
    piece: &PieceProfile,
    units: u64,
    ShardingExchange { gather, scatter }: ShardingExchange,
) -> ExposedGathers {
    if gather.time + scatter.time == Seconds::ZERO {
        return ExposedGathers::default();
    }
    let n = units.max(1) as f64;
    let exposed = |scatter: Communication, all: OverlapWindow| {
        let each = OverlapWindow { time: all.time / n, ..all * (1.0 / n) };
        let time = gather.time + scatter.time;
        (time - hidden_beside_same_work(stack, &each, gather, scatter)) * (n - 1.0) + time
    };
    let [forward, backward] = pass_windows(stack, piece);
    let [input, weight] = split_backward_times(stack, piece);
    let split = OverlapWindow { time: input + weight, ..backward };
    let all = exposed(scatter, split);
    let inputs =
        if piece.bounded { exposed(scatter, OverlapWindow { time: Seconds(f64::INFINITY), ..split }) } else { all };
    let apart = [inputs, all - inputs];
    ExposedGathers { forward: exposed(Communication::default(), forward), backward: exposed(scatter, backward), apart }
}

/// Returns the time that a gather and a scatter save by running beside the same work. Up to the smaller of their two
/// overlap fractions, they share the window. Above it, the one with the larger fraction has the window alone.
fn hidden_beside_same_work(
    stack: &SoftwareStack,
    window: &OverlapWindow,
    gather: Communication,
    scatter: Communication,
) -> Seconds {
    let (prefetch, reduction) = (stack.overlap.parameter_prefetch, stack.overlap.data_reduction);
    let more = if prefetch > reduction { gather } else { scatter };
    window.time_saved(&(gather + scatter)) * prefetch.min(reduction)
        + window.time_saved(&more) * (prefetch - reduction).abs()
}

/// Returns a piece's passes as windows that hide communication: (forward, backward with recomputation). A window's time
/// is the pass's real time, so the host's launch time if that is longer. A transfer in flight needs no host, and
/// continues while the device waits for its next kernel. Windows of busy time alone would grow with slower collectives
/// of the piece itself, although these only fill time in which the device waits anyway.
pub fn pass_windows(stack: &SoftwareStack, piece: &PieceProfile) -> [OverlapWindow; 2] {
    let (f, r, b) = (piece.forward, piece.recompute, piece.backward);
    let ([forward, backward], [launch, launch_back]) = (busy_times(piece), launch_times(stack, piece));
    let [forward, backward] = [forward.max(launch), backward.max(launch_back)];
    [
        OverlapWindow { time: forward, ports: f.ports, copies: f.copies.times_each_way() },
        OverlapWindow { time: backward, ports: r.ports + b.ports, copies: b.copies.times_each_way() },
    ]
}

/// Returns a piece with passes at least as long as under the found schedules. If the backward pass has two separate
/// parts, each may wait for its launches.
fn lengthen_to_found_schedules(stack: &SoftwareStack, mut piece: PieceProfile) -> PieceProfile {
    let [_, launching] = launch_times(stack, &piece);
    piece.forward.device += piece.forward.unproven;
    piece.backward.device += piece.recompute.unproven + piece.backward.unproven + launching;
    piece
}

/// Returns the device's busy time in a piece's (forward pass, backward pass with recomputation).
pub fn busy_times(piece: &PieceProfile) -> [Seconds; 2] {
    [piece.forward.busy_time(), piece.recompute.busy_time() + piece.backward.busy_time()]
}

/// Returns the host's launch time for (the forward pass, the backward pass with recomputation).
pub fn launch_times(stack: &SoftwareStack, piece: &PieceProfile) -> [Seconds; 2] {
    let launch = &stack.launch;
    let host = |us: f64, launches: u32| Seconds::from_micros(us * f64::from(launches));
    let (f, r, b) = (piece.forward, piece.recompute, piece.backward);
    let backward = host(launch.host_forward_us, r.launches) + host(launch.host_backward_us, b.launches);
    [host(launch.host_forward_us, f.launches) + f.slower_launches, backward + r.slower_launches + b.slower_launches]
}

/// Returns the times of the backward pass's two separate parts: recomputation with input gradients, and weight
/// gradients. As in [`pass_windows`], each part takes the time of its own kernels or launches. So a faster kernel of
/// one part never makes the other part longer.
fn split_backward_times(stack: &SoftwareStack, piece: &PieceProfile) -> [Seconds; 2] {
    split_backward_parts(stack, piece).map(|[device, host]| device.max(host))
}

/// Returns (device's busy time, host's launch time) of both parts of the backward pass: recomputation with input
/// gradients, and weight gradients.
pub fn split_backward_parts(stack: &SoftwareStack, piece: &PieceProfile) -> [[Seconds; 2]; 2] {
    let launch = &stack.launch;
    let host = |us: f64, launches: u32| Seconds::from_micros(us * f64::from(launches));
    let (r, b) = (piece.recompute, piece.backward);
    let weights = b.weight_launches;
    let input_host = host(launch.host_forward_us, r.launches)
        + host(launch.host_backward_us, b.launches.saturating_sub(weights))
        + r.slower_launches
        + b.slower_launches;
    // A pass in one go hides these collectives behind the weight gradients. Separate parts expose them.
    let input = r.busy_time() + b.busy_time() - b.weight + b.beside_weights;
    // While the host still launches the input gradients, more work may run beside the launches. So only the work beyond
    // that time is certain to be put off.
    let waiting = if piece.bounded { (input_host - input).max(Seconds::ZERO) } else { Seconds::ZERO };
    [[input, input_host], [(b.weight - waiting).max(Seconds::ZERO), host(launch.host_backward_us, weights)]]
}
