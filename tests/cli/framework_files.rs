//! Plans that are written for a framework, and files of frameworks that `--from` reads.

use crate::support::{run_coplace, run_coplace_in};
use std::path::Path;
use std::process::Command;

/// The jobs that are written and read again: name of the file, model and arguments.
const JOBS: [(&str, &str); 20] = [
    (
        "dense.sh",
        "llama3-8b H100 --devices 64 --global-batch 512 --tensor 2 --pipeline 2 --recompute none;selective;full",
    ),
    (
        "chunks.sh",
        "llama3-70b H100 --devices 64 --global-batch 256 --tensor 8 --pipeline 4 --virtual-stages 2 --recompute full",
    ),
    (
        "blocks.sh",
        "llama3-70b H100 --devices 64 --global-batch 256 --tensor 8 --pipeline 4 --virtual-stages 1 --recompute \
         block:9",
    ),
    ("ends.sh", "llama3.1-405b H100 --devices 512 --global-batch 512 --tensor 8 --pipeline 16 --recompute full"),
    (
        "deepseek.sh",
        "deepseek-v3 H100 --devices 1024 --global-batch 2048 --sequence-length 4096 --tensor 1 --pipeline 16 \
                     --expert 64 --zero 1 --recompute full --micro-batch 1 --mtp-layers 1",
    ),
    (
        "lite.sh",
        "deepseek-v2-lite H100 --devices 16 --global-batch 64 --sequence-length 4096 --tensor 1 --pipeline 2 \
                 --expert 8 --zero 1 --micro-batch 1 --recompute full",
    ),
    ("experts.sh", "qwen3-30b-a3b H100 --devices 64 --global-batch 256 --expert 8 --recompute none;full"),
    (
        "mixtral.sh",
        "mixtral-8x7b H100 --devices 64 --global-batch 512 --tensor 2 --pipeline 4 --expert 4 --sequence-length \
                    4096 --recompute none;selective;full",
    ),
    ("sinks.sh", "gpt-oss-20b H100 --devices 64 --global-batch 256 --sequence-length 8192 --expert 8 --recompute full"),
    (
        "windows.sh",
        "gpt-oss-120b H100 --devices 64 --global-batch 256 --sequence-length 8192 --pipeline 4 --expert 8 --tensor 1 \
         --context 2 --context-method ulysses --layer-split 4:4 --virtual-stages 1 --recompute block:2 --zero 1 \
         --micro-batch 1",
    ),
    (
        "heads.sh",
        "gpt-oss-120b H100 --devices 64 --global-batch 64 --sequence-length 32768 --pipeline 2 --expert 16 --context 2 \
         --context-method ulysses --virtual-stages 3 --recompute full --zero 1 --micro-batch 1",
    ),
    ("gpt.sh", "gpt3-175b A100 --devices 1024 --global-batch 1536 --recompute selective;full --layer-split even"),
    ("bias.sh", "qwen2.5-7b H100 --devices 64 --global-batch 512 --recompute none;selective;full"),
    (
        "long.sh",
        "qwen3-8b H100 --devices 64 --global-batch 64 --sequence-length 32768 --context 4 --recompute full \
                 --precision fp8",
    ),
    (
        "narrow.sh",
        "llama3-8b H100 --devices 64 --global-batch 512 --zero 1 --recompute full --states bf16 --gradients bf16",
    ),
    ("dense.toml", "llama3.1-8b TITAN --devices 64 --global-batch 128 --sequence-length 8192"),
    (
        "stages.toml",
        "llama3-70b TITAN --devices 128 --global-batch 256 --sequence-length 8192 --tensor 8 --pipeline 4 --schedule 1f1b \
         --virtual-stages 1 --recompute full",
    ),
    (
        "pairs.toml",
        "llama3-70b TITAN --devices 128 --global-batch 256 --sequence-length 8192 --tensor 8 --pipeline 4 --schedule \
         dualpipe-v --recompute full --micro-batch 1",
    ),
    ("dense.yml", "llama3-8b TPU --devices 64 --global-batch 512"),
    ("stages.yml", "llama3-70b TPU --devices 256 --global-batch 512 --pipeline 4"),
];

