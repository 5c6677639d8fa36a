//! Explains why a run of `coplace serve` chose its deployment. The same search finds every chip and every plan at its
//! own highest rate.

use super::loaded::{LoadedDeployment, deploy};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput};
use crate::progress;
use results::answer::serving::{ServingChoice, describe_refusal};
use results::answer::serving_explanation::{ExplainedAlternative, LooserLimit, ServingExplanation};
use results::run::search_run::{CHIP, FABRIC};
use results::run::serving::{ServedCase, ServingRun};
use results::text::{format_count, format_significant};
use search::ask::{DeploymentCase, DeploymentQuestion, ServedPools};
use search::serve::figures_of_built_chip;
use search::study::Study;
use serving::best::{
    self, Deployment, GivenDegrees, ReplicaPool, ServiceLevel, ServingAnswer, ServingBound, ServingHardware,
    ServingQuestion, enumerate_plans,
};
use serving::nearest::nearest_refusal;
use sim::units::{Seconds, Watts};
use std::path::Path;

/// Factor by which a limit is looser.
const LOOSER: f64 = 1.1;
/// The largest accepted difference between the record's best value and the value that is found again, as a fraction.
const SAME: f64 = 1e-6;

/// Chips and degrees that the call names.
#[derive(Debug, Clone, Default)]
pub struct NamedAlternatives {
    pub chips: Vec<String>,
    pub degrees: GivenDegrees,
}

/// Explains the run in a directory.
pub fn explain_serving(
    directory: &Path,
    named: &NamedAlternatives,
    call: &Call,
) -> Result<ServingExplanation, Failure> {
    let name = directory.display().to_string();
    let run = ServingRun::read_from(directory).or_input()?;
    let refused = |why: &str, cure: &str| failure::file_failure(&name, why, cure);
    let [ServedCase { answer: Some(answer), .. }] = &run.record.cases[..] else {
        let cure = "run serve with one --input, --output, --ttft and --tpot, and explain that run";
        return Err(refused("has answers for several lengths or limits", cure));
    };
    let best = answer.choices.first().ok_or_else(|| refused("has no deployment", "run serve again"))?;
    let (asked, power) = question_of_found(&run, directory)?;
    let loaded = LoadedDeployment::load(&asked)?;
    if asked.count_cases() > 1 {
        return Err(refused("asks for other lengths or limits than it answers", "run serve again"));
    }
    let cases = loaded.question().list_cases();
    let case = cases.first().ok_or_else(|| refused("has no lengths", "run serve again"))?;
    let mut question = loaded.question_of_case(case)?;
    question.power_limit = power;
    let about = ExplainedRun { loaded: &loaded, question: &question, best };
    progress::run_with_progress(call, "pricing every plan", || {
        let chips = about.explain_chips(&named.chips)?;
        let again = chips.iter().filter_map(|chip| chip.value).fold(0.0, f64::max);
        if chips.iter().all(|chip| !chip.named) && best.value.is_none_or(|value| (again / value - 1.0).abs() > SAME) {
            let limit = "answers a question that means something else by now";
            return Err(refused(limit, "built-in files that it names have changed; run it again"));
        }
        Ok(ServingExplanation {
            run: name.clone(),
            case: run.record.cases.first().map_or_else(String::new, ServedCase::words),
            unit: answer.unit.clone(),
            best: best.clone(),
            binds: words_of_bound(best, case),
            chips,
            plans: about.explain_plans(named.degrees)?,
            looser: about.price_looser_limits(case),
        })
    })
}

/// Returns the question of a run, with the found chip in place of the study's space, and the study's limit on power.
fn question_of_found(run: &ServingRun, directory: &Path) -> Result<(DeploymentQuestion, Option<Watts>), Failure> {
    let asked = run.record.asked.clone();
    let Some(name) = &asked.study else { return Ok((asked, None)) };
    let study = Study::load_from(name, &asked.files).or_input()?;
    let [chip, fabric] = [CHIP, FABRIC].map(|file| directory.join(file));
    if !chip.is_file() {
        return Err(failure::file_failure(
            directory.display(),
            "has no best.toml: its pools are apart, each with a chip of its own",
            "run serve with --pools together, and explain that run",
        ));
    }
    let fabric = if fabric.is_file() { fabric.display().to_string() } else { study.cluster.fabric.clone() };
    let found = DeploymentQuestion {
        study: None,
        train_weight: None,
        chips: vec![chip.display().to_string()],
        fabric: Some(asked.fabric.clone().unwrap_or(fabric)),
        ..asked
    };
    Ok((found, study.space.limits.max_power_w.map(Watts)))
}

