//! `coplace serve --study`: the chip of a space that serves most, and the best two chips for pools apart.
//!
//! Chips are priced in the order of a bound on their rate ([`best::bound_of_chip`]), until no bound is higher than the
//! best rate found: the answer is then the best of the space. For pools apart the two chips are chosen separately: with
//! rates a and b of requests per device, the best split of many devices serves a b / (a + b) per device, which rises in
//! both.

use super::{PoolChoice, ServeArguments};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput};
use crate::progress;
use crate::verb::search::prepare_job;
use crate::verb::search::question::SearchQuestion;
use rayon::prelude::*;
use results::answer::serving::{ServedSpaceRecord, TrainAndServe, TwoChips};
use search::ask::WorkloadSpec;
use search::planner::Job;
use search::space::{Chips, Combination, CombinationChip, EfficiencyChoice, Space};
use search::study::Study;
use search::sweep::Sweep;
use serving::ServingEngine;
use serving::best::{self, ServingAnswer, ServingHardware, ServingQuestion};
use sim::network::Fabric;

/// Most combinations of a space: every one is built.
const MOST_COMBINATIONS: u64 = 200_000;
/// Chips priced together before the bounds are looked at again.
const TOGETHER: usize = 32;

/// A chip of the space with its bound.
struct BoundedChip {
    number: u64,
    chip: Box<CombinationChip>,
    bound: f64,
}

/// The answer for a space.
pub struct SpaceAnswer {
    answers: Vec<ServingAnswer>,
    record: ServedSpaceRecord,
}

impl SpaceAnswer {
    /// Returns the deployments of the best chip, or of the best two in pools apart, as asked.
    pub fn answers(&self) -> Vec<ServingAnswer> {
        self.answers.clone()
    }

    /// Returns what was searched.
    pub fn record(&self) -> ServedSpaceRecord {
        self.record.clone()
    }
}

/// Searches the chips of a study.
pub fn search_space(
    arguments: &ServeArguments,
    name: &str,
    question: &ServingQuestion<'_>,
    engine: &ServingEngine,
    call: &Call,
) -> Result<SpaceAnswer, Failure> {
    let study = Study::load_from(name, &call.files).or_input()?;
    let mut asked = study.question(name);
    asked.models = vec![WorkloadSpec::of(&arguments.model)];
    asked.cluster.devices = arguments.devices;
    if let Some(fabric) = &arguments.fabric {
        asked.cluster.fabric.clone_from(fabric);
    }
    asked.assume_ignored.clone_from(&arguments.assume);
    asked.files = call.files.clone();
    let loaded = SearchQuestion::load_again(asked)?;
    let space = &loaded.space;
    let combinations = space.combination_count();
    if combinations > MOST_COMBINATIONS {
        return Err(failure::input_failure(format!(
            "--study {name}: its space has {combinations} combinations; serve builds every one, at most \
            {MOST_COMBINATIONS}: give a study with fewer values"
        )));
    }
    progress::run_with_progress(call, "pricing chips", || {
        let mut chips = bounded_chips(space, question, engine)?;
        chips.sort_by(|a, b| b.bound.total_cmp(&a.bound).then(a.number.cmp(&b.number)));
        let fabrics = &loaded.fabrics;
        let (training, both) = match arguments.train_weight {
            Some(weight) => {
                let training = TrainingRates::of_chips(&study, name, &chips)?;
                let both = training.join_serving(&chips, fabrics, (question, engine), weight);
                (Some(training), Some(both))
            }
            None => (None, None),
        };
        let (found, priced, left) = match &both {
            Some(both) => (both.found.clone(), chips.len(), 0.0),
            None => best_chip(&chips, fabrics, question, engine),
        };
        let Some((at, answer)) = found else {
            let most = chips.first().map_or(0.0, |first| first.bound);
            return Err(failure::input_failure(format!(
                "--study {name}: none of its {} chips within the limits serves at this level (a bound allows the best \
                one {most:.0} tokens/s); allow more time, or give more devices",
                chips.len()
            )));
        };
        let rate = answer.deployments.first().map_or(0.0, |best| best.tokens_per_second);
        let apart = (arguments.pools != PoolChoice::Together)
            .then(|| two_chips(&chips, fabrics, (question, engine), rate / f64::from(question.devices)))
            .flatten();
        let mut answers = if arguments.pools == PoolChoice::Apart { Vec::new() } else { vec![answer] };
        answers.extend(apart.as_ref().and_then(|(first, second, _)| {
            let side = |at: &usize| {
                let built = &chips.get(*at)?.chip;
                let fabric = built.fabric.and_then(|fabric| fabrics.get(fabric))?;
                Some(ServingHardware { chip: &built.chip, fabric, engine })
            };
            Some(best::apart(question, side(first)?, side(second)?))
        }));
        let values = |chip: &BoundedChip| values_of(space, chip.number);
        let efficiency = match &study.space.chips {
            Chips::Grid(spec) => spec.efficiency,
            Chips::Phaze(_) => EfficiencyChoice::Ideal,
        };
        let base = study.space.limits.chip_with_efficiency(&loaded.reference, efficiency);
        let side = ServingHardware { chip: &base, fabric: &loaded.fabric, engine };
        let reference = best::together(question, side).deployments.first().map(|best| best.tokens_per_second);
        let record = ServedSpaceRecord {
            study: name.to_owned(),
            combinations,
            chips: chips.len() as u64,
            priced: priced as u64,
            bound_tokens_per_s: left,
            gap: (left / rate - 1.0).max(0.0),
            best_values: chips.get(at).map(values).unwrap_or_default(),
            apart: apart.map(|(first, second, rates)| TwoChips {
                prefill_values: chips.get(first).map(values).unwrap_or_default(),
                decode_values: chips.get(second).map(values).unwrap_or_default(),
                two_kinds: rates[0],
                one_kind: rates[1],
                together: rates[2],
            }),
            both: training.zip(both).map(|(training, both)| both.record(&training, (at, arguments), &chips, &values)),
            reference_tokens_per_s: reference,
        };
        Ok(SpaceAnswer { answers, record })
    })
}

