//! How the passes of the stages and the sends between them make a step: the longest of a family of paths through the schedule.
//!
//! # 1F1B with one chunk per stage
//! Let `w_i` be the passes of stage `i` for one micro-batch, forward and backward, and `s_i` the way of an activation to stage `i + 1` with that of
//! its gradient back. Stage `a` of `p` runs `W = p - 1 - a` forward passes ahead, then alternates: `F(W + n)` before `B(n)` before `F(W + n + 1)`.
//! Every operation waits for the one before it on its stage, `F_i(k)` for `F_(i-1)(k)` and its send, `B_i(k)` for `B_(i+1)(k)` and its send:
//! the step is no shorter than any path that follows such waits. The paths here lead
//! - down to stage `a` with the first micro-batch, on to the last stage, and back to `a`: `F_a(0) .. B_a(0)`, which takes
//!   `D_a = sum of w_i and s_i from a on`;
//! - then in laps over the stages `a..=b`: `F_a(W + n) .. F_b(W + n)`, which is `F_b(W_b + n + b - a)` and precedes `B_b(n + b - a)`,
//!   `.. B_a(n + b - a)`, then `F_a(W + n + b - a + 1)`. A lap takes the `w` of its stages and the `s` between them, and goes on by
//!   `k = b - a + 1` micro-batches. Of the `m - 2 - W` micro-batches between the first and the last, `q` laps take `q k`, the remaining `r`
//!   are laps of stage `a` alone;
//! - at last with the last micro-batch to the last stage and back (`D_a` again), and up to the first stage.
//!
//! Besides, stage `a` works for all micro-batches between the first's way down to it and the last's way up. For equal stages without sends
//! the path with `a = 0` is the step itself, `(m + p - 1) w`. Equal stages with sends repeat every `w + 2 c (p - 1) / p`, twice the one way
//! `c` counted in almost every micro-batch, which is what makes 1F1B slow on slow links.
//!
//! # Other schedules
//! Stage `a` works for all `m` micro-batches between the first's way down to it and the last's way up: `m w_a`, and of every stage before it
//! the share of its passes that one micro-batch takes on that way ([`Rhythm::Through`]), with the sends between. Interleaved, that is the
//! stage's first chunk; where weight gradients are put off they are not on the way. Under GPipe, two flow shops, the stages behind `a` count
//! as well.
//!
//! Both are the largest of linear functions of the `w` and the `s`, none with a negative factor, which is what the lower bound needs.

use serde::{Deserialize, Serialize};

/// The schedule as far as the pace needs it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// How micro-batches follow each other.
    pub rhythm: Rhythm,
}

/// How micro-batches follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Rhythm {
    /// 1F1B with one chunk per stage, where neighbours wait for each other in every micro-batch.
    Alternating,
    /// A stage at work without a gap, and around it the way of one micro-batch.
    Through {
        /// The share of the first stage's passes that lies on that way.
        first: f64,
        /// The share of any other stage's before the one at work.
        before: f64,
        /// The share of those behind it.
        behind: f64,
    },
}

impl Rhythm {
    /// The share of a stage's passes that lies on the way of a micro-batch to the stage `at` and back.
    fn share(self, stage: usize, at: usize) -> f64 {
        match self {
            Self::Through { behind, .. } if stage > at => behind,
            Self::Through { first, .. } if stage == 0 => first,
            Self::Through { before, .. } => before,
            Self::Alternating => 0.0,
        }
    }
}

/// A path through the schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Path {
    /// The first micro-batch down to the stage, all of them there, the last one up.
    Busy(usize),
    /// Through the stages from the first on with the first and the last micro-batch, and between them laps over the stages from first to last.
    Laps {
        /// The stage `a`.
        first: usize,
        /// The stage `b`.
        last: usize,
        /// The laps `q`.
        laps: f64,
        /// The laps `r` of the first stage alone.
        alone: f64,
    },
    /// All micro-batches in a stage, and filling and draining through the others.
    Slowest(usize),
}

/// Sums of the passes before each stage, and of the sends before each boundary.
struct Sums {
    passes: Vec<f64>,
    sends: Vec<f64>,
}

