//! Runs a sweep or a search in several parts, each in a process of its own, by hand or as a Slurm job array with a
//! final job that merges them.

use super::job::count_up_to;
use crate::failure::{self, Failure, OrOther, OrUnwritable};
use results::store::files;
use search::ask::Question;
use search::shard::Shard;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Largest number of tasks of a job array. Slurm's default MaxArraySize is 1001, which allows task numbers up to 1000
/// (slurm.conf(5)).
const MOST_TASKS: u32 = 1000;

/// The file of the question, beside the parts.
const QUESTION: &str = "question.json";

/// In which parts it is done.
#[derive(clap::Args, Clone)]
pub struct PartArguments {
    /// One of several parts, such as 1/8 to 8/8. A part has the same designs whenever and wherever it runs; coplace
    /// merge merges all
    #[arg(long, value_name = "PART/PARTS")]
    pub shard: Option<Shard>,
    /// With --slurm: number of parts, each a task of the job array
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count_up_to(MOST_TASKS), requires = "slurm")]
    pub parts: u32,
    /// Submit to Slurm: an array of parts that resume or restart after any failure, and a job that merges them. It must
    /// be the last option, because sbatch gets the words after it
    #[arg(long, value_name = "SBATCH OPTION", num_args = 0.., allow_hyphen_values = true, conflicts_with = "shard")]
    pub slurm: Option<Vec<String>>,
}

/// The answer of a submission.
#[derive(Serialize)]
pub struct SubmitAnswer {
    /// Number of all parts.
    parts: u32,
    /// The parts that are submitted now.
    submitted: Vec<u32>,
    /// The complete parts.
    complete: Vec<u32>,
    /// The parts in progress.
    running: Vec<u32>,
    /// The job number of the array; null if no part is submitted.
    job: Option<String>,
    /// The job number of the merge.
    merge_job: String,
    /// Directory of the parts, their logs and the scripts.
    directory: String,
    /// Directory of the merged result.
    out: String,
}

/// A sweep or a search for Slurm.
pub struct SlurmBatch<'a> {
    /// The verb.
    pub verb: &'static str,
    /// The question of every part.
    pub question: &'a Question,
    /// Further options of each part's command, besides its question, its part and its directory.
    pub words: Vec<String>,
    /// Directory of the merged result.
    pub out: &'a Path,
    pub parts: u32,
    /// Further options of `sbatch`.
    pub options: &'a [String],
    /// Returns the state of a part from its directory.
    pub state: &'a dyn Fn(Shard, &Path) -> Result<PartState, Failure>,
}

/// The state of a part; `Lacking` covers missing and incomplete parts.
pub enum PartState {
    Complete,
    Running,
    Lacking,
}

/// Returns the directory of the parts. It lies beside the directory of the merged result, because that one must hold
/// nothing else.
pub fn parts_directory(out: &Path) -> PathBuf {
    let name = out.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    out.with_file_name(format!("{name}.parts"))
}

