//! A training job.

use crate::planner::ranked::RankedPlan;
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::pipeline::PipelineSchedule;
use sim::units::Bytes;
use step::{DeviceMemory, SoftwareStack, TrainingPlan, sharing_domain, usable_hbm};
use workloads::footprint::{BytesPerParameter, Optimizer, Precision};
use workloads::memory::{TechniqueError, TrainingQuantities};
use workloads::training::{Attention, Lowering};
use workloads::{ActivationPolicy, Batch, ChunkSplit, Layout, Model, StagePolicies, Techniques};

/// A training job: a model, hardware and software. The plan is left open.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The model.
    pub model: &'a Model,
    /// The chip of every device.
    pub chip: &'a Accelerator,
    /// The network, cut to the devices.
    pub fabric: &'a Fabric,
    /// The software.
    pub stack: &'a SoftwareStack,
    /// Number of devices; all are used.
    pub devices: u32,
    /// Sequences per step.
    pub global_batch: u64,
    /// Tokens per sequence.
    pub sequence_length: u64,
    /// How attention is computed.
    pub attention: Attention,
    /// Number formats.
    pub precision: Precision,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Bytes of every device's memory that plans leave free.
    pub headroom: Bytes,
    /// The chance with which a plan's peak must fit the memory, given the errors of predicted peaks. At
    /// [`NO_MARGIN`](crate::planner::NO_MARGIN) or less, the predicted peak may fill it.
    pub fit: f64,
    /// Memory techniques of every plan.
    pub techniques: &'a Techniques,
}

impl Job<'_> {
    /// The assumptions about the model, and a note if the network is sold with other chips.
    #[must_use]
    pub fn assumptions(&self) -> Vec<String> {
        let (fabric, chip) = (self.fabric, self.chip);
        let foreign = sim::is_foreign_network(fabric, chip).then(|| {
            let joins = fabric.joins.join(", ");
            format!("{} is a network of {joins}, not of {}: its links are taken as they are", fabric.name, chip.name)
        });
        self.model.assumptions.iter().cloned().chain(foreign).collect()
    }
}

impl<'a> Job<'a> {
    /// A plan of this job.
    #[must_use]
    pub fn make_plan(
        &self,
        layout: Layout,
        batch: Batch,
        activations: impl Into<StagePolicies>,
        schedule: PipelineSchedule,
    ) -> TrainingPlan {
        TrainingPlan {
            layout,
            batch,
            activations: activations.into(),
            attention: self.attention,
            precision: self.precision,
            optimizer: self.optimizer,
            schedule,
            techniques: self.techniques.clone(),
        }
    }

    /// True if the job's techniques allow this many micro-batches per step.
    pub(crate) fn may_accumulate(&self, micro_batches: u64) -> bool {
        micro_batches <= 1 || self.accumulation_refusal(micro_batches).is_none()
    }

    /// Why the job's techniques do not allow this many micro-batches per step; `None` if they do.
    pub(crate) fn accumulation_refusal(&self, micro_batches: u64) -> Option<TechniqueError> {
        if self.techniques.is_empty() {
            return None;
        }
        let lowering = Lowering { sequence_length: self.sequence_length, ..Lowering::new(self.model) };
        self.techniques.check_together(&TrainingQuantities::new(self.model, &lowering), micro_batches).err()
    }

    /// The memory of a device that the predicted peak of a plan may fill, if the peak times `peak_factor` must fit: the
    /// device's memory less the larger of [`Job::headroom`] and the margin of the factor.
    pub(crate) fn memory_for_peak(&self, peak_factor: f64) -> DeviceMemory {
        let memory = DeviceMemory::of_chip(self.chip);
        DeviceMemory { hbm: memory.hbm.saturating_sub(self.memory_left_free(peak_factor)), ..memory }
    }

    /// The larger of [`Job::headroom`] and the margin of a factor on predicted peaks.
    pub(crate) fn memory_left_free(&self, peak_factor: f64) -> Bytes {
        let usable = usable_hbm(self.stack, DeviceMemory::of_chip(self.chip).hbm);
        let margin = usable.saturating_sub(Bytes((usable.as_f64() / peak_factor.max(1.0)).floor() as u64));
        margin.max(self.headroom)
    }

