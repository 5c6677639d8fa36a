//! The content of PHAZE instance files, the messages for rejected ones, and the faults that the plan verifier finds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use coplace_interop::phaze::{self, PhazeInstance, PlacementError, PlanFault, Recorded};
use serde_json::{Value, json};

fn layer(id: i64) -> Value {
    json!({"id": id, "parameterSize": 4.0, "activationSize": 2.0, "optimalLatencyFw": 1.0, "optimalLatencyBw": 2.0,
        "isTensorParallelized": false})
}

fn edge(from: i64, to: i64) -> Value {
    json!({"sourceId": from, "destId": to, "communicationCost": 8.0})
}

/// Three layers in a chain, at widths 1 and 2.
fn problem() -> Value {
    let nodes = json!([layer(-1), layer(0), layer(1)]);
    let edges = json!([edge(-1, 0), edge(0, 1), edge(-1, 1)]);
    json!({"maxMemoryPerDevice": 100.0, "maxDevices": 8, "bandwidth": 4.0, "mbsInBatch": 6, "activationRecomputation": false,
        "optimizerAlgorithm": "SGD", "fixedPP": 1, "fixedTMPC": 1, "fixedDP": 1, "numTransformerLayers": 2,
        "nodes": {"1": nodes, "2": nodes}, "edges": {"1": edges, "2": edges}})
}

fn read(value: &Value) -> Result<PhazeInstance, PlacementError> {
    PhazeInstance::from_json_str(&value.to_string())
}

/// The message for the problem with one value replaced (or removed, for `None`) at a JSON pointer.
fn message(pointer: &str, value: Option<Value>) -> String {
    let mut problem = problem();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = problem.pointer_mut(parent).unwrap();
    match (parent, value) {
        (Value::Object(object), Some(value)) => drop(object.insert(key.into(), value)),
        (Value::Object(object), None) => drop(object.remove(key).unwrap()),
        (Value::Array(list), Some(value)) => match key {
            "-" => list.push(value),
            index => list[index.parse::<usize>().unwrap()] = value,
        },
        (Value::Array(list), None) => drop(list.remove(key.parse().unwrap())),
        _ => panic!("no place {pointer}"),
    }
    read(&problem).unwrap_err().to_string()
}

