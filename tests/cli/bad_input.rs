//! Wrong input: one message names the file, the key, the value, the limit and the cure. The exit code is 2; nothing is
//! printed to standard output or written. The texts are pinned in `snapshots/`; `INSTA_UPDATE=always cargo test --test
//! cli` accepts new ones.

use crate::support::{
    config_with, file_names, read_repository_file, repository_path, run_coplace, run_coplace_in, small_study,
    study_with,
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// Returns the error messages of calls, each under its arguments. Checks that nothing was written.
fn messages(directory: &Path, calls: &[&[&str]]) -> String {
    let before = file_names(directory);
    let mut text = String::new();
    for call in calls {
        let message = run_coplace_in(directory, call).expect_refusal();
        write!(text, "$ coplace {}\n{message}\n", call.join(" ")).unwrap();
        assert_eq!(file_names(directory), before, "{call:?} left something behind");
    }
    for what in ["models", "chips", "fabrics", "studies"] {
        text = text.replace(&built_in(what), &format!("[the built-in {what}]"));
    }
    text.replace(&format!("{}/", env!("CARGO_MANIFEST_DIR")), "")
}

/// Returns a list of names as messages print it. The lists grow, so the pinned texts omit them.
fn built_in(what: &str) -> String {
    let listed = run_coplace(&["list", what, "--format", "json"]).expect_json();
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    names.join(", ")
}

#[test]
fn models() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    let good = config_with("hidden_size", Some(576.into()));
    write("truncated.json", good[..good.len() / 2].to_owned());
    write("empty.json", String::new());
    write("nan.json", good.replace("1e-5", "NaN").replace("1e-05", "NaN").replace("0.00001", "NaN"));
    for (name, key, value) in [
        ("missing.json", "hidden_size", None),
        ("negative.json", "hidden_size", Some(json!(-576))),
        ("zero.json", "num_hidden_layers", Some(json!(0))),
        ("absurd.json", "hidden_size", Some(json!(1_000_000_000_000_000_u64))),
        ("heads.json", "num_attention_heads", Some(json!(7))),
        ("groups.json", "num_key_value_heads", Some(json!(4))),
        ("words.json", "hidden_size", Some(json!("576"))),
        ("family.json", "model_type", Some(json!("deberta-v2"))),
    ] {
        write(name, config_with(key, value));
    }
    write("good.json", good);
    let files =
        ["missing", "negative", "zero", "absurd", "heads", "groups", "words", "family", "truncated", "empty", "nan"];
    let paths: Vec<String> = files.iter().map(|name| format!("{name}.json")).collect();
    let calls: Vec<Vec<&str>> = paths.iter().map(|path| vec!["search", path.as_str(), "--study", "smoke"]).collect();
    let mut calls: Vec<&[&str]> = calls.iter().map(Vec::as_slice).collect();
    calls.push(&["search", "llama2"]);
    calls.push(&["search", "gone/config.json"]);
    calls.push(&["search", "good.json", "--sequence-length", "0"]);
    calls.push(&["search", "good.json", "--sequence-length", "99999999999"]);
    insta::assert_snapshot!("models", messages(dir.path(), &calls));
}

#[test]
fn studies() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    write("zero.toml", study_with(&[("devices", "0")]));
    write("negative.toml", study_with(&[("devices", "-4")]));
    write("nan.toml", study_with(&[("min_area_fraction", "nan")]));
    write("hbm.toml", study_with(&[("hbm_gib", "[32, -1]")]));
    write("none.toml", study_with(&[("tensor_cores", "[]")]));
    write("typo.toml", small_study().replace("devices =", "device ="));
    write("cut.toml", small_study().split("[cluster]").next().unwrap().to_owned());
    write("fabric.toml", study_with(&[("fabric", "\"token_ring\"")]));
    write("shared.toml", study_with(&[("fabric", "\"ici_3d_torus\"")]));
    write("chip.toml", study_with(&[("reference_chip", "\"abacus\"")]));
    write("batch.toml", study_with(&[("micro_batch_sequences", "[3, 5]")]));
    let files = ["zero", "negative", "nan", "hbm", "none", "typo", "cut", "fabric", "shared", "chip", "batch", "gone"];
    let paths: Vec<String> = files.iter().map(|name| format!("{name}.toml")).collect();
    let calls: Vec<Vec<&str>> =
        paths.iter().map(|path| vec!["search", "llama2-7b", "--study", path.as_str()]).collect();
    let mut calls: Vec<&[&str]> = calls.iter().map(Vec::as_slice).collect();
    calls.push(&["search", "llama2-7b", "--study", "nope"]);
    insta::assert_snapshot!("studies", messages(dir.path(), &calls));
}

