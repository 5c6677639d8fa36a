//! `coplace explain`: explains why a run's design is the best, and which changes would matter.

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrOther};
use crate::progress;
use crate::verb::job::count_up_to;
use crate::verb::job::run::run_path;
use crate::verb::search::question::SearchQuestion;
use crate::verb::search::{PlannedModel, SearchRequest, find_slower_clock, models};
use crate::verb::serve::explain::{NamedAlternatives, explain_serving};
use rayon::prelude::*;
use results::answer::step::StepRecord;
use results::report;
use results::run::explanation::{
    self, DesignExplanation, DimensionStepRow, ExplainedDesign, LimitUse, ModelExplanation, ModelOnDesign,
    ResourceValue,
};
use results::run::record::BestDesign;
use results::run::search_run;
use results::run::serving::ServingRun;
use results::store::design::DesignRow;
use search::design::{DesignEvaluation, ReferenceStep, best_plan};
use search::planner::{PreparedJob, RankedPlan};
use search::sensitivity::{DimensionStep, Marginal, marginal_resources, single_steps};
use search::space::{
    ChipFigures, Chips, Combination, CombinationChip, ListedDimension, OutsideReason, combination_of_places,
};
use search::sweep::Sweep;
use serving::best::GivenDegrees;
use sim::hardware::lower_clock;
use std::path::PathBuf;

/// Explain why a run's design or deployment is the best: its bottleneck, and what its neighbours or alternatives give
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  coplace explain runs/llama2-7b-smoke\n  \
    coplace explain runs/serve --chip h200,b200 --tensor 2\n\n\
    A search or a sweep: the design's bottleneck, one step along each dimension, and a tenth more of each\n\
    resource, each under its own best plan. A run of serve: every chip and every plan at its own highest rate\n\
    with what binds it, the named ones too, and each limit looser by a tenth.\n\n\
    JSON: format, run, best, objective, value, unit, gain_unit, limits, time_shares, slowest_stage, kernels,\n\
    steps, worth, all by the run's objective. For several models `value`, `steps` and `worth` are over all of\n\
    them, and `models` has each. Of a run of serve: format, run, case, unit,\n\
    best, binds, chips, plans, looser.")]
pub struct ExplainArguments {
    /// Directory of a search, a sweep, or a run of serve
    #[arg(value_parser = run_path())]
    run: PathBuf,
    /// Further chips beside those of a run of serve, built in or files, with commas between
    #[arg(long, value_delimiter = ',', value_name = "CHIP")]
    chip: Vec<String>,
    /// Show the plans of a run of serve with this number of devices that split every layer
    #[arg(long, value_name = "T", value_parser = count_up_to(1 << 16))]
    tensor: Option<u32>,
    /// Show the plans of a run of serve with this number of stages
    #[arg(long, value_name = "P", value_parser = count_up_to(1 << 16))]
    pipeline: Option<u32>,
    /// Show the plans of a run of serve with this number of groups that attend for sequences of their own
    #[arg(long, value_name = "D", value_parser = count_up_to(1 << 16))]
    attention_data: Option<u32>,
    /// Show the plans of a run of serve with this number of parts that hold whole experts
    #[arg(long, value_name = "E", value_parser = count_up_to(1 << 16))]
    expert: Option<u32>,
    /// Show the plans of a run of serve with this number of devices that share the tokens of a sequence
    #[arg(long, visible_alias = "dcp", value_name = "C", value_parser = count_up_to(1 << 16))]
    context_parallel: Option<u32>,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl ExplainArguments {
    fn named_alternatives(&self) -> NamedAlternatives {
        let degrees = GivenDegrees {
            tensor: self.tensor,
            pipeline: self.pipeline,
            attention_data: self.attention_data,
            expert: self.expert,
            context: self.context_parallel,
        };
        NamedAlternatives { chips: self.chip.clone(), degrees }
    }
}

/// Runs the verb: reads a run, asks its question again, and evaluates the neighbours of its best design.
pub fn run_explain(arguments: &ExplainArguments, call: &Call) -> Result<(), Failure> {
    let name = arguments.run.display().to_string();
    let named = arguments.named_alternatives();
    if ServingRun::is_in(&arguments.run) {
        let explained = explain_serving(&arguments.run, &named, call)?;
        return answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&explained), |_| {
            report::serving_explanation(&explained)
        });
    }
    if !named.chips.is_empty() || named.degrees != GivenDegrees::default() {
        let limit = "chips and degrees are named for runs of serve, and this is a run of search or sweep";
        let cure = format!("leave them out; coplace plan --chip {name} explains plans of the found chip");
        return Err(failure::file_failure(&name, limit, cure));
    }
    let record = search_run::read_record(&arguments.run).or_input()?;
    let refused = |why: &str| failure::file_failure(&name, why, "");
    let best = record
        .best
        .as_ref()
        .ok_or_else(|| refused("found no design that runs the model; there is nothing to explain"))?;
    let question = SearchQuestion::load_again(record.asked.clone())?
        .with_clocks_lowered_to(record.lowered_to_w, &SearchRequest::default())?;
    let asked = record.lowered_to_w.map(|_| SearchQuestion::load_again(record.asked.clone())).transpose()?;
    if question.digest_of_question(record.seed) != record.question {
        let cure = "built-in files that it names have changed; run it again";
        return Err(refused(&format!("answers a question that means something else by now: {cure}")));
    }
    let jobs = models::jobs_of_models(&question);
    let prepared = models::prepare_models(&question, &jobs)?;
    let asked_jobs = asked.as_ref().map(models::jobs_of_models).unwrap_or_default();
    let asked_prepared = match &asked {
        Some(asked) => models::prepare_models(asked, &asked_jobs)?,
        None => Vec::new(),
    };
    let references = models::reference_steps(&question)?;
    let found =
        find_combination(&question, &best.design).ok_or_else(|| refused("its best design is none of the study's"))?;
    let about = BestDesignContext {
        question: &question,
        prepared: &prepared,
        asked: asked.as_ref().map(|question| AskedLimits { question, prepared: &asked_prepared }),
        references: &references,
        best,
        combination: found,
    };
    let explained =
        progress::run_with_progress(call, "planning for the designs around the best", || about.explain_design(name))?;
    answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&explained), |_| {
        let predicted = "\nThe search ranked designs by the bad end of their steps' 90 % intervals; the figures here \
            are for predicted steps.\n";
        format!(
            "{}{}",
            explanation::explanation_text(&explained),
            if record.certificate.robust { predicted } else { "" }
        )
    })
}

