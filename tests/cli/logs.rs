//! Measurements of a machine: the script for PyTorch, logs of nccl-tests, traces of PyTorch's profiler.

use crate::support::{read_repository_file, repository_path, run_coplace, run_coplace_in};
use std::process::Command;

#[test]
fn the_script_is_written_and_its_use_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let text = run_coplace_in(dir.path(), &["calibrate", "--script", "measure.py"]).expect_result();
    assert!(text.contains("python3 measure.py --chip CHIP --out measured"), "{text}");
    let script = std::fs::read_to_string(dir.path().join("measure.py")).unwrap();
    assert_eq!(script, read_repository_file("tools/measure_gpu.py"));
    let answer = run_coplace_in(dir.path(), &["calibrate", "--script", "m.py", "--format", "json"]).expect_json();
    assert_eq!(
        (answer["script"].as_str(), answer["lines"].as_u64()),
        (Some("m.py"), Some(script.lines().count() as u64))
    );
    let both = run_coplace(&["calibrate", "h100", "k.csv", "--script", "m.py"]);
    assert!(both.code == 2 && both.stderr.contains("--script"), "{}", both.stderr);
    let neither = run_coplace(&["calibrate"]);
    assert!(neither.code == 2 && neither.stderr.contains("DATA.csv"), "{}", neither.stderr);
}

/// Runs the script on the device that PyTorch finds, then `validate` and `calibrate` on its rows. `.ci/run` runs this
/// test where PyTorch can be installed.
#[test]
#[ignore = "needs PyTorch"]
fn pytorch_s_own_measurements() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| run_coplace_in(dir.path(), arguments);
    std::fs::create_dir(dir.path().join("chips")).unwrap();
    std::fs::copy(repository_path("tests/cli/two_cpu_cores.toml"), dir.path().join("chips/two_cpu_cores.toml"))
        .unwrap();
    run(&["calibrate", "--script", "measure.py"]).expect_result();
    let call = ["measure.py", "--chip", "two_cpu_cores", "--out", "measured", "--quick", "--minutes", "10"];
    let parts = ["--parts", "steps,copies,kernels,serving,decode"];
    let measured = Command::new("python3").current_dir(dir.path()).args(call).args(parts).output().unwrap();
    let said = String::from_utf8_lossy(&measured.stderr);
    assert!(measured.status.success() && !said.contains("stopped") && !said.contains("the time is up"), "{said}");
    let kernels = std::fs::read_to_string(dir.path().join("measured/kernels.csv")).unwrap();
    assert!(kernels.contains("attention_forward_libraryflash") && kernels.contains("attention_backward"), "{said}");
    let files = ["kernels", "stream_contention", "training_runs", "serving_kernels", "decode_passes"]
        .map(|name| format!("measured/{name}.csv"));
    let mut call = vec!["validate", "--chips", "chips", "--format", "json"];
    call.extend(files.iter().map(String::as_str));
    let answer = run(&call).expect_json();
    let counted: Vec<(u64, usize, usize)> = answer["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| {
            let count = |key: &str| file[key].as_array().unwrap().len();
            (file["rows"].as_u64().unwrap(), count("row_errors"), count("unpredicted"))
        })
        .collect();
    let [kernels, streams, runs, serving, decoding] = counted[..] else { panic!("{counted:?}") };
    // No row is faulty, and every row is predicted.
    assert!(kernels.0 >= 40 && kernels.1 == 0 && kernels.2 == 0, "{counted:?}\n{answer:#}");
    assert_eq!((streams, runs), ((4, 0, 0), (8, 0, 0)), "{answer:#}");
    // The four rows of decoding have no prediction, because their small model is not built in.
    assert!(serving.0 >= 7 && serving.1 == 0 && serving.2 == 0 && decoding == (4, 0, 4), "{answer:#}");
    let chip = ["calibrate", "chips/two_cpu_cores.toml", "measured/kernels.csv", "--out", "fitted.toml"];
    let text = run(&chip).expect_result();
    assert!(text.contains(" measurements of two_cpu_cores, 0 rows of other chips, 0 not predicted, 0 wrong"), "{text}");
    assert!(dir.path().join("fitted.toml").exists());
}

#[test]
fn a_log_of_nccl_tests_is_validated_and_fits_a_fabric() {
    let log = "interop/tests/log/all_reduce_perf.log";
    let answer = run_coplace(&["validate", log, "--format", "json"]).expect_json();
    let file = &answer["files"][0];
    assert_eq!((file["dataset"].as_str(), file["rows"].as_u64()), (Some("collectives"), Some(11)), "{file}");
    let counts: Vec<u64> =
        file["groups"].as_array().unwrap().iter().map(|group| group["n"].as_u64().unwrap()).collect();
    assert_eq!(counts.iter().sum::<u64>(), 11, "{file}");
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (repository_path(log).display().to_string(), "ours.toml");
    let answer = run_coplace_in(dir.path(), &["calibrate", "nvlink3_node", &path, "--out", out, "--format", "json"])
        .expect_json();
    assert_eq!((answer["rows"].as_u64(), answer["others"].as_u64()), (Some(11), Some(0)));
    assert!(answer["after_pct"].as_f64().unwrap() < answer["before_pct"].as_f64().unwrap());
}

#[test]
fn a_trace_of_the_profiler_fits_a_chip_and_what_is_not_read_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(repository_path("tests/cli/two_cpu_cores.toml"), dir.path().join("two_cpu_cores.toml")).unwrap();
    let trace = repository_path("interop/tests/log/cpu_trace.json").display().to_string();
    let text = run_coplace_in(dir.path(), &["calibrate", "two_cpu_cores.toml", &trace]).expect_result();
    assert!(text.contains(": 9 measurements of two_cpu_cores, 0 rows of other chips, "), "{text}");
    let answer =
        run_coplace_in(dir.path(), &["calibrate", "two_cpu_cores.toml", &trace, "--format", "json"]).expect_json();
    let unread: Vec<&str> =
        answer["unpredicted"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert!(unread.iter().any(|id| id.contains("aten::gelu_backward_x1")), "{unread:?}");
}

#[test]
fn a_log_of_another_tool_is_refused_with_the_known_kinds() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("osu.log"), "# OSU MPI Allreduce Latency Test\n# Size Avg Latency(us)\n8 4.1\n")
        .unwrap();
    for verb in
        [&["validate", "osu.log"][..], &["calibrate", "nvlink3_node", "osu.log"], &["calibrate", "h100", "osu.log"]]
    {
        let run = run_coplace_in(dir.path(), verb);
        assert!(run.code == 2 && run.stderr.contains("osu.log") && run.stderr.contains("nccl-tests"), "{}", run.stderr);
    }
    std::fs::write(dir.path().join("other.json"), "{\"spans\": []}").unwrap();
    let run = run_coplace_in(dir.path(), &["calibrate", "h100", "other.json"]);
    assert!(run.code == 2 && run.stderr.contains("export_chrome_trace"), "{}", run.stderr);
}
