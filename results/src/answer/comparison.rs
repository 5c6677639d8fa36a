//! Designs and runs side by side, as data and as a table.

use crate::answer::evidence::{EvidenceRecord, ratio_interval};
use crate::store::design::DesignRow;
use crate::text::{ColumnAlign, TextTable, fold_line, format_area, format_fields, format_rate, format_significant};
use measured::evidence::{Grade, PredictionFacts};
use search::design::Aim;
use search::objective::{FrontAxis, Objective, ObjectiveKind, ValueScale};
use search::space::EfficiencyChoice;
use serde::{Deserialize, Serialize};
use sim::hardware::Constants;
use sim::network::{Fabric, SystemPrice};
use sim::units::SquareMillimeters;
use std::collections::BTreeSet;
use std::fmt;

/// The efficiency that a chip is modelled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChipEfficiency {
    /// The chip reaches every peak, and launches are free.
    Ideal,
    /// The efficiency that was measured on chips of its family.
    Family,
    /// Scalars fitted to measurements of the chip, or of the chip that it is derived from.
    Fitted,
}

impl From<EfficiencyChoice> for ChipEfficiency {
    fn from(choice: EfficiencyChoice) -> Self {
        match choice {
            EfficiencyChoice::Ideal => Self::Ideal,
            EfficiencyChoice::Family => Self::Family,
            EfficiencyChoice::Base => Self::Fitted,
        }
    }
}

impl fmt::Display for ChipEfficiency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ideal => "ideal",
            Self::Family => "family",
            Self::Fitted => "fitted",
        })
    }
}

/// A built chip in a comparison, and the terms on which it is compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaselineChip {
    /// The chip's name.
    pub chip: String,
    /// The terms.
    pub standing: BaselineStanding,
}

/// The terms on which a built chip is compared with the found design.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaselineStanding {
    /// On the found design's fabric, under the study's stack, with the chip's fitted scalars.
    SameFabric,
    /// As [`Self::SameFabric`], but the chip reaches every peak.
    Ideal,
    /// On its own fabric, under its own stack.
    AsSold,
}

/// A design with its plan, as an entry of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComparisonEntry {
    /// The name that the reader sees: `best found`, `TPUv4, expert's plan`.
    pub label: String,
    /// The chip in words.
    pub chip: String,
    /// The plan in words; `null` if none fits.
    pub plan: Option<String>,
    /// Area of all compute dies in mm².
    pub area_mm2: Option<f64>,
    /// The process node of the area.
    pub node: Option<String>,
    /// Power of a chip under its heaviest sustained load, in W.
    pub peak_power_w: Option<f64>,
    /// Cost of making a chip, in USD.
    pub cost_usd: Option<f64>,
    /// Price of the system around a device, in USD; `null` if the fabric's parts are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_usd: Option<f64>,
    /// The parts of `system_usd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_parts: Option<SystemPrice>,
    /// Throughput in sequences per second over the whole cluster; `null` if no plan fits.
    pub throughput_sequences_per_s: Option<f64>,
    /// Throughput in tokens per second over the whole cluster.
    pub throughput_tokens_per_s: Option<f64>,
    /// For several models: the mean of their throughputs relative to the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times_reference: Option<f64>,
    /// Time of one optimizer step in seconds.
    pub step_time_s: Option<f64>,
    /// The 90 % interval of the step, in seconds.
    #[serde(default)]
    pub step_interval_s: Option<[f64; 2]>,
    /// The worst grade among the grounds of the step.
    #[serde(default)]
    pub grade: Option<Grade>,
    /// The grounds of the step that were not measured in training runs, in words, with their grades.
    #[serde(default)]
    pub evidence: Option<String>,
    /// The software stack.
    #[serde(default, alias = "software")]
    pub stack: Option<String>,
    /// The network between the devices.
    #[serde(default)]
    pub fabric: Option<String>,
    /// The rate of a device's port into the innermost tier of the network, one direction, in GB/s.
    #[serde(default)]
    pub port_gb_per_s: Option<f64>,
    /// The efficiency that the chip is modelled with.
    #[serde(default)]
    pub efficiency: Option<ChipEfficiency>,
    /// The built chip of this entry; `null` for designs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<BaselineChip>,
    /// The index of the entry that this one is compared with: the found design with the same kind of efficiency. `null`
    /// means the first entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared_with: Option<usize>,
    /// The value of the objective, in the unit of the comparison. `null` if no plan fits, or if the chip lacks a figure
    /// that the objective needs.
    #[serde(default)]
    pub objective_value: Option<f64>,
    /// The properties of plan, chip, fabric and stack that the evidence for the step rests on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<PredictionFacts>,
    /// The 90 % interval of [`Comparison::lead_over`] this entry, from the errors of measured pairs. `null` for the
    /// entry that others are compared with, for the objective energy per token, and if nothing is known of either step.
    #[serde(default)]
    pub lead_interval: Option<[f64; 2]>,
    /// The factor by which another step under the same software must be longer to be slower with 90 % confidence.
    #[serde(default)]
    pub step_lead: Option<f64>,
    /// Model FLOPs utilisation, as a fraction.
    pub mfu: Option<f64>,
    /// Energy of one optimizer step over the whole cluster, in joules.
    pub energy_per_step_j: Option<f64>,
    /// Peak memory of the fullest device, in GiB.
    pub peak_memory_gib: Option<f64>,
    /// The largest part of the step's time, in words.
    pub bound_by: Option<String>,
    /// A note for the reader: why the entry is infeasible, or the changes that made it run.
    pub note: Option<String>,
}

