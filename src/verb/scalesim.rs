//! `coplace scalesim`: reads SCALE-Sim's configuration and topology, and writes its compute report.

use crate::answer::{self, Format};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrUnwritable};
use crate::input;
use crate::written_path::WrittenPath;
use clap::ValueEnum;
use interop::scale_sim::{
    LayerReport, ScaleSimConfig, TopologyKind, TopologyLayer, read_topology, write_compute_report,
};
use results::store::files;
use results::text::{ColumnAlign, TextTable, format_count};
use serde::Serialize;
use sim::hardware::Dataflow;
use std::path::PathBuf;

/// Version of the JSON.
const FORMAT: u32 = 1;

/// The kind of the topology's rows.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ScaleSimInput {
    /// IFMAP and filter sizes, channels, filters, strides
    Conv,
    /// M, N, K
    Gemm,
}

/// Count the cycles of SCALE-Sim's layers on SCALE-Sim's array, as its compute report does
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  coplace scalesim interop/tests/scale_sim/array_8x4.cfg interop/tests/scale_sim/convolutions.csv --report COMPUTE_REPORT.csv\n\n\
    Cycles, utilizations and SRAM accesses are SCALE-Sim's own, exactly, for an array that never waits (InterfaceBandwidth: CALC).\n\
    The report has the columns LayerID, Total Cycles, Stall Cycles, Overall Util %, Mapping Efficiency %, Compute Util %; version 3's\n\
    `Total Cycles (incl. prefetch)`, which adds filling and emptying the SRAMs from DRAM, is not modelled.\n\
    JSON: {\"format\": 1, \"run_name\", \"rows\", \"columns\", \"dataflow\", \"layers\": [{\"name\", \"m\", \"n\", \"k\", \"total_cycles\", \"stall_cycles\",\n\
    \"overall_utilization_percent\", \"mapping_efficiency_percent\", \"compute_utilization_percent\", \"array\": {\"folds\", \"cycles\", ...}}]}"
)]
pub struct ScaleSimArguments {
    /// SCALE-Sim's configuration (.cfg)
    #[arg(value_name = "CONFIG.cfg")]
    config: PathBuf,
    /// SCALE-Sim's topology, convolutions or products
    #[arg(value_name = "TOPOLOGY.csv")]
    topology: PathBuf,
    /// Kind of the topology's rows [default: from its header]
    #[arg(long, value_enum)]
    input: Option<ScaleSimInput>,
    /// Write the compute report
    #[arg(long, value_name = "COMPUTE_REPORT.csv")]
    report: Option<WrittenPath>,
    /// Count as if the array never stalled and skipped nothing, whatever the configuration says
    #[arg(long)]
    stall_free: bool,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Serialize)]
struct ScaleSimAnswer {
    format: u32,
    run_name: String,
    rows: u64,
    columns: u64,
    dataflow: Dataflow,
    layers: Vec<AnswerLayer>,
}

#[derive(Serialize)]
struct AnswerLayer {
    #[serde(flatten)]
    layer: TopologyLayer,
    #[serde(flatten)]
    report: LayerReport,
}

/// Runs the verb: counts, writes the report, and prints.
pub fn run_scalesim(arguments: &ScaleSimArguments, call: &Call) -> Result<(), Failure> {
    let name = arguments.config.display().to_string();
    let config =
        ScaleSimConfig::from_cfg_str(&input::read_text(&arguments.config, "a SCALE-Sim configuration (.cfg)")?, &name)
            .or_input()?;
    if !config.unknown.is_empty() {
        tracing::warn!(
            "{name}: SCALE-Sim has no keys {}; they are passed over, correct their names if they mean anything",
            config.unknown.join(", ")
        );
    }
    if !config.beyond.is_empty() && !arguments.stall_free {
        return Err(failure::file_failure(
            &name,
            format!("{}: stalls, sparsity and layouts are not modelled", config.beyond.join(", ")),
            "turn them off and write InterfaceBandwidth: CALC, or give --stall-free to count an array that never waits",
        ));
    }
    let kind = arguments.input.map(|input| match input {
        ScaleSimInput::Conv => TopologyKind::Convolution,
        ScaleSimInput::Gemm => TopologyKind::Gemm,
    });
    let text = input::read_text(&arguments.topology, "a SCALE-Sim topology (.csv)")?;
    let layers = read_topology(&text, &arguments.topology.display().to_string(), kind).or_input()?;
    let reports: Vec<LayerReport> = layers.iter().map(|layer| config.run_layer(layer)).collect();
    let report = arguments.report.as_ref();
    let written = report
        .map_or(Ok(()), |path| files::write_file(path, write_compute_report(&reports).as_bytes()))
        .or_unwritable();
    let layers = layers.into_iter().zip(reports).map(|(layer, report)| AnswerLayer { layer, report }).collect();
    let answer = ScaleSimAnswer {
        format: FORMAT,
        run_name: config.run_name,
        rows: config.rows,
        columns: config.columns,
        dataflow: config.dataflow,
        layers,
    };
    answer::write_answer_with_files(call, arguments.format, &answer, written, answer_text)
}

fn answer_text(answer: &ScaleSimAnswer) -> String {
    let dataflow = match answer.dataflow {
        Dataflow::OutputStationary => "output stationary",
        Dataflow::WeightStationary => "weight stationary",
        Dataflow::InputStationary => "input stationary",
    };
    let mut text = format!("{}: {} x {} array, {dataflow}\n\n", answer.run_name, answer.rows, answer.columns);
    let header = [
        "layer",
        "M",
        "N",
        "K",
        "cycles",
        "util %",
        "mapped %",
        "compute %",
        "ifmap reads",
        "filter reads",
        "ofmap writes",
    ];
    let mut table = TextTable::new(header).align_column(0, ColumnAlign::Left);
    for AnswerLayer { layer, report } in &answer.layers {
        let percent = |value: f64| format!("{value:.2}");
        table.add_row([
            layer.name.clone(),
            layer.m.to_string(),
            layer.n.to_string(),
            layer.k.to_string(),
            format_count(report.total_cycles),
            percent(report.overall_utilization_percent),
            percent(report.mapping_efficiency_percent),
            percent(report.compute_utilization_percent),
            format_count(report.array.ifmap_reads),
            format_count(report.array.filter_reads),
            format_count(report.array.ofmap_writes_scale_sim),
        ]);
    }
    text.push_str(&table.render());
    let total = answer.layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.report.total_cycles));
    text.push_str(&format!("\n{} layers, {} cycles\n", format_count(answer.layers.len() as u64), format_count(total)));
    text
}
