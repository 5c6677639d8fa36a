//! Which extensions of a state the search tries.
//!
//! # What is left out
//! - *Not active*: no operator starts once another could have run to its end before (Giffler and Thompson, 1960).
//! - *Twins*: of operators of the same kind and latencies, the first in number starts first, if it is ready by then and all that waits for
//!   the other waits for it too. In a schedule in which it starts later the two can change places, modes included.
//! - *Barriers*: where an operator across all cores waits for all others and stops all others, it runs at the first idle moment at which it
//!   is ready, or on one core. Later on it could be moved there, between two stretches of the schedule. Of those that follow
//!   one another and do not wait for one another the first in number runs first.
//! - *The other order*: where two operators start at the same time and the same state before allows both orders, the first in number goes
//!   first: both lead to the same state.
//!
//! # Why no optimum is lost
//! These rules and dominance each speak of another schedule that is as good; together they must not send the search round in a circle. Call
//! a state that was expanded *good* if some completion of it, allowed or not, has the optimal makespan. The root is good. A good state with
//! an active completion has a next operator there, and leads on to another good state unless that operator is left out. Let `x` be the
//! number of operators across all cores in the completion. It never grows from here on:
//! - A state that is dropped because another dominates it leaves that one, with the same completion, as many operators on.
//! - Twins change places within the completion; the next operator is now an earlier one, and there are finitely many.
//! - An operator across all cores that could have run at an earlier idle moment is taken out of the completion and put there: the state at
//!   that moment was expanded, and with the operator added to it is good, and `x` is one less. (It is that state at which an
//!   operator that is ready and does not run becomes one that runs on one core only: `Searcher::settled`.)
//! - Operators in the other order lead from the same state before to this one with the next operator added. The first of them may be added
//!   there: what would forbid it, forbids it here. So may the second then, or, should another state dominate in between
//!   at which it may not, its place is at an earlier idle moment and `x` is one less. The rule holds back where the first would make a twin of
//!   the second ready, which then had to come before it.
//!
//! So either the state has more operators than before, or `x` is less: the search gets to the end of a schedule of optimal makespan.

use super::bounds::{Relation, Set, full, members};
use super::layer::{Move, Node};
use super::piece::{NEVER, Piece};
use super::state::{NO_SLOT, Run, Searcher};

/// Per operator, those of a lower number that can take its place in any schedule in which they start later.
pub(super) fn twins(piece: &Piece, relation: &Relation, only_across: Set) -> Vec<Set> {
    let alike = |i: usize, j: usize| {
        (piece.kind[i], piece.lat[i], piece.exc[i], only_across >> i & 1)
            == (piece.kind[j], piece.lat[j], piece.exc[j], only_across >> j & 1)
    };
    let twins_of = |i: usize| {
        let before = (0..i).filter(|&j| alike(i, j) && relation.succs[i] & !relation.succs[j] == 0);
        before.fold(0, |set, j| set | 1 << j)
    };
    (0..piece.n()).map(twins_of).collect()
}

impl Searcher<'_> {
    /// The extensions of a state that are tried.
    pub fn moves(&self, node: &Node, runs: &[Run], moves: &mut Vec<Move>) {
        let piece = self.piece;
        let earliest = self.slots.earliest(piece, node.time, runs);
        moves.clear();
        let running: Set = runs.iter().fold(0, |set, run| set | 1 << run.op);
        for i in members(full(piece.n()) & !node.set) {
            let preds = self.relation.preds[i];
            if preds & !node.set != 0 {
                continue;
            }
            let ready = self.ready(i, running, (node.time, runs));
            let turn = self.twins_turn(i, running, (node, runs));
            let later = node.set != 0 && (i as u8) < node.step.op && preds >> node.step.op & 1 == 0;
            let swapped = later && node.step.start == node.time && ready <= node.time;
            let mut push = |exclusive: bool, slot: u8, start: u64| {
                if start < turn && (!swapped || start != node.time || exclusive || node.step.exclusive) {
                    let length = if exclusive { piece.exc[i] } else { piece.lat[i] };
                    moves.push(Move { op: i as u8, exclusive, slot, start, finish: start + length });
                }
            };
            if self.only_across >> i & 1 == 0 {
                self.slots.single_starts(piece, i, ready, &earliest, |slot, start| push(false, slot, start));
            }
            if piece.exc[i] != NEVER && (!self.barriers || self.in_turn(i, later, node)) {
                push(true, NO_SLOT, ready.max(earliest.all_cores(piece, i)));
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
    fn ready(&self, i: usize, running: Set, (time, runs): (u64, &[Run])) -> u64 {
        let preds = self.relation.preds[i];
        if preds & running == 0 {
            return time;
        }
        runs.iter().filter(|r| preds >> r.op & 1 == 1).fold(time, |ready, run| ready.max(run.finish))
    }

    /// From when on an operator has to wait for a twin to start first.
    fn twins_turn(&self, i: usize, running: Set, (node, runs): (&Node, &[Run])) -> u64 {
        let twins = members(self.twins[i] & !node.set).filter(|&j| self.relation.preds[j] & !node.set == 0);
        twins.map(|j| self.ready(j, running, (node.time, runs))).min().unwrap_or(u64::MAX)
    }

    /// Whether an operator may run across all cores at the next barrier. `later`: the last operator has a higher number, and this one does not
    /// wait for it.
    fn in_turn(&self, i: usize, later: bool, node: &Node) -> bool {
        let (preds, last) = (self.relation.preds[i], node.step.op as usize);
        if node.set != node.idle {
            return preds & !node.idle != 0;
        }
        let freed = self.relation.descendants[i] & !node.set;
        (node.stretch == Set::MAX || preds & !node.stretch != 0)
            && !(later && node.step.exclusive && self.twins[last] & freed == 0)
    }

    /// What is left of some cases once an operator starts on one core at an idle moment: those of `ready` that did not run across all cores
    /// at that moment will not later on. `None` where one of them has to.
    pub fn settled(&self, cases: u32, ready: Set) -> Option<u32> {
        if ready & self.only_across != 0 {
            return None;
        }
        Some(if self.cases.is_some() { members(ready).fold(cases, |left, i| self.cases_with(left, i, false)) } else { cases })
    }
}
