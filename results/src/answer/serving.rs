//! The answer of `coplace serve` as data. Described in `docs/json.md`.

use super::serving_beside::PredictionsBeside;
use super::serving_method::MethodRecord;
use crate::text::{format_apart, format_count};
use search::serve::ServedObjective;
use search::space::ChipFigures;
use serde::{Deserialize, Serialize};
use serving::best::{Deployment, PlanRefusal, ReplicaPool, ServiceLevel, ServingAnswer, ServingBound};
use serving::lengths::LengthClass;
use serving::nearest::nearest_refusal;
use serving::{PassTime, ServingPlan};
use std::collections::BTreeMap;

/// The answer of `coplace serve`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServingReport {
    /// The model.
    pub model: String,
    /// The engine.
    pub engine: String,
    /// Devices that may be used.
    pub devices: u32,
    /// Lengths of the requests, with shares that sum to 1.
    pub lengths: Vec<LengthClass>,
    /// The limit on the mean time to the first token, in ms; `null` without one.
    pub ttft_limit_ms: Option<f64>,
    /// The limit on the mean time per output token, in ms; `null` without one.
    pub tpot_limit_ms: Option<f64>,
    /// How it serves beside the plain way; `null` in the plain way.
    pub method: Option<MethodRecord>,
    /// Assumptions about the model and the networks.
    #[serde(default)]
    pub assumptions: Vec<String>,
    /// The objective that ranks deployments, as `--objective` has it.
    pub objective: String,
    /// The unit of the objective's values.
    pub unit: String,
    /// Deployments, best first.
    pub choices: Vec<ServingChoice>,
    /// Plans priced.
    pub plans: u64,
    /// Plans that do not serve, over all chips.
    pub refused: u64,
    /// Why the nearest one of them does not; `null` if all do.
    pub nearest_refusal: Option<String>,
    /// The space of chips that was searched; `null` without one.
    pub space: Option<ServedSpaceRecord>,
    /// Built chips beside the best of a space, at the same level; empty without a space.
    pub baselines: Vec<ServedBaseline>,
    /// Another tool's predictions for its own configurations; `null` unless asked for.
    pub beside: Option<PredictionsBeside>,
}

/// A built chip that serves the same requests on as many devices within the same level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServedBaseline {
    /// The chip.
    pub chip: String,
    /// Its fabric; `null` if none can be used.
    pub fabric: Option<String>,
    /// Format of its layers' products: the question's, or the nearest that its arrays multiply.
    pub products: String,
    /// Format of its experts' products, likewise.
    pub experts: String,
    /// The value of the objective by its fitted rates; `null` if it does not serve.
    pub fitted: Option<f64>,
    /// The same with the efficiency of the space's chips; `null` likewise.
    pub same_form: Option<f64>,
    /// The format that it refuses, or the reason why it does not serve.
    pub note: Option<String>,
}

/// A space of chips and how it was searched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServedSpaceRecord {
    /// The study.
    pub study: String,
    /// Combinations of its values.
    pub combinations: u64,
    /// Those that are chips within its limits.
    pub chips: u64,
    /// Chips whose plans were all priced. The others cannot serve more by their bound.
    pub priced: u64,
    /// The highest bound of a chip that was not priced, in the objective's unit; 0 if all were.
    pub bound: f64,
    /// How much higher than the best found the value of any chip of the space could be, as a fraction of the best.
    pub gap: f64,
    /// The best chip's fields that differ from the base chip's, by key.
    pub best_values: Vec<(String, String)>,
    /// The best two chips of the space for pools apart; `null` unless asked for.
    pub apart: Option<TwoChips>,
    /// The price of one chip for training and serving; `null` unless asked for.
    pub both: Option<TrainAndServe>,
    /// The value of the base chip, with the efficiency of the space's chips, on as many devices; `null` if it does not
    /// serve.
    pub reference: Option<f64>,
}

/// One chip for training and serving beside the best chip for each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainAndServe {
    /// The trained model.
    pub trains_model: String,
    /// Weight of training.
    pub train_weight: f64,
    /// Chips whose fastest training plan was found. The others cannot do both better, by their bounds.
    pub priced_training: u64,
    /// Chips whose deployments were priced, likewise.
    pub priced_serving: u64,
    /// The values of the best chip for training alone.
    pub training_values: Vec<(String, String)>,
    /// The values of the best chip for serving alone.
    pub serving_values: Vec<(String, String)>,
    /// Training tokens per second and chip on the chip for both.
    pub training_tokens_per_s: f64,
    /// The chip's rate in training, as a fraction of the best chip's for training alone.
    pub trains: f64,
    /// The chip's rate in serving, as a fraction of the best chip's for serving alone.
    pub serves: f64,
    /// How the best chip for training alone serves, as the same fraction.
    pub training_chip_serves: f64,
    /// How the best chip for serving alone trains, as a fraction of the best for training.
    pub serving_chip_trains: f64,
}

