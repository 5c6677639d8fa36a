//! Built-in models by the names that frameworks have for them.

/// TorchTitan's model and flavour, with the built-in model of the same layers. Source: `torchtitan/models/*/__init__.py` of pytorch/torchtitan (2025).
pub const TORCHTITAN_MODELS: [(&str, &str, &str); 7] = [
    ("llama3", "8B", "llama3.1-8b"),
    ("llama3", "70B", "llama3-70b"),
    ("llama3", "405B", "llama3.1-405b"),
    ("deepseek_v3", "16B", "deepseek-v2-lite"),
    ("deepseek_v3", "671B", "deepseek-v3"),
    ("qwen3", "8B", "qwen3-8b"),
    ("qwen3", "30B-A3B", "qwen3-30b-a3b"),
];
