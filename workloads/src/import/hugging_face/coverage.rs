//! The covered families: the checkpoints of each family that tests count, and the published figures for the comparison.

use super::FAMILIES;

/// The coverage of one family of `config.json` files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyCoverage {
    /// The `model_type` values that the family covers, without those of the text parts of multimodal files.
    pub model_types: Vec<&'static str>,
    /// Checkpoints whose published parameter counts are compared with the counts from their files
    /// (`workloads/tests/published_models.rs`). Built-in models go by their names, others by the name of their file
    /// there.
    pub checked: Vec<&'static str>,
}

impl FamilyCoverage {
    /// Returns the checkpoints whose count equals the published one exactly.
    #[must_use]
    pub fn exact_models(&self) -> Vec<&'static str> {
        self.checked.iter().copied().filter(|name| !TO_DIGITS.contains(name)).collect()
    }

    /// Returns the checkpoints whose count equals the published one to the published digits.
    #[must_use]
    pub fn models_to_published_digits(&self) -> Vec<&'static str> {
        self.models_checked_by(TO_DIGITS)
    }

    /// Returns the checkpoints with experts whose active parameters equal the published figure.
    #[must_use]
    pub fn models_by_active_parameters(&self) -> Vec<&'static str> {
        self.models_checked_by(ACTIVE)
    }

    /// Returns the checkpoints whose operations per token equal those that a formula gives for the published sizes.
    #[must_use]
    pub fn models_by_formula(&self) -> Vec<&'static str> {
        self.models_checked_by(BY_FORMULA)
    }

    fn models_checked_by(&self, names: &[&str]) -> Vec<&'static str> {
        self.checked.iter().copied().filter(|name| names.contains(name)).collect()
    }
}

/// Returns the coverage of all families, sorted by their `model_type` values.
#[must_use]
pub fn family_coverage() -> Vec<FamilyCoverage> {
    let mut all: Vec<FamilyCoverage> = FAMILIES
        .iter()
        .map(|family| {
            let is_read = |(kind, _): &&(&str, &[&str])| family.model_types.contains(kind);
            let checked = CHECKED.iter().filter(is_read).flat_map(|(_, names)| names.iter().copied()).collect();
            let model_types = family.model_types.iter().copied().filter(|kind| !kind.ends_with("_text")).collect();
            FamilyCoverage { model_types, checked }
        })
        .collect();
    all.sort_by(|a, b| a.model_types.cmp(&b.model_types));
    all
}

