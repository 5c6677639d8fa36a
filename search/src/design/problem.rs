//! A space of chips as what [`runner`](crate::runner) searches: boxes of dimensions where the space has them, else its chips one by one.

use super::bounds::{Depth, Seen};
use super::climb::climb;
use super::{DesignSearch, Evaluation};
use crate::pareto::FrontPoint;
use crate::planner::LotBounds;
use crate::runner::{self, Exclusion, Look, Node, Shown, Verdict};
use crate::space::{Enclosed, Region, Single};
use rayon::prelude::*;
use std::sync::Arc;

/// Boxes of fewer chips are split without a better bound: that of each chip takes as long.
const WORTH_BOUNDING: u64 = 4;
/// Boxes of fewer chips are split along what was best to split their like along, as long as there is one of [`LIKELY`] such dimensions.
const WORTH_COMPARING: u64 = 4096;
const LIKELY: usize = 3;
/// The most that one part of a split counts for, and the least: so that a split that helps both parts is better than one that helps one.
const GAINS: (f64, f64) = (1e-3, 3.0);

/// A set of chips.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Candidates {
    /// A chip, by its number in the space.
    One(usize, Known),
    /// A box; and the dimensions along which it was best to split what it is a part of, best first.
    Box(Region, Vec<u16>, Known),
}

/// By model, bounds of its lots that hold on all chips of a set; empty where none are known.
type Known = Arc<[LotBounds]>;

impl Candidates {
    fn known(&self) -> &Known {
        let (Self::One(_, known) | Self::Box(_, _, known)) = self;
        known
    }
}

/// The search's numbering of designs: chips with the largest HBM first, in the space's order.
pub(super) struct ChipProblem<'a> {
    pub search: DesignSearch<'a>,
    /// The sets of a part of the search.
    part: Option<Vec<Node<Candidates>>>,
}

/// A part of a box.
enum Part {
    Node(Node<Candidates>),
    Excluded(Candidates, Exclusion),
}

impl<'a> ChipProblem<'a> {
    /// The whole search.
    pub fn new(search: DesignSearch<'a>) -> Self {
        Self { search, part: None }
    }

    /// Of the whole search some sets.
    pub fn part(search: DesignSearch<'a>, sets: Vec<Node<Candidates>>) -> Self {
        Self { search, part: Some(sets) }
    }

    /// Chips that are searched one by one, bounded as long as nothing stops it.
    pub fn chips(&self, points: Vec<usize>, stop: &(dyn Fn() -> bool + Sync)) -> Vec<Node<Candidates>> {
        let unknown = |point| Node {
            set: Candidates::One(point, Known::default()),
            costs: [0.0; 2],
            bound: 0.0,
            first: point,
            shown: Shown::Peaks,
        };
        let node = |point| match (!stop()).then(|| self.one(point, &Known::default())) {
            Some(Part::Node(node)) => node,
            Some(Part::Excluded(..)) | None => unknown(point),
        };
        points.into_par_iter().map(node).collect()
    }

    /// A chip; `known` holds for what it is a part of.
    fn one(&self, point: usize, known: &Known) -> Part {
        let set = Candidates::One(point, Known::default());
        match self.search.space.single(point) {
            // What cannot be built is refused by its evaluation, with the reason.
            Err(_) => Part::Node(Node { set, costs: [0.0; 2], bound: 0.0, first: point, shown: Shown::Peaks }),
            Ok(Single::Refused(why)) => Part::Excluded(set, Exclusion::NoChip(why)),
            Ok(Single::Outside(why)) => Part::Excluded(set, Exclusion::Limit(why)),
            Ok(Single::Chip(chip, figures)) => {
                let seen = Seen::chip(*chip, figures, self.search.space.fabric(self.search.space.largest(point)));
                let mut lots = known.to_vec();
                // Chips that are searched one by one are too many for more.
                let depth = if known.is_empty() { Depth::Peaks } else { Depth::Buffered };
                let (costs, bound) = (self.search.costs(&seen), self.search.coarse(&seen, depth, &mut lots));
                let known = if known.is_empty() { Known::default() } else { lots.into() };
                Part::Node(Node { set: Candidates::One(point, known), costs, bound, first: point, shown: Shown::Peaks })
            }
        }
    }

