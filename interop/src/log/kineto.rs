//! Traces of PyTorch's profiler (Kineto's Chrome trace): kernels of matrix products and attention.
//!
//! The shapes of a row come from the inputs of an operator (`Input Dims`, from `record_shapes=True`). On a GPU, the
//! time of the row is the sum of the kernels that the operator launched. In a trace without kernels, it is the
//! operator's own time. Equal calls make one row with their median time. Operators that are not read make rows of the
//! kernel `unread_operator`, which `validate` and `calibrate` count and name.

use super::{LogContext, chip_of_device, write_rows};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sim::files::FileFault;
use std::collections::{BTreeMap, HashMap};

#[derive(Deserialize)]
struct Trace {
    #[serde(rename = "traceEvents")]
    events: Option<Vec<Value>>,
    #[serde(rename = "deviceProperties", default)]
    devices: Vec<Value>,
}

/// An operator of the host, or a kernel of a device.
#[derive(Deserialize)]
struct TraceEvent {
    #[serde(default)]
    name: String,
    #[serde(default)]
    tid: Value,
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: TraceArguments,
}

#[derive(Default, Deserialize)]
struct TraceArguments {
    #[serde(rename = "External id")]
    external: Option<u64>,
    #[serde(rename = "Input Dims", default)]
    dims: Option<Vec<Value>>,
    #[serde(rename = "Input type", default)]
    types: Option<Vec<String>>,
    #[serde(rename = "Concrete Inputs", default)]
    concrete: Option<Vec<String>>,
}

/// The way in which the inputs of an operator give a kernel's shape. Numbers are places among the inputs.
#[derive(Clone, Copy)]
enum Reading {
    /// A matrix product of two inputs; a batch of products if the matrices have three dimensions.
    Product(usize, usize),
    /// A product with a transposed weight, over all but the last dimension of the first input.
    Linear,
    /// Attention: the places of the query (key and value follow it), of the dropout rate and of the causal flag.
    Attention { query: usize, dropout: usize, causal: usize, backward: bool },
}

/// The operators that are read. Their signatures are those of PyTorch's `native_functions.yaml`.
const OPERATORS: [(&str, Reading); 13] = [
    ("aten::mm", Reading::Product(0, 1)),
    ("aten::bmm", Reading::Product(0, 1)),
    ("aten::addmm", Reading::Product(1, 2)),
    ("aten::baddbmm", Reading::Product(1, 2)),
    ("aten::linear", Reading::Linear),
    ("aten::_scaled_dot_product_flash_attention", attention(0, 3, 4, false)),
    ("aten::_scaled_dot_product_flash_attention_for_cpu", attention(0, 3, 4, false)),
    ("aten::_scaled_dot_product_cudnn_attention", attention(0, 5, 6, false)),
    ("aten::_scaled_dot_product_efficient_attention", attention(0, 5, 6, false)),
    ("aten::_scaled_dot_product_flash_attention_backward", attention(1, 10, 11, true)),
    ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention(1, 6, 7, true)),
    ("aten::_scaled_dot_product_cudnn_attention_backward", attention(1, 13, 14, true)),
    ("aten::_scaled_dot_product_efficient_attention_backward", attention(1, 9, 11, true)),
];

const fn attention(query: usize, dropout: usize, causal: usize, backward: bool) -> Reading {
    Reading::Attention { query, dropout, causal, backward }
}

/// A row of measured kernels without its time. Fields that a kernel lacks are empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
struct KernelShape {
    kernel: String,
    m: Option<u64>,
    n: Option<u64>,
    k: Option<u64>,
    batch: Option<u64>,
    elements: Option<u64>,
    dtype: String,
    heads: Option<u64>,
    kv_heads: Option<u64>,
    head_dim: Option<u64>,
    q_len: Option<u64>,
    kv_len: Option<u64>,
    window: Option<u64>,
}

/// The kernel of operators that are not read.
const UNREAD: &str = "unread_operator";

/// The columns of a row: those of a shape, then the others.
const COLUMNS: &str = "kernel,m,n,k,batch,elements,dtype,heads,kv_heads,head_dim,q_len,kv_len,window,id,dataset,chip,\
    measured_us,spread_pct,timing,source";

