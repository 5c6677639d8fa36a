//! Lower bounds from one idle moment to the next.
//!
//! Where an operator across all cores waits for all others and stops all others, a schedule falls into *stretches* between moments at which
//! all cores are idle: one operator in its shortest mode, or several on one core each. The latter last at least as long as the longest chain
//! among them, and as their work on either kind of core shared out evenly. With no more than that asked of stretches, a pass
//! forwards over all down-sets tells when each can have ended at an idle moment, and one backwards what is left then:
//!
//! ```text
//! reached(S + U) <= reached(S) + length(U)      left(S) <= length(U) + left(S + U)
//! ```
//!
//! (a state-space relaxation: Christofides, Mingozzi and Toth, "State-space relaxation procedures for the computation of bounds to
//! routing problems", 1981). Prices mix the modes of an operator, and know nothing of order beyond which operators exclude each other. Here modes
//! and order are whole; what is not seen is how badly operators pack. So these bounds are close where stretches are short, and
//! where they are long there are too many: the passes end when that shows.
//!
//! The stretches on a way that may still lead below the best schedule are kept. A state in which operators run is held against
//! those that began when it was last idle.

use super::bounds::{Mixed, Set, full, members, safe_ceil};
use super::layer::ByHash;
use super::piece::{TENSOR, VECTOR};
use super::state::{Run, Searcher, Since};

/// Most down-sets. Passes of models have up to 8,000. Eight times as many closed no more of 400 problems of 29 to 40 operators, sixteen
/// times as many none of the open ones of 80.
const MOST_SETS: usize = 1 << 14;
/// The passes end when they have tried more stretches than these, and these for each down-set that can be reached in time: of longer ones
/// there are many more, and they bound less than prices do. Passes of models that gain from it try hundreds for each.
const STRETCHES: u64 = 1 << 16;
const STRETCHES_PER_SET: u64 = 1 << 10;
/// And when they keep more than these, sixteen bytes each.
const MOST_KEPT: usize = 1 << 20;
/// Stretches, and down-sets, that take as long as one step of the search.
const STRETCHES_PER_STEP: u64 = 64;
const SETS_PER_STEP: u64 = 4;

/// A stretch that ends in some down-set.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    end: u32,
    /// How long it lasts at least.
    length: u64,
}

/// The down-sets of a piece, the empty one first, each before those that extend it.
struct DownSets {
    sets: Vec<Set>,
    index: ByHash<u32>,
    /// The operators that extend each by one, ascending, and what they lead to: those of a set lie from its offset to the next.
    extensions: Vec<(u8, u32)>,
    offsets: Vec<u32>,
}

impl DownSets {
    /// `None` where there are more than `most`.
    fn of(searcher: &Searcher<'_>, most: usize) -> Option<Self> {
        let all = searcher.relation.all();
        let mut found = Self { sets: vec![0], index: ByHash::default(), extensions: Vec::new(), offsets: vec![0] };
        found.index.insert(0, 0);
        let mut at = 0;
        while let Some(&set) = found.sets.get(at) {
            for i in members(all & !set).filter(|&i| searcher.relation.preds[i] & !set == 0) {
                let next = found.sets.len() as u32;
                let to = *found.index.entry(set | 1 << i).or_insert(next);
                if to == next {
                    found.sets.push(set | 1 << i);
                }
                found.extensions.push((i as u8, to));
            }
            if found.sets.len() > most {
                return None;
            }
            found.offsets.push(found.extensions.len() as u32);
            at += 1;
        }
        Some(found)
    }

    fn extensions(&self, at: u32) -> &[(u8, u32)] {
        &self.extensions[self.offsets[at as usize] as usize..self.offsets[at as usize + 1] as usize]
    }
}

