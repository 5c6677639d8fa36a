//! Pipelines whose virtual stages are equal except for the first and the last, as in a model of equal layers. Their
//! times need no loop over stages or micro-batches.
//!
//! # Derivation
//! A schedule fixes the order of passes: each runs when its inputs and the previous pass on its device have ended. The
//! step's time is the heaviest path through these events, from the first forward pass of the first stage to its last
//! backward pass. Every formula here is the weight of paths that exist whatever the durations, so it never exceeds the
//! event simulation. Under the stated conditions no path is heavier, and it *is* the simulation's time
//! ([`PassesTime::Exact`]). `ends_tests.rs` checks both against the simulation, over random pipelines.
//!
//! **1F1B.** Count rounds as in [`super::one_f_one_b_exact_time`]: in round `t` stage `k` runs backward `t - p + k`,
//! then forward `t`. A path moves up a stage within a round (`c` for the send), down a stage into the next round, and
//! from a stage's forward into its own backward of the next round. The path that climbs to the last stage at once and
//! descends at the end may spend the `m - 1` rounds between in closed walks from the last stage.
//!
//! Each walk consists of *loops*: a loop up and down `n` neighbouring stages takes `n` rounds and weighs their `f + b`
//! and `2 (n - 1) c`. With `g = f + b + 2 c` of an inner stage, a loop of `n` stages weighs `n g` plus a bonus. Let `d`
//! be the extra time of an end over an inner stage. The bonus is:
//! - `-2 c` for inner stages only (`n <= p - 2`),
//! - `d - 2 c` with one end (`n <= p - 1`),
//! - `d_first + d_last - 2 c` with both ends (`n = p`).
//!
//! The number of loops of each kind must fill the rounds with the largest sum of bonuses, and the closed walk must be
//! connected. This is a knapsack of four kinds, whose optimum lies at one of a few counts.
//!
//! A path may instead wait in the first stages' warm-up. It then gains one forward pass per round where a loop gains a
//! whole stage. It never gains more than the loops under two conditions: no earlier pass is longer than a later stage
//! with its sends, and none is longer than the last stage. By symmetry the same holds at the end. In addition, the
//! first stage must not be slower than an inner one while the last is faster.
//!
//! **Interleaved 1F1B** with `v` chunks. The path is the first micro-batch's way through all chunks, then the last
//! device's passes up to the last micro-batch's last chunk, then that micro-batch's way back. On its way up, one trip
//! round the devices may be replaced by the first device's `p` passes through its first chunk. It is exact under two
//! conditions. A send takes at most a pass of an inner chunk. The first chunk takes at least as long as an inner one
//! and at most as long as the last, forward and backward.
//!
//! **GPipe** is two flow shops, always exact. **ZB-H1** and the schedules in a V only have lower bounds.
//!
//! **Unequal sends.** Every path above crosses each pair of neighbouring devices at least once on its way up. Paths of
//! schedules with bubbles also cross each pair on their way back. The extra time of the slower pairs is added at these
//! crossings. The walks between use the fastest pair's time. GPipe has no such walks and stays exact.

use super::PipelineSchedule;
use super::order::ZB_H1_DELAYS;
use crate::units::Seconds;

/// The work of one micro-batch on a virtual stage.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ChunkWork {
    /// Forward pass.
    pub forward: Seconds,
    /// Whole backward pass: recomputation, both gradients.
    pub backward: Seconds,
    /// The weight gradient's part of `backward`; zero-bubble schedules delay it.
    pub weight: Seconds,
}

impl ChunkWork {
    fn total_seconds(&self) -> f64 {
        self.forward.0 + self.backward.0
    }

    fn input_seconds(&self) -> f64 {
        self.backward.0 - self.weight.0
    }
}

/// A pipeline whose virtual stages are equal except for the first and the last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnequalEndsPipeline {
    /// The first virtual stage.
    pub first: ChunkWork,
    /// Each stage between.
    pub inner: ChunkWork,
    /// The last virtual stage.
    pub last: ChunkWork,
    /// Send time between neighbouring devices: the least of all pairs.
    pub send: Seconds,
    /// The sum of the extra send times of all pairs of neighbouring devices with slower links. Zero if all pairs take
    /// `send`.
    pub farther: Seconds,
    /// Devices, at least 2.
    pub devices: u32,
    /// Micro-batches of a step, at least 1; under [`PipelineSchedule::Interleaved`] a multiple of the devices.
    pub micro_batches: u32,
}