/// Rates of a training job on the chips, in tokens per second and chip; zero where no plan fits.
struct TrainingRates {
    model: String,
    rates: Vec<f64>,
}

impl TrainingRates {
    /// Trains the study's model on every chip under its fastest plan of the study.
    fn of_chips(study: &Study, name: &str, chips: &[BoundedChip]) -> Result<Self, Failure> {
        if study.workloads.is_empty() {
            return Err(failure::input_failure(format!(
                "--train-weight: study {name} has no [[workload]] to train; name one in the study"
            )));
        }
        let question = SearchQuestion::load_again(study.question(name))?.of_one_model(true)?;
        let jobs: Vec<Job<'_>> = question.fabrics.iter().map(|fabric| question.reference_job(fabric)).collect();
        let prepared = jobs.iter().map(|job| prepare_job(&question, job)).collect::<Result<Vec<_>, _>>()?;
        let sweep = Sweep { prepared: &prepared, space: &question.space, max_step: None };
        let cluster = &question.study.cluster;
        let tokens = f64::from(cluster.global_batch_sequences) * question.sequence_length as f64;
        let per_chip = tokens / f64::from(cluster.devices);
        let rate = |chip: &BoundedChip| {
            let plan = sweep.evaluate_chip(&chip.chip).outcome.ok();
            plan.map_or(0.0, |plan| per_chip / plan.time.total.0)
        };
        Ok(Self { model: question.called.clone(), rates: chips.par_iter().map(rate).collect() })
    }