#[test]
fn run_directories() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for directory in ["foreign", "empty", "old", "broken"] {
        std::fs::create_dir(path(directory)).unwrap();
    }
    std::fs::write(path("foreign/thesis.tex"), "precious").unwrap();
    std::fs::write(path("file"), "").unwrap();
    std::fs::write(path("old/record.json"), "{\"format\": 0}").unwrap();
    std::fs::write(path("broken/record.json"), "{\"format\": 1, ").unwrap();
    let text = messages(
        dir.path(),
        &[
            &["search", "llama2-7b", "--study", "smoke", "--out", "foreign"],
            &["search", "llama2-7b", "--study", "smoke", "--out", "file"],
            &["compare", "gone"],
            &["compare", "empty"],
            &["compare", "old"],
            &["compare", "broken"],
            &["pareto", "empty", "--out", "figures"],
        ],
    );
    insta::assert_snapshot!("run_directories", text);
    assert_eq!(file_names(&path("foreign")), ["thesis.tex"]);
}

/// Returns an instance of the repository with one change.
fn instance(path: &str, change: impl Fn(&mut Value)) -> String {
    let mut instance: Value =
        serde_json::from_str(&read_repository_file(&format!("interop/reference/phaze/{path}"))).unwrap();
    change(&mut instance);
    instance.to_string()
}

#[test]
fn placement_instances() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let changed = |change: &dyn Fn(&mut Value)| instance("placement/instance_000.json", |i| change(&mut i["input"]));
    write("devices.json", &changed(&|i| i["maxDevices"] = json!(-1)));
    write("typo.json", &changed(&|i| i["bandwith"] = json!(1e9)));
    write("missing.json", &changed(&|i| drop(i.as_object_mut().unwrap().remove("bandwidth"))));
    write("zero.json", &changed(&|i| i["bandwidth"] = json!(0)));
    write("optimizer.json", &changed(&|i| i["optimizerAlgorithm"] = json!("Lion")));
    write("truncated.json", &changed(&|_| ())[..400]);
    write("nan.json", &changed(&|i| i["bandwidth"] = json!(123.25)).replace("123.25", "NaN"));
    write("twice.json", &changed(&|_| ()).replacen("\"maxDevices\":", "\"maxDevices\": 4, \"maxDevices\":", 1));
    write("huge.json", &changed(&|i| i["bandwidth"] = json!(1e308)));
    write(
        "piper_twice.json",
        &read_repository_file("interop/tests/piper/small.json").replacen(
            "\"maxDevices\"",
            "\"maxDevices\": 1, \"maxDevices\"",
            1,
        ),
    );
    let files =
        ["devices", "typo", "missing", "zero", "optimizer", "truncated", "nan", "twice", "huge", "piper_twice", "gone"]
            .map(|name| format!("{name}.json"));
    let calls: Vec<[&str; 2]> = files.iter().map(|file| ["place", file.as_str()]).collect();
    let calls: Vec<&[&str]> = calls.iter().map(<[&str; 2]>::as_slice).collect();
    insta::assert_snapshot!("placement_instances", messages(dir.path(), &calls));
}

#[test]
fn schedule_instances() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let changed = |change: &dyn Fn(&mut Value)| instance("schedule/instance_000.json", change);
    write("cycle.json", &changed(&|i| i["edges"].as_array_mut().unwrap().extend([json!([0, 1]), json!([1, 0])])));
    write("cores.json", &changed(&|i| i["num_tc"] = json!(0)));
    write("negative.json", &changed(&|i| i["ops"][1]["latency"] = json!(-5)));
    write("infinite.json", &changed(&|i| i["ops"][1]["latency"] = json!(-5)).replace("-5", "Infinity"));
    write(
        "many.json",
        &changed(&|i| i["ops"] = (0..20_001).map(|id| json!({"id": id, "type": "Nop", "latency": 0})).collect()),
    );
    write("type.json", &changed(&|i| i["ops"][1]["type"] = json!("GPU")));
    write("edge.json", &changed(&|i| i["edges"][0] = json!([0, 9999])));
    write("missing.json", &changed(&|i| drop(i.as_object_mut().unwrap().remove("num_vc"))));
    write("truncated.json", &changed(&|_| ())[..200]);
    write("unknown.json", &changed(&|i| i["num_tcs"] = json!(2)));
    write("twice.json", &changed(&|_| ()).replacen("\"num_tc\":", "\"num_tc\": 4, \"num_tc\":", 1));
    write("unknown_op.json", &changed(&|i| i["ops"][1]["latencies"] = json!(2)));
    let files = [
        "unknown",
        "unknown_op",
        "cycle",
        "cores",
        "negative",
        "infinite",
        "many",
        "type",
        "edge",
        "missing",
        "truncated",
        "twice",
        "gone",
    ]
    .map(|name| format!("{name}.json"));
    let calls: Vec<[&str; 2]> = files.iter().map(|file| ["schedule", file.as_str()]).collect();
    let mut calls: Vec<&[&str]> = calls.iter().map(<[&str; 2]>::as_slice).collect();
    calls.push(&["schedule", "cycle.json", "--time-limit", "0"]);
    insta::assert_snapshot!("schedule_instances", messages(dir.path(), &calls));
}

