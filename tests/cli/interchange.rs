//! Files of other simulators: SCALE-Sim's configuration, topology and report, LLMCompass's device, Calculon's
//! application, execution and system, Piper's graph.

use crate::support::{file_names, read_repository_file, repository_path, run_coplace, run_coplace_in};
use std::path::Path;

const CONFIG: &str = "interop/tests/scale_sim/array_8x4.cfg";
const CONVOLUTIONS: &str = "interop/tests/scale_sim/convolutions.csv";
const DEVICE: &str = "interop/tests/llm_compass/a100_like.json";

#[test]
fn a_topology_is_counted_as_scale_sim_counts_it_and_its_report_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(name).display().to_string();
    let call = ["scalesim", &path(CONFIG), &path(CONVOLUTIONS), "--report", "COMPUTE_REPORT.csv", "--format", "json"];
    let answer = run_coplace_in(dir.path(), &call).expect_json();
    assert_eq!((&answer["format"], &answer["run_name"], &answer["rows"]), (&1.into(), &"array_8x4".into(), &8.into()));
    assert_eq!(file_names(dir.path()), ["COMPUTE_REPORT.csv"]);
    let report = std::fs::read_to_string(dir.path().join("COMPUTE_REPORT.csv")).unwrap();
    let theirs = read_repository_file("interop/tests/scale_sim/convolutions_os.report.csv");
    let column = |text: &str, name: &str| -> Vec<String> {
        let header = text.lines().next().unwrap();
        let at = header.split(", ").position(|column| column == name).unwrap();
        text.lines().skip(1).map(|line| line.split(", ").nth(at).unwrap().to_owned()).collect()
    };
    let cycles = column(&theirs, "Total Cycles");
    assert_eq!(column(&report, "Total Cycles"), cycles);
    let layers = answer["layers"].as_array().unwrap();
    let answered: Vec<String> = layers.iter().map(|layer| layer["total_cycles"].to_string()).collect();
    assert_eq!(answered, cycles);
    let text = run_coplace(&["scalesim", CONFIG, CONVOLUTIONS]).expect_result();
    assert!(
        text.starts_with("array_8x4: 8 x 4 array, output stationary\n") && text.ends_with("\n7 layers, 2,270 cycles\n"),
        "{text}"
    );
}

#[test]
fn faulty_files_are_refused_by_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let (config, topology, device) =
        (read_repository_file(CONFIG), read_repository_file(CONVOLUTIONS), read_repository_file(DEVICE));
    write("good.cfg", &config);
    write("user.cfg", &config.replace("InterfaceBandwidth: CALC", "InterfaceBandwidth: USER"));
    write("bad.cfg", &config.replace("ArrayWidth:     4", "ArrayWidth: -4").replace("Dataflow : os", "Dataflow : rs"));
    write("good.csv", &topology);
    write("bad.csv", &topology.replace("14, 14, 3, 3, 3, 10, 2", "14, 14, 3, 30, 3, 0, 2"));
    write("headless.csv", topology.split_once('\n').unwrap().1);
    write(
        "bad.json",
        &device.replace("\"SRAM_KB\": 192", "\"SRAM_KB\": 0").replace("\"frequency_Hz\"", "\"frequency_MHz\""),
    );
    write("cut.json", &device[..200]);
    let mut text = String::new();
    for call in [
        &["scalesim", "gone.cfg", "good.csv"][..],
        &["scalesim", "bad.cfg", "good.csv"],
        &["scalesim", "user.cfg", "good.csv"],
        &["scalesim", "good.cfg", "bad.csv"],
        &["scalesim", "good.cfg", "headless.csv"],
        &["scalesim", "good.cfg", "good.csv", "--input", "gemm"],
        &["evaluate", "llama2-7b", "--chip", "bad.json"],
        &["evaluate", "llama2-7b", "--chip", "cut.json"],
        &["evaluate", "llama2-7b", "--chip", "gone.json"],
    ] {
        text += &format!("$ coplace {}\n{}\n", call.join(" "), run_coplace_in(dir.path(), call).expect_refusal());
    }
    insta::assert_snapshot!("interchange", text);
    run_coplace_in(dir.path(), &["scalesim", "user.cfg", "good.csv", "--stall-free"]).expect_result();
}

