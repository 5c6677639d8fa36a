//! What one micro-batch costs on one device, per segment: the part of a step that does not depend on how many micro-batches, stages and
//! data-parallel ranks there are.

use crate::SoftwareStack;
use crate::communication::contention::PortTimes;
use crate::pass::away::OffloadedPieces;
use crate::pass::copied::LinkTimes;
use serde::{Deserialize, Serialize};
use sim::units::{Bytes, Joules, Seconds};
use std::sync::Arc;
use workloads::{ActivationPolicy, Segment};

/// One pass of one segment: one micro-batch, one device.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PassProfile {
    /// Kernels, one after the other.
    pub device: Seconds,
    /// Of these, gradients of weights: what zero-bubble schedules put off.
    pub weight: Seconds,
    /// Kernels and collectives that the host launches.
    pub launches: u32,
    /// Of these, kernels of `weight`.
    pub weight_launches: u32,
    /// Ranks of its collectives' groups, summed.
    pub collective_ranks: u32,
    /// How much longer the host takes to launch its collectives for messages between nodes that are under way
    /// ([`collective_rank_us`](crate::stack::software::LaunchOptions::collective_rank_us)), and products of experts, one by one.
    pub slower_launches: Seconds,
    /// Tensor-parallel collectives that nothing hides.
    pub tensor: Seconds,
    /// Tensor-parallel collectives hidden behind kernels of `weight`: nothing hides them where these are put off.
    pub beside_weights: Seconds,
    /// Context-parallel ones that nothing hides.
    pub context: Seconds,
    /// Expert-parallel ones that nothing hides.
    pub expert: Seconds,
    /// Copies to or from the host that nothing hides.
    pub offload: Seconds,
    /// Copies to and from the host and storage, hidden ones too.
    pub copies: LinkTimes,
    /// How long its collectives, hidden ones too, have the ports.
    pub ports: PortTimes,
    /// Energy of its kernels, static power apart; none where they are bounded only.
    pub energy: Joules,
    /// How much less the pass might take under a better schedule: none where its schedule is proven.
    pub unproven: Seconds,
    /// The same of its gradients of inputs where they run apart.
    pub unproven_inputs: Seconds,
    /// What gradients of inputs, or what runs again before them, and gradients of weights take at least, each whatever the other does. Known where
    /// passes are bounded by their schedules.
    pub parts: [Seconds; 2],
}

impl PassProfile {
    /// Computing, communicating and copying.
    #[must_use]
    pub fn busy_time(&self) -> Seconds {
        self.device + self.tensor + self.context + self.expert + self.offload
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            device: self.device + other.device,
            weight: self.weight + other.weight,
            launches: self.launches.saturating_add(other.launches),
            weight_launches: self.weight_launches.saturating_add(other.weight_launches),
            collective_ranks: self.collective_ranks.saturating_add(other.collective_ranks),
            slower_launches: self.slower_launches + other.slower_launches,
            tensor: self.tensor + other.tensor,
            beside_weights: self.beside_weights + other.beside_weights,
            context: self.context + other.context,
            expert: self.expert + other.expert,
            offload: self.offload + other.offload,
            copies: self.copies.plus(other.copies),
            ports: self.ports + other.ports,
            energy: self.energy + other.energy,
            unproven: self.unproven + other.unproven,
            unproven_inputs: self.unproven_inputs + other.unproven_inputs,
            parts: [0, 1].map(|part| self.parts[part] + other.parts[part]),
        }
    }

    fn times(self, count: u64) -> Self {
        self.scaled(count as f64, |launches| launches.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX)))
    }

    /// The pass a part of a time, or several times.
    pub(crate) fn repeated(self, times: f64) -> Self {
        if times == 1.0 { self } else { self.scaled(times, |launches| (f64::from(launches) * times.ceil()) as u32) }
    }

    fn scaled(self, n: f64, launches: impl Fn(u32) -> u32) -> Self {
        Self {
            device: self.device * n,
            weight: self.weight * n,
            launches: launches(self.launches),
            weight_launches: launches(self.weight_launches),
            collective_ranks: launches(self.collective_ranks),
            slower_launches: self.slower_launches * n,
            tensor: self.tensor * n,
            beside_weights: self.beside_weights * n,
            context: self.context * n,
            expert: self.expert * n,
            offload: self.offload * n,
            copies: self.copies.times(n),
            ports: self.ports * n,
            energy: self.energy * n,
            unproven: self.unproven * n,
            unproven_inputs: self.unproven_inputs * n,
            parts: self.parts.map(|part| part * n),
        }
    }
}

/// A piece of the pipeline: one micro-batch, one device.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PieceProfile {
    /// The forward pass.
    pub forward: PassProfile,
    /// What runs again before the backward pass.
    pub recompute: PassProfile,
    /// The backward pass without it.
    pub backward: PassProfile,
    /// Parameters of the piece on one device of the tensor-parallel group, experts apart.
    pub parameters: u64,
    /// Parameters of the experts on one device.
    pub expert_parameters: u64,
    /// Of all parameters besides, those that have no gradient, or a smaller one: ZeRO-3 gathers them too.
    pub frozen: u64,
    /// Whether its passes are bounded: gradients of weights may then take less than is said, as much as those of inputs take more.
    #[serde(skip)]
    pub(crate) bounded: bool,
}

impl PieceProfile {
    /// Whether no order of kernels makes its passes faster.
    pub(crate) fn is_proven(&self) -> bool {
        [&self.forward, &self.recompute, &self.backward]
            .into_iter()
            .all(|pass| pass.unproven + pass.unproven_inputs == Seconds::ZERO)
    }

