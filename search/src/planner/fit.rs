//! The margin that keeps a plan within a device's memory although its predicted peak has an error.

use super::Job;
use measured::evidence::{Mechanism, PredictedQuantity, PredictionFacts, ResidualTable, mechanisms_of_plan};
use sim::pipeline::PipelineSchedule;
use sim::units::Bytes;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use step::TrainingPlan;
use workloads::{ActivationPolicy, Layout, StagePolicies};

/// The chance that a plan's peak fits, unless the user asks for another.
pub const USUAL_FIT: f64 = 0.9;
/// At or below this chance the predicted peak must fit, and no margin is kept.
pub const NO_MARGIN: f64 = 0.5;

/// The mechanisms of each kind of policy.
const POLICY_KINDS: [&[Mechanism]; 6] = [
    &[Mechanism::KeepAll],
    &[Mechanism::RecomputeSelective],
    &[Mechanism::RecomputeFull],
    &[Mechanism::RecomputeByTensor],
    &[Mechanism::RecomputeByTensor, Mechanism::Offload],
    &[Mechanism::RecomputeByTensor, Mechanism::Offload, Mechanism::OffloadToNvme],
];
/// The index of plans with a treatment for each stage or tensor, after those of [`POLICY_KINDS`].
const MIXED: usize = POLICY_KINDS.len();
/// Numbers of kinds of policies, of layouts and of schedules.
const KINDS: [usize; 3] = [MIXED + 1, 1 << 8, PipelineSchedule::KINDS];

/// The factors on predicted peaks with which plans of a job fit its chip with a chance of at least [`Job::fit`]. A
/// factor depends on the plan's mechanisms. A plan with a treatment for each stage or tensor has the largest factor of
/// all policies, so that the treatments can be chosen within a known memory.
#[derive(Debug)]
pub(crate) struct PeakFactors {
    /// The facts of every plan but for its mechanisms.
    facts: PredictionFacts,
    chance: f64,
    /// By kind of plan, once computed. Empty if no margin is kept.
    known: Box<[OnceLock<f64>]>,
}

impl PeakFactors {
    pub(crate) fn new(job: &Job<'_>) -> Self {
        let cells = if job.fit > NO_MARGIN { KINDS.iter().product() } else { 0 };
        Self { facts: facts_of_job(job), chance: job.fit, known: (0..cells).map(|_| OnceLock::new()).collect() }
    }

    /// Returns whether these are the factors of a job. It must have the same model and software.
    pub(crate) fn are_of_job(&self, job: &Job<'_>) -> bool {
        self.chance == job.fit && (self.known.is_empty() || self.facts == facts_of_job(job))
    }

    /// Returns the factor of a plan under a schedule.
    pub(crate) fn factor_of_plan(&self, job: &Job<'_>, plan: &TrainingPlan, schedule: PipelineSchedule) -> f64 {
        self.factor_of_kind(job, plan, schedule, policy_kind(&plan.activations))
    }

    /// Returns the factor of a plan with a treatment for each stage or tensor, whatever its policies are now.
    pub(crate) fn factor_of_mixes(&self, job: &Job<'_>, plan: &TrainingPlan, schedule: PipelineSchedule) -> f64 {
        self.factor_of_kind(job, plan, schedule, MIXED)
    }

    fn factor_of_kind(&self, job: &Job<'_>, plan: &TrainingPlan, schedule: PipelineSchedule, policies: usize) -> f64 {
        let domain = job.fabric.fast_domain_devices();
        let kind = (policies * KINDS[1] + layout_kind(&plan.layout, domain)) * KINDS[2] + schedule.kind_index();
        if self.chance <= NO_MARGIN {
            return 1.0;
        }
        let compute = || {
            let kept_all = TrainingPlan { activations: StagePolicies::default(), schedule, ..plan.clone() };
            let mut others = mechanisms_of_plan(job.model, &kept_all, job.stack, domain);
            others.remove(&Mechanism::KeepAll);
            let kinds = if policies == MIXED { &POLICY_KINDS[..] } else { &POLICY_KINDS[policies..=policies] };
            kinds.iter().map(|of| self.factor_of_mechanisms(&others, of)).fold(1.0, f64::max)
        };
        self.known.get(kind).map_or_else(compute, |known| *known.get_or_init(compute))
    }

    fn factor_of_mechanisms(&self, others: &BTreeSet<Mechanism>, of_policy: &[Mechanism]) -> f64 {
        let mechanisms = others.iter().chain(of_policy).cloned().collect();
        let facts = PredictionFacts { mechanisms, ..self.facts.clone() };
        ResidualTable::read_carried().factor_at(PredictedQuantity::Peak, &facts, self.chance).unwrap_or(1.0)
    }
}

impl Job<'_> {
    /// The memory of a device that a plan leaves free: the larger of [`Job::headroom`] and the margin with which its
    /// peak fits with the chance [`Job::fit`].
    #[must_use]
    pub fn memory_left_free_by(&self, plan: &TrainingPlan) -> Bytes {
        self.memory_left_free(PeakFactors::new(self).factor_of_plan(self, plan, plan.schedule))
    }
}

/// Returns the facts of a job's plans without their mechanisms. The name of a chip that no run measured is left out,
/// because all such chips of a kind have the same errors.
fn facts_of_job(job: &Job<'_>) -> PredictionFacts {
    let facts = PredictionFacts::of_cluster(job.chip, job.fabric, job.stack, job.devices);
    ResidualTable::read_carried().hide_unmeasured_chip(facts)
}

fn policy_kind(policies: &StagePolicies) -> usize {
    match policies.uniform_policy() {
        Some(ActivationPolicy::None) => 0,
        Some(ActivationPolicy::Selective | ActivationPolicy::SelectivePerOperator) => 1,
        Some(ActivationPolicy::Full) => 2,
        Some(named @ (ActivationPolicy::Named { .. } | ActivationPolicy::Custom { .. })) => {
            let stored = named.offloads_to_storage();
            3 + usize::from(stored || named.offloads_to_host()) + usize::from(stored)
        }
        Some(ActivationPolicy::Tensors(_)) | None => MIXED,
    }
}

/// Returns a number for the mechanisms of a layout.
fn layout_kind(layout: &Layout, fast_domain: u32) -> usize {
    let used = [
        layout.tensor > 1,
        layout.tensor > fast_domain,
        layout.pipeline > 1,
        layout.virtual_stages > 1,
        layout.context > 1,
        layout.expert > 1,
    ];
    used.into_iter().fold(layout.zero as usize, |kind, used| kind * 2 + usize::from(used))
}
