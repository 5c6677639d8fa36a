//! Times and depths in closed form. The documentation of the pipeline module states which are exact and which are
//! bounds; `tests.rs` checks it.

use super::{GradientReduction, Pipeline, PipelineSchedule, VSchedule};
use crate::units::Seconds;
use serde::{Deserialize, Serialize};

/// The work of one micro-batch on one stage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StageWork {
    /// Forward pass.
    pub forward: Seconds,
    /// Whole backward pass: recomputation, both gradients.
    pub backward: Seconds,
}

impl StageWork {
    /// Returns the time of the forward and the backward pass together.
    #[must_use]
    pub fn total_seconds(&self) -> Seconds {
        self.forward + self.backward
    }
}

/// Returns the largest number of micro-batches whose activations device `k` of `p` holds. Under
/// [`PipelineSchedule::Interleaved`] it counts passes through one chunk. Under [`PipelineSchedule::ZbH1`] a micro-batch
/// counts until its *weight* gradient is done; input gradients are done as early as under 1F1B. In a V it counts passes
/// through one of the two chunks, up to the limit of the orders ([`v_in_flight`]).
#[must_use]
pub fn passes_in_flight(schedule: PipelineSchedule, p: u32, k: u32, m: u32) -> u32 {
    match schedule {
        PipelineSchedule::GPipe => m,
        PipelineSchedule::OneForwardOneBackward => m.min(p.saturating_sub(k)),
        PipelineSchedule::Interleaved { chunks } => {
            let warm_up = 2 * p.saturating_sub(k + 1) + chunks.saturating_sub(1) * p;
            m.saturating_mul(chunks).min(warm_up + 1)
        }
        PipelineSchedule::ZbH1 => m.min(p),
        PipelineSchedule::InV(schedule) => m.saturating_mul(2).min(schedule.most_passes(p)),
    }
}

/// Returns the most passes in flight of a schedule in a V on any of `p` devices, as two `[early, late]` counts through
/// its two chunks. Whatever a pass through either chunk keeps, a device's memory never exceeds that of the larger of
/// these two corners.
///
/// At most `l` passes are in flight ([`VSchedule::most_passes`]), and the last place belongs to the later chunk.
/// There are never more through the later chunk than through the earlier one, because forward passes reach it later and
/// its weight gradients come first (`zb_v.rs` tests both for all orders). With `m` micro-batches `(early, late)`
/// therefore lies in `late <= early <= min(m, l - 1)`, `early + late <= l`, and a weighted sum is largest in a corner.
#[must_use]
pub fn v_in_flight(schedule: VSchedule, p: u32, m: u32) -> [[u32; 2]; 2] {
    let limit = schedule.most_passes(p);
    let (even, most) = (m.min(limit / 2), m.min(limit.saturating_sub(1)));
    [[m.min(limit - limit / 2), even], [most, most.min(limit - most)]]
}

/// Returns the steady time per micro-batch of 1F1B. It is the largest value, over intervals of stages, of the work
/// inside plus the sends inside in both directions, divided by the interval's length. Without sends it is the slowest
/// stage. `stages` are forward plus backward times, `sends` the times between them. Exact in the limit of many
/// micro-batches.
#[must_use]
pub fn one_f_one_b_period(stages: &[Seconds], sends: &[Seconds]) -> Seconds {
    let slowest = stages.iter().fold(Seconds::ZERO, |a, &b| a.max(b));
    if sends.iter().all(|c| c.0 == 0.0) {
        return slowest;
    }
    let mut period = slowest;
    for first in 0..stages.len() {
        let mut sum = Seconds::ZERO;
        for (n, stage) in stages[first..].iter().enumerate() {
            if n > 0 {
                sum += sends.get(first + n - 1).copied().unwrap_or_default() * 2.0;
            }
            sum += *stage;
            period = period.max(sum / (n + 1) as f64);
        }
    }
    period
}

