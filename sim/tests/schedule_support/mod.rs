//! Seeded random schedule problems, and a brute force that shares no code with the solvers.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use coplace_sim::schedule::{Cores, Exclusivity, Operator, OperatorKind, Pairing, Problem};
use std::collections::HashMap;

/// A small reproducible generator (`SplitMix64`).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[(self.next() % of.len() as u64) as usize]
    }
}

/// The shape of the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Random edges between operators that are near in the order.
    Random,
    /// Layers of one to four operators, each fed by one or two of the previous layer.
    Layered,
    /// Repeated blocks of one operator, three in parallel, and a join.
    Attention,
    /// Nested series and parallel compositions.
    SeriesParallel,
    /// A chain of input gradients, each with a weight gradient that nothing waits for, and collectives on the links.
    Backward,
    /// No edges.
    Independent,
}

pub const STYLES: [Style; 6] =
    [Style::Random, Style::Layered, Style::Attention, Style::SeriesParallel, Style::Backward, Style::Independent];

/// The relation of the latency across all cores to that on one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Equal latencies.
    None,
    /// Divided by the number of cores; one operator in eight gains nothing.
    Linear,
    /// Between the latencies of [`Self::Linear`] and [`Self::None`].
    Sublinear,
}

pub const FAMILIES: [Family; 3] = [Family::None, Family::Linear, Family::Sublinear];

/// A specification of random problems.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    pub style: Style,
    pub family: Family,
    pub operators: usize,
    pub tensor_cores: u32,
    pub vector_cores: u32,
    pub network_links: u32,
    pub pairing: Pairing,
    pub exclusivity: Exclusivity,
    /// Largest latency; the smallest is 1.
    pub longest: u64,
}

impl Spec {
    /// Returns a shape, a family and cores drawn from the seed, like those of the stored instances.
    pub fn drawn(operators: usize, seed: u64) -> Self {
        let mut random = Random(seed ^ 0x5eed);
        Self {
            style: random.pick(&STYLES[..4]),
            family: random.pick(&FAMILIES),
            operators,
            tensor_cores: random.pick(&[1, 2, 3, 4, 8]),
            vector_cores: random.pick(&[1, 2, 3, 4, 8]),
            network_links: 0,
            pairing: Pairing::AnyPair,
            exclusivity: Exclusivity::AllCores,
            longest: 100,
        }
    }
}

/// Returns the problem of a specification and a seed.
pub fn generate(spec: &Spec, seed: u64) -> Problem {
    let mut random = Random(seed);
    let mut edges = match spec.style {
        Style::Random => random_edges(spec.operators, &mut random),
        Style::Layered => layered_edges(spec.operators, &mut random),
        Style::Attention => attention_edges(spec.operators),
        Style::SeriesParallel => series_parallel_edges(spec.operators, &mut random),
        Style::Backward => (0..spec.operators.saturating_sub(2) as u32)
            .filter(|i| i % 2 == 0)
            .flat_map(|i| [(i, i + 1), (i, i + 2)])
            .collect(),
        Style::Independent => Vec::new(),
    };
    edges.sort_unstable();
    edges.dedup();
    let fused = random.range(5, 40);
    let tensor = random.range(15, 50);
    let operators = (0..spec.operators).map(|i| operator(spec, i, fused, tensor, &mut random)).collect();
    let cores = Cores {
        tensor_cores: spec.tensor_cores,
        vector_cores: spec.vector_cores,
        network_links: spec.network_links,
        pairing: spec.pairing,
        exclusivity: spec.exclusivity,
    };
    Problem::new(cores, operators, edges).unwrap()
}

fn operator(spec: &Spec, index: usize, fused: u64, tensor: u64, random: &mut Random) -> Operator {
    let draw = random.range(0, 99);
    let kind = if spec.network_links > 0 && random.chance(15) {
        OperatorKind::Network
    } else if spec.style == Style::Backward {
        if index % 2 == 1 || random.chance(60) { OperatorKind::Tensor } else { OperatorKind::Vector }
    } else if random.chance(12) && spec.style != Style::Independent {
        OperatorKind::Nop
    } else if draw < fused {
        OperatorKind::TensorVector
    } else if draw < fused + tensor {
        OperatorKind::Tensor
    } else {
        OperatorKind::Vector
    };
    let latency = random.range(1, spec.longest);
    let cores = u64::from(match kind {
        OperatorKind::Tensor => spec.tensor_cores,
        OperatorKind::Vector => spec.vector_cores,
        _ => spec.tensor_cores.min(spec.vector_cores),
    });
    let least = latency.div_ceil(cores);
    let exclusive = match spec.family {
        Family::None => latency,
        Family::Linear if random.chance(12) => latency,
        Family::Linear => least,
        Family::Sublinear => random.range(least, latency),
    };
    match kind {
        OperatorKind::Nop => Operator::new(kind, 0),
        OperatorKind::Network => Operator::new(kind, latency),
        _ => Operator::with_exclusive(kind, latency, exclusive),
    }
}

