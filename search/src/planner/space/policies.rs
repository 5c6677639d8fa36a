//! The policies of a space: those that it lists, those that a job allows, and those that techniques make equal.

use crate::ask::Splits;
use crate::planner::{Job, PlanSpace};
use sim::pipeline::PipelineSchedule;
use std::collections::BTreeSet;
use step::{StepError, lower_plan};
use workloads::recompute_policy::{NamedTensor, Treatment};
use workloads::{ActivationPolicy, Batch, Layout, SegmentKind, TrainingGraph, WorkloadError};

/// Policies that techniques make equal.
struct PolicyGroup {
    treatments: Vec<Treatment>,
    /// The policy that stands for them.
    policy: ActivationPolicy,
    /// True if the policy means the same without the techniques.
    own: bool,
}

impl PlanSpace {
    /// Checks the policies of the space against a job. A layer of its model must have every tensor that they name, its
    /// chip must have every place to which they offload tensors, and a model chunk must have as many layers as blocks
    /// rerun.
    ///
    /// # Errors
    /// The first unknown name, with the known ones; a policy that needs a host or storage that the chip's file does not
    /// have; a block of more layers than a chunk has.
    pub fn check_tensor_names(&self, job: &Job<'_>) -> Result<(), StepError> {
        self.check_blocks(job)?;
        let policies: Vec<_> = self.activations.iter().flatten().collect();
        if policies.is_empty() {
            return Ok(());
        }
        let training = graph_of_layout(job, Layout::default())?;
        let Some(layer) = training.segment(SegmentKind::Layer).map(|layer| &layer.graph) else { return Ok(()) };
        policies.into_iter().try_for_each(|policy| {
            policy.check_names(layer)?;
            let goes = policy.treatment_with_extent(layer, job.stack.replay_extent());
            let (stored, hosted) = (!goes.stored.is_empty(), goes.offloaded.len() > goes.stored.len());
            let lacking = [(hosted && job.chip.host.is_none(), "host"), (stored && job.chip.storage.is_none(), "storage")];
            let Some((_, table)) = lacking.into_iter().find(|(lacks, _)| *lacks) else { return Ok(()) };
            let nvme = if table == "storage" { " or --nvme GB_PER_S:GB" } else { "" };
            Err(StepError::Hardware(format!(
                "--recompute {policy}: sends tensors to the {table}, but {} has none; give the chip's file its [{table}]{nvme}, or another policy",
                job.chip.name
            )))
        })
    }

    /// Refuses a block that is longer than every chunk of every plan.
    fn check_blocks(&self, job: &Job<'_>) -> Result<(), StepError> {
        let fewest = |list: &Option<Vec<u32>>| list.iter().flatten().copied().min().unwrap_or(1).max(1);
        let chunks = u64::from(fewest(&self.pipeline)) * u64::from(fewest(&self.virtual_stages));
        let even = matches!(&self.splits, Some(Splits::Listed(splits)) if splits.iter().all(Option::is_none));
        let most = if even { job.model.layers.div_ceil(chunks) } else { job.model.layers };
        let Some(count) = self.blocks.iter().find(|count| **count > most) else { return Ok(()) };
        Err(StepError::Workload(Box::new(WorkloadError::BadLowering {
            model: job.model.name.clone(),
            setting: "--recompute".to_owned(),
            value: format!("block:{count}"),
            limit: format!("at most block:{most}: no chunk of the model has more layers"),
            cure: "write full to run all layers again".to_owned(),
        })))
    }

    /// True if the plans of the space rerun blocks ([`PlanSpace::blocks`]) and have no other policies.
    pub(crate) fn has_only_blocks(&self) -> bool {
        self.activations.is_none() && !self.blocks.is_empty()
    }

    /// The policies of the space. For a space with blocks alone, these are keeping everything and rerunning everything,
    /// because all blocks lie between them.
    pub(crate) fn policies(&self) -> Vec<ActivationPolicy> {
        let usual = || match self.has_only_blocks() {
            true => vec![ActivationPolicy::None, ActivationPolicy::Full],
            false => default_policies(),
        };
        self.activations.clone().unwrap_or_else(usual)
    }

