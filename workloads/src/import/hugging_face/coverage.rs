//! The covered families: the checkpoints of each that tests count, and the figures they are compared with.

use super::FAMILIES;

/// The coverage of one family of `config.json` files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyCoverage {
    /// The `model_type` values that it reads, without those of text parts of multimodal files.
    pub model_types: Vec<&'static str>,
    /// Checkpoints whose published parameter counts its files give (`workloads/tests/published_models.rs`), by file
    /// name.
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

    /// Returns the checkpoints whose operations per token follow a formula of the published sizes.
    #[must_use]
    pub fn models_by_formula(&self) -> Vec<&'static str> {
        self.models_checked_by(BY_FORMULA)
    }

    fn models_checked_by(&self, names: &[&str]) -> Vec<&'static str> {
        self.checked.iter().copied().filter(|name| names.contains(name)).collect()
    }
}

/// Returns all families, in the order of their first `model_type`.
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

/// Files of `workloads/tests/configs`, by `model_type`.
const CHECKED: &[(&str, &[&str])] = &[
    ("bloom", &["bloom_176b", "bloom_560m"]),
    ("clip_text_model", &["clip_vit_base_patch32"]),
    ("clip_vision_model", &["clip_vit_base_patch32_vision"]),
    ("cohere", &["command_r", "command_r_plus"]),
    ("deepseek", &["deepseek_moe_16b"]),
    ("deepseek_v2", &["deepseek_v2", "deepseek_v2_lite"]),
    ("deepseek_v3", &["deepseek_v3", "moonlight_16b_a3b"]),
    ("falcon", &["falcon_40b", "falcon_7b"]),
    ("gemma", &["gemma_2b", "gemma_7b"]),
    ("gemma2", &["gemma_2_27b", "gemma_2_2b", "gemma_2_9b"]),
    ("gemma3_text", &["gemma_3_1b", "gemma_3_27b", "gemma_3_4b"]),
    ("gpt2", &["gpt2"]),
    ("gpt_bigcode", &["starcoder"]),
    ("gpt_neox", &["gpt_neox_20b", "pythia_160m", "pythia_6_9b"]),
    ("gpt_oss", &["gpt_oss_120b", "gpt_oss_20b"]),
    ("gptj", &["gpt_j_6b"]),
    ("kimi_k2", &["kimi_k2"]),
    ("llama", &["llama_3_1_405b", "llama_3_1_8b", "llama_3_2_1b", "llama_3_2_3b", "smollm2_135m", "tinyllama_1_1b"]),
    ("llama4_text", &["llama_4_maverick", "llama_4_scout"]),
    ("mamba2", &["mamba2_130m", "mamba2_2_7b", "mamba_codestral_7b"]),
    ("mistral", &["mistral_7b_v0_1", "mistral_7b_v0_3", "mistral_nemo_12b", "mistral_small_24b"]),
    ("mixtral", &["mixtral_8x22b"]),
    ("modernbert", &["modernbert_base", "modernbert_large"]),
    ("mpt", &["mpt_7b"]),
    ("nemotron_h", &["nemotron_h_8b"]),
    ("olmo", &["olmo_1b", "olmo_7b"]),
    ("olmo2", &["olmo_2_13b", "olmo_2_7b"]),
    ("olmoe", &["olmoe_1b_7b"]),
    ("opt", &["opt_350m"]),
    ("phi", &["phi_2"]),
    ("phi3", &["phi_3_mini_4k", "phi_4", "phi_4_mini"]),
    ("qwen2", &["qwen2_5_0_5b", "qwen2_5_1_5b", "qwen2_5_72b", "qwen2_5_7b"]),
    ("qwen2_5_vl", &["qwen2_5_vl_7b"]),
    ("qwen2_moe", &["qwen1_5_moe_a2_7b", "qwen2_57b_a14b"]),
    ("qwen3", &["qwen3_0_6b", "qwen3_32b", "qwen3_4b", "qwen3_8b"]),
    ("qwen3_moe", &["qwen3_235b_a22b", "qwen3_30b_a3b"]),
    ("roberta", &["roberta_base", "roberta_large"]),
    ("smollm3", &["smollm3_3b"]),
    ("stablelm", &["stablelm_2_1_6b"]),
    ("starcoder2", &["starcoder2_3b", "starcoder2_7b"]),
    ("t5", &["flan_t5_base", "flan_t5_xxl", "t5_11b", "t5_base", "t5_large", "t5_small"]),
    ("vit", &["vit_base_patch16_224", "vit_large_patch16_224"]),
];

/// Checkpoints with only a rounded published count, or that hold more than the text model.
const TO_DIGITS: &[&str] = &[
    "llama_4_maverick",
    "llama_4_scout",
    "modernbert_large",
    "moonlight_16b_a3b",
    "nemotron_h_8b",
    "olmo_2_13b",
    "olmo_2_7b",
    "qwen2_57b_a14b",
    "qwen2_5_vl_7b",
];

/// Checkpoints whose published active parameters are checked.
const ACTIVE: &[&str] = &[
    "deepseek_moe_16b",
    "deepseek_v2",
    "deepseek_v2_lite",
    "deepseek_v3",
    "gpt_oss_120b",
    "gpt_oss_20b",
    "kimi_k2",
    "llama_4_scout",
    "mixtral_8x22b",
    "olmoe_1b_7b",
    "qwen1_5_moe_a2_7b",
    "qwen2_57b_a14b",
    "qwen3_235b_a22b",
    "qwen3_30b_a3b",
];

/// Checkpoints whose operations per token are derived from the published sizes.
const BY_FORMULA: &[&str] = &[
    "bloom_176b",
    "command_r",
    "deepseek_v2_lite",
    "deepseek_v3",
    "falcon_7b",
    "flan_t5_xxl",
    "gemma_2_9b",
    "gemma_7b",
    "gpt_neox_20b",
    "gpt_oss_20b",
    "llama_3_1_8b",
    "llama_4_maverick",
    "llama_4_scout",
    "mamba2_130m",
    "mamba_codestral_7b",
    "mistral_nemo_12b",
    "mixtral_8x22b",
    "modernbert_base",
    "mpt_7b",
    "nemotron_h_8b",
    "olmo_2_7b",
    "phi_3_mini_4k",
    "qwen1_5_moe_a2_7b",
    "qwen2_5_7b",
    "qwen3_30b_a3b",
    "roberta_base",
    "starcoder",
    "starcoder2_3b",
    "t5_base",
    "vit_base_patch16_224",
];
