//! The splits of the layers next to that of a plan whose stages keep different things: mixes are made for even and listed splits only, and where the
//! stages' rooms differ the fastest is often one or two layers off.

use super::found::{Candidate, Found};
use super::mixes::{Layers, StagedPlan};
use super::search::Search;
use rayon::prelude::*;
use step::ChipTimes;
use workloads::{Between, LayerEnds};

/// Steps from split to split at most.
const STEPS: usize = 8;

/// Layers that a step moves at either end at most.
const MOVED: u64 = 2;

/// Plans whose splits are moved at most, and by what share of its time they may be slower than the first of the list: other splits make a plan with
/// chunks of few layers about so much faster (llama3-70b on 64 A100, 32,768 tokens: 1.0 %).
const AT_MOST: usize = 8;
const CLOSE: f64 = 0.02;

/// Where moves of layers have led.
struct Moved {
    /// The fastest plan on the way and its ends, if one is faster than the first.
    best: Option<(StagedPlan, LayerEnds)>,
    /// Splits that were mixed.
    tried: usize,
}

impl Search<'_> {
    /// Gives the first plans of the list whose stages keep different things, if they are about as fast as the first of all, the best split that moves of
    /// few layers lead to; how many splits were mixed. `layers` are those of a plan's lot, none where they are not at hand.
    pub(super) fn nearby_mixes<'l>(
        &self,
        chip: &ChipTimes,
        layers: impl Fn(&Candidate) -> Option<&'l Layers> + Sync,
        found: &mut Found,
    ) -> usize {
        if !self.uneven {
            return 0;
        }
        let close = found.limit_of(1) * (1.0 + CLOSE);
        let mixed = |candidate: &&Candidate| candidate.policy as usize >= self.policies.len() && candidate.time <= close;
        let first: Vec<Candidate> = found.best.iter().filter(mixed).take(AT_MOST).copied().collect();
        let moved = |chip: &mut ChipTimes, plan: &Candidate| Some((*plan, self.moved(chip, layers(plan)?, *plan)));
        let moved: Vec<(Candidate, Moved)> = first.par_iter().map_init(|| chip.clone(), moved).flatten().collect();
        let mut tried = 0;
        for (mut candidate, moved) in moved {
            tried += moved.tried;
            if let Some((staged, ends)) = moved.best {
                let policy = self.remember(staged.policies);
                candidate = Candidate { time: staged.time, ends: Some(ends), policy, ..candidate };
                found.rank(candidate, self.length);
            }
        }
        tried
    }

    /// Moves layers between a plan's first and last chunk and those between for as long as that makes it faster.
    fn moved(&self, chip: &mut ChipTimes, layers: &Layers, first: Candidate) -> Moved {
        let (mut moved, mut at, mut seen) = (Moved { best: None, tried: 0 }, first, vec![first.ends]);
        for _ in 0..STEPS {
            let before = at.time;
            for ends in self.ends_beside(at) {
                if seen.contains(&Some(ends)) || self.standing.stops() {
                    continue;
                }
                seen.push(Some(ends));
                moved.tried += 1;
                let candidate = Candidate { ends: Some(ends), ..first };
                let Some(staged) = self.staged(chip, layers, &candidate).filter(|staged| staged.time < at.time) else { continue };
                at.time = staged.time;
                moved.best = Some((staged, ends));
            }
            match &moved.best {
                Some((_, ends)) if at.time < before => at.ends = Some(*ends),
                _ => break,
            }
        }
        moved
    }

    /// The ends of the splits in which the first and the last chunk hold up to so many layers more or less, the chunks between that hold one more
    /// before all others or behind them.
    fn ends_beside(&self, candidate: Candidate) -> Vec<LayerEnds> {
        let (layers, layout) = (self.job.model.layers, self.plan(candidate).layout);
        let Ok(now) = layout.chunk_split(layers) else { return Vec::new() };
        let near = |a: u64, b: u64| a.abs_diff(b) <= MOVED;
        let outer = |between: &Between| [0, between.chunks - between.longer].contains(&between.shorter) || between.longer == 0;
        let betweens = layout.betweens(layers).filter(outer);
        let beside = betweens.flat_map(|between| {
            let rest = layers - between.layers();
            (0..=rest).map(move |first| between.split(first, rest - first))
        });
        let beside = beside.filter(|split| near(split.first, now.first) && near(split.last, now.last) && *split != now);
        beside.filter(|split| self.job.may_hold(split)).filter_map(|split| split.ends()).collect()
    }
}
