//! Which policy each piece of one stage takes: an integer knapsack over few distinct policies.
//!
//! A stage holds some pieces of each class of equal segments. Choose a policy for each piece so that depth * (sum of stashes) plus the
//! largest working set fits, and the extra seconds are least. The largest working set takes few values: for each of them
//! as a cap, policies above it are left out and the rest of the memory is a plain budget for stash. The relaxation (fractions of a piece
//! allowed) walks the lower convex hulls; [`super::rounding`] finds the integer optimum near it.

use super::chain::{Chain, Share};
use super::profile::Segment;
use super::rounding::Rounding;

/// One policy of a class.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub policy: usize,
    pub stash: u64,
    pub extra: f64,
}

/// A class's policies whose working set is at most some cap, each faster than all with no more stash; least stash first.
#[derive(Debug, Clone, Default)]
pub(super) struct Allowed {
    pub choices: Vec<Choice>,
    /// Positions in `choices` of the lower convex hull.
    pub hull: Vec<usize>,
    /// Every stash is the least one plus a multiple of this.
    grain: u64,
    /// Whether some policy's working set is exactly the cap.
    attains_cap: bool,
}

impl Allowed {
    /// A point of the hull.
    pub fn point(&self, position: usize) -> Option<Choice> {
        self.hull.get(position).map(|&h| self.choices[h])
    }
}

pub(super) struct Cap {
    working: u64,
    pub classes: Vec<Allowed>,
}

/// The policies of all segments, prepared for every cap on the working set.
pub(super) struct Mixer {
    /// Class of each segment: segments with equal policies and transients are one.
    class_of: Vec<usize>,
    /// Largest cap first.
    caps: Vec<Cap>,
}

/// How many pieces of which share of a stage take which policy: (share, policy, pieces).
pub(super) type PolicyCounts = Vec<(usize, usize, usize)>;

/// Pieces of one class in a stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub class: usize,
    pub count: usize,
}

/// The policies of one stage.
#[derive(Debug, Clone)]
pub(super) struct Mix {
    /// Seconds they add per micro-batch.
    pub extra: f64,
    /// No mix adds less than this.
    pub bound: f64,
    /// (class's position in the stage, policy, pieces).
    counts: Vec<(usize, usize, usize)>,
}

/// One stage's question.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub parts: &'a [Part],
    /// Micro-batches kept.
    pub depth: u64,
    /// Bytes for stash and working set.
    pub available: u64,
    /// Differences in seconds below this do not matter.
    pub tolerance: f64,
    /// States to spend on a proof.
    pub state_limit: usize,
}

impl Mix {
    pub fn new(extra: f64, mut counts: Vec<(usize, usize, usize)>) -> Self {
        counts.retain(|(_, _, pieces)| *pieces > 0);
        counts.sort_unstable();
        Self { extra, bound: extra, counts }
    }
}

impl Mixer {
    pub fn new(chain: &Chain<'_>) -> Self {
        let segments = &chain.profile.segments;
        let mut classes: Vec<&Segment> = Vec::new();
        let mut class_of = Vec::with_capacity(segments.len());
        for segment in segments {
            let same = |c: &&Segment| c.transient == segment.transient && c.policies == segment.policies;
            class_of.push(classes.iter().position(same).unwrap_or(classes.len()));
            if class_of.last() == Some(&classes.len()) {
                classes.push(segment);
            }
        }
        let working = classes.iter().flat_map(|s| (0..s.policies.len()).map(move |p| working_set(s, p)));
        let mut caps: Vec<u64> = working.collect();
        caps.sort_unstable();
        caps.dedup();
        let cap = |working: u64| Cap { working, classes: classes.iter().map(|s| allowed(s, working)).collect() };
        Self { class_of, caps: caps.into_iter().rev().map(cap).collect() }
    }

