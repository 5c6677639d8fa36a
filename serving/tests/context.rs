//! Devices that share the tokens of a sequence: bytes by hand, refusals, and laws.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_serving::best::{
    GivenDegrees, ServiceLevel, ServingHardware, ServingQuestion, bound_of_chip, enumerate_plans, together,
};
use coplace_serving::context::copies_of_keys;
use coplace_serving::engine::SharedTokens;
use coplace_serving::lengths::RequestLengths;
use coplace_serving::{PassTimes, ServingEngine, ServingFormats, ServingMethod, ServingPlan, memory_of_plan};
use rayon::prelude::*;
use sim::files::carried::Files;
use sim::hardware::{Accelerator, ChipDocument};
use sim::kernel::{CollectiveKind, DataType, Direction, FusedAttention};
use sim::network::Fabric;
use sim::units::{Bytes, Seconds};
use workloads::Model;

fn engine(name: &str) -> ServingEngine {
    ServingEngine::load_from(name, &Files::default()).unwrap()
}

fn plan(tensor: u32, context: u32) -> ServingPlan {
    ServingPlan { tensor, context, ..ServingPlan::of_one_device(ServingFormats::BF16) }
}

fn attention(heads: u64, queries: u64, keys: u64, head_dim: u64) -> FusedAttention {
    FusedAttention {
        direction: Direction::Forward,
        batch: 64,
        heads,
        kv_heads: 1,
        queries,
        keys,
        head_dim,
        causal: false,
        window: None,
        values_are_keys: false,
        pieces: None,
        operand: DataType::Bf16,
    }
}

fn exchanges(model: &Model, plan: &ServingPlan, whole: &FusedAttention, decodes: bool) -> Vec<(CollectiveKind, u64)> {
    let shared = plan.shared_cache(model).unwrap().share(whole, decodes);
    assert!(shared.exchanges.iter().all(|of| of.group.ranks == plan.context && of.group.stride == 1));
    shared.exchanges.iter().map(|of| (of.kind, of.bytes.0)).collect()
}

#[test]
fn copies_are_devices_beyond_the_key_heads() {
    let of = |name: &str, tensor: u32| copies_of_keys(&Model::load(name).unwrap(), tensor);
    // vLLM's own cases: one latent head on 8 and 16 devices, 4 key heads on 8.
    assert_eq!(of("deepseek-v3", 8), Ok(8));
    assert_eq!(of("kimi-k2", 16), Ok(16));
    assert_eq!(of("qwen3-235b-a22b", 8), Ok(2));
    assert_eq!(of("llama3.1-405b", 8), Ok(1));
    assert_eq!(of("llama3.1-405b", 16), Ok(2));
}

#[test]
fn bytes_of_a_shared_cache() {
    let chip = Accelerator::built_in("b200").unwrap();
    let memory = |name: &str, plan: ServingPlan| {
        memory_of_plan(&Model::load(name).unwrap(), &chip, &engine("vllm"), &plan).unwrap()
    };
    // DeepSeek-V3: 61 layers of 576 numbers; an eighth of them on each of 8 devices, with the same weights.
    let (whole, eighth) = (memory("deepseek-v3", plan(8, 1)), memory("deepseek-v3", plan(8, 8)));
    assert_eq!(whole.cache.per_token, Bytes(61 * 576 * 2));
    assert_eq!(eighth.cache.per_token, Bytes(61 * 576 * 2 / 8));
    assert_eq!(whole.weights, eighth.weights);
    // Each of the eight has half a page of 16 tokens of its own to spare.
    assert_eq!(eighth.cache_of_sequence(131_072), Bytes(8784 * (131_072 + 8 * 8)));
    // The gathered queries and the outputs of vLLM's 1,024 sequences.
    assert_eq!(eighth.working, whole.working + Bytes(1024 * 128 * (576 + 512) * 2));
    // Llama 3 70B has 80 layers and 8 key heads. Each of 16 devices holds one key head, or half of its tokens if two
    // devices share them.
    assert_eq!(memory("llama3-70b", plan(16, 1)).cache.per_token, Bytes(80 * 256 * 2));
    assert_eq!(memory("llama3-70b", plan(16, 2)).cache.per_token, Bytes(80 * 256 * 2 / 2));
}

