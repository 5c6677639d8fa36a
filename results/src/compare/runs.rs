//! Runs side by side: for one model by their rates; for several models by their mean and model by model.

use crate::answer::comparison::{ChipEfficiency, Comparison, ComparisonEntry};
use crate::run::front::{DesignMeasures, FrontQuantity, MeanRatios, StepScope};
use crate::run::record::{BestDesign, Certificate, ModelPlan, Proof};
use crate::run::search_run::SearchRun;
use crate::text::format_count;
use crate::text::{fold_line, format_heading, format_percent};
use search::design::Aim;
use search::objective::{MeasureMean, Objective, ObjectiveKind};
use serde::Serialize;

/// The comparison of several runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunComparison {
    /// The best designs and the baselines. For several models, the rates are means.
    #[serde(flatten)]
    pub over: Comparison,
    /// The same comparison for each of several models; empty for one model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelComparison>,
    /// The reference of the means, in words.
    #[serde(skip)]
    scale: String,
    /// The positions of the runs' best designs among the entries.
    #[serde(skip)]
    found: Vec<usize>,
    /// True if at least one run ranks by the bad ends of the steps' intervals.
    #[serde(skip)]
    robust: bool,
}

/// The comparison of several runs on one of several models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelComparison {
    /// The model.
    pub model: String,
    /// Tokens per sequence in the first run.
    pub sequence_tokens: u64,
    /// The weight of the model in the mean over models.
    pub share: f64,
    /// The best designs and the baselines, each under its best plan.
    #[serde(flatten)]
    pub comparison: Comparison,
}

/// Compares runs. The best design of the first run comes first. If a run has another model, cluster, batch or
/// objective, the comparison lists this difference.
///
/// # Errors
/// As [`rescale_to_first_reference`].
pub fn compare_runs(mut runs: Vec<SearchRun>) -> Result<RunComparison, String> {
    rescale_to_first_reference(&mut runs)?;
    let robust = runs.iter().any(|run| run.record.certificate.robust);
    let first = runs.iter().find(|run| !run.models().is_empty());
    let Some(first) = first else {
        let (over, found) = entries_of_one_model(&runs);
        return Ok(RunComparison { over, models: Vec::new(), scale: String::new(), found, robust });
    };
    let on = |(at, model): (usize, &ModelPlan)| ModelComparison {
        model: model.model.clone(),
        sequence_tokens: model.sequence_tokens,
        share: model.share,
        comparison: labelled_entries(&runs, &|run| match run.models().get(at) {
            Some(own) => own.comparison.entries.clone(),
            None => no_design_entry(),
        })
        .0,
    };
    let scale = format!(
        "x reference: the {} of the models' throughputs relative to {}, with the efficiency of the space's chips and \
        under its best plan, from {}.",
        if first.scoring_over_models() == MeasureMean::Mean { "arithmetic mean" } else { "geometric mean" },
        first.record.study.reference_chip,
        first.name,
    );
    let asked = runs.first().unwrap_or(first);
    let (objective, scope) = (asked.record.asked.aim.objective, asked.step_scope());
    let (over, found) = labelled_entries(&runs, &|run| {
        run.record.best.as_ref().map_or_else(no_design_entry, |best| mean_entries(run, best, objective, &scope))
    });
    Ok(RunComparison { over, models: first.models().iter().enumerate().map(on).collect(), scale, found, robust })
}

impl RunComparison {
    /// Returns the comparison in a few lines.
    #[must_use]
    pub fn to_summary(&self) -> String {
        let each: Vec<(String, &Comparison)> =
            self.models.iter().map(|of| (of.model.clone(), &of.comparison)).collect();
        let mut text = self.over.to_summary(&self.found, &each, self.robust);
        text.push_str(&fold_line(&self.scale));
        text
    }

