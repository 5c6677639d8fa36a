//! Computes the Pareto front of recomputation policies with integer programs: slowly, but independently of the label
//! method.

use super::copies::{CopyLinks, OffloadedBytes};
use super::layer::{LayerError, LayerTensors, OperatorSet, RecomputePolicy, TensorChoice, TensorIndex, TensorSource};
use super::layer_choice::LayerChoice;
use ::microlp::SolveOptions;
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

/// The fastest choice with at most `budget` bytes on the device, which copies whole tensors, and a lower bound in
/// seconds on the added time of any such choice. `None` if nothing fits.
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
) -> Result<Option<(LayerChoice, Seconds)>, PolicyIlpError> {
    layer.check_consistency()?;
    let PolicyProgram { mut variables, keep, rerun, .. } = build_program(layer);
    let mut places = |there: bool| -> Vec<Option<Variable>> {
        layer.tensors.iter().map(|_| there.then(|| variables.add(variable().binary()))).collect()
    };
    let (host, storage) = (places(links.host.is_some()), places(links.storage.is_some()));
    let [any, any_stored, forward, backward] =
        [variable().binary(), variable().binary(), variable().min(0.0), variable().min(0.0)]
            .map(|kind| variables.add(kind));
    // Scales seconds and bytes to about one, for the solver's tolerances.
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN_POSITIVE, f64::max);
    let bytes = |t: usize| layer.tensors[t].bytes.as_f64();
    let unit = most(&mut (0..layer.tensors.len()).map(bytes));
    let rates = [links.host, links.storage].into_iter().flatten().flat_map(|rate| [rate.per_byte * unit, rate.latency]);
    let longest = most(&mut layer.operators.iter().map(|o| o.forward.0).chain(rates));
    let reruns = || rerun.iter().enumerate().filter_map(|(o, r)| r.map(|r| (o, r)));
    let again: Expression = reruns().map(|(o, r)| layer.operators[o].forward.0 / longest * r).sum();
    let sum = |places: &[Option<Variable>], per_byte: f64| -> Expression {
        places.iter().enumerate().filter_map(|(t, x)| x.map(|x| bytes(t) * per_byte / longest * x)).sum()
    };
    let copies = [
        links.host.map(|rate| sum(&host, rate.per_byte) + sum(&storage, rate.per_byte) + rate.latency / longest * any),
        links.storage.map(|rate| sum(&storage, rate.per_byte) + rate.latency / longest * any_stored),
    ];
    let stash: Expression = keep.iter().enumerate().map(|(t, x)| bytes(t) / unit * *x).sum();
    let mut model = variables.minimise(again.clone() + forward + backward).using(microlp);
    model = model.with(stash.leq((budget.as_f64() + 0.5) / unit));
    for copy in copies.into_iter().flatten() {
        let least = copy.clone() * (1.0 - links.hidden);
        let over = |busy: Expression| copy.clone() - busy * links.hidden;
        for (stall, busy) in
            [(forward, Expression::from(links.forward / longest)), (backward, again.clone() + links.backward / longest)]
        {
            model = model.with((least.clone() - stall).leq(0.0)).with((over(busy) - stall).leq(0.0));
        }
    }
    for x in host.iter().chain(&storage).flatten() {
        model = model.with((*x - any).leq(0.0));
    }
    for x in storage.iter().flatten() {
        model = model.with((*x - any_stored).leq(0.0));
    }
    let at_hand = |t: TensorIndex| -> Expression {
        let producer = match layer.tensors[t.0].source {
            TensorSource::Operator(o) => rerun[o.0],
            TensorSource::LayerInput => None,
        };
        [Some(keep[t.0]), host[t.0], storage[t.0], producer].into_iter().flatten().map(Expression::from).sum()
    };
    for t in (0..layer.tensors.len()).filter(|&t| layer.tensors[t].needed_by_backward) {
        model = model.with(at_hand(TensorIndex(t)).geq(1));
    }
    for (operator, rerun) in layer.operators.iter().zip(&rerun) {
        if let Some(rerun) = *rerun {
            for &u in &operator.inputs {
                model = model.with((at_hand(u) - rerun).geq(0));
            }
        }
    }
    let failed = |source| PolicyIlpError::Solver { budget_bytes: budget.0, source };
    let mut options = SolveOptions::default();
    options.node_limit = Some(NODES);
    let outcome = match model.as_inner().solve_with(options) {
        Ok(outcome) => outcome,
        Err(::microlp::Error::Infeasible) => return Ok(None),
        Err(source) => return Err(failed(source.into())),
    };
    let solution = outcome
        .into_solution()
        .map_err(|_| failed(good_lp::ResolutionError::Other("no choice found within the node limit")))?;
    // The solver returns values in the order in which the variables were added.
    let made = keep.iter().copied().chain(rerun.iter().chain(&host).chain(&storage).flatten().copied());
    let values: HashMap<Variable, f64> = made.zip(solution.iter().map(|(_, value)| value)).collect();
    let is = |x: Variable| values.get(&x).is_some_and(|value| *value > 0.5);
    let chosen = reruns().filter(|(_, r)| is(*r)).fold(OperatorSet::EMPTY, |set, (o, _)| set.with_operator(o));
    let retained = layer.tensor_choices(chosen);
    let sent = |places: &[Option<Variable>]| -> Vec<TensorIndex> {
        let there = |t: &usize| retained[*t] == TensorChoice::Keep && places[*t].is_some_and(is);
        (0..places.len()).filter(there).map(TensorIndex).collect()
    };
    let (stored, offloaded) = (sent(&storage), sent(&host));
    let offloaded: Vec<TensorIndex> = offloaded.into_iter().filter(|t| !stored.contains(t)).collect();
    let size = |tensors: &[TensorIndex]| tensors.iter().map(|t| layer.tensors[t.0].bytes).sum::<Bytes>();
    let (host, storage) = (size(&offloaded), size(&stored));
    let policy = layer.policy_of_rerun(chosen);
    let added = Seconds(
        policy.extra.0
            + links.exposed_copy_seconds(OffloadedBytes { host: host.0, storage: storage.0 }, policy.extra.0),
    );
    let bound = solution.stats().best_bound.map_or(0.0, |bound| bound * longest).min(added.0);
    let stash = policy.stash.saturating_sub(host + storage);
    let again = policy.extra;
    let choice = LayerChoice { stash, host, storage, again, added, operators: chosen, offloaded, stored, share: None };
    Ok(Some((choice, Seconds(bound))))
}

/// The operators to rerun for the least time within the stash budget (in units). With a time limit (scaled seconds),
/// those for the smallest stash within it.
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
    let reruns = || rerun.iter().enumerate().filter_map(|(o, r)| r.map(|r| (o, r)));
    let seconds: Expression = reruns().map(|(o, r)| layer.operators[o].forward.0 * scale * r).sum();
    let objective = if time_limit.is_some() { stash.clone() } else { seconds.clone() };
    let mut model = variables.minimise(objective).using(microlp);
    model = model.with(stash.leq(budget));
    if let Some(limit) = time_limit {
        model = model.with(seconds.leq(limit));
    }
    let solution = rows.into_iter().fold(model, SolverModel::with).solve()?;
    Ok(reruns().filter(|(_, r)| solution.value(*r) > 0.5).fold(OperatorSet::EMPTY, |set, (o, _)| set.with_operator(o)))
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
