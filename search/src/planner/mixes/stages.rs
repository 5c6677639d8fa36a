//! Chooses for each stage of a plan the fastest policies of its layers in its own memory.

use crate::memory::{MixPoint, MixQuestion, StageMix};
use crate::planner::search::core::PlanSearch;
use crate::planner::search::found::ROUNDING;
use sim::pipeline::PipelineSchedule;
use sim::units::Bytes;
use step::{DegreeCosts, Evaluator, MemoryNeed, PipelineSends, PlanShape};
use workloads::{ActivationPolicy, LayerMix, LayerRun, StagePolicies};

/// Limit on retries with less room, for a stage whose mix needs more memory than computed once its layers are spread
/// over chunks.
const TRIES: usize = 8;

/// A group's layer under every policy that a mix may use: policies, shapes and costs by the same index.
pub(crate) struct GroupLayers {
    pub(crate) policies: Vec<ActivationPolicy>,
    pub(crate) shapes: Vec<PlanShape>,
    pub(crate) points: Vec<MixPoint>,
    /// The shape that keeps everything.
    pub(crate) none: PlanShape,
}

/// A plan with policies by stage, its seconds, and the possible gain of better policies as a fraction.
pub(crate) struct StagedPlan {
    pub(crate) policies: StagePolicies,
    pub(crate) time: f64,
    pub(crate) gap: f64,
}

/// Policies by stage, and the bytes of memory that they lack.
pub(crate) struct LackingPolicies {
    pub(crate) lack: Bytes,
    pub(crate) policies: StagePolicies,
}

/// Policies that rerun the first layers of every chunk, their shape, and the bytes of memory that they lack.
pub(crate) struct RerunNeed {
    pub(crate) policies: StagePolicies,
    pub(crate) shape: PlanShape,
    pub(crate) lack: Bytes,
}

/// A plan whose stages are given their policies.
pub(crate) struct PlanStages<'s, 'a> {
    pub(crate) search: &'s PlanSearch<'a>,
    /// The evaluator in the memory that the plan may fill.
    pub(crate) evaluator: Evaluator<'a>,
    pub(crate) layers: &'s GroupLayers,
    pub(crate) degrees: &'s DegreeCosts,
    pub(crate) sends: &'s PipelineSends,
    /// The schedule, and the micro-batches per step.
    pub(crate) run: (PipelineSchedule, u64),
    /// Upper limit on a plan's seconds.
    pub(crate) limit: f64,
}

impl PlanStages<'_, '_> {
    /// The shape with these policies by stage; `None` if they cannot be combined.
    fn shape_with_policies(&self, policies: &StagePolicies) -> Option<PlanShape> {
        let known: Vec<(&ActivationPolicy, &PlanShape)> =
            self.layers.policies.iter().zip(&self.layers.shapes).collect();
        PlanShape::mix_policies(policies, &known).ok()
    }

    pub(crate) fn simulate_policies(&self, policies: StagePolicies, shape: &PlanShape, gap: f64) -> Option<StagedPlan> {
        let (schedule, micro_batches) = self.run;
        let evaluator = &self.evaluator;
        let time =
            evaluator.simulate_mixed(&policies, shape, self.degrees, self.sends, schedule, micro_batches).ok()?;
        Some(StagedPlan { policies, time: time.0, gap })
    }

