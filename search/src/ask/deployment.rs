//! A question about deployments: a model, requests, limits, chips and an objective.

use super::question::{QuestionDifference, all_differences, name_by_text, paths_of_names};
use super::spelling::{SpelledPart, settle_numbers};
use crate::objective::Objective;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serving::best::GivenDegrees;
use serving::lengths::LengthClass;
use serving::plan::ServingFormats;
use sim::files::carried::Files;
use sim::hardware::ChipTemplate;
use std::path::Path;

/// Devices of prompts and of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServedPools {
    /// On the same devices.
    #[default]
    Together,
    /// In pools of their own, for every pair of chips.
    Apart,
    /// Whichever serves more.
    Any,
}

/// A question about deployments. Records store it as JSON, which suffices to ask it again.
///
/// Every combination of lengths and limits is a separate case with its own answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeploymentQuestion {
    /// A built-in model's name, or the path of a Hugging Face `config.json`.
    pub model: String,
    /// Keys of the model's file that the user declares to have no effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assume_ignored: Vec<String>,
    /// Chips that are compared: names or paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chips: Vec<String>,
    /// The study whose space is searched: a built-in one's name or a file's path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub study: Option<String>,
    /// The weight of the study's training job, from 0 to 1; `None` if chips only serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_weight: Option<f64>,
    /// A fabric's name or path; `None` means each chip's usual fabric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<String>,
    /// Storage that replaces the chips' own, as GB/s and GB per device: `6.4:1600`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme: Option<String>,
    /// Devices that may be used.
    pub devices: u32,
    /// A built-in engine's name or a file's path.
    pub engine: String,
    /// Distributions of request lengths. Each is a case.
    pub lengths: Vec<Vec<LengthClass>>,
    /// Limits on the mean time to the first token, in milliseconds. Each is a case; empty means no limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ttft_ms: Vec<f64>,
    /// Limits on the mean time per output token, in milliseconds. Each is a case; empty means no limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tpot_ms: Vec<f64>,
    /// Devices of prompts and of decoding.
    #[serde(default)]
    pub pools: ServedPools,
    /// Number formats.
    pub formats: ServingFormats,
    /// The degrees that the user gives.
    #[serde(default)]
    pub degrees: GivenDegrees,
    /// Serving methods beyond the plain one.
    #[serde(default)]
    pub method: MethodSpec,
    /// The objective that ranks deployments and chips.
    #[serde(default)]
    pub objective: Objective,
    /// The texts of the files named above.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub files: Files,
}

/// Serving methods of a deployment: drafts, held prefixes, the cache's memory and a technique. The default is plain
/// serving.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MethodSpec {
    /// Tokens drafted for each pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<u32>,
    /// Mean number of drafted tokens that a pass accepts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<f64>,
    /// The drafter: `module`, `lookup`, or a model's name or path; `None` means `module`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_model: Option<String>,
    /// Fraction of every prompt that is already cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_hit: Option<f64>,
    /// Tokens of all cached prefixes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_tokens: Option<u64>,
    /// The memory of the cache: `host` or `nvme`; `None` means the device's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_place: Option<String>,
    /// Fraction of the cache in that memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_away: Option<f64>,
    /// An inference technique with its parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub technique: Option<String>,
}

/// One combination of lengths and limits.
#[derive(Debug, Clone, PartialEq)]
pub struct DeploymentCase {
    /// The lengths of requests, with shares.
    pub lengths: Vec<LengthClass>,
    /// The limit on the mean time to the first token, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// The limit on the mean time per output token, in milliseconds.
    pub tpot_ms: Option<f64>,
}

