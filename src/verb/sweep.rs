//! `coplace sweep`: evaluates every design of a study, without pruning.

mod text;

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::progress::{ProgressDisplay, TimeLeft};
use crate::verb::search::question::SearchQuestion;
use crate::verb::search::within::nothing_within_limits;
use crate::verb::search::{SearchRequest, describe_design, files_of_design, prepare_job};
use crate::verb::slurm::{self, PartArguments, PartState, SlurmBatch};
use crate::verb::stop;
use crate::written_path::WrittenPath;
use results::run::claim::{DirectoryClaim, DirectoryClaimError};
use results::run::record::{self, BestDesign, SearchRecord, Versions};
use results::run::search_run::FoundFiles;
use results::run::sweep::directory::{self, SweepCluster};
use results::run::sweep::export::{self, SweepSummary};
use results::run::sweep::{
    MOST_COMBINATIONS, STORE, SweepFacts, SweepStore, SweepStoreError, SweptDimension, SweptRow,
};
use results::store::design::DesignRow;
use results::text::{format_count, format_rate};
use search::planner::{Job, PreparedJob};
use search::shard::Shard;
use search::space::{Chips, CombinationChip};
use search::sweep::{Sweep, SweptOutcome};
use serde::Serialize;
use sim::files::carried::Files;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
pub use text::AnswerLength;

/// Help of the positional argument.
const OF_ONE: &str = "A built-in model (coplace list models) or a Hugging Face config.json file; only one, even if the \
    study is for several; a file STUDY.toml beside it is the study [default: the study's, if it has one]";

/// Evaluate every design of a study under its best plan, for one model: for maps and sensitivities
#[derive(clap::Args, Clone)]
#[command(
    mut_arg("models", |models| models.value_name("MODEL|STUDY.toml").help(OF_ONE)),
    mut_arg("over", |flag| flag.hide(true)),
    mut_arg("time_limit", |flag| flag.hide(true)),
    mut_arg("within", |flag| flag.hide(true)),
    mut_arg("front", |flag| flag.hide(true)),
    after_help = "Examples:\n  coplace sweep llama2-7b --study smoke\n  coplace sweep mine.toml\n  \
    coplace sweep llama3-70b --study mine.toml --max-area 600 --out sweeps/mine --resume\n  \
    coplace sweep llama3-70b --study tpu --shard 3/8 --out sweeps/part-3 --resume\n  \
    coplace sweep llama3-70b --study tpu --parts 64 --slurm --partition=long --time=4:00:00\n  \
    coplace sweep serve llama3-70b --chip h100,h200 --tpot 10,20,40 --out runs/swept (as coplace serve)\n\n\
    Writes into its directory: sweep.sqlite (what is found, as it is found: a killed sweep goes on with --resume and has lost less than a\n\
    second), and when it is finished sweep.parquet and sweep.csv (every design with its values, area, power, energy, dollars, best plan and\n\
    what bounds it, or why it was rejected), record.json, best.toml, fabric.toml (as search writes them) and SHA256SUMS. A part\n\
    (--shard) has its store only: coplace merge puts parts together. --slurm writes parts, logs and scripts beside its\n\
    directory, into DIR.parts, and submits the parts that are not complete. JSON: format, part, designs, outcomes, bound_by, record, this_run, files;\n\
    with --slurm parts, submitted, complete, running, job, merge_job, directory, out."
)]
pub struct SweepArguments {
    #[command(flatten)]
    posed: SearchRequest,
    /// Directory of the sweep [default: runs/sweep-MODEL-STUDY, with a digest of the question if it differs from the
    /// study's]
    #[arg(long, value_name = "DIR")]
    out: Option<WrittenPath>,
    /// Resume the sweep of the directory, or start it
    #[arg(long)]
    resume: bool,
    /// Print the whole answer: the best design's plan, memory, stages and proof
    #[arg(long)]
    details: bool,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    in_parts: PartArguments,
}

