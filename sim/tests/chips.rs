//! The built-in chips: every file reads, and the models agree with published and measured figures.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use coplace_sim::cost::calibrate::{MeasurementClock, predict_time};
use coplace_sim::cost::named::{KERNEL_NAMES, KernelShape, kernel_from_name};
use coplace_sim::cost::{CostModel, Routine};
use coplace_sim::hardware::{Accelerator, chip_area, find_faults, lower_clock, sustained_power, templates};
use coplace_sim::kernel::DataType;
use coplace_sim::units::Hertz;

fn error_percent(predicted: f64, measured: f64) -> f64 {
    100.0 * (predicted / measured - 1.0)
}

/// Copies of 256 MiB from and to pinned memory on an H100 and an H200 run at 53.4 to 54.8 GB/s
/// (`measured/reference/pytorch_h100_h200/stream_contention.csv`); nothing is fitted on them.
#[test]
fn a_hosts_link_is_as_fast_as_its_data() {
    let rate = |chip: &str| Accelerator::built_in(chip).unwrap().host.unwrap().bandwidth.0 / 1e9;
    assert!((rate("h100_80gb_sxm") / 53.4 - 1.0).abs() < 0.02 && (rate("h200") / 54.8 - 1.0).abs() < 0.04);
    assert_eq!(rate("gb200"), 450.0, "not PCIe");
}

#[test]
fn every_template_reads_and_is_sound() {
    let all = templates().unwrap();
    for template in all {
        assert!(find_faults(&template.accelerator).is_empty());
        assert_eq!(template.name, template.accelerator.name);
        assert!(!template.description.is_empty());
        for alias in &template.aliases {
            assert_eq!(Accelerator::built_in(alias).unwrap().name, template.name);
        }
    }
}

/// The chips of the validation data, and those of the main job.
#[test]
fn every_canonical_chip_is_built_in() {
    let canonical = "tpu_v2 tpu_v3 tpu_v4 tpu_v5e tpu_v5p tpu_v6e tpu_v7 tpu_v7_half a100_80gb_sxm a100_40gb_sxm h100_80gb_sxm h100_96gb h200 \
                     v100_32gb b200 gb200 gaudi2 mi210 mi300x phaze_tpuv4 a100_80gb h100_80gb";
    for name in canonical.split_whitespace() {
        assert!(Accelerator::built_in(name).is_ok(), "{name}");
    }
    assert_eq!(Accelerator::built_in("TPU-v4").unwrap().name, "tpu_v4");
}

/// Dies to whose areas no unit was fitted.
#[test]
fn other_dies_come_out_near_their_published_area() {
    for (name, tolerance_percent) in [("h100_80gb_sxm", 5.0), ("mi210", 10.0), ("tpu_v3", 10.0), ("v100_32gb", 20.0)] {
        let chip = Accelerator::built_in(name).unwrap();
        let error = error_percent(chip_area(&chip).unwrap().total_area().0, chip.published.die_area.unwrap().0);
        assert!(error.abs() < tolerance_percent, "{name}: {error:.1} %");
    }
    let unit = chip_area(&Accelerator::built_in("mi210").unwrap()).unwrap().core_area().0;
    assert!(error_percent(unit, 4.02).abs() < 5.0, "{unit} mm^2 per compute unit");
}

/// Annotation of GA100's die photograph (LLMCompass, ISCA 2024, `ae/figure6` at 2e015fd); its authors state an accuracy
/// of 10 %.
const GA100: [(&str, &str, f64); 9] = [
    ("die", "cores", 476.25),
    ("die", "crossbar", 76.44),
    ("die", "global_buffer", 119.31),
    ("die", "mem_phy", 58.0),
    ("die", "mem_ctrl", 31.77),
    ("die", "offchip_link_phy", 20.95),
    ("die", "other", 40.0),
    ("die", "TOTAL", 822.72),
    ("core", "TOTAL_core", 3.75),
];

