//! `coplace explain`, compared with a sweep that contains every neighbour.

use crate::several::STUDY;
use crate::support::run_coplace_in;
use crate::sweep::undisturbed_sweep;
use serde_json::Value;
use std::collections::BTreeMap;

/// The rows of a CSV file without quoted cells, by column.
pub fn csv_rows(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    // Reasons and plans are quoted if they contain commas.
    let cells = |line: &str| {
        let (mut cells, mut quoted) = (vec![String::new()], false);
        for letter in line.chars() {
            match letter {
                '"' => quoted = !quoted,
                ',' if !quoted => cells.push(String::new()),
                letter => cells.last_mut().unwrap().push(letter),
            }
        }
        cells
    };
    lines.map(|line| header.iter().map(|name| (*name).to_owned()).zip(cells(line)).collect()).collect()
}

#[test]
fn each_step_is_the_neighbour_that_the_sweep_has() {
    let dir = undisturbed_sweep();
    let explained = run_coplace_in(dir.path(), &["explain", "whole", "--format", "json"]).expect_json();
    let rows = csv_rows(&std::fs::read_to_string(dir.path().join("whole/sweep.csv")).unwrap());
    let index = explained["best"]["index"].to_string();
    let best = rows.iter().find(|row| row["index"] == index).unwrap();
    let dimensions = [
        "area.node",
        "clock_mhz",
        "hbm_stacks",
        "links",
        "memory.cmem.capacity_mib",
        "memory.hbm.capacity_gib",
        "tensor.arrays_per_core",
        "vector.lanes",
    ];
    let steps = explained["steps"].as_array().unwrap();
    let mut seen = BTreeMap::new();
    for step in steps {
        let (moved, to) = (step["dimension"].as_str().unwrap(), step["to"].as_str().unwrap());
        *seen.entry(moved).or_insert(0) += 1;
        assert_eq!(best[moved], step["from"].as_str().unwrap());
        let there = |row: &&BTreeMap<String, String>| {
            dimensions.iter().all(|key| if *key == moved { row[*key] == to } else { row[*key] == best[*key] })
        };
        let row = rows.iter().find(there).unwrap();
        let outcome = match step["limits"].as_str().unwrap() {
            "within" if step["reason"].is_null() => "evaluated",
            "within" => "infeasible",
            other => other,
        };
        assert_eq!(row["outcome"], outcome, "{step}");
        let difference = |key: &str| Some(row[key].parse::<f64>().ok()? - best[key].parse::<f64>().unwrap());
        for (key, column) in [("area_mm2", "area_mm2"), ("peak_power_w", "peak_power_w"), ("cost_usd", "cost_usd")] {
            assert_eq!(step[key].as_f64(), difference(column), "{key}: {step}");
        }
        if outcome == "evaluated" {
            let (said, swept) =
                (step["tokens_per_s"].as_f64().unwrap(), row["throughput_tokens_per_s"].parse::<f64>().unwrap());
            assert!((said / swept - 1.0).abs() < 1e-12, "{step}: {swept}");
            // Per device, of eight, as the objective per-mm2 and `pareto` count.
            let per = step["tokens_per_s_per_mm2"].as_f64();
            let gained =
                difference("throughput_tokens_per_s").zip(difference("area_mm2")).filter(|(_, area)| *area > 1e-9);
            let gained = gained.map(|(rate, area)| rate / 8.0 / area);
            assert!(
                per.zip(gained).is_none_or(|(per, gained)| (per - gained).abs() <= 1e-9 * gained.abs()),
                "{per:?} {gained:?}"
            );
            assert_eq!(per.is_some(), gained.is_some(), "{step}");
            assert!(
                step["change"].as_f64().unwrap() <= 1e-12,
                "a neighbour within the limits is better than the best: {step}"
            );
        }
    }
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), dimensions);
    // Slightly more of any resource makes no plan slower.
    let worth = explained["worth"].as_array().unwrap();
    assert!(worth.iter().all(|of| of["change"].as_f64().unwrap() >= -1e-9), "{worth:?}");
    assert!(worth.iter().any(|of| of["resource"] == "clock" && of["change"].as_f64().unwrap() > 0.01), "{worth:?}");
    assert!(worth.iter().any(|of| of["resource"] == "bandwidth of ici"), "{worth:?}");
    let used = explained["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == "area").unwrap();
    assert_eq!((used["uses"].to_string(), used["allowed"].as_f64()), (best["area_mm2"].clone(), Some(560.0)));
    let text = run_coplace_in(dir.path(), &["explain", "whole"]).expect_result();
    assert!(text.contains("tokens/s per mm² those of a device per mm² of its dies."), "{text}");
    changed(dir.path(), &explained);
}

