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
    /// The optional serving methods: drafts, held prefixes, cache placement, and inference technique. `null` if none is
    /// used.
    pub method: Option<MethodRecord>,
    /// Assumptions about the model and the networks.
    #[serde(default)]
    pub assumptions: Vec<String>,
    /// The objective that ranks deployments, as an argument of `--objective`.
    pub objective: String,
    /// The unit of the objective's values.
    pub unit: String,
    /// Deployments, best first.
    pub choices: Vec<ServingChoice>,
    /// The number of plans that were priced.
    pub plans: u64,
    /// The number of plans that do not serve, over all chips.
    pub refused: u64,
    /// The reason why the nearest of the refused plans does not serve; `null` if all plans serve.
    pub nearest_refusal: Option<String>,
    /// The space of chips that was searched; `null` without one.
    pub space: Option<ServedSpaceRecord>,
    /// Built chips beside the best chip of a space, within the same limits; empty without a space.
    pub baselines: Vec<ServedBaseline>,
    /// Another tool's predictions for its own configurations; `null` unless requested.
    pub beside: Option<PredictionsBeside>,
}

/// A built chip that serves the same requests on the same number of devices within the same limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServedBaseline {
    /// The chip.
    pub chip: String,
    /// Its fabric; `null` if none can be used.
    pub fabric: Option<String>,
    /// The number format of its layers' products: the requested one, or the nearest that its arrays multiply.
    pub products: String,
    /// The number format of its experts' products, chosen in the same way.
    pub experts: String,
    /// The value of the objective with the chip's fitted rates; `null` if the chip does not serve.
    pub fitted: Option<f64>,
    /// The value of the objective with the efficiency of the space's chips; `null` if the chip does not serve.
    pub same_form: Option<f64>,
    /// The number format that the chip lacks, or the reason why it does not serve.
    pub note: Option<String>,
}

/// A space of chips, with the course and the result of its search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServedSpaceRecord {
    /// The study.
    pub study: String,
    /// Combinations of the study's values.
    pub combinations: u64,
    /// Combinations that are chips within the limits of the study.
    pub chips: u64,
    /// Chips whose plans were all priced. The bounds of the other chips prove that they are not better.
    pub priced: u64,
    /// The highest bound of a chip that was not priced, in the objective's unit; 0 if all were priced.
    pub bound: f64,
    /// Upper bound on the relative improvement of any chip of the space over the best one found.
    pub gap: f64,
    /// The fields of the best chip that differ from the base chip, by key.
    pub best_values: Vec<(String, String)>,
    /// The best two chips of the space if prompts and decoding have separate pools; `null` unless requested.
    pub apart: Option<TwoChips>,
    /// The cost of using one chip for both training and serving; `null` unless requested.
    pub both: Option<TrainAndServe>,
    /// The value of the base chip on the same number of devices, with the efficiency of the space's chips; `null` if it
    /// does not serve.
    pub reference: Option<f64>,
}

/// One chip for both training and serving, beside the best chip for each alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainAndServe {
    /// The trained model.
    pub trains_model: String,
    /// The weight of training in the joint objective.
    pub train_weight: f64,
    /// Chips whose fastest training plan was found. The bounds of the others prove that they do not do both better.
    pub priced_training: u64,
    /// Chips whose deployments were priced. The bounds of the others prove that they do not do both better.
    pub priced_serving: u64,
    /// The values of the best chip for training alone.
    pub training_values: Vec<(String, String)>,
    /// The values of the best chip for serving alone.
    pub serving_values: Vec<(String, String)>,
    /// Training tokens per second and chip, on the chip for both.
    pub training_tokens_per_s: f64,
    /// Training rate of the chip for both, as a fraction of the rate of the best training chip.
    pub trains: f64,
    /// Serving rate of the chip for both, as a fraction of the rate of the best serving chip.
    pub serves: f64,
    /// Serving rate of the best training chip, as a fraction of the rate of the best serving chip.
    pub training_chip_serves: f64,
    /// Training rate of the best serving chip, as a fraction of the rate of the best training chip.
    pub serving_chip_trains: f64,
}