/// Bounds on states from the idle moments behind them. See the module's head.
pub(super) struct IdleBounds {
    downs: DownSets,
    /// The work of each down-set on tensor and on vector cores, one core each, and how many cores there are.
    work: Vec<[u64; 2]>,
    cores: [u64; 2],
    /// What is left after each down-set takes at least, or enough to meet the best schedule.
    left: Vec<u64>,
    /// The stretches that may lead below the best schedule, most promising first: those from a set lie where its span says.
    stretches: Vec<Stretch>,
    spans: Vec<(u32, u32)>,
    /// Per down-set, the stretch that left a state of it open last.
    hints: Vec<u32>,
}

/// The pass forwards.
struct Forwards<'f, 'a> {
    searcher: &'f Searcher<'a>,
    downs: &'f DownSets,
    prices: &'f Mixed,
    /// What each operator pays more on one core than it has to.
    waste: Vec<f64>,
    work: Vec<[u64; 2]>,
    cores: [u64; 2],
    /// What is left after each down-set takes at least, as far as prices and chains tell.
    left: Vec<u64>,
    reached: Vec<u64>,
    best: u64,
    stretches: Vec<Stretch>,
    tried: u64,
    /// When the operators on one core end at the soonest, in a stretch from the set in hand.
    ends: Vec<u64>,
    /// Extensions to try: down-set, least operator to extend it by, longest chain, prices paid.
    open: Vec<(u32, u8, u64, f64)>,
}

impl IdleBounds {
    /// Of a piece whose operators across all cores are barriers, and the steps that it took. `prices` hold for every schedule below `best`.
    /// `None` where stretches are not worth it, or take more steps than there are.
    pub fn of(searcher: &Searcher<'_>, prices: &Mixed, best: u64, steps: u64) -> (Option<Self>, u64) {
        if !searcher.barriers || searcher.can_across == 0 {
            return (None, 0);
        }
        let most = MOST_SETS.min(steps.saturating_mul(SETS_PER_STEP) as usize);
        let Some(downs) = DownSets::of(searcher, most) else { return (None, most as u64 / SETS_PER_STEP) };
        let mut forwards = Forwards::new(searcher, &downs, prices, best);
        let mut spans = Vec::with_capacity(downs.sets.len());
        let mut sets = 0;
        for at in 0..downs.sets.len() as u32 {
            let from = forwards.stretches.len() as u32;
            let most = (STRETCHES + STRETCHES_PER_SET * sets).min(steps.saturating_mul(STRETCHES_PER_STEP));
            sets += u64::from(forwards.pass(at, most));
            spans.push((from, forwards.stretches.len() as u32));
            if forwards.tried > most || forwards.stretches.len() > MOST_KEPT {
                return (None, forwards.steps());
            }
        }
        let taken = forwards.steps();
        let Forwards { work, cores, reached, mut stretches, .. } = forwards;
        let mut left = vec![u64::MAX; downs.sets.len()];
        for at in (0..left.len()).rev() {
            let room = best.saturating_sub(reached[at]);
            let (from, until) = spans[at];
            // What no schedule below the best reaches leads to none.
            let mut least = if room == 0 { best } else { room };
            if at + 1 == left.len() {
                least = 0;
            }
            let mut live = from;
            for k in from..until {
                let stretch = stretches[k as usize];
                let rest = left[stretch.end as usize];
                if stretch.length < room && rest < room - stretch.length {
                    least = least.min(stretch.length + rest);
                    stretches[live as usize] = stretch;
                    live += 1;
                }
            }
            left[at] = least;
            spans[at].1 = live;
            stretches[from as usize..live as usize].sort_unstable_by_key(|s| (s.length + left[s.end as usize], s.end));
        }
        (Some(Self { hints: vec![0; left.len()], downs, work, cores, left, stretches, spans }), taken)
    }

    /// A lower bound on the whole piece.
    pub fn root(&self) -> u64 {
        self.left[0]
    }

