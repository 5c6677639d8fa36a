//! Laws of serving: more of a resource never serves less, and no pass is faster than its bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_serving::apart::apart;
use coplace_serving::best::{GivenDegrees, ServiceLevel, ServingHardware, ServingQuestion, bound_of_chip, together};
use coplace_serving::lengths::RequestLengths;
use coplace_serving::plan::ServedProduct;
use coplace_serving::{PassTimes, ServingEngine, ServingFormats, ServingMethod, ServingPlan, memory_of_plan};
use sim::files::carried::Files;
use sim::hardware::Accelerator;
use sim::kernel::Kernel;
use sim::network::Fabric;
use sim::units::{Bytes, Seconds, Watts};
use workloads::serving::{ServingGraph, ServingPass};
use workloads::{Lowering, Model};

fn engine(name: &str) -> ServingEngine {
    ServingEngine::load_from(name, &Files::default()).unwrap()
}

/// Returns a built-in chip with its memory's bandwidth and capacity multiplied by factors.
fn chip_like(name: &str, bandwidth: f64, capacity: f64) -> Accelerator {
    let mut chip = Accelerator::built_in(name).unwrap();
    chip.hbm.read_bandwidth = chip.hbm.read_bandwidth * bandwidth;
    chip.hbm.write_bandwidth = chip.hbm.write_bandwidth * bandwidth;
    chip.hbm.capacity = Bytes((chip.hbm.capacity.as_f64() * capacity) as u64);
    chip
}

fn node(chip: &str) -> Fabric {
    let name = match chip {
        "a100_80gb_sxm" => "nvlink3_node",
        "h100_80gb_sxm" => "nvlink4_node",
        "b200" => "nvlink5_node",
        _ => "tpu_v6e_ici",
    };
    Fabric::built_in_for_chip(name, chip).unwrap()
}

fn question<'a>(model: &'a Model, devices: u32, lengths: &RequestLengths, level: ServiceLevel) -> ServingQuestion<'a> {
    let formats = ServingFormats::BF16;
    let given = GivenDegrees { pipeline: Some(1), ..GivenDegrees::default() };
    ServingQuestion {
        model,
        devices,
        formats,
        lengths: lengths.clone(),
        level,
        given,
        method: ServingMethod::default(),
        power_limit: None,
    }
}

fn tokens_per_second(
    question: &ServingQuestion<'_>,
    chip: &Accelerator,
    fabric: &Fabric,
    engine: &ServingEngine,
) -> f64 {
    let answer = together(question, ServingHardware { chip, fabric, engine });
    answer.deployments.first().map_or(0.0, |best| best.tokens_per_second)
}

const CHIPS: [&str; 4] = ["a100_80gb_sxm", "h100_80gb_sxm", "b200", "tpu_v6e"];

fn level(first: f64, between: f64) -> ServiceLevel {
    ServiceLevel { time_to_first_token: Some(Seconds(first)), time_per_output_token: Some(Seconds(between)) }
}

