//! `coplace explain`, compared with a sweep that contains every neighbour.

use crate::search::read_record;
use crate::several::STUDY;
use crate::support::{run_coplace_in, run_on_screen};
use crate::sweep::undisturbed_sweep;
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns the rows of a CSV file, by column. Cells may be quoted, but have no quotes or line breaks inside.
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
            // The gain is that of one of the eight devices, as in the objective per-mm2 and in `pareto`.
            let per = step["gain_per_mm2"].as_f64();
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
    assert!(text.contains("A tenth more of each resource"), "{text}");
    assert_eq!(explained["gain_unit"], "tokens/s of a device");
    changed(dir.path(), &explained);
}

/// Checks that a run keeps its study: it is explained as before after the study's file has changed. Runs of an older
/// format and directories that are no run are refused by name.
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
    // The text names the fields that the study ties to `sms`, but not `area.cores`.
    assert_eq!(more["follow"].to_string(), "[\"tensor.cores\",\"vector.cores\"]");
    assert!(text.contains("With sms the study sets tensor.cores, vector.cores."), "{text}");
    assert_eq!(
        (&more["limits"], more["exceeds"].to_string()),
        (&Value::from("over_area"), "[\"over_area\"]".to_owned())
    );
    let named = "where it is used best: sms from 66 to 132, beyond the area limit; on average";
    assert!(text.contains(named) && !text.contains("over power"), "{text}");
    // Twice the SMs also take more than 150 W, even at the lowest clock.
    let (more, text) = explained("power", &["--max-power", "150"]);
    assert_eq!(more["exceeds"].to_string(), "[\"over_area\",\"over_power\"]");
    assert_eq!(more["limits"], "over_area");
    assert!(text.contains("over area, over power") && !text.contains("sms from 66 to 132"), "{text}");
    assert!(
        text.contains("A chip over the power limit exceeds it even at its lowest clock; its line has the figures"),
        "{text}"
    );
}

/// USD over three years of energy per W that a chip draws.
const USD_PER_WATT: f64 = 3.0 * 8.766 * 0.9 * 1.1 * 0.08;

/// Returns the tokens/s per USD of a row, where the cost includes three years of energy. The sweep is of eight chips.
fn tokens_per_s_per_usd(row: &BTreeMap<String, String>) -> f64 {
    let number = |key: &str| row[key].parse::<f64>().unwrap();
    let watts = number("energy_per_step_j") / number("step_time_s") / 8.0;
    number("throughput_tokens_per_s") / 8.0 / (number("cost_usd") + USD_PER_WATT * watts)
}

