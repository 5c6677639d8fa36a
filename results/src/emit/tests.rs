#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use sim::kernel::DataType;
use sim::pipeline::PipelineSchedule;
use step::SoftwareStack;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, Layout, ZeroStage};

type Writer = fn(&PlanRecipe<'_>) -> Result<EmittedPlan, Inexpressible>;

const FRAMEWORKS: [Writer; 4] = [write_megatron, write_maxtext, write_torch, write_megatron_bridge];

fn plan(layout: Layout) -> TrainingPlan {
    TrainingPlan {
        layout,
        batch: Batch { micro_batch: 1, global_batch: 512, sequence_length: 2048 },
        activations: ActivationPolicy::Full.into(),
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16_FP32_GRADIENTS,
        optimizer: Optimizer::Adam,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques: workloads::Techniques::default(),
    }
}

/// Returns a layout of tensor-parallel degree 8, with sequence parallelism and these degrees.
fn layout(data: u32, pipeline: u32, zero: ZeroStage) -> Layout {
    Layout { tensor: 8, data, pipeline, zero, sequence_parallel: true, ..Layout::default() }
}

struct Case {
    model: &'static str,
    stack: &'static str,
    chip: &'static str,
    fast_domain: u32,
}

const CORE: Case = Case { model: "llama3-8b", stack: "megatron_core", chip: "h100_sxm", fast_domain: 8 };
const MAXTEXT: Case = Case { model: "llama3-8b", stack: "maxtext", chip: "tpu_v5p", fast_domain: 16 };

impl Case {
    fn write(&self, framework: usize, plan: &TrainingPlan) -> Result<EmittedPlan, Inexpressible> {
        let (model, stack) = (Model::load(self.model).unwrap(), SoftwareStack::load(self.stack).unwrap());
        let (chip, fast_domain) = (self.chip, self.fast_domain);
        let recipe = PlanRecipe {
            model: &model,
            plan,
            stack: &stack,
            chip,
            fast_domain,
            numerics: ModelNumerics::default(),
            mapping: None,
        };
        FRAMEWORKS[framework](&recipe)
    }

    fn lines(&self, framework: usize, plan: &TrainingPlan) -> Vec<String> {
        self.write(framework, plan).unwrap().text.lines().map(str::to_owned).collect()
    }

    /// Returns the parts that the framework cannot express.
    fn lacking(&self, framework: usize, plan: &TrainingPlan) -> String {
        self.write(framework, plan).unwrap().lacking.join("; ")
    }

    fn megatron(&self, plan: &TrainingPlan) -> Vec<String> {
        self.lines(0, plan)
    }

    /// Returns the lines of a recipe of Megatron Bridge, without their indentation.
    fn bridge(&self, plan: &TrainingPlan) -> Vec<String> {
        self.lines(3, plan).iter().map(|line| line.trim().to_owned()).collect()
    }

    fn maxtext(&self, plan: &TrainingPlan) -> Vec<String> {
        self.lines(1, plan)
    }
}

#[track_caller]
fn check(lines: &[String], present: &[&str], absent: &[&str]) {
    for line in present {
        assert!(lines.iter().any(|l| l == line), "{line} is missing: {lines:#?}");
    }
    for start in absent {
        assert!(!lines.iter().any(|l| l.starts_with(start)), "{start} is there: {lines:#?}");
    }
}

#[test]
fn overlaps_are_those_that_the_stack_has_and_megatron_accepts() {
    let shared = plan(layout(4, 2, ZeroStage::OptimizerStates));
    let overlaps = ["--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap"];
    check(&CORE.megatron(&shared), &[&overlaps[..], &["--use-distributed-optimizer"]].concat(), &[]);
    let old = Case { stack: "megatron", chip: "a100_80gb_sxm", ..CORE };
    check(&old.megatron(&shared), &["--use-distributed-optimizer"], &overlaps);
    let copied = plan(Layout { sequence_parallel: false, ..layout(4, 2, ZeroStage::None) });
    check(&CORE.megatron(&copied), &["--overlap-grad-reduce"], &overlaps[1..]);
    let alone = plan(layout(1, 2, ZeroStage::OptimizerStates));
    check(&CORE.megatron(&alone), &["--tp-comm-overlap"], &overlaps[..2]);
    let interleaved = plan(Layout { virtual_stages: 2, ..layout(1, 4, ZeroStage::None) });
    check(&old.megatron(&interleaved), &["--no-overlap-p2p-communication"], &[]);
    check(&CORE.megatron(&interleaved), &["--num-layers-per-virtual-pipeline-stage 4"], &["--no-overlap-p2p"]);
}

#[test]
fn sharded_weights_use_the_fsdp_that_takes_the_plan() {
    let sharded = plan(layout(4, 1, ZeroStage::Parameters));
    let torch = ["--use-torch-fsdp2", "--no-gradient-accumulation-fusion", "--untie-embeddings-and-output-weights"];
    check(
        &CORE.megatron(&sharded),
        &torch,
        &["--use-distributed-optimizer", "--overlap-param-gather", "--use-megatron-fsdp"],
    );
    let own =
        ["--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads_params", "--ckpt-format fsdp_dtensor"];
    let tied = Case { model: "gpt3-175b", ..CORE };
    check(&tied.megatron(&sharded), &own, &["--use-torch-fsdp2"]);
    check(&CORE.megatron(&plan(layout(4, 2, ZeroStage::Parameters))), &own, &["--use-torch-fsdp2"]);
    let gradients = plan(layout(4, 1, ZeroStage::Gradients));
    check(&CORE.megatron(&gradients), &["--data-parallel-sharding-strategy optim_grads"], &["--use-torch-fsdp2"]);
    for plan in [&sharded, &gradients] {
        check(&CORE.megatron(plan), &["# environment: CUDA_DEVICE_MAX_CONNECTIONS must not be 1"], &[]);
    }
}

#[test]
fn number_formats_and_optimizers_are_the_plans_own() {
    let of = |precision, optimizer| TrainingPlan { precision, optimizer, ..plan(layout(4, 1, ZeroStage::None)) };
    let narrow = of(Precision::MIXED_BF16, Optimizer::Momentum);
    check(&CORE.megatron(&narrow), &["--bf16", "--grad-reduce-in-bf16", "--optimizer sgd", "--sgd-momentum 0.9"], &[]);
    let wide = of(Precision::MIXED_BF16_FP32_GRADIENTS, Optimizer::Sgd);
    check(&CORE.megatron(&wide), &["--sgd-momentum 0"], &["--grad-reduce-in-bf16"]);
    check(&MAXTEXT.maxtext(&wide), &["weight_dtype: float32", "dtype: bfloat16", "opt_type: sgd"], &[]);
    let pure = of(Precision::PURE_BF16.with_product_type(DataType::Int8), Optimizer::Adafactor);
    check(&MAXTEXT.maxtext(&pure), &["weight_dtype: bfloat16", "quantization: int8"], &["opt_type"]);
    check(&CORE.megatron(&pure), &["# products in int8: it has fp8, mxfp8, nvfp4"], &["--optimizer"]);
}

#[test]
fn narrow_states_take_the_precision_aware_optimizer() {
    let of = |precision, zero, techniques: &str| {
        let techniques = techniques.split('+').filter(|name| !name.is_empty()).map(|name| name.parse().unwrap());
        TrainingPlan { precision, techniques: techniques.collect(), ..plan(layout(4, 1, zero)) }
    };
    let narrow = Precision { state: Some(DataType::Bf16), ..Precision::MIXED_BF16 };
    let flags = [
        "--grad-reduce-in-bf16",
        "--use-precision-aware-optimizer",
        "--exp-avg-dtype bf16",
        "--exp-avg-sq-dtype bf16",
        "--main-grads-dtype bf16",
    ];
    check(&CORE.megatron(&of(narrow, ZeroStage::OptimizerStates, "")), &flags, &["# states"]);
    let wide = Precision { state: Some(DataType::Bf16), ..Precision::MIXED_BF16_FP32_GRADIENTS };
    check(
        &CORE.megatron(&of(wide, ZeroStage::OptimizerStates, "")),
        &["--exp-avg-dtype bf16"],
        &["--main-grads-dtype"],
    );
    let lacking = ["# states in bf16: the precision-aware optimizer takes adam with the distributed optimizer only"];
    check(&CORE.megatron(&of(narrow, ZeroStage::None, "")), &lacking, &["--use-precision-aware-optimizer"]);
    let half = of(narrow, ZeroStage::OptimizerStates, "optimizer-offload,fraction=0.5,overlap=1");
    let offloaded = CORE.megatron(&half);
    let flags = ["--optimizer-cpu-offload", "--optimizer-offload-fraction 0.5", "--overlap-cpu-optimizer-d2h-h2d"];
    check(&offloaded, &flags, &[]);
    assert_eq!(offloaded.iter().filter(|line| *line == "--use-precision-aware-optimizer").count(), 1);
    let pure = of(Precision::PURE_BF16, ZeroStage::OptimizerStates, "");
    check(
        &CORE.megatron(&pure),
        &["# no master weights: Megatron-LM keeps a copy, in fp32 or fp16 (--main-params-dtype)"],
        &["--exp-avg-dtype"],
    );
}

#[test]
fn a_slice_is_filled_in_the_order_of_ranks() {
    let of = |layout| MAXTEXT.maxtext(&plan(layout));
    check(
        &of(layout(2, 1, ZeroStage::None)),
        &["ici_tensor_sequence_parallelism: 8", "ici_data_parallelism: 2"],
        &["dcn_"],
    );
    let copies = of(layout(8, 1, ZeroStage::OptimizerStates));
    check(
        &copies,
        &["ici_data_parallelism: 2", "dcn_data_parallelism: 4", "shard_optimizer_over_data: true"],
        &["dcn_pipe"],
    );
    let stages = of(layout(2, 4, ZeroStage::None));
    check(
        &stages,
        &["ici_data_parallelism: 2", "dcn_pipeline_parallelism: 4", "dcn_data_parallelism: 1"],
        &["ici_pipeline"],
    );
    let hybrid = of(layout(8, 1, ZeroStage::Parameters));
    check(&hybrid, &["ici_fsdp_parallelism: 2", "dcn_data_parallelism: 4"], &["dcn_fsdp"]);
    let whole = Case { stack: "torchtitan", ..MAXTEXT };
    check(
        &whole.maxtext(&plan(layout(8, 1, ZeroStage::Parameters))),
        &["dcn_fsdp_parallelism: 4", "dcn_data_parallelism: 1"],
        &[],
    );
    let product: u32 = stages
        .iter()
        .filter_map(|line| line.split_once("_parallelism: "))
        .map(|(_, degree)| degree.parse::<u32>().unwrap())
        .product();
    assert_eq!(product, 64);
}

/// Every line is a comment or one `key: value` of YAML: a word, a number, a quoted text or a list of these. No key
/// stands twice, and the settings are read over `base.yml`.
#[test]
fn maxtext_s_settings_are_yaml() {
    let is_quoted = |text: &str| text.len() > 2 && ["'", "\""].iter().any(|q| text.starts_with(q) && text.ends_with(q));
    let is_plain = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
    let is_list = |text: &str| {
        text.strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'))
            .is_some_and(|list| list.split(',').all(is_quoted))
    };
    let experts = Case { model: "mixtral-8x7b", ..MAXTEXT };
    for (case, policy) in [(&MAXTEXT, "custom:offload(qkv_proj)+device(mlpwi)"), (&experts, "full"), (&MAXTEXT, "none")]
    {
        let lines = case.maxtext(&TrainingPlan {
            activations: policy.parse().unwrap(),
            ..plan(layout(2, 2, ZeroStage::OptimizerStates))
        });
        assert!(
            lines[1].starts_with("# python3 -m maxtext.") && lines.contains(&"base_config: \"base.yml\"".to_owned())
        );
        let mut keys = std::collections::BTreeSet::new();
        for line in lines.iter().filter(|line| !line.starts_with('#')) {
            let (key, value) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
            assert!(is_plain(key) && keys.insert(key), "{line}");
            assert!(is_plain(value) || is_quoted(value) || is_list(value), "{line}");
        }
        assert!(keys.len() > 20, "{keys:?}");
    }
}

#[test]
fn policies_have_the_names_that_maxtext_accepts() {
    let under = |case: &Case, text: &str| {
        case.maxtext(&TrainingPlan { activations: text.parse().unwrap(), ..plan(layout(2, 1, ZeroStage::None)) })
    };
    check(&under(&MAXTEXT, "none"), &["remat_policy: minimal_with_context"], &[]);
    check(&under(&MAXTEXT, "save_qkv_proj_offloaded"), &["remat_policy: qkv_proj_offloaded"], &[]);
    check(&under(&MAXTEXT, "minimal_offloaded"), &["remat_policy: minimal_offloaded"], &[]);
    let llama = under(&MAXTEXT, "custom:offload(decoder_layer_input,qkv_proj)+device(mlpwi)");
    check(
        &llama,
        &["remat_policy: custom", "decoder_layer_input: offload", "key_proj: offload", "mlpwi_1: device"],
        &["qkv_proj"],
    );
    let gpt = under(&Case { model: "gpt3-175b", ..MAXTEXT }, "custom:offload(qkv_proj)+device(mlpwi)");
    check(
        &gpt,
        &["qkv_proj: offload", "mlpwi: device", "decoder_block: gpt3", "logits_via_embedding: true"],
        &["key_proj"],
    );
    let experts = under(&Case { model: "mixtral-8x7b", ..MAXTEXT }, "save_out_proj_offloaded");
    check(
        &experts,
        &["remat_policy: custom", "out_proj: offload", "decoder_block: mixtral", "base_moe_mlp_dim: 14336"],
        &[],
    );
    let products = under(&Case { model: "mixtral-8x7b", ..MAXTEXT }, "custom:device(mlpwo)");
    check(&products, &["moe_mlpwo: device"], &["mlpwo"]);
}

#[test]
fn what_a_framework_has_no_words_for_is_told_apart_from_what_it_leaves_open() {
    let shared = plan(layout(4, 2, ZeroStage::OptimizerStates));
    assert_eq!(CORE.lacking(0, &shared), "");
    assert!(CORE.megatron(&shared).iter().any(|line| line.starts_with("# --vocab-size: NullTokenizer adds 1")));
    let offload = TrainingPlan { activations: "custom:offload(mlpwi)".parse().unwrap(), ..shared.clone() };
    let lacking = CORE.lacking(0, &offload);
    assert!(lacking.starts_with("recompute custom:offload(mlpwi): Megatron-LM has no module for "), "{lacking}");
    assert!(lacking.contains("mlp.gate_up.up in host memory"), "{lacking}");
    let late = TrainingPlan { schedule: PipelineSchedule::ZbH1, optimizer: Optimizer::Adafactor, ..shared.clone() };
    let lacking = CORE.lacking(0, &late);
    assert!(lacking.starts_with("schedule ZB-H1: ") && lacking.contains("; optimizer adafactor: "), "{lacking}");
    assert!(MAXTEXT.lacking(1, &shared).starts_with("schedule 1F1B: MaxText runs all forward passes first"));
    let alone = plan(layout(2, 1, ZeroStage::Parameters));
    for policy in maxtext_policies() {
        let plan = TrainingPlan { activations: policy.clone().into(), ..alone.clone() };
        assert_eq!(MAXTEXT.lacking(1, &plan), "", "{}", plan.activations);
        let name = MAXTEXT
            .maxtext(&plan)
            .iter()
            .find_map(|line| line.strip_prefix("remat_policy: ").map(str::to_owned))
            .unwrap();
        assert_eq!(name.parse::<ActivationPolicy>().unwrap(), policy);
    }
    let split = shared.layout.chunk_split(32).unwrap();
    let block =
        TrainingPlan { activations: workloads::StagePolicies::from_full_recompute_layers(1, &split), ..shared.clone() };
    let lines = CORE.megatron(&block);
    for line in ["--recompute-granularity full", "--recompute-method block", "--recompute-num-layers 1"] {
        assert!(lines.iter().any(|written| written == line), "{line}: {lines:?}");
    }
    assert!(MAXTEXT.lacking(1, &block).contains("recompute by stage: MaxText has one policy"));
    let none = TrainingPlan { activations: ActivationPolicy::None.into(), ..alone };
    assert!(MAXTEXT.lacking(1, &none).starts_with("recompute none: "));
}

#[test]
fn experts_are_dispatched_as_they_are_timed() {
    let mixtral = Case { model: "mixtral-8x7b", ..CORE };
    let layout = Layout { expert: 4, ..layout(4, 1, ZeroStage::None) };
    let lines = mixtral.megatron(&plan(layout));
    check(&lines, &["--num-experts 8", "--moe-token-dispatcher-type alltoall", "--expert-model-parallel-size 4"], &[]);
    assert!(!lines.iter().any(|line| line.starts_with("--expert-tensor-parallel-size")), "Megatron-LM's own default");
    let deepseek = Case { model: "deepseek-v3", ..CORE }.megatron(&plan(Layout { expert: 4, ..layout }));
    check(&deepseek, &["--moe-router-num-groups 8", "--moe-router-group-topk 4"], &[]);
    let lines = mixtral.megatron(&plan(layout.with_expert_tensor_degree(2)));
    check(&lines, &["--expert-model-parallel-size 4", "--expert-tensor-parallel-size 2"], &[]);
}

#[test]
fn what_a_framework_cannot_be_is_refused() {
    for model in ["bert-large", "opt-350m"] {
        for framework in 0..2 {
            let error = Case { model, ..CORE }.write(framework, &plan(Layout::default())).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--emit: {model} has ")), "{error}");
        }
    }
    let bert = Case { model: "megatron-bert", ..CORE };
    assert!(bert.megatron(&plan(Layout::default())).iter().any(|line| line.starts_with("# not causal")));
    assert!(bert.write(1, &plan(Layout::default())).is_err());
}

#[test]
fn mixers_without_settings_are_refused_by_name() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/tests/transformers");
    for (name, feature) in [
        ("qwen3_next", Some("layers of linear attention")),
        ("minimax", Some("layers of linear attention")),
        ("deepseek_v32", Some("attention to tokens that an indexer chooses")),
        ("jamba", Some("state-space scans")),
        ("falcon_h1", Some("state-space scans")),
        ("laguna", Some("layers that differ in their attention heads")),
        ("qwen3_next_full", Some("a gate on attention's result")),
        ("llama", None),
    ] {
        let model = Model::load_file(&folder.join(format!("{name}.json"))).unwrap();
        let first = mixer_features(&model).into_iter().find(|(has, _)| *has);
        assert_eq!(first.map(|(_, feature)| feature), feature, "{name}");
    }
}

