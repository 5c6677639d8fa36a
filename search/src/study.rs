//! Studies: what is searched, on which cluster, and under which rules. Each study is one TOML file. The built-in ones
//! lie in `search/studies/`; a new file there is a new built-in study.

mod check;
mod grid;
mod place;
mod plan;
mod serve;
mod workload;

use crate::ask::{AimSpec, ChipChoice, DeploymentSpec, Question, Software};
use crate::objective::{MeasureMean, OperatingCost};
use crate::planner::NO_MARGIN;
use crate::space::{Chips, SpaceSpec};
use crate::study_files;
use schemars::JsonSchema;
use serde::Deserialize;
use sim::files::carried::Files;
use sim::files::{FaultParts, StructuredError};
use sim::hardware::FileFault;
use sim::hardware::constants::{Constants, read_changes};
use thiserror::Error;

pub use crate::ask::{ClusterSpec, LimitSpec, Tolerances, WorkloadSpec};
pub use plan::PlanSpec;

/// A fault of a study.
#[derive(Debug, Error)]
pub enum StudyError {
    /// The name is neither built in nor a file.
    #[error(
        "unknown study `{name}`: {}; or give the path of a study file (.toml)",
        sim::names::hint(name, known, "built in are")
    )]
    Unknown {
        /// The name given.
        name: String,
        /// The built-in names.
        known: String,
    },
    /// The file cannot be read.
    #[error("{file}: {why}; give the path of a readable study file")]
    Unreadable {
        /// The file.
        file: String,
        /// The message of the system.
        why: String,
    },
    /// The file is not the TOML that a study needs.
    #[error("{file}: {why}\nThe tables and keys of a study, each explained: coplace init FILE.toml")]
    Malformed {
        /// The file.
        file: String,
        /// The message of the parser, with line and key.
        why: String,
    },
    /// A dimension of its space is wrong.
    #[error("{place}: {why}")]
    Dimension {
        /// The file and the line.
        place: String,
        /// The dimension, its values, the limit and the cure.
        why: String,
    },
    /// A value is outside its limits.
    #[error("{file}: {key} = {value}: {limit}; {cure}")]
    Value {
        /// The file, and the line of the key if the file has it.
        file: String,
        /// The key, with its table.
        key: &'static str,
        /// The offending value.
        value: String,
        /// The rule broken.
        limit: &'static str,
        /// The cure.
        cure: &'static str,
    },
}

impl StructuredError for StudyError {
    fn fault_parts(&self) -> FaultParts {
        match self {
            Self::Unknown { name, known } => {
                FaultParts::of_key("study", name, "is no built-in study", sim::names::hint(name, known, "built in are"))
            }
            Self::Unreadable { file, why } => FaultParts::of_file(file, why, "give the path of a readable study file"),
            Self::Malformed { file, why } => {
                FaultParts::of_file(file, why, "the tables and keys of a study, each explained: coplace init FILE.toml")
            }
            Self::Dimension { place, why } => FaultParts::of_file(place, why, ""),
            Self::Value { file, key, value, limit, cure } => {
                FaultParts::of_key(*key, value, *limit, *cure).in_file(file)
            }
        }
    }
}

impl StudyError {
    /// Adds the line of the error's key, if the file's text has it.
    fn placed(self, text: &str) -> Self {
        match self {
            Self::Value { file, key, value, limit, cure } => {
                Self::Value { file: place::place_of_value(&file, text, key, &value), key, value, limit, cure }
            }
            Self::Dimension { place: file, why } => Self::Dimension { place: place::place(&file, text, &why), why },
            other => other,
        }
    }
}

/// A study.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// One line for `list studies`.
    pub description: String,
    /// The sources of its figures.
    pub source: String,
    /// How the models' rates make one objective.
    #[serde(default)]
    pub over: MeasureMean,
    /// How long chips run, and what their energy costs: of objective `per-dollar`.
    #[serde(default)]
    pub operation: OperatingCost,
    /// The models that it is for; none where the user names one.
    #[serde(default, rename = "workload")]
    pub workloads: Vec<WorkloadSpec>,
    /// Constants of the model that differ from the nominal ones: `"hbm.phy" = 11` (coplace list constants).
    #[serde(default)]
    #[schemars(schema_with = "crate::space::constants_schema")]
    pub constants: toml::Table,
    /// The chips.
    pub space: SpaceSpec,
    /// The cluster.
    pub cluster: ClusterSpec,
    /// The plans.
    pub plan: PlanSpec,
    /// When to stop.
    pub limits: LimitSpec,
    /// A deployment that its chips serve; none where they only train.
    #[serde(default)]
    pub serve: Option<DeploymentSpec>,
}

