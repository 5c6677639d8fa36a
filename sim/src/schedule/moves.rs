//! Which extensions of a state the search tries.
//!
//! # What is left out
//! - *Barriers*: where an operator across all cores waits for all others and stops all others, it runs at the first idle moment at which it
//!   is ready, or on one core. From later on it could be moved there, in front of a stretch of the schedule with operators on single cores.
//!   So when a stretch begins at an idle moment, what is ready and did not run across all cores is *settled*: it never will.
//! - *Not active*: no operator starts once another could have run to its end before (Giffler and Thompson, 1960).
//! - *Twins*: of operators of the same kind and latencies, the first in number starts first, if it is ready by then, if all that waits for
//!   the other waits for it too, and if both are settled or neither is. In a schedule in which it starts later the two can change places,
//!   modes included.
//!
//! # Why no optimum is lost
//! A completion of a state is *legal* if every operator across all cores runs at the first idle moment at which it is ready, and none is
//! settled. A state has a legal completion as good as any that runs no settled operator across all cores: an operator moved to the first
//! idle moment at which it is ready has fewer operators on single cores before it, and no other one has more, so the moves come to an
//! end; and where it has to move to lies behind the state, or it would be settled. So the empty schedule has a legal completion that is
//! optimal. And a state with one leads to a state with one that has an operator more, until nothing is left:
//! - If the next operator of the completion is not active, put the one that ends first before it, in the mode in which it does. If it has a
//!   twin to wait for, let the first of its twins change places with it. What has to move then for the completion to be legal lies behind
//!   this operator, which is tried.
//! - Should another state dominate the one that the operator leads to, the completion, without what that state may have started besides, is
//!   one of that state too, no later, and it runs nothing across all cores that is settled there: a state dominates only where it has
//!   settled nothing that the other has not. Unless it is idle before the other one's time: every completion then ends sooner, and the
//!   other has no optimal one.
//!
//! So what is left out depends on the state alone, and dominance heeds it. Rules that go by how a state was reached would not do: such
//! rules, and states that dominate each other, can each defer to the next, in a circle.

use super::bounds::{OperatorBitset, PrecedenceSets, first_operators, set_members};
use super::layer::{ScheduleMove, SearchState};
use super::piece::{NEVER, Piece};
use super::state::{NO_SLOT, RunningOperator, Searcher};

/// Per operator, those of a lower number that can take its place in any schedule in which they start later.
pub(super) fn earlier_twins(piece: &Piece, relation: &PrecedenceSets, only_across: OperatorBitset) -> Vec<OperatorBitset> {
    let alike = |i: usize, j: usize| {
        (piece.kind[i], piece.lat[i], piece.exc[i], only_across >> i & 1)
            == (piece.kind[j], piece.lat[j], piece.exc[j], only_across >> j & 1)
    };
    let twins_of = |i: usize| {
        let before = (0..i).filter(|&j| alike(i, j) && relation.succs[i] & !relation.succs[j] == 0);
        before.fold(0, |set, j| set | 1 << j)
    };
    (0..piece.operator_count()).map(twins_of).collect()
}

impl Searcher<'_> {
    /// The extensions of a state that are tried.
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
            let ready = self.ready_time(i, running, (node.time, runs));
            let turn = self.start_after_twins(i, running, (node, runs));
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
        // Alone between two idle moments an operator would be faster across all cores.
        if let &[run] = runs
            && self.barriers
            && node.idle | 1 << run.op == node.set
            && piece.exc[run.op as usize] != NEVER
        {
            moves.retain(|m| m.start < run.finish);
        }
    }

    /// When an operator whose predecessors have all started finds them ended.
    fn ready_time(&self, i: usize, running: OperatorBitset, (time, runs): (u64, &[RunningOperator])) -> u64 {
        let preds = self.relation.preds[i];
        if preds & running == 0 {
            return time;
        }
        runs.iter().filter(|r| preds >> r.op & 1 == 1).fold(time, |ready, run| ready.max(run.finish))
    }

    /// From when on an operator has to wait for a twin to start first.
    fn start_after_twins(&self, i: usize, running: OperatorBitset, (node, runs): (&SearchState, &[RunningOperator])) -> u64 {
        let twins = set_members(self.twins[i] & !node.set)
            .filter(|&j| self.relation.preds[j] & !node.set == 0 && (node.settled >> j ^ node.settled >> i) & 1 == 0);
        twins.map(|j| self.ready_time(j, running, (node.time, runs))).min().unwrap_or(u64::MAX)
    }

    /// What is settled once an operator starts on one core at an idle moment: of `ready`, which did not run across all cores at that moment,
    /// all that could have. `None` where one of them only runs across all cores.
    pub fn settle_idle_operators(&self, ready: OperatorBitset) -> Option<OperatorBitset> {
        (ready & self.only_across == 0).then_some(ready & self.can_across)
    }
}
