//! Computes the Pareto front of recomputation policies with integer programs: slowly, but independently of the label
//! method.

use super::copies::{CopyLinks, OffloadedBytes};
use super::layer::{LayerError, LayerTensors, OperatorSet, RecomputePolicy, TensorChoice, TensorIndex, TensorSource};
use super::layer_choice::LayerChoice;
use ::microlp::SolveOptions;
use good_lp::solvers::microlp::MicroLpProblem;
use good_lp::{Expression, ProblemVariables, Solution, SolverModel, Variable, microlp, variable};
use sim::units::{Bytes, Seconds};
use std::collections::HashMap;
use thiserror::Error;

/// Why the integer program gave no front.
#[derive(Debug, Error)]
pub enum PolicyIlpError {
    /// The layer description is inconsistent.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The solver stopped without an optimum.
    #[error("the integer program for a stash of at most {budget_bytes} bytes was not solved: {source}")]
    Solver {
        /// The stash limit in bytes.
        budget_bytes: u64,
        /// The solver's error.
        source: good_lp::ResolutionError,
    },
}

/// The variables and constraints of one program. A variable per tensor says if it is kept, and a variable per
/// recomputable operator says if it is rerun.
struct PolicyProgram {
    variables: ProblemVariables,
    keep: Vec<Variable>,
    rerun: Vec<Option<Variable>>,
    rows: Vec<good_lp::Constraint>,
}

/// The exact Pareto front of stash against extra time, for the layer's own times, fastest policy first.
///
/// Each round solves two integer programs: for the fastest policy within the stash limit, then for the smallest stash
/// at that time. The next round's limit is one unit below that stash. A unit is the greatest common divisor of the
/// tensor sizes.
///
/// Policies with equal stash and time are not distinguished here, so workspaces may be larger than those of
/// [`super::RecomputeSpace::front`].
///
/// # Errors
/// [`PolicyIlpError::Layer`] for an inconsistent layer, [`PolicyIlpError::Solver`] when the solver fails.
pub fn pareto_by_ilp(layer: &LayerTensors) -> Result<Vec<RecomputePolicy>, PolicyIlpError> {
    layer.check_consistency()?;
    let unit = layer.tensors.iter().fold(0, |unit, t| num_integer::gcd(unit, t.bytes.0)).max(1);
    let keep_all = layer.policy_of_rerun(OperatorSet::EMPTY).stash.0 / unit;
    let longest = layer.operators.iter().map(|o| o.forward.0).fold(0.0, f64::max);
    let scale = if longest > 0.0 { 1.0 / longest } else { 1.0 };
    let mut front: Vec<RecomputePolicy> = Vec::new();
    let mut budget = keep_all as f64 + 0.5;
    while budget > 0.0 {
        let failed = |source| PolicyIlpError::Solver { budget_bytes: (budget * unit as f64) as u64, source };
        let fastest = match solve_program(layer, unit, scale, budget, None) {
            Ok(set) => layer.policy_of_rerun(set),
            Err(good_lp::ResolutionError::Infeasible) => break,
            Err(source) => return Err(failed(source)),
        };
        // The limit is slightly above the time just found, for the solver's tolerance. Distinct sums of times lie
        // farther apart.
        let time_limit = fastest.extra.0 * scale * (1.0 + 1e-9) + 1e-9;
        let set = solve_program(layer, unit, scale, budget, Some(time_limit)).map_err(failed)?;
        let policy = layer.policy_of_rerun(set);
        budget = (policy.stash.0 / unit) as f64 - 0.5;
        front.push(policy);
    }
    Ok(front)
}

/// Node limit of the branch and bound over one layer; the rest is reported as the gap. A program of 78 operators takes
/// a quarter of a second.
const NODES: u64 = 1_000;

/// A choice, and a lower bound on the added time of any choice for the same budget.
#[derive(Debug, Clone)]
pub struct BoundedChoice {
    /// The choice.
    pub choice: LayerChoice,
    /// The lower bound on the added time.
    pub bound: Seconds,
}

