//! Published checkpoints: built-in models and every file of `tests/configs` give the published number of parameters.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_workloads as workloads;
use sim::units::Flops;
use std::path::{Path, PathBuf};
use workloads::import::hugging_face::FamilyCoverage;
use workloads::model::Model;
use workloads::training::Attention;
use workloads::{Lowering, TrainingGraph};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs").join(format!("{name}.json"))
}

/// Loads a built-in model by name, or a file of `tests/configs`.
fn load(name: &str) -> Model {
    let path = file(name);
    let loaded = if path.is_file() { Model::load_file(&path) } else { Model::load(name) };
    loaded.unwrap_or_else(|error| panic!("{error}"))
}

/// (model, parameters). Counts are those of the checkpoints on Hugging Face, or of the models that transformers 5.17
/// builds from the files (DBRX, GLM 4.5, MiniMax M2, Nemotron 3, Qwen3-Coder, Qwen3-Next, DeepSeek-V3.2); tied matrices
/// count once. Only the text model of multimodal checkpoints counts.
const EXACT: &[(&str, u64)] = &[
    ("bart_base", 139_420_416),
    ("bloom_176b", 176_247_271_424),
    ("bloom_560m", 559_214_592),
    ("clip_vit_base_patch32", 63_428_096),
    ("clip_vit_base_patch32_vision", 87_849_216),
    ("command_r", 34_980_831_232),
    ("command_r_plus", 103_810_674_688),
    ("dbrx", 131_596_523_520),
    ("deepseek-v3.2", 671_877_929_216),
    ("deepseek_moe_16b", 16_375_728_128),
    ("deepseek_v2", 235_741_434_880),
    ("deepseek_v2_lite", 15_706_484_224),
    ("dit_xl_2", 674_834_720),
    ("dit_xl_2_256", 749_826_464),
    ("falcon-40b", 41_303_293_952),
    ("falcon-7b", 6_921_720_704),
    ("flan_t5_base", 247_577_856),
    ("flan_t5_xxl", 11_135_332_352),
    ("gemma-2-9b", 9_241_705_984),
    ("gemma-3-27b", 27_009_346_304),
    ("gemma_2_27b", 27_227_128_320),
    ("gemma_2_2b", 2_614_341_888),
    ("gemma_2b", 2_506_172_416),
    ("gemma_3_1b", 999_885_952),
    ("gemma_3_4b", 3_880_263_168),
    ("gemma_7b", 8_537_680_896),
    ("glm-4.5", 352_797_814_784),
    ("glm-4.5-air", 106_852_245_504),
    ("gpt-oss-120b", 116_829_156_672),
    ("gpt-oss-20b", 20_914_757_184),
    ("gpt2", 124_439_808),
    ("gpt_j_6b", 6_050_882_784),
    ("gpt_neox_20b", 20_554_567_680),
    ("llama3.1-405b", 405_853_388_800),
    ("llama3.1-8b", 8_030_261_248),
    ("llama3.2-1b", 1_235_814_400),
    ("llama3.2-3b", 3_212_749_824),
    ("mamba2_130m", 128_989_632),
    ("mamba2_2_7b", 2_702_599_680),
    ("mamba_codestral_7b", 7_285_403_648),
    ("internlm2_7b", 7_737_708_544),
    ("mbart_large_50", 610_879_488),
    ("minimax-m2", 228_689_748_992),
    ("mistral-7b", 7_248_023_552),
    ("mistral_7b_v0_1", 7_241_732_096),
    ("mistral_nemo_12b", 12_247_782_400),
    ("mistral_small_24b", 23_572_403_200),
    ("mixtral-8x22b", 140_620_634_112),
    ("modernbert_base", 149_655_232),
    ("mpt_7b", 6_649_286_656),
    ("nemotron-3-nano-30b-a3b", 31_577_937_344),
    ("nemotron-3-super-120b-a12b", 120_668_687_360),
    ("olmo_1b", 1_176_764_416),
    ("olmo_7b", 6_888_095_744),
    ("olmoe_1b_7b", 6_919_161_856),
    ("opt_350m", 331_196_416),
    ("phi-4", 14_659_507_200),
    ("phi_2", 2_779_683_840),
    ("phi_3_mini_4k", 3_821_079_552),
    ("phi_4_mini", 3_836_021_760),
    ("pythia_160m", 162_322_944),
    ("pythia_6_9b", 6_857_302_016),
    ("qwen1_5_moe_a2_7b", 14_315_784_192),
    ("qwen2.5-72b", 72_706_203_648),
    ("qwen2.5-7b", 7_615_616_512),
    ("qwen2_5_0_5b", 494_032_768),
    ("qwen2_5_1_5b", 1_543_714_304),
    ("qwen3-235b-a22b", 235_093_634_560),
    ("qwen3-30b-a3b", 30_532_122_624),
    ("qwen3-32b", 32_762_123_264),
    ("qwen3-8b", 8_190_735_360),
    ("qwen3-coder-480b-a35b", 480_154_875_392),
    ("qwen3-next-80b-a3b", 79_674_391_296),
    ("qwen3_0_6b", 596_049_920),
    ("qwen3_4b", 4_022_468_096),
    ("roberta_base", 124_697_433),
    ("roberta_large", 355_412_057),
    ("smollm2_135m", 134_515_008),
    ("smollm3_3b", 3_075_098_624),
    ("stablelm_2_1_6b", 1_644_515_328),
    ("starcoder", 15_517_456_384),
    ("starcoder2_3b", 3_030_371_328),
    ("starcoder2_7b", 7_173_923_840),
    ("t5_11b", 11_307_321_344),
    ("t5_base", 222_903_552),
    ("t5_large", 737_668_096),
    ("t5_small", 60_506_624),
    ("tinyllama_1_1b", 1_100_048_384),
    ("vit_base_patch16_224", 86_567_656),
    ("vit_large_patch16_224", 304_326_632),
    ("whisper_large_v3", 1_543_490_560),
];

