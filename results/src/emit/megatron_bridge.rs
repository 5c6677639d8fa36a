//! A recipe of Megatron Bridge as Python: Megatron-LM's settings of the plan as fields of `ConfigContainer`. Source:
//! NVIDIA-NeMo/Megatron-Bridge at commit 003e863ad19f (2026): `src/megatron/bridge/training/config.py`,
//! `recipes/common.py`, `recipes/gpt/h100/vanilla_gpt.py`.

use super::kept::plan_by_policies;
use super::megatron::torchrun_of_plan;
use super::megatron_settings::{MegatronEntry, MegatronSettings, YARN};
use super::{EmittedPlan, Inexpressible, PlanRecipe};
use sim::kernel::DataType;
use step::{BRIDGE_FIELDS, BridgeField};
use workloads::Model;
use workloads::model::{PositionEncoding, other_names};

/// The sections of `ConfigContainer` besides the model: name, class, and values that the plan leaves open.
const SECTIONS: [(&str, &str, &[&str]); 13] = [
    ("train", "TrainingConfig", &["train_iters=50"]),
    ("validation", "ValidationConfig", &["eval_iters=0"]),
    ("optimizer", "OptimizerConfig", &["lr=1e-4", "min_lr=1e-5"]),
    (
        "scheduler",
        "SchedulerConfig",
        &[
            "start_weight_decay=0.01",
            "end_weight_decay=0.01",
            "weight_decay_incr_style=\"constant\"",
            "lr_decay_style=\"cosine\"",
        ],
    ),
    ("ddp", "DistributedDataParallelConfig", &["check_for_nan_in_grad=True"]),
    ("dist", "DistributedInitConfig", &[]),
    (
        "dataset",
        "MockGPTDatasetConfig",
        &["random_seed=1234", "reset_position_ids=False", "reset_attention_mask=False", "eod_mask_loss=False"],
    ),
    ("logger", "LoggerConfig", &["log_interval=1"]),
    ("tokenizer", "TokenizerConfig", &["tokenizer_type=\"NullTokenizer\""]),
    ("checkpoint", "CheckpointConfig", &[]),
    ("rng", "RNGConfig", &["seed=1234"]),
    ("comm_overlap", "CommOverlapConfig", &[]),
    ("mixed_precision", "MixedPrecisionConfig", &[]),
];

/// Arguments without a field of their own, because other fields imply them.
const IMPLIED: [&str; 5] = [
    "accumulate-allreduce-grads-in-fp32",
    "grad-reduce-in-bf16",
    "group-query-attention",
    "max-position-embeddings",
    "num-layers-per-virtual-pipeline-stage",
];

/// Families for which Bridge makes a provider from their configuration on Hugging Face (`register_bridge` in
/// `src/megatron/bridge/models/`; those of Mixtral, Mistral and DeepSeek-V2 were removed).
const FAMILIES: [&str; 7] = ["deepseek_v3", "glm4_moe", "gpt_oss", "llama", "qwen2", "qwen3", "qwen3_moe"];

/// Fused kernels that are on by default in Megatron-LM's arguments, but not in `TransformerConfig`.
const FUSED: [&str; 4] =
    ["bias_activation_fusion=True", "bias_dropout_fusion=True", "apply_rope_fusion=True", "persist_layer_norm=True"];

