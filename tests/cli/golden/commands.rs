//! The commands with recorded answers.

/// One command, run in the root of the repository. `{T}` stands for the directory of its group.
pub struct Command {
    /// The group. Its commands run in sequence; later ones read the files of earlier ones.
    pub group: &'static str,
    pub name: &'static str,
    pub line: &'static str,
    pub form: Form,
    /// A file in the directory of the group that is the answer instead of the output.
    pub file: Option<&'static str>,
}

/// The reduction of an answer.
#[derive(Clone, Copy)]
pub enum Form {
    /// JSON, without some keys.
    Json,
    /// A text whose words may change: only its numbers.
    Figures,
    /// Lines for another program: all except comments.
    Code,
    /// Flags, defaults and values of a help text.
    Help,
    /// An error message: its numbers, and the words of the command line that it repeats.
    Refusal,
}

const fn command(group: &'static str, name: &'static str, form: Form, line: &'static str) -> Command {
    Command { group, name, line, form, file: None }
}

const fn file(group: &'static str, name: &'static str, form: Form, line: &'static str, file: &'static str) -> Command {
    Command { group, name, line, form, file: Some(file) }
}

use Form::{Code, Figures, Help, Json, Refusal};

#[rustfmt::skip]
pub const COMMANDS: &[Command] = &[
    command("evaluate", "evaluate_tpu", Json,
        "evaluate llama2-7b --chip tpu_v4 --fabric tpu_v4_ici --devices 64 --global-batch 512 --format json"),
    command("evaluate", "evaluate_one_plan", Json,
        "evaluate llama2-7b --chip a100_80gb --fabric selene_hdr200x8 --devices 64 --global-batch 512 \
         --pipeline 4 --data 4 --tensor 4 --kernels --trace {T}/step.json --format json"),
    file("evaluate", "evaluate_trace", Json,
        "evaluate opt-350m --chip a100_80gb --fabric selene_hdr200x8 --devices 8 --global-batch 32 --pipeline \
         2 --data 4 --tensor 1 --trace {T}/step.json",
        "step.json"),
    command("evaluate", "evaluate_experts", Json,
        "evaluate mixtral-8x7b --chip h100 --fabric eos_ndr400x8 --devices 32 --global-batch 64 --expert 8 \
         --tensor 1,2 --capacity-factor 1.25 --sequence-length 4096 --format json"),
    command("evaluate", "evaluate_four_bits", Json,
        "evaluate opt-350m --chip b200 --fabric dgx_b200_400g --devices 8 --global-batch 64 --precision nvfp4 \
         --optimizer adam8bit --attention unfused --format json"),
    command("evaluate", "evaluate_offload", Json,
        "evaluate llama3-8b --chip a100_80gb --fabric selene_hdr200x8 --devices 8 --global-batch 16 \
         --recompute custom:offload(decoder_layer_input)+device(out_proj) --format json"),
    command("evaluate", "evaluate_technique", Json,
        "evaluate llama3-8b --chip a100_80gb --fabric selene_hdr200x8 --devices 8 --global-batch 16 \
         --technique galore,rank=256 --allow galore,step_multiplier=1.1 --format json"),
    command("evaluate", "evaluate_llm_compass", Json,
        "evaluate opt-350m --chip interop/tests/llm_compass/a100_like.json --fabric nvlink3_node --devices 8 \
         --global-batch 32 --format json"),
    command("evaluate", "evaluate_calculon_system", Json,
        "evaluate opt-350m --chip interop/tests/calculon/system.json --fabric \
         interop/tests/calculon/system.json --devices 8 --global-batch 32 --format json"),
    command("evaluate", "evaluate_nothing_fits", Json,
        "evaluate gpt3-175b --chip a100_80gb --fabric selene_hdr200x8 --devices 8 --global-batch 8 --tensor 8 \
         --pipeline 1 --format json"),
    command("evaluate", "evaluate_further_tokens", Json,
        "evaluate workloads/tests/configs/moonlight_16b_a3b.json --chip h100 --fabric eos_ndr400x8 --devices \
         16 --global-batch 32 --mtp-layers 1 --sequence-length 4096 --headroom-gib 2 --format json"),
    command("evaluate", "evaluate_state_space", Json,
        "evaluate workloads/tests/configs/mamba2_130m.json --chip h100 --fabric eos_ndr400x8 --devices 8 \
         --global-batch 64 --fast-domain 4 --format json"),
    command("evaluate", "evaluate_own_files", Json,
        "evaluate opt-350m --chip tests/golden/input/own_chip.toml --fabric \
         tests/golden/input/own_fabric.toml --stack megatron_core --devices 16 --global-batch 64 --format json"),
    command("evaluate", "evaluate_text", Figures,
        "evaluate opt-350m --chip a100_80gb --fabric selene_hdr200x8 --devices 4 --global-batch 16 --chakra \
         {T}/step.et --memory {T}/memory --details"),
    command("plan", "plan_eos", Json,
        "plan llama3-8b --chip h100 --fabric eos_ndr400x8 --devices 16 --global-batch 64 --top 5 --format json"),
    command("plan", "plan_text", Figures,
        "plan llama3-8b --chip h100 --fabric eos_ndr400x8 --devices 16 --global-batch 64 --top 5 \
         --details"),
    command("plan", "plan_everything", Json,
        "plan opt-350m --chip h100 --fabric eos_ndr400x8 --devices 8 --global-batch 16 --everything --top 3 \
         --format json"),
    command("plan", "plan_robust", Json,
        "plan opt-350m --chip a100_80gb --fabric selene_hdr200x8 --devices 8 --global-batch 16 --robust --top \
         3 --format json"),
    command("plan", "plan_sharded", Json,
        "plan llama3-8b --chip h100 --fabric eos_ndr400x8 --devices 16 --global-batch 32 --stack pytorch_fsdp \
         --zero 3 --stack-option kernels.shard_within_domain=true --top 4 --format json"),
    command("plan", "plan_measured_links", Json,
        "plan opt-350m --chip a100_80gb --fabric vivaldi_mpigraph_0 --devices 32 --global-batch 64 --top 3 \
         --format json"),
    command("plan", "plan_own_links", Json,
        "plan opt-350m --chip a100_80gb --fabric selene_hdr200x8 --devices 32 --global-batch 64 --tensor 2 \
         --pipeline 2 --links tests/golden/input/links.csv --top 2 --format json"),
    command("plan", "plan_map_ranks", Json,
        "plan opt-350m --chip a100_80gb --fabric selene_hdr200x8 --devices 16 --global-batch 64 --map-ranks \
         --top 1 --format json"),
    command("plan", "plan_megatron", Code,
        "plan llama3-8b --chip h100 --fabric eos_ndr400x8 --devices 16 --global-batch 32 --tensor 2 \
         --pipeline 2 --emit megatron"),
    command("plan", "plan_maxtext", Code,
        "plan llama3-8b --chip tpu_v5p --fabric ici_3d_torus --devices 64 --global-batch 512 --stack maxtext \
         --emit maxtext"),
    command("plan", "plan_torch", Code,
        "plan llama3-8b --chip h100 --fabric eos_ndr400x8 --devices 8 --global-batch 16 --recompute selective \
         --emit torch"),
    command("plan", "plan_piper", Json,
        "plan gpt2-xl --chip a100_80gb --fabric selene_hdr200x8 --devices 16 --global-batch 64 --emit piper"),
    command("plan", "plan_nvme", Json,
        "plan opt-350m --chip h100 --fabric eos_ndr400x8 --devices 8 --global-batch 64 --nvme 6:4000 \
         --recompute best --tensor 1 --zero 1,3 --top 3 --format json"),
    command("plan", "plan_context", Json,
        "plan llama3-8b --chip h100 --fabric eos_ndr400x8 --devices 32 --global-batch 32 --sequence-length \
         32768 --context 2,4 --context-method ring --order t-d-p --top 4 --format json"),
    command("plan", "plan_zero_bubble", Json,
        "plan llama3-8b --chip a100_80gb --fabric selene_hdr200x8 --devices 16 --global-batch 64 --schedule \
         zb-h1,zb-v --layer-split best --pipeline 2,4 --tensor 1,2 --top 4 --format json"),
    command("plan", "plan_expert_tensor", Json,
        "plan mixtral-8x7b --chip h100 --fabric eos_ndr400x8 --devices 32 --global-batch 64 --expert 4,8 \
         --expert-tensor 1,2 --tensor 2,4 --sequence-parallel true --micro-batch 1,2 --sequence-length 4096 \
         --top 4 --format json"),
    command("plan", "plan_half_precision", Json,
        "plan opt-350m --chip a100_80gb --fabric selene_hdr200x8 --devices 8 --global-batch 64 --time-limit \
         60 --precision fp16 --optimizer sgd --virtual-stages 1,2 --top 2 --format json"),
    command("plan", "plan_latent_attention", Json,
        "plan workloads/tests/configs/deepseek_v2_lite.json --chip tpu_v5p --fabric tpu_v5p_ici --devices 64 \
         --global-batch 64 --sequence-length 4096 --top 3 --format json"),
    command("plan", "techniques_all", Json,
        "techniques llama2-7b --chip a100_80gb_sxm --fabric selene_hdr200x8 --data 8 --zero 1 \
         --sequence-length 4096 --out {T}/figures --format json"),
    command("plan", "techniques_rows", Json,
        "techniques llama3-8b --chip h100_80gb_sxm --technique mst --technique galore,rank=256+megatron-full \
         --tensor 2 --optimizer adam8bit --nvme 6:4000 --format json"),
    command("plan", "techniques_text", Figures,
        "techniques llama3-8b --chip h100_80gb_sxm --technique adafactor --technique ssdtrain --micro-batch 2 \
         --accumulate 4 --no-master --format text"),
    command("search", "search_one", Json,
        "search opt-350m --study tests/golden/input/four.toml --out {T}/one --format json"),
    command("search", "search_text", Figures,
        "search opt-350m --study tests/golden/input/four.toml --out {T}/one"),
    file("search", "search_best_chip", Code,
        "search opt-350m --study tests/golden/input/four.toml --out {T}/one",
        "one/best.toml"),
    command("search", "search_several", Json,
        "search opt-350m llama3.2-1b --study tests/golden/input/four.toml --over mean --draws 0 --out {T}/several \
         --format json"),
    command("search", "search_dollars", Json,
        "search opt-350m --study tests/golden/input/one_memory.toml --objective per-dollar --years 3 \
         --kwh-price 0.1 --pue 1.2 --utilisation 0.8 --draws 0 --out {T}/dollars --format json"),
    command("search", "search_robust", Json,
        "search opt-350m --study tests/golden/input/four.toml --robust --out {T}/robust --format json"),
    command("search", "search_front", Json,
        "search opt-350m --study tests/golden/input/one_memory.toml --front power,cost --max-power 300 \
         --within 1 --draws 0 --out {T}/front --format json"),
    command("search", "search_own_space", Json,
        "search --study tests/golden/input/own_space.toml --set hbm_stacks=5 --max-step 2 --min-hbm-gib 64 \
         --draws 0 --out {T}/own --format json"),
    command("search", "search_part_1", Json,
        "search opt-350m --study tests/golden/input/four.toml --shard 1/2 --out {T}/part-1 --format json"),
    command("search", "search_part_2", Json,
        "search opt-350m --study tests/golden/input/four.toml --shard 2/2 --out {T}/part-2 --format json"),
    command("search", "merge_search", Json,
        "merge {T}/part-1 {T}/part-2 --out {T}/merged --format json"),
    command("search", "sweep_whole", Json,
        "sweep opt-350m --study tests/golden/input/four.toml --fabric ideal_switch --out {T}/sweep --format json"),
    command("search", "sweep_part_1", Json,
        "sweep opt-350m --study tests/golden/input/four.toml --shard 1/2 --out {T}/sweep-1 --format json"),
    command("search", "sweep_part_2", Json,
        "sweep opt-350m --study tests/golden/input/four.toml --shard 2/2 --out {T}/sweep-2 --format json"),
    command("search", "merge_sweep", Json,
        "merge {T}/sweep-1 {T}/sweep-2 --out {T}/swept --format json"),
    command("search", "explain_one", Json,
        "explain {T}/one --format json"),
    command("search", "explain_several", Json,
        "explain {T}/several --format json"),
    command("search", "explain_text", Figures,
        "explain {T}/own"),
    command("search", "compare_runs", Json,
        "compare {T}/one {T}/dollars {T}/swept --format json"),
    command("search", "compare_freedoms", Json,
        "compare --freedoms opt-350m --study tests/golden/input/four.toml --expert 2,2,256 --format json"),
    command("search", "pareto_two", Json,
        "pareto {T}/one {T}/front --out {T}/figures --format json"),
    command("search", "pareto_axes", Json,
        "pareto {T}/front --x power --y per-watt --out {T}/more --format json"),
    command("search", "report_one", Json,
        "report {T}/one -o {T}/one.html --format json"),
    command("search", "plan_found_chip", Json,
        "plan opt-350m --chip {T}/one --global-batch 1024 --top 3 --format json"),
    command("search", "evaluate_found_chip", Json,
        "evaluate opt-350m --chip {T}/own --global-batch 64 --format json"),
    command("search", "techniques_found_chip", Json,
        "techniques opt-350m --chip {T}/one --technique adam8bit --format json"),
    command("data", "validate_kernels", Json,
        "validate sim/tests/data/kernels.csv --predictions {T}/predictions.csv --format json"),
    command("data", "validate_collectives", Json,
        "validate sim/tests/data/collectives.csv --format json"),
    command("data", "validate_runs", Json,
        "validate tests/golden/input/runs.csv --breakdown {T}/parts.csv --format json"),
    command("data", "validate_techniques", Json,
        "validate --techniques --format json"),
    command("data", "validate_text", Figures,
        "validate tests/golden/input/peaks.csv"),
    command("data", "calibrate_chip", Json,
        "calibrate a100_80gb_sxm sim/tests/data/kernels.csv --only host_overhead_us,hbm_achieved_fraction \
         --format json"),
    command("data", "calibrate_fabric", Json,
        "calibrate nvlink3_node sim/tests/data/collectives.csv --format json"),
    command("data", "calibrate_stack", Json,
        "calibrate megatron_core tests/golden/input/peaks.csv --format json"),
    command("data", "place_both", Json,
        "place interop/reference/phaze/placement/instance_000.json interop/tests/piper/small.json --format json"),
    command("data", "schedule_instances", Json,
        "schedule interop/reference/phaze/schedule/instance_000.json \
         interop/reference/phaze/schedule/instance_003.json --format json"),
    command("data", "scalesim_convolutions", Json,
        "scalesim interop/tests/scale_sim/array_8x4.cfg interop/tests/scale_sim/convolutions.csv --report \
         {T}/report.csv --format json"),
    file("data", "scalesim_report", Code,
        "scalesim interop/tests/scale_sim/array_8x4.cfg interop/tests/scale_sim/products.csv --stall-free \
         --report {T}/report.csv",
        "report.csv"),
    command("data", "calculon_row", Json,
        "calculon interop/tests/calculon/model.json interop/tests/calculon/execution.json \
         interop/tests/calculon/system.json --vocabulary 256000 --format json"),
    command("lists", "list_models", Json,
        "list models --format json"),
    command("lists", "list_chips", Json,
        "list chips --format json"),
    command("lists", "list_fabrics", Json,
        "list fabrics --format json"),
    command("lists", "list_studies", Json,
        "list studies --format json"),
    command("lists", "list_stacks", Json,
        "list stacks --format json"),
    command("lists", "list_techniques", Json,
        "list techniques --format json"),
    command("lists", "list_families", Json,
        "list models --family --format json"),
    command("lists", "list_dimensions", Json,
        "list dimensions --chip h100 --fabric nvlink4_node --format json"),
    command("lists", "doctor_nothing", Json,
        "doctor --runs {T} --format json"),
    command("lists", "init_smoke", Json,
        "init {T}/mine.toml --study smoke --format json"),
    file("lists", "init_text", Code,
        "init {T}/mine2.toml --study tpu",
        "mine2.toml"),
    command("lists", "help_all", Help,
        "--help"),
    command("lists", "help_search", Help,
        "search --help"),
    command("lists", "help_evaluate", Help,
        "evaluate --help"),
    command("lists", "help_plan", Help,
        "plan --help"),
    command("lists", "help_sweep", Help,
        "sweep --help"),
    command("lists", "help_validate", Help,
        "validate --help"),
    command("refusals", "refused_study", Refusal,
        "search opt-350m --study smok"),
    command("refusals", "refused_model", Refusal,
        "plan llama9 --chip h100 --fabric eos_ndr400x8 --devices 8 --global-batch 8"),
    command("refusals", "refused_width", Refusal,
        "plan opt-350m --chip h100 --fabric eos_ndr400x8 --devices 7 --global-batch 64 --tensor 3"),
    command("refusals", "refused_option", Refusal,
        "evaluate opt-350m --chip h100 --fabric eos_ndr400x8 --devices 8 --global-batch 64 --stack-option \
         kernels.nonsense=true"),
    command("refusals", "refused_headroom", Refusal,
        "plan llama3-8b --chip h100 --fabric eos_ndr400x8 --devices 16 --global-batch 64 --headroom-gib 70"),
    command("refusals", "refused_dollars", Refusal,
        "search opt-350m --study tests/golden/input/four.toml --objective per-dollar --out {T}/x"),
    command("refusals", "refused_run", Refusal,
        "explain {T}/nothing"),
    command("refusals", "refused_missing", Refusal,
        "plan opt-350m --chip h100 --fabric eos_ndr400x8"),
];