    /// Finds the best mix for every stage. Returns the plan with these mixes; `None` if no such plan fits or is below
    /// the limit.
    pub(crate) fn mix_every_stage(&self) -> Option<StagedPlan> {
        let capacity = self.evaluator.capacity();
        let staying = MemoryNeed { host: Bytes::ZERO, storage: Bytes::ZERO, ..capacity };
        if self.all_beaten() {
            return None;
        }
        let best = self.mix_within_away(capacity);
        // If the mix is not proven optimal, one policy for all stages may be faster, for example that of a named
        // technique.
        let best = match best {
            Some(best) if best.gap <= 0.0 => Some(best),
            best => keep_faster_plan(best, self.fastest_uniform_policy()),
        };
        // The chunks of one device have different numbers of micro-batches in flight, which a mix ignores. So its
        // offloading may cost more than it gains.
        let (schedule, m) = self.run;
        let places = Evaluator::chunk_places(self.degrees, schedule, m);
        let apart = places.iter().any(|(_, device)| places.iter().filter(|(_, other)| other == device).count() > 1);
        if best.is_some() && !apart || staying == capacity {
            return best;
        }
        let best =
            keep_faster_plan(keep_faster_plan(best, self.mix_within_away(staying)), self.fastest_uniform_policy());
        best.or_else(|| {
            // The plan that needs the least memory may just fit.
            let LackingPolicies { policies, .. } =
                self.least_memory_policies().filter(|least| least.lack == Bytes::ZERO)?;
            let shape = self.shape_with_policies(&policies)?;
            self.simulate_policies(policies, &shape, 1.0)
        })
    }

    /// The policies that need the least device memory in each stage, among those whose offloaded bytes fit, and their
    /// common shortfall. `None` if the offloaded bytes of every policy exceed some stage's limits.
    ///
    /// All layers of a stage follow one policy, because for any largest working set no mix keeps less than the policy
    /// with the smallest stash. (If the host holds too little for all layers under that policy, some layers may still
    /// follow it, and less device memory would suffice.)
    pub(crate) fn least_memory_policies(&self) -> Option<LackingPolicies> {
        let (schedule, m) = self.run;
        let evaluator = &self.evaluator;
        let chunks = Evaluator::chunk_places(self.degrees, schedule, m);
        let run = |layers: u64, at: usize| vec![LayerRun { layers, policy: self.layers.policies[at].clone() }];
        let mut least: Vec<Option<(MemoryNeed, usize)>> = Vec::new();
        for at in 0..self.layers.points.len() {
            let alike = StagePolicies::from_chunk_mixes(chunks.iter().map(|(layers, _)| run(*layers, at)).collect());
            let needs = evaluator.stage_needs(&self.shape_with_policies(&alike)?, self.degrees, schedule, m);
            least.resize(needs.len(), None);
            for (least, need) in least.iter_mut().zip(needs) {
                let over = evaluator.shortfall(need);
                let fits_away = over.host == Bytes::ZERO && over.storage == Bytes::ZERO;
                if fits_away && least.is_none_or(|(other, _)| need.device < other.device) {
                    *least = Some((need, at));
                }
            }
        }
        let least: Vec<(MemoryNeed, usize)> = least.into_iter().collect::<Option<_>>()?;
        let of = |(layers, device): &(u64, u32)| run(*layers, least[*device as usize].1);
        let policies = StagePolicies::from_chunk_mixes(chunks.iter().map(of).collect());
        let shape = self.shape_with_policies(&policies)?;
        let lack = evaluator.total_shortfall(evaluator.memory_need(&shape, self.degrees, schedule, m));
        Some(LackingPolicies { lack, policies })
    }

    /// Finds the fastest plan with one policy for the layers of all stages; `None` if none fits.
    fn fastest_uniform_policy(&self) -> Option<StagedPlan> {
        let (schedule, m) = self.run;
        let evaluator = &self.evaluator;
        let chunks = Evaluator::chunk_places(self.degrees, schedule, m);
        let points = self.mix_points();
        let mut order: Vec<usize> = (0..points.len()).collect();
        order.sort_by(|a, b| points[*a].time.total_cmp(&points[*b].time));
        order.into_iter().find_map(|at| {
            let run = |layers: u64| vec![LayerRun { layers, policy: self.layers.policies[at].clone() }];
            let policies = StagePolicies::from_chunk_mixes(chunks.iter().map(|(layers, _)| run(*layers)).collect());
            let shape = self.shape_with_policies(&policies)?;
            let fits =
                evaluator.total_shortfall(evaluator.memory_need(&shape, self.degrees, schedule, m)) == Bytes::ZERO;
            // The possible gain of a better mix is not known here, so it is left at 0.
            fits.then(|| self.simulate_policies(policies, &shape, 0.0)).flatten()
        })
    }

