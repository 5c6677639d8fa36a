//! The subject of a page: a run directory, or the JSON answer of `evaluate` or `plan`.

use crate::answer::plan::{NeighbourRow, PlanRow, StageRow, part_name};
use crate::answer::step::{JobRecord, NamedShare, StepRecord};
use crate::answer::timeline::TimelineRow;
use crate::run::record::SearchRecord;
use crate::run::search_run::{self, SearchRun};
use crate::run::serving::SERVE;
use crate::run::sweep::{self, RunDirectoryError};
use crate::store::limits::check_values;
use search::ask::Question;
use serde::Deserialize;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};

/// An error of reading the subject of a page.
#[derive(Debug, thiserror::Error)]
pub enum SubjectError {
    /// A run directory that cannot be read.
    #[error(transparent)]
    Run(#[from] RunDirectoryError),
    /// A file that cannot be read.
    #[error("{}: cannot be read: {why}; give a run directory of `coplace search` or `serve`, or what `evaluate` or \
        `plan` printed with --format json", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Message of the system.
        why: io::Error,
    },
    /// A file that is neither a run nor an answer of this version.
    #[error("{}: {why}; give a run directory of `coplace search` or `serve`, or what `evaluate` or `plan` of this \
        version printed with --format json", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The fault.
        why: String,
    },
}

/// The command that gave the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnsweringVerb {
    /// `search` found a chip and a plan.
    Search,
    /// `evaluate` explained one plan.
    Evaluate,
    /// `plan` found the fastest plans and their neighbours.
    Plan,
}

/// The names of the parts of a job: built-in names or paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobNames {
    /// The model.
    pub model: String,
    /// The chip; for a search, its run directory.
    pub chip: String,
    /// The fabric.
    pub fabric: String,
    /// The software stack.
    pub stack: String,
}

/// A plan with its recorded details.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundPlan {
    /// The plan and its rates.
    pub plan: PlanRow,
    /// Shares of the step's time.
    pub shares: Vec<NamedShare>,
    /// The memory of the stages.
    pub stages: Vec<StageRow>,
    /// The activity of the stages over a step.
    pub timeline: Vec<TimelineRow>,
    /// The memory of a device that programs may use, in GiB.
    pub capacity_gib: f64,
    /// Mean power of a device in W, if the run has it.
    pub mean_power_w: Option<f64>,
}

/// The subject of a page: a run or an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct PageSubject {
    /// The command that gave the answer.
    pub kind: AnsweringVerb,
    /// The names of the parts of the job.
    pub names: JobNames,
    /// Trainable parameters, if the run states them.
    pub parameters: Option<u64>,
    /// Parameters that one token uses, if some experts are not chosen.
    pub active_parameters: Option<u64>,
    /// The number of devices.
    pub devices: u64,
    /// Sequences per step over the whole cluster.
    pub global_batch: u64,
    /// Tokens per sequence.
    pub sequence_tokens: u64,
    /// The best plan, if there is one.
    pub found: Option<FoundPlan>,
    /// The reason why there is no plan.
    pub why: Option<String>,
    /// The neighbours of the plan, if the run has them.
    pub decisions: Vec<NeighbourRow>,
    /// Parts of the model's file that are not modelled.
    pub assumptions: Vec<String>,
    /// The run, if the subject is a run of a search.
    pub run: Option<SearchRun>,
    /// The question whose answer is the shown step; `None` if no plan was found.
    pub asked: Option<Question>,
    /// The answer as it was kept, as JSON.
    pub said: Value,
}

/// The keys of an answer of `evaluate` that are read.
#[derive(Deserialize)]
struct EvaluatedFile {
    job: JobRecord,
    why: Option<String>,
    result: Option<StepRecord>,
    #[serde(default)]
    asked: Option<Question>,
}

