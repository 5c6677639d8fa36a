//! `coplace merge`: merges the parts of a sweep or of a search.

use crate::answer::Format;
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrUnwritable};
use crate::verb::search::question::SearchQuestion;
use crate::verb::search::{parts, prepare_job};
use crate::verb::sweep::{AnswerLength, PreparedSweep, SweepProcessCounts, claim_directory, sweep_facts};
use crate::written_path::WrittenPath;
use results::run::parts::is_part;
use results::run::sweep::STORE;
use results::run::sweep::merge::{self, SweepParts};
use search::planner::Job;
use search::shard::Shard;
use std::path::PathBuf;

/// Merge the parts of a sweep or of a search
#[derive(clap::Args)]
#[command(after_help = "Example:\n  coplace merge sweeps/part-1 sweeps/part-2 --out sweeps/whole\n\n\
    Every part must be there and complete; the error for a missing one names the option that runs it. The files\n\
    of a merged sweep equal those of the same sweep in one process, byte for byte except for the times in\n\
    record.json. A merged search has the same best design, front and proof as a search in one process, unless\n\
    its objective counts energy: parts keep every chip at the highest clock that its limits allow. The sets of\n\
    evaluated and pruned designs depend on the exchange between parts. Merging again changes nothing.\n\
    JSON: as for coplace sweep or coplace search.")]
pub struct MergeArguments {
    /// Directories of the parts, in any order
    #[arg(required = true)]
    parts: Vec<PathBuf>,
    /// Directory of the whole
    #[arg(long, value_name = "DIR")]
    out: WrittenPath,
    /// Print the whole answer, as coplace sweep --details or coplace search --details does
    #[arg(long)]
    details: bool,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Runs the verb: merges the parts of a sweep or a search, writes the directory, and prints the answer.
pub fn run_merge(arguments: &MergeArguments, call: &Call) -> Result<(), Failure> {
    if let Some(part) = arguments.parts.iter().find(|directory| is_part(directory)) {
        if let Some(swept) =
            arguments.parts.iter().find(|directory| !is_part(directory) && directory.join(STORE).exists())
        {
            let (part, swept) = (part.display(), swept.display());
            let cure = "give the parts of one of them alone";
            return Err(failure::file_failure(
                &part,
                format!("is a part of a search, and {swept} one of a sweep"),
                cure,
            ));
        }
        let print = parts::MergedPrint { format: arguments.format, details: arguments.details };
        return parts::merge_parts(call, &arguments.parts, &arguments.out, print);
    }
    let is_out =
        |part: &&PathBuf| part.canonicalize().ok().zip(arguments.out.canonicalize().ok()).is_some_and(|(a, b)| a == b);
    if let Some(part) = arguments.parts.iter().find(is_out) {
        let cure = "give a directory of its own";
        return Err(failure::option_failure("--out", part.display(), "is one of the parts", cure));
    }
    let parts = SweepParts::open_all(&arguments.parts).or_input()?;
    let question = SearchQuestion::load_again(parts.facts().asked.clone())?.of_one_model(false)?;
    if !sweep_facts(&question, Shard::WHOLE).is_same_part(parts.facts()) {
        let cure = "built-in files that it names have changed; sweep again";
        return Err(failure::input_failure(format!(
            "the parts answer a question that means something else by now: {cure}"
        )));
    }
    let claim = claim_directory(&arguments.out)?;
    let mut whole = merge::open_whole(claim.path(), parts.facts()).or_unwritable()?;
    parts.into_store(&mut whole).or_unwritable()?;
    let jobs: Vec<Job<'_>> = question.fabrics.iter().map(|fabric| question.reference_job(fabric)).collect();
    let prepared = jobs.iter().map(|job| prepare_job(&question, job)).collect::<Result<Vec<_>, _>>()?;
    let ready = PreparedSweep { question: &question, jobs: &jobs, prepared: &prepared };
    let length = if arguments.details { AnswerLength::Whole } else { AnswerLength::Short { again: "--details" } };
    ready.finish_sweep(&whole, SweepProcessCounts::default())?.print_answer(call, arguments.format, length)
}