/// A deployment that a study asks for; a value that is left out is the command's usual one.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeploymentSpec {
    /// The served model: a built-in one's name or the path of a `config.json`; the first workload's where it is left
    /// out.
    pub model: Option<String>,
    /// Devices that may be used.
    pub devices: Option<u32>,
    /// The serving engine.
    pub engine: Option<String>,
    /// Tokens of a prompt.
    pub input: Option<u64>,
    /// Tokens of an answer.
    pub output: Option<u64>,
    /// The limit on the mean time to the first token, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// The limit on the mean time per output token, in milliseconds.
    pub tpot_ms: Option<f64>,
    /// Devices of prompts and of decoding.
    pub pools: Option<ServedPools>,
    /// Format of the layers' products.
    pub products: Option<String>,
    /// Weight of the training job of the study in the choice of the chip, from 0 to 1; chips only serve where it is
    /// left out.
    pub train_weight: Option<f64>,
}

impl DeploymentQuestion {
    /// Returns the number of combinations of lengths and limits, without listing them. It saturates at the largest
    /// `usize`.
    #[must_use]
    pub fn count_cases(&self) -> usize {
        let limits = [&self.ttft_ms, &self.tpot_ms].map(|given| given.len().max(1));
        limits.into_iter().fold(self.lengths.len(), usize::saturating_mul)
    }

    /// Returns every combination of lengths and limits. The limits per output token change fastest, the lengths
    /// slowest. Check [`Self::count_cases`] first, because the list may exceed memory.
    #[must_use]
    pub fn list_cases(&self) -> Vec<DeploymentCase> {
        let limits = |given: &[f64]| match given {
            [] => vec![None],
            given => given.iter().copied().map(Some).collect(),
        };
        let (firsts, betweens) = (limits(&self.ttft_ms), limits(&self.tpot_ms));
        let mut cases = Vec::new();
        for lengths in &self.lengths {
            for ttft_ms in &firsts {
                cases.extend(betweens.iter().map(|tpot_ms| DeploymentCase {
                    lengths: lengths.clone(),
                    ttft_ms: *ttft_ms,
                    tpot_ms: *tpot_ms,
                }));
            }
        }
        cases
    }

    /// Stores the texts of the named files in [`Self::files`].
    pub fn carry_files(&mut self) {
        let mut named: Vec<&str> = self.chips.iter().map(String::as_str).collect();
        named.push(&self.engine);
        named.extend([&self.fabric, &self.study].into_iter().flatten().map(String::as_str));
        // A drafter may be a word that is no file.
        let drafter = self.method.draft_model.iter().filter(|name| Path::new(name.as_str()).exists());
        let models = std::iter::once(&self.model).chain(drafter).map(String::as_str);
        let paths = paths_of_names(&named, models, &self.files);
        paths.iter().for_each(|path| self.files.carry(path));
    }

    /// Returns the question as a text. Equal questions have equal texts, however their parts are spelled.
    #[must_use]
    pub fn canonical(&self) -> String {
        self.comparable().to_string()
    }

    /// Returns every value in which the question differs from another, with its key and both values.
    #[must_use]
    pub fn differences_from(&self, other: &Self) -> Vec<QuestionDifference> {
        all_differences(&self.comparable(), &other.comparable())
    }

    /// The question as JSON, with one spelling for everything, and with the texts of files instead of their names.
    fn comparable(&self) -> Value {
        let mut own = Self { files: Files::default(), ..self.clone() };
        own.settle_names(&self.files);
        own.sort_lists();
        let mut value = serde_json::to_value(own).unwrap_or_default();
        name_by_text(&mut value, &self.files);
        value
    }

    /// Sorts the lists of chips, lengths and limits, because their order does not matter.
    fn sort_lists(&mut self) {
        self.chips.sort();
        self.lengths.sort_by_key(|classes| classes.iter().map(|of| (of.input, of.output)).collect::<Vec<_>>());
        self.ttft_ms.sort_by(f64::total_cmp);
        self.tpot_ms.sort_by(f64::total_cmp);
    }