/// The answer of a sweep.
#[derive(Serialize)]
pub struct SweepAnswer {
    /// The part of the sweep.
    part: String,
    /// Number of designs of the part.
    designs: u64,
    /// Number of designs per outcome.
    outcomes: BTreeMap<&'static str, u64>,
    /// Number of evaluated designs per bound.
    bound_by: BTreeMap<String, u64>,
    /// The record; only for a whole sweep.
    record: Option<SearchRecord>,
    /// The work of this process.
    this_run: SweepProcessCounts,
    /// The files of the sweep.
    files: Vec<String>,
}

/// The work of one process.
#[derive(Serialize, Clone, Copy, Default)]
pub struct SweepProcessCounts {
    /// Number of decided designs.
    designs: u64,
    /// Time for these designs, in seconds.
    seconds: f64,
}

#[cfg(test)]
impl SweepArguments {
    /// Returns the question that the arguments ask.
    pub fn question(&self) -> Result<search::ask::Question, Failure> {
        self.posed.settle_study()?.question()
    }
}

impl SweepArguments {
    /// Returns the same arguments, with texts that replace files of the same names.
    pub fn with_files(mut self: Box<Self>, files: &Files) -> Box<Self> {
        self.posed.files.clone_from(files);
        self
    }
}

/// Runs the verb: starts or resumes a sweep.
pub fn run_sweep(arguments: &SweepArguments, call: &Call) -> Result<(), Failure> {
    let arguments = &SweepArguments { posed: arguments.posed.settle_study()?, ..arguments.clone() };
    if let Some((flag, why)) = arguments.posed.asked.flag_of_search_alone() {
        return Err(failure::option_failure(&flag, "", format!("works only for search: {why}"), ""));
    }
    let question = SearchQuestion::read_of_one_model(&arguments.posed)?;
    if question.space.exceeds_limits_everywhere() {
        return Err(nothing_within_limits(&question.name, &arguments.posed.asked, &question.space));
    }
    let shard = arguments.in_parts.shard.unwrap_or(Shard::WHOLE);
    let facts = sweep_facts(&question, shard);
    let path = arguments
        .out
        .as_deref()
        .map_or_else(|| usual_directory(&question, &arguments.posed, &facts), Path::to_path_buf);
    if let Some(options) = &arguments.in_parts.slurm {
        let words = vec!["--resume".to_owned()];
        let state = |shard: Shard, directory: &Path| state_of_part(directory, &self::sweep_facts(&question, shard));
        let asked = &question.asked;
        let batch = SlurmBatch {
            verb: "sweep",
            question: asked,
            words,
            out: &path,
            parts: arguments.in_parts.parts,
            options,
            state: &state,
        };
        let submitted = batch.submit_batch()?;
        return answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&submitted), |_| {
            slurm::answer_text(&submitted)
        });
    }
    if facts.combinations > MOST_COMBINATIONS {
        let limit = format!("has {} combinations, and a sweep stores at most {MOST_COMBINATIONS}", facts.combinations);
        return Err(failure::file_failure(&question.name, limit, "list fewer values, or use coplace search"));
    }
    let claim = claim_directory(&path)?;
    call.note_directory(&path);
    let mut store = open_store(claim.path(), &facts, arguments.resume)?;
    let of = format!("of {} designs are stored in {}; go on with --resume", format_count(facts.size()), path.display());
    let kept =
        stop::KeptCounter::new(call, store.present().count(), move |kept| format!("{} {of}", format_count(kept)));
    let jobs: Vec<Job<'_>> = question.fabrics.iter().map(|fabric| question.reference_job(fabric)).collect();
    let prepared = jobs.iter().map(|job| prepare_job(&question, job)).collect::<Result<Vec<_>, _>>()?;
    let ready = PreparedSweep { question: &question, jobs: &jobs, prepared: &prepared };
    let this_run = ready.sweep_missing(call, &mut store, &kept)?;
    let finished = match shard {
        Shard::WHOLE => ready.finish_sweep(&store, this_run)?,
        _ => FinishedSweep { answer: part_answer(&store, &question, this_run)?, written: Ok(()) },
    };
    let short = AnswerLength::Short { again: "--resume --details" };
    finished.print_answer(call, arguments.format, if arguments.details { AnswerLength::Whole } else { short })
}

