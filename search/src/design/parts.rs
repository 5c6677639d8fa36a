//! A search in parts, for several machines: the space is dealt out among them, each searches its own, and what they found is put together.
//!
//! Which designs a part has depends on the question and the number of parts alone. Where the best is to be proven exactly, parts discard by what others
//! have found as well: that changes which designs are decided by bounds and how soon, and neither the front nor the best. Where designs better by a
//! fraction need not be found, which of those are found depends on the order in which others are: there parts do not listen to each other.

use super::problem::{Candidates, ChipProblem};
use super::{DesignAnswer, DesignEvaluation, DesignSearch, DesignWatch};
use crate::pareto::{Front, FrontPoint};
use crate::runner::{
    self, BoundSource, CandidateOutcome, DecisionCounts, Exclusion, NodeRefinement, RunnerAnswer, SearchNode, SearchProblem,
    ShardExchange, Verdict,
};
use crate::shard::Shard;
use crate::space::{OutsideReason, Region};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Boxes that a part has of a space to begin with: enough that none has all that are promising, few enough that making them takes no time.
const BOXES: usize = 16;

/// A design that is evaluated again is found below its value and this fraction of it: more than rounding, and not much more to look for.
const AGAIN: f64 = 1e-9;

/// Designs that were decided together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum DecidedDesigns {
    /// One, by its number in the space.
    One(usize),
    /// All of a box.
    Box(Region),
}

/// What became of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PartDecision {
    /// Evaluated: the value, to be minimised.
    Evaluated(f64),
    /// No plan fits.
    Infeasible,
    /// Not worth evaluating.
    Pruned {
        /// The lower bound of their values.
        bound: f64,
        /// The design that discards them.
        by: usize,
        /// What has shown the bound.
        shown: BoundSource,
    },
    /// The search was stopped first.
    Open(f64),
    /// Outside a limit.
    Outside(OutsideReason),
    /// No chips.
    NoChip(String),
}

/// What the search of a part found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartAnswer {
    /// What became of its designs.
    pub decided: Vec<(DecidedDesigns, PartDecision)>,
    /// The front of its designs and of those that it was told of.
    pub front: Vec<FrontPoint>,
    /// Designs of other parts that it was held against.
    pub heard: Vec<FrontPoint>,
    /// None of its designs has a lower value; `None` where it has none that is feasible or open.
    pub lower_bound: Option<f64>,
    /// What was decided by what.
    pub counts: DecisionCounts,
}

/// The sets of a part, and what dealing them out has shown to be no designs.
struct PartSets {
    sets: Vec<SearchNode<Candidates>>,
    excluded: Vec<(Candidates, Exclusion)>,
}

