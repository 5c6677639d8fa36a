//! `coplace serve --study`: reads the study, searches its chips, and records the result.

use super::loaded::LoadedDeployment;
use crate::call::Call;
use crate::failure::{self, Failure, OrInput};
use crate::progress;
use crate::verb::search::question::SearchQuestion;
use crate::verb::search::{files_of_design, prepare_job};
use results::answer::serving::{ClusterChips, ServedSpaceRecord, TrainAndServe, TwoChips, describe_refusal};
use results::run::search_run::FoundFiles;
use search::ask::{DeploymentQuestion, ServedPools, WorkloadSpec};
use search::planner::Job;
use search::serve::{BestPair, BestServedChip, ChipForBoth, ServedChip, ServedSpace, TrainedSpace};
use search::space::{ChipFigures, EfficiencyChoice};
use search::study::Study;
use serving::best::{self, Deployment, ServingAnswer, ServingHardware, ServingQuestion};
use serving::nearest::nearest_refusal;
use sim::units::Watts;
use std::collections::BTreeMap;

/// The answer for a space.
pub struct SpaceAnswer {
    /// The deployments of the best chip, or of the best two in pools apart, as asked.
    pub answers: Vec<ServingAnswer>,
    /// The record of the search.
    pub record: ServedSpaceRecord,
    /// The figures of the chips of the answers, by name.
    pub figures: BTreeMap<String, ChipFigures>,
    /// The efficiency of the space's chips.
    pub efficiency: EfficiencyChoice,
    /// The files of the best chip and its fabric.
    pub found: FoundFiles,
}

/// A study that is loaded for a search over its chips.
struct LoadedStudy {
    name: String,
    study: Study,
    question: SearchQuestion,
}

impl LoadedStudy {
    fn load(asked_of: &DeploymentQuestion, name: &str) -> Result<Self, Failure> {
        let study = Study::load_from(name, &asked_of.files).or_input()?;
        let mut asked = study.question(name);
        asked.models = vec![WorkloadSpec::of(&asked_of.model)];
        asked.cluster.devices = asked_of.devices;
        if let Some(fabric) = &asked_of.fabric {
            asked.cluster.fabric.clone_from(fabric);
        }
        asked.assume_ignored.clone_from(&asked_of.assume_ignored);
        asked.files = asked_of.files.clone();
        Ok(Self { name: name.to_owned(), study, question: SearchQuestion::load_again(asked)? })
    }

    fn fault(&self, why: impl std::fmt::Display) -> Failure {
        failure::input_failure(format!("--study {}: {why}", self.name))
    }

    /// Finds the best chip for training and serving. `weight` is the weight of training.
    fn best_for_both(
        &self,
        served: &ServedSpace<'_>,
        chips: &[ServedChip],
        weight: f64,
    ) -> Result<TrainedAndServed, Failure> {
        if self.study.workloads.is_empty() {
            return Err(failure::input_failure(format!(
                "--train-weight: study {} has no [[workload]] to train; name one in the study",
                self.name
            )));
        }
        let question = SearchQuestion::load_again(self.study.question(&self.name))?.of_one_model(true)?;
        let jobs: Vec<Job<'_>> = question.fabrics.iter().map(|fabric| question.reference_job(fabric)).collect();
        let prepared = jobs.iter().map(|job| prepare_job(&question, job)).collect::<Result<Vec<_>, _>>()?;
        let cluster = &question.study.cluster;
        let tokens = f64::from(cluster.global_batch_sequences) * question.sequence_length as f64;
        let trained = TrainedSpace { prepared: &prepared, tokens_per_chip: tokens / f64::from(cluster.devices) };
        let chip = served.best_for_both(chips, &trained, weight);
        Ok(TrainedAndServed { model: question.called.clone(), weight, chip })
    }

    /// Returns the files of the chip of a combination and of its fabric.
    fn files_of_chip(&self, number: u64) -> Result<FoundFiles, Failure> {
        let source = format!("found by coplace serve {}, study {}", self.question.model_names(), self.name);
        match self.question.space.design_of_combination(number) {
            Some(id) => files_of_design(&self.question, id, &source),
            None => Ok(FoundFiles::default()),
        }
    }