#[test]
fn nodes_are_named_in_the_order_of_their_ranks() {
    let mapped = |devices: &[u32]| RankMappingRecord {
        devices: devices.to_vec(),
        unit_devices: 2,
        before_s: 1.0,
        ordered_s: 1.0,
        order: Vec::new(),
        after_s: 1.0,
        without_links_s: 1.0,
        whole_units: false,
        lower_bound_s: 1.0,
        status: "optimal",
        gap: 0.0,
        axes: Vec::new(),
        moves: 0,
    };
    assert!(describe_placement(&mapped(&[4, 5, 0, 1, 2, 3])).ends_with("from 0: 2,0,1"));
    assert!(describe_placement(&mapped(&[4, 0, 5, 1, 2, 3])).ends_with("from 0: 4,0,5,1,2,3"));
}

#[test]
fn what_changes_no_time_but_what_is_trained_is_written_as_the_config_has_it() {
    let config = workloads::model::config_text("llama3-70b", &Default::default()).unwrap();
    let numerics = ModelNumerics::from_config(&config);
    let plain = ModelNumerics::default();
    assert_eq!(numerics, ModelNumerics { rotary_base: Some(500_000.0), norm_epsilon: Some(1e-5), ..plain });
    let of_model =
        |name: &str| ModelNumerics::from_config(&workloads::model::config_text(name, &Default::default()).unwrap());
    assert_eq!(of_model("llama3.1-8b").rotation_factor, Some(8.0));
    assert_eq!(of_model("gpt-oss-20b").gate_limit, Some(7.0));
    let deepseek = RouterNumerics {
        sigmoid: true,
        balancing_bias: true,
        scaling_factor: Some(2.5),
        balance_loss: Some(0.001),
        balances_sequences: true,
        ..RouterNumerics::default()
    };
    assert_eq!(of_model("deepseek-v3").router, deepseek);
    let lite = of_model("deepseek-v2-lite").router;
    assert!(lite.softmax_over_all && !lite.sigmoid && lite.scaling_factor.is_none());
    assert_eq!(of_model("glm-4.5").router.scaling_factor, Some(2.5));
    assert!(of_model("minimax-m2").router.sigmoid && !of_model("mixtral-8x7b").router.softmax_over_all);
    assert_eq!(ModelNumerics::from_config("{\"rope_parameters\": {\"rope_theta\": 1e6}}").rotary_base, Some(1e6));
    assert_eq!(
        (ModelNumerics::from_config("no JSON"), workloads::model::config_text("no-model", &Default::default())),
        (ModelNumerics::default(), None)
    );
}