/// (model, parameters of the checkpoint, number of the routers' balance biases among them). Gradients do not train
/// these biases.
const WITH_BALANCE: &[(&str, u64, u64)] =
    &[("deepseek-v3", 671_026_419_200, 58 * 256), ("kimi-k2", 1_026_408_232_448, 60 * 384)];

/// (model, billions of parameters to the stated digits), for models whose published count is rounded or whose
/// checkpoint holds more than the text model.
const ROUNDED: &[(&str, &str)] = &[
    ("grok-1", "316"),
    ("llama-nemotron-super-49b", "50"),
    ("llama-nemotron-ultra-253b", "253"),
    ("llama4-maverick", "401"),
    ("llama4-scout", "108"),
    ("minimax-text-01", "456"),
    ("modernbert_large", "0.396"),
    ("moonlight_16b_a3b", "16.0"),
    ("nemotron-h-8b", "8.1"),
    ("olmo-2-7b", "7.3"),
    ("olmo_2_13b", "13.7"),
    ("qwen2_57b_a14b", "57.4"),
    ("qwen2_5_vl_7b", "7.6"),
];

#[test]
fn parameters_are_the_published_ones() {
    let mut wrong = Vec::new();
    let balanced = WITH_BALANCE.iter().map(|(name, all, balance)| (*name, all - balance));
    for (name, published) in EXACT.iter().copied().chain(balanced) {
        let counted = load(name).parameters();
        if counted != published {
            wrong.push(format!("{name}: {counted}, published {published}"));
        }
    }
    for (name, published) in ROUNDED {
        let digits = published.split_once('.').map_or(0, |(_, digits)| digits.len());
        let counted = load(name).parameters();
        if format!("{:.digits$}", counted as f64 / 1e9) != *published {
            wrong.push(format!("{name}: {counted}, published {published} billion"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(EXACT.len() + WITH_BALANCE.len() + ROUNDED.len() >= 60);
}

/// `coplace list models --family` reports exactly the files here as checked.
#[test]
fn every_checkpoint_is_listed_with_its_family() {
    let mut listed = Vec::new();
    for family in workloads::import::hugging_face::family_coverage() {
        for name in family.checked {
            let model = load(name);
            let read = |kind: &str| kind == model.family || format!("{kind}_text") == model.family;
            assert!(
                family.model_types.iter().any(|kind| read(kind)),
                "{name}: {} is not of {:?}",
                model.family,
                family.model_types
            );
            listed.push(name);
        }
    }
    let of = |list: fn(&FamilyCoverage) -> Vec<&'static str>| {
        let mut names: Vec<&str> = workloads::import::hugging_face::family_coverage().iter().flat_map(list).collect();
        names.sort_unstable();
        names
    };
    let mut rounded: Vec<&str> = ROUNDED.iter().map(|(name, _)| *name).collect();
    rounded.sort_unstable();
    assert_eq!(of(FamilyCoverage::models_to_published_digits), rounded);
    assert_eq!(
        of(FamilyCoverage::models_by_active_parameters),
        ACTIVE.iter().map(|(name, ..)| *name).collect::<Vec<_>>()
    );
    listed.sort_unstable();
    let mut counted: Vec<&str> = EXACT.iter().map(|(name, _)| *name).collect();
    counted.extend(WITH_BALANCE.iter().map(|(name, ..)| *name));
    counted.extend(ROUNDED.iter().map(|(name, _)| *name));
    counted.sort_unstable();
    assert_eq!(listed, counted);
}

/// (model, published billions of active parameters, true if they include the lookup table).
const ACTIVE: &[(&str, f64, bool)] = &[
    ("dbrx", 36.0, true),
    ("deepseek-v3", 37.0, false),
    ("deepseek_moe_16b", 2.8, true),
    ("deepseek_v2", 21.0, true),
    ("deepseek_v2_lite", 2.4, false),
    ("glm-4.5", 32.0, false),
    ("glm-4.5-air", 12.0, false),
    ("gpt-oss-120b", 5.1, false),
    ("gpt-oss-20b", 3.6, false),
    ("kimi-k2", 32.0, false),
    ("llama4-scout", 17.0, true),
    ("minimax-m2", 10.0, false),
    ("mixtral-8x22b", 39.0, true),
    ("nemotron-3-nano-30b-a3b", 3.2, false),
    ("nemotron-3-super-120b-a12b", 12.0, false),
    ("olmoe_1b_7b", 1.3, true),
    ("qwen1_5_moe_a2_7b", 2.7, true),
    ("qwen2_57b_a14b", 14.0, true),
    ("qwen3-235b-a22b", 22.0, true),
    ("qwen3-30b-a3b", 3.3, true),
    ("qwen3-coder-480b-a35b", 35.0, true),
    ("qwen3-next-80b-a3b", 3.0, false),
];

/// Published counts are rounded, so half a unit of the last digit is allowed. Some whole billions are truncated, so one
/// billion is allowed for them.
#[test]
fn active_parameters_are_the_published_ones() {
    for (name, published, table) in ACTIVE {
        let model = load(name);
        let lookup = if *table || model.tied_head { 0 } else { model.vocabulary * model.embedding_width };
        let counted = (model.active_parameters() - lookup) as f64 / 1e9;
        let unit = if published.fract() == 0.0 { 1.0 } else { 0.06 };
        assert!((counted - published).abs() <= unit, "{name}: {counted} billion, published {published}");
    }
    // MiniMax's count leaves out the matrices of embedding and head.
    let model = load("minimax-text-01");
    let counted = (model.active_parameters() - 2 * model.vocabulary * model.hidden) as f64 / 1e9;
    assert_eq!(format!("{counted:.1}"), "45.9");
}

/// Returns all files and the built-in models that are counted, with their names.
fn all() -> Vec<(String, Model)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(file("x").parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "json") {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            all.push((name.clone(), load(&name)));
        }
    }
    let counted = workloads::import::hugging_face::family_coverage().into_iter().flat_map(|family| family.checked);
    all.extend(counted.filter(|name| !file(name).is_file()).map(|name| (name.to_owned(), load(name))));
    all
}

/// Tokens per sequence. Every expert of every file gets a whole number of slots in micro-batches of two.
const SEQUENCE: u64 = 480;

#[test]
fn operators_hold_the_parameters_and_do_the_work_of_the_closed_forms() {
    // Models that can have modules for further tokens are tested with one module too.
    let further = all()
        .into_iter()
        .filter_map(|(name, model)| Some((format!("{name} + 1"), model.with_further_token_modules(1).ok()?)));
    let further: Vec<(String, Model)> = further.collect();
    assert!(further.len() > 50, "{}", further.len());
    // Models with an indexer are left out, because their kernels and the closed form differ in the indexer's
    // operations. `tests/mixers.rs` tests them.
    let all = all().into_iter().chain(further).filter(|(_, model)| model.variations.indexer.is_none());
    for (name, model) in all {
        for fused in [false, true] {
            // With 480 tokens, the chunks of scans and of linear attention, and Maverick's experts, would be padded. So
            // these models get 512.
            let fills =
                model.experts.is_none_or(|experts| (2 * SEQUENCE * experts.top_k).is_multiple_of(experts.count));
            let chunked = model.variations.scan.is_some() || model.variations.linear.is_some();
            let length = if chunked || !fills { 512 } else { SEQUENCE.min(model.max_sequence) };
            let lowering = Lowering {
                sequence_length: length,
                micro_batch: 2,
                attention: Attention::Unfused,
                elementwise_fusion: fused,
                ..Lowering::new(&model)
            };
            let graph = TrainingGraph::new(&model, &lowering).unwrap();
            assert_eq!(graph.parameters().per_device_count(), model.parameters(), "{name}");
            assert_eq!(graph.kernel_flops(), model.training_flops(2, length, model.vocabulary), "{name}");
            for segment in &graph.segments {
                // The backward pass of a gated delta net does not do twice the forward work, because the gradient of
                // its inverse is two large products (`tests/mixers.rs`).
                if model.variations.linear.is_some_and(|linear| linear.delta_rule) && segment.name != "head" {
                    continue;
                }
                // Input data (images, sound, the waves of a time step) have no gradient. The operations of these
                // missing gradients are added here.
                let tensors = segment.tensors();
                let reads_data = |op: &&workloads::graph::OperatorNode| {
                    op.inputs.iter().all(|id| tensors[id.index()].gradient_bytes.0 == 0)
                };
                let of_data = segment.operators().iter().filter(reads_data).flat_map(|op| &op.forward);
                let of_data: Flops = of_data.map(|step| step.kernel.flops()).sum();
                let backward = segment.backward_flops() + of_data;
                assert_eq!(backward, segment.forward_flops() * 2, "{name} {}", segment.name);
            }
        }
    }
}

/// The dense layers before the first layer with experts are in the embedding's segment, and follow activation policies
/// like all other layers.
#[test]
fn leading_layers_follow_activation_policies() {
    use workloads::{ActivationPolicy, SegmentKind};
    let model = load("deepseek-v3");
    let graph = TrainingGraph::new(&model, &Lowering { sequence_length: SEQUENCE, ..Lowering::new(&model) }).unwrap();
    let embedding = &graph.segment(SegmentKind::Embedding).unwrap().graph;
    let layer = &graph.segment(SegmentKind::Layer).unwrap().graph;
    let kept = |policy: &str| {
        policy.parse::<ActivationPolicy>().unwrap().treatment_of_segment(embedding).kept_bytes(embedding).0
    };
    let stream = 2 * SEQUENCE * model.hidden;
    // The segment keeps the token ids, and the input of each of its three layers. The next segment keeps the last
    // layer's result.
    assert_eq!(kept("full"), 8 * SEQUENCE + 3 * stream);
    let full = "full".parse::<ActivationPolicy>().unwrap().treatment_of_segment(embedding);
    assert!(!full.recompute.contains(embedding.find_operator("embedding.token").unwrap().id), "only layers run again");
    assert!(full.recompute.contains(embedding.find_operator("leading_layer_2.mlp.gate_up").unwrap().id));
    // The three leading layers have the same attention as layers with experts, so they keep three times the attention
    // tensors of one such layer.
    let attention = |policy: &str| {
        let treatment = policy.parse::<ActivationPolicy>().unwrap().treatment_of_segment(layer);
        treatment.kept_bytes(layer).0 - stream
    };
    assert_eq!(kept("save_qkv_proj"), kept("full") + 3 * attention("save_qkv_proj"));
    assert_eq!(kept("none") - kept("selective"), 3 * (attention("none") - attention("selective")));
    assert!(kept("none") > kept("minimal") && kept("minimal") > kept("full"));
}

/// Returns the checkpoints whose operations are checked against a formula. The next two tests check them, and
/// `tests/dit.rs` checks DiT.
fn by_formula() -> Vec<&'static str> {
    let names: Vec<&str> =
        workloads::import::hugging_face::family_coverage().iter().flat_map(FamilyCoverage::models_by_formula).collect();
    assert_eq!(names.len(), 22 + 7 + 2);
    names
}