#[test]
fn effects_are_by_the_objective_for_every_model() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s.toml"), STUDY).unwrap();
    let models = ["opt-350m", "llama2-7b"];
    // Returns the sweeps of both models, under the power limit `watts` if one is given.
    let sweeps_within = |said: &Value, watts: Option<String>, name: &str| {
        let limit: Vec<&str> = watts.iter().flat_map(|watts| ["--max-power", watts]).collect();
        models.map(|model| {
            let out = format!("{model}-{}-{name}", said["run"].as_str().unwrap());
            let call = [&["sweep", model, "--study", "s.toml", "--out", &out], &limit[..]].concat();
            run_coplace_in(dir.path(), &call).expect_result();
            csv_rows(&std::fs::read_to_string(dir.path().join(out).join("sweep.csv")).unwrap())
        })
    };
    let sweeps =
        |said: &Value| sweeps_within(said, said["lowered_to_w"].as_f64().map(|watts| watts.to_string()), "own");
    let dials = ["hbm_stacks", "sms", "clock_mhz", "tensor.columns"];
    // Returns the row of a sweep that is one step from `from`.
    let moved = |rows: &[BTreeMap<String, String>], from: &BTreeMap<String, String>, step: &Value| {
        let (key, to) = (step["dimension"].as_str().unwrap(), step["to"].as_str().unwrap());
        let is = |row: &&BTreeMap<String, String>| {
            dials.iter().all(|dial| row[*dial] == *if *dial == key { to } else { &from[*dial] })
        };
        rows.iter().find(is).unwrap().clone()
    };
    let explained = |asked: &[&str], out: &str| {
        run_coplace_in(dir.path(), &[&["search"], asked, &["--study", "s.toml", "--out", out]].concat())
            .expect_result();
        let text = run_coplace_in(dir.path(), &["explain", out]).expect_result();
        let said = run_coplace_in(dir.path(), &["explain", out, "--format", "json"]).expect_json();
        let certificate = read_record(&dir.path().join(out))["certificate"].clone();
        assert_eq!(said["unit"], certificate["unit"]);
        let (value, best) = (said["value"].as_f64().unwrap(), certificate["best"].as_f64().unwrap());
        assert!((value / best - 1.0).abs() < 1e-9, "{value}, {best}");
        (said, text)
    };
    let at_best = |rows: &[BTreeMap<String, String>], said: &Value| {
        let best = said["best"]["index"].to_string();
        rows.iter().find(|row| row["index"] == best).unwrap().clone()
    };

    // Joules per token: less is better.
    let (said, text) = explained(&[models[0], "--objective", "energy-per-token", "--front", "none"], "energy");
    assert!(text.starts_with("Best: ") && text.lines().next().unwrap().ends_with(" J per token."), "{text}");
    let (swept, unlimited) = (sweeps(&said), sweeps_within(&said, None, "free"));
    let best = at_best(&swept[0], &said);
    let own = best["energy_per_token_j"].parse::<f64>().unwrap();
    let mut checked = 0;
    for step in said["steps"].as_array().unwrap().iter().filter(|step| step["limits"] == "within") {
        let value = step["value"].as_f64().unwrap();
        // A neighbour runs at its own best clock. So it is no worse than at the power limit of the search, and no worse
        // than at its highest clock.
        for rows in [&swept[0], &unlimited[0]] {
            if let Ok(there) = moved(rows, &best, step)["energy_per_token_j"].parse::<f64>() {
                assert!(value <= there * (1.0 + 1e-9), "{there}: {step}");
                checked += 1;
            }
        }
        assert!((step["change"].as_f64().unwrap() - (own / value - 1.0)).abs() < 1e-9, "{step}");
    }
    assert!(checked >= 2, "{said}");
    let shares = said["objective_shares"].as_array().unwrap();
    let sum: f64 = shares.iter().map(|share| share["fraction"].as_f64().unwrap()).sum();
    assert!(shares.len() == 2 && (sum - 1.0).abs() < 1e-12 && text.contains("% of the energy: static"), "{text}");

    // Tokens/s per USD including energy, for two models: their mean, and each model in its own unit.
    let paid = ["--objective", "per-dollar", "--years", "3"];
    let (said, text) = explained(&[&models[..], &paid].concat(), "usd");
    assert!(text.contains("\n  llama2-7b: ") && text.contains(" tokens/s per USD\n"), "{text}");
    let unlimited = sweeps_within(&said, None, "free");
    for (at, rows) in sweeps(&said).iter().enumerate() {
        let (of, best) = (&said["models"][at], at_best(rows, &said));
        let own = tokens_per_s_per_usd(&best);
        assert!((of["value"].as_f64().unwrap() / own - 1.0).abs() < 1e-9, "{own}: {of}");
        for (step, all) in of["steps"].as_array().unwrap().iter().zip(said["steps"].as_array().unwrap()) {
            if step["limits"] != "within" {
                continue;
            }
            let highest = moved(&unlimited[at], &best, step);
            let lowered = moved(rows, &best, step);
            // A neighbour runs at the clock that is best for both models together, at which one model may be worse than
            // at the search's limit. So its value is compared only without a limit.
            if said["lowered_to_w"].is_null() {
                let there = tokens_per_s_per_usd(&lowered);
                assert!((step["value"].as_f64().unwrap() / there - 1.0).abs() < 1e-9, "{there}: {step}");
            }
            assert!(highest["outcome"] == "evaluated", "{highest:?}");
            // No neighbour within the limits has a better mean. The tolerance covers the spacing of the clocks.
            assert!(all["change"].as_f64().unwrap() <= 2e-3, "{all}");
        }
    }
    let change = |of: &Value, at: usize| 1.0 + of["steps"][at]["change"].as_f64().unwrap();
    for at in 0..said["steps"].as_array().unwrap().len() {
        let mean = (change(&said["models"][0], at) * change(&said["models"][1], at)).sqrt();
        assert!((change(&said, at) / mean - 1.0).abs() < 1e-9, "{at}: {said}");
    }

    // The comparison of this run uses the same value.
    let compared = run_coplace_in(dir.path(), &["compare", "usd", "--format", "json"]).expect_json();
    let entries = compared["entries"].as_array().unwrap();
    let value = |entry: &Value| entry["objective_value"].as_f64().unwrap();
    assert!((value(&entries[0]) / said["value"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{entries:?}");
    for (at, entry) in entries.iter().enumerate().filter(|(_, entry)| entry["objective_value"].is_f64()) {
        let lead =
            |of: usize| value(&compared["models"][of]["entries"][at]) / value(&compared["models"][of]["entries"][0]);
        let mean = (lead(0) * lead(1)).sqrt();
        assert!((value(entry) / value(&entries[0]) / mean - 1.0).abs() < 1e-9, "{entry}");
    }
    let short = run_on_screen(dir.path(), "80", &["compare", "usd"]).expect_result();
    assert!(short.contains("opt-350m") && short.contains("tokens/s per USD"), "{short}");
    // On a narrow screen the table of the models has every figure.
    let call =
        [&["search", models[0], models[1], "--study", "s.toml", "--details", "--out", "usd"], &paid[..]].concat();
    let narrow = run_on_screen(dir.path(), "80", &call).expect_result();
    let table = narrow.split("\nModels\n").nth(1).unwrap().split("\nProof\n").next().unwrap();
    for part in ["plan ", "tokens/s ", "x reference ", "MFU ", "GiB ", "step "] {
        assert!(table.contains(&format!("\n{part}")) && !table.contains("left out"), "{part}: {table}");
    }
}
