//! Which policy each piece of one stage takes: an integer knapsack over few distinct policies.
//!
//! A stage holds `count` equal pieces of each of its segments. Choose a policy for each piece so that depth * (sum of stashes) plus the
//! largest working set fits, and the extra seconds are least. The largest working set takes few values: for each of them
//! as a cap, policies above it are left out and the rest of the memory is a plain budget for stash. The relaxation (fractions of a piece
//! allowed) walks the lower convex hulls; an integer optimum differs from its rounding only by policies whose reduced cost is below
//! the rounding gap, and those are enumerated with labels.

use super::chain::{Chain, Share};
use super::profile::Segment;

/// Above this many labels a mix is returned with its bound instead of its proof.
const LABEL_LIMIT: usize = 200_000;

#[derive(Debug, Clone, Copy)]
struct Choice {
    policy: usize,
    stash: u64,
    extra: f64,
}

/// A segment's policies whose working set is at most some cap.
#[derive(Debug, Clone, Default)]
struct Allowed {
    choices: Vec<Choice>,
    /// Positions in `choices` of the lower convex hull, least stash first.
    hull: Vec<usize>,
    /// Whether some policy's working set is exactly the cap.
    attains_cap: bool,
}

struct Cap {
    working: u64,
    segments: Vec<Allowed>,
}

/// The policies of all segments, prepared for every cap on the working set.
pub(super) struct Mixer {
    /// Largest cap first.
    caps: Vec<Cap>,
}

/// The policies of one stage.
#[derive(Debug, Clone)]
pub(super) struct Mix {
    /// Seconds they add per micro-batch.
    pub extra: f64,
    /// No mix adds less than this.
    pub bound: f64,
    /// (position in the stage's shares, policy, pieces).
    pub counts: Vec<(usize, usize, usize)>,
}

/// One stage's question.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub shares: &'a [Share],
    /// Micro-batches kept.
    pub depth: u64,
    /// Bytes for stash and working set.
    pub available: u64,
    /// Differences in seconds below this do not matter.
    pub tolerance: f64,
}

impl Mixer {
    pub fn new(chain: &Chain<'_>) -> Self {
        let segments = &chain.profile.segments;
        let working = segments.iter().flat_map(|s| (0..s.policies.len()).map(move |p| working_set(s, p)));
        let mut caps: Vec<u64> = working.collect();
        caps.sort_unstable();
        caps.dedup();
        let cap = |working: u64| Cap { working, segments: segments.iter().map(|s| allowed(s, working)).collect() };
        Self { caps: caps.into_iter().rev().map(cap).collect() }
    }

    /// Caps that mean something for these segments: all of them have a policy below it, one of them attains it.
    fn caps<'a>(&'a self, shares: &'a [Share]) -> impl Iterator<Item = &'a Cap> {
        self.caps.iter().filter(|cap| {
            shares.iter().all(|s| !cap.segments[s.segment].choices.is_empty())
                && shares.iter().any(|s| cap.segments[s.segment].attains_cap)
        })
    }

    /// The least bytes of stash and working set any mix takes.
    pub fn least_memory(&self, shares: &[Share], depth: u64) -> u64 {
        let need = |cap: &Cap| {
            let stash = shares.iter().map(|s| {
                let allowed = &cap.segments[s.segment];
                let least = allowed.hull.first().map_or(u64::MAX, |&h| allowed.choices[h].stash);
                least.saturating_mul(s.count as u64)
            });
            stash.fold(0, u64::saturating_add).saturating_mul(depth).saturating_add(cap.working)
        };
        self.caps(shares).map(need).min().unwrap_or(u64::MAX)
    }

