//! The scheduling problem: operators with latencies and precedence on the cores of one chip. The constructor checks it.

pub use crate::cores::{Exclusivity, Pairing};
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// Most operators of a problem. The transitive closure takes a bit per pair, 50 MB at this size.
pub const MAX_OPERATORS: usize = 20_000;

/// Upper limit on the sum of all latencies, in ticks. Sums of starts, latencies and tails then fit `u64`. With
/// femtosecond ticks this is over an hour for one layer.
pub const MAX_TOTAL_TICKS: u64 = 1 << 62;

/// The resources that an operator occupies while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorKind {
    /// One tensor core.
    Tensor,
    /// One vector core.
    Vector,
    /// One tensor core and one vector core together: a contraction fused with its epilogue.
    TensorVector,
    /// One network link. It does not block cores, and cores do not block it.
    Network,
    /// None: a view, a transpose in place, a join. Its latency is zero.
    Nop,
}

impl OperatorKind {
    /// True if it occupies a tensor core.
    #[must_use]
    pub fn uses_tensor(self) -> bool {
        matches!(self, Self::Tensor | Self::TensorVector)
    }

    /// True if it occupies a vector core.
    #[must_use]
    pub fn uses_vector(self) -> bool {
        matches!(self, Self::Vector | Self::TensorVector)
    }
}

impl fmt::Display for OperatorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tensor => "tensor",
            Self::Vector => "vector",
            Self::TensorVector => "tensor and vector",
            Self::Network => "network",
            Self::Nop => "no-operation",
        })
    }
}

/// One operator. Times are in ticks; the caller defines the tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operator {
    /// The resources that it occupies.
    pub kind: OperatorKind,
    /// Ticks on one core (of each kind it uses), or on one link.
    pub latency: u64,
    /// Ticks across all cores of its kind; `None` if it cannot run across them.
    pub exclusive_latency: Option<u64>,
}

impl Operator {
    /// An operator that runs only on one core.
    #[must_use]
    pub fn new(kind: OperatorKind, latency: u64) -> Self {
        Self { kind, latency, exclusive_latency: None }
    }

    /// Returns an operator that runs on one core, or across all cores for `exclusive` ticks.
    #[must_use]
    pub fn with_exclusive(kind: OperatorKind, latency: u64, exclusive: u64) -> Self {
        Self { kind, latency, exclusive_latency: Some(exclusive) }
    }

    /// The smaller of its two latencies, in ticks.
    #[must_use]
    pub fn shortest_latency(&self) -> u64 {
        self.exclusive_latency.map_or(self.latency, |e| e.min(self.latency))
    }
}

/// The cores and links of the chip, and its two blocking rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cores {
    /// Tensor cores.
    pub tensor_cores: u32,
    /// Vector cores.
    pub vector_cores: u32,
    /// Links that collectives may use at the same time; 0 if the problem has no collective.
    pub network_links: u32,
    /// The pairing of a fused operator's cores.
    pub pairing: Pairing,
    /// The cores that an operator across all cores blocks.
    pub exclusivity: Exclusivity,
}

/// The reason why a problem is invalid. Operators are named by their index in the problem, or by their ids after
/// [`Self::with_ids`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// The edges form a cycle.
    #[error("the operators form a cycle: {}; remove one of its edges", display_cycle(.operators))]
    Cycle {
        /// The operators on the cycle, in order; the first is repeated at the end.
        operators: Vec<u64>,
    },
    /// An edge names an operator that does not exist.
    #[error(
        "edge {edge} goes from operator {from} to operator {to}, but there are only {operators} operators (0 to {}); mend the edge",
        .operators.saturating_sub(1)
    )]
    EdgeToNowhere {
        /// The edge's position in the list.
        edge: usize,
        /// Its source.
        from: u32,
        /// Its target.
        to: u32,
        /// Operators of the problem.
        operators: usize,
    },
    /// An operator needs a kind of core that the chip lacks.
    #[error(
        "operator {operator} is a {kind} operator, but the chip has 0 {resource}; give it at least 1 or remove the operator"
    )]
    NoCores {
        /// The operator.
        operator: u64,
        /// Its kind.
        kind: OperatorKind,
        /// The missing resource.
        resource: &'static str,
    },
    /// The sum of all latencies is too large.
    #[error("the latencies up to operator {operator} add up to more than {MAX_TOTAL_TICKS} ticks; use a coarser tick")]
    TooLong {
        /// The operator at which the sum passes the limit.
        operator: u64,
    },
    /// A no-operation with a latency.
    #[error(
        "operator {operator} is a no-operation but has a latency of {latency} ticks; a no-operation takes 0, give it another kind"
    )]
    NopTakesTime {
        /// The operator.
        operator: u64,
        /// Its latency in ticks.
        latency: u64,
    },
    /// A collective with an exclusive latency.
    #[error(
        "operator {operator} is a network operator with an exclusive latency of {latency} ticks; only operators on cores have one, remove it"
    )]
    ExclusiveNetwork {
        /// The operator.
        operator: u64,
        /// Its exclusive latency in ticks.
        latency: u64,
    },
    /// Too many operators.
    #[error(
        "{operators} operators are more than the {MAX_OPERATORS} that can be scheduled at once; split the graph by layer"
    )]
    TooManyOperators {
        /// Operators of the problem.
        operators: usize,
    },
}

