//! `coplace serve` from the outside: answers, laws and refusals.

use crate::support::run_coplace;
use serde_json::Value;

fn served(more: &str) -> crate::support::CommandOutput {
    let words = format!("serve {more}");
    run_coplace(&words.split_whitespace().collect::<Vec<_>>())
}

fn answer(more: &str) -> Value {
    served(&format!("{more} --format json")).expect_json()
}

fn best(answer: &Value) -> &Value {
    &answer["choices"][0]
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

/// Checks that the parts of an iteration sum to its time.
fn check_parts(choice: &Value) {
    let parts = ["products", "attention", "vector", "communication", "gaps", "host", "drafts", "fetches"];
    let sum: f64 = parts.iter().map(|part| number(&choice["iteration"][format!("{part}_ms")])).sum();
    assert!((sum - number(&choice["iteration"]["total_ms"])).abs() < 1e-9, "{choice}");
}

const LLAMA: &str = "llama3-70b --chip h100 --devices 8 --products fp8";

#[test]
fn limits_hold_and_looser_ones_never_serve_less() {
    let mut last = 0.0;
    for tpot in [14, 20, 30, 60] {
        let answer = answer(&format!("{LLAMA} --ttft 2000 --tpot {tpot}"));
        let choice = best(&answer);
        assert!(number(&choice["tpot_ms"]) <= f64::from(tpot) * 1.000_001, "{choice}");
        assert!(number(&choice["ttft_ms"]) <= 2000.0, "{choice}");
        let rate = number(&choice["tokens_per_s"]);
        assert!(rate >= last, "{tpot} ms: {rate} after {last}");
        last = rate;
        check_parts(choice);
        let requests = number(&choice["requests_per_s"]) * 256.0;
        assert!((requests / rate - 1.0).abs() < 1e-9, "{choice}");
    }
}

#[test]
fn the_memory_is_that_of_the_weights_and_of_eight_key_heads() {
    let answer = answer("llama3-70b --chip h100 --devices 8 --tensor 8 --tpot 50");
    let pool = &best(&answer)["decode"];
    // The model has 80 layers. Each of the eight devices holds one key head of 128, with keys and values in bf16.
    assert_eq!(number(&pool["cache_kib_per_token"]), 80.0 * 2.0 * 128.0 * 2.0 / 1024.0);
    // The eight devices share 70.55 billion weights in bf16.
    assert!((number(&pool["weights_gib"]) - 70.553 * 2.0 / 1.073_741_824 / 8.0).abs() < 0.1, "{pool}");
}

#[test]
fn pools_apart_name_both_chips() {
    let answer = answer("llama3-70b --chip h100,h200 --devices 16 --products fp8 --pools apart --ttft 1000 --tpot 25");
    let choice = best(&answer);
    for pool in ["prefill", "decode"] {
        let chip = choice[pool]["chip"].as_str().unwrap();
        assert!(["h100_80gb_sxm", "h200"].contains(&chip), "{choice}");
    }
    assert!(number(&choice["transfer_ms"]) > 0.0 && number(&choice["devices"]) <= 16.0, "{choice}");
}

#[test]
fn drafts_prefixes_and_a_cache_on_the_host_are_told() {
    let plain = answer(&format!("{LLAMA} --tpot 15"));
    assert!(plain["method"].is_null(), "{plain}");
    let drafted = answer(&format!("{LLAMA} --tpot 15 --draft 4 --accepted 2.5 --draft-model llama3-8b"));
    let method = &drafted["method"];
    assert_eq!((&method["drafted"], &method["accepted"]), (&4.into(), &2.5.into()));
    assert_eq!(method["draft_model"], "llama3-8b");
    check_parts(best(&drafted));
    assert!(number(&best(&drafted)["iteration"]["drafts_ms"]) > 1.0, "{drafted}");
    assert!(number(&best(&drafted)["tokens_per_s"]) > number(&best(&plain)["tokens_per_s"]));
    let held = answer(&format!("{LLAMA} --tpot 15 --prefix-hit 0.5 --prefix-tokens 51200"));
    // 51,200 tokens are 100 prefixes of 512 tokens. Each takes half a page of 16 tokens more.
    let pool = &best(&held)["decode"];
    let bytes = 100.0 * 520.0 * number(&pool["cache_kib_per_token"]) / 1024.0 / 1024.0;
    assert!((number(&pool["prefixes_gib"]) - bytes).abs() < 1e-6, "{pool}");
    assert!(number(&best(&held)["ttft_ms"]) < number(&best(&plain)["ttft_ms"]));
    let away = answer(&format!("{LLAMA} --tpot 15 --cache-place nvme --nvme 6.4:1600 --cache-away 0.5"));
    assert_eq!((&away["method"]["cache_place"], &away["method"]["cache_away"]), (&"nvme".into(), &0.5.into()));
    check_parts(best(&away));
    assert!(number(&best(&away)["iteration"]["fetches_ms"]) > 0.0, "{away}");
    let text = served(&format!("{LLAMA} --draft 1 --accepted 0.8 --prefix-hit 0.5 --cache-place host")).expect_result();
    for part in ["1 token drafted", "by module, 0.800", "50.0 % of every prompt held", "on the host", "cache fetches"] {
        assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(part), "{part}: {text}");
    }
}

