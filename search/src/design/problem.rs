//! A space of chips as a problem for [`runner`](crate::runner). Sets are boxes of dimensions if the space has them,
//! otherwise single chips.

use super::bounds::{BoundDepth, ChipOrBox};
use super::climb::climb_to_good_design;
use super::room::TooSmallMemories;
use super::{DesignEvaluation, DesignSearch};
use crate::pareto::FrontPoint;
use crate::planner::GroupBounds;
use crate::runner::{self, BoundSource, Exclusion, NodeRefinement, SearchNode, Verdict};
use crate::space::{Enclosed, Region, SingleCombination, Space};
use rayon::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Boxes with fewer designs try only the [`LIKELY`] best split dimensions of their parent box, unless none of these is
/// left. Both constants were chosen by the search time of Llama 3 70B on the space of `tpu`. Two likely dimensions take
/// 1.6 times as long, and 4,096 designs 1.2 times. Limits from 4 to 256 designs take the same time. No answer depends
/// on them.
const WORTH_COMPARING: u64 = 256;
const LIKELY: usize = 3;
/// Limits on the gain of one part of a split. They make a split that helps both parts win over one that helps a single
/// part.
const GAINS: (f64, f64) = (1e-3, 3.0);

/// A set of chips.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Candidates {
    /// A chip, by its number in the space.
    One(usize, BoundsByModel),
    /// A box. The numbers are the split dimensions of its parent box, best first.
    Box(Region, Vec<u16>, BoundsByModel),
}

/// By model, bounds of plan groups that hold on all chips of a set; empty if none are known.
type BoundsByModel = Arc<[GroupBounds]>;

impl Candidates {
    fn known_bounds(&self) -> &BoundsByModel {
        let (Self::One(_, known) | Self::Box(_, _, known)) = self;
        known
    }
}

/// The search as a branch-and-bound problem. A candidate's number is that of a chip with its largest HBM, in the
/// space's order.
pub(super) struct ChipProblem<'a> {
    pub search: DesignSearch<'a>,
    /// The sets of one part of the search; `None` for the whole search.
    part: Option<Vec<SearchNode<Candidates>>>,
    too_small: TooSmallMemories,
    /// True once a candidate was evaluated. Until then no set is excluded by its memory, so that an answer without a
    /// plan has a design that says what is lacking.
    has_evaluated: AtomicBool,
    boxes: RecentBoxes,
}

/// Boxes that were bounded not long ago, because a box is bounded as a part, then refined, then split.
#[derive(Default)]
struct RecentBoxes(Mutex<(HashMap<Region, Enclosed>, VecDeque<Region>)>);

impl RecentBoxes {
    /// Limit on the boxes that are kept, which take some kilobytes each.
    const MOST: usize = 4096;

    /// Bounds a region of a space ([`Space::enclose_boxes`]).
    fn enclose(&self, space: &Space, region: &Region) -> Result<Enclosed, String> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(enclosed) = known().0.get(region) {
            return Ok(enclosed.clone());
        }
        let enclosed = space.enclose_boxes(region)?;
        let (boxes, order) = &mut *known();
        if boxes.insert(region.clone(), enclosed.clone()).is_none() {
            order.push_back(region.clone());
        }
        if let Some(oldest) = (order.len() > Self::MOST).then(|| order.pop_front()).flatten() {
            boxes.remove(&oldest);
        }
        Ok(enclosed)
    }
}

/// A part of a box.
enum BoxPart {
    Node(SearchNode<Candidates>),
    Excluded(Candidates, Exclusion),
}

impl<'a> ChipProblem<'a> {
    /// The whole search.
    pub fn new(search: DesignSearch<'a>) -> Self {
        Self {
            search,
            part: None,
            too_small: TooSmallMemories::default(),
            has_evaluated: AtomicBool::new(false),
            boxes: RecentBoxes::default(),
        }
    }

    /// The given sets of the search.
    pub fn of_sets(search: DesignSearch<'a>, sets: Vec<SearchNode<Candidates>>) -> Self {
        Self { part: Some(sets), ..Self::new(search) }
    }