impl Sums {
    fn of(list: &[f64]) -> Vec<f64> {
        let mut sum = 0.0;
        let all = list.iter().map(|value| {
            sum += value;
            sum
        });
        std::iter::once(0.0).chain(all).collect()
    }

    /// The passes of a stage.
    fn stage(&self, at: usize) -> f64 {
        self.passes[at + 1] - self.passes[at]
    }

    /// Passes of the stages from `a` to before `b`, and the sends between them.
    fn between(&self, a: usize, b: usize) -> f64 {
        self.passes[b] - self.passes[a] + self.sends[b.saturating_sub(1).max(a)] - self.sends[a]
    }
}

impl Pace {
    /// The paths among `stages` stages.
    pub(super) fn paths(&self, stages: usize) -> Vec<Path> {
        if self.rhythm != Rhythm::Alternating {
            return (0..stages).map(Path::Slowest).collect();
        }
        let mut paths: Vec<Path> = (0..stages).map(Path::Busy).collect();
        for first in 0..stages {
            let ahead = stages - 1 - first;
            let Some(between) = (self.micro_batches as usize).checked_sub(2 + ahead) else { continue };
            let mut lasts = vec![first, (first + 1).min(stages - 1), stages - 1];
            lasts.dedup();
            for last in lasts {
                let length = last - first + 1;
                let (laps, alone) = ((between / length) as f64, (between % length) as f64);
                paths.push(Path::Laps { first, last, laps, alone });
            }
        }
        paths
    }

    /// How often a stage's passes for one micro-batch lie on a path.
    pub(super) fn passes_on(&self, path: Path, stage: usize) -> f64 {
        match path {
            Path::Busy(at) if stage == at => f64::from(self.micro_batches),
            Path::Busy(at) => f64::from(u8::from(stage < at)),
            Path::Laps { first, .. } if stage < first => 1.0,
            Path::Laps { first, last, laps, alone } => {
                2.0 + if stage <= last { laps } else { 0.0 } + if stage == first { alone } else { 0.0 }
            }
            Path::Slowest(at) if stage == at => f64::from(self.micro_batches),
            Path::Slowest(at) => self.rhythm.share(stage, at),
        }
    }

    /// How often the sends between two stages, there and back, lie on a path.
    pub(super) fn sends_on(&self, path: Path, lower: usize) -> f64 {
        match path {
            Path::Busy(at) => f64::from(u8::from(lower < at)),
            Path::Laps { first, .. } if lower < first => 1.0,
            Path::Laps { last, laps, .. } => 2.0 + if lower < last { laps } else { 0.0 },
            // The way round from the last stage to the first is on no path.
            Path::Slowest(at) => match self.rhythm {
                Rhythm::Through { behind, .. } if lower >= at => behind,
                _ => 1.0,
            },
        }
    }

    /// The seconds of the longest path: `passes` of every stage, `sends` between each and the next (the last entry: from the last to the first).
    pub(super) fn longest(&self, passes: &[f64], sends: &[f64]) -> f64 {
        self.measured(passes, sends).map(|(_, seconds)| seconds).fold(0.0, f64::max)
    }

    /// The longest path.
    pub(super) fn longest_path(&self, passes: &[f64], sends: &[f64]) -> Path {
        let longest = self.measured(passes, sends).max_by(|a, b| a.1.total_cmp(&b.1));
        longest.map_or(Path::Slowest(0), |(path, _)| path)
    }

