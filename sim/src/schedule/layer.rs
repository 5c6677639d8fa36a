//! Layers of the exact search: states, indexed by their down-set.

use super::bounds::OperatorBitset;
use super::running::{RunningOperator, RunsAt, SinceIdle};
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// An extension of a state by one operator.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScheduleMove {
    pub op: u8,
    pub exclusive: bool,
    pub slot: u8,
    pub start: u64,
    pub finish: u64,
}

/// A state of the search.
#[derive(Debug, Clone, Copy)]
pub(super) struct SearchState {
    pub set: OperatorBitset,
    pub time: u64,
    pub bound: u64,
    pub guide: u64,
    pub runs: (u32, u32),
    /// The operators that had ended when all cores and links were last idle.
    pub idle: OperatorBitset,
    pub since: SinceIdle,
    /// Operators that could run across all cores but no longer may (see `moves`).
    pub settled: OperatorBitset,
    /// The move that led here, and the trail index of its parent.
    pub step: ScheduleMove,
    pub parent: u32,
}

/// A summary of a state, which rejects most dominance tests early. The search reads it far more often than the rest of
/// a state. It fits one cache line.
#[derive(Debug, Clone, Copy)]
pub(super) struct StateSummary {
    pub time: u64,
    /// The end of the last running operator.
    last: u64,
    /// Core-ticks that running operators hold from the state's time on, and the number of cores they hold.
    area: u64,
    cores: u32,
    /// See [`SearchState`].
    pub settled: OperatorBitset,
    /// The range of the state's running operators in [`StateLayer::runs`].
    pub runs: (u32, u32),
    /// The next state of the same down-set.
    pub next: u32,
    /// True if no operator runs.
    idle: bool,
}

impl StateSummary {
    /// Summarises a state at `time` with these running and settled operators, before it is stored.
    pub fn summarise(RunsAt { time, runs }: RunsAt<'_>, settled: OperatorBitset) -> Self {
        let (mut cores, mut area) = (0, 0u64);
        for run in runs {
            let need = run.need.total_cores();
            cores += need;
            area = area.saturating_add(u64::from(need).saturating_mul(run.finish - time));
        }
        let last = runs.last().map_or(time, |r| r.finish);
        Self { time, last, area, cores, settled, runs: (0, 0), next: NONE, idle: runs.is_empty() }
    }

    /// Tests a necessary condition for this state to dominate `other`, which has started no more operators. The sums
    /// must allow dominance, and this state must keep open every completion that `other` keeps open. The second
    /// condition is waived if this state is idle and earlier, because all its completions then end sooner (see
    /// `moves`).
    pub fn may_dominate_by_sums(&self, other: &Self) -> bool {
        self.holds_no_more(other) && (self.settled & !other.settled == 0 || self.idle && self.time < other.time)
    }

    /// True if the sums allow this state to hold no more cores than `other` at any time from `other`'s time on.
    pub fn holds_no_more(&self, other: &Self) -> bool {
        self.time <= other.time
            && self.last <= other.last
            && self.area <= other.area.saturating_add(u64::from(self.cores).saturating_mul(other.time - self.time))
    }
}

/// The index that stands for no state.
pub(super) const NONE: u32 = u32::MAX;
/// The bound of a dominated state.
pub(super) const DEAD: u64 = u64::MAX;

/// A move, and the trail index of the move before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrailStep {
    pub parent: u32,
    pub step: ScheduleMove,
}

/// Hashes a down-set with one multiplication per half.
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

/// States whose memory a thread keeps: about 50 MB.
const SPARE_STATES: usize = 1 << 17;

/// Finished layers whose memory a thread reuses. Mapping new memory page by page took up to a fifth of a search's time.
struct SpareLayers {
    layers: Vec<StateLayer>,
    /// The capacity of these layers, in states.
    states: usize,
}

thread_local! {
    static SPARE: RefCell<SpareLayers> = const { RefCell::new(SpareLayers { layers: Vec::new(), states: 0 }) };
}

/// All states with the same number of started operators.
#[derive(Default)]
pub(super) struct StateLayer {
    pub nodes: Vec<SearchState>,
    /// A summary of each state, in the order of `nodes`.
    pub known: Vec<StateSummary>,
    pub runs: Vec<RunningOperator>,
    pub heads: BuildSetHasher<u32>,
    /// The states that have not been extended yet.
    pub open: Vec<u32>,
}

impl StateLayer {
    /// Adds a state and its running operators. It becomes the first state of its down-set.
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

    /// Returns the running operators of a state, by its summary.
    pub fn runs_of_summary(&self, known: &StateSummary) -> &[RunningOperator] {
        &self.runs[known.runs.0 as usize..(known.runs.0 + known.runs.1) as usize]
    }

    pub fn runs_of_state(&self, node: &SearchState) -> &[RunningOperator] {
        &self.runs[node.runs.0 as usize..(node.runs.0 + node.runs.1) as usize]
    }

    /// Returns an empty layer. It reuses the memory of a spare layer if this thread has one.
    pub fn take_spare() -> Self {
        SPARE.with_borrow_mut(|spare| {
            let layer = spare.layers.pop().unwrap_or_default();
            spare.states -= layer.nodes.capacity();
            layer
        })
    }

    /// Keeps the memory of this layer for another one.
    pub fn keep_as_spare(mut self) {
        self.clear_states();
        SPARE.with_borrow_mut(|spare| {
            let states = spare.states + self.nodes.capacity();
            // A layer without capacity would hide the layers that have some.
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
