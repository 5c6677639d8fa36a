//! The margin that keeps plans within a device's memory although predicted peaks have errors.

use super::{Job, PlanSpace};
use measured::evidence::{Mechanism, PredictedQuantity, PredictionFacts, ResidualTable, mechanisms_of_plan};
use std::collections::BTreeSet;
use step::MixKind;

/// The chance that a plan's peak fits, unless the user asks for another.
pub const USUAL_FIT: f64 = 0.9;
/// At or below this chance the predicted peak must fit, and no margin is kept.
pub const NO_MARGIN: f64 = 0.5;

/// Returns the [`Job::peak_factor`] with which every plan of a space fits the job's chip with a chance of at least
/// `chance`: the largest among the plans, whose errors depend on their mechanisms. 1 at a chance of [`NO_MARGIN`] or
/// less, and if nothing is known about the errors. One kind stands for all plans whose policies differ between stages
/// or tensors.
#[must_use]
pub fn find_peak_factor(job: &Job<'_>, space: &PlanSpace, chance: f64) -> f64 {
    if chance <= NO_MARGIN {
        return 1.0;
    }
    let (table, plans) = (ResidualTable::read_carried(), space.plans(job));
    let Some(first) = plans.first() else { return 1.0 };
    let domain = job.fabric.fast_domain_devices();
    let facts = PredictionFacts::of_plan(job.chip, job.fabric, job.stack, job.model, first);
    let named: BTreeSet<BTreeSet<Mechanism>> =
        plans.iter().map(|plan| mechanisms_of_plan(job.model, plan, job.stack, domain)).collect();
    let kinds = named.iter().flat_map(|kind| [Some(kind.clone()), mixed_kind(kind, space)]).flatten();
    let kinds: BTreeSet<BTreeSet<Mechanism>> = kinds.collect();
    let factor = |mechanisms: BTreeSet<Mechanism>| {
        let facts = PredictionFacts { mechanisms, ..facts.clone() };
        table.factor_at(PredictedQuantity::Peak, &facts, chance)
    };
    kinds.into_iter().filter_map(factor).fold(1.0, f64::max)
}

/// The mechanisms of a plan whose tensors have a treatment each, if the space has such plans.
fn mixed_kind(kind: &BTreeSet<Mechanism>, space: &PlanSpace) -> Option<BTreeSet<Mechanism>> {
    let by_tensor = [Mechanism::RecomputeByTensor, Mechanism::Offload];
    (space.mix_kind() != MixKind::None)
        .then(|| kind.iter().cloned().chain(by_tensor).filter(|of| *of != Mechanism::KeepAll).collect())
}