    /// Nodes of chips that are searched one by one. Once `stop` returns true, nodes carry the trivial bound.
    pub fn single_chip_nodes(
        &self,
        points: Vec<usize>,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Vec<SearchNode<Candidates>> {
        let unknown = |point| SearchNode {
            set: Candidates::One(point, BoundsByModel::default()),
            costs: [0.0; 2],
            bound: 0.0,
            first: point,
            shown: BoundSource::Peaks,
        };
        let node = |point| match (!stop()).then(|| self.single_chip(point, &BoundsByModel::default())) {
            Some(BoxPart::Node(node)) => node,
            Some(BoxPart::Excluded(..)) | None => unknown(point),
        };
        points.into_par_iter().map(node).collect()
    }

    /// True if it is known that no plan fits the memory of these chips.
    fn lacks_room(&self, seen: &ChipOrBox) -> bool {
        self.has_evaluated.load(Ordering::Relaxed) && self.too_small.exclude(&self.search, seen)
    }

    /// The node of one chip, or the reason why it is excluded. `known` are bounds of the chip's parent set.
    fn single_chip(&self, point: usize, known: &BoundsByModel) -> BoxPart {
        let set = Candidates::One(point, BoundsByModel::default());
        match self.search.space.single_point(point) {
            // A chip that cannot be built stays in; its evaluation gives the reason.
            Err(_) => {
                BoxPart::Node(SearchNode { set, costs: [0.0; 2], bound: 0.0, first: point, shown: BoundSource::Peaks })
            }
            Ok(SingleCombination::Refused(why)) => BoxPart::Excluded(set, Exclusion::NoChip(why)),
            Ok(SingleCombination::Outside(why)) => BoxPart::Excluded(set, Exclusion::Limit(why)),
            Ok(SingleCombination::Chip(chip, figures)) => {
                let seen = self.search.see_chip(
                    *chip,
                    figures,
                    self.search.space.fabric_of_design(self.search.space.with_largest_memory(point)),
                );
                let mut lots = known.to_vec();
                // Without a parent set there are too many chips for a better bound.
                let depth = if known.is_empty() { BoundDepth::Peaks } else { BoundDepth::Buffered };
                let (costs, bound) =
                    (self.search.least_costs(&seen), self.search.coarse_lower_bound(&seen, depth, &mut lots));
                let known = if known.is_empty() { BoundsByModel::default() } else { lots.into() };
                BoxPart::Node(SearchNode {
                    set: Candidates::One(point, known),
                    costs,
                    bound,
                    first: point,
                    shown: BoundSource::Peaks,
                })
            }
        }
    }

    /// The node for `region`, a part of the node `of`. The bounds of `of` hold for the part too. `whole` are the
    /// corners of `of`, if known.
    fn part_of_box(
        &self,
        region: Region,
        of: &SearchNode<Candidates>,
        whole: Option<&ChipOrBox>,
    ) -> Result<BoxPart, String> {
        let space = self.search.space;
        let first = space.first_point(&region);
        let known = of.set.known_bounds();
        let part = if region.is_single() {
            space.single_point(first)?;
            self.single_chip(first, known)
        } else {
            let set = Candidates::Box(region.clone(), Vec::new(), Arc::clone(known));
            match self.boxes.enclose(space, &region)? {
                Enclosed::Outside(why) => BoxPart::Excluded(set, Exclusion::Limit(why)),
                Enclosed::Open => {
                    BoxPart::Node(SearchNode { set, costs: [0.0; 2], bound: 0.0, first, shown: BoundSource::Peaks })
                }
                Enclosed::Within(corners) => {
                    let seen = self.search.see_box(*corners);
                    let (set, bound) = match whole.filter(|whole| self.search.shares_bounds_with(&seen, whole)) {
                        Some(_) => (set, of.bound),
                        None => {
                            let mut lots = known.to_vec();
                            let bound = self.search.coarse_lower_bound(&seen, BoundDepth::Buffered, &mut lots);
                            (Candidates::Box(region, Vec::new(), lots.into()), bound)
                        }
                    };
                    BoxPart::Node(SearchNode {
                        set,
                        costs: self.search.least_costs(&seen),
                        bound,
                        first,
                        shown: BoundSource::Peaks,
                    })
                }
            }
        };
        Ok(match part {
            BoxPart::Node(node) => {
                let costs = std::array::from_fn(|axis| node.costs[axis].max(of.costs[axis]));
                BoxPart::Node(SearchNode { costs, bound: node.bound.max(of.bound), ..node })
            }
            excluded @ BoxPart::Excluded(..) => excluded,
        })
    }

    /// The gain of a part over the whole: the growth of its bound and of its costs as logarithms, clamped to [`GAINS`].
    /// An excluded part has the largest gain.
    fn gain_of_part(&self, part: &BoxPart, of: &SearchNode<Candidates>) -> f64 {
        let (least, most) = GAINS;
        let BoxPart::Node(part) = part else { return most };
        let grown = |now: f64, then: f64| {
            if then > 0.0 {
                (now / then).ln()
            } else if now > 0.0 {
                most
            } else {
                0.0
            }
        };
        // Missing axes stay at zero.
        let costs: f64 = part.costs.iter().zip(of.costs).map(|(now, then)| grown(*now, then)).sum();
        (grown(part.bound, of.bound) + costs).clamp(least, most)
    }

    /// Splits a box along the dimension that tightens the bounds most.
    fn split_box(
        &self,
        node: &SearchNode<Candidates>,
        region: &Region,
        likely: &[u16],
    ) -> Result<NodeRefinement<Candidates>, String> {
        let open: Vec<usize> = region.open_dimensions().collect();
        let known = likely.iter().map(|&dimension| usize::from(dimension)).filter(|dimension| open.contains(dimension));
        let mut tried: Vec<usize> =
            if region.combination_count() < WORTH_COMPARING { known.take(LIKELY).collect() } else { Vec::new() };
        if tried.is_empty() {
            tried = open;
        }
        let whole = match self.boxes.enclose(self.search.space, region)? {
            Enclosed::Within(corners) => Some(self.search.see_box(*corners)),
            _ => None,
        };
        // If a box has no bound, its halves with the same words have none either. So it is split along word dimensions
        // first.
        let words = self.search.space.word_dimensions_of(region);
        if whole.is_none() && !words.is_empty() {
            tried = words;
        }
        let mut splits: Vec<(f64, usize, [BoxPart; 2])> = Vec::with_capacity(tried.len());
        for &dimension in &tried {
            let [lower, upper] = region.split_in_halves(dimension);
            let parts =
                [self.part_of_box(lower, node, whole.as_ref())?, self.part_of_box(upper, node, whole.as_ref())?];
            splits.push((self.gain_of_part(&parts[0], node) * self.gain_of_part(&parts[1], node), dimension, parts));
        }
        splits.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        // Dimensions that were not tried keep their order.
        let mut order: Vec<u16> = splits.iter().map(|(_, dimension, _)| *dimension as u16).collect();
        order.extend(likely.iter().filter(|dimension| !tried.contains(&usize::from(**dimension))));
        let (mut nodes, mut excluded) = (Vec::new(), Vec::new());
        for part in splits.swap_remove(0).2 {
            match part {
                BoxPart::Node(SearchNode { set: Candidates::Box(region, _, known), costs, bound, first, shown }) => {
                    nodes.push(SearchNode {
                        set: Candidates::Box(region, order.clone(), known),
                        costs,
                        bound,
                        first,
                        shown,
                    });
                }
                BoxPart::Node(node) => nodes.push(node),
                BoxPart::Excluded(set, why) => excluded.push((set, why)),
            }
        }
        Ok(NodeRefinement::Parts(nodes, excluded))
    }
}

impl runner::SearchProblem for ChipProblem<'_> {
    type Set = Candidates;
    type Evaluation = Vec<DesignEvaluation>;

