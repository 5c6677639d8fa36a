//! Lower bounds by cases: which operators run across all cores.
//!
//! Once it is settled how every operator runs, the bound of [`Configurations`] is nearly tight; what keeps it low is that its
//! program runs an operator half on one core and half across all. So the modes are split into cases, each a choice of modes for a few
//! operators with prices of its own: a small branch and bound over modes (Land and Doig, 1960), best case first. Every schedule falls
//! into one case, so the least of the cases' bounds holds for all, and a partial schedule need only be held against the cases that
//! agree with the modes it has chosen so far. A case whose bound reaches the best schedule known holds nothing better and is left out.

use super::bounds::{Mixed, Relation, Set, members, safe_ceil};
use super::configurations::Configurations;
use super::piece::{NEVER, Piece};

/// Most cases: a bit each.
pub(super) const CASES: usize = 32;
/// Operators that the relaxation does not split count as split this little.
const LEAST_SPLIT: f64 = 1e-6;

/// A choice of modes for some operators, and prices for the schedules that make it.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub across: Set,
    pub single: Set,
    pub prices: Mixed,
    /// Which part of each operator the relaxation runs across all cores.
    share: Vec<f64>,
    /// The best bound on its schedules, its own or that of a case it was split from.
    value: f64,
}

/// Cases that hold every schedule shorter than the best one known.
pub(super) struct Cases<'a> {
    pub list: Vec<Case>,
    /// Prices for all schedules.
    pub prices: Mixed,
    configurations: Configurations<'a>,
    all: Set,
}

impl<'a> Cases<'a> {
    /// The schedules of a piece in which `across` run across all cores and `single` do not, as one case. `None` where the relaxation is too hard.
    pub fn of(piece: &'a Piece, relation: &Relation, (across, single): (Set, Set)) -> Option<Self> {
        let mut configurations = Configurations::of(piece, relation)?;
        let all = relation.all();
        let (prices, share) = configurations.solve(all, across, single)?;
        let value = prices.value;
        Some(Self { list: vec![Case { across, single, prices: prices.clone(), share, value }], prices, configurations, all })
    }

    /// Leaves cases out that hold nothing better than `best`, and splits the others as far as there is room, until `most` steps are done.
    pub fn split(&mut self, piece: &Piece, best: u64, most: u64) {
        let open = &mut self.list;
        open.retain(|case| case.bound() < best);
        while open.len() < CASES && !open.is_empty() && self.configurations.steps() < most {
            let Some(at) = (0..open.len()).min_by(|&a, &b| open[a].value.total_cmp(&open[b].value)) else { break };
            let Some(parts) = open[at].split(piece, &mut self.configurations, self.all) else { break };
            open.swap_remove(at);
            open.extend(parts.into_iter().filter(|case| case.bound() < best));
        }
    }

    /// Work done so far, in steps of the search.
    pub fn steps(&self) -> u64 {
        self.configurations.steps()
    }

    /// No schedule is shorter than this, or than `best` where nothing is left.
    pub fn lower_bound(&self, best: u64) -> u64 {
        self.list.iter().map(Case::bound).min().unwrap_or(best)
    }

    /// The operators that run across all cores in every case, and those that do in none.
    pub fn common(&self) -> (Set, Set) {
        self.list.iter().fold((Set::MAX, Set::MAX), |(across, single), case| (across & case.across, single & case.single))
    }
}

impl Case {
    fn bound(&self) -> u64 {
        safe_ceil(self.value)
    }

    /// Two cases in place of one, by the mode of the operator that the relaxation splits most. `None` when no mode is open.
    fn split(&self, piece: &Piece, configurations: &mut Configurations<'_>, all: Set) -> Option<[Self; 2]> {
        let weight = |i: usize| self.share[i].min(1.0 - self.share[i]).max(LEAST_SPLIT) * piece.exc[i] as f64;
        let open = members(all & !self.across & !self.single).filter(|&i| piece.exc[i] != NEVER);
        let bit: Set = 1 << open.max_by(|&a, &b| weight(a).total_cmp(&weight(b)))?;
        let mut part = |across: Set, single: Set| {
            let (prices, share) = configurations.solve(all, across, single)?;
            let value = prices.value.max(self.value);
            Some(Self { across, single, prices, share, value })
        };
        Some([part(self.across | bit, self.single)?, part(self.across, self.single | bit)?])
    }
}

/// What cases charge operators, side by side, for the search to look up.
#[derive(Debug, Clone)]
pub(super) struct CaseTable {
    /// What each operator adds to each case's bound, and its prices per tick while it runs on one core and across all.
    adds: Vec<[f64; CASES]>,
    on: Vec<[f64; CASES]>,
    stops: Vec<[f64; CASES]>,
    /// Per operator, the cases in which it may run on one core, and those in which it may run across all.
    single: Vec<u32>,
    across: Vec<u32>,
    /// All cases.
    pub all: u32,
    /// More than the rounding of sums can come to.
    rounding: f64,
}

impl CaseTable {
    /// The cases of a piece of `n` operators, or of the piece reversed.
    pub fn of(cases: &Cases<'_>, n: usize, reversed: bool) -> Self {
        let mut table = Self {
            adds: vec![[0.0; CASES]; n],
            on: vec![[0.0; CASES]; n],
            stops: vec![[0.0; CASES]; n],
            single: vec![0; n],
            across: vec![0; n],
            all: 0,
            rounding: cases.list.iter().map(|c| c.value).fold(0.0, f64::max) * 1e-13,
        };
        for (c, case) in cases.list.iter().enumerate() {
            table.all |= 1 << c;
            for i in 0..n {
                let at = if reversed { n - 1 - i } else { i };
                table.adds[at][c] = case.prices.adds[i];
                table.on[at][c] = case.prices.on[i];
                table.stops[at][c] = case.prices.stops[i];
                table.single[at] |= u32::from(case.across >> i & 1 == 0) << c;
                table.across[at] |= u32::from(case.single >> i & 1 == 0) << c;
            }
        }
        table
    }