    /// All paths with their seconds.
    fn measured(&self, passes: &[f64], sends: &[f64]) -> impl Iterator<Item = (Path, f64)> {
        let stages = passes.len();
        let sums = Sums { passes: Sums::of(passes), sends: Sums::of(sends) };
        let (m, rhythm) = (f64::from(self.micro_batches), self.rhythm);
        let length = move |path: &Path| match *path {
            Path::Busy(at) => sums.passes[at] + sums.sends[at] + m * sums.stage(at),
            Path::Laps { first, last, laps, alone } => {
                sums.passes[first]
                    + sums.sends[first]
                    + 2.0 * sums.between(first, stages)
                    + laps * sums.between(first, last + 1)
                    + alone * sums.stage(first)
            }
            Path::Slowest(at) => {
                let others = (0..stages).filter(|stage| *stage != at);
                let way: f64 = others.map(|stage| rhythm.share(stage, at) * sums.stage(stage)).sum();
                let behind = rhythm.share(stages, at) * (sums.sends[stages] - sums.sends[at]);
                m * sums.stage(at) + way + sums.sends[at] + behind
            }
        };
        self.paths(stages).into_iter().map(move |path| (path, length(&path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sim::pipeline::{StageWork, one_f_one_b_exact_time};
    use sim::units::Seconds;

    fn alternating(micro_batches: u32) -> Pace {
        Pace { micro_batches, rhythm: Rhythm::Alternating }
    }

    fn exact(passes: &[(f64, f64)], sends: &[f64], m: u32) -> f64 {
        let work: Vec<StageWork> =
            passes.iter().map(|(f, b)| StageWork { forward: Seconds(*f), backward: Seconds(*b) }).collect();
        let sends: Vec<Seconds> = sends.iter().map(|c| Seconds(*c)).collect();
        one_f_one_b_exact_time(&work, &sends, m).0
    }

    proptest! {
        #[test]
        fn no_path_is_longer_than_the_step(
            passes in prop::collection::vec((0.1..5.0_f64, 0.1..5.0_f64), 1..9),
            sends in prop::collection::vec(0.0..3.0_f64, 8),
            m in 1..40_u32,
        ) {
            let stages = passes.len();
            let step = exact(&passes, &sends[..stages - 1], m);
            let both: Vec<f64> = passes.iter().map(|(f, b)| f + b).collect();
            let mut there_and_back: Vec<f64> = sends[..stages - 1].iter().map(|c| 2.0 * c).collect();
            there_and_back.push(0.0);
            let path = alternating(m).longest(&both, &there_and_back);
            prop_assert!(path <= step * (1.0 + 1e-12), "{path} > {step}");
        }

        #[test]
        fn the_longest_path_is_the_largest_of_its_linear_functions(
            passes in prop::collection::vec(0.1..5.0_f64, 1..9),
            sends in prop::collection::vec(0.0..3.0_f64, 8),
            m in 1..40_u32,
            shares in prop::option::of((0.0..1.0_f64, 0.0..1.0_f64, prop::sample::select(vec![0.0, 1.0]))),
        ) {
            let stages = passes.len();
            let through = |(first, before, behind)| Rhythm::Through { first, before, behind };
            let pace = Pace { micro_batches: m, rhythm: shares.map_or(Rhythm::Alternating, through) };
            let mut sends = sends[..stages].to_vec();
            sends[stages - 1] = 0.0;
            let of = |path: &Path| {
                let passes: f64 = passes.iter().enumerate().map(|(i, w)| pace.passes_on(*path, i) * w).sum();
                passes + sends.iter().enumerate().map(|(i, s)| pace.sends_on(*path, i) * s).sum::<f64>()
            };
            let largest = pace.paths(stages).iter().map(of).fold(0.0, f64::max);
            let longest = pace.longest(&passes, &sends);
            prop_assert!((longest / largest - 1.0).abs() < 1e-12, "{longest} {largest}");
        }
    }

    #[test]
    fn equal_stages_are_timed_exactly_and_with_sends_nearly() {
        for (p, m) in [(1_usize, 3), (2, 2), (4, 4), (4, 9), (8, 64), (16, 33)] {
            for c in [0.0, 0.2, 2.0] {
                let step = exact(&vec![(1.0, 2.0); p], &vec![c; p - 1], m);
                let mut sends = vec![2.0 * c; p];
                sends[p - 1] = 0.0;
                let path = alternating(m).longest(&vec![3.0; p], &sends);
                // Laps of unequal length fill what whole laps leave: with 8 stages and 63 micro-batches up to 0.9 % are missing.
                let near = if c == 0.0 || m as usize <= 2 * p { 1e-12 } else { 0.01 };
                assert!(path <= step * (1.0 + 1e-12) && path >= step * (1.0 - near), "p {p} m {m} c {c}: {path} {step}");
            }
        }
    }
}
