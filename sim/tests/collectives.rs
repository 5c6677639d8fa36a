//! Collectives against the measurements that the NVLink fabrics were fitted on (seven scalars for 102 A100 rows, five for 20
//! H200 rows): `tests/data/collectives.csv`, each row with its source. This shows the fit, not a forecast. The limits are those the
//! project sets itself: 7 % mean absolute error from 16 MiB, 20 % from 4 KiB, per chip and collective.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

use coplace_sim::kernel::{Collective, CollectiveKind, Group};
use coplace_sim::network::{Fabric, Measurement, calibrate};
use coplace_sim::units::{Bytes, Seconds};
use std::collections::BTreeMap;

const H200: &str = "h200";
/// How the H200 rows were measured, as their `algo` says.
const SETTING: &str = "NVLS>=2MiB else Ring LL";

struct Row {
    dataset: String,
    chip: String,
    fabric: String,
    ranks: u32,
    bytes: u64,
    measured_us: f64,
    algorithm: String,
}

fn rows() -> Vec<Row> {
    let text = include_str!("data/collectives.csv");
    let mut lines = text.lines();
    assert!(lines.next().unwrap().starts_with("id,dataset,chip,fabric,collective,ranks,nodes,bytes,measured_us"));
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            assert_eq!(cells[4], "all_reduce");
            Row {
                dataset: cells[1].into(),
                chip: cells[2].into(),
                fabric: cells[3].into(),
                ranks: cells[5].parse().unwrap(),
                bytes: cells[7].parse().unwrap(),
                measured_us: cells[8].parse().unwrap(),
                algorithm: cells[10].into(),
            }
        })
        .collect()
}

fn collective(row: &Row) -> Collective {
    let group = Group { ranks: row.ranks, stride: 1 };
    Collective { kind: CollectiveKind::AllReduce, bytes: Bytes(row.bytes), group }
}

fn predicted_us(row: &Row) -> f64 {
    let fabric = Fabric::template_under(&row.fabric, &row.chip, &row.algorithm).unwrap();
    fabric.collective(&collective(row)).latency.micros()
}

/// Rows from 4 KiB, grouped and weighted as the fit was: by data set, ranks and size class, over the acceptable error.
fn measurements(chip: &str) -> Vec<Measurement> {
    let of_chip = rows().into_iter().filter(|r| r.chip == chip && r.bytes >= 4096);
    of_chip
        .map(|r| {
            let (class, weight) = if r.bytes >= 1 << 24 { ("large", 1.0 / 7.0) } else { ("small", 1.0 / 20.0) };
            Measurement {
                collective: collective(&r),
                time: Seconds::from_micros(r.measured_us),
                group: format!("{} {} {class}", r.dataset, r.ranks),
                weight,
            }
        })
        .collect()
}

#[test]
fn the_templates_are_where_the_fit_ends() {
    for (fabric, chip) in [("nvlink3_node", "a100_80gb_sxm"), ("nvlink4_node", H200)] {
        let template = Fabric::template_under(fabric, chip, SETTING).unwrap();
        let fit = calibrate(&template, 0, &measurements(chip)).unwrap();
        for group in &fit.groups {
            println!("{fabric} {}: {:.3} -> {:.3}", group.group, group.before, group.after);
        }
        for s in &fit.scalars {
            println!("{fabric} {} {} -> {}", s.key, s.before, s.after);
        }
        let mean =
            |of: fn(&coplace_sim::network::GroupError) -> f64| fit.groups.iter().map(of).sum::<f64>() / fit.groups.len() as f64;
        assert!(mean(|g| g.before) - mean(|g| g.after) < 0.02, "{fabric} can be fitted better");
    }
}

#[test]
fn a_fit_recovers_the_scalars_that_made_the_measurements() {
    let truth = Fabric::template_under("nvlink4_node", H200, SETTING).unwrap();
    let mut made = measurements(H200);
    made.extend(measurements("a100_80gb_sxm"));
    for m in &mut made {
        m.time = truth.collective(&m.collective).latency;
    }
    let mut start = truth.clone();
    start.launch = start.launch * 1.5;
    start.tiers[0].achieved_fraction *= 0.8;
    start.tiers[0].chunk = start.tiers[0].chunk * 2.0;
    let fit = calibrate(&start, 0, &made).unwrap();
    let worst = fit.groups.iter().map(|g| g.after).fold(0.0, f64::max);
    let before = fit.groups.iter().map(|g| g.before).fold(0.0, f64::max);
    assert!(before > 0.1 && worst < 0.01, "{before} {worst}");
}

#[test]
fn all_reduce_is_within_the_limits_of_the_measurements() {
    let mut errors: BTreeMap<(String, String, &str), Vec<f64>> = BTreeMap::new();
    for row in rows() {
        let error = (predicted_us(&row) / row.measured_us - 1.0).abs() * 100.0;
        let size = match row.bytes {
            0..4096 => "tiny",
            4096..0x100_0000 => "from 4 KiB",
            _ => "from 16 MiB",
        };
        errors.entry((row.chip.clone(), "all".into(), size)).or_default().push(error);
        errors.entry((row.chip, row.dataset, size)).or_default().push(error);
    }
    for ((chip, dataset, size), errors) in errors {
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        println!("{chip} {dataset} {size}: n={} mean error {mean:.1} %", errors.len());
        let limit = match size {
            "from 16 MiB" => 7.0,
            _ => 20.0,
        };
        assert!(mean <= limit, "{chip} {dataset} {size}: {mean:.1} % > {limit} %");
    }
}
