//! The data sets: their identifying, required and predicted columns, and the groups of their rows.

use super::ValidateError;
use super::row::MeasuredRow;
use super::target::{TargetColumn, TargetRange};
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::str::SplitWhitespace;

/// The kinds of measured data. `measured/README.md` describes the schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dataset {
    /// Energy of kernels on one chip.
    KernelEnergy,
    /// Kernels on one chip.
    Kernels,
    /// Decoding iterations on one chip.
    DecodePasses,
    /// Collective operations between chips.
    Collectives,
    /// Concurrent kernels, a collective and host copies.
    StreamContention,
    /// Cycle and access counts of a systolic array.
    SystolicCycles,
    /// Die areas.
    DieArea,
    /// Whole training steps.
    TrainingRuns,
    /// Memory peaks of training steps.
    MemoryPeaks,
    /// Memory peaks of fine-tuning, method by method.
    FinetuningPeaks,
    /// Times of deployments that serve.
    Serving,
}

/// The streams, with the columns of their times when they run alone.
pub(super) const STREAMS_ALONE: [(&str, &str); 4] = [
    ("gemm", "gemm_alone_ms"),
    ("collective", "collective_alone_ms"),
    ("h2d", "h2d_alone_ms"),
    ("d2h", "d2h_alone_ms"),
];

const TIME_US: [TargetColumn; 1] = [TargetColumn::new("measured_us", "time", "µs", TargetRange::Positive)];
const ENERGY: [TargetColumn; 1] = [TargetColumn::new("energy_mj", "energy of a call", "mJ", TargetRange::Positive)];
const TIME_MS: [TargetColumn; 1] = [TargetColumn::new("measured_ms", "time", "ms", TargetRange::Positive)];
const AREA_MM2: [TargetColumn; 1] = [TargetColumn::new("measured_mm2", "area", "mm²", TargetRange::NotNegative)];
const SYSTOLIC: [TargetColumn; 6] = [
    TargetColumn::new("array_cycles", "array cycles", "cycles", TargetRange::Positive),
    TargetColumn::new("reported_total_cycles", "reported cycles", "cycles", TargetRange::NotNegative),
    TargetColumn::new("mapping_efficiency_pct", "mapping efficiency", "%", TargetRange::Positive),
    TargetColumn::new("ifmap_sram_reads", "ifmap SRAM reads", "words", TargetRange::Positive),
    TargetColumn::new("filter_sram_reads", "filter SRAM reads", "words", TargetRange::Positive),
    TargetColumn::new("ofmap_sram_writes", "ofmap SRAM writes", "words", TargetRange::Positive),
];
const PEAK: TargetColumn = TargetColumn::new("peak_gib", "peak memory", "GiB", TargetRange::Positive);
const FITS: TargetColumn = TargetColumn::new("fits", "fits", "0 or 1", TargetRange::Flag);
/// The reserved memory of the allocator, for rows whose `peak_gib` counts live tensors.
const RESERVED: TargetColumn =
    TargetColumn::new("peak_reserved_gib", "peak of reserved memory", "GiB", TargetRange::Positive);
const TRAINING: [TargetColumn; 4] =
    [TargetColumn::new("iteration_s", "step time", "s", TargetRange::Positive), PEAK, RESERVED, FITS];
const MEMORY: [TargetColumn; 3] = [PEAK, RESERVED, FITS];

const FINETUNING: [TargetColumn; 2] =
    [TargetColumn::new("peak", "peak memory", "GiB or GB, as `unit` says", TargetRange::Positive), FITS];

const SERVING: [TargetColumn; 2] = [
    TargetColumn::new("ttft_ms", "time to first token", "ms", TargetRange::Positive),
    TargetColumn::new("tpot_ms", "time per output token", "ms", TargetRange::Positive),
];

/// Columns that a prediction of concurrent streams needs.
const STREAMS: [&str; 8] = [
    "id",
    "chip",
    "group_inter",
    "gemm_alone_ms",
    "collective_alone_ms",
    "h2d_alone_ms",
    "d2h_alone_ms",
    "measured_ms",
];

/// Columns that a training run needs. The last one is the time of the step.
const RUN: [&str; 16] = [
    "id",
    "layers",
    "hidden",
    "ffn_hidden",
    "heads",
    "head_dim",
    "vocab",
    "seq",
    "chip",
    "chips",
    "tp",
    "pp",
    "dp",
    "micro_batch",
    "global_batch",
    "iteration_s",
];

impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KernelEnergy => "kernel_energy",
            Self::Kernels => "kernels",
            Self::DecodePasses => "decode_passes",
            Self::Collectives => "collectives",
            Self::StreamContention => "stream_contention",
            Self::SystolicCycles => "systolic_cycles",
            Self::DieArea => "die_area",
            Self::TrainingRuns => "training_runs",
            Self::MemoryPeaks => "memory_peaks",
            Self::FinetuningPeaks => "finetuning_peaks",
            Self::Serving => "serving",
        })
    }
}

impl Dataset {
    /// All data sets. Those with more identifying columns come first.
    pub const ALL: [Self; 11] = [
        Self::KernelEnergy,
        Self::Kernels,
        Self::DecodePasses,
        Self::Collectives,
        Self::StreamContention,
        Self::SystolicCycles,
        Self::DieArea,
        Self::FinetuningPeaks,
        Self::Serving,
        Self::TrainingRuns,
        Self::MemoryPeaks,
    ];

    /// The identifying columns. A file with all of them belongs to the data set.
    #[must_use]
    pub fn identifying_columns(self) -> &'static [&'static str] {
        match self {
            Self::KernelEnergy => &["kernel", "energy_mj"],
            Self::Kernels => &["kernel", "measured_us"],
            Self::DecodePasses => &["batch", "context", "measured_us"],
            Self::Collectives => &["collective", "measured_us"],
            Self::StreamContention => &["gemm_alone_ms", "collective_alone_ms", "measured_ms"],
            Self::SystolicCycles => &["dataflow", "array_cycles"],
            Self::DieArea => &["component", "measured_mm2"],
            Self::TrainingRuns => &["global_batch", "iteration_s"],
            Self::MemoryPeaks => &["global_batch", "peak_gib"],
            Self::FinetuningPeaks => &["technique", "quantization", "peak"],
            Self::Serving => &["ttft_ms", "tpot_ms"],
        }
    }

    /// The columns that a prediction needs.
    #[must_use]
    pub fn required_columns(self) -> &'static [&'static str] {
        match self {
            Self::Kernels => {
                &["id", "chip", "kernel", "m", "n", "k", "batch", "elements", "dtype", "measured_us", "timing"]
            }
            Self::KernelEnergy => &["id", "chip", "kernel", "dtype", "energy_mj", "timing"],
            Self::DecodePasses => &["id", "chip", "model", "dtype", "batch", "context", "measured_us"],
            Self::Collectives => &["id", "chip", "fabric", "collective", "ranks", "nodes", "bytes", "measured_us"],
            Self::StreamContention => &STREAMS,
            Self::SystolicCycles => &["id", "rows", "cols", "dataflow", "m", "n", "k", "array_cycles"],
            Self::DieArea => &["id", "chip", "level", "component", "measured_mm2"],
            Self::TrainingRuns => &RUN,
            Self::MemoryPeaks => RUN.split_last().map_or(&[], |(_, columns)| columns),
            Self::FinetuningPeaks => &[
                "id",
                "source",
                "model",
                "chip",
                "gpus",
                "technique",
                "quantization",
                "micro_batch",
                "seq",
                "peak",
                "unit",
                "instrument",
            ],
            Self::Serving => &["id", "model", "chip", "engine", "mode", "input_tokens", "output_tokens", "concurrency"],
        }
    }

    /// Returns the optional columns, which are read or deliberately ignored.
    fn optional_columns(self) -> SplitWhitespace<'static> {
        let columns = match self {
            Self::Kernels => {
                "dataset library spread_pct source heads kv_heads head_dim q_len kv_len window experts top_k"
            }
            Self::KernelEnergy => {
                "m n k batch elements dataset library measured_us spread_pct source heads kv_heads head_dim q_len \
                kv_len window experts top_k operands power_w sm_clock_mhz limit_w"
            }
            Self::DecodePasses => "dataset library new spread_pct timing source",
            Self::Collectives => "dataset bus_gbytes_per_s algo source",
            Self::StreamContention => {
                "dataset ranks nodes group_intra gemm_m gemm_n gemm_k dtype collective collective_bytes h2d_bytes \
                d2h_bytes std_ms timing source"
            }
            Self::SystolicCycles => "layer source",
            Self::DieArea => "source",
            Self::FinetuningPeaks => "dataset rank recompute offload step_or_total_s tokens_per_s note stack",
            Self::Serving => {
                "dataset engine_version precision gemm_precision moe_precision batch tp pp attention_dp moe_tp \
                moe_ep dcp prefill_batch prefill_workers prefill_tp prefill_attention_dp prefill_moe_tp \
                prefill_moe_ep prefill_dcp decode_batch decode_workers decode_tp decode_attention_dp decode_moe_tp \
                decode_moe_ep decode_dcp measured source"
            }
            Self::TrainingRuns | Self::MemoryPeaks => {
                "dataset model kv_heads gated_mlp attention chips_per_node fabric inter_node_gbytes_per_s_per_chip \
                cp ep experts top_k virtual_stages sequence_parallel allocator zero_stage recompute offload \
                precision optimizer flops_convention tied_embeddings params_b confidence source framework stack \
                stack_options context_method master_copy shared_experts moe_ffn_hidden dense_leading_layers \
                attention_kind q_lora_rank kv_lora_rank qk_rope_head_dim v_head_dim capacity_factor \
                recompute_modules peak_kind peak_scope stage_layers mtp_layers etp"
            }
        };
        columns.split_whitespace()
    }

    /// The predicted columns.
    #[must_use]
    pub fn target_columns(self) -> &'static [TargetColumn] {
        match self {
            Self::Kernels | Self::Collectives | Self::DecodePasses => &TIME_US,
            Self::KernelEnergy => &ENERGY,
            Self::StreamContention => &TIME_MS,
            Self::SystolicCycles => &SYSTOLIC,
            Self::DieArea => &AREA_MM2,
            Self::TrainingRuns => &TRAINING,
            Self::MemoryPeaks => &MEMORY,
            Self::FinetuningPeaks => &FINETUNING,
            Self::Serving => &SERVING,
        }
    }

    /// Returns whether predictions must be exact, because the model derives these counts exactly.
    #[must_use]
    pub fn is_exact(self) -> bool {
        self == Self::SystolicCycles
    }

    pub(super) fn knows_column(self, column: &str) -> bool {
        let targets = self.target_columns().iter().map(|t| t.column);
        let mut columns = self.required_columns().iter().copied().chain(self.optional_columns()).chain(targets);
        columns.any(|known| known == column)
    }

    /// Returns the data set with these columns.
    ///
    /// # Errors
    /// A duplicate column, columns of no data set, a first line of numbers, or missing columns of the data set.
    pub(super) fn recognise_columns(path: &Path, header: &csv::StringRecord) -> Result<Self, ValidateError> {
        let has = |key: &str| header.iter().any(|column| column == key);
        if let Some(column) = header.iter().enumerate().find_map(|(i, c)| header.iter().take(i).find(|d| *d == c)) {
            return Err(ValidateError::DuplicateColumn { file: path.into(), column: column.into() });
        }
        let Some(dataset) = Self::ALL.into_iter().find(|d| d.identifying_columns().iter().all(|key| has(key))) else {
            let known: Vec<String> =
                Self::ALL.iter().map(|d| format!("{d} ({})", d.identifying_columns().join(", "))).collect();
            let headless = !header.is_empty() && header.iter().all(|name| name.parse::<f64>().is_ok());
            if headless {
                let why = "its first line has numbers where the columns' names belong".to_owned();
                return Err(ValidateError::Malformed { file: path.into(), why });
            }
            return Err(ValidateError::Unrecognised {
                file: path.into(),
                found: header.iter().collect::<Vec<_>>().join(", "),
                known: known.join(", "),
            });
        };
        let missing: Vec<&str> = dataset.required_columns().iter().copied().filter(|key| !has(key)).collect();
        if missing.is_empty() {
            Ok(dataset)
        } else {
            Err(ValidateError::MissingColumns { file: path.into(), dataset, missing: missing.join(", ") })
        }
    }

    /// Returns the group of rows that a row competes with; `None` for data sets without competing rows. Training runs
    /// compete if they share model dimensions, sequence length, number of chips, global batch and precision.
    /// Deployments compete if they share model, chip and lengths of requests.
    pub(super) fn ranking_of(self, row: &MeasuredRow<'_>) -> Option<String> {
        let keys: &[&str] = match self {
            Self::TrainingRuns => &["layers", "hidden", "seq", "chips", "global_batch", "precision"],
            Self::Serving => &["model", "chip", "input_tokens", "output_tokens"],
            _ => return None,
        };
        let cells: Vec<&str> = keys.iter().map(|key| row.cell(key).unwrap_or("?")).collect();
        Some(cells.join(" "))
    }

    /// Returns the predicted column by which competing rows are ordered.
    pub(super) fn ranked_column(self) -> &'static str {
        if self == Self::Serving { "tpot_ms" } else { "iteration_s" }
    }

    /// Returns the group of a row in summaries: its origin, its chip, its kernel, and a size class, since small
    /// (launch-bound) sizes behave differently.
    pub(super) fn group_of(self, row: &MeasuredRow<'_>) -> String {
        let cell = |key: &str| row.cell(key).unwrap_or("?");
        // A file with one origin need not name it.
        let origin = row.cell("dataset").map_or_else(String::new, |origin| format!("{origin} "));
        match self {
            Self::Kernels | Self::KernelEnergy => {
                let size = |key: &str| row.optional_count(key).ok().flatten();
                let small = ["m", "n", "k"].iter().filter_map(|key| size(key)).min().is_some_and(|d| d < 1024);
                let class = match (cell("kernel"), small) {
                    ("gemm", true) => " <1024",
                    ("gemm", false) => " >=1024",
                    _ => "",
                };
                let narrow = match cell("dtype") {
                    "fp8" | "int8" | "nvfp4" | "mxfp4" => format!(" {}", cell("dtype")),
                    _ => String::new(),
                };
                let host = if cell("timing") == "host" { " (host)" } else { "" };
                format!("{origin}{} {}{narrow}{class}{host}", cell("chip"), cell("kernel"))
            }
            Self::Collectives => {
                let class = match row.optional_count("bytes").ok().flatten().unwrap_or(0) {
                    bytes if bytes >= 1 << 24 => ">=16MiB",
                    bytes if bytes >= 1 << 12 => ">=4KiB",
                    _ => "<4KiB",
                };
                format!("{origin}{} {} {class}", cell("chip"), cell("collective"))
            }
            Self::DecodePasses => {
                let prompts = if row.cell("new").is_some() { " prompts" } else { "" };
                format!("{origin}{} {}{prompts}", cell("chip"), cell("model"))
            }
            Self::StreamContention => {
                let runs =
                    |(_, column): &&(&str, &str)| row.number(column).ok().flatten().is_some_and(|time| time > 0.0);
                let streams: Vec<&str> = STREAMS_ALONE.iter().filter(runs).map(|(name, _)| *name).collect();
                format!("{origin}{} {}", cell("chip"), streams.join("+"))
            }
            Self::SystolicCycles => cell("dataflow").to_owned(),
            Self::DieArea => format!("{} {}", cell("chip"), cell("level")),
            Self::TrainingRuns => format!("{origin}{}", cell("chip")),
            Self::FinetuningPeaks => format!("{origin}{} {} of {}", cell("model"), cell("gpus"), cell("chip")),
            Self::Serving => {
                let precision = row.cell("gemm_precision").unwrap_or("bf16");
                format!("{origin}{} {} {} {precision}", cell("model"), cell("chip"), cell("engine"))
            }
            Self::MemoryPeaks => {
                // Fixed overheads dominate models below a billion parameters.
                let class = if parameters_of(row).is_some_and(|p| p < 1_000_000_000) { " <1B" } else { " >=1B" };
                format!("{origin}{}{class}", cell("chip"))
            }
        }
    }
}

