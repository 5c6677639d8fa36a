//! `coplace explain`: why a run's design is the best, and what would change it.

use crate::answer::{self, Format, Versioned};
use crate::failure::{self, Failure, OrInput, OrOther};
use crate::input;
use crate::progress;
use crate::verb::merge::asked_again;
use crate::verb::search::models;
use crate::verb::search::question::Question;
use results::design::DesignRow;
use results::explained::{self, Binds, Explained, Limit, OfModel, Runs, Subject};
use results::record::BestDesign;
use results::run;
use results::step_record::StepRecord;
use search::design::Reference;
use search::objective::Term;
use search::planner::Prepared;
use search::sensitivity::{Marginal, marginals, steps};
use search::space::{Built, Chips, Combination, Dial, Space, number};
use search::sweep::Sweep;
use std::path::PathBuf;

/// Explain why a run's design is the best: what binds it, what one step along each dimension changes, what a little more is worth
#[derive(clap::Args)]
#[command(after_help = "Example:\n  coplace explain runs/llama2-7b-smoke\n\n\
    Each step and each tenth more has its own best plan. JSON: format, run, best, limits, time_shares, slowest_stage, kernels, steps, worth; of several models `steps` and\n\
    `worth` are over all of them, and `models` has each.")]
pub struct Arguments {
    /// Directory of a search or a sweep
    run: PathBuf,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Reads a run, asks its question again, looks around its best design.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let name = arguments.run.display().to_string();
    let record = run::record(&arguments.run).or_input()?;
    let refused = |why: &str| failure::input(format!("{name}: {why}"));
    let best = record.best.as_ref().ok_or_else(|| refused("found no design that runs the model; there is nothing to explain"))?;
    if record.asked_with.is_empty() {
        return Err(refused("does not say with which words it was asked (an older version wrote it); run the search again"));
    }
    input::keep_of_run(&arguments.run, &[])?;
    let posed = asked_again(&record.asked_with)?;
    let question = Question::read(&posed)?;
    if question.digest(record.seed) != record.question {
        let asked = record.asked_with.join(" ");
        let cure = "put back the study and the files that it names as they were, or run it again";
        return Err(refused(&format!("was asked `{asked}`, which asks something else by now; {cure}")));
    }
    let jobs = models::jobs(&question);
    let prepared = models::prepare_all(&question, &jobs)?;
    let references = models::references(&question)?;
    let found = combination(&question, &best.design).ok_or_else(|| refused("its best design is none of the study's"))?;
    let about = About { question: &question, prepared: &prepared, references: &references, best, combination: found };
    let explained = progress::shown("planning for the designs around the best", || about.explained(name))?;
    answer::give(arguments.format, &Versioned::first(&explained), |_| {
        let predicted = "\nThe search ranked designs by the bad end of their steps' 90 % intervals; what is said here is of predicted steps.\n";
        format!("{}{}", explained::words(&explained), if record.certificate.robust { predicted } else { "" })
    })
}

/// The number of a design's combination, by its values.
fn combination(question: &Question, design: &DesignRow) -> Option<u64> {
    let dials = question.space.dials();
    let phaze = [
        ("tensor_cores", design.tensor_cores as f64),
        ("vector_cores", design.vector_cores as f64),
        ("array_widths", design.array_width as f64),
        ("array_depths", design.array_depth as f64),
        ("global_buffer_mib", design.global_buffer_mib),
        ("hbm_gib", design.hbm_gib),
    ];
    let words: Vec<&str> = design.dimensions.as_deref().unwrap_or_default().split(", ").collect();
    let place = |dial: &Dial| match &question.study.space.chips {
        Chips::Phaze(_) => {
            let value = phaze.iter().find(|(key, _)| *key == dial.key)?.1;
            dial.values.iter().position(|listed| listed.number() == Some(value))
        }
        Chips::Grid(_) if dial.values.len() == 1 => Some(0),
        Chips::Grid(_) => {
            let is = |value: &sim::hardware::Setting| words.contains(&format!("{} {value}", dial.key).as_str());
            dial.values.iter().position(is)
        }
    };
    let places = dials.iter().map(place).collect::<Option<Vec<usize>>>()?;
    Some(number(&dials, &places))
}

