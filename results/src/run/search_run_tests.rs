#![allow(clippy::unwrap_used)]
use super::*;
use crate::answer::comparison::Comparison;
use crate::compare::runs::compare_best_designs;
use crate::store::design::DesignStatus;

fn run(name: &str) -> SearchRun {
    let mut record = crate::run::record::example();
    record.decision = Some(crate::answer::decision::example());
    let design = record.best.as_ref().unwrap().design.clone();
    let designs = (0..20).map(|i| DesignRow {
        index: i,
        area_mm2: 100.0 + i as f64,
        outcome: DesignStatus::ALL[i as usize % 5],
        ..design.clone()
    });
    SearchRun { name: name.into(), designs: designs.collect(), record }
}

fn read_search(directory: &Path) -> Result<SearchRun, RunError> {
    SearchRun::read_designs(directory, read_record(directory)?)
}

fn drawn(runs: &[SearchRun]) -> String {
    front_figure(runs, runs[0].axes_of_front()).unwrap().svg().to_owned()
}

#[test]
fn baselines_of_several_models_stand_at_the_mean_of_their_rates() {
    let mut several = run("several");
    several.record = crate::run::record::example_of_several();
    let best = several.record.best.as_mut().unwrap();
    for (model, times) in best.models.iter_mut().zip([2.0, 0.5]) {
        let rate = model.reference_tokens_per_s * times;
        let entry = |label: &str, area_mm2| ComparisonEntry {
            area_mm2,
            throughput_tokens_per_s: Some(rate),
            throughput_sequences_per_s: Some(rate / 4096.0),
            ..ComparisonEntry::without_design(label)
        };
        model.comparison.entries =
            vec![entry("best found", Some(300.0)), entry("tpu_v4", Some(600.0)), entry("tpu_v7", None)];
    }
    let (drawn, left_out) = several.named_chips(several.axes_of_front(), None);
    // `tpu_v4` is twice as fast as the reference with one model, and half as fast with the other. The geometric mean is
    // 1. `tpu_v7` has no area and is not drawn.
    assert_eq!((drawn.len(), drawn[1].label.as_str(), left_out), (2, "tpu_v4", vec!["tpu_v7".to_owned()]));
    assert!((drawn[1].y - 1.0).abs() < 1e-12 && drawn[1].x == 600.0, "{drawn:?}");
    several.record.study.objective = "throughput (mean)".into();
    assert!((several.named_chips(several.axes_of_front(), None).0[1].y - 1.25).abs() < 1e-12);
}

#[test]
fn a_chip_at_the_same_place_in_several_runs_is_named_once() {
    let with = |name: &str, rate: f64| {
        let mut run = run(name);
        let best = ComparisonEntry::from_design("best found", &run.record.best.as_ref().unwrap().design);
        let entry = |label: &str, rate: f64| ComparisonEntry {
            area_mm2: Some(600.0),
            throughput_sequences_per_s: Some(rate),
            ..ComparisonEntry::without_design(label)
        };
        run.record.comparison = Some(Comparison::of_entries(vec![best, entry("tpu_v4", 3.0), entry("h100", rate)]));
        run
    };
    let svg = drawn(&[with("a", 5.0), with("b", 6.0)]);
    for (words, there) in
        [("a: best found", true), ("b: best found", true), ("a: h100", true), ("b: h100", true), ("a: tpu_v4", false)]
    {
        assert_eq!(svg.contains(words), there, "{words}");
    }
    assert!(svg.contains("tpu_v4"));
}

#[test]
fn only_what_the_search_proved_is_called_a_front() {
    let mut run = run("a");
    let area = FrontAxes { x: FrontQuantity::AREA, y: FrontQuantity::THROUGHPUT, z: None };
    let power = FrontAxes { x: FrontQuantity::Cost(FrontAxis::Power), ..area };
    let words = |run: &SearchRun, axes: FrontAxes| run.front_words(axes);
    let not = "non-dominated of the designs evaluated";
    run.record.certificate.objective = "throughput".into();
    (run.record.certificate.open, run.record.certificate.pruned) = (0, 10);
    run.record.study.options.insert("front".into(), "area".into());
    run.record.study.options.insert("within_percent".into(), "0".into());
    assert_eq!((words(&run, area).as_str(), words(&run, power).as_str()), ("Pareto front", not));
    run.record.study.options.insert("within_percent".into(), "1".into());
    assert_eq!(words(&run, area), "Pareto front within 1 %");
    run.record.study.options.insert("front".into(), "none".into());
    assert_eq!(words(&run, area), not);
    // A sweep evaluates every design that runs.
    run.record.certificate.pruned = 0;
    assert_eq!((words(&run, area).as_str(), words(&run, power).as_str()), ("Pareto front", "Pareto front"));
    run.record.certificate.open = 1;
    assert_eq!(words(&run, area), not);
    let svg = drawn(std::slice::from_ref(&run)).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(svg.contains("non-dominated of") && !svg.contains("Pareto front"), "{svg}");
}

