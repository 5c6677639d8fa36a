//! `coplace validate`: scores predictions against measurements.

mod claims;
mod hindcast;

use crate::answer::{self, Format};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::input::read_measured_rows;
use crate::progress;
use crate::written_path::WrittenPath;
use interop::log::LogContext;
use measured::evidence::{AloneResiduals, ResidualTable, coverage_by_data_set, coverage_of_ratios};
use measured::validate::{self, FileReport};
use results::store::files;
use results::{figure, report};
use std::path::{Path, PathBuf};
use step::SoftwareStack;

/// Predict every row of measured data, and report the errors
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  coplace validate sim/tests/data/collectives.csv --predictions predictions.csv --plot figures\n\n\
    The columns tell what a file holds: kernels (kernel, measured_us), collectives (collective, measured_us), systolic_cycles\n\
    (dataflow, array_cycles), die_area (component, measured_mm2), training_runs (global_batch, iteration_s), memory_peaks\n\
    (global_batch, peak_gib), finetuning_peaks (technique, quantization, peak), serving (ttft_ms, tpot_ms);\n\
    measured/README.md describes them all. Rows of training_runs and memory_peaks may say their software: framework,\n\
    stack, stack_options; without them it is the usual one of the chip or of the carried data set.\n\
    A file or row that is wrong is named, the rest is still scored, and the exit code is 2. A row that no model covers (an\n\
    unknown chip, kernel or type) is counted and named, and is no error. What rows leave open is listed with what was assumed.\n\
    JSON: {\"format\": 1, \"files\": [{\"file\", \"dataset\", \"rows\", \"ignored_columns\", \"groups\": [{\"group\", \"quantity\", \"n\",\n\
    \"unpredicted\", \"exact\", \"mape_pct\", \"median_pct\", \"bias_pct\", \"worst\": {\"id\", \"measured\",\n\
    \"predicted\", \"error_pct\"}, \"stack\"}],\n\
    \"rankings\": [{\"group\", \"groups\", \"spearman\", \"top1_regret_pct\"}],\n\
    \"out_of_memory\": [{\"group\", \"failed\", \"caught\", \"ran\", \"false_alarms\", \"precision\", \"recall\", \"wrong\"}],\n\
    \"row_errors\": [{\"file\", \"line\", \"id\", \"key\", \"value\", \"limit\", \"cure\"}], \"unpredicted\": [{\"line\", \"id\", \"group\", \"why\"}],\n\
    \"assumed\": [{\"what\", \"rows\"}]}]}; errors are (predicted - measured) / measured in percent."
)]
pub struct ValidateArguments {
    /// CSV files of measured data, logs of nccl-tests, traces of PyTorch's profiler (JSON)
    #[arg(required_unless_present_any = ["techniques", "intervals", "hindcast"], value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Compute the published figures of memory techniques instead (results/reference/techniques.toml), with their
    /// errors
    #[arg(long, conflicts_with_all = ["files", "held_out", "predictions", "plot", "breakdown", "stacks"])]
    techniques: bool,
    /// Search for the best chip under the constraints of each chip that was built (area, process, power, HBM, links,
    /// cluster and a model of its year), and print both side by side; for all chips of search/studies/hindcast, or for
    /// those named
    #[arg(long, value_name = "CHIP", num_args = 0.., value_delimiter = ',', conflicts_with_all =
        ["files", "techniques", "held_out", "intervals", "predictions", "plot", "breakdown", "stacks", "chips"])]
    hindcast: Option<Vec<String>>,
    /// Predict training runs and memory peaks with models, numbers of nodes, chips and stacks held out in turn, each
    /// stack's scalars fitted to the other rows; kernels and collectives with rows, kinds and chips held out
    #[arg(long, conflicts_with_all = ["predictions", "plot", "breakdown", "format"])]
    held_out: bool,
    /// Write the errors of --held-out, row by row (measured/reference/residuals.csv and residuals_alone.csv are made so)
    #[arg(long, value_name = "OUT.csv", requires = "held_out")]
    residuals: Option<WrittenPath>,
    /// Print the coverage and the width of 90 % intervals on held-out rows, and the regret of choosing plans by their
    /// bad end; for the carried errors, or for a table from --residuals
    #[arg(long, value_name = "TABLE.csv", num_args = 0..=1, conflicts_with_all = ["files", "held_out", "predictions", "plot", "breakdown", "format"])]
    intervals: Option<Option<PathBuf>>,
    /// Write id,quantity,measured,predicted,low,high,grade,stack: a line per row and predicted column, with its 90 %
    /// interval, its grade and its software stack; for published claims (system, model, hardware, setting, metric,
    /// value, unit) the claims with predicted,error_pct,why
    #[arg(long, value_name = "OUT.csv")]
    predictions: Option<WrittenPath>,
    /// Draw predicted against measured values into this directory (SVG and PNG), which is created if needed
    #[arg(long, value_name = "DIR")]
    plot: Option<WrittenPath>,
    /// Write id,part,seconds: the parts of every predicted training step
    #[arg(long, value_name = "OUT.csv")]
    breakdown: Option<WrittenPath>,
    /// Take the software stacks (megatron.toml, pytorch_fsdp.toml, ...) from this directory instead of the built-in
    /// ones
    #[arg(long, value_name = "DIR")]
    stacks: Option<PathBuf>,
    /// Take chips (a100_80gb_sxm.toml, ...) from this directory; chips that it lacks are the built-in ones
    #[arg(long, value_name = "DIR")]
    chips: Option<PathBuf>,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Runs the verb: scores every file. Faults are reported at the end; the other rows are still scored.
