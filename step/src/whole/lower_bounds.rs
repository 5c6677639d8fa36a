//! Lower bounds of a plan's passes and of the rest of its step, for every split of its layers into chunks. Searches use
//! them before they evaluate any split.

use crate::communication::contention::OverlapWindow;
use crate::communication::sends::PipelineSends;
use crate::pass::profile::{PieceProfile, StepProfile};
use crate::pipeline::chunk::{ShardingExchange, exposed_gathers};
use crate::whole::evaluate::PlanOnNetwork;
use crate::{ChipTimes, Evaluator, PlanShape, TrainingPlan};
use sim::units::Seconds;
use workloads::Layout;

/// Exposed communication per micro-batch in a chunk's (forward pass, backward pass).
pub type ExposedGatherTimes = [Seconds; 2];

/// [`ExposedGatherTimes`] of a chunk with at least one layer and without ends.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LayerGathers {
    /// Constant part, for any number of layers.
    pub once: ExposedGatherTimes,
    /// Additional part per layer.
    pub each: ExposedGatherTimes,
}

impl Evaluator<'_> {
    /// Returns the overhead of one chunk's pass besides its kernels.
    #[must_use]
    pub fn pass_overhead(&self, layout: &Layout) -> Seconds {
        if layout.pipeline > 1 { self.stack.pipeline_pass_overhead(layout.virtual_stages) } else { Seconds::ZERO }
    }

    /// Returns a lower bound on the exposed gathers and scatters of a chunk per micro-batch: those of one unit, the
    /// layer or end with the fewest parameters. Nothing hides the first gather of a pass.
    #[must_use]
    pub fn least_exposed_gathers(
        &self,
        chip: &ChipTimes,
        shape: &PlanShape,
        plan: &TrainingPlan,
    ) -> ExposedGatherTimes {
        let profile = &shape.profile;
        let pieces = [&profile.embedding, &profile.layer, &profile.head].into_iter().zip(profile.units);
        let each = |(piece, units): &(&PieceProfile, u64)| (piece.parameters / units.max(&1), piece.expert_parameters);
        let Some((least, units)) = pieces.min_by_key(each) else { return ExposedGatherTimes::default() };
        // Only layers have experts.
        let dense = PieceProfile { expert_parameters: 0, ..*least };
        let ShardingExchange { gather, scatter } =
            PlanOnNetwork { fabric: self.fabric, plan, profile }.gathers_per_unit(chip, &dense, units);
        [gather.time, gather.time + scatter.time]
    }

    /// Returns the exposed gathers and scatters per micro-batch of a chunk without ends, as a linear function of its
    /// layers. Each layer adds an equal window that hides them. The first gather of a pass is never hidden.
    #[must_use]
    pub fn exposed_layer_gathers(&self, chip: &ChipTimes, shape: &PlanShape, plan: &TrainingPlan) -> LayerGathers {
        let (profile, [_, units, _]) = (&shape.profile, shape.profile.units);
        let of = |layers: u64| {
            let (piece, units) = (profile.layer.times(layers), units * layers);
            let gathers = PlanOnNetwork { fabric: self.fabric, plan, profile }.gathers_per_unit(chip, &piece, units);
            let exposed = exposed_gathers(self.stack, &piece, units, gathers);
            [exposed.forward, if plan.schedule.splits_backward() { exposed.apart[0] } else { exposed.backward }]
        };
        let (one, two) = (of(1), of(2));
        let each = [0, 1].map(|pass| two[pass] - one[pass]);
        LayerGathers { once: [0, 1].map(|pass| one[pass] - each[pass]), each }
    }

    /// Returns a lower bound on a plan's exposed sends, however long the passes are that hide them: (the shortest send
    /// between neighbouring devices, the summed excess of the others).
    #[must_use]
    pub fn least_exposed_sends(&self, plan: &TrainingPlan, sends: &PipelineSends) -> [Seconds; 2] {
        let longest = OverlapWindow { time: Seconds(f64::INFINITY), ..OverlapWindow::default() };
        let exposed = sends.exposed_behind(longest, self.stack.hidden_send_fraction(plan.layout.virtual_stages));
        [exposed.least_send(), exposed.excess_over_least()]
    }

    /// Returns a lower bound on the exposed exchange of a device after its last pass. It is the same on every chip:
    /// work hides at most the stack's fraction of a communication. A device with more layers never exchanges faster.
    #[must_use]
    pub fn least_exposed_exchange(
        &self,
        chip: &ChipTimes,
        shape: &PlanShape,
        plan: &TrainingPlan,
        held: DeviceHolding,
    ) -> Seconds {
        let (step, profile) = (PlanOnNetwork { fabric: self.fabric, plan, profile: &shape.profile }, &shape.profile);
        let all = held.sum_pieces(profile);
        let (exchange, overlap) = (step.exchange_of_parameters(chip, &all), &self.stack.overlap);
        let late = exchange.reduce.time * (1.0 - overlap.data_reduction)
            + exchange.gather.time * (1.0 - overlap.parameter_prefetch);
        if held.ends == [false; 2] { late } else { late + step.tied_gradient_sum(chip) }
    }

    /// Returns the time of a device's update of its parameters. It is a lower bound on a step's last update.
    #[must_use]
    pub fn time_of_least_update(
        &self,
        chip: &mut ChipTimes,
        shape: &PlanShape,
        plan: &TrainingPlan,
        held: DeviceHolding,
    ) -> Seconds {
        let (step, profile) = (PlanOnNetwork { fabric: self.fabric, plan, profile: &shape.profile }, &shape.profile);
        let all = held.sum_pieces(profile);
        chip.time_of_update(profile, step.updated_parameters(chip, all.parameters, all.expert_parameters))
    }
}

/// A device's part of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceHolding {
    /// Number of layers.
    pub layers: u64,
    /// True if the device holds (the embedding, the head).
    pub ends: [bool; 2],
}

impl DeviceHolding {
    /// Returns `layers` layers beside the embedding.
    #[must_use]
    pub fn first_device(layers: u64) -> Self {
        Self { layers, ends: [true, false] }
    }

    /// Returns `layers` layers between the ends.
    #[must_use]
    pub fn inner_device(layers: u64) -> Self {
        Self { layers, ends: [false; 2] }
    }

    /// Returns a number that no other holding has. It is less than four times the layers plus four.
    #[must_use]
    pub fn index(self) -> usize {
        4 * self.layers as usize + 2 * usize::from(self.ends[0]) + usize::from(self.ends[1])
    }

    fn sum_pieces(self, profile: &StepProfile) -> PieceProfile {
        let ends = [&profile.embedding, &profile.head].into_iter().zip(self.ends).filter(|(_, held)| *held);
        ends.fold(profile.layer.times(self.layers), |all, (end, _)| all.plus(*end))
    }
}
