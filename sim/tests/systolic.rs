//! The array model against SCALE-Sim v3: every count of every fixture row, exactly. The fixture is a quarter of a data
//! set of SCALE-Sim v3 runs (commit 1d62b68, ideal bandwidth, ample SRAM), with its source in the last column.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use coplace_sim::cost::ArrayProblem;
use coplace_sim::hardware::Dataflow;

const ROWS: &str = include_str!("data/systolic_cycles.csv");

#[test]
fn counts_equal_scale_sim() {
    let mut checked = 0;
    for line in ROWS.lines().skip(1) {
        let cells: Vec<&str> = line.splitn(15, ',').collect();
        let number = |i: usize| -> u64 { cells[i].parse().expect(line) };
        let dataflow = match cells[4] {
            "os" => Dataflow::OutputStationary,
            "ws" => Dataflow::WeightStationary,
            "is" => Dataflow::InputStationary,
            other => panic!("unknown dataflow {other}"),
        };
        let problem =
            ArrayProblem { rows: number(2), columns: number(3), dataflow, m: number(5), n: number(6), k: number(7) };
        let report = problem.run_stall_free();
        assert_eq!(report.cycles, number(8), "{line}");
        assert_eq!(report.cycles - 1, number(9), "{line}");
        let efficiency: f64 = cells[10].parse().expect(line);
        assert!(
            (report.mapping_efficiency_percent - efficiency).abs() < 1e-6,
            "{line}: {}",
            report.mapping_efficiency_percent
        );
        assert_eq!(
            (report.ifmap_reads, report.filter_reads, report.ofmap_writes_scale_sim),
            (number(11), number(12), number(13)),
            "{line}"
        );
        checked += 1;
    }
    assert!(checked > 150, "only {checked} rows in the fixture");
}
