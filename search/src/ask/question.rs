//! A question: the models, the chips, the software, the open choices, the objective and the limits.

use super::choices::PlanSpace;
use super::parts::{ClusterSpec, LimitSpec, WorkloadSpec};
use super::spelling::{SpelledPart, settle_json, settle_numbers};
use crate::objective::{CostAxes, MeasureMean, Objective, OperatingCost};
use crate::space::SpaceSpec;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sim::files::carried::Files;
use std::path::{Path, PathBuf};
use step::KeptFormats;
use workloads::footprint::Optimizer;
use workloads::training::{Attention, LossForm};
use workloads::{Model, model};

/// A question. Records, parts and answers store it as JSON, which suffices to ask it again.
///
/// All values are final: an option of the command line has already replaced the study's value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The study that it started from: a built-in one's name or a file's path. This is for people only; the values
    /// below decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub study: Option<String>,
    /// The models, each with its weight, its tokens per sequence and its own cluster size.
    pub models: Vec<WorkloadSpec>,
    /// Number of multi-token-prediction modules that are trained with every model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtp_layers: Option<u64>,
    /// Capacity of an expert, as a factor on its even share of the tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_factor: Option<f64>,
    /// Keys of models' files that the user declares to have no effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assume_ignored: Vec<String>,
    /// The chip, or the space of chips.
    pub chips: ChipChoice,
    /// The devices, their network and the sequences of a step.
    pub cluster: ClusterSpec,
    /// Devices of a fast domain; `None` means the fabric's own number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fast_domain: Option<u32>,
    /// The software and its settings.
    pub software: Software,
    /// The plans to choose from.
    #[serde(default)]
    pub plans: PlanSpace,
    /// True if decisions without a list may take every value that the model can express.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub everything: bool,
    /// The objective.
    #[serde(default)]
    pub aim: AimSpec,
    /// The limits at which a search over chips stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitSpec>,
    /// The texts of the files that are named above.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub files: Files,
}

/// The chip, or the space of chips.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ChipChoice {
    /// One given chip.
    One {
        /// A built-in chip's name or a file's path.
        chip: String,
        /// Storage that replaces the file's, as GB/s and GB per device: `6.4:1600`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nvme: Option<String>,
    },
    /// Chips to search.
    Space(Box<SpaceSpec>),
}

/// The software and its settings.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// A built-in stack's name or a file's path; `None` means the chip's usual stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// Options of the stack that are changed, as `TABLE.KEY=VALUE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack_options: Vec<String>,
    /// How attention is computed.
    #[serde(default)]
    pub attention: Attention,
    /// The number format; `None` means bf16, or fp16 on chips without bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// The optimizer.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// Formats of gradients, states and master weights, if they are not the stack's usual ones.
    #[serde(default, skip_serializing_if = "KeptFormats::are_usual")]
    pub kept: KeptFormats,
    /// The form in which head and loss are computed; `None` means the stack's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossForm>,
    /// GiB of every device's memory that plans leave free.
    #[serde(default)]
    pub headroom_gib: f64,
    /// The least probability that a plan's peak fits the memory. If it is `None` or at most 0.5, the predicted peak has
    /// to fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<f64>,
    /// Memory techniques that every plan has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub techniques: Vec<String>,
    /// Modules that get the techniques' adapters, separated by commas; `None` means the techniques' own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_targets: Option<String>,
    /// Techniques that may be used although they change the training result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
}

/// The objective.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AimSpec {
    /// The objective.
    pub objective: Objective,
    /// The mean over several models.
    pub over: MeasureMean,
    /// The years that chips run, and the cost of their energy.
    pub operation: OperatingCost,
    /// The axes of the front; `None` means the objective's usual axes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub front: Option<CostAxes>,
    /// Limit on the step time, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_step_s: Option<f64>,
    /// True if designs are compared by the bad ends of their intervals.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub robust: bool,
}