    /// Returns the whole comparison as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let words = |comparison: &Comparison| match self.robust {
            true => comparison.to_text_with_bad_ends(),
            false => comparison.to_text(),
        };
        if self.models.is_empty() {
            return words(&self.over);
        }
        let mut text = format_heading("Mean over the models").trim_start().to_owned();
        text.push_str(&words(&self.over));
        text.push_str(&fold_line(&self.scale));
        for of in &self.models {
            let what = format!(
                "On {}, {} tokens, a share of {}",
                of.model,
                format_count(of.sequence_tokens),
                format_percent(of.share)
            );
            text.push_str(&format_heading(&what));
            text.push_str(&words(&of.comparison));
        }
        text
    }
}

fn no_design_entry() -> Vec<ComparisonEntry> {
    vec![ComparisonEntry::without_design("nothing found")]
}

/// Returns the best design of a run of several models and its baselines, by the means over the models. `objective` and
/// `scope` are those of the first run.
fn mean_entries(run: &SearchRun, best: &BestDesign, objective: Objective, scope: &StepScope) -> Vec<ComparisonEntry> {
    let on_first = || best.models.first().into_iter().flat_map(|model| &model.comparison.entries);
    let value = |entry: &ComparisonEntry, means: Option<&MeanRatios>| {
        mean_value(objective, &DesignMeasures::from(entry).with_means(means?), scope)
    };
    let mut found = ComparisonEntry::from_design("best found", &best.design);
    let means = on_first().next().and_then(|entry| run.means_of_entry(best, &entry.label, scope));
    found.objective_value = value(&found, means.as_ref());
    let of_baseline = |entry: &ComparisonEntry| {
        let means = run.means_of_entry(best, &entry.label, scope);
        let chip = ComparisonEntry {
            chip: entry.chip.clone(),
            area_mm2: entry.area_mm2,
            ..ComparisonEntry::without_design(&entry.label)
        };
        ComparisonEntry {
            node: entry.node.clone(),
            peak_power_w: entry.peak_power_w,
            cost_usd: entry.cost_usd,
            system_usd: entry.system_usd,
            system_parts: entry.system_parts,
            stack: entry.stack.clone(),
            fabric: entry.fabric.clone(),
            port_gb_per_s: entry.port_gb_per_s,
            efficiency: entry.efficiency,
            baseline: entry.baseline.clone(),
            compared_with: entry.compared_with,
            times_reference: means.map(|means| means.times_reference),
            objective_value: value(entry, means.as_ref()),
            note: means.is_none().then(|| "has no plan for one of the models".to_owned()),
            ..chip
        }
    };
    std::iter::once(found).chain(on_first().skip(1).map(of_baseline)).collect()
}

/// Returns the value of an objective for means over several models: relative to the reference, and more is better.
/// `None` if a figure is not known.
fn mean_value(objective: Objective, means: &DesignMeasures, scope: &StepScope) -> Option<f64> {
    // Several models have a mean throughput but no mean step time, so throughput stands in for it.
    let by = if objective == Objective::StepTime { Objective::Throughput } else { objective };
    let quantity = FrontQuantity::from_name(&by.to_string())?;
    let value = quantity.value_of(means, scope)?;
    Some(if quantity.more_is_better() { value } else { 1.0 / value })
}

/// Compares the best designs and baselines of the runs; those of the first run come first. If a run has another model,
/// cluster, batch or objective, the comparison lists this difference, because its throughputs are for different work.
#[must_use]
pub fn compare_best_designs(runs: &[SearchRun]) -> Comparison {
    entries_of_one_model(runs).0
}

fn entries_of_one_model(runs: &[SearchRun]) -> (Comparison, Vec<usize>) {
    labelled_entries(runs, &|run| match (&run.record.comparison, &run.record.best) {
        (Some(comparison), _) => comparison.entries.clone(),
        // A stopped search has no comparison, so that its best design is the only entry.
        (None, Some(best)) => {
            let found = ComparisonEntry::from_design("best found", &best.design);
            let aim = aim_of_run(run);
            let is_rate = aim.objective.kind() == ObjectiveKind::Rate;
            vec![if is_rate { found } else { found.with_objective(&aim, run.record.study.devices as f64) }]
        }
        (None, None) => no_design_entry(),
    })
}

/// Returns the objective of a run, with the cost of operation.
fn aim_of_run(run: &SearchRun) -> Aim {
    let aim = &run.record.asked.aim;
    Aim { objective: aim.objective, operation: aim.operation, ..Aim::default() }
}

