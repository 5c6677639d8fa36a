//! Runs of `coplace serve`: their files, and the verbs report, explain, compare and pareto on them.

use crate::support::{repository_path, run_coplace, run_coplace_in};
use serde_json::Value;
use std::path::Path;
use std::sync::OnceLock;
use tempfile::TempDir;

const ASKED: &str = "--devices 8 --products fp8 --ttft 1000";

/// Makes three runs once: `a` on H100, `b` on H200 with another limit and objective, and `swept` with four limits on
/// both. Returns their directory.
fn runs() -> &'static Path {
    static RUNS: OnceLock<TempDir> = OnceLock::new();
    let made = RUNS.get_or_init(|| {
        let directory = TempDir::new().unwrap();
        for words in [
            "--chip h100 --tpot 20 --out a",
            "--chip h200 --tpot 25 --objective per-watt --out b",
            "--chip h100,h200 --tpot 8,12,20,40 --out swept",
        ] {
            let words = format!("serve llama3-70b {ASKED} {words}");
            let said = run_coplace_in(directory.path(), &words.split_whitespace().collect::<Vec<_>>()).expect_result();
            assert!(said.contains("Written: ") && said.contains("record.json"), "{said}");
        }
        directory
    });
    made.path()
}

fn read(words: &str) -> Value {
    let words = format!("{words} --format json");
    run_coplace_in(runs(), &words.split_whitespace().collect::<Vec<_>>()).expect_json()
}

fn refused(words: &str) -> String {
    run_coplace_in(runs(), &words.split_whitespace().collect::<Vec<_>>()).expect_refusal()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

fn record(run: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(runs().join(run).join("record.json")).unwrap()).unwrap()
}

#[test]
fn a_record_holds_the_question_and_the_printed_answer() {
    let record = record("a");
    assert_eq!((&record["verb"], &record["asked"]["model"]), (&"serve".into(), &"llama3-70b".into()));
    let words = format!("serve llama3-70b --chip h100 --tpot 20 {ASKED} --format json");
    let printed = run_coplace(&words.split_whitespace().collect::<Vec<_>>()).expect_json();
    assert_eq!(record["cases"][0]["answer"]["choices"], printed["choices"]);
    // The directory accepts the same question again, but not another one.
    let again = format!("serve llama3-70b --chip h100 --tpot 20 {ASKED} --out a");
    run_coplace_in(runs(), &again.split_whitespace().collect::<Vec<_>>()).expect_result();
    let other = refused(&format!("serve llama3-70b --chip h100 --tpot 30 {ASKED} --out a"));
    assert!(other.contains("another question"), "{other}");
    // Every key and column is described.
    let described = crate::support::read_repository_file("results/README.md");
    let csv = std::fs::read_to_string(runs().join("a/deployments.csv")).unwrap();
    let of = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let keys = [of(&record), of(&record["asked"]), of(&record["cases"][0]), of(&record["fronts"][0])].concat();
    for key in keys.iter().map(String::as_str).chain(csv.lines().next().unwrap().split(',')) {
        assert!(described.contains(&format!("`{key}`")), "{key}");
    }
    // A changed record is refused.
    let copy = runs().join("changed");
    std::fs::create_dir_all(&copy).unwrap();
    for file in ["record.json", "deployments.csv", "SHA256SUMS"] {
        std::fs::copy(runs().join("a").join(file), copy.join(file)).unwrap();
    }
    let text = std::fs::read_to_string(copy.join("record.json")).unwrap();
    std::fs::write(copy.join("record.json"), text.replacen("\"load\"", "\"load\" ", 1)).unwrap();
    assert!(refused("report changed -o x.html").contains("SHA-256"));
}

