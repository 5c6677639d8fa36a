//! The evidence for a page's figures: intervals, grades, and the nearest measurements.

use super::{AnsweringVerb, PageFact, PageSubject};
use crate::answer::evidence::{EvidenceRecord, GroundRecord};
use crate::text::{format_seconds, format_significant};
use measured::evidence::Grade;
use serde::Serialize;
use sim::units::Seconds;

/// The largest number of measurements that are named per ground.
const NAMED: usize = 4;
/// The text in place of the grounds that an older record does not have.
const NOT_KEPT: &str = "not kept by the version that wrote the run";

/// A figure with its interval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FigureWithInterval {
    /// The figure: `step time`, `peak memory`.
    pub figure: String,
    /// The design to which the figure belongs: `best found`, `tpu_v4, ideal`.
    pub of: String,
    /// The predicted value with its unit.
    pub predicted: String,
    /// The 90 % interval, in words.
    pub interval: String,
    /// The grade in words.
    pub grade: String,
    /// The grounds that were not measured, in words.
    pub why: String,
}

/// A ground of the best plan's step that training runs did not measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnmeasuredGround {
    /// The kind: `chip`, `software stack`.
    pub on: String,
    /// The name of the ground.
    pub name: String,
    /// The grade in words.
    pub grade: String,
    /// The nearest measurements, in words.
    pub measured: String,
}

/// The evidence for a page's figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct PageEvidence {
    /// The figures with their intervals.
    pub figures: Vec<FigureWithInterval>,
    /// The grounds of the step that were not measured.
    pub rests: Vec<UnmeasuredGround>,
    /// How much longer the step of another plan of the job must be to be slower with confidence.
    pub leads: Vec<PageFact>,
}

/// Returns the intervals and grades of a subject. Empty if the subject has none.
pub fn evidence_of_subject(subject: &PageSubject) -> PageEvidence {
    let mut trust = PageEvidence::default();
    let best = if subject.kind == AnsweringVerb::Search { "best found" } else { "this plan" };
    let kept = subject.found.as_ref().and_then(|found| Some((&found.plan, found.plan.evidence.as_ref()?)));
    if let Some((plan, evidence)) = kept {
        let time = |s: f64| format_seconds(Seconds(s));
        let memory = |gib: f64| format!("{} GiB", format_significant(gib, 4));
        trust.figures.push(FigureWithInterval {
            figure: "step time".to_owned(),
            of: best.to_owned(),
            predicted: time(plan.step_s),
            interval: interval_text(evidence.step_interval_s, plan.step_s, time),
            grade: grade_text(evidence.grade),
            why: evidence.step_reasons(),
        });
        trust.figures.push(FigureWithInterval {
            figure: "peak memory".to_owned(),
            of: best.to_owned(),
            predicted: memory(plan.peak_gib),
            interval: interval_text(evidence.peak_interval_gib, plan.peak_gib, memory),
            grade: grade_text(evidence.peak_grade),
            why: match (evidence.peak_grounds.is_empty(), evidence.peak_grade) {
                (true, Grade::Related | Grade::NeverMeasured) => NOT_KEPT.to_owned(),
                _ => evidence.peak_reasons(),
            },
        });
        trust.rests = evidence.grounds.iter().map(unmeasured_ground).collect();
        trust.leads = lead_facts(evidence);
    }
    let comparison = subject.run.as_ref().and_then(|run| run.record.comparison.as_ref());
    // The first entry is the best design, which is already listed. Entries that are not drawn repeat a chip in another
    // form and have the same grounds.
    let others = comparison.iter().flat_map(|comparison| comparison.entries.iter().skip(1));
    for entry in others.filter(|entry| entry.is_drawn()) {
        if let (Some(step), Some(ends), Some(grade)) = (entry.step_time_s, entry.step_interval_s, entry.grade) {
            trust.figures.push(FigureWithInterval {
                figure: "step time".to_owned(),
                of: entry.label.clone(),
                predicted: format_seconds(Seconds(step)),
                interval: interval_text(ends, step, |s| format_seconds(Seconds(s))),
                grade: grade_text(grade),
                why: entry.evidence.clone().unwrap_or_else(|| NOT_KEPT.to_owned()),
            });
        }
    }
    trust
}

