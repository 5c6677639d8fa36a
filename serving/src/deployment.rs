//! A deployment at its highest rate, and the refusals of plans that do not serve.

use crate::ServingError;
use crate::memory::ServingMemory;
use crate::pass_time::PassTime;
use crate::plan::ServingPlan;
use crate::steady::SteadyState;
use serde::{Deserialize, Serialize};
use sim::units::{Hertz, Seconds, Watts};

/// The reason why a deployment does not serve more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServingBound {
    /// The limit on the time to the first token.
    TimeToFirstToken,
    /// The limit on the time per output token.
    TimePerOutputToken,
    /// The highest load.
    Load,
    /// The limit on the mean power of a device.
    Power,
}

impl ServingBound {
    /// Returns the limit as a text.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::TimeToFirstToken => "time to the first token",
            Self::TimePerOutputToken => "time per output token",
            Self::Load => "load",
            Self::Power => "power",
        }
    }
}

/// A pool of replicas of one plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicaPool {
    /// The chip.
    pub chip: String,
    /// The plan of a replica.
    pub plan: ServingPlan,
    /// Number of replicas.
    pub replicas: u32,
    /// Memory of one device.
    pub memory: ServingMemory,
    /// Mean power of one device: static power and the power of its kernels.
    pub power: Watts,
    /// The limit on a device's mean power.
    pub power_limit: Option<Watts>,
    /// Most tokens of an iteration: the engine's value, or the one of its settings that serves most.
    pub most_tokens: u64,
    /// The clock at which the pool serves most within the limit on power.
    pub clock: Hertz,
    /// The clock without a limit on power.
    pub full_clock: Hertz,
}

/// A deployment at its highest rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    /// The pool that decodes; it also prefills unless [`Self::prefill`] is a pool of its own.
    pub decode: ReplicaPool,
    /// The separate pool for prompts; `None` if the decoding pool also prefills.
    pub prefill: Option<ReplicaPool>,
    /// The state of one decoding replica. The time to the first token is the deployment's.
    pub state: SteadyState,
    /// Time of one decoding iteration at the mean number of sequences.
    pub iteration: PassTime,
    /// Time of a prompt of the mean length alone.
    pub prompt: Seconds,
    /// Time to transfer a prompt's cache from one pool to the other; zero without separate pools.
    pub transfer: Seconds,
    /// Requests per second of the whole deployment.
    pub requests_per_second: f64,
    /// Output tokens per second of the whole deployment.
    pub tokens_per_second: f64,
    /// Output tokens per second and device in use.
    pub tokens_per_second_per_device: f64,
    /// Output tokens per joule; 0 if the chip's power is unknown.
    pub tokens_per_joule: f64,
    /// The reason why the deployment does not serve more.
    pub bound: ServingBound,
}

impl Deployment {
    /// Returns the number of devices in use.
    #[must_use]
    pub fn devices(&self) -> u32 {
        let of = |pool: &ReplicaPool| pool.replicas.saturating_mul(pool.plan.devices());
        of(&self.decode).saturating_add(self.prefill.as_ref().map_or(0, of))
    }
}

/// A plan that does not serve, and the reason.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanRefusal {
    /// The plan cannot run.
    Fault(ServingError),
    /// The plan misses the service level even with a single request at a time.
    TooSlow {
        /// The plan.
        plan: ServingPlan,
        /// Its time to the first token with a single request at a time.
        time_to_first_token: Seconds,
        /// Its time per output token with a single request at a time.
        time_per_output_token: Seconds,
    },
    /// The plan takes too much power at every rate and clock at which it meets the service level.
    TooHot {
        /// The plan.
        plan: ServingPlan,
        /// The mean power of a device at the chip's full clock and the least rate.
        power: Watts,
        /// The limit on a device's mean power.
        limit: Watts,
    },
}

/// All deployments of a question, best first, and the plans that do not serve.
#[derive(Debug, Clone, Default)]
pub struct ServingAnswer {
    /// The deployments, sorted by output tokens per second of the whole deployment.
    pub deployments: Vec<Deployment>,
    /// The refused plans.
    pub refused: Vec<PlanRefusal>,
    /// Number of plans priced: of replicas, or of both pools together.
    pub priced: u64,
}

pub(crate) struct DeploymentParts {
    pub(crate) decode: ReplicaPool,
    pub(crate) prefill: Option<ReplicaPool>,
    pub(crate) state: SteadyState,
    pub(crate) iteration: PassTime,
    pub(crate) prompt: Seconds,
    pub(crate) transfer: Seconds,
    pub(crate) requests: f64,
    pub(crate) output: f64,
    pub(crate) bound: ServingBound,
}

pub(crate) fn deployment_of(parts: DeploymentParts) -> Deployment {
    let tokens = parts.requests * parts.output;
    let power = |pool: &ReplicaPool| pool.power.0 * f64::from(pool.replicas.saturating_mul(pool.plan.devices()));
    // If a chip's file states no energy, its power is unknown, and so is the sum.
    let powers = [Some(&parts.decode), parts.prefill.as_ref()].map(|pool| pool.map(power));
    let known = powers.iter().flatten().all(|watts| *watts > 0.0);
    let watts: f64 = powers.iter().flatten().sum();
    let mut deployment = Deployment {
        decode: parts.decode,
        prefill: parts.prefill,
        state: parts.state,
        iteration: parts.iteration,
        prompt: parts.prompt,
        transfer: parts.transfer,
        requests_per_second: parts.requests,
        tokens_per_second: tokens,
        tokens_per_second_per_device: 0.0,
        tokens_per_joule: if known { tokens / watts } else { 0.0 },
        bound: parts.bound,
    };
    deployment.tokens_per_second_per_device = tokens / f64::from(deployment.devices().max(1));
    deployment
}