fn random_edges(n: usize, random: &mut Random) -> Vec<(u32, u32)> {
    let (percent, window) = (random.range(5, 35), random.range(3, 10) as usize);
    let mut edges = Vec::new();
    for j in 0..n {
        for i in j.saturating_sub(window)..j {
            if random.chance(percent) {
                edges.push((i as u32, j as u32));
            }
        }
    }
    edges
}

fn layered_edges(n: usize, random: &mut Random) -> Vec<(u32, u32)> {
    let widest = random.range(2, 4);
    let mut edges = Vec::new();
    let (mut before, mut at): (Vec<u32>, u32) = (Vec::new(), 0);
    while (at as usize) < n {
        let width = random.range(1, widest).min(n as u64 - u64::from(at)) as u32;
        let layer: Vec<u32> = (at..at + width).collect();
        if !before.is_empty() {
            for &to in &layer {
                for _ in 0..random.range(1, 2) {
                    edges.push((random.pick(&before), to));
                }
            }
        }
        (before, at) = (layer, at + width);
    }
    edges
}

fn attention_edges(n: usize) -> Vec<(u32, u32)> {
    let mut edges = Vec::new();
    for base in (0..n as u32).step_by(5) {
        for branch in base + 1..base + 4 {
            edges.extend([(base, branch), (branch, base + 4)]);
        }
        edges.push((base + 4, base + 5));
    }
    edges.retain(|e| (e.1 as usize) < n);
    edges
}

fn series_parallel_edges(n: usize, random: &mut Random) -> Vec<(u32, u32)> {
    /// Builds operators `from..to`; returns the first and last ones.
    fn build(
        from: u32,
        to: u32,
        series: bool,
        random: &mut Random,
        edges: &mut Vec<(u32, u32)>,
    ) -> (Vec<u32>, Vec<u32>) {
        if to - from <= 1 {
            return (vec![from], vec![from]);
        }
        let middle = from + random.range(1, u64::from(to - from - 1)) as u32;
        let (mut first, mut last) = build(from, middle, !series, random, edges);
        let (other_first, other_last) = build(middle, to, !series, random, edges);
        if series {
            edges.extend(last.iter().flat_map(|&a| other_first.iter().map(move |&b| (a, b))));
            (first, other_last)
        } else {
            first.extend(other_first);
            last.extend(other_last);
            (first, last)
        }
    }
    let mut edges = Vec::new();
    build(0, n as u32, true, random, &mut edges);
    edges
}

/// Returns the optimal makespan, by trying every operator in every mode at every end of another operator. Exponential.
pub fn brute_force(problem: &Problem) -> u64 {
    let mut brute = Brute { problem, known: HashMap::new() };
    brute.best(0, &[])
}

/// A running operator: (operator, exclusive, ticks left, index of its tensor core, of its vector core).
type Busy = (u32, bool, u64, u32, u32);

/// A packed state, independent of core numbering: the started operators, the running ones (operator, mode, ticks left),
/// and which of them share a core index. Fits at most 10 operators of less than 128 ticks.
type Key = (u16, u128, u128);

struct Brute<'a> {
    problem: &'a Problem,
    known: HashMap<Key, u64>,
}

const NO_CORE: u32 = u32::MAX;