/// Returns the number of the combination with a design's values; `None` if the space has none.
fn find_combination(question: &SearchQuestion, design: &DesignRow) -> Option<u64> {
    let dials = question.space.listed_dimensions();
    let phaze = [
        ("tensor_cores", design.tensor_cores as f64),
        ("vector_cores", design.vector_cores as f64),
        ("array_widths", design.array_width as f64),
        ("array_depths", design.array_depth as f64),
        ("global_buffer_mib", design.global_buffer_mib),
        ("hbm_gib", design.hbm_gib),
    ];
    let words: Vec<&str> = design.dimensions.as_deref().unwrap_or_default().split(", ").collect();
    let place = |dial: &ListedDimension| match &question.study.space.chips {
        Chips::Phaze(_) => {
            let value = phaze.iter().find(|(key, _)| *key == dial.key)?.1;
            dial.values.iter().position(|listed| listed.number() == Some(value))
        }
        Chips::Grid(_) if dial.values.len() == 1 => Some(0),
        Chips::Grid(_) => {
            let is = |value: &sim::hardware::FieldValue| words.contains(&format!("{} {value}", dial.key).as_str());
            dial.values.iter().position(is)
        }
    };
    let places = dials.iter().map(place).collect::<Option<Vec<usize>>>()?;
    Some(combination_of_places(&dials, &places))
}

/// A question under the limits that the user asked for.
struct AskedLimits<'a> {
    question: &'a SearchQuestion,
    /// As in [`BestDesignContext`].
    prepared: &'a [Vec<PreparedJob<'a>>],
}