    /// The policies of the space that a job's techniques allow. If techniques make policies equal, only one is kept:
    /// one that already means the result without the techniques, otherwise the first. If none is allowed, returns all
    /// of them: every plan is then refused, with the reason.
    pub(crate) fn policies_under_techniques(&self, job: &Job<'_>) -> Vec<ActivationPolicy> {
        let policies = self.policies();
        if job.techniques.is_empty() {
            return policies;
        }
        // A second layout is needed, because with tensor parallelism a layer has more operators.
        let layouts = [1, 2].map(|tensor| Layout { tensor, sequence_parallel: tensor > 1, ..Layout::default() });
        let graphs: Vec<TrainingGraph> =
            layouts.into_iter().filter_map(|layout| graph_of_layout(job, layout).ok()).collect();
        let mut open = graphs.clone();
        open.iter_mut()
            .flat_map(|graph| &mut graph.segments)
            .for_each(|segment| segment.graph.settled = Default::default());
        let replay = job.stack.replay_extent();
        let treats = |graphs: &[TrainingGraph], policy: &ActivationPolicy| -> Vec<Treatment> {
            let segments = graphs.iter().flat_map(|graph| &graph.segments);
            segments.map(|segment| policy.treatment_with_extent(&segment.graph, replay)).collect()
        };
        let allowed = |policy: &&ActivationPolicy| {
            graphs.iter().all(|graph| job.techniques.check_policy(policy, graph, replay).is_ok())
        };
        let mut found: Vec<PolicyGroup> = Vec::new();
        for policy in policies.iter().filter(allowed) {
            let treatments = treats(&graphs, policy);
            let alike = found.iter_mut().find(|other| !graphs.is_empty() && other.treatments == treatments);
            if alike.as_ref().is_some_and(|alike| alike.own) {
                continue;
            }
            let own = treats(&open, policy) == treatments;
            match alike {
                Some(alike) if own => (alike.policy, alike.own) = (policy.clone(), own),
                Some(_) => {}
                None => found.push(PolicyGroup { treatments, policy: policy.clone(), own }),
            }
        }
        if found.is_empty() { policies } else { found.into_iter().map(|alike| alike.policy).collect() }
    }
}

/// A job's model lowered for a layout, with everything kept.
fn graph_of_layout(job: &Job<'_>, layout: Layout) -> Result<TrainingGraph, StepError> {
    let batch = Batch { micro_batch: 1, global_batch: 1, sequence_length: job.sequence_length };
    lower_plan(
        job.model,
        &job.make_plan(layout, batch, ActivationPolicy::None, PipelineSchedule::OneForwardOneBackward),
        job.stack,
    )
}

/// The policies of no reruns, the attention core, TorchTitan's choice and full recomputation, and all placements of
/// five tensors of a layer.
pub(crate) fn preset_and_default_policies() -> Vec<ActivationPolicy> {
    let tensors =
        [NamedTensor::QkvProj, NamedTensor::Context, NamedTensor::OutProj, NamedTensor::Mlpwi, NamedTensor::Mlpwo];
    let mut policies = vec![
        ActivationPolicy::None,
        ActivationPolicy::Selective,
        ActivationPolicy::SelectivePerOperator,
        ActivationPolicy::Full,
    ];
    for choice in 0..3_u32.pow(tensors.len() as u32) {
        let place = |i: usize| choice / 3_u32.pow(i as u32) % 3;
        let at = |wanted: u32| {
            (0..tensors.len()).filter(|i| place(*i) == wanted).map(|i| tensors[i]).collect::<BTreeSet<_>>()
        };
        policies.push(ActivationPolicy::Custom { host: at(1), device: at(2) });
    }
    policies
}

/// Drops policies that treat a layer like an earlier policy does. Drops none if the job has techniques; then
/// [`PlanSpace::policies_under_techniques`] decides.
pub(crate) fn distinct_policies(job: &Job<'_>, policies: Vec<ActivationPolicy>) -> Vec<ActivationPolicy> {
    if !job.techniques.is_empty() {
        return policies;
    }
    let training = graph_of_layout(job, Layout::default()).ok();
    let Some(layer) = training.as_ref().and_then(|training| training.segment(SegmentKind::Layer)) else {
        return policies;
    };
    let mut seen = Vec::new();
    let mut new = |policy: &ActivationPolicy| {
        let treatment = policy.treatment_with_extent(&layer.graph, job.stack.replay_extent());
        let first = !seen.contains(&treatment);
        if first {
            seen.push(treatment);
        }
        first
    };
    policies.into_iter().filter(|policy| new(policy)).collect()
}

/// The policies that every framework offers.
#[must_use]
pub fn default_policies() -> Vec<ActivationPolicy> {
    vec![ActivationPolicy::None, ActivationPolicy::Selective, ActivationPolicy::Full]
}