    /// A lower bound on the completions of a state. Where operators run it tells no more than whether one may stay below `best`: 0, or `best`.
    pub fn bound(
        &mut self,
        searcher: &Searcher<'_>,
        (set, idle): (Set, Set),
        since: Since,
        (time, runs): (u64, &[Run]),
        best: u64,
        ends: &mut [u64],
    ) -> u64 {
        let at = |set: Set| self.downs.index.get(&set).map(|&at| at as usize);
        let (Some(now), Some(from)) = (at(set), at(idle)) else { return 0 };
        let Some(last) = runs.last() else { return time.saturating_add(self.left[now]) };
        let busy = [0, 1].map(|k| runs.iter().map(|r| u64::from(r.need.get(k)) * (r.finish - time)).sum::<u64>());
        put_ends(searcher, set, (time, runs), ends);
        let open = best.saturating_sub(since.idle);
        let (first, end) = self.spans[from];
        let may = |stretch: Stretch| {
            let to = stretch.end as usize;
            // What the stretch holds besides comes after now, on cores that are busy for a while.
            let until = best - self.left[to];
            if set & !self.downs.sets[to] != 0 || last.finish >= until {
                return false;
            }
            let most = until - 1 - time;
            let fits = |k: usize| self.work[to][k] - self.work[now][k] + busy[k] <= self.cores[k].saturating_mul(most);
            if !fits(0) || !fits(1) {
                return false;
            }
            members(self.downs.sets[to] & !set).all(|i| ends[i] < until)
        };
        let promising = |stretch: Stretch| stretch.length + self.left[stretch.end as usize] < open;
        // Where one stretch was left open before, it often is again.
        let known = self.hints[now];
        if (first..end).contains(&known) && promising(self.stretches[known as usize]) && may(self.stretches[known as usize]) {
            return 0;
        }
        let mut rest = (first..end).take_while(|&k| promising(self.stretches[k as usize]));
        match rest.find(|&k| may(self.stretches[k as usize])) {
            Some(k) => {
                self.hints[now] = k;
                0
            }
            None => best,
        }
    }
}

/// When the operators outside a down-set would end at the soonest, on one core each, beside those that run.
fn put_ends(searcher: &Searcher<'_>, set: Set, (time, runs): (u64, &[Run]), ends: &mut [u64]) {
    let piece = searcher.piece;
    let floor = searcher.slots.earliest_single(piece, time, runs);
    let left = searcher.relation.all() & !set;
    let mut waited_for = left;
    for run in runs {
        waited_for |= 1 << run.op;
        ends[run.op as usize] = run.finish;
    }
    for i in members(left) {
        let before = members(searcher.relation.preds[i] & waited_for).map(|p| ends[p]);
        ends[i] = before.fold(floor[piece.kind[i] as usize], u64::max).saturating_add(piece.lat[i]);
    }
}

impl<'f, 'a> Forwards<'f, 'a> {
    fn new(searcher: &'f Searcher<'a>, downs: &'f DownSets, prices: &'f Mixed, best: u64) -> Self {
        let piece = searcher.piece;
        let mut work = vec![[0; 2]; downs.sets.len()];
        for at in 0..downs.sets.len() {
            for &(i, to) in downs.extensions(at as u32) {
                let (lat, kind) = (piece.lat[i as usize], piece.kind[i as usize]);
                for (k, bit) in [TENSOR, VECTOR].into_iter().enumerate() {
                    // What takes longer than the best schedule on one core is in no stretch of several.
                    let own = if kind & bit > 0 && lat < best { lat } else { 0 };
                    work[to as usize][k] = work[at][k] + own;
                }
            }
        }
        let left = downs.sets.iter().map(|&set| searcher.left_at_least(set)).collect();
        let mut reached = vec![best; downs.sets.len()];
        reached[0] = 0;
        Self {
            searcher,
            downs,
            prices,
            waste: (0..piece.n()).map(|i| (prices.on[i] * piece.lat[i] as f64 - prices.adds[i]).max(0.0)).collect(),
            work,
            cores: [0, 1].map(|k| u64::from(piece.m[k])),
            left,
            reached,
            best,
            stretches: Vec::new(),
            tried: 0,
            ends: vec![0; piece.n()],
            open: Vec::new(),
        }
    }

