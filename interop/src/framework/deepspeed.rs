//! Reads DeepSpeed's `.json`. It states the batch, ZeRO and the number formats of a run; the call names the model.
//! Source: DeepSpeed's page "DeepSpeed Configuration JSON" (2025).

use super::keys::{FrameworkFileError, FrameworkKeys, UnreadKeys};
use super::run::{FrameworkContext, FrameworkRun, PlanOptions};

/// Keys that are not modelled, with the substitute.
const UNMODELLED: &[(&str, &str)] = &[
    ("zero_optimization.contiguous_gradients", "gradients are kept as the stack has them"),
    ("zero_optimization.round_robin_gradients", "the order of gradients is left aside"),
    ("zero_optimization.allgather_bucket_size", "buffers are the stack's"),
    ("zero_optimization.reduce_bucket_size", "buffers are the stack's"),
    ("zero_optimization.sub_group_size", "the update runs over all states at once"),
    ("zero_optimization.stage3_*", "weights are gathered layer by layer, the next one ahead, as the stack has it"),
    ("zero_optimization.offload_optimizer.*", "the copies run at the host link's rate"),
    ("zero_optimization.offload_param.*", "the copies run at the host link's rate"),
    ("activation_checkpointing.contiguous_memory_optimization", "fragmentation is the stack's"),
    ("activation_checkpointing.number_checkpoints", "recomputation is as --recompute says"),
];

/// Keys that do not become options.
const UNREAD: UnreadKeys = UnreadKeys {
    unmodelled: UNMODELLED,
    nothing: &[
        "prescale_gradients",
        "zero_optimization.ignore_unused_parameters",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        "zero_optimization.stage3_gather_fp16_weights_on_model_save",
        "steps_per_print",
        "wall_clock_breakdown",
        "dump_state",
        "gradient_clipping",
        "scheduler.*",
        "optimizer.params.*",
        "tensorboard.*",
        "wandb.*",
        "csv_monitor.*",
        "comms_logger.*",
        "flops_profiler.*",
        "checkpoint.*",
        "bf16.loss_scale*",
        "fp16.loss_scale*",
        "fp16.initial_scale_power",
        "fp16.hysteresis",
        "fp16.min_loss_scale",
        "fp16.auto_cast",
        "fp16.consecutive_hysteresis",
        "zero_allow_untested_optimizer",
        "gradient_predivide_factor",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization.offload_optimizer.fast_init",
        "zero_optimization.gather_16bit_weights_on_model_save",
        "activation_checkpointing.profile",
        "activation_checkpointing.synchronize_checkpoint_boundary",
    ],
};

pub(super) fn read(mut keys: FrameworkKeys, context: FrameworkContext<'_>) -> Result<FrameworkRun, FrameworkFileError> {
    let mut options = PlanOptions::default();
    options.push("stack", "huggingface");
    let tensor = keys.count("tensor_parallel.autotp_size")?.unwrap_or(1);
    for (option, degree) in [("tensor", tensor), ("pipeline", 1), ("context", 1)] {
        options.push(option, degree);
    }
    read_batch(&mut keys, &mut options, context.devices.map(|devices| devices / tensor))?;
    read_sharding(&mut keys, &mut options)?;
    read_numerics(&mut keys, &mut options)?;
    for key in ["partition_activations", "cpu_checkpointing"] {
        keys.expect(&format!("activation_checkpointing.{key}"), "false")?;
    }
    if !context.model_is_named {
        return Err(keys.fault("model", "is not in a file of DeepSpeed's; name it before --from"));
    }
    keys.finish(&UNREAD, context.assumed, "DeepSpeed", options, None)
}

/// Reads the batch. The replicas and two of the three sizes determine the third.
fn read_batch(
    keys: &mut FrameworkKeys,
    options: &mut PlanOptions,
    replicas: Option<u64>,
) -> Result<(), FrameworkFileError> {
    let mut count = |key: &str| {
        let left = keys.list(key).is_some_and(|values| values == ["auto"]);
        if left { Ok(None) } else { keys.count(key) }
    };
    let micro = count("train_micro_batch_size_per_gpu")?;
    let accumulated = count("gradient_accumulation_steps")?;
    let whole = count("train_batch_size")?;
    let from_parts =
        micro.and_then(|micro| Some(micro.saturating_mul(accumulated.unwrap_or(1)).saturating_mul(replicas?)));
    if let (Some(whole), Some(parts)) = (whole, from_parts)
        && (accumulated.is_some() && whole != parts)
    {
        let limit = format!("must be the micro-batch x accumulation x {} replicas, {parts}", replicas.unwrap_or(0));
        return Err(keys.fault("train_batch_size", limit));
    }
    if let Some(batch) = whole.or(from_parts) {
        options.push("global-batch", batch);
    }
    let follows = || Some(whole? / replicas?.saturating_mul(accumulated?));
    if let Some(micro) = micro.or_else(follows).filter(|micro| *micro > 0) {
        options.push("micro-batch", micro);
    }
    Ok(())
}

fn read_sharding(keys: &mut FrameworkKeys, options: &mut PlanOptions) -> Result<(), FrameworkFileError> {
    let zero = keys.number::<u64>("zero_optimization.stage")?.unwrap_or(0);
    if zero > 3 {
        return Err(keys.fault("zero_optimization.stage", "must be 0 to 3; correct it"));
    }
    options.push("zero", zero);
    keys.expect("zero_optimization.zero_hpz_partition_size", "1")?;
    for key in ["reduce_scatter", "allgather_partitions"] {
        keys.expect(&format!("zero_optimization.{key}"), "true")?;
    }
    if keys.text("zero_optimization.overlap_comm")?.is_some_and(|overlaps| overlaps == "false") {
        options.push("stack-option", "overlap.data_reduction=0");
        options.push("stack-option", "overlap.parameter_prefetch=0");
    }
    for (key, technique) in [
        ("zero_optimization.offload_optimizer.device", "zero-offload"),
        ("zero_optimization.offload_param.device", "zero-infinity"),
    ] {
        match keys.text(key)?.as_deref() {
            None | Some("none") => {}
            Some("cpu") => options.push("technique", technique),
            Some("nvme") => options.push("technique", "zero-infinity,to_nvme=1"),
            Some(_) => return Err(keys.fault(key, "is none of none, cpu, nvme; correct it")),
        }
    }
    Ok(())
}

fn read_numerics(keys: &mut FrameworkKeys, options: &mut PlanOptions) -> Result<(), FrameworkFileError> {
    let mut on = |key: &str| {
        let stated = keys.text(key)?;
        if stated.as_deref() == Some("auto") {
            return Err(keys.fault(key, "follows the trainer's arguments; write true or false"));
        }
        Ok(stated.as_deref() == Some("true"))
    };
    let (bf16, fp16) = (on("bf16.enabled")?, on("fp16.enabled")?);
    match (bf16, fp16) {
        (_, true) => options.push("precision", "fp16"),
        (true, _) => options.push("precision", "bf16"),
        _ => {
            let cure = "is not true: training in fp32 is not modelled; switch bf16 or fp16 on";
            return Err(keys.fault("bf16.enabled", cure));
        }
    }
    match keys.text("optimizer.type")?.as_deref() {
        None | Some("Adam" | "AdamW") => options.push("optimizer", "adam"),
        Some(_) => return Err(keys.fault("optimizer.type", "is not modelled; AdamW is")),
    }
    Ok(())
}