#[test]
fn bytes_of_the_exchange() {
    use CollectiveKind::{AllGather, ReduceScatter};
    let deepseek = Model::load("deepseek-v3").unwrap();
    // A device has 16 of the 128 heads, and queries of 512 + 64 numbers in bf16; outputs have 512.
    let whole = FusedAttention { values_are_keys: true, ..attention(1, 16, 131_072, 544) };
    let gathered = 64 * 128;
    assert_eq!(
        exchanges(&deepseek, &plan(8, 8), &whole, true),
        [
            (AllGather, gathered * 576 * 2),
            // Eight fp32 log-sum-exps of every row.
            (AllGather, gathered * 8 * 4),
            (ReduceScatter, gathered * 512 * 2),
        ]
    );
    let own = plan(8, 8).shared_cache(&deepseek).unwrap().share(&whole, true).attention;
    assert_eq!((own.queries, own.keys, own.heads), (128, 16_384, 1));
    // A chunk of a prompt gathers the narrow vectors of the earlier tokens.
    let chunk = FusedAttention { batch: 1, kv_heads: 16, ..attention(16, 8192, 32_768, 160) };
    assert_eq!(exchanges(&deepseek, &plan(8, 8), &chunk, false), [(AllGather, 32_768 * 576 * 2)]);
    // Llama 3 70B on 16 devices: 4 heads each, joined with those of the device with the same key head.
    let llama = Model::load("llama3-70b").unwrap();
    let rows = 64 * 8;
    let joined = [(AllGather, rows * 128 * 2), (AllGather, rows * 2 * 4), (ReduceScatter, rows * 128 * 2)];
    assert_eq!(exchanges(&llama, &plan(16, 2), &attention(1, 4, 1000, 128), true), joined);
    // The devices' query heads stay separate heads for a chunk of a prompt. The exchange per token is the same.
    let chunk = FusedAttention { batch: 1, ..attention(4, 64, 1000, 128) };
    assert_eq!(exchanges(&llama, &plan(16, 2), &chunk, false), joined);
}

#[test]
fn operations_are_kept_and_keys_are_shared() {
    let model = Model::load("deepseek-v3").unwrap();
    for context in [2, 4, 8, 16] {
        for keys in [16_u64, 4096, 131_072] {
            let whole = FusedAttention { values_are_keys: true, ..attention(1, 8, keys, 544) };
            let own = plan(16, context).shared_cache(&model).unwrap().share(&whole, true).attention;
            assert_eq!(own.flops(), whole.flops());
            assert_eq!(own.keys * u64::from(context), keys);
        }
    }
}

