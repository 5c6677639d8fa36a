//! A lower bound on every schedule of a precedence order. The order is prepared once; the operators' times may
//! themselves be lower bounds.
//!
//! Pieces follow one another, so each has its own bound, the largest of three:
//! - *Critical path*: no chain is faster than the sum of its operators' shorter modes.
//! - *Work*: on each kind of core an operator takes its time on one core divided by the number of cores, or its time
//!   across all cores.
//! - *Chains*: an operator across all cores stops every chain. Let c chains cover the operators on cores. Each chain
//!   takes the operators on it that run on one core, and all operators that run across all cores. So in the mean over
//!   the chains an operator adds its time across all cores, or 1/c of its time on one core. With many cores the time
//!   across them is shorter, and then no two operators run in parallel.

use super::problem::{Cores, Exclusivity, OperatorKind};

/// Lower bounds on an operator's two latencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OperatorLeastTimes {
    /// The resources that it occupies.
    pub kind: OperatorKind,
    /// On one core, or on a link.
    pub one: f64,
    /// Across all cores; infinite if the operator cannot run across them.
    pub all: f64,
}

/// A precedence order, cut into pieces that follow one another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outline {
    /// Operators in a topological order, piece after piece.
    order: Vec<u32>,
    /// By position in `order`: true if a chain of the operator's piece covers it.
    covered: Vec<bool>,
    pieces: Vec<OutlinePiece>,
    /// By position in `order`: the offset of the operator's predecessors inside its piece in `before`. `before` holds
    /// these predecessors as positions.
    offsets: Vec<u32>,
    before: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct OutlinePiece {
    /// The position in [`Outline::order`] at which it ends.
    end: usize,
    /// The number of chains that cover its covered operators, each in one chain.
    chains: u32,
}

impl Outline {
    /// Returns the outline of `n` operators; edges go from an earlier operator to a later one. `covered` returns true
    /// if an operator is known to occupy cores. The chain bound counts only these.
    #[must_use]
    pub fn new(n: usize, edges: &[(u32, u32)], covered: impl Fn(usize) -> bool) -> Self {
        let ancestors = Ancestors::close_precedence(n, edges);
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_by_key(|&i| ancestors.count_ancestors(i as usize));
        let ends = ancestors.find_cuts(&order);
        let mut place = vec![0; n];
        for (at, &i) in order.iter().enumerate() {
            place[i as usize] = at;
        }
        let mut waits: Vec<Vec<u32>> = vec![Vec::new(); n];
        for &(from, to) in edges {
            waits[place[to as usize]].push(place[from as usize] as u32);
        }
        let (mut pieces, mut offsets, mut before, mut start) = (Vec::new(), vec![0], Vec::new(), 0);
        for end in ends {
            let members = order[start..end].iter().map(|&i| i as usize).filter(|&i| covered(i));
            pieces.push(OutlinePiece { end, chains: ancestors.count_chains(members) });
            for waits in &waits[start..end] {
                before.extend(waits.iter().filter(|&&at| at as usize >= start));
                offsets.push(before.len() as u32);
            }
            start = end;
        }
        let covered = order.iter().map(|&i| covered(i as usize)).collect();
        Self { order, covered, pieces, offsets, before }
    }

    /// Returns a lower bound on every schedule on these cores, in the unit of the operators' times. `chains` includes
    /// the chain bound, which holds only under [`Exclusivity::AllCores`] and is left out otherwise. Unlike the other
    /// bounds, the chain bound may fall if there are fewer cores, because cores share the memories.
    #[must_use]
    pub fn lower_bound(&self, cores: &Cores, chains: bool, mut of: impl FnMut(usize) -> OperatorLeastTimes) -> f64 {
        let counts = [cores.tensor_cores, cores.vector_cores, cores.network_links].map(|count| f64::from(count.max(1)));
        let chains = chains && cores.exclusivity == Exclusivity::AllCores;
        let mut ends = vec![0.0_f64; self.order.len()];
        let (mut total, mut start) = (0.0, 0);
        for piece in &self.pieces {
            let (mut path, mut work, mut mean) = (0.0_f64, [0.0_f64; 3], 0.0);
            for at in start..piece.end {
                let OperatorLeastTimes { kind, one, all } = of(self.order[at] as usize);
                let waits = &self.before[self.offsets[at] as usize..self.offsets[at + 1] as usize];
                let from = waits.iter().map(|&earlier| ends[earlier as usize]).fold(0.0, f64::max);
                ends[at] = from + one.min(all);
                path = path.max(ends[at]);
                let used = [kind.uses_tensor(), kind.uses_vector(), kind == OperatorKind::Network];
                for ((work, count), _) in work.iter_mut().zip(counts).zip(used).filter(|(_, used)| *used) {
                    *work += (one / count).min(all);
                }
                if self.covered[at] && kind != OperatorKind::Network {
                    mean += (one / f64::from(piece.chains)).min(all);
                }
            }
            let mean = if chains { mean } else { 0.0 };
            total += work.into_iter().fold(path.max(mean), f64::max);
            start = piece.end;
        }
        total
    }
}

/// The transitive closure of the precedence relation, as rows of bits.
struct Ancestors {
    words: usize,
    rows: Vec<u64>,
}

impl Ancestors {
    fn close_precedence(n: usize, edges: &[(u32, u32)]) -> Self {
        let words = n.div_ceil(64).max(1);
        let mut rows = vec![0_u64; words * n];
        let mut sorted = edges.to_vec();
        sorted.sort_unstable_by_key(|&(from, to)| (to, from));
        for (from, to) in sorted {
            let (from, to) = (from as usize, to as usize);
            for word in 0..words {
                rows[to * words + word] |= rows[from * words + word];
            }
            rows[to * words + from / 64] |= 1 << (from % 64);
        }
        Self { words, rows }
    }

    fn ancestor_row(&self, i: usize) -> &[u64] {
        &self.rows[i * self.words..(i + 1) * self.words]
    }

    fn count_ancestors(&self, i: usize) -> u32 {
        self.ancestor_row(i).iter().map(|word| word.count_ones()).sum()
    }

    fn is_ancestor(&self, i: usize, ancestor: usize) -> bool {
        self.ancestor_row(i)[ancestor / 64] >> (ancestor % 64) & 1 == 1
    }

    /// Returns the positions at which pieces end in an order by number of ancestors. A piece ends before position k if
    /// k and all later operators have everything before k as ancestors. An ancestor has fewer ancestors than its
    /// descendant, so counting the common ones is enough.
    fn find_cuts(&self, order: &[u32]) -> Vec<usize> {
        let (mut common, mut ends) = (vec![u64::MAX; self.words], vec![order.len()]);
        for k in (1..order.len()).rev() {
            for (common, row) in common.iter_mut().zip(self.ancestor_row(order[k] as usize)) {
                *common &= row;
            }
            if common.iter().map(|word| word.count_ones() as usize).sum::<usize>() == k {
                ends.push(k);
            }
        }
        ends.reverse();
        ends
    }

    /// Returns the number of chains that cover these operators, which are given in topological order. Each operator
    /// extends the chain whose end is its ancestor with the most ancestors.
    fn count_chains(&self, members: impl Iterator<Item = usize>) -> u32 {
        let mut last: Vec<usize> = Vec::new();
        for i in members {
            match last
                .iter_mut()
                .filter(|last| self.is_ancestor(i, **last))
                .max_by_key(|last| self.count_ancestors(**last))
            {
                Some(end) => *end = i,
                None => last.push(i),
            }
        }
        last.len().max(1) as u32
    }
}

#[cfg(test)]
#[path = "outline_tests.rs"]
mod tests;
