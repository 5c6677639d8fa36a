//! Cost of one micro-batch on one device, per segment of the model. The number of stages and of data-parallel ranks
//! does not change it.

use crate::SoftwareStack;
use crate::communication::contention::PortTimes;
use crate::pass::away::OffloadedPieces;
use crate::pass::copied::LinkTimes;
use serde::{Deserialize, Serialize};
use sim::units::{Bytes, Joules, Seconds};
use std::sync::Arc;
use workloads::{ActivationPolicy, Segment};

/// One pass of one segment, for one micro-batch on one device.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PassProfile {
    /// Time of kernels: in sequence, or as the operator schedule runs them.
    pub device: Seconds,
    /// The part of `device` for weight gradients, which zero-bubble schedules put off.
    pub weight: Seconds,
    /// Kernels and collectives that the host launches.
    pub launches: u32,
    /// The part of `launches` for kernels of `weight`.
    pub weight_launches: u32,
    /// Sum of the group sizes of the pass's collectives.
    pub collective_ranks: u32,
    /// Extra host time to launch collectives while messages between nodes are in flight
    /// ([`collective_rank_us`](crate::stack::software::LaunchOptions::collective_rank_us)), and to launch products of
    /// experts one by one.
    pub slower_launches: Seconds,
    /// Exposed tensor-parallel collectives.
    pub tensor: Seconds,
    /// Tensor-parallel collectives hidden behind kernels of `weight`. They are exposed if these kernels are put off.
    pub beside_weights: Seconds,
    /// Exposed context-parallel collectives.
    pub context: Seconds,
    /// Exposed expert-parallel collectives.
    pub expert: Seconds,
    /// Exposed copies to or from the host and storage.
    pub offload: Seconds,
    /// Link times of all copies to and from host and storage, including hidden ones.
    pub copies: LinkTimes,
    /// Port times of all its collectives, including hidden ones.
    pub ports: PortTimes,
    /// Energy of its kernels without static power; zero if they are only bounded.
    pub energy: Joules,
    /// Upper bound on what a better schedule could save in the pass; zero if its schedule is proven optimal.
    pub unproven: Seconds,
    /// Upper bound on what a better schedule could save in the input gradients, if they run separately.
    pub unproven_inputs: Seconds,
    /// Lower bounds of two parts: the input gradients (or the recomputation before them), and the weight gradients.
    /// Each bound holds if the other part takes at most its time under the found schedule. Known if passes are bounded
    /// by their schedules.
    pub parts: [Seconds; 2],
}

impl PassProfile {
    /// Returns the pass's time on the device: kernels, exposed communication and exposed copies.
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

    /// Returns the pass run `times` times. `times` may be a fraction; launches then round `times` up.
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

/// A piece of the pipeline, for one micro-batch on one device.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PieceProfile {
    /// The forward pass.
    pub forward: PassProfile,
    /// The recomputation before the backward pass.
    pub recompute: PassProfile,
    /// The backward pass without recomputation.
    pub backward: PassProfile,
    /// Parameters of the piece on one device of the tensor-parallel group, without experts.
    pub parameters: u64,
    /// Expert parameters on one device.
    pub expert_parameters: u64,
    /// Number of operators with parameters; each counts as one tensor.
    pub tensors: u64,
    /// Further parameters, without a gradient or with a smaller one. ZeRO-3 gathers them too.
    pub frozen: u64,
    /// True if pass times are lower bounds. Weight gradients may then be shorter than stated, by as much as input
    /// gradients are longer.
    #[serde(skip)]
    pub(crate) bounded: bool,
}

impl PieceProfile {
    /// Returns whether the schedules of all passes are proven optimal: no order of kernels makes them faster.
    pub(crate) fn is_proven(&self) -> bool {
        [&self.forward, &self.recompute, &self.backward]
            .into_iter()
            .all(|pass| pass.unproven + pass.unproven_inputs == Seconds::ZERO)
    }

    /// Marks the backward pass as bounded. Only the time that waits for copies is uncertain, and all of it may be put
    /// off. `before` is the part of that time that is already counted.
    pub(crate) fn mark_bounded_but_for_copies(&mut self, before: Seconds) {
        self.backward.weight += self.backward.offload - before;
        self.bounded = true;
    }

    /// Marks the backward pass as bounded, with a bound on the input gradients. The rest is recomputation and waiting
    /// for copies. One of its parts may be longer and another shorter, and all of it may be put off.
    pub(crate) fn mark_bounded_but_for_inputs(&mut self) {
        self.backward.weight += self.backward.offload + self.recompute.device;
        self.backward.device += std::mem::take(&mut self.recompute.device);
        self.bounded = true;
    }

    /// Marks the backward pass as bounded. No bound on the input gradients alone is known, so the whole pass may be put
    /// off.
    pub(crate) fn mark_bounded(&mut self) {
        self.backward.device += std::mem::take(&mut self.recompute.device);
        self.backward.weight = self.backward.busy_time();
        self.bounded = true;
    }