/// Finds the fastest choice with at most `budget` bytes on the device, among those that copy only whole tensors. `None`
/// if nothing fits.
///
/// One integer program decides all tensors of the layer. A tensor is kept, goes to the host, goes to storage, or its
/// producer is rerun. The exposed copy time of a pass is at least the fraction that is never hidden, and at least the
/// excess over what fits beside the pass.
///
/// # Errors
/// As [`pareto_by_ilp`].
pub fn fastest_by_ilp(
    layer: &LayerTensors,
    links: &CopyLinks,
    budget: Bytes,
) -> Result<Option<BoundedChoice>, PolicyIlpError> {
    layer.check_consistency()?;
    let (program, variables) = CopyProgram::new(layer, links);
    let failed = |source| PolicyIlpError::Solver { budget_bytes: budget.0, source };
    let mut options = SolveOptions::default();
    options.node_limit = Some(NODES);
    let outcome = match program.build_model(variables, budget).as_inner().solve_with(options) {
        Ok(outcome) => outcome,
        Err(::microlp::Error::Infeasible) => return Ok(None),
        Err(source) => return Err(failed(source.into())),
    };
    let solution = outcome
        .into_solution()
        .map_err(|_| failed(good_lp::ResolutionError::Other("no choice found within the node limit")))?;
    let values: Vec<f64> = solution.iter().map(|(_, value)| value).collect();
    let choice = program.read_choice(&values);
    let bound = solution.stats().best_bound.map_or(0.0, |bound| bound * program.longest).min(choice.added.0);
    Ok(Some(BoundedChoice { choice, bound: Seconds(bound) }))
}

/// The program of [`fastest_by_ilp`]: its variables and its scales.
struct CopyProgram<'l> {
    layer: &'l LayerTensors,
    links: &'l CopyLinks,
    keep: Vec<Variable>,
    rerun: Vec<Option<Variable>>,
    /// By tensor; `None` without a link to the host.
    host: Vec<Option<Variable>>,
    /// By tensor; `None` without a link to storage.
    storage: Vec<Option<Variable>>,
    /// One if some tensor is copied at all.
    copies: Variable,
    /// One if some tensor is copied to storage.
    stores: Variable,
    /// The exposed copy time of the forward pass, scaled.
    forward_stall: Variable,
    /// The exposed copy time of the backward pass, scaled.
    backward_stall: Variable,
    /// Bytes of a scaled size of one.
    unit: f64,
    /// Seconds of a scaled time of one.
    longest: f64,
}

