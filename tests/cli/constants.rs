//! Constants of the model as data, and the limits of what can be built.

use crate::support::{read_repository_file, run_coplace, run_coplace_in};

/// Returns a study of H100's relatives with the dimensions `lines` and the constants `constants`.
pub fn study(lines: &str, constants: &str) -> String {
    format!(
        "description = \"a test\"\nsource = \"a test\"\n{constants}\n[space]\nbase_chip = \"h100_80gb_sxm\"\n[space.dimensions]\n{lines}\n\
         [cluster]\ndevices = 8\nfabric = \"nvlink4_node\"\nglobal_batch_sequences = 32\n\
         [plan]\nstack = \"ideal\"\nattention = \"fused\"\noptimizer = \"adam\"\nrecompute = [\"none\", \"full\"]\nschedules = [\"1f1b\"]\nlayer_split = \"even\"\n\
         [limits]\nevaluations = 50\n"
    )
}

pub fn search(text: &str, flags: &[&str]) -> crate::support::CommandOutput {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s.toml"), text).unwrap();
    let job =
        ["search", "llama3-8b", "--study", "s.toml", "--sequence-length", "2048", "--out", "run", "--format", "json"];
    run_coplace_in(dir.path(), &[&job[..], flags].concat())
}

#[test]
fn constants_are_listed_with_range_and_source() {
    let all = run_coplace(&["list", "constants", "--format", "json"]).expect_json();
    let phy = all.as_array().unwrap().iter().find(|constant| constant["constant"] == "hbm.phy").unwrap();
    assert!(phy["low"].as_f64() < phy["nominal"].as_f64() && phy["nominal"].as_f64() < phy["high"].as_f64(), "{phy}");
    assert!(phy["source"].as_str().unwrap().contains("GA100") && phy["year"].as_u64() == Some(2024), "{phy}");
}

#[test]
fn a_study_changes_a_constant_and_the_found_chip_keeps_it() {
    let one = "\"vector.lanes\" = [128]";
    let area = |constants: &str| {
        let answer = search(&study(one, constants), &[]).expect_json();
        answer["best"]["design"]["area_mm2"].as_f64().unwrap()
    };
    let (nominal, larger) = (area(""), area("[constants]\nhbm.phy = 13"));
    // The die has six PHYs, each 3 mm² larger. Its units cover 97 % of its area.
    assert!((larger - nominal - 18.0 / 0.97).abs() < 0.1, "{nominal} {larger}");
    // Other verbs accept the found chip.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s.toml"), study(one, "[constants]\n\"hbm.phy\" = 13")).unwrap();
    let call =
        ["search", "opt-350m", "--study", "s.toml", "--sequence-length", "1024", "--draws", "0", "--out", "kept"];
    run_coplace_in(dir.path(), &call).expect_result();
    let job = ["evaluate", "opt-350m", "--chip", "kept", "--devices", "8", "--global-batch", "16"];
    assert!(run_coplace_in(dir.path(), &job).expect_result().contains("tokens/s"));
    assert!(run_coplace_in(dir.path(), &["report", "kept"]).expect_result().contains("Written"));
    for (constants, why) in [
        ("[constants]\nhbm.phy = 99", "constants.hbm.phy = 99: must be from 8 to 13"),
        ("[constants]\nhbm.phi = 9", "constants.hbm.phi = 9: no such constant; did you mean `hbm.phy`?"),
        ("[constants]\nhbm.phy = \"x\"", "constants.hbm.phy"),
    ] {
        let refused = search(&study(one, constants), &[]).expect_refusal();
        assert!(refused.contains(why), "{refused}");
    }
    let refused = search(&study(one, "[constants]\nhbm.phy = 99"), &[]).expect_refusal();
    assert!(refused.contains("source: GA100"), "{refused}");
}

#[test]
fn a_chip_that_cannot_be_built_is_counted_or_refused_with_its_rule() {
    let stacks = |list: &str| study(&format!("\"area.hbm_stacks\" = {list}"), "");
    let answer = search(&stacks("[6, 8]"), &[]).expect_json();
    let certificate = &answer["certificate"];
    let by_rule = &certificate["unbuildable_by_rule"]["hbm_sides"];
    assert_eq!((certificate["unbuildable"].as_u64(), by_rule.as_u64()), (Some(1), Some(1)));
    let refused = search(&stacks("[8]"), &[]).expect_refusal();
    assert!(refused.contains("hbm_sides: needs 8 of 6 HBM stacks along the sides of a die"), "{refused}");
    assert!(refused.contains("--no-build-limits") && refused.contains("area.dies"), "{refused}");
    let lifted = search(&stacks("[8]"), &["--no-build-limits"]).expect_json();
    assert!(lifted["best"]["design"]["area_mm2"].as_f64().is_some(), "{lifted}");
}

/// A user's chip with an `[area]` is compared with built-in chips by area, power and cost.
#[test]
fn a_chip_of_ones_own_is_compared_with_its_area() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("own.toml"), read_repository_file("tests/golden/input/own_chip.toml")).unwrap();
    let job =
        ["evaluate", "llama3-8b", "--chip", "own.toml", "--stack", "ideal", "--devices", "8", "--global-batch", "32"];
    let rest = ["--fabric", "nvlink4_node", "--sequence-length", "2048", "--format", "json"];
    let answer = run_coplace_in(dir.path(), &[&job[..], &rest].concat()).expect_result();
    std::fs::write(dir.path().join("own.json"), answer).unwrap();
    let compared = run_coplace_in(dir.path(), &["compare", "own.json", "--format", "json"]).expect_json();
    let entry = &compared["entries"][0];
    let above =
        |key: &str, least: f64| assert!(entry[key].as_f64().is_some_and(|value| value > least), "{key}: {entry}");
    above("area_mm2", 100.0);
    above("peak_power_w", 50.0);
    above("cost_usd", 100.0);
}