impl AskedLimits<'_> {
    /// The designs one step around a combination, per model. The limit that the search chose suits the best design, and
    /// other chips have other best clocks: each is taken at its own.
    fn steps_at_own_clocks(&self, combination: u64) -> Result<Vec<Vec<DimensionStep>>, Failure> {
        let mut around = steps_around(self.question, self.prepared, combination)?;
        let count = around.first().map_or(0, Vec::len);
        let settled: Vec<Option<SettledStep>> =
            (0..count).into_par_iter().with_max_len(1).map(|at| self.settle_clock(&around, at)).collect();
        for (at, settled) in settled.into_iter().enumerate() {
            let Some(SettledStep { built, evaluations }) = settled else { continue };
            for (steps, evaluation) in around.iter_mut().zip(evaluations) {
                steps[at].set_evaluation(built.clone(), evaluation);
            }
        }
        Ok(around)
    }

    /// A step's chip at the clock at which its own plans cost least, with its plans there. `None` if that is its clock,
    /// if a model has no plan on it, or if it exceeds the limit of power at its lowest clock.
    fn settle_clock(&self, around: &[Vec<DimensionStep>], at: usize) -> Option<SettledStep> {
        let built = around.first()?[at].built_chip()?;
        if around[0][at].exceeds.contains(&OutsideReason::Power) {
            return None;
        }
        let jobs: Vec<&PreparedJob<'_>> =
            self.prepared.iter().map(|prepared| prepared.get(built.fabric?)).collect::<Option<_>>()?;
        let models = self.question.all_models().zip(&jobs).zip(around).map(|((of, prepared), steps)| {
            let ranked: &RankedPlan = steps[at].evaluation_of_step()?.outcome.as_ref().ok()?;
            Some(PlannedModel { job: prepared.job(&built.chip), ranked, share: self.question.share_of_model(of) })
        });
        let slower = find_slower_clock(&self.question.aim, &models.collect::<Option<Vec<_>>>()?)?;
        let chip = lower_clock(&built.chip, slower.clock);
        let evaluations = jobs.iter().map(|prepared| best_plan(prepared, &chip)).collect();
        let figures = ChipFigures { peak_power: slower.power, ..built.figures };
        Some(SettledStep { built: CombinationChip { chip, figures, fabric: built.fabric }, evaluations })
    }
}

/// A step's chip at its own best clock, with the evaluation of each model.
struct SettledStep {
    built: CombinationChip,
    evaluations: Vec<DesignEvaluation>,
}

/// The designs one step around a combination, per model.
fn steps_around(
    question: &SearchQuestion,
    prepared: &[Vec<PreparedJob<'_>>],
    combination: u64,
) -> Result<Vec<Vec<DimensionStep>>, Failure> {
    let of_model = |prepared: &Vec<PreparedJob<'_>>| {
        let sweep = Sweep { prepared, space: &question.space, max_step: None };
        let mut steps = single_steps(&sweep, combination).map_err(|why| Failure::Other(anyhow::anyhow!(why)))?;
        steps.iter_mut().for_each(|step| step.count_system(&question.aim, prepared));
        Ok(steps)
    };
    prepared.iter().map(of_model).collect()
}

/// Replaces each step by the other one of its place where that is better. Plans that are best at another clock may make
/// the search's own limit the better one.
fn keep_better_steps(subject: &ExplainedDesign, around: &mut [Vec<DimensionStep>], others: &[Vec<DimensionStep>]) {
    let gain = |around: &[Vec<DimensionStep>], at: usize| {
        let of_models: Vec<&DimensionStep> = around.iter().filter_map(|of| of.get(at)).collect();
        let row = subject.step_row(&of_models);
        row.and_then(|row| Some((row.exceeds.is_empty(), row.change?))).unwrap_or((false, f64::NEG_INFINITY))
    };
    for at in 0..around.first().map_or(0, Vec::len) {
        if gain(others, at) > gain(around, at) {
            for (steps, other) in around.iter_mut().zip(others) {
                steps[at].clone_from(&other[at]);
            }
        }
    }
}

/// Returns the value of a tenth more of each resource, over all models. `more` has the resources for each model.
fn value_resources(subject: &ExplainedDesign, more: &[Vec<Marginal>]) -> Vec<ResourceValue> {
    let of_models = |first: &Marginal| {
        more.iter().filter_map(|of| of.iter().find(|own| own.resource == first.resource)).collect::<Vec<_>>()
    };
    more[0].iter().filter_map(|first| subject.value_of_resource(&of_models(first))).collect()
}

/// The best design, with the models and the space of its question.
struct BestDesignContext<'a> {
    question: &'a SearchQuestion,
    /// Per model, the prepared job on each fabric of the space.
    prepared: &'a [Vec<PreparedJob<'a>>],
    /// The limits that the user asked for, if the search chose a lower limit of power for its chips.
    asked: Option<AskedLimits<'a>>,
    references: &'a [ReferenceStep],
    best: &'a BestDesign,
    combination: u64,
}

