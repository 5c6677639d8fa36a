//! `coplace sweep --slurm`: the parts of a sweep as a Slurm job array, and a job that merges them.

use super::{OrDamaged, facts};
use crate::failure::{self, Failure, OrOther, OrUnwritable};
use crate::verb::search::Posed;
use crate::verb::search::question::Question;
use results::files;
use results::sweep::{Facts, STORE, SweepError, SweepStore};
use search::sweep::Shard;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is submitted, and where it goes.
#[derive(Serialize)]
pub struct Submitted {
    /// Parts in all.
    parts: u32,
    /// Those that are submitted now.
    submitted: Vec<u32>,
    /// Those that are complete.
    complete: Vec<u32>,
    /// Those that a process works on.
    running: Vec<u32>,
    /// The array's number; null where no part is submitted.
    job: Option<String>,
    /// The number of the job that merges the parts.
    merge_job: String,
    /// Directories of the parts, their logs and the scripts.
    directory: String,
    /// Directory of the merged sweep.
    out: String,
}

/// A sweep for Slurm.
pub struct Batch<'a> {
    pub question: &'a Question,
    pub posed: &'a Posed,
    /// Directory of the merged sweep.
    pub out: &'a Path,
    pub parts: u32,
    /// What `sbatch` is given besides.
    pub options: &'a [String],
}

/// What is known of a part.
enum State {
    Complete,
    Running,
    Lacking,
}

impl Batch<'_> {
    /// Writes the scripts and submits what is not complete: the array, and behind it the merge.
    pub fn submit(&self) -> Result<Submitted, Failure> {
        let directory = self.directory();
        std::fs::create_dir_all(&directory).map_err(|why| files::WriteError { file: directory.clone(), why }).or_unwritable()?;
        let (mut submitted, mut complete, mut running) = (Vec::new(), Vec::new(), Vec::new());
        for part in 1..=self.parts {
            match self.state(part)? {
                State::Complete => complete.push(part),
                State::Running => running.push(part),
                State::Lacking => submitted.push(part),
            }
        }
        let (array, merge) = (directory.join("array.sh"), directory.join("merge.sh"));
        let scripts = [(array.clone(), self.array()?.into_bytes()), (merge.clone(), self.merge()?.into_bytes())];
        files::write_all(&scripts).or_unwritable()?;
        let log = |name: &str| format!("--output={}", directory.join(name).display());
        let job = if submitted.is_empty() {
            None
        } else {
            let of = format!("--array={}", ranges(&submitted));
            Some(self.sbatch(&["--job-name=coplace-sweep".into(), "--requeue".into(), of, log("part-%a.log")], &array)?)
        };
        // Whatever became of the parts: the merge names the one that is missing.
        let mut after = vec!["--job-name=coplace-merge".to_owned(), "--requeue".to_owned(), log("merge.log")];
        after.extend(job.iter().map(|job| format!("--dependency=afterany:{job}")));
        let merge_job = self.sbatch(&after, &merge)?;
        let (directory, out) = (directory.display().to_string(), self.out.display().to_string());
        Ok(Submitted { parts: self.parts, submitted, complete, running, job, merge_job, directory, out })
    }

    /// Beside the directory of the whole, in which there is nothing but the whole.
    fn directory(&self) -> PathBuf {
        let name = self.out.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        self.out.with_file_name(format!("{name}.parts"))
    }

    fn part(&self, part: &str) -> PathBuf {
        self.directory().join(format!("{part}-of-{}", self.parts))
    }

    fn state(&self, part: u32) -> Result<State, Failure> {
        let directory = self.part(&part.to_string());
        if !directory.join(STORE).exists() {
            return Ok(State::Lacking);
        }
        let asked: Facts = facts(self.question, self.posed, Shard { part, of: self.parts });
        match SweepStore::open_for(&directory, &asked) {
            Ok(store) if store.is_complete() => Ok(State::Complete),
            Ok(_) => Ok(State::Lacking),
            Err(SweepError::Busy { .. }) => Ok(State::Running),
            Err(error) => Err(error).or_damaged(),
        }
    }

    /// The script of a part: whatever happened before, it goes on.
    fn array(&self) -> Result<String, Failure> {
        let out = self.part("${SLURM_ARRAY_TASK_ID}").display().to_string();
        let words: Vec<String> = std::iter::once("sweep".to_owned()).chain(self.posed.words()).collect();
        let part = format!("\"${{SLURM_ARRAY_TASK_ID}}/{}\"", self.parts);
        // The part's number is the shell's to fill in, the rest is not.
        let out = quoted(&out).replace("${SLURM_ARRAY_TASK_ID}", "'\"${SLURM_ARRAY_TASK_ID}\"'");
        Ok(script(&format!("{} {} --resume --shard {part} --out {out}", executable()?, all(&words))))
    }

    fn merge(&self) -> Result<String, Failure> {
        let parts: Vec<String> = (1..=self.parts).map(|part| self.part(&part.to_string()).display().to_string()).collect();
        Ok(script(&format!("{} merge {} --out {}", executable()?, all(&parts), quoted(&self.out.display().to_string()))))
    }

    /// Submits a script; the job's number.
    fn sbatch(&self, own: &[String], script: &Path) -> Result<String, Failure> {
        let mut command = Command::new("sbatch");
        // What the user says comes last: it counts.
        command.args(["--parsable", "--open-mode=append"]).args(own).args(self.options).arg(script);
        let output = command.output().map_err(|why| {
            let scripts = self.directory().display().to_string();
            let cure = format!(
                "run it where Slurm's commands are, or submit {scripts}/array.sh (--array=1-{}) and merge.sh",
                self.parts
            );
            failure::input(format!("--slurm: sbatch cannot be started: {why}; {cure}"))
        })?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if !output.status.success() {
            let why = said(&output.stderr).replace("sbatch: error: ", "");
            return Err(failure::input(format!("--slurm: sbatch refused {}: {why}", script.display())));
        }
        // Behind a `;` it names the cluster.
        let number = said(&output.stdout);
        Ok(number.split(';').next().unwrap_or_default().to_owned())
    }
}

/// A script for `sbatch`, in the directory in which it is submitted.
fn script(command: &str) -> String {
    format!(
        "#!/bin/sh\n# Written by coplace sweep --slurm. May be killed, requeued and run again at any time: it goes on where it was.\n\
         export RAYON_NUM_THREADS=\"${{SLURM_CPUS_PER_TASK:-${{SLURM_CPUS_ON_NODE:-1}}}}\"\nexec {command}\n"
    )
}

fn executable() -> Result<String, Failure> {
    Ok(quoted(&std::env::current_exe().or_other()?.display().to_string()))
}

fn all(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A word that a shell takes as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Numbers as `--array` takes them: 1-3,7.
fn ranges(numbers: &[u32]) -> String {
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

/// In words.
pub fn words(submitted: &Submitted) -> String {
    let Submitted { parts, complete, running, job, merge_job, directory, out, .. } = submitted;
    let mut text = match job {
        Some(job) => format!("Job {job}: parts {} of {parts} in {directory}, a log beside each\n", ranges(&submitted.submitted)),
        None => format!("No part of {parts} is submitted\n"),
    };
    for (what, which) in [("complete", complete), ("being swept", running)] {
        if !which.is_empty() {
            text.push_str(&format!("Already {what}: {}\n", ranges(which)));
        }
    }
    text.push_str(&format!("Job {merge_job}: merges them into {out}, or says in {directory}/merge.log what is missing; the same command submits that alone\n"));
    text
}