impl<'l> CopyProgram<'l> {
    fn new(layer: &'l LayerTensors, links: &'l CopyLinks) -> (Self, ProblemVariables) {
        let PolicyProgram { mut variables, keep, rerun, .. } = build_program(layer);
        let mut places = |there: bool| -> Vec<Option<Variable>> {
            layer.tensors.iter().map(|_| there.then(|| variables.add(variable().binary()))).collect()
        };
        let (host, storage) = (places(links.host.is_some()), places(links.storage.is_some()));
        let [copies, stores, forward_stall, backward_stall] =
            [variable().binary(), variable().binary(), variable().min(0.0), variable().min(0.0)]
                .map(|kind| variables.add(kind));
        // Scales seconds and bytes to about one, for the solver's tolerances.
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN_POSITIVE, f64::max);
        let unit = most(&mut layer.tensors.iter().map(|tensor| tensor.bytes.as_f64()));
        let rates =
            [links.host, links.storage].into_iter().flatten().flat_map(|rate| [rate.per_byte * unit, rate.latency]);
        let longest = most(&mut layer.operators.iter().map(|o| o.forward.0).chain(rates));
        let program = Self {
            layer,
            links,
            keep,
            rerun,
            host,
            storage,
            copies,
            stores,
            forward_stall,
            backward_stall,
            unit,
            longest,
        };
        (program, variables)
    }

    fn build_model(&self, variables: ProblemVariables, budget: Bytes) -> MicroLpProblem {
        let rerun_time: Expression =
            reruns_of(&self.rerun).map(|(o, r)| self.layer.operators[o].forward.0 / self.longest * r).sum();
        let stash: Expression =
            self.keep.iter().enumerate().map(|(t, x)| self.layer.tensors[t].bytes.as_f64() / self.unit * *x).sum();
        let objective = rerun_time.clone() + self.forward_stall + self.backward_stall;
        let model = variables.minimise(objective).using(microlp);
        let model = model.with(stash.leq((budget.as_f64() + 0.5) / self.unit));
        self.require_tensors(self.limit_copies(model, &rerun_time))
    }

    /// Adds the exposed time of copies, and the variables that say if there are copies.
    fn limit_copies(&self, mut model: MicroLpProblem, rerun_time: &Expression) -> MicroLpProblem {
        let (links, longest) = (self.links, self.longest);
        let sum = |places: &[Option<Variable>], per_byte: f64| -> Expression {
            let bytes = |t: usize| self.layer.tensors[t].bytes.as_f64();
            places.iter().enumerate().filter_map(|(t, x)| x.map(|x| bytes(t) * per_byte / longest * x)).sum()
        };
        let copies = [
            links.host.map(|rate| {
                let host = sum(&self.host, rate.per_byte);
                host + sum(&self.storage, rate.per_byte) + rate.latency / longest * self.copies
            }),
            links.storage.map(|rate| sum(&self.storage, rate.per_byte) + rate.latency / longest * self.stores),
        ];
        for copy in copies.into_iter().flatten() {
            let least = copy.clone() * (1.0 - links.hidden);
            let over = |busy: Expression| copy.clone() - busy * links.hidden;
            for (stall, busy) in [
                (self.forward_stall, Expression::from(links.forward / longest)),
                (self.backward_stall, rerun_time.clone() + links.backward / longest),
            ] {
                model = model.with((least.clone() - stall).leq(0.0)).with((over(busy) - stall).leq(0.0));
            }
        }
        for x in self.host.iter().chain(&self.storage).flatten() {
            model = model.with((*x - self.copies).leq(0.0));
        }
        for x in self.storage.iter().flatten() {
            model = model.with((*x - self.stores).leq(0.0));
        }
        model
    }

    /// Requires every tensor that the backward pass or a rerun operator reads.
    fn require_tensors(&self, mut model: MicroLpProblem) -> MicroLpProblem {
        let layer = self.layer;
        let at_hand = |t: TensorIndex| -> Expression {
            let producer = match layer.tensors[t.0].source {
                TensorSource::Operator(o) => self.rerun[o.0],
                TensorSource::LayerInput => None,
            };
            let ways = [Some(self.keep[t.0]), self.host[t.0], self.storage[t.0], producer];
            ways.into_iter().flatten().map(Expression::from).sum()
        };
        for t in (0..layer.tensors.len()).filter(|&t| layer.tensors[t].needed_by_backward) {
            model = model.with(at_hand(TensorIndex(t)).geq(1));
        }
        for (operator, rerun) in layer.operators.iter().zip(&self.rerun) {
            if let Some(rerun) = *rerun {
                for &u in &operator.inputs {
                    model = model.with((at_hand(u) - rerun).geq(0));
                }
            }
        }
        model
    }

    /// Reads the choice from the solver's values, which are in the order in which the variables were added.
    fn read_choice(&self, values: &[f64]) -> LayerChoice {
        let places = self.rerun.iter().chain(&self.host).chain(&self.storage).flatten().copied();
        let made = self.keep.iter().copied().chain(places);
        let values: HashMap<Variable, f64> = made.zip(values.iter().copied()).collect();
        let is = |x: Variable| values.get(&x).is_some_and(|value| *value > 0.5);
        let operators =
            reruns_of(&self.rerun).filter(|(_, r)| is(*r)).fold(OperatorSet::EMPTY, |set, (o, _)| set.with_operator(o));
        let retained = self.layer.tensor_choices(operators);
        let sent = |places: &[Option<Variable>]| -> Vec<TensorIndex> {
            let there = |t: &usize| retained[*t] == TensorChoice::Keep && places[*t].is_some_and(is);
            (0..places.len()).filter(there).map(TensorIndex).collect()
        };
        let (stored, offloaded) = (sent(&self.storage), sent(&self.host));
        let offloaded: Vec<TensorIndex> = offloaded.into_iter().filter(|t| !stored.contains(t)).collect();
        let size = |tensors: &[TensorIndex]| tensors.iter().map(|t| self.layer.tensors[t.0].bytes).sum::<Bytes>();
        let (host, storage) = (size(&offloaded), size(&stored));
        let policy = self.layer.policy_of_rerun(operators);
        let away = OffloadedBytes { host: host.0, storage: storage.0 };
        let added = Seconds(policy.extra.0 + self.links.exposed_copy_seconds(away, policy.extra.0));
        let stash = policy.stash.saturating_sub(host + storage);
        LayerChoice { stash, host, storage, again: policy.extra, added, operators, offloaded, stored, share: None }
    }
}