/// Training operations per token at 4096 tokens, from the published sizes: 6 per active weight, and for scores and
/// context 6 x (query width + value width) per layer and token of the sequence.
#[test]
fn operations_per_token_are_the_families_formulas() {
    const S: u128 = 4096;
    let deepseek_v3 = 7168 * 1536 + 1536 * 128 * 192 + 7168 * (512 + 64) + 512 * 128 * (128 + 128) + 128 * 128 * 7168;
    let deepseek_lite = 2048 * 16 * 192 + 2048 * (512 + 64) + 512 * 16 * (128 + 128) + 16 * 128 * 2048;
    let cases: &[(&str, u128, u128)] = &[
        // (file, active weights, layers x (query width + value width))
        ("bloom_176b", 70 * 12 * 14336 * 14336 + 14336 * 250_880, 70 * 2 * 14336),
        ("command_r", 40 * (4 * 8192 * 8192 + 3 * 8192 * 22528) + 8192 * 256_000, 40 * 2 * 8192),
        (
            "deepseek_v2_lite",
            27 * deepseek_lite + 3 * 2048 * 10944 + 26 * (2048 * 64 + 8 * 3 * 2048 * 1408) + 2048 * 102_400,
            27 * 16 * (192 + 128),
        ),
        (
            "deepseek-v3",
            61 * deepseek_v3 + 3 * 3 * 7168 * 18432 + 58 * (7168 * 256 + 9 * 3 * 7168 * 2048) + 7168 * 129_280,
            61 * 128 * (192 + 128),
        ),
        ("falcon-7b", 32 * (4544 * (2 * 4544 + 2 * 64) + 8 * 4544 * 4544) + 4544 * 65024, 32 * 2 * 4544),
        ("gemma-2-9b", 42 * (3584 * (2 * 4096 + 2 * 2048) + 3 * 3584 * 14336) + 3584 * 256_000, 42 * 2 * 4096),
        ("gemma_7b", 28 * (3072 * 4 * 4096 + 3 * 3072 * 24576) + 3072 * 256_000, 28 * 2 * 4096),
        ("gpt_neox_20b", 44 * 12 * 6144 * 6144 + 6144 * 50432, 44 * 2 * 6144),
        (
            "gpt-oss-20b",
            24 * (2880 * (2 * 4096 + 2 * 512) + 2880 * 32 + 4 * 3 * 2880 * 2880) + 2880 * 201_088,
            24 * 2 * 4096,
        ),
        ("llama3.1-8b", 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336) + 4096 * 128_256, 32 * 2 * 4096),
        (
            "llama4-scout",
            48 * (5120 * (2 * 5120 + 2 * 1024) + 5120 * 16 + 2 * 3 * 5120 * 8192) + 5120 * 202_048,
            48 * 2 * 5120,
        ),
        ("mistral_nemo_12b", 40 * (5120 * (2 * 4096 + 2 * 1024) + 3 * 5120 * 14336) + 5120 * 131_072, 40 * 2 * 4096),
        (
            "mixtral-8x22b",
            56 * (6144 * (2 * 6144 + 2 * 1024) + 6144 * 8 + 2 * 3 * 6144 * 16384) + 6144 * 32000,
            56 * 2 * 6144,
        ),
        ("mpt_7b", 32 * 12 * 4096 * 4096 + 4096 * 50432, 32 * 2 * 4096),
        ("olmo-2-7b", 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 4096 * 100_352, 32 * 2 * 4096),
        ("phi_3_mini_4k", 32 * (4 * 3072 * 3072 + 3 * 3072 * 8192) + 3072 * 32064, 32 * 2 * 3072),
        (
            "qwen1_5_moe_a2_7b",
            24 * (4 * 2048 * 2048 + 2048 * 60 + 4 * 3 * 2048 * 1408 + 3 * 2048 * 5632 + 2048) + 2048 * 151_936,
            24 * 2 * 2048,
        ),
        ("qwen2.5-7b", 28 * (3584 * (2 * 3584 + 2 * 512) + 3 * 3584 * 18944) + 3584 * 152_064, 28 * 2 * 3584),
        (
            "qwen3-30b-a3b",
            48 * (2048 * (2 * 4096 + 2 * 512) + 2048 * 128 + 8 * 3 * 2048 * 768) + 2048 * 151_936,
            48 * 2 * 4096,
        ),
        ("roberta_base", 12 * 12 * 768 * 768 + 768 * 768 + 768 * 50265, 12 * 2 * 768),
        ("starcoder", 40 * (6144 * (2 * 6144 + 2 * 128) + 2 * 6144 * 24576) + 6144 * 49152, 40 * 2 * 6144),
        ("starcoder2_3b", 30 * (3072 * (2 * 3072 + 2 * 256) + 2 * 3072 * 12288) + 3072 * 49152, 30 * 2 * 3072),
    ];
    for (name, weights, attention) in cases {
        assert!(by_formula().contains(name), "{name} is not listed");
        let model = load(name);
        let counted = model.training_flops(1, S as u64, model.vocabulary).0;
        assert_eq!(counted, S * (6 * weights + 6 * attention * S), "{name}");
    }
}

