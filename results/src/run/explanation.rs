//! Explains why a design is the best of its run: its limits and bottleneck, its neighbours, and the worth of more
//! resources.

use crate::answer::step::{KernelRecord, NamedShare, StepRecord};
use crate::run::conversion::lowered_clock_mhz;
use crate::store::design::DesignRow;
use crate::text::{ColumnAlign, TextTable, fold_line, format_count, format_heading, format_rate, format_significant};
use search::design::{Aim, DesignEvaluation, ReferenceStep};
use search::objective::{Objective, Term, ValueScale};
use search::planner::Job;
use search::sensitivity::{DimensionStep, MORE, Marginal, Resource};
use search::space::{ChipFigures, OutsideReason};
use search::sweep::SweptOutcome;
use serde::Serialize;

/// The number of kernels, and of parts of the step, in lists.
const KERNELS: usize = 8;
const OVER_AREA: &str = "over_area";
const OVER_POWER: &str = "over_power";

/// The explanation of the best design of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DesignExplanation {
    /// The run's directory.
    pub run: String,
    /// The design.
    pub best: DesignRow,
    /// The objective of the run, and the design's value of it. For several models, the value is the mean over them.
    #[serde(flatten)]
    pub valued: ObjectiveValue,
    /// The limits, and how much of each the design uses.
    pub limits: Vec<LimitUse>,
    /// The power limit in W that the search chose itself and lowered the clocks to; `None` if it chose none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lowered_to_w: Option<f64>,
    /// The bottleneck of the model. `None` for several models, because each has its own in `models`.
    #[serde(flatten)]
    pub binds: Option<StepBottleneck>,
    /// One step along each dimension. For several models, the effect is that on their mean.
    pub steps: Vec<DimensionStepRow>,
    /// The value of slightly more of each resource. For several models, the effect is that on their mean.
    pub worth: Vec<ResourceValue>,
    /// The explanation for each model; empty for a single model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelExplanation>,
}

/// The value of an objective.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ObjectiveValue {
    /// The objective.
    pub objective: Objective,
    /// The value, in `unit`.
    pub value: f64,
    /// The unit of the objective.
    pub unit: &'static str,
    /// The unit of gains: that of the objective. For the throughput of one model, gains are those of one device.
    pub gain_unit: &'static str,
}

/// The bottleneck of a model's step on the design.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepBottleneck {
    /// The parts of the quantity that the objective sums up, as fractions: energy of a step, or USD with energy or
    /// system. Empty for other objectives.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objective_shares: Vec<NamedShare>,
    /// Shares of the step's time, largest first.
    pub time_shares: Vec<NamedShare>,
    /// The stage whose devices are busy longest, counted from 0.
    pub slowest_stage: u32,
    /// The kernels that take most time in the passes of that stage.
    pub kernels: Vec<SlowKernel>,
}

/// The explanation for one of several models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelExplanation {
    /// The model.
    pub model: String,
    /// Tokens per sequence.
    pub sequence_tokens: u64,
    /// Its weight in the mean over models.
    pub share: f64,
    /// The value of the objective for this model alone.
    #[serde(flatten)]
    pub valued: ObjectiveValue,
    /// The bottleneck of this model.
    #[serde(flatten)]
    pub binds: StepBottleneck,
    /// One step along each dimension, with its effect on this model.
    pub steps: Vec<DimensionStepRow>,
    /// The value of slightly more of each resource for this model.
    pub worth: Vec<ResourceValue>,
}

/// A limit, and how much of it the design uses.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitUse {
    /// `area`, `power`, `cost` or `memory`.
    pub name: &'static str,
    /// The value of the design, in `unit`.
    pub uses: f64,
    /// The limit.
    pub allowed: f64,
    /// The unit of both values.
    pub unit: &'static str,
}

/// A kernel that takes much of the slowest stage's time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlowKernel {
    /// The names of the segment and the pass.
    pub pass: String,
    /// The kernel.
    pub kernel: String,
    /// Its share of the time of the stage's passes.
    pub share: f64,
    /// The bound: the resource that takes most of the kernel's time.
    pub bound: String,
}

