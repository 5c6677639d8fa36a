//! What the layers of a run keep, where the row tells it by `recompute_modules` or leaves it open.

use super::Prepared;
use super::run::Run;
use crate::validate::row::{Row, RowFailure};
use step::{DeviceMemory, StepMemory, lowered, step_memory};
use workloads::{ActivationPolicy, LayerRun, RecomputeSet, SegmentKind, StagePolicies, TechniqueError, Techniques};

/// The column.
const MODULES: &str = "recompute_modules";

/// Says what of the column no plan has.
pub(super) fn untold(prepared: &mut Prepared, row: &Row<'_>) {
    let Some(text) = row.cell(MODULES) else { return };
    if !["full_layers:", "cpu_offload_layers:"].iter().any(|known| text.starts_with(known)) && named(text).is_none() {
        let text = text.escape_debug();
        prepared.assume(format!("{MODULES} `{text}` is not modelled, taken as the policy of `recompute`"));
    }
}

/// Megatron-LM's modules that run again, by their names with commas, semicolons or plus signs between; none where one is unknown.
fn named(text: &str) -> Option<Techniques> {
    let name = |module: &str| format!("recompute-{}", module.trim().replace('_', "-")).parse().ok();
    text.split([',', ';', '+', ' ']).filter(|module| !module.is_empty()).map(name).collect()
}

/// The run with what its row says of its layers, or leaves open.
pub(super) fn settled(prepared: &mut Prepared, row: &Row<'_>, run: Run) -> Result<Run, RowFailure> {
    let run = told(prepared, row, run)?;
    chosen(prepared, row, run)
}

/// The run with what its row says in `recompute_modules`: `full_layers:N`, the first layers of every chunk recomputed whole, or
/// `cpu_offload_layers:N`, all that the first layers keep in host memory, or the modules that run again. Others change nothing.
fn told(prepared: &mut Prepared, row: &Row<'_>, run: Run) -> Result<Run, RowFailure> {
    let Some(text) = row.cell(MODULES) else { return Ok(run) };
    let wrong =
        || row.fault(MODULES, "must be a number of layers after the colon", "write full_layers:5 or cpu_offload_layers:20");
    let count = |digits: &str| digits.trim().parse::<u64>().map_err(|_| wrong());
    let split = run.plan.layout.chunk_split(run.model.layers).map_err(|e| RowFailure::Unpredictable(e.to_string()))?;
    let policies = match text.split_once(':') {
        Some(("full_layers", digits)) => StagePolicies::of_block(count(digits)?, &split),
        Some(("cpu_offload_layers", digits)) => {
            let (first, policy) = (count(digits)?, offload_all(prepared, &run)?);
            let mix = |place| {
                let (held, rest) = (split.layers(place), ActivationPolicy::None);
                let away = first.min(held);
                vec![LayerRun { layers: away, policy: policy.clone() }, LayerRun { layers: held - away, policy: rest }]
            };
            StagePolicies::of_chunks((0..split.chunks).map(mix).collect())
        }
        _ => {
            let mut run = run;
            if let Some(modules) = named(text).filter(|_| row.cell("recompute") != Some("full")) {
                // They say what `recompute = selective` means.
                (run.plan.techniques, run.plan.activations) = (modules, ActivationPolicy::None.into());
            }
            return Ok(run);
        }
    };
    let mut run = run;
    run.plan.activations = policies;
    Ok(run)
}

/// Everything that a layer keeps, in host memory.
fn offload_all(prepared: &mut Prepared, run: &Run) -> Result<ActivationPolicy, RowFailure> {
    let why = |e: String| RowFailure::Unpredictable(e);
    let stack = prepared.chip(&run.chip, &run.stack)?.stack().clone();
    let training = lowered(&run.model, &run.plan, &stack).map_err(|e| why(e.to_string()))?;
    let layer = training.segment(SegmentKind::Layer).ok_or_else(|| why("the model has no layer".to_owned()))?;
    let kept = layer.graph.kept(&RecomputeSet::none());
    let names = kept.iter().filter_map(|t| layer.graph.tensors[t.index()].name.strip_prefix("layer."));
    let names = names.map(|name| if name == "input" { "decoder_layer_input" } else { name }).collect::<Vec<_>>();
    format!("tensors:offload({})", names.join(",")).parse().map_err(|e: workloads::WorkloadError| why(e.to_string()))
}

/// What costs least to run again, and is tried before whole layers.
const CHEAPEST: &str = "recompute-layernorm";

/// A run whose row leaves recomputation open and that does not fit keeping everything: with its norms run again, or else with as few layers of every
/// chunk recomputed whole as fit, as those who ran it will have chosen. Where none are enough it stays as it is.
fn chosen(prepared: &mut Prepared, row: &Row<'_>, run: Run) -> Result<Run, RowFailure> {
    let open = row.cell("recompute").is_none() && row.cell(MODULES).is_none();
    if !open || memory(prepared, &run)?.fits().is_ok() {
        return Ok(run);
    }
    let mut norms = run.clone();
    norms.plan.techniques =
        [CHEAPEST.parse().map_err(|e: TechniqueError| RowFailure::Unpredictable(e.to_string()))?].into_iter().collect();
    if memory(prepared, &norms)?.fits().is_ok() {
        return Ok(norms);
    }
    let split = run.plan.layout.chunk_split(run.model.layers).map_err(|e| RowFailure::Unpredictable(e.to_string()))?;
    let with = |count: u64| {
        let mut other = run.clone();
        other.plan.activations = StagePolicies::of_block(count, &split);
        other
    };
    let most = (0..split.chunks).map(|place| split.layers(place)).max().unwrap_or(0);
    if memory(prepared, &with(most))?.fits().is_err() {
        return Ok(run);
    }
    // More layers recomputed never need more memory but for one layer's workspace: the last that does not fit lies below the first that does.
    let (mut short, mut enough) = (0, most);
    while enough - short > 1 {
        let middle = short.midpoint(enough);
        if memory(prepared, &with(middle))?.fits().is_ok() { enough = middle } else { short = middle }
    }
    Ok(with(enough))
}

/// Says what was taken where the row leaves recomputation open.
pub(super) fn assume(prepared: &mut Prepared, row: &Row<'_>, run: &Run) {
    if row.cell("recompute").is_none() && row.cell(MODULES).is_none() {
        let (policy, norms) = (&run.plan.activations, !run.plan.techniques.is_empty());
        let taken = match policy.block() {
            _ if norms => format!("{CHEAPEST}, without which it does not fit"),
            Some(0) => policy.to_string(),
            _ => format!("{policy}, the fewest with which it fits"),
        };
        prepared.assume(format!("recompute is empty, taken as {taken}"));
    }
}

/// The memory of the run.
pub(super) fn memory(prepared: &mut Prepared, run: &Run) -> Result<StepMemory, RowFailure> {
    let stack = prepared.chip(&run.chip, &run.stack)?.stack().clone();
    let room = DeviceMemory::of(prepared.model(&run.chip)?.accelerator());
    // Hybrid sharding: parameters are shared inside a fast domain, and domains hold copies.
    let domain = step::sharing_domain(&stack, run.fabric.fast_domain(), &run.plan.layout);
    step_memory(&run.model, &run.plan, &stack, room, domain).map_err(|e| RowFailure::Unpredictable(e.to_string()))
}
