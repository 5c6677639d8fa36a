//! The page of a run: its contents, and its rendering in a browser.

use crate::support::{browse_page, config_with, read_repository_file, run_coplace_in, small_study};
use serde_json::Value;
use std::path::Path;

/// The charts of a page of a search whose best plan is a pipeline.
const OF_A_SEARCH: [&str; 10] = [
    "dies",
    "pareto",
    "comparison",
    "time",
    "roofline",
    "timeline",
    "stages",
    "memory-classes",
    "memory-time",
    "decisions",
];

/// Returns the data of a page.
fn data(page: &Path) -> Value {
    let html = std::fs::read_to_string(page).unwrap();
    let (_, data) = html.split_once("id=\"data\">").unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

/// Searches a small study and writes the page of the run. Returns the run's record.
fn searched(directory: &Path) -> Value {
    std::fs::write(directory.join("small.toml"), small_study()).unwrap();
    let run = run_coplace_in(
        directory,
        &["search", "llama2-7b", "--study", "small.toml", "--out", "run", "--format", "json"],
    )
    .expect_json();
    let written = run_coplace_in(directory, &["report", "run", "-o", "report.html", "--format", "json"]).expect_json();
    assert_eq!(
        (written["written"].as_str(), written["left_out"].as_array().map(Vec::len)),
        (Some("report.html"), Some(0))
    );
    run
}

#[test]
fn the_page_of_a_search_holds_the_run_and_its_step_played_again() {
    let dir = tempfile::tempdir().unwrap();
    let run = searched(dir.path());
    let page = data(&dir.path().join("report.html"));
    assert_eq!(page["step_s"], run["best"]["step"]["time"]["step_s"]);
    assert_eq!(page["comparison"], run["comparison"]["entries"]);
    assert_eq!(page["dies"].as_array().unwrap().len(), 3);
    let die = page["dies"][0]["area_mm2"].as_f64().unwrap();
    assert!((die / run["best"]["design"]["area_mm2"].as_f64().unwrap() - 1.0).abs() < 1e-9);
    // The passes of each stage take as long as the record says.
    let stages = run["best"]["step"]["timeline"].as_array().unwrap();
    for (at, stage) in stages.iter().enumerate() {
        let events = page["timeline"]["events"].as_array().unwrap().iter();
        let busy: f64 =
            events.filter(|e| e[0] == at && e[1].as_u64().unwrap() < 4).map(|e| e[5].as_f64().unwrap()).sum();
        assert!((busy / stage["busy_s"].as_f64().unwrap() - 1.0).abs() < 1e-9, "stage {at}");
    }
    let kernels =
        run["best"]["step"]["passes"].as_array().unwrap().iter().map(|p| p["kernels"].as_array().unwrap().len());
    assert_eq!(page["roofline"]["kernels"].as_array().unwrap().len(), kernels.sum::<usize>());
    let peak = page["roofline"]["peak_tflop_per_s"].as_f64().unwrap();
    let levels = page["roofline"]["levels"].as_array().unwrap();
    assert!(levels.len() > 1 && levels.last().unwrap()["name"] == "hbm", "{levels:?}");
    let mut on_chip = 0;
    for kernel in page["roofline"]["kernels"].as_array().unwrap() {
        let takes = kernel["latency_s"].as_f64().unwrap();
        assert!(kernel["operations"].as_f64().unwrap() / takes / 1e12 <= peak * (1.0 + 1e-9), "{kernel}");
        // No kernel moves bytes faster than a memory's bandwidth. If a memory bounds a kernel, the kernel moves bytes
        // of this memory.
        let bytes: Vec<f64> =
            kernel["level_bytes"].as_array().unwrap().iter().map(|bytes| bytes.as_f64().unwrap()).collect();
        for (level, bytes) in levels.iter().zip(&bytes) {
            assert!(bytes / takes.max(1e-15) <= level["gb_per_s"].as_f64().unwrap() * (1e9 * (1.0 + 1e-6)), "{kernel}");
        }
        if let Some(level) = kernel["level"].as_u64() {
            assert!(levels[level as usize]["name"] == kernel["bound"] && bytes[level as usize] > 0.0, "{kernel}");
            on_chip += usize::from(level as usize + 1 < levels.len());
        }
    }
    assert!(on_chip > 0, "no kernel is bound by memory on the chip");
    assert!(!page["decisions"].as_array().unwrap().is_empty() && !page["sources"].as_array().unwrap().is_empty());
}

#[test]
fn pages_of_plans_and_evaluations_say_what_they_leave_out() {
    let dir = tempfile::tempdir().unwrap();
    let job = "llama2-7b --chip tpu_v4 --fabric tpu_v4_ici --devices 8 --global-batch 16 --pipeline 2 --format json";
    for verb in ["evaluate", "plan"] {
        let call: Vec<&str> = std::iter::once(verb).chain(job.split(' ')).collect();
        let answer = run_coplace_in(dir.path(), &call).expect_result();
        std::fs::write(dir.path().join("answer.json"), &answer).unwrap();
        let text = run_coplace_in(dir.path(), &["report", "answer.json", "-o", "page.html"]).expect_result();
        assert!(text.starts_with("Written: page.html (") && !text.contains("Left out"), "{verb}: {text}");
        let page = data(&dir.path().join("page.html"));
        assert!(!page["timeline"]["events"].as_array().unwrap().is_empty() && page["designs"].is_null());
        // With another chip, the replayed step differs from the recorded one. The page then lacks what a replay gives.
        let other = run_coplace_in(dir.path(), &["report", "answer.json", "-o", "page.html", "--chip", "tpu_v5p"]);
        let lacks = "passes, kernels and memory over time, because the step takes ";
        assert!(other.stdout.contains(&format!("Left out: {lacks}")), "{verb}: {other:?}");
        assert!(
            other.code == 3 && other.stderr.starts_with(&format!("error: the page lacks {lacks}")),
            "{verb}: {other:?}"
        );
        let gone = answer.replace("\"tpu_v4\"", "\"my_chip\"");
        std::fs::write(dir.path().join("answer.json"), gone).unwrap();
        let lacking = run_coplace_in(dir.path(), &["report", "answer.json", "-o", "page.html"]);
        assert!(
            lacking.code == 3 && lacking.stdout.contains("Left out: ") && lacking.stderr.contains("my_chip"),
            "{verb}: {lacking:?}"
        );
    }
}

/// A run carries its study, model and stack, so other commands can use it after their files are removed.
#[test]
fn a_run_stands_alone() {
    let dir = tempfile::tempdir().unwrap();
    let [there, elsewhere] = ["there", "elsewhere"].map(|name| dir.path().join(name));
    std::fs::create_dir_all(&there).unwrap();
    std::fs::create_dir_all(&elsewhere).unwrap();
    std::fs::write(there.join("small.toml"), small_study()).unwrap();
    std::fs::write(there.join("config.json"), config_with("tie_word_embeddings", Some(true.into()))).unwrap();
    let stack = read_repository_file("step/stacks/ideal.toml").replacen("name = \"ideal\"", "name = \"mine\"", 1);
    std::fs::write(there.join("mine.toml"), stack).unwrap();
    let asked = ["config.json", "--study", "small.toml", "--stack", "mine.toml", "--sequence-length", "512"];
    let run = run_coplace_in(&there, &[&["search"], &asked[..], &["--out", "../run", "--format", "json"]].concat())
        .expect_json();
    for name in ["small.toml", "config.json", "mine.toml"] {
        std::fs::remove_file(there.join(name)).unwrap();
    }
    let page = run_coplace_in(&elsewhere, &["report", "../run", "-o", "page.html", "--format", "json"]).expect_json();
    assert_eq!(page["left_out"], serde_json::json!([]));
    let explained = run_coplace_in(&elsewhere, &["explain", "../run", "--format", "json"]).expect_json();
    assert_eq!(explained["best"], run["best"]["design"]);
    let again =
        run_coplace_in(&elsewhere, &["evaluate", "config.json", "--chip", "../run", "--format", "json"]).expect_json();
    assert_eq!(again["result"]["time"]["step_s"], run["best"]["step"]["time"]["step_s"]);
    // A file of this name that exists is read, although the run carries its own text.
    std::fs::write(elsewhere.join("config.json"), "{}").unwrap();
    assert!(
        run_coplace_in(&elsewhere, &["evaluate", "config.json", "--chip", "../run"])
            .expect_refusal()
            .contains("config.json")
    );
    // A run whose files have been changed is refused.
    for file in ["record.json", "best.toml"] {
        let path = dir.path().join("run").join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text} ")).unwrap();
        let refused = run_coplace_in(&elsewhere, &["report", "../run", "-o", "page.html"]).expect_refusal();
        assert!(refused.contains(&format!("{file}: its SHA-256 digest is")), "{refused}");
        std::fs::write(&path, text).unwrap();
    }
}