#[test]
fn more_of_anything_never_serves_fewer_tokens() {
    let models = ["llama3-8b", "qwen3-30b-a3b", "gpt-oss-20b"].map(|name| Model::load(name).unwrap());
    let lengths = [(1024, 256), (8192, 512), (200, 1000)].map(|(i, o)| RequestLengths::uniform(i, o).unwrap());
    let mut seed = 1u64;
    let mut pick = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % n
    };
    let (mut served, mut broken) = (0, Vec::new());
    for _ in 0..60 {
        let (model, name, lengths) = (&models[pick(3)], CHIPS[pick(4)], &lengths[pick(3)]);
        let engine = engine(["vllm", "sglang", "tensorrt_llm"][pick(3)]);
        let (bandwidth, capacity) = (0.5 + 0.1 * pick(10) as f64, 1.0 + 0.2 * pick(5) as f64);
        let level = level(0.4 + 0.2 * pick(10) as f64, 0.012 + 0.004 * pick(10) as f64);
        let fabric = node(name);
        let chip = chip_like(name, bandwidth, capacity);
        let base = question(model, 2, lengths, level);
        let own = tokens_per_second(&base, &chip, &fabric, &engine);
        let what = format!("{} on {name} x {bandwidth} x {capacity} under {}: {own}", model.name, engine.name);
        served += usize::from(own > 0.0);
        let bound = bound_of_chip(&base, &chip, &engine);
        if own > bound {
            broken.push(format!("{what} is above the bound on the chip, {bound}"));
        }
        let faster = chip_like(name, bandwidth * 1.3, capacity);
        let mut told = vec![(tokens_per_second(&base, &faster, &fabric, &engine), "with more bandwidth")];
        // With more memory, fewer requests wait and more sequences decode at once, each slightly slower. Under a limit
        // on the time per output token, this may cost up to 0.1 %. Without that limit, nothing is lost.
        let larger = chip_like(name, bandwidth, capacity * 1.5);
        told.push((tokens_per_second(&base, &larger, &fabric, &engine) * 1.001, "with more memory"));
        let first_only = ServiceLevel { time_per_output_token: None, ..level };
        let first_only = ServingQuestion { level: first_only, ..base.clone() };
        let smaller = tokens_per_second(&first_only, &chip, &fabric, &engine);
        let larger = tokens_per_second(&first_only, &larger, &fabric, &engine);
        if larger < smaller * (1.0 - 1e-9) {
            broken.push(format!("{what}, first token only: {larger} with more memory, {smaller} with less"));
        }
        let more = ServingQuestion { devices: 4, ..base.clone() };
        told.push((tokens_per_second(&more, &chip, &fabric, &engine), "on more devices"));
        let scale = |limit: Option<Seconds>, by: f64| limit.map(|limit| limit * by);
        for (first, between) in [(1.5, 1.0), (1.0, 1.5)] {
            let looser = ServiceLevel {
                time_to_first_token: scale(level.time_to_first_token, first),
                time_per_output_token: scale(level.time_per_output_token, between),
            };
            let looser = ServingQuestion { level: looser, ..base.clone() };
            told.push((tokens_per_second(&looser, &chip, &fabric, &engine), "at a looser level"));
        }
        let less = told.into_iter().filter(|(tokens, _)| *tokens < own * (1.0 - 1e-9));
        broken.extend(less.map(|(tokens, more)| format!("{what}, {tokens} {more}")));
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(served > 30, "only {served} of 60 questions have an answer");
}

/// Returns the compulsory bytes of a pass's kernels.
fn bytes_of_pass(model: &Model, new: u64, cached: u64) -> u64 {
    let lowering = Lowering { sequence_length: new, weighted_experts: true, ..Lowering::new(model) };
    let pass = ServingPass { cached, expert_ranks: 1, expert_product: None, verifies: false };
    let graph = ServingGraph::new(model, &lowering, pass).unwrap();
    let of_segment = |segment: &workloads::Segment| {
        let nodes = segment.forward_graph();
        nodes.node_weights().map(|node| node.kernel.compulsory_bytes().0).sum::<u64>() * segment.repeat
    };
    graph.segments.iter().map(of_segment).sum()
}

#[test]
fn a_prompt_in_chunks_costs_at_least_its_unchunked_traffic() {
    let engine = engine("vllm");
    for name in ["llama3-8b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-2-9b", "deepseek-v2-lite"] {
        let model = Model::load(name).unwrap();
        for chip in ["h100_80gb_sxm", "tpu_v6e"] {
            let accelerator = chip_like(chip, 1.0, 1.0);
            let fabric = node(chip);
            let plan = ServingPlan::of_one_device(ServingFormats::BF16);
            let mut times = PassTimes::new(&model, &accelerator, &fabric, &engine, plan).unwrap();
            let whole = (bytes_of_pass(&model, 4096, 0), times.prefill(1, 4096, 0).unwrap().total().0);
            for chunk in [512, 1024, 2048] {
                let starts = (0..4096 / chunk).map(|i| i * chunk);
                let bytes: u64 = starts.clone().map(|start| bytes_of_pass(&model, chunk, start)).sum();
                let time: f64 = starts.map(|start| times.prefill(1, chunk, start).unwrap().total().0).sum();
                assert!(bytes >= whole.0, "{name}: {bytes} bytes in chunks of {chunk}, {} at once", whole.0);
                assert!(
                    time >= whole.1 * 0.999,
                    "{name} on {chip}: {time} s in chunks of {chunk}, {} at once",
                    whole.1
                );
            }
        }
    }
}

