//! Lower bounds on the makespan of a piece.
//!
//! - *Critical path*: no chain is faster than the sum of its operators' shortest modes.
//! - *Energy*: a set of operators on one kind of core takes at least its core-ticks divided by the number of cores,
//!   plus the shortest tail after it.
//! - *Mixed*: an operator across all cores is fast itself but stops everything else. A bound on one chain or one kind
//!   of core misses part of that cost; a weighted mean of such bounds includes it.
//!
//! Mixed weights sum to one over chains and kinds of core. Operator `i` then adds at least `min(a_i lat_i, b_i exc_i)`.
//! Here `a_i` is the weight of the chains and cores it is on, and `b_i` the weight of those it stops. Fictitious play
//! between the weights and the modes finds good weights (Brown, "Iterative solution of games by fictitious play",
//! 1951). Every iterate is a valid bound.

use super::list::successor_lists;
use super::piece::{LINK, NEVER, Piece, SEARCHABLE, TENSOR, VECTOR};

/// A set of operators of a piece of at most [`SEARCHABLE`] operators, one bit each.
pub(super) type OperatorBitset = u128;

/// Returns the operators of a set, ascending.
pub(super) fn set_members(set: OperatorBitset) -> impl Iterator<Item = usize> {
    // Half by half: most pieces have at most 64 operators.
    let (mut half, mut high, mut base) = (set as u64, (set >> 64) as u64, 0);
    std::iter::from_fn(move || {
        if half == 0 {
            if high == 0 {
                return None;
            }
            (half, high, base) = (high, 0, 64);
        }
        let i = half.trailing_zeros() as usize;
        half &= half - 1;
        Some(base + i)
    })
}

/// The precedence relation of a searchable piece, as bit sets.
#[derive(Debug, Clone)]
pub(super) struct PrecedenceSets {
    /// Direct predecessors of each operator.
    pub preds: Vec<OperatorBitset>,
    /// Direct successors.
    pub succs: Vec<OperatorBitset>,
    /// All successors, direct and indirect.
    pub descendants: Vec<OperatorBitset>,
}

impl PrecedenceSets {
    pub fn of_piece(piece: &Piece) -> Self {
        let n = piece.operator_count();
        debug_assert!(n <= SEARCHABLE);
        let (mut preds, mut succs, mut descendants) = (vec![0; n], vec![0; n], vec![0; n]);
        for (i, before) in preds.iter_mut().enumerate() {
            for &p in piece.predecessors(i) {
                *before |= 1 << p;
                succs[p as usize] |= 1 << i;
            }
        }
        for i in (0..n).rev() {
            descendants[i] = set_members(succs[i]).fold(succs[i], |all, s| all | descendants[s]);
        }
        Self { preds, succs, descendants }
    }

    /// Returns the set of all operators.
    pub fn all_operators(&self) -> OperatorBitset {
        first_operators(self.preds.len())
    }
}

/// Returns the set of operators `0..n`.
pub(super) fn first_operators(n: usize) -> OperatorBitset {
    if n >= 128 { OperatorBitset::MAX } else { (1 << n) - 1 }
}

/// Returns the fewest core-ticks that operator `i` takes from resource `k` (0: tensor cores, 1: vector cores, 2:
/// links).
pub(super) fn least_core_ticks(piece: &Piece, i: usize, k: usize) -> u64 {
    if piece.kind[i] & [TENSOR, VECTOR, LINK][k] == 0 {
        return 0;
    }
    piece.lat[i].min(piece.exc[i].saturating_mul(u64::from(piece.m[k])))
}

/// Returns the longest chain from each operator to the end, itself included, with every operator in its shortest mode.
pub(super) fn chain_tails(piece: &Piece) -> Vec<u64> {
    let n = piece.operator_count();
    let mut after = vec![0u64; n];
    let mut tail = vec![0u64; n];
    for i in (0..n).rev() {
        tail[i] = after[i] + piece.shortest_latency(i);
        for &p in piece.predecessors(i) {
            after[p as usize] = after[p as usize].max(tail[i]);
        }
    }
    tail
}

