//! From the relaxation of a stage's mix to its integer optimum.
//!
//! Price every byte of stash at what the relaxation says it is worth. Every mix then costs the relaxation's value, plus the
//! price of the budget it leaves unused, plus the reduced costs (never negative) of its pieces that take another policy than the relaxation's.
//! Such deviations are added, cheapest first, as long as their reduced cost stays below what the best mix found exceeds the relaxation
//! by; each set of them is completed with the relaxation's own two policies. A plain enumeration does nearly always; where many
//! deviations are nearly free it meets the same totals again and again, and a shortest-path search that drops what others cover takes over.

use super::mix::{Cap, Choice, Mix, Part, Relaxed};
use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};

/// Above this many sets of deviations the shortest-path search takes over.
const ENUMERATION_LIMIT: usize = 300;
/// States that later ones are compared with in full: the cheapest, which cover most.
const COMPARED_STATES: usize = 64;
/// Parts with more than one policy that a state can count pieces of.
const COUNTED_PARTS: usize = 8;
/// Bits per count.
const COUNT_BITS: usize = 16;

/// Moving one piece of a part from the base to another policy.
struct Deviation {
    part: usize,
    choice: Choice,
    /// Stash and seconds beyond the base's.
    shift: i128,
    extra: f64,
    reduced: f64,
}

/// Some deviations, as far as they matter: how many pieces of each part, and what they add.
#[derive(Clone, Copy)]
struct State {
    reduced: f64,
    shift: i128,
    extra: f64,
    /// Pieces of each part that deviate, 16 bits each.
    used: u128,
    /// The state it came from in a list of states, and the deviation added; both 0 at the root, which is state 0.
    parent: usize,
    deviation: usize,
}

/// Orders the search: least reduced cost first, then by content, so that runs are the same.
struct Queued(State);

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (&self.0, &other.0);
        let key = |s: &State| (s.shift, s.used, s.deviation, s.parent);
        b.reduced.total_cmp(&a.reduced).then_with(|| key(b).cmp(&key(a)))
    }
}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Queued {}

/// Finds the integer optimum near a relaxation.
pub(super) struct Rounding<'a> {
    cap: &'a Cap,
    parts: &'a [Part],
    relaxed: &'a Relaxed,
    /// Above this many states a mix is returned with its bound instead of its proof.
    state_limit: usize,
    /// Base choice of each part.
    base: Vec<Choice>,
    base_stash: i128,
    base_extra: f64,
}

impl<'a> Rounding<'a> {
    pub fn new(cap: &'a Cap, parts: &'a [Part], relaxed: &'a Relaxed, state_limit: usize) -> Self {
        let base: Vec<Choice> =
            parts.iter().zip(&relaxed.at).filter_map(|(part, &position)| cap.classes[part.class].point(position)).collect();
        let counted = || parts.iter().zip(&base);
        let base_stash = counted().map(|(p, c)| p.count as i128 * i128::from(c.stash)).sum();
        let base_extra = counted().map(|(p, c)| p.count as f64 * c.extra).sum();
        Self { cap, parts, relaxed, state_limit, base, base_stash, base_extra }
    }

    /// The best mix under this cap if it beats `upper`, or else some mix under it; its bound holds for all of them or is `upper`.
    pub fn solve(&self, upper: f64, tolerance: f64) -> Option<Mix> {
        let root = State { reduced: 0.0, shift: 0, extra: 0.0, used: 0, parent: 0, deviation: 0 };
        let extra = self.completed(&root)?.0;
        // To matter, a mix must be faster than what is known by the tolerance.
        let known = tolerance + self.relaxed.value;
        let gap = upper.min(extra) - known;
        let deviations = if gap > 0.0 { self.deviations(gap) } else { Vec::new() };
        let mut search = Enumeration {
            rounding: self,
            deviations: &deviations,
            known,
            upper,
            best: extra,
            best_path: Vec::new(),
            path: Vec::new(),
            visited: 0,
        };
        let complete = search.visit(0, root);
        let (path, best, proven) =
            if complete { (search.best_path, search.best, true) } else { self.shortest_paths(root, &deviations, upper, known)? };
        let mut mix = self.mix(&path, &deviations, best)?;
        let counted = self.parts.len() <= COUNTED_PARTS && self.parts.iter().all(|p| p.count < 1 << COUNT_BITS);
        mix.bound = if proven && counted { best.min(upper) } else { self.relaxed.value };
        Some(mix)
    }

