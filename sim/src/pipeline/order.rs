//! The order of passes on every device.

use super::{Pipeline, Schedule};

/// A pass of one micro-batch through one virtual stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Forward.
    Forward,
    /// Backward: all of it, or the input gradient where the schedule splits it.
    Backward,
    /// The weight gradient, where the schedule splits it off.
    Weight,
}

/// One entry of a device's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub pass: Pass,
    pub stage: u32,
    pub micro_batch: u32,
}

/// The order of device `k`; `None` for ZB-V, which has several to choose from.
pub(crate) fn static_order(pipeline: &Pipeline, k: u32) -> Option<Vec<Step>> {
    let (p, m) = (pipeline.devices(), pipeline.micro_batches);
    let step = |pass, micro_batch| Step { pass, stage: k, micro_batch };
    match pipeline.schedule {
        Schedule::GPipe => Some((0..m).map(|i| step(Pass::Forward, i)).chain((0..m).map(|i| step(Pass::Backward, i))).collect()),
        Schedule::OneForwardOneBackward => {
            let warm_up = m.min(p - k - 1);
            let forward = |i| step(Pass::Forward, i);
            let backward = |i| step(Pass::Backward, i);
            Some(alternate(m, warm_up, forward, backward))
        }
        Schedule::Interleaved { chunks } => Some(interleaved(p, chunks, m, k)),
        Schedule::ZbH1 => Some(zb_h1(p, m, k)),
        Schedule::ZbV => None,
    }
}

/// `warm_up` forwards, then forward and backward in turn, then the backwards that are left.
fn alternate(total: u32, warm_up: u32, forward: impl Fn(u32) -> Step, backward: impl Fn(u32) -> Step) -> Vec<Step> {
    let mut order: Vec<Step> = (0..warm_up).map(&forward).collect();
    for i in warm_up..total {
        order.push(forward(i));
        order.push(backward(i - warm_up));
    }
    order.extend((total - warm_up..total).map(backward));
    order
}

/// Megatron-LM's interleaved order (megatron/core/pipeline_parallel/schedules.py): rounds of `p` micro-batches, chunk after
/// chunk; device `k` warms up with `2 (p - k - 1) + (v - 1) p` passes.
fn interleaved(p: u32, chunks: u32, m: u32, k: u32) -> Vec<Step> {
    let total = m * chunks;
    let warm_up = total.min(2 * (p - k - 1) + (chunks - 1) * p);
    let place = |i: u32| {
        let (round, inside) = (i / (p * chunks), i % (p * chunks));
        (inside / p, round * p + inside % p)
    };
    let forward = |i| {
        let (chunk, micro_batch) = place(i);
        Step { pass: Pass::Forward, stage: chunk * p + k, micro_batch }
    };
    let backward = |i| {
        let (chunk, micro_batch) = place(i);
        Step { pass: Pass::Backward, stage: (chunks - 1 - chunk) * p + k, micro_batch }
    };
    alternate(total, warm_up, forward, backward)
}

/// ZB-H1: the order of 1F1B for forward and input gradient; the weight gradient of a micro-batch comes when more than `k`
/// input gradients are ahead of it, the rest at the end.
fn zb_h1(p: u32, m: u32, k: u32) -> Vec<Step> {
    let warm_up = m.min(p - k - 1);
    let step = |pass, micro_batch| Step { pass, stage: k, micro_batch };
    let base = alternate(m, warm_up, |i| step(Pass::Forward, i), |i| step(Pass::Backward, i));
    let mut order = Vec::with_capacity(3 * m as usize);
    let (mut backwards, mut weights) = (0, 0);
    for entry in base {
        order.push(entry);
        if entry.pass == Pass::Backward {
            backwards += 1;
            if backwards - weights > k {
                order.push(step(Pass::Weight, weights));
                weights += 1;
            }
        }
    }
    order.extend((weights..m).map(|i| step(Pass::Weight, i)));
    order
}
