//! The answer of a sweep as text: in a few lines, or whole.

use super::{SweepAnswer, SweepProcessCounts};
use results::report;
use results::text::{fold_line, format_count, format_significant, quote_shell_word};
use std::path::Path;

/// The number of bounds that a short answer names.
const BOUNDS: usize = 3;

/// How much of the answer is printed.
#[derive(Debug, Clone, Copy)]
pub enum AnswerLength {
    Whole,
    /// A few lines. `again` are the flags with which the same command prints the whole answer.
    Short {
        again: &'static str,
    },
}

/// Returns the whole answer as text.
pub(super) fn whole_answer(answer: &SweepAnswer) -> String {
    let mut text = answer.record.as_ref().map_or_else(|| part_text(answer), |record| report::run_report(record) + "\n");
    text.push_str(&designs_text(answer));
    for (what, count) in sorted_bounds(answer) {
        text.push_str(&format!("  {:>9} take most of their step for {what}\n", format_count(*count)));
    }
    text + &work_text(answer)
}

/// Returns the answer in a few lines.
pub(super) fn short_answer(answer: &SweepAnswer, again: &str) -> String {
    let Some(record) = &answer.record else { return part_text(answer) + &designs_text(answer) + &work_text(answer) };
    let mut text = report::best_design_summary(record) + "\n" + &designs_text(answer);
    let bounds = sorted_bounds(answer);
    let named: Vec<String> =
        bounds.iter().take(BOUNDS).map(|(what, count)| format!("{what} ({})", format_count(**count))).collect();
    if !named.is_empty() {
        text.push_str(&fold_line(&format!("Most of their step is: {}.", named.join("; "))));
    }
    let directory = answer.files.first().and_then(|file| Path::new(file).parent()).unwrap_or(Path::new("."));
    let directory = directory.display().to_string();
    let directory = quote_shell_word(&directory);
    text + &work_text(answer)
        + &fold_line(&format!(
            "Next: coplace explain {directory} (what each step of a dimension brings), sweep.csv there (every design), \
            and this with {again}."
        ))
}

/// Returns the text of a part of a sweep.
fn part_text(answer: &SweepAnswer) -> String {
    format!("Part {} of the sweep is complete; coplace merge puts all parts together.\n", answer.part)
}

/// Returns the numbers of designs by outcome as text.
fn designs_text(answer: &SweepAnswer) -> String {
    let counted =
        answer.outcomes.iter().map(|(fate, count)| format!("{} {}", format_count(*count), fate.replace('_', " ")));
    format!("Chips: {}: {}\n", format_count(answer.designs), counted.collect::<Vec<_>>().join(", "))
}

/// Returns the bounds of designs with their counts, largest first.
fn sorted_bounds(answer: &SweepAnswer) -> Vec<(&String, &u64)> {
    let mut bounds: Vec<(&String, &u64)> = answer.bound_by.iter().collect();
    bounds.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    bounds
}

/// Returns the work of this process, and its files.
fn work_text(answer: &SweepAnswer) -> String {
    let SweepProcessCounts { designs, seconds } = answer.this_run;
    let mut text = String::new();
    if designs > 0 {
        let rate = format_significant(designs as f64 / seconds, 3);
        text.push_str(&format!("This run: {} designs in {seconds:.1} s, {rate} a second\n", format_count(designs)));
    }
    text.push_str(&format!("Written: {}\n", answer.files.join(", ")));
    text
}
