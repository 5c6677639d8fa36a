//! The report and the figures of validation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use coplace_results::figure::plots_of_report;
use coplace_results::report::validation_report;
use measured::validate::{FileReport, ValidateOptions, validate_contents};
use std::path::Path;

const SYSTOLIC: &str = "id,layer,rows,cols,dataflow,m,n,k,array_cycles,reported_total_cycles,mapping_efficiency_pct,\
ifmap_sram_reads,filter_sram_reads,ofmap_sram_writes,source\n";
/// A row from SCALE-Sim v3 (commit 1d62b68, CALC mode, 64/64/32 kB of SRAM, gemm).
const ROW: &str = "ss_0000,synthetic,8,8,os,1,1,1,15,14,1.5625,1,1,17,x\n";
const COLLECTIVES: &str =
    "id,dataset,chip,fabric,collective,ranks,nodes,bytes,measured_us,bus_gbytes_per_s,algo,source\n";

fn validate(text: &str) -> FileReport {
    validate_contents(Path::new("data.csv"), text.as_bytes(), &ValidateOptions::default()).unwrap()
}

#[test]
fn a_faulty_row_and_an_unknown_column_are_printed() {
    let text = validation_report(&validate(&format!("{SYSTOLIC}a,l,8,8,xs,1,1,1,15,14,1.5625,1,1,17,x\n{ROW}")));
    assert!(text.contains("data.csv:2: dataflow = xs: must be os, ws or is; correct it"), "{text}");
    let text =
        validation_report(&validate("id,rows,cols,dataflow,m,n,k,array_cycles,weather\nx,8,8,os,1,1,1,15,fair\n"));
    assert!(text.contains("ignored columns: weather\n"), "{text}");
}

#[test]
fn rows_that_cannot_be_predicted_are_printed_with_the_reason() {
    let text = validation_report(&validate(&format!(
        "{COLLECTIVES}a,d,a100_80gb_sxm,nvlink3_node,all_reduce,8,1,1048576,40,,,\n\
         b,d,a100_80gb_sxm,carrier_pigeon,all_reduce,8,1,1048576,40,,,\n\
         c,d,a100_80gb_sxm,nvlink3_node,all_hands,8,1,1048576,40,,,\n\
         e,d,a100_80gb_sxm,nvlink3_node,all_reduce,1,1,1048576,40,,,\n"
    )));
    assert!(text.contains("not predicted: 2 rows") && text.contains("unknown collective `all_hands`"), "{text}");
    assert!(text.contains("carrier_pigeon") && text.contains("ranks = 1: must be at least 2"), "{text}");
}

#[test]
fn an_assumption_is_printed_with_its_rows() {
    let row = |id: &str| format!("{id},a100_80gb_sxm,selene_hdr200x8,all_reduce,64,4,1e6,100\n");
    let text = validation_report(&validate(&format!(
        "id,chip,fabric,collective,ranks,nodes,bytes,measured_us\n{}{}",
        row("a"),
        row("b")
    )));
    let what = "16 ranks of a node go before the 8 chips of one of selene_hdr200x8, one network joins so many";
    assert!(text.contains("\nassumed, where rows leave it open\n  2 x 16 ranks of a node"), "{text}");
    assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(&format!("2 x {what}: a, b")), "{text}");
}

#[test]
fn every_quantity_has_its_figure() {
    let names: Vec<String> =
        plots_of_report(&validate(&format!("{SYSTOLIC}{ROW}"))).unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 6);
    assert_eq!(names[0], "data-array_cycles");
}