/// Designs side by side. Each is compared with the first, or with the entry that it names.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// The objective by which the entries are compared.
    #[serde(default)]
    pub objective: Objective,
    /// The differences between the work of the entries, in words. Empty if all do the same work.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<String>,
    /// The entries. Ratios refer to the first entry, or to the entry named in `compared_with`.
    pub entries: Vec<ComparisonEntry>,
    /// The causes of the first entry's lead over one of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<GainSplit>,
}

/// The lead of the first entry over another one, split into causes. The product of their factors is the whole lead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GainSplit {
    /// The label of the other entry.
    pub over: String,
    /// The causes, in the order in which they were applied to the other entry.
    pub causes: Vec<GainCause>,
}

/// A cause of a lead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GainCause {
    /// The cause in words.
    pub cause: String,
    /// The factor on the objective: above 1 if the first entry gains by this cause.
    pub factor: f64,
}

/// Returns the unit of an objective for a single model.
#[must_use]
pub fn unit_of_objective(objective: Objective) -> &'static str {
    objective.display_value(1.0, ValueScale::Alone { devices: 1.0, tokens: 1.0 }).1
}

impl ComparisonEntry {
    /// Makes an entry from a design of the store.
    #[must_use]
    pub fn from_design(label: impl Into<String>, row: &DesignRow) -> Self {
        Self {
            label: label.into(),
            chip: row.describe_chip(),
            plan: row.describe_plan(),
            area_mm2: Some(row.area_mm2),
            node: row.node.clone(),
            peak_power_w: row.peak_power_w,
            cost_usd: row.cost_usd,
            system_usd: row.system_usd,
            system_parts: None,
            throughput_sequences_per_s: row.throughput_sequences_per_s,
            throughput_tokens_per_s: row.throughput_tokens_per_s,
            times_reference: row.times_reference,
            step_time_s: row.step_time_s,
            step_interval_s: None,
            grade: None,
            evidence: None,
            stack: None,
            fabric: None,
            port_gb_per_s: None,
            efficiency: None,
            baseline: None,
            compared_with: None,
            objective_value: None,
            facts: None,
            lead_interval: None,
            step_lead: None,
            mfu: row.mfu,
            energy_per_step_j: row.energy_per_step_j,
            peak_memory_gib: row.peak_memory_gib,
            bound_by: row.bound_by.clone(),
            note: row.reason.clone(),
        }
    }

    /// Adds the name of the software stack and the evidence for the step under it.
    #[must_use]
    pub fn with_evidence(self, stack: &str, evidence: Option<&EvidenceRecord>) -> Self {
        Self {
            step_interval_s: evidence.map(|e| e.step_interval_s),
            grade: evidence.map(|e| e.grade),
            evidence: evidence.map(EvidenceRecord::step_reasons),
            stack: Some(stack.to_owned()),
            facts: evidence.and_then(|e| e.facts.clone()),
            step_lead: evidence.map(|e| e.design_lead),
            ..self
        }
    }