/// Writes a Python program that trains a plan with Megatron Bridge. Its comments name the parts for which Bridge has no
/// field.
///
/// # Errors
/// A model that the layers of Megatron-LM's core cannot express; a model that is not causal.
pub fn write_megatron_bridge(recipe: &PlanRecipe<'_>) -> Result<EmittedPlan, Inexpressible> {
    let plan = &plan_by_policies(recipe);
    let recipe = &PlanRecipe { plan, ..*recipe };
    recipe.refuse_features("Megatron Bridge", &[(!recipe.model.causal, "attention to later tokens")])?;
    let settings = MegatronSettings::of_recipe(recipe, "Megatron Bridge")?;
    let provided = hugging_face_name(recipe.model).is_some();
    let (mut comments, mut lacking) = (Vec::new(), settings.lacking.clone());
    for entry in &settings.entries {
        match entry {
            // A provider from Hugging Face already knows the rotation.
            MegatronEntry::Comment(text) if text == YARN && provided => {}
            MegatronEntry::Comment(text) => comments.push(text.clone()),
            MegatronEntry::Setting(argument, _) if !is_expressed(argument) => {
                lacking.push(format!("--{argument}: no field of Megatron Bridge is known for it"));
            }
            MegatronEntry::Setting(..) => {}
        }
    }
    let (longest, length) = (recipe.model.max_sequence, plan.batch.sequence_length);
    if matches!(recipe.model.position, PositionEncoding::Learned { .. }) && longest > length {
        lacking.push(format!("a table of {longest} learned positions: Megatron Bridge makes a sequence's {length}"));
    }
    comments.extend(lacking.iter().filter(|lack| !settings.lacking.contains(lack)).cloned());
    if settings.words_of("offload-modules").is_some() {
        comments.push("environment: NVTE_CPU_OFFLOAD_V1=1 (asserted from Transformer Engine 2.10 on)".to_owned());
    }
    comments.push("data, tokenizer and learning rate are placeholders; give your own".to_owned());
    let mut lines = header(recipe, &comments);
    lines.extend(imports(recipe, &settings));
    lines.extend(["", "", "def recipe() -> ConfigContainer:"].map(str::to_owned));
    lines.extend(model_lines(recipe, &settings));
    lines.push("    return ConfigContainer(".to_owned());
    lines.push("        model=model,".to_owned());
    for (section, class, open) in SECTIONS {
        let own = section_fields(&settings, section, true);
        let reduced = (section == "mixed_precision").then(|| reduction_field(recipe));
        let fields: Vec<String> =
            own.into_iter().chain(reduced).chain(open.iter().map(|field| (*field).to_owned())).collect();
        lines.extend(call_lines("        ", &format!("{section}={class}"), &fields, ","));
    }
    let end = ["    )", "", "", "if __name__ == \"__main__\":", "    pretrain(recipe(), forward_step)"];
    lines.extend(end.map(str::to_owned));
    Ok(EmittedPlan { text: lines.into_iter().map(|line| line + "\n").collect(), lacking })
}

/// True if fields of Bridge express an argument.
fn is_expressed(argument: &str) -> bool {
    IMPLIED.contains(&argument) || BRIDGE_FIELDS.iter().any(|row| row.argument == argument)
}

fn header(recipe: &PlanRecipe<'_>, comments: &[String]) -> Vec<String> {
    let (devices, chip) = (recipe.plan.layout.device_count(), recipe.chip);
    let title = format!("\"\"\"{} on {devices} x {chip}: a recipe for Megatron Bridge.", recipe.model.name);
    let launch = format!("{} recipe.py", torchrun_of_plan(recipe));
    let about = [title, String::new(), launch, "\"\"\"".to_owned()];
    let named = "options with dashes below are Megatron-LM's, which the fields stand for".to_owned();
    about.into_iter().chain(std::iter::once(&named).chain(comments).map(|comment| format!("# {comment}"))).collect()
}

fn imports(recipe: &PlanRecipe<'_>, settings: &MegatronSettings) -> Vec<String> {
    let provided = hugging_face_name(recipe.model).is_some();
    let latent = settings.words_of("multi-latent-attention").is_some();
    let layers = settings.words_of("moe-layer-freq").is_some();
    let lines = [
        (!provided && layers, "from functools import partial"),
        (!provided && layers, ""),
        (true, "import torch"),
        (!provided && settings.words_of("swiglu").is_some(), "import torch.nn.functional as F"),
        (
            !provided && settings.words_of("quick-geglu").is_some(),
            "from megatron.core.fusions.fused_bias_geglu import quick_gelu",
        ),
        (!provided && layers, "from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec"),
        (true, "from megatron.core.transformer.enums import AttnBackend"),
        (true, ""),
        (provided, "from megatron.bridge import AutoBridge"),
        (!provided && !latent, "from megatron.bridge.models.gpt_provider import GPTModelProvider"),
        (!provided && latent, "from megatron.bridge.models.mla_provider import MLAModelProvider"),
        (true, "from megatron.bridge.training.comm_overlap import CommOverlapConfig"),
        (true, "from megatron.bridge.training.config import ("),
        (true, "    ConfigContainer,"),
    ];
    let own = lines.into_iter().filter(|(needed, _)| *needed).map(|(_, line)| line.to_owned());
    let elsewhere = ["CommOverlapConfig", "MixedPrecisionConfig"];
    let classes = SECTIONS.iter().map(|(_, class, _)| class).filter(|class| !elsewhere.contains(class));
    let rest = [
        ")",
        "from megatron.bridge.training.gpt_step import forward_step",
        "from megatron.bridge.training.mixed_precision import MixedPrecisionConfig",
        "from megatron.bridge.training.pretrain import pretrain",
    ];
    own.chain(classes.map(|class| format!("    {class},"))).chain(rest.map(str::to_owned)).collect()
}