    /// The pieces of a stage by class.
    pub fn parts(&self, shares: impl Iterator<Item = Share>, parts: &mut Vec<Part>) {
        parts.clear();
        for share in shares {
            let class = self.class_of[share.segment];
            match parts.iter_mut().find(|p| p.class == class) {
                Some(part) => part.count += share.count,
                None => parts.push(Part { class, count: share.count }),
            }
        }
    }

    /// Which policies each share's pieces take in a mix: (share, policy, pieces), a class's first shares taking its first policies.
    pub fn distribute(&self, shares: &[Share], parts: &[Part], mix: &Mix) -> PolicyCounts {
        let mut left = mix.counts.clone();
        let mut given = Vec::new();
        for (i, share) in shares.iter().enumerate() {
            let mut wanted = share.count;
            let mine = |part: usize| parts[part].class == self.class_of[share.segment];
            for (_, policy, pieces) in left.iter_mut().filter(|(part, _, pieces)| mine(*part) && *pieces > 0) {
                let taken = wanted.min(*pieces);
                if taken > 0 {
                    given.push((i, *policy, taken));
                }
                *pieces -= taken;
                wanted -= taken;
            }
        }
        given
    }

    /// Caps that mean something for these classes: all of them have a policy below it, one of them attains it.
    fn caps<'a>(&'a self, parts: &'a [Part]) -> impl Iterator<Item = &'a Cap> {
        self.caps.iter().filter(|cap| {
            parts.iter().all(|p| !cap.classes[p.class].choices.is_empty())
                && parts.iter().any(|p| cap.classes[p.class].attains_cap)
        })
    }

    /// The least bytes of stash and working set any mix takes.
    pub fn least_memory(&self, parts: &[Part], depth: u64) -> u64 {
        let need = |cap: &Cap| {
            let stash = parts.iter().map(|p| {
                let least = cap.classes[p.class].choices.first().map_or(u64::MAX, |c| c.stash);
                least.saturating_mul(p.count as u64)
            });
            stash.fold(0, u64::saturating_add).saturating_mul(depth).saturating_add(cap.working)
        };
        self.caps(parts).map(need).min().unwrap_or(u64::MAX)
    }

    /// The relaxation's least extra seconds: no mix adds less. Infinite where none fits.
    pub fn bound(&self, question: Question<'_>) -> f64 {
        let value = |cap: &Cap| {
            let budget = question.available.checked_sub(cap.working)? / question.depth;
            relax(cap, question.parts, budget).map(|relaxed| relaxed.value)
        };
        self.caps(question.parts).filter_map(value).fold(f64::INFINITY, f64::min)
    }

    /// The mix with the least extra seconds, or `None` where none fits.
    pub fn best(&self, question: Question<'_>) -> Option<Mix> {
        let relax = |cap| {
            let budget = question.available.checked_sub(Cap::working(cap))? / question.depth;
            relax(cap, question.parts, budget).map(|relaxed| (cap, relaxed))
        };
        let mut relaxed: Vec<(&Cap, Relaxed)> = self.caps(question.parts).filter_map(relax).collect();
        relaxed.sort_by(|a, b| a.1.value.total_cmp(&b.1.value));
        let mut best: Option<Mix> = None;
        let mut bound = f64::INFINITY;
        for (cap, relaxed) in &relaxed {
            let upper = best.as_ref().map_or(f64::INFINITY, |mix| mix.extra);
            if relaxed.value >= upper - question.tolerance {
                bound = bound.min(relaxed.value);
                break;
            }
            let Some(found) = Rounding::new(cap, question.parts, relaxed, question.state_limit).solve(upper, question.tolerance)
            else {
                continue;
            };
            bound = bound.min(found.bound);
            if found.extra < upper {
                best = Some(found);
            }
        }
        best.map(|mix| Mix { bound: bound.min(mix.extra), ..mix })
    }
}

impl Cap {
    fn working(&self) -> u64 {
        self.working
    }
}

