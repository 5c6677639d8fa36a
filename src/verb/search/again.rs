//! The arguments with which `evaluate` reproduces the best plan of a search. A run directory given for `--chip`
//! supplies them.

use crate::failure::{self, Failure};
use crate::input;
use results::record::SearchRecord;
use results::run;
use search::planner::{Job, RankedPlan};
use sim::network::Fabric;
use std::ffi::OsString;
use std::path::Path;
use workloads::training::ContextMethod;
use workloads::{LayerEnds, RankOrder};

/// Arguments of the job. All hold for a run of the same model.
const JOB: [&str; 9] = [
    "--fabric",
    "--devices",
    "--global-batch",
    "--stack",
    "--headroom-gib",
    "--attention",
    "--optimizer",
    "--sequence-length",
    "--mtp-layers",
];
/// The first of these hold for another model too.
const ANY_MODEL: usize = 5;
/// Those that `techniques` accepts too. Its devices follow from its degrees.
const OF_TECHNIQUES: [&str; 5] = ["--fabric", "--stack", "--attention", "--optimizer", "--sequence-length"];

/// The names that a search was given.
pub struct NamedInputs<'a> {
    pub fabric: &'a str,
    pub stack: &'a str,
    pub attention: &'a str,
    pub optimizer: &'a str,
}

/// The arguments of a plan and its job, without the model and the chip.
pub fn plan_arguments(job: &Job<'_>, ranked: &RankedPlan, given: &NamedInputs<'_>) -> Vec<String> {
    let (plan, l) = (&ranked.plan, &ranked.plan.layout);
    let mut found: Vec<(&str, String)> = vec![
        ("--fabric", given.fabric.to_owned()),
        ("--devices", job.devices.to_string()),
        ("--global-batch", job.global_batch.to_string()),
        ("--stack", given.stack.to_owned()),
        ("--headroom-gib", job.headroom.gib().to_string()),
        ("--attention", given.attention.to_owned()),
        ("--optimizer", given.optimizer.to_owned()),
        ("--sequence-length", job.sequence_length.to_string()),
        ("--tensor", l.tensor.to_string()),
        ("--pipeline", l.pipeline.to_string()),
        ("--context", l.context.to_string()),
        ("--expert", l.expert.to_string()),
        ("--virtual-stages", l.virtual_stages.to_string()),
        ("--micro-batch", plan.batch.micro_batch.to_string()),
        ("--zero", (l.zero as u8).to_string()),
        ("--sequence-parallel", l.sequence_parallel.to_string()),
        ("--layer-split", l.ends.as_ref().map_or_else(|| "even".to_owned(), LayerEnds::to_string)),
        ("--recompute", plan.activations.to_string()),
    ];
    if job.model.variations.further_tokens > 0 {
        found.push(("--mtp-layers", job.model.variations.further_tokens.to_string()));
    }
    if let Some(width) = l.expert_tensor {
        found.push(("--expert-tensor", width.to_string()));
    }
    let order = match l.order {
        RankOrder::DataFirst => "t-d-p",
        RankOrder::PipelineFirst => "t-p-d",
    };
    found.push(("--order", order.to_owned()));
    if l.context > 1 {
        let method = match l.context_method {
            ContextMethod::Ring => "ring",
            ContextMethod::Ulysses => "ulysses",
        };
        found.push(("--context-method", method.to_owned()));
    }
    if l.pipeline > 1 {
        found.push(("--schedule", search::planner::schedule_name(plan.schedule).to_owned()));
    }
    found.into_iter().flat_map(|(key, value)| [key.to_owned(), value]).collect()
}

/// The value of `--chip`.
fn chip_value<'a>(words: &[&'a str]) -> Option<&'a str> {
    let after = words.iter().position(|word| *word == "--chip").and_then(|at| words.get(at + 1).copied());
    after.or_else(|| words.iter().find_map(|word| word.strip_prefix("--chip=")))
}

/// The value of `--chip`, if it is a directory.
fn chip_directory<'a>(words: &[&'a str]) -> Option<&'a Path> {
    chip_value(words).map(Path::new).filter(|directory| directory.is_dir())
}