#[test]
fn a_system_of_llm_compass_is_a_chip_and_a_fabric() {
    let call = [
        "evaluate",
        "workloads/tests/configs/smollm2_135m.json",
        "--chip",
        DEVICE,
        "--fabric",
        DEVICE,
        "--devices",
        "4",
        "--global-batch",
        "8",
        "--sequence-length",
        "512",
        "--format",
        "json",
    ];
    let answer = run_coplace(&call).expect_json();
    assert_eq!(
        (&answer["feasible"], &answer["job"]["chip"]["name"]),
        (&true.into(), &"A100-like x4".into()),
        "{answer}"
    );
    assert_eq!(answer["job"]["cluster"]["fabric"], "A100-like x4");
    assert!(
        answer["job"]["chip"]["peak_tflop_per_s"].as_f64().is_some_and(|peak| (311.0..313.0).contains(&peak)),
        "{answer}"
    );
}

const ROW: [&str; 3] = [
    "interop/tests/calculon/model.json",
    "interop/tests/calculon/execution.json",
    "interop/tests/calculon/system.json",
];

#[test]
fn a_row_of_calculon_runs() {
    let [model, execution, system] = ROW;
    let answer = run_coplace(&["calculon", model, execution, system, "--format", "json"]).expect_json();
    assert_eq!(
        (&answer["format"], &answer["fits"], &answer["devices"]),
        (&1.into(), &true.into(), &16.into()),
        "{answer}"
    );
    let number = |key: &str| answer[key].as_f64().unwrap();
    let parts: f64 = answer["parts_s"].as_object().unwrap().values().map(|part| part.as_f64().unwrap()).sum();
    assert!((parts / number("step_s") - 1.0).abs() < 1e-9, "{answer}");
    let blocks = answer["calculon"]["total_time"].as_f64().unwrap();
    assert!(0.5 * number("step_s") < blocks && blocks < number("step_s"), "{answer}");
    assert_eq!(answer["stages"].as_array().unwrap().len(), 2);
    let listed = answer["not_modelled"].to_string();
    assert!(
        listed.contains("processing_mode no_overlap") && answer["assumed"].to_string().contains("51200 rows"),
        "{answer}"
    );
    let larger = run_coplace(&["calculon", model, execution, system, "--vocabulary", "256000", "--format", "json"])
        .expect_json();
    assert!(
        larger["step_s"].as_f64().unwrap() > number("step_s") && larger["calculon"] == answer["calculon"],
        "{larger}"
    );
    let text = run_coplace(&["calculon", model, execution, system]).expect_result();
    assert!(
        text.contains("\nThe blocks alone, by Calculon's names\n") && text.contains("\nIn the files, not modelled\n"),
        "{text}"
    );
}

#[test]
fn a_column_that_scale_sim_does_not_have_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let topology = read_repository_file(CONVOLUTIONS);
    let batched = topology.replacen("Strides,", "Strides, Batch Size,", 1).replacen(" 10, 2,", " 10, 2, 8,", 1);
    assert!(batched.contains("Batch Size") && batched.contains(" 10, 2, 8,"));
    std::fs::write(dir.path().join("batch.csv"), batched).unwrap();
    let config = repository_path(CONFIG).display().to_string();
    let refused = run_coplace_in(dir.path(), &["scalesim", &config, "batch.csv"]).expect_refusal();
    assert!(refused.contains("batch.csv: line 1, Batch Size = 8: SCALE-Sim has no batches"), "{refused}");
}

