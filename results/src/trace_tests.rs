#![allow(clippy::unwrap_used)]
use super::*;
use search::bench::Bench;
use search::evaluate::{Degrees, fixed_plan};
use search::explain::explain;
use search::placement::plan::LayerSplit;
use search::study::Study;
use sim::network::Fabric;
use workloads::Model;

/// The passes of BERT-large's slowest stage, tensor-parallel over two devices, on a chip.
fn passes(chip: &Accelerator) -> Vec<PassDetail> {
    let mut study = Study::load("phaze").unwrap();
    study.cluster.devices = 8;
    study.cluster.global_batch_sequences = 64;
    study.plan.tensor_parallel = vec![2];
    study.plan.micro_batch_sequences = vec![2];
    let fabric = Fabric::template(&study.cluster.fabric).unwrap();
    let bench = Bench::new(Model::load("bert-large").unwrap(), &study, &fabric, None).unwrap();
    let degrees = Degrees { pipeline: 1, data: 4, tensor: 2 };
    let evaluation = fixed_plan(&bench, chip.clone(), degrees, None, LayerSplit::Optimal);
    explain(&bench, chip.clone(), &evaluation.outcome.unwrap()).unwrap().passes
}

/// (track, name, start, end) of every complete event, in microseconds.
fn complete(trace: &Value) -> Vec<(u64, String, f64, f64)> {
    let number = |e: &Value, key: &str| e[key].as_f64().unwrap();
    let events = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X");
    events
        .map(|e| {
            let start = number(e, "ts");
            (e["tid"].as_u64().unwrap(), e["name"].as_str().unwrap().to_owned(), start, start + number(e, "dur"))
        })
        .collect()
}

#[test]
fn events_lie_within_the_passes_and_never_overlap_on_a_track() {
    for name in ["tpu_v4", "a100_80gb_sxm"] {
        let chip = Accelerator::template(name).unwrap();
        let passes = passes(&chip);
        let text = trace("test", &passes, &chip);
        assert_eq!(text, trace("test", &passes, &chip));
        let events = complete(&serde_json::from_str(&text).unwrap());
        let total = passes.iter().map(|p| p.scheduled.makespan().micros()).sum::<f64>();
        // Every kernel is there; times are exact picoseconds, rounded as microseconds in floating point.
        let kernels: usize = passes.iter().map(|p| p.scheduled.graph.node_count()).sum();
        assert!(events.len() >= kernels + passes.len(), "{} events of {kernels} kernels", events.len());
        let slack = 1e-6;
        assert!(events.iter().all(|(.., start, end)| *start >= 0.0 && start < end && *end <= total + slack));
        assert!(events.iter().any(|(.., end)| (end - total).abs() < slack));
        let mut sorted = events.clone();
        sorted.sort_by(|a, b| a.0.cmp(&b.0).then(a.2.total_cmp(&b.2)));
        for pair in sorted.windows(2).filter(|p| p[0].0 == p[1].0) {
            assert!(pair[0].3 <= pair[1].2 + slack, "{name}: {:?} and {:?}", pair[0], pair[1]);
        }
    }
}

#[test]
fn tracks_are_named_and_events_say_what_bounds_them() {
    let chip = Accelerator::template("tpu_v4").unwrap();
    let trace: Value = serde_json::from_str(&trace("BERT", &passes(&chip), &chip)).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let names: Vec<&str> =
        events.iter().filter(|e| e["name"] == "thread_name").map(|e| e["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(names[..3], ["passes", "all tensor cores", "all vector cores"]);
    assert!(names.contains(&"network link 0") && names.contains(&"tensor core 1"), "{names:?}");
    let reduce = events.iter().find(|e| e["name"].as_str().unwrap().ends_with("all_reduce")).unwrap();
    assert_eq!(reduce["args"]["bound_by"], "network");
    assert_eq!(names[reduce["tid"].as_u64().unwrap() as usize], "network link 0");
}