    /// Writes everything named in its canonical spelling. A fabric that is every chip's usual one is removed, because
    /// it means the same as none.
    fn settle_names(&mut self, files: &Files) {
        SpelledPart::Model.settle(&mut self.model, files);
        self.method.draft_model.iter_mut().for_each(|model| SpelledPart::Model.settle(model, files));
        self.chips.iter_mut().for_each(|chip| SpelledPart::Chip.settle(chip, files));
        self.study.iter_mut().for_each(|study| SpelledPart::Study.settle(study, files));
        SpelledPart::Engine.settle(&mut self.engine, files);
        self.fabric.iter_mut().for_each(|fabric| SpelledPart::Fabric.settle(fabric, files));
        self.nvme.iter_mut().for_each(settle_numbers);
        let usual = |chip: &String| ChipTemplate::find_built_in(chip).ok()?.accelerator.origin.usual_fabric.clone();
        let is_usual = |fabric: &String| self.chips.iter().all(|chip| usual(chip).as_ref() == Some(fabric));
        self.fabric = self.fabric.take().filter(|fabric| self.study.is_some() || !is_usual(fabric));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serving::plan::ServedProduct;
    use sim::kernel::DataType;

    fn question() -> DeploymentQuestion {
        let products = ServedProduct::Fp8;
        DeploymentQuestion {
            model: "llama3-70b".to_owned(),
            assume_ignored: Vec::new(),
            chips: vec!["h100".to_owned()],
            study: None,
            train_weight: None,
            fabric: None,
            nvme: None,
            devices: 8,
            engine: "vllm".to_owned(),
            lengths: vec![vec![LengthClass { input: 1024, output: 256, share: 1.0 }]],
            ttft_ms: vec![500.0, 1000.0],
            tpot_ms: vec![10.0, 20.0, 30.0],
            pools: ServedPools::default(),
            formats: ServingFormats { products, experts: products, cache: DataType::Bf16 },
            degrees: GivenDegrees::default(),
            method: MethodSpec::default(),
            objective: Objective::default(),
            files: Files::default(),
        }
    }

    #[test]
    fn it_reads_back_from_json_and_lists_its_cases() {
        let own = question();
        let text = serde_json::to_string(&own).unwrap();
        assert_eq!(serde_json::from_str::<DeploymentQuestion>(&text).unwrap(), own);
        let cases = own.list_cases();
        assert_eq!((cases.len(), own.count_cases()), (6, 6));
        assert_eq!((cases[1].ttft_ms, cases[1].tpot_ms), (Some(500.0), Some(20.0)));
        assert_eq!(cases[5].ttft_ms, Some(1000.0));
        // Combinations are counted without being made.
        let many = vec![1.0; 1 << 20];
        let huge = DeploymentQuestion { ttft_ms: many.clone(), tpot_ms: many, ..own.clone() };
        assert_eq!(huge.count_cases(), 1 << 40);
        let unlimited = DeploymentQuestion { ttft_ms: Vec::new(), tpot_ms: Vec::new(), ..own };
        assert_eq!((unlimited.list_cases().len(), unlimited.count_cases()), (1, 1));
    }

    #[test]
    fn the_order_of_lists_asks_nothing() {
        let with = |chips: [&str; 2], tpot_ms: [f64; 2]| DeploymentQuestion {
            chips: chips.map(str::to_owned).to_vec(),
            tpot_ms: tpot_ms.to_vec(),
            ..question()
        };
        let own = with(["h100", "h200"], [20.0, 30.0]);
        assert_eq!(with(["h200", "h100"], [30.0, 20.0]).canonical(), own.canonical());
        assert_ne!(with(["h200", "h100"], [30.0, 25.0]).canonical(), own.canonical());
    }

    #[test]
    fn every_difference_is_told_and_swapping_swaps_the_values() {
        let own = question();
        assert!(own.differences_from(&own).is_empty());
        let other = DeploymentQuestion { devices: 16, chips: vec!["h200".to_owned()], ..own.clone() };
        let words = |list: Vec<QuestionDifference>| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (there, back) = (words(own.differences_from(&other)), words(other.differences_from(&own)));
        assert_eq!(there.len(), 2, "{there:?}");
        assert!(there.iter().any(|line| line == "devices is 8 there and 16 here"), "{there:?}");
        assert!(back.iter().any(|line| line == "devices is 16 there and 8 here"), "{back:?}");
    }
}
