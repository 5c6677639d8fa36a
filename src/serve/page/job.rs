//! The job of a page: the question at the start, and the questions that its sliders ask.

use super::controls::{self, Control, ControlGroup};
use crate::failure::{Failure, OrInput, OrOther, input_failure, option_failure};
use crate::named_input::{InputKind, NamedInput};
use crate::verb::evaluate::{EvaluatedJob, evaluate_question};
use crate::verb::search::chip_document;
use search::ask::{ChipChoice, DECISIONS, PlanSpace, Question};
use serde_json::{Map, Value, json};
use sim::network::FabricDocument;
use std::path::Path;
use std::time::Instant;
use step::TrainingPlan;

/// The names of the changed files.
const CHIP: &str = "chip-of-the-page.toml";
const FABRIC: &str = "fabric-of-the-page.toml";

/// A job with its sliders.
pub struct PageJob {
    question: Question,
    chip: NamedInput,
    fabric: NamedInput,
    /// The name of the chip, which selects the figures of a fabric.
    chip_name: String,
    plan: TrainingPlan,
    controls: Vec<Control>,
    first: Value,
}

impl PageJob {
    /// Evaluates the question, and makes sliders around the plan that was found.
    ///
    /// # Errors
    /// A question that cannot be answered, or no plan that fits.
    pub fn new(question: Question) -> Result<Self, Failure> {
        let ChipChoice::One { chip: named, .. } = &question.chips else {
            return Err(input_failure("the page is about one chip; give --chip"));
        };
        let began = Instant::now();
        let evaluated = evaluate_question(question.clone())?;
        let Some(plan) = evaluated.plan.clone() else {
            let why = evaluated.record.why.clone().unwrap_or_else(|| "no plan fits".to_owned());
            return Err(option_failure("--chip", named, why, ""));
        };
        let carried = |kind, name: &str| match question.files.read(Path::new(name)) {
            Ok(text) if name.ends_with(".toml") => NamedInput::from_text(kind, name.trim_end_matches(".toml"), text),
            _ => NamedInput::load(kind, name),
        };
        let unusable = |fault: Box<crate::CallFault>| input_failure(fault.message);
        let chip = carried(InputKind::Chip, named).map_err(unusable)?;
        let fabric = carried(InputKind::Fabric, &question.cluster.fabric).map_err(unusable)?;
        let document = chip_document(named, &question.files)?;
        let chip_name = evaluated.chip_name.clone();
        // A fabric of another tool's file has no sliders.
        let tiers = FabricDocument::load_from(&question.cluster.fabric, &chip_name, &question.files);
        let tiers = tiers.map_or_else(|_| Vec::new(), |fabric| fabric.list_fields());
        let (devices, batch) = (question.cluster.devices, question.cluster.global_batch_sequences);
        let mut all = controls::chip_controls(&document.list_fields());
        all.extend(controls::fabric_controls(&tiers));
        all.extend(controls::cluster_controls(devices, batch.into()));
        all.extend(controls::plan_controls(&plan, devices));
        let first = answer_of(&evaluated, began)?;
        Ok(Self { question, chip, fabric, chip_name, plan, controls: all, first })
    }

    /// Returns the sliders and the first answer, with which the page begins.
    pub fn start(&self) -> Value {
        json!({ "controls": self.controls, "first": self.first })
    }