    /// The mix with the least extra seconds, or `None` where none fits.
    pub fn best(&self, question: Question<'_>) -> Option<Mix> {
        let mut best: Option<Mix> = None;
        let mut bound = f64::INFINITY;
        for cap in self.caps(question.shares) {
            let Some(budget) = question.available.checked_sub(cap.working).map(|bytes| bytes / question.depth) else {
                continue;
            };
            let Some(relaxed) = relax(cap, question.shares, budget) else { continue };
            let upper = best.as_ref().map_or(f64::INFINITY, |mix| mix.extra);
            if relaxed.value >= upper - question.tolerance {
                bound = bound.min(relaxed.value);
                continue;
            }
            let Some(found) = Rounding::new(cap, question, budget, &relaxed).solve(best.as_ref()) else { continue };
            bound = bound.min(found.bound);
            if found.extra < upper {
                best = Some(found);
            }
        }
        best.map(|mix| Mix { bound: bound.min(mix.extra), ..mix })
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
    // Keep what is faster than everything with no more stash.
    let mut fastest = f64::INFINITY;
    choices.retain(|c| {
        c.extra < fastest && {
            fastest = c.extra;
            true
        }
    });
    let attains_cap = (0..segment.policies.len()).any(|p| working_set(segment, p) == cap);
    let hull = lower_hull(&choices);
    Allowed { choices, hull, attains_cap }
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

/// The relaxation's optimum: each segment's pieces on one hull point, but one segment's pieces between two.
struct Relaxed {
    /// Per share, the position in its hull.
    at: Vec<usize>,
    /// The share whose pieces lie between `at` and the next hull point; `None` if all take their fastest policy.
    between: Option<usize>,
    /// Seconds.
    value: f64,
    /// Seconds one more byte of budget would save.
    price: f64,
}

fn relax(cap: &Cap, shares: &[Share], budget: u64) -> Option<Relaxed> {
    let point = |s: &Share, position: usize| {
        let allowed = &cap.segments[s.segment];
        allowed.hull.get(position).map(|&h| allowed.choices[h])
    };
    let (mut at, mut value, mut stash) = (vec![0; shares.len()], 0.0, 0_u64);
    for share in shares {
        let least = point(share, 0)?;
        stash = stash.saturating_add(least.stash.saturating_mul(share.count as u64));
        value += least.extra * share.count as f64;
    }
    let mut left = budget.checked_sub(stash)?;
    loop {
        let steps = shares.iter().enumerate().filter_map(|(i, s)| Some((i, slope(&point(s, at[i])?, &point(s, at[i] + 1)?))));
        let Some((i, price)) = steps.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))) else {
            return Some(Relaxed { at, between: None, value, price: 0.0 });
        };
        let (Some(from), Some(to)) = (point(&shares[i], at[i]), point(&shares[i], at[i] + 1)) else { return None };
        let whole = (to.stash - from.stash).saturating_mul(shares[i].count as u64);
        if whole > left {
            return Some(Relaxed { at, between: Some(i), value: value - price * left as f64, price });
        }
        left -= whole;
        value -= (from.extra - to.extra) * shares[i].count as f64;
        at[i] += 1;
    }
}

/// A partial choice of deviations from the relaxation's base.
#[derive(Clone, Copy)]
struct Label {
    /// Pieces of the current share that deviate.
    used: usize,
    /// Stash beyond the base's.
    shift: i128,
    /// Extra seconds beyond the base's.
    extra: f64,
    /// The same priced: extra + price * shift, never negative.
    reduced: f64,
    /// The label it came from and the (share, policy, pieces) that was added.
    step: Option<(usize, (usize, usize, usize))>,
}

/// Finds the integer optimum near a relaxation.
struct Rounding<'a> {
    cap: &'a Cap,
    question: Question<'a>,
    budget: i128,
    relaxed: &'a Relaxed,
    /// Base choice of each share.
    base: Vec<Choice>,
    base_stash: i128,
    base_extra: f64,
    arena: Vec<Label>,
}

impl<'a> Rounding<'a> {
    fn new(cap: &'a Cap, question: Question<'a>, budget: u64, relaxed: &'a Relaxed) -> Self {
        let at = |(s, &position): (&Share, &usize)| cap.segments[s.segment].choices[cap.segments[s.segment].hull[position]];
        let base: Vec<Choice> = question.shares.iter().zip(&relaxed.at).map(at).collect();
        let counted = || question.shares.iter().zip(&base);
        let base_stash = counted().map(|(s, c)| s.count as i128 * i128::from(c.stash)).sum();
        let base_extra = counted().map(|(s, c)| s.count as f64 * c.extra).sum();
        let budget = i128::from(budget);
        Self { cap, question, budget, relaxed, base, base_stash, base_extra, arena: Vec::new() }
    }

