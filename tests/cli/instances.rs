//! `coplace place` and `coplace schedule` on the carried instances: the JSON has the recorded optima.

use crate::support::{CommandOutput, files_with_ending, run_coplace};
use serde_json::{Value, json};

fn lines(called: CommandOutput) -> Vec<Value> {
    called.expect_result().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn stored(file: &Value) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file.as_str().unwrap()).unwrap()).unwrap()
}

fn call(verb: &str, files: &[String]) -> Vec<Value> {
    let mut arguments = vec![verb, "--format", "json"];
    arguments.extend(files.iter().map(String::as_str));
    lines(run_coplace(&arguments))
}

#[test]
fn placements_take_the_recorded_times() {
    let files = files_with_ending("interop/reference/phaze/placement", ".json");
    assert_eq!(files.len(), 32);
    let answers = call("place", &files);
    assert_eq!(answers.iter().map(|a| a["file"].as_str().unwrap()).collect::<Vec<_>>(), files);
    let mut infeasible = 0;
    for answer in &answers {
        let expected = &stored(&answer["file"])["expected"];
        assert_eq!(answer["feasible"], expected["feasible"], "{}", answer["file"]);
        assert!(answer["solve_seconds"].as_f64().unwrap() > 0.0);
        assert_eq!(answer["expected"]["verdict"], "the same", "{answer}");
        if answer["feasible"] == true {
            let (time, best) =
                (answer["time_per_batch"].as_f64().unwrap(), expected["time_per_batch"].as_f64().unwrap());
            assert!((time / best - 1.0).abs() < 1e-9, "{}: {time}, recorded {best}", answer["file"]);
            assert!(!answer["plan"]["stages"].as_array().unwrap().is_empty());
            assert_eq!((&answer["status"], &answer["why"]), (&"optimal".into(), &Value::Null));
        } else {
            infeasible += 1;
            assert_eq!((&answer["time_per_batch"], &answer["plan"]), (&Value::Null, &Value::Null));
            assert!(answer["status"] == "infeasible" && answer["why"].as_str().unwrap().contains("fits"), "{answer}");
        }
    }
    assert!(infeasible > 0, "the carried instances hold infeasible ones");
}

#[test]
fn placements_are_held_against_what_their_files_expect() {
    let dir = tempfile::tempdir().unwrap();
    let call = |expected: Value, format: &str| {
        let mut instance = stored(&"interop/reference/phaze/placement/instance_000.json".into());
        instance["expected"] = expected;
        let path = dir.path().join("instance.json");
        std::fs::write(&path, instance.to_string()).unwrap();
        run_coplace(&["place", path.to_str().unwrap(), "--format", format])
    };
    let time = lines(call(Value::Null, "json"))[0]["time_per_batch"].as_f64().unwrap();
    for (recorded, difference, verdict, text) in [
        (time, json!(0.0), "the same", ", ours +0.000000 %: the same\n"),
        (time * 2.0, json!(-0.5), "faster", ", ours -50.000000 %: faster\n"),
        (time / 2.0, json!(1.0), "slower", ", ours +100.000000 %: slower\n"),
        (1e30, Value::Null, "fits", "  expected: no plan fits: fits\n"),
    ] {
        let expected = json!({ "time_per_batch": recorded });
        let against = &lines(call(expected.clone(), "json"))[0]["expected"];
        assert_eq!((&against["difference"], &against["verdict"]), (&difference, &verdict.into()), "{against}");
        assert!(call(expected, "text").expect_result().ends_with(text), "{text}");
    }
    assert_eq!(lines(call(Value::Null, "json"))[0]["expected"], Value::Null);
    let bad = call(json!({ "time_per_batch": -1.0 }), "text");
    assert!(
        bad.code == 0 && bad.stderr.contains("expected is not compared: expected.time_per_batch is -1"),
        "{}",
        bad.stderr
    );
}

