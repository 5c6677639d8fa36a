//! `coplace scalesim`: SCALE-Sim's configuration and topology in, its compute report out.

use crate::answer::{self, Format};
use crate::failure::{self, Failure, OrInput, OrUnwritable};
use crate::input;
use clap::ValueEnum;
use results::files;
use results::report::{Align, Table, count};
use serde::Serialize;
use sim::hardware::Dataflow;
use sim::import::scale_sim::{Config, Layer, LayerReport, TopologyKind, compute_report, read_topology};
use std::path::PathBuf;

/// Version of the JSON.
const FORMAT: u32 = 1;

/// What the topology's rows are.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Input {
    /// IFMAP and filter sizes, channels, filters, strides
    Conv,
    /// M, N, K
    Gemm,
}

/// Count the cycles of SCALE-Sim's layers on SCALE-Sim's array, as its compute report does
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  coplace scalesim sim/tests/data/scale_sim/array_8x4.cfg sim/tests/data/scale_sim/convolutions.csv --report COMPUTE_REPORT.csv\n\n\
    Cycles, utilizations and SRAM accesses are SCALE-Sim's own, exactly, for an array that never waits (InterfaceBandwidth: CALC).\n\
    The report has the columns LayerID, Total Cycles, Stall Cycles, Overall Util %, Mapping Efficiency %, Compute Util %; version 3's\n\
    `Total Cycles (incl. prefetch)`, which adds filling and emptying the SRAMs from DRAM, is not modelled.\n\
    JSON: {\"format\": 1, \"run_name\", \"rows\", \"columns\", \"dataflow\", \"layers\": [{\"name\", \"m\", \"n\", \"k\", \"total_cycles\", \"stall_cycles\",\n\
    \"overall_utilization_percent\", \"mapping_efficiency_percent\", \"compute_utilization_percent\", \"array\": {\"folds\", \"cycles\", ...}}]}"
)]
pub struct Arguments {
    /// SCALE-Sim's configuration (.cfg)
    #[arg(value_name = "CONFIG.cfg")]
    config: PathBuf,
    /// SCALE-Sim's topology, convolutions or products
    #[arg(value_name = "TOPOLOGY.csv")]
    topology: PathBuf,
    /// What the topology's rows are [default: as its header says]
    #[arg(long, value_enum)]
    input: Option<Input>,
    /// Write the compute report
    #[arg(long, value_name = "COMPUTE_REPORT.csv")]
    report: Option<PathBuf>,
    /// Count as if the array never waited and skipped nothing, whatever the configuration asks for
    #[arg(long)]
    stall_free: bool,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Serialize)]
struct Answer {
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
    layer: Layer,
    #[serde(flatten)]
    report: LayerReport,
}

/// Counts, prints, writes the report.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let name = arguments.config.display().to_string();
    let config = Config::from_cfg_str(&input::text(&arguments.config, "a SCALE-Sim configuration (.cfg)")?, &name).or_input()?;
    if !config.unknown.is_empty() {
        tracing::warn!(
            "{name}: SCALE-Sim has no keys {}; they are passed over, correct their names if they mean anything",
            config.unknown.join(", ")
        );
    }
    if !config.beyond.is_empty() && !arguments.stall_free {
        return Err(failure::input(format!(
            "{name}: {}: stalls, sparsity and layouts are not modelled; turn them off and write InterfaceBandwidth: CALC, or give \
             --stall-free to count an array that never waits",
            config.beyond.join(", ")
        )));
    }
    let kind = arguments.input.map(|input| match input {
        Input::Conv => TopologyKind::Convolution,
        Input::Gemm => TopologyKind::Gemm,
    });
    let text = input::text(&arguments.topology, "a SCALE-Sim topology (.csv)")?;
    let layers = read_topology(&text, &arguments.topology.display().to_string(), kind).or_input()?;
    let reports: Vec<LayerReport> = layers.iter().map(|layer| config.run(layer)).collect();
    if let Some(path) = &arguments.report {
        files::write(path, compute_report(&reports).as_bytes()).or_unwritable()?;
    }
    let layers = layers.into_iter().zip(reports).map(|(layer, report)| AnswerLayer { layer, report }).collect();
    let answer = Answer {
        format: FORMAT,
        run_name: config.run_name,
        rows: config.rows,
        columns: config.columns,
        dataflow: config.dataflow,
        layers,
    };
    answer::give(arguments.format, &answer, text_of)
}

fn text_of(answer: &Answer) -> String {
    let dataflow = match answer.dataflow {
        Dataflow::OutputStationary => "output stationary",
        Dataflow::WeightStationary => "weight stationary",
        Dataflow::InputStationary => "input stationary",
    };
    let mut text = format!("{}: {} x {} array, {dataflow}\n\n", answer.run_name, answer.rows, answer.columns);
    let header =
        ["layer", "M", "N", "K", "cycles", "util %", "mapped %", "compute %", "ifmap reads", "filter reads", "ofmap writes"];
    let mut table = Table::new(header).align(0, Align::Left);
    for AnswerLayer { layer, report } in &answer.layers {
        let percent = |value: f64| format!("{value:.2}");
        table.row([
            layer.name.clone(),
            layer.m.to_string(),
            layer.n.to_string(),
            layer.k.to_string(),
            count(report.total_cycles),
            percent(report.overall_utilization_percent),
            percent(report.mapping_efficiency_percent),
            percent(report.compute_utilization_percent),
            count(report.array.ifmap_reads),
            count(report.array.filter_reads),
            count(report.array.ofmap_writes_scale_sim),
        ]);
    }
    text.push_str(&table.render());
    let total = answer.layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.report.total_cycles));
    text.push_str(&format!("\n{} layers, {} cycles\n", count(answer.layers.len() as u64), count(total)));
    text
}
