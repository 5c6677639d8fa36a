//! Reads TorchTitan's `.toml`. Source: `torchtitan/config/job_config.py` of pytorch/torchtitan (2025).

use super::keys::{FrameworkFileError, FrameworkKeys, MeshDegree, UnreadKeys};
use super::model::FrameworkModel;
use super::run::{FrameworkContext, FrameworkRun, PlanOptions};
use step::{TORCHTITAN_MODELS, TORCHTITAN_SCHEDULES};
use workloads::{LayerEnds, Model};

/// Keys that are not modelled, with the substitute.
const UNMODELLED: &[(&str, &str)] = &[
    ("optimizer.implementation", "the update's copies are the stack's"),
    ("activation_checkpoint.early_stop", "recomputation stops early, as the stack has it"),
    ("activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", "every second product is kept"),
    ("compile.backend", "kernels are those of the stack"),
    ("float8.enable_fsdp_float8_all_gather", "weights are gathered in bf16"),
    ("quantize.linear.float8.enable_fsdp_float8_all_gather", "weights are gathered in bf16"),
    ("float8.*", "the conversion of products is the stack's"),
    ("quantize.linear.float8.*", "the conversion of products is the stack's"),
];

/// Keys that do not become options.
const UNREAD: UnreadKeys = UnreadKeys {
    unmodelled: UNMODELLED,
    nothing: &[
        "job.*",
        "profiling.*",
        "metrics.*",
        "checkpoint.*",
        "comm.*",
        "validation.*",
        "fault_tolerance.*",
        "debug.*",
        "lr_scheduler.*",
        "optimizer.lr",
        "optimizer.eps",
        "optimizer.beta1",
        "optimizer.beta2",
        "optimizer.weight_decay",
        "training.steps",
        "training.max_norm",
        "training.dataset",
        "training.dataset_path",
        "training.gc_freq",
        "training.seed",
        "training.deterministic",
        "training.warmup_steps",
        "training.debug_moe_force_load_balance",
        "model.tokenizer_path",
        "model.hf_assets_path",
        "model.print_after_conversion",
        "experimental.custom_import",
        "experimental.custom_args_module",
        "memory_estimation.*",
        "activation_checkpoint.determinism_check",
        "activation_checkpoint.preserve_rng_state",
    ],
};

/// The converters of products to fp8, by their new and old names. Their tables have the same names.
const FLOAT8: [&str; 2] = ["quantize.linear.float8", "float8"];

/// Keys of degrees, each with the option that takes its value unchanged.
const DEGREES: [(&str, &str); 4] = [
    ("parallelism.tensor_parallel_degree", "tensor"),
    ("parallelism.pipeline_parallel_degree", "pipeline"),
    ("parallelism.context_parallel_degree", "context"),
    ("parallelism.expert_parallel_degree", "expert"),
];

pub(super) fn read(mut keys: FrameworkKeys, context: FrameworkContext<'_>) -> Result<FrameworkRun, FrameworkFileError> {
    let mut options = PlanOptions::default();
    for (key, option) in DEGREES {
        options.push(option, keys.count(key)?.unwrap_or(1));
    }
    // TorchTitan's mesh has the pipeline stages outermost (torchtitan/distributed/parallel_dims.py).
    options.push("order", "t-d-p");
    options.push("sequence-parallel", options.number("tensor") > 1);
    let rotation = "parallelism.context_parallel_rotate_method";
    if keys.text(rotation)?.is_some_and(|method| !["allgather", "alltoall"].contains(&method.as_str())) {
        return Err(keys.fault(rotation, "is neither allgather nor alltoall; correct it"));
    }
    if options.number("context") > 1 {
        options.push("context-method", "ring");
    }
    let in_experts = keys.count("parallelism.expert_tensor_parallel_degree")?.unwrap_or(1);
    if options.number("expert") > 1 {
        options.push("expert-tensor", in_experts);
    }
    for key in [
        "training.enable_cpu_offload",
        "optimizer.early_step_in_backward",
        "parallelism.disable_loss_parallel",
        "parallelism.pipeline_parallel_expert_parallel_overlap",
    ] {
        keys.expect(key, "false")?;
    }
    let ranks = read_sharding(&mut keys, &mut options, context)?;
    read_batch(&mut keys, &mut options, ranks)?;
    read_schedule(&mut keys, &mut options)?;
    read_activations(&mut keys, &mut options)?;
    let stack = read_stack(&mut keys, &mut options)?;
    options.push("stack", stack);
    match keys.text("optimizer.name")?.as_deref() {
        None | Some("AdamW" | "Adam") => options.push("optimizer", "adam"),
        Some(_) => return Err(keys.fault("optimizer.name", "is not modelled; AdamW is")),
    }
    let [name, flavor] = [keys.text("model.name")?, keys.text("model.flavor")?];
    let known = TORCHTITAN_MODELS
        .iter()
        .find(|(model, size, _)| [Some(*model), Some(*size)] == [name.as_deref(), flavor.as_deref()]);
    let model = match (context.model_is_named, known) {
        (true, _) => None,
        (false, Some((.., built_in))) => Some(FrameworkModel::BuiltIn(built_in)),
        (false, None) => {
            return Err(keys.fault("model.flavor", "is of no model that is built in; name the model before --from"));
        }
    };
    read_split(&mut keys, &mut options, known.map(|(.., built_in)| *built_in))?;
    keys.finish(&UNREAD, context.assumed, "TorchTitan", options, model)
}

