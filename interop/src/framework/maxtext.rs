//! Reads MaxText's settings from a `.yml`, or from `KEY=VALUE` lines as on its command line. Source: `configs/base.yml`
//! and `configs/types.py` of AI-Hypercomputer/maxtext (2025).

use super::keys::{FrameworkFileError, FrameworkKeys, MeshDegree, UnreadKeys};
use super::model::{ConfigJson, FrameworkModel};
use super::run::{FrameworkContext, FrameworkRun, PlanOptions};
use std::collections::BTreeMap;

/// Built-in models by MaxText's names.
const MODELS: [(&str, &str); 28] = [
    ("llama2-7b", "llama2-7b"),
    ("llama2-13b", "llama2-13b"),
    ("llama2-70b", "llama2-70b"),
    ("llama3-8b", "llama3-8b"),
    ("llama3-70b", "llama3-70b"),
    ("llama3.1-8b", "llama3.1-8b"),
    ("llama3.1-70b", "llama3-70b"),
    ("llama3.1-405b", "llama3.1-405b"),
    ("mistral-7b", "mistral-7b"),
    ("mixtral-8x7b", "mixtral-8x7b"),
    ("gpt3-175b", "gpt3-175b"),
    ("qwen3-8b", "qwen3-8b"),
    ("qwen3-30b-a3b", "qwen3-30b-a3b"),
    ("deepseek3-671b", "deepseek-v3"),
    ("deepseek2-16b", "deepseek-v2-lite"),
    ("gemma2-9b", "gemma-2-9b"),
    ("gemma3-27b", "gemma-3-27b"),
    ("gpt-oss-20b", "gpt-oss-20b"),
    ("gpt-oss-120b", "gpt-oss-120b"),
    ("kimi-k2-1t", "kimi-k2"),
    ("llama3.3-70b", "llama3.1-70b"),
    ("llama4-17b-16e", "llama4-scout"),
    ("llama4-17b-128e", "llama4-maverick"),
    ("mixtral-8x22b", "mixtral-8x22b"),
    ("qwen3-32b", "qwen3-32b"),
    ("qwen3-235b-a22b", "qwen3-235b-a22b"),
    ("qwen3-480b-a35b", "qwen3-coder-480b-a35b"),
    ("qwen3-next-80b-a3b", "qwen3-next-80b-a3b"),
];

/// Settings that are not modelled, with the substitute.
const UNMODELLED: &[(&str, &str)] = &[
    ("dropout_rate", "dropout is the model's own"),
    ("fused_qkv", "query, key and value are as the stack has them"),
    ("max_segments_per_seq", "kernels mask documents without skipping scores between them (--documents skips them)"),
    ("megablox", "experts run as one grouped product"),
    ("normalize_embedding_logits", "logits are not scaled"),
    ("packing", "kernels mask documents without skipping scores between them (--documents skips them)"),
    ("sa_*", "the blocks of attention are the chip's"),
    ("scan_layers", "layers run one after another without the copies of a scan"),
    ("sparse_matmul", "experts run as one grouped product; capacity_factor says whether tokens are dropped"),
];

/// Settings that do not become options.
const UNREAD: UnreadKeys = UnreadKeys {
    unmodelled: UNMODELLED,
    nothing: &[
        "gradient_clipping_threshold",
        "adam_*",
        "async_checkpointing",
        "base_config",
        "base_output_directory",
        "checkpoint_*",
        "cosine_*",
        "data_*",
        "dataset_*",
        "enable_checkpointing",
        "enable_goodput_recording",
        "enable_profiler",
        "eval_*",
        "final_weights_dtype",
        "grain_*",
        "hf_*",
        "learning_rate*",
        "load_parameters_path",
        "log_*",
        "logits_via_embedding",
        "monitor_*",
        "normalization_layer_epsilon",
        "per_device_eval*",
        "profile*",
        "rope_max_timescale",
        "rope_min_timescale",
        "run_name",
        "save_config_to_gcs",
        "skip_*",
        "steps",
        "tokenizer_*",
        "use_vertex_tensorboard",
        "vertex_*",
        "warmup_*",
        "z_loss_multiplier",
        "trainable_position_size",
        "hardware",
        "reuse_example_batch",
        "enable_tensorboard",
        "gcs_metrics",
        "decoder_block",
        "mlp_activations",
    ],
};

