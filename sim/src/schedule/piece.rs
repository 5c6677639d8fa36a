//! Cuts a problem into pieces. Operators that take no time are dropped. The rest is cut where everything before
//! precedes everything after; the makespans of such pieces add. Each piece gets a normal form in which isomorphic
//! layers are equal.

use super::problem::{Exclusivity, OperatorKind, Pairing, Problem};

/// The exclusive latency of an operator that cannot, or need never, run across all cores.
pub(super) const NEVER: u64 = u64::MAX;
/// Occupies a tensor core.
pub(super) const TENSOR: u8 = 1;
/// Occupies a vector core.
pub(super) const VECTOR: u8 = 2;
/// Occupies a link.
pub(super) const LINK: u8 = 4;
/// Largest size of a piece that is searched exactly: its operator sets are one `u128`.
pub(super) const SEARCHABLE: usize = 128;

/// A piece of a problem in normal form: operators in topological order, latencies divided by their greatest common
/// divisor. Problems with equal pieces have the same schedules, up to names and scale.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Piece {
    /// Ticks on one core.
    pub lat: Vec<u64>,
    /// Ticks across all cores; [`NEVER`] if that is impossible or no shorter.
    pub exc: Vec<u64>,
    /// The resources that each operator occupies, as a set of bits.
    pub kind: Vec<u8>,
    /// Tensor cores, vector cores, links. Counts above the number of operators make no difference and are cut off.
    pub m: [u32; 3],
    /// True if fused operators take cores of the same index.
    pub paired: bool,
    /// True if an operator across all cores blocks only cores of its own kinds.
    pub own_kind: bool,
    /// Direct predecessors (transitive reduction) in compressed rows: offsets, then indices.
    pub pred_offsets: Vec<u32>,
    /// See `pred_offsets`.
    pub pred_list: Vec<u32>,
}

/// A piece and its origin in the problem.
#[derive(Debug, Clone)]
pub(super) struct CutPiece {
    pub piece: Piece,
    /// Problem index of each operator of the piece.
    pub origin: Vec<u32>,
    /// The divisor of the latencies.
    pub scale: u64,
}

impl Piece {
    pub fn operator_count(&self) -> usize {
        self.lat.len()
    }

    pub fn predecessors(&self, i: usize) -> &[u32] {
        &self.pred_list[self.pred_offsets[i] as usize..self.pred_offsets[i + 1] as usize]
    }

    /// Returns the smaller latency of operator `i`.
    pub fn shortest_latency(&self, i: usize) -> u64 {
        self.lat[i].min(self.exc[i])
    }

    /// True if any operator is faster across all cores.
    pub fn has_exclusive(&self) -> bool {
        self.exc.iter().any(|&e| e != NEVER)
    }

    /// Returns the numbers of cores and links that operator `i` takes in a mode.
    pub fn need_in_mode(&self, i: usize, exclusive: bool) -> [u32; 3] {
        let kind = self.kind[i];
        if !exclusive {
            return [u32::from(kind & TENSOR > 0), u32::from(kind & VECTOR > 0), u32::from(kind & LINK > 0)];
        }
        let all = !self.own_kind;
        [if all || kind & TENSOR > 0 { self.m[0] } else { 0 }, if all || kind & VECTOR > 0 { self.m[1] } else { 0 }, 0]
    }

    /// True if operator `i` across all cores blocks `j`.
    pub fn excludes(&self, i: usize, j: usize) -> bool {
        self.kind[j] != LINK && (!self.own_kind || self.kind[i] & self.kind[j] > 0)
    }

    /// Returns the same piece with any tensor core paired with any vector core. The optimum of the result is a lower
    /// bound on the optimum of this piece.
    pub fn without_pairing(&self) -> Self {
        Self { paired: false, ..self.clone() }
    }

    /// True if pairing by index can make a difference.
    pub fn pairing_matters(&self) -> bool {
        self.paired && self.kind.contains(&(TENSOR | VECTOR))
    }

    /// Returns the piece with every edge reversed and its operators in reverse order. A schedule of the result, read
    /// backwards, is a schedule of this piece.
    pub fn reverse(&self) -> Self {
        let n = self.operator_count();
        let mut lists: Vec<Vec<u32>> = vec![Vec::new(); n];
        for i in 0..n {
            for &p in self.predecessors(i) {
                lists[n - 1 - p as usize].push((n - 1 - i) as u32);
            }
        }
        let (pred_offsets, pred_list) = compress_lists(&mut lists);
        let turn = |v: &[u64]| v.iter().rev().copied().collect();
        Self {
            lat: turn(&self.lat),
            exc: turn(&self.exc),
            kind: self.kind.iter().rev().copied().collect(),
            pred_offsets,
            pred_list,
            ..*self
        }
    }
}

