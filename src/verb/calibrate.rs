//! `coplace calibrate`: a chip's physical scalars fitted to measured kernels, a fabric's to measured collectives, a software stack's to measured runs.

mod fabric;
mod stack;

use crate::answer::{self, Format, Versioned};
use crate::failure::{self, Failure, OrInput, OrUnwritable};
use crate::input;
use results::report::{Align, Table, count, significant};
use results::validate::{Dataset, Measurements, measurements};
use serde::Serialize;
use sim::cost::calibrate::{Fit, fit};
use sim::hardware::{Accelerator, Calibration, ChipDocument, Setting, Template};
use std::path::{Path, PathBuf};

/// Fit a chip's physical scalars to measured kernels, a fabric's to measured collectives, or a software stack's to measured runs
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coplace calibrate a100_80gb_sxm kernels.csv --only host_overhead_us,hbm_achieved_fraction\n  \
    coplace calibrate nvlink3_node our_collectives.csv --out our_node.toml\n  \
    coplace calibrate megatron_core our_runs.csv --out ours.toml\n\n\
    A file of kernels fits a chip, one of collectives a fabric, one of training runs or memory peaks a stack; the columns are those of\n\
    `coplace validate`.\n\
    Fabrics: five collectives of one chip whose column `fabric` names it are enough to start; links keep their nominal bandwidths. As of stacks,\n\
    what the rows do not determine is kept, and said. JSON: {\"format\", \"fabric\", \"data\", \"rows\", \"others\", \"before_pct\", \"after_pct\", \"left_out_pct\",\n\
    \"by_kind_pct\", \"scalars\": as of stacks}.\n\
    Stacks: five runs are enough to start. Scalars move from the stack's own values as far as the runs say; what they do not determine is\n\
    kept, and said. Errors on runs that are left out, one by one and by model, are printed beside. JSON: {\"format\", \"stack\", \"rows\", \"parts\": [{\"quantity\",\n\
    \"rows\", \"before_pct\", \"after_pct\", \"left_out_pct\", \"by_model_pct\", \"scalars\": [{\"key\", \"before\", \"after\", \"range\", \"determined\"}]}]}.\n\n\
    Chips:\n\
    The fit starts from the chip's file and minimises the root mean square, over the kernels, of their mean absolute relative\n\
    errors: no kernel pays for another, and none depends on a shape. Keep rows aside to judge the fit by.\n\
    JSON: {\"chip\", \"data\", \"measurements\", \"other_chips\", \"error_before_pct\", \"error_after_pct\", \"kernels\": [{\"group\", \"n\",\n\
    \"mape_before_pct\", \"mape_after_pct\"}], \"scalars\": [{\"key\", \"fitted\", \"before\", \"after\", \"min\", \"max\"}], \"row_errors\", \"unpredicted\"};\n\
    the keys carry the units; rows that are wrong or not predicted are as in `coplace validate`."
)]
pub struct Arguments {
    /// A built-in chip (coplace list chips), a chip file (.toml) or an LLMCompass device description (.json); for
    /// collectives a fabric (coplace list fabrics, or a .toml), for runs a software stack (coplace list stacks, or a .toml)
    #[arg(value_name = "CHIP|FABRIC|STACK")]
    chip: String,
    /// Measured kernels, collectives or runs (CSV, as for coplace validate)
    #[arg(value_name = "DATA.csv")]
    data: PathBuf,
    /// Fit only these scalars, by key [default: all]
    #[arg(long, value_name = "KEY,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Write the chip, the fabric or the stack with the fitted scalars; its name is the file's
    #[arg(long, value_name = "FILE.toml")]
    out: Option<PathBuf>,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Serialize)]
struct Answer {
    chip: String,
    data: String,
    measurements: usize,
    other_chips: usize,
    error_before_pct: f64,
    error_after_pct: f64,
    kernels: Vec<KernelError>,
    scalars: Vec<Scalar>,
    row_errors: Vec<results::validate::RowError>,
    unpredicted: Vec<results::validate::Unpredicted>,
}

