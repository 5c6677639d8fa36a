//! Drafts, held prefixes, and a cache off the device: laws and values by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_serving::apart::apart;
use coplace_serving::beside::TechniqueFigures;
use coplace_serving::best::{GivenDegrees, ServiceLevel, ServingHardware, ServingQuestion, bound_of_chip, together};
use coplace_serving::lengths::RequestLengths;
use coplace_serving::method::{CacheAway, CacheStore, Drafter, HeldPrefixes, Speculation};
use coplace_serving::technique::ContextTechnique;
use coplace_serving::{PassTimes, ServingEngine, ServingFormats, ServingMethod, ServingPlan, memory_of_plan};
use sim::files::carried::Files;
use sim::hardware::{Accelerator, Storage};
use sim::network::Fabric;
use sim::units::{Bytes, BytesPerSecond, Seconds};
use workloads::Model;

fn engine(name: &str) -> ServingEngine {
    ServingEngine::load_from(name, &Files::default()).unwrap()
}

/// A chip, its node and an engine.
struct Side {
    chip: Accelerator,
    fabric: Fabric,
    engine: ServingEngine,
}

impl Side {
    fn new(chip: &str, fabric: &str, engine_name: &str) -> Self {
        let fabric = Fabric::built_in_for_chip(fabric, chip).unwrap();
        Self { chip: Accelerator::built_in(chip).unwrap(), fabric, engine: engine(engine_name) }
    }

    fn h100() -> Self {
        Self::new("h100_80gb_sxm", "nvlink4_node", "vllm")
    }

    fn all() -> Vec<Self> {
        vec![
            Self::h100(),
            Self::new("h100_80gb_sxm", "nvlink4_node", "sglang"),
            Self::new("b200", "nvlink5_node", "tensorrt_llm"),
            Self::new("tpu_v6e", "tpu_v6e_ici", "vllm"),
        ]
    }

    fn hardware(&self) -> ServingHardware<'_> {
        ServingHardware { chip: &self.chip, fabric: &self.fabric, engine: &self.engine }
    }

    fn times<'a>(&'a self, model: &'a Model, method: ServingMethod<'a>) -> PassTimes<'a> {
        let plan = ServingPlan::of_one_device(ServingFormats::BF16);
        PassTimes::new(model, &self.chip, &self.fabric, &self.engine, plan).unwrap().with_method(method).unwrap()
    }

    fn tokens_per_second(&self, question: &ServingQuestion<'_>) -> f64 {
        together(question, self.hardware()).deployments.first().map_or(0.0, |best| best.tokens_per_second)
    }
}

fn question<'a>(model: &'a Model, lengths: (u64, u64), method: ServingMethod<'a>) -> ServingQuestion<'a> {
    ServingQuestion {
        model,
        devices: 2,
        formats: ServingFormats::BF16,
        lengths: RequestLengths::uniform(lengths.0, lengths.1).unwrap(),
        level: ServiceLevel::default(),
        given: GivenDegrees { pipeline: Some(1), ..GivenDegrees::default() },
        method,
        power_limit: None,
    }
}