    fn root_nodes(&self, stop: &(dyn Fn() -> bool + Sync)) -> Vec<SearchNode<Candidates>> {
        let space = self.search.space;
        if let Some(sets) = &self.part {
            return sets.clone();
        }
        if let Some(region) = space.whole_region() {
            let first = space.first_point(&region);
            let known = BoundsByModel::default();
            // The root has a bound even if the search stops at once.
            let bound = match space.enclose_boxes(&region) {
                Ok(Enclosed::Within(corners)) => self.search.coarse_lower_bound(
                    &self.search.see_box(*corners),
                    BoundDepth::Buffered,
                    &mut Vec::new(),
                ),
                _ => 0.0,
            };
            let set = if region.is_single() {
                Candidates::One(first, known)
            } else {
                Candidates::Box(region, Vec::new(), known)
            };
            return vec![SearchNode { set, costs: [0.0; 2], bound, first, shown: BoundSource::Peaks }];
        }
        self.single_chip_nodes((0..space.chip_count()).collect(), stop)
    }

    fn first_candidate(&self, stop: &(dyn Fn() -> bool + Sync)) -> Result<Option<usize>, String> {
        climb_to_good_design(&self.search, &self.too_small, stop)
    }

    fn set_contains(&self, set: &Candidates, candidate: usize) -> bool {
        match set {
            Candidates::One(point, _) => *point == candidate,
            Candidates::Box(region, ..) => self.search.space.region_contains(region, candidate),
        }
    }