impl ScheduleError {
    /// Returns the same error with the caller's ids: `ids` holds the id of each operator of the problem. An edge to a
    /// missing operator has no id, so that error stays as it is.
    #[must_use]
    pub fn with_ids(mut self, ids: &[u64]) -> Self {
        let rename = |number: &mut u64| {
            let id = usize::try_from(*number).ok().and_then(|at| ids.get(at));
            *number = id.copied().unwrap_or(*number);
        };
        match &mut self {
            Self::Cycle { operators } => operators.iter_mut().for_each(rename),
            Self::NoCores { operator, .. }
            | Self::TooLong { operator }
            | Self::NopTakesTime { operator, .. }
            | Self::ExclusiveNetwork { operator, .. } => rename(operator),
            Self::EdgeToNowhere { .. } | Self::TooManyOperators { .. } => {}
        }
        self
    }
}

fn display_cycle(operators: &[u64]) -> String {
    const SHOWN: usize = 12;
    let mut text: Vec<String> = operators.iter().take(SHOWN).map(u64::to_string).collect();
    if operators.len() > SHOWN {
        text.push(format!("... ({} more)", operators.len() - SHOWN));
    }
    text.join(" -> ")
}

/// A checked problem: acyclic, with valid edges, a core for every operator, and sums that fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    cores: Cores,
    operators: Vec<Operator>,
    edges: Vec<(u32, u32)>,
    topological: Vec<u32>,
}

impl Problem {
    /// Checks the parts and keeps them. An edge `(a, b)` requires that `a` ends before `b` starts; repeated edges are
    /// harmless.
    ///
    /// # Errors
    /// The first fault found, as a [`ScheduleError`]: too many operators, a missing core, a no-operation with a
    /// latency, a network operator with an exclusive latency, latencies whose sum is too large, an edge to a missing
    /// operator, or a cycle.
    pub fn new(cores: Cores, operators: Vec<Operator>, edges: Vec<(u32, u32)>) -> Result<Self, ScheduleError> {
        if operators.len() > MAX_OPERATORS {
            return Err(ScheduleError::TooManyOperators { operators: operators.len() });
        }
        check_operators(&cores, &operators)?;
        for (edge, &(from, to)) in edges.iter().enumerate() {
            if from as usize >= operators.len() || to as usize >= operators.len() {
                return Err(ScheduleError::EdgeToNowhere { edge, from, to, operators: operators.len() });
            }
        }
        let topological = find_topological_order(operators.len(), &edges)?;
        Ok(Self { cores, operators, edges, topological })
    }

    /// The chip's cores, links and blocking rules.
    #[must_use]
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// The operators, in the order that the edges index.
    #[must_use]
    pub fn operators(&self) -> &[Operator] {
        &self.operators
    }

    /// The precedence edges.
    #[must_use]
    pub fn edges(&self) -> &[(u32, u32)] {
        &self.edges
    }

    /// The operators in a topological order.
    #[must_use]
    pub fn topological_order(&self) -> &[u32] {
        &self.topological
    }

    /// Returns the same operators and edges on other cores.
    ///
    /// # Errors
    /// [`ScheduleError::NoCores`] if the other cores lack a kind that an operator needs.
    pub fn on_cores(&self, cores: Cores) -> Result<Self, ScheduleError> {
        check_operators(&cores, &self.operators)?;
        Ok(Self { cores, ..self.clone() })
    }
}

