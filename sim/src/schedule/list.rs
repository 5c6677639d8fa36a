//! List schedules: start the most urgent ready operator whose cores are free. They are fast and give an upper bound
//! without a proof.

use super::piece::{LINK, NEVER, Piece, TENSOR, VECTOR};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A schedule of a piece, without a proof of optimality.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PieceSchedule {
    pub makespan: u64,
    pub starts: Vec<u64>,
    pub exclusive: Vec<bool>,
    /// Per operator, the index of its core (of both cores, for a fused operator) if the piece pairs by index; empty
    /// otherwise.
    pub slots: Vec<u32>,
}

/// The rule for running operators across all cores.
#[derive(Debug, Clone, Copy)]
pub(super) enum ExclusivePolicy<'a> {
    /// An operator runs across all cores when it is alone: all cores are idle and no other operator is ready.
    Alone,
    /// An operator runs across all cores if it is flagged, and also when it is alone.
    Flagged(&'a [bool]),
}

const CLASSES: usize = 5;
/// The class of operators flagged to run across all cores.
const ALL: usize = 4;

struct ListScheduler<'a> {
    piece: &'a Piece,
    /// Ready operators per class (tensor, vector, fused, network, across all cores), most urgent first.
    ready: [BinaryHeap<(u64, Reverse<u32>)>; CLASSES],
    running: BinaryHeap<Reverse<(u64, u32)>>,
    free: [u32; 3],
    /// Busy tensor and vector cores; only if cores pair by index.
    busy: [Vec<bool>; 2],
    found: PieceSchedule,
    now: u64,
}

/// Returns the list schedule for these priorities (higher first).
pub(super) fn list_schedule(piece: &Piece, priority: &[u64], exclusive: ExclusivePolicy<'_>) -> PieceSchedule {
    let n = piece.operator_count();
    let mut waiting: Vec<u32> = (0..n).map(|i| piece.predecessors(i).len() as u32).collect();
    let (offsets, succs) = successor_lists(piece);
    let class = |i: usize| match exclusive {
        ExclusivePolicy::Flagged(flags) if flags[i] && piece.exc[i] != NEVER => ALL,
        _ => match piece.kind[i] {
            TENSOR => 0,
            VECTOR => 1,
            LINK => 3,
            _ => 2,
        },
    };
    let mut lister = ListScheduler {
        piece,
        ready: Default::default(),
        running: BinaryHeap::new(),
        free: piece.m,
        busy: if piece.paired {
            [vec![false; piece.m[0] as usize], vec![false; piece.m[1] as usize]]
        } else {
            Default::default()
        },
        found: PieceSchedule {
            makespan: 0,
            starts: vec![0; n],
            exclusive: vec![false; n],
            slots: if piece.paired { vec![u32::MAX; n] } else { Vec::new() },
        },
        now: 0,
    };
    for i in (0..n).filter(|&i| waiting[i] == 0) {
        lister.ready[class(i)].push((priority[i], Reverse(i as u32)));
    }
    lister.start_ready_operators();
    while let Some(Reverse((end, _))) = lister.running.peek().copied() {
        lister.now = end;
        while let Some(&Reverse((finish, i))) = lister.running.peek() {
            if finish > end {
                break;
            }
            lister.running.pop();
            lister.release_cores(i as usize);
            for &s in &succs[offsets[i as usize] as usize..offsets[i as usize + 1] as usize] {
                waiting[s as usize] -= 1;
                if waiting[s as usize] == 0 {
                    lister.ready[class(s as usize)].push((priority[s as usize], Reverse(s)));
                }
            }
        }
        lister.start_ready_operators();
    }
    lister.found.makespan = lister.now;
    lister.found
}

/// Returns the direct successors in compressed rows: `(offsets, list)`.
pub(super) fn successor_lists(piece: &Piece) -> (Vec<u32>, Vec<u32>) {
    let n = piece.operator_count();
    let mut offsets = vec![0u32; n + 1];
    for &p in &piece.pred_list {
        offsets[p as usize + 1] += 1;
    }
    for i in 0..n {
        offsets[i + 1] += offsets[i];
    }
    let mut cursor = offsets.clone();
    let mut list = vec![0u32; piece.pred_list.len()];
    for i in 0..n {
        for &p in piece.predecessors(i) {
            list[cursor[p as usize] as usize] = i as u32;
            cursor[p as usize] += 1;
        }
    }
    (offsets, list)
}

