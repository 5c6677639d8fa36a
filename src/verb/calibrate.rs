//! `coplace calibrate`: fits a chip's physical scalars to measured kernels, a fabric's to measured collectives, or a
//! software stack's to measured runs. It also writes the script that measures a machine.

mod chip;
mod errors;
mod fabric;
mod script;
mod stack;

use crate::answer::Format;
use crate::call::Call;
use crate::failure::{self, Failure, OrInput};
use crate::input::read_measured_rows;
use crate::written_path::WrittenPath;
use interop::log::LogContext;
use measured::validate::Dataset;
use measured::validate::held_out::FittedScalarRange;
use results::text::{ColumnAlign, TextTable, format_significant};
use std::path::{Path, PathBuf};

/// Fit a chip's physical scalars to measured kernels, a fabric's to measured collectives, or a software stack's to
/// measured runs
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    coplace calibrate a100_80gb_sxm kernels.csv --only host_overhead_us,hbm_achieved_fraction\n  \
    coplace calibrate nvlink3_node our_collectives.csv --out our_node.toml\n  \
    coplace calibrate megatron_core our_runs.csv --out ours.toml\n  \
    coplace calibrate nvlink4_node all_reduce_perf.log\n  \
    coplace calibrate h100 trace.json\n  \
    coplace calibrate --script measure.py\n\n\
    --script writes a file for PyTorch that measures the machine it runs on in about five minutes: kernels, copies\n\
    beside kernels, steps and peaks. `python3 measure.py --help` has its options.\n\n\
    A log of nccl-tests (its text) is read as collectives, a trace of PyTorch's profiler (JSON, with\n\
    record_shapes=True) as kernels: products and causal attention. Device names such as `NVIDIA H100 80GB HBM3` are\n\
    known; another device is taken as CHIP. Operators and collectives that are not read are counted and named.\n\n\
    A file of kernels fits a chip, one of collectives a fabric, one of training runs or memory peaks a stack.\n\
    The columns are those of `coplace validate`.\n\n\
    Chips: five kernels are enough to start. The scalars are those of [calibration], and of [library] if the\n\
    chip has one. All kernels have the same weight, and no scalar depends on a shape. Scalars that the rows do\n\
    not determine are kept and marked.\n\
    JSON: {\"format\", \"chip\", \"data\", \"measurements\", \"other_chips\", \"error_before_pct\", \
    \"error_after_pct\",\n\
    \"left_out_pct\", \"by_kernel_pct\", \"kernels\": [{\"group\", \"n\", \"mape_before_pct\", \
    \"mape_after_pct\"}],\n\
    \"scalars\": as for stacks, \"row_errors\", \"unpredicted\"}; the keys have the units; faulty and unpredicted \
    rows\n\
    are as in `coplace validate`.\n\n\
    Fabrics: five collectives of one chip whose column `fabric` names the fabric are enough to start. Links keep\n\
    their nominal bandwidths. Scalars that the rows do not determine are kept and marked.\n\
    JSON: {\"format\", \"fabric\", \"data\", \"rows\", \"others\", \"software\", \"before_pct\", \"after_pct\", \
    \"left_out_pct\",\n\
    \"by_kind_pct\", \"scalars\": as for stacks}.\n\n\
    Stacks: five runs are enough to start. Scalars move from the stack's own values only as far as the runs\n\
    determine them; the others are kept and marked. The answer has the errors on runs that are held out, one by\n\
    one and by model. The written stack has these errors too: on the runs' chips and fabrics, they narrow the\n\
    intervals of predictions under it.\n\
    JSON: {\"format\", \"stack\", \"rows\", \"parts\": [{\"quantity\", \"rows\", \"before_pct\", \"after_pct\", \
    \"left_out_pct\",\n\
    \"by_model_pct\", \"scalars\": [{\"key\", \"before\", \"after\", \"range\", \"determined\"}]}]}.")]