#[test]
fn the_a100_die_is_as_photographed() {
    let breakdown = chip_area(&Accelerator::built_in("A100_GA100").unwrap()).unwrap();
    let errors = GA100.map(|(level, component, measured)| {
        error_percent(breakdown.component_area(level, component).unwrap().0, measured).abs()
    });
    assert!(errors[7] < 3.0, "total: {:.2} %", errors[7]);
    assert!(errors.iter().all(|e| *e < 15.0), "{errors:?}");
    assert!(errors.iter().sum::<f64>() / errors.len() as f64 <= 6.0, "{errors:?}");
    assert!(breakdown.component_area("die", "cache").is_none());
}

#[test]
fn tpu_v4_is_as_published() {
    let chip = Accelerator::built_in("tpu_v4").unwrap();
    let die = chip_area(&chip).unwrap().total_area().0;
    assert!((540.0..600.0).contains(&die), "{die} mm^2, published: below 600");
    let power = error_percent(same_power(&chip).unwrap(), chip.published.tdp.unwrap().0);
    assert!(power.abs() < 10.0, "{power} %");
    let peak = error_percent(chip.peak_flops(DataType::Bf16).unwrap().0, 275e12);
    assert!(peak.abs() < 1.0, "{peak} %");
}

/// Every name is predicted on every chip with a finite time, and a large product lies between 0.3 of the peak and the
/// peak. The lowest fraction is the MI300X's in fp8, where 820 of 2,615 TFLOP/s were measured.
#[test]
fn every_kernel_is_predicted_on_every_chip() {
    let types = DataType::ALL;
    for template in templates().unwrap() {
        let chip = &template.accelerator;
        let model = CostModel::new(chip.clone()).unwrap();
        for (name, data_type) in KERNEL_NAMES.into_iter().flat_map(|name| types.map(|t| (name, t))) {
            for (m, n, k) in [(2, 3, 5), (1000, 777, 1), (8192, 8192, 8192)] {
                let kernel =
                    kernel_from_name(name, KernelShape { m, n, k, ..KernelShape::default() }, data_type).unwrap();
                let routine = Routine::Kernel(kernel);
                for timing in [MeasurementClock::Device, MeasurementClock::Host] {
                    let time = predict_time(&model, &routine, timing).0;
                    assert!(
                        time.is_finite() && time > 0.0 && time < 10.0,
                        "{} {name} {data_type} {m}x{n}x{k}: {time} s",
                        template.name
                    );
                }
            }
        }
        for (data_type, peak) in chip.published.peak.iter() {
            let kernel = kernel_from_name(
                "gemm",
                KernelShape { m: 8192, n: 8192, k: 8192, ..KernelShape::default() },
                data_type,
            )
            .unwrap();
            let achieved =
                (kernel.flops() / peak).0 / predict_time(&model, &Routine::Kernel(kernel), MeasurementClock::Device).0;
            assert!(
                (0.3..=1.03).contains(&achieved),
                "{} {data_type}: {achieved} of the published peak",
                template.name
            );
        }
    }
}

