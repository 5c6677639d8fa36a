//! The schedule as an integer program, through `good_lp`: `microlp` in every build, `HiGHS` with the feature `highs`.
//!
//! [`Formulation::Tight`] solves piece by piece. It has order variables only for pairs of operators that precedence
//! leaves open, and no transitivity rows. Big-M comes from heads, tails and the makespan of a list schedule. Work cuts
//! cover all operators, and the ancestors and descendants of each. The list schedule is a complete warm start.
//!
//! [`Formulation::Plain`] is PHAZE's program to the letter (msr-fiddle/phaze `ilp.py`), for comparison: transitivity
//! rows over all triples, one big-M, no cuts, no warm start.
//!
//! Both add variables for core numbers only when a solution without them needs more cores than there are.

use super::bounds::{PrecedenceSets, chain_tails, quick_lower_bound, set_members};
use super::cores::{assign_cores, pair_by_index};
use super::list::PieceSchedule;
use super::piece::{LINK, NEVER, Piece, SEARCHABLE, TENSOR, VECTOR};
use super::piece_answer::{PieceAnswer, answer_single_operator, bound_without_search};
use super::{Problem, ProofMethod, Schedule, piece, solve_cut_pieces};
use good_lp::{
    Constraint, Expression, ProblemVariables, ResolutionError, Solution, SolutionStatus, SolverModel, Variable,
    WithInitialSolution, WithTimeLimit, constraint, variable,
};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Largest makespan, in ticks, at which a solver's proof holds to the tick. Solvers work in floating point with
/// relative tolerances of about 1e-6.
const PROOF_TICKS: u64 = 200_000;

/// The formulation of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Formulation {
    /// coplace's own.
    Tight,
    /// PHAZE's, for comparison.
    Plain,
}

/// The solver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// `microlp`, in every build.
    Microlp,
    /// `HiGHS`, with the feature `highs`.
    #[cfg(feature = "highs")]
    Highs,
}

/// Options of a solve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IlpOptions {
    /// The formulation of the program.
    pub formulation: Formulation,
    /// The solver.
    pub backend: Backend,
    /// Wall time per piece. A solve that runs out of time keeps the best schedule known and reports a gap.
    pub time_limit: Option<Duration>,
}

/// The reason why an integer program gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IlpError {
    /// A piece has too many operators for the program.
    #[error(
        "a piece of {operators} operators is above the limit of {SEARCHABLE} for the integer program; use `solve_problem`"
    )]
    TooLarge {
        /// Operators of the piece.
        operators: usize,
    },
    /// The solver failed.
    #[error(
        "the solver failed on a piece of {operators} operators: {message}; use `solve_problem`, or the other solver"
    )]
    Solver {
        /// Operators of the piece.
        operators: usize,
        /// Its message.
        message: String,
    },
    /// The solver's answer, rounded to ticks, is not a schedule.
    #[error(
        "the solver's answer to a piece of {operators} operators is off by more than rounding; use `solve_problem`, or a coarser tick"
    )]
    Numerics {
        /// Operators of the piece.
        operators: usize,
    },
}

/// Solves a problem as an integer program.
///
/// # Errors
/// An [`IlpError`] when the program is too large, the solver fails or its answer is not a schedule.
pub fn solve_ilp(problem: &Problem, options: &IlpOptions) -> Result<Schedule, IlpError> {
    let cuts = match options.formulation {
        Formulation::Tight => piece::cut_into_pieces(problem),
        Formulation::Plain => piece::as_one_piece(problem),
    };
    let answers: Vec<PieceAnswer> =
        cuts.iter().map(|cut| solve_piece_by_ilp(&cut.piece, options)).collect::<Result<_, _>>()?;
    let mut answers = answers.into_iter();
    Ok(solve_cut_pieces(problem, &cuts, |piece| {
        (answers.next().unwrap_or_else(|| answer_single_operator(piece)), false)
    }))
}

/// Solves the program of a piece from the schedule of `answer`. A shorter schedule replaces the answer's schedule. If
/// the program is solved to optimality, the answer is proven. The answer stays as it is if the solver fails or its time
/// runs out.
pub(super) fn improve_answer(piece: &Piece, answer: &mut PieceAnswer, backend: Backend, time_limit: Option<Duration>) {
    let options = IlpOptions { formulation: Formulation::Tight, backend, time_limit };
    let Ok(solved) = solve_from_schedule(piece, &options, &answer.found, answer.lower_bound) else { return };
    if solved.found.makespan < answer.found.makespan {
        answer.found = solved.found;
    }
    answer.lower_bound = answer.lower_bound.max(solved.lower_bound);
    if answer.lower_bound == answer.found.makespan {
        answer.method = ProofMethod::Ilp;
    }
}