/// Reads the data-parallel ranks and their sharding. Returns the number of ranks; `None` if it is not known.
fn read_sharding(
    keys: &mut FrameworkKeys,
    options: &mut PlanOptions,
    context: FrameworkContext<'_>,
) -> Result<Option<u64>, FrameworkFileError> {
    let copies = keys.count("parallelism.data_parallel_replicate_degree")?.unwrap_or(1);
    let [tensor, pipeline, contexts] = ["tensor", "pipeline", "context"].map(|option| options.number(option));
    let model_parallel = tensor.saturating_mul(pipeline).saturating_mul(contexts);
    let key = "parallelism.data_parallel_shard_degree";
    let shards = match keys.mesh_degree(key)? {
        Some(MeshDegree::Stated(shards)) => Some(shards),
        None | Some(MeshDegree::Rest) => {
            context.devices.map(|devices| (devices / copies.saturating_mul(model_parallel)).max(1))
        }
    };
    let ranks = shards.map(|shards| shards.saturating_mul(copies));
    let product = ranks.map(|ranks| ranks.saturating_mul(model_parallel));
    if let (Some(devices), Some(product)) = (context.devices, product)
        && devices != product
    {
        let limit = format!("makes a product of degrees of {product}, which must be the {devices} devices");
        return Err(keys.fault(key, format!("{limit}; correct one of them, or leave the key out")));
    }
    if let Some(devices) = product {
        options.push("devices", devices);
    }
    let sharded = shards.is_none_or(|shards| shards.saturating_mul(contexts) > 1);
    let reshard = "parallelism.fsdp_reshard_after_forward";
    // By default, TorchTitan keeps gathered weights if there is a pipeline.
    let zero = match (sharded, keys.text(reshard)?.as_deref()) {
        (false, _) => 0,
        (_, Some("never")) => 2,
        (_, Some("always")) => 3,
        (_, None | Some("default")) => {
            if pipeline > 1 {
                2
            } else {
                3
            }
        }
        (_, Some(_)) => return Err(keys.fault(reshard, "is none of default, never and always; correct it")),
    };
    options.push("zero", zero);
    if let (true, Some(shards)) = (copies > 1 && sharded, shards) {
        options.push("shards", shards.saturating_mul(contexts));
    }
    Ok(ranks)
}

fn read_batch(
    keys: &mut FrameworkKeys,
    options: &mut PlanOptions,
    ranks: Option<u64>,
) -> Result<(), FrameworkFileError> {
    if let Some(tokens) = keys.count("training.seq_len")? {
        options.push("sequence-length", tokens);
    }
    let old = keys.count("training.batch_size")?;
    let local = keys.count("training.local_batch_size")?.or(old).unwrap_or(8);
    let micro = keys.count("parallelism.pipeline_parallel_microbatch_size")?.unwrap_or(1);
    options.push("micro-batch", if options.number("pipeline") > 1 { micro } else { local });
    let global = match keys.mesh_degree("training.global_batch_size")? {
        Some(MeshDegree::Stated(batch)) => Some(batch),
        None | Some(MeshDegree::Rest) => ranks.map(|ranks| ranks.saturating_mul(local)),
    };
    if let Some(batch) = global {
        options.push("global-batch", batch);
    }
    Ok(())
}

fn read_schedule(keys: &mut FrameworkKeys, options: &mut PlanOptions) -> Result<(), FrameworkFileError> {
    let key = "parallelism.pipeline_parallel_schedule";
    let named = keys.text(key)?;
    keys.read_all(&["parallelism.pipeline_parallel_layers_per_stage", "parallelism.pipeline_parallel_split_points"]);
    if options.number("pipeline") == 1 {
        return Ok(());
    }
    for key in ["parallelism.pipeline_parallel_layers_per_stage", "parallelism.pipeline_parallel_split_points"] {
        if keys.list(key).is_some_and(|values| !values.is_empty()) {
            return Err(keys.fault(key, "is not read; leave it out, and give --layer-split"));
        }
    }
    let named = named.as_deref().unwrap_or("1F1B");
    let Some((_, schedule, chunks)) = TORCHTITAN_SCHEDULES.iter().find(|(name, ..)| *name == named) else {
        let known = TORCHTITAN_SCHEDULES.map(|(name, ..)| name);
        return Err(keys.fault(key, format!("is not modelled; these are: {}", known.join(", "))));
    };
    options.push("schedule", schedule.word());
    options.push("virtual-stages", chunks);
    Ok(())
}