fn compress_lists(lists: &mut [Vec<u32>]) -> (Vec<u32>, Vec<u32>) {
    let mut offsets = vec![0u32];
    let mut all = Vec::new();
    for list in lists {
        list.sort_unstable();
        all.extend_from_slice(list);
        offsets.push(all.len() as u32);
    }
    (offsets, all)
}

/// The transitive closure of the precedence relation over operators that take time, as rows of bits.
struct TransitiveClosure {
    words: usize,
    /// Problem index of each kept operator, in topological order.
    kept: Vec<u32>,
    /// `words` words per kept operator: its ancestors among the kept.
    rows: Vec<u64>,
}

impl TransitiveClosure {
    fn of_problem(problem: &Problem) -> Self {
        let (operators, n) = (problem.operators(), problem.operators().len());
        let kept: Vec<u32> = problem.topological_order().iter().copied().filter(|&i| takes_time(problem, i)).collect();
        let words = kept.len().div_ceil(64).max(1);
        let mut number = vec![u32::MAX; n];
        for (k, &i) in (0u32..).zip(&kept) {
            number[i as usize] = k;
        }
        let (offsets, sources) = super::problem::adjacency_lists(n, problem.edges().iter().map(|&(a, b)| (b, a)));
        let mut all = vec![0u64; words * operators.len()];
        for &i in problem.topological_order() {
            let i = i as usize;
            for &p in &sources[offsets[i]..offsets[i + 1]] {
                let p = p as usize;
                for w in 0..words {
                    let bits = all[p * words + w];
                    all[i * words + w] |= bits;
                }
                if number[p] != u32::MAX {
                    all[i * words + number[p] as usize / 64] |= 1 << (number[p] % 64);
                }
            }
        }
        let mut rows = Vec::with_capacity(words * kept.len());
        for &i in &kept {
            rows.extend_from_slice(&all[i as usize * words..(i as usize + 1) * words]);
        }
        Self { words, kept, rows }
    }

    fn ancestor_row(&self, k: usize) -> &[u64] {
        &self.rows[k * self.words..(k + 1) * self.words]
    }

    fn count_ancestors(&self, k: usize) -> u32 {
        self.ancestor_row(k).iter().map(|w| w.count_ones()).sum()
    }
}

fn takes_time(problem: &Problem, i: u32) -> bool {
    let operator = &problem.operators()[i as usize];
    operator.kind != OperatorKind::Nop && operator.latency > 0
}

/// Cuts a problem into pieces that follow one another.
pub(super) fn cut_into_pieces(problem: &Problem) -> Vec<CutPiece> {
    let closure = TransitiveClosure::of_problem(problem);
    let n = closure.kept.len();
    let mut order: Vec<(u32, u32)> = (0..n).map(|k| (closure.count_ancestors(k), k as u32)).collect();
    order.sort_unstable();
    // A piece ends before position k when the common ancestors of k and all later operators are everything before k. An
    // ancestor has fewer ancestors than its descendant, so the common ones always lie before k and counting them is
    // enough.
    let mut common = vec![u64::MAX; closure.words];
    let mut ends = vec![n];
    for k in (1..n).rev() {
        for (c, r) in common.iter_mut().zip(closure.ancestor_row(order[k].1 as usize)) {
            *c &= r;
        }
        if common.iter().map(|w| w.count_ones() as usize).sum::<usize>() == k {
            ends.push(k);
        }
    }
    ends.reverse();
    let mut pieces = Vec::with_capacity(ends.len());
    let mut from = 0;
    for end in ends {
        if end > from {
            pieces.push(normal_form(problem, &closure, &order[from..end]));
        }
        from = end;
    }
    pieces
}

/// Returns the whole problem as one piece; an empty list if every operator takes no time.
pub(super) fn as_one_piece(problem: &Problem) -> Vec<CutPiece> {
    let closure = TransitiveClosure::of_problem(problem);
    let mut order: Vec<(u32, u32)> = (0..closure.kept.len()).map(|k| (closure.count_ancestors(k), k as u32)).collect();
    order.sort_unstable();
    if order.is_empty() { Vec::new() } else { vec![normal_form(problem, &closure, &order)] }
}

