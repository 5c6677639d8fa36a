//! Builds the question of `coplace serve` from the given values, then from the study, then from the command's defaults.

use super::{CacheFormat, MOST_CASES, PoolChoice, ServeArguments, product_format};
use crate::failure::{self, Failure, OrInput};
use crate::numbers::parse_token_count;
use crate::verb::job::run::file_of_chip;
use results::run::search_run::{SearchRun, directory_of_run};
use search::ask::{DeploymentQuestion, DeploymentSpec, MethodSpec, ServedPools};
use search::objective::Objective;
use search::study::Study;
use serving::best::GivenDegrees;
use serving::lengths::{LengthClass, RequestLengths};
use serving::plan::{ServedProduct, ServingFormats};
use sim::files::carried::Files;
use sim::kernel::DataType;
use std::cmp::Ordering;
use std::path::Path;

/// The default values.
const DEVICES: u32 = 8;
const ENGINE: &str = "vllm";
const INPUT: u64 = 1024;
const OUTPUT: u64 = 256;

/// Parses `INPUTxOUTPUT:SHARE,...`; a single class needs no share.
fn parse_lengths(text: &str) -> Result<Vec<LengthClass>, Failure> {
    let wrong = |part: &str| {
        failure::input_failure(format!(
            "--lengths {part}: is not INPUTxOUTPUT:SHARE; give for example 1024x256:0.8,8192x512:0.2"
        ))
    };
    let mut classes = Vec::new();
    for part in text.split(',') {
        let (lengths, share) = part.split_once(':').unwrap_or((part, "1"));
        let (input, output) = lengths.split_once('x').ok_or_else(|| wrong(part))?;
        let lengths = (parse_token_count(input.trim()), parse_token_count(output.trim()));
        let (Some(input), Some(output), Ok(share)) = (lengths.0, lengths.1, share.trim().parse()) else {
            return Err(wrong(part));
        };
        classes.push(LengthClass { input, output, share });
    }
    let mut pairs: Vec<(u64, u64)> = classes.iter().map(|class| (class.input, class.output)).collect();
    if let Some((input, output)) = find_twice(&mut pairs) {
        let cure = "give each pair once, with the sum of its shares";
        return Err(failure::option_failure("--lengths", format!("{input}x{output}"), "is named twice", cure));
    }
    let lengths = RequestLengths::new(&classes).map_err(|error| failure::option_failure_from("--lengths", &error))?;
    Ok(lengths.classes().to_vec())
}

/// Returns the values of a list; the usual value if the list is empty.
fn list_or<T: Copy>(given: &[T], usual: Option<T>) -> Vec<T> {
    if given.is_empty() { usual.into_iter().collect() } else { given.to_vec() }
}

/// Sorts values, and returns the first one that occurs twice.
fn find_twice<T: PartialOrd + Copy>(values: &mut [T]) -> Option<T> {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    values.windows(2).find_map(|pair| if let [a, b] = pair { (a == b).then_some(*a) } else { None })
}

/// Returns the file of a run's chip in place of the run's directory, after a check of the run. Any other chip is
/// returned unchanged.
fn file_of_run(chip: &str) -> Result<String, Failure> {
    let file = file_of_chip(chip);
    if file != chip {
        SearchRun::read_chip(&directory_of_run(Path::new(chip))).or_input()?;
    }
    Ok(file)
}

/// The given part of a question about deployments. Missing values come from the study, or else are the defaults.
#[derive(Debug, Clone, Default)]
pub struct GivenDeployment {
    pub model: Option<String>,
    pub assume: Vec<String>,
    pub chips: Vec<String>,
    pub study: Option<String>,
    pub train_weight: Option<f64>,
    pub fabric: Option<String>,
    pub nvme: Option<String>,
    pub devices: Option<u32>,
    pub engine: Option<String>,
    pub input: Vec<u64>,
    pub output: Vec<u64>,
    /// Lengths of requests with their shares, in place of `input` and `output`.
    pub lengths: Option<String>,
    pub ttft_ms: Vec<f64>,
    pub tpot_ms: Vec<f64>,
    pub pools: Option<ServedPools>,
    pub products: Option<ServedProduct>,
    pub experts: Option<ServedProduct>,
    pub cache: Option<DataType>,
    pub degrees: GivenDegrees,
    pub method: MethodSpec,
    pub objective: Objective,
}

impl ServeArguments {
    /// Returns the values that the options give.
    pub fn given(&self) -> GivenDeployment {
        GivenDeployment {
            model: self.model.clone(),
            assume: self.assume.clone(),
            chips: self.chip.clone(),
            study: self.study.clone(),
            train_weight: self.train_weight,
            fabric: self.fabric.clone(),
            nvme: self.method.storage(),
            devices: self.devices,
            engine: self.engine.clone(),
            input: self.input.clone(),
            output: self.output.clone(),
            lengths: self.lengths.clone(),
            ttft_ms: self.ttft.clone(),
            tpot_ms: self.tpot.clone(),
            pools: self.pools.map(PoolChoice::into),
            products: self.products,
            experts: self.experts,
            cache: Some(match self.cache {
                CacheFormat::Bf16 => DataType::Bf16,
                CacheFormat::Fp8 => DataType::Fp8,
            }),
            degrees: GivenDegrees {
                tensor: self.tensor,
                pipeline: self.pipeline,
                attention_data: self.attention_data,
                expert: self.expert,
                context: self.context_parallel,
            },
            method: self.method.spec(),
            objective: self.objective.into(),
        }
    }
}

