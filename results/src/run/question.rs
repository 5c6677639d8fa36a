//! The question with which `evaluate` reproduces the best step of a run.

use crate::run::record::SearchRecord;
use crate::run::search_run::{CHIP, FABRIC};
use search::ask::{AimSpec, ChipChoice, ClusterSpec, PlanSpace, Question, WorkloadSpec};
use std::path::Path;

impl SearchRecord {
    /// Returns the question that `evaluate` answers with the best step of `model`, or of the first model if the run has
    /// no `model`; `None` if the run found no design. The question names the chip and the fabric in the run's
    /// `directory`.
    #[must_use]
    pub fn question_of_best(&self, directory: &Path, model: Option<&str>) -> Option<Question> {
        let (best, asked, study) = (self.best.as_ref()?, &self.asked, &self.study);
        let of = best.models.iter().find(|of| Some(of.model.as_str()) == model).or(best.models.first());
        let (name, devices, batch, tokens, plan) = match of {
            Some(of) => (&of.model, of.devices, of.global_batch_sequences, of.sequence_tokens, &of.step.plan.plan),
            None => {
                (&study.model, study.devices, study.global_batch_sequences, study.sequence_tokens, &best.step.plan.plan)
            }
        };
        let own = directory.join(FABRIC);
        let fabric = if own.is_file() { own.display().to_string() } else { asked.cluster.fabric.clone() };
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Some(Question {
            study: None,
            models: vec![WorkloadSpec { sequence_length: Some(tokens), ..WorkloadSpec::of(name) }],
            chips: ChipChoice::One { chip: directory.join(CHIP).display().to_string(), nvme: None },
            cluster: ClusterSpec { devices: number(devices), fabric, global_batch_sequences: number(batch) },
            plans: PlanSpace::of_plan(plan),
            aim: AimSpec::default(),
            limits: None,
            ..asked.clone()
        })
    }
}