#[test]
fn a_system_of_calculon_may_have_memory_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let system = read_repository_file(ROW[2]);
    let endless = system.replacen("\"GiB\": 64", "\"GiB\": 80000000000", 1);
    assert!(endless != system);
    std::fs::write(dir.path().join("endless.json"), endless).unwrap();
    let note = "mem1.GiB = 8e10: a memory without end, taken as 1048576 GiB";
    let [model, execution] = [ROW[0], ROW[1]].map(|file| repository_path(file).display().to_string());
    let row = run_coplace_in(dir.path(), &["calculon", &model, &execution, "endless.json", "--format", "json"]);
    let row = row.expect_json();
    assert!(row["not_modelled"].as_array().unwrap().iter().any(|line| line == note), "{row}");
    // The parameters of GPT-3 do not fit into the 64 GiB of the unchanged file.
    let call = "plan gpt3-175b --fabric SYSTEM --devices 16 --global-batch 16 --tensor 1 --pipeline 1 --zero 0 --chip";
    let plan = |file: &str| {
        let call = call.replace("SYSTEM", file);
        run_coplace_in(dir.path(), &call.split_whitespace().chain([file]).collect::<Vec<_>>())
    };
    let planned = plan("endless.json");
    assert_eq!(planned.code, 0, "{}", planned.stderr);
    assert_eq!(planned.stderr.matches(&format!("endless.json: {note}")).count(), 1, "{}", planned.stderr);
    let fits = |output: &str| output.contains("\n  best plan ");
    let limited = plan(&repository_path(ROW[2]).display().to_string());
    assert!(fits(&planned.stdout) && !fits(&limited.stdout), "{}", limited.stdout);
    assert!(!limited.stderr.contains("without end"), "{}", limited.stderr);
}

#[test]
fn a_system_of_calculon_is_a_chip_and_a_fabric() {
    let call = [
        "plan",
        "gpt2-xl",
        "--chip",
        ROW[2],
        "--fabric",
        ROW[2],
        "--devices",
        "16",
        "--global-batch",
        "64",
        "--format",
        "json",
    ];
    let answer = run_coplace(&call).expect_json();
    assert_eq!((&answer["chip"], &answer["fabric"]), (&"system".into(), &"system".into()));
    assert!(answer["plans"][0]["step_s"].as_f64().unwrap() > 0.0, "{answer}");
}

#[test]
fn faulty_rows_of_calculon_are_refused_by_file_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let [model, run, system] = ROW.map(read_repository_file);
    write("model.json", &model);
    write("run.json", &run);
    write("system.json", &system);
    write("odd.json", &model.replace("2048", "2046"));
    write("negative.json", &model.replace("\"num_blocks\": 24", "\"num_blocks\": -24"));
    write("procs.json", &run.replace("\"num_procs\": 16", "\"num_procs\": 15"));
    write("typed.json", &run.replace("\"data_par\": 2", "\"data_par\": \"2\""));
    write("less.json", &run.replace("  \"training\": true", "  \"trained\": true"));
    write("wide.json", &run.replace("\"pipeline_par_net\": 1", "\"pipeline_par_net\": 0"));
    write("int8.json", &run.replace("float16", "float32"));
    write("slow.json", &system.replace("\"latency\": 0.000003", "\"latency\": -1"));
    write("cut.json", &system[..300]);
    let mut text = String::new();
    for files in [
        ["gone.json", "run.json", "system.json"],
        ["odd.json", "run.json", "system.json"],
        ["negative.json", "run.json", "system.json"],
        ["run.json", "model.json", "system.json"],
        ["model.json", "procs.json", "system.json"],
        ["model.json", "typed.json", "system.json"],
        ["model.json", "less.json", "system.json"],
        ["model.json", "wide.json", "system.json"],
        ["model.json", "int8.json", "system.json"],
        ["model.json", "run.json", "slow.json"],
        ["model.json", "run.json", "cut.json"],
    ] {
        let call = [&["calculon"][..], &files].concat();
        text += &format!("$ coplace {}\n{}\n", call.join(" "), run_coplace_in(dir.path(), &call).expect_refusal());
    }
    insta::assert_snapshot!("calculon", text);
}

