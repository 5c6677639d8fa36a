//! `coplace search` in parts: a single part, all parts as a job array, and their merge by `coplace merge`.

use super::question::SearchQuestion;
use super::{
    RecordContext, SearchArguments, SearchRequest, claim_run_directory, conclude_search, decide_answer,
    prepare_and_search, run_path, search_line, write_and_print,
};
use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrUnwritable};
use crate::progress;
use crate::verb::slurm::{self, PartState, SlurmBatch};
use results::report;
use results::run::claim::{DirectoryClaim, DirectoryClaimError};
use results::run::parts::{self, BestKnown, FILES, PartFacts, SearchParts};
use results::text::format_count;
use search::design::{DecisionEffort, DesignWatch, PartAnswer, PartDecision};
use search::runner::{RunnerProgress, SearchMoment, ShardExchange};
use search::shard::Shard;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Name of the directory in which the parts of a job array share their best designs.
const BEST: &str = "best";

/// The answer for a part of a search.
#[derive(Serialize)]
struct SearchPartAnswer {
    /// The part of the search.
    part: String,
    /// The digest of the question.
    question: String,
    /// Number of evaluated designs.
    evaluated: u64,
    /// Elapsed time in seconds.
    seconds: f64,
    /// True if the directory already held the part; nothing was searched then.
    was_complete: bool,
    /// The files of the part.
    files: Vec<String>,
}

/// Runs the verb for parts: searches one, or submits all.
pub fn run_part(arguments: &SearchArguments, call: &Call) -> Result<(), Failure> {
    if arguments.posed.asked.time_limit.is_some() {
        let cure = "a part is searched to its end or started again: limit the job (--slurm --time=4:00:00), or search \
            in one process";
        return Err(failure::input_failure(format!("--time-limit: works only for a search in one process: {cure}")));
    }
    if arguments.draws != super::DRAWS {
        let cure = "coplace merge draws for the whole; leave it out";
        return Err(failure::input_failure(format!(
            "--draws {}: a part has no answer of its own: {cure}",
            arguments.draws
        )));
    }
    let question = SearchQuestion::read_question(&arguments.posed)?;
    let digest = question.digest_of_question(arguments.seed);
    match (arguments.in_parts.shard, &arguments.in_parts.slurm) {
        (Some(shard), _) => part_answer(call, arguments, &question, digest, shard),
        (None, options) => submit_parts(call, arguments, &question, &digest, options.as_deref().unwrap_or_default()),
    }
}

/// Returns the facts of a part: its question, seed and number.
fn part_facts(question: &SearchQuestion, digest: &str, seed: u64, shard: Shard) -> PartFacts {
    PartFacts::for_part(digest.to_owned(), question.asked.clone(), seed, shard)
}

fn submit_parts(
    call: &Call,
    arguments: &SearchArguments,
    question: &SearchQuestion,
    digest: &str,
    options: &[String],
) -> Result<(), Failure> {
    let out = run_path(arguments.out.as_deref(), &arguments.posed, arguments.seed, question, digest)?;
    let share = slurm::parts_directory(&out).join(BEST).display().to_string();
    let words = vec!["--seed".to_owned(), arguments.seed.to_string(), "--share".to_owned(), share];
    let state =
        |shard: Shard, directory: &Path| state_of_part(directory, &part_facts(question, digest, arguments.seed, shard));
    let batch = SlurmBatch {
        verb: "search",
        question: &question.asked,
        words,
        out: &out,
        parts: arguments.in_parts.parts,
        options,
        state: &state,
    };
    let submitted = batch.submit_batch()?;
    answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&submitted), |_| {
        slurm::answer_text(&submitted)
    })
}

/// Returns the state of a part in a directory.
fn state_of_part(directory: &Path, asked: &PartFacts) -> Result<PartState, Failure> {
    if read_held_part(directory, asked)?.is_some() {
        return Ok(PartState::Complete);
    }
    if !directory.exists() {
        return Ok(PartState::Lacking);
    }
    match DirectoryClaim::for_part(directory) {
        Err(DirectoryClaimError::Busy) => Ok(PartState::Running),
        // The task that runs the part reports other faults.
        _ => Ok(PartState::Lacking),
    }
}

/// Reads the part in a directory; `None` if there is none. Fails if it is another part than the requested one.
fn read_held_part(directory: &Path, asked: &PartFacts) -> Result<Option<PartFacts>, Failure> {
    if !parts::is_part(directory) {
        return Ok(None);
    }
    let found = parts::read_facts(directory).or_input()?;
    if found.is_same_search(asked) && found.part == asked.part {
        return Ok(Some(found));
    }
    let (part, of, at) = (found.part, found.parts, directory.display());
    let cure = "give another directory, or remove it";
    Err(failure::option_failure(
        "--out",
        at,
        format!("holds part {part}/{of} of the search of question {}", found.question),
        cure,
    ))
}