/// Returns a plan with a policy that treats every tensor of a layer as the techniques do.
fn by_tensor(case: &Case, techniques: &[&str]) -> TrainingPlan {
    let (model, stack) = (Model::load(case.model).unwrap(), SoftwareStack::load(case.stack).unwrap());
    let none =
        TrainingPlan { activations: ActivationPolicy::None.into(), ..plan(layout(4, 2, ZeroStage::OptimizerStates)) };
    let techniques = techniques.iter().map(|name| name.parse::<workloads::Technique>().unwrap()).collect();
    let graph = step::lower_plan(&model, &TrainingPlan { techniques, ..none.clone() }, &stack).unwrap();
    let layer = &graph.segment(workloads::SegmentKind::Layer).unwrap().graph;
    let treatment = ActivationPolicy::None.treatment_with_extent(layer, stack.replay_extent());
    TrainingPlan { activations: ActivationPolicy::from_treatment(layer, &treatment).into(), ..none }
}

fn with(techniques: &[&str], activations: ActivationPolicy) -> TrainingPlan {
    TrainingPlan {
        techniques: techniques.iter().map(|name| name.parse::<workloads::Technique>().unwrap()).collect(),
        activations: activations.into(),
        ..plan(layout(4, 2, ZeroStage::OptimizerStates))
    }
}