#[test]
fn the_figure_of_several_runs_says_what_differs() {
    let (a, mut b) = (run("a"), run("b"));
    assert_eq!(describe_questions(&[a.clone(), b.clone()]), "2 runs of one question");
    b.record.study.objective = "energy".into();
    b.record.study.options.insert("max_power_w".into(), "350".into());
    let words = describe_questions(&[a.clone(), b.clone()]);
    let expected =
        format!("2 runs. searched for: {} (a), energy (b); max power w: none (a), 350 (b)", a.record.study.objective);
    assert_eq!(words, expected);
}

fn found() -> FoundFiles {
    FoundFiles {
        chip: Some("name = \"chip\"".into()),
        fabric: Some("name = \"fabric\"".into()),
        progress: Some("seconds,best\n".into()),
    }
}

#[test]
fn a_run_without_a_design_has_no_chip_and_keeps_no_other_s() {
    let dir = tempfile::tempdir().unwrap();
    run("a").write_run(dir.path(), &found()).unwrap();
    assert_eq!(SearchRun::read_chip(dir.path()).unwrap(), "name = \"chip\"");
    run("a").write_run(dir.path(), &FoundFiles::default()).unwrap();
    assert!(!dir.path().join(CHIP).exists() && !dir.path().join(FABRIC).exists());
    assert!(SearchRun::read_chip(dir.path()).unwrap_err().to_string().contains("no best.toml in it"));
}

#[test]
fn a_run_that_cannot_be_written_leaves_the_older_one_whole() {
    let dir = tempfile::tempdir().unwrap();
    run("older").write_run(dir.path(), &found()).unwrap();
    let older = SearchRun { name: crate::run::search_run::run_name(dir.path()), ..run("older") };
    // A directory in the place of a temporary file stops the writing.
    let obstacle = files::temporary_path(&dir.path().join(RECORD));
    std::fs::create_dir(&obstacle).unwrap();
    let error = run("newer").write_run(dir.path(), &FoundFiles::default()).unwrap_err().to_string();
    assert!(error.contains("record.json: cannot be written"), "{error}");
    assert_eq!(SearchRun::read_chip(dir.path()).unwrap(), "name = \"chip\"");
    assert_eq!(read_search(dir.path()).unwrap(), older);
    assert!(FILES.iter().all(|name| dir.path().join(name).is_file()));
    // Without the obstacle, the new run is written, and the older run's other files are removed.
    std::fs::remove_dir(&obstacle).unwrap();
    run("newer").write_run(dir.path(), &FoundFiles::default()).unwrap();
    assert!([CHIP, FABRIC, PROGRESS].iter().all(|name| !dir.path().join(name).exists()));
}

#[test]
fn a_run_reads_back_and_writes_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let paths = run("a").write_run(&a, &found()).unwrap();
    assert_eq!(read_search(&a).unwrap(), run("a"));
    run("a").write_run(&b, &found()).unwrap();
    for path in paths {
        let other = b.join(path.file_name().unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(other).unwrap(), "{}", path.display());
    }
    let mut names: Vec<_> =
        std::fs::read_dir(&a).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let mut files = FILES.to_vec();
    names.sort();
    files.sort_unstable();
    assert_eq!(names, files);
}

#[test]
fn whatever_files_of_two_runs_lie_together_never_one_run_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut other = run("other");
    (other.record.study.model, other.designs[0].area_mm2) = ("another".into(), 7.0);
    let old = run("mixed");
    let mixed = SearchRun { name: "mixed".into(), ..other.clone() };
    old.write_run(&at("old"), &found()).unwrap();
    other.write_run(&at("new"), &FoundFiles { chip: Some("name = \"other\"".into()), ..found() }).unwrap();
    for chosen in 0..1 << FILES.len() {
        std::fs::create_dir_all(at("mixed")).unwrap();
        for (i, file) in FILES.iter().enumerate() {
            let from = if chosen >> i & 1 == 0 { "old" } else { "new" };
            std::fs::copy(at(from).join(file), at("mixed").join(file)).unwrap();
        }
        // Bits of `chosen`: 0 is the digests, 1 the designs, 6 the chip and 9 the record. Figures are not read, so
        // their bits do not matter.
        let chip = SearchRun::read_chip(&at("mixed")).map_err(|error| error.to_string());
        match (chosen & 1, chosen >> 6 & 1) {
            (0, 0) => assert_eq!(chip.unwrap(), "name = \"chip\""),
            (1, 1) => assert_eq!(chip.unwrap(), "name = \"other\""),
            _ => assert!(chip.unwrap_err().contains("files of two runs"), "{chosen:b}"),
        }
        match (chosen & 1, chosen >> 1 & 1, chosen >> 9 & 1) {
            (0, 0, 0) => assert_eq!(read_search(&at("mixed")).unwrap(), old),
            (1, 1, 1) => assert_eq!(read_search(&at("mixed")).unwrap(), mixed),
            _ => {
                assert!(read_search(&at("mixed")).unwrap_err().to_string().contains("files of two runs"), "{chosen:b}")
            }
        }
    }
    std::fs::remove_file(at("mixed").join(SUMS)).unwrap();
    let error = read_search(&at("mixed")).unwrap_err().to_string();
    assert!(error.contains("SHA256SUMS: cannot be opened") && error.contains("run the search again"), "{error}");
}

