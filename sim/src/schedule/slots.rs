//! Free cores of a partial schedule: as counts if any cores pair, core by core if they pair by index.

use super::demand::CoreDemand;
use super::piece::{LINK, Piece, TENSOR, VECTOR};
use super::running::{NO_SLOT, RunningOperator, RunsAt};

/// The accounting of free cores, by count or by index.
#[derive(Debug, Clone)]
pub(super) struct CoreAccounting {
    /// True if core indices matter for this piece.
    by_index: bool,
}

/// The time at which each kind of core is next free.
#[derive(Debug, Clone, Default)]
pub(super) struct EarliestFreeTimes {
    single: [u64; 3],
    all: [u64; 2],
    /// Per core index: the times at which its tensor core and its vector core are free; `u64::MAX` for a core that the
    /// chip does not have.
    cores: Vec<(u64, u64)>,
}

impl EarliestFreeTimes {
    /// Returns the time at which every core is free that operator `i` blocks while it runs across all cores.
    pub fn free_across_cores(&self, piece: &Piece, i: usize) -> u64 {
        let kind = piece.kind[i];
        let tensor = if !piece.own_kind || kind & TENSOR > 0 { self.all[0] } else { 0 };
        let vector = if !piece.own_kind || kind & VECTOR > 0 { self.all[1] } else { 0 };
        tensor.max(vector)
    }
}

impl CoreAccounting {
    pub fn new(piece: &Piece) -> Self {
        Self { by_index: piece.pairing_matters() }
    }

    /// Returns the earliest times, at or after `time`, at which the cores of each kind of operator are free. The array
    /// is indexed by the kind's bits.
    pub fn earliest_single_times(&self, piece: &Piece, time: u64, runs: &[RunningOperator]) -> [u64; 5] {
        let [tensor, vector, link] = earliest_by_counts(piece, time, runs);
        [time, tensor, vector, tensor.max(vector), link]
    }

    /// Returns all free times that the choice of the next start needs.
    pub fn earliest_free_times(&self, piece: &Piece, time: u64, runs: &[RunningOperator]) -> EarliestFreeTimes {
        let mut all = [time; 2];
        for run in runs {
            for (_, last) in all.iter_mut().enumerate().filter(|&(k, _)| run.need.of_kind(k) > 0) {
                *last = (*last).max(run.finish);
            }
        }
        let cores = if self.by_index { core_free_times(piece, time, runs) } else { Vec::new() };
        EarliestFreeTimes { single: earliest_by_counts(piece, time, runs), all, cores }
    }

    /// Calls `each` with every distinct way to start operator `i` on single cores: one way, or one per distinct core
    /// state if indices matter.
    pub fn single_starts(
        &self,
        piece: &Piece,
        i: usize,
        ready: u64,
        earliest: &EarliestFreeTimes,
        mut each: impl FnMut(u8, u64),
    ) {
        let kind = piece.kind[i];
        if !self.by_index || kind == LINK {
            let start = [TENSOR, VECTOR, LINK]
                .iter()
                .zip(earliest.single)
                .filter(|&(bit, _)| kind & bit > 0)
                .map(|(_, t)| t)
                .max();
            each(NO_SLOT, ready.max(start.unwrap_or(0)));
            return;
        }
        let cores = &earliest.cores;
        for (slot, core) in cores.iter().enumerate() {
            if cores[..slot].contains(core) {
                continue;
            }
            let free = match kind {
                TENSOR => core.0,
                VECTOR => core.1,
                _ => core.0.max(core.1),
            };
            if free != u64::MAX {
                each(slot as u8, ready.max(free));
            }
        }
    }

    /// True if at every time from `b`'s on, `a` leaves at least as many cores free as `b`.
    pub fn frees_no_later(&self, piece: &Piece, a: &[RunningOperator], b: RunsAt<'_>) -> bool {
        if self.by_index {
            let mut mine = core_free_times(piece, b.time, a);
            let mut theirs = core_free_times(piece, b.time, b.runs);
            mine.sort_unstable();
            theirs.sort_unstable();
            if mine.iter().zip(&theirs).any(|(x, y)| x.0 > y.0 || x.1 > y.1) {
                return false;
            }
        }
        let (mut used, mut theirs) = (CoreDemand::default(), CoreDemand::default());
        let mut rest = b.runs.iter().rev().peekable();
        for run in a.iter().rev() {
            if run.finish <= b.time {
                break;
            }
            while let Some(other) = rest.next_if(|r| r.finish >= run.finish) {
                theirs.add_demand(other.need);
            }
            used.add_demand(run.need);
            if !used.is_at_most(theirs) {
                return false;
            }
        }
        true
    }
}

/// Returns the earliest times at which one tensor core, one vector core and one link are free. `runs` are sorted by
/// their end.
fn earliest_by_counts(piece: &Piece, time: u64, runs: &[RunningOperator]) -> [u64; 3] {
    let mut all = CoreDemand::default();
    for run in runs {
        all.add_demand(run.need);
    }
    let free = |k: usize| {
        let (mut used, most) = (all.of_kind(k), piece.m[k]);
        if used < most || most == 0 {
            return time;
        }
        let first = runs.iter().find(|run| {
            used -= run.need.of_kind(k);
            used < most
        });
        first.map_or(time, |run| run.finish)
    };
    [free(0), free(1), free(2)]
}

fn core_free_times(piece: &Piece, time: u64, runs: &[RunningOperator]) -> Vec<(u64, u64)> {
    let (tensor, vector) = (piece.m[0] as usize, piece.m[1] as usize);
    let mut cores: Vec<(u64, u64)> = (0..tensor.max(vector))
        .map(|c| (if c < tensor { time } else { u64::MAX }, if c < vector { time } else { u64::MAX }))
        .collect();
    for run in runs {
        let need = [run.need.of_kind(0), run.need.of_kind(1)];
        if run.exclusive {
            for core in &mut cores {
                if need[0] > 0 && core.0 != u64::MAX {
                    core.0 = core.0.max(run.finish);
                }
                if need[1] > 0 && core.1 != u64::MAX {
                    core.1 = core.1.max(run.finish);
                }
            }
        } else if let Some(core) = cores.get_mut(run.slot as usize) {
            if need[0] > 0 {
                core.0 = core.0.max(run.finish);
            }
            if need[1] > 0 {
                core.1 = core.1.max(run.finish);
            }
        }
    }
    cores
}
