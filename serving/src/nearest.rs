//! The plan nearest to serving if none serves: the factor by which it misses its limits, and the memory that would
//! suffice.

use crate::best::{PlanRefusal, ServiceLevel, ServingAnswer, ServingHardware, ServingQuestion, enumerate_plans};
use crate::memory::ServingMemory;
use crate::passes::PassTimes;
use crate::plan::ServingPlan;
use sim::units::{Bytes, Seconds};

/// A plan's need of a device's memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryMiss {
    /// The plan.
    pub plan: ServingPlan,
    /// Bytes of a device for weights, working memory, held prefixes and one sequence of the longest request.
    pub need: Bytes,
    /// Bytes that the engine may use.
    pub usable: Bytes,
}

impl MemoryMiss {
    /// Returns the needed bytes relative to the usable bytes. It is at most 1 for a plan that fits.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.need.as_f64() / self.usable.as_f64().max(1.0)
    }
}

/// Returns the factor by which a refused plan misses its limits; infinity for a plan that cannot run.
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

/// Returns the refusal, of all answers, with the smallest factor of missing its limits; `None` without refusals. Plans
/// that cannot run come last.
#[must_use]
pub fn nearest_refusal<'a>(answers: &'a [ServingAnswer], level: &ServiceLevel) -> Option<&'a PlanRefusal> {
    let all = answers.iter().flat_map(|answer| &answer.refused);
    all.min_by(|a, b| miss_of_refusal(a, level).total_cmp(&miss_of_refusal(b, level)))
}

/// Returns the bytes that a plan needs on a device and the bytes that the engine may use; `None` for a plan that cannot
/// run.
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

/// Returns the plan with the smallest need relative to the usable memory of a device; `None` if no plan can run.
#[must_use]
pub fn nearest_memory(question: &ServingQuestion<'_>, hardware: ServingHardware<'_>) -> Option<MemoryMiss> {
    let needs = enumerate_plans(question, hardware.engine).into_iter().filter_map(|plan| {
        let (need, usable) = memory_of(question, hardware, plan)?;
        Some(MemoryMiss { plan, need, usable })
    });
    needs.min_by(|a, b| a.factor().total_cmp(&b.factor()))
}