#[test]
fn a_technique_that_is_a_policy_is_written_as_this_policy() {
    let titan = Case { stack: "torchtitan", ..CORE };
    for (techniques, beside, policy) in [
        (&["megatron-full"][..], ActivationPolicy::None, ActivationPolicy::Full),
        (&["megatron-selective"], ActivationPolicy::None, ActivationPolicy::Selective),
        (&["megatron-selective"], ActivationPolicy::Full, ActivationPolicy::Full),
        (&["megatron-full", "megatron-selective"], ActivationPolicy::None, ActivationPolicy::Full),
        (&["recompute-mlp"], ActivationPolicy::Full, ActivationPolicy::Full),
        // The dense model has no tensors of latent attention or of experts, so that these techniques change nothing.
        (&["recompute-mla-up-proj"], ActivationPolicy::None, ActivationPolicy::None),
        (&["recompute-moe", "offload-moe-act"], ActivationPolicy::Full, ActivationPolicy::Full),
    ] {
        for (case, framework) in [(&CORE, 0), (&MAXTEXT, 1), (&titan, 2)] {
            let (asked, meant) = (with(techniques, beside.clone()), with(&[], policy.clone()));
            assert_eq!(case.write(framework, &asked), case.write(framework, &meant), "{techniques:?} beside {beside}");
        }
    }
    // In a mix of policies, the technique replaces only the policy `none`.
    let runs =
        |policies: [ActivationPolicy; 2]| policies.map(|policy| workloads::LayerRun { layers: 8, policy }).to_vec();
    let mix = |policies: [ActivationPolicy; 2]| {
        workloads::StagePolicies::from_chunk_mixes(vec![runs(policies.clone()), runs(policies)])
    };
    let asked = TrainingPlan {
        activations: mix([ActivationPolicy::Full, ActivationPolicy::None]),
        ..with(&["megatron-selective"], ActivationPolicy::None)
    };
    let meant = TrainingPlan {
        activations: mix([ActivationPolicy::Full, ActivationPolicy::Selective]),
        techniques: workloads::Techniques::default(),
        ..asked.clone()
    };
    assert_eq!(CORE.write(0, &asked), CORE.write(0, &meant));
    // The modules of both techniques are in one list.
    let lines = CORE.megatron(&with(&["megatron-selective", "recompute-mlp"], ActivationPolicy::None));
    check(&lines, &["--recompute-modules core_attn mlp"], &["--recompute-method"]);
    assert_eq!(lines.iter().filter(|line| line.starts_with("--recompute-granularity")).count(), 1, "{lines:#?}");
}

