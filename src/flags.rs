//! A table with a value for every flag of every verb. Tests parse each flag, keep the question, and ask it again.
#![allow(clippy::unwrap_used)]

use crate::{CommandLine, Verb};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command, CommandFactory, Parser};
use search::ask::Question;
use std::collections::BTreeSet;

/// The arguments that each verb requires.
const REQUIRED: [(&str, &str); 22] = [
    ("search", "opt-350m --study tpu"),
    ("sweep", "opt-350m --study tpu"),
    ("merge", "part-1 part-2 --out whole"),
    ("explain", "run"),
    ("init", "study.toml"),
    ("evaluate", "opt-350m --chip h100 --fabric nvlink4_node --devices 4 --global-batch 8"),
    ("plan", "opt-350m --chip h100 --fabric nvlink4_node --devices 4 --global-batch 8"),
    ("compare", "run other"),
    ("pareto", "run --out figures"),
    ("report", "run"),
    ("validate", "kernels.csv"),
    ("calibrate", "h100 kernels.csv"),
    ("place", "graph.json"),
    ("schedule", "instance.json"),
    ("scalesim", "array.cfg topology.csv"),
    ("calculon", "model.json execution.json system.json"),
    ("techniques", "opt-350m --chip h100"),
    ("serve", "opt-350m --chip h100"),
    ("list", "models"),
    ("doctor", ""),
    ("mcp", ""),
    ("page", "opt-350m --chip h100 --fabric nvlink4_node --devices 4 --global-batch 8"),
];

