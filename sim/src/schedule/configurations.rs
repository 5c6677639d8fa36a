//! Lower bounds from what can run at the same time.
//!
//! A *configuration* is a set of operators, each on one core or across all, that may run at one instant: no two of them ordered, enough
//! cores for all. A schedule is a sequence of configurations, and every operator is done when the configurations that hold it have lasted as
//! long as it takes in its mode. Dropping the order in time and letting operators stop, resume and change mode halfway leaves a linear
//! program (the relaxation of Mingozzi, Maniezzo, Ricciardelli and Bianco, "An exact algorithm for the resource-constrained project
//! scheduling problem based on a new mathematical formulation", 1998, with modes):
//!
//! ```text
//! minimise  sum of x_c   where for each operator i   sum over c with i on one core x_c / lat_i  +  sum over c with i across x_c / exc_i  >= 1
//! ```
//!
//! Its dual prices operators: with prices per tick `on_i` on one core and `stops_i` across all such that no configuration costs more than
//! one per tick, any schedule lasts at least as long as what it pays, and operator `i` pays at least `min(on_i lat_i, stops_i exc_i)`. Prices
//! on a chain, or one over the cores on a kind of core, are special cases, so the bound is no lower than those of `bounds`. It does not rest on
//! how well the program was solved: any prices will do that pass a check, and the check is a search through all configurations.

use super::bounds::{Mixed, Relation, Set, members};
use super::piece::{LINK, NEVER, Piece};
use super::simplex::{Entry, Program};

/// Items that one set of bits can hold.
const MOST_ITEMS: usize = 128;
/// Nodes of one search for the dearest configuration.
const NODES: u32 = 4_000;
/// Pivots of one program, per operator.
const PIVOTS: usize = 12;
/// The program is solved far enough when the bound is this close to what it can still become.
const CLOSE: f64 = 1e-4;
/// A configuration enters the program when it costs more than one by this.
const DEARER: f64 = 1e-6;
/// Prices below this count as nothing; the check allows for it.
const NOTHING: f64 = 1e-12;
/// What rounding and uncounted prices may come to in a sum over a configuration.
const ROUNDING: f64 = 2.0 * NOTHING * MOST_ITEMS as f64;
/// Work that counts as one step of the search, in multiplications.
const STEP: u64 = 1_000;
/// Multiplications that a node of a search counts as.
const NODE: u64 = 30;

/// An operator in one of its modes.
#[derive(Debug, Clone, Copy)]
struct Item {
    op: u8,
    exclusive: bool,
    need: [u32; 3],
    /// The kind's bits.
    kind: u8,
    /// What it takes in this mode, in units of the longest operator.
    length: f64,
}

/// The configurations of a piece, and those that programs so far have used.
pub(super) struct Configurations<'a> {
    piece: &'a Piece,
    items: Vec<Item>,
    /// Per item, those that may run beside it as far as order goes.
    beside: Vec<u128>,
    /// Operators across all cores run alone: they are configurations of their own and not among the items.
    alone: bool,
    pool: Vec<u128>,
    unit: f64,
    work: u64,
}

/// A search for the configuration that costs most per tick.
struct Dearest<'c> {
    items: &'c [Item],
    beside: &'c [u128],
    /// Prices and items, dearest first.
    order: Vec<(f64, usize)>,
    best: f64,
    chosen: u128,
    nodes: u32,
}

impl Dearest<'_> {
    /// Most that items of `candidates` from position `from` of the order can add where `free` cores are left.
    fn most(&self, from: usize, candidates: u128, free: [u32; 3]) -> f64 {
        let mut left = [free[0], free[1], free[0].min(free[1]), free[2]];
        let mut sum = 0.0;
        for &(price, k) in self.order[from..].iter().filter(|o| candidates >> o.1 & 1 == 1) {
            let kind = self.items[k].kind;
            let class = if kind == LINK { 3 } else { usize::from(kind) - 1 };
            if left[class] > 0 {
                left[class] -= 1;
                sum += price;
            }
        }
        sum
    }

    fn search(&mut self, from: usize, mut candidates: u128, free: [u32; 3], sum: f64, chosen: u128) {
        if sum > self.best {
            (self.best, self.chosen) = (sum, chosen);
        }
        for at in from..self.order.len() {
            let (price, k) = self.order[at];
            if candidates >> k & 1 == 0 {
                continue;
            }
            let need = self.items[k].need;
            if need.iter().zip(free).all(|(n, f)| *n <= f) {
                if self.nodes == 0 || sum + self.most(at, candidates, free) <= self.best + NOTHING {
                    return;
                }
                self.nodes -= 1;
                let rest = [free[0] - need[0], free[1] - need[1], free[2] - need[2]];
                self.search(at + 1, candidates & self.beside[k], rest, sum + price, chosen | 1 << k);
            }
            candidates &= !(1 << k);
        }
    }
}