#[test]
fn modules_are_named_as_megatron_takes_them() {
    let modules = ["recompute-layernorm", "recompute-mla-up-proj", "offload-core-attn", "offload-attn-proj"];
    let plan = with(&modules, ActivationPolicy::None);
    let lines = [
        "--recompute-granularity selective",
        "--recompute-modules layernorm",
        "--fine-grained-activation-offloading",
        "--offload-modules core_attn attn_proj",
    ];
    check(&CORE.megatron(&plan), &lines, &["--recompute-method"]);
    assert_eq!(CORE.lacking(0, &plan), "");
    let alone = CORE.lacking(0, &with(&["offload-attn-proj"], ActivationPolicy::None));
    assert!(alone.starts_with("attn_proj offloaded without core_attn"), "{alone}");
    let states = ["--optimizer-cpu-offload", "--optimizer-offload-fraction 1.0", "--use-precision-aware-optimizer"];
    check(&CORE.megatron(&with(&["zero-offload"], ActivationPolicy::None)), &states, &[]);
    assert_eq!(
        CORE.lacking(0, &with(&["lomo"], ActivationPolicy::None)),
        "technique lomo: Megatron-LM has no argument for it"
    );
    let lacking = MAXTEXT.lacking(1, &with(&["lomo"], ActivationPolicy::Full));
    assert!(lacking.contains("technique lomo: no setting of MaxText is written for it"), "{lacking}");
    check(
        &CORE.megatron(&with(&["megatron-full"], ActivationPolicy::None)),
        &["--recompute-granularity full"],
        &["--recompute-modules"],
    );
}