const GRAPH: &str = "interop/tests/piper/small.json";

#[test]
fn a_graph_of_piper_is_placed_under_piper_s_objective() {
    let answer = run_coplace(&["place", GRAPH, "--format", "json"]).expect_json();
    assert_eq!(
        (&answer["status"], &answer["feasible"], &answer["why"]),
        (&"optimal".into(), &true.into(), &serde_json::Value::Null)
    );
    let slowest =
        answer["costs"].as_array().unwrap().iter().map(|c| c["time_per_sample"].as_f64().unwrap()).fold(0.0, f64::max);
    assert_eq!(answer["time_per_sample"].as_f64(), Some(slowest), "{answer}");
    let stages = answer["plan"]["stages"].as_array().unwrap();
    let layers: usize = stages.iter().map(|stage| stage["nodes"].as_array().unwrap().len()).sum();
    assert!(layers == 4 && stages.iter().all(|stage| stage["TMPCids"].is_object()), "{answer}");
    let text = run_coplace(&["place", GRAPH]).expect_result();
    assert!(
        text.starts_with("interop/tests/piper/small.json: optimal (proven)\n  time per sample 0.017040 s"),
        "{text}"
    );
    let both = run_coplace(&["place", "interop/reference/phaze/placement/instance_000.json", GRAPH]).expect_result();
    assert!(both.contains("time per batch") && both.contains("time per sample"), "{both}");
}

#[test]
fn faulty_graphs_of_piper_are_refused_by_file_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let graph = read_repository_file(GRAPH);
    let write = |name: &str, from: &str, to: &str| {
        assert!(graph.contains(from), "{from}");
        std::fs::write(dir.path().join(name), graph.replacen(from, to, 1)).unwrap();
    };
    write("devices.json", "\"maxDevices\": 4", "\"maxDevices\": 0");
    write("typed.json", "\"mbsInBatch\": 16", "\"mbsInBatch\": \"16\"");
    write("key.json", "\"bandwidth\"", "\"bandwith\"");
    write("sync.json", "\"syncTimeBw\": {\"1\": 0.0}", "\"syncTimeBw\": {}");
    write("memory.json", "\"memoryUsageA\": 100000000.0", "\"memoryUsageA\": -1");
    let mut text = String::new();
    for file in ["devices.json", "typed.json", "key.json", "sync.json", "memory.json"] {
        text += &format!("$ coplace place {file}\n{}\n", run_coplace_in(dir.path(), &["place", file]).expect_refusal());
    }
    insta::assert_snapshot!("piper", text);
}

#[test]
fn a_model_written_as_a_graph_of_piper_is_placed() {
    let dir = tempfile::tempdir().unwrap();
    let job = [
        "plan",
        "gpt2-xl",
        "--chip",
        "a100_80gb",
        "--fabric",
        "selene_hdr200x8",
        "--devices",
        "16",
        "--global-batch",
        "64",
    ];
    let call = [&job[..], &["--micro-batch", "2", "--emit", "piper"]].concat();
    let graph = run_coplace(&call).expect_result();
    std::fs::write(dir.path().join("gpt2.json"), &graph).unwrap();
    let parsed: serde_json::Value = serde_json::from_str(&graph).unwrap();
    assert_eq!((&parsed["mbsInBatch"], &parsed["maxDevices"]), (&32.into(), &16.into()));
    assert_eq!(parsed["nodes"].as_array().unwrap().len(), 50, "an embedding, 48 layers and a head");
    let answer = run_coplace_in(dir.path(), &["place", "gpt2.json", "--format", "json"]).expect_json();
    assert_eq!(answer["status"], "optimal", "{answer}");
    let refused = [&job[..], &["--micro-batch", "3", "--emit", "piper"]].concat();
    assert!(run_coplace(&refused).expect_refusal().contains("micro_batch = 3"), "3 does not divide 64");
}