/// Returns `sum s + 2 sum c + (m - 1) * period`, the planner's objective for 1F1B. It is exact for equal stages without
/// sends, and an upper bound if backward over forward is the same on all stages. Otherwise it is no bound (see the
/// module documentation).
#[must_use]
pub fn one_f_one_b_time(stages: &[Seconds], sends: &[Seconds], m: u32) -> Seconds {
    let fill: Seconds = stages.iter().copied().sum();
    let sent: Seconds = sends.iter().copied().sum();
    fill + sent * 2.0 + one_f_one_b_period(stages, sends) * f64::from(m.saturating_sub(1))
}

/// Returns an upper bound on the simulated time of 1F1B for any stages: [`one_f_one_b_time`] with all stages as slow as
/// the slowest.
#[must_use]
pub fn one_f_one_b_upper_bound(stages: &[Seconds], sends: &[Seconds], m: u32) -> Seconds {
    let slowest = stages.iter().fold(Seconds::ZERO, |a, &b| a.max(b));
    one_f_one_b_time(&vec![slowest; stages.len()], sends, m)
}

/// Returns a lower bound on the simulated time of 1F1B. For each stage it adds the way to the stage and back, and the
/// stage's own work. It also adds the waits for the round trip through the later stages, before the stage's first and
/// last backward pass, less the passes with which the stage fills such a wait.
#[must_use]
pub fn one_f_one_b_lower_bound(stages: &[StageWork], sends: &[Seconds], m: u32) -> Seconds {
    let p = stages.len();
    let m_f = f64::from(m);
    let send = |k: usize| sends.get(k).copied().unwrap_or_default() * 2.0;
    let whole = |range: &[StageWork]| range.iter().map(StageWork::total_seconds).sum::<Seconds>();
    let mut best = Seconds::ZERO;
    let mut before = Seconds::ZERO;
    let mut after = whole(stages) + (0..p.saturating_sub(1)).map(send).sum::<Seconds>();
    for (k, stage) in stages.iter().enumerate() {
        after = (after - stage.total_seconds()).max(Seconds::ZERO);
        let warm_up = (p - k - 1) as f64;
        let own = stage.total_seconds() * m_f;
        let wait = |pass: Seconds| (after - pass * warm_up).max(Seconds::ZERO);
        let (first, last) = (wait(stage.forward), wait(stage.backward));
        let mut bound = own.max(stage.total_seconds() + after + stage.forward.max(stage.backward) * (m_f - 1.0));
        if m_f > warm_up {
            bound = bound.max(own + first.max(last));
        }
        if m_f > warm_up + 1.0 {
            bound = bound.max(own + first + last);
        }
        best = best.max(before + bound);
        before += stage.total_seconds();
        if k + 1 < p {
            before += send(k);
            after = (after - send(k)).max(Seconds::ZERO);
        }
    }
    best
}

/// Returns the exact time of 1F1B's passes for any stages and sends, by a recurrence. It equals the event simulation's.
///
/// In round `t` stage `k` runs the backward pass of micro-batch `t - p + k`, then the forward pass of micro-batch `t`.
/// Each needs only the stage's own last end and the neighbour's pass of the same micro-batch (forward: of this round;
/// backward: of the previous one).
#[must_use]
pub fn one_f_one_b_exact_time(stages: &[StageWork], sends: &[Seconds], m: u32) -> Seconds {
    let (p, m) = (stages.len(), m as usize);
    let send = |k: usize| sends.get(k).map_or(0.0, |c| c.0);
    // Per stage: the time at which it is free, and the end of its latest backward pass.
    let mut free = vec![0.0_f64; p];
    let mut backward_end = vec![0.0_f64; p];
    for t in 0..m + p {
        let first = p.saturating_sub(t);
        let last = (m + p).saturating_sub(t).min(p);
        for k in first..last {
            let arrival = if k + 1 < p { backward_end[k + 1] + send(k) } else { free[k] };
            free[k] = free[k].max(arrival) + stages[k].backward.0;
            // The previous stage has already read the previous round's value, because k ascends.
            backward_end[k] = free[k];
        }
        if t < m {
            let mut arrival = 0.0_f64;
            for (k, stage) in stages.iter().enumerate() {
                free[k] = free[k].max(arrival) + stage.forward.0;
                arrival = free[k] + send(k);
            }
        }
    }
    Seconds(free.iter().copied().fold(0.0, f64::max))
}