/// Reads the layers of the stages as TorchTitan distributes them. The embedding and the output count as the given
/// numbers of layers, and the first stages take the remainder. Source: `torchtitan/distributed/pipeline_parallel.py`,
/// `generate_llm_fqn_per_model_part`.
fn read_split(
    keys: &mut FrameworkKeys,
    options: &mut PlanOptions,
    model: Option<&str>,
) -> Result<(), FrameworkFileError> {
    let names = ["first", "last"].map(|end| format!("parallelism.pipeline_parallel_{end}_stage_less_layers"));
    let [first, last] = [keys.number::<u64>(&names[0])?.unwrap_or(1), keys.number::<u64>(&names[1])?.unwrap_or(1)];
    let stages = options.number("pipeline").saturating_mul(options.number("virtual-stages"));
    let Some(model) = model.and_then(|name| Model::load(name).ok()).filter(|_| stages > 1) else { return Ok(()) };
    let leading = model.layer_count() - model.layers;
    let layers = model.layer_count();
    for (name, fewer) in names.iter().zip([first, last]) {
        if fewer > layers || stages > layers {
            return Err(keys.fault(name, format!("and {stages} stages: must not be more than the {layers} layers")));
        }
    }
    let whole = model.layer_count() + first + last;
    let mut counts: Vec<u64> = (0..stages).map(|at| whole / stages + u64::from(at < whole % stages)).collect();
    let end = counts.len() - 1;
    let fewer = |layers: u64, by: u64| layers.checked_sub(by);
    let ends = fewer(counts[0], first + leading).zip(fewer(counts[end], last));
    let split = ends.and_then(|(first, last)| {
        (counts[0], counts[end]) = (first, last);
        LayerEnds::of_chunks(&counts)
    });
    let cure = "makes stages that cannot be said; give --layer-split";
    options.push("layer-split", split.ok_or_else(|| keys.fault(&names[0], cure))?);
    Ok(())
}

fn read_activations(keys: &mut FrameworkKeys, options: &mut PlanOptions) -> Result<(), FrameworkFileError> {
    let option = keys.text("activation_checkpoint.selective_ac_option")?;
    let mode = keys.text("activation_checkpoint.mode")?;
    let policy = match (mode.as_deref(), option.as_deref()) {
        (Some("none"), _) => "none",
        (Some("full"), _) => "full",
        (None | Some("selective"), Some("op")) => "selective_per_operator",
        (None | Some("selective"), _) => {
            let limit = "every so many layers is not modelled; \"op\" is";
            return Err(keys.fault("activation_checkpoint.selective_ac_option", limit));
        }
        _ => return Err(keys.fault("activation_checkpoint.mode", "is none of none, selective, full")),
    };
    options.push("recompute", policy);
    Ok(())
}

/// Returns the stack with the file's compiler, tensor-parallel overlap and fp8 scaling, and adds the precision to the
/// options.
fn read_stack(keys: &mut FrameworkKeys, options: &mut PlanOptions) -> Result<&'static str, FrameworkFileError> {
    let old = keys.switch("training.compile")?;
    // Without the component `model`, only the loss is compiled.
    let of_the_model = keys.list("compile.components").is_none_or(|parts| parts.iter().any(|part| part == "model"));
    let compiled = keys.switch("compile.enable")? && of_the_model || old;
    let asynchronous = keys.switch("parallelism.enable_async_tensor_parallel")?
        | keys.switch("experimental.enable_async_tensor_parallel")?;
    let converters = keys.list("model.converters").unwrap_or_default();
    if converters.iter().any(|converter| !FLOAT8.contains(&converter.as_str())) {
        return Err(keys.fault("model.converters", "is not modelled; float8 and quantize.linear.float8 are"));
    }
    let fp8 = !converters.is_empty();
    options.push("precision", if fp8 { "fp8" } else { "bf16" });
    let mut recipe = None;
    for table in FLOAT8 {
        recipe = recipe.or(keys.text(&format!("{table}.recipe_name"))?);
        keys.expect(&format!("{table}.emulate"), "false")?;
    }
    if !fp8 {
        keys.read_tables(&["float8.", "mx.", "quantize."]);
    }
    keys.expect("training.mixed_precision_param", "bfloat16")?;
    keys.expect("training.mixed_precision_reduce", "float32")?;
    let rowwise = match recipe.as_deref().filter(|_| fp8) {
        None | Some("tensorwise") => false,
        Some("rowwise" | "rowwise_with_gw_hp") => true,
        Some(_) => return Err(keys.fault("model.converters", "has a recipe that is not modelled; rowwise is")),
    };
    Ok(match (compiled, asynchronous, rowwise) {
        (false, ..) => "torchtitan_eager",
        (_, false, false) => "torchtitan",
        (_, false, true) => "torchtitan_rowwise",
        (_, true, false) => "torchtitan_async",
        (_, true, true) => "torchtitan_async_rowwise",
    })
}
