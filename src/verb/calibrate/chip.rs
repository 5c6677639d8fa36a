//! Fits a chip's scalars to measured kernels.

use super::{Fit, errors, format_number, output_stem, scalars_table};
use crate::answer::{self, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrUnwritable};
use crate::input;
use crate::progress;
use interop::log::LogContext;
use measured::validate::held_out::FittedScalarRange;
use measured::validate::{ChipMeasurements, read_measurements};
use results::text::{TextTable, format_count};
use serde::Serialize;
use sim::cost::calibrate::{ChipFit, DeterminedScalar, fit_scalars};
use sim::files::carried::Files;
use sim::hardware::{ChipDocument, ChipTemplate};
use sim::network::Fabric;
use std::path::Path;
use step::SoftwareStack;

#[derive(Serialize)]
struct CalibratedChipAnswer {
    chip: String,
    data: String,
    measurements: usize,
    other_chips: usize,
    error_before_pct: f64,
    error_after_pct: f64,
    left_out_pct: f64,
    by_kernel_pct: Option<f64>,
    kernels: Vec<KernelError>,
    scalars: Vec<FittedScalarRange>,
    row_errors: Vec<measured::validate::RowError>,
    unpredicted: Vec<measured::validate::UnpredictedRow>,
}

#[derive(Serialize)]
struct KernelError {
    group: String,
    n: usize,
    mape_before_pct: f64,
    mape_after_pct: f64,
}

/// Fits the chip, writes it if a file is asked for, and prints the answer.
pub fn calibrate_chip(arguments: &Fit<'_>, call: &Call) -> Result<(), Failure> {
    let template = &read_chip(arguments, &call.files)?;
    let keys: Vec<&str> = arguments.only.iter().map(String::as_str).collect();
    let context = LogContext { chip: Some(&template.name), ..LogContext::default() };
    let rows = input::read_measured_rows(arguments.data, context)?;
    let data = read_measurements(arguments.data, &rows, &template.accelerator).or_input()?;
    if data.rows.is_empty() {
        return Err(failure::input_failure(nothing_to_fit(arguments, &template.name, &data)));
    }
    let fit = progress::run_with_progress(call, "fitting", || fit_scalars(&template.accelerator, &data.rows, &keys))
        .or_input()?;
    let answer = fit_answer(arguments, &template.name, data, fit);
    if let Some(out) = arguments.out {
        write_chip(arguments, out, &answer)?;
    }
    answer::write_answer(call, arguments.format, &Versioned::with_schema_two(&answer), |_| answer_text(&answer))?;
    super::name_wrong_rows(&answer.row_errors)
}

/// Reads the chip. The error for a fabric or a stack says what that kind is fitted to.
fn read_chip(arguments: &Fit<'_>, files: &Files) -> Result<ChipTemplate, Failure> {
    let name = arguments.chip;
    let is = |names: &[&str]| names.iter().any(|known| sim::names::are_same_name(known, name));
    let stacks = SoftwareStack::built_in_names();
    let other = match () {
        () if is(&Fabric::names()) => "a fabric, which is fitted to collectives",
        () if is(&stacks.iter().map(String::as_str).collect::<Vec<_>>()) => {
            "a software stack, which is fitted to training runs"
        }
        () => return input::read_chip(name, files),
    };
    let data = arguments.data.display();
    Err(failure::input_failure(format!(
        "{name} is {other}; {data} holds kernels: give the chip that they were measured on (coplace list chips)"
    )))
}

/// Writes the chip with the fitted scalars. The source of each scalar becomes the data of the fit.
fn write_chip(arguments: &Fit<'_>, out: &Path, answer: &CalibratedChipAnswer) -> Result<(), Failure> {
    let document = if arguments.chip.ends_with(".toml") {
        let text = sim::files::text::read_text(arguments.chip.as_ref()).or_input()?;
        ChipDocument::parse_chip_file(&text, arguments.chip)
    } else {
        ChipDocument::of_built_in_chip(arguments.chip)
    };
    let mut document = document.or_input()?;
    let of = format!(
        "{} kernels of {} (coplace calibrate), {:.1} % off on held-out rows",
        answer.measurements, answer.data, answer.left_out_pct
    );
    for scalar in answer.scalars.iter().filter(|scalar| scalar.determined) {
        let set = document.set_fitted_scalar(&scalar.key, scalar.after, &of);
        set.map_err(|fault| failure::file_failure(arguments.chip, fault, ""))?;
    }
    let what = format!("{}, fitted to {} kernels of {}", answer.chip, answer.measurements, answer.data);
    document.set_name(&output_stem(out), &what);
    results::store::files::write_file(out, document.to_text(&[], &what).or_input()?.as_bytes()).or_unwritable()
}

