//! `coplace list`: text and JSON have the same names.

use crate::support::{repository_path, run_coplace, run_coplace_in};

fn names(what: &str) -> Vec<String> {
    let json = run_coplace(&["list", what, "--format", "json"]).expect_json();
    let names: Vec<String> = json.as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap().to_owned()).collect();
    let text = run_coplace(&["list", what]).expect_result();
    let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    // A long cell continues in lines that begin with spaces.
    assert_eq!(
        text.lines().skip(2).filter(|line| !line.starts_with(' ')).map(first).collect::<Vec<_>>(),
        names,
        "text and JSON differ"
    );
    names
}

#[test]
fn a_flag_of_another_list_is_refused() {
    for (call, why) in [
        (&["list", "stacks", "--chip", "h100"][..], "--chip: is of `coplace list dimensions` alone"),
        (&["list", "models", "--fabric", "tpu_v4_ici"], "--fabric: is of `coplace list dimensions` alone"),
        (&["list", "studies", "--family"], "--family: is of `coplace list models` alone"),
    ] {
        let refused = run_coplace(call).expect_refusal();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn a_directory_of_chips_without_any_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes.txt"), "").unwrap();
    let rows = concat!(env!("CARGO_MANIFEST_DIR"), "/sim/tests/data/collectives.csv");
    let refused = run_coplace_in(dir.path(), &["validate", rows, "--chips", "."]).expect_refusal();
    assert!(refused.contains("--chips .: has no .toml file"), "{refused}");
}

#[test]
fn own_chips_are_warned_of_unless_a_row_names_one() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("chips")).unwrap();
    let own = dir.path().join("chips/two_cpu_cores.toml");
    std::fs::copy(repository_path("tests/cli/two_cpu_cores.toml"), &own).unwrap();
    let measured = |chip: &str| {
        let header = "id,chip,kernel,m,n,k,batch,elements,dtype,measured_us,timing,source";
        let row = format!("a,{chip},gemm,256,256,256,1,,bf16,500.0,host,here");
        std::fs::write(dir.path().join("kernels.csv"), format!("{header}\n{row}\n")).unwrap();
        run_coplace_in(dir.path(), &["validate", "kernels.csv", "--chips", "chips"])
    };
    measured("two_cpu_cores").expect_result();
    let warned = measured("a100_80gb_sxm");
    assert!(warned.stderr.contains("(two_cpu_cores) has a built-in name, and no row names one"), "{warned:?}");
}

#[test]
fn models_are_those_of_phaze_and_llama_3() {
    let models = names("models");
    let phaze =
        ["bert-large", "gpt2-xl", "opt-350m", "llama2-7b", "megatron-bert", "megatron-gpt2-xl", "megatron-gpt2-54"];
    for model in phaze.into_iter().chain(["megatron-gpt2-72", "gpt3-175b", "llama3-8b", "llama3-70b", "mixtral-8x7b"]) {
        assert!(models.iter().any(|m| m == model), "{model} is missing from {models:?}");
    }
    let json = run_coplace(&["list", "models", "--format", "json"]).expect_json();
    let parameters =
        |name: &str| json.as_array().unwrap().iter().find(|m| m["name"] == name).unwrap()["parameters"].as_u64();
    // Touvron et al. 2023 (Llama 2), table 1 and model card: 6.74 B; Meta's Llama 3 model card: 8.03 B.
    assert_eq!(parameters("llama2-7b"), Some(6_738_415_616));
    assert_eq!(parameters("llama3-8b"), Some(8_030_261_248));
}

#[test]
fn chips_fabrics_and_studies_are_listed() {
    let chips = names("chips");
    for chip in ["tpu_v4", "phaze_tpuv4", "a100_80gb_sxm", "h100_80gb_sxm"] {
        assert!(chips.iter().any(|c| c == chip), "{chip} is missing from {chips:?}");
    }
    assert!(names("fabrics").iter().any(|f| f == "phaze_flat"));
    assert!(["phaze", "phaze_ici", "smoke"].iter().all(|s| names("studies").contains(&(*s).to_owned())));
}

#[test]
fn the_network_of_a_chip_is_named_where_it_is_missing_and_another_is_said() {
    let job = |fabric: &[&'static str]| {
        let fixed = ["plan", "llama2-7b", "--chip", "h100", "--devices", "8", "--global-batch", "8", "--tensor", "8"];
        run_coplace(&[&fixed[..], fabric].concat())
    };
    let refused = job(&[]).expect_refusal();
    for part in [
        "--fabric is missing",
        "h100_80gb_sxm is sold with",
        "\n  nvlink4_node",
        "at most 8 devices",
        "\n  eos_ndr400x8",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert!(!refused.contains("tpu_v4_ici") && !refused.contains("h200_400g"), "{refused}");
    let foreign = "tpu_v4_ici is a network of tpu_v4, not of h100_80gb_sxm";
    let text = job(&["--fabric", "tpu_v4_ici"]).expect_result();
    assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(foreign), "{text}");
    assert!(!job(&["--fabric", "nvlink4_node"]).expect_result().contains("is a network of"));
    // Without --fabric, `evaluate` takes the chip's usual network.
    let silent = run_coplace(&["evaluate", "llama2-7b", "--chip", "h100", "--devices", "8", "--global-batch", "8"])
        .expect_result();
    assert!(silent.contains("eos_ndr400x8") && !silent.contains("is a network of"), "{silent}");
    let chips = run_coplace(&["list", "fabrics", "--format", "json"]).expect_json();
    let of = |name: &str| chips.as_array().unwrap().iter().find(|f| f["name"] == name).unwrap()["chips"].clone();
    assert_eq!((of("tpu_v4_ici"), of("ideal_switch")), (serde_json::json!(["tpu_v4"]), serde_json::json!([])));
}