#[track_caller]
fn rejected(pointer: &str, value: impl Into<Option<Value>>, parts: &[&str]) {
    let message = message(pointer, value.into());
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

#[test]
fn a_bare_problem_and_a_wrapped_one_are_the_same() {
    let bare = read(&problem()).unwrap();
    assert_eq!((bare.layers(), bare.devices(), bare.widths()), (3, 8, vec![1, 2]));
    assert_eq!(read(&json!({"input": problem(), "meta": {}, "expected": null, "note": "any"})).unwrap(), bare);
    let mut companions = problem();
    companions["meta"] = json!({});
    companions["expected"] = json!({"time_per_batch": 1e30});
    assert_eq!(read(&companions).unwrap(), bare);
    assert_eq!(Recorded::from_json_str(&companions.to_string()).unwrap().unwrap().time_per_batch, None);
    assert_eq!(Recorded::from_json_str("{}").unwrap(), None);
}

/// Keys that do not affect the optimum are ignored. A recorded answer is checked only by callers that request it.
#[test]
fn notes_are_passed_over_and_recorded_times_are_checked() {
    let bare = read(&problem()).unwrap();
    for nonsense in [json!(-3), json!("two"), json!({}), json!(null)] {
        let mut noted = problem();
        for key in ["fixedPP", "fixedTMPC", "fixedDP", "numTransformerLayers", "meta", "expected"] {
            noted[key] = nonsense.clone();
        }
        assert_eq!(read(&noted).unwrap(), bare, "{nonsense}");
    }
    let fault = |expected: serde_json::Value| {
        Recorded::from_json_str(&json!({ "expected": expected }).to_string()).unwrap_err().to_string()
    };
    for (expected, key) in [
        (json!({"time_per_batch": -2}), "expected.time_per_batch"),
        (json!({"time_per_batch": 2, "phaze_seconds": -2}), "expected.phaze_seconds"),
        (json!({"time_per_batch": 2, "time_per_batch_per_width": {"4": -2}}), "expected.time_per_batch_per_width.4"),
    ] {
        let message = fault(expected);
        assert!(message.contains(key) && message.contains("a time is at least 0 (1e30: infeasible)"), "{message}");
    }
    assert!(fault(json!({"time_per_batch": "soon"})).contains("expected.time_per_batch"));
}

#[test]
fn a_fraction_of_a_micro_batch_is_cut_off_and_the_fixed_baseline_is_optional() {
    let mut problem = problem();
    let whole = read(&problem).unwrap();
    problem["mbsInBatch"] = json!(6.9);
    problem["maxDevices"] = json!(8.0);
    for key in ["fixedPP", "fixedTMPC", "fixedDP", "numTransformerLayers"] {
        problem.as_object_mut().unwrap().remove(key);
    }
    assert_eq!(read(&problem).unwrap(), whole);
}

#[test]
fn the_order_of_layers_and_edges_in_the_file_does_not_matter() {
    let mut shuffled = problem();
    shuffled["nodes"]["2"].as_array_mut().unwrap().reverse();
    shuffled["edges"]["1"].as_array_mut().unwrap().reverse();
    assert_eq!(read(&shuffled).unwrap(), read(&problem()).unwrap());
}

#[test]
fn scalars_out_of_range_name_the_key_the_value_and_the_cure() {
    rejected("/bandwidth", json!(0), &["bandwidth is 0", "from 1e-9", "bytes per second"]);
    rejected("/bandwidth", json!(-3.5), &["bandwidth is -3.5"]);
    rejected("/bandwidth", json!("fast"), &["bandwidth is \"fast\", expected a number"]);
    rejected("/bandwidth", None, &["bandwidth is missing", "a number"]);
    rejected("/maxMemoryPerDevice", json!(-1), &["maxMemoryPerDevice is -1"]);
    rejected("/maxDevices", json!(0), &["maxDevices is 0", "from 1"]);
    rejected("/maxDevices", json!(10_001), &["maxDevices is 10001", "10000"]);
    rejected("/maxDevices", json!(2.5), &["maxDevices is 2.5, expected a whole number"]);
    rejected("/mbsInBatch", json!(0.9), &["mbsInBatch is 0.9", "from 1"]);
    rejected("/mbsInBatch", json!(1e12), &["mbsInBatch is 1000000000000"]);
    rejected("/optimizerAlgorithm", json!("adamw"), &["optimizerAlgorithm is \"adamw\"", "SGD", "Adam"]);
    rejected("/activationRecomputation", json!(1), &["activationRecomputation is 1, expected true or false"]);
    rejected("/bandwith", json!(1), &["bandwith is not a known key", "bandwidth"]);
    let text = problem().to_string().replace("4.0", "NaN");
    assert!(PhazeInstance::from_json_str(&text).unwrap_err().to_string().contains("numbers are finite"));
}

#[test]
fn faults_in_a_layer_or_an_edge_name_its_place() {
    rejected("/nodes/2/1/parameterSize", json!(-4), &["nodes.\"2\"[1].parameterSize is -4", "from 0 to"]);
    rejected("/nodes/2/1/optimalLatencyFw", None, &["nodes.\"2\"[1].optimalLatencyFw is missing"]);
    rejected("/nodes/2/1/latency", json!(1), &["nodes.\"2\"[1].latency is not a known key", "optimalLatencyBw"]);
    rejected("/nodes/2/1/id", json!(1.5), &["nodes.\"2\"[1].id is 1.5"]);
    rejected("/nodes/2/1/id", json!(-1), &["layer id -1 occurs twice"]);
    rejected("/nodes/1/0/isTensorParallelized", json!(true), &["nodes.\"1\"[0].isTensorParallelized", "width 1"]);
    rejected("/edges/2/0/destId", json!(7), &["edges.\"2\"[0].destId is 7", "3 layers"]);
    rejected("/edges/2/0/communicationCost", json!(-8), &["edges.\"2\"[0].communicationCost is -8"]);
    rejected("/edges/1/0", edge(0, 0), &["edges.\"1\"[0]", "layer 0 to layer 0 itself"]);
    rejected("/edges/1/-", edge(0, 1), &["edges.\"1\"[3]", "a second time"]);
    rejected("/nodes/1", json!([]), &["0 layers"]);
    rejected("/nodes/1", json!(3), &["nodes.\"1\" is 3, expected a list"]);
    rejected("/nodes", json!({}), &["the layers of that width", "nodes.\"1\" is missing"]);
}

#[test]
fn widths_must_describe_the_same_model() {
    rejected("/nodes/x", json!([layer(0)]), &["edges.\"x\" is missing"]);
    rejected("/edges/4", json!([]), &["nodes.\"4\" is missing"]);
    rejected("/edges/2", None, &["edges.\"2\" is missing"]);
    rejected("/nodes/2/-", layer(9), &["tensor width 2", "layer 9"]);
    rejected("/edges/2/2", None, &["tensor width 2", "edge -1 -> 1"]);
    let mut named = problem();
    named["nodes"]["two"] = named["nodes"]["2"].clone();
    named["edges"]["two"] = named["edges"]["2"].clone();
    assert!(read(&named).unwrap_err().to_string().contains("a tensor width is a whole number"));
    let mut zero = problem();
    zero["nodes"]["0"] = zero["nodes"]["2"].clone();
    zero["edges"]["0"] = zero["edges"]["2"].clone();
    assert!(read(&zero).unwrap_err().to_string().contains("from 1 to 10000"));
}

#[test]
fn cycles_and_branches_are_named() {
    let with_edges = |edges: Value| {
        let mut problem = problem();
        problem["edges"] = json!({"1": edges, "2": edges});
        read(&problem).unwrap_err()
    };
    let cycle = with_edges(json!([edge(-1, 0), edge(0, 1), edge(1, 0)]));
    assert!(matches!(cycle, PlacementError::Cycle { layer: 0, remaining: 2 }), "{cycle}");
    let branch = with_edges(json!([edge(-1, 0), edge(-1, 1)]));
    assert!(matches!(branch, PlacementError::Branching { first: 0, second: 1 }), "{branch}");
    assert!(branch.to_string().contains("only a chain of layers"));
    let loose = with_edges(json!([]));
    assert!(matches!(loose, PlacementError::Branching { .. }), "{loose}");
}

#[test]
fn file_errors_name_the_file() {
    let error = PhazeInstance::read_file("no/such/file.json").unwrap_err().to_string();
    assert!(error.contains("no/such/file.json") && error.contains("check the path"), "{error}");
    let broken = std::env::temp_dir().join(format!("coplace-broken-{}.json", std::process::id()));
    std::fs::write(&broken, "{\"input\": 3}").unwrap();
    let error = PhazeInstance::read_file(&broken).unwrap_err().to_string();
    std::fs::remove_file(&broken).unwrap();
    assert!(error.contains("coplace-broken") && error.contains("input is 3, expected an object"), "{error}");
}

#[test]
fn the_verifier_reports_every_fault() {
    let instance = read(&problem()).unwrap();
    let plan = phaze::place_chain(&instance).plan.unwrap();
    assert!(phaze::evaluate_plan(&instance, &plan).is_ok());
    let faults = |change: &dyn Fn(&mut phaze::PhazePlan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        phaze::evaluate_plan(&instance, &plan).unwrap_err()
    };
    assert!(matches!(faults(&|plan| plan.tensor_width = 3)[..], [PlanFault::UnknownWidth { width: 3, .. }]));
    let two = faults(&|plan| {
        plan.data_parallel = 7;
        plan.stages.pop();
    });
    assert!(
        matches!(two[..], [PlanFault::DataParallel { degree: 7, most: 6 }, PlanFault::Uncovered { .. }]),
        "{two:?}"
    );
    assert!(matches!(faults(&|plan| plan.stages[0].first_layer = 1)[..], [PlanFault::Cover { stage: 0, .. }]));
    assert!(matches!(faults(&|plan| plan.stages[0].load *= 1.1)[..], [PlanFault::Stated { what: "load", .. }]));
    assert!(matches!(faults(&|plan| plan.stages[0].devices = 2)[..], [PlanFault::StageDevices { needed: 1, .. }, ..]));

    let mut tight = problem();
    tight["maxMemoryPerDevice"] = json!(25.0);
    tight["maxDevices"] = json!(1);
    let tight = read(&tight).unwrap();
    let found = phaze::evaluate_plan(&tight, &plan).unwrap_err();
    assert!(matches!(found[..], [PlanFault::DataParallel { .. }]), "{found:?}");
    let mut single = plan.clone();
    single.data_parallel = 1;
    let found = phaze::evaluate_plan(&tight, &single).unwrap_err();
    assert!(
        matches!(found[..], [PlanFault::Memory { stage: 0, need, limit }] if need == 30.0 && limit == 25.0),
        "{found:?}"
    );
}

#[test]
fn an_infeasible_answer_names_the_nearest_split() {
    let mut tight = problem();
    tight["maxMemoryPerDevice"] = json!(9.0);
    let solution = phaze::place_chain(&read(&tight).unwrap());
    assert!(!solution.is_feasible() && solution.time_per_batch.is_none());
    let why = solution.infeasible_reason().unwrap();
    assert!(why.contains("needs 14 bytes") && why.contains("3 stage(s)") && why.contains("lacks 5 bytes"), "{why}");
}
