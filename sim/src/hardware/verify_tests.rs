//! Injected faults are found, and their texts name key, value, limit and cure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::template::embedded;
use super::{Accelerator, Calibration, ChipTemplate, HardwareError, HostLink, find_faults, templates};
use crate::units::{Bytes, BytesPerSecond, Hertz, Joules, Seconds, Watts};
use proptest::prelude::*;

/// An injected bad number, and the key that the fault must name.
type Injection = (&'static str, fn(&mut Accelerator, f64));

const INJECTIONS: [Injection; 12] = [
    ("clock_mhz", |chip, bad| chip.clock = Hertz(bad)),
    ("tensor.macs_per_unit_per_cycle.bf16", |chip, bad| chip.tensor.macs_per_unit_per_cycle.bf16 = Some(bad)),
    ("memory.hbm.read bandwidth in B/s", |chip, bad| chip.hbm.read_bandwidth = BytesPerSecond(bad)),
    ("memory.hbm.write bandwidth in B/s", |chip, bad| chip.hbm.write_bandwidth = BytesPerSecond(bad)),
    ("memory.hbm.latency in s", |chip, bad| chip.hbm.latency = Seconds(bad - 1e-9)),
    ("memory.hbm.read energy in J/B", |chip, bad| chip.hbm.read_energy_per_byte = Joules(bad - 1e-9)),
    ("memory.hbm.capacity", |chip, _| chip.hbm.capacity = Bytes::ZERO),
    ("memory.hbm.ports", |chip, _| chip.hbm.ports = 0),
    ("tensor.rows", |chip, _| chip.tensor.rows = 0),
    ("vector.lanes", |chip, _| chip.vector.lanes = 0),
    ("energy.static_w", |chip, bad| chip.energy.static_power = Watts(bad - 1e-9)),
    ("calibration.hbm_achieved_fraction", |chip, bad| chip.calibration.hbm_achieved_fraction = bad),
];

proptest! {
    #[test]
    fn an_injected_fault_is_found(
        chip in 0..templates().unwrap().len(),
        (key, break_it) in prop::sample::select(INJECTIONS.to_vec()),
        bad in prop_oneof![Just(0.0), Just(f64::NAN), Just(f64::NEG_INFINITY), -1e12..-1e-9],
    ) {
        let mut chip = templates().unwrap()[chip].accelerator.clone();
        break_it(&mut chip, bad);
        let faults = find_faults(&chip);
        prop_assert!(faults.iter().any(|fault| fault.key == key), "{key} {bad}: {faults:?}");
    }
}

/// Returns the faults of TPU v4, uncalibrated, with changes to its file's text.
fn faults_of(changes: &[(&str, &str)]) -> String {
    let file = include_str!("../../templates/chips/tpu_v4.toml");
    let mut text = file.split("\n[calibration]").next().unwrap_or(file).to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    ChipTemplate::from_toml_str(&text, "my_chip.toml").unwrap_err().to_string()
}

#[test]
fn contradictions_are_named() {
    const CMEM: &str = "kind = \"scratchpad\"\ncapacity_mib = 128";
    let through = (CMEM, "kind = \"scratchpad\"\nbypass = false\ncapacity_mib = 128");
    let text = faults_of(&[("capacity_mib = 16\n", "capacity_mib = 256\n"), through]);
    let expected = "my_chip.toml: memory.vmem.capacity = 268435456 B: exceeds the 134217728 B of cmem, the memory around it; \
                    list memories innermost first, or correct one of the two";
    assert_eq!(text, expected);
    let text = faults_of(&[(CMEM, "kind = \"cache\"\nbypass = true\ncapacity_mib = 128")]);
    let expected = "my_chip.toml: memory.cmem.bypass = true: only a scratchpad that cores share and that is on the die \
                    has a path around it; remove it, or write kind = \"scratchpad\"";
    assert_eq!(text, expected);
    let text = faults_of(&[("bf16 = 275,", "bf16 = 400,")]);
    let expected = "my_chip.toml: published.peak_tflops.bf16 = 400: arrays x clock give 275.3 TFLOP/s; \
                    correct the clock, the arrays, the rate or the published peak";
    assert_eq!(text, expected);
    let text = faults_of(&[("static_w = 90", "static_w = 200")]);
    let expected = "my_chip.toml: energy.static_w = 200: reaches the published 192 W that the chip draws at work; give the idle power";
    assert_eq!(text, expected);
}

/// A capacity of zero removes a level only if data can go around it. For other levels the fault gives the reason, and
/// its cures work.
#[test]
fn a_level_that_data_cannot_go_around_is_not_left_out() {
    const CMEM: &str = "kind = \"scratchpad\"\ncapacity_mib = 128";
    let around = "only a level that data can go around can be left out, and";
    let cases = [
        (
            [("capacity_mib = 16\n", "capacity_mib = 0\n")],
            "memory.vmem.capacity_mib",
            format!(
                "{around} nothing goes around a core's own memory; give its capacity, or remove its [[memory]] table"
            ),
        ),
        (
            [(CMEM, "kind = \"cache\"\ncapacity_mib = 0")],
            "memory.cmem.capacity_mib",
            format!(
                "{around} nothing goes around a cache; give its capacity, write kind = \"scratchpad\", or remove its \
                 [[memory]] table"
            ),
        ),
        (
            [(CMEM, "kind = \"scratchpad\"\nbypass = false\ncapacity_mib = 0")],
            "memory.cmem.capacity_mib",
            format!(
                "{around} bypass = false denies the way around it; give its capacity, write bypass = true, or remove \
                 its [[memory]] table"
            ),
        ),
        (
            [("capacity_gib = 32\n", "capacity_gib = 0\n")],
            "memory.hbm.capacity_gib",
            "the outermost memory holds the model and cannot be left out; give its capacity".to_owned(),
        ),
    ];
    for (changes, key, why) in cases {
        let text = faults_of(&changes);
        assert!(text.starts_with(&format!("my_chip.toml: {key} = 0: {why}")), "{text}");
    }
    // The cures: a scratchpad with a way around it, and a file without the level.
    let file = include_str!("../../templates/chips/tpu_v4.toml");
    let without_cmem = ChipTemplate::from_toml_str(&file.replace("capacity_mib = 128", "capacity_mib = 0"), "a.toml");
    assert!(without_cmem.unwrap().accelerator.on_chip.iter().all(|level| level.name != "cmem"));
    let tables: Vec<&str> = file.split("[[memory]]").collect();
    let lines = |text: &str| text.lines().filter(|line| !line.contains("\"memory.vmem")).collect::<Vec<_>>().join("\n");
    let without_vmem = lines(&[tables[0], &tables[2..].join("[[memory]]")].join("[[memory]]"));
    let chip = ChipTemplate::from_toml_str(&without_vmem, "b.toml").unwrap().accelerator;
    assert_eq!(chip.on_chip.iter().map(|level| level.name.as_str()).collect::<Vec<_>>(), ["cmem"]);
    assert!(crate::cost::CostModel::new(chip).is_ok());
}

#[test]
fn every_figure_needs_its_source() {
    let text = faults_of(&[("clock_mhz = \"Jouppi", "clock = \"Jouppi")]);
    let expected = "my_chip.toml: clock_mhz = 1050: every figure needs a source; add \"clock_mhz\" = \"...\" to [sources]\n  \
                    sources.clock = Jouppi et al., TPU v4, ISCA 2023, Table 4: a source belongs to a figure of this file; remove or rename it";
    assert_eq!(text, expected);
}

#[test]
fn missing_zero_negative_and_nan_figures_are_named() {
    let expected = "my_chip.toml: clock_mhz = NaN: must be positive and finite; give the clock of the cores";
    assert!(faults_of(&[("clock_mhz = 1050", "clock_mhz = nan")]).starts_with(expected));
    let expected = "my_chip.toml: memory.hbm.capacity = nothing: this figure is needed; \
                    give one of capacity_kib, capacity_mib, capacity_gib, capacity_gb";
    assert_eq!(faults_of(&[("capacity_gib = 32\n", "")]), expected);
    let expected = "my_chip.toml: memory.hbm.capacity_gib = -32: must be positive and finite; correct it";
    assert_eq!(faults_of(&[("capacity_gib = 32\n", "capacity_gib = -32\n")]), expected);
    let expected = "my_chip.toml: memory.hbm.capacity = capacity_gib and capacity_gb: one figure, one key; \
                    keep one of capacity_kib, capacity_mib, capacity_gib, capacity_gb";
    assert_eq!(faults_of(&[("capacity_gib = 32\n", "capacity_gib = 32\ncapacity_gb = 32\n")]), expected);
    let expected = "my_chip.toml: tensor.rows = 0: must be positive and finite; a chip has at least one";
    assert!(faults_of(&[("rows = 128", "rows = 0")]).starts_with(expected));
}

#[test]
fn malformed_text_names_line_and_key() {
    let text = faults_of(&[("clock_mhz = 1050", "clock_ghz = 1.05")]);
    assert!(text.starts_with("my_chip.toml: TOML parse error at line 4, column 1"), "{text}");
    assert!(
        text.contains("unknown field `clock_ghz`, expected one of `name`, `aliases`, `description`, `clock_mhz`"),
        "{text}"
    );
    let text = faults_of(&[("clock_mhz = 1050\n", "")]);
    assert!(text.contains("missing field `clock_mhz`"), "{text}");
    let text = faults_of(&[("cores = 2", "cores = -2")]);
    assert!(text.contains("invalid value: integer `-2`, expected a whole number from 0 to 4294967295"), "{text}");
}

#[test]
fn calibration_scalars_say_what_they_were_fitted_on() {
    let with = |lines: &str| faults_of(&[("[sources]", &format!("[calibration]\n{lines}\n[sources]"))]);
    let expected = "my_chip.toml: calibration.launch_overhead_us = 5.0: a fitted figure must name the data that it was fitted to; \
                    name the data in [calibration.fitted_on] launch_overhead_us";
    assert_eq!(with("launch_overhead_us = 5.0"), expected);
    let text = with("magic = 2\n[calibration.fitted_on]\nmagic = \"nothing\"");
    assert!(
        text.starts_with("my_chip.toml: calibration.magic = 2: no such scalar; use one of launch_overhead_us, "),
        "{text}"
    );
    let text = with("hbm_achieved_fraction = 1.5\n[calibration.fitted_on]\nhbm_achieved_fraction = \"copies\"");
    let expected = "my_chip.toml: calibration.hbm_achieved_fraction = 1.5: must lie between 0.01 and 1; fit it anew; 1 is the ideal chip's";
    assert_eq!(text, expected);
    assert!(Calibration::PARAMETERS.len() <= 8);
}

#[test]
fn figures_of_unknown_formats_are_refused_with_the_known_ones() {
    let with = |lines: &str| faults_of(&[("[sources]", &format!("{lines}\n[sources]"))]);
    let known = "use one of fp32, bf16, fp16, fp8, int8, mxfp8, nvfp4, mxfp4";
    let text =
        with("[calibration]\nachieved_by_format = { fp7 = 0.5 }\nfitted_on = { achieved_by_format = \"products\" }");
    assert_eq!(text, format!("my_chip.toml: calibration.achieved_by_format.fp7 = 0.5: no such number format; {known}"));
    let text =
        with("[calibration]\nachieved_by_format = { fp8 = 1.5 }\nfitted_on = { achieved_by_format = \"products\" }");
    let expected = "my_chip.toml: calibration.achieved_by_format.fp8 = 1.5: must lie between 0.01 and 1; fit it anew; \
                    1 is the ideal chip's";
    assert_eq!(text, expected);
    let text = with("[calibration]\nachieved_by_format = { fp8 = 0.5 }");
    assert!(text.contains("a fitted figure must name the data that it was fitted to"), "{text}");
    let text = with("[attention.mine]\nissue_fraction = 0.9\nfitted_on = \"calls\"");
    assert!(text.contains("attention.mine.softmax_fraction = nothing: a number; write the fitted value"), "{text}");
    let library =
        include_str!("../../templates/chips/b200.toml").split("[library]").nth(1).unwrap().split("[streams]").next();
    let own = library.unwrap().replace("[library.formats.fp8]", "[library.formats.fp8]\nrow_scaled = 1");
    let text = with(&format!("[library]{own}"));
    assert!(text.contains("my_chip.toml: library.formats.fp8.row_scaled = 1: true or false; write true if "), "{text}");
    let library = library.unwrap().replace("[library.formats.nvfp4]", "[library.formats.fp4]");
    let text = with(&format!("[library]{library}"));
    assert!(text.contains("my_chip.toml: library.formats.fp4 = ") && text.contains(known), "{text}");
}

#[test]
fn a_link_without_capacity_is_a_fault() {
    let mut chip = Accelerator::built_in("tpu_v4").unwrap();
    chip.host = Some(HostLink { bandwidth: BytesPerSecond(16e9), capacity: Bytes::ZERO, memory: None });
    let faults: Vec<String> = find_faults(&chip).iter().map(ToString::to_string).collect();
    assert_eq!(faults, ["host.capacity_gib = 0: must be positive and finite; a link to the host leads to its memory"]);
}

#[test]
fn an_unknown_chip_is_told_the_known_ones() {
    let error = Accelerator::built_in("tpu_v99").unwrap_err();
    assert!(matches!(&error, HardwareError::Unknown { name, .. } if name == "tpu_v99"));
    assert!(
        error.to_string().starts_with(
            "unknown chip `tpu_v99`: did you mean `tpu_v2`? Built in are a10, a100_40gb_sxm, a100_80gb_pcie, "
        ),
        "{error}"
    );
}

/// Appends the paths of the numbers in a file's tables to `found`. Only the first two entries of arrays count.
fn numbers(value: &toml::Value, path: &[String], found: &mut Vec<Vec<String>>) {
    let below = |key: String| [path, &[key]].concat();
    match value {
        toml::Value::Float(_) | toml::Value::Integer(_) => found.push(path.to_vec()),
        toml::Value::Table(table) => table.iter().for_each(|(key, inner)| numbers(inner, &below(key.clone()), found)),
        toml::Value::Array(list) => {
            list.iter().take(2).enumerate().for_each(|(i, inner)| numbers(inner, &below(i.to_string()), found));
        }
        _ => {}
    }
}

/// Returns the file's text with the number at a path replaced.
fn with(file: &toml::Value, path: &[String], number: f64) -> String {
    let mut file = file.clone();
    let place = path.iter().fold(&mut file, |at, key| match at {
        toml::Value::Array(list) => &mut list[key.parse::<usize>().unwrap()],
        other => other.get_mut(key).unwrap(),
    });
    // A whole number stays whole, so that the limit refuses it and not the parser.
    let whole = place.is_integer() && number == 0.0;
    *place = if whole { toml::Value::Integer(0) } else { toml::Value::Float(number) };
    toml::to_string(&file).unwrap()
}

/// Checks the limits of every number of a file. NaN, negative and huge numbers must be refused; where a tiny number is
/// accepted, zero must be too.
pub(crate) fn every_number_has_limits(text: &str, is_taken: impl Fn(&str) -> bool) {
    let file: toml::Value = toml::from_str(text).unwrap();
    let mut paths = Vec::new();
    numbers(&file, &[], &mut paths);
    assert!(is_taken(text) && is_taken(&toml::to_string(&file).unwrap()) && !paths.is_empty());
    for path in paths {
        for number in [f64::NAN, f64::INFINITY, -1.0, 1e308, 1e30] {
            assert!(!is_taken(&with(&file, &path, number)), "{} = {number:e}", path.join("."));
        }
        if is_taken(&with(&file, &path, 1e-320)) {
            assert!(is_taken(&with(&file, &path, 0.0)), "{} = 1e-320", path.join("."));
        }
    }
}

#[test]
fn every_figure_has_both_limits() {
    for (_, text) in embedded::CHIPS {
        every_number_has_limits(text, |text| ChipTemplate::from_toml_str(text, "my_chip.toml").is_ok());
    }
    let text = faults_of(&[("read_gb_per_s = 1200", "read_gb_per_s = 1e-320")]);
    assert_eq!(text, "my_chip.toml: memory.hbm.read_gb_per_s = 1e-320: must be from 0.001 to 1e9; correct it");
    let text = faults_of(&[("clock_mhz = 1050", "clock_mhz = 1e-7")]);
    assert!(text.starts_with("my_chip.toml: clock_mhz = 1e-7: must be from 0.001 to 100000; give the clock"), "{text}");
}
