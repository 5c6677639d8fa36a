//! Logs of nccl-tests and traces of PyTorch's profiler become rows of measured data.
//!
//! - `log/all_reduce_perf.log` has the format of nccl-tests 2.17 (`src/util.cu`) and times of ai-dynamo/aiconfigurator
//!   (`measured/reference/gpu_collectives.csv`).
//! - `log/cpu_trace.json` was recorded with PyTorch 2.15 on a CPU, and trimmed to some operators: two linear layers of
//!   64 to 96 to 64 on 8 x 16 tokens, attention of 4 heads on 2, both with their gradients, and products in fp32.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use coplace_interop::log::{LogContext, rows_of_log};
use std::collections::BTreeMap;
use std::path::Path;

const LOG: &str = include_str!("log/all_reduce_perf.log");
const TRACE: &str = include_str!("log/cpu_trace.json");

type Row = BTreeMap<String, String>;

fn rows(name: &str, text: &str, context: LogContext<'_>) -> Vec<Row> {
    let csv = rows_of_log(Path::new(name), text.as_bytes(), context).unwrap().expect("a log");
    csv::Reader::from_reader(&csv[..]).deserialize().map(Result::unwrap).collect()
}

fn refusal(name: &str, text: &str) -> String {
    rows_of_log(Path::new(name), text.as_bytes(), LogContext::default()).unwrap_err().to_string()
}

fn cells<'a>(row: &'a Row, keys: &str) -> Vec<&'a str> {
    keys.split(',').map(|key| row[key].as_str()).collect()
}

#[test]
fn every_size_of_a_log_is_a_collective_with_its_time_out_of_place() {
    let found = rows("job.log", LOG, LogContext { fabric: Some("nvlink3_node"), ..LogContext::default() });
    assert_eq!(found.len(), 11);
    let keys = "chip,fabric,collective,ranks,nodes,bytes,measured_us,bus_gbytes_per_s,algo";
    assert_eq!(
        cells(&found[6], keys),
        ["a100_80gb_sxm", "nvlink3_node", "all_reduce", "8", "1", "4194304", "77.31", "94.94", "NCCL 2.27.3"]
    );
    // Each row has the line number of its size in the log.
    let csv = rows_of_log(Path::new("job.log"), LOG.as_bytes(), LogContext::default()).unwrap().unwrap();
    let (rows, lines) = (String::from_utf8(csv).unwrap(), LOG.lines());
    for (row, line) in rows.lines().zip(lines).skip(1).filter(|(row, _)| !row.is_empty()) {
        assert!(row.contains(line.split_whitespace().next().unwrap()), "{row} {line}");
    }
}

#[test]
fn hosts_are_nodes_and_an_unknown_device_is_the_chip_that_was_asked_for() {
    let two = LOG.replace("node-a device  0", "node-b device  0").replace("NVIDIA A100-SXM4-80GB", "NVIDIA X900");
    let found = rows("job.log", &two, LogContext { chip: Some("ours"), ..LogContext::default() });
    assert_eq!(cells(&found[0], "chip,ranks,nodes"), ["ours", "8", "2"]);
    let found = rows("job.log", &two, LogContext::default());
    assert_eq!(found[0]["chip"], "NVIDIA X900");
}

/// Logs of older versions do not name the test, and leave out columns that the collective does not have.
#[test]
fn the_name_of_a_file_says_which_test_ran_where_the_log_does_not() {
    let old: String = LOG
        .lines()
        .filter(|line| !line.contains("all_reduce_perf"))
        .map(|line| line.replace("     sum      -1  ", "                 ") + "\n")
        .collect();
    assert_eq!(rows("logs/all_reduce_perf.txt", &old, LogContext::default()).len(), 11);
    let why = refusal("job.log", &old);
    assert!(why.contains("job.log: line 18: test = unknown") && why.contains("all_reduce_perf.log"), "{why}");
}