/// A value for each flag, different from its default and from [`REQUIRED`]. A switch has an empty value. `VERB --FLAG`
/// takes precedence over `--FLAG`.
const SAMPLES: &[(&str, &str)] = &[
    ("--accumulate", "2"),
    ("--allow", "galore,step_multiplier=1.1"),
    ("--allow-write", "runs"),
    ("--attention", "unfused"),
    ("--breakdown", "parts.csv"),
    ("--capacity-factor", "1.25"),
    ("--chakra", "step.et"),
    ("--chip", "a100_80gb_sxm"),
    ("--chips", "chips"),
    ("--context", "2,4"),
    ("techniques --context", "2"),
    ("--context-method", "ring"),
    ("--data", "4"),
    ("--devices", "8"),
    ("--documents", "2048:3,512"),
    ("--emit", "megatron"),
    ("--everything", ""),
    ("--expert", "2,4"),
    ("compare --expert", "2,2,256"),
    ("techniques --expert", "2"),
    ("--expert-tensor", "1,2"),
    ("--fit", "0.8"),
    ("--fabric", "selene_hdr200x8"),
    ("--family", ""),
    ("--fast-domain", "2"),
    ("--from", "train.sh"),
    ("--format", "json"),
    ("--freedoms", ""),
    ("--front", "power,cost"),
    ("--global-batch", "64"),
    ("--hbm-stacks", "5"),
    ("--headroom-gib", "2.5"),
    ("--gradients", "fp32"),
    ("--held-out", ""),
    ("--input", "gemm"),
    ("--hindcast", "b200"),
    ("--intervals", "residuals.csv"),
    ("--kernels", ""),
    ("--assume", "some_size=ignored"),
    ("--kwh-price", "0.12"),
    ("--layer-split", "7:9"),
    ("--links", "links.csv"),
    ("--links-between", "devices"),
    ("--links-of", "one"),
    ("--map-ranks", ""),
    ("--max-area", "612.5"),
    ("--max-cost", "900"),
    ("--max-hbm-gib", "96"),
    ("--max-power", "450"),
    ("--max-step", "1.5"),
    ("--memory", "figures"),
    ("--lora-targets", "q_proj,v_proj"),
    ("--loss", "chunked"),
    ("--master", "none"),
    ("--method", "ilp"),
    ("--micro-batch", "1,2"),
    ("techniques --micro-batch", "2"),
    ("--min-hbm-bandwidth", "2000"),
    ("--min-hbm-gib", "64"),
    ("--model", "config.json"),
    ("--mtp-layers", "1"),
    ("--no-build-limits", ""),
    ("--details", ""),
    ("--dollars", "system"),
    ("--draws", "64"),
    ("--efficiency", "ideal"),
    ("--no-master", ""),
    ("--node", "n5"),
    ("--nvme", "7:960"),
    ("--objective", "per-watt"),
    ("--only", "host_overhead_us"),
    ("--optimizer", "adafactor"),
    ("--order", "t-p-d"),
    ("--out", "elsewhere"),
    ("--over", "mean"),
    ("--parts", "8"),
    ("--pipeline", "2,4"),
    ("techniques --pipeline", "2"),
    ("--port", "8080"),
    ("--plot", "figures"),
    ("--precision", "fp8"),
    ("--predictions", "predictions.csv"),
    ("--pue", "1.25"),
    ("--question", "question.json"),
    ("--recompute", "selective;full"),
    ("techniques --recompute", "full"),
    ("--report", "report.csv"),
    ("--residuals", "residuals.csv"),
    ("--resume", ""),
    ("--robust", ""),
    ("--runs", "elsewhere"),
    ("--script", "measure.py"),
    ("--schedule", "zb-h1"),
    ("--evaluations", "64"),
    ("--seed", "7"),
    ("--sequence-length", "1024"),
    ("--sequence-parallel", "true"),
    ("--set", "hbm_stacks=5"),
    ("--shard", "1/2"),
    ("--shards", "4"),
    ("--share", "shared"),
    ("--slurm", "--time=1:00:00"),
    ("--solver", "highs"),
    ("--stack", "nemo"),
    ("--states", "bf16"),
    ("--stack-option", "overlap.tensor=0.5"),
    ("--stacks", "stacks"),
    ("--stall-free", ""),
    ("--steps", "1000"),
    ("--study", "smoke"),
    ("--technique", "galore,rank=256"),
    ("--techniques", ""),
    ("--tensor", "2,4"),
    ("techniques --sort", "memory"),
    ("techniques --tensor", "2"),
    ("--time-limit", "60"),
    ("--tokens", "300B"),
    ("--top", "3"),
    ("--usd-per-device-hour", "2.5"),
    ("--trace", "step.json"),
    ("--utilisation", "0.75"),
    ("--virtual-stages", "1,2"),
    ("--vocabulary", "256000"),
    ("--within", "0.5"),
    ("--x", "power"),
    ("--y", "per-watt"),
    ("--years", "4"),
    ("--z", "cost"),
    ("--zero", "1,3"),
    ("techniques --zero", "1"),
    ("--attention-data", "2"),
    ("--cache", "fp8"),
    ("serve --devices", "16"),
    ("--engine", "sglang"),
    ("serve --expert", "2"),
    ("--context-parallel", "2"),
    ("--experts", "fp8"),
    ("--accepted", "1.5"),
    ("--cache-away", "0.5"),
    ("--cache-place", "host"),
    ("--draft", "2"),
    ("--draft-model", "llama3.2-1b"),
    ("serve --technique", "homer,chunk=1024"),
    ("explain --tensor", "2"),
    ("explain --pipeline", "2"),
    ("explain --expert", "2"),
    ("--beside", "rows.csv"),
    ("--prefix-hit", "0.5"),
    ("--prefix-tokens", "100000"),
    ("serve --input", "2048"),
    ("--lengths", "512x128:0.5,64x64:0.5"),
    ("--output", "512"),
    ("serve --pipeline", "2"),
    ("--pools", "apart"),
    ("--products", "fp8"),
    ("serve --tensor", "2"),
    ("--train-weight", "0.5"),
    ("--tpot", "25"),
    ("--ttft", "500"),
];

/// Flags that replace the arguments that their verb requires.
const ALONE: [&str; 4] = ["validate --techniques", "validate --intervals", "validate --hindcast", "calibrate --script"];