    fn steps(&self) -> u64 {
        self.tried / STRETCHES_PER_STEP + self.downs.sets.len() as u64 / SETS_PER_STEP
    }

    /// Tries the stretches from a down-set, until it has tried `tries` in all. Answers whether it can have ended in time for a schedule
    /// below the best.
    fn pass(&mut self, at: u32, tries: u64) -> bool {
        let reached = self.reached[at as usize];
        if reached.saturating_add(self.left[at as usize]) >= self.best {
            return false;
        }
        let (piece, room) = (self.searcher.piece, self.best - reached);
        for &(i, to) in self.downs.extensions(at) {
            self.keep(at, to, piece.shortest(i as usize), room);
        }
        let set = self.downs.sets[at as usize];
        let rest = full(piece.n()) & !set;
        let priced: f64 = members(rest).map(|i| self.prices.adds[i]).sum();
        for i in members(rest) {
            let before = members(self.searcher.relation.preds[i] & rest).map(|p| self.ends[p]).max().unwrap_or(0);
            let end = before.saturating_add(piece.lat[i]);
            let in_time = end.saturating_add(self.searcher.after[i]) < room && safe_ceil(priced + self.waste[i]) < room;
            self.ends[i] = if in_time { end } else { self.best };
        }
        self.open.push((at, 0, 0, priced));
        // Past this the prices paid meet the best schedule, however they are rounded.
        let most = (room as f64 + 1e-9) * (1.0 + 2e-12);
        let begun = self.work[at as usize];
        let most_work = [0, 1].map(|k| begun[k].saturating_add(self.cores[k].saturating_mul(room - 1)));
        while let Some((down, first, chain, paid)) = self.open.pop().filter(|_| self.tried <= tries) {
            for &(i, to) in self.downs.extensions(down) {
                if i < first {
                    continue;
                }
                self.tried += 1;
                let chain = chain.max(self.ends[i as usize]);
                let paid = paid + self.waste[i as usize];
                let work = self.work[to as usize];
                if chain < room && paid < most && work[0] <= most_work[0] && work[1] <= most_work[1] {
                    self.open.push((to, i + 1, chain, paid));
                    if chain + self.left[to as usize] < room && down != at {
                        let shared = |k: usize| (work[k] - begun[k]).div_ceil(self.cores[k].max(1));
                        self.keep(at, to, chain.max(shared(0)).max(shared(1)), room);
                    }
                }
            }
        }
        true
    }

