//! The answer for each case of a question about deployments.

use super::loaded::{LoadedDeployment, deploy};
use super::space::SpaceAnswer;
use super::{baselines, method, refusal, space};
use crate::call::Call;
use crate::failure::Failure;
use results::answer::serving::ServingReport;
use results::run::search_run::FoundFiles;
use search::ask::DeploymentCase;
use search::serve::figures_of_built_chip;
use search::space::ChipFigures;
use serving::best::{ReplicaPool, ServingQuestion};
use sim::hardware::Accelerator;
use sim::network::Fabric;
use std::collections::BTreeMap;

/// The answer for a case.
pub struct PricedCase {
    /// Every deployment, the best first.
    pub report: ServingReport,
    /// The chip that was found in a space.
    pub found: FoundFiles,
}

/// The answer for a case, or the reason why no plan serves.
pub enum CaseOutcome {
    Served(Box<PricedCase>),
    Refused(Failure),
}

/// Prices every plan of a case.
pub fn price_case(loaded: &LoadedDeployment<'_>, case: &DeploymentCase, call: &Call) -> Result<CaseOutcome, Failure> {
    let asked = loaded.question();
    let question = loaded.question_of_case(case)?;
    let sides = loaded.sides();
    let mut answers = deploy(&question, asked.pools, &sides);
    let found = match &asked.study {
        Some(study) => match space::search_space(loaded, study, &question, call)? {
            Ok(found) => Some(found),
            Err(refused) => return Ok(CaseOutcome::Refused(refused)),
        },
        None => None,
    };
    let figures = figures_by_name(&loaded.hardware, found.as_ref());
    let figures = |pool: &ReplicaPool| figures.get(&pool.chip).copied();
    let (space, baselines, files) = match found {
        Some(SpaceAnswer { answers: of_space, record, efficiency, found, .. }) => {
            answers.extend(of_space);
            (Some(record), baselines::price_baselines(loaded, &question, efficiency), found)
        }
        None => (None, Vec::new(), FoundFiles::default()),
    };
    let head = ServingReport {
        model: asked.model.clone(),
        engine: loaded.engine.name.clone(),
        devices: asked.devices,
        lengths: case.lengths.clone(),
        ttft_limit_ms: case.ttft_ms,
        tpot_limit_ms: case.tpot_ms,
        method: {
            let best = answers.iter().flat_map(|answer| answer.deployments.first());
            let best = best.max_by(|a, b| a.tokens_per_second.total_cmp(&b.tokens_per_second));
            method::record_of_method(&asked.method, &loaded.model, &question, best, &sides)
        },
        assumptions: loaded.assumptions(),
        objective: loaded.objective.to_string(),
        unit: loaded.objective.unit().to_owned(),
        choices: Vec::new(),
        plans: 0,
        refused: 0,
        nearest_refusal: None,
        beside: None,
        space,
        baselines,
    };
    let report = ServingReport::of_answers(head, &answers, &question.level, loaded.objective, &figures);
    let Some(best) = report.choices.first() else {
        return Ok(CaseOutcome::Refused(refusal::nothing_serves(loaded, &question, &answers)));
    };
    refusal::check_value(best, &report.objective)?;
    warn_of_long_requests(loaded, &question);
    Ok(CaseOutcome::Served(Box::new(PricedCase { report, found: files })))
}

/// Warns of requests that are longer than the model was made for. Prompts that are merged from chunks only use the
/// positions of one chunk.
fn warn_of_long_requests(loaded: &LoadedDeployment<'_>, question: &ServingQuestion<'_>) {
    let (longest, positions) = (question.lengths.longest(), loaded.model.max_sequence);
    if longest > positions && question.method.merged().is_none() {
        tracing::warn!(
            "requests have up to {longest} tokens; {} was made for {positions}: its answers may be worse, its times \
            are those of the longer requests",
            loaded.question().model,
        );
    }
}

/// Returns the figures of given chips and of those of a space. Chips with undisclosed dies have none.
fn figures_by_name(given: &[(Accelerator, Fabric)], found: Option<&SpaceAnswer>) -> BTreeMap<String, ChipFigures> {
    let given = given.iter().filter_map(|(chip, _)| Some((chip.name.clone(), figures_of_built_chip(chip)?)));
    let of_space = found.into_iter().flat_map(|found| &found.figures);
    given.chain(of_space.map(|(name, figures)| (name.clone(), *figures))).collect()
}
