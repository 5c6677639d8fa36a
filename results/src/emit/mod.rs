//! Writes a plan as the configuration of the framework that will run it, and a step as a trace.

mod deepspeed;
mod kept;
mod maxtext;
mod megatron;
mod megatron_bridge;
mod megatron_settings;
mod nanotron;
pub mod stage_trace;
#[cfg(test)]
mod tests;
mod torch;
mod torchtitan;
pub mod trace;

pub use deepspeed::{deepspeed_choices, write_deepspeed};
pub use maxtext::{maxtext_choices, maxtext_policies, write_maxtext};
pub use megatron::write_megatron;
pub use megatron_bridge::write_megatron_bridge;
pub use nanotron::{nanotron_choices, write_nanotron};
pub use torch::write_torch;
pub use torchtitan::{torchtitan_choices, write_torchtitan};

use crate::answer::rank_mapping::RankMappingRecord;
use step::{Framework, SoftwareStack, TrainingPlan};
use thiserror::Error;
use workloads::Model;
use workloads::training::LossForm;

/// A plan, with the job for which it was made.
#[derive(Debug, Clone, Copy)]
pub struct PlanRecipe<'a> {
    /// The trained model.
    pub model: &'a Model,
    /// The plan.
    pub plan: &'a TrainingPlan,
    /// The software stack under which the plan was timed.
    pub stack: &'a SoftwareStack,
    /// The name of the chip.
    pub chip: &'a str,
    /// The number of devices in a fast domain (a node, a slice).
    pub fast_domain: u32,
    /// Further values from the model's configuration.
    pub numerics: ModelNumerics,
    /// The placement of ranks, if links of the fabric were measured one by one.
    pub mapping: Option<&'a RankMappingRecord>,
}

/// Values of a model's configuration that change the training, but not its time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ModelNumerics {
    /// The base of the rotary embeddings.
    pub rotary_base: Option<f64>,
    /// The constant that norms add to the variance.
    pub norm_epsilon: Option<f64>,
    /// The factor by which Llama 3 stretches the rotation.
    pub rotation_factor: Option<f64>,
    /// True if YaRN stretches the rotation (GPT-OSS, DeepSeek).
    pub yarn: bool,
    /// The limit on the inputs of a gated activation (GPT-OSS).
    pub gate_limit: Option<f64>,
    /// The values of the router of experts.
    pub router: RouterNumerics,
}

/// Values of a router that change the training, but not its time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RouterNumerics {
    /// True if experts are scored by sigmoids instead of a softmax.
    pub sigmoid: bool,
    /// True if the softmax runs over all experts, and the chosen ones keep their weights.
    pub softmax_over_all: bool,
    /// True if biases that are adapted to the load take part in the choice of experts (DeepSeek-V3, arXiv:2412.19437,
    /// section 2.1.2).
    pub balancing_bias: bool,
    /// The factor on the weights of the chosen experts; `None` if it is 1 or not given.
    pub scaling_factor: Option<f64>,
    /// The weight of the loss that balances the load; 0 without such a loss, `None` if not given.
    pub balance_loss: Option<f64>,
    /// True if the balancing loss is computed over each sequence.
    pub balances_sequences: bool,
}

/// Model families whose routers score by sigmoids and choose with balancing biases, whatever their files say. This is
/// how transformers 5.17 builds them.
const SIGMOID_ROUTERS: [&str; 6] = ["deepseek_v3", "deepseek_v32", "dots1", "glm4_moe", "glm4_moe_lite", "kimi_k2"];

impl RouterNumerics {
    fn from_config(config: &serde_json::Value) -> Self {
        let text = |key: &str| config.pointer(key).and_then(serde_json::Value::as_str);
        let flag = |key: &str| config.pointer(key).and_then(serde_json::Value::as_bool);
        let number = |keys: [&str; 2]| keys.iter().find_map(|key| config.pointer(key)?.as_f64());
        let family = text("/model_type").is_some_and(|family| SIGMOID_ROUTERS.contains(&family));
        let sigmoid = family || text("/scoring_func") == Some("sigmoid");
        Self {
            sigmoid,
            softmax_over_all: !sigmoid && flag("/norm_topk_prob") == Some(false),
            balancing_bias: family
                || text("/topk_method") == Some("noaux_tc")
                || flag("/use_routing_bias") == Some(true),
            scaling_factor: number(["/routed_scaling_factor", "/route_scale"]).filter(|factor| *factor != 1.0),
            balance_loss: number(["/router_aux_loss_coef", "/aux_loss_alpha"]),
            balances_sequences: flag("/seq_aux") == Some(true),
        }
    }
}