fn cluster(name: &str) -> &'static str {
    match name {
        "H100" => "--chip h100 --fabric eos_ndr400x8",
        "TITAN" => "--chip h100 --fabric eos_ndr400x8 --stack torchtitan",
        "A100" => "--chip a100_80gb --fabric selene_hdr200x8",
        _ => "--chip tpu_v5p --fabric ici_3d_torus --stack maxtext",
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Returns the step of the first plan that `call` lists, in seconds.
fn step_of(directory: &Path, call: &str) -> f64 {
    let answer = run_coplace_in(directory, &words(&format!("{call} --format json"))).expect_json();
    answer["plans"][0]["step_s"].as_f64().unwrap_or_else(|| panic!("{call}: {answer}"))
}

#[test]
fn what_is_written_for_a_framework_is_read_as_the_same_step() {
    let dir = tempfile::tempdir().unwrap();
    for (file, job) in JOBS {
        let [model, chip] = [0, 1].map(|at| words(job)[at]);
        let rest = words(job)[2..].join(" ");
        let (framework, devices) = match file.rsplit_once('.').unwrap().1 {
            // torchrun's line and TorchTitan's degrees have the number of devices.
            "sh" => ("megatron", String::new()),
            "toml" => ("torchtitan", String::new()),
            _ => ("maxtext", format!("--devices {}", words(job)[3])),
        };
        let call = format!("plan {model} {} {rest}", cluster(chip));
        let written = run_coplace_in(dir.path(), &words(&format!("{call} --emit {framework}"))).expect_result();
        std::fs::write(dir.path().join(file), &written).unwrap();
        if framework == "megatron" {
            let checked = Command::new("bash").args(["-n", file]).current_dir(dir.path()).output().unwrap();
            assert!(checked.status.success(), "{file}: {}", String::from_utf8_lossy(&checked.stderr));
        }
        let again = step_of(dir.path(), &format!("plan --from {file} {} {devices}", cluster(chip)));
        let first = step_of(dir.path(), &call);
        assert!((again / first - 1.0).abs() < 1e-9, "{file}: {first} s written, {again} s read\n{written}");
    }
}

/// Jobs of Megatron-LM under settings that have fields of their own in Megatron Bridge.
const RECIPES: [(&str, &str); 3] = [
    (
        "ulysses",
        "llama3-8b H100 --devices 16 --global-batch 64 --context 2 --context-method ulysses --tensor 2 --zero 0",
    ),
    ("offload", "llama3-8b H100 --devices 16 --global-batch 64 --zero 1 --technique optimizer-offload,fraction=0.5"),
    ("fsdp", "qwen3-8b H100 --devices 16 --global-batch 64 --zero 3 --pipeline 1 --recompute full"),
];

/// Megatron-LM's jobs are written as recipes of Megatron Bridge. Python compiles them, and `--from` reads back the same
/// step.
#[test]
fn what_is_written_for_megatron_bridge_compiles_and_is_read_as_the_same_step() {
    let dir = tempfile::tempdir().unwrap();
    let scripts = JOBS.iter().filter_map(|(file, job)| Some((file.strip_suffix(".sh")?, *job)));
    for (name, job) in scripts.chain(RECIPES) {
        let [model, chip] = [0, 1].map(|at| words(job)[at]);
        let call = format!("plan {model} {} {}", cluster(chip), words(job)[2..].join(" "));
        let written = run_coplace_in(dir.path(), &words(&format!("{call} --emit megatron-bridge"))).expect_result();
        let file = format!("{name}.py");
        std::fs::write(dir.path().join(&file), &written).unwrap();
        let compiled =
            Command::new("python3").args(["-m", "py_compile", &file]).current_dir(dir.path()).output().unwrap();
        assert!(compiled.status.success(), "{file}: {}\n{written}", String::from_utf8_lossy(&compiled.stderr));
        let again = step_of(dir.path(), &format!("plan --from {file} {}", cluster(chip)));
        let first = step_of(dir.path(), &call);
        assert!((again / first - 1.0).abs() < 1e-9, "{file}: {first} s written, {again} s read\n{written}");
        assert!(written.lines().all(|line| line.len() <= 400), "{written}");
    }
}

#[test]
fn a_deepseek_pipeline_is_written_with_its_layers_and_predictors() {
    let call = "plan deepseek-v3 --chip h100 --fabric eos_ndr400x8 --devices 1024 --global-batch 4096 --sequence-length 4096 \
        --tensor 1 --pipeline 16 --virtual-stages 1 --expert 64 --zero 1 --recompute full --micro-batch 1 --mtp-layers 1 \
        --layer-split 1:1 --emit megatron";
    let written = run_coplace(&words(call)).expect_result();
    // The 16 stages are: the embedding with four decoders, 14 stages of four decoders, and one decoder with predictor
    // and loss. Megatron Bridge has this layout for DeepSeek-V3.
    let layout: String = std::iter::once("E,t*4|").chain(std::iter::repeat_n("t*4|", 14)).chain(["t,m,L"]).collect();
    for line in [
        format!("--pipeline-model-parallel-layout \"{layout}\""),
        "--moe-layer-freq '([0]*3+[1]*58)'".to_owned(),
        "--num-layers 61".to_owned(),
    ] {
        assert!(written.lines().any(|written| written == line), "{line}: {written}");
    }
    let launch = written.lines().find(|line| line.starts_with("torchrun ")).unwrap();
    assert!(launch.contains("--nproc-per-node 8 --nnodes 128 ") && launch.contains("pretrain_gpt.py"), "{launch}");
}

#[test]
fn what_is_given_beside_a_file_takes_precedence_and_what_is_not_understood_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let script = "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 16 --hidden-size 2048 \
        --num-attention-heads 16 --ffn-hidden-size 8192 --seq-length 4096 --max-position-embeddings 4096 --swiglu \
        --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --vocab-size 128256 --bf16 \
        --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer";
    std::fs::write(dir.path().join("train.sh"), script).unwrap();
    std::fs::write(dir.path().join("odd.sh"), format!("{script} --mystery-width 3")).unwrap();
    let call = |file: &str, more: &str| {
        let text = format!("evaluate --from {file} {} {more}", cluster("H100"));
        run_coplace_in(dir.path(), &words(&text))
    };
    let own = call("train.sh", "--format json").expect_json();
    assert_eq!(own["job"]["cluster"]["devices"], 16);
    assert_eq!(own["result"]["plan"]["plan"]["layout"]["zero"], "optimizer_states");
    let other = call("train.sh", "--tp 2 --sequence-parallel true --gpus 32 --format json").expect_json();
    assert_eq!(other["job"]["cluster"]["devices"], 32);
    assert_eq!(other["result"]["plan"]["plan"]["layout"]["tensor"], 2);
    let named = run_coplace_in(
        dir.path(),
        &words(&format!("evaluate llama3.2-1b --from train.sh {} --format json", cluster("H100"))),
    );
    assert_eq!(named.expect_json()["job"]["model"]["name"], "llama3.2-1b");
    let in_its_place = format!("evaluate train.sh --from train.sh {} --format json", cluster("H100"));
    assert_eq!(run_coplace_in(dir.path(), &words(&in_its_place)).expect_json()["result"], own["result"]);
    let refused = call("odd.sh", "").expect_refusal();
    assert!(
        refused.contains("odd.sh: mystery-width = 3: is not understood; leave it out, or give --assume"),
        "{refused}"
    );
    call("odd.sh", "--assume mystery-width=ignored").expect_result();
    let missing = call("nowhere.sh", "").expect_refusal();
    assert!(missing.contains("--from nowhere.sh: cannot be read: "), "{missing}");
    // The answer contains the model of the file, so that the file may be removed.
    let answer = run_coplace_in(dir.path(), &words(&format!("plan --from train.sh {} --format json", cluster("H100"))));
    std::fs::write(dir.path().join("answer.json"), answer.expect_result()).unwrap();
    std::fs::remove_file(dir.path().join("train.sh")).unwrap();
    run_coplace_in(dir.path(), &["compare", "answer.json", "answer.json"]).expect_result();
}