/// The time of all passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PassesTime {
    /// The event simulation's time.
    Exact(Seconds),
    /// A lower bound on the event simulation's time.
    AtLeast(Seconds),
}

impl PassesTime {
    /// The time, or the bound.
    #[must_use]
    pub fn seconds(self) -> Seconds {
        match self {
            Self::Exact(time) | Self::AtLeast(time) => time,
        }
    }

    fn exact_if(exact: bool, seconds: f64) -> Self {
        if exact { Self::Exact(Seconds(seconds)) } else { Self::AtLeast(Seconds(seconds)) }
    }
}

/// Relative rounding tolerance for comparing sums.
const ROUNDING: f64 = 1e-12;

impl UnequalEndsPipeline {
    /// Returns the time of all passes under a schedule. The module documentation states the conditions under which it
    /// is exact.
    #[must_use]
    pub fn time_of_passes(&self, schedule: PipelineSchedule) -> PassesTime {
        match schedule {
            PipelineSchedule::GPipe => self.time_of_gpipe(),
            PipelineSchedule::OneForwardOneBackward => self.time_of_one_f_one_b(),
            PipelineSchedule::Interleaved { chunks } => self.time_of_interleaved(chunks),
            PipelineSchedule::ZbH1 => self.time_of_zb_h1(),
            PipelineSchedule::InV(_) => self.time_in_v(),
        }
    }

    /// True if all sends take equal time.
    fn has_equal_sends(&self) -> bool {
        self.farther == Seconds::ZERO
    }

    /// Returns the time of one micro-batch through `stages` virtual stages, in both directions, sends included.
    fn time_of_whole_way(&self, stages: f64) -> f64 {
        self.first.total_seconds()
            + self.last.total_seconds()
            + self.inner.total_seconds() * (stages - 2.0)
            + 2.0 * self.send.0 * (stages - 1.0)
    }

    fn time_of_gpipe(&self) -> PassesTime {
        let largest = |of: fn(&ChunkWork) -> f64| {
            let ends = of(&self.first).max(of(&self.last));
            if self.devices > 2 { ends.max(of(&self.inner)) } else { ends }
        };
        let round = largest(|c| c.forward.0) + largest(|c| c.backward.0);
        let more = f64::from(self.micro_batches.saturating_sub(1));
        PassesTime::exact_if(
            true,
            self.time_of_whole_way(f64::from(self.devices)) + 2.0 * self.farther.0 + round * more,
        )
    }

    fn time_of_one_f_one_b(&self) -> PassesTime {
        let (first, inner, last) = (self.first.total_seconds(), self.inner.total_seconds(), self.last.total_seconds());
        let loops = LoopChoice {
            stages: i64::from(self.devices),
            rounds: i64::from(self.micro_batches.saturating_sub(1)),
            first: first - inner,
            last: last - inner,
            turn: 2.0 * self.send.0,
        };
        let rounds = (inner + loops.turn) * loops.rounds as f64;
        let longest = |c: &ChunkWork| c.forward.0.max(c.backward.0);
        let mut early = longest(&self.first);
        let mut exact = self.has_equal_sends() && early <= last * (1.0 + ROUNDING);
        if self.devices > 2 {
            exact &= early <= inner + loops.turn;
            early = early.max(longest(&self.inner));
            exact &= longest(&self.inner) <= last * (1.0 + ROUNDING);
        }
        exact &= early <= last + loops.turn && (loops.first <= 0.0 || loops.last >= 0.0);
        PassesTime::exact_if(
            exact,
            self.time_of_whole_way(f64::from(self.devices)) + 2.0 * self.farther.0 + rounds + loops.largest_bonus(),
        )
    }