impl Dataset {
    /// Returns the size class of the row's model; `None` for data sets other than training runs. Training runs are also
    /// scored per class within their group.
    pub(super) fn size_of(self, row: &MeasuredRow<'_>) -> Option<&'static str> {
        const BILLION: u64 = 1_000_000_000;
        let of = |parameters: u64| match parameters / BILLION {
            0 => "<1B",
            1..10 => "1-10B",
            10..100 => "10-100B",
            _ => ">=100B",
        };
        (self == Self::TrainingRuns).then(|| parameters_of(row).map(of)).flatten()
    }
}

/// Returns the number of parameters in the matrices of a row's model, with the embedding; `None` if a dimension is
/// missing.
pub(super) fn parameters_of(row: &MeasuredRow<'_>) -> Option<u64> {
    let of = |key: &str| row.optional_count(key).ok().flatten();
    let (hidden, width) = (of("hidden")?, of("heads")?.saturating_mul(of("head_dim")?));
    let kv = of("kv_heads").unwrap_or(of("heads")?).saturating_mul(of("head_dim")?);
    let matrices = if row.cell("gated_mlp") == Some("1") { 3 } else { 2 };
    let mlp = of("ffn_hidden")?.saturating_mul(matrices).saturating_mul(of("experts").unwrap_or(1));
    let layer = hidden.saturating_mul(width.saturating_add(kv).saturating_mul(2).saturating_add(mlp));
    Some(layer.saturating_mul(of("layers")?).saturating_add(hidden.saturating_mul(of("vocab")?)))
}