/// Returns the exact time of GPipe for any stages and sends: two flow shops,
/// `sum f + sum b + 2 sum c + (m - 1) (max f + max b)`.
#[must_use]
pub fn gpipe_time(stages: &[StageWork], sends: &[Seconds], m: u32) -> Seconds {
    let sum: Seconds = stages.iter().map(StageWork::total_seconds).sum();
    let sent: Seconds = sends.iter().copied().sum();
    let slowest = |of: fn(&StageWork) -> Seconds| stages.iter().map(of).fold(Seconds::ZERO, Seconds::max);
    let more = f64::from(m.saturating_sub(1));
    sum + sent * 2.0 + (slowest(|s| s.forward) + slowest(|s| s.backward)) * more
}

/// Returns the exact time of interleaved 1F1B with equal chunks and no sends: `(m v + p - 1) * s`, with `s` the time of
/// one chunk (Narayanan et al., SC 2021: the bubble shrinks by the number of chunks).
#[must_use]
pub fn interleaved_time(chunk: Seconds, devices: u32, chunks: u32, m: u32) -> Seconds {
    chunk * (f64::from(m) * f64::from(chunks) + f64::from(devices) - 1.0)
}

/// Returns the time of ZB-H1 with equal stages, no sends and `m >= p`: `m (f + b + w) + (p - 1) (f + b - w)` (Qi et
/// al., ICLR 2024, table 2). Exact for `f = b = w`; `b` is the input gradient, `w` the weight gradient.
#[must_use]
pub fn zb_h1_time(f: Seconds, b: Seconds, w: Seconds, devices: u32, m: u32) -> Seconds {
    (f + b + w) * f64::from(m) + (f + b - w) * (f64::from(devices) - 1.0)
}

impl Pipeline {
    /// Returns a lower bound on the simulated time for every schedule and any stages. It is the larger of two paths.
    /// One is one micro-batch's way through all stages. The other is the busiest device's own work after the shortest
    /// way to its first pass, and before the shortest way back from its last pass or its reduction and optimizer. Needs
    /// no simulation; assumes that [`Pipeline::check_description`] passes.
    #[must_use]
    pub fn lower_bound(&self) -> Seconds {
        let split = self.schedule.splits_backward();
        let count = f64::from(self.micro_batches);
        let mut devices = vec![DeviceWork::default(); self.device_count() as usize];
        let (mut head, mut tail) = (Seconds::ZERO, Seconds::ZERO);
        for (i, stage) in self.stages.iter().enumerate() {
            let back =
                stage.recompute + stage.backward_input + if split { Seconds::ZERO } else { stage.backward_weight };
            if let Some(device) = devices.get_mut(self.device_of(i)) {
                if device.stages == 0 {
                    (device.head, device.tail) = (head, tail);
                }
                device.stages += 1;
                device.work += (stage.forward + stage.backward_seconds()) * count;
                device.reduction += stage.reduction;
                device.optimizer += stage.optimizer;
            }
            let apart = i + 1 < self.stages.len() && self.device_of(i) != self.device_of(i + 1);
            let send = if apart { self.sends.get(i).copied().unwrap_or_default() } else { Seconds::ZERO };
            head += stage.forward + send;
            tail += back + send;
        }
        let after = self.reduction == GradientReduction::AfterBackward;
        devices.iter().fold(head + tail, |bound, d| {
            let once = d.optimizer + if after { d.reduction } else { Seconds::ZERO };
            // The last pass of a device may be a weight gradient, which no other pass waits for.
            let tail = if split { Seconds::ZERO } else { d.tail };
            bound.max(d.head + d.work + tail.max(once))
        })
    }
}

/// Sums per device for [`Pipeline::lower_bound`].
#[derive(Clone, Copy, Default)]
struct DeviceWork {
    stages: u32,
    head: Seconds,
    tail: Seconds,
    work: Seconds,
    reduction: Seconds,
    optimizer: Seconds,
}
