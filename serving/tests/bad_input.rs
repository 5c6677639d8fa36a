//! Bad engine files, plans and lengths are refused with key, value, limit and cure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_serving::lengths::{LengthClass, RequestLengths};
use coplace_serving::{PassTimes, ServingEngine, ServingFormats, ServingPlan};
use sim::files::carried::Files;
use sim::hardware::Accelerator;
use sim::network::Fabric;
use workloads::Model;

const VLLM: &str = include_str!("../engines/vllm.toml");

fn refused(text: &str) -> String {
    ServingEngine::from_toml_str("own.toml", text).unwrap_err().to_string()
}

#[test]
fn engine_files() {
    assert!(ServingEngine::from_toml_str("own.toml", VLLM).is_ok());
    let unknown = refused(&VLLM.replace("gap_us", "gap_ms"));
    assert!(
        unknown.starts_with("own.toml: ") && unknown.contains("gap_ms") && unknown.contains("vllm.toml"),
        "{unknown}"
    );
    let missing = refused(&VLLM.replace("page_tokens = 16\n", ""));
    assert!(missing.contains("page_tokens"), "{missing}");
    let range = refused(&VLLM.replace("used_fraction = 0.9", "used_fraction = 1.9"));
    assert_eq!(range, "own.toml: memory.used_fraction = 1.9: must be from 0.05 to 1; give a value in that range");
    let nan = refused(&VLLM.replace("used_fraction = 0.9", "used_fraction = nan"));
    assert!(nan.contains("memory.used_fraction = NaN: must be from 0.05 to 1"), "{nan}");
    let unsourced = refused(&VLLM.replace("\"kernels.own_sum_us\"", "\"kernels.other\""));
    assert!(unsourced.contains("kernels.own_sum_us = 8.0: has no source; state under [sources]"), "{unsourced}");
    let form = refused(&VLLM.replace("form = \"mixed\"", "form = \"other\""));
    assert!(form.contains("prompts_first"), "{form}");
    assert!(refused("name = ").contains("own.toml"));
    let files = Files::default();
    let name = ServingEngine::load_from("vlm", &files).unwrap_err().to_string();
    assert!(name.contains("vlm: no such engine") && name.contains("vllm"), "{name}");
    let path = ServingEngine::load_from("/none/own.toml", &files).unwrap_err().to_string();
    assert!(
        path.starts_with("/none/own.toml: ") && path.ends_with("give the path of a readable engine file"),
        "{path}"
    );
}

#[test]
fn plans() {
    let dense = Model::load("llama3-8b").unwrap();
    let sparse = Model::load("qwen3-30b-a3b").unwrap();
    let one = ServingPlan::of_one_device(ServingFormats::BF16);
    let fault = |model: &Model, plan: ServingPlan| plan.check_degrees(model).unwrap_err().to_string();
    for (key, plan) in [
        ("tp", ServingPlan { tensor: 0, ..one }),
        ("pp", ServingPlan { pipeline: 0, ..one }),
        ("attention_dp", ServingPlan { attention_data: 0, ..one }),
    ] {
        assert_eq!(fault(&dense, plan), format!("{key} = 0: must be at least 1; give 1 or more"));
    }
    let stages = fault(&dense, ServingPlan { pipeline: 33, ..one });
    assert_eq!(stages, "pp = 33: has only 32 layers or blocks to share out; give at most 32");
    let experts = fault(&dense, ServingPlan { expert: 2, tensor: 2, ..one });
    assert!(experts.starts_with("ep = 2: needs experts, which the model has not"), "{experts}");
    let group = fault(&sparse, ServingPlan { attention_data: 4, tensor: 2, expert: 4, ..one });
    assert_eq!(group, "ep = 4: must be tp x attention_dp = 8 where attention is data-parallel; give 8");
    let part = fault(&sparse, ServingPlan { tensor: 8, expert: 3, ..one });
    assert!(part.starts_with("ep = 3: must divide the 8 devices of a stage and the 128 experts"), "{part}");
    assert!(fault(&sparse, ServingPlan { expert: 0, ..one }).starts_with("ep = 0: "));
    // A fabric with too few devices.
    let engine = ServingEngine::load_from("vllm", &Files::default()).unwrap();
    let chip = Accelerator::built_in("h100_80gb_sxm").unwrap();
    let fabric = Fabric::built_in_for_chip("nvlink4_node", "h100_80gb_sxm").unwrap();
    let wide =
        PassTimes::new(&dense, &chip, &fabric, &engine, ServingPlan { tensor: 16, ..one }).unwrap_err().to_string();
    assert!(wide.contains("16") && wide.contains('8'), "{wide}");
}

#[test]
fn lengths() {
    let fault = |input: u64, output: u64| RequestLengths::uniform(input, output).unwrap_err().to_string();
    assert!(fault(0, 5).starts_with("input = 0: must be from 1 to 16777216"));
    assert!(fault(5, 1).starts_with("output = 1: must be from 2 to 16777216"));
    assert!(fault(u64::MAX, 5).starts_with("input = 18446744073709551615: "));
    assert!(RequestLengths::new(&[]).unwrap_err().to_string().starts_with("lengths = none: "));
    for share in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let class = LengthClass { input: 5, output: 5, share };
        assert!(RequestLengths::new(&[class]).unwrap_err().to_string().starts_with("share = "), "{share}");
    }
}