/// One step along a dimension, with its effect.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DimensionStepRow {
    /// The dimension.
    pub dimension: String,
    /// The other fields of chip and fabric that the study computes from the dimension: they change with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub follow: Vec<String>,
    /// The value in the best design.
    pub from: String,
    /// The value after the step.
    pub to: String,
    /// The first limit that the new chip exceeds: `over_area`, `over_power`, `over_cost`, `outside_hbm`, `unbuildable`
    /// or `no_chip`; otherwise `within`.
    pub limits: &'static str,
    /// All exceeded limits, by the same names. A chip over the power limit exceeds it even at its lowest clock. The
    /// figures of such a chip are those at the full clock.
    pub exceeds: Vec<&'static str>,
    /// The reason why the values make no chip, or why the chip has no plan.
    pub reason: Option<String>,
    /// Throughput of the best plan, in tokens per second over the whole cluster; only for one model.
    pub tokens_per_s: Option<f64>,
    /// The value of the objective, in its unit.
    pub value: Option<f64>,
    /// The fraction by which the objective is better: positive if the step helps.
    pub change: Option<f64>,
    /// Change of the area, in mm².
    pub area_mm2: Option<f64>,
    /// Change of the power under the heaviest sustained load, in W.
    pub peak_power_w: Option<f64>,
    /// The clock in MHz that the power limit leaves, if it is below the design clock.
    pub lowered_clock_mhz: Option<f64>,
    /// Change of the cost per chip, in USD.
    pub cost_usd: Option<f64>,
    /// Gain by the objective per mm² of additional die area, in the unit of gains. `None` if the area does not grow.
    pub gain_per_mm2: Option<f64>,
}

/// The value of slightly more of a resource.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResourceValue {
    /// The resource.
    pub resource: String,
    /// The amount that a device has, in `unit`.
    pub has: f64,
    /// The unit.
    pub unit: &'static str,
    /// The fraction by which the objective is better with a tenth more of the resource on a chip of the same area,
    /// power and price.
    pub change: f64,
    /// Gain by the objective per additional unit of the resource, in the unit of gains.
    pub gain_per_unit: f64,
}

/// The design that is explained, for one model or for several.
#[derive(Debug, Clone, PartialEq)]
pub struct ExplainedDesign {
    /// The figures of the chip.
    pub figures: ChipFigures,
    /// The objective, and its mean over the models.
    pub aim: Aim,
    /// The models; at least one.
    pub models: Vec<ModelOnDesign>,
}

/// A model on the design.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelOnDesign {
    /// Tokens per step.
    pub tokens: f64,
    /// Devices of the cluster.
    pub devices: f64,
    /// The fastest step: its seconds, and its joules over the whole cluster.
    pub step: (f64, f64),
    /// The weight of the model in the mean over models.
    pub share: f64,
    /// The model's step on the reference.
    pub reference: ReferenceStep,
}

impl ModelOnDesign {
    /// Makes a model on the design from its job, with its fastest step, its weight and its reference.
    #[must_use]
    pub fn from_job(job: &Job<'_>, step: &StepRecord, share: f64, reference: ReferenceStep) -> Self {
        Self {
            tokens: job.global_batch as f64 * job.sequence_length as f64,
            devices: job.devices.into(),
            step: (step.time.step_s, step.energy.step_j),
            share,
            reference,
        }
    }
}

impl ExplainedDesign {
    /// Returns the same design with only one of its models.
    #[must_use]
    pub fn alone_with_model(&self, model: usize) -> Self {
        Self { models: vec![self.models[model]], ..self.clone() }
    }

    /// Returns the minimised value of a chip with these figures and steps, one per model. `None` if the objective needs
    /// a price and the chip has none.
    fn minimised_value(&self, figures: &ChipFigures, steps: &[(f64, f64)]) -> Option<f64> {
        let measure = |(of, step): (&ModelOnDesign, &(f64, f64))| self.aim.measure_of_step(figures, *step, of.devices);
        let measures = self.models.iter().zip(steps).map(measure).collect::<Option<Vec<f64>>>()?;
        if let [alone] = measures[..] {
            return Some(alone);
        }
        let term =
            |of: &ModelOnDesign| Term { share: of.share, reference: self.aim.measure_of_reference(&of.reference) };
        Some(self.aim.over.combine_measures(&self.models.iter().map(term).collect::<Vec<_>>(), &measures))
    }