    /// Makes the entry of a run in which no design runs the model.
    #[must_use]
    pub fn without_design(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            chip: "no chip".into(),
            plan: None,
            area_mm2: None,
            node: None,
            peak_power_w: None,
            cost_usd: None,
            system_usd: None,
            system_parts: None,
            throughput_sequences_per_s: None,
            throughput_tokens_per_s: None,
            times_reference: None,
            step_time_s: None,
            step_interval_s: None,
            grade: None,
            evidence: None,
            stack: None,
            fabric: None,
            port_gb_per_s: None,
            efficiency: None,
            baseline: None,
            compared_with: None,
            objective_value: None,
            facts: None,
            lead_interval: None,
            step_lead: None,
            mfu: None,
            energy_per_step_j: None,
            peak_memory_gib: None,
            bound_by: None,
            note: None,
        }
    }

    /// True if figures draw this entry. They leave out entries that repeat a chip in another form: chips as sold, and
    /// entries that are not compared with the first one.
    #[must_use]
    pub fn is_drawn(&self) -> bool {
        self.compared_with.is_none() && self.baseline.as_ref().is_none_or(|of| of.standing != BaselineStanding::AsSold)
    }

    /// Adds the name of the network between the devices, the rate of a device's port into it, and the price of the
    /// system around a device.
    #[must_use]
    pub fn on_fabric(self, fabric: &Fabric, constants: &Constants) -> Self {
        let port_gb_per_s = fabric.tiers.first().map(|tier| tier.shared_rate() / 1e9);
        let system_parts = fabric.price_system(constants).ok();
        let system_usd = system_parts.map(|price| price.total_usd());
        Self { fabric: Some(fabric.name.clone()), port_gb_per_s, system_usd, system_parts, ..self }
    }

    /// Scales throughput and MFU by `wanted / done`: only `wanted` of the `done` sequences of a step count.
    #[must_use]
    pub fn counting_sequences(mut self, wanted: u64, done: u64) -> Self {
        let share = wanted as f64 / done.max(1) as f64;
        for figure in [&mut self.throughput_sequences_per_s, &mut self.throughput_tokens_per_s, &mut self.mfu] {
            *figure = figure.map(|whole| whole * share);
        }
        self
    }

    /// Adds the value of an objective on a cluster of `devices`. If the chip lacks a figure that the objective needs,
    /// adds a note instead.
    #[must_use]
    pub fn with_objective(self, aim: &Aim, devices: f64) -> Self {
        let objective_value = self.value_of_objective(aim, devices);
        let lacking = (self.step_time_s.is_some() && objective_value.is_none()).then(|| {
            let lacks = aim.objective.divisor().unwrap_or("figure");
            format!("has no {}: no {lacks} is known of its die", unit_of_objective(aim.objective))
        });
        let note = match (self.note.clone(), lacking) {
            (Some(note), Some(lacking)) => Some(format!("{note}; {lacking}")),
            (note, lacking) => note.or(lacking),
        };
        Self { objective_value, note, ..self }
    }

    /// Caps the energy of a step at `watts`, the makers' power limit of all devices, times the step time, and adds a
    /// note. Modelled energies of built chips may be above this cap, which would flatter the found chip.
    #[must_use]
    pub fn within_makers_limit(mut self, watts: f64) -> Self {
        let Some((step, energy)) = self.step_time_s.zip(self.energy_per_step_j) else { return self };
        if energy > watts * step {
            let note = format!(
                "its energy is that at the maker's limit of power; the model has {} more",
                crate::text::format_percent(energy / (watts * step) - 1.0)
            );
            self.energy_per_step_j = Some(watts * step);
            self.note = Some(self.note.map_or_else(|| note.clone(), |given| format!("{given}; {note}")));
        }
        self
    }

    fn value_of_objective(&self, aim: &Aim, devices: f64) -> Option<f64> {
        let step = self.step_time_s?;
        let minimised = match aim.objective.kind() {
            ObjectiveKind::Rate | ObjectiveKind::Time => step,
            ObjectiveKind::RatePer(FrontAxis::Cost) => aim.cost_of_step(
                aim.paid_usd(self.cost_usd, self.system_usd)?,
                (step, self.energy_per_step_j?),
                devices,
            ),
            ObjectiveKind::RatePer(FrontAxis::Area) => step * self.area_mm2?,
            ObjectiveKind::RatePer(FrontAxis::Power) => step * self.peak_power_w?,
            ObjectiveKind::RatePer(FrontAxis::Energy | FrontAxis::None) => return None,
            ObjectiveKind::Energy => self.energy_per_step_j?,
        };
        let scale = ValueScale::Alone { devices, tokens: step * self.throughput_tokens_per_s? };
        Some(aim.objective.display_value(minimised, scale).0)
    }
}

/// Returns a note if the areas belong to different process nodes; otherwise an empty text.
pub(crate) fn processes_note(entries: &[ComparisonEntry]) -> String {
    let nodes: BTreeSet<&str> = entries.iter().filter_map(|e| e.node.as_deref()).collect();
    if nodes.len() < 2 {
        return String::new();
    }
    let nodes = nodes.into_iter().collect::<Vec<_>>().join(", ");
    fold_line(&format!("Areas belong to different process nodes ({nodes}) and cannot be compared."))
}