/// Training operations per token of models whose layers differ, from the published sizes. T5's sequences have the same
/// length on both sides.
#[test]
fn operations_per_token_of_layers_that_differ() {
    const S: u128 = 512;
    // Active weights of T5: encoder layers, decoder layers with two attentions each, and the head.
    let t5 = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 12 * (8 * 768 * 768 + 2 * 768 * 3072) + 768 * 32128;
    let flan = 24 * (4 * 4096 * 4096 + 3 * 4096 * 10240) + 24 * (8 * 4096 * 4096 + 3 * 4096 * 10240) + 4096 * 32128;
    // Forward operations of a scan per token. A chunk of q tokens has four products: its scores, their product with its
    // tokens, its state, and the previous state's contribution.
    let scan =
        |q: u128, groups: u128, state: u128, width: u128| 2 * (q * state * groups + q * width + 2 * state * width);
    let codestral = 4096 * (2 * 8192 + 2 * 8 * 128 + 128) + 8192 * 4096;
    let small = 768 * (2 * 1536 + 2 * 128 + 24) + 1536 * 768;
    let nemotron = 24 * codestral + 24 * 2 * 4096 * 21504 + 4 * 4096 * (2 * 4096 + 2 * 1024);
    let maverick = 48 * 5120 * (2 * 5120 + 2 * 1024) + 24 * 3 * 5120 * 16384 + 24 * (5120 * 128 + 2 * 3 * 5120 * 8192);
    let modernbert = 22 * (4 * 768 * 768 + 3 * 768 * 1152) + 768 * 768;
    let cases: &[(&str, u128, u128, u128)] = &[
        // (file, active weights, query + value widths of all attentions, forward operations of all scans)
        ("t5_base", t5, 36 * 2 * 768, 0),
        ("flan_t5_xxl", flan, 72 * 2 * 4096, 0),
        ("mamba2_130m", 24 * small + 768 * 50288, 0, 24 * scan(256, 1, 128, 1536)),
        ("mamba_codestral_7b", 64 * codestral + 4096 * 32768, 0, 64 * scan(256, 8, 128, 8192)),
        ("nemotron-h-8b", nemotron + 4096 * 131_072, 4 * 2 * 4096, 24 * scan(128, 8, 128, 8192)),
        ("llama4-maverick", maverick + 5120 * 202_048, 48 * 2 * 5120, 0),
        ("modernbert_base", modernbert + 768 * 50368, 22 * 2 * 768, 0),
    ];
    for (name, weights, attention, scans) in cases {
        assert!(by_formula().contains(name), "{name} is not listed");
        let model = load(name);
        let counted = model.training_flops(1, S as u64, model.vocabulary).0;
        assert_eq!(counted, S * (6 * weights + 6 * attention * S + 3 * scans), "{name}");
    }
    // An image has 197 tokens, and 196 of them are patches. The patch product has no input gradient. The head reads one
    // token.
    let vit = load("vit_base_patch16_224");
    let layers = 197 * (6 * 12 * 12 * 768 * 768 + 6 * 12 * 2 * 768 * 197);
    assert_eq!(vit.training_flops(1, 197, 1000).0, layers + 4 * 196 * 768 * 768 + 6 * 768 * 1000);
}