    /// Returns a minimised value in the unit of the objective, with the unit.
    fn display_value(&self, minimised: f64) -> (f64, &'static str) {
        let scale = match self.models[..] {
            [ModelOnDesign { devices, tokens, .. }] => ValueScale::Alone { devices, tokens },
            _ => ValueScale::Reference,
        };
        self.aim.objective.display_value(minimised, scale)
    }

    fn own_value(&self) -> Option<f64> {
        self.minimised_value(&self.figures, &self.models.iter().map(|of| of.step).collect::<Vec<_>>())
    }

    /// True if gains are those of one device.
    fn gains_per_device(&self) -> bool {
        self.aim.objective == Objective::Throughput && self.models.len() == 1
    }

    /// Returns the gain from one minimised value to another: positive if the other is better.
    fn gain_between(&self, own: f64, other: f64) -> f64 {
        let difference = (self.display_value(other).0 - self.display_value(own).0).abs().copysign(own - other);
        if self.gains_per_device() { difference / self.models[0].devices } else { difference }
    }

    /// Returns the value of the objective. `None` if the objective needs a price and the chip has none.
    #[must_use]
    pub fn objective_value(&self) -> Option<ObjectiveValue> {
        let (value, unit) = self.display_value(self.own_value()?);
        let gain_unit = if self.gains_per_device() { "tokens/s of a device" } else { unit };
        Some(ObjectiveValue { objective: self.aim.objective, value, unit, gain_unit })
    }

    /// Returns the bottleneck of one of the models, from its step.
    #[must_use]
    pub fn step_bottlenecks(&self, model: usize, step: &StepRecord) -> StepBottleneck {
        let energy = &step.energy;
        let watt = self.aim.operation.usd_per_watt() / self.models[model].devices;
        let parts = match self.figures.cost_usd.filter(|_| self.figures.paid_usd().is_some()) {
            _ if self.aim.objective.minimises_energy() => {
                vec![("dynamic energy", energy.dynamic_j), ("static energy", energy.static_j)]
            }
            Some(usd) if self.aim.pays_energy() || self.aim.pays_system() => {
                let chip = ("making the chip", usd * step.time.step_s);
                let system = ("the system around it", self.figures.system_usd * step.time.step_s);
                let energy = [("dynamic energy", watt * energy.dynamic_j), ("static energy", watt * energy.static_j)];
                let system = self.aim.pays_system().then_some(system);
                let energy = energy.into_iter().filter(|_| self.aim.pays_energy());
                std::iter::once(chip).chain(system).chain(energy).collect()
            }
            _ => Vec::new(),
        };
        let all: f64 = parts.iter().map(|(_, part)| part).sum();
        let share = |(name, part): (&str, f64)| NamedShare { name: name.to_owned(), fraction: part / all };
        StepBottleneck {
            objective_shares: parts.into_iter().map(share).collect(),
            time_shares: step.time_shares.clone(),
            slowest_stage: step.slowest_stage,
            kernels: slowest_kernels(step),
        }
    }

    /// Returns the steps of one evaluation per model. `None` if a model has no plan.
    fn steps_of_evaluations(&self, evaluations: &[&DesignEvaluation]) -> Option<Vec<(f64, f64)>> {
        let step = |of: &&DesignEvaluation| of.outcome.as_ref().ok().map(|plan| (plan.time.total.0, plan.energy.0));
        let steps = evaluations.iter().map(step).collect::<Option<Vec<_>>>()?;
        (steps.len() == self.models.len()).then_some(steps)
    }