#[test]
fn nest_placements_take_the_recorded_throughputs() {
    let files = files_with_ending("interop/reference/nest", ".json");
    assert_eq!(files.len(), 24);
    let mut infeasible = 0;
    for answer in call("place", &files) {
        let computed = &stored(&answer["file"])["computed"];
        let Some(recorded) = computed["samples_per_s"].as_object() else { continue };
        let nest = &answer["nest"];
        for (method, recorded) in recorded {
            let found = if method == "Nest" { &nest["throughput"] } else { &nest["baselines"][method] };
            match (found.as_f64(), recorded.as_f64()) {
                (Some(found), Some(recorded)) => assert!((found / recorded - 1.0).abs() < 1e-7, "{method}: {answer}"),
                (found, recorded) => assert_eq!(found, recorded, "{method}: {answer}"),
            }
        }
        for (method, reason) in computed["why_none"].as_object().unwrap() {
            let why = nest["why_none"][method].as_str().unwrap();
            assert!(why.starts_with(reason.as_str().unwrap()), "{method}: {answer}");
        }
        if nest["plan"].is_null() {
            infeasible += 1;
            assert!(answer["status"] == "infeasible" && answer["why"].as_str().unwrap().contains("activations"));
        } else {
            assert_eq!((&answer["status"], &answer["why"]), (&"optimal".into(), &Value::Null));
            assert!(["the same", "faster"].contains(&answer["expected"]["verdict"].as_str().unwrap()), "{answer}");
        }
    }
    assert_eq!(infeasible, 1);
    let text = run_coplace(&["place", "interop/reference/nest/exp1_llama2_256_mbs1.json"]).expect_result();
    assert!(text.contains("layers per stage: 7 x 4, 5\n"), "{text}");
    let row = "Manual        0.0126346   1.250       1.25    0.0157932   1.000\n";
    assert!(text.contains(row), "{text}");
}

#[test]
fn schedules_take_the_recorded_makespans() {
    let files = files_with_ending("interop/reference/phaze/schedule", ".json");
    assert_eq!(files.len(), 24);
    let (mut proven, mut open) = (0, 0);
    for answer in call("schedule", &files) {
        let instance = stored(&answer["file"]);
        for pairing in ["unpaired", "paired"] {
            let (found, best) = (&answer[pairing], &instance[format!("optimal_{pairing}")]);
            let number = |value: &Value, key: &str| value[key].as_u64().unwrap();
            let (makespan, bound) = (number(found, "makespan"), number(found, "lower_bound"));
            assert!(bound <= makespan && (found["status"] == "optimal") == (bound == makespan), "{answer}");
            if best["proved"] == true {
                proven += 1;
                assert_eq!(makespan, number(best, "makespan"), "{} {pairing}", answer["file"]);
            } else {
                open += 1;
                assert!(makespan <= number(best, "makespan"), "{} {pairing}: {makespan}", answer["file"]);
                assert!(makespan >= number(best, "lower_bound"), "{} {pairing}: {makespan}", answer["file"]);
            }
        }
    }
    assert_eq!((proven, open), (45, 3));
}

/// In the answers for the stored instances, operators start after their predecessors, take their latencies, and end by
/// the stated makespan.
#[test]
fn schedules_say_when_and_where_each_operator_runs() {
    for answer in call("schedule", &files_with_ending("interop/reference/phaze/schedule", ".json")) {
        let instance = stored(&answer["file"]);
        let operators = instance["ops"].as_array().unwrap();
        for pairing in ["unpaired", "paired"] {
            let placed = answer[pairing]["operators"].as_array().unwrap();
            let of = |id: &Value| placed.iter().find(|one| one["id"] == *id).unwrap();
            let number = |value: &Value| value.as_u64().unwrap_or_else(|| u64::from(value.as_bool().unwrap()));
            for operator in operators {
                let one = of(&operator["id"]);
                let length = if one["across"] == true { &operator["intra_latency"] } else { &operator["latency"] };
                assert_eq!(number(&one["end"]) - number(&one["start"]), number(length), "{} {one}", answer["file"]);
            }
            for edge in instance["edges"].as_array().unwrap() {
                assert!(number(&of(&edge[0])["end"]) <= number(&of(&edge[1])["start"]), "{} {edge}", answer["file"]);
            }
            assert_eq!(placed.iter().map(|one| number(&one["end"])).max(), answer[pairing]["makespan"].as_u64());
            assert_eq!((placed.len(), &answer[pairing]["contradicts"]), (operators.len(), &Value::Null));
        }
    }
}