/// Two chips of a space, one for each pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TwoChips {
    /// The values of the chip for prompts.
    pub prefill_values: Vec<(String, String)>,
    /// The values of the chip for decoding.
    pub decode_values: Vec<(String, String)>,
    /// Output tokens per second and device with two kinds of chips, on so many devices that they divide as they should.
    /// No pair of the space serves more on any number of devices.
    pub two_kinds: f64,
    /// The same with the best single kind in both pools.
    pub one_kind: f64,
    /// The same with the best single kind and prompts on the decoding devices.
    pub together: f64,
    /// The best two chips on the devices of the question; `null` if too few for two pools.
    pub cluster: Option<ClusterChips>,
}

/// The best two chips of a space on a finite cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterChips {
    /// The values of the chip for prompts.
    pub prefill_values: Vec<(String, String)>,
    /// The values of the chip for decoding.
    pub decode_values: Vec<(String, String)>,
    /// Output tokens per second of the cluster. No other pair or split of its devices serves more.
    pub tokens_per_s: f64,
    /// Pairs of chips whose splits were tried; the others cannot serve more by their rates on many devices.
    pub tried: u64,
    /// All pairs.
    pub pairs: u64,
    /// How much more as many devices of a large cluster serve, as a fraction: what whole replicas cost.
    pub below_many: f64,
}

/// A deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServingChoice {
    /// The pool that decodes.
    pub decode: PoolRecord,
    /// The pool for prompts, if they are apart.
    pub prefill: Option<PoolRecord>,
    /// Devices in use.
    pub devices: u32,
    /// Mean time from a request's arrival to its first token, ms.
    pub ttft_ms: f64,
    /// Mean time between two tokens, ms.
    pub tpot_ms: f64,
    /// Requests per second of the whole deployment.
    pub requests_per_s: f64,
    /// Output tokens per second of the whole deployment.
    pub tokens_per_s: f64,
    /// The same per device in use.
    pub tokens_per_s_per_device: f64,
    /// The value of the objective; `null` if a chip lacks its figure.
    pub value: Option<f64>,
    /// The values of all objectives that the chips have figures for, by name.
    pub values: BTreeMap<String, f64>,
    /// Output tokens per joule of all devices in use.
    pub tokens_per_joule: f64,
    /// Requests per second relative to the rate at which the queue grows without end.
    pub load: f64,
    /// Mean sequences that decode on a replica.
    pub decoding: f64,
    /// Fraction of a decoding replica's time that prompts take.
    pub prompt_fraction: f64,
    /// The reason why it does not serve more: `time_to_first_token`, `time_per_output_token`, `load` or
    /// `power`.
    pub limited_by: ServingBound,
    /// One decoding iteration, ms, by parts.
    pub iteration: IterationRecord,
    /// A prompt of the mean length alone, ms.
    pub prompt_ms: f64,
    /// The cache's way from one pool to the other, ms; 0 if they are one.
    pub transfer_ms: f64,
}

/// A pool of replicas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// The chip.
    pub chip: String,
    /// Replicas.
    pub replicas: u32,
    /// Devices that split every layer.
    pub tp: u32,
    /// Stages.
    pub pp: u32,
    /// Groups that attend for sequences of their own.
    pub attention_dp: u32,
    /// Parts that hold experts of their own.
    pub ep: u32,
    /// Devices that share the tokens of a sequence; records of earlier versions have 1.
    #[serde(default = "one_device")]
    pub dcp: u32,
    /// Most tokens of an iteration; records of earlier versions have 0.
    #[serde(default)]
    pub most_tokens: u64,
    /// Format of the layers' products.
    pub products: String,
    /// Format of experts' products.
    pub experts: String,
    /// Format of the cache.
    pub cache: String,
    /// Memory of a device that the engine may use, GiB.
    pub usable_gib: f64,
    /// Weights on a device, GiB.
    pub weights_gib: f64,
    /// Working memory and context, GiB.
    pub working_gib: f64,
    /// Room for the cache, GiB.
    pub cache_gib: f64,
    /// Prefixes that all requests share, GiB.
    pub prefixes_gib: f64,
    /// Cache of one token in layers that see all tokens, KiB per device.
    pub cache_kib_per_token: f64,
    /// Mean power of a device, W.
    pub device_w: f64,
    /// The limit on it, W: the space's, or the chip's published one; `null` without one.
    pub power_limit_w: Option<f64>,
    /// The clock, MHz: the one at which most is served with the power within the limit.
    pub clock_mhz: f64,
    /// The clock without the limit, MHz.
    pub full_clock_mhz: f64,
}