/// The operators and modes that one program is about.
struct Scope {
    operators: Vec<usize>,
    /// The row of each operator.
    row: Vec<usize>,
    /// Their items in modes that they may run in.
    items: u128,
    /// Operators that may run across all cores.
    across: Set,
    /// Operators that may run on one core.
    single: Set,
}

impl<'a> Configurations<'a> {
    /// `None` when the piece has more operators and modes than a set of bits holds.
    pub fn of(piece: &'a Piece, relation: &Relation) -> Option<Self> {
        let n = piece.n();
        let alone = !piece.own_kind && piece.m[2] == 0;
        let unit = (0..n).map(|i| piece.shortest(i)).max().unwrap_or(1) as f64;
        let item = |i: usize, exclusive: bool| Item {
            op: i as u8,
            exclusive,
            need: piece.need(i, exclusive),
            kind: piece.kind[i],
            length: (if exclusive { piece.exc[i] } else { piece.lat[i] }) as f64 / unit,
        };
        let mut items: Vec<Item> = (0..n).map(|i| item(i, false)).collect();
        if !alone {
            items.extend((0..n).filter(|&i| piece.exc[i] != NEVER).map(|i| item(i, true)));
        }
        if items.len() > MOST_ITEMS {
            return None;
        }
        let mut related: Vec<Set> = (0..n).map(|i| relation.descendants[i] | 1 << i).collect();
        for i in 0..n {
            for j in members(relation.descendants[i]) {
                related[j] |= 1 << i;
            }
        }
        let free_of = |item: &Item| {
            let apart = related[item.op as usize];
            (0..items.len()).filter(|&k| apart >> items[k].op & 1 == 0).fold(0, |set, k| set | 1 << k)
        };
        let beside = items.iter().map(free_of).collect();
        Some(Self { piece, items, beside, alone, pool: Vec::new(), unit, work: 0 })
    }

    /// Work done so far, in steps of the search.
    pub fn steps(&self) -> u64 {
        self.work / STEP
    }

    /// The dearest configuration of `candidates` that leaves `free` cores, and its price. `None` where the search was cut short.
    fn dearest(&mut self, prices: &[f64], candidates: u128, free: [u32; 3]) -> Option<(f64, u128)> {
        let mut order: Vec<(f64, usize)> = members(candidates).map(|k| (prices[k], k)).filter(|p| p.0 > NOTHING).collect();
        order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut search = Dearest { items: &self.items, beside: &self.beside, order, best: 0.0, chosen: 0, nodes: NODES };
        search.search(0, candidates, free, 0.0, 0);
        self.work += u64::from(NODES - search.nodes) * NODE;
        (search.nodes > 0).then_some((search.best, search.chosen))
    }

    fn scope(&self, set: Set, across: Set, single: Set) -> Scope {
        let can = members(set).filter(|&i| self.piece.exc[i] != NEVER).fold(0, |all: Set, i| all | 1 << i);
        let (may_across, may_single) = (can & !single, set & !(across & can));
        let mut row = vec![usize::MAX; self.piece.n()];
        for (r, i) in members(set).enumerate() {
            row[i] = r;
        }
        let allowed = |item: &Item| (if item.exclusive { may_across } else { may_single }) >> item.op & 1 == 1;
        let items = (0..self.items.len()).filter(|&k| allowed(&self.items[k])).fold(0, |all, k| all | 1 << k);
        Scope { operators: members(set).collect(), row, items, across: may_across, single: may_single }
    }

    /// Prices for the operators of a set of which `across` run across all cores and `single` do not, as good as the program gets them, and the
    /// part of each operator that the program runs across all cores. `None` where checking prices takes too long.
    pub fn solve(&mut self, set: Set, across: Set, single: Set) -> Option<(Mixed, Vec<f64>)> {
        let scope = self.scope(set, across, single);
        let shortest = |r: usize| {
            let i = scope.operators[r];
            let across = scope.across >> i & 1 == 1;
            let length = if across { self.piece.exc[i] } else { self.piece.lat[i] };
            Entry { row: r, per: self.unit / length as f64, across }
        };
        let mut program = Program::new((0..scope.operators.len()).map(shortest).collect());
        let mut best: (f64, Vec<f64>) = (0.0, Vec::new());
        let rows = scope.operators.len() as u64;
        for _ in 0..PIVOTS * scope.operators.len() {
            self.work += 2 * rows * rows;
            let pays = program.prices();
            if let Some(r) = pays.iter().position(|&u| u < -1e-9) {
                if !program.enter(vec![Entry { row: r, per: -1.0, across: false }], 0.0) {
                    break;
                }
                continue;
            }
            let (most, column) = self.column(&scope, &pays)?;
            if let Some(most) = most {
                let value = pays.iter().sum::<f64>() / most;
                if value > best.0 {
                    best = (value, pays.iter().map(|u| u / most).collect());
                }
                if most <= 1.0 + DEARER || program.value() <= best.0 * (1.0 + CLOSE) {
                    break;
                }
            }
            if column.is_empty() || !program.enter(column, 1.0) {
                break;
            }
        }
        if best.1.is_empty() {
            return None;
        }
        let mut share = vec![0.0; self.piece.n()];
        for (r, part) in program.across().into_iter().enumerate() {
            share[scope.operators[r]] = part;
        }
        Some((self.priced(&scope, &best.1)?, share))
    }

