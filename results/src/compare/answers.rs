//! Compares kept answers of `evaluate` and `plan`: chips, clusters or plans under one model of a step.

use crate::answer::comparison::{Comparison, ComparisonEntry};
use crate::answer::plan::one_line;
use crate::page::PageSubject;
use crate::run::conversion::{describe_chip, entry_of_chip};
use crate::text::format_count;
use search::design::Aim;
use sim::hardware::Accelerator;

/// An answer with its name for the reader.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptAnswer {
    /// The name of its file, without the extension.
    pub label: String,
    /// The content of the answer.
    pub subject: PageSubject,
    /// The chip of the answer; `None` if its file is no longer known.
    pub chip: Option<Box<Accelerator>>,
}

/// Compares the answers, each with the first. Entries of known chips have power, and area and cost if the die is known.
#[must_use]
pub fn compare_answers(answers: &[KeptAnswer]) -> Comparison {
    let difference = |answer: &KeptAnswer| {
        let words = describe_difference(&answers.first()?.subject, &answer.subject)?;
        Some(format!("{} {words}.", answer.label))
    };
    Comparison {
        differences: answers.iter().filter_map(difference).collect(),
        entries: answers.iter().map(answer_entry).collect(),
        ..Comparison::default()
    }
    .with_lead_intervals()
}

fn answer_entry(answer: &KeptAnswer) -> ComparisonEntry {
    let subject = &answer.subject;
    let (name, devices) = (&subject.names.chip, format_count(subject.devices));
    let mut entry = ComparisonEntry::without_design(&answer.label);
    let chip = answer.chip.as_deref();
    let words = chip.map_or_else(|| name.clone(), describe_chip);
    entry.chip = format!("{devices} x {words}; {}, {}", subject.names.fabric, subject.names.stack);
    entry = chip.into_iter().fold(entry, entry_of_chip);
    let Some(found) = &subject.found else { return ComparisonEntry { note: subject.why.clone(), ..entry } };
    let plan = &found.plan;
    entry = entry.with_evidence(&subject.names.stack, plan.evidence.as_ref());
    entry.fabric = Some(subject.names.fabric.clone());
    entry.plan = Some(one_line(&plan.plan));
    entry.throughput_sequences_per_s = Some(subject.global_batch as f64 / plan.step_s);
    entry.throughput_tokens_per_s = Some(plan.tokens_per_s);
    entry.step_time_s = Some(plan.step_s);
    entry.mfu = Some(plan.mfu);
    entry.energy_per_step_j = Some(plan.energy_j);
    entry.peak_memory_gib = Some(plan.peak_gib);
    entry.bound_by = found.shares.first().map(|share| share.name.clone());
    entry.with_objective(&Aim::default(), f64::from(u32::try_from(subject.devices).unwrap_or(u32::MAX)))
}

/// Describes the difference between the work of two answers; `None` if it is the same. Chip, fabric, software and plan
/// may differ, because they are compared.
fn describe_difference(first: &PageSubject, other: &PageSubject) -> Option<String> {
    let mut parts = Vec::new();
    if (&first.names.model, first.sequence_tokens) != (&other.names.model, other.sequence_tokens) {
        parts.push(format!(
            "model {} with {} tokens per sequence",
            other.names.model,
            format_count(other.sequence_tokens)
        ));
    }
    if first.devices != other.devices {
        parts.push(format!("{} devices", format_count(other.devices)));
    }
    if first.global_batch != other.global_batch {
        parts.push(format!("{} sequences per step", format_count(other.global_batch)));
    }
    (!parts.is_empty()).then(|| format!("differs from the first: {}", parts.join(", ")))
}