/// Returns the reason why a file has no rows to fit to.
fn nothing_to_fit(arguments: &Fit<'_>, chip: &str, data: &ChipMeasurements) -> String {
    let mut why: Vec<String> = data.row_errors.iter().map(ToString::to_string).collect();
    why.push(format!(
        "{}: no row to fit {chip} to: {} rows of other chips, {} wrong, {} of kernels or types that the model does not \
        know; give measured kernels of {chip}",
        arguments.data.display(),
        format_count(data.other_chips as u64),
        format_count(data.row_errors.len() as u64),
        format_count(data.unpredicted.len() as u64)
    ));
    why.join("\nerror: ")
}

fn fit_answer(arguments: &Fit<'_>, chip: &str, data: ChipMeasurements, fit: ChipFit) -> CalibratedChipAnswer {
    let kernels = fit.groups.into_iter().map(|group| KernelError {
        group: group.group,
        n: group.count,
        mape_before_pct: group.before * 100.0,
        mape_after_pct: group.after * 100.0,
    });
    let scalar = |DeterminedScalar { key, before, after, range, determined }: DeterminedScalar| FittedScalarRange {
        key,
        before,
        after,
        range,
        determined,
    };
    CalibratedChipAnswer {
        chip: chip.to_owned(),
        data: arguments.data.display().to_string(),
        measurements: data.rows.len(),
        other_chips: data.other_chips,
        error_before_pct: fit.before * 100.0,
        error_after_pct: fit.after * 100.0,
        left_out_pct: fit.left_out * 100.0,
        by_kernel_pct: fit.by_group.map(|error| error * 100.0),
        kernels: kernels.collect(),
        scalars: fit.scalars.into_iter().map(scalar).collect(),
        row_errors: data.row_errors,
        unpredicted: data.unpredicted,
    }
}

fn answer_text(answer: &CalibratedChipAnswer) -> String {
    let mut text = format!(
        "{}: {} measurements of {}, {} rows of other chips, {} not predicted, {} wrong\n\n",
        answer.data,
        format_count(answer.measurements as u64),
        answer.chip,
        format_count(answer.other_chips as u64),
        format_count(answer.unpredicted.len() as u64),
        format_count(answer.row_errors.len() as u64)
    );
    let mut kernels = TextTable::new(["kernel", "n", "MAPE % before", "after"]);
    for kernel in &answer.kernels {
        let percent = |value: f64| format!("{value:.2}");
        kernels.add_row([
            kernel.group.clone(),
            format_count(kernel.n as u64),
            percent(kernel.mape_before_pct),
            percent(kernel.mape_after_pct),
        ]);
    }
    text.push_str(&kernels.render());
    text.push_str("\nRoot mean square of the kernels' errors, and on held-out rows:\n");
    let row = errors::FitErrorRow {
        first: vec![format_count(answer.measurements as u64)],
        before_pct: answer.error_before_pct,
        after_pct: answer.error_after_pct,
        left_out_pct: answer.left_out_pct,
        by_kind_pct: answer.by_kernel_pct,
    };
    text.push_str(&errors::errors_table(&["rows fitted"], "kernels", &[row]));
    text.push('\n');
    text.push_str(&scalars_table(&answer.scalars));
    text.push_str(&format!(
        "\nFor the chip's file, where each needs its fitted_on (--out writes both):\n{}",
        fitted_toml(answer)
    ));
    text
}

/// Returns the scalars that the rows determine, as tables of the chip's file.
fn fitted_toml(answer: &CalibratedChipAnswer) -> String {
    let mut text = String::new();
    let mut table = "";
    for scalar in answer.scalars.iter().filter(|scalar| scalar.determined) {
        let (of, key) = scalar.key.split_once('.').unwrap_or(("calibration", &scalar.key));
        if of != table {
            text.push_str(&format!("\n[{of}]\n"));
            table = of;
        }
        text.push_str(&format!("{key} = {}\n", format_number(scalar.after)));
    }
    if text.is_empty() { "  nothing: the rows determine no scalar\n".to_owned() } else { text }
}