    /// The deviations of the best mix, its extra seconds, and whether that is proven.
    fn shortest_paths(&self, root: State, deviations: &[Deviation], upper: f64, known: f64) -> Option<(Vec<usize>, f64, bool)> {
        let mut states = vec![root];
        let (mut best, mut best_state) = (self.completed(&root)?.0, 0);
        let mut queue = BinaryHeap::new();
        self.extend(&states, 0, deviations, upper.min(best) - known, &mut queue);
        let mut seen: BTreeSet<(u128, i128)> = BTreeSet::new();
        let mut proven = true;
        while let Some(Queued(state)) = queue.pop() {
            if state.reduced >= upper.min(best) - known {
                break;
            }
            if !seen.insert((state.used, state.shift)) || states.iter().take(COMPARED_STATES).any(|s| self.covers(s, &state)) {
                continue;
            }
            if states.len() >= self.state_limit {
                proven = false;
                break;
            }
            states.push(state);
            if let Some((extra, _)) = self.completed(&state).filter(|(extra, _)| *extra < best) {
                (best, best_state) = (extra, states.len() - 1);
            }
            self.extend(&states, states.len() - 1, deviations, upper.min(best) - known, &mut queue);
        }
        let mut path = Vec::new();
        while best_state != 0 {
            path.push(states[best_state].deviation);
            best_state = states[best_state].parent;
        }
        Some((path, best, proven))
    }

    /// Pieces of a part that deviate.
    fn used(state: &State, part: usize) -> usize {
        if part < COUNTED_PARTS { (state.used >> (COUNT_BITS * part)) as usize & ((1 << COUNT_BITS) - 1) } else { 0 }
    }

    /// Whether whatever completes `b` completes `a` at least as well: `a`, perhaps with pieces on the faster hull point, has no
    /// more deviating pieces, stash and extra seconds.
    fn covers(&self, a: &State, b: &State) -> bool {
        let parts = self.parts.len().min(COUNTED_PARTS);
        if a.shift > b.shift || (0..parts).any(|p| Self::used(a, p) > Self::used(b, p)) {
            return false;
        }
        let Some((part, faster)) = self.faster() else { return a.extra <= b.extra };
        let per_piece = i128::from(faster.stash - self.base[part].stash);
        let pieces = (Self::used(b, part) - Self::used(a, part)) as i128;
        let pieces = pieces.min((b.shift - a.shift) / per_piece);
        a.extra - pieces as f64 * (self.base[part].extra - faster.extra) <= b.extra
    }

    /// A state with one more deviation; `None` where the part has no piece left to deviate.
    fn deviate(&self, from: &State, deviation: usize, d: &Deviation) -> Option<State> {
        let used = Self::used(from, d.part);
        (used < self.parts[d.part].count.min((1 << COUNT_BITS) - 1)).then_some(State {
            reduced: from.reduced + d.reduced,
            shift: from.shift + d.shift,
            extra: from.extra + d.extra,
            used: from.used + (1 << (COUNT_BITS * d.part)),
            parent: 0,
            deviation,
        })
    }

    /// Deviations of reduced cost below `gap`, cheapest first.
    fn deviations(&self, gap: f64) -> Vec<Deviation> {
        let mut deviations = Vec::new();
        for (part, base) in self.base.iter().enumerate().take(COUNTED_PARTS) {
            let class = &self.cap.classes[self.parts[part].class];
            let next = class.point(self.relaxed.at[part] + 1).filter(|_| self.relaxed.between == Some(part));
            for &choice in &class.choices {
                let shift = i128::from(choice.stash) - i128::from(base.stash);
                let extra = choice.extra - base.extra;
                let reduced = (extra + self.relaxed.price * shift as f64).max(0.0);
                let basic = choice.policy == base.policy || next.is_some_and(|n| n.policy == choice.policy);
                if !basic && reduced < gap {
                    deviations.push(Deviation { part, choice, shift, extra, reduced });
                }
            }
        }
        deviations.sort_by(|a, b| a.reduced.total_cmp(&b.reduced));
        deviations
    }

