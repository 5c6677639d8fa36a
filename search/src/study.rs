//! Studies: what is searched, on which cluster, under which rules. One TOML file each; the built-in ones lie in
//! `search/studies/` and adding one is adding a file there.

mod check;
mod grid;
mod place;
mod workload;

use crate::objective::{MeasureMean, OperatingCost};
use crate::planner::{PlanSpace, SCHEDULES, Splits, schedule_name, schedule_of};
use crate::space::SpaceSpec;
use include_dir::{Dir, include_dir};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sim::pipeline::PipelineSchedule;
use std::fmt;
use step::{MixKind, SoftwareStack};
use thiserror::Error;
use workloads::footprint::Optimizer;
use workloads::training::Attention;
use workloads::{ActivationPolicy, WorkloadError, ZeroStage};

pub use workload::WorkloadSpec;

static STUDIES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/studies");

/// What is wrong with a study.
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
        /// What the system said.
        why: String,
    },
    /// The file is not the TOML that a study needs.
    #[error("{file}: {why}\nThe tables and keys of a study, each explained: coplace init FILE.toml")]
    Malformed {
        /// The file.
        file: String,
        /// What the parser said, with line and key.
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
    /// A value is outside what makes sense.
    #[error("{file}: {key} = {value}: {limit}; {cure}")]
    Value {
        /// The file, and the line where it has the key.
        file: String,
        /// The key, with its table.
        key: &'static str,
        /// The offending value.
        value: String,
        /// The rule broken.
        limit: &'static str,
        /// What to do.
        cure: &'static str,
    },
}

impl StudyError {
    /// The same with the line of its key, where the file's text has it.
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

/// The machine the models run on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Accelerators.
    pub devices: u32,
    /// The fabric that connects them, by name.
    pub fabric: String,
    /// Sequences per optimizer step, over the whole cluster.
    pub global_batch_sequences: u32,
}

/// How attention is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttentionChoice {
    /// Tiled, the scores never reach memory.
    Fused,
    /// Operator by operator.
    Unfused,
}

/// The optimizer, in mixed precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerChoice {
    /// Plain stochastic gradient descent.
    Sgd,
    /// With momentum.
    Momentum,
    /// Adam.
    Adam,
}

/// The plans that each chip is tried with, and the software that runs them. Of what is left out, every value that obeys the rules is a choice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanSpec {
    /// The software stack: a built-in one's name or a file's path; `ideal` where it is left out.
    #[serde(default = "ideal")]
    pub stack: String,
    /// Tensor-parallel widths; a width that the model's heads or its MLP do not divide by is left out.
    pub tensor_parallel: Option<Vec<u32>>,
    /// Pipeline stages.
    pub pipeline_parallel: Option<Vec<u32>>,
    /// Context-parallel widths.
    pub context_parallel: Option<Vec<u32>>,
    /// Expert-parallel widths.
    pub expert_parallel: Option<Vec<u32>>,
    /// Model chunks per stage.
    pub virtual_stages: Option<Vec<u32>>,
    /// ZeRO stages, 0 to 3.
    pub zero: Option<Vec<u64>>,
    /// Pipeline schedules: 1f1b, gpipe, zb-h1, zb-v.
    pub schedules: Option<Vec<String>>,
    /// What layers keep for the backward pass, in the words of `plan --recompute`.
    pub recompute: Option<Vec<RecomputeChoice>>,
    /// How layers are split into stages; as is fastest where it is left out.
    #[serde(default)]
    pub layer_split: LayerSplitChoice,
    /// Sequences per micro-batch and data-parallel rank.
    pub micro_batch_sequences: Option<Vec<u32>>,
    /// Megatron sequence parallelism beside tensor parallelism.
    pub sequence_parallel: Option<bool>,
    /// How attention is executed.
    pub attention: AttentionChoice,
    /// The optimizer.
    pub optimizer: OptimizerChoice,
}

/// What layers keep for the backward pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
pub enum RecomputeChoice {
    /// In every stage what is fastest there, tensor by tensor.
    Best,
    /// A policy that all layers follow.
    Policy(ActivationPolicy),
}

impl fmt::Display for RecomputeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Best => f.write_str("best"),
            Self::Policy(policy) => policy.fmt(f),
        }
    }
}

impl From<RecomputeChoice> for String {
    fn from(choice: RecomputeChoice) -> Self {
        choice.to_string()
    }
}

impl TryFrom<String> for RecomputeChoice {
    type Error = WorkloadError;

    fn try_from(text: String) -> Result<Self, WorkloadError> {
        if text == "best" { Ok(Self::Best) } else { text.parse().map(Self::Policy) }
    }
}

/// How layers are split into stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayerSplitChoice {
    /// Evenly, or as evenly as layers that do not divide can.
    Even,
    /// As is fastest and fits.
    #[default]
    Best,
}

fn ideal() -> String {
    "ideal".to_owned()
}

