//! `coplace merge`: the parts of a sweep or of a search put together.

use crate::answer::{self, Format, Versioned};
use crate::failure::{self, Failure, OrInput, OrUnwritable};
use crate::verb::search::question::Question;
use crate::verb::search::{Posed, parts, prepare};
use crate::verb::sweep::{Ready, ThisRun, claim, facts, words};
use clap::Parser;
use results::parts::is_part;
use results::sweep::STORE;
use results::sweep::merge::{self, Parts};
use search::planner::Job;
use search::shard::Shard;
use std::path::PathBuf;

/// Put the parts of a sweep or of a search together
#[derive(clap::Args)]
#[command(after_help = "Example:\n  coplace merge sweeps/part-1 sweeps/part-2 --out sweeps/whole\n\n\
    Every part must be there and complete: one that is not is named, with the option that runs it. Of a sweep the files are those of the same sweep\n\
    in one process, byte for byte but for the times in record.json. Of a search the best design, the front and what is proven are those of one process;\n\
    which other designs were evaluated and which were discarded by a bound depends on what parts knew of each other. Merging again changes nothing.\n\
    JSON: as of coplace sweep or of coplace search.")]
pub struct Arguments {
    /// Directories of the parts, in any order
    #[arg(required = true)]
    parts: Vec<PathBuf>,
    /// Directory of the whole
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// The words of a sweep's question.
#[derive(Parser)]
struct Words {
    #[command(flatten)]
    posed: Posed,
}

/// The question that a run's words ask, as they were given to `search` or `sweep`.
pub fn asked_again(words: &[String]) -> Result<Posed, Failure> {
    let all = std::iter::once("coplace").chain(words.iter().map(String::as_str));
    Words::try_parse_from(all).map(|words| words.posed).map_err(|error| failure::input(error.to_string()))
}

/// Merges, writes the directory, prints what a sweep prints.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(part) = arguments.parts.iter().find(|directory| is_part(directory)) {
        if let Some(swept) = arguments.parts.iter().find(|directory| !is_part(directory) && directory.join(STORE).exists()) {
            let (part, swept) = (part.display(), swept.display());
            let cure = "give the parts of one of them alone";
            return Err(failure::input(format!("{part}: is a part of a search, and {swept} one of a sweep; {cure}")));
        }
        return parts::merge(&arguments.parts, &arguments.out, arguments.format);
    }
    let parts = Parts::open(&arguments.parts).or_input()?;
    let posed = asked_again(&parts.facts().asked_with)?;
    let question = Question::of_one(&posed)?;
    if !facts(&question, &posed, Shard::WHOLE).is_of(parts.facts()) {
        let asked = parts.facts().asked_with.join(" ");
        let cure = "put back the study and the files that it names as they were, or sweep again";
        return Err(failure::input(format!("the parts were swept with `{asked}`, which asks something else by now; {cure}")));
    }
    let claim = claim(&arguments.out)?;
    let mut whole = merge::whole(claim.path(), parts.facts()).or_unwritable()?;
    parts.into_store(&mut whole).or_unwritable()?;
    let jobs: Vec<Job<'_>> = question.fabrics.iter().map(|fabric| question.job(fabric)).collect();
    let prepared = jobs.iter().map(|job| prepare(&question, job)).collect::<Result<Vec<_>, _>>()?;
    let ready = Ready { question: &question, jobs: &jobs, prepared: &prepared };
    let answer = ready.finish(&whole, ThisRun::default())?;
    answer::give(arguments.format, &Versioned::first(&answer), |_| words(&answer))
}
