//! The plan nearest to serving: by hand, and by brute force over the refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_serving::best::{GivenDegrees, ServiceLevel, ServingHardware, ServingQuestion, together};
use coplace_serving::lengths::RequestLengths;
use coplace_serving::nearest::{miss_of_refusal, nearest_memory, nearest_refusal};
use coplace_serving::{ServingEngine, ServingFormats, ServingMethod};
use sim::files::carried::Files;
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::units::Seconds;
use workloads::Model;

fn question<'a>(model: &'a Model, devices: u32, level: ServiceLevel) -> ServingQuestion<'a> {
    ServingQuestion {
        model,
        devices,
        formats: ServingFormats::BF16,
        lengths: RequestLengths::uniform(1024, 256).unwrap(),
        level,
        given: GivenDegrees::default(),
        method: ServingMethod::default(),
        power_limit: None,
    }
}

#[test]
fn a_memory_that_is_too_small_is_named_with_its_need() {
    let chip = Accelerator::built_in("h100_80gb_sxm").unwrap();
    let fabric = Fabric::built_in_for_chip("nvlink4_node", "h100_80gb_sxm").unwrap();
    let engine = ServingEngine::load_from("vllm", &Files::default()).unwrap();
    let hardware = ServingHardware { chip: &chip, fabric: &fabric, engine: &engine };
    let model = Model::load("llama3-70b").unwrap();
    let one = nearest_memory(&question(&model, 1, ServiceLevel::default()), hardware).unwrap();
    // 70.55 billion weights in bf16, with working memory and one request. vLLM takes nine tenths of 80 GiB.
    assert!(one.need.gib() > 131.4 && one.need.gib() < 140.0, "{one:?}");
    assert!((one.usable.gib() - 72.0).abs() < 0.1 && one.factor() > 1.8, "{one:?}");
    let two = nearest_memory(&question(&model, 2, ServiceLevel::default()), hardware).unwrap();
    assert!(two.factor() < one.factor() && two.plan.devices() == 2, "{two:?}");
    let eight = nearest_memory(&question(&model, 8, ServiceLevel::default()), hardware).unwrap();
    assert!(eight.factor() < 1.0, "{eight:?}");
}

#[test]
fn the_nearest_refusal_of_several_chips_misses_by_the_least_factor() {
    let model = Model::load("llama3-8b").unwrap();
    let engine = ServingEngine::load_from("vllm", &Files::default()).unwrap();
    let level = ServiceLevel { time_to_first_token: Some(Seconds(5e-3)), time_per_output_token: Some(Seconds(1e-3)) };
    let question = question(&model, 4, level);
    let sides = [("h100_80gb_sxm", "nvlink4_node"), ("h200", "nvlink4_node"), ("b200", "nvlink5_node")];
    let answers: Vec<_> = sides
        .iter()
        .map(|(chip, fabric)| {
            let fabric = Fabric::built_in_for_chip(fabric, chip).unwrap();
            let chip = Accelerator::built_in(chip).unwrap();
            together(&question, ServingHardware { chip: &chip, fabric: &fabric, engine: &engine })
        })
        .collect();
    let nearest = miss_of_refusal(nearest_refusal(&answers, &level).unwrap(), &level);
    let all = answers.iter().flat_map(|answer| &answer.refused);
    let misses: Vec<f64> = all.map(|refusal| miss_of_refusal(refusal, &level)).collect();
    assert!(misses.len() > 6 && misses.iter().all(|miss| *miss >= nearest && *miss > 1.0), "{misses:?}");
    // The nearest refusal of the first chip misses by a larger factor: the order of the chips does not decide.
    let first = miss_of_refusal(nearest_refusal(&answers[..1], &level).unwrap(), &level);
    assert!(first > nearest, "{first} {nearest}");
}