impl Brute<'_> {
    /// Returns the time from now to the end, given the started and the running operators.
    fn best(&mut self, started: u64, busy: &[Busy]) -> u64 {
        let key = self.key(started, busy);
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let n = self.problem.operators().len();
        if started.count_ones() as usize == n && busy.is_empty() {
            return 0;
        }
        let mut best = u64::MAX;
        if let Some(step) = busy.iter().map(|b| b.2).min() {
            let later: Vec<Busy> = busy.iter().map(|b| (b.0, b.1, b.2 - step, b.3, b.4)).filter(|b| b.2 > 0).collect();
            best = best.min(step + self.best(started, &later));
        }
        for i in 0..n as u32 {
            if started >> i & 1 == 0 && self.ready(i, started, busy) {
                for choice in self.choices(i, busy) {
                    let mut now = busy.to_vec();
                    if choice.2 > 0 {
                        now.push(choice);
                    }
                    best = best.min(self.best(started | 1 << i, &now));
                }
            }
        }
        self.known.insert(key, best);
        best
    }

    fn key(&self, started: u64, busy: &[Busy]) -> Key {
        let cores = self.problem.cores();
        let mut runs: Vec<u128> =
            busy.iter().map(|b| u128::from(b.0) << 8 | u128::from(b.1) << 7 | u128::from(b.2)).collect();
        let mut shared: Vec<u128> = Vec::new();
        if cores.pairing == Pairing::SameIndex {
            // Per busy core index: the operators on its tensor core and on its vector core (14: none, 15: no such
            // core).
            for index in 0..cores.tensor_cores.max(cores.vector_cores) {
                let on = |busy: Option<&Busy>, have: u32| {
                    busy.map_or(if index < have { 14 } else { 15 }, |b| u128::from(b.0))
                };
                let tensor = on(busy.iter().find(|b| b.3 == index), cores.tensor_cores);
                let vector = on(busy.iter().find(|b| b.4 == index), cores.vector_cores);
                if tensor < 14 || vector < 14 {
                    shared.push(tensor << 4 | vector);
                }
            }
        }
        runs.sort_unstable();
        shared.sort_unstable();
        let pack = |list: &[u128], width: u32| list.iter().fold(1u128, |all, &item| all << width | item);
        (started as u16, pack(&runs, 12), pack(&shared, 8))
    }

    fn ready(&self, i: u32, started: u64, busy: &[Busy]) -> bool {
        self.problem
            .edges()
            .iter()
            .filter(|e| e.1 == i)
            .all(|e| started >> e.0 & 1 == 1 && busy.iter().all(|b| b.0 != e.0))
    }

    /// Returns every way to start operator `i` now.
    fn choices(&self, i: u32, busy: &[Busy]) -> Vec<Busy> {
        let (operators, cores) = (self.problem.operators(), self.problem.cores());
        let operator = operators[i as usize];
        if operator.latency == 0 {
            return vec![(i, false, 0, NO_CORE, NO_CORE)];
        }
        let kind = |b: &Busy| operators[b.0 as usize].kind;
        let all = cores.exclusivity == Exclusivity::AllCores;
        let clash = |b: &&Busy, mine: OperatorKind| {
            let core = kind(b) != OperatorKind::Network && mine != OperatorKind::Network;
            core && (all || kind(b).uses_tensor() && mine.uses_tensor() || kind(b).uses_vector() && mine.uses_vector())
        };
        let mut choices = Vec::new();
        if busy.iter().filter(|b| b.1).any(|b| clash(&b, operator.kind)) {
            return choices;
        }
        if let Some(across) = operator.exclusive_latency
            && !busy.iter().any(|b| clash(&b, operator.kind))
        {
            choices.push((i, true, across, NO_CORE, NO_CORE));
        }
        if operator.kind == OperatorKind::Network {
            if busy.iter().filter(|b| kind(b) == OperatorKind::Network).count() < cores.network_links as usize {
                choices.push((i, false, operator.latency, NO_CORE, NO_CORE));
            }
            return choices;
        }
        let free_tensor: Vec<u32> = (0..cores.tensor_cores).filter(|&c| busy.iter().all(|b| b.3 != c)).collect();
        let free_vector: Vec<u32> = (0..cores.vector_cores).filter(|&c| busy.iter().all(|b| b.4 != c)).collect();
        let any = cores.pairing == Pairing::AnyPair;
        match operator.kind {
            OperatorKind::Tensor => choices.extend(
                free_tensor.iter().take(if any { 1 } else { 99 }).map(|&c| (i, false, operator.latency, c, NO_CORE)),
            ),
            OperatorKind::Vector => choices.extend(
                free_vector.iter().take(if any { 1 } else { 99 }).map(|&c| (i, false, operator.latency, NO_CORE, c)),
            ),
            _ if any => choices.extend(
                free_tensor.first().zip(free_vector.first()).map(|(&t, &v)| (i, false, operator.latency, t, v)),
            ),
            _ => choices.extend(
                free_tensor.iter().filter(|c| free_vector.contains(c)).map(|&c| (i, false, operator.latency, c, c)),
            ),
        }
        choices
    }
}