#[derive(Serialize)]
struct KernelError {
    group: String,
    n: usize,
    mape_before_pct: f64,
    mape_after_pct: f64,
}

#[derive(Serialize)]
struct Scalar {
    key: &'static str,
    fitted: bool,
    before: f64,
    after: f64,
    min: f64,
    max: f64,
}

/// Fits and prints; wrong rows are named, the rest is fitted all the same.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    // What cannot be read is said once the chip is known, as of kernels.
    if let Ok(Dataset::TrainingRuns | Dataset::MemoryPeaks) = results::validate::dataset(&arguments.data) {
        return stack::run(arguments);
    }
    if let Ok(Dataset::Collectives) = results::validate::dataset(&arguments.data) {
        return fabric::run(arguments);
    }
    let template = &input::chip(&arguments.chip)?;
    let chip: &Accelerator = &template.accelerator;
    let keys: Vec<&str> = if arguments.only.is_empty() {
        Calibration::PARAMETERS.iter().map(|parameter| parameter.key).collect()
    } else {
        arguments.only.iter().map(String::as_str).collect()
    };
    let data = measurements(&arguments.data, &template.name).or_input()?;
    if data.rows.is_empty() {
        return Err(failure::input(nothing(arguments, &template.name, &data)));
    }
    let fit = fit(chip, &data.rows, &keys).or_input()?;
    let answer = answer(arguments, template, &keys, data, fit);
    if let Some(out) = &arguments.out {
        write(arguments, out, &answer)?;
    }
    answer::give(arguments.format, &Versioned::first(&answer), |_| text(&answer))?;
    named(&answer.row_errors)
}

/// Wrong rows, which were left out of a fit, by name.
fn named(rows: &[results::validate::RowError]) -> Result<(), Failure> {
    let faults: Vec<String> = rows.iter().map(ToString::to_string).collect();
    if faults.is_empty() { Ok(()) } else { Err(failure::input(faults.join("\nerror: "))) }
}

/// The wrong rows of a file, once the rest has been fitted.
fn wrong_rows(file: &Path) -> Result<(), Failure> {
    let report = results::validate::file(file, &results::validate::Options::default()).or_input()?;
    named(&report.row_errors)
}

/// Writes the chip with the fitted scalars.
fn write(arguments: &Arguments, out: &Path, answer: &Answer) -> Result<(), Failure> {
    let document = if arguments.chip.ends_with(".toml") {
        let text = sim::files::text::read(arguments.chip.as_ref()).or_input()?;
        ChipDocument::parse(&text, &arguments.chip)
    } else {
        ChipDocument::template(&arguments.chip)
    };
    let mut document = document.or_input()?;
    let fitted: Vec<&Scalar> = answer.scalars.iter().filter(|scalar| scalar.fitted).collect();
    let mut set = Vec::new();
    for scalar in fitted {
        let key = format!("calibration.{}", scalar.key);
        let value = number(scalar.after).replace(',', "").parse().unwrap_or(scalar.after);
        // A fitted figure says what it was fitted on, in the place of what it had been.
        let origin = format!("calibration.fitted_on.{}", scalar.key);
        let of = format!("{} kernels of {} (coplace calibrate)", answer.measurements, answer.data);
        for (key, value) in [(&key, Setting::Number(value)), (&origin, Setting::Word(of))] {
            document.set(key, &value).map_err(|fault| failure::input(format!("{}: {fault}", arguments.chip)))?;
        }
        set.push(key);
    }
    let what = format!("{}, fitted to {} kernels of {}", answer.chip, answer.measurements, answer.data);
    document.name(&stem(out), &what);
    let source = format!("coplace calibrate: {what}, {:.1} % off on them", answer.error_after_pct);
    results::files::write(out, document.text(&set, &source).or_input()?.as_bytes()).or_unwritable()
}

