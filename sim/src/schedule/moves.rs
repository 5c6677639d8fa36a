//! The extensions of a state that the search tries.
//!
//! # Pruned extensions
//! - *Barriers*. Here an operator across all cores waits for all others and stops all others. It runs at the first idle
//!   moment at which it is ready, or on one core. Any later run across all cores could be moved to that moment, before
//!   a stretch with operators on single cores. So when such a stretch begins at an idle moment, each operator that is
//!   ready and did not run across all cores is *settled*: it never will.
//! - *Not active*: no operator starts after another could have run to its end (Giffler and Thompson, 1960).
//! - *Twins*. Let operators a and b have the same kind and latencies, and let a have the lower number. Then a starts
//!   first if it is ready by then, if all successors of b are successors of a, and if both are settled or neither is.
//!   In a schedule in which a starts later, the two can swap places and modes.
//!
//! # Why no optimum is lost
//! A completion of a state is *legal* if every operator across all cores runs at the first idle moment at which it is
//! ready, and none of these is settled. Take any completion that runs no settled operator across all cores. The state
//! has a legal completion that is as good:
//! - Move an operator to the first idle moment at which it is ready. It then has fewer operators on single cores before
//!   it, and no other operator has more, so the moves end.
//! - Its target lies after the state's time; otherwise the operator would be settled.
//!
//! So the empty schedule has an optimal legal completion. A state that has one leads to a state that also has one and
//! has started one more operator, until no operator is left:
//! - If the next operator of the completion is pruned as not active, put the operator that could end first before it,
//!   in the mode in which that operator ends first. If the next operator has to wait for a twin, swap it with the first
//!   of its twins. Everything that has to move to make the completion legal lies after this operator, which is tried.
//! - Another state may dominate the successor. The completion, without any operator that the dominating state has
//!   already started, is then also one of that state, and no later. It runs nothing across all cores that is settled
//!   there, because a state dominates only if everything that it has settled is settled in the other state too.
//! - The exception is a dominating state that is idle before the other's time. All its completions end sooner, so the
//!   other state has no optimal one.
//!
//! The pruned extensions therefore depend only on the state, and dominance respects them. Rules that depend on how a
//! state was reached would fail: such a rule and a dominating state can each defer to the other in a cycle.

use super::bounds::{OperatorBitset, first_operators, set_members};
use super::layer::{ScheduleMove, SearchState};
use super::piece::NEVER;
use super::running::{NO_SLOT, RunningOperator, RunsAt};
use super::state::Searcher;

impl Searcher<'_> {
    /// Lists the extensions of a state to try.
    pub fn list_moves(&self, node: &SearchState, runs: &[RunningOperator], moves: &mut Vec<ScheduleMove>) {
        let piece = self.piece;
        let earliest = self.slots.earliest_free_times(piece, node.time, runs);
        moves.clear();
        let running: OperatorBitset = runs.iter().fold(0, |set, run| set | 1 << run.op);
        for i in set_members(first_operators(piece.operator_count()) & !node.set) {
            let preds = self.relation.preds[i];
            if preds & !node.set != 0 {
                continue;
            }
            let ready = self.ready_time(i, running, RunsAt { time: node.time, runs });
            let turn = self.start_after_twins(i, running, node, runs);
            let mut push = |exclusive: bool, slot: u8, start: u64| {
                if start < turn {
                    let length = if exclusive { piece.exc[i] } else { piece.lat[i] };
                    moves.push(ScheduleMove { op: i as u8, exclusive, slot, start, finish: start + length });
                }
            };
            if self.only_across >> i & 1 == 0 {
                self.slots.single_starts(piece, i, ready, &earliest, |slot, start| push(false, slot, start));
            }
            if piece.exc[i] != NEVER && node.settled >> i & 1 == 0 {
                push(true, NO_SLOT, ready.max(earliest.free_across_cores(piece, i)));
            }
        }
        let first_end = moves.iter().map(|m| m.finish).min().unwrap_or(u64::MAX);
        moves.retain(|m| m.start < first_end || m.start == m.finish);
        // An operator alone between two idle moments would be faster across all cores.
        if let &[run] = runs
            && self.barriers
            && node.idle | 1 << run.op == node.set
            && piece.exc[run.op as usize] != NEVER
        {
            moves.retain(|m| m.start < run.finish);
        }
    }

    /// Returns the time at which all predecessors of an operator have ended. All of them have started.
    fn ready_time(&self, i: usize, running: OperatorBitset, RunsAt { time, runs }: RunsAt<'_>) -> u64 {
        let preds = self.relation.preds[i];
        if preds & running == 0 {
            return time;
        }
        runs.iter().filter(|r| preds >> r.op & 1 == 1).fold(time, |ready, run| ready.max(run.finish))
    }

    /// Returns the time from which an operator has to wait until a twin starts; `u64::MAX` without such a twin.
    fn start_after_twins(
        &self,
        i: usize,
        running: OperatorBitset,
        node: &SearchState,
        runs: &[RunningOperator],
    ) -> u64 {
        let twins = set_members(self.twins[i] & !node.set)
            .filter(|&j| self.relation.preds[j] & !node.set == 0 && (node.settled >> j ^ node.settled >> i) & 1 == 0);
        twins.map(|j| self.ready_time(j, running, RunsAt { time: node.time, runs })).min().unwrap_or(u64::MAX)
    }

    /// Returns the operators that become settled when an operator starts on one core at an idle moment. These are the
    /// ones of `ready` that could have run across all cores at that moment. `None` if one of them runs only across all
    /// cores.
    pub fn settle_idle_operators(&self, ready: OperatorBitset) -> Option<OperatorBitset> {
        (ready & self.only_across == 0).then_some(ready & self.can_across)
    }
}