impl Comparison {
    /// Makes a comparison by throughput of entries that do the same work.
    #[must_use]
    pub fn of_entries(entries: Vec<ComparisonEntry>) -> Self {
        Self { entries, ..Self::default() }
    }

    /// Adds the intervals of the leads. The objective energy per token gets none, because no pairs of energies were
    /// measured.
    #[must_use]
    pub fn with_lead_intervals(mut self) -> Self {
        let interval = |entry: &ComparisonEntry| {
            let (first, lead) = (self.base_of(entry)?, self.lead_over(entry)?);
            let of_steps = !self.objective.minimises_energy() && !std::ptr::eq(first, entry);
            let [low, high] = ratio_interval(first.facts.as_ref().filter(|_| of_steps)?, entry.facts.as_ref()?)?;
            Some([lead * low, lead * high])
        };
        let found: Vec<Option<[f64; 2]>> = self.entries.iter().map(interval).collect();
        for (entry, interval) in self.entries.iter_mut().zip(found) {
            entry.lead_interval = interval;
        }
        self
    }

    /// Returns the entry that `entry` is compared with.
    fn base_of(&self, entry: &ComparisonEntry) -> Option<&ComparisonEntry> {
        self.entries.get(entry.compared_with.unwrap_or(0))
    }

    /// Returns the factor by which the entry that `entry` is compared with is better by the objective. Records without
    /// values of the objective use the throughput. `None` if either entry has no value.
    #[must_use]
    pub fn lead_over(&self, entry: &ComparisonEntry) -> Option<f64> {
        let first = self.base_of(entry)?;
        let of = |get: &dyn Fn(&ComparisonEntry) -> Option<f64>| Some((get(first)?, get(entry)?));
        let values = of(&|entry| entry.objective_value);
        // Means over models are relative to the reference, and more is better.
        let by_objective = values.map(|(first, other)| match self.is_over_models() {
            true => first / other,
            false => self.objective.lead(first, other),
        });
        let by_rate = || {
            let (first, other) = of(&|entry| entry.throughput_tokens_per_s.or(entry.times_reference))?;
            Some(first / other)
        };
        // Records of earlier versions have no value of the objective.
        by_objective.or_else(by_rate).filter(|lead| lead.is_finite())
    }

    /// True if the rates are means over several models.
    pub(crate) fn is_over_models(&self) -> bool {
        self.entries.iter().any(|entry| entry.times_reference.is_some())
    }