#[test]
fn a_log_that_contradicts_its_test_is_refused_with_line_limit_and_cure() {
    // The bus bandwidth of an all-gather is half that of an all-reduce.
    let why = refusal("job.log", &LOG.replace("all_reduce_perf", "all_gather_perf"));
    assert!(why.contains("line 19: busbw = 0.04: must be 0.02 GB/s, that of all_gather of 512 B on 8 ranks"), "{why}");
    let one = LOG.replace("NVIDIA A100-SXM4-80GB\n#  Rank  1", "NVIDIA A100-SXM4-80GB\n#  Rank  0");
    assert!(refusal("job.log", &one).contains("Rank = 0: must be rank 1, the next one; a test that was built"));
    let wrong = LOG.replacen("94.94       0 ", "94.94       3 ", 1);
    assert!(refusal("job.log", &wrong).contains("line 25: #wrong = 3: must be 0"));
    let cut = LOG.replacen("   77.31   54.25   94.94       0", "", 1);
    assert!(refusal("job.log", &cut).contains("line 25: columns"), "{}", refusal("job.log", &cut));
    let mixed = LOG.replacen("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB", 1);
    assert!(refusal("job.log", &mixed).contains("device = NVIDIA A100-SXM4-80GB: must be NVIDIA A100-SXM4-40GB"));
    let alone: String = LOG.lines().filter(|line| !line.contains("Rank")).map(|line| format!("{line}\n")).collect();
    assert!(refusal("job.log", &alone).contains("ranks = 0: must be at least 2"));
    let empty: String = LOG.lines().take(18).map(|line| format!("{line}\n")).collect();
    assert!(refusal("job.log", &empty).contains("log = 0 measurements"));
}

#[test]
fn other_texts_are_no_logs() {
    for text in ["id,kernel\n1,gemm\n", "# OSU MPI Bandwidth Test\n# Size  Bandwidth (MB/s)\n1  3.4\n", ""] {
        assert!(rows_of_log(Path::new("x"), text.as_bytes(), LogContext::default()).unwrap().is_none(), "{text}");
    }
    let packed = rows_of_log(Path::new("t.json.gz"), &[0x1f, 0x8b, 8], LogContext::default()).unwrap_err().to_string();
    assert!(packed.contains("t.json.gz: file = compressed by gzip: must be text; unpack it"), "{packed}");
}

#[test]
fn products_and_attention_of_a_trace_are_kernels_with_their_shapes() {
    let found = rows("trace.json", TRACE, LogContext { chip: Some("ours"), ..LogContext::default() });
    let of = |name: &str| -> Vec<Vec<&str>> {
        let named = found.iter().filter(|row| row["id"].contains(name));
        named.map(|row| cells(row, "kernel,batch,m,n,k,dtype")).collect()
    };
    // The first layer multiplies 128 rows of 64 by a weight of 64 x 96 and adds a bias. The enclosing `aten::linear` is
    // not counted again.
    assert_eq!(of("aten::addmm"), [["gemm", "1", "128", "96", "64", "bf16"]]);
    assert!(of("aten::linear").is_empty());
    assert_eq!(of("aten::bmm"), [["gemm", "3", "16", "8", "32", "fp32"]]);
    // The second layer, both layers' gradients, and one product in fp32.
    let [m, n, k] = [[64, 96, 128], [96, 64, 128], [128, 64, 96]].map(|shape| shape.map(|x: u64| x.to_string()));
    for shape in [&m, &n, &k] {
        assert!(of("aten::mm").iter().any(|row| row[2..5] == shape[..]), "{shape:?}");
    }
    let attention = |kernel: &str| {
        let row = found.iter().find(|row| row["kernel"] == kernel).unwrap();
        cells(row, "batch,heads,kv_heads,head_dim,q_len,kv_len,window,dtype,chip")
    };
    for kernel in ["attention_forward", "attention_backward"] {
        assert_eq!(attention(kernel), ["2", "4", "2", "16", "32", "32", "0", "bf16", "ours"]);
    }
    let forward = found.iter().find(|row| row["kernel"] == "attention_forward").unwrap();
    assert_eq!(forward["measured_us"], "118.258");
    assert_eq!(of("aten::gelu_backward"), [["unread_operator", "", "", "", "", "fp32"]]);
    // The row of an operator that is read includes the operators inside it.
    assert!(found.iter().all(|row| !row["id"].contains("aten::copy_")));
}

