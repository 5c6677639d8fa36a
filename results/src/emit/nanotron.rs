//! nanotron's `.yaml`. Source: `src/nanotron/config/` and `examples/config_tiny_llama.yaml` of huggingface/nanotron
//! (2025).

use super::{DOCUMENTS, EmittedLines, EmittedPlan, Inexpressible, PlanRecipe};
use search::planner::{PlanSpace, Splits};
use serde_json::{Value, json};
use sim::kernel::DataType;
use sim::pipeline::PipelineSchedule;
use std::fmt::Display;
use step::Framework;
use workloads::footprint::Optimizer;
use workloads::import::hugging_face::parse_config;
use workloads::layout::split_by_cost;
use workloads::training::{Attention, ContextMethod};
use workloads::{ActivationPolicy, LayerEnds, Model, ZeroStage};

/// Writes a plan as nanotron's configuration. Comments name the parts for which nanotron has no key.
///
/// # Errors
/// A model whose layers are not those of Llama.
pub fn write_nanotron(recipe: &PlanRecipe<'_>) -> Result<EmittedPlan, Inexpressible> {
    let config = llama_config(recipe);
    recipe.refuse_features("nanotron", &[(!is_llama(recipe.model, &config), "layers other than Llama's")])?;
    let mut out = NanotronLines(recipe.push_comments(|framework| framework == Framework::Nanotron));
    out.push_general();
    out.push_model(recipe, &config);
    out.push_optimizer(recipe);
    out.push_parallelism(recipe);
    out.push_batch(recipe);
    for technique in recipe.plan.techniques.iter() {
        out.0.push_lack(true, &format!("technique {technique}: no key of nanotron is written for it"));
    }
    Ok(out.0.into_text())
}

/// Returns the decisions that nanotron supports: ZeRO-0 and ZeRO-1, one chunk per stage, no or full recomputation, and
/// the layer splits that it makes itself.
#[must_use]
pub fn nanotron_choices(model: &Model, devices: u32) -> PlanSpace {
    let stages = (2..=devices).filter(|stages| devices.is_multiple_of(*stages) && u64::from(*stages) <= model.layers);
    let own = stages.filter_map(|stages| LayerEnds::of_chunks(&split_of_stages(model, stages)));
    PlanSpace {
        splits: Some(Splits::Listed(std::iter::once(None).chain(own.map(Some)).collect())),
        zero: Some(vec![ZeroStage::None, ZeroStage::OptimizerStates]),
        virtual_stages: Some(vec![1]),
        context_methods: Some(vec![ContextMethod::Ring]),
        activations: Some(vec![ActivationPolicy::None, ActivationPolicy::Full]),
        ..PlanSpace::default()
    }
}

/// Returns the keys of nanotron's `LlamaConfig`, which has the same keys as that of transformers.
fn llama_config(recipe: &PlanRecipe<'_>) -> Value {
    let model = recipe.model;
    json!({
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "max_position_embeddings": model.max_sequence.max(recipe.plan.batch.sequence_length),
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.kv_heads,
        "rms_norm_eps": recipe.numerics.norm_epsilon.unwrap_or(1e-5),
        "rope_theta": recipe.numerics.rotary_base.unwrap_or(10_000.0),
        "tie_word_embeddings": model.tied_head,
        "vocab_size": model.vocabulary,
    })
}

/// True if a model is the Llama of a configuration, apart from name, family, longest sequence, vocabulary padding and
/// assumptions.
fn is_llama(model: &Model, config: &Value) -> bool {
    let mut config = config.clone();
    config["model_type"] = json!("llama");
    let same = |llama: Model| {
        Model {
            name: model.name.clone(),
            family: model.family.clone(),
            max_sequence: model.max_sequence,
            vocabulary_multiple: model.vocabulary_multiple,
            assumptions: model.assumptions.clone(),
            ..llama
        } == *model
    };
    parse_config("llama", "config.json", &config.to_string()).is_ok_and(same)
}

/// Returns the layers of each stage, split by cost (`llama.py`, `get_block_compute_costs`). The cost of a layer is the
/// number of weights in its products; the output layer has its own cost.
fn split_of_stages(model: &Model, stages: u32) -> Vec<u64> {
    let layer = 4 * model.hidden * model.hidden + 3 * model.ffn * model.hidden;
    split_by_cost(model.layers, layer, model.vocabulary * model.hidden, stages)
}

struct NanotronLines(EmittedLines);

impl NanotronLines {
    fn push_section(&mut self, name: &str) {
        self.0.push(format!("{name}:"));
    }

    fn push(&mut self, key: &str, value: impl Display) {
        self.0.push(format!("  {key}: {value}"));
    }

    /// Adds the keys of a run that do not depend on its plan.
    fn push_general(&mut self) {
        self.push_section("general");
        self.push("project", "coplace");
        self.push("run", "plan_%date_%jobid");
        self.push("seed", 42);
        self.push_section("checkpoints");
        self.push("checkpoint_interval", 1000);
        self.push("checkpoints_path", "checkpoints");
        self.push_section("data_stages");
        self.0.push("- name: training".to_owned());
        self.push("start_training_step", 1);
        // Without a data set, nanotron trains on random tokens.
        self.push("data", "{dataset: null, num_loading_workers: 1, seed: 42}");
        self.push_section("tokenizer");
        self.push("tokenizer_name_or_path", "gpt2");
    }