    /// Returns the unit of the objective: of one model, or of the mean over several.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        match self.is_over_models() {
            true => self.objective.display_value(1.0, ValueScale::Reference).1,
            false => unit_of_objective(self.objective),
        }
    }

    /// True if at least one entry has a plan.
    #[must_use]
    pub fn any_runs(&self) -> bool {
        self.entries.iter().any(|entry| entry.plan.is_some() || entry.times_reference.is_some())
    }

    /// Returns the comparison as text: the entries, the table of their figures, and the notes. The column `first is`
    /// has the lead over each entry ([`Self::lead_over`]).
    #[must_use]
    pub fn to_text(&self) -> String {
        self.render_text(false)
    }

    /// As [`Self::to_text`], with the bad ends of the intervals, for a search that ranks by them.
    #[must_use]
    pub fn to_text_with_bad_ends(&self) -> String {
        self.render_text(true)
    }

    fn render_text(&self, bad_ends: bool) -> String {
        let what = |e: &ComparisonEntry| match (&e.plan, e.times_reference) {
            (Some(plan), _) => format!("{}; {plan}", e.chip),
            (None, Some(_)) => e.chip.clone(),
            (None, None) => format!("{}; no plan fits", e.chip),
        };
        let pairs: Vec<(&str, String)> = self.entries.iter().map(|e| (e.label.as_str(), what(e))).collect();
        let mut text: String = self.differences.iter().map(|difference| fold_line(difference)).collect();
        text.push_str(&format_fields(&pairs));
        text.push('\n');
        text.push_str(&if self.is_over_models() { self.means_table() } else { self.figures_table(bad_ends) }.render());
        if bad_ends && !self.is_over_models() {
            text.push_str(&fold_line(
                "bad end s: the step at the bad end of its 90 % interval, which a robust search ranks by. All other \
                columns are for the predicted step.",
            ));
        }
        if let Some((entry, price)) = self.entries.iter().find_map(|entry| Some((entry, entry.system_parts?))) {
            let (label, parts) = (&entry.label, price.describe_parts());
            text.push_str(&fold_line(&format!("System around a device of {label}, USD: {parts}.")));
        }
        text.push_str(&processes_note(&self.entries));
        text.extend(self.gain.as_ref().map(gain_text));
        text.push_str(&self.evidence_text());
        for entry in &self.entries {
            if let Some(note) = &entry.note {
                text.push_str(&fold_line(&format!("{}: {note}", entry.label)));
            }
        }
        text
    }

    /// Returns the intervals of steps and leads, and the entries that are too close to call, in words.
    fn evidence_text(&self) -> String {
        let mut text = String::new();
        let interval = |e: &ComparisonEntry| {
            let [low, high] = e.step_interval_s?;
            let grade = e.grade.map_or_else(String::new, |grade| format!(", {grade}"));
            Some(format!("{} {} to {}{grade}", e.label, format_significant(low, 3), format_significant(high, 3)))
        };
        let intervals: Vec<String> = self.entries.iter().filter_map(interval).collect();
        if !intervals.is_empty() {
            text.push_str(&fold_line(&format!("Step s with 90 % confidence: {}.", intervals.join("; "))));
        }
        let leads = |e: &ComparisonEntry| {
            let [low, high] = e.lead_interval?;
            Some(format!("{} {low:.2} to {high:.2}", e.label))
        };
        let leads: Vec<String> = self.entries.iter().filter_map(leads).collect();
        if !leads.is_empty() {
            text.push_str(&fold_line(&format!(
                "The first is so many times as good, with 90 % confidence by the errors of measured pairs: {}.",
                leads.join("; ")
            )));
        }
        let within = self.too_close_to_call();
        if !within.is_empty() {
            text.push_str(&fold_line(&format!(
                "Too close to call: {}. The distance from the first is smaller than the model error between designs.",
                within.join(", ")
            )));
        }
        text
    }

    /// Returns the entries that are too close to call ([`Self::is_too_close`]), whether they are better or worse than
    /// the first.
    fn too_close_to_call(&self) -> Vec<&str> {
        let is_close = |other: &&ComparisonEntry| self.is_too_close(other).unwrap_or(false);
        self.entries.iter().skip(1).filter(is_close).map(|e| e.label.as_str()).collect()
    }

    /// True if an entry's distance from the one that it is compared with is within the model error. The interval of the
    /// lead decides, if it is known. Otherwise the leader's `step_lead` decides under the same stack, because such
    /// errors are correlated, and the interval of its step under different stacks. `None` if none of these is known.
    #[must_use]
    pub fn is_too_close(&self, other: &ComparisonEntry) -> Option<bool> {
        if let Some([low, high]) = other.lead_interval {
            return Some((low..=high).contains(&1.0));
        }
        let (first, lead) = (self.base_of(other)?, self.lead_over(other)?);
        let leader = if lead >= 1.0 { first } else { other };
        let apart = leader.step_interval_s.zip(leader.step_time_s).map(|([_, high], step)| high / step);
        let same = first.stack.is_some() && first.stack == other.stack;
        let settled = leader.step_lead.filter(|_| same).or(apart)?;
        Some(lead.max(1.0 / lead) <= settled)
    }

    /// Returns the table of means over several models.
    fn means_table(&self) -> TextTable {
        let dash = || "-".to_owned();
        let by_speed = matches!(self.objective, Objective::Throughput | Objective::StepTime);
        let mut heads = vec!["design", "area", "node", "x reference", "first is", "peak W", "cost USD"];
        if !by_speed {
            heads.insert(3, self.unit());
        }
        let mut table = TextTable::new(heads).keep_columns(&[self.unit(), "x reference", "first is"]);
        for entry in &self.entries {
            let mut row = vec![
                entry.label.clone(),
                entry.area_mm2.map_or_else(dash, |a| format_area(SquareMillimeters(a))),
                entry.node.clone().unwrap_or_else(dash),
                entry.times_reference.map_or_else(dash, |times| format_significant(times, 4)),
                self.lead_over(entry).map_or_else(dash, |s| format!("{s:.2}x")),
                entry.peak_power_w.map_or_else(dash, |w| format!("{w:.0}")),
                entry.cost_usd.map_or_else(dash, |usd| format!("{usd:.0}")),
            ];
            if !by_speed {
                row.insert(3, entry.objective_value.map_or_else(dash, format_rate));
            }
            table.add_row(row);
        }
        table
    }

    fn figures_table(&self, bad_ends: bool) -> TextTable {
        let dash = || "-".to_owned();
        let number = |value: Option<f64>| value.map_or_else(dash, |v| format_significant(v, 4));
        let rate = |value: Option<f64>| value.map_or_else(dash, format_rate);
        let word = |value: &Option<String>| value.clone().unwrap_or_else(dash);
        let unit = unit_of_objective(self.objective);
        type Cell<'a> = Box<dyn Fn(&ComparisonEntry) -> String + 'a>;
        // A narrow screen drops the columns that are not kept (`false`), from right to left.
        let mut columns: Vec<(&str, bool, Cell<'_>)> = vec![
            ("design", true, Box::new(|e| e.label.clone())),
            ("port GB/s", true, Box::new(|e| number(e.port_gb_per_s))),
            ("efficiency", true, Box::new(|e| e.efficiency.map_or_else(dash, |of| of.to_string()))),
            ("stack", true, Box::new(|e| word(&e.stack))),
            (unit, true, Box::new(|e| rate(e.objective_value.or(e.throughput_tokens_per_s)))),
            ("first is", true, Box::new(|e| self.lead_over(e).map_or_else(dash, |s| format!("{s:.2}x")))),
            ("area", true, Box::new(|e| e.area_mm2.map_or_else(dash, |a| format_area(SquareMillimeters(a))))),
            ("node", false, Box::new(|e| word(&e.node))),
            ("step s", bad_ends, Box::new(|e| number(e.step_time_s))),
        ];
        if bad_ends {
            columns.push(("bad end s", true, Box::new(|e| number(e.step_interval_s.map(|[_, bad]| bad)))));
        }
        columns.push(("MFU %", bad_ends, Box::new(|e| e.mfu.map_or_else(dash, |m| format!("{:.1}", m * 100.0)))));
        if self.objective != Objective::Throughput {
            columns.push(("tokens/s", false, Box::new(|e| rate(e.throughput_tokens_per_s))));
        }
        columns.push(("peak W", false, Box::new(|e| e.peak_power_w.map_or_else(dash, |w| format!("{w:.0}")))));
        columns.push(("cost USD", false, Box::new(|e| e.cost_usd.map_or_else(dash, |usd| format!("{usd:.0}")))));
        if self.objective.kind() == ObjectiveKind::RatePer(FrontAxis::Cost) {
            let system = |e: &ComparisonEntry| e.system_usd.map_or_else(dash, |usd| format!("{usd:.0}"));
            columns.push(("system USD", false, Box::new(system)));
        }
        columns.push(("kJ/step", false, Box::new(|e| number(e.energy_per_step_j.map(|e| e / 1e3)))));
        columns.push(("peak GiB", false, Box::new(|e| e.peak_memory_gib.map_or_else(dash, |g| format!("{g:.2}")))));
        columns.push(("bound by", false, Box::new(|e| e.bound_by.clone().unwrap_or_default())));
        // Answers of other commands and of earlier versions lack some of these columns.
        columns.retain(|(head, _, cell)| {
            !["port GB/s", "efficiency", "stack", "system USD"].contains(head)
                || self.entries.iter().any(|e| cell(e) != "-")
        });
        let kept: Vec<&str> = columns.iter().filter(|(_, kept, _)| *kept).map(|(head, ..)| *head).collect();
        let mut table = TextTable::new(columns.iter().map(|(head, ..)| *head))
            .align_column(columns.len() - 1, ColumnAlign::Left)
            .keep_columns(&kept)
            .turn_if_wide();
        for entry in &self.entries {
            table.add_row(columns.iter().map(|(.., cell)| cell(entry)));
        }
        table
    }
}