    /// A configuration that costs more than one per tick where operators pay `pays` in all, and the most that any costs, if known.
    fn column(&mut self, scope: &Scope, pays: &[f64]) -> Option<(Option<f64>, Vec<Entry>)> {
        let across = |i: usize| Entry { row: scope.row[i], per: self.unit / self.piece.exc[i] as f64, across: true };
        let mut most = 1.0 + DEARER;
        let mut column = Vec::new();
        if self.alone {
            for entry in members(scope.across).map(across) {
                if pays[entry.row] * entry.per > most {
                    most = pays[entry.row] * entry.per;
                    column = vec![entry];
                }
            }
            if !column.is_empty() {
                return Some((None, column));
            }
        }
        let mut prices = vec![0.0; self.items.len()];
        for k in members(scope.items) {
            prices[k] = pays[scope.row[self.items[k].op as usize]] / self.items[k].length;
        }
        let mut chosen = 0;
        self.work += self.pool.len() as u64 * 8;
        for known in self.pool.iter().map(|c| c & scope.items) {
            let price: f64 = members(known).map(|k| prices[k]).sum();
            if price > most {
                (most, chosen) = (price, known);
            }
        }
        let mut proven = None;
        if chosen == 0 {
            let (price, dearest) = self.dearest(&prices, scope.items, self.piece.m)?;
            (proven, chosen) = (Some(price.max(1.0 + DEARER)), dearest);
            self.pool.push(dearest);
        }
        let entry = |k: usize| {
            let item = &self.items[k];
            Entry { row: scope.row[item.op as usize], per: 1.0 / item.length, across: item.exclusive }
        };
        Some((proven, members(chosen).map(entry).collect()))
    }

    /// Turns what each operator pays in all into prices per tick, raises them as far as configurations allow, longest operator first, and scales
    /// them down to what the check finds.
    fn priced(&mut self, scope: &Scope, pays: &[f64]) -> Option<Mixed> {
        let mut prices = vec![0.0f64; self.items.len()];
        for k in members(scope.items) {
            let item = &self.items[k];
            prices[k] = pays[scope.row[item.op as usize]].max(0.0) / item.length;
        }
        let (most, _) = self.dearest(&prices, scope.items, self.piece.m)?;
        prices.iter_mut().for_each(|p| *p /= most.max(1.0));
        let mut longest: Vec<usize> = members(scope.items).collect();
        longest.sort_by(|&a, &b| self.items[b].length.total_cmp(&self.items[a].length));
        for k in longest {
            let need = self.items[k].need;
            let free = [self.piece.m[0] - need[0], self.piece.m[1] - need[1], self.piece.m[2] - need[2]];
            if let Some((rest, _)) = self.dearest(&prices, scope.items & self.beside[k], free) {
                prices[k] = prices[k].max(1.0 - rest - ROUNDING);
            }
        }
        let (most, _) = self.dearest(&prices, scope.items, self.piece.m)?;
        let scale = 1.0 / (most.max(1.0) + ROUNDING);
        let n = self.piece.n();
        let mut mixed = Mixed { on: vec![0.0; n], stops: vec![0.0; n], adds: vec![0.0; n], value: 0.0 };
        for i in members(if self.alone { scope.across } else { 0 }) {
            mixed.stops[i] = 1.0;
        }
        for k in members(scope.items) {
            let item = &self.items[k];
            let to = if item.exclusive { &mut mixed.stops } else { &mut mixed.on };
            to[item.op as usize] = prices[k] * scale;
        }
        for &i in &scope.operators {
            let may = |set: Set, pays: f64| if set >> i & 1 == 1 { pays } else { f64::INFINITY };
            let single = may(scope.single, mixed.on[i] * self.piece.lat[i] as f64);
            mixed.adds[i] = single.min(may(scope.across, mixed.stops[i] * self.piece.exc[i] as f64));
            mixed.value += mixed.adds[i];
        }
        Some(mixed)
    }
}