fn solve_piece_by_ilp(piece: &Piece, options: &IlpOptions) -> Result<PieceAnswer, IlpError> {
    let operators = piece.operator_count();
    if operators == 1 {
        return Ok(answer_single_operator(piece));
    }
    if operators > SEARCHABLE {
        return Err(IlpError::TooLarge { operators });
    }
    let (_, start) = bound_without_search(piece);
    solve_from_schedule(piece, options, &start, quick_lower_bound(piece, &chain_tails(piece)))
}

/// Solves the program of a piece of 2 to [`SEARCHABLE`] operators, given a schedule and a lower bound. Adds core
/// numbers for the kinds of core that a solution without them overloads.
fn solve_from_schedule(
    piece: &Piece,
    options: &IlpOptions,
    start: &PieceSchedule,
    lower: u64,
) -> Result<PieceAnswer, IlpError> {
    let operators = piece.operator_count();
    let begun = Instant::now();
    let mut groups = [false; 3];
    loop {
        let program = PieceProgram::new(piece, options.formulation, groups, start);
        let time_limit = options.time_limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        let (found, proved) = match program.solve_within_limits(&IlpOptions { time_limit, ..*options })? {
            Some((found, proved)) => (found, proved),
            None => (start.clone(), false),
        };
        if !orders_hold(piece, &found) {
            return Err(IlpError::Numerics { operators });
        }
        let over = overloaded_kinds(piece, &found);
        if over.iter().any(|&o| o) {
            for (group, over) in groups.iter_mut().zip(over) {
                *group |= over;
            }
            continue;
        }
        let found = if piece.paired && found.slots.is_empty() {
            match pair_by_index(piece, &found) {
                Some(slots) => PieceSchedule { slots, ..found },
                None if groups[..2] == [true, true] => return Err(IlpError::Numerics { operators }),
                None => {
                    groups[..2].fill(true);
                    continue;
                }
            }
        } else {
            found
        };
        let lower_bound = if proved { lower.max(proven_bound(found.makespan)) } else { lower.min(found.makespan) };
        let method = if lower_bound == found.makespan { ProofMethod::Ilp } else { ProofMethod::Open };
        return Ok(PieceAnswer { lower_bound, found, method, steps: 0 });
    }
}

/// Returns the lower bound that a solver's proof of a makespan gives: the makespan itself up to [`PROOF_TICKS`], and
/// above that the makespan less the solver's tolerance.
fn proven_bound(makespan: u64) -> u64 {
    makespan - if makespan <= PROOF_TICKS { 0 } else { makespan.div_ceil(PROOF_TICKS) }
}

fn end_times(piece: &Piece, found: &PieceSchedule) -> Vec<u64> {
    (0..piece.operator_count())
        .map(|i| found.starts[i] + if found.exclusive[i] { piece.exc[i] } else { piece.lat[i] })
        .collect()
}

/// True if every operator starts after its predecessors end, and no operator overlaps one across all cores that blocks
/// it.
fn orders_hold(piece: &Piece, found: &PieceSchedule) -> bool {
    let ends = end_times(piece, found);
    let apart = |i: usize, j: usize| ends[i] <= found.starts[j] || ends[j] <= found.starts[i];
    (0..piece.operator_count()).all(|j| {
        piece.predecessors(j).iter().all(|&p| ends[p as usize] <= found.starts[j])
            && (!found.exclusive[j]
                || (0..piece.operator_count()).all(|i| i == j || !piece.excludes(j, i) || apart(i, j)))
    })
}

/// Returns, per kind of core, true if a schedule uses more cores than there are.
fn overloaded_kinds(piece: &Piece, found: &PieceSchedule) -> [bool; 3] {
    let ends = end_times(piece, found);
    let mut over = [false; 3];
    for at in 0..piece.operator_count() {
        let now = found.starts[at];
        for (k, bit) in [TENSOR, VECTOR, LINK].into_iter().enumerate() {
            let runs =
                |i: usize| piece.kind[i] & bit > 0 && !found.exclusive[i] && found.starts[i] <= now && now < ends[i];
            over[k] |= (0..piece.operator_count()).filter(|&i| runs(i)).count() > piece.m[k] as usize;
        }
    }
    over
}

