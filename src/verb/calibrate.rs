//! `coplace calibrate`: fits a chip's physical scalars to measured kernels, a fabric's to measured collectives, or a
//! software stack's to measured runs.

mod chip;
mod errors;
mod fabric;
mod stack;

use crate::answer::Format;
use crate::call::Call;
use crate::failure::{self, Failure, OrInput};
use crate::written_path::WrittenPath;
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
    coplace calibrate megatron_core our_runs.csv --out ours.toml\n\n\
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
    one and by model.\n\
    JSON: {\"format\", \"stack\", \"rows\", \"parts\": [{\"quantity\", \"rows\", \"before_pct\", \"after_pct\", \
    \"left_out_pct\",\n\
    \"by_model_pct\", \"scalars\": [{\"key\", \"before\", \"after\", \"range\", \"determined\"}]}]}.")]
pub struct CalibrateArguments {
    /// A chip: built in (coplace list chips), a chip file (.toml) or an LLMCompass device description (.json). For
    /// collectives a fabric (coplace list fabrics, or a .toml), for runs a software stack (coplace list stacks, or a
    /// .toml)
    #[arg(value_name = "CHIP|FABRIC|STACK")]
    chip: String,
    /// Measured kernels, collectives or runs (CSV, as for coplace validate)
    #[arg(value_name = "DATA.csv")]
    data: PathBuf,
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

/// Runs the verb: fits and prints. Faulty rows are reported; the others are fitted.
pub fn run_calibrate(arguments: &CalibrateArguments, call: &Call) -> Result<(), Failure> {
    // As with kernels, the error of an unreadable file is reported once the chip is known.
    if let Ok(Dataset::TrainingRuns | Dataset::MemoryPeaks) = measured::validate::recognise_file(&arguments.data) {
        return stack::run_calibrate_stack(arguments, call);
    }
    if let Ok(Dataset::Collectives) = measured::validate::recognise_file(&arguments.data) {
        return fabric::run_calibrate_fabric(arguments, call);
    }
    chip::calibrate_chip(arguments, call)
}

/// Reports the faulty rows that a fit left out.
fn name_wrong_rows(rows: &[measured::validate::RowError]) -> Result<(), Failure> {
    failure::all_faults(rows.iter().cloned().map(Into::into).collect())
}

/// Reports the faulty rows of a file after fitting the others.
fn report_wrong_rows(file: &Path) -> Result<(), Failure> {
    let report = measured::validate::validate_file(file, &measured::validate::ValidateOptions::default()).or_input()?;
    name_wrong_rows(&report.row_errors)
}

/// The name for the written file's content: the stem of the path.
fn output_stem(out: &Path) -> String {
    out.file_stem().map_or_else(|| "calibrated".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Scalars before and after the fit, with the ranges that the rows determine.
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
    text.push_str("Ranges: 90 %, with the other scalars fixed. Scalars that the rows do not determine are kept.\n");
    text
}

fn format_number(value: f64) -> String {
    format_significant(value, 4)
}