    /// Returns a step along a dimension as a row. `of_models` has the same step for each model; `None` if it is empty.
    #[must_use]
    pub fn step_row(&self, of_models: &[&DimensionStep]) -> Option<DimensionStepRow> {
        let step = of_models.first()?;
        let (own, figures) = (self.own_value()?, step.built_chip().map(|built| built.figures));
        let evaluations: Vec<&DesignEvaluation> =
            of_models.iter().filter_map(|step| step.evaluation_of_step()).collect();
        let steps = self.steps_of_evaluations(&evaluations);
        let minimised = steps.as_ref().zip(figures).and_then(|(steps, figures)| self.minimised_value(&figures, steps));
        let alone = steps.filter(|_| self.models.len() == 1);
        let area_mm2 = figures.map(|figures| figures.area.0 - self.figures.area.0);
        let rejected =
            evaluations.iter().find_map(|evaluation| evaluation.outcome.as_ref().err().map(ToString::to_string));
        let (limits, refusal) = match &step.fate {
            SweptOutcome::NoChip(why) => ("no_chip", Some(why.clone())),
            SweptOutcome::Outside(why, _) => (limit_name(*why), None),
            SweptOutcome::Evaluated(..) => ("within", None),
        };
        Some(DimensionStepRow {
            dimension: step.key.clone(),
            follow: Vec::new(),
            from: step.from.to_string(),
            to: step.to.to_string(),
            limits,
            exceeds: step.exceeds.iter().map(|why| limit_name(*why)).collect(),
            reason: refusal.or(rejected),
            tokens_per_s: alone.map(|steps| self.models[0].tokens / steps[0].0),
            value: minimised.map(|value| self.display_value(value).0),
            change: minimised.map(|value| own / value - 1.0),
            area_mm2,
            peak_power_w: figures.map(|figures| figures.peak_power.0 - self.figures.peak_power.0),
            lowered_clock_mhz: step.built_chip().and_then(|built| lowered_clock_mhz(&built.chip)),
            cost_usd: figures.and_then(|figures| Some(figures.cost_usd? - self.figures.cost_usd?)),
            gain_per_mm2: minimised
                .zip(area_mm2)
                .filter(|(_, area)| *area > 1e-9)
                .map(|(value, area)| self.gain_between(own, value) / area),
        })
    }

    /// Returns the value of a tenth more of a resource. `of_models` has the same resource for each model. `None` if a
    /// model has no plan or `of_models` is empty.
    #[must_use]
    pub fn value_of_resource(&self, of_models: &[&Marginal]) -> Option<ResourceValue> {
        let marginal = of_models.first()?;
        let (resource, unit, scale) = match &marginal.resource {
            Resource::HbmBandwidth => ("HBM bandwidth".to_owned(), "GB/s", 1e9),
            Resource::HbmCapacity => ("HBM capacity".to_owned(), "GiB", 1_073_741_824.0),
            Resource::BufferBandwidth(name) => (format!("bandwidth of {name}"), "GB/s", 1e9),
            Resource::BufferCapacity(name) => (format!("capacity of {name}"), "MiB", 1_048_576.0),
            Resource::LinkBandwidth(name) => (format!("bandwidth of {name}"), "GB/s", 1e9),
            Resource::Clock => ("clock".to_owned(), "MHz", 1e6),
        };
        let evaluations: Vec<&DesignEvaluation> = of_models.iter().map(|of| &of.evaluation).collect();
        let own = self.own_value()?;
        let value = self.minimised_value(&self.figures, &self.steps_of_evaluations(&evaluations)?)?;
        let has = marginal.has / scale;
        let gain_per_unit = self.gain_between(own, value) / (has * (MORE - 1.0));
        Some(ResourceValue { resource, has, unit, change: own / value - 1.0, gain_per_unit })
    }
}

/// Returns the name of an exceeded limit.
fn limit_name(why: OutsideReason) -> &'static str {
    match why {
        OutsideReason::Area => OVER_AREA,
        OutsideReason::Power => OVER_POWER,
        OutsideReason::Cost => "over_cost",
        OutsideReason::Hbm => "outside_hbm",
        OutsideReason::Unbuildable(_) => "unbuildable",
    }
}

