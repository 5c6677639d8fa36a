//! The question, the answer and the proof of a page, in words.

use super::{AnsweringVerb, PageFact, PageSubject};
use crate::answer::plan::one_line;
use crate::run::record::{Proof, SearchRecord};
use crate::store::design::DesignRow;
use crate::text::{
    format_area, format_count, format_percent, format_rate, format_seconds, format_significant, power_of_ten_rate,
};
use sim::units::{Seconds, SquareMillimeters};

/// Returns the heading of the page.
pub fn page_title(subject: &PageSubject) -> String {
    let model = &subject.names.model;
    match subject.kind {
        AnsweringVerb::Search => {
            let others = other_models(subject);
            let last = others.last().map(|last| format!(" and {last}")).unwrap_or_default();
            let between: String =
                others.iter().take(others.len().saturating_sub(1)).map(|model| format!(", {model}")).collect();
            format!("Which chip trains {model}{between}{last} best")
        }
        AnsweringVerb::Evaluate => format!("{model} on {} x {}", format_count(subject.devices), subject.names.chip),
        AnsweringVerb::Plan => {
            format!("How to train {model} on {} x {}", format_count(subject.devices), subject.names.chip)
        }
    }
}

/// Returns the models of a search, except the one that the page shows.
fn other_models(subject: &PageSubject) -> Vec<&str> {
    let best = search_record(subject).and_then(|record| record.best.as_ref());
    let models = best.into_iter().flat_map(|best| &best.models).map(|of| of.model.as_str());
    models.filter(|model| *model != subject.names.model).collect()
}

/// Returns the question in words.
pub fn question_text(subject: &PageSubject) -> Vec<String> {
    let names = &subject.names;
    let active = subject.active_parameters.map_or_else(String::new, |n| format!(", {} active", significant_count(n)));
    let parameters =
        subject.parameters.map_or_else(String::new, |n| format!(" ({} parameters{active})", significant_count(n)));
    let work = format!(
        "{} sequences of {} tokens per optimizer step, under the software stack {}",
        format_count(subject.global_batch),
        format_count(subject.sequence_tokens),
        names.stack
    );
    let devices = format_count(subject.devices);
    match (subject.kind, search_record(subject)) {
        (AnsweringVerb::Search, Some(record)) => {
            let study = &record.study;
            let which = match study.objective.as_str() {
                "throughput" => "trains it fastest".to_owned(),
                objective => format!("is best by {objective}"),
            };
            let which = if record.certificate.robust { format!("{which} {BAD_END}") } else { which };
            let limit = |(key, value): (&String, &String)| {
                let (_, what, unit) = LIMITS.iter().find(|(known, ..)| known == key)?;
                Some(format!("{what} {} {unit}", shortened_limit(value)))
            };
            let limits: Vec<String> = study.options.iter().filter_map(limit).collect();
            let limits =
                if limits.is_empty() { String::new() } else { format!(" Limits of a chip: {}.", limits.join("; ")) };
            let others = match other_models(subject).as_slice() {
                [] => String::new(),
                others => format!(
                    " The same chip also trains {}: this page shows {}, and the proof is of the mean over all.",
                    others.join(", "),
                    names.model
                ),
            };
            vec![
                format!(
                    "{}{parameters} is trained on {devices} devices joined by {}: {work}.{others}",
                    names.model, study.fabric
                ),
                format!(
                    "Of the {} of the study {}, which {which}, and under which plan?{limits}",
                    record.certificate.space_text(record.lowered_to_w),
                    study.name
                ),
                format!("Plans that were considered: {}.", study.plans),
            ]
        }
        _ => vec![
            format!(
                "{}{parameters} is trained on {devices} {} joined by {}: {work}.",
                names.model, names.chip, names.fabric
            ),
            match subject.kind {
                AnsweringVerb::Plan => "Which plan is fastest, and why are its neighbours slower?".to_owned(),
                _ => "What does a step take under this plan, and why?".to_owned(),
            },
        ],
    }
}