    /// A part of `of`, whose bounds hold for it too; `whole` is what bounds that, if it is known.
    fn half(&self, region: Region, of: &Node<Candidates>, whole: Option<&Seen>) -> Result<Part, String> {
        let space = self.search.space;
        let first = space.first(&region);
        let known = of.set.known();
        let part = if region.is_single() {
            space.single(first)?;
            self.one(first, known)
        } else {
            let set = Candidates::Box(region.clone(), Vec::new(), Arc::clone(known));
            match space.enclose(&region)? {
                Enclosed::Outside(why) => Part::Excluded(set, Exclusion::Limit(why)),
                Enclosed::Open => Part::Node(Node { set, costs: [0.0; 2], bound: 0.0, first, shown: Shown::Peaks }),
                Enclosed::Within(corners) => {
                    let seen = Seen::corners(*corners);
                    let (set, bound) = match whole.filter(|whole| self.search.as_fast(&seen, whole)) {
                        Some(_) => (set, of.bound),
                        None => {
                            let mut lots = known.to_vec();
                            let bound = self.search.coarse(&seen, Depth::Buffered, &mut lots);
                            (Candidates::Box(region, Vec::new(), lots.into()), bound)
                        }
                    };
                    Part::Node(Node { set, costs: self.search.costs(&seen), bound, first, shown: Shown::Peaks })
                }
            }
        };
        Ok(match part {
            Part::Node(node) => {
                let costs = std::array::from_fn(|axis| node.costs[axis].max(of.costs[axis]));
                Part::Node(Node { costs, bound: node.bound.max(of.bound), ..node })
            }
            excluded @ Part::Excluded(..) => excluded,
        })
    }

    /// What a part has over the whole: how much slower it is at best, and how much more it takes.
    fn gain(&self, part: &Part, of: &Node<Candidates>) -> f64 {
        let (least, most) = GAINS;
        let Part::Node(part) = part else { return most };
        let grown = |now: f64, then: f64| {
            if then > 0.0 {
                (now / then).ln()
            } else if now > 0.0 {
                most
            } else {
                0.0
            }
        };
        // Axes that are not there stay at nothing.
        let costs: f64 = part.costs.iter().zip(of.costs).map(|(now, then)| grown(*now, then)).sum();
        (grown(part.bound, of.bound) + costs).clamp(least, most)
    }

    /// Halves of a box along the dimension that tightens most.
    fn split(&self, node: &Node<Candidates>, region: &Region, likely: &[u16]) -> Result<Look<Candidates>, String> {
        let open: Vec<usize> = region.open().collect();
        let known = likely.iter().map(|&dimension| usize::from(dimension)).filter(|dimension| open.contains(dimension));
        let mut tried: Vec<usize> = if region.size() < WORTH_COMPARING { known.take(LIKELY).collect() } else { Vec::new() };
        if tried.is_empty() {
            tried = open;
        }
        let whole = match self.search.space.enclose(region)? {
            Enclosed::Within(corners) => Some(Seen::corners(*corners)),
            _ => None,
        };
        // What has no bound has none in halves with the same words either.
        let words = self.search.space.words_of(region);
        if whole.is_none() && !words.is_empty() {
            tried = words;
        }
        let mut splits: Vec<(f64, usize, [Part; 2])> = Vec::with_capacity(tried.len());
        for &dimension in &tried {
            let [lower, upper] = region.halves(dimension);
            let parts = [self.half(lower, node, whole.as_ref())?, self.half(upper, node, whole.as_ref())?];
            splits.push((self.gain(&parts[0], node) * self.gain(&parts[1], node), dimension, parts));
        }
        splits.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        // Those that were not tried are as likely as they were.
        let mut order: Vec<u16> = splits.iter().map(|(_, dimension, _)| *dimension as u16).collect();
        order.extend(likely.iter().filter(|dimension| !tried.contains(&usize::from(**dimension))));
        let (mut nodes, mut excluded) = (Vec::new(), Vec::new());
        for part in splits.swap_remove(0).2 {
            match part {
                Part::Node(Node { set: Candidates::Box(region, _, known), costs, bound, first, shown }) => {
                    nodes.push(Node { set: Candidates::Box(region, order.clone(), known), costs, bound, first, shown });
                }
                Part::Node(node) => nodes.push(node),
                Part::Excluded(set, why) => excluded.push((set, why)),
            }
        }
        Ok(Look::Parts(nodes, excluded))
    }
}

