//! A chunk of the pipeline: what its passes take, and how much communication its work hides.

use crate::SoftwareStack;
use crate::communication::contention::{Communication, OverlapWindow};
use crate::pass::profile::PieceProfile;
use sim::pipeline::{ChunkWork, PipelineSchedule};
use sim::units::Seconds;
use workloads::Layout;

/// A chunk of the pipeline as it runs one micro-batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Chunk {
    pub piece: PieceProfile,
    /// Layers, without the ends of the model.
    pub(crate) layers: u64,
    pub forward: Seconds,
    pub recompute: Seconds,
    /// The backward pass in one go, without `recompute`.
    pub backward: Seconds,
    /// The same as two passes that run apart: gradients of inputs, and of weights. Each waits for its own launches.
    pub(crate) apart: [Seconds; 2],
    /// Data-parallel communication in every micro-batch that nothing hides (ZeRO-2 and -3).
    pub(crate) data: Seconds,
    pub(crate) host: Seconds,
    /// For how long its forward pass, and its backward pass with what runs again, hide what the step exchanges once.
    pub(crate) hides: [Seconds; 2],
}

impl Chunk {
    /// A chunk's passes: what its kernels take, or what the host takes to launch them, and what nothing hides of `gathers`.
    pub(crate) fn with_exposed_gathers(
        stack: &SoftwareStack,
        layout: &Layout,
        (layers, piece): (u64, PieceProfile),
        ExposedGathers { forward: gathers, backward: scatters, apart: [scatters_inputs, scatters_weights] }: ExposedGathers,
    ) -> Self {
        let (f, r, b) = (piece.forward, piece.recompute, piece.backward);
        let busy = [f.busy_time(), r.busy_time() + b.busy_time()];
        let [forward, backward] = pass_windows(stack, &piece).map(|window| window.time);
        let waiting = (forward - busy[0]) + (backward - busy[1]);
        let exchange = if layout.pipeline > 1 { stack.pipeline_pass_overhead(layout.virtual_stages) } else { Seconds::ZERO };
        let (forward, backward) = (forward + exchange + gathers, backward + exchange + scatters);
        let host = waiting + exchange * 2.0;
        let [input, weight] = split_backward_times(stack, &piece);
        let apart = [input - r.busy_time() + exchange + scatters_inputs, weight + scatters_weights];
        let (recompute, data, hides) = (r.busy_time(), gathers + scatters, [forward, backward]);
        Self { piece, layers, forward, recompute, backward: backward - recompute, apart, data, host, hides }
    }

    /// [`Self::with_exposed_gathers`] with what nothing hides of the `units` that are gathered and scattered in every micro-batch.
    pub(crate) fn with_gathers(
        stack: &SoftwareStack,
        layout: &Layout,
        (layers, piece): (u64, PieceProfile),
        (units, exchange): (u64, (Communication, Communication)),
    ) -> Self {
        Self::with_exposed_gathers(stack, layout, (layers, piece), exposed_gathers(stack, &piece, units, exchange))
    }

    /// [`Self::with_gathers`] of a piece whose passes are bounded by their schedules, for a schedule that splits the backward pass: each of its parts takes what
    /// it does at least, whatever the other does, and communication is hidden as if all passes took what they do under the schedules that were found.
    /// So no pass and no communication takes longer than under better schedules; closed forms know better what the parts take together.
    pub(crate) fn new_lower_bound(
        stack: &SoftwareStack,
        layout: &Layout,
        (layers, piece): (u64, PieceProfile),
        (units, exchange): (u64, (Communication, Communication)),
    ) -> Self {
        let longest = lengthen_to_found_schedules(stack, piece);
        let exposed = exposed_gathers(stack, &longest, units, exchange);
        let long = Self::with_exposed_gathers(stack, layout, (layers, longest), exposed);
        let chunk = Self::with_exposed_gathers(stack, layout, (layers, piece), exposed);
        let overhead = if layout.pipeline > 1 { stack.pipeline_pass_overhead(layout.virtual_stages) } else { Seconds::ZERO };
        let [[_, input_host], [_, weight_host]] = split_backward_parts(stack, &piece);
        let (again, [inputs, weights]) = (piece.recompute.parts[0], piece.backward.parts);
        let input = (again + inputs).max(input_host) - chunk.recompute;
        let apart = [input + overhead + exposed.apart[0], weights.max(weight_host)];
        Self { piece: longest, apart, hides: long.hides, ..chunk }
    }

    pub(crate) fn busy_time(&self) -> Seconds {
        self.forward + self.recompute + self.backward
    }

    /// The gradients of inputs and of weights under a schedule, without `recompute`. Where a schedule puts the latter off, each part takes what its
    /// kernels or their launches do; together they may take longer than a backward pass in one go, whose launches run ahead from one to the other.
    pub fn gradient_times(&self, schedule: PipelineSchedule) -> [Seconds; 2] {
        if schedule.splits_backward() {
            return self.apart;
        }
        let weight = self.piece.backward.weight.min(self.backward);
        [self.backward - weight, weight]
    }

    pub(crate) fn to_chunk_work(&self, schedule: PipelineSchedule) -> ChunkWork {
        let [input, weight] = self.gradient_times(schedule);
        ChunkWork { forward: self.forward, backward: self.recompute + input + weight, weight }
    }
}