/// The checked checkpoints by `model_type`: built-in models, and files of `workloads/tests/configs`.
const CHECKED: &[(&str, &[&str])] = &[
    ("Transformer2DModel", &["dit_xl_2_256"]),
    ("bart", &["bart_base"]),
    ("bloom", &["bloom_176b", "bloom_560m"]),
    ("clip_text_model", &["clip_vit_base_patch32"]),
    ("clip_vision_model", &["clip_vit_base_patch32_vision"]),
    ("cohere", &["command_r", "command_r_plus"]),
    ("deepseek", &["deepseek_moe_16b"]),
    ("deepseek_v2", &["deepseek_v2", "deepseek_v2_lite"]),
    ("dbrx", &["dbrx"]),
    ("deepseek_v3", &["deepseek-v3", "moonlight_16b_a3b"]),
    ("deepseek_v32", &["deepseek-v3.2"]),
    ("dit", &["dit_xl_2"]),
    ("falcon", &["falcon-40b", "falcon-7b"]),
    ("gemma", &["gemma_2b", "gemma_7b"]),
    ("gemma2", &["gemma_2_27b", "gemma_2_2b", "gemma-2-9b"]),
    ("gemma3_text", &["gemma_3_1b", "gemma-3-27b", "gemma_3_4b"]),
    ("glm4_moe", &["glm-4.5", "glm-4.5-air"]),
    ("gpt2", &["gpt2"]),
    ("gpt_bigcode", &["starcoder"]),
    ("gpt_neox", &["gpt_neox_20b", "pythia_160m", "pythia_6_9b"]),
    ("gpt_oss", &["gpt-oss-120b", "gpt-oss-20b"]),
    ("gptj", &["gpt_j_6b"]),
    ("grok-1", &["grok-1"]),
    ("kimi_k2", &["kimi-k2"]),
    ("internlm2", &["internlm2_7b"]),
    ("llama", &["llama3.1-405b", "llama3.1-8b", "llama3.2-1b", "llama3.2-3b", "smollm2_135m", "tinyllama_1_1b"]),
    ("llama4_text", &["llama4-maverick", "llama4-scout"]),
    ("mamba2", &["mamba2_130m", "mamba2_2_7b", "mamba_codestral_7b"]),
    ("mbart", &["mbart_large_50"]),
    ("minimax_m2", &["minimax-m2"]),
    ("minimax_text_01", &["minimax-text-01"]),
    ("mistral", &["mistral_7b_v0_1", "mistral-7b", "mistral_nemo_12b", "mistral_small_24b"]),
    ("mixtral", &["mixtral-8x22b"]),
    ("modernbert", &["modernbert_base", "modernbert_large"]),
    ("mpt", &["mpt_7b"]),
    ("nemotron-nas", &["llama-nemotron-super-49b", "llama-nemotron-ultra-253b"]),
    ("nemotron_h", &["nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b", "nemotron-h-8b"]),
    ("olmo", &["olmo_1b", "olmo_7b"]),
    ("olmo2", &["olmo_2_13b", "olmo-2-7b"]),
    ("olmoe", &["olmoe_1b_7b"]),
    ("opt", &["opt_350m"]),
    ("phi", &["phi_2"]),
    ("phi3", &["phi_3_mini_4k", "phi-4", "phi_4_mini"]),
    ("qwen2", &["qwen2_5_0_5b", "qwen2_5_1_5b", "qwen2.5-72b", "qwen2.5-7b"]),
    ("qwen2_5_vl", &["qwen2_5_vl_7b"]),
    ("qwen2_moe", &["qwen1_5_moe_a2_7b", "qwen2_57b_a14b"]),
    ("qwen3", &["qwen3_0_6b", "qwen3-32b", "qwen3_4b", "qwen3-8b"]),
    ("qwen3_moe", &["qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-coder-480b-a35b"]),
    ("qwen3_next", &["qwen3-next-80b-a3b"]),
    ("roberta", &["roberta_base", "roberta_large"]),
    ("smollm3", &["smollm3_3b"]),
    ("stablelm", &["stablelm_2_1_6b"]),
    ("starcoder2", &["starcoder2_3b", "starcoder2_7b"]),
    ("t5", &["flan_t5_base", "flan_t5_xxl", "t5_11b", "t5_base", "t5_large", "t5_small"]),
    ("vit", &["vit_base_patch16_224", "vit_large_patch16_224"]),
    ("whisper", &["whisper_large_v3"]),
];

/// Checkpoints whose published count is rounded or includes more than the text model.
const TO_DIGITS: &[&str] = &[
    "grok-1",
    "llama-nemotron-super-49b",
    "llama-nemotron-ultra-253b",
    "llama4-maverick",
    "llama4-scout",
    "minimax-text-01",
    "modernbert_large",
    "moonlight_16b_a3b",
    "nemotron-h-8b",
    "olmo-2-7b",
    "olmo_2_13b",
    "qwen2_57b_a14b",
    "qwen2_5_vl_7b",
];

/// Checkpoints whose published active parameters are checked.
const ACTIVE: &[&str] = &[
    "dbrx",
    "deepseek-v3",
    "deepseek_moe_16b",
    "deepseek_v2",
    "deepseek_v2_lite",
    "glm-4.5",
    "glm-4.5-air",
    "gpt-oss-120b",
    "gpt-oss-20b",
    "kimi-k2",
    "llama4-scout",
    "minimax-m2",
    "mixtral-8x22b",
    "nemotron-3-nano-30b-a3b",
    "nemotron-3-super-120b-a12b",
    "olmoe_1b_7b",
    "qwen1_5_moe_a2_7b",
    "qwen2_57b_a14b",
    "qwen3-235b-a22b",
    "qwen3-30b-a3b",
    "qwen3-coder-480b-a35b",
    "qwen3-next-80b-a3b",
];

/// Checkpoints whose operations per token are derived from the published sizes.
const BY_FORMULA: &[&str] = &[
    "bloom_176b",
    "command_r",
    "deepseek-v3",
    "deepseek_v2_lite",
    "dit_xl_2",
    "falcon-7b",
    "flan_t5_xxl",
    "gemma-2-9b",
    "gemma_7b",
    "gpt-oss-20b",
    "gpt_neox_20b",
    "llama3.1-8b",
    "llama4-maverick",
    "llama4-scout",
    "mamba2_130m",
    "mamba_codestral_7b",
    "mistral_nemo_12b",
    "mixtral-8x22b",
    "modernbert_base",
    "mpt_7b",
    "nemotron-h-8b",
    "olmo-2-7b",
    "phi_3_mini_4k",
    "qwen1_5_moe_a2_7b",
    "qwen2.5-7b",
    "qwen3-30b-a3b",
    "roberta_base",
    "starcoder",
    "starcoder2_3b",
    "t5_base",
    "vit_base_patch16_224",
];
