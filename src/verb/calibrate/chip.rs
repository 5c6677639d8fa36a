//! A chip's scalars fitted to measured kernels.

use super::{Arguments, errors, number, scalars, stem};
use crate::answer::{self, Versioned};
use crate::failure::{self, Failure, OrInput, OrUnwritable};
use crate::input;
use crate::progress;
use results::report::{Table, count};
use results::validate::held_out::FittedScalar;
use results::validate::{Measurements, measurements};
use serde::Serialize;
use sim::cost::calibrate::{Determined, Fit, fit};
use sim::hardware::{ChipDocument, Template};
use sim::network::Fabric;
use std::path::Path;
use step::SoftwareStack;

#[derive(Serialize)]
struct Answer {
    chip: String,
    data: String,
    measurements: usize,
    other_chips: usize,
    error_before_pct: f64,
    error_after_pct: f64,
    left_out_pct: f64,
    by_kernel_pct: Option<f64>,
    kernels: Vec<KernelError>,
    scalars: Vec<FittedScalar>,
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

/// Fits, writes and prints.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let template = &chip(arguments)?;
    let keys: Vec<&str> = arguments.only.iter().map(String::as_str).collect();
    let data = measurements(&arguments.data, &template.name).or_input()?;
    if data.rows.is_empty() {
        return Err(failure::input(nothing(arguments, &template.name, &data)));
    }
    let fit = progress::shown("fitting", || fit(&template.accelerator, &data.rows, &keys)).or_input()?;
    let answer = answer(arguments, &template.name, data, fit);
    if let Some(out) = &arguments.out {
        write(arguments, out, &answer)?;
    }
    answer::give(arguments.format, &Versioned::second(&answer), |_| text(&answer))?;
    super::named(&answer.row_errors)
}

/// The chip; a fabric or a stack in its place is named as what it is.
fn chip(arguments: &Arguments) -> Result<Template, Failure> {
    let name = &arguments.chip;
    let is = |names: &[&str]| names.iter().any(|known| sim::names::same(known, name));
    let stacks = SoftwareStack::names();
    let other = match () {
        () if is(&Fabric::names()) => "a fabric, which is fitted to collectives",
        () if is(&stacks.iter().map(String::as_str).collect::<Vec<_>>()) => "a software stack, which is fitted to training runs",
        () => return input::chip(name),
    };
    let data = arguments.data.display();
    Err(failure::input(format!(
        "{name} is {other}; {data} holds kernels: give the chip that they were measured on (coplace list chips)"
    )))
}

/// Writes the chip with the fitted scalars, each with what it was fitted on in the place of what it had been.
fn write(arguments: &Arguments, out: &Path, answer: &Answer) -> Result<(), Failure> {
    let document = if arguments.chip.ends_with(".toml") {
        let text = sim::files::text::read(arguments.chip.as_ref()).or_input()?;
        ChipDocument::parse(&text, &arguments.chip)
    } else {
        ChipDocument::template(&arguments.chip)
    };
    let mut document = document.or_input()?;
    let of = format!(
        "{} kernels of {} (coplace calibrate), {:.1} % off on rows left out",
        answer.measurements, answer.data, answer.left_out_pct
    );
    for scalar in answer.scalars.iter().filter(|scalar| scalar.determined) {
        let set = document.set_fitted(&scalar.key, scalar.after, &of);
        set.map_err(|fault| failure::input(format!("{}: {fault}", arguments.chip)))?;
    }
    let what = format!("{}, fitted to {} kernels of {}", answer.chip, answer.measurements, answer.data);
    document.name(&stem(out), &what);
    results::files::write(out, document.text(&[], &what).or_input()?.as_bytes()).or_unwritable()
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

fn answer(arguments: &Arguments, chip: &str, data: Measurements, fit: Fit) -> Answer {
    let kernels = fit.groups.into_iter().map(|group| KernelError {
        group: group.group,
        n: group.count,
        mape_before_pct: group.before * 100.0,
        mape_after_pct: group.after * 100.0,
    });
    let scalar =
        |Determined { key, before, after, range, determined }: Determined| FittedScalar { key, before, after, range, determined };
    Answer {
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
    let mut kernels = Table::new(["kernel", "n", "MAPE % before", "after"]);
    for kernel in &answer.kernels {
        let percent = |value: f64| format!("{value:.2}");
        kernels.row([
            kernel.group.clone(),
            count(kernel.n as u64),
            percent(kernel.mape_before_pct),
            percent(kernel.mape_after_pct),
        ]);
    }
    text.push_str(&kernels.render());
    text.push_str("\nRoot mean square of the kernels' errors, and on rows that were not fitted:\n");
    let row = errors::Row {
        first: vec![count(answer.measurements as u64)],
        before_pct: answer.error_before_pct,
        after_pct: answer.error_after_pct,
        left_out_pct: answer.left_out_pct,
        by_kind_pct: answer.by_kernel_pct,
    };
    text.push_str(&errors::table(&["rows fitted"], "kernels", &[row]));
    text.push('\n');
    text.push_str(&scalars(&answer.scalars));
    text.push_str(&format!("\nFor the chip's file, where each needs its fitted_on (--out writes both):\n{}", toml(answer)));
    text
}

/// The scalars that the rows determine, as the tables of the chip's file.
fn toml(answer: &Answer) -> String {
    let mut text = String::new();
    let mut table = "";
    for scalar in answer.scalars.iter().filter(|scalar| scalar.determined) {
        let (of, key) = scalar.key.split_once('.').unwrap_or(("calibration", &scalar.key));
        if of != table {
            text.push_str(&format!("\n[{of}]\n"));
            table = of;
        }
        text.push_str(&format!("{key} = {}\n", number(scalar.after)));
    }
    if text.is_empty() { "  nothing: the rows determine no scalar\n".to_owned() } else { text }
}
