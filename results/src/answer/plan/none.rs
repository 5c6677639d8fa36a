//! The reason why a search found no plan, with advice.

use super::one_line;
use search::planner::{Job, PlanAnswer};
use sim::units::Bytes;
use step::{DeviceMemory, MixKind, OverCapacity, TrainingPlan, usable_hbm};

/// Returns the reason why an answer has no plan, with advice; `None` if it has one.
pub(crate) fn reason_without_plan(job: &Job<'_>, answer: &PlanAnswer) -> Option<String> {
    answer.best.is_empty().then(|| match (&answer.nearest, &answer.refusal) {
        (Some((plan, why)), _) => {
            let least = answer.enough.map_or_else(String::new, |need| sufficient_memory_text(job, need));
            let cure = cure_for_shortfall(job, plan, why);
            format!(
                "no plan fits; the nearest, {}, lacks: {why}{least}{cure}{}",
                one_line(plan),
                addressing_note(job, answer)
            )
        }
        (None, Some(error)) => error.to_string(),
        (None, None) if answer.stopped.is_some() => "the search was stopped before it found a plan".to_owned(),
        (None, None) => "the space holds no plan".to_owned(),
    })
}

/// Returns the memory per device that is enough for a plan, and the option that frees it. Values are rounded to the
/// safe side.
fn sufficient_memory_text(job: &Job<'_>, need: Bytes) -> String {
    let up = (need.gib() * HUNDREDTHS).ceil() / HUNDREDTHS;
    let usable = usable_hbm(job.stack, DeviceMemory::of_chip(job.chip).hbm);
    let flag = usable.0.checked_sub(need.0).filter(|_| job.headroom > Bytes::ZERO).map_or_else(String::new, |left| {
        format!(" (--headroom-gib {:.2})", (Bytes(left).gib() * HUNDREDTHS).floor() / HUNDREDTHS)
    });
    format!("; a plan fits if it may use {up:.2} GiB of a device{flag}")
}

/// Figures of memory are printed in hundredths of a GiB.
const HUNDREDTHS: f64 = 100.0;

/// Returns advice on a shortfall: more devices, if these cannot hold the model at all; otherwise a change of the plan.
fn cure_for_shortfall(job: &Job<'_>, plan: &TrainingPlan, why: &OverCapacity) -> String {
    let least = job.least_devices();
    // A larger number is unrealistic: no device has room for its part of the model.
    if least > job.devices.into() && least <= u32::MAX.into() {
        let node = u64::from(job.fabric.fast_domain_devices().max(1));
        let whole = if node < least { least.next_multiple_of(node) } else { least };
        let nodes = if whole > least { format!(" (whole nodes of {node})") } else { String::new() };
        return format!(
            "; use at least {whole} devices{nodes}: fewer than {least} cannot hold the parameters with their optimizer \
            states"
        );
    }
    let cure = Some(why.suggest_cure(plan)).filter(|cure| !cure.is_empty());
    cure.map_or_else(String::new, |cure| format!("; {cure}")) + &hybrid_sharding_note(job, plan)
}

/// Returns a note if the stack shards states only inside each fast domain and the devices are more than one domain;
/// otherwise an empty text.
fn hybrid_sharding_note(job: &Job<'_>, plan: &TrainingPlan) -> String {
    let domain = job.fabric.fast_domain_devices();
    if !job.stack.kernels.shard_within_domain || plan.layout.shards.is_some() || job.devices <= domain {
        return String::new();
    }
    format!(
        "; {} shards states inside domains of {domain} devices only: --stack-option kernels.shard_within_domain=false \
        shards them among all copies",
        job.stack.name
    )
}

/// Returns a note that `--recompute best` does not plan the addresses of tensors, if that would help; otherwise an
/// empty text.
fn addressing_note(job: &Job<'_>, answer: &PlanAnswer) -> &'static str {
    let best = answer.mixed.is_some() && job.stack.framework.mixes < MixKind::PerStage;
    let lost = job.stack.memory.fragmentation > 0.0 && !job.stack.memory.planned_addresses;
    if !(best && lost) || job.techniques.iter().any(|technique| technique.preset().planned_addresses) {
        return "";
    }
    "; --recompute best does not plan addresses: --technique planned-addresses removes the allocator's fragmentation"
}
