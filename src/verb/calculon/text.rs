//! A row in Calculon's format, as text.

use super::record::CalculonAnswer;
use results::report::{memory_text, time_parts_text};
use results::text::{
    ColumnAlign, TextTable, format_count, format_fields, format_heading, format_rate, format_seconds,
    format_significant,
};
use sim::units::Seconds;

/// Returns the unit of one of Calculon's figures, derived from its name.
fn unit_of_figure(name: &str) -> &'static str {
    match name {
        "sample_rate" => "sequences/s",
        name if name.ends_with("_space") => "bytes per device",
        _ => "s",
    }
}

/// Returns the whole report as text.
#[must_use]
pub fn calculon_report(ran: &CalculonAnswer) -> String {
    let mut text = format!(
        "{} under {} on {}: {} devices, {} sequences of {} tokens per step, software {}\n{}\n",
        ran.model,
        ran.execution,
        ran.system,
        format_count(ran.devices),
        format_count(ran.global_batch_sequences),
        format_count(ran.sequence_tokens),
        ran.stack,
        ran.plan
    );
    text.push_str(&format_heading("Step"));
    let fits = ran.why.as_ref().map_or_else(|| "yes".to_owned(), |why| format!("no: {why}"));
    text.push_str(&format_fields(&[
        ("time", format_seconds(Seconds(ran.step_s))),
        ("tokens per second", format_rate(ran.tokens_per_s)),
        ("fits the memory", fits),
    ]));
    text.push_str(&format_heading("Where its time goes"));
    text.push_str(&time_parts_text(ran.step_s, &ran.parts_s));
    text.push_str(&format_heading("Its memory, GiB per device"));
    text.push_str(&memory_text(&ran.stages, Some(ran.capacity_gib), Some(ran.host_capacity_gib)));
    text.push_str(&format_heading("The blocks alone, by Calculon's names"));
    let mut table = TextTable::new(["figure", "value", "unit"]).align_column(2, ColumnAlign::Left);
    for (name, value) in &ran.calculon {
        table.add_row([(*name).to_owned(), format_significant(*value, 5), unit_of_figure(name).to_owned()]);
    }
    text.push_str(&table.render());
    for (title, lines) in [("Assumed", &ran.assumed), ("In the files, not modelled", &ran.not_modelled)] {
        if !lines.is_empty() {
            text.push_str(&format_heading(title));
            lines.iter().for_each(|line| text.push_str(&format!("- {line}\n")));
        }
    }
    text
}