    /// The costs of a layer under every policy. Copies have only the link time that offloaded weights and gradients
    /// leave.
    fn mix_points(&self) -> Vec<MixPoint> {
        let all = self.layers.points.iter().zip(&self.layers.shapes);
        all.map(|(point, shape)| match shape.layer_cost_with_copies(self.degrees, self.search.job.stack) {
            Some(time) => MixPoint { time: time.0, ..*point },
            None => *point,
        })
        .collect()
    }

    /// True if no plan is below the limit, given that a stage's layers take at least `layers` seconds per micro-batch.
    /// A stage's passes are part of the step, whatever the other stages do.
    fn is_beaten(&self, layers: f64) -> bool {
        layers * self.run.1 as f64 * (1.0 - ROUNDING) >= self.limit
    }

    /// True if the least time of some stage's layers proves that no plan is below the limit.
    fn all_beaten(&self) -> bool {
        if self.limit.is_infinite() {
            return false;
        }
        let (schedule, m) = self.run;
        let (points, chunks) = (self.mix_points(), Evaluator::chunk_places(self.degrees, schedule, m));
        let questions = self.mix_questions(&points, &chunks, self.evaluator.capacity()).unwrap_or_default();
        questions.iter().filter_map(MixQuestion::lower_bound_seconds).any(|least| self.is_beaten(least))
    }

