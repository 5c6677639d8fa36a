//! The policy of a run (the tensors that its layers keep), from the row's `recompute_modules` or by assumption.

use super::PreparedInputs;
use super::modules::{MODULES, parse_modules};
use super::run::MeasuredRun;
use crate::validate::row::{MeasuredRow, RowFailure};
use step::{DeviceMemory, StepMemory, lower_plan, step_memory};
use workloads::{ActivationPolicy, LayerRun, RecomputeSet, SegmentKind, StagePolicies, TechniqueError};

/// Returns the run with the policy of its row, stated or assumed.
pub(super) fn run_with_policy(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    run: MeasuredRun,
) -> Result<MeasuredRun, RowFailure> {
    let run = run_as_stated(prepared, row, run)?;
    choose_policy(prepared, row, run)
}

/// Returns the run with `recompute_modules` applied. `full_layers:N` recomputes the first N layers of every chunk.
/// `cpu_offload_layers:N` offloads all kept tensors of the first N layers of every chunk to host memory. Other entries
/// name recomputed modules. Unknown entries change nothing.
fn run_as_stated(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    run: MeasuredRun,
) -> Result<MeasuredRun, RowFailure> {
    let Some(text) = row.cell(MODULES) else { return Ok(run) };
    let wrong = || {
        row.row_fault(
            MODULES,
            "must be a number of layers after the colon",
            "write full_layers:5 or cpu_offload_layers:20",
        )
    };
    let count = |digits: &str| digits.trim().parse::<u64>().map_err(|_| wrong());
    let split = run.plan.layout.chunk_split(run.model.layers).map_err(|e| RowFailure::Unpredictable(e.to_string()))?;
    let policies = match text.split_once(':') {
        Some(("full_layers", digits)) => StagePolicies::from_full_recompute_layers(count(digits)?, &split),
        Some(("cpu_offload_layers", digits)) => {
            let (first, policy) = (count(digits)?, offload_all_tensors(prepared, &run)?);
            let mix = |place| {
                let (held, rest) = (split.layers_of_chunk(place), ActivationPolicy::None);
                let away = first.min(held);
                vec![LayerRun { layers: away, policy: policy.clone() }, LayerRun { layers: held - away, policy: rest }]
            };
            StagePolicies::from_chunk_mixes((0..split.chunks).map(mix).collect())
        }
        _ => {
            let mut run = run;
            if let Some(modules) = parse_modules(text).filter(|_| row.cell("recompute") != Some("full")) {
                // The modules define the meaning of `recompute = selective`.
                (run.plan.techniques, run.plan.activations) = (modules, ActivationPolicy::None.into());
            }
            return Ok(run);
        }
    };
    let mut run = run;
    run.plan.activations = policies;
    Ok(run)
}

/// Returns a policy that offloads all kept tensors of a layer to host memory.
fn offload_all_tensors(prepared: &mut PreparedInputs, run: &MeasuredRun) -> Result<ActivationPolicy, RowFailure> {
    let why = |e: String| RowFailure::Unpredictable(e);
    let stack = prepared.chip_under_stack(&run.chip, &run.stack)?.stack().clone();
    let training = lower_plan(&run.model, &run.plan, &stack).map_err(|e| why(e.to_string()))?;
    let layer = training.segment(SegmentKind::Layer).ok_or_else(|| why("the model has no layer".to_owned()))?;
    let kept = layer.graph.kept_tensors(&RecomputeSet::none());
    let names = kept.iter().filter_map(|t| layer.graph.tensors[t.index()].name.strip_prefix("layer."));
    let names = names.map(|name| if name == "input" { "decoder_layer_input" } else { name }).collect::<Vec<_>>();
    format!("tensors:offload({})", names.join(",")).parse().map_err(|e: workloads::WorkloadError| why(e.to_string()))
}

/// The cheapest recomputation, which is tried before whole layers.
const CHEAPEST: &str = "recompute-layernorm";

/// Returns the run with an assumed recomputation, if its row leaves it open and the run does not fit without. The norms
/// are recomputed first. If that is not enough, whole layers are recomputed: the smallest number per chunk that fits.
/// The owners of the run are assumed to have chosen the same. If nothing fits, the run stays unchanged.
fn choose_policy(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    run: MeasuredRun,
) -> Result<MeasuredRun, RowFailure> {
    let open = row.cell("recompute").is_none() && row.cell(MODULES).is_none();
    if !open || memory_of_run(prepared, &run)?.check_fits().is_ok() {
        return Ok(run);
    }
    let mut norms = run.clone();
    norms.plan.techniques =
        [CHEAPEST.parse().map_err(|e: TechniqueError| RowFailure::Unpredictable(e.to_string()))?].into_iter().collect();
    if memory_of_run(prepared, &norms)?.check_fits().is_ok() {
        return Ok(norms);
    }
    let split = run.plan.layout.chunk_split(run.model.layers).map_err(|e| RowFailure::Unpredictable(e.to_string()))?;
    let with = |count: u64| {
        let mut other = run.clone();
        other.plan.activations = StagePolicies::from_full_recompute_layers(count, &split);
        other
    };
    let most = (0..split.chunks).map(|place| split.layers_of_chunk(place)).max().unwrap_or(0);
    if memory_of_run(prepared, &with(most))?.check_fits().is_err() {
        return Ok(run);
    }
    // More recomputed layers never need more memory, except for the workspace of one layer. So bisection finds the
    // smallest number that fits.
    let (mut short, mut enough) = (0, most);
    while enough - short > 1 {
        let middle = short.midpoint(enough);
        if memory_of_run(prepared, &with(middle))?.check_fits().is_ok() { enough = middle } else { short = middle }
    }
    Ok(with(enough))
}

/// Notes the recomputation that was assumed for a row that leaves it open.
pub(super) fn note_choice(prepared: &mut PreparedInputs, row: &MeasuredRow<'_>, run: &MeasuredRun) {
    if row.cell("recompute").is_none() && row.cell(MODULES).is_none() {
        let (policy, norms) = (&run.plan.activations, !run.plan.techniques.is_empty());
        let taken = match policy.full_recompute_layers_per_chunk() {
            _ if norms => format!("{CHEAPEST}, without which it does not fit"),
            Some(0) => policy.to_string(),
            _ => format!("{policy}, the fewest with which it fits"),
        };
        prepared.note_assumption(format!("recompute is empty, taken as {taken}"));
    }
}

/// Returns the memory of the run.
pub(super) fn memory_of_run(prepared: &mut PreparedInputs, run: &MeasuredRun) -> Result<StepMemory, RowFailure> {
    let stack = prepared.chip_under_stack(&run.chip, &run.stack)?.stack().clone();
    let room = DeviceMemory::of_chip(prepared.cost_model(&run.chip)?.accelerator());
    // Hybrid sharding: parameters are sharded within a fast domain, and domains hold replicas.
    let domain = step::sharing_domain(&stack, run.fabric.fast_domain_devices(), &run.plan.layout);
    step_memory(&run.model, &run.plan, &stack, room, domain).map_err(|e| RowFailure::Unpredictable(e.to_string()))
}
