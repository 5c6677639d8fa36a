//! Serial schedules: operators are placed one by one in a given order, each as early as it fits among those placed before.

use super::bounds::{Set, members};
use super::list::Found;
use super::piece::{LINK, Piece, TENSOR, VECTOR};
use super::slots::Need;

/// Places operators of a piece.
pub(super) struct Serial<'a> {
    piece: &'a Piece,
    capacity: Need,
    /// What each operator holds on one core, and across all.
    needs: Vec<[Need; 2]>,
    /// What is taken from each time on until the next.
    taken: Vec<(u64, Need)>,
    /// When operators run across all cores that take no time so, and which.
    instants: Vec<(u64, usize)>,
    /// Where cores pair by index: when each index is taken, and of which kinds. By start.
    indices: Vec<Vec<(u64, u64, u8)>>,
    /// Chooses among indices at which an operator can start at the same time. 0: by what looks best.
    pub salt: u64,
}

impl<'a> Serial<'a> {
    /// Nothing is placed.
    pub fn new(piece: &'a Piece) -> Self {
        let indices = if piece.paired { piece.m[0].max(piece.m[1]) as usize } else { 0 };
        Self {
            piece,
            capacity: Need::of(piece.m),
            needs: (0..piece.n()).map(|i| [false, true].map(|across| Need::of(piece.need(i, across)))).collect(),
            taken: Vec::new(),
            instants: Vec::new(),
            indices: vec![Vec::new(); indices],
            salt: 0,
        }
    }

    /// The schedule that places operators in this order, in which every operator follows what it waits for; those of `across` across all cores.
    pub fn schedule(&mut self, order: &[u8], across: Set) -> Found {
        let (piece, n) = (self.piece, self.piece.n());
        self.taken.clear();
        self.instants.clear();
        self.taken.push((0, Need::default()));
        self.indices.iter_mut().for_each(Vec::clear);
        let mut found = Found {
            makespan: 0,
            starts: vec![0; n],
            exclusive: (0..n).map(|i| across >> i & 1 == 1).collect(),
            slots: if piece.paired { vec![u32::MAX; n] } else { Vec::new() },
        };
        let mut ends = vec![0; n];
        for &i in order {
            let i = i as usize;
            let exclusive = found.exclusive[i];
            let length = if exclusive { piece.exc[i] } else { piece.lat[i] };
            let mut ready = piece.preds(i).iter().map(|&p| ends[p as usize]).max().unwrap_or(0);
            let start = loop {
                let start = if self.indices.is_empty() || exclusive || piece.kind[i] == LINK {
                    self.earliest(self.needs[i][usize::from(exclusive)], ready, length)
                } else {
                    let (start, index) = self.earliest_index(i, ready, length);
                    found.slots[i] = index as u32;
                    start
                };
                match self.instant_in(i, start, start + length) {
                    Some(instant) => ready = instant,
                    None => break start,
                }
            };
            found.starts[i] = start;
            ends[i] = start + length;
            found.makespan = found.makespan.max(ends[i]);
            self.take(i, exclusive, (start, ends[i]), found.slots.get(i).copied());
        }
        found
    }

    /// An instant within a span at which an operator that operator `i` must not run beside runs across all cores, for no time.
    fn instant_in(&self, i: usize, start: u64, end: u64) -> Option<u64> {
        let inside = self.instants.iter().filter(|&&(at, across)| start < at && at < end && self.piece.excludes(across, i));
        inside.map(|instant| instant.0).max()
    }

    /// From when on `need` is free for `length`.
    fn earliest(&self, need: Need, ready: u64, length: u64) -> u64 {
        let mut start = ready;
        let mut at = self.taken.partition_point(|t| t.0 <= ready).saturating_sub(1);
        while let Some(&(_, taken)) = self.taken.get(at) {
            at += 1;
            let until = self.taken.get(at).map_or(u64::MAX, |t| t.0);
            if !taken.and(need).no_more_than(self.capacity) {
                start = until;
            } else if until >= start + length {
                break;
            }
        }
        start
    }