/// Returns the kernels that take most of the slowest stage's time.
#[must_use]
pub fn slowest_kernels(step: &StepRecord) -> Vec<SlowKernel> {
    let passes = &step.passes;
    let of = |pass: &crate::answer::step::PassRecord| {
        pass.kernels.iter().map(KernelRecord::exposed_s).sum::<f64>() * pass.count as f64
    };
    let all: f64 = passes.iter().map(of).sum();
    let mut held: Vec<SlowKernel> = Vec::new();
    for pass in passes {
        for kernel in &pass.kernels {
            held.push(SlowKernel {
                pass: format!("{} {}", pass.segment, pass.pass),
                kernel: kernel.name.clone(),
                share: kernel.exposed_s() * pass.count as f64 / all,
                bound: kernel.bound.clone(),
            });
        }
    }
    held.retain(|kernel| kernel.share.is_finite());
    held.sort_by(|a, b| b.share.total_cmp(&a.share));
    held.truncate(KERNELS);
    held
}

/// Returns the explanation as text.
#[must_use]
pub fn explanation_text(explained: &DesignExplanation) -> String {
    let mut text = value_text(explained);
    text.push_str(&format_heading("What binds"));
    for limit in &explained.limits {
        let share = 100.0 * limit.uses / limit.allowed;
        let (uses, allowed) = (format_significant(limit.uses, 4), format_significant(limit.allowed, 4));
        let chosen = limit.name == "power" && explained.lowered_to_w.is_some();
        let chosen = if chosen { ", the limit that the search chose" } else { "" };
        text.push_str(&format!("  {:8} {uses} of {allowed} {} ({share:.0} %){chosen}\n", limit.name, limit.unit));
    }
    if let Some(mhz) = explained.best.lowered_clock_mhz {
        let why =
            if explained.lowered_to_w.is_some() { ", where the objective is best" } else { " by the power limit" };
        text.push_str(&format!("  clock    lowered to {mhz:.0} MHz{why}\n"));
    }
    if let Some(own) = &explained.binds {
        text.push_str(&bottleneck_text(own, &explained.valued));
    }
    for of in &explained.models {
        text.push('\n');
        text.push_str(&format_heading(&format!("{}, {} tokens", of.model, format_count(of.sequence_tokens))));
        text.push_str(&bottleneck_text(&of.binds, &of.valued));
    }
    text.push('\n');
    text.push_str(&format_heading("One step along each dimension"));
    if explained.lowered_to_w.is_some() {
        text.push_str("Every neighbour is at its own best clock within the limits that were asked for.\n");
    }
    text.push_str(&steps_table(explained));
    text.push_str(&fields_that_follow_text(explained));
    text.push('\n');
    text.push_str(&format_heading("A tenth more of each resource"));
    text.push_str(&resources_table(explained));
    if let Some(area) = area_value_text(explained) {
        text.push_str(&area);
    }
    text
}

/// Returns the value of the objective, for all models and for each of several, as text.
fn value_text(explained: &DesignExplanation) -> String {
    let ObjectiveValue { value, unit, .. } = explained.valued;
    let over = if explained.models.is_empty() { "" } else { ", over the models" };
    let mut text = fold_line(&format!("Best: {} {unit}{over}.", format_rate(value)));
    for of in &explained.models {
        let ObjectiveValue { value, unit, .. } = of.valued;
        text.push_str(&fold_line(&format!("  {}: {} {unit}", of.model, format_rate(value))));
    }
    text
}

/// Returns the fields that the study ties to each dimension, as text: they change in its steps too.
fn fields_that_follow_text(explained: &DesignExplanation) -> String {
    let mut text = String::new();
    let mut said = Vec::new();
    for step in explained.steps.iter().filter(|step| !step.follow.is_empty()) {
        if !said.contains(&&step.dimension) {
            said.push(&step.dimension);
            text.push_str(&fold_line(&format!("With {} the study sets {}.", step.dimension, step.follow.join(", "))));
        }
    }
    text
}