/// Describes the binding limit in words.
fn words_of_bound(best: &ServingChoice, case: &DeploymentCase) -> String {
    let limit = |limit: Option<f64>| limit.map_or_else(String::new, |limit| format!(", {limit} ms allowed"));
    let mut words = match best.limited_by {
        ServingBound::TimeToFirstToken => format!("time to the first token{}", limit(case.ttft_ms)),
        ServingBound::TimePerOutputToken => format!("time per output token{}", limit(case.tpot_ms)),
        ServingBound::Load => "the load of 95 %, above which queues grow without end".to_owned(),
        ServingBound::Power => "the mean power of a device".to_owned(),
    };
    let pools = [Some(&best.decode), best.prefill.as_ref()].into_iter().flatten();
    for pool in pools.filter(|pool| pool.clock_mhz < pool.full_clock_mhz) {
        words.push_str(&format!(
            "; power: {} runs at {} of {} MHz to stay within {} W",
            pool.chip,
            format_count(pool.clock_mhz as u64),
            format_count(pool.full_clock_mhz as u64),
            format_significant(pool.power_limit_w.unwrap_or(0.0), 4)
        ));
    }
    words
}

/// A run with its parts read again.
struct ExplainedRun<'a> {
    loaded: &'a LoadedDeployment<'a>,
    question: &'a ServingQuestion<'a>,
    best: &'a ServingChoice,
}