    /// Takes note of a stretch, if it may be on the way to a schedule below the best.
    fn keep(&mut self, at: u32, end: u32, length: u64, room: u64) {
        if length.saturating_add(self.left[end as usize]) < room {
            self.stretches.push(Stretch { end, length });
            self.reached[end as usize] = self.reached[end as usize].min(self.reached[at as usize] + length);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::super::bounds::{Relation, only_across, urgency};
    use super::super::list::{Exclusive, list_schedule};
    use super::super::modes::tests::problem;
    use super::super::modes::{CaseTable, Cases};
    use super::super::piece;
    use super::super::search::{Aim, Exploration};
    use super::*;

    #[test]
    fn bounds_from_idle_moments_hold_for_every_schedule_and_lose_none() {
        let (mut found, mut higher, mut fewer) = (0, 0, 0);
        for seed in 0..1_000 {
            for cut in piece::whole(&problem(seed)) {
                let piece = &cut.piece;
                let listed = list_schedule(piece, &urgency(piece), Exclusive::Alone).makespan + 1;
                let relation = Relation::of(piece);
                // As the search has it: operators that only run across all cores, what comes before others, and cases.
                let across = if seed % 2 == 0 { only_across(piece, &relation) } else { 0 };
                let mut hard = piece.clone();
                members(across).for_each(|i| hard.lat[i] += listed);
                let reversed = hard.reversed();
                let turned = members(across).fold(0, |set, i| set | 1 << (piece.n() - 1 - i));
                let (mut searcher, mut backwards) = (Searcher::new(&hard, across), Searcher::new(&reversed, turned));
                Searcher::share(&mut searcher, &mut backwards);
                let mut cases = Cases::of(piece, &relation, (across, 0)).unwrap();
                cases.split(piece, listed, if seed % 3 == 0 { u64::MAX } else { 0 });
                searcher.cases = Some(CaseTable::of(&cases, piece.n(), false));
                let wave = |way: &mut Exploration<'_, '_>, best: u64, width: usize| way.wave(best, width, Aim::Bounds, u64::MAX);
                let plain = wave(&mut Exploration::new(&searcher), listed, usize::MAX);
                let optimum = plain.found.as_ref().map_or(listed, |found| found.makespan);
                let (bounds, _) = IdleBounds::of(&searcher, &cases.prices, listed, u64::MAX >> 8);
                assert!(bounds.is_none() || searcher.barriers, "seed {seed}");
                let Some(bounds) = bounds else { continue };
                found += 1;
                assert!(bounds.root() <= optimum, "seed {seed}: {} <= {optimum}", bounds.root());
                higher += usize::from(bounds.root() > searcher.root_bound());
                // Taken up in the middle of a search, which has left states behind in every layer.
                let mut way = Exploration::new(&searcher);
                let first = wave(&mut way, listed, 2);
                let known = first.found.map_or(listed, |found| found.makespan);
                way.hold_against(bounds, known);
                let rest = wave(&mut way, known, usize::MAX);
                assert_eq!(rest.found.map_or(known, |found| found.makespan), optimum, "seed {seed}");
                fewer += usize::from(first.steps + rest.steps < plain.steps);
            }
        }
        assert!(found > 250 && higher * 2 > found && fewer * 2 > found, "{found} {higher} {fewer}");
    }

    #[test]
    fn where_stretches_are_short_they_bound_more_than_prices_do() {
        // Vector operators beside tensor operators that are eight times as fast across all cores: a program may run half of each either way.
        use super::super::problem::{Cores, Exclusivity, Operator, OperatorKind, Pairing, Problem};
        let cores = Cores {
            tensor_cores: 8,
            vector_cores: 2,
            network_links: 0,
            pairing: Pairing::AnyPair,
            exclusivity: Exclusivity::AllCores,
        };
        let operator = |kind, latency, across| Operator { kind, latency, exclusive_latency: Some(across) };
        let (tensor, vector) = (OperatorKind::Tensor, OperatorKind::Vector);
        let operators = vec![
            operator(tensor, 800, 104),
            operator(vector, 300, 150),
            operator(vector, 220, 110),
            operator(tensor, 640, 84),
            operator(tensor, 720, 92),
            operator(vector, 460, 230),
        ];
        let edges = vec![(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5)];
        let problem = Problem::new(cores, operators, edges).unwrap();
        let piece = &piece::whole(&problem)[0].piece;
        let cases = Cases::of(piece, &Relation::of(piece), (0, 0)).unwrap();
        let searcher = Searcher::new(piece, 0);
        let (bounds, steps) = IdleBounds::of(&searcher, &cases.prices, u64::MAX >> 2, u64::MAX >> 8);
        let scale = piece::whole(&problem)[0].scale;
        // All across all cores: 300 and 220 side by side take 300, one after the other 260; the last two side by side 720.
        assert_eq!(bounds.unwrap().root() * scale, 104 + 260 + 84 + 92 + 230);
        assert!(searcher.root_bound() * scale < 104 + 260 + 84 + 92 + 230);
        assert!(steps < 10, "{steps}");
        let spent = IdleBounds::of(&searcher, &cases.prices, u64::MAX >> 2, 0).0;
        assert!(spent.is_none());
    }
}
