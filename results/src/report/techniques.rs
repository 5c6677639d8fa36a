//! Techniques side by side, as text.

use crate::answer::plan::TechniqueRecord;
use crate::answer::techniques::{TechniqueComparison, TechniqueEffect, TechniqueRow};
use crate::text::{
    ColumnAlign, TextTable, fold_line, format_count, format_fields, format_heading, format_rate, format_significant,
};

/// Marks a value that exceeds the memory.
const MORE: &str = " !";

/// Heads of the columns of the longest sequence and of the largest micro-batch that fit.
const LONGEST: &str = "longest";
const LARGEST: &str = "batch";

/// Returns the whole report of a comparison of techniques.
#[must_use]
pub fn techniques_report(answer: &TechniqueComparison) -> String {
    let gib = |value: f64| format!("{} GiB", format_significant(value, 4));
    let mut text = format_fields(&[
        ("model", answer.model.clone()),
        (
            "chip",
            format!("{} of {}, {} for programs", format_count(answer.devices), answer.chip, gib(answer.capacity_gib)),
        ),
        (
            "host, storage",
            format!("{}, {} per device", gib(answer.host_capacity_gib), gib(answer.storage_capacity_gib)),
        ),
        ("stack", answer.stack.clone()),
        (
            "plan",
            format!(
                "sequences of {} tokens, {} in a micro-batch, {} in a step",
                format_count(answer.sequence_tokens),
                format_count(answer.micro_batch_sequences),
                format_count(answer.global_batch_sequences)
            ),
        ),
    ]);
    text.push_str(&format_heading("Peak of the fullest device by class, GiB; longest sequence, tokens; batch"));
    let rendered = techniques_table(answer).render();
    text.push_str(&rendered);
    if rendered.contains(MORE) {
        text.push_str(
            "!  exceeds the memory: of the device under need, of the host and of storage under their names\n",
        );
    }
    text.push_str(&left_out_text(answer));
    text.push_str(&written_text(answer));
    let refused: Vec<&TechniqueRow> = answer.rows.iter().filter(|row| row.refused.is_some()).collect();
    if !refused.is_empty() {
        text.push_str(&format_heading("Refused"));
        for row in refused {
            text.push_str(&fold_line(&format!("  {}", row.refused.as_deref().unwrap_or_default())));
        }
    }
    let told = answer.rows.iter().filter(|row| is_shown(answer, row)).filter_map(|row| row.result.as_ref());
    let notes: Vec<&String> = told.flat_map(|r| &r.notes).collect();
    if !notes.is_empty() {
        text.push_str(&format_heading("To know"));
        notes.iter().for_each(|note| text.push_str(&fold_line(&format!("  {note}"))));
    }
    if !answer.recompute_best.is_empty() {
        text.push_str(&format_heading("Tensor by tensor"));
        text.push_str("What to keep, recompute and offload of every stage, the fastest that fits:\n");
        text.push_str(&format!("  {}\n", answer.recompute_best));
    }
    text
}

/// True if the table shows a row. Short comparisons show all rows; longer ones leave out techniques that change or save
/// nothing.
fn is_shown(answer: &TechniqueComparison, row: &TechniqueRow) -> bool {
    !(row.changes_nothing || row.saves_nothing) || answer.rows.len() <= ALL_SHOWN
}

/// Comparisons with at most this number of rows show all of them.
const ALL_SHOWN: usize = 8;

/// Names the techniques that the table leaves out, with the reason.
fn left_out_text(answer: &TechniqueComparison) -> String {
    let named = |holds: fn(&TechniqueRow) -> bool| {
        let rows = answer.rows.iter().filter(|row| !is_shown(answer, row) && holds(row));
        rows.map(|row| row.technique.clone()).collect::<Vec<_>>().join(", ")
    };
    let kinds = [
        ("Change nothing here", named(|row| row.changes_nothing)),
        ("Save no memory here and are no faster", named(|row| !row.changes_nothing)),
    ];
    let lines = kinds.into_iter().filter(|(_, names)| !names.is_empty());
    lines.map(|(what, names)| fold_line(&format!("{what}: {names}"))).collect()
}

