//! The order of passes of DualPipeV.
//!
//! DualPipe (DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.2.1) feeds a chain of `2 p` stages from both
//! ends, so every device holds two stages and every stage is held twice. Both directions do the same work at the same
//! time, mirrored. A device and its mirror image, taken as one, make a V over `p` devices with half the micro-batches:
//! DualPipeV (deepseek-ai/DualPipe), whose devices hold no stage twice. So DualPipe over `2 p` stages takes the time
//! and the memory of DualPipeV over `p` with twice the data-parallel copies, except for the send between the two middle
//! stages.
//!
//! The report's bubble, `(p - 1) (F&B + B - 3 W)` for `2 p` stages, is that of [`dual_pipe_v_order`] where forward
//! pass, input gradient and weight gradient take equal time (`tests.rs`).

use super::pass::{PassOrder, PipelinePass, StageTurn};
use std::collections::VecDeque;

/// A device's turn: its pass, the chunk of the pass (0 for the early one, 1 for the late one), and true if it runs as
/// one with the next turn.
type Turn = (PipelinePass, usize, bool);

/// Returns DualPipeV's order for at least two micro-batches per device. In the steady state a forward pass through one
/// chunk and a whole backward pass through the other run as one. Weight gradients are separate only while the pipeline
/// fills and drains.
pub(super) fn dual_pipe_v_order(devices: usize, micro_batches: usize) -> PassOrder {
    let queues = (0..devices).map(|k| VecDeque::from(turns_of_device(devices, micro_batches, k))).collect();
    merge_in_order_of_need(queues, devices)
}

fn turns_of_device(devices: usize, micro_batches: usize, k: usize) -> Vec<Turn> {
    use PipelinePass::{Backward, Forward, Weight, WholeBackward};
    let after = devices - k - 1;
    let single = |pass, chunk| (pass, chunk, false);
    let pair = |forward: usize, backward: usize| [(Forward, forward, true), single(WholeBackward, backward)];
    let mut turns = vec![single(Forward, 0); 2 * after];
    for _ in 0..=k {
        turns.extend([single(Forward, 0), single(Forward, 1)]);
    }
    for _ in 0..after {
        turns.extend([single(Backward, 1), single(Weight, 1), single(Forward, 1)]);
    }
    for round in 0..(micro_batches + k + 1).saturating_sub(2 * devices) {
        // The last device's first backward pass needs the forward pass before it, so the two do not run as one.
        let together = round > 0 || after > 0;
        turns.extend([(Forward, 0, together), single(WholeBackward, 1)]);
        turns.extend(pair(1, 0));
    }
    for _ in 0..after {
        turns.push(single(WholeBackward, 1));
        turns.extend(pair(1, 0));
    }
    // The last backward passes alternate between the chunks. In the second half of them the weight gradients are split
    // off and wait.
    let mut waiting = VecDeque::new();
    for at in 0..2 * (k + 1) {
        let apart = at > k;
        turns.push(single(if apart { Backward } else { WholeBackward }, 1 - at % 2));
        waiting.extend(apart.then_some(1 - at % 2));
    }
    for _ in 0..after {
        turns.extend(waiting.pop_front().map(|chunk| single(Weight, chunk)));
        turns.push(single(Backward, 0));
        waiting.push_back(0);
    }
    turns.extend(waiting.into_iter().map(|chunk| single(Weight, chunk)));
    turns
}

/// Merges the devices' turns into one order, in which each pass comes after those that it needs.
fn merge_in_order_of_need(mut queues: Vec<VecDeque<Turn>>, devices: usize) -> PassOrder {
    let last = 2 * devices - 1;
    let mut done = [vec![0_usize; 2 * devices], vec![0_usize; 2 * devices]];
    let mut order = Vec::new();
    loop {
        let before = order.len();
        for (k, queue) in queues.iter_mut().enumerate() {
            let stage_of = |chunk: usize| if chunk == 0 { k } else { last - k };
            let ready = |(pass, chunk, _): &Turn, done: &[Vec<usize>; 2]| {
                let (s, [forward, backward]) = (stage_of(*chunk), done);
                match pass {
                    PipelinePass::Forward => s == 0 || forward[s - 1] > forward[s],
                    PipelinePass::Weight => true,
                    _ if s == last => forward[s] > backward[s],
                    _ => backward[s + 1] > backward[s],
                }
            };
            while let Some(first) = queue.front() {
                let taken = 1 + usize::from(first.2);
                if !queue.iter().take(taken).all(|turn| ready(turn, &done)) {
                    break;
                }
                for (pass, chunk, with_next) in queue.drain(..taken) {
                    let stage = stage_of(chunk);
                    match pass {
                        PipelinePass::Forward => done[0][stage] += 1,
                        PipelinePass::Weight => {}
                        _ => done[1][stage] += 1,
                    }
                    order.push(StageTurn { stage: stage as u32, pass, with_next });
                }
            }
        }
        if order.len() == before {
            return order;
        }
    }
}