/// The words that follow a value of a robust search.
const BAD_END: &str = "at the bad end of its step's 90 % interval";

/// The limits of a study: the key in the record's options, the words and the unit.
const LIMITS: [(&str, &str, &str); 7] = [
    ("max_area_mm2", "area at most", "mm²"),
    ("max_power_w", "power under the heaviest load at most", "W"),
    ("max_cost_usd", "cost to make at most", "USD"),
    ("max_step_s", "step at most", "s"),
    ("min_hbm_gib", "HBM at least", "GiB"),
    ("max_hbm_gib", "HBM at most", "GiB"),
    ("min_hbm_gb_per_s", "HBM bandwidth at least", "GB/s"),
];

/// Returns a limit. If its text is longer than seven characters, it is rounded to five significant digits.
fn shortened_limit(value: &str) -> String {
    match value.parse::<f64>() {
        Ok(number) if value.len() > 7 => format_significant(number, 5),
        _ => value.to_owned(),
    }
}

/// Formats a number of parameters: `70.55 billion`.
fn significant_count(n: u64) -> String {
    match n as f64 {
        n if n >= 1e9 => format!("{} billion", format_significant(n / 1e9, 4)),
        n if n >= 1e6 => format!("{} million", format_significant(n / 1e6, 4)),
        _ => format_count(n),
    }
}

/// Returns the answer in words.
pub fn answer_facts(subject: &PageSubject) -> Vec<String> {
    let Some(found) = &subject.found else {
        let why = subject.why.clone().unwrap_or_else(|| "nothing fits".to_owned());
        return vec![format!("None: {why}.")];
    };
    let plan = format!("Its plan: {}.", one_line(&found.plan.plan));
    match best_plan(subject) {
        Some(row) => {
            let dimensions = row.dimensions.as_ref().map_or_else(String::new, |d| format!(" ({d})"));
            vec![format!("{}{dimensions}.", row.describe_chip()), plan]
        }
        None => vec![format!("The plan: {}.", one_line(&found.plan.plan))],
    }
}

/// Returns the figures of the answer.
pub fn figure_facts(subject: &PageSubject) -> Vec<PageFact> {
    let Some(found) = &subject.found else { return Vec::new() };
    let plan = &found.plan;
    let sequences = subject.global_batch as f64 / plan.step_s;
    let mut facts = vec![
        PageFact {
            note: Some(format!("{} sequences/s", format_significant(sequences, 4))),
            ..PageFact::new("throughput", format!("{} tokens/s", format_rate(plan.tokens_per_s)))
        },
        PageFact::new("step", format_seconds(Seconds(plan.step_s))),
    ];
    if let Some(evidence) = plan.evidence.as_ref().filter(|_| is_robust(subject)) {
        let note =
            Some("of its 90 % interval, which designs are ranked by; all other figures are predicted".to_owned());
        facts.push(PageFact {
            note,
            ..PageFact::new("step at the bad end", format_seconds(Seconds(evidence.step_interval_s[1])))
        });
    }
    facts.extend([
        PageFact { note: Some("of the chips' peak".to_owned()), ..PageFact::new("MFU", format_percent(plan.mfu)) },
        PageFact {
            note: Some(format!("of {} GiB", format_significant(found.capacity_gib, 4))),
            ..PageFact::new("memory of a device", format!("{} GiB", format_significant(plan.peak_gib, 4)))
        },
        PageFact {
            note: Some("the network's is not modelled".to_owned()),
            ..PageFact::new("energy of a step", power_of_ten_rate(plan.energy_j, "J"))
        },
    ]);
    let power = found.mean_power_w.or_else(|| Some(plan.energy_j / plan.step_s / subject.devices as f64));
    let row = best_plan(subject);
    let peak = row
        .and_then(|row| row.peak_power_w)
        .map(|watts| format!("{} W under the heavier load alone", format_significant(watts, 4)));
    facts.extend(power.map(|watts| PageFact {
        note: peak,
        ..PageFact::new("mean power of a device", format!("{} W", format_significant(watts, 4)))
    }));
    if let Some(row) = row {
        facts.push(PageFact {
            note: row.node.clone(),
            ..PageFact::new("compute dies", format_area(SquareMillimeters(row.area_mm2)))
        });
        facts.extend(row.cost_usd.map(|usd| PageFact::new("cost to make", format!("{usd:.0} USD"))));
        facts.extend(row.bound_by.clone().map(|bound| PageFact::new("bound by", bound)));
    }
    facts
}