/// Returns the parts of a model's time, and the slowest kernels of its slowest stage, as text.
fn bottleneck_text(binds: &StepBottleneck, valued: &ObjectiveValue) -> String {
    let mut text = String::new();
    let whole = if valued.objective.pays_dollars() { "USD" } else { "energy" };
    for share in &binds.objective_shares {
        text.push_str(&format!("  {:5.1} % of the {whole}: {}\n", 100.0 * share.fraction, share.name));
    }
    for share in binds.time_shares.iter().take(KERNELS) {
        text.push_str(&format!("  {:5.1} % of the step: {}\n", 100.0 * share.fraction, share.name));
    }
    text.push_str(&format!("\nThe kernels of the slowest stage, {}:\n", binds.slowest_stage));
    let mut table = TextTable::new(["share %", "pass", "kernel", "bound by"]).align_column(0, ColumnAlign::Right);
    for held in &binds.kernels {
        table.add_row([
            format!("{:.1}", 100.0 * held.share),
            held.pass.clone(),
            held.kernel.clone(),
            held.bound.clone(),
        ]);
    }
    text.push_str(&table.render());
    text
}

fn signed_rate(value: Option<f64>, digits: usize) -> String {
    // A value that rounds to zero has no sign.
    let rounded = |value: f64| (value * 10_f64.powi(digits as i32)).round() == 0.0;
    value.map_or_else(|| "-".to_owned(), |value| format!("{:+.digits$}", if rounded(value) { 0.0 } else { value }))
}

/// Returns the heads of the models' columns: the name, with the tokens if two models share the name.
fn model_columns(explained: &DesignExplanation) -> Vec<String> {
    let twice = |name: &str| explained.models.iter().filter(|of| of.model == name).count() > 1;
    let of = |of: &ModelExplanation| match twice(&of.model) {
        true => format!("{} {}", of.model, format_count(of.sequence_tokens)),
        false => of.model.clone(),
    };
    explained.models.iter().map(of).collect()
}

/// Returns a note on the cells of the models' columns; empty for a single model.
fn models_note(explained: &DesignExplanation, cells: &str) -> String {
    let unit = explained.models.first().map(|of| of.valued.unit);
    unit.map_or_else(String::new, |unit| fold_line(&format!("Of each model: {cells}, by {unit}.")))
}

/// Returns the table of steps: for one model, or for the mean over several and each of them.
fn steps_table(explained: &DesignExplanation) -> String {
    let ObjectiveValue { objective, unit, gain_unit, .. } = explained.valued;
    let dash = || "-".to_owned();
    let rate = |value: Option<f64>| value.map_or_else(dash, format_rate);
    let percent = |change: Option<f64>| signed_rate(change.map(|change| 100.0 * change), 2);
    let signed = |value: Option<f64>| {
        value.map_or_else(dash, |value| {
            format!("{}{}", if value > 0.0 { "+" } else { "" }, format_significant(value, 3))
        })
    };
    let alone = explained.models.is_empty();
    let with_speed = alone && objective != Objective::Throughput;
    let mut header: Vec<String> = ["dimension", "from", "to", unit, "% better"].map(str::to_owned).to_vec();
    header.extend(model_columns(explained));
    header.extend(["mm²", "W", "cost USD"].map(str::to_owned));
    header.extend(with_speed.then(|| "tokens/s".to_owned()));
    header.extend(alone.then(|| format!("{gain_unit} more per mm²")));
    let numbers = 3..header.len();
    header.push("limits".to_owned());
    let mut table = TextTable::new(header)
        .keep_columns(&["from", "to", unit, "% better", "mm²", "W", "cost USD", "limits"])
        .spill_below();
    for column in numbers {
        table = table.align_column(column, ColumnAlign::Right);
    }
    for (at, step) in explained.steps.iter().enumerate() {
        let limits =
            if step.exceeds.is_empty() { step.limits.to_owned() } else { step.exceeds.join(", ") }.replace('_', " ");
        let said = match &step.reason {
            Some(reason) => format!("{limits}: {}", short_reason(reason)),
            None => limits,
        };
        let said = step.lowered_clock_mhz.map_or_else(|| said.clone(), |mhz| format!("{said}, at {mhz:.0} MHz"));
        let mut row =
            vec![step.dimension.clone(), step.from.clone(), step.to.clone(), rate(step.value), percent(step.change)];
        row.extend(explained.models.iter().map(|of| match of.steps.get(at) {
            Some(step) if step.value.is_some() => format!("{} ({})", rate(step.value), percent(step.change)),
            _ => dash(),
        }));
        row.extend([signed_rate(step.area_mm2, 1), signed_rate(step.peak_power_w, 1), signed_rate(step.cost_usd, 0)]);
        row.extend(with_speed.then(|| rate(step.tokens_per_s)));
        row.extend(alone.then(|| signed(step.gain_per_mm2)));
        row.push(said);
        table.add_row(row);
    }
    let mut text = table.render();
    text.push_str(&models_note(explained, "its value (% better)"));
    if explained.steps.iter().any(|step| step.exceeds.contains(&OVER_POWER)) {
        text.push_str(&fold_line(
            "A chip over the power limit exceeds it even at its lowest clock; its line has the figures at its design \
            clock.",
        ));
    }
    text
}