/// DeepSeek-V3's checkpoint has 3,918,786,560 numbers in bf16 and 680,571,043,840 in fp8 (Hugging Face's count of its
/// tensors; the 41,555,600 in fp32 are scales). It holds the main model and a module for one further token with copies
/// of embedding and head. README_WEIGHTS.md of its repository gives "11.5B unique parameters", the module's count
/// without the product of both inputs. A module's work is that of a layer with experts, that product, and the head
/// again.
#[test]
fn a_module_for_a_further_token_is_a_layer_a_product_and_the_head_again() {
    use workloads::SegmentKind;
    const S: u128 = 4096;
    let told = |model: &Model| model.assumptions.iter().any(|said| said.contains("num_nextn_predict_layers"));
    let main = load("deepseek-v3");
    let model = main.clone().with_further_token_modules(1).unwrap();
    assert!(told(&main) && !told(&model), "what is trained is not said to be left out");
    assert_eq!(model.parameters() + 2 * 129_280 * 7168, 3_918_786_560 + 680_571_043_840);
    assert_eq!(format!("{:.1}", (model.parameters() - main.parameters() - 2 * 7168 * 7168) as f64 / 1e9), "11.5");
    let flops = |model: &Model| model.training_flops(1, S as u64, model.vocabulary).0;
    let attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * (512 + 64) + 512 * 128 * (128 + 128) + 128 * 128 * 7168;
    let layer = attention + 7168 * 256 + 9 * 3 * 7168 * 2048;
    let weights = layer + 2 * 7168 * 7168 + 7168 * 129_280;
    assert_eq!(flops(&model) - flops(&main), S * (6 * weights + 6 * 128 * (192 + 128) * S));
    // A last stage without the embedding keeps a copy of its table, as if the head were tied to it.
    let head = |model: &Model| {
        let graph = TrainingGraph::new(
            model,
            &Lowering { sequence_length: SEQUENCE, tensor_parallel: 8, ..Lowering::new(model) },
        );
        graph.unwrap().segment(SegmentKind::Head).unwrap().clone()
    };
    assert_eq!((head(&main).tied_parameters, head(&model).tied_parameters), (0, 129_280 / 8 * 7168));
    assert_eq!(head(&model).layers_per_piece(), 1, "its layer follows policies as trailing ones do");
    for (name, modules, why) in
        [("deepseek-v3", 33, "at most 32"), ("t5_small", 1, "not a causal"), ("roberta_base", 1, "not a causal")]
    {
        let error = load(name).with_further_token_modules(modules).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(&format!("is {modules}")), "{error}");
    }
}