/// Returns the state of the proof in words.
pub fn proof_text(subject: &PageSubject) -> Vec<String> {
    let Some(record) = search_record(subject) else { return Vec::new() };
    let c = &record.certificate;
    let sentence = match (c.proof, c.gap) {
        (Proof::Proven, _) if c.robust => {
            format!("Proven: no design of this space has a fastest plan that is better {BAD_END}.")
        }
        (Proof::Gap, Some(gap)) if c.robust => {
            let least = format!("better by more than {:.3} %", gap * 100.0);
            format!("No design of this space has a fastest plan that is {least} {BAD_END}.")
        }
        (Proof::Proven, _) => {
            "Proven: no design of this space, under any plan considered, is better under this model.".to_owned()
        }
        (Proof::Infeasible, _) if c.is_without_candidates() => {
            "No chip of this space is within the limits: nothing was tried.".to_owned()
        }
        (Proof::Infeasible, _) => "Proven: no design of this space runs the model.".to_owned(),
        (Proof::Gap, Some(gap)) => format!("No design of this space is better by more than {:.3} %.", gap * 100.0),
        (Proof::Gap, None) => "Not proven: the search stopped before it had a bound.".to_owned(),
    };
    let model =
        "The proof does not say that the model is right, or that designs outside the space are worse.".to_owned();
    std::iter::once(sentence).chain(c.why.clone()).chain(std::iter::once(model)).collect()
}

/// Returns the counts behind the proof.
pub fn certificate_facts(subject: &PageSubject) -> Vec<PageFact> {
    let Some(record) = search_record(subject) else { return plan_counts_text(subject) };
    let c = &record.certificate;
    let counted = [
        ("evaluated exactly", c.evaluated),
        ("rejected by bound", c.pruned),
        ("infeasible", c.infeasible),
        ("outside the area", c.over_area),
        ("over the power", c.over_power),
        ("over the cost", c.over_cost),
        ("outside the HBM", c.outside_hbm),
        ("cannot be built", c.unbuildable),
        ("no chips", c.no_chip),
        ("undecided", c.open),
    ];
    let mut facts = vec![PageFact::new("in the space", c.space_text(record.lowered_to_w))];
    facts.extend(counted.into_iter().map(|(name, n)| PageFact::new(name, format_count(n))));
    if let (Some(best), Some(bound)) = (c.best, c.bound) {
        let at = if c.robust { " at the bad end" } else { "" };
        facts.push(PageFact::new("best", format!("{} {}{at}", format_significant(best, 6), c.unit)));
        facts.push(PageFact::new("none is better than", format!("{} {}{at}", format_significant(bound, 6), c.unit)));
    }
    facts.push(PageFact::new("question", record.question.clone()));
    facts.extend(
        record.times.get("search").map(|time| PageFact::new("time of the search", format_seconds(Seconds(*time)))),
    );
    facts
}

/// Returns the counts of plans in an answer of `plan` or `evaluate`.
fn plan_counts_text(subject: &PageSubject) -> Vec<PageFact> {
    let Some(serde_json::Value::Object(counts)) = subject.said.get("counts") else { return Vec::new() };
    let number = |(key, value): (&String, &serde_json::Value)| {
        Some(PageFact::new(key.replace('_', " "), format_count(value.as_u64()?)))
    };
    counts.iter().filter_map(number).collect()
}