/// Returns the number of tensor cores in a chip's file.
fn cores(file: &str) -> u64 {
    let table = file.split("[tensor]").nth(1).unwrap();
    let line = table.lines().find(|line| line.starts_with("cores = ")).unwrap();
    line["cores = ".len()..].parse().unwrap()
}

/// An answer about the chip of a run, with a stack and a model by path and an option of the stack set, contains all
/// their texts. So its page is complete after the files are removed. An older answer has only names, and its page is
/// incomplete.
#[test]
fn an_answer_has_its_chip_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let [there, elsewhere] = ["there", "elsewhere"].map(|name| dir.path().join(name));
    std::fs::create_dir_all(&there).unwrap();
    std::fs::create_dir_all(&elsewhere).unwrap();
    std::fs::write(there.join("small.toml"), small_study()).unwrap();
    run_coplace_in(&there, &["search", "llama2-7b", "--study", "small.toml", "--out", "run", "--format", "json"])
        .expect_json();
    std::fs::write(there.join("config.json"), config_with("tie_word_embeddings", Some(true.into()))).unwrap();
    let stack = read_repository_file("step/stacks/megatron.toml").replace("name = \"megatron\"", "name = \"mine\"");
    std::fs::write(there.join("mine.toml"), stack).unwrap();
    let job = "config.json --chip run --fabric phaze_flat --devices 8 --global-batch 64 --sequence-length 512 --stack \
        mine.toml --stack-option overlap.tensor=0.5 --format json";
    let answers = ["evaluate", "plan"].map(|verb| {
        let call: Vec<&str> = std::iter::once(verb).chain(job.split_whitespace()).collect();
        run_coplace_in(&there, &call).expect_json()
    });
    std::fs::remove_dir_all(&there).unwrap();
    for mut answer in answers {
        assert_eq!(answer["asked"]["chips"]["one"]["chip"], "run/best.toml");
        assert!(answer["asked"]["files"]["run/best.toml"].as_str().unwrap().contains("[tensor]"), "{answer}");
        let file = elsewhere.join("answer.json");
        std::fs::write(&file, answer.to_string()).unwrap();
        let written =
            run_coplace_in(&elsewhere, &["report", "answer.json", "-o", "page.html", "--format", "json"]).expect_json();
        assert_eq!(written["left_out"], serde_json::json!([]));
        let page = data(&elsewhere.join("page.html"));
        assert!(
            !page["timeline"]["events"].as_array().unwrap().is_empty()
                && !page["sources"].as_array().unwrap().is_empty()
        );
        assert_eq!(page["dies"].as_array().unwrap().len(), 3);
        // An answer can be given as the chip of other jobs.
        let job = [
            "evaluate",
            "llama2-7b",
            "--chip",
            "answer.json",
            "--devices",
            "64",
            "--global-batch",
            "64",
            "--format",
            "json",
        ];
        let of_answer = run_coplace_in(&elsewhere, &job).expect_json();
        assert_eq!(
            of_answer["job"]["chip"]["tensor_cores"],
            answer["asked"]["files"]["run/best.toml"].as_str().map(cores).unwrap()
        );
        std::fs::write(elsewhere.join("other.json"), of_answer.to_string()).unwrap();
        let page =
            run_coplace_in(&elsewhere, &["report", "other.json", "-o", "page.html", "--format", "json"]).expect_json();
        assert_eq!(page["left_out"], serde_json::json!([]));
        answer.as_object_mut().unwrap().retain(|key, _| key != "asked");
        std::fs::write(&file, answer.to_string()).unwrap();
        let older = run_coplace_in(&elsewhere, &["report", "answer.json", "-o", "page.html"]);
        assert!(older.code == 3 && older.stdout.contains("Left out: passes"), "{older:?}");
    }
}