/// Returns the settings of a text, one per line: `key: value` or `key=value`.
pub(super) fn read_settings(text: &str) -> BTreeMap<String, Vec<String>> {
    let pair = |line: &str| {
        let line = line.split(" #").next().unwrap_or_default().trim().to_owned();
        let (key, value) = line.split_once('=').or_else(|| line.split_once(':'))?;
        let named = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let value = value.trim().trim_matches(['\'', '"']).to_owned();
        named.then(|| (key.to_owned(), Some(value).filter(|value| !value.is_empty()).into_iter().collect()))
    };
    text.lines().filter(|line| !line.trim_start().starts_with('#')).filter_map(pair).collect()
}

/// True if a setting is one that only MaxText has.
pub(super) fn recognises(settings: &BTreeMap<String, Vec<String>>) -> bool {
    let known = ["per_device_batch_size", "model_name", "base_emb_dim", "ici_fsdp_parallelism", "remat_policy"];
    known.iter().any(|key| settings.contains_key(*key))
}

/// Options for degrees. A degree is the product of the sizes of the option's mesh axes.
const AXES: [(&str, &[&str]); 4] = [
    ("tensor", &["tensor", "tensor_sequence", "tensor_transpose", "autoregressive"]),
    ("context", &["context", "sequence"]),
    ("pipeline", &["pipeline"]),
    ("expert", &["expert"]),
];

/// Returns the degree of an axis: its degree inside a slice times its degree between slices; `None` if the axis takes
/// the remaining devices.
fn degree_of_axis(keys: &mut FrameworkKeys, axis: &str) -> Result<Option<u64>, FrameworkFileError> {
    let mut product = Some(1);
    for place in ["ici", "dcn"] {
        match keys.mesh_degree(&format!("{place}_{axis}_parallelism"))? {
            None => {}
            Some(MeshDegree::Stated(degree)) => product = product.map(|all: u64| all.saturating_mul(degree)),
            Some(MeshDegree::Rest) => product = None,
        }
    }
    Ok(product)
}

pub(super) fn read(mut keys: FrameworkKeys, context: FrameworkContext<'_>) -> Result<FrameworkRun, FrameworkFileError> {
    let mut options = PlanOptions::default();
    options.push("stack", "maxtext");
    read_mesh(&mut keys, &mut options, context)?;
    read_batch(&mut keys, &mut options)?;
    options.push("sequence-length", keys.count("max_target_length")?.unwrap_or(2048));
    let policy = keys.text("remat_policy")?.unwrap_or_else(|| "full".to_owned());
    options.push("recompute", policy);
    read_numerics(&mut keys, &mut options)?;
    if let Some(factor) = keys.number::<f64>("capacity_factor")?.filter(|factor| *factor > 0.0) {
        options.push("capacity-factor", factor);
    }
    if keys.switch("enable_dropout")? {
        keys.note("enable_dropout", "dropout is the model's own");
    }
    let model = read_model(&mut keys, context)?;
    keys.finish(&UNREAD, context.assumed, "MaxText", options, model)
}

