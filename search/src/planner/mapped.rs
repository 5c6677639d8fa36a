//! Plans on links that differ: which is fastest once its ranks are where they belong.

use super::{Job, PlanAnswer, RankedPlan};
use crate::rank_mapping::{Effort, MappingError, RankMapping, StepTraffic, map_ranks};
use crate::step::{ChipTimes, StepError};
use rayon::prelude::*;

/// Why plans cannot be mapped.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanMappingError {
    /// The step of one.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The fabric.
    #[error(transparent)]
    Mapping(#[from] MappingError),
}

/// Maps the ranks of every plan of an answer to the fabric's measured links and puts the plan first that is fastest as mapped. Returns the mappings
/// in the plans' new order; none where the fabric has no measured links.
///
/// Only the plans of the answer's list are mapped: one that is slower than all of them in rank order is left out even where it would win as mapped.
///
/// # Errors
/// A plan that cannot be lowered, a fabric of several tiers below the links.
pub fn map_plans(job: &Job<'_>, answer: &mut PlanAnswer) -> Result<Vec<RankMapping>, PlanMappingError> {
    if job.fabric.links().is_none() {
        return Ok(Vec::new());
    }
    let times = ChipTimes::new(job.chip, job.stack)?;
    let map = |chip: &mut ChipTimes, ranked: &RankedPlan| -> Result<RankMapping, PlanMappingError> {
        let traffic = StepTraffic::of(chip, job.model, job.fabric, &ranked.plan)?;
        Ok(map_ranks(&traffic, job.fabric, Effort::default())?)
    };
    let mappings: Result<Vec<RankMapping>, PlanMappingError> =
        answer.best.par_iter().map_init(|| times.clone(), |chip, ranked| map(chip, ranked)).collect();
    let mut pairs: Vec<(RankedPlan, RankMapping)> = answer.best.drain(..).zip(mappings?).collect();
    pairs.sort_by(|a, b| a.1.after.0.total_cmp(&b.1.after.0));
    let (best, mappings) = pairs.into_iter().unzip();
    answer.best = best;
    Ok(mappings)
}