pub fn run_validate(arguments: &ValidateArguments, call: &Call) -> Result<(), Failure> {
    if arguments.techniques {
        let figures = results::papers::reproduce_figures().or_other()?;
        return answer::write_answer(call, arguments.format, &figures, |figures| report::papers_report(figures));
    }
    if let Some(chips) = &arguments.hindcast {
        return hindcast::run_hindcast(chips, arguments.format, call);
    }
    if let Some(table) = &arguments.intervals {
        return validate_intervals(table.as_deref(), call);
    }
    if !arguments.held_out && claims::validate_claims(arguments, call)? {
        return Ok(());
    }
    let mut faults = Vec::new();
    let mut reports = Vec::new();
    let options = validate_options(arguments)?;
    if arguments.held_out {
        return validate_held_out(arguments, &options, call);
    }
    for path in &arguments.files {
        let predict = || {
            let rows = read_measured_rows(path, LogContext::default())?;
            validate::validate_contents(path, &rows, &options).or_input()
        };
        match progress::run_with_progress(call, "predicting what was measured", predict) {
            Ok(report) => reports.push(report),
            Err(error) => faults.push(error.into_error()),
        }
    }
    if !reports.is_empty() {
        let (names, written) = match write_tables_and_figures(arguments, &reports) {
            Ok(names) => (names, Ok(())),
            Err(failure) => (Vec::new(), Err(failure)),
        };
        let figures = validate::reports_json(&reports);
        answer::write_answer_with_files(call, arguments.format, &figures, written, |_| reports_text(&reports, &names))?;
    }
    for (file, errors) in reports.iter().map(|report| (&report.file, &report.row_errors)) {
        faults.extend(errors.iter().take(NAMED).cloned().map(Into::into));
        if let Some(more) = errors.len().checked_sub(NAMED).filter(|more| *more > 0) {
            faults
                .push(anyhow::anyhow!("{}: {more} more rows are faulty; --format json lists them all", file.display()));
        }
    }
    failure::all_faults(faults)
}

/// Returns the options with the directories of chips and stacks. Fails if one is no directory.
fn validate_options(arguments: &ValidateArguments) -> Result<validate::ValidateOptions, Failure> {
    let chips = || sim::hardware::template_names().into_iter().map(str::to_owned).collect();
    let files = &arguments.files;
    check_directory("--stacks", arguments.stacks.as_deref(), "megatron.toml", SoftwareStack::built_in_names, files)?;
    check_directory("--chips", arguments.chips.as_deref(), "a100_80gb_sxm.toml", chips, files)?;
    Ok(validate::ValidateOptions { stacks: arguments.stacks.clone(), chips: arguments.chips.clone() })
}

/// Fails if a directory has no `.toml` file. Warns if none of its files is used: no file has a name in `known`, and the
/// measured files `measured` name none of them.
fn check_directory(
    flag: &str,
    directory: Option<&Path>,
    like: &str,
    known: impl FnOnce() -> Vec<String>,
    measured: &[PathBuf],
) -> Result<(), Failure> {
    let Some(directory) = directory else { return Ok(()) };
    let refuse = |limit: &str| {
        let cure = format!("give the one whose files are named by what they stand for ({like}, ...)");
        Err(failure::option_failure(flag, directory.display(), limit, cure))
    };
    if !directory.is_dir() {
        return refuse("is not a directory");
    }
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    if names.is_empty() {
        return refuse("has no .toml file");
    }
    let known = known();
    let texts = measured.iter().flat_map(|path| validate::read_measured_file(path));
    let texts: Vec<String> = texts.map(|text| String::from_utf8_lossy(&text).into_owned()).collect();
    let mut cells = texts.iter().flat_map(|text| text.split([',', '\n'])).map(|cell| cell.trim().trim_matches('"'));
    let is_used = names.iter().any(|name| known.contains(name)) || cells.any(|cell| names.iter().any(|n| n == cell));
    if !is_used {
        tracing::warn!(
            "{flag} {}: none of its files ({}) has a built-in name, and no row names one: none is used",
            directory.display(),
            names.join(", ")
        );
    }
    Ok(())
}