    /// The mix problem of every stage, with limits on the offloaded bytes. `None` if some stage has too little room for
    /// any policy.
    fn mix_questions<'p>(
        &self,
        points: &'p [MixPoint],
        chunks: &[(u64, u32)],
        away: MemoryNeed,
    ) -> Option<Vec<MixQuestion<'p>>> {
        let (schedule, m) = self.run;
        let rooms = self.evaluator.stage_rooms(&self.layers.none, self.degrees, schedule, m)?;
        let of_stage = rooms.iter().enumerate().map(|(device, room)| MixQuestion {
            points,
            layers: chunks.iter().filter(|(_, on)| *on as usize == device).map(|(layers, _)| layers).sum(),
            depth: room.depth.max(1.0),
            room: room.layers.0,
            kept: room.loss.map(|loss| loss.0),
            host: away.host.0,
            storage: away.storage.0,
        });
        Some(of_stage.collect())
    }

    /// Finds the best mix for every stage under limits on the offloaded bytes. `None` if a stage has no mix, if no plan
    /// is below the limit, or after [`TRIES`] retries.
    fn mix_within_away(&self, away: MemoryNeed) -> Option<StagedPlan> {
        let (schedule, m) = self.run;
        let evaluator = &self.evaluator;
        let (points, chunks) = (self.mix_points(), Evaluator::chunk_places(self.degrees, schedule, m));
        let mut questions = self.mix_questions(&points, &chunks, away)?;
        let mut mixes: Vec<Option<StageMix>> = vec![None; questions.len()];
        for _ in 0..TRIES {
            for (mix, question) in mixes.iter_mut().zip(&questions).filter(|(mix, _)| mix.is_none()) {
                let best = question.find_best_mix()?;
                if self.is_beaten(best.bound) {
                    return None;
                }
                *mix = Some(best);
            }
            let policies = self.spread_over_chunks(&chunks, &mixes);
            let shape = self.shape_with_policies(&policies)?;
            let mut fits = true;
            for (device, need) in evaluator.stage_needs(&shape, self.degrees, schedule, m).into_iter().enumerate() {
                if evaluator.total_shortfall(need) > Bytes::ZERO {
                    fits = false;
                    let mix = mixes[device].take()?;
                    let over = evaluator.shortfall(need);
                    questions[device] =
                        questions[device].tighten_budgets(&mix, over.device.0, [over.host.0, over.storage.0]);
                }
            }
            if fits {
                let gap = |mix: &StageMix| (mix.time - mix.bound) / mix.time.max(f64::MIN_POSITIVE);
                let gap = mixes.iter().flatten().map(gap).fold(0.0, f64::max);
                let staged = self.simulate_policies(policies, &shape, gap)?;
                debug_assert!(
                    mixes.iter().flatten().all(|mix| mix.time * m as f64 * (1.0 - ROUNDING) <= staged.time),
                    "a stage's passes take longer than the step of {} s: {mixes:?}",
                    staged.time
                );
                return Some(staged);
            }
        }
        None
    }

    /// Spreads the stages' mixes over their chunks. Layers are dealt to a stage's chunks in turn, smallest stash first,
    /// so every chunk gets its share of each policy.
    fn spread_over_chunks(&self, chunks: &[(u64, u32)], mixes: &[Option<StageMix>]) -> StagePolicies {
        let mut found: Vec<LayerMix> = vec![Vec::new(); chunks.len()];
        for (device, mix) in mixes.iter().enumerate() {
            let mut counts = mix.as_ref().map_or_else(Vec::new, |mix| mix.counts.clone());
            counts.sort_by_key(|(at, _)| (self.layers.points[*at].kept, *at));
            let mut left: Vec<(usize, u64)> = chunks
                .iter()
                .enumerate()
                .filter(|(_, (_, on))| *on as usize == device)
                .map(|(place, (layers, _))| (place, *layers))
                .collect();
            let mut layers = counts.iter().flat_map(|(at, count)| std::iter::repeat_n(*at, *count as usize));
            while left.iter().any(|(_, room)| *room > 0) {
                for (place, room) in left.iter_mut().filter(|(_, room)| *room > 0) {
                    let Some(at) = layers.next() else {
                        *room = 0;
                        continue;
                    };
                    *room -= 1;
                    found[*place].push(LayerRun { layers: 1, policy: self.layers.policies[at].clone() });
                }
            }
        }
        StagePolicies::from_chunk_mixes(found)
    }

    /// The policies that rerun the first `count` layers of every chunk, and their need. `None` if they have no shape.
    pub(crate) fn rerun_need(&self, count: u64) -> Option<RerunNeed> {
        let ((schedule, m), evaluator) = (self.run, &self.evaluator);
        let policies = StagePolicies::from_full_recompute_layers(count, &self.degrees.chunk_split());
        let shape = match policies.uniform_policy() {
            Some(ActivationPolicy::None) => self.layers.none.clone(),
            Some(only) => self.layers.shapes.get(self.layers.policies.iter().position(|known| known == only)?)?.clone(),
            None => self.shape_with_policies(&policies)?,
        };
        let lack = evaluator.total_shortfall(evaluator.memory_need(&shape, self.degrees, schedule, m));
        Some(RerunNeed { policies, shape, lack })
    }

    /// Finds the plan that reruns the fewest first layers of every chunk and fits; `None` if no number of layers
    /// suffices.
    pub(crate) fn rerun_first_layers(&self) -> Option<StagedPlan> {
        let split = self.degrees.chunk_split();
        let of = |count: u64| self.rerun_need(count).filter(|need| need.lack == Bytes::ZERO);
        let most = (0..split.chunks).map(|place| split.layers_of_chunk(place)).max()?;
        let (mut low, mut high) = (0, most);
        let mut best = of(most)?;
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match of(middle) {
                Some(found) => (best, high) = (found, middle),
                None => low = middle,
            }
        }
        self.simulate_policies(best.policies, &best.shape, 0.0)
    }
}

/// Keeps the faster of two plans, with the larger of both gaps.
fn keep_faster_plan(a: Option<StagedPlan>, b: Option<StagedPlan>) -> Option<StagedPlan> {
    let gap = a.iter().chain(&b).map(|plan| plan.gap).fold(0.0, f64::max);
    let best = [a, b].into_iter().flatten().min_by(|a, b| a.time.total_cmp(&b.time))?;
    Some(StagedPlan { gap, ..best })
}