/// The keys of an answer of `plan` that are read.
#[derive(Deserialize)]
struct PlannedFile {
    model: String,
    chip: String,
    fabric: String,
    stack: String,
    devices: u64,
    global_batch_sequences: u64,
    sequence_tokens: u64,
    plans: Vec<PlanRow>,
    stages: Vec<StageRow>,
    timeline: Vec<TimelineRow>,
    capacity_gib: Option<f64>,
    neighbours: Vec<NeighbourRow>,
    why: Option<String>,
    #[serde(default)]
    assumptions: Vec<String>,
    #[serde(default)]
    asked: Option<Question>,
}

impl FoundPlan {
    fn from_step(step: StepRecord) -> Self {
        Self {
            plan: step.plan,
            shares: step.time_shares,
            stages: step.stages,
            timeline: step.timeline,
            capacity_gib: step.capacity_gib,
            mean_power_w: Some(step.energy.mean_power_per_device_w),
        }
    }
}

impl PageSubject {
    /// Reads a run directory or a file with an answer.
    ///
    /// # Errors
    /// A path that is neither a run nor an answer.
    pub fn read_from(path: &Path) -> Result<Self, SubjectError> {
        if path.is_dir() {
            let run = sweep::read_directory(path)?;
            let subject = Self::from_record(&path.display().to_string(), run.record.clone());
            if path.join(search_run::FABRIC).is_file() {
                search_run::verify_file(path, search_run::FABRIC).map_err(RunDirectoryError::from)?;
            }
            return Ok(Self { run: Some(run), ..subject });
        }
        let text =
            sim::files::text::read_text(path).map_err(|why| SubjectError::Unreadable { file: path.into(), why })?;
        Self::parse(path, &text)
    }

    /// Makes the subject of a search record. `directory` is the directory of its run.
    #[must_use]
    pub fn from_record(directory: &str, record: SearchRecord) -> Self {
        let said = serde_json::to_value(&record).unwrap_or_default();
        let asked = record.question_of_best(Path::new(directory), None);
        let study = record.study;
        let mut best = record.best;
        let mut study = study;
        let mut assumptions = std::mem::take(&mut study.assumptions);
        // The page shows only the first of several models.
        if let Some(best) = best.as_mut().filter(|best| !best.models.is_empty()) {
            let first = best.models.swap_remove(0);
            assumptions.push(format!(
                "The search was for {}; this page shows {} on the found chip.",
                study.model, first.model
            ));
            study.model = first.model;
        }
        Self {
            kind: AnsweringVerb::Search,
            names: JobNames {
                model: study.model,
                chip: directory.to_owned(),
                fabric: asked.as_ref().map_or(study.fabric, |asked| asked.cluster.fabric.clone()),
                stack: asked.as_ref().and_then(|asked| asked.software.stack.clone()).unwrap_or(study.stack),
            },
            parameters: Some(study.parameters),
            active_parameters: study.active_parameters,
            devices: study.devices,
            global_batch: study.global_batch_sequences,
            sequence_tokens: study.sequence_tokens,
            why: record.certificate.why,
            decisions: Vec::new(),
            assumptions,
            run: None,
            asked,
            found: best.map(|best| FoundPlan::from_step(best.step)),
            said,
        }
    }

    /// Reads the subject from the text of an answer. `file` names it in errors.
    ///
    /// # Errors
    /// A text that is no answer of `evaluate` or `plan` of this version; an impossible value.
    pub fn parse(file: &Path, text: &str) -> Result<Self, SubjectError> {
        let malformed = |why: String| SubjectError::Malformed { file: file.into(), why };
        let said: Value = serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
        let has = |key: &str| said.get(key).is_some();
        let format = said.get("format").and_then(Value::as_u64);
        let of_version = |reads: u32| match format {
            Some(found) if found == u64::from(reads) => Ok(()),
            found => {
                let found = found.map_or_else(|| "missing".to_owned(), |found| found.to_string());
                Err(malformed(format!("format = {found}, this version of coplace reads {reads}")))
            }
        };
        let record = [("certificate", "search", "designs"), ("fronts", SERVE, "deployments")];
        if let Some((_, verb, parts)) = record.into_iter().find(|(key, ..)| has(key)) {
            let why = format!("is the record of a run of `{verb}`: give its directory, which has its {parts} too");
            return Err(malformed(why));
        }
        check_values(&said).map_err(|fault| malformed(fault.to_string()))?;
        if has("job") && has("feasible") {
            of_version(crate::answer::evaluation::FORMAT)?;
            // The text is parsed again instead of the value, because errors then have a line and a column.
            let read = serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
            return Ok(Self::from_evaluated(read, said));
        }
        if has("plans") && has("neighbours") {
            of_version(crate::answer::plan::FORMAT)?;
            let read = serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
            return Ok(Self::from_planned(read, said));
        }
        Err(malformed("is no answer of `evaluate` or `plan`".to_owned()))
    }