#[test]
fn lists_of_limits_are_cases_with_the_answers_of_their_own() {
    let record = record("swept");
    let cases = record["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 4);
    let mut last = 0.0;
    for case in cases.iter().filter(|case| !case["answer"].is_null()) {
        let rate = number(&case["answer"]["choices"][0]["tokens_per_s"]);
        assert!(rate >= last, "{rate} after {last}");
        last = rate;
    }
    let words = format!("serve llama3-70b --chip h100,h200 --tpot 20 {ASKED} --format json");
    let alone = run_coplace(&words.split_whitespace().collect::<Vec<_>>()).expect_json();
    assert_eq!(cases[2]["answer"]["choices"], alone["choices"]);
    // Fronts fall, and a point of one is in the file of all deployments.
    let csv = std::fs::read_to_string(runs().join("swept/deployments.csv")).unwrap();
    for front in record["fronts"].as_array().unwrap() {
        let points = front["points"].as_array().unwrap();
        let of = |key: &str| points.iter().map(|point| number(&point[key])).collect::<Vec<_>>();
        assert!(of("tokens_per_s_per_device").windows(2).all(|pair| pair[0] > pair[1]), "{front}");
        assert!(of("tokens_per_s_per_user").windows(2).all(|pair| pair[0] < pair[1]), "{front}");
        assert!(csv.contains(points[0]["plan"].as_str().unwrap()));
    }
    assert!(csv.lines().filter(|line| line.ends_with(",true")).count() > 4, "{csv}");
}

/// Copies run `a` with one changed file.
fn damaged(name: &str, file: &str, bytes: &[u8]) {
    let copy = runs().join(name);
    std::fs::create_dir_all(&copy).unwrap();
    for kept in ["record.json", "deployments.csv", "SHA256SUMS"] {
        std::fs::copy(runs().join("a").join(kept), copy.join(kept)).unwrap();
    }
    std::fs::write(copy.join(file), bytes).unwrap();
}

#[test]
fn lists_are_checked_before_they_are_multiplied() {
    let list = |from: u32, count: u32| (from..from + count).map(|ms| ms.to_string()).collect::<Vec<_>>().join(",");
    let served = |words: &str| refused(&format!("serve llama3-70b --chip h100 --devices 8 {words}"));
    // The 2000 x 3000 x 20 combinations would not fit in memory.
    let message = served(&format!("--ttft {} --tpot {} --input {}", list(100, 2000), list(1, 3000), list(1, 20)));
    for part in ["--tpot of 3000 values", "120000000 combinations", "at most 1000"] {
        assert!(message.contains(part), "{message}");
    }
    let message = served(&format!("--input {} --output 10,20,30", list(100, 500)));
    assert!(message.contains("--input of 500 values") && message.contains("1500 combinations"), "{message}");
}

#[test]
fn a_value_that_is_named_twice_is_refused() {
    for (words, said) in [
        ("--tpot 20,30,20.0", "--tpot 20: is named twice"),
        ("--ttft 500,500", "--ttft 500: is named twice"),
        ("--input 1024,512,1024", "--input 1024: is named twice"),
        ("--output 64,64", "--output 64: is named twice"),
        ("--lengths 10x10:1,20x10:1,10x10:1", "--lengths 10x10: is named twice"),
    ] {
        let message = refused(&format!("serve llama3-70b --chip h100 {words}"));
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn the_doctor_verifies_runs_of_serve_by_their_own_digests() {
    let all = runs().join("checked");
    for run in ["a", "b"] {
        std::fs::create_dir_all(all.join(run)).unwrap();
        for file in ["record.json", "deployments.csv", "SHA256SUMS"] {
            std::fs::copy(runs().join(run).join(file), all.join(run).join(file)).unwrap();
        }
    }
    let found = read("doctor --runs checked");
    assert_eq!(
        (found["unsound"].as_array().unwrap().len(), found["runs"].as_array().unwrap().len()),
        (0, 2),
        "{found}"
    );
    assert_eq!((&found["runs"][1]["model"], &found["runs"][1]["study"]), (&"llama3-70b".into(), &Value::Null));
    std::fs::write(all.join("b/deployments.csv"), "case\n").unwrap();
    let called = run_coplace_in(runs(), &["doctor", "--runs", "checked", "--format", "json"]);
    assert_eq!(called.code, 3, "{called:?}");
    let said: Value = serde_json::from_str(&called.stdout).unwrap();
    let said = said["unsound"][0].as_str().unwrap();
    assert!(said.contains("deployments.csv: is damaged") && said.contains("run serve again"), "{said}");
}

#[test]
fn a_damaged_record_is_told_from_a_run_of_training() {
    let whole = std::fs::read(runs().join("a/record.json")).unwrap();
    for (name, bytes) in [("cut", &whole[..whole.len() / 2]), ("emptied", &b""[..]), ("list", &b"[]"[..])] {
        damaged(name, "record.json", bytes);
        let words = ["compare a {}", "pareto {} --out figures", "explain {}", "report {} -o x.html"];
        for words in words.map(|words| words.replace("{}", name)) {
            let message = refused(&words);
            let file = format!("{name}/record.json: is damaged");
            assert!(message.contains(&file) && message.contains("run serve again"), "{words}: {message}");
        }
    }
    // The suggested cure works: `serve` writes the directory again.
    let again = format!("serve llama3-70b --chip h100 --tpot 20 {ASKED} --out emptied");
    run_coplace_in(runs(), &again.split_whitespace().collect::<Vec<_>>()).expect_result();
    assert_eq!(read("compare a emptied")["cases"].as_array().unwrap().len(), 1);
    for (words, said) in [
        ("explain gone", "`coplace search` or `coplace serve`"),
        ("report gone -o x.html", "`coplace search` or `serve`"),
        ("pareto a gone --out figures", "search, sweep or serve"),
    ] {
        let message = refused(words);
        assert!(message.contains("gone") && message.contains(said), "{words}: {message}");
    }
}

#[test]
fn damage_of_two_files_is_told_from_a_run_of_training() {
    let whole = std::fs::read(runs().join("a/record.json")).unwrap();
    damaged("bare", "record.json", &whole[..whole.len() / 2]);
    std::fs::remove_file(runs().join("bare/SHA256SUMS")).unwrap();
    for words in ["compare a bare", "pareto bare --out figures", "explain bare", "report bare -o x.html"] {
        let message = refused(words);
        for part in ["bare/SHA256SUMS: cannot be opened", "run serve again"] {
            assert!(message.contains(part), "{words}: {message}");
        }
    }
    // A directory without its record still counts as a run.
    damaged("lost/run", "record.json", b"");
    std::fs::remove_file(runs().join("lost/run/record.json")).unwrap();
    let called = run_coplace_in(runs(), &["doctor", "--runs", "lost"]);
    assert!(called.code == 3 && called.stdout.contains("lost/run/record.json: cannot be opened"), "{called:?}");
}

/// Copies run `a` with a text of a file replaced, and writes new digests.
fn resealed(name: &str, file: &str, from: &str, to: &str) {
    let text = std::fs::read_to_string(runs().join("a").join(file)).unwrap();
    assert!(text.contains(from), "{from}");
    damaged(name, file, text.replacen(from, to, 1).as_bytes());
    let sums = std::process::Command::new("sha256sum")
        .args(["record.json", "deployments.csv"])
        .current_dir(runs().join(name))
        .output()
        .unwrap();
    std::fs::write(runs().join(name).join("SHA256SUMS"), sums.stdout).unwrap();
}

#[test]
fn values_that_cannot_be_are_named_under_sound_digests() {
    let own = &record("a")["cases"][0]["answer"]["choices"][0];
    let of = |key: &str| format!("\"{key}\": {}", own[key]);
    let of_pool = format!("\"replicas\": {},", own["decode"]["replicas"]);
    let csv = std::fs::read_to_string(runs().join("a/deployments.csv")).unwrap();
    let first_ttft = csv.lines().nth(1).unwrap().rsplit(',').nth(7).unwrap();
    let in_pool = |key: &str| format!("\"{key}\": {}", own["decode"][key]);
    let products = format!("\"products_ms\": {}", own["iteration"]["products_ms"]);
    let asked_devices = "\"devices\": 8,\n    \"engine\"";
    let asked_model = "\"asked\": {\n    \"model\": \"llama3-70b\"";
    resealed("whole", "record.json", "{", "{");
    read("compare a whole");
    for (name, file, from, to, said) in [
        (
            "negative",
            "record.json",
            of("ttft_ms").as_str(),
            "\"ttft_ms\": -5.0",
            "choices[0].ttft_ms = -5.0: must not be",
        ),
        ("none", "record.json", &of("devices"), "\"devices\": 0", "devices = 0: must be at least 1"),
        ("pools", "record.json", &of_pool, "\"replicas\": 0,", "choices[0].decode.replicas = 0: must be at least 1"),
        ("load", "record.json", &of("load"), "\"load\": 1.5", "choices[0].load = 1.5: must be from 0 to 1"),
        ("dcp", "record.json", "\"dcp\": 1", "\"dcp\": 0", "choices[0].decode.dcp = 0: must be at least 1"),
        (
            "weights",
            "record.json",
            &in_pool("weights_gib"),
            "\"weights_gib\": 1e6",
            "decode.weights_gib = 1000000: with",
        ),
        ("power", "record.json", &in_pool("device_w"), "\"device_w\": 1e6", "must be at most power_limit_w"),
        (
            "format",
            "record.json",
            &in_pool("products"),
            "\"products\": \"fp7\"",
            "decode.products = fp7: must be one of",
        ),
        ("why", "record.json", "\"why\": null", "\"why\": \"none\"", "cases[0].why = none: must be null"),
        ("part", "record.json", &products, "\"products_ms\": 1e6", "iteration, products = 1000000: must be at most"),
        ("order", "record.json", &of("value"), "\"value\": 1.0", "choices[1].value = "),
        (
            "asked",
            "record.json",
            asked_devices,
            "\"devices\": 0,\n    \"engine\"",
            "asked.devices = 0: must be at least 1",
        ),
        (
            "model",
            "record.json",
            asked_model,
            "\"asked\": {\n    \"model\": \"mine\"",
            "asked.model = mine: must be built in",
        ),
        ("rate", "record.json", &of("tokens_per_s"), "\"tokens_per_s\": 1.0", "choices[0].tokens_per_s = 1: "),
        ("times", "record.json", &of("tpot_ms"), "\"tpot_ms\": 1.0", "deployments.csv has no such deployment"),
        ("limit", "record.json", "\"tpot_limit_ms\": 20.0", "\"tpot_limit_ms\": 30.0", "cases[0] = 1024 + 256 tokens"),
        ("nan", "deployments.csv", first_ttft, "NaN", "line 2, ttft_ms = NaN: must be a finite number"),
        ("cases", "deployments.csv", "\n0,", "\n7,", "line 2, case = 7: must be below 1"),
    ] {
        resealed(&format!("odd/{name}"), file, from, to);
        for words in ["compare a {}", "pareto {} --out figures", "explain {}", "report {} -o x.html"] {
            let message = refused(&words.replace("{}", &format!("odd/{name}")));
            for part in [&format!("odd/{name}/{file}: "), said, "run serve again"] {
                assert!(message.contains(part), "{words}: {message}");
            }
        }
    }
    let called = run_coplace_in(runs(), &["doctor", "--runs", "odd"]);
    assert!(called.code == 3 && called.stdout.contains("choices[0].load = 1.5"), "{called:?}");
}

#[test]
fn a_kept_run_loses_nothing_to_a_shorter_answer_of_the_same_question() {
    let serve = |more: &str| {
        let words = format!("serve --tpot 20 {ASKED} --out kept --format json {more}");
        run_coplace_in(runs(), &words.split_whitespace().collect::<Vec<_>>())
    };
    let first = serve("llama3-70b --chip h100").expect_json();
    let count = |answer: &Value| answer["choices"].as_array().unwrap().len();
    assert!(count(&first) > 2);
    let held = || record("kept")["cases"].clone();
    let before = held();
    // Every spelling of the model, the chip, its fabric and the engine asks the same question.
    let chip = repository_path("sim/templates/chips/h100_80gb_sxm.toml");
    let model = repository_path("workloads/models/llama3-70b.json");
    for spelled in [
        "llama3-70b --chip h100",
        "meta-llama/Meta-Llama-3-70B --chip H100-80GB-SXM --engine vLLM",
        &format!("{} --chip {} --fabric eos_ndr400x8", model.display(), chip.display()),
    ] {
        let short = serve(&format!("{spelled} --top 1")).expect_json();
        assert_eq!(count(&short), 1, "{spelled}");
        let now = held();
        let choices = |cases: &Value| cases[0]["answer"]["choices"].as_array().unwrap().len();
        assert_eq!(choices(&now), choices(&before), "{spelled}");
        assert_eq!(now[0]["answer"]["choices"][1]["tokens_per_s"], before[0]["answer"]["choices"][1]["tokens_per_s"]);
    }
    // A longer list of the same question replaces the shorter one.
    let long = serve("llama3-70b --chip h100 --top 12").expect_json();
    assert_eq!(held()[0]["answer"]["choices"], long["choices"]);
    // Another chip is another question.
    let other = serve("llama3-70b --chip h200").expect_refusal();
    assert!(other.contains("another question"), "{other}");
}

#[test]
fn predictions_beside_stay_and_are_of_one_file() {
    let file = repository_path("interop/tests/aiconfigurator/qwen3_32b_h100_vllm_agg.csv");
    let other = repository_path("interop/tests/aiconfigurator/qwen3_32b_h100_vllm_disagg.csv");
    let serve = |more: &str| {
        let words = format!("serve qwen3-32b --chip h100 --devices 8 --ttft 1000 --tpot 30 --out beside {more}");
        run_coplace_in(runs(), &words.split_whitespace().collect::<Vec<_>>())
    };
    serve(&format!("--beside {}", file.display())).expect_result();
    let held = || record("beside")["cases"][0]["answer"]["beside"].clone();
    let before = held();
    serve("").expect_result();
    assert_eq!(held(), before);
    let message = serve(&format!("--beside {}", other.display())).expect_refusal();
    assert!(message.contains("holds predictions of") && message.contains("another directory"), "{message}");
}

#[test]
fn a_run_is_named_by_its_record_too() {
    let record = runs().join("a/record.json").display().to_string();
    assert_eq!(read(&format!("compare {record} b"))["cases"], read("compare a b")["cases"]);
    for words in ["explain a/record.json", "pareto a/record.json --out figures", "report a/record.json -o x.html"] {
        run_coplace_in(runs(), &words.split_whitespace().collect::<Vec<_>>()).expect_result();
    }
    // A copy of the record alone is refused, because the deployments are missing.
    std::fs::copy(record, runs().join("alone.json")).unwrap();
    assert!(refused("compare alone.json").contains("is the record of a run of `serve`: give its directory"));
}

#[test]
fn a_directory_in_the_place_of_a_name_is_named_as_one() {
    let empty = runs().join("empty/inner");
    std::fs::create_dir_all(&empty).unwrap();
    for (words, said) in [
        (
            "serve llama3-70b --chip empty/inner",
            "empty/inner: is a directory without a run of coplace; give the directory",
        ),
        ("evaluate llama3-70b --chip empty/inner --devices 8 --global-batch 8", "is a directory without a run"),
        ("serve llama3-70b --chip h100 --fabric empty/inner", "it is a directory: give a file in it, or a name"),
        ("serve llama3-70b --chip h100 --engine empty/inner", "it is a directory: give a file in it, or a name"),
        ("search llama3-70b --study empty/inner", "it is a directory: give a file in it, or a name"),
    ] {
        let message = refused(words);
        assert!(message.contains(said), "{words}: {message}");
    }
}

#[test]
fn each_kind_of_work_lists_its_own_techniques() {
    let message = refused("serve llama2-7b --chip h100 --technique foo");
    assert!(message.contains("built in are homer, memory3\n"), "{message}");
    let job = "llama2-7b --chip h100 --fabric nvlink4_node --devices 8 --global-batch 8 --technique foo";
    for verb in ["plan", "evaluate"] {
        let message = refused(&format!("{verb} {job}"));
        assert!(message.contains("galore") && !message.contains("homer"), "{message}");
    }
}

#[test]
fn a_named_plan_is_listed_or_refused() {
    let message = refused("explain a --tensor 16");
    assert!(message.contains("--tensor 16: no plan on the run's 8 devices"), "{message}");
    assert!(refused("explain a --tensor 4 --pipeline 4").contains("--tensor 4 --pipeline 4: no plan"));
    // A plan whose degree does not divide the heads is listed with the reason.
    let plans = read("explain a --tensor 7");
    let named = plans["plans"].as_array().unwrap().iter().find(|plan| plan["named"] == true).unwrap();
    assert!(named["value"].is_null() && named["binds"].as_str().unwrap().contains("does not serve: "), "{named}");
    // A narrow screen keeps the column with the limit that binds.
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("coplace");
    let shown = command.current_dir(runs()).env("COLUMNS", "80").args(["explain", "a"]).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert_eq!(text.matches("what binds").count(), 2, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_limit_is_shown_apart_from_the_value_that_misses_it() {
    let served = |tpot: &str| refused(&format!("serve llama3-70b --chip h100 {ASKED} --tpot {tpot}"));
    assert!(served("0.001").contains(" 0.001 allowed"), "{}", served("0.001"));
    assert!(served("0.123456").contains(" 0.123456 allowed"));
}

#[test]
fn assumptions_about_the_model_are_told() {
    let words = "serve deepseek-v3 --chip h200 --devices 16 --products fp8 --tpot 100";
    let text = run_coplace(&words.split_whitespace().collect::<Vec<_>>()).expect_result();
    let answer = format!("{words} --format json");
    let answer = run_coplace(&answer.split_whitespace().collect::<Vec<_>>()).expect_json();
    let assumed = answer["assumptions"].as_array().unwrap();
    assert!(!assumed.is_empty() && text.contains("Assumed\n======="), "{text}");
    assert!(record("a")["cases"][0]["answer"]["assumptions"].is_array());
}

#[test]
fn runs_are_compared_in_the_first_ones_unit_and_swapping_swaps() {
    let (there, back) = (read("compare a b"), read("compare b a"));
    assert_eq!((&there["unit"], &back["unit"]), (&"tokens/s".into(), &"tokens/s per W".into()));
    let of = |answer: &Value, at: usize, key: &str| number(&answer["cases"][0]["entries"][at][key]);
    assert_eq!(of(&there, 0, "tokens_per_s"), of(&back, 1, "tokens_per_s"));
    assert_eq!(of(&there, 1, "value"), of(&there, 1, "tokens_per_s"));
    assert!((of(&back, 1, "times_first") - of(&back, 1, "value") / of(&back, 0, "value")).abs() < 1e-12);
    let said = there["differences"][0].as_str().unwrap();
    assert!(said.contains("tpot_ms") && said.contains("chips") && said.contains("objective"), "{said}");
    let same = read("compare a a");
    assert!(same["differences"].as_array().unwrap().is_empty() && of(&same, 1, "times_first") == 1.0, "{same}");
    // Runs of other verbs cannot be compared with runs of `serve`.
    std::fs::create_dir_all(runs().join("other")).unwrap();
    let message = refused("compare a other");
    assert!(message.contains("other: is no run of serve") && message.contains("--train-weight"), "{message}");
    assert!(refused("compare b swept").contains("no combination of lengths and limits in common"));
    assert_eq!(read("compare a swept")["cases"].as_array().unwrap().len(), 1);
}

#[test]
fn an_explanation_prices_what_was_not_chosen_by_the_same_search() {
    let explained = read("explain a --chip h200 --tensor 8");
    let best = number(&explained["best"]["value"]);
    let chips = explained["chips"].as_array().unwrap();
    let own = chips.iter().find(|chip| chip["chip"] == "h100_80gb_sxm").unwrap();
    assert!((number(&own["value"]) / best - 1.0).abs() < 1e-9, "{own}");
    let words = format!("serve llama3-70b --chip h200 --tpot 20 {ASKED} --format json");
    let other = run_coplace(&words.split_whitespace().collect::<Vec<_>>()).expect_json();
    let named = chips.iter().find(|chip| chip["named"] == true).unwrap();
    assert_eq!(number(&named["value"]), number(&other["choices"][0]["value"]));
    let plans = explained["plans"].as_array().unwrap();
    assert!(
        plans.iter().filter(|plan| plan["named"] == true).all(|plan| plan["plan"].as_str().unwrap().contains("tp 8"))
    );
    assert!(
        plans.iter().any(|plan| plan["value"].is_null() && plan["binds"].as_str().unwrap().contains("does not serve"))
    );
    assert!(plans.iter().all(|plan| plan["value"].is_null() || number(&plan["value"]) <= best * 1.000_001));
    assert!(explained["looser"].as_array().unwrap().iter().all(|one| number(&one["times_best"]) >= 0.999_999));
    let message = refused("explain swept");
    assert!(message.contains("several lengths or limits"), "{message}");
}

#[test]
fn a_page_and_a_front_are_drawn() {
    let said = run_coplace_in(runs(), &["report", "swept", "-o", "swept.html"]).expect_result();
    assert!(said.contains("swept.html"), "{said}");
    let html = std::fs::read_to_string(runs().join("swept.html")).unwrap();
    for part in ["Serving llama3-70b", "The alternatives", "Memory of a device, GiB", "One decoding iteration", "<svg"]
    {
        assert!(html.contains(part) || html.contains(&part.replace('<', "\\u003c")), "{part}");
    }
    let drawn = read("pareto a swept --out figures");
    assert_eq!(drawn["runs"].as_array().unwrap().len(), 2);
    let svg = std::fs::read_to_string(runs().join("figures/pareto.svg")).unwrap();
    assert!(svg.contains("tokens/s per user") && svg.contains("tokens/s per device"));
    assert!(std::fs::read(runs().join("figures/pareto.png")).unwrap().starts_with(b"\x89PNG"));
    assert!(read("pareto swept --x ttft --out figures")["runs"][0]["axis"].as_str().unwrap().contains("first token"));
    assert!(refused("pareto swept --x area --out figures").contains("per-user, tpot, ttft"));
}

#[test]
#[ignore = "needs chromium"]
fn the_page_in_a_browser_has_every_section() {
    run_coplace_in(runs(), &["report", "a", "-o", "a.html"]).expect_result();
    let (console, dom) = crate::support::browse_page(&format!("file://{}", runs().join("a.html").display()));
    assert!(console.is_empty() && !dom.contains("data-errors"), "{console}");
    for part in ["The answer", "Every deployment", "The alternatives", "One decoding iteration", "data:image/svg+xml"] {
        assert!(dom.contains(part), "{part}");
    }
}

#[test]
fn rows_of_aiconfigurator_stand_beside() {
    let file = repository_path("interop/tests/aiconfigurator/qwen3_32b_h100_vllm_agg.csv");
    let apart = repository_path("interop/tests/aiconfigurator/qwen3_32b_h100_vllm_disagg.csv");
    let serve = |more: &str| {
        let words = format!("serve qwen3-32b --chip h100 --devices 8 --ttft 1000 --tpot 30 {more} --format json");
        run_coplace(&words.split_whitespace().collect::<Vec<_>>()).expect_json()
    };
    for file in [&file, &apart] {
        let beside = &serve(&format!("--beside {}", file.display()))["beside"];
        let rows = beside["rows"].as_array().unwrap();
        assert!(rows.len() > 2 && beside["unread_columns"].as_array().unwrap().is_empty(), "{beside}");
        // Both tools are fitted on H100 under vLLM. Their times per output token differ by a factor of 0.6 to 1.6.
        for row in rows {
            let ratio = number(&row["own"]["tpot_ms"]) / number(&row["predicted"]["tpot_ms"]);
            assert!((0.6..1.6).contains(&ratio), "{row}");
        }
    }
    let other = &serve(&format!("--engine sglang --beside {}", file.display()))["beside"]["rows"][0];
    assert!(other["own"].is_null() && other["note"].as_str().unwrap().contains("--engine vllm"), "{other}");
}
