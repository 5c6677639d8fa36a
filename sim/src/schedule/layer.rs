//! Layers of the exact search: its states, and which of them have the same down-set.

use super::bounds::OperatorBitset;
use super::state::{RunningOperator, SinceIdle};
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// One way to extend a state.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScheduleMove {
    pub op: u8,
    pub exclusive: bool,
    pub slot: u8,
    pub start: u64,
    pub finish: u64,
}

/// A state.
#[derive(Debug, Clone, Copy)]
pub(super) struct SearchState {
    pub set: OperatorBitset,
    pub time: u64,
    pub bound: u64,
    pub guide: u64,
    pub runs: (u32, u32),
    /// What had ended when all cores and links were last idle.
    pub idle: OperatorBitset,
    pub since: SinceIdle,
    /// Operators that could run across all cores, and no longer do (see `moves`).
    pub settled: OperatorBitset,
    /// The move that led here, and where its parent is in the trail.
    pub step: ScheduleMove,
    pub parent: u32,
}

/// What tells whether states of the same down-set dominate one another, or at least most that do not. It is looked at far more often than the
/// rest of a state and fits one line of a cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct StateSummary {
    pub time: u64,
    /// When the last of the operators that run ends.
    last: u64,
    /// For how long they hold cores and links in sum, from the time of the state on, and how many.
    area: u64,
    cores: u32,
    /// See [`SearchState`].
    pub settled: OperatorBitset,
    /// Where what runs is.
    pub runs: (u32, u32),
    /// Next state of the same down-set.
    pub next: u32,
    /// Whether nothing runs.
    idle: bool,
}

impl StateSummary {
    /// Of a state at `time` that is nowhere yet, in which `runs` run and some operators are settled.
    pub fn summarise((time, runs): (u64, &[RunningOperator]), settled: OperatorBitset) -> Self {
        let (mut cores, mut area) = (0, 0u64);
        for run in runs {
            let need = run.need.total_cores();
            cores += need;
            area = area.saturating_add(u64::from(need).saturating_mul(run.finish - time));
        }
        let last = runs.last().map_or(time, |r| r.finish);
        Self { time, last, area, cores, settled, runs: (0, 0), next: NONE, idle: runs.is_empty() }
    }

    /// Whether this state can dominate another one that has started no more: as far as sums tell, and by leaving every completion open that the
    /// other does, unless all of them end sooner (see `moves`).
    pub fn may_dominate_by_sums(&self, other: &Self) -> bool {
        self.holds_no_more(other) && (self.settled & !other.settled == 0 || self.idle && self.time < other.time)
    }

    /// Whether at every time from the other state's on this one holds no more cores, as far as sums tell.
    pub fn holds_no_more(&self, other: &Self) -> bool {
        self.time <= other.time
            && self.last <= other.last
            && self.area <= other.area.saturating_add(u64::from(self.cores).saturating_mul(other.time - self.time))
    }
}

/// No state.
pub(super) const NONE: u32 = u32::MAX;
/// The bound of a state that another one dominates.
pub(super) const DEAD: u64 = u64::MAX;

/// A move, and where the one before it is in the trail.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrailStep {
    pub parent: u32,
    pub step: ScheduleMove,
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

pub(super) type BuildSetHasher<V> = HashMap<OperatorBitset, V, BuildHasherDefault<SetHasher>>;

/// Room for this many states stays with a thread: some 50 MB.
const SPARE_STATES: usize = 1 << 17;

/// Layers that a thread is done with. Memory that is new to a process has to be mapped page by page, which took up to a fifth of the
/// time of a search.
struct SpareLayers {
    layers: Vec<StateLayer>,
    /// The states that there is room for in them.
    states: usize,
}

thread_local! {
    static SPARE: RefCell<SpareLayers> = const { RefCell::new(SpareLayers { layers: Vec::new(), states: 0 }) };
}

/// The states of as many operators.
#[derive(Default)]
pub(super) struct StateLayer {
    pub nodes: Vec<SearchState>,
    /// Of the same states.
    pub known: Vec<StateSummary>,
    pub runs: Vec<RunningOperator>,
    pub heads: BuildSetHasher<u32>,
    /// The states that have not been extended.
    pub open: Vec<u32>,
}

impl StateLayer {
    /// Adds a state in which `runs` run, in front of those of the same down-set.
    pub fn push(&mut self, mut node: SearchState, mut known: StateSummary, runs: &[RunningOperator]) {
        let at = self.nodes.len() as u32;
        node.runs = (self.runs.len() as u32, runs.len() as u32);
        known.runs = node.runs;
        known.next = self.heads.insert(node.set, at).unwrap_or(NONE);
        self.runs.extend_from_slice(runs);
        self.open.push(at);
        self.nodes.push(node);
        self.known.push(known);
    }

    /// What runs in a state.
    pub fn runs_of_state(&self, known: &StateSummary) -> &[RunningOperator] {
        &self.runs[known.runs.0 as usize..(known.runs.0 + known.runs.1) as usize]
    }

    pub fn runs_of_summary(&self, node: &SearchState) -> &[RunningOperator] {
        &self.runs[node.runs.0 as usize..(node.runs.0 + node.runs.1) as usize]
    }

    /// An empty layer, with the room of one that this thread is done with, if there is one.
    pub fn take_spare() -> Self {
        SPARE.with_borrow_mut(|spare| {
            let layer = spare.layers.pop().unwrap_or_default();
            spare.states -= layer.nodes.capacity();
            layer
        })
    }

    /// Keeps the room of a layer for another one.
    pub fn keep_as_spare(mut self) {
        self.clear_states();
        SPARE.with_borrow_mut(|spare| {
            let states = spare.states + self.nodes.capacity();
            // One without room would only hide those that have some.
            if self.nodes.capacity() > 0 && states <= SPARE_STATES {
                spare.states = states;
                spare.layers.push(self);
            }
        });
    }

    fn clear_states(&mut self) {
        self.nodes.clear();
        self.known.clear();
        self.runs.clear();
        self.heads.clear();
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_only_layers_with_room_and_no_more_than_it_may() {
        let count = || SPARE.with_borrow(|spare| (spare.layers.len(), spare.states));
        assert_eq!(count(), (0, 0));
        StateLayer::default().keep_as_spare();
        assert_eq!(count(), (0, 0));
        let roomy = || StateLayer { nodes: Vec::with_capacity(SPARE_STATES / 2), ..StateLayer::default() };
        (0..4).for_each(|_| roomy().keep_as_spare());
        let (layers, states) = count();
        assert!(layers == 2 && states <= SPARE_STATES, "{layers} layers, {states} states");
        assert_eq!(StateLayer::take_spare().nodes.capacity(), SPARE_STATES / 2);
        assert_eq!(count().0, 1);
    }
}