/// Returns the state of a part in a directory.
fn state_of_part(directory: &Path, asked: &SweepFacts) -> Result<PartState, Failure> {
    if !directory.join(STORE).exists() {
        return Ok(PartState::Lacking);
    }
    match SweepStore::open_for(directory, asked) {
        Ok(store) if store.is_complete() => Ok(PartState::Complete),
        Ok(_) => Ok(PartState::Lacking),
        Err(SweepStoreError::Busy { .. }) => Ok(PartState::Running),
        Err(error) => Err(error).or_damaged(),
    }
}

/// Claims the directory of a sweep.
pub fn claim_directory(path: &Path) -> Result<DirectoryClaim, Failure> {
    DirectoryClaim::for_sweep(path).map_err(|error| {
        let why = match error {
            DirectoryClaimError::Busy => {
                "another process sweeps into it; wait for its end, or give another directory".to_owned()
            }
            DirectoryClaimError::Foreign => {
                "holds files that are no sweep; give an empty or a new directory".to_owned()
            }
            other => other.to_string(),
        };
        failure::option_failure("--out", path.display(), why, "")
    })
}

/// Returns the default directory of a sweep.
fn usual_directory(question: &SearchQuestion, posed: &SearchRequest, facts: &SweepFacts) -> PathBuf {
    let part = if facts.parts > 1 { format!("-{}-of-{}", facts.part, facts.parts) } else { String::new() };
    let digest = if posed.changes_study() { format!("-{}", facts.question) } else { String::new() };
    PathBuf::from("runs").join(format!("sweep-{}{digest}{part}", question.directory_name(posed)))
}

/// Returns the question, space and part of a sweep.
pub fn sweep_facts(question: &SearchQuestion, shard: Shard) -> SweepFacts {
    // PHAZE's dimensions need no further columns, because every design has them as columns already.
    let column = !matches!(question.study.space.chips, Chips::Phaze(_));
    let dials = question.space.listed_dimensions();
    SweepFacts {
        coplace: Versions::current().coplace,
        question: question.digest_of_question(0),
        asked: question.asked.clone(),
        study: question.study_record(),
        combinations: question.space.combination_count(),
        dimensions: dials
            .iter()
            .map(|dial| SweptDimension::of_dimension(dial, column && dial.values.len() > 1))
            .collect(),
        part: shard.part,
        parts: shard.of,
    }
}

/// Opens the store of a directory: a new one, or the existing one with `resume`. Fails if a store exists and `resume`
/// is not set.
fn open_store(directory: &Path, facts: &SweepFacts, resume: bool) -> Result<SweepStore, Failure> {
    if !directory.join(STORE).exists() {
        return SweepStore::create_in(directory, facts).or_unwritable();
    }
    let store = SweepStore::open_for(directory, facts).or_damaged()?;
    if resume {
        return Ok(store);
    }
    let (found, wanted, at) = (store.present().count(), facts.size(), directory.display());
    let cure = "go on with it (--resume), give another directory, or remove it";
    Err(failure::option_failure("--out", &at, format!("holds {found} of {wanted} designs of this sweep"), cure))
}

/// Marks an error of an existing store: wrong input, unless a write failed because the disk is full or broken.
trait OrDamaged<T> {
    fn or_damaged(self) -> Result<T, Failure>;
}

impl<T> OrDamaged<T> for Result<T, SweepStoreError> {
    fn or_damaged(self) -> Result<T, Failure> {
        match self {
            Err(error @ (SweepStoreError::Write { .. } | SweepStoreError::Export(_))) => Err(error).or_unwritable(),
            other => other.or_input(),
        }
    }
}

