//! Rows of AIConfigurator, as its version 0.12.0 (Apache 2.0, `pip install aiconfigurator`) wrote them. The files are
//! `best_config_topn.csv` of `aiconfigurator cli default --serving-mode all --save-dir DIR` with
//! `--model-path Qwen/Qwen3-32B --total-gpus 8 --system h100_sxm --backend vllm --isl 1024 --osl 256 --ttft 1000
//! --tpot 30`, and with `--model-path Qwen/Qwen3-30B-A3B --total-gpus 8 --system h200_sxm --backend sglang --isl 2048
//! --osl 512 --ttft 2000 --tpot 20`.
#![allow(clippy::unwrap_used)]

use coplace_interop::aiconfigurator_rows::{chip_of_system, engine_of_backend, read_predicted_rows};

const TOGETHER: &str = include_str!("aiconfigurator/qwen3_32b_h100_vllm_agg.csv");
const APART: &str = include_str!("aiconfigurator/qwen3_32b_h100_vllm_disagg.csv");
const EXPERTS: &str = include_str!("aiconfigurator/qwen3_30b_a3b_h200_sglang_agg.csv");

#[test]
fn rows_are_read_by_their_header() {
    let read = read_predicted_rows(TOGETHER, "agg.csv").unwrap();
    let first = &read.rows[0];
    assert_eq!((read.rows.len(), read.unknown.len()), (4, 0));
    assert_eq!((first.line, first.model.as_str(), first.input, first.output), (2, "Qwen/Qwen3-32B", 1024, 256));
    assert_eq!((first.concurrency, first.devices, first.decode.tensor, first.decode.batch), (128, 4, 4, 128));
    assert_eq!((first.ttft_ms, first.tpot_ms, first.tokens_per_s_per_device), (235.273, 28.728, 1079.232));
    // A user's rate is one over the time per output token.
    assert!(read.rows.iter().all(|row| (row.tokens_per_s_per_user * row.tpot_ms / 1e3 - 1.0).abs() < 1e-3));
    assert!(read.rows.iter().all(|row| row.refused.is_empty() && row.prefill.is_none()));
    assert_eq!(chip_of_system(&first.decode.system), Some("h100_80gb_sxm"));
    assert_eq!((engine_of_backend("trtllm"), engine_of_backend("vllm")), ("tensorrt_llm", "vllm"));
}

#[test]
fn pools_apart_and_experts_are_read() {
    let apart = read_predicted_rows(APART, "disagg.csv").unwrap();
    let (first, prefill) = (&apart.rows[0], apart.rows[0].prefill.as_ref().unwrap());
    assert_eq!((prefill.workers, prefill.tensor, prefill.batch), (4, 1, 1));
    assert_eq!((first.decode.workers, first.decode.tensor, first.decode.batch), (1, 4, 208));
    assert!(first.refused.is_empty() && apart.unknown.is_empty(), "{first:?} {:?}", apart.unknown);
    let experts = read_predicted_rows(EXPERTS, "moe.csv").unwrap();
    assert!(experts.rows.iter().all(|row| row.decode.expert_tensor * row.decode.expert >= 1), "{experts:?}");
}

#[test]
fn lines_are_those_of_the_file_with_every_end_of_line() {
    let blank = TOGETHER.replacen('\n', "\n\n", 1);
    let of =
        |text: &str| read_predicted_rows(text, "a.csv").unwrap().rows.iter().map(|row| row.line).collect::<Vec<_>>();
    assert_eq!((of(TOGETHER), of(&blank)), (vec![2, 3, 4, 5], vec![3, 4, 5, 6]));
    assert_eq!(of(&TOGETHER.replace('\n', "\r\n")), [2, 3, 4, 5]);
    assert_eq!(of(&blank.replace('\n', "\r\n")), [3, 4, 5, 6]);
    assert_eq!(of(&format!("\u{feff}{}", TOGETHER.replace('\n', "\r\n"))), [2, 3, 4, 5]);
}

#[test]
fn counts_that_no_deployment_has_are_refused() {
    let header: Vec<&str> = TOGETHER.lines().next().unwrap().split(',').collect();
    let with = |column: &str, value: &str| {
        let at = header.iter().position(|head| *head == column).unwrap();
        let mut lines: Vec<String> = TOGETHER.lines().map(str::to_owned).collect();
        let mut cells: Vec<&str> = TOGETHER.lines().nth(2).unwrap().split(',').collect();
        cells[at] = value;
        lines[2] = cells.join(",");
        read_predicted_rows(&lines.join("\r\n"), "a.csv").map(|read| read.rows[1].held)
    };
    let refused = |column: &str, value: &str| with(column, value).unwrap_err().to_string();
    let error = refused("concurrency", "0");
    assert!(error.starts_with("a.csv: line 3: concurrency = 0: must be at least 1"), "{error}");
    assert!(refused("bs", "0").contains("bs = 0: must be at least 1"));
    let error = refused("prefix", "-1");
    assert!(error.starts_with("a.csv: line 3: prefix = -1: must be a number of at least 0"), "{error}");
    assert_eq!((with("prefix", "512").unwrap(), with("prefix", "").unwrap()), (512, 0));
}

#[test]
fn what_is_not_understood_is_named() {
    let changed = TOGETHER.replace("encoder_latency", "vision_latency");
    assert_eq!(read_predicted_rows(&changed, "a.csv").unwrap().unknown, ["vision_latency"]);
    // Context parallelism over two devices (`cp` = 2) is not modelled.
    let split = TOGETHER.replacen(",4,4,1,1,1,1,1,tp4", ",4,4,1,1,1,1,2,tp4", 1);
    assert_eq!(read_predicted_rows(&split, "a.csv").unwrap().rows[0].refused, ["cp = 2"]);
    let error = read_predicted_rows(&TOGETHER.replacen(",1024,", ",many,", 1), "a.csv").unwrap_err().to_string();
    assert!(error.starts_with("a.csv: line 2: isl = many: must be a number"), "{error}");
    let error = read_predicted_rows(&TOGETHER.replacen("tpot", "tpot_ms", 1), "a.csv").unwrap_err().to_string();
    assert!(error.contains("tpot = missing: is needed") && error.contains("best_config_topn.csv"), "{error}");
    let header = TOGETHER.lines().next().unwrap();
    assert!(read_predicted_rows(header, "a.csv").unwrap_err().to_string().contains("no rows"));
}
