//! The directory of a run of `coplace serve`.

use crate::failure::{self, Failure, OrUnwritable};
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
}

impl RunKeeper {
    /// Claims a directory, which must be empty or hold an older run of the same question.
    pub fn claim(out: &Path, question: &DeploymentQuestion) -> Result<Self, Failure> {
        let digest = short_digest(&question.canonical());
        let kept = SearchRecord::read_question_digest(out);
        // A damaged record has no digest, and is written again.
        if kept.flatten().is_some_and(|kept| kept != digest) {
            let limit = "holds the answer to another question, which is not overwritten";
            return Err(failure::option_failure("--out", out.display(), limit, "give another directory, or remove it"));
        }
        let claim = DirectoryClaim::for_serving(out)
            .map_err(|error| failure::option_failure("--out", out.display(), error, ""))?;
        Ok(Self { claim, digest })
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        self.claim.path()
    }

    /// Writes the run and returns its files.
    pub fn write(
        &self,
        question: &DeploymentQuestion,
        (cases, points, fronts): (&[ServedCase], &[ServedPoint], &[ServedFront]),
        found: &FoundFiles,
        times: BTreeMap<String, f64>,
    ) -> Result<Vec<PathBuf>, Failure> {
        let record = ServingRecord {
            format: SERVING_FORMAT,
            verb: SERVE.to_owned(),
            versions: Versions::current(),
            question: self.digest.clone(),
            cases: cases.to_vec(),
            fronts: fronts.to_vec(),
            asked: question.clone(),
            times,
        };
        let run = ServingRun { name: String::new(), record, points: points.to_vec() };
        run.write_run(self.path(), found).or_unwritable()
    }
}