/// Returns the rows of a trace as CSV.
pub(super) fn read_trace(text: &str, context: LogContext<'_>) -> Result<Vec<u8>, FileFault> {
    let cure = "give the file of export_chrome_trace (torch.profiler)";
    let trace: Trace = serde_json::from_str(text).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        FileFault::new(place, "JSON", format!("cannot be read as a trace: {error}"), cure)
    })?;
    let Some(events) = trace.events else {
        return Err(FileFault::new("traceEvents", "missing", "a trace of PyTorch's profiler has it", cure));
    };
    let of_kind = |kinds: &[&str]| -> Vec<TraceEvent> {
        let wanted = |event: &&Value| event["cat"].as_str().is_some_and(|kind| kinds.contains(&kind));
        events.iter().filter(wanted).filter_map(|event| serde_json::from_value(event.clone()).ok()).collect()
    };
    let (operators, kernels) = (of_kind(&["cpu_op"]), of_kind(&["kernel"]));
    if operators.is_empty() {
        let limit = "must have operators of the host";
        let cure = "profile with ProfilerActivity.CPU, besides that of the device";
        return Err(FileFault::new("traceEvents", "no `cpu_op`", limit, cure));
    }
    if operators.iter().all(|operator| operator.args.dims.is_none()) {
        let cure = "profile with record_shapes=True";
        return Err(FileFault::new("Input Dims", "none", "operators must have their shapes", cure));
    }
    if kernels.is_empty() && !trace.devices.is_empty() {
        let cure = "profile with ProfilerActivity.CUDA, besides that of the CPU";
        return Err(FileFault::new("traceEvents", "no `kernel`", "must have the device's kernels", cure));
    }
    let device = trace.devices.first().and_then(|device| device["name"].as_str());
    let chip = device.map_or_else(|| context.chip.unwrap_or("cpu").to_owned(), |name| chip_of_device(name, context));
    let clock = if kernels.is_empty() { "operators on the host" } else { "kernels on the device" };
    let source = format!("trace of PyTorch's profiler, {}, {clock}", device.unwrap_or("CPU"));
    let rows = collect_calls(&operators, &kernels).into_iter().enumerate().map(|(at, ((shape, name), mut times))| {
        times.sort_by(f64::total_cmp);
        let quantile = |part: usize| times[(times.len() - 1) * part / 10];
        let (median, spread) = (quantile(5), quantile(9) - quantile(1));
        let spread = if median > 0.0 { spread / median * 100.0 } else { 0.0 };
        let id = format!("{}_{name}_x{}", at + 1, times.len());
        (None, (shape, id, "kineto_trace", &chip, median, spread, "device", format!("{source}, {} calls", times.len())))
    });
    Ok(write_rows(COLUMNS, rows))
}

/// Returns the times of equal calls in microseconds, by shape and operator.
fn collect_calls(operators: &[TraceEvent], kernels: &[TraceEvent]) -> Vec<((KernelShape, String), Vec<f64>)> {
    let parents = parents_of(operators);
    let read: Vec<Option<KernelShape>> = operators.iter().map(read_operator).collect();
    // If a read operator calls another read operator, only the inner one counts.
    let mut wraps = vec![false; operators.len()];
    let mut calls_any = vec![false; operators.len()];
    for at in 0..operators.len() {
        let mut above = parents[at];
        if let Some(parent) = above {
            calls_any[parent] = true;
        }
        while let Some(parent) = above.filter(|_| read[at].is_some()) {
            wraps[parent] = true;
            above = parents[parent];
        }
    }
    let owner = |mut at: usize| {
        while read[at].is_none() || wraps[at] {
            at = parents[at]?;
        }
        Some(at)
    };
    let mut times: BTreeMap<(KernelShape, String), Vec<f64>> = BTreeMap::new();
    // The data type of an unread row has no meaning, but the column needs a valid one.
    let unread = || KernelShape { kernel: UNREAD.to_owned(), dtype: "fp32".to_owned(), ..KernelShape::default() };
    let mut add = |shape: Option<&KernelShape>, name: &str, time: f64| {
        if time > 0.0 {
            times.entry((shape.cloned().unwrap_or_else(unread), name.to_owned())).or_default().push(time);
        }
    };
    if kernels.is_empty() {
        for (at, operator) in operators.iter().enumerate() {
            match &read[at] {
                Some(shape) if !wraps[at] => add(Some(shape), &operator.name, operator.dur),
                // Only innermost operators do work of their own. If an operator around them is read, its time includes
                // theirs.
                None if !calls_any[at] && owner(at).is_none() => add(None, &operator.name, operator.dur),
                _ => {}
            }
        }
    } else {
        let by_id: HashMap<u64, usize> =
            operators.iter().enumerate().filter_map(|(at, operator)| Some((operator.args.external?, at))).collect();
        let mut sums: BTreeMap<usize, f64> = BTreeMap::new();
        for kernel in kernels {
            let launched_by = kernel.args.external.and_then(|id| by_id.get(&id).copied());
            match launched_by.and_then(owner) {
                Some(at) => *sums.entry(at).or_default() += kernel.dur,
                None => {
                    let name = launched_by.map_or(&kernel.name, |at| &operators[at].name);
                    add(None, name, kernel.dur);
                }
            }
        }
        for (at, time) in sums {
            add(read[at].as_ref(), &operators[at].name, time);
        }
    }
    times.into_iter().collect()
}