#[test]
fn techniques_are_listed_with_their_parameters() {
    let techniques = names("techniques");
    assert!(["galore", "lora", "memo", "ssdtrain"].iter().all(|name| techniques.contains(&(*name).to_owned())));
    let json = run_coplace(&["list", "techniques", "--format", "json"]).expect_json();
    let of = |name: &str| json.as_array().unwrap().iter().find(|t| t["name"] == name).unwrap().clone();
    let galore = of("galore");
    assert_eq!((&galore["gate"], &galore["parameters"]["rank"]["default"]), (&"biased".into(), &"hidden / 4".into()));
    assert!(
        galore["source"].as_str().unwrap().contains("Zhao")
            && galore["formula"].as_str().unwrap().contains("2mr + 8nr")
    );
    assert_eq!(of("galore")["parameters"]["period"]["default"], 200.0);
    assert!(of("ms-bp")["parameters"].as_object().unwrap().is_empty());
    assert!(run_coplace(&["list", "techniques"]).expect_result().contains("per_layer=0, period=200, rank=hidden / 4"));
}

#[test]
fn answers_of_two_chips_stand_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let keep = |file: &str, chip: &str, fabric: &str, batch: &str| {
        let job =
            ["evaluate", "llama3-8b", "--chip", chip, "--fabric", fabric, "--devices", "8", "--global-batch", batch];
        let answer =
            run_coplace(&[&job[..], &["--sequence-length", "4096", "--format", "json"]].concat()).expect_result();
        std::fs::write(dir.path().join(file), &answer).unwrap();
        serde_json::from_str::<serde_json::Value>(&answer).unwrap()["result"]["plan"].clone()
    };
    let (h100, mi300x) =
        (keep("h100.json", "h100", "nvlink4_node", "32"), keep("mi300x.json", "mi300x", "mi300x_400g", "32"));
    keep("more.json", "h100", "nvlink4_node", "64");
    let compared =
        run_coplace_in(dir.path(), &["compare", "h100.json", "mi300x.json", "more.json", "--format", "json"])
            .expect_json();
    let entries = compared["entries"].as_array().unwrap();
    for (entry, plan) in entries.iter().zip([&h100, &mi300x]) {
        assert_eq!(
            (&entry["step_time_s"], &entry["mfu"], &entry["energy_per_step_j"]),
            (&plan["step_s"], &plan["mfu"], &plan["energy_j"])
        );
        assert_eq!((&entry["peak_memory_gib"], &entry["note"]), (&plan["peak_gib"], &serde_json::Value::Null));
    }
    assert_eq!((&entries[0]["label"], entries[0]["area_mm2"].is_null()), (&"h100".into(), false));
    assert_eq!(compared["differences"], serde_json::json!(["more differs from the first: 64 sequences per step."]));
    let text = run_coplace_in(dir.path(), &["compare", "h100.json", "mi300x.json"]).expect_result();
    assert!(text.contains("8 x mi300x: ") && text.contains("mi300x_400g, megatron_core"), "{text}");
    let mixed = run_coplace_in(dir.path(), &["compare", "h100.json", "."]).expect_refusal();
    assert!(mixed.contains("give only runs, or only answers"), "{mixed}");
    std::fs::write(dir.path().join("cut.json"), "{\"plans\": [").unwrap();
    let cut = run_coplace_in(dir.path(), &["compare", "h100.json", "cut.json"]).expect_refusal();
    assert!(cut.contains("cut.json: EOF while parsing"), "{cut}");
}

#[test]
fn a_chip_that_takes_more_than_its_maker_allows_is_said_to_be_overrated() {
    let job = ["evaluate", "llama3-8b", "--devices", "8", "--global-batch", "64", "--sequence-length", "4096"];
    let text = |chip: &'static str, fabric: &'static str| {
        let more = ["--chip", chip, "--fabric", fabric, "--details"];
        let text = run_coplace(&[&job[..], &more].concat()).expect_result();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(text("mi300x", "mi300x_400g").contains("above the maker's limit of 750 W"));
    assert!(!text("h100", "nvlink4_node").contains("above the maker's limit"));
    // A network of other chips is related to no measurement.
    assert!(
        text("h100", "phaze_flat").contains("never measured: fabric phaze_flat, cluster h100_80gb_sxm on phaze_flat")
    );
}
