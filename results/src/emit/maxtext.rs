//! MaxText's settings (`MaxText/configs/base.yml`), as `key=value` arguments.

use search::step::TrainingPlan;
use sim::kernel::DataType;
use workloads::training::Attention;
use workloads::{ActivationPolicy, Model, ZeroStage};

/// The settings of a plan, one per line; lines that begin with `#` say what MaxText has no setting for.
#[must_use]
pub fn maxtext(model: &Model, plan: &TrainingPlan) -> String {
    let l = &plan.layout;
    let mut out = Vec::new();
    let mut set = |key: &str, value: String| out.push(format!("{key}={value}"));
    set("base_num_decoder_layers", model.layers.to_string());
    set("base_emb_dim", model.hidden.to_string());
    set("base_mlp_dim", model.ffn.to_string());
    set("base_num_query_heads", model.heads.to_string());
    set("base_num_kv_heads", model.kv_heads.to_string());
    set("head_dim", model.head_dim.to_string());
    set("vocab_size", model.vocabulary.to_string());
    set("max_target_length", plan.batch.sequence_length.to_string());
    let micro_batches = plan.micro_batches();
    let accumulated = if l.pipeline == 1 { micro_batches } else { 1 };
    // MaxText counts the sequences of a step (of a gradient-accumulation step) per device, fractions allowed.
    let per_device = plan.batch.global_batch as f64 / (accumulated * l.devices()) as f64;
    set("per_device_batch_size", per_device.to_string());
    if accumulated > 1 {
        set("gradient_accumulation_steps", accumulated.to_string());
    }
    let data = if l.zero == ZeroStage::Parameters { "ici_fsdp_parallelism" } else { "ici_data_parallelism" };
    // Experts are an axis of their own, taken from the data-parallel ranks.
    set(data, (l.data / l.expert.max(1)).to_string());
    let axes = [
        (if l.sequence_parallel { "ici_tensor_sequence_parallelism" } else { "ici_tensor_parallelism" }, l.tensor),
        ("ici_context_parallelism", l.context),
        ("ici_expert_parallelism", l.expert),
        ("ici_pipeline_parallelism", l.pipeline),
    ];
    for (key, degree) in axes.into_iter().filter(|(_, degree)| *degree > 1) {
        set(key, degree.to_string());
    }
    if l.pipeline > 1 {
        set("num_pipeline_microbatches", micro_batches.to_string());
        set("num_layers_per_pipeline_stage", model.layers.div_ceil(l.chunks()).to_string());
    }
    if let Some(experts) = &model.experts {
        set("num_experts", experts.count.to_string());
        set("num_experts_per_tok", experts.top_k.to_string());
    }
    set("attention", if plan.attention == Attention::Fused { "flash" } else { "dot_product" }.to_owned());
    set("dtype", if plan.precision.operand == DataType::Fp32 { "float32" } else { "bfloat16" }.to_owned());
    match plan.precision.product {
        Some(DataType::Fp8) => set("quantization", "fp8".to_owned()),
        Some(DataType::Int8) => set("quantization", "int8".to_owned()),
        _ => {}
    }
    match &plan.activations {
        // MaxText's name for keeping everything that the backward pass reads.
        ActivationPolicy::None => set("remat_policy", "save_everything".to_owned()),
        ActivationPolicy::Full | ActivationPolicy::Named { .. } => set("remat_policy", plan.activations.to_string()),
        ActivationPolicy::Custom { host, device } => {
            set("remat_policy", "custom".to_owned());
            for (tensors, place) in [(host, "offload"), (device, "device")] {
                for tensor in tensors {
                    set(&tensor.to_string(), place.to_owned());
                }
            }
        }
        other => out.push(format!("# recompute {other}: MaxText has no policy of this kind")),
    }
    match l.zero {
        ZeroStage::OptimizerStates | ZeroStage::Gradients => {
            out.push(format!("# ZeRO-{}: MaxText shards everything (fsdp) or nothing (data)", l.zero as u8));
        }
        ZeroStage::None | ZeroStage::Parameters => {}
    }
    let mut text = out.join("\n");
    text.push('\n');
    text
}