fn drafts(drafted: u32, accepted: f64, drafter: Drafter<'_>) -> ServingMethod<'_> {
    ServingMethod {
        speculation: Some(Speculation::new(drafted, accepted, drafter).unwrap()),
        ..ServingMethod::default()
    }
}

fn prefixes<'a>(hit: f64, tokens: Option<u64>) -> ServingMethod<'a> {
    ServingMethod { prefixes: Some(HeldPrefixes::new(hit, tokens).unwrap()), ..ServingMethod::default() }
}

fn away<'a>(store: CacheStore, fraction: f64) -> ServingMethod<'a> {
    ServingMethod { away: Some(CacheAway::new(store, fraction).unwrap()), ..ServingMethod::default() }
}

const MODELS: [&str; 4] = ["llama3-8b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite"];

#[test]
fn passes_until_an_answer_is_whole() {
    let passes =
        |drafted, accepted, tokens| Speculation::new(drafted, accepted, Drafter::Lookup).unwrap().passes_for(tokens);
    // With no accepted draft, every token takes a pass. With three of three accepted, a pass yields four tokens.
    for tokens in [1u64, 2, 7, 255, 5000] {
        assert!((passes(3, 0.0, tokens) - tokens as f64).abs() < 1e-9);
        assert!((passes(3, 3.0, tokens) - tokens.div_ceil(4) as f64).abs() < 1e-6, "{tokens}");
    }
    // One draft, accepted half of the time. One token takes one pass, and two take one or two. Three take one pass and
    // then 1.5 passes for two missing tokens, or 1 pass for one.
    assert!((passes(1, 0.5, 1) - 1.0).abs() < 1e-9);
    assert!((passes(1, 0.5, 2) - 1.5).abs() < 1e-9);
    assert!((passes(1, 0.5, 3) - (1.0 + 0.5 * 1.5 + 0.5 * 1.0)).abs() < 1e-9);
    // A long answer gains the mean number of tokens per pass. More accepted drafts never take more passes.
    assert!((passes(4, 2.0, 100_000) * 3.0 / 100_000.0 - 1.0).abs() < 1e-4);
    let mut last = f64::INFINITY;
    for tenths in 0..=40 {
        let now = passes(4, f64::from(tenths) / 10.0, 300);
        assert!(now <= last + 1e-9 && now >= 300.0 / (1.0 + f64::from(tenths) / 10.0) - 1e-6);
        last = now;
    }
}

#[test]
fn a_pass_with_drafts_takes_at_least_a_pass_without() {
    for side in Side::all() {
        for name in MODELS {
            let model = Model::load(name).unwrap();
            let mut plain = side.times(&model, ServingMethod::default());
            for drafter in [Drafter::Lookup, Drafter::Module, Drafter::Model(&model)] {
                for drafted in [1, 2, 4, 7] {
                    let mut own = side.times(&model, drafts(drafted, 0.5, drafter));
                    for (sequences, cached) in [(1, 1000), (16, 1000), (16, 30_000), (128, 500)] {
                        let (with, without) =
                            (own.decode(sequences, cached).unwrap(), plain.decode(sequences, cached).unwrap());
                        let what =
                            format!("{name} on {}, {drafter:?} {drafted}, {sequences} of {cached}", side.chip.name);
                        assert!(with.total() >= without.total() * (1.0 - 1e-9), "{what}: {with:?} {without:?}");
                        assert!(with.attention >= without.attention * (1.0 - 1e-9), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn drafts_that_fail_never_serve_more_and_each_accepted_one_serves_no_less() {
    for side in Side::all() {
        for name in ["llama3-8b", "gpt-oss-20b"] {
            let model = Model::load(name).unwrap();
            let plain = side.tokens_per_second(&question(&model, (1024, 256), ServingMethod::default()));
            for drafter in [Drafter::Lookup, Drafter::Module] {
                let rate = |accepted: f64| {
                    let asked = question(&model, (1024, 256), drafts(3, accepted, drafter));
                    let bound = bound_of_chip(&asked, &side.chip, &side.engine);
                    let rate = side.tokens_per_second(&asked);
                    assert!(rate <= bound, "{name} on {}: {rate} above its bound {bound}", side.chip.name);
                    rate
                };
                let rates: Vec<f64> = [0.0, 0.5, 1.0, 2.0, 3.0].into_iter().map(rate).collect();
                assert!(rates[0] <= plain * (1.0 + 1e-9), "{name} on {}: {rates:?} {plain}", side.chip.name);
                assert!(rates.is_sorted(), "{name} on {}: {rates:?}", side.chip.name);
                assert!(rates[4] <= 4.0 * plain, "{name} on {}: {rates:?} {plain}", side.chip.name);
            }
        }
    }
}

/// Each draft costs a pass of the drafting model, whose weights and cache lie beside those of the large model.
#[test]
fn a_drafting_model_costs_its_passes_and_its_memory() {
    let (large, small) = (Model::load("llama3.1-70b").unwrap(), Model::load("llama3-8b").unwrap());
    let side = Side::new("b200", "nvlink5_node", "vllm");
    let mut own = side.times(&large, drafts(5, 3.0, Drafter::Model(&small)));
    let mut alone = side.times(&small, ServingMethod::default());
    let host = Seconds::from_micros(side.engine.launch.iteration_us + 8.0 * side.engine.launch.sequence_us);
    let draft = alone.decode(8, 2000).unwrap().total() - host;
    let drafted = own.decode(8, 2000).unwrap().drafts;
    assert!((drafted / (draft * 5.0) - 1.0).abs() < 1e-9, "{drafted:?} {draft:?}");
    let lengths = RequestLengths::uniform(1000, 100).unwrap();
    let plan = ServingPlan::of_one_device(ServingFormats::BF16);
    let memory = |model: &Model| memory_of_plan(model, &side.chip, &side.engine, &plan).unwrap();
    let both = own.memory(&lengths).unwrap();
    assert_eq!(both.weights, memory(&large).weights + memory(&small).weights);
    // 80 and 32 layers of 8 keys and values of 128.
    assert_eq!(both.cache.per_token, Bytes((80 + 32) * 8 * 2 * 128 * 2));
    // DeepSeek's module: a layer of 256 experts, its product of 2 x 7168 x 7168, and the cache of one layer more.
    let deepseek = Model::load("deepseek-v3").unwrap();
    let own = side.times(&deepseek, drafts(1, 0.8, Drafter::Module)).memory(&lengths).unwrap();
    let plain = memory(&deepseek);
    assert_eq!(own.cache.per_token, Bytes(62 * 576 * 2));
    let module = own.weights.saturating_sub(plain.weights).as_f64() / 2e9;
    // DeepSeek-V3's README_WEIGHTS.md: 11.5 billion unique parameters, besides the shared embedding and head.
    assert!((module - 11.5).abs() < 0.2, "{module}");
    let other = Model::load("qwen3-32b").unwrap();
    let refused = PassTimes::new(&large, &side.chip, &side.fabric, &side.engine, plan).unwrap();
    let refused = refused.with_method(drafts(1, 0.8, Drafter::Model(&other))).unwrap_err().to_string();
    assert!(refused.contains("vocabulary of 151936") && refused.contains("same tokenizer"), "{refused}");
}

#[test]
fn without_hits_nothing_changes_and_more_hits_never_serve_less() {
    for side in Side::all() {
        for name in ["llama3-8b", "qwen3-30b-a3b"] {
            let model = Model::load(name).unwrap();
            let plain = together(&question(&model, (4096, 256), ServingMethod::default()), side.hardware());
            let none = together(&question(&model, (4096, 256), prefixes(0.0, None)), side.hardware());
            assert_eq!(plain.deployments, none.deployments);
            let mut last = plain.deployments.first().map_or(0.0, |best| best.tokens_per_second);
            assert!(last > 0.0 || side.chip.name == "tpu_v6e", "{name} on {}", side.chip.name);
            for hit in [0.1, 0.3, 0.6, 0.9, 0.99] {
                let asked = question(&model, (4096, 256), prefixes(hit, None));
                let rate = side.tokens_per_second(&asked);
                assert!(rate >= last * (1.0 - 1e-9), "{name} on {}: {rate} at {hit}, {last}", side.chip.name);
                assert!(rate <= bound_of_chip(&asked, &side.chip, &side.engine), "{name} on {}", side.chip.name);
                last = rate;
            }
            let rate = |method| {
                let asked = question(&model, (4096, 256), method);
                let pools = apart(&asked, side.hardware(), side.hardware());
                pools.deployments.first().map_or(0.0, |best| best.tokens_per_second)
            };
            assert!(rate(prefixes(0.5, None)) >= rate(ServingMethod::default()));
        }
    }
}

#[test]
fn a_prompt_with_hits_computes_the_rest_on_the_whole_context() {
    let (side, model) = (Side::h100(), Model::load("llama3-8b").unwrap());
    let held = prefixes(0.75, None);
    assert_eq!((held.held_tokens(4096), held.held_tokens(1), held.held_tokens(2)), (3072, 0, 1));
    assert_eq!(prefixes(0.999_999, None).held_tokens(1000), 999);
    let memory = side.times(&model, held).memory(&RequestLengths::uniform(4096, 256).unwrap()).unwrap();
    // One prefix of 3072 tokens and half a page, 32 layers of 8 keys and values of 128 in bf16.
    assert_eq!(memory.prefixes, Bytes((3072 + 8) * 131_072));
    let several = side.times(&model, prefixes(0.75, Some(307_200)));
    let several = several.memory(&RequestLengths::uniform(4096, 256).unwrap()).unwrap();
    assert_eq!(several.prefixes, Bytes(100 * (3072 + 8) * 131_072));
    assert_eq!(several.room_for_cache() + several.prefixes, memory.room_for_cache() + memory.prefixes);
    let few = side.times(&model, prefixes(0.75, Some(100))).memory(&RequestLengths::uniform(4096, 256).unwrap());
    assert!(few.unwrap_err().to_string().contains("prefix_tokens = 100: must be at least the 3072 tokens"));
}

/// Returns an H100 whose link to the host has `rate` GB/s and whose host memory has `gib` GiB.
fn chip_with_host(rate: f64, gib: f64) -> Side {
    let mut side = Side::h100();
    let host = side.chip.host.as_mut().unwrap();
    (host.bandwidth, host.capacity, host.memory) = (BytesPerSecond(rate * 1e9), Bytes::from_gib(gib), None);
    side
}

#[test]
fn a_cache_off_the_device_is_never_faster_at_an_equal_batch_and_its_link_never_too_fast() {
    for name in MODELS {
        let model = Model::load(name).unwrap();
        let (near, mut last) = (chip_with_host(64.0, 256.0), f64::INFINITY);
        for rate in [1.0, 16.0, 64.0, 900.0, 1e6] {
            let far = chip_with_host(rate, 256.0);
            for (sequences, cached) in [(1, 1000), (32, 8000)] {
                let plain = near.times(&model, ServingMethod::default()).decode(sequences, cached).unwrap();
                let mut before = plain.total();
                for fraction in [0.0, 0.25, 1.0] {
                    let own = far.times(&model, away(CacheStore::Host, fraction)).decode(sequences, cached).unwrap();
                    assert!(own.total() >= before, "{name}: {own:?} after {before:?} with {fraction} away");
                    assert_eq!(own.attention, plain.attention);
                    before = own.total();
                }
                if sequences == 32 {
                    assert!(before.0 <= last, "{name}: {before:?} at {rate} GB/s, {last} at less");
                    last = before.0;
                }
            }
        }
        // 32 sequences of 8000 tokens over 1 GB/s: the transfer sets the time of the pass. The rest of the pass adds at
        // most a tenth of the transfer and 0.1 s.
        let far = chip_with_host(1.0, 256.0);
        let mut own = far.times(&model, away(CacheStore::Host, 1.0));
        let memory = own.memory(&RequestLengths::uniform(1000, 100).unwrap()).unwrap();
        let way = (memory.cache.per_token * 32 * 8000).as_f64() / 1e9;
        let pass = own.decode(32, 8000).unwrap();
        assert!(pass.total().0 >= way && pass.total().0 <= way * 1.1 + 0.1, "{name}: {way} s, {pass:?}");
    }
}

/// Long requests of a model that fills its device: few sequences fit beside the weights, and each pass reads all
/// weights for them. A fast link (the 450 GB/s each way of NVLink-C2C) brings more sequences at once and more tokens in
/// all; PCIe does not.
#[test]
fn a_cache_on_the_host_helps_where_memory_limits_the_batch_and_the_link_is_fast() {
    let model = Model::load("qwen3-32b").unwrap();
    let rate = |side: &Side, method| {
        let asked = ServingQuestion { devices: 1, ..question(&model, (2000, 2000), method) };
        let found = together(&asked, side.hardware());
        let best = found.deployments.first().unwrap();
        assert!(best.tokens_per_second <= bound_of_chip(&asked, &side.chip, &side.engine));
        (best.tokens_per_second, best.state.decoding)
    };
    let (grace, pcie) = (chip_with_host(450.0, 480.0), chip_with_host(64.0, 256.0));
    let (plain, few) = rate(&grace, ServingMethod::default());
    let (fast, many) = rate(&grace, away(CacheStore::Host, 0.5));
    let (slow, _) = rate(&pcie, away(CacheStore::Host, 0.5));
    assert!(many > few && fast > plain * 1.02, "{fast} with {many} sequences, {plain} with {few}");
    assert!(slow < fast, "{slow} over PCIe, {fast}");
}

#[test]
fn stores_that_a_chip_has_not_are_refused() {
    let model = Model::load("llama3-8b").unwrap();
    let mut side = Side::h100();
    side.chip.storage = None;
    let plan = ServingPlan::of_one_device(ServingFormats::BF16);
    let refusal = |side: &Side, store| {
        let times = PassTimes::new(&model, &side.chip, &side.fabric, &side.engine, plan).unwrap();
        times.with_method(away(store, 1.0)).unwrap_err().to_string()
    };
    let text = refusal(&side, CacheStore::Nvme);
    assert!(text.contains("cache_place = nvme") && text.contains("no storage"), "{text}");
    side.chip.host = None;
    let text = refusal(&side, CacheStore::Host);
    assert!(text.contains("cache_place = host") && text.contains("no host"), "{text}");
    // Storage behind the host link is no faster than the link, and its own capacity limits the sequences.
    let mut side = chip_with_host(10.0, 256.0);
    let rate = BytesPerSecond(25e9);
    side.chip.storage = Some(Storage { read_bandwidth: rate, write_bandwidth: rate, capacity: Bytes(1 << 30) });
    let host = side.times(&model, away(CacheStore::Host, 1.0)).decode(8, 4000).unwrap();
    let mut stored = side.times(&model, away(CacheStore::Nvme, 1.0));
    assert_eq!(stored.decode(8, 4000).unwrap(), host);
    let memory = stored.memory(&RequestLengths::uniform(1000, 100).unwrap()).unwrap();
    assert_eq!(memory.sequences_that_fit(1000), (1u64 << 30) / (131_072 * 1008));
}

fn technique<'a>(text: &str, model: &Model, input: u64) -> ServingMethod<'a> {
    let own = ContextTechnique::of_technique(&text.parse().unwrap(), model, input).unwrap();
    ServingMethod { technique: Some(own), ..ServingMethod::default() }
}

/// HOMER on Llama 2 7B: 65,536 tokens are 32 chunks of 2048, five heights above them. 20 layers merge, three for each
/// of six heights, and two are left over for the leaves.
#[test]
fn chunks_are_merged_as_the_authors_do() {
    let model = Model::load("llama2-7b").unwrap();
    let merged = |input: u64| technique("homer", &model, input).merged().unwrap();
    // The deepest leaf at work: 17 of 32 layers of 2048 tokens. Waiting halves: 17, 20, 23, 26 and 29 layers of 1024.
    let peak = (2048 * 17 + 1024 * (17 + 20 + 23 + 26 + 29)) as f64 / 32.0;
    assert!((merged(65_536).peak_tokens(65_536) - peak).abs() < 1e-9);
    assert_eq!((merged(65_536).kept_tokens(65_536), merged(65_536).kept_tokens(100)), (2048, 100));
    // A prompt of one chunk is plain.
    assert!((merged(2048).peak_tokens(2048) - 2048.0).abs() < 1e-9);
    // A chunk, and half of one for every height: the memory grows as the logarithm.
    for height in 1..=12u32 {
        let input = 2048 << height;
        let now = merged(input).peak_tokens(input);
        assert!(now <= 2048.0 + 1024.0 * f64::from(height), "{input}: {now}");
    }
    let refused = ContextTechnique::of_technique(&"homer,chunk=2".parse().unwrap(), &model, 1 << 24).unwrap_err();
    assert!(refused.to_string().contains("heights of the tree, and 20 layers merge"), "{refused}");
    let training = ContextTechnique::of_technique(&"galore".parse().unwrap(), &model, 2048).unwrap_err().to_string();
    assert!(training.contains("galore") && training.contains("it changes training"), "{training}");
}

#[test]
fn a_merged_prompt_takes_less_memory_and_less_time_where_it_is_long() {
    for side in Side::all() {
        let model = Model::load("llama2-7b").unwrap();
        let plan = ServingPlan::of_one_device(ServingFormats::BF16);
        for input in [1000, 4096, 16_384, 65_536] {
            let own = technique("homer", &model, input).technique.unwrap();
            let figures = TechniqueFigures::of_prompt(side.hardware(), &model, plan, (own, input)).unwrap();
            // Tokens attend only within chunks, and fewer tokens pass the upper layers. So a long prompt needs less
            // memory and less time.
            assert!(figures.peak <= figures.plain_peak, "{input}");
            if input >= 16_384 {
                assert!(figures.prompt < figures.plain_prompt, "{input} on {}: {figures:?}", side.chip.name);
                assert!(figures.peak.as_f64() < 0.3 * figures.plain_peak.as_f64(), "{figures:?}");
            }
        }
        // More requests fit, and their decoding reads less.
        let rate = |method| side.tokens_per_second(&question(&model, (30_000, 256), method));
        let (plain, merged) = (rate(ServingMethod::default()), rate(technique("homer", &model, 30_000)));
        assert!(merged > plain, "{merged} merged, {plain} plain on {}", side.chip.name);
        let asked = question(&model, (30_000, 256), technique("homer", &model, 30_000));
        assert!(merged <= bound_of_chip(&asked, &side.chip, &side.engine));
    }
}

/// Memory^3 on a model of 32 layers with 32 heads of 128: 16 layers keep 8 tokens per head of each of five texts.
#[test]
fn stored_memories_are_read_from_storage() {
    let model = Model::load("llama2-7b").unwrap();
    let mut side = Side::h100();
    let store = |gb: f64, rate: f64| {
        let rate = BytesPerSecond(rate * 1e9);
        Some(Storage { read_bandwidth: rate, write_bandwidth: rate, capacity: Bytes((gb * 1e9) as u64) })
    };
    side.chip.storage = store(1e6, 7.0);
    let own = technique("memory3,references=1000000", &model, 1000);
    let plan = ServingPlan::of_one_device(ServingFormats::BF16);
    let asked = (own.technique.unwrap(), 1000);
    let figures = TechniqueFigures::of_prompt(side.hardware(), &model, plan, asked).unwrap();
    let text = 16.0 * 2.0 * 32.0 * 8.0 * 128.0 * 2.0;
    assert!((figures.stored - 1e6 * text).abs() < 1.0 && (figures.read_per_token - 5.0 * text / 64.0).abs() < 1e-6);
    assert_eq!(figures.peak.0 - figures.plain_peak.0, (5.0 * text) as u64);
    // 64 sequences read five texts every 64 tokens, and wait for them.
    let (mut with, mut plain) = (side.times(&model, own), side.times(&model, ServingMethod::default()));
    let (with, plain) = (with.decode(64, 1000).unwrap(), plain.decode(64, 1000).unwrap());
    assert!((with.fetches.0 - 5.0 * text / 7e9).abs() < 1e-12, "{with:?}");
    assert!(with.attention >= plain.attention && with.total() > plain.total());
    let mut last = f64::INFINITY;
    for rate in [0.5, 7.0, 30.0] {
        side.chip.storage = store(1e6, rate);
        let now = side.times(&model, own).decode(64, 1000).unwrap().total().0;
        assert!(now < last);
        last = now;
    }
    side.chip.storage = store(1000.0, 7.0);
    let times = PassTimes::new(&model, &side.chip, &side.fabric, &side.engine, plan).unwrap();
    let refused = times.with_method(own).unwrap_err().to_string();
    assert!(refused.contains("references = 1000000") && refused.contains("2097.2 GB"), "{refused}");
}

#[test]
fn short_prompts_share_the_weights_and_more_held_tokens_never_serve_less_in_pools_apart() {
    let model = Model::load("llama3-70b").unwrap();
    let side = Side::h100();
    let mut last = 0.0;
    for hit in [0.0, 0.9, 0.99, 0.996, 0.998, 0.9999] {
        let asked = question(&model, (4000, 256), prefixes(hit, None));
        let level = ServiceLevel { time_per_output_token: Some(Seconds(0.025)), ..ServiceLevel::default() };
        let asked = ServingQuestion { devices: 8, level, ..asked };
        let answer = apart(&asked, side.hardware(), side.hardware());
        let best = answer.deployments.first().unwrap();
        assert!(best.tokens_per_second >= last * (1.0 - 1e-9), "{hit}: {} after {last}", best.tokens_per_second);
        last = best.tokens_per_second;
        // No pool draws more power than its chip's limit.
        let prefill = best.prefill.as_ref().unwrap();
        assert!(prefill.power.0 <= 700.0 && best.decode.power.0 <= 700.0, "{hit}: {prefill:?}");
    }
    // A prompt of one token takes the energy of a decoded token in a full iteration, not the energy of reading all
    // weights. So an answer of 16 tokens takes nearly the same energy per token as one of 64.
    let joules = |output: u64| {
        let asked = ServingQuestion { devices: 8, ..question(&model, (1, output), ServingMethod::default()) };
        let best = together(&asked, side.hardware()).deployments.into_iter().next().unwrap();
        1.0 / best.tokens_per_joule
    };
    assert!(joules(16) < joules(64) * 1.25, "{} and {}", joules(16), joules(64));
}

#[test]
fn a_link_that_is_never_idle_sets_the_iteration() {
    let model = Model::load("llama3.2-1b").unwrap();
    let mut side = chip_with_host(1.0, 256.0);
    side.engine = engine("ideal");
    let mut own = side.times(&model, away(CacheStore::Host, 1.0));
    let memory = own.memory(&RequestLengths::uniform(1000, 100).unwrap()).unwrap();
    let way = (memory.cache.per_token * 8 * 4000).as_f64() / 1e9;
    let pass = own.decode(8, 4000).unwrap();
    // Only the read of the first layer's part has no work beside it. The later reads take longer than the work and hide
    // it.
    assert!((pass.total().0 / way - 1.0).abs() < 0.01, "{way} s, {:?}", pass.total());
}
