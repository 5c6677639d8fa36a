//! Explains why nothing serves: the plan nearest to serving, and the value that would suffice.

use super::loaded::LoadedDeployment;
use crate::failure::{self, Failure};
use results::answer::serving::{ServingChoice, describe_refusal};
use results::text::format_significant;
use serving::ServingError;
use serving::best::{PlanRefusal, ServiceLevel, ServingAnswer, ServingHardware, ServingQuestion};
use serving::nearest::{MemoryMiss, nearest_memory, nearest_refusal};
use sim::files::StructuredError;
use sim::hardware::Accelerator;
use sim::network::Fabric;

/// Largest multiple of the question's devices that is tried.
const MOST_TIMES: u32 = 64;

/// Largest number of digits of a size of memory, enough for one byte in a thousand TiB.
const MOST_DIGITS: usize = 16;

/// Refuses an answer without a value of the objective.
pub fn check_value(best: &ServingChoice, objective: &str) -> Result<(), Failure> {
    if best.value.is_some() {
        return Ok(());
    }
    let lacking = [Some(&best.decode), best.prefill.as_ref()].into_iter().flatten().find(|pool| pool.device_w == 0.0);
    let (what, chip) = match lacking {
        Some(pool) => ("energy", &pool.chip),
        None => ("area or the cost", &best.decode.chip),
    };
    Err(failure::input_failure(format!(
        "--objective {objective}: the {what} of {chip} is not known; give throughput, or another chip"
    )))
}

/// Returns the failure if no plan serves. It names the plan that misses its limits by the smallest factor, and values
/// that would suffice.
pub fn nothing_serves(
    loaded: &LoadedDeployment<'_>,
    question: &ServingQuestion<'_>,
    answers: &[ServingAnswer],
) -> Failure {
    let (level, devices) = (&question.level, question.devices);
    match nearest_refusal(answers, level) {
        Some(PlanRefusal::Fault(ServingError::Workload(error))) => {
            failure::structured_failure(error, error.fault_parts())
        }
        Some(PlanRefusal::Fault(error)) => {
            let sides = loaded.sides();
            let needs = sides.iter().filter_map(|side| Some((side, nearest_memory(question, *side)?)));
            match needs.min_by(|a, b| a.1.factor().total_cmp(&b.1.factor())) {
                Some((side, miss)) if miss.factor() > 1.0 => {
                    lacks_memory(&side.chip.name, &miss, devices, devices_that_fit(loaded, question))
                }
                _ => cannot_run(answers, error),
            }
        }
        Some(refusal) => failure::input_failure(format!(
            "no plan meets the service level; the nearest: {}; {}, or give more or faster devices",
            describe_refusal(refusal, level),
            what_would_do(refusal, level)
        )),
        None => failure::input_failure(format!(
            "--devices {devices}: no plan uses so few: the given degrees, or pools apart, need more; raise --devices, \
            or lower --tensor, --pipeline and --attention-data"
        )),
    }
}

/// Suggests limits for the nearest plan: the times of a single request, rounded up to a tenth of a millisecond.
fn what_would_do(refusal: &PlanRefusal, level: &ServiceLevel) -> String {
    let PlanRefusal::TooSlow { time_to_first_token: first, time_per_output_token: between, .. } = refusal else {
        return "allow more power".to_owned();
    };
    let limits = [("--ttft", *first, level.time_to_first_token), ("--tpot", *between, level.time_per_output_token)];
    let missed = limits.into_iter().filter(|(_, time, limit)| limit.is_some_and(|limit| *time > limit));
    let above: Vec<String> =
        missed.map(|(flag, time, _)| format!("{flag} {:.1}", (time.0 * 1e4).floor() / 10.0 + 0.1)).collect();
    format!("it serves from {} on", above.join(" and "))
}

/// Makes the failure if no plan can run: the common reason of all plans, or else the first plan's reason.
fn cannot_run(answers: &[ServingAnswer], error: &ServingError) -> Failure {
    let mut all = answers.iter().flat_map(|answer| &answer.refused);
    let same = all.all(|refusal| matches!(refusal, PlanRefusal::Fault(own) if own == error));
    let of = if same { "no plan serves" } else { "no plan serves; the first's reason" };
    failure::structured_failure(format!("{of}: {error}"), error.fault_parts())
}

/// Returns the smallest number of devices on which a plan fits a chip's memory, as a power of two times the question's
/// devices. `None` if even [`MOST_TIMES`] times the question's devices are too few.
fn devices_that_fit(loaded: &LoadedDeployment<'_>, question: &ServingQuestion<'_>) -> Option<u32> {
    let more = std::iter::successors(question.devices.checked_mul(2), |devices| devices.checked_mul(2));
    let mut more = more.take_while(|devices| *devices <= question.devices.saturating_mul(MOST_TIMES));
    more.find(|devices| {
        let question = ServingQuestion { devices: *devices, ..question.clone() };
        let read = |name: &String| loaded.read_hardware_for(name, *devices).ok();
        let hardware: Vec<(Accelerator, Fabric)> = loaded.question().chips.iter().filter_map(read).collect();
        let engine = &loaded.engine;
        let mut sides = hardware.iter().map(|(chip, fabric)| ServingHardware { chip, fabric, engine });
        sides.any(|side| nearest_memory(&question, side).is_some_and(|need| need.factor() <= 1.0))
    })
}

/// Makes the failure if no plan fits the memory. `enough` is a number of devices on which a plan would fit, if there is
/// one.
fn lacks_memory(chip: &str, miss: &MemoryMiss, devices: u32, enough: Option<u32>) -> Failure {
    let of = |digits: usize| [miss.need, miss.usable].map(|bytes| format_significant(bytes.gib(), digits));
    // Enough digits to tell the two sizes apart.
    let [need, usable] = (4..MOST_DIGITS).map(of).find(|[need, usable]| need != usable).unwrap_or(of(MOST_DIGITS));
    let plan = &miss.plan;
    let limit = format!(
        "no plan fits the memory of {chip}; the nearest, tp {}, pp {}, needs {} GiB a device for weights, work and one \
        request, and the engine may use {} GiB",
        plan.tensor, plan.pipeline, need, usable
    );
    let more = enough.map_or_else(String::new, |enough| format!("give --devices {enough}, or "));
    let cure = format!("{more}give narrower weights (--products, --cache), shorter requests or a larger memory");
    failure::option_failure("--devices", devices, limit, cure)
}