#[test]
fn measured_data() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("recipe.csv", "flour,sugar\n1,2\n");
    write("narrow.csv", "id,kernel,measured_us\na,gemm,1\n");
    write("twice.csv", "id,kernel,measured_us,id\n");
    write("empty.csv", "");
    write(
        "kernels.csv",
        "id,chip,kernel,m,n,k,batch,elements,dtype,measured_us,timing\na,tpu_v4,gemm,8,8,8,1,,bf16,1,device\n",
    );
    let collectives = repository_path("sim/tests/data/collectives.csv").display().to_string();
    let text = messages(
        dir.path(),
        &[
            &["validate", "recipe.csv"],
            &["validate", "narrow.csv"],
            &["validate", "twice.csv"],
            &["validate", "empty.csv"],
            &["validate", "gone.csv"],
            &["validate", "kernels.csv", "--stacks", "gone"],
            &["calibrate", "tpu_v4", &collectives],
            &["calibrate", "tpu_v4", "kernels.csv", "--only", "warp_factor"],
            &["calibrate", "tpu_v3", "kernels.csv"],
            &["calibrate", "gone.toml", "kernels.csv"],
        ],
    );
    insta::assert_snapshot!("measured_data", text);
}

#[test]
fn chips() {
    let dir = tempfile::tempdir().unwrap();
    let good = read_repository_file("sim/templates/chips/tpu_v4.toml");
    let write = |name: &str, changes: &[(&str, &str)]| {
        let mut text = good.clone();
        for (from, to) in changes {
            assert!(text.contains(from), "{name}: {from}");
            text = text.replacen(from, to, 1);
        }
        std::fs::write(dir.path().join(format!("{name}.toml")), text).unwrap();
    };
    write("missing", &[("clock_mhz = 1050\n", "")]);
    write("zero", &[("clock_mhz = 1050", "clock_mhz = 0")]);
    write("negative", &[("read_gb_per_s = 1200", "read_gb_per_s = -1200")]);
    write("nan", &[("clock_mhz = 1050", "clock_mhz = nan")]);
    write("count", &[("arrays_per_core = 4", "arrays_per_core = -4")]);
    write("local", &[("capacity_mib = 16\n", "capacity_mib = 65536\n")]);
    write("no_capacity", &[("capacity_gib = 32\n", "")]);
    write("peak", &[("bf16 = 275,", "bf16 = 400,")]);
    write("source", &[("clock_mhz = \"", "# \"")]);
    write("typo", &[("preload = true", "preloads = true")]);
    write("absurd", &[("capacity_gib = 32", "capacity_gib = 1e200"), ("lanes = 2048", "lanes = 4000000000")]);
    write("fraction", &[("hbm_achieved_fraction = 0.", "hbm_achieved_fraction = 7.")]);
    let files = [
        "missing",
        "zero",
        "negative",
        "nan",
        "count",
        "local",
        "no_capacity",
        "peak",
        "source",
        "typo",
        "absurd",
        "fraction",
        "gone",
    ];
    let paths: Vec<String> = files.iter().map(|name| format!("{name}.toml")).collect();
    let calls: Vec<Vec<&str>> =
        paths.iter().map(|path| vec!["evaluate", "llama2-7b", "--chip", path.as_str()]).collect();
    let mut calls: Vec<&[&str]> = calls.iter().map(Vec::as_slice).collect();
    calls.push(&["evaluate", "llama2-7b", "--chip", "abacus"]);
    insta::assert_snapshot!("chips", messages(dir.path(), &calls));
}

