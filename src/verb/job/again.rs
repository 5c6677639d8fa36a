//! The arguments of a job, which ask a kept answer again.

use super::{JobArguments, JobParts};
use crate::failure::{Failure, OrInput};
use crate::input;
use clap::Parser;
use results::asked::JobInputs;
use results::run;
use std::path::Path;

/// A parser for the arguments of a job alone.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct JobWords {
    #[command(flatten)]
    job: JobArguments,
}

impl JobArguments {
    /// The arguments for model, chip, cluster and stack, with the texts of the files that they name. The record of the
    /// plan has the other arguments.
    pub fn to_inputs(&self) -> Result<JobInputs, Failure> {
        let is_run = Path::new(&self.chip).is_dir();
        let chip = if is_run { Path::new(&self.chip).join(run::CHIP).display().to_string() } else { self.chip.clone() };
        let mut pairs = vec![
            ("--chip", chip.clone()),
            ("--fabric", self.fabric.clone()),
            ("--devices", self.devices.to_string()),
            ("--global-batch", self.global_batch.to_string()),
        ];
        let mut given = |flag, value: Option<String>| pairs.extend(value.map(|value| (flag, value)));
        given("--fast-domain", self.fast_domain.map(|n| n.to_string()));
        given("--sequence-length", self.sequence_length.map(|n| n.to_string()));
        given("--stack", self.stack.clone());
        given("--mtp-layers", self.mtp_layers.map(|n| n.to_string()));
        given("--capacity-factor", self.capacity_factor.map(|x| x.to_string()));
        given("--nvme", self.nvme.clone());
        pairs.extend(self.stack_option.iter().map(|option| ("--stack-option", option.clone())));
        let words = pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        let named = [Some(chip.as_str()), Some(self.fabric.as_str()), self.stack.as_deref()];
        let inputs =
            input::texts_of_files(std::iter::once(self.model.as_str()), &named.into_iter().flatten().collect::<Vec<_>>())?;
        Ok(JobInputs { asked_with: std::iter::once(self.model.clone()).chain(words).collect(), inputs })
    }

    /// Parses a job from its arguments.
    pub fn from_words(words: &[String]) -> Result<Self, Failure> {
        JobWords::try_parse_from(words).map(|alone| alone.job).or_input()
    }

    /// The chip with its sources, and the other parts that the job's arguments name.
    pub fn parts_of_job(&self) -> Result<JobParts, Failure> {
        self.read_parts(Ok)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_job_s_words_ask_for_the_same_job() {
        let words = "llama2-7b --chip tpu_v4 --fabric tpu_v4_ici --devices 8 --global-batch 16 --fast-domain 4 --sequence-length 512 \
                     --stack ideal --mtp-layers 1 --capacity-factor 1.25 --nvme 7:960 --stack-option overlap.tensor=0.5";
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let asked = JobArguments::from_words(&words).unwrap().to_inputs().unwrap();
        assert_eq!((asked.asked_with, asked.inputs.len()), (words, 0));
        assert!(JobArguments::from_words(&["llama2-7b".to_owned()]).is_err());
    }
}
