#![allow(clippy::unwrap_used)]
use super::*;
use search::planner::{Job, NO_MARGIN, PlanSpace, search_plans};
use sim::network::Fabric;
use step::SoftwareStack;
use workloads::Model;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;

/// Explains the fastest plan of BERT-large on eight devices with two stages and tensor-parallel degree 2.
pub(crate) fn explained(chip: &Accelerator, stack: &str) -> ExplainedPlan {
    let (model, fabric) = (Model::load("bert-large").unwrap(), Fabric::built_in("ideal_switch").unwrap());
    let (stack, fabric) = (SoftwareStack::load(stack).unwrap(), fabric.for_devices(8).unwrap());
    let job = Job {
        model: &model,
        chip,
        fabric: &fabric,
        stack: &stack,
        devices: 8,
        global_batch: 64,
        sequence_length: 512,
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        headroom: sim::units::Bytes::ZERO,
        fit: NO_MARGIN,
        techniques: workloads::Techniques::none(),
    };
    let space = PlanSpace {
        tensor: Some(vec![2]),
        pipeline: Some(vec![2]),
        micro_batch: Some(vec![2]),
        sequence_parallel: Some(vec![false]),
        ..PlanSpace::default()
    };
    let answer = search_plans(&job, &space, 1).unwrap();
    ExplainedPlan::explain_plan(&job, &answer.best[0]).unwrap()
}

/// Returns (track, name, start, end) of every complete event of a process, with times in microseconds.
fn complete(trace: &Value, process: u64) -> Vec<(u64, String, f64, f64)> {
    let number = |e: &Value, key: &str| e[key].as_f64().unwrap();
    let events = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X" && e["pid"] == process);
    events
        .map(|e| {
            let start = number(e, "ts");
            (e["tid"].as_u64().unwrap(), e["name"].as_str().unwrap().to_owned(), start, start + number(e, "dur"))
        })
        .collect()
}

#[test]
fn kernels_never_overlap_on_a_track() {
    for (name, stack) in [("tpu_v4", "ideal"), ("a100_80gb_sxm", "megatron"), ("a100_80gb_sxm", "ideal")] {
        let chip = Accelerator::built_in(name).unwrap();
        let explained = explained(&chip, stack);
        let text = kernel_trace("test", &explained, &chip);
        assert_eq!(text, kernel_trace("test", &explained, &chip));
        let events = complete(&serde_json::from_str(&text).unwrap(), 2);
        let passes = &explained.why.passes;
        let kernels: usize = passes.iter().map(|p| p.kernels.iter().filter(|k| k.latency.0 > 0.0).count()).sum();
        assert!(events.len() >= kernels + passes.len(), "{} events of {kernels} kernels", events.len());
        let slack = 1e-6;
        assert!(events.iter().all(|(.., start, end)| *start >= 0.0 && start < end));
        let mut sorted = events.clone();
        sorted.sort_by(|a, b| a.0.cmp(&b.0).then(a.2.total_cmp(&b.2)));
        for pair in sorted.windows(2).filter(|p| p[0].0 == p[1].0) {
            assert!(pair[0].3 <= pair[1].2 + slack, "{name}: {:?} and {:?}", pair[0], pair[1]);
        }
    }
}

#[test]
fn tracks_are_named_and_events_say_what_bounds_them() {
    let chip = Accelerator::built_in("tpu_v4").unwrap();
    let trace: Value = serde_json::from_str(&kernel_trace("BERT", &explained(&chip, "ideal"), &chip)).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let ours = || events.iter().filter(|e| e["pid"] == 2);
    let names: Vec<&str> =
        ours().filter(|e| e["name"] == "thread_name").map(|e| e["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(names[..3], ["passes", "all tensor cores", "all vector cores"]);
    assert!(names.contains(&"network") && names.contains(&"tensor core 1"), "{names:?}");
    let sent = ours().find(|e| e["args"]["bound_by"] == "network").unwrap();
    let name = sent["name"].as_str().unwrap();
    assert!(["all_reduce", "all_gather", "reduce_scatter"].iter().any(|kind| name.contains(kind)), "{name}");
    assert_eq!(names[sent["tid"].as_u64().unwrap() as usize], "network");
    // The stages come first.
    let stages: Vec<&Value> = events.iter().filter(|e| e["name"] == "process_name" && e["pid"] != 2).collect();
    assert_eq!(stages.len(), 2);
}