fn check_operators(cores: &Cores, operators: &[Operator]) -> Result<(), ScheduleError> {
    let mut total: u64 = 0;
    for (index, operator) in (0u64..).zip(operators) {
        let kind = operator.kind;
        let missing = if kind.uses_tensor() && cores.tensor_cores == 0 {
            Some("tensor cores")
        } else if kind.uses_vector() && cores.vector_cores == 0 {
            Some("vector cores")
        } else if kind == OperatorKind::Network && cores.network_links == 0 {
            Some("network links")
        } else {
            None
        };
        if let Some(resource) = missing {
            return Err(ScheduleError::NoCores { operator: index, kind, resource });
        }
        if kind == OperatorKind::Nop && operator.latency > 0 {
            return Err(ScheduleError::NopTakesTime { operator: index, latency: operator.latency });
        }
        if let (OperatorKind::Network, Some(latency)) = (kind, operator.exclusive_latency) {
            return Err(ScheduleError::ExclusiveNetwork { operator: index, latency });
        }
        let longest = operator.latency.max(operator.exclusive_latency.unwrap_or(0));
        total = total
            .checked_add(longest)
            .filter(|&t| t <= MAX_TOTAL_TICKS)
            .ok_or(ScheduleError::TooLong { operator: index })?;
    }
    Ok(())
}

fn find_topological_order(n: usize, edges: &[(u32, u32)]) -> Result<Vec<u32>, ScheduleError> {
    let (offsets, targets) = adjacency_lists(n, edges.iter().copied());
    let mut waiting = vec![0u32; n];
    for &(_, to) in edges {
        waiting[to as usize] += 1;
    }
    let mut order: Vec<u32> = (0u32..).zip(&waiting).filter(|&(_, &w)| w == 0).map(|(i, _)| i).collect();
    order.reserve(n);
    let mut next = 0;
    while next < order.len() {
        let from = order[next] as usize;
        next += 1;
        for &to in &targets[offsets[from]..offsets[from + 1]] {
            waiting[to as usize] -= 1;
            if waiting[to as usize] == 0 {
                order.push(to);
            }
        }
    }
    if order.len() == n {
        Ok(order)
    } else {
        Err(ScheduleError::Cycle { operators: find_cycle(edges, &waiting).into_iter().map(u64::from).collect() })
    }
}

/// Returns the adjacency in compressed rows: the targets of `i` are `targets[offsets[i]..offsets[i + 1]]`.
pub(super) fn adjacency_lists(n: usize, edges: impl Iterator<Item = (u32, u32)> + Clone) -> (Vec<usize>, Vec<u32>) {
    let mut offsets = vec![0usize; n + 1];
    for (from, _) in edges.clone() {
        offsets[from as usize + 1] += 1;
    }
    for i in 0..n {
        offsets[i + 1] += offsets[i];
    }
    let mut cursor = offsets.clone();
    let mut targets = vec![0u32; offsets[n]];
    for (from, to) in edges {
        targets[cursor[from as usize]] = to;
        cursor[from as usize] += 1;
    }
    (offsets, targets)
}

/// Returns a cycle. It walks backwards over the operators that still wait for a predecessor until one repeats.
fn find_cycle(edges: &[(u32, u32)], waiting: &[u32]) -> Vec<u32> {
    let stuck = |i: u32| waiting[i as usize] > 0;
    let mut before = vec![u32::MAX; waiting.len()];
    for &(from, to) in edges {
        if stuck(from) && stuck(to) {
            before[to as usize] = from;
        }
    }
    let Some(mut at) = (0u32..).zip(waiting).find(|&(_, &w)| w > 0).map(|(i, _)| i) else {
        return Vec::new();
    };
    for _ in 0..waiting.len() {
        at = before[at as usize];
    }
    let mut cycle = vec![at];
    let first = at;
    at = before[at as usize];
    while at != first {
        cycle.push(at);
        at = before[at as usize];
    }
    // The walk went backwards: reverse it, and start at the lowest index.
    cycle.reverse();
    let lowest = cycle.iter().enumerate().min_by_key(|c| c.1).map_or(0, |c| c.0);
    cycle.rotate_left(lowest);
    cycle.push(cycle[0]);
    cycle
}
