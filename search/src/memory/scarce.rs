//! Mixes under scarce host memory or storage: an integer program over the counts of the policies, with one row for the
//! layers and one for each memory.
//!
//! It is needed if the fastest mix offloads more than the host's memory or the storage holds.

use super::mix_point::{MixPoint, StageMix};
use microlp::{ComparisonOp, OptimizationDirection, Problem, SolveOptions, Variable};

/// Node limit of the branch and bound; the rest is reported as the gap.
const NODES: u64 = 2_000;

/// A mix within this fraction of the relaxation is accepted. The distance is reported as the gap.
const ENOUGH: f64 = 1e-4;

/// Allowance for errors in the solver's sums, as a fraction of a memory.
const SLACK: f64 = 1e-6;

/// The program for the counts of the allowed policies. `room` limits the bytes of one micro-batch on the device, on the
/// host and in storage.
#[derive(Debug)]
pub(super) struct PolicyMixProgram<'a> {
    points: &'a [MixPoint],
    /// The policies that a mix may use.
    allowed: Vec<usize>,
    layers: u64,
    room: [f64; 3],
}

/// The answer of the integer program.
#[derive(Debug)]
pub(super) struct SolvedMix {
    /// The best mix found.
    pub mix: Option<StageMix>,
    /// Lower bound on the seconds of any mix.
    pub bound: f64,
}

impl<'a> PolicyMixProgram<'a> {
    /// Keeps a policy if one layer fits under it, and no other policy is at least as good in time and all three
    /// memories.
    pub fn new(points: &'a [MixPoint], allowed: &[usize], layers: u64, room: [f64; 3]) -> Self {
        let fits = |at: &usize| bytes_of_policy(&points[*at]).iter().zip(room).all(|(bytes, room)| *bytes <= room);
        let mut sorted: Vec<usize> = allowed.iter().copied().filter(fits).collect();
        sorted.sort_by(|a, b| points[*a].time.total_cmp(&points[*b].time).then(a.cmp(b)));
        let mut kept: Vec<usize> = Vec::with_capacity(sorted.len());
        for at in sorted {
            let better = |other: &usize| {
                bytes_of_policy(&points[*other]).iter().zip(bytes_of_policy(&points[at])).all(|(a, b)| *a <= b)
            };
            if !kept.iter().any(better) {
                kept.push(at);
            }
        }
        Self { points, allowed: kept, layers, room }
    }

    /// Builds the program. The row of each memory is in fractions of its size, and its limit is lowered by `slack`. If
    /// `whole` is true, counts are integers.
    fn build_program(&self, whole: bool, slack: f64) -> (Problem, Vec<Variable>) {
        let longest = self.longest_time();
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let most = i32::try_from(self.layers).unwrap_or(i32::MAX);
        let counts: Vec<Variable> = self
            .allowed
            .iter()
            .map(|at| {
                let time = self.points[*at].time / longest;
                if whole {
                    problem.add_integer_var(time, (0, most))
                } else {
                    problem.add_var(time, (0.0, self.layers as f64))
                }
            })
            .collect();
        let all: Vec<(Variable, f64)> = counts.iter().map(|n| (*n, 1.0)).collect();
        problem.add_constraint(all.as_slice(), ComparisonOp::Eq, self.layers as f64);
        for (memory, room) in self.room.into_iter().enumerate() {
            let share = |at: &usize| bytes_of_policy(&self.points[*at])[memory] / room.max(1.0);
            let row: Vec<(Variable, f64)> = counts
                .iter()
                .zip(&self.allowed)
                .map(|(n, at)| (*n, share(at)))
                .filter(|(_, share)| *share > 0.0)
                .collect();
            if !row.is_empty() {
                // Bytes are whole, so the factor gives back what rounding took from the room. Half a byte more admits
                // an exact fit.
                let whole = (room * (1.0 + 1e-12)).floor() + 0.5;
                problem.add_constraint(row.as_slice(), ComparisonOp::Le, whole / room.max(1.0) - slack);
            }
        }
        (problem, counts)
    }

    fn longest_time(&self) -> f64 {
        self.allowed.iter().map(|at| self.points[*at].time).fold(f64::MIN_POSITIVE, f64::max)
    }

    /// Solves the program with fractional counts. Returns a lower bound on the seconds of any mix. `None` if no mix
    /// fits; 0 if the solver fails.
    pub fn solve_relaxation(&self) -> Option<f64> {
        if self.allowed.is_empty() {
            return None;
        }
        match self.build_program(false, 0.0).0.solve() {
            Ok(outcome) => Some(outcome.solution().map_or(0.0, |solution| solution.objective() * self.longest_time())),
            Err(microlp::Error::Infeasible) => None,
            // The solver failed: zero is the trivial bound.
            Err(_) => Some(0.0),
        }
    }

    /// Solves the program for the best mix and a bound. `least` is the bound of [`Self::solve_relaxation`]. If rounded
    /// counts do not fit, the program is solved again with some slack.
    pub fn solve_mix(&self, least: f64) -> SolvedMix {
        let mut bound = least;
        for slack in [0.0, SLACK] {
            let (problem, counts) = self.build_program(true, slack);
            let mut options = SolveOptions::default();
            options.node_limit = Some(NODES);
            options.mip_gap = ENOUGH;
            let Ok(outcome) = problem.solve_with(options) else { break };
            let Some(solution) = outcome.solution() else { break };
            if slack == 0.0 {
                bound = solution.stats().best_bound.map_or(least, |best| (best * self.longest_time()).max(least));
            }
            let count = |n: &Variable| solution.var_value_raw(*n).round().max(0.0) as u64;
            let followed = self.allowed.iter().zip(&counts).map(|(at, n)| (*at, count(n))).filter(|(_, n)| *n > 0);
            let mix: Vec<(usize, u64)> = followed.collect();
            if self.mix_fits(&mix) {
                let time: f64 = mix.iter().map(|(at, n)| self.points[*at].time * *n as f64).sum();
                let mut counts = mix;
                counts.sort_by_key(|(at, _)| (self.points[*at].kept, *at));
                return SolvedMix {
                    bound: bound.min(time),
                    mix: Some(StageMix { counts, time, bound: bound.min(time) }),
                };
            }
        }
        SolvedMix { mix: None, bound }
    }

    /// True if a mix covers all layers and fits each memory to the byte.
    fn mix_fits(&self, mix: &[(usize, u64)]) -> bool {
        let sum = |memory: usize| {
            mix.iter().map(|(at, n)| bytes_of_policy(&self.points[*at])[memory] * *n as f64).sum::<f64>()
        };
        // The factor gives back what rounding took from the room.
        let held = (0..3).all(|memory| sum(memory) <= self.room[memory] * (1.0 + 1e-12));
        held && mix.iter().map(|(_, n)| *n).sum::<u64>() == self.layers
    }
}

fn bytes_of_policy(point: &MixPoint) -> [f64; 3] {
    [point.kept as f64, point.host as f64, point.storage as f64]
}