/// The degree of records of earlier versions.
const fn one_device() -> u32 {
    1
}

/// One decoding iteration by parts, ms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct IterationRecord {
    /// The whole.
    pub total_ms: f64,
    /// Products with weights.
    pub products_ms: f64,
    /// Attention.
    pub attention_ms: f64,
    /// Vector work.
    pub vector_ms: f64,
    /// Communication.
    pub communication_ms: f64,
    /// Gaps between kernels.
    pub gaps_ms: f64,
    /// The host.
    pub host_ms: f64,
    /// Passes that draft tokens.
    pub drafts_ms: f64,
    /// Keys and values on their way from a memory off the device, as far as no other work hides them.
    pub fetches_ms: f64,
}

/// The figures of a pool's chip; `None` for a chip without an area model.
pub type FiguresOfPool<'a> = dyn Fn(&ReplicaPool) -> Option<ChipFigures> + 'a;

const MS: f64 = 1e3;

impl IterationRecord {
    /// Returns the names and times of the parts that take any, in ms. Text, explanation and page show these.
    #[must_use]
    pub fn list_parts(&self) -> Vec<(&'static str, f64)> {
        let parts = [
            ("products", self.products_ms),
            ("attention", self.attention_ms),
            ("vector", self.vector_ms),
            ("communication", self.communication_ms),
            ("gaps", self.gaps_ms),
            ("host", self.host_ms),
            ("drafts", self.drafts_ms),
            ("exposed cache fetches", self.fetches_ms),
        ];
        parts.into_iter().filter(|(_, ms)| *ms > 0.0).collect()
    }

    fn of_pass(pass: &PassTime) -> Self {
        Self {
            total_ms: pass.total().0 * MS,
            products_ms: pass.products.0 * MS,
            attention_ms: pass.attention.0 * MS,
            vector_ms: pass.vector.0 * MS,
            communication_ms: pass.communication.0 * MS,
            gaps_ms: pass.gaps.0 * MS,
            host_ms: pass.host.0 * MS,
            drafts_ms: pass.drafts.0 * MS,
            fetches_ms: pass.fetches.0 * MS,
        }
    }
}

impl PoolRecord {
    /// Returns the plan in words, without the chip: `2 x tp 4, ep 2`.
    #[must_use]
    pub fn plan_words(&self) -> String {
        let mut parts = vec![format!("tp {}", self.tp)];
        let further = [("pp", self.pp), ("attention dp", self.attention_dp), ("ep", self.ep), ("dcp", self.dcp)];
        let further = further.into_iter().filter(|(_, degree)| *degree > 1);
        parts.extend(further.map(|(name, degree)| format!("{name} {degree}")));
        format!("{} x {}", format_count(self.replicas), parts.join(", "))
    }

    fn of_pool(pool: &ReplicaPool) -> Self {
        let ServingPlan { tensor, pipeline, attention_data, expert, context, formats } = pool.plan;
        let memory = &pool.memory;
        Self {
            chip: pool.chip.clone(),
            replicas: pool.replicas,
            tp: tensor,
            pp: pipeline,
            attention_dp: attention_data,
            ep: expert,
            dcp: context,
            most_tokens: pool.most_tokens,
            products: formats.products.to_string(),
            experts: formats.experts.to_string(),
            cache: formats.cache.to_string(),
            usable_gib: memory.usable.gib(),
            weights_gib: memory.weights.gib(),
            working_gib: memory.working.gib(),
            cache_gib: memory.room_for_cache().gib(),
            prefixes_gib: memory.prefixes.gib(),
            cache_kib_per_token: memory.cache.per_token.as_f64() / 1024.0,
            device_w: pool.power.0,
            power_limit_w: pool.power_limit.map(|limit| limit.0),
            clock_mhz: pool.clock.0 / 1e6,
            full_clock_mhz: pool.full_clock.0 / 1e6,
        }
    }
}

impl ServingChoice {
    /// Returns the chips in words: `h200`, or `prompts h100, decoding h200` in pools apart.
    #[must_use]
    pub fn chip_words(&self) -> String {
        match &self.prefill {
            None => self.decode.chip.clone(),
            Some(prefill) => format!("prompts {}, decoding {}", prefill.chip, self.decode.chip),
        }
    }