/// Bytes alive during one piece's backward pass under a policy.
pub(super) fn working_set(segment: &Segment, policy: usize) -> u64 {
    segment.transient.0.saturating_add(segment.policies[policy].workspace.0)
}

fn allowed(segment: &Segment, cap: u64) -> Allowed {
    let fits = |p: &usize| working_set(segment, *p) <= cap;
    let choice = |p: usize| Choice { policy: p, stash: segment.policies[p].stash.0, extra: segment.policies[p].extra.0 };
    let mut choices: Vec<Choice> = (0..segment.policies.len()).filter(fits).map(choice).collect();
    choices.sort_by(|a, b| a.stash.cmp(&b.stash).then(a.extra.total_cmp(&b.extra)).then(a.policy.cmp(&b.policy)));
    let mut fastest = f64::INFINITY;
    choices.retain(|c| {
        let faster = c.extra < fastest;
        fastest = fastest.min(c.extra);
        faster
    });
    let least = choices.first().map_or(0, |c| c.stash);
    let grain = choices.iter().fold(0, |grain, c| greatest_common_divisor(grain, c.stash - least));
    let attains_cap = (0..segment.policies.len()).any(|p| working_set(segment, p) == cap);
    let hull = lower_hull(&choices);
    Allowed { choices, hull, grain, attains_cap }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Positions of the lower convex hull of choices sorted by stash, extra seconds falling.
fn lower_hull(choices: &[Choice]) -> Vec<usize> {
    let mut hull: Vec<usize> = Vec::new();
    for (i, c) in choices.iter().enumerate() {
        while let [.., a, b] = hull[..] {
            if slope(&choices[a], &choices[b]) > slope(&choices[a], c) {
                break;
            }
            hull.pop();
        }
        hull.push(i);
    }
    hull
}

/// Seconds saved per byte going from `a` to the larger stash `b`.
fn slope(a: &Choice, b: &Choice) -> f64 {
    (a.extra - b.extra) / (b.stash - a.stash) as f64
}

/// The relaxation's optimum: each class's pieces on one hull point, but one class's pieces between two.
pub(super) struct Relaxed {
    /// Per part, the position in its hull.
    pub at: Vec<usize>,
    /// The part whose pieces lie between `at` and the next hull point; `None` if all take their fastest policy.
    pub between: Option<usize>,
    /// Seconds.
    pub value: f64,
    /// Seconds one more byte of budget would save.
    pub price: f64,
    /// The bytes of stash any mix can use: the budget rounded down to what sums of stashes reach.
    pub budget: u64,
}

fn relax(cap: &Cap, parts: &[Part], budget: u64) -> Option<Relaxed> {
    let (mut at, mut value, mut stash, mut grain) = (vec![0; parts.len()], 0.0, 0_u64, 0);
    for part in parts {
        let least = cap.classes[part.class].point(0)?;
        stash = stash.saturating_add(least.stash.saturating_mul(part.count as u64));
        value += least.extra * part.count as f64;
        grain = greatest_common_divisor(grain, cap.classes[part.class].grain);
    }
    let mut left = budget.checked_sub(stash)?;
    left -= if grain > 0 { left % grain } else { 0 };
    let budget = stash + left;
    loop {
        let step = |(i, p): (usize, &Part)| {
            let class = &cap.classes[p.class];
            let (from, to) = (class.point(at[i])?, class.point(at[i] + 1)?);
            Some((i, slope(&from, &to), from, to))
        };
        let steps = parts.iter().enumerate().filter_map(step);
        let Some((i, price, from, to)) = steps.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))) else {
            return Some(Relaxed { at, between: None, value, price: 0.0, budget });
        };
        let whole = (to.stash - from.stash).saturating_mul(parts[i].count as u64);
        if whole > left {
            return Some(Relaxed { at, between: Some(i), value: value - price * left as f64, price, budget });
        }
        left -= whole;
        value -= (from.extra - to.extra) * parts[i].count as f64;
        at[i] += 1;
    }
}