/// Reads the degrees and the sharding over data-parallel ranks. As in `base.yml`, fsdp takes the remaining devices if
/// neither data nor fsdp is given.
fn read_mesh(
    keys: &mut FrameworkKeys,
    options: &mut PlanOptions,
    context: FrameworkContext<'_>,
) -> Result<(), FrameworkFileError> {
    let mut known = 1_u64;
    for (option, axes) in AXES {
        let mut whole = 1_u64;
        for axis in axes {
            let degree = degree_of_axis(keys, axis)?.ok_or_else(|| {
                let cure = "takes the devices that are left, which is read for data and fsdp only; write its number";
                keys.fault(&format!("ici_{axis}_parallelism"), cure)
            })?;
            whole = whole.saturating_mul(degree);
        }
        options.push(option, whole);
        known = known.saturating_mul(whole);
    }
    options.push("sequence-parallel", degree_of_axis(keys, "tensor_sequence")? != Some(1));
    let mut is_stated =
        |axis: &str| ["ici", "dcn"].iter().any(|place| keys.list(&format!("{place}_{axis}_parallelism")).is_some());
    let left_to_fsdp = !is_stated("fsdp") & !is_stated("data");
    let [data, fsdp] = [degree_of_axis(keys, "data")?, degree_of_axis(keys, "fsdp")?];
    let rest =
        |other: Option<u64>| context.devices.map(|devices| (devices / known.saturating_mul(other.unwrap_or(1))).max(1));
    let fsdp = fsdp.filter(|_| !left_to_fsdp).or_else(|| rest(data));
    let data = data.or_else(|| rest(fsdp));
    let product = data.zip(fsdp).map(|(data, fsdp)| known.saturating_mul(data).saturating_mul(fsdp));
    let Some(product) = product else {
        return Err(keys.fault("ici_fsdp_parallelism", "takes the devices that are left; give --devices"));
    };
    if let Some(devices) = context.devices.filter(|devices| *devices != product) {
        let limit = format!("makes a product of degrees of {product}, which must be the {devices} devices");
        return Err(keys.fault("ici_fsdp_parallelism", format!("{limit}; correct one of them")));
    }
    options.push("devices", product);
    let sharded_states = keys.switch("shard_optimizer_over_data")?;
    // Weights are sharded over the sequence axes too (`embed` in `logical_axis_rules` of MaxText's base.yml), unless
    // only the optimizer's states are to be sharded.
    let over = fsdp.unwrap_or(1).saturating_mul(options.number("context"));
    let spread = fsdp > Some(1) || (over > 1 && !sharded_states);
    options.push("zero", if spread { 3 } else { u64::from(sharded_states) });
    if spread && data > Some(1) {
        options.push("shards", over);
    }
    Ok(())
}

/// Reads the batch. MaxText counts sequences per device.
fn read_batch(keys: &mut FrameworkKeys, options: &mut PlanOptions) -> Result<(), FrameworkFileError> {
    let devices = options.number("devices");
    let key = "per_device_batch_size";
    let per_device = keys.number::<f64>(key)?.unwrap_or(12.0);
    let accumulated = keys.count("gradient_accumulation_steps")?.unwrap_or(1);
    let batch = per_device * devices as f64 * accumulated as f64;
    if batch < 1.0 || batch.fract() != 0.0 {
        return Err(
            keys.fault(key, format!("makes {batch} sequences of a step on {devices} devices; give a whole number"))
        );
    }
    options.push("global-batch", batch);
    let [pipeline, tensor, context] = ["pipeline", "tensor", "context"].map(|option| options.number(option) as f64);
    let ranks = devices as f64 / (pipeline * tensor * context);
    let stages = keys.count("num_layers_per_pipeline_stage")?;
    let micro_batches = keys.count("num_pipeline_microbatches")?;
    if pipeline > 1.0 {
        options.push("schedule", "gpipe");
        options.push("layer-split", "even");
        if let (Some(layers), Some(of_a_stage)) = (keys.count("base_num_decoder_layers")?, stages) {
            options.push("virtual-stages", (layers / of_a_stage / pipeline as u64).max(1));
        }
        let pieces = micro_batches.map_or(pipeline, |count| count as f64);
        options.push("micro-batch", (batch / ranks / pieces).max(1.0));
    } else {
        options.push("micro-batch", (batch / ranks / accumulated as f64).max(1.0));
    }
    Ok(())
}

fn read_numerics(keys: &mut FrameworkKeys, options: &mut PlanOptions) -> Result<(), FrameworkFileError> {
    let dtype = keys.text("dtype")?;
    keys.expect("weight_dtype", "float32")?;
    let precision = match (dtype.as_deref(), keys.text("quantization")?.as_deref()) {
        (None | Some("bfloat16"), None | Some("")) => "bf16",
        (_, Some("int8")) => "int8",
        (_, Some("fp8" | "fp8_full" | "fp8_gpu")) => "fp8",
        (Some("float16"), None) => "fp16",
        (_, Some(_)) => return Err(keys.fault("quantization", "is not modelled; int8 and fp8 are")),
        (Some(_), None) => return Err(keys.fault("dtype", "is not modelled; bfloat16 and float16 are")),
    };
    options.push("precision", precision);
    match keys.text("attention")?.as_deref() {
        None | Some("flash" | "autoselected" | "cudnn_flash_te" | "cudnn_flash_jax") => {
            options.push("attention", "fused")
        }
        Some("dot_product") => options.push("attention", "unfused"),
        Some(_) => return Err(keys.fault("attention", "is not modelled; flash, cudnn_flash_te and dot_product are")),
    }
    match keys.text("opt_type")?.as_deref() {
        None | Some("adamw" | "adam_pax") => options.push("optimizer", "adam"),
        Some("sgd") => options.push("optimizer", "sgd"),
        Some(_) => return Err(keys.fault("opt_type", "is not modelled; adamw and sgd are")),
    }
    Ok(())
}