/// Scores that windows leave, from the published patterns. A causal layer of s tokens has w s - w^2 / 2 scores in a
/// window of w, and s^2 / 2 without a window. ModernBERT's windows cover both sides of a token.
#[test]
fn windows_leave_the_scores_that_they_leave() {
    const S: u128 = 8192;
    let seen = |window: u128| (2 * S * window - window * window) / (2 * S);
    for (name, full, windowed, width, each) in [
        ("gemma-2-9b", 21, 21, 2 * 4096, seen(4096)),
        ("gemma-3-27b", 10, 52, 2 * 32 * 128, seen(1024)),
        ("gpt-oss-20b", 12, 12, 2 * 4096, seen(128)),
        ("mistral_7b_v0_1", 0, 32, 2 * 4096, seen(4096)),
        ("modernbert_base", 8, 14, 2 * 768, 129),
    ] {
        let model = load(name);
        let whole = if model.causal { S / 2 } else { S };
        let all = model.training_flops(1, S as u64, model.vocabulary).0;
        let necessary = model.necessary_training_flops(1, S as u64, model.vocabulary).0;
        let left = full * (S - whole) + windowed * (S - each);
        assert_eq!(all - necessary, 6 * S * width * left, "{name}");
        // Fused kernels compute only the scores that windows leave, in seven products forward and backward instead of
        // six.
        let graph = |attention| {
            let lowering = Lowering { sequence_length: S as u64, attention, ..Lowering::new(&model) };
            TrainingGraph::new(&model, &lowering).unwrap().kernel_flops().0
        };
        let scores = full * whole + windowed * each;
        let (query, products) = (width / 2, [Attention::Fused, Attention::Unfused].map(graph));
        assert_eq!(
            products[1] - products[0],
            12 * query * S * S * (full + windowed) - 14 * query * S * scores,
            "{name}"
        );
    }
}