impl ModelNumerics {
    /// Reads the text of a `config.json`. For other texts, no value is given.
    #[must_use]
    pub fn from_config(config: &str) -> Self {
        let config: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
        let number = |keys: &[&str]| keys.iter().find_map(|key| config.pointer(key)?.as_f64());
        Self {
            rotary_base: number(&["/rope_theta", "/rope_parameters/rope_theta", "/rotary_emb_base", "/rotary_base"]),
            norm_epsilon: number(&[
                "/rms_norm_eps",
                "/layer_norm_eps",
                "/layer_norm_epsilon",
                "/norm_epsilon",
                "/norm_eps",
            ]),
            rotation_factor: ["/rope_scaling", "/rope_parameters"].iter().find_map(|key| {
                let stretched = config.pointer(key).filter(|scaling| scaling["rope_type"] == "llama3")?;
                stretched["factor"].as_f64()
            }),
            yarn: ["/rope_scaling", "/rope_parameters"].iter().any(|key| {
                let kind = |name: &str| config.pointer(key).is_some_and(|scaling| scaling[name] == "yarn");
                kind("rope_type") || kind("type")
            }),
            gate_limit: number(&["/swiglu_limit"]),
            router: RouterNumerics::from_config(&config),
        }
    }
}

/// A plan as the configuration of a framework.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmittedPlan {
    /// Arguments or settings, one per line. In most formats, lines that begin with `#` are comments and contain all of
    /// `lacking`.
    pub text: String,
    /// Parts of the timed plan that the framework cannot express or refuses. With this configuration, the framework
    /// runs a different plan in these parts. Empty if the configuration is complete.
    pub lacking: Vec<String>,
}

/// Attention within packed documents: every framework leaves this to the data loader and to the choice of an attention
/// kernel.
const DOCUMENTS: &str = "attention within packed documents: the data's loader has to hand their ends to a kernel that \
                         skips the scores between them";

/// A configuration that is being written.
#[derive(Default)]
struct EmittedLines {
    lines: Vec<String>,
    lacking: Vec<String>,
}

impl EmittedLines {
    fn push(&mut self, line: String) {
        self.lines.push(line);
    }

    /// Adds a comment about the arguments, or about a choice that is left to the reader. Does nothing if `on` is false.
    fn push_note(&mut self, on: bool, text: &str) {
        if on {
            self.lines.push(format!("# {text}"));
        }
    }

    /// Adds a comment about a part that the arguments cannot express, and notes it as lacking. Does nothing if `on` is
    /// false.
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

/// The error of a model that a framework cannot express.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "--emit: {model} has {feature}, which coplace does not write for {framework}; leave --emit out, or plan another one"
)]
pub struct Inexpressible {
    /// The model's name.
    pub model: String,
    /// The feature that the framework lacks.
    pub feature: &'static str,
    /// The framework.
    pub framework: &'static str,
}

/// Returns features of a model's mixers, each with whether the model has it. Only some frameworks have settings for
/// them.
fn mixer_features(model: &Model) -> [(bool, &'static str); 9] {
    let variations = &model.variations;
    let own_heads = model.layer_kinds().iter().any(|(kind, _)| kind.attention.is_some());
    [
        (variations.linear.is_some(), "layers of linear attention"),
        (variations.indexer.is_some(), "attention to tokens that an indexer chooses"),
        (variations.scan.is_some() || variations.channel_scan.is_some(), "state-space scans"),
        (variations.convolution.is_some(), "short convolutions as mixers"),
        (own_heads, "layers that differ in their attention heads"),
        (variations.output_gate.is_some(), "a gate on attention's result"),
        (variations.value_dim.is_some(), "value heads of another dimension than key heads"),
        (variations.shared_value, "keys that are values too"),
        (model.experts.is_some_and(|experts| experts.own_norms), "experts with norms of their own"),
    ]
}

impl PlanRecipe<'_> {
    /// Returns an error for the first of `features` that the model has.
    fn refuse_features(&self, framework: &'static str, features: &[(bool, &'static str)]) -> Result<(), Inexpressible> {
        match features.iter().find(|(has, _)| *has) {
            Some((_, feature)) => Err(Inexpressible { model: self.model.name.clone(), feature, framework }),
            None => Ok(()),
        }
    }

    /// Starts the lines with comments that any framework needs: the software stack under which the plan was timed, if
    /// it is of another framework, and the placement of ranks.
    fn push_comments(&self, is_own: impl Fn(Framework) -> bool) -> EmittedLines {
        let foreign = !is_own(self.stack.framework.name);
        let timed = foreign.then(|| format!("# timed and sized under the software stack {}", self.stack.name));
        let mut out = EmittedLines {
            lines: timed.into_iter().chain(self.mapping.map(describe_placement)).collect(),
            ..EmittedLines::default()
        };
        let chunked = self.stack.kernels.loss == LossForm::Chunked;
        out.push_lack(
            chunked,
            "head and loss by chunks of tokens: Liger's kernel, which is no setting of the framework",
        );
        let autocast = !self.stack.kernels.autocast.is_none();
        out.push_lack(
            autocast,
            "PyTorch's autocast over fp32 parameters, which no file of the framework is written for",
        );
        out
    }
}

/// Describes the placement of ranks. It lists the order of the nodes if each node holds its ranks together and in
/// order; otherwise it lists the device of each rank.
fn describe_placement(mapping: &RankMappingRecord) -> String {
    let unit = mapping.unit_devices.max(1);
    let nodes: Vec<u32> =
        mapping.devices.chunks(unit as usize).filter_map(|ranks| ranks.first()).map(|d| d / unit).collect();
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
