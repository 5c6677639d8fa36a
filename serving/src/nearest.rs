//! The plan nearest to serving where none serves: by how little it misses its limits, and what would do.

use crate::best::{PlanRefusal, ServiceLevel, ServingAnswer, ServingHardware, ServingQuestion, enumerate_plans};
use crate::memory::ServingMemory;
use crate::passes::PassTimes;
use crate::plan::ServingPlan;
use sim::units::{Bytes, Seconds};

/// The memory that a plan needs of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryMiss {
    /// The plan.
    pub plan: ServingPlan,
    /// Bytes of a device for weights, working memory, held prefixes and one sequence of the longest request.
    pub need: Bytes,
    /// Those that the engine may use.
    pub usable: Bytes,
}

impl MemoryMiss {
    /// Returns the bytes that are needed relative to those that may be used: at most 1 for a plan that fits.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.need.as_f64() / self.usable.as_f64().max(1.0)
    }
}

/// Returns by which factor a refused plan misses its limits; infinity for one that cannot run.
#[must_use]
pub fn miss_of_refusal(refusal: &PlanRefusal, level: &ServiceLevel) -> f64 {
    let over = |time: Seconds, limit: Option<Seconds>| limit.map_or(1.0, |limit| (time / limit).max(1.0));
    match refusal {
        PlanRefusal::Fault(_) => f64::INFINITY,
        PlanRefusal::TooHot { power, limit, .. } => *power / *limit,
        PlanRefusal::TooSlow { time_to_first_token: first, time_per_output_token: between, .. } => {
            over(*first, level.time_to_first_token) * over(*between, level.time_per_output_token)
        }
    }
}

/// Returns the refusal of all answers that misses its limits by the least factor; one that cannot run comes last.
#[must_use]
pub fn nearest_refusal<'a>(answers: &'a [ServingAnswer], level: &ServiceLevel) -> Option<&'a PlanRefusal> {
    let all = answers.iter().flat_map(|answer| &answer.refused);
    all.min_by(|a, b| miss_of_refusal(a, level).total_cmp(&miss_of_refusal(b, level)))
}

/// Returns the bytes that a plan needs of a device with its memory; `None` for a plan that cannot run.
fn memory_of(
    question: &ServingQuestion<'_>,
    hardware: ServingHardware<'_>,
    plan: ServingPlan,
) -> Option<(Bytes, Bytes)> {
    let ServingHardware { chip, fabric, engine } = hardware;
    let times = PassTimes::new(question.model, chip, fabric, engine, plan).ok()?;
    let times = times.with_method(question.method).ok()?;
    let memory: ServingMemory = times.memory(&question.lengths).ok()?;
    let elsewhere = |input: u64| input - question.method.own_tokens(input);
    let drafts = question.method.verified_tokens() - 1;
    let longest = question.lengths.longest_after(elsewhere).saturating_add(drafts);
    Some((memory.weights + memory.working + memory.prefixes + memory.cache_on_device(longest), memory.usable))
}

/// Returns the plan that needs least of its device's memory; `None` if none can run.
#[must_use]
pub fn nearest_memory(question: &ServingQuestion<'_>, hardware: ServingHardware<'_>) -> Option<MemoryMiss> {
    let needs = enumerate_plans(question, hardware.engine).into_iter().filter_map(|plan| {
        let (need, usable) = memory_of(question, hardware, plan)?;
        Some(MemoryMiss { plan, need, usable })
    });
    needs.min_by(|a, b| a.factor().total_cmp(&b.factor()))
}