/// Under Ulysses, every context-parallel device does an equal share of latent attention, although values are narrower
/// than queries.
#[test]
fn latent_attention_is_split_by_heads() {
    use workloads::SegmentKind;
    use workloads::training::ContextMethod;
    let model = load("deepseek_v2_lite");
    let layer = |context_parallel| {
        let lowering = Lowering {
            sequence_length: 4096,
            context_parallel,
            context_method: ContextMethod::Ulysses,
            attention: Attention::Unfused,
            ..Lowering::new(&model)
        };
        TrainingGraph::new(&model, &lowering).unwrap().segment(SegmentKind::Layer).unwrap().clone()
    };
    let whole = layer(1);
    for c in [2, 4, 16] {
        assert_eq!(layer(c).forward_flops() * u128::from(c), whole.forward_flops(), "c = {c}");
        assert_eq!(layer(c).backward_flops() * u128::from(c), whole.backward_flops(), "c = {c}");
    }
}

/// Returns the bytes per token that a layer keeps in tensors whose names begin with `part`.
fn kept(name: &str, part: &str) -> u64 {
    use workloads::{RecomputeSet, SegmentKind};
    let model = load(name);
    let graph = TrainingGraph::new(&model, &Lowering { sequence_length: SEQUENCE, ..Lowering::new(&model) }).unwrap();
    let layer = &graph.segment(SegmentKind::Layer).unwrap().graph;
    let tensors = layer.kept_tensors(&RecomputeSet::none()).into_iter().map(|id| &layer.tensors[id.index()]);
    tensors.filter(|tensor| tensor.name.starts_with(part)).map(|tensor| tensor.bytes.0).sum::<u64>() / SEQUENCE
}