/// Returns the lead of the first entry over another, cause by cause, in words.
#[must_use]
pub fn gain_text(gain: &GainSplit) -> String {
    let whole: f64 = gain.causes.iter().map(|of| of.factor).product();
    let causes: Vec<String> =
        gain.causes.iter().map(|GainCause { cause, factor }| format!("{cause} {factor:.3}")).collect();
    fold_line(&format!(
        "The lead over {}, {whole:.3}x, is the product of: {}. Each factor is what the change brings after those \
        before it, under the best plan.",
        gain.over,
        causes.join(" x ")
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use measured::evidence::NamedKind;

    fn entry(label: &str, throughput: Option<f64>) -> ComparisonEntry {
        ComparisonEntry {
            chip: "8 x 128x128 TC".into(),
            plan: throughput.map(|_| "p 8, t 1, d 128".into()),
            area_mm2: Some(278.826_676),
            node: Some("22 nm".into()),
            peak_power_w: Some(210.4),
            throughput_sequences_per_s: throughput,
            throughput_tokens_per_s: throughput.map(|t| t * 4096.0),
            step_time_s: throughput.map(|t| 4096.0 / t),
            mfu: throughput.map(|_| 0.5),
            peak_memory_gib: throughput.map(|_| 27.5),
            bound_by: throughput.map(|_| "HBM".into()),
            note: throughput.is_none().then(|| "stage 0 of 8 lacks 1.200 GiB".into()),
            ..ComparisonEntry::without_design(label)
        }
    }

    #[test]
    fn the_table_reads() {
        let entries = vec![entry("best found", Some(50.0)), entry("TPUv4", Some(40.0)), entry("small", None)];
        let comparison = Comparison::of_entries(entries);
        assert_eq!(
            comparison.to_text(),
            "  best found  8 x 128x128 TC; p 8, t 1, d 128\n  TPUv4       8 x 128x128 TC; p 8, t 1, d 128\n  \
               small       8 x 128x128 TC; no plan fits\n\
             \n\
    design      tokens/s  first is       area   node  step s  MFU %  peak W  cost USD  kJ/step  peak GiB  bound by\n\
    ----------  --------  --------  ---------  -----  ------  -----  ------  --------  -------  --------  --------\n\
    best found   204,800     1.00x  278.8 mm²  22 nm   81.92   50.0     210         -        -     27.50  HBM\n\
    TPUv4        163,840     1.25x  278.8 mm²  22 nm   102.4   50.0     210         -        -     27.50  HBM\n\
             small              -         -  278.8 mm²  22 nm       -      -     210         -        -         -\n\
             small: stage 0 of 8 lacks 1.200 GiB\n"
        );
    }

    #[test]
    fn areas_of_different_processes_are_told() {
        let mut entries = vec![entry("best found", Some(50.0)), entry("a100", Some(40.0))];
        let text = |entries: &[ComparisonEntry]| Comparison::of_entries(entries.to_vec()).to_text();
        assert!(!text(&entries).contains("different processes"));
        entries[1].node = Some("7 nm".into());
        assert!(text(&entries).contains("Areas belong to different process nodes (22 nm, 7 nm)"), "{}", text(&entries));
    }

    #[test]
    fn a_lead_smaller_than_its_interval_is_told() {
        let mut entries = vec![entry("best found", Some(50.0)), entry("TPUv4", Some(40.0)), entry("slow", Some(20.0))];
        (entries[0].step_interval_s, entries[0].grade) = (Some([70.0, 110.0]), Some(Grade::Related));
        let text = Comparison::of_entries(entries.clone()).to_text();
        assert!(text.contains("Step s with 90 % confidence: best found 70.0 to 110, related.\n"), "{text}");
        assert!(
            text.contains(
                "Too close to call: TPUv4. The distance from the first is smaller than the model error between designs."
            ),
            "{text}"
        );
        // With the same stack, errors are correlated, so the lead decides: 102.4 s is more than 1.2 times 81.92 s. With
        // different stacks, the interval of the faster step decides.
        for entry in &mut entries {
            (entry.stack, entry.step_lead) = (Some("ideal".into()), Some(1.2));
        }
        assert!(!Comparison::of_entries(entries.clone()).to_text().contains("Too close to call"));
        entries[1].stack = Some("maxtext".into());
        assert!(Comparison::of_entries(entries.clone()).to_text().contains("Too close to call: TPUv4"));
        entries[0].step_interval_s = Some([70.0, 100.0]);
        assert!(!Comparison::of_entries(entries).to_text().contains("Too close to call"));
    }

    #[test]
    fn a_verdict_stays_where_two_entries_are_swapped() {
        let settled = |lead: f64| {
            let of = |label: &str, rate: f64| ComparisonEntry {
                stack: Some("ideal".into()),
                step_lead: Some(lead),
                ..entry(label, Some(rate))
            };
            let [a, b] = [of("a", 50.0), of("b", 40.0)];
            let close = |entries: [ComparisonEntry; 2]| {
                let comparison = Comparison::of_entries(entries.to_vec());
                (comparison.is_too_close(&entries[1]), comparison.lead_over(&entries[1]).unwrap())
            };
            let (one, other) = (close([a.clone(), b.clone()]), close([b, a]));
            assert_eq!((one.0, one.1), (other.0, 1.0 / other.1));
            one.0
        };
        // The first entry's lead is 1.25, so that it is settled if it exceeds `step_lead`.
        assert_eq!((settled(1.3), settled(1.2)), (Some(true), Some(false)));
    }

    #[test]
    fn a_ratio_s_interval_decides_and_is_the_inverse_where_two_entries_are_swapped() {
        let named = |name: &str, kind: &str| NamedKind { name: name.into(), kind: kind.into() };
        let on = |chip: &str, rate: f64| ComparisonEntry {
            facts: Some(PredictionFacts {
                chip: named(chip, "library"),
                fabric: named("eos_ndr400x8", "switch/switch"),
                stack: named("megatron_bridge", "stream 95/24/700 us"),
                mechanisms: std::collections::BTreeSet::new(),
                chips: 64,
                own_runs: step::FittedRuns::default(),
            }),
            ..entry(chip, Some(rate))
        };
        let compared = |a: (&str, f64), b: (&str, f64)| {
            let comparison = Comparison::of_entries(vec![on(a.0, a.1), on(b.0, b.1)]).with_lead_intervals();
            assert_eq!(comparison.entries[0].lead_interval, None);
            let interval = comparison.entries[1].lead_interval.unwrap();
            (interval, comparison.is_too_close(&comparison.entries[1]).unwrap(), comparison.to_text())
        };
        let ([low, high], close, text) = compared(("gb200", 50.0), ("h100_80gb_sxm", 40.0));
        assert!(low < 1.25 && 1.25 < high && close, "{low} {high}");
        let said = format!("90 % confidence by the errors of measured pairs: h100_80gb_sxm {low:.2} to {high:.2}.");
        assert!(text.contains(&said) && text.contains("Too close to call: h100_80gb_sxm"), "{text}");
        let (inverse, close, _) = compared(("h100_80gb_sxm", 40.0), ("gb200", 50.0));
        assert!((low * inverse[1] - 1.0).abs() < 1e-9 && (high * inverse[0] - 1.0).abs() < 1e-9 && close);
        let far = compared(("gb200", 500.0), ("h100_80gb_sxm", 40.0));
        assert!(!far.1 && far.0[0] > 1.0, "{far:?}");
    }

    #[test]
    fn each_objective_has_its_unit_and_its_direction() {
        let aim = |objective| Aim { objective, ..Aim::default() };
        let compared = |objective| {
            let of = |label: &str, rate: f64| ComparisonEntry {
                energy_per_step_j: Some(1e6 / rate),
                cost_usd: Some(1000.0),
                ..entry(label, Some(rate))
            };
            let entries = [of("best found", 50.0), of("other", 40.0)];
            let entries = entries.into_iter().map(|entry| entry.with_objective(&aim(objective), 8.0)).collect();
            Comparison { objective, ..Comparison::of_entries(entries) }
        };
        for (_, objective) in Objective::NAMES {
            let comparison = compared(objective);
            let lead = comparison.lead_over(&comparison.entries[1]).unwrap();
            assert!((lead - 1.25).abs() < 1e-12, "{objective}: {lead}");
            assert!(comparison.to_text().contains(unit_of_objective(objective)), "{objective}");
        }
        // The eight chips give 204,800 tokens/s. Each takes 210.4 W, has 278.8 mm² and costs 1,000 USD.
        let value = |objective| compared(objective).entries[0].objective_value.unwrap();
        assert!((value(Objective::PerWatt) - 204_800.0 / 8.0 / 210.4).abs() < 1e-9);
        assert!((value(Objective::PerArea) - 204_800.0 / 8.0 / 278.826_676).abs() < 1e-9);
        assert!((value(Objective::PerDollar) - 204_800.0 / 8.0 / 1000.0).abs() < 1e-9);
        // A chip without a price says so.
        let free = ComparisonEntry { cost_usd: None, ..entry("free", Some(1.0)) };
        let note = free.with_objective(&aim(Objective::PerDollar), 8.0).note.unwrap();
        assert_eq!(note, "has no tokens/s per USD: no price is known of its die");
    }

    #[test]
    fn bad_ends_stand_beside_the_steps_where_they_rank() {
        let mut entries = vec![entry("best found", Some(50.0)), entry("TPUv4", Some(40.0))];
        entries[0].step_interval_s = Some([70.0, 110.5]);
        let comparison = Comparison::of_entries(entries);
        assert!(!comparison.to_text().contains("bad end"));
        let text = comparison.to_text_with_bad_ends();
        assert!(text.contains("step s  bad end s  MFU %") && text.contains(" 81.92      110.5   50.0 "), "{text}");
        assert!(
            text.contains("bad end s: the step at the bad end of its 90 % interval, which a robust search ranks by."),
            "{text}"
        );
    }
}