/// Returns the table of a tenth more of each resource: for one model, or for the mean over several and each of them.
fn resources_table(explained: &DesignExplanation) -> String {
    let mut header: Vec<String> = ["in every device", "has", "% better"].map(str::to_owned).to_vec();
    header.extend(model_columns(explained));
    let alone = explained.models.is_empty();
    header.extend(alone.then(|| explained.valued.gain_unit.to_owned()));
    let numbers = 1..header.len();
    let mut table = TextTable::new(header).keep_columns(&["has", "% better"]).spill_below();
    for column in numbers {
        table = table.align_column(column, ColumnAlign::Right);
    }
    for worth in &explained.worth {
        let has = format!("{} {}", format_significant(worth.has, 4), worth.unit);
        let mut row = vec![worth.resource.clone(), has, format!("{:+.2}", 100.0 * worth.change)];
        let own = |of: &ModelExplanation| {
            of.worth.iter().find(|own| own.resource == worth.resource).map(|own| 100.0 * own.change)
        };
        row.extend(explained.models.iter().map(|of| signed_rate(own(of), 2)));
        row.extend(alone.then(|| format!("{} per {}", format_significant(worth.gain_per_unit, 3), worth.unit)));
        table.add_row(row);
    }
    table.render()
        + &models_note(explained, "% better")
        + &fold_line("Area, power and price of the chip are taken as unchanged.")
}

/// Returns the value of one more square millimetre at its best use. Only steps that stay within all limits except the
/// area count.
fn area_value_text(explained: &DesignExplanation) -> Option<String> {
    let allowed = |step: &&DimensionStepRow| step.exceeds.iter().all(|limit| *limit == OVER_AREA);
    let worth = |step: &&DimensionStepRow| step.gain_per_mm2.unwrap_or(f64::NEG_INFINITY);
    let best = explained.steps.iter().filter(allowed).max_by(|a, b| worth(a).total_cmp(&worth(b)))?;
    let per = best.gain_per_mm2.filter(|per| *per > 0.0)?;
    let DimensionStepRow { dimension, from, to, exceeds, .. } = best;
    let beyond = if exceeds.is_empty() { "" } else { ", beyond the area limit" };
    let design = &explained.best;
    // A mean per mm² is meaningful only for the throughput, which is a sum over the devices' area.
    let summed = explained.valued.objective == Objective::Throughput;
    let rate = design.throughput_tokens_per_s.filter(|_| summed).zip(design.devices_used);
    let average = rate.map_or_else(String::new, |(rate, devices)| {
        format!("; on average its mm² give {} each", format_significant(rate / devices as f64 / design.area_mm2, 3))
    });
    let (per, unit) = (format_significant(per, 3), explained.valued.gain_unit);
    Some(fold_line(&format!(
        "A mm² more is worth {per} {unit} where it is used best: {dimension} from {from} to {to}{beyond}{average}."
    )))
}

/// Returns the first part of a reason, up to a comma or semicolon.
fn short_reason(reason: &str) -> &str {
    reason.split([';', ',']).next().unwrap_or(reason)
}