#[test]
fn a_refused_value_names_the_key_of_the_file_that_it_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"train_micro_batch_size_per_gpu": 131072, "bf16": {"enabled": true}}"#;
    std::fs::write(dir.path().join("ds.json"), config).unwrap();
    let call = format!("evaluate llama3.2-1b --from ds.json {} --devices 8", cluster("H100"));
    let run = run_coplace_in(dir.path(), &words(&call));
    let tip = "--micro-batch follows from `train_micro_batch_size_per_gpu = 131072` in ds.json: correct it there, or \
        give --micro-batch";
    assert!(run.code == 2 && run.stderr.contains("131072 is not in 1..=65536"), "{}", run.stderr);
    assert!(run.stderr.contains(tip), "{}", run.stderr);
    // The message about a value from the command line does not name the file.
    let run = run_coplace_in(dir.path(), &words(&format!("{call} --micro-batch 99999")));
    assert!(run.code == 2 && !run.stderr.contains("ds.json"), "{}", run.stderr);
}

/// A DeepSpeed configuration that `--emit` writes gives the same step when it is read back.
#[test]
fn a_written_deepspeed_configuration_reads_back_to_the_same_step() {
    let dir = tempfile::tempdir().unwrap();
    let own = format!("llama3.2-1b {} --devices 8 --sequence-length 2048", cluster("H100"));
    for more in [
        "--zero 2 --recompute none --global-batch 64",
        "--zero 3 --recompute none --micro-batch 2 --global-batch 64",
        "--zero 2 --recompute none --technique zero-offload --global-batch 32",
        "--zero 1 --tensor 2 --sequence-parallel false --recompute none --global-batch 32",
    ] {
        let plan = format!("plan {own} --stack huggingface {more}");
        let written = run_coplace_in(dir.path(), &words(&format!("{plan} --emit deepspeed"))).expect_result();
        let keys: serde_json::Value = serde_json::from_str(&written).unwrap();
        let number = |key: &str| keys.pointer(key).and_then(serde_json::Value::as_u64).unwrap_or(1);
        let ranks = 8 / number("/tensor_parallel/autotp_size");
        let product = number("/train_micro_batch_size_per_gpu") * number("/gradient_accumulation_steps") * ranks;
        assert_eq!(number("/train_batch_size"), product, "{written}");
        std::fs::write(dir.path().join("ds.json"), &written).unwrap();
        let planned = run_coplace_in(dir.path(), &words(&format!("{plan} --format json"))).expect_json();
        let call = format!("evaluate {own} --from ds.json --recompute none --sequence-parallel false --format json");
        let read = run_coplace_in(dir.path(), &words(&call)).expect_json();
        assert_eq!(read["result"]["plan"]["step_s"], planned["plans"][0]["step_s"], "{more}\n{written}");
    }
    let full = run_coplace_in(
        dir.path(),
        &words(&format!("plan {own} --stack huggingface --zero 2 --recompute full --global-batch 64 --emit deepspeed")),
    );
    assert!(
        full.code == 3 && full.stderr.contains("full recomputation: switch it on in the script"),
        "{}",
        full.stderr
    );
}