/// Returns the lines of the model: a provider that Bridge makes from the configuration on Hugging Face, or a provider
/// with the numbers of the layers.
fn model_lines(recipe: &PlanRecipe<'_>, settings: &MegatronSettings) -> Vec<String> {
    let name = hugging_face_name(recipe.model);
    let dense = recipe.model.experts.is_none();
    let of_plan = |row: &BridgeField| name.is_none() || !row.of_model;
    let rows = BRIDGE_FIELDS.iter().filter(|row| row.path.starts_with("model.") && of_plan(row));
    let written = rows.filter(|row| !(dense && row.path.starts_with("model.moe_")));
    let given = written.filter_map(|row| written_field(settings, row, name.is_some()));
    let chunks = recipe.plan.layout.virtual_stages;
    let chunks = if chunks > 1 { chunks.to_string() } else { "None".to_owned() };
    let loss = if recipe.stack.kernels.fused_loss { "True" } else { "False" };
    let own = [
        Some(format!("virtual_pipeline_model_parallel_size={chunks}")),
        Some(format!("cross_entropy_loss_fusion={loss}")),
        // The vocabulary, which is padded, then comes from the tokenizer.
        name.map(|_| "vocab_size=None".to_owned()),
    ];
    let fields: Vec<String> = given.chain(own.into_iter().flatten()).collect();
    if let Some(name) = name {
        let made = format!("AutoBridge.from_hf_pretrained(\"{name}\").to_megatron_provider(load_weights=False)");
        let made = format!("    model = {made}");
        let set = fields.iter().filter_map(|field| field.split_once('='));
        return std::iter::once(made).chain(set.map(|(name, value)| format!("    model.{name} = {value}"))).collect();
    }
    let latent = settings.words_of("multi-latent-attention").is_some();
    let class = if latent { "MLAModelProvider" } else { "GPTModelProvider" };
    let whole = latent && settings.words_of("q-lora-rank").is_none();
    let mixed = settings.words_of("moe-layer-freq").is_some();
    let further = [
        whole.then_some("q_lora_rank=None"),
        mixed.then_some("transformer_layer_spec=partial(get_gpt_decoder_block_spec, use_transformer_engine=True)"),
    ];
    let rest = further.into_iter().flatten().chain(FUSED).map(str::to_owned);
    call_lines("    ", &format!("model = {class}"), &fields.into_iter().chain(rest).collect::<Vec<_>>(), "")
}

/// Returns the fields of a section that are written.
fn section_fields(settings: &MegatronSettings, section: &str, all: bool) -> Vec<String> {
    let rows = BRIDGE_FIELDS.iter().filter(|row| row.path.split_once('.').is_some_and(|(own, _)| own == section));
    rows.filter_map(|row| written_field(settings, row, all)).collect()
}

/// Returns a field with its value. `None` if its argument is not given and `all` is false, or if it needs no value.
fn written_field(settings: &MegatronSettings, row: &BridgeField, all: bool) -> Option<String> {
    let words = settings.words_of(row.argument);
    let literal = row.literal(words).filter(|_| all || words.is_some())?;
    let (_, name) = row.path.split_once('.')?;
    Some(format!("{name}={literal}"))
}

/// Returns the field for the format in which gradients are summed.
fn reduction_field(recipe: &PlanRecipe<'_>) -> String {
    let wide = recipe.plan.precision.gradient == DataType::Fp32;
    format!("grad_reduce_in_fp32={}", if wide { "True" } else { "False" })
}

/// Returns a call with keyword arguments, one per line.
fn call_lines(indent: &str, call: &str, fields: &[String], end: &str) -> Vec<String> {
    if fields.is_empty() {
        return vec![format!("{indent}{call}(){end}")];
    }
    let inside = fields.iter().map(|field| format!("{indent}    {field},"));
    std::iter::once(format!("{indent}{call}(")).chain(inside).chain([format!("{indent}){end}")]).collect()
}

/// Returns the name on Hugging Face of a model's configuration. `None` for models that differ from it, and for families
/// that Bridge does not read.
fn hugging_face_name(model: &Model) -> Option<&'static str> {
    let mut known = Model::load(&model.name).ok().filter(|_| FAMILIES.contains(&model.family.as_str()))?;
    // These values are choices of a plan, not of the configuration.
    known.variations.further_tokens = model.variations.further_tokens;
    known.documents.clone_from(&model.documents);
    known.assumptions.clone_from(&model.assumptions);
    if let (Some(known), Some(own)) = (&mut known.experts, &model.experts) {
        known.capacity_factor = own.capacity_factor;
    }
    let (name, _) = other_names().find(|(_, built_in)| *built_in == known.name)?;
    (known == *model).then_some(name)
}
