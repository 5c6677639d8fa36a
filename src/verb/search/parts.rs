//! `coplace search` in parts: one by itself, all of them as a job array, and what `coplace merge` makes of them.

use super::question::Question;
use super::{About, Arguments, concluded, give, ready, run_directory, run_path, standing};
use crate::answer::{self, Format, Versioned};
use crate::failure::{self, Failure, OrInput, OrUnwritable};
use crate::progress;
use crate::verb::merge::asked_again;
use crate::verb::slurm::{self, Batch, State};
use results::claim::{Claim, ClaimError};
use results::parts::{self, BestKnown, FILES, PartFacts, Parts};
use results::report;
use search::design::{Fate, PartAnswer, Watch};
use search::runner::{Exchange, Moment, Progress};
use search::shard::Shard;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Where the parts of a job array tell each other of the best, beside the parts.
const BEST: &str = "best";

/// What the search of a part tells.
#[derive(Serialize)]
struct Answer {
    /// The part of the search.
    part: String,
    /// The digest of the question.
    question: String,
    /// Designs that it has evaluated.
    evaluated: u64,
    /// How long it has taken.
    seconds: f64,
    /// Whether the directory held it before: nothing was searched then.
    was_complete: bool,
    /// The files of the part.
    files: Vec<String>,
}

/// Searches a part, or submits all.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.posed.asked.time_limit.is_some() {
        let cure =
            "parts are searched to their end, or begin again: limit the job (--slurm --time=4:00:00), or search in one process";
        return Err(failure::input(format!("--time-limit: of a search in one process alone: {cure}")));
    }
    let question = Question::read(&arguments.posed)?;
    let digest = question.digest(arguments.seed);
    match (arguments.in_parts.shard, &arguments.in_parts.slurm) {
        (Some(shard), _) => part(arguments, (&question, digest), shard),
        (None, options) => submit(arguments, (&question, &digest), options.as_deref().unwrap_or_default()),
    }
}

/// Of what a part is.
fn facts(arguments: &Arguments, digest: &str, shard: Shard) -> PartFacts {
    PartFacts::new(digest.to_owned(), (arguments.posed.words(), arguments.seed), shard)
}

fn submit(arguments: &Arguments, (question, digest): (&Question, &str), options: &[String]) -> Result<(), Failure> {
    let out = run_path(arguments.out.as_deref(), (&arguments.posed, arguments.seed), (question, digest))?;
    let share = slurm::directory(&out).join(BEST).display().to_string();
    let mut words = arguments.posed.words();
    words.extend(["--seed".to_owned(), arguments.seed.to_string(), "--share".to_owned(), share]);
    let state = |shard: Shard, directory: &Path| state(directory, &facts(arguments, digest, shard));
    let batch = Batch { verb: "search", words, out: &out, parts: arguments.in_parts.parts, options, state: &state };
    let submitted = batch.submit()?;
    answer::give(arguments.format, &Versioned::first(&submitted), |_| slurm::words(&submitted))
}

/// What is known of a part in a directory.
fn state(directory: &Path, asked: &PartFacts) -> Result<State, Failure> {
    if held(directory, asked)?.is_some() {
        return Ok(State::Complete);
    }
    if !directory.exists() {
        return Ok(State::Lacking);
    }
    match Claim::for_part(directory) {
        Err(ClaimError::Busy) => Ok(State::Running),
        // What else is wrong with it, its task says.
        _ => Ok(State::Lacking),
    }
}

/// The part that a directory holds, if it is the one that is asked for.
fn held(directory: &Path, asked: &PartFacts) -> Result<Option<PartFacts>, Failure> {
    if !parts::is_part(directory) {
        return Ok(None);
    }
    let found = parts::facts(directory).or_input()?;
    if found.same_search(asked) && found.part == asked.part {
        return Ok(Some(found));
    }
    let (part, of, at) = (found.part, found.parts, directory.display());
    let cure = "give another directory, or remove it";
    Err(failure::input(format!("--out {at}: holds part {part}/{of} of the search of question {}; {cure}", found.question)))
}