/// HOMER's peak follows from the authors' schedule: 16 chunks of 2048 tokens, and 20 of 32 layers that merge, four at
/// each height of the tree of chunks. Memory3 reads and stores the keys and values of texts.
#[test]
fn techniques_of_inference_stand_beside_the_plain_way() {
    let merged = answer("llama2-7b --chip a100 --devices 1 --input 32768 --technique homer");
    let technique = &merged["method"]["technique"];
    let tokens = (2048 * 16 + 1024 * (16 + 20 + 24 + 28)) as f64 / 32.0;
    let gib = tokens * 524_288.0 / f64::from(1 << 30);
    assert!((number(&technique["peak_gib"]) - gib).abs() < 1e-6, "{technique}");
    assert_eq!((number(&technique["plain_peak_gib"]), number(&technique["read_kib_per_token"])), (16.0, 0.0));
    assert!(number(&technique["prompt_ms"]) < number(&technique["plain_prompt_ms"]), "{technique}");
    assert_eq!(technique["name"], "homer");
    let memories = answer("llama3-8b --chip h100 --devices 1 --technique memory3,references=1e6 --nvme 6:4000");
    let technique = &memories["method"]["technique"];
    // A text has 8 tokens in 16 of the 32 layers, with 8 heads of keys and values of 128 in bf16. A sequence reads five
    // texts every 64 tokens.
    let text = 16.0 * 8.0 * 2.0 * 128.0 * 2.0 * 8.0;
    assert!((number(&technique["read_kib_per_token"]) - 5.0 * text / 64.0 / 1024.0).abs() < 1e-9, "{technique}");
    assert!((number(&technique["stored_gib"]) - 1e6 * text / f64::from(1 << 30)).abs() < 1e-6, "{technique}");
    check_parts(best(&memories));
}

#[test]
fn a_system_of_aiconfigurator_is_a_chip_with_its_fabric() {
    let system = "interop/tests/aiconfigurator/h100_sxm.yaml";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(system);
    let output = served(&format!("llama3-70b --chip {} --products fp8", path.display()));
    assert!(output.code == 0 && output.stderr.contains("its measured tables are not read"), "{output:?}");
    assert!(output.stdout.contains("h100_sxm") && output.stdout.contains("states no energy"), "{output:?}");
    assert!(!output.stdout.contains("per joule"), "{output:?}");
}