#[test]
fn layers_keep_what_their_variations_need() {
    // Without norms of queries and keys, attention keeps the first norm's factor and result, rotated queries and keys,
    // values, its result, and a log-sum-exp per head. Qwen 3's norms add their inputs and a factor per head.
    let (queries, keys, heads, groups) = (32 * 128, 8 * 128, 32, 8);
    let plain = 4 + 2 * 4096 + 2 * (queries + 2 * keys) + 2 * queries + 4 * heads;
    let with_norms = plain + 2 * (queries + keys) + 4 * (heads + groups);
    // The prefix also selects the residual sum after attention (2 bytes x 4,096), which the MLP's norm keeps.
    assert_eq!(kept("qwen3-8b", "layer.attention"), with_norms + 2 * 4096);
    // Latent attention keeps the low-rank vector before and after its norm, queries and keys of 192 per head, and
    // values and results of 128.
    let narrow = 2 * 2 * 512 + 4;
    let latent = 4 + 2 * 2048 + narrow + 2 * 2 * 16 * 192 + 2 * 2 * 16 * 128 + 4 * 16;
    assert_eq!(kept("deepseek_v2_lite", "layer.attention"), latent + 2 * 2048);
    // The shared expert keeps gate, up and their product. It shares its input with the router, so the input is not
    // among its tensors.
    assert_eq!(kept("deepseek_v2_lite", "layer.moe.shared"), 3 * 2 * 2 * 1408);
    // A shared expert with a gate also keeps its result and the gate, one two-byte element per token.
    assert_eq!(kept("qwen1_5_moe_a2_7b", "layer.moe.shared"), 3 * 2 * 5632 + 2 * 2048 + 2);
}