    /// Returns the answer to `settings`, which hold the places of sliders by their keys. A slider that is left out
    /// stays at its start.
    ///
    /// # Errors
    /// A place that a slider does not have, or a job that cannot be evaluated.
    pub fn answer(&self, settings: &Map<String, Value>) -> Result<Value, Failure> {
        let began = Instant::now();
        let mut question = self.question.clone();
        // Once a slider of the plan moves, the planner chooses what has no slider: chunks, splits, orders.
        let is_moved = |control: &Control| {
            control.group == ControlGroup::Plan && settings.get(&control.key).is_some_and(|at| *at != control.at)
        };
        let mut plans = if self.controls.iter().any(is_moved) { PlanSpace::default() } else { self.fixed_plan() };
        let (mut chip, mut fabric) = (self.chip.clone(), self.fabric.clone());
        for control in &self.controls {
            let place = settings.get(&control.key).cloned().unwrap_or_else(|| control.at.into());
            let at = place.as_u64().and_then(|at| usize::try_from(at).ok()).filter(|at| *at < control.values.len());
            let at = at.ok_or_else(|| {
                option_failure(&control.key, place, "is no place of the slider", "give its number, from 0")
            })?;
            let word = &control.values[at];
            match control.group {
                ControlGroup::Plan => set_decision(&mut plans, &control.key, word)?,
                _ if at == control.at => {}
                ControlGroup::Chip => chip = self.changed(&chip, control, at)?,
                ControlGroup::Fabric => fabric = self.changed(&fabric, control, at)?,
                ControlGroup::Cluster if control.key == "devices" => {
                    question.cluster.devices = word.parse().or_input()?;
                }
                ControlGroup::Cluster => question.cluster.global_batch_sequences = word.parse().or_input()?,
            }
        }
        question.plans = plans;
        if let (Some(text), ChipChoice::One { chip: named, .. }) =
            (changed_text(&self.chip, &chip), &mut question.chips)
        {
            CHIP.clone_into(named);
            question.files.insert(Path::new(CHIP), text);
        }
        if let Some(text) = changed_text(&self.fabric, &fabric) {
            FABRIC.clone_into(&mut question.cluster.fabric);
            question.files.insert(Path::new(FABRIC), text);
        }
        answer_of(&evaluate_question(question)?, began)
    }

    /// Returns a space that holds only the plan of the start, fixed decision by decision.
    fn fixed_plan(&self) -> PlanSpace {
        let mut space = PlanSpace::default();
        DECISIONS.iter().for_each(|decision| (decision.access.fix)(&mut space, &self.plan));
        space
    }

    /// Changes the field of a slider in a file, and the fields that change by the same factor.
    fn changed(&self, input: &NamedInput, control: &Control, at: usize) -> Result<NamedInput, Failure> {
        let facts = |key: &str| -> Option<f64> {
            let of_file = |fields: Vec<(String, sim::hardware::FieldValue)>| {
                fields.into_iter().find(|(known, _)| known == key).and_then(|(_, value)| value.number())
            };
            match control.group {
                ControlGroup::Chip => {
                    of_file(chip_document(self.chip.word(), &self.question.files).ok()?.list_fields())
                }
                _ => of_file(
                    FabricDocument::load_from(&self.question.cluster.fabric, &self.chip_name, &self.question.files)
                        .ok()?
                        .list_fields(),
                ),
            }
        };
        let mut changed = input.clone();
        for key in std::iter::once(&control.key).chain(&control.also) {
            let Some(value) = facts(key).and_then(|base| Control::number_at(base, at)) else { continue };
            let next = changed.with_value(key, &json!(value), Some(&self.chip_name));
            changed = next.map_err(|fault| input_failure(fault.message))?;
        }
        Ok(changed)
    }
}

/// Returns the text of a changed file; `None` if the file is unchanged.
fn changed_text(before: &NamedInput, after: &NamedInput) -> Option<String> {
    if before == after { None } else { after.carried_text().map(str::to_owned) }
}

/// Sets a decision. If the value makes further decisions possible, they are left to the planner.
fn set_decision(plans: &mut PlanSpace, flag: &str, word: &str) -> Result<(), Failure> {
    let Some(decision) = DECISIONS.iter().find(|decision| decision.flag == flag) else { return Ok(()) };
    decision.set(plans, &[word.to_owned()]).map_err(|why| option_failure(&format!("--{flag}"), word, why, ""))
}

/// Returns the answer as the page draws it.
fn answer_of(evaluated: &EvaluatedJob, began: Instant) -> Result<Value, Failure> {
    let record = serde_json::to_value(&evaluated.record).or_other()?;
    let roofline = serde_json::to_value(&evaluated.roofline).or_other()?;
    let result = record.get("result").cloned().unwrap_or_default();
    let part = |name: &str| result.get(name).cloned().unwrap_or_default();
    Ok(json!({
        "job": record.get("job"), "feasible": record.get("feasible"), "why": record.get("why"), "plan": part("plan"),
        "stages": part("stages"), "capacity_gib": part("capacity_gib"), "energy": part("energy"),
        "roofline": roofline, "took_ms": began.elapsed().as_secs_f64() * 1e3,
    }))
}
