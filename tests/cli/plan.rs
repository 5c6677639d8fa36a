//! `coplace plan`: the list, its proof by counts, its neighbours, and frameworks' configurations.

use crate::support::{run_coplace, run_coplace_in};
use serde_json::Value;

const JOB: [&str; 10] = [
    "plan",
    "llama2-7b",
    "--chip",
    "a100_80gb",
    "--fabric",
    "selene_hdr200x8",
    "--devices",
    "64",
    "--global-batch",
    "512",
];

pub fn call_plan(more: &[&str]) -> Vec<&'static str> {
    JOB.iter().copied().chain(more.iter().map(|s| -> &'static str { String::leak((*s).to_owned()) })).collect()
}

pub fn number_at(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn the_fastest_plans_fit_and_no_neighbour_beats_them() {
    let answer = run_coplace(&call_plan(&["--top", "5", "--format", "json"])).expect_json();
    let plans = answer["plans"].as_array().unwrap();
    let steps: Vec<f64> = plans.iter().map(|p| number_at(&p["step_s"])).collect();
    assert!(steps.len() >= 5 && steps[..5].is_sorted(), "{steps:?}");
    // If the fastest plan that Megatron-LM does not document is faster than the five, it follows them in the list.
    let discouraged = |plan: &Value| plan["discouraged"].is_string();
    assert!(plans[..5].iter().all(|plan| !discouraged(plan)), "{answer}");
    assert!(plans[5..].iter().all(discouraged) && steps[5..].iter().all(|step| *step < steps[0]), "{steps:?}");
    for plan in plans {
        let parts: f64 = plan["parts_s"].as_object().unwrap().values().map(number_at).sum();
        assert!((parts / number_at(&plan["step_s"]) - 1.0).abs() < 1e-9);
        assert!(number_at(&plan["peak_gib"]) <= number_at(&answer["capacity_gib"]));
        let layout = &plan["plan"]["layout"];
        let devices: f64 =
            ["tensor", "pipeline", "data", "context"].iter().map(|key| number_at(&layout[key])).product();
        assert_eq!(devices, 64.0);
        assert!((0.2..1.0).contains(&number_at(&plan["mfu"])), "{}", plan["mfu"]);
    }
    for neighbour in answer["neighbours"].as_array().unwrap() {
        assert!(
            neighbour["step_s"].is_null()
                || number_at(&neighbour["step_s"]) >= steps[0] * (1.0 - 1e-12)
                || neighbour["why"].as_str().is_some_and(|why| why.contains("faster, but not documented")),
            "{neighbour}"
        );
    }
    let counts = &answer["counts"];
    let decided: f64 =
        ["timed", "over_capacity", "rejected_by_bound", "refused"].iter().map(|key| number_at(&counts[key])).sum();
    assert_eq!(decided, number_at(&counts["plans"]));
    assert_eq!(
        answer,
        run_coplace(&call_plan(&["--top", "5", "--format", "json"])).expect_json(),
        "the same call gives the same answer"
    );
}

#[test]
fn the_text_has_the_list_the_time_the_memory_and_the_neighbours() {
    let text = run_coplace(&call_plan(&["--details"])).expect_result();
    for part in [
        "Fastest plans that fit\n",
        "Where the first one's time goes\n",
        "Its memory, GiB per device\n",
        "plans in the space",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn copies_devices_and_lengths_may_be_given_as_the_field_writes_them() {
    let call =
        "plan opt-350m --chip h100 --fabric nvlink4_node --gpus 8 --global-batch 16 --sequence-length 1k --format json";
    let run = |more: &[&str]| run_coplace(&call.split_whitespace().chain(more.iter().copied()).collect::<Vec<_>>());
    let answer = run(&["--dp", "4"]).expect_json();
    for plan in answer["plans"].as_array().unwrap() {
        let (layout, batch) = (&plan["plan"]["layout"], &plan["plan"]["batch"]);
        assert_eq!((&layout["data"], &batch["sequence_length"]), (&4.into(), &1024.into()), "{plan}");
    }
    assert!(answer["plans"].as_array().is_some_and(|plans| plans.len() > 2));
    let refused = run(&["--dp", "3"]).expect_refusal();
    assert!(refused.contains("must be a divisor of the 8 devices; use dp = 2 or 4"), "{refused}");
}

#[test]
fn formats_of_products_that_the_framework_does_not_train_in_are_marked() {
    let call = "plan opt-350m --chip a100_80gb --fabric selene_hdr200x8 --devices 8 --global-batch 8 --precision int8";
    let run = |more: &[&str]| run_coplace(&call.split_whitespace().chain(more.iter().copied()).collect::<Vec<_>>());
    let marks = |stack: &str| -> Vec<Value> {
        let answer = run(&["--format", "json", "--stack", stack]).expect_json();
        answer["plans"].as_array().unwrap().iter().map(|plan| plan["cannot_run"].clone()).collect()
    };
    let why = "products in int8: it has fp8, mxfp8, nvfp4";
    assert!(marks("megatron").iter().all(|mark| mark == why) && !marks("megatron").is_empty());
    assert!(marks("ideal").iter().all(Value::is_null));
    assert!(run(&["--stack", "megatron"]).expect_result().replace("\n  ", " ").contains(why));
}

#[test]
fn what_a_framework_discourages_is_marked_and_ranks_last() {
    let call = "plan llama3-8b --chip h100 --fabric eos_ndr400x8 --devices 16 --global-batch 64 \
        --sequence-length 32768 --micro-batch 1 --virtual-stages 1,2 --top 2";
    let run = |more: &[&str]| run_coplace(&call.split_whitespace().chain(more.iter().copied()).collect::<Vec<_>>());
    let json = |more: &[&str]| run(&[more, &["--format", "json"]].concat()).expect_json();
    let answer = json(&[]);
    let plans = answer["plans"].as_array().unwrap();
    assert_eq!(plans.len(), 3, "{answer}");
    let reason = plans[2]["discouraged"].as_str().unwrap();
    assert!(number_at(&plans[2]["step_s"]) < number_at(&plans[0]["step_s"]), "{answer}");
    let families = answer["families"].as_array().unwrap();
    assert!(families.len() >= 3, "{answer}");
    for family in families {
        let (plan, place) = (&family["plan"], &family["place"]);
        assert!(plan["discouraged"].is_null(), "{family}");
        assert!(number_at(&plan["fit_probability"]) >= 0.9, "{family}");
        assert!(number_at(&plan["step_s"]) >= number_at(&plans[0]["step_s"]), "{family}");
        assert!(place.is_null() || plans[place.as_u64().unwrap() as usize - 1] == *plan, "{family}");
    }
    let text = run(&["--details"]).expect_result().replace("\n  ", " ");
    for part in [
        &format!("The framework discourages 3: {reason}."),
        "no documented plan of the space is faster than the first. No discouraged one is faster than 3, which takes ",
        "The fastest of each family\n",
        "tensor or pipeline parallel",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // If only discouraged plans are requested, they are listed with the reason.
    let alone = json(&["--pipeline", "4", "--zero", "2"]);
    let plans = alone["plans"].as_array().unwrap();
    assert_eq!(plans.len(), 2, "{alone}");
    for plan in plans {
        assert!(plan["discouraged"].as_str().unwrap().starts_with("not documented: "), "{alone}");
    }
    // `--emit` writes a documented plan.
    let flags = run(&["--emit", "megatron"]).expect_result();
    assert!(!flags.contains("fsdp") && !flags.contains("not among what Megatron-LM documents"), "{flags}");
}

#[test]
fn the_fastest_plan_is_played_by_stage_and_traced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("step.json");
    let path = file.to_str().unwrap();
    let shape = ["--pipeline", "4", "--virtual-stages", "2", "--tensor", "4", "--top", "1"];
    let more: Vec<&str> = shape.iter().copied().chain(["--format", "json", "--trace", path]).collect();
    let answer = run_coplace(&call_plan(&more)).expect_json();
    let (stages, timeline) = (answer["stages"].as_array().unwrap(), answer["timeline"].as_array().unwrap());
    assert_eq!((stages.len(), timeline.len()), (4, 4));
    let step = number_at(&answer["plans"][0]["step_s"]);
    for (memory, row) in stages.iter().zip(timeline) {
        assert!(number_at(&row["peak_gib"]) <= number_at(&memory["need_gib"]) * (1.0 + 1e-9), "{memory} {row}");
        assert!(number_at(&row["resident_gib"]) < number_at(&row["peak_gib"]));
        assert!(number_at(&row["end_s"]) <= step && number_at(&row["end_s"]) > 0.9 * step, "{row}, step {step}");
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let layout = &answer["plans"][0]["plan"];
    let micro_batches = 512.0 / number_at(&layout["layout"]["data"]) / number_at(&layout["batch"]["micro_batch"]);
    let forward = events.iter().filter(|e| e["cat"] == "forward").count();
    assert_eq!(forward as f64, micro_batches * 4.0 * 2.0, "a forward pass per micro-batch and chunk");
    let shown = run_coplace(&[&call_plan(&shape)[..], &["--details"]].concat()).expect_result();
    assert!(shown.contains("Its stages over a step, seconds\n"), "{shown}");
    // An unwritable path is an error before anything is printed.
    let error = run_coplace(&call_plan(&[&shape[..], &["--trace", "/nowhere/step.json"]].concat())).expect_refusal();
    assert!(error.contains("/nowhere/step.json"), "{error}");
}

#[test]
fn options_of_the_stack_are_set_by_name() {
    let shape = ["--tensor", "8", "--pipeline", "1", "--zero", "1", "--top", "1"];
    let step = |options: &[&str]| {
        let answer = run_coplace(&call_plan(&[&shape[..], options, &["--format", "json"]].concat())).expect_json();
        (answer["stack"].as_str().unwrap().to_owned(), number_at(&answer["plans"][0]["step_s"]))
    };
    let (name, plain) = step(&[]);
    assert_eq!(name, "megatron");
    let (name, hidden) = step(&["--stack-option", "overlap.tensor=1", "--stack-option", "overlap.data_reduction=1"]);
    assert_eq!(name, "megatron with overlap.tensor=1 with overlap.data_reduction=1");
    assert!(hidden < 0.99 * plain, "{hidden} {plain}");
    // Hybrid sharding: at tensor-parallel degree 2, each of the eight nodes has four data-parallel ranks, which share
    // one copy of the states.
    let flags = run_coplace(&call_plan(
        &[
            &["--tensor", "2"],
            &shape[2..],
            &["--stack-option", "kernels.shard_within_domain=true", "--emit", "megatron"],
        ]
        .concat(),
    ));
    let flags = flags.expect_result();
    assert!(flags.contains("--num-distributed-optimizer-instances 8"), "32 data-parallel ranks, 4 a node: {flags}");
    let error = run_coplace(&call_plan(&["--stack-option", "overlap.tensr=1"])).expect_refusal();
    assert!(
        error.contains(
            "--stack-option: overlap.tensr: the stack megatron has no such option; did you mean `overlap.tensor`? It \
            has kernels."
        ),
        "{error}"
    );
}

#[test]
fn a_copy_larger_than_the_cluster_is_refused() {
    let error = run_coplace(&call_plan(&["--tensor", "4", "--pipeline", "32"])).expect_refusal();
    assert!(
        error.contains(
            "pp = 32: must be a divisor of the 16 devices that tp x cp = 4 leaves of 64; use pp = 16, or tp = 2"
        ),
        "{error}"
    );
    let error = run_coplace(&call_plan(&["--pipeline", "8", "--virtual-stages", "2,3", "--layer-split", "even"]))
        .expect_refusal();
    assert!(error.contains("virtual_stages = 3: must be such that pp x virtual_stages = 24 divides"), "{error}");
}

#[test]
fn a_smaller_fast_domain_sends_more_over_the_slower_links() {
    let step = |domain: &str| {
        let fixed = [
            "--tensor",
            "8",
            "--pipeline",
            "1",
            "--zero",
            "1",
            "--recompute",
            "full",
            "--top",
            "1",
            "--format",
            "json",
        ];
        let more: Vec<&str> = fixed.iter().copied().chain(["--fast-domain", domain]).collect();
        number_at(&run_coplace(&call_plan(&more)).expect_json()["plans"][0]["step_s"])
    };
    assert!(step("4") > 1.2 * step("8"), "{} {}", step("4"), step("8"));
    let error = run_coplace(&call_plan(&["--fast-domain", "7"])).expect_refusal();
    assert!(error.contains("its infiniband joins units of 7; use 63 or 70"), "{error}");
    let error = run_coplace(&call_plan(&["--fast-domain", "1024"])).expect_refusal();
    assert!(error.contains("--fast-domain 1024: selene_hdr200x8's have at most 8 devices; use at most 8"), "{error}");
}

#[test]
fn a_plan_is_written_in_a_frameworks_words() {
    let fixed = [
        "--tensor",
        "4",
        "--pipeline",
        "4",
        "--virtual-stages",
        "2",
        "--micro-batch",
        "1",
        "--zero",
        "1",
        "--layer-split",
        "even",
    ];
    let emit = |framework: &'static str, recompute: &'static str| {
        let more: Vec<&str> = fixed.iter().copied().chain(["--recompute", recompute, "--emit", framework]).collect();
        run_coplace(&call_plan(&more))
    };
    let megatron = emit("megatron", "full").expect_result();
    for flag in [
        "--tensor-model-parallel-size 4",
        "--pipeline-model-parallel-size 4",
        "--num-layers-per-virtual-pipeline-stage 4",
        "--use-distributed-optimizer",
        "--recompute-granularity full",
        "--micro-batch-size 1",
        "--global-batch-size 512",
        "--swiglu",
    ] {
        assert!(megatron.lines().any(|line| line == flag), "{flag}: {megatron}");
    }
    let maxtext = emit("maxtext", "minimal");
    assert_eq!(maxtext.code, 3, "{}", maxtext.stderr);
    let start = "error: --emit maxtext: what is written runs another plan than the one that was timed, which also has: \
        schedule interleaved: ";
    assert!(maxtext.stderr.starts_with(start), "{}", maxtext.stderr);
    let maxtext = maxtext.stdout;
    for setting in [
        "dcn_pipeline_parallelism: 4",
        "num_pipeline_microbatches: 128",
        "remat_policy: minimal",
        "per_device_batch_size: 8",
    ] {
        assert!(maxtext.lines().any(|line| line == setting), "{setting}: {maxtext}");
    }
    assert!(maxtext.contains("shard_optimizer_over_data: true\n"), "{maxtext}");
    assert!(maxtext.contains("# timed and sized under the software stack megatron"), "{maxtext}");
}

#[test]
fn a_schedule_that_no_plan_runs_is_left_out_beside_one_that_plans_run() {
    let with = |list: &str| run_coplace(&call_plan(&["--pipeline", "1", "--top", "1", "--schedule", list]));
    let both = with("1f1b,zb-h1");
    assert_eq!(both.code, 0, "{}", both.stderr);
    let note =
        "--schedule zb-h1: no plan runs it, it is left out: schedule = zb-h1: must be left out without a pipeline";
    assert!(both.stderr.contains(note) && !both.stderr.contains("1f1b:"), "{}", both.stderr);
    assert_eq!(both.stdout, with("1f1b").expect_result());
}

#[test]
fn adamw_is_another_name_of_adam() {
    let with =
        |name: &str| run_coplace(&call_plan(&["--tensor", "8", "--top", "1", "--optimizer", name])).expect_result();
    assert_eq!(with("adamw"), with("adam"));
}

/// The best choice per stage is no slower than any named policy. The answer says where the tensors of each stage go.
#[test]
fn what_every_stage_keeps_is_chosen_and_told() {
    let job = "plan llama3-8b --chip a100_80gb_sxm --fabric selene_hdr200x8 --devices 8 --global-batch 32 --tensor 2 \
        --pipeline 4 --virtual-stages 1 --micro-batch 2 --zero 0 --layer-split even --headroom-gib 42 --top 3";
    let with = |more: &[&str]| run_coplace(&job.split_whitespace().chain(more.iter().copied()).collect::<Vec<_>>());
    let step = |answer: &Value| answer["plans"][0]["step_s"].as_f64().unwrap();
    let best = with(&["--stack", "ideal", "--recompute", "best", "--format", "json"]).expect_json();
    for policy in ["selective", "full", "full_offloaded"] {
        let named = with(&["--stack", "ideal", "--recompute", policy, "--format", "json"]);
        // A policy that keeps too much is refused.
        assert!(named.code == 2 || step(&best) <= step(&named.expect_json()), "{policy}");
    }
    let stages = best["stages"].as_array().unwrap();
    let keeps = |stage: &Value| stage["keeps"].as_array().unwrap().clone();
    assert_eq!(stages.iter().flat_map(keeps).map(|keeps| keeps["layers"].as_u64().unwrap()).sum::<u64>(), 32);
    assert!(keeps(&stages[0]) != keeps(&stages[3]), "{stages:?}");
    assert!(best["plans"][0]["plan"]["activations"].is_array());
    let text = with(&["--stack", "ideal", "--recompute", "best", "--details"]).expect_result();
    assert!(text.contains("What its layers keep\n") && text.contains("by stage, "), "{text}");
    // Megatron-LM recomputes the first layers of every chunk, the same number in each. This is slower than the best
    // choice, which it cannot run; the report says so below the list.
    let megatron = with(&["--stack", "megatron", "--recompute", "best", "--format", "json"]).expect_json();
    let plans = megatron["plans"].as_array().unwrap();
    let steps: Vec<f64> = plans.iter().map(|plan| plan["step_s"].as_f64().unwrap()).collect();
    assert!(steps.is_sorted() && plans[0]["cannot_run"].is_string(), "{steps:?}");
    let runs = plans.iter().position(|plan| plan["cannot_run"].is_null()).unwrap();
    let text = with(&["--stack", "megatron", "--recompute", "best"]).expect_result();
    assert!(text.contains(&format!("The fastest listed plan that it can run is {}: ", runs + 1)), "{text}");
    // The same holds with the bad ends of intervals.
    let robust = with(&["--stack", "megatron", "--recompute", "best", "--robust", "--format", "json"]).expect_json();
    let plans = robust["plans"].as_array().unwrap();
    let ends: Vec<f64> = plans.iter().map(|plan| plan["evidence"]["step_interval_s"][1].as_f64().unwrap()).collect();
    assert!(ends.is_sorted() && plans.iter().any(|plan| plan["cannot_run"].is_null()), "{ends:?}");
    let written = with(&["--stack", "megatron", "--emit", "megatron"]).expect_result();
    assert!(written.contains("--recompute-method block"), "{written}");
}

#[test]
fn a_tensor_degree_that_the_framework_does_not_take_is_marked() {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "max_position_embeddings": 4096, "tie_word_embeddings": false, "hidden_act": "silu", "rms_norm_eps": 1e-6}"#;
    std::fs::write(dir.path().join("two_kv_heads.json"), config).unwrap();
    let plan = |stack: &str, degrees: &str, format: &str| {
        let call = format!(
            "plan two_kv_heads.json --chip h100 --fabric nvlink4_node --devices 8 --global-batch 8 --pipeline 1 \
             --tensor {degrees} --stack {stack} --format {format}"
        );
        run_coplace_in(dir.path(), &call.split_whitespace().collect::<Vec<_>>())
    };
    let refusals = |stack: &str, degrees: &str| -> Vec<(u64, Value)> {
        let answer = plan(stack, degrees, "json").expect_json();
        let row = |plan: &Value| (plan["plan"]["layout"]["tensor"].as_u64().unwrap(), plan["cannot_run"].clone());
        answer["plans"].as_array().unwrap().iter().map(row).collect()
    };
    for stack in ["torchtitan", "nanotron"] {
        let of = refusals(stack, "8,4");
        let why = |t: &u64| format!("tensor {t}: it must divide the model's key/value heads, 2");
        assert!(!of.is_empty() && of.iter().all(|(t, refusal)| *refusal == why(t)), "{stack}: {of:?}");
        assert!(refusals(stack, "8,4,2").iter().any(|(t, refusal)| *t == 2 && refusal.is_null()), "{stack}");
    }
    let megatron = refusals("megatron_core", "8,4");
    assert!(!megatron.is_empty() && megatron.iter().all(|(_, refusal)| refusal.is_null()), "{megatron:?}");
    let text = plan("torchtitan", "4", "text").expect_result();
    assert!(text.contains("tensor 4: it must divide the model's key/value heads, 2"), "{text}");
    assert!(text.contains("It can run none of these."), "{text}");
}

#[test]
fn maxtext_is_offered_its_own_policies() {
    let job =
        "plan llama2-7b --chip tpu_v5p --fabric ici_3d_torus --devices 64 --global-batch 512 --pipeline 1 --zero 3";
    let with = |more: &str| run_coplace(&job.split(' ').chain(more.split(' ')).collect::<Vec<_>>());
    let answer = with("--top 20 --format json").expect_json();
    let policy = |plan: &Value| plan["plan"]["activations"].as_str().unwrap().to_owned();
    let policies: Vec<String> = answer["plans"].as_array().unwrap().iter().map(policy).collect();
    assert!(policies.iter().all(|policy| policy != "none" && policy != "selective"), "{policies:?}");
    let written = with("--emit maxtext").expect_result();
    let name = policies[0].replace("save_qkv_proj_offloaded", "qkv_proj_offloaded");
    assert!(written.lines().any(|line| line == format!("remat_policy: {name}")), "{name}: {written}");
}

#[test]
fn megatron_s_arguments_for_a_tpu_lack_a_framework_that_runs_them() {
    let written = run_coplace(
        &"plan llama2-7b --chip tpu_v4 --fabric tpu_v4_ici --devices 8 --global-batch 16 --tensor 2 --pipeline 1 \
            --emit megatron"
            .split(' ')
            .collect::<Vec<_>>(),
    );
    assert!(written.code == 3 && written.stdout.contains("--tensor-model-parallel-size 2"), "{written:?}");
    let why = "error: --emit megatron: Megatron-LM runs on GPUs, tpu_v4 is none: what is written does not run there";
    assert!(written.stderr.starts_with(why), "{}", written.stderr);
}

#[test]
fn maxtext_is_offered_what_it_runs() {
    let job =
        "plan llama2-7b --chip tpu_v5p --fabric ici_3d_torus --devices 64 --global-batch 512 --sequence-length 2048";
    let with = |more: &str| {
        run_coplace(&job.split(' ').chain(more.split(' ').filter(|word| !word.is_empty())).collect::<Vec<_>>())
    };
    for (more, setting) in [
        ("--emit maxtext", "remat_policy:"),
        ("--emit maxtext --pipeline 4", "num_pipeline_microbatches:"),
        ("--emit maxtext --pipeline 4 --zero 3", "fsdp_parallelism:"),
        ("--emit maxtext --pipeline 4 --tensor 8 --everything", "num_pipeline_microbatches:"),
    ] {
        let written = with(more);
        assert!(written.code == 0 && written.stdout.contains(setting), "{more}: {} {}", written.stderr, written.stdout);
    }
    // The first plan of the list has the schedule that `--emit` writes.
    let first = &with("--pipeline 4 --format json").expect_json()["plans"][0]["plan"];
    assert_eq!(first["schedule"], "g_pipe", "{first}");
    // A requested plan that the framework cannot run is written, and the message has the cure.
    let interleaved = with("--emit maxtext --pipeline 4 --virtual-stages 2");
    assert_eq!(interleaved.code, 3, "{}", interleaved.stderr);
    assert!(
        interleaved.stderr.contains("(coplace plan --schedule gpipe --virtual-stages 1)"),
        "{}",
        interleaved.stderr
    );
}

#[test]
fn what_fits_nowhere_is_a_result_that_says_what_is_lacking() {
    let small = [
        "plan",
        "gpt3-175b",
        "--chip",
        "a100_80gb",
        "--fabric",
        "nvlink3_node",
        "--devices",
        "8",
        "--global-batch",
        "8",
    ];
    let text = run_coplace(&small).expect_result().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("no plan fits; the nearest, t ") && text.contains("GiB of 79.15 GiB"), "{text}");
    assert!(
        text.contains(
            "; use at least 40 devices (whole nodes of 8): fewer than 38 cannot hold the parameters with their \
            optimizer states"
        ),
        "{text}"
    );
    let written = run_coplace(&[&small[..], &["--emit", "megatron"]].concat());
    assert_eq!((written.code, written.stdout.as_str()), (1, ""), "{}", written.stderr);
    assert!(
        written.stderr.starts_with("error: --emit: nothing to write: no plan fits; the nearest, t "),
        "{}",
        written.stderr
    );
}

/// The fabric has three tiers of switches; the innermost has 8 devices. maxtext keeps a copy of GPT-3's states in each
/// group of 8, so that no plan fits. The message names the option with which a plan fits.
#[test]
fn hybrid_sharding_that_makes_nothing_fit_is_named_with_its_option() {
    let dir = tempfile::tempdir().unwrap();
    let tier = |name: &str, devices: &str, rate: f64| {
        format!(
            "[[tier]]\nname = \"{name}\"\ntopology = \"switch\"\n{devices}bandwidth_gb_per_s = {rate}\n\
            achieved_fraction = 0.8\nstep_latency_us = 1.0\nsource = \"a test\"\n"
        )
    };
    let head = "name = \"tiers\"\ndescription = \"three tiers\"\nsource = \"a test\"\nlaunch_us = 2.0\n";
    let write = |rack: &str| {
        let tiers = [tier("node", "devices = 8\n", 900.0), tier("rack", rack, 100.0), tier("spine", "", 100.0)];
        std::fs::write(dir.path().join("tiers.toml"), head.to_owned() + &tiers.concat()).unwrap();
    };
    let job =
        "plan gpt3-175b --chip tpu_v4 --fabric tiers.toml --devices 1024 --global-batch 4096 --sequence-length 2048";
    let job: Vec<&str> = job.split(' ').collect();
    write("devices = 32\n");
    let none: Value =
        serde_json::from_str(&run_coplace_in(dir.path(), &[&job[..], &["--format", "json"]].concat()).expect_result())
            .unwrap();
    let why = none["why"].as_str().unwrap();
    let option = "kernels.shard_within_domain=false";
    assert!(why.contains("inside domains of 8 devices only") && why.contains(option), "{why}");
    let found = run_coplace_in(dir.path(), &[&job[..], &["--stack-option", option]].concat()).expect_result();
    assert!(found.contains("\n  best plan "), "{found}");
    write("devices = 4\n");
    let refused = run_coplace_in(dir.path(), &job).expect_refusal();
    assert!(refused.contains("devices = 4: ") && refused.contains("did you mean 32?"), "{refused}");
}

#[test]
fn layers_are_split_as_asked_or_as_is_fastest() {
    let fixed = [
        "--tensor",
        "4",
        "--pipeline",
        "4",
        "--virtual-stages",
        "1",
        "--micro-batch",
        "1",
        "--zero",
        "1",
        "--recompute",
        "full",
    ];
    let with = |more: &[&'static str]| run_coplace(&call_plan(&[&fixed[..], more].concat()));
    let step = |more: &[&'static str]| {
        let answer = with(&[more, &["--format", "json", "--top", "1"]].concat()).expect_json();
        (number_at(&answer["plans"][0]["step_s"]), answer["plans"][0]["layers"].to_string(), answer)
    };
    let (even, layers, counts) = step(&["--layer-split", "even"]);
    assert!(layers == "[8,8,8,8]" && counts["counts"]["splits"] == 0, "{layers}");
    let (asked, layers, _) = step(&["--layer-split", "9:7"]);
    assert_eq!(layers, "[9,8,8,7]");
    let (best, _, answer) = step(&[]);
    assert!(best <= even.min(asked) && number_at(&answer["counts"]["splits"]) > 0.0, "{best} {even} {asked}");
    let megatron = with(&["--layer-split", "9:7", "--emit", "megatron"]).expect_result();
    for flag in ["--decoder-first-pipeline-num-layers 9", "--decoder-last-pipeline-num-layers 7"] {
        assert!(megatron.lines().any(|line| line == flag), "{flag}: {megatron}");
    }
    let alone = with(&["--layer-split", "16:0", "--emit", "megatron"]).expect_result();
    assert!(alone.contains("--pipeline-model-parallel-layout \"E,t*16|t*8|t*8|L\""), "{alone}");
    let longer = with(&["--layer-split", "8:7@1", "--emit", "megatron"]).expect_result();
    assert!(longer.contains("--pipeline-model-parallel-layout \"E,t*8|t*8|t*9|t*7,L\""), "{longer}");
    let maxtext = with(&["--layer-split", "9:7", "--emit", "maxtext"]);
    assert!(maxtext.stdout.contains("# layers 9+8x2+7: MaxText splits them evenly"), "{}", maxtext.stdout);
    assert_eq!(maxtext.code, 3, "{}", maxtext.stderr);
    assert!(with(&["--layer-split", "9:7", "--details"]).expect_result().contains("9+8x2+7"));
}

#[test]
fn layers_that_do_not_divide_are_split_as_is_fastest() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("thin.json");
    let source = std::fs::read_to_string("workloads/models/llama2-7b.json").unwrap();
    std::fs::write(&model, source.replace("\"num_hidden_layers\": 32", "\"num_hidden_layers\": 40")).unwrap();
    let fixed =
        ["--tensor", "2", "--micro-batch", "1", "--zero", "1", "--recompute", "none", "--top", "1", "--format", "json"];
    let with = |more: &[&'static str]| {
        let mut all = call_plan(&[&fixed[..], more].concat());
        all[1] = String::leak(model.display().to_string());
        run_coplace(&all).expect_json()
    };
    // With 14 equal inner stages, the 40 layers could not be split so that every stage holds 2 or 3.
    let thin = with(&["--pipeline", "16", "--virtual-stages", "1"]);
    let layers: Vec<f64> = thin["plans"][0]["layers"].as_array().unwrap().iter().map(number_at).collect();
    assert!(layers.iter().all(|n| (2.0..=3.0).contains(n)) && layers.iter().sum::<f64>() == 40.0, "{layers:?}");
    // The space also has numbers of chunks that do not divide the layers.
    let chunks = with(&["--pipeline", "8", "--virtual-stages", "3"]);
    assert_eq!(chunks["plans"][0]["layers"].as_array().unwrap().len(), 24);
}

#[test]
fn what_is_offloaded_must_fit_into_the_hosts_memory() {
    let fixed =
        ["--recompute", "custom:offload(decoder_layer_input,qkv_proj)", "--pipeline", "4", "--virtual-stages", "1"];
    let text = run_coplace(&[&call_plan(&fixed)[..], &["--details"]].concat()).expect_result();
    assert!(text.contains("on host") && text.contains("256.0"), "{text}");
    let source = std::fs::read_to_string("sim/templates/chips/a100_80gb_sxm.toml").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let chip = dir.path().join("chip.toml");
    std::fs::write(&chip, source.replace("capacity_gib = 256", "capacity_gib = 0.05")).unwrap();
    let mut small = call_plan(&fixed);
    small[3] = String::leak(chip.display().to_string());
    let none = run_coplace(&small).expect_result();
    assert!(
        none.contains("no plan fits") && none.contains(" of 0.05 GiB of host memory per device: offloaded"),
        "{none}"
    );
    // A chip without a host cannot offload to host memory, and one without storage cannot offload to storage.
    for (policy, table) in [("custom:offload(decoder_layer_input)", "host"), ("tensors:nvme(input)", "storage")] {
        let mut nowhere = call_plan(&["--recompute", policy]);
        nowhere[3] = if table == "host" { "phaze_tpuv4" } else { "a100_80gb_sxm" };
        let message = run_coplace(&nowhere).expect_refusal();
        let why =
            format!("sends tensors to the {table}, but {} has none; give the chip's file its [{table}]", nowhere[3]);
        assert!(message.contains(policy) && message.contains(&why), "{message}");
    }
}

#[test]
fn faulty_arguments_are_refused() {
    let cases = [
        (vec!["--recompute", "ful"], "recompute policy `ful`"),
        (vec!["--stack", "nix"], "unknown software stack `nix`"),
        (
            vec!["--precision", "fp8"],
            "--precision fp8: a100_80gb_sxm has no matrix products of that type; use bf16 or fp16 or int8",
        ),
        (vec!["--tensor", "7"], "tp = 7: must be a divisor of the 32 heads"),
        (vec!["--pipeline", "64"], "--pipeline: pp = 64: must be at most 34: the 32 layers, one for every stage, and"),
        (vec!["--micro-batch", "7"], "micro_batch = 7: must be a divisor of the 512 sequences"),
        (vec!["--layer-split", "9"], "--layer-split: layer_split = 9: must be `even`, `best`, or FIRST:LAST"),
        (
            vec!["--layer-split", "9:22", "--pipeline", "4"],
            "layer_split = 9:22: must be such that each of the 2 inner chunks has one of the 32 layers; use 9:21",
        ),
        (vec!["--expert", "2"], "ep = 2: must be 1 for a model without experts"),
        (
            vec!["--pipeline", "1", "--virtual-stages", "2"],
            "virtual_stages = 2: must be 1 without a pipeline; use virtual_stages = 1, or pp = 2",
        ),
        (vec!["--pipeline", "3"], "pp = 3: must be a divisor of the 64 devices; use pp = 2 or 4"),
        (vec!["--context", "128"], "cp = 128: must be a divisor of the 64 devices; use cp = 64"),
        (
            vec!["--schedule", "zb-v", "--virtual-stages", "3"],
            "virtual_stages = 3: must be 2 under ZB-V; use virtual_stages = 2",
        ),
        (
            vec!["--schedule", "gpipe", "--virtual-stages", "2"],
            "virtual_stages = 2: must be 1 under GPipe; use virtual_stages = 1",
        ),
        (
            vec!["--schedule", "zb-v", "--pipeline", "1"],
            "--schedule: schedule = zb-v: must be left out without a pipeline: one stage has nothing to schedule; use \
            the schedule 1f1b, or pp = 2",
        ),
        (
            vec!["--schedule", "dualpipe-v", "--pipeline", "4", "--tensor", "1", "--micro-batch", "16"],
            "schedule = dualpipe-v: must be one with at most the 2 micro-batches of a copy (512 sequences / (dp 16 x \
             micro_batch 16)): DualPipeV needs 8, two for each of pp = 4; use the schedule 1f1b or gpipe or zb-h1",
        ),
        (
            vec!["--layer-split", "99:1"],
            "--layer-split: layer_split = 99:1: must be at most the 32 layers in the first and the last chunk \
            together; use 31:1 or 32:0",
        ),
        (vec!["--shards", "7", "--zero", "1"], "--shards: shards = 7: must be a divisor of the"),
        (
            vec!["--zero", "0", "--shards", "8"],
            "shards = 8: must be left out under ZeRO-0, which shards nothing; use zero = 1, 2 or 3",
        ),
        (vec!["--emit", "megatron", "--format", "json"], "cannot be used with"),
        (
            vec!["--recompute", "none,full"],
            "--recompute: none,full: policies are separated by `;`, as `,` separates tensors of one; use 'none;full'",
        ),
        (
            vec!["--recompute", "tensors:device(mlp.gate)"],
            "recompute tensor `mlp.gate`: no such tensor; use one of input, attention.norm.out",
        ),
        (vec!["--recompute", "custom:offload()"], "`offload()` is not a list of tensors: write `custom:offload("),
        (
            vec!["--context", "4", "--sequence-length", "16384", "--tensor", "16", "--context-method", "ulysses"],
            "cp = 4: must be a divisor of the 2 key/value heads of a device: Ulysses splits heads",
        ),
    ];
    for (more, message) in cases {
        let refusal = run_coplace(&call_plan(&more)).expect_refusal();
        assert!(refusal.contains(message), "{refusal}");
    }
}

#[test]
fn jobs_that_no_plan_can_run_are_refused() {
    let long =
        ["plan", "gpt2-xl", "--chip", "a100_80gb", "--fabric", "nvlink3_node", "--devices", "8", "--global-batch", "8"];
    let long: Vec<&str> = long.into_iter().chain(["--sequence-length", "8192"]).collect();
    assert!(run_coplace(&long).expect_refusal().contains("sequence length is 8192, but must be "));
    let mut odd = call_plan(&[]);
    odd[7] = "1048";
    let refusal = run_coplace(&odd).expect_refusal();
    assert!(refusal.contains("--devices: devices = 1048: must be tp x cp x pp x dp of a plan; "), "{refusal}");
    assert!(refusal.contains("; use 1024 or 1056 devices, or global_batch = 1048"), "{refusal}");
    let fabric = [
        "plan",
        "llama2-7b",
        "--chip",
        "a100_80gb",
        "--fabric",
        "nvlink3_node",
        "--devices",
        "64",
        "--global-batch",
        "8",
    ];
    assert!(run_coplace(&fabric).expect_refusal().contains("it holds at most 8"));
}

#[test]
fn megatron_accumulates_gradients_in_fp32() {
    let plan =
        |stack: &str| run_coplace(&call_plan(&["--stack", stack, "--top", "1", "--format", "json"])).expect_json();
    let gradient = |stack: &str| plan(stack)["plans"][0]["plan"]["precision"]["gradient"].clone();
    assert_eq!(["megatron", "megatron_core", "pytorch_fsdp"].map(gradient), ["fp32", "fp32", "bf16"]);
}

#[test]
fn memory_under_zb_v_is_said_to_be_a_limit() {
    let fixed =
        ["--schedule", "zb-v", "--pipeline", "4", "--micro-batch", "1", "--recompute", "selective", "--top", "1"];
    let text = run_coplace(&[&call_plan(&fixed)[..], &["--details"]].concat()).expect_result();
    assert!(
        text.contains("In a V these are the activations of as many passes as a stage may have in flight"),
        "{text}"
    );
    let json: Vec<&str> = fixed.iter().copied().chain(["--format", "json"]).collect();
    let answer = run_coplace(&call_plan(&json)).expect_json();
    let list = |key: &str, what: &str| {
        answer[key].as_array().unwrap().iter().map(|row| number_at(&row[what])).collect::<Vec<f64>>()
    };
    let (need, played) = (list("stages", "need_gib"), list("timeline", "peak_gib"));
    assert!(
        need.len() == 4 && need.iter().zip(&played).all(|(need, played)| *played <= need * (1.0 + 1e-9)),
        "{need:?} {played:?}"
    );
    // Under other schedules, the peak equals that of the timeline, and the report has no note.
    let other = ["--schedule", "1f1b", "--pipeline", "4", "--top", "1", "--details"];
    let other = run_coplace(&call_plan(&other)).expect_result();
    assert!(!other.contains("Under ZB-V"), "{other}");
}

#[test]
fn memory_over_a_step_is_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let job =
        "opt-350m --chip a100_80gb --fabric selene_hdr200x8 --devices 8 --global-batch 32 --pipeline 2 --memory drawn";
    for verb in ["plan", "evaluate"] {
        let words: Vec<&str> = std::iter::once(verb).chain(job.split(' ')).collect();
        run_coplace_in(dir.path(), &words).expect_result();
        let drawn = std::fs::read_to_string(dir.path().join("drawn/memory.svg")).unwrap();
        assert!(drawn.contains("stage 1") && drawn.contains("GiB per device"), "{verb}");
        std::fs::remove_dir_all(dir.path().join("drawn")).unwrap();
    }
}

#[test]
fn a_part_of_every_fast_domain_is_named_where_it_cures() {
    let call = "plan llama3-70b --chip gb200 --fabric gb200_nvl72_400g --devices 256 --global-batch 512 --tensor 4 \
        --pipeline 4";
    let told = run_coplace(&call.split(' ').collect::<Vec<_>>()).expect_refusal();
    assert!(
        told.contains("use 216 or 288")
            && told.contains("or --fast-domain 64, of the 72 devices of every domain so many"),
        "{told}"
    );
    let cured: Vec<&str> = call.split(' ').chain(["--fast-domain", "64", "--top", "1"]).collect();
    assert!(run_coplace(&cured).expect_result().contains("\n  best plan "));
}

/// Writes a built-in chip's file under another name, with changes.
fn copied_chip(directory: &std::path::Path, chip: &str, changes: &[(&str, &str)]) -> String {
    let mut text = std::fs::read_to_string(format!("sim/templates/chips/{chip}.toml")).unwrap();
    for (from, to) in [(&*format!("name = \"{chip}\""), "name = \"acme\"")].iter().chain(changes) {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    let file = directory.join("acme.toml");
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

#[test]
fn a_copied_chip_has_the_answers_of_the_original() {
    let directory = tempfile::tempdir().unwrap();
    for (chip, fabric) in [("h100_80gb_sxm", "eos_ndr400x8"), ("tpu_v5p", "ici_3d_torus")] {
        let copy = copied_chip(directory.path(), chip, &[]);
        for verb in ["plan", "evaluate"] {
            let original = chip;
            let answer = |chip: &str, name: &str| {
                let call = [verb, "opt-350m", "--chip", chip, "--fabric", fabric];
                let more = ["--devices", "8", "--global-batch", "16", "--format", "json"];
                let mut answer = run_coplace(&[&call[..], &more].concat()).expect_json();
                answer.as_object_mut().unwrap().remove("asked").unwrap();
                // The evidence names the measured chip, which is the original even for the copy.
                answer.to_string().replace(name, "CHIP").replace(original, "CHIP")
            };
            assert_eq!(answer(chip, chip), answer(&copy, "acme"), "{verb} {chip}");
        }
    }
}

#[test]
fn a_chip_without_a_usual_stack_is_asked_for_one() {
    let directory = tempfile::tempdir().unwrap();
    let usual = "usual_stack = \"megatron_core\"\nusual_fabric = \"eos_ndr400x8\"\n";
    let call = |chip: &str, more: &[&'static str]| {
        let call = ["plan", "opt-350m", "--chip", chip, "--devices", "8", "--global-batch", "16"];
        run_coplace(&[&call[..], more].concat())
    };
    let bare = copied_chip(directory.path(), "h100_80gb_sxm", &[(usual, "")]);
    let refused = call(&bare, &["--fabric", "nvlink4_node"]).expect_refusal();
    assert!(refused.contains("--stack is missing: the file of chip acme has no usual_stack; give"), "{refused}");
    assert!(refused.contains(&format!("usual_stack = \"NAME\" to {bare}")), "{refused}");
    call(&bare, &["--fabric", "nvlink4_node", "--stack", "megatron_core"]).expect_result();
    assert!(call(&bare, &[]).expect_refusal().contains("--fabric is missing"));
    let wrong = copied_chip(
        directory.path(),
        "h100_80gb_sxm",
        &[("usual_stack = \"megatron_core", "usual_stack = \"megatorn")],
    );
    let refused = call(&wrong, &["--fabric", "nvlink4_node"]).expect_refusal();
    assert!(
        refused.contains(&format!("{wrong}: usual_stack = megatorn: is no built-in stack; did you mean `megatron`")),
        "{refused}"
    );
}

/// The grounds of an answer contain NVMe if its plan uses it.
#[test]
fn a_plan_that_offloads_to_nvme_is_graded_as_one() {
    let fixed = ["--chip", "h100", "--fabric", "eos_ndr400x8", "--devices", "8", "--global-batch", "64"];
    let call = ["evaluate", "opt-350m", "--nvme", "6:4000", "--recompute", "tensors:nvme(input)", "--format", "json"];
    let answer = run_coplace(&[&call[..], &fixed].concat()).expect_json().to_string();
    assert!(answer.contains("\"offload\"") && answer.contains("\"offload-nvme\""), "{answer}");
}