#[test]
fn what_is_no_run_and_no_page_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x.json"), "{}").unwrap();
    let refusal = |arguments: &[&str]| run_coplace_in(dir.path(), arguments).expect_refusal();
    assert!(refusal(&["report", "nowhere"]).contains("nowhere: cannot be read"));
    assert!(refusal(&["report", "."]).contains("record.json: cannot be opened"));
    assert!(refusal(&["report", "x.json"]).contains("x.json: is no answer of `evaluate` or `plan`"));
    assert!(refusal(&["report", "x.json", "-o", "."]).contains("-o .: is a directory"));
}

/// `.ci/run` runs this test if Debian's package chromium is installed or can be installed.
#[test]
#[ignore = "needs chromium"]
fn the_page_in_a_browser_has_every_chart_in_both_themes_and_widths() {
    let dir = tempfile::tempdir().unwrap();
    searched(dir.path());
    let html = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    for (width, body) in [(1280, "<body>"), (400, "<body style=\"max-width: 400px\">")] {
        let page = dir.path().join(format!("{width}.html"));
        std::fs::write(&page, html.replacen("<body>", body, 1)).unwrap();
        for theme in ["light", "dark"] {
            let (console, dom) = browse_page(&format!("file://{}#{theme}", page.display()));
            assert_eq!(console, "", "{width} {theme}");
            let root = dom.split_once("<html").unwrap().1.split_once('>').unwrap().0;
            assert!(
                root.contains(&format!("data-theme=\"{theme}\"")) && !root.contains("data-errors"),
                "{width}: {root}"
            );
            assert!(root.contains("data-overflow=\"false\""), "{width} {theme}: {root}");
            assert!(root.contains(&format!("data-ready=\"{}\"", OF_A_SEARCH.len())), "{width} {theme}: {root}");
            for chart in OF_A_SEARCH {
                let after =
                    dom.split_once(&format!("id=\"chart-{chart}\"")).unwrap_or_else(|| panic!("{width}: no {chart}")).1;
                let place = after.split_once("<figcaption").unwrap().0;
                assert!(place.contains("data-drawn=\"true\""), "{width} {theme}: {chart} is not drawn");
                assert!(
                    place.contains("<canvas") || place.matches("<path").count() > 3,
                    "{width} {theme}: {chart} is empty"
                );
            }
        }
    }
}