/// Brings a piece to normal form: orders operators independently of their names, divides latencies by their greatest
/// common divisor, and keeps only direct edges.
fn normal_form(problem: &Problem, closure: &TransitiveClosure, members: &[(u32, u32)]) -> CutPiece {
    let operator = |k: u32| &problem.operators()[closure.kept[k as usize] as usize];
    let n = members.len();
    let mut scale = 0;
    for &(_, k) in members {
        let o = operator(k);
        scale = num_integer::gcd(scale, o.latency);
        if let Some(e) = o.exclusive_latency.filter(|&e| e < o.latency) {
            scale = num_integer::gcd(scale, e);
        }
    }
    let mut order: Vec<u32> = members.iter().map(|m| m.1).collect();
    if n > 1 {
        let colour = colour_operators(problem, closure, members, scale);
        let mut keyed: Vec<(u32, u64, u32)> = members.iter().zip(&colour).map(|(m, &c)| (m.0, c, m.1)).collect();
        keyed.sort_unstable();
        order.clear();
        order.extend(keyed.iter().map(|k| k.2));
    }
    let (mut pred_offsets, mut pred_list) = (Vec::with_capacity(n + 1), Vec::new());
    pred_offsets.push(0);
    let mut covered = vec![0u64; closure.words];
    let has = |row: &[u64], k: u32| row[k as usize / 64] >> (k % 64) & 1 == 1;
    for (i, &k) in order.iter().enumerate() {
        covered.fill(0);
        let (row, first) = (closure.ancestor_row(k as usize), pred_list.len());
        for p in (0..i).rev() {
            if has(row, order[p]) && !has(&covered, order[p]) {
                pred_list.push(p as u32);
                for (c, r) in covered.iter_mut().zip(closure.ancestor_row(order[p] as usize)) {
                    *c |= r;
                }
            }
        }
        pred_list[first..].reverse();
        pred_offsets.push(pred_list.len() as u32);
    }
    let piece = Piece {
        lat: order.iter().map(|&k| operator(k).latency / scale).collect(),
        exc: order
            .iter()
            .map(|&k| operator(k).exclusive_latency.filter(|&e| e < operator(k).latency).map_or(NEVER, |e| e / scale))
            .collect(),
        kind: order.iter().map(|&k| kind_bits(operator(k).kind)).collect(),
        m: limit_to_useful_cores(problem, &order.iter().map(|&k| operator(k).kind).collect::<Vec<_>>()),
        paired: problem.cores().pairing == Pairing::SameIndex,
        own_kind: problem.cores().exclusivity == Exclusivity::OwnKind,
        pred_offsets,
        pred_list,
    };
    CutPiece { piece, origin: order.iter().map(|&k| closure.kept[k as usize]).collect(), scale }
}

/// Returns the numbers of cores and links that can make a difference: at most the operators that use them. If cores
/// pair by index the limit is all operators, because a fused operator may have to skip indices.
fn limit_to_useful_cores(problem: &Problem, kinds: &[OperatorKind]) -> [u32; 3] {
    let cores = problem.cores();
    let users = |bit: u8| kinds.iter().filter(|&&k| kind_bits(k) & bit > 0).count() as u32;
    [(TENSOR, cores.tensor_cores), (VECTOR, cores.vector_cores), (LINK, cores.network_links)].map(|(bit, count)| {
        match users(bit) {
            0 => 0,
            _ if cores.pairing == Pairing::SameIndex && bit != LINK => count.min(kinds.len() as u32),
            users => count.min(users),
        }
    })
}

/// Returns a colour per operator, from its own properties and, in two rounds, the colours of its ancestors and
/// descendants. Operators that an isomorphism may exchange have equal colours; other operators rarely do. Pieces above
/// [`SEARCHABLE`] skip the rounds.
fn colour_operators(problem: &Problem, closure: &TransitiveClosure, members: &[(u32, u32)], scale: u64) -> Vec<u64> {
    const ROUNDS: usize = 2;
    let own = |&(_, k): &(u32, u32)| {
        let o = &problem.operators()[closure.kept[k as usize] as usize];
        let across = o.exclusive_latency.filter(|&e| e < o.latency).map_or(NEVER, |e| e / scale);
        mix_hash(mix_hash(mix_hash(0, u64::from(kind_bits(o.kind))), o.latency / scale), across)
    };
    let mut colour: Vec<u64> = members.iter().map(own).collect();
    if members.len() > SEARCHABLE {
        return colour;
    }
    for _ in 0..ROUNDS {
        let mut sums = vec![(0u64, 0u64); members.len()];
        for (i, &(_, k)) in members.iter().enumerate() {
            let row = closure.ancestor_row(k as usize);
            for (j, &(_, p)) in members[..i].iter().enumerate() {
                if row[p as usize / 64] >> (p % 64) & 1 == 1 {
                    sums[i].0 = sums[i].0.wrapping_add(mix_hash(1, colour[j]));
                    sums[j].1 = sums[j].1.wrapping_add(mix_hash(2, colour[i]));
                }
            }
        }
        for (c, (above, below)) in colour.iter_mut().zip(sums) {
            *c = mix_hash(mix_hash(*c, above), below);
        }
    }
    colour
}

/// Applies one step of a 64-bit mixing function (the finaliser of `SplitMix64`).
fn mix_hash(seed: u64, value: u64) -> u64 {
    let mut z = (seed ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn kind_bits(kind: OperatorKind) -> u8 {
    match kind {
        OperatorKind::Tensor => TENSOR,
        OperatorKind::Vector => VECTOR,
        OperatorKind::TensorVector => TENSOR | VECTOR,
        OperatorKind::Network => LINK,
        OperatorKind::Nop => 0,
    }
}