#[test]
fn decoding_takes_at_least_weights_and_cache_over_the_memory_rate() {
    for (name, chip) in [
        ("llama3-8b", "h100_80gb_sxm"),
        ("llama3-8b", "a100_80gb_sxm"),
        ("llama3-8b", "b200"),
        ("llama3-8b", "tpu_v6e"),
        ("qwen3-32b", "h200"),
        ("gemma-2-9b", "h100_80gb_sxm"),
        ("llama2-7b", "mi300x"),
    ] {
        let model = Model::load(name).unwrap();
        let accelerator = Accelerator::built_in(chip).unwrap();
        let engine = engine("tensorrt_llm");
        let fabric = Fabric::built_in("ideal_switch").unwrap();
        for (products, cache) in [(ServedProduct::Bf16, sim::kernel::DataType::Bf16)] {
            let plan = ServingPlan::of_one_device(ServingFormats { products, experts: products, cache });
            let memory = memory_of_plan(&model, &accelerator, &engine, &plan).unwrap();
            let mut times = PassTimes::new(&model, &accelerator, &fabric, &engine, plan).unwrap();
            // Decoding reads no embedding but the rows of its tokens.
            let embedding = Bytes(2 * model.vocabulary * model.hidden);
            let weights = memory.weights.0 - embedding.0 * u64::from(!model.tied_head);
            for sequences in [1u64, 8, 64] {
                for cached in [128u64, 4096] {
                    let bytes = weights + sequences * memory.cache.of_sequence(cached).0;
                    let least = bytes as f64 / accelerator.hbm.read_bandwidth.0;
                    let time = times.decode(sequences, cached).unwrap().total().0;
                    assert!(time >= least, "{name} on {chip}, {sequences} of {cached}: {time} s, bytes need {least}");
                }
            }
        }
    }
}

#[test]
fn narrower_weights_never_decode_slower() {
    let model = Model::load("qwen3-32b").unwrap();
    let chip = Accelerator::built_in("h100_80gb_sxm").unwrap();
    let (engine, fabric) = (engine("vllm"), node("h100_80gb_sxm"));
    let time = |products: ServedProduct, sequences: u64| {
        let formats = ServingFormats { products, experts: products, ..ServingFormats::BF16 };
        let plan = ServingPlan::of_one_device(formats);
        let mut times = PassTimes::new(&model, &chip, &fabric, &engine, plan).unwrap();
        times.decode(sequences, 1024).unwrap().total()
    };
    for sequences in [1, 8] {
        let wide = time(ServedProduct::Bf16, sequences);
        for narrow in [ServedProduct::Fp8, ServedProduct::Fp8Weights, ServedProduct::Int4Weights] {
            assert!(time(narrow, sequences) < wide, "{narrow} with {sequences}");
        }
        assert!(time(ServedProduct::Int4Weights, sequences) < time(ServedProduct::Fp8Weights, sequences));
    }
}

#[test]
fn few_tokens_read_few_experts() {
    let model = Model::load("gpt-oss-120b").unwrap();
    let experts = |sequences: u64| {
        let lowering =
            Lowering { micro_batch: sequences, sequence_length: 1, weighted_experts: true, ..Lowering::new(&model) };
        let pass = ServingPass { cached: 100, expert_ranks: 1, expert_product: None, verifies: false };
        let graph = ServingGraph::new(&model, &lowering, pass).unwrap();
        let layers = graph.segments.iter().map(|segment| segment.forward_graph());
        let grouped = layers.flat_map(|nodes| {
            let nodes: Vec<Kernel> = nodes.node_weights().map(|node| node.kernel).collect();
            nodes.into_iter().filter_map(|kernel| match kernel {
                Kernel::Contraction(product) if product.batch > 1 => Some(product.batch),
                _ => None,
            })
        });
        grouped.max().unwrap_or(1)
    };
    // A token chooses 4 of 128 experts: one token reaches 4, and b tokens reach 128 (1 - (124 / 128)^b) on average.
    assert_eq!(experts(1), 4);
    for sequences in [2u64, 8, 32, 100] {
        let mean = 128.0 * (1.0 - (124.0f64 / 128.0).powi(sequences as i32));
        assert_eq!(experts(sequences), mean.ceil() as u64, "{sequences}");
    }
    assert_eq!(experts(4096), 128);
}

