#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Toy {
    items: Vec<(u8, u8, Option<u8>, u8)>,
    costs_known_late: bool,
    /// Number of candidates in each root set.
    root: usize,
    /// The candidate to visit first; it may not exist.
    goal: Option<usize>,
    /// The part of the root sets that is searched, from 0, and the number of parts.
    part: (usize, usize),
}

impl Toy {
    /// The exact costs, no less than those known at once.
    fn exact(&self, c: usize) -> FrontCosts {
        let (cost, other, _, slack) = self.items[c];
        let late = if self.costs_known_late { f64::from(slack % 3) } else { 0.0 };
        [f64::from(cost) + late, f64::from(other) + late]
    }

    fn bound(&self, c: usize) -> f64 {
        let (_, _, value, slack) = self.items[c];
        f64::from(value.unwrap_or(255).saturating_sub(slack))
    }

    fn node(&self, set: (usize, usize)) -> SearchNode<(usize, usize)> {
        let least = |of: &dyn Fn(usize) -> f64| (set.0..set.1).map(of).fold(f64::INFINITY, f64::min);
        let costs = [least(&|c| f64::from(self.items[c].0)), least(&|c| f64::from(self.items[c].1))];
        let bound = least(&|c| self.bound(c) / 2.0);
        SearchNode { set, costs, bound, first: set.0, shown: BoundSource::Peaks }
    }
}

impl SearchProblem for Toy {
    /// A range of candidates: the first, and one past the last.
    type Set = (usize, usize);
    type Evaluation = ();
    fn root_nodes(&self, _: &(dyn Fn() -> bool + Sync)) -> Vec<SearchNode<(usize, usize)>> {
        let each = self.root.max(1);
        let all =
            (0..self.items.len()).step_by(each).map(|from| self.node((from, (from + each).min(self.items.len()))));
        all.enumerate().filter(|(at, _)| at % self.part.1 == self.part.0).map(|(_, node)| node).collect()
    }
    fn evaluate_elsewhere(&self, c: usize) -> Result<Option<FrontPoint>, String> {
        let value = self.items.get(c).and_then(|item| item.2);
        Ok(value.map(|value| FrontPoint { costs: self.exact(c), value: f64::from(value), id: c }))
    }
    fn first_candidate(&self, _: &(dyn Fn() -> bool + Sync)) -> Result<Option<usize>, String> {
        Ok(self.goal)
    }
    fn set_contains(&self, set: &(usize, usize), candidate: usize) -> bool {
        (set.0..set.1).contains(&candidate)
    }
    fn set_size(&self, set: &(usize, usize)) -> u64 {
        (set.1 - set.0) as u64
    }
    fn is_single(&self, set: &(usize, usize)) -> bool {
        set.1 - set.0 == 1
    }
    fn refine_set(
        &self,
        node: &SearchNode<(usize, usize)>,
        _cutoff: f64,
    ) -> Result<NodeRefinement<(usize, usize)>, String> {
        let (from, to) = node.set;
        let all = || (from..to).map(|c| self.bound(c)).fold(f64::INFINITY, f64::min);
        if to - from == 1 || (node.shown == BoundSource::Peaks && to % 2 == 0) {
            return Ok(NodeRefinement::Bound(all(), node.set));
        }
        let middle = from + (to - from) / 2;
        Ok(NodeRefinement::Parts([(from, middle), (middle, to)].map(|set| self.node(set)).to_vec(), Vec::new()))
    }
    fn evaluate_candidate(&self, c: usize, cutoff: f64) -> Verdict<()> {
        match self.items[c].2.map(f64::from) {
            Some(value) if value >= cutoff => Verdict::Beaten(cutoff),
            Some(value) => {
                Verdict::Feasible { value, costs: self.costs_known_late.then(|| self.exact(c)), evaluation: () }
            }
            None => Verdict::Infeasible(()),
        }
    }
}

fn toy() -> impl Strategy<Value = Toy> {
    // If `other` is 1, the second cost of every candidate is 0, as on a front with one axis.
    let items = prop::sample::select(vec![1u8, 20]).prop_flat_map(|other| {
        proptest::collection::vec((0u8..50, 0..other, proptest::option::weighted(0.8, 0u8..100), 0u8..10), 0..200)
    });
    let root = prop::sample::select(vec![1, 7, 200]);
    let goal = proptest::option::of(0usize..200);
    (items, any::<bool>(), root, goal).prop_map(|(items, costs_known_late, root, goal)| Toy {
        items,
        costs_known_late,
        root,
        goal,
        part: (0, 1),
    })
}

fn search(toy: &Toy, evaluations: usize, gap: f64) -> RunnerAnswer<(usize, usize), ()> {
    run_search(toy, &RunnerLimits { evaluations, gap, stop: &|| false }, &mut |_, _| {}).unwrap()
}

fn truth(toy: &Toy) -> Front {
    let mut truth = Front::default();
    for (id, item) in toy.items.iter().enumerate() {
        if let Some(v) = item.2 {
            truth.insert(FrontPoint { costs: toy.exact(id), value: f64::from(v), id });
        }
    }
    truth
}