    fn from_evaluated(read: EvaluatedFile, said: Value) -> Self {
        let job = read.job;
        Self {
            kind: AnsweringVerb::Evaluate,
            names: JobNames {
                model: job.model.name,
                chip: job.chip.name,
                fabric: job.cluster.fabric,
                stack: job.stack,
            },
            parameters: Some(job.model.parameters),
            active_parameters: job.model.active_parameters,
            devices: job.cluster.devices.into(),
            global_batch: job.cluster.global_batch_sequences,
            sequence_tokens: job.model.sequence_tokens,
            found: read.result.map(FoundPlan::from_step),
            why: read.why,
            decisions: Vec::new(),
            assumptions: job.model.assumptions,
            run: None,
            asked: read.asked,
            said,
        }
    }

    fn from_planned(read: PlannedFile, said: Value) -> Self {
        let (stages, timeline) = (read.stages, read.timeline);
        let capacity_gib = read.capacity_gib.unwrap_or_default();
        let found = read.plans.into_iter().next().map(|plan| {
            let mut shares: Vec<NamedShare> = plan
                .parts_s
                .iter()
                .filter(|(_, time)| **time > 0.0)
                .map(|(name, time)| NamedShare { name: part_name(name).to_owned(), fraction: time / plan.step_s })
                .collect();
            shares.sort_by(|a, b| b.fraction.total_cmp(&a.fraction));
            FoundPlan { plan, shares, stages, timeline, capacity_gib, mean_power_w: None }
        });
        Self {
            kind: AnsweringVerb::Plan,
            names: JobNames { model: read.model, chip: read.chip, fabric: read.fabric, stack: read.stack },
            parameters: None,
            active_parameters: None,
            devices: read.devices,
            global_batch: read.global_batch_sequences,
            sequence_tokens: read.sequence_tokens,
            found,
            why: read.why,
            decisions: read.neighbours,
            assumptions: read.assumptions,
            run: None,
            asked: read.asked,
            said,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refused(text: &str) -> String {
        PageSubject::parse(Path::new("answer.json"), text).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_answer_is_named() {
        assert!(refused("{").starts_with("answer.json: EOF"));
        assert!(refused("[1]").starts_with("answer.json: is no answer of `evaluate` or `plan`; give a run directory"));
        assert!(refused("{\"certificate\": 1}").contains("give its directory"));
        assert!(
            refused("{\"format\": 1, \"job\": 1, \"feasible\": true}")
                .contains("format = 1, this version of coplace reads 3")
        );
        assert!(refused("{\"plans\": [], \"neighbours\": []}").contains("format = missing"));
        let lacking =
            refused(&format!("{{\"format\": {}, \"plans\": [], \"neighbours\": []}}", crate::answer::plan::FORMAT));
        assert!(lacking.contains("missing field"), "{lacking}");
    }

    #[test]
    fn a_record_names_what_its_plan_runs_on() {
        let record = crate::run::record::example();
        let subject = PageSubject::from_record("runs/a", record.clone());
        assert_eq!((subject.kind, subject.names.chip.as_str()), (AnsweringVerb::Search, "runs/a"));
        assert_eq!(subject.names.model, record.study.model);
        let found = subject.found.unwrap();
        assert_eq!(found.plan, record.best.unwrap().step.plan);
    }
}
