//! The price of the system around the chips. It is shown with the chip's, and counts in an objective if the search is
//! told so.

use crate::constants::{search, study};
use crate::support::run_coplace;

const LANES: &str = "\"vector.lanes\" = [128, 256]\n\"area.fp32_units\" = \"vector.lanes\"";
const DOLLARS: [&str; 2] = ["--objective", "per-dollar"];

fn number(value: &serde_json::Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key}: {value}"))
}

#[test]
fn an_evaluation_shows_the_system_with_its_parts() {
    let job = ["evaluate", "opt-350m", "--chip", "h100_80gb_sxm", "--stack", "ideal", "--global-batch", "64"];
    let on = |fabric: &str, devices: &str, format: &str| {
        let rest =
            ["--fabric", fabric, "--devices", devices, "--sequence-length", "512", "--details", "--format", format];
        run_coplace(&[&job[..], &rest].concat())
    };
    let job_of = |fabric: &str, devices: &str| on(fabric, devices, "json").expect_json()["job"].clone();
    let of = job_of("eos_ndr400x8", "32");
    let parts = of["system_parts"].as_object().unwrap();
    assert_eq!(parts.len(), 5);
    let sum: f64 = parts.values().map(|part| part.as_f64().unwrap()).sum();
    assert!((number(&of, "system_usd") - sum).abs() < 1e-9 && sum > 3000.0, "{of}");
    let text = on("eos_ndr400x8", "32", "text").expect_result();
    assert!(text.contains("per device around its chip: host 2638, network cards 1364"), "{text}");
    // The parts of AWS's network are not published, so it has no price.
    assert!(job_of("efa_h100_3200g", "32")["system_usd"].is_null());
}

#[test]
fn dollars_pay_for_the_system_if_they_are_told_to() {
    let text = study(LANES, "");
    let paid = |dollars: &[&str]| search(&text, &[&DOLLARS[..], dollars].concat()).expect_json();
    let [chip, default, system] = [&["--dollars", "chip"][..], &[], &["--dollars", "system"]].map(paid);
    let first = |answer: &serde_json::Value| answer["comparison"]["entries"][0].clone();
    assert_eq!(first(&chip), first(&default));
    let (entry, other) = (first(&system), first(&chip));
    let usd = number(&entry, "cost_usd") + number(&entry, "system_usd");
    let rate = |of: &serde_json::Value| number(of, "throughput_tokens_per_s") / 8.0;
    assert!((number(&entry, "objective_value") / (rate(&entry) / usd) - 1.0).abs() < 1e-9, "{entry}");
    let of_chip = rate(&other) / number(&other, "cost_usd");
    assert!((number(&other, "objective_value") / of_chip - 1.0).abs() < 1e-9, "{other}");
    assert!(number(&entry, "objective_value") < 0.8 * number(&other, "objective_value"));
    assert_eq!(system["asked"]["aim"]["operation"]["dollars"], "system");
    // A study may also ask for it, and may change a price.
    let dearer = study(LANES, "[operation]\ndollars = \"system\"\n[constants]\nsystem.host_board = 30000");
    let dearer = search(&dearer, &DOLLARS).expect_json();
    // All chips on the same network have the same system price.
    let fabric = &first(&dearer)["fabric"];
    let entries = dearer["comparison"]["entries"].as_array().unwrap();
    let alike: Vec<f64> =
        entries.iter().filter(|entry| entry["fabric"] == *fabric).map(|entry| number(entry, "system_usd")).collect();
    assert!(alike.len() > 4 && alike.iter().all(|usd| *usd == alike[0]), "{alike:?}");
    let dearer = first(&dearer);
    let more = number(&dearer, "system_usd") - number(&entry, "system_usd");
    assert!((more - (30_000.0 - 17_391.0) / 8.0).abs() < 1e-6, "{dearer}");
}

#[test]
fn a_system_without_a_price_and_dollars_without_a_use_are_refused() {
    let text = study(LANES, "").replace("nvlink4_node", "ideal_switch");
    let refused = search(&text, &[&DOLLARS[..], &["--dollars", "system"]].concat()).expect_refusal();
    let expected = ["cluster.fabric", "`ideal_switch` has no system price", "no such switch is sold", "--dollars chip"];
    for words in expected {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    let refused = search(&study(LANES, ""), &["--dollars", "system"]).expect_refusal();
    assert!(refused.contains("--dollars system: needs an objective in dollars"), "{refused}");
    let wrong = study(LANES, "[operation]\ndollars = \"all\"");
    assert!(search(&wrong, &DOLLARS).expect_refusal().contains("unknown variant `all`"));
}

/// A study may change the cycles that attention takes per score.
#[test]
fn a_study_changes_the_constants_of_kernels() {
    let step = |constants: &str| {
        let answer = search(&study("\"vector.lanes\" = [16]", constants), &[]).expect_json();
        number(&answer["best"]["design"], "step_time_s")
    };
    let (nominal, slower) =
        (step(""), step("[constants]\nkernel.attention_forward = 17\nkernel.attention_backward = 19"));
    assert!(slower > nominal * 1.001, "{nominal} {slower}");
}
