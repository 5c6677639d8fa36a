#![allow(clippy::unwrap_used, clippy::panic)]
//! Peaks of fine-tuning, as the carried rows have them.

use super::{Dataset, FileReport, ValidateOptions, recognise_file, validate_contents, validate_file};
use std::path::Path;

fn carried() -> FileReport {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/finetuning_peaks.csv");
    assert_eq!(recognise_file(&file).unwrap(), Dataset::FinetuningPeaks);
    validate_file(&file, &ValidateOptions::default()).unwrap()
}

#[test]
fn carried_peaks_come_out_within_ten_percent_and_in_order() {
    let report = carried();
    assert!(report.row_errors.is_empty(), "{:?}", report.row_errors);
    let why: Vec<&str> = report.unpredicted.iter().map(|row| row.why.as_str()).collect();
    assert!(why.iter().all(|why| why.contains("is not modelled")), "{why:?}");
    let peaks: Vec<(f64, f64, &str)> = report
        .predictions
        .iter()
        .filter(|p| p.quantity == "peak")
        .filter_map(|p| Some((p.measured?, p.predicted, p.group.as_str())))
        .collect();
    assert!(peaks.len() >= 49, "{}", peaks.len());
    let errors: Vec<f64> = peaks.iter().map(|(measured, predicted, _)| (predicted / measured - 1.0).abs()).collect();
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    assert!(mean < 0.08, "{mean}");
    // Pairs of one model and chip whose peaks differ by more than 5 %.
    let pairs = peaks.iter().enumerate().flat_map(|(at, one)| peaks[at + 1..].iter().map(move |other| (one, other)));
    let told: Vec<bool> = pairs
        .filter(|(one, other)| one.2 == other.2 && (one.0 / other.0).ln().abs() > 0.05)
        .map(|(one, other)| (one.0 - other.0) * (one.1 - other.1) > 0.0)
        .collect();
    let right = told.iter().filter(|right| **right).count() as f64 / told.len() as f64;
    assert!(told.len() > 100 && right > 0.9, "{right} of {}", told.len());
}

#[test]
fn rows_that_say_what_is_not_known_are_named() {
    let header = "id,source,model,chip,gpus,technique,quantization,rank,micro_batch,seq,peak,unit,instrument,note\n";
    let row = |id: &str, technique: &str, base: &str, unit: &str| {
        let run = format!("{id},huggingface/peft@1,llama3.2-1b,l40s,1,{technique},{base},8,1,512,9,{unit}");
        format!("{run},max reserved,targets ['q_proj']\n")
    };
    let text = [
        header.to_owned(),
        row("a", "LORA", "", "GiB"),
        row("b", "NEW", "", "GiB"),
        row("c", "LORA", "int3", "GiB"),
        row("d", "LORA", "", "MB"),
        row("e", "FULL", "bnb.nf4", "GiB"),
    ]
    .concat();
    let report = validate_contents(Path::new("rows.csv"), text.as_bytes(), &ValidateOptions::default()).unwrap();
    let why = |id: &str| report.unpredicted.iter().find(|row| row.id == id).unwrap().why.clone();
    assert!(report.predictions.iter().any(|p| p.id == "a"));
    assert!(why("b").contains("the method NEW is not modelled"));
    assert!(why("c").contains("the base's format int3 is not modelled"));
    assert!(why("e").contains("which are trained; add an adapter"), "{}", why("e"));
    assert_eq!(report.row_errors.len(), 1);
    assert_eq!((report.row_errors[0].key.as_str(), report.row_errors[0].limit.as_str()), ("unit", "must be GiB or GB"));
}
