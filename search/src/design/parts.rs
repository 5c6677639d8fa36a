//! Splits a search into parts for several machines. Each part searches its share of the space, and the results are
//! merged.
//!
//! The question and the number of parts alone decide which designs a part has. If the optimum is to be proven exactly,
//! parts also prune by each other's results. This changes which designs are decided by bounds, but not the front or the
//! best. With an allowed gap, the designs found depend on the order of evaluation, so parts do not exchange results.

use super::problem::{Candidates, ChipProblem};
use super::{DesignAnswer, DesignEvaluation, DesignSearch, DesignWatch};
use crate::pareto::{Front, FrontPoint};
use crate::runner::{
    self, BoundSource, CandidateOutcome, DecisionCounts, Exclusion, NodeRefinement, RunnerAnswer, SearchNode,
    SearchProblem, ShardExchange, Verdict,
};
use crate::shard::Shard;
use crate::space::{OutsideReason, Region};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Initial boxes per part: enough that every part has promising ones, few enough to make them quickly.
const BOXES: usize = 16;

/// Allowance when a design is evaluated again, as a fraction of its value. It exceeds rounding errors, and is small
/// enough for a quick evaluation.
const AGAIN: f64 = 1e-9;

/// Designs that were decided together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum DecidedDesigns {
    /// One design, by its number in the space.
    One(usize),
    /// A whole box.
    Box(Region),
}

/// The decision about a set of designs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PartDecision {
    /// Evaluated, with the minimised value.
    Evaluated(f64),
    /// Evaluated, without a value: no plan fits or is fast enough, the chip has no price, or it cannot be simulated.
    Infeasible,
    /// Pruned by a bound.
    Pruned {
        /// Lower bound on their values.
        bound: f64,
        /// The design that prunes them.
        by: usize,
        /// The source of the bound.
        shown: BoundSource,
    },
    /// The search was stopped first. Holds a lower bound on their values.
    Open(f64),
    /// Over a limit.
    Outside(OutsideReason),
    /// No chips.
    NoChip(String),
    /// No plan fits their memory, as is known from another design.
    NoPlan,
}

/// The answer of one part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartAnswer {
    /// The decisions about its designs.
    pub decided: Vec<(DecidedDesigns, PartDecision)>,
    /// The front of the part's own designs and of those received from other parts.
    pub front: Vec<FrontPoint>,
    /// Designs of other parts that took part in pruning.
    pub heard: Vec<FrontPoint>,
    /// Lower bound on the value of its designs; `None` if none is feasible or open.
    pub lower_bound: Option<f64>,
    /// Counts of decisions.
    pub counts: DecisionCounts,
}

/// The sets of a part, and the designs excluded while dealing.
struct PartSets {
    sets: Vec<SearchNode<Candidates>>,
    excluded: Vec<(Candidates, Exclusion)>,
}

impl DesignSearch<'_> {
    /// Searches one part of the space. Exchanges results with `others` if they are given and the allowed gap is zero.
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
        let decided =
            answer.outcomes.into_iter().map(|(set, outcome)| (self::decided_designs_of(set), decision_of(outcome)));
        let outside = excluded.into_iter().map(|(set, why)| (self::decided_designs_of(set), self::exclusion_of(why)));
        Ok(PartAnswer {
            decided: decided.chain(outside).collect(),
            front: answer.front.points().to_vec(),
            heard: answer.heard,
            lower_bound: answer.lower_bound,
            counts: answer.counts,
        })
    }

    /// Merges the answers of all parts into the answer of the whole search.
    ///
    /// Evaluated designs are evaluated again, to get their plans and to check the parts' claims.
    ///
    /// # Errors
    /// Parts that do not fit together or belong to another question. Also the errors of
    /// [`DesignSearch::run_design_search`].
    pub fn merge_parts(&self, parts: &[PartAnswer]) -> Result<DesignAnswer, String> {
        let front = merge_fronts(parts);
        let evaluated: BTreeSet<usize> = parts.iter().flat_map(PartAnswer::evaluated_designs).collect();
        if let Some(lost) = front.points().iter().find(|point| !evaluated.contains(&point.id)) {
            return Err(format!("design {} is on the front of the parts, but no part has evaluated it", lost.id));
        }
        let heard: BTreeMap<usize, FrontPoint> =
            parts.iter().flat_map(|part| &part.heard).map(|point| (point.id, *point)).collect();
        // A part may have received a rival whose owner was then restarted and did not evaluate it again. A front point
        // that is no worse replaces this rival.
        let known = |by: usize| match heard.get(&by).filter(|_| !evaluated.contains(&by)) {
            Some(point) => front
                .best_point_within(&point.costs)
                .filter(|best| best.value <= point.value)
                .map_or(by, |better| better.id),
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

    /// The outcome of a decision, with its evaluation.
    fn outcome_of_decision(
        &self,
        set: &DecidedDesigns,
        fate: &PartDecision,
        known: &dyn Fn(usize) -> usize,
    ) -> Result<CandidateOutcome<Vec<DesignEvaluation>>, String> {
        let again = |cutoff: f64| match set {
            DecidedDesigns::One(point) => {
                Some((*point, self.evaluate_design(self.space.with_largest_memory(*point), cutoff)))
            }
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
            PartDecision::NoPlan => CandidateOutcome::Excluded(Exclusion::NoPlan),
        })
    }

    /// Deals the sets of one part. Single chips are dealt as in a sweep. Boxes are sorted by their bounds, the most
    /// promising first, and dealt in turn.
    fn deal_sets(&self, shard: Shard) -> Result<PartSets, String> {
        let problem = ChipProblem::new(*self);
        if self.space.whole_region().is_none() {
            let points = (0..self.space.chip_count()).filter(|&point| shard.contains(point as u64)).collect();
            return Ok(PartSets { sets: problem.single_chip_nodes(points, &|| false), excluded: Vec::new() });
        }
        let (mut sets, mut excluded) = (problem.root_nodes(&|| false), Vec::new());
        while sets.len() < BOXES * shard.of as usize && sets.iter().any(|node| !problem.is_single(&node.set)) {
            let open = |node: &SearchNode<Candidates>| {
                (!problem.is_single(&node.set)).then(|| problem.refine_set(node, f64::INFINITY))
            };
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
        // Only the first part counts the excluded sets.
        let excluded = if shard.part == 1 { excluded } else { Vec::new() };
        Ok(PartSets { sets, excluded })
    }
}

/// The exchange of a part that neither sends nor receives, so that its answer does not depend on other parts.
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

/// Merges the fronts of all parts into one.
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
        Exclusion::NoPlan => PartDecision::NoPlan,
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