impl ListScheduler<'_> {
    fn start_ready_operators(&mut self) {
        self.run_across_idle_cores();
        let mut blocked = [false; CLASSES];
        loop {
            let best =
                (0..CLASSES).filter(|&c| !blocked[c]).filter_map(|c| self.ready[c].peek().map(|top| (*top, c))).max();
            let Some(((_, Reverse(i)), class)) = best else { break };
            let i = i as usize;
            if self.fits_free_cores(i, class == ALL) {
                self.ready[class].pop();
                self.start_operator(i, class == ALL);
            } else if class == ALL {
                // Drain the cores that this operator waits for: no later operator may take them.
                blocked = [true, true, true, blocked[3], true];
            } else {
                blocked[class] = true;
            }
        }
    }

    /// Runs an operator across all cores if they are idle, it alone is ready, and it has that mode.
    fn run_across_idle_cores(&mut self) {
        if self.free[..2] != self.piece.m[..2] {
            return;
        }
        let cores = [0, 1, 2, ALL];
        if cores.iter().map(|&c| self.ready[c].len()).sum::<usize>() != 1 {
            return;
        }
        for class in cores {
            if let Some(&(_, Reverse(i))) = self.ready[class].peek()
                && self.piece.exc[i as usize] != NEVER
            {
                self.ready[class].pop();
                self.start_operator(i as usize, true);
            }
        }
    }

    fn fits_free_cores(&self, i: usize, exclusive: bool) -> bool {
        let need = self.piece.need_in_mode(i, exclusive);
        need.iter().zip(&self.free).all(|(n, f)| n <= f)
            && (exclusive || !self.piece.paired || self.piece.kind[i] == LINK || self.choose_core_index(i).is_some())
    }

    /// Returns a free core index for an operator if cores pair by index; `None` if there is none. Single operators
    /// avoid indices at which both cores are free.
    fn choose_core_index(&self, i: usize) -> Option<u32> {
        let [tensor, vector] = &self.busy;
        let free = |busy: &[bool], s: usize| busy.get(s).is_some_and(|b| !b);
        let width = tensor.len().max(vector.len());
        let (own, other) = match self.piece.kind[i] {
            TENSOR => (tensor, vector),
            VECTOR => (vector, tensor),
            _ => return (0..width).find(|&s| free(tensor, s) && free(vector, s)).map(|s| s as u32),
        };
        (0..own.len()).filter(|&s| !own[s]).min_by_key(|&s| free(other, s)).map(|s| s as u32)
    }

    fn start_operator(&mut self, i: usize, exclusive: bool) {
        let need = self.piece.need_in_mode(i, exclusive);
        if self.piece.paired
            && !exclusive
            && self.piece.kind[i] != LINK
            && let Some(s) = self.choose_core_index(i)
        {
            self.found.slots[i] = s;
            self.set_core_busy(i, s as usize, true);
        }
        for (free, n) in self.free.iter_mut().zip(need) {
            *free -= n;
        }
        self.found.starts[i] = self.now;
        self.found.exclusive[i] = exclusive;
        let length = if exclusive { self.piece.exc[i] } else { self.piece.lat[i] };
        self.running.push(Reverse((self.now + length, i as u32)));
    }

    fn release_cores(&mut self, i: usize) {
        for (free, n) in self.free.iter_mut().zip(self.piece.need_in_mode(i, self.found.exclusive[i])) {
            *free += n;
        }
        if self.piece.paired && !self.found.exclusive[i] && self.piece.kind[i] != LINK {
            self.set_core_busy(i, self.found.slots[i] as usize, false);
        }
    }

    fn set_core_busy(&mut self, i: usize, slot: usize, busy: bool) {
        for (k, bit) in [TENSOR, VECTOR].into_iter().enumerate() {
            if self.piece.kind[i] & bit > 0 {
                self.busy[k][slot] = busy;
            }
        }
    }
}