/// Returns a predicted figure next to the published one: `826 / 831.5 (+0.7 %)`, or nothing to compare.
fn beside(published: Option<f64>, predicted: Option<f64>, errors: &mut Vec<f64>) -> String {
    match (published, predicted) {
        (Some(published), Some(predicted)) => {
            let error = error_percent(predicted, published);
            errors.push(error.abs());
            format!("{published:.0} / {predicted:.0} ({error:+.1} %)")
        }
        _ => "-".to_owned(),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// The meaning of a published power.
enum Power {
    /// A limit that lowers the clock. Under it large bf16 products reach this rate, in TFLOP/s.
    Limit(f64),
    /// A limit of a chip for which no such rate is known.
    UnknownRate,
    /// The measured power of chip and HBM under the most power-hungry work, behind the regulators.
    Measured,
    /// The design power of a chip that keeps its clock.
    Design,
}

/// The rates are from S. Bekman, *Machine Learning Engineering Open Book*, maximum achievable matmul FLOPS
/// (stas00/ml-engineering, compute/accelerator): means of 100 runs, for the fastest of many shapes. MI210's rate is the
/// largest among the measured kernels used here (LLMCompass). Gaudi 2 reaches 97 % of its peak in that source, so no
/// limit lowers its clock.
const POWER: [(&str, Power); 21] = [
    ("a100_40gb_sxm", Power::Limit(271.2)),
    ("a100_80gb_pcie", Power::Limit(252.9)),
    ("a100_80gb_sxm", Power::Limit(271.2)),
    ("b200", Power::Limit(1745.0)),
    ("b300", Power::Limit(1769.0)),
    ("gaudi2", Power::Design),
    ("gb200", Power::Limit(1822.0)),
    ("gb300", Power::UnknownRate),
    ("h100_80gb_sxm", Power::Limit(794.5)),
    ("h100_96gb", Power::UnknownRate),
    ("h200", Power::Limit(794.5)),
    ("mi210", Power::Limit(121.6)),
    ("mi300x", Power::Limit(668.4)),
    ("mi325x", Power::Limit(784.9)),
    ("mi355x", Power::Limit(1565.0)),
    ("tpu_v2", Power::Design),
    ("tpu_v3", Power::Design),
    ("tpu_v4", Power::Measured),
    ("tpu_v4i", Power::Design),
    ("v100_16gb", Power::UnknownRate),
    ("v100_32gb", Power::UnknownRate),
];

/// The energy per core and cycle of GPUs was fitted to the first two chips: one die under two power limits. The third
/// chip is the same die under one of these limits.
const FITTED: [&str; 3] = ["a100_80gb_pcie", "a100_80gb_sxm", "a100_40gb_sxm"];

/// Returns the model's prediction of a published power, where the meaning of that power is known.
fn same_power(chip: &Accelerator) -> Option<f64> {
    let (_, power) = POWER.iter().find(|(name, _)| *name == chip.name)?;
    let watts = match power {
        Power::Limit(tflops) => {
            let kept = tflops * 1e12 / chip.peak_flops(DataType::Bf16).unwrap().0;
            sustained_power(&lower_clock(chip, Hertz(chip.clock.0 * kept))).contraction
        }
        Power::UnknownRate => return None,
        Power::Measured => {
            let dynamic = sustained_power(chip).peak_power() - chip.energy.static_power;
            chip.energy.static_power + dynamic * chip.constants.energy.regulator_efficiency
        }
        Power::Design => sustained_power(chip).together,
    };
    Some(watts.0)
}

/// Returns the predicted power of the same load, for a chip whose cores take `times` its energy per cycle.
fn same_power_at(name: &str, times: f64) -> f64 {
    let mut chip = Accelerator::built_in(name).unwrap();
    chip.energy.per_core_cycle = chip.energy.per_core_cycle * times;
    same_power(&chip).unwrap() / chip.published.tdp.unwrap().0
}

/// Returns the factor on the energy of a core and cycle that meets these chips' limits with the least squares of
/// relative errors.
fn fitted_core_cycle(names: &[&str]) -> f64 {
    let (mut along, mut squares) = (0.0, 0.0);
    for name in names {
        let (without, with) = (same_power_at(name, 0.0), same_power_at(name, 1.0));
        along += (with - without) * (1.0 - without);
        squares += (with - without) * (with - without);
    }
    along / squares
}

/// GPUs by die.
const DIES: [&[&str]; 6] = [
    &["a100_80gb_pcie", "a100_80gb_sxm"],
    &["h100_80gb_sxm"],
    &["b200", "b300", "gb200"],
    &["mi210"],
    &["mi300x", "mi325x"],
    &["mi355x"],
];

/// Returns the errors in percent for the chips of some dies, with the factor fitted to all others.
fn left_out(dies: std::ops::Range<usize>) -> Vec<f64> {
    let others: Vec<&str> =
        (0..DIES.len()).filter(|die| !dies.contains(die)).flat_map(|die| DIES[die]).copied().collect();
    let fit = fitted_core_cycle(&others);
    DIES[dies]
        .iter()
        .flat_map(|die| die.iter())
        .map(|name| error_percent(same_power_at(name, fit), 1.0).abs())
        .collect()
}

#[test]
fn a_gpus_core_and_cycle_is_fitted_on_one_die() {
    let fit = fitted_core_cycle(&FITTED[..2]);
    assert!((fit - 1.0).abs() < 0.02, "{fit} of the energy in the code");
    // If no rate is known, the full clock must need at least the limit.
    for (name, _) in POWER.iter().filter(|(_, power)| matches!(power, Power::UnknownRate)) {
        let chip = Accelerator::built_in(name).unwrap();
        assert!(sustained_power(&chip).peak_power() > chip.published.tdp.unwrap(), "{name}");
    }
}

/// Every built-in chip with a published die area, power or peak, as listed in `sim/README.md`.
#[test]
fn the_readme_has_every_published_figure_beside_the_predicted_one() {
    let readme = include_str!("../README.md");
    let (mut areas, mut powers, mut peaks, mut lines) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut unfitted = Vec::new();
    for template in templates().unwrap() {
        let chip = &template.accelerator;
        // PHAZE's own point is the origin of its area table.
        if template.name == "phaze_tpuv4" {
            continue;
        }
        let published = &chip.published;
        let die = chip_area(chip).ok().map(|parts| parts.total_area().0);
        let peak = published.peak.iter().find(|(t, _)| matches!(t, DataType::Bf16 | DataType::Fp16));
        let modelled = peak.and_then(|(t, _)| chip.peak_flops(t)).map(|peak| peak.0 / 1e12);
        let same = same_power(chip);
        if let (Some(limit), Some(same), false) = (published.tdp, same, FITTED.contains(&template.name.as_str())) {
            unfitted.push(error_percent(same, limit.0).abs());
        }
        let cells = [
            beside(published.die_area.map(|a| a.0), die, &mut areas),
            beside(published.tdp.map(|w| w.0), same, &mut powers),
            published.tdp.map_or_else(|| "-".to_owned(), |_| format!("{:.0}", sustained_power(chip).peak_power().0)),
            beside(peak.map(|(_, peak)| peak.0 / 1e12), modelled, &mut peaks),
        ];
        if cells.iter().any(|cell| cell != "-") {
            lines.push(format!("| {} | {} |", template.name, cells.join(" | ")));
        }
    }
    let counts = [areas.len(), powers.len(), peaks.len()];
    let [area, power, peak, unfitted] = [areas, powers, peaks, unfitted].map(median);
    let last = format!(
        "| median error | {area:.1} % of {} | {power:.1} % of {}, {unfitted:.1} % of those not fitted | | {peak:.1} % of {} |",
        counts[0], counts[1], counts[2]
    );
    lines.push(last);
    let die: Vec<f64> = (0..DIES.len()).flat_map(|die| left_out(die..die + 1)).collect();
    let vendor = [left_out(0..3), left_out(3..6)].concat();
    let (count, die, vendor) = (die.len(), median(die), median(vendor));
    lines.push(format!(
        "| of GPUs, fitted on the other dies; on the other vendor's | | {die:.1} % of {count}; {vendor:.1} % | | |"
    ));
    let missing: Vec<&String> = lines.iter().filter(|line| !readme.contains(line.as_str())).collect();
    assert!(missing.is_empty(), "sim/README.md lacks these lines:\n{}", lines.join("\n"));
    assert!(
        area <= 12.0 && power <= 12.0 && peak <= 12.0,
        "median errors: area {area} %, power {power} %, peak {peak} %"
    );
}
