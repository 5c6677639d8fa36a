//! `coplace plan --links`: ranks mapped to measured links.

use crate::plan::{call_plan, number_at};
use crate::support::run_coplace;

/// Writes a file of links between 8 nodes in GB/s, changed by `change`. Links between neighbours in the order of the
/// ranks have half the bandwidth of the others. Returns the directory and the path.
fn links(change: impl Fn(String) -> String) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("links.csv");
    let names: Vec<String> = (0..8).map(|i| format!("n{i}")).collect();
    let mut text = format!("gb_per_s,{}\n", names.join(","));
    for a in 0..8_i32 {
        let rate = |b: i32| match (a - b).abs() {
            0 => "",
            1 => "10",
            _ => "20",
        };
        let row: Vec<&str> = (0..8).map(rate).collect();
        text.push_str(&format!("n{a},{}\n", row.join(",")));
    }
    std::fs::write(&path, change(text)).unwrap();
    let path = path.display().to_string();
    (dir, path)
}

#[test]
fn ranks_are_mapped_to_measured_links() {
    let (_dir, path) = links(|text| text);
    let fixed = ["--tensor", "8", "--pipeline", "2", "--virtual-stages", "1", "--micro-batch", "1", "--zero", "0"];
    let more: Vec<&str> = fixed.iter().copied().chain(["--recompute", "full", "--links", &path]).collect();
    let json: Vec<&str> = more.iter().copied().chain(["--format", "json"]).collect();
    let answer = run_coplace(&call_plan(&json)).expect_json();
    let mapping = &answer["mapping"];
    let [before, after, bound] = ["before_s", "after_s", "lower_bound_s"].map(|key| number_at(&mapping[key]));
    assert!((before / number_at(&answer["plans"][0]["step_s"]) - 1.0).abs() < 1e-9);
    // `tokens_per_s` is the rate of the mapped step.
    let (first, tokens) =
        (&answer["plans"][0], number_at(&answer["global_batch_sequences"]) * number_at(&answer["sequence_tokens"]));
    assert!((number_at(&first["tokens_per_s"]) * after / tokens - 1.0).abs() < 1e-9, "{first}");
    assert!(bound <= after && after < before && number_at(&mapping["without_links_s"]) < after, "{mapping}");
    // The rings of the two data-parallel groups of four nodes use only fast links, for example in nodes 0, 2, 4, 6 and
    // 1, 3, 5, 7. So the step nearly reaches the bound.
    assert!(number_at(&mapping["gap"]) < 0.01, "{mapping}");
    let data = mapping["axes"].as_array().unwrap().iter().find(|a| a["axis"] == "data").unwrap();
    assert!(number_at(&data["after_s"]) < 0.6 * number_at(&data["before_s"]), "{data}");
    let mut devices: Vec<f64> = mapping["devices"].as_array().unwrap().iter().map(number_at).collect();
    devices.sort_by(f64::total_cmp);
    assert!(devices.iter().enumerate().all(|(i, d)| *d == i as f64));
    let text = run_coplace(&[&call_plan(&more)[..], &["--details"]].concat()).expect_result();
    assert!(text.contains("Its ranks on the links\n") && text.contains("no mapping is below"), "{text}");
}

#[test]
fn links_that_cannot_be_are_refused_with_rule_number_and_cure() {
    let refusal = |change: &dyn Fn(String) -> String, more: &[&str]| {
        let (_dir, path) = links(change);
        let list: Vec<&str> = ["--links", path.as_str()].into_iter().chain(more.iter().copied()).collect();
        run_coplace(&call_plan(&list)).expect_refusal()
    };
    let asymmetric = refusal(&|t| t.replacen("n0,,10,20", "n0,,10,21", 1), &[]);
    assert!(
        asymmetric.contains("links_gb_per_s[0][2] = 21 but 20 back: must be symmetric; average the two directions"),
        "{asymmetric}"
    );
    let negative = refusal(&|t| t.replace("20", "-20"), &[]);
    assert!(negative.contains("[0][2] = -20: must be from 1e-6 to 1e6"), "{negative}");
    let nan = refusal(&|t| t.replace("20", "NaN"), &[]);
    assert!(nan.contains("NaN: must be from 1e-6 to 1e6"), "{nan}");
    let small = refusal(&|t| t, &["--links-between", "devices"]);
    assert!(
        small.contains("8 units of 1 devices hold 8, --devices 64 is more; measure more units or use 8"),
        "{small}"
    );
}