/// Prints the errors on held-out rows.
fn validate_held_out(
    arguments: &ValidateArguments,
    options: &validate::ValidateOptions,
    call: &Call,
) -> Result<(), Failure> {
    let (mut residuals, mut few, mut alone, mut served) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for path in &arguments.files {
        if validate::recognise_file(path).or_input()? == validate::Dataset::Serving {
            served.extend(progress::run_with_progress(call, "fitting engines without each model", || {
                validate::held_out::held_out_models(path, options).or_input()
            })?);
            continue;
        }
        let found = progress::run_with_progress(call, "fitting without the held-out rows", || {
            validate::held_out::alone_residuals(path, options)
        });
        if let Some(found) = found.or_input()? {
            alone.extend(found);
            continue;
        }
        few.extend(validate::held_out::fit_from_few(path, options).or_input()?);
        residuals.extend(validate::held_out::run_residuals(path, options).or_input()?);
    }
    if let Some(path) = &arguments.residuals {
        let table = match (residuals.is_empty(), alone.is_empty()) {
            (_, true) => validate::held_out::residuals_csv(&residuals).into_bytes(),
            (true, false) => validate::held_out::alone_csv(&alone).or_other()?,
            (false, false) => {
                let why = "training runs and work that runs alone (kernels, collectives) have separate tables";
                let cure = "give their files in separate calls";
                return Err(failure::option_failure("--residuals", path.display(), why, cure));
            }
        };
        files::write_file(path, &table).or_unwritable()?;
    }
    let mut text = String::new();
    if !alone.is_empty() {
        text.push_str(&report::alone_report(&alone));
    }
    if !served.is_empty() {
        text.push_str(&report::held_out_models_report(&served));
    }
    if !residuals.is_empty() || (alone.is_empty() && served.is_empty()) {
        text.push_str(&format!("{}\n{}", report::held_out_report(&residuals), report::few_runs_report(&few)));
    }
    answer::write_text(call, &text)
}

/// Prints the coverage of intervals.
fn validate_intervals(table: Option<&Path>, call: &Call) -> Result<(), Failure> {
    let runs = |table: &ResidualTable| {
        let ratios = report::ratio_coverage_report(&coverage_of_ratios(table));
        format!("{}\n{ratios}", report::coverage_report(&coverage_by_data_set(table)))
    };
    let alone = |table: &AloneResiduals| report::coverage_of_alone(&table.coverage_by_data_set());
    let Some(path) = table else {
        return answer::write_text(
            call,
            &format!("{}\n{}", runs(ResidualTable::read_carried()), alone(AloneResiduals::read_carried())),
        );
    };
    let text = sim::files::text::read_text(path)
        .map_err(|e| failure::file_failure(path.display(), e, "give a readable table"))?;
    let wrong = |e| failure::file_failure(path.display(), e, "");
    if AloneResiduals::is_table(&text) {
        return answer::write_text(call, &alone(&AloneResiduals::parse_csv(&text).map_err(wrong)?));
    }
    answer::write_text(call, &runs(&ResidualTable::parse_csv(&text).map_err(wrong)?))
}

/// Largest number of faulty rows per file that standard error names.
const NAMED: usize = 5;

/// Writes the requested tables and figures. Returns their paths.
fn write_tables_and_figures(arguments: &ValidateArguments, reports: &[FileReport]) -> Result<Vec<String>, Failure> {
    let mut written = Vec::new();
    if let Some(path) = &arguments.predictions {
        files::write_file(path, &validate::predictions_csv(reports).or_other()?).or_unwritable()?;
        written.push(path.to_path_buf());
    }
    if let Some(path) = &arguments.breakdown {
        files::write_file(path, &validate::breakdown_csv(reports).or_other()?).or_unwritable()?;
        written.push(path.to_path_buf());
    }
    if let Some(directory) = &arguments.plot {
        written.extend(draw_figures(directory, reports)?);
    }
    Ok(written.iter().map(|path| path.display().to_string()).collect())
}

fn reports_text(reports: &[FileReport], written: &[String]) -> String {
    let mut text = reports.iter().map(report::validation_report).collect::<Vec<_>>().join("\n");
    if !written.is_empty() {
        text.push_str(&format!("\nWritten: {}\n", written.join(", ")));
    }
    text
}

/// Draws every quantity of every file. Files with the same name get a number, so that no figure is overwritten.
fn draw_figures(directory: &Path, reports: &[FileReport]) -> Result<Vec<PathBuf>, Failure> {
    std::fs::create_dir_all(directory).map_err(|e| {
        failure::write_failure(
            &e,
            format!("--plot {}: cannot be made: {e}; give a directory you may write to", directory.display()),
        )
    })?;
    let mut written: Vec<PathBuf> = Vec::new();
    for report in reports {
        for (stem, figure) in figure::plots_of_report(report).or_other()? {
            let taken = |stem: &str| written.contains(&directory.join(format!("{stem}.svg")));
            let numbered = (2..).map(|n| format!("{stem}-{n}"));
            let free = std::iter::once(stem.clone()).chain(numbered).find(|stem| !taken(stem)).unwrap_or(stem);
            written.extend(figure.write_files(directory, &free).or_unwritable()?);
        }
    }
    Ok(written)
}