#[test]
fn a_small_space_is_searched_without_a_gap() {
    let directory = tempfile::tempdir().unwrap();
    let text = crate::support::read_repository_file("search/studies/train_and_serve.toml");
    let line = |key: &str, value: &str, text: String| {
        let old = text.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap().to_owned();
        text.replace(&old, &format!("{key} = {value}"))
    };
    let text = line("\"tensor.cores\"", "[96, 132]", text);
    let text = line("\"tensor.columns\"", "[32]", text);
    let text = line("l2_slices", "[100]", text);
    let text = line("hbm_stacks", "[4, 6]", text);
    let text = line("links", "[18]", text);
    let text = line("clock_mhz", "[1755]", text);
    let file = directory.path().join("small.toml");
    std::fs::write(&file, text).unwrap();
    let study = file.display().to_string();
    let plain = answer(&format!("llama3-70b --study {study} --train-weight 0 --tpot 20"));
    assert_eq!(number(&plain["space"]["combinations"]), 12.0);
    assert!(number(&plain["space"]["gap"]) == 0.0 && number(&plain["space"]["chips"]) > 1.0, "{}", plain["space"]);
    let both = answer(&format!("llama3-70b --study {study} --products fp8 --tpot 20 --train-weight 0.5"));
    assert!(number(&best(&both)["tokens_per_s"]) <= number(&best(&plain)["tokens_per_s"]) * 1.000_001);
    // With the table `[serve]` of the study, `search` gives the same answer, and `explain` accepts its run.
    let text = std::fs::read_to_string(&file).unwrap().replace("tpot_ms = 10", "tpot_ms = 20");
    std::fs::write(&file, text).unwrap();
    let searched = format!("search --study {study} --out {}/run --format json", directory.path().display());
    let searched = run_coplace(&searched.split_whitespace().collect::<Vec<_>>()).expect_json();
    assert_eq!(searched["choices"], both["choices"]);
    let run = directory.path().join("run").display().to_string();
    let explained = run_coplace(&["explain", &run, "--format", "json"]).expect_json();
    let value = |value: &Value| number(value);
    assert!((value(&explained["chips"][0]["value"]) / value(&best(&both)["value"]) - 1.0).abs() < 1e-6, "{explained}");
    let said = run_coplace(&["search", "--study", &study, "--max-area", "600"]).expect_refusal();
    assert!(said.contains("[serve]") && said.contains("coplace serve"), "{said}");
    let joint = &both["space"]["both"];
    assert!(number(&joint["trains"]) >= number(&joint["serving_chip_trains"]) - 1e-9, "{joint}");
    assert!(number(&joint["serves"]) >= number(&joint["training_chip_serves"]) - 1e-9, "{joint}");
    assert_eq!(joint["serving_values"], plain["space"]["best_values"]);
    assert!(number(&joint["priced_training"]) <= number(&both["space"]["chips"]), "{joint}");
    // The best two chips on many devices and on eight, compared with the built chips.
    let apart = answer(&format!("--study {study} --train-weight 0 --tpot 20 --pools apart"));
    let (two, cluster) = (&apart["space"]["apart"], &apart["space"]["apart"]["cluster"]);
    assert!(number(&two["two_kinds"]) >= number(&two["one_kind"]), "{two}");
    let many = number(&two["two_kinds"]) * 8.0;
    assert!((many / number(&cluster["tokens_per_s"]) - 1.0 - number(&cluster["below_many"])).abs() < 1e-9, "{two}");
    assert!((number(&best(&apart)["tokens_per_s"]) / number(&cluster["tokens_per_s"]) - 1.0).abs() < 1e-9, "{two}");
    let baselines = apart["baselines"].as_array().unwrap();
    assert_eq!(baselines.len(), 7);
    let old = baselines.iter().find(|built| built["chip"] == "tpu_v5e").unwrap();
    assert_eq!(old["products"], "fp8-weights");
    assert!(old["note"].as_str().unwrap().contains("multiplies no fp8"), "{old}");
}