    /// The best mix under this cap that beats `upper`, or else some mix under it.
    fn solve(mut self, upper: Option<&Mix>) -> Option<Mix> {
        let root = Label { used: 0, shift: 0, extra: 0.0, reduced: 0.0, step: None };
        self.arena.push(root);
        let mut best = self.finish(0)?;
        let Some(between) = self.relaxed.between else {
            return Some(Mix { bound: best.extra, ..best });
        };
        let upper = upper.map_or(f64::INFINITY, |mix| mix.extra);
        // To matter, a mix must be faster than this by the tolerance.
        let gap = upper.min(best.extra) - self.question.tolerance - self.relaxed.value;
        let mut labels = vec![0_usize];
        let others = (0..self.base.len()).filter(|&i| i != between);
        for share in others.chain([between]) {
            labels = self.deviate(share, labels, gap);
            if self.arena.len() > LABEL_LIMIT {
                return Some(Mix { bound: self.relaxed.value, ..best });
            }
        }
        for label in labels {
            if let Some(mix) = self.finish(label).filter(|mix| mix.extra < best.extra) {
                best = mix;
            }
        }
        Some(Mix { bound: best.extra.min(upper), ..best })
    }

    /// All labels from `labels` by moving pieces of one share to policies of reduced cost below `gap`.
    fn deviate(&mut self, share: usize, mut labels: Vec<usize>, gap: f64) -> Vec<usize> {
        let Share { segment, count } = self.question.shares[share];
        let allowed = &self.cap.segments[segment];
        let next = (self.relaxed.between == Some(share)).then(|| allowed.hull[self.relaxed.at[share] + 1]);
        let base = self.base[share];
        for &label in &labels {
            self.arena[label].used = 0;
        }
        for (position, choice) in allowed.choices.iter().enumerate() {
            let shift = i128::from(choice.stash) - i128::from(base.stash);
            let extra = choice.extra - base.extra;
            let reduced = (extra + self.relaxed.price * shift as f64).max(0.0);
            if choice.policy == base.policy || next == Some(position) || reduced >= gap {
                continue;
            }
            let mut grown = labels.clone();
            for &label in &labels {
                let from = self.arena[label];
                for pieces in 1..=count - from.used {
                    let n = pieces as f64;
                    if from.reduced + n * reduced >= gap || self.arena.len() > LABEL_LIMIT {
                        break;
                    }
                    self.arena.push(Label {
                        used: from.used + pieces,
                        shift: from.shift + pieces as i128 * shift,
                        extra: from.extra + n * extra,
                        reduced: from.reduced + n * reduced,
                        step: Some((label, (share, choice.policy, pieces))),
                    });
                    grown.push(self.arena.len() - 1);
                }
            }
            labels = self.distinct(grown);
        }
        labels
    }

    /// Of labels with the same pieces used and the same stash, the one with the least extra seconds.
    fn distinct(&self, mut labels: Vec<usize>) -> Vec<usize> {
        let key = |l: &usize| (self.arena[*l].used, self.arena[*l].shift);
        labels.sort_by(|a, b| key(a).cmp(&key(b)).then(self.arena[*a].extra.total_cmp(&self.arena[*b].extra)).then(a.cmp(b)));
        labels.dedup_by_key(|l| key(l));
        labels
    }

    /// The mix of a label: as many of the remaining pieces of the share in between as the budget allows take the faster hull point.
    fn finish(&self, label: usize) -> Option<Mix> {
        let Label { shift, extra, .. } = self.arena[label];
        let mut left = self.budget - self.base_stash - shift;
        if left < 0 {
            return None;
        }
        let mut mix = Mix { extra: self.base_extra + extra, bound: 0.0, counts: Vec::new() };
        let mut rest: Vec<usize> = self.question.shares.iter().map(|s| s.count).collect();
        let mut at = label;
        while let Some((parent, step)) = self.arena[at].step {
            rest[step.0] -= step.2;
            mix.counts.push(step);
            at = parent;
        }
        if let Some(share) = self.relaxed.between {
            let allowed = &self.cap.segments[self.question.shares[share].segment];
            let faster = allowed.choices[allowed.hull[self.relaxed.at[share] + 1]];
            let per_piece = i128::from(faster.stash - self.base[share].stash);
            let pieces = rest[share].min(usize::try_from(left / per_piece).unwrap_or(usize::MAX));
            left -= pieces as i128 * per_piece;
            debug_assert!(left >= 0);
            rest[share] -= pieces;
            mix.extra -= pieces as f64 * (self.base[share].extra - faster.extra);
            mix.counts.push((share, faster.policy, pieces));
        }
        mix.counts.extend(rest.iter().zip(&self.base).enumerate().map(|(i, (&n, c))| (i, c.policy, n)));
        mix.counts.retain(|(_, _, pieces)| *pieces > 0);
        mix.counts.sort_unstable();
        Some(mix)
    }
}