impl DesignSearch<'_> {
    /// Searches a part of the space, among others where it has any to tell and to hear.
    ///
    /// # Errors
    /// As [`DesignSearch::run_design_search`].
    pub fn run_design_part(
        &self,
        shard: Shard,
        watch: DesignWatch<'_>,
        others: Option<&mut dyn ShardExchange>,
    ) -> Result<PartAnswer, String> {
        let PartSets { sets, excluded } = self.deal_sets(shard)?;
        let limits = runner::RunnerLimits { evaluations: self.aim.evaluations, gap: self.aim.gap, stop: watch.stop };
        let others: &mut dyn ShardExchange = match others {
            Some(others) if self.aim.gap == 0.0 => others,
            _ => &mut SilentPart,
        };
        let answer = runner::run_search_among(&ChipProblem::of_sets(*self, sets), &limits, watch.told, others)?;
        let decided = answer.outcomes.into_iter().map(|(set, outcome)| (self::decided_designs_of(set), decision_of(outcome)));
        let outside = excluded.into_iter().map(|(set, why)| (self::decided_designs_of(set), self::exclusion_of(why)));
        Ok(PartAnswer {
            decided: decided.chain(outside).collect(),
            front: answer.front.points().to_vec(),
            heard: answer.heard,
            lower_bound: answer.lower_bound,
            counts: answer.counts,
        })
    }

    /// What all parts found, as a search of the whole has it.
    ///
    /// Designs that were evaluated are evaluated again: with their plans, and so that what is said of them is what they are.
    ///
    /// # Errors
    /// Parts that do not fit together, or are of another question; as [`DesignSearch::run_design_search`].
    pub fn merge_parts(&self, parts: &[PartAnswer]) -> Result<DesignAnswer, String> {
        let front = merge_fronts(parts);
        let evaluated: BTreeSet<usize> = parts.iter().flat_map(PartAnswer::evaluated_designs).collect();
        if let Some(lost) = front.points().iter().find(|point| !evaluated.contains(&point.id)) {
            return Err(format!("design {} is on the front of the parts, and none of them has evaluated it", lost.id));
        }
        let heard: BTreeMap<usize, FrontPoint> =
            parts.iter().flat_map(|part| &part.heard).map(|point| (point.id, *point)).collect();
        // One that another part was told of before its own was stopped and began again.
        let known = |by: usize| match heard.get(&by).filter(|_| !evaluated.contains(&by)) {
            Some(point) => {
                front.best_point_within(&point.costs).filter(|best| best.value <= point.value).map_or(by, |better| better.id)
            }
            None => by,
        };
        let decided: Vec<&(DecidedDesigns, PartDecision)> = parts.iter().flat_map(|part| &part.decided).collect();
        let outcome = |(set, fate): &&(DecidedDesigns, PartDecision)| {
            Ok((candidates_of(set), self.outcome_of_decision(set, fate, &known)?))
        };
        let outcomes = decided.par_iter().with_max_len(1).map(outcome).collect::<Result<Vec<_>, String>>()?;
        let lower_bound = parts.iter().filter_map(|part| part.lower_bound).reduce(f64::min);
        let counts = parts.iter().fold(DecisionCounts::default(), |all, part| all.sum_with(&part.counts));
        self.finish_answer(RunnerAnswer { outcomes, front, lower_bound, counts, heard: Vec::new() })
    }

    /// A fate with the evaluation that belongs to it.
    fn outcome_of_decision(
        &self,
        set: &DecidedDesigns,
        fate: &PartDecision,
        known: &dyn Fn(usize) -> usize,
    ) -> Result<CandidateOutcome<Vec<DesignEvaluation>>, String> {
        let again = |cutoff: f64| match set {
            DecidedDesigns::One(point) => Some((*point, self.evaluate_design(self.space.with_largest_memory(*point), cutoff))),
            DecidedDesigns::Box(_) => None,
        };
        let differs = |found: &str| format!("{set:?} is {fate:?} by its part, and now {found}");
        Ok(match fate {
            PartDecision::Evaluated(value) => match again(value * (1.0 + AGAIN)) {
                Some((_, Verdict::Feasible { value: now, evaluation, .. })) if now == *value => {
                    CandidateOutcome::Evaluated { value: now, evaluation }
                }
                Some((_, Verdict::Feasible { value: now, .. })) => return Err(differs(&format!("its value is {now}"))),
                Some((_, Verdict::Beaten(_))) => return Err(differs("its value is higher")),
                Some((_, Verdict::Infeasible(_))) | None => return Err(differs("it has none")),
            },
            PartDecision::Infeasible => match again(f64::INFINITY) {
                Some((_, Verdict::Infeasible(evaluation))) => CandidateOutcome::Infeasible { evaluation },
                _ => return Err(differs("it is feasible")),
            },
            PartDecision::Pruned { bound, by, shown } => {
                CandidateOutcome::Pruned { bound: *bound, by: known(*by), shown: *shown }
            }
            PartDecision::Open(bound) => CandidateOutcome::Open { bound: *bound },
            PartDecision::Outside(why) => CandidateOutcome::Excluded(Exclusion::Limit(*why)),
            PartDecision::NoChip(why) => CandidateOutcome::Excluded(Exclusion::NoChip(why.clone())),
        })
    }

    /// What a part has: chips as a sweep's parts have them, or boxes in turn, the most promising first.
    fn deal_sets(&self, shard: Shard) -> Result<PartSets, String> {
        let problem = ChipProblem::new(*self);
        if self.space.whole_region().is_none() {
            let points = (0..self.space.chip_count()).filter(|&point| shard.contains(point as u64)).collect();
            return Ok(PartSets { sets: problem.single_chip_nodes(points, &|| false), excluded: Vec::new() });
        }
        let (mut sets, mut excluded) = (problem.root_nodes(&|| false), Vec::new());
        while sets.len() < BOXES * shard.of as usize && sets.iter().any(|node| !problem.is_single(&node.set)) {
            let open =
                |node: &SearchNode<Candidates>| (!problem.is_single(&node.set)).then(|| problem.refine_set(node, f64::INFINITY));
            let looked: Vec<Option<Result<NodeRefinement<Candidates>, String>>> =
                sets.par_iter().with_max_len(1).map(open).collect();
            for (node, look) in std::mem::take(&mut sets).into_iter().zip(looked) {
                match look.transpose()? {
                    None => sets.push(node),
                    Some(NodeRefinement::Bound(bound, set)) => {
                        sets.push(SearchNode { set, bound: bound.max(node.bound), shown: BoundSource::Mapped, ..node });
                    }
                    Some(NodeRefinement::Parts(parts, outside)) => {
                        sets.extend(parts);
                        excluded.extend(outside);
                    }
                }
            }
        }
        sets.sort_by(|a, b| a.bound.total_cmp(&b.bound).then(a.first.cmp(&b.first)));
        let own = |at: usize| at % shard.of as usize == (shard.part - 1) as usize;
        let sets = sets.into_iter().enumerate().filter(|(at, _)| own(*at)).map(|(_, node)| node).collect();
        // Somebody has to count them.
        let excluded = if shard.part == 1 { excluded } else { Vec::new() };
        Ok(PartSets { sets, excluded })
    }
}