/// Formats an interval: `18.2 s to 26.1 s (-15 to +21 %)`.
fn interval_text([low, high]: [f64; 2], predicted: f64, words: impl Fn(f64) -> String) -> String {
    let percent = |end: f64| format!("{:+.0}", (end / predicted - 1.0) * 100.0);
    format!("{} to {} ({} to {} %)", words(low), words(high), percent(low), percent(high))
}

fn grade_text(grade: Grade) -> String {
    match grade {
        Grade::Measured => "all of it was measured",
        Grade::Related => "some only in related runs",
        Grade::NeverMeasured => "some was never measured",
    }
    .to_owned()
}

fn unmeasured_ground(ground: &GroundRecord) -> UnmeasuredGround {
    let grade = match ground.grade {
        Grade::Measured => "measured",
        Grade::Related => "only related runs were measured",
        Grade::NeverMeasured => "never measured",
    };
    let named: Vec<String> =
        ground.near.iter().take(NAMED).map(|near| format!("{} ({})", near.name, near.runs)).collect();
    let more = ground.near.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let measured = match (named.is_empty(), ground.what.as_str()) {
        (true, _) => "nothing of its kind".to_owned(),
        (false, "scale") => format!("chips (runs): {}{more}", named.join(", ")),
        (false, "mechanism") => format!("under (runs): {}{more}", named.join(", ")),
        (false, _) => format!("of its kind (runs): {}{more}", named.join(", ")),
    };
    let (on, name) = match ground.what.as_str() {
        "stack" => ("software stack", ground.name.clone()),
        "execution" => ("software stack on the chip", ground.name.clone()),
        "scale" => ("size of the cluster", format!("{} chips", ground.name)),
        "mechanism" => ("part of the plan", mechanism_name(&ground.name).to_owned()),
        other => (other, ground.name.clone()),
    };
    UnmeasuredGround { on: on.to_owned(), name, grade: grade.to_owned(), measured }
}

/// Returns the reader's name of a mechanism of plans (see `mechanisms_of_plan` in the crate `measured`).
fn mechanism_name(name: &str) -> &str {
    match name {
        "tensor" => "tensor parallelism",
        "tensor-between-nodes" => "tensor parallelism between nodes",
        "pipeline" => "pipeline parallelism",
        "interleaved" => "interleaved pipeline",
        "context" => "context parallelism",
        "expert" => "expert parallelism",
        "experts" => "mixture of experts",
        "latent-attention" => "latent attention (MLA)",
        "linear-attention" => "linear attention",
        "scan" => "state-space scans",
        "sparse-attention" => "attention to chosen tokens",
        "zero-1" => "ZeRO-1",
        "zero-2" => "ZeRO-2",
        "zero-3" => "ZeRO-3",
        "recompute-none" => "no recomputation",
        "recompute-selective" => "selective recomputation",
        "recompute-full" => "full recomputation",
        "recompute-by-tensor" => "recomputation tensor by tensor",
        "offload" => "offloading",
        "offload-nvme" => "offloading to NVMe",
        "no-master" => "weights without a wider copy",
        "states-bf16" => "optimizer states in bf16",
        "states-fp16" => "optimizer states in fp16",
        "states-fp8" => "optimizer states in fp8",
        "gradients-bf16" => "gradients in bf16",
        "gradients-fp16" => "gradients in fp16",
        "loss-chunked" => "head and loss by chunks",
        other => other,
    }
}