/// On a device the time of an operator is that of the kernels that it launched, itself or through others.
#[test]
fn kernels_of_a_device_count_for_the_operator_that_launched_them() {
    let operator = |name: &str, id: u32, ts: f64, dur: f64, more: &str| {
        let args = format!(r#"{{"External id":{id}{more}}}"#);
        format!(r#"{{"ph":"X","cat":"cpu_op","name":"{name}","tid":1,"ts":{ts},"dur":{dur},"args":{args}}}"#)
    };
    let kernel = |name: &str, id: u32, dur: f64| {
        let args = format!(r#"{{"External id":{id}}}"#);
        format!(r#"{{"ph":"X","cat":"kernel","name":"{name}","tid":7,"ts":900.0,"dur":{dur},"args":{args}}}"#)
    };
    let product = r#","Input Dims":[[4096,1024],[1024,8192]],"Input type":["c10::BFloat16","c10::BFloat16"]"#;
    let heads = r#","Input Dims":[[1,32,4096,128],[1,8,4096,128],[1,8,4096,128],[],[],[],[]],
        "Input type":["c10::Half","c10::Half","c10::Half","Scalar","Scalar","Scalar",""],
        "Concrete Inputs":["","","","0.","CAUSAL","False",""]"#;
    let flash = "aten::_scaled_dot_product_flash_attention";
    let events = [
        operator("aten::mm", 1, 0.0, 10.0, product),
        operator("aten::mm", 2, 20.0, 10.0, product),
        operator(flash, 3, 40.0, 30.0, &heads.replace("CAUSAL", "True")),
        operator("aten::_flash_attention_forward", 4, 45.0, 20.0, ""),
        operator(flash, 5, 80.0, 10.0, &heads.replace("CAUSAL", "False")),
        kernel("splitKreduce", 1, 2.0),
        kernel("gemm", 1, 100.0),
        kernel("gemm", 2, 104.0),
        kernel("flash_fwd", 4, 300.0),
        kernel("flash_fwd", 5, 500.0),
        kernel("memset", 99, 1.0),
    ]
    .join(",");
    let trace =
        format!(r#"{{"deviceProperties":[{{"id":0,"name":"NVIDIA H100 80GB HBM3"}}],"traceEvents":[{events}]}}"#);
    let found = rows("trace.json", &trace, LogContext { chip: Some("ours"), ..LogContext::default() });
    let times: Vec<Vec<&str>> = found.iter().map(|row| cells(row, "kernel,chip,measured_us")).collect();
    assert_eq!(times.len(), 4, "{times:?}");
    let has = |kernel: &str, us: &str| times.contains(&vec![kernel, "h100_80gb_sxm", us]);
    // Two calls took 102 and 104 us. The median of an even number of calls is the lower of the middle two.
    assert!(has("gemm", "102.0") && has("attention_forward", "300.0"), "{times:?}");
    // Attention that is not causal (500 us) and a kernel that no operator launched (1 us) are unread operators.
    assert!(has("unread_operator", "500.0") && has("unread_operator", "1.0"), "{times:?}");
    let host_only = trace.replace(r#""cat":"kernel""#, r#""cat":"gpu_memset""#);
    assert!(refusal("trace.json", &host_only).contains("no `kernel`: must have the device's kernels"));
}

#[test]
fn a_trace_that_says_too_little_is_refused_with_the_cure() {
    assert!(refusal("a.json", r#"{"a": 1}"#).contains("traceEvents = missing"));
    assert!(refusal("a.json", "{\n\"a\": ").contains("a.json: line 2"));
    assert!(refusal("a.json", r#"{"traceEvents": []}"#).contains("profile with ProfilerActivity.CPU"));
    let shapeless = TRACE.replace("Input Dims", "Dims");
    assert!(
        refusal("a.json", &shapeless).contains("profile with record_shapes=True"),
        "{}",
        refusal("a.json", &shapeless)
    );
}