impl BestDesignContext<'_> {
    fn explain_design(&self, run: String) -> Result<DesignExplanation, Failure> {
        let other = |why: String| Failure::Other(anyhow::anyhow!(why));
        let built = self.build_chip().map_err(other)?;
        let records: Vec<&StepRecord> = match &self.best.models[..] {
            [] => vec![&self.best.step],
            several => several.iter().map(|of| &of.step).collect(),
        };
        let (mut runs, mut more) = (Vec::new(), Vec::new());
        let mut around = steps_around(self.question, self.prepared, self.combination)?;
        for (((of, prepared), reference), step) in
            self.question.all_models().zip(self.prepared).zip(self.references).zip(&records)
        {
            let own = built.fabric.and_then(|fabric| prepared.get(fabric)).ok_or_else(|| other("no fabric".into()))?;
            let share = self.question.share_of_model(of);
            runs.push(ModelOnDesign::from_job(&own.job(&built.chip), step, share, *reference));
            more.push(marginal_resources(own, &of.study.plan.choices, &built.chip).or_other()?);
        }
        if runs.len() != records.len() {
            return Err(other("the run has other models than its question".into()));
        }
        let subject = ExplainedDesign { figures: built.figures, aim: self.question.aim, models: runs };
        let no_price = || other("the best design has no price, which its objective needs".into());
        let valued = subject.objective_value().ok_or_else(no_price)?;
        if let Some(asked) = &self.asked {
            keep_better_steps(&subject, &mut around, &asked.steps_at_own_clocks(self.combination)?);
        }
        let each = |model: usize, (of, step): (&SearchQuestion, &&StepRecord)| {
            let alone = subject.alone_with_model(model);
            Some(ModelExplanation {
                valued: alone.objective_value()?,
                model: of.called.clone(),
                sequence_tokens: of.sequence_length,
                share: self.question.share_of_model(of),
                binds: subject.step_bottlenecks(model, step),
                steps: around[model].iter().filter_map(|step| alone.step_row(&[step])).collect(),
                worth: more[model].iter().filter_map(|marginal| alone.value_of_resource(&[marginal])).collect(),
            })
        };
        let several = records.len() > 1;
        let models = self.question.all_models().zip(&records).enumerate().filter_map(|(model, of)| each(model, of));
        Ok(DesignExplanation {
            lowered_to_w: self.question.study.space.limits.lower_to_w,
            run,
            best: self.best.design.clone(),
            limits: self.limit_uses(&built),
            valued,
            binds: (!several).then(|| subject.step_bottlenecks(0, records[0])),
            steps: self.list_steps(&subject, &around),
            worth: value_resources(&subject, &more),
            models: if several { models.collect() } else { Vec::new() },
        })
    }

    /// Builds the best design's chip, with the price of the system around it where the objective counts that.
    fn build_chip(&self) -> Result<CombinationChip, String> {
        let Combination::Chip(mut built) = self.question.space.combination_at(self.combination)? else {
            return Err(format!("design {} is outside its limits", self.combination));
        };
        if let Some(prepared) = self.prepared.first() {
            built.count_system(&self.question.aim, prepared);
        }
        Ok(*built)
    }

    /// Returns the steps along each dimension, over all models. `around` has the same steps for each model.
    fn list_steps(&self, subject: &ExplainedDesign, around: &[Vec<DimensionStep>]) -> Vec<DimensionStepRow> {
        let same = |at: usize| around.iter().filter_map(|of| of.get(at)).collect::<Vec<_>>();
        let with_follow = |row: DimensionStepRow| DimensionStepRow {
            follow: self.question.space.fields_that_follow(&row.dimension),
            ..row
        };
        (0..around[0].len()).filter_map(|at| subject.step_row(&same(at))).map(with_follow).collect()
    }

    fn limit_uses(&self, built: &CombinationChip) -> Vec<LimitUse> {
        let (space, figures) = (&self.question.space, built.figures);
        let limits = &self.question.study.space.limits;
        let all = [
            ("area", Some(figures.area.0), space.max_area.map(|most| most.0), "mm²"),
            ("power", Some(figures.peak_power.0), limits.most_power().map(|most| most.0), "W"),
            ("cost", figures.cost_usd, limits.max_cost_usd, "USD"),
            ("memory", self.best.design.peak_memory_gib, Some(self.best.step.capacity_gib), "GiB"),
        ];
        let limit = |(name, uses, allowed, unit)| Some(LimitUse { name, uses: uses?, allowed: allowed?, unit });
        all.into_iter().filter_map(limit).collect()
    }
}