/// Returns a table of the data written to storage, and of the storage's lifetime. Empty if nothing is written.
fn written_text(answer: &TechniqueComparison) -> String {
    let mut table = TextTable::new(["written to storage", "GB per device and step", "years per PB of endurance (TBW)"]);
    let mut any = false;
    for row in &answer.rows {
        let Some((result, years)) = row.result.as_ref().and_then(|result| Some((result, result.storage_years_per_pb?)))
        else {
            continue;
        };
        any = true;
        table.add_row([
            row.technique.clone(),
            format_significant(result.storage_written_gb, 4),
            format_significant(years, 4),
        ]);
    }
    if any { format!("\n{}", table.render()) } else { String::new() }
}

/// Returns the techniques of a job, one line each. If they multiply the number of steps, a line with the throughput
/// divided by that factor follows. Empty without techniques.
pub(super) fn job_techniques_text(techniques: &[TechniqueRecord], tokens_per_s: Option<f64>) -> Vec<(String, String)> {
    let mut lines: Vec<(String, String)> = Vec::new();
    for technique in techniques {
        let name = if lines.is_empty() { "techniques" } else { "" };
        lines.push((name.to_owned(), format!("{}: {}, {}", technique.technique, technique.gate, technique.source)));
    }
    let multiplier: f64 = techniques.iter().map(|t| t.step_multiplier).product();
    if let Some(raw) = tokens_per_s.filter(|_| multiplier != 1.0) {
        let times = format_significant(multiplier, 4);
        lines.push((
            "as good as".to_owned(),
            format!("{} tokens/s, divided by the factor {times} on the number of steps", format_rate(raw / multiplier)),
        ));
    }
    lines
}

fn techniques_table(answer: &TechniqueComparison) -> TextTable {
    let head = [
        "technique",
        "result",
        "weights",
        "grads",
        "masters",
        "states",
        "gathered",
        "activ.",
        "trans.",
        "logits",
        "other",
        "need",
        "host",
        "NVMe",
        "step s",
        LONGEST,
        LARGEST,
    ];
    let mut table = TextTable::new(head)
        .align_column(1, ColumnAlign::Left)
        .keep_columns(&["result", "activ.", "need", "step s", LONGEST, LARGEST]);
    for row in answer.rows.iter().filter(|row| is_shown(answer, row)) {
        let Some(result) = &row.result else { continue };
        let mut cells = vec![row.technique.clone(), row.gate.clone()];
        cells.extend(effect_cells(answer, result));
        table.add_row(cells);
    }
    table
}

fn effect_cells(answer: &TechniqueComparison, result: &TechniqueEffect) -> Vec<String> {
    let class = |name: &str| result.classes_gib.iter().find(|c| c.class == name).map_or(0.0, |c| c.gib);
    let gib = |value: f64| if value == 0.0 { "-".to_owned() } else { format!("{value:.2}") };
    // Marks the value that exceeds the memory.
    let held = |value: f64, have: f64| format!("{}{}", gib(value), if value > have { MORE } else { "" });
    let other = class("framework") + class("collective buffers") + class("allocator");
    let fits = |value: Option<u64>| value.map_or_else(|| "none".to_owned(), format_count);
    vec![
        gib(class("weights")),
        gib(class("gradients")),
        gib(class("master weights")),
        gib(class("optimizer states")),
        gib(class("gathered weights and gradients")),
        gib(class("activations")),
        gib(class("transients")),
        gib(class("logits")),
        gib(other),
        held(result.need_gib, answer.capacity_gib),
        held(result.host_gib, answer.host_capacity_gib),
        held(result.storage_gib, answer.storage_capacity_gib),
        format_significant(result.step_s, 4),
        fits(result.longest_sequence_tokens),
        fits(result.largest_micro_batch_sequences),
    ]
}
