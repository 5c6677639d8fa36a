#![allow(clippy::unwrap_used, clippy::panic)]
//! Serving points, as the carried rows have them.

use super::{Dataset, FileReport, ValidateOptions, recognise_file, validate_contents, validate_file};
use std::path::Path;

fn carried() -> FileReport {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/serving.csv");
    assert_eq!(recognise_file(&file).unwrap(), Dataset::Serving);
    validate_file(&file, &ValidateOptions::default()).unwrap()
}

#[test]
fn carried_points_come_out_as_the_readme_says() {
    let report = carried();
    assert!(report.row_errors.is_empty(), "{:?}", report.row_errors);
    // Rows without a load are not predicted, and are named.
    assert!(
        report.unpredicted.iter().all(|row| row.why.contains("the load is not stated")),
        "{:?}",
        report.unpredicted
    );
    assert_eq!((report.rows, report.unpredicted.len()), (656, 7));
    // In the order of the groups: SGLang, TensorRT-LLM and vLLM with Qwen3; Llama on H100, and twice on H200; gpt-oss.
    let pinned = [0.989, 0.992, 0.993, 0.985, 0.985, 0.989, 0.739, 0.890, 0.957];
    assert_eq!(report.rankings.len(), pinned.len());
    for (ranking, pinned) in report.rankings.iter().zip(pinned) {
        assert!(ranking.spearman > pinned - 0.002 && ranking.top1_regret_pct < 1.0, "{ranking:?}, pinned {pinned}");
    }
    // Four points of gpt-oss with 512 in flight on H100 under vLLM are more than twice too long: the engine ran far
    // fewer at once.
    let far =
        |p: &&super::ValuePrediction| p.quantity == "tpot_ms" && p.measured.is_some_and(|m| p.predicted > 2.0 * m);
    let far: Vec<&str> = report.predictions.iter().filter(far).map(|p| p.id.as_str()).collect();
    assert!(far.len() == 4 && far.iter().all(|id| id.contains("_c512_")), "{far:?}");
}

const HEADER: &str = "id,dataset,model,chip,engine,gemm_precision,moe_precision,mode,input_tokens,output_tokens,\
    concurrency,batch,tp,pp,attention_dp,moe_tp,moe_ep,prefill_batch,prefill_workers,prefill_tp,prefill_attention_dp,\
    prefill_moe_ep,decode_batch,decode_workers,decode_tp,decode_attention_dp,decode_moe_ep,ttft_ms,tpot_ms\n";

fn report_of(rows: &[String]) -> FileReport {
    let text = format!("{HEADER}{}", rows.concat());
    validate_contents(Path::new("rows.csv"), text.as_bytes(), &ValidateOptions::default()).unwrap()
}

fn value(report: &FileReport, id: &str, quantity: &str) -> f64 {
    let found = report.predictions.iter().find(|p| p.id == id && p.quantity == quantity);
    found.unwrap_or_else(|| panic!("{id}: {:?} {:?}", report.unpredicted, report.row_errors)).predicted
}

/// Returns a row with prompts and decoding in one pool.
fn together(id: &str, model: &str, chip: &str, format: &str, plan: [u32; 4], concurrency: &str) -> String {
    let [tensor, attention, moe_tensor, expert] = plan;
    let load = format!("together,1024,512,{concurrency},{concurrency}");
    let plan = format!("{tensor},1,{attention},{moe_tensor},{expert}");
    format!("{id},d,{model},{chip},trtllm,{format},{format},{load},{plan},,,,,,,,,,,50,9\n")
}

/// Returns a row with separate pools. Each pool has (workers, tensor-parallel degree).
fn apart(id: &str, prefill: [u32; 2], decode: [u32; 2], concurrency: u32) -> String {
    let run = format!("{id},d,Qwen/Qwen3-32B,h100_80gb_sxm,vllm,fp8,fp8,apart,4096,512,{concurrency},,,,,,");
    let pool = |[workers, tensor]: [u32; 2]| format!("{workers},{tensor},,");
    format!("{run},4,{},256,{},100,10\n", pool(prefill), pool(decode))
}

#[test]
fn pools_apart_are_predicted_from_their_own_workers() {
    let rows = [
        apart("one", [1, 2], [1, 4], 16),
        apart("prefill", [4, 2], [1, 4], 16),
        apart("decode", [1, 2], [4, 4], 16),
        apart("busy", [1, 2], [1, 4], 256),
    ];
    let report = report_of(&rows);
    let first = |id| value(&report, id, "ttft_ms");
    let between = |id| value(&report, id, "tpot_ms");
    // More workers for prompts shorten the queue before them, and fill the decoding ones.
    assert!(first("prefill") < first("one") && between("prefill") >= between("one"));
    // More workers for decoding leave each fewer sequences, and requests come back sooner.
    assert!(between("decode") < between("one") && first("decode") >= first("one"));
    assert!(first("busy") > 3.0 * first("one") && between("busy") >= between("one"));
    // Little's law: 256 requests in flight, divided by the time of one request, give a plausible rate.
    let cycle = (first("busy") + 511.0 * between("busy")) * 1e-3;
    let rate = 256.0 / cycle;
    assert!((1.0..30.0).contains(&rate), "{rate}");
}