/// Returns the energy bound of the operators in `order` (sorted by falling `after`) on resource `k`. It is the largest,
/// over all prefixes, of the work per core plus the shortest tail.
fn energy_bound(piece: &Piece, k: usize, order: impl Iterator<Item = usize>, after: &[u64]) -> u64 {
    let m = u64::from(piece.m[k]);
    let (mut work, mut most) = (0, 0);
    for i in order {
        work += least_core_ticks(piece, i, k);
        most = most.max(work + m * after[i]);
    }
    most.div_ceil(m.max(1))
}

/// Returns a lower bound on the time after each operator's end: the best of the chain, energy and mixed bounds over its
/// descendants. `mixed_rounds` of 0 omits the mixed bound.
pub(super) fn strong_tails(piece: &Piece, relation: &PrecedenceSets, mixed_rounds: usize) -> Vec<u64> {
    let n = piece.operator_count();
    let mut after = vec![0u64; n];
    let mut orders: [Vec<usize>; 3] = Default::default();
    for i in (0..n).rev() {
        let below = relation.descendants[i];
        let mut best = set_members(relation.succs[i]).map(|s| after[s] + piece.shortest_latency(s)).max().unwrap_or(0);
        if below.count_ones() > 1 {
            for (k, order) in orders.iter().enumerate() {
                best = best.max(energy_bound(piece, k, order.iter().copied().filter(|&j| below >> j & 1 == 1), &after));
            }
            if mixed_rounds > 0 {
                best = best.max(MixedBound::search_weights(piece, relation, below, mixed_rounds).integer_bound());
            }
        }
        after[i] = best;
        for (k, order) in orders.iter_mut().enumerate() {
            if piece.kind[i] & [TENSOR, VECTOR, LINK][k] > 0 {
                let at = order.partition_point(|&j| after[j] > best);
                order.insert(at, i);
            }
        }
    }
    after
}

/// Returns a lower bound, in one pass over a piece of any size: the larger of the critical path and the energy bound
/// with tails.
pub(super) fn quick_lower_bound(piece: &Piece, tails: &[u64]) -> u64 {
    let n = piece.operator_count();
    let after: Vec<u64> = (0..n).map(|i| tails[i] - piece.shortest_latency(i)).collect();
    let mut best = tails.iter().copied().max().unwrap_or(0);
    for k in 0..3 {
        let mut order: Vec<usize> = (0..n).filter(|&i| piece.kind[i] & [TENSOR, VECTOR, LINK][k] > 0).collect();
        order.sort_unstable_by_key(|&i| std::cmp::Reverse(after[i]));
        best = best.max(energy_bound(piece, k, order.into_iter(), &after));
    }
    best
}

/// A weighted mean of chain and energy bounds; see the module documentation.
#[derive(Debug, Clone)]
pub(super) struct MixedBound {
    /// Per operator, the weight of the chains and cores that it is on.
    pub on: Vec<f64>,
    /// Per operator, the weight of the chains and cores that it stops while it runs across all cores.
    pub stops: Vec<f64>,
    /// Per operator, its least contribution: `min(on * lat, stops * exc)`.
    pub adds: Vec<f64>,
    /// The sum of `adds` over the set.
    pub value: f64,
}

/// Rounds a bound up to whole ticks, after a margin for its rounding error is taken off. Sums of up to 128 products of
/// weights below one have a relative error below 1e-13. Without the margin such an error could lift the bound past its
/// true value.
pub(super) fn round_down_safely(value: f64) -> u64 {
    (value * (1.0 - 1e-12) - 1e-9).max(0.0).ceil() as u64
}

/// A class of chains that a mixed bound can weigh.
struct ChainClass {
    /// Kinds whose latency counts on the chain.
    counted: u8,
    /// Kinds whose cores stop while an operator runs across all cores. The time of such an operator adds to the chain's
    /// length, even if the operator is not on the chain. If no kind is set, only operators on the chain count.
    blocked_through: u8,
}

impl MixedBound {
    /// The bound in whole ticks.
    pub fn integer_bound(&self) -> u64 {
        round_down_safely(self.value)
    }

