//! Collectives against the measurements to which the NVLink fabrics were fitted (seven scalars for 102 A100 rows, five
//! for 20 H200 rows): `tests/data/collectives.csv`, each row with its source. This shows the fit, not a forecast. The
//! limits are the project's own: 7 % mean absolute error from 16 MiB, 20 % from 4 KiB, per chip and collective.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

use coplace_sim::kernel::{Collective, CollectiveKind, RankGroup};
use coplace_sim::network::Fabric;
use coplace_sim::units::Bytes;
use std::collections::BTreeMap;

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
    let group = RankGroup { ranks: row.ranks, stride: 1 };
    Collective { kind: CollectiveKind::AllReduce, bytes: Bytes(row.bytes), group }
}

fn predicted_us(row: &Row) -> f64 {
    let fabric = Fabric::built_in_under_software(&row.fabric, &row.chip, &row.algorithm).unwrap();
    fabric.cost_of_collective(&collective(row)).latency.micros()
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