#[test]
fn a_choice_of_tensors_is_said_by_modules_and_names_where_they_do_the_same() {
    for modules in [
        &["recompute-layernorm", "recompute-mlp"][..],
        &["offload-core-attn", "offload-attn-proj"],
        &["recompute-mlp", "offload-qkv-linear"],
    ] {
        let chosen = by_tensor(&CORE, modules);
        assert!(matches!(chosen.activations.uniform_policy(), Some(ActivationPolicy::Tensors(_))));
        let names = |prefix: &str| {
            modules.iter().filter_map(|m| m.strip_prefix(prefix)).map(|m| m.replace('-', "_")).collect::<Vec<_>>()
        };
        let lines = CORE.megatron(&chosen);
        for (flag, wanted) in [("--recompute-modules ", names("recompute-")), ("--offload-modules ", names("offload-"))]
        {
            let said = lines.iter().find_map(|line| line.strip_prefix(flag)).unwrap_or_default();
            for name in &wanted {
                assert!(said.split(' ').any(|word| word == name), "{modules:?}: {lines:#?}");
            }
        }
        assert_eq!(CORE.lacking(0, &chosen), "", "{modules:?}");
    }
    let model = Model::load("llama3-8b").unwrap();
    let stack = SoftwareStack::load("maxtext").unwrap();
    let mut plan = plan(layout(2, 1, ZeroStage::Parameters));
    let graph = workloads::TrainingGraph::new(&model, &step::lowering_of_plan(&model, &plan, &stack)).unwrap();
    let layer = &graph.segment(workloads::SegmentKind::Layer).unwrap().graph;
    let custom: ActivationPolicy = "custom:offload(context,qkv_proj)+device(mlpwi)".parse().unwrap();
    plan.activations = ActivationPolicy::from_treatment(layer, &custom.treatment_of_segment(layer)).into();
    assert_eq!(MAXTEXT.lacking(1, &plan), "");
    let lines =
        ["remat_policy: custom", "context: offload", "query_proj: offload", "mlpwi_0: device", "mlpwi_1: device"];
    check(&MAXTEXT.maxtext(&plan), &lines, &["mlpwo", "out_proj"]);
    // A part of a tensor has no name in MaxText, and is reported by its tensor.
    plan.activations = "tensors:offload(attention.core.out*0.5)+device(mlp.gate_up.gate)".parse().unwrap();
    let lacking = MAXTEXT.lacking(1, &plan);
    assert!(lacking.contains("attention.core.out in host memory for 0.5 of its tokens"), "{lacking}");
    let again = "tensors:offload(attention.core.out*0.5)+rest(recompute)";
    plan.activations = again.parse().unwrap();
    for lacking in [MAXTEXT.lacking(1, &plan), CORE.lacking(0, &plan)] {
        assert!(
            lacking.contains("attention.core.out in host memory for 0.5 of its tokens, the others again"),
            "{lacking}"
        );
    }
    let stored = TrainingPlan { activations: "tensors:nvme(attention.core.out)".parse().unwrap(), ..plan };
    assert!(CORE.lacking(0, &stored).contains("attention.core.out on NVMe"), "{}", CORE.lacking(0, &stored));
}