/// Returns the entries of each run, its best design first, with notes, and the positions of the best designs. All are
/// measured by the objective of the first run.
fn labelled_entries(runs: &[SearchRun], own: &dyn Fn(&SearchRun) -> Vec<ComparisonEntry>) -> (Comparison, Vec<usize>) {
    let first = runs.first();
    let of_first = first.map(aim_of_run).unwrap_or_default();
    let (mut entries, mut found) = (Vec::new(), Vec::new());
    for run in runs {
        let mut own = own(run);
        found.push(entries.len());
        if let (Some(first), Some(note)) = (own.first_mut(), unproven_note(&run.record.certificate)) {
            first.note = Some(first.note.take().map_or_else(|| note.clone(), |given| format!("{given}; {note}")));
        }
        for mut entry in own {
            // Means over several models are by the objective of the first run already.
            if aim_of_run(run) != of_first && entry.times_reference.is_none() {
                entry = entry.with_objective(&of_first, run.record.study.devices as f64);
            }
            if runs.len() > 1 {
                entry.label = format!("{}: {}", run.name, entry.label);
            }
            entries.push(entry);
        }
    }
    let difference = |run: &SearchRun| Some(format!("{} {}.", run.name, describe_difference(first?, run)?));
    let differences = runs.iter().filter_map(difference).collect();
    let alone = |run: &SearchRun| run.record.comparison.as_ref().and_then(|comparison| comparison.gain.clone());
    let gain = first.filter(|_| runs.len() == 1).and_then(alone);
    (Comparison { objective: of_first.objective, differences, entries, gain }.with_lead_intervals(), found)
}

/// Returns the note on a run whose best design is not proven to be the best. `None` if it is proven.
fn unproven_note(certificate: &Certificate) -> Option<String> {
    match (certificate.proof, certificate.gap) {
        (Proof::Proven, _) => None,
        (Proof::Gap, Some(gap)) => {
            Some(format!("not proven the best: another design may be better by up to {:.3} %", gap * 100.0))
        }
        (Proof::Gap, None) => Some("not proven the best: the search stopped before it had a bound".to_owned()),
        (Proof::Infeasible, _) => {
            Some(certificate.why.clone().unwrap_or_else(|| "no design of the space runs the model".to_owned()))
        }
    }
}

/// Describes the difference between the work of two runs; `None` if it is the same.
#[must_use]
pub fn describe_difference(first: &SearchRun, run: &SearchRun) -> Option<String> {
    let (a, b) = (&first.record.study, &run.record.study);
    let mut parts = Vec::new();
    if (&a.model, a.parameters, a.sequence_tokens) != (&b.model, b.parameters, b.sequence_tokens) {
        parts.push(format!("model {} with {} tokens per sequence", b.model, format_count(b.sequence_tokens)));
    }
    if (a.devices, &a.fabric) != (b.devices, &b.fabric) {
        parts.push(format!("{} x {}", format_count(b.devices), b.fabric));
    }
    if a.global_batch_sequences != b.global_batch_sequences {
        parts.push(format!("{} sequences per step", format_count(b.global_batch_sequences)));
    }
    if a.stack != b.stack {
        parts.push(format!("under the stack {}", b.stack));
    }
    if a.plans != b.plans {
        parts.push(format!("plans: {}", b.plans));
    }
    let efficiency = |run: &SearchRun| Some(ChipEfficiency::from(run.record.asked.space()?.efficiency()));
    if let (Some(one), Some(other)) = (efficiency(first), efficiency(run))
        && one != other
    {
        parts.push(format!("chips of {other} efficiency, not {one}"));
    }
    if a.objective != b.objective {
        let cure = "name that run first to compare by it";
        parts.push(format!("searched for {}, but compared by {} here ({cure})", b.objective, a.objective));
    }
    (!parts.is_empty()).then(|| format!("differs from the first run: {}", parts.join(", ")))
}