/// The name of what is written: the file's.
fn stem(out: &Path) -> String {
    out.file_stem().map_or_else(|| "calibrated".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Why a file has nothing to fit to.
fn nothing(arguments: &Arguments, chip: &str, data: &Measurements) -> String {
    let mut why: Vec<String> = data.row_errors.iter().map(ToString::to_string).collect();
    why.push(format!(
        "{}: no row to fit {chip} to: {} rows of other chips, {} wrong, {} of kernels or types that the model does not know; \
         give measured kernels of {chip}",
        arguments.data.display(),
        count(data.other_chips as u64),
        count(data.row_errors.len() as u64),
        count(data.unpredicted.len() as u64)
    ));
    why.join("\nerror: ")
}

fn answer(arguments: &Arguments, template: &Template, keys: &[&str], data: Measurements, fit: Fit) -> Answer {
    let before = &template.accelerator.calibration;
    let kernels = fit.groups.into_iter().map(|group| KernelError {
        group: group.group,
        n: group.count,
        mape_before_pct: group.before * 100.0,
        mape_after_pct: group.after * 100.0,
    });
    let scalars = Calibration::PARAMETERS.iter().map(|parameter| Scalar {
        key: parameter.key,
        fitted: keys.contains(&parameter.key),
        before: (parameter.get)(before),
        after: (parameter.get)(&fit.calibration),
        min: parameter.min,
        max: parameter.max,
    });
    Answer {
        chip: template.name.clone(),
        data: arguments.data.display().to_string(),
        measurements: data.rows.len(),
        other_chips: data.other_chips,
        error_before_pct: fit.before * 100.0,
        error_after_pct: fit.after * 100.0,
        kernels: kernels.collect(),
        scalars: scalars.collect(),
        row_errors: data.row_errors,
        unpredicted: data.unpredicted,
    }
}

fn text(answer: &Answer) -> String {
    let mut text = format!(
        "{}: {} measurements of {}, {} rows of other chips, {} not predicted, {} wrong\n\n",
        answer.data,
        count(answer.measurements as u64),
        answer.chip,
        count(answer.other_chips as u64),
        count(answer.unpredicted.len() as u64),
        count(answer.row_errors.len() as u64)
    );
    let mut errors = Table::new(["kernel", "n", "MAPE % before", "after"]);
    for kernel in &answer.kernels {
        let percent = |value: f64| format!("{value:.2}");
        errors.row([
            kernel.group.clone(),
            count(kernel.n as u64),
            percent(kernel.mape_before_pct),
            percent(kernel.mape_after_pct),
        ]);
    }
    let total = [answer.error_before_pct, answer.error_after_pct].map(|value| format!("{value:.2}"));
    errors.row(["root mean square of the above".into(), String::new(), total[0].clone(), total[1].clone()]);
    text.push_str(&errors.render());
    text.push('\n');
    let mut scalars = Table::new(["scalar", "before", "after", "range", ""]).align(4, Align::Left);
    for s in &answer.scalars {
        let kept = if s.fitted { "" } else { "kept" };
        scalars.row([s.key.to_owned(), number(s.before), number(s.after), format!("{} to {}", s.min, s.max), kept.to_owned()]);
    }
    text.push_str(&scalars.render());
    text.push_str(&format!("\nFor the chip's file:\n\n[calibration]\n{}", toml(answer)));
    text
}

fn number(value: f64) -> String {
    significant(value, 4)
}

/// The scalars that differ from an ideal chip's, as the table of the chip's file; four significant digits are what a fit is worth.
fn toml(answer: &Answer) -> String {
    let ideal = |key: &str| Calibration::parameter(key).map_or(f64::NAN, |parameter| parameter.ideal);
    let named = answer.scalars.iter().filter(|s| s.after != ideal(s.key));
    named.map(|s| format!("{} = {}\n", s.key, number(s.after))).collect()
}
