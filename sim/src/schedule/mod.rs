//! The operator schedule: which core runs each operator of a layer, and when, so that the layer ends soonest.
//!
//! Every operator runs on one core of its kind, or across all cores for its exclusive latency. Collectives run on the
//! network in parallel. [`solve_problem`] returns a schedule, a lower bound and the method that proved them. It reports
//! [`SolveStatus::Optimal`] only if the bound equals the makespan. The steps, in order:
//!
//! 1. Cut the graph where everything before precedes everything after; the makespans add (`piece`).
//! 2. Compute lower bounds, and upper bounds from list schedules (`bounds`, `list`).
//! 3. Run a dynamic program over down-sets with dominance and bounds (`search`). Its waves widen until one proves its
//!    answer.
//! 4. Give a piece that is still open to the integer program, with the best schedule as its start and the time that is
//!    left (`ilp`). This step needs a time limit ([`SolveLimits::time`]): its work cannot be counted, so its answers
//!    depend on the machine.
//!
//! Pieces of more than 128 operators keep their list schedule. [`ExactMethod`] leaves the search or the program out.
//! [`solve_ilp`] gives every piece to the program. It checks the search, and it includes PHAZE's own program.
//!
//! [`PortSharing`] replays a schedule whose operators share memory ports, and bounds every such schedule from below.
//!
//! Limits count work, not time, unless a time limit is set. The same problem therefore gets the same answer on every
//! machine and for any number of threads. [`verify_schedule`] checks any schedule independently of how it was made.
//! [`Memo`] remembers isomorphic pieces.

mod bounds;
mod cores;
mod demand;
mod ilp;
mod layer;
mod left;
mod list;
mod memo;
mod moves;
mod outline;
mod piece;
mod piece_answer;
mod portfolio;
mod problem;
mod remaining;
mod running;
mod search;
mod sharing;
mod slots;
mod state;
mod twins;
mod verify;
#[cfg(test)]
mod wave_tests;

pub use ilp::{Backend, Formulation, IlpError, IlpOptions, solve_ilp};
pub use memo::{Memo, MemoStatistics};
pub use outline::{OperatorLeastTimes, Outline};
pub use problem::{
    Cores, Exclusivity, MAX_OPERATORS, MAX_TOTAL_TICKS, Operator, OperatorKind, Pairing, Problem, ScheduleError,
};
pub use sharing::{PortSharing, PortUse};
pub use verify::{ScheduleFault, verify_schedule};

use crate::status::SolveStatus;
use piece::CutPiece;
use piece_answer::PieceAnswer;
use portfolio::Budget;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Limits on the work of a solve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SolveLimits {
    /// Upper limit on the search states generated per piece of the problem. About a million take a second.
    pub steps: u64,
    /// Wall time for each piece. After it no search pass begins. If the search left a piece open, the time that remains
    /// goes to the piece's integer program. `None`, the default, keeps answers independent of the machine.
    pub time: Option<Duration>,
    /// The exact methods that may run.
    pub method: ExactMethod,
    /// The solver of the integer program.
    pub solver: Backend,
}

impl Default for SolveLimits {
    fn default() -> Self {
        Self { steps: 1_500_000, time: None, method: ExactMethod::Auto, solver: Backend::Microlp }
    }
}

/// The exact methods for a piece that bounds leave open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExactMethod {
    /// The search; then, under a time limit, the integer program.
    #[default]
    Auto,
    /// The search alone.
    Search,
    /// The integer program alone, without a limit if no time limit is set.
    Ilp,
}

/// The method that closed a schedule's bounds, from cheapest to most expensive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProofMethod {
    /// Cutting left only single operators.
    Decomposition,
    /// A list schedule met the lower bound.
    Bounds,
    /// A search wave proved its answer.
    Search,
    /// An integer program was solved to optimality.
    Ilp,
    /// None: the schedule has a gap.
    Open,
}

impl fmt::Display for ProofMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Decomposition => "decomposition",
            Self::Bounds => "bounds",
            Self::Search => "search",
            Self::Ilp => "integer program",
            Self::Open => "open",
        })
    }
}

/// The cores and link of one operator. An operator that runs across all cores has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CoreAssignment {
    /// Its tensor core.
    pub tensor_core: Option<u32>,
    /// Its vector core.
    pub vector_core: Option<u32>,
    /// Its network link.
    pub link: Option<u32>,
}

/// The proof of one piece of a problem. Times are in the ticks of the problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceProof {
    /// Number of operators.
    pub operators: u32,
    /// The method that closed it, or [`ProofMethod::Open`].
    pub method: ProofMethod,
    /// Makespan of its schedule.
    pub makespan: u64,
    /// A lower bound on the makespan of every schedule of the piece.
    pub lower_bound: u64,
}

/// Effort of a solve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SolveStatistics {
    /// Pieces that the problem was cut into.
    pub pieces: u32,
    /// Operators of the largest piece.
    pub largest_piece: u32,
    /// Pieces whose answer came from the memo.
    pub remembered: u32,
    /// Search states generated.
    pub steps: u64,
}

/// A schedule with its bounds. Times are in the ticks of the problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The end of the last operator.
    pub makespan: u64,
    /// A lower bound on the makespan of every schedule.
    pub lower_bound: u64,
    /// [`SolveStatus::Optimal`] if the lower bound equals the makespan, else a gap between the two.
    pub status: SolveStatus,
    /// The most expensive method that was needed.
    pub method: ProofMethod,
    /// The proof of each piece, in the order in which the pieces run.
    pub pieces: Vec<PieceProof>,
    /// Start of each operator.
    pub starts: Vec<u64>,
    /// Per operator: true if it runs across all cores.
    pub exclusive: Vec<bool>,
    /// The cores of each operator.
    pub cores: Vec<CoreAssignment>,
    /// The effort of the solve.
    pub statistics: SolveStatistics,
}

