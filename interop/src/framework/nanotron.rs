//! Reads nanotron's `.yaml`. Source: `src/nanotron/config/` of huggingface/nanotron (2025).

use super::keys::{FrameworkFileError, FrameworkKeys, UnreadKeys};
use super::model::FrameworkModel;
use super::run::{FrameworkContext, FrameworkRun, PlanOptions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use workloads::LayerEnds;
use workloads::layout::split_by_cost;

/// Keys that do not become options.
const UNREAD: UnreadKeys = UnreadKeys {
    unmodelled: &[("model.ddp_bucket_cap_mb", "gradients are reduced as the stack reduces them")],
    nothing: &[
        "checkpoints.*",
        "data_stages*",
        "general.*",
        "lighteval.*",
        "logging.*",
        "metrics_logging.*",
        "model.init_method.*",
        "optimizer.clip_grad",
        "optimizer.learning_rate_scheduler.*",
        "optimizer.optimizer_factory.adam_*",
        "optimizer.optimizer_factory.torch_adam_is_fused",
        "optimizer.weight_decay*",
        "profiler.*",
        "s3_upload.*",
        "tokenizer.*",
        "tokens.limit_*",
        "tokens.train_steps",
        "tokens.val_check_interval",
    ],
};

/// Keys of the model that only nanotron has, each with the one modelled value. An empty text stands for any value.
const OWN_KEYS: [(&str, &str); 6] = [
    ("_attn_implementation", "flash_attention_2"),
    ("_fused_rms_norm", ""),
    ("_fused_rotary_emb", ""),
    ("_use_doc_masking", "false"),
    ("_use_qkv_packed", ""),
    ("rope_interleaved", ""),
];

/// True if a file has nanotron's keys.
pub(super) fn recognises(values: &BTreeMap<String, Vec<String>>) -> bool {
    ["parallelism.dp", "tokens.micro_batch_size"].iter().all(|key| values.contains_key(*key))
}

/// Reads a run; `tree` is the file with the types of its values.
pub(super) fn read(
    mut keys: FrameworkKeys,
    tree: &Value,
    context: FrameworkContext<'_>,
) -> Result<FrameworkRun, FrameworkFileError> {
    let mut options = PlanOptions::default();
    options.push("stack", "nanotron");
    let [data, pipeline, tensor] = ["dp", "pp", "tp"].map(|axis| keys.required_count(&format!("parallelism.{axis}")));
    let (data, pipeline, tensor) = (data?, pipeline?, tensor?);
    let contexts = keys.count("parallelism.context_parallel_size")?.unwrap_or(1);
    let degrees = [("tensor", tensor), ("pipeline", pipeline), ("context", contexts), ("expert", 1)];
    degrees.into_iter().for_each(|(option, degree)| options.push(option, degree));
    keys.expect("parallelism.expert_parallel_size", "1")?;
    let devices = [data, pipeline, tensor, contexts].into_iter().fold(1, u64::saturating_mul);
    if context.devices.is_some_and(|given| given != devices) {
        let limit = format!("dp x pp x tp x context_parallel_size are {devices} devices; give --devices {devices}");
        return Err(keys.fault("parallelism.dp", limit));
    }
    options.push("devices", devices);
    read_batch(&mut keys, &mut options, data)?;
    read_parallelism(&mut keys, &mut options, tensor)?;
    read_numerics(&mut keys, &mut options)?;
    let config = read_model(&mut keys, tree, context)?;
    if let (Some(config), true) = (&config, pipeline > 1) {
        options.push("layer-split", split_of_model(&keys, config, pipeline)?);
    }
    let model = config.map(|config| FrameworkModel::Config(config.to_string()));
    keys.finish(&UNREAD, context.assumed, "nanotron", options, model)
}

fn read_batch(keys: &mut FrameworkKeys, options: &mut PlanOptions, data: u64) -> Result<(), FrameworkFileError> {
    let micro = keys.required_count("tokens.micro_batch_size")?;
    let accumulated = keys.count("tokens.batch_accumulation_per_replica")?.unwrap_or(1);
    options.push("micro-batch", micro);
    options.push("global-batch", micro.saturating_mul(accumulated).saturating_mul(data));
    options.push("sequence-length", keys.required_count("tokens.sequence_length")?);
    Ok(())
}

fn read_parallelism(
    keys: &mut FrameworkKeys,
    options: &mut PlanOptions,
    tensor: u64,
) -> Result<(), FrameworkFileError> {
    options.push("virtual-stages", 1);
    let engine = keys.one_of("parallelism.pp_engine", &["1f1b", "afab"])?;
    options.push("schedule", if engine.as_deref() == Some("afab") { "gpipe" } else { "1f1b" });
    let mode = keys.text("parallelism.tp_mode")?.unwrap_or_default().to_uppercase();
    let scattered = mode == "REDUCE_SCATTER";
    if !scattered && mode != "ALL_REDUCE" && tensor > 1 {
        return Err(keys.fault("parallelism.tp_mode", "is neither ALL_REDUCE nor REDUCE_SCATTER; give one of them"));
    }
    options.push("sequence-parallel", scattered && tensor > 1);
    if !keys.switch("parallelism.tp_linear_async_communication")? && scattered && tensor > 1 {
        options.push("stack-option", "overlap.tensor=0");
    }
    // Otherwise the gathered inputs are kept, which is not modelled.
    keys.expect("parallelism.tp_recompute_allgather", "true")?;
    options.push("recompute", if keys.switch("parallelism.recompute_layer")? { "full" } else { "none" });
    Ok(())
}

fn read_numerics(keys: &mut FrameworkKeys, options: &mut PlanOptions) -> Result<(), FrameworkFileError> {
    let precision = match keys.one_of("model.dtype", &["bfloat16", "float16"])?.as_deref() {
        Some("float16") => "fp16",
        _ => "bf16",
    };
    options.push("precision", precision);
    let wide = keys.switch("optimizer.accumulate_grad_in_fp32")?;
    options.push("stack-option", format!("kernels.fp32_gradients={wide}"));
    let zero = keys.one_of("optimizer.zero_stage", &["0", "1"])?;
    options.push("zero", zero.unwrap_or_else(|| "0".to_owned()));
    keys.expect("optimizer.optimizer_factory.name", "adamW")?;
    options.push("optimizer", "adam");
    options.push("attention", "fused");
    let multiple = keys.count("model.make_vocab_size_divisible_by")?.unwrap_or(1);
    options.push("stack-option", format!("kernels.vocabulary_multiple={multiple}"));
    Ok(())
}

/// Reads the model as a configuration of transformers; `None` if the call names one.
fn read_model(
    keys: &mut FrameworkKeys,
    tree: &Value,
    context: FrameworkContext<'_>,
) -> Result<Option<Value>, FrameworkFileError> {
    keys.read_tables(&["model.model_config."]);
    if context.model_is_named {
        return Ok(None);
    }
    let Some(config) = tree.pointer("/model/model_config").and_then(Value::as_object) else {
        return Err(keys.fault("model.model_config", "is missing; add it, or name the model before --from"));
    };
    let mut config = config.clone();
    for (key, modelled) in OWN_KEYS {
        let stated = config.remove(key);
        let other = stated.is_some_and(|value| !value.is_null() && value.to_string().trim_matches('"') != modelled);
        if other && !modelled.is_empty() {
            let limit = format!("is not modelled; {modelled} is");
            return Err(keys.fault(&format!("model.model_config.{key}"), limit));
        }
    }
    let kinds = [("is_llama_config", "llama"), ("is_qwen2_config", "qwen2")];
    let kinds = kinds.map(|(key, kind)| (config.remove(key) == Some(json!(true))).then_some(kind));
    let ([Some(kind), None] | [None, Some(kind)]) = kinds else {
        let limit = "holds neither is_llama_config nor is_qwen2_config; name the model before --from";
        return Err(keys.fault("model.model_config", limit));
    };
    config.insert("model_type".to_owned(), json!(kind));
    Ok(Some(Value::Object(config)))
}

/// Returns the split of layers that nanotron makes. A layer counts by the weights of its products, and the output layer
/// by its own weights (nanotron, `llama.py`, `get_block_compute_costs`).
fn split_of_model(keys: &FrameworkKeys, config: &Value, pipeline: u64) -> Result<String, FrameworkFileError> {
    let size = |name: &str| {
        let found = config.get(name).and_then(Value::as_u64).filter(|size| *size < 1 << 24);
        found.ok_or_else(|| keys.fault(&format!("model.model_config.{name}"), "is missing or no size; correct it"))
    };
    let (layers, hidden) = (size("num_hidden_layers")?, size("hidden_size")?);
    let layer = 4 * hidden * hidden + 3 * size("intermediate_size")? * hidden;
    let stages = u32::try_from(pipeline).unwrap_or(u32::MAX);
    let chunks = split_by_cost(layers, layer, size("vocab_size")?.saturating_mul(hidden), stages);
    LayerEnds::of_chunks(&chunks).map(|ends| ends.to_string()).ok_or_else(|| {
        let limit = format!("gives {pipeline} stages {chunks:?} layers, a split that is not modelled; change pp");
        keys.fault("parallelism.pp", limit)
    })
}