/// Without a service level, separate pools on the same chips serve less than 1.25 times what one pool serves. With
/// separate pools, neither fewer devices nor a stricter level ever serves more.
#[test]
fn pools_apart_keep_to_what_their_shares_of_the_work_allow() {
    let model = Model::load("llama3-8b").unwrap();
    let (chip, fabric, engine) = (chip_like("h100_80gb_sxm", 1.0, 1.0), node("h100_80gb_sxm"), engine("vllm"));
    let hardware = ServingHardware { chip: &chip, fabric: &fabric, engine: &engine };
    let lengths = RequestLengths::uniform(4096, 256).unwrap();
    let most = |question: &ServingQuestion<'_>| {
        let one = together(question, hardware).deployments.first().map_or(0.0, |best| best.tokens_per_second);
        let two = apart(question, hardware, hardware).deployments.first().map_or(0.0, |best| best.tokens_per_second);
        (one, two)
    };
    let (one, two) = most(&question(&model, 8, &lengths, ServiceLevel::default()));
    assert!(one > 0.0 && two > 0.0 && two < one * 1.25, "{one} together, {two} apart");
    // Fewer devices never serve more, in pools apart as well.
    let (_, fewer) = most(&question(&model, 4, &lengths, ServiceLevel::default()));
    assert!(fewer <= two * (1.0 + 1e-9), "{fewer} on 4, {two} on 8");
    // Looser levels never serve less.
    let mut last = 0.0;
    for between in [0.006, 0.008, 0.012, 0.02, 0.05] {
        let (_, two) = most(&question(&model, 8, &lengths, level(2.0, between)));
        assert!(two >= last, "{two} at {between} s, {last} at less");
        last = two;
    }
}

/// A looser service level never serves less under a power limit, although power may jump where more sequences take
/// another tile. Clocks are whole MHz, so rates are exact only to a thousandth.
#[test]
fn a_looser_level_under_a_limit_of_power_never_serves_less() {
    let model = Model::load("llama3.1-8b").unwrap();
    let engine = engine("vllm");
    let mut held = 0;
    for (name, watts) in [("a100_80gb_sxm", 280.0), ("h100_80gb_sxm", 420.0), ("tpu_v6e", 180.0)] {
        let (chip, fabric) = (chip_like(name, 1.0, 1.0), node(name));
        let hardware = ServingHardware { chip: &chip, fabric: &fabric, engine: &engine };
        for (input, output) in [(64, 64), (1024, 256)] {
            let lengths = RequestLengths::uniform(input, output).unwrap();
            let mut last = 0.0;
            for step in 0..24 {
                let between = 0.012 * 1.045_f64.powi(step);
                let mut question = question(&model, 4, &lengths, level(10.0, between));
                question.power_limit = Some(Watts(watts));
                let answer = together(&question, hardware);
                let best = answer.deployments.first().map_or(0.0, |best| best.tokens_per_second);
                assert!(best >= last * 0.999, "{name}, {input}: {best} at {between} s, {last} at less");
                last = last.max(best);
                held +=
                    usize::from(answer.deployments.first().is_some_and(|of| of.decode.clock < of.decode.full_clock));
            }
        }
    }
    assert!(held > 30, "{held} at a lower clock");
}