    /// Plays `rounds` rounds of fictitious play over the operators of `set` and keeps the best weights.
    pub fn search_weights(piece: &Piece, relation: &PrecedenceSets, set: OperatorBitset, rounds: usize) -> Self {
        let n = piece.operator_count();
        let mut play = WeightGame {
            piece,
            relation,
            set,
            exclusive: (0..n).map(|i| if piece.exc[i] == NEVER { 0.0 } else { 0.5 }).collect(),
            column: (vec![0.0; n], vec![0.0; n]),
        };
        let (mut on, mut stops) = (vec![0.0; n], vec![0.0; n]);
        let mut best = Self { on: on.clone(), stops: stops.clone(), adds: vec![0.0; n], value: 0.0 };
        for round in 0..rounds {
            play.find_longest_column();
            let step = 2.0 / (round as f64 + 2.0);
            let mut value = 0.0;
            for i in set_members(set) {
                on[i] += step * (play.column.0[i] - on[i]);
                stops[i] += step * (play.column.1[i] - stops[i]);
                let single = on[i] * piece.lat[i] as f64;
                let across = if piece.exc[i] == NEVER { f64::INFINITY } else { stops[i] * piece.exc[i] as f64 };
                value += single.min(across);
                if piece.exc[i] != NEVER {
                    let reply = if across < single { 1.0 } else { 0.0 };
                    play.exclusive[i] += step * (reply - play.exclusive[i]);
                }
            }
            if value > best.value {
                best.value = value;
                best.on.copy_from_slice(&on);
                best.stops.copy_from_slice(&stops);
            }
        }
        for i in set_members(set) {
            let single = best.on[i] * piece.lat[i] as f64;
            best.adds[i] = if piece.exc[i] == NEVER { single } else { single.min(best.stops[i] * piece.exc[i] as f64) };
        }
        best
    }
}

struct WeightGame<'a> {
    piece: &'a Piece,
    relation: &'a PrecedenceSets,
    set: OperatorBitset,
    /// Per operator, the fraction of rounds in which it ran across all cores.
    exclusive: Vec<f64>,
    /// The longest chain or most loaded kind of core under these fractions, as (`on`, `stops`) weights of 0, 1 or
    /// 1/cores.
    column: (Vec<f64>, Vec<f64>),
}