/// Reads a file as its framework does, and prints the degrees that the framework found.
const OWN_PARSER: &str = r#"
import sys, unittest.mock as mock
framework, file, devices = sys.argv[1:4]
if framework == "torchtitan":
    from torchtitan.config import ConfigManager
    job = ConfigManager().parse_args([f"--job.config_file={file}"])
    print(job.parallelism.tensor_parallel_degree, job.parallelism.pipeline_parallel_degree, job.training.seq_len)
else:
    import json
    import deepspeed.runtime.config as own
    ranks = {"get_rank": lambda *_: 0, "get_world_size": lambda *_: int(devices)}
    with mock.patch.multiple(own.dist, **ranks):
        job = own.DeepSpeedConfig(json.load(open(file)))
    print(job.train_batch_size, job.zero_config.stage, job.train_micro_batch_size_per_gpu)
"#;

/// TorchTitan's and DeepSpeed's own parsers accept the written files. `.ci/run` runs this test where both can be
/// installed. TorchTitan after 0.2 has no files. nanotron is not tested, because its package cannot be imported.
#[test]
#[ignore = "needs TorchTitan and DeepSpeed"]
fn the_frameworks_own_parsers() {
    let dir = tempfile::tempdir().unwrap();
    let titan = format!("plan llama3.1-8b {} --devices 64 --global-batch 128 --sequence-length 8192", cluster("TITAN"));
    let stages = format!(
        "plan llama3-70b {} --devices 128 --global-batch 256 --sequence-length 8192 --tensor 8 --pipeline 4 \
         --schedule 1f1b --virtual-stages 1 --recompute full",
        cluster("TITAN")
    );
    let context = format!("{titan} --context 2 --precision fp8");
    let deepspeed = |more: &str| {
        let own = "--stack huggingface --devices 8 --sequence-length 2048 --tensor 1 --recompute none";
        format!("plan llama3.2-1b {} {own} {more}", cluster("H100"))
    };
    let zero = ["--zero 2 --global-batch 64 --micro-batch 2", "--zero 3 --global-batch 64 --micro-batch 4"];
    let jobs = [
        ("torchtitan", titan, "1 1 8192"),
        ("torchtitan", stages, "8 4 8192"),
        ("torchtitan", context, "1 1 8192"),
        ("deepspeed", deepspeed(zero[0]), "64 2 2"),
        ("deepspeed", deepspeed(zero[1]), "64 3 4"),
        ("deepspeed", deepspeed("--zero 2 --global-batch 32 --micro-batch 1 --technique zero-offload"), "32 2 1"),
    ];
    for (framework, call, expected) in jobs {
        let written = run_coplace_in(dir.path(), &words(&format!("{call} --emit {framework}"))).expect_result();
        let file = dir.path().join(if framework == "deepspeed" { "ds.json" } else { "train.toml" });
        std::fs::write(&file, &written).unwrap();
        let parsed = Command::new("python3")
            .env("CUDA_VISIBLE_DEVICES", "")
            .args(["-c", OWN_PARSER, framework])
            .arg(&file)
            .arg("8")
            .output()
            .unwrap();
        let (said, found) = (String::from_utf8_lossy(&parsed.stderr), String::from_utf8_lossy(&parsed.stdout));
        assert!(parsed.status.success(), "{call}: {said}\n{written}");
        assert_eq!(found.lines().last(), Some(expected), "{call}: {said}\n{written}");
    }
}