/// The mean power of a device is at most its limit, and a higher limit never serves less. The chip runs at the clock at
/// which it serves most within the limit. Rates that were measured under a published limit are not lowered by it.
#[test]
fn a_higher_limit_on_power_never_serves_less() {
    let model = Model::load("llama3-8b").unwrap();
    let engine = engine("vllm");
    let (mut lowered, mut refused) = (0, 0);
    for name in ["h100_80gb_sxm", "tpu_v6e", "b200"] {
        let (chip, fabric) = (chip_like(name, 1.0, 1.0), node(name));
        for (input, output) in [(4096, 64), (512, 512)] {
            let lengths = RequestLengths::uniform(input, output).unwrap();
            let mut last = [0.0; 2];
            for watts in [60.0, 120.0, 180.0, 240.0, 300.0, 400.0, 500.0, 600.0, 700.0, 1000.0, 2000.0] {
                let hardware = ServingHardware { chip: &chip, fabric: &fabric, engine: &engine };
                let mut question = question(&model, 2, &lengths, level(4.0, 0.05));
                question.power_limit = Some(Watts(watts));
                for (pools, answer) in
                    [together(&question, hardware), apart(&question, hardware, hardware)].iter().enumerate()
                {
                    let best = answer.deployments.first().map_or(0.0, |best| best.tokens_per_second);
                    assert!(
                        best >= last[pools] * (1.0 - 1e-9),
                        "{name}, {input}: {best} at {watts} W, {last:?} at less"
                    );
                    last[pools] = best;
                    refused += usize::from(best == 0.0);
                    for pool in
                        answer.deployments.iter().flat_map(|of| [Some(&of.decode), of.prefill.as_ref()]).flatten()
                    {
                        assert!(pool.power <= Watts(watts * 1.001), "{name}: {:?} at {watts} W", pool.power);
                        lowered += usize::from(pool.clock < pool.full_clock);
                    }
                }
            }
            assert!(last.iter().all(|rate| *rate > 0.0), "{name}: {last:?}");
        }
    }
    assert!(lowered > 10 && refused > 0, "{lowered} lowered, {refused} refused");
}

/// An engine with several values of `most_tokens` serves as much as with the best of them alone.
#[test]
fn a_plan_takes_the_setting_that_serves_most() {
    let model = Model::load("llama3.2-1b").unwrap();
    let (chip, fabric, ideal) = (chip_like("h100_80gb_sxm", 1.0, 1.0), node("h100_80gb_sxm"), engine("ideal"));
    let settings = ideal.settings();
    let mut chosen = Vec::new();
    for (input, between) in [(16_384, 0.001), (8192, 0.02), (64, 0.001)] {
        let lengths = RequestLengths::uniform(input, 64).unwrap();
        let asked = question(&model, 4, &lengths, level(1.0, between));
        let best = |engine: &ServingEngine| {
            let hardware = ServingHardware { chip: &chip, fabric: &fabric, engine };
            let one = together(&asked, hardware).deployments.first().cloned().unwrap();
            let two = apart(&asked, hardware, hardware).deployments.first().map_or(0.0, |two| two.tokens_per_second);
            (one.tokens_per_second, two, one.decode.most_tokens)
        };
        let (together, apart, most_tokens) = best(&ideal);
        let each: Vec<_> = settings.iter().map(best).collect();
        assert_eq!(together, each.iter().map(|one| one.0).fold(0.0, f64::max), "{each:?}");
        assert!(apart >= each.iter().map(|one| one.1).fold(0.0, f64::max), "{apart}, {each:?}");
        chosen.push(most_tokens);
    }
    assert_eq!(settings.iter().map(|one| one.batching.most_tokens).collect::<Vec<_>>(), [8192, 512, 2048]);
    assert!(chosen.iter().any(|most| *most != chosen[0]), "{chosen:?}");
}

/// The rates of a chip that is built were measured within its published limit, which lowers them no further. An ideal
/// chip keeps to the limit by its clock.
#[test]
fn the_published_limit_lowers_no_measured_rates() {
    let model = Model::load("llama3-8b").unwrap();
    let engine = engine("vllm");
    let (mut chip, fabric) = (chip_like("mi300x", 1.0, 1.0), node("mi300x"));
    let lengths = RequestLengths::uniform(4096, 64).unwrap();
    let pool = |chip: &Accelerator| {
        let hardware = ServingHardware { chip, fabric: &fabric, engine: &engine };
        together(&question(&model, 1, &lengths, ServiceLevel::default()), hardware).deployments.remove(0).decode
    };
    let measured = pool(&chip);
    assert!(measured.clock == measured.full_clock && measured.power <= Watts(750.0 * (1.0 + 1e-9)), "{measured:?}");
    // Without the published limit, the model's energies give more than 750 W.
    chip.published.tdp = None;
    assert!(pool(&chip).power > Watts(750.0));
    chip.published.tdp = Some(Watts(750.0));
    let ideal = pool(&chip.without_measured_limits());
    assert!(ideal.clock < ideal.full_clock && ideal.power <= Watts(750.0 * (1.0 + 1e-9)), "{ideal:?}");
}