    fn evaluate_elsewhere(&self, candidate: usize) -> Result<Option<FrontPoint>, String> {
        let BoxPart::Node(node) = self.single_chip(candidate, &BoundsByModel::default()) else { return Ok(None) };
        Ok(match self.evaluate_candidate(candidate, f64::INFINITY) {
            Verdict::Feasible { value, costs, .. } => {
                Some(FrontPoint { costs: costs.unwrap_or(node.costs), value, id: candidate })
            }
            Verdict::Infeasible(_) | Verdict::Beaten(_) => None,
        })
    }

    fn strip_decided_set(&self, set: Candidates) -> Candidates {
        match set {
            Candidates::One(point, _) => Candidates::One(point, BoundsByModel::default()),
            Candidates::Box(region, ..) => Candidates::Box(region, Vec::new(), BoundsByModel::default()),
        }
    }

    fn set_size(&self, set: &Candidates) -> u64 {
        match set {
            Candidates::One(..) => 1,
            Candidates::Box(region, ..) => region.combination_count(),
        }
    }

    fn is_single(&self, set: &Candidates) -> bool {
        matches!(set, Candidates::One(..))
    }

    fn refine_set(&self, node: &SearchNode<Candidates>, cutoff: f64) -> Result<NodeRefinement<Candidates>, String> {
        let space = self.search.space;
        match &node.set {
            Candidates::One(point, known) => match space.single_point(*point)? {
                SingleCombination::Chip(chip, figures) => {
                    let seen =
                        self.search.see_chip(*chip, figures, space.fabric_of_design(space.with_largest_memory(*point)));
                    if self.lacks_room(&seen) {
                        return Ok(without_room(node));
                    }
                    let bound = self.search.fine_lower_bound(&seen, cutoff, &mut known.to_vec());
                    Ok(NodeRefinement::Bound(bound, Candidates::One(*point, BoundsByModel::default())))
                }
                SingleCombination::Outside(why) => {
                    Ok(NodeRefinement::Parts(Vec::new(), vec![(node.set.clone(), Exclusion::Limit(why))]))
                }
                SingleCombination::Refused(why) => {
                    Ok(NodeRefinement::Parts(Vec::new(), vec![(node.set.clone(), Exclusion::NoChip(why))]))
                }
            },
            Candidates::Box(region, likely, known) => {
                let corners = match node.shown {
                    BoundSource::Peaks => self.boxes.enclose(space, region)?,
                    _ => Enclosed::Open,
                };
                if let Enclosed::Within(corners) = corners {
                    let seen = self.search.see_box(*corners);
                    if self.lacks_room(&seen) {
                        return Ok(without_room(node));
                    }
                    if seen.depth == BoundDepth::Mapped {
                        let mut lots = known.to_vec();
                        let bound = self.search.fine_lower_bound(&seen, cutoff, &mut lots);
                        return Ok(NodeRefinement::Bound(
                            bound,
                            Candidates::Box(region.clone(), likely.clone(), lots.into()),
                        ));
                    }
                }
                self.split_box(node, region, likely)
            }
        }
    }

    fn exclude_without_value(&self, set: &Candidates) -> Option<Exclusion> {
        let Candidates::One(point, _) = set else { return None };
        self.too_small.note_design(&self.search, self.search.space.with_largest_memory(*point));
        self.has_evaluated.load(Ordering::Relaxed).then_some(Exclusion::NoPlan)
    }

    fn evaluate_candidate(&self, chip: usize, cutoff: f64) -> Verdict<Vec<DesignEvaluation>> {
        self.has_evaluated.store(true, Ordering::Relaxed);
        self.too_small.evaluate_design(&self.search, self.search.space.with_largest_memory(chip), cutoff)
    }
}

/// The refinement of a set in whose memory no plan fits.
fn without_room(node: &SearchNode<Candidates>) -> NodeRefinement<Candidates> {
    NodeRefinement::Parts(Vec::new(), vec![(node.set.clone(), Exclusion::NoPlan)])
}