/// Two chips of a space, one for each pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TwoChips {
    /// The values of the chip for the prompts' pool.
    pub prefill_values: Vec<(String, String)>,
    /// The values of the chip for the decoding pool.
    pub decode_values: Vec<(String, String)>,
    /// Output tokens per second and device with two kinds of chips, on so many devices that the pools reach their ideal
    /// ratio. No pair of the space serves more on any number of devices.
    pub two_kinds: f64,
    /// Output tokens per second and device with the best single kind of chip in both pools.
    pub one_kind: f64,
    /// Output tokens per second and device with the best single kind of chip, if prompts run on the decoding devices.
    pub together: f64,
    /// The best two chips on the requested devices; `null` if these are too few for two pools.
    pub cluster: Option<ClusterChips>,
}

/// The best two chips of a space on a finite cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterChips {
    /// The values of the chip for the prompts' pool.
    pub prefill_values: Vec<(String, String)>,
    /// The values of the chip for the decoding pool.
    pub decode_values: Vec<(String, String)>,
    /// Output tokens per second of the cluster. No other pair or split of its devices serves more.
    pub tokens_per_s: f64,
    /// Pairs of chips whose splits of the devices were tried. The other pairs serve no more, as their rates on many
    /// devices prove.
    pub tried: u64,
    /// All pairs of chips.
    pub pairs: u64,
    /// The fraction by which the same number of devices serves more as part of a large cluster: the loss from whole
    /// replicas.
    pub below_many: f64,
}

/// A deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServingChoice {
    /// The pool that decodes. It also takes the prompts if `prefill` is `null`.
    pub decode: PoolRecord,
    /// The pool for prompts; `null` if one pool does both.
    pub prefill: Option<PoolRecord>,
    /// Devices in use.
    pub devices: u32,
    /// Mean time from a request's arrival to its first token, in ms.
    pub ttft_ms: f64,
    /// Mean time between two tokens, in ms.
    pub tpot_ms: f64,
    /// Requests per second of the whole deployment.
    pub requests_per_s: f64,
    /// Output tokens per second of the whole deployment.
    pub tokens_per_s: f64,
    /// Output tokens per second and device in use.
    pub tokens_per_s_per_device: f64,
    /// The value of the objective; `null` if a chip lacks a figure that it needs.
    pub value: Option<f64>,
    /// The values of all objectives whose figures are known for the chips, by name.
    pub values: BTreeMap<String, f64>,
    /// Output tokens per joule of all devices in use.
    pub tokens_per_joule: f64,
    /// Requests per second, as a fraction of the rate at which the queue grows without limit.
    pub load: f64,
    /// Mean number of sequences that decode on a replica.
    pub decoding: f64,
    /// Fraction of a decoding replica's time that prompts take.
    pub prompt_fraction: f64,
    /// The limit that keeps the deployment from serving more: `time_to_first_token`, `time_per_output_token`, `load` or
    /// `power`.
    pub limited_by: ServingBound,
    /// The parts of one decoding iteration, in ms.
    pub iteration: IterationRecord,
    /// Time of a prompt of the mean length that runs alone, in ms.
    pub prompt_ms: f64,
    /// Time to transfer the cache from the prompts' pool to the decoding pool, in ms; 0 for a single pool.
    pub transfer_ms: f64,
}