impl runner::Problem for ChipProblem<'_> {
    type Set = Candidates;
    type Evaluation = Vec<Evaluation>;

    fn roots(&self, stop: &(dyn Fn() -> bool + Sync)) -> Vec<Node<Candidates>> {
        let space = self.search.space;
        if let Some(sets) = &self.part {
            return sets.clone();
        }
        if let Some(region) = space.whole() {
            let first = space.first(&region);
            let known = Known::default();
            // Whatever stops the search, it has a bound.
            let bound = match space.enclose(&region) {
                Ok(Enclosed::Within(corners)) => self.search.coarse(&Seen::corners(*corners), Depth::Buffered, &mut Vec::new()),
                _ => 0.0,
            };
            let set = if region.is_single() { Candidates::One(first, known) } else { Candidates::Box(region, Vec::new(), known) };
            return vec![Node { set, costs: [0.0; 2], bound, first, shown: Shown::Peaks }];
        }
        self.chips((0..space.points()).collect(), stop)
    }

    fn start(&self, stop: &(dyn Fn() -> bool + Sync)) -> Result<Option<usize>, String> {
        climb(&self.search, stop)
    }

    fn holds(&self, set: &Candidates, candidate: usize) -> bool {
        match set {
            Candidates::One(point, _) => *point == candidate,
            Candidates::Box(region, ..) => self.search.space.holds(region, candidate),
        }
    }

    fn elsewhere(&self, candidate: usize) -> Result<Option<FrontPoint>, String> {
        let Part::Node(node) = self.one(candidate, &Known::default()) else { return Ok(None) };
        Ok(match self.evaluate(candidate, f64::INFINITY) {
            Verdict::Feasible { value, costs, .. } => {
                Some(FrontPoint { costs: costs.unwrap_or(node.costs), value, id: candidate })
            }
            Verdict::Infeasible(_) | Verdict::Beaten(_) => None,
        })
    }

    fn settled(&self, set: Candidates) -> Candidates {
        match set {
            Candidates::One(point, _) => Candidates::One(point, Known::default()),
            Candidates::Box(region, ..) => Candidates::Box(region, Vec::new(), Known::default()),
        }
    }

    fn size(&self, set: &Candidates) -> u64 {
        match set {
            Candidates::One(..) => 1,
            Candidates::Box(region, ..) => region.size(),
        }
    }

    fn is_single(&self, set: &Candidates) -> bool {
        matches!(set, Candidates::One(..))
    }

    fn look(&self, node: &Node<Candidates>, cutoff: f64) -> Result<Look<Candidates>, String> {
        let space = self.search.space;
        match &node.set {
            Candidates::One(point, known) => match space.single(*point)? {
                Single::Chip(chip, figures) => {
                    let seen = Seen::chip(*chip, figures, space.fabric(space.largest(*point)));
                    let bound = self.search.fine(&seen, cutoff, &mut known.to_vec());
                    Ok(Look::Bound(bound, Candidates::One(*point, Known::default())))
                }
                Single::Outside(why) => Ok(Look::Parts(Vec::new(), vec![(node.set.clone(), Exclusion::Limit(why))])),
                Single::Refused(why) => Ok(Look::Parts(Vec::new(), vec![(node.set.clone(), Exclusion::NoChip(why))])),
            },
            Candidates::Box(region, likely, known) => {
                let corners = match node.shown {
                    Shown::Peaks if region.size() >= WORTH_BOUNDING => space.enclose(region)?,
                    _ => Enclosed::Open,
                };
                if let Enclosed::Within(corners) = corners {
                    let seen = Seen::corners(*corners);
                    if seen.depth == Depth::Mapped {
                        let mut lots = known.to_vec();
                        let bound = self.search.fine(&seen, cutoff, &mut lots);
                        return Ok(Look::Bound(bound, Candidates::Box(region.clone(), likely.clone(), lots.into())));
                    }
                }
                self.split(node, region, likely)
            }
        }
    }

    fn evaluate(&self, chip: usize, cutoff: f64) -> Verdict<Vec<Evaluation>> {
        self.search.evaluate(self.search.space.largest(chip), cutoff)
    }
}