    /// From when on cores of a kind are free for `length` at one index. Of several the one whose other core is busy then, and then the
    /// one that stood free for the shortest time.
    fn earliest_index(&self, i: usize, ready: u64, length: u64) -> (u64, usize) {
        let kind = self.piece.kind[i];
        let mut best = (u64::MAX, true, u64::MAX, 0);
        for (index, busy) in self.indices.iter().enumerate() {
            if [TENSOR, VECTOR].iter().zip(self.piece.m).any(|(bit, m)| kind & bit > 0 && index as u32 >= m) {
                continue;
            }
            let (mut start, mut before) = (ready, 0);
            for &(from, until, _) in busy.iter().filter(|b| b.2 & kind > 0) {
                if until <= start {
                    before = before.max(until);
                } else if from >= start + length {
                    break;
                } else {
                    (start, before) = (until, until);
                }
            }
            let other_free = !busy.iter().any(|&(from, until, bits)| bits & !kind > 0 && from <= start && start < until);
            let rank = match self.salt {
                0 => (other_free, start - before),
                salt => (false, (salt ^ (i << 8 | index) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            };
            best = best.min((start, rank.0, rank.1, index));
        }
        (best.0, best.3)
    }

    fn take(&mut self, i: usize, exclusive: bool, (start, end): (u64, u64), index: Option<u32>) {
        if start == end {
            // It holds nothing for any time, and still nothing that it excludes may run through it.
            return self.instants.push((start, i));
        }
        let need = self.needs[i][usize::from(exclusive)];
        let first = self.cut(start);
        let last = self.cut(end);
        for (_, taken) in &mut self.taken[first..last] {
            *taken = taken.and(need);
        }
        let bits = match (exclusive, self.piece.own_kind) {
            (true, false) => TENSOR | VECTOR,
            _ => self.piece.kind[i],
        };
        let put = |busy: &mut Vec<(u64, u64, u8)>| {
            let at = busy.partition_point(|b| b.0 < start);
            busy.insert(at, (start, end, bits));
        };
        if exclusive {
            self.indices.iter_mut().for_each(put);
        } else if let Some(busy) = index.and_then(|index| self.indices.get_mut(index as usize)) {
            put(busy);
        }
    }

    /// Makes a time one at which what is taken may change.
    fn cut(&mut self, time: u64) -> usize {
        let at = self.taken.partition_point(|t| t.0 < time);
        if self.taken.get(at).is_none_or(|t| t.0 != time) {
            let before = self.taken[at - 1].1;
            self.taken.insert(at, (time, before));
        }
        at
    }
}

/// The operators of a set of a piece of `n`, numbered as in the piece reversed.
pub(super) fn turned(set: Set, n: usize) -> Set {
    members(set).fold(0, |all, i| all | 1 << (n - 1 - i))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::super::improve::Random;
    use super::super::modes::tests::problem;
    use super::super::piece::{self, NEVER};
    use super::super::portfolio::Answer;
    use super::super::{Method, Problem, solve_cuts, verify};
    use super::*;

    #[test]
    fn serial_schedules_obey_every_rule() {
        let mut random = Random::new(7);
        for seed in 0..1_200 {
            let instants = seed % 2 == 1;
            let mut problem = problem(seed / 2);
            if instants {
                // Some operators take no time across all cores.
                let mut operators = problem.operators().to_vec();
                operators.iter_mut().step_by(3).for_each(|o| o.exclusive_latency = o.exclusive_latency.map(|_| 0));
                problem = Problem::new(*problem.cores(), operators, problem.edges().to_vec()).unwrap();
            }
            let cuts = piece::whole(&problem);
            let schedule = solve_cuts(&problem, &cuts, |piece| {
                // Operators are numbered so that each follows what it waits for; some go before others that they need not wait for.
                let mut order: Vec<u8> = (0..piece.n() as u8).collect();
                for _ in 0..4 * piece.n() {
                    let at = 1 + random.below(piece.n() as u64 - 1) as usize;
                    if !piece.preds(order[at] as usize).contains(&u32::from(order[at - 1])) {
                        order.swap(at - 1, at);
                    }
                }
                let across =
                    (0..piece.n()).filter(|&i| piece.exc[i] != NEVER && random.below(2) == 0).fold(0, |set, i| set | 1 << i);
                let mut serial = Serial::new(piece);
                let found = serial.schedule(&order, across);
                // Placed again by start, every operator finds its place or a better one.
                let mut by_start = order.clone();
                by_start.sort_by_key(|&i| found.starts[i as usize]);
                if !piece.paired && !instants {
                    assert!(serial.schedule(&by_start, across).makespan <= found.makespan, "seed {seed}");
                }
                (Answer { lower_bound: found.makespan, found, method: Method::Open, steps: 0 }, false)
            });
            assert_eq!(verify(&problem, &schedule), Vec::new(), "seed {seed}");
        }
    }
}