/// What nothing hides of weights gathered and of gradients scattered.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExposedGathers {
    /// In the forward pass.
    pub forward: Seconds,
    /// In the backward pass in one go.
    pub backward: Seconds,
    /// Beside the gradients of inputs, and those of weights, where these run apart.
    pub apart: [Seconds; 2],
}

/// Weights gathered, and gradients scattered, `units` times: the part that nothing hides. Gathering waits for nothing, so that what comes next is
/// fetched beside this unit; scattering is the reduction of the unit before. It is the gradients of inputs that wait for it, but where passes are
/// bounded: longer gradients of weights may hide so much that the stack's share alone is sure to be waited for.
pub fn exposed_gathers(
    stack: &SoftwareStack,
    piece: &PieceProfile,
    units: u64,
    (gather, scatter): (Communication, Communication),
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
    let inputs = if piece.bounded { exposed(scatter, OverlapWindow { time: Seconds(f64::INFINITY), ..split }) } else { all };
    let apart = [inputs, all - inputs];
    ExposedGathers { forward: exposed(Communication::default(), forward), backward: exposed(scatter, backward), apart }
}

/// How much of a gathering and a scattering it saves that they run beside the same work: up to the smaller of their two fractions both share the window, beyond
/// it the other one has it alone.
fn hidden_beside_same_work(
    stack: &SoftwareStack,
    window: &OverlapWindow,
    gather: Communication,
    scatter: Communication,
) -> Seconds {
    let (prefetch, reduction) = (stack.overlap.parameter_prefetch, stack.overlap.data_reduction);
    let more = if prefetch > reduction { gather } else { scatter };
    window.time_saved(&(gather + scatter)) * prefetch.min(reduction) + window.time_saved(&more) * (prefetch - reduction).abs()
}

/// A piece's forward pass, and its backward pass with what runs again, as work to hide communication behind: for as long as they really take, which
/// is what the host takes to launch them where that is longer. A transfer in flight needs no host, and goes on while the device waits for its
/// next kernel; a window of busy time alone would grow with slower collectives of the piece's own, though these only fill time that the device
/// waits anyway.
pub fn pass_windows(stack: &SoftwareStack, piece: &PieceProfile) -> [OverlapWindow; 2] {
    let (f, r, b) = (piece.forward, piece.recompute, piece.backward);
    let ([forward, backward], [launch, launch_back]) = (busy_times(piece), launch_times(stack, piece));
    let [forward, backward] = [forward.max(launch), backward.max(launch_back)];
    [
        OverlapWindow { time: forward, ports: f.ports, copies: f.copies.times_each_way() },
        OverlapWindow { time: backward, ports: r.ports + b.ports, copies: b.copies.times_each_way() },
    ]
}

/// A piece's passes as long as under the schedules that were found, or longer: of a backward pass in two that run apart, each may wait for its launches.
fn lengthen_to_found_schedules(stack: &SoftwareStack, mut piece: PieceProfile) -> PieceProfile {
    let [_, launching] = launch_times(stack, &piece);
    piece.forward.device += piece.forward.unproven;
    piece.backward.device += piece.recompute.unproven + piece.backward.unproven + launching;
    piece
}

/// What a piece's forward pass keeps a device busy, and its backward pass with what runs again.
pub fn busy_times(piece: &PieceProfile) -> [Seconds; 2] {
    [piece.forward.busy_time(), piece.recompute.busy_time() + piece.backward.busy_time()]
}

/// What the host takes to launch them.
pub fn launch_times(stack: &SoftwareStack, piece: &PieceProfile) -> [Seconds; 2] {
    let launch = &stack.launch;
    let host = |us: f64, launches: u32| Seconds::from_micros(us * f64::from(launches));
    let (f, r, b) = (piece.forward, piece.recompute, piece.backward);
    let backward = host(launch.host_forward_us, r.launches) + host(launch.host_backward_us, b.launches);
    [host(launch.host_forward_us, f.launches) + f.slower_launches, backward + r.slower_launches + b.slower_launches]
}

/// The backward pass in two that run apart, what runs again and the gradients of inputs, and the gradients of weights: as [`pass_windows`], each for as
/// long as its own kernels or launches take. What one of them takes is then no longer for a faster kernel of the other.
fn split_backward_times(stack: &SoftwareStack, piece: &PieceProfile) -> [Seconds; 2] {
    split_backward_parts(stack, piece).map(|[device, host]| device.max(host))
}

/// What the two parts of the backward pass keep the device busy, and what the host takes to launch them.
pub fn split_backward_parts(stack: &SoftwareStack, piece: &PieceProfile) -> [[Seconds; 2]; 2] {
    let launch = &stack.launch;
    let host = |us: f64, launches: u32| Seconds::from_micros(us * f64::from(launches));
    let (r, b) = (piece.recompute, piece.backward);
    let weights = b.weight_launches;
    let input_host = host(launch.host_forward_us, r.launches)
        + host(launch.host_backward_us, b.launches.saturating_sub(weights))
        + r.slower_launches
        + b.slower_launches;
    // Collectives that the pass in one go hides behind the gradients of weights have nothing to hide behind.
    let input = r.busy_time() + b.busy_time() - b.weight + b.beside_weights;
    // While the host still launches the gradients of inputs, more of them may run: of what is put off so much less is sure to be.
    let waiting = if piece.bounded { (input_host - input).max(Seconds::ZERO) } else { Seconds::ZERO };
    [[input, input_host], [(b.weight - waiting).max(Seconds::ZERO), host(launch.host_backward_us, weights)]]
}