/// The program of a piece.
struct PieceProgram<'a> {
    piece: &'a Piece,
    relation: PrecedenceSets,
    tight: bool,
    variables: ProblemVariables,
    rows: Vec<Constraint>,
    start: Vec<(Variable, f64)>,
    makespan: Variable,
    starts: Vec<Variable>,
    exclusive: Vec<Option<Variable>>,
    /// `order[i][j]`: operator `i` ends before `j` starts. Only for pairs that precedence leaves open.
    order: Vec<Vec<Option<Variable>>>,
}

impl<'a> PieceProgram<'a> {
    fn new(piece: &'a Piece, formulation: Formulation, groups: [bool; 3], start: &PieceSchedule) -> Self {
        let n = piece.operator_count();
        let tight = formulation == Formulation::Tight;
        let mut variables = ProblemVariables::new();
        let tails = chain_tails(piece);
        let reversed = chain_tails(&piece.reverse());
        let heads: Vec<u64> = (0..n).map(|i| reversed[n - 1 - i] - piece.shortest_latency(i)).collect();
        let lower = if tight { quick_lower_bound(piece, &tails) } else { 0 };
        let longest = |v: &[u64]| v.iter().fold(0u64, |a, &b| a.saturating_add(b));
        let across: Vec<u64> =
            (0..n).map(|i| if piece.exc[i] == NEVER { piece.lat[i] } else { piece.exc[i] }).collect();
        let upper = if tight { start.makespan } else { longest(&piece.lat).min(longest(&across)) };
        let makespan = variables.add(variable().clamp(lower as f64, upper as f64));
        let window =
            |i: usize| if tight { (heads[i], upper.saturating_sub(tails[i]).max(heads[i])) } else { (0, upper) };
        let starts = (0..n).map(|i| variables.add(variable().clamp(window(i).0 as f64, window(i).1 as f64))).collect();
        let exclusive = (0..n).map(|i| (piece.exc[i] != NEVER).then(|| variables.add(variable().binary()))).collect();
        let relation = PrecedenceSets::of_piece(piece);
        let comparable =
            |i: usize, j: usize| relation.descendants[i] >> j & 1 == 1 || relation.descendants[j] >> i & 1 == 1;
        let order = (0..n)
            .map(|i| {
                (0..n).map(|j| (i != j && !comparable(i, j)).then(|| variables.add(variable().binary()))).collect()
            })
            .collect();
        let mut program = Self {
            piece,
            relation,
            tight,
            variables,
            rows: Vec::new(),
            start: Vec::new(),
            makespan,
            starts,
            exclusive,
            order,
        };
        program.add_precedence_constraints(upper, &heads, &tails);
        program.add_exclusivity_constraints();
        if tight {
            program.add_work_cuts();
            program.set_warm_start(start);
        } else {
            program.add_transitivity_constraints();
        }
        program.add_core_groups(groups, start);
        program
    }

    /// Returns the latency of operator `i` in its mode.
    fn length_expression(&self, i: usize) -> Expression {
        let single = self.piece.lat[i] as f64;
        match self.exclusive[i] {
            Some(y) => single - (single - self.piece.exc[i] as f64) * y,
            None => single.into(),
        }
    }

    fn add_precedence_constraints(&mut self, upper: u64, heads: &[u64], tails: &[u64]) {
        for (i, &tail) in tails.iter().enumerate() {
            let end = self.length_expression(i) + self.starts[i];
            self.rows.push(constraint!(self.makespan >= end.clone()));
            for j in set_members(self.relation.succs[i]) {
                self.rows.push(constraint!(self.starts[j] >= end.clone()));
            }
            for (j, &head) in heads.iter().enumerate() {
                let Some(before) = self.order[i][j] else { continue };
                let big = if self.tight {
                    (upper - (tail - self.piece.shortest_latency(i))).saturating_sub(head) as f64
                } else {
                    (upper + self.piece.lat[i]) as f64
                };
                self.rows.push(constraint!(self.starts[j] >= end.clone() - big * (1.0 - before)));
                if let Some(after) = self.order[j][i].filter(|_| i < j) {
                    self.rows.push(constraint!(before + after <= 1.0));
                }
            }
        }
    }

