//! The order of passes on every device, for schedules that have a fixed one.

use super::pass::{OrderStep, PipelinePass};
use super::{Pipeline, PipelineSchedule};

/// Returns the order of device `k`; empty in a V, where several orders are tried. Under ZB-H1 weight gradients wait
/// for at most `delay` later input gradients.
pub(crate) fn static_order_of(pipeline: &Pipeline, k: u32, delay: u32) -> Vec<OrderStep> {
    let (p, m) = (pipeline.device_count(), pipeline.micro_batches);
    let step = |pass, micro_batch| OrderStep { pass, stage: k, micro_batch };
    match pipeline.schedule {
        PipelineSchedule::GPipe => {
            let backward = (0..m).map(|i| step(PipelinePass::Backward, i));
            (0..m).map(|i| step(PipelinePass::Forward, i)).chain(backward).collect()
        }
        PipelineSchedule::OneForwardOneBackward => {
            let warm_up = m.min(p - k - 1);
            let forward = |i| step(PipelinePass::Forward, i);
            let backward = |i| step(PipelinePass::Backward, i);
            alternate_passes(m, warm_up, forward, backward)
        }
        PipelineSchedule::Interleaved { chunks } => interleaved_order(p, chunks, m, k),
        PipelineSchedule::ZbH1 => zb_h1_order(p, m, k, delay),
        PipelineSchedule::InV(_) => Vec::new(),
    }
}

/// Returns `warm_up` forward passes, then forward and backward passes alternately, then the remaining backward passes.
fn alternate_passes(
    total: u32,
    warm_up: u32,
    forward: impl Fn(u32) -> OrderStep,
    backward: impl Fn(u32) -> OrderStep,
) -> Vec<OrderStep> {
    let mut order: Vec<OrderStep> = (0..warm_up).map(&forward).collect();
    for i in warm_up..total {
        order.push(forward(i));
        order.push(backward(i - warm_up));
    }
    order.extend((total - warm_up..total).map(backward));
    order
}

/// Returns Megatron-LM's interleaved order (megatron/core/pipeline_parallel/schedules.py): rounds of `p` micro-batches,
/// chunk after chunk. Device `k` warms up with `2 (p - k - 1) + (v - 1) p` passes.
fn interleaved_order(p: u32, chunks: u32, m: u32, k: u32) -> Vec<OrderStep> {
    let total = m * chunks;
    let warm_up = total.min(2 * (p - k - 1) + (chunks - 1) * p);
    let place = |i: u32| {
        let (round, inside) = (i / (p * chunks), i % (p * chunks));
        (inside / p, round * p + inside % p)
    };
    let forward = |i| {
        let (chunk, micro_batch) = place(i);
        OrderStep { pass: PipelinePass::Forward, stage: chunk * p + k, micro_batch }
    };
    let backward = |i| {
        let (chunk, micro_batch) = place(i);
        OrderStep { pass: PipelinePass::Backward, stage: (chunks - 1 - chunk) * p + k, micro_batch }
    };
    alternate_passes(total, warm_up, forward, backward)
}

/// The delays from which ZB-H1 takes the faster one: as many micro-batches as the device's place (Qi et al.), or none.
/// Without a delay a device does what it does under 1F1B and sends its gradients earlier, so the step is never longer
/// than 1F1B's with the same passes. With the first delay alone the step can be longer: if weight gradients take longer
/// than the other passes, this delay leaves them to the end.
pub(crate) const ZB_H1_DELAYS: [u32; 2] = [u32::MAX, 0];

/// Returns ZB-H1's order. Forward passes and input gradients run as under 1F1B. A weight gradient runs once more than
/// min(`k`, `delay`) input gradients have run whose weight gradients have not; the rest run at the end.
fn zb_h1_order(p: u32, m: u32, k: u32, delay: u32) -> Vec<OrderStep> {
    let warm_up = m.min(p - k - 1);
    let step = |pass, micro_batch| OrderStep { pass, stage: k, micro_batch };
    let base = alternate_passes(m, warm_up, |i| step(PipelinePass::Forward, i), |i| step(PipelinePass::Backward, i));
    let mut order = Vec::with_capacity(3 * m as usize);
    let (mut backwards, mut weights) = (0, 0);
    for entry in base {
        order.push(entry);
        if entry.pass == PipelinePass::Backward {
            backwards += 1;
            if backwards - weights > k.min(delay) {
                order.push(step(PipelinePass::Weight, weights));
                weights += 1;
            }
        }
    }
    order.extend((weights..m).map(|i| step(PipelinePass::Weight, i)));
    order
}