#[test]
fn rows_of_other_chips_models_and_formats_are_predicted_or_refused_with_a_reason() {
    let v3 = "deepseek-ai/DeepSeek-V3";
    let rows = [
        together("blackwell", "Qwen/Qwen3-32B", "b200", "nvfp4", [2, 1, 2, 1], "16"),
        together("hopper", "Qwen/Qwen3-32B", "h200", "nvfp4", [2, 1, 2, 1], "16"),
        together("ampere", "Qwen/Qwen3-8B", "a100_80gb_sxm", "fp8", [1, 1, 1, 1], "16"),
        together("experts", v3, "gb200", "fp8_block", [1, 16, 1, 16], "256"),
        together("split", v3, "gb200", "nvfp4", [4, 4, 16, 1], "256"),
        together("int4", "meta-llama/Llama-3.1-70B", "h100_80gb_sxm", "int4_wo", [4, 1, 4, 1], "8"),
        together("tpu", "Qwen/Qwen3-8B", "tpu_v6e", "", [4, 1, 4, 1], "8"),
        together("unknown", "MiniMaxAI/Unknown", "b200", "fp8", [8, 1, 8, 1], "16"),
        together("chip", "Qwen/Qwen3-32B", "b900", "fp8", [8, 1, 8, 1], "16"),
        together("format", "Qwen/Qwen3-32B", "b200", "int3", [8, 1, 8, 1], "16"),
        together("large", v3, "h100_80gb_sxm", "fp8_block", [4, 1, 4, 1], "16"),
        together("idle", "Qwen/Qwen3-32B", "b200", "fp8", [8, 1, 8, 1], ""),
        together("wrong", "Qwen/Qwen3-32B", "b200", "fp8", [8, 1, 8, 1], "x"),
    ];
    let report = report_of(&rows);
    for id in ["blackwell", "hopper", "ampere", "experts", "split", "int4", "tpu"] {
        let (first, between) = (value(&report, id, "ttft_ms"), value(&report, id, "tpot_ms"));
        assert!((5.0..5e3).contains(&first) && (1.0..200.0).contains(&between), "{id}: {first} {between}");
    }
    // Weights of four bits are read as such on both chips.
    assert!(value(&report, "blackwell", "tpot_ms") < value(&report, "hopper", "tpot_ms"));
    let why = |id: &str| {
        let found = report.unpredicted.iter().find(|row| row.id == id);
        found.unwrap_or_else(|| panic!("{id}")).why.clone()
    };
    assert!(why("unknown").contains("config.json"), "{}", why("unknown"));
    assert!(why("chip").contains("b900"), "{}", why("chip"));
    assert!(why("format").contains("gemm_precision = int3: not modelled; labels are"), "{}", why("format"));
    assert!(why("large").contains("GiB"), "{}", why("large"));
    assert!(why("idle").contains("the load is not stated"), "{}", why("idle"));
    let faults: Vec<&str> = report.row_errors.iter().map(|error| error.key.as_str()).collect();
    assert_eq!(faults, ["concurrency"], "{:?}", report.row_errors);
}

#[test]
fn rows_may_state_the_devices_that_share_the_tokens() {
    let header = format!("{},dcp\n", HEADER.trim_end());
    let row = |id: &str, model: &str, tensor: u32, dcp: &str| {
        format!("{},{dcp}\n", together(id, model, "gb200", "fp8_block", [tensor, 1, tensor, 1], "64").trim_end())
    };
    let v3 = "deepseek-ai/DeepSeek-V3";
    let rows = [
        row("unstated", v3, 8, ""),
        row("one", v3, 8, "1"),
        row("eight", v3, 8, "8"),
        row("three", v3, 8, "3"),
        row("heads", "meta-llama/Llama-3.1-70B", 16, "2"),
    ];
    let text = format!("{header}{}", rows.concat());
    let report = validate_contents(Path::new("rows.csv"), text.as_bytes(), &ValidateOptions::default()).unwrap();
    let between = |id| value(&report, id, "tpot_ms");
    assert_eq!(between("unstated"), between("one"));
    assert_ne!(between("eight"), between("one"));
    let why = |id: &str| report.unpredicted.iter().find(|row| row.id == id).unwrap().why.clone();
    assert!(why("three").starts_with("dcp = 3: must divide the 8 of tp 8 devices"), "{}", why("three"));
    assert!(why("heads").starts_with("dcp = 2: tensorrt_llm shares out"), "{}", why("heads"));
}