pub struct CalibrateArguments {
    /// A chip: built in (coplace list chips), a chip file (.toml) or an LLMCompass device description (.json). For
    /// collectives a fabric (coplace list fabrics, or a .toml), for runs a software stack (coplace list stacks, or a
    /// .toml)
    #[arg(value_name = "CHIP|FABRIC|STACK", required_unless_present = "script")]
    chip: Option<String>,
    /// Measured kernels, collectives or runs (CSV, as for coplace validate), a log of nccl-tests, or a trace of
    /// PyTorch's profiler
    #[arg(value_name = "DATA.csv", required_unless_present = "script")]
    data: Option<PathBuf>,
    /// Write the file for PyTorch that measures a machine, and fit nothing
    #[arg(long, value_name = "FILE.py", conflicts_with_all = ["chip", "data", "only", "out"])]
    script: Option<PathBuf>,
    /// Fit only these scalars of a chip, by key [default: all]
    #[arg(long, value_name = "KEY,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Write the chip, the fabric or the stack with the fitted scalars; the file's name becomes its name
    #[arg(long, value_name = "FILE.toml")]
    out: Option<WrittenPath>,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// The request of a fit: what is fitted, to which data, and the output.
struct Fit<'a> {
    /// The chip, fabric or stack, by name or path.
    chip: &'a str,
    /// The file of measured data.
    data: &'a Path,
    /// The keys of the chip's scalars to fit; all if empty.
    only: &'a [String],
    /// The file to write; `None` to write none.
    out: Option<&'a Path>,
    /// The format of the answer.
    format: Format,
}

/// Runs the verb: fits and prints. Faulty rows are reported; the fit uses the other rows.
pub fn run_calibrate(arguments: &CalibrateArguments, call: &Call) -> Result<(), Failure> {
    if let Some(script) = &arguments.script {
        return script::write_script(script, arguments.format, call);
    }
    let (Some(chip), Some(data)) = (&arguments.chip, &arguments.data) else {
        return Err(failure::input_failure("calibrate: give what is fitted and the file of measured data"));
    };
    let (only, out, format) = (&arguments.only[..], arguments.out.as_deref(), arguments.format);
    let fit = Fit { chip, data, only, out, format };
    let text = measured::validate::read_measured_file(data).or_input()?;
    // The kind of a log does not depend on the chip or the fabric, even if the log leaves them open.
    let log = interop::log::rows_of_log(data, &text, LogContext::default()).or_input()?;
    match measured::validate::recognise_contents(data, log.as_ref().unwrap_or(&text)).or_input()? {
        Dataset::TrainingRuns | Dataset::MemoryPeaks => stack::run_calibrate_stack(&fit, call),
        Dataset::Collectives => fabric::run_calibrate_fabric(&fit, call),
        _ => chip::calibrate_chip(&fit, call),
    }
}

/// Fails with the faulty rows that a fit left out; `Ok` if there are none.
fn name_wrong_rows(rows: &[measured::validate::RowError]) -> Result<(), Failure> {
    failure::all_faults(rows.iter().cloned().map(Into::into).collect())
}

/// Reports the faulty rows of a file. It is called after the fit to the other rows.
fn report_wrong_rows(file: &Path, context: LogContext<'_>) -> Result<(), Failure> {
    let text = read_measured_rows(file, context)?;
    let options = measured::validate::ValidateOptions::default();
    let report = measured::validate::validate_contents(file, &text, &options).or_input()?;
    name_wrong_rows(&report.row_errors)
}

/// Returns the name of the written chip, fabric or stack: the stem of the path.
fn output_stem(out: &Path) -> String {
    out.file_stem().map_or_else(|| "calibrated".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Returns a table of the scalars before and after the fit, with their 90 % ranges.
fn scalars_table<'a>(fitted: impl IntoIterator<Item = &'a FittedScalarRange>) -> String {
    let heads = ["scalar", "before", "after", "90 % range", "fitted"];
    let mut table =
        TextTable::new(heads).keep_columns(&["after", "90 % range", "fitted"]).align_column(4, ColumnAlign::Left);
    for scalar in fitted {
        table.add_row([
            scalar.key.clone(),
            format_number(scalar.before),
            format_number(scalar.after),
            format!("{} to {}", format_number(scalar.range.0), format_number(scalar.range.1)),
            (if scalar.determined { "yes" } else { "kept" }).to_owned(),
        ]);
    }
    let mut text = table.render();
    text.push_str(
        "Ranges: 90 %; other scalars may share the errors. Scalars that the rows do not determine are kept.\n",
    );
    text
}

fn format_number(value: f64) -> String {
    format_significant(value, 4)
}