/// Returns the caller of each operator: the shortest operator on the same thread that spans it.
fn parents_of(operators: &[TraceEvent]) -> Vec<Option<usize>> {
    let mut order: Vec<usize> = (0..operators.len()).collect();
    let key = |at: usize| (&operators[at].ts, &operators[at].dur);
    order.sort_by(|&a, &b| key(a).0.total_cmp(key(b).0).then(key(b).1.total_cmp(key(a).1)));
    let mut parents = vec![None; operators.len()];
    let mut open: HashMap<String, Vec<usize>> = HashMap::new();
    for at in order {
        let stack = open.entry(operators[at].tid.to_string()).or_default();
        while stack.last().is_some_and(|&top| operators[top].ts + operators[top].dur <= operators[at].ts) {
            stack.pop();
        }
        parents[at] = stack.last().copied();
        stack.push(at);
    }
    parents
}

/// Returns the shape of an operator's kernel; `None` if the operator is not read, or if its inputs do not fit the
/// kernel.
fn read_operator(operator: &TraceEvent) -> Option<KernelShape> {
    let (_, reading) = OPERATORS.iter().find(|(name, _)| *name == operator.name)?;
    let dims = operator.args.dims.as_ref()?;
    let shape = |at: usize| -> Option<Vec<u64>> { dims.get(at)?.as_array()?.iter().map(Value::as_u64).collect() };
    let data_type = |at: usize| operator.args.types.as_ref()?.get(at).map(String::as_str);
    let same_type = |a: usize, b: usize| name_type(data_type(a)?).filter(|_| data_type(a) == data_type(b));
    let concrete = |at: usize| operator.args.concrete.as_ref()?.get(at).map(String::as_str);
    let product = |m: u64, n: u64, k: u64, batch: u64, dtype: &str| KernelShape {
        kernel: "gemm".to_owned(),
        m: Some(m),
        n: Some(n),
        k: Some(k),
        batch: Some(batch),
        dtype: dtype.to_owned(),
        ..KernelShape::default()
    };
    match *reading {
        Reading::Product(a, b) => match (&shape(a)?[..], &shape(b)?[..]) {
            ([m, k], [depth, n]) if k == depth => Some(product(*m, *n, *k, 1, same_type(a, b)?)),
            ([batch, m, k], [count, depth, n]) if k == depth && batch == count => {
                Some(product(*m, *n, *k, *batch, same_type(a, b)?))
            }
            _ => None,
        },
        Reading::Linear => match (&shape(0)?[..], &shape(1)?[..]) {
            ([rows @ .., k], [n, depth]) if k == depth => {
                Some(product(rows.iter().product(), *n, *k, 1, same_type(0, 1)?))
            }
            _ => None,
        },
        Reading::Attention { query, dropout, causal, backward } => {
            // Other attention stays unread, because measured data have only causal attention without dropout.
            let rate: f64 = concrete(dropout)?.parse().ok()?;
            if concrete(causal)? != "True" || rate != 0.0 {
                return None;
            }
            let ([batch, heads, q_len, head_dim], [_, kv_heads, kv_len, _]) =
                (shape(query)?.try_into().ok()?, shape(query + 1)?.try_into().ok()?);
            Some(KernelShape {
                kernel: if backward { "attention_backward" } else { "attention_forward" }.to_owned(),
                batch: Some(batch),
                heads: Some(heads),
                kv_heads: Some(kv_heads),
                head_dim: Some(head_dim),
                q_len: Some(q_len),
                kv_len: Some(kv_len),
                window: Some(0),
                dtype: same_type(query, query + 1)?.to_owned(),
                ..KernelShape::default()
            })
        }
    }
}

/// Returns a data type by its name in a trace; `None` if rows cannot have it.
fn name_type(name: &str) -> Option<&'static str> {
    match name {
        "c10::BFloat16" => Some("bf16"),
        "c10::Half" => Some("fp16"),
        "float" => Some("fp32"),
        _ => None,
    }
}