    /// Returns the value of the base chip with the efficiency of the space's chips.
    fn price_base_chip(&self, served: &ServedSpace<'_>) -> Option<f64> {
        let space = &self.study.space;
        let base = space.limits.chip_with_efficiency(&self.question.reference, space.efficiency());
        let figures = ChipFigures::of_chip(&base).ok();
        let side = ServingHardware { chip: &base, fabric: &self.question.fabric, engine: served.engine };
        let answer = best::together(served.question, side);
        let values = answer.deployments.iter().filter_map(|of| served.objective.value(of, |_| figures));
        values.reduce(f64::max)
    }
}

/// Refuses an objective other than throughput for pools apart and for --train-weight, which rank chips by tokens per
/// second alone.
fn check_objective(loaded: &LoadedDeployment<'_>) -> Result<(), Failure> {
    let asked = loaded.question();
    let alone = match (asked.pools, asked.train_weight) {
        _ if loaded.objective.is_throughput() => return Ok(()),
        (ServedPools::Together, None) => return Ok(()),
        (ServedPools::Together, Some(_)) => "--train-weight",
        _ => "--pools apart and any",
    };
    Err(failure::input_failure(format!(
        "--objective: with --study, {alone} rank chips by tokens per second alone; leave out one of the two"
    )))
}

/// Searches the chips of a study. The inner error is the reason why no chip serves; the outer one is any other failure.
pub fn search_space(
    loaded: &LoadedDeployment<'_>,
    name: &str,
    question: &ServingQuestion<'_>,
    call: &Call,
) -> Result<Result<SpaceAnswer, Failure>, Failure> {
    check_objective(loaded)?;
    let asked = loaded.question();
    let study = LoadedStudy::load(asked, name)?;
    let limits = &study.study.space.limits;
    let question = ServingQuestion { power_limit: limits.max_power_w.map(Watts), ..question.clone() };
    let served = ServedSpace {
        space: &study.question.space,
        fabrics: &study.question.fabrics,
        question: &question,
        engine: &loaded.engine,
        objective: loaded.objective,
    };
    progress::run_with_progress(call, "pricing chips", || {
        let chips = served.list_chips().map_err(|why| study.fault(why))?;
        let both = asked.train_weight.map(|weight| study.best_for_both(&served, &chips, weight)).transpose()?;
        let found = match &both {
            Some(both) => both.chip.as_ref().map(|both| best_of_both(both, chips.len())),
            None => served.best_chip(&chips),
        };
        let Some(found) = found else { return Ok(Err(study.fault(nothing_serves(&served, &chips)))) };
        let pair = (asked.pools != ServedPools::Together).then(|| served.best_pair(&chips)).flatten();
        let record = SpaceRecorder { served: &served, chips: &chips, loaded: &study };
        let mut record = record.record(&found, pair.as_ref(), both.as_ref());
        record.reference = study.price_base_chip(&served);
        let number = chips.get(found.chip).map(|chip| chip.number);
        let mut answers = if asked.pools == ServedPools::Apart { Vec::new() } else { vec![found.answer] };
        answers.extend(pair.and_then(|pair| pair.cluster).map(|cluster| cluster.answer));
        let figures = chips.iter().map(|chip| (chip.built.chip.name.clone(), chip.built.figures)).collect();
        let found = number.filter(|_| asked.pools == ServedPools::Together).map(|number| study.files_of_chip(number));
        Ok(Ok(SpaceAnswer {
            answers,
            record,
            figures,
            efficiency: study.study.space.efficiency(),
            found: found.transpose()?.unwrap_or_default(),
        }))
    })
}

/// Returns the chip for training and serving in the form of a chip that serves.
fn best_of_both(both: &ChipForBoth, chips: usize) -> BestServedChip {
    let value = both.answer.deployments.first().map_or(0.0, |best: &Deployment| best.tokens_per_second);
    let open_bound = if both.priced.iter().all(|priced| *priced == chips) { 0.0 } else { value * both.open_bound };
    let [trained, served] = both.priced;
    BestServedChip { chip: both.chip, answer: both.answer.clone(), value, priced: trained.min(served), open_bound }
}

