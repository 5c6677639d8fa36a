//! DeepSpeed's `.json`. It has the batch, ZeRO and formats of a run; the model is named beside it. Source: DeepSpeed's
//! page "DeepSpeed Configuration JSON" (2025).

use super::keys::{FrameworkFileError, FrameworkKeys};
use super::{FrameworkContext, FrameworkRun, PlanOptions};

/// Keys that change neither time nor memory of a step.
const NOTHING: &[&str] = &[
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
    "prescale_gradients",
    "gradient_predivide_factor",
    "zero_optimization.contiguous_gradients",
    "zero_optimization.overlap_comm",
    "zero_optimization.round_robin_gradients",
    "zero_optimization.allgather_bucket_size",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.sub_group_size",
    "zero_optimization.stage3_*",
    "zero_optimization.ignore_unused_parameters",
    "zero_force_ds_cpu_optimizer",
    "zero_optimization.offload_optimizer.pin_memory",
    "zero_optimization.offload_param.pin_memory",
    "zero_optimization.offload_optimizer.buffer_count",
    "zero_optimization.offload_optimizer.fast_init",
    "zero_optimization.offload_param.buffer_count",
    "zero_optimization.offload_param.buffer_size",
    "zero_optimization.gather_16bit_weights_on_model_save",
    "activation_checkpointing.contiguous_memory_optimization",
    "activation_checkpointing.number_checkpoints",
    "activation_checkpointing.profile",
    "activation_checkpointing.synchronize_checkpoint_boundary",
];

pub(super) fn read(mut keys: FrameworkKeys, context: FrameworkContext<'_>) -> Result<FrameworkRun, FrameworkFileError> {
    let mut options = PlanOptions::default();
    options.push("stack", "huggingface");
    let tensor = keys.count("tensor_parallel.autotp_size")?.unwrap_or(1);
    for (option, degree) in [("tensor", tensor), ("pipeline", 1), ("context", 1)] {
        options.push(option, degree);
    }
    let zero = keys.number::<u64>("zero_optimization.stage")?.unwrap_or(0);
    if zero > 3 {
        return Err(keys.fault("zero_optimization.stage", "must be 0 to 3; correct it"));
    }
    options.push("zero", zero);
    let automatic = |keys: &mut FrameworkKeys, key: &str| {
        let left = keys.list(key).is_some_and(|values| values == ["auto"]);
        if left { Ok(None) } else { keys.count(key) }
    };
    let micro = automatic(&mut keys, "train_micro_batch_size_per_gpu")?;
    let accumulated = automatic(&mut keys, "gradient_accumulation_steps")?;
    let whole = automatic(&mut keys, "train_batch_size")?;
    let devices = context.devices.map(|devices| devices / tensor);
    let from_parts =
        micro.and_then(|micro| Some(micro.saturating_mul(accumulated.unwrap_or(1)).saturating_mul(devices?)));
    if let (Some(whole), Some(parts)) = (whole, from_parts)
        && (accumulated.is_some() && whole != parts)
    {
        let limit = format!("must be the micro-batch x accumulation x {} replicas, {parts}", devices.unwrap_or(0));
        return Err(keys.fault("train_batch_size", limit));
    }
    if let Some(batch) = whole.or(from_parts) {
        options.push("global-batch", batch);
    }
    let follows = || Some(whole? / devices?.saturating_mul(accumulated?));
    if let Some(micro) = micro.or_else(follows).filter(|micro| *micro > 0) {
        options.push("micro-batch", micro);
    }
    if let Some(group) = keys.count("zero_optimization.zero_hpz_partition_size")?.filter(|group| *group > 1) {
        return Err(keys.fault(
            "zero_optimization.zero_hpz_partition_size",
            format!("{group}: a second copy of weights is not modelled; leave it out"),
        ));
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
    let on = |keys: &mut FrameworkKeys, key: &str| {
        let values = keys.list(key).unwrap_or_default();
        if values == ["auto"] {
            return Err(keys.fault(key, "follows the trainer's arguments; write true or false"));
        }
        Ok::<bool, FrameworkFileError>(values == ["true"])
    };
    let (bf16, fp16) = (on(&mut keys, "bf16.enabled")?, on(&mut keys, "fp16.enabled")?);
    match (bf16, fp16) {
        (_, true) => options.push("precision", "fp16"),
        (true, _) => options.push("precision", "bf16"),
        _ => {
            return Err(
                keys.fault("bf16.enabled", "is not true: training in fp32 is not modelled; switch bf16 or fp16 on")
            );
        }
    }
    match keys.text("optimizer.type")?.as_deref() {
        None | Some("Adam" | "AdamW") => options.push("optimizer", "adam"),
        Some(_) => return Err(keys.fault("optimizer.type", "is not modelled; AdamW is")),
    }
    for key in ["partition_activations", "cpu_checkpointing"].map(|key| format!("activation_checkpointing.{key}")) {
        if on(&mut keys, &key)? {
            return Err(keys.fault(&key, "is not modelled; switch it off"));
        }
    }
    for key in ["reduce_scatter", "allgather_partitions"].map(|key| format!("zero_optimization.{key}")) {
        if keys.list(&key).is_some_and(|values| values == ["false"]) {
            return Err(keys.fault(&key, "is not modelled; leave it out, or give true"));
        }
    }
    let assumed = keys.refuse_the_rest(NOTHING, context.assumed)?;
    if !context.model_is_named {
        return Err(keys.fault("model", "is not in a file of DeepSpeed's; name it before --from"));
    }
    Ok(FrameworkRun { framework: "DeepSpeed", options: options.0, model: None, assumed })
}