/// Returns how much longer the step of another plan must be to be slower with confidence. Errors that both steps share
/// cancel.
fn lead_facts(evidence: &EvidenceRecord) -> Vec<PageFact> {
    let longer = |lead: f64| format!("{:.0} % longer", (lead - 1.0) * 100.0);
    let plan = Some(evidence.plan_lead).filter(|lead| *lead > 1.0);
    plan.map(|lead| PageFact::new("another plan of this job", longer(lead))).into_iter().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::answer::comparison::{Comparison, ComparisonEntry};
    use crate::answer::evidence::NearMeasurements;
    use crate::run::search_run::SearchRun;

    fn known() -> EvidenceRecord {
        let near = ["tpu_v6e", "tpu_v5p", "tpu_v5e", "tpu_v7", "gaudi2"];
        let near =
            near.iter().zip([12, 4, 2, 2, 1]).map(|(name, runs)| NearMeasurements { name: (*name).to_owned(), runs });
        let ground = |what: &str, name: &str, grade| GroundRecord {
            what: what.into(),
            name: name.into(),
            grade,
            near: Vec::new(),
        };
        EvidenceRecord {
            grade: Grade::NeverMeasured,
            grounds: vec![
                GroundRecord { near: near.collect(), ..ground("chip", "tpu_v4_like_7", Grade::Related) },
                ground("stack", "ideal", Grade::NeverMeasured),
                ground("mechanism", "zero-3", Grade::Related),
            ],
            step_interval_s: [9.0, 12.5],
            facts: None,
            plan_lead: 1.05,
            design_lead: 1.7,
            peak_grade: Grade::Related,
            peak_grounds: vec![ground("fabric", "ici", Grade::Related)],
            peak_interval_gib: [20.0, 30.0],
        }
    }

    fn subject() -> PageSubject {
        let mut record = crate::run::record::example();
        if let Some(best) = &mut record.best {
            (best.step.plan.evidence, best.step.plan.step_s) = (Some(known()), 10.0);
        }
        let first = ComparisonEntry::from_design("best found", &record.best.as_ref().unwrap().design);
        let other = ComparisonEntry {
            step_time_s: Some(20.0),
            ..ComparisonEntry::from_design("tpu_v4, ideal", &record.best.as_ref().unwrap().design)
        };
        let entries = vec![first.with_evidence("ideal", Some(&known())), other.with_evidence("ideal", Some(&known()))];
        record.comparison = Some(Comparison::of_entries(entries));
        let subject = PageSubject::from_record("runs/a", record.clone());
        PageSubject { run: Some(SearchRun { name: "a".into(), record, designs: Vec::new() }), ..subject }
    }

    #[test]
    fn figures_name_what_they_are_of_and_why() {
        let trust = evidence_of_subject(&subject());
        let of_whom: Vec<(&str, &str)> = trust.figures.iter().map(|f| (f.figure.as_str(), f.of.as_str())).collect();
        assert_eq!(
            of_whom,
            [("step time", "best found"), ("peak memory", "best found"), ("step time", "tpu_v4, ideal")]
        );
        assert_eq!(trust.figures[0].interval, "9.000 s to 12.50 s (-10 to +25 %)");
        assert_eq!(
            (trust.figures[0].predicted.as_str(), trust.figures[0].grade.as_str()),
            ("10.00 s", "some was never measured")
        );
        assert_eq!(trust.figures[1].why, "related: fabric ici");
        assert!(trust.figures[2].why.contains("never measured: stack ideal"), "{:?}", trust.figures[2]);
    }

    #[test]
    fn grounds_are_words_and_say_what_was_measured() {
        let rests = evidence_of_subject(&subject()).rests;
        assert_eq!(
            rests[0].measured,
            "of its kind (runs): tpu_v6e (12), tpu_v5p (4), tpu_v5e (2), tpu_v7 (2) and 1 more"
        );
        assert_eq!((rests[1].on.as_str(), rests[1].measured.as_str()), ("software stack", "nothing of its kind"));
        assert_eq!((rests[2].on.as_str(), rests[2].name.as_str()), ("part of the plan", "ZeRO-3"));
        for text in
            rests.iter().flat_map(|r| [&r.on, &r.name, &r.grade, &r.measured]).filter(|text| !text.contains("tpu_"))
        {
            assert!(!text.contains('_'), "a key, not a word: {text}");
        }
    }

    #[test]
    fn what_was_kept_without_evidence_says_nothing() {
        let mut subject = subject();
        subject.run = None;
        if let Some(found) = &mut subject.found {
            found.plan.evidence = None;
        }
        assert_eq!(evidence_of_subject(&subject), PageEvidence::default());
    }
}