proptest! {
    #[test]
    fn finds_the_true_front_and_proves_it(toy in toy()) {
        let answer = search(&toy, usize::MAX, 0.0);
        let mut seen = vec![0; toy.items.len()];
        answer.outcomes.iter().flat_map(|(set, _)| set.0..set.1).for_each(|c| seen[c] += 1);
        prop_assert!(seen.iter().all(|&times| times == 1), "every candidate is decided once");
        let truth = truth(&toy);
        prop_assert_eq!(answer.front.points(), truth.points());
        prop_assert_eq!(answer.lower_bound, truth.best_point().map(|p| p.value));
    }

    #[test]
    fn a_limited_search_never_claims_more_than_it_proved(toy in toy(), limit in 1usize..20, gap in prop::sample::select(vec![0.0, 0.2])) {
        let answer = search(&toy, limit, gap);
        let truth = toy.items.iter().filter_map(|i| i.2).min().map(f64::from);
        if let (Some(bound), Some(truth)) = (answer.lower_bound, truth) {
            prop_assert!(bound <= truth);
        }
        let evaluated = answer.outcomes.iter().filter(|(_, o)| matches!(o, CandidateOutcome::Evaluated { .. } | CandidateOutcome::Infeasible { .. })).count();
        prop_assert!(evaluated <= limit);
    }

    #[test]
    fn a_search_begins_where_it_is_told_to(toy in toy()) {
        let answer = search(&toy, 1, 0.0);
        let evaluated = |o: &CandidateOutcome<()>| matches!(o, CandidateOutcome::Evaluated { .. } | CandidateOutcome::Infeasible { .. });
        let first = answer.outcomes.iter().find(|(_, outcome)| evaluated(outcome)).map(|(set, _)| set.0);
        if let Some(goal) = toy.goal.filter(|goal| *goal < toy.items.len()) {
            prop_assert_eq!(first, Some(goal));
        }
    }

    #[test]
    fn what_a_gap_leaves_is_within_it(toy in toy(), gap in 0.01..0.5_f64) {
        let answer = search(&toy, usize::MAX, gap);
        for point in truth(&toy).points() {
            let near = answer.front.best_point_within(&point.costs).unwrap();
            prop_assert!(near.value <= point.value * (1.0 + gap) * (1.0 + 1e-12), "{near:?} for {point:?}");
        }
        if let (Some(best), Some(bound)) = (answer.front.best_point(), answer.lower_bound) {
            prop_assert!(best.value <= bound * (1.0 + gap) * (1.0 + 1e-12));
        }
    }
}

/// Results that each part has sent.
type Board = std::cell::RefCell<std::collections::BTreeMap<usize, Vec<FrontPoint>>>;

struct Listener<'a>(usize, &'a Board);

impl ShardExchange for Listener<'_> {
    fn exchange_results(&mut self, own: &[FrontPoint]) -> Vec<FrontPoint> {
        self.1.borrow_mut().insert(self.0, own.to_vec());
        self.1.borrow().values().flatten().copied().collect()
    }
}

proptest! {
    #[test]
    fn parts_that_tell_each_other_find_the_true_front_in_any_order_and_begun_again(
        toy in toy(),
        of in 1usize..5,
        order in proptest::collection::vec(0usize..5, 0..6),
        limit in 1usize..40,
    ) {
        let board = Board::default();
        let search = |part: usize, evaluations: usize| {
            let toy = Toy { part: (part, of), ..toy.clone() };
            let limits = RunnerLimits { evaluations, gap: 0.0, stop: &|| false };
            run_search_among(&toy, &limits, &mut |_, _| {}, &mut Listener(part, &board)).unwrap()
        };
        // Some parts are stopped on the way, after they have sent their results.
        order.iter().filter(|part| **part < of).for_each(|&part| drop(search(part, limit)));
        let parts: Vec<_> = (0..of).map(|part| search(part, usize::MAX)).collect();
        let mut seen = vec![0; toy.items.len()];
        let outcomes = || parts.iter().flat_map(|part| &part.outcomes);
        outcomes().flat_map(|(set, _)| set.0..set.1).for_each(|c| seen[c] += 1);
        prop_assert!(seen.iter().all(|&times| times == 1), "every candidate is decided once, by its part");
        let (mut front, mut known) = (Front::default(), std::collections::BTreeSet::new());
        for point in parts.iter().flat_map(|part| part.front.points()) {
            if known.insert(point.id) {
                front.insert_by_id(*point);
            }
        }
        let truth = truth(&toy);
        prop_assert_eq!(front.points(), truth.points());
        let evaluated = |id| outcomes().any(|(set, outcome)| set.0 == id && matches!(outcome, CandidateOutcome::Evaluated { .. }));
        prop_assert!(front.points().iter().all(|point| evaluated(point.id)), "what is on the front has been evaluated by its part");
        let bound = parts.iter().filter_map(|part| part.lower_bound).reduce(f64::min);
        prop_assert_eq!(bound, truth.best_point().map(|p| p.value));
    }
}