fn part_answer(
    call: &Call,
    arguments: &SearchArguments,
    question: &SearchQuestion,
    digest: String,
    shard: Shard,
) -> Result<(), Failure> {
    let usual = || {
        let name = question.directory_name(&arguments.posed);
        PathBuf::from("runs").join(format!("search-{name}-{digest}-{}-of-{}", shard.part, shard.of))
    };
    let path = arguments.out.as_deref().map_or_else(usual, Path::to_path_buf);
    let asked = part_facts(question, &digest, arguments.seed, shard);
    let claim = DirectoryClaim::for_part(&path).map_err(|error| {
        let why = match error {
            DirectoryClaimError::Busy => {
                "another process searches it; wait for its end, or give another directory".to_owned()
            }
            DirectoryClaimError::Foreign => {
                "holds files that are no part of a search; give an empty or a new directory".to_owned()
            }
            other => other.to_string(),
        };
        failure::option_failure("--out", path.display(), why, "")
    })?;
    let (done, was_complete) = match read_held_part(claim.path(), &asked)? {
        Some(done) => (done, true),
        None => (search_part(call, arguments, question, asked, claim.path())?, false),
    };
    let PartFacts { question, evaluated, seconds, .. } = done;
    let files = FILES.map(|name| path.join(name).display().to_string()).to_vec();
    let answer = SearchPartAnswer { part: shard.to_string(), question, evaluated, seconds, was_complete, files };
    answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&answer), |_| answer_text(&answer))
}

/// Searches a part and writes its results.
fn search_part(
    call: &Call,
    arguments: &SearchArguments,
    question: &SearchQuestion,
    asked: PartFacts,
    directory: &Path,
) -> Result<PartFacts, Failure> {
    let start = Instant::now();
    let progress = progress::ProgressDisplay::begin_phase(call, "preparing plans");
    let mut shared =
        arguments.share.as_deref().map(|share| BestKnown::new(share, &asked)).transpose().or_unwritable()?;
    let answer = prepare_and_search(question, |searched, search| {
        progress.next_phase("searching");
        let mut told = |now: RunnerProgress, _: SearchMoment| {
            let gap = now.best.map(|best| 1.0 - now.bound / best);
            progress.say_progress(search_line(now, gap, question.aim.objective, searched.objective_scale()), None);
        };
        let others = shared.as_mut().map(|shared| -> &mut dyn ShardExchange { shared });
        let (shard, watch) =
            (Shard { part: asked.part, of: asked.parts }, DesignWatch { stop: &|| false, told: &mut told });
        search.run_design_part(shard, watch, others).map_err(|why| failure::file_failure(&question.name, why, ""))
    })?;
    drop(progress);
    if let Some(why) = shared.and_then(|shared| shared.failed) {
        tracing::warn!("--share: other parts do not know the best designs of this one, and search longer: {why}");
    }
    let (evaluated, seconds) = (count_evaluated(&answer), start.elapsed().as_secs_f64());
    let done = PartFacts { evaluated, seconds, ..asked };
    parts::write_part(directory, &done, &answer).or_unwritable()?;
    Ok(done)
}

fn count_evaluated(answer: &PartAnswer) -> u64 {
    answer.decided.iter().filter(|(_, fate)| matches!(fate, PartDecision::Evaluated(_))).count() as u64
}

fn answer_text(answer: &SearchPartAnswer) -> String {
    let what = if answer.was_complete { "was complete" } else { "is complete" };
    format!(
        "Part {} of the search {what}: {} designs evaluated, {:.1} s; coplace merge puts all parts together.\nWritten: \
        {}\n",
        answer.part,
        format_count(answer.evaluated),
        answer.seconds,
        answer.files.join(", ")
    )
}

/// How the answer of merged parts is printed.
#[derive(Debug, Clone, Copy)]
pub struct MergedPrint {
    pub format: Format,
    /// True for the whole answer, false for a short one.
    pub details: bool,
}

/// Merges the parts in directories, writes the run directory of the whole, prints its answer.
pub fn merge_parts(call: &Call, directories: &[PathBuf], out: &Path, print: MergedPrint) -> Result<(), Failure> {
    let start = Instant::now();
    let parts = SearchParts::open_all(directories).or_input()?;
    let PartFacts { asked, seed, question: digest, .. } = parts.facts;
    let question = SearchQuestion::load_again(asked)?;
    if question.digest_of_question(seed) != digest {
        let cure = "built-in files that it names have changed; search again";
        return Err(failure::input_failure(format!(
            "the parts answer a question that means something else by now: {cure}"
        )));
    }
    let claim = claim_run_directory(Some(out), &SearchRequest::default(), seed, &question, &digest)?;
    let times = BTreeMap::from([("parts".to_owned(), parts.seconds)]);
    prepare_and_search(&question, |searched, search| {
        let unfit = |why| failure::input_failure(format!("the parts do not fit together: {why}; search them again"));
        let answer = search.merge_parts(&parts.answers).map_err(unfit)?;
        let effort = DecisionEffort { seed, ..DecisionEffort::default() };
        let decision = decide_answer(search, &answer, effort, &|| false);
        let about =
            RecordContext { digest, seed, stopped: None, decision, undecided: false, grown: None, start, times };
        let found = conclude_search(&question, searched, &answer, about, call)?;
        write_and_print(call, &claim, print.format, found, |record| match print.details {
            true => report::run_report(record),
            false => report::run_summary(record, &out.display().to_string()),
        })
    })
}