    fn add_exclusivity_constraints(&mut self) {
        let n = self.piece.operator_count();
        for i in 0..n {
            let Some(across) = self.exclusive[i] else { continue };
            for j in (0..n).filter(|&j| self.piece.excludes(i, j)) {
                if let (Some(before), Some(after)) = (self.order[i][j], self.order[j][i]) {
                    self.rows.push(constraint!(before + after >= across));
                }
            }
        }
    }

    /// Returns the work of a set of operators on the cores of kind `k`, per core.
    fn work_per_core(&self, k: usize, set: impl Iterator<Item = usize>) -> Expression {
        let m = f64::from(self.piece.m[k]);
        let mut sum = Expression::from(0.0);
        for i in set {
            let uses = self.piece.kind[i] & [TENSOR, VECTOR, LINK][k] > 0;
            if uses {
                sum += self.piece.lat[i] as f64 / m;
            }
            if let Some(y) = self.exclusive[i] {
                let blocks = k < 2 && (uses || !self.piece.own_kind);
                let gain = if uses { self.piece.lat[i] as f64 / m } else { 0.0 };
                let price = if blocks { self.piece.exc[i] as f64 } else { 0.0 };
                sum += (price - gain) * y;
            }
        }
        sum
    }

    /// Adds cuts: no set of operators is faster than its work on one kind of core. The sets are all operators, and the
    /// ancestors and the descendants of each operator.
    fn add_work_cuts(&mut self) {
        let n = self.piece.operator_count();
        for k in (0..3).filter(|&k| self.piece.m[k] > 0) {
            self.rows.push(constraint!(self.makespan >= self.work_per_core(k, 0..n)));
            for v in 0..n {
                let before: Vec<usize> = (0..v).filter(|&i| self.relation.descendants[i] >> v & 1 == 1).collect();
                if before.len() > 1 {
                    self.rows.push(constraint!(self.starts[v] >= self.work_per_core(k, before.into_iter())));
                }
                let after = self.relation.descendants[v];
                if after.count_ones() > 1 {
                    let end = self.length_expression(v) + self.starts[v];
                    self.rows.push(constraint!(self.makespan >= end + self.work_per_core(k, set_members(after))));
                }
            }
        }
    }

    fn add_transitivity_constraints(&mut self) {
        let n = self.piece.operator_count();
        let known = |i: usize, j: usize| if self.relation.descendants[i] >> j & 1 == 1 { 1.0 } else { 0.0 };
        let term =
            |i: usize, j: usize| self.order[i][j].map_or_else(|| Expression::from(known(i, j)), Expression::from);
        for i in 0..n {
            for j in (0..n).filter(|&j| j != i) {
                for k in (0..n).filter(|&k| k != i && k != j) {
                    if self.order[i][j].is_some() || self.order[j][k].is_some() || self.order[i][k].is_some() {
                        self.rows.push(constraint!(term(i, j) + term(j, k) - 1.0 <= term(i, k)));
                    }
                }
            }
        }
    }

    fn set_warm_start(&mut self, found: &PieceSchedule) {
        let ends = end_times(self.piece, found);
        self.start.push((self.makespan, found.makespan as f64));
        for (i, &end) in ends.iter().enumerate() {
            self.start.push((self.starts[i], found.starts[i] as f64));
            if let Some(y) = self.exclusive[i] {
                self.start.push((y, f64::from(u8::from(found.exclusive[i]))));
            }
            for (order, &start) in self.order[i].iter().zip(&found.starts) {
                if let Some(x) = order {
                    self.start.push((*x, f64::from(u8::from(end <= start))));
                }
            }
        }
    }