fn part(arguments: &Arguments, (question, digest): (&Question, String), shard: Shard) -> Result<(), Failure> {
    let path = arguments.out.clone().unwrap_or_else(|| {
        let name = question.directory_name(&arguments.posed);
        PathBuf::from("runs").join(format!("search-{name}-{digest}-{}-of-{}", shard.part, shard.of))
    });
    let asked = facts(arguments, &digest, shard);
    let claim = Claim::for_part(&path).map_err(|error| {
        let why = match error {
            ClaimError::Busy => "another process searches it; wait for its end, or give another directory".to_owned(),
            ClaimError::Foreign => "holds files that are no part of a search; give an empty or a new directory".to_owned(),
            other => other.to_string(),
        };
        failure::input(format!("--out {}: {why}", path.display()))
    })?;
    let (done, was_complete) = match held(claim.path(), &asked)? {
        Some(done) => (done, true),
        None => (search(arguments, question, asked, claim.path())?, false),
    };
    let PartFacts { question, evaluated, seconds, .. } = done;
    let files = FILES.map(|name| path.join(name).display().to_string()).to_vec();
    let answer = Answer { part: shard.to_string(), question, evaluated, seconds, was_complete, files };
    answer::give(arguments.format, &Versioned::first(&answer), |_| words(&answer))
}

/// Searches a part and writes what it found.
fn search(arguments: &Arguments, question: &Question, asked: PartFacts, directory: &Path) -> Result<PartFacts, Failure> {
    let start = Instant::now();
    let progress = progress::Progress::new("preparing plans");
    let mut shared = arguments.share.as_deref().map(|share| BestKnown::new(share, &asked)).transpose().or_unwritable()?;
    let answer = ready(question, |searched, search| {
        progress.phase("searching");
        let mut told = |now: Progress, _: Moment| {
            let gap = now.best.map(|best| 1.0 - now.bound / best);
            progress.say(standing(now, gap, question.aim.objective, searched.scale()), None);
        };
        let others = shared.as_mut().map(|shared| -> &mut dyn Exchange { shared });
        let (shard, watch) = (Shard { part: asked.part, of: asked.parts }, Watch { stop: &|| false, told: &mut told });
        search.run_part(shard, watch, others).map_err(|why| failure::input(format!("{}: {why}", question.name)))
    })?;
    drop(progress);
    if let Some(why) = shared.and_then(|shared| shared.failed) {
        tracing::warn!("--share: other parts were not told of the best of this one, and search longer: {why}");
    }
    let (evaluated, seconds) = (evaluated(&answer), start.elapsed().as_secs_f64());
    let done = PartFacts { evaluated, seconds, ..asked };
    parts::write(directory, &done, &answer).or_unwritable()?;
    Ok(done)
}

fn evaluated(answer: &PartAnswer) -> u64 {
    answer.decided.iter().filter(|(_, fate)| matches!(fate, Fate::Evaluated(_))).count() as u64
}

fn words(answer: &Answer) -> String {
    let what = if answer.was_complete { "was complete" } else { "is complete" };
    format!(
        "Part {} of the search {what}: {} designs evaluated, {:.1} s; coplace merge puts all parts together.\nWritten: {}\n",
        answer.part,
        report::count(answer.evaluated),
        answer.seconds,
        answer.files.join(", ")
    )
}

/// Puts the parts in directories together, writes the run directory of the whole, prints its report.
pub fn merge(directories: &[PathBuf], out: &Path, format: Format) -> Result<(), Failure> {
    let start = Instant::now();
    let parts = Parts::open(directories).or_input()?;
    let PartFacts { asked_with, seed, question: digest, .. } = parts.facts;
    let posed = asked_again(&asked_with)?;
    let question = Question::read(&posed)?;
    if question.digest(seed) != digest {
        let asked = asked_with.join(" ");
        let cure = "put back the study and the files that it names as they were, or search again";
        return Err(failure::input(format!("the parts were searched with `{asked}`, which asks something else by now; {cure}")));
    }
    let claim = run_directory(Some(out), (&posed, seed), (&question, &digest))?;
    let times = BTreeMap::from([("parts".to_owned(), parts.seconds)]);
    ready(&question, |searched, search| {
        let unfit = |why| failure::input(format!("the parts do not fit together: {why}; search them again"));
        let answer = search.whole(&parts.answers).map_err(unfit)?;
        let about = About { digest, seed, asked_with, stopped: None, grown: None, start, times };
        let found = concluded(&question, searched, &answer, about)?;
        give(&claim, format, found, report::run)
    })
}
