//! The space of everything that the cost model can express.

use crate::ask::{PlanSpace, Splits};
use crate::planner::Job;
use crate::planner::space::plan_space::small_divisors;
use crate::planner::space::policies::{distinct_policies, preset_and_default_policies};
use sim::pipeline::SCHEDULES;
use workloads::{ActivationPolicy, ZeroStage};

impl PlanSpace {
    /// All plans that the cost model can express for a job. Values in `asked` replace those of this space.
    ///
    /// It has every degree, number of chunks and micro-batch that divides, and every context-parallel degree that
    /// divides the sequence, by both methods. It has all ZeRO stages with and without a pipeline, and all schedules.
    /// For five tensors of every layer (query, key and value; attention's result; its output projection; the MLP's two
    /// products) it has all choices of keeping, offloading and recomputing, besides the `usual` policies and the
    /// frameworks'. Equal policies count once.
    ///
    /// Layers are split evenly or nearly so for the plans of the default search and for the fastest plans
    /// ([`Splits::NearOf`]), and evenly for the others. The best split of every plan ([`Splits::Best`]) would take many
    /// times as long.
    #[must_use]
    pub fn full(job: &Job<'_>, asked: &Self, usual: Vec<ActivationPolicy>) -> Self {
        let alone = Self { activations: asked.activations.clone().or_else(|| Some(usual.clone())), ..asked.clone() };
        let everything = Self {
            context: Some(small_divisors(job.sequence_length)),
            splits: Some(Splits::NearOf(Box::new(alone))),
            zero: Some(ZeroStage::ALL.to_vec()),
            activations: Some(distinct_policies(job, usual.into_iter().chain(preset_and_default_policies()).collect())),
            schedules: Some(SCHEDULES.map(|(.., schedule)| schedule).to_vec()),
            ..Self::default()
        };
        asked.clone().or(everything)
    }
}