/// Flags that a flag needs beside it. `VERB --FLAG` takes precedence over `--FLAG`.
const BESIDE: &[(&str, &str)] = &[
    ("--share", "--shard 1/2"),
    ("--parts", "--slurm --time=1:00:00"),
    ("--residuals", "--held-out"),
    ("--links-of", "--links links.csv"),
    ("--links-between", "--links links.csv"),
    ("--usd-per-device-hour", "--tokens 300B"),
    ("--dollars", "--objective per-dollar"),
    ("--years", "--objective per-dollar"),
    ("--kwh-price", "--objective per-dollar --years 4"),
    ("--pue", "--objective per-dollar --years 4"),
    ("--utilisation", "--objective per-dollar --years 4"),
    ("compare --study", "--freedoms"),
    ("--train-weight", "--study serve"),
    ("--accepted", "--draft 2"),
    ("--cache-away", "--cache-place host"),
    ("--draft-model", "--draft 2 --accepted 1"),
    ("--prefix-tokens", "--prefix-hit 0.5"),
    ("serve --nvme", "--cache-place nvme"),
    ("compare --stack", "--freedoms"),
    ("compare --sequence-length", "--freedoms"),
    ("compare --expert", "--freedoms"),
    ("compare --evaluations", "--freedoms"),
    ("compare --seed", "--freedoms"),
    ("compare --out", "--freedoms"),
];

/// Flags that are not part of a question: output, format, time limits, parts, the source of a question, and the price
/// and length of a whole training, which are computed from the answer.
const NOT_ASKED: [&str; 25] = [
    "--chakra",
    "--details",
    "--draws",
    "--emit",
    "--format",
    "--from",
    "--kernels",
    "--links",
    "--links-between",
    "--links-of",
    "--map-ranks",
    "--memory",
    "--out",
    "--parts",
    "--question",
    "--resume",
    "--seed",
    "--shard",
    "--share",
    "--slurm",
    "--time-limit",
    "--tokens",
    "--top",
    "--trace",
    "--usd-per-device-hour",
];

/// One verb with its required arguments and one flag.
struct Asked {
    verb: String,
    flag: String,
    sample: &'static str,
    /// The words behind the verb.
    words: Vec<String>,
}

/// Finds the row of a flag in a table: that of `VERB --FLAG`, then that of `--FLAG`.
fn in_table(table: &[(&'static str, &'static str)], verb: &str, flag: &str) -> Option<(&'static str, &'static str)> {
    let named = |name: &str| table.iter().find(|(known, _)| *known == name).copied();
    named(&format!("{verb} {flag}")).or_else(|| named(flag))
}

fn required_of(verb: &str) -> Vec<String> {
    let (_, words) = REQUIRED.iter().find(|(known, _)| *known == verb).unwrap_or_else(|| unreachable!("{verb}"));
    words.split_whitespace().map(str::to_owned).collect()
}

/// Returns the flags of a verb without `--help` and `--version`.
fn flags_of(verb: &Command) -> Vec<&Arg> {
    let help = |flag: &&Arg| matches!(flag.get_id().as_str(), "help" | "version");
    verb.get_arguments().filter(|flag| flag.get_long().is_some() && !help(flag)).collect()
}

/// Returns every flag of every visible verb with its sample. A sample replaces the value of a required flag.
fn all_asked() -> Vec<Asked> {
    let mut all = Vec::new();
    let is_listed = |verb: &&Command| !verb.is_hide_set() && verb.get_name() != "help";
    for verb in CommandLine::command().get_subcommands().filter(is_listed) {
        for flag in flags_of(verb) {
            let name = format!("--{}", flag.get_long().unwrap());
            if name == "--solver" && !cfg!(feature = "highs") {
                continue; // Its one value in this build is the default.
            }
            let found = in_table(SAMPLES, verb.get_name(), &name);
            let (_, sample) = found.unwrap_or_else(|| unreachable!("{} {name} has no sample", verb.get_name()));
            let alone = ALONE.contains(&&*format!("{} {name}", verb.get_name()));
            let mut words = if alone { Vec::new() } else { required_of(verb.get_name()) };
            if let Some(at) = words.iter().position(|word| *word == name) {
                words.drain(at..at + 2);
            }
            words.push(name.clone());
            words.extend((!sample.is_empty()).then(|| sample.to_owned()));
            let beside = in_table(BESIDE, verb.get_name(), &name).map_or("", |(_, words)| words);
            words.extend(beside.split_whitespace().map(str::to_owned));
            all.push(Asked { verb: verb.get_name().to_owned(), flag: name, sample, words });
        }
    }
    all
}