/// A run keeps its study. An older run whose study has changed, and a directory that is no run, are refused by name.
fn changed(dir: &std::path::Path, before: &Value) {
    let study = std::fs::read_to_string(dir.join("s.toml")).unwrap();
    std::fs::write(dir.join("s.toml"), study.replace("devices = 8", "devices = 4")).unwrap();
    assert_eq!(run_coplace_in(dir, &["explain", "whole", "--format", "json"]).expect_json(), *before);
    let none = run_coplace_in(dir, &["explain", "nothing"]).expect_refusal();
    assert!(none.contains("nothing"), "{none}");
    let record: Value = serde_json::from_str(&std::fs::read_to_string(dir.join("whole/record.json")).unwrap()).unwrap();
    let mut older = record.as_object().unwrap().clone();
    older.insert("format".to_owned(), 2.into());
    std::fs::write(dir.join("whole/record.json"), serde_json::to_string(&older).unwrap()).unwrap();
    let old = run_coplace_in(dir, &["explain", "whole"]).expect_refusal();
    assert!(
        old.contains("record.json: format = 2, this version of coplace reads 5; run the search again with it"),
        "{old}"
    );
    for verb in ["plan", "evaluate"] {
        let old = run_coplace_in(dir, &[verb, "opt-350m", "--chip", "whole"]).expect_refusal();
        assert!(old.contains("SHA-256") || old.contains("format = 2"), "{old}");
    }
}

#[test]
fn a_step_over_the_power_says_so_and_is_never_where_area_is_worth_most() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s.toml"), STUDY).unwrap();
    let explained = |out: &str, limits: &[&str]| {
        let search = ["search", "opt-350m", "--study", "s.toml", "--max-area", "600", "--out", out];
        run_coplace_in(dir.path(), &[&search[..], limits].concat()).expect_result();
        let said = run_coplace_in(dir.path(), &["explain", out, "--format", "json"]).expect_json();
        let more = said["steps"].as_array().unwrap().iter().find(|step| step["dimension"] == "sms").unwrap().clone();
        (more, run_coplace_in(dir.path(), &["explain", out]).expect_result())
    };
    // Twice the SMs need more area.
    let (more, text) = explained("area", &[]);
    // The fields that the study ties to them are named; those of the area are not.
    assert_eq!(more["follow"].to_string(), "[\"tensor.cores\",\"vector.cores\"]");
    assert!(text.contains("With sms the study sets tensor.cores, vector.cores."), "{text}");
    assert_eq!(
        (&more["limits"], more["exceeds"].to_string()),
        (&Value::from("over_area"), "[\"over_area\"]".to_owned())
    );
    let named = "where it is used best: sms from 66 to 132, beyond the area limit; on average";
    assert!(text.contains(named) && !text.contains("over power"), "{text}");
    // They take more power at every clock.
    let (more, text) = explained("power", &["--max-power", "150"]);
    assert_eq!(more["exceeds"].to_string(), "[\"over_area\",\"over_power\"]");
    assert_eq!(more["limits"], "over_area");
    assert!(text.contains("over area, over power") && !text.contains("sms from 66 to 132"), "{text}");
    assert!(
        text.contains("A chip over the power limit exceeds it even at its lowest clock; its line has the figures"),
        "{text}"
    );
}