#[test]
fn torch_counts_the_products_of_a_layer() {
    let titan = Case { stack: "torchtitan", ..CORE };
    let of = |policy: &str| {
        let plan = TrainingPlan { activations: policy.parse().unwrap(), ..plan(layout(8, 1, ZeroStage::Parameters)) };
        (titan.lines(2, &plan), titan.lacking(2, &plan))
    };
    let (lines, _) = of("selective_per_operator");
    let head =
        ["import torch", "from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts"];
    // The products are query, key, value, output, gate, up and down, in this order. Every second one is saved: query,
    // value and gate. The last one, down, is not, because no operator reads its result. The scattered sum of the output
    // is saved, but not its product.
    let saved = ["SAVED_PRODUCTS = {0, 2, 4}", "SAVED_SUMS = {0}", "SAVE_ATTENTION = True"];
    check(&lines, &[&head[..], &saved].concat(), &[]);
    assert!(of("full").0.iter().all(|line| line.starts_with('#')) && of("full").1.is_empty());
    assert!(
        of("custom:offload(context)").1.contains("offloaded: attention.core"),
        "{}",
        of("custom:offload(context)").1
    );
    let again = of("tensors:offload(attention.core.out*0.5)+rest(recompute)").1;
    assert!(
        again.contains("for 0.5 of the tokens, with the others recomputed: a checkpoint applies to all tokens"),
        "{again}"
    );
    let norms = of("tensors:device(attention.norm.out)").1;
    assert!(norms.contains("that the dispatcher cannot distinguish: attention.norm"), "{norms}");
}