/// Rescales the rates of runs of several models to the reference of the first such run. Runs of a single model stay
/// unchanged.
///
/// # Errors
/// Runs of one model beside runs of several, or runs with different models, weights or means, because their rates have
/// no common scale. The message names the runs and gives advice.
pub fn rescale_to_first_reference(runs: &mut [SearchRun]) -> Result<(), String> {
    let Some(several) = runs.iter().find(|run| run.of_several_models()) else { return Ok(()) };
    let of = |run: &SearchRun| format!("{} (of {})", run.name, run.record.study.model);
    if let Some(alone) = runs.iter().find(|run| !run.of_several_models()) {
        return Err(format!(
            "{} is a run of several models and {} of one: their rates have different units; give runs of one model \
            each, or runs of the same models; coplace evaluate MODEL --chip {} has one model's rate on its chip",
            of(several),
            of(alone),
            several.name,
        ));
    }
    let Some(first) = runs.iter().find(|run| !run.models().is_empty()).cloned() else { return Ok(()) };
    let asked = |run: &SearchRun| {
        let models = run.models().iter().map(|model| (model.model.clone(), format!("{:.9}", model.share)));
        (run.scoring_over_models(), models.collect::<Vec<_>>())
    };
    for run in runs.iter_mut().filter(|run| !run.models().is_empty()) {
        if asked(run) != asked(&first) {
            return Err(format!(
                "{} and {} differ in models, shares or mean ({}, {}): their rates have no common scale; give runs of \
                the same models in the same order, with the same weights and the same --over",
                of(&first),
                of(run),
                first.scoring_over_models(),
                run.scoring_over_models(),
            ));
        }
        rescale_run(run, &first)?;
    }
    Ok(())
}

/// Rescales a run's rates to the reference of another run of the same models. Fails if the reference rates differ and
/// the mean is arithmetic.
fn rescale_run(run: &mut SearchRun, first: &SearchRun) -> Result<(), String> {
    let pairs: Vec<(&ModelPlan, &ModelPlan)> = run.models().iter().zip(first.models()).collect();
    // Equal references give equal values up to rounding.
    let same = |(own, other): &(&ModelPlan, &ModelPlan)| {
        (own.reference_tokens_per_s / other.reference_tokens_per_s - 1.0).abs() < 1e-9
    };
    if pairs.iter().all(same) {
        return Ok(());
    }
    if run.scoring_over_models() == MeasureMean::Mean {
        return Err(format!(
            "{} and {} use different reference rates ({}, {}), and arithmetic means over them cannot be converted; \
             search with --over geomean, or with the same space.reference_chip, cluster and stack",
            first.name, run.name, first.record.study.reference_chip, run.record.study.reference_chip
        ));
    }
    let mean = |of: &dyn Fn(&ModelPlan, &ModelPlan) -> Option<f64>| {
        let logarithms: Option<f64> = pairs.iter().map(|(own, other)| Some(own.share * of(own, other)?.ln())).sum();
        logarithms.map(f64::exp)
    };
    let rate = mean(&|own, other| Some(own.reference_tokens_per_s / other.reference_tokens_per_s));
    let joules = |model: &ModelPlan| {
        Some(model.reference_energy_per_step_j? / model.global_batch_sequences as f64 / model.sequence_tokens as f64)
    };
    let energy = mean(&|own, other| Some(joules(own)? / joules(other)?));
    let times =
        |value: &mut Option<f64>, factor: Option<f64>| *value = value.zip(factor).map(|(value, factor)| value * factor);
    let best = run.record.best.as_mut().map(|best| &mut best.design);
    for row in run.designs.iter_mut().chain(best) {
        times(&mut row.times_reference, rate);
        times(&mut row.times_reference_per_usd, rate);
        times(&mut row.energy_times_reference, energy);
    }
    for (own, other) in run.record.best.iter_mut().flat_map(|best| &mut best.models).zip(first.models()) {
        own.times_reference *= own.reference_tokens_per_s / other.reference_tokens_per_s;
        own.reference_tokens_per_s = other.reference_tokens_per_s;
        let tokens = (own.global_batch_sequences * own.sequence_tokens) as f64;
        own.reference_energy_per_step_j = joules(other).map(|joules| joules * tokens);
    }
    Ok(())
}
