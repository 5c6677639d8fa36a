//! Maps plans to fabrics whose links differ, and finds the fastest plan after mapping.

use super::{Job, PlanAnswer, RankedPlan};
use crate::rank_mapping::{MappingError, RankMapping, RankMappingEffort, StepTraffic, map_ranks, time_of_mapping};
use rayon::prelude::*;
use sim::network::MOST_UNITS;
use step::{ChipTimes, StepError};

/// Why plans cannot be mapped.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanMappingError {
    /// A plan has no step time.
    #[error(transparent)]
    Step(#[from] StepError),
    /// Ranks cannot be mapped to the fabric.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// The fabric's links cannot be listed.
    #[error(
        "fabric `{fabric}` cut to {devices} devices: ranks are mapped to measured links, \
         and to a switch or a fat tree of 2 to {MOST_UNITS} units; \
         its outermost tier is neither: leave --map-ranks out"
    )]
    NoUnits {
        /// The fabric.
        fabric: String,
        /// The number of devices.
        devices: u32,
    },
}

/// The fabrics to which ranks are mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapRanks {
    /// Only fabrics whose links differ. With equal links, measured or not, ranks stay in the order of the devices.
    WhereLinksDiffer,
    /// All fabrics. Even with equal links, the ranks that share a unit matter.
    Always,
}

/// Maps the ranks of every plan of an answer to the fabric's links, and sorts the documented plans by their mapped
/// times. Returns the mappings in the new order. The list is empty if ranks stay in the order of the devices. A switch
/// and a matrix of equal links are treated alike.
///
/// Only the plans of the answer's list are mapped. So a plan outside the list is missed, even if it would win after
/// mapping.
///
/// # Errors
/// A chip that the cost model cannot use, a plan that cannot be lowered, or a fabric that is to be mapped although its
/// links cannot be listed.
pub fn map_plans(
    job: &Job<'_>,
    answer: &mut PlanAnswer,
    which: MapRanks,
) -> Result<Vec<RankMapping>, PlanMappingError> {
    if which == MapRanks::WhereLinksDiffer && !job.fabric.links_differ() {
        return Ok(Vec::new());
    }
    let no_units = || PlanMappingError::NoUnits { fabric: job.fabric.name.clone(), devices: job.devices };
    let fabric = &job.fabric.with_written_links().ok_or_else(no_units)?;
    let times = ChipTimes::new(job.chip, job.stack)?;
    let in_order: Vec<u32> = (0..fabric.device_count()).collect();
    let map = |chip: &mut ChipTimes, ranked: &RankedPlan| -> Result<(RankedPlan, RankMapping), PlanMappingError> {
        let traffic = StepTraffic::of_plan(chip, job.model, fabric, &ranked.plan)?;
        let mapping = map_ranks(&traffic, fabric, RankMappingEffort::default())?;
        // If groups lie unevenly on a switch's units, listed links are more precise than the switch's tiers.
        let time = time_of_mapping(&traffic, fabric, &in_order)?;
        Ok((RankedPlan { time, ..ranked.clone() }, mapping))
    };
    let pairs: Result<Vec<(RankedPlan, RankMapping)>, PlanMappingError> =
        answer.best.par_iter().map_init(|| times.clone(), |chip, ranked| map(chip, ranked)).collect();
    let mut pairs = pairs?;
    // A discouraged plan stays last.
    let documented = job.count_documented(&answer.best);
    pairs[..documented].sort_by(|a, b| a.1.after.0.total_cmp(&b.1.after.0));
    let (best, mappings) = pairs.into_iter().unzip();
    answer.best = best;
    Ok(mappings)
}
