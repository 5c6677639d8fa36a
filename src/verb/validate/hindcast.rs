//! `coplace validate --hindcast`: searches the best chip under the constraints of each chip that was built.

use crate::answer::{self, Format};
use crate::call::Call;
use crate::failure::{self, Failure};
use crate::progress::ProgressDisplay;
use crate::verb::search::question::SearchQuestion;
use crate::verb::search::{prepare_and_search, prepare_job};
use crate::verb::stop::StopLimit;
use results::answer::hindcast::{HindcastAnswer, HindcastEntry, HindcastSide};
use search::design::{DesignEvaluation, DesignWatch, best_plan};
use search::hindcast::HindcastCase;
use search::runner::CandidateOutcome;
use sim::hardware::Accelerator;
use sim::status::SolveStatus;

/// Version of the answer's format.
const FORMAT: u32 = 1;

/// Runs the hindcasts of some chips, or of all.
pub fn run_hindcast(chips: &[String], format: Format, call: &Call) -> Result<(), Failure> {
    let cases = chosen_cases(chips)?;
    let limit = StopLimit::new(call, None)?;
    let mut entries = Vec::new();
    for case in &cases {
        let progress = ProgressDisplay::begin_phase(call, "searching under the constraints of a chip that was built");
        entries.push(hindcast_of(case, &|| limit.is_reached())?);
        drop(progress);
    }
    let found = HindcastAnswer { format: FORMAT, chips: entries };
    answer::write_answer(call, format, &found, HindcastAnswer::to_text)
}

/// Returns the cases of the named chips; all cases if no chip is named.
fn chosen_cases(chips: &[String]) -> Result<Vec<HindcastCase>, Failure> {
    let all = HindcastCase::all().map_err(|why| Failure::Other(anyhow::anyhow!(why)))?;
    if chips.is_empty() {
        return Ok(all);
    }
    let find = |name: &String| {
        let own = Accelerator::built_in(name).map_or_else(|_| name.clone(), |chip| chip.name);
        all.iter().find(|case| case.chip == own).cloned().ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|case| case.chip.as_str()).collect();
            failure::option_failure("--hindcast", name, "has no hindcast", format!("give one of {}", known.join(", ")))
        })
    };
    chips.iter().map(find).collect()
}

fn hindcast_of(case: &HindcastCase, stop: &(dyn Fn() -> bool + Sync)) -> Result<HindcastEntry, Failure> {
    let other = |why: String| Failure::Other(anyhow::anyhow!("hindcast of {}: {why}", case.chip));
    let posed = case.pose().map_err(other)?;
    let question = SearchQuestion::load_again(posed.question)?;
    let real = {
        let prepared = prepare_job(&question, &question.reference_job(&question.fabric))?;
        let evaluation = best_plan(&prepared, &posed.real);
        HindcastSide::of_chip(&posed.real, seconds_of(&evaluation))
    };
    let (found, gap) = prepare_and_search(&question, |searched, search| {
        let watch = DesignWatch { stop, told: &mut |_, _| {} };
        let answer = search.run_design_search(watch).map_err(other)?;
        let best = answer.best.ok_or_else(|| other("no chip of the space trains the model".to_owned()))?;
        let design = &answer.designs[best];
        let chip: Accelerator = searched.space.chip_of_design(design.id).map_err(other)?;
        let step = match &design.outcome {
            CandidateOutcome::Evaluated { evaluation, .. } => evaluation.first().and_then(seconds_of),
            _ => None,
        };
        let gap = match answer.status {
            SolveStatus::Gap { lower_bound, upper_bound } if lower_bound > 0.0 => upper_bound / lower_bound - 1.0,
            _ => 0.0,
        };
        Ok((HindcastSide::of_chip(&chip, step), gap))
    })?;
    Ok(HindcastEntry {
        chip: case.chip.clone(),
        year: case.year,
        node: posed.real.process_node().map_or_else(String::new, |node| node.to_string()),
        max_area_mm2: posed.limits.max_area_mm2.unwrap_or_default(),
        max_power_w: posed.limits.max_power_w.unwrap_or_default(),
        model: case.model.clone(),
        devices: case.devices,
        fabric: case.fabric.clone(),
        peak_ratio: found.peak_tflops / real.peak_tflops,
        speedup: real.step_s.zip(found.step_s).map_or(0.0, |(real, found)| real / found),
        real,
        found,
        gap,
    })
}

fn seconds_of(evaluation: &DesignEvaluation) -> Option<f64> {
    evaluation.outcome.as_ref().ok().map(|plan| plan.time.total.0)
}