/// A part that is among others and neither tells nor hears: what it finds is then the same whatever they do.
struct SilentPart;

impl ShardExchange for SilentPart {
    fn exchange_results(&mut self, _own: &[FrontPoint]) -> Vec<FrontPoint> {
        Vec::new()
    }
}

impl PartAnswer {
    fn evaluated_designs(&self) -> impl Iterator<Item = usize> + '_ {
        self.decided.iter().filter_map(|of| match of {
            (DecidedDesigns::One(point), PartDecision::Evaluated(_)) => Some(*point),
            _ => None,
        })
    }
}

/// The front of all parts.
fn merge_fronts(parts: &[PartAnswer]) -> Front {
    let (mut front, mut seen) = (Front::default(), BTreeSet::new());
    for point in parts.iter().flat_map(|part| &part.front) {
        if seen.insert(point.id) {
            front.insert_by_id(*point);
        }
    }
    front
}

fn candidates_of(set: &DecidedDesigns) -> Candidates {
    match set {
        DecidedDesigns::One(point) => Candidates::One(*point, Default::default()),
        DecidedDesigns::Box(region) => Candidates::Box(region.clone(), Vec::new(), Default::default()),
    }
}

fn decided_designs_of(set: Candidates) -> DecidedDesigns {
    match set {
        Candidates::One(point, _) => DecidedDesigns::One(point),
        Candidates::Box(region, ..) => DecidedDesigns::Box(region),
    }
}

fn exclusion_of(why: Exclusion) -> PartDecision {
    match why {
        Exclusion::Limit(why) => PartDecision::Outside(why),
        Exclusion::NoChip(why) => PartDecision::NoChip(why),
    }
}

fn decision_of(outcome: CandidateOutcome<Vec<DesignEvaluation>>) -> PartDecision {
    match outcome {
        CandidateOutcome::Evaluated { value, .. } => PartDecision::Evaluated(value),
        CandidateOutcome::Infeasible { .. } => PartDecision::Infeasible,
        CandidateOutcome::Pruned { bound, by, shown } => PartDecision::Pruned { bound, by, shown },
        CandidateOutcome::Open { bound } => PartDecision::Open(bound),
        CandidateOutcome::Excluded(why) => exclusion_of(why),
    }
}