impl PlanSpec {
    /// The plans.
    #[must_use]
    pub fn space(&self) -> PlanSpace {
        let choices = self.recompute.iter().flatten();
        let named: Vec<ActivationPolicy> = choices
            .filter_map(|choice| match choice {
                RecomputeChoice::Best => None,
                RecomputeChoice::Policy(policy) => Some(policy.clone()),
            })
            .collect();
        let schedules = |names: &Vec<String>| names.iter().filter_map(|name| schedule_of(name)).collect();
        PlanSpace {
            tensor: self.tensor_parallel.clone(),
            pipeline: self.pipeline_parallel.clone(),
            context: self.context_parallel.clone(),
            expert: self.expert_parallel.clone(),
            expert_tensor: None,
            virtual_stages: self.virtual_stages.clone(),
            zero: self.zero.as_ref().map(|list| list.iter().filter_map(|n| ZeroStage::from_number(*n)).collect()),
            splits: Some(match self.layer_split {
                LayerSplitChoice::Even => Splits::Listed(vec![None]),
                LayerSplitChoice::Best => Splits::Best,
            }),
            micro_batch: self.micro_batch_sequences.as_ref().map(|list| list.iter().copied().map(u64::from).collect()),
            activations: Some(named).filter(|list| !list.is_empty()),
            mixes: self.mixes().then_some(MixKind::PerStage),
            schedules: self.schedules.as_ref().map(schedules),
            sequence_parallel: self.sequence_parallel.map(|choice| vec![choice]),
            ..PlanSpace::default()
        }
    }

    /// Leaves of schedules and policies those that a stack's framework runs; where it runs none of the schedules, its own take their place. Says
    /// what was changed, in a few words.
    ///
    /// # Errors
    /// No policy that the framework has.
    pub fn narrow_to(&mut self, stack: &SoftwareStack) -> Result<Option<String>, String> {
        let mut changes = Vec::new();
        let runs =
            |name: &String| schedule_of(name).is_some_and(|kind| [1, 2].iter().any(|chunks| stack.runs_schedule(kind, *chunks)));
        let asked =
            self.schedules.clone().unwrap_or_else(|| vec![schedule_name(PipelineSchedule::OneForwardOneBackward).to_owned()]);
        let mut run: Vec<String> = asked.iter().filter(|name| runs(name)).cloned().collect();
        if run.is_empty() {
            let own = SCHEDULES.iter().map(|(name, _)| (*name).to_owned());
            run = own.filter(runs).collect();
        }
        if run.is_empty() {
            self.pipeline_parallel = Some(vec![1]);
            changes.push("no pipeline".to_owned());
        } else if run != asked {
            changes.push(format!("schedules {} in place of {}", run.join(", "), asked.join(", ")));
            self.schedules = Some(run);
        }
        let usual = || PlanSpace::default().policies().into_iter().map(RecomputeChoice::Policy).collect();
        let asked: Vec<RecomputeChoice> = self.recompute.clone().unwrap_or_else(usual);
        let has = |choice: &&RecomputeChoice| match choice {
            RecomputeChoice::Best => stack.framework.mixes == MixKind::PerStage,
            RecomputeChoice::Policy(policy) => stack.runs_policy(policy),
        };
        let kept: Vec<RecomputeChoice> = asked.iter().filter(has).cloned().collect();
        let left_out: Vec<String> = asked.iter().filter(|choice| !has(choice)).map(ToString::to_string).collect();
        if kept.is_empty() {
            return Err(format!("recompute: the framework of stack {} has none of {}", self.stack, left_out.join(", ")));
        }
        if !left_out.is_empty() {
            changes.push(format!("no recompute {}", left_out.join(", ")));
            self.recompute = Some(kept);
        }
        Ok((!changes.is_empty()).then(|| changes.join("; ")))
    }

    /// Whether stages may have policies of their own.
    #[must_use]
    pub fn mixes(&self) -> bool {
        self.recompute.iter().flatten().any(|choice| *choice == RecomputeChoice::Best)
    }

    /// The plans in words.
    #[must_use]
    pub fn words(&self) -> String {
        fn list<T: ToString>(what: &str, values: &Option<Vec<T>>) -> String {
            let Some(values) = values else { return format!("{what} any that divides") };
            let words: Vec<String> = values.iter().map(ToString::to_string).collect();
            match words.split_last() {
                Some((last, rest)) if !rest.is_empty() => format!("{what} {} or {last}", rest.join(", ")),
                _ => format!("{what} {}", words.concat()),
            }
        }
        let (plain, sequences) = (vec!["1f1b".to_owned()], self.sequence_parallel);
        let parts = [
            list("tensor parallel", &self.tensor_parallel),
            list("pipeline parallel", &self.pipeline_parallel),
            list("context parallel", &self.context_parallel),
            list("expert parallel", &self.expert_parallel),
            list("chunks per stage", &self.virtual_stages),
            list("schedule", &Some(self.schedules.clone().unwrap_or(plain))),
            list("ZeRO", &self.zero),
            list("micro-batch", &self.micro_batch_sequences),
            list("recompute", &self.recompute),
            format!("sequence parallelism {}", sequences.map_or("on or off", |on| if on { "on" } else { "off" })),
            match self.layer_split {
                LayerSplitChoice::Even => "layers split evenly".to_owned(),
                LayerSplitChoice::Best => "layers split as is fastest".to_owned(),
            },
        ];
        parts.join("; ")
    }

