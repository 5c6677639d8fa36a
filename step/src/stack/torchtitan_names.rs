//! Names in TorchTitan's configuration.

use sim::pipeline::PipelineSchedule;

/// TorchTitan's models as (model, flavour, built-in model with the same layers). Source:
/// `torchtitan/models/*/__init__.py` of pytorch/torchtitan (2025).
pub const TORCHTITAN_MODELS: [(&str, &str, &str); 15] = [
    ("llama3", "8B", "llama3.1-8b"),
    ("llama3", "70B", "llama3-70b"),
    ("llama3", "405B", "llama3.1-405b"),
    ("deepseek_v3", "16B", "deepseek-v2-lite"),
    ("deepseek_v3", "671B", "deepseek-v3"),
    ("qwen3", "8B", "qwen3-8b"),
    ("qwen3", "30B-A3B", "qwen3-30b-a3b"),
    ("qwen3", "32B", "qwen3-32b"),
    ("qwen3", "235B-A22B", "qwen3-235b-a22b"),
    ("llama4", "17bx16e_irope", "llama4-scout"),
    ("llama4", "17bx128e_irope", "llama4-maverick"),
    ("llama4", "17bx16e", "llama4-scout"),
    ("llama4", "17bx128e", "llama4-maverick"),
    ("gpt_oss", "20b", "gpt-oss-20b"),
    ("gpt_oss", "120b", "gpt-oss-120b"),
];

/// TorchTitan's names of schedules (`pipeline_parallel_schedule`), each with its schedule and number of model chunks
/// per device.
pub const TORCHTITAN_SCHEDULES: [(&str, PipelineSchedule, u32); 5] = [
    ("1F1B", PipelineSchedule::OneForwardOneBackward, 1),
    ("Interleaved1F1B", PipelineSchedule::OneForwardOneBackward, 2),
    ("GPipe", PipelineSchedule::GPipe, 1),
    ("ZBVZeroBubble", PipelineSchedule::ZB_V, 2),
    ("DualPipeV", PipelineSchedule::DUAL_PIPE_V, 2),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flavour_is_a_built_in_model() {
        assert!(TORCHTITAN_MODELS.iter().all(|(.., model)| workloads::model::is_built_in(model)));
    }
}