/// The best design of a question.
struct About<'a> {
    question: &'a Question,
    /// By model, on each of the space's fabrics.
    prepared: &'a [Vec<Prepared<'a>>],
    references: &'a [Reference],
    best: &'a BestDesign,
    combination: u64,
}

impl About<'_> {
    fn explained(&self, run: String) -> Result<Explained, Failure> {
        let space: &Space = &self.question.space;
        let other = |why: String| Failure::Other(anyhow::anyhow!(why));
        let Combination::Chip(built) = space.combination(self.combination).map_err(other)? else {
            return Err(other(format!("design {} is outside its limits", self.combination)));
        };
        let records: Vec<&StepRecord> = match &self.best.models[..] {
            [] => vec![&self.best.step],
            several => several.iter().map(|of| &of.step).collect(),
        };
        let (mut runs, mut around, mut more) = (Vec::new(), Vec::new(), Vec::new());
        for (((of, prepared), reference), step) in self.question.all().zip(self.prepared).zip(self.references).zip(&records) {
            let own = built.fabric.and_then(|fabric| prepared.get(fabric)).ok_or_else(|| other("no fabric".into()))?;
            let term = Term { share: self.question.share(of), reference: reference.time.0 };
            runs.push(Runs::new(&own.job(&built.chip), step.time.step_s, term));
            around.push(steps(&Sweep { prepared, space, max_step: None }, self.combination).map_err(other)?);
            more.push(marginals(own, &of.study.plan.space(), &built.chip).or_other()?);
        }
        if runs.len() != records.len() {
            return Err(other("the run has other models than its question".into()));
        }
        let subject = Subject { figures: built.figures, over: self.question.aim.over, models: runs };
        let each = |model: usize, (of, step): (&Question, &&StepRecord)| {
            let alone = subject.alone(model);
            OfModel {
                model: of.called.clone(),
                sequence_tokens: of.sequence_length,
                share: self.question.share(of),
                binds: binds(step),
                steps: around[model].iter().filter_map(|step| alone.step(&[step])).collect(),
                worth: more[model].iter().filter_map(|marginal| alone.worth(&[marginal])).collect(),
            }
        };
        let several = records.len() > 1;
        let models = self.question.all().zip(&records).enumerate().map(|(model, of)| each(model, of));
        let same = |at: usize| around.iter().filter_map(|of| of.get(at)).collect::<Vec<_>>();
        let resource = |first: &Marginal| {
            more.iter().filter_map(|of| of.iter().find(|own| own.resource == first.resource)).collect::<Vec<_>>()
        };
        Ok(Explained {
            run,
            best: self.best.design.clone(),
            limits: self.limits(&built),
            binds: (!several).then(|| binds(records[0])),
            steps: (0..around[0].len()).filter_map(|at| subject.step(&same(at))).collect(),
            worth: more[0].iter().filter_map(|first| subject.worth(&resource(first))).collect(),
            models: if several { models.collect() } else { Vec::new() },
        })
    }

    fn limits(&self, built: &Built) -> Vec<Limit> {
        let (space, figures) = (&self.question.space, built.figures);
        let limits = &self.question.study.space.limits;
        let all = [
            ("area", Some(figures.area.0), space.max_area.map(|most| most.0), "mm²"),
            ("power", Some(figures.peak_power.0), limits.max_power_w, "W"),
            ("cost", figures.cost_usd, limits.max_cost_usd, "USD"),
            ("memory", self.best.design.peak_memory_gib, Some(self.best.step.capacity_gib), "GiB"),
        ];
        let limit = |(name, uses, allowed, unit)| Some(Limit { name, uses: uses?, allowed: allowed?, unit });
        all.into_iter().filter_map(limit).collect()
    }
}

/// What binds a model's step.
fn binds(step: &StepRecord) -> Binds {
    Binds { time_shares: step.time_shares.clone(), slowest_stage: step.slowest_stage, kernels: explained::kernels(step) }
}