/// The written nanotron file has the plan's degrees and the model's shape under nanotron's keys.
#[test]
fn a_written_nanotron_configuration_has_the_plan_s_degrees_and_the_model_s_shape() {
    let call = format!(
        "plan llama3.2-1b {} --stack nanotron --devices 8 --sequence-length 2048 --tensor 2 --pipeline 2 \
         --zero 1 --micro-batch 2 --global-batch 32 --recompute none --sequence-parallel true --emit nanotron",
        cluster("H100")
    );
    // The even split is faster, but nanotron does not make it. A warning says so.
    let emitted = run_coplace(&words(&call));
    assert!(
        emitted.code == 0 && emitted.stderr.contains("nanotron makes its own by cost, [10, 6]"),
        "{}",
        emitted.stderr
    );
    let written = emitted.stdout;
    for line in [
        "parallelism:",
        "  dp: 2",
        "  pp: 2",
        "  tp: 2",
        "  pp_engine: 1f1b",
        "  tp_mode: REDUCE_SCATTER",
        "  zero_stage: 1",
        "  batch_accumulation_per_replica: 8",
        "  micro_batch_size: 2",
        "  sequence_length: 2048",
        "    hidden_size: 2048",
        "    num_hidden_layers: 16",
        "    num_key_value_heads: 8",
        "    vocab_size: 128256",
        "    tie_word_embeddings: true",
        "  recompute_layer: false",
    ] {
        assert!(written.lines().any(|own| own == line), "{line}\n{written}");
    }
    // `--from` reads the split that nanotron makes. Its stages hold 10 and 6 layers, because the output layer counts
    // too.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("run.yaml"), &written).unwrap();
    let again = format!("plan --from run.yaml {} --format json", cluster("H100"));
    let again = run_coplace_in(dir.path(), &words(&again)).expect_json();
    let first = run_coplace(&words(&call.replace("--emit nanotron", "--format json"))).expect_json();
    let own = run_coplace(&words(&call.replace("--emit nanotron", "--layer-split 10:6 --format json"))).expect_json();
    let step = |answer: &serde_json::Value| answer["plans"][0]["step_s"].as_f64().unwrap();
    assert!((step(&again) / step(&own) - 1.0).abs() < 1e-9, "{} {}", step(&again), step(&own));
    assert!(step(&first) <= step(&own));
    let other = run_coplace(&words(&call.replace("llama3.2-1b", "opt-350m")));
    assert!(other.code == 2 && other.stderr.contains("opt-350m has layers other than Llama's"), "{}", other.stderr);
}