fn nothing_serves(served: &ServedSpace<'_>, chips: &[ServedChip]) -> String {
    let most = |chip: &&ServedChip| chip.bounds.requests();
    let best = chips.iter().max_by(|a, b| most(a).total_cmp(&most(b)));
    let answer = best.map(|chip| served.price_chip(chip).1);
    let level = &served.question.level;
    let answers: Vec<ServingAnswer> = answer.into_iter().collect();
    let nearest = nearest_refusal(&answers, level);
    let why = nearest.map_or_else(|| "no plan uses so few".to_owned(), |refusal| describe_refusal(refusal, level));
    format!(
        "none of its {} chips within the limits serves at this level; the nearest plan on the one with the highest \
        bound: {why}; allow more time, give more devices, or mend what it names",
        chips.len()
    )
}

/// The best chip for training a model and for serving.
struct TrainedAndServed {
    /// The name of the trained model.
    model: String,
    /// The weight of training.
    weight: f64,
    /// `None` if no chip does both.
    chip: Option<ChipForBoth>,
}

/// Makes the record of a search.
struct SpaceRecorder<'a> {
    served: &'a ServedSpace<'a>,
    chips: &'a [ServedChip],
    loaded: &'a LoadedStudy,
}

impl SpaceRecorder<'_> {
    fn values(&self, chip: usize) -> Vec<(String, String)> {
        self.chips.get(chip).map_or_else(Vec::new, |chip| self.served.values_of_chip(chip))
    }

    fn record(
        &self,
        found: &BestServedChip,
        pair: Option<&BestPair>,
        both: Option<&TrainedAndServed>,
    ) -> ServedSpaceRecord {
        let together = found.answer.deployments.first().map_or(0.0, |best| best.tokens_per_second);
        ServedSpaceRecord {
            study: self.loaded.name.clone(),
            combinations: self.loaded.question.space.combination_count(),
            chips: self.chips.len() as u64,
            priced: found.priced as u64,
            bound: found.open_bound,
            gap: (found.open_bound / found.value - 1.0).max(0.0),
            best_values: self.values(found.chip),
            apart: pair.map(|pair| self.two_chips(pair, together / f64::from(self.served.question.devices))),
            both: both.and_then(|of| Some(self.train_and_serve(&of.model, of.chip.as_ref()?, of.weight))),
            reference: None,
        }
    }

    fn two_chips(&self, pair: &BestPair, together: f64) -> TwoChips {
        let many = pair.many_devices * f64::from(self.served.question.devices);
        let cluster = pair.cluster.as_ref().map(|cluster| ClusterChips {
            prefill_values: self.values(cluster.prompts),
            decode_values: self.values(cluster.decoding),
            tokens_per_s: cluster.tokens_per_second,
            tried: cluster.tried as u64,
            pairs: (self.chips.len() as u64).saturating_mul(self.chips.len() as u64),
            below_many: (many / cluster.tokens_per_second - 1.0).max(0.0),
        });
        TwoChips {
            prefill_values: self.values(pair.prompts),
            decode_values: self.values(pair.decoding),
            two_kinds: pair.many_devices,
            one_kind: pair.one_kind,
            together,
            cluster,
        }
    }

    fn train_and_serve(&self, model: &str, both: &ChipForBoth, weight: f64) -> TrainAndServe {
        let ([train, train_best, server_trains], [serve, trainer_serves, serve_best]) = (both.training, both.serving);
        let part = |rate: f64, of: f64| if of > 0.0 { rate / of } else { 0.0 };
        TrainAndServe {
            trains_model: model.to_owned(),
            train_weight: weight,
            priced_training: both.priced[0] as u64,
            priced_serving: both.priced[1] as u64,
            training_values: self.values(both.trainer),
            serving_values: self.values(both.server),
            training_tokens_per_s: train,
            trains: part(train, train_best),
            serves: part(serve, serve_best),
            training_chip_serves: part(trainer_serves, serve_best),
            serving_chip_trains: part(server_trains, train_best),
        }
    }
}