    /// Queues every state one deviation on.
    fn extend(&self, states: &[State], parent: usize, deviations: &[Deviation], gap: f64, queue: &mut BinaryHeap<Queued>) {
        let from = states[parent];
        for (index, d) in deviations.iter().enumerate().take_while(|(_, d)| from.reduced + d.reduced < gap) {
            queue.extend(self.deviate(&from, index, d).map(|state| Queued(State { parent, ..state })));
        }
    }

    /// Extra seconds of a state when as many of the other pieces of the part in between as the budget allows take the faster
    /// hull point, and how many those are; `None` where the deviations alone exceed the budget.
    fn completed(&self, state: &State) -> Option<(f64, usize)> {
        let left = i128::from(self.relaxed.budget) - self.base_stash - state.shift;
        if left < 0 {
            return None;
        }
        let extra = self.base_extra + state.extra;
        let Some((part, faster)) = self.faster() else { return Some((extra, 0)) };
        let used = Self::used(state, part);
        let per_piece = i128::from(faster.stash - self.base[part].stash);
        let pieces = (self.parts[part].count - used).min(usize::try_from(left / per_piece).unwrap_or(usize::MAX));
        Some((extra - pieces as f64 * (self.base[part].extra - faster.extra), pieces))
    }

    /// The part in between and its faster hull point.
    fn faster(&self) -> Option<(usize, Choice)> {
        let part = self.relaxed.between?;
        let point = self.cap.classes[self.parts[part].class].point(self.relaxed.at[part] + 1)?;
        Some((part, point))
    }

    fn mix(&self, path: &[usize], deviations: &[Deviation], extra: f64) -> Option<Mix> {
        let mut state = State { reduced: 0.0, shift: 0, extra: 0.0, used: 0, parent: 0, deviation: 0 };
        let mut rest: Vec<usize> = self.parts.iter().map(|p| p.count).collect();
        let mut counts: Vec<(usize, usize, usize)> = Vec::new();
        let mut take = |part: usize, policy: usize, pieces: usize| {
            rest[part] -= pieces;
            match counts.iter_mut().find(|(p, q, _)| (*p, *q) == (part, policy)) {
                Some((_, _, count)) => *count += pieces,
                None => counts.push((part, policy, pieces)),
            }
        };
        for &index in path {
            state = self.deviate(&state, index, &deviations[index])?;
            take(deviations[index].part, deviations[index].choice.policy, 1);
        }
        let (_, pieces) = self.completed(&state)?;
        if let Some((part, faster)) = self.faster() {
            take(part, faster.policy, pieces);
        }
        counts.extend(rest.iter().zip(&self.base).enumerate().map(|(i, (&n, c))| (i, c.policy, n)));
        Some(Mix::new(extra, counts))
    }
}

/// Every set of deviations below the gap, each once: in the order of the list, repeats allowed.
struct Enumeration<'a> {
    rounding: &'a Rounding<'a>,
    deviations: &'a [Deviation],
    known: f64,
    upper: f64,
    best: f64,
    best_path: Vec<usize>,
    path: Vec<usize>,
    visited: usize,
}

impl Enumeration<'_> {
    /// Visits every set that adds deviations from `first` on to `from`; false once there are too many.
    fn visit(&mut self, first: usize, from: State) -> bool {
        for index in first..self.deviations.len() {
            let deviation = &self.deviations[index];
            if from.reduced + deviation.reduced >= self.upper.min(self.best) - self.known {
                return true;
            }
            let Some(state) = self.rounding.deviate(&from, index, deviation) else { continue };
            self.visited += 1;
            if self.visited > ENUMERATION_LIMIT {
                return false;
            }
            self.path.push(index);
            if let Some((extra, _)) = self.rounding.completed(&state).filter(|(extra, _)| *extra < self.best) {
                self.best = extra;
                self.best_path.clone_from(&self.path);
            }
            if !self.visit(index, state) {
                return false;
            }
            self.path.pop();
        }
        true
    }
}