impl ExplainedRun<'_> {
    fn value(&self, deployment: &Deployment, sides: &[ServingHardware<'_>]) -> Option<f64> {
        let figures = |pool: &ReplicaPool| {
            let side = sides.iter().find(|side| side.chip.name == pool.chip)?;
            figures_of_built_chip(side.chip)
        };
        self.loaded.objective.value(deployment, figures)
    }

    /// Returns the row of the best deployment in `answers`, or of the nearest refusal.
    fn explain_answers(
        &self,
        chip: String,
        named: bool,
        answers: &[ServingAnswer],
        sides: &[ServingHardware<'_>],
    ) -> ExplainedAlternative {
        let all = answers.iter().flat_map(|answer| &answer.deployments);
        let valued = all.filter_map(|deployment| Some((self.value(deployment, sides)?, deployment)));
        let first = |deployment: &Deployment| deployment.state.time_to_first_token.0;
        match valued.min_by(|a, b| b.0.total_cmp(&a.0).then(first(a.1).total_cmp(&first(b.1)))) {
            Some((value, deployment)) => self.explain_deployment(chip, named, deployment, Some(value)),
            None => {
                let level = &self.question.level;
                let why = nearest_refusal(answers, level).map(|refusal| describe_refusal(refusal, level));
                refused_alternative(chip, None, named, why.unwrap_or_else(|| "needs more devices".to_owned()))
            }
        }
    }

    fn explain_deployment(
        &self,
        chip: String,
        named: bool,
        deployment: &Deployment,
        value: Option<f64>,
    ) -> ExplainedAlternative {
        let choice = ServingChoice::of_deployment(deployment, self.loaded.objective, &|_| None);
        ExplainedAlternative {
            chip,
            plan: Some(choice.plan_words()),
            named,
            value,
            times_best: value.zip(self.best.value).map(|(own, best)| own / best),
            ttft_ms: Some(choice.ttft_ms),
            tpot_ms: Some(choice.tpot_ms),
            binds: deployment.bound.words().to_owned(),
        }
    }

    /// Returns the best deployment of every chip or pair of chips of the question, and of the named chips.
    fn explain_chips(&self, named: &[String]) -> Result<Vec<ExplainedAlternative>, Failure> {
        let further = named.iter().map(|name| self.loaded.read_hardware(name)).collect::<Result<Vec<_>, _>>()?;
        let engine = &self.loaded.engine;
        let own = self.loaded.sides();
        let further = further.iter().map(|(chip, fabric)| ServingHardware { chip, fabric, engine });
        let further: Vec<ServingHardware<'_>> =
            further.filter(|side| own.iter().all(|one| one.chip != side.chip)).collect();
        let all: Vec<ServingHardware<'_>> = own.iter().chain(&further).copied().collect();
        let is_named = |side: &ServingHardware<'_>| further.iter().any(|one| one.chip.name == side.chip.name);
        let pools = self.loaded.question().pools;
        let mut rows = Vec::new();
        if pools != ServedPools::Apart {
            for side in &all {
                let answers = [best::together(self.question, *side)];
                rows.push(self.explain_answers(side.chip.name.clone(), is_named(side), &answers, &all));
            }
        }
        if pools != ServedPools::Together {
            for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
                let answers = [serving::apart::apart(self.question, *a, *b)];
                let name = format!("prompts {}, decoding {}", a.chip.name, b.chip.name);
                rows.push(self.explain_answers(name, is_named(a) || is_named(b), &answers, &all));
            }
        }
        sort_by_value(&mut rows);
        Ok(rows)
    }

    /// Returns every plan of the chosen chips, and the plans with the named degrees.
    fn explain_plans(&self, named: GivenDegrees) -> Result<Vec<ExplainedAlternative>, Failure> {
        let sides = self.loaded.sides();
        let of = |name: &str| sides.iter().find(|side| side.chip.name == name).copied();
        let chip = self.best.chip_words();
        let Some(side) = of(&self.best.decode.chip) else { return Ok(Vec::new()) };
        if let Some(prompts) = self.best.prefill.as_ref().and_then(|pool| of(&pool.chip)) {
            let answer = serving::apart::apart(self.question, prompts, side);
            let of = |deployment: &Deployment| {
                let pools = [Some(&deployment.decode), deployment.prefill.as_ref()];
                let is_named = pools.into_iter().flatten().any(|pool| is_plan_named(named, &pool.plan));
                self.explain_deployment(chip.clone(), is_named, deployment, self.value(deployment, &sides))
            };
            let mut rows: Vec<ExplainedAlternative> = answer.deployments.iter().map(of).collect();
            if named != GivenDegrees::default() && rows.iter().all(|row| !row.named) {
                let question = ServingQuestion { given: named, ..self.question.clone() };
                let further = serving::apart::apart(&question, prompts, side);
                let level = &self.question.level;
                match (&further.deployments[..], further.refused.first()) {
                    ([], None) => return Err(self.no_plan(named)),
                    ([], Some(first)) => {
                        let nearest = nearest_refusal(std::slice::from_ref(&further), level).unwrap_or(first);
                        let why = describe_refusal(nearest, level);
                        rows.push(refused_alternative(chip.clone(), Some(words_of_named(named)), true, why));
                    }
                    (deployments, _) => rows.extend(deployments.iter().map(of)),
                }
                sort_by_value(&mut rows);
            }
            return Ok(rows);
        }
        let mut rows = self.price_plans(side, self.question.given, named);
        if named != GivenDegrees::default() {
            let further = self.price_plans(side, named, named);
            if further.is_empty() {
                return Err(self.no_plan(named));
            }
            rows.extend(further.into_iter().filter(|row| row.named).collect::<Vec<_>>());
            let mut seen: Vec<Option<String>> = Vec::new();
            rows.retain(|row| {
                let new = !seen.contains(&row.plan);
                seen.push(row.plan.clone());
                new
            });
        }
        sort_by_value(&mut rows);
        Ok(rows)
    }

    /// Makes the failure for named degrees that no plan on the run's devices has.
    fn no_plan(&self, named: GivenDegrees) -> Failure {
        let limit = format!("no plan on the run's {} devices has them", self.question.devices);
        let cure = "lower --tensor, --pipeline and --attention-data, or explain a run with more --devices";
        failure::option_failure(&words_of_named(named), "", limit, cure)
    }

    fn price_plans(
        &self,
        side: ServingHardware<'_>,
        given: GivenDegrees,
        named: GivenDegrees,
    ) -> Vec<ExplainedAlternative> {
        let question = ServingQuestion { given, ..self.question.clone() };
        let one = |plan: &serving::ServingPlan| {
            let degrees = GivenDegrees {
                tensor: Some(plan.tensor),
                pipeline: Some(plan.pipeline),
                attention_data: Some(plan.attention_data),
                expert: Some(plan.expert),
                context: Some(plan.context),
            };
            let is_named = is_plan_named(named, plan);
            let answer = best::together(&ServingQuestion { given: degrees, ..question.clone() }, side);
            let chip = side.chip.name.clone();
            match answer.deployments.first() {
                Some(deployment) => {
                    self.explain_deployment(chip, is_named, deployment, self.value(deployment, &[side]))
                }
                None => {
                    let why = answer.refused.first().map(|refusal| describe_refusal(refusal, &self.question.level));
                    let why = why.unwrap_or_default();
                    // The reason omits the degrees, because the table shows the plan in a column of its own.
                    let own = format!("tp {}, pp {}: ", plan.tensor, plan.pipeline);
                    let why = why.strip_prefix(&own).unwrap_or(&why).to_owned();
                    refused_alternative(chip, Some(words_of_degrees(plan)), is_named, why)
                }
            }
        };
        enumerate_plans(&question, side.engine).iter().map(one).collect()
    }

    /// Returns the best value with each limit looser by a tenth, and without that limit.
    fn price_looser_limits(&self, case: &DeploymentCase) -> Vec<LooserLimit> {
        let seconds = |ms: Option<f64>| ms.map(|ms| Seconds(ms * 1e-3));
        let mut levels = Vec::new();
        if let Some(ms) = case.ttft_ms {
            levels.push((
                format!("first token within {} ms", format_significant(ms * LOOSER, 4)),
                Some(ms * LOOSER),
                case.tpot_ms,
            ));
            levels.push(("no limit on the first token".to_owned(), None, case.tpot_ms));
        }
        if let Some(ms) = case.tpot_ms {
            levels.push((
                format!("each next within {} ms", format_significant(ms * LOOSER, 4)),
                case.ttft_ms,
                Some(ms * LOOSER),
            ));
            levels.push(("no limit on each next".to_owned(), case.ttft_ms, None));
        }
        let sides = self.loaded.sides();
        let price = |(limit, ttft, tpot): (String, Option<f64>, Option<f64>)| {
            let level = ServiceLevel { time_to_first_token: seconds(ttft), time_per_output_token: seconds(tpot) };
            let question = ServingQuestion { level, ..self.question.clone() };
            let answers = deploy(&question, self.loaded.question().pools, &sides);
            let all = answers.iter().flat_map(|answer| &answer.deployments);
            let value = all.filter_map(|deployment| self.value(deployment, &sides)).reduce(f64::max)?;
            Some(LooserLimit { limit, value, times_best: value / self.best.value? })
        };
        levels.into_iter().filter_map(price).collect()
    }
}