/// The operators that may be rerun, each with its variable.
fn reruns_of(rerun: &[Option<Variable>]) -> impl Iterator<Item = (usize, Variable)> {
    rerun.iter().enumerate().filter_map(|(o, r)| r.map(|r| (o, r)))
}

/// Solves the program for the operators to rerun. They minimise the time within the stash budget (in units). With a
/// time limit (scaled seconds), they minimise the stash within it.
fn solve_program(
    layer: &LayerTensors,
    unit: u64,
    scale: f64,
    budget: f64,
    time_limit: Option<f64>,
) -> Result<OperatorSet, good_lp::ResolutionError> {
    let PolicyProgram { variables, keep, rerun, rows } = build_program(layer);
    let units = |t: usize| (TensorChoice::Keep.stash_bytes(layer.tensors[t].bytes).0 / unit) as f64;
    let stash: Expression = keep.iter().enumerate().map(|(t, &x)| units(t) * x).sum();
    let seconds: Expression = reruns_of(&rerun).map(|(o, r)| layer.operators[o].forward.0 * scale * r).sum();
    let objective = if time_limit.is_some() { stash.clone() } else { seconds.clone() };
    let mut model = variables.minimise(objective).using(microlp);
    model = model.with(stash.leq(budget));
    if let Some(limit) = time_limit {
        model = model.with(seconds.leq(limit));
    }
    let solution = rows.into_iter().fold(model, SolverModel::with).solve()?;
    Ok(reruns_of(&rerun)
        .filter(|(_, r)| solution.value(*r) > 0.5)
        .fold(OperatorSet::EMPTY, |set, (o, _)| set.with_operator(o)))
}

fn build_program(layer: &LayerTensors) -> PolicyProgram {
    let mut variables = ProblemVariables::new();
    let keep: Vec<Variable> = layer.tensors.iter().map(|_| variables.add(variable().binary())).collect();
    let rerun: Vec<Option<Variable>> =
        layer.operators.iter().map(|o| o.recomputable.then(|| variables.add(variable().binary()))).collect();
    // A tensor is available if it is kept or its producer rebuilds it.
    let at_hand = |t: TensorIndex| -> Expression {
        let producer = match layer.tensors[t.0].source {
            TensorSource::Operator(o) => rerun[o.0],
            TensorSource::LayerInput => None,
        };
        producer.map_or_else(|| Expression::from(keep[t.0]), |r| keep[t.0] + r)
    };
    let needed = (0..layer.tensors.len()).filter(|&t| layer.tensors[t].needed_by_backward);
    let mut rows: Vec<good_lp::Constraint> = needed.map(|t| at_hand(TensorIndex(t)).geq(1)).collect();
    for (operator, rerun) in layer.operators.iter().zip(&rerun) {
        if let Some(rerun) = *rerun {
            rows.extend(operator.inputs.iter().map(|&u| (at_hand(u) - rerun).geq(0)));
        }
    }
    PolicyProgram { variables, keep, rerun, rows }
}