#[test]
fn degrees_that_no_engine_runs_are_refused() {
    let fault =
        |name: &str, plan: ServingPlan| plan.check_degrees(&Model::load(name).unwrap()).unwrap_err().to_string();
    assert_eq!(fault("deepseek-v3", plan(8, 0)), "dcp = 0: must be at least 1; give 1 or more");
    assert_eq!(
        fault("deepseek-v3", plan(8, 3)),
        "dcp = 3: must divide the 8 of tp 8 devices that hold the same keys; give 1, 2, 4, 8"
    );
    assert_eq!(
        fault("llama3.1-405b", plan(16, 4)),
        "dcp = 4: must divide the 2 of tp 16 devices that hold the same keys; give 1, 2"
    );
    assert_eq!(
        fault("llama3.1-405b", plan(8, 2)),
        "dcp = 2: needs devices that hold the same keys, and tp 8 splits the 8 key heads; give 1, or tp 16"
    );
    let one = fault("deepseek-v3", plan(1, 8));
    assert_eq!(one, "dcp = 8: needs devices that hold the same keys, and tp 1 is one device; give a larger tp");
    let windows = fault("gpt-oss-120b", plan(16, 2));
    assert!(windows.starts_with(
        "dcp = 2: needs layers that attend to all tokens, and the model has attention in a window of 128"
    ));
    for (name, what) in [("deepseek-v3.2", "attention to chosen tokens"), ("qwen3-next-80b-a3b", "linear attention")] {
        let why = fault(name, plan(8, 2));
        assert!(why.contains(what) && why.ends_with("; give 1"), "{why}");
    }
    // TensorRT-LLM shares out tokens only under latent attention. SGLang is not known to do it.
    let chip = Accelerator::built_in("b200").unwrap();
    let fabric = Fabric::built_in_for_chip("nvlink5_domain", "b200").unwrap();
    let times = |name: &str, engine: &str, plan| {
        let (model, engine) = (Model::load(name).unwrap(), self::engine(engine));
        PassTimes::new(&model, &chip, &fabric, &engine, plan).map(|_| ()).map_err(|why| why.to_string())
    };
    assert_eq!(times("llama3.1-405b", "vllm", plan(16, 2)), Ok(()));
    assert_eq!(times("deepseek-v3", "tensorrt_llm", plan(8, 8)), Ok(()));
    assert_eq!(
        times("llama3.1-405b", "tensorrt_llm", plan(16, 2)).unwrap_err(),
        "dcp = 2: tensorrt_llm shares out the tokens of latent attention alone; give 1, an engine such as vllm, or an \
        engine's file with memory.shared_tokens"
    );
    let unknown = times("deepseek-v3", "sglang", plan(8, 8)).unwrap_err();
    assert!(unknown.starts_with("dcp = 8: sglang is not known to share out a sequence's tokens; "), "{unknown}");
}

#[test]
fn records_without_the_degree_have_one() {
    let plan = plan(8, 1);
    let text = toml::to_string(&plan).unwrap();
    let earlier = text.replace("context = 1\n", "");
    assert_ne!(earlier, text);
    assert_eq!(toml::from_str::<ServingPlan>(&earlier).unwrap(), plan);
    assert_eq!(toml::from_str::<GivenDegrees>("tensor = 8").unwrap().context, None);
}

fn question<'a>(model: &'a Model, devices: u32, lengths: (u64, u64), level: ServiceLevel) -> ServingQuestion<'a> {
    ServingQuestion {
        model,
        devices,
        formats: ServingFormats::BF16,
        lengths: RequestLengths::uniform(lengths.0, lengths.1).unwrap(),
        level,
        given: GivenDegrees { pipeline: Some(1), ..GivenDegrees::default() },
        method: ServingMethod::default(),
        power_limit: None,
    }
}

#[test]
fn plans_have_every_degree_that_divides_the_copies_and_no_other() {
    let model = Model::load("deepseek-v2-lite").unwrap();
    let question = question(&model, 8, (1024, 256), ServiceLevel::default());
    let plans = enumerate_plans(&question, &engine("vllm"));
    let degrees = |tensor: u32| {
        let own = plans.iter().filter(|plan| plan.tensor == tensor && plan.attention_data == 1 && plan.expert == 1);
        own.map(|plan| plan.context).collect::<Vec<_>>()
    };
    assert_eq!([1, 2, 4, 8].map(degrees), [vec![1], vec![1, 2], vec![1, 2, 4], vec![1, 2, 4, 8]]);
    assert!(enumerate_plans(&question, &engine("sglang")).iter().all(|plan| plan.context == 1));
    // A given degree leaves the plans that allow it. If none does, it leaves plans whose refusals state the reason.
    let given = |context: u32| {
        let given = GivenDegrees { context: Some(context), ..question.given };
        enumerate_plans(&ServingQuestion { given, ..question.clone() }, &engine("vllm"))
    };
    assert!(given(4).iter().all(|plan| plan.context == 4 && plan.tensor >= 4) && given(4).len() > 4);
    assert!(given(3).iter().all(|plan| plan.tensor == 8) && !given(3).is_empty());
}