/// A pool of replicas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// The chip.
    pub chip: String,
    /// The number of replicas.
    pub replicas: u32,
    /// Tensor-parallel degree: devices that split every layer.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Data-parallel degree of attention: groups that each attend for their own sequences.
    pub attention_dp: u32,
    /// Expert-parallel degree: groups that each hold their own experts.
    pub ep: u32,
    /// Devices that share the tokens of a sequence when decoding; 1 in records of earlier versions.
    #[serde(default = "one_device")]
    pub dcp: u32,
    /// The largest number of tokens of an iteration; 0 in records of earlier versions.
    #[serde(default)]
    pub most_tokens: u64,
    /// Number format of the layers' products.
    pub products: String,
    /// Number format of the experts' products.
    pub experts: String,
    /// Number format of the cache.
    pub cache: String,
    /// Device memory that the engine may use, in GiB.
    pub usable_gib: f64,
    /// Weights on a device, in GiB.
    pub weights_gib: f64,
    /// Working memory and device context, in GiB.
    pub working_gib: f64,
    /// Memory for the cache, in GiB.
    pub cache_gib: f64,
    /// Prefixes that all requests share, in GiB.
    pub prefixes_gib: f64,
    /// Cache of one token in layers that attend to all tokens, in KiB per device.
    pub cache_kib_per_token: f64,
    /// Mean power of a device, in W.
    pub device_w: f64,
    /// The power limit of a device in W: the limit of the space, or the one that the chip's maker publishes. `null`
    /// without one.
    pub power_limit_w: Option<f64>,
    /// The clock in MHz: the one that serves most within the power limit.
    pub clock_mhz: f64,
    /// The clock in MHz without the power limit.
    pub full_clock_mhz: f64,
}

/// Returns the degree in records of earlier versions.
const fn one_device() -> u32 {
    1
}

/// The parts of one decoding iteration, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct IterationRecord {
    /// The whole iteration.
    pub total_ms: f64,
    /// Matrix products with weights.
    pub products_ms: f64,
    /// Attention.
    pub attention_ms: f64,
    /// Vector work.
    pub vector_ms: f64,
    /// Communication.
    pub communication_ms: f64,
    /// Gaps between kernels.
    pub gaps_ms: f64,
    /// Work of the host.
    pub host_ms: f64,
    /// Passes that draft tokens.
    pub drafts_ms: f64,
    /// The exposed part of fetching keys and values from a memory off the device.
    pub fetches_ms: f64,
}

/// Returns the figures of a pool's chip; `None` for a chip without an area model.
pub type FiguresOfPool<'a> = dyn Fn(&ReplicaPool) -> Option<ChipFigures> + 'a;

const MS: f64 = 1e3;

impl IterationRecord {
    /// Returns the names and times of the parts that take time, in ms. Text, explanation and page show these.
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
    /// Describes the plan without the chip: `2 x tp 4, ep 2`.
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
    /// Describes the chips: `h200`, or `prompts h100, decoding h200` for two pools.
    #[must_use]
    pub fn chip_words(&self) -> String {
        match &self.prefill {
            None => self.decode.chip.clone(),
            Some(prefill) => format!("prompts {}, decoding {}", prefill.chip, self.decode.chip),
        }
    }

    /// Describes the plans of the pools, without the chips.
    #[must_use]
    pub fn plan_words(&self) -> String {
        match &self.prefill {
            None => self.decode.plan_words(),
            Some(prefill) => format!("prompts {}, decoding {}", prefill.plan_words(), self.decode.plan_words()),
        }
    }

    /// Returns the output tokens per second that a user sees while an answer is generated.
    #[must_use]
    pub fn tokens_per_s_per_user(&self) -> f64 {
        MS / self.tpot_ms
    }

    /// Makes the record of a deployment, with its value of `objective`.
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

/// Returns the reason for a refusal in words.
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
    /// Makes the report of the answers for several kinds of hardware, with every deployment, the highest value of the
    /// objective first. `head` has the other fields.
    #[must_use]
    pub fn of_answers(
        head: Self,
        answers: &[ServingAnswer],
        level: &ServiceLevel,
        objective: ServedObjective,
        figures: &FiguresOfPool<'_>,
    ) -> Self {
        let all = answers.iter().flat_map(|answer| &answer.deployments);
        let mut choices: Vec<ServingChoice> =
            all.map(|deployment| ServingChoice::of_deployment(deployment, objective, figures)).collect();
        // Deployments with equal values are sorted by their times to the first token.
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