impl WeightGame<'_> {
    /// Writes the longest chain or the most loaded kind of core into `column`.
    fn find_longest_column(&mut self) {
        let resource = (0..3).map(|k| (self.load_per_core(k), k)).max_by(|a, b| a.0.total_cmp(&b.0));
        let classes: &[ChainClass] = match (self.piece.own_kind, self.piece.m[2] > 0) {
            (false, false) => &[ChainClass { counted: TENSOR | VECTOR, blocked_through: TENSOR | VECTOR }],
            (false, true) => &[
                ChainClass { counted: TENSOR | VECTOR, blocked_through: TENSOR | VECTOR },
                ChainClass { counted: TENSOR | VECTOR | LINK, blocked_through: 0 },
            ],
            (true, _) => &[
                ChainClass { counted: TENSOR, blocked_through: TENSOR },
                ChainClass { counted: VECTOR, blocked_through: VECTOR },
                ChainClass { counted: TENSOR | VECTOR | LINK, blocked_through: 0 },
            ],
        };
        let chain = classes.iter().map(|class| self.longest_chain(class)).max_by(|a, b| a.0.total_cmp(&b.0));
        self.column.0.fill(0.0);
        self.column.1.fill(0.0);
        match (resource, chain) {
            (Some((load, k)), Some((length, _, _))) if load >= length => {
                for i in set_members(self.set) {
                    self.column.0[i] = f64::from(u8::from(self.uses_kind(i, k))) / f64::from(self.piece.m[k].max(1));
                    self.column.1[i] = f64::from(u8::from(self.blocks_kind(i, k)));
                }
            }
            (_, Some((_, on, stops))) => {
                for i in set_members(self.set) {
                    self.column.0[i] = f64::from(u8::from(on >> i & 1 == 1));
                    self.column.1[i] = f64::from(u8::from(stops >> i & 1 == 1));
                }
            }
            _ => {}
        }
    }

    fn uses_kind(&self, i: usize, k: usize) -> bool {
        self.piece.kind[i] & [TENSOR, VECTOR, LINK][k] > 0
    }

    /// True if operator `i` across all cores blocks every core of kind `k`.
    fn blocks_kind(&self, i: usize, k: usize) -> bool {
        k < 2 && self.piece.exc[i] != NEVER && (!self.piece.own_kind || self.uses_kind(i, k))
    }

    fn load_per_core(&self, k: usize) -> f64 {
        let m = f64::from(self.piece.m[k].max(1));
        let mut sum = 0.0;
        for i in set_members(self.set) {
            if self.uses_kind(i, k) {
                sum += (1.0 - self.exclusive[i]) * self.piece.lat[i] as f64 / m;
            }
            if self.blocks_kind(i, k) {
                sum += self.exclusive[i] * self.piece.exc[i] as f64;
            }
        }
        sum
    }

    /// Returns the longest chain of a class: its length, the operators on it and the operators that stop it.
    fn longest_chain(&self, class: &ChainClass) -> (f64, OperatorBitset, OperatorBitset) {
        let mut end = [0.0f64; SEARCHABLE];
        let mut from = [u8::MAX; SEARCHABLE];
        let (mut longest, mut last) = (0.0, None);
        let mut stopped = 0.0;
        let (mut on, mut stops): (OperatorBitset, OperatorBitset) = (0, 0);
        for i in set_members(self.set) {
            let mut start = 0.0;
            for p in set_members(self.relation.preds[i] & self.set) {
                if end[p] > start {
                    start = end[p];
                    from[i] = p as u8;
                }
            }
            let counted = self.piece.kind[i] & class.counted > 0;
            let mut weight = if counted { (1.0 - self.exclusive[i]) * self.piece.lat[i] as f64 } else { 0.0 };
            if self.piece.exc[i] != NEVER {
                let across = self.exclusive[i] * self.piece.exc[i] as f64;
                let blocks_all = class.blocked_through > 0
                    && (!self.piece.own_kind || self.piece.kind[i] & class.blocked_through > 0);
                if blocks_all {
                    stopped += across;
                    stops |= 1 << i;
                } else if class.blocked_through == 0 && counted {
                    weight += across;
                }
            }
            end[i] = start + weight;
            if end[i] > longest {
                longest = end[i];
                last = Some(i);
            }
        }
        while let Some(i) = last {
            if self.piece.kind[i] & class.counted > 0 {
                on |= 1 << i;
                if class.blocked_through == 0 {
                    stops |= 1 << i;
                }
            }
            last = (from[i] != u8::MAX).then_some(from[i] as usize);
        }
        (longest + stopped, on, stops)
    }
}

/// Returns the operators that every optimal schedule runs across all cores. The test runs an operator across all cores,
/// and then everything that can run in parallel with it, one after another. If this takes less time than the operator
/// alone on one core, the operator is found.
pub(super) fn find_only_across(piece: &Piece, relation: &PrecedenceSets) -> OperatorBitset {
    let n = piece.operator_count();
    let mut related: Vec<OperatorBitset> = (0..n).map(|i| relation.descendants[i] | 1 << i).collect();
    for i in 0..n {
        for j in set_members(relation.descendants[i]) {
            related[j] |= 1 << i;
        }
    }
    let mut found: OperatorBitset = 0;
    loop {
        let before = found;
        for i in (0..n).filter(|&i| piece.exc[i] != NEVER) {
            let beside = set_members(relation.all_operators() & !related[i])
                .filter(|&j| found >> j & 1 == 0 || !piece.excludes(j, i));
            if piece.exc[i] + beside.map(|j| piece.shortest_latency(j)).sum::<u64>() < piece.lat[i] {
                found |= 1 << i;
            }
        }
        if found == before {
            return found;
        }
    }
}

/// Returns the longest chain from each operator to the end, itself included, with every operator on one core. It is a
/// priority for list schedules.
pub(super) fn successors_and_tails(piece: &Piece) -> Vec<u64> {
    let (offsets, succs) = successor_lists(piece);
    let mut tail = vec![0u64; piece.operator_count()];
    for i in (0..piece.operator_count()).rev() {
        let below =
            succs[offsets[i] as usize..offsets[i + 1] as usize].iter().map(|&s| tail[s as usize]).max().unwrap_or(0);
        tail[i] = below + piece.lat[i];
    }
    tail
}