#[test]
fn a_changed_figure_in_a_record_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    run("a").write_run(dir.path(), &found()).unwrap();
    let file = dir.path().join(RECORD);
    let text = std::fs::read_to_string(&file).unwrap();
    for (at, digit) in text.char_indices().filter(|(_, c)| c.is_ascii_digit()).step_by(7) {
        let mut damaged = text.clone().into_bytes();
        damaged[at] = if digit == '1' { b'2' } else { b'1' };
        std::fs::write(&file, damaged).unwrap();
        let error = read_search(dir.path()).unwrap_err().to_string();
        assert!(error.starts_with(&file.display().to_string()), "byte {at}: {error}");
    }
}

#[test]
fn a_run_that_cannot_be_stored_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let into = dir.path().join("run");
    let mut bad = run("bad");
    bad.record.certificate.gap = Some(f64::NAN);
    assert!(bad.write_run(&into, &found()).is_err());
    assert!(!into.exists());
}

#[test]
fn the_front_holds_the_evaluated_designs_that_no_other_dominates() {
    let mut run = run("a");
    for (i, row) in run.designs.iter_mut().enumerate() {
        row.throughput_sequences_per_s = Some([5.0, 9.0, 4.0, 5.0, 7.0][i % 5] + (i / 10) as f64);
    }
    let areas: Vec<f64> = run.designs_on_front().iter().map(|row| row.area_mm2).collect();
    // The evaluated rows are 0, 5, 10 and 15 with 5, 5, 6 and 6 sequences/s.
    assert_eq!(areas, [100.0, 110.0]);
}

#[test]
fn an_incomplete_directory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = read_search(dir.path()).unwrap_err().to_string();
    assert!(error.contains("record.json: cannot be opened"), "{error}");
}

#[test]
fn what_is_not_proven_or_not_found_says_so_beside_others() {
    let mut open = run("open");
    (open.record.certificate.proof, open.record.certificate.gap) = (Proof::Gap, Some(0.469));
    let mut none = run("none");
    (none.record.certificate.proof, none.record.certificate.why) =
        (Proof::Infeasible, Some("stage 0 lacks 3 GiB".into()));
    (none.record.best, none.record.comparison) = (None, None);
    let entries = compare_best_designs(&[none, open]).entries;
    assert_eq!(
        (entries[0].label.as_str(), entries[0].note.as_deref()),
        ("none: nothing found", Some("stage 0 lacks 3 GiB"))
    );
    assert_eq!(entries[1].note.as_deref(), Some("not proven the best: another design may be better by up to 46.900 %"));
}

#[test]
fn runs_of_other_work_are_marked() {
    let proven = |name: &str| {
        let mut run = run(name);
        run.record.certificate.proof = Proof::Proven;
        run
    };
    let mut other = proven("ici");
    other.record.study.fabric = "tpu_v4_ici".into();
    let comparison = compare_best_designs(&[proven("flat"), other.clone()]);
    assert_eq!(comparison.entries[0].label, "flat: best found");
    assert_eq!(comparison.entries[0].note, None);
    assert_eq!(comparison.differences, ["ici differs from the first run: 1,024 x tpu_v4_ici."]);
    let text = comparison.to_text();
    assert!(text.starts_with("ici differs from the first run") && text.matches("differs").count() == 1, "{text}");
    let svg = drawn(&[run("flat"), other]);
    assert!(svg.contains("ici: best found") && svg.contains("flat: 4 evaluated"));
    assert!(svg.contains("throughput (thousand tokens/s)"));
}

#[test]
fn sequences_of_different_length_are_compared_by_their_tokens() {
    let mut longer = run("longer");
    longer.record.study.sequence_tokens *= 2;
    let mixed = drawn(&[run("a"), longer.clone()]);
    assert!(mixed.contains("throughput (thousand tokens/s)") && !mixed.contains("sequences/s"), "{mixed}");
}