#[test]
fn what_cannot_be_served_is_refused_with_the_nearest() {
    for (words, parts) in [
        (
            "llama3-70b --chip h100 --devices 8 --tpot 2",
            &["service level", "time per output token", "allowed", "serves from --tpot"][..],
        ),
        ("llama3-70b --chip h100 --devices 1", &["fits the memory of h100", "needs 13", "give --devices 2"]),
        ("llama3-70b --chip h100 --experts fp8", &["--experts fp8", "has no experts", "--products"]),
        ("llama3-70b --chip h100 --prefix-hit half", &["--prefix-hit", "must be a number", "0.5"]),
        ("llama3-70b --chip h100,h100_80gb_sxm", &["--chip h100_80gb_sxm", "named twice"]),
        ("bert-large --chip h100", &["tokens see later ones", "decoder-only"]),
        ("llama3-70b --chip a100 --products fp8", &["products = fp8", "multiply no fp8", "fp8-weights"]),
        ("llama3-70b --chip h100 --engine vlm", &["--engine: vlm", "did you mean `vllm`"]),
        ("llama3-70b --chip h100 --lengths 10y5", &["--lengths 10y5", "INPUTxOUTPUT"]),
        ("llama3-70b --chip h100 --lengths 0x5", &["input = 0", "from 1"]),
        ("llama3-70b --chip h100 --tensor 3", &["tensor-parallel degree is 3", "divisor"]),
        ("llama3-70b --chip h100 --expert 4", &["ep = 4", "experts"]),
        ("llama3-70b --chip h100 --draft 2", &["--accepted"]),
        ("llama3-70b --chip h100 --draft 2 --accepted 3", &["accepted = 3", "from 0 to the 2 drafted"]),
        ("llama3-8b --chip h100 --draft 2 --accepted 1 --pipeline 2", &["pp = 2", "drafts", "give 1"]),
        (
            "llama3-8b --chip h100 --draft 2 --accepted 1 --draft-model opt-350m",
            &["draft_model", "vocabulary of 50272"],
        ),
        ("llama3-8b --chip h100 --prefix-hit 1", &["prefix_hit = 1", "below 1"]),
        ("llama3-8b --chip h100 --prefix-hit 0.5 --prefix-tokens 100", &["prefix_tokens = 100", "at least the 512"]),
        ("llama3-8b --chip h100 --cache-away 0.5", &["--cache-away", "--cache-place host"]),
        ("llama3-8b --chip h100 --nvme 7:960", &["--nvme", "--cache-place nvme"]),
        ("llama3-8b --chip tpu_v4 --cache-place nvme", &["cache_place = nvme", "no storage", "leave cache_place out"]),
        ("llama3-8b --chip h100 --cache-place host --cache-away 2", &["cache_away = 2", "from 0 to 1"]),
        ("llama3-8b --chip h100 --technique galore", &["--technique", "galore", "changes training", "homer"]),
        ("llama3-8b --chip h100 --technique homer,chunk=3.5", &["--technique", "chunk", "whole number"]),
        ("llama3-8b --chip h100 --technique homer,pages=3", &["--technique", "pages"]),
        ("llama3-8b --chip h100 --technique homer --cache-place host", &["--cache-place", "--technique out"]),
        ("llama3-8b --chip h100 --technique memory3", &["technique = memory3", "no storage", "--nvme GB_PER_S:GB"]),
        (
            "llama3-8b --chip h100 --technique memory3,references=1e9 --nvme 6:10",
            &["references = 1000000000", "10.0 GB"],
        ),
        ("llama3-70b --study gpu", &["combinations", "at most"]),
        ("llama3-70b --study serve --train-weight 0.5", &["--train-weight", "[[workload]]"]),
        ("llama3-70b --study serve --pools any --objective per-watt", &["--objective", "tokens per second alone"]),
        ("llama3-8b --chip h100 --objective step-time", &["no step", "throughput"]),
        ("llama3-8b --chip h100 --objective per-wat", &["per-wat", "per-watt"]),
    ] {
        let message = served(words).expect_refusal();
        assert!(parts.iter().all(|part| message.contains(part)), "{words}: {message}");
    }
}

#[test]
fn objectives_rank_deployments_and_a_hot_chip_keeps_to_its_limit() {
    let base = "llama3-8b --chip h100,h200 --devices 2 --tpot 20";
    for objective in ["throughput", "per-mm2", "per-watt", "per-dollar", "energy-per-token"] {
        let answer = answer(&format!("{base} --objective {objective}"));
        let values: Vec<f64> = answer["choices"].as_array().unwrap().iter().map(|one| number(&one["value"])).collect();
        assert!(values.len() > 2 && values.windows(2).all(|pair| pair[0] >= pair[1]), "{objective}: {values:?}");
    }
    // The load is almost only prompts, which fill the arrays. By the model's energies, B200 would exceed its limit of
    // 1,000 W. Its rates were measured under this limit, so the clock is not lowered, and the power counts as 1,000 W.
    let hot = answer("llama3-8b --chip b200 --devices 1 --products fp8 --input 4000 --output 2");
    let pool = &best(&hot)["decode"];
    assert!(number(&pool["clock_mhz"]) == number(&pool["full_clock_mhz"]), "{pool}");
    assert!((number(&pool["device_w"]) / number(&pool["power_limit_w"]) - 1.0).abs() < 1e-9, "{pool}");
}