impl Question {
    /// Reads a question from its JSON; `file` names it in errors.
    ///
    /// # Errors
    /// A message with line and column: a missing key, an unknown key, or an invalid value.
    pub fn parse(file: &str, text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|why| format!("{file}: {why}"))
    }

    /// The question as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The first model's name or path; empty without models.
    #[must_use]
    pub fn model(&self) -> &str {
        self.models.first().map_or("", |of| &of.model)
    }

    /// Tokens per sequence of the first model; the model's longest if the question does not say.
    #[must_use]
    pub fn sequence_length(&self, model: &Model) -> u64 {
        self.models.first().and_then(|of| of.sequence_length).unwrap_or(model.max_sequence)
    }

    /// The space of chips; `None` if the question is about one chip.
    #[must_use]
    pub fn space(&self) -> Option<&SpaceSpec> {
        if let ChipChoice::Space(space) = &self.chips { Some(space) } else { None }
    }

    /// Stores the texts of the named files in [`Self::files`].
    pub fn carry_files(&mut self) {
        let mut named: Vec<&str> = vec![&self.cluster.fabric];
        named.extend(self.software.stack.as_deref());
        match &self.chips {
            ChipChoice::One { chip, .. } => named.push(chip),
            ChipChoice::Space(space) => named.extend(space.named_chips()),
        }
        let models = self.models.iter().map(|of| of.model.as_str());
        let paths = paths_of_names(&named, models, &self.files);
        paths.iter().for_each(|path| self.files.carry(path));
    }

    /// The question as a text. Equal questions have equal texts, however their parts are spelled: a built-in part has
    /// its canonical name, and a user's file is replaced by its text.
    #[must_use]
    pub fn canonical(&self) -> String {
        self.comparable().to_string()
    }

    /// The first value in which a question differs from another: its key with both values. `None` if they are equal.
    #[must_use]
    pub fn difference_from(&self, other: &Self) -> Option<String> {
        all_differences(&self.comparable(), &other.comparable()).first().map(ToString::to_string)
    }

    /// The question as JSON, with one spelling for everything, and with the texts of files instead of their names.
    fn comparable(&self) -> Value {
        let mut own = Self { study: None, files: Files::default(), ..self.clone() };
        own.settle_names(&self.files);
        let mut value = own.to_json();
        name_by_text(&mut value, &self.files);
        value
    }

    /// Writes everything named in its canonical spelling.
    fn settle_names(&mut self, files: &Files) {
        self.models.iter_mut().for_each(|of| SpelledPart::Model.settle(&mut of.model, files));
        match &mut self.chips {
            ChipChoice::One { chip, nvme } => {
                SpelledPart::Chip.settle(chip, files);
                nvme.iter_mut().for_each(settle_numbers);
            }
            ChipChoice::Space(space) => {
                space.named_chips_mut().for_each(|chip| SpelledPart::Chip.settle(chip, files));
            }
        }
        SpelledPart::Fabric.settle(&mut self.cluster.fabric, files);
        self.software.stack.iter_mut().for_each(|stack| SpelledPart::Stack.settle(stack, files));
    }
}

/// The paths of those names of parts and models that are files.
pub(super) fn paths_of_names<'a>(named: &[&str], models: impl Iterator<Item = &'a str>, files: &Files) -> Vec<PathBuf> {
    let ends = [".toml", ".json", ".yaml"];
    let is_file = |name: &&&str| ends.iter().any(|end| name.ends_with(end)) && !Path::new(name).is_dir();
    let mut paths: Vec<PathBuf> = named.iter().filter(is_file).map(PathBuf::from).collect();
    let models = models.filter(|name| !model::is_built_in(name));
    paths.extend(models.map(|name| model::config_file(Path::new(name), files)));
    paths
}

/// Replaces the names of carried files by their texts.
pub(super) fn name_by_text(value: &mut Value, files: &Files) {
    match value {
        Value::String(name) => {
            let path = Path::new(name.as_str());
            if let Some(text) = files.text(path).or_else(|| files.text(&path.join("config.json"))) {
                *name = settle_json(text).unwrap_or_else(|| text.to_owned());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| name_by_text(item, files)),
        Value::Object(map) => map.values_mut().for_each(|item| name_by_text(item, files)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Limit on the characters of a value in a difference.
const SHOWN: usize = 60;

/// A key at which two questions differ, with both values in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuestionDifference {
    /// The full key, with the keys that contain it.
    pub key: String,
    /// The value in the first question.
    pub own: String,
    /// The value in the second question.
    pub other: String,
}

impl std::fmt::Display for QuestionDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is {} there and {} here", self.key, self.own, self.other)
    }
}

/// Every key at which two JSON values differ, with both values.
pub(super) fn all_differences(own: &Value, other: &Value) -> Vec<QuestionDifference> {
    let mut found = Vec::new();
    add_differences("", own, other, &mut found);
    found
}

fn add_differences(key: &str, own: &Value, other: &Value, found: &mut Vec<QuestionDifference>) {
    if own == other {
        return;
    }
    if let (Value::Object(a), Value::Object(b)) = (own, other) {
        for inner in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
            let path = if key.is_empty() { inner.clone() } else { format!("{key}.{inner}") };
            let (a, b) = (a.get(inner).unwrap_or(&Value::Null), b.get(inner).unwrap_or(&Value::Null));
            add_differences(&path, a, b, found);
        }
        return;
    }
    if let (Value::Array(a), Value::Array(b)) = (own, other)
        && a.len() == b.len()
        && a.iter().any(Value::is_object)
    {
        let pairs = a.iter().zip(b).enumerate();
        pairs.for_each(|(at, (a, b))| add_differences(&format!("{key}[{at}]"), a, b, found));
        return;
    }
    let shown = |value: &Value| match value {
        Value::Null => "left out".to_owned(),
        Value::String(text) if text.contains('\n') => "a file of another text".to_owned(),
        other => {
            let text = other.to_string();
            if text.chars().count() > SHOWN {
                format!("{}...", text.chars().take(SHOWN).collect::<String>())
            } else {
                text
            }
        }
    };
    found.push(QuestionDifference { key: key.to_owned(), own: shown(own), other: shown(other) });
}