    /// How attention is computed.
    #[must_use]
    pub fn attention(&self) -> Attention {
        match self.attention {
            AttentionChoice::Fused => Attention::Fused,
            AttentionChoice::Unfused => Attention::Unfused,
        }
    }

    /// The optimizer.
    #[must_use]
    pub fn optimizer(&self) -> Optimizer {
        match self.optimizer {
            OptimizerChoice::Sgd => Optimizer::Sgd,
            OptimizerChoice::Momentum => Optimizer::Momentum,
            OptimizerChoice::Adam => Optimizer::Adam,
        }
    }
}

/// Where the search stops and reports its gap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// Designs evaluated exactly.
    pub evaluations: usize,
    /// Designs better than the best by no more than so many percent need not be found: 0 where it is left out.
    #[serde(default)]
    pub within_percent: f64,
}

/// What of [`LimitSpec::within_percent`] is for what, as shares of the best's time: together they are no more than it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerances {
    /// Designs left out that may be better by as much.
    pub designs: f64,
    /// Splits of a plan's layers left out that may make it faster by as much.
    pub splits: f64,
}

/// A study.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// One line for `list studies`.
    pub description: String,
    /// Where its figures come from.
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
    /// The chips.
    pub space: SpaceSpec,
    /// The cluster.
    pub cluster: ClusterSpec,
    /// The plans.
    pub plan: PlanSpec,
    /// When to stop.
    pub limits: LimitSpec,
}

impl Study {
    /// Half of what is allowed is for splits, where these are searched.
    #[must_use]
    pub fn tolerances(&self) -> Tolerances {
        let within = self.limits.within_percent / 100.0;
        if self.plan.layer_split == LayerSplitChoice::Even {
            return Tolerances { designs: within, splits: 0.0 };
        }
        // (1 + designs) / (1 - splits) is 1 + within.
        let splits = within / (2.0 + within);
        Tolerances { designs: splits, splits }
    }

    /// The built-in studies' names, sorted.
    #[must_use]
    pub fn names() -> Vec<String> {
        let stem = |f: &include_dir::File<'_>| f.path().file_stem().map(|s| s.to_string_lossy().into_owned());
        let mut names: Vec<String> = STUDIES.files().filter_map(stem).collect();
        names.sort();
        names
    }

    /// The text of a built-in study's file.
    #[must_use]
    pub fn text(name: &str) -> Option<&'static str> {
        let own = Self::names().into_iter().find(|own| sim::names::are_same_name(own, name))?;
        STUDIES.get_file(format!("{own}.toml"))?.contents_utf8()
    }

    /// A built-in study by name, or a study file by path (anything that ends in `.toml`).
    ///
    /// # Errors
    /// An unknown name, an unreadable or malformed file, a value outside its limits.
    pub fn load(name_or_path: &str) -> Result<Self, StudyError> {
        let own = Self::names().into_iter().find(|name| sim::names::are_same_name(name, name_or_path));
        if let Some((file, name)) = own.and_then(|name| Some((STUDIES.get_file(format!("{name}.toml"))?, name))) {
            return Self::parse(&name, file.contents_utf8().unwrap_or_default());
        }
        if !name_or_path.ends_with(".toml") {
            return Err(StudyError::Unknown { name: name_or_path.into(), known: Self::names().join(", ") });
        }
        let text = sim::files::text::read_text(name_or_path.as_ref())
            .map_err(|e| StudyError::Unreadable { file: name_or_path.into(), why: e.to_string() })?;
        Self::parse(name_or_path, &text)
    }

    /// Reads and checks a study's TOML; `file` names it in errors.
    ///
    /// # Errors
    /// Malformed TOML, a missing or unknown key, a value outside its limits.
    pub fn parse(file: &str, text: &str) -> Result<Self, StudyError> {
        let study: Self = toml::from_str(text).map_err(|e| {
            // What the space says of a dimension is of its table for the parser.
            if e.message().starts_with("space.dimensions") {
                return StudyError::Dimension { place: place::place(file, text, e.message()), why: e.message().into() };
            }
            StudyError::Malformed { file: file.into(), why: e.to_string().trim_end().into() }
        })?;
        study.check(file).map_err(|error| error.placed(text))?;
        Ok(study)
    }
}

#[cfg(test)]
#[path = "study_tests.rs"]
mod tests;