    /// The cases in which an operator may run so.
    pub fn with(&self, operator: usize, exclusive: bool) -> u32 {
        if exclusive { self.across[operator] } else { self.single[operator] }
    }

    /// What the operators of a set add to each case.
    pub fn adds_of(&self, set: Set) -> [f64; CASES] {
        let mut sums = [0.0f64; CASES];
        for i in members(set) {
            for (sum, add) in sums.iter_mut().zip(&self.adds[i]) {
                *sum += add;
            }
        }
        sums
    }

    /// The same without one operator of the set.
    pub fn without(&self, sums: &[f64; CASES], operator: usize) -> [f64; CASES] {
        let mut rest = *sums;
        for (sum, add) in rest.iter_mut().zip(&self.adds[operator]) {
            *sum -= add;
        }
        rest
    }

    /// The least time from `time` on in any of the `alive` cases, given what operators that have not started add and what runs (operator,
    /// mode, end). Without a case there is nothing better to find, at any time.
    pub fn bound(&self, sums: &[f64; CASES], alive: u32, time: u64, runs: impl Iterator<Item = (usize, bool, u64)>) -> u64 {
        let mut sums = *sums;
        for (i, exclusive, end) in runs {
            let left = end.saturating_sub(time) as f64;
            for (sum, price) in sums.iter_mut().zip(if exclusive { &self.stops[i] } else { &self.on[i] }) {
                *sum += price * left;
            }
        }
        let mut least = f64::INFINITY;
        let mut rest = alive;
        while rest != 0 {
            least = least.min(sums[rest.trailing_zeros() as usize]);
            rest &= rest - 1;
        }
        if alive == 0 { u64::MAX >> 1 } else { safe_ceil(least - self.rounding) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::super::bounds::chain_tails;
    use super::super::list::{Exclusive, list_schedule};
    use super::super::piece;
    use super::super::problem::{Cores, Exclusivity, Operator, OperatorKind, Pairing, Problem};
    use super::super::search::{Aim, Exploration};
    use super::super::state::Searcher;
    use super::*;

    /// A small generator (`SplitMix64`).
    fn draw(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 29)) % below
    }

    pub(in super::super) fn problem(seed: u64) -> Problem {
        let mut state = seed;
        let mut draw = |below: u64| draw(&mut state, below);
        let (links, operators) = (draw(2) as u32, 6 + draw(8));
        let cores = Cores {
            tensor_cores: 1 + draw(3) as u32,
            vector_cores: 1 + draw(3) as u32,
            network_links: links,
            pairing: if draw(2) == 0 { Pairing::AnyPair } else { Pairing::SameIndex },
            exclusivity: if draw(2) == 0 { Exclusivity::AllCores } else { Exclusivity::OwnKind },
        };
        let mut list = Vec::new();
        let mut edges = Vec::new();
        for i in 0..operators as u32 {
            let kind = match draw(8) {
                0 | 1 => OperatorKind::TensorVector,
                2..5 => OperatorKind::Tensor,
                5 | 6 => OperatorKind::Vector,
                _ if links > 0 => OperatorKind::Network,
                _ => OperatorKind::Vector,
            };
            let latency = 2 + draw(60);
            let across = latency.div_ceil(3) + draw(latency / 2 + 1);
            let exclusive_latency = (kind != OperatorKind::Network).then_some(across);
            list.push(Operator { kind, latency, exclusive_latency });
            edges.extend((0..i).filter(|_| draw(5) == 0).map(|before| (before, i)));
        }
        Problem::new(cores, list, edges).unwrap()
    }

    #[test]
    fn cases_bound_every_schedule_and_lose_none() {
        let mut split = 0;
        for seed in 0..300 {
            for cut in piece::whole(&problem(seed)) {
                let piece = &cut.piece;
                let relation = Relation::of(piece);
                let listed = list_schedule(piece, &chain_tails(piece), Exclusive::Alone).makespan + 1;
                let optimum = |searcher: &Searcher<'_>| {
                    let pass = Exploration::new(searcher).wave(listed, usize::MAX, Aim::Bounds, u64::MAX);
                    pass.found.map_or(listed, |found| found.makespan)
                };
                let plain = optimum(&Searcher::new(piece, 0));
                let mut cases = Cases::of(piece, &relation, (0, 0)).unwrap();
                cases.split(piece, listed, u64::MAX);
                let bound = cases.lower_bound(listed);
                assert!(bound <= plain, "seed {seed}: {bound} <= {plain}");
                let reversed = piece.reversed();
                for (way, turned) in [(piece, false), (&reversed, true)] {
                    let mut searcher = Searcher::new(way, 0);
                    searcher.cases = Some(CaseTable::of(&cases, piece.n(), turned));
                    assert!(searcher.root_bound() <= plain, "seed {seed} reversed {turned}");
                    assert_eq!(optimum(&searcher), plain, "seed {seed} reversed {turned}");
                }
                // With the optimum known all that is left are cases that could hold one as good.
                split += usize::from(cases.list.len() > 1);
                cases.split(piece, plain, u64::MAX);
                assert!(cases.lower_bound(plain) <= plain && cases.list.len() <= CASES, "seed {seed}");
            }
        }
        assert!(split > 200, "{split}");
    }
}
