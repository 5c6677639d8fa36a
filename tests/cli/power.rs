//! Power limits, and the clocks to which they lower chips.

use crate::search::{RELATIVES, read_record};
use crate::support::run_coplace_in;
use serde_json::Value;

#[test]
fn a_limit_of_power_lowers_the_clock_of_the_chip_that_every_verb_takes() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("relatives.toml"), RELATIVES).unwrap();
    let question = ["opt-350m", "--study", "relatives.toml", "--sequence-length", "1024"];
    let found = |out: &str, more: &[&str]| {
        let text =
            run_coplace_in(dir.path(), &[&["search"][..], &question, more, &["--out", out]].concat()).expect_result();
        (read_record(&dir.path().join(out)), text)
    };
    let number = |record: &Value, key: &str| record["best"]["design"][key].as_f64().unwrap();
    let (free, text) = found("free", &[]);
    assert!(free["best"]["design"]["lowered_clock_mhz"].is_null() && !text.contains("clock is lowered"), "{text}");
    let power = number(&free, "peak_power_w");
    // A limit above the best chip's power changes nothing.
    let (wide, _) = found("wide", &["--max-power", "1000"]);
    assert_eq!(wide["best"]["step"], free["best"]["step"]);
    let most = format!("{:.0}", 0.75 * power);
    let (limited, text) = found("limited", &["--max-power", &most]);
    let (clock, watts) = (number(&limited, "lowered_clock_mhz"), number(&limited, "peak_power_w"));
    assert!(clock < 1050.0 && clock.fract() == 0.0 && watts <= most.parse().unwrap(), "{clock} {watts} {most}");
    assert!(text.contains(&format!("The clock is lowered from 1050 to {clock} MHz, and the voltage to 0.")), "{text}");
    let rate = |record: &Value| number(record, "throughput_tokens_per_s");
    assert!(rate(&limited) <= rate(&free));
    assert_eq!(limited["certificate"]["open"], 0);
    let toml = std::fs::read_to_string(dir.path().join("limited/best.toml")).unwrap();
    assert!(
        toml.contains(&format!("lowered_clock_mhz = {clock}\n")) && toml.starts_with("clock_mhz = 1050\n"),
        "{toml}"
    );
    let again =
        run_coplace_in(dir.path(), &["evaluate", "opt-350m", "--chip", "limited", "--format", "json"]).expect_json();
    assert_eq!(again["result"]["time"], limited["best"]["step"]["time"]);
    assert_eq!(again["result"]["energy"], limited["best"]["step"]["energy"]);
    let explained = run_coplace_in(dir.path(), &["explain", "limited"]).expect_result();
    assert!(explained.contains(&format!("clock    lowered to {clock:.0} MHz by the power limit")), "{explained}");
    // A sweep finds the same chip at the same clock.
    let swept = [&["sweep"][..], &question, &["--max-power", &most, "--out", "swept"]].concat();
    run_coplace_in(dir.path(), &swept).expect_result();
    let sweep = read_record(&dir.path().join("swept"));
    for key in ["lowered_clock_mhz", "peak_power_w", "step_time_s", "dimensions"] {
        assert_eq!(sweep["best"]["design"][key], limited["best"]["design"][key], "{key}");
    }
    let varied =
        run_coplace_in(dir.path(), &[&["search"][..], &question, &["--set", "lowered_clock_mhz=800"]].concat())
            .expect_refusal();
    assert!(varied.contains("lowered_clock_mhz"), "{varied}");
    // A limit of 20 W leaves no chip, even at the lowest clock.
    let none =
        run_coplace_in(dir.path(), &[&["search"][..], &question, &["--max-power", "20", "--out", "none"]].concat())
            .expect_refusal();
    assert!(
        none.contains("--max-power 20: no chip of the space is within the limits") && none.contains(" W at least"),
        "{none}"
    );
    assert!(!dir.path().join("none").exists());
}

/// If the objective depends on energy, the search also chooses the clock. So a larger power limit is never worse.
#[test]
fn a_larger_limit_of_power_is_never_worse() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("relatives.toml"), RELATIVES).unwrap();
    let search = |objective: &str, watts: &str| {
        let out = format!("{objective}-{watts}");
        let asked = ["search", "opt-350m", "--study", "relatives.toml", "--sequence-length", "1024", "--draws", "0"];
        let limited = ["--objective", objective, "--max-power", watts, "--front", "none", "--out", &out];
        run_coplace_in(dir.path(), &[&asked[..], &limited].concat()).expect_result();
        read_record(&dir.path().join(out))
    };
    for (objective, more_is_better) in [("energy-per-token", false), ("per-watt", true)] {
        let values = ["140", "200", "1000"].map(|watts| {
            let record = search(objective, watts);
            assert_eq!(record["certificate"]["open"], 0);
            record["certificate"]["best"].as_f64().unwrap()
        });
        let worse = |a: f64, b: f64| if more_is_better { a / b } else { b / a };
        let found = values.windows(2).all(|pair| worse(pair[0], pair[1]) < 1.005);
        assert!(found, "{objective}: {values:?}");
    }
    let record = search("energy-per-token", "900");
    let (limit, design) = (record["lowered_to_w"].as_f64().unwrap(), &record["best"]["design"]);
    assert!(design["peak_power_w"].as_f64().unwrap() <= limit && limit < 900.0, "{design}");
    // `explain` uses the lowered clock, and a second search writes into the same directory, because the question is the
    // same.
    let explained = run_coplace_in(dir.path(), &["explain", "energy-per-token-900"]).expect_result();
    let clock = design["lowered_clock_mhz"].as_f64().unwrap();
    assert!(explained.contains(&format!("clock    lowered to {clock:.0} MHz")), "{explained}");
    assert_eq!(search("energy-per-token", "900")["best"], record["best"]);
    // For the throughput, the highest clock is best.
    assert!(search("throughput", "900")["lowered_to_w"].is_null());
}
