//! Layers of the exact search: its states, and which of them have the same down-set.

use super::bounds::Set;
use super::state::{Run, Since};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// One way to extend a state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    pub op: u8,
    pub exclusive: bool,
    pub slot: u8,
    pub start: u64,
    pub finish: u64,
}

/// A state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    pub set: Set,
    pub time: u64,
    pub bound: u64,
    pub guide: u64,
    pub runs: (u32, u32),
    /// What had ended when all cores and links were last idle.
    pub idle: Set,
    pub since: Since,
    /// Operators that could run across all cores, and no longer do (see `moves`).
    pub settled: Set,
    /// The cases that agree with the modes chosen so far.
    pub cases: u32,
    pub held: Held,
    /// The move that led here, and where its parent is in the trail.
    pub step: Move,
    pub parent: u32,
    /// Next state of the same down-set.
    pub next: u32,
}

/// What the operators that run hold: enough to tell most states apart that do not dominate one another.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    /// When the last of them ends.
    last: u64,
    /// How many cores and links they hold, and for how long in sum, from the time of the state on.
    cores: u64,
    area: u64,
}

impl Held {
    pub fn of(time: u64, runs: &[Run]) -> Self {
        let (mut cores, mut area) = (0, 0u64);
        for run in runs {
            let need = u64::from(run.need.total());
            cores += need;
            area = area.saturating_add(need.saturating_mul(run.finish - time));
        }
        Self { last: runs.last().map_or(time, |r| r.finish), cores, area }
    }
}

impl Node {
    /// Whether this state can dominate another one of the same down-set: as far as sums tell, and by leaving every completion open that the
    /// other does, unless all of them end sooner (see `moves`).
    pub fn may_dominate(&self, other: &Self) -> bool {
        (self.settled & !other.settled == 0 || self.set == self.idle && self.time < other.time) && self.holds_no_more(other)
    }

    /// Whether at every time from the other state's on this one holds no more cores, as far as sums tell.
    pub fn holds_no_more(&self, other: &Self) -> bool {
        let (mine, theirs) = (&self.held, &other.held);
        self.time <= other.time
            && mine.last <= theirs.last
            && mine.area <= theirs.area.saturating_add(mine.cores.saturating_mul(other.time - self.time))
    }
}

/// No state.
pub(super) const NONE: u32 = u32::MAX;
/// The bound of a state that another one dominates.
pub(super) const DEAD: u64 = u64::MAX;

/// A move, and where the one before it is in the trail.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub parent: u32,
    pub step: Move,
}

/// A hash of a down-set: one multiplication per half.
#[derive(Default)]
pub(super) struct SetHasher(u64);

impl Hasher for SetHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u128(&mut self, set: u128) {
        self.0 = ((set as u64) ^ ((set >> 64) as u64).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0.rotate_left(29) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        self.0 ^= self.0 >> 32;
    }
}

type ByHash<V> = HashMap<Set, V, BuildHasherDefault<SetHasher>>;

/// The states of as many operators.
#[derive(Default)]
pub(super) struct Layer {
    pub nodes: Vec<Node>,
    pub runs: Vec<Run>,
    pub heads: ByHash<u32>,
    /// The states that have not been extended.
    pub open: Vec<u32>,
}

impl Layer {
    pub fn runs_of(&self, node: &Node) -> &[Run] {
        &self.runs[node.runs.0 as usize..(node.runs.0 + node.runs.1) as usize]
    }

    pub fn clear(&mut self) {
        self.nodes.clear();
        self.runs.clear();
        self.heads.clear();
        self.open.clear();
    }
}