    /// A backward pass of which all is known but what waits for copies, which may be all put off: `before` of it is said already.
    pub(crate) fn mark_bounded_but_for_copies(&mut self, before: Seconds) {
        self.backward.weight += self.backward.offload - before;
        self.bounded = true;
    }

    /// A backward pass of which a bound is known, and one of the gradients of inputs: of the rest, what runs again and what waits for copies, one part
    /// may be more and another less, and all of it may be put off.
    pub(crate) fn mark_bounded_but_for_inputs(&mut self) {
        self.backward.weight += self.backward.offload + self.recompute.device;
        self.backward.device += std::mem::take(&mut self.recompute.device);
        self.bounded = true;
    }

    /// The same where of the gradients of inputs nothing is known.
    pub(crate) fn mark_bounded(&mut self) {
        self.backward.device += std::mem::take(&mut self.recompute.device);
        self.backward.weight = self.backward.busy_time();
        self.bounded = true;
    }

    /// Lets its passes wait for what nothing hides of their copies: of these, as much as there is other work beside them, the stack's fraction is hidden.
    pub(crate) fn add_exposed_copies(&mut self, stack: &SoftwareStack) {
        (self.forward.offload, self.backward.offload) = (Seconds::ZERO, Seconds::ZERO);
        let exposed = |copies: LinkTimes, busy: Seconds| {
            let copying = copies.longest_time();
            copying - copying.min(busy) * stack.overlap.host
        };
        self.forward.offload = exposed(self.forward.copies, self.forward.busy_time());
        self.backward.offload = exposed(self.backward.copies, self.backward.busy_time() + self.recompute.busy_time());
    }

    /// Two pieces one after the other.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            forward: self.forward.plus(other.forward),
            recompute: self.recompute.plus(other.recompute),
            backward: self.backward.plus(other.backward),
            parameters: self.parameters.saturating_add(other.parameters),
            expert_parameters: self.expert_parameters.saturating_add(other.expert_parameters),
            frozen: self.frozen.saturating_add(other.frozen),
            bounded: self.bounded || other.bounded,
        }
    }

    /// The piece in a pipeline whose messages cross nodes: its collectives are launched the slower.
    pub(crate) fn with_message_overhead(self, stack: &SoftwareStack) -> Self {
        let slower = |pass: PassProfile| {
            let slower = Seconds::from_micros(stack.launch.collective_rank_us) * f64::from(pass.collective_ranks);
            PassProfile { slower_launches: pass.slower_launches + slower, ..pass }
        };
        let (forward, recompute, backward) = (slower(self.forward), slower(self.recompute), slower(self.backward));
        Self { forward, recompute, backward, ..self }
    }

    /// The piece `count` times.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self {
            forward: self.forward.times(count),
            recompute: self.recompute.times(count),
            backward: self.backward.times(count),
            parameters: self.parameters.saturating_mul(count),
            expert_parameters: self.expert_parameters.saturating_mul(count),
            frozen: self.frozen.saturating_mul(count),
            bounded: self.bounded,
        }
    }
}

/// What a step needs to know of a model lowered for one device.
#[derive(Debug, Clone, PartialEq)]
pub struct StepProfile {
    /// Before the first layer.
    pub embedding: PieceProfile,
    /// One layer.
    pub layer: PieceProfile,
    /// After the last layer.
    pub head: PieceProfile,
    /// Layers and ends in each of the three: what is gathered at a time.
    pub units: [u64; 3],
    /// Parameters that a head away from the embedding holds a copy of.
    pub tied_parameters: u64,
    /// Bytes between two pieces on one device.
    pub boundary: Bytes,
    /// Weights and gradients that live away from the device.
    pub(crate) away: Option<OffloadedPieces>,
    /// Bytes of a weight as products read it.
    pub weight_bytes: Bytes,
    /// Bytes of a weight's gradient.
    pub gradient_bytes: Bytes,
    /// The graph that it was made from: its optimizer's kernels.
    pub(crate) layer_segment: Arc<Segment>,
    /// The embedding's graph, where layers are in it that follow the policy.
    pub(crate) leading_segment: Option<Arc<Segment>>,
    /// The head's, likewise.
    pub(crate) trailing_segment: Option<Arc<Segment>>,
    /// Where the plan has several policies, a layer under each; [`Self::layer`] is then under the first.
    pub(crate) by_policy: Vec<LayerProfile>,
}

/// A layer under one of a plan's policies.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerProfile {
    /// The policy.
    pub policy: ActivationPolicy,
    /// What it takes.
    pub layer: PieceProfile,
}

impl StepProfile {
    /// The same with other pieces: embedding, layer, head.
    pub(crate) fn with_pieces(&self, [embedding, layer, head]: [PieceProfile; 3], by_policy: Vec<LayerProfile>) -> Self {
        Self { embedding, layer, head, by_policy, ..self.clone() }
    }

    /// A layer under a policy of the plan that it was made for.
    pub(crate) fn layer_with_policy(&self, policy: &ActivationPolicy) -> &PieceProfile {
        self.by_policy.iter().find(|known| known.policy == *policy).map_or(&self.layer, |known| &known.layer)
    }

    /// The same with layers under several policies.
    pub(crate) fn with_layer_policies(&self, by_policy: Vec<LayerProfile>) -> Self {
        Self { by_policy, ..self.clone() }
    }
}
