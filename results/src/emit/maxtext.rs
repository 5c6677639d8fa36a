//! MaxText's settings (`MaxText/configs/base.yml`), as `key=value` arguments.

use search::step::TrainingPlan;
use sim::kernel::DataType;
use std::fmt::Display;
use workloads::training::{Attention, ContextMethod};
use workloads::{ActivationPolicy, Model, RankOrder, ZeroStage};

/// The settings of a plan, one per line; lines that begin with `#` say what MaxText has no setting for.
#[must_use]
pub fn maxtext(model: &Model, plan: &TrainingPlan) -> String {
    let mut settings = Settings(Vec::new());
    settings.shape(model, plan);
    settings.layout(model, plan);
    settings.numerics(plan);
    settings.activations(plan);
    let Settings(mut lines) = settings;
    lines.push(String::new());
    lines.join("\n")
}

struct Settings(Vec<String>);

impl Settings {
    fn set(&mut self, key: &str, value: impl Display) {
        self.0.push(format!("{key}={value}"));
    }

    fn shape(&mut self, model: &Model, plan: &TrainingPlan) {
        self.set("base_num_decoder_layers", model.layers);
        self.set("base_emb_dim", model.hidden);
        self.set("base_mlp_dim", model.ffn);
        self.set("base_num_query_heads", model.heads);
        self.set("base_num_kv_heads", model.kv_heads);
        self.set("head_dim", model.head_dim);
        self.set("vocab_size", model.vocabulary);
        self.set("max_target_length", plan.batch.sequence_length);
        if let Some(experts) = &model.experts {
            self.set("num_experts", experts.count);
            self.set("num_experts_per_tok", experts.top_k);
        }
    }

    fn layout(&mut self, model: &Model, plan: &TrainingPlan) {
        let l = &plan.layout;
        let micro_batches = plan.micro_batches();
        let accumulated = if l.pipeline == 1 { micro_batches } else { 1 };
        // MaxText counts the sequences of a step (of a gradient-accumulation step) per device, fractions allowed.
        self.set("per_device_batch_size", plan.batch.global_batch as f64 / (accumulated * l.devices()) as f64);
        if accumulated > 1 {
            self.set("gradient_accumulation_steps", accumulated);
        }
        // Experts are an axis of their own, taken from the data-parallel ranks.
        let data = if l.zero == ZeroStage::Parameters { "ici_fsdp_parallelism" } else { "ici_data_parallelism" };
        self.set(data, l.data / l.expert.max(1));
        let axes = [
            (if l.sequence_parallel { "ici_tensor_sequence_parallelism" } else { "ici_tensor_parallelism" }, l.tensor),
            ("ici_context_parallelism", l.context),
            ("ici_expert_parallelism", l.expert),
            ("ici_pipeline_parallelism", l.pipeline),
        ];
        for (key, degree) in axes.into_iter().filter(|(_, degree)| *degree > 1) {
            self.set(key, degree);
        }
        if l.context > 1 && l.context_method == ContextMethod::Ulysses {
            self.0.push("# Ulysses: MaxText gathers keys and values instead".to_owned());
        }
        if l.pipeline > 1 {
            self.set("num_pipeline_microbatches", micro_batches);
            self.set("num_layers_per_pipeline_stage", model.layers.div_ceil(l.chunks()));
        }
        if let (Some(_), Ok(split)) = (l.ends, l.chunk_split(model.layers)) {
            let cure = "coplace plan --layer-split even finds the best plan that it runs";
            self.0.push(format!("# layers {split}: MaxText gives every stage as many; {cure}"));
        }
        if matches!(l.zero, ZeroStage::OptimizerStates | ZeroStage::Gradients) {
            self.0.push(format!("# ZeRO-{}: MaxText shards everything (fsdp) or nothing (data)", l.zero as u8));
        }
        if l.order == RankOrder::PipelineFirst {
            self.0.push("# stages side by side: lay the mesh's stage axis inside the data axis (mesh_axes)".to_owned());
        }
    }

    fn numerics(&mut self, plan: &TrainingPlan) {
        self.set("attention", if plan.attention == Attention::Fused { "flash" } else { "dot_product" });
        self.set("dtype", if plan.precision.operand == DataType::Fp32 { "float32" } else { "bfloat16" });
        match plan.precision.product {
            Some(DataType::Fp8) => self.set("quantization", "fp8"),
            Some(DataType::Int8) => self.set("quantization", "int8"),
            _ => {}
        }
    }

    fn activations(&mut self, plan: &TrainingPlan) {
        match &plan.activations {
            // MaxText's name for keeping everything that the backward pass reads.
            ActivationPolicy::None => self.set("remat_policy", "save_everything"),
            ActivationPolicy::Full | ActivationPolicy::Named { .. } => self.set("remat_policy", &plan.activations),
            ActivationPolicy::Custom { host, device } => {
                self.set("remat_policy", "custom");
                for (tensors, place) in [(host, "offload"), (device, "device")] {
                    for tensor in tensors {
                        self.set(&tensor.to_string(), place);
                    }
                }
            }
            other => self.0.push(format!("# recompute {other}: MaxText has no policy of this kind")),
        }
    }
}