#[test]
fn recipes_of_megatron_bridge_have_the_plan_in_fields() {
    let shared = plan(Layout { virtual_stages: 2, ..layout(4, 4, ZeroStage::OptimizerStates) });
    let written = CORE.bridge(&shared);
    let fields = [
        "model.seq_length = 2048",
        "model.tensor_model_parallel_size = 8",
        "model.pipeline_model_parallel_size = 4",
        "model.virtual_pipeline_model_parallel_size = 2",
        "model.sequence_parallel = True",
        "model.recompute_granularity = \"full\"",
        "model.recompute_modules = None",
        "model.vocab_size = None",
        "use_distributed_optimizer=True,",
        "overlap_param_gather=True,",
        "tp_comm_overlap=True,",
        "global_batch_size=512,",
        "grad_reduce_in_fp32=True,",
        "pretrain(recipe(), forward_step)",
    ];
    check(&written, &fields, &["model.moe", "model.hidden_size", "overlap_p2p_comm"]);
    let provider = "model = AutoBridge.from_hf_pretrained(\"meta-llama/Meta-Llama-3-8B\")";
    assert!(written.iter().any(|line| line.starts_with(provider)), "{written:#?}");
    let old = Case { stack: "megatron", chip: "a100_80gb_sxm", ..CORE };
    check(&old.bridge(&shared), &["overlap_p2p_comm=False,", "batch_p2p_comm=True,"], &[]);
    let alone = Case { model: "gpt3-175b", ..CORE };
    let dense = plan(layout(4, 8, ZeroStage::None));
    check(
        &alone.bridge(&dense),
        &["model = GPTModelProvider(", "num_layers=96,"],
        &["normalization", "import torch.nn"],
    );
    let experts = Case { model: "mixtral-8x7b", ..CORE };
    let routed = plan(Layout { expert: 4, tensor: 2, ..layout(4, 2, ZeroStage::None) });
    check(&experts.bridge(&routed), &["num_moe_experts=8,", "expert_model_parallel_size=4,"], &["moe_layer_freq"]);
    // Megatron Bridge lacks the same parts as Megatron-LM's arguments.
    let half = TrainingPlan { optimizer: Optimizer::Adafactor, ..plan(layout(4, 1, ZeroStage::None)) };
    assert_eq!(CORE.lacking(3, &half), CORE.lacking(0, &half));
    assert!(CORE.lacking(3, &half).starts_with("optimizer adafactor"));
    let bert = Case { model: "bert-large", ..CORE };
    let refused = bert.write(3, &plan(layout(4, 1, ZeroStage::None))).unwrap_err();
    assert!(refused.to_string().contains("does not write for Megatron Bridge"), "{refused}");
}

#[test]
fn every_argument_of_megatron_has_a_field_or_follows_from_one() {
    let sharded = plan(layout(4, 1, ZeroStage::Parameters));
    let pipelined = plan(layout(4, 2, ZeroStage::Parameters));
    let narrow = Precision { state: Some(DataType::Bf16), ..Precision::MIXED_BF16 };
    let aware = TrainingPlan { precision: narrow, ..plan(layout(4, 1, ZeroStage::OptimizerStates)) };
    let fp8 = Precision::MIXED_BF16.with_product_type(DataType::Mxfp8);
    let small = TrainingPlan { precision: fp8, ..plan(layout(4, 1, ZeroStage::None)) };
    for model in ["llama3-8b", "gpt3-175b", "deepseek-v3", "gpt-oss-20b", "qwen3-30b-a3b"] {
        for plan in [&sharded, &pipelined, &aware, &small] {
            let lacking = Case { model, ..CORE }.lacking(3, plan);
            assert!(!lacking.contains("no field of Megatron Bridge"), "{model}: {lacking}");
        }
    }
}
