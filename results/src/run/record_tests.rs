#![allow(clippy::unwrap_used)]
use super::*;
use crate::store::design::{DesignDimensions, DesignStatus};
use search::ask::Question;
use std::collections::BTreeMap;
use std::path::Path;

fn study() -> StudyRecord {
    StudyRecord {
        name: "smoke".into(),
        model: "llama2-7b".into(),
        parameters: 6_738_415_616,
        active_parameters: None,
        sequence_tokens: 4096,
        space_designs: 60,
        reference_chip: "phaze_tpuv4".into(),
        devices: 1024,
        fabric: "phaze_flat".into(),
        global_batch_sequences: 4096,
        stack: "ideal".into(),
        plans: "tensor parallel 1 or 2".into(),
        objective: "throughput".into(),
        options: BTreeMap::from([("optimizer".into(), "adam".into())]),
        assumptions: Vec::new(),
    }
}

fn certificate() -> Certificate {
    Certificate {
        proof: Proof::Gap,
        designs: 60,
        evaluated: 10,
        pruned: 40,
        pruned_in_boxes: 0,
        robust: false,
        infeasible: 5,
        over_area: 3,
        over_power: 0,
        over_cost: 0,
        outside_hbm: 0,
        unbuildable: 0,
        unbuildable_by_rule: BTreeMap::new(),
        no_chip: 0,
        objective: "throughput".into(),
        best: Some(1228.8),
        bound: Some(1269.76),
        unit: "tokens/s".into(),
        open: 2,
        best_sequences_per_s: Some(0.1 + 0.2),
        bound_sequences_per_s: Some(0.31),
        gap: Certificate::relative_gap(0.1 + 0.2, 0.31),
        why: Some("the limit of 10 evaluations was reached".into()),
    }
}

pub(crate) fn record() -> SearchRecord {
    let dimensions = DesignDimensions {
        tensor_cores: 8,
        vector_cores: 2,
        arrays_per_core: 1,
        vector_lanes: 128,
        array_width: 128,
        array_depth: 128,
        global_buffer_mib: 128.0,
        hbm_gib: 32.0,
        area_mm2: 278.826_676_31,
    };
    let mut design = DesignRow::new_undecided(3, dimensions);
    design.outcome = DesignStatus::Evaluated;
    design.throughput_sequences_per_s = Some(0.1 + 0.2);
    design.step_time_s = Some(7.797);
    SearchRecord {
        format: FORMAT,
        versions: Versions::current(),
        question: "0123abcd".into(),
        study: study(),
        seed: 1,
        certificate: certificate(),
        best: Some(BestDesign {
            design,
            step: crate::answer::step::example_record(),
            models: Vec::new(),
            notes: vec!["96.1 of 278.8 mm² are left".into()],
            evaluate_with: vec!["--devices".into(), "1024".into()],
        }),
        comparison: None,
        decision: None,
        lowered_to_w: None,
        front: None,
        asked: question(),
        times: BTreeMap::from([("search".into(), 1.25)]),
    }
}

/// Returns the question of a built-in study.
pub(crate) fn question() -> Question {
    search::study::Study::load("smoke").unwrap().question("smoke")
}

/// Returns the record of a search for two models, with the design of [`record`].
pub(crate) fn several() -> SearchRecord {
    let mut record = record();
    let of = |model: &str| ModelPlan {
        model: model.into(),
        share: 0.5,
        devices: 64,
        global_batch_sequences: 256,
        sequence_tokens: 2048,
        reference_tokens_per_s: 1000.0,
        reference_energy_per_step_j: Some(4e6),
        times_reference: 1.5,
        step: crate::answer::step::example_record(),
        evaluate_with: vec!["--devices".into(), "64".into()],
        comparison: Comparison::default(),
    };
    record.study.model = "llama2-7b, opt-350m".into();
    if let Some(best) = &mut record.best {
        best.models = vec![of("llama2-7b"), of("opt-350m")];
        (best.design.throughput_sequences_per_s, best.design.times_reference) = (None, Some(1.5));
    }
    record
}

#[test]
fn a_record_of_several_models_reads_back_and_says_each_one_s_plan() {
    let several = several();
    let text = several.to_json().unwrap();
    assert_eq!(SearchRecord::parse(Path::new("record.json"), &text).unwrap(), several);
    let said = crate::report::run_report(&several);
    for part in [
        "llama2-7b, opt-350m on one chip, each on a cluster",
        "1.500 times the reference's, over the models",
        "x reference",
    ] {
        assert!(said.contains(part), "{part} is missing:\n{said}");
    }
    assert!(said.contains("64 devices, 256 x 2,048 tokens"), "{said}");
}

#[test]
fn a_record_reads_back_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("record.json");
    std::fs::write(&path, record().to_json().unwrap()).unwrap();
    assert_eq!(SearchRecord::read_from(&path).unwrap(), record());
}

#[test]
fn numbers_that_json_cannot_hold_are_refused() {
    let mut lost = record();
    lost.certificate.gap = Some(f64::NAN);
    assert!(lost.to_json().unwrap_err().to_string().contains("a value does not read back as it was"));
    let mut broken = record();
    broken.times.insert("search".into(), f64::INFINITY);
    assert!(broken.to_json().unwrap_err().to_string().contains("must be left out"));
}

#[test]
fn what_is_no_record_is_named() {
    let file = Path::new("run/record.json");
    let text = record().to_json().unwrap();
    let error = |text: &str| SearchRecord::parse(file, text).unwrap_err().to_string();
    for cut in [0, 1, text.len() / 2, text.len() - 3] {
        assert!(error(&text[..cut]).starts_with("run/record.json: EOF while parsing"), "{}", error(&text[..cut]));
    }
    assert_eq!(
        error(&text.replace("\"format\": 5", "\"format\": 1")),
        "run/record.json: format = 1, this version of coplace reads 5; run the search again with it"
    );
    assert!(error("[1, 2]").contains("format = missing"));
    let missing = error(&text.replace("\"seed\": 1,", ""));
    assert!(missing.contains("missing field `seed`") && missing.contains("line"), "{missing}");
    let unknown = error(&text.replace("\"seed\": 1,", "\"seed\": 1, \"sede\": 1,"));
    assert!(unknown.contains("unknown field `sede`"), "{unknown}");
    assert!(
        SearchRecord::read_from(Path::new("/nonexistent/record.json"))
            .unwrap_err()
            .to_string()
            .contains("cannot be opened")
    );
}

#[test]
fn a_gap_is_relative_to_the_best_and_never_negative() {
    assert_eq!(Certificate::relative_gap(100.0, 101.0), Some(0.01));
    assert_eq!(Certificate::relative_gap(100.0, 100.0 - 1e-12), Some(0.0));
    assert_eq!(Certificate::relative_gap(0.0, 1.0), None);
    assert_eq!(Certificate::relative_gap(1.0, f64::INFINITY), None);
}

#[test]
fn the_report_of_a_run_reads() {
    let text = crate::report::run_report(&record());
    let expected = "llama2-7b on 1,024 x phaze_flat under the stack ideal, 4,096 sequences of 4,096 tokens per step; study \
        smoke\n";
    assert!(text.starts_with(expected), "{text}");
    for line in [
        "  chip         8 x 128x128 TC, 2 x 128 VC, 128 MiB, 32 GiB HBM\n",
        "  throughput   0.3000 sequences/s\n",
        "  step         7.797 s\n",
        "  fits memory  with a chance of 100 %\n",
        "No design of this space is better by more than 3.333 %.\n",
        "  under the stack    ideal\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}