/// Every kind of file that a command reads: a built-in file, and a call that reads it as FILE.
const KINDS: &[(&str, &[&str])] = &[
    ("workloads/models/llama2-7b.json", &["evaluate", "FILE", "--chip", "a100_80gb", "--micro-batch", "1"]),
    ("sim/templates/chips/a100_80gb_sxm.toml", &["evaluate", "llama2-7b", "--chip", "FILE", "--micro-batch", "1"]),
    (
        "sim/templates/fabrics/selene_hdr200x8.toml",
        &["evaluate", "llama2-7b", "--chip", "a100_80gb", "--fabric", "FILE", "--micro-batch", "1"],
    ),
    ("step/stacks/megatron.toml", &["calculon", "MODEL", "EXECUTION", "SYSTEM", "--stack", "FILE"]),
    ("interop/tests/calculon/model.json", &["calculon", "FILE", "EXECUTION", "SYSTEM"]),
    ("interop/tests/calculon/execution.json", &["calculon", "MODEL", "FILE", "SYSTEM"]),
    ("interop/tests/calculon/system.json", &["calculon", "MODEL", "EXECUTION", "FILE"]),
    ("interop/reference/nest/exp1_llama2_256_mbs1.json", &["place", "FILE"]),
    ("interop/reference/phaze/placement/instance_000.json", &["place", "FILE"]),
    ("interop/tests/piper/small.json", &["place", "FILE"]),
    ("interop/reference/phaze/schedule/instance_000.json", &["schedule", "FILE"]),
    ("sim/tests/data/collectives.csv", &["validate", "FILE"]),
    ("interop/tests/scale_sim/array_8x4.cfg", &["scalesim", "FILE", "interop/tests/scale_sim/convolutions.csv"]),
    ("interop/tests/scale_sim/convolutions.csv", &["scalesim", "interop/tests/scale_sim/array_8x4.cfg", "FILE"]),
];

/// A byte order mark is skipped. UTF-16, and a directory in place of a file, are reported as such.
#[test]
fn files_in_other_encodings_and_directories() {
    for (file, call) in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(Path::new(file).file_name().unwrap());
        let called = || {
            let word = |word: &&str| match *word {
                "FILE" => path.display().to_string(),
                "MODEL" => "interop/tests/calculon/model.json".to_owned(),
                "EXECUTION" => "interop/tests/calculon/execution.json".to_owned(),
                "SYSTEM" => "interop/tests/calculon/system.json".to_owned(),
                other => other.to_owned(),
            };
            let call: Vec<String> = call.iter().map(word).collect();
            run_coplace(&call.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let text = read_repository_file(file);
        std::fs::write(&path, &text).unwrap();
        let plain = called();
        std::fs::write(&path, format!("\u{feff}{text}")).unwrap();
        let marked = called();
        assert_eq!((marked.code, &marked.stderr), (0, &String::new()), "{file}");
        assert_eq!(plain.stdout.lines().count(), marked.stdout.lines().count(), "{file}");
        let wide: Vec<u8> = "\u{feff}".encode_utf16().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
        std::fs::write(&path, wide).unwrap();
        let refused = called().expect_refusal();
        assert!(
            refused.contains("UTF-16 or no text at all, save it as UTF-8") && refused.contains(path.to_str().unwrap()),
            "{refused}"
        );
        // A model may be given as the directory of its config.json.
        if !file.starts_with("workloads/models") {
            std::fs::remove_file(&path).unwrap();
            std::fs::create_dir(&path).unwrap();
            let refused = called().expect_refusal();
            assert!(refused.contains("is a directory") && refused.contains(path.to_str().unwrap()), "{refused}");
        }
    }
}

#[test]
fn a_key_of_a_model_that_may_change_the_work_is_refused_or_ignored_as_asked() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("mine.json"), config_with("some_latent_size", Some(json!(64)))).unwrap();
    let job = ["--chip", "h100", "--fabric", "nvlink4_node", "--devices", "8", "--global-batch", "16"];
    let plan: Vec<&str> = ["plan", "mine.json"].into_iter().chain(job).collect();
    let message = run_coplace_in(dir.path(), &plan).expect_refusal();
    assert!(message.contains("mine.json: unknown key `some_latent_size` (value 64)"), "{message}");
    assert!(message.contains("--assume some_latent_size=ignored"), "{message}");
    let with = |assume: &'static str| plan.iter().copied().chain(["--assume", assume]).collect::<Vec<_>>();
    let answer = run_coplace_in(dir.path(), &with("some_latent_size=ignored")).expect_result();
    assert!(answer.contains("some_latent_size"), "{answer}");
    for (wrong, said) in [("some_latent_size", "KEY=ignored"), ("hidden_size=ignored", "does not read")] {
        let message = run_coplace_in(dir.path(), &with(wrong)).expect_refusal();
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn a_block_of_more_layers_than_a_chunk_has_is_refused() {
    let call = "evaluate llama3-8b --chip h100 --devices 8 --global-batch 64 --tensor 2 --layer-split even";
    for (pipeline, block, most) in [("1", "block:33", "block:32"), ("2", "block:20", "block:16")] {
        let more = ["--pipeline", pipeline, "--recompute", block];
        let refused = run_coplace(&call.split(' ').chain(more).collect::<Vec<_>>()).expect_refusal();
        assert!(refused.contains(&format!("--recompute is {block}, but must be at most {most}")), "{refused}");
    }
    let whole = ["--pipeline", "2", "--recompute", "block:16", "--format", "json"];
    run_coplace(&call.split(' ').chain(whole).collect::<Vec<_>>()).expect_json();
}
