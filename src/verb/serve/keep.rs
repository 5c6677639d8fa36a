//! The directory of a run of `coplace serve`.

use super::keep_best;
use crate::failure::{self, Failure, OrUnwritable};
use results::answer::serving_beside::PredictionsBeside;
use results::run::claim::DirectoryClaim;
use results::run::record::{SearchRecord, Versions};
use results::run::search_run::FoundFiles;
use results::run::serving::{SERVE, SERVING_FORMAT, ServedCase, ServedFront, ServedPoint, ServingRecord, ServingRun};
use results::store::sums::short_digest;
use search::ask::DeploymentQuestion;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Exclusive use of a run's directory.
pub struct RunKeeper {
    claim: DirectoryClaim,
    digest: String,
    /// The record of an older run of the same question; `None` if the directory holds no sound one.
    older: Option<ServingRecord>,
}

/// The answers of a run, its priced points and their fronts.
#[derive(Debug, Clone, Copy)]
pub struct ServedAnswers<'a> {
    pub cases: &'a [ServedCase],
    pub points: &'a [ServedPoint],
    pub fronts: &'a [ServedFront],
}

impl RunKeeper {
    /// Claims a directory, which must be empty or hold an older run of the same question. Nothing of the older run is
    /// lost: if it has predictions of another tool and `beside` is given, both must be of the same file.
    pub fn claim(out: &Path, question: &DeploymentQuestion, beside: Option<&Path>) -> Result<Self, Failure> {
        let digest = short_digest(&question.canonical());
        let refused = |limit: String| {
            failure::option_failure("--out", out.display(), limit, "give another directory, or remove it")
        };
        // A damaged run is written again.
        let older = ServingRun::read_from(out).ok().map(|run| run.record);
        let is_another = match &older {
            Some(older) => older.asked.canonical() != question.canonical(),
            None => SearchRecord::read_question_digest(out).flatten().is_some_and(|kept| kept != digest),
        };
        if is_another {
            return Err(refused("holds the answer to another question, which is not overwritten".to_owned()));
        }
        if let (Some(held), Some(beside)) = (older.as_ref().and_then(predictions_of_record), beside)
            && Path::new(&held.file) != beside
        {
            return Err(refused(format!("holds predictions of {} beside its answer", held.file)));
        }
        let claim = DirectoryClaim::for_serving(out)
            .map_err(|error| failure::option_failure("--out", out.display(), error, ""))?;
        Ok(Self { claim, digest, older })
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        self.claim.path()
    }

    /// Writes the run and returns its files. The record has the best deployments of every case: `most`, or as many as
    /// the older run's record if that has more. A single case also keeps the older run's predictions of another tool,
    /// unless it has its own.
    pub fn write(
        &self,
        question: &DeploymentQuestion,
        ServedAnswers { cases, points, fronts }: ServedAnswers<'_>,
        found: &FoundFiles,
        most: usize,
        times: BTreeMap<String, f64>,
    ) -> Result<Vec<PathBuf>, Failure> {
        let mut cases = cases.to_vec();
        let held = self.older.iter().flat_map(|older| &older.cases).filter_map(|case| case.answer.as_ref());
        keep_best(&mut cases, held.map(|answer| answer.choices.len()).fold(most, usize::max));
        let beside = self.older.as_ref().and_then(predictions_of_record);
        if let ([ServedCase { answer: Some(answer), .. }], Some(held)) = (&mut cases[..], beside) {
            answer.beside.get_or_insert_with(|| held.clone());
        }
        let record = ServingRecord {
            format: SERVING_FORMAT,
            verb: SERVE.to_owned(),
            versions: Versions::current(),
            question: self.digest.clone(),
            cases,
            fronts: fronts.to_vec(),
            asked: question.clone(),
            times,
        };
        let run = ServingRun { name: String::new(), record, points: points.to_vec() };
        run.write_run(self.path(), found).or_unwritable()
    }
}

/// Returns the predictions of another tool in a record; `None` if it has none.
fn predictions_of_record(record: &ServingRecord) -> Option<&PredictionsBeside> {
    record.cases.iter().find_map(|case| case.answer.as_ref()?.beside.as_ref())
}
