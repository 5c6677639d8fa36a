//! The baselines of the best design: the reference chip under an expert's placement and under our plan, and chips on
//! the market.

use super::question::SearchQuestion;
use crate::failure::{Failure, OrInput, OrOther};
use rayon::prelude::*;
use results::answer::comparison::{Comparison, ComparisonEntry};
use results::compare::baseline::{ExpertDegrees, expert_placement};
use results::run::conversion;
use search::design::best_plan;
use search::planner::{Job, PlanSpace, PreparedJob, Splits};
use search::space::{CalibrationChoice, Chips};
use sim::hardware::{Accelerator, Calibration};
use sim::network::Fabric;

/// Built chips that are compared with every answer. The flag adds their ideal form, like the chips of a space. Chips
/// with undisclosed dies have no area.
const BUILT: [(&str, bool); 7] = [
    ("tpu_v4", true),
    ("tpu_v5p", false),
    ("tpu_v6e", false),
    ("tpu_v7", false),
    ("a100_80gb_sxm", false),
    ("h100_80gb_sxm", false),
    ("b200", false),
];

/// The entries of a search beside its baselines, all under the study's stack, plans and cluster. `prepared` is on the
/// study's own fabric.
pub fn compare_with_baselines(
    question: &SearchQuestion,
    prepared: &PreparedJob<'_>,
    found: Vec<ComparisonEntry>,
) -> Result<Comparison, Failure> {
    let mut entries = found;
    let (job, reference) = (question.reference_job(&question.fabric), &question.reference);
    let name = chip_label(reference);
    if let Some(expert) =
        expert_placement(&question.model.name).filter(|expert| is_near_expert_cluster(question, expert.degrees))
    {
        let d = expert.degrees;
        let given = format!("p {}, t {}, d {}: {}", d.pipeline, d.tensor, d.data, expert.source);
        let label = format!("{name}, expert's placement");
        let mut entry = match search_expert_plan(question, d) {
            Ok((devices, fabric, space)) => {
                let job = Job { devices, fabric: &fabric, ..job };
                let prepared = PreparedJob::new(job, &space).or_input()?;
                let job = Job { chip: reference, ..job };
                conversion::best_plan_entry(&label, &job, &best_plan(&prepared, reference)).or_other()?
            }
            Err(why) => ComparisonEntry { note: Some(why), ..ComparisonEntry::without_design(label) },
        };
        entry.note = Some(entry.note.map_or_else(|| given.clone(), |why| format!("{given}: {why}")));
        entries.push(entry);
    }
    let mut chips = vec![(format!("{name}, our best plan"), reference.clone())];
    chips.extend(ideal_base_chip(question));
    for (built, with_ideal) in BUILT {
        let chip = Accelerator::built_in(built).or_other()?;
        if chip.name != reference.name {
            chips.push((chip_label(&chip), chip.clone()));
        }
        if with_ideal {
            let ideal = question.study.space.limits.ideal_form(&chip);
            chips.push((ideal_label(&ideal), ideal));
        }
    }
    // Sequentially, because each is a search for a plan.
    let of = |(label, chip): &(String, Accelerator)| {
        conversion::best_plan_entry(label, &Job { chip, ..job }, &best_plan(prepared, chip)).or_other()
    };
    let built = chips.par_iter().with_max_len(1).map(of).collect::<Result<Vec<_>, _>>()?;
    entries.extend(built);
    Ok(Comparison { entries })
}

/// The ideal form of the built-in base chip of the space: the closest built chip. `None` if the space keeps its
/// calibration, if the chip has none, or if it is already in every answer.
fn ideal_base_chip(question: &SearchQuestion) -> Option<(String, Accelerator)> {
    let Chips::Grid(spec) = &question.study.space.chips else { return None };
    let chip = Accelerator::built_in(&spec.base_chip).ok().filter(|_| spec.calibration == CalibrationChoice::Ideal)?;
    let beside = BUILT.iter().any(|(built, ideal)| *ideal && *built == chip.name);
    (!beside && is_calibrated(&chip)).then(|| {
        let ideal = question.study.space.limits.ideal_form(&chip);
        (ideal_label(&ideal), ideal)
    })
}

/// The label of a built chip in its ideal form.
fn ideal_label(chip: &Accelerator) -> String {
    let clock = chip.lowered.map(|_| format!(" at {:.0} MHz", chip.clock.0 / 1e6)).unwrap_or_default();
    format!("{}, ideal{clock}", chip.name)
}

/// True if a chip's rates are fitted to measurements.
fn is_calibrated(chip: &Accelerator) -> bool {
    chip.calibration != Calibration::default() || chip.sustained_clock_fraction < 1.0
}

/// True if the expert's placement fits the cluster: it uses most of the devices, and the space has PHAZE's chips. On a
/// much smaller or larger cluster it is no baseline.
fn is_near_expert_cluster(question: &SearchQuestion, degrees: ExpertDegrees) -> bool {
    let devices = degrees.pipeline * degrees.tensor * degrees.data;
    let cluster = question.study.cluster.devices;
    matches!(question.study.space.chips, Chips::Phaze(_)) && devices <= cluster && devices * 2 > cluster
}

/// A chip's name, marked if its rates are fitted to measurements.
fn chip_label(chip: &Accelerator) -> String {
    if is_calibrated(chip) { format!("{}, calibrated", chip.name) } else { chip.name.clone() }
}

/// The devices, the fabric and the plans of an expert's degrees with an even layer split; or the reason why there are
/// none.
pub fn search_expert_plan(
    question: &SearchQuestion,
    degrees: ExpertDegrees,
) -> Result<(u32, Fabric, PlanSpace), String> {
    let devices = degrees.pipeline * degrees.tensor * degrees.data;
    let fabric = question.cluster.for_devices(devices).map_err(|e| e.to_string())?;
    let space = PlanSpace {
        tensor: Some(vec![degrees.tensor]),
        pipeline: Some(vec![degrees.pipeline]),
        splits: Some(Splits::Listed(vec![None])),
        ..question.study.plan.choices.clone()
    };
    let job = Job { devices, ..question.reference_job(&fabric) };
    let emptiness = space.emptiness(&job, &question.cluster);
    match emptiness {
        Some(fault) => Err(fault.to_string()),
        None => Ok((devices, fabric, space)),
    }
}