impl GivenDeployment {
    /// Returns the question. Texts in `files` replace files of the same names.
    pub fn question(&self, files: &Files) -> Result<DeploymentQuestion, Failure> {
        self.check_lists()?;
        let study = self.study.as_ref().map(|name| Study::load_from(name, files)).transpose().or_input()?;
        let usual = study.as_ref().and_then(|study| study.serve.clone()).unwrap_or_default();
        let trained = study.as_ref().and_then(|study| study.workloads.first()).map(|of| of.model.clone());
        let model = self.model.clone().or(usual.model.clone()).or(trained);
        let model = model.ok_or_else(|| {
            failure::missing_option("MODEL", "give the served model (coplace list models): the study names none")
        })?;
        let weight = self.train_weight.or(usual.train_weight).filter(|weight| *weight > 0.0);
        let mut asked = DeploymentQuestion {
            model,
            assume_ignored: self.assume.clone(),
            chips: self.chips.iter().map(|chip| file_of_run(chip)).collect::<Result<_, _>>()?,
            study: self.study.clone(),
            train_weight: weight,
            fabric: self.fabric.clone(),
            nvme: self.nvme.clone(),
            devices: self.devices.or(usual.devices).unwrap_or(DEVICES),
            engine: self.engine.clone().or(usual.engine.clone()).unwrap_or_else(|| ENGINE.to_owned()),
            lengths: self.length_lists(&usual)?,
            ttft_ms: list_or(&self.ttft_ms, usual.ttft_ms),
            tpot_ms: list_or(&self.tpot_ms, usual.tpot_ms),
            pools: self.pools.or(usual.pools).unwrap_or(ServedPools::Together),
            formats: self.formats(&usual)?,
            degrees: self.degrees,
            method: self.method.clone(),
            objective: self.objective,
            files: files.clone(),
        };
        asked.carry_files();
        if let Some(study) = &study {
            let named = study.space.named_chips().into_iter().chain([study.cluster.fabric.as_str()]);
            let own = named.filter(|name| name.ends_with(".toml"));
            own.for_each(|name| asked.files.carry(Path::new(name)));
        }
        Ok(asked)
    }

    /// Refuses lists with more combinations than the limit, and a value that occurs twice in a list.
    fn check_lists(&self) -> Result<(), Failure> {
        let tokens = [("--input", &self.input), ("--output", &self.output)];
        let times = [("--ttft", &self.ttft_ms), ("--tpot", &self.tpot_ms)];
        let counts = tokens.map(|(flag, list)| (flag, list.len())).into_iter();
        let counts: Vec<(&str, usize)> = counts.chain(times.map(|(flag, list)| (flag, list.len()))).collect();
        let all = counts.iter().fold(1_usize, |all, (_, count)| all.saturating_mul((*count).max(1)));
        if let (true, Some((flag, count))) = (all > MOST_CASES, counts.iter().max_by_key(|(_, count)| *count)) {
            let value = format!("of {count} values");
            let limit = format!("makes {all} combinations with the other lists, and at most {MOST_CASES} are priced");
            return Err(failure::option_failure(flag, value, limit, "give fewer values"));
        }
        let twice = |flag: &str, value: String| {
            failure::option_failure(flag, value, "is named twice", "name each value once: it has one answer")
        };
        for (flag, list) in tokens {
            find_twice(&mut list.clone()).map_or(Ok(()), |value| Err(twice(flag, value.to_string())))?;
        }
        for (flag, list) in times {
            find_twice(&mut list.clone()).map_or(Ok(()), |value| Err(twice(flag, value.to_string())))?;
        }
        Ok(())
    }

    /// Returns every pair of the given lengths of prompts and answers; or the classes of --lengths alone.
    fn length_lists(&self, usual: &DeploymentSpec) -> Result<Vec<Vec<LengthClass>>, Failure> {
        if let Some(text) = &self.lengths {
            return Ok(vec![parse_lengths(text)?]);
        }
        let inputs = list_or(&self.input, usual.input.or(Some(INPUT)));
        let outputs = list_or(&self.output, usual.output.or(Some(OUTPUT)));
        let pairs = inputs.iter().flat_map(|input| outputs.iter().map(move |output| (*input, *output)));
        let class = |(input, output)| {
            let lengths = RequestLengths::uniform(input, output).or_input()?;
            Ok(lengths.classes().to_vec())
        };
        pairs.map(class).collect()
    }

    fn formats(&self, usual: &DeploymentSpec) -> Result<ServingFormats, Failure> {
        let of_study = usual.products.as_ref().map(|name| product_format(name));
        let of_study = of_study.transpose().map_err(|why| failure::input_failure(format!("serve.products: {why}")))?;
        let products = self.products.or(of_study).unwrap_or(ServedProduct::Bf16);
        let cache = self.cache.unwrap_or(DataType::Bf16);
        Ok(ServingFormats { products, experts: self.experts.unwrap_or(products), cache })
    }
}
