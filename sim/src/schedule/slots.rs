//! When cores are free in a partial schedule: as counts where any cores pair, core by core where they pair by index.

use super::piece::{LINK, Piece, TENSOR, VECTOR};
use super::state::{NO_SLOT, Run};

/// Bits per kind in a [`Need`].
const BITS: u32 = 10;
/// The highest bit of each kind.
const GUARDS: u32 = 1 << (BITS - 1) | 1 << (2 * BITS - 1) | 1 << (3 * BITS - 1);

/// How many tensor cores, vector cores and links something takes, in one number, so that needs are added and compared at once. A searchable
/// piece has no more than 128 of each, which leaves the highest bit of each kind free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Need(u32);

impl Need {
    pub fn of(need: [u32; 3]) -> Self {
        debug_assert!(need.iter().all(|&n| n < 1 << (BITS - 1)));
        Self(need[0] | need[1] << BITS | need[2] << (2 * BITS))
    }

    /// Of one kind.
    pub fn get(self, k: usize) -> u32 {
        self.0 >> (BITS * k as u32) & ((1 << BITS) - 1)
    }

    /// Of all kinds.
    pub fn total(self) -> u32 {
        self.get(0) + self.get(1) + self.get(2)
    }

    pub fn no_more_than(self, other: Self) -> bool {
        ((other.0 | GUARDS) - self.0) & GUARDS == GUARDS
    }

    fn add(&mut self, other: Self) {
        self.0 += other.0;
    }
}

/// The two ways of keeping book over cores.
#[derive(Debug, Clone)]
pub(super) struct Slots {
    /// Whether core indices matter for this piece.
    by_index: bool,
}

/// When each kind of core is next free, given what runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Earliest {
    single: [u64; 3],
    all: [u64; 2],
    /// Per core index: when its tensor core and its vector core are free. `u64::MAX` where the chip has no such core.
    cores: Vec<(u64, u64)>,
}

impl Earliest {
    /// When operator `i` finds every core free that it needs to run across all cores.
    pub fn all_cores(&self, piece: &Piece, i: usize) -> u64 {
        let kind = piece.kind[i];
        let tensor = if !piece.own_kind || kind & TENSOR > 0 { self.all[0] } else { 0 };
        let vector = if !piece.own_kind || kind & VECTOR > 0 { self.all[1] } else { 0 };
        tensor.max(vector)
    }
}

impl Slots {
    pub fn new(piece: &Piece) -> Self {
        Self { by_index: piece.pairing_matters() }
    }

    /// Earliest times at or after `time` at which the cores that a kind of operator uses are free, indexed by the kind's bits.
    pub fn earliest_single(&self, piece: &Piece, time: u64, runs: &[Run]) -> [u64; 5] {
        let [tensor, vector, link] = counts(piece, time, runs);
        [time, tensor, vector, tensor.max(vector), link]
    }

    /// Everything about free cores that choosing the next start needs.
    pub fn earliest(&self, piece: &Piece, time: u64, runs: &[Run]) -> Earliest {
        let mut all = [time; 2];
        for run in runs {
            for (_, last) in all.iter_mut().enumerate().filter(|&(k, _)| run.need.get(k) > 0) {
                *last = (*last).max(run.finish);
            }
        }
        let cores = if self.by_index { core_times(piece, time, runs) } else { Vec::new() };
        Earliest { single: counts(piece, time, runs), all, cores }
    }

    /// The different ways to start operator `i` on single cores: one, or one per kind of core index where indices matter.
    pub fn single_starts(&self, piece: &Piece, i: usize, ready: u64, earliest: &Earliest, mut each: impl FnMut(u8, u64)) {
        let kind = piece.kind[i];
        if !self.by_index || kind == LINK {
            let start =
                [TENSOR, VECTOR, LINK].iter().zip(earliest.single).filter(|&(bit, _)| kind & bit > 0).map(|(_, t)| t).max();
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

    /// Whether at every time from `b`'s on the cores that `a` leaves free include as many as `b`'s.
    pub fn frees_no_later(&self, piece: &Piece, a: &[Run], b: (u64, &[Run])) -> bool {
        if self.by_index {
            let mut mine = core_times(piece, b.0, a);
            let mut theirs = core_times(piece, b.0, b.1);
            mine.sort_unstable();
            theirs.sort_unstable();
            if mine.iter().zip(&theirs).any(|(x, y)| x.0 > y.0 || x.1 > y.1) {
                return false;
            }
        }
        let (mut used, mut theirs) = (Need::default(), Need::default());
        let mut rest = b.1.iter().rev().peekable();
        for run in a.iter().rev() {
            if run.finish <= b.0 {
                break;
            }
            while let Some(other) = rest.next_if(|r| r.finish >= run.finish) {
                theirs.add(other.need);
            }
            used.add(run.need);
            if !used.no_more_than(theirs) {
                return false;
            }
        }
        true
    }
}

/// Earliest time at which one tensor core, one vector core and one link are free. `runs` are sorted by their end.
fn counts(piece: &Piece, time: u64, runs: &[Run]) -> [u64; 3] {
    let mut all = Need::default();
    for run in runs {
        all.add(run.need);
    }
    let free = |k: usize| {
        let (mut used, most) = (all.get(k), piece.m[k]);
        if used < most || most == 0 {
            return time;
        }
        let first = runs.iter().find(|run| {
            used -= run.need.get(k);
            used < most
        });
        first.map_or(time, |run| run.finish)
    };
    [free(0), free(1), free(2)]
}

fn core_times(piece: &Piece, time: u64, runs: &[Run]) -> Vec<(u64, u64)> {
    let (tensor, vector) = (piece.m[0] as usize, piece.m[1] as usize);
    let mut cores: Vec<(u64, u64)> = (0..tensor.max(vector))
        .map(|c| (if c < tensor { time } else { u64::MAX }, if c < vector { time } else { u64::MAX }))
        .collect();
    for run in runs {
        let need = [run.need.get(0), run.need.get(1)];
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