    fn time_of_interleaved(&self, chunks: u32) -> PassesTime {
        let (p, v, m) = (f64::from(self.devices), f64::from(chunks), f64::from(self.micro_batches));
        let (inner, send) = (self.inner, self.send.0);
        // The extra time of an end over an inner chunk, forward and backward.
        let longer = |c: &ChunkWork| (c.forward.0 - inner.forward.0, c.backward.0 - inner.backward.0);
        let (first, last) = (longer(&self.first), longer(&self.last));
        // One trip round the devices, or the first round of micro-batches through the first chunk.
        let climb = |more: f64| (more + (v - 1.0) * p * send).max(p * more + (v - 2.0) * p * send);
        let passes = m * v - 1.0 - (v - 1.0) * p;
        let time = inner.total_seconds() * (p * v + passes)
            + (last.0 + last.1) * m
            + 2.0 * (p - 1.0) * send
            + climb(first.0)
            + climb(first.1)
            + 2.0 * self.farther.0;
        let between = |a: f64, b: f64, pass: f64| a >= -ROUNDING * pass && a <= b + ROUNDING * pass;
        let exact = self.has_equal_sends()
            && send <= inner.forward.0.min(inner.backward.0)
            && between(first.0, last.0, inner.forward.0)
            && between(first.1, last.1, inner.backward.0);
        PassesTime::exact_if(exact, time)
    }

    /// Returns the time of one micro-batch's forward passes on the way to the last device.
    fn time_of_way_up(&self) -> f64 {
        let others = f64::from(self.devices) - 1.0;
        self.first.forward.0 + self.inner.forward.0 * (others - 1.0) + self.send.0 * others + self.farther.0
    }

    /// Returns a lower bound: the smallest of the bounds of the orders from which ZB-H1 takes the fastest.
    fn time_of_zb_h1(&self) -> PassesTime {
        let bounds = ZB_H1_DELAYS.map(|delay| self.least_time_under_delay(f64::from(delay)));
        PassesTime::exact_if(false, bounds.into_iter().fold(f64::INFINITY, f64::min))
    }

    /// Returns a lower bound for ZB-H1 with weight gradients behind at most `delay` later input gradients. It is the
    /// last device's work up to its last input gradient, followed by its own weight gradients, or by the way back to
    /// another device and that device's delayed weight gradients.
    fn least_time_under_delay(&self, delay: f64) -> f64 {
        let (p, m) = (f64::from(self.devices), f64::from(self.micro_batches));
        let way = self.time_of_way_up();
        let before = (m - 1.0 - delay.min(p - 1.0)).max(0.0);
        let last = way + (self.last.forward.0 + self.last.input_seconds()) * m + self.last.weight.0 * before;
        let left = |device: f64| (device.min(delay) + 1.0).min(m);
        let at = |device: f64| {
            let back = (self.send.0 + self.inner.input_seconds()) * (p - 1.0 - device);
            last + back + self.inner.weight.0 * left(device)
        };
        let mut time = way + self.last.total_seconds() * m;
        time = time.max(
            at(1.0) - self.inner.weight.0 * left(1.0) + self.send.0 + self.first.input_seconds() + self.first.weight.0,
        );
        if self.devices > 2 {
            time = time.max(at(1.0)).max(at(p - 2.0)).max(at((m - 1.0).clamp(1.0, p - 2.0)));
        }
        time
    }

    /// Returns a lower bound: the largest of the first device's work, another device's work after the forward passes to
    /// it, and the way of one micro-batch.
    fn time_in_v(&self) -> PassesTime {
        let (p, m) = (f64::from(self.devices), f64::from(self.micro_batches));
        let ends = (self.first.total_seconds() + self.last.total_seconds()) * m;
        let weights = self.first.weight.0 + self.last.weight.0 + self.inner.weight.0 * (2.0 * p - 2.0);
        // Two of the sends would be between chunks of one device.
        let one = self.time_of_whole_way(2.0 * p) - 2.0 * self.send.0 + 4.0 * self.farther.0 - weights;
        PassesTime::exact_if(false, ends.max(self.time_of_way_up() + 2.0 * self.inner.total_seconds() * m).max(one))
    }
}

/// The choice of loops that fills the rounds of 1F1B between the way up and the way down.
struct LoopChoice {
    /// Stages, at least 2.
    stages: i64,
    /// Rounds to fill.
    rounds: i64,
    /// Extra time of the first stage, compared with an inner stage.
    first: f64,
    /// Extra time of the last stage, compared with an inner stage.
    last: f64,
    /// Cost of a separate loop: a send in both directions.
    turn: f64,
}

/// Numbers of loops by the ends that they hold.
#[derive(Clone, Copy)]
struct LoopKinds {
    first: i64,
    last: i64,
    inner: i64,
    both: i64,
}