    /// Adds the exposed part of host copies to each pass. The stack's overlap fraction hides the rest, up to the pass's
    /// other work.
    pub(crate) fn add_exposed_copies(&mut self, stack: &SoftwareStack) {
        (self.forward.offload, self.backward.offload) = (Seconds::ZERO, Seconds::ZERO);
        let exposed = |copies: LinkTimes, busy: Seconds| {
            let copying = copies.longest_time();
            copying - copying.min(busy) * stack.overlap.host
        };
        self.forward.offload = exposed(self.forward.copies, self.forward.busy_time());
        self.backward.offload = exposed(self.backward.copies, self.backward.busy_time() + self.recompute.busy_time());
    }

    /// Returns two pieces in sequence.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            forward: self.forward.plus(other.forward),
            recompute: self.recompute.plus(other.recompute),
            backward: self.backward.plus(other.backward),
            parameters: self.parameters.saturating_add(other.parameters),
            expert_parameters: self.expert_parameters.saturating_add(other.expert_parameters),
            tensors: self.tensors.saturating_add(other.tensors),
            frozen: self.frozen.saturating_add(other.frozen),
            bounded: self.bounded || other.bounded,
        }
    }

    /// Returns the piece in a pipeline whose messages cross nodes: the host then takes longer to launch collectives.
    pub(crate) fn with_message_overhead(self, stack: &SoftwareStack) -> Self {
        let slower = |pass: PassProfile| {
            let slower = Seconds::from_micros(stack.launch.collective_rank_us) * f64::from(pass.collective_ranks);
            PassProfile { slower_launches: pass.slower_launches + slower, ..pass }
        };
        let (forward, recompute, backward) = (slower(self.forward), slower(self.recompute), slower(self.backward));
        Self { forward, recompute, backward, ..self }
    }

    /// Returns the piece `count` times.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self {
            forward: self.forward.times(count),
            recompute: self.recompute.times(count),
            backward: self.backward.times(count),
            parameters: self.parameters.saturating_mul(count),
            expert_parameters: self.expert_parameters.saturating_mul(count),
            tensors: self.tensors.saturating_mul(count),
            frozen: self.frozen.saturating_mul(count),
            bounded: self.bounded,
        }
    }
}

/// Profile of a model lowered for one device.
#[derive(Debug, Clone, PartialEq)]
pub struct StepProfile {
    /// The embedding, before the first layer.
    pub embedding: PieceProfile,
    /// One layer.
    pub layer: PieceProfile,
    /// The head, after the last layer.
    pub head: PieceProfile,
    /// Number of gather units (layers and ends) in the embedding, a layer piece and the head. ZeRO-3 gathers one unit
    /// at a time.
    pub units: [u64; 3],
    /// Tied parameters of which a head holds its own copy, if it is on another stage than the embedding.
    pub tied_parameters: u64,
    /// Bytes of the activation between two pieces, on one device.
    pub boundary: Bytes,
    /// Offloaded weights and gradients; `None` if everything is on the device.
    pub(crate) away: Option<OffloadedPieces>,
    /// Bytes of a weight in the products' type.
    pub weight_bytes: Bytes,
    /// Bytes of a weight's gradient.
    pub gradient_bytes: Bytes,
    /// The layer's segment, for its optimizer's kernels.
    pub(crate) layer_segment: Arc<Segment>,
    /// The embedding's segment, if it has layers that follow the policy.
    pub(crate) leading_segment: Option<Arc<Segment>>,
    /// The head's segment, if it has layers that follow the policy.
    pub(crate) trailing_segment: Option<Arc<Segment>>,
    /// A layer under each policy, if the plan has several; [`Self::layer`] is then under the first.
    pub(crate) by_policy: Vec<LayerProfile>,
}

/// A layer under one of a plan's policies.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerProfile {
    /// The policy.
    pub policy: ActivationPolicy,
    /// Its profile.
    pub layer: PieceProfile,
}

impl StepProfile {
    /// Returns the profile with other pieces.
    pub(crate) fn with_pieces(
        &self,
        [embedding, layer, head]: [PieceProfile; 3],
        by_policy: Vec<LayerProfile>,
    ) -> Self {
        Self { embedding, layer, head, by_policy, ..self.clone() }
    }

    /// Returns a layer under one of the plan's policies; [`Self::layer`] for a policy that [`Self::by_policy`] lacks.
    pub(crate) fn layer_with_policy(&self, policy: &ActivationPolicy) -> &PieceProfile {
        self.by_policy.iter().find(|known| known.policy == *policy).map_or(&self.layer, |known| &known.layer)
    }

    /// Returns the profile with layers under several policies.
    pub(crate) fn with_layer_policies(&self, by_policy: Vec<LayerProfile>) -> Self {
        Self { by_policy, ..self.clone() }
    }
}