impl Schedule {
    /// Returns the end of each operator. `problem` must be the problem that this schedule answers.
    #[must_use]
    pub fn end_times(&self, problem: &Problem) -> Vec<u64> {
        let length = |(o, &x): (&Operator, &bool)| if x { o.exclusive_latency.unwrap_or(o.latency) } else { o.latency };
        problem.operators().iter().zip(&self.exclusive).map(length).zip(&self.starts).map(|(l, s)| s + l).collect()
    }
}

/// Returns bounds on the optimal makespan without search, in ticks: `(lower, upper)`. The upper bound is the makespan
/// of a list schedule. Takes a few microseconds on a layer, so an outer search can prune with it.
#[must_use]
pub fn bounds_without_search(problem: &Problem) -> (u64, u64) {
    let (mut lower, mut upper) = (0, 0);
    for cut in piece::cut_into_pieces(problem) {
        if cut.piece.operator_count() == 1 {
            let shortest = cut.piece.shortest_latency(0) * cut.scale;
            lower += shortest;
            upper += shortest;
        } else {
            let (low, found) = piece_answer::bound_without_search(&cut.piece);
            lower += low * cut.scale;
            upper += found.makespan * cut.scale;
        }
    }
    (lower, upper)
}

/// Solves a problem within the limits. Debug builds verify every schedule.
#[must_use]
pub fn solve_problem(problem: &Problem, limits: &SolveLimits) -> Schedule {
    solve_with_answers(problem, |piece| (portfolio::solve_piece(piece, Budget::from_limits(limits)), false))
}

/// Solves the pieces with `answer` and joins the answers. `answer` also returns true if the memo held the piece.
fn solve_with_answers(problem: &Problem, answer: impl FnMut(&piece::Piece) -> (PieceAnswer, bool)) -> Schedule {
    solve_cut_pieces(problem, &piece::cut_into_pieces(problem), answer)
}

fn solve_cut_pieces(
    problem: &Problem,
    cuts: &[CutPiece],
    mut answer: impl FnMut(&piece::Piece) -> (PieceAnswer, bool),
) -> Schedule {
    let n = problem.operators().len();
    let mut schedule = Schedule {
        makespan: 0,
        lower_bound: 0,
        status: SolveStatus::Optimal,
        method: ProofMethod::Decomposition,
        pieces: Vec::with_capacity(cuts.len()),
        starts: vec![0; n],
        exclusive: vec![false; n],
        cores: vec![CoreAssignment::default(); n],
        statistics: SolveStatistics::default(),
    };
    for cut in cuts {
        let (answer, remembered) = answer(&cut.piece);
        schedule.statistics.remembered += u32::from(remembered);
        append_piece(&mut schedule, cut, &answer);
    }
    place_instant_operators(problem, &mut schedule);
    if schedule.lower_bound < schedule.makespan {
        schedule.status =
            SolveStatus::Gap { lower_bound: schedule.lower_bound as f64, upper_bound: schedule.makespan as f64 };
    }
    debug_assert_eq!(verify_schedule(problem, &schedule), Vec::new());
    schedule
}

fn append_piece(schedule: &mut Schedule, cut: &CutPiece, answer: &PieceAnswer) {
    let base = schedule.makespan;
    let cores = cores::assign_cores(&cut.piece, &answer.found);
    for (k, &i) in cut.origin.iter().enumerate() {
        let i = i as usize;
        schedule.starts[i] = base + answer.found.starts[k] * cut.scale;
        schedule.exclusive[i] = answer.found.exclusive[k];
        schedule.cores[i] = cores[k];
    }
    schedule.makespan += answer.found.makespan * cut.scale;
    schedule.lower_bound += answer.lower_bound * cut.scale;
    schedule.method = schedule.method.max(answer.method);
    schedule.pieces.push(PieceProof {
        operators: cut.origin.len() as u32,
        method: answer.method,
        makespan: answer.found.makespan * cut.scale,
        lower_bound: answer.lower_bound * cut.scale,
    });
    schedule.statistics.pieces += 1;
    schedule.statistics.largest_piece = schedule.statistics.largest_piece.max(cut.origin.len() as u32);
    schedule.statistics.steps += answer.steps;
}

/// Places each operator of zero latency at the end of its last predecessor. If it names a kind of core it gets core 0,
/// which it occupies for no time.
fn place_instant_operators(problem: &Problem, schedule: &mut Schedule) {
    let operators = problem.operators();
    let instant = |o: &Operator| o.latency == 0;
    if !operators.iter().any(instant) {
        return;
    }
    let (offsets, sources) = problem::adjacency_lists(operators.len(), problem.edges().iter().map(|&(a, b)| (b, a)));
    for &i in problem.topological_order() {
        let i = i as usize;
        if !instant(&operators[i]) {
            continue;
        }
        let end = |p: u32| {
            let operator = &operators[p as usize];
            let length =
                if schedule.exclusive[p as usize] { operator.exclusive_latency.unwrap_or(0) } else { operator.latency };
            schedule.starts[p as usize] + length
        };
        schedule.starts[i] = sources[offsets[i]..offsets[i + 1]].iter().map(|&p| end(p)).max().unwrap_or(0);
        let kind = operators[i].kind;
        schedule.cores[i] = CoreAssignment {
            tensor_core: kind.uses_tensor().then_some(0),
            vector_core: kind.uses_vector().then_some(0),
            link: (kind == OperatorKind::Network).then_some(0),
        };
    }
}