impl LoopChoice {
    /// Returns the bonus of a choice; minus infinity if the choice does not fill the rounds or is not connected.
    fn bonus_of_kinds(&self, k: LoopKinds) -> f64 {
        let (p, none) = (self.stages, f64::NEG_INFINITY);
        if k.first.min(k.last).min(k.inner).min(k.both) < 0 || (p == 2 && k.inner > 0) {
            return none;
        }
        let mut least = k.both * p + k.first + k.last + k.inner;
        let most = k.both * p + (k.first + k.last) * (p - 1) + k.inner * (p - 2);
        if k.both == 0 {
            if k.last == 0 {
                return none;
            }
            // Connected loops share a stage. A chain of n loops from the first stage to the last takes at least p + n -
            // 1 rounds, because it passes its joints twice. Without loops at the first stage, inner loops need a last
            // loop of at least two stages.
            least += if k.first > 0 { p - 1 } else { i64::from(k.inner > 0) };
        }
        if !(least..=most).contains(&self.rounds) {
            return none;
        }
        let ends = (k.first + k.both) as f64 * self.first + (k.last + k.both) as f64 * self.last;
        ends - (k.first + k.last + k.inner + k.both) as f64 * self.turn
    }

    /// The largest bonus.
    fn largest_bonus(&self) -> f64 {
        let (first, last) = (self.first - self.turn, self.last - self.turn);
        if self.rounds == 0 {
            return 0.0;
        }
        if last >= 0.0 && self.first <= 0.0 {
            // Every round at the last stage: no kind of loop has a larger bonus, and none is shorter.
            return last * self.rounds as f64;
        }
        let mut best = f64::NEG_INFINITY;
        if first.max(last) >= 0.0 {
            best = self.bonus_of_short_loops();
        }
        if last < 0.0 { best.max(self.bonus_of_long_loops()) } else { best }
    }

    /// Returns the bonus of loops of one round at the better end. With them come as many full loops as pay, or one full
    /// loop to reach that end.
    fn bonus_of_short_loops(&self) -> f64 {
        let (p, n) = (self.stages, self.rounds / self.stages);
        let mut best = f64::NEG_INFINITY;
        for both in [0, 1.min(n), n] {
            let rest = self.rounds - both * p;
            best = best.max(self.bonus_of_kinds(LoopKinds { first: 0, last: rest, inner: 0, both }));
            best = best.max(self.bonus_of_kinds(LoopKinds { first: rest, last: 0, inner: 0, both }));
        }
        best.max(self.bonus_of_kinds(LoopKinds { first: self.rounds - p, last: 1, inner: 0, both: 0 }))
    }

    /// Returns the bonus of as few loops as fill the rounds. The sum of bonuses is piecewise linear in their number,
    /// with corners at which loops have their kind's maximum length.
    fn bonus_of_long_loops(&self) -> f64 {
        let (p, rounds) = (self.stages, self.rounds);
        let mut best = f64::NEG_INFINITY;
        for length in [p, p - 1, p - 2] {
            if length < 1 {
                continue;
            }
            for count in rounds / length - 1..=rounds / length + 2 {
                if count > 0 && count <= rounds {
                    best = best.max(self.bonus_of_count(count));
                }
            }
        }
        best.max(self.bonus_of_count((rounds - 1).max(1)))
    }

    /// Returns the largest bonus of `count` loops. They include ends if that pays, and if the rounds cannot be filled
    /// otherwise.
    fn bonus_of_count(&self, count: i64) -> f64 {
        let missing = (self.rounds - count * (self.stages - 2)).max(0);
        let most = (self.rounds - count) / (self.stages - 1);
        let mut best = f64::NEG_INFINITY;
        for both in [0, 1, most - 1, most, (missing - count).max(0)] {
            let one = count - both;
            let need = (missing - 2 * both).max(0);
            if both < 0 || need > one {
                continue;
            }
            for (ends, others) in [(one, 0), (need, one - need)] {
                let kinds = |first, last, inner| self.bonus_of_kinds(LoopKinds { first, last, inner, both });
                best = best.max(kinds(ends, 0, others)).max(kinds(0, ends, others)).max(kinds(ends - 1, 1, others));
                // The closed walk starts at the last stage.
                best = best.max(kinds(ends, 1, others - 1));
            }
        }
        best
    }
}

#[cfg(test)]
#[path = "ends_tests.rs"]
mod tests;