/// A tensor operator takes 4 on both tensor cores and 9 on one. A vector operator also takes 4. They overlap if the
/// tensor operator blocks only tensor cores, and run in sequence if it blocks all cores.
#[test]
fn an_instance_says_what_an_operator_across_all_cores_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("own.json").display().to_string();
    let tensor = json!({"id": 7, "type": "TC", "latency": 9, "intra_latency": 4});
    let mut instance = json!({"num_tc": 2, "num_vc": 2, "ops": [tensor, {"id": 3, "type": "VC", "latency": 4}], "edges": [], "exclusivity": null});
    let mut solve = |rule: Value| {
        instance["exclusivity"] = rule;
        std::fs::write(&file, instance.to_string()).unwrap();
        run_coplace(&["schedule", "--format", "json", &file])
    };
    for (rule, makespan) in [(Value::Null, 8), ("all_cores".into(), 8), ("own_kind".into(), 4)] {
        let answer = &lines(solve(rule.clone()))[0];
        for pairing in ["unpaired", "paired"] {
            let found = &answer[pairing];
            assert_eq!(
                (&found["makespan"], &found["status"]),
                (&makespan.into(), &"optimal".into()),
                "{rule}: {found}"
            );
        }
    }
    let refused = solve("own".into());
    let expected = format!("error: {file}: `exclusivity` is \"own\"; give \"all_cores\" or \"own_kind\"\n");
    assert_eq!((refused.code, refused.stderr), (2, expected));
}

#[test]
fn a_stored_answer_that_cannot_be_true_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("untrue.json").display().to_string();
    let stored = |makespan: u64| json!({"makespan": makespan, "lower_bound": makespan, "proved": true});
    let operators = json!([{"id": 0, "type": "TC", "latency": 3}]);
    let instance = json!({"num_tc": 1, "num_vc": 1, "ops": operators, "edges": [], "optimal_unpaired": stored(2), "optimal_paired": stored(4)});
    std::fs::write(&file, instance.to_string()).unwrap();
    let answer = &call("schedule", std::slice::from_ref(&file))[0];
    assert_eq!([&answer["unpaired"]["contradicts"], &answer["paired"]["contradicts"]], [2, 4]);
    let text = run_coplace(&["schedule", &file]).expect_result();
    assert_eq!(text.matches("that cannot be true").count(), 2, "{text}");
}

#[test]
fn a_bad_file_among_good_ones_is_named_and_the_rest_answered() {
    for (verb, ending) in [("place", "placement/instance_000.json"), ("schedule", "schedule/instance_000.json")] {
        let good = format!("interop/reference/phaze/{ending}");
        let called = run_coplace(&[verb, "--format", "json", "gone.json", &good]);
        assert_eq!(called.code, 2);
        assert!(called.stderr.starts_with("error: cannot read gone.json: "), "{}", called.stderr);
        let answer: Value = serde_json::from_str(&called.stdout).unwrap();
        assert_eq!(answer["file"], good);
        let text = run_coplace(&[verb, &good]).expect_result();
        assert!(text.starts_with(&good) && text.contains("optimal"), "{text}");
    }
}

#[test]
fn ten_thousand_operators_are_answered_with_their_gap() {
    let dir = tempfile::tempdir().unwrap();
    let operator = |id: u64| {
        let (kind, latency) = (["TC", "VC", "TCandVC"][id as usize % 3], 1 + id * 37 % 100);
        json!({"id": id, "type": kind, "latency": latency, "intra_latency": latency.min(1 + id * 53 % 90)})
    };
    let operators: Vec<Value> = (0..10_000).map(operator).collect();
    let edges: Vec<Value> =
        (0..9_950_u64).flat_map(|id| [json!([id, id + 1 + id % 7]), json!([id, id + 2 + id % 45])]).collect();
    let file = dir.path().join("large.json").display().to_string();
    let instance = json!({"num_tc": 4, "num_vc": 3, "ops": operators, "edges": edges});
    std::fs::write(&file, instance.to_string()).unwrap();
    let answer = &call("schedule", std::slice::from_ref(&file))[0];
    for pairing in ["unpaired", "paired"] {
        let number = |key: &str| answer[pairing][key].as_u64().unwrap();
        assert!(0 < number("lower_bound") && number("lower_bound") < number("makespan"), "{answer}");
        assert_eq!(answer[pairing]["status"], "gap");
    }
    assert!(run_coplace(&["schedule", &file]).expect_result().contains("gap at most "));
}
