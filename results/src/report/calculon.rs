//! A row of Calculon's format as text.

use super::planned::{memory, parts};
use super::{Align, Table, count, fields, heading, rate, seconds, significant};
use crate::calculon::Ran;
use sim::units::Seconds;

/// The unit of one of Calculon's figures, which its name tells.
fn unit(name: &str) -> &'static str {
    match name {
        "sample_rate" => "sequences/s",
        name if name.ends_with("_space") => "bytes per device",
        _ => "s",
    }
}

/// The whole report.
#[must_use]
pub fn calculon(ran: &Ran) -> String {
    let mut text = format!(
        "{} under {} on {}: {} devices, {} sequences of {} tokens per step, software {}\n{}\n",
        ran.model,
        ran.execution,
        ran.system,
        count(ran.devices),
        count(ran.global_batch_sequences),
        count(ran.sequence_tokens),
        ran.stack,
        ran.plan
    );
    text.push_str(&heading("Step"));
    let fits = ran.why.as_ref().map_or_else(|| "yes".to_owned(), |why| format!("no: {why}"));
    text.push_str(&fields(&[
        ("time", seconds(Seconds(ran.step_s))),
        ("tokens per second", rate(ran.tokens_per_s)),
        ("fits the memory", fits),
    ]));
    text.push_str(&heading("Where its time goes"));
    text.push_str(&parts(ran.step_s, &ran.parts_s));
    text.push_str(&heading("Its memory, GiB per device"));
    text.push_str(&memory(&ran.stages, Some(ran.capacity_gib), Some(ran.host_capacity_gib)));
    text.push_str(&heading("The blocks alone, by Calculon's names"));
    let mut table = Table::new(["figure", "value", "unit"]).align(2, Align::Left);
    for (name, value) in &ran.calculon {
        table.row([(*name).to_owned(), significant(*value, 5), unit(name).to_owned()]);
    }
    text.push_str(&table.render());
    for (title, lines) in [("Assumed", &ran.assumed), ("In the files, not modelled", &ran.not_modelled)] {
        if !lines.is_empty() {
            text.push_str(&heading(title));
            lines.iter().for_each(|line| text.push_str(&format!("- {line}\n")));
        }
    }
    text
}