/// The settings that describe the model.
const SIZES: [&str; 12] = [
    "base_num_decoder_layers",
    "base_emb_dim",
    "base_mlp_dim",
    "base_num_query_heads",
    "base_num_kv_heads",
    "head_dim",
    "vocab_size",
    "num_experts",
    "num_experts_per_tok",
    "base_moe_mlp_dim",
    "n_routing_groups",
    "topk_routing_group",
];

fn read_model(
    keys: &mut FrameworkKeys,
    context: FrameworkContext<'_>,
) -> Result<Option<FrameworkModel>, FrameworkFileError> {
    if context.model_is_named {
        keys.read_all(&SIZES);
        keys.read_all(&["model_name"]);
        return Ok(None);
    }
    if let Some(name) = keys.text("model_name")?.filter(|name| name != "default") {
        keys.read_all(&SIZES);
        let known = MODELS.iter().find(|(theirs, _)| *theirs == name);
        let known = known.map(|(_, built_in)| FrameworkModel::BuiltIn(built_in));
        let cure = "is no model that is built in; name the model before --from";
        return known.map(Some).ok_or_else(|| keys.fault("model_name", cure));
    }
    build_model(keys).map(Some)
}

/// Builds the model from sizes. A setting that the file leaves out has its value in `base.yml`.
fn build_model(keys: &mut FrameworkKeys) -> Result<FrameworkModel, FrameworkFileError> {
    if let Some(block) = keys.text("decoder_block")?.filter(|block| !["llama2", "mixtral"].contains(&block.as_str())) {
        return Err(
            keys.fault("decoder_block", format!("{block}: is not built from settings; name the model before --from"))
        );
    }
    if keys.list("mlp_activations").is_some_and(|names| {
        let plain: String = names.concat().chars().filter(char::is_ascii_alphabetic).collect();
        plain != "silulinear"
    }) {
        return Err(keys.fault("mlp_activations", "other than silu and linear are not built; name the model"));
    }
    let experts = keys.count("num_experts")?.filter(|experts| *experts > 1);
    let positions = keys.count("max_target_length")?.unwrap_or(2048);
    let config = ConfigJson::of_type(if experts.is_some() { "mixtral" } else { "llama" })
        .with("num_hidden_layers", keys.count("base_num_decoder_layers")?.unwrap_or(16))
        .with("hidden_size", keys.count("base_emb_dim")?.unwrap_or(2048))
        .with("intermediate_size", keys.count("base_mlp_dim")?.unwrap_or(7168))
        .with("num_attention_heads", keys.count("base_num_query_heads")?.unwrap_or(16))
        .with("num_key_value_heads", keys.count("base_num_kv_heads")?.unwrap_or(16))
        .with("head_dim", keys.count("head_dim")?.unwrap_or(128))
        .with("vocab_size", keys.count("vocab_size")?.unwrap_or(32_000))
        .with("max_position_embeddings", positions)
        .with("hidden_act", "silu")
        .with("rms_norm_eps", keys.number::<f64>("normalization_layer_epsilon")?.unwrap_or(1e-5))
        .with("rope_theta", keys.number::<f64>("rope_max_timescale")?.unwrap_or(10_000.0))
        .with("tie_word_embeddings", keys.switch("logits_via_embedding")?);
    for key in ["n_routing_groups", "topk_routing_group"] {
        if keys.list(key).is_some_and(|values| values != ["-1"]) {
            return Err(keys.fault(key, "is not built from settings; name the model before --from"));
        }
    }
    let moe = keys.count("base_moe_mlp_dim")?;
    let Some(experts) = experts else { return Ok(config.into_model()) };
    let config = config
        .with("num_local_experts", experts)
        .with("num_experts_per_tok", keys.count("num_experts_per_tok")?.unwrap_or(1))
        .with_known("intermediate_size", moe);
    Ok(config.into_model())
}