#[test]
fn every_flag_of_every_verb_has_a_sample_that_is_not_its_default() {
    let all = all_asked();
    assert!(all.len() > 200, "{}", all.len());
    let command = CommandLine::command();
    for Asked { verb, flag, sample, words } in &all {
        let call = ["coplace", verb].into_iter().chain(words.iter().map(String::as_str));
        let matches = command.clone().try_get_matches_from(call);
        let matches =
            matches.unwrap_or_else(|why| unreachable!("{verb} {flag}: {}", why.to_string().replace('\n', " ")));
        let verb_matches = matches.subcommand_matches(verb).unwrap();
        let mut arguments = command.find_subcommand(verb).unwrap().get_arguments();
        let argument = arguments.find(|argument| argument.get_long() == Some(&flag[2..])).unwrap();
        let id = argument.get_id().as_str();
        assert_eq!(verb_matches.value_source(id), Some(ValueSource::CommandLine), "{verb} {flag}");
        assert_eq!(matches!(argument.get_action(), ArgAction::SetTrue), sample.is_empty(), "{verb} {flag} {sample}");
        assert!(argument.get_default_values().iter().all(|value| value != sample), "{verb} {flag} {sample}");
        let is_required = required_of(verb).windows(2).any(|pair| pair[0] == *flag && pair[1] == *sample);
        assert!(!is_required, "{verb} {flag} {sample}");
    }
    let used: BTreeSet<&str> = all.iter().map(|asked| in_table(SAMPLES, &asked.verb, &asked.flag).unwrap().0).collect();
    let left: Vec<&str> = SAMPLES
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !used.contains(name) && (*name != "--solver" || cfg!(feature = "highs")))
        .collect();
    assert!(left.is_empty(), "samples of no flag: {left:?}");
}

/// Returns the question that words ask; `None` if the verb asks none.
fn asked_question(verb: &str, words: &[String]) -> Option<Question> {
    let call = ["coplace", verb].into_iter().chain(words.iter().map(String::as_str));
    let question = match CommandLine::try_parse_from(call).unwrap().verb {
        Verb::Search(arguments) => arguments.question(),
        Verb::Sweep(arguments) => arguments.question(),
        Verb::Evaluate(arguments) => arguments.question(),
        Verb::Plan(arguments) => arguments.question(),
        _ => return None,
    };
    Some(question.unwrap_or_else(|why| unreachable!("{verb} {words:?}: {why:?}")))
}

/// Every flag that is part of a question changes the question's canonical text, and a round trip through JSON changes
/// neither the question nor that text. The flags of [`NOT_ASKED`] leave the question as it is.
#[test]
fn a_question_read_back_from_json_is_equal_with_every_flag() {
    let (mut asked_flags, mut others) = (0, BTreeSet::new());
    let mut silent = Vec::new();
    for Asked { verb, flag, words, .. } in all_asked() {
        let beside = in_table(BESIDE, &verb, &flag).map_or("", |(_, words)| words);
        let plain =
            required_of(&verb).into_iter().chain(beside.split_whitespace().map(str::to_owned)).collect::<Vec<_>>();
        let Some(base) = asked_question(&verb, &plain) else { continue };
        if NOT_ASKED.contains(&&*flag) {
            others.insert(flag.clone());
            if flag != "--question" {
                assert_eq!(asked_question(&verb, &words), Some(base), "{verb} {flag}");
            }
            continue;
        }
        asked_flags += 1;
        let question = asked_question(&verb, &words).unwrap();
        let again = Question::parse("question.json", &question.to_json().to_string()).unwrap();
        assert_eq!(again, question, "{verb} {flag}");
        assert_eq!(again.canonical(), question.canonical(), "{verb} {flag}");
        if question.canonical() == base.canonical() {
            silent.push(format!("{verb} {flag}"));
        }
    }
    assert!(silent.is_empty(), "asked, and in no question: {silent:?}");
    assert!(asked_flags > 90, "{asked_flags}");
    let unused: Vec<&&str> = NOT_ASKED.iter().filter(|flag| !others.contains(**flag)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}
