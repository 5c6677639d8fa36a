//! A serving question (a model, the devices, the lengths of requests and the service level), and the plans that may
//! answer it.

use crate::ServingEngine;
use crate::context::{context_degrees, keep_allowing};
use crate::lengths::RequestLengths;
use crate::method::ServingMethod;
use crate::plan::{ServingFormats, ServingPlan};
use serde::{Deserialize, Serialize};
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::units::{Seconds, Watts};
use workloads::Model;
use workloads::parallel::tensor_parallel_degrees;

/// Limits on means over requests. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ServiceLevel {
    /// Limit on the mean time from arrival to the first token.
    pub time_to_first_token: Option<Seconds>,
    /// Limit on the mean time between two tokens.
    pub time_per_output_token: Option<Seconds>,
}

impl ServiceLevel {
    pub(crate) fn is_met(&self, first: Seconds, between: Seconds) -> bool {
        self.time_to_first_token.is_none_or(|limit| first <= limit)
            && self.time_per_output_token.is_none_or(|limit| between <= limit)
    }
}

/// A chip with its fabric and engine.
#[derive(Debug, Clone, Copy)]
pub struct ServingHardware<'a> {
    /// The chip.
    pub chip: &'a Accelerator,
    /// The fabric.
    pub fabric: &'a Fabric,
    /// The engine.
    pub engine: &'a ServingEngine,
}

/// A model to serve, with its devices, requests and service level.
#[derive(Debug, Clone)]
pub struct ServingQuestion<'a> {
    /// The model.
    pub model: &'a Model,
    /// Number of devices of the whole deployment.
    pub devices: u32,
    /// Number formats.
    pub formats: ServingFormats,
    /// Lengths of the requests.
    pub lengths: RequestLengths,
    /// The service level.
    pub level: ServiceLevel,
    /// Degrees that the question fixes; `None` leaves a degree free.
    pub given: GivenDegrees,
    /// The methods with which the deployment serves.
    pub method: ServingMethod<'a>,
    /// Limit on the mean power of a device. `None` is the chip's published limit, if it has one. A chip whose rates
    /// were measured keeps to its published limit as well.
    pub power_limit: Option<Watts>,
}

/// Degrees that a question fixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GivenDegrees {
    /// Number of devices that split every layer.
    pub tensor: Option<u32>,
    /// Number of pipeline stages.
    pub pipeline: Option<u32>,
    /// Number of groups with attention of their own.
    pub attention_data: Option<u32>,
    /// Number of parts that divide the experts.
    pub expert: Option<u32>,
    /// Number of devices that share the tokens of a sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
}

/// Returns the plans of one replica on at most `devices` devices of the question that an engine runs, smallest first.
/// Free degrees are powers of two, except the tensor-parallel degree and an expert degree that follows from it.
#[must_use]
pub fn enumerate_plans(question: &ServingQuestion<'_>, engine: &ServingEngine) -> Vec<ServingPlan> {
    let (model, devices, given) = (question.model, question.devices, question.given);
    let halving = |limit: u32| std::iter::successors(Some(1u32), |n| n.checked_mul(2)).take_while(move |n| *n <= limit);
    let or_given = |given: Option<u32>, free: Vec<u32>| given.map_or(free, |degree| vec![degree]);
    let mut tensors = or_given(given.tensor, tensor_parallel_degrees(model, devices));
    if let Some(context) = given.context {
        keep_allowing(&mut tensors, model, context.max(1));
    }
    let mut plans = Vec::new();
    for tensor in tensors {
        let contexts = or_given(given.context, context_degrees(model, engine, tensor));
        let stages = or_given(given.pipeline, halving(devices / tensor.max(1)).collect());
        for pipeline in stages {
            let left = devices / tensor.saturating_mul(pipeline).max(1);
            let free = if model.experts.is_some() { halving(left).collect() } else { vec![1] };
            for attention_data in or_given(given.attention_data, free) {
                let free = match (model.experts, attention_data) {
                    (Some(_), 1) => halving(tensor).collect(),
                    (Some(_), groups) => vec![tensor.saturating_mul(groups)],
                    (None, _) => vec![1],
                };
                for expert in or_given(given.expert, free) {
                    let formats = question.formats;
                    let of = |context: &u32| ServingPlan {
                        tensor,
                        pipeline,
                        attention_data,
                        expert,
                        context: *context,
                        formats,
                    };
                    plans.extend(contexts.iter().map(of));
                }
            }
        }
    }
    plans.retain(|plan| plan.devices() <= devices);
    plans.sort_by_key(|plan| (plan.devices(), *plan));
    plans
}