fn search_record(subject: &PageSubject) -> Option<&SearchRecord> {
    subject.run.as_ref().map(|run| &run.record)
}

/// True if the search ranked designs by the bad end of the step's interval.
fn is_robust(subject: &PageSubject) -> bool {
    search_record(subject).is_some_and(|record| record.certificate.robust)
}

fn best_plan(subject: &PageSubject) -> Option<&DesignRow> {
    search_record(subject)?.best.as_ref().map(|best| &best.design)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::search_run::SearchRun;

    fn subject() -> PageSubject {
        let record = crate::run::record::example();
        let subject = PageSubject::from_record("runs/a", record.clone());
        PageSubject { run: Some(SearchRun { name: "a".into(), record, designs: Vec::new() }), ..subject }
    }

    #[test]
    fn a_search_is_asked_and_answered_in_words() {
        let subject = subject();
        let asked = question_text(&subject).join(" ");
        let record = crate::run::record::example();
        for part in [&record.study.model, &record.study.fabric, &record.study.stack, &record.study.plans] {
            assert!(asked.contains(part.as_str()), "{part}: {asked}");
        }
        assert!(answer_facts(&subject).join(" ").contains("Its plan: t 1, p 2"), "{:?}", answer_facts(&subject));
        let names: Vec<String> = figure_facts(&subject).into_iter().map(|fact| fact.name).collect();
        assert!(names.iter().any(|name| name == "compute dies") && names.iter().any(|name| name == "MFU"), "{names:?}");
    }

    #[test]
    fn of_a_robust_search_it_is_said_at_which_end_its_values_are() {
        let mut subject = subject();
        let end = "at the bad end of its step's 90 % interval";
        assert!(!question_text(&subject).join(" ").contains(end) && !proof_text(&subject)[0].contains(end));
        if let Some(run) = &mut subject.run {
            run.record.certificate.robust = true;
        }
        assert!(
            question_text(&subject).join(" ").contains(end) && proof_text(&subject)[0].contains(end),
            "{:?}",
            proof_text(&subject)
        );
        let best = certificate_facts(&subject).into_iter().find(|fact| fact.name == "best");
        assert!(best.is_some_and(|fact| fact.value.ends_with(" at the bad end")));
        if let Some(run) = &mut subject.run {
            (run.record.certificate.proof, run.record.certificate.gap) = (Proof::Gap, Some(0.02));
        }
        assert!(
            proof_text(&subject)[0]
                .ends_with("better by more than 2.000 % at the bad end of its step's 90 % interval.")
        );
    }

    #[test]
    fn what_is_not_proven_never_reads_as_proven() {
        let mut subject = subject();
        if let Some(run) = &mut subject.run {
            (run.record.certificate.proof, run.record.certificate.gap) = (Proof::Gap, Some(0.02));
        }
        assert_eq!(proof_text(&subject)[0], "No design of this space is better by more than 2.000 %.");
        if let Some(run) = &mut subject.run {
            let c = &mut run.record.certificate;
            (c.proof, c.gap, c.over_area) = (Proof::Infeasible, None, 0);
        }
        assert_eq!(proof_text(&subject)[0], "Proven: no design of this space runs the model.");
        if let Some(run) = &mut subject.run {
            let c = &mut run.record.certificate;
            c.over_area = c.designs - c.over_power - c.over_cost - c.outside_hbm - c.unbuildable - c.no_chip;
        }
        assert_eq!(proof_text(&subject)[0], "No chip of this space is within the limits: nothing was tried.");
        subject.found = None;
        subject.why = Some("stage 0 lacks 3 GiB".into());
        assert_eq!(answer_facts(&subject), ["None: stage 0 lacks 3 GiB."]);
        assert!(figure_facts(&subject).is_empty());
    }
}