    /// Serves on every chip, and finds the chip with the highest weighted geometric mean of both rates.
    fn join_serving(
        &self,
        chips: &[BoundedChip],
        fabrics: &[Fabric],
        (question, engine): (&ServingQuestion<'_>, &ServingEngine),
        weight: f64,
    ) -> JointRates {
        let serve = |chip: &BoundedChip| {
            let fabric = chip.chip.fabric.and_then(|at| fabrics.get(at))?;
            Some(best::together(question, ServingHardware { chip: &chip.chip.chip, fabric, engine }))
        };
        let answers: Vec<Option<ServingAnswer>> = chips.par_iter().map(serve).collect();
        let rate_of = |answer: &Option<ServingAnswer>| {
            answer.as_ref().and_then(|answer| answer.deployments.first()).map_or(0.0, |best| best.tokens_per_second)
        };
        let serving: Vec<f64> = answers.iter().map(rate_of).collect();
        let joint: Vec<f64> = self
            .rates
            .iter()
            .zip(&serving)
            .map(|(train, serve)| train.powf(weight) * serve.powf(1.0 - weight))
            .collect();
        let best = place_of_most(&joint).filter(|at| joint[*at] > 0.0);
        let found = best.and_then(|at| Some((at, answers.get(at)?.clone()?)));
        JointRates { found, serving }
    }
}

/// The best chip for both, and all rates of serving.
struct JointRates {
    found: Option<(usize, ServingAnswer)>,
    serving: Vec<f64>,
}

impl JointRates {
    fn record(
        &self,
        training: &TrainingRates,
        (at, arguments): (usize, &ServeArguments),
        chips: &[BoundedChip],
        values: &dyn Fn(&BoundedChip) -> Vec<(String, String)>,
    ) -> TrainAndServe {
        let (trainer, server) = (place_of_most(&training.rates), place_of_most(&self.serving));
        let part = |rates: &[f64], of: Option<usize>, at: Option<usize>| {
            let rate = |at: Option<usize>| at.and_then(|at| rates.get(at)).copied().unwrap_or(0.0);
            if rate(of) > 0.0 { rate(at) / rate(of) } else { 0.0 }
        };
        let values = |at: Option<usize>| at.and_then(|at| chips.get(at)).map(values).unwrap_or_default();
        TrainAndServe {
            trains_model: training.model.clone(),
            train_weight: arguments.train_weight.unwrap_or(0.0),
            training_values: values(trainer),
            serving_values: values(server),
            training_tokens_per_s: training.rates.get(at).copied().unwrap_or(0.0),
            trains: part(&training.rates, trainer, Some(at)),
            serves: part(&self.serving, server, Some(at)),
            training_chip_serves: part(&self.serving, server, trainer),
            serving_chip_trains: part(&training.rates, trainer, server),
        }
    }
}

/// Returns the place of the largest rate, the first of equal ones.
fn place_of_most(rates: &[f64]) -> Option<usize> {
    (0..rates.len()).max_by(|i, j| rates[*i].total_cmp(&rates[*j]).then(j.cmp(i)))
}

/// Returns the chips within the limits with their bounds.
fn bounded_chips(
    space: &Space,
    question: &ServingQuestion<'_>,
    engine: &ServingEngine,
) -> Result<Vec<BoundedChip>, Failure> {
    let build = |number: u64| match space.combination_at(number) {
        Ok(Combination::Chip(chip)) => {
            let bound = best::bound_of_chip(question, &chip.chip, engine);
            Ok(Some(BoundedChip { number, chip, bound }))
        }
        Ok(Combination::Outside(..) | Combination::NoChip(_)) => Ok(None),
        Err(why) => Err(failure::input_failure(why)),
    };
    let chips: Vec<Option<BoundedChip>> =
        (0..space.combination_count()).into_par_iter().map(build).collect::<Result<_, _>>()?;
    Ok(chips.into_iter().flatten().collect())
}

/// Prices chips until no bound is higher than the best rate. Returns the best one's place with its answer, the chips
/// priced, and the highest bound left.
fn best_chip(
    chips: &[BoundedChip],
    fabrics: &[Fabric],
    question: &ServingQuestion<'_>,
    engine: &ServingEngine,
) -> (Option<(usize, ServingAnswer)>, usize, f64) {
    let (mut best, mut rate, mut priced) = (None, 0.0, 0);
    for group in chips.chunks(TOGETHER) {
        if group.first().is_none_or(|first| first.bound <= rate) {
            break;
        }
        let price = |chip: &BoundedChip| {
            let fabric = chip.chip.fabric.and_then(|at| fabrics.get(at))?;
            Some(best::together(question, ServingHardware { chip: &chip.chip.chip, fabric, engine }))
        };
        let answers: Vec<Option<ServingAnswer>> = group.par_iter().map(price).collect();
        for (i, answer) in answers.into_iter().enumerate() {
            let own =
                answer.as_ref().and_then(|answer| answer.deployments.first()).map_or(0.0, |d| d.tokens_per_second);
            if own > rate {
                (rate, best) = (own, answer.map(|answer| (priced + i, answer)));
            }
        }
        priced += group.len();
    }
    let left = chips.get(priced).map_or(0.0, |next| next.bound);
    (best, priced, left)
}

/// Returns the places of the best chips for prompts and for decoding, and output tokens per second and device with
/// both, with the best one kind in two pools, and with the best together.
fn two_chips(
    chips: &[BoundedChip],
    fabrics: &[Fabric],
    (question, engine): (&ServingQuestion<'_>, &ServingEngine),
    together: f64,
) -> Option<(usize, usize, [f64; 3])> {
    let rates: Vec<[f64; 2]> = chips
        .par_iter()
        .map(|chip| {
            let fabric = chip.chip.fabric.and_then(|at| fabrics.get(at))?;
            Some(best::pool_rates(question, ServingHardware { chip: &chip.chip.chip, fabric, engine }))
        })
        .map(|rates| rates.unwrap_or([0.0; 2]))
        .collect();
    let joint = |[a, b]: [f64; 2]| if a + b > 0.0 { a * b / (a + b) } else { 0.0 };
    let best_of =
        |side: usize| (0..rates.len()).max_by(|i, j| rates[*i][side].total_cmp(&rates[*j][side]).then(j.cmp(i)));
    let (first, second) = (best_of(0)?, best_of(1)?);
    let output = question.lengths.mean_output();
    let two = joint([rates[first][0], rates[second][1]]) * output;
    let one = rates.iter().map(|own| joint(*own)).fold(0.0, f64::max) * output;
    Some((first, second, [two, one, together]))
}

/// Returns the values of a combination's listed dimensions.
fn values_of(space: &Space, number: u64) -> Vec<(String, String)> {
    let listed = space.listed_dimensions();
    let places = search::space::places_of_combination(&listed, number);
    let values = listed.iter().zip(places).filter(|(dial, _)| dial.values.len() > 1);
    values.filter_map(|(dial, place)| Some((dial.key.clone(), dial.values.get(place)?.to_string()))).collect()
}