/// The fault of a directory given for `--chip`, if it has one. It also explains the arguments that are then missing.
pub fn unusable_chip_fault(given: &[OsString]) -> Option<Failure> {
    let words = given.iter().map(|word| word.to_str()).collect::<Option<Vec<&str>>>()?;
    let directory = chip_directory(&words).filter(|_| matches!(words.get(1), Some(&("evaluate" | "plan" | "techniques"))))?;
    input::read_chip(&directory.display().to_string()).err()
}

/// The error of a missing network. It lists the fabrics that a built-in chip is sold with.
pub fn missing_fabric_message(given: &[OsString]) -> Option<Failure> {
    let words = given.iter().map(|word| word.to_str()).collect::<Option<Vec<&str>>>()?;
    let is_given =
        |key: &str| words.iter().any(|word| *word == key || word.strip_prefix(key).is_some_and(|rest| rest.starts_with('=')));
    if words.get(1) != Some(&"plan") || is_given("--fabric") {
        return None;
    }
    let chip = match input::read_chip(chip_value(&words)?) {
        Ok(chip) => chip.accelerator.name,
        Err(fault) => return Some(fault),
    };
    let own = Fabric::names().into_iter().filter_map(|name| Fabric::built_in(name).ok());
    let own: Vec<String> = own
        .filter(|fabric| fabric.joins.contains(&chip))
        .map(|fabric| {
            let most = match fabric.device_count() {
                u32::MAX => String::new(),
                devices => format!("; at most {devices} devices"),
            };
            format!("\n  {:<24}  {}{most}", fabric.name, fabric.description)
        })
        .collect();
    let known = match &*own {
        [] => "coplace list fabrics has them, and a fabric's file is one too".to_owned(),
        _ => format!("{chip} is sold with:{}", own.concat()),
    };
    Some(failure::input_failure(format!("--fabric is missing: name the network that joins the devices; {known}")))
}

/// Completes the command line from a run directory given for `--chip`: the arguments of the job and, for `evaluate`
/// without others, those of the plan.
pub fn complete_from_run(given: Vec<OsString>) -> Vec<OsString> {
    let Some(words) = given.iter().map(|word| word.to_str()).collect::<Option<Vec<&str>>>() else { return given };
    let verb = words.get(1).copied().unwrap_or_default();
    if !matches!(verb, "evaluate" | "plan" | "techniques") {
        return given;
    }
    let Some(directory) = chip_directory(&words) else { return given };
    // Faults of the directory are reported when its chip is read.
    if input::keep_files_of_run(directory, &words).is_err() {
        return given;
    }
    let Ok(record) = SearchRecord::read_from(&directory.join(run::RECORD)) else { return given };
    let Some(mut best) = record.best else { return given };
    let same_model = match best.models.iter().position(|of| words.contains(&of.model.as_str())) {
        Some(at) => {
            best.evaluate_with = best.models.swap_remove(at).evaluate_with;
            true
        }
        None => words.contains(&record.study.model.as_str()),
    };
    let is_given =
        |key: &str| words.iter().any(|word| word.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')));
    let pairs: Vec<(&str, &str)> = best.evaluate_with.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    // A plan belongs to its job. If any argument of either is given, the rest of the plan is open.
    let whole = verb == "evaluate" && same_model && pairs.iter().all(|(key, _)| !is_given(key)) && !is_given("--data");
    let fabric = directory.join(run::FABRIC);
    let mut added = Vec::new();
    for (key, value) in pairs.iter().filter(|(key, _)| !is_given(key)) {
        let of_job = JOB.iter().position(|known| known == key);
        let told = verb != "techniques" || OF_TECHNIQUES.contains(key);
        if !(told && (whole || of_job.is_some_and(|at| same_model || at < ANY_MODEL))) {
            continue;
        }
        let value = if *key == "--fabric" && fabric.is_file() { fabric.display().to_string() } else { (*value).to_owned() };
        added.extend([OsString::from(*key), OsString::from(value)]);
    }
    [given, added].concat()
}