/// A question with its plans prepared.
#[derive(Clone, Copy)]
pub struct PreparedSweep<'a> {
    pub question: &'a SearchQuestion,
    /// One job per fabric of the space.
    pub jobs: &'a [Job<'a>],
    pub prepared: &'a [PreparedJob<'a>],
}

impl<'a> PreparedSweep<'a> {
    fn job<'b>(&self, built: &'b CombinationChip) -> Option<Job<'b>>
    where
        'a: 'b,
    {
        Some(Job { chip: &built.chip, ..*self.jobs.get(built.fabric?)? })
    }

    /// Returns the sweep of the whole space.
    pub fn whole_sweep(&self) -> Sweep<'a> {
        Sweep { prepared: self.prepared, space: &self.question.space, max_step: self.question.aim.max_step }
    }

    /// Decides every design that the store lacks.
    fn sweep_missing(
        &self,
        call: &Call,
        store: &mut SweepStore,
        kept: &stop::KeptCounter,
    ) -> Result<SweepProcessCounts, Failure> {
        let (start, sweep) = (Instant::now(), self.whole_sweep());
        let shard = store.facts().shard();
        let present = store.present().clone();
        let lacking = sweep.space.combinations_by_fabric().filter_map(move |mut group| {
            group.retain(|number| shard.contains(*number) && !present.contains_combination(*number));
            (!group.is_empty()).then_some(group)
        });
        let (progress, size, before) =
            (ProgressDisplay::begin_phase(call, "sweeping"), store.facts().size(), store.present().count());
        let some = |numbers: &[u64]| {
            let fates: Vec<SweptOutcome> =
                sweep.evaluate_combinations(numbers).map_err(|why| Failure::Other(anyhow::anyhow!(why)))?;
            let rows =
                numbers.iter().zip(&fates).map(|(number, fate)| SweptRow::new(*number, fate, self.jobs).or_other());
            rows.collect::<Result<Vec<_>, _>>()
        };
        let mut looked = 0;
        search::sweep::run_in_groups(lacking, &some, &mut |found| {
            let rows: Vec<SweptRow> = found.into_iter().map(|(_, row)| row).collect();
            let done = kept.count_stored(|| {
                store.keep_rows(&rows).or_unwritable()?;
                Ok(store.present().count())
            })?;
            looked += rows.len() as u64;
            let seconds = start.elapsed().as_secs_f64();
            let rate = (done - before) as f64 / seconds;
            let left = Duration::try_from_secs_f64((size - done) as f64 / rate).ok();
            progress.say_progress(
                format!("{} of {} designs, {} per second", format_count(done), format_count(size), format_rate(rate)),
                left.map(|left| TimeLeft::about_seconds(left, "left")),
            );
            Ok(())
        })?;
        drop(progress);
        Ok(SweepProcessCounts { designs: looked, seconds: start.elapsed().as_secs_f64() })
    }

    /// Writes the exports and the record of a finished sweep. On a full disk the store alone has the rows.
    pub fn finish_sweep(&self, store: &SweepStore, this_run: SweepProcessCounts) -> Result<FinishedSweep, Failure> {
        let directory = store.file().parent().unwrap_or(Path::new("."));
        let (aim, facts) = (self.question.aim, store.facts());
        let exporting = Instant::now();
        let (summary, lost) = match export::write_exports(store, directory, aim) {
            Ok(summary) => (summary, None),
            Err(SweepStoreError::Export(lost)) => (export::summarize_store(store, aim).or_damaged()?, Some(lost)),
            Err(error) => return Err(error).or_unwritable(),
        };
        let cluster = SweepCluster {
            devices: facts.study.devices as f64,
            sequences: facts.study.global_batch_sequences as f64,
            sequence_tokens: facts.study.sequence_tokens as f64,
        };
        let (best, found) = self.best_design(&summary, &facts.question)?;
        let record = SearchRecord {
            format: record::FORMAT,
            versions: Versions::current(),
            question: facts.question.clone(),
            study: facts.study.clone(),
            seed: 0,
            certificate: directory::sweep_certificate(&summary, aim.objective, cluster),
            best,
            comparison: None,
            decision: None,
            lowered_to_w: None,
            front: None,
            asked: facts.asked.clone(),
            times: BTreeMap::from([
                ("sweep".to_owned(), this_run.seconds),
                ("export".to_owned(), exporting.elapsed().as_secs_f64()),
            ]),
        };
        let files = match lost {
            Some(lost) => Err(lost).or_unwritable(),
            None => directory::finish_directory(directory, &record, &found).or_unwritable(),
        };
        let (files, written) = match files {
            Ok(files) => (files, Ok(())),
            Err(failure) => (vec![store.file().to_path_buf()], Err(failure)),
        };
        let files = files.iter().map(|file| file.display().to_string()).collect();
        Ok(FinishedSweep { answer: SweepAnswer::new(summary, store, this_run, (Some(record), files)), written })
    }

    /// Returns the best design with the figures of its step, and its files; `None` and no files if no design is
    /// feasible.
    fn best_design(&self, summary: &SweepSummary, digest: &str) -> Result<(Option<BestDesign>, FoundFiles), Failure> {
        let Some(row) = &summary.best else {
            return Ok((None, FoundFiles::default()));
        };
        let space = &self.question.space;
        let number = row.index as u64;
        let fate =
            self.whole_sweep().evaluate_combination(number).map_err(|why| Failure::Other(anyhow::anyhow!(why)))?;
        let lost = || Failure::Other(anyhow::anyhow!("design {number} is no longer one of the space; sweep again"));
        let SweptOutcome::Evaluated(built, evaluation) = &fate else { return Err(lost()) };
        let (Ok(ranked), Some(id), Some(job)) =
            (&evaluation.outcome, space.design_of_combination(number), self.job(built))
        else {
            return Err(lost());
        };
        let words = |varied: Vec<(String, sim::hardware::FieldValue)>| {
            varied.into_iter().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(", ")
        };
        let row = DesignRow { dimensions: space.varied_dimensions(id).map(words), ..row.clone() };
        let source = format!(
            "found by coplace sweep {}, study {}, question {digest}",
            self.question.model_names(),
            self.question.name
        );
        Ok((Some(describe_design(self.question, &job, ranked, row, id)?), files_of_design(self.question, id, &source)?))
    }
}