/// True if degrees are named and the plan has them.
fn is_plan_named(named: GivenDegrees, plan: &serving::ServingPlan) -> bool {
    let matches = |named: Option<u32>, own: u32| named.is_none_or(|named| named == own);
    named != GivenDegrees::default()
        && matches(named.tensor, plan.tensor)
        && matches(named.pipeline, plan.pipeline)
        && matches(named.attention_data, plan.attention_data)
        && matches(named.expert, plan.expert)
        && matches(named.context, plan.context)
}

fn refused_alternative(chip: String, plan: Option<String>, named: bool, why: String) -> ExplainedAlternative {
    ExplainedAlternative {
        chip,
        plan,
        named,
        value: None,
        times_best: None,
        ttft_ms: None,
        tpot_ms: None,
        binds: format!("does not serve: {why}"),
    }
}

/// Returns the degrees of a plan in words.
fn words_of_degrees(plan: &serving::ServingPlan) -> String {
    let further =
        [("pp", plan.pipeline), ("attention dp", plan.attention_data), ("ep", plan.expert), ("dcp", plan.context)];
    let further = further.into_iter().filter(|(_, degree)| *degree > 1);
    let words = further.map(|(name, degree)| format!(", {name} {degree}"));
    format!("tp {}{}", plan.tensor, words.collect::<String>())
}

/// Returns the named degrees as options of a call.
fn words_of_named(named: GivenDegrees) -> String {
    let degrees = [
        ("--tensor", named.tensor),
        ("--pipeline", named.pipeline),
        ("--attention-data", named.attention_data),
        ("--expert", named.expert),
        ("--context-parallel", named.context),
    ];
    let given = degrees.into_iter().filter_map(|(flag, degree)| Some(format!("{flag} {}", degree?)));
    given.collect::<Vec<_>>().join(" ")
}

/// Sorts rows by falling value. Rows without a value come last.
fn sort_by_value(rows: &mut [ExplainedAlternative]) {
    rows.sort_by(|a, b| b.value.unwrap_or(-1.0).total_cmp(&a.value.unwrap_or(-1.0)));
}