#[test]
fn a_whole_training_is_the_step_as_often_as_its_tokens_ask() {
    let call =
        format!("plan llama3.2-1b {} --devices 16 --global-batch 64 --sequence-length 4096 --top 1", cluster("H100"));
    let more = "--tokens 300B --usd-per-device-hour 2.5 --format json";
    let answer = run_coplace(&words(&format!("{call} {more}"))).expect_json();
    let of = |key: &str| answer["whole_training"][key].as_f64().unwrap();
    // 300e9 tokens at 64 x 4,096 per step are 1,144,410 steps.
    assert_eq!((of("tokens"), of("steps")), (300e9, 1_144_410.0));
    let [step, joules] = ["step_s", "energy_j"].map(|key| answer["plans"][0][key].as_f64().unwrap());
    let hours = 1_144_410.0 * step / 3600.0;
    for (key, value) in [
        ("days", hours / 24.0),
        ("device_hours", 16.0 * hours),
        ("usd", 40.0 * hours),
        ("chips_kwh", 1_144_410.0 * joules / 3.6e6),
    ] {
        assert!((of(key) / value - 1.0).abs() < 1e-12, "{key}: {} {value}", of(key));
    }
    let ends = &answer["whole_training"]["days_interval"];
    assert!(ends[0].as_f64() < Some(of("days")) && ends[1].as_f64() > Some(of("days")), "{ends}");
    let text = run_coplace(&words(&format!("{call} --tokens 300B"))).expect_result();
    assert!(text.contains("300,000,000,000 in 1,144,410 steps") && text.contains("without restarts"), "{text}");
    let refused = run_coplace(&words(&format!("{call} --tokens many"))).expect_refusal();
    assert!(refused.contains("must be from 1 to 1e18 tokens, such as 15T, 300B or 20000000"), "{refused}");
}
