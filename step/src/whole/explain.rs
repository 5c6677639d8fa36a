//! Explanation of a step's time: its parts, and each kernel's time and bound.

use crate::memory::keeps::count_layers_with_policy;
use crate::pass::away::PieceCopies;
use crate::pass::copied::{CopiedBytes, CopiesEachWay};
use crate::pass::execute::detail::KernelDetail;
use crate::pass::profile::{PassProfile, PieceProfile};
use crate::whole::evaluate::{PlanOnNetwork, step_time_of};
use crate::{ChipTimes, StepError, StepPart, StepTime, TrainingPlan, lower_plan};
use sim::cost::Bottleneck;
use sim::hardware::Accelerator;
use sim::kernel::Kernel;
use sim::network::Fabric;
use sim::units::{Joules, Seconds};
use std::collections::BTreeMap;
use workloads::{ActivationPolicy, Model, RecomputeSet, Segment, SegmentKind};

/// A named part of a step's time.
#[derive(Debug, Clone, PartialEq)]
pub struct TimePart {
    /// Name of a part of [`StepTime::named_parts`]. Forward and backward kernels are split by kind and bound.
    pub name: String,
    /// Its time in the step.
    pub time: Seconds,
}

/// A pass of a segment on the plan's slowest stage.
#[derive(Debug, Clone, PartialEq)]
pub struct PassDetail {
    /// The segment: embedding, layer, head.
    pub segment: String,
    /// `forward`, or `backward` with its recomputation.
    pub pass: String,
    /// Number of runs per micro-batch on a device of the stage.
    pub count: u64,
    /// Time of one run, without waiting for the host's launches and without ZeRO's exchanges.
    pub time: Seconds,
    /// Energy of one run on one device, without static power.
    pub energy: Joules,
    /// Upper bound on what a better schedule could save; zero if the schedule is proven optimal.
    pub unproven: Seconds,
    /// Its kernels, in order of start.
    pub kernels: Vec<KernelDetail>,
}

/// The explanation of a plan's step time.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The step's time.
    pub time: StepTime,
    /// Parts that add up to the step's time, longest first.
    pub parts: Vec<TimePart>,
    /// The stage whose devices are busy longest, from 0; the first of several.
    pub slowest_stage: u32,
    /// Its passes.
    pub passes: Vec<PassDetail>,
}

/// Returns the name of the unit that runs a kernel.
#[must_use]
pub fn kernel_units(kernel: &Kernel) -> &'static str {
    match kernel {
        Kernel::Contraction(_) | Kernel::Epilogue(_) => "arrays",
        Kernel::FusedAttention(_) => "cores",
        Kernel::Elementwise(_) | Kernel::Reduction(_) => "lanes",
        Kernel::Collective(_) => "network",
        Kernel::Transfer(_) => "link",
    }
}

/// Returns the name of a kernel's bound on a chip.
#[must_use]
pub fn bound_name(bound: Bottleneck, kernel: &Kernel, chip: &Accelerator) -> String {
    match bound {
        Bottleneck::Compute => kernel_units(kernel).to_owned(),
        Bottleneck::Memory(level) => {
            chip.memory_levels().nth(usize::from(level)).map_or_else(|| "memory".into(), |l| l.name.clone())
        }
        Bottleneck::Network => "network".into(),
        Bottleneck::Overhead => "launch overhead".into(),
    }
}

/// Returns a description of a kernel's work and its bound.
#[must_use]
pub fn kernel_class(kernel: &Kernel, bound: Bottleneck, chip: &Accelerator) -> String {
    let work = match kernel {
        Kernel::Contraction(_) | Kernel::Epilogue(_) => "matrix products",
        Kernel::FusedAttention(_) => "fused attention",
        Kernel::Elementwise(_) | Kernel::Reduction(_) => "vector work",
        Kernel::Collective(_) => "collectives",
        Kernel::Transfer(_) => "host transfers",
    };
    format!("{work}, bound by {}", bound_name(bound, kernel, chip))
}