impl SlurmBatch<'_> {
    /// Writes the scripts and submits the incomplete parts as an array, followed by the merge.
    pub fn submit_batch(&self) -> Result<SubmitAnswer, Failure> {
        let directory = parts_directory(self.out);
        std::fs::create_dir_all(&directory)
            .map_err(|why| files::WriteError { file: directory.clone(), why })
            .or_unwritable()?;
        let (mut submitted, mut complete, mut running) = (Vec::new(), Vec::new(), Vec::new());
        for part in 1..=self.parts {
            match (self.state)(Shard { part, of: self.parts }, &self.part_directory(&part.to_string()))? {
                PartState::Complete => complete.push(part),
                PartState::Running => running.push(part),
                PartState::Lacking => submitted.push(part),
            }
        }
        let (array, merge) = (directory.join("array.sh"), directory.join("merge.sh"));
        let question = serde_json::to_string_pretty(&self.question.to_json()).or_other()? + "\n";
        let scripts = [
            (directory.join(QUESTION), question.into_bytes()),
            (array.clone(), self.array_script()?.into_bytes()),
            (merge.clone(), self.merge_script()?.into_bytes()),
        ];
        files::write_files(&scripts).or_unwritable()?;
        let log = |name: &str| format!("--output={}", directory.join(name).display());
        let job = if submitted.is_empty() {
            None
        } else {
            let of = format!("--array={}", array_ranges(&submitted));
            Some(self.submit_script(
                &[format!("--job-name=coplace-{}", self.verb), "--requeue".into(), of, log("part-%a.log")],
                &array,
            )?)
        };
        // The merge runs even if a part failed, and then reports the missing part.
        let mut after = vec!["--job-name=coplace-merge".to_owned(), "--requeue".to_owned(), log("merge.log")];
        after.extend(job.iter().map(|job| format!("--dependency=afterany:{job}")));
        let merge_job = self.submit_script(&after, &merge)?;
        let (directory, out) = (directory.display().to_string(), self.out.display().to_string());
        Ok(SubmitAnswer { parts: self.parts, submitted, complete, running, job, merge_job, directory, out })
    }

    fn part_directory(&self, part: &str) -> PathBuf {
        parts_directory(self.out).join(format!("{part}-of-{}", self.parts))
    }

    /// Returns the script of a part. It resumes from any state.
    fn array_script(&self) -> Result<String, Failure> {
        let out = self.part_directory("${SLURM_ARRAY_TASK_ID}").display().to_string();
        let question = parts_directory(self.out).join(QUESTION).display().to_string();
        let question = [self.verb.to_owned(), "--question".to_owned(), question];
        let words: Vec<String> = question.into_iter().chain(self.words.iter().cloned()).collect();
        let part = format!("\"${{SLURM_ARRAY_TASK_ID}}/{}\"", self.parts);
        // The shell must expand the number of the part, and nothing else.
        let out = quote_for_shell(&out).replace("${SLURM_ARRAY_TASK_ID}", "'\"${SLURM_ARRAY_TASK_ID}\"'");
        Ok(self.sbatch_script(&format!("{} {} --shard {part} --out {out}", executable_path()?, all_parts(&words))))
    }

    fn merge_script(&self) -> Result<String, Failure> {
        let parts: Vec<String> =
            (1..=self.parts).map(|part| self.part_directory(&part.to_string()).display().to_string()).collect();
        Ok(self.sbatch_script(&format!(
            "{} merge {} --out {}",
            executable_path()?,
            all_parts(&parts),
            quote_for_shell(&self.out.display().to_string())
        )))
    }

    /// Makes a script for `sbatch` that runs `command` in the directory of submission.
    fn sbatch_script(&self, command: &str) -> String {
        format!(
            "#!/bin/sh\n# Written by coplace {} --slurm. May be killed, requeued and run again at any time.\n\
             export RAYON_NUM_THREADS=\"${{SLURM_CPUS_PER_TASK:-${{SLURM_CPUS_ON_NODE:-1}}}}\"\nexec {command}\n",
            self.verb
        )
    }

    /// Submits a script and returns the job number.
    fn submit_script(&self, own: &[String], script: &Path) -> Result<String, Failure> {
        let mut command = Command::new("sbatch");
        // The user's options come last, so that they take precedence.
        command.args(["--parsable", "--open-mode=append"]).args(own).args(self.options).arg(script);
        let output = command.output().map_err(|why| {
            let scripts = parts_directory(self.out).display().to_string();
            let cure = format!(
                "run it where Slurm's commands are, or submit {scripts}/array.sh (--array=1-{}) and merge.sh",
                self.parts
            );
            failure::option_failure("--slurm", "", format!("sbatch cannot be started: {why}"), cure)
        })?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if !output.status.success() {
            let why = said(&output.stderr).replace("sbatch: error: ", "");
            return Err(failure::option_failure(
                "--slurm",
                "",
                format!("sbatch refused {}: {why}", script.display()),
                "",
            ));
        }
        // sbatch may print the name of the cluster after the number and a `;`.
        let number = said(&output.stdout);
        Ok(number.split(';').next().unwrap_or_default().to_owned())
    }
}

fn executable_path() -> Result<String, Failure> {
    Ok(quote_for_shell(&std::env::current_exe().or_other()?.display().to_string()))
}

fn all_parts(words: &[String]) -> String {
    words.iter().map(|word| quote_for_shell(word)).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a shell.
fn quote_for_shell(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Formats numbers as `--array` takes them: 1-3,7.
fn array_ranges(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let one = |&(from, to): &(u32, u32)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    runs.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Returns the answer of a submission as text.
pub fn answer_text(submitted: &SubmitAnswer) -> String {
    let SubmitAnswer { parts, complete, running, job, merge_job, directory, out, .. } = submitted;
    let mut text = match job {
        Some(job) => {
            format!(
                "Job {job}: parts {} of {parts} in {directory}, a log beside each\n",
                array_ranges(&submitted.submitted)
            )
        }
        None => format!("No part of {parts} is submitted\n"),
    };
    for (what, which) in [("complete", complete), ("running", running)] {
        if !which.is_empty() {
            text.push_str(&format!("Already {what}: {}\n", array_ranges(which)));
        }
    }
    text.push_str(&format!(
        "Job {merge_job}: merges them into {out}, or names the missing parts in \
        {directory}/merge.log; the same command submits only those\n"
    ));
    text
}
