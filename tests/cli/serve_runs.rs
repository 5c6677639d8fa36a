//! Runs of `coplace serve`: what is written, and what report, explain, compare and pareto make of it.

use crate::support::{repository_path, run_coplace, run_coplace_in};
use serde_json::Value;
use std::path::Path;
use std::sync::OnceLock;
use tempfile::TempDir;

const ASKED: &str = "--devices 8 --products fp8 --ttft 1000";

/// Three runs: `a` on H100, `b` on H200 with another limit, and `swept` over four limits on both.
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
    // The same question is answered again into the directory, another one is not.
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
    // A changed figure is found.
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
    // A run of another verb has no common measure.
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
        // Both tools are fitted on H100 under vLLM: times per output token lie within a half of each other.
        for row in rows {
            let ratio = number(&row["own"]["tpot_ms"]) / number(&row["predicted"]["tpot_ms"]);
            assert!((0.6..1.6).contains(&ratio), "{row}");
        }
    }
    let other = &serve(&format!("--engine sglang --beside {}", file.display()))["beside"]["rows"][0];
    assert!(other["own"].is_null() && other["note"].as_str().unwrap().contains("--engine vllm"), "{other}");
}
