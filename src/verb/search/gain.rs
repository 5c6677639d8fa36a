//! Splits the lead of the best design over the reference chip as it is sold into causes: one change after another, each
//! under its best plan.

use super::baselines::{Baseline, FoundDesign, own_efficiency, planned_entry, sold_with};
use super::prepare_job;
use super::question::SearchQuestion;
use crate::failure::Failure;
use results::answer::comparison::{BaselineChip, BaselineStanding, ComparisonEntry, GainCause, GainSplit};
use search::objective::Objective;
use search::space::ChipLimits;
use sim::hardware::Accelerator;

/// Splits the gain of the first entry over the reference as it is sold; `None` if the reference is not sold, or if one
/// of the two has no plan.
pub fn split_gain(
    question: &SearchQuestion,
    design: FoundDesign<'_>,
    entries: &[ComparisonEntry],
) -> Result<Option<GainSplit>, Failure> {
    let (reference, best) = (&question.reference, design.chip);
    let as_sold = BaselineChip { chip: reference.name.clone(), standing: BaselineStanding::AsSold };
    let Some(other) = entries.iter().find(|entry| entry.baseline.as_ref() == Some(&as_sold)) else { return Ok(None) };
    let Ok((own_fabric, _)) = sold_with(question, reference) else { return Ok(None) };
    let (Some(first), Some(sold), Some(found)) = (entries.first(), other.throughput_tokens_per_s, best_rate(entries))
    else {
        return Ok(None);
    };
    let space = &question.study.space;
    let like = ChipLimits::default().chip_with_efficiency(reference, space.efficiency());
    let with_hbm = Accelerator { hbm: best.hbm.clone(), ..like.clone() };
    let with_memory = Accelerator { on_chip: best.on_chip.clone(), ..with_hbm.clone() };
    let with_units = Accelerator { tensor: best.tensor, vector: best.vector, ..with_memory.clone() };
    let on = |chip: &Accelerator, fabric| {
        let job = question.reference_job(fabric);
        let of = Baseline { label: String::new(), chip, efficiency: own_efficiency(chip), standing: None };
        planned_entry(question, &of, &prepare_job(question, &job)?, &job).map(|entry| entry.throughput_tokens_per_s)
    };
    let rates = [
        ("software and plans", on(reference, &own_fabric)?),
        ("links", on(reference, design.fabric)?),
        ("efficiency and limit of power", on(&like, design.fabric)?),
        ("HBM", on(&with_hbm, design.fabric)?),
        ("memory on the die", on(&with_memory, design.fabric)?),
        ("arrays and lanes", on(&with_units, design.fabric)?),
        ("clock and what is left", Some(found)),
    ];
    let (mut causes, mut before, mut joined) = (Vec::new(), sold, Vec::new());
    for (cause, rate) in rates {
        joined.push(cause);
        // If no plan fits after a change, the change is counted together with the next one.
        if let Some(rate) = rate {
            causes.push(GainCause { cause: std::mem::take(&mut joined).join(" and "), factor: rate / before });
            before = rate;
        }
    }
    let whole = lead(question.aim.objective, first, other);
    if let (Some(per), Some(whole)) = (question.aim.objective.divisor(), whole) {
        causes.push(GainCause { cause: per.to_owned(), factor: whole / (found / sold) });
    }
    Ok(Some(GainSplit { over: other.label.clone(), causes }))
}

fn best_rate(entries: &[ComparisonEntry]) -> Option<f64> {
    entries.first()?.throughput_tokens_per_s
}

/// Returns the factor by which the first entry is better by the objective; `None` if an entry has no value.
fn lead(objective: Objective, first: &ComparisonEntry, other: &ComparisonEntry) -> Option<f64> {
    Some(objective.lead(first.objective_value?, other.objective_value?))
}