#[test]
fn a_free_degree_serves_as_much_as_the_best_given_one_and_no_more_than_the_bound() {
    let models = ["deepseek-v2-lite", "qwen3-30b-a3b"].map(|name| Model::load(name).unwrap());
    let level = |first: f64, between: f64| ServiceLevel {
        time_to_first_token: Some(Seconds(first)),
        time_per_output_token: Some(Seconds(between)),
    };
    let none = ServiceLevel::default();
    let jobs = [
        (&models[0], (4096, 256), level(2.0, 0.02), "vllm"),
        (&models[0], (65_536, 1024), level(30.0, 0.03), "tensorrt_llm"),
        (&models[0], (100_000, 4096), none, "ideal"),
        (&models[0], (150_000, 10_000), none, "ideal"),
        (&models[1], (30_000, 512), level(20.0, 0.03), "vllm"),
    ];
    let helps = |chip: usize, (model, lengths, level, engine_name): (&Model, (u64, u64), ServiceLevel, &str)| {
        let (engine, name) = (engine(engine_name), ["h100_80gb_sxm", "b200", "h200", "b200"][chip]);
        let document = ChipDocument::of_built_in_chip(name).unwrap();
        // The last chip has no measured losses.
        let mut full = if chip == 3 { document.strip_measured(true) } else { document }.build_accelerator().unwrap();
        full.hbm.capacity = Bytes((full.hbm.capacity.as_f64() * [1.0, 0.5, 1.0, 1.0][chip]) as u64);
        let fabric = if name == "b200" { "nvlink5_node" } else { "nvlink4_node" };
        let fabric = Fabric::built_in_for_chip(fabric, name).unwrap();
        let mut question = question(model, 8, lengths, level);
        question.given.tensor = chip.is_multiple_of(2).then_some(8);
        let hardware = ServingHardware { chip: &full, fabric: &fabric, engine: &engine };
        let best = |given: Option<u32>| {
            let given = GivenDegrees { context: given, ..question.given };
            let answer = together(&ServingQuestion { given, ..question.clone() }, hardware);
            answer.deployments.first().map_or(0.0, |best| best.tokens_per_second)
        };
        let what = format!("{} on {name} under {}", model.name, engine.name);
        let free = best(None);
        let given = [1, 2, 4, 8].map(|context| best(Some(context)));
        assert_eq!(free, given.into_iter().fold(0.0, f64::max), "{what}");
        let bound = bound_of_chip(&question, &full, &engine);
        assert!(free <= bound, "{what}: {free} is above the bound {bound}");
        // An engine that shares nothing answers as with a degree of 1.
        let mut alone = engine.clone();
        alone.memory.shared_tokens = SharedTokens::None;
        let alone = together(&question, ServingHardware { engine: &alone, ..hardware });
        assert_eq!(alone.deployments.first().map_or(0.0, |best| best.tokens_per_second), given[0], "{what}");
        free > given[0] * 1.1
    };
    let cases: Vec<(usize, usize)> = (0..4).flat_map(|chip| (0..jobs.len()).map(move |job| (chip, job))).collect();
    let helped = cases.into_par_iter().with_max_len(1).filter(|(chip, job)| helps(*chip, jobs[*job])).count();
    assert!(helped > 2, "{helped} of 20 questions");
}

#[test]
fn more_devices_that_share_the_tokens_hold_more_sequences() {
    for (name, tensor) in [("deepseek-v3", 16), ("kimi-k2", 16), ("qwen3-235b-a22b", 16), ("llama3.1-405b", 32)] {
        let (model, chip) = (Model::load(name).unwrap(), Accelerator::built_in("b200").unwrap());
        for tokens in [2000, 32_000, 128_000] {
            let fit = |context: u32| {
                let memory = memory_of_plan(&model, &chip, &engine("vllm"), &plan(tensor, context)).unwrap();
                memory.sequences_that_fit(tokens)
            };
            let copies = copies_of_keys(&model, tensor).unwrap();
            let all: Vec<u64> = (0..=copies.ilog2()).map(|n| fit(1 << n)).collect();
            assert!(copies > 1 && all.is_sorted() && all[0] < all[all.len() - 1], "{name}: {all:?}");
        }
    }
}
