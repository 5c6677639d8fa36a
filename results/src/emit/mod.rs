//! A plan in the words of the framework that will run it.

mod kept;
mod maxtext;
mod megatron;
#[cfg(test)]
mod tests;
mod torch;

pub use maxtext::{maxtext_choices, maxtext_policies, write_maxtext};
pub use megatron::write_megatron;
pub use torch::write_torch;

use crate::mapped::RankMappingRecord;
use step::{SoftwareStack, TrainingPlan};
use thiserror::Error;
use workloads::Model;

/// A plan and what it was made for.
#[derive(Debug, Clone, Copy)]
pub struct PlanRecipe<'a> {
    /// What is trained.
    pub model: &'a Model,
    /// How.
    pub plan: &'a TrainingPlan,
    /// The software that it was timed under.
    pub stack: &'a SoftwareStack,
    /// The chip's name.
    pub chip: &'a str,
    /// Devices of a fast domain (a node, a slice).
    pub fast_domain: u32,
    /// What the model's configuration says besides.
    pub numerics: ModelNumerics,
    /// Where its ranks run, on a fabric of measured links.
    pub mapping: Option<&'a RankMappingRecord>,
}

/// What a model's configuration says that changes what is trained and no time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ModelNumerics {
    /// The base of rotary embeddings.
    pub rotary_base: Option<f64>,
    /// What norms add to the variance.
    pub norm_epsilon: Option<f64>,
}

impl ModelNumerics {
    /// Of a `config.json`; nothing of what is no such file.
    #[must_use]
    pub fn from_config(config: &str) -> Self {
        let config: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
        let number = |keys: &[&str]| keys.iter().find_map(|key| config.pointer(key)?.as_f64());
        Self {
            rotary_base: number(&["/rope_theta", "/rope_parameters/rope_theta", "/rotary_emb_base", "/rotary_base"]),
            norm_epsilon: number(&["/rms_norm_eps", "/layer_norm_eps", "/layer_norm_epsilon", "/norm_epsilon", "/norm_eps"]),
        }
    }
}

/// A plan in a framework's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmittedPlan {
    /// Arguments or settings, one per line. Lines that begin with `#` are comments, all of `lacking` among them.
    pub text: String,
    /// What of the plan as it was timed the framework has no words for, or refuses: with these arguments alone it runs another plan. Empty where all
    /// is said.
    pub lacking: Vec<String>,
}

/// Lines as they are written.
#[derive(Default)]
struct EmittedLines {
    lines: Vec<String>,
    lacking: Vec<String>,
}

impl EmittedLines {
    fn push(&mut self, line: String) {
        self.lines.push(line);
    }

    /// A comment on what the arguments say, or leave to their reader.
    fn push_note(&mut self, on: bool, text: &str) {
        if on {
            self.lines.push(format!("# {text}"));
        }
    }

    /// A comment on what they cannot say.
    fn push_lack(&mut self, on: bool, text: &str) {
        self.push_note(on, text);
        if on {
            self.lacking.push(text.to_owned());
        }
    }

    fn into_text(self) -> EmittedPlan {
        let text = self.lines.into_iter().map(|line| line + "\n").collect();
        EmittedPlan { text, lacking: self.lacking }
    }
}

/// A model that a framework has no words for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("--emit: {model} has {feature}, which {framework} has no setting for; leave --emit out, or plan another model")]
pub struct Inexpressible {
    /// The model's name.
    pub model: String,
    /// What of it.
    pub feature: &'static str,
    /// The framework.
    pub framework: &'static str,
}

impl PlanRecipe<'_> {
    /// The first of `features` that the model has.
    fn refuse_features(&self, framework: &'static str, features: &[(bool, &'static str)]) -> Result<(), Inexpressible> {
        match features.iter().find(|(has, _)| *has) {
            Some((_, feature)) => Err(Inexpressible { model: self.model.name.clone(), feature, framework }),
            None => Ok(()),
        }
    }

    /// Comments of any framework: the software that the plan was timed under, where it is another, and where ranks run.
    fn push_comments(&self, own: &str) -> EmittedLines {
        let foreign = !self.stack.name.starts_with(own);
        let timed = foreign.then(|| format!("# timed and sized under the software stack {}", self.stack.name));
        EmittedLines { lines: timed.into_iter().chain(self.mapping.map(describe_placement)).collect(), ..EmittedLines::default() }
    }
}

/// Where ranks run: the order of the nodes where every node keeps its ranks together and in order, else every rank's device.
fn describe_placement(mapping: &RankMappingRecord) -> String {
    let unit = mapping.unit_devices.max(1);
    let nodes: Vec<u32> = mapping.devices.chunks(unit as usize).filter_map(|ranks| ranks.first()).map(|d| d / unit).collect();
    let in_order = nodes.iter().flat_map(|node| (0..unit).map(move |local| node * unit + local));
    let list = |numbers: &[u32]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    if in_order.eq(mapping.devices.iter().copied()) {
        return format!("# nodes in the order of their ranks, by their rows in --links from 0: {}", list(&nodes));
    }
    format!(
        "# devices in the order of their ranks, counted node by node in the order of --links from 0: {}",
        list(&mapping.devices)
    )
}