/// Returns the explanation of a plan's step time. The plan must obey its layout's rules.
///
/// # Errors
/// As [`crate::step_time`].
pub fn explain_plan(
    chip: &mut ChipTimes,
    model: &Model,
    fabric: &Fabric,
    plan: &TrainingPlan,
) -> Result<Explanation, StepError> {
    let graph = lower_plan(model, plan, chip.stack())?;
    let profile = chip.profile_lowered(model, &graph, fabric, plan)?;
    let time = step_time_of(chip, model, fabric, plan, &profile)?;
    let (assembly, exchanges) = PlanOnNetwork { fabric, plan, profile: &profile }.assemble_plan(chip, model)?;
    let profile = exchanges.add_copies_to_profile(&profile, chip.stack());
    let moved = exchanges.copies.unwrap_or_default().pieces;
    let arrangement = &assembly.arrangement;
    let slowest = assembly.busiest_devices();
    let stage = slowest.map_or(0, |alike| alike.from);
    let held = slowest.map_or([0; 4], |alike| alike.counts);
    let alone = arrangement.split.chunks == 1;
    let (mut passes, mut classes) = (Vec::new(), BTreeMap::new());
    for segment in &graph.segments {
        let first = plan.activations.first_layer_policy();
        let runs = match segment.kind {
            SegmentKind::Embedding => vec![(&profile.embedding, held[0], first)],
            SegmentKind::Layer => {
                let under = |policy| {
                    (
                        profile.layer_with_policy(policy),
                        count_layers_with_policy(plan, arrangement, stage, policy),
                        policy,
                    )
                };
                plan.activations.distinct_policies().into_iter().map(under).collect()
            }
            SegmentKind::Head => vec![(&profile.head, if alone { held[0] } else { held[2] }, first)],
        };
        for (piece, count, policy) in runs.into_iter().filter(|(_, count, _)| *count > 0) {
            let moved = moved[segment.kind as usize];
            let run = SegmentRun { segment, piece, count, policy, fabric, moved };
            passes.extend(run.forward_and_backward(chip)?);
            run.add_kernels_by_class(chip, arrangement.micro_batches, &mut classes)?;
        }
    }
    let by_class = [StepPart::Total, StepPart::Forward, StepPart::Backward];
    let whole = time.all_parts().into_iter().filter(|(part, _)| !by_class.contains(part));
    let whole = whole.map(|(part, time)| (part.name().to_owned(), time));
    let mut parts: Vec<TimePart> = classes
        .into_iter()
        .chain(whole)
        .filter(|(_, time)| time.0 > 0.0)
        .map(|(name, time)| TimePart { name, time })
        .collect();
    parts.sort_by(|a, b| b.time.0.total_cmp(&a.time.0));
    Ok(Explanation { time, parts, slowest_stage: stage, passes })
}

/// A segment as a stage runs it.
struct SegmentRun<'a> {
    segment: &'a Segment,
    piece: &'a PieceProfile,
    policy: &'a ActivationPolicy,
    /// Runs per micro-batch.
    count: u64,
    fabric: &'a Fabric,
    /// Copies of offloaded weights and gradients.
    moved: PieceCopies,
}

impl SegmentRun<'_> {
    /// Returns its forward pass, and its backward pass with recomputation.
    fn forward_and_backward(&self, chip: &mut ChipTimes) -> Result<[PassDetail; 2], StepError> {
        let (segment, piece) = (self.segment, self.piece);
        let treatment = self.policy.treatment_with_extent(&segment.graph, chip.stack().replay_extent());
        let copied = CopiedBytes::of_treatment(&treatment, &segment.graph);
        let PieceCopies { weights, gradients, .. } = self.moved;
        let again = &treatment.recompute;
        let fetched = CopiesEachWay { into_device: copied + weights, out_of_device: gradients };
        let backward = self.pass_detail(chip, again, &piece.recompute.plus(piece.backward), fetched)?;
        let sent = CopiesEachWay { into_device: weights, out_of_device: copied };
        let forward = chip.kernel_details(&segment.forward_graph(), self.fabric, &piece.forward, sent)?;
        Ok([self.time_of_pass("forward".to_owned(), &piece.forward, forward), backward])
    }

    fn pass_detail(
        &self,
        chip: &mut ChipTimes,
        again: &RecomputeSet,
        pass: &PassProfile,
        copied: CopiesEachWay,
    ) -> Result<PassDetail, StepError> {
        let kernels = chip.kernel_details(&self.segment.backward_graph(again), self.fabric, pass, copied)?;
        Ok(self.time_of_pass(backward_name(self.segment, again), pass, kernels))
    }

    fn time_of_pass(&self, name: String, pass: &PassProfile, kernels: Vec<KernelDetail>) -> PassDetail {
        PassDetail {
            segment: self.segment.name.clone(),
            pass: name,
            count: self.count,
            time: pass.busy_time(),
            energy: kernels.iter().map(|kernel| kernel.energy).sum(),
            unproven: pass.unproven,
            kernels,
        }
    }

    /// Adds a step's forward and backward kernel times of the segment to `classes`, by kind and bound, without
    /// recomputation. A pass's device time is split in proportion to the kernels' latencies.
    fn add_kernels_by_class(
        &self,
        chip: &mut ChipTimes,
        micro_batches: u64,
        classes: &mut BTreeMap<String, Seconds>,
    ) -> Result<(), StepError> {
        let times = self.count as f64 * micro_batches as f64;
        let graphs = [self.segment.forward_graph(), self.segment.backward_graph(&RecomputeSet::none())];
        for (graph, pass) in graphs.iter().zip([&self.piece.forward, &self.piece.backward]) {
            let kernels = chip.kernel_details(graph, self.fabric, pass, CopiesEachWay::default())?;
            let computing = || kernels.iter().filter(|kernel| kernel.runs_on_cores());
            let all: Seconds = computing().map(|kernel| kernel.latency).sum();
            for kernel in computing().filter(|_| all > Seconds::ZERO) {
                let class = kernel_class(&kernel.kernel, kernel.bound, chip.chip());
                *classes.entry(class).or_default() += pass.device * (kernel.latency / all) * times;
            }
        }
        Ok(())
    }
}

/// Returns the name of a backward pass: `backward`, with the names of recomputed operators.
fn backward_name(segment: &Segment, again: &RecomputeSet) -> String {
    let operators = &segment.graph.operators;
    if again.is_empty() {
        return "backward".to_owned();
    }
    if again.len() == operators.len() {
        return "backward, recomputing all".to_owned();
    }
    let short = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    let names: Vec<String> =
        again.iter().filter_map(|op| operators.get(op.index())).map(|op| short(&op.name)).collect();
    format!("backward, recomputing {}", names.join(" "))
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