/// Returns the answer for a part of a sweep.
fn part_answer(
    store: &SweepStore,
    question: &SearchQuestion,
    this_run: SweepProcessCounts,
) -> Result<SweepAnswer, Failure> {
    let summary = export::summarize_store(store, question.aim).or_damaged()?;
    Ok(SweepAnswer::new(summary, store, this_run, (None, vec![store.file().display().to_string()])))
}

/// The answer of a sweep, and the failure of its files if they could not be written.
pub struct FinishedSweep {
    answer: SweepAnswer,
    written: Result<(), Failure>,
}

impl FinishedSweep {
    /// Prints the answer, then fails if its files could not be written.
    pub fn print_answer(self, call: &Call, format: Format, length: AnswerLength) -> Result<(), Failure> {
        let answer = self.answer;
        answer::write_answer_with_files(call, format, &Versioned::with_schema_one(&answer), self.written, |_| {
            match length {
                AnswerLength::Whole => text::whole_answer(&answer),
                AnswerLength::Short { again } => text::short_answer(&answer, again),
            }
        })
    }
}

impl SweepAnswer {
    fn new(
        summary: SweepSummary,
        store: &SweepStore,
        this_run: SweepProcessCounts,
        (record, files): (Option<SearchRecord>, Vec<String>),
    ) -> Self {
        Self {
            part: store.facts().shard().to_string(),
            designs: summary.designs,
            outcomes: summary.fates,
            bound_by: summary.bound_by,
            record,
            this_run,
            files,
        }
    }
}