    /// The fraction of the model's training operations that remain under the job's techniques. Gradients of frozen
    /// weights are not computed, and those of sampled or projected tokens cost less. 1 without techniques; the result
    /// never exceeds 1, even if techniques add operations.
    #[must_use]
    pub fn share_of_training(&self) -> f64 {
        if self.techniques.is_empty() {
            return 1.0;
        }
        let batch = Batch { micro_batch: 1, global_batch: 1, sequence_length: self.sequence_length };
        let plan =
            self.make_plan(Layout::default(), batch, ActivationPolicy::None, PipelineSchedule::OneForwardOneBackward);
        let flops = |techniques: &Techniques| {
            let graph = step::lower_plan(
                self.model,
                &TrainingPlan { techniques: techniques.clone(), ..plan.clone() },
                self.stack,
            );
            graph.ok().map(|graph| graph.kernel_flops().as_f64())
        };
        // A model that cannot be lowered has no plan that would use the fraction.
        flops(&plan.techniques).zip(flops(Techniques::none())).map_or(1.0, |(done, all)| (done / all).min(1.0))
    }

    /// True if the framework can run the chunks of a split.
    pub(crate) fn may_hold_split(&self, split: &ChunkSplit) -> bool {
        self.stack.framework.chunks_without_layers || split.first > 0 && split.last > 0 || split.chunks == 1
    }

    /// Why the stack's framework cannot run a plan; `None` if no reason is known.
    #[must_use]
    pub fn framework_refusal(&self, plan: &TrainingPlan) -> Option<String> {
        self.stack.why_not_runnable(plan, self.model)
    }

    /// Why the stack's framework discourages a plan on the job's chip, as a verdict and its reason (`not documented:
    /// ...`); `None` if no reason is known.
    #[must_use]
    pub fn discouragement(&self, plan: &TrainingPlan) -> Option<String> {
        self.stack.why_discouraged(plan, self.chip)
    }

    /// The length of a list of plans, without the discouraged plan at its end. A discouraged plan ends the list if it
    /// is faster than the first.
    #[must_use]
    pub fn count_documented(&self, plans: &[RankedPlan]) -> usize {
        let (Some(first), Some(last)) = (plans.first(), plans.last()) else { return 0 };
        let is_discouraged = |ranked: &RankedPlan| self.discouragement(&ranked.plan).is_some();
        let follows = last.time.total.0 < first.time.total.0 && is_discouraged(last) && !is_discouraged(first);
        plans.len() - usize::from(follows)
    }

    /// Lower bound on the number of devices that a plan needs. Each parameter's weight and optimizer states lie on at
    /// least one device, and its gradient too if the stack never frees gradients. No policy moves them to the host. 1
    /// if the job has techniques.
    #[must_use]
    pub fn least_devices(&self) -> u64 {
        if !self.techniques.is_empty() {
            return 1; // Techniques may shrink or remove weights, gradients and states.
        }
        let per = BytesPerParameter::new(self.optimizer, &self.precision);
        let memory = &self.stack.memory;
        let stored = if memory.stored_master && per.master > Bytes::ZERO { Bytes::ZERO } else { per.weight };
        let gradient = if memory.gradients_persist { per.gradient } else { Bytes::ZERO };
        let least = (stored + per.master + per.state + gradient) * self.model.parameters();
        // Every device loses the framework's own memory.
        let framework = Bytes::from_gib(memory.context_gib);
        least
            .0
            .div_ceil(usable_hbm(self.stack, self.memory_for_peak(1.0).hbm).saturating_sub(framework).0.max(1))
            .max(1)
    }

    /// Number of data-parallel ranks that a ZeRO shard group has, if the stack shards only inside fast domains.
    /// Otherwise `None`.
    pub(crate) fn sharding_domain(&self, plan: &TrainingPlan) -> Option<u32> {
        sharing_domain(self.stack, self.fabric.fast_domain_devices(), &plan.layout)
    }
}