impl Study {
    /// The question that the study asks, under its name or path.
    #[must_use]
    pub fn question(&self, name: &str) -> Question {
        let (study, plan) = (self, &self.plan);
        Question {
            study: Some(name.to_owned()),
            models: study.workloads.clone(),
            mtp_layers: None,
            assume_ignored: Vec::new(),
            capacity_factor: None,
            chips: ChipChoice::Space(Box::new(study.space.clone())),
            cluster: study.cluster.clone(),
            fast_domain: None,
            software: Software {
                stack: Some(plan.stack.clone()),
                attention: plan.attention,
                optimizer: plan.optimizer,
                fit: Some(plan.fit),
                ..Software::default()
            },
            plans: plan.choices.clone(),
            everything: false,
            aim: AimSpec { over: study.over, operation: study.operation, ..AimSpec::default() },
            limits: Some(study.limits.clone()),
            files: Files::default(),
        }
    }

    /// The study of a question about a space of chips. `None` if the question is about one chip or has no limits.
    #[must_use]
    pub fn of_question(question: &Question) -> Option<Self> {
        let (space, limits, software) = (question.space()?.clone(), question.limits.clone()?, &question.software);
        Some(Self {
            description: String::new(),
            source: String::new(),
            over: question.aim.over,
            operation: question.aim.operation,
            workloads: question.models.clone(),
            constants: space.constants.iter().map(|(key, value)| (key.clone(), toml::Value::Float(*value))).collect(),
            space,
            cluster: question.cluster.clone(),
            plan: PlanSpec {
                stack: software.stack.clone().unwrap_or_default(),
                attention: software.attention,
                optimizer: software.optimizer,
                // Older questions say nothing: their plans may fill the memory.
                fit: software.fit.unwrap_or(NO_MARGIN),
                choices: question.plans.clone(),
            },
            limits,
            serve: None,
        })
    }

    /// Checks the constants and moves them into the space. They may stand in `[constants]` or in `[space.constants]`.
    /// Errors describe unknown or invalid constants, constants in both tables, or constants for PHAZE's chips.
    fn take_constants(&mut self) -> Result<(), String> {
        let told = |faults: Vec<FileFault>| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        if !self.space.constants.is_empty() && !self.constants.is_empty() {
            return Err("constants: stand in [constants] and in [space.constants]; keep one of the tables".into());
        }
        let of_space = self.space.constants.iter().map(|(key, value)| (key.clone(), toml::Value::Float(*value)));
        self.constants.extend(of_space);
        let changes = read_changes(&self.constants).map_err(told)?;
        Constants::with_changes(&changes).map_err(told)?;
        if !changes.is_empty() && matches!(self.space.chips, Chips::Phaze(_)) {
            return Err(
                "constants: PHAZE's chips have areas and energies of their own; give base_chip and dimensions".into()
            );
        }
        self.space.constants = changes;
        Ok(())
    }

    /// The shares of the tolerance for designs and for splits of the layers.
    #[must_use]
    pub fn tolerances(&self) -> Tolerances {
        self.limits.tolerances(self.plan.choices.splits.as_ref())
    }

    /// The built-in studies' names, sorted.
    #[must_use]
    pub fn names() -> Vec<String> {
        study_files::names()
    }

    /// The text of a built-in study's file; `None` if there is no such study.
    #[must_use]
    pub fn text(name: &str) -> Option<&'static str> {
        study_files::find(name).map(|(_, text)| text)
    }

    /// The text of a file of `search/studies/hindcast/`, by its stem.
    pub(crate) fn hindcast_text(stem: &str) -> Option<&'static str> {
        study_files::hindcast_text(stem)
    }

    /// Loads a built-in study by name, or a study file by path (any name that ends in `.toml`).
    ///
    /// # Errors
    /// An unknown name, an unreadable or malformed file, a value outside its limits.
    pub fn load(name_or_path: &str) -> Result<Self, StudyError> {
        Self::load_from(name_or_path, &Files::default())
    }

    /// As [`Self::load`], but reads `files` in place of files on disk.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_from(name_or_path: &str, files: &Files) -> Result<Self, StudyError> {
        if let Some((name, text)) = study_files::find(name_or_path) {
            return Self::parse(&name, text);
        }
        if !name_or_path.ends_with(".toml") {
            return Err(StudyError::Unknown { name: name_or_path.into(), known: Self::names().join(", ") });
        }
        let text = files
            .read(name_or_path.as_ref())
            .map_err(|e| StudyError::Unreadable { file: name_or_path.into(), why: e.to_string() })?;
        Self::parse(name_or_path, &text)
    }

    /// Reads and checks a study's TOML; `file` names it in errors.
    ///
    /// # Errors
    /// Malformed TOML, a missing or unknown key, a value outside its limits.
    pub fn parse(file: &str, text: &str) -> Result<Self, StudyError> {
        let mut study: Self = toml::from_str(text).map_err(|e| {
            // The parser reports a wrong dimension at its table, so the line is found from the message.
            if e.message().starts_with("space.dimensions") {
                return StudyError::Dimension { place: place::place(file, text, e.message()), why: e.message().into() };
            }
            StudyError::Malformed { file: file.into(), why: e.to_string().trim_end().into() }
        })?;
        study.take_constants().map_err(|why| StudyError::Dimension { place: place::place(file, text, &why), why })?;
        study.check(file).map_err(|error| error.placed(text))?;
        Ok(study)
    }
}

#[cfg(test)]
#[path = "study_tests.rs"]
mod tests;