    /// Returns the plans of the pools in words, without the chips.
    #[must_use]
    pub fn plan_words(&self) -> String {
        match &self.prefill {
            None => self.decode.plan_words(),
            Some(prefill) => format!("prompts {}, decoding {}", prefill.plan_words(), self.decode.plan_words()),
        }
    }

    /// Returns output tokens per second that a user sees while an answer is generated.
    #[must_use]
    pub fn tokens_per_s_per_user(&self) -> f64 {
        MS / self.tpot_ms
    }

    /// Returns the record of a deployment, with its value of `objective`.
    #[must_use]
    pub fn of_deployment(deployment: &Deployment, objective: ServedObjective, figures: &FiguresOfPool<'_>) -> Self {
        let each = ServedObjective::all().into_iter();
        let values = each.filter_map(|one| Some((one.to_string(), one.value(deployment, figures)?)));
        let state = &deployment.state;
        Self {
            decode: PoolRecord::of_pool(&deployment.decode),
            prefill: deployment.prefill.as_ref().map(PoolRecord::of_pool),
            devices: deployment.devices(),
            ttft_ms: state.time_to_first_token.0 * MS,
            tpot_ms: state.time_per_output_token.0 * MS,
            requests_per_s: deployment.requests_per_second,
            tokens_per_s: deployment.tokens_per_second,
            tokens_per_s_per_device: deployment.tokens_per_second_per_device,
            value: objective.value(deployment, figures),
            values: values.collect(),
            tokens_per_joule: deployment.tokens_per_joule,
            load: state.load,
            decoding: state.decoding,
            prompt_fraction: state.prompt_fraction,
            limited_by: deployment.bound,
            iteration: IterationRecord::of_pass(&deployment.iteration),
            prompt_ms: deployment.prompt.0 * MS,
            transfer_ms: deployment.transfer.0 * MS,
        }
    }
}

/// Returns a refusal in words.
#[must_use]
pub fn describe_refusal(refusal: &PlanRefusal, level: &ServiceLevel) -> String {
    match refusal {
        PlanRefusal::Fault(error) => error.to_string(),
        PlanRefusal::TooHot { plan, power, limit } => {
            let (power, limit) = format_apart(power.0, limit.0, 0);
            format!(
                "tp {}, pp {}: takes {power} W a device, {limit} allowed, and no lower clock meets both limits",
                plan.tensor, plan.pipeline
            )
        }
        PlanRefusal::TooSlow { plan, time_to_first_token: first, time_per_output_token: between } => {
            let over = |time: sim::units::Seconds, limit: Option<sim::units::Seconds>, what: &str| {
                let limit = limit.filter(|limit| time > *limit)?;
                let (time, limit) = format_apart(time.0 * MS, limit.0 * MS, 1);
                Some(format!("{what} {time} ms, {limit} allowed"))
            };
            let misses: Vec<String> = [
                over(*first, level.time_to_first_token, "time to first token"),
                over(*between, level.time_per_output_token, "time per output token"),
            ]
            .into_iter()
            .flatten()
            .collect();
            format!("tp {}, pp {}: a request alone takes {}", plan.tensor, plan.pipeline, misses.join("; "))
        }
    }
}

impl ServingReport {
    /// Returns the report of the answers for several hardware choices, with every deployment, by their values of the
    /// objective.
    #[must_use]
    pub fn of_answers(
        head: Self,
        answers: &[ServingAnswer],
        level: &ServiceLevel,
        (objective, figures): (ServedObjective, &FiguresOfPool<'_>),
    ) -> Self {
        let all = answers.iter().flat_map(|answer| &answer.deployments);
        let mut choices: Vec<ServingChoice> =
            all.map(|deployment| ServingChoice::of_deployment(deployment, objective, figures)).collect();
        // Equal values are in the order of the times to the first token.
        let value = |choice: &ServingChoice| choice.value.unwrap_or(0.0);
        choices.sort_by(|a, b| value(b).total_cmp(&value(a)).then(a.ttft_ms.total_cmp(&b.ttft_ms)));
        let refused: u64 = answers.iter().map(|answer| answer.refused.len() as u64).sum();
        let nearest = nearest_refusal(answers, level);
        Self {
            choices,
            plans: answers.iter().map(|answer| answer.priced).sum(),
            refused,
            nearest_refusal: nearest.map(|refusal| describe_refusal(refusal, level)),
            ..head
        }
    }
}