    /// Adds core numbers for the kinds of core in `groups`. Operators on the same core are ordered.
    fn add_core_groups(&mut self, groups: [bool; 3], found: &PieceSchedule) {
        let n = self.piece.operator_count();
        let numbers = assign_cores(self.piece, found);
        let mut on: Vec<Vec<Option<Variable>>> = Vec::new();
        for k in (0..3).filter(|&k| groups[k]) {
            let users: Vec<usize> = (0..n).filter(|&i| self.piece.kind[i] & [TENSOR, VECTOR, LINK][k] > 0).collect();
            let shared = self.piece.paired && k == 1 && groups[0];
            let mut core: Vec<Vec<Option<Variable>>> = vec![vec![None; self.piece.m[k] as usize]; n];
            for &i in &users {
                let mut sum = Expression::from(0.0);
                let fused = self.piece.kind[i] == TENSOR | VECTOR;
                for (c, place) in core[i].iter_mut().enumerate() {
                    let exists = !(self.piece.paired && fused) || c < self.piece.m[0].min(self.piece.m[1]) as usize;
                    let own = if shared && fused { on[i].get(c).copied().flatten() } else { None };
                    if !exists {
                        continue;
                    }
                    let z = own.unwrap_or_else(|| self.variables.add(variable().binary()));
                    if own.is_none() && self.tight {
                        let number = [numbers[i].tensor_core, numbers[i].vector_core, numbers[i].link][k];
                        self.start.push((z, f64::from(u8::from(number == Some(c as u32)))));
                    }
                    *place = Some(z);
                    sum += z;
                }
                match self.exclusive[i] {
                    Some(y) => self.rows.push(constraint!(sum == 1.0 - y)),
                    None => self.rows.push(constraint!(sum == 1.0)),
                }
            }
            for (a, &i) in users.iter().enumerate() {
                for &j in &users[a + 1..] {
                    let (Some(before), Some(after)) = (self.order[i][j], self.order[j][i]) else { continue };
                    for (zi, zj) in core[i].iter().zip(&core[j]) {
                        if let (Some(zi), Some(zj)) = (zi, zj) {
                            self.rows.push(constraint!(before + after >= *zi + *zj - 1.0));
                        }
                    }
                }
            }
            if k == 0 {
                on = core;
            }
        }
    }

    /// Returns the schedule, and true if the solver proved it. `None` if the time ran out before a first solution.
    fn solve_within_limits(self, options: &IlpOptions) -> Result<Option<(PieceSchedule, bool)>, IlpError> {
        let operators = self.piece.operator_count();
        let outcome = match options.backend {
            Backend::Microlp => {
                let model = self.variables.minimise(self.makespan).using(good_lp::microlp);
                run_solver(model, self.rows, self.start, options)
                    .map(|s| values_of_start(self.piece, &self.starts, &self.exclusive, &s))
            }
            #[cfg(feature = "highs")]
            Backend::Highs => {
                let model = self.variables.minimise(self.makespan).using(good_lp::highs);
                let model = model.set_option("threads", 1).set_option("random_seed", 0).set_option("mip_rel_gap", 0.0);
                run_solver(model, self.rows, self.start, options)
                    .map(|s| values_of_start(self.piece, &self.starts, &self.exclusive, &s))
            }
        };
        match outcome {
            Ok(answer) => Ok(Some(answer)),
            Err(ResolutionError::Other(
                "Time limit reached before finding a feasible solution" | "NoSolutionFound",
            )) => Ok(None),
            Err(error) => Err(IlpError::Solver { operators, message: error.to_string() }),
        }
    }
}

fn run_solver<M>(
    mut model: M,
    rows: Vec<Constraint>,
    start: Vec<(Variable, f64)>,
    options: &IlpOptions,
) -> Result<M::Solution, ResolutionError>
where
    M: SolverModel<Error = ResolutionError> + WithInitialSolution + WithTimeLimit,
{
    for row in rows {
        model.add_constraint(row);
    }
    if !start.is_empty() {
        model = model.with_initial_solution(start);
    }
    if let Some(limit) = options.time_limit {
        model = model.with_time_limit(limit.as_secs_f64());
    }
    model.solve()
}

fn values_of_start(
    piece: &Piece,
    starts: &[Variable],
    exclusive: &[Option<Variable>],
    solution: &impl Solution,
) -> (PieceSchedule, bool) {
    let starts: Vec<u64> = starts.iter().map(|&s| solution.value(s).round().max(0.0) as u64).collect();
    let exclusive: Vec<bool> = exclusive.iter().map(|y| y.is_some_and(|y| solution.value(y) > 0.5)).collect();
    let mut found = PieceSchedule { makespan: 0, starts, exclusive, slots: Vec::new() };
    found.makespan = end_times(piece, &found).into_iter().max().unwrap_or(0);
    (found, matches!(solution.status(), SolutionStatus::Optimal))
}