    fn push_model(&mut self, recipe: &PlanRecipe<'_>, config: &Value) {
        let precision = recipe.plan.precision;
        self.push_section("model");
        let dtype = match precision.operand {
            DataType::Fp16 => "float16",
            DataType::Fp32 => "float32",
            _ => "bfloat16",
        };
        self.push("dtype", dtype);
        if let Some(why) = Framework::Nanotron.why_product_not_trained(precision.product) {
            self.0.push_lack(true, &why);
        }
        self.0.push_lack(
            precision.state.is_some() || precision.master.is_none() && precision.operand != DataType::Fp32,
            "moments in another format, or no master weights: nanotron keeps both in fp32",
        );
        self.push("init_method", "{std: 0.02}");
        self.push("make_vocab_size_divisible_by", recipe.stack.kernels.vocabulary_multiple);
        self.0.push("  model_config:".to_owned());
        self.0.push("    is_llama_config: true".to_owned());
        for (key, value) in config.as_object().into_iter().flatten() {
            self.0.push(format!("    {key}: {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
        }
        self.0.push_lack(recipe.plan.attention != Attention::Fused, "attention operator by operator");
        self.0.push_lack(!recipe.model.documents.is_empty(), DOCUMENTS);
    }

    fn push_optimizer(&mut self, recipe: &PlanRecipe<'_>) {
        let plan = recipe.plan;
        self.push_section("optimizer");
        self.push("accumulate_grad_in_fp32", plan.precision.gradient == DataType::Fp32);
        self.push("clip_grad", "1.0");
        self.push("weight_decay", "0.01");
        let stage = u8::from(plan.layout.zero != ZeroStage::None);
        self.push("zero_stage", stage);
        self.0.push_lack(
            matches!(plan.layout.zero, ZeroStage::Gradients | ZeroStage::Parameters),
            "ZeRO-2 and ZeRO-3: nanotron has ZeRO-1",
        );
        let factory = "{name: adamW, adam_beta1: 0.9, adam_beta2: 0.95, adam_eps: 1.0e-08, torch_adam_is_fused: true}";
        self.push("optimizer_factory", factory);
        self.0.push_lack(plan.optimizer != Optimizer::Adam, "optimizer: AdamW is written");
        self.push("learning_rate_scheduler", "{learning_rate: 0.0003, lr_warmup_steps: 2, lr_decay_style: cosine}");
    }

    fn push_parallelism(&mut self, recipe: &PlanRecipe<'_>) {
        let (plan, layout) = (recipe.plan, &recipe.plan.layout);
        self.push_section("parallelism");
        self.push("dp", layout.data);
        self.push("pp", layout.pipeline);
        self.push("tp", layout.tensor);
        if layout.context > 1 {
            self.push("context_parallel_size", layout.context);
            self.0.push_lack(layout.context_method == ContextMethod::Ulysses, "Ulysses: nanotron's is a ring");
        }
        self.push("expert_parallel_size", 1);
        self.push("pp_engine", if plan.schedule == PipelineSchedule::GPipe { "afab" } else { "1f1b" });
        let runs = matches!(plan.schedule, PipelineSchedule::GPipe | PipelineSchedule::OneForwardOneBackward);
        self.0.push_lack(
            layout.pipeline > 1 && !runs || layout.virtual_stages > 1,
            "the schedule: nanotron has 1F1B and all forward, all backward",
        );
        self.push_split(recipe);
        self.push("tp_mode", if layout.sequence_parallel { "REDUCE_SCATTER" } else { "ALL_REDUCE" });
        let overlaps = layout.sequence_parallel && layout.tensor > 1 && recipe.stack.overlap.tensor > 0.0;
        self.push("tp_linear_async_communication", overlaps);
        match plan.activations.uniform_policy() {
            Some(ActivationPolicy::None) => self.push("recompute_layer", false),
            Some(ActivationPolicy::Full) => self.push("recompute_layer", true),
            _ => self.0.push_lack(true, "recomputation of parts: nanotron recomputes whole layers"),
        }
    }

    /// Notes if nanotron makes another split of the layers than the plan.
    fn push_split(&mut self, recipe: &PlanRecipe<'_>) {
        let (model, layout) = (recipe.model, &recipe.plan.layout);
        let own = split_of_stages(model, layout.pipeline);
        let split = layout.chunk_split(model.layers);
        let same = split.is_ok_and(|split| (0..).zip(&own).all(|(stage, held)| split.layers_of_chunk(stage) == *held));
        let other = format!("the split of layers: nanotron makes its own by cost, {own:?}");
        self.0.push_lack(layout.pipeline > 1 && layout.virtual_stages == 1 && !same, &other);
    }

    fn push_batch(&mut self, recipe: &PlanRecipe<'_>) {
        let plan = recipe.plan;
        self.push_section("tokens");
        self.push("batch_accumulation_per_replica", plan.micro_batches());
        self.push("micro_batch_size", plan.batch.micro_batch);
        self.push("sequence_length", plan.batch.sequence_length);
        self.push("train_steps", 50);
        self.push("val_check_interval", -1);
    }
}
